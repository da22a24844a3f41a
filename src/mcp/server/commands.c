/*
 * The tool `command`: programs that run where a session's code does (session/commands.h), for its client.
 *
 *     run ── the policy, the approval ──▶ it runs ── its end, or wait_ms ──▶ answered ── output, stdin, signal, by its id ──▶ ...
 *                                           └── the call is cancelled: killed
 *
 * Each call has a thread of its own and does not wait for the cells of the session.  The loop's thread hands the output to a view, which
 * keeps a bounded part of it; the call's thread only waits, with the server's lock, until the view is over or nobody wants it any more.
 *
 * The client is an agent, so a line passes the policy and the approval as a `!line` of its code does, and input to a program as its line.
 * The start is recorded in the audit log (kind `command`) with or without a policy.
 */
#include "mcp/server/server.h"

#include <signal.h>
#include <string.h>

#include "base/utf8.h"
#include "session/commands.h"
#include "session/session.h"

#define HEAD_BYTES (CELL_MCP_COMMAND_BYTES / 5 * 3) /* of an output that is too long; the rest is its end */
#define TAIL_BYTES (CELL_MCP_COMMAND_BYTES - HEAD_BYTES)
#define SHOWN_LINE_BYTES 200u /* of a line in a list */

/* A part of a command's output, and how it came to an end.  The loop's thread until the reader is detached, but for `over`. */
struct view {
	struct cell__command_reader reader; /* first */
	struct cell__mcp_job *job;
	struct cell_session *session;
	char id[CELL_COMMAND_ID_SIZE]; /* "": there is no command */
	bool pages;      /* it is over when it is full; else the middle is left out */
	bool ended;      /* the command, and all its output was taken */
	bool over;       /* server->lock: it has ended, or is full */
	struct cell__buf head, tail;   /* tail: of more than TAIL_BYTES only the end counts */
	struct cell__buf parts[2];     /* of stdout and stderr: the beginning of a character */
	enum cell_stream last;         /* the stream of the last bytes, ... */
	size_t n_last;                 /* ... which are so many in a row */
	uint64_t position;             /* of the next byte */
	uint64_t left_out, dropped;
	json_t *about;                 /* at the end: the command's description; NULL: it is forgotten */
};

static int fail_with(struct cell__buf *message, const struct cell_error *err)
{
	cell__buf_printf(message, "%s: %s", cell_code_word(err->code), err->msg);
	return -1;
}

static int unknown(struct cell__buf *message)
{
	cell__buf_add_str(message, "not_found: " CELL_COMMAND_UNKNOWN);
	return -1;
}

/* ---- output, on the loop's thread ---- */

static void leave_out(struct view *view, size_t bytes)
{
	cell__buf_shift(&view->tail, bytes);
	view->left_out += bytes;
}

static void keep(struct view *view, const char *bytes, size_t size)
{
	size_t max = view->pages ? SIZE_MAX : HEAD_BYTES, n = max > view->head.size ? max - view->head.size : 0;

	if (n > size)
		n = size;
	if (n && cell__buf_add(&view->head, bytes, n) < 0)
		view->left_out += n; /* out of memory */
	bytes += n;
	size -= n;
	if (size > TAIL_BYTES) {
		leave_out(view, view->tail.size);
		view->left_out += size - TAIL_BYTES;
		bytes += size - TAIL_BYTES;
		size = TAIL_BYTES;
	}
	if (size && cell__buf_add(&view->tail, bytes, size) < 0)
		view->left_out += size;
	if (view->tail.size > 2 * TAIL_BYTES)
		leave_out(view, view->tail.size - TAIL_BYTES);
}

/* The two streams are mixed, but no character of one is torn by the other. */
static void feed(struct view *view, enum cell_stream stream, const char *bytes, size_t size)
{
	struct cell__buf *part = &view->parts[stream == CELL_STDERR];
	size_t cut;

	view->n_last = stream == view->last ? view->n_last + size : size;
	view->last = stream;
	/* A character that has begun is kept when it is whole, or cannot become whole any more. */
	for (; part->size && size; bytes++, size--) {
		if (cell__buf_add(part, bytes, 1) < 0)
			return;
		cut = cell__utf8_cut(part->data, part->size);
		if (cut < part->size) {
			keep(view, part->data, part->size - cut);
			cell__buf_shift(part, part->size - cut);
		}
	}
	cut = cell__utf8_cut(bytes, size);
	keep(view, bytes, size - cut);
	if (cut && cell__buf_add(part, bytes + size - cut, cut) < 0)
		view->left_out += cut;
}

