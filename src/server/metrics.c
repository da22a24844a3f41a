/* Counters, as text for Prometheus. */
#include "server/server.h"

#include <stdio.h>

/* Upper bounds of the buckets of requests' seconds; the last has none. */
static const double ends[] = { 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30 };
#define N_ENDS (sizeof(ends) / sizeof(ends[0]))

static void count_seconds(struct cell__counts *counts, double seconds)
{
	size_t i = 0;

	while (i < N_ENDS && seconds > ends[i])
		i++;
	counts->seconds_buckets[i]++;
	counts->seconds_sum += seconds;
	counts->seconds_count++;
}

void cell__metrics_count(struct cell__request *request, int64_t now_us)
{
	struct cell__counts *counts = &request->server->counts;

	counts->by_class[request->status / 100 < 6 ? request->status / 100 : 0]++;
	count_seconds(counts, (double)(now_us - request->begun_us) / 1e6);
}

static int add(struct cell__buf *out, const char *name, const char *type, const char *help, double value)
{
	return cell__buf_printf(out, "# HELP workcell_%s %s\n# TYPE workcell_%s %s\nworkcell_%s %.17g\n", name, help, name, type, name,
				value);
}

char *cell__metrics(struct cell_server *server)
{
	const struct cell__counts *counts = &server->counts;
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	uint64_t sum = 0;
	int rc = 0;

	rc |= add(&out, "uptime_seconds", "gauge", "seconds since the start", (double)(cell__now_us() - server->started_us) / 1e6);
	rc |= add(&out, "sessions", "gauge", "sessions open now", (double)server->n_sessions);
	rc |= add(&out, "sessions_opened_total", "counter", "sessions opened", (double)counts->sessions_opened);
	rc |= add(&out, "sessions_expired_total", "counter", "sessions that expired unused", (double)counts->sessions_expired);
	rc |= add(&out, "runs_running", "gauge", "cells running now", (double)server->n_running);
	rc |= add(&out, "runs_waiting", "gauge", "cells waiting to run", (double)server->n_queued);
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
	rc |= cell__buf_add_str(
		&out, "# HELP workcell_request_seconds seconds from request header to answer\n# TYPE workcell_request_seconds histogram\n");
	for (size_t i = 0; i <= N_ENDS; i++) {
		char end[32] = "+Inf";

		sum += counts->seconds_buckets[i];
		if (i < N_ENDS)
			snprintf(end, sizeof(end), "%g", ends[i]);
		rc |= cell__buf_printf(&out, "workcell_request_seconds_bucket{le=\"%s\"} %llu\n", end, (unsigned long long)sum);
	}
	rc |= cell__buf_printf(&out, "workcell_request_seconds_sum %.9g\nworkcell_request_seconds_count %llu\n", counts->seconds_sum,
			       (unsigned long long)counts->seconds_count);
	return rc ? NULL : cell__buf_take(&out);
}
