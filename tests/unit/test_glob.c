/* session/glob: what patterns match, by hand, against a slow and simple matcher, and how long it takes. */
#define _GNU_SOURCE
#include "support.h"

#include "gate/glob.h"

static struct cell__glob *make(const char *pattern)
{
	const char *problem = NULL;
	struct cell__glob *glob = cell__glob_create(pattern, &problem);
	if (!glob)
		fail_msg("'%s': %s", pattern, problem);
	assert_string_equal(cell__glob_text(glob), pattern);
	return glob;
}

static bool match(const char *pattern, enum cell__glob_mode mode, const char *text, size_t size)
{
	struct cell__glob *glob = make(pattern);
	/* Exactly its size: the sanitizer sees a look past the end. */
	char *copy = malloc(size ? size : 1);
	memcpy(copy, text, size);
	bool yes = cell__glob_match(glob, mode, copy, size, NULL);
	free(copy);
	cell__glob_destroy(glob);
	return yes;
}

#define P CELL__GLOB_PATH
#define T CELL__GLOB_TEXT
#define S CELL__GLOB_SHELL

static const struct {
	const char *pattern;
	enum cell__glob_mode mode;
	const char *text;
	bool yes;
} rows[] = {
	{ "", T, "", true },
	{ "", T, "a", false },
	{ "abc", T, "abc", true },
	{ "abc", T, "abcd", false },
	{ "abc", T, "ab", false },
	{ "abc", T, "ABC", false },
	{ "abc", T, "abc.", false },
	{ "*", T, "", true },
	{ "*", P, "", true },
	{ "*", P, "a/b", false },
	{ "*", T, "a/b", true },
	{ "**", P, "a/b", true },
	{ "***", P, "a/b/c", true },
	{ "a*c", P, "abbbc", true },
	{ "a*c", P, "ac", true },
	{ "a*c", P, "ab", false },
	{ "/etc/**", P, "/etc/", true },
	{ "/etc/**", P, "/etc/a/b", true },
	{ "/etc/**", P, "/etc", false },
	{ "/etc/**", P, "/etcetera", false },
	{ "/a/*/c", P, "/a/b/c", true },
	{ "/a/*/c", P, "/a/b/b/c", false },
	{ "/a/**/c", P, "/a/b/b/c", true },
	{ "/**/*.txt", P, "/a/b/c.txt", true },
	{ "/**/*.txt", P, "/a/b.txt/c", false },
	{ "**a*b", P, "xa/ab", true }, /* the first a is not the one */
	{ "**a*b", P, "xa/b", false },
	{ "?", P, "/", false },
	{ "?", T, "/", true },
	{ "?", T, "", false },
	{ "?", T, "\xc3\xa9", true }, /* one character */
	{ "??", T, "\xc3\xa9", false },
	{ "?x", T, "\xf0\x9f\x98\x80x", true },
	{ "[!a]", T, "\xc3\xa9", true },
	{ "[abc]x", T, "bx", true },
	{ "[abc]x", T, "dx", false },
	{ "[a-c]", T, "b", true },
	{ "[a-c]", T, "-", false },
	{ "[a-]", T, "-", true },
	{ "[]a]", T, "]", true },
	{ "[!]a]", T, "]", false },
	{ "[!]a]", T, "b", true },
	{ "[^a]", T, "a", false },
	{ "[!a]", P, "/", false },
	{ "[/]", P, "/", true }, /* named, so it is meant */
	{ "[\\]a]", T, "]", true },
	{ "\\*", T, "*", true },
	{ "\\*", T, "a", false },
	{ "\\{a,b\\}", T, "{a,b}", true },
	{ "a\\\\b", T, "a\\b", true },
	{ "gr\xd0\xb5p", T, "grep", false }, /* a Cyrillic e */
	{ "git log*", S, "git log -p a/b", true },
	{ "git log*", S, "git log; rm x", false },
	{ "git log*", S, "git log\nrm x", false },
	{ "git log*", S, "git log & rm", false },
	{ "git log*", S, "git log | sh", false },
	{ "git log*", S, "git log `rm`", false },
	{ "git log*", S, "git log $(rm)", false },
	{ "git log*", S, "git log $X", false },
	{ "git log*", S, "git log > f", false },
	{ "git log*", S, "git log < f", false },
	{ "git log*", S, "git log (x)", false },
	{ "git log*", S, "git log # x", false },
	{ "git log*", S, "git log\rx", false },
	{ "git log*", S, "git log\tx", true },
	{ "git log**", S, "git log; rm", false },
	{ "git log?rm", S, "git log;rm", false },
	{ "git log[!x]rm", S, "git log;rm", false },
	{ "git log[;]rm", S, "git log;rm", true },
	{ "git log | head*", S, "git log | head -3", true },
	{ "git * | head", S, "git log | head", true },
	{ "git * | head", S, "git log | sh | head", false }, /* the one that is named is not the one that is hidden */
};

static void test_rows(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(rows); i++)
		if (match(rows[i].pattern, rows[i].mode, rows[i].text, strlen(rows[i].text)) != rows[i].yes)
			fail_msg("'%s' and '%s' in mode %d: not %d", rows[i].pattern, rows[i].text, rows[i].mode, rows[i].yes);
}

