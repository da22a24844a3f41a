/*
 * `workcell logs` and `workcell attach`: what the cells of a server's session print.
 *
 * Output of code is not trusted with the terminal: it is escaped there (cell__cli_show()), and passes unchanged into a pipe.
 */
#define _GNU_SOURCE 1
#include "client.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_LINE_BYTES (64u * 1024u)
#define AGAIN_US 2000000 /* a second Ctrl-C within that leaves */

struct logs_flags {
	struct cell_cli_client_flags client;
	bool follow, quiet;
};

static const struct cell_cli_flag logs_flag_table[] = {
	{ 'f', "follow", NULL, "wait for more output", CELL_FLAG_SWITCH, offsetof(struct logs_flags, follow) },
	{ 'q', "quiet", NULL, "only the output, without lines about the cells", CELL_FLAG_SWITCH, offsetof(struct logs_flags, quiet) },
	CELL_CLI_CLIENT_FLAGS(offsetof(struct logs_flags, client)),
	{ 0 },
};

static const struct cell_cli_flag attach_flag_table[] = {
	{ 'q', "quiet", NULL, "only the output, without lines about the cells", CELL_FLAG_SWITCH, offsetof(struct logs_flags, quiet) },
	CELL_CLI_CLIENT_FLAGS(offsetof(struct logs_flags, client)),
	{ 0 },
};

const struct cell_cli_command cell__cli_logs_command = {
	.name = "logs",
	.summary = "the last output of a server's session",
	.synopsis = "[-f] [-q] SESSION",
	.about =
		"Prints the last 64 KiB that the cells of a session printed, whoever ran them.  SESSION is an id that `workcell ps` shows, or its\n"
		"beginning.  A reader that is too slow misses output, which is said; the code is never held up.",
	.examples = "  workcell logs 3f2a --auth-token-file token\n"
		    "  workcell logs -f 3f2a --auth-token-file token",
	.flags = logs_flag_table,
	.run = cell__cmd_logs,
};

const struct cell_cli_command cell__cli_attach_command = {
	.name = "attach",
	.summary = "look on at a server's session, and run code in it",
	.synopsis = "[-q] SESSION",
	.about =
		"Prints what comes, like `logs -f`.  Each line that is typed runs as a cell; without a terminal all of stdin is one cell, and\n"
		"its end ends the command (exit status 1 if it raised).  Ctrl-C interrupts the running cell, Ctrl-C twice or Ctrl-D leaves;\n"
		"the session stays.",
	.examples = "  workcell attach 3f2a --auth-token-file token\n"
		    "  echo 'print(len(rows))' | workcell attach -q 3f2a --auth-token-file token",
	.flags = attach_flag_table,
	.run = cell__cmd_attach,
};

/* ---- events ---- */

struct watching {
	struct cell_client *client;
	char id[33];
	bool quiet, fresh; /* fresh: the last byte on stdout was a line's end */
	bool terminal;     /* stdin is one */
	json_int_t run_id; /* the cell of stdin, whose output alone is shown without a terminal; 0: none yet */
	int status;        /* of it */
	bool ended;
	struct cell__buf input;
	int64_t signalled_us;
};

static void show(struct watching *watching, const char *bytes, size_t size)
{
	if (!size)
		return;
	cell__cli_show(bytes, size);
	watching->fresh = bytes[size - 1] == '\n';
}

/* A line about a cell, on stderr. */
static void note(struct watching *watching, const char *text)
{
	if (watching->quiet)
		return;
	if (!watching->fresh) {
		cell__cli_write(STDOUT_FILENO, "\n", 1);
		watching->fresh = true;
	}
	cell__cli_note(text);
}

static void show_chunk(struct watching *watching, const json_t *data)
{
	const json_t *text = json_object_get(data, "text");
	const char *base64 = cell__cli_text(data, "base64");
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;

	if (json_is_string(text))
		show(watching, json_string_value(text), json_string_length(text));
	else if (cell__buf_add_unbase64(&bytes, base64, strlen(base64)) == 0)
		show(watching, bytes.data ? bytes.data : "", bytes.size);
}

