/*
 * `workcell exec`: a command where the code of a session runs: in a new session, or in one of a server.
 *
 *     new session   stdin ── thread ── cell_session_command_write()       main thread ── cell_session_command_read() ──▶ stdout, stderr
 *     a server's    main thread: the stream of its output; between two events it sends input, signals and the terminal's size
 *
 * Signals become those of the command; a second Ctrl-C within two seconds kills it.  The command's output is not trusted: without --tty control
 * characters are shown, not sent to the terminal.
 */
#define _GNU_SOURCE 1
#include "client.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/base64.h"

#define WAIT_MS 50 /* between two looks at signals */
#define TWICE_US 2000000
#define INPUT_BYTES 65536u
#define NOT_FOUND 127
#define FAILED 125

struct exec_flags {
	struct cell_cli_session_flags session;
	const char *target;
	bool tty, json;
};

static const struct cell_cli_flag exec_flag_table[] = {
	{ 0, "session", "ID", "run it in this session of a server (--remote-url), an id that `workcell ps` shows, or its beginning",
	  CELL_FLAG_STRING, offsetof(struct exec_flags, target) },
	{ 't', "tty", NULL, "give it a terminal: for shells, editors and other interactive programs", CELL_FLAG_SWITCH,
	  offsetof(struct exec_flags, tty) },
	{ 0, "json", NULL, "print failures of Workcell as JSON", CELL_FLAG_SWITCH, offsetof(struct exec_flags, json) },
	CELL_CLI_SESSION_FLAGS(offsetof(struct exec_flags, session)),
	CELL_CLI_REMOTE_TOKEN_FLAG(offsetof(struct exec_flags, session)),
	{ 0 },
};

const struct cell_cli_command cell__cli_exec_command = {
	.name = "exec",
	.summary = "run a command where the code of a session runs",
	.synopsis = "[flags] PROGRAM [-- ARGUMENT...]",
	.about =
		"Runs a program as confined as the code of a session is: in a new session that ends with it, or with --session in one of a\n"
		"server.  stdin, stdout and stderr are those of this command, signals are passed on, and --timeout is the program's limit\n"
		"(default: none).  One word with spaces is a line for the shell.\n\n"
		"exit status: the program's, 128 and the signal that ended it, 124 timed out, 127 no such program, 2 usage,\n"
		"125 Workcell itself failed.  Ctrl-C interrupts the program; twice within 2 s kills it.",
	.examples = "  workcell exec --executor sandbox 'ls -l | wc -l'\n"
		    "  workcell exec --session 3f2a --auth-token-file token tar -- c . > files.tar\n"
		    "  workcell exec --session 3f2a --auth-token-file token --tty bash",
	.behind = "arguments of PROGRAM that begin with - go behind --",
	.flags = exec_flag_table,
	.run = cell__cmd_exec,
};

struct running {
	const struct exec_flags *flags;
	const char **argv; /* NULL-terminated */
	bool shell;        /* argv[0] is a line */
	/* a new session */
	struct cell_session *session;
	char id[CELL_COMMAND_ID_SIZE];
	int stop_fd[2];
	/* a server's */
	struct cell_client *client;
	char path[160]; /* of the command */
	struct cell__buf input; /* not taken yet */
	bool input_ended, close_sent, ended;
	/* both */
	struct cell_shown_carry carries[2];
	bool shows[2]; /* stdout, stderr: a terminal */
	struct termios before;
	bool is_raw;
	int64_t interrupted_us;
	int status;
};

/* ---- signals and the terminal ---- */

static volatile sig_atomic_t arrived[NSIG];

static void handle_signal(int number)
{
	arrived[number] = 1;
}

static const int passed_on[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH };
#define N_PASSED (sizeof(passed_on) / sizeof(passed_on[0]))

static void watch_signals(void)
{
	struct sigaction action = { .sa_handler = handle_signal };

	for (size_t i = 0; i < N_PASSED; i++)
		sigaction(passed_on[i], &action, NULL);
}

static void window(unsigned short *rows, unsigned short *cols)
{
	struct winsize size;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col) {
		*rows = size.ws_row;
		*cols = size.ws_col;
	}
}

static void go_raw(struct running *running)
{
	struct termios raw;

	if (!running->flags->tty || tcgetattr(STDIN_FILENO, &running->before) < 0)
		return;
	raw = running->before;
	cfmakeraw(&raw);
	running->is_raw = tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw) == 0;
}

static void go_back(const struct running *running)
{
	if (running->is_raw)
		tcsetattr(STDIN_FILENO, TCSAFLUSH, &running->before);
}

/* ---- output ---- */

