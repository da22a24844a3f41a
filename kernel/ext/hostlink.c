/*
 * The kernel's side of wire/inproc_abi.h. For a kernel in the host's own process, a Link replaces the functions of _workcell.c and has
 * their names, so that the kernel's package works with both.
 *
 * Every function that may wait is called without the GIL.
 */
#include "ext.h"

#include <pythread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct link {
	PyObject_HEAD struct cell_inproc *kernel;
};

static struct cell_inproc *kernel_of(PyObject *self)
{
	return ((struct link *)self)->kernel;
}

/* ---- results of the functions ---- */

/* NULL, with the exception for the status. */
PyObject *wc_link_fail(enum cell_inproc_status status)
{
	if (status == CELL_INPROC_INTERRUPTED) {
		/* It is raised here; the interpreter must not raise it again. */
		PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), NULL);
		PyErr_SetNone(PyExc_KeyboardInterrupt);
		return NULL;
	}
	if (status == CELL_INPROC_NO_MEMORY)
		return PyErr_NoMemory();
	if (status == CELL_INPROC_REFUSED) {
		PyErr_SetString(PyExc_RuntimeError, "the host rejected the message as malformed");
		return NULL;
	}
	PyObject *module = PyImport_ImportModule("workcell_kernel.inproc");
	PyObject *done = module ? PyObject_CallMethod(module, "fail", "i", (int)status) : NULL;
	Py_XDECREF(module);
	Py_XDECREF(done);
	return NULL;
}

static bool is_main(const struct cell_inproc *kernel)
{
	return PyThread_get_thread_ident() == kernel->main_thread;
}

enum cell_inproc_status wc_link_ask(PyObject *link, const struct cell_frame *call, struct cell_inproc_message **ret_reply)
{
	struct cell_inproc *kernel = kernel_of(link);
	enum cell_inproc_status status;
	int main = is_main(kernel);
	kernel->main_asks += main;
	Py_BEGIN_ALLOW_THREADS status = kernel->ask(kernel, call, ret_reply);
	Py_END_ALLOW_THREADS kernel->main_asks -= main;
	return status;
}

/* (type, id, json, raw); the message is freed. */
static PyObject *take_message(struct cell_inproc_message *message)
{
	PyObject *json = NULL, *raw = NULL, *made = NULL;
	if (message->json_size > 0)
		json = PyBytes_FromStringAndSize(message->data, (Py_ssize_t)message->json_size);
	else
		Py_INCREF(json = Py_None);
	if (message->raw_size > 0)
		raw = PyBytes_FromStringAndSize(message->data + message->json_size, (Py_ssize_t)message->raw_size);
	else
		Py_INCREF(raw = Py_None);
	if (json && raw)
		made = Py_BuildValue("iIOO", (int)message->type, (unsigned int)message->id, json, raw);
	Py_XDECREF(json);
	Py_XDECREF(raw);
	free(message);
	return made;
}

static int bytes_or_none(PyObject *object, const uint8_t **ret_data, uint32_t *ret_size, size_t max)
{
	char *data = NULL;
	Py_ssize_t size = 0;
	if (object != Py_None && PyBytes_AsStringAndSize(object, &data, &size) < 0)
		return -1;
	if ((size_t)size > max) {
		PyErr_Format(PyExc_OverflowError, "a frame may carry at most %u + %u bytes", CELL_FRAME_MAX_JSON, CELL_FRAME_MAX_RAW);
		return -1;
	}
	*ret_data = (const uint8_t *)data;
	*ret_size = (uint32_t)size;
	return 0;
}

/* ---- frames ---- */

static PyObject *send_frame(PyObject *self, const struct cell_frame *frame)
{
	struct cell_inproc *kernel = kernel_of(self);
	enum cell_inproc_status status;
	Py_BEGIN_ALLOW_THREADS status = kernel->send(kernel, frame);
	Py_END_ALLOW_THREADS if (status == CELL_INPROC_OK) Py_RETURN_TRUE;
	if (status == CELL_INPROC_FORKED)
		Py_RETURN_FALSE;
	return wc_link_fail(status);
}

static PyObject *link_send(PyObject *self, PyObject *args)
{
	int type;
	unsigned int id;
	PyObject *json = Py_None, *raw = Py_None;
	struct cell_frame frame = { 0 };
	if (!PyArg_ParseTuple(args, "iI|OO", &type, &id, &json, &raw) ||
	    bytes_or_none(json, &frame.json, &frame.json_size, CELL_FRAME_MAX_JSON) < 0 ||
	    bytes_or_none(raw, &frame.raw, &frame.raw_size, CELL_FRAME_MAX_RAW) < 0)
		return NULL;
	frame.type = (uint8_t)type;
	frame.id = id;
	return send_frame(self, &frame);
}

