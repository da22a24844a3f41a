/*
 * The memory of points, and the news of branches.
 *
 *     loop: lists the pids of a session's points ──▶ pool: reads /proc ──▶ loop: bytes of each point; the oldest are dropped
 *
 * A point's share is counted: a page that only points have, also where several of them have it, is memory that they cost.  One measurement
 * of a session at a time; without a budget at most one a second, because each walks over the page tables of every point.
 */
#include "session/session.h"

#include <stdlib.h>
#include <string.h>

#include "gate/audit.h"
#include "spawn/proc.h"

#define PAUSE_US 1000000

struct measured {
	uint64_t number; /* of the point */
	int64_t pid, bytes;
};

struct measuring {
	uv_work_t work; /* its data is this */
	struct cell_session *session;
	size_t n;
	struct measured points[];
};

/* ---- news ---- */

void cell__branch_tell(struct cell_session *session, json_t *news)
{
	cell__branch_tell_as(session, &cell__principal_host, news);
}

void cell__branch_tell_as(struct cell_session *session, const struct cell__principal *principal, json_t *news)
{
	CELL_AUTO_FREE char *text = news ? json_dumps(news, JSON_COMPACT) : NULL;
	if (text) {
		struct cell_event event = { .type = CELL_EVENT_BRANCH, .data = text, .size = strlen(text) };
		cell__session_emit(session, &event);
	}
	if (text && session->options.audit) {
		struct cell__audit_record record = { .session_id = session->id,
						     .cell_hash = session->cell_hash[0] ? session->cell_hash : NULL,
						     .kind = "branch",
						     .tool = "session",
						     .callable = json_string_value(json_object_get(news, "kind")),
						     .adapter = "kernel",
						     .executor = session->executor->name,
						     .principal = cell__principal_word(principal),
						     .args = news,
						     .decision = CELL__AUDIT_ALLOW,
						     .by = CELL__AUDIT_BY_HOST };
		struct cell_error err;
		if (cell__audit_write(cell__audit_of(session->options.audit), &record, NULL, NULL, &err) < 0)
			session->engine->host.log(session->engine->host.log_arg, CELL_LOG_WARN, "the audit log lacks a record: %s",
						  err.msg);
	}
	json_decref(news);
}

/* ---- measuring ---- */

static bool counts(const struct cell__point *point)
{
	return point->ready && !point->leaving && !point->gone;
}

size_t cell__branch_points(const struct cell_session *session, int64_t *ret_bytes)
{
	size_t n = 0;
	*ret_bytes = 0;
	for (const struct cell__point *point = session->points; point; point = point->next)
		if (counts(point)) {
			n++;
			*ret_bytes += point->bytes;
		}
	return n;
}

char *cell__branch_receipt(const struct cell_session *session, char *receipt)
{
	int64_t bytes;
	size_t n = cell__branch_points(session, &bytes);
	const char *text = receipt ? receipt : session->executor->receipt;
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	if (!text || (n == 0 && !session->options.speculate) || cell__buf_printf(&out, "%.*s", (int)strlen(text) - 1, text) < 0)
		return receipt;
	if (n > 0 && cell__buf_printf(&out, ",\"points\":{\"count\":%zu,\"bytes\":%lld}", n, (long long)bytes) < 0)
		return receipt;
	if (session->options.speculate) {
		const char *obstacle = cell__speculation_obstacle(session);
		json_t *said = json_string(obstacle ? obstacle : "on");
		CELL_AUTO_FREE char *quoted = said ? json_dumps(said, JSON_ENCODE_ANY) : NULL;
		json_decref(said);
		if (!quoted || cell__buf_printf(&out, ",\"speculation\":%s", quoted) < 0)
			return receipt;
	}
	if (cell__buf_add(&out, "}", 1) < 0)
		return receipt;
	free(receipt);
	return cell__buf_take(&out);
}

static struct cell__point *oldest_of(const struct cell_session *session)
{
	struct cell__point *oldest = NULL;
	for (struct cell__point *point = session->points; point; point = point->next)
		if (counts(point))
			oldest = point;
	return oldest;
}

static void drop(struct cell__point *point, const char *whose, int64_t budget)
{
	struct cell_session *session = point->session;
	const struct cell__executor_host *host = &session->engine->host;
	host->log(host->log_arg, CELL_LOG_WARN,
		  "session %s: the point \"%.60s\" was dropped: points take more than the %lld bytes of the %s", session->id, point->name,
		  (long long)budget, whose);
	json_t *news = json_pack("{s:s, s:s, s:I, s:s}", "kind", "dropped", "name", point->name, "bytes", (json_int_t)point->bytes,
				 "budget", whose);
	cell__branch_leave_point(point);
	cell__branch_tell(session, news);
}

/* The oldest points go first. */
static void keep_budgets(struct cell_session *session)
{
	int64_t budget = session->options.points_bytes, bytes, all;
	struct cell__point *oldest;
	while (budget > 0 && cell__branch_points(session, &bytes) > 0 && bytes > budget && (oldest = oldest_of(session)))
		drop(oldest, "session", budget);
	budget = session->engine->points_bytes;
	while (budget > 0) {
		oldest = NULL;
		all = 0;
		for (struct cell_session *other = session->engine->sessions; other; other = other->next) {
			struct cell__point *point = oldest_of(other);
			(void)cell__branch_points(other, &bytes);
			all += bytes;
			if (point && (!oldest || point->taken_us < oldest->taken_us))
				oldest = point;
		}
		if (all <= budget || !oldest)
			return;
		drop(oldest, "engine", budget);
	}
}

static void do_measure(uv_work_t *work)
{
	struct measuring *measuring = work->data;
	for (size_t i = 0; i < measuring->n; i++)
		if (measuring->points[i].bytes < 0)
			measuring->points[i].bytes = cell__proc_shared_bytes((pid_t)measuring->points[i].pid);
}

static void handle_measured(uv_work_t *work, int status)
{
	struct measuring *measuring = work->data;
	struct cell_session *session = measuring->session;
	(void)status;
	session->measuring = false;
	session->measured_us = cell__now_us();
	for (size_t i = 0; i < measuring->n; i++)
		for (struct cell__point *point = session->points; point; point = point->next)
			if (point->number == measuring->points[i].number && measuring->points[i].bytes >= 0)
				point->bytes = measuring->points[i].bytes;
	free(measuring);
	if (!session->closing)
		keep_budgets(session);
	if (session->measure_again && !session->closing)
		cell__branch_measure(session);
	cell__session_advance(session);
}

void cell__branch_measure(struct cell_session *session)
{
	bool limited = session->options.points_bytes > 0 || session->engine->points_bytes > 0;
	int64_t bytes;
	size_t n = cell__branch_points(session, &bytes), at = 0;
	session->measure_again = session->measuring;
	if (n == 0 || session->measuring || (!limited && cell__now_us() - session->measured_us < PAUSE_US))
		return;
	struct measuring *measuring = cell__alloc(1, sizeof *measuring + n * sizeof *measuring->points);
	if (!measuring)
		return; /* with the next point */
	measuring->work.data = measuring;
	measuring->session = session;
	measuring->n = n;
	for (const struct cell__point *point = session->points; point; point = point->next)
		if (counts(point))
			measuring->points[at++] = (struct measured){
				.number = point->number,
				.pid = session->executor->pid(point->kernel),
				.bytes = session->executor->kept ? session->executor->kept(point->kernel) : -1,
			};
	session->measuring = uv_queue_work(cell__loop_uv(session->engine->loop), &measuring->work, do_measure, handle_measured) == 0;
	if (!session->measuring)
		free(measuring);
}
