/*
 * The interface between the kernel's extension and the library when both are in one process (the executor `inprocess`): function calls
 * instead of a socket. The library hands Python the address of a struct cell_inproc; messages have the types and meaning of frames
 * (wire/frame.h), but are not encoded.
 *
 * Every function may be called from any thread. Functions that may wait are called without the GIL; no function takes it.
 */
#ifndef CELL_WIRE_INPROC_ABI_H
#define CELL_WIRE_INPROC_ABI_H

#include <stdbool.h>

#include "wire/frame.h"

#define CELL_INPROC_VERSION 1u

enum cell_inproc_status {
	CELL_INPROC_OK,
	CELL_INPROC_CLOSED,      /* the session is over */
	CELL_INPROC_INTERRUPTED, /* an interrupt ended the wait; the request is cancelled */
	CELL_INPROC_NESTED,      /* called on the loop's own thread, from inside a callback of the host's */
	CELL_INPROC_FORKED,      /* in a process forked from the session's */
	CELL_INPROC_NO_MEMORY,
	CELL_INPROC_FULL,        /* write: the output is not read; wait() */
	CELL_INPROC_REFUSED,     /* the host found the message ill-formed */
};

/* The host's message; free() it. */
struct cell_inproc_message {
	struct cell_inproc_message *next;
	uint8_t type;
	uint32_t id;
	size_t json_size, raw_size;
	char data[]; /* json, then raw */
};

struct cell_inproc {
	uint32_t version;
	unsigned long main_thread; /* Python's number of the thread that runs cells */
	_Atomic int main_asks;     /* it sends a request or is about to; changed with the GIL held */
	_Atomic uint32_t run;      /* the run that may be interrupted; 0: none; changed with the GIL held */
	/* Each retain() needs its release(); after the last release() no function may be called. */
	void (*retain)(struct cell_inproc *kernel);
	void (*release)(struct cell_inproc *kernel);
	/* Returns once the host has taken it. */
	enum cell_inproc_status (*send)(struct cell_inproc *kernel, const struct cell_frame *frame);
	/* A CALL and its REPLY. */
	enum cell_inproc_status (*ask)(struct cell_inproc *kernel, const struct cell_frame *call, struct cell_inproc_message **ret_reply);
	/* Waits for the next message. After the end of the session it is SHUTDOWN. NULL: out of memory. */
	struct cell_inproc_message *(*receive)(struct cell_inproc *kernel);
	bool (*pending)(struct cell_inproc *kernel);
	/* A descriptor that is readable while a message waits, from this call on. */
	int (*watch)(struct cell_inproc *kernel);
	/* All of it or nothing (FULL); does not wait. */
	enum cell_inproc_status (*write)(struct cell_inproc *kernel, int stream, const char *bytes, size_t size);
	/* Waits a little for room. */
	void (*wait)(struct cell_inproc *kernel);
	/* The stdout (1) or stderr (2) of children of the session's code. */
	int (*pipe)(struct cell_inproc *kernel, int stream);
	/* The run that the host wants to interrupt; 0: no run. */
	uint32_t (*interrupted_run)(struct cell_inproc *kernel);
	bool (*is_forked)(struct cell_inproc *kernel);
};

#endif
