/* Session: cells, and the answers that they wait for. */
#include "handle.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const struct option session_options[] = {
	{ "executor", OPT_TEXT, offsetof(struct cell_session_options, executor) },
	{ "python", OPT_TEXT, offsetof(struct cell_session_options, python) },
	{ "preload", OPT_TEXT, offsetof(struct cell_session_options, preload) },
	{ "cwd", OPT_TEXT, offsetof(struct cell_session_options, cwd) },
	{ "env", OPT_LIST, offsetof(struct cell_session_options, env) },
	{ "timeout_ms", OPT_INT64, offsetof(struct cell_session_options, timeout_ms) },
	{ "grace_ms", OPT_INT64, offsetof(struct cell_session_options, grace_ms) },
	{ "max_output_bytes", OPT_INT64, offsetof(struct cell_session_options, max_output_bytes) },
	{ "gate", OPT_UNSIGNED, offsetof(struct cell_session_options, gate) },
	{ "approval_timeout_ms", OPT_INT64, offsetof(struct cell_session_options, approval_timeout_ms) },
	{ "approval_stops_clock", OPT_INT, offsetof(struct cell_session_options, approval_stops_clock) },
	{ "require_shell_escape", OPT_INT, offsetof(struct cell_session_options, require_shell_escape) },
	{ "restore_cwd", OPT_INT, offsetof(struct cell_session_options, restore_cwd) },
	{ "images_dir", OPT_TEXT, offsetof(struct cell_session_options, images_dir) },
	{ "sandbox_policy", OPT_TEXT, offsetof(struct cell_session_options, sandbox_policy) },
	{ "workspace_mode", OPT_TEXT, offsetof(struct cell_session_options, workspace_mode) },
	{ "kernel", OPT_TEXT, offsetof(struct cell_session_options, kernel) },
	{ "jupyter_path", OPT_TEXT, offsetof(struct cell_session_options, jupyter_path) },
	{ "remote_url", OPT_TEXT, offsetof(struct cell_session_options, remote_url) },
	{ "remote_token", OPT_TEXT, offsetof(struct cell_session_options, remote_token) },
	{ "remote_workspace", OPT_TEXT, offsetof(struct cell_session_options, remote_workspace) },
	{ "remote_ca", OPT_TEXT, offsetof(struct cell_session_options, remote_ca) },
	{ "remote_reopen", OPT_INT, offsetof(struct cell_session_options, remote_reopen) },
	{ "remote_repeat", OPT_INT, offsetof(struct cell_session_options, remote_repeat) },
	{ "memory_limit", OPT_INT64, offsetof(struct cell_session_options, memory_limit) },
	{ "cpu_quota", OPT_INT64, offsetof(struct cell_session_options, cpu_quota) },
	{ "pids_limit", OPT_INT64, offsetof(struct cell_session_options, pids_limit) },
	{ "network", OPT_TEXT, offsetof(struct cell_session_options, network) },
	{ "disk_limit", OPT_INT64, offsetof(struct cell_session_options, disk_limit) },
	{ "undo", OPT_INT, offsetof(struct cell_session_options, undo) },
	{ "points_bytes", OPT_INT64, offsetof(struct cell_session_options, points_bytes) },
	{ "allow_fork", OPT_INT, offsetof(struct cell_session_options, allow_fork) },
	{ "fork_memory", OPT_INT64, offsetof(struct cell_session_options, fork_memory) },
	{ "fork_time_ms", OPT_INT64, offsetof(struct cell_session_options, fork_time_ms) },
	{ "speculate", OPT_INT, offsetof(struct cell_session_options, speculate) },
	{ "saved_dir", OPT_TEXT, offsetof(struct cell_session_options, saved_dir) },
	{ "saved_owner", OPT_TEXT, offsetof(struct cell_session_options, saved_owner) },
	{ "saved_key", OPT_TEXT, offsetof(struct cell_session_options, saved_key) },
	{ "saved_notes", OPT_TEXT, offsetof(struct cell_session_options, saved_notes) },
	{ "record", OPT_TEXT, offsetof(struct cell_session_options, record) },
	{ "replay", OPT_TEXT, offsetof(struct cell_session_options, replay) },
	{ "saved_compress", OPT_INT, offsetof(struct cell_session_options, saved_compress) },
	{ "saved_unsynced", OPT_INT, offsetof(struct cell_session_options, saved_unsynced) },
	{ "saved_points", OPT_INT, offsetof(struct cell_session_options, saved_points) },
	{ "durable", OPT_TEXT, offsetof(struct cell_session_options, durable) },
	{ "changes", OPT_INT, offsetof(struct cell_session_options, changes) },
	{ "saved_form", OPT_TEXT, offsetof(struct cell_session_options, saved_form) },
	{ "saved_host", OPT_TEXT, offsetof(struct cell_session_options, saved_host) },
	{ "saved_url", OPT_TEXT, offsetof(struct cell_session_options, saved_url) },
	{ "saved_lease_ms", OPT_INT64, offsetof(struct cell_session_options, saved_lease_ms) },
	{ "resume", OPT_TEXT, offsetof(struct cell_session_options, resume) },
	{ "portable_values", OPT_INT, offsetof(struct cell_session_options, portable_values) },
	{ "trusted", OPT_LIST, offsetof(struct cell_session_options, trusted) },
};

