/*
 * A log of server-sent events with its readers: the events of a run, or of a stream of the MCP server.  An event is kept as the
 * text that is sent.
 *
 *     first ... │ sent to all readers, kept for resuming │ wanted ... │ last
 *               └── dropped past stream_bytes of these   └── behind_bytes: the owner pauses its source
 *
 * A reader whose connection broke is waited for: events it has not received are kept for resume_ms (for as long as the log if it is
 * patient).  After that, and for a log without a reader, the oldest events are dropped.  The last event is kept as long as the log.
 *
 * A log with max_bytes never waits for a reader, and keeps no more than that: a slow one loses the oldest events, and is told.
 */
#define _GNU_SOURCE 1 /* POLLRDHUP */
#include "server/server.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "wire/connect.h"
#include "wire/sse.h"

#define BLOCK_BYTES (32u * 1024u)
#define ALIVE_US 15000000 /* of silence, or less if connections may be idle for a short time only */

struct cell__events_reader {
	struct cell__events *events;
	struct MHD_Connection *connection;
	struct cell__events_item *at; /* the next event; NULL: none yet */
	size_t sent;                  /* of it */
	uint64_t at_bytes;            /* its beginning, in bytes of all events ever added */
	struct cell__buf before;      /* a gap, a comment: sent first */
	uint64_t missed;              /* events that were dropped before it could read them, since it was last told */
	bool suspended, released, cut;
	int64_t moved_us;
	struct cell__events_reader *sibling, **at_list;
};

static void wake(struct cell__events_reader *reader)
{
	if (!reader->suspended)
		return;
	reader->suspended = false;
	MHD_resume_connection(reader->connection);
	cell__http_kick(reader->events->server);
}

/* Drops an event that this reader has not received, or only in part: then its rest is kept for it. */
static void skip_item(struct cell__events_reader *reader, const struct cell__events_item *item)
{
	if (reader->sent)
		(void)cell__buf_add(&reader->before, item->text + reader->sent, item->size - reader->sent);
	else
		reader->missed++;
	reader->sent = 0;
	reader->at = item->next;
	reader->at_bytes += item->size;
}

static void drop_first(struct cell__events *events)
{
	struct cell__events_item *item = events->first;

	for (struct cell__events_reader *reader = events->readers; reader; reader = reader->sibling) {
		if (reader->at == item)
			skip_item(reader, item);
	}
	events->first = item->next;
	if (!events->first)
		events->last = NULL;
	events->dropped_bytes += item->size;
	events->first_number++;
	events->bytes -= item->size;
	if (events->kept)
		events->server->ended_bytes -= item->size;
	free(item);
}

/* Drops events that no reader needs, and computes how far the slowest reader is behind. */
static void trim(struct cell__events *events)
{
	uint64_t end = events->dropped_bytes + events->bytes, wanted = events->awaited ? events->wanted_bytes : end;

	for (struct cell__events_reader *reader = events->readers; reader; reader = reader->sibling) {
		if (reader->at_bytes < wanted)
			wanted = reader->at_bytes;
	}
	while (events->max_bytes && events->bytes > events->max_bytes && events->first != events->last)
		drop_first(events);
	/* Bytes sent to a connection that broke may not have arrived: they are kept longer than needed. */
	while (!events->max_bytes && wanted > events->dropped_bytes + (uint64_t)events->server->limits.stream_bytes &&
	       events->first != events->last)
		drop_first(events);
	events->behind_bytes = end - wanted;
	if (events->moved)
		events->moved(events);
}

void cell__events_init(struct cell__events *events, struct cell_server *server)
{
	*events = (struct cell__events){ .server = server, .first_number = 1, .next_number = 1 };
}

void cell__events_finish(struct cell__events *events)
{
	cell__events_forget(events);
	while (events->first)
		drop_first(events);
}

static int add_text(const struct cell__events *events, struct cell__buf *out, const char *type, const char *id, const char *json,
		    size_t size)
{
	int rc;

	switch (events->form) {
	case CELL_EVENTS_LINES:
		rc = cell__buf_add(out, json, size);
		return rc | cell__buf_add_str(out, "\n");
	case CELL_EVENTS_ENVELOPES:
		return cell__connect_add(out, type && !strcmp(type, "end") ? CELL_CONNECT_END : 0, json, size);
	default:
		return cell__sse_add_event(out, type, events->nameless ? NULL : id, json, size);
	}
}

