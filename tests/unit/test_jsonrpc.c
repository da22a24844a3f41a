/* wire/jsonrpc: messages of JSON-RPC, and the lines they come in. */
#include "support.h"
#include "wire/jsonrpc.h"

/* From memory of exactly this size, so that a sanitizer sees a look past the end. */
static int read_sized(const char *text, size_t size, bool batches, struct cell__rpc_doc *doc, struct cell_error *err)
{
	char *copy = malloc(size ? size : 1);
	memcpy(copy, text, size);
	int rc = cell__rpc_read(copy, size, batches, doc, err);
	free(copy);
	return rc;
}

/* The one message in the text; the doc is the caller's to finish. */
static int get(const char *text, struct cell__rpc_doc *doc, struct cell__rpc_message *message)
{
	assert_int_equal(read_sized(text, strlen(text), false, doc, NULL), 0);
	return cell__rpc_get(doc, 0, message, NULL);
}

static void test_kinds(void **state)
{
	(void)state;
	struct cell__rpc_doc doc;
	struct cell__rpc_message m;
	assert_int_equal(get("{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/call\",\"params\":{\"a\":1}}", &doc, &m), 0);
	assert_int_equal(m.kind, CELL__RPC_REQUEST);
	assert_int_equal(json_integer_value(m.id), 3);
	assert_string_equal(m.method, "tools/call");
	assert_int_equal(json_integer_value(json_object_get(m.params, "a")), 1);
	cell__rpc_doc_finish(&doc);

	assert_int_equal(get("{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"ping\",\"params\":null}", &doc, &m), 0);
	assert_int_equal(m.kind, CELL__RPC_REQUEST);
	assert_string_equal(json_string_value(m.id), "x");
	assert_null(m.params);
	cell__rpc_doc_finish(&doc);

	assert_int_equal(get(" {\"method\":\"notifications/initialized\",\n\"jsonrpc\":\"2.0\"}\r\n", &doc, &m), 0);
	assert_int_equal(m.kind, CELL__RPC_NOTIFICATION);
	assert_null(m.id);
	cell__rpc_doc_finish(&doc);

	assert_int_equal(get("{\"jsonrpc\":\"2.0\",\"id\":-1,\"result\":null}", &doc, &m), 0);
	assert_int_equal(m.kind, CELL__RPC_RESULT);
	assert_true(json_is_null(m.result));
	cell__rpc_doc_finish(&doc);

	assert_int_equal(get("{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32601,\"message\":\"no\",\"data\":[1]}}", &doc, &m), 0);
	assert_int_equal(m.kind, CELL__RPC_ERROR);
	assert_int_equal(m.code, CELL_RPC_METHOD_NOT_FOUND);
	assert_string_equal(m.error_text, "no");
	assert_int_equal(json_array_size(m.data), 1);
	cell__rpc_doc_finish(&doc);

	/* What could not be read is answered with null; some peers leave it out. */
	assert_int_equal(get("{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"\"}}", &doc, &m), 0);
	assert_int_equal(m.kind, CELL__RPC_ERROR);
	assert_null(m.id);
	cell__rpc_doc_finish(&doc);
	assert_int_equal(get("{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32700.0,\"message\":\"\"}}", &doc, &m), 0);
	assert_int_equal(m.code, CELL_RPC_PARSE_ERROR);
	cell__rpc_doc_finish(&doc);
	/* Some send both members, one of them null. */
	assert_int_equal(get("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{},\"error\":null}", &doc, &m), 0);
	assert_int_equal(m.kind, CELL__RPC_RESULT);
	cell__rpc_doc_finish(&doc);
	assert_int_equal(get("{\"jsonrpc\":\"2.0\",\"id\":1.0,\"result\":{}}", &doc, &m), 0);
	assert_int_equal(json_integer_value(m.id), 1);
	cell__rpc_doc_finish(&doc);
}

