/* The public API: engines, sessions, runs, results, and what happens when it is misused. */
#define _GNU_SOURCE
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "engine/engine.h"
#include "executors/subprocess/kernel.h"
#include "loop/loop.h"

/* ---- the plain way ---- */

static void test_open_run_close(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(2);
	struct cell_session *session = support_session(engine);
	assert_int_equal(strlen(cell_session_id(session)), 32);
	int64_t pid = cell_session_kernel_pid(session);
	assert_true(pid > 1);
	support_expect(session, "x = 20", NULL);
	support_expect(session, "def f(y):\n    return x + y", NULL);
	support_expect(session, "import math\nf(22)", "42");
	support_expect(session, "math.floor(2.5)", "2");
	support_expect(session, "x;", NULL);
	support_expect(session, "", NULL);
	assert_int_equal(cell_session_kernel_pid(session), pid);
	struct cell_session *other = support_session(engine);
	assert_string_not_equal(cell_session_id(session), cell_session_id(other));
	support_expect(other, "'x' in globals()", "False"); /* sessions share nothing */
	cell_session_close(session);
	support_expect(other, "1 + 1", "2");
	cell_session_close(other);
	cell_session_close(NULL);
	cell_engine_destroy(engine);
	cell_engine_destroy(NULL);
}

static void assert_text(void (*get)(const struct cell_result *, struct cell_text *), const struct cell_result *result, const char *wanted)
{
	struct cell_text text;
	get(result, &text);
	assert_string_equal(text.data, wanted);
	assert_int_equal(text.size, strlen(wanted));
	assert_true(text.total == text.raw_size);
}

