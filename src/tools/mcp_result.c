/*
 * A server's answer to tools/call, as the answer of the call:
 *
 *     structuredContent            {"raw": "json"}, the text as the server wrote it: numbers stay exact
 *     only text                    {"raw": "text"}, blocks joined by line breaks
 *     nothing                      {"value": null}
 *     images, sound, resources     {"raw": "parts", "parts": [{"type", "size", ...}, ...]}, the bytes one after another
 *     isError, or an error         the call fails with the server's message
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "tools/mcp.h"
#include "wire/json_find.h"

#define MAX_PARTS 1000u

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

static bool is_type(const json_t *block, const char *type)
{
	return strcmp(text_of(block, "type"), type) == 0;
}

/* ---- failures ---- */

static void fail(struct cell__tool_run *run, int code, struct cell__buf *text)
{
	if (cell__secrets_redact(&run->tool->server->secrets, text) < 0)
		cell__buf_finish(text);
	cell__tool_run_fail(run, code, "%s", text->data ? text->data : "out of memory");
}

static void fail_without_answer(struct cell__tool_run *run, const struct cell__mcp_failure *failure)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (failure->err.code == CELL_E_TOOL_TIMEOUT) {
		cell__tool_run_timed_out(run, cell__tool_run_timeout_ms(run));
		return;
	}
	cell__buf_add_utf8(&text, failure->err.msg, strlen(failure->err.msg));
	if (failure->tail) {
		cell__buf_add_str(&text, "\nIts stderr ends with:\n");
		cell__buf_add_str(&text, failure->tail);
	}
	fail(run, failure->err.code, &text);
}

static void fail_with_error(struct cell__tool_run *run, const struct cell__rpc_message *message)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	size_t size = strnlen(message->error_text, CELL_TOOL_LIMIT_ERROR_TEXT);
	/* Many servers put the code into their message. */
	char code[40];
	snprintf(code, sizeof code, "MCP error %lld", (long long)message->code);
	if (!strstr(message->error_text, code))
		cell__buf_printf(&text, "%s: ", code);
	cell__buf_add_utf8(&text, message->error_text, size);
	fail(run, CELL_TOOL_E_FAILED, &text);
}

/* ---- texts ---- */

static int join_text(const json_t *content, struct cell__buf *text)
{
	size_t i;
	json_t *block;
	bool first = true;
	json_array_foreach((json_t *)content, i, block) {
		const json_t *words = json_object_get(block, "text");
		if (!is_type(block, "text") || !json_is_string(words))
			continue;
		if ((!first && cell__buf_add(text, "\n", 1) < 0) ||
		    cell__buf_add(text, json_string_value(words), json_string_length(words)) < 0)
			return -1;
		first = false;
	}
	return 0;
}

static void fail_with_content(struct cell__tool_run *run, const json_t *content, const json_t *structured)
{
	CELL_AUTO_BUF struct cell__buf words = CELL_BUF_INIT, text = CELL_BUF_INIT;
	join_text(content, &words);
	if (words.size == 0 && structured) {
		CELL_AUTO_FREE char *dump = json_dumps(structured, JSON_COMPACT | JSON_ENCODE_ANY);
		cell__buf_add_str(&words, dump ? dump : "");
	}
	if (words.size == 0)
		cell__buf_add_str(&words, "the server reported a failure without a message");
	size_t size = words.size < CELL_TOOL_LIMIT_ERROR_TEXT ? words.size : CELL_TOOL_LIMIT_ERROR_TEXT;
	cell__buf_add_quote(&text, words.data, size);
	if (size < words.size)
		cell__buf_printf(&text, "\n[... %zu bytes left out ...]", words.size - size);
	fail(run, CELL_TOOL_E_FAILED, &text);
}

/* ---- parts ---- */

struct parts {
	json_t *list;
	struct cell__buf raw;
	const char *why; /* it failed; NULL: no memory */
};

/* Describes the bytes that were appended since `start`. */
static int add_part(struct parts *parts, json_t *part, size_t start)
{
	if (!part || json_object_set_new(part, "size", json_integer((json_int_t)(parts->raw.size - start))) < 0) {
		json_decref(part);
		return -1;
	}
	return json_array_append_new(parts->list, part);
}

static int add_bytes(struct parts *parts, const json_t *data, json_t *part)
{
	size_t start = parts->raw.size;
	parts->why = "it sent an image, sound or file that is not base64";
	if (!json_is_string(data) || cell__buf_add_unbase64(&parts->raw, json_string_value(data), json_string_length(data)) < 0) {
		json_decref(part);
		return -1;
	}
	parts->why = NULL;
	return add_part(parts, part, start);
}

static int add_text(struct parts *parts, const json_t *text, json_t *part)
{
	size_t start = parts->raw.size;
	if (cell__buf_add(&parts->raw, json_string_value(text), json_string_length(text)) < 0) {
		json_decref(part);
		return -1;
	}
	return add_part(parts, part, start);
}

static int add_json(struct parts *parts, const json_t *value, const char *type)
{
	size_t start = parts->raw.size;
	CELL_AUTO_FREE char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
	if (!text || cell__buf_add_str(&parts->raw, text) < 0)
		return -1;
	return add_part(parts, json_pack("{s:s}", "type", type), start);
}

