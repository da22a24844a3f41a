#define _GNU_SOURCE
#include "deps_support.h"
#include "calls/table.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>

char tmp[64], wheels[96], search_path[4200];
bool with_uv;

/* ---- a project: loop, spawner, store, deps ---- */

static void answer(struct cell__call *call, json_t *result, const void *raw, size_t raw_size)
{
	(void)raw;
	(void)raw_size;
	struct ask *ask = (struct ask *)call;
	CHECK(!ask->done);
	ask->done = true;
	ask->result = result;
	cell__waiter_signal(&ask->waiter);
}

static void refuse(struct cell__call *call, int code, const char *type, const char *message)
{
	struct ask *ask = (struct ask *)call;
	CHECK(!ask->done);
	ask->done = true;
	ask->code = code;
	snprintf(ask->type, sizeof ask->type, "%s", type);
	snprintf(ask->message, sizeof ask->message, "%s", message);
	cell__waiter_signal(&ask->waiter);
}

static void handle_progress(struct cell__call *call, const char *line, size_t size);

static void handle_ask(struct cell__task *task)
{
	struct ask *ask = (struct ask *)((char *)task - offsetof(struct ask, task));
	if (cell__call_prepare(&ask->call, &cell__principal_host) == 0)
		cell__deps_handle(ask->project->deps, &ask->call);
}

void ask_init(struct ask *ask, struct project *project, const char *method, const char *package)
{
	memset(ask, 0, sizeof *ask);
	ask->project = project;
	ask->call.method = method;
	ask->call.args = package ? json_pack("{s:s}", "package", package) : json_object();
	ask->call.answer = answer;
	ask->call.fail = refuse;
	ask->call.progress = handle_progress;
	ask->task.fn = handle_ask;
	cell__waiter_init(&ask->waiter);
}

void ask_finish(struct ask *ask)
{
	json_decref(ask->call.args);
	json_decref(ask->result);
	cell__waiter_finish(&ask->waiter);
}

void ask_wait(struct ask *ask)
{
	cell__loop_do(ask->project->loop, &ask->task, &ask->waiter);
}

static void handle_progress(struct cell__call *call, const char *line, size_t size)
{
	struct project *project = ((struct ask *)call)->project;
	CHECK(line[size] == '\0');
	CHECK(memchr(line, '\n', size) == NULL && cell__utf8_ok(line, size));
	project->lines++;
	cell__buf_add(&project->progress, line, size);
	cell__buf_add(&project->progress, "\n", 1);
}

static void start_deps(void *arg)
{
	cell__deps_start(((struct project *)arg)->deps);
}

void project_open(struct project *project, const char *name, void (*configure)(struct project *project))
{
	struct cell_error err = { 0 };
	memset(project, 0, sizeof *project);
	snprintf(project->base, sizeof project->base, "%s/%s", tmp, name);
	snprintf(project->cache, sizeof project->cache, "%s/%s-cache", tmp, name);
	CHECK(cell__loop_create(&project->loop, &err) == 0);
	CHECK(cell__supervisor_init(&project->supervisor, project->loop, TEST_LIB_DIR "/workcell-spawner", &err) == 0);
	CHECK(cell__store_open(project->base, NULL, &project->store, &err) == 0);
	project->options = (struct cell__deps_options){
		.loop = project->loop,
		.supervisor = &project->supervisor,
		.store = project->store,
		.python = TEST_PYTHON,
		.cache_dir = project->cache,
		.wheel_dir = wheels,
		.path = search_path,
		.allow_runtime = true,
	};
	if (configure)
		configure(project);
	if (cell__deps_create(&project->options, &project->deps, &err) < 0) {
		fprintf(stderr, "cell__deps_create: %s\n", err.msg);
		abort();
	}
	cell__loop_call(project->loop, start_deps, project);
}

static void hub_finished(void *arg)
{
	cell__waiter_signal(&((struct project *)arg)->closed);
}

static void deps_closed(void *arg)
{
	struct project *project = arg;
	cell__supervisor_finish(&project->supervisor, hub_finished, project);
}

struct close_task {
	struct cell__task task;
	struct project *project;
};

static void handle_close(struct cell__task *task)
{
	struct project *project = ((struct close_task *)task)->project;
	cell__deps_close(project->deps, deps_closed, project);
}

void project_close(struct project *project)
{
	struct close_task close_task = { { .fn = handle_close }, project };
	cell__waiter_init(&project->closed);
	cell__loop_do(project->loop, &close_task.task, &project->closed);
	cell__waiter_finish(&project->closed);
	cell__loop_destroy(project->loop);
	cell__store_close(project->store);
	cell__buf_finish(&project->progress);
}

void handle_where(void *arg)
{
	struct where *where = arg;
	struct cell__deps_place place;
	cell__deps_find(where->project->deps, false, &place);
	where->site = cell__take_ptr(place.site);
	where->bin = cell__take_ptr(place.bin);
	cell__deps_place_finish(&place);
}

/* ---- short ways ---- */

json_t *do_ok(struct project *project, const char *method, const char *package)
{
	struct ask ask;
	ask_init(&ask, project, method, package);
	ask_wait(&ask);
	if (ask.code)
		fail_msg("%s %s: %s: %s", method, package ? package : "", cell_code_word(ask.code), ask.message);
	assert_null(ask.call.cancel);
	json_t *result = json_incref(ask.result);
	ask_finish(&ask);
	return result;
}

