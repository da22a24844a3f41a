/*
 * Spaces through the public API: their options about packages, what sessions see of them, progress, long messages.
 * Packages are installed for real, offline from wheels that are written here; WORKCELL_TEST_UV as in test_deps.c.
 */
#define _GNU_SOURCE
#include "deps_support.h"

#include <pthread.h>

#include "calls/principal.h"
#include "space/engine.h"
#include "space/space.h"

#define SLOW_S 300 /* several real venvs on a busy machine */

static struct cell_engine *engine;

struct progress {
	pthread_t thread; /* where it is to be told */
	size_t lines;
	struct cell__buf text;
};

static void handle_progress(void *arg, const char *line)
{
	struct progress *progress = arg;
	CHECK(pthread_equal(progress->thread, pthread_self()) && !strchr(line, '\n'));
	progress->lines++;
	cell__buf_printf(&progress->text, "%s\n", line);
}

static struct progress seen;

static int open_space(const char *name, void (*configure)(struct cell_space_options *options), struct cell_space **ret_space,
		      struct cell_error *err)
{
	static char base[160], cache[160];
	struct cell_space_options options = CELL_SPACE_OPTIONS_INIT;
	alarm(SLOW_S);
	cell__buf_finish(&seen.text);
	seen = (struct progress){ .thread = pthread_self() };
	snprintf(base, sizeof base, "%s/%s", tmp, name);
	snprintf(cache, sizeof cache, "%s/%s-cache", tmp, name);
	options.storage = base;
	options.cache_dir = cache;
	options.python = TEST_PYTHON;
	options.wheel_dir = wheels;
	options.path = search_path;
	options.on_progress = handle_progress;
	options.progress_arg = &seen;
	if (configure)
		configure(&options);
	return cell_space_open(engine, &options, ret_space, err);
}

static struct cell_space *space_of(const char *name, void (*configure)(struct cell_space_options *options))
{
	struct cell_space *space = NULL;
	struct cell_error err = { 0 };
	if (!engine)
		engine = support_engine(0);
	if (open_space(name, configure, &space, &err) < 0)
		fail_msg("cell_space_open: %s: %s", cell_code_word(err.code), err.msg);
	return space;
}

static void end(struct cell_space *space)
{
	cell_space_close(space);
	cell_engine_destroy(cell__take_ptr(engine));
	cell__buf_finish(&seen.text);
}

static struct cell_session *session_of(struct cell_space *space, const char *python)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_session *session = NULL;
	struct cell_error err = { 0 };
	options.space = space;
	options.python = python;
	if (cell_session_open(engine, &options, &session, &err) < 0)
		fail_msg("cell_session_open: %s: %s", cell_code_word(err.code), err.msg);
	return session;
}

static void call(struct cell_space *space, const char *method, const char *args, const char *expected)
{
	char *json = NULL;
	struct cell_error err = { 0 };
	if (cell_space_call(space, method, args, NULL, 0, &json, NULL, NULL, &err) < 0)
		fail_msg("%s: %s: %s", method, cell_code_word(err.code), err.msg);
	if (!strstr(json, expected))
		fail_msg("%s answered %s", method, json);
	free(json);
}

static void expect_error(struct cell_session *session, const char *code, const char *type)
{
	struct cell_result *result = support_run(session, code);
	assert_non_null(cell_result_error(result));
	assert_string_equal(cell_result_error(result)->type, type);
	cell_result_destroy(result);
}

/* ---- which interpreter ---- */

static void configure_version(struct cell_space_options *options)
{
	options->python = NULL;
	options->python_version = " 3.11 ";
	options->path = "/usr/bin";
}

static void configure_both(struct cell_space_options *options)
{
	options->python_version = "3.11";
}

static void configure_bad_version(struct cell_space_options *options)
{
	options->python = NULL;
	options->python_version = "3.11.2";
}

static void configure_no_version(struct cell_space_options *options)
{
	options->python = NULL;
	options->python_version = "3.98";
}

static void configure_no_time(struct cell_space_options *options)
{
	options->install_timeout_ms = 0;
}

