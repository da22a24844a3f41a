/* Engine, Space, Session, Policy, Audit: handles of the library with the GIL released around what waits. */
#include "native.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/*
 * `users` are threads inside a call with the GIL released; the GIL guards it.  A handle is closed when nobody uses it any
 * more, and closed for new users from the moment that somebody wants to close it.
 */
struct handle {
	PyObject_HEAD
	void *pointer;
	pid_t pid;
	int users;
	bool closing;
	struct handle *engine; /* NULL for the engine itself, and for policies */
	PyObject *keep;        /* what must outlive it */
	struct reg *regs[1];   /* session: of its events; engine: of its log */
	struct reg **more;     /* space: of tools, middlewares, events */
	size_t n_more;
	char **variables;      /* space: for ${VAR}, "K=V" by name */
	size_t n_variables;
	PyObject *progress;    /* space */
};

static PyTypeObject *engine_type, *space_type, *session_type, *policy_type, *audit_type;

#define HANDLE(object) ((struct handle *)(object))

static struct handle *new_handle(PyTypeObject *type, PyObject *engine)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct handle *self = (struct handle *)alloc(type, 0);
	if (!self)
		return NULL;
	self->pid = getpid();
	self->engine = HANDLE(engine);
	Py_XINCREF(engine);
	return self;
}

static int usable(struct handle *self)
{
	if (self->pid != getpid()) {
		raise_message(CELL_E_CLOSED, 0,
			      "this belongs to the process that was forked: in a child open a session of its own");
		return -1;
	}
	if (!self->pointer || self->closing)
		return raise_message(CELL_E_CLOSED, 0, Py_TYPE(self) == session_type ? "the session is closed" : "it is closed");
	return self->engine ? usable(self->engine) : 0;
}

static int enter(PyObject *object)
{
	struct handle *self = HANDLE(object);
	if (usable(self) < 0)
		return -1;
	self->users++;
	if (self->engine)
		self->engine->users++;
	return 0;
}

static void leave(PyObject *object)
{
	struct handle *self = HANDLE(object);
	self->users--;
	if (self->engine)
		self->engine->users--;
}

/* A call of the library that may wait, by who has entered: without the GIL, and then he leaves. */
#define INSIDE(object, call)                    \
	({                                      \
		__typeof__(call) answer_;       \
		Py_BEGIN_ALLOW_THREADS          \
		answer_ = (call);               \
		Py_END_ALLOW_THREADS            \
		leave(object);                  \
		answer_;                        \
	})

static PyObject *none_or_error(int rc, const struct cell_error *err)
{
	if (rc < 0)
		return raise_error(err), NULL;
	Py_RETURN_NONE;
}

/* What the handle holds apart from the library's own. */
static void drop(struct handle *self)
{
	reg_destroy(self->regs[0]);
	self->regs[0] = NULL;
	for (size_t i = 0; i < self->n_more; i++)
		reg_destroy(self->more[i]);
	free(self->more);
	self->more = NULL;
	self->n_more = 0;
	for (size_t i = 0; i < self->n_variables; i++)
		free(self->variables[i]);
	free(self->variables);
	self->variables = NULL;
	self->n_variables = 0;
	Py_CLEAR(self->progress);
	Py_CLEAR(self->keep);
}

/*
 * Others may be inside: a running cell is ended by a reset, which lets the next queued one go on, so this is repeated until
 * all have left.  Engines and spaces are only closed by an owner who has closed what uses them; somebody still inside (a
 * thread that waits for an installer while the interpreter ends) keeps them, and the end of the process ends them.
 */
static bool wait_for_users(struct handle *self)
{
	struct cell_error err;
	bool session = Py_TYPE(self) == session_type;
	for (int round = 0; self->users > 0 && (session || round < 2000); round++) {
		void *pointer = self->pointer;
		Py_BEGIN_ALLOW_THREADS
		if (session)
			(void)cell_session_reset(pointer, &err);
		usleep(1000);
		Py_END_ALLOW_THREADS
	}
	return self->users == 0;
}

