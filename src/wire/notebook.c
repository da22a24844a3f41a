/* Notebooks, see notebook.h. */
#include "wire/notebook.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/buffer.h"
#include "wire/json_check.h"

/* ---- reading ---- */

/* A text, or a list of its lines; NULL: something else. */
static json_t *join(const json_t *source)
{
	struct cell__buf text = CELL_BUF_INIT;
	json_t *line, *joined = NULL;
	size_t i;
	int rc = 0;
	if (json_is_string(source))
		return json_incref((json_t *)source);
	json_array_foreach(source, i, line)
		rc |= json_is_string(line) ? cell__buf_add(&text, json_string_value(line), json_string_length(line)) : -1;
	if (json_is_array(source) && rc == 0)
		joined = json_stringn(text.data ? text.data : "", text.size);
	cell__buf_finish(&text);
	return joined;
}

static int check_kind(const json_t *notebook, struct cell_error *err)
{
	const json_t *format = json_object_get(notebook, "nbformat"), *metadata = json_object_get(notebook, "metadata");
	const char *language = json_string_value(json_object_get(json_object_get(metadata, "language_info"), "name"));
	if (!language)
		language = json_string_value(json_object_get(json_object_get(metadata, "kernelspec"), "language"));
	if (!json_is_integer(format) || !json_is_array(json_object_get(notebook, "cells")))
		return cell_fail(err, json_is_integer(format) ? CELL_E_UNSUPPORTED : CELL_E_INVALID, 0, "%s",
				 json_is_integer(format) ? "only notebooks of format 4 are read" : "this is not a Jupyter notebook");
	if (json_integer_value(format) != 4)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "only notebooks of format 4 are read, and this one has %lld",
				 (long long)json_integer_value(format));
	if (language && strcasecmp(language, "python") != 0)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "the notebook is written in %.60s, and only Python is run", language);
	return 0;
}

static int add_cell(json_t *list, const json_t *cell, size_t number, struct cell_error *err)
{
	const char *type = json_string_value(json_object_get(cell, "cell_type"));
	if (!type)
		return cell_fail(err, CELL_E_INVALID, 0, "cell %zu of the notebook has no type", number);
	if (strcmp(type, "code") != 0)
		return 0;
	json_t *code = join(json_object_get(cell, "source"));
	if (!code)
		return cell_fail(err, CELL_E_INVALID, 0, "cell %zu of the notebook has no source", number);
	const char *text = json_string_value(code);
	int rc = text[strspn(text, " \t\r\n")] ? json_array_append(list, code) : 0;
	json_decref(code);
	return rc < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a notebook") : 0;
}

json_t *cell__notebook_read(const char *bytes, size_t size, struct cell_error *err)
{
	json_t *list = NULL, *cell;
	size_t i;
	int rc = 0;
	if (size > CELL_NOTEBOOK_BYTES || cell__json_weigh(bytes, size) > CELL_NOTEBOOK_TREE_BYTES) {
		cell_fail(err, CELL_E_LIMIT, 0, "a notebook has at most %u MiB, and values of %u MiB in memory", CELL_NOTEBOOK_BYTES >> 20,
			  CELL_NOTEBOOK_TREE_BYTES >> 20);
		return NULL;
	}
	json_t *notebook = json_loadb(bytes, size, JSON_ALLOW_NUL, NULL);
	if (!notebook)
		rc = cell_fail(err, CELL_E_INVALID, 0, "this is not a Jupyter notebook: it is not JSON");
	else
		rc = check_kind(notebook, err);
	const json_t *cells = json_object_get(notebook, "cells");
	if (rc == 0 && json_array_size(cells) > CELL_NOTEBOOK_CELLS)
		rc = cell_fail(err, CELL_E_LIMIT, 0, "a notebook has at most %d cells, and this one %zu", CELL_NOTEBOOK_CELLS,
			       json_array_size(cells));
	if (rc == 0 && !(list = json_array()))
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a notebook");
	if (rc == 0)
		json_array_foreach(cells, i, cell)
			if ((rc = add_cell(list, cell, i + 1, err)) < 0)
				break;
	json_decref(notebook);
	if (rc < 0)
		json_decref(list);
	return rc < 0 ? NULL : list;
}