static const struct option container_options[] = {
	{ "engine", OPT_TEXT, offsetof(struct cell_container_options, engine) },
	{ "image", OPT_TEXT, offsetof(struct cell_container_options, image) },
	{ "context", OPT_TEXT, offsetof(struct cell_container_options, context) },
	{ "name", OPT_TEXT, offsetof(struct cell_container_options, name) },
	{ "user", OPT_TEXT, offsetof(struct cell_container_options, user) },
	{ "tools", OPT_TEXT, offsetof(struct cell_container_options, tools) },
	{ "storage", OPT_TEXT, offsetof(struct cell_container_options, storage) },
	{ "auth_token", OPT_TEXT, offsetof(struct cell_container_options, auth_token) },
	{ "auth_disabled", OPT_INT, offsetof(struct cell_container_options, auth_disabled) },
	{ "session_isolation", OPT_INT, offsetof(struct cell_container_options, session_isolation) },
	{ "no_runtime_deps", OPT_INT, offsetof(struct cell_container_options, no_runtime_deps) },
	{ "startup_timeout_ms", OPT_INT64, offsetof(struct cell_container_options, startup_timeout_ms) },
	{ "deps", OPT_LIST, offsetof(struct cell_container_options, deps) },
	{ "sync_deps", OPT_INT, offsetof(struct cell_container_options, sync_deps) },
	{ "index_url", OPT_TEXT, offsetof(struct cell_container_options, index_url) },
	{ "wheel_dir", OPT_TEXT, offsetof(struct cell_container_options, wheel_dir) },
	{ "install_timeout_ms", OPT_INT64, offsetof(struct cell_container_options, install_timeout_ms) },
};

static const struct option kubernetes_options[] = {
	{ "api", OPT_TEXT, offsetof(struct cell_kubernetes_options, api) },
	{ "token_file", OPT_TEXT, offsetof(struct cell_kubernetes_options, token_file) },
	{ "ca_file", OPT_TEXT, offsetof(struct cell_kubernetes_options, ca_file) },
	{ "kubeconfig", OPT_TEXT, offsetof(struct cell_kubernetes_options, kubeconfig) },
	{ "context", OPT_TEXT, offsetof(struct cell_kubernetes_options, context) },
	{ "in_namespace", OPT_TEXT, offsetof(struct cell_kubernetes_options, in_namespace) },
	{ "pool", OPT_TEXT, offsetof(struct cell_kubernetes_options, pool) },
	{ "warm_pool", OPT_TEXT, offsetof(struct cell_kubernetes_options, warm_pool) },
	{ "pool_key_file", OPT_TEXT, offsetof(struct cell_kubernetes_options, pool_key_file) },
	{ "runtime_class", OPT_TEXT, offsetof(struct cell_kubernetes_options, runtime_class) },
	{ "port", OPT_INT, offsetof(struct cell_kubernetes_options, port) },
	{ "session_isolation", OPT_INT, offsetof(struct cell_kubernetes_options, session_isolation) },
	{ "startup_timeout_ms", OPT_INT64, offsetof(struct cell_kubernetes_options, startup_timeout_ms) },
};

static int optional(PyObject *object, PyTypeObject *type, const char *what, void *ret)
{
	if (object == Py_None)
		return 0;
	if (check_type(object, type, what) < 0)
		return -1;
	if (!HANDLE(object)->pointer)
		return raise_message(CELL_E_CLOSED, 0, "the object is closed");
	*(void **)ret = HANDLE(object)->pointer;
	return 0;
}

