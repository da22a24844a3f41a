/*
 * The plain cell, in one step of C: an expression, without callbacks around it, that gives nothing or a small int. Most of what such a cell
 * takes after a pause is memory that is in no cache: each function of Python that it does not go through is a dozen lines of it less.
 *
 * It does what Cells.run() does (cell.py), in the same order, and leaves the rest to it where the cell turns out to be another one.
 * cells["begun"] says how far it got:
 *
 *     None             nothing has happened
 *     False            it has a number and is in the history, but it is not an expression
 *     (value, None)    it has run
 *     (None, error)    it has failed
 */
#include "ext.h"

#include <string.h>

/* What plain_begin() has named; cells is the __dict__ of the Cells. NULL: every cell is for Cells.run(). */
static PyObject *cells, *ns, *out, *history, *interactive, *linecache, *shown, *statements, *compile, *eval, *flags;
static PyObject *texts[10];
enum { BEGUN, COUNT, FLAGS, HOOKED, CALLBACKS, CURRENT, CACHE, REGISTRY, PYPLOT, NEWLINE };
static PyObject *mode;
static bool running; /* the code of a cell, below no function of ours but Kernel.serve() */

/* ---- whether it is one ---- */

/* Callbacks for the beginning or the end of a cell, or an interactive layer whose callbacks Cells.find_hooks() has not looked at yet. */
static bool has_hooks(void)
{
	if (PyDict_GetItemWithError(interactive, texts[CURRENT]) != PyDict_GetItemWithError(cells, texts[HOOKED]))
		return true;
	PyObject *callbacks = PyDict_GetItemWithError(cells, texts[CALLBACKS]), *list;
	for (Py_ssize_t at = 0; callbacks && PyDict_Next(callbacks, &at, NULL, &list);)
		if (!PyList_Check(list) || PyList_Size(list) > 0)
			return true;
	return !callbacks;
}

/* Not for what only the interactive layer understands, and not for code that would be a coroutine. */
static bool may_be_plain(const char *source, size_t size)
{
	if (size == 0 || source[0] == '!' || source[0] == '%' || source[0] == '?')
		return false;
	/* memmem() would be code that is in no cache. */
	for (size_t i = 0; i + 5 <= size; i++)
		if (source[i] == 'a' && (memcmp(source + i, "await", 5) == 0 || memcmp(source + i, "async", 5) == 0))
			return false;
	return true;
}

/* ---- running it ---- */

/* In this order also where it fails half-way: the number counts. */
static PyObject *record(PyObject *source, PyObject **ret_number)
{
	PyObject *count = PyDict_GetItemWithError(cells, texts[COUNT]);
	long n = count ? PyLong_AsLong(count) + 1 : 0;
	char text[8 + WC_NUMBER_BYTES] = "<cell ";
	size_t size = 6 + wc_put_number(text + 6, n);
	text[size++] = '>';
	PyObject *number = PyLong_FromLong(n), *name = PyUnicode_FromStringAndSize(text, (Py_ssize_t)size);
	PyObject *line = PyUnicode_Concat(source, texts[NEWLINE]);
	/* A tuple of lines, not a list: nothing that the garbage collector would look at again and again. */
	PyObject *lines = line ? PyTuple_Pack(1, line) : NULL, *length = PyLong_FromSsize_t(PyUnicode_GetLength(source));
	PyObject *entry = lines && length && name ? PyTuple_Pack(4, length, Py_None, lines, name) : NULL;
	PyObject *cache = PyDict_GetItemWithError(linecache, texts[CACHE]);
	bool ok = number && entry && cache && PyDict_SetItem(cells, texts[COUNT], number) == 0 && PyList_Append(history, source) == 0 &&
		  PyObject_SetItem(cache, name, entry) == 0;
	Py_XDECREF(line);
	Py_XDECREF(lines);
	Py_XDECREF(length);
	Py_XDECREF(entry);
	if (ok) {
		*ret_number = number;
		return name;
	}
	if (!PyErr_Occurred())
		PyErr_SetString(PyExc_AttributeError, "module 'linecache' has no attribute 'cache'");
	Py_XDECREF(number);
	Py_XDECREF(name);
	return NULL;
}

/* NULL with an exception set: *ret_is_other if it is not an expression. */
static PyObject *evaluate(PyObject *source, PyObject *name, bool *ret_is_other)
{
	PyObject *code = PyObject_CallFunctionObjArgs(compile, source, name, mode, flags, Py_True, NULL);
	if (!code) {
		*ret_is_other = PyErr_ExceptionMatches(PyExc_SyntaxError) || PyErr_ExceptionMatches(PyExc_ValueError);
		return NULL;
	}
	PyObject *value = PyObject_CallFunctionObjArgs(eval, code, ns, NULL);
	Py_DECREF(code);
	return value;
}

/* ---- how it ends ---- */

/* For Cells.run(). Takes the reference. */
static int leave(PyObject *begun)
{
	int rc = begun ? PyDict_SetItem(cells, texts[BEGUN], begun) : -1;
	Py_XDECREF(begun);
	return rc;
}

