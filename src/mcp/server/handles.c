/*
 * Sessions with ids, which belong to the server and not to a connection: a client names the session that it wants to use, from any
 * connection with the same principal.
 *
 *     made ── first cell, or wanted ──▶ open ── close, or room for another ──▶ closing ── no users ──▶ gone
 *
 * A handle has users: jobs, and threads that use its session just now.  Its thread (cells.c) opens the session, runs the cells, and closes
 * it when it is closing and the last user has gone.  A handle with users is not made to go for another.
 *
 * Where sessions are saved (saved_dir), one that goes is saved first, unless it was closed, and its id finds it again: at this server, later, or at
 * any other one of the same storage.  Such a handle is made for the call that names it, and counts when its session was found.
 *
 * Room.  Past max_sessions the principal with the most sessions loses the one that was idle for longest, counting the session that is about
 * to be made.  So a principal that never closes its sessions pushes out its own, and nobody can take more than an equal share for long.
 */
#include "mcp/server/server.h"

#include <string.h>
#include <time.h>

/* The sessions of one principal. */
struct share {
	const char *owner;
	size_t count;
	struct cell__mcp_handle *idlest; /* NULL: all are in use */
};

void cell__mcp_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

void cell__mcp_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_us)
{
	struct timespec until = { .tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000 };

	pthread_cond_timedwait(cond, lock, &until);
}

static struct cell__mcp_handle *find_idlest(struct cell_mcp_server *server, const char *owner)
{
	struct share *shares = cell__alloc(server->n_handles + 1, sizeof(*shares)), *largest = NULL;
	struct cell__mcp_handle *idlest;
	size_t n = 1, i;

	if (!shares)
		return NULL;
	shares[0] = (struct share){ .owner = owner, .count = 1 };
	for (struct cell__mcp_handle *handle = server->handles; handle; handle = handle->next) {
		if (!handle->counted)
			continue;
		for (i = 0; i < n && strcmp(shares[i].owner, handle->owner); i++)
			;
		if (i == n)
			shares[n++] = (struct share){ .owner = handle->owner };
		shares[i].count++;
		if (!handle->users && (!shares[i].idlest || handle->seen_us < shares[i].idlest->seen_us))
			shares[i].idlest = handle;
	}
	for (i = 0; i < n; i++) {
		if (shares[i].idlest && (!largest || shares[i].count > largest->count))
			largest = &shares[i];
	}
	idlest = largest ? largest->idlest : NULL;
	free(shares);
	return idlest;
}

static int make_room(struct cell_mcp_server *server, const char *owner, struct cell_error *err)
{
	struct cell__mcp_handle *idlest;

	while ((int64_t)server->n_handles >= server->opts.max_sessions) {
		idlest = find_idlest(server, owner);
		if (!idlest)
			return cell_fail(err, CELL_E_BUSY, 0, "all %lld sessions are in use; wait for a cell to end, or close a session",
					 (long long)server->opts.max_sessions);
		cell__mcp_handle_close(idlest);
	}
	return 0;
}

/* Looking for sessions costs a thread each, and no room. */
static int check_resuming(const struct cell_mcp_server *server, struct cell_error *err)
{
	size_t n = 0;

	for (const struct cell__mcp_handle *handle = server->handles; handle; handle = handle->next)
		n += handle->resumes && !handle->counted;
	return n < CELL_MCP_MAX_RESUMING ? 0 : cell_fail(err, CELL_E_BUSY, 0, "too many saved sessions are looked for; try again");
}

struct cell__mcp_handle *cell__mcp_handle_create(struct cell_mcp_server *server, const char *owner, struct cell__mcp_peer *home,
						 const char *resume, struct cell_error *err)
{
	struct cell__mcp_handle *handle;
	pthread_attr_t attr;
	pthread_t thread;
	int status;

	if ((resume && check_resuming(server, err) < 0) || (!home && !resume && make_room(server, owner, err) < 0))
		return NULL;
	handle = cell__alloc(1, sizeof(*handle));
	if (!handle) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
		return NULL;
	}
	*handle = (struct cell__mcp_handle){ .server = server,
					     .serial = ++server->next_serial,
					     .home = home,
					     .host = home,
					     .is_home = home,
					     .counted = !home && !resume,
					     .resumes = resume,
					     .wanted = resume,
					     .saves = server->session.saved_dir && !home,
					     .seen_us = cell__now_us(),
					     .next = server->handles };
	if (resume)
		memcpy(handle->id, resume, CELL_MCP_HANDLE_CHARS);
	else
		cell__random_hex(handle->id, CELL_MCP_HANDLE_CHARS);
	snprintf(handle->owner, sizeof(handle->owner), "%s", owner);
	cell__mcp_cond_init(&handle->changed);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	status = pthread_create(&thread, &attr, cell__mcp_cells_main, handle);
	pthread_attr_destroy(&attr);
	if (status) {
		pthread_cond_destroy(&handle->changed);
		free(handle);
		cell_fail(err, CELL_E_IO, status, "cannot start a thread for the cells");
		return NULL;
	}
	server->handles = handle;
	server->n_handles += handle->counted;
	if (home)
		home->n_homes++;
	server->n_threads++;
	return handle;
}

