/*
 * The fast path of a call: tools.add(a=1), as it is most of the time, in one step of C.
 *
 * It is taken when no other thread uses the channel (rpc.py) and the arguments are plain: then the caller leads,
 * sends its CALL, waits, and takes the answer.  Everything else (other threads and tasks that wait, arguments that JSON
 * cannot carry, an answer that is an error) is handled by the Python code, which covers all cases:
 *
 *     not sent yet                 the general path, from the beginning: _call()
 *     sent, and a signal came      its handlers run here, as in a wait of Python's; their exception ends the call
 *     sent, another frame came     Channel._lead_on() continues reading
 *
 * While the caller is marked as leader no Python code runs on its thread, except for those handlers, during which
 * in_call() is true: no objects that the garbage collector tracks can be created, and so no finalizer runs.
 *
 * In the host's own process there is no channel to lead: a call is one function call (hostlink.c).
 */
#include "ext.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "structmember.h"

#include "wire/call_text.h"

#define MAX_DEPTH 200          /* as in rpc.py */
#define CACHED_TEXT 4096       /* longer strings are encoded without leaving the bytes in the object */
#define STACK_TEXT 1024
#define PLAIN_DIGITS 18

/* The channel's parts, once attach() has named them. */
static PyObject *channel, *leader, *inbox, *parked, *watches, *ids, *loads;
static PyObject *zero, *closed_name;
static int in_call;

/* ---- JSON ---- */

struct text {
	char *data;
	size_t size, capacity;
	char first[STACK_TEXT];
};

static void text_init(struct text *text)
{
	text->data = text->first;
	text->size = 0;
	text->capacity = sizeof text->first;
}

static void text_finish(struct text *text)
{
	if (text->data != text->first)
		free(text->data);
}

static bool reserve(struct text *text, size_t more)
{
	if (more <= text->capacity - text->size)
		return true;
	size_t capacity = text->capacity * 2;
	if (capacity - text->size < more)
		capacity = text->size + more;
	if (capacity > 2u * CELL_FRAME_MAX_JSON)
		return false;
	char *data = text->data == text->first ? malloc(capacity) : realloc(text->data, capacity);
	if (!data)
		return false;
	if (text->data == text->first)
		memcpy(data, text->first, text->size);
	text->data = data;
	text->capacity = capacity;
	return true;
}

static bool add(struct text *text, const char *bytes, size_t size)
{
	if (!reserve(text, size))
		return false;
	memcpy(text->data + text->size, bytes, size);
	text->size += size;
	return true;
}

