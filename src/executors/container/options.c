/* A session's options for its container: its own part, and the part of the server inside. */
#include "executors/container/container.h"
#include "executors/remote/remote.h"

/* What the server inside does for a session: it needs other flags, so another container. */
static int add_inside(char **config, const struct cell_session_options *opts, struct cell_error *err)
{
	json_t *root = opts->workspace_mode || opts->allow_fork ? json_loads(*config, 0, NULL) : NULL;
	json_t *flags = opts->allow_fork ? json_pack("{s:I,s:I,s:I}", "allow", (json_int_t)opts->allow_fork, "memory",
						     (json_int_t)opts->fork_memory, "ms", (json_int_t)opts->fork_time_ms)
					 : NULL;
	char *text = NULL;

	if (!opts->workspace_mode && !opts->allow_fork)
		return 0;
	/* No other mode than "cow" was let through. */
	if (root && json_object_set_new(root, "layer", json_boolean(opts->workspace_mode != NULL)) == 0 &&
	    (!opts->allow_fork || json_object_set(root, "forks", flags) == 0))
		text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
	json_decref(flags);
	json_decref(root);
	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	free(*config);
	*config = text;
	return 0;
}

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
	if (cell__container_describe(opts->container, opts->env, &own->config, err) < 0 || add_inside(&own->config, opts, err) < 0 ||
	    cell__remote_read_options(opts, &remote, err) < 0) {
		cell__container_free_options(own);
		return -1;
	}
	own->remote = remote;
	*ret_own = own;
	return 0;
}