static void test_invalid_messages(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		int id; /* what could be read of it; 0: nothing */
	} bad[] = {
		{ "1", 0 },
		{ "null", 0 },
		{ "\"x\"", 0 },
		{ "{}", 0 },
		{ "{\"id\":1,\"method\":\"m\"}", 1 },
		{ "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"m\"}", 1 },
		{ "{\"jsonrpc\":2.0,\"id\":1,\"method\":\"m\"}", 1 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1}", 1 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":1}", 1 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\"}", 1 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\\u0000b\"}", 1 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\",\"params\":1}", 1 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"m\"}", 0 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":true,\"method\":\"m\"}", 0 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"m\"}", 0 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"m\"}", 0 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1e300,\"method\":\"m\"}", 0 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":\"a\\u0000\",\"method\":\"m\"}", 0 },
		{ "{\"jsonrpc\":\"2.0\",\"result\":1}", 0 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":null,\"result\":1}", 0 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":1,\"error\":{\"code\":1,\"message\":\"m\"}}", 1 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":\"m\"}", 1 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"message\":\"m\"}}", 1 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":1}}", 1 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":\"1\",\"message\":\"m\"}}", 1 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":[],\"error\":{\"code\":1,\"message\":\"m\"}}", 0 },
	};
	for (size_t i = 0; i < COUNT(bad); i++) {
		CELL_AUTO_RPC_DOC struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
		struct cell__rpc_message m;
		struct cell_error err = { 0 };
		assert_int_equal(read_sized(bad[i].text, strlen(bad[i].text), false, &doc, &err), 0);
		if (cell__rpc_get(&doc, 0, &m, &err) != CELL_RPC_INVALID_REQUEST)
			fail_msg("accepted: %s", bad[i].text);
		assert_int_equal(err.code, CELL_E_PROTOCOL);
		assert_int_equal(json_integer_value(m.id), bad[i].id);
	}
}

static void test_not_json(void **state)
{
	(void)state;
	static const char *const bad[] = {
		"", " ", "{", "{\"a\":}", "nonsense", "{} {}", "\xff", "\"\xed\xa0\x80\"", "NaN", "{\"a\":1e999}", "{\"\\u0000\":1}"
	};
	for (size_t i = 0; i < COUNT(bad); i++) {
		struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
		struct cell_error err = { 0 };
		if (read_sized(bad[i], strlen(bad[i]), true, &doc, &err) != CELL_RPC_PARSE_ERROR)
			fail_msg("accepted: %s", bad[i]);
		assert_int_equal(err.code, CELL_E_PROTOCOL);
		assert_null(doc.root);
	}
	struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	assert_int_equal(read_sized("{}\0x", 4, true, &doc, NULL), CELL_RPC_PARSE_ERROR);
	assert_int_equal(read_sized("{}\0", 3, true, &doc, NULL), CELL_RPC_PARSE_ERROR);
	assert_null(doc.root);
}

