/*
 * Connects a slot's gate with the answerer of the session: parked calls and their effect on the clock, questions of MCP servers,
 * answers.
 */
#include <string.h>

#include "base/sized.h"
#include "session/session.h"
#include "space/space.h"

/* ---- callbacks of the gate ---- */

static bool somebody_listens(void *owner)
{
	struct cell__slot *slot = owner;
	struct cell__run *run = cell__slot_run(slot);
	return run ? run->on_event != NULL : slot->session->options.on_event != NULL;
}

static void emit_call(void *owner, const struct cell_event *event)
{
	struct cell__slot *slot = owner;
	struct cell_session *session = slot->session;
	struct cell__run *run = cell__slot_run(slot);
	if (run) {
		cell__run_call_event(run, event);
		if (!slot->leaving)
			cell__slot_update_pause(session);
	} else {
		cell__session_emit(session, event);
	}
}

/* While an approval is pending, the timeout of the run stands still, if the options ask for that. */
static void update_clock(struct cell_session *session, size_t parked)
{
	struct cell__run *run = session->current;
	if (parked < session->parked_before)
		session->parked_before = parked;
	if (!session->options.approval_stops_clock || !run || !run->started || run->ending || run->timed_out || run->cancelled ||
	    run->timeout_ms < 0)
		return;
	bool stop = parked > session->parked_before;
	if (stop == session->clock_stopped)
		return;
	session->clock_stopped = stop;
	uv_update_time(cell__loop_uv(session->engine->loop));
	if (stop) {
		session->clock_left_ms = uv_timer_get_due_in(&session->timer);
		uv_timer_stop(&session->timer);
	} else {
		cell__session_start_timer(session, session->clock_left_ms);
	}
}

static void handle_approval_timer(uv_timer_t *timer);

/* The timer is for the first of all that wait. */
static void start_approval_timer(struct cell_session *session)
{
	int64_t deadline = session->slot ? cell__gate_deadline(&session->slot->gate) : -1, now = cell__now_us() / 1000;
	int64_t other = cell__gate_deadline(&session->clients);
	if (deadline < 0 || (other >= 0 && other < deadline))
		deadline = other;
	if (deadline < 0) {
		uv_timer_stop(&session->approval_timer);
		return;
	}
	uv_update_time(cell__loop_uv(session->engine->loop));
	uv_timer_start(&session->approval_timer, handle_approval_timer, deadline > now ? (uint64_t)(deadline - now) : 0, 0);
}

static void handle_approval_timer(uv_timer_t *timer)
{
	struct cell_session *session = timer->data;
	if (session->slot)
		cell__gate_expire(&session->slot->gate);
	cell__gate_expire(&session->clients);
	start_approval_timer(session);
}

static size_t parked_in(const struct cell_session *session)
{
	size_t n = session->slot ? session->slot->gate.n_parked : 0;
	for (const struct cell_session *child = session->children; child; child = child->sibling)
		n += parked_in(child);
	return n;
}

static void handle_parked(void *owner)
{
	struct cell__slot *slot = owner;
	struct cell_session *session = slot->session;
	if (session->slot != slot)
		return; /* it is closing: nothing of it expires any more */
	start_approval_timer(session);
	/* Cells that wait for a child wait for its approvals too. */
	for (; session; session = session->mother)
		update_clock(session, parked_in(session));
}

static struct cell__gate gate_of(struct cell_session *session)
{
	return (struct cell__gate){
		.target = &cell__space_target,
		.space = session->options.space,
		.session_id = session->id,
		.executor = session->executor->name,
		.cwd = session->options.cwd,
		.policy = session->options.policy,
		.kinds = session->options.gate_kinds,
		.timeout_ms = session->options.approval_timeout_ms,
		.audit = session->options.audit ? cell__audit_of(session->options.audit) : NULL,
		.pace = session->pace,
		.next_id = &cell__children_root(session)->next_call_id, /* a client of the root answers for its children too */
		.remembered = &session->remembered,
		.results = session->options.call_results,
		.takes_input = session->options.wants.notebook && session->options.takes_questions,
	};
}