static void put(struct running *running, bool is_stderr, const char *bytes, size_t size)
{
	int fd = is_stderr ? STDERR_FILENO : STDOUT_FILENO;
	size_t n = size;
	CELL_AUTO_FREE char *shown = running->shows[is_stderr] && !running->flags->tty
					     ? cell_shown_output(&running->carries[is_stderr], bytes, size, &n)
					     : NULL;

	if (shown || !running->shows[is_stderr] || running->flags->tty)
		cell__cli_write(fd, shown ? shown : bytes, n);
}

static int status_of(int exit_code, const char *reason)
{
	return reason && !strcmp(reason, "timeout") ? 124 : exit_code;
}

/* ---- in a new session ---- */

static void *input_main(void *arg)
{
	struct running *running = arg;
	struct pollfd waits[2] = { { .fd = STDIN_FILENO, .events = POLLIN }, { .fd = running->stop_fd[0], .events = POLLIN } };
	char bytes[INPUT_BYTES];
	struct cell_error err = { 0 };
	ssize_t n = 1;

	while (n > 0 && !waits[1].revents && err.code != CELL_E_CLOSED) {
		if (poll(waits, 2, -1) < 0 && errno != EINTR)
			break;
		if (waits[1].revents || !waits[0].revents)
			continue;
		n = read(STDIN_FILENO, bytes, sizeof(bytes));
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			n = 1;
		else if (n > 0)
			while (cell_session_command_write(running->session, running->id, bytes, (size_t)n, &err) < 0 &&
			       err.code == CELL_E_LIMIT && poll(&waits[1], 1, WAIT_MS) == 0) {
			}
	}
	if (!waits[1].revents)
		(void)cell_session_command_close_stdin(running->session, running->id, &err);
	return NULL;
}

static void pass_signals_here(struct running *running)
{
	for (size_t i = 0; i < N_PASSED; i++) {
		int number = passed_on[i];
		struct cell_error err;

		if (!arrived[number])
			continue;
		arrived[number] = 0;
		if (number == SIGINT) {
			int64_t now_us = cell__now_us();

			if (running->interrupted_us && now_us - running->interrupted_us < TWICE_US)
				number = SIGKILL;
			running->interrupted_us = now_us;
		}
		if (number == SIGWINCH) {
			unsigned short rows = 24, cols = 80;

			window(&rows, &cols);
			if (running->flags->tty)
				(void)cell_session_command_resize(running->session, running->id, rows, cols, &err);
		} else {
			(void)cell_session_command_signal(running->session, running->id, number, &err); /* it may have ended */
		}
	}
}

static int read_all(struct running *running, struct cell_error *err)
{
	struct cell_command_output output = CELL_COMMAND_OUTPUT_INIT;
	char buffer[INPUT_BYTES];

	while (!output.ended) {
		if (cell_session_command_read(running->session, running->id, output.position, WAIT_MS, buffer, sizeof(buffer), &output,
					      err) < 0)
			return -1;
		if (output.bytes)
			put(running, output.stream == CELL_STDERR, buffer, (size_t)output.bytes);
		pass_signals_here(running);
	}
	CELL_AUTO_FREE char *text = cell_session_command_describe(running->session, running->id, err);
	json_t *about = text ? json_loads(text, 0, NULL) : NULL;
	running->status = status_of(output.exit_code, json_string_value(json_object_get(about, "reason")));
	json_decref(about);
	return 0;
}

