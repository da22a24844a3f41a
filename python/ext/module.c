/* The module: its functions, errors, and options from dicts. */
#include "native.h"

#include <stdlib.h>
#include <string.h>

PyObject *native_error;

int raise_message(int code, int sys, const char *message)
{
	PyObject *text = text_of(message, strlen(message));
	PyObject *args = text ? Py_BuildValue("(Nsii)", text, cell_code_word(code), code, sys) : NULL;
	if (args) {
		PyErr_SetObject(native_error, args);
		Py_DECREF(args);
	}
	return -1;
}

int raise_error(const struct cell_error *err)
{
	return raise_message(err->code, err->sys, err->msg);
}

PyObject *text_of(const char *text, size_t size)
{
	return PyUnicode_DecodeUTF8(text, (Py_ssize_t)size, "replace");
}

PyObject *text_or_none(const char *text)
{
	if (!text)
		Py_RETURN_NONE;
	return text_of(text, strlen(text));
}

int add_type(PyObject *module, const char *name, PyTypeObject *type)
{
	if (!type)
		return -1;
	Py_INCREF(type);
	return PyModule_AddObject(module, name, (PyObject *)type);
}

/* ---- options ---- */

/* UTF-8 of a str, held by the list. */
static const char *kept_text(PyObject *value, PyObject *keep)
{
	PyObject *bytes = PyUnicode_Check(value) ? PyUnicode_AsEncodedString(value, "utf-8", "surrogateescape") : NULL;
	if (!bytes) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_TypeError, "expected str");
		return NULL;
	}
	int rc = PyList_Append(keep, bytes);
	const char *text = PyBytes_AsString(bytes);
	if (rc == 0 && strlen(text) != (size_t)PyBytes_Size(bytes)) {
		PyErr_SetString(PyExc_ValueError, "embedded null character");
		rc = -1;
	}
	Py_DECREF(bytes); /* the list has it */
	return rc < 0 ? NULL : text;
}

static void free_array(PyObject *capsule)
{
	free(PyCapsule_GetPointer(capsule, NULL));
}

static int set_list(PyObject *value, PyObject *keep, void *field)
{
	Py_ssize_t n = PyList_Size(value);
	if (n < 0)
		return -1;
	const char **array = calloc((size_t)n + 1, sizeof *array);
	PyObject *capsule = array ? PyCapsule_New((void *)array, NULL, free_array) : NULL;
	if (!capsule) {
		free(array);
		if (!PyErr_Occurred())
			PyErr_NoMemory();
		return -1;
	}
	int rc = PyList_Append(keep, capsule);
	Py_DECREF(capsule);
	for (Py_ssize_t i = 0; rc == 0 && i < n; i++) {
		array[i] = kept_text(PyList_GetItem(value, i), keep);
		rc = array[i] ? 0 : -1;
	}
	*(const char ***)field = array;
	return rc;
}

static int set_option(const struct option *option, PyObject *value, void *out, PyObject *keep)
{
	void *field = (char *)out + option->offset;
	long long number = 0;
	if (value == Py_None)
		return 0; /* the default */
	if (option->kind == OPT_LIST)
		return set_list(value, keep, field);
	if (option->kind == OPT_TEXT) {
		const char *text = kept_text(value, keep);
		*(const char **)field = text;
		return text ? 0 : -1;
	}
	number = PyLong_AsLongLong(value);
	if (number == -1 && PyErr_Occurred())
		return -1;
	if (option->kind == OPT_INT64)
		*(int64_t *)field = number;
	else if (option->kind == OPT_INT)
		*(int *)field = (int)number;
	else
		*(unsigned *)field = (unsigned)number;
	return 0;
}

