/*
 * Between a seat's gate and whoever answers for the session: calls that are parked and what they do to the clock, questions
 * of MCP servers, answers.
 */
#include <string.h>

#include "session/session.h"
#include "session/space.h"

/* ---- what the gate asks of us ---- */

static bool somebody_listens(void *owner)
{
	struct cell__seat *seat = owner;
	struct cell__run *run = cell__seat_run(seat);
	return run ? run->on_event != NULL : seat->session->options.on_event != NULL;
}

static void emit_call(void *owner, const struct cell_event *event)
{
	struct cell__seat *seat = owner;
	struct cell_session *session = seat->session;
	struct cell__run *run = cell__seat_run(seat);
	if (run)
		cell__run_call_event(run, event);
	else
		cell__session_emit(session, event);
}

/* While somebody is asked, the timeout of the run stands still, if that was asked for. */
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
	uv_update_time(&session->engine->loop.uv);
	if (stop) {
		session->clock_left_ms = uv_timer_get_due_in(&session->timer);
		uv_timer_stop(&session->timer);
	} else {
		cell__session_start_timer(session, session->clock_left_ms);
	}
}

static void handle_approval_timer(uv_timer_t *timer)
{
	struct cell_session *session = timer->data;
	if (session->seat)
		cell__gate_expire(&session->seat->gate);
}

static void handle_parked(void *owner)
{
	struct cell__seat *seat = owner;
	struct cell_session *session = seat->session;
	if (session->seat != seat)
		return; /* it is leaving: nothing of it expires any more */
	int64_t deadline = cell__gate_deadline(&seat->gate), now = cell__now_us() / 1000;
	if (deadline < 0) {
		uv_timer_stop(&session->approval_timer);
	} else {
		uv_update_time(&session->engine->loop.uv);
		uv_timer_start(&session->approval_timer, handle_approval_timer, deadline > now ? (uint64_t)(deadline - now) : 0,
			       0);
	}
	update_clock(session, seat->gate.n_parked);
}

void cell__approvals_init_gate(struct cell__seat *seat)
{
	struct cell_session *session = seat->session;
	seat->gate = (struct cell__gate){
		.space = session->options.space,
		.session_id = session->id,
		.executor = session->executor->name,
		.cwd = session->options.cwd,
		.policy = session->options.policy,
		.kinds = session->options.gate_kinds,
		.timeout_ms = session->options.approval_timeout_ms,
		.audit = session->options.audit ? cell__audit_of(session->options.audit) : NULL,
		.cell_hash = session->cell_hash,
		.next_id = &session->next_call_id,
		.remembered = &session->remembered,
		.listens = somebody_listens,
		.emit = emit_call,
		.parked = handle_parked,
		.owner = seat,
	};
}

/* ---- what MCP servers of its space say ---- */

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
	return session->options.takes_questions && session->seat && !session->closing;
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
	cell__gate_ask(&session->seat->gate, &session->principal, question);
}

void cell__session_call(struct cell_session *session, const struct cell__principal *principal, struct cell__call *call)
{
	if (!session->seat || session->closing) {
		call->fail(call, CELL_E_BUSY, "RuntimeError", "the session has no kernel now");
		return;
	}
	/* Here they would be made on this machine, which is what the executor is to keep them from. */
	if (session->executor->calls_there) {
		call->fail(call, CELL_E_UNAVAILABLE, "ExecutorError", "calls are made where the code runs; call the tool in a cell");
		return;
	}
	call->session_id = session->id;
	cell__gate_submit(&session->seat->gate, principal, call);
}

void cell__session_tell(struct cell_session *session, enum cell_event_type type, const struct cell__call *call,
			const char *tool, const char *json)
{
	if (session->seat)
		cell__gate_tell(&session->seat->gate, type, call, tool, json);
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

static void do_answer(void *arg)
{
	struct answering *answering = arg;
	struct cell__seat *seat = answering->session->seat;
	if (!answering->answer)
		answering->list = seat ? cell__gate_list(&seat->gate) : json_array();
	else if (seat)
		answering->rc = cell__gate_answer(&seat->gate, answering->id, answering->answer, &answering->err);
	else if (answering->id != 0)
		answering->rc = cell_fail(&answering->err, CELL_E_NOT_FOUND, 0, "request %llu is gone with its kernel",
					  (unsigned long long)answering->id);
}

int cell_session_answer(struct cell_session *session, uint64_t id, const struct cell_approval_answer *answer,
			struct cell_error *err)
{
	struct cell_approval_answer all = CELL_APPROVAL_ANSWER_INIT;
	if (answer->size < sizeof(size_t) || answer->size > sizeof all)
		return cell_fail(err, CELL_E_INVALID, 0, "cell_approval_answer.size is %zu, expected up to %zu", answer->size,
				 sizeof all);
	memcpy(&all, answer, answer->size);
	if (all.args && (!all.accept || id == 0))
		return cell_fail(err, CELL_E_INVALID, 0, "edited arguments go with the acceptance of one request");
	if (all.reason && !cell__utf8_ok(all.reason, strlen(all.reason)))
		return cell_fail(err, CELL_E_INVALID, 0, "the reason is not UTF-8");
	if (cell__session_check_look(session, &all.look_us, all.look_end, err) < 0)
		return -1;
	struct answering answering = { .session = session, .id = id, .answer = &all };
	cell__loop_call_and_stay(&session->engine->loop, do_answer, &answering, all.look_end, all.look_us);
	if (answering.rc < 0 && err)
		*err = answering.err;
	return answering.rc;
}

int cell_session_approvals(struct cell_session *session, char **ret_json, struct cell_error *err)
{
	struct answering answering = { .session = session };
	cell__loop_call(&session->engine->loop, do_answer, &answering);
	char *text = answering.list ? json_dumps(answering.list, JSON_COMPACT) : NULL;
	json_decref(answering.list);
	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	*ret_json = text;
	return 0;
}
