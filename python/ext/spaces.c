/* Space: a storage, tools and packages, and the host's functions around their calls. */
#include "handle.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const struct option space_options[] = {
	{ "storage", OPT_TEXT, offsetof(struct cell_space_options, storage) },
	{ "workspace_id", OPT_TEXT, offsetof(struct cell_space_options, workspace_id) },
	{ "tools_dir", OPT_TEXT, offsetof(struct cell_space_options, tools_dir) },
	{ "cwd", OPT_TEXT, offsetof(struct cell_space_options, cwd) },
	{ "allow_runtime_deps", OPT_INT, offsetof(struct cell_space_options, allow_runtime_deps) },
	{ "python", OPT_TEXT, offsetof(struct cell_space_options, python) },
	{ "venv_dir", OPT_TEXT, offsetof(struct cell_space_options, venv_dir) },
	{ "cache_dir", OPT_TEXT, offsetof(struct cell_space_options, cache_dir) },
	{ "oauth_dir", OPT_TEXT, offsetof(struct cell_space_options, oauth_dir) },
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
PyObject *space_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct cell_space_options options = CELL_SPACE_OPTIONS_INIT;
	struct cell_space *space = NULL;
	struct cell_error err;
	PyObject *engine, *dict, *variables, *progress, *keep = NULL;
	int rc;
	(void)kwargs;
	if (!PyArg_ParseTuple(args, "OOOO", &engine, &dict, &variables, &progress) || check_type(engine, engine_type, "an Engine") < 0 ||
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

/* save_artifact(args_json, bytes) -> json */
static PyObject *space_save_artifact(PyObject *self, PyObject *args)
{
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	const char *json, *bytes;
	Py_ssize_t size;
	PyObject *value = NULL;
	int rc;
	if (!PyArg_ParseTuple(args, "sy#", &json, &bytes, &size) || enter(self) < 0)
		return NULL;
	rc = INSIDE(self, cell_artifact_save(HANDLE(self)->pointer, json, bytes, (size_t)size, NULL, NULL, &answer, &err));
	if (rc < 0)
		raise_message(err.code, err.sys, answer.message ? answer.message : err.msg);
	else
		value = text_of(answer.json, strlen(answer.json));
	cell_answer_finish(&answer);
	return value;
}

struct loading {
	char *bytes; /* NULL: in the answer */
	size_t size;
};

/* Without the GIL. */
static int take_bytes(void *arg, const void *bytes, size_t size, int64_t whole, struct cell_error *err)
{
	struct loading *loading = arg;
	if ((int64_t)size == whole) /* the only piece stays in the answer */
		return 0;
	if (!loading->bytes)
		loading->bytes = malloc((size_t)whole);
	if (!loading->bytes) {
		*err = (struct cell_error){ .code = CELL_E_NOMEM };
		snprintf(err->msg, sizeof err->msg, "out of memory for an artifact of %lld bytes", (long long)whole);
		return -1;
	}
	memcpy(loading->bytes + loading->size, bytes, size);
	loading->size += size;
	return 0;
}

/* load_artifact(args_json) -> (json, bytes) */
static PyObject *space_load_artifact(PyObject *self, PyObject *args)
{
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	struct loading loading = { NULL, 0 };
	const char *json;
	PyObject *value = NULL;
	int rc;
	if (!PyArg_ParseTuple(args, "s", &json) || enter(self) < 0)
		return NULL;
	rc = INSIDE(self, cell_artifact_load(HANDLE(self)->pointer, json, take_bytes, &loading, &answer, &err));
	if (rc < 0)
		raise_message(err.code, err.sys, answer.message ? answer.message : err.msg);
	else
		value = Py_BuildValue("(Ny#)", text_of(answer.json, strlen(answer.json)),
				      loading.bytes ? loading.bytes
				      : answer.raw  ? (const char *)answer.raw
						    : "",
				      (Py_ssize_t)(loading.bytes ? loading.size : answer.raw_size));
	cell_answer_finish(&answer);
	free(loading.bytes);
	return value;
}

/* add_tool(name, description, parameters, timeout_ms, port, token, supposed) */
static PyObject *space_add_tool(PyObject *self, PyObject *args)
{
	struct cell_tool tool = CELL_TOOL_INIT;
	struct cell_error err;
	PyObject *port;
	unsigned long long token;
	long long timeout_ms;
	if (!PyArg_ParseTuple(args, "szzLOKz", &tool.name, &tool.description, &tool.parameters, &timeout_ms, &port, &token,
			      &tool.supposed) ||
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

/* set_llm(port, token, concurrency, max_calls, max_tokens, max_cost, call_tokens, call_cost) */
static PyObject *space_set_llm(PyObject *self, PyObject *args)
{
	struct cell_llm llm = CELL_LLM_INIT;
	struct cell_error err;
	PyObject *port;
	unsigned long long token;
	long long calls, tokens, call_tokens;
	if (!PyArg_ParseTuple(args, "OKiLLdLd", &port, &token, &llm.concurrency, &calls, &tokens, &llm.max_cost, &call_tokens,
			      &llm.call_cost) ||
	    check_type(port, port_type, "a Port") < 0 || usable(HANDLE(self)) < 0)
		return NULL;
	struct reg *reg = add_reg(HANDLE(self), port, token, 0);
	if (!reg || enter(self) < 0)
		return NULL;
	llm.max_calls = calls;
	llm.max_tokens = tokens;
	llm.call_tokens = call_tokens;
	llm.fn = on_tool_call;
	llm.arg = reg;
	return none_or_error(INSIDE(self, cell_space_set_llm(HANDLE(self)->pointer, &llm, &err)), &err);
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

/* The thread that waits for the login, which has released the GIL. */
struct showing {
	PyObject *show;
	PyObject *type, *value, *traceback; /* of what it raised */
};

static int on_link(void *arg, const char *link)
{
	struct showing *showing = arg;
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *text = text_of(link, strlen(link));
	PyObject *answer = text ? PyObject_CallFunctionObjArgs(showing->show, text, NULL) : NULL;
	if (!answer)
		PyErr_Fetch(&showing->type, &showing->value, &showing->traceback);
	int rc = answer ? 0 : -1;
	Py_XDECREF(answer);
	Py_XDECREF(text);
	PyGILState_Release(state);
	return rc;
}

/* login(name, scope or None, show, timeout_ms) */
static PyObject *space_login(PyObject *self, PyObject *args)
{
	struct cell_error err;
	struct showing showing = { 0 };
	const char *name, *scope;
	long long timeout_ms;
	if (!PyArg_ParseTuple(args, "szOL", &name, &scope, &showing.show, &timeout_ms) || enter(self) < 0)
		return NULL;
	int rc = INSIDE(self, cell_space_login(HANDLE(self)->pointer, name, scope, on_link, &showing, timeout_ms, &err));
	if (!showing.type)
		return none_or_error(rc, &err);
	PyErr_Restore(showing.type, showing.value, showing.traceback);
	return NULL;
}

static PyObject *space_logout(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *name;
	if (!PyArg_ParseTuple(args, "s", &name) || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_space_logout(HANDLE(self)->pointer, name, &err)), &err);
}

/* on_tool_event(port, token) */
static PyObject *space_on_tool_event(PyObject *self, PyObject *args)
{
	struct cell_error err;
	PyObject *port;
	unsigned long long token;
	if (!PyArg_ParseTuple(args, "OK", &port, &token) || check_type(port, port_type, "a Port") < 0 || usable(HANDLE(self)) < 0)
		return NULL;
	struct reg *reg = add_reg(HANDLE(self), port, token, 0);
	if (!reg || enter(self) < 0)
		return NULL;
	return none_or_error(INSIDE(self, cell_space_on_tool_event(HANDLE(self)->pointer, on_tool_event, reg, &err)), &err);
}

PyMethodDef space_methods[] = {
	{ "close", handle_close, METH_NOARGS, NULL },
	{ "call", space_call, METH_VARARGS, NULL },
	{ "save_artifact", space_save_artifact, METH_VARARGS, NULL },
	{ "load_artifact", space_load_artifact, METH_VARARGS, NULL },
	{ "add_tool", space_add_tool, METH_VARARGS, NULL },
	{ "set_llm", space_set_llm, METH_VARARGS, NULL },
	{ "add_middleware", space_add_middleware, METH_VARARGS, NULL },
	{ "add_mcp", space_add_mcp, METH_VARARGS, NULL },
	{ "remove_mcp", space_remove_mcp, METH_VARARGS, NULL },
	{ "stop_servers", space_stop_servers, METH_NOARGS, NULL },
	{ "login", space_login, METH_VARARGS, NULL },
	{ "logout", space_logout, METH_VARARGS, NULL },
	{ "on_tool_event", space_on_tool_event, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};