/* The options of executors that have a struct of their own; what they point to is kept alive. */
struct own_options {
	struct cell_container_options container;
	struct cell_kubernetes_options kubernetes;
	PyObject *kept[2];
};

/* Takes a dict out of the options.  1: it was there. */
static int take_dict(PyObject *dict, const char *name, const struct option *table, size_t count, void *ret_options, PyObject **ret_keep)
{
	PyObject *found = PyDict_Check(dict) ? PyDict_GetItemString(dict, name) : NULL;
	if (!found)
		return 0;
	if (fill_options(found, table, count, ret_options, ret_keep) < 0)
		return -1;
	return PyDict_DelItemString(dict, name) < 0 ? -1 : 1;
}

static int take_own(PyObject *dict, struct own_options *own, struct cell_session_options *options)
{
	int container = take_dict(dict, "container", container_options, COUNT(container_options), &own->container, &own->kept[0]);
	int kubernetes = container < 0 ? -1
				       : take_dict(dict, "kubernetes", kubernetes_options, COUNT(kubernetes_options), &own->kubernetes,
						   &own->kept[1]);
	options->container = container > 0 ? &own->container : NULL;
	options->kubernetes = kubernetes > 0 ? &own->kubernetes : NULL;
	return kubernetes < 0 ? -1 : 0;
}

static void drop_own(struct own_options *own)
{
	Py_CLEAR(own->kept[0]);
	Py_CLEAR(own->kept[1]);
}

/* Session(engine, options, space, policy, audit, port, token, mask); all but the first two may be None */
PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct own_options own = { .container = CELL_CONTAINER_OPTIONS_INIT, .kubernetes = CELL_KUBERNETES_OPTIONS_INIT };
	struct cell_session *session = NULL;
	struct cell_error err;
	PyObject *engine, *dict, *space, *policy, *audit, *port, *keep = NULL;
	unsigned long long token;
	unsigned mask;
	int rc;
	(void)kwargs;
	if (!PyArg_ParseTuple(args, "OOOOOOKI", &engine, &dict, &space, &policy, &audit, &port, &token, &mask) ||
	    check_type(engine, engine_type, "an Engine") < 0 || optional(space, space_type, "a Space", &options.space) < 0 ||
	    optional(policy, policy_type, "a Policy", &options.policy) < 0 || optional(audit, audit_type, "an Audit", &options.audit) < 0 ||
	    take_own(dict, &own, &options) < 0 || fill_options(dict, session_options, COUNT(session_options), &options, &keep) < 0) {
		drop_own(&own);
		return NULL;
	}
	struct handle *self = new_handle(type, engine);
	if (self)
		self->keep = Py_BuildValue("(OOO)", space, policy, audit);
	if (self && port != Py_None && check_type(port, port_type, "a Port") == 0) {
		self->regs[0] = reg_create(port_of(port), token, mask, false);
		if (!self->regs[0])
			PyErr_NoMemory();
		options.on_event = on_session_event;
		options.event_arg = self->regs[0];
	}
	if (!self || PyErr_Occurred() || enter(engine) < 0) {
		Py_XDECREF(self);
		Py_XDECREF(keep);
		drop_own(&own);
		return NULL;
	}
	rc = INSIDE(engine, cell_session_open(HANDLE(engine)->pointer, &options, &session, &err));
	Py_XDECREF(keep);
	drop_own(&own);
	return finish_new(self, rc, session, &err);
}

static PyObject *session_id(PyObject *self, PyObject *args)
{
	(void)args;
	if (usable(HANDLE(self)) < 0)
		return NULL;
	return text_or_none(cell_session_id(HANDLE(self)->pointer));
}

static PyObject *session_kernel_pid(PyObject *self, PyObject *args)
{
	int64_t pid;
	(void)args;
	if (enter(self) < 0)
		return NULL;
	Py_BEGIN_ALLOW_THREADS pid = cell_session_kernel_pid(HANDLE(self)->pointer);
	Py_END_ALLOW_THREADS leave(self);
	return PyLong_FromLongLong(pid);
}

