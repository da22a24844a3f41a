/*
 * The thread that runs the loop looks up no path of a file system that may block (a network mount, a FUSE mount, a slow disk): every other
 * session would stand still with it.  This program takes the place of libc's functions that look up paths, and reports those that are
 * called by the loop's thread while sessions of each kind are opened, used, reset, restarted and closed.
 */
#undef _FILE_OFFSET_BITS /* each function has two names, with and without 64: both are defined here */
#undef _FORTIFY_SOURCE /* with it clang overloads them */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support.h"

#include "calls/principal.h"
#include "engine/engine.h"
#include "loop/loop.h"
#include "space/space.h"

/* ---- the watch ---- */

static struct cell__loop *_Atomic watched; /* NULL: nothing is reported */
static atomic_int n_reported;
static __thread bool reporting;

/* Paths that the loop's thread may look up, because no file system that can block is behind them. */
static const struct {
	const char *prefix, *why;
} allowed[] = {
	{ "/proc/", "the kernel's own: processes, mounts, and descriptors that are open already" },
	{ "/dev/null", "the kernel's own" },
	{ "/dev/urandom", "the kernel's own; Jansson and SQLite of the portable build take their first seed from it" },
};

static void note(const char *function, const char *path)
{
	struct cell__loop *loop = watched;
	if (!loop || reporting)
		return;
	reporting = true;
	for (size_t i = 0; path && i < COUNT(allowed); i++)
		if (strncmp(path, allowed[i].prefix, strlen(allowed[i].prefix)) == 0) {
			reporting = false;
			return;
		}
	if (cell__loop_is_current(loop)) {
		void *frames[24];
		n_reported++;
		fprintf(stderr, "the loop's thread calls %s(%s)\n", function, path ? path : "");
		backtrace_symbols_fd(frames, backtrace(frames, COUNT(frames)), STDERR_FILENO);
	}
	reporting = false;
}

/* ---- libc's functions ---- */