static void test_numbers_past_64_bits(void **state)
{
	(void)state;
	struct cell__rpc_doc doc;
	struct cell__rpc_message m;
	assert_int_equal(get("{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":123456789012345678901234567890}", &doc, &m), 0);
	assert_int_equal(json_integer_value(m.id), 7);
	assert_true(json_real_value(m.result) > 1e29 && json_real_value(m.result) < 1e30);
	cell__rpc_doc_finish(&doc);
}

static int nested(size_t depth, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	cell__buf_add_str(&text, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"]]]\\\"]\",\"x\":");
	for (size_t i = 1; i < depth; i++)
		cell__buf_add_str(&text, "[");
	for (size_t i = 1; i < depth; i++)
		cell__buf_add_str(&text, "]");
	cell__buf_add_str(&text, depth > 1 ? "}" : "0}");
	struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	int rc = read_sized(text.data, text.size, false, &doc, err);
	cell__rpc_doc_finish(&doc);
	return rc;
}

static void test_depth(void **state)
{
	(void)state;
	struct cell_error err = { 0 };
	assert_int_equal(nested(1, &err), 0);
	assert_int_equal(nested(CELL_LIMIT_JSON_DEPTH, &err), 0);
	assert_int_equal(nested(CELL_LIMIT_JSON_DEPTH + 1, &err), CELL_RPC_INVALID_REQUEST);
	assert_int_equal(err.code, CELL_E_LIMIT);
	assert_int_equal(nested(1000000, &err), CELL_RPC_INVALID_REQUEST);
	/* A string that does not end, with a backslash at its end. */
	struct cell__rpc_doc doc;
	assert_int_equal(read_sized("\"a\\", 3, false, &doc, &err), CELL_RPC_PARSE_ERROR);
}

static void test_size(void **state)
{
	(void)state;
	size_t size = CELL_RPC_MAX_BYTES + 1;
	char *text = malloc(size);
	memset(text, ' ', size);
	memcpy(text, "{}", 2);
	struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	struct cell_error err = { 0 };
	assert_int_equal(cell__rpc_read(text, size - 1, false, &doc, &err), 0);
	cell__rpc_doc_finish(&doc);
	assert_int_equal(cell__rpc_read(text, size, false, &doc, &err), CELL_RPC_INVALID_REQUEST);
	assert_int_equal(err.code, CELL_E_LIMIT);
	free(text);
	/* The same bound for what is written. */
	char *large = malloc(size);
	memset(large, 'x', size - 1);
	large[size - 1] = '\0';
	json_t *params = json_pack("[s]", large);
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
	cell__buf_add_str(&buf, "before");
	assert_int_equal(cell__rpc_add_request(&buf, 1, "m", params), -1);
	assert_int_equal(cell__rpc_add_notification(&buf, "m", params), -1);
	assert_int_equal(cell__rpc_add_result(&buf, NULL, params), -1);
	assert_int_equal(cell__rpc_add_error(&buf, NULL, 1, "m", params), -1);
	assert_int_equal(cell__rpc_add_error(&buf, NULL, 1, large, NULL), -1);
	assert_string_equal(buf.data, "before");
	json_decref(params);
	free(large);
}

static void test_batches(void **state)
{
	(void)state;
	static const char text[] = "[{\"jsonrpc\":\"2.0\",\"method\":\"a\"},1,{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}]";
	struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	struct cell__rpc_message m;
	struct cell_error err = { 0 };
	assert_int_equal(read_sized(text, sizeof text - 1, false, &doc, &err), CELL_RPC_INVALID_REQUEST);
	assert_int_equal(err.code, CELL_E_PROTOCOL);
	assert_int_equal(read_sized(text, sizeof text - 1, true, &doc, &err), 0);
	assert_true(doc.batch);
	assert_int_equal(doc.count, 3);
	assert_int_equal(cell__rpc_get(&doc, 0, &m, &err), 0);
	assert_int_equal(m.kind, CELL__RPC_NOTIFICATION);
	assert_int_equal(cell__rpc_get(&doc, 1, &m, &err), CELL_RPC_INVALID_REQUEST);
	assert_int_equal(cell__rpc_get(&doc, 2, &m, &err), 0);
	assert_int_equal(m.kind, CELL__RPC_RESULT);
	assert_int_equal(cell__rpc_get(&doc, 3, &m, &err), CELL_RPC_INVALID_REQUEST);
	cell__rpc_doc_finish(&doc);
	assert_int_equal(read_sized("[]", 2, true, &doc, &err), CELL_RPC_INVALID_REQUEST);
	for (size_t n = CELL_RPC_MAX_BATCH; n <= CELL_RPC_MAX_BATCH + 1; n++) {
		CELL_AUTO_BUF struct cell__buf many = CELL_BUF_INIT;
		for (size_t i = 0; i < n; i++)
			cell__buf_add_str(&many, i ? ",1" : "[1");
		cell__buf_add_str(&many, "]");
		bool fits = n == CELL_RPC_MAX_BATCH;
		assert_int_equal(read_sized(many.data, many.size, true, &doc, &err), fits ? 0 : CELL_RPC_INVALID_REQUEST);
		assert_int_equal(err.code, fits ? CELL_E_PROTOCOL : CELL_E_LIMIT);
		if (fits)
			cell__rpc_doc_finish(&doc);
	}
}

static void test_writing(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
	json_t *value = json_pack("{s:s}", "k", "line\nbreak \"q\" \xe2\x80\xa8");
	json_t *id = json_string("id\n");
	assert_int_equal(cell__rpc_add_request(&buf, 5, "tools/call", value), 0);
	assert_string_equal(buf.data, "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tools/call\",\"params\":"
				      "{\"k\":\"line\\nbreak \\\"q\\\" \xe2\x80\xa8\"}}");
	buf.size = 0;
	assert_int_equal(cell__rpc_add_request(&buf, -6, "ping", NULL), 0);
	assert_string_equal(buf.data, "{\"jsonrpc\":\"2.0\",\"id\":-6,\"method\":\"ping\"}");
	buf.size = 0;
	assert_int_equal(cell__rpc_add_notification(&buf, "n", NULL), 0);
	assert_string_equal(buf.data, "{\"jsonrpc\":\"2.0\",\"method\":\"n\"}");
	buf.size = 0;
	assert_int_equal(cell__rpc_add_result(&buf, id, NULL), 0);
	assert_string_equal(buf.data, "{\"jsonrpc\":\"2.0\",\"id\":\"id\\n\",\"result\":null}");
	buf.size = 0;
	assert_int_equal(cell__rpc_add_error(&buf, NULL, -32700, "bad \xff bytes", value), 0);
	assert_string_equal(buf.data, "{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32700,\"message\":\"bad \xef\xbf\xbd bytes\","
				      "\"data\":{\"k\":\"line\\nbreak \\\"q\\\" \xe2\x80\xa8\"}}}");
	/* Memory gone at any moment: the buffer is as before. */
	for (long n = 1; n < 30; n++) {
		CELL_AUTO_BUF struct cell__buf small = CELL_BUF_INIT;
		cell__alloc_fail_after(n);
		int rc = cell__rpc_add_error(&small, id, 1, "a message long enough to need more room than there is at first", value);
		cell__alloc_fail_after(0);
		assert_true(rc == 0 || small.size == 0);
		if (rc == 0)
			break;
		assert_true(n < 29);
	}
	json_decref(value);
	json_decref(id);
}

/* ---- lines ---- */

static void expect_line(struct cell__lines *lines, const char *wanted)
{
	const char *line;
	size_t size;
	assert_int_equal(cell__lines_next(lines, &line, &size), CELL__LINE_OK);
	assert_int_equal(size, strlen(wanted));
	assert_memory_equal(line, wanted, size);
}

static void expect_status(struct cell__lines *lines, enum cell__line_status wanted)
{
	const char *line;
	size_t size;
	assert_int_equal(cell__lines_next(lines, &line, &size), wanted);
}

static void add(struct cell__lines *lines, const char *text)
{
	assert_int_equal(cell__lines_add(lines, text, strlen(text)), 0);
}

static void test_lines(void **state)
{
	(void)state;
	struct cell__lines lines;
	cell__lines_init(&lines, 10);
	expect_status(&lines, CELL__LINE_MORE);
	add(&lines, "one\r\ntwo\n\n\r\nthr");
	expect_line(&lines, "one");
	expect_line(&lines, "two");
	expect_status(&lines, CELL__LINE_MORE);
	add(&lines, "ee");
	expect_status(&lines, CELL__LINE_MORE);
	add(&lines, "\nfour\n");
	expect_line(&lines, "three");
	expect_line(&lines, "four");
	expect_status(&lines, CELL__LINE_MORE);
	cell__lines_finish(&lines);
}

static void test_lines_too_long(void **state)
{
	(void)state;
	struct cell__lines lines;
	cell__lines_init(&lines, 10);
	add(&lines, "0123456789\n0123456789a\nb\n");
	expect_line(&lines, "0123456789");
	expect_status(&lines, CELL__LINE_TOO_LONG);
	expect_line(&lines, "b");
	/* One that comes in pieces is reported once, and takes no memory. */
	for (int i = 0; i < 10000; i++) {
		add(&lines, "0123456789");
		expect_status(&lines, i == 1 ? CELL__LINE_TOO_LONG : CELL__LINE_MORE);
		assert_true(lines.buf.capacity <= 64);
	}
	add(&lines, "end\nnext\n");
	expect_line(&lines, "next");
	expect_status(&lines, CELL__LINE_MORE);
	cell__lines_finish(&lines);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_kinds),    TEST(test_invalid_messages),
		TEST(test_not_json), TEST(test_numbers_past_64_bits),
		TEST(test_depth),    TEST(test_size),
		TEST(test_batches),  TEST(test_writing),
		TEST(test_lines),    TEST(test_lines_too_long),
	};
	return cmocka_run_group_tests_name("jsonrpc", tests, NULL, NULL);
}
