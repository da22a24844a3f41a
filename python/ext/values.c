/* Results, and objects that are answered exactly once: tool calls, middleware calls, questions. */
#include "native.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

PyTypeObject *port_type, *result_type, *call_type, *before_type, *question_type;

struct wrapper {
	PyObject_HEAD void *pointer; /* NULL: answered */
	pid_t pid;
};

/* A forked child answers and removes nothing of its parent's. */
static void *own_pointer(PyObject *object)
{
	struct wrapper *self = (struct wrapper *)object;
	return self->pid == getpid() ? self->pointer : NULL;
}

PyObject *pointer_wrap(PyTypeObject *type, void *pointer)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct wrapper *self = (struct wrapper *)alloc(type, 0);
	if (self) {
		self->pointer = pointer;
		self->pid = getpid();
	}
	return (PyObject *)self;
}

static void free_wrapper(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
	Py_DECREF(type);
}

/* Only the library creates them. */
PyObject *no_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	(void)type;
	(void)args;
	(void)kwargs;
	PyErr_SetString(PyExc_TypeError, "this type cannot be instantiated");
	return NULL;
}

/* ---- results ---- */

PyObject *result_wrap(struct cell_result *result)
{
	PyObject *object = pointer_wrap(result_type, result);
	if (!object)
		cell_result_destroy(result);
	return object;
}

#define RESULT(object) ((struct cell_result *)((struct wrapper *)(object))->pointer)

static void result_dealloc(PyObject *object)
{
	cell_result_destroy(own_pointer(object));
	free_wrapper(object);
}

static PyObject *get_value_json(PyObject *self, void *closure)
{
	(void)closure;
	return text_or_none(cell_result_value_json(RESULT(self)));
}

static PyObject *get_repr(PyObject *self, void *closure)
{
	(void)closure;
	return text_or_none(cell_result_repr(RESULT(self)));
}

static PyObject *get_text(PyObject *self, void *which)
{
	struct cell_text text;
	if (which == (void *)1)
		cell_result_stdout(RESULT(self), &text);
	else if (which == (void *)2)
		cell_result_stderr(RESULT(self), &text);
	else
		cell_result_text(RESULT(self), &text);
	return text_of(text.data, text.size);
}

/* (stdout, stderr, text): bytes written, also those past the cap. */
static PyObject *get_totals(PyObject *self, void *closure)
{
	struct cell_text out, err, text;
	(void)closure;
	cell_result_stdout(RESULT(self), &out);
	cell_result_stderr(RESULT(self), &err);
	cell_result_text(RESULT(self), &text);
	return Py_BuildValue("(KKK)", (unsigned long long)out.total, (unsigned long long)err.total, (unsigned long long)text.total);
}

/* (code word, type, message, traceback, limit, max, used, retry) or None */
static PyObject *get_error(PyObject *self, void *closure)
{
	(void)closure;
	const struct cell_outcome *outcome = cell_result_error(RESULT(self));
	if (!outcome)
		Py_RETURN_NONE;
	PyObject *retry = outcome->retry == CELL_RETRY_YES ? Py_True : outcome->retry == CELL_RETRY_NO ? Py_False : Py_None;
	return Py_BuildValue("(sNNNzKKO)", cell_code_word(outcome->code), text_or_none(outcome->type), text_or_none(outcome->message),
			     text_or_none(outcome->traceback), outcome->limit, (unsigned long long)outcome->limit_max,
			     (unsigned long long)outcome->limit_used, retry);
}

static PyObject *get_duration(PyObject *self, void *closure)
{
	(void)closure;
	return PyFloat_FromDouble(cell_result_duration_ms(RESULT(self)));
}

static PyObject *get_kept(PyObject *self, void *closure)
{
	(void)closure;
	return PyBool_FromLong(cell_result_state_kept(RESULT(self)));
}

static PyObject *get_state(PyObject *self, void *closure)
{
	(void)closure;
	return text_or_none(cell_result_state(RESULT(self)));
}

