/*
 * A program as it was compiled against the first header that there was (workcell-first.h, never edited), run with the library of today: it
 * must find its functions, its structs must be understood though they are shorter, and codes and events must have the numbers and the
 * places that it knows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "workcell-first.h"

#define CHECK(what)                                                                \
	do {                                                                       \
		if (!(what)) {                                                     \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, err.msg); \
			exit(1);                                                   \
		}                                                                  \
	} while (0)

static struct cell_error err;
static int chunks, results, idle;

static void handle_event(void *arg, const struct cell_event *event)
{
	CHECK(arg == &chunks);
	if (event->type == CELL_EVENT_CHUNK) {
		CHECK(event->stream == CELL_STDOUT && event->size == 3 && memcmp(event->data, "hi\n", 3) == 0);
		chunks++;
	} else if (event->type == CELL_EVENT_RESULT) {
		CHECK(event->result);
		results++;
	} else {
		idle++;
	}
}

int main(void)
{
	struct cell_engine_options engine_options = CELL_ENGINE_OPTIONS_INIT;
	struct cell_session_options session_options = CELL_SESSION_OPTIONS_INIT;
	struct cell_run_options run_options = CELL_RUN_OPTIONS_INIT;
	struct cell_executor_info info = { .size = sizeof info };
	struct cell_env_info env = { .size = sizeof env };
	struct cell_engine *engine;
	struct cell_session *session;
	struct cell_result *result;
	struct cell_text text;

	/* What lies behind its structs on the stack is not an option. */
	CHECK(cell_engine_create(&engine_options, &engine, &err) == 0);
	CHECK(cell_executor_probe(engine, 0, &info) == 0 && info.size == sizeof info && strcmp(info.name, "subprocess") == 0);
	CHECK(cell_engine_prewarm(engine, NULL, NULL, &env, &err) == 0 && env.size == sizeof env && env.zygote_pid > 0);
	CHECK(cell_session_open(engine, &session_options, &session, &err) == 0);
	run_options.on_event = handle_event;
	run_options.event_arg = &chunks;
	static const char code[] = "print('hi'); 6 * 7";
	CHECK(cell_session_run(session, code, strlen(code), &run_options, &result, &err) == 0);
	CHECK(strcmp(cell_result_repr(result), "42") == 0 && cell_result_error(result) == NULL && cell_result_state_kept(result));
	cell_result_stdout(result, &text);
	CHECK(text.size == 3 && chunks == 1 && results == 1 && idle == 0);
	cell_result_destroy(result);

	CHECK(cell_session_run(session, "1 / 0", 5, NULL, &result, &err) == 0);
	const struct cell_outcome *outcome = cell_result_error(result);
	CHECK(outcome && outcome->code == CELL_OUT_EXCEPTION && strcmp(outcome->type, "ZeroDivisionError") == 0);
	cell_result_destroy(result);

	static const char death[] = "import os; os._exit(3)";
	CHECK(cell_session_run(session, death, strlen(death), NULL, &result, &err) == 0);
	CHECK(cell_result_error(result)->code == CELL_OUT_KERNEL_DIED && !cell_result_state_kept(result));
	CHECK(strcmp(cell_code_word(CELL_OUT_KERNEL_DIED), "kernel_died") == 0);
	cell_result_destroy(result);
	cell_session_close(session);

	session_options.executor = "nonsense";
	CHECK(cell_session_open(engine, &session_options, &session, &err) < 0 && err.code == CELL_E_UNAVAILABLE);
	cell_engine_destroy(engine);
	return 0;
}
