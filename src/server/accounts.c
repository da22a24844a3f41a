/*
 * Quotas of tokens.  What a token uses is counted by its name, as the ownership of its sessions is.
 *
 *     sessions, runs   counted as they come and go; one more is refused with 429
 *     CPU, disk        measured every other second (sample.c), where there is a quota; past it new cells are refused and running ones
 *                      are stopped like those that take too long: limit_exceeded
 *
 * CPU time is a bucket: a quota of N seconds is used up by N seconds at once, and comes back within an hour, evenly.
 */
#include "server/pool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define HOUR_S 3600.0

struct cell__account *cell__account_get(struct cell_server *server, const struct cell__token *token)
{
	struct cell__account *account = server->accounts;

	while (account && strcmp(account->name, token->name))
		account = account->next;
	if (!account && (account = cell__alloc(1, sizeof(*account)))) {
		struct cell__account_share *share = server->pool ? cell__pool_account(server, token->name) : NULL;

		if (server->pool && !share) {
			free(account);
			return NULL;
		}
		*account = (struct cell__account){ .own_cpu.at_us = cell__now_us(), .share = share, .next = server->accounts };
		account->use = share ? &share->use[server->worker] : &account->own_use;
		account->cpu = share ? &share->cpu : &account->own_cpu;
		strcpy(account->name, token->name);
		server->accounts = account;
	}
	if (account)
		account->quotas = token->quotas;
	return account;
}

static void refuse(struct cell__request *request, struct cell__account *account, int retry_s, const char *words, int64_t max)
{
	char text[CELL_SERVER_MAX_NAME + 160];

	snprintf(text, sizeof(text), "the token \"%s\" %s (quota %lld)", account->name, words, (long long)max);
	request->server->counts.quota_refusals++;
	cell__answer_busy(request, retry_s, text);
}

int cell__account_take_session(struct cell_server *server, struct cell__account *account, struct cell_error *err)
{
	int64_t max = account->quotas.sessions;
	int status = 0;

	cell__pool_lock(server);
	bool is_refused = cell__server_refuses(server) || (server->leaving && !cell__served_can_move(server));

	if (is_refused || CELL_ALL(server, sessions) >= server->limits.max_sessions) {
		status = cell_fail(err, CELL_E_BUSY, 0, "%s",
				   is_refused ? "the server is stopping" : "the maximum number of sessions is open");
	} else if (max >= 0 && CELL_ALL_OF(server, account, sessions) >= max) {
		server->counts.quota_refusals++;
		status = cell_fail(err, CELL_E_BUSY, 0, "the token \"%s\" has as many sessions as it may have (quota %lld)", account->name,
				   (long long)max);
	} else {
		server->use->sessions++;
		account->use->sessions++;
	}
	cell__pool_unlock(server);
	return status;
}

void cell__account_give_session(struct cell_server *server, struct cell__account *account)
{
	server->use->sessions--;
	account->use->sessions--;
}

static void forgive(struct cell__account *account, int64_t now_us)
{
	double seconds = (double)(now_us - account->cpu->at_us) / 1e6;

	if (account->quotas.cpu_s >= 0)
		account->cpu->cpu_s -= seconds * (double)account->quotas.cpu_s / HOUR_S;
	if (account->cpu->cpu_s < 0)
		account->cpu->cpu_s = 0;
	account->cpu->at_us = now_us;
}

static bool is_over_cpu(const struct cell__account *account)
{
	return account->quotas.cpu_s >= 0 && account->cpu->cpu_s >= (double)account->quotas.cpu_s;
}

static bool is_over_disk(const struct cell_server *server, const struct cell__account *account)
{
	return account->quotas.disk_bytes >= 0 && CELL_ALL_OF(server, account, disk_bytes) > account->quotas.disk_bytes;
}

bool cell__account_may_run(struct cell__request *request, struct cell__account *account)
{
	const struct cell__quotas *quotas = &account->quotas;

	if (!strcmp(request->who.name, account->name))
		account->quotas = request->who.quotas; /* they may have changed since the session was opened */
	forgive(account, cell__now_us());
	if (quotas->runs >= 0 && CELL_ALL_OF(request->server, account, runs) >= quotas->runs)
		refuse(request, account, 1, "has as many cells running and waiting as it may have", quotas->runs);
	else if (is_over_cpu(account))
		refuse(request, account,
		       quotas->cpu_s ? 1 + (int)((account->cpu->cpu_s - (double)quotas->cpu_s) * HOUR_S / (double)quotas->cpu_s)
				     : (int)HOUR_S,
		       "has used up its CPU seconds", quotas->cpu_s);
	else if (is_over_disk(request->server, account))
		refuse(request, account, 5, "has too many bytes in the folders of its sessions: end one", quotas->disk_bytes);
	else
		return true;
	return false;
}

