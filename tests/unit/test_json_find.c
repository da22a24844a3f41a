/* wire/json_find: where a member stands. */
#include "support.h"
#include "wire/json_find.h"

static const char *const ab[] = { "a", "b", NULL };

/* From memory of exactly this size, so that a sanitizer sees a look past the end. */
static char *find(const char *text, size_t size, const char *const *path)
{
	char *copy = malloc(size ? size : 1), *found = NULL;
	const char *value;
	size_t n;
	memcpy(copy, text, size);
	if (cell__json_find(copy, size, path, &value, &n)) {
		assert_true(value >= copy && value + n <= copy + size);
		found = strndup(value, n);
	}
	free(copy);
	return found;
}

static void expect(const char *text, const char *wanted)
{
	char *found = find(text, strlen(text), ab);
	if (!found || strcmp(found, wanted) != 0)
		fail_msg("%s: found %s, not %s", text, found ? found : "nothing", wanted);
	free(found);
}

static void test_found(void **state)
{
	(void)state;
	expect("{\"a\":{\"b\":1}}", "1");
	expect(" {\n\"a\" : { \"b\" :\t123456789012345678901234567890 } }", "123456789012345678901234567890");
	expect("{\"x\":[{\"a\":1},\"}\",\"\\\"\"],\"a\":{\"c\":{\"b\":2},\"b\":{\"b\":[1,{}]}},\"y\":0}", "{\"b\":[1,{}]}");
	expect("{\"a\":{\"b\":\"\\\\\",\"c\":\"}\"}}", "\"\\\\\"");
	expect("{\"a\":{\"b\":true}}", "true");
	expect("{\"a\":{\"b\":null }}", "null");
	/* The last one counts. */
	expect("{\"a\":{\"b\":1,\"b\":2},\"a\":{\"b\":3,\"c\":0,\"b\":4}}", "4");
}

static void test_not_found(void **state)
{
	(void)state;
	static const char *const texts[] = {
		"",
		"1",
		"[]",
		"{}",
		"{\"a\":1}",
		"{\"a\":{}}",
		"{\"a\":[{\"b\":1}]}",
		"{\"b\":{\"a\":1}}",
		"{\"ab\":{\"b\":1}}",
		"{\"a\":{\"\\u0062\":1}}",
		"{\"a\":{\"b\"",
		"{\"a\":{\"b\":",
		"{\"a\":{\"b\":\"x",
		"{\"a\":{\"b\":\"x\\",
		"{\"a\":{\"b\":[",
		"{\"a",
		"{\"a\\",
		"[\"a\"]",
	};
	for (size_t i = 0; i < COUNT(texts); i++) {
		char *found = find(texts[i], strlen(texts[i]), ab);
		if (found)
			fail_msg("%s: found %s", texts[i], found);
	}
	/* Whatever is cut off is at least not looked past. */
	static const char whole[] = "{\"x\":[1,\"\\\"\"],\"a\":{\"b\":{\"c\":\"\\u00e9\"}}}";
	for (size_t n = 0; n < sizeof whole; n++)
		free(find(whole, n, ab));
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = { TEST(test_found), TEST(test_not_found) };
	return cmocka_run_group_tests_name("json_find", tests, NULL, NULL);
}
