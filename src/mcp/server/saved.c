/*
 * Sessions with ids that outlive their server, where sessions are saved (saved_dir).
 *
 *     open ── its server ends, it makes room, it was idle for saved_idle_ms ──▶ saved ── a call names it, here or elsewhere ──▶ open
 *      └── close_session ──▶ gone, with what was saved
 *
 * A handle has its session's id then.  A call that names none of ours makes a handle that looks for what was saved: without a lock, by the id and
 * the owner, so that others' sessions are neither found nor held up.  Whether it may run here is decided by the lock or lease of its place
 * (durable/lease.h); another server may be about to let go of it, so CELL_E_CONFLICT is an answer only after a while.
 *
 * With `owners` other servers are told what is here, and pass requests on (server/mcp.c, server/peers.c).
 *
 * All of this is on the handle's thread, which may wait; without the lock unless it says otherwise.
 */
#include "mcp/server/server.h"

#include <string.h>

#include "durable/durable.h"
#include "durable/owners.h"

#define CONFLICT_US INT64_C(3000000)
#define AGAIN_US INT64_C(25000)

/* Whose it is where it is saved. */
#define MAX_SAVED_OWNER (CELL_MCP_MAX_OWNER + 256)

static void write_owner(const struct cell__mcp_handle *handle, char out[static MAX_SAVED_OWNER])
{
	const char *workspace = cell__space_workspace(handle->server->opts.space);

	snprintf(out, MAX_SAVED_OWNER, "%s/%s", handle->owner, workspace ? workspace : "");
}

/* False: the handle is closing. */
static bool wait_again(struct cell__mcp_handle *handle)
{
	int64_t until = cell__now_us() + AGAIN_US;
	bool closing;

	pthread_mutex_lock(&handle->server->lock);
	while (!handle->closing && cell__now_us() < until)
		cell__mcp_cond_wait(&handle->changed, &handle->server->lock, until);
	closing = handle->closing;
	pthread_mutex_unlock(&handle->server->lock);
	return !closing;
}

/* Runs a step on what other servers know of us.  Without the lock. */
static int run_owners(struct cell_mcp_server *server, struct cell__owner_step *step)
{
	struct cell__owner_step *steps[] = { step };
	struct cell_error err;
	int status;

	if (!server->owners)
		return 0;
	pthread_mutex_lock(&server->owners_lock);
	status = cell__owners_run(server->owners, steps, 1, &err);
	pthread_mutex_unlock(&server->owners_lock);
	return status;
}

/* Other servers ask for it here; or no longer. */
static bool announce(struct cell_mcp_server *server, const char *id, bool is_here)
{
	struct cell__owner_step step = { .verb = is_here ? CELL_OWNER_ADD : CELL_OWNER_REMOVE };

	memcpy(step.id, id, CELL_MCP_HANDLE_CHARS);
	return run_owners(server, &step) == 0;
}

/* A server has it, or had it when it was killed. */
static bool is_somewhere(struct cell_mcp_server *server, const char *id)
{
	struct cell__owner_step step = { .verb = CELL_OWNER_FIND };

	memcpy(step.id, id, CELL_MCP_HANDLE_CHARS);
	return run_owners(server, &step) == 0 && *step.url;
}

/* Here: until it is saved. */
static void wait_for_leaving(struct cell__mcp_handle *handle)
{
	struct cell_mcp_server *server = handle->server;
	const struct cell__mcp_handle *leaving;

	pthread_mutex_lock(&server->lock);
	do {
		for (leaving = server->leaving; leaving; leaving = leaving->next) {
			if (leaving != handle && !memcmp(leaving->id, handle->id, CELL_MCP_HANDLE_CHARS))
				break;
		}
		if (leaving)
			pthread_cond_wait(&server->changed, &server->lock);
	} while (leaving);
	pthread_mutex_unlock(&server->lock);
}

/* Without a lock on it, so that others learn nothing of it and do not get into its way. */
static int find_saved(struct cell__mcp_handle *handle, const char *owner, struct cell_error *err)
{
	const struct cell_session_options *options = &handle->server->session;
	int64_t until = cell__now_us() + CONFLICT_US;
	CELL_AUTO_FREE char *found = NULL;
	struct cell_error why;
	int status;

	wait_for_leaving(handle);
	/* A server that ends can no longer be asked, and saves what was never saved. */
	do {
		why = (struct cell_error){ 0 };
		found = cell__durable_owner(options->saved_dir, handle->id, options->saved_key, &why);
	} while (!found && why.code == CELL_E_NOT_FOUND && is_somewhere(handle->server, handle->id) && cell__now_us() < until &&
		 wait_again(handle));
	if (!found && why.code == CELL_E_STORAGE)
		return cell_fail(err, why.code, 0, "%s", why.msg);
	if (!found || strcmp(found, owner))
		return cell__mcp_no_session(handle->id, err);
	pthread_mutex_lock(&handle->server->lock);
	status = cell__mcp_handle_admit(handle, err);
	pthread_mutex_unlock(&handle->server->lock);
	return status;
}

/* Who has it may be about to let go of it. */
static void open_or_wait(struct cell__mcp_handle *handle, const struct cell_session_options *options, struct cell_session **ret_session,
			 struct cell_error *err)
{
	int64_t until = cell__now_us() + CONFLICT_US;

	do {
		*err = (struct cell_error){ 0 };
		cell_session_open(handle->server->engine, options, ret_session, err);
	} while (handle->resumes && err->code == CELL_E_CONFLICT && cell__now_us() < until && wait_again(handle));
}

void cell__mcp_saved_take_id(struct cell__mcp_handle *handle, const struct cell_session *session)
{
	struct cell_mcp_server *server = handle->server;
	bool is_told;

	if (!server->session.saved_dir)
		return;
	is_told = announce(server, cell_session_id(session), true);
	pthread_mutex_lock(&server->lock);
	memcpy(handle->id, cell_session_id(session), CELL_MCP_HANDLE_CHARS);
	handle->unannounced = !is_told;
	pthread_mutex_unlock(&server->lock);
}

void cell__mcp_saved_open(struct cell__mcp_handle *handle, struct cell_session_options *options, struct cell_session **ret_session,
			  struct cell_error *err)
{
	char owner[MAX_SAVED_OWNER];

	if (options->saved_dir) {
		write_owner(handle, owner);
		options->saved_owner = owner;
		options->resume = handle->resumes ? handle->id : handle->is_home ? options->resume : NULL;
		/* No id finds the session of a connection later. */
		if (handle->is_home && !options->resume)
			handle->discards = true;
	}
	if (!handle->resumes || find_saved(handle, owner, err) == 0)
		open_or_wait(handle, options, ret_session, err);
	if (*ret_session)
		cell__mcp_saved_take_id(handle, *ret_session);
}

void cell__mcp_saved_end(struct cell__mcp_handle *handle)
{
	const struct cell_session_options *options = &handle->server->session;
	char owner[MAX_SAVED_OWNER];
	bool is_there = handle->session && options->saved_dir;

	if (is_there && handle->saves && !handle->discards)
		free(cell_session_hibernate(handle->session, NULL)); /* if it cannot be, it ends as it would without a place */
	cell_session_close(handle->session);
	if (is_there && handle->discards) {
		write_owner(handle, owner);
		(void)cell_saved_remove(options->saved_dir, owner, options->saved_key, handle->id, NULL); /* if it was saved at all */
	}
	if (is_there)
		(void)announce(handle->server, handle->id, false); /* what stays is a wrong hint, and costs a request a little */
}
