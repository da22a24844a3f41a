/* wire/json_check: one JSON value on one line, or not. */
#include "support.h"
#include "wire/json_check.h"

/* From memory of exactly this size, so that a sanitizer sees a look past the end. */
static bool check(const char *text, size_t size)
{
	char *copy = malloc(size ? size : 1);
	memcpy(copy, text, size);
	bool ok = cell__json_check(copy, size);
	free(copy);
	return ok;
}

static void test_accepts(void **state)
{
	(void)state;
	static const char *const good[] = {
		"null",
		"true",
		"false",
		"0",
		"-0",
		"1",
		"-1",
		"10",
		"1234567890",
		"0.5",
		"-0.5",
		"1e5",
		"1E+5",
		"1e-5",
		"1.5e300",
		"0e0",
		"1e999999",
		"123456789012345678901234567890123456789012345678901234567890", /* exact, whatever its size */
		"\"\"",
		"\"abc\"",
		"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
		"\"\\u0000\"",
		"\"\\u00e9\"",
		"\"\\uD83D\\uDE00\"",
		"\"\xc3\xa9\"",
		"\"\xf0\x9f\x98\x80\"",
		"\"\x7f\"",
		"\"\xe2\x80\xa8\"",
		"\"\\ud7ff\\ue000\"",
		"[]",
		"[ ]",
		"{}",
		"{ }",
		"[1]",
		"[1,2,3]",
		"[ 1 ,\t2 ]",
		"[[],{},[[]]]",
		"{\"a\":1}",
		"{ \"a\" : [ ] , \"b\" : { } }",
		"{\"\":null}",
		"{\"a\":1,\"a\":2}",
		" 1 ",
		"\t[1]\t",
		"[\"]\"]",
		"{\"}\":\"{\"}",
	};
	for (size_t i = 0; i < COUNT(good); i++)
		if (!check(good[i], strlen(good[i])))
			fail_msg("refused: %s", good[i]);
}

static void test_rejects(void **state)
{
	(void)state;
	static const char *const bad[] = {
		"",
		" ",
		"nul",
		"nulll",
		"True",
		"NaN",
		"Infinity",
		"-Infinity",
		"undefined",
		"+1",
		"-",
		"01",
		"-01",
		"1.",
		".5",
		"1.e5",
		"1e",
		"1e+",
		"1e1.5",
		"0x10",
		"1_000",
		"1 2",
		"--1",
		"1-",
		"'a'",
		"\"",
		"\"abc",
		"\"\\\"",
		"\"\\x41\"",
		"\"\\u12\"",
		"\"\\u12g4\"",
		"\"\\uzzzz\"",
		"\"\\u\": 1}",
		"\"\\",
		"\"\\u",
		"\"\\U0041\"",
		"\"\\ud800\"",
		"\"\\udc00\"",
		"\"\\ud800\\u0041\"",
		"\"\\ud800x\"",
		"\"\\ud800\\ud800\"",
		"\"\\udc00\\ud800\"",
		"\"\\ud800\\\"",
		"\"\\ud83d\\ude0\"",
		"\"\xff\"",
		"\"\xc3\"",
		"\"\xed\xa0\x80\"",
		"\"\xc0\x80\"",
		"\xef\xbb\xbf true",
		"\"a\nb\"",
		"\"a\tb\"",
		"\"\x01\"",
		"[1\n]",
		"\n1",
		"1\n",
		"1\r",
		"{\"a\":\n1}",
		"1\f",
		"1\v",
		"[",
		"]",
		"{",
		"}",
		"[1",
		"[1,",
		"[1,]",
		"[,1]",
		"[1 2]",
		"[1}",
		"{\"a\":1]",
		"{\"a\"}",
		"{\"a\":}",
		"{\"a\",1}",
		"{a:1}",
		"{1:1}",
		"{\"a\":1,}",
		"{,}",
		"{\"a\":1 \"b\":2}",
		"[]]",
		"{}{}",
		"[] []",
		"/* c */ 1",
		"1 // c",
		"{\"a\":1,b:2}",
		"{\"a\" 1}",
		"[\"a]",
	};
	for (size_t i = 0; i < COUNT(bad); i++)
		if (check(bad[i], strlen(bad[i])))
			fail_msg("accepted: %s", bad[i]);
	/* NUL ends nothing. */
	assert_false(check("1\0", 2));
	assert_false(check("\"a\0b\"", 5));
	assert_false(check("\"\\\0\"", 4));
	assert_false(check("\0", 1));
	/* Every beginning of a good text that is not itself good. */
	static const char whole[] = "{\"k\":[true,\"\\ud83d\\ude00\",{\"n\":null}]}";
	for (size_t n = 0; n < sizeof whole - 1; n++)
		assert_false(check(whole, n));
	assert_true(check(whole, sizeof whole - 1));
}