static void close_pointer(PyTypeObject *type, void *pointer)
{
	if (type == session_type)
		cell_session_close(pointer);
	else if (type == space_type)
		cell_space_close(pointer);
	else if (type == audit_type)
		cell_audit_close(pointer);
	else if (type == policy_type)
		cell_policy_destroy(pointer);
	else
		cell_engine_destroy(pointer);
}

static void close_handle(struct handle *self)
{
	if (!self->pointer || self->closing)
		return;
	self->closing = true;
	/* In a forked child, or when the engine has taken it along, there is nothing to close. */
	bool gone = self->pid != getpid() || (self->engine && !self->engine->pointer);
	if (!gone) {
		if (!wait_for_users(self))
			return;
		void *pointer = self->pointer;
		Py_BEGIN_ALLOW_THREADS
		close_pointer(Py_TYPE(self), pointer);
		Py_END_ALLOW_THREADS
	}
	self->pointer = NULL;
	if (self->pid == getpid())
		drop(self);
}

static PyObject *handle_close(PyObject *self, PyObject *args)
{
	(void)args;
	close_handle(HANDLE(self));
	Py_RETURN_NONE;
}

static void handle_dealloc(PyObject *object)
{
	struct handle *self = HANDLE(object);
	PyTypeObject *type = Py_TYPE(object);
	PyObject *engine = (PyObject *)self->engine;
	close_handle(self);
	if (!self->pointer && self->pid == getpid())
		drop(self);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
	Py_XDECREF(engine);
	Py_DECREF(type);
}

/* The handle becomes what the library gave, or goes. */
static PyObject *finish_new(struct handle *self, int rc, void *pointer, const struct cell_error *err)
{
	if (rc < 0) {
		raise_error(err);
		Py_DECREF(self);
		return NULL;
	}
	self->pointer = pointer;
	return (PyObject *)self;
}

static int check_type(PyObject *object, PyTypeObject *type, const char *what)
{
	if (PyObject_TypeCheck(object, type))
		return 0;
	PyErr_Format(PyExc_TypeError, "expected %s", what);
	return -1;
}

static struct reg *add_reg(struct handle *self, PyObject *port, unsigned long long token, unsigned mask)
{
	struct reg **more = realloc(self->more, (self->n_more + 1) * sizeof *more);
	struct reg *reg = more ? reg_create(port_of(port), token, mask, false) : NULL;
	if (more)
		self->more = more;
	if (!reg) {
		PyErr_NoMemory();
		return NULL;
	}
	self->more[self->n_more++] = reg;
	return reg;
}

/* ---- engine ---- */

static const struct option engine_options[] = {
	{ "lib_dir", OPT_TEXT, offsetof(struct cell_engine_options, lib_dir) },
	{ "spill_dir", OPT_TEXT, offsetof(struct cell_engine_options, spill_dir) },
	{ "pool_size", OPT_INT, offsetof(struct cell_engine_options, pool_size) },
	{ "start_timeout_ms", OPT_INT64, offsetof(struct cell_engine_options, start_timeout_ms) },
	{ "cache_dir", OPT_TEXT, offsetof(struct cell_engine_options, cache_dir) },
};

/* Engine(options, port or None, token): the port gets the log. */
static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;
	struct cell_engine *engine = NULL;
	struct cell_error err;
	PyObject *dict, *port, *keep = NULL;
	unsigned long long token;
	int rc;
	(void)kwargs;
	if (!PyArg_ParseTuple(args, "OOK", &dict, &port, &token) ||
	    fill_options(dict, engine_options, COUNT(engine_options), &options, &keep) < 0)
		return NULL;
	struct handle *self = new_handle(type, NULL);
	if (self && port != Py_None) {
		if (check_type(port, port_type, "a Port") < 0 || !(self->regs[0] = reg_create(port_of(port), token, 0, false))) {
			if (!PyErr_Occurred())
				PyErr_NoMemory();
			Py_DECREF(self);
			self = NULL;
		} else {
			options.log = on_log;
			options.log_arg = self->regs[0];
		}
	}
	if (!self) {
		Py_XDECREF(keep);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	rc = cell_engine_create(&options, &engine, &err);
	Py_END_ALLOW_THREADS
	Py_XDECREF(keep);
	return finish_new(self, rc, engine, &err);
}

