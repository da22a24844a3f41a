#include "session/result.h"

#include <stdio.h>
#include <string.h>

#include "wire/json_check.h"

int cell__owned_bundle_copy(struct cell__owned_bundle *out, const struct cell__bundle *in)
{
	struct cell__owned_bundle copy = { 0 };
	copy.parts = cell__alloc(in->n_parts, sizeof *copy.parts);
	if (!copy.parts)
		return -1;
	for (size_t i = 0; i < in->n_parts; i++) {
		char *type = cell__strdup(in->parts[i].type);
		char *data = cell__strndup(in->parts[i].data, in->parts[i].size);
		copy.parts[copy.n_parts++] = (struct cell_mime_part){ type, data, in->parts[i].size };
		if (!type || !data) {
			cell__owned_bundle_finish(&copy);
			return -1;
		}
	}
	*out = copy;
	return 0;
}

void cell__owned_bundle_finish(struct cell__owned_bundle *bundle)
{
	for (size_t i = 0; i < bundle->n_parts; i++) {
		free((void *)bundle->parts[i].type);
		free((void *)bundle->parts[i].data);
	}
	free(bundle->parts);
	*bundle = (struct cell__owned_bundle){ 0 };
}

int cell__result_take_answer(struct cell_result *result, const struct cell__answer *answer)
{
	if (answer->value_json) {
		result->value_json = cell__strndup(answer->value_json, answer->value_size);
		if (!result->value_json)
			return -1;
	}
	if (!answer->repr)
		return 0;
	result->repr = cell__strndup(answer->repr, answer->repr_size);
	result->repr_size = answer->repr_size;
	/* text/plain stands first, and is the repr where the kernel says nothing else. */
	struct cell__bundle all = { .n_parts = 1 };
	const struct cell__bundle *mime = &answer->mime;
	all.parts[0] = (struct cell_mime_part){ "text/plain", answer->repr, answer->repr_size };
	for (size_t i = 0; i < mime->n_parts; i++)
		if (strcmp(mime->parts[i].type, "text/plain") == 0)
			all.parts[0] = mime->parts[i];
		else if (all.n_parts < CELL_LIMIT_MIME_PARTS)
			all.parts[all.n_parts++] = mime->parts[i];
	return result->repr ? cell__owned_bundle_copy(&result->mime, &all) : -1;
}

int cell__result_set_error(struct cell_result *result, int code, const char *type, const char *message,
			   const char *traceback)
{
	result->failed = true;
	result->error_type = cell__strdup(type);
	result->error_message = cell__strdup(message);
	result->error_traceback = cell__strdup(traceback);
	result->outcome = (struct cell_outcome){
		.code = code,
		.type = result->error_type ? result->error_type : "",
		.message = result->error_message ? result->error_message : "",
		.traceback = result->error_traceback ? result->error_traceback : "",
	};
	return result->error_type && result->error_message && result->error_traceback ? 0 : -1;
}

int cell__result_set_limit(struct cell_result *result, const char *name, uint64_t max, uint64_t used)
{
	result->error_limit = cell__strdup(name);
	result->outcome.limit = result->error_limit;
	result->outcome.limit_max = max;
	result->outcome.limit_used = used;
	return result->error_limit ? 0 : -1;
}

static void finish_text(struct cell__result_text *text)
{
	cell__buf_finish(&text->raw);
	cell__buf_finish(&text->clean);
}

void cell_result_destroy(struct cell_result *result)
{
	if (!result)
		return;
	if (result->spill_path && !result->keep_spill)
		unlink(result->spill_path);
	free(result->spill_path);
	free(result->value_json);
	free(result->repr);
	cell__owned_bundle_finish(&result->mime);
	for (size_t i = 0; i < result->n_displays; i++)
		cell__owned_bundle_finish(&result->displays[i]);
	free(result->displays);
	finish_text(&result->out);
	finish_text(&result->err);
	finish_text(&result->text);
	free(result->error_type);
	free(result->error_message);
	free(result->error_traceback);
	free(result->error_limit);
	free(result->own_isolation);
	free(result);
}

const char *cell_result_value_json(const struct cell_result *result)
{
	return result->value_json;
}

const char *cell_result_repr(const struct cell_result *result)
{
	return result->repr;
}

size_t cell_result_mime(const struct cell_result *result, const struct cell_mime_part **ret_parts)
{
	*ret_parts = result->mime.parts;
	return result->mime.n_parts;
}

static void get_text(const struct cell__result_text *text, struct cell_text *ret_text)
{
	const struct cell__buf *clean = text->clean.data ? &text->clean : &text->raw;
	*ret_text = (struct cell_text){
		.data = clean->data ? clean->data : "",
		.size = clean->size,
		.raw = text->raw.data ? text->raw.data : "",
		.raw_size = text->raw.size,
		.total = text->total,
	};
}

void cell_result_stdout(const struct cell_result *result, struct cell_text *ret_text)
{
	get_text(&result->out, ret_text);
}

void cell_result_stderr(const struct cell_result *result, struct cell_text *ret_text)
{
	get_text(&result->err, ret_text);
}

void cell_result_text(const struct cell_result *result, struct cell_text *ret_text)
{
	get_text(&result->text, ret_text);
}

const struct cell_outcome *cell_result_error(const struct cell_result *result)
{
	return result->failed ? &result->outcome : NULL;
}

double cell_result_duration_ms(const struct cell_result *result)
{
	return (double)result->duration_us / 1000.0;
}

int cell_result_state_kept(const struct cell_result *result)
{
	return result->state_kept;
}

