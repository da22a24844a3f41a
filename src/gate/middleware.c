/*
 * Functions of the host around tool calls.
 *
 *     walk: before[0] ──next──▶ before[1] ──next──▶ ... decide ... ──outcome──▶ after[1] ──▶ after[0] ──▶ deliver
 *
 * While a function holds the call (`held`), it owns the gated call except for `gate` and `outer`, which the loop clears
 * when the caller ends.  Its reply comes from any thread and is handled on the loop's (loop/loop_ref.h).
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "gate/gated_call.h"
#include "wire/json_check.h"

struct cell_middleware_call; /* struct cell__gated_call under its public name */

static struct cell__gated_call *gated_of(const struct cell_middleware_call *call)
{
	return (struct cell__gated_call *)call;
}

int cell__middlewares_add(struct cell__middlewares *all, const struct cell_middleware *middleware, struct cell__loop *loop,
			  struct cell_error *err)
{
	if (!all->loop_ref)
		all->loop_ref = cell__loop_ref_create(loop);
	struct cell_middleware *more = cell__realloc(all->list, (all->count + 1) * sizeof *more);
	if (more)
		all->list = more;
	char *name = cell__strdup(middleware->name ? middleware->name : "");
	if (!all->loop_ref || !more || !name) {
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
	cell__loop_ref_close(all->loop_ref);
	*all = (struct cell__middlewares){ 0 };
}

/* ---- walking ---- */

static void handle_reply(struct cell__reply *reply);
static void drop_reply(struct cell__reply *reply);

static void let_in(struct cell__gated_call *gated, cell_middleware_fn fn, void *arg)
{
	gated->held = true;
	fn(arg, (struct cell_middleware_call *)gated);
}

void cell__gated_call_walk(struct cell__gated_call *gated)
{
	static const struct cell__middlewares none;
	const struct cell__middlewares *all = gated->gate && gated->kind == CELL__GATE_TOOL
						      ? gated->gate->target->middlewares(gated->gate->space)
						      : &none;
	if (!gated->reply.ref && all->count > 0)
		gated->reply = (struct cell__reply){ .ref = cell__loop_ref_ref(all->loop_ref), .handle = handle_reply, .drop = drop_reply };
	while (!gated->going_out && gated->at < all->count) {
		const struct cell_middleware *one = &all->list[gated->at];
		if (one->before) {
			let_in(gated, one->before, one->arg);
			return;
		}
		gated->at++;
	}
	if (!gated->going_out) {
		cell__gated_call_decide(gated);
		return;
	}
	while (gated->gate && gated->at > 0) {
		const struct cell_middleware *one = &all->list[--gated->at];
		if (one->after) {
			let_in(gated, one->after, one->arg);
			return;
		}
	}
	cell__gated_call_deliver(gated);
}

static void take_reply(struct cell__gated_call *gated)
{
	struct cell__buf *bytes = &gated->reply.bytes;
	enum cell__reply_kind kind = gated->reply.kind;
	const char *type = kind == CELL__REPLY_JSON ? "json" : "text";
	if (kind == CELL__REPLY_NO_MEMORY)
		cell__gated_call_fail(gated, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
	else if (kind == CELL__REPLY_FAIL)
		cell__gated_call_fail(gated, CELL_E_TOOL, "ToolCallError", bytes->data);
	else if (kind == CELL__REPLY_JSON && !cell__json_check(bytes->data, bytes->size))
		cell__gated_call_fail(gated, CELL_E_TOOL, "ToolCallError", "the middleware's answer is not JSON");
	else
		cell__gated_call_answer(gated, json_pack("{s:s}", "raw", type), bytes->data, bytes->size);
	cell__buf_finish(bytes);
	*bytes = (struct cell__buf)CELL_BUF_INIT;
}

static struct cell__gated_call *gated_of_reply(struct cell__reply *reply)
{
	return (struct cell__gated_call *)((char *)reply - offsetof(struct cell__gated_call, reply));
}

static void drop_reply(struct cell__reply *reply)
{
	cell__gated_call_destroy(gated_of_reply(reply));
}

static void handle_reply(struct cell__reply *reply)
{
	struct cell__gated_call *gated = gated_of_reply(reply);
	gated->held = false;
	free(cell__take_ptr(gated->text));
	if (!gated->gate) {
		cell__gated_call_destroy(gated);
		return;
	}
	bool before = !gated->going_out;
	if (reply->kind != CELL__REPLY_NEXT) {
		const struct cell__middlewares *all = gated->gate->target->middlewares(gated->gate->space);
		if (before) {
			gated->by = CELL__AUDIT_BY_MIDDLEWARE;
			gated->rule_name = all->list[gated->at].name;
			gated->audited = reply->kind == CELL__REPLY_FAIL ? CELL__AUDIT_DENY : CELL__AUDIT_ALLOW;
			gated->decision = reply->kind == CELL__REPLY_FAIL ? "denied" : NULL;
		}
		take_reply(gated);
		gated->going_out = true;
	} else if (before) {
		gated->at++;
	}
	cell__gated_call_walk(gated);
}

void cell_middleware_next(struct cell_middleware_call *call)
{
	if (!call)
		return;
	cell__reply_send(&gated_of(call)->reply, CELL__REPLY_NEXT, NULL, 0);
}

void cell_middleware_answer_json(struct cell_middleware_call *call, const char *json, size_t size)
{
	if (!call)
		return;
	if (!json && size > 0)
		cell_middleware_fail(call, "the middleware's answer is NULL");
	else
		cell__reply_send(&gated_of(call)->reply, CELL__REPLY_JSON, json, size);
}

void cell_middleware_answer_text(struct cell_middleware_call *call, const char *text, size_t size)
{
	if (!call)
		return;
	if (!text && size > 0)
		cell_middleware_fail(call, "the middleware's answer is NULL");
	else
		cell__reply_send(&gated_of(call)->reply, CELL__REPLY_TEXT, text, size);
}

void cell_middleware_fail(struct cell_middleware_call *call, const char *message)
{
	if (!call)
		return;
	if (!message)
		message = "the middleware gave no reason";
	cell__reply_send(&gated_of(call)->reply, CELL__REPLY_FAIL, message, strlen(message));
}

/* ---- queries of a function ---- */

/* "curl" and "get" of "curl.get": as the code wrote it, not looked up yet. */
static const char *part_of_name(struct cell__gated_call *gated, bool callable)
{
	const char *name = json_string_value(json_object_get(gated->inner.args, "name"));
	const char *dot = name ? strchr(name, '.') : NULL;
	if (callable)
		return dot ? dot + 1 : "";
	if (!name)
		return "";
	snprintf(gated->tool_name, sizeof gated->tool_name, "%.*s", dot ? (int)(dot - name) : (int)strlen(name), name);
	return gated->tool_name;
}

const char *cell_middleware_tool(const struct cell_middleware_call *call)
{
	if (!call)
		return "";
	return part_of_name(gated_of(call), false);
}

const char *cell_middleware_callable(const struct cell_middleware_call *call)
{
	if (!call)
		return "";
	return part_of_name(gated_of(call), true);
}

const char *cell_middleware_session_id(const struct cell_middleware_call *call)
{
	if (!call)
		return "";
	return gated_of(call)->session_id;
}

const char *cell_middleware_executor(const struct cell_middleware_call *call)
{
	if (!call)
		return "";
	return gated_of(call)->executor;
}

const char *cell_middleware_request_id(const struct cell_middleware_call *call)
{
	if (!call)
		return "";
	return gated_of(call)->request_id;
}

const char *cell_middleware_args(struct cell_middleware_call *call)
{
	if (!call)
		return "";
	struct cell__gated_call *gated = gated_of(call);
	json_t *args = json_object_get(gated->inner.args, "args");
	free(gated->text);
	gated->text = args ? json_dumps(args, JSON_COMPACT) : cell__strdup("{}");
	return gated->text ? gated->text : "{}";
}

int cell_middleware_set_args(struct cell_middleware_call *call, const char *json, size_t size, struct cell_error *err)
{
	if (cell__require(err, call, json) < 0)
		return -1;
	struct cell__gated_call *gated = gated_of(call);
	if (gated->going_out)
		return cell_fail(err, CELL_E_INVALID, 0, "the arguments of a finished call cannot be set");
	json_t *args = json_loadb(json, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	if (!json_is_object(args)) {
		json_decref(args);
		return cell_fail(err, CELL_E_INVALID, 0, "the arguments are not a JSON object");
	}
	/* A new object: the asker's own stays as it was sent. */
	json_t *both = json_pack("{s:O?, s:o}", "name", json_object_get(gated->inner.args, "name"), "args", args);
	if (!both)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (!gated->args_before)
		gated->args_before = json_incref(json_object_get(gated->inner.args, "args"));
	json_decref(gated->inner.args);
	gated->inner.args = both;
	return 0;
}

const char *cell_middleware_error(struct cell_middleware_call *call)
{
	if (!call)
		return NULL;
	struct cell__gated_call *gated = gated_of(call);
	if (!gated->going_out || !gated->outcome.failed)
		return NULL;
	return gated->outcome.message ? gated->outcome.message : "the host is out of memory";
}

const char *cell_middleware_result(struct cell_middleware_call *call, size_t *ret_size, int *ret_is_text)
{
	if (!call || !ret_size || !ret_is_text)
		return NULL;
	struct cell__gated_call *gated = gated_of(call);
	struct cell__call_outcome *outcome = &gated->outcome;
	if (!gated->going_out || outcome->failed)
		return NULL;
	const char *raw = json_string_value(json_object_get(outcome->result, "raw"));
	if (raw) {
		*ret_is_text = strcmp(raw, "text") == 0;
		*ret_size = outcome->raw_size;
		return outcome->raw ? outcome->raw : "";
	}
	free(gated->text);
	gated->text = json_dumps(json_object_get(outcome->result, "value"), JSON_COMPACT | JSON_ENCODE_ANY);
	*ret_is_text = 0;
	*ret_size = gated->text ? strlen(gated->text) : 0;
	return gated->text ? gated->text : "";
}