static void test_result_parts(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	struct cell_result *result = support_run(session, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n"
							  "print('again')\n{'a': [1, 2.5, None, 10**30], 'b': 'é'}");
	assert_null(cell_result_error(result));
	assert_string_equal(cell_result_value_json(result), "{\"a\":[1,2.5,null,1000000000000000000000000000000],\"b\":\"\xc3\xa9\"}");
	assert_string_equal(cell_result_repr(result), "{'a': [1, 2.5, None, 1000000000000000000000000000000], 'b': '\xc3\xa9'}");
	const struct cell_mime_part *parts;
	assert_int_equal(cell_result_mime(result, &parts), 1);
	assert_string_equal(parts[0].type, "text/plain");
	assert_text(cell_result_stdout, result, "out\nagain\n");
	assert_text(cell_result_stderr, result, "err\n");
	assert_text(cell_result_text, result, "out\nerr\nagain\n");
	assert_true(cell_result_duration_ms(result) > 0);
	assert_true(cell_result_duration_ms(result) < DEADLINE_MS);
	assert_int_equal(cell_result_state_kept(result), 1);
	assert_null(cell_result_spill_path(result));
	json_t *isolation = json_loads(cell_result_isolation_json(result), 0, NULL);
	assert_string_equal(json_string_value(json_object_get(isolation, "executor")), "subprocess");
	assert_string_equal(json_string_value(json_object_get(isolation, "level")), "process");
	json_decref(isolation);
	char *text = cell_result_json(result);
	json_t *json = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, NULL);
	assert_non_null(json);
	assert_string_equal(json_string_value(json_object_get(json, "session_id")), cell_session_id(session));
	assert_string_equal(json_string_value(json_object_get(json, "text")), "out\nerr\nagain\n");
	json_decref(json);
	free(text);
	cell_result_destroy(result);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_values(void **state)
{
	(void)state;
	static const struct {
		const char *code, *value, *repr;
	} rows[] = {
		{ "None", NULL, NULL },
		{ "True", "true", "True" },
		{ "'a\\nb'", "\"a\\nb\"", "'a\\nb'" },
		{ "(1, 2)", NULL, "(1, 2)" },
		{ "float('nan')", NULL, "nan" },
		{ "b'\\xff'", NULL, "b'\\xff'" },
		{ "'\\ud800'", NULL, "'\\ud800'" },
		{ "2**70", "1180591620717411303424", "1180591620717411303424" },
		{ "object.__new__(type('T', (), {'__repr__': lambda self: 'T!'}))", NULL, "T!" },
	};
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct cell_result *result = support_run(session, rows[i].code);
		const char *value = cell_result_value_json(result), *repr = cell_result_repr(result);
		assert_int_equal(support_outcome(result), 0);
		assert_string_equal(value ? value : "-", rows[i].value ? rows[i].value : "-");
		assert_string_equal(repr ? repr : "-", rows[i].repr ? rows[i].repr : "-");
		cell_result_destroy(result);
	}
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_exception(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	struct cell_result *result = support_run(session, "kept = 1\nprint('before')\n1/0");
	const struct cell_outcome *outcome = cell_result_error(result);
	assert_non_null(outcome);
	assert_int_equal(outcome->code, CELL_OUT_EXCEPTION);
	assert_string_equal(outcome->type, "ZeroDivisionError");
	assert_string_equal(outcome->message, "division by zero");
	assert_non_null(strstr(outcome->traceback, "1/0"));
	assert_null(strchr(outcome->traceback, '\x1b'));
	assert_null(cell_result_repr(result));
	assert_int_equal(cell_result_state_kept(result), 1);
	assert_text(cell_result_stdout, result, "before\n");
	cell_result_destroy(result);
	support_expect(session, "kept", "1");
	/* What is not source at all is the code's fault, not ours. */
	struct cell_error err;
	assert_int_equal(cell_session_run(session, "'\xff'", 3, NULL, &result, &err), 0);
	assert_int_equal(support_outcome(result), CELL_OUT_EXCEPTION);
	cell_result_destroy(result);
	assert_int_equal(cell_session_run(session,
					  "1\0"
					  "2",
					  3, NULL, &result, &err),
			 0);
	assert_int_equal(support_outcome(result), CELL_OUT_EXCEPTION);
	cell_result_destroy(result);
	support_expect(session, "kept", "1");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_displays(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	struct cell_result *result = support_run(session, "class H:\n    def _repr_html_(self): return '<b>hi</b>'\n"
							  "display(H())\ndisplay(1)\nH()");
	const struct cell_mime_part *parts;
	assert_int_equal(cell_result_display_count(result), 2);
	size_t n = cell_result_display(result, 0, &parts);
	bool html = false;
	for (size_t i = 0; i < n; i++)
		html |= strcmp(parts[i].type, "text/html") == 0 && strcmp(parts[i].data, "<b>hi</b>") == 0;
	assert_true(html);
	assert_int_equal(cell_result_mime(result, &parts), 2);
	assert_string_equal(parts[0].type, "text/plain");
	assert_string_equal(parts[1].type, "text/html");
	cell_result_destroy(result);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* ---- settings ---- */

static void test_session_options(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	const char *const env[] = { "A=1", "PATH=/only/this", "EMPTY=", "EQUALS=a=b", "UTF=\xc3\xa9", NULL };
	options.env = env;
	options.cwd = "/usr";
	struct cell_session *session = support_session_with(engine, &options);
	support_expect(session, "import os; os.getcwd()", "'/usr'");
	support_expect(session, "[os.environ[k] for k in ('A', 'PATH', 'EMPTY', 'EQUALS', 'UTF')]",
		       "['1', '/only/this', '', 'a=b', '\xc3\xa9']");
	support_expect(session, "sorted(os.environ)", "['A', 'EMPTY', 'EQUALS', 'HOME', 'LANG', 'PATH', 'UTF']");
	cell_session_close(session);
	/* A relative directory is the caller's; none is the caller's own. */
	char here[4096];
	assert_non_null(getcwd(here, sizeof here));
	assert_int_equal(chdir("/usr"), 0);
	options = (struct cell_session_options)CELL_SESSION_OPTIONS_INIT;
	options.cwd = "lib";
	session = support_session_with(engine, &options);
	struct cell_session *plain = support_session(engine);
	assert_int_equal(chdir(here), 0);
	support_expect(session, "import os; os.path.samefile('.', '/usr/lib')", "True");
	support_expect(plain, "import os; os.getcwd()", "'/usr'");
	cell_session_close(session);
	cell_session_close(plain);
	cell_engine_destroy(engine);
}

/* What is given to an executor that would ignore it is refused. */
static void test_options_of_other_executors(void **state)
{
	(void)state;
	static const struct cell_container_options container = CELL_CONTAINER_OPTIONS_INIT;
#define OPTION(name) offsetof(struct cell_session_options, name)
	static const struct {
		const char *executor;
		size_t option;
		const void *value;
		const char *whose;
	} cases[] = {
		{ NULL, OPTION(kernel), "python3", "\"jupyter\"" },
		{ NULL, OPTION(sandbox_policy), "untrusted", "\"sandbox\"" },
		{ NULL, OPTION(workspace_mode), "ro", "\"sandbox\"" },
		{ NULL, OPTION(network_profile), "none", "use the executor sandbox or deno or container" },
		{ "jupyter", OPTION(network), "none", "use the executor sandbox or deno or container" },
		{ "container", OPTION(network), "deps-only", "use the executor sandbox or deno" },
		{ "remote", OPTION(network), "none", "where the server is started" },
		{ NULL, OPTION(disk_limit), (void *)(1 << 30), "use the executor sandbox" },
		{ "container", OPTION(disk_limit), (void *)(1 << 30), "use the executor sandbox" },
		{ NULL, OPTION(memory_limit), (void *)(1 << 30), "use the executor sandbox or container" },
		{ NULL, OPTION(remote_url), "http://localhost:1", "\"remote\"" },
		{ NULL, OPTION(remote_token), "x", "\"remote\"" },
		{ NULL, OPTION(remote_workspace), "w", "\"remote\"" },
		{ NULL, OPTION(container), &container, "\"container\"" },
		{ "container", OPTION(remote_url), "http://localhost:1", "\"remote\"" },
		{ "remote", OPTION(sandbox_policy), "untrusted", "\"sandbox\"" },
		{ "sandbox", OPTION(network), "nothing", "expected none, deps-only, full or allow=" },
	};
	struct cell_engine *engine = support_engine(0);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
		struct cell_session *session = NULL;
		struct cell_error err = { 0 };
		options.executor = cases[i].executor;
		memcpy((char *)&options + cases[i].option, &cases[i].value, sizeof cases[i].value);
		assert_int_equal(cell_session_open(engine, &options, &session, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
		assert_non_null(strstr(err.msg, cases[i].whose));
	}
	cell_engine_destroy(engine);
}

/* A program built against an older header passes a smaller struct. */
static void test_smaller_options(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	options.size = offsetof(struct cell_session_options, cwd);
	options.cwd = "/nonexistent"; /* not part of it */
	options.timeout_ms = -77;
	struct cell_session *session = support_session_with(engine, &options);
	struct cell_run_options run = CELL_RUN_OPTIONS_INIT;
	run.size = offsetof(struct cell_run_options, on_event);
	struct cell_result *result;
	assert_int_equal(cell_session_run(session, "1", 1, &run, &result, NULL), 0);
	cell_result_destroy(result);
	cell_session_close(session);
	struct cell_env_info info = { .size = offsetof(struct cell_env_info, ipython) };
	memset(info.ipython, 'x', sizeof info.ipython);
	assert_int_equal(cell_engine_prewarm(engine, TEST_PYTHON, NULL, &info, NULL), 0);
	assert_int_equal(info.ipython[0], 'x'); /* untouched past what the caller has */
	assert_int_equal(info.version[0], '3');
	cell_engine_destroy(engine);
}

static void test_engine_misuse(void **state)
{
	(void)state;
	struct cell_engine *engine = (void *)1;
	struct cell_error err;
	struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;
	const size_t sizes[] = { 0, 7, SIZE_MAX };
	for (size_t i = 0; i < COUNT(sizes); i++) {
		options.size = sizes[i];
		assert_int_equal(cell_engine_create(&options, &engine, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
		assert_non_null(strstr(err.msg, "size"));
	}
	options.size = sizeof options;
	options.lib_dir = TEST_LIB_DIR;
	const int pools[] = { -1, CELL_LIMIT_POOL + 1 };
	for (size_t i = 0; i < COUNT(pools); i++) {
		options.pool_size = pools[i];
		assert_int_equal(cell_engine_create(&options, &engine, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
		assert_non_null(strstr(err.msg, "pool_size"));
	}
	options.pool_size = CELL_LIMIT_POOL;
	options.lib_dir = "/usr";
	assert_int_equal(cell_engine_create(&options, &engine, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	assert_non_null(strstr(err.msg, "/usr"));
	assert_int_equal(cell_engine_create(&options, &engine, NULL), -1); /* err may be NULL */
	assert_ptr_equal(engine, (void *)1);                               /* untouched on failure */
	options.lib_dir = TEST_LIB_DIR;
	assert_int_equal(cell_engine_create(&options, &engine, &err), 0); /* the limit itself is fine */
	cell_engine_destroy(engine);
}

static void test_session_misuse(void **state)
{
	(void)state;
	static const char *const no_equals[] = { "A=1", "NOEQUALS", NULL };
	static const char *const no_key[] = { "=v", NULL };
	static const char *const no_text[] = { "K=\xff", NULL };
	const struct cell_session_options good = CELL_SESSION_OPTIONS_INIT;
	struct {
		struct cell_session_options options;
		int code;
		const char *word; /* in the message */
	} rows[30];
	size_t n = 0;
#define ROW(field, value, wanted, in_message)    \
	do {                                     \
		rows[n].options = good;          \
		rows[n].options.field = (value); \
		rows[n].code = (wanted);         \
		rows[n++].word = (in_message);   \
	} while (0)
	ROW(size, 0, CELL_E_INVALID, "size");
	ROW(size, 3, CELL_E_INVALID, "size");
	ROW(size, SIZE_MAX, CELL_E_INVALID, "size");
	ROW(timeout_ms, 0, CELL_E_INVALID, "timeout_ms");
	ROW(timeout_ms, -2, CELL_E_INVALID, "timeout_ms");
	ROW(timeout_ms, INT64_MIN, CELL_E_INVALID, "timeout_ms");
	ROW(grace_ms, -1, CELL_E_INVALID, "grace_ms");
	ROW(max_output_bytes, CELL_LIMIT_MIN_OUTPUT - 1, CELL_E_INVALID, "max_output_bytes");
	ROW(max_output_bytes, -1, CELL_E_INVALID, "max_output_bytes");
	ROW(python, "python3", CELL_E_INVALID, "absolute");
	ROW(python, "", CELL_E_INVALID, "absolute");
	ROW(python, "./python3", CELL_E_INVALID, "absolute");
	ROW(python, "/nonexistent/python3", CELL_E_PYTHON, "/nonexistent/python3");
	ROW(python, "/etc/passwd", CELL_E_PYTHON, "/etc/passwd");
	ROW(python, "/usr", CELL_E_PYTHON, "/usr");
	ROW(python, "/bin/false", CELL_E_PYTHON, "/bin/false");
	ROW(preload, "no_such_module_here", CELL_E_PRELOAD, "no_such_module_here");
	ROW(cwd, "/nonexistent/dir", CELL_E_INVALID, "/nonexistent/dir");
	ROW(cwd, "/etc/passwd", CELL_E_INVALID, "not a directory");
	ROW(env, no_equals, CELL_E_INVALID, "NOEQUALS");
	ROW(env, no_key, CELL_E_INVALID, "=v");
	ROW(env, no_text, CELL_E_INVALID, "UTF-8");
	ROW(executor, "teleport", CELL_E_UNAVAILABLE, "teleport");
	ROW(executor, "", CELL_E_UNAVAILABLE, "executor");
#undef ROW
	struct cell_engine *engine = support_engine(0);
	for (size_t i = 0; i < n; i++) {
		struct cell_session *session = (void *)1;
		struct cell_error err = { 0 };
		int rc = cell_session_open(engine, &rows[i].options, &session, &err);
		if (rc != -1 || err.code != rows[i].code || !strstr(err.msg, rows[i].word))
			fail_msg("row %zu (%s): rc %d, %s: %s", i, rows[i].word, rc, cell_code_word(err.code), err.msg);
		assert_ptr_equal(session, (void *)1);
		assert_int_equal(cell_session_open(engine, &rows[i].options, &session, NULL), -1);
	}
	struct cell_session *session = support_session(engine); /* and the engine is none the worse */
	support_expect(session, "1", "1");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_run_misuse(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	struct cell_result *result = (void *)1;
	struct cell_error err;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	const size_t sizes[] = { 0, 4, SIZE_MAX };
	for (size_t i = 0; i < COUNT(sizes); i++) {
		options.size = sizes[i];
		assert_int_equal(cell_session_run(session, "1", 1, &options, &result, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
		assert_int_equal(cell_session_start(session, "1", 1, &options, NULL, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
	}
	options.size = sizeof options;
	options.timeout_ms = -2;
	assert_int_equal(cell_session_run(session, "1", 1, &options, &result, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	assert_non_null(strstr(err.msg, "timeout_ms"));
	assert_ptr_equal(result, (void *)1);
	const int looks[] = { -1, 1, CELL_LIMIT_SPIN_US + 1 }, never = 0;
	for (size_t i = 0; i < COUNT(looks); i++) {
		options = (struct cell_run_options)CELL_RUN_OPTIONS_INIT;
		options.spin_us = looks[i];
		options.spin_end = looks[i] == 1 ? NULL : &never;
		assert_int_equal(cell_session_start(session, "1", 1, &options, NULL, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
		assert_non_null(strstr(err.msg, "spin_us"));
	}
	support_expect(session, "1", "1");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_code_limit(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	char *code = cell__alloc(1, CELL_LIMIT_CODE_BYTES + 2);
	memset(code, '#', CELL_LIMIT_CODE_BYTES + 1);
	struct cell_result *result = NULL;
	struct cell_error err;
	assert_int_equal(cell_session_run(session, code, CELL_LIMIT_CODE_BYTES + 1, NULL, &result, &err), -1);
	assert_int_equal(err.code, CELL_E_LIMIT);
	memcpy(code, "'at the limit'", 14);
	code[14] = '\n';
	assert_int_equal(cell_session_run(session, code, CELL_LIMIT_CODE_BYTES, NULL, &result, &err), 0);
	assert_int_equal(support_outcome(result), 0);
	assert_string_equal(cell_result_repr(result), "'at the limit'");
	cell_result_destroy(result);
	free(code);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_executors(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_executor_info info = { .size = sizeof info };
	assert_int_equal(cell_executor_probe(engine, 0, &info), 0);
	assert_string_equal(info.name, "subprocess");
	assert_string_equal(info.isolation, "process");
	assert_int_equal(info.available, 1);
	assert_string_equal(info.reason, "");
	size_t i = 1;
	while (i < 100 && cell_executor_probe(engine, i, &info) == 0) {
		/* One that does not work here says why and what to do. */
		assert_true(info.available || (info.reason[0] && info.advice[0]));
		i++;
	}
	assert_int_equal(cell_executor_probe(engine, i, &info), -1);
	assert_int_equal(cell_executor_probe(engine, SIZE_MAX, &info), -1);
	cell_engine_destroy(engine);
}

static void test_prewarm(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(3);
	struct cell_env_info info = { .size = sizeof info };
	struct cell_error err;
	assert_int_equal(cell_engine_prewarm(engine, TEST_PYTHON, "json,decimal", &info, &err), 0);
	assert_string_equal(info.python, TEST_PYTHON);
	assert_memory_equal(info.version, "3.", 2);
	assert_true(info.zygote_pid > 1);
	assert_true(info.start_ms > 0);
	assert_int_equal(kill((pid_t)info.zygote_pid, 0), 0);
	int64_t zygote = info.zygote_pid;
	assert_int_equal(cell_engine_prewarm(engine, TEST_PYTHON, "json,decimal", &info, NULL), 0);
	assert_int_equal(info.zygote_pid, zygote); /* one per environment */
	assert_int_equal(cell_engine_prewarm(engine, TEST_PYTHON, NULL, &info, NULL), 0);
	assert_int_not_equal(info.zygote_pid, zygote);
	assert_int_equal(cell_engine_prewarm(engine, NULL, NULL, NULL, NULL), 0);
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	options.preload = "json,decimal";
	struct cell_session *session = support_session_with(engine, &options);
	support_expect(session, "import sys; 'decimal' in sys.modules", "True");
	cell_session_close(session);
	assert_int_equal(cell_engine_prewarm(engine, "/nonexistent/python", NULL, NULL, &err), -1);
	assert_int_equal(err.code, CELL_E_PYTHON);
	assert_int_equal(cell_engine_prewarm(engine, "/bin/false", NULL, NULL, &err), -1);
	assert_int_equal(err.code, CELL_E_PYTHON);
	assert_int_equal(cell_engine_prewarm(engine, TEST_PYTHON, "no_such_module_here", NULL, &err), -1);
	assert_int_equal(err.code, CELL_E_PRELOAD);
	cell_engine_destroy(engine);
}

struct confined {
	pid_t pids[16];
	size_t count, least;
};

static long status_number(const char *text, const char *key)
{
	const char *at = strstr(text, key);
	return at ? strtol(at + strlen(key), NULL, 10) : -1;
}

/* The parent that a text of /proc/PID/status names, as the same text of its own. */
static bool read_parent(const struct cell__buf *text, struct cell__buf *ret_parent)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%ld/status", status_number(text->data, "\nPPid:"));
	return support_read_file(path, ret_parent) && ret_parent->size > 0;
}

/* Kernels (children of the zone's pid 1, whose parent is the spawner, which is ours) that have their zygote's filter and their own three. */
static bool find_confined(void *arg)
{
	struct confined *found = arg;
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	found->count = 0;
	while (proc && (entry = readdir(proc))) {
		char path[300];
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT, zone = CELL_BUF_INIT, spawner = CELL_BUF_INIT;
		snprintf(path, sizeof path, "/proc/%s/status", entry->d_name);
		if (strtol(entry->d_name, NULL, 10) <= 0 || !support_read_file(path, &text) || text.size == 0)
			continue;
		if (read_parent(&text, &zone) && read_parent(&zone, &spawner) && status_number(spawner.data, "\nPPid:") == getpid() &&
		    status_number(text.data, "\nSeccomp_filters:") >= 4 && found->count < COUNT(found->pids))
			found->pids[found->count++] = (pid_t)strtol(entry->d_name, NULL, 10);
	}
	if (proc)
		closedir(proc);
	return found->count >= found->least;
}

static bool was_confined(const struct confined *found, int64_t pid)
{
	for (size_t i = 0; i < found->count; i++)
		if (found->pids[i] == pid)
			return true;
	return false;
}

struct early {
	struct cell_engine *engine;
	bool sent, taken;
	atomic_bool over; /* the environment has started */
	int rc;
};

static void send_warmed(void *arg)
{
	struct early *early = arg;
	struct cell__subprocess *sub = cell__subprocess_of(&early->engine->host);
	for (struct cell__sub_env *env = sub->envs; env; env = env->next)
		if (env->state == CELL_ENV_STARTING && env->zygote_id) {
			struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION,
						       .type = CELL_SPAWN_ZYGOTE_WARMED,
						       .id = env->zygote_id };
			cell__sub_handle_message(sub, &head, NULL, 0);
			early->taken = env->warm;
			early->sent = true;
		}
}

static bool is_sent(void *arg)
{
	struct early *early = arg;
	cell__loop_call(early->engine->loop, send_warmed, early);
	return early->sent || atomic_load(&early->over);
}

static void *prewarm(void *arg)
{
	struct early *early = arg;
	early->rc = cell_engine_prewarm(early->engine, TEST_PYTHON, NULL, NULL, NULL);
	atomic_store(&early->over, true);
	return NULL;
}

/* A zygote may be warm before the pool has looked up the files that it reported. */
static void test_warm_before_ready(void **state)
{
	(void)state;
	struct early early = { .sent = false };
	/* On a busy machine an environment may have started before we ask for the first time. */
	for (int i = 0; i < 50 && !early.sent; i++) {
		pthread_t thread;
		early = (struct early){ .engine = support_engine(1), .rc = -1 };
		assert_int_equal(pthread_create(&thread, NULL, prewarm, &early), 0);
		assert_true(support_wait(is_sent, &early));
		pthread_join(thread, NULL);
		assert_int_equal(early.rc, 0);
		cell_engine_destroy(early.engine);
	}
	assert_true(early.sent && early.taken);
}

/* Kernels of a sandbox that are confined to the last step before a session asks for them. */
static void test_prewarm_sandbox(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(3);
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };
	char folder[] = "/tmp/workcell-prewarm-XXXXXX", path[64];
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof path, "%s/mark", folder);
	options.executor = "sandbox";
	options.python = TEST_PYTHON;
	options.cwd = folder;
	if (cell_session_prewarm(engine, &options, &err) < 0) {
		assert_int_equal(err.code, CELL_E_UNAVAILABLE); /* no sandbox here */
		rmdir(folder);
		cell_engine_destroy(engine);
		skip();
	}
	struct confined before = { .least = 2 };
	assert_true(support_wait(find_confined, &before));
	struct cell_session *session = support_session_with(engine, &options);
	assert_true(was_confined(&before, cell_session_kernel_pid(session)));
	support_expect(session, "open('mark', 'w').write('x')", "1");
	assert_int_equal(access(path, F_OK), 0);
	support_expect(session, "import os; os.path.exists('/.host')", "False");
	cell_session_close(session);
	/* The folder is another one now: what was bound before is of no use. */
	assert_true(support_wait(find_confined, &before));
	assert_int_equal(unlink(path) | rmdir(folder) | mkdir(folder, 0700), 0);
	session = support_session_with(engine, &options);
	assert_false(was_confined(&before, cell_session_kernel_pid(session)));
	support_expect(session, "open('mark', 'w').write('x')", "1");
	assert_int_equal(access(path, F_OK), 0);
	/* Another kind of session does not get a kernel that sees this folder. */
	struct cell_session_options other = options;
	other.workspace_mode = "none";
	struct cell_session *second = support_session_with(engine, &other);
	support_expect(second, "import os; os.getcwd()", "'/tmp'");
	/* The same again and again is expected without being told. */
	cell_session_close(second);
	second = support_session_with(engine, &other);
	before.least = 2 + 1; /* the first session's kernel has its filters as well */
	assert_true(support_wait(find_confined, &before));
	cell_session_close(session);
	cell_session_close(second);
	assert_int_equal(unlink(path) | rmdir(folder), 0);
	options.cwd = NULL;
	options.sandbox_policy = "no-such-preset";
	assert_int_equal(cell_session_prewarm(engine, &options, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell_engine_destroy(engine);
}

/* A program that starts and never says that it is ready. */
static void test_start_timeout(void **state)
{
	(void)state;
	char script[] = "/tmp/workcell-test-XXXXXX";
	int fd = mkostemp(script, O_CLOEXEC);
	assert_true(fd >= 0);
	static const char text[] = "#!/bin/sh\nexec sleep 1000\n";
	assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
	fchmod(fd, 0700);
	close(fd);
	struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;
	struct cell_engine *engine;
	struct cell_session *session;
	struct cell_session_options session_options = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err;
	options.lib_dir = TEST_LIB_DIR;
	options.start_timeout_ms = 300;
	assert_int_equal(cell_engine_create(&options, &engine, &err), 0);
	session_options.python = script;
	assert_int_equal(cell_session_open(engine, &session_options, &session, &err), -1);
	assert_int_equal(err.code, CELL_E_TIMEOUT);
	assert_int_equal(cell_engine_prewarm(engine, script, NULL, NULL, &err), -1);
	assert_int_equal(err.code, CELL_E_TIMEOUT);
	cell_engine_destroy(engine);
	unlink(script);
}

/* ---- output ---- */

static struct cell_session *capped_session(struct cell_engine *engine, int64_t max)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	options.max_output_bytes = max;
	return support_session_with(engine, &options);
}

static void test_spill(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = capped_session(engine, 2048);
	struct cell_result *result = support_run(session, "for i in range(100000): print(i)");
	struct cell_text text;
	cell_result_stdout(result, &text);
	assert_true(text.total == 588890);
	assert_true(text.size < 2048 + 200);
	assert_memory_equal(text.data, "0\n1\n2\n3\n", 8);
	assert_memory_equal(text.data + text.size - 12, "99998\n99999\n", 12);
	const char *path = cell_result_spill_path(result);
	assert_non_null(path);
	assert_non_null(strstr(text.data, path)); /* the marker says where the rest is */
	CELL_AUTO_BUF struct cell__buf all = CELL_BUF_INIT, wanted = CELL_BUF_INIT;
	assert_true(support_read_file(path, &all));
	for (int i = 0; i < 100000; i++)
		cell__buf_printf(&wanted, "%d\n", i);
	assert_int_equal(all.size, wanted.size);
	assert_memory_equal(all.data, wanted.data, wanted.size);
	CELL_AUTO_FREE char *copy = cell__strdup(path);
	cell_result_destroy(result);
	assert_int_equal(access(copy, F_OK), -1);
	result = support_run(session, "print('x' * 5000)");
	cell_result_keep_spill(result);
	free(copy);
	copy = cell__strdup(cell_result_spill_path(result));
	cell_result_destroy(result);
	assert_int_equal(access(copy, F_OK), 0);
	unlink(copy);
	/* At the cap there is no file, one past it there is. */
	result = support_run(session, "_ = __import__('sys').stdout.write('y' * 2048)");
	assert_null(cell_result_spill_path(result));
	cell_result_stdout(result, &text);
	assert_int_equal(text.size, 2048);
	cell_result_destroy(result);
	result = support_run(session, "_ = __import__('sys').stdout.write('y' * 2049)");
	assert_non_null(cell_result_spill_path(result));
	cell_result_destroy(result);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* A full disk costs the file, not the run. */
static void test_spill_fails(void **state)
{
	(void)state;
	struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;
	struct cell_engine *engine;
	options.lib_dir = TEST_LIB_DIR;
	options.spill_dir = "/nonexistent/dir";
	assert_int_equal(cell_engine_create(&options, &engine, NULL), 0);
	struct cell_session *session = capped_session(engine, 1024);
	struct cell_result *result = support_run(session, "print('z' * 100000)\n7");
	assert_int_equal(support_outcome(result), 0);
	assert_string_equal(cell_result_repr(result), "7");
	assert_null(cell_result_spill_path(result));
	struct cell_text text;
	cell_result_stdout(result, &text);
	assert_non_null(strstr(text.data, "bytes left out ...]"));
	cell_result_destroy(result);
	cell_session_close(session);
	cell_engine_destroy(engine);
	/* The file may not grow: as on a full disk, the write fails in the middle. */
	char dir[] = "/tmp/workcell-test-XXXXXX";
	assert_non_null(mkdtemp(dir));
	options.spill_dir = dir;
	assert_int_equal(cell_engine_create(&options, &engine, NULL), 0);
	session = capped_session(engine, 1024);
	struct rlimit before, small;
	getrlimit(RLIMIT_FSIZE, &before);
	small = before;
	small.rlim_cur = 64 * 1024;
	void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &small);
	struct cell_error err = { 0 };
	static const char code[] = "for i in range(50): print('z' * 10000)\n8";
	int rc = cell_session_run(session, code, sizeof code - 1, NULL, &result, &err);
	setrlimit(RLIMIT_FSIZE, &before);
	signal(SIGXFSZ, handler);
	assert_int_equal(rc, 0);
	assert_string_equal(cell_result_repr(result), "8");
	assert_null(cell_result_spill_path(result));
	cell_result_destroy(result);
	cell_session_close(session);
	cell_engine_destroy(engine);
	assert_int_equal(rmdir(dir), 0); /* half a file is no file */
}

/* Odd caps are caps like any other. */
static void test_odd_cap(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = capped_session(engine, 1025);
	struct cell_result *result = support_run(session, "_ = __import__('sys').stdout.write('a' * 513 + 'b' * 1000)");
	struct cell_text text;
	cell_result_stdout(result, &text);
	assert_int_equal(strspn(text.data, "a"), 512);
	for (size_t i = text.size - 512; i < text.size; i++)
		assert_int_equal(text.data[i], 'b');
	cell_result_destroy(result);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_bytes(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	struct cell_result *result = support_run(session, "import sys\n_ = sys.stdout.buffer.write(b'a\\xffb\\x00c\\xc3')");
	struct cell_text text;
	cell_result_stdout(result, &text);
	assert_int_equal(text.raw_size, 6);
	assert_memory_equal(text.raw,
			    "a\xff"
			    "b\0c\xc3",
			    7);
	assert_int_equal(text.size, 10);
	assert_memory_equal(text.data,
			    "a\xef\xbf\xbd"
			    "b\0c\xef\xbf\xbd",
			    11);
	cell_result_destroy(result);
	result = support_run(session, "import os\nprint('one')\n_ = os.system('echo two')\nprint('three')\n"
				      "_ = os.write(2, b'four\\n')\nprint('five')");
	cell_result_text(result, &text);
	assert_string_equal(text.data, "one\ntwo\nthree\nfour\nfive\n");
	cell_result_destroy(result);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* ---- death ---- */

static void test_kernel_died(void **state)
{
	(void)state;
	static const struct {
		const char *code, *cause;
	} rows[] = {
		{ "import os; print('last', flush=True); os._exit(3)", "status 3" },
		{ "import os, signal; print('last'); os.kill(os.getpid(), signal.SIGKILL)", "signal 9" },
		{ "import ctypes; print('last'); ctypes.string_at(0)", "signal 11" },
		{ "import os; print('last'); os.abort()", "signal 6" },
	};
	struct cell_engine *engine = support_engine(1);
	struct cell_session *session = support_session(engine);
	for (size_t i = 0; i < COUNT(rows); i++) {
		support_expect(session, "x = 1", NULL);
		int64_t pid = cell_session_kernel_pid(session);
		struct cell_result *result = support_run(session, rows[i].code);
		const struct cell_outcome *outcome = cell_result_error(result);
		assert_non_null(outcome);
		assert_int_equal(outcome->code, CELL_OUT_KERNEL_DIED);
		if (!strstr(outcome->message, rows[i].cause))
			fail_msg("%s: %s", rows[i].code, outcome->message);
		assert_int_equal(cell_result_state_kept(result), 0);
		assert_text(cell_result_stdout, result, "last\n"); /* what it said before is not lost */
		cell_result_destroy(result);
		support_expect(session, "'x' in globals()", "False");
		assert_int_not_equal(cell_session_kernel_pid(session), pid);
	}
	/* Between two runs: the next one simply gets a fresh kernel. */
	pid_t pid = (pid_t)cell_session_kernel_pid(session);
	kill(pid, SIGKILL);
	assert_true(support_wait(support_pid_gone, &pid));
	struct cell_result *result = support_run(session, "2");
	if (cell_result_error(result)) /* it may have been sent to the dying one */
		assert_int_equal(support_outcome(result), CELL_OUT_KERNEL_DIED);
	cell_result_destroy(result);
	support_expect(session, "3", "3");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_open_run_close),
		TEST(test_result_parts),
		TEST(test_values),
		TEST(test_exception),
		TEST(test_displays),
		TEST(test_session_options),
		TEST(test_options_of_other_executors),
		TEST(test_smaller_options),
		TEST(test_engine_misuse),
		TEST(test_session_misuse),
		TEST(test_run_misuse),
		TEST(test_code_limit),
		TEST(test_executors),
		TEST(test_prewarm),
		TEST(test_warm_before_ready),
		TEST(test_prewarm_sandbox),
		TEST(test_start_timeout),
		TEST(test_spill),
		TEST(test_spill_fails),
		TEST(test_odd_cap),
		TEST(test_bytes),
		TEST(test_kernel_died),
	};
	return cmocka_run_group_tests_name("api", tests, NULL, NULL);
}
