/*
 * The variables of a session before and after a cell, for changes.py. Two passes over the namespace that run no code of the session: values are
 * compared by identity, and only the interpreter's own containers are asked for their length.
 */
#include "ext.h"

#define FIELDS 3 /* name, value, length */

/* Names of the session's own; no code may run here, and a subclass of str could bring some. */
static bool is_variable(PyObject *name)
{
	return PyUnicode_CheckExact(name) && PyUnicode_GetLength(name) > 0 && PyUnicode_ReadChar(name, 0) != '_';
}

static Py_ssize_t length_of(PyObject *value)
{
	PyTypeObject *type = Py_TYPE(value);
	return type == &PyList_Type        ? PyList_Size(value)
	       : type == &PyDict_Type      ? PyDict_Size(value)
	       : type == &PySet_Type       ? PySet_Size(value)
	       : type == &PyByteArray_Type ? PyByteArray_Size(value)
					   : 0;
}

static int append_new(PyObject *list, PyObject *item)
{
	int rc = item ? PyList_Append(list, item) : -1;
	Py_XDECREF(item);
	return rc;
}

/* names_before(dict) -> [name, value, length, name, ...]; it keeps the values: an address that is used again would look like the same object */
PyObject *wc_names_before(PyObject *self, PyObject *ns)
{
	(void)self;
	PyObject *name, *value, *list = PyDict_Check(ns) ? PyList_New(0) : PyErr_Format(PyExc_TypeError, "not a dict");
	for (Py_ssize_t at = 0; list && PyDict_Next(ns, &at, &name, &value);)
		if (is_variable(name) && (PyList_Append(list, name) < 0 || PyList_Append(list, value) < 0 ||
					  append_new(list, PyLong_FromSsize_t(length_of(value))) < 0))
			Py_CLEAR(list);
	return list;
}

/*
 * names_differ(names_before(dict), dict) -> [name, value, whether it was there, name, ...] of variables that are new or differ. None: variables
 * were removed, or are in another order.
 */
PyObject *wc_names_differ(PyObject *self, PyObject *args)
{
	(void)self;
	PyObject *before, *ns, *name, *value;
	if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &before, &PyDict_Type, &ns))
		return NULL;
	PyObject *list = PyList_New(0);
	Py_ssize_t i = 0, n = PyList_Size(before);
	for (Py_ssize_t at = 0; list && PyDict_Next(ns, &at, &name, &value);) {
		if (!is_variable(name))
			continue;
		bool was_there = i + FIELDS <= n;
		if (was_there && PyList_GetItem(before, i) != name) {
			i = -1;
			break;
		}
		bool same = was_there && PyList_GetItem(before, i + 1) == value &&
			    PyLong_AsSsize_t(PyList_GetItem(before, i + 2)) == length_of(value);
		i += was_there ? FIELDS : 0;
		if (!same && (PyList_Append(list, name) < 0 || PyList_Append(list, value) < 0 ||
			      PyList_Append(list, was_there ? Py_True : Py_False) < 0))
			Py_CLEAR(list);
	}
	if (!list || i == n)
		return list;
	Py_DECREF(list);
	Py_RETURN_NONE;
}
