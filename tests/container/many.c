/*
 * many ENGINE IMAGE N ISOLATION: opens N sessions of one engine with the executor container, one after another, runs a cell in
 * each, and prints a line of JSON for each: its result.  Then all of them at once are closed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "workcell.h"

#define MOST 16

static int complain(const struct cell_error *err)
{
	fprintf(stderr, "%s: %s\n", cell_code_word(err->code), err->msg);
	return 1;
}

int main(int argc, char **argv)
{
	struct cell_container_options container = CELL_CONTAINER_OPTIONS_INIT;
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_session *sessions[MOST];
	struct cell_engine *engine;
	struct cell_error err;
	int count = argc == 5 ? atoi(argv[3]) : 0;

	if (count < 1 || count > MOST)
		return 2;
	container.engine = argv[1];
	container.image = argv[2];
	container.session_isolation = !strcmp(argv[4], "session");
	container.network_disabled = 1;
	options.executor = "container";
	options.container = &container;
	if (cell_engine_create(NULL, &engine, &err) < 0)
		return complain(&err);
	for (int i = 0; i < count; i++) {
		struct cell_result *result;
		const char code[] = "open('/tmp/mark', 'a').write('x'); len(open('/tmp/mark').read())";

		if (cell_session_open(engine, &options, &sessions[i], &err) < 0 ||
		    cell_session_run(sessions[i], code, strlen(code), NULL, &result, &err) < 0)
			return complain(&err);
		char *json = cell_result_json(result);
		puts(json);
		free(json);
		cell_result_destroy(result);
	}
	for (int i = 0; i < count; i++)
		cell_session_close(sessions[i]);
	cell_engine_destroy(engine);
	return 0;
}