static int leave_failed(bool is_other)
{
	if (is_other) {
		PyErr_Clear();
		return leave(PyBool_FromLong(0));
	}
	PyObject *type, *error, *traceback;
	PyErr_Fetch(&type, &error, &traceback);
	PyErr_NormalizeException(&type, &error, &traceback);
	if (traceback)
		PyException_SetTraceback(error, traceback);
	PyObject *begun = PyTuple_Pack(2, Py_None, error);
	Py_XDECREF(type);
	Py_XDECREF(error);
	Py_XDECREF(traceback);
	return leave(begun);
}

static int finish(uint32_t id, PyObject *number, PyObject *value)
{
	char text[WC_NUMBER_BYTES];
	size_t size = value == Py_None ? 0 : wc_put_plain(text, value);
	if ((size == 0 && value != Py_None) || has_hooks() || PyDict_GetItemWithError(PyImport_GetModuleDict(), texts[PYPLOT]))
		return leave(PyTuple_Pack(2, value, Py_None));
	if (size > 0 && wc_remember(ns, out, number, value) < 0)
		return leave_failed(false);
	if (wc_is_detached())
		return leave(PyTuple_Pack(2, value, Py_None));
	struct wc_result result = { text, text, size, size, size > 0, size > 0 };
	return wc_send_result(id, &result) < 0 ? -1 : 1;
}

int wc_run_plain(uint32_t id, const char *raw, size_t size)
{
	if (!cells || !may_be_plain(raw, size) || has_hooks() || PyDict_GetItemWithError(cells, texts[FLAGS]) != flags ||
	    PyDict_GetItemWithError(ns, texts[REGISTRY]))
		return 0;
	int is = wc_is_expression(raw, size, statements);
	PyObject *source = is > 0 ? PyUnicode_DecodeUTF8(raw, (Py_ssize_t)size, NULL) : NULL;
	if (!source || !wc_begin_run(id)) {
		PyErr_Clear(); /* not UTF-8, or interrupted before it began: Cells.run() says so */
		Py_XDECREF(source);
		return 0;
	}
	running = true;
	bool is_other = false;
	PyObject *number = NULL, *name = PySet_Clear(shown) == 0 ? record(source, &number) : NULL;
	PyObject *value = name ? evaluate(source, name, &is_other) : NULL;
	int done = value ? finish(id, number, value) : leave_failed(is_other);
	running = false;
	Py_DECREF(source);
	Py_XDECREF(name);
	Py_XDECREF(number);
	Py_XDECREF(value);
	return done;
}

/* plain(id, source) -> True: the cell has run and its RESULT is sent. False: it is for Cells.run(). */
PyObject *wc_plain(PyObject *self, PyObject *args)
{
	(void)self;
	unsigned int id;
	PyObject *bytes;
	char *raw;
	Py_ssize_t size;
	if (!PyArg_ParseTuple(args, "IO", &id, &bytes))
		return NULL;
	if (bytes == Py_None)
		Py_RETURN_FALSE;
	int done = PyBytes_AsStringAndSize(bytes, &raw, &size) < 0 ? -1 : wc_run_plain(id, raw, (size_t)size);
	return done < 0 ? NULL : PyBool_FromLong(done);
}

PyObject *wc_in_plain(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	return PyBool_FromLong(running);
}

/* leave_plain(): in a copy of this kernel; the cell that was running is not its own */
PyObject *wc_leave_plain(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	running = false;
	Py_RETURN_NONE;
}

/*
 * plain_begin(cells, interactive, linecache, shown, statements, compile, eval): the first three are the __dict__ of the Cells and of
 * two modules.
 */
PyObject *wc_plain_begin(PyObject *self, PyObject *args)
{
	(void)self;
	static const char *const names[] = {
		[BEGUN] = "begun",
		[COUNT] = "count",
		[FLAGS] = "flags",
		[HOOKED] = "hooked",
		[CALLBACKS] = "callbacks",
		[CURRENT] = "current",
		[CACHE] = "cache",
		[REGISTRY] = "__warningregistry__",
		[PYPLOT] = "matplotlib.pyplot",
		[NEWLINE] = "\n",
	};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!texts[i] && !(texts[i] = PyUnicode_InternFromString(names[i])))
			return NULL;
	if (!mode && !(mode = PyUnicode_InternFromString("eval")))
		return NULL;
	PyObject *given[7];
	if (!PyArg_ParseTuple(args, "O!O!O!O!OOO", &PyDict_Type, &given[0], &PyDict_Type, &given[1], &PyDict_Type, &given[2], &PySet_Type,
			      &given[3], &given[4], &given[5], &given[6]))
		return NULL;
	PyObject *own[] = { PyDict_GetItemString(given[0], "ns"), PyDict_GetItemString(given[0], "out"),
			    PyDict_GetItemString(given[0], "history"), PyDict_GetItemString(given[0], "flags") };
	if (!own[0] || !own[1] || !own[2] || !own[3]) {
		PyErr_SetString(PyExc_TypeError, "not the attributes of a Cells");
		return NULL;
	}
	for (size_t i = 0; i < 7; i++)
		Py_INCREF(given[i]); /* for the life of the process */
	for (size_t i = 0; i < 4; i++)
		Py_INCREF(own[i]);
	cells = given[0], interactive = given[1], linecache = given[2], shown = given[3], statements = given[4], compile = given[5];
	eval = given[6], ns = own[0], out = own[1], history = own[2], flags = own[3];
	Py_RETURN_NONE;
}