void cell__approvals_init_gate(struct cell__slot *slot)
{
	slot->gate = gate_of(slot->session);
	slot->gate.cell_hash = slot->session->cell_hash;
	slot->gate.listens = somebody_listens;
	slot->gate.emit = emit_call;
	slot->gate.parked = handle_parked;
	slot->gate.sessions = cell__children_handle;
	slot->gate.owner = slot;
}

/* ---- clients ---- */

static bool client_is_heard(void *owner)
{
	struct cell_session *session = owner;
	return session->options.on_event != NULL;
}

static void emit_for_client(void *owner, const struct cell_event *event)
{
	cell__session_emit(owner, event);
}

static void handle_client_parked(void *owner)
{
	struct cell_session *session = owner;
	if (!session->closing)
		start_approval_timer(session);
}

void cell__approvals_init_clients(struct cell_session *session)
{
	session->clients = gate_of(session);
	session->clients.listens = client_is_heard;
	session->clients.emit = emit_for_client;
	session->clients.parked = handle_client_parked;
	session->clients.owner = session;
}

/* ---- questions and notifications of its space's MCP servers ---- */

struct cell_session *cell__session_of(struct cell_engine *engine, const struct cell_space *space, const char *id)
{
	struct cell_session *found = NULL;
	for (struct cell_session *session = engine->sessions; session; session = session->next) {
		if (session->options.space != space || session->closing)
			continue;
		if (id && strcmp(session->id, id) == 0)
			return session;
		if (!id && found)
			return NULL;
		found = session;
	}
	return id ? NULL : found;
}

bool cell__session_takes_questions(const struct cell_session *session)
{
	return session->options.takes_questions && session->slot && !session->closing;
}

bool cell__session_any_takes_questions(struct cell_engine *engine, const struct cell_space *space)
{
	for (const struct cell_session *session = engine->sessions; session; session = session->next)
		if (session->options.space == space && session->options.takes_questions && !session->closing)
			return true;
	return false;
}

void cell__session_ask(struct cell_session *session, struct cell__call *question)
{
	cell__gate_ask(&session->slot->gate, &session->principal, question);
}

void cell__session_call_on_loop(struct cell_session *session, const struct cell__principal *principal, struct cell__call *call)
{
	const struct cell__operation *operation = cell__operation_find(call->method);
	bool tool = operation && operation->kind == CELL__GATE_TOOL;
	if (session->closing) {
		call->fail(call, CELL_E_CLOSED, "RuntimeError", "the session is closed");
		return;
	}
	/* Handled here, the call would be made on this machine, which this executor must prevent. */
	if (tool && session->executor->calls_there) {
		call->fail(call, CELL_E_UNAVAILABLE, "ExecutorError",
			   "with this executor tools are called where the code runs; call the tool in a cell");
		return;
	}
	/* Set the owner of the sandbox and the questions; artifacts that a client has open outlive a reset. */
	if (!operation || operation->part != CELL__PART_ARTIFACTS)
		call->session_id = session->id;
	cell__gate_submit(&session->clients, principal, call);
}

void cell__session_tell(struct cell_session *session, enum cell_event_type type, const struct cell__call *call, const char *tool,
			const char *json)
{
	if (session->slot)
		cell__gate_tell(&session->slot->gate, type, call, tool, json);
}

/* ---- public: any thread ---- */

struct answering {
	struct cell_session *session;
	uint64_t id;
	const struct cell_approval_answer *answer; /* NULL: list them */
	json_t *list;
	struct cell_error err;
	int rc;
};

static int add_list(json_t *list, const struct cell__gate *gate)
{
	json_t *more = cell__gate_list(gate);
	int rc = more ? json_array_extend(list, more) : -1;
	json_decref(more);
	return rc;
}