/* A page has room for this much of a piece, which ends with a character. */
static size_t fit_page(const struct view *view, const struct cell__command_piece *piece)
{
	size_t room = CELL_MCP_COMMAND_BYTES - (view->head.size < CELL_MCP_COMMAND_BYTES ? view->head.size : CELL_MCP_COMMAND_BYTES);
	size_t size = piece->size < room ? piece->size : room, cut = size < piece->size ? cell__utf8_cut(piece->data, size) : 0;

	return size - cut;
}

/* Takes what is there; true: the view is over. */
static bool take(struct view *view)
{
	struct cell__command_reader *reader = &view->reader;
	struct cell__command_piece piece;
	size_t size;

	for (;;) {
		cell__command_peek(reader->command, reader->position, &piece);
		size = view->pages ? fit_page(view, &piece) : piece.size;
		if (!size)
			break;
		view->dropped += piece.dropped;
		feed(view, piece.stream, piece.data, size);
		cell__mcp_tell_output(view->job->handle, view->job, piece.stream, piece.data, size);
		view->position = piece.position + size;
		cell__command_took(reader, view->position);
	}
	view->ended = !piece.size && cell__command_has_ended(reader->command);
	return view->ended || piece.size;
}

/* As the last step: the view may be gone afterwards. */
static void handle_more(struct cell__command_reader *reader)
{
	struct view *view = (struct view *)reader;
	struct cell_mcp_server *server = view->job->handle->server;

	if (!take(view))
		return;
	cell__command_detach(reader);
	pthread_mutex_lock(&server->lock);
	view->over = true;
	pthread_cond_broadcast(&server->changed);
	pthread_mutex_unlock(&server->lock);
}

static void attach(struct view *view, struct cell__command *command, uint64_t position)
{
	memcpy(view->id, cell__command_id(command), sizeof(view->id));
	cell__command_attach(command, &view->reader, position, handle_more);
	view->position = view->reader.position;
	handle_more(&view->reader);
}

/* ---- waiting ---- */

static void do_detach(void *arg)
{
	struct view *view = arg;
	struct cell__command *command;

	cell__command_detach(&view->reader);
	command = cell__command_find(view->session, view->id);
	view->about = command ? cell__command_describe(command) : NULL;
}

static void do_drop(void *arg)
{
	struct view *view = arg;
	struct cell__command *command = cell__command_find(view->session, view->id);

	if (command)
		cell__command_drop(command);
}

/* With the lock held.  Nobody wants the answer any more. */
static bool is_left(const struct cell__mcp_job *job)
{
	return job->stopped || (job->request ? job->request->cancelled : !job->parked);
}

/* Until it is over, but at most for this time (-1: without end); then nothing changes the view any more.  -1: the call has ended before. */
static int wait_for(struct view *view, int64_t wait_ms, struct cell__buf *message)
{
	struct cell__mcp_job *job = view->job;
	struct cell_mcp_server *server = job->handle->server;
	int64_t until = cell__now_us() + wait_ms * 1000;
	bool left, closing;

	pthread_mutex_lock(&server->lock);
	if (wait_ms >= 0)
		job->deadline_us = 0;
	while (!view->over && !is_left(job) && !job->handle->closing && (wait_ms < 0 || cell__now_us() < until)) {
		if (wait_ms < 0)
			pthread_cond_wait(&server->changed, &server->lock);
		else
			cell__mcp_cond_wait(&server->changed, &server->lock, until);
	}
	left = is_left(job);
	closing = job->handle->closing;
	pthread_mutex_unlock(&server->lock);
	cell__loop_call(view->session->engine->loop, do_detach, view);
	if (!left && !closing)
		return 0;
	cell__buf_add_str(message, left ? "cancelled: the call was cancelled" : "closed: the session was closed");
	return -1;
}

/* ---- answers ---- */

/* The rest of a character that is torn may still come: it is not taken yet. */
static void put_back(struct view *view)
{
	struct cell__buf *part = &view->parts[view->last == CELL_STDERR];

	if (!view->ended && part->size && part->size <= view->n_last) {
		view->position -= part->size;
		cell__buf_shift(part, part->size);
	}
	for (size_t i = 0; i < 2; i++)
		keep(view, view->parts[i].data, view->parts[i].size);
}