/* [(name, isolation, available, reason, advice)] */
static PyObject *engine_executors(PyObject *self, PyObject *args)
{
	(void)args;
	if (enter(self) < 0)
		return NULL;
	PyObject *list = PyList_New(0);
	for (size_t i = 0; list; i++) {
		struct cell_executor_info info = { .size = sizeof info };
		int rc;
		Py_BEGIN_ALLOW_THREADS
		rc = cell_executor_probe(HANDLE(self)->pointer, i, &info);
		Py_END_ALLOW_THREADS
		if (rc < 0)
			break;
		PyObject *row = Py_BuildValue("(ssNNN)", info.name, info.isolation, PyBool_FromLong(info.available),
					      text_or_none(info.reason), text_or_none(info.advice));
		if (!row || PyList_Append(list, row) < 0)
			Py_CLEAR(list);
		Py_XDECREF(row);
	}
	leave(self);
	return list;
}

/* prewarm(python, preload) -> (python, version, ipython, zygote_pid, start_ms) */
static PyObject *engine_prewarm(PyObject *self, PyObject *args)
{
	struct cell_env_info info = { .size = sizeof info };
	struct cell_error err;
	const char *python, *preload;
	int rc;
	if (!PyArg_ParseTuple(args, "zz", &python, &preload) || enter(self) < 0)
		return NULL;
	rc = INSIDE(self, cell_engine_prewarm(HANDLE(self)->pointer, python, preload, &info, &err));
	if (rc < 0)
		return raise_error(&err), NULL;
	return Py_BuildValue("(sssLd)", info.python, info.version, info.ipython, (long long)info.zygote_pid, info.start_ms);
}

