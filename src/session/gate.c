#define _GNU_SOURCE
#include "session/gate.h"

#include <stdio.h>
#include <string.h>

#include "core/hole.h"
#include "session/passage.h"
#include "session/space.h"

/* ---- memory ---- */

static void clear_outcome(struct cell__outcome *outcome)
{
	json_decref(outcome->result);
	free(outcome->raw);
	free(outcome->type);
	free(outcome->message);
	*outcome = (struct cell__outcome){ 0 };
}

void cell__passage_destroy(struct cell__passage *passage)
{
	clear_outcome(&passage->outcome);
	cell__tool_choice_finish(&passage->choice);
	json_decref(passage->inner.args);
	json_decref(passage->args_before);
	json_decref(passage->content);
	json_decref(passage->shown);
	cell__card_unref(passage->card);
	if (passage->door)
		cell__door_unref(passage->door);
	free(passage->text);
	cell__buf_finish(&passage->reply);
	free(passage);
}

static void leave_gate(struct cell__passage *passage)
{
	struct cell__gate *gate = passage->gate;
	if (passage->prev)
		passage->prev->next = passage->next;
	else
		gate->first = passage->next;
	if (passage->next)
		passage->next->prev = passage->prev;
	passage->gate = NULL;
}

/* ---- events ---- */

static void emit(struct cell__passage *passage, enum cell_event_type type, const char *decision, const char *message)
{
	struct cell__gate *gate = passage->gate;
	if (!passage->card || !gate->emit)
		return;
	struct cell_event event = { .type = type, .call = passage->card, .decision = decision, .message = message };
	if (type == CELL_EVENT_CALL_ENDED)
		event.duration_ms = (double)(cell__now_us() - passage->started_us) / 1000.0;
	gate->emit(gate->owner, &event);
}

static const char *shown_tool(const struct cell__passage *passage)
{
	static const char *const tools[CELL__GATE_KINDS] = {
		[CELL__GATE_INSTALL] = "deps", [CELL__GATE_REMOVE] = "deps", [CELL__GATE_WORKFLOW] = "workflows",
		[CELL__GATE_ARTIFACT] = "artifacts", [CELL__GATE_SERVER] = "tools",
	};
	if (passage->kind == CELL__GATE_TOOL)
		return cell__tool_choice_tool(&passage->choice);
	if (passage->kind == CELL__GATE_SHELL)
		return json_string_value(json_object_get(passage->inner.args, "name"));
	if (passage->kind == CELL__GATE_QUESTION)
		return json_string_value(json_object_get(passage->inner.args, "tool"));
	return tools[passage->kind];
}

static const char *shown_callable(const struct cell__passage *passage)
{
	if (passage->kind == CELL__GATE_TOOL)
		return cell__tool_choice_callable(&passage->choice);
	if (passage->kind == CELL__GATE_QUESTION)
		return json_string_value(json_object_get(passage->inner.args, "callable"));
	return cell__operation_shown(passage->inner.operation);
}

static const char *shown_adapter(const struct cell__passage *passage)
{
	if (passage->kind == CELL__GATE_TOOL)
		return cell__tool_choice_adapter(&passage->choice);
	return passage->kind == CELL__GATE_SHELL ? "kernel" : passage->kind == CELL__GATE_QUESTION ? "mcp" : "space";
}

/* The arguments as they are shown, judged and recorded: those that run. */
static json_t *shown_args(const struct cell__passage *passage)
{
	if (passage->kind == CELL__GATE_TOOL)
		return passage->choice.args;
	if (passage->kind == CELL__GATE_SHELL)
		return json_object_get(passage->inner.args, "args");
	if (passage->kind == CELL__GATE_QUESTION)
		return json_object_get(passage->inner.args, "params");
	return passage->shown ? passage->shown : passage->inner.args;
}

static int make_card(struct cell__passage *passage)
{
	char *args = json_dumps(shown_args(passage), JSON_COMPACT | JSON_SORT_KEYS);
	struct cell_call_info info = {
		.id = passage->id,
		.request_id = passage->request_id,
		.kind = cell__gate_kind_word(passage->kind),
		.tool = shown_tool(passage),
		.callable = shown_callable(passage),
		.adapter = shown_adapter(passage),
		.session_id = passage->session_id,
		.principal = cell__principal_word(&passage->principal),
		.client = passage->inner.client,
	};
	const struct cell_call_info *card = args ? cell__card_create(&info, args) : NULL;
	if (!card)
		return -1;
	cell__card_unref(passage->card);
	passage->card = card;
	return 0;
}

