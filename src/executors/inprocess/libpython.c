/*
 * Loading Python.
 *
 *     none ──load()──▶ the keeper is started ──▶ it loads and initialises ──▶ ready, for the life of the process
 *      └── the host is a Python program: ready from the beginning
 *
 * The keeper is a thread of ours.  If we initialised Python, the keeper is Python's main thread, so that no session is
 * special.  It does the work that needs the GIL and must not keep the loop waiting: interrupts.
 */
#define _GNU_SOURCE
#include "executors/inprocess/libpython.h"

#include <dlfcn.h>
#include <jansson.h>
#include <limits.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <wchar.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct cell__libpython python;
static bool ready;
static bool keeper_runs;
static struct cell__libpython_job *first, *last;

/* The keeper's input; on the stack of the waiting thread. */
struct loading {
	const char *path;
	const struct cell__libpython_info *info;
	struct cell_error err;
	bool done, failed;
};

/* ---- symbols ---- */

static int find_symbols(void *handle, struct cell__libpython *ret_python, struct cell_error *err)
{
	struct cell__libpython found = { 0 };
	const struct {
		const char *name;
		void **place;
	} symbols[] = {
		{ "PyGILState_Ensure", (void **)&found.gil_ensure },
		{ "PyGILState_Release", (void **)&found.gil_release },
		{ "PyImport_ImportModule", (void **)&found.import },
		{ "PyObject_CallMethod", (void **)&found.call_method },
		{ "Py_CompileString", (void **)&found.compile },
		{ "PyEval_EvalCode", (void **)&found.eval },
		{ "PyDict_New", (void **)&found.dict_new },
		{ "PyDict_SetItemString", (void **)&found.dict_set },
		{ "PyDict_GetItemString", (void **)&found.dict_get },
		{ "PyUnicode_FromString", (void **)&found.text_new },
		{ "PyUnicode_AsUTF8AndSize", (void **)&found.text_utf8 },
		{ "Py_DecRef", (void **)&found.decref },
		{ "PyErr_Clear", (void **)&found.err_clear },
		{ "PyThreadState_SetAsyncExc", (void **)&found.set_async_exc },
		{ "PyExc_KeyboardInterrupt", (void **)&found.keyboard_interrupt },
	};
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
		if (!(*symbols[i].place = dlsym(handle, symbols[i].name)))
			return cell_fail(err, CELL_E_PYTHON, 0, "this Python has no %s", symbols[i].name);
	*ret_python = found;
	return 0;
}

static bool is_initialised(void *handle)
{
	int (*fn)(void);
	*(void **)&fn = dlsym(handle, "Py_IsInitialized");
	return fn && fn();
}

/* Under the lock. */
static void find_host(void)
{
	struct cell_error err;
	if (!ready && is_initialised(RTLD_DEFAULT) && find_symbols(RTLD_DEFAULT, &python, &err) == 0)
		ready = python.hosted = true;
}

const struct cell__libpython *cell__libpython_find(void)
{
	pthread_mutex_lock(&lock);
	find_host();
	bool there = ready;
	pthread_mutex_unlock(&lock);
	return there ? &python : NULL;
}

/* ---- asking an interpreter ---- */

const char cell__libpython_question[] =
	"import json, os, sys, sysconfig\n"
	"get = sysconfig.get_config_var\n"
	"name = get('INSTSONAME') or ''\n"
	"if '.so' not in name:\n"
	"    name = 'libpython%d.%d%s.so.1.0' % (sys.version_info[:2] + (getattr(sys, 'abiflags', ''),))\n"
	"folders = [get('LIBDIR'), os.path.join(get('LIBDIR') or '/', get('MULTIARCH') or '.'),\n"
	"           os.path.join(sys.base_prefix, 'lib')]\n"
	"found = [os.path.join(f, name) for f in folders if f and os.path.exists(os.path.join(f, name))]\n"
	"print(json.dumps({'cpython': sys.implementation.name == 'cpython' and sys.version_info >= (3, 9),\n"
	"                  'version': '%d.%d.%d' % sys.version_info[:3], 'name': name,\n"
	"                  'library': found[0] if found else ''}))\n";