static bool add_escaped(struct text *text, unsigned char c)
{
	static const char letters[] = "\"\"\\\\\bb\ff\nn\rr\tt", hex[] = "0123456789abcdef";
	for (const char *at = letters; *at; at += 2)
		if ((unsigned char)*at == c) {
			char pair[2] = { '\\', at[1] };
			return add(text, pair, 2);
		}
	char code[6] = { '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] };
	return add(text, code, sizeof code);
}

static bool add_bytes(struct text *text, const char *bytes, size_t size)
{
	if (!reserve(text, size + 2))
		return false;
	text->data[text->size++] = '"';
	size_t start = 0;
	for (size_t i = 0; i < size; i++) {
		unsigned char c = (unsigned char)bytes[i];
		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		if (!add(text, bytes + start, i - start) || !add_escaped(text, c))
			return false;
		start = i + 1;
	}
	return add(text, bytes + start, size - start) && add(text, "\"", 1);
}

/* The host accepts no name with a NUL in it. */
static bool add_string(struct text *text, PyObject *string, bool is_name)
{
	Py_ssize_t size;
	PyObject *encoded = NULL;
	const char *bytes;
	char *data = NULL;
	if (PyUnicode_GetLength(string) <= CACHED_TEXT) {
		bytes = PyUnicode_AsUTF8AndSize(string, &size);
	} else {
		encoded = PyUnicode_AsUTF8String(string);
		bytes = encoded && PyBytes_AsStringAndSize(encoded, &data, &size) == 0 ? data : NULL;
	}
	bool ok = bytes && !(is_name && memchr(bytes, '\0', (size_t)size)) && add_bytes(text, bytes, (size_t)size);
	Py_XDECREF(encoded);
	return ok;
}

static bool add_int(struct text *text, PyObject *number)
{
	int overflow;
	long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
	char digits[24];
	size_t at = sizeof digits;
	if (overflow || (value == -1 && PyErr_Occurred()))
		return false;
	unsigned long long rest = value < 0 ? 0ull - (unsigned long long)value : (unsigned long long)value;
	do
		digits[--at] = (char)('0' + rest % 10);
	while (rest /= 10);
	if (value < 0)
		digits[--at] = '-';
	return add(text, digits + at, sizeof digits - at);
}

static bool add_float(struct text *text, PyObject *number)
{
	double value = PyFloat_AsDouble(number);
	if (!isfinite(value))
		return false;
	char *digits = PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
	bool ok = digits && add(text, digits, strlen(digits));
	PyMem_Free(digits);
	return ok;
}

static bool add_value(struct text *text, PyObject *value, int depth);

static bool add_dict(struct text *text, PyObject *dict, int depth)
{
	PyObject *key, *value;
	Py_ssize_t at = 0;
	bool first = true;
	if (!add(text, "{", 1))
		return false;
	while (PyDict_Next(dict, &at, &key, &value)) {
		if (!PyUnicode_CheckExact(key) || (!first && !add(text, ",", 1)) || !add_string(text, key, true) || !add(text, ":", 1) ||
		    !add_value(text, value, depth + 1))
			return false;
		first = false;
	}
	return add(text, "}", 1);
}

static bool add_sequence(struct text *text, PyObject *sequence, bool is_list, int depth)
{
	if (!add(text, "[", 1))
		return false;
	for (Py_ssize_t i = 0; i < (is_list ? PyList_Size(sequence) : PyTuple_Size(sequence)); i++) {
		PyObject *item = is_list ? PyList_GetItem(sequence, i) : PyTuple_GetItem(sequence, i);
		if ((i > 0 && !add(text, ",", 1)) || !add_value(text, item, depth + 1))
			return false;
	}
	return add(text, "]", 1);
}

/* False: not plain, or out of memory; an exception may be set. Only exact types: no user code runs, so the walked objects cannot change. */
static bool add_value(struct text *text, PyObject *value, int depth)
{
	if (depth > MAX_DEPTH)
		return false;
	if (PyUnicode_CheckExact(value))
		return add_string(text, value, false);
	if (value == Py_True)
		return add(text, "true", 4);
	if (value == Py_False)
		return add(text, "false", 5);
	if (value == Py_None)
		return add(text, "null", 4);
	if (PyLong_CheckExact(value))
		return add_int(text, value);
	if (PyFloat_CheckExact(value))
		return add_float(text, value);
	if (PyDict_CheckExact(value))
		return add_dict(text, value, depth);
	if (PyList_CheckExact(value) || PyTuple_CheckExact(value))
		return add_sequence(text, value, PyList_CheckExact(value), depth);
	return false;
}

static bool add_object(struct text *text, PyObject *head, PyObject *value, const char *tail, size_t tail_size)
{
	char *bytes;
	Py_ssize_t size;
	if (PyBytes_AsStringAndSize(head, &bytes, &size) < 0 || !add(text, bytes, (size_t)size) ||
	    !(value ? add_value(text, value, 0) : add(text, "{}", 2)) || !add(text, tail, tail_size)) {
		PyErr_Clear(); /* the general path raises the error */
		return false;
	}
	return text->size <= CELL_FRAME_MAX_JSON;
}

static PyObject *shared(PyObject *object)
{
	Py_INCREF(object);
	return object;
}

/* encode(head, value, tail) -> bytes, or None when the value is not plain */
PyObject *wc_encode(PyObject *self, PyObject *args)
{
	(void)self;
	PyObject *head, *value;
	const char *tail;
	Py_ssize_t tail_size;
	if (!PyArg_ParseTuple(args, "SOy#", &head, &value, &tail, &tail_size))
		return NULL;
	struct text text;
	text_init(&text);
	PyObject *made = NULL;
	if (add_object(&text, head, value, tail, (size_t)tail_size))
		made = PyBytes_FromStringAndSize(text.data, (Py_ssize_t)text.size);
	else
		made = shared(Py_None);
	text_finish(&text);
	return made;
}

/* The value of a JSON text. Numbers and words are parsed here, the rest by Python. */
static PyObject *decode(const char *bytes, size_t size)
{
	size_t sign = size > 1 && bytes[0] == '-', i = sign;
	long long value = 0;
	while (i < size && i - sign < PLAIN_DIGITS && bytes[i] >= '0' && bytes[i] <= '9')
		value = value * 10 + (bytes[i++] - '0');
	if (size > 0 && i == size)
		return PyLong_FromLongLong(sign ? -value : value);
	if (size == 4 && memcmp(bytes, "true", 4) == 0)
		return shared(Py_True);
	if (size == 5 && memcmp(bytes, "false", 5) == 0)
		return shared(Py_False);
	if (size == 4 && memcmp(bytes, "null", 4) == 0)
		return shared(Py_None);
	if (!loads) {
		PyObject *json = PyImport_ImportModule("json");
		loads = json ? PyObject_GetAttrString(json, "loads") : NULL;
		Py_XDECREF(json);
		if (!loads)
			return NULL;
	}
	PyObject *text = PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)size, "replace");
	PyObject *made = text ? PyObject_CallFunctionObjArgs(loads, text, NULL) : NULL;
	Py_XDECREF(text);
	return made;
}