static PyObject *link_ask(PyObject *self, PyObject *args)
{
	PyObject *json, *raw = Py_None;
	struct cell_frame call = { .type = CELL_FRAME_CALL };
	struct cell_inproc_message *reply = NULL;
	if (!PyArg_ParseTuple(args, "S|O", &json, &raw) || bytes_or_none(json, &call.json, &call.json_size, CELL_FRAME_MAX_JSON) < 0 ||
	    bytes_or_none(raw, &call.raw, &call.raw_size, CELL_FRAME_MAX_RAW) < 0)
		return NULL;
	enum cell_inproc_status status = wc_link_ask(self, &call, &reply);
	return status == CELL_INPROC_OK ? take_message(reply) : wc_link_fail(status);
}

static PyObject *link_recv(PyObject *self, PyObject *unused)
{
	(void)unused;
	struct cell_inproc *kernel = kernel_of(self);
	struct cell_inproc_message *message;
	Py_BEGIN_ALLOW_THREADS message = kernel->receive(kernel);
	Py_END_ALLOW_THREADS return message ? take_message(message) : PyErr_NoMemory();
}

static PyObject *link_pending(PyObject *self, PyObject *unused)
{
	(void)unused;
	return PyBool_FromLong(kernel_of(self)->pending(kernel_of(self)));
}

static PyObject *link_watch(PyObject *self, PyObject *unused)
{
	(void)unused;
	return PyLong_FromLong(kernel_of(self)->watch(kernel_of(self)));
}

/* answer(id, value, repr) -> True: the RESULT of a cell that has no more than these */
static PyObject *link_answer(PyObject *self, PyObject *args)
{
	unsigned int id;
	PyObject *value, *repr;
	const uint8_t *texts[2];
	uint32_t sizes[2];
	char head[64] = "", small[512], *raw = small;
	if (!PyArg_ParseTuple(args, "IOO", &id, &value, &repr) || bytes_or_none(value, &texts[0], &sizes[0], CELL_FRAME_MAX_RAW) < 0 ||
	    bytes_or_none(repr, &texts[1], &sizes[1], CELL_FRAME_MAX_RAW) < 0)
		return NULL;
	size_t size = (size_t)sizes[0] + sizes[1];
	if (size > CELL_FRAME_MAX_RAW)
		Py_RETURN_FALSE;
	if (size > sizeof small && !(raw = malloc(size)))
		return PyErr_NoMemory();
	if (sizes[0] > 0)
		memcpy(raw, texts[0], sizes[0]);
	if (sizes[1] > 0)
		memcpy(raw + sizes[0], texts[1], sizes[1]);
	if (value != Py_None)
		snprintf(head, sizeof head, "{\"v\":%u,\"r\":%u}", sizes[0], sizes[1]);
	else if (repr != Py_None)
		snprintf(head, sizeof head, "{\"r\":%u}", sizes[1]);
	struct cell_frame frame = {
		.type = CELL_FRAME_RESULT,
		.id = id,
		.json = (const uint8_t *)head,
		.json_size = (uint32_t)strlen(head),
		.raw = (const uint8_t *)raw,
		.raw_size = (uint32_t)size,
	};
	PyObject *done = send_frame(self, &frame);
	if (raw != small)
		free(raw);
	return done;
}

/* ---- runs ---- */

static PyObject *link_begin_run(PyObject *self, PyObject *id)
{
	unsigned long value = PyLong_AsUnsignedLong(id);
	if (value == (unsigned long)-1 && PyErr_Occurred())
		return NULL;
	kernel_of(self)->run = (uint32_t)value;
	Py_RETURN_NONE;
}

/* end_run(): no interrupt comes after this. */
static PyObject *link_end_run(PyObject *self, PyObject *unused)
{
	(void)unused;
	struct cell_inproc *kernel = kernel_of(self);
	kernel->run = 0;
	if (kernel->interrupted_run(kernel) != 0)
		PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), NULL);
	Py_RETURN_NONE;
}

/* interrupted_run() -> the run that the host wants to interrupt, 0: none */
static PyObject *link_interrupted_run(PyObject *self, PyObject *unused)
{
	(void)unused;
	return PyLong_FromUnsignedLong(kernel_of(self)->interrupted_run(kernel_of(self)));
}

static PyObject *link_is_kernel(PyObject *self, PyObject *unused)
{
	(void)unused;
	return PyBool_FromLong(!kernel_of(self)->is_forked(kernel_of(self)));
}

/* ---- output ---- */

static int put_output(PyObject *self, int stream, const char *bytes, size_t size)
{
	struct cell_inproc *kernel = kernel_of(self);
	while (size > 0) {
		size_t part = size < (1u << 19) ? size : 1u << 19;
		enum cell_inproc_status status = kernel->write(kernel, stream, bytes, part);
		if (status == CELL_INPROC_FORKED && part < size)
			status = CELL_INPROC_OK;
		if (status == CELL_INPROC_OK) {
			bytes += part;
			size -= part;
		} else if (status == CELL_INPROC_FULL) {
			Py_BEGIN_ALLOW_THREADS kernel->wait(kernel);
			Py_END_ALLOW_THREADS if (is_main(kernel) && kernel->interrupted_run(kernel) != 0 &&
						 kernel->interrupted_run(kernel) == kernel->run)
			{
				wc_link_fail(CELL_INPROC_INTERRUPTED);
				return -1;
			}
		} else if (status == CELL_INPROC_NO_MEMORY) {
			PyErr_NoMemory();
			return -1;
		} else {
			return 0; /* the session is over, or the bytes went another way */
		}
	}
	return 0;
}

