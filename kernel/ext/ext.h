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
#include <sys/socket.h>

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

/* What a cell ends with if that is all: its value as JSON and its repr. */
struct wc_result {
	const char *value, *repr;
	size_t value_size, repr_size;
	bool has_value, has_repr;
};
/* Interrupts meant for this run are welcome from now on. False: there is one, or this is a forked child. */
bool wc_begin_run(uint32_t id);
/* In a forked child? It has no connection. */
bool wc_is_detached(void);
/* No more interrupts; all output of children so far is counted; sends the RESULT. -1 with an exception set. */
int wc_send_result(uint32_t id, const struct wc_result *result);

/* NULL, with an OSError set that names the step and errno. */
PyObject *wc_fail_step(const char *step);
/* The same for a value in two pieces, and for a RESULT whose JSON says it all. */
int wc_send_value(uint32_t id, const char *value, size_t size, const char *more, size_t more_size);
int wc_send_error(uint32_t id, const char *json, size_t size);
/* Is there an interrupt for the run that was begun? */
bool wc_is_interrupted(void);
/* The memory that is shared with the host for data; in a fork as well. */
char *wc_bulk_memory(void);
/* In the zygote: how long a write to a pipe takes on this machine. */
void wc_measure_write(void);
/*
 * Makes this process the leader of a session. In a sandbox lifeline is -1: there is a pid 1 that reaps, and whose end is ours. -1 with an
 * exception set.
 */
int wc_lead(int lifeline);

struct wc_ends {
	int sock, out, err;
	int lifeline; /* -1: in a sandbox */
};
/* The descriptors of this kernel. */
struct wc_ends wc_ends(void);
/* A frame, with the GIL held all the time; 0 or an errno. */
int wc_send_now(uint8_t type, uint32_t id, const char *json, size_t size);
/* Its memory that is shared with the host, and how much it is; 0: it is not a kernel. */
size_t wc_ring(void **ret_ring);
/*
 * In a fork of this kernel, after new descriptors have taken the numbers of the old ones: maps the new ring at the address of the old one
 * (ring_fd -1: it is there), and forgets all state of the connection. -1 with an exception set.
 */
int wc_begin_again(int ring_fd);

/* ---- bulk.c ---- */

PyObject *wc_bulk(PyObject *self, PyObject *unused);
PyObject *wc_free_bulk(PyObject *self, PyObject *unused);
PyObject *wc_blank(PyObject *self, PyObject *size);
PyObject *wc_fill(PyObject *self, PyObject *args);

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

/* ---- script.c ---- */

PyObject *wc_script_kernel(PyObject *self, PyObject *unused);
PyObject *wc_script_child(PyObject *self, PyObject *unused);
PyObject *wc_script_begin(PyObject *self, PyObject *args);
PyObject *wc_script_refuse(PyObject *self, PyObject *text);
PyObject *wc_script_run(PyObject *self, PyObject *args);
/* 1: the cell was a program, and its RESULT is sent. 0: it is for Cells.run(). -1 with an exception set. */
int wc_run_script(uint32_t id, const char *raw, size_t size);
/* Has the first program run?  Then no cell does any more. */
bool wc_has_programs(void);

/* ---- template.c ---- */

PyObject *wc_template_code(PyObject *self, PyObject *unused);
/*
 * In a process that forks many others, which do what program() does and end with status 0: its page table has only the data that they use.
 * -1: memory is missing, and the process cannot go on.  Where it cannot be done everything stays as it is.
 */
int wc_template_data(void (*program)(void));

/* ---- Python's allocators ---- */

/* Exported by every CPython since 3.5; the limited API's headers do not show them. */
struct wc_allocator {
	void *ctx;
	void *(*malloc)(void *ctx, size_t size);
	void *(*calloc)(void *ctx, size_t count, size_t size);
	void *(*realloc)(void *ctx, void *at, size_t size);
	void (*free)(void *ctx, void *at);
};
extern void PyMem_GetAllocator(int domain, struct wc_allocator *ret_allocator);
extern void PyMem_SetAllocator(int domain, struct wc_allocator *allocator);