static void add_output(struct view *view, struct cell__buf *text)
{
	size_t cut = 0, from = 0;

	if (view->dropped)
		cell__buf_printf(text, "[%llu bytes before this are no longer kept]\n", (unsigned long long)view->dropped);
	if (view->tail.size > TAIL_BYTES)
		leave_out(view, view->tail.size - TAIL_BYTES);
	if (view->left_out)
		cut = cell__utf8_cut(view->head.data, view->head.size);
	else if (view->tail.size && cell__buf_add(&view->head, view->tail.data, view->tail.size) < 0)
		view->left_out = view->tail.size;
	if (view->head.size)
		cell__buf_add_utf8(text, view->head.data, view->head.size - cut);
	if (!view->left_out)
		return;
	while (from < view->tail.size && from < 3 && ((unsigned char)view->tail.data[from] & 0xc0) == 0x80)
		from++;
	cell__buf_printf(
		text,
		"\n\n[Output truncated: %llu bytes are left out here. What is kept of them: op output, position %zu of command %s. Let a "
		"program write such output to a file]\n\n",
		(unsigned long long)(view->left_out + cut + from), view->head.size - cut, view->id);
	if (view->tail.size)
		cell__buf_add_utf8(text, view->tail.data + from, view->tail.size - from);
}

static const char *words_of_end(const char *reason)
{
	return !reason                      ? ""
	       : !strcmp(reason, "timeout") ? ", killed by its timeout"
	       : !strcmp(reason, "session") ? ", the kernel ended"
					    : ", killed";
}

static void add_end(const struct view *view, bool runs, struct cell__buf *text)
{
	const json_t *code = json_object_get(view->about, "exit_code");

	if (text->size && text->data[text->size - 1] != '\n')
		cell__buf_add_str(text, "\n");
	if (runs)
		cell__buf_printf(text, "[command %s is running", view->id);
	else if (code)
		cell__buf_printf(text, "[exit code %lld%s", (long long)json_integer_value(code),
				 words_of_end(json_string_value(json_object_get(view->about, "reason"))));
	else
		cell__buf_add_str(text, "[ended");
	if (!view->ended)
		cell__buf_printf(text, "; its output goes on at position %llu", (unsigned long long)view->position);
	cell__buf_add_str(text, "]");
}

static int answer(struct view *view, struct cell__mcp_answer_out *out)
{
	static const char *const from_about[] = { "exit_code", "reason" };
	const char *state = json_string_value(json_object_get(view->about, "state"));
	bool runs = state && strcmp(state, "ended");
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	put_back(view);
	add_output(view, &text);
	out->structured = json_pack("{s:s, s:s, s:s%, s:I, s:b}", "command", view->id, "state", runs ? "running" : "ended", "output",
				    text.size ? text.data : "", text.size, "position", (json_int_t)view->position, "more", !view->ended);
	for (size_t i = 0; i < 2; i++) {
		json_t *value = json_object_get(view->about, from_about[i]);

		if (value && !json_is_null(value))
			json_object_set(out->structured, from_about[i], value);
	}
	add_end(view, runs, &text);
	out->content = json_pack("[{s:s, s:s%}]", "type", "text", "text", text.data, text.size);
	return out->structured && out->content ? 0 : -1;
}

static void view_finish(struct view *view)
{
	cell__buf_finish(&view->head);
	cell__buf_finish(&view->tail);
	cell__buf_finish(&view->parts[0]);
	cell__buf_finish(&view->parts[1]);
	json_decref(view->about);
}

/* ---- the policy ---- */

/* A word as the shell reads it. */
static int add_word(struct cell__buf *line, const char *word)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./,:@%+";
	int rc = line->size ? cell__buf_add_str(line, " ") : 0;

	if (*word && !word[strspn(word, plain)])
		return rc | cell__buf_add_str(line, word);
	rc |= cell__buf_add_str(line, "'");
	for (; *word; word++)
		rc |= *word == '\'' ? cell__buf_add_str(line, "'\\''") : cell__buf_add(line, word, 1);
	return rc | cell__buf_add_str(line, "'");
}

