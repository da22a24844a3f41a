/*
 * What the console shows beside sessions: the policy with a try-out, the audit log, the executors of this machine, completions.  Reading files
 * and asking executors may wait, so that is done on the pool (lookup.c).
 */
#include "server/api.h"

#include <string.h>

#include "gate/audit.h"
#include "gate/policy.h"

#define AUDIT_RECORDS 200
#define COMPLETE_MS 2000

/* ---- the audit log ---- */

static const char *text_of(const struct cell__lookup *reading, const char *name)
{
	const char *text = json_string_value(json_object_get(reading->request->query, name));

	return text && *text ? text : NULL;
}

/* Filters select before the newest are taken, so all records are read. */
static void read_audit(struct cell__lookup *reading)
{
	struct cell_audit_filter filter = CELL_AUDIT_FILTER_INIT;
	struct cell_audit_entry entry = CELL_AUDIT_ENTRY_INIT;
	const json_t *last = json_object_get(reading->request->query, "last");
	size_t most = last ? (size_t)json_integer_value(last) : AUDIT_RECORDS, bad = 0;
	struct cell_audit_reader *reader = NULL;
	json_t *list = json_array();
	int more = -1;

	filter.session = text_of(reading, "session");
	filter.tool = text_of(reading, "tool");
	filter.decision = text_of(reading, "decision");
	filter.since = text_of(reading, "since");
	if (cell_audit_reader_open(reading->path, &filter, &reader, &reading->err) == 0) {
		while ((more = cell_audit_reader_next(reader, &entry, &reading->err)) > 0) {
			json_t *record = entry.json ? json_loads(entry.json, JSON_ALLOW_NUL, NULL) : NULL;

			bad += !record;
			if (record && json_array_size(list) == most)
				json_array_remove(list, 0);
			if (record)
				json_array_append_new(list, record);
		}
	}
	cell_audit_reader_close(reader);
	if (more == 0)
		reading->answer = json_pack("{s:o,s:I}", "records", list, "unreadable", (json_int_t)bad);
	else
		json_decref(list);
}

void cell__handle_v1_audit(struct cell__request *request)
{
	struct cell_audit *audit = request->server->session.audit;

	if (audit)
		cell__lookup_begin(cell__lookup_create(request, read_audit, cell__audit_path(cell__audit_of(audit)), NULL));
	else
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND,
				  "this server has no audit log: start it with --audit FILE");
}

/* ---- executors ---- */

static void read_doctor(struct cell__lookup *reading)
{
	struct cell_executor_info info;
	json_t *list = json_array();

	cell_executor_info_init(&info);
	for (size_t i = 0; cell_executor_probe(reading->request->server->engine, i, &info) == 0; i++)
		json_array_append_new(list, json_pack("{s:s,s:s,s:b,s:s,s:s,s:s,s:s}", "name", info.name, "isolation", info.isolation,
						      "available", info.available, "reason", info.reason, "advice", info.advice, "fix",
						      info.fix, "level", info.level));
	reading->answer = json_pack("{s:s,s:o}", "version", cell_version(), "executors", list);
}

void cell__handle_v1_doctor(struct cell__request *request)
{
	cell__lookup_begin(cell__lookup_create(request, read_doctor, NULL, NULL));
}

/* ---- the policy ---- */

void cell__handle_v1_policy(struct cell__request *request)
{
	const struct cell_policy *policy = request->server->session.policy;

	cell__answer_json(request, MHD_HTTP_OK,
			  json_pack("{s:s?,s:s,s:I}", "source", policy ? policy->source : NULL, "default",
				    cell_decision_word(policy ? policy->fallback : CELL_ALLOW), "rules",
				    (json_int_t)(policy ? policy->count : 0)));
}

void cell__handle_v1_policy_try(struct cell__request *request)
{
	const struct cell_policy *policy = request->server->session.policy;
	const json_t *body = request->json, *args = json_object_get(body, "args");
	CELL_AUTO_FREE char *text = json_is_object(args) ? json_dumps(args, JSON_COMPACT) : NULL;
	struct cell_policy_subject subject = CELL_POLICY_SUBJECT_INIT;
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT;
	struct cell_error err;

	subject.kind = json_string_value(json_object_get(body, "kind"));
	subject.tool = json_string_value(json_object_get(body, "tool"));
	subject.callable = json_string_value(json_object_get(body, "callable"));
	subject.adapter = json_string_value(json_object_get(body, "adapter"));
	subject.principal = json_string_value(json_object_get(body, "principal"));
	subject.args_json = text;
	verdict.decision = CELL_ALLOW;
	if (policy && cell_policy_decide(policy, &subject, &verdict, &err) < 0) {
		cell__answer_error(request, &err);
		return;
	}
	cell__answer_json(request, MHD_HTTP_OK,
			  json_pack("{s:s,s:i,s:i,s:s?,s:s?,s:s?}", "decision", cell_decision_word(verdict.decision), "rule", verdict.rule,
				    "line", verdict.line, "name", verdict.name, "reason", verdict.reason, "doubt", verdict.doubt));
}

/* ---- completions ---- */

void cell__answer_value(struct cell__request *request, const struct cell_event *event, const char *what)
{
	const struct cell_outcome *outcome;
	const char *value;

	if (event->type != CELL_EVENT_RESULT)
		return;
	outcome = cell_result_error(event->result);
	value = cell_result_value_json(event->result);
	if (outcome && outcome->code == CELL_E_BUSY)
		cell__answer_fail(request, MHD_HTTP_CONFLICT, CELL_E_BUSY, "a cell runs in this session");
	else if (outcome || !value)
		cell__answer_fail(request, MHD_HTTP_BAD_GATEWAY, CELL_E_KERNEL, "the kernel did not answer with %s: %.150s", what,
				  outcome ? outcome->message : "no answer");
	else
		cell__answer_text(request, MHD_HTTP_OK, cell__strdup(value));
	cell_result_destroy(event->result);
}

static void handle_completed(void *arg, const struct cell_event *event)
{
	cell__answer_value(arg, event, "completions");
}

void cell__handle_v1_complete(struct cell__request *request)
{
	const json_t *code = json_object_get(request->json, "code");
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	struct cell_error err;

	if (!cell__served_find(request, request->params[0], false))
		return;
	if (request->served->jobs) {
		cell__answer_fail(request, MHD_HTTP_CONFLICT, CELL_E_BUSY, "a cell runs in this session");
		return;
	}
	options.timeout_ms = COMPLETE_MS;
	options.on_event = handle_completed;
	options.event_arg = request;
	if (cell__session_complete_on_loop(request->served->session, json_string_value(code), json_string_length(code), &options, &err) < 0)
		cell__answer_error(request, &err);
}