static void test_bytes(void **state)
{
	(void)state;
	assert_true(match("a*b", T, "a\0b", 3));
	assert_false(match("a", T, "a\0", 2));
	assert_false(match("a", T, "a\0b", 3));
	assert_false(match("*", S, "a\0b", 3));
	assert_true(match("**", P, "\xff\x80\xfe", 3));
	assert_true(match("a?", T, "a\xff", 2));
	assert_false(match("?", T, "\x80", 1)); /* the middle of no character */
}

static void test_bad_patterns(void **state)
{
	(void)state;
	char large[CELL__GLOB_LIMIT + 2];
	memset(large, 'a', sizeof large);
	large[CELL__GLOB_LIMIT + 1] = '\0';
	const struct {
		const char *pattern, *part;
	} bads[] = {
		{ "[", "no ]" },          { "[a", "no ]" },    { "[]", "no ]" },        { "[!", "no ]" },
		{ "[a-", "no ]" },        { "[\\", "no ]" },   { "[c-a]", "reversed" }, { "[\xc3\xa9]", "ASCII" },
		{ "a\\", "unpaired \\" }, { "{a,b}", "list" }, { "a}", "list" },        { large, "longer" },
	};
	for (size_t i = 0; i < COUNT(bads); i++) {
		const char *problem = NULL;
		assert_null(cell__glob_create(bads[i].pattern, &problem));
		if (!problem || !strstr(problem, bads[i].part))
			fail_msg("'%s': %s", bads[i].pattern, problem);
	}
	large[CELL__GLOB_LIMIT] = '\0';
	assert_true(match(large, T, large, CELL__GLOB_LIMIT));
	for (long n = 1; n < 3; n++) {
		const char *problem = NULL;
		cell__alloc_fail_after(n);
		struct cell__glob *glob = cell__glob_create("a*", &problem);
		cell__alloc_fail_after(0);
		assert_null(glob);
		assert_string_equal(problem, "out of memory");
	}
}

/* ---- the same, slowly ---- */

/* Of letters, slashes, *, **, ? and [ab]; texts of ASCII. */
static bool slow(const char *pattern, bool path, const char *text)
{
	if (*pattern == '\0')
		return *text == '\0';
	if (*pattern == '*') {
		bool stars = pattern[1] == '*' || !path;
		const char *rest = pattern + strspn(pattern, "*");
		return slow(rest, path, text) || (*text && (stars || *text != '/') && slow(pattern, path, text + 1));
	}
	if (*text == '\0')
		return false;
	if (*pattern == '?')
		return (!path || *text != '/') && slow(pattern + 1, path, text + 1);
	if (*pattern == '[')
		return (*text == 'a' || *text == 'b') && slow(pattern + 4, path, text + 1);
	return *pattern == *text && slow(pattern + 1, path, text + 1);
}

static void test_against_slow(void **state)
{
	(void)state;
	static const char *const parts[] = { "a", "b", "/", "*", "**", "?", "[ab]" };
	unsigned random = 1;
	size_t hits = 0;
	for (int round = 0; round < 60000; round++) {
		char pattern[40] = "", text[12];
		random = random * 1103515245u + 12345u;
		for (unsigned n = random >> 16 & 7, bits = random >> 3; n > 0; n--, bits = bits * 69069u + 1)
			strcat(pattern, parts[(bits >> 9) % COUNT(parts)]);
		random = random * 1103515245u + 12345u;
		unsigned size = (random >> 16) % 9, bits = random >> 2;
		for (unsigned i = 0; i < size; i++, bits = bits * 69069u + 1)
			text[i] = "aab/"[bits >> 11 & 3];
		text[size] = '\0';
		for (int path = 0; path < 2; path++) {
			bool yes = slow(pattern, path, text);
			hits += yes;
			if (match(pattern, path ? P : T, text, size) != yes)
				fail_msg("'%s' and '%s', path %d: not %d", pattern, text, path, yes);
		}
	}
	assert_true(hits > 5000);
}

/* The work is bounded by the product of the sizes, whatever the pattern is. */
static void test_work(void **state)
{
	(void)state;
	static const char *const units[] = { "*a", "**a", "?*", "*[ab]", "a*?", "**/*" };
	size_t size = LARGE_INPUT(100000);
	char *text = malloc(size);
	memset(text, 'a', size);
	for (size_t i = 0; i < COUNT(units); i++) {
		char pattern[CELL__GLOB_LIMIT + 1] = "";
		while (strlen(pattern) + strlen(units[i]) < CELL__GLOB_LIMIT)
			strcat(pattern, units[i]);
		strcat(pattern, "b");
		struct cell__glob *glob = make(pattern);
		uint64_t steps = 0;
		assert_false(cell__glob_match(glob, CELL__GLOB_PATH, text, size / 10, &steps));
		uint64_t more = 0;
		assert_false(cell__glob_match(glob, CELL__GLOB_PATH, text, size, &more));
		assert_true(more <= 2 * CELL__GLOB_LIMIT * (uint64_t)size);
		assert_true(more <= 11 * steps + 10000); /* linear in the text */
		cell__glob_destroy(glob);
	}
	free(text);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_rows), TEST(test_bytes), TEST(test_bad_patterns), TEST(test_against_slow), TEST(test_work),
	};
	return cmocka_run_group_tests_name("glob", tests, NULL, NULL);
}