/* The command as a line: what it is for /bin/sh -c, else its words.  -1: out of memory. */
static int add_line(struct cell__buf *line, const json_t *argv)
{
	const char *shell = json_string_value(json_array_get(argv, 0)), *flag = json_string_value(json_array_get(argv, 1));
	const json_t *word;
	size_t i;
	int rc = 0;

	if (json_array_size(argv) == 3 && !strcmp(shell, "/bin/sh") && !strcmp(flag, "-c"))
		return cell__buf_add_str(line, json_string_value(json_array_get(argv, 2)));
	json_array_foreach(argv, i, word)
		rc |= add_word(line, json_string_value(word));
	return rc;
}

/*
 * Asks the policy, and the person that it wants to be asked, as for a `!line` of the code.  The line is what the person let run.  Input is
 * what may run in a shell that was allowed: it is part of the question.
 */
static int approve(struct cell__mcp_job *job, struct cell_session *session, struct cell__buf *line, const char *cwd, const json_t *input,
		   struct cell__buf *message)
{
	struct cell_answer given = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	json_t *args, *allowed, *cmd;
	CELL_AUTO_FREE char *text = NULL;
	int rc;

	if (!job->handle->server->session.policy)
		return 0;
	args = json_pack("{s:s, s:{s:s%, s:s*, s:O*}}", "name", "shell", "args", "cmd", line->data, line->size, "cwd", cwd, "stdin", input);
	text = args ? json_dumps(args, JSON_COMPACT) : NULL;
	json_decref(args);
	if (!text) {
		cell__buf_add_str(message, "out of memory");
		return -1;
	}
	rc = cell_session_call(session, job->client, job, cell__operations[CELL__OP_SHELL_APPROVE].method, text, NULL, 0, job->canceller,
			       &given, &err);
	if (rc < 0) {
		cell__buf_printf(message, "%s: ", cell_code_word(err.code));
		cell__buf_add_str(message, given.message ? given.message : err.msg);
	} else {
		allowed = json_loads(given.json, JSON_ALLOW_NUL, NULL);
		cmd = json_object_get(allowed, "cmd");
		/* Only an interface that edits arguments could have changed them; we ask for yes or no. */
		if (!json_is_string(cmd) || strcmp(json_string_value(cmd), line->data)) {
			cell__buf_add_str(message, "rejected: another command was approved than the one that was asked for");
			rc = -1;
		}
		json_decref(allowed);
	}
	cell_answer_finish(&given);
	return rc;
}

/* ---- run ---- */

struct starting {
	struct cell__task task;
	struct cell__waiter waiter;
	struct view *view;
	struct cell__command_spec spec;
	const json_t *input; /* or NULL */
	bool open; /* its stdin, for more input */
	struct cell_error err;
	int rc;
};

/* An early end of the command is not a failure of its input. */
static void handle_started(void *arg, struct cell__command *command, const struct cell_error *err)
{
	struct starting *starting = arg;

	if (!command) {
		starting->rc = -1;
		starting->err = *err;
	} else {
		if (json_string_length(starting->input))
			(void)cell__command_write(command, json_string_value(starting->input), json_string_length(starting->input), NULL);
		if (starting->spec.want_stdin && !starting->open)
			(void)cell__command_close_stdin(command, NULL);
		attach(starting->view, command, 0);
	}
	cell__waiter_signal(&starting->waiter);
}

static void do_start(struct cell__task *task)
{
	struct starting *starting = (struct starting *)task;

	starting->rc = cell__command_start(starting->view->session, &starting->spec, handle_started, starting, &starting->err);
	if (starting->rc < 0)
		cell__waiter_signal(&starting->waiter);
}

/* The words of a command; NULL: it has none, or *message has the reason. */
static json_t *words_of(const json_t *line, struct cell__buf *message)
{
	const json_t *word;
	size_t i;

	if (json_is_string(line))
		return json_pack("[s, s, O]", "/bin/sh", "-c", line);
	json_array_foreach((json_t *)line, i, word) {
		if (strlen(json_string_value(word)) == json_string_length(word))
			continue;
		cell__buf_add_str(message, "invalid: an argument of the program has a NUL");
		return NULL;
	}
	if (!json_array_size(line))
		cell__buf_add_str(message, "invalid: argument 'line' is missing: a line for the shell, or a program and its arguments");
	return json_array_size(line) ? json_incref((json_t *)line) : NULL;
}