#define NEXT(name)                             \
	static __typeof__(name) *_Atomic next; \
	__typeof__(name) *real = next;         \
	if (!real)                             \
	next = real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define WRAP(type, name, params, path, args) \
	type name params;                    \
	type name params                     \
	{                                    \
		NEXT(name);                  \
		note(#name, path);           \
		return real args;            \
	}

#define WRAP_OPEN(name, at_param, at_arg)                                               \
	int name(at_param const char *path, int flags, ...)                             \
	{                                                                               \
		NEXT(name);                                                             \
		va_list more;                                                           \
		va_start(more, flags);                                                  \
		mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
		va_end(more);                                                           \
		note(#name, path);                                                      \
		return real(at_arg path, flags, mode);                                  \
	}
#define NOTHING
#define AT_PARAM int dir_fd,
#define AT_ARG dir_fd,

WRAP_OPEN(open, NOTHING, NOTHING)
WRAP_OPEN(open64, NOTHING, NOTHING)
WRAP_OPEN(openat, AT_PARAM, AT_ARG)
WRAP_OPEN(openat64, AT_PARAM, AT_ARG)
WRAP(int, __open_2, (const char *path, int flags), path, (path, flags))
WRAP(int, __open64_2, (const char *path, int flags), path, (path, flags))
WRAP(int, __openat_2, (int dir_fd, const char *path, int flags), path, (dir_fd, path, flags))
WRAP(int, __openat64_2, (int dir_fd, const char *path, int flags), path, (dir_fd, path, flags))
WRAP(FILE *, fopen, (const char *path, const char *mode), path, (path, mode))
WRAP(FILE *, fopen64, (const char *path, const char *mode), path, (path, mode))
WRAP(DIR *, opendir, (const char *path), path, (path))
WRAP(int, stat, (const char *path, struct stat *st), path, (path, st))
WRAP(int, stat64, (const char *path, struct stat64 *st), path, (path, st))
WRAP(int, lstat, (const char *path, struct stat *st), path, (path, st))
WRAP(int, lstat64, (const char *path, struct stat64 *st), path, (path, st))
WRAP(int, fstatat, (int dir_fd, const char *path, struct stat *st, int flags), path, (dir_fd, path, st, flags))
WRAP(int, fstatat64, (int dir_fd, const char *path, struct stat64 *st, int flags), path, (dir_fd, path, st, flags))
WRAP(int, statx, (int dir_fd, const char *path, int flags, unsigned mask, struct statx *st), path, (dir_fd, path, flags, mask, st))
WRAP(int, statvfs, (const char *path, struct statvfs *st), path, (path, st))
WRAP(int, statvfs64, (const char *path, struct statvfs64 *st), path, (path, st))
WRAP(int, access, (const char *path, int mode), path, (path, mode))
WRAP(int, faccessat, (int dir_fd, const char *path, int mode, int flags), path, (dir_fd, path, mode, flags))
WRAP(char *, realpath, (const char *path, char *out), path, (path, out))
WRAP(char *, __realpath_chk, (const char *path, char *out, size_t size), path, (path, out, size))
WRAP(ssize_t, readlink, (const char *path, char *out, size_t size), path, (path, out, size))
WRAP(ssize_t, __readlink_chk, (const char *path, char *out, size_t size, size_t room), path, (path, out, size, room))
WRAP(ssize_t, readlinkat, (int dir_fd, const char *path, char *out, size_t size), path, (dir_fd, path, out, size))
WRAP(int, mkdir, (const char *path, mode_t mode), path, (path, mode))
WRAP(int, mkdirat, (int dir_fd, const char *path, mode_t mode), path, (dir_fd, path, mode))
WRAP(char *, mkdtemp, (char *path), path, (path))
WRAP(int, mkstemp, (char *path), path, (path))
WRAP(int, mkstemp64, (char *path), path, (path))
WRAP(int, mkostemp, (char *path, int flags), path, (path, flags))
WRAP(int, mkostemp64, (char *path, int flags), path, (path, flags))
WRAP(int, rmdir, (const char *path), path, (path))
WRAP(int, unlink, (const char *path), path, (path))
WRAP(int, unlinkat, (int dir_fd, const char *path, int flags), path, (dir_fd, path, flags))
WRAP(int, rename, (const char *from, const char *to), to, (from, to))
WRAP(int, renameat, (int from_fd, const char *from, int to_fd, const char *to), to, (from_fd, from, to_fd, to))
WRAP(int, symlink, (const char *target, const char *path), path, (target, path))
WRAP(int, link, (const char *from, const char *to), to, (from, to))
WRAP(int, chmod, (const char *path, mode_t mode), path, (path, mode))
WRAP(int, chown, (const char *path, uid_t uid, gid_t gid), path, (path, uid, gid))
WRAP(int, truncate, (const char *path, off_t size), path, (path, size))
WRAP(int, glob, (const char *pattern, int flags, int (*failed)(const char *, int), glob_t *found), pattern, (pattern, flags, failed, found))
WRAP(int, glob64, (const char *pattern, int flags, int (*failed)(const char *, int), glob64_t *found), pattern,
     (pattern, flags, failed, found))
WRAP(int, chdir, (const char *path), path, (path))
WRAP(int, inotify_add_watch, (int fd, const char *path, uint32_t mask), path, (fd, path, mask))

/* Of those without a function in libc, the ones that look up a path. */
long syscall(long number, ...)
{
	va_list more;
	long a[6];
	NEXT(syscall);
	va_start(more, number);
	for (size_t i = 0; i < COUNT(a); i++)
		a[i] = va_arg(more, long);
	va_end(more);
	if (number == SYS_openat2 || number == SYS_open_tree || number == SYS_renameat2)
		note("syscall", (const char *)a[1]);
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* ---- folders of the test ---- */

static char top[] = "/tmp/cell-paths-XXXXXX";

static const char *at(const char *name)
{
	static char paths[8][PATH_MAX];
	static unsigned next;
	char *path = paths[next++ % COUNT(paths)];
	snprintf(path, PATH_MAX, "%s/%s", top, name);
	return path;
}

static void write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

/* Replaces tools/NAME.yaml: a command with one argument. */
static void write_tool(const char *name, const char *command, const char *type)
{
	char file[64], text[512];
	snprintf(file, sizeof file, "tools/%s.yaml", name);
	snprintf(text, sizeof text,
		 "name: %s\ntype: cli\ncommand: %s\nschema:\n  positional:\n    - name: it\n      type: %s\n"
		 "recipes:\n  call:\n    description: Calls it\n    params:\n      it: {}\n",
		 name, command, type);
	write_text(at(file), text);
}

/* Its program is in its definition, so that a sandbox needs no further file. */
static const char mcp_server[] =
	"name: server\ntype: mcp\ncommand: python3\nargs:\n  - -ISc\n  - |\n"
	"    import json, sys\n"
	"    answers = {'initialize': {'protocolVersion': '2025-06-18', 'capabilities': {}, 'serverInfo': {'name': 's', 'version': '1'}},\n"
	"               'tools/list': {'tools': [{'name': 'hi', 'inputSchema': {'type': 'object'}}]},\n"
	"               'tools/call': {'content': [{'type': 'text', 'text': 'hi'}]}}\n"
	"    for line in sys.stdin:\n"
	"        message = json.loads(line)\n"
	"        if 'id' in message:\n"
	"            print(json.dumps({'jsonrpc': '2.0', 'id': message['id'], 'result': answers[message['method']]}), flush=True)\n";

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
	(void)st;
	(void)kind;
	(void)where;
	return remove(path);
}

static int begin(void **state)
{
	strcpy(top + sizeof top - 7, "XXXXXX");
	if (!mkdtemp(top) || mkdir(at("work"), 0700) < 0 || mkdir(at("tools"), 0700) < 0)
		return -1;
	write_tool("echo", "echo", "string");
	write_tool("show", "cat", "path");
	write_text(at("tools/server.yaml"), mcp_server);
	n_reported = 0;
	return support_begin(state);
}

static int end(void **state)
{
	nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return support_end(state);
}

/* ---- a session's life ---- */

static struct cell_engine *watched_engine(int pool_size)
{
	struct cell_engine *engine = support_engine(pool_size);
	watched = engine->loop;
	return engine;
}

static struct cell_space *space_with(struct cell_engine *engine, const char *embeddings_url)
{
	struct cell_space_options options = CELL_SPACE_OPTIONS_INIT;
	struct cell_space *space = NULL;
	struct cell_error err = { 0 };
	options.storage = at("base");
	options.cache_dir = at("cache");
	options.tools_dir = at("tools");
	options.python = TEST_PYTHON;
	options.cwd = at("work");
	options.embeddings_url = embeddings_url;
	options.embeddings_model = embeddings_url ? "model" : NULL;
	if (cell_space_open(engine, &options, &space, &err) < 0)
		fail_msg("cell_space_open: %s: %s", cell_code_word(err.code), err.msg);
	return space;
}

static struct cell_space *space_of(struct cell_engine *engine)
{
	return space_with(engine, NULL);
}

/* Programs, a server, an argument that is a file, and definitions that changed since the last call. */
static void use_tools(struct cell_session *session, int round)
{
	char name[16], code[128];
	support_expect(session, "tools.echo.call(it='hello')", "'hello\\n'");
	support_expect(session, "tools.server.hi()", "'hi'");
	support_expect(session, "open('a.txt', 'w').write('text') and tools.show.call(it='a.txt')", "'text'");
	snprintf(name, sizeof name, "more%d", round);
	write_tool(name, "echo", "string");
	snprintf(code, sizeof code, "tools.%s.call(it='new')", name);
	support_expect(session, code, "'new\\n'");
	snprintf(name, sizeof name, "last%d", round);
	write_tool(name, "echo", "string");
	snprintf(code, sizeof code, "len(tools.list()), len(tools.search('%s', limit=100)) > 0", name);
	snprintf(name, sizeof name, "(%d, True)", 5 + round * 2);
	support_expect(session, code, name);
}

static void live(const char *executor, int pool_size, bool with_space)
{
	struct cell_engine *engine = watched_engine(pool_size);
	struct cell_space *space = with_space ? space_of(engine) : NULL;
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };
	options.executor = executor;
	options.space = space;
	options.cwd = at("work");
	if (strcmp(executor, "sandbox") == 0)
		options.workspace_mode = "rw";
	for (int i = 0; i < 3; i++) {
		struct cell_session *session = support_session_with(engine, &options);
		support_expect(session, "1 + 1", "2");
		if (with_space) {
			use_tools(session, i);
			support_expect(session, "artifacts.save('a', 'x') and None or artifacts.load('a')", "'x'");
			support_expect(session, "deps.list()", "[]");
		}
		assert_int_equal(cell_session_reset(session, &err), 0);
		support_expect(session, "2 + 1", "3");
		struct cell_result *result = support_run(session, "import os; os._exit(3)");
		assert_int_equal(support_outcome(result), CELL_OUT_KERNEL_DIED);
		cell_result_destroy(result);
		support_expect(session, "2 + 2", "4"); /* of a new kernel */
		cell_session_close(session);
	}
	assert_int_equal(cell_session_prewarm(engine, &options, &err), 0);
	cell_space_close(space);
	cell_engine_destroy(engine);
	watched = NULL;
	assert_int_equal(n_reported, 0);
}

static void test_subprocess(void **state)
{
	(void)state;
	live("subprocess", 2, false);
}

static void test_subprocess_with_space(void **state)
{
	(void)state;
	live("subprocess", 2, true);
}

static void test_sandbox(void **state)
{
	(void)state;
	live("sandbox", 2, false);
}

static void test_sandbox_without_pool(void **state)
{
	(void)state;
	live("sandbox", 0, false);
}

static void test_sandbox_with_space(void **state)
{
	(void)state;
	live("sandbox", 2, true);
}

/* For executors whose kernels are programs of others, and take longer to start. */
static void live_elsewhere(const char *executor, const char *python)
{
	struct cell_engine *engine = watched_engine(0);
	struct cell_space *space = space_of(engine);
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };
	options.executor = executor;
	options.space = space;
	options.cwd = at("work");
	options.python = python;
	struct cell_session *session = support_session_with(engine, &options);
	support_expect(session, "1 + 1", "2");
	support_expect(session, "tools.echo.call(it='hello')", "'hello\\n'");
	assert_int_equal(cell_session_reset(session, &err), 0);
	support_expect(session, "2 + 1", "3");
	cell_session_close(session);
	cell_space_close(space);
	cell_engine_destroy(engine);
	watched = NULL;
	assert_int_equal(n_reported, 0);
}

