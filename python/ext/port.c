/* Ports: from the engine's thread to Python. */
#include "native.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum field_kind { F_NONE, F_TEXT, F_BYTES, F_INT, F_NUMBER, F_RESULT, F_CALL, F_BEFORE, F_QUESTION };

struct field {
	enum field_kind kind;
	union {
		int64_t number;
		double real;
		void *pointer;
		struct {
			char *data;
			size_t size;
		} bytes;
	};
};

struct item {
	struct item *next;
	uint64_t token;
	int type;
	size_t weight; /* bytes of output */
	size_t n, cap;
	bool failed;   /* a field could not be read */
	struct field *fields;
};

struct port {
	atomic_int refs;
	pthread_mutex_t lock; /* guards all below */
	struct item *first, *last;
	size_t pending;
	int fd;
	bool closed;
	pid_t pid; /* a forked child shares the descriptor, and leaves the queue alone */
};

/* ---- items ---- */

static struct item *item_create(uint64_t token, int type, size_t cap)
{
	struct item *item = calloc(1, sizeof *item);
	if (!item)
		return NULL;
	item->fields = calloc(cap, sizeof *item->fields);
	if (!item->fields) {
		free(item);
		return NULL;
	}
	item->token = token;
	item->type = type;
	item->cap = cap;
	return item;
}

static struct field *add_field(struct item *item, enum field_kind kind)
{
	struct field *field = &item->fields[item->n++]; /* callers make the item large enough */
	field->kind = kind;
	return field;
}

static void add_bytes(struct item *item, enum field_kind kind, const char *data, size_t size)
{
	struct field *field = add_field(item, data ? kind : F_NONE);
	if (!data)
		return;
	field->bytes.data = malloc(size + 1);
	if (!field->bytes.data) {
		field->kind = F_NONE;
		item->failed = true;
		return;
	}
	memcpy(field->bytes.data, data, size);
	field->bytes.size = size;
}

static void add_text(struct item *item, const char *text)
{
	add_bytes(item, F_TEXT, text, text ? strlen(text) : 0);
}

static void add_int(struct item *item, int64_t number)
{
	add_field(item, F_INT)->number = number;
}

static void item_destroy(struct item *item)
{
	struct cell_error err;
	if (!item)
		return;
	for (size_t i = 0; i < item->n; i++) {
		struct field *field = &item->fields[i];
		switch (field->kind) {
		case F_TEXT:
		case F_BYTES:
			free(field->bytes.data);
			break;
		case F_RESULT:
			cell_result_destroy(field->pointer);
			break;
		case F_CALL:
			cell_tool_call_fail(field->pointer, "the host's event loop has ended and cannot run this function");
			break;
		case F_BEFORE:
			cell_middleware_fail(field->pointer, "the host's event loop has ended and cannot run its middleware");
			break;
		case F_QUESTION:
			(void)cell_question_answer(field->pointer, "cancel", NULL, &err);
			break;
		default:
			break;
		}
	}
	free(item->fields);
	free(item);
}

static PyObject *field_object(struct field *field)
{
	enum field_kind kind = field->kind;
	void *pointer = field->pointer;
	switch (kind) {
	case F_TEXT:
		return text_of(field->bytes.data, field->bytes.size);
	case F_BYTES:
		return PyBytes_FromStringAndSize(field->bytes.data, (Py_ssize_t)field->bytes.size);
	case F_INT:
		return PyLong_FromLongLong(field->number);
	case F_NUMBER:
		return PyFloat_FromDouble(field->real);
	case F_RESULT:
		field->kind = F_NONE; /* the wrapper owns it, or has destroyed it */
		return result_wrap(pointer);
	case F_CALL:
	case F_BEFORE:
	case F_QUESTION: {
		PyTypeObject *type = kind == F_CALL ? call_type : kind == F_BEFORE ? before_type : question_type;
		PyObject *object = pointer_wrap(type, pointer);
		if (object)
			field->kind = F_NONE;
		return object;
	}
	default:
		Py_INCREF(Py_None);
		return Py_None;
	}
}

/* (token, type, fields...) or, without a token, (type, fields...). */
static PyObject *item_tuple(struct item *item, bool token)
{
	Py_ssize_t skip = token ? 2 : 1;
	PyObject *tuple = PyTuple_New(skip + (Py_ssize_t)item->n);
	if (!tuple)
		return NULL;
	PyObject *number = token ? PyLong_FromUnsignedLongLong(item->token) : NULL;
	PyObject *type = PyLong_FromLong(item->type);
	if ((token && !number) || !type)
		goto fail;
	if (token)
		PyTuple_SetItem(tuple, 0, number);
	PyTuple_SetItem(tuple, skip - 1, type);
	for (size_t i = 0; i < item->n; i++) {
		PyObject *object = field_object(&item->fields[i]);
		if (!object)
			goto fail_tuple;
		PyTuple_SetItem(tuple, skip + (Py_ssize_t)i, object);
	}
	return tuple;
fail:
	Py_XDECREF(number);
	Py_XDECREF(type);
fail_tuple:
	Py_DECREF(tuple);
	return NULL;
}