bool cell__account_may_store(struct cell__request *request, struct cell__account *account)
{
	if (!strcmp(request->who.name, account->name))
		account->quotas = request->who.quotas;
	if (!request->served->folder || account->quotas.disk_bytes < 0 ||
	    CELL_ALL_OF(request->server, account, disk_bytes) < account->quotas.disk_bytes)
		return true;
	refuse(request, account, 5, "has too many bytes in the folders of its sessions: remove files, or end a session",
	       account->quotas.disk_bytes);
	return false;
}

int cell__account_stored(struct cell_server *server, struct cell__account *account, int64_t bytes, struct cell_error *err)
{
	if (account->quotas.disk_bytes < 0)
		return 0;
	account->use->disk_bytes = account->use->disk_bytes < INT64_MAX - bytes ? account->use->disk_bytes + bytes : INT64_MAX;
	if (!is_over_disk(server, account))
		return 0;
	return cell_fail(err, CELL_E_LIMIT, ENOSPC, "the token \"%s\" may have %lld bytes in the folders of its sessions", account->name,
			 (long long)account->quotas.disk_bytes);
}

/* Counted apart from the cells of clients: the cell of the parent, which waits, is one of those. */
static int take_child_run(struct cell_server *server, struct cell__account *account, struct cell_error *err)
{
	const struct cell__quotas *quotas = &account->quotas;

	forgive(account, cell__now_us());
	if (quotas->runs >= 0 && CELL_ALL_OF(server, account, child_runs) >= quotas->runs)
		return cell_fail(err, CELL_E_BUSY, 0, "the token \"%s\" has as many cells running in children as it may have (quota %lld)",
				 account->name, (long long)quotas->runs);
	if (is_over_cpu(account))
		return cell_fail(err, CELL_E_BUSY, 0, "the token \"%s\" has used up its CPU seconds (quota %lld)", account->name,
				 (long long)quotas->cpu_s);
	if (is_over_disk(server, account))
		return cell_fail(err, CELL_E_BUSY, 0, "the token \"%s\" has too many bytes in the folders of its sessions (quota %lld)",
				 account->name, (long long)quotas->disk_bytes);
	account->use->child_runs++;
	return 0;
}

int cell__account_run_child(struct cell_server *server, struct cell__account *account, struct cell_error *err)
{
	int status;

	cell__pool_lock(server);
	status = take_child_run(server, account, err);
	cell__pool_unlock(server);
	return status;
}

/* CPU time since the last measurement that could be made.  A new kernel begins at 0. */
static double cpu_since(struct cell__served *served)
{
	const struct cell__consumed *now = &served->measured;
	bool same = served->counted_pid == now->pid;
	double since;

	if (!now->known)
		return 0;
	since = now->cpu_s - (same ? served->counted_cpu_s : 0);
	served->counted_pid = now->pid;
	served->counted_cpu_s = now->cpu_s;
	return since > 0 ? since : 0;
}

/* Idle sessions that go on computing, in threads and children, are ended. */
static void stop(struct cell__served *served, const char *limit, int64_t max, int64_t used, bool ends_idle)
{
	struct cell_server *server = served->server;

	if (served->running ? served->running->stopped : !ends_idle)
		return;
	if (served->running)
		served->running->stopped = true;
	server->counts.quota_stops++;
	cell__server_log(server, CELL_LOG_WARN, "%s of \"%s\" is stopped: %s is over its quota (%lld)",
			 served->running ? "a cell" : "a session", served->owner, limit, (long long)max);
	if (served->running)
		cell__session_stop_on_loop(served->session, limit, (uint64_t)max, (uint64_t)used);
	else
		cell__served_end(served);
}

void cell__accounts_measured(struct cell_server *server)
{
	int64_t now_us = cell__now_us();
	struct cell__served *next;

	cell__pool_lock(server);
	for (struct cell__account *account = server->accounts; account; account = account->next) {
		forgive(account, now_us);
		account->use->disk_bytes = 0;
	}
	for (struct cell__served *served = server->sessions; served; served = served->next) {
		struct cell__account *account = served->account;

		served->cpu_since_s = cpu_since(served);
		account->cpu->cpu_s += served->cpu_since_s;
		if (served->measured.disk_bytes > 0 && account->use->disk_bytes < INT64_MAX - served->measured.disk_bytes)
			account->use->disk_bytes += served->measured.disk_bytes;
		else if (served->measured.disk_bytes > 0)
			account->use->disk_bytes = INT64_MAX;
		served->consumed = served->measured;
	}
	cell__pool_unlock(server);
	for (struct cell__served *served = server->sessions; served; served = next) {
		const struct cell__account *account = served->account;

		next = served->next;
		if (!served->session)
			continue;
		if (is_over_cpu(account) && served->cpu_since_s > 0)
			stop(served, "cpu_seconds", account->quotas.cpu_s, (int64_t)account->cpu->cpu_s, true);
		else if (is_over_disk(server, account))
			stop(served, "disk", account->quotas.disk_bytes, CELL_ALL_OF(server, account, disk_bytes), false);
	}
}

void cell__accounts_finish(struct cell_server *server)
{
	struct cell__account *account;

	while ((account = server->accounts)) {
		server->accounts = account->next;
		free(account);
	}
}
