/*
 * Programs in fresh processes (workcell_kernel/script.py): the kernel that forks them, and the children that run them, share one jail, and
 * a child must not reach the kernel's connection to the host, its memory, or the next child.
 *
 *     kernel ──fork──▶ program                   its folder and its file; files and input that came with it: script.prepare()
 *       ├── waits; kills whatever is left in the jail
 *       ├──fork──▶ reader                        only if files were asked for: script.give_files()
 *       ├── empties the jail; ──fork──▶ cleaner  only if more is left than the program's own file: script.clean_up()
 *       └── answers
 *
 * After the first program the kernel runs no Python between two of them.  Each fork makes all its pages copy-on-write, and what Python would
 * touch, mostly reference counts, it would have to copy again for every program, as the program does.  Before the second one it rehearses a
 * program, to find out which of its pages programs need (template.c).
 */
#define _GNU_SOURCE
#include "ext.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define HEAD "%%workcell_script\n" /* then "TIMEOUT_MS OPTIONS_BYTES FLAGS\n", the options (JSON), and the program */
#define FETCHES 1u
#define IS_BASH 2u
#define CLEAN_MS 2000
#define MAX_NOTICE 4000
#define DIRENT_BYTES 4096
#define MAX_DEPTH 8
#define LOST_STATUS 71 /* of a kernel whose jail cannot be emptied: the host makes another one */

struct program {
	const char *options, *code;
	size_t options_size, code_size;
	long timeout_ms;
	unsigned flags;
	char path[64];
};

struct ending {
	int status;
	bool timed_out, interrupted;
	double seconds, cpu_seconds;
};

/* What programs need of Python, made before the first fork: looking up a name writes to pages. */
static struct {
	PyObject *path, *names, *stdout_, *stderr_, *compile, *prepare, *fail, *end, *flush, *count_handlers;
	PyObject *reseed, *give_files, *clean_up;
} made;

static int n_programs; /* so far; 2: or more */
static char folder[40]; /* of each program, made anew: the path of its file is known to Python */
static const char *kept; /* "/tmp\0name\0name\0\0/dev/shm\0\0\0": what may stay */

/* script_kernel(): from now on no other process of the jail can open this one's memory and descriptors in /proc, and none leaves message queues */
PyObject *wc_script_kernel(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	const struct rlimit none = { 0, 0 };
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || setrlimit(RLIMIT_MSGQUEUE, &none) < 0)
		return wc_fail_step("protect the kernel's memory");
	Py_RETURN_NONE;
}

/* script_child(): in a fork, which goes without the connection and the memory shared with the host */
PyObject *wc_script_child(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	struct wc_ends ends = wc_ends();
	void *ring;
	size_t size = wc_ring(&ring);
	/* Nobody looks there in a fork: it is detached. */
	if (size == 0 || munmap(ring, size) < 0)
		return wc_fail_step("leave the memory shared with the host");
	close(ends.sock);
	close(ends.out);
	close(ends.err);
	if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0)
		return wc_fail_step("show the program in /proc");
	Py_RETURN_NONE;
}

/* Are the jail's System V shared memory, semaphores and queues all gone? */
static bool ipc_is_empty(void)
{
	struct shm_info memory;
	struct seminfo semaphores;
	struct msginfo queues;
	union {
		int val;
		struct seminfo *info;
	} arg = { .info = &semaphores };
	/* A system without them has none. */
	bool shm = shmctl(0, SHM_INFO, (struct shmid_ds *)&memory) < 0 ? errno == ENOSYS || errno == EPERM : memory.used_ids == 0;
	bool sem = semctl(0, 0, SEM_INFO, arg) < 0 ? errno == ENOSYS || errno == EPERM : semaphores.semusz == 0;
	bool msg = msgctl(0, MSG_INFO, (struct msqid_ds *)&queues) < 0 ? errno == ENOSYS || errno == EPERM : queues.msgpool == 0;
	return shm && sem && msg;
}

/* Blocked, and taken by wait_for() alone: a handler could run just before the wait, which would then go on until the program's time is over. */
static sigset_t awaited_signals(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGINT);
	return set;
}