static int start(struct view *view, const json_t *args, const json_t *words, struct cell__buf *message)
{
	const json_t *input = json_object_get(args, "stdin"), *word;
	CELL_AUTO_FREE const char **argv = cell__alloc(json_array_size(words) + 1, sizeof(*argv));
	struct cell__principal principal;
	struct starting starting = { .task.fn = do_start, .view = view, .input = input };
	size_t i;

	if (!argv) {
		cell__buf_add_str(message, "out of memory");
		return -1;
	}
	json_array_foreach(words, i, word)
		argv[i] = json_string_value(word);
	cell__principal_init(&principal, CELL__PRINCIPAL_MCP, cell__executor_is_trusted(view->session->executor),
			     &view->session->options.limits, view->job->client);
	starting.open = json_is_true(json_object_get(args, "keep_stdin"));
	starting.spec = (struct cell__command_spec){
		.argv = argv,
		.cwd = json_string_value(json_object_get(args, "cwd")),
		.timeout_ms = (int64_t)(json_number_value(json_object_get(args, "timeout")) * 1000),
		.want_stdin = input || starting.open,
		.principal = &principal,
	};
	cell__waiter_init(&starting.waiter);
	cell__loop_do(view->session->engine->loop, &starting.task, &starting.waiter);
	cell__waiter_finish(&starting.waiter);
	return starting.rc < 0 ? fail_with(message, &starting.err) : 0;
}

static int check_input(const json_t *input, struct cell__buf *message)
{
	if (json_string_length(input) <= CELL_COMMAND_STDIN_BYTES)
		return 0;
	cell__buf_printf(message, "limit: at most %u bytes of input in one call; write more to a file", CELL_COMMAND_STDIN_BYTES);
	return -1;
}

static int run(struct view *view, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	const json_t *input = json_object_get(args, "stdin"), *wait = json_object_get(args, "wait_ms");
	CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
	const struct cell__executor *executor = view->session->executor;
	json_t *words;
	int rc;

	if (!executor->place && !executor->command) {
		cell__buf_printf(message, "unsupported: the executor %s does not run commands; use run_code", executor->name);
		return -1;
	}
	words = check_input(input, message) < 0 ? NULL : words_of(json_object_get(args, "line"), message);
	if (!words)
		return -1;
	rc = add_line(&line, words);
	if (rc < 0)
		cell__buf_add_str(message, "out of memory");
	if (!rc)
		rc = approve(view->job, view->session, &line, json_string_value(json_object_get(args, "cwd")), input, message);
	if (!rc)
		rc = start(view, args, words, message);
	json_decref(words);
	if (rc < 0)
		return -1;
	if (!wait_for(view, wait ? json_integer_value(wait) : -1, message))
		return answer(view, out);
	cell__loop_call(view->session->engine->loop, do_drop, view);
	return -1;
}

/* ---- what a client does with one that runs ---- */

struct request {
	struct view *view;
	const char *id;
	const json_t *input; /* stdin: what is written; or NULL */
	bool closes; /* stdin */
	int signal; /* 0: none */
	const json_t *position; /* of the output that is wanted; NULL: its beginning, or ... */
	bool from_now; /* ... what comes from now on */
	json_t *about;
	struct cell_error err;
	int rc;
};

static void do_describe(void *arg)
{
	struct request *request = arg;
	struct cell__command *command = cell__command_find(request->view->session, request->id);

	request->about = command ? cell__command_describe(command) : NULL;
}

static void do_request(void *arg)
{
	struct request *request = arg;
	struct cell__command *command = cell__command_find(request->view->session, request->id);
	json_t *about = command ? cell__command_describe(command) : NULL;
	int64_t end = json_integer_value(json_object_get(about, "output")), position = request->from_now ? end : 0;

	if (!command) {
		request->rc = cell_fail(&request->err, CELL_E_NOT_FOUND, 0, CELL_COMMAND_UNKNOWN);
		return;
	}
	json_decref(about);
	if (request->position)
		position = json_integer_value(request->position);
	if (position < 0)
		position = end + position > 0 ? end + position : 0;
	if (json_string_length(request->input))
		request->rc = cell__command_write(command, json_string_value(request->input), json_string_length(request->input),
						  &request->err);
	if (!request->rc && request->closes)
		request->rc = cell__command_close_stdin(command, &request->err);
	if (!request->rc && request->signal)
		request->rc = cell__command_signal(command, request->signal, &request->err);
	if (!request->rc)
		attach(request->view, command, (uint64_t)position);
}