static bool is_available(const char *executor)
{
	struct cell_engine *engine = support_engine(0);
	struct cell_executor_info info;
	bool found = false;
	cell_executor_info_init(&info);
	for (size_t i = 0; !found && cell_executor_probe(engine, i, &info) == 0; i++)
		found = strcmp(info.name, executor) == 0 && info.available;
	cell_engine_destroy(engine);
	return found;
}

static void test_jupyter(void **state)
{
	(void)state;
	static const char python[] = TEST_SOURCE_DIR "/build/venv/bin/python"; /* has ipykernel */
	if (access(python, X_OK) < 0)
		skip();
	live_elsewhere("jupyter", python);
}

static void test_deno(void **state)
{
	(void)state;
	if (!is_available("deno"))
		skip();
	live_elsewhere("deno", NULL);
}

/* A call of a client that is not trusted; session NULL: outside of any session. */
static void ask(struct cell_space *space, struct cell_session *session, const char *method, const char *args, const char *expected)
{
	static const struct cell__host_limits limits;
	struct cell__principal client;
	struct cell__asking_for who = { .space = space, .session = session, .principal = &client };
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	cell__principal_init(&client, CELL__PRINCIPAL_HTTP, false, &limits, "client");
	if (cell__space_answer_for(&who, method, args, NULL, 0, NULL, &answer, &err) < 0)
		fail_msg("%s: %s: %s", method, cell_code_word(err.code), err.msg);
	if (answer.raw_size > 0)
		assert_memory_equal(answer.raw, expected, strlen(expected));
	else if (!strstr(answer.json, expected))
		fail_msg("%s: %s", method, answer.json);
	cell_answer_finish(&answer);
}

