/*
 * The smallest program: an engine, a session, two cells that share a variable.
 *
 *     cc hello.c $(pkg-config --cflags --libs workcell) -o hello && ./hello
 */
#include <stdio.h>
#include <string.h>

#include <workcell.h>

static int run(struct cell_session *session, const char *code, struct cell_error *err)
{
	const struct cell_outcome *outcome;
	struct cell_result *result;
	int failed;

	if (cell_session_run(session, code, strlen(code), NULL, &result, err) < 0)
		return -1;
	outcome = cell_result_error(result);
	failed = outcome != NULL;
	if (failed)
		fprintf(stderr, "%s\n", outcome->traceback);
	else if (cell_result_repr(result))
		printf("%s\n", cell_result_repr(result));
	cell_result_destroy(result);
	return failed;
}

int main(int argc, char **argv)
{
	struct cell_session_options options;
	struct cell_session *session = NULL;
	struct cell_engine *engine = NULL;
	struct cell_error err;
	int status;

	cell_session_options_init(&options);
	options.python = argc > 1 ? argv[1] : NULL;
	status = cell_engine_create(NULL, &engine, &err);
	if (!status)
		status = cell_session_open(engine, &options, &session, &err);
	if (!status)
		status = run(session, "words = ['hello', 'from', 'a', 'cell']", &err);
	if (!status)
		status = run(session, "' '.join(words)", &err);
	if (status < 0)
		fprintf(stderr, "%s: %s\n", cell_code_word(err.code), err.msg);
	cell_session_close(session);
	cell_engine_destroy(engine);
	return status ? 1 : 0;
}
