/* Work of every cell with a value, which would take longer in Python than the value itself. */
#include "ext.h"

#include <string.h>

/* snprintf() is a lot of code, most of it not in any cache when a cell comes after a pause. */
size_t wc_put_number(char out[static WC_NUMBER_BYTES], long long number)
{
	char digits[WC_NUMBER_BYTES], *at = digits + sizeof digits;
	unsigned long long left = number < 0 ? 0 - (unsigned long long)number : (unsigned long long)number;
	do
		*--at = (char)('0' + left % 10);
	while ((left /= 10) > 0);
	if (number < 0)
		*--at = '-';
	size_t size = (size_t)(digits + sizeof digits - at);
	memcpy(out, at, size);
	return size;
}

size_t wc_put_plain(char out[static WC_NUMBER_BYTES], PyObject *value)
{
	int overflow = 0;
	long long number = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
	return PyLong_CheckExact(value) && !overflow ? wc_put_number(out, number) : 0;
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

int wc_remember(PyObject *ns, PyObject *out, PyObject *n, PyObject *value)
{
	static PyObject *names[3]; /* _ __ ___ */
	for (int i = 0; i < 3; i++)
		if (!names[i] && !(names[i] = PyUnicode_InternFromString(&"___"[2 - i])))
			return -1;
	char name[1 + WC_NUMBER_BYTES] = "_";
	PyObject *numbered = PyUnicode_FromStringAndSize(name, (Py_ssize_t)(1 + wc_put_number(name + 1, PyLong_AsLong(n))));
	bool ok = numbered && move(ns, names[1], names[2]) == 0 && move(ns, names[0], names[1]) == 0 &&
		  PyDict_SetItem(ns, names[0], value) == 0 && PyDict_SetItem(ns, numbered, value) == 0 &&
		  PyDict_SetItem(out, n, value) == 0;
	Py_XDECREF(numbered);
	return ok ? 0 : -1;
}

/* remember(ns, out, n, value) -> the value's text, if it is plain, or None */
PyObject *wc_remember_py(PyObject *self, PyObject *args)
{
	(void)self;
	PyObject *ns, *out, *n, *value;
	if (!PyArg_ParseTuple(args, "O!O!O!O", &PyDict_Type, &ns, &PyDict_Type, &out, &PyLong_Type, &n, &value) ||
	    wc_remember(ns, out, n, value) < 0)
		return NULL;
	char text[WC_NUMBER_BYTES];
	size_t size = wc_put_plain(text, value);
	if (size > 0)
		return PyBytes_FromStringAndSize(text, (Py_ssize_t)size);
	Py_RETURN_NONE;
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
}

/* Bytes of the word that the text begins with. Beyond ASCII, any character may belong to it: Python's compiler has the last word. */
static size_t word_size(const char *text, size_t size)
{
	size_t n = 0;
	while (n < size && (is_letter(text[n]) || text[n] == '_' || (text[n] >= '0' && text[n] <= '9') || (unsigned char)text[n] >= 0x80))
		n++;
	return n;
}

int wc_is_expression(const char *text, size_t size, PyObject *statements)
{
	if (size == 0 || is_space(text[0]))
		return false;
	for (size_t i = 0; i < size; i++)
		if (text[i] == '\n' || text[i] == '=' || text[i] == ';')
			return false;
	if (!is_letter(text[0]))
		return true;
	PyObject *word = PyUnicode_FromStringAndSize(text, (Py_ssize_t)word_size(text, size));
	int found = word ? PySet_Contains(statements, word) : -1;
	Py_XDECREF(word);
	return found < 0 ? -1 : !found;
}

/* is_expression(source, statements) -> bool */
PyObject *wc_is_expression_py(PyObject *self, PyObject *args)
{
	(void)self;
	PyObject *source, *statements;
	Py_ssize_t size;
	if (!PyArg_ParseTuple(args, "UO", &source, &statements))
		return NULL;
	const char *text = PyUnicode_AsUTF8AndSize(source, &size);
	if (!text) {
		PyErr_Clear(); /* lone surrogates: compile() says so */
		Py_RETURN_FALSE;
	}
	int is = wc_is_expression(text, (size_t)size, statements);
	return is < 0 ? NULL : PyBool_FromLong(is);
}