/* ---- the channel ---- */

/* attach(channel, leader, inbox, parked, watches, ids, loads): sets the channel that callers use. */
PyObject *wc_attach(PyObject *self, PyObject *args)
{
	(void)self;
	PyObject **parts[] = { &channel, &leader, &inbox, &parked, &watches, &ids, &loads };
	PyObject *given[7];
	if (!PyArg_ParseTuple(args, "OO!OO!O!OO", &given[0], &PyDict_Type, &given[1], &given[2], &PyDict_Type, &given[3], &PyDict_Type,
			      &given[4], &given[5], &given[6]))
		return NULL;
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		PyObject *old = *parts[i];
		Py_INCREF(given[i]);
		*parts[i] = given[i];
		Py_XDECREF(old);
	}
	Py_RETURN_NONE;
}

/* in_call() -> True in a handler of a signal that came while a call of ours waits */
PyObject *wc_in_call(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	return PyBool_FromLong(in_call);
}

/* No thread leads, no frame waits for delivery, the session is open. */
static bool is_free(void)
{
	if (!channel || !wc_is_quiet() || PyDict_Size(leader) != 0 || PyObject_Size(inbox) != 0)
		return false;
	PyObject *closed = PyObject_GetAttr(channel, closed_name);
	bool open = closed == Py_False;
	if (!closed)
		PyErr_Clear();
	Py_XDECREF(closed);
	return open;
}

static bool take_id(PyObject **ret_object, uint32_t *ret_id)
{
	PyObject *count = PyIter_Next(ids);
	unsigned long long n = count ? PyLong_AsUnsignedLongLong(count) : 0;
	Py_XDECREF(count);
	*ret_id = (uint32_t)(n % UINT32_MAX + 1);
	*ret_object = PyErr_Occurred() ? NULL : PyLong_FromUnsignedLong(*ret_id);
	if (!*ret_object)
		PyErr_Clear();
	return *ret_object != NULL;
}

static bool lead(void)
{
	PyObject *me = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
	bool ok = me && PyDict_SetItem(leader, zero, me) == 0;
	Py_XDECREF(me);
	if (!ok)
		PyErr_Clear();
	return ok;
}

/* Ends leading; another thread may have to take over. */
static int leave(void)
{
	if (PyDict_DelItem(leader, zero) < 0)
		PyErr_Clear();
	if (PyDict_Size(parked) == 0 && PyDict_Size(watches) == 0)
		return 0;
	PyObject *done = PyObject_CallMethod(channel, "_hand_over", NULL);
	Py_XDECREF(done);
	return done ? 0 : -1;
}

/* The call ended with an exception, which is set, and its answer may still come. */
static void abandon(PyObject *id)
{
	PyObject *type, *value, *traceback;
	PyErr_Fetch(&type, &value, &traceback);
	PyObject *done = PyObject_CallMethod(channel, "_abandon", "O", id);
	if (!done)
		PyErr_Clear(); /* the first exception counts */
	Py_XDECREF(done);
	PyErr_Restore(type, value, traceback);
}

/* After a signal.  -1 with an exception set: a handler ended the call. */
static int run_handlers(PyObject *id)
{
	in_call++;
	int rc = PyErr_CheckSignals();
	in_call--;
	if (rc < 0)
		abandon(id);
	return rc;
}

