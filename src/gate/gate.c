#define _GNU_SOURCE
#include "gate/gate.h"

#include <stdio.h>
#include <string.h>

#include "base/list.h"
#include "base/hole.h"
#include "base/random.h"
#include "gate/gated_call.h"

#define EVENT_RESULT_BYTES (64u * 1024u) /* of a call's result in its event */

/* ---- memory ---- */

static void clear_outcome(struct cell__call_outcome *outcome)
{
	json_decref(outcome->result);
	free(outcome->raw);
	free(outcome->type);
	free(outcome->message);
	*outcome = (struct cell__call_outcome){ 0 };
}

void cell__gated_call_destroy(struct cell__gated_call *gated)
{
	clear_outcome(&gated->outcome);
	cell__tool_choice_finish(&gated->choice);
	json_decref(gated->inner.args);
	json_decref(gated->args_before);
	json_decref(gated->content);
	json_decref(gated->shown);
	cell__call_info_unref(gated->call_info);
	if (gated->reply.ref)
		cell__loop_ref_unref(gated->reply.ref, 0);
	free(gated->text);
	cell__buf_finish(&gated->reply.bytes);
	free(gated);
}

static void leave_gate(struct cell__gated_call *gated)
{
	struct cell__gate *gate = gated->gate;
	CELL__LIST_REMOVE(gate->first, gated);
	gated->gate = NULL;
}

/* ---- events ---- */

