#include "executor/turns.h"

#define QUICK_MS 400   /* less than it takes a cell to be long: its own beginning is none of the others' */
#define TICK_MS 1000
#define RELIEF_MS 5000 /* between two that have their second */

void cell__turns_init(struct cell__turns *turns, uv_loop_t *loop, void (*tell)(struct cell__turn *turn, bool yields))
{
	*turns = (struct cell__turns){ .loop = loop, .tell = tell };
	uv_timer_init(loop, &turns->timer);
	turns->timer.data = turns;
}

static void set(struct cell__turns *turns, struct cell__turn *turn, bool yields)
{
	if (turn->yields == yields)
		return;
	turn->yields = yields;
	turn->since_ms = uv_now(turns->loop);
	turns->tell(turn, yields);
}

static void set_all(struct cell__turns *turns, bool yields)
{
	for (struct cell__turn *t = turns->all; t; t = t->next)
		set(turns, t, yields);
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
		set_all(turns, false);
		return;
	}
	for (struct cell__turn *t = turns->all; t; t = t->next)
		if (t->yields && (!first || t->since_ms < first->since_ms))
			first = t;
	set_all(turns, true);
	if (first && now - turns->relief_ms >= RELIEF_MS) {
		turns->relief_ms = now;
		set(turns, first, false);
	}
}

static void become_busy(struct cell__turns *turns)
{
	if (turns->busy || !turns->all || uv_timer_start(&turns->timer, handle_tick, TICK_MS, TICK_MS) < 0)
		return;
	turns->busy = true;
	turns->relief_ms = uv_now(turns->loop);
	set_all(turns, true);
}

void cell__turns_quick(struct cell__turns *turns)
{
	turns->quick_ms = uv_now(turns->loop);
	become_busy(turns);
}

void cell__turns_long(struct cell__turns *turns, struct cell__turn *turn)
{
	if (turn->is_long)
		return;
	turn->is_long = true;
	turn->next = turns->all;
	turns->all = turn;
	if (turns->busy)
		set(turns, turn, true);
	else if (is_quick(turns))
		become_busy(turns);
}

void cell__turns_leave(struct cell__turns *turns, struct cell__turn *turn, bool gone)
{
	if (!turn->is_long)
		return;
	for (struct cell__turn **at = &turns->all; *at; at = &(*at)->next)
		if (*at == turn) {
			*at = turn->next;
			break;
		}
	turn->is_long = false;
	if (gone)
		turn->yields = false;
	else
		set(turns, turn, false);
}