/* A frame came that is not simply the answer: returns the answer's frame, received by Python. */
static PyObject *lead_on(PyObject *id)
{
	PyObject *frame = PyObject_CallMethod(channel, "_lead_on", "O", id);
	if (!frame)
		abandon(id);
	return frame;
}

/* ---- callers ---- */

struct caller {
	PyObject_HEAD PyObject *head; /* bytes: the call up to its arguments */
	PyObject *link; /* a Link, where calls are direct */
	char quick; /* its channel is the attached one */
};

static const char answer_json[] = CELL_REPLY_TEXT_HEAD CELL_RESULT_TEXT_JSON CELL_REPLY_TEXT_TAIL,
		  answer_text[] = CELL_REPLY_TEXT_HEAD CELL_RESULT_TEXT_TEXT CELL_REPLY_TEXT_TAIL, call_tail[] = CELL_CALL_TEXT_TAIL;

/* The answer that was peeked at: the value, or Python's result for the frame. */
static PyObject *take_answer(PyObject *self, const struct cell_frame *frame)
{
	bool is_json = frame->json_size == sizeof answer_json - 1 && memcmp(frame->json, answer_json, sizeof answer_json - 1) == 0;
	bool is_text = frame->json_size == sizeof answer_text - 1 && memcmp(frame->json, answer_text, sizeof answer_text - 1) == 0;
	/* Copied first: code that runs from here on may read the socket. */
	struct text all;
	text_init(&all);
	bool ok = add(&all, (const char *)frame->json, (size_t)frame->json_size + frame->raw_size);
	const struct cell_frame was = *frame;
	wc_skip(frame);
	PyObject *made = NULL;
	const char *raw = all.data + was.json_size;
	if (leave() < 0)
		made = NULL;
	else if (!ok)
		made = PyErr_NoMemory();
	else if (is_json)
		made = decode(raw, was.raw_size);
	else if (is_text)
		made = PyUnicode_DecodeUTF8(raw, (Py_ssize_t)was.raw_size, "replace");
	else
		made = PyObject_CallMethod(self, "_settle", "((iIy#y#))", (int)was.type, (unsigned int)was.id, all.data,
					   (Py_ssize_t)was.json_size, raw, (Py_ssize_t)was.raw_size);
	text_finish(&all);
	return made;
}

/* The call has been sent. */
static PyObject *await_answer(PyObject *self, enum wc_exchange end, PyObject *id_object, uint32_t id)
{
	struct cell_frame frame;
	while (end == WC_INTERRUPTED) {
		if (run_handlers(id_object) < 0)
			return NULL;
		end = wc_exchange(id, NULL, 0);
	}
	if (wc_peek(&frame) && frame.type == CELL_FRAME_REPLY && frame.id == id)
		return take_answer(self, &frame);
	PyObject *received = lead_on(id_object);
	PyObject *made = received ? PyObject_CallMethod(self, "_settle", "(O)", received) : NULL;
	Py_XDECREF(received);
	return made;
}

/* 1: *ret_value is the answer, or NULL with an exception set.  0: nothing has happened. */
static int call_quickly(PyObject *self, PyObject *kwargs, PyObject **ret_value)
{
	struct text text;
	PyObject *id_object = NULL;
	uint32_t id;
	enum wc_exchange end = WC_NOT_SENT;
	if (!is_free())
		return 0;
	text_init(&text);
	if (add_object(&text, ((struct caller *)self)->head, kwargs, call_tail, sizeof call_tail - 1) && take_id(&id_object, &id) &&
	    lead()) {
		end = wc_exchange(id, text.data, text.size);
		if (end == WC_NOT_SENT && PyDict_DelItem(leader, zero) < 0)
			PyErr_Clear();
	}
	text_finish(&text);
	if (end != WC_NOT_SENT)
		*ret_value = await_answer(self, end, id_object, id);
	Py_XDECREF(id_object);
	return end != WC_NOT_SENT;
}

static bool is_answer(const struct cell_inproc_message *reply, const char *head, size_t size)
{
	return reply->json_size == size && memcmp(reply->data, head, size) == 0;
}