static int add_resource(struct parts *parts, const json_t *resource)
{
	const json_t *text = json_object_get(resource, "text"), *blob = json_object_get(resource, "blob");
	json_t *part = json_pack("{s:s, s:s, s:s, s:b}", "type", "resource", "uri", text_of(resource, "uri"), "mime",
				 text_of(resource, "mimeType"), "text", json_is_string(text));
	if (json_is_string(text))
		return add_text(parts, text, part);
	if (blob)
		return add_bytes(parts, blob, part);
	json_decref(part);
	return add_json(parts, resource, "json");
}

static int add_block(struct parts *parts, const json_t *block)
{
	const json_t *text = json_object_get(block, "text"), *resource = json_object_get(block, "resource");
	if (is_type(block, "text") && json_is_string(text))
		return add_text(parts, text, json_pack("{s:s}", "type", "text"));
	if (is_type(block, "image") || is_type(block, "audio"))
		return add_bytes(parts, json_object_get(block, "data"),
				 json_pack("{s:s, s:s}", "type", text_of(block, "type"), "mime", text_of(block, "mimeType")));
	if (is_type(block, "resource") && json_is_object(resource))
		return add_resource(parts, resource);
	/* Links to resources, and block types of later revisions. */
	return add_json(parts, block, "json");
}

static int make_parts(struct parts *parts, const json_t *content, const json_t *structured, size_t limit)
{
	size_t i;
	json_t *block;
	parts->list = json_array();
	if (!parts->list || (structured && add_json(parts, structured, "structured") < 0))
		return -1;
	json_array_foreach((json_t *)content, i, block) {
		if (i >= MAX_PARTS) {
			parts->why = "its answer has more than 1000 parts";
			return -1;
		}
		if (add_block(parts, block) < 0)
			return -1;
		if (parts->raw.size > limit)
			return 0;
	}
	return 0;
}

static void answer_parts(struct cell__tool_run *run, const json_t *content, const json_t *structured)
{
	struct parts parts = { 0 };
	size_t limit = run->tool->max_output;
	if (make_parts(&parts, content, structured, limit) < 0) {
		cell__tool_run_fail(run, parts.why ? CELL_TOOL_E_FAILED : CELL_E_NOMEM, "%s", parts.why ? parts.why : "out of memory");
		json_decref(parts.list);
	} else if (parts.raw.size > limit) {
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "the answer is larger than %zu bytes (max_output)", limit);
		json_decref(parts.list);
	} else {
		cell__tool_run_answer(run, json_pack("{s:s, s:o}", "raw", "parts", "parts", parts.list), parts.raw.data, parts.raw.size);
	}
	cell__buf_finish(&parts.raw);
}

/* ---- answers ---- */

static void answer_raw(struct cell__tool_run *run, const char *kind, const char *bytes, size_t size)
{
	if (size > run->tool->max_output)
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "the answer is larger than %zu bytes (max_output)", run->tool->max_output);
	else
		cell__tool_run_answer(run, json_pack("{s:s}", "raw", kind), bytes ? bytes : "", size);
}

/* As written in the message if it can be found there, so that no number is rounded. */
static void answer_structured(struct cell__tool_run *run, const struct cell__mcp_answer *answer, const json_t *structured)
{
	static const char *const path[] = { "result", "structuredContent", NULL };
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	const char *found;
	size_t size;
	if (cell__json_find(answer->text, answer->size, path, &found, &size) && cell__buf_add(&text, found, size) == 0 &&
	    cell__json_one_line(&text)) {
		answer_raw(run, "json", text.data, text.size);
		return;
	}
	CELL_AUTO_FREE char *dump = json_dumps(structured, JSON_COMPACT | JSON_ENCODE_ANY);
	if (dump)
		answer_raw(run, "json", dump, strlen(dump));
	else
		cell__tool_run_fail(run, CELL_E_NOMEM, "out of memory");
}

static void answer_text(struct cell__tool_run *run, const struct cell__buf *text)
{
	cell__learn_text(run, text->data ? text->data : "", text->size);
	answer_raw(run, "text", text->data, text->size);
}

static void answer_result(struct cell__tool_run *run, const struct cell__mcp_answer *answer)
{
	const json_t *result = answer->message->result;
	const json_t *content = json_object_get(result, "content"), *structured = json_object_get(result, "structuredContent");
	if (json_is_null(structured))
		structured = NULL;
	if (!json_is_object(result) || (content && !json_is_array(content)) || (!content && !structured)) {
		cell__tool_run_fail(run, CELL_E_PROTOCOL, "the server's answer has no content");
		return;
	}
	if (json_is_true(json_object_get(result, "isError"))) {
		fail_with_content(run, content, structured);
		return;
	}
	size_t texts = 0;
	for (size_t i = 0; i < json_array_size(content); i++) {
		const json_t *block = json_array_get(content, i);
		texts += is_type(block, "text") && json_is_string(json_object_get(block, "text"));
	}
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (structured)
		cell__learn_value(run, structured);
	if (texts < json_array_size(content))
		answer_parts(run, content, structured);
	else if (structured)
		answer_structured(run, answer, structured);
	else if (texts == 0)
		cell__tool_run_answer(run, json_pack("{s:n}", "value"), NULL, 0);
	else if (join_text(content, &text) < 0)
		cell__tool_run_fail(run, CELL_E_NOMEM, "out of memory");
	else
		answer_text(run, &text);
}

void cell__mcp_finish_run(struct cell__tool_run *run, const struct cell__mcp_answer *answer)
{
	if (answer->failure)
		fail_without_answer(run, answer->failure);
	else if (answer->message->kind == CELL__RPC_ERROR)
		fail_with_error(run, answer->message);
	else
		answer_result(run, answer);
}