/* ---- writing ---- */

static int add_stream(json_t *outputs, const char *name, const json_t *text)
{
	if (json_string_length(text) == 0)
		return 0;
	return json_array_append_new(outputs, json_pack("{s:s, s:s, s:O}", "output_type", "stream", "name", name, "text", text));
}

/* MIME parts that a notebook may have: JSON only for types of JSON. */
static json_t *bundle_of(const json_t *parts)
{
	json_t *bundle = json_object(), *part;
	const char *type;
	json_object_foreach((json_t *)parts, type, part) {
		const size_t size = strlen(type);
		bool is_json = strcmp(type, "application/json") == 0 || (size > 5 && strcmp(type + size - 5, "+json") == 0);
		if (json_is_string(part) || is_json)
			json_object_set(bundle, type, part);
	}
	return bundle;
}

static int add_value(json_t *outputs, const json_t *result, size_t count)
{
	const json_t *repr = json_object_get(result, "repr");
	if (!json_is_string(repr))
		return 0;
	json_t *bundle = bundle_of(json_object_get(result, "mime"));
	if (!json_object_get(bundle, "text/plain"))
		json_object_set(bundle, "text/plain", (json_t *)repr);
	return json_array_append_new(outputs, json_pack("{s:s, s:I, s:o, s:{}}", "output_type", "execute_result", "execution_count",
							(json_int_t)count, "data", bundle, "metadata"));
}

static int add_error(json_t *outputs, const json_t *error)
{
	const char *type = json_string_value(json_object_get(error, "type")),
		   *message = json_string_value(json_object_get(error, "message"));
	const char *text = json_string_value(json_object_get(error, "traceback"));
	json_t *lines = json_array();
	if (!json_is_object(error)) {
		json_decref(lines);
		return 0;
	}
	while (text && *text) {
		const size_t n = strcspn(text, "\n");
		json_array_append_new(lines, json_stringn(text, n));
		text += n + (text[n] == '\n');
	}
	return json_array_append_new(outputs, json_pack("{s:s, s:s, s:s, s:o}", "output_type", "error", "ename", type ? type : "", "evalue",
							message ? message : "", "traceback", lines));
}

static json_t *make_cell(const json_t *cell, size_t number)
{
	const json_t *result = json_object_get(cell, "result");
	json_t *outputs = json_array(), *display;
	char id[32];
	size_t i;
	int rc = add_stream(outputs, "stdout", json_object_get(result, "stdout"));
	rc |= add_stream(outputs, "stderr", json_object_get(result, "stderr"));
	json_array_foreach(json_object_get(result, "displays"), i, display)
		rc |= json_array_append_new(
			outputs, json_pack("{s:s, s:o, s:{}}", "output_type", "display_data", "data", bundle_of(display), "metadata"));
	rc |= add_value(outputs, result, number);
	rc |= add_error(outputs, json_object_get(result, "error"));
	snprintf(id, sizeof id, "cell-%zu", number);
	if (rc < 0) {
		json_decref(outputs);
		return NULL;
	}
	return json_pack("{s:s, s:s, s:{}, s:O, s:o, s:o}", "cell_type", "code", "id", id, "metadata", "source",
			 json_object_get(cell, "code"), "execution_count", result ? json_integer((json_int_t)number) : json_null(),
			 "outputs", outputs);
}

json_t *cell__notebook_make(const json_t *cells)
{
	json_t *list = json_array(), *cell;
	size_t i;
	int rc = list ? 0 : -1;
	json_array_foreach(cells, i, cell)
		rc |= json_array_append_new(list, make_cell(cell, i + 1));
	if (rc < 0) {
		json_decref(list);
		return NULL;
	}
	return json_pack("{s:i, s:i, s:{s:{s:s, s:s, s:s}, s:{s:s}}, s:o}", "nbformat", 4, "nbformat_minor", 5, "metadata", "kernelspec",
			 "name", "python3", "display_name", "Python 3", "language", "python", "language_info", "name", "python", "cells",
			 list);
}
