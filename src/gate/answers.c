/* Approvals that wait: their deadlines, and the answers of people. */
#define _GNU_SOURCE
#include "gate/gate.h"

#include "base/hole.h"
#include "calls/schema.h"
#include "gate/gated_call.h"

int64_t cell__gate_deadline(const struct cell__gate *gate)
{
	return gate->parked_first ? gate->parked_first->deadline_ms : -1;
}

static void let_lapse(struct cell__gated_call *gated, const char *decision)
{
	gated->by = CELL__AUDIT_BY_TIMEOUT;
	gated->audited = CELL__AUDIT_TIMEOUT;
	cell__gated_call_unpark(gated, decision, NULL);
	cell__gated_call_refuse(gated, decision, "ApprovalTimeoutError", "Approval request for ", " expired", NULL);
}

void cell__gate_expire(struct cell__gate *gate)
{
	int64_t now = cell__now_us() / 1000;
	while (gate->parked_first && gate->parked_first->deadline_ms >= 0 && gate->parked_first->deadline_ms <= now) {
		let_lapse(gate->parked_first, "expired");
	}
}

/* Replaces the arguments of a parked call that were shown. */
static int edit(struct cell__gated_call *gated, const char *text, struct cell_error *err)
{
	json_t *args = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	int rc = 0;
	json_t *before = json_incref(cell__gated_call_args(gated));
	if (!json_is_object(args))
		rc = cell_fail(err, CELL_E_INVALID, 0, "the edited arguments are not a JSON object");
	else if (gated->kind == CELL__GATE_TOOL && gated->inner.operation->part != CELL__PART_ASKER) {
		if (cell__tool_choice_edit(&gated->choice, args, &why) < 0)
			rc = cell_fail(err, CELL_E_INVALID, 0, "the edited arguments are not valid: %.180s",
				       why.data ? why.data : "out of memory");
	} else if (gated->kind == CELL__GATE_SHELL && !json_is_string(json_object_get(args, "cmd"))) {
		rc = cell_fail(err, CELL_E_INVALID, 0, "the edited arguments lack the string 'cmd'");
	} else if (gated->kind == CELL__GATE_SHELL || gated->kind == CELL__GATE_TOOL) {
		json_t *both = json_pack("{s:s, s:O}", "name", cell__gated_call_tool(gated), "args", args);
		json_decref(gated->inner.args);
		gated->inner.args = both;
	} else if (cell__operation_check(gated->inner.operation, args, &why) < 0) {
		rc = cell_fail(err, CELL_E_INVALID, 0, "the edited arguments are not valid: %.180s", why.data ? why.data : "out of memory");
	} else {
		json_decref(gated->inner.args);
		gated->inner.args = json_incref(args);
		json_decref(cell__take_ptr(gated->shown));
	}
	json_decref(args);
	if (rc == 0 && cell__gated_call_make_info(gated) < 0)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (rc == 0 && !gated->args_before)
		gated->args_before = json_incref(before);
	json_decref(before);
	return rc;
}

static void put_back(json_t **place, json_t *value)
{
	json_decref(*place);
	*place = json_incref(value);
}

/* The same, unless the policy denies the edited call: then nothing changes, and the request keeps waiting. */
static int edit_within_policy(struct cell__gated_call *gated, const char *text, struct cell_error *err)
{
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT;
	json_t *args = json_incref(gated->inner.args), *shown = json_incref(gated->shown), *chosen = json_incref(gated->choice.args);
	json_t *before = json_incref(gated->args_before);
	int rc = edit(gated, text, err);
	verdict.decision = CELL_ALLOW;
	if (rc == 0 && !is_hole("edited"))
		cell__gated_call_consult(gated, &verdict);
	if (verdict.decision == CELL_DENY) {
		rc = cell_fail(err, CELL_E_INVALID, 0, "the policy denies the edited arguments%s%.150s", verdict.reason ? ": " : "",
			       verdict.reason ? verdict.reason : "");
		put_back(&gated->inner.args, args);
		put_back(&gated->shown, shown);
		put_back(&gated->choice.args, chosen);
		put_back(&gated->args_before, before);
		if (cell__gated_call_make_info(gated) < 0) /* out of memory: a call_info of other arguments must not be approved */
			let_lapse(gated, "cancelled");
	}
	json_decref(args);
	json_decref(shown);
	json_decref(chosen);
	json_decref(before);
	return rc;
}

