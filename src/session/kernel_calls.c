#include "session/kernel_calls.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/list.h"
#include "base/hole.h"
#include "gate/gate.h"
#include "session/recording.h"
#include "space/space.h"
#include "wire/json_check.h"
#include "wire/call_text.h"

#define NAME_BYTES (2 * CELL_TOOL_LIMIT_NAME + 2) /* tool.callable */
#define TAKEN "a call with the id of another pending call"

struct cell__kernel_call {
	struct cell__call base;
	struct cell__calls *calls;
	uint32_t id;
	json_t *document;
	void *raw;
	size_t cost; /* of the budget */
	char *asked; /* its JSON, if the session is recorded */
	size_t asked_size;
	struct cell__buf progress; /* lines, then */
	struct cell__kernel_call *prev, *next;
};

static void forget(struct cell__calls *calls, struct cell__kernel_call *call)
{
	assert(!call->prev == (calls->first == call));
	CELL__LIST_REMOVE(calls->first, call);
	calls->count--;
	calls->budget.used -= call->cost;
	json_decref(call->document);
	free(call->raw);
	free(call->asked);
	cell__buf_finish(&call->progress);
	const uint32_t id = call->id;
	free(call);
	if (calls->ended)
		calls->ended(calls->owner, id);
}

uint32_t cell__calls_id_of(const struct cell__call *call)
{
	return ((const struct cell__kernel_call *)call)->id;
}

static char *describe_failure(const char *type, const char *message, int code)
{
	json_t *failure = json_pack("{s:{s:s, s:s, s:s}}", "error", "type", type, "message", message, "code", cell_code_word(code));
	char *text = failure ? json_dumps(failure, JSON_COMPACT) : NULL;
	json_decref(failure);
	return text;
}

static void send_failure(struct cell__calls *calls, uint32_t id, const char *type, const char *message, int code)
{
	CELL_AUTO_FREE char *text = describe_failure(type, message, code);
	if (text)
		(void)calls->kernel->executor->reply(calls->kernel, id, text, strlen(text), NULL, 0, NULL);
}

/* The answer is not kept for a kernel with too many unread bytes: a short error is sent instead, and past a second limit nothing. */
static bool is_too_much(struct cell__calls *calls, uint32_t id, size_t size)
{
	if (calls->is_ignored)
		return true;
	if (cell__budget_fits(&calls->budget, size))
		return false;
	if (cell__budget_is_ignored(&calls->budget)) {
		calls->is_ignored = true;
		calls->ignored(calls->owner);
		return true;
	}
	send_failure(calls, id, "RuntimeError",
		     "the answer was dropped: the host holds too many bytes that this session's code has not read; wait "
		     "for answers before making more calls",
		     CELL_E_LIMIT);
	return true;
}

/* text NULL: it could not be allocated. */
static void reply_text(struct cell__calls *calls, uint32_t id, const char *text, const void *raw, size_t raw_size)
{
	static const char no_memory[] = "{\"error\":{\"type\":\"MemoryError\",\"message\":\"the host is out of memory\","
					"\"code\":\"no_memory\"}}";
	const char *json = text ? text : no_memory;
	struct cell_error err;
	if (is_too_much(calls, id, strlen(json) + raw_size))
		return;
	if (calls->kernel->executor->reply(calls->kernel, id, json, strlen(json), raw, raw_size, &err) < 0 && text)
		send_failure(calls, id, "ValueError", err.msg, err.code); /* most likely too large for a frame */
}

static void record(struct cell__kernel_call *call, const char *text, const void *raw, size_t raw_size)
{
	if (call->asked && text)
		cell__recorder_add_call(call->calls->recorder, call->asked, call->asked_size, call->base.raw, call->base.raw_size, text,
					raw, raw_size, call->progress.data);
}