static void ask_all(struct cell_space *space, struct cell_session *session)
{
	ask(space, session, "tools.list", "{}", "hi");
	ask(space, session, "tools.search", "{\"query\": \"echo\"}", "echo");
	ask(space, session, "tools.call", "{\"name\": \"server.hi\"}", "hi");
	ask(space, session, "tools.call", "{\"name\": \"echo.call\", \"args\": {\"it\": \"hello\"}}", "hello");
}

/* Programs for such clients are confined, where no session's code is. */
static void test_untrusted_clients(void **state)
{
	(void)state;
	if (!is_available("sandbox"))
		skip();
	struct cell_engine *engine = watched_engine(0);
	struct cell_space *space = space_of(engine);
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	options.space = space;
	options.cwd = at("work");
	ask_all(space, NULL);
	struct cell_session *session = support_session_with(engine, &options);
	ask_all(space, session);
	support_expect(session, "tools.echo.call(it='hello')", "'hello\\n'");
	cell_session_close(session);
	cell_space_close(space);
	cell_engine_destroy(engine);
	watched = NULL;
	assert_int_equal(n_reported, 0);
}

/* An endpoint for embeddings: every text gets the same vector. */
static const char embeddings[] = "import http.server, json\n"
				 "class Handler(http.server.BaseHTTPRequestHandler):\n"
				 "    def do_POST(self):\n"
				 "        texts = json.loads(self.rfile.read(int(self.headers['Content-Length'])))['input']\n"
				 "        n = len(texts) if isinstance(texts, list) else 1\n"
				 "        body = json.dumps({'data': [{'index': i, 'embedding': [0.6, 0.8]} for i in range(n)]}).encode()\n"
				 "        self.send_response(200)\n"
				 "        self.send_header('Content-Type', 'application/json')\n"
				 "        self.send_header('Content-Length', str(len(body)))\n"
				 "        self.end_headers()\n"
				 "        self.wfile.write(body)\n"
				 "    def log_message(self, *args): pass\n"
				 "server = http.server.HTTPServer(('127.0.0.1', 0), Handler)\n"
				 "print(server.server_port, flush=True)\n"
				 "server.serve_forever()\n";

