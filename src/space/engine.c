/* Waiting for the loop, for functions that any thread may call. */
#include "space/engine.h"

int cell__engine_may_wait(struct cell_engine *engine, const char *name, struct cell_error *err)
{
	if (cell__loop_is_current(engine->loop))
		return cell_fail(err, CELL_E_INVALID, 0, "%s() blocks and must not be called from a callback of the engine", name);
	return 0;
}

void cell__engine_must_wait(struct cell_engine *engine, const char *name)
{
	struct cell_error err;
	if (cell__engine_may_wait(engine, name, &err) == 0)
		return;
	engine->host.log(engine->host.log_arg, CELL_LOG_ERROR, "%s", err.msg);
	abort();
}

struct wait {
	struct cell__task task;
	struct cell__waiter waiter;
	cell__engine_start start;
	void *object;
};

static void handle_wait_over(void *arg)
{
	cell__waiter_signal(&((struct wait *)arg)->waiter);
}

static void start_wait(struct cell__task *task)
{
	struct wait *wait = (struct wait *)task;
	wait->start(wait->object, handle_wait_over, wait);
}

void cell__engine_wait(struct cell_engine *engine, cell__engine_start start, void *object)
{
	struct wait wait = { .task.fn = start_wait, .start = start, .object = object };
	cell__waiter_init(&wait.waiter);
	cell__loop_do(engine->loop, &wait.task, &wait.waiter);
	cell__waiter_finish(&wait.waiter);
}
