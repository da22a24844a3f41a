/* Counters, as text for Prometheus. */
#include "server/server.h"

#include <stdio.h>
#include <string.h>

#include "executors/executor.h"
#include "server/otlp.h"

/* Upper bounds of the buckets, in seconds; the last has none. */
static const double ends[] = { 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30 };
#define N_ENDS (sizeof(ends) / sizeof(ends[0]))
_Static_assert(N_ENDS + 1 == CELL_SERVER_HISTOGRAM, "one bucket more than ends");

void cell__metrics_observe(struct cell__histogram *histogram, double seconds)
{
	size_t i = 0;

	while (i < N_ENDS && seconds > ends[i])
		i++;
	histogram->buckets[i]++;
	histogram->sum += seconds;
	histogram->count++;
}

void cell__metrics_count(struct cell__request *request, int64_t now_us)
{
	struct cell__counts *counts = &request->server->counts;

	counts->by_class[request->status / 100 < 6 ? request->status / 100 : 0]++;
	cell__metrics_observe(&counts->request_s, (double)(now_us - request->begun_us) / 1e6);
}

static int add_named(struct cell__buf *out, const char *name, const char *type, const char *help, double value)
{
	return cell__buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, value);
}

static int add(struct cell__buf *out, const char *name, const char *type, const char *help, double value)
{
	char whole[64];

	snprintf(whole, sizeof(whole), "workcell_%s", name);
	return add_named(out, whole, type, help, value);
}

static int add_histogram(struct cell__buf *out, const char *name, const char *help, const struct cell__histogram *histogram)
{
	uint64_t sum = 0;
	int rc = cell__buf_printf(out, "# HELP workcell_%s %s\n# TYPE workcell_%s histogram\n", name, help, name);

	for (size_t i = 0; i <= N_ENDS; i++) {
		char end[32] = "+Inf";

		sum += histogram->buckets[i];
		if (i < N_ENDS)
			snprintf(end, sizeof(end), "%g", ends[i]);
		rc |= cell__buf_printf(out, "workcell_%s_bucket{le=\"%s\"} %llu\n", name, end, (unsigned long long)sum);
	}
	return rc | cell__buf_printf(out, "workcell_%s_sum %.9g\nworkcell_%s_count %llu\n", name, histogram->sum, name,
				     (unsigned long long)histogram->count);
}

/* The standard names of Prometheus' clients. */
static int add_process(struct cell__buf *out, const struct cell_server *server)
{
	const struct cell__own_use *own = &server->sampling.own;
	int rc = 0;

	rc |= add_named(out, "process_cpu_seconds_total", "counter", "CPU seconds of the server's process, without its kernels",
			own->cpu_s);
	rc |= add_named(out, "process_resident_memory_bytes", "gauge", "resident memory of the server's process",
			(double)own->memory_bytes);
	rc |= add_named(out, "process_open_fds", "gauge", "open descriptors", (double)own->open_fds);
	rc |= add_named(out, "process_max_fds", "gauge", "descriptors that may be open", (double)own->max_fds);
	rc |= add_named(out, "process_start_time_seconds", "gauge", "start of the server, in seconds since 1970",
			(double)server->started_s);
	return rc;
}

static int add_kernels(struct cell__buf *out, const struct cell_server *server)
{
	const struct cell__executor *executor = cell__executor_find(server->session.executor ? server->session.executor : "subprocess");
	struct cell__executor_counts pool = { 0 };
	int64_t memory = 0, waiting = 0;
	double cpu_s = 0;
	int rc = 0;

	for (const struct cell__served *served = server->sessions; served; served = served->next) {
		memory += served->consumed.memory_bytes;
		cpu_s += served->consumed.cpu_s;
		waiting += served->session ? (int64_t)cell__session_waiting_on_loop(served->session) : 0;
	}
	if (executor && executor->count)
		executor->count(&server->engine->host, &pool);
	rc |= add(out, "kernels_memory_bytes", "gauge", "resident memory of the sessions' processes; shared pages count in each",
		  (double)memory);
	rc |= add(out, "kernels_cpu_seconds", "gauge", "CPU seconds of the processes of open sessions", cpu_s);
	rc |= add(out, "pool_kernels", "gauge", "idle kernels that are ready for a session", (double)pool.ready);
	rc |= add(out, "zygotes", "gauge", "processes that kernels are forked from", (double)pool.zygotes);
	rc |= add(out, "approvals_waiting", "gauge", "calls that wait for an answer", (double)waiting);
	return rc;
}

static int add_points(struct cell__buf *out, const struct cell_server *server)
{
	int64_t bytes, all = 0;
	size_t count = 0;

	for (const struct cell__served *served = server->sessions; served; served = served->next) {
		if (served->session) {
			count += cell__session_kept_on_loop(served->session, &bytes);
			all += bytes;
		}
	}
	return add(out, "points", "gauge", "kept states of sessions", (double)count) |
	       add(out, "point_bytes", "gauge", "memory of kept states, as last measured", (double)all);
}

static int add_speculations(struct cell__buf *out, const struct cell_server *server)
{
	const struct cell_engine *engine = server->engine;

	return add(out, "speculations_total", "counter", "copies of sessions that went on while a call waited for approval",
		   (double)engine->speculations.started) |
	       add(out, "speculations_kept_total", "counter", "of these, copies that became the session",
		   (double)engine->speculations.kept) |
	       add(out, "speculations_dropped_total", "counter", "of these, copies that were dropped",
		   (double)engine->speculations.dropped) |
	       add(out, "speculations_declined_total", "counter", "calls that waited without a copy",
		   (double)engine->speculations.declined);
}

