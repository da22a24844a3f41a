#include "session/calls.h"

#include <string.h>

#include "session/space.h"

struct cell__kernel_call {
	struct cell__call base;
	struct cell__calls *calls;
	uint32_t id;
	json_t *document;
	void *raw;
	struct cell__kernel_call *next;
};

static void forget(struct cell__kernel_call *call)
{
	struct cell__calls *calls = call->calls;
	for (struct cell__kernel_call **at = &calls->first; *at; at = &(*at)->next)
		if (*at == call) {
			*at = call->next;
			calls->count--;
			break;
		}
	json_decref(call->document);
	free(call->raw);
	free(call);
}

static void reply(struct cell__calls *calls, uint32_t id, json_t *answer, const void *raw, size_t raw_size)
{
	char *text = answer ? json_dumps(answer, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	static const char no_memory[] = "{\"error\":{\"type\":\"MemoryError\",\"message\":\"the host is out of memory\","
					"\"code\":\"no_memory\"}}";
	const char *json = text ? text : no_memory;
	struct cell_error err;
	if (calls->kernel->executor->reply(calls->kernel, id, json, strlen(json), raw, raw_size, &err) < 0 && text) {
		/* Most likely too large for a frame: say that instead. */
		json_t *failure = json_pack("{s:{s:s, s:s, s:s}}", "error", "type", "ValueError", "message", err.msg, "code",
					    cell_code_word(err.code));
		char *instead = failure ? json_dumps(failure, JSON_COMPACT) : NULL;
		if (instead)
			(void)calls->kernel->executor->reply(calls->kernel, id, instead, strlen(instead), NULL, 0, NULL);
		free(instead);
		json_decref(failure);
	}
	free(text);
	json_decref(answer);
}

static void answer_call(struct cell__call *base, json_t *result, const void *raw, size_t raw_size)
{
	struct cell__kernel_call *call = (struct cell__kernel_call *)base;
	reply(call->calls, call->id, result ? json_pack("{s:o}", "result", result) : NULL, raw, raw_size);
	forget(call);
}

static void fail_call(struct cell__call *base, int code, const char *type, const char *message)
{
	struct cell__kernel_call *call = (struct cell__kernel_call *)base;
	const char *dot = strchr(base->method, '.');
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
	(void)cell__buf_add_utf8(&clean, message, strlen(message));
	json_t *error = json_pack("{s:{s:s, s:s, s:s, s:s#, s:s}}", "error", "type", type, "message",
				  clean.data ? clean.data : "", "code", cell_code_word(code), "namespace", base->method,
				  dot ? (int)(dot - base->method) : (int)strlen(base->method), "operation", dot ? dot + 1 : "");
	reply(call->calls, call->id, error, NULL, 0);
	forget(call);
}

static void cancel_call(struct cell__kernel_call *call)
{
	if (call->base.cancel)
		call->base.cancel(&call->base);
	forget(call);
}

static struct cell__kernel_call *find(struct cell__calls *calls, json_int_t id)
{
	struct cell__kernel_call *call = calls->first;
	while (call && call->id != id)
		call = call->next;
	return call;
}

const char *cell__calls_handle(struct cell__calls *calls, uint32_t id, const char *json, size_t json_size, const void *raw,
			       size_t raw_size)
{
	json_t *document = json_loadb(json, json_size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	const char *method = NULL;
	json_t *args = NULL;
	if (!document || json_unpack(document, "{s:s, s:o}", "method", &method, "args", &args) < 0 ||
	    !json_is_object(args)) {
		json_decref(document);
		return "a call without method and args";
	}
	if (strcmp(method, "cancel") == 0) {
		/* The code was interrupted while it waited.  No answer is expected, and a call that is over is no news. */
		struct cell__kernel_call *call = find(calls, json_integer_value(json_object_get(args, "id")));
		if (call)
			cancel_call(call);
		json_decref(document);
		return NULL;
	}
	if (find(calls, id)) {
		json_decref(document);
		return "a call with the id of another that is under way";
	}
	struct cell__kernel_call *call = cell__alloc(1, sizeof *call);
	void *copy = raw_size > 0 ? cell__strndup(raw, raw_size) : NULL;
	if (!call || (raw_size > 0 && !copy) || calls->count >= CELL_LIMIT_CALLS) {
		bool full = call && (raw_size == 0 || copy);
		free(call);
		free(copy);
		json_decref(document);
		reply(calls, id,
		      full ? json_pack("{s:{s:s, s:s, s:s}}", "error", "type", "RuntimeError", "message",
				       "too many calls are under way in this session", "code", cell_code_word(CELL_E_LIMIT))
			   : NULL,
		      NULL, 0);
		return NULL;
	}
	*call = (struct cell__kernel_call){
		.base = { .method = method, .args = args, .raw = copy, .raw_size = raw_size, .session_id = calls->session_id,
			  .untrusted = calls->untrusted, .answer = answer_call, .fail = fail_call },
		.calls = calls,
		.id = id,
		.document = document,
		.raw = copy,
		.next = calls->first,
	};
	calls->first = call;
	calls->count++;
	if (calls->space)
		cell__space_handle(calls->space, calls->cwd, &call->base);
	else
		call->base.fail(&call->base, CELL_E_NOT_FOUND, "RuntimeError",
				"this session has no tools and no storage; open it with a space (--base, --storage, --tools)");
	return NULL;
}

void cell__calls_cancel(struct cell__calls *calls)
{
	while (calls->first)
		cancel_call(calls->first);
	if (calls->space)
		cell__space_session_ended(calls->space, calls->session_id);
}
