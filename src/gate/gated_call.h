/* A call on its way through the gate, shared by gate.c and middleware.c. */
#ifndef CELL_GATE_GATED_CALL_H
#define CELL_GATE_GATED_CALL_H

#include "gate/gate.h"
#include "tools/tools.h"

/* The outcome of a call. */
struct cell__call_outcome {
	bool failed;
	json_t *result;
	char *raw;
	size_t raw_size;
	int code;
	char *type, *message; /* failed; NULL: out of memory */
};

struct cell__gated_call {
	struct cell__call inner; /* the call that runs; its args are a reference of ours */
	struct cell__call *outer; /* the asker; NULL: no longer waits */
	struct cell__gate *gate;  /* NULL: as above */
	enum cell__gate_kind kind;
	uint64_t id;
	char request_id[32];
	char span_id[CELL_SPAN_DIGITS + 1]; /* of its own; "": none */
	char session_id[40], executor[24]; /* for holders of the call after the session's end */
	int64_t started_us;
	int64_t deadline_ms; /* parked; -1: none */
	bool parked;
	struct cell__principal principal; /* of inner: the asker may end before the call */
	bool ran; /* it was let through */
	bool recording; /* its record is being written, which will end the call */
	struct cell__tool_choice choice;
	const struct cell_call_info *call_info; /* NULL: no receiver */
	struct cell__call_outcome outcome;
	const char *decision; /* "denied", "rejected", "expired" when it was refused; else NULL */
	enum cell__audit_decision audited;
	enum cell__audit_by by;
	int rule; /* of the policy */
	const char *rule_name; /* the policy's, or a middleware's; or NULL */
	json_t *shown; /* shown instead of the arguments if they say too little or too much; or NULL */
	struct cell__call preview; /* deps.sync: the packages that would be installed */
	bool was_parked;
	json_t *args_before; /* as the code gave them, if they were changed */
	json_t *content; /* a question: the content of its answer */
	struct cell__pace_wait wait; /* for room in the audit log */
	struct cell__gated_call *next, *prev;
	struct cell__gated_call *parked_next, *parked_prev;
	/* middleware.c's */
	struct cell__reply reply; /* with a reference once a function held the call */
	size_t at;      /* how many `before` functions were passed */
	bool going_out; /* the outcome is there */
	bool held;      /* by a function of the host */
	char *text;     /* of arguments or result, for the host */
	char tool_name[128];
};

/* ---- gate.c ---- */

/* All `before` functions were passed. */
void cell__gated_call_decide(struct cell__gated_call *gated);
/* All `after` functions were passed: the asker gets the outcome. */
void cell__gated_call_deliver(struct cell__gated_call *gated);
/* Replaces the outcome. */
void cell__gated_call_answer(struct cell__gated_call *gated, json_t *result, const void *raw, size_t raw_size);
void cell__gated_call_fail(struct cell__gated_call *gated, int code, const char *type, const char *message);
void cell__gated_call_destroy(struct cell__gated_call *gated);
/* The arguments that a person is shown. */
json_t *cell__gated_call_args(const struct cell__gated_call *gated);
const char *cell__gated_call_tool(const struct cell__gated_call *gated);
/* Describes it again for event listeners; -1: out of memory. */
int cell__gated_call_make_info(struct cell__gated_call *gated);
/* The policy's decision about the call in its present form. */
void cell__gated_call_consult(const struct cell__gated_call *gated, struct cell_policy_verdict *ret_verdict);
/* It may be done. */
void cell__gated_call_run(struct cell__gated_call *gated);
/* Ends a call that was not let through; the message is before, the call's name, after, and the reason. */
void cell__gated_call_refuse(struct cell__gated_call *gated, const char *decision, const char *type, const char *before, const char *after,
			     const char *reason);
/* A person answered, or the time ran out. */
void cell__gated_call_unpark(struct cell__gated_call *gated, const char *decision, const char *reason);
/* The same call needs no second answer; -1: out of memory. */
int cell__gated_call_remember(struct cell__gated_call *gated);

/* ---- middleware.c ---- */

struct cell__middlewares {
	struct cell_middleware *list;
	size_t count;
	struct cell__loop_ref *loop_ref; /* made with the first one */
};

int cell__middlewares_add(struct cell__middlewares *all, const struct cell_middleware *middleware, struct cell__loop *loop,
			  struct cell_error *err);
void cell__middlewares_finish(struct cell__middlewares *all);
/* Continues with the next `before` function, or with the next `after` function once there is an outcome. */
void cell__gated_call_walk(struct cell__gated_call *gated);

#endif
