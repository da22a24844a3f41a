/*
 * The thread that an in-process kernel runs on, from finding a library of Python to the kernel's end.
 */
#define _GNU_SOURCE
#include "executors/inprocess/inprocess.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "spawn/supervisor.h"
#include "spawn/process.h"

#define STACK_BYTES (64u << 20) /* deep recursion through C code ends in an exception, not in a crash */
#define ASK_TIMEOUT_MS 20000    /* for an interpreter to report the path of its library */
#define SAID_BYTES 16384u

static const char bootstrap[] = "import sys\n"
				"said = ''\n"
				"try:\n"
				"    sys.path.insert(0, folder)\n"
				"    try:\n"
				"        from workcell_kernel import inproc\n"
				"    finally:\n"
				"        sys.path.remove(folder)\n"
				"    inproc.main(int(address))\n"
				"except BaseException:\n"
				"    import traceback\n"
				"    said = traceback.format_exc()\n";

/* With the GIL. */
static void set_text(const struct cell__libpython *python, void *dict, const char *key, const char *text)
{
	void *object = python->text_new(text);
	if (object && python->dict_set(dict, key, object) == 0)
		python->decref(object);
}

/* With the GIL: runs the kernel to its end. */
static void serve(struct cell__inprocess *kernel, const struct cell__libpython *python)
{
	char address[32];
	snprintf(address, sizeof address, "%llu", (unsigned long long)(uintptr_t)&kernel->abi);
	void *globals = python->dict_new(), *builtins = python->import("builtins");
	void *code = python->compile(bootstrap, "<workcell>", 257 /* Py_file_input */);
	if (!globals || !builtins || !code) {
		cell_fail(&kernel->error, CELL_E_PYTHON, 0, "Python is out of memory for a kernel");
		return;
	}
	python->dict_set(globals, "__builtins__", builtins);
	set_text(python, globals, "folder", kernel->kernel_dir);
	set_text(python, globals, "address", address);
	void *done = python->eval(code, globals, globals);
	void *said = python->dict_get(globals, "said");
	const char *text = said ? python->text_utf8(said, NULL) : NULL;
	if (text && *text) {
		/* The last line names the error. */
		size_t end = strlen(text);
		while (end > 0 && text[end - 1] == '\n')
			end--;
		size_t start = end;
		while (start > 0 && text[start - 1] != '\n')
			start--;
		pthread_mutex_lock(&kernel->lock);
		cell_fail(&kernel->error, CELL_E_KERNEL, 0, "the kernel ended: %.*s", (int)(end - start), text + start);
		pthread_mutex_unlock(&kernel->lock);
	}
	if (done)
		python->decref(done);
	python->decref(code);
	python->decref(builtins);
	python->decref(globals);
}

static void *thread_main(void *arg)
{
	struct cell__inprocess *kernel = arg;
	struct cell_error err = { 0 };
	const struct cell__libpython *python = cell__libpython_find();
	pthread_setname_np(pthread_self(), "workcell-cells");
	kernel->abi.main_thread = (unsigned long)pthread_self();
	int rc = python && python->hosted ? 0 : cell__libpython_load(kernel->python, &kernel->info, &err);
	if (rc == 0) {
		python = cell__libpython_find();
		int state = python->gil_ensure();
		serve(kernel, python);
		python->gil_release(state);
	}
	pthread_mutex_lock(&kernel->lock);
	if (rc < 0)
		kernel->error = err;
	cell__inprocess_post(kernel, &kernel->ended);
	pthread_mutex_unlock(&kernel->lock);
	cell__inprocess_unref(kernel);
	return NULL;
}

/*
 * With the signal mask of the host's own threads, plus SIGPIPE blocked, which Python expects to be ignored: blocking has the same effect,
 * and changes nothing for the host.
 */
static int start_thread(struct cell__inprocess *kernel, struct cell_error *err)
{
	pthread_t thread;
	pthread_attr_t attr;
	struct sigaction action;
	sigset_t mask = *cell__loop_host_mask(kernel->loop), old;
	if (sigaction(SIGPIPE, NULL, &action) < 0 || action.sa_handler != SIG_IGN)
		sigaddset(&mask, SIGPIPE);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_sigmask(SIG_SETMASK, &mask, &old);
	atomic_fetch_add(&kernel->refs, 1);
	int rc = pthread_create(&thread, &attr, thread_main, kernel);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (rc != 0) {
		atomic_fetch_sub(&kernel->refs, 1);
		return cell_fail(err, CELL_E_KERNEL, rc, "start a thread for the kernel");
	}
	kernel->threaded = true;
	kernel->state = CELL_INPROCESS_STARTING;
	return 0;
}

/* ---- which library ---- */

static void handle_said(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct cell__inprocess *kernel = owner;
	if (stream == CELL_STDOUT && kernel->said.size + size <= SAID_BYTES)
		(void)cell__buf_add(&kernel->said, bytes, size);
}

static void handle_asked(void *owner, const struct cell__process_exit *how)
{
	struct cell__inprocess *kernel = owner;
	struct cell_error *err = &kernel->error;
	kernel->process = NULL;
	if (kernel->state != CELL_INPROCESS_ASKING)
		return;
	int rc = -1;
	if (how->error)
		cell_fail(err, CELL_E_PYTHON, how->error, "%.160s", kernel->python);
	else if (how->timed_out || how->signalled || how->status != 0)
		cell_fail(err, CELL_E_PYTHON, 0, "%.160s is not a working Python interpreter", kernel->python);
	else
		rc = cell__libpython_parse(kernel->python, kernel->said.data ? kernel->said.data : "", kernel->said.size, &kernel->info,
					   err);
	if (rc < 0 || start_thread(kernel, err) < 0)
		cell__inprocess_finish(kernel);
}

static int ask_python(struct cell__inprocess *kernel, struct cell__executor_host *host, struct cell_error *err)
{
	const char *argv[] = { kernel->python, "-I", "-c", cell__libpython_question, NULL };
	static const char *const env[] = { "PATH=/usr/bin:/bin", "LANG=C.UTF-8", NULL };
	struct cell__process_spec spec = {
		.argv = argv,
		.env = env,
		.path = "/usr/bin:/bin",
		.cwd = "/",
		.timeout_ms = ASK_TIMEOUT_MS,
		.output = handle_said,
		.exited = handle_asked,
		.owner = kernel,
	};
	return cell__process_start(host->supervisor, &spec, &kernel->process, err);
}

int cell__inprocess_start(struct cell__inprocess *kernel, struct cell__executor_host *host, struct cell_error *err)
{
	return cell__libpython_find() ? start_thread(kernel, err) : ask_python(kernel, host, err);
}