/* The content for a server whose question is accepted. */
static int take_content(struct cell__gated_call *gated, const struct cell_approval_answer *answer, struct cell_error *err)
{
	const json_t *schema = json_object_get(cell__gated_call_args(gated), "requestedSchema");
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	json_t *content = json_loads(answer->args ? answer->args : "{}", JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	int rc = 0;
	if (json_is_object(content))
		(void)cell__schema_add_defaults(schema, content);
	if (answer->always)
		rc = cell_fail(err, CELL_E_INVALID, 0, "\"always\" does not apply to a question");
	else if (!json_is_object(content))
		rc = cell_fail(err, CELL_E_INVALID, 0, "the answer to a question must be a JSON object");
	else if (cell__schema_check(schema, content, &why) < 0)
		rc = cell_fail(err, CELL_E_INVALID, 0, "the answer does not match the question's schema: %.180s",
			       why.data ? why.data : "out of memory");
	if (rc < 0) {
		json_decref(content);
		return rc;
	}
	gated->content = content;
	return 0;
}

static int answer_question(struct cell__gated_call *gated, const struct cell_approval_answer *answer, struct cell_error *err)
{
	if (answer->accept && take_content(gated, answer, err) < 0)
		return -1;
	if (!answer->accept && answer->dismiss) {
		let_lapse(gated, "cancelled");
		return 0;
	}
	gated->by = answer->from_terminal ? CELL__AUDIT_BY_CLI : CELL__AUDIT_BY_PERSON;
	gated->audited = answer->accept ? CELL__AUDIT_ACCEPTED : CELL__AUDIT_REJECTED;
	cell__gated_call_unpark(gated, answer->accept ? "accepted" : "rejected", answer->accept ? NULL : answer->reason);
	if (answer->accept)
		cell__gated_call_run(gated);
	else
		cell__gated_call_refuse(gated, "rejected", "ApprovalRejectedError", "The question of ", " was declined", answer->reason);
	return 0;
}

static int answer_one(struct cell__gated_call *gated, const struct cell_approval_answer *answer, struct cell_error *err)
{
	if (gated->kind == CELL__GATE_QUESTION)
		return answer_question(gated, answer, err);
	if (answer->accept && answer->args && edit_within_policy(gated, answer->args, err) < 0)
		return -1;
	if (answer->accept && answer->always && cell__gated_call_remember(gated) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	gated->by = answer->from_terminal ? CELL__AUDIT_BY_CLI : CELL__AUDIT_BY_PERSON;
	if (answer->accept) {
		gated->audited = answer->args ? CELL__AUDIT_EDITED : CELL__AUDIT_ACCEPTED;
		if (gated->outer)
			gated->outer->edited = answer->args != NULL;
		cell__gated_call_unpark(gated, answer->args ? "edited" : "accepted", NULL);
		cell__gated_call_run(gated);
	} else {
		gated->audited = CELL__AUDIT_REJECTED;
		cell__gated_call_unpark(gated, "rejected", answer->reason);
		cell__gated_call_refuse(gated, "rejected", "ApprovalRejectedError", "Approval request for ", " rejected", answer->reason);
	}
	return 0;
}

int cell__gate_answer(struct cell__gate *gate, uint64_t id, const struct cell_approval_answer *answer, struct cell_error *err)
{
	if (id == 0) {
		/* Only requests that wait now; an answer may let the code ask again. A question needs more than a yes. */
		uint64_t last = *gate->next_id;
		struct cell__gated_call *gated = gate->parked_first;
		while (gated && gated->id < last) {
			if (answer->accept && gated->kind == CELL__GATE_QUESTION) {
				gated = gated->parked_next;
				continue;
			}
			if (answer_one(gated, answer, err) < 0)
				return -1;
			gated = gate->parked_first;
		}
		return 0;
	}
	for (struct cell__gated_call *gated = gate->parked_first; gated; gated = gated->parked_next)
		if (gated->id == id)
			return answer_one(gated, answer, err);
	return cell_fail(err, CELL_E_NOT_FOUND, 0, "request %llu is not pending: it was answered, expired or cancelled",
			 (unsigned long long)id);
}

bool cell__gate_waits(const struct cell__gate *gate, uint64_t id)
{
	const struct cell__gated_call *gated = gate->parked_first;
	while (gated && gated->id != id)
		gated = gated->parked_next;
	return gated != NULL;
}

/* The rule that asks, with its reason, and since when the call waits. */
static void add_why(const struct cell__gated_call *gated, json_t *one)
{
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT;
	if (gated->kind != CELL__GATE_QUESTION && gated->gate && gated->gate->policy)
		cell__gated_call_consult(gated, &verdict);
	json_object_set_new(one, "reason", verdict.reason ? json_string(verdict.reason) : json_null());
	json_object_set_new(one, "rule", verdict.name ? json_string(verdict.name) : json_null());
	json_object_set_new(one, "waited_ms", json_integer((cell__now_us() - gated->started_us) / 1000));
}

json_t *cell__gate_list(const struct cell__gate *gate)
{
	json_t *list = json_array();
	for (const struct cell__gated_call *gated = gate->parked_first; gated && list; gated = gated->parked_next) {
		const struct cell_call_info *call_info = gated->call_info;
		json_t *one = json_pack("{s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:O}", "id", (json_int_t)call_info->id, "request_id",
					call_info->request_id, "kind", call_info->kind, "tool", call_info->tool, "callable",
					call_info->callable, "adapter", call_info->adapter, "session_id", call_info->session_id, "args",
					cell__gated_call_args(gated));
		if (one)
			add_why(gated, one);
		if (!one || json_array_append_new(list, one) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}