static PyObject *get_durable(PyObject *self, void *closure)
{
	(void)closure;
	int durable = cell_result_durable(RESULT(self));
	if (durable < 0)
		Py_RETURN_NONE;
	return PyBool_FromLong(durable);
}

static PyObject *get_isolation(PyObject *self, void *closure)
{
	(void)closure;
	return text_or_none(cell_result_isolation_json(RESULT(self)));
}

static PyObject *get_spill(PyObject *self, void *closure)
{
	(void)closure;
	return text_or_none(cell_result_spill_path(RESULT(self)));
}

static PyObject *parts_list(const struct cell_mime_part *parts, size_t n)
{
	PyObject *list = PyList_New((Py_ssize_t)n);
	for (size_t i = 0; list && i < n; i++) {
		PyObject *pair = Py_BuildValue("(sy#)", parts[i].type, (const char *)parts[i].data, (Py_ssize_t)parts[i].size);
		if (!pair) {
			Py_DECREF(list);
			return NULL;
		}
		PyList_SetItem(list, (Py_ssize_t)i, pair);
	}
	return list;
}

static PyObject *get_mime(PyObject *self, void *closure)
{
	const struct cell_mime_part *parts = NULL;
	(void)closure;
	size_t n = cell_result_mime(RESULT(self), &parts);
	return parts_list(parts, n);
}

static PyObject *get_displays(PyObject *self, void *closure)
{
	(void)closure;
	size_t n = cell_result_display_count(RESULT(self));
	PyObject *list = PyList_New((Py_ssize_t)n);
	for (size_t i = 0; list && i < n; i++) {
		const struct cell_mime_part *parts = NULL;
		size_t count = cell_result_display(RESULT(self), i, &parts);
		PyObject *display = parts_list(parts, count);
		if (!display) {
			Py_DECREF(list);
			return NULL;
		}
		PyList_SetItem(list, (Py_ssize_t)i, display);
	}
	return list;
}

static PyObject *text_list(const struct cell_result *result, size_t n, const char *(*get)(const struct cell_result *result, size_t i))
{
	PyObject *list = PyList_New((Py_ssize_t)n);
	for (size_t i = 0; list && i < n; i++) {
		PyObject *text = text_or_none(get(result, i));
		if (!text) {
			Py_DECREF(list);
			return NULL;
		}
		PyList_SetItem(list, (Py_ssize_t)i, text);
	}
	return list;
}

static PyObject *get_images(PyObject *self, void *closure)
{
	(void)closure;
	return text_list(RESULT(self), cell_result_image_count(RESULT(self)), cell_result_image);
}

static PyObject *get_changes(PyObject *self, void *closure)
{
	(void)closure;
	return text_or_none(cell_result_changes_json(RESULT(self)));
}

static PyObject *get_notices(PyObject *self, void *closure)
{
	(void)closure;
	return text_list(RESULT(self), cell_result_notice_count(RESULT(self)), cell_result_notice);
}

static PyObject *result_json(PyObject *self, PyObject *args)
{
	(void)args;
	char *json = cell_result_json(RESULT(self));
	if (!json)
		return PyErr_NoMemory();
	PyObject *text = text_of(json, strlen(json));
	free(json);
	return text;
}

static PyObject *result_keep_spill(PyObject *self, PyObject *args)
{
	(void)args;
	cell_result_keep_spill(RESULT(self));
	Py_RETURN_NONE;
}

