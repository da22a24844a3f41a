/*
 * The tour that `make run` shows: one session, a few cells, and what each took.
 *
 * Every stop checks what it shows, so the program also serves as a test: it exits with 1 when anything is not
 * as it should be, and with 125 when Workcell itself fails.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <workcell.h>

struct stop {
	const char *title;
	const char *code;
	int64_t timeout_ms;  /* 0: the session's */
	int outcome;         /* CELL_OK or CELL_OUT_* */
	const char *repr;    /* of the value; NULL: there is none */
	const char *in_text; /* must be in what was printed, or in the traceback; NULL: nothing */
	const char *mime;    /* the value must have this part; NULL: any */
};

static const struct stop stops[] = {
	{ .title = "variables live from cell to cell", .code = "prices = {'tea': 3.5, 'cake': 4.25, 'soup': 6.0}" },
	{ .title = "the last expression is the cell's value", .code = "sum(prices.values())", .repr = "13.75" },
	{ .title = "output comes while it is written",
	  .code = "import time\n"
		  "for name, price in prices.items():\n"
		  "    print(f'{name:>6} {price:6.2f}', flush=True)\n"
		  "    time.sleep(0.15)",
	  .in_text = "  soup   6.00\n" },
	{ .title = "an error shows your code and nothing else",
	  .code = "def total(names):\n"
		  "    return sum(prices[name] for name in names)\n"
		  "\n"
		  "total(['tea', 'pie'])",
	  .outcome = CELL_OUT_EXCEPTION,
	  .in_text = "KeyError: 'pie'" },
	{ .title = "shell commands work", .code = "!echo hello from $(uname -s)", .in_text = "hello from Linux" },
	{ .title = "and so does await",
	  .code = "import asyncio\n"
		  "await asyncio.sleep(0, result='awaited')",
	  .repr = "'awaited'" },
	{ .title = "values have rich forms",
	  .code = "class Bill:\n"
		  "    def __repr__(self): return f'Bill of {sum(prices.values())}'\n"
		  "    def _repr_html_(self): return '<b>' + repr(self) + '</b>'\n"
		  "\n"
		  "Bill()",
	  .repr = "Bill of 13.75",
	  .mime = "text/html" },
	{ .title = "a cell that hangs is stopped (its limit here is 0.3 s)",
	  .code = "while True: pass",
	  .timeout_ms = 300,
	  .outcome = CELL_OUT_TIMEOUT },
	{ .title = "and nothing is lost", .code = "len(prices), Bill()", .repr = "(3, Bill of 13.75)" },
};

static int problems;