static PyMethodDef engine_methods[] = {
	{ "close", handle_close, METH_NOARGS, NULL },
	{ "executors", engine_executors, METH_NOARGS, NULL },
	{ "prewarm", engine_prewarm, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

/* ---- spaces ---- */

static const struct option space_options[] = {
	{ "storage", OPT_TEXT, offsetof(struct cell_space_options, storage) },
	{ "workspace_id", OPT_TEXT, offsetof(struct cell_space_options, workspace_id) },
	{ "tools_dir", OPT_TEXT, offsetof(struct cell_space_options, tools_dir) },
	{ "cwd", OPT_TEXT, offsetof(struct cell_space_options, cwd) },
	{ "allow_runtime_deps", OPT_INT, offsetof(struct cell_space_options, allow_runtime_deps) },
	{ "python", OPT_TEXT, offsetof(struct cell_space_options, python) },
	{ "venv_dir", OPT_TEXT, offsetof(struct cell_space_options, venv_dir) },
	{ "cache_dir", OPT_TEXT, offsetof(struct cell_space_options, cache_dir) },
	{ "index_url", OPT_TEXT, offsetof(struct cell_space_options, index_url) },
	{ "wheel_dir", OPT_TEXT, offsetof(struct cell_space_options, wheel_dir) },
	{ "python_version", OPT_TEXT, offsetof(struct cell_space_options, python_version) },
	{ "cache_venv", OPT_INT, offsetof(struct cell_space_options, cache_venv) },
	{ "cleanup_venv_on_close", OPT_INT, offsetof(struct cell_space_options, cleanup_venv_on_close) },
	{ "sync_deps_on_start", OPT_INT, offsetof(struct cell_space_options, sync_deps_on_start) },
	{ "installer_env", OPT_LIST, offsetof(struct cell_space_options, installer_env) },
	{ "path", OPT_TEXT, offsetof(struct cell_space_options, path) },
	{ "install_timeout_ms", OPT_INT64, offsetof(struct cell_space_options, install_timeout_ms) },
	{ "embeddings_url", OPT_TEXT, offsetof(struct cell_space_options, embeddings_url) },
	{ "embeddings_model", OPT_TEXT, offsetof(struct cell_space_options, embeddings_model) },
	{ "embeddings_key", OPT_TEXT, offsetof(struct cell_space_options, embeddings_key) },
};

/* The thread that waits for the space: it has released the GIL. */
static void on_progress(void *arg, const char *line)
{
	struct handle *self = arg;
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *text = self->progress ? text_of(line, strlen(line)) : NULL;
	PyObject *answer = text ? PyObject_CallFunctionObjArgs(self->progress, text, NULL) : NULL;
	if (self->progress && !answer)
		PyErr_WriteUnraisable(self->progress);
	Py_XDECREF(answer);
	Py_XDECREF(text);
	PyGILState_Release(state);
}

static int compare_variable(const void *a, const void *b)
{
	const char *left = *(char *const *)a, *right = *(char *const *)b;
	size_t m = strcspn(left, "="), n = strcspn(right, "=");
	int order = memcmp(left, right, m < n ? m : n);
	return order ? order : (m > n) - (m < n);
}

/* The engine's thread: the host's environment as it was when the space was opened. */
static const char *get_variable(void *arg, const char *name)
{
	struct handle *self = arg;
	char *key = (char *)name;
	char **found = bsearch(&key, self->variables, self->n_variables, sizeof *self->variables, compare_variable);
	return found ? *found + strlen(name) + 1 : NULL;
}

/* A list of "K=V". */
static int take_variables(struct handle *self, PyObject *list)
{
	Py_ssize_t n = PyList_Size(list);
	if (n < 0)
		return -1;
	self->variables = calloc((size_t)n + 1, sizeof *self->variables);
	if (!self->variables)
		return PyErr_NoMemory(), -1;
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *bytes = PyUnicode_AsEncodedString(PyList_GetItem(list, i), "utf-8", "surrogateescape");
		char *copy = bytes ? strdup(PyBytes_AsString(bytes)) : NULL;
		Py_XDECREF(bytes);
		if (!copy) {
			if (!PyErr_Occurred())
				PyErr_NoMemory();
			return -1;
		}
		self->variables[self->n_variables++] = copy;
	}
	qsort(self->variables, self->n_variables, sizeof *self->variables, compare_variable);
	return 0;
}

/* Space(engine, options, variables or None, progress or None) */
static PyObject *space_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct cell_space_options options = CELL_SPACE_OPTIONS_INIT;
	struct cell_space *space = NULL;
	struct cell_error err;
	PyObject *engine, *dict, *variables, *progress, *keep = NULL;
	int rc;
	(void)kwargs;
	if (!PyArg_ParseTuple(args, "OOOO", &engine, &dict, &variables, &progress) ||
	    check_type(engine, engine_type, "an Engine") < 0 ||
	    fill_options(dict, space_options, COUNT(space_options), &options, &keep) < 0)
		return NULL;
	struct handle *self = new_handle(type, engine);
	if (!self || (variables != Py_None && take_variables(self, variables) < 0) || enter(engine) < 0) {
		Py_XDECREF(self);
		Py_XDECREF(keep);
		return NULL;
	}
	if (variables != Py_None) {
		options.getenv_fn = get_variable;
		options.getenv_arg = self;
	}
	if (progress != Py_None) {
		Py_INCREF(progress);
		self->progress = progress;
		options.on_progress = on_progress;
		options.progress_arg = self;
	}
	rc = INSIDE(engine, cell_space_open(HANDLE(engine)->pointer, &options, &space, &err));
	Py_XDECREF(keep);
	return finish_new(self, rc, space, &err);
}

