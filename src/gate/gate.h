/*
 * The gate: calls of a kernel's code to the host pass here if they may need an approval.  Belongs to the loop's
 * thread.
 *
 *     asked ──▶ middlewares ──▶ chosen ──▶ policy ──allow──▶ runs ──▶ middlewares ──▶ audit ──▶ answered
 *                                            ├──ask──▶ parked ──accepted──▶ runs ...
 *                                            │           └── rejected, expired ──┐
 *                                            └──deny─────────────────────────────┴──▶ middlewares ──▶ audit ──▶ failed
 *
 * Every operation of the table (calls/table.h) that changes something passes through it, for every principal:
 *
 *     slot->gate        code of a session
 *     session->clients  clients of a session (MCP, HTTP), with the session's rules; a person is asked where its code's calls are
 *     space->gate       the host program, and clients without a session: nobody can be asked
 *
 * The host program decides on its own calls: a policy can deny them, but where it would ask, the call is allowed.
 *
 * The kernel only waits for its answer: nothing on its side can decide.  The person is shown the very object that runs.
 * A call whose asker ends (interrupt, reset, close, death) is cancelled in any state.
 *
 * A question of an MCP server to a person is parked like a call, and its answer goes to the server:
 *
 *     asked ──▶ parked ──accepted, with content──▶ audit ──▶ answered
 *                 └── rejected, expired, gone ──▶ audit ──▶ failed
 */
#ifndef CELL_GATE_H
#define CELL_GATE_H

#include "calls/table.h"
#include "calls/call.h"
#include "loop/loop_ref.h"
#include "gate/audit.h"
#include "gate/call_info.h"
#include "gate/pace.h"
#include "gate/policy.h"

struct cell__gated_call; /* one call on its way */

/* "Always": calls that need no second answer. */
struct cell__remembered {
	struct cell__remembered *next;
	const char *kind;
	char name[]; /* "tool.callable" */
};

struct cell__middlewares;
struct cell__tool_choice;

/* The target of allowed calls: the space of the gate's owner.  cwd is for command-line tools; NULL: the space's. */
struct cell__gate_target {
	/* Answers a call, now or later. */
	void (*handle)(struct cell_space *space, const char *cwd, struct cell__call *call);
	/* tools.call in two steps: see cell__tools_choose() and cell__tools_run(). */
	int (*choose)(struct cell_space *space, const char *cwd, struct cell__call *call, struct cell__tool_choice *ret_choice);
	void (*run)(struct cell_space *space, const char *cwd, const struct cell__tool_choice *choice, struct cell__call *call);
	/* The host's functions around its tool calls. */
	const struct cell__middlewares *(*middlewares)(const struct cell_space *space);
};

struct cell__gate {
	/* set by the owner */
	const struct cell__gate_target *target;
	struct cell_space *space; /* handed to the target; NULL: none */
	const char *session_id, *executor;
	const char *cwd; /* NULL: the space's */
	const struct cell_policy *policy; /* NULL: all is allowed */
	unsigned kinds; /* CELL_GATE_*: those the policy is asked about */
	int64_t timeout_ms; /* -1: none */
	struct cell__audit_log *audit; /* NULL: none */
	struct cell__pace *pace; /* NULL: no rate limit on its audit records */
	bool takes_input; /* input() of the code is a question to the receiver of events */
	const char *cannot_ask; /* why approvals are impossible, and what to do; NULL: they are possible */
	bool results; /* events about calls that succeeded have their results */
	const char *cell_hash; /* of the running cell; "" between cells; NULL: none */
	uint64_t *next_id;
	struct cell__remembered **remembered;
	bool (*listens)(void *owner); /* whether events have a receiver */
	void (*emit)(void *owner, const struct cell_event *event);
	void (*parked)(void *owner); /* the number of parked calls changed */
	/* NULL, or called when a tool's call begins to wait for a person; supposed: the result that its definition announces, or NULL. */
	void (*waits)(void *owner, struct cell__call *call, uint64_t id, const json_t *supposed);
	/* Answers a call of the namespace `sessions`, now or later.  NULL: it comes from no session's code. */
	void (*sessions)(void *owner, struct cell__call *call);
	void *owner;
	/* its own */
	struct cell__gated_call *first;
	struct cell__gated_call *parked_first, *parked_last; /* in the order of their deadlines */
	size_t n_parked;
	unsigned refused; /* calls refused since the owner last set it to 0 */
};

/* Whether tool calls need no gate and may go straight to the space. */
bool cell__gate_is_open(const struct cell__gate *gate);
/* Answers a call, now or later.  The principal lives as long as the call; what the gate keeps longer, it copies. */
void cell__gate_submit(struct cell__gate *gate, const struct cell__principal *principal, struct cell__call *call);
/*
 * Parks a question, {"tool", "callable", "params"}; `params` is what is shown.  It is answered with the content that was
 * given, which fits the requestedSchema, or fails with CELL_OUT_REJECTED, ApprovalTimeoutError when nobody decided.
 */
void cell__gate_ask(struct cell__gate *gate, const struct cell__principal *principal, struct cell__call *question);
/* The session ends: pending calls fail with CELL_E_CANCELLED. */
void cell__gate_drop(struct cell__gate *gate);
/* Its kernel ends: the same for tool calls of its clients and for parked requests. */
void cell__gate_drop_waiting(struct cell__gate *gate);
/* An event about a pending call (call NULL: about the tool) for the event receiver: PROGRESS or LOG, with JSON. */
void cell__gate_tell(struct cell__gate *gate, enum cell_event_type type, const struct cell__call *call, const char *tool, const char *json);
/* When the first parked call expires, in milliseconds of cell__now_us(); -1: never. */
int64_t cell__gate_deadline(const struct cell__gate *gate);
void cell__gate_expire(struct cell__gate *gate);
/* Whether this request is parked here. */
bool cell__gate_waits(const struct cell__gate *gate, uint64_t id);
/* id 0: all. */
int cell__gate_answer(struct cell__gate *gate, uint64_t id, const struct cell_approval_answer *answer, struct cell_error *err);
/* A new array; NULL: out of memory. */
json_t *cell__gate_list(const struct cell__gate *gate);

#endif
