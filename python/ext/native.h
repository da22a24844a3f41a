/*
 * The Python SDK's binding: workcell._native, a stable-ABI extension over workcell.h.
 *
 * Threads. The engine's thread never takes the GIL. Its messages to Python become items in a port, a queue with an eventfd; an asyncio loop
 * watches the descriptor, or a thread waits for it, and takes the items with the GIL held. So a busy interpreter never holds up the engine,
 * and an interpreter that ends cannot deadlock with it.
 *
 * Lifetimes. Items carry a token, a number that Python gave, never a pointer to a Python object. A closed port drops its items: results are
 * destroyed, calls are failed, so that no thread waits for an answer that cannot come.
 *
 * Fork. Handles belong to the process that made them. In a forked child every use raises, and nothing is destroyed: the child does not have
 * the engine's thread.
 */
#ifndef WORKCELL_NATIVE_H
#define WORKCELL_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "workcell.h"

/* Of one port, not taken yet.  Past it output is counted instead of kept; a result has its head and tail all the same. */
#define PENDING_BYTES_MAX (64u << 20)

/* Item types past those of enum cell_event_type. */
enum { ITEM_TOOL_CALL = 20, ITEM_BEFORE, ITEM_AFTER, ITEM_TOOL_EVENT, ITEM_LOG };

struct item;
struct port;

struct port *port_ref(struct port *port);
void port_unref(struct port *port);
/* Any thread; takes the item over. */
void port_push(struct port *port, struct item *item);
size_t port_pending(struct port *port);

/*
 * A thread that stays with a cell that it starts, or with a call that it approves: `heard` once something that asks for an answer
 * or is output was pushed to some port, or the result is here.  It comes here, and not to the port, where nothing waits there that came before it.
 */
struct stay {
	struct reg *reg;
	struct cell_result *result;
	int heard;
};
extern _Thread_local struct stay stay;

/* The receiver of events: the argument of the library's callbacks. */
struct reg {
	struct port *port;
	uint64_t token;
	unsigned mask;      /* 1 << enum cell_event_type: the requested events */
	uint64_t lost;      /* output bytes that were dropped */
	struct item *last;  /* for the result, so that it cannot fail for want of memory */
};
struct reg *reg_create(struct port *port, uint64_t token, unsigned mask, bool with_last);
void reg_destroy(struct reg *reg);

/* Callbacks of the library. */
void on_run_event(void *arg, const struct cell_event *event);     /* frees its reg with the result */
void on_session_event(void *arg, const struct cell_event *event);
void on_tool_call(void *arg, struct cell_tool_call *call);
void on_before(void *arg, struct cell_middleware_call *call);
void on_after(void *arg, struct cell_middleware_call *call);
void on_tool_event(void *arg, const struct cell_tool_event *event);
void on_log(void *arg, enum cell_log_level level, const char *line);

/* An event as a tuple (type, ...), as items of ports are after their token. */
PyObject *event_tuple(const struct cell_event *event);

/* ---- module-wide ---- */

extern PyObject *native_error;   /* NativeError(message, word, code, errno) */
extern PyTypeObject *port_type, *result_type, *call_type, *before_type, *question_type;

int raise_error(const struct cell_error *err);
int raise_message(int code, int sys, const char *message);
PyObject *text_of(const char *text, size_t size);
PyObject *text_or_none(const char *text);
PyObject *result_wrap(struct cell_result *result);
PyObject *no_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
PyObject *pointer_wrap(PyTypeObject *type, void *pointer);
struct port *port_of(PyObject *object);

int add_type(PyObject *module, const char *name, PyTypeObject *type); /* NULL: it could not be made */
int add_port_type(PyObject *module);
int add_result_type(PyObject *module);
int add_call_types(PyObject *module);
int add_handle_types(PyObject *module);

/* ---- options from dicts ---- */

enum option_kind { OPT_TEXT, OPT_INT, OPT_INT64, OPT_UNSIGNED, OPT_LIST };

struct option {
	const char *name;
	enum option_kind kind;
	size_t offset;
};

/* Fills the structure; *keep holds what it points to.  An unknown name is a TypeError. */
int fill_options(PyObject *dict, const struct option *table, size_t count, void *out, PyObject **keep);

/* sessions.c */
PyObject *session_replay(PyObject *self, PyObject *args);

#endif
