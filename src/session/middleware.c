/*
 * Functions of the host around tool calls.
 *
 *     walk: before[0] ──next──▶ before[1] ──next──▶ ... decide ... ──outcome──▶ after[1] ──▶ after[0] ──▶ deliver
 *
 * While a function holds the call (`held`), the passage is its alone but for `gate` and `outer`, which the loop clears
 * when the asker goes.  Its last word comes from any thread and passes through the door to the loop's.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "session/passage.h"
#include "session/space.h"
#include "wire/json_check.h"

enum { NEXT, ANSWER_JSON, ANSWER_TEXT, FAIL, NO_MEMORY };

struct cell_middleware_call; /* struct cell__passage under its public name */

static struct cell__passage *passage_of(const struct cell_middleware_call *call)
{
	return (struct cell__passage *)call;
}

int cell__middlewares_add(struct cell__middlewares *all, const struct cell_middleware *middleware,
			  struct cell__loop *loop, struct cell_error *err)
{
	if (!all->door)
		all->door = cell__door_create(loop);
	struct cell_middleware *more = cell__realloc(all->list, (all->count + 1) * sizeof *more);
	if (more)
		all->list = more;
	char *name = cell__strdup(middleware->name ? middleware->name : "");
	if (!all->door || !more || !name) {
		free(name);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	all->list[all->count] = *middleware;
	all->list[all->count++].name = name;
	return 0;
}

void cell__middlewares_finish(struct cell__middlewares *all)
{
	for (size_t i = 0; i < all->count; i++)
		free((char *)all->list[i].name);
	free(all->list);
	cell__door_close(all->door);
	*all = (struct cell__middlewares){ 0 };
}

/* ---- walking ---- */

static void let_in(struct cell__passage *passage, cell_middleware_fn fn, void *arg)
{
	passage->held = true;
	fn(arg, (struct cell_middleware_call *)passage);
}

void cell__passage_walk(struct cell__passage *passage)
{
	static const struct cell__middlewares none;
	const struct cell__middlewares *all =
		passage->gate && passage->kind == CELL__GATE_TOOL ? cell__space_middlewares(passage->gate->space) : &none;
	if (!passage->door && all->count > 0)
		passage->door = cell__door_ref(all->door);
	while (!passage->going_out && passage->at < all->count) {
		const struct cell_middleware *one = &all->list[passage->at];
		if (one->before) {
			let_in(passage, one->before, one->arg);
			return;
		}
		passage->at++;
	}
	if (!passage->going_out) {
		cell__passage_decide(passage);
		return;
	}
	while (passage->gate && passage->at > 0) {
		const struct cell_middleware *one = &all->list[--passage->at];
		if (one->after) {
			let_in(passage, one->after, one->arg);
			return;
		}
	}
	cell__passage_deliver(passage);
}

static void take_reply(struct cell__passage *passage)
{
	struct cell__buf *reply = &passage->reply;
	const char *type = passage->action == ANSWER_JSON ? "json" : "text";
	if (passage->action == NO_MEMORY)
		cell__passage_fail(passage, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
	else if (passage->action == FAIL)
		cell__passage_fail(passage, CELL_E_TOOL, "ToolCallError", reply->data);
	else if (passage->action == ANSWER_JSON && !cell__json_check(reply->data, reply->size))
		cell__passage_fail(passage, CELL_E_TOOL, "ToolCallError", "the middleware's answer is not JSON");
	else
		cell__passage_answer(passage, json_pack("{s:s}", "raw", type), reply->data, reply->size);
	cell__buf_finish(reply);
	*reply = (struct cell__buf)CELL_BUF_INIT;
}

static void handle_finished(struct cell__task *task)
{
	struct cell__passage *passage = (struct cell__passage *)((char *)task - offsetof(struct cell__passage, task));
	passage->held = false;
	free(cell__take_ptr(passage->text));
	if (!passage->gate) {
		cell__passage_destroy(passage);
		return;
	}
	bool before = !passage->going_out;
	if (passage->action != NEXT) {
		const struct cell__middlewares *all = cell__space_middlewares(passage->gate->space);
		if (before) {
			passage->by = CELL__AUDIT_BY_MIDDLEWARE;
			passage->rule_name = all->list[passage->at].name;
			passage->audited = passage->action == FAIL ? CELL__AUDIT_DENY : CELL__AUDIT_ALLOW;
			passage->decision = passage->action == FAIL ? "denied" : NULL;
		}
		take_reply(passage);
		passage->going_out = true;
	} else if (before) {
		passage->at++;
	}
	cell__passage_walk(passage);
}

/* Any thread. */
static void finish(struct cell_middleware_call *call, int action, const char *bytes, size_t size)
{
	struct cell__passage *passage = passage_of(call);
	passage->action = action;
	passage->task.fn = handle_finished;
	if (action != NEXT) {
		int rc = action == ANSWER_JSON ? cell__buf_add(&passage->reply, bytes, size)
					       : cell__buf_add_utf8(&passage->reply, bytes, size);
		/* The empty text too has memory behind it. */
		if (rc < 0 || cell__buf_add(&passage->reply, "", 0) < 0)
			passage->action = NO_MEMORY;
	}
	struct cell__door *door = cell__door_ref(passage->door); /* the passage may be gone when pass() returns */
	if (!cell__door_pass(door, &passage->task))
		cell__passage_destroy(passage);
	cell__door_unref(door);
}

void cell_middleware_next(struct cell_middleware_call *call)
{
	finish(call, NEXT, NULL, 0);
}

void cell_middleware_answer_json(struct cell_middleware_call *call, const char *json, size_t size)
{
	finish(call, ANSWER_JSON, json, size);
}

void cell_middleware_answer_text(struct cell_middleware_call *call, const char *text, size_t size)
{
	finish(call, ANSWER_TEXT, text, size);
}

void cell_middleware_fail(struct cell_middleware_call *call, const char *message)
{
	finish(call, FAIL, message, strlen(message));
}

/* ---- what a function may ask ---- */

/* "curl" and "get" of "curl.get": what the code wrote, not yet looked up. */
static const char *part_of_name(struct cell__passage *passage, bool callable)
{
	const char *name = json_string_value(json_object_get(passage->inner.args, "name"));
	const char *dot = name ? strchr(name, '.') : NULL;
	if (callable)
		return dot ? dot + 1 : "";
	if (!name)
		return "";
	snprintf(passage->tool_name, sizeof passage->tool_name, "%.*s", dot ? (int)(dot - name) : (int)strlen(name), name);
	return passage->tool_name;
}

const char *cell_middleware_tool(const struct cell_middleware_call *call)
{
	return part_of_name(passage_of(call), false);
}

const char *cell_middleware_callable(const struct cell_middleware_call *call)
{
	return part_of_name(passage_of(call), true);
}

const char *cell_middleware_session_id(const struct cell_middleware_call *call)
{
	return passage_of(call)->session_id;
}

const char *cell_middleware_executor(const struct cell_middleware_call *call)
{
	return passage_of(call)->executor;
}

const char *cell_middleware_request_id(const struct cell_middleware_call *call)
{
	return passage_of(call)->request_id;
}

const char *cell_middleware_args(struct cell_middleware_call *call)
{
	struct cell__passage *passage = passage_of(call);
	json_t *args = json_object_get(passage->inner.args, "args");
	free(passage->text);
	passage->text = args ? json_dumps(args, JSON_COMPACT) : cell__strdup("{}");
	return passage->text ? passage->text : "{}";
}

int cell_middleware_set_args(struct cell_middleware_call *call, const char *json, size_t size, struct cell_error *err)
{
	struct cell__passage *passage = passage_of(call);
	if (passage->going_out)
		return cell_fail(err, CELL_E_INVALID, 0, "the call is over: its arguments cannot be set any more");
	json_t *args = json_loadb(json, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	if (!json_is_object(args)) {
		json_decref(args);
		return cell_fail(err, CELL_E_INVALID, 0, "the arguments are not a JSON object");
	}
	/* A new object: the asker's own stays as it was sent. */
	json_t *both = json_pack("{s:O?, s:o}", "name", json_object_get(passage->inner.args, "name"), "args", args);
	if (!both)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (!passage->args_before)
		passage->args_before = json_incref(json_object_get(passage->inner.args, "args"));
	json_decref(passage->inner.args);
	passage->inner.args = both;
	return 0;
}

const char *cell_middleware_error(struct cell_middleware_call *call)
{
	struct cell__passage *passage = passage_of(call);
	if (!passage->going_out || !passage->outcome.failed)
		return NULL;
	return passage->outcome.message ? passage->outcome.message : "the host is out of memory";
}

const char *cell_middleware_result(struct cell_middleware_call *call, size_t *ret_size, int *ret_is_text)
{
	struct cell__passage *passage = passage_of(call);
	struct cell__outcome *outcome = &passage->outcome;
	if (!passage->going_out || outcome->failed)
		return NULL;
	const char *raw = json_string_value(json_object_get(outcome->result, "raw"));
	if (raw) {
		*ret_is_text = strcmp(raw, "text") == 0;
		*ret_size = outcome->raw_size;
		return outcome->raw ? outcome->raw : "";
	}
	free(passage->text);
	passage->text = json_dumps(json_object_get(outcome->result, "value"), JSON_COMPACT | JSON_ENCODE_ANY);
	*ret_is_text = 0;
	*ret_size = passage->text ? strlen(passage->text) : 0;
	return passage->text ? passage->text : "";
}
