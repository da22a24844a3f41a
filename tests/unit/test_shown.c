/* What people are shown of untrusted text and arguments. */
#include "support.h"

#include <jansson.h>

#include "wire/shown.h"

static void check_text(const char *bytes, size_t size, enum cell_shown how, const char *wanted)
{
	char *shown = cell_shown_text(bytes, size, how);
	assert_non_null(shown);
	assert_string_equal(shown, wanted);
	free(shown);
}

static void texts(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		enum cell_shown how;
		const char *wanted;
	} rows[] = {
		{ "plain", CELL_SHOWN_LINE, "plain" },
		{ "gr\xc3\xbc\xc3\x9f \xf0\x9f\x90\x8d", CELL_SHOWN_LINE, "gr\xc3\xbc\xc3\x9f \xf0\x9f\x90\x8d" },
		{ "a\nb\tc", CELL_SHOWN_LINES, "a\nb\tc" },
		{ "a\nb\tc\r", CELL_SHOWN_LINE, "a\\x0ab\\x09c\\x0d" },
		{ "\x1b[2J\x07\x7f\b", CELL_SHOWN_LINES, "\\x1b[2J\\x07\\x7f\\x08" },
		{ "\xc2\x9b"
		  "2J",
		  CELL_SHOWN_LINES, "\\u009b2J" },
		{ "\x9b\xff\xc3", CELL_SHOWN_LINES, "\\x9b\\xff\\xc3" },
		{ "\xe2\x80\xae"
		  "x\xe2\x81\xa6",
		  CELL_SHOWN_LINES, "\\u202ex\\u2066" },
		{ "a\xe2\x80\x8b"
		  "b\xef\xbb\xbf\xc2\xad",
		  CELL_SHOWN_LINES, "a\\u200bb\\ufeff\\u00ad" },
		{ "\xf3\xa0\x81\x81", CELL_SHOWN_LINES, "\\U000e0041" },
		{ "\xe2\x80\xa8", CELL_SHOWN_LINES, "\\u2028" },
		{ "\xed\xa0\x80", CELL_SHOWN_LINES, "\\xed\\xa0\\x80" }, /* a surrogate is not UTF-8 */
		{ "\xc0\xaf", CELL_SHOWN_LINES, "\\xc0\\xaf" },         /* nor is an overlong slash */
		{ "\xd0\xb5\\", CELL_SHOWN_ASCII, "\\u0435\\\\" },
		{ "**a** [b](c) <i> `d` &amp; ~e~ $f$ \\", CELL_SHOWN_MARKDOWN,
		  "\\x2a\\x2aa\\x2a\\x2a \\x5bb\\x5d(c) \\x3ci\\x3e \\x60d\\x60 \\x26amp; \\x7ee\\x7e \\x24f\\x24 \\x5c" },
		{ "snake_case _x_", CELL_SHOWN_MARKDOWN, "snake_case \\x5fx\\x5f" },
	};
	for (size_t i = 0; i < COUNT(rows); i++)
		check_text(rows[i].text, strlen(rows[i].text), rows[i].how, rows[i].wanted);
	check_text("a\0b", 3, CELL_SHOWN_LINES, "a\\x00b");
	check_text("", 0, CELL_SHOWN_LINES, "");
}

/* All ways of cutting a stream into two chunks come to the same, except that a cut is never an escape sequence. */
static void streams(void **state)
{
	(void)state;
	static const struct {
		const char *text, *wanted;
	} rows[] = {
		{ "a\x1b[31mred\x1b[0m\r\nb", "a\x1b[31mred\x1b[0m\r\nb" },
		{ "\x1b[38;5;8mx\x1b[48;2;1;2;8m", "\x1b[38;5;8mx\x1b[48;2;1;2;8m" },
		{ "\x1b[8mx", "\\x1b[8mx" },
		{ "\x1b[38;5mx\x1b[1;8m", "\\x1b[38;5mx\\x1b[1;8m" },
		{ "\x1b[2J\x1b]0;t\x07", "\\x1b[2J\\x1b]0;t\\x07" },
		{ "\x1b[?1049h\x1b"
		  "c",
		  "\\x1b[?1049h\\x1bc" },
		{ "\x1b\x1b[31m", "\\x1b\x1b[31m" },
		{ "done\rx", "done\\x0dx" },
		{ "\xe2\x80\xae\xc3\xa9\x9b", "\\u202e\xc3\xa9\\x9b" },
		{ "\x1b[1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1m", "\\x1b[1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1;1m" },
	};
	for (size_t i = 0; i < COUNT(rows); i++)
		for (size_t cut = 0; cut <= strlen(rows[i].text); cut++) {
			struct cell_shown_carry carry = { .size = 0 };
			CELL_AUTO_BUF struct cell__buf all = CELL_BUF_INIT;
			const char *parts[] = { rows[i].text, rows[i].text + cut, NULL };
			size_t sizes[] = { cut, strlen(rows[i].text) - cut, 0 };
			for (size_t k = 0; k < 3; k++) {
				size_t n;
				char *shown = cell_shown_output(&carry, parts[k], sizes[k], &n);
				assert_non_null(shown);
				assert_int_equal(cell__buf_add(&all, shown, n), 0);
				free(shown);
			}
			assert_int_equal(carry.size, 0);
			assert_string_equal(all.data, rows[i].wanted);
		}
}