const char *cell_result_isolation_json(const struct cell_result *result)
{
	return result->isolation;
}

const char *cell_result_spill_path(const struct cell_result *result)
{
	return result->spill_path;
}

void cell_result_keep_spill(struct cell_result *result)
{
	result->keep_spill = true;
}

size_t cell_result_display_count(const struct cell_result *result)
{
	return result->n_displays;
}

size_t cell_result_display(const struct cell_result *result, size_t i, const struct cell_mime_part **ret_parts)
{
	if (i >= result->n_displays)
		return 0;
	*ret_parts = result->displays[i].parts;
	return result->displays[i].n_parts;
}

/* ---- as JSON ---- */

static bool is_json_type(const char *type)
{
	size_t n = strlen(type);
	return strcmp(type, "application/json") == 0 || (n > 5 && strcmp(type + n - 5, "+json") == 0);
}

/* JSON as it is, text as a string, everything else by base64. */
static int add_part(struct cell__buf *out, const struct cell_mime_part *part)
{
	/* By type, not by looking: a consumer must be able to know which it is. */
	static const char *const binaries[] = { "image/", "audio/", "video/", "application/pdf", "application/octet-stream" };
	bool binary = false;
	for (size_t i = 0; i < sizeof binaries / sizeof *binaries; i++)
		binary |= strncmp(part->type, binaries[i], strlen(binaries[i])) == 0;
	binary &= !strstr(part->type, "+xml");
	if (is_json_type(part->type) && cell__json_check(part->data, part->size))
		return cell__buf_add(out, part->data, part->size);
	if (!binary && cell__utf8_ok(part->data, part->size))
		return cell__buf_add_json_string(out, part->data, part->size);
	int rc = cell__buf_add_str(out, "\"");
	rc |= cell__buf_add_base64(out, part->data, part->size);
	return rc | cell__buf_add_str(out, "\"");
}

static int add_mime(struct cell__buf *out, const struct cell__owned_bundle *bundle)
{
	int rc = cell__buf_add_str(out, "{");
	for (size_t i = 0; i < bundle->n_parts; i++) {
		if (i > 0)
			rc |= cell__buf_add_str(out, ",");
		rc |= cell__buf_add_json_string(out, bundle->parts[i].type, strlen(bundle->parts[i].type));
		rc |= cell__buf_add_str(out, ":");
		rc |= add_part(out, &bundle->parts[i]);
	}
	return rc | cell__buf_add_str(out, "}");
}

static int add_text(struct cell__buf *out, const char *key, const struct cell__result_text *text)
{
	struct cell_text t;
	get_text(text, &t);
	int rc = cell__buf_printf(out, ",\"%s\":", key);
	return rc | cell__buf_add_json_string(out, t.data, t.size);
}

static int add_string(struct cell__buf *out, const char *key, const char *text)
{
	int rc = cell__buf_printf(out, ",\"%s\":", key);
	return rc | (text ? cell__buf_add_json_string(out, text, strlen(text)) : cell__buf_add_str(out, "null"));
}

static int add_error(struct cell__buf *out, const struct cell_result *result)
{
	if (!result->failed)
		return cell__buf_add_str(out, ",\"error\":null");
	const struct cell_outcome *o = &result->outcome;
	int rc = cell__buf_add_str(out, ",\"error\":{\"code\":");
	const char *word = cell_code_word(o->code);
	rc |= cell__buf_add_json_string(out, word, strlen(word));
	rc |= add_string(out, "type", o->type);
	rc |= add_string(out, "message", o->message);
	rc |= add_string(out, "traceback", o->traceback);
	if (o->limit) {
		rc |= cell__buf_add_str(out, ",\"limit\":{\"name\":");
		rc |= cell__buf_add_json_string(out, o->limit, strlen(o->limit));
		rc |= cell__buf_printf(out, ",\"max\":%llu,\"used\":%llu}", (unsigned long long)o->limit_max,
				       (unsigned long long)o->limit_used);
	}
	return rc | cell__buf_add_str(out, "}");
}

char *cell_result_json(const struct cell_result *result)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	int rc = cell__buf_printf(&out, "{\"value\":%s", result->value_json ? result->value_json : "null");
	rc |= cell__buf_add_str(&out, ",\"repr\":");
	rc |= result->repr ? cell__buf_add_json_string(&out, result->repr, result->repr_size)
			   : cell__buf_add_str(&out, "null");
	rc |= cell__buf_add_str(&out, ",\"mime\":");
	rc |= add_mime(&out, &result->mime);
	rc |= add_text(&out, "stdout", &result->out);
	rc |= add_text(&out, "stderr", &result->err);
	rc |= add_text(&out, "text", &result->text);
	rc |= add_error(&out, result);
	rc |= cell__buf_add_str(&out, ",\"images\":[],\"displays\":[");
	for (size_t i = 0; i < result->n_displays; i++) {
		if (i > 0)
			rc |= cell__buf_add_str(&out, ",");
		rc |= add_mime(&out, &result->displays[i]);
	}
	rc |= cell__buf_add_str(&out, "]");
	rc |= cell__buf_printf(&out, ",\"duration_ms\":%.3f,\"state\":\"%s\",\"isolation\":%s", cell_result_duration_ms(result),
			       result->state_kept ? "kept" : "lost", result->isolation);
	rc |= add_string(&out, "spill", result->spill_path);
	rc |= add_string(&out, "session_id", result->session_id);
	rc |= cell__buf_add_str(&out, "}");
	return rc == 0 ? cell__buf_take(&out) : NULL;
}