/* run(code, timeout_ms): waits, without events */
static PyObject *session_run(PyObject *self, PyObject *args)
{
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	struct cell_result *result = NULL;
	struct cell_error err;
	const char *code;
	Py_ssize_t size;
	long long timeout_ms;
	int rc;
	if (!PyArg_ParseTuple(args, "s#L", &code, &size, &timeout_ms) || enter(self) < 0)
		return NULL;
	options.timeout_ms = timeout_ms;
	rc = INSIDE(self, cell_session_run(HANDLE(self)->pointer, code, (size_t)size, &options, &result, &err));
	if (rc < 0)
		return raise_error(&err), NULL;
	return result_wrap(result);
}

/* start(code, timeout_ms, port, token, mask, spin_us[, traceparent]) -> run id, or the result of a cell that was over within spin_us */
static PyObject *session_start(PyObject *self, PyObject *args)
{
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	struct cell_error err;
	const char *code;
	Py_ssize_t size;
	long long timeout_ms;
	PyObject *port;
	unsigned long long token;
	unsigned mask;
	uint64_t id = 0;
	int rc;
	if (!PyArg_ParseTuple(args, "s#LOKIi|z", &code, &size, &timeout_ms, &port, &token, &mask, &options.spin_us, &options.traceparent) ||
	    check_type(port, port_type, "a Port") < 0 || enter(self) < 0)
		return NULL;
	struct reg *reg = reg_create(port_of(port), token, mask, true);
	if (!reg) {
		leave(self);
		return PyErr_NoMemory();
	}
	options.timeout_ms = timeout_ms;
	options.on_event = on_run_event;
	options.event_arg = reg;
	options.spin_end = &stay.heard;
	stay = (struct stay){ .reg = options.spin_us > 0 ? reg : NULL };
	rc = INSIDE(self, cell_session_start(HANDLE(self)->pointer, code, (size_t)size, &options, &id, &err));
	stay.reg = NULL;
	if (rc < 0) {
		reg_destroy(reg);
		return raise_error(&err), NULL;
	}
	if (stay.result)
		return result_wrap(stay.result);
	return PyLong_FromUnsignedLongLong(id);
}

static PyObject *session_interrupt(PyObject *self, PyObject *args)
{
	struct cell_error err;
	(void)args;
	if (enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_interrupt(HANDLE(self)->pointer, &err)), &err);
}

/* cancel(run id) */
static PyObject *session_cancel(PyObject *self, PyObject *args)
{
	struct cell_error err;
	unsigned long long id;
	if (!PyArg_ParseTuple(args, "K", &id) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_cancel(HANDLE(self)->pointer, id, &err)), &err);
}

static PyObject *session_reset(PyObject *self, PyObject *args)
{
	struct cell_error err;
	(void)args;
	if (enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_reset(HANDLE(self)->pointer, &err)), &err);
}

/* A Session for each fork, without its pointer yet, and what their events go to; NULL: an exception is set. */
static PyObject *make_forks(PyObject *self, PyObject *port, PyObject *tokens, unsigned mask, void **event_args)
{
	Py_ssize_t n = PyList_Size(tokens);
	PyObject *forks = PyList_New(n);
	for (Py_ssize_t i = 0; forks && i < n; i++) {
		struct handle *made = new_handle(Py_TYPE(self), (PyObject *)HANDLE(self)->engine);
		unsigned long long token = PyLong_AsUnsignedLongLong(PyList_GetItem(tokens, i));
		if (made)
			PyList_SetItem(forks, i, (PyObject *)made);
		if (made && !PyErr_Occurred()) {
			made->keep = HANDLE(self)->keep;
			Py_XINCREF(made->keep);
			made->regs[0] = reg_create(port_of(port), token, mask, false);
			event_args[i] = made->regs[0];
		}
		if (!made || PyErr_Occurred() || !made->regs[0]) {
			if (!PyErr_Occurred())
				PyErr_NoMemory();
			Py_CLEAR(forks);
		}
	}
	return forks;
}

