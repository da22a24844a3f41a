/* session/uvlock: what uv wrote down, and files that only look like it. */
#define _GNU_SOURCE
#include "support.h"

#include "deps/uvlock.h"

#define HEAD "version = 1\nrevision = 5\nrequires-python = \"==3.11.*\"\nresolution-markers = [\n    \"sys_platform == 'linux'\",\n]\n\n"
#define MANIFEST "[manifest]\nconstraints = [\n    { name = \"x\", specifier = \"==3\" },\n]\n\n"
#define SELF                                                                                                                                     \
	"[[package]]\nname = \"workcell-wanted\"\nversion = \"0\"\nsource = { virtual = \".\" }\ndependencies = [\n    { name = \"a\" },\n]\n\n" \
	"[package.metadata]\nrequires-dist = [{ name = \"a\" }]\n"
#define FROM "source = { registry = \"https://index.example/simple\" }\n"
#define A "[[package]]\nname = \"a\"\nversion = \"1.0\"\n" FROM

static void check(const char *text, const char *expected)
{
	size_t size = strlen(text);
	char *copy = malloc(size ? size : 1); /* exactly its size */
	memcpy(copy, text, size);
	json_t *found = cell__uvlock_parse(copy, size);
	free(copy);
	char *got = found ? json_dumps(found, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
	if (strcmp(got ? got : "NULL", expected) != 0)
		fail_msg("%s\nis\n%s\nnot\n%s", text, got ? got : "NULL", expected);
	free(got);
	json_decref(found);
}

static void test_files(void **state)
{
	(void)state;
	check(HEAD, "[]");
	check(HEAD MANIFEST SELF, "[]");
	check(HEAD MANIFEST A
	      "sdist = { url = \"https://x/a-1.0.tar.gz\", hash = \"sha256:dd\", size = 12, upload-time = \"2024-01-01T00:00:00Z\" }\n"
	      "wheels = [\n    { url = \"https://x/a-1.0-py3-none-any.whl\", hash = \"sha256:aa\", size = 12 },\n"
	      "    { url = \"https://x/a-1.0-cp311-cp311-linux_x86_64.whl\", hash = \"sha256:bb\" },\n]\n\n" SELF,
	      "[{\"bare\":0,\"files\":[],\"hashes\":[\"aa\",\"bb\"],\"name\":\"a\",\"version\":\"1.0\"}]");
	check(HEAD A
	      "wheels = [{ url = \"https://x/a]},{.whl\", hash = \"sha256:aa\" }, { path = \"/w/a.whl\" }, { url = \"https://x/b\" }]\n"
	      "[[package]]\nname = \"b\"\nversion = \"2\"\n" FROM,
	      "[{\"bare\":1,\"files\":[\"/w/a.whl\"],\"hashes\":[\"aa\"],\"name\":\"a\",\"version\":\"1.0\"},"
	      "{\"bare\":0,\"files\":[],\"hashes\":[],\"name\":\"b\",\"version\":\"2\"}]");
	/* Another digest is none. */
	check(HEAD A "wheels = [\n    { url = \"x\", hash = \"md5:aa\" },\n    { url = \"x\", hash = \"sha256:\" },\n]\n",
	      "[{\"bare\":2,\"files\":[],\"hashes\":[],\"name\":\"a\",\"version\":\"1.0\"}]");
	/* What does not come from an index or folder is not locked. */
	check(HEAD "[[package]]\nname = \"a\"\nversion = \"1\"\nsource = { git = \"https://x/a\" }\n", "[]");
	/* Names in other tables are none of a package's. */
	check(HEAD A "[package.metadata]\nname = \"b\"\nwheels = [\n",
	      "[{\"bare\":0,\"files\":[],\"hashes\":[],\"name\":\"a\",\"version\":\"1.0\"}]");
}

static void test_damaged(void **state)
{
	static const char *const texts[] = {
		"",
		"\n",
		"version = 2\n",
		"version = 1",
		"x" HEAD,
		HEAD "[[package]]\nname = \"a\"\n" FROM,
		HEAD "[[package]]\nname = \"a\nversion = \"1.0\"\n" FROM,
		HEAD "[[package]]\nname = \"a\\u0041\"\nversion = \"1.0\"\n" FROM,
		HEAD A "wheels = [",
		HEAD A "wheels = [\n",
		HEAD A "wheels = [\n    { url = \"x\"",
		HEAD A "wheels = [\n    { url = \"x",
		HEAD A "wheels = [\n    { url = \"x\\\"\" },\n]\n",
		HEAD A "wheels = [\n    { url = [\"x\"] },\n]\n",
		HEAD A "wheels = [\n    { = \"x\" },\n]\n",
		HEAD A "wheels = [\n    \"x\",\n]\n",
		HEAD A "wheels = [\n    { hash = \"sha256:\xff\" },\n]\n",
	};
	(void)state;
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		check(texts[i], "NULL");
	/* Cut anywhere, it is read to its end and no further. */
	const char *whole = HEAD MANIFEST A "wheels = [\n    { url = \"x\", hash = \"sha256:aa\", size = 1 },\n]\n" SELF;
	for (size_t n = 0; n < strlen(whole); n++) {
		char *copy = malloc(n ? n : 1);
		memcpy(copy, whole, n);
		json_decref(cell__uvlock_parse(copy, n));
		free(copy);
	}
}

static void test_many(void **state)
{
	(void)state;
	for (size_t more = 0; more < 2; more++) {
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
		assert_int_equal(cell__buf_add_str(&text, HEAD), 0);
		for (size_t i = 0; i < CELL__UVLOCK_PACKAGES + more; i++)
			assert_int_equal(cell__buf_add_str(&text, A), 0);
		json_t *found = cell__uvlock_parse(text.data, text.size);
		assert_int_equal(json_array_size(found), more ? 0 : CELL__UVLOCK_PACKAGES);
		assert_true(more == (found == NULL));
		json_decref(found);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_many),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
