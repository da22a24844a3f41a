/* Finds the documents whose vectors are near a query's, and fuses that ranking with the one by words. */
#define _GNU_SOURCE
#ifdef __x86_64__
#include <cpuid.h>
#endif
#include <stdbool.h>
#include <string.h>

#include "storage/search_internal.h"

/* ---- numbers ---- */

/*
 * Components of vectors of length one, in units of 1/CELL__VECTOR_ONE: half the memory to read, which dominates the time, for an error of
 * about a hundred-thousandth. No sum can overflow: by the Cauchy-Schwarz inequality it is at most the product of both lengths,
 * CELL__VECTOR_ONE squared.
 */
static inline __attribute__((always_inline)) int32_t dot_of(const int16_t *a, const int16_t *b, size_t n)
{
	int32_t sum = 0;
	for (size_t i = 0; i < n; i += CELL__VECTOR_LANES)
		for (size_t k = 0; k < CELL__VECTOR_LANES; k++)
			sum += (int32_t)a[i + k] * b[i + k];
	return sum;
}

static int32_t dot_plain(const int16_t *a, const int16_t *b, size_t n)
{
	return dot_of(a, b, n);
}

#ifdef __x86_64__
/* Takes half the time on processors with AVX2, which are nearly all, but not our compilation target. */
static __attribute__((target("avx2"))) int32_t dot_avx2(const int16_t *a, const int16_t *b, size_t n)
{
	return dot_of(a, b, n);
}
#endif

typedef int32_t (*dot_fn)(const int16_t *a, const int16_t *b, size_t n);