void do_fail(struct project *project, const char *method, const char *package, int code, const char *type, const char *words)
{
	struct ask ask;
	ask_init(&ask, project, method, package);
	ask_wait(&ask);
	if (ask.code != code)
		fail_msg("%s %s: %s: %s", method, package ? package : "", cell_code_word(ask.code), ask.message);
	assert_string_equal(ask.type, type);
	if (!strstr(ask.message, words))
		fail_msg("not in the message: \"%s\": %s", words, ask.message);
	ask_finish(&ask);
}

void expect_array(json_t *array, const char *expected)
{
	CELL_AUTO_FREE char *text = json_dumps(array, JSON_COMPACT | JSON_ENCODE_ANY);
	assert_string_equal(text ? text : "(nothing)", expected);
}

void expect_sync(json_t *result, const char *installed, const char *present, const char *failed)
{
	expect_array(json_object_get(result, "installed"), installed);
	expect_array(json_object_get(result, "already_present"), present);
	expect_array(json_object_get(result, "failed"), failed);
	assert_true(json_is_array(json_object_get(result, "site")));
}

void do_sync(struct project *project, const char *method, const char *package, const char *installed, const char *present,
	     const char *failed)
{
	json_t *result = do_ok(project, method, package);
	expect_sync(result, installed, present, failed);
	json_decref(result);
}

void expect_list(struct project *project, const char *expected)
{
	json_t *list = do_ok(project, "deps.list", NULL);
	expect_array(list, expected);
	json_decref(list);
}

void remove_is(struct project *project, const char *package, bool expected)
{
	json_t *result = do_ok(project, "deps.remove", package);
	assert_true(expected ? json_is_true(result) : json_is_false(result));
	json_decref(result);
}

int shell(const char *fmt, ...)
{
	char command[4096];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(command, sizeof command, fmt, ap);
	va_end(ap);
	int status = system(command);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

bool venv_says(struct project *project, const char *code)
{
	struct where where = { .project = project };
	handle_where(&where);
	bool ok = where.bin && shell("%s/python -I -c \"%s\" 2>/dev/null", where.bin, code) == 0;
	free(where.site);
	free(where.bin);
	return ok;
}

void write_requirements(const char *base, const char *text)
{
	char file[200];
	snprintf(file, sizeof file, "%s/requirements.txt", base);
	mkdir(base, 0755);
	FILE *out = fopen(file, "w");
	assert_non_null(out);
	fputs(text, out);
	fclose(out);
}

int leftovers(const char *dir)
{
	return shell("ls -A %s | grep -q -E '[.](new|old)-'", dir) == 0;
}

bool nothing_is_left(void *dir)
{
	return !leftovers(dir);
}

bool nobody_runs_in(void *folder)
{
	DIR *proc = opendir("/proc");
	CHECK(proc != NULL);
	bool found = false;
	struct dirent *entry;
	while (!found && (entry = readdir(proc))) {
		char file[64];
		CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
		pid_t pid = atoi(entry->d_name);
		snprintf(file, sizeof file, "/proc/%d/cmdline", pid);
		found = pid > 0 && pid != getpid() && support_read_file(file, &line) && line.size > 0 &&
			memmem(line.data, line.size, folder, strlen(folder));
	}
	closedir(proc);
	return !found;
}

/* ---- wheels ---- */

static const char wheel_script[] =
	"import sys, zipfile\n"
	"def wheel(name, version, requires=(), extras=()):\n"
	"    module = name.replace('-', '_')\n"
	"    info = '%s-%s.dist-info/' % (module, version)\n"
	"    meta = 'Metadata-Version: 2.1\\nName: %s\\nVersion: %s\\n' % (name, version)\n"
	"    meta += ''.join('Requires-Dist: %s\\n' % r for r in requires)\n"
	"    meta += ''.join('Provides-Extra: %s\\n' % e for e in extras)\n"
	"    short = name.split('-')[1]\n"
	"    files = {module + '.py': \"VERSION = '%s'\\ndef main():\\n    print('%s', VERSION)\\n\" % (version, short)\n"
	"             + '#' * int(version[0]) + '\\n',\n" /* sizes differ, so that no stale bytecode passes for the module's */
	"             info + 'METADATA': meta,\n"
	"             info + 'WHEEL': 'Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n',\n"
	"             info + 'entry_points.txt': '[console_scripts]\\n%s = %s:main\\n' % (name, module)}\n"
	"    files[info + 'RECORD'] = ''.join('%s,,\\n' % f for f in files) + info + 'RECORD,,\\n'\n"
	"    with zipfile.ZipFile('%s/%s-%s-py3-none-any.whl' % (sys.argv[1], module, version), 'w') as z:\n"
	"        for f, text in files.items():\n"
	"            z.writestr(f, text)\n"
	"wheel('cell-alpha', '1.0', extras=['more'])\n"
	"wheel('cell-alpha', '2.0', extras=['more'])\n"
	"wheel('cell-beta', '1.5')\n"
	"wheel('cell-gamma', '0.1', ['cell-alpha>=2'], ['x'])\n";

void make_wheels(void)
{
	snprintf(wheels, sizeof wheels, "%s/wheels", tmp);
	mkdir(wheels, 0755);
	char script[128];
	snprintf(script, sizeof script, "%s/wheels.py", tmp);
	FILE *out = fopen(script, "w");
	fputs(wheel_script, out);
	fclose(out);
	CHECK(shell(TEST_PYTHON " %s %s", script, wheels) == 0);
}
