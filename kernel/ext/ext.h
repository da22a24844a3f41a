/*
 * Shared by the files of the kernel's C part. State is the process's own; all of it is touched with the GIL held, except by wc_exchange()
 * between releasing it and taking it again.
 */
#ifndef CELL_KERNEL_EXT_H
#define CELL_KERNEL_EXT_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>

#include <stdbool.h>

#include "wire/frame.h"
#include "wire/inproc_abi.h"

/* Exported by every CPython since 3.3; the limited API's headers show it from 3.10 on. */
extern const char *PyUnicode_AsUTF8AndSize(PyObject *unicode, Py_ssize_t *size);

/* ---- _workcell.c ---- */

enum wc_exchange {
	WC_NOT_SENT,    /* nothing has happened */
	WC_INTERRUPTED, /* sent; a signal came, or may have come: ask again with json NULL, after the handlers ran */
	WC_SENT,        /* sent; something came, an end or an error may be among it: recv() tells */
};
/* Sends a CALL, or nothing when json is NULL, and waits until something comes.  Nothing may have been received before. */
enum wc_exchange wc_exchange(uint32_t id, const char *json, size_t size);
/* True when frames can be exchanged and all received bytes have been processed. */
bool wc_is_quiet(void);
/* The bytes received so far, if they are a whole frame; points into the buffer. */
bool wc_peek(struct cell_frame *ret_frame);
/* Done with the frame that was peeked at. */
void wc_skip(const struct cell_frame *frame);

/* The bytes that a str is written as; *ret_memory holds them where they are not the str's own.  NULL: an exception is set. */
const char *wc_text_bytes(PyObject *text, Py_ssize_t *ret_size, PyObject **ret_memory);

/* ---- hostlink.c ---- */

int wc_add_link(PyObject *module);
bool wc_is_link(PyObject *object);
/* A CALL and its REPLY; lets go of the GIL meanwhile. */
enum cell_inproc_status wc_link_ask(PyObject *link, const struct cell_frame *call, struct cell_inproc_message **ret_reply);
/* NULL, with an exception set. */
PyObject *wc_link_fail(enum cell_inproc_status status);

/* ---- caller.c ---- */

PyObject *wc_encode(PyObject *self, PyObject *args);
PyObject *wc_attach(PyObject *self, PyObject *args);
PyObject *wc_in_call(PyObject *self, PyObject *unused);
int wc_add_caller(PyObject *module);

/* ---- branch.c ---- */

PyObject *wc_branch(PyObject *self, PyObject *unused);

/* ---- cell.c ---- */

PyObject *wc_remember(PyObject *self, PyObject *args);

#endif
