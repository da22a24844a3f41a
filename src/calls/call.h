/*
 * A namespace call: a request of code in a kernel to the host (`tools.call`, `artifacts.save`, ...), answered exactly
 * once.  Belongs to the loop's thread.
 *
 * The asker owns the call; its handler may keep the pointer until it answers.  When the asker ends first (the
 * session is closed, the kernel died) it calls cancel(), if the handler has set it; after that the handler must not
 * touch the call again, and neither answer() nor fail().
 */
#ifndef CELL_CALLS_CALL_H
#define CELL_CALLS_CALL_H

#include <jansson.h>
#include <stddef.h>

#include "base/base.h"
#include "wire/traceparent.h"

/* Memory that asker and handler share, counted; all of it on the loop's thread. */
struct cell__bulk {
	char *data;
	size_t size;
	unsigned refs;
	void (*release)(struct cell__bulk *bulk);
};

static inline struct cell__bulk *cell__bulk_ref(struct cell__bulk *bulk)
{
	if (bulk)
		bulk->refs++;
	return bulk;
}

static inline void cell__bulk_unref(struct cell__bulk *bulk)
{
	if (bulk && --bulk->refs == 0)
		bulk->release(bulk);
}

struct cell__operation;
struct cell__principal;

/* Embedded in what is worked on. */
struct cell__lent_work {
	void (*run)(struct cell__lent_work *work);  /* on the thread that was lent, once */
	void (*done)(struct cell__lent_work *work); /* afterwards, on the loop's thread */
};

/*
 * Work of the asker itself, which lends its thread for it once the call is allowed.  The asker's memory, valid until its call is over and the
 * work is done.
 */
struct cell__own_work {
	struct cell__lent_work lent; /* run: the asker's; done: set by the handler */
	struct cell__call *call;     /* to be answered; NULL: no longer */
	char *args;                  /* as they were allowed, JSON; the asker frees it */
	/* the outcome, set by run */
	json_t *result;
	int code;      /* CELL_E_*, with the message; 0: it went well */
	char message[240];
};

/* The span that a call belongs to. */
struct cell__call_trace {
	char parent[CELL_TRACEPARENT_SIZE]; /* passed on to servers; "": none */
	bool spans; /* each call gets a span id of its own, at the gate */
};

struct cell__call {
	/* the question, valid until it is answered */
	const char *method;    /* "tools.call" */
	json_t *args;          /* an object; NULL where the handler was given them as text */
	const void *raw;       /* bytes that came with the call */
	size_t raw_size;
	struct cell__bulk *bulk; /* shared memory that args may refer to; NULL: none.  A handler on another thread takes a reference */
	const char *session_id;
	const void *origin;    /* the kernel that asks, by any pointer of its own: a session may have an old and a new one; or NULL */
	const struct cell__operation *operation; /* the row of the method (calls/table.h); set when it is submitted */
	const struct cell__principal *principal; /* the caller (calls/principal.h); lives as long as the call */
	bool edited; /* a person has changed its arguments */
	void *client; /* the asker's own, for events about the call (cell_session_call()) */
	struct cell__call_trace trace;
	struct cell__own_work *work; /* CELL__PART_ASKER: what it does itself; else NULL */
	/* the answer: one of these, once; result is taken over, raw is copied */
	void (*answer)(struct cell__call *call, json_t *result, const void *raw, size_t raw_size);
	/* The same with the result as JSON text; an asker need not have it. */
	void (*answer_text)(struct cell__call *call, const char *result, const void *raw, size_t raw_size);
	void (*fail)(struct cell__call *call, int code, const char *type, const char *message);
	/*
	 * NULL, or called before the answer has to wait (for the audit log, for a function of the host): returns false if the asker has no
	 * room for this many bytes, and the call must fail instead.
	 */
	bool (*hold)(struct cell__call *call, size_t bytes);
	/*
	 * NULL, or receives progress: one line at a time, without its line break, NUL-terminated well-formed
	 * UTF-8; never after the answer.
	 */
	void (*progress)(struct cell__call *call, const char *line, size_t size);
	/*
	 * NULL, or lends the asker's own thread, which waits for the answer: work that may block is done there instead of on the pool,
	 * which saves the way to the pool and back.
	 */
	void (*lend)(struct cell__call *call, struct cell__lent_work *work);
	/*
	 * NULL, or repeats the call when the handler had to look something up first: it is then called instead
	 * of an answer.
	 */
	void (*again)(struct cell__call *call);
	/* the handler's own */
	void (*cancel)(struct cell__call *call);
	void *handler;
};

#endif
