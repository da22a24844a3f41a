/* Calls that wait for something of the registry's, and are then handled again through the eyes of their session. */
#include "tools/internal.h"

int cell__parked_init(struct cell__parked *parked, struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call,
		      void (*cancel)(struct cell__call *call), void *handler)
{
	const char *const *scope = view ? view->scope : NULL;
	*parked = (struct cell__parked){ .tools = tools, .call = call };
	parked->cwd = cell__strdup(view && view->cwd ? view->cwd : "/");
	parked->scope = scope ? cell__strings_copy(scope) : NULL;
	if (!parked->cwd || (scope && !parked->scope)) {
		cell__parked_finish(parked);
		return -1;
	}
	call->cancel = cancel;
	call->handler = handler;
	return 0;
}

void cell__parked_finish(struct cell__parked *parked)
{
	cell__strings_free(parked->scope);
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