/* script_begin(folder, path, kept, {name: object}): programs run from now on */
PyObject *wc_script_begin(PyObject *self, PyObject *args)
{
	(void)self;
	static const struct {
		const char *name;
		PyObject **at;
	} names[] = {
		{ "path", &made.path },         { "names", &made.names },
		{ "stdout", &made.stdout_ },    { "stderr", &made.stderr_ },
		{ "compile", &made.compile },   { "prepare", &made.prepare },
		{ "fail", &made.fail },         { "end", &made.end },
		{ "flush", &made.flush },       { "count_handlers", &made.count_handlers },
		{ "reseed", &made.reseed },     { "give_files", &made.give_files },
		{ "clean_up", &made.clean_up },
	};
	PyObject *kept_bytes, *objects;
	const char *name;
	Py_ssize_t size;
	char *text;
	const sigset_t awaited = awaited_signals();
	if (!PyArg_ParseTuple(args, "sOO!", &name, &kept_bytes, &PyDict_Type, &objects) ||
	    PyBytes_AsStringAndSize(kept_bytes, &text, &size) < 0)
		return NULL;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		*names[i].at = PyDict_GetItemString(objects, names[i].name);
		if (!*names[i].at)
			return PyErr_Format(PyExc_KeyError, "script_begin() needs %s", names[i].name);
		Py_INCREF(*names[i].at); /* for the life of the process */
	}
	snprintf(folder, sizeof folder, "%s", name);
	Py_INCREF(kept_bytes);
	kept = text;
	sigprocmask(SIG_BLOCK, &awaited, NULL);
	Py_RETURN_NONE;
}

/* ---- the program ---- */

/* Tells the kernel why the program could not be started; its memory is still shared with it. */
static void leave_notice(const char *text, size_t size)
{
	uint32_t taken = (uint32_t)(size < MAX_NOTICE ? size : MAX_NOTICE);
	char *notice = wc_bulk_memory();
	memcpy(notice + sizeof taken, text, taken);
	memcpy(notice, &taken, sizeof taken);
}

static uint32_t notice_size(void)
{
	uint32_t size;
	memcpy(&size, wc_bulk_memory(), sizeof size);
	return size;
}

static void clear_notice(void)
{
	if (notice_size() > 0)
		memset(wc_bulk_memory(), 0, sizeof(uint32_t));
}

/* script_refuse(text): in a program that is not started yet; never returns */
PyObject *wc_script_refuse(PyObject *self, PyObject *text)
{
	(void)self;
	PyObject *memory = NULL;
	Py_ssize_t size;
	const char *bytes = wc_text_bytes(text, &size, &memory);
	if (!bytes)
		return NULL;
	leave_notice(bytes, (size_t)size);
	_exit(1);
}

static void refuse(const char *what)
{
	char text[200];
	int size = snprintf(text, sizeof text, "the files of the program cannot be written: %s: %s", what, strerror(errno));
	leave_notice(text, (size_t)size < sizeof text ? (size_t)size : sizeof text - 1);
	_exit(1);
}