/* With those of its children, unless a keeper lists them as sessions of their own. */
static int list_below(const struct cell_session *session, json_t *list)
{
	int rc = session->slot ? add_list(list, &session->slot->gate) : 0;
	if (rc == 0)
		rc = add_list(list, &session->clients);
	for (const struct cell_session *child = session->keeper ? NULL : session->children; rc == 0 && child; child = child->sibling)
		rc = list_below(child, list);
	return rc;
}

static struct cell__gate *find_gate(struct cell_session *session, uint64_t id)
{
	struct cell__gate *found = NULL;
	if (cell__gate_waits(&session->clients, id))
		return &session->clients;
	if (session->slot && cell__gate_waits(&session->slot->gate, id))
		return &session->slot->gate;
	for (struct cell_session *child = session->children; child && !found; child = child->sibling)
		found = find_gate(child, id);
	return found;
}

static void answer_one(struct cell_session *session, struct answering *answering)
{
	struct cell__gate *gate = find_gate(session, answering->id);
	if (!gate && session->slot)
		gate = &session->slot->gate; /* it says that there is no such request */
	if (gate)
		answering->rc = cell__gate_answer(gate, answering->id, answering->answer, &answering->err);
	else
		answering->rc = cell_fail(&answering->err, CELL_E_NOT_FOUND, 0, "request %llu is no longer pending: its kernel has ended",
					  (unsigned long long)answering->id);
}

/* An answer may end a child's call, but never a session. */
static void answer_below(struct cell_session *session, struct answering *answering)
{
	answering->rc = cell__gate_answer(&session->clients, 0, answering->answer, &answering->err);
	if (answering->rc == 0 && session->slot)
		answering->rc = cell__gate_answer(&session->slot->gate, 0, answering->answer, &answering->err);
	for (struct cell_session *child = session->children; answering->rc == 0 && child; child = child->sibling)
		answer_below(child, answering);
}

static void do_answer(void *arg)
{
	struct answering *answering = arg;
	if (!answering->answer) {
		answering->list = json_array();
		if (list_below(answering->session, answering->list) < 0)
			json_decref(cell__take_ptr(answering->list));
	} else if (answering->id == 0) {
		answer_below(answering->session, answering);
	} else {
		answer_one(answering->session, answering);
	}
}

int cell_session_answer(struct cell_session *session, uint64_t id, const struct cell_approval_answer *answer, struct cell_error *err)
{
	if (cell__require(err, session, answer) < 0)
		return -1;
	struct cell_approval_answer all = CELL_APPROVAL_ANSWER_INIT;
	if (cell__sized_read(&all, sizeof all, answer, "cell_approval_answer", err) < 0)
		return -1;
	if (all.args && (!all.accept || id == 0))
		return cell_fail(err, CELL_E_INVALID, 0, "edited arguments can only be given when one request is accepted");
	if (all.reason && !cell__utf8_ok(all.reason, strlen(all.reason)))
		return cell_fail(err, CELL_E_INVALID, 0, "the reason is not UTF-8");
	if (cell__session_check_spin(session, &all.spin_us, all.spin_end, err) < 0)
		return -1;
	struct answering answering = { .session = session, .id = id, .answer = &all };
	cell__loop_call_and_stay(session->engine->loop, do_answer, &answering, all.spin_end, all.spin_us);
	if (answering.rc < 0 && err)
		*err = answering.err;
	return answering.rc;
}

int cell_session_approvals(struct cell_session *session, char **ret_json, struct cell_error *err)
{
	if (cell__require(err, session, ret_json) < 0)
		return -1;
	struct answering answering = { .session = session };
	cell__loop_call(session->engine->loop, do_answer, &answering);
	char *text = answering.list ? json_dumps(answering.list, JSON_COMPACT) : NULL;
	json_decref(answering.list);
	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	*ret_json = text;
	return 0;
}
