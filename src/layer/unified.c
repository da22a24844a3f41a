/*
 * Unified diffs of two texts.  Common lines at both ends are cut off; the rest is compared by Myers' algorithm, which takes time and memory
 * by the square of the number of differences.  Texts with too many of them are shown as one replaced block.
 */
#include "layer/internal.h"

#include <string.h>

#define CONTEXT 3
#define MAX_DIFFERENCES 1000

struct line {
	const char *text;
	size_t size; /* with its line end */
};

struct text {
	struct line *lines;
	size_t count;
};

/* ' ': in both, '-': in a, '+': in b */
struct edit {
	char kind;
	size_t a, b; /* lines before it */
};

struct edits {
	struct edit *items;
	size_t count, room;
};

static int split(const char *bytes, size_t size, struct text *ret_text)
{
	size_t count = 0;
	for (const char *at = bytes, *end = bytes + size; at < end; count++) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));
		at = stop ? stop + 1 : end;
	}
	ret_text->count = 0;
	ret_text->lines = cell__alloc(count + 1, sizeof *ret_text->lines);
	if (!ret_text->lines)
		return -1;
	for (const char *at = bytes, *end = bytes + size; at < end;) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));
		size_t n = (size_t)((stop ? stop + 1 : end) - at);
		ret_text->lines[ret_text->count++] = (struct line){ at, n };
		at += n;
	}
	return 0;
}

static bool same(const struct line *a, const struct line *b)
{
	return a->size == b->size && memcmp(a->text, b->text, a->size) == 0;
}

static int add(struct edits *edits, char kind, size_t a, size_t b)
{
	if (edits->count == edits->room) {
		size_t room = edits->room ? 2 * edits->room : 256;
		struct edit *more = cell__realloc(edits->items, room * sizeof *more);
		if (!more)
			return -1;
		edits->items = more;
		edits->room = room;
	}
	edits->items[edits->count++] = (struct edit){ kind, a, b };
	return 0;
}

/*
 * The shortest path from (0, 0) to (n, m): round d has the furthest x on each diagonal k = x - y that d differences reach, and rounds are
 * kept to find the way back.  1: too many differences; -1: out of memory.
 */
static int shortest(const struct line *a, size_t n, const struct line *b, size_t m, int **ret_rounds, int *ret_d)
{
	const int most = MAX_DIFFERENCES, width = 2 * most + 3;
	int *rounds = NULL;
	CELL_AUTO_FREE int *v = cell__alloc((size_t)width, sizeof *v);
	if (!v)
		return -1;
	for (int d = 0; d <= most; d++) {
		int *more = cell__realloc(rounds, (size_t)(d + 1) * (size_t)width * sizeof *more);
		if (!more) {
			free(rounds);
			return -1;
		}
		rounds = more;
		memcpy(rounds + (size_t)d * (size_t)width, v, (size_t)width * sizeof *v);
		for (int k = -d; k <= d; k += 2) {
			int at = k + most + 1;
			int x = k == -d || (k != d && v[at - 1] < v[at + 1]) ? v[at + 1] : v[at - 1] + 1;
			int y = x - k;
			while (x >= 0 && y >= 0 && (size_t)x < n && (size_t)y < m && same(&a[x], &b[y])) {
				x++;
				y++;
			}
			v[at] = x;
			if ((size_t)x >= n && y >= 0 && (size_t)y >= m) {
				*ret_rounds = rounds;
				*ret_d = d;
				return 0;
			}
		}
	}
	free(rounds);
	return 1;
}

/* From the end back to the beginning. */
static int trace(const int *rounds, int d, size_t n, size_t m, struct edits *back)
{
	const int most = MAX_DIFFERENCES, width = 2 * most + 3;
	int x = (int)n, y = (int)m;
	for (; d > 0; d--) {
		const int *v = rounds + (size_t)d * (size_t)width;
		int k = x - y, at = k + most + 1;
		bool down = k == -d || (k != d && v[at - 1] < v[at + 1]);
		int before_k = down ? k + 1 : k - 1, before_x = v[before_k + most + 1], before_y = before_x - before_k;
		while (x > before_x && y > before_y)
			if (add(back, ' ', (size_t)--x, (size_t)--y) < 0)
				return -1;
		if (down ? add(back, '+', (size_t)x, (size_t)--y) < 0 : add(back, '-', (size_t)--x, (size_t)y) < 0)
			return -1;
	}
	while (x > 0 && y > 0)
		if (add(back, ' ', (size_t)--x, (size_t)--y) < 0)
			return -1;
	return 0;
}

