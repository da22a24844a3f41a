/*
 * Output while it is written, a cell that is started and not waited for, an interrupt from another thread.
 *
 * The two ways to run a cell differ in where events arrive:
 *
 *     cell_session_run()     waits; events come on the calling thread, which may take its time
 *     cell_session_start()   returns; events come on the engine's thread, which must not be held up
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <workcell.h>

/* What the engine's thread tells the main thread about the started cell. */
struct started {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	int saw_output;
	int ended;
	int code; /* of the outcome */
	int state_kept;
};

static void print_event(void *arg, const struct cell_event *event)
{
	int *chunks = arg;

	if (event->type == CELL_EVENT_CHUNK) {
		++*chunks;
		fwrite(event->data, 1, event->size, event->stream == CELL_STDERR ? stderr : stdout);
		fflush(stdout);
	} else if (event->type == CELL_EVENT_DISPLAY) {
		for (size_t i = 0; i < event->n_parts; i++)
			printf("displayed %s, %zu bytes\n", event->parts[i].type, event->parts[i].size);
	}
}

static int run_with_events(struct cell_session *session, struct cell_error *err)
{
	static const char code[] = "import time\n"
				   "for step in range(3):\n"
				   "    print('step', step, flush=True)\n"
				   "    time.sleep(0.05)\n"
				   "step";
	struct cell_run_options options;
	struct cell_result *result;
	int chunks = 0, ok;

	cell_run_options_init(&options);
	options.on_event = print_event;
	options.event_arg = &chunks;
	if (cell_session_run(session, code, strlen(code), &options, &result, err) < 0)
		return -1;
	ok = chunks >= 1 && !cell_result_error(result) && !strcmp(cell_result_repr(result), "2");
	printf("value %s after %.0f ms\n", cell_result_repr(result), cell_result_duration_ms(result));
	cell_result_destroy(result);
	return ok ? 0 : 1;
}

static void note_event(void *arg, const struct cell_event *event)
{
	struct started *started = arg;

	pthread_mutex_lock(&started->mutex);
	if (event->type == CELL_EVENT_CHUNK) {
		started->saw_output = 1;
	} else if (event->type == CELL_EVENT_RESULT) {
		const struct cell_outcome *outcome = cell_result_error(event->result);

		started->ended = 1;
		started->code = outcome ? outcome->code : CELL_OK;
		started->state_kept = cell_result_state_kept(event->result);
		cell_result_destroy(event->result); /* ours, because the cell was started */
	}
	pthread_cond_broadcast(&started->changed);
	pthread_mutex_unlock(&started->mutex);
}

static void *interrupt_main(void *arg)
{
	cell_session_interrupt(arg, NULL);
	return NULL;
}

static int start_and_interrupt(struct cell_session *session, struct cell_error *err)
{
	static const char code[] = "print('working', flush=True)\nwhile True: pass";
	struct cell_run_options options;
	struct started started = { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
	pthread_t thread;
	uint64_t run_id;

	cell_run_options_init(&options);
	options.on_event = note_event;
	options.event_arg = &started;
	if (cell_session_start(session, code, strlen(code), &options, &run_id, err) < 0)
		return -1;
	printf("started cell %llu, free to do other things\n", (unsigned long long)run_id);
	pthread_mutex_lock(&started.mutex);
	while (!started.saw_output && !started.ended)
		pthread_cond_wait(&started.changed, &started.mutex);
	pthread_mutex_unlock(&started.mutex);

	/* From whichever thread has a reason to: a user interface, a watchdog. */
	if (pthread_create(&thread, NULL, interrupt_main, session) == 0)
		pthread_join(thread, NULL);
	else
		interrupt_main(session);

	pthread_mutex_lock(&started.mutex);
	while (!started.ended)
		pthread_cond_wait(&started.changed, &started.mutex);
	pthread_mutex_unlock(&started.mutex);
	printf("it ended: %s, variables %s\n", cell_code_word(started.code), started.state_kept ? "kept" : "lost");
	return started.code == CELL_OUT_INTERRUPTED && started.state_kept ? 0 : 1;
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
		status = run_with_events(session, &err);
	if (!status)
		status = start_and_interrupt(session, &err);
	if (status < 0)
		fprintf(stderr, "%s: %s\n", cell_code_word(err.code), err.msg);
	cell_session_close(session);
	cell_engine_destroy(engine);
	return status ? 1 : 0;
}
