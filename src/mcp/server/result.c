/*
 * The outcome of a cell, as the result of run_code or execute_ipython_cell: text for the model, structuredContent for programs, images. On
 * the cell thread; files may be read and written here.
 */
#include "mcp/server/server.h"

#include <fcntl.h>
#include <string.h>

#include "base/file.h"
#include "wire/json_check.h"

#define HEAD_PARTS 3 /* of HEAD_OF parts of the shown text; the rest is its end */
#define HEAD_OF 5

struct view {
	struct cell__mcp_job *job;
	struct cell_result *result;
	const struct cell_outcome *error;
	size_t max_chars;
	char *file;          /* all of the output; NULL: the answer has all of it */
	bool truncated;
	json_t *content;     /* images, then; the text comes before them */
	json_t *images;      /* paths */
	json_t *displays;    /* texts */
	size_t image_bytes, n_images, left_out;
	size_t embedded_bytes, n_embedded;
};

/* ---- text ------------------------------------------------------------------------------- */

static size_t count_chars(const char *text, size_t size)
{
	size_t n = 0;

	for (size_t i = 0; i < size; i++)
		n += ((unsigned char)text[i] & 0xc0) != 0x80;
	return n;
}

/* Where the n-th character begins. */
static size_t char_offset(const char *text, size_t size, size_t n)
{
	size_t i = 0;

	for (; i < size; i++) {
		if (((unsigned char)text[i] & 0xc0) != 0x80 && n-- == 0)
			break;
	}
	return i;
}

/* Beginning and end of a text that is too long, and between them the size of the omitted part and the file that has it. */
static void add_clipped(struct view *view, struct cell__buf *out, const char *text, size_t size)
{
	size_t chars = count_chars(text, size), head = view->max_chars * HEAD_PARTS / HEAD_OF;
	size_t tail = view->max_chars - head, from, to;

	if (chars <= view->max_chars) {
		cell__buf_add(out, text, size);
		return;
	}
	view->truncated = true;
	from = char_offset(text, size, head);
	to = char_offset(text, size, chars - tail);
	cell__buf_add(out, text, from);
	cell__buf_printf(out, "\n\n[Output truncated: exceeded %zu character limit; %zu characters are left out here", view->max_chars,
			 chars - view->max_chars);
	if (view->file)
		cell__buf_printf(out, ". The whole output is in %s: read it in pieces, e.g. open('%s').read()[%zu:%zu]", view->file,
				 view->file, head, head + view->max_chars);
	cell__buf_add_str(out, "]\n\n");
	cell__buf_add(out, text + to, size - to);
}

static json_t *json_text(const struct cell__buf *buf)
{
	return json_stringn(buf->size ? buf->data : "", buf->size);
}

static json_t *clipped_json(struct view *view, const char *text, size_t size)
{
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;

	add_clipped(view, &buf, text, size);
	return json_text(&buf);
}

/* str() of the value: a string is itself, anything else its repr. NULL: no value. */
static json_t *value_text(const struct cell_result *result, json_t *value)
{
	const char *repr = cell_result_repr(result);
	const struct cell_mime_part *parts;

	if (json_is_string(value))
		return json_incref(value);
	if (cell_result_mime(result, &parts) && !strcmp(parts[0].type, "text/plain") && cell__utf8_ok(parts[0].data, parts[0].size))
		return json_stringn(parts[0].data, parts[0].size);
	return repr ? json_string(repr) : NULL;
}

static void add_error(struct view *view, struct cell__buf *text)
{
	const struct cell_outcome *error = view->error;

	if (*error->traceback)
		cell__buf_add_str(text, error->traceback);
	else
		cell__buf_printf(text, "%s%s%s", error->type, *error->type && *error->message ? ": " : "", error->message);
	/* A KeyboardInterrupt in the traceback does not tell that time was up. */
	if (*error->traceback && error->code != CELL_OUT_EXCEPTION)
		cell__buf_printf(text, "\n\n%s: %s", cell_code_word(error->code), error->message);
	if (!*error->type && !*error->message)
		cell__buf_add_str(text, cell_code_word(error->code));
	if (!cell_result_state_kept(view->result))
		cell__buf_add_str(text, "\n\nThe session's variables are lost; the next cell starts on a fresh kernel.");
}