/* fork(port, tokens, mask, drop, point or None) -> [Session], one for each token */
static PyObject *session_fork(PyObject *self, PyObject *args)
{
	struct cell_fork_options options = CELL_FORK_OPTIONS_INIT;
	struct cell_error err;
	PyObject *port, *tokens, *forks = NULL;
	unsigned mask;
	if (!PyArg_ParseTuple(args, "OO!Ipz", &port, &PyList_Type, &tokens, &mask, &options.drop, &options.point) ||
	    check_type(port, port_type, "a Port") < 0)
		return NULL;
	size_t n = (size_t)PyList_Size(tokens);
	struct cell_session **sessions = calloc(n ? n : 1, sizeof *sessions);
	void **event_args = calloc(n ? n : 1, sizeof *event_args);
	if (!sessions || !event_args)
		PyErr_NoMemory();
	else
		forks = make_forks(self, port, tokens, mask, event_args);
	if (forks && enter(self) < 0)
		Py_CLEAR(forks);
	if (forks) {
		options.on_event = on_session_event;
		options.event_args = event_args;
		if (INSIDE(self, cell_session_fork(HANDLE(self)->pointer, &options, n, sessions, &err)) < 0) {
			raise_error(&err);
			Py_CLEAR(forks);
		}
	}
	for (size_t i = 0; forks && i < n; i++)
		HANDLE(PyList_GetItem(forks, (Py_ssize_t)i))->pointer = sessions[i];
	free(sessions);
	free(event_args);
	return forks;
}

/* checkpoint(name, drop) */
static PyObject *session_checkpoint(PyObject *self, PyObject *args)
{
	struct cell_fork_options options = CELL_FORK_OPTIONS_INIT;
	struct cell_error err;
	const char *name;
	if (!PyArg_ParseTuple(args, "sp", &name, &options.drop) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_checkpoint(HANDLE(self)->pointer, name, &options, &err)), &err);
}

/* rewind(name or None, cells) */
static PyObject *session_rewind(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *name;
	unsigned long long cells;
	if (!PyArg_ParseTuple(args, "zK", &name, &cells) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_rewind(HANDLE(self)->pointer, name, cells, &err)), &err);
}

/* Frees the text. */
static PyObject *text_or_error(char *text, const struct cell_error *err)
{
	PyObject *found = text ? PyUnicode_FromString(text) : NULL;
	if (!text)
		raise_error(err);
	free(text);
	return found;
}

/* diff(with_text) -> JSON */
static PyObject *session_diff(PyObject *self, PyObject *args)
{
	struct cell_error err;
	int with_text;
	if (!PyArg_ParseTuple(args, "p", &with_text) || enter(self) < 0)
		return NULL;
	char *text = INSIDE(self, cell_session_diff(HANDLE(self)->pointer, with_text, &err));
	return text_or_error(text, &err);
}

/* variables() -> JSON */
static PyObject *session_variables(PyObject *self, PyObject *args)
{
	struct cell_error err;
	char *text = NULL;
	(void)args;
	if (enter(self) < 0)
		return NULL;
	int rc = INSIDE(self, cell_session_variables(HANDLE(self)->pointer, &text, &err));
	return text_or_error(rc < 0 ? NULL : text, &err);
}

/* replay(engine, options) -> JSON */
PyObject *session_replay(PyObject *self, PyObject *args)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err;
	PyObject *engine, *dict, *keep = NULL;
	(void)self;
	if (!PyArg_ParseTuple(args, "OO", &engine, &dict) || check_type(engine, engine_type, "an Engine") < 0 ||
	    fill_options(dict, session_options, COUNT(session_options), &options, &keep) < 0)
		return NULL;
	if (enter(engine) < 0) {
		Py_XDECREF(keep);
		return NULL;
	}
	char *text = INSIDE(engine, cell_replay(HANDLE(engine)->pointer, &options, &err));
	Py_XDECREF(keep);
	return text_or_error(text, &err);
}

/* hibernate(with points) -> JSON */
static PyObject *session_hibernate(PyObject *self, PyObject *args)
{
	struct cell_error err;
	int points;
	if (!PyArg_ParseTuple(args, "p", &points) || enter(self) < 0)
		return NULL;
	char *text = INSIDE(self, points ? cell_session_hibernate_with_points(HANDLE(self)->pointer, &err)
					 : cell_session_hibernate(HANDLE(self)->pointer, &err));
	return text_or_error(text, &err);
}

struct commit_options {
	const char *const *paths;
	int force;
};

static const struct option commit_fields[] = {
	{ "paths", OPT_LIST, offsetof(struct commit_options, paths) },
	{ "force", OPT_INT, offsetof(struct commit_options, force) },
};

