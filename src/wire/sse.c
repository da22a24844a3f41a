#include "wire/sse.h"

#include <string.h>

#define MAX_DIGITS 19 /* of a number that certainly fits */

void cell__sse_init(struct cell__sse *sse, size_t max_bytes)
{
	*sse = (struct cell__sse){ .max_bytes = max_bytes, .retry_ms = -1 };
}

void cell__sse_finish(struct cell__sse *sse)
{
	cell__buf_finish(&sse->line);
	cell__buf_finish(&sse->data);
	cell__sse_init(sse, sse->max_bytes);
}

static void clear(struct cell__buf *buf)
{
	if (buf->capacity > 65536)
		cell__buf_finish(buf); /* one long event must not keep its memory for ever */
	buf->size = 0;
}

void cell__sse_restart(struct cell__sse *sse)
{
	clear(&sse->line);
	clear(&sse->data);
	sse->type[0] = '\0';
	memcpy(sse->new_id, sse->id, sizeof sse->id);
	sse->start = 0;
	sse->after_cr = sse->has_data = sse->dispatched = sse->failed = false;
}

static int fail(struct cell__sse *sse, struct cell_error *err, int code, const char *what)
{
	sse->failed = true;
	return cell_fail(err, code, 0, "event stream: %s", what);
}

static bool is(const char *name, size_t size, const char *wanted)
{
	return size == strlen(wanted) && memcmp(name, wanted, size) == 0;
}

static void set_retry(struct cell__sse *sse, const char *value, size_t size)
{
	int64_t ms = 0;
	if (size == 0)
		return;
	for (size_t i = 0; i < size; i++) {
		if (value[i] < '0' || value[i] > '9')
			return;
		ms = ms * 10 + (value[i] - '0');
		if (ms > CELL_SSE_MAX_RETRY_MS)
			ms = CELL_SSE_MAX_RETRY_MS;
	}
	sse->retry_ms = ms;
}

static int set_text(struct cell__sse *sse, char *out, size_t max, const char *value, size_t size, struct cell_error *err)
{
	if (size > max)
		return fail(sse, err, CELL_E_LIMIT, "the type or the id of an event is too long");
	memcpy(out, value, size);
	out[size] = '\0';
	return 0;
}

static int add_data(struct cell__sse *sse, const char *value, size_t size, struct cell_error *err)
{
	if (sse->data.size + (sse->has_data ? 1 : 0) + size > sse->max_bytes)
		return fail(sse, err, CELL_E_LIMIT, "an event is larger than the limit");
	if ((sse->has_data && cell__buf_add(&sse->data, "\n", 1) < 0) || cell__buf_add(&sse->data, value, size) < 0)
		return fail(sse, err, CELL_E_NOMEM, "out of memory for an event");
	sse->has_data = true;
	return 0;
}

static int handle_field(struct cell__sse *sse, const char *line, size_t size, struct cell_error *err)
{
	const char *colon = memchr(line, ':', size);
	size_t name = colon ? (size_t)(colon - line) : size;
	const char *value = colon ? colon + 1 : "";
	size_t n = colon ? size - name - 1 : 0;
	if (n > 0 && *value == ' ') {
		value++;
		n--;
	}
	if (is(line, name, "data"))
		return add_data(sse, value, n, err);
	/* An id with a NUL is ignored; a type with one cannot be a known type. */
	bool nul = n > 0 && memchr(value, '\0', n);
	if (is(line, name, "event"))
		return nul ? 0 : set_text(sse, sse->type, CELL_SSE_MAX_NAME, value, n, err);
	if (is(line, name, "id"))
		return nul ? 0 : set_text(sse, sse->new_id, CELL_SSE_MAX_ID, value, n, err);
	if (is(line, name, "retry"))
		set_retry(sse, value, n);
	return 0; /* a comment, or an unknown field */
}

/* An empty line: 1 when that makes an event. */
static int dispatch(struct cell__sse *sse, struct cell__sse_event *ret_event)
{
	memcpy(sse->id, sse->new_id, strlen(sse->new_id) + 1);
	if (!sse->has_data) {
		sse->type[0] = '\0';
		return 0;
	}
	sse->dispatched = true;
	*ret_event = (struct cell__sse_event){
		.type = sse->type[0] ? sse->type : "message",
		.data = sse->data.data ? sse->data.data : "",
		.size = sse->data.size,
		.id = sse->id,
	};
	return 1;
}

static int end_line(struct cell__sse *sse, struct cell__sse_event *ret_event, struct cell_error *err)
{
	if (sse->line.size == 0)
		return dispatch(sse, ret_event);
	int rc = handle_field(sse, sse->line.data, sse->line.size, err);
	clear(&sse->line);
	return rc;
}