int cell__libpython_parse(const char *path, const char *text, size_t size, struct cell__libpython_info *ret_info, struct cell_error *err)
{
	const char *version, *name, *library;
	int cpython;
	json_t *said = json_loadb(text, size, 0, NULL);
	int rc = 0;
	if (!said ||
	    json_unpack(said, "{s:b, s:s, s:s, s:s}", "cpython", &cpython, "version", &version, "name", &name, "library", &library) < 0)
		rc = cell_fail(err, CELL_E_PYTHON, 0, "cannot find the shared library of %.100s", path);
	else if (!cpython)
		rc = cell_fail(err, CELL_E_PYTHON, 0, "%.100s is not CPython 3.9 or later", path);
	else if (!*library)
		rc = cell_fail(err, CELL_E_PYTHON, 0,
			       "%.70s has no %.30s, which inprocess needs: install it (Debian: libpython%.*s), build Python with "
			       "--enable-shared, or use the executor subprocess",
			       path, name, (int)strcspn(strchr(version, '.') + 1, ".") + 2, version);
	else if (strlen(library) >= sizeof ret_info->library || strlen(version) >= sizeof ret_info->version)
		rc = cell_fail(err, CELL_E_PYTHON, 0, "the library of %.100s has a name that is too long", path);
	else {
		snprintf(ret_info->library, sizeof ret_info->library, "%s", library);
		snprintf(ret_info->version, sizeof ret_info->version, "%s", version);
	}
	json_decref(said);
	return rc;
}

/* ---- the keeper ---- */

static void set_flag(void *handle, const char *name)
{
	int *flag = dlsym(handle, name);
	if (flag)
		*flag = 1;
}

/*
 * As with `python -E -X utf8`: no PYTHON* variables of the host's, UTF-8 whatever its locale, no signal handlers. Python finds its venv by
 * the program's name.
 */
static int initialise(void *handle, const char *path, struct cell_error *err)
{
	void (*set_program_name)(const wchar_t *);
	void (*init)(int);
	void *(*save_thread)(void);
	void *(*import)(const char *);
	*(void **)&set_program_name = dlsym(handle, "Py_SetProgramName");
	*(void **)&init = dlsym(handle, "Py_InitializeEx");
	*(void **)&save_thread = dlsym(handle, "PyEval_SaveThread");
	*(void **)&import = dlsym(handle, "PyImport_ImportModule");
	if (!set_program_name || !init || !save_thread || !import)
		return cell_fail(err, CELL_E_PYTHON, 0, "the library of %.100s cannot be initialised this way; use the executor subprocess",
				 path);
	/* Python keeps the pointer for ever. */
	static wchar_t name[PATH_MAX];
	size_t n = 0;
	for (; path[n] && n < PATH_MAX - 1; n++) {
		if ((unsigned char)path[n] >= 0x80)
			return cell_fail(err, CELL_E_PYTHON, 0, "%.100s: inprocess needs a plain ASCII path", path);
		name[n] = (wchar_t)path[n];
	}
	name[n] = L'\0';
	set_flag(handle, "Py_IgnoreEnvironmentFlag");
	set_flag(handle, "Py_UTF8Mode");
	set_program_name(name);
	/* It sets the process's LC_CTYPE from the environment. */
	char before[256] = "C";
	const char *locale = setlocale(LC_CTYPE, NULL);
	if (locale)
		snprintf(before, sizeof before, "%s", locale);
	/* Its module signal installs a SIGINT handler in spite of the configuration, if there is no other. */
	struct sigaction handlers[NSIG], now;
	for (int i = 1; i < NSIG; i++)
		sigaction(i, NULL, &handlers[i]);
	init(0);
	(void)import("signal");
	for (int i = 1; i < NSIG; i++)
		if (sigaction(i, NULL, &now) == 0 && now.sa_handler != handlers[i].sa_handler)
			sigaction(i, &handlers[i], NULL);
	setlocale(LC_CTYPE, before);
	save_thread();
	return 0;
}