static void show_end(struct watching *watching, const json_t *data)
{
	const char *error = cell__cli_text(data, "error"), *repr = cell__cli_text(data, "repr");
	json_int_t run_id = json_integer_value(json_object_get(data, "run_id"));
	char *text = NULL;

	if (*repr) {
		show(watching, repr, strlen(repr));
		show(watching, "\n", 1);
	}
	if (*error && asprintf(&text, "-- cell %" JSON_INTEGER_FORMAT ": %s: %s", run_id, error, cell__cli_text(data, "message")) >= 0) {
		note(watching, text);
		free(text);
	}
	if (watching->run_id && run_id == watching->run_id) {
		watching->ended = !watching->terminal;
		watching->status = *error ? 1 : 0;
	}
}

static void show_event(struct watching *watching, const char *type, const json_t *data)
{
	char *text = NULL;
	int n = -1;

	if (watching->run_id && !watching->terminal && json_integer_value(json_object_get(data, "run_id")) != watching->run_id)
		return;
	if (!strcmp(type, "chunk"))
		show_chunk(watching, data);
	else if (!strcmp(type, "ended"))
		show_end(watching, data);
	else if (!strcmp(type, "cell"))
		n = asprintf(&text, "-- cell %" JSON_INTEGER_FORMAT ": %s", json_integer_value(json_object_get(data, "run_id")),
			     cell__cli_text(data, "code"));
	else if (!strcmp(type, "gap"))
		n = asprintf(&text, "-- %" JSON_INTEGER_FORMAT " earlier events are lost",
			     json_integer_value(json_object_get(data, "missed")));
	if (n >= 0)
		note(watching, text);
	if (n >= 0)
		free(text);
}

static void handle_event(void *arg, const char *type, const char *bytes, size_t size)
{
	json_t *data = json_loadb(bytes, size, JSON_ALLOW_NUL, NULL);

	if (data)
		show_event(arg, type, data);
	json_decref(data);
}

static int open_session(const struct logs_flags *flags, struct cell_cli_list *sessions, struct watching *watching, struct cell_error *err)
{
	if (sessions->count != 1)
		return cell_fail(err, CELL_E_INVALID, 0, "give one session; `workcell ps` lists them");
	watching->quiet = flags->quiet;
	watching->fresh = true;
	if (cell__cli_client_open(&flags->client, &watching->client, err) < 0)
		return -1;
	return cell__cli_client_find(watching->client, sessions->items[0].value, watching->id, err);
}

int cell__cmd_logs(int argc, char **argv)
{
	struct logs_flags flags = { 0 };
	struct cell_cli_list sessions = { 0 };
	struct watching watching = { 0 };
	struct cell_error err;
	char path[96];
	int status;

	if (!cell__cli_parse(&cell__cli_logs_command, argc, argv, &flags, &sessions, &status)) {
		cell__cli_list_finish(&sessions);
		return status;
	}
	status = open_session(&flags, &sessions, &watching, &err);
	if (!status) {
		snprintf(path, sizeof(path), "/v1/sessions/%s/log?follow=%s", watching.id, flags.follow ? "true" : "false");
		status = cell_client_stream(watching.client, path, handle_event, -1, NULL, &watching, &err);
	}
	cell_client_destroy(watching.client);
	cell__cli_list_finish(&sessions);
	return status < 0 ? cell__cli_report(&err, false) : 0;
}

/* ---- attach ---- */

static volatile sig_atomic_t interrupts;

static void handle_interrupt(int number)
{
	(void)number;
	interrupts++;
}

