/* Events of a cell as JSON objects, for the streams of runs and of sessions. */
#include "server/server.h"

#include <string.h>

int cell__add_bytes(struct cell__buf *out, const char *bytes, size_t size)
{
	int rc;

	if (cell__utf8_ok(bytes, size)) {
		rc = cell__buf_add_str(out, "\"text\":");
		return rc | cell__buf_add_json_string(out, bytes, size);
	}
	rc = cell__buf_add_str(out, "\"base64\":\"");
	rc |= cell__buf_add_base64(out, bytes, size);
	return rc | cell__buf_add_str(out, "\"");
}

int cell__add_parts(struct cell__buf *out, const struct cell_mime_part *parts, size_t n)
{
	int rc = cell__buf_add_str(out, "[");

	for (size_t i = 0; i < n; i++) {
		rc |= cell__buf_add_str(out, i ? ",{\"type\":" : "{\"type\":");
		rc |= cell__buf_add_json_string(out, parts[i].type, strlen(parts[i].type));
		rc |= cell__buf_add_str(out, ",");
		rc |= cell__add_bytes(out, parts[i].data, parts[i].size);
		rc |= cell__buf_add_str(out, "}");
	}
	return rc | cell__buf_add_str(out, "]");
}

static const char *add_chunk(const struct cell_event *event, struct cell__buf *out)
{
	int rc = cell__buf_printf(out, "{\"stream\":\"%s\",", event->stream == CELL_STDERR ? "stderr" : "stdout");

	rc |= cell__add_bytes(out, event->data, event->size);
	return rc | cell__buf_add_str(out, "}") ? NULL : "chunk";
}

static const char *add_display(const struct cell_event *event, struct cell__buf *out)
{
	int rc = cell__buf_add_str(out, "{\"parts\":");
	bool image = false;

	for (size_t i = 0; i < event->n_parts; i++)
		image |= !strncmp(event->parts[i].type, "image/", 6);
	rc |= cell__add_parts(out, event->parts, event->n_parts);
	if (rc | cell__buf_add_str(out, "}"))
		return NULL;
	return image ? "image" : "display";
}

static void add_member(json_t *object, const char *name, const char *text)
{
	if (text)
		json_object_set_new(object, name, json_string(text));
}

static const char *add_call(const struct cell_event *event, const char *type, struct cell__buf *out)
{
	const struct cell_call_info *call = event->call;
	json_t *object = json_pack("{s:I,s:s,s:s,s:s,s:s,s:s}", "id", (json_int_t)call->id, "request_id", call->request_id, "kind",
				   call->kind, "tool", call->tool, "callable", call->callable, "adapter", call->adapter);
	CELL_AUTO_FREE char *text = NULL;

	if (event->type == CELL_EVENT_APPROVAL || event->type == CELL_EVENT_CALL_STARTED)
		json_object_set_new(object, "args", json_loadb(call->args, call->args_size, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL));
	add_member(object, "decision", event->decision);
	add_member(object, event->type == CELL_EVENT_CALL_ENDED ? "error" : "reason", event->message);
	if (event->type == CELL_EVENT_CALL_ENDED) {
		json_object_set_new(object, "duration_ms", json_real(event->duration_ms));
		if (event->data)
			json_object_set_new(object, "result", json_stringn(event->data, event->size));
	}
	text = object ? json_dumps(object, JSON_COMPACT) : NULL;
	json_decref(object);
	return text && cell__buf_add_str(out, text) == 0 ? type : NULL;
}

/* What an MCP server says, or that it starts. */
static const char *add_news(const struct cell_event *event, const char *type, struct cell__buf *out)
{
	const struct cell_call_info *call = event->call;
	int rc = cell__buf_printf(out, "{\"id\":%lld,\"tool\":", (long long)call->id) < 0 ? -1 : 0;

	rc |= cell__buf_add_json_string(out, call->tool, strlen(call->tool)) | cell__buf_add_str(out, ",\"callable\":");
	rc |= cell__buf_add_json_string(out, call->callable, strlen(call->callable)) | cell__buf_add_str(out, ",\"params\":");
	rc |= cell__buf_add(out, event->data, event->size) | cell__buf_add_str(out, "}");
	return rc ? NULL : type;
}

const char *cell__event_json(const struct cell_event *event, struct cell__buf *out)
{
	switch (event->type) {
	case CELL_EVENT_CHUNK:
		return add_chunk(event, out);
	case CELL_EVENT_DISPLAY:
		return add_display(event, out);
	case CELL_EVENT_CALL_STARTED:
		return add_call(event, "call_started", out);
	case CELL_EVENT_CALL_ENDED:
		return add_call(event, "call_ended", out);
	case CELL_EVENT_APPROVAL:
		return add_call(event, "approval", out);
	case CELL_EVENT_APPROVAL_ENDED:
		return add_call(event, "approval_ended", out);
	case CELL_EVENT_TOOL_PROGRESS:
		return add_news(event, "tool_progress", out);
	case CELL_EVENT_TOOL_LOG:
		return add_news(event, "tool_log", out);
	default:
		return NULL;
	}
}