static void test_interpreter(void **state)
{
	(void)state;
	struct cell_space *space = space_of("interpreter", configure_version);
	struct cell_session *session = session_of(space, NULL);
	support_expect(session, "import sys\n[sys.executable, sys.version_info[:2]]", "['/usr/bin/python3.11', (3, 11)]");
	struct cell_session *own = session_of(space, TEST_PYTHON);
	support_expect(own, "import sys\nsys.executable", "'" TEST_PYTHON "'");
	cell_session_close(own);
	cell_session_close(session);
	cell_space_close(space);

	static const struct {
		void (*configure)(struct cell_space_options *options);
		int code;
		const char *words;
	} wrong[] = {
		{ configure_both, CELL_E_INVALID, "give only one" },
		{ configure_bad_version, CELL_E_INVALID, "python_version must be in major.minor format" },
		{ configure_no_version, CELL_E_PYTHON, "python3.98 not found in " },
		{ configure_no_time, CELL_E_INVALID, "install_timeout_ms is 0" },
	};
	for (size_t i = 0; i < COUNT(wrong); i++) {
		struct cell_error err = { 0 };
		assert_int_equal(open_space("interpreter", wrong[i].configure, &space, &err), -1);
		assert_int_equal(err.code, wrong[i].code);
		assert_non_null(strstr(err.msg, wrong[i].words));
	}
	char *python = NULL;
	assert_int_equal(cell_find_python("3.11", "/usr/bin", &python, NULL), 0);
	assert_string_equal(python, "/usr/bin/python3.11");
	free(python);
	end(NULL);
}

/* ---- packages before the first cell ---- */

static void configure_sync(struct cell_space_options *options)
{
	options->sync_deps_on_start = 1;
}

static void write_list(const char *name, const char *text)
{
	char base[160];
	snprintf(base, sizeof base, "%s/%s", tmp, name);
	write_requirements(base, text);
}

static void test_sync_on_start(void **state)
{
	(void)state;
	write_list("start", "cell-beta\n");
	struct cell_space *space = space_of("start", configure_sync);
	struct cell_session *session = session_of(space, NULL);
	assert_true(seen.lines > 0);
	support_expect(session, "import cell_beta\ncell_beta.VERSION", "'1.5'");
	support_expect(session, "import shutil, subprocess\nsubprocess.check_output(['cell-beta'])", "b'beta 1.5\\n'");

	/* Nothing changed: nobody is asked, not even the venv's python.  Then something does. */
	size_t lines = seen.lines;
	assert_int_equal(shell("cd %s/start-cache/venvs/*/bin && mv python real && printf '#!/bin/sh\\ntouch %s/asked\\n"
			       "exec \"${0%%%%/*}/real\" \"$@\"\\n' > python && chmod +x python",
			       tmp, tmp),
			 0);
	struct cell_session *second = session_of(space, NULL);
	assert_int_equal(seen.lines, lines);
	assert_int_not_equal(shell("test -e %s/asked", tmp), 0);
	support_expect(second, "import cell_beta", NULL);
	write_list("start", "cell-beta\ncell-alpha==1.0\n");
	struct cell_session *third = session_of(space, NULL);
	assert_true(seen.lines > lines);
	assert_int_equal(shell("test -e %s/asked", tmp), 0);
	support_expect(third, "import cell_alpha\ncell_alpha.VERSION", "'1.0'");
	/* Those that were there before can import it too. */
	support_expect(session, "import cell_alpha\ncell_alpha.VERSION", "'1.0'");

	write_list("start", "cell-beta\ncell-nowhere\n");
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_session *none = NULL;
	struct cell_error err = { 0 };
	options.space = space;
	assert_int_equal(cell_session_open(engine, &options, &none, &err), -1);
	assert_int_equal(err.code, CELL_E_INSTALL);
	assert_non_null(strstr(err.msg, "cannot install cell-nowhere: "));
	assert_null(strchr(err.msg, '\n'));
	assert_non_null(strstr(seen.text.data, "cell-nowhere"));
	assert_null(none);
	cell_session_close(third);
	cell_session_close(second);
	cell_session_close(session);
	end(space);
}

/* ---- the host installs, sessions import ---- */

