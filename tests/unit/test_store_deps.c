/* storage/depstore.c: which specifiers are taken, and what happens to requirements.txt. */
#define _GNU_SOURCE
#include <sys/wait.h>

#include "store_support.h"

static void test_accepted(void **state)
{
	(void)state;
	static const struct {
		const char *given, *kept;
	} rows[] = {
		{ "pandas", "pandas" },
		{ "pandas>=2.0", "pandas>=2.0" },
		{ "pandas >= 2.0", "pandas>=2.0" },
		{ "pandas>=2.0, <3", "pandas>=2.0,<3" },
		{ " requests [security] >=2 ", "requests[security]>=2" },
		{ "requests[security, socks]", "requests[security,socks]" },
		{ "A_B[x]", "a-b[x]" },
		{ "zope.interface", "zope-interface" },
		{ "Foo.Bar_Baz-x==1.*", "foo-bar-baz-x==1.*" },
		{ "foo!=1.2.*", "foo!=1.2.*" },
		{ "pkg==1.0+local", "pkg==1.0+local" },
		{ "pkg==1.0+local.1-x", "pkg==1.0+local.1-x" },
		{ "pkg==1.0-beta", "pkg==1.0-beta" },
		{ "pkg==1.0rc1.post2.dev3", "pkg==1.0rc1.post2.dev3" },
		{ "pkg==1!2.0-1", "pkg==1!2.0-1" },
		{ "pkg~=1.4.2", "pkg~=1.4.2" },
		{ "pkg===weird-1", "pkg===weird-1" },
		{ "pkg<2,>1,!=1.5", "pkg<2,>1,!=1.5" },
		{ "x", "x" },
		{ "2to3", "2to3" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		char out[CELL__STORE_DEP_BYTES + 1], again[CELL__STORE_DEP_BYTES + 1];
		OK(cell__dep_normalise(rows[i].given, out, &err));
		assert_string_equal(out, rows[i].kept);
		OK(cell__dep_normalise(out, again, &err));
		assert_string_equal(again, out);
	}
}

static void test_refused(void **state)
{
	(void)state;
	static const struct {
		const char *given, *message;
	} rows[] = {
		{ "", "Invalid package: empty or whitespace-only" },
		{ " \t", "Invalid package: empty or whitespace-only" },
		{ "a\nb", "Invalid package: contains control characters" },
		{ "a\r", "Invalid package: contains control characters" },
		{ "foo @ https://x/y.whl", "Invalid package: contains blocked character '@'" },
		{ "foo; python_version>'3'", "Invalid package: contains blocked character ';'" },
		{ "foo (>=1)", "Invalid package: contains blocked character '('" },
		{ "foo|bar", "Invalid package name: contains shell metacharacters: foo|bar" },
		{ "foo`x`", "shell metacharacters" },
		{ "$HOME", "shell metacharacters" },
		{ "a&b", "shell metacharacters" },
		{ "-e foo", "Invalid package specifier (starts with -): -e foo" },
		{ "--index-url=x", "starts with -" },
		{ "https://x/y.whl", "Invalid package name: https://x/y.whl (URLs" },
		{ "./local", "Invalid package name" },
		{ "../x", "Invalid package name" },
		{ "foo=1", "Invalid package name: foo=1" },
		{ "requests>=", "Invalid package name: requests>=" },
		{ "requests>", "Invalid package name" },
		{ "a..b", "Invalid package name: a..b" },
		{ "a-", "Invalid package name" },
		{ "_a", "Invalid package name" },
		{ ".a", "Invalid package name" },
		{ "a b", "Invalid package name" },
		{ "a[]", "Invalid package name" },
		{ "a[x", "Invalid package name" },
		{ "a[x]]", "Invalid package name" },
		{ "a>=1,", "Invalid package name" },
		{ "a>=1 <2", "Invalid package name" },
		{ "a==", "Invalid package name" },
		{ "a==x", "Invalid package name" },
		{ "a==1..2", "Invalid package name" },
		{ "a>=1.*", "Invalid package name" },
		{ "a>=1.0+local", "Invalid package name" },
		{ "a==1.0+", "Invalid package name" },
		{ "a~=1", "Invalid package name" },
		{ "a==1.0beta.*", "Invalid package name" },
		{ "caf\xc3\xa9", "Invalid package name: caf??" },
		{ "a --hash=sha256:1", "Invalid package name" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		char out[CELL__STORE_DEP_BYTES + 1] = "untouched";
		FAILS(CELL_E_INVALID, rows[i].message, cell__dep_normalise(rows[i].given, out, &err));
		assert_string_equal(out, "untouched");
	}
	char longest[CELL__STORE_DEP_BYTES + 2], out[CELL__STORE_DEP_BYTES + 1];
	memset(longest, 'a', sizeof longest);
	longest[CELL__STORE_DEP_BYTES] = '\0';
	OK(cell__dep_normalise(longest, out, &err));
	longest[CELL__STORE_DEP_BYTES] = 'a';
	longest[CELL__STORE_DEP_BYTES + 1] = '\0';
	FAILS(CELL_E_INVALID, "Invalid package: name too long (max 256 characters)", cell__dep_normalise(longest, out, &err));
}

static void expect_list(struct cell__store *store, const char *expected)
{
	json_t *list = NULL;
	OK(cell__deps_list(store, &list, NULL, &err));
	CELL_AUTO_FREE char *text = json_dumps(list, JSON_COMPACT);
	assert_string_equal(text, expected);
	json_decref(list);
}

static void expect_file(struct folder *folder, const char *name, const char *expected)
{
	if (!on_files(folder))
		return; /* expect_list() says it */
	CELL_AUTO_FREE char *text = read_text(folder, name);
	assert_non_null(text);
	assert_string_equal(text, expected);
}

static void test_add_remove(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = folder->store;
	bool removed = true;
	expect_list(store, "[]");
	OK(cell__deps_remove(store, "pandas", &removed, &err));
	assert_false(removed);
	OK(cell__deps_add(store, "Pandas >= 2", &err));
	OK(cell__deps_add(store, "requests", &err));
	OK(cell__deps_add(store, "numpy", &err));
	expect_file(folder, "requirements.txt", "numpy\npandas>=2\nrequests\n");
	OK(cell__deps_add(store, "PANDAS[x]==3", &err));
	expect_list(store, "[\"numpy\",\"pandas[x]==3\",\"requests\"]");
	OK(cell__deps_remove(store, "Pandas", &removed, &err));
	assert_true(removed);
	OK(cell__deps_remove(store, "  ", &removed, &err));
	assert_false(removed);
	FAILS(CELL_E_INVALID, "", cell__deps_add(store, "foo=1", &err));
	FAILS(CELL_E_INVALID, "", cell__deps_remove(store, "-x", &removed, &err));
	expect_file(folder, "requirements.txt", "numpy\nrequests\n");
	OK(cell__deps_remove(store, "numpy", &removed, &err));
	OK(cell__deps_remove(store, "requests", &removed, &err));
	expect_list(store, "[]");
	expect_file(folder, "requirements.txt", "");
	/* A workspace has the same deps. */
	struct cell__store *workspace = NULL;
	OK(cell__store_open(folder->base, "w", &workspace, &err));
	OK(cell__deps_add(workspace, "six", &err));
	expect_list(store, "[\"six\"]");
	cell__store_close(workspace);
	json_t *specs = json_pack("[s, s, s]", "pandas>=2", "attrs", "six>1");
	OK(cell__deps_add_all(store, specs, &err));
	expect_file(folder, "requirements.txt", "attrs\npandas>=2\nsix>1\n");
	json_decref(specs);
	specs = json_pack("[s, s]", "numpy", "six==1");
	OK(cell__deps_add_all(store, specs, &err));
	expect_file(folder, "requirements.txt", "attrs\nnumpy\npandas>=2\nsix==1\n");
	json_decref(specs);
}

static void test_hand_written(void **state)
{
	struct folder *folder = *state;
	write_text(folder, "requirements.txt",
		   "# what we need\n\nRequests >= 2   # for http\nnumpy\r\n-r other.txt\nfoo; python_version > '3'\n"
		   "    # indented\nhttps://x/y.whl\nSix==1.16#nospace\nnumpy==1\n\xff\n");
	json_t *list = NULL, *problems = NULL;
	OK(cell__deps_list(folder->store, &list, &problems, &err));
	CELL_AUTO_FREE char *text = json_dumps(list, JSON_COMPACT);
	assert_string_equal(text, "[\"numpy\",\"requests>=2\"]");
	assert_int_equal(json_array_size(problems), 5);
	json_t *first = json_array_get(problems, 0);
	assert_int_equal(json_integer_value(json_object_get(first, "line")), 5);
	assert_string_equal(text_of(first, "text"), "-r other.txt");
	assert_string_equal(text_of(first, "file"), "requirements.txt");
	assert_string_equal(text_of(first, "message"), "Invalid package specifier (starts with -): -r other.txt");
	json_decref(list);
	json_decref(problems);
	OK(cell__deps_add(folder->store, "requests>=3", &err));
	OK(cell__deps_add(folder->store, "numpy>2", &err));
	OK(cell__deps_add(folder->store, "attrs", &err));
	bool removed;
	OK(cell__deps_remove(folder->store, "nothing", &removed, &err));
	expect_file(folder, "requirements.txt",
		    "# what we need\n\nrequests>=3   # for http\nnumpy>2\n-r other.txt\nfoo; python_version > '3'\n"
		    "    # indented\nhttps://x/y.whl\nSix==1.16#nospace\n\xff\nattrs\n");
}

static void test_old_file(void **state)
{
	struct folder *folder = *state;
	bool removed = false;
	make_folder(folder, "deps");
	write_text(folder, "deps/requirements.txt", "pandas>=2\nsix\n");
	write_text(folder, "requirements.txt", "six==1.16\n");
	expect_list(folder->store, "[\"pandas>=2\",\"six==1.16\"]");
	OK(cell__deps_add(folder->store, "pandas>=3", &err));
	expect_list(folder->store, "[\"pandas>=3\",\"six==1.16\"]");
	OK(cell__deps_remove(folder->store, "six", &removed, &err));
	assert_true(removed);
	expect_list(folder->store, "[\"pandas>=3\"]");
	expect_file(folder, "deps/requirements.txt", "");
}

static void test_limits(void **state)
{
	struct folder *folder = *state;
	FILE *file = on_files(folder) ? fopen(in(folder, "requirements.txt"), "w") : NULL;
	for (unsigned i = 0; i < CELL__STORE_DEPS - 1; i++)
		if (file)
			fprintf(file, "p%u\n", i);
		else
			redis_do("SADD %s p%d", redis_key(folder, "deps"), (int)i);
	if (file)
		fclose(file);
	OK(cell__deps_add(folder->store, "last", &err));
	FAILS(CELL_E_LIMIT, "more than 1000", cell__deps_add(folder->store, "one-more", &err));
	json_t *two = json_pack("[s, s]", "last==2", "one-more");
	FAILS(CELL_E_LIMIT, "more than 1000", cell__deps_add_all(folder->store, two, &err));
	json_decref(two);
	OK(cell__deps_add(folder->store, "last==2", &err));
	if (!on_files(folder))
		return;
	assert_int_equal(truncate(in(folder, "requirements.txt"), CELL__STORE_DEPS_BYTES + 1), 0);
	FAILS(CELL_E_LIMIT, "requirements.txt", cell__deps_add(folder->store, "x", &err));
}

static void test_processes(void **state)
{
	struct folder *folder = *state;
	for (int me = 0; me < 8; me++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			struct cell__store *store = NULL;
			CHECK(cell__store_open(folder->base, NULL, &store, NULL) == 0);
			for (int i = 0; i < 20; i++) {
				char spec[32];
				snprintf(spec, sizeof spec, "p%d-%d", me, i);
				CHECK(cell__deps_add(store, spec, NULL) == 0);
			}
			_exit(0);
		}
	}
	for (int i = 0; i < 8; i++) {
		int status = -1;
		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
	json_t *list = NULL;
	OK(cell__deps_list(folder->store, &list, NULL, &err));
	assert_int_equal(json_array_size(list), 160);
	json_decref(list);
}

static void test_out_of_memory(void **state)
{
	struct folder *folder = *state;
	write_text(folder, "requirements.txt", "# c\nsix\n");
	for (long n = 1;; n++) {
		assert_true(n < 1000);
		cell__alloc_fail_after(n);
		int rc = cell__deps_add(folder->store, "attrs", NULL);
		cell__alloc_fail_after(0);
		if (rc == 0)
			break;
		expect_file(folder, "requirements.txt", "# c\nsix\n");
	}
	expect_file(folder, "requirements.txt", "# c\nsix\nattrs\n");
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_accepted),       TEST(test_refused),     BOTH_TEST(test_add_remove), STORE_TEST(test_hand_written),
		STORE_TEST(test_old_file), BOTH_TEST(test_limits), BOTH_TEST(test_processes),  STORE_TEST(test_out_of_memory),
	};
	return RUN_STORE_TESTS(tests);
}
