#include <assert.h>
#include <string.h>

#include "executor/executor.h"

static const struct cell__executor *const executors[] = {
	&cell__subprocess_executor,
	&cell__sandbox_executor,
	&cell__jupyter_executor,
	&cell__inprocess_executor,
	&cell__deno_executor,
	&cell__remote_executor,
	&cell__container_executor,
};

const struct cell__executor *cell__executor_at(size_t i)
{
	if (i >= sizeof executors / sizeof *executors)
		return NULL;
	const struct cell__executor *e = executors[i];
	assert(e->name && e->isolation && e->probe && e->open && e->look && e->run && e->reply && e->interrupt && e->pause && e->close &&
	       e->pid && e->receipt);
	return e;
}

const struct cell__executor *cell__executor_find(const char *name)
{
	const struct cell__executor *e;
	for (size_t i = 0; (e = cell__executor_at(i)); i++)
		if (strcmp(e->name, name) == 0)
			return e;
	return NULL;
}
