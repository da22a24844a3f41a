/*
 * session/output: the capped buffer against a model that keeps everything.  Input: two bytes for the cap, then writes: a
 * byte below 128 is the length of what follows it, one above it repeats the byte behind it a few thousand times.
 */
#include "base/base.h"
#include "fuzz.h"
#include "session/output.h"

/* Past the cap: a beginning, the marker, an end.  Each side may be short of a character that the cut went through. */
static bool is_cut_of(const struct cell__buf *all, size_t half, const struct cell__buf *got)
{
	for (size_t less_head = 0; less_head <= 3 && less_head <= half; less_head++)
		for (size_t less_tail = 0; less_tail <= 3 && less_tail <= half; less_tail++) {
			size_t head = half - less_head, tail = half - less_tail;
			char marker[128];
			int n = snprintf(marker, sizeof marker, "\n[... %zu bytes left out; the whole output is in F ...]\n",
					 all->size - head - tail);
			if (got->size == head + (size_t)n + tail && memcmp(got->data, all->data, head) == 0 &&
			    memcmp(got->data + head, marker, (size_t)n) == 0 &&
			    memcmp(got->data + head + n, all->data + all->size - tail, tail) == 0)
				return true;
		}
	return false;
}

static void check(const struct cell__capped *capped, const struct cell__buf *all)
{
	CELL_AUTO_BUF struct cell__buf got = CELL_BUF_INIT;
	MUST(capped->total == all->size);
	MUST(capped->head.size + capped->tail.size <= capped->cap);
	MUST(cell__capped_join(capped, "F", 0, &got) == 0);
	if (all->size <= capped->cap)
		MUST(got.size == all->size && memcmp(got.data, all->data ? all->data : "", got.size) == 0);
	else
		MUST(is_cut_of(all, capped->cap / 2, &got));
	if (cell__utf8_ok(all->data, all->size))
		MUST(cell__utf8_ok(got.data, got.size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	struct cell__capped capped;
	CELL_AUTO_BUF struct cell__buf all = CELL_BUF_INIT;
	cell__capped_init(&capped, 8 + (data[0] | (size_t)data[1] << 8) % 5000);
	for (size_t at = 2; at < size && all.size < 100000;) {
		size_t before = all.size, n = data[at++];
		if (n < 128) {
			n = n < size - at ? n : size - at;
			MUST(cell__buf_add(&all, data + at, n) == 0);
			at += n;
		} else if (at < size) {
			n = (n - 127) * 50;
			MUST(cell__buf_reserve(&all, n) == 0);
			memset(all.data + all.size, data[at++], n);
			all.size += n;
		}
		if (all.size > before) {
			uint8_t *piece = fuzz_copy((const uint8_t *)all.data + before, all.size - before);
			MUST(cell__capped_add(&capped, (const char *)piece, all.size - before) == 0);
			free(piece);
		}
	}
	check(&capped, &all);
	cell__capped_finish(&capped);
	return 0;
}