static PyGetSetDef result_getset[] = {
	{ "value_json", get_value_json, NULL, NULL, NULL },
	{ "repr", get_repr, NULL, NULL, NULL },
	{ "stdout", get_text, NULL, NULL, (void *)1 },
	{ "stderr", get_text, NULL, NULL, (void *)2 },
	{ "text", get_text, NULL, NULL, (void *)3 },
	{ "totals", get_totals, NULL, NULL, NULL },
	{ "error", get_error, NULL, NULL, NULL },
	{ "duration_ms", get_duration, NULL, NULL, NULL },
	{ "state_kept", get_kept, NULL, NULL, NULL },
	{ "state", get_state, NULL, NULL, NULL },
	{ "durable", get_durable, NULL, NULL, NULL },
	{ "isolation", get_isolation, NULL, NULL, NULL },
	{ "spill_path", get_spill, NULL, NULL, NULL },
	{ "mime", get_mime, NULL, NULL, NULL },
	{ "displays", get_displays, NULL, NULL, NULL },
	{ "images", get_images, NULL, NULL, NULL },
	{ "notices", get_notices, NULL, NULL, NULL },
	{ "changes", get_changes, NULL, NULL, NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyMethodDef result_methods[] = {
	{ "json", result_json, METH_NOARGS, NULL },
	{ "keep_spill", result_keep_spill, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot result_slots[] = {
	{ Py_tp_new, no_new }, { Py_tp_dealloc, result_dealloc }, { Py_tp_getset, result_getset }, { Py_tp_methods, result_methods },
	{ 0, NULL },
};

static PyType_Spec result_spec = {
	.name = "workcell._native.Result",
	.basicsize = sizeof(struct wrapper),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = result_slots,
};

int add_result_type(PyObject *module)
{
	result_type = (PyTypeObject *)PyType_FromSpec(&result_spec);
	return add_type(module, "Result", result_type);
}

/* ---- objects that are answered once ---- */

static void *take_pointer(PyObject *object)
{
	struct wrapper *self = (struct wrapper *)object;
	void *pointer = self->pointer;
	self->pointer = NULL;
	if (!pointer)
		PyErr_SetString(PyExc_RuntimeError, "this was already answered");
	return pointer;
}

/* An object that is dropped unanswered must still get an answer. */
static void call_dealloc(PyObject *object)
{
	void *call = own_pointer(object);
	if (call)
		cell_tool_call_fail(call, "the host's function was dropped without an answer");
	free_wrapper(object);
}

static PyObject *call_cancelled(PyObject *self, PyObject *args)
{
	struct wrapper *wrapper = (struct wrapper *)self;
	(void)args;
	return PyBool_FromLong(!wrapper->pointer || cell_tool_call_cancelled(wrapper->pointer));
}

static PyObject *answer_with(PyObject *self, PyObject *args, void (*answer)(void *call, const char *data, size_t size))
{
	const char *data;
	Py_ssize_t size;
	if (!PyArg_ParseTuple(args, "s#", &data, &size))
		return NULL;
	void *pointer = take_pointer(self);
	if (!pointer)
		return NULL;
	answer(pointer, data, (size_t)size);
	Py_RETURN_NONE;
}

static void call_json(void *call, const char *data, size_t size)
{
	cell_tool_call_answer_json(call, data, size);
}

static void call_text(void *call, const char *data, size_t size)
{
	cell_tool_call_answer_text(call, data, size);
}

static void call_failed(void *call, const char *data, size_t size)
{
	(void)size;
	cell_tool_call_fail(call, data);
}

static PyObject *call_answer_json(PyObject *self, PyObject *args)
{
	return answer_with(self, args, call_json);
}

static PyObject *call_answer_text(PyObject *self, PyObject *args)
{
	return answer_with(self, args, call_text);
}

static PyObject *call_fail(PyObject *self, PyObject *args)
{
	return answer_with(self, args, call_failed);
}

static PyMethodDef call_methods[] = {
	{ "cancelled", call_cancelled, METH_NOARGS, NULL },
	{ "answer_json", call_answer_json, METH_VARARGS, NULL },
	{ "answer_text", call_answer_text, METH_VARARGS, NULL },
	{ "fail", call_fail, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot call_slots[] = {
	{ Py_tp_new, no_new },
	{ Py_tp_dealloc, call_dealloc },
	{ Py_tp_methods, call_methods },
	{ 0, NULL },
};

static PyType_Spec call_spec = {
	.name = "workcell._native.ToolCall",
	.basicsize = sizeof(struct wrapper),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = call_slots,
};

static void before_dealloc(PyObject *object)
{
	void *call = own_pointer(object);
	if (call)
		cell_middleware_fail(call, "the host's middleware was dropped without an answer");
	free_wrapper(object);
}

static void before_json(void *call, const char *data, size_t size)
{
	cell_middleware_answer_json(call, data, size);
}

static void before_text(void *call, const char *data, size_t size)
{
	cell_middleware_answer_text(call, data, size);
}

static void before_failed(void *call, const char *data, size_t size)
{
	(void)size;
	cell_middleware_fail(call, data);
}

static PyObject *before_answer_json(PyObject *self, PyObject *args)
{
	return answer_with(self, args, before_json);
}

static PyObject *before_answer_text(PyObject *self, PyObject *args)
{
	return answer_with(self, args, before_text);
}

static PyObject *before_fail(PyObject *self, PyObject *args)
{
	return answer_with(self, args, before_failed);
}

static PyObject *before_set_args(PyObject *self, PyObject *args)
{
	struct wrapper *wrapper = (struct wrapper *)self;
	struct cell_error err;
	const char *data;
	Py_ssize_t size;
	if (!PyArg_ParseTuple(args, "s#", &data, &size))
		return NULL;
	if (wrapper->pointer && cell_middleware_set_args(wrapper->pointer, data, (size_t)size, &err) < 0)
		return raise_error(&err), NULL;
	Py_RETURN_NONE;
}

static PyObject *before_next(PyObject *self, PyObject *args)
{
	(void)args;
	void *pointer = take_pointer(self);
	if (!pointer)
		return NULL;
	cell_middleware_next(pointer);
	Py_RETURN_NONE;
}

static PyMethodDef before_methods[] = {
	{ "answer_json", before_answer_json, METH_VARARGS, NULL },
	{ "answer_text", before_answer_text, METH_VARARGS, NULL },
	{ "fail", before_fail, METH_VARARGS, NULL },
	{ "set_args", before_set_args, METH_VARARGS, NULL },
	{ "next", before_next, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot before_slots[] = {
	{ Py_tp_new, no_new },
	{ Py_tp_dealloc, before_dealloc },
	{ Py_tp_methods, before_methods },
	{ 0, NULL },
};

static PyType_Spec before_spec = {
	.name = "workcell._native.MiddlewareCall",
	.basicsize = sizeof(struct wrapper),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = before_slots,
};

static void question_dealloc(PyObject *object)
{
	void *question = own_pointer(object);
	struct cell_error err;
	if (question)
		(void)cell_question_answer(question, "cancel", NULL, &err);
	free_wrapper(object);
}

static PyObject *question_answer(PyObject *self, PyObject *args)
{
	struct wrapper *wrapper = (struct wrapper *)self;
	struct cell_error err;
	const char *action, *content;
	if (!PyArg_ParseTuple(args, "sz", &action, &content))
		return NULL;
	if (!wrapper->pointer) {
		PyErr_SetString(PyExc_RuntimeError, "this was already answered");
		return NULL;
	}
	if (cell_question_answer(wrapper->pointer, action, content, &err) < 0)
		return raise_error(&err), NULL;
	wrapper->pointer = NULL;
	Py_RETURN_NONE;
}

static PyMethodDef question_methods[] = {
	{ "answer", question_answer, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot question_slots[] = {
	{ Py_tp_new, no_new },
	{ Py_tp_dealloc, question_dealloc },
	{ Py_tp_methods, question_methods },
	{ 0, NULL },
};

static PyType_Spec question_spec = {
	.name = "workcell._native.Question",
	.basicsize = sizeof(struct wrapper),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = question_slots,
};

int add_call_types(PyObject *module)
{
	call_type = (PyTypeObject *)PyType_FromSpec(&call_spec);
	before_type = (PyTypeObject *)PyType_FromSpec(&before_spec);
	question_type = (PyTypeObject *)PyType_FromSpec(&question_spec);
	if (add_type(module, "ToolCall", call_type) < 0 || add_type(module, "MiddlewareCall", before_type) < 0)
		return -1;
	return add_type(module, "Question", question_type);
}
