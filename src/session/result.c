#include "session/result.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session/on_loop.h"
#include "wire/json_check.h"

#define LARGE_SPILL (16 << 20) /* bytes of a file that are not removed in passing */

/* One block: the parts, then their types and data, each with a NUL behind it. */
int cell__owned_bundle_copy(struct cell__owned_bundle *out, const struct cell__bundle *in)
{
	size_t size = in->n_parts * sizeof *out->parts;
	for (size_t i = 0; i < in->n_parts; i++)
		size += strlen(in->parts[i].type) + in->parts[i].size + 2;
	struct cell_mime_part *parts = cell__realloc(NULL, size);
	if (!parts)
		return -1;
	char *at = (char *)(parts + in->n_parts);
	for (size_t i = 0; i < in->n_parts; i++) {
		const struct cell_mime_part *part = &in->parts[i];
		size_t type_size = strlen(part->type) + 1;
		parts[i] = (struct cell_mime_part){ at, at + type_size, part->size };
		memcpy(at, part->type, type_size);
		if (part->size > 0)
			memcpy(at + type_size, part->data, part->size);
		at += type_size + part->size;
		*at++ = '\0';
	}
	*out = (struct cell__owned_bundle){ parts, in->n_parts };
	return 0;
}

void cell__owned_bundle_finish(struct cell__owned_bundle *bundle)
{
	free(bundle->parts);
	*bundle = (struct cell__owned_bundle){ 0 };
}

size_t cell__owned_bundle_find(const struct cell__owned_bundle *bundle, const char *type)
{
	size_t at = 0;
	while (at < bundle->n_parts && strcmp(bundle->parts[at].type, type) != 0)
		at++;
	return at;
}

void cell__owned_bundle_remove(struct cell__owned_bundle *bundle, size_t at)
{
	struct cell__owned_bundle less;
	struct cell__bundle rest = { 0 };
	bundle->n_parts--;
	memmove(bundle->parts + at, bundle->parts + at + 1, (bundle->n_parts - at) * sizeof *bundle->parts);
	memcpy(rest.parts, bundle->parts, bundle->n_parts * sizeof *rest.parts);
	rest.n_parts = bundle->n_parts;
	/* A smaller block gives the part's memory back; without it that stays until the end. */
	if (cell__owned_bundle_copy(&less, &rest) == 0) {
		free(bundle->parts);
		*bundle = less;
	}
}

void cell__result_add_notice(struct cell_result *result, const char *text)
{
	if (result->n_notices == CELL_LIMIT_NOTICES)
		return;
	if (result->n_notices == CELL_LIMIT_NOTICES - 1)
		text = "more notices followed that were not kept";
	char *copy = cell__strdup(text);
	if (copy)
		result->notices[result->n_notices++] = copy;
}

int cell__result_take_answer(struct cell_result *result, const struct cell__kernel_answer *answer)
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
	/* text/plain comes first; it is the repr unless the kernel sends another. */
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

int cell__result_set_error(struct cell_result *result, int code, const char *type, const char *message, const char *traceback)
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

static void finish_text(struct cell__kept_text *text)
{
	cell__buf_finish(&text->raw);
	cell__buf_finish(&text->clean);
}

static void *close_file(void *arg)
{
	close((int)(intptr_t)arg);
	return NULL;
}

/*
 * Removes the name at once. The data is freed with the last descriptor, which takes a tenth of a second for a large file: too long for
 * callbacks on the engine's thread.
 */
static void remove_spill(const char *path)
{
	struct stat st;
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all, mask;
	CELL_AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	unlink(path);
	if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < LARGE_SPILL || pthread_attr_init(&attr) != 0)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &mask); /* the host's handlers do not run on it */
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attr, close_file, (void *)(intptr_t)fd) == 0)
		(void)cell__take_fd(&fd); /* the thread's now */
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	pthread_attr_destroy(&attr);
}