static char *args_text(const char *json, size_t size, enum cell_shown how)
{
	struct cell_error err;
	char *text = NULL;
	if (cell_shown_args(json, size, how, &text, &err) < 0)
		fail_msg("%s", err.msg);
	return text;
}

static void arguments(void **state)
{
	(void)state;
	static const struct {
		const char *json;
		enum cell_shown how;
		const char *wanted;
	} rows[] = {
		{ "{}", CELL_SHOWN_ASCII, "\n    (no arguments)" },
		{ "{\"b\":1,\"a\":\"x\"}", CELL_SHOWN_ASCII, "\n    \"a\": \"x\"\n    \"b\": 1" },
		{ "{\"a\":\"\\u202e\\n\\u001b\x7f\"}", CELL_SHOWN_ASCII, "\n    \"a\": \"\\u202E\\n\\u001B\\u007f\"" },
		{ "{\"a\":[1]}", CELL_SHOWN_ASCII, "\n    \"a\": [\n        1\n      ]" },
		{ "{\"a\":\"x\\\", \\\"b\\\": \\\"*\"}", CELL_SHOWN_MARKDOWN,
		  "\n    \"a\": \"x\\u0022, \\u0022b\\u0022: \\u0022\\u002a\"" },
		{ "{\"<b>\":\"a\\\\b\"}", CELL_SHOWN_MARKDOWN, "\n    \"\\u003cb\\u003e\": \"a\\u005cb\"" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		char *text = args_text(rows[i].json, strlen(rows[i].json), rows[i].how);
		assert_string_equal(text, rows[i].wanted);
		free(text);
	}
}

static void long_arguments(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	cell__buf_add_str(&json, "{\"a\":\"begin");
	for (size_t i = 0; i < 5000; i++)
		cell__buf_add_str(&json, "\xf0\x9f\x90\x8d");
	cell__buf_add_str(&json, "end\"}");
	char *text = args_text(json.data, json.size, CELL_SHOWN_ASCII);
	assert_non_null(strstr(text, "\"a\": 20008 bytes, sha256 "));
	assert_non_null(strstr(text, "\"begin\\uD83D\\uDC0D"));
	assert_non_null(strstr(text, "characters are left out here)\n      \\uD83D\\uDC0D")); /* no character is cut apart */
	assert_non_null(strstr(text, "end\""));
	assert_true(strlen(text) < 2400);
	free(text);
	text = args_text(json.data, json.size, CELL_SHOWN_ALL);
	assert_true(strlen(text) > 60000);
	free(text);
}

static void expect_limit(const char *json, size_t size, enum cell_shown how)
{
	struct cell_error err;
	char *text = NULL;
	assert_int_equal(cell_shown_args(json, size, how, &text, &err), -1);
	assert_int_equal(err.code, CELL_E_LIMIT);
	assert_null(text);
}

static void add_arguments(struct cell__buf *json, size_t count)
{
	json->size = 0;
	for (size_t i = 0; i < count; i++)
		cell__buf_printf(json, "%s\"a%zu\":\"%0300d\"", i ? "," : "{", i, 1);
	cell__buf_add_str(json, "}");
}

static void what_cannot_be_shown(void **state)
{
	(void)state;
	struct cell_error err;
	char *text = NULL;
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	add_arguments(&json, 40);
	text = args_text(json.data, json.size, CELL_SHOWN_ASCII);
	assert_true(strlen(text) < 32000);
	free(text);
	add_arguments(&json, 41);
	expect_limit(json.data, json.size, CELL_SHOWN_ASCII);
	json.size = 0;
	cell__buf_printf(&json, "{\"%0200d\":1}", 1);
	expect_limit(json.data, json.size, CELL_SHOWN_ASCII);
	json.size = 0;
	cell__buf_add_str(&json, "{\"a\":\"");
	for (size_t i = 0; i < (CELL__SHOWN_MAX_PAGE >> 3) + 1; i++)
		cell__buf_add_str(&json, "xxxxxxxx");
	cell__buf_add_str(&json, "\"}");
	expect_limit(json.data, json.size, CELL_SHOWN_MARKDOWN);
	text = args_text(json.data, json.size, CELL_SHOWN_ASCII);
	free(text);
	text = NULL;
	assert_int_equal(cell_shown_args("[1]", 3, CELL_SHOWN_ASCII, &text, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(texts), TEST(streams), TEST(arguments), TEST(long_arguments), TEST(what_cannot_be_shown),
	};
	return cmocka_run_group_tests_name("shown", tests, NULL, NULL);
}
