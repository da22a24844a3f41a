/* What a session writes, shows and returns, as Jupyter's messages.  Everything here comes from the code and is not trusted. */
#define _GNU_SOURCE 1
#include "jupyter.h"

#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/utf8.h"
#include "wire/json_check.h"

/* ---- output ----------------------------------------------------------------------- */

void cell__cli_show_chunk(struct cell_cli_show *show, enum cell_stream stream, const char *data, size_t size, bool last)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT, text = CELL_BUF_INIT, content = CELL_BUF_INIT;
	size_t i = stream == CELL_STDERR, used;

	if (!show->carry[i].size && !size)
		return;
	if (cell__buf_add(&bytes, show->carry[i].bytes, show->carry[i].size) < 0 || cell__buf_add(&bytes, data, size) < 0)
		return;
	used = bytes.size - (last ? 0 : cell__utf8_cut(bytes.data, bytes.size));
	show->carry[i].size = bytes.size - used; /* at most 3: a character's start */
	memcpy(show->carry[i].bytes, bytes.data + used, show->carry[i].size);
	if (!used || cell__buf_add_utf8(&text, bytes.data, used) < 0 ||
	    cell__buf_printf(&content, "{\"name\":\"%s\",\"text\":", i ? "stderr" : "stdout") < 0 ||
	    cell__buf_add_json_string(&content, text.data, text.size) < 0 || cell__buf_add(&content, "}", 1) < 0)
		return;
	cell__cli_ends_send(
		show->ends, CELL_JUPYTER_PORT_IOPUB,
		&(struct cell_cli_sent){ .type = "stream", .parent = show->parent, .content = content.data, .content_size = content.size });
}

void cell__cli_show_end(struct cell_cli_show *show)
{
	cell__cli_show_chunk(show, CELL_STDOUT, NULL, 0, true);
	cell__cli_show_chunk(show, CELL_STDERR, NULL, 0, true);
}

/* ---- MIME parts --------------------------------------------------------------------- */

