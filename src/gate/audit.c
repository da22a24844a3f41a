/*
 * Theory of operation.  Items, each a record on its way, wait in a list.  While a job is on the pool, it owns the
 * items of `batch` and the file, and nothing else; the loop adds to the list in the meantime.  Items that a job could
 * not write go back to the front of the list.
 *
 *             write()                        all written
 *     idle ───────────▶ job on the pool ────────────────────▶ idle
 *      ▲                     │ failed
 *      └──── job ◀── timer ──┴── failing: every write() and the timer try again
 *
 * Closing: the items get one more try; then the rest is lost and counted, the timers are closed, closed() is called.
 */
#define _GNU_SOURCE
#include "gate/audit.h"

#include <errno.h>
#include <string.h>

struct cell__audit_log {
	struct cell__loop *loop;
	struct cell__redactor *redactor;
	enum cell__audit_log_sync sync;
	int64_t sync_ms;
	size_t queue_bytes;
	bool fail_closed;
	void (*log)(void *arg, enum cell_log_level level, const char *fmt, ...);
	void *log_arg;
	struct cell__audit_file file; /* belongs to the job while it runs */
	/* waiting */
	struct cell__audit_item *first, **last;
	size_t cost;         /* of all that are not written */
	uint64_t lost_now;   /* refused since the log last recorded it */
	/* the job */
	uv_work_t work;
	bool busy;
	struct cell__audit_item *batch;
	bool batch_sync;     /* the file is to be synced besides */
	int batch_error;
	bool told_rotate;    /* that it cannot be rotated has been logged */
	/* afterwards */
	bool dirty;          /* SYNC_INTERVAL: written and not synced */
	bool sync_due;       /* and for long enough */
	int64_t retry_ms;
	uv_timer_t retry_timer, sync_timer;
	struct cell__audit_stats stats;
	bool closing, last_try;
	int closes_left;
	void (*closed)(void *arg);
	void *closed_arg;
};

static void start_job(struct cell__audit_log *audit);

/* ---- the job; on the pool ---- */

static int make_lines(struct cell__audit_log *audit, struct cell__buf **ret_lines, size_t *ret_count)
{
	size_t count = 0;
	for (struct cell__audit_item *item = audit->batch; item; item = item->next)
		count++;
	struct cell__buf *lines = cell__alloc(count, sizeof *lines);
	if (!lines)
		return ENOMEM;
	size_t i = 0;
	for (struct cell__audit_item *item = audit->batch; item; item = item->next) {
		if (cell__audit_item_make_line(item, audit->redactor) < 0) {
			free(lines);
			return ENOMEM;
		}
		lines[i++] = item->line; /* borrowed */
	}
	*ret_lines = lines;
	*ret_count = count;
	return 0;
}

static void do_job(uv_work_t *work)
{
	struct cell__audit_log *audit = work->data;
	struct cell__buf *lines = NULL;
	size_t count = 0, done = 0;
	int rc = audit->batch ? make_lines(audit, &lines, &count) : 0;
	if (rc == 0 && count > 0)
		rc = cell__audit_file_append(&audit->file, lines, count, audit->sync == CELL__AUDIT_SYNC_ALWAYS, &done);
	free(lines);
	for (struct cell__audit_item *item = audit->batch; item && done > 0; item = item->next, done--)
		item->done = true;
	if (rc == 0 && audit->batch_sync)
		rc = cell__audit_file_sync(&audit->file);
	audit->batch_error = rc;
}

/* ---- the outcome of a job ---- */

static void note_failure(struct cell__audit_log *audit, int error)
{
	audit->stats.failures++;
	audit->stats.error = error;
	if (!audit->stats.failing && audit->log)
		audit->log(audit->log_arg, CELL_LOG_ERROR, "the audit log %s cannot be written: %s%s", audit->file.path,
			   strerrordesc_np(error), audit->fail_closed ? "; calls are refused until it can be written" : "");
	audit->stats.failing = true;
}

