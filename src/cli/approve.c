/*
 * Approvals on the command line: the flags that choose the answerer, and the question itself.
 *
 * Questions come as events on the main thread, while the cell waits.  In text they are put to a person, on stderr; with
 * --events the request is a line on stdout and the answer a line of JSON on stdin.  With --cells answers are lines of
 * the input, and nothing is asked here.
 *
 * The code that asks may choose the moment, the number and the words of its questions, may withdraw one and ask another in
 * its place, and prints to the same terminal.  So an answer counts only when it was typed to the question on the screen:
 *
 *     question shown ──▶ deaf, input is dropped ──▶ prompt ──▶ line ──▶ answered, by the question's id
 *           ▲                                         │
 *           └── the next one needs its number ◀── gone: the typed text is dropped
 */
#define _GNU_SOURCE 1
#include "cli.h"
#include "base/file.h"
#include "base/hole.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#define POLL_MS 50             /* how often a question checks whether it still waits for an answer */
#define MAX_ANSWER (8u << 20)  /* bytes of a line that answers */
#define MAX_KEY 4096u          /* bytes of a key's file */
#define MAX_NAME 300u          /* characters of a call's name in the display */
#define MAX_MESSAGE 4000u      /* characters of an MCP server's question in the display */

/* ---- the flags ---------------------------------------------------------------- */

int cell__cli_saved_key(const char *path, char **ret_key, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	if (cell__file_load("the key", path, 0, MAX_KEY, &text, err) < 0)
		return -1;
	CELL_AUTO_FREE char *key = cell__buf_take(&text);

	key[strcspn(key, "\r\n")] = '\0';
	if (strlen(key) != 64)
		return cell_fail(err, CELL_E_INVALID, 0, "%.150s does not have 64 hexadecimal digits on its first line", path);
	*ret_key = cell__take_ptr(key);
	return 0;
}

int cell__cli_saved_place(const char *saved, const char **ret_place, struct cell_error *err)
{
	const char *place = saved;

	if (saved && !strncmp(saved, "env:", 4)) {
		place = getenv(saved + 4);
		if (!place || !*place)
			return cell_fail(err, CELL_E_INVALID, 0, "--saved: the environment variable %.100s is not set", saved + 4);
	}
	*ret_place = place;
	return 0;
}

static int open_saved(const struct cell_cli_gate_flags *flags, struct cell_cli_host *host, struct cell_session_options *options,
		      struct cell_error *err)
{
	const bool wants = flags->save || flags->resume || flags->saved_key_file || flags->durable || flags->saved_compress ||
			   flags->saved_unsynced || flags->saved_points;
	if (wants && !flags->saved)
		return cell_fail(err, CELL_E_INVALID, 0, "%s needs --saved DIR, the folder of saved sessions",
				 flags->save             ? "--save"
				 : flags->resume         ? "--resume"
				 : flags->durable        ? "--durable"
				 : flags->saved_compress ? "--saved-compress"
				 : flags->saved_unsynced ? "--saved-unsynced"
				 : flags->saved_points   ? "--saved-points"
							 : "--saved-key-file");
	if (flags->saved_key_file && cell__cli_saved_key(flags->saved_key_file, &host->saved_key, err) < 0)
		return -1;
	if (cell__cli_saved_place(flags->saved, &options->saved_dir, err) < 0)
		return -1;
	options->saved_key = host->saved_key;
	options->resume = flags->resume;
	options->record = flags->record;
	options->durable = flags->durable;
	options->saved_compress = flags->saved_compress;
	options->saved_unsynced = flags->saved_unsynced;
	options->saved_points = flags->saved_points;
	options->saved_form = flags->saved_form;
	options->saved_host = flags->saved_host;
	options->saved_url = flags->saved_url;
	options->saved_lease_ms = flags->saved_lease_ms < 0 ? 0 : flags->saved_lease_ms;
	return 0;
}

int cell__cli_save(const struct cell_cli_gate_flags *flags, struct cell_session *session, struct cell_error *err)
{
	char line[300];
	if (!flags->save)
		return 0;
	char *text = cell_session_hibernate(session, err);
	json_t *answer = text ? json_loads(text, 0, NULL) : NULL, *left;
	size_t i;
	if (!text)
		return -1;
	snprintf(line, sizeof(line), "workcell: saved the session; go on with --resume %s", cell_session_id(session));
	cell__cli_note(line);
	json_array_foreach(json_object_get(answer, "not_carried"), i, left) {
		snprintf(line, sizeof(line), "workcell: not saved: %.40s %.200s", cell__cli_text(left, "kind"),
			 cell__cli_text(left, "name"));
		cell__cli_note(line);
	}
	json_decref(answer);
	free(text);
	return 0;
}

