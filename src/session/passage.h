/* A call on its way through the gate: what gate.c and middleware.c share. */
#ifndef CELL_SESSION_PASSAGE_H
#define CELL_SESSION_PASSAGE_H

#include "session/gate.h"
#include "tools/tools.h"

/* What came of a call. */
struct cell__outcome {
	bool failed;
	json_t *result;
	char *raw;
	size_t raw_size;
	int code;
	char *type, *message; /* failed; NULL: no memory */
};

struct cell__passage {
	struct cell__call inner; /* what runs; its args are a reference of ours */
	struct cell__call *outer; /* who asked; NULL: nobody waits any more */
	struct cell__gate *gate;  /* NULL: as above */
	enum cell__gate_kind kind;
	uint64_t id;
	char request_id[32];
	char session_id[40], executor[24]; /* for those who hold the call past the session's end */
	int64_t started_us;
	int64_t deadline_ms; /* parked; -1: none */
	bool parked;
	struct cell__principal principal; /* of inner: who asked may be gone before the call is */
	bool ran; /* it was let through */
	bool recording; /* its record is being written, and that will end it */
	struct cell__tool_choice choice;
	const struct cell_call_info *card; /* NULL: nobody wants one */
	struct cell__outcome outcome;
	const char *decision; /* "denied", "rejected", "expired" when it was refused; else NULL */
	enum cell__audit_decision audited;
	enum cell__audit_by by;
	int rule; /* of the policy */
	const char *rule_name; /* the policy's, or a middleware's; or NULL */
	json_t *shown; /* what stands for the arguments where they say too little, or too much; or NULL */
	struct cell__call look; /* deps.sync: what would be installed */
	bool was_parked;
	json_t *args_before; /* as the code gave them, where somebody changed them */
	json_t *content; /* a question: what it was answered with */
	struct cell__pace_wait wait; /* for room in the audit log */
	struct cell__passage *next, *prev;
	struct cell__passage *parked_next, *parked_prev;
	/* middleware.c's */
	struct cell__task task;
	struct cell__door *door;
	size_t at;      /* how many `before` functions were passed */
	bool going_out; /* the outcome is there */
	bool held;      /* by a function of the host */
	char *text;     /* of arguments or result, for the host */
	char tool_name[128];
	int action;
	struct cell__buf reply;
};

/* ---- gate.c ---- */

/* All `before` functions were passed. */
void cell__passage_decide(struct cell__passage *passage);
/* All `after` functions were passed: the asker gets the outcome. */
void cell__passage_deliver(struct cell__passage *passage);
/* Replaces the outcome. */
void cell__passage_answer(struct cell__passage *passage, json_t *result, const void *raw, size_t raw_size);
void cell__passage_fail(struct cell__passage *passage, int code, const char *type, const char *message);
void cell__passage_destroy(struct cell__passage *passage);

/* ---- middleware.c ---- */

struct cell__middlewares {
	struct cell_middleware *list;
	size_t count;
	struct cell__door *door; /* made with the first one */
};

int cell__middlewares_add(struct cell__middlewares *all, const struct cell_middleware *middleware,
			  struct cell__loop *loop, struct cell_error *err);
void cell__middlewares_finish(struct cell__middlewares *all);
/* Goes on inwards, or once there is an outcome outwards. */
void cell__passage_walk(struct cell__passage *passage);

#endif
