/* Engine, Space, Session, Policy, Audit: handles of the library with the GIL released around what waits. */
#ifndef WORKCELL_HANDLE_H
#define WORKCELL_HANDLE_H

#include "native.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/*
 * `users` are threads inside a call with the GIL released; the GIL guards it. A handle is closed when it has no users any more, and refuses
 * new users from the moment that closing is requested.
 */
struct handle {
	PyObject_HEAD void *pointer;
	pid_t pid;
	int users;
	bool closing;
	struct handle *engine; /* NULL for the engine itself, and for policies */
	PyObject *keep;        /* objects that must outlive it */
	struct reg *regs[1];   /* session: of its events; engine: of its log */
	struct reg **more;     /* space: of tools, middlewares, events */
	size_t n_more;
	char **variables;      /* space: for ${VAR}, "K=V" by name */
	size_t n_variables;
	PyObject *progress;    /* space */
};

#define HANDLE(object) ((struct handle *)(object))

extern PyTypeObject *engine_type, *space_type, *session_type, *policy_type, *audit_type;

struct handle *new_handle(PyTypeObject *type, PyObject *engine);
/* The handle becomes what the library gave, or goes. */
PyObject *finish_new(struct handle *self, int rc, void *pointer, const struct cell_error *err);
PyObject *handle_close(PyObject *self, PyObject *args);

/* -1 with an exception set: it is closed, or belongs to another process. */
int usable(struct handle *self);
int enter(PyObject *object);
void leave(PyObject *object);

/* A call of the library that may wait, by a thread that has entered: releases the GIL, and leaves afterwards. */
#define INSIDE(object, call)                             \
	({                                               \
		__typeof__(call) answer_;                \
		Py_BEGIN_ALLOW_THREADS answer_ = (call); \
		Py_END_ALLOW_THREADS leave(object);      \
		answer_;                                 \
	})

PyObject *none_or_error(int rc, const struct cell_error *err);
int check_type(PyObject *object, PyTypeObject *type, const char *what);
/* Lives as long as the handle. */
struct reg *add_reg(struct handle *self, PyObject *port, unsigned long long token, unsigned mask);

PyObject *space_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
extern PyMethodDef space_methods[];
PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
extern PyMethodDef session_methods[];

#endif
