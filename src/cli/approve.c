/*
 * Approvals on the command line: the flags that decide who is asked, and the question itself.
 *
 * Questions come as events on the main thread, while the cell waits.  In text they are put to a person, on stderr; with
 * --events the request is a line on stdout and the answer a line of JSON on stdin.  With --cells answers are lines of
 * the input, and nothing is asked here.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#define LOOK_MS 50             /* how often a question looks whether it still waits for an answer */
#define MAX_ANSWER (8u << 20)  /* bytes of a line that answers */

/* ---- the flags ---------------------------------------------------------------- */

int cell__cli_gate_open(const struct cell_cli_gate_flags *flags, struct cell_cli_host *host,
			struct cell_session_options *options, struct cell_error *err)
{
	unsigned more = (flags->shell ? CELL_GATE_SHELL : 0) | (flags->installs ? CELL_GATE_INSTALLS : 0) |
			(flags->workflows ? CELL_GATE_WORKFLOWS : 0);

	if (flags->policy && flags->approve)
		return cell__cli_fail(err, CELL_E_INVALID, 0, "--policy and --approve: give one of them");
	if (flags->approve && strcmp(flags->approve, "auto") && strcmp(flags->approve, "ask") &&
	    strcmp(flags->approve, "deny"))
		return cell__cli_fail(err, CELL_E_INVALID, 0, "--approve is auto, ask or deny, not '%s'", flags->approve);
	if (flags->approve && strcmp(flags->approve, "auto"))
		host->policy = cell_policy_of(!strcmp(flags->approve, "ask") ? CELL_ASK : CELL_DENY);
	if (flags->policy && cell_policy_load(flags->policy, &host->policy, err) < 0)
		return -1;
	if (flags->audit) {
		struct cell_audit_options audit = CELL_AUDIT_OPTIONS_INIT;

		audit.path = flags->audit;
		if (cell_audit_open(host->engine, &audit, &host->audit, err) < 0)
			return -1;
	}
	if (more && !host->policy)
		return cell__cli_fail(err, CELL_E_INVALID, 0, "--approve-* wants to know how: give --approve ask or deny, or --policy");
	options->policy = host->policy;
	options->audit = host->audit;
	options->gate = more && !flags->policy ? more | CELL_GATE_TOOLS : 0;
	options->approval_timeout_ms = flags->approval_timeout_ms;
	options->approval_stops_clock = flags->stops_clock;
	options->require_shell_escape = flags->shell_escape;
	options->restore_cwd = flags->restore_cwd;
	return 0;
}

void cell__cli_gate_close(struct cell_cli_host *host)
{
	cell_policy_destroy(host->policy);
	cell_audit_close(host->audit);
}

/* ---- asking --------------------------------------------------------------------- */

struct cell_cli_asker {
	int fd; /* answers; -1: nobody can be asked */
	bool own_fd, json;
	char *line; /* what was read of it so far */
	size_t size, room;
};

struct cell_cli_asker *cell__cli_asker_create(bool stdin_is_taken, bool json)
{
	struct cell_cli_asker *asker = calloc(1, sizeof(*asker));