/* call(method, args_json, raw or None) -> (json, raw or None) */
static PyObject *space_call(PyObject *self, PyObject *args)
{
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	const char *method, *json, *raw;
	Py_ssize_t raw_size = 0;
	PyObject *value = NULL;
	int rc;
	if (!PyArg_ParseTuple(args, "ssz#", &method, &json, &raw, &raw_size) || enter(self) < 0)
		return NULL;
	rc = INSIDE(self, cell_space_call_ex(HANDLE(self)->pointer, method, json, raw, (size_t)raw_size, &answer, &err));
	if (rc < 0)
		raise_message(err.code, err.sys, answer.message ? answer.message : err.msg);
	else
		value = Py_BuildValue("(Ny#)", text_of(answer.json, strlen(answer.json)), (const char *)answer.raw,
				      (Py_ssize_t)answer.raw_size);
	cell_answer_finish(&answer);
	return value;
}

/* add_tool(name, description, parameters, timeout_ms, port, token) */
static PyObject *space_add_tool(PyObject *self, PyObject *args)
{
	struct cell_tool tool = CELL_TOOL_INIT;
	struct cell_error err;
	PyObject *port;
	unsigned long long token;
	long long timeout_ms;
	if (!PyArg_ParseTuple(args, "szzLOK", &tool.name, &tool.description, &tool.parameters, &timeout_ms, &port, &token) ||
	    check_type(port, port_type, "a Port") < 0 || usable(HANDLE(self)) < 0)
		return NULL;
	struct reg *reg = add_reg(HANDLE(self), port, token, 0);
	if (!reg || enter(self) < 0)
		return NULL;
	tool.timeout_ms = timeout_ms;
	tool.fn = on_tool_call;
	tool.arg = reg;
	return none_or_error(INSIDE(self, cell_space_add_tool(HANDLE(self)->pointer, &tool, &err)), &err);
}

/* add_middleware(name, port, token) */
static PyObject *space_add_middleware(PyObject *self, PyObject *args)
{
	struct cell_middleware middleware = CELL_MIDDLEWARE_INIT;
	struct cell_error err;
	PyObject *port;
	unsigned long long token;
	if (!PyArg_ParseTuple(args, "zOK", &middleware.name, &port, &token) || check_type(port, port_type, "a Port") < 0 ||
	    usable(HANDLE(self)) < 0)
		return NULL;
	struct reg *reg = add_reg(HANDLE(self), port, token, 0);
	if (!reg || enter(self) < 0)
		return NULL;
	middleware.before = on_before;
	middleware.after = on_after;
	middleware.arg = reg;
	return none_or_error(INSIDE(self, cell_space_add_middleware(HANDLE(self)->pointer, &middleware, &err)), &err);
}

static PyObject *space_add_mcp(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *name, *params;
	if (!PyArg_ParseTuple(args, "ss", &name, &params) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_space_add_mcp(HANDLE(self)->pointer, name, params, &err)), &err);
}

static PyObject *space_remove_mcp(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *name;
	if (!PyArg_ParseTuple(args, "s", &name) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_space_remove_mcp(HANDLE(self)->pointer, name, &err)), &err);
}

static PyObject *space_stop_servers(PyObject *self, PyObject *args)
{
	struct cell_error err;
	(void)args;
	if (enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_space_stop_servers(HANDLE(self)->pointer, &err)), &err);
}

/* on_tool_event(port, token) */
static PyObject *space_on_tool_event(PyObject *self, PyObject *args)
{
	struct cell_error err;
	PyObject *port;
	unsigned long long token;
	if (!PyArg_ParseTuple(args, "OK", &port, &token) || check_type(port, port_type, "a Port") < 0 ||
	    usable(HANDLE(self)) < 0)
		return NULL;
	struct reg *reg = add_reg(HANDLE(self), port, token, 0);
	if (!reg || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_space_on_tool_event(HANDLE(self)->pointer, on_tool_event, reg, &err)), &err);
}