static int add_accounts(struct cell__buf *out, const struct cell_server *server)
{
	int rc = cell__buf_add_str(out, "# HELP workcell_token_sessions open sessions by token\n# TYPE workcell_token_sessions gauge\n");

	for (const struct cell__account *account = server->accounts; account; account = account->next) {
		rc |= cell__buf_add_str(out, "workcell_token_sessions{token=");
		rc |= cell__buf_add_json_string(out, account->name, strlen(account->name));
		rc |= cell__buf_printf(out, "} %lld\n", (long long)account->use->sessions);
	}
	return rc;
}

char *cell__metrics(struct cell_server *server)
{
	const struct cell__counts *counts = &server->counts;
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	int rc = 0;

	rc |= add(&out, "uptime_seconds", "gauge", "seconds since the start", (double)(cell__now_us() - server->started_us) / 1e6);
	rc |= add(&out, "sessions", "gauge", "sessions open now", (double)server->use->sessions);
	rc |= add(&out, "sessions_opened_total", "counter", "sessions opened", (double)counts->sessions_opened);
	rc |= add(&out, "sessions_expired_total", "counter", "sessions that expired unused", (double)counts->sessions_expired);
	rc |= add(&out, "sessions_hibernated_total", "counter", "sessions that were saved and have no process",
		  (double)counts->sessions_hibernated);
	rc |= add(&out, "sessions_woken_total", "counter", "saved sessions that a request has woken", (double)counts->sessions_woken);
	rc |= add(&out, "draining", "gauge", "1: told to stop, and not ready", server->leaving);
	rc |= add(&out, "storage_lost", "gauge", "1: the storage did not answer when it was last asked", (double)server->use->lost_storage);
	rc |= add(&out, "requests_forwarded_total", "counter", "requests for sessions of other servers that were passed on to them",
		  (double)counts->forwarded);
	rc |= add(&out, "runs_running", "gauge", "cells running now", (double)server->use->running);
	rc |= add(&out, "runs_waiting", "gauge", "cells waiting to run", (double)server->use->queued);
	rc |= add(&out, "batches", "gauge", "batches running or kept", (double)server->n_batches);
	rc |= add(&out, "batch_runs_waiting", "gauge", "runs of batches that have not started", (double)cell__batches_waiting(server));
	rc |= add(&out, "tasks", "gauge", "tasks running or kept", (double)server->n_tasks);
	rc |= add(&out, "tasks_running", "gauge", "tasks running now", (double)server->tasks_running);
	rc |= add(&out, "runs_total", "counter", "cells finished", (double)counts->runs);
	rc |= add(&out, "runs_failed_total", "counter", "cells finished with an error", (double)counts->runs_failed);
	rc |= add(&out, "requests_in_flight", "gauge", "requests being handled", (double)counts->in_flight);
	rc |= add(&out, "auth_failures_total", "counter", "requests without a valid token", (double)counts->auth_failures);
	rc |= add(&out, "busy_total", "counter", "requests refused because of a limit", (double)counts->busy);
	rc |= add(&out, "slow_clients_total", "counter", "connections closed because they were slow", (double)counts->slow_clients);
	rc |= add(&out, "evicted_guests_total", "counter", "connections without a token closed to make room for others",
		  (double)server->guests.evicted);
	rc |= add(&out, "kept_event_bytes", "gauge", "bytes of kept events of ended runs", (double)server->ended_bytes);
	rc |= cell__buf_add_str(&out, "# HELP workcell_requests_total requests by status class\n# TYPE workcell_requests_total counter\n");
	for (int i = 1; i < 6; i++)
		rc |= cell__buf_printf(&out, "workcell_requests_total{status=\"%dxx\"} %llu\n", i, (unsigned long long)counts->by_class[i]);
	rc |= add_histogram(&out, "request_seconds", "seconds from request header to answer", &counts->request_s);
	rc |= add_histogram(&out, "run_seconds", "seconds that cells ran", &counts->run_s);
	rc |= add_histogram(&out, "run_wait_seconds", "seconds that cells waited to run", &counts->wait_s);
	rc |= add(&out, "tool_calls_total", "counter", "tool calls of cells that have ended", (double)counts->calls);
	rc |= add(&out, "tool_calls_failed_total", "counter", "tool calls of cells that failed or were refused",
		  (double)counts->calls_failed);
	rc |= add(&out, "tool_call_seconds_total", "counter", "seconds that tool calls of cells took", counts->calls_s);
	rc |= add(&out, "approvals_total", "counter", "calls of cells that had to be approved", (double)counts->approvals);
	rc |= add(&out, "approvals_accepted_total", "counter", "of these, accepted", (double)counts->approvals_accepted);
	rc |= add(&out, "approvals_rejected_total", "counter", "of these, rejected by a person", (double)counts->approvals_rejected);
	rc |= add(&out, "approvals_expired_total", "counter", "of these, not answered in time", (double)counts->approvals_expired);
	rc |= add(&out, "quota_refusals_total", "counter", "requests refused because of a token's quota", (double)counts->quota_refusals);
	rc |= add(&out, "quota_stops_total", "counter", "cells and sessions stopped because of a token's quota",
		  (double)counts->quota_stops);
	if (server->tracing.otlp)
		rc |= add(&out, "spans_lost_total", "counter", "spans that the receiver of OpenTelemetry did not take",
			  (double)cell__otlp_lost(server->tracing.otlp));
	rc |= add_kernels(&out, server);
	rc |= add_points(&out, server);
	rc |= add_speculations(&out, server);
	rc |= add_accounts(&out, server);
	rc |= add_process(&out, server);
	return rc ? NULL : cell__buf_take(&out);
}
