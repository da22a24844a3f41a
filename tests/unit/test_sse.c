/* wire/sse: Server-Sent Events, read and written. */
#include "support.h"
#include "wire/sse.h"

struct wanted {
	const char *type, *data, *id;
};

/* Feeds the stream in pieces of `step` bytes and compares what comes out. */
static void expect_stepwise(const char *stream, size_t size, size_t step, const struct wanted *wanted, size_t n)
{
	struct cell__sse sse;
	cell__sse_init(&sse, 1000);
	size_t found = 0;
	for (size_t at = 0; at < size; at += step) {
		size_t left = size - at < step ? size - at : step;
		/* Memory of exactly this size, so that a sanitizer sees a look past the end. */
		char *piece = malloc(left);
		memcpy(piece, stream + at, left);
		const char *bytes = piece;
		struct cell__sse_event event;
		int rc;
		while ((rc = cell__sse_next(&sse, &bytes, &left, &event, NULL)) == 1) {
			assert_true(found < n);
			assert_string_equal(event.type, wanted[found].type);
			assert_string_equal(event.data, wanted[found].data);
			assert_int_equal(event.size, strlen(wanted[found].data));
			assert_string_equal(event.id, wanted[found].id);
			found++;
		}
		assert_int_equal(rc, 0);
		assert_int_equal(left, 0);
		free(piece);
	}
	assert_int_equal(found, n);
	cell__sse_finish(&sse);
}

static void expect(const char *stream, const struct wanted *wanted, size_t n)
{
	for (size_t step = 1; step <= strlen(stream); step++)
		expect_stepwise(stream, strlen(stream), step, wanted, n);
}

#define EXPECT(stream, ...)                                          \
	do {                                                         \
		static const struct wanted list[] = { __VA_ARGS__ }; \
		expect(stream, list, COUNT(list));                   \
	} while (0)

static void test_events(void **state)
{
	(void)state;
	EXPECT("data: a\n\n", { "message", "a", "" });
	EXPECT("data:a\n\ndata:  b\n\n", { "message", "a", "" }, { "message", " b", "" });
	EXPECT("event: endpoint\ndata: /m?x=1\n\ndata: b\n\n", { "endpoint", "/m?x=1", "" }, { "message", "b", "" });
	EXPECT("data: a\ndata: b\ndata\ndata:\n\n", { "message", "a\nb\n\n", "" });
	EXPECT("id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", { "message", "a", "1" }, { "message", "b", "1" }, { "message", "c", "" });
	/* An id counts even where there is no data. */
	EXPECT("id: 7\n\ndata: a\n\n", { "message", "a", "7" });
	EXPECT("data:\n\n", { "message", "", "" });
	EXPECT(": comment\n\n:\nunknown: x\nDATA: x\ndata: a\n\n", { "message", "a", "" });
	EXPECT("event: x\n\ndata: a\n\n", { "message", "a", "" });
	EXPECT("data: a: b\n\n", { "message", "a: b", "" });
	/* What does not end is no event. */
	expect("data: a\n", NULL, 0);
	expect("data: a", NULL, 0);
	expect("\n\n\n", NULL, 0);
}

static void test_line_breaks(void **state)
{
	(void)state;
	EXPECT("data: a\r\rdata: b\r\n\r\ndata: c\n\ndata: d\r\n\n\rdata: e\r\r\n", { "message", "a", "" }, { "message", "b", "" },
	       { "message", "c", "" }, { "message", "d", "" }, { "message", "e", "" });
	EXPECT("data: a\r\ndata: b\r\n\r\n", { "message", "a\nb", "" });
}

static void test_mark(void **state)
{
	(void)state;
	EXPECT("\xef\xbb\xbf"
	       "data: a\n\n",
	       { "message", "a", "" });
	/* Only one, and only at the start; what begins like one is part of a field's name. */
	EXPECT("\xef\xbb"
	       "data: a\n\ndata: b\n\n",
	       { "message", "b", "" });
	EXPECT("\xef\xbb\xbf\xef\xbb\xbf"
	       "data: a\n\ndata: b\n\n",
	       { "message", "b", "" });
}