/* commit({"paths", "force"}) -> JSON */
static PyObject *session_commit(PyObject *self, PyObject *args)
{
	struct commit_options options = { 0 };
	struct cell_error err;
	PyObject *dict, *keep = NULL;
	if (!PyArg_ParseTuple(args, "O", &dict) ||
	    fill_options(dict, commit_fields, sizeof commit_fields / sizeof *commit_fields, &options, &keep) < 0)
		return NULL;
	if (enter(self) < 0) {
		Py_DECREF(keep);
		return NULL;
	}
	char *text = INSIDE(self, cell_session_commit(HANDLE(self)->pointer, options.paths, options.force, &err));
	Py_DECREF(keep);
	return text_or_error(text, &err);
}

/* discard() */
static PyObject *session_discard(PyObject *self, PyObject *args)
{
	struct cell_error err;
	(void)args;
	if (enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_discard(HANDLE(self)->pointer, &err)), &err);
}

/* file_describe(path) -> JSON */
static PyObject *session_file_describe(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *path;
	if (!PyArg_ParseTuple(args, "s", &path) || enter(self) < 0)
		return NULL;
	char *text = INSIDE(self, cell_session_file_describe(HANDLE(self)->pointer, path, &err));
	return text_or_error(text, &err);
}

static const struct option file_fields[] = {
	{ "tar", OPT_INT, offsetof(struct cell_file_options, tar) },
	{ "offset", OPT_INT64, offsetof(struct cell_file_options, offset) },
	{ "max_bytes", OPT_INT64, offsetof(struct cell_file_options, max_bytes) },
	{ "mode", OPT_INT, offsetof(struct cell_file_options, mode) },
};

typedef int (*file_fn)(struct cell_session *session, const char *path, const struct cell_file_options *opts, int fd, int64_t *ret_bytes,
		       struct cell_error *err);

static PyObject *move_file(PyObject *self, PyObject *args, file_fn move)
{
	struct cell_file_options options = CELL_FILE_OPTIONS_INIT;
	struct cell_error err;
	const char *path;
	PyObject *dict, *keep = NULL;
	int fd;
	int64_t bytes = 0;
	if (!PyArg_ParseTuple(args, "sOi", &path, &dict, &fd) ||
	    fill_options(dict, file_fields, sizeof file_fields / sizeof *file_fields, &options, &keep) < 0)
		return NULL;
	Py_XDECREF(keep); /* it has no texts */
	if (enter(self) < 0)
		return NULL;
	if (INSIDE(self, move(HANDLE(self)->pointer, path, &options, fd, &bytes, &err)) < 0) {
		raise_error(&err);
		return NULL;
	}
	return PyLong_FromLongLong(bytes);
}

/* file_get(path, {"tar", "offset", "max_bytes"}, fd) -> bytes written to it */
static PyObject *session_file_get(PyObject *self, PyObject *args)
{
	return move_file(self, args, cell_session_file_get);
}

/* file_put(path, {"tar", "mode"}, fd) -> bytes read from it */
static PyObject *session_file_put(PyObject *self, PyObject *args)
{
	return move_file(self, args, cell_session_file_put);
}

/* file_make_folder(path) */
static PyObject *session_file_make_folder(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *path;
	if (!PyArg_ParseTuple(args, "s", &path) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_file_make_folder(HANDLE(self)->pointer, path, &err)), &err);
}

/* file_remove(path, recursive) */
static PyObject *session_file_remove(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *path;
	int recursive;
	if (!PyArg_ParseTuple(args, "sp", &path, &recursive) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_file_remove(HANDLE(self)->pointer, path, recursive, &err)), &err);
}

static const struct option command_fields[] = {
	{ "argv", OPT_LIST, offsetof(struct cell_command_options, argv) },
	{ "line", OPT_TEXT, offsetof(struct cell_command_options, line) },
	{ "env", OPT_LIST, offsetof(struct cell_command_options, env) },
	{ "cwd", OPT_TEXT, offsetof(struct cell_command_options, cwd) },
	{ "tag", OPT_TEXT, offsetof(struct cell_command_options, tag) },
	{ "timeout_ms", OPT_INT64, offsetof(struct cell_command_options, timeout_ms) },
	{ "want_stdin", OPT_INT, offsetof(struct cell_command_options, want_stdin) },
	{ "drops", OPT_INT, offsetof(struct cell_command_options, drops) },
	{ "tty", OPT_INT, offsetof(struct cell_command_options, tty) },
	{ "rows", OPT_INT, offsetof(struct cell_command_options, rows) },
	{ "cols", OPT_INT, offsetof(struct cell_command_options, cols) },
};