/* Its stdin may be a shell's: the policy decides about input as about the command. */
static int approve_input(struct request *request, struct cell__buf *message)
{
	CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
	int rc;

	cell__loop_call(request->view->session->engine->loop, do_describe, request);
	if (!request->about)
		return unknown(message);
	rc = add_line(&line, json_object_get(request->about, "argv"));
	if (rc < 0)
		cell__buf_add_str(message, "out of memory");
	else
		rc = approve(request->view->job, request->view->session, &line, json_string_value(json_object_get(request->about, "cwd")),
			     request->input, message);
	json_decref(request->about);
	return rc;
}

static int ask(struct view *view, const char *op, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	const json_t *id = json_object_get(args, "command"), *position = json_object_get(args, "position");
	const char *signal_name = json_string_value(json_object_get(args, "signal"));
	struct request request = { .view = view, .id = json_string_value(id), .position = position, .from_now = strcmp(op, "output") };

	if (!id) {
		cell__buf_add_str(message, "invalid: argument 'command' is missing: the id of a command");
		return -1;
	}
	if (!strcmp(op, "stdin")) {
		request.input = json_object_get(args, "stdin");
		request.closes = !json_is_true(json_object_get(args, "keep_stdin"));
		if (check_input(request.input, message) < 0 || (request.input && approve_input(&request, message) < 0))
			return -1;
	}
	if (!strcmp(op, "signal")) {
		request.signal = signal_name ? cell__command_signal_number(signal_name) : SIGTERM;
		if (!request.signal) {
			cell__buf_add_str(message, "invalid: argument 'signal' must be one of " CELL_COMMAND_SIGNALS);
			return -1;
		}
	}
	view->pages = true;
	cell__loop_call(view->session->engine->loop, do_request, &request);
	if (request.rc < 0)
		return fail_with(message, &request.err);
	if (wait_for(view, json_integer_value(json_object_get(args, "wait_ms")), message) < 0)
		return -1;
	return answer(view, out);
}

/* ---- list ---- */

struct listing {
	struct cell_session *session;
	json_t *commands;
};

static void do_list(void *arg)
{
	struct listing *listing = arg;

	listing->commands = cell__commands_describe(listing->session);
}

/* Of each command what a client goes on with.  Their lines are the client's own, and long. */
static int list(struct view *view, struct cell__mcp_answer_out *out)
{
	struct listing listing = { .session = view->session };
	json_t *shown = json_array(), *about;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	size_t i;

	cell__loop_call(view->session->engine->loop, do_list, &listing);
	json_array_foreach(listing.commands, i, about) {
		CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
		const char *id = json_string_value(json_object_get(about, "command_id"));
		const char *state = json_string_value(json_object_get(about, "state"));
		const json_t *code = json_object_get(about, "exit_code");
		size_t size;

		add_line(&line, json_object_get(about, "argv"));
		size = line.size < SHOWN_LINE_BYTES ? line.size : SHOWN_LINE_BYTES;
		size -= size < line.size ? cell__utf8_cut(line.data, size) : 0;
		json_array_append_new(shown,
				      json_pack("{s:s, s:s%, s:s, s:O, s:O}", "command", id, "line", line.size ? line.data : "", size,
						"state", state, "exit_code", code, "output_bytes", json_object_get(about, "output")));
		cell__buf_printf(&text, "%s%s %s", i ? "\n" : "", id, state);
		if (json_is_integer(code))
			cell__buf_printf(&text, " %lld", (long long)json_integer_value(code));
		cell__buf_printf(&text, ": %.*s", (int)size, line.size ? line.data : "");
	}
	json_decref(listing.commands);
	out->structured = json_pack("{s:o}", "commands", shown);
	out->content = json_pack("[{s:s, s:s}]", "type", "text", "text", text.size ? text.data : "There are no commands.");
	return out->structured && out->content ? 0 : -1;
}

int cell__mcp_command(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	const json_t *given = json_object_get(args, "op");
	const char *op = given ? json_string_value(given) : "run";
	struct cell_error err;
	struct view view = { .job = job, .session = cell__mcp_handle_session(job->handle, &err) };
	int rc;

	if (!view.session)
		return fail_with(message, &err);
	if (!strcmp(op, "run"))
		rc = run(&view, args, out, message);
	else
		rc = !strcmp(op, "list") ? list(&view, out) : ask(&view, op, args, out, message);
	view_finish(&view);
	return rc;
}