/* ---- early.c ---- */

/* In a process that forks programs, before the first fork that wc_early_begin() is called in. */
void wc_early_prepare(void);
/* In a program, before it allocates anything: its first objects come from malloc(). */
void wc_early_begin(void);

/* ---- alone.c ---- */

PyObject *wc_is_alone(PyObject *self, PyObject *args);

/* ---- branch.c ---- */

#define WC_PASSED_FDS 7
/* Descriptors come with the bytes of a FORK frame, and only with those: wc_take_fds() returns them. */
void wc_keep_passed(struct msghdr *msg);
PyObject *wc_take_fds(PyObject *self, PyObject *unused);
PyObject *wc_branch(PyObject *self, PyObject *unused);
PyObject *wc_become_branch(PyObject *self, PyObject *args);

/* ---- heap.c ---- */

/* In the zygote, before the first fork: large sessions get huge pages from now on. */
void wc_heap_begin(void);

/* ---- zygote.c ---- */

PyObject *wc_title(PyObject *self, PyObject *args);
PyObject *wc_zygote_open(PyObject *self, PyObject *fd);
PyObject *wc_zygote_leave(PyObject *self, PyObject *unused);
PyObject *wc_zygote_next(PyObject *self, PyObject *args);
PyObject *wc_zygote_send(PyObject *self, PyObject *args);

/* ---- image.c, image_load.c ---- */

#define WC_IMAGES_USED (WC_PASSED_FDS - 1) /* earlier images that one refers to */
#define WC_TOKEN_BYTES 32
#define WC_IMAGES_KEPT 2                   /* and if they are too many */

/* In the zygote, before the first fork.  The arguments of the process lie there; 0: not known. */
void wc_image_begin(uintptr_t *ret_args, uintptr_t *ret_args_end);
PyObject *wc_image_save(PyObject *self, PyObject *args);
PyObject *wc_image_load(PyObject *self, PyObject *args);
PyObject *wc_image_given(PyObject *self, PyObject *unused);
PyObject *wc_image_learn(PyObject *self, PyObject *unused);

/* ---- cell.c ---- */

PyObject *wc_remember_py(PyObject *self, PyObject *args);
PyObject *wc_is_expression_py(PyObject *self, PyObject *args);

#define WC_NUMBER_BYTES 24
/* Writes the decimal digits of a number, without a NUL; returns how many bytes they are. */
size_t wc_put_number(char out[static WC_NUMBER_BYTES], long long number);
/*
 * Is this one line without "=" and ";" that begins neither with a space nor with one of the words in the set `statements`? It is likely an
 * expression; only compiling it tells. -1 with an exception set.
 */
int wc_is_expression(const char *text, size_t size, PyObject *statements);
/* Writes a value whose repr is also the value as JSON, an int of 64 bits; returns how many bytes that is, 0 for every other value. */
size_t wc_put_plain(char out[static WC_NUMBER_BYTES], PyObject *value);
/* Stores the value of cell n under _, _n and Out[n], the previous ones under __ and ___. -1 with an exception set. */
int wc_remember(PyObject *ns, PyObject *out, PyObject *n, PyObject *value);

/* ---- plain.c ---- */

PyObject *wc_names_before(PyObject *self, PyObject *ns);
PyObject *wc_names_differ(PyObject *self, PyObject *args);
PyObject *wc_plain_begin(PyObject *self, PyObject *args);
PyObject *wc_plain(PyObject *self, PyObject *args);
/* 1: the cell has run and its RESULT is sent. 0: it is for Cells.run(). -1 with an exception set. */
int wc_run_plain(uint32_t id, const char *raw, size_t size);
PyObject *wc_in_plain(PyObject *self, PyObject *unused);
PyObject *wc_leave_plain(PyObject *self, PyObject *unused);

#endif