/* run_code: the value or the error first, then the output. */
static void run_code_text(struct view *view, const json_t *value, struct cell__buf *text)
{
	struct cell_text out;

	cell_result_text(view->result, &out);
	if (view->error) {
		cell__buf_add_str(text, "Error: ");
		add_error(view, text);
	} else if (value && json_string_length(value)) {
		cell__buf_add(text, json_string_value(value), json_string_length(value));
	}
	if (out.size)
		cell__buf_printf(text, "%sStdout:\n", text->size ? "\n\n" : "");
	cell__buf_add(text, out.data, out.size);
	if (!text->size)
		cell__buf_add_str(text, "(no output)");
}

/* execute_ipython_cell: as a notebook shows it. */
static void cell_text(struct view *view, const json_t *value, struct cell__buf *text)
{
	struct cell_text out;

	cell_result_text(view->result, &out);
	cell__buf_add(text, out.data, out.size);
	if ((view->error || (value && json_string_length(value))) && text->size && text->data[text->size - 1] != '\n')
		cell__buf_add_str(text, "\n");
	if (view->error)
		add_error(view, text);
	else if (value)
		cell__buf_add(text, json_string_value(value), json_string_length(value));
}

/* ---- images ------------------------------------------------------------------------------ */

static void add_image(struct view *view, const char *type, const void *bytes, size_t size)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	if (view->n_images >= CELL_MCP_MAX_IMAGES || size > CELL_MCP_MAX_IMAGE_BYTES - view->image_bytes ||
	    cell__buf_add_base64(&text, bytes, size) < 0) {
		view->left_out++;
		return;
	}
	view->n_images++;
	view->image_bytes += size;
	json_array_append_new(view->content, json_pack("{s:s, s:s#, s:s}", "type", "image", "data", text.size ? text.data : "",
						       (int)text.size, "mimeType", type));
}

/* The library wrote the file, but in a folder that code can reach. */
static void add_image_file(struct view *view, const char *path)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	const char *dot = strrchr(path, '.'), *type = "image/png";

	if (dot && !strcmp(dot, ".jpg"))
		type = "image/jpeg";
	else if (dot && !strcmp(dot, ".gif"))
		type = "image/gif";
	else if (dot && !strcmp(dot, ".webp"))
		type = "image/webp";

	json_array_append_new(view->images, json_string(path));
	if (cell__file_read(AT_FDCWD, path, CELL_FILE_NO_LINK, CELL_MCP_MAX_IMAGE_BYTES, &bytes, NULL) < 0)
		view->left_out++;
	else
		add_image(view, type, bytes.data, bytes.size);
}

/* Takes the block over. */
static void add_block(struct view *view, json_t *block, size_t size)
{
	if (!block || view->n_embedded >= CELL_MCP_MAX_EMBEDDED || size > CELL_MCP_MAX_EMBEDDED_BYTES - view->embedded_bytes) {
		view->left_out++;
		json_decref(block);
		return;
	}
	view->n_embedded++;
	view->embedded_bytes += size;
	json_array_append_new(view->content, block);
}

/* Content of the protocol as the code wrote it: one block or a list of them. */
static void add_written(struct view *view, const struct cell_mime_part *part)
{
	json_t *given = part->size <= CELL_MCP_MAX_EMBEDDED_BYTES && cell__json_weigh(part->data, part->size) <= CELL_LIMIT_TREE_BYTES
				? json_loadb(part->data, part->size, JSON_REJECT_DUPLICATES, NULL)
				: NULL;
	json_t *list = json_is_object(given) ? json_pack("[O]", given) : json_incref(given), *block;
	size_t i;

	if (!cell__mcp_is_content_list(list) || json_array_size(list) > CELL_MCP_MAX_EMBEDDED) {
		view->left_out++;
	} else {
		json_array_foreach(list, i, block)
			add_block(view, json_incref(block), i ? 0 : part->size);
	}
	json_decref(list);
	json_decref(given);
}

