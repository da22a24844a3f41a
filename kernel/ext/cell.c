/* Work of every cell with a value, which would take longer in Python than the value itself. */
#include "ext.h"

#include <stdio.h>

/* A repr that is also the value as JSON: an int of 64 bits. None for every other value. */
static PyObject *plain_text(PyObject *value)
{
	int overflow = 0;
	long long number = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
	if (PyLong_CheckExact(value) && !overflow) {
		char digits[24];
		snprintf(digits, sizeof digits, "%lld", number);
		return PyBytes_FromString(digits);
	}
	Py_INCREF(Py_None);
	return Py_None;
}

/* ns[to] = ns.get(from) */
static int move(PyObject *ns, PyObject *from, PyObject *to)
{
	PyObject *value = PyDict_GetItemWithError(ns, from);
	if (!value && PyErr_Occurred())
		return -1;
	if (!value)
		value = Py_None;
	Py_INCREF(value); /* the old value of `to` may end, and take this one with it */
	int rc = PyDict_SetItem(ns, to, value);
	Py_DECREF(value);
	return rc;
}

/*
 * remember(ns, out, n, value) -> bytes or None: stores the value of cell n under _, _n and Out[n], the previous ones under __ and ___.
 * Returns the value's text if it is plain.
 */
PyObject *wc_remember(PyObject *self, PyObject *args)
{
	(void)self;
	static PyObject *names[3]; /* _ __ ___ */
	PyObject *ns, *out, *n, *value;
	if (!PyArg_ParseTuple(args, "O!O!O!O", &PyDict_Type, &ns, &PyDict_Type, &out, &PyLong_Type, &n, &value))
		return NULL;
	for (int i = 0; i < 3; i++)
		if (!names[i] && !(names[i] = PyUnicode_InternFromString(&"___"[2 - i])))
			return NULL;
	PyObject *numbered = PyUnicode_FromFormat("_%ld", PyLong_AsLong(n));
	bool ok = numbered && move(ns, names[1], names[2]) == 0 && move(ns, names[0], names[1]) == 0 &&
		  PyDict_SetItem(ns, names[0], value) == 0 && PyDict_SetItem(ns, numbered, value) == 0 &&
		  PyDict_SetItem(out, n, value) == 0;
	Py_XDECREF(numbered);
	return ok ? plain_text(value) : NULL;
}