/* A flat object as "name=value;name=value;", or NULL where the walk says that it is none. */
static const char *walk(const char *text, size_t size, struct cell__buf *out)
{
	char *copy = malloc(size ? size : 1);
	memcpy(copy, text, size);
	struct cell__json_walk walk = CELL_JSON_WALK(copy, size);
	struct cell__json_member m;
	int rc;
	cell__buf_finish(out);
	cell__buf_add_str(out, "");
	while ((rc = cell__json_walk_next(&walk, &m)) > 0)
		cell__buf_printf(out, "%.*s=%.*s;", (int)m.name_size, m.name, (int)m.value_size, m.value);
	free(copy);
	return rc == 0 ? out->data : NULL;
}

static void test_walk(void **state)
{
	(void)state;
	static const char *const good[][2] = {
		{ "{}", "" },
		{ " { } ", "" },
		{ "{\"a\":1}", "a=1;" },
		{ "{\"a\":1,\"b\":\"x\"}", "a=1;b=\"x\";" },
		{ "{ \"a\" :\t-1.5e3 , \"\" : \"\" }", "a=-1.5e3;=\"\";" },
		{ "{\"a\":true,\"b\":false,\"c\":null}", "a=true;b=false;c=null;" },
		{ "{\"a\":\"\\\"}\"}", "a=\"\\\"}\";" },
		{ "{\"\xc3\xa9\":0}", "\xc3\xa9=0;" },
		{ "{\"a\":1,\"a\":2}", "a=1;a=2;" },
	};
	static const char *const bad[] = {
		"",
		" ",
		"{",
		"}",
		"[]",
		"1",
		"null",
		"{}}",
		"{} x",
		"{,}",
		"{\"a\"}",
		"{\"a\":}",
		"{\"a\":1,}",
		"{\"a\":1",
		"{\"a\":1 2}",
		"{a:1}",
		"{\"a\":[]}",
		"{\"a\":{}}",
		"{\"a\":01}",
		"{\"a\":tru}",
		"{\"a\":\"\xff\"}",
		"{\"a\":\"\\ud800\"}",
		"{\"a\\n\":1}",
		"{\"a\":1\n}",
		"{\"a\" 1}",
		"{\"a\":1;\"b\":2}",
	};
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	for (size_t i = 0; i < COUNT(good); i++) {
		const char *got = walk(good[i][0], strlen(good[i][0]), &out);
		if (!got)
			fail_msg("refused: %s", good[i][0]);
		assert_string_equal(got, good[i][1]);
		/* No beginning of it is one, but for spaces at the end. */
		for (size_t n = 0; n < strlen(good[i][0]) - 1; n++)
			assert_true(strchr(good[i][0] + n, '}') == NULL || !walk(good[i][0], n, &out));
	}
	for (size_t i = 0; i < COUNT(bad); i++)
		if (walk(bad[i], strlen(bad[i]), &out))
			fail_msg("accepted: %s", bad[i]);
}

