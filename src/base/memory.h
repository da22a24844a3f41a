/* Allocation that tests can make fail, and the cleanup attributes of pointers and descriptors. */
#ifndef CELL_BASE_MEMORY_H
#define CELL_BASE_MEMORY_H

#include <stdlib.h>
#include <unistd.h>

/* Overflow-checked; NULL if out of memory or if the fault hook says so. */
void *cell__alloc(size_t count, size_t size) __attribute__((malloc));
void *cell__realloc(void *old, size_t size);
char *cell__strdup(const char *text);
char *cell__strndup(const char *bytes, size_t size);
/* A copy of a NULL-terminated list (NULL: an empty one), each string by itself.  NULL: out of memory. */
char **cell__strings_copy(const char *const *strings);
/* NULL is allowed. */
void cell__strings_free(char **strings);
/* Tests: the n-th allocation from now fails (0: never).  Not for several threads at once. */
void cell__alloc_fail_after(long n);

static inline void cell__free_cleanup(void *pointer)
{
	free(*(void **)pointer);
}
static inline void cell__fd_cleanup(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}
#define CELL_AUTO_FREE __attribute__((cleanup(cell__free_cleanup)))
#define CELL_AUTO_FD __attribute__((cleanup(cell__fd_cleanup)))

#define cell__take_ptr(var)                         \
	({                                          \
		__typeof__(var) cell_taken = (var); \
		(var) = NULL;                       \
		cell_taken;                         \
	})
static inline int cell__take_fd(int *fd)
{
	int taken = *fd;
	*fd = -1;
	return taken;
}
static inline void cell__close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

#endif