static void reply(struct cell__kernel_call *call, json_t *answer, const void *raw, size_t raw_size)
{
	CELL_AUTO_FREE char *text = answer ? json_dumps(answer, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	record(call, text, raw, raw_size);
	reply_text(call->calls, call->id, text, raw, raw_size);
	json_decref(answer);
}

/* {"raw": "parts", "parts": [{"type": "image", "size": ...}, ...]}: the images among the bytes. */
static void tell_images(struct cell__calls *calls, const json_t *result, const char *raw, size_t raw_size)
{
	const json_t *part;
	size_t i, at = 0;
	json_array_foreach(json_object_get(result, "parts"), i, part) {
		const char *type = json_string_value(json_object_get(part, "type"));
		json_int_t size = json_integer_value(json_object_get(part, "size"));
		if (size < 0 || (uint64_t)size > raw_size - at)
			return;
		if (type && strcmp(type, "image") == 0)
			calls->image(calls->owner, raw + at, (size_t)size);
		at += (size_t)size;
	}
}

/* The call is being answered: its cost is available for the answer. */
static void settle(struct cell__kernel_call *call)
{
	call->calls->budget.used -= call->cost;
	call->cost = 0;
}

static void answer_call(struct cell__call *base, json_t *result, const void *raw, size_t raw_size)
{
	struct cell__kernel_call *call = (struct cell__kernel_call *)base;
	if (raw_size > 0 && base->operation && base->operation->id == CELL__OP_TOOLS_CALL)
		tell_images(call->calls, result, raw, raw_size);
	struct cell__calls *calls = call->calls;
	bool becomes = result && calls->answered && calls->answered(calls->owner, base, result, raw, raw_size);
	settle(call);
	if (becomes)
		json_decref(result);
	else
		reply(call, result ? json_pack("{s:o}", "result", result) : NULL, raw, raw_size);
	forget(calls, call);
	if (becomes)
		calls->become(calls->owner);
}

static void answer_call_text(struct cell__call *base, const char *result, const void *raw, size_t raw_size)
{
	struct cell__kernel_call *call = (struct cell__kernel_call *)base;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	int rc = cell__buf_add_str(&text, CELL_REPLY_TEXT_HEAD) | cell__buf_add_str(&text, result) |
		 cell__buf_add_str(&text, CELL_REPLY_TEXT_TAIL);
	settle(call);
	record(call, rc == 0 ? text.data : NULL, raw, raw_size);
	reply_text(call->calls, call->id, rc == 0 ? text.data : NULL, raw, raw_size);
	forget(call->calls, call);
}

static void fail_call(struct cell__call *base, int code, const char *type, const char *message)
{
	struct cell__kernel_call *call = (struct cell__kernel_call *)base;
	const char *dot = strchr(base->method, '.');
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
	(void)cell__buf_add_utf8(&clean, message, strlen(message));
	json_t *error = json_pack("{s:{s:s, s:s, s:s, s:s#, s:s}}", "error", "type", type, "message", clean.data ? clean.data : "", "code",
				  cell_code_word(code), "namespace", base->method,
				  dot ? (int)(dot - base->method) : (int)strlen(base->method), "operation", dot ? dot + 1 : "");
	settle(call);
	reply(call, error, NULL, 0);
	forget(call->calls, call);
}

static bool hold_call(struct cell__call *base, size_t bytes)
{
	struct cell__kernel_call *call = (struct cell__kernel_call *)base;
	if (!cell__budget_fits(&call->calls->budget, bytes))
		return false;
	call->calls->budget.used += bytes;
	call->cost += bytes;
	return true;
}

static void progress_call(struct cell__call *base, const char *line, size_t size)
{
	struct cell__kernel_call *call = (struct cell__kernel_call *)base;
	struct cell__calls *calls = call->calls;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	/* Memory that is gone costs a line of progress. */
	if (cell__buf_add(&text, line, size) < 0 || cell__buf_add(&text, "\n", 1) < 0)
		return;
	if (call->asked && call->progress.size + text.size <= CELL_LIMIT_KERNEL_BYTES)
		(void)cell__buf_add(&call->progress, text.data, text.size);
	calls->output(calls->owner, CELL_STDERR, text.data, text.size);
}

static void cancel_call(struct cell__calls *calls, struct cell__kernel_call *call)
{
	if (call->base.cancel)
		call->base.cancel(&call->base);
	forget(calls, call);
}

static struct cell__kernel_call *find(struct cell__calls *calls, json_int_t id)
{
	struct cell__kernel_call *call = calls->first;
	while (call && call->id != id)
		call = call->next;
	return call;
}

static void refuse(struct cell__calls *calls, uint32_t id, const char *fmt, ...)
{
	struct cell_error err;
	va_list args;
	va_start(args, fmt);
	vsnprintf(err.msg, sizeof err.msg, fmt, args);
	va_end(args);
	CELL_AUTO_FREE char *text = describe_failure("RuntimeError", err.msg, CELL_E_LIMIT);
	reply_text(calls, id, text, NULL, 0);
}

/* NULL, and the kernel has been told why: out of memory, or too many calls. kept: bytes besides the raw part. */
static struct cell__kernel_call *begin(struct cell__calls *calls, const struct cell__asked *asked, size_t kept)
{
	const size_t cost = sizeof(struct cell__kernel_call) + kept + asked->raw_size;
	if (calls->count >= CELL_LIMIT_CALLS) {
		refuse(calls, asked->id, "%u calls of this session are pending: wait for answers before making more", CELL_LIMIT_CALLS);
		return NULL;
	}
	if (!cell__budget_fits(&calls->budget, cost)) {
		refuse(calls, asked->id,
		       "the pending calls take too much of the host's memory (this call: %zu KiB; limit per session: %u "
		       "MiB, in total: %u MiB): wait for answers, or save large data as an artifact",
		       cost >> 10, CELL_LIMIT_KERNEL_BYTES >> 20, CELL_LIMIT_ENGINE_BYTES >> 20);
		return NULL;
	}
	struct cell__kernel_call *call = cell__alloc(1, sizeof *call);
	void *copy = asked->raw_size > 0 ? cell__strndup(asked->raw, asked->raw_size) : NULL;
	if (!call || (asked->raw_size > 0 && !copy)) {
		free(call);
		free(copy);
		reply_text(calls, asked->id, NULL, NULL, 0);
		return NULL;
	}
	const struct cell__executor *executor = calls->kernel->executor;
	*call = (struct cell__kernel_call){
		.base = { .raw = copy,
			  .raw_size = asked->raw_size,
			  .bulk = executor->bulk ? executor->bulk(calls->kernel) : NULL,
			  .session_id = calls->session_id,
			  .origin = calls,
			  .principal = calls->principal,
			  .trace = calls->trace,
			  .answer = answer_call,
			  .answer_text = answer_call_text,
			  .fail = fail_call,
			  .hold = hold_call,
			  .progress = progress_call },
		.calls = calls,
		.id = asked->id,
		.raw = copy,
		.cost = cost,
	};
	if (calls->recorder) {
		call->asked = cell__strndup(asked->json, asked->json_size); /* without memory it is not recorded */
		call->asked_size = asked->json_size;
	}
	calls->budget.used += cost;
	CELL__LIST_PUSH(calls->first, call);
	calls->count++;
	return call;
}

/*
 * Whether this is a tool's call as our kernel writes it (wire/call_text.h). False: it is written differently, or is another call. The
 * arguments are not parsed yet.
 */
static bool is_tool_call(const char *json, size_t size, char name[static NAME_BYTES], struct cell__host_ask *ret_ask)
{
	static const char head[] = CELL_CALL_TEXT_HEAD "\"", middle[] = "\"" CELL_CALL_TEXT_MIDDLE, tail[] = CELL_CALL_TEXT_TAIL;
	const size_t head_size = sizeof head - 1, middle_size = sizeof middle - 1, tail_size = sizeof tail - 1;
	if (size < head_size + middle_size + tail_size || memcmp(json, head, head_size) != 0 ||
	    memcmp(json + size - tail_size, tail, tail_size) != 0)
		return false;
	const char *at = json + head_size, *end = json + size - tail_size;
	size_t n = 0;
	while (n < NAME_BYTES - 1 && at + n < end && at[n] != '"' && at[n] != '\\' && (unsigned char)at[n] > ' ')
		n++;
	if ((size_t)(end - at) < n + middle_size || memcmp(at + n, middle, middle_size) != 0)
		return false;
	memcpy(name, at, n);
	name[n] = '\0';
	at += n + middle_size;
	*ret_ask = (struct cell__host_ask){ .args = at, .args_size = (size_t)(end - at) };
	return true;
}

/* Ids of honest kernels rise: most are new at a glance. */
static bool is_taken(struct cell__calls *calls, uint32_t id)
{
	if (id > calls->highest_id) {
		calls->highest_id = id;
		return false;
	}
	return find(calls, id) != NULL;
}

/* A call that needs its document as a tree, which is taken over; NULL: not JSON. */
static const char *handle_document(struct cell__calls *calls, const struct cell__asked *asked, size_t weight, json_t *document)
{
	const char *method = NULL;
	json_t *args = NULL;
	if (!document || json_unpack(document, "{s:s, s:o}", "method", &method, "args", &args) < 0 || !json_is_object(args)) {
		json_decref(document);
		return "a call without method and args";
	}
	if (strcmp(method, "cancel") == 0) {
		/* The code was interrupted while it waited. No answer is expected, and the call may have ended already. */
		struct cell__kernel_call *call = find(calls, json_integer_value(json_object_get(args, "id")));
		if (call)
			cancel_call(calls, call);
		json_decref(document);
		return NULL;
	}
	if (is_taken(calls, asked->id)) {
		json_decref(document);
		return TAKEN;
	}
	struct cell__kernel_call *call = begin(calls, asked, weight + asked->json_size);
	if (!call) {
		json_decref(document);
		return NULL;
	}
	call->document = document;
	call->base.method = method;
	call->base.args = args;
	cell__gate_submit(calls->gate, calls->principal, &call->base);
	return NULL;
}

/* True: a recording has answered, or the call was a note for it. */
static bool is_answered(struct cell__calls *calls, const struct cell__asked *asked)
{
	struct cell__recorded_answer answer;
	if (!cell__recorder_answer(calls->recorder, asked, &answer))
		return false;
	if (answer.progress)
		calls->output(calls->owner, CELL_STDERR, answer.progress, strlen(answer.progress));
	if (!answer.silent)
		reply_text(calls, asked->id, answer.text, answer.raw, answer.raw_size);
	free(answer.own);
	return true;
}

const char *cell__calls_handle(struct cell__calls *calls, const struct cell__asked *asked)
{
	char name[NAME_BYTES];
	struct cell__host_ask ask;
	if (calls->recorder && is_answered(calls, asked))
		return NULL;
	/* The short way for the most frequent call: to a function of the host, without a tree of JSON. */
	struct cell__gate *gate = calls->gate;
	if (cell__gate_is_open(gate) && is_tool_call(asked->json, asked->json_size, name, &ask) &&
	    cell__space_fits_function(gate->space, gate->cwd, name, &ask)) {
		if (is_taken(calls, asked->id))
			return TAKEN;
		struct cell__kernel_call *call = begin(calls, asked, asked->json_size);
		if (!call)
			return NULL;
		call->base.method = "tools.call";
		call->base.operation = &cell__operations[CELL__OP_TOOLS_CALL];
		cell__space_call_function(gate->space, &ask, &call->base);
		return NULL;
	}
	size_t weight = asked->weight ? asked->weight : cell__json_weigh(asked->json, asked->json_size);
	if (weight > CELL_LIMIT_TREE_BYTES && !is_hole("json-tree")) {
		if (is_taken(calls, asked->id))
			return TAKEN;
		refuse(calls, asked->id,
		       "the arguments have too many values: they would take %zu MiB of the host's memory, but a call may "
		       "take %u MiB; save large data as an artifact and pass its name",
		       weight >> 20, CELL_LIMIT_TREE_BYTES >> 20);
		return NULL;
	}
	return handle_document(calls, asked, weight,
			       asked->is_read ? json_incref(asked->document)
					      : json_loadb(asked->json, asked->json_size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL));
}

void cell__calls_cancel(struct cell__calls *calls)
{
	while (calls->first)
		cancel_call(calls, calls->first);
}