static void test_running_session(void **state)
{
	(void)state;
	struct cell_space *space = space_of("running", NULL);
	struct cell_session *session = session_of(space, NULL);
	expect_error(session, "import cell_alpha", "ModuleNotFoundError");
	call(space, "deps.add", "{\"package\": \"cell-alpha==1.0\"}", "\"installed\":[\"cell-alpha==1.0\"]");
	assert_non_null(strstr(seen.text.data, with_uv ? "creating an environment with uv" : "Successfully installed"));
	support_expect(session, "import cell_alpha\ncell_alpha.VERSION", "'1.0'");
	support_expect(session, "import subprocess\nsubprocess.check_output(['cell-alpha'])", "b'alpha 1.0\\n'");
	call(space, "deps.remove", "{\"package\": \"cell-alpha\"}", "true");
	assert_int_equal(cell_session_reset(session, NULL), 0);
	expect_error(session, "import cell_alpha", "ModuleNotFoundError");

	/* What code in a cell begins is output of that cell. */
	size_t lines = seen.lines;
	struct cell_result *result = support_run(session, "print('before')\ndeps.add('cell-beta')\nprint('after')");
	struct cell_text text;
	assert_null(cell_result_error(result));
	cell_result_text(result, &text);
	const char *before = strstr(text.data, "before\n"), *after = strstr(text.data, "after\n");
	const char *said = strcasestr(text.data, "installed");
	assert_true(before && after && said && before < said && said < after);
	cell_result_stdout(result, &text);
	assert_string_equal(text.data, "before\nafter\n");
	cell_result_destroy(result);
	assert_int_equal(seen.lines, lines);
	cell_session_close(session);
	end(space);
}

static void test_another_interpreter(void **state)
{
	(void)state;
	if (access(TEST_OTHER_PYTHON, X_OK) < 0)
		skip();
	struct cell_space *space = space_of("another", NULL);
	call(space, "deps.add", "{\"package\": \"cell-alpha\"}", "\"installed\":[\"cell-alpha\"]");
	struct cell_session *session = session_of(space, TEST_OTHER_PYTHON);
	expect_error(session, "import cell_alpha", "ModuleNotFoundError");
	struct cell_result *result = support_run(session, "deps.sync();");
	struct cell_text text;
	cell_result_stderr(result, &text);
	assert_non_null(strstr(text.data, "RuntimeWarning: this session's Python"));
	cell_result_destroy(result);
	expect_error(session, "import cell_alpha", "ModuleNotFoundError");
	cell_session_close(session);
	end(space);
}

/* ---- where venvs are, and how long ---- */

static char chosen[160];

static void configure_private(struct cell_space_options *options)
{
	options->cache_venv = 0;
}

static void configure_private_kept(struct cell_space_options *options)
{
	options->cache_venv = 0;
	options->cleanup_venv_on_close = 0;
}

static void configure_cleanup(struct cell_space_options *options)
{
	options->cleanup_venv_on_close = 1;
}

static void configure_chosen(struct cell_space_options *options)
{
	options->venv_dir = chosen;
	options->cache_venv = 0; /* a named folder wins, and stays */
}

static int count_venvs(const char *name)
{
	int count = 0;
	char command[300];
	snprintf(command, sizeof command, "ls %s/%s-cache/venvs | wc -l", tmp, name);
	FILE *in = popen(command, "r");
	assert_int_equal(fscanf(in, "%d", &count), 1);
	pclose(in);
	return count;
}

static void test_where_and_how_long(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		void (*configure)(struct cell_space_options *options);
		int during, after;
	} rows[] = {
		{ "kept", NULL, 1, 1 },
		{ "private", configure_private, 1, 0 },
		{ "private-kept", configure_private_kept, 1, 1 },
		{ "cleanup", configure_cleanup, 1, 0 },
		{ "chosen", configure_chosen, 0, 0 },
	};
	snprintf(chosen, sizeof chosen, "%s/chosen-venv", tmp);
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct cell_space *space = space_of(rows[i].name, rows[i].configure);
		call(space, "deps.add", "{\"package\": \"cell-alpha\"}", "\"installed\":[\"cell-alpha\"]");
		assert_int_equal(count_venvs(rows[i].name), rows[i].during);
		struct cell_session *session = session_of(space, NULL);
		support_expect(session, "import cell_alpha", NULL);
		cell_session_close(session);
		cell_space_close(space);
		assert_int_equal(count_venvs(rows[i].name), rows[i].after);
	}
	assert_int_equal(shell("test -x %s/bin/python", chosen), 0);
	/* The list is kept in any case. */
	struct cell_space *space = space_of("private", configure_private);
	call(space, "deps.list", NULL, "[\"cell-alpha\"]");
	call(space, "deps.sync", NULL, "\"installed\":[\"cell-alpha\"]");
	end(space);
}

/* ---- what installers get ---- */

static const char *const installer_env[] = {
	"SSL_CERT_FILE=/some/where", "UV_SYSTEM_PYTHON=1", "PIP_USER=1", "UV_FIND_LINKS=/else/where", "HOME=/my/home", "nonsense", NULL
};
static char fake_path[200];

static void configure_fake(struct cell_space_options *options)
{
	options->installer_env = installer_env;
	options->path = fake_path;
}