static void note_success(struct cell__audit_log *audit)
{
	if (audit->stats.failing && audit->log)
		audit->log(audit->log_arg, CELL_LOG_WARN, "the audit log %s can be written again", audit->file.path);
	audit->stats.failing = false;
	audit->retry_ms = CELL__AUDIT_RETRY_MS;
	bool grows = audit->file.rotate_error != 0;
	if (grows && !audit->told_rotate && audit->log)
		audit->log(audit->log_arg, CELL_LOG_WARN, "the audit log %s cannot be rotated and keeps growing: %s", audit->file.path,
			   strerrordesc_np(audit->file.rotate_error));
	audit->told_rotate = grows;
}

/* Puts unwritten items back in front and reports the state once. */
static void settle(struct cell__audit_log *audit, int error)
{
	struct cell__audit_item *told = audit->batch, *kept = NULL, **end = &kept;
	audit->batch = NULL;
	for (struct cell__audit_item *item = told, *next; item; item = next) {
		next = item->next;
		void (*written)(void *, int) = item->written;
		void *arg = item->arg;
		item->written = NULL;
		bool done = item->done;
		if (done) {
			audit->stats.written++;
			audit->cost -= item->cost;
			cell__audit_item_destroy(item);
		} else {
			audit->cost -= item->cost;
			cell__audit_item_shrink(item);
			audit->cost += item->cost;
			*end = item;
			end = &item->next;
			item->next = NULL;
		}
		if (written)
			written(arg, done ? 0 : -error);
	}
	/* The callbacks may have added to the queue: older items come before those. */
	if (kept) {
		*end = audit->first;
		if (!audit->first)
			audit->last = end;
		audit->first = kept;
	}
}

static void handle_closed(uv_handle_t *handle)
{
	struct cell__audit_log *audit = handle->data;
	if (--audit->closes_left > 0)
		return;
	void (*closed)(void *) = audit->closed;
	void *arg = audit->closed_arg;
	cell__audit_file_finish(&audit->file);
	cell__redactor_destroy(audit->redactor);
	free(audit);
	closed(arg);
}

static void give_up(struct cell__audit_log *audit)
{
	uint64_t left = 0;
	for (struct cell__audit_item *item = audit->first, *next; item; item = next, left++) {
		next = item->next;
		cell__audit_item_destroy(item);
	}
	audit->first = NULL;
	audit->stats.lost += left;
	left += audit->lost_now;
	if (left > 0 && audit->log)
		audit->log(audit->log_arg, CELL_LOG_ERROR, "lost %llu records of the audit log %s: %s", (unsigned long long)left,
			   audit->file.path, strerrordesc_np(audit->stats.error));
	audit->closes_left = 2;
	uv_close((uv_handle_t *)&audit->retry_timer, handle_closed);
	uv_close((uv_handle_t *)&audit->sync_timer, handle_closed);
}

static void add_item(struct cell__audit_log *audit, struct cell__audit_item *item)
{
	*audit->last = item;
	audit->last = &item->next;
	audit->cost += item->cost;
}

/* Records in the log itself that records are missing. */
static void tell_lost(struct cell__audit_log *audit)
{
	struct cell__audit_item *item = cell__audit_item_create_lost(audit->lost_now, audit->stats.error);
	if (!item)
		return;
	audit->lost_now = 0;
	add_item(audit, item);
}

static void handle_retry(uv_timer_t *timer)
{
	start_job(timer->data);
}

static void handle_sync(uv_timer_t *timer)
{
	struct cell__audit_log *audit = timer->data;
	audit->sync_due = true;
	start_job(audit);
}

static void wait_for_retry(struct cell__audit_log *audit)
{
	uv_timer_start(&audit->retry_timer, handle_retry, (uint64_t)audit->retry_ms, 0);
	audit->retry_ms *= 2;
	if (audit->retry_ms > CELL__AUDIT_RETRY_MAX_MS)
		audit->retry_ms = CELL__AUDIT_RETRY_MAX_MS;
}