static int run_here(struct running *running, struct cell_error *err)
{
	struct cell_command_options options = CELL_COMMAND_OPTIONS_INIT;
	unsigned short rows = 0, cols = 0;
	pthread_t thread;
	int status;

	window(&rows, &cols);
	if (running->shell)
		options.line = running->argv[0];
	else
		options.argv = running->argv;
	options.timeout_ms = running->flags->session.timeout_ms > 0 ? running->flags->session.timeout_ms : 0;
	options.want_stdin = 1;
	options.tty = running->flags->tty;
	options.rows = rows;
	options.cols = cols;
	if (cell_session_command_start(running->session, &options, running->id, err) < 0)
		return -1;
	watch_signals();
	if (pipe(running->stop_fd) < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot make a pipe");
	go_raw(running);
	status = pthread_create(&thread, NULL, input_main, running);
	if (status)
		status = cell_fail(err, CELL_E_IO, status, "cannot start a thread");
	else
		status = read_all(running, err);
	close(running->stop_fd[1]); /* the thread sees its end */
	if (status != -1 || running->status)
		pthread_join(thread, NULL);
	close(running->stop_fd[0]);
	go_back(running);
	return status;
}

/* ---- in a session of a server ---- */

static int ask(struct running *running, const char *verb, json_t *body, struct cell_error *err)
{
	char path[sizeof(running->path) + 16];
	int status;

	snprintf(path, sizeof(path), "%s/%s", running->path, verb);
	status = body ? cell__cli_client_ask(running->client, "POST", path, body, NULL, err)
		      : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	json_decref(body);
	/* It ended meanwhile: the stream says so. */
	return status < 0 && (err->code == CELL_E_CLOSED || err->code == CELL_E_NOT_FOUND) ? 0 : status;
}

static int pass_signals_there(struct running *running, struct cell_error *err)
{
	int status = 0;

	for (size_t i = 0; i < N_PASSED && !status; i++) {
		int number = passed_on[i];
		char name[16];
		unsigned short rows = 24, cols = 80;

		if (!arrived[number])
			continue;
		arrived[number] = 0;
		window(&rows, &cols);
		if (number == SIGWINCH) {
			if (running->flags->tty)
				status = ask(running, "resize", json_pack("{s:i,s:i}", "rows", rows, "cols", cols), err);
			continue;
		}
		if (number == SIGINT) {
			int64_t now_us = cell__now_us();

			if (running->interrupted_us && now_us - running->interrupted_us < TWICE_US)
				number = SIGKILL;
			running->interrupted_us = now_us;
		}
		snprintf(name, sizeof(name), "%d", number);
		status = ask(running, "signal", json_pack("{s:s}", "signal", name), err);
	}
	return status;
}

/* What waits is sent; a command that does not read gets it later. */
static int send_input(struct running *running, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	if (running->input.size) {
		if (cell__buf_add_base64(&text, running->input.data, running->input.size) < 0)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for input");
		if (ask(running, "stdin", json_pack("{s:s#}", "base64", text.data, (int)text.size), err) < 0)
			return err->code == CELL_E_LIMIT ? 0 : -1;
		running->input.size = 0;
	}
	if (!running->input_ended || running->close_sent)
		return 0;
	running->close_sent = true;
	return ask(running, "stdin", json_pack("{s:b}", "close", 1), err);
}

static int take_input(struct running *running, struct cell_error *err)
{
	char bytes[INPUT_BYTES];
	ssize_t n = read(STDIN_FILENO, bytes, sizeof(bytes));

	if (n < 0 && errno != EINTR && errno != EAGAIN)
		return cell_fail(err, CELL_E_IO, errno, "cannot read stdin");
	if (n > 0 && cell__buf_add(&running->input, bytes, (size_t)n) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for input");
	running->input_ended = n == 0;
	return 0;
}

static int handle_tick(void *arg, int readable, struct cell_error *err)
{
	struct running *running = arg;

	if (running->ended)
		return 1;
	if (pass_signals_there(running, err) < 0)
		return -1;
	if (readable && !running->input.size && !running->input_ended && take_input(running, err) < 0)
		return -1;
	if (send_input(running, err) < 0)
		return -1;
	return running->input.size || running->input_ended ? 2 : 0; /* what waits goes first; an end can always be read */
}

static void handle_event(void *arg, const char *type, const char *data, size_t size)
{
	struct running *running = arg;
	json_t *event = json_loadb(data, size, JSON_ALLOW_NUL, NULL);
	const json_t *text = json_object_get(event, "text"), *base64 = json_object_get(event, "base64");
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;

	if (!strcmp(type, "chunk")) {
		bool is_stderr = !strcmp(cell__cli_text(event, "stream"), "stderr");

		if (json_is_string(text))
			put(running, is_stderr, json_string_value(text), json_string_length(text));
		else if (json_is_string(base64) && !cell__buf_add_unbase64(&bytes, json_string_value(base64), json_string_length(base64)))
			put(running, is_stderr, bytes.data, bytes.size);
	} else if (!strcmp(type, "gap")) {
		cell__cli_note("workcell: output was lost: the server does not keep it any more");
	} else if (!strcmp(type, "ended")) {
		running->ended = true;
		running->status = status_of((int)json_integer_value(json_object_get(event, "exit_code")),
					    json_string_value(json_object_get(event, "reason")));
	}
	json_decref(event);
}

/* {"argv" or "line", ...}; NULL: a word is not UTF-8, or out of memory. */
static json_t *start_body(const struct running *running)
{
	const struct cell_cli_session_flags *flags = &running->flags->session;
	json_t *body = json_pack("{s:b,s:b,s:{}}", "stdin", 1, "blocks", 1, "env"), *words = json_array();
	unsigned short rows = 24, cols = 80;
	int rc = 0;

	for (size_t i = 0; !running->shell && running->argv[i]; i++)
		rc |= json_array_append_new(words, json_string(running->argv[i]));
	for (size_t i = 0; i < flags->env.count; i++) {
		const char *entry = flags->env.items[i].value, *value = strchr(entry, '=');
		CELL_AUTO_FREE char *name = strndup(entry, strcspn(entry, "="));

		rc |= json_object_set_new(json_object_get(body, "env"), name ? name : "", json_string(value ? value + 1 : ""));
	}
	if (running->shell)
		rc |= json_object_set_new(body, "line", json_string(running->argv[0]));
	else
		rc |= json_object_set(body, "argv", words);
	if (flags->cwd)
		rc |= json_object_set_new(body, "cwd", json_string(flags->cwd));
	if (flags->timeout_ms > 0)
		rc |= json_object_set_new(body, "timeout", json_real((double)flags->timeout_ms / 1000));
	window(&rows, &cols);
	if (running->flags->tty)
		rc |= json_object_set_new(body, "tty", json_pack("{s:i,s:i}", "rows", rows, "cols", cols));
	json_decref(words);
	if (rc) {
		json_decref(body);
		return NULL;
	}
	return body;
}

static int stream(struct running *running, struct cell_error *err)
{
	char path[sizeof(running->path) + 16];
	int status;

	snprintf(path, sizeof(path), "%s/output", running->path);
	watch_signals();
	go_raw(running);
	status = cell_client_stream(running->client, path, handle_event, STDIN_FILENO, handle_tick, running, err);
	go_back(running);
	if (!status && !running->ended)
		status = cell_fail(err, CELL_E_IO, 0, "the server ended the stream before the command did");
	return status;
}

static int run_there(struct running *running, const char *session, struct cell_error *err)
{
	json_t *body = start_body(running), *answer = NULL;
	char path[96];
	int status;

	snprintf(path, sizeof(path), "/v1/sessions/%s/commands", session);
	status = body ? cell__cli_client_ask(running->client, "POST", path, body, &answer, err)
		      : cell_fail(err, CELL_E_INVALID, 0, "the program, its arguments and variables must be UTF-8");
	json_decref(body);
	if (!status && strlen(cell__cli_text(answer, "command_id")) != CELL_COMMAND_ID_SIZE - 1)
		status = cell_fail(err, CELL_E_PROTOCOL, 0, "the server's answer is not a command");
	if (!status) {
		snprintf(running->path, sizeof(running->path), "%s/%.16s", path, cell__cli_text(answer, "command_id"));
		status = stream(running, err);
	}
	json_decref(answer);
	return status;
}

/* ---- the command ---- */

static int run(struct running *running, struct cell_error *err)
{
	const struct exec_flags *flags = running->flags;
	const struct cell_cli_client_flags server = { flags->session.remote_url, flags->session.remote_token_file,
						      flags->session.remote_ca };
	struct cell_cli_host host;
	char session[33];
	int status;

	signal(SIGPIPE, SIG_IGN);
	if (!flags->target) {
		if (cell__cli_open(&flags->session, false, NULL, NULL, &host, err) < 0)
			return -1;
		running->session = host.session;
		status = run_here(running, err);
		cell__cli_close(&host);
		return status;
	}
	if (flags->session.executor)
		return cell_fail(err, CELL_E_INVALID, 0, "--session names a session that has its executor; leave out --executor");
	if (cell__cli_client_open(&server, &running->client, err) < 0)
		return -1;
	status = cell__cli_client_find(running->client, flags->target, session, err);
	if (!status)
		status = run_there(running, session, err);
	cell_client_destroy(running->client);
	return status;
}

int cell__cmd_exec(int argc, char **argv)
{
	struct exec_flags flags = { .session = CELL_CLI_SESSION_FLAGS_INIT(0) };
	struct cell_cli_list words = { 0 };
	struct running running = { .flags = &flags, .input = CELL_BUF_INIT };
	struct cell_error err;
	int status;

	flags.session.timeout_ms = -1;
	if (!cell__cli_parse(&cell__cli_exec_command, argc, argv, &flags, &words, &status))
		goto out;
	running.argv = cell__cli_list_values(&words);
	running.shell = words.count == 1 && strpbrk(words.items[0].value, " \t\n");
	running.shows[0] = isatty(STDOUT_FILENO);
	running.shows[1] = isatty(STDERR_FILENO);
	if (!words.count)
		status = cell_fail(&err, CELL_E_INVALID, 0, "give a program; `workcell exec --help` has examples");
	else
		status = running.argv ? run(&running, &err) : cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for the arguments");
	if (status < 0) {
		bool unknown = err.code == CELL_E_NOT_FOUND && strstr(err.msg, "no program");

		status = cell__cli_report(&err, flags.json);
		running.status = unknown ? NOT_FOUND : status == 2 ? 2 : FAILED; /* the others could be the program's */
	}
	status = running.status;
	cell__buf_finish(&running.input);
	free(running.argv);
out:
	cell__cli_list_finish(&words);
	cell__cli_list_finish(&flags.session.env);
	return status;
}