static void test_search_by_meaning(void **state)
{
	(void)state;
	char url[64], command[PATH_MAX];
	int port = 0;
	write_text(at("embeddings.py"), embeddings);
	snprintf(command, sizeof command, "echo $$; exec " TEST_PYTHON " -IS %s", at("embeddings.py"));
	FILE *endpoint = popen(command, "re");
	int pid = 0;
	assert_non_null(endpoint);
	assert_int_equal(fscanf(endpoint, "%d %d", &pid, &port), 2);
	snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/embeddings", port);
	for (int i = 0; i < 2; i++) { /* the second finds the vectors in the cache */
		struct cell_engine *engine = watched_engine(0);
		struct cell_space *space = space_with(engine, url);
		ask(space, NULL, "tools.search", "{\"query\": \"echo\"}", "echo");
		ask(space, NULL, "tools.search", "{\"query\": \"show\"}", "show");
		ask(space, NULL, "search.status", "{}", "\"embedded\":3");
		cell_space_close(space);
		cell_engine_destroy(engine);
		watched = NULL;
	}
	kill(pid, SIGTERM);
	pclose(endpoint);
	assert_int_equal(n_reported, 0);
}

/* The watch itself: a call by the loop's thread is reported, the same by another thread is not. */
static void look_up(void *unused)
{
	struct stat st;
	(void)unused;
	assert_int_equal(stat("/", &st), 0);
}

static void test_watch(void **state)
{
	(void)state;
	struct cell_engine *engine = watched_engine(0);
	look_up(NULL);
	assert_int_equal(n_reported, 0);
	cell__loop_call(engine->loop, look_up, NULL);
	assert_int_equal(n_reported, 1);
	watched = NULL;
	cell_engine_destroy(engine);
}

#define WATCHED(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WATCHED(test_watch),
		WATCHED(test_subprocess),
		WATCHED(test_subprocess_with_space),
		WATCHED(test_sandbox),
		WATCHED(test_sandbox_without_pool),
		WATCHED(test_sandbox_with_space),
		WATCHED(test_untrusted_clients),
		WATCHED(test_search_by_meaning),
		WATCHED(test_jupyter),
		WATCHED(test_deno),
	};
	support_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