/* ---- ports ---- */

static struct port *port_create(void)
{
	struct port *port = calloc(1, sizeof *port);
	if (!port)
		return NULL;
	atomic_init(&port->refs, 1);
	pthread_mutex_init(&port->lock, NULL);
	port->pid = getpid();
	port->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (port->fd < 0) {
		pthread_mutex_destroy(&port->lock);
		free(port);
		return NULL;
	}
	return port;
}

struct port *port_ref(struct port *port)
{
	atomic_fetch_add(&port->refs, 1);
	return port;
}

static struct item *take_all(struct port *port, bool closing)
{
	uint64_t count;
	pthread_mutex_lock(&port->lock);
	struct item *first = port->first;
	port->first = port->last = NULL;
	port->pending = 0;
	if (closing)
		port->closed = true;
	if (first && read(port->fd, &count, sizeof count) < 0 && errno != EAGAIN)
		abort(); /* an eventfd of ours that cannot be read: memory was overwritten */
	pthread_mutex_unlock(&port->lock);
	return first;
}

static void port_close(struct port *port)
{
	if (port->pid != getpid())
		return;
	struct item *item = take_all(port, true);
	while (item) {
		struct item *next = item->next;
		item_destroy(item);
		item = next;
	}
}

void port_unref(struct port *port)
{
	if (!port || atomic_fetch_sub(&port->refs, 1) != 1 || port->pid != getpid())
		return;
	port_close(port);
	close(port->fd);
	pthread_mutex_destroy(&port->lock);
	free(port);
}

static bool is_empty(struct port *port)
{
	pthread_mutex_lock(&port->lock);
	bool empty = !port->first;
	pthread_mutex_unlock(&port->lock);
	return empty;
}

size_t port_pending(struct port *port)
{
	pthread_mutex_lock(&port->lock);
	size_t pending = port->pending;
	pthread_mutex_unlock(&port->lock);
	return pending;
}

_Thread_local struct stay stay;

void port_push(struct port *port, struct item *item)
{
	const uint64_t one = 1;
	if (!item)
		return;
	stay.heard = 1;
	item->next = NULL;
	pthread_mutex_lock(&port->lock);
	bool closed = port->closed;
	if (!closed) {
		bool first = !port->first;
		if (first)
			port->first = item;
		else
			port->last->next = item;
		port->last = item;
		port->pending += item->weight;
		if (first && write(port->fd, &one, sizeof one) < 0)
			abort(); /* as above */
	}
	pthread_mutex_unlock(&port->lock);
	if (closed)
		item_destroy(item);
}

/* ---- registrations ---- */

struct reg *reg_create(struct port *port, uint64_t token, unsigned mask, bool with_last)
{
	struct reg *reg = calloc(1, sizeof *reg);
	if (!reg)
		return NULL;
	if (with_last && !(reg->last = item_create(token, CELL_EVENT_RESULT, 3))) {
		free(reg);
		return NULL;
	}
	reg->port = port_ref(port);
	reg->token = token;
	reg->mask = mask;
	return reg;
}

void reg_destroy(struct reg *reg)
{
	if (!reg)
		return;
	item_destroy(reg->last);
	port_unref(reg->port);
	free(reg);
}

/* ---- the library's callbacks, on the engine's thread ---- */

static void add_call_info(struct item *item, const struct cell_call_info *call)
{
	add_int(item, (int64_t)call->id);
	add_text(item, call->request_id);
	add_text(item, call->kind);
	add_text(item, call->tool);
	add_text(item, call->callable);
	add_text(item, call->adapter);
	add_text(item, call->session_id);
	add_bytes(item, F_TEXT, call->args, call->args_size);
}