int fill_options(PyObject *dict, const struct option *table, size_t count, void *out, PyObject **ret_keep)
{
	PyObject *keep = PyList_New(0), *key, *value;
	Py_ssize_t position = 0;
	if (!keep)
		return -1;
	if (!PyDict_Check(dict)) {
		PyErr_SetString(PyExc_TypeError, "options must be a dict");
		goto fail;
	}
	while (PyDict_Next(dict, &position, &key, &value)) {
		const struct option *found = NULL;
		for (size_t i = 0; i < count && !found; i++)
			if (PyUnicode_CompareWithASCIIString(key, table[i].name) == 0)
				found = &table[i];
		if (!found) {
			PyErr_Format(PyExc_TypeError, "this build of Workcell does not know the option %R", key);
			goto fail;
		}
		if (set_option(found, value, out, keep) < 0)
			goto fail;
	}
	*ret_keep = keep;
	return 0;
fail:
	Py_DECREF(keep);
	return -1;
}

/* ---- functions ---- */

static PyObject *version(PyObject *self, PyObject *args)
{
	(void)self;
	(void)args;
	return PyUnicode_FromString(cell_version());
}

static PyObject *taken_text(char *text)
{
	PyObject *object = text_of(text, strlen(text));
	free(text);
	return object;
}

/* saved_page(place, owner, key or None, after or None, limit) -> json */
static PyObject *saved_page(PyObject *self, PyObject *args)
{
	const char *place, *owner, *key, *after;
	struct cell_error err;
	Py_ssize_t limit;
	char *json;
	(void)self;
	if (!PyArg_ParseTuple(args, "sszzn", &place, &owner, &key, &after, &limit))
		return NULL;
	Py_BEGIN_ALLOW_THREADS json = cell_saved_page(place, owner, key, after, (size_t)limit, &err);
	Py_END_ALLOW_THREADS if (!json) return raise_error(&err), NULL;
	return taken_text(json);
}

/* saved_remove(place, owner, key or None, id) */
static PyObject *saved_remove(PyObject *self, PyObject *args)
{
	const char *place, *owner, *key, *id;
	struct cell_error err;
	int rc;
	(void)self;
	if (!PyArg_ParseTuple(args, "sszs", &place, &owner, &key, &id))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = cell_saved_remove(place, owner, key, id, &err);
	Py_END_ALLOW_THREADS if (rc < 0) return raise_error(&err), NULL;
	Py_RETURN_NONE;
}

/* notebook_cells(bytes) -> json */
static PyObject *notebook_cells(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *data;
	Py_ssize_t size;
	char *json;
	(void)self;
	if (!PyArg_ParseTuple(args, "y#", &data, &size))
		return NULL;
	Py_BEGIN_ALLOW_THREADS json = cell_notebook_cells(data, (size_t)size, &err);
	Py_END_ALLOW_THREADS if (!json) return raise_error(&err), NULL;
	PyObject *text = PyUnicode_FromString(json);
	free(json);
	return text;
}

/* recording_notebook(path) -> json */
static PyObject *recording_notebook(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *path;
	char *json;
	(void)self;
	if (!PyArg_ParseTuple(args, "s", &path))
		return NULL;
	Py_BEGIN_ALLOW_THREADS json = cell_recording_notebook(path, &err);
	Py_END_ALLOW_THREADS if (!json) return raise_error(&err), NULL;
	PyObject *text = PyUnicode_FromString(json);
	free(json);
	return text;
}

/* gen_mcp(server, tools_json, out_dir, async_api) -> json */
static PyObject *gen_mcp(PyObject *self, PyObject *args)
{
	struct cell_gen_options options = CELL_GEN_OPTIONS_INIT;
	struct cell_error err;
	char *json = NULL;
	int rc;
	(void)self;
	if (!PyArg_ParseTuple(args, "sszp", &options.server, &options.tools_json, &options.out_dir, &options.async_api))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = cell_gen_mcp(&options, &json, &err);
	Py_END_ALLOW_THREADS return rc < 0 ? (raise_error(&err), NULL) : taken_text(json);
}

