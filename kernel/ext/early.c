/*
 * The first allocations of a program (script.c).
 *
 * pymalloc keeps a pool of one page or more for each size of small objects.  A short program allocates some seventy objects of twenty sizes,
 * 16 kB in all, and touches a page of a pool, and often its neighbours' headers, for each size: pages that the fork has to copy.  malloc() puts
 * objects of all sizes side by side.  So the first EARLY_BYTES come from malloc(); then Python's own functions are set again, and the program
 * pays nothing for it from there on.  Freeing needs no care: pymalloc hands memory that is in none of its pools to free(), as it does with
 * large objects.
 */
#include "ext.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EARLY_BYTES ((size_t)64 << 10)
#define N_DOMAINS 2

static const int domains[N_DOMAINS] = { 1, 2 }; /* PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ */
static struct wc_allocator python[N_DOMAINS];
static bool is_prepared; /* else all is as Python has it */
static size_t left;      /* of EARLY_BYTES; 0 in the kernel itself */

static void *early_malloc(void *ctx, size_t size);

static void end_early(void)
{
	struct wc_allocator now;
	left = 0;
	for (int i = 0; i < N_DOMAINS; i++) {
		PyMem_GetAllocator(domains[i], &now);
		if (now.malloc == early_malloc) /* not where the program has put its own before it, as tracemalloc does */
			PyMem_SetAllocator(domains[i], &python[i]);
	}
}

static bool take(size_t size)
{
	bool has_room = size < left;
	if (has_room)
		left -= size;
	else if (left > 0)
		end_early();
	return has_room;
}

/* malloc(0) may return NULL; Python expects an address. */
static size_t at_least_one(size_t size)
{
	return size > 0 ? size : 1;
}

static void *early_malloc(void *ctx, size_t size)
{
	struct wc_allocator *own = &python[(uintptr_t)ctx];
	return take(size) ? malloc(at_least_one(size)) : own->malloc(own->ctx, size);
}

static void *early_calloc(void *ctx, size_t n, size_t size)
{
	struct wc_allocator *own = &python[(uintptr_t)ctx];
	bool is_small = n < EARLY_BYTES && size < EARLY_BYTES;
	return is_small && take(n * size) ? calloc(at_least_one(n), at_least_one(size)) : own->calloc(own->ctx, n, size);
}

static void *early_realloc(void *ctx, void *at, size_t size)
{
	struct wc_allocator *own = &python[(uintptr_t)ctx];
	return !at && take(size) ? malloc(at_least_one(size)) : own->realloc(own->ctx, at, size);
}

static void early_free(void *ctx, void *at)
{
	struct wc_allocator *own = &python[(uintptr_t)ctx];
	own->free(own->ctx, at);
}

/* Does its free() accept memory of malloc()?  Debug hooks and tracemalloc have a context and do not; a free-threaded Python uses mimalloc. */
static bool is_known(const struct wc_allocator *own)
{
	PyObject *flags = PySys_GetObject("abiflags");
	const char *text = flags ? PyUnicode_AsUTF8AndSize(flags, NULL) : NULL;
	PyErr_Clear();
	return !own->ctx && text && !strchr(text, 't');
}

void wc_early_prepare(void)
{
	for (int i = 0; i < N_DOMAINS; i++) {
		PyMem_GetAllocator(domains[i], &python[i]);
		if (!is_known(&python[i]))
			return;
	}
	PyGC_Collect(); /* objects that Python keeps for later lie anywhere */
	is_prepared = true;
	for (int i = 0; i < N_DOMAINS; i++) {
		struct wc_allocator early = { (void *)(uintptr_t)i, early_malloc, early_calloc, early_realloc, early_free };
		PyMem_SetAllocator(domains[i], &early);
	}
}

void wc_early_begin(void)
{
	if (is_prepared)
		left = EARLY_BYTES;
}