/* Audio, and files other than those that a notebook shows: those come with text for the same thing. */
static bool is_file(const char *type)
{
	return !strncmp(type, "audio/", 6) || !strncmp(type, "video/", 6) || !strcmp(type, "application/pdf") ||
	       !strcmp(type, "application/zip") || !strcmp(type, "image/gif") || !strcmp(type, "image/webp");
}

static void add_parts(struct view *view, const struct cell_mime_part *parts, size_t n)
{
	char uri[64];

	for (size_t i = 0; i < n; i++) {
		if (!strcmp(parts[i].type, "image/png") || !strcmp(parts[i].type, "image/jpeg")) {
			add_image(view, parts[i].type, parts[i].data, parts[i].size);
		} else if (!strcmp(parts[i].type, CELL_MCP_CONTENT_TYPE)) {
			add_written(view, &parts[i]);
		} else if (is_file(parts[i].type)) {
			snprintf(uri, sizeof(uri), "workcell://display/%zu", view->n_embedded + 1);
			add_block(view,
				  parts[i].size <= CELL_MCP_MAX_EMBEDDED_BYTES
					  ? cell__mcp_content(uri, parts[i].type, parts[i].data, parts[i].size)
					  : NULL,
				  parts[i].size);
		}
	}
}

static void add_images(struct view *view)
{
	const struct cell_mime_part *parts;
	size_t n;

	for (size_t i = 0; i < cell_result_image_count(view->result); i++)
		add_image_file(view, cell_result_image(view->result, i));
	for (size_t i = 0; i < cell_result_display_count(view->result); i++) {
		n = cell_result_display(view->result, i, &parts);
		add_parts(view, parts, n);
	}
	n = cell_result_mime(view->result, &parts);
	add_parts(view, parts, n);
}

/* Displays that are text: for example a notebook's view of a table. */
static void add_displays(struct view *view, struct cell__buf *text)
{
	for (size_t i = 0; i < cell_result_display_count(view->result); i++) {
		const struct cell_mime_part *parts;
		size_t n = cell_result_display(view->result, i, &parts), from;

		for (size_t k = 0; k < n; k++) {
			if (strcmp(parts[k].type, "text/plain"))
				continue;
			if (text->size && text->data[text->size - 1] != '\n')
				cell__buf_add_str(text, "\n");
			from = text->size;
			if (!cell__buf_add_utf8(text, parts[k].data, parts[k].size))
				json_array_append_new(view->displays, json_stringn(text->data + from, text->size - from));
			break;
		}
	}
}

static void add_image_list(struct view *view, struct cell__buf *text)
{
	const json_t *path;
	size_t i;

	if (json_array_size(view->images))
		cell__buf_add_str(text, "\n\nGenerated images:\n\n");
	json_array_foreach(view->images, i, path) {
		const char *full = json_string_value(path), *name = strrchr(full, '/') + 1, *dot = strrchr(name, '.');

		cell__buf_printf(text, "- [%.*s](%s)\n", (int)(dot ? dot - name : (ptrdiff_t)strlen(name)), name, full);
	}
	if (view->left_out)
		cell__buf_printf(text, "\n\n[%zu images or files were omitted: too large or too many for this answer]", view->left_out);
	for (i = 0; i < cell_result_notice_count(view->result); i++)
		cell__buf_printf(text, "\n\n[%s]", cell_result_notice(view->result, i));
}

/* ---- together ------------------------------------------------------------------------------ */

static json_t *error_json(const struct cell_outcome *error)
{
	return json_pack("{s:s, s:s, s:s, s:s}", "type", error->type, "message", error->message, "traceback", error->traceback, "code",
			 cell_code_word(error->code));
}

/* Listings have a short repr, and much data that a model would read in vain. */
static bool is_short(const char *json, const char *repr)
{
	size_t size = strlen(json);

	return size <= CELL_MCP_MAX_VALUE_BYTES && (!repr || size <= 2 * strlen(repr) + 1000);
}

