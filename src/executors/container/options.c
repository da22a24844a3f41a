/* A session's options for its container: its own part, and the part of the server inside. */
#include "executors/container/container.h"
#include "executors/remote/remote.h"

void cell__container_free_options(void *state)
{
	struct cell__container_own *own = state;

	if (own->remote)
		cell__remote_free_options(own->remote);
	free(own->config);
	free(own);
}

int cell__container_read_options(const struct cell_session_options *opts, void **ret_own, struct cell_error *err)
{
	struct cell__container_own *own = cell__alloc(1, sizeof(*own));
	void *remote = NULL;

	if (!own)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (cell__container_describe(opts->container, opts->env, &own->config, err) < 0 ||
	    cell__remote_read_options(opts, &remote, err) < 0) {
		cell__container_free_options(own);
		return -1;
	}
	own->remote = remote;
	*ret_own = own;
	return 0;
}