/* command_start({...}) -> id */
static PyObject *session_command_start(PyObject *self, PyObject *args)
{
	struct cell_command_options options = CELL_COMMAND_OPTIONS_INIT;
	char id[CELL_COMMAND_ID_SIZE];
	struct cell_error err;
	PyObject *dict, *keep = NULL;
	if (!PyArg_ParseTuple(args, "O", &dict) || fill_options(dict, command_fields, COUNT(command_fields), &options, &keep) < 0)
		return NULL;
	int rc = enter(self) < 0 ? 1 : INSIDE(self, cell_session_command_start(HANDLE(self)->pointer, &options, id, &err));
	Py_XDECREF(keep);
	if (rc < 0)
		raise_error(&err);
	return rc ? NULL : PyUnicode_FromString(id);
}

/* command_read(id, position, wait_ms) -> (is_stderr, bytes, next position, dropped, ended, exit code) */
static PyObject *session_command_read(PyObject *self, PyObject *args)
{
	struct cell_command_output output = CELL_COMMAND_OUTPUT_INIT;
	struct cell_error err;
	const char *id;
	long long position, wait_ms;
	char buffer[32768];
	if (!PyArg_ParseTuple(args, "sLL", &id, &position, &wait_ms) || enter(self) < 0)
		return NULL;
	if (INSIDE(self, cell_session_command_read(HANDLE(self)->pointer, id, position, wait_ms, buffer, sizeof buffer, &output, &err)) <
	    0) {
		raise_error(&err);
		return NULL;
	}
	return Py_BuildValue("(iy#LLii)", output.stream == CELL_STDERR, buffer, (Py_ssize_t)output.bytes, (long long)output.position,
			     (long long)output.dropped, output.ended, output.exit_code);
}

/* command_write(id, bytes) */
static PyObject *session_command_write(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *id, *bytes;
	Py_ssize_t size;
	if (!PyArg_ParseTuple(args, "sy#", &id, &bytes, &size) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_command_write(HANDLE(self)->pointer, id, bytes, (size_t)size, &err)), &err);
}

/* command_close_stdin(id) */
static PyObject *session_command_close_stdin(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *id;
	if (!PyArg_ParseTuple(args, "s", &id) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_command_close_stdin(HANDLE(self)->pointer, id, &err)), &err);
}

/* command_signal(id, number) */
static PyObject *session_command_signal(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *id;
	int number;
	if (!PyArg_ParseTuple(args, "si", &id, &number) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_command_signal(HANDLE(self)->pointer, id, number, &err)), &err);
}

/* command_resize(id, rows, cols) */
static PyObject *session_command_resize(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *id;
	int rows, cols;
	if (!PyArg_ParseTuple(args, "sii", &id, &rows, &cols) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_command_resize(HANDLE(self)->pointer, id, rows, cols, &err)), &err);
}

/* command_describe(id or None: all) -> JSON */
static PyObject *session_command_describe(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *id;
	if (!PyArg_ParseTuple(args, "z", &id) || enter(self) < 0)
		return NULL;
	char *text = INSIDE(self, cell_session_command_describe(HANDLE(self)->pointer, id, &err));
	return text_or_error(text, &err);
}

/* command_drop(id) */
static PyObject *session_command_drop(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *id;
	if (!PyArg_ParseTuple(args, "s", &id) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_command_drop(HANDLE(self)->pointer, id, &err)), &err);
}

/* limit(memory bytes, output bytes) */
static PyObject *session_limit(PyObject *self, PyObject *args)
{
	struct cell_error err;
	long long memory, output;
	if (!PyArg_ParseTuple(args, "LL", &memory, &output) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_limit(HANDLE(self)->pointer, memory, output, &err)), &err);
}

/* become(session) */
static PyObject *session_become(PyObject *self, PyObject *args)
{
	struct cell_error err;
	PyObject *other;
	if (!PyArg_ParseTuple(args, "O!", session_type, &other) || enter(self) < 0)
		return NULL;
	if (enter(other) < 0) {
		leave(self);
		return NULL;
	}
	int rc = INSIDE(self, cell_session_become(HANDLE(self)->pointer, HANDLE(other)->pointer, &err));
	leave(other);
	return none_or_error(rc, &err);
}

/* drop_point(name) */
static PyObject *session_drop_point(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *name;
	if (!PyArg_ParseTuple(args, "s", &name) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_session_drop_point(HANDLE(self)->pointer, name, &err)), &err);
}