static json_t *load(const void *data, size_t size)
{
	return cell__json_weigh(data, size) > CELL_LIMIT_TREE_BYTES ? NULL : json_loadb(data, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

static bool ends_with(const char *text, const char *tail)
{
	size_t size = strlen(text), tail_size = strlen(tail);

	return size >= tail_size && !strcmp(text + size - tail_size, tail);
}

static bool is_binary(const char *type)
{
	return (!strncmp(type, "image/", 6) && !ends_with(type, "+xml")) || !strncmp(type, "audio/", 6) || !strncmp(type, "video/", 6) ||
	       !strcmp(type, "application/pdf");
}

static json_t *part_value(const struct cell_mime_part *part)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	json_t *value = NULL;

	if (!strcmp(part->type, "application/json") || ends_with(part->type, "+json"))
		value = load(part->data, part->size);
	if (!value && !is_binary(part->type) && cell__utf8_ok(part->data, part->size))
		value = json_stringn(part->data, part->size);
	if (!value && cell__buf_add_base64(&text, part->data, part->size) == 0)
		value = json_stringn(text.data ? text.data : "", text.size);
	return value;
}

/* The parts as a bundle; those for us are left out. */
static json_t *bundle(const struct cell_mime_part *parts, size_t n)
{
	json_t *data = json_object();

	for (size_t i = 0; data && i < n; i++) {
		if (strncmp(parts[i].type, "application/vnd.workcell.", 25) && strncmp(parts[i].type, "application/octet-stream", 24))
			json_object_set_new(data, parts[i].type, part_value(&parts[i]));
	}
	return data;
}

static json_t *object_of(const json_t *head, const char *name)
{
	json_t *value = json_object_get(head, name);

	return json_is_object(value) ? json_incref(value) : json_object();
}

/* ---- displays ------------------------------------------------------------------------ */

static void publish(struct cell_cli_show *show, const char *type, json_t *content)
{
	cell__cli_ends_send_json(show->ends, CELL_JUPYTER_PORT_IOPUB, NULL, show->parent, type, content);
}

static void add_payload(struct cell_cli_show *show, json_t *item)
{
	if (show->payload && item)
		json_array_append_new(show->payload, item);
	else
		json_decref(item);
}

static void send_comm(struct cell_cli_show *show, const char *type, const json_t *head, const struct cell_mime_part *parts, size_t n)
{
	json_t *content = object_of(head, "content"), *metadata = object_of(head, "metadata");
	char *text = json_dumps(content, JSON_COMPACT), *more = json_dumps(metadata, JSON_COMPACT);

	if (text && more)
		cell__cli_ends_send(show->ends, CELL_JUPYTER_PORT_IOPUB,
				    &(struct cell_cli_sent){ .type = type,
							     .parent = show->parent,
							     .content = text,
							     .content_size = strlen(text),
							     .metadata = more,
							     .buffers = parts,
							     .n_buffers = n });
	json_decref(content);
	json_decref(metadata);
	free(text);
	free(more);
}

static const char *one_of(const char *type, const char *const *types)
{
	for (; *types; types++) {
		if (!strcmp(type, *types))
			return *types;
	}
	return NULL;
}

/* A display with a head (kernel/workcell_kernel/notebook.py).  Only messages that are listed here can be sent by the code. */
static void show_headed(struct cell_cli_show *show, const json_t *head, const struct cell_mime_part *parts, size_t n)
{
	static const char *const displays[] = { "display_data", "update_display_data", NULL };
	static const char *const comms[] = { "comm_open", "comm_msg", "comm_close", NULL };
	const char *type = json_string_value(json_object_get(head, "type")), *known;

	if (!type)
		return;
	if ((known = one_of(type, displays)))
		publish(show, known,
			json_pack("{s:o, s:o, s:o}", "data", bundle(parts, n), "metadata", object_of(head, "metadata"), "transient",
				  object_of(head, "transient")));
	else if ((known = one_of(type, comms)))
		send_comm(show, known, head, parts, n);
	else if (!strcmp(type, "clear_output"))
		publish(show, "clear_output", json_pack("{s:b}", "wait", json_is_true(json_object_get(head, "wait"))));
	else if (!strcmp(type, "page"))
		add_payload(show, json_pack("{s:s, s:{s:O?}, s:i}", "source", "page", "data", "text/plain", json_object_get(head, "text"),
					    "start", 0));
	else if (!strcmp(type, "set_next_input"))
		add_payload(show, json_pack("{s:s, s:O?, s:b}", "source", "set_next_input", "text", json_object_get(head, "text"),
					    "replace", json_is_true(json_object_get(head, "replace"))));
}

void cell__cli_show_display(struct cell_cli_show *show, const struct cell_mime_part *parts, size_t n)
{
	json_t *head;

	if (!n || strcmp(parts[0].type, CELL_JUPYTER_HEAD_TYPE)) {
		publish(show, "display_data", json_pack("{s:o, s:{}, s:{}}", "data", bundle(parts, n), "metadata", "transient"));
		return;
	}
	head = load(parts[0].data, parts[0].size);
	show_headed(show, head, parts + 1, n - 1);
	json_decref(head);
}

/* ---- results ---------------------------------------------------------------------------- */

json_t *cell__cli_show_value(const struct cell_result *result)
{
	const char *text = cell_result_repr(result);
	const struct cell_mime_part *parts;
	size_t n = cell_result_mime(result, &parts);
	json_t *data, *metadata = NULL;

	if (!text)
		return NULL;
	data = bundle(parts, n);
	if (data && !json_object_get(data, "text/plain"))
		json_object_set_new(data, "text/plain", json_string(text));
	for (size_t i = 0; i < n; i++) {
		if (!metadata && !strcmp(parts[i].type, CELL_JUPYTER_METADATA_TYPE))
			metadata = load(parts[i].data, parts[i].size);
	}
	if (!json_is_object(metadata)) {
		json_decref(metadata);
		metadata = json_object();
	}
	return json_pack("{s:o, s:o}", "data", data, "metadata", metadata);
}

static json_t *lines_of(const char *text)
{
	json_t *lines = json_array();

	while (lines && *text) {
		size_t size = strcspn(text, "\n");

		json_array_append_new(lines, json_stringn(text, size));
		text += size + (text[size] == '\n');
	}
	return lines;
}

json_t *cell__cli_show_outcome(const struct cell_outcome *outcome)
{
	const char *name = *outcome->type ? outcome->type : cell_code_word(outcome->code);

	return json_pack("{s:s, s:s, s:o}", "ename", name, "evalue", outcome->message, "traceback",
			 lines_of(*outcome->traceback ? outcome->traceback : outcome->message));
}