#ifdef __x86_64__
/* By hand: __builtin_cpu_supports() needs a runtime that not every compiler brings. The system must keep the registers too (XCR0). */
static bool has_avx2(void)
{
	unsigned a, b, c, d, kept, high;
	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
		return false;
	__asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
	return (kept & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}
#endif

static dot_fn choose_dot(void)
{
#ifdef __x86_64__
	if (has_avx2())
		return dot_avx2;
#endif
	return dot_plain;
}

/* To the nearest; written so that a compiler can do many at once.  No part is longer than the whole. */
static int16_t pack_one(float part)
{
	return (int16_t)((int32_t)(part * CELL__VECTOR_ONE + (CELL__VECTOR_ONE + 1.5f)) - (CELL__VECTOR_ONE + 1));
}

void cell__vectors_pack(const float *vector, size_t dimensions, int16_t *out)
{
	size_t i = 0;
	for (; i + CELL__VECTOR_LANES <= dimensions; i += CELL__VECTOR_LANES)
		for (size_t k = 0; k < CELL__VECTOR_LANES; k++)
			out[i + k] = pack_one(vector[i + k]);
	for (; i < dimensions; i++)
		out[i] = pack_one(vector[i]);
	for (; i % CELL__VECTOR_LANES; i++)
		out[i] = 0;
}

/* ---- the nearest ---- */

struct near {
	int32_t score;
	size_t row;
};

static bool is_worse(const struct near *a, const struct near *b)
{
	return a->score != b->score ? a->score < b->score : a->row > b->row;
}

/* A heap with the worst on top, so that a worse candidate is rejected at once. */
static void sink(struct near *heap, size_t n, size_t at)
{
	for (;;) {
		size_t child = 2 * at + 1;
		if (child + 1 < n && is_worse(&heap[child + 1], &heap[child]))
			child++;
		if (child >= n || !is_worse(&heap[child], &heap[at]))
			return;
		struct near swap = heap[at];
		heap[at] = heap[child];
		heap[child] = swap;
		at = child;
	}
}

static int best_first(const void *a, const void *b)
{
	return is_worse(a, b) ? 1 : -1;
}

/* With the lock held; fills best[0..limit) and returns the number. A vector in the opposite direction is not near at all. */
static size_t find_near(const struct cell__vectors *v, const int16_t *vector, struct near *best, size_t limit)
{
	const dot_fn dot = choose_dot();
	size_t n = 0;
	for (size_t row = 0; row < v->n_rows; row++) {
		struct near one = { dot(v->rows + row * v->stride, vector, v->stride), row };
		if (one.score <= 0 || (n == limit && !is_worse(&best[0], &one)))
			continue;
		if (n < limit) {
			best[n++] = one;
			for (size_t i = n / 2; n == limit && i-- > 0;)
				sink(best, n, i);
		} else {
			best[0] = one;
			sink(best, n, 0);
		}
	}
	if (n)
		qsort(best, n, sizeof *best, best_first);
	return n;
}

static int name_near(const struct cell__vectors *v, const struct near *best, size_t n, struct cell__search_hit *hits)
{
	for (size_t i = 0; i < n; i++) {
		hits[i].id = cell__strdup(v->docs[v->row_docs[best[i].row]].id);
		hits[i].score = (double)best[i].score / CELL__VECTOR_ONE / CELL__VECTOR_ONE;
		if (!hits[i].id)
			return -1;
	}
	return 0;
}

/* *ret_n 0 also where the vectors are of another kind. */
static int rank(struct cell__vectors *v, const float *vector, size_t dimensions, size_t limit, struct cell__search_hit **ret_hits,
		size_t *ret_n)
{
	CELL_AUTO_FREE struct near *best = cell__alloc(limit, sizeof *best);
	struct cell__search_hit *hits = cell__alloc(limit, sizeof *hits);
	size_t padded = (dimensions + CELL__VECTOR_LANES - 1) / CELL__VECTOR_LANES * CELL__VECTOR_LANES;
	CELL_AUTO_FREE int16_t *query = cell__alloc(padded, sizeof *query);
	int rc = best && hits && query ? 0 : -1;
	size_t n = 0;
	if (rc == 0) {
		cell__vectors_pack(vector, dimensions, query);
		pthread_mutex_lock(&v->lock);
		if (v->dimensions == dimensions)
			n = find_near(v, query, best, limit);
		rc = name_near(v, best, n, hits);
		pthread_mutex_unlock(&v->lock);
	}
	if (rc < 0) {
		cell__search_hits_free(hits, hits ? n : 0);
		return -1;
	}
	*ret_hits = hits;
	*ret_n = n;
	return 0;
}

/* ---- two rankings ---- */

/* Documents whose name equals the query stay first, whatever their meaning. */
static size_t count_named(const struct cell__search_hit *hits, size_t n)
{
	size_t named = 0;
	while (named < n && hits[named].score >= CELL__SEARCH_NAME_SCORE)
		named++;
	return named;
}

static bool is_named(const struct cell__search_hit *hits, size_t named, const char *id)
{
	for (size_t i = 0; i < named; i++)
		if (strcmp(hits[i].id, id) == 0)
			return true;
	return false;
}

/*
 * How much the best match of words adds to a cosine. A question shares words with many documents by chance: they decide where meanings are
 * alike. Ranks instead of scores would lose how alike they are. bench/ranking.py measures it.
 */
#define WORDS_WEIGHT 0.03

static int fuse(struct cell__search_hit *words, size_t n_words, struct cell__search_hit *near, size_t n_near, size_t limit,
		struct cell__search_hit **ret_hits, size_t *ret_n)
{
	size_t named = count_named(words, n_words), kept = 0, n = 0;
	struct cell__search_hit *rest = NULL;
	if (named > limit)
		named = limit;
	for (size_t i = 0; i < n_near; i++) {
		if (is_named(words, named, near[i].id))
			continue;
		struct cell__search_hit swap = near[kept];
		near[kept++] = near[i];
		near[i] = swap;
	}
	if (cell__search_fuse(named ? words + named : words, n_words - named, near, kept, WORDS_WEIGHT, limit - named, &rest, &n) < 0)
		return -1;
	struct cell__search_hit *all = cell__realloc(rest, (named + n + 1) * sizeof *all);
	if (!all) {
		cell__search_hits_free(rest, n);
		return -1;
	}
	memmove(all + named, all, n * sizeof *all);
	for (size_t i = 0; i < named; i++) {
		all[i] = words[i];
		words[i].id = NULL;
	}
	*ret_hits = all;
	*ret_n = named + n;
	return 0;
}

int cell__search_query_by(struct cell__search *search, const char *query, const float *vector, size_t dimensions, size_t limit,
			  struct cell__search_hit **ret_hits, size_t *ret_n, bool *ret_fused, struct cell_error *err)
{
	struct cell__search_hit *words = NULL, *near = NULL, *hits = NULL;
	size_t n_words = 0, n_near = 0, n = 0;
	if (limit > CELL_LIMIT_SEARCH)
		limit = CELL_LIMIT_SEARCH;
	size_t wide = limit * 2 > CELL__SEARCH_FUSED_MIN ? limit * 2 : CELL__SEARCH_FUSED_MIN;
	if (wide > CELL_LIMIT_SEARCH)
		wide = CELL_LIMIT_SEARCH;
	*ret_fused = false;
	if (!search->vectors || dimensions == 0 || limit == 0)
		return cell__search_query(search, query, limit, ret_hits, ret_n, err);
	if (cell__search_query(search, query, wide, &words, &n_words, err) < 0)
		return -1;
	int rc = rank(search->vectors, vector, dimensions, wide, &near, &n_near);
	if (rc == 0 && n_near == 0) {
		for (; n_words > limit; n_words--)
			free(words[n_words - 1].id);
		free(near);
		*ret_hits = words;
		*ret_n = n_words;
		return 0;
	}
	if (rc == 0)
		rc = fuse(words, n_words, near, n_near, limit, &hits, &n);
	cell__search_hits_free(words, n_words);
	cell__search_hits_free(near, n_near);
	if (rc < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "search");
	*ret_fused = true;
	*ret_hits = hits;
	*ret_n = n;
	return 0;
}