static json_t *structured(struct view *view, json_t *value)
{
	struct cell_text out, err;
	const char *repr = cell_result_repr(view->result);
	json_t *object;

	cell_result_stdout(view->result, &out);
	cell_result_stderr(view->result, &err);
	object = json_pack("{s:f, s:s}", "duration_ms", cell_result_duration_ms(view->result), "state", cell_result_state(view->result));
	/* A host may show this to the model instead of the text: nothing is here twice, and nothing without a value. */
	if (value)
		json_object_set(object, "value", value);
	else if (repr)
		json_object_set_new(object, "repr", clipped_json(view, repr, strlen(repr)));
	if (out.size)
		json_object_set_new(object, "stdout", clipped_json(view, out.data, out.size));
	if (err.size)
		json_object_set_new(object, "stderr", clipped_json(view, err.data, err.size));
	if (json_array_size(view->displays))
		json_object_set(object, "displays", view->displays);
	if (view->error)
		json_object_set_new(object, "error", error_json(view->error));
	if (cell_result_notice_count(view->result)) {
		json_t *notices = json_array();

		for (size_t i = 0; i < cell_result_notice_count(view->result); i++)
			json_array_append_new(notices, json_string(cell_result_notice(view->result, i)));
		json_object_set_new(object, "notices", notices);
	}
	if (json_array_size(view->images))
		json_object_set(object, "images", view->images);
	if (view->truncated)
		json_object_set_new(object, "truncated", json_true());
	if (view->file)
		json_object_set_new(object, "output_file", json_string(view->file));
	return object;
}

/* The file with all of the output, when it is more than the answer can hold. */
static void keep_output(struct view *view, const struct cell__buf *text)
{
	const char *spill = cell_result_spill_path(view->result);

	if (spill) {
		view->truncated = true;
		cell_result_keep_spill(view->result);
		cell__mcp_keep_file(view->job->handle->server, spill);
		view->file = cell__strdup(spill);
	} else if (count_chars(text->data, text->size) > view->max_chars) {
		view->file = cell__mcp_keep_text(view->job->handle->server, text->data, text->size);
	}
}

static size_t max_chars_of(const struct cell__mcp_job *job)
{
	const json_t *asked = json_object_get(job->args, "max_output_chars");

	return asked ? (size_t)json_integer_value(asked) : CELL_MCP_RUN_CODE_CHARS;
}

void cell__mcp_cell_answer(struct cell__mcp_job *job, struct cell_result *result)
{
	struct view view = { .job = job, .result = result, .error = cell_result_error(result), .max_chars = max_chars_of(job) };
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT, shown = CELL_BUF_INIT;
	const char *json = cell_result_value_json(result);
	struct cell__mcp_answer_out out = { .failed = view.error != NULL };
	/* A value that takes too much as a tree is shown by its repr alone. */
	bool fits = json && cell__json_weigh(json, strlen(json)) <= CELL_LIMIT_TREE_BYTES;
	json_t *value = fits ? json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL, *words = value_text(result, value);

	view.content = json_array();
	view.images = json_array();
	view.displays = json_array();
	if (!strcmp(job->tool->name, "run_code")) {
		run_code_text(&view, words, &text);
	} else {
		cell_text(&view, words, &text);
	}
	add_displays(&view, &text);
	add_images(&view);
	keep_output(&view, &text);
	add_clipped(&view, &shown, text.data, text.size);
	if (view.file && count_chars(text.data, text.size) <= view.max_chars)
		cell__buf_printf(&shown, "\n\n[Output truncated; the whole output is in %s]", view.file);
	add_image_list(&view, &shown);
	out.structured = structured(&view, json && is_short(json, cell_result_repr(result)) ? value : NULL);
	json_array_insert_new(view.content, 0, json_pack("{s:s, s:o}", "type", "text", "text", json_text(&shown)));
	out.content = view.content;
	json_decref(view.images);
	json_decref(view.displays);
	json_decref(value);
	json_decref(words);
	free(view.file);
	cell_result_destroy(result);
	cell__mcp_job_answer(job, &out);
}