static void handle_done(uv_work_t *work, int status)
{
	(void)status; /* never cancelled */
	struct cell__audit_log *audit = work->data;
	int error = audit->batch_error;
	uint64_t before = audit->stats.written;
	if (error)
		note_failure(audit, error);
	else
		note_success(audit);
	if (audit->batch_sync && !error)
		audit->dirty = audit->sync_due = false;
	settle(audit, error); /* still busy: a write() from a callback only queues */
	audit->busy = false;
	audit->dirty |= audit->sync == CELL__AUDIT_SYNC_INTERVAL && audit->stats.written > before && (!audit->batch_sync || error);
	if (!error && audit->lost_now > 0)
		tell_lost(audit);
	bool more = audit->first || (audit->dirty && (audit->sync_due || audit->closing));
	if (audit->closing && (error ? audit->last_try : !more))
		give_up(audit);
	else if (audit->closing || (more && !error))
		start_job(audit);
	else if (error)
		wait_for_retry(audit);
	else if (audit->dirty && !uv_is_active((uv_handle_t *)&audit->sync_timer))
		uv_timer_start(&audit->sync_timer, handle_sync, (uint64_t)audit->sync_ms, 0);
}

static void start_job(struct cell__audit_log *audit)
{
	if (audit->busy)
		return;
	uv_timer_stop(&audit->retry_timer);
	audit->batch = audit->first;
	audit->first = NULL;
	audit->last = &audit->first;
	audit->batch_sync = audit->dirty && (audit->sync_due || audit->closing);
	audit->last_try = audit->closing;
	audit->busy = true;
	if (uv_queue_work(cell__loop_uv(audit->loop), &audit->work, do_job, handle_done) < 0)
		abort(); /* libuv: only without a function to call */
}

/* ---- open, write, close ---- */

static int check(const struct cell__audit_log_options *opts, struct cell_error *err)
{
	if (!opts->path || !*opts->path)
		return cell_fail(err, CELL_E_INVALID, 0, "the audit log needs a path");
	if (opts->max_bytes != 0 && opts->max_bytes < CELL__AUDIT_LIMIT_MIN_FILE)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "the rotation size of the audit log must be at least %d bytes, or 0 for no rotation",
				 CELL__AUDIT_LIMIT_MIN_FILE);
	if (opts->keep < 1 || opts->keep > CELL__AUDIT_LIMIT_KEEP)
		return cell_fail(err, CELL_E_INVALID, 0, "the number of rotated audit log files to keep must be 1 to %d",
				 CELL__AUDIT_LIMIT_KEEP);
	if (opts->sync == CELL__AUDIT_SYNC_INTERVAL && opts->sync_ms < 1)
		return cell_fail(err, CELL_E_INVALID, 0, "the sync interval of the audit log must be at least 1 ms");
	if (opts->queue_bytes < CELL__AUDIT_LIMIT_MIN_FILE)
		return cell_fail(err, CELL_E_INVALID, 0, "the queue of the audit log must have at least %d bytes",
				 CELL__AUDIT_LIMIT_MIN_FILE);
	return 0;
}

