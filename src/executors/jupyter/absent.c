/* The `jupyter` executor of a build without libzmq: it refuses with that reason. */
#include <stdio.h>

#include "executors/executor.h"
#include "executors/registry.h"

static void absent_probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	(void)host;
	info->available = 0;
	snprintf(info->reason, sizeof info->reason, "this version was built without libzmq");
	snprintf(info->advice, sizeof info->advice, "install libzmq3-dev and build with -Djupyter=enabled");
}

static int absent_check(const struct cell_session_options *opts, struct cell_error *err)
{
	(void)opts;
	return cell_fail(err, CELL_E_UNAVAILABLE, 0,
			 "the executor \"jupyter\" is not in this build: it was built without libzmq (-Djupyter=enabled)");
}

const struct cell__executor cell__jupyter_executor = {
	.name = "jupyter",
	.isolation = "process",
	.takes = CELL_TAKES_KERNEL,
	.probe = absent_probe,
	.check = absent_check,
	.receipt = "{}",
};
