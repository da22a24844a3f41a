#include "executor/turns.h"

#define QUICK_MS 400   /* less than it takes a cell to be long: its own beginning is none of the others' */
#define TICK_MS 1000
#define RELIEF_MS 5000 /* between two that have their turn */
#define TURN_MS 20     /* so short that it shows in few of the others' cells */

void cell__turns_init(struct cell__turns *turns, uv_loop_t *loop,
		      void (*tell)(struct cell__turn *turn, enum cell_cgroup_share share))
{
	*turns = (struct cell__turns){ .loop = loop, .tell = tell };
	uv_timer_init(loop, &turns->timer);
	turns->timer.data = turns;
}

static void set(struct cell__turns *turns, struct cell__turn *turn, enum cell_cgroup_share share)
{
	if (turn->share == share)
		return;
	turn->share = share;
	turn->since_ms = uv_now(turns->loop);
	turns->tell(turn, share);
}

static void set_all(struct cell__turns *turns, enum cell_cgroup_share share)
{
	for (struct cell__turn *t = turns->all; t; t = t->next)
		set(turns, t, share);
}

static bool is_quick(const struct cell__turns *turns)
{
	return turns->quick_ms > 0 && uv_now(turns->loop) - turns->quick_ms < QUICK_MS;
}

static void handle_tick(uv_timer_t *timer)
{
	struct cell__turns *turns = timer->data;
	uint64_t now = uv_now(turns->loop);
	struct cell__turn *first = NULL; /* the one that has yielded longest */
	if (!is_quick(turns) || !turns->all) {
		turns->busy = false;
		uv_timer_stop(timer);
		set_all(turns, CELL_SHARE_HALF);
		return;
	}
	for (struct cell__turn *t = turns->all; t; t = t->next)
		if (t->share == CELL_SHARE_REST && (!first || t->since_ms < first->since_ms))
			first = t;
	set_all(turns, CELL_SHARE_REST);
	if (first && now - turns->relief_ms >= RELIEF_MS) {
		turns->relief_ms = now;
		set(turns, first, CELL_SHARE_HALF);
		uv_timer_start(timer, handle_tick, TURN_MS, TICK_MS);
	}
}

static void become_busy(struct cell__turns *turns)
{
	if (turns->busy || !turns->all || uv_timer_start(&turns->timer, handle_tick, TICK_MS, TICK_MS) < 0)
		return;
	turns->busy = true;
	turns->relief_ms = uv_now(turns->loop);
	set_all(turns, CELL_SHARE_REST);
}

void cell__turns_quick(struct cell__turns *turns)
{
	turns->quick_ms = uv_now(turns->loop);
	become_busy(turns);
}

void cell__turns_long(struct cell__turns *turns, struct cell__turn *turn)
{
	if (turn->share != CELL_SHARE_USUAL)
		return;
	turn->next = turns->all;
	turns->all = turn;
	set(turns, turn, turns->busy ? CELL_SHARE_REST : CELL_SHARE_HALF);
	if (is_quick(turns))
		become_busy(turns);
}

void cell__turns_leave(struct cell__turns *turns, struct cell__turn *turn, bool gone)
{
	if (turn->share == CELL_SHARE_USUAL)
		return;
	for (struct cell__turn **at = &turns->all; *at; at = &(*at)->next)
		if (*at == turn) {
			*at = turn->next;
			break;
		}
	if (gone)
		turn->share = CELL_SHARE_USUAL;
	else
		set(turns, turn, CELL_SHARE_USUAL);
}
