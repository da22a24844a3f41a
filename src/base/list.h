/* Lists whose items know their neighbours (`prev`, `next`) and whose owner knows the first: in and out in constant time. */
#ifndef CELL_BASE_LIST_H
#define CELL_BASE_LIST_H

/* Puts an item of no list before all others. */
#define CELL__LIST_PUSH(first, item)                 \
	do {                                         \
		(item)->prev = NULL;                 \
		(item)->next = (first);              \
		if ((item)->next)                    \
			(item)->next->prev = (item); \
		(first) = (item);                    \
	} while (0)

#define CELL__LIST_REMOVE(first, item)                     \
	do {                                               \
		if ((item)->prev)                          \
			(item)->prev->next = (item)->next; \
		else                                       \
			(first) = (item)->next;            \
		if ((item)->next)                          \
			(item)->next->prev = (item)->prev; \
	} while (0)

#endif