static void problem(const char *format, ...)
{
	va_list args;

	problems++;
	printf("   NOT AS EXPECTED: ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

static double now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1000 + (double)now.tv_nsec / 1e6;
}

static void print_indented(const char *mark, const char *text)
{
	while (*text) {
		size_t size = strcspn(text, "\n");

		printf("   %s %.*s\n", mark, (int)size, text);
		text += size + (text[size] == '\n');
	}
}

static void show_event(void *arg, const struct cell_event *event)
{
	int *mid_line = arg;

	if (event->type != CELL_EVENT_CHUNK)
		return;
	for (size_t i = 0; i < event->size; i++) {
		if (!*mid_line)
			fputs("     ", stdout);
		putchar(event->data[i]);
		*mid_line = event->data[i] != '\n';
	}
	fflush(stdout);
}

static void check_result(const struct stop *stop, const struct cell_result *result)
{
	const struct cell_outcome *outcome = cell_result_error(result);
	int code = outcome ? outcome->code : CELL_OK;
	const char *repr = cell_result_repr(result);
	const struct cell_mime_part *parts;
	struct cell_text text;
	size_t n, i = 0;

	cell_result_text(result, &text);
	n = cell_result_mime(result, &parts);
	if (code != stop->outcome)
		problem("the outcome is %s, not %s", cell_code_word(code), cell_code_word(stop->outcome));
	if (!!repr != !!stop->repr || (repr && strcmp(repr, stop->repr)))
		problem("the value is %s, not %s", repr ? repr : "none", stop->repr ? stop->repr : "none");
	if (stop->in_text && !strstr(text.data, stop->in_text) && !(outcome && strstr(outcome->traceback, stop->in_text)))
		problem("'%s' was not printed", stop->in_text);
	while (stop->mime && i < n && strcmp(parts[i].type, stop->mime))
		i++;
	if (stop->mime && i == n)
		problem("the value has no %s", stop->mime);
	if (!cell_result_state_kept(result))
		problem("the variables are lost");
}

static int run_stop(struct cell_session *session, const struct stop *stop, struct cell_error *err)
{
	struct cell_run_options options;
	const struct cell_outcome *outcome;
	const struct cell_mime_part *parts;
	struct cell_result *result;
	int mid_line = 0;
	double start;
	size_t n;

	cell_run_options_init(&options);
	printf("\n-- %s\n", stop->title);
	print_indented(">", stop->code);
	fflush(stdout);
	options.timeout_ms = stop->timeout_ms;
	options.on_event = show_event;
	options.event_arg = &mid_line;
	start = now_ms();
	if (cell_session_run(session, stop->code, strlen(stop->code), &options, &result, err) < 0)
		return -1;
	start = now_ms() - start;
	if (mid_line)
		putchar('\n');
	outcome = cell_result_error(result);
	if (outcome && stop->outcome == CELL_OUT_EXCEPTION)
		print_indented(" ", outcome->traceback);
	else if (outcome)
		printf("     %s: %s\n", cell_code_word(outcome->code), outcome->message);
	if (cell_result_repr(result))
		print_indented("=", cell_result_repr(result));
	n = cell_result_mime(result, &parts);
	for (size_t i = 0; i < n; i++) {
		if (strcmp(parts[i].type, "text/plain"))
			printf("     %s: %s\n", parts[i].type, (const char *)parts[i].data);
	}
	printf("   %.2f ms\n", start);
	check_result(stop, result);
	cell_result_destroy(result);
	return 0;
}

/* Opens a session, runs a first cell, and says what the two took together. */
static int open_timed(struct cell_engine *engine, const char *python, const char *what, struct cell_session **ret_session,
		      struct cell_error *err)
{
	struct cell_session_options options;
	struct cell_session *session;
	struct cell_result *result;
	double start = now_ms();

	cell_session_options_init(&options);
	options.python = python;
	if (cell_session_open(engine, &options, &session, err) < 0)
		return -1;
	if (cell_session_run(session, "1", 1, NULL, &result, err) < 0) {
		cell_session_close(session);
		return -1;
	}
	printf("%-52s %8.2f ms\n", what, now_ms() - start);
	fflush(stdout);
	cell_result_destroy(result);
	*ret_session = session;
	return 0;
}

static int tour(struct cell_engine *engine, const char *python, struct cell_error *err)
{
	struct cell_session *session = NULL, *second = NULL;
	int status;

	printf("workcell %s\n\n", cell_version());
	status = open_timed(engine, python, "a first session and its first cell (starts Python)", &session, err);
	if (!status)
		status = cell_engine_prewarm(engine, python, NULL, NULL, err);
	if (!status)
		status = open_timed(engine, python, "a second one, from the warm process", &second, err);
	cell_session_close(second);
	for (size_t i = 0; i < sizeof(stops) / sizeof(stops[0]) && !status; i++)
		status = run_stop(session, &stops[i], err);
	cell_session_close(session);
	return status;
}

int main(int argc, char **argv)
{
	struct cell_engine *engine;
	struct cell_error err;
	int status;

	status = cell_engine_create(NULL, &engine, &err);
	if (!status) {
		status = tour(engine, argc > 1 ? argv[1] : NULL, &err);
		cell_engine_destroy(engine);
	}
	if (status < 0) {
		fprintf(stderr, "%s: %s\n", cell_code_word(err.code), err.msg);
		return cell_code_exit_status(err.code);
	}
	if (problems) {
		printf("\n%d things were not as expected\n", problems);
		return 1;
	}
	printf("\nThat was the tour. Try: workcell shell, workcell run --help, examples/hello.c\n");
	return 0;
}
