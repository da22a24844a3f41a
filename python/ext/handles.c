/* The common part of all handles, and the small ones: Engine, Policy, Audit. */
#include "handle.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

PyTypeObject *engine_type, *space_type, *session_type, *policy_type, *audit_type;

struct handle *new_handle(PyTypeObject *type, PyObject *engine)
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

int usable(struct handle *self)
{
	if (self->pid != getpid()) {
		raise_message(CELL_E_CLOSED, 0, "this object belongs to the parent process: open a new session in the forked child");
		return -1;
	}
	if (!self->pointer || self->closing)
		return raise_message(CELL_E_CLOSED, 0, Py_TYPE(self) == session_type ? "the session is closed" : "the object is closed");
	return self->engine ? usable(self->engine) : 0;
}

int enter(PyObject *object)
{
	struct handle *self = HANDLE(object);
	if (usable(self) < 0)
		return -1;
	self->users++;
	if (self->engine)
		self->engine->users++;
	return 0;
}

void leave(PyObject *object)
{
	struct handle *self = HANDLE(object);
	self->users--;
	if (self->engine)
		self->engine->users--;
}

PyObject *none_or_error(int rc, const struct cell_error *err)
{
	if (rc < 0)
		return raise_error(err), NULL;
	Py_RETURN_NONE;
}

/* Drops the handle's references, not the library's object. */
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
 * Other threads may be inside: a reset ends a running cell, which lets the next queued one run, so this is repeated until all have left.
 * Engines and spaces are only closed by an owner who has closed their users; a thread that is still inside (waiting for an installer while
 * the interpreter ends) keeps them, and the end of the process ends them.
 */
static bool wait_for_users(struct handle *self)
{
	struct cell_error err;
	bool session = Py_TYPE(self) == session_type;
	for (int round = 0; self->users > 0 && (session || round < 2000); round++) {
		void *pointer = self->pointer;
		Py_BEGIN_ALLOW_THREADS if (session)(void) cell_session_reset(pointer, &err);
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
	/* In a forked child, or when the engine has closed it already, there is nothing to close. */
	bool gone = self->pid != getpid() || (self->engine && !self->engine->pointer);
	if (!gone) {
		if (!wait_for_users(self))
			return;
		void *pointer = self->pointer;
		Py_BEGIN_ALLOW_THREADS close_pointer(Py_TYPE(self), pointer);
		Py_END_ALLOW_THREADS
	}
	self->pointer = NULL;
	if (self->pid == getpid())
		drop(self);
}

PyObject *handle_close(PyObject *self, PyObject *args)
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

PyObject *finish_new(struct handle *self, int rc, void *pointer, const struct cell_error *err)
{
	if (rc < 0) {
		raise_error(err);
		Py_DECREF(self);
		return NULL;
	}
	self->pointer = pointer;
	return (PyObject *)self;
}

int check_type(PyObject *object, PyTypeObject *type, const char *what)
{
	if (PyObject_TypeCheck(object, type))
		return 0;
	PyErr_Format(PyExc_TypeError, "expected %s", what);
	return -1;
}

struct reg *add_reg(struct handle *self, PyObject *port, unsigned long long token, unsigned mask)
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
	{ "points_bytes", OPT_INT64, offsetof(struct cell_engine_options, points_bytes) },
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
	Py_BEGIN_ALLOW_THREADS rc = cell_engine_create(&options, &engine, &err);
	Py_END_ALLOW_THREADS Py_XDECREF(keep);
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
		Py_BEGIN_ALLOW_THREADS rc = cell_executor_probe(HANDLE(self)->pointer, i, &info);
		Py_END_ALLOW_THREADS if (rc < 0) break;
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
	Py_BEGIN_ALLOW_THREADS if (strcmp(kind, "load") == 0)
	{
		rc = cell_policy_load(text, &policy, &err);
	}
	else if (strcmp(kind, "parse") == 0)
	{
		rc = cell_policy_parse(text, (size_t)size, name ? name : "policy", &policy, &err);
	}
	else
	{
		policy = cell_policy_of(strcmp(text, "allow") == 0 ? CELL_ALLOW : strcmp(text, "deny") == 0 ? CELL_DENY : CELL_ASK);
		if (!policy) {
			err.code = CELL_E_NOMEM;
			rc = -1;
		}
	}
	Py_END_ALLOW_THREADS return finish_new(self, rc, policy, &err);
}

/* decide(kind, tool, callable, adapter, args_json) -> (decision, rule, line, name, reason, doubt, doubt_why) */
static PyObject *policy_decide(PyObject *self, PyObject *args)
{
	struct cell_policy_subject subject = CELL_POLICY_SUBJECT_INIT;
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT;
	struct cell_error err;
	if (!PyArg_ParseTuple(args, "zzzzz", &subject.kind, &subject.tool, &subject.callable, &subject.adapter, &subject.args_json))
		return NULL;
	if (cell_policy_decide(HANDLE(self)->pointer, &subject, &verdict, &err) < 0)
		return raise_error(&err), NULL;
	return Py_BuildValue("(siizzzz)", cell_decision_word(verdict.decision), verdict.rule, verdict.line, verdict.name, verdict.reason,
			     verdict.doubt, verdict.doubt_why);
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
		.name = name,
		.basicsize = sizeof(struct handle),
		.flags = Py_TPFLAGS_DEFAULT,
		.slots = slots,
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