static struct item *event_item(uint64_t token, const struct cell_event *event)
{
	struct item *item = item_create(token, event->type, 12 + 2 * event->n_parts);
	if (!item)
		return NULL;
	add_int(item, (int64_t)event->run_id);
	switch (event->type) {
	case CELL_EVENT_CHUNK:
		add_int(item, event->stream);
		add_bytes(item, F_BYTES, event->data, event->size);
		item->weight = event->size;
		break;
	case CELL_EVENT_DISPLAY:
		for (size_t i = 0; i < event->n_parts; i++) {
			add_text(item, event->parts[i].type);
			add_bytes(item, F_BYTES, event->parts[i].data, event->parts[i].size);
			item->weight += event->parts[i].size;
		}
		break;
	case CELL_EVENT_KERNEL_DIED:
	case CELL_EVENT_POINT_LOST:
		add_text(item, event->message);
		break;
	case CELL_EVENT_BRANCH:
		add_bytes(item, F_TEXT, event->data, event->size);
		break;
	case CELL_EVENT_CALL_STARTED:
	case CELL_EVENT_CALL_ENDED:
	case CELL_EVENT_APPROVAL:
	case CELL_EVENT_APPROVAL_ENDED:
		add_call_info(item, event->call);
		add_text(item, event->decision);
		add_text(item, event->message);
		add_field(item, F_NUMBER)->real = event->duration_ms;
		break;
	case CELL_EVENT_IMAGE:
		add_text(item, event->path);
		add_int(item, (int64_t)event->index);
		add_text(item, event->message);
		break;
	default:
		break;
	}
	return item;
}

static void push_event(struct reg *reg, const struct cell_event *event)
{
	bool output = event->type == CELL_EVENT_CHUNK || event->type == CELL_EVENT_DISPLAY;
	if (!(reg->mask & 1u << event->type))
		return;
	if (output && port_pending(reg->port) > PENDING_BYTES_MAX) {
		reg->lost += event->size;
		for (size_t i = 0; i < event->n_parts; i++)
			reg->lost += event->parts[i].size;
		return;
	}
	struct item *item = event_item(reg->token, event);
	if (!item || item->failed) {
		reg->lost += event->size;
		item_destroy(item);
		return;
	}
	int heard = stay.heard;
	port_push(reg->port, item);
	/* Notice of a call's start or end needs no answer. */
	if (event->type == CELL_EVENT_CALL_STARTED || event->type == CELL_EVENT_CALL_ENDED || event->type == CELL_EVENT_APPROVAL_ENDED)
		stay.heard = heard;
}

void on_run_event(void *arg, const struct cell_event *event)
{
	struct reg *reg = arg;
	if (event->type != CELL_EVENT_RESULT) {
		push_event(reg, event);
		return;
	}
	if (stay.reg == reg && is_empty(reg->port)) {
		stay.result = event->result;
		stay.heard = 1;
		reg_destroy(reg);
		return;
	}
	struct item *item = reg->last;
	reg->last = NULL;
	add_int(item, (int64_t)event->run_id);
	add_field(item, F_RESULT)->pointer = event->result;
	add_int(item, (int64_t)reg->lost);
	port_push(reg->port, item);
	reg_destroy(reg);
}

void on_session_event(void *arg, const struct cell_event *event)
{
	push_event(arg, event);
}

void on_tool_call(void *arg, struct cell_tool_call *call)
{
	struct reg *reg = arg;
	struct item *item = item_create(reg->token, ITEM_TOOL_CALL, 3);
	if (!item) {
		cell_tool_call_fail(call, "the host is out of memory");
		return;
	}
	add_text(item, cell_tool_call_args(call));
	add_text(item, cell_tool_call_session_id(call));
	add_field(item, F_CALL)->pointer = call;
	port_push(reg->port, item);
}

static void push_middleware(struct reg *reg, struct cell_middleware_call *call, int type)
{
	struct item *item = item_create(reg->token, type, 10);
	size_t size = 0;
	int is_text = 0;
	if (!item) {
		cell_middleware_fail(call, "the host is out of memory");
		return;
	}
	add_text(item, cell_middleware_tool(call));
	add_text(item, cell_middleware_callable(call));
	add_text(item, cell_middleware_session_id(call));
	add_text(item, cell_middleware_executor(call));
	add_text(item, cell_middleware_request_id(call));
	add_text(item, cell_middleware_args(call));
	add_text(item, cell_middleware_error(call));
	const char *result = cell_middleware_result(call, &size, &is_text);
	add_bytes(item, F_TEXT, result, size);
	add_int(item, is_text);
	add_field(item, F_BEFORE)->pointer = call;
	port_push(reg->port, item);
}

void on_before(void *arg, struct cell_middleware_call *call)
{
	push_middleware(arg, call, ITEM_BEFORE);
}

void on_after(void *arg, struct cell_middleware_call *call)
{
	push_middleware(arg, call, ITEM_AFTER);
}

