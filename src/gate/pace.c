#include "gate/pace.h"

#include "base/hole.h"
#include "gate/audit.h"

#define TELL_MS 1000 /* between two records about calls that were withdrawn */

struct cell__pace {
	struct cell__audit_log *audit;
	const char *session_id;
	uv_timer_t timer;
	double rate;   /* bytes a microsecond */
	double credit, most; /* bytes; below 0: a debt */
	int64_t at_us; /* when credit was right */
	struct cell__pace_wait *first, *last;
	uint64_t withdrawn; /* since the log recorded it */
	int64_t told_us;
	bool closing;
};

static void handle_due(uv_timer_t *timer);

static bool has_credit(struct cell__pace *pace)
{
	int64_t now_us = cell__now_us();
	pace->credit += (double)(now_us - pace->at_us) * pace->rate;
	pace->at_us = now_us;
	if (pace->credit > pace->most)
		pace->credit = pace->most;
	return pace->credit > 0;
}

static void set_due(struct cell__pace *pace)
{
	if (pace->closing || uv_is_active((uv_handle_t *)&pace->timer))
		return;
	double ms = pace->first ? -pace->credit / pace->rate / 1000 : TELL_MS;
	uv_update_time(pace->timer.loop);
	uv_timer_start(&pace->timer, handle_due, (uint64_t)(ms > 0 ? ms : 0) + 1, 0);
}

static void tell_withdrawn(struct cell__pace *pace)
{
	if (pace->withdrawn == 0 || cell__audit_write_withdrawn(pace->audit, pace->session_id, pace->withdrawn) < 0)
		return;
	pace->withdrawn = 0;
	pace->told_us = cell__now_us();
}

static void take_out(struct cell__pace *pace, struct cell__pace_wait *wait)
{
	*(wait->prev ? &wait->prev->next : &pace->first) = wait->next;
	*(wait->next ? &wait->next->prev : &pace->last) = wait->prev;
	wait->next = wait->prev = NULL;
	wait->waits = false;
}

static void handle_due(uv_timer_t *timer)
{
	struct cell__pace *pace = timer->data;
	while (!pace->closing && pace->first && has_credit(pace)) {
		struct cell__pace_wait *wait = pace->first;
		take_out(pace, wait);
		pace->credit -= (double)wait->bytes;
		wait->go(wait);
	}
	if (pace->closing)
		return;
	if (cell__now_us() - pace->told_us >= TELL_MS * 1000)
		tell_withdrawn(pace);
	if (pace->first || pace->withdrawn)
		set_due(pace);
}

bool cell__pace_enter(struct cell__pace *pace, struct cell__pace_wait *wait, size_t bytes)
{
	if (!pace || is_hole("audit-pace"))
		return true;
	if (!pace->first && has_credit(pace)) {
		pace->credit -= (double)bytes;
		return true;
	}
	wait->bytes = bytes;
	wait->waits = true;
	wait->prev = pace->last;
	*(pace->last ? &pace->last->next : &pace->first) = wait;
	pace->last = wait;
	set_due(pace);
	return false;
}

bool cell__pace_withdraw(struct cell__pace *pace, struct cell__pace_wait *wait)
{
	if (!wait->waits)
		return false;
	take_out(pace, wait);
	pace->withdrawn++;
	set_due(pace);
	return true;
}

void cell__pace_charge(struct cell__pace *pace, size_t bytes)
{
	if (pace)
		pace->credit -= (double)bytes;
}

int cell__pace_create(struct cell__loop *loop, struct cell__audit_log *audit, const char *session_id, uint64_t bytes_per_s,
		      struct cell__pace **ret_pace, struct cell_error *err)
{
	struct cell__pace *pace = cell__alloc(1, sizeof *pace);
	if (!pace)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	pace->audit = audit;
	pace->session_id = session_id;
	pace->rate = (double)(bytes_per_s ? bytes_per_s : 1) / 1e6;
	pace->credit = pace->most = (double)bytes_per_s * CELL__PACE_BURST_S;
	pace->at_us = cell__now_us();
	uv_timer_init(cell__loop_uv(loop), &pace->timer);
	pace->timer.data = pace;
	*ret_pace = pace;
	return 0;
}

static void handle_closed(uv_handle_t *handle)
{
	free(handle->data);
}

void cell__pace_destroy(struct cell__pace *pace)
{
	if (!pace)
		return;
	tell_withdrawn(pace);
	pace->closing = true;
	uv_close((uv_handle_t *)&pace->timer, handle_closed);
}