/* find_python(version, path) -> path */
static PyObject *find_python(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *wanted, *path;
	char *found = NULL;
	int rc;
	(void)self;
	if (!PyArg_ParseTuple(args, "sz", &wanted, &path))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = cell_find_python(wanted, path, &found, &err);
	Py_END_ALLOW_THREADS return rc < 0 ? (raise_error(&err), NULL) : taken_text(found);
}

/* policy_check(path) -> json */
static PyObject *policy_check(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *path;
	char *json = NULL;
	int rc;
	(void)self;
	if (!PyArg_ParseTuple(args, "s", &path))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = cell_policy_check(path, &json, &err);
	Py_END_ALLOW_THREADS return rc < 0 ? (raise_error(&err), NULL) : taken_text(json);
}

/* sandbox_explain(policy, workspace_mode, cwd, python) -> text */
static PyObject *sandbox_explain(PyObject *self, PyObject *args)
{
	struct cell_sandbox_options options = CELL_SANDBOX_OPTIONS_INIT;
	struct cell_error err;
	char *text = NULL;
	int rc;
	(void)self;
	if (!PyArg_ParseTuple(args, "zzzz", &options.policy, &options.workspace_mode, &options.cwd, &options.python))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = cell_sandbox_explain(&options, &text, &err);
	Py_END_ALLOW_THREADS return rc < 0 ? (raise_error(&err), NULL) : taken_text(text);
}

/* folder_pack(folder, fd) -> bytes */
static PyObject *folder_pack(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *folder;
	int fd, rc;
	int64_t bytes = 0;
	(void)self;
	if (!PyArg_ParseTuple(args, "si", &folder, &fd))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = cell_folder_pack(folder, fd, &bytes, &err);
	Py_END_ALLOW_THREADS if (rc < 0)
	{
		raise_error(&err);
		return NULL;
	}
	return PyLong_FromLongLong(bytes);
}

/* folder_unpack(folder, fd) -> links that were left out */
static PyObject *folder_unpack(PyObject *self, PyObject *args)
{
	struct cell_error err;
	const char *folder;
	int fd, rc;
	size_t left_out = 0;
	(void)self;
	if (!PyArg_ParseTuple(args, "si", &folder, &fd))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = cell_folder_unpack(folder, fd, &left_out, &err);
	Py_END_ALLOW_THREADS if (rc < 0)
	{
		raise_error(&err);
		return NULL;
	}
	return PyLong_FromSize_t(left_out);
}

static PyMethodDef functions[] = {
	{ "folder_pack", folder_pack, METH_VARARGS, NULL },
	{ "folder_unpack", folder_unpack, METH_VARARGS, NULL },
	{ "version", version, METH_NOARGS, NULL },
	{ "gen_mcp", gen_mcp, METH_VARARGS, NULL },
	{ "replay", session_replay, METH_VARARGS, NULL },
	{ "saved_page", saved_page, METH_VARARGS, NULL },
	{ "saved_remove", saved_remove, METH_VARARGS, NULL },
	{ "notebook_cells", notebook_cells, METH_VARARGS, NULL },
	{ "recording_notebook", recording_notebook, METH_VARARGS, NULL },
	{ "find_python", find_python, METH_VARARGS, NULL },
	{ "policy_check", policy_check, METH_VARARGS, NULL },
	{ "sandbox_explain", sandbox_explain, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT, .m_name = "workcell._native", .m_doc = "libworkcell for Python; use the package workcell.",
	.m_size = -1,          .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void)
{
	PyObject *module = PyModule_Create(&definition);
	if (!module)
		return NULL;
	native_error = PyErr_NewException("workcell._native.NativeError", NULL, NULL);
	if (!native_error || PyModule_AddObject(module, "NativeError", native_error) < 0)
		goto fail;
	Py_INCREF(native_error);
	if (add_port_type(module) < 0 || add_result_type(module) < 0 || add_call_types(module) < 0 || add_handle_types(module) < 0)
		goto fail;
	return module;
fail:
	Py_DECREF(module);
	return NULL;
}