static void test_nul(void **state)
{
	(void)state;
	static const char stream[] = "id: a\0b\ndata: x\n\nid: c\nevent: e\0\ndata: y\n\n";
	static const struct wanted list[] = { { "message", "x", "" }, { "message", "y", "c" } };
	for (size_t step = 1; step < sizeof stream; step++)
		expect_stepwise(stream, sizeof stream - 1, step, list, COUNT(list));
	struct cell__sse sse;
	cell__sse_init(&sse, 100);
	const char *bytes = "data: a\0b\n\n";
	size_t left = 11;
	struct cell__sse_event event;
	assert_int_equal(cell__sse_next(&sse, &bytes, &left, &event, NULL), 1);
	assert_int_equal(event.size, 3);
	assert_memory_equal(event.data, "a\0b", 4);
	cell__sse_finish(&sse);
}

static int64_t retry_of(const char *stream)
{
	struct cell__sse sse;
	cell__sse_init(&sse, 100);
	struct cell__sse_event event;
	size_t left = strlen(stream);
	assert_int_equal(cell__sse_next(&sse, &stream, &left, &event, NULL), 0);
	int64_t retry_ms = sse.retry_ms;
	cell__sse_finish(&sse);
	return retry_ms;
}

static void test_retry(void **state)
{
	(void)state;
	assert_int_equal(retry_of("data: a\n"), -1);
	assert_int_equal(retry_of("retry: 250\n"), 250);
	assert_int_equal(retry_of("retry:0\n"), 0);
	assert_int_equal(retry_of("retry: 250\nretry: x\nretry: -1\nretry:\nretry: 1.5\n"), 250);
	assert_int_equal(retry_of("retry: 99999999999999999999999999999999\n"), CELL_SSE_MAX_RETRY_MS);
}

/* 1, 0 or -1 as the first call says; the stream must stay broken. */
static int first(const char *stream, size_t max, int *ret_code)
{
	struct cell__sse sse;
	cell__sse_init(&sse, max);
	struct cell__sse_event event;
	struct cell_error err = { 0 };
	size_t left = strlen(stream);
	int rc = cell__sse_next(&sse, &stream, &left, &event, &err);
	if (rc < 0) {
		const char *more = "\n\ndata: x\n\n";
		size_t n = strlen(more);
		assert_int_equal(cell__sse_next(&sse, &more, &n, &event, NULL), -1);
	}
	*ret_code = err.code;
	cell__sse_finish(&sse);
	return rc;
}

static char *with_field(const char *name, size_t size)
{
	struct cell__buf buf = CELL_BUF_INIT;
	cell__buf_add_str(&buf, name);
	cell__buf_add_str(&buf, ": ");
	for (size_t i = 0; i < size; i++)
		cell__buf_add(&buf, "x", 1);
	cell__buf_add_str(&buf, "\ndata: a\n\n");
	return cell__buf_take(&buf);
}

static void test_bounds(void **state)
{
	(void)state;
	int code;
	assert_int_equal(first("data: 0123456789\n\n", 10, &code), 1);
	assert_int_equal(first("data: 0123456789a\n\n", 10, &code), -1);
	assert_int_equal(code, CELL_E_LIMIT);
	assert_int_equal(first("data: 01234\ndata: 5678\n\n", 10, &code), 1);
	assert_int_equal(first("data: 01234\ndata: 56789\n\n", 10, &code), -1);
	assert_int_equal(code, CELL_E_LIMIT);
	static const struct {
		const char *name;
		size_t max;
	} fields[] = { { "event", CELL_SSE_MAX_NAME }, { "id", CELL_SSE_MAX_ID } };
	for (size_t i = 0; i < COUNT(fields); i++) {
		CELL_AUTO_FREE char *fits = with_field(fields[i].name, fields[i].max);
		CELL_AUTO_FREE char *past = with_field(fields[i].name, fields[i].max + 1);
		assert_int_equal(first(fits, 10000, &code), 1);
		assert_int_equal(first(past, 10000, &code), -1);
		assert_int_equal(code, CELL_E_LIMIT);
	}
	/* A line that never ends. */
	struct cell__sse sse;
	cell__sse_init(&sse, 1000);
	struct cell__sse_event event;
	int rc = 0;
	for (int i = 0; i < 200 && rc == 0; i++) {
		const char *bytes = "0123456789";
		size_t left = 10;
		rc = cell__sse_next(&sse, &bytes, &left, &event, NULL);
		assert_true(sse.line.size <= 1064);
	}
	assert_int_equal(rc, -1);
	cell__sse_finish(&sse);
}