void on_tool_event(void *arg, const struct cell_tool_event *event)
{
	struct reg *reg = arg;
	struct cell_error err;
	struct item *item = item_create(reg->token, ITEM_TOOL_EVENT, 6);
	if (!item) {
		if (event->question)
			(void)cell_question_answer(event->question, "cancel", NULL, &err);
		return;
	}
	add_int(item, event->type);
	add_text(item, event->tool);
	add_text(item, event->callable);
	add_text(item, event->session_id);
	add_text(item, event->json);
	if (event->question)
		add_field(item, F_QUESTION)->pointer = event->question;
	else
		add_field(item, F_NONE);
	port_push(reg->port, item);
}

void on_log(void *arg, enum cell_log_level level, const char *line)
{
	struct reg *reg = arg;
	struct item *item = item_create(reg->token, ITEM_LOG, 2);
	if (!item)
		return;
	add_int(item, level);
	add_text(item, line);
	port_push(reg->port, item);
}

PyObject *event_tuple(const struct cell_event *event)
{
	struct item *item = event_item(0, event);
	if (!item)
		return PyErr_NoMemory();
	PyObject *tuple = item_tuple(item, false);
	item_destroy(item);
	return tuple;
}

/* ---- the Python type ---- */

struct port_object {
	PyObject_HEAD struct port *port;
};

struct port *port_of(PyObject *object)
{
	return ((struct port_object *)object)->port;
}

static PyObject *port_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	(void)args;
	(void)kwargs;
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct port_object *self = (struct port_object *)alloc(type, 0);
	if (!self)
		return NULL;
	self->port = port_create();
	if (!self->port) {
		Py_DECREF(self);
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	return (PyObject *)self;
}

static void port_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);
	struct port *port = port_of(object);
	if (port) {
		port_close(port);
		port_unref(port);
	}
	((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
	Py_DECREF(type);
}

static PyObject *port_fileno(PyObject *self, PyObject *args)
{
	(void)args;
	return PyLong_FromLong(port_of(self)->fd);
}

static PyObject *port_take(PyObject *self, PyObject *args)
{
	(void)args;
	PyObject *list = PyList_New(0);
	struct item *item = list && port_of(self)->pid == getpid() ? take_all(port_of(self), false) : NULL;
	while (item) {
		struct item *next = item->next;
		PyObject *tuple = list ? item_tuple(item, true) : NULL;
		if (list && (!tuple || PyList_Append(list, tuple) < 0)) {
			Py_DECREF(list);
			list = NULL; /* the rest is dropped as by a closed port */
		}
		Py_XDECREF(tuple);
		item_destroy(item);
		item = next;
	}
	return list;
}

/* wait(seconds or None) -> whether an item is ready. Signal handlers run while it waits. */
static PyObject *port_wait(PyObject *self, PyObject *args)
{
	PyObject *seconds = Py_None;
	if (!PyArg_ParseTuple(args, "|O", &seconds))
		return NULL;
	int timeout = -1;
	if (seconds != Py_None) {
		double value = PyFloat_AsDouble(seconds);
		if (PyErr_Occurred())
			return NULL;
		timeout = value <= 0 ? 0 : value > 86400 ? 86400000 : (int)(value * 1000);
	}
	struct pollfd poller = { .fd = port_of(self)->fd, .events = POLLIN };
	for (;;) {
		int n;
		Py_BEGIN_ALLOW_THREADS n = poll(&poller, 1, timeout);
		Py_END_ALLOW_THREADS if (n >= 0) return PyBool_FromLong(n > 0);
		if (errno != EINTR)
			return PyErr_SetFromErrno(PyExc_OSError);
		if (PyErr_CheckSignals() < 0)
			return NULL;
	}
}

static PyObject *port_close_method(PyObject *self, PyObject *args)
{
	(void)args;
	port_close(port_of(self));
	Py_RETURN_NONE;
}

static PyMethodDef port_methods[] = {
	{ "fileno", port_fileno, METH_NOARGS, NULL },
	{ "take", port_take, METH_NOARGS, NULL },
	{ "wait", port_wait, METH_VARARGS, NULL },
	{ "close", port_close_method, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot port_slots[] = {
	{ Py_tp_new, port_new },
	{ Py_tp_dealloc, port_dealloc },
	{ Py_tp_methods, port_methods },
	{ 0, NULL },
};

static PyType_Spec port_spec = {
	.name = "workcell._native.Port",
	.basicsize = sizeof(struct port_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = port_slots,
};

int add_port_type(PyObject *module)
{
	port_type = (PyTypeObject *)PyType_FromSpec(&port_spec);
	return add_type(module, "Port", port_type);
}
