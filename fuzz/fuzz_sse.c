/*
 * wire/sse.  Input: two bytes that say where the stream is split, then the stream.  Whole or in two pieces the same events
 * come out, within the bound; an event that is written again is read as the same.
 */
#include "base/base.h"
#include "fuzz.h"
#include "wire/sse.h"

#define MAX_EVENT 2000
#define MAX_EVENTS 4096

struct found {
	unsigned sum;
	size_t size;
};

static unsigned add(unsigned sum, const char *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		sum = sum * 31 + (unsigned char)bytes[i];
	return sum;
}

static void write_again(const struct cell__sse_event *event)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	MUST(cell__sse_add_event(&text, event->type, event->id, event->data, event->size) == 0);
	struct cell__sse sse;
	cell__sse_init(&sse, MAX_EVENT);
	struct cell__sse_event again;
	const char *bytes = text.data;
	size_t size = text.size;
	MUST(cell__sse_next(&sse, &bytes, &size, &again, NULL) == 1);
	MUST(size == 0 && again.size == event->size && memcmp(again.data, event->data, event->size) == 0);
	MUST(strcmp(again.id, event->id) == 0);
	MUST(strcmp(again.type, event->type) == 0);
	cell__sse_finish(&sse);
}

/* -1: the stream went wrong. */
static int take(struct cell__sse *sse, const uint8_t *data, size_t left, struct found *out, int n)
{
	uint8_t *copy = fuzz_copy(data, left);
	const char *bytes = (const char *)copy;
	struct cell__sse_event event;
	int rc;
	while ((rc = cell__sse_next(sse, &bytes, &left, &event, NULL)) == 1 && n < MAX_EVENTS) {
		MUST(event.size <= MAX_EVENT && event.data[event.size] == '\0');
		MUST(strlen(event.id) <= CELL_SSE_MAX_ID && strlen(event.type) <= CELL_SSE_MAX_NAME);
		MUST(sse->retry_ms >= -1 && sse->retry_ms <= CELL_SSE_MAX_RETRY_MS);
		unsigned sum = add(add(add(0, event.type, strlen(event.type)), event.id, strlen(event.id)), event.data, event.size);
		out[n++] = (struct found){ sum, event.size };
		write_again(&event);
	}
	MUST(rc != 0 || left == 0);
	free(copy);
	return rc < 0 ? -1 : n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct found whole[MAX_EVENTS + 1], pieces[MAX_EVENTS + 1];
	if (size < 2)
		return 0;
	size_t split = data[0] | (size_t)data[1] << 8;
	data += 2;
	size -= 2;
	if (split > size)
		split = size;
	struct cell__sse sse;
	cell__sse_init(&sse, MAX_EVENT);
	int n_whole = take(&sse, data, size, whole, 0);
	cell__sse_finish(&sse);
	int n = take(&sse, data, split, pieces, 0);
	if (n >= 0)
		n = take(&sse, data + split, size - split, pieces, n);
	cell__sse_finish(&sse);
	MUST((n < 0) == (n_whole < 0));
	MUST(n < 0 || n == n_whole);
	for (int i = 0; i < n; i++)
		MUST(whole[i].sum == pieces[i].sum && whole[i].size == pieces[i].size);
	return 0;
}