static void test_restart(void **state)
{
	(void)state;
	struct cell__sse sse;
	cell__sse_init(&sse, 1000);
	struct cell__sse_event event;
	const char *bytes = "retry: 5\nid: 3\ndata: a\n\nid: 4\nevent: e\ndata: cut";
	size_t left = strlen(bytes);
	assert_int_equal(cell__sse_next(&sse, &bytes, &left, &event, NULL), 1);
	assert_int_equal(cell__sse_next(&sse, &bytes, &left, &event, NULL), 0);
	assert_string_equal(sse.id, "3");
	cell__sse_restart(&sse);
	bytes = "data: b\n\n";
	left = strlen(bytes);
	assert_int_equal(cell__sse_next(&sse, &bytes, &left, &event, NULL), 1);
	assert_string_equal(event.id, "3");
	assert_string_equal(event.data, "b");
	assert_string_equal(event.type, "message");
	assert_int_equal(sse.retry_ms, 5);
	cell__sse_finish(&sse);
}

static void test_writing(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
	assert_int_equal(cell__sse_add_event(&buf, NULL, NULL, "a", 1), 0);
	assert_string_equal(buf.data, "data: a\n\n");
	buf.size = 0;
	assert_int_equal(cell__sse_add_event(&buf, "endpoint", "7", "a\nb\r\nc\r\n", 8), 0);
	assert_string_equal(buf.data, "event: endpoint\nid: 7\ndata: a\ndata: b\ndata: c\ndata: \n\n");
	buf.size = 0;
	assert_int_equal(cell__sse_add_event(&buf, NULL, "", "", 0), 0);
	assert_string_equal(buf.data, "id: \ndata: \n\n");
	buf.size = 0;
	assert_int_equal(cell__sse_add_comment(&buf, "here"), 0);
	assert_string_equal(buf.data, ": here\n\n");
	size_t before = buf.size;
	assert_int_equal(cell__sse_add_event(&buf, "a\nb", NULL, "", 0), -1);
	assert_int_equal(cell__sse_add_event(&buf, NULL, "a\rb", "", 0), -1);
	assert_int_equal(cell__sse_add_comment(&buf, "a\nb"), -1);
	assert_int_equal(buf.size, before);
}

static void test_event_ids(void **state)
{
	(void)state;
	uint64_t stream = 9, event = 9;
	assert_true(cell__sse_read_id("0-0", &stream, &event));
	assert_true(cell__sse_read_id("12-9999999999999999999", &stream, &event));
	assert_true(stream == 12 && event == 9999999999999999999u);
	static const char *const bad[] = { "",     "-",    "1",    "1-",   "-1",    "1-2-3",
					   "1-2 ", " 1-2", "1--2", "+1-2", "0x1-2", "1-99999999999999999999" };
	for (size_t i = 0; i < COUNT(bad); i++)
		if (cell__sse_read_id(bad[i], &stream, &event))
			fail_msg("'%s' is taken for an id", bad[i]);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_events), TEST(test_line_breaks), TEST(test_mark),    TEST(test_nul),       TEST(test_retry),
		TEST(test_bounds), TEST(test_restart),     TEST(test_writing), TEST(test_event_ids),
	};
	return cmocka_run_group_tests_name("sse", tests, NULL, NULL);
}