/* open containers around a middle */
static bool nested(size_t depth, char kind, const char *middle)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	for (size_t i = 0; i < depth; i++)
		cell__buf_add_str(&text, kind == '[' ? "[" : "{\"k\":");
	cell__buf_add_str(&text, middle);
	for (size_t i = 0; i < depth; i++)
		cell__buf_add_str(&text, kind == '[' ? "]" : "}");
	return check(text.data, text.size);
}

static void test_depth(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		char kind = i ? '{' : '[';
		assert_true(nested(CELL_LIMIT_JSON_DEPTH - 1, kind, "1"));
		assert_true(nested(CELL_LIMIT_JSON_DEPTH, kind, "1"));
		assert_false(nested(CELL_LIMIT_JSON_DEPTH + 1, kind, "1"));
		assert_false(nested(1000000, kind, "1"));
	}
	/* Width is not depth. */
	CELL_AUTO_BUF struct cell__buf wide = CELL_BUF_INIT;
	cell__buf_add_str(&wide, "[");
	for (int i = 0; i < 100000; i++)
		cell__buf_add_str(&wide, "[],");
	cell__buf_add_str(&wide, "0]");
	assert_true(check(wide.data, wide.size));
}

/* An empty container is one level like any other. */
static void test_depth_of_empty(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		char kind = i ? '{' : '[';
		assert_true(nested(CELL_LIMIT_JSON_DEPTH - 1, kind, "[]"));
		assert_true(nested(CELL_LIMIT_JSON_DEPTH - 1, kind, "{ }"));
		assert_false(nested(CELL_LIMIT_JSON_DEPTH, kind, "[]"));
		assert_false(nested(CELL_LIMIT_JSON_DEPTH, kind, "{ }"));
	}
}

static void test_huge_int(void **state)
{
	(void)state;
	size_t digits = 1000000;
	char *text = malloc(digits + 1);
	memset(text, '9', digits);
	assert_true(check(text, digits));
	text[0] = '-';
	assert_true(check(text, digits));
	text[digits / 2] = 'x';
	assert_false(check(text, digits));
	text[digits / 2] = '.';
	assert_true(check(text, digits));
	free(text);
}

/* What a tree takes is never more than was weighed, and not absurdly less. */
static void test_weight(void **state)
{
	(void)state;
	assert_true(cell__json_weigh("", 0) > 0);
	static const struct {
		const char *text;
		size_t least, most;
	} rows[] = {
		{ "1", 24, 200 },
		{ "[]", 100, 300 },
		{ "[[],[],[]]", 4 * 100, 4 * 300 },
		{ "{\"a\":{},\"b\":{}}", 3 * 200, 3 * 500 },
		/* brackets in strings are text, whatever is escaped */
		{ "\"[[[[[[[[[[[[[[[[{{{{{{{{{{,,,,,,,,,,::::::::\"", 24, 200 },
		{ "\"\\\"[[[[[[[[[[[[[[[[\\\\\"", 24, 200 },
		{ "\"never ended [[[[[[[[[[[[[[[[[[[[", 24, 200 },
		{ "\"never ended \\\"", 24, 200 },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		size_t weight = cell__json_weigh(rows[i].text, strlen(rows[i].text));
		assert_in_range(weight, rows[i].least, rows[i].most);
	}
	/* A few megabytes of brackets. */
	size_t size = 3u << 20;
	char *text = malloc(size);
	for (size_t i = 0; i < size; i += 3)
		memcpy(text + i, "[],", 3);
	assert_true(cell__json_weigh(text, size) > size / 3 * 150);
	free(text);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_accepts),        TEST(test_rejects),  TEST(test_walk),   TEST(test_depth),
		TEST(test_depth_of_empty), TEST(test_huge_int), TEST(test_weight),
	};
	return cmocka_run_group_tests_name("json_check", tests, NULL, NULL);
}