void cell_result_destroy(struct cell_result *result)
{
	if (!result)
		return;
	if (result->spill_path && !result->keep_spill)
		remove_spill(result->spill_path);
	free(result->changes);
	free(result->spill_path);
	free(result->value_json);
	free(result->repr);
	cell__owned_bundle_finish(&result->mime);
	for (size_t i = 0; i < result->n_displays; i++)
		cell__owned_bundle_finish(&result->displays[i]);
	free(result->displays);
	for (size_t i = 0; i < result->n_images; i++)
		free(result->images[i]);
	free(result->images);
	for (size_t i = 0; i < result->n_notices; i++)
		free(result->notices[i]);
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
	return result ? result->value_json : NULL;
}

const char *cell_result_repr(const struct cell_result *result)
{
	return result ? result->repr : NULL;
}

size_t cell_result_mime(const struct cell_result *result, const struct cell_mime_part **ret_parts)
{
	if (!result)
		return 0;
	if (ret_parts)
		*ret_parts = result->mime.parts;
	return result->mime.n_parts;
}

/* text NULL: there is no result. */
static void get_text(const struct cell__kept_text *text, struct cell_text *ret_text)
{
	static const struct cell__kept_text none = { 0 };
	if (!ret_text)
		return;
	if (!text)
		text = &none;
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
	get_text(result ? &result->out : NULL, ret_text);
}

void cell_result_stderr(const struct cell_result *result, struct cell_text *ret_text)
{
	get_text(result ? &result->err : NULL, ret_text);
}

void cell_result_text(const struct cell_result *result, struct cell_text *ret_text)
{
	get_text(result ? &result->text : NULL, ret_text);
}

const struct cell_outcome *cell_result_error(const struct cell_result *result)
{
	return result && result->failed ? &result->outcome : NULL;
}

double cell_result_duration_ms(const struct cell_result *result)
{
	return result ? (double)result->duration_us / 1000.0 : 0;
}

int cell_result_state_kept(const struct cell_result *result)
{
	return result ? result->state_kept : 0;
}

bool cell__result_is_unbegun(const struct cell_result *result)
{
	return result->unbegun;
}

int cell_result_durable(const struct cell_result *result)
{
	return result ? result->durable - 1 : -1;
}

const char *cell_result_state(const struct cell_result *result)
{
	static const char *const words[] = { "lost", "kept", "restored" };
	return words[cell_result_state_kept(result)];
}

const char *cell_result_isolation_json(const struct cell_result *result)
{
	return result ? result->isolation : NULL;
}

const char *cell_result_spill_path(const struct cell_result *result)
{
	return result ? result->spill_path : NULL;
}

void cell_result_keep_spill(struct cell_result *result)
{
	if (!result)
		return;
	result->keep_spill = true;
}

size_t cell_result_display_count(const struct cell_result *result)
{
	if (!result)
		return 0;
	return result->n_displays;
}

size_t cell_result_display(const struct cell_result *result, size_t i, const struct cell_mime_part **ret_parts)
{
	if (!result || i >= result->n_displays)
		return 0;
	if (ret_parts)
		*ret_parts = result->displays[i].parts;
	return result->displays[i].n_parts;
}

size_t cell_result_image_count(const struct cell_result *result)
{
	if (!result)
		return 0;
	return result->n_images;
}

const char *cell_result_image(const struct cell_result *result, size_t i)
{
	return result && i < result->n_images ? result->images[i] : NULL;
}

size_t cell_result_notice_count(const struct cell_result *result)
{
	if (!result)
		return 0;
	return result->n_notices;
}

const char *cell_result_notice(const struct cell_result *result, size_t i)
{
	return result && i < result->n_notices ? result->notices[i] : NULL;
}

const char *cell_result_changes_json(const struct cell_result *result)
{
	return result ? result->changes : NULL;
}

void cell__result_take_changes(struct cell_result *result, const json_t *changes)
{
	static const char *const kinds[] = { "added", "changed", "removed" };
	json_t *clean = json_is_object(changes) ? json_object() : NULL, *name;
	size_t k;
	for (size_t i = 0; clean && i < sizeof kinds / sizeof *kinds; i++) {
		json_t *names = json_array();
		json_array_foreach(json_object_get(changes, kinds[i]), k, name)
			if (json_is_string(name) && k < CELL_LIMIT_CHANGES)
				json_array_append(names, name);
		json_object_set_new(clean, kinds[i], names);
	}
	if (clean)
		json_object_set_new(clean, "more", json_integer(json_integer_value(json_object_get(changes, "more"))));
	free(result->changes);
	result->changes = clean ? json_dumps(clean, JSON_COMPACT) : NULL;
	json_decref(clean);
}

