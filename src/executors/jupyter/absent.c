/* The `jupyter` executor of a build without libzmq: it says so. */
#include <stdio.h>

#include "executors/executor.h"

static void absent_probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	(void)host;
	info->available = 0;
	snprintf(info->reason, sizeof info->reason, "this version was built without libzmq");
	snprintf(info->advice, sizeof info->advice, "install libzmq3-dev and build with -Djupyter=enabled");
}

static int absent_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
		       void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	(void)host, (void)spec, (void)events, (void)owner, (void)ret_kernel;
	return cell_fail(err, CELL_E_UNAVAILABLE, 0,
			 "the executor \"jupyter\" is not in this build: it was built without libzmq (-Djupyter=enabled)");
}

/* Never called: no kernel is ever opened. */
static void absent_drain(struct cell__kernel *kernel)
{
	(void)kernel;
}

static int absent_run(struct cell__kernel *kernel, uint32_t run_id, const char *code, size_t size, struct cell_error *err)
{
	(void)kernel, (void)run_id, (void)code, (void)size;
	return cell_fail(err, CELL_E_UNAVAILABLE, 0, "not in this build");
}

static int absent_reply(struct cell__kernel *kernel, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
			struct cell_error *err)
{
	(void)kernel, (void)id, (void)json, (void)json_size, (void)raw, (void)raw_size;
	return cell_fail(err, CELL_E_UNAVAILABLE, 0, "not in this build");
}

static void absent_interrupt(struct cell__kernel *kernel, uint32_t run_id)
{
	(void)kernel, (void)run_id;
}

static void absent_pause(struct cell__kernel *kernel, bool paused)
{
	(void)kernel, (void)paused;
}

static void absent_close(struct cell__kernel *kernel, int64_t grace_ms)
{
	(void)kernel, (void)grace_ms;
}

static int64_t absent_pid(const struct cell__kernel *kernel)
{
	(void)kernel;
	return 0;
}

const struct cell__executor cell__jupyter_executor = {
	.name = "jupyter",
	.isolation = "process",
	.takes = CELL_TAKES_KERNEL,
	.probe = absent_probe,
	.open = absent_open,
	.drain = absent_drain,
	.run = absent_run,
	.reply = absent_reply,
	.interrupt = absent_interrupt,
	.pause = absent_pause,
	.close = absent_close,
	.pid = absent_pid,
	.receipt = "{}",
};