	if (asker)
		asker->line = malloc(asker->room = 256);
	if (!asker || !asker->line) {
		free(asker);
		return NULL;
	}
	asker->json = json;
	asker->fd = stdin_is_taken ? open("/dev/tty", O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
	asker->own_fd = stdin_is_taken && asker->fd >= 0;
	return asker;
}

void cell__cli_asker_destroy(struct cell_cli_asker *asker)
{
	if (!asker)
		return;
	if (asker->own_fd)
		close(asker->fd);
	free(asker->line);
	free(asker);
}

/* ---- reading a line, as long as the question stands ------------------------- */

static bool still_waits(struct cell_session *session, uint64_t id)
{
	struct cell_error err;
	char *text = NULL;
	json_t *list, *one;
	size_t i;
	bool found = false;

	if (cell__cli_stop_status() || cell_session_approvals(session, &text, &err) < 0)
		return false;
	list = json_loads(text, 0, NULL);
	json_array_foreach(list, i, one)
		found |= (uint64_t)json_integer_value(json_object_get(one, "id")) == id;
	json_decref(list);
	free(text);
	return found;
}

/* A line without its end, NUL-terminated, valid until the next call; NULL: none came before the end of input, or the
 * request is gone (*ret_gone). */
static char *take_line(struct cell_cli_asker *asker, struct cell_session *session, uint64_t id, bool *ret_gone)
{
	struct pollfd wait = { .fd = asker->fd, .events = POLLIN };

	*ret_gone = false;
	asker->size = 0;
	for (;;) {
		char byte;
		ssize_t n;
		int ready = poll(&wait, 1, LOOK_MS);

		if (ready == 0 && !still_waits(session, id)) {
			*ret_gone = true;
			return NULL;
		}
		if (ready <= 0)
			continue;
		/* One at a time: what follows the line is for the next question, or for somebody else. */
		n = read(asker->fd, &byte, 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 || byte == '\n') {
			if (n <= 0 && !asker->size)
				return NULL;
			asker->line[asker->size] = '\0';
			return asker->line;
		}
		if (asker->size + 2 > asker->room) {
			size_t room = asker->room * 2;
			char *more = room <= MAX_ANSWER ? realloc(asker->line, room) : NULL;

			if (!more)
				return NULL;
			asker->line = more;
			asker->room = room;
		}
		asker->line[asker->size++] = byte;
	}
}

/* ---- answers in JSON ----------------------------------------------------------- */

int cell__cli_answer_json(struct cell_session *session, const json_t *root, uint64_t fallback, struct cell_error *err)
{
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;
	const json_t *id = json_object_get(root, "id"), *accept = json_object_get(root, "accept");
	const json_t *content = json_object_get(root, "content"); /* of a question */
	const json_t *args = content ? content : json_object_get(root, "args");
	const char *key;
	json_t *value;
	char *text = NULL;
	int status;

	json_object_foreach((json_t *)root, key, value)
		if (strcmp(key, "op") && strcmp(key, "id") && strcmp(key, "accept") && strcmp(key, "reason") &&
		    strcmp(key, "args") && strcmp(key, "always") && strcmp(key, "content"))
			return cell__cli_fail(err, CELL_E_INVALID, 0,
					      "an answer has id, accept, reason, args or content, always; not '%s'", key);
	if (!json_is_boolean(accept) || (id && (!json_is_integer(id) || json_integer_value(id) < 0)))
		return cell__cli_fail(err, CELL_E_INVALID, 0,
				      "an answer is {\"id\": N, \"accept\": true or false, ...}");
	answer.accept = json_is_true(accept);
	answer.reason = json_string_value(json_object_get(root, "reason"));
	answer.always = json_is_true(json_object_get(root, "always"));
	if (args && !json_is_null(args)) {
		text = json_dumps(args, JSON_COMPACT | JSON_ENCODE_ANY);
		if (!text)
			return cell__cli_fail(err, CELL_E_NOMEM, 0, "no memory for the arguments");
		answer.args = text;
	}
	status = cell_session_answer(session, id ? (uint64_t)json_integer_value(id) : fallback, &answer, err);
	free(text);
	return status;
}

static void ask_json(struct cell_cli_asker *asker, struct cell_session *session, const struct cell_call_info *call)
{
	struct cell_approval_answer no = CELL_APPROVAL_ANSWER_INIT;
	bool gone;

	while (still_waits(session, call->id)) {
		struct cell_error err;
		char *line = take_line(asker, session, call->id, &gone);
		json_t *root;

		if (gone)
			return;
		if (!line) {
			no.reason = "the input with the answers has ended";
			(void)cell_session_answer(session, call->id, &no, &err); /* gone is as good */
			return;
		}
		root = json_loads(line, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
		if (!json_is_object(root))
			dprintf(STDERR_FILENO, "workcell: invalid: an answer is a JSON object on one line\n");
		else if (cell__cli_answer_json(session, root, call->id, &err) < 0)
			dprintf(STDERR_FILENO, "workcell: %s: %s\n", cell_code_word(err.code), err.msg);
		json_decref(root);
	}
}

/* ---- a person ------------------------------------------------------------------- */

/* Only ASCII, and nothing that a terminal would obey: the JSON says the rest exactly. */
static char *shown_args(const struct cell_call_info *call)
{
	json_t *args = json_loadb(call->args, call->args_size, JSON_ALLOW_NUL, NULL);
	char *text = args ? json_dumps(args, JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_SORT_KEYS) : NULL;

	json_decref(args);
	return text;
}

/* False: ask again. */
static bool take_edit(struct cell_cli_asker *asker, struct cell_session *session, const struct cell_call_info *call)
{
	struct cell_approval_answer answer = { .size = sizeof(answer), .accept = 1, .from_terminal = 1 };
	bool is_shell = !strcmp(call->kind, "shell"), gone;
	struct cell_error err;
	json_t *args;
	char *line, *text;
	int status;

	dprintf(STDERR_FILENO, is_shell ? "command: " : "arguments, a JSON object on one line: ");
	line = take_line(asker, session, call->id, &gone);
	if (!line)
		return false;
	if (is_shell) {
		args = json_loadb(call->args, call->args_size, JSON_ALLOW_NUL, NULL);
		if (json_object_set_new(args, "cmd", json_string(line)) < 0) {
			dprintf(STDERR_FILENO, "workcell: invalid: the command is not UTF-8\n");
			json_decref(args);
			return false;
		}
		text = json_dumps(args, JSON_COMPACT);
		json_decref(args);
	} else {
		text = strdup(line);
	}
	answer.args = text ? text : "";
	status = cell_session_answer(session, call->id, &answer, &err);
	free(text);
	if (status < 0)
		dprintf(STDERR_FILENO, "workcell: %s: %s\n", cell_code_word(err.code), err.msg);
	return status == 0 || err.code == CELL_E_NOT_FOUND;
}

/* ---- a question of an MCP server ------------------------------------------------- */

/* What was typed for a property, as its schema wants it; NULL: it cannot be that. */
static json_t *typed_value(const json_t *schema, const char *line)
{
	const char *type = json_string_value(json_object_get(schema, "type"));
	json_t *value = NULL;

	if (!type || !strcmp(type, "string"))
		return json_string(line);
	if (!strcmp(type, "boolean") && (!strcmp(line, "y") || !strcmp(line, "yes")))
		return json_true();
	if (!strcmp(type, "boolean") && (!strcmp(line, "n") || !strcmp(line, "no")))
		return json_false();
	value = json_loads(line, JSON_DECODE_ANY, NULL);
	if (value && strcmp(type, "array") && json_is_array(value)) {
		json_decref(value);
		value = NULL;
	}
	return value;
}

static bool is_required(const json_t *schema, const char *name)
{
	const json_t *one;
	size_t i;

	json_array_foreach(json_object_get(schema, "required"), i, one)
		if (json_is_string(one) && !strcmp(json_string_value(one), name))
			return true;
	return false;
}

/* A value for each property; an empty line leaves one out.  NULL: the input ended or the question is gone. */
static json_t *fill_form(struct cell_cli_asker *asker, struct cell_session *session, uint64_t id, json_t *schema)
{
	json_t *content = json_object(), *property;
	const char *name;

	json_object_foreach(json_object_get(schema, "properties"), name, property) {
		char *shown = json_dumps(property, JSON_ENSURE_ASCII | JSON_COMPACT), *plain = cell__cli_plain(name);
		bool gone, again;

		do {
			char *line;
			json_t *value;

			dprintf(STDERR_FILENO, "%s%s %s: ", plain ? plain : "", is_required(schema, name) ? " (required)" : "",
				shown ? shown : "");
			line = take_line(asker, session, id, &gone);
			value = line && *line ? typed_value(property, line) : NULL;
			again = line && *line && !value;
			if (again)
				dprintf(STDERR_FILENO, "workcell: invalid: that is not what is asked for\n");
			if (value)
				json_object_set_new(content, name, value);
			if (!line) {
				json_decref(content);
				content = NULL;
			}
		} while (again);
		free(shown);
		free(plain);
		if (!content)
			break;
	}
	return content;
}

/* False: it is still open. */
static bool answer_question(struct cell_cli_asker *asker, struct cell_session *session, uint64_t id, json_t *schema)
{
	struct cell_approval_answer answer = { .size = sizeof(answer), .accept = 1, .from_terminal = 1 };
	json_t *content = fill_form(asker, session, id, schema);
	char *text = content ? json_dumps(content, JSON_COMPACT) : NULL;
	struct cell_error err = { 0 };
	int status = -1;

	json_decref(content);
	if (text) {
		answer.args = text;
		status = cell_session_answer(session, id, &answer, &err);
		if (status < 0)
			dprintf(STDERR_FILENO, "workcell: %s: %s\n", cell_code_word(err.code), err.msg);
	}
	free(text);
	return !status || err.code == CELL_E_NOT_FOUND;
}

static void ask_question(struct cell_cli_asker *asker, struct cell_session *session, const struct cell_call_info *call)
{
	struct cell_approval_answer no = { .size = sizeof(no), .from_terminal = 1 };
	json_t *asked = json_loadb(call->args, call->args_size, JSON_ALLOW_NUL, NULL), *schema;
	char *shown = json_dumps(json_object_get(asked, "message"), JSON_ENSURE_ASCII | JSON_ENCODE_ANY);
	bool gone = false, answered = false;
	struct cell_error err;

	schema = json_object_get(asked, "requestedSchema");
	dprintf(STDERR_FILENO, "workcell: %s%s%s (mcp) asks: %s\n", call->tool, *call->callable ? "." : "", call->callable,
		shown ? shown : "(no memory to show it)");
	while (!answered && !gone) {
		char *line;

		dprintf(STDERR_FILENO, "answer? y(es), n(o): ");
		line = take_line(asker, session, call->id, &gone);
		if (!line || *line == 'n')
			break;
		if (!strcmp(line, "y") || !strcmp(line, "yes"))
			answered = answer_question(asker, session, call->id, schema);
	}
	if (gone)
		dprintf(STDERR_FILENO, "\nworkcell: the question does not wait any more\n");
	else if (!answered)
		(void)cell_session_answer(session, call->id, &no, &err); /* gone is as good */
	free(shown);
	json_decref(asked);
}

static void ask_person(struct cell_cli_asker *asker, struct cell_session *session, const struct cell_event *event)
{
	const struct cell_call_info *call = event->call;
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;
	struct cell_error err;
	char *args = shown_args(call);
	bool gone = false, shown;

	dprintf(STDERR_FILENO, "workcell: %s %s%s%s (%s) wants to run with\n%s\n", call->kind, call->tool,
		*call->callable ? "." : "", call->callable, call->adapter, args ? args : "(no memory to show them)");
	if (event->message)
		dprintf(STDERR_FILENO, "the policy says: %s\n", event->message);
	shown = args != NULL;
	free(args);
	answer.from_terminal = 1;
	while (shown) {
		char *line;

		dprintf(STDERR_FILENO, "approve? y(es), n(o), always, e(dit): ");
		line = take_line(asker, session, call->id, &gone);
		if (gone) {
			dprintf(STDERR_FILENO, "\nworkcell: the request does not wait any more\n");
			return;
		}
		if (!line)
			break;
		answer.always = !strcmp(line, "always") || !strcmp(line, "a");
		answer.accept = answer.always || !strcmp(line, "y") || !strcmp(line, "yes");
		if (!strcmp(line, "e") || !strcmp(line, "edit")) {
			if (take_edit(asker, session, call))
				return;
		} else if (answer.accept || !strncmp(line, "n", 1)) {
			/* What follows "n" is told to the code: `n not on Fridays`. */
			const char *reason = strchr(line, ' ');

			answer.reason = !answer.accept && reason ? reason + 1 : NULL;
			if (cell_session_answer(session, call->id, &answer, &err) < 0)
				dprintf(STDERR_FILENO, "workcell: %s: %s\n", cell_code_word(err.code), err.msg);
			return;
		}
	}
	answer.accept = answer.always = 0;
	answer.reason = "nobody was there to be asked";
	(void)cell_session_answer(session, call->id, &answer, &err); /* gone is as good */
}

void cell__cli_ask(struct cell_cli_asker *asker, struct cell_session *session, const struct cell_event *event)
{
	if (asker->fd < 0) {
		struct cell_approval_answer no = { .size = sizeof(no), .reason = "nobody is there to be asked" };
		struct cell_error err;

		(void)cell_session_answer(session, event->call->id, &no, &err); /* gone is as good */
	} else if (asker->json) {
		ask_json(asker, session, event->call);
	} else if (!strcmp(event->call->kind, "question")) {
		ask_question(asker, session, event->call);
	} else {
		ask_person(asker, session, event);
	}
}