static void write_program(const struct program *program)
{
	int fd;
	if (setpgid(0, 0) < 0 || mkdir(folder, 0700) < 0 || chdir(folder) < 0)
		refuse("its folder");
	fd = open(program->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		refuse("the program");
	for (size_t done = 0; done < program->code_size;) {
		ssize_t n = write(fd, program->code + done, program->code_size - done);
		if (n < 0 && errno != EINTR)
			refuse("the program");
		done += n > 0 ? (size_t)n : 0;
	}
	close(fd);
}

/* The exception that is set ends the program: calls fail(exception), which gives its status. */
static int end_failed(void)
{
	PyObject *type, *error, *traceback;
	PyErr_Fetch(&type, &error, &traceback);
	PyErr_NormalizeException(&type, &error, &traceback);
	if (error && traceback)
		PyException_SetTraceback(error, traceback);
	PyObject *status = error ? PyObject_CallFunctionObjArgs(made.fail, error, NULL) : NULL;
	return status ? (int)PyLong_AsLong(status) : 1;
}

static bool flush(PyObject *stream)
{
	PyObject *done = PyObject_CallMethodObjArgs(stream, made.flush, NULL);
	Py_XDECREF(done);
	return done;
}

/*
 * Does what the end of an interpreter would, and gives the status.  Python does it only where a program left something to do: threads, exit
 * handlers, streams of its own.
 */
static int end_program(int status)
{
	PyObject *handlers = PyObject_CallObject(made.count_handlers, NULL);
	bool plain = handlers && PyObject_IsTrue(handlers) == 0 && !PyDict_GetItemString(PyImport_GetModuleDict(), "threading") &&
		     PySys_GetObject("stdout") == made.stdout_ && PySys_GetObject("stderr") == made.stderr_;
	if (plain && flush(made.stdout_) && flush(made.stderr_))
		return status;
	PyErr_Clear();
	PyObject *ended = PyObject_CallFunction(made.end, "i", status);
	return ended ? (int)PyLong_AsLong(ended) : 120;
}

static int run_python(const struct program *program)
{
	PyObject *source = PyUnicode_DecodeUTF8(program->code, (Py_ssize_t)program->code_size, "surrogatepass");
	PyObject *code = source ? PyObject_CallFunction(made.compile, "OOsii", source, made.path, "exec", 0, 1) : NULL;
	PyObject *done = code ? PyEval_EvalCode(code, made.names, made.names) : NULL;
	return end_program(done ? 0 : end_failed());
}

/* rehearses: with its memory protected, where Linux cannot write for it, as random numbers. */
static void __attribute__((noreturn)) be_program(const struct program *program, bool rehearses)
{
	sigset_t none;
	wc_early_begin();
	PyOS_AfterFork_Child();
	write_program(program);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	PyObject *done = program->options_size > 0
				 ? PyObject_CallFunction(made.prepare, "y#", program->options, (Py_ssize_t)program->options_size)
				 : wc_script_child(NULL, NULL);
	if (done && made.reseed != Py_None && !rehearses)
		done = PyObject_CallObject(made.reseed, NULL);
	if (!done) {
		PyErr_Print();
		_exit(70);
	}
	_exit(run_python(program));
}

/* ---- a helper: a fork that runs our own Python ---- */

/* Calls function(*args) there.  The exit status, or -1 without a helper. */
static int help(PyObject *function, PyObject *args)
{
	int status = -1;
	PyOS_BeforeFork();
	pid_t pid = args ? fork() : -1;
	if (pid == 0) {
		PyOS_AfterFork_Child();
		PyObject *found = PyObject_CallObject(function, args);
		if (!found)
			PyErr_Print();
		_exit(found && PyObject_IsTrue(found) == 1 ? 0 : 1);
	}
	PyOS_AfterFork_Parent();
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
	}
	return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- the kernel ---- */

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Kills every process of the jail but pid 1 and this one. */
static void empty_jail(void)
{
	const struct timespec pause = { .tv_nsec = 500000 };
	double deadline = 0;
	/* All at once: a process cannot fork with the signal pending. */
	while (kill(-1, SIGKILL) == 0) {
		if (deadline == 0)
			deadline = now() + CLEAN_MS / 1e3;
		else if (now() > deadline)
			_exit(LOST_STATUS);
		nanosleep(&pause, NULL); /* pid 1 reaps them */
	}
}

/* Waits for the end of the program, until its time is over, or the host has interrupted the run. */
static void wait_for(pid_t pid, double begun, long timeout_ms, struct ending *ret)
{
	const sigset_t awaited = awaited_signals();
	struct rusage used = { 0 };
	double deadline = begun + (double)timeout_ms / 1e3;
	for (;;) {
		double left = deadline - now();
		if (left > 0) {
			struct timespec most = { .tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9) };
			(void)sigtimedwait(&awaited, NULL, &most);
		}
		pid_t found = wait4(pid, &ret->status, WNOHANG, &used);
		if (found == 0 && left > 0 && !wc_is_interrupted())
			continue;
		if (found < 0)
			ret->status = W_EXITCODE(LOST_STATUS, 0);
		ret->interrupted = found == 0 && wc_is_interrupted();
		ret->timed_out = found == 0 && !ret->interrupted;
		if (found == 0) {
			kill(pid, SIGKILL);
			while (wait4(pid, &ret->status, 0, &used) < 0 && errno == EINTR) {
			}
		}
		ret->cpu_seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
				   (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
		return;
	}
}

static int read_program(const char *raw, size_t size, struct program *ret)
{
	const char *line = raw + sizeof HEAD - 1, *end = memchr(line, '\n', size - (sizeof HEAD - 1));
	char text[64];
	size_t left;
	unsigned long options;
	if (!end || (size_t)(end - line) >= sizeof text)
		return -1;
	memcpy(text, line, (size_t)(end - line));
	text[end - line] = '\0';
	if (sscanf(text, "%ld %lu %u", &ret->timeout_ms, &options, &ret->flags) != 3)
		return -1;
	left = (size_t)(raw + size - (end + 1));
	if (options > left)
		return -1;
	ret->options = end + 1;
	ret->options_size = options;
	ret->code = ret->options + options;
	snprintf(ret->path, sizeof ret->path, "%s/program.%s", folder, ret->flags & IS_BASH ? "sh" : "py");
	ret->code_size = left - options;
	return 0;
}

static int run(const struct program *program, struct ending *ret)
{
	*ret = (struct ending){ .status = 0 };
	double begun = now();
	PyOS_BeforeFork();
	pid_t pid = fork();
	if (pid == 0)
		be_program(program, false);
	int error = errno;
	PyOS_AfterFork_Parent();
	errno = error;
	if (pid < 0)
		return -1;
	wait_for(pid, begun, program->timeout_ms, ret);
	empty_jail();
	ret->seconds = now() - begun;
	return 0;
}

/* ---- after it ---- */

static bool is_kept(const char *names, const char *name)
{
	for (; *names; names += strlen(names) + 1)
		if (strcmp(names, name) == 0)
			return true;
	return false;
}

/* Is nothing in this folder but what may stay?  *ret_next: after its names in `kept`. */
static bool has_only_kept(const char *place, bool is_root, const char **ret_next)
{
	struct dirent64 *entry;
	union {
		struct dirent64 align;
		char bytes[DIRENT_BYTES];
	} space;
	const char *names = place + strlen(place) + 1, *at = names;
	struct stat st;
	unsigned expected = 0, found = 0;
	bool only = true;
	for (; *at; at += strlen(at) + 1)
		expected++;
	*ret_next = at + 1;
	int fd = open(place, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return false;
	if (fstat(fd, &st) < 0 || (is_root && (st.st_mode & 07777) != 01777) || flistxattr(fd, NULL, 0) > 0)
		only = false;
	for (long n; only && (n = syscall(SYS_getdents64, fd, &space, sizeof space)) != 0;) {
		only = n > 0;
		for (long i = 0; only && i < n; i += entry->d_reclen) {
			entry = (struct dirent64 *)(space.bytes + i);
			if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
				continue;
			only = is_kept(names, entry->d_name);
			found++;
		}
	}
	close(fd);
	return only && found == expected;
}

/* Is the jail as it was before the first program? */
static bool is_clean(void)
{
	for (const char *at = kept, *next; *at; at = next)
		if (!has_only_kept(at, strcmp(at, "/tmp") == 0 || strcmp(at, "/dev/shm") == 0, &next))
			return false;
	return ipc_is_empty();
}

/* Removes what a program usually has in its folder; what resists is for clean_up(). */
static bool remove_folder(int parent, const char *name, int depth)
{
	union {
		struct dirent64 align;
		char bytes[DIRENT_BYTES];
	} space;
	bool done = depth < MAX_DEPTH;
	int fd = done ? openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
	if (fd < 0)
		return false;
	for (long n; done && (n = syscall(SYS_getdents64, fd, &space, sizeof space)) != 0;) {
		done = n > 0;
		for (long i = 0; done && i < n; i += ((struct dirent64 *)(space.bytes + i))->d_reclen) {
			const char *entry = ((struct dirent64 *)(space.bytes + i))->d_name;
			if (strcmp(entry, ".") != 0 && strcmp(entry, "..") != 0)
				done = unlinkat(fd, entry, 0) == 0 || (errno == EISDIR && remove_folder(fd, entry, depth + 1));
		}
	}
	close(fd);
	return done && unlinkat(parent, name, AT_REMOVEDIR) == 0;
}

static bool clean(const struct program *program)
{
	bool removed = (unlink(program->path) == 0 && rmdir(folder) == 0) || remove_folder(AT_FDCWD, folder, 0);
	if (removed && is_clean())
		return true;
	PyObject *none = PyTuple_New(0);
	bool done = none && help(made.clean_up, none) == 0;
	Py_XDECREF(none);
	empty_jail();
	return done && is_clean();
}

/* The text of a JSON object's members that a reader has written there, or NULL.  *ret_size: to be unmapped. */
static const char *fetch(const struct program *program, size_t *ret_size)
{
	struct stat st;
	void *text = MAP_FAILED;
	int fd = memfd_create("files", MFD_CLOEXEC);
	PyObject *args = fd < 0 ? NULL : Py_BuildValue("(iy#)", fd, program->options, (Py_ssize_t)program->options_size);
	int status = args ? help(made.give_files, args) : -1;
	Py_XDECREF(args);
	if (status == 0 && fstat(fd, &st) == 0 && st.st_size > 0) {
		*ret_size = (size_t)st.st_size;
		text = mmap(NULL, *ret_size, PROT_READ, MAP_PRIVATE, fd, 0);
	}
	if (fd >= 0)
		close(fd);
	return text == MAP_FAILED ? NULL : text;
}

static int answer_interrupted(uint32_t id)
{
	static const char error[] = "{\"error\":{\"type\":\"KeyboardInterrupt\",\"message\":\"\",\"traceback\":\"KeyboardInterrupt\"}}";
	return wc_send_error(id, error, sizeof error - 1);
}

static int answer_failure(uint32_t id, const char *text, bool spent)
{
	PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
	PyObject *json = message ? PyImport_ImportModule("json") : NULL;
	PyObject *quoted = json ? PyObject_CallMethod(json, "dumps", "O", message) : NULL;
	PyObject *value = quoted ? PyUnicode_FromFormat("{\"error\": %U, \"files\": {}, \"spent\": %s}", quoted, spent ? "true" : "false")
				 : NULL;
	Py_ssize_t size;
	const char *bytes = value ? PyUnicode_AsUTF8AndSize(value, &size) : NULL;
	int rc = bytes ? wc_send_value(id, bytes, (size_t)size, "", 0) : -1;
	Py_XDECREF(message);
	Py_XDECREF(json);
	Py_XDECREF(quoted);
	Py_XDECREF(value);
	return rc;
}

static int answer_program(uint32_t id, const struct program *program, const struct ending *end)
{
	char notice[MAX_NOTICE + 1], head[256], code[16] = "null";
	uint32_t noticed = notice_size();
	size_t size = 0;
	if (noticed > 0) {
		noticed = noticed < MAX_NOTICE ? noticed : MAX_NOTICE;
		memcpy(notice, wc_bulk_memory() + sizeof noticed, noticed);
		notice[noticed] = '\0';
		clear_notice();
		return answer_failure(id, notice, !clean(program));
	}
	const char *files = program->flags & FETCHES ? fetch(program, &size) : NULL;
	bool spent = !clean(program);
	if (!end->timed_out)
		snprintf(code, sizeof code, "%d", WIFSIGNALED(end->status) ? -WTERMSIG(end->status) : WEXITSTATUS(end->status));
	int length = snprintf(
		head, sizeof head, "{\"return_code\":%s,\"timed_out\":%s,\"seconds\":%.6f,\"cpu_seconds\":%.6f,\"spent\":%s,%s", code,
		end->timed_out ? "true" : "false", end->seconds, end->cpu_seconds, spent ? "true" : "false", files ? "" : "\"files\":{}}");
	int rc = wc_send_value(id, head, (size_t)length, files ? files : "", files ? size : 0);
	if (files)
		munmap((void *)files, size);
	return rc;
}

bool wc_has_programs(void)
{
	return made.path;
}

/* In a fork: what a short program does, without its output. */
static void rehearse(void)
{
	static const char code[] = "print(1 + 1)\n";
	struct program program = { .options = "", .code = code, .code_size = sizeof code - 1 };
	snprintf(program.path, sizeof program.path, "%s/program.py", folder);
	int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
		_exit(1);
	close(fd);
	be_program(&program, true);
}

/* Before the second program: from then on nothing changes any more in the memory of the kernel. */
static void prepare(void)
{
	wc_early_prepare();
	if (wc_template_data(rehearse) < 0)
		_exit(LOST_STATUS);
	(void)remove_folder(AT_FDCWD, folder, 0);
	clear_notice();
}

int wc_run_script(uint32_t id, const char *raw, size_t size)
{
	struct program program = { .options = NULL };
	struct ending end;
	if (!made.path || size < sizeof HEAD - 1 || memcmp(raw, HEAD, sizeof HEAD - 1) != 0)
		return 0;
	if (n_programs < 2 && ++n_programs == 2)
		prepare();
	if (!wc_begin_run(id))
		return answer_interrupted(id) < 0 ? -1 : 1;
	if (read_program(raw, size, &program) < 0) {
		PyErr_SetString(PyExc_ConnectionError, "from the host: not a program");
		return -1;
	}
	int rc;
	if (run(&program, &end) < 0) {
		char text[120];
		snprintf(text, sizeof text, "the program could not be started: %s", strerror(errno));
		rc = answer_failure(id, text, true);
	} else if (end.interrupted) {
		clean(&program);
		rc = answer_interrupted(id);
	} else {
		rc = answer_program(id, &program, &end);
	}
	return rc < 0 ? -1 : 1;
}

/* script_run(id, source) -> True: it was a program, and its RESULT is sent */
PyObject *wc_script_run(PyObject *self, PyObject *args)
{
	(void)self;
	unsigned int id;
	PyObject *bytes;
	char *raw;
	Py_ssize_t size;
	if (!PyArg_ParseTuple(args, "IO", &id, &bytes))
		return NULL;
	int done = PyBytes_AsStringAndSize(bytes, &raw, &size) < 0 ? -1 : wc_run_script(id, raw, (size_t)size);
	return done < 0 ? NULL : PyBool_FromLong(done);
}