static int run_code(struct watching *watching, const char *code, size_t size, struct cell_error *err)
{
	json_t *body = json_pack("{s:o?}", "code", json_stringn(code, size)), *answer = NULL;
	char path[96];
	int status;

	snprintf(path, sizeof(path), "/v1/sessions/%s/runs", watching->id);
	status = body ? cell__cli_client_ask(watching->client, "POST", path, body, &answer, err)
		      : cell_fail(err, CELL_E_INVALID, 0, "the code is not UTF-8");
	if (!status)
		watching->run_id = json_integer_value(json_object_get(answer, "run_id"));
	json_decref(answer);
	json_decref(body);
	return status;
}

/* Ctrl-C: the cell; again soon: us. */
static int take_interrupt(struct watching *watching, struct cell_error *err)
{
	int64_t now_us = cell__now_us();
	char path[96];

	interrupts = 0;
	if (watching->signalled_us && now_us - watching->signalled_us < AGAIN_US)
		return 1;
	watching->signalled_us = now_us;
	snprintf(path, sizeof(path), "/v1/sessions/%s/interrupt", watching->id);
	return cell__cli_client_ask(watching->client, "POST", path, NULL, NULL, err);
}

/* From the terminal each line is a cell. */
static int run_lines(struct watching *watching, struct cell_error *err)
{
	struct cell__buf *input = &watching->input;
	char *end;

	while (input->size && (end = memchr(input->data, '\n', input->size))) {
		size_t size = (size_t)(end - input->data);

		if (size && run_code(watching, input->data, size, err) < 0)
			(void)cell__cli_report(err, false); /* the next one may be better */
		cell__buf_shift(input, size + 1);
	}
	return input->size > MAX_LINE_BYTES ? cell_fail(err, CELL_E_LIMIT, 0, "a line is longer than %u bytes", MAX_LINE_BYTES) : 0;
}

/* 1: leave. */
static int take_input(struct watching *watching, struct cell_error *err)
{
	char bytes[4096];
	ssize_t n = read(STDIN_FILENO, bytes, sizeof(bytes));

	if (n < 0)
		return errno == EINTR || errno == EAGAIN ? 0 : cell_fail(err, CELL_E_IO, errno, "read stdin");
	if (n == 0)
		return 1;
	if (cell__buf_add(&watching->input, bytes, (size_t)n) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the code");
	return run_lines(watching, err);
}

static int handle_tick(void *arg, int readable, struct cell_error *err)
{
	struct watching *watching = arg;

	if (watching->ended)
		return 1;
	if (interrupts)
		return take_interrupt(watching, err);
	return readable && watching->terminal ? take_input(watching, err) : 0;
}

static int attach(struct watching *watching, struct cell_error *err)
{
	struct sigaction action = { .sa_handler = handle_interrupt }, old;
	char path[96], *code = NULL;
	size_t size;
	int status = 0;

	watching->terminal = isatty(STDIN_FILENO);
	snprintf(path, sizeof(path), "/v1/sessions/%s/log", watching->id);
	if (!watching->terminal && (status = cell__cli_read_file("-", &code, &size, err)) == 0)
		status = run_code(watching, code, size, err);
	free(code);
	if (status < 0)
		return -1;
	sigaction(SIGINT, &action, &old);
	status = cell_client_stream(watching->client, path, handle_event, watching->terminal ? STDIN_FILENO : -1, handle_tick, watching,
				    err);
	sigaction(SIGINT, &old, NULL);
	return status;
}

int cell__cmd_attach(int argc, char **argv)
{
	struct logs_flags flags = { 0 };
	struct cell_cli_list sessions = { 0 };
	struct watching watching = { .input = CELL_BUF_INIT };
	struct cell_error err;
	int status;

	if (!cell__cli_parse(&cell__cli_attach_command, argc, argv, &flags, &sessions, &status)) {
		cell__cli_list_finish(&sessions);
		return status;
	}
	status = open_session(&flags, &sessions, &watching, &err);
	if (!status)
		status = attach(&watching, &err);
	cell__buf_finish(&watching.input);
	cell_client_destroy(watching.client);
	cell__cli_list_finish(&sessions);
	return status < 0 ? cell__cli_report(&err, false) : watching.terminal ? 0 : watching.status;
}