static PyObject *json_of(PyObject *self, char *(*list)(struct cell_session *session))
{
	char *json;
	if (enter(self) < 0)
		return NULL;
	Py_BEGIN_ALLOW_THREADS json = list(HANDLE(self)->pointer);
	Py_END_ALLOW_THREADS leave(self);
	if (!json)
		return PyErr_NoMemory();
	PyObject *text = text_of(json, strlen(json));
	free(json);
	return text;
}

/* points() -> JSON */
static PyObject *session_points(PyObject *self, PyObject *args)
{
	(void)args;
	return json_of(self, cell_session_points);
}

/* children() -> JSON */
static PyObject *session_children(PyObject *self, PyObject *args)
{
	(void)args;
	return json_of(self, cell_session_children);
}

/* answer(id, accept, reason, args_json, always, spin_us) */
static PyObject *session_answer(PyObject *self, PyObject *args)
{
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;
	struct cell_error err;
	unsigned long long id;
	if (!PyArg_ParseTuple(args, "Kpzzpi", &id, &answer.accept, &answer.reason, &answer.args, &answer.always, &answer.spin_us) ||
	    enter(self) < 0)
		return NULL;
	answer.spin_end = &stay.heard;
	stay = (struct stay){ 0 };
	return none_or_error(INSIDE(self, cell_session_answer(HANDLE(self)->pointer, id, &answer, &err)), &err);
}

static PyObject *session_approvals(PyObject *self, PyObject *args)
{
	struct cell_error err;
	char *json = NULL;
	int rc;
	(void)args;
	if (enter(self) < 0)
		return NULL;
	rc = INSIDE(self, cell_session_approvals(HANDLE(self)->pointer, &json, &err));
	if (rc < 0)
		return raise_error(&err), NULL;
	PyObject *text = text_of(json, strlen(json));
	free(json);
	return text;
}

PyMethodDef session_methods[] = {
	{ "close", handle_close, METH_NOARGS, NULL },
	{ "id", session_id, METH_NOARGS, NULL },
	{ "kernel_pid", session_kernel_pid, METH_NOARGS, NULL },
	{ "run", session_run, METH_VARARGS, NULL },
	{ "start", session_start, METH_VARARGS, NULL },
	{ "interrupt", session_interrupt, METH_NOARGS, NULL },
	{ "cancel", session_cancel, METH_VARARGS, NULL },
	{ "reset", session_reset, METH_NOARGS, NULL },
	{ "fork", session_fork, METH_VARARGS, NULL },
	{ "checkpoint", session_checkpoint, METH_VARARGS, NULL },
	{ "rewind", session_rewind, METH_VARARGS, NULL },
	{ "hibernate", session_hibernate, METH_VARARGS, NULL },
	{ "variables", session_variables, METH_NOARGS, NULL },
	{ "diff", session_diff, METH_VARARGS, NULL },
	{ "commit", session_commit, METH_VARARGS, NULL },
	{ "discard", session_discard, METH_NOARGS, NULL },
	{ "file_describe", session_file_describe, METH_VARARGS, NULL },
	{ "file_get", session_file_get, METH_VARARGS, NULL },
	{ "file_put", session_file_put, METH_VARARGS, NULL },
	{ "file_make_folder", session_file_make_folder, METH_VARARGS, NULL },
	{ "file_remove", session_file_remove, METH_VARARGS, NULL },
	{ "command_start", session_command_start, METH_VARARGS, NULL },
	{ "command_read", session_command_read, METH_VARARGS, NULL },
	{ "command_write", session_command_write, METH_VARARGS, NULL },
	{ "command_close_stdin", session_command_close_stdin, METH_VARARGS, NULL },
	{ "command_signal", session_command_signal, METH_VARARGS, NULL },
	{ "command_resize", session_command_resize, METH_VARARGS, NULL },
	{ "command_describe", session_command_describe, METH_VARARGS, NULL },
	{ "command_drop", session_command_drop, METH_VARARGS, NULL },
	{ "limit", session_limit, METH_VARARGS, NULL },
	{ "become", session_become, METH_VARARGS, NULL },
	{ "drop_point", session_drop_point, METH_VARARGS, NULL },
	{ "points", session_points, METH_NOARGS, NULL },
	{ "children", session_children, METH_NOARGS, NULL },
	{ "answer", session_answer, METH_VARARGS, NULL },
	{ "approvals", session_approvals, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};