/* ---- outcomes ---- */

void cell__passage_answer(struct cell__passage *passage, json_t *result, const void *raw, size_t raw_size)
{
	clear_outcome(&passage->outcome);
	char *copy = raw_size > 0 ? cell__strndup(raw, raw_size) : NULL;
	if (!result || (raw_size > 0 && !copy)) {
		json_decref(result);
		free(copy);
		cell__passage_fail(passage, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	passage->outcome = (struct cell__outcome){ .result = result, .raw = copy, .raw_size = raw_size };
}

void cell__passage_fail(struct cell__passage *passage, int code, const char *type, const char *message)
{
	clear_outcome(&passage->outcome);
	passage->outcome = (struct cell__outcome){
		.failed = true, .code = code, .type = cell__strdup(type), .message = cell__strdup(message)
	};
}

static const char *outcome_word(const struct cell__passage *passage)
{
	return passage->decision ? passage->decision : passage->outcome.failed ? "error" : "ok";
}

/* The asker gets the outcome and the passage is gone. */
static void hand_over(struct cell__passage *passage)
{
	struct cell__call *outer = passage->outer;
	struct cell__outcome *outcome = &passage->outcome;
	if (passage->gate)
		leave_gate(passage);
	if (outer && outcome->failed)
		outer->fail(outer, outcome->code, outcome->type ? outcome->type : "MemoryError",
			    outcome->message ? outcome->message : "the host is out of memory");
	else if (outer)
		outer->answer(outer, cell__take_ptr(outcome->result), outcome->raw, outcome->raw_size);
	cell__passage_destroy(passage);
}

static void handle_recorded(void *arg, int rc)
{
	struct cell__passage *passage = arg;
	if (rc < 0 && passage->outer)
		cell__passage_fail(passage, CELL_E_IO, "RuntimeError",
				   "the call was made, but it could not be written to the audit log");
	hand_over(passage);
}

/* 1: there is no log. */
static int record(struct cell__passage *passage, enum cell__audit_outcome outcome, void (*written)(void *arg, int rc),
		  struct cell_error *err)
{
	struct cell__gate *gate = passage->gate;
	if (!gate->audit)
		return 1;
	/* A function of the host may be changing the arguments just now: then those count that were asked with. */
	json_t *asked = passage->held && passage->outer ? passage->outer->args : passage->inner.args;
	bool named = passage->kind == CELL__GATE_TOOL || passage->kind == CELL__GATE_SHELL;
	const char *name = named ? json_string_value(json_object_get(asked, "name")) : shown_tool(passage);
	const struct cell_call_info *card = passage->card;
	struct cell__audit_record entry = {
		.session_id = passage->session_id,
		.cell_hash = gate->cell_hash && *gate->cell_hash ? gate->cell_hash : NULL,
		.request_id = passage->request_id,
		.kind = cell__gate_kind_word(passage->kind),
		.tool = card ? card->tool : name,
		.callable = card ? card->callable : NULL,
		.adapter = card ? card->adapter : NULL,
		.executor = passage->executor,
		.principal = cell__principal_word(&passage->principal),
		.client = *passage->principal.name ? passage->principal.name : NULL,
		.args = card ? shown_args(passage) : named ? json_object_get(asked, "args") : asked,
		.args_before = passage->args_before,
		.decision = passage->audited,
		.by = passage->by,
		.rule = passage->rule,
		.rule_name = passage->rule_name,
		.duration_us = cell__now_us() - passage->started_us,
		.outcome = outcome,
		.code = passage->outcome.code,
		.error = outcome == CELL__AUDIT_ERROR ? passage->outcome.message : NULL,
	};
	cell__pace_charge(gate->pace, cell__audit_size_of(entry.args_before) + cell__audit_size_of_error(entry.error));
	return cell__audit_write(gate->audit, &entry, written, passage, err);
}

void cell__passage_deliver(struct cell__passage *passage)
{
	struct cell_error err;
	if (!passage->gate) {
		hand_over(passage);
		return;
	}
	emit(passage, CELL_EVENT_CALL_ENDED, outcome_word(passage), passage->outcome.failed ? passage->outcome.message : NULL);
	passage->recording = true;
	int rc = record(passage, passage->outcome.failed ? CELL__AUDIT_ERROR : CELL__AUDIT_OK, handle_recorded, &err);
	if (rc < 0)
		cell__passage_fail(passage, err.code, "RuntimeError", err.msg);
	if (rc != 0)
		hand_over(passage);
}

static void conclude(struct cell__passage *passage)
{
	passage->inner.cancel = NULL;
	passage->going_out = true;
	cell__passage_walk(passage);
}

static struct cell__passage *of_inner(struct cell__call *call)
{
	return (struct cell__passage *)call;
}

/* The answer waits for middlewares and the audit log: may it? */
static bool has_room(const struct cell__passage *passage, const json_t *result, size_t raw_size)
{
	struct cell__call *outer = passage->outer;
	bool waits = passage->door || (passage->gate && passage->gate->audit);
	return !outer || !outer->hold || !waits || outer->hold(outer, raw_size + cell__audit_memory_of(result));
}

static void handle_answer(struct cell__call *call, json_t *result, const void *raw, size_t raw_size)
{
	struct cell__passage *passage = of_inner(call);
	if (has_room(passage, result, raw_size)) {
		cell__passage_answer(passage, result, raw, raw_size);
	} else {
		json_decref(result);
		cell__passage_fail(passage, CELL_E_LIMIT, "RuntimeError",
				   "the call was made, but its answer was dropped: the answers under way in this session take too much of the "
				   "host's memory; make fewer calls at once");
	}
	conclude(passage);
}

static void handle_fail(struct cell__call *call, int code, const char *type, const char *message)
{
	struct cell__passage *passage = of_inner(call);
	cell__passage_fail(passage, code, type, message);
	conclude(passage);
}

static void handle_progress(struct cell__call *call, const char *line, size_t size)
{
	struct cell__call *outer = of_inner(call)->outer;
	if (outer)
		outer->progress(outer, line, size);
}

/* A server's tools had to be listed first. */
static void handle_again(struct cell__call *call)
{
	cell__passage_decide(of_inner(call));
}

/* ---- what is shown ---- */

static bool look_up(struct cell__passage *passage);

/* Without what only our own kernels understand. */
static int make_shown(struct cell__passage *passage)
{
	json_t *shown = json_copy(passage->inner.args);
	if (!shown)
		return -1;
	json_object_del(shown, "key");
	json_object_del(shown, "size");
	json_decref(passage->shown);
	passage->shown = shown;
	return 0;
}

/* ---- running ---- */

static void run(struct cell__passage *passage)
{
	struct cell__gate *gate = passage->gate;
	struct cell__call *inner = &passage->inner;
	passage->ran = true;
	if (passage->kind == CELL__GATE_SHELL)
		inner->answer(inner, json_incref(shown_args(passage)), NULL, 0);
	else if (passage->kind == CELL__GATE_QUESTION)
		inner->answer(inner, json_incref(passage->content), NULL, 0);
	else if (passage->kind == CELL__GATE_TOOL)
		cell__space_run(gate->space, gate->cwd, &passage->choice, inner);
	else
		cell__space_handle(gate->space, gate->cwd, inner);
}

static void add_name(struct cell__buf *out, const struct cell__passage *passage)
{
	const char *callable = shown_callable(passage);
	(void)cell__buf_printf(out, "%s%s%s", shown_tool(passage), *callable ? "." : "", callable);
}

static void refuse(struct cell__passage *passage, const char *decision, const char *type, const char *before,
		   const char *after, const char *reason)
{
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
	passage->decision = decision;
	passage->gate->refused += passage->kind != CELL__GATE_QUESTION;
	(void)cell__buf_add_str(&message, before);
	add_name(&message, passage);
	(void)cell__buf_add_str(&message, after);
	if (reason && *reason)
		(void)cell__buf_printf(&message, ": %s", reason);
	cell__passage_fail(passage, CELL_OUT_REJECTED, type, message.data ? message.data : "refused");
	conclude(passage);
}

/* ---- parking ---- */

static bool is_remembered(const struct cell__passage *passage)
{
	if (!passage->gate->remembered)
		return false;
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
	add_name(&name, passage);
	for (struct cell__remembered *one = *passage->gate->remembered; one; one = one->next)
		if (strcmp(one->kind, cell__gate_kind_word(passage->kind)) == 0 && name.data && strcmp(one->name, name.data) == 0)
			return true;
	return false;
}

static int remember(struct cell__passage *passage)
{
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
	add_name(&name, passage);
	struct cell__remembered *one = name.data ? cell__alloc(1, sizeof *one + name.size + 1) : NULL;
	if (!one)
		return -1;
	one->kind = cell__gate_kind_word(passage->kind);
	memcpy(one->name, name.data, name.size + 1);
	one->next = *passage->gate->remembered;
	*passage->gate->remembered = one;
	return 0;
}

static void park(struct cell__passage *passage, const char *reason)
{
	struct cell__gate *gate = passage->gate;
	passage->deadline_ms = gate->timeout_ms < 0 ? -1 : cell__now_us() / 1000 + gate->timeout_ms;
	passage->parked = passage->was_parked = true;
	passage->parked_prev = gate->parked_last;
	if (gate->parked_last)
		gate->parked_last->parked_next = passage;
	else
		gate->parked_first = passage;
	gate->parked_last = passage;
	gate->n_parked++;
	gate->parked(gate->owner);
	emit(passage, CELL_EVENT_APPROVAL, NULL, reason && *reason ? reason : NULL);
}

static void unpark(struct cell__passage *passage, const char *decision, const char *reason)
{
	struct cell__gate *gate = passage->gate;
	if (passage->parked_prev)
		passage->parked_prev->parked_next = passage->parked_next;
	else
		gate->parked_first = passage->parked_next;
	if (passage->parked_next)
		passage->parked_next->parked_prev = passage->parked_prev;
	else
		gate->parked_last = passage->parked_prev;
	passage->parked = false;
	gate->n_parked--;
	gate->parked(gate->owner);
	emit(passage, CELL_EVENT_APPROVAL_ENDED, decision, reason);
}

/* ---- the decision ---- */

static bool is_watched(const struct cell__gate *gate)
{
	return gate->policy || gate->audit || (gate->listens && gate->listens(gate->owner));
}

static int check_shell(struct cell__passage *passage)
{
	struct cell__call *inner = &passage->inner;
	if (json_is_string(json_object_get(json_object_get(inner->args, "args"), "cmd")))
		return 0;
	inner->fail(inner, CELL_E_INVALID, "ValueError", "shell.approve needs a string 'cmd' in its 'args'");
	return -1;
}

static void consult(const struct cell__passage *passage, struct cell_policy_verdict *ret_verdict)
{
	const char *callable = shown_callable(passage);
	struct cell__subject subject = {
		.kind = cell__gate_kind_word(passage->kind),
		.tool = shown_tool(passage),
		.callable = *callable ? callable : NULL,
		.adapter = shown_adapter(passage),
		.args = shown_args(passage),
		.principal = passage->principal.kind,
	};
	cell__policy_decide(passage->gate->policy, &subject, ret_verdict);
}

static void judge(struct cell__passage *passage)
{
	struct cell__gate *gate = passage->gate;
	bool host = passage->principal.kind == CELL__PRINCIPAL_HOST;
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT;
	consult(passage, &verdict);
	passage->rule = verdict.rule;
	if (verdict.rule > 0 && verdict.decision != CELL_ASK)
		passage->by = CELL__AUDIT_BY_POLICY;
	passage->rule_name = verdict.name;
	if (verdict.decision == CELL_DENY) {
		passage->audited = CELL__AUDIT_DENY;
		refuse(passage, "denied", "ApprovalRejectedError", "The policy denies ", "", verdict.reason);
	} else if (verdict.decision == CELL_ALLOW || host) {
		run(passage);
	} else if (gate->cannot_ask) {
		passage->audited = CELL__AUDIT_DENY;
		refuse(passage, "denied", "ApprovalRejectedError", "Somebody would have to approve ", "", gate->cannot_ask);
	} else if (is_remembered(passage)) {
		passage->by = CELL__AUDIT_BY_PERSON;
		passage->audited = CELL__AUDIT_ACCEPTED;
		run(passage);
	} else {
		park(passage, verdict.reason);
	}
}

void cell__passage_decide(struct cell__passage *passage)
{
	struct cell__gate *gate = passage->gate;
	struct cell__call *inner = &passage->inner;
	if (!gate) { /* nobody waits: a middleware held it until now */
		cell__passage_destroy(passage);
		return;
	}
	if (passage->kind == CELL__GATE_TOOL) {
		if (cell__space_choose(gate->space, gate->cwd, inner, &passage->choice) < 0)
			return;
	} else if (passage->kind == CELL__GATE_SHELL && check_shell(passage) < 0) {
		return;
	} else if (inner->operation->id == CELL__OP_DEPS_SYNC && is_watched(gate) && !passage->shown) {
		look_up(passage);
		return;
	} else if (passage->kind == CELL__GATE_ARTIFACT && make_shown(passage) < 0) {
		inner->fail(inner, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	if (is_watched(gate) && make_card(passage) < 0) {
		inner->fail(inner, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	struct cell_error err;
	if (gate->audit && cell__audit_admit(gate->audit, &err) < 0) {
		inner->fail(inner, err.code, "RuntimeError", err.msg);
		return;
	}
	emit(passage, CELL_EVENT_CALL_STARTED, NULL, NULL);
	if (gate->policy && (gate->kinds & cell__gate_kind_bit(passage->kind)))
		judge(passage);
	else
		run(passage);
}

/* ---- what a sync would install ---- */

static struct cell__passage *of_look(struct cell__call *look)
{
	return (struct cell__passage *)((char *)look - offsetof(struct cell__passage, look));
}

static void end_look(struct cell__passage *passage)
{
	json_decref(passage->look.args);
	passage->look = (struct cell__call){ 0 };
	passage->inner.cancel = NULL;
}

static void handle_packages(struct cell__call *look, json_t *result, const void *raw, size_t raw_size)
{
	(void)raw, (void)raw_size;
	struct cell__passage *passage = of_look(look);
	json_t *shown = json_copy(passage->inner.args);
	if (!shown || !result || json_object_set_new(shown, "packages", result) < 0)
		json_decref(cell__take_ptr(shown));
	end_look(passage);
	if (!shown) {
		passage->inner.fail(&passage->inner, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	bool same = passage->shown && json_equal(shown, passage->shown);
	json_decref(passage->shown);
	passage->shown = shown;
	passage->was_parked = false;
	if (same) /* as it was approved */
		run(passage);
	else
		cell__passage_decide(passage);
}

static void handle_no_packages(struct cell__call *look, int code, const char *type, const char *message)
{
	struct cell__passage *passage = of_look(look);
	end_look(passage);
	passage->inner.fail(&passage->inner, code, type, message);
}

static void cancel_look(struct cell__call *inner)
{
	struct cell__passage *passage = of_inner(inner);
	if (passage->look.cancel)
		passage->look.cancel(&passage->look);
	end_look(passage);
}

/* Asks what is configured, and then decides, or runs what was approved if that is still the same.  Always true. */
static bool look_up(struct cell__passage *passage)
{
	passage->look = (struct cell__call){
		.method = "deps.list", .operation = &cell__operations[CELL__OP_DEPS_LIST], .args = json_object(), .session_id = passage->session_id,
		.principal = &passage->principal, .answer = handle_packages, .fail = handle_no_packages,
	};
	passage->inner.cancel = cancel_look;
	cell__space_handle(passage->gate->space, passage->gate->cwd, &passage->look);
	return true;
}

/* ---- cancelling ---- */

static void handle_cancel(struct cell__call *outer)
{
	struct cell__passage *passage = outer->handler;
	if (passage->parked)
		unpark(passage, "cancelled", NULL);
	if (passage->inner.cancel)
		passage->inner.cancel(&passage->inner);
	bool over = passage->recording, counted = cell__pace_withdraw(passage->gate->pace, &passage->wait);
	if (!over && !counted) {
		/* Nobody said yes: the log must not read as if the policy had. */
		if (!passage->ran && !passage->decision && passage->by == CELL__AUDIT_BY_POLICY) {
			passage->audited = CELL__AUDIT_WITHDRAWN;
			passage->by = CELL__AUDIT_BY_SESSION;
		}
		emit(passage, CELL_EVENT_CALL_ENDED, "cancelled", NULL);
		/* Nobody is there to be told when it cannot be written; the log itself says so. */
		(void)record(passage, CELL__AUDIT_CANCELLED, NULL, NULL);
	}
	passage->outer = NULL;
	leave_gate(passage);
	if (!passage->held && !over)
		cell__passage_destroy(passage);
}

/* ---- the front ---- */

static void fail_without_space(struct cell__call *call)
{
	call->fail(call, CELL_E_NOT_FOUND, "RuntimeError",
		   "this session has no tools and no storage; open it with a space (--base, --storage, --tools)");
}

bool cell__gate_is_open(const struct cell__gate *gate)
{
	return gate->space && cell__space_middlewares(gate->space)->count == 0 && !is_watched(gate);
}

/* NULL: no memory, and the call has failed. */
static struct cell__passage *let_in(struct cell__gate *gate, struct cell__call *call)
{
	struct cell__passage *passage = cell__alloc(1, sizeof *passage);
	if (!passage) {
		call->fail(call, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return NULL;
	}
	passage->principal = *call->principal;
	passage->inner = (struct cell__call){
		.method = call->method, .args = json_incref(call->args), .raw = call->raw, .raw_size = call->raw_size,
		.session_id = call->session_id, .origin = call->origin, .operation = call->operation,
		.principal = &passage->principal, .client = call->client, .answer = handle_answer, .fail = handle_fail,
		.progress = call->progress ? handle_progress : NULL, .again = handle_again,
	};
	passage->outer = call;
	passage->gate = gate;
	passage->kind = call->operation->kind;
	passage->id = (*gate->next_id)++;
	passage->started_us = cell__now_us();
	snprintf(passage->session_id, sizeof passage->session_id, "%s", gate->session_id);
	snprintf(passage->executor, sizeof passage->executor, "%s", gate->executor);
	snprintf(passage->request_id, sizeof passage->request_id, "%.8s-%llu", *gate->session_id ? gate->session_id : "host",
		 (unsigned long long)passage->id);
	passage->by = call->principal->kind == CELL__PRINCIPAL_HOST ? CELL__AUDIT_BY_HOST : CELL__AUDIT_BY_POLICY;
	call->handler = passage;
	call->cancel = handle_cancel;
	passage->next = gate->first;
	if (gate->first)
		gate->first->prev = passage;
	gate->first = passage;
	return passage;
}

static void handle_turn(struct cell__pace_wait *wait)
{
	cell__passage_walk((struct cell__passage *)((char *)wait - offsetof(struct cell__passage, wait)));
}

/* Is there room for it in the audit log?  If not, it goes on later. */
static bool may_go_on(struct cell__passage *passage)
{
	struct cell__gate *gate = passage->gate;
	if (!gate->audit || !gate->pace || cell__principal_is_trusted(&passage->principal))
		return true;
	passage->wait.go = handle_turn;
	return cell__pace_enter(gate->pace, &passage->wait, CELL__PACE_RECORD_BYTES + cell__audit_size_of(passage->inner.args));
}

void cell__gate_submit(struct cell__gate *gate, const struct cell__principal *principal, struct cell__call *call)
{
	if (cell__call_prepare(call, principal) < 0)
		return;
	const struct cell__operation *operation = call->operation;
	if (operation->part != CELL__PART_KERNEL && !gate->space) {
		fail_without_space(call);
	} else if (operation->kind == CELL__GATE_NONE || (operation->part != CELL__PART_KERNEL && cell__gate_is_open(gate)) ||
		   (is_hole("door-clients") && principal->kind != CELL__PRINCIPAL_CODE) ||
		   (is_hole("door-kinds") && operation->kind >= CELL__GATE_REMOVE && operation->kind <= CELL__GATE_SERVER)) {
		cell__space_handle(gate->space, gate->cwd, call);
	} else {
		struct cell__passage *passage = let_in(gate, call);
		if (passage && may_go_on(passage))
			cell__passage_walk(passage);
	}
}

/* ---- questions of MCP servers, and what else they say ---- */

void cell__gate_ask(struct cell__gate *gate, const struct cell__principal *principal, struct cell__call *question)
{
	question->principal = principal;
	question->operation = &cell__operations[CELL__OP_QUESTION];
	struct cell__passage *passage = let_in(gate, question);
	struct cell_error err;
	if (!passage)
		return;
	struct cell__call *inner = &passage->inner;
	if (make_card(passage) < 0) {
		inner->fail(inner, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
	} else if (gate->audit && cell__audit_admit(gate->audit, &err) < 0) {
		inner->fail(inner, err.code, "RuntimeError", err.msg);
	} else {
		emit(passage, CELL_EVENT_CALL_STARTED, NULL, NULL);
		park(passage, NULL);
	}
}

static void drop(struct cell__passage *passage, const char *why)
{
	struct cell__call *outer = passage->outer;
	handle_cancel(outer);
	outer->fail(outer, CELL_E_CANCELLED, "RuntimeError", why);
}

void cell__gate_drop(struct cell__gate *gate)
{
	while (gate->first)
		drop(gate->first, "the session is gone");
}

void cell__gate_drop_waiting(struct cell__gate *gate)
{
	struct cell__passage *passage = gate->first;
	while (passage) {
		bool goes = passage->parked || passage->kind == CELL__GATE_TOOL;
		if (goes)
			drop(passage, "the session's kernel is gone");
		passage = goes ? gate->first : passage->next;
	}
}

void cell__gate_tell(struct cell__gate *gate, enum cell_event_type type, const struct cell__call *call, const char *tool,
		     const char *json)
{
	if (!gate->emit || !gate->listens || !gate->listens(gate->owner))
		return;
	const struct cell_call_info *card = NULL;
	for (const struct cell__passage *passage = call ? gate->first : NULL; passage && !card; passage = passage->next)
		if (&passage->inner == call && passage->card)
			card = cell__card_ref(passage->card);
	if (!card) {
		char *args = cell__strdup("{}");
		struct cell_call_info info = { .request_id = "", .kind = "tool", .tool = tool, .callable = "", .adapter = "mcp",
					       .session_id = gate->session_id };
		card = args ? cell__card_create(&info, args) : NULL;
	}
	struct cell_event event = { .type = type, .call = card, .data = json, .size = strlen(json) };
	if (card)
		gate->emit(gate->owner, &event); /* without memory a little less is heard of it */
	cell__card_unref(card);
}

/* ---- answers ---- */

int64_t cell__gate_deadline(const struct cell__gate *gate)
{
	return gate->parked_first ? gate->parked_first->deadline_ms : -1;
}

static void let_lapse(struct cell__passage *passage, const char *decision)
{
	passage->by = CELL__AUDIT_BY_TIMEOUT;
	passage->audited = CELL__AUDIT_TIMEOUT;
	unpark(passage, decision, NULL);
	refuse(passage, decision, "ApprovalTimeoutError", "Approval request for ", " expired", NULL);
}

void cell__gate_expire(struct cell__gate *gate)
{
	int64_t now = cell__now_us() / 1000;
	while (gate->parked_first && gate->parked_first->deadline_ms >= 0 && gate->parked_first->deadline_ms <= now) {
		let_lapse(gate->parked_first, "expired");
	}
}

/* Puts other arguments into a parked call, in place of those that were shown. */
static int edit(struct cell__passage *passage, const char *text, struct cell_error *err)
{
	json_t *args = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	int rc = 0;
	json_t *before = json_incref(shown_args(passage));
	if (!json_is_object(args))
		rc = cell_fail(err, CELL_E_INVALID, 0, "the edited arguments are not a JSON object");
	else if (passage->kind == CELL__GATE_TOOL) {
		if (cell__tool_choice_edit(&passage->choice, args, &why) < 0)
			rc = cell_fail(err, CELL_E_INVALID, 0, "the edited arguments do not fit: %.180s",
				       why.data ? why.data : "out of memory");
	} else if (passage->kind == CELL__GATE_SHELL && !json_is_string(json_object_get(args, "cmd"))) {
		rc = cell_fail(err, CELL_E_INVALID, 0, "the edited arguments have no cmd, a string");
	} else if (passage->kind == CELL__GATE_SHELL) {
		json_t *both = json_pack("{s:s, s:O}", "name", shown_tool(passage), "args", args);
		json_decref(passage->inner.args);
		passage->inner.args = both;
	} else if (cell__operation_check(passage->inner.operation, args, &why) < 0) {
		rc = cell_fail(err, CELL_E_INVALID, 0, "the edited arguments do not fit: %.180s", why.data ? why.data : "out of memory");
	} else {
		json_decref(passage->inner.args);
		passage->inner.args = json_incref(args);
		json_decref(cell__take_ptr(passage->shown));
	}
	json_decref(args);
	if (rc == 0 && make_card(passage) < 0)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (rc == 0 && !passage->args_before)
		passage->args_before = json_incref(before);
	json_decref(before);
	return rc;
}

static void put_back(json_t **place, json_t *value)
{
	json_decref(*place);
	*place = json_incref(value);
}

/* The same, unless the policy denies what came of it: then all is as it was, and the request waits on. */
static int edit_within_policy(struct cell__passage *passage, const char *text, struct cell_error *err)
{
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT;
	json_t *args = json_incref(passage->inner.args), *shown = json_incref(passage->shown), *chosen = json_incref(passage->choice.args);
	json_t *before = json_incref(passage->args_before);
	int rc = edit(passage, text, err);
	verdict.decision = CELL_ALLOW;
	if (rc == 0 && !is_hole("edited"))
		consult(passage, &verdict);
	if (verdict.decision == CELL_DENY) {
		rc = cell_fail(err, CELL_E_INVALID, 0, "the policy denies the edited arguments%s%.150s", verdict.reason ? ": " : "",
			       verdict.reason ? verdict.reason : "");
		put_back(&passage->inner.args, args);
		put_back(&passage->shown, shown);
		put_back(&passage->choice.args, chosen);
		put_back(&passage->args_before, before);
		if (make_card(passage) < 0) /* no memory: nobody may say yes to a card of other arguments */
			let_lapse(passage, "cancelled");
	}
	json_decref(args);
	json_decref(shown);
	json_decref(chosen);
	json_decref(before);
	return rc;
}

/* What a server is told when its question is accepted. */
static int take_content(struct cell__passage *passage, const struct cell_approval_answer *answer, struct cell_error *err)
{
	const json_t *schema = json_object_get(shown_args(passage), "requestedSchema");
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	json_t *content = json_loads(answer->args ? answer->args : "{}", JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	int rc = 0;
	if (answer->always)
		rc = cell_fail(err, CELL_E_INVALID, 0, "a question is answered once, not always");
	else if (!json_is_object(content))
		rc = cell_fail(err, CELL_E_INVALID, 0, "the answer to a question is a JSON object");
	else if (cell__schema_check(schema, content, &why) < 0)
		rc = cell_fail(err, CELL_E_INVALID, 0, "the answer does not fit the question: %.180s",
			       why.data ? why.data : "out of memory");
	if (rc < 0) {
		json_decref(content);
		return rc;
	}
	passage->content = content;
	return 0;
}

static int answer_question(struct cell__passage *passage, const struct cell_approval_answer *answer, struct cell_error *err)
{
	if (answer->accept && take_content(passage, answer, err) < 0)
		return -1;
	if (!answer->accept && answer->dismiss) {
		let_lapse(passage, "cancelled");
		return 0;
	}
	passage->by = answer->from_terminal ? CELL__AUDIT_BY_CLI : CELL__AUDIT_BY_PERSON;
	passage->audited = answer->accept ? CELL__AUDIT_ACCEPTED : CELL__AUDIT_REJECTED;
	unpark(passage, answer->accept ? "accepted" : "rejected", answer->accept ? NULL : answer->reason);
	if (answer->accept)
		run(passage);
	else
		refuse(passage, "rejected", "ApprovalRejectedError", "The question of ", " was declined", answer->reason);
	return 0;
}

static int answer_one(struct cell__passage *passage, const struct cell_approval_answer *answer, struct cell_error *err)
{
	if (passage->kind == CELL__GATE_QUESTION)
		return answer_question(passage, answer, err);
	if (answer->accept && answer->args && edit_within_policy(passage, answer->args, err) < 0)
		return -1;
	if (answer->accept && answer->always && remember(passage) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	passage->by = answer->from_terminal ? CELL__AUDIT_BY_CLI : CELL__AUDIT_BY_PERSON;
	if (answer->accept) {
		passage->audited = answer->args ? CELL__AUDIT_EDITED : CELL__AUDIT_ACCEPTED;
		unpark(passage, answer->args ? "edited" : "accepted", NULL);
		run(passage);
	} else {
		passage->audited = CELL__AUDIT_REJECTED;
		unpark(passage, "rejected", answer->reason);
		refuse(passage, "rejected", "ApprovalRejectedError", "Approval request for ", " rejected", answer->reason);
	}
	return 0;
}

int cell__gate_answer(struct cell__gate *gate, uint64_t id, const struct cell_approval_answer *answer, struct cell_error *err)
{
	if (id == 0) {
		/* Those that wait now; an answer may let the code ask again.  A question wants more than a yes. */
		uint64_t last = *gate->next_id;
		struct cell__passage *passage = gate->parked_first;
		while (passage && passage->id < last) {
			if (answer->accept && passage->kind == CELL__GATE_QUESTION) {
				passage = passage->parked_next;
				continue;
			}
			if (answer_one(passage, answer, err) < 0)
				return -1;
			passage = gate->parked_first;
		}
		return 0;
	}
	for (struct cell__passage *passage = gate->parked_first; passage; passage = passage->parked_next)
		if (passage->id == id)
			return answer_one(passage, answer, err);
	return cell_fail(err, CELL_E_NOT_FOUND, 0, "request %llu does not wait: it was answered, has expired or is gone",
			 (unsigned long long)id);
}

bool cell__gate_waits(const struct cell__gate *gate, uint64_t id)
{
	const struct cell__passage *passage = gate->parked_first;
	while (passage && passage->id != id)
		passage = passage->parked_next;
	return passage != NULL;
}

json_t *cell__gate_list(const struct cell__gate *gate)
{
	json_t *list = json_array();
	for (const struct cell__passage *passage = gate->parked_first; passage && list; passage = passage->parked_next) {
		const struct cell_call_info *card = passage->card;
		json_t *one = json_pack("{s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:O}", "id", (json_int_t)card->id, "request_id",
					card->request_id, "kind", card->kind, "tool", card->tool, "callable", card->callable,
					"adapter", card->adapter, "session_id", card->session_id, "args",
					shown_args(passage));
		if (!one || json_array_append_new(list, one) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}