static int replace_all(size_t n, size_t m, size_t shift, struct edits *out)
{
	for (size_t i = 0; i < n; i++)
		if (add(out, '-', shift + i, shift) < 0)
			return -1;
	for (size_t i = 0; i < m; i++)
		if (add(out, '+', shift + n, shift + i) < 0)
			return -1;
	return 0;
}

static int compare(const struct text *a, const struct text *b, struct edits *out)
{
	size_t head = 0, tail = 0;
	while (head < a->count && head < b->count && same(&a->lines[head], &b->lines[head]))
		head++;
	while (tail < a->count - head && tail < b->count - head && same(&a->lines[a->count - 1 - tail], &b->lines[b->count - 1 - tail]))
		tail++;
	size_t n = a->count - head - tail, m = b->count - head - tail;
	int *rounds = NULL, d = 0;
	for (size_t i = 0; i < head; i++)
		if (add(out, ' ', i, i) < 0)
			return -1;
	int rc = shortest(a->lines + head, n, b->lines + head, m, &rounds, &d);
	if (rc > 0) {
		rc = replace_all(n, m, head, out);
	} else if (rc == 0) {
		struct edits back = { 0 };
		rc = trace(rounds, d, n, m, &back);
		for (size_t i = back.count; rc == 0 && i-- > 0;)
			rc = add(out, back.items[i].kind, head + back.items[i].a, head + back.items[i].b);
		free(back.items);
	}
	free(rounds);
	for (size_t i = 0; rc == 0 && i < tail; i++)
		rc = add(out, ' ', head + n + i, head + m + i);
	return rc;
}

static int print_line(char kind, const struct line *line, struct cell__buf *out)
{
	int rc = cell__buf_add(out, &kind, 1) | cell__buf_add(out, line->text, line->size);
	if (line->size == 0 || line->text[line->size - 1] != '\n')
		rc |= cell__buf_add_str(out, "\n\\ No newline at end of file\n");
	return rc;
}

static int print_hunk(const struct edits *edits, size_t from, size_t to, const struct text *a, const struct text *b, struct cell__buf *out)
{
	size_t in_a = 0, in_b = 0;
	for (size_t i = from; i < to; i++) {
		in_a += edits->items[i].kind != '+';
		in_b += edits->items[i].kind != '-';
	}
	int rc = cell__buf_printf(out, "@@ -%zu,%zu +%zu,%zu @@\n", edits->items[from].a + (in_a > 0), in_a,
				  edits->items[from].b + (in_b > 0), in_b);
	for (size_t i = from; rc == 0 && i < to; i++) {
		const struct edit *edit = &edits->items[i];
		rc = print_line(edit->kind, edit->kind == '+' ? &b->lines[edit->b] : &a->lines[edit->a], out);
	}
	return rc;
}

static int print_hunks(const struct edits *edits, const struct text *a, const struct text *b, struct cell__buf *out)
{
	size_t at = 0;
	int rc = 0;
	while (rc == 0) {
		while (at < edits->count && edits->items[at].kind == ' ')
			at++;
		if (at == edits->count)
			break;
		size_t from = at > CONTEXT ? at - CONTEXT : 0, to = at, quiet = 0;
		for (; to < edits->count && quiet <= 2 * CONTEXT; to++)
			quiet = edits->items[to].kind == ' ' ? quiet + 1 : 0;
		at = to;
		if (quiet > CONTEXT)
			to -= quiet - CONTEXT;
		rc = print_hunk(edits, from, to, a, b, out);
	}
	return rc;
}

int cell__unified(const char *path, const char *a, size_t a_size, const char *b, size_t b_size, struct cell__buf *out)
{
	struct text old = { 0 }, new = { 0 };
	struct edits edits = { 0 };
	int rc = split(a, a_size, &old) | split(b, b_size, &new);
	if (rc == 0)
		rc = compare(&old, &new, &edits);
	if (rc == 0)
		rc = cell__buf_printf(out, "--- a/%s\n+++ b/%s\n", path, path);
	if (rc == 0)
		rc = print_hunks(&edits, &old, &new, out);
	free(old.lines);
	free(new.lines);
	free(edits.items);
	return rc < 0 ? -1 : 0;
}