int cell__cli_gate_open(const struct cell_cli_gate_flags *flags, struct cell_cli_host *host, struct cell_session_options *options,
			struct cell_error *err)
{
	bool more = flags->shell || flags->installs || flags->workflows; /* --approve means these too */

	if (flags->policy && flags->approve)
		return cell_fail(err, CELL_E_INVALID, 0, "--policy and --approve exclude each other: give only one of them");
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
		return cell_fail(err, CELL_E_INVALID, 0, "--approve-* needs --approve ask, --approve deny or --policy");
	options->policy = host->policy;
	options->audit = host->audit;
	options->approval_timeout_ms = flags->approval_timeout_ms;
	options->approval_stops_clock = flags->stops_clock;
	options->require_shell_escape = flags->shell_escape;
	options->restore_cwd = flags->restore_cwd;
	options->points_bytes = flags->points_bytes;
	options->allow_fork = flags->allow_fork > INT_MAX ? INT_MAX : (int)flags->allow_fork;
	options->fork_memory = flags->fork_memory;
	options->fork_time_ms = flags->fork_time_ms < 0 ? 0 : flags->fork_time_ms;
	options->speculate = flags->speculate;
	options->changes = flags->changes;
	if (open_saved(flags, host, options, err) < 0)
		return -1;
	options->undo = flags->undo > INT_MAX ? INT_MAX : (int)flags->undo;
	return host->space ? cell_space_guard(host->space, options, err) : 0;
}

void cell__cli_gate_close(struct cell_cli_host *host)
{
	cell_policy_destroy(host->policy);
	cell_audit_close(host->audit);
	free(host->saved_key);
}

/* ---- asking --------------------------------------------------------------------- */

struct cell_cli_asker {
	int fd;  /* for answers; -1: no answers are possible */
	int out; /* questions: stderr, or the terminal that answers where stderr is another place */
	bool own_fd, own_out, json;
	bool terminal; /* a person types at fd; otherwise its lines are a script's, in their order */
	bool swapped;  /* the previous question was withdrawn without an answer: the next one needs its number */
	char *line; /* the part read so far */
	size_t size, room;
};

static void choose_output(struct cell_cli_asker *asker)
{
	asker->out = STDERR_FILENO;
	if (!asker->terminal || isatty(STDERR_FILENO))
		return;
	/* If stderr is a file, the person would answer a question that is not on the screen. */
	asker->out = open("/dev/tty", O_WRONLY | O_NOCTTY | O_CLOEXEC);
	asker->own_out = asker->out >= 0;
}

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
	asker->terminal = asker->fd >= 0 && isatty(asker->fd);
	choose_output(asker);
	return asker;
}

void cell__cli_asker_destroy(struct cell_cli_asker *asker)
{
	if (!asker)
		return;
	if (asker->own_fd)
		close(asker->fd);
	if (asker->own_out)
		close(asker->out);
	free(asker->line);
	free(asker);
}

/* ---- accepted and dropped input ------------------------------------------ */

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

/* Drops all input typed so far, also an unfinished line. */
static void drop_input(const struct cell_cli_asker *asker)
{
	if (asker->terminal && !is_hole("type-ahead"))
		tcflush(asker->fd, TCIFLUSH);
}

/*
 * A key that was on its way before the question could be read is not an answer to it.  Nothing is heard until no line has come
 * for a moment; only then does the prompt show.
 */
static void stay_deaf(const struct cell_cli_asker *asker, struct cell_session *session, uint64_t id)
{
	struct pollfd wait = { .fd = asker->fd, .events = POLLIN };
	int64_t until = cell__now_us() / 1000 + CELL_CLI_DEAF_MS, left;

	drop_input(asker);
	if (!asker->terminal || is_hole("deaf"))
		return;
	while ((left = until - cell__now_us() / 1000) > 0 && still_waits(session, id)) {
		if (poll(&wait, 1, left < POLL_MS ? (int)left : POLL_MS) <= 0)
			continue;
		if (!(wait.revents & POLLIN))
			return; /* hung up; reading reports it */
		drop_input(asker);
		until = cell__now_us() / 1000 + CELL_CLI_DEAF_MS;
	}
	drop_input(asker);
}