/* ---- as JSON ---- */

static bool is_json_type(const char *type)
{
	size_t n = strlen(type);
	return strcmp(type, "application/json") == 0 || (n > 5 && strcmp(type + n - 5, "+json") == 0);
}

/* JSON unchanged, text as a string, everything else in base64. */
static int add_part(struct cell__buf *out, const struct cell_mime_part *part)
{
	/* By type, not by content: a consumer must be able to know the encoding in advance. */
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

static int add_text(struct cell__buf *out, const char *key, const struct cell__kept_text *text)
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

static int add_list(struct cell__buf *out, const char *key, char *const *texts, size_t count)
{
	int rc = cell__buf_printf(out, ",\"%s\":[", key);
	for (size_t i = 0; i < count; i++) {
		if (i > 0)
			rc |= cell__buf_add_str(out, ",");
		rc |= cell__buf_add_json_string(out, texts[i], strlen(texts[i]));
	}
	return rc | cell__buf_add_str(out, "]");
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
	if (o->retry)
		rc |= cell__buf_printf(out, ",\"retry\":%s", o->retry == CELL_RETRY_YES ? "true" : "false");
	if (o->limit) {
		rc |= cell__buf_add_str(out, ",\"limit\":{\"name\":");
		rc |= cell__buf_add_json_string(out, o->limit, strlen(o->limit));
		rc |= cell__buf_printf(out, ",\"max\":%llu,\"used\":%llu}", (unsigned long long)o->limit_max,
				       (unsigned long long)o->limit_used);
	}
	return rc | cell__buf_add_str(out, "}");
}

static int add_id(struct cell__buf *out, const char *key, struct cell__state_id id)
{
	char text[33];
	cell__state_id_write(id, text);
	return cell__state_id_known(id) ? add_string(out, key, text) : 0;
}

char *cell_result_json(const struct cell_result *result)
{
	if (!result)
		return NULL;
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	int rc = cell__buf_printf(&out, "{\"value\":%s", result->value_json ? result->value_json : "null");
	rc |= cell__buf_add_str(&out, ",\"repr\":");
	rc |= result->repr ? cell__buf_add_json_string(&out, result->repr, result->repr_size) : cell__buf_add_str(&out, "null");
	rc |= cell__buf_add_str(&out, ",\"mime\":");
	rc |= add_mime(&out, &result->mime);
	rc |= add_text(&out, "stdout", &result->out);
	rc |= add_text(&out, "stderr", &result->err);
	rc |= add_text(&out, "text", &result->text);
	rc |= add_error(&out, result);
	rc |= add_list(&out, "images", result->images, result->n_images);
	rc |= cell__buf_add_str(&out, ",\"displays\":[");
	for (size_t i = 0; i < result->n_displays; i++) {
		if (i > 0)
			rc |= cell__buf_add_str(&out, ",");
		rc |= add_mime(&out, &result->displays[i]);
	}
	rc |= cell__buf_add_str(&out, "]");
	rc |= cell__buf_printf(&out, ",\"duration_ms\":%.3f,\"state\":\"%s\",\"isolation\":%s", cell_result_duration_ms(result),
			       cell_result_state(result), result->isolation);
	if (result->durable)
		rc |= cell__buf_printf(&out, ",\"durable\":%s", result->durable == 2 ? "true" : "false");
	if (result->cells) {
		rc |= cell__buf_printf(&out, ",\"cells\":%llu", (unsigned long long)(result->cells - 1));
		rc |= add_id(&out, "state_id", result->state_id);
		rc |= add_id(&out, "awake_id", result->awake_id);
	}
	if (result->changes)
		rc |= cell__buf_printf(&out, ",\"changes\":%s", result->changes);
	rc |= add_list(&out, "notices", result->notices, result->n_notices);
	rc |= add_string(&out, "spill", result->spill_path);
	rc |= add_string(&out, "session_id", result->session_id);
	rc |= cell__buf_add_str(&out, "}");
	return rc == 0 ? cell__buf_take(&out) : NULL;
}