int cell__mcp_handle_admit(struct cell__mcp_handle *handle, struct cell_error *err)
{
	if (handle->counted || handle->is_home || handle->closing)
		return 0;
	if (make_room(handle->server, handle->owner, err) < 0)
		return -1;
	handle->counted = true;
	handle->server->n_handles++;
	return 0;
}

int cell__mcp_no_session(const char *id, struct cell_error *err)
{
	return cell_fail(err, CELL_E_NOT_FOUND, 0,
			 "no session '%.40s': it was closed, has expired, or never was; leave `session` out of run_code to begin a new one",
			 id);
}

bool cell__mcp_knows(struct cell_mcp_server *server, const char *id)
{
	const struct cell__mcp_handle *handle;
	bool found;

	pthread_mutex_lock(&server->lock);
	for (handle = server->handles; handle && memcmp(handle->id, id, CELL_MCP_HANDLE_CHARS); handle = handle->next)
		;
	found = handle || cell__mcp_parked_of(server, id);
	pthread_mutex_unlock(&server->lock);
	return found;
}

struct cell__mcp_handle *cell__mcp_handle_find(struct cell_mcp_server *server, const char *owner, const char *id, size_t size)
{
	struct cell__mcp_handle *handle = size == CELL_MCP_HANDLE_CHARS ? server->handles : NULL;

	while (handle && (handle->is_home || strcmp(handle->owner, owner) || memcmp(handle->id, id, CELL_MCP_HANDLE_CHARS)))
		handle = handle->next;
	return handle;
}

struct cell__mcp_handle *cell__mcp_handle_by_serial(struct cell_mcp_server *server, uint64_t serial)
{
	struct cell__mcp_handle *handle = server->handles;

	while (handle && handle->serial != serial)
		handle = handle->next;
	return handle;
}

struct cell__mcp_handle *cell__mcp_handle_home(struct cell__mcp_peer *peer, struct cell_error *err)
{
	if (!peer->home) {
		peer->home = cell__mcp_handle_create(peer->server, peer->owner, peer, NULL, err);
		if (peer->home)
			peer->home->asks = peer->elicits;
	}
	return peer->home;
}

void cell__mcp_handle_unuse(struct cell__mcp_handle *handle)
{
	handle->seen_us = cell__now_us();
	if (!--handle->users && (handle->closing || handle->saves))
		pthread_cond_broadcast(&handle->changed);
}

void cell__mcp_handle_close(struct cell__mcp_handle *handle)
{
	struct cell__mcp_handle **at = &handle->server->handles;

	if (handle->closing)
		return;
	while (*at != handle)
		at = &(*at)->next;
	*at = handle->next;
	handle->next = handle->server->leaving;
	handle->server->leaving = handle;
	handle->server->n_handles -= handle->counted;
	handle->counted = false;
	if (handle->home)
		handle->home->home = NULL;
	handle->home = NULL;
	handle->closing = true;
	pthread_cond_broadcast(&handle->changed);
	pthread_cond_broadcast(&handle->server->changed); /* calls of it may wait for a command, or a job */
}

void cell__mcp_handle_stop(struct cell__mcp_handle *handle, bool kill)
{
	struct cell_mcp_server *server = handle->server;
	struct cell_session *session;
	uint64_t run_id;

	pthread_mutex_lock(&server->lock);
	session = handle->running ? handle->session : NULL;
	run_id = handle->run_id;
	pthread_mutex_unlock(&server->lock);
	if (session && kill && (!handle->saves || handle->discards))
		cell_session_reset(session, NULL);
	else if (session)
		cell_session_cancel(session, run_id, NULL);
}

void cell__mcp_handles_end(struct cell_mcp_server *server)
{
	struct cell__mcp_handle *handle;

	pthread_mutex_lock(&server->lock);
	while ((handle = server->handles)) {
		handle->users++;
		cell__mcp_handle_close(handle);
		pthread_mutex_unlock(&server->lock);
		cell__mcp_handle_stop(handle, true);
		pthread_mutex_lock(&server->lock);
		cell__mcp_handle_unuse(handle);
	}
	while (server->n_threads)
		pthread_cond_wait(&server->changed, &server->lock);
	pthread_mutex_unlock(&server->lock);
}

struct cell_session *cell__mcp_handle_session(struct cell__mcp_handle *handle, struct cell_error *err)
{
	struct cell_session *session;

	pthread_mutex_lock(&handle->server->lock);
	handle->wanted = true;
	pthread_cond_broadcast(&handle->changed);
	while (!handle->opened && !handle->closing)
		pthread_cond_wait(&handle->changed, &handle->server->lock);
	session = handle->closing ? NULL : handle->session;
	*err = handle->open_error;
	if (!session && !err->code)
		cell_fail(err, CELL_E_CLOSED, 0, "the session was closed");
	pthread_mutex_unlock(&handle->server->lock);
	return session;
}