/* Earlier output must not draw over the question: resets colours, character sets, margins and modes. */
static void reset_terminal(const struct cell_cli_asker *asker)
{
	static const char usual[] = "\033[0m\033(B\017\0337\033[r\0338\033[4l\033[?7h\033[?25h\033[?1000;1002;1003;1006l\r\033[K";
	const char *term = getenv("TERM");

	if (isatty(asker->out) && term && *term && strcmp(term, "dumb"))
		cell__cli_write(asker->out, usual, sizeof(usual) - 1);
}

/*
 * A line without its end, NUL-terminated, valid until the next call; NULL: the input ended before a line, or the request is gone
 * (*ret_gone).
 */
static char *take_line(struct cell_cli_asker *asker, struct cell_session *session, uint64_t id, bool *ret_gone)
{
	struct pollfd wait = { .fd = asker->fd, .events = POLLIN };
	int64_t poll_at = 0;

	*ret_gone = false;
	asker->size = 0;
	for (;;) {
		char byte;
		ssize_t n;
		int ready = poll(&wait, 1, POLL_MS);

		/* Also while a person types: half a line for a withdrawn question must not answer another. */
		if (ready <= 0 || cell__now_us() / 1000 >= poll_at) {
			if (!still_waits(session, id)) {
				*ret_gone = true;
				drop_input(asker);
				return NULL;
			}
			poll_at = cell__now_us() / 1000 + POLL_MS;
		}
		if (ready <= 0)
			continue;
		/* One byte at a time: input after the line is for the next question, or for another reader. */
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
		if (strcmp(key, "op") && strcmp(key, "id") && strcmp(key, "accept") && strcmp(key, "reason") && strcmp(key, "args") &&
		    strcmp(key, "always") && strcmp(key, "content"))
			return cell_fail(err, CELL_E_INVALID, 0,
					 "unknown member '%s' of an answer; known members: id, accept, reason, args, content, always", key);
	if (!json_is_boolean(accept) || (id && (!json_is_integer(id) || json_integer_value(id) < 0)))
		return cell_fail(err, CELL_E_INVALID, 0, "an answer must have the form {\"id\": N, \"accept\": true or false, ...}");
	answer.accept = json_is_true(accept);
	answer.reason = json_string_value(json_object_get(root, "reason"));
	answer.always = json_is_true(json_object_get(root, "always"));
	if (args && !json_is_null(args)) {
		text = json_dumps(args, JSON_COMPACT | JSON_ENCODE_ANY);
		if (!text)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the arguments");
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
			dprintf(STDERR_FILENO, "workcell: invalid: an answer must be a JSON object on one line\n");
		else if (cell__cli_answer_json(session, root, call->id, &err) < 0)
			dprintf(STDERR_FILENO, "workcell: %s: %s\n", cell_code_word(err.code), err.msg);
		json_decref(root);
	}
}

/* ---- a person ------------------------------------------------------------------- */

/* "tool curl.get", in ASCII; free() it.  NULL: no memory. */
static char *call_name(const struct cell_call_info *call)
{
	char *name = NULL, *shown;

	if (asprintf(&name, "%s %s%s%s", call->kind, call->tool, *call->callable ? "." : "", call->callable) < 0)
		return NULL;
	shown = cell_shown_text(name, strlen(name), CELL_SHOWN_ASCII);
	free(name);
	if (shown && strlen(shown) > MAX_NAME)
		strcpy(shown + MAX_NAME - 3, "...");
	return shown;
}

static void say_error(const struct cell_cli_asker *asker, const struct cell_error *err)
{
	char *shown = cell_shown_text(err->msg, strlen(err->msg), CELL_SHOWN_LINE);

	dprintf(asker->out, "workcell: %s: %s\n", cell_code_word(err->code), shown ? shown : "");
	free(shown);
}

/* Whether the line is this word. After a withdrawn question, the whole word and the number of this question are needed. */
static bool is_said(const struct cell_cli_asker *asker, uint64_t id, const char *line, const char *word)
{
	size_t size = strlen(word);
	char *end;

	if (!asker->swapped && (!strcmp(line, word) || (line[0] == word[0] && !line[1])))
		return true;
	if (strncmp(line, word, size) || line[size] != ' ' || line[size + 1] < '0' || line[size + 1] > '9')
		return false;
	return strtoull(line + size + 1, &end, 10) == id && !*end;
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

	dprintf(asker->out, is_shell ? "command: " : "arguments, a JSON object on one line: ");
	line = take_line(asker, session, call->id, &gone);
	if (!line)
		return false;
	if (is_shell) {
		args = json_loadb(call->args, call->args_size, JSON_ALLOW_NUL, NULL);
		if (json_object_set_new(args, "cmd", json_string(line)) < 0) {
			dprintf(asker->out, "workcell: invalid: the command is not UTF-8\n");
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
		say_error(asker, &err);
	asker->swapped &= status < 0;
	return status == 0 || err.code == CELL_E_NOT_FOUND;
}

/* ---- a question of an MCP server ------------------------------------------------- */

/* The typed value of a property, as its schema requires; NULL: it does not fit. */
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
		char *shown = json_dumps(property, JSON_ENSURE_ASCII | JSON_COMPACT);
		char *plain = cell_shown_text(name, strlen(name), CELL_SHOWN_ASCII);
		bool gone, again;

		do {
			char *line;
			json_t *value;

			dprintf(asker->out, "%s%s %s: ", plain ? plain : "", is_required(schema, name) ? " (required)" : "",
				shown ? shown : "");
			line = take_line(asker, session, id, &gone);
			value = line && *line ? typed_value(property, line) : NULL;
			again = line && *line && !value;
			if (again)
				dprintf(asker->out, "workcell: invalid: the value has the wrong type\n");
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
			say_error(asker, &err);
	}
	free(text);
	return !status || err.code == CELL_E_NOT_FOUND;
}

static void ask_question(struct cell_cli_asker *asker, struct cell_session *session, const struct cell_call_info *call)
{
	struct cell_approval_answer no = { .size = sizeof(no), .from_terminal = 1 };
	json_t *asked = json_loadb(call->args, call->args_size, JSON_ALLOW_NUL, NULL), *schema;
	char *shown = json_dumps(json_object_get(asked, "message"), JSON_ENSURE_ASCII | JSON_ENCODE_ANY), *name = call_name(call);
	char *url = json_dumps(json_object_get(asked, "url"), JSON_ENSURE_ASCII | JSON_ENCODE_ANY);
	bool gone = false, answered = false;
	bool fits = name && shown && strlen(shown) <= MAX_MESSAGE && (!url || strlen(url) <= MAX_MESSAGE);
	struct cell_error err;

	schema = json_object_get(asked, "requestedSchema");
	reset_terminal(asker);
	dprintf(asker->out, "workcell: %s (mcp) asks: %s\n", name && strchr(name, ' ') ? strchr(name, ' ') + 1 : "",
		fits ? shown : "(too long to be shown: declined)");
	if (fits && url)
		dprintf(asker->out, "workcell: it wants you to open this address yourself, then to answer: %s\n", url);
	if (fits)
		stay_deaf(asker, session, call->id);
	while (fits && !answered && !gone) {
		char *line;

		dprintf(asker->out, asker->swapped ? "the earlier question was withdrawn; answer? yes %llu, no: " : "answer? y(es), n(o): ",
			(unsigned long long)call->id);
		line = take_line(asker, session, call->id, &gone);
		if (!line || *line == 'n')
			break;
		if (is_said(asker, call->id, line, "yes"))
			answered = answer_question(asker, session, call->id, schema);
	}
	asker->swapped = gone;
	if (gone)
		dprintf(asker->out, "\nworkcell: the question was withdrawn\n");
	else if (!answered)
		(void)cell_session_answer(session, call->id, &no, &err); /* gone is as good */
	free(shown);
	free(url);
	free(name);
	json_decref(asked);
}

static void refuse(struct cell_cli_asker *asker, struct cell_session *session, uint64_t id, const char *reason)
{
	struct cell_approval_answer no = { .size = sizeof(no), .from_terminal = 1, .reason = reason };
	struct cell_error err;

	asker->swapped = false;
	(void)cell_session_answer(session, id, &no, &err); /* gone is as good */
}

/* All of the arguments, however long. */
static void show_all(const struct cell_cli_asker *asker, const struct cell_call_info *call)
{
	struct cell_error err;
	char *all;

	if (cell_shown_args(call->args, call->args_size, CELL_SHOWN_ALL, &all, &err) < 0) {
		say_error(asker, &err);
		return;
	}
	cell__cli_write(asker->out, all + 1, strlen(all + 1));
	cell__cli_write(asker->out, "\n", 1);
	free(all);
}

/* The question itself, on fresh lines. */
static void show_call(const struct cell_cli_asker *asker, const struct cell_event *event, const char *name, const char *args)
{
	const struct cell_call_info *call = event->call;
	char *adapter = cell_shown_text(call->adapter, strlen(call->adapter), CELL_SHOWN_ASCII), *reason = NULL;

	if (event->message)
		reason = cell_shown_text(event->message, strlen(event->message), CELL_SHOWN_LINE);
	reset_terminal(asker);
	dprintf(asker->out, "workcell: %s (%s) wants to run with%s\n", name, adapter ? adapter : "", args);
	if (reason)
		dprintf(asker->out, "the policy says: %s\n", reason);
	free(adapter);
	free(reason);
}

static void show_prompt(const struct cell_cli_asker *asker, uint64_t id, const char *name)
{
	unsigned long long number = id;

	if (asker->swapped)
		dprintf(asker->out,
			"approve? (the earlier request was withdrawn) yes %llu, n(o), always %llu, edit %llu, v(iew) [%s]: ", number,
			number, number, name);
	else
		dprintf(asker->out, "approve? y(es), n(o), always, e(dit), v(iew) [%llu %s]: ", number, name);
}

/* True: the request is answered, or does not wait any more. */
static bool take_answer(struct cell_cli_asker *asker, struct cell_session *session, const struct cell_call_info *call, char *line)
{
	struct cell_approval_answer answer = { .size = sizeof(answer), .from_terminal = 1 };
	struct cell_error err;

	if (is_said(asker, call->id, line, "edit"))
		return take_edit(asker, session, call);
	answer.always = is_said(asker, call->id, line, "always");
	answer.accept = answer.always || is_said(asker, call->id, line, "yes");
	if (!answer.accept && *line != 'n')
		return false;
	/* The code gets the text after "n": `n not on Fridays`. */
	if (!answer.accept && strchr(line, ' '))
		answer.reason = strchr(line, ' ') + 1;
	if (cell_session_answer(session, call->id, &answer, &err) < 0)
		say_error(asker, &err);
	asker->swapped = false;
	return true;
}

static void ask_person(struct cell_cli_asker *asker, struct cell_session *session, const struct cell_event *event)
{
	const struct cell_call_info *call = event->call;
	char *args = NULL, *name = call_name(call), *line;
	struct cell_error err = { .msg = "out of memory to show the call" };
	bool gone = false, is_new = true;

	if (!name || cell_shown_args(call->args, call->args_size, CELL_SHOWN_ASCII, &args, &err) < 0) {
		dprintf(asker->out, "workcell: %s cannot be shown and was rejected: %s\n", name ? name : "a call", err.msg);
		refuse(asker, session, call->id, err.msg);
		free(name);
		return;
	}
	for (;;) {
		if (is_new) {
			show_call(asker, event, name, args);
			stay_deaf(asker, session, call->id);
		}
		show_prompt(asker, call->id, name);
		line = take_line(asker, session, call->id, &gone);
		if (!line || take_answer(asker, session, call, line))
			break;
		is_new = !strcmp(line, "v") || !strcmp(line, "view");
		if (is_new)
			show_all(asker, call);
	}
	if (gone) {
		dprintf(asker->out, "\nworkcell: the request is no longer pending\n");
		asker->swapped = !is_hole("swapped");
	} else if (!line) {
		refuse(asker, session, call->id, "nobody could be asked");
	}
	free(args);
	free(name);
}

void cell__cli_ask(struct cell_cli_asker *asker, struct cell_session *session, const struct cell_event *event)
{
	if (asker->fd < 0 || (asker->out < 0 && !asker->json)) {
		struct cell_approval_answer no = { .size = sizeof(no), .reason = "nobody can be asked" };
		struct cell_error err;

		(void)cell_session_answer(session, event->call->id, &no, &err); /* gone is as good */
	} else if (asker->json) {
		ask_json(asker, session, event->call);
	} else if (!still_waits(session, event->call->id)) {
		return; /* it was gone before it could be shown */
	} else if (!strcmp(event->call->kind, "question")) {
		ask_question(asker, session, event->call);
	} else {
		ask_person(asker, session, event);
	}
}