/* The value, NULL with an exception set, or NULL without one: nothing has happened. */
static PyObject *call_directly(PyObject *self, PyObject *kwargs)
{
	struct caller *caller = (struct caller *)self;
	struct cell_inproc_message *reply = NULL;
	struct text text;
	text_init(&text);
	if (!add_object(&text, caller->head, kwargs, call_tail, sizeof call_tail - 1)) {
		text_finish(&text);
		return NULL;
	}
	struct cell_frame call = { .type = CELL_FRAME_CALL, .json = (const uint8_t *)text.data, .json_size = (uint32_t)text.size };
	enum cell_inproc_status status = wc_link_ask(caller->link, &call, &reply);
	text_finish(&text);
	if (status != CELL_INPROC_OK)
		return wc_link_fail(status);
	const char *raw = reply->data + reply->json_size;
	PyObject *made;
	if (is_answer(reply, answer_json, sizeof answer_json - 1))
		made = decode(raw, reply->raw_size);
	else if (is_answer(reply, answer_text, sizeof answer_text - 1))
		made = PyUnicode_DecodeUTF8(raw, (Py_ssize_t)reply->raw_size, "replace");
	else
		made = PyObject_CallMethod(self, "_settle", "((iIy#y#))", (int)reply->type, (unsigned int)reply->id, reply->data,
					   (Py_ssize_t)reply->json_size, raw, (Py_ssize_t)reply->raw_size);
	free(reply);
	return made;
}

static PyObject *caller_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
	struct caller *caller = (struct caller *)self;
	PyObject *value = NULL;
	if (caller->link && caller->head && PyTuple_Size(args) == 0) {
		value = call_directly(self, kwargs);
		if (value || PyErr_Occurred())
			return value;
	}
	if (caller->quick && caller->head && PyTuple_Size(args) == 0 && call_quickly(self, kwargs, &value))
		return value;
	PyObject *none = kwargs ? NULL : PyDict_New();
	PyObject *given = kwargs ? kwargs : none;
	value = given ? PyObject_CallMethod(self, "_call", "OO", args, given) : NULL;
	Py_XDECREF(none);
	return value;
}

static int caller_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(((struct caller *)self)->head);
	Py_VISIT(((struct caller *)self)->link);
	Py_VISIT(Py_TYPE(self));
	return 0;
}

static int caller_clear(PyObject *self)
{
	Py_CLEAR(((struct caller *)self)->head);
	Py_CLEAR(((struct caller *)self)->link);
	return 0;
}

static void caller_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	PyObject_GC_UnTrack(self);
	caller_clear(self);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
	Py_DECREF(type);
}

static int caller_set_link(PyObject *self, PyObject *value, void *unused)
{
	(void)unused;
	if (value && value != Py_None && !wc_is_link(value)) {
		PyErr_SetString(PyExc_TypeError, "a Link or None");
		return -1;
	}
	PyObject *old = ((struct caller *)self)->link;
	((struct caller *)self)->link = value == Py_None ? NULL : value;
	Py_XINCREF(((struct caller *)self)->link);
	Py_XDECREF(old);
	return 0;
}

static PyGetSetDef caller_getset[] = { { "_link", NULL, caller_set_link, NULL, NULL }, { NULL, NULL, NULL, NULL, NULL } };

static PyMemberDef caller_members[] = { { "_head", T_OBJECT, offsetof(struct caller, head), 0, NULL },
					{ "_quick", T_BOOL, offsetof(struct caller, quick), 0, NULL },
					{ NULL, 0, 0, 0, NULL } };

static PyType_Slot caller_slots[] = { { Py_tp_call, caller_call },
				      { Py_tp_traverse, caller_traverse },
				      { Py_tp_clear, caller_clear },
				      { Py_tp_dealloc, caller_dealloc },
				      { Py_tp_members, caller_members },
				      { Py_tp_getset, caller_getset },
				      { 0, NULL } };

static PyType_Spec caller_spec = {
	.name = "_workcell.Caller",
	.basicsize = sizeof(struct caller),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.slots = caller_slots,
};

int wc_add_caller(PyObject *module)
{
	zero = PyLong_FromLong(0);
	closed_name = PyUnicode_InternFromString("closed");
	PyObject *type = PyType_FromSpec(&caller_spec);
	if (!zero || !closed_name || !type)
		return -1;
	if (PyModule_AddObject(module, "Caller", type) < 0) {
		Py_DECREF(type);
		return -1;
	}
	return 0;
}
