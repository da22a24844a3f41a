/*
 * The port of the Python SDK, between an engine's thread and one that takes: python/ext/port.c itself, without an interpreter.  No item
 * becomes a Python object here; that part has the GIL, and no race.  Made for TSan, which cannot look into a Python that it did not
 * instrument: a sanitized extension in an ordinary interpreter reports that interpreter.
 */
#define _GNU_SOURCE
#include "../../python/ext/port.c"

#include "support.h"

/* Of the extension's other files: nothing here makes an object. */
PyTypeObject *result_type, *call_type, *before_type, *question_type;

PyObject *text_of(const char *text, size_t size)
{
	(void)text, (void)size;
	abort();
}

PyObject *result_wrap(struct cell_result *result)
{
	(void)result;
	abort();
}

PyObject *pointer_wrap(PyTypeObject *type, void *pointer)
{
	(void)type, (void)pointer;
	abort();
}

PyTypeObject *port_type;

int add_type(PyObject *module, const char *name, PyTypeObject *type)
{
	(void)module, (void)name, (void)type;
	abort();
}

struct taker {
	struct port *port;
	atomic_int results, others;
	int wanted;
};

/* As port_wait() and port_take() do: sleeps on the descriptor, takes all that is there. */
static void *take(void *arg)
{
	struct taker *taker = arg;
	while (atomic_load(&taker->results) < taker->wanted) {
		struct pollfd poller = { taker->port->fd, POLLIN, 0 };
		CHECK(poll(&poller, 1, DEADLINE_MS) == 1);
		struct item *item = take_all(taker->port, false);
		while (item) {
			struct item *next = item->next;
			atomic_fetch_add(item->type == CELL_EVENT_RESULT ? &taker->results : &taker->others, 1);
			item_destroy(item);
			item = next;
		}
	}
	return NULL;
}

#define SESSIONS 3
#define CELLS 20

static void test_events_and_results(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(1);
	struct cell_session *sessions[SESSIONS];
	struct taker taker = { .port = port_create(), .wanted = SESSIONS * CELLS };
	pthread_t thread;
	for (int i = 0; i < SESSIONS; i++)
		sessions[i] = support_session(engine);
	assert_int_equal(pthread_create(&thread, NULL, take, &taker), 0);
	static const char code[] = "print('x' * 1000)";
	for (int n = 0; n < CELLS; n++)
		for (int i = 0; i < SESSIONS; i++) {
			struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
			options.on_event = on_run_event;
			options.event_arg = reg_create(taker.port, (uint64_t)n, ~0u, true);
			assert_int_equal(cell_session_start(sessions[i], code, strlen(code), &options, NULL, NULL), 0);
		}
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&taker.results), SESSIONS * CELLS);
	assert_true(atomic_load(&taker.others) >= SESSIONS * CELLS);
	assert_int_equal(port_pending(taker.port), 0);
	for (int i = 0; i < SESSIONS; i++)
		cell_session_close(sessions[i]);
	cell_engine_destroy(engine);
	port_unref(taker.port);
}

/* Closed while the engine pushes: what comes later is destroyed, and the last reference frees the port, on whichever thread. */
static void test_close_meanwhile(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(1);
	struct cell_session *session = support_session(engine);
	static const char code[] = "for i in range(200): print(i, flush=True)";
	for (int n = 0; n < 10; n++) {
		struct port *port = port_create();
		struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
		options.on_event = on_run_event;
		options.event_arg = reg_create(port, 1, ~0u, true);
		assert_int_equal(cell_session_start(session, code, strlen(code), &options, NULL, NULL), 0);
		struct pollfd poller = { port->fd, POLLIN, 0 };
		assert_int_equal(poll(&poller, 1, DEADLINE_MS), 1);
		port_close(port);
		port_unref(port);
	}
	support_expect(session, "1", "1");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_events_and_results),
		TEST(test_close_meanwhile),
	};
	support_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