/* Bytes that belong to the line, up to a line break. */
static size_t line_part(const char *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (bytes[i] == '\n' || bytes[i] == '\r')
			return i;
	return size;
}

/* Skips a byte order mark at the very start. A partial mark is part of the first line. */
static int skip_mark(struct cell__sse *sse, const char **bytes, size_t *size)
{
	static const char mark[3] = { '\xef', '\xbb', '\xbf' };
	while (sse->start < 3 && *size > 0) {
		if (**bytes != mark[sse->start]) {
			int rc = cell__buf_add(&sse->line, mark, sse->start);
			sse->start = 3;
			return rc;
		}
		sse->start++;
		(*bytes)++;
		(*size)--;
	}
	return 0;
}

int cell__sse_next(struct cell__sse *sse, const char **bytes, size_t *size, struct cell__sse_event *ret_event, struct cell_error *err)
{
	if (sse->failed)
		return cell_fail(err, CELL_E_PROTOCOL, 0, "the event stream failed earlier");
	if (sse->dispatched) {
		clear(&sse->data);
		sse->type[0] = '\0';
		sse->has_data = sse->dispatched = false;
	}
	if (skip_mark(sse, bytes, size) < 0)
		return fail(sse, err, CELL_E_NOMEM, "out of memory for an event");
	while (*size > 0) {
		if (sse->after_cr && **bytes == '\n') {
			(*bytes)++;
			(*size)--;
			sse->after_cr = false;
			continue;
		}
		sse->after_cr = false;
		size_t n = line_part(*bytes, *size);
		/* Room for the name of a field before the data. */
		if (sse->line.size + n > sse->max_bytes + 64)
			return fail(sse, err, CELL_E_LIMIT, "a line is longer than the limit");
		if (cell__buf_add(&sse->line, *bytes, n) < 0)
			return fail(sse, err, CELL_E_NOMEM, "out of memory for an event");
		*bytes += n;
		*size -= n;
		if (*size == 0)
			break;
		sse->after_cr = **bytes == '\r';
		(*bytes)++;
		(*size)--;
		int rc = end_line(sse, ret_event, err);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* ---- writing ---- */

static bool one_line(const char *text)
{
	return !strpbrk(text, "\r\n");
}

static int add_field(struct cell__buf *buf, const char *name, const char *value, size_t size)
{
	if (cell__buf_add_str(buf, name) < 0 || cell__buf_add(buf, ": ", 2) < 0 || cell__buf_add(buf, value, size) < 0)
		return -1;
	return cell__buf_add(buf, "\n", 1);
}

/* Every line of the data is a separate field; the kind of its line ends is lost. */
static int add_data_lines(struct cell__buf *buf, const char *data, size_t size)
{
	for (;;) {
		size_t n = line_part(data, size);
		if (add_field(buf, "data", data, n) < 0)
			return -1;
		if (n == size)
			return 0;
		n += data[n] == '\r' && n + 1 < size && data[n + 1] == '\n' ? 2 : 1;
		data += n;
		size -= n;
	}
}

int cell__sse_add_event(struct cell__buf *buf, const char *type, const char *id, const char *data, size_t size)
{
	if ((type && (!one_line(type) || strlen(type) > CELL_SSE_MAX_NAME)) || (id && (!one_line(id) || strlen(id) > CELL_SSE_MAX_ID)))
		return -1;
	size_t start = buf->size;
	if ((type && add_field(buf, "event", type, strlen(type)) < 0) || (id && add_field(buf, "id", id, strlen(id)) < 0) ||
	    add_data_lines(buf, data, size) < 0 || cell__buf_add(buf, "\n", 1) < 0) {
		buf->size = start;
		return -1;
	}
	return 0;
}

int cell__sse_add_comment(struct cell__buf *buf, const char *text)
{
	return one_line(text) ? cell__buf_printf(buf, ": %s\n\n", text) : -1;
}

/* Digits only; returns their end. */
static const char *read_number(const char *text, uint64_t *ret_number)
{
	size_t size = strspn(text, "0123456789");

	*ret_number = 0;
	if (!size || size > MAX_DIGITS)
		return NULL;
	for (size_t i = 0; i < size; i++)
		*ret_number = *ret_number * 10 + (uint64_t)(text[i] - '0');
	return text + size;
}

bool cell__sse_read_id(const char *text, uint64_t *ret_stream, uint64_t *ret_event)
{
	const char *rest = read_number(text, ret_stream);

	rest = rest && *rest == '-' ? read_number(rest + 1, ret_event) : NULL;
	return rest && !*rest;
}
