/*
 * Forking into a jail, and the last steps before the agent's code.
 *
 * Theory of operation
 *
 *   A process cannot change its own pid namespace, only that of its children, and the zygote must not change at all: it
 *   serves other sessions.  So there is a third process for a moment:
 *
 *       zygote ──vfork──▶ usher: joins the jail's cgroup and namespaces ──fork──▶ kernel
 *                            └── ends; the kernel becomes a child of pid 1 of the zone (spawn/zone.h)
 *
 *   The zygote is confined itself: it sees neither the cgroup nor the jail's process, and gets handles of both for this one fork.
 *
 *   The usher shares the zygote's memory, and the zygote is suspended in the meantime, so this costs no second copy of the
 *   page tables.  fork() is the C library's: handlers that libraries registered with pthread_atfork() run.
 *
 *   The kernel has all capabilities inside its user namespace until confine(), which runs the KERNEL steps of the plan: by
 *   then it has not run any of the agent's code.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include "confine.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/apply.h"
#include "sandbox/cgroup.h"
#include "wire/spawn_msg.h"

/* Written by the usher, read by the zygote: they share memory. */
static volatile struct {
	pid_t kernel;
	int error;
} usher;

/* The numbers of a list from index `from` on; -1: an exception is set. */
static int copy_fds(PyObject *list, size_t from, size_t n, int *out)
{
	for (size_t i = 0; i < n; i++) {
		PyObject *item = PyList_GetItem(list, (Py_ssize_t)(from + i));
		long fd = item ? PyLong_AsLong(item) : -1;
		if (PyErr_Occurred())
			return -1;
		out[i] = (int)fd;
	}
	return 0;
}

/* The spawner's description of how to enter the jail, and the descriptors that it counts. */
struct way_in {
	struct cell_spawn_join join;
	int namespaces[CELL_SPAWN_MAX_FDS], groups[CELL_SPAWN_MAX_FDS];
};

static int read_way_in(PyObject *fds, PyObject *bytes, struct way_in *out)
{
	char *data;
	Py_ssize_t size;
	if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0)
		return -1;
	if ((size_t)size == sizeof out->join)
		memcpy(&out->join, data, sizeof out->join);
	if ((size_t)size != sizeof out->join || out->join.n_namespaces > CELL_SPAWN_MAX_FDS || out->join.n_groups > CELL_SPAWN_MAX_FDS ||
	    (size_t)PyList_Size(fds) != CELL_SPAWN_KERNEL_FDS + out->join.n_namespaces + out->join.n_groups) {
		PyErr_SetString(PyExc_ValueError, "invalid sandbox handle: spawner and kernel have different versions");
		return -1;
	}
	size_t from = CELL_SPAWN_KERNEL_FDS;
	return copy_fds(fds, from, out->join.n_namespaces, out->namespaces) < 0 ||
			       copy_fds(fds, from + out->join.n_namespaces, out->join.n_groups, out->groups) < 0
		       ? -1
		       : 0;
}

static int enter(const struct way_in *way, const struct cell_plan *plan)
{
	return cell__cgroup_join_by(way->groups, way->join.n_groups) < 0
		       ? -1
		       : cell__apply_join(way->namespaces, way->join.n_namespaces, plan, way->join.becomes);
}

PyObject *wc_fork_into(PyObject *self, PyObject *args)
{
	(void)self;
	PyObject *fds, *bytes;
	static struct way_in way;
	int plan_fd;
	struct cell_plan plan;
	if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &fds, &bytes) || read_way_in(fds, bytes, &way) < 0 ||
	    copy_fds(fds, CELL_SPAWN_PLAN_FD, 1, &plan_fd) < 0)
		return NULL;
	if (pread(plan_fd, &plan, sizeof plan, 0) != (ssize_t)sizeof plan)
		return PyErr_SetFromErrno(PyExc_OSError);
	PyOS_BeforeFork();
	usher.kernel = -1;
	usher.error = 0;
	pid_t pid = vfork();
	if (pid == 0) {
		if (enter(&way, &plan) == 0) {
			usher.kernel = fork();
			if (usher.kernel == 0) {
				/* The kernel: a copy of the zygote, on its own stack from here on. */
				PyOS_AfterFork_Child();
				return PyLong_FromLong(0);
			}
		}
		usher.error = usher.kernel < 0 ? errno : 0;
		_exit(0);
	}
	int error = pid < 0 ? errno : usher.error;
	PyOS_AfterFork_Parent();
	while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
	}
	if (usher.kernel <= 0) {
		errno = error ? error : EIO;
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	return PyLong_FromLong(usher.kernel);
}

PyObject *wc_join_group(PyObject *self, PyObject *args)
{
	(void)self;
	PyObject *fds, *bytes;
	static struct way_in way;
	if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &fds, &bytes) || read_way_in(fds, bytes, &way) < 0)
		return NULL;
	if (cell__cgroup_join_by(way.groups, way.join.n_groups) < 0)
		return PyErr_SetFromErrno(PyExc_OSError);
	Py_RETURN_NONE;
}

static PyObject *skipped_steps(const struct cell_plan_report *report)
{
	PyObject *list = PyList_New(0);
	for (unsigned i = 0; list && i < CELL_PLAN_MAX_STEPS; i++) {
		if (!(report->skipped[i / 8] & (1u << (i % 8))))
			continue;
		PyObject *number = PyLong_FromLong((long)i);
		if (!number || PyList_Append(list, number) < 0)
			Py_CLEAR(list);
		Py_XDECREF(number);
	}
	return list;
}

static struct cell_apply apply = { .landlock_fd = -1 };

static PyObject *outcome(const struct cell_plan_report *report)
{
	PyObject *skipped = skipped_steps(report);
	return skipped ? Py_BuildValue("iiN", report->step, report->sys, skipped) : NULL;
}

PyObject *wc_confine_early(PyObject *self, PyObject *args)
{
	(void)self;
	int plan_fd;
	PyObject *keep;
	if (!PyArg_ParseTuple(args, "iO", &plan_fd, &keep))
		return NULL;
	struct cell_plan_report report = { .step = -1 };
	Py_ssize_t n = PyList_Size(keep);
	for (Py_ssize_t i = 0; i < n && apply.n_keep < CELL_APPLY_MAX_KEEP; i++)
		apply.keep[apply.n_keep++] = (int)PyLong_AsLong(PyList_GetItem(keep, i));
	if (PyErr_Occurred())
		return NULL;
	apply.plan = cell__plan_map(plan_fd);
	if (!apply.plan) {
		PyErr_SetString(PyExc_ValueError, "invalid sandbox plan: host and kernel have different versions");
		return NULL;
	}
	(void)cell__apply_stage(&apply, CELL_STAGE_EARLY, &report);
	return outcome(&report);
}

PyObject *wc_confine(PyObject *self, PyObject *session)
{
	(void)self;
	struct cell_plan_report report = { .step = -1 };
	char *data;
	Py_ssize_t size;
	if (PyBytes_AsStringAndSize(session, &data, &size) < 0)
		return NULL;
	/* The data of a bytes object is aligned as an allocation is, to 8 at least. */
	if (!apply.plan || !cell__plan_check(data, (size_t)size)) {
		PyErr_SetString(PyExc_ValueError, "invalid sandbox plan: host and kernel have different versions");
		return NULL;
	}
	apply.session = (const struct cell_plan *)data;
	(void)cell__apply_stage(&apply, CELL_STAGE_KERNEL, &report);
	apply.session = NULL;
	return outcome(&report);
}
