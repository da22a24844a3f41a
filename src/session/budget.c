#include "session/budget.h"

#include "base/hole.h"

void cell__budget_join(struct cell__budget *budget, struct cell__budget **all)
{
	budget->all = all;
	budget->next = *all;
	*all = budget;
}

void cell__budget_leave(struct cell__budget *budget)
{
	for (struct cell__budget **at = budget->all; at && *at; at = &(*at)->next)
		if (*at == budget) {
			*at = budget->next;
			break;
		}
	budget->all = NULL;
}

static size_t sum(const struct cell__budget *budget)
{
	return budget->used + budget->unread(budget->owner);
}

bool cell__budget_fits(const struct cell__budget *budget, size_t bytes)
{
	if (!budget->all)
		return false; /* its kernel is gone */
	if (is_hole("budget"))
		return true;
	size_t own = sum(budget);
	if (own > CELL_LIMIT_KERNEL_BYTES || bytes > CELL_LIMIT_KERNEL_BYTES - own)
		return false;
	if (own + bytes <= CELL_LIMIT_KERNEL_FAIR_BYTES)
		return true;
	size_t total = 0;
	for (const struct cell__budget *one = *budget->all; one; one = one->next)
		total += sum(one);
	return total <= CELL_LIMIT_ENGINE_BYTES && bytes <= CELL_LIMIT_ENGINE_BYTES - total;
}

bool cell__budget_is_ignored(const struct cell__budget *budget)
{
	return budget->all && budget->unread(budget->owner) > CELL_LIMIT_KERNEL_BYTES + CELL_LIMIT_REFUSALS_BYTES && !is_hole("budget");
}