/* A result as JSON, or the beginning of it: a text, a number of bytes, a value. */
static int add_result(const struct cell__gated_call *gated, struct cell__buf *out)
{
	const struct cell__call_outcome *outcome = &gated->outcome;
	size_t size = outcome->raw_size < EVENT_RESULT_BYTES ? outcome->raw_size : EVENT_RESULT_BYTES;
	if (outcome->raw && cell__utf8_ok(outcome->raw, size - cell__utf8_cut(outcome->raw, size)))
		return cell__buf_add_json_string(out, outcome->raw, size - cell__utf8_cut(outcome->raw, size));
	if (outcome->raw)
		return cell__buf_printf(out, "{\"bytes\":%zu}", outcome->raw_size);
	CELL_AUTO_FREE char *text = outcome->result ? json_dumps(outcome->result, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	if (!text)
		return -1;
	size = strlen(text);
	if (size > EVENT_RESULT_BYTES)
		size = EVENT_RESULT_BYTES - cell__utf8_cut(text, EVENT_RESULT_BYTES);
	return cell__buf_add(out, text, size);
}

static void emit(struct cell__gated_call *gated, enum cell_event_type type, const char *decision, const char *message)
{
	struct cell__gate *gate = gated->gate;
	if (!gated->call_info || !gate->emit)
		return;
	struct cell_event event = { .type = type, .call = gated->call_info, .decision = decision, .message = message };
	CELL_AUTO_BUF struct cell__buf result = CELL_BUF_INIT;
	if (type == CELL_EVENT_CALL_ENDED)
		event.duration_ms = (double)(cell__now_us() - gated->started_us) / 1000.0;
	if (type == CELL_EVENT_CALL_ENDED && gate->results && !gated->outcome.failed && add_result(gated, &result) == 0) {
		event.data = result.data;
		event.size = result.size;
	}
	gate->emit(gate->owner, &event);
}

/* A tool that is not of the space: its asker has it. */
static bool is_own(const struct cell__gated_call *gated)
{
	return gated->inner.operation->part == CELL__PART_ASKER;
}

const char *cell__gated_call_tool(const struct cell__gated_call *gated)
{
	static const char *const tools[CELL__GATE_KINDS] = {
		[CELL__GATE_INSTALL] = "deps",       [CELL__GATE_REMOVE] = "deps",  [CELL__GATE_WORKFLOW] = "workflows",
		[CELL__GATE_ARTIFACT] = "artifacts", [CELL__GATE_SERVER] = "tools", [CELL__GATE_LLM] = "llm",
	};
	if (is_own(gated))
		return json_string_value(json_object_get(gated->inner.args, "name"));
	if (gated->kind == CELL__GATE_TOOL)
		return cell__tool_choice_tool(&gated->choice);
	if (gated->kind == CELL__GATE_SHELL)
		return json_string_value(json_object_get(gated->inner.args, "name"));
	if (gated->kind == CELL__GATE_QUESTION)
		return json_string_value(json_object_get(gated->inner.args, "tool"));
	return tools[gated->kind];
}

static const char *shown_callable(const struct cell__gated_call *gated)
{
	if (is_own(gated))
		return "";
	if (gated->kind == CELL__GATE_TOOL)
		return cell__tool_choice_callable(&gated->choice);
	if (gated->kind == CELL__GATE_QUESTION)
		return json_string_value(json_object_get(gated->inner.args, "callable"));
	return cell__operation_shown(gated->inner.operation);
}

static const char *shown_adapter(const struct cell__gated_call *gated)
{
	if (is_own(gated))
		return "host";
	if (gated->kind == CELL__GATE_TOOL)
		return cell__tool_choice_adapter(&gated->choice);
	return gated->kind == CELL__GATE_SHELL ? "kernel" : gated->kind == CELL__GATE_QUESTION ? "mcp" : "space";
}

/* The arguments as they are shown, decided on and recorded: the ones that run. */
json_t *cell__gated_call_args(const struct cell__gated_call *gated)
{
	if (gated->kind == CELL__GATE_TOOL && !is_own(gated))
		return gated->choice.args;
	if (gated->kind == CELL__GATE_SHELL || is_own(gated))
		return json_object_get(gated->inner.args, "args");
	if (gated->kind == CELL__GATE_QUESTION)
		return json_object_get(gated->inner.args, "params");
	return gated->shown ? gated->shown : gated->inner.args;
}

int cell__gated_call_make_info(struct cell__gated_call *gated)
{
	char *args = json_dumps(cell__gated_call_args(gated), JSON_COMPACT | JSON_SORT_KEYS);
	struct cell_call_info info = {
		.id = gated->id,
		.request_id = gated->request_id,
		.kind = cell__gate_kind_word(gated->kind),
		.tool = cell__gated_call_tool(gated),
		.callable = shown_callable(gated),
		.adapter = shown_adapter(gated),
		.session_id = gated->session_id,
		.principal = cell__principal_word(&gated->principal),
		.client = gated->inner.client,
		.span_id = gated->span_id,
	};
	const struct cell_call_info *call_info = args ? cell__call_info_create(&info, args) : NULL;
	if (!call_info)
		return -1;
	cell__call_info_unref(gated->call_info);
	gated->call_info = call_info;
	return 0;
}

/* ---- outcomes ---- */

void cell__gated_call_answer(struct cell__gated_call *gated, json_t *result, const void *raw, size_t raw_size)
{
	clear_outcome(&gated->outcome);
	char *copy = raw_size > 0 ? cell__strndup(raw, raw_size) : NULL;
	if (!result || (raw_size > 0 && !copy)) {
		json_decref(result);
		free(copy);
		cell__gated_call_fail(gated, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	gated->outcome = (struct cell__call_outcome){ .result = result, .raw = copy, .raw_size = raw_size };
}

void cell__gated_call_fail(struct cell__gated_call *gated, int code, const char *type, const char *message)
{
	clear_outcome(&gated->outcome);
	gated->outcome = (struct cell__call_outcome){
		.failed = true, .code = code, .type = cell__strdup(type), .message = cell__strdup(message)
	};
}

static const char *outcome_word(const struct cell__gated_call *gated)
{
	return gated->decision ? gated->decision : gated->outcome.failed ? "error" : "ok";
}

/* The asker gets the outcome and the gated is gone. */
static void hand_over(struct cell__gated_call *gated)
{
	struct cell__call *outer = gated->outer;
	struct cell__call_outcome *outcome = &gated->outcome;
	if (gated->gate)
		leave_gate(gated);
	if (outer && outcome->failed)
		outer->fail(outer, outcome->code, outcome->type ? outcome->type : "MemoryError",
			    outcome->message ? outcome->message : "the host is out of memory");
	else if (outer)
		outer->answer(outer, cell__take_ptr(outcome->result), outcome->raw, outcome->raw_size);
	cell__gated_call_destroy(gated);
}

static void handle_recorded(void *arg, int rc)
{
	struct cell__gated_call *gated = arg;
	if (rc < 0 && gated->outer)
		cell__gated_call_fail(gated, CELL_E_IO, "RuntimeError", "the call was made, but it could not be written to the audit log");
	hand_over(gated);
}

/* 1: no log is configured. */
static int record(struct cell__gated_call *gated, enum cell__audit_outcome outcome, void (*written)(void *arg, int rc),
		  struct cell_error *err)
{
	struct cell__gate *gate = gated->gate;
	if (!gate->audit)
		return 1;
	/* A function of the host may be changing the arguments right now: then the original arguments count. */
	json_t *asked = gated->held && gated->outer ? gated->outer->args : gated->inner.args;
	bool named = gated->kind == CELL__GATE_TOOL || gated->kind == CELL__GATE_SHELL;
	const char *name = named ? json_string_value(json_object_get(asked, "name")) : cell__gated_call_tool(gated);
	const struct cell_call_info *call_info = gated->call_info;
	struct cell__audit_record entry = {
		.session_id = gated->session_id,
		.cell_hash = gate->cell_hash && *gate->cell_hash ? gate->cell_hash : NULL,
		.request_id = gated->request_id,
		.kind = cell__gate_kind_word(gated->kind),
		.tool = call_info ? call_info->tool : name,
		.callable = call_info ? call_info->callable : NULL,
		.adapter = call_info ? call_info->adapter : NULL,
		.executor = gated->executor,
		.principal = cell__principal_word(&gated->principal),
		.client = *gated->principal.name ? gated->principal.name : NULL,
		.args = call_info ? cell__gated_call_args(gated)
			: named   ? json_object_get(asked, "args")
				  : asked,
		.args_before = gated->args_before,
		.decision = gated->audited,
		.by = gated->by,
		.rule = gated->rule,
		.rule_name = gated->rule_name,
		.duration_us = cell__now_us() - gated->started_us,
		.outcome = outcome,
		.code = gated->outcome.code,
		.error = outcome == CELL__AUDIT_ERROR ? gated->outcome.message : NULL,
	};
	cell__pace_charge(gate->pace, cell__audit_size_of(entry.args_before) + cell__audit_size_of_error(entry.error));
	return cell__audit_write(gate->audit, &entry, written, gated, err);
}

void cell__gated_call_deliver(struct cell__gated_call *gated)
{
	struct cell_error err;
	if (!gated->gate) {
		hand_over(gated);
		return;
	}
	emit(gated, CELL_EVENT_CALL_ENDED, outcome_word(gated), gated->outcome.failed ? gated->outcome.message : NULL);
	gated->recording = true;
	int rc = record(gated, gated->outcome.failed ? CELL__AUDIT_ERROR : CELL__AUDIT_OK, handle_recorded, &err);
	if (rc < 0)
		cell__gated_call_fail(gated, err.code, "RuntimeError", err.msg);
	if (rc != 0)
		hand_over(gated);
}

static void conclude(struct cell__gated_call *gated)
{
	gated->inner.cancel = NULL;
	gated->going_out = true;
	cell__gated_call_walk(gated);
}

static struct cell__gated_call *of_inner(struct cell__call *call)
{
	return (struct cell__gated_call *)call;
}

/* The answer waits for middlewares and the audit log: may it? */
static bool has_room(const struct cell__gated_call *gated, const json_t *result, size_t raw_size)
{
	struct cell__call *outer = gated->outer;
	bool waits = gated->reply.ref || (gated->gate && gated->gate->audit);
	return !outer || !outer->hold || !waits || outer->hold(outer, raw_size + cell__audit_memory_of(result));
}

static void handle_answer(struct cell__call *call, json_t *result, const void *raw, size_t raw_size)
{
	struct cell__gated_call *gated = of_inner(call);
	if (has_room(gated, result, raw_size)) {
		cell__gated_call_answer(gated, result, raw, raw_size);
	} else {
		json_decref(result);
		cell__gated_call_fail(gated, CELL_E_LIMIT, "RuntimeError",
				      "the call was made, but its answer was dropped: the pending answers of this session take too much of "
				      "the host's memory; make fewer calls at once");
	}
	conclude(gated);
}

static void handle_fail(struct cell__call *call, int code, const char *type, const char *message)
{
	struct cell__gated_call *gated = of_inner(call);
	cell__gated_call_fail(gated, code, type, message);
	conclude(gated);
}

static void handle_progress(struct cell__call *call, const char *line, size_t size)
{
	struct cell__call *outer = of_inner(call)->outer;
	if (outer)
		outer->progress(outer, line, size);
}

static void handle_lend(struct cell__call *call, struct cell__lent_work *work)
{
	struct cell__call *outer = of_inner(call)->outer;
	outer->lend(outer, work);
}

/* A server's tools had to be listed first. */
static void handle_again(struct cell__call *call)
{
	cell__gated_call_decide(of_inner(call));
}

/* ---- the shown form ---- */

static bool preview_packages(struct cell__gated_call *gated);

/* Without fields that only our own kernels understand. */
static int make_shown(struct cell__gated_call *gated)
{
	json_t *shown = json_copy(gated->inner.args);
	if (!shown)
		return -1;
	json_object_del(shown, "key");
	json_object_del(shown, "size");
	json_decref(gated->shown);
	gated->shown = shown;
	return 0;
}

/* ---- running ---- */

void cell__gated_call_run(struct cell__gated_call *gated)
{
	struct cell__gate *gate = gated->gate;
	struct cell__call *inner = &gated->inner;
	gated->ran = true;
	if (gated->kind == CELL__GATE_SHELL)
		inner->answer(inner, json_incref(cell__gated_call_args(gated)), NULL, 0);
	else if (gated->kind == CELL__GATE_QUESTION)
		inner->answer(inner, json_incref(gated->content), NULL, 0);
	else if (gated->kind == CELL__GATE_TOOL && !is_own(gated))
		gate->target->run(gate->space, gate->cwd, &gated->choice, inner);
	else
		gate->target->handle(gate->space, gate->cwd, inner);
}

static void add_name(struct cell__buf *out, const struct cell__gated_call *gated)
{
	const char *callable = shown_callable(gated);
	(void)cell__buf_printf(out, "%s%s%s", cell__gated_call_tool(gated), *callable ? "." : "", callable);
}

void cell__gated_call_refuse(struct cell__gated_call *gated, const char *decision, const char *type, const char *before, const char *after,
			     const char *reason)
{
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
	gated->decision = decision;
	gated->gate->refused += gated->kind != CELL__GATE_QUESTION;
	(void)cell__buf_add_str(&message, before);
	add_name(&message, gated);
	(void)cell__buf_add_str(&message, after);
	if (reason && *reason)
		(void)cell__buf_printf(&message, ": %s", reason);
	cell__gated_call_fail(gated, CELL_OUT_REJECTED, type, message.data ? message.data : "refused");
	conclude(gated);
}

/* ---- parking ---- */

static bool is_remembered(const struct cell__gated_call *gated)
{
	if (!gated->gate->remembered)
		return false;
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
	add_name(&name, gated);
	for (struct cell__remembered *one = *gated->gate->remembered; one; one = one->next)
		if (strcmp(one->kind, cell__gate_kind_word(gated->kind)) == 0 && name.data && strcmp(one->name, name.data) == 0)
			return true;
	return false;
}

int cell__gated_call_remember(struct cell__gated_call *gated)
{
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
	add_name(&name, gated);
	struct cell__remembered *one = name.data ? cell__alloc(1, sizeof *one + name.size + 1) : NULL;
	if (!one)
		return -1;
	one->kind = cell__gate_kind_word(gated->kind);
	memcpy(one->name, name.data, name.size + 1);
	one->next = *gated->gate->remembered;
	*gated->gate->remembered = one;
	return 0;
}

static void park(struct cell__gated_call *gated, const char *reason)
{
	struct cell__gate *gate = gated->gate;
	gated->deadline_ms = gate->timeout_ms < 0 ? -1 : cell__now_us() / 1000 + gate->timeout_ms;
	gated->parked = gated->was_parked = true;
	gated->parked_prev = gate->parked_last;
	if (gate->parked_last)
		gate->parked_last->parked_next = gated;
	else
		gate->parked_first = gated;
	gate->parked_last = gated;
	gate->n_parked++;
	gate->parked(gate->owner);
	if (gate->waits && gated->kind == CELL__GATE_TOOL && gated->outer)
		gate->waits(gate->owner, gated->outer, gated->id, cell__tool_choice_supposed(&gated->choice));
	emit(gated, CELL_EVENT_APPROVAL, NULL, reason && *reason ? reason : NULL);
}

void cell__gated_call_unpark(struct cell__gated_call *gated, const char *decision, const char *reason)
{
	struct cell__gate *gate = gated->gate;
	if (gated->parked_prev)
		gated->parked_prev->parked_next = gated->parked_next;
	else
		gate->parked_first = gated->parked_next;
	if (gated->parked_next)
		gated->parked_next->parked_prev = gated->parked_prev;
	else
		gate->parked_last = gated->parked_prev;
	gated->parked = false;
	gate->n_parked--;
	gate->parked(gate->owner);
	emit(gated, CELL_EVENT_APPROVAL_ENDED, decision, reason);
}

/* ---- the decision ---- */

static bool is_watched(const struct cell__gate *gate)
{
	return gate->policy || gate->audit || (gate->listens && gate->listens(gate->owner));
}

static int check_shell(struct cell__gated_call *gated)
{
	struct cell__call *inner = &gated->inner;
	if (json_is_string(json_object_get(json_object_get(inner->args, "args"), "cmd")))
		return 0;
	inner->fail(inner, CELL_E_INVALID, "ValueError", "shell.approve needs a string 'cmd' in its 'args'");
	return -1;
}

void cell__gated_call_consult(const struct cell__gated_call *gated, struct cell_policy_verdict *ret_verdict)
{
	const char *callable = shown_callable(gated);
	struct cell__subject subject = {
		.kind = cell__gate_kind_word(gated->kind),
		.tool = cell__gated_call_tool(gated),
		.callable = *callable ? callable : NULL,
		.adapter = shown_adapter(gated),
		.args = cell__gated_call_args(gated),
		.principal = gated->principal.kind,
	};
	cell__policy_judge(gated->gate->policy, &subject, ret_verdict);
}

static void judge(struct cell__gated_call *gated)
{
	struct cell__gate *gate = gated->gate;
	bool host = gated->principal.kind == CELL__PRINCIPAL_HOST;
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT;
	cell__gated_call_consult(gated, &verdict);
	gated->rule = verdict.rule;
	if (verdict.rule > 0 && verdict.decision != CELL_ASK)
		gated->by = CELL__AUDIT_BY_POLICY;
	gated->rule_name = verdict.name;
	if (verdict.decision == CELL_DENY) {
		gated->audited = CELL__AUDIT_DENY;
		cell__gated_call_refuse(gated, "denied", "ApprovalRejectedError", "The policy denies ", "", verdict.reason);
	} else if (verdict.decision == CELL_ALLOW || host) {
		cell__gated_call_run(gated);
	} else if (gate->cannot_ask) {
		gated->audited = CELL__AUDIT_DENY;
		cell__gated_call_refuse(gated, "denied", "ApprovalRejectedError", "Nobody can be asked to approve ", "", gate->cannot_ask);
	} else if (is_remembered(gated)) {
		gated->by = CELL__AUDIT_BY_PERSON;
		gated->audited = CELL__AUDIT_ACCEPTED;
		cell__gated_call_run(gated);
	} else {
		park(gated, verdict.reason);
	}
}

void cell__gated_call_decide(struct cell__gated_call *gated)
{
	struct cell__gate *gate = gated->gate;
	struct cell__call *inner = &gated->inner;
	if (!gate) { /* no caller waits: a middleware held it until now */
		cell__gated_call_destroy(gated);
		return;
	}
	if (gated->kind == CELL__GATE_TOOL && !is_own(gated)) {
		if (gate->target->choose(gate->space, gate->cwd, inner, &gated->choice) < 0)
			return;
	} else if (gated->kind == CELL__GATE_SHELL && check_shell(gated) < 0) {
		return;
	} else if (inner->operation->id == CELL__OP_DEPS_SYNC && is_watched(gate) && !gated->shown) {
		preview_packages(gated);
		return;
	} else if (gated->kind == CELL__GATE_ARTIFACT && make_shown(gated) < 0) {
		inner->fail(inner, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	if (is_watched(gate) && cell__gated_call_make_info(gated) < 0) {
		inner->fail(inner, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	struct cell_error err;
	if (gate->audit && cell__audit_admit(gate->audit, &err) < 0) {
		inner->fail(inner, err.code, "RuntimeError", err.msg);
		return;
	}
	emit(gated, CELL_EVENT_CALL_STARTED, NULL, NULL);
	if (gate->policy && (gate->kinds & cell__gate_kind_bit(gated->kind)))
		judge(gated);
	else
		cell__gated_call_run(gated);
}

/* ---- the packages that a sync would install ---- */

static struct cell__gated_call *of_preview(struct cell__call *preview)
{
	return (struct cell__gated_call *)((char *)preview - offsetof(struct cell__gated_call, preview));
}

static void end_preview(struct cell__gated_call *gated)
{
	json_decref(gated->preview.args);
	gated->preview = (struct cell__call){ 0 };
	gated->inner.cancel = NULL;
}

static void handle_packages(struct cell__call *preview, json_t *result, const void *raw, size_t raw_size)
{
	(void)raw, (void)raw_size;
	struct cell__gated_call *gated = of_preview(preview);
	json_t *shown = json_copy(gated->inner.args);
	if (!shown || !result || json_object_set_new(shown, "packages", result) < 0)
		json_decref(cell__take_ptr(shown));
	end_preview(gated);
	if (!shown) {
		gated->inner.fail(&gated->inner, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	bool same = gated->shown && json_equal(shown, gated->shown);
	json_decref(gated->shown);
	gated->shown = shown;
	gated->was_parked = false;
	if (same) /* as it was approved */
		cell__gated_call_run(gated);
	else
		cell__gated_call_decide(gated);
}

static void handle_no_packages(struct cell__call *preview, int code, const char *type, const char *message)
{
	struct cell__gated_call *gated = of_preview(preview);
	end_preview(gated);
	gated->inner.fail(&gated->inner, code, type, message);
}

static void cancel_preview(struct cell__call *inner)
{
	struct cell__gated_call *gated = of_inner(inner);
	if (gated->preview.cancel)
		gated->preview.cancel(&gated->preview);
	end_preview(gated);
}

/* Requests the configured packages, and then decides, or runs an approved call if they are still the same. Always true. */
static bool preview_packages(struct cell__gated_call *gated)
{
	gated->preview = (struct cell__call){
		.method = "deps.list",
		.operation = &cell__operations[CELL__OP_DEPS_LIST],
		.args = json_object(),
		.session_id = gated->session_id,
		.principal = &gated->principal,
		.answer = handle_packages,
		.fail = handle_no_packages,
	};
	gated->inner.cancel = cancel_preview;
	gated->gate->target->handle(gated->gate->space, gated->gate->cwd, &gated->preview);
	return true;
}

/* ---- cancelling ---- */

static void handle_cancel(struct cell__call *outer)
{
	struct cell__gated_call *gated = outer->handler;
	if (gated->parked)
		cell__gated_call_unpark(gated, "cancelled", NULL);
	if (gated->inner.cancel)
		gated->inner.cancel(&gated->inner);
	bool over = gated->recording, counted = cell__pace_withdraw(gated->gate->pace, &gated->wait);
	if (!over && !counted) {
		/* It was not approved: the log must not suggest that the policy allowed it. */
		if (!gated->ran && !gated->decision && gated->by == CELL__AUDIT_BY_POLICY) {
			gated->audited = CELL__AUDIT_WITHDRAWN;
			gated->by = CELL__AUDIT_BY_SESSION;
		}
		emit(gated, CELL_EVENT_CALL_ENDED, "cancelled", NULL);
		/* No caller is left to receive a write error; the log itself reports it. */
		(void)record(gated, CELL__AUDIT_CANCELLED, NULL, NULL);
	}
	gated->outer = NULL;
	leave_gate(gated);
	if (!gated->held && !over)
		cell__gated_call_destroy(gated);
}

/* ---- the front ---- */

static void fail_without_space(struct cell__call *call)
{
	call->fail(
		call, CELL_E_NOT_FOUND, "RuntimeError",
		"this session has no tools and no storage; open it with some (storage=, tools= in Python; --base, --storage, --tools of the "
		"command line)");
}

bool cell__gate_is_open(const struct cell__gate *gate)
{
	return gate->space && gate->target->middlewares(gate->space)->count == 0 && !is_watched(gate);
}

/* The called server's spans are children of the call's own one. */
static void give_span(struct cell__gated_call *gated)
{
	struct cell__traceparent parent;

	if (!gated->inner.trace.spans || !cell__traceparent_read(gated->inner.trace.parent, &parent))
		return;
	cell__random_hex(gated->span_id, CELL_SPAN_DIGITS);
	memcpy(parent.span, gated->span_id, sizeof parent.span);
	cell__traceparent_write(&parent, gated->inner.trace.parent);
	gated->inner.trace.spans = false;
}

/* NULL: no memory, and the call has failed. */
static struct cell__gated_call *let_in(struct cell__gate *gate, struct cell__call *call)
{
	struct cell__gated_call *gated = cell__alloc(1, sizeof *gated);
	if (!gated) {
		call->fail(call, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return NULL;
	}
	gated->principal = *call->principal;
	gated->inner = (struct cell__call){
		.method = call->method,
		.args = json_incref(call->args),
		.raw = call->raw,
		.raw_size = call->raw_size,
		.session_id = call->session_id,
		.origin = call->origin,
		.operation = call->operation,
		.principal = &gated->principal,
		.client = call->client,
		.trace = call->trace,
		.work = call->work,
		.lend = call->work ? handle_lend : NULL,
		.answer = handle_answer,
		.fail = handle_fail,
		.progress = call->progress ? handle_progress : NULL,
		.again = handle_again,
	};
	give_span(gated);
	gated->outer = call;
	gated->gate = gate;
	gated->kind = call->operation->kind;
	gated->id = (*gate->next_id)++;
	gated->started_us = cell__now_us();
	snprintf(gated->session_id, sizeof gated->session_id, "%s", gate->session_id);
	snprintf(gated->executor, sizeof gated->executor, "%s", gate->executor);
	snprintf(gated->request_id, sizeof gated->request_id, "%.8s-%llu", *gate->session_id ? gate->session_id : "host",
		 (unsigned long long)gated->id);
	gated->by = call->principal->kind == CELL__PRINCIPAL_HOST ? CELL__AUDIT_BY_HOST : CELL__AUDIT_BY_POLICY;
	call->handler = gated;
	call->cancel = handle_cancel;
	CELL__LIST_PUSH(gate->first, gated);
	return gated;
}

static void handle_pace(struct cell__pace_wait *wait)
{
	cell__gated_call_walk((struct cell__gated_call *)((char *)wait - offsetof(struct cell__gated_call, wait)));
}

/* Whether the audit log has room for it. If not, it continues later. */
static bool may_go_on(struct cell__gated_call *gated)
{
	struct cell__gate *gate = gated->gate;
	if (!gate->audit || !gate->pace || cell__principal_is_trusted(&gated->principal))
		return true;
	gated->wait.go = handle_pace;
	return cell__pace_enter(gate->pace, &gated->wait, CELL__PACE_RECORD_BYTES + cell__audit_size_of(gated->inner.args));
}

/* input(): the same as a question of an MCP server, under a name that no tool can have. */
static void ask_for_input(struct cell__gate *gate, struct cell__call *call)
{
	if (!gate->takes_input) {
		call->fail(call, CELL_E_UNAVAILABLE, "RuntimeError", "nobody can type into this session");
		return;
	}
	json_t *asked = json_pack("{s:s, s:s, s:{s:O, s:O?, s:{s:s, s:{s:{s:s}}, s:[s]}}}", "tool", "input()", "callable", "", "params",
				  "message", json_object_get(call->args, "prompt"), "password", json_object_get(call->args, "password"),
				  "requestedSchema", "type", "object", "properties", "value", "type", "string", "required", "value");
	if (!asked || json_object_clear(call->args) < 0 || json_object_update(call->args, asked) < 0) {
		json_decref(asked);
		call->fail(call, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	json_decref(asked);
	cell__gate_ask(gate, call->principal, call);
}

void cell__gate_submit(struct cell__gate *gate, const struct cell__principal *principal, struct cell__call *call)
{
	if (cell__call_prepare(call, principal) < 0)
		return;
	const struct cell__operation *operation = call->operation;
	if (operation->id == CELL__OP_INPUT_READ) {
		ask_for_input(gate, call);
	} else if (operation->part == CELL__PART_SESSIONS && gate->sessions) {
		gate->sessions(gate->owner, call);
	} else if (operation->part != CELL__PART_KERNEL && !gate->space) {
		fail_without_space(call);
	} else if (operation->kind == CELL__GATE_NONE || (operation->part != CELL__PART_KERNEL && cell__gate_is_open(gate)) ||
		   (is_hole("call-clients") && principal->kind != CELL__PRINCIPAL_CODE) ||
		   (is_hole("call-kinds") && operation->kind >= CELL__GATE_REMOVE && operation->kind <= CELL__GATE_LLM)) {
		gate->target->handle(gate->space, gate->cwd, call);
	} else {
		struct cell__gated_call *gated = let_in(gate, call);
		if (gated && may_go_on(gated))
			cell__gated_call_walk(gated);
	}
}

/* ---- questions and notifications of MCP servers ---- */

void cell__gate_ask(struct cell__gate *gate, const struct cell__principal *principal, struct cell__call *question)
{
	question->principal = principal;
	question->operation = &cell__operations[CELL__OP_QUESTION];
	struct cell__gated_call *gated = let_in(gate, question);
	struct cell_error err;
	if (!gated)
		return;
	struct cell__call *inner = &gated->inner;
	if (cell__gated_call_make_info(gated) < 0) {
		inner->fail(inner, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
	} else if (gate->audit && cell__audit_admit(gate->audit, &err) < 0) {
		inner->fail(inner, err.code, "RuntimeError", err.msg);
	} else {
		emit(gated, CELL_EVENT_CALL_STARTED, NULL, NULL);
		park(gated, NULL);
	}
}

static void drop(struct cell__gated_call *gated, const char *why)
{
	struct cell__call *outer = gated->outer;
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
	struct cell__gated_call *gated = gate->first;
	while (gated) {
		bool goes = gated->parked || (gated->kind == CELL__GATE_TOOL && !is_own(gated)) || gated->kind == CELL__GATE_LLM;
		if (goes)
			drop(gated, "the session's kernel is gone");
		gated = goes ? gate->first : gated->next;
	}
}

void cell__gate_tell(struct cell__gate *gate, enum cell_event_type type, const struct cell__call *call, const char *tool, const char *json)
{
	if (!gate->emit || !gate->listens || !gate->listens(gate->owner))
		return;
	const struct cell_call_info *call_info = NULL;
	for (const struct cell__gated_call *gated = call ? gate->first : NULL; gated && !call_info; gated = gated->next)
		if (&gated->inner == call && gated->call_info)
			call_info = cell__call_info_ref(gated->call_info);
	if (!call_info) {
		char *args = cell__strdup("{}");
		struct cell_call_info info = {
			.request_id = "", .kind = "tool", .tool = tool, .callable = "", .adapter = "mcp", .session_id = gate->session_id
		};
		call_info = args ? cell__call_info_create(&info, args) : NULL;
	}
	struct cell_event event = { .type = type, .call = call_info, .data = json, .size = strlen(json) };
	if (call_info)
		gate->emit(gate->owner, &event); /* without memory a little less is heard of it */
	cell__call_info_unref(call_info);
}