/* An installer that shows its environment, says a password and more than anybody wants to hear, and fails. */
static void make_fake_uv(void)
{
	char file[200];
	snprintf(fake_path, sizeof fake_path, "%s/fake:/usr/bin:/bin", tmp);
	assert_int_equal(shell("mkdir -p %s/fake", tmp), 0);
	snprintf(file, sizeof file, "%s/fake/uv", tmp);
	FILE *out = fopen(file, "w");
	fprintf(out, "#!/bin/sh\n"
		     "if [ $1 = venv ]; then for dir; do :; done; exec " TEST_PYTHON " -m venv --without-pip $dir; fi\n"
		     "env\n"
		     "echo 'from https://me:hunter2@example.org/simple, http://token@example.org and me@example.org'\n"
		     "i=0; while [ $i -lt 40000 ]; do echo 'this line is here a great many times'; i=$((i+1)); done\n"
		     "echo 'refused: https://me:hunter2@example.org/simple' >&2; exit 3\n");
	fclose(out);
	assert_int_equal(shell("chmod +x %s", file), 0);
}

static void test_installers(void **state)
{
	(void)state;
	make_fake_uv();
	struct cell_space *space = space_of("fake", configure_fake);
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	assert_int_equal(cell_space_call_ex(space, "deps.add", "{\"package\": \"x\"}", NULL, 0, &answer, &err), -1);
	assert_int_equal(err.code, CELL_E_INSTALL);
	assert_string_equal(answer.message, "cannot install x: uv ended with status 3:\n"
					    "refused: https://me:****@example.org/simple");
	cell_answer_finish(&answer);
	static const char *const there[] = { "\nSSL_CERT_FILE=/some/where\n", "\nHOME=/my/home\n", "\nUV_LINK_MODE=copy\n",
					     "\nfrom https://me:****@example.org/simple, http://****@example.org and me@example.org\n" };
	static const char *const missing[] = { "UV_SYSTEM_PYTHON", "PIP_USER", "FIND_LINKS", "nonsense", "hunter2", "token@" };
	for (size_t i = 0; i < COUNT(there); i++)
		assert_non_null(strstr(seen.text.data, there[i]));
	for (size_t i = 0; i < COUNT(missing); i++)
		assert_null(strstr(seen.text.data, missing[i]));
	assert_true(seen.text.size <= CELL__DEPS_PROGRESS_BYTES + 100);
	assert_string_equal(strrchr(strndupa(seen.text.data, seen.text.size - 1), '\n'), "\n[output truncated]");
	call(space, "deps.list", NULL, "[]");
	end(space);
}

/* ---- long messages ---- */

static void fail_at_length(void *arg, struct cell_tool_call *tool_call)
{
	cell_tool_call_fail(tool_call, arg);
}