/* Bytes that keep the connection, and tell the reader nothing. */
static void add_alive(struct cell__events_reader *reader, const char *words)
{
	const struct cell__events *events = reader->events;

	if (events->form == CELL_EVENTS_SSE)
		(void)cell__sse_add_comment(&reader->before, words);
	else
		(void)add_text(events, &reader->before, NULL, NULL, events->alive, strlen(events->alive));
}

struct cell__events_item *cell__events_add(struct cell__events *events, const char *type, const char *json, size_t size)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell__events_item *item;
	char id[64];

	snprintf(id, sizeof(id), "%s%llu", events->prefix, (unsigned long long)events->next_number);
	if (add_text(events, &text, type, id, json, size) < 0 || !(item = cell__alloc(1, sizeof(*item) + text.size)))
		return NULL;
	item->size = text.size;
	item->next = NULL;
	memcpy(item->text, text.data, text.size);
	events->next_number++;
	if (events->last)
		events->last->next = item;
	else
		events->first = item;
	events->last = item;
	events->bytes += item->size;
	if (events->kept)
		events->server->ended_bytes += item->size;
	for (struct cell__events_reader *reader = events->readers; reader; reader = reader->sibling) {
		if (!reader->at)
			reader->at = item;
		wake(reader);
	}
	trim(events);
	return item;
}

bool cell__events_drop(struct cell__events *events)
{
	if (events->first) {
		drop_first(events);
		return true;
	}
	events->first_number++;
	events->next_number++;
	return false;
}

void cell__events_prime(struct cell__events *events)
{
	char id[64];

	snprintf(id, sizeof(id), "%s0", events->prefix);
	/* When to come back, if the stream breaks off: at once would be a loop. */
	(void)cell__buf_add_str(&events->readers->before, "retry: 1000\n");
	(void)cell__sse_add_event(&events->readers->before, NULL, id, "", 0);
}

void cell__events_end(struct cell__events *events)
{
	events->ended = true;
	for (struct cell__events_reader *reader = events->readers; reader; reader = reader->sibling)
		wake(reader);
}

void cell__events_keep(struct cell__events *events)
{
	if (!events->kept)
		events->server->ended_bytes += events->bytes;
	events->kept = true;
}

void cell__events_forget(struct cell__events *events)
{
	if (events->kept)
		events->server->ended_bytes -= events->bytes;
	events->kept = false;
}

void cell__events_release(struct cell__events *events)
{
	for (struct cell__events_reader *reader = events->readers; reader; reader = reader->sibling) {
		reader->released = true;
		wake(reader);
	}
}

void cell__events_release_newest(struct cell__events *events)
{
	events->readers->released = true;
}

void cell__events_cut(struct cell__events *events)
{
	for (struct cell__events_reader *reader = events->readers; reader; reader = reader->sibling) {
		reader->cut = true;
		reader->at = NULL;
		wake(reader);
	}
	while (events->first)
		drop_first(events);
}

/*
 * Whether a suspended reader's client has left.  libmicrohttpd does not look at a suspended connection.  One that only finished sending is
 * written to: if it closed its socket, the answer to that is an error.
 */
static bool has_left(struct cell__events_reader *reader)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(reader->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	struct pollfd fd = { .fd = info ? info->connect_fd : -1, .events = POLLRDHUP };

	if (!reader->suspended || poll(&fd, 1, 0) <= 0)
		return false;
	if (fd.revents & POLLRDHUP)
		add_alive(reader, "still there?");
	return fd.revents & (POLLHUP | POLLERR);
}

/* Several of them fit into the time after which a connection counts as idle, here or in a proxy with the same limit. */
static int64_t alive_us(const struct cell_server *server)
{
	int64_t us = server->limits.silent_ms * 1000 / 5;

	return us < ALIVE_US ? us : ALIVE_US;
}

void cell__events_sweep(struct cell__events *events, int64_t now_us)
{
	int64_t silent_us = alive_us(events->server);

	for (struct cell__events_reader *reader = events->readers; reader; reader = reader->sibling) {
		if (events->nameless && has_left(reader)) {
			reader->cut = true;
			wake(reader);
			continue;
		}
		if (now_us - reader->moved_us > silent_us && !reader->sent) {
			add_alive(reader, "still here");
			reader->moved_us = now_us;
		}
		if (reader->before.size)
			wake(reader);
	}
	if (events->awaited && !events->patient &&
	    (events->server->draining || now_us - events->left_us > events->server->limits.resume_ms * 1000)) {
		events->awaited = false;
		trim(events);
	}
}