static PyObject *write_text(PyObject *self, int stream, PyObject *text)
{
	PyObject *encoded = NULL;
	Py_ssize_t size;
	const char *bytes = wc_text_bytes(text, &size, &encoded);
	if (!bytes)
		return NULL;
	int rc = put_output(self, stream, bytes, (size_t)size);
	Py_XDECREF(encoded);
	return rc < 0 ? NULL : PyLong_FromSsize_t(PyUnicode_GetLength(text));
}

static PyObject *link_write_out(PyObject *self, PyObject *text)
{
	return write_text(self, 1, text);
}

static PyObject *link_write_err(PyObject *self, PyObject *text)
{
	return write_text(self, 2, text);
}

static PyObject *link_writer(PyObject *self, PyObject *stream)
{
	return PyObject_GetAttrString(self, PyLong_AsLong(stream) == 2 ? "write_err" : "write_out");
}

static PyObject *link_write_bytes(PyObject *self, PyObject *args)
{
	int stream;
	const char *bytes;
	Py_ssize_t size;
	if (!PyArg_ParseTuple(args, "iy#", &stream, &bytes, &size) || put_output(self, stream, bytes, (size_t)size) < 0)
		return NULL;
	return PyLong_FromSsize_t(size);
}

/* pipe(stream) -> the descriptor that children of the session write to */
static PyObject *link_pipe(PyObject *self, PyObject *stream)
{
	long number = PyLong_AsLong(stream);
	if (number != 1 && number != 2) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_ValueError, "the stream must be 1 or 2");
		return NULL;
	}
	return PyLong_FromLong(kernel_of(self)->pipe(kernel_of(self), (int)number));
}

/* ---- the type ---- */

/* Link(address) */
static PyObject *link_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	unsigned long long address;
	(void)kwargs;
	if (!PyArg_ParseTuple(args, "K", &address))
		return NULL;
	struct cell_inproc *kernel = (struct cell_inproc *)(uintptr_t)address;
	if (!kernel || kernel->version != CELL_INPROC_VERSION)
		return PyErr_Format(PyExc_ImportError, "this library and this kernel have different versions");
	PyObject *self = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
	if (!self)
		return NULL;
	kernel->retain(kernel);
	((struct link *)self)->kernel = kernel;
	return self;
}

static void link_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	if (kernel_of(self))
		kernel_of(self)->release(kernel_of(self));
	((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
	Py_DECREF(type);
}

static PyMethodDef link_methods[] = { { "send", link_send, METH_VARARGS, "send(type, id, json=None, raw=None) -> False in a forked child" },
				      { "ask", link_ask, METH_VARARGS, "ask(json, raw=None) -> (type, id, json, raw)" },
				      { "recv", link_recv, METH_NOARGS, "recv() -> (type, id, json, raw)" },
				      { "pending", link_pending, METH_NOARGS, "pending() -> bool" },
				      { "watch", link_watch, METH_NOARGS,
					"watch() -> a descriptor that is readable while a message waits" },
				      { "answer", link_answer, METH_VARARGS, "answer(id, value, repr) -> bool" },
				      { "begin_run", link_begin_run, METH_O, "begin_run(id)" },
				      { "end_run", link_end_run, METH_NOARGS, "end_run()" },
				      { "interrupted_run", link_interrupted_run, METH_NOARGS, "interrupted_run() -> id" },
				      { "is_kernel", link_is_kernel, METH_NOARGS, "is_kernel() -> bool" },
				      { "write_out", link_write_out, METH_O, "write_out(text) -> number of characters written" },
				      { "write_err", link_write_err, METH_O, "write_err(text) -> number of characters written" },
				      { "writer", link_writer, METH_O, "writer(stream) -> write function" },
				      { "write_bytes", link_write_bytes, METH_VARARGS, "write_bytes(stream, bytes) -> size" },
				      { "pipe", link_pipe, METH_O, "pipe(stream) -> descriptor" },
				      { NULL, NULL, 0, NULL } };

static PyType_Slot link_slots[] = {
	{ Py_tp_new, link_new }, { Py_tp_dealloc, link_dealloc }, { Py_tp_methods, link_methods }, { 0, NULL }
};

static PyType_Spec link_spec = {
	.name = "_workcell.Link",
	.basicsize = sizeof(struct link),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = link_slots,
};

static PyObject *link_type;

bool wc_is_link(PyObject *object)
{
	return link_type && PyObject_IsInstance(object, link_type) == 1;
}

int wc_add_link(PyObject *module)
{
	link_type = PyType_FromSpec(&link_spec);
	if (!link_type)
		return -1;
	Py_INCREF(link_type);
	if (PyModule_AddObject(module, "Link", link_type) < 0) {
		Py_DECREF(link_type);
		return -1;
	}
	return 0;
}