static PyMethodDef space_methods[] = {
	{ "close", handle_close, METH_NOARGS, NULL },
	{ "call", space_call, METH_VARARGS, NULL },
	{ "add_tool", space_add_tool, METH_VARARGS, NULL },
	{ "add_middleware", space_add_middleware, METH_VARARGS, NULL },
	{ "add_mcp", space_add_mcp, METH_VARARGS, NULL },
	{ "remove_mcp", space_remove_mcp, METH_VARARGS, NULL },
	{ "stop_servers", space_stop_servers, METH_NOARGS, NULL },
	{ "on_tool_event", space_on_tool_event, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

/* ---- policies and audit logs ---- */

/* Policy(kind, text, name): kind "of" (text: allow, ask, deny), "load" (text: a path), "parse". */
static PyObject *policy_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct cell_policy *policy = NULL;
	struct cell_error err = { 0 };
	const char *kind, *text, *name = NULL;
	Py_ssize_t size;
	int rc = 0;
	(void)kwargs;
	if (!PyArg_ParseTuple(args, "ss#|z", &kind, &text, &size, &name))
		return NULL;
	struct handle *self = new_handle(type, NULL);
	if (!self)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	if (strcmp(kind, "load") == 0) {
		rc = cell_policy_load(text, &policy, &err);
	} else if (strcmp(kind, "parse") == 0) {
		rc = cell_policy_parse(text, (size_t)size, name ? name : "policy", &policy, &err);
	} else {
		policy = cell_policy_of(strcmp(text, "allow") == 0 ? CELL_ALLOW : strcmp(text, "deny") == 0 ? CELL_DENY : CELL_ASK);
		if (!policy) {
			err.code = CELL_E_NOMEM;
			rc = -1;
		}
	}
	Py_END_ALLOW_THREADS
	return finish_new(self, rc, policy, &err);
}

/* decide(kind, tool, callable, adapter, args_json) -> (decision, rule, line, name, reason, doubt, doubt_why) */
static PyObject *policy_decide(PyObject *self, PyObject *args)
{
	struct cell_policy_subject subject = CELL_POLICY_SUBJECT_INIT;
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT;
	struct cell_error err;
	if (!PyArg_ParseTuple(args, "zzzzz", &subject.kind, &subject.tool, &subject.callable, &subject.adapter,
			      &subject.args_json))
		return NULL;
	if (cell_policy_decide(HANDLE(self)->pointer, &subject, &verdict, &err) < 0)
		return raise_error(&err), NULL;
	return Py_BuildValue("(siizzzz)", cell_decision_word(verdict.decision), verdict.rule, verdict.line, verdict.name,
			     verdict.reason, verdict.doubt, verdict.doubt_why);
}

static PyMethodDef policy_methods[] = {
	{ "decide", policy_decide, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static const struct option audit_options[] = {
	{ "path", OPT_TEXT, offsetof(struct cell_audit_options, path) },
	{ "max_bytes", OPT_INT64, offsetof(struct cell_audit_options, max_bytes) },
	{ "keep", OPT_INT, offsetof(struct cell_audit_options, keep) },
	{ "sync", OPT_INT, offsetof(struct cell_audit_options, sync) },
	{ "sync_ms", OPT_INT64, offsetof(struct cell_audit_options, sync_ms) },
	{ "redact", OPT_LIST, offsetof(struct cell_audit_options, redact) },
	{ "fail_closed", OPT_INT, offsetof(struct cell_audit_options, fail_closed) },
};

/* Audit(engine, options) */
static PyObject *audit_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct cell_audit_options options = CELL_AUDIT_OPTIONS_INIT;
	struct cell_audit *audit = NULL;
	struct cell_error err;
	PyObject *engine, *dict, *keep = NULL;
	int rc;
	(void)kwargs;
	if (!PyArg_ParseTuple(args, "OO", &engine, &dict) || check_type(engine, engine_type, "an Engine") < 0 ||
	    fill_options(dict, audit_options, COUNT(audit_options), &options, &keep) < 0)
		return NULL;
	struct handle *self = new_handle(type, engine);
	if (!self || enter(engine) < 0) {
		Py_XDECREF(self);
		Py_XDECREF(keep);
		return NULL;
	}
	rc = INSIDE(engine, cell_audit_open(HANDLE(engine)->pointer, &options, &audit, &err));
	Py_XDECREF(keep);
	return finish_new(self, rc, audit, &err);
}

static PyMethodDef audit_methods[] = {
	{ "close", handle_close, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

/* ---- sessions ---- */

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
	{ "network_profile", OPT_TEXT, offsetof(struct cell_session_options, network_profile) },
	{ "remote_url", OPT_TEXT, offsetof(struct cell_session_options, remote_url) },
	{ "remote_token", OPT_TEXT, offsetof(struct cell_session_options, remote_token) },
	{ "remote_workspace", OPT_TEXT, offsetof(struct cell_session_options, remote_workspace) },
	{ "remote_ca", OPT_TEXT, offsetof(struct cell_session_options, remote_ca) },
	{ "remote_reopen", OPT_INT, offsetof(struct cell_session_options, remote_reopen) },
	{ "portable_values", OPT_INT, offsetof(struct cell_session_options, portable_values) },
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
	{ "network_disabled", OPT_INT, offsetof(struct cell_container_options, network_disabled) },
	{ "no_runtime_deps", OPT_INT, offsetof(struct cell_container_options, no_runtime_deps) },
	{ "memory_limit", OPT_INT64, offsetof(struct cell_container_options, memory_limit) },
	{ "cpu_quota", OPT_INT64, offsetof(struct cell_container_options, cpu_quota) },
	{ "pids_limit", OPT_INT64, offsetof(struct cell_container_options, pids_limit) },
	{ "startup_timeout_ms", OPT_INT64, offsetof(struct cell_container_options, startup_timeout_ms) },
	{ "deps", OPT_LIST, offsetof(struct cell_container_options, deps) },
	{ "sync_deps", OPT_INT, offsetof(struct cell_container_options, sync_deps) },
	{ "index_url", OPT_TEXT, offsetof(struct cell_container_options, index_url) },
	{ "wheel_dir", OPT_TEXT, offsetof(struct cell_container_options, wheel_dir) },
	{ "install_timeout_ms", OPT_INT64, offsetof(struct cell_container_options, install_timeout_ms) },
};

static int optional(PyObject *object, PyTypeObject *type, const char *what, void *ret)
{
	if (object == Py_None)
		return 0;
	if (check_type(object, type, what) < 0)
		return -1;
	if (!HANDLE(object)->pointer)
		return raise_message(CELL_E_CLOSED, 0, "it is closed");
	*(void **)ret = HANDLE(object)->pointer;
	return 0;
}

/* Takes "container", a dict, out of the options. */
static int take_container(PyObject *dict, struct cell_container_options *container, struct cell_session_options *options,
			  PyObject **ret_keep)
{
	PyObject *found = PyDict_Check(dict) ? PyDict_GetItemString(dict, "container") : NULL;
	if (!found)
		return 0;
	if (fill_options(found, container_options, COUNT(container_options), container, ret_keep) < 0)
		return -1;
	options->container = container;
	return PyDict_DelItemString(dict, "container");
}

/* Session(engine, options, space, policy, audit, port, token, mask); all but the first two may be None */
static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_container_options container = CELL_CONTAINER_OPTIONS_INIT;
	struct cell_session *session = NULL;
	struct cell_error err;
	PyObject *engine, *dict, *space, *policy, *audit, *port, *keep = NULL, *kept = NULL;
	unsigned long long token;
	unsigned mask;
	int rc;
	(void)kwargs;
	if (!PyArg_ParseTuple(args, "OOOOOOKI", &engine, &dict, &space, &policy, &audit, &port, &token, &mask) ||
	    check_type(engine, engine_type, "an Engine") < 0 ||
	    optional(space, space_type, "a Space", &options.space) < 0 ||
	    optional(policy, policy_type, "a Policy", &options.policy) < 0 ||
	    optional(audit, audit_type, "an Audit", &options.audit) < 0 ||
	    take_container(dict, &container, &options, &kept) < 0 ||
	    fill_options(dict, session_options, COUNT(session_options), &options, &keep) < 0) {
		Py_XDECREF(kept);
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
		Py_XDECREF(kept);
		return NULL;
	}
	rc = INSIDE(engine, cell_session_open(HANDLE(engine)->pointer, &options, &session, &err));
	Py_XDECREF(keep);
	Py_XDECREF(kept);
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
	Py_BEGIN_ALLOW_THREADS
	pid = cell_session_kernel_pid(HANDLE(self)->pointer);
	Py_END_ALLOW_THREADS
	leave(self);
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

/* start(code, timeout_ms, port, token, mask, look_us) -> run id, or the result of a cell that was over within look_us */
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
	if (!PyArg_ParseTuple(args, "s#LOKIi", &code, &size, &timeout_ms, &port, &token, &mask, &options.look_us) ||
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
	options.look_end = &stay.heard;
	stay = (struct stay){ .reg = options.look_us > 0 ? reg : NULL };
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

/* answer(id, accept, reason, args_json, always, look_us) */
static PyObject *session_answer(PyObject *self, PyObject *args)
{
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;
	struct cell_error err;
	unsigned long long id;
	if (!PyArg_ParseTuple(args, "Kpzzpi", &id, &answer.accept, &answer.reason, &answer.args, &answer.always, &answer.look_us) ||
	    enter(self) < 0)
		return NULL;
	answer.look_end = &stay.heard;
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

static PyMethodDef session_methods[] = {
	{ "close", handle_close, METH_NOARGS, NULL },
	{ "id", session_id, METH_NOARGS, NULL },
	{ "kernel_pid", session_kernel_pid, METH_NOARGS, NULL },
	{ "run", session_run, METH_VARARGS, NULL },
	{ "start", session_start, METH_VARARGS, NULL },
	{ "interrupt", session_interrupt, METH_NOARGS, NULL },
	{ "cancel", session_cancel, METH_VARARGS, NULL },
	{ "reset", session_reset, METH_NOARGS, NULL },
	{ "answer", session_answer, METH_VARARGS, NULL },
	{ "approvals", session_approvals, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

/* ---- types ---- */

static PyTypeObject *make_type(const char *name, newfunc new, PyMethodDef *methods)
{
	PyType_Slot slots[] = {
		{ Py_tp_new, new },
		{ Py_tp_dealloc, handle_dealloc },
		{ Py_tp_methods, methods },
		{ 0, NULL },
	};
	PyType_Spec spec = {
		.name = name, .basicsize = sizeof(struct handle), .flags = Py_TPFLAGS_DEFAULT, .slots = slots,
	};
	return (PyTypeObject *)PyType_FromSpec(&spec);
}

int add_handle_types(PyObject *module)
{
	engine_type = make_type("workcell._native.Engine", engine_new, engine_methods);
	space_type = make_type("workcell._native.Space", space_new, space_methods);
	policy_type = make_type("workcell._native.Policy", policy_new, policy_methods);
	audit_type = make_type("workcell._native.Audit", audit_new, audit_methods);
	session_type = make_type("workcell._native.Session", session_new, session_methods);
	if (add_type(module, "Engine", engine_type) < 0 || add_type(module, "Space", space_type) < 0 ||
	    add_type(module, "Policy", policy_type) < 0 || add_type(module, "Audit", audit_type) < 0)
		return -1;
	return add_type(module, "Session", session_type);
}
