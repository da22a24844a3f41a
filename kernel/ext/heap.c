/*
 * The heap of a large session lies in huge pages.
 *
 * A fork, a point and a rewind copy the page tables of the session, and that is nearly all they do: 1 GB in pages of 4 kB are 250,000
 * entries, in pages of 2 MB 512.  A small session must not pay for it with 2 MB where it uses 4 kB.  So nothing changes until the heap has
 * grown to PLAIN_BYTES; what comes after that is asked for in pieces of STEP_BYTES and advised before it is touched.  Memory of a session
 * comes from three places:
 *
 *   arenas of pymalloc (objects up to 512 bytes): PyObject_SetArenaAllocator() lets us give them out of advised pieces.
 *   malloc's heap (what is larger): glibc extends it by brk().  A look at the address of each allocation tells that it has grown.
 *   mappings of malloc's (what is much larger): advised one by one.
 *
 * numpy advises its own arrays.  Where the machine has no huge pages the advice fails, and everything is as without it.  A write after a
 * fork copies 4 kB as before: Linux splits the huge page.
 */
#define _GNU_SOURCE
#include "ext.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_BYTES ((size_t)2 << 20)
#define PLAIN_BYTES ((size_t)64 << 20) /* of malloc's heap, and of arenas: a session up to here stays as it is */
#define STEP_BYTES ((size_t)16 << 20)
#define ADVISED_BYTES ((size_t)4 << 20) /* mappings from here on are advised; numpy has the same limit */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* As those of ext.h. */
struct arena_allocator {
	void *ctx;
	void *(*alloc)(void *ctx, size_t size);
	void (*free)(void *ctx, void *at, size_t size);
};
#define DOMAIN_RAW 0 /* PYMEM_DOMAIN_RAW; the other domains come here with what is larger than 512 bytes */
extern void PyObject_SetArenaAllocator(struct arena_allocator *allocator);

static struct wc_allocator raw;
static _Atomic(uintptr_t) advised; /* malloc's heap up to here needs no further look */
static uintptr_t plain_end, page_bytes;
static size_t arenas;              /* bytes of arenas so far; used with the GIL held, like the two below */
static uintptr_t piece, piece_end; /* where the next arena comes from */

/* Only whole huge pages are advised.  It fails where there are none, and nothing is lost. */
static void advise(uintptr_t begin, uintptr_t end, int advice)
{
	begin = (begin + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1);
	end &= ~(uintptr_t)(HUGE_BYTES - 1);
	if (begin < end)
		(void)madvise((void *)begin, end - begin, advice);
}

/* ---- malloc ---- */

/*
 * Makes malloc extend its heap, which ends at `end`, by a large step: what is freed at the end of the heap stays there.  The first time it is
 * a mapping instead, and freeing it teaches malloc to take the next one from the heap.  (M_TOP_PAD would switch this learning off.)
 */
static void extend(uintptr_t end)
{
	for (int i = 0; i < 2 && (uintptr_t)sbrk(0) == end; i++) {
		void *volatile step = malloc(STEP_BYTES); /* volatile: the compiler may leave out a pair of malloc and free */
		free(step);          /* NULL near a limit: the heap grows as without us */
	}
}

/* For an allocation that ends after `advised`.  Several threads may be here at once, without the GIL. */
static void look(uintptr_t at, size_t size)
{
	uintptr_t end = (uintptr_t)sbrk(0);
	uintptr_t seen = atomic_load_explicit(&advised, memory_order_relaxed);
	if (at >= end) { /* a mapping, or the heap of a thread */
		if (size >= ADVISED_BYTES) {
			/* The whole mapping: Linux does not move one of which only a part is advised, and realloc() would have to copy it. */
			uintptr_t first = at & ~(uintptr_t)(page_bytes - 1);
			(void)madvise((void *)first, (at + size - first + page_bytes - 1) & ~(size_t)(page_bytes - 1), MADV_HUGEPAGE);
		}
		if (seen > end && end > plain_end)
			(void)atomic_compare_exchange_strong(&advised, &seen, end); /* malloc gave the end of the heap back */
		return;
	}
	if (seen >= end || !atomic_compare_exchange_strong(&advised, &seen, UINTPTR_MAX))
		return; /* another thread is at it */
	extend(end);
	uintptr_t now = (uintptr_t)sbrk(0);
	/* The last extension ended in the middle of a huge page; what lies before that is full now. */
	advise(seen - HUGE_BYTES, seen + HUGE_BYTES, MADV_COLLAPSE);
	advise(seen, now, MADV_HUGEPAGE);
	atomic_store(&advised, now);
}

static inline void *looked_at(void *at, size_t size)
{
	if (__builtin_expect((uintptr_t)at + size > atomic_load_explicit(&advised, memory_order_relaxed), 0) && at)
		look((uintptr_t)at, size);
	return at;
}

static void *raw_malloc(void *ctx, size_t size)
{
	return looked_at(raw.malloc(ctx, size), size);
}

static void *raw_calloc(void *ctx, size_t count, size_t size)
{
	return looked_at(raw.calloc(ctx, count, size), count * size); /* it has checked the product */
}

static void *raw_realloc(void *ctx, void *at, size_t size)
{
	return looked_at(raw.realloc(ctx, at, size), size);
}

/* ---- arenas ---- */

static void *map(size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return at == MAP_FAILED ? NULL : at;
}

static void *arena_alloc(void *ctx, size_t size)
{
	(void)ctx;
	arenas += size;
	if (arenas <= PLAIN_BYTES || size > HUGE_BYTES)
		return map(size);
	if (piece_end - piece < size) {
		void *at = map(STEP_BYTES);
		if (!at)
			return map(size); /* near a limit */
		if (piece < piece_end)
			munmap((void *)piece, piece_end - piece);
		piece = (uintptr_t)at;
		piece_end = piece + STEP_BYTES;
		advise(piece, piece_end, MADV_HUGEPAGE);
	}
	void *arena = (void *)piece;
	piece += size;
	return arena;
}

static void arena_free(void *ctx, void *at, size_t size)
{
	(void)ctx;
	arenas -= size < arenas ? size : arenas; /* some are older than the counter */
	munmap(at, size);
}

void wc_heap_begin(void)
{
	page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
	plain_end = (uintptr_t)sbrk(0) + PLAIN_BYTES;
	atomic_store(&advised, plain_end);
	PyMem_GetAllocator(DOMAIN_RAW, &raw);
	PyMem_SetAllocator(DOMAIN_RAW, &(struct wc_allocator){ raw.ctx, raw_malloc, raw_calloc, raw_realloc, raw.free });
	PyObject_SetArenaAllocator(&(struct arena_allocator){ NULL, arena_alloc, arena_free });
}