static int load(struct loading *loading)
{
	const struct cell__libpython_info *info = loading->info;
	struct cell_error *err = &loading->err;
	/* Global: modules of Python's expect its functions to be there. */
	void *handle = dlopen(info->library, RTLD_NOW | RTLD_GLOBAL);
	if (!handle)
		return cell_fail(err, CELL_E_PYTHON, 0, "%.200s", dlerror());
	const char *(*get_version)(void);
	*(void **)&get_version = dlsym(handle, "Py_GetVersion");
	size_t n = strlen(info->version);
	const char *version = get_version ? get_version() : "";
	if (strncmp(version, info->version, n) != 0 || (version[n] >= '0' && version[n] <= '9'))
		return cell_fail(err, CELL_E_PYTHON, 0, "%.100s belongs to Python %.20s, but %.60s is %s", info->library, version,
				 loading->path, info->version);
	struct cell__libpython found;
	if (find_symbols(handle, &found, err) < 0)
		return -1;
	char *copy = cell__strdup(loading->path);
	if (!copy)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	found.hosted = is_initialised(handle);
	if (!found.hosted && initialise(handle, copy, err) < 0) {
		free(copy);
		return -1;
	}
	found.python = copy;
	pthread_mutex_lock(&lock);
	python = found;
	ready = true;
	pthread_mutex_unlock(&lock);
	return 0;
}

static void *keeper_main(void *arg)
{
	struct loading *loading = arg;
	pthread_setname_np(pthread_self(), "workcell-python");
	if (loading) {
		bool failed = load(loading) < 0;
		pthread_mutex_lock(&lock);
		loading->failed = failed;
		loading->done = true;
		keeper_runs = !failed;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
		if (failed)
			return NULL;
	}
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!first)
			pthread_cond_wait(&changed, &lock);
		struct cell__libpython_job *job = first;
		first = job->next;
		if (!first)
			last = NULL;
		pthread_mutex_unlock(&lock);
		int state = python.gil_ensure();
		job->fn(job);
		python.gil_release(state);
		pthread_mutex_lock(&lock);
	}
	return NULL;
}

/* Under the lock. Lives as long as the process; it blocks the host's signals. */
static int start_keeper(struct loading *loading, struct cell_error *err)
{
	pthread_t thread;
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int rc = pthread_create(&thread, NULL, keeper_main, loading);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc != 0)
		return cell_fail(err, CELL_E_PYTHON, rc, "start a thread for Python");
	pthread_detach(thread);
	keeper_runs = true;
	return 0;
}

int cell__libpython_load(const char *path, const struct cell__libpython_info *info, struct cell_error *err)
{
	struct loading loading = { .path = path, .info = info };
	int rc = 0;
	pthread_mutex_lock(&lock);
	/* Another session may be loading it. */
	while (!ready && keeper_runs)
		pthread_cond_wait(&changed, &lock);
	if (!ready) {
		rc = start_keeper(&loading, err);
		while (rc == 0 && !loading.done)
			pthread_cond_wait(&changed, &lock);
		if (rc == 0 && loading.failed) {
			if (err)
				*err = loading.err;
			rc = -1;
		}
	}
	if (rc == 0 && !python.hosted && strcmp(python.python, path) != 0)
		rc = cell_fail(err, CELL_E_PYTHON, 0,
			       "this process already runs %.80s and can have only one interpreter: inprocess cannot use %.80s",
			       python.python, path);
	pthread_mutex_unlock(&lock);
	return rc;
}

int cell__libpython_post(struct cell__libpython_job *job, struct cell_error *err)
{
	job->next = NULL;
	pthread_mutex_lock(&lock);
	int rc = keeper_runs ? 0 : start_keeper(NULL, err);
	if (rc == 0) {
		if (last)
			last->next = job;
		else
			first = job;
		last = job;
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

/* ---- the doctor's question ---- */

void cell__libpython_probe(struct cell_executor_info *info)
{
	char real[PATH_MAX], library[PATH_MAX + 32];
	if (cell__libpython_find()) {
		info->available = 1;
		return;
	}
	const char *name = realpath(CELL_DEFAULT_PYTHON, real) ? strrchr(real, '/') + 1 : "python3";
	snprintf(library, sizeof library, "lib%s.so.1.0", name);
	void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
	info->available = handle != NULL;
	if (handle) {
		dlclose(handle);
		return;
	}
	snprintf(info->reason, sizeof info->reason, "%.100s has no %.80s", CELL_DEFAULT_PYTHON, library);
	snprintf(info->advice, sizeof info->advice,
		 "install it (Debian: the package lib%.40s), or give --python an interpreter that was built with --enable-shared", name);
}