static void test_long_message(void **state)
{
	(void)state;
	struct cell_space *space = space_of("long", NULL);
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	static char words[5000];
	memset(words, 'w', sizeof words - 2);
	words[sizeof words - 2] = '!';
	struct cell_tool tool = CELL_TOOL_INIT;
	tool.name = "talker";
	tool.fn = fail_at_length;
	tool.arg = words;
	assert_int_equal(cell_space_add_tool(space, &tool, &err), 0);
	const char *args = "{\"name\": \"talker\", \"args\": {}}";
	assert_int_equal(cell_space_call_ex(space, "tools.call", args, NULL, 0, &answer, &err), -1);
	assert_int_equal(err.code, CELL_E_TOOL);
	assert_true(strlen(answer.message) > strlen(words) && strstr(answer.message, words));
	assert_memory_equal(answer.message, err.msg, strlen(err.msg));
	assert_null(answer.json);
	cell_answer_finish(&answer);
	assert_null(answer.message);
	/* The same without, as before. */
	char *json = NULL;
	assert_int_equal(cell_space_call(space, "tools.call", args, NULL, 0, &json, NULL, NULL, &err), -1);
	assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
	assert_null(json);
	/* Misuse has a message as well, success has none. */
	assert_int_equal(cell_space_call_ex(space, "tools.list", "[]", NULL, 0, &answer, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	assert_string_equal(answer.message, err.msg);
	cell_answer_finish(&answer);
	assert_int_equal(cell_space_call_ex(space, "tools.list", NULL, NULL, 0, &answer, &err), 0);
	assert_non_null(strstr(answer.json, "talker"));
	assert_null(answer.message);
	cell_answer_finish(&answer);
	answer.size = 1;
	assert_int_equal(cell_space_call_ex(space, "tools.list", NULL, NULL, 0, &answer, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	end(space);
}

/* ---- lent work ---- */

struct lent {
	struct cell__lent_work work; /* first */
	struct cell__call *call;
	struct lent *next; /* lent when this one is done; NULL: the call is answered */
	pthread_t ran_on;
};

static void run_lent(struct cell__lent_work *work)
{
	((struct lent *)work)->ran_on = pthread_self();
}

static void done_lent(struct cell__lent_work *work)
{
	const struct lent *lent = (const struct lent *)work;
	lent->call->progress(lent->call, "a line", 6);
	if (lent->next)
		lent->call->lend(lent->call, &lent->next->work);
	else
		lent->call->answer_text(lent->call, "\"all done\"", NULL, 0);
}

static struct lent second_lent = { .work = { run_lent, done_lent } };
static struct lent first_lent = { .work = { run_lent, done_lent }, .next = &second_lent };

static void lend_twice(struct cell_session *session, const struct cell__principal *principal, struct cell__call *call)
{
	(void)session;
	(void)principal;
	first_lent.call = second_lent.call = call;
	call->lend(call, &first_lent.work);
}

/* Work that is lent together with a line of progress, after the caller took the work before it, is done by the caller too. */
static void test_work_lent_with_progress(void **state)
{
	(void)state;
	struct cell_space *space = space_of("lent", NULL);
	const struct cell__session_ops *ops = engine->session_ops;
	struct cell__session_ops lending = *ops;
	struct cell__asking_for who = { .space = space, .session = (struct cell_session *)&lending, .principal = &cell__principal_host };
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	alarm(60);
	lending.call = lend_twice;
	engine->session_ops = &lending;
	assert_int_equal(cell__space_answer_for(&who, "tools.list", NULL, NULL, 0, NULL, &answer, &err), 0);
	engine->session_ops = ops;
	assert_string_equal(answer.json, "\"all done\"");
	assert_true(pthread_equal(first_lent.ran_on, pthread_self()) && pthread_equal(second_lent.ran_on, pthread_self()));
	assert_string_equal(seen.text.data, "a line\na line\n");
	cell_answer_finish(&answer);
	end(space);
}

/* ---- repairs ---- */

static char logged[512];

static void keep_log(void *arg, enum cell_log_level level, const char *line)
{
	(void)arg;
	if (level == CELL_LOG_WARN)
		snprintf(logged, sizeof logged, "%s", line);
}

/* An unreadable index is set aside while a call succeeds: the host's log says so. */
static void test_repair_is_logged(void **state)
{
	(void)state;
	struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;
	struct cell_error err = { 0 };
	options.lib_dir = TEST_LIB_DIR;
	options.log = keep_log;
	assert_int_equal(cell_engine_create(&options, &engine, &err), 0);
	struct cell_space *space = space_of("repaired", NULL);
	call(space, "artifacts.save", "{\"name\":\"a\"}", "a");
	assert_string_equal(logged, "");
	shell("echo '{not json' > %s/repaired/artifacts/.artifacts.json", tmp);
	call(space, "artifacts.save", "{\"name\":\"b\"}", "b");
	if (!strstr(logged, "kept as .artifacts.json.broken-"))
		fail_msg("the log says: %s", logged);
	end(space);
}

int main(int argc, char **argv)
{
	const char *uv = getenv("WORKCELL_TEST_UV");
	with_uv = uv && *uv;
	snprintf(search_path, sizeof search_path, "%s%s/usr/local/bin:/usr/bin:/bin", with_uv ? uv : "", with_uv ? ":" : "");
	support_init(argc, argv);
	snprintf(tmp, sizeof tmp, "/tmp/test-space-XXXXXX");
	CHECK(mkdtemp(tmp) != NULL);
	make_wheels();
	const struct CMUnitTest installers[] = {
		TEST(test_installers),
		TEST(test_repair_is_logged),
	};
	/* Nothing in these depends on who installs (test_deps.c), and a venv with pip takes seconds to make. */
	const struct CMUnitTest ours[] = {
		TEST(test_sync_on_start),           TEST(test_running_session),    TEST(test_interpreter),
		TEST(test_another_interpreter),     TEST(test_where_and_how_long), TEST(test_long_message),
		TEST(test_work_lent_with_progress),
	};
	int failures = cmocka_run_group_tests(installers, NULL, NULL);
	if (with_uv)
		failures += cmocka_run_group_tests(ours, NULL, NULL);
	if (failures == 0)
		shell("rm -rf %s", tmp);
	return failures;
}