/* ---- readers ---- */

static void add_gap(struct cell__events_reader *reader, uint64_t missed)
{
	char text[64];
	int n;

	if (reader->events->form != CELL_EVENTS_SSE)
		return;
	n = snprintf(text, sizeof(text), "{\"missed\":%llu}", (unsigned long long)missed);

	(void)cell__sse_add_event(&reader->before, "gap", NULL, text, (size_t)n);
}

static ssize_t read_events(void *arg, uint64_t position, char *out, size_t max)
{
	struct cell__events_reader *reader = arg;
	struct cell__events *events = reader->events;
	size_t used = 0, n;

	(void)position;
	if (reader->cut)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	if (reader->missed && !reader->sent && !reader->before.size) {
		add_gap(reader, reader->missed);
		reader->missed = 0;
	}
	if (reader->before.size) {
		used = reader->before.size < max ? reader->before.size : max;
		memcpy(out, reader->before.data, used);
		cell__buf_shift(&reader->before, used);
	}
	while (reader->at && used < max && !reader->before.size) {
		n = reader->at->size - reader->sent;
		n = n < max - used ? n : max - used;
		memcpy(out + used, reader->at->text + reader->sent, n);
		used += n;
		reader->sent += n;
		if (reader->sent == reader->at->size) {
			reader->at_bytes += reader->at->size;
			reader->at = reader->at->next;
			reader->sent = 0;
		}
	}
	if (used) {
		reader->moved_us = cell__now_us();
		trim(events);
		return (ssize_t)used;
	}
	if (events->ended || reader->released)
		return events->broken ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
	reader->suspended = true;
	MHD_suspend_connection(reader->connection);
	return 0;
}

static void reader_free(void *arg)
{
	struct cell__events_reader *reader = arg;
	struct cell__events *events = reader->events;

	*reader->at_list = reader->sibling;
	if (reader->sibling)
		reader->sibling->at_list = reader->at_list;
	if (!--events->n_readers && !events->ended && !events->max_bytes && !events->nameless) {
		/* An event that was sent in part counts as not received. */
		events->awaited = true;
		events->wanted_bytes = reader->at_bytes;
		events->left_us = cell__now_us();
	}
	trim(events);
	cell__buf_finish(&reader->before);
	free(reader);
	events->unref(events);
}

/* The position at which a reader continues, and its message if that position has been dropped. */
static void find_place(struct cell__events_reader *reader, uint64_t after, bool tell_gaps)
{
	struct cell__events *events = reader->events;
	uint64_t number = events->first_number;

	if (tell_gaps && after + 1 < number)
		add_gap(reader, number - after - 1);
	reader->at = events->first;
	reader->at_bytes = events->dropped_bytes;
	for (; reader->at && number <= after; number++) {
		reader->at_bytes += reader->at->size;
		reader->at = reader->at->next;
	}
}

struct MHD_Response *cell__events_read(struct cell__request *request, struct cell__events *events, uint64_t after, bool tell_gaps)
{
	static const char *const types[] = { "text/event-stream", "application/x-ndjson", "application/connect+json" };
	struct cell__events_reader *reader = NULL;
	struct MHD_Response *response;

	if (events->n_readers == CELL_SERVER_MAX_READERS) {
		cell__answer_busy(request, 5, "too many clients read these events");
		return NULL;
	}
	reader = cell__alloc(1, sizeof(*reader));
	response = reader ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_events, reader, reader_free) : NULL;
	if (!response) {
		free(reader);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a reader");
		return NULL;
	}
	*reader = (struct cell__events_reader){ .events = events,
						.connection = request->connection,
						.moved_us = cell__now_us(),
						.sibling = events->readers,
						.at_list = &events->readers };
	if (reader->sibling)
		reader->sibling->at_list = &reader->sibling;
	events->readers = reader;
	events->n_readers++;
	events->awaited = false;
	events->left_us = 0;
	find_place(reader, after, tell_gaps);
	MHD_add_response_header(response, "Content-Type", types[events->form]);
	MHD_add_response_header(response, "Cache-Control", "no-store");
	MHD_add_response_header(response, "X-Accel-Buffering", "no");
	return response;
}