int cell__audit_log_open(const struct cell__audit_log_options *opts, struct cell__audit_log **ret_audit, struct cell_error *err)
{
	if (check(opts, err) < 0)
		return -1;
	struct cell__redactor *redactor = NULL;
	if (cell__redactor_create(opts->redact, &redactor, err) < 0)
		return -1;
	struct cell__audit_log *audit = cell__alloc(1, sizeof *audit);
	if (audit)
		cell__audit_file_init(&audit->file, opts->path);
	if (!audit || !audit->file.path) {
		free(audit);
		cell__redactor_destroy(redactor);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the audit log");
	}
	audit->file.max_bytes = opts->max_bytes;
	audit->file.keep = opts->keep;
	audit->file.sync = opts->sync != CELL__AUDIT_SYNC_NEVER;
	int rc = cell__audit_file_open(&audit->file);
	if (rc) {
		cell__audit_file_finish(&audit->file);
		free(audit);
		cell__redactor_destroy(redactor);
		if (rc == EINVAL)
			return cell_fail(err, CELL_E_IO, 0, "the audit log %.120s is not a regular file", opts->path);
		return cell_fail(err, CELL_E_IO, rc, "the audit log %.120s%s", opts->path, rc == ELOOP ? " is a symbolic link" : "");
	}
	audit->loop = opts->loop;
	audit->redactor = redactor;
	audit->sync = opts->sync;
	audit->sync_ms = opts->sync_ms;
	audit->queue_bytes = opts->queue_bytes;
	audit->fail_closed = opts->fail_closed;
	audit->log = opts->log;
	audit->log_arg = opts->log_arg;
	audit->last = &audit->first;
	audit->retry_ms = CELL__AUDIT_RETRY_MS;
	audit->work.data = audit;
	uv_timer_init(cell__loop_uv(audit->loop), &audit->retry_timer);
	uv_timer_init(cell__loop_uv(audit->loop), &audit->sync_timer);
	audit->retry_timer.data = audit->sync_timer.data = audit;
	*ret_audit = audit;
	return 0;
}

void cell__audit_log_close(struct cell__audit_log *audit, void (*closed)(void *arg), void *arg)
{
	audit->closing = true;
	audit->closed = closed;
	audit->closed_arg = arg;
	uv_timer_stop(&audit->retry_timer);
	uv_timer_stop(&audit->sync_timer);
	if (!audit->busy)
		start_job(audit);
}

const char *cell__audit_path(const struct cell__audit_log *audit)
{
	return audit->file.path;
}

int cell__audit_admit(struct cell__audit_log *audit, struct cell_error *err)
{
	if (audit->stats.failing && audit->fail_closed)
		return cell_fail(err, CELL_E_IO, audit->stats.error, "the audit log cannot be written; calls are refused until it can be");
	if (!audit->stats.failing && audit->cost > audit->queue_bytes)
		return cell_fail(err, CELL_E_LIMIT, 0, "the audit log cannot keep up: %zu bytes are waiting to be written", audit->cost);
	return 0;
}

int cell__audit_write(struct cell__audit_log *audit, const struct cell__audit_record *record, void (*written)(void *arg, int rc), void *arg,
		      struct cell_error *err)
{
	bool full = audit->cost > 2 * audit->queue_bytes;
	struct cell__audit_item *item = full || audit->closing ? NULL : cell__audit_item_create(record);
	if (!item) {
		if (audit->lost_now++ == 0 && audit->log)
			audit->log(audit->log_arg, CELL_LOG_ERROR, "lost a record of the audit log %s: %s", audit->file.path,
				   full             ? "too many records are waiting to be written"
				   : audit->closing ? "the log is closed"
						    : "out of memory");
		audit->stats.lost++;
		return cell_fail(err,
				 full             ? CELL_E_LIMIT
				 : audit->closing ? CELL_E_CLOSED
						  : CELL_E_NOMEM,
				 0,
				 full             ? "the audit log has no room for another record"
				 : audit->closing ? "the audit log is closed"
						  : "out of memory for a record of the audit log");
	}
	item->written = written;
	item->arg = arg;
	add_item(audit, item);
	start_job(audit);
	return 0;
}

int cell__audit_write_withdrawn(struct cell__audit_log *audit, const char *session_id, uint64_t count)
{
	bool full = audit->cost > 2 * audit->queue_bytes;
	struct cell__audit_item *item = full || audit->closing ? NULL : cell__audit_item_create_withdrawn(session_id, count);
	if (!item)
		return -1;
	add_item(audit, item);
	start_job(audit);
	return 0;
}

void cell__audit_stats(const struct cell__audit_log *audit, struct cell__audit_stats *ret)
{
	*ret = audit->stats;
	ret->backlog_bytes = audit->cost;
}
