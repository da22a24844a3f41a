/* Calls that wait for something of the registry's, and are then handled again through the eyes of their session. */
#include "tools/internal.h"

static char **copy_scope(const char *const *scope, bool *ret_ok)
{
	size_t n = 0;
	if (!scope)
		return NULL;
	while (scope[n])
		n++;
	char **copy = cell__alloc(n + 1, sizeof *copy);
	for (size_t i = 0; copy && i < n; i++)
		if (!(copy[i] = cell__strdup(scope[i])))
			*ret_ok = false;
	*ret_ok &= copy != NULL;
	return copy;
}

int cell__parked_init(struct cell__parked *parked, struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call,
		      void (*cancel)(struct cell__call *call), void *handler)
{
	bool ok = true;
	*parked = (struct cell__parked){ .tools = tools, .call = call };
	parked->cwd = cell__strdup(view && view->cwd ? view->cwd : "/");
	parked->scope = copy_scope(view ? view->scope : NULL, &ok);
	if (!ok || !parked->cwd) {
		cell__parked_finish(parked);
		return -1;
	}
	call->cancel = cancel;
	call->handler = handler;
	return 0;
}

void cell__parked_finish(struct cell__parked *parked)
{
	for (size_t i = 0; parked->scope && parked->scope[i]; i++)
		free(parked->scope[i]);
	free(parked->scope);
	free(parked->cwd);
}

struct cell__call *cell__parked_take(struct cell__parked *parked)
{
	parked->call->cancel = NULL;
	parked->call->handler = NULL;
	return parked->call;
}

void cell__parked_handle(const struct cell__parked *parked)
{
	struct cell__tools_view view = { .cwd = parked->cwd, .scope = (const char *const *)parked->scope };
	if (parked->call->again)
		parked->call->again(parked->call);
	else
		cell__tools_handle(parked->tools, &view, parked->call);
}
