#include "executors/subprocess/cpu_share.h"

#define QUICK_MS 400   /* less than the time after which a cell is long: its own beginning does not count as another's */
#define TICK_MS 1000
#define RELIEF_MS 5000 /* between two that have their entry */
#define RELIEF_SLICE_MS 20 /* so short that it shows in few of the others' cells */

void cell__cpu_shares_init(struct cell__cpu_shares *shares, uv_loop_t *loop,
			   void (*tell)(struct cell__cpu_share *entry, enum cell_cgroup_share share))
{
	*shares = (struct cell__cpu_shares){ .loop = loop, .tell = tell };
	uv_timer_init(loop, &shares->timer);
	shares->timer.data = shares;
}

static void set(struct cell__cpu_shares *shares, struct cell__cpu_share *entry, enum cell_cgroup_share share)
{
	if (entry->share == share)
		return;
	entry->share = share;
	entry->since_ms = uv_now(shares->loop);
	shares->tell(entry, share);
}

static void set_all(struct cell__cpu_shares *shares, enum cell_cgroup_share share)
{
	for (struct cell__cpu_share *t = shares->all; t; t = t->next)
		set(shares, t, share);
}

static bool is_quick(const struct cell__cpu_shares *shares)
{
	return shares->quick_ms > 0 && uv_now(shares->loop) - shares->quick_ms < QUICK_MS;
}

static void handle_tick(uv_timer_t *timer)
{
	struct cell__cpu_shares *shares = timer->data;
	uint64_t now = uv_now(shares->loop);
	struct cell__cpu_share *first = NULL; /* the one that has yielded longest */
	if (!is_quick(shares) || !shares->all) {
		shares->busy = false;
		uv_timer_stop(timer);
		set_all(shares, CELL_SHARE_HALF);
		return;
	}
	for (struct cell__cpu_share *t = shares->all; t; t = t->next)
		if (t->share == CELL_SHARE_REST && (!first || t->since_ms < first->since_ms))
			first = t;
	set_all(shares, CELL_SHARE_REST);
	if (first && now - shares->relief_ms >= RELIEF_MS) {
		shares->relief_ms = now;
		set(shares, first, CELL_SHARE_HALF);
		uv_timer_start(timer, handle_tick, RELIEF_SLICE_MS, TICK_MS);
	}
}

static void become_busy(struct cell__cpu_shares *shares)
{
	if (shares->busy || !shares->all || uv_timer_start(&shares->timer, handle_tick, TICK_MS, TICK_MS) < 0)
		return;
	shares->busy = true;
	shares->relief_ms = uv_now(shares->loop);
	set_all(shares, CELL_SHARE_REST);
}

void cell__cpu_shares_quick(struct cell__cpu_shares *shares)
{
	shares->quick_ms = uv_now(shares->loop);
	become_busy(shares);
}

void cell__cpu_shares_long(struct cell__cpu_shares *shares, struct cell__cpu_share *entry)
{
	if (entry->share != CELL_SHARE_USUAL)
		return;
	entry->next = shares->all;
	shares->all = entry;
	set(shares, entry, shares->busy ? CELL_SHARE_REST : CELL_SHARE_HALF);
	if (is_quick(shares))
		become_busy(shares);
}

void cell__cpu_shares_leave(struct cell__cpu_shares *shares, struct cell__cpu_share *entry, bool gone)
{
	if (entry->share == CELL_SHARE_USUAL)
		return;
	for (struct cell__cpu_share **at = &shares->all; *at; at = &(*at)->next)
		if (*at == entry) {
			*at = entry->next;
			break;
		}
	if (gone)
		entry->share = CELL_SHARE_USUAL;
	else
		set(shares, entry, CELL_SHARE_USUAL);
}
