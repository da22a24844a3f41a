/*
 * Artifacts over HTTP.  In JSON, texts and JSON values; as bytes, anything.  A body is in memory once, pieces of it go to
 * and come from the space.
 *
 *     get:  load_open ──▶ load_chunk ... ──▶ load_close ──▶ answered
 *     save: save_begin ──▶ save_chunk ... ──▶ save_commit ──▶ answered
 *
 * A step that fails has answered; what was open is dropped with an abort or a close whose answer nobody waits for.
 */
#include "server/api.h"

#include <string.h>

#define PIECE_BYTES (1u << 20)

/* What is known of the transfer stands in request->query: "handle", "size", "type"; the bytes in request->body. */

static void list_artifacts(struct cell__request *request)
{
	cell__ask(request, "artifacts.list", json_object(), NULL, 0, NULL);
}

void cell__handle_artifacts(struct cell__request *request)
{
	cell__with_space(request, list_artifacts);
}

/* ---- out ---- */

static bool wants_bytes(const struct cell__request *request)
{
	const char *accept = cell__request_header(request, "Accept");

	return accept && strstr(accept, "application/octet-stream");
}

static void loaded(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	const char *type = json_string_value(json_object_get(request->query, "type"));
	size_t size = request->body.size;
	char *bytes = size ? cell__take_ptr(request->body.data) : NULL;
	struct cell__buf quoted = CELL_BUF_INIT;

	(void)result;
	(void)raw;
	(void)raw_size;
	if (size)
		request->body = (struct cell__buf)CELL_BUF_INIT;
	if (!type)
		type = "bytes";
	if (!strcmp(type, "text") && !wants_bytes(request) && cell__utf8_ok(bytes ? bytes : "", size)) {
		int rc = cell__buf_add_json_string(&quoted, bytes ? bytes : "", size);

		free(bytes);
		if (rc)
			cell__buf_finish(&quoted);
		cell__answer_text(request, MHD_HTTP_OK, rc ? NULL : cell__buf_take(&quoted));
	} else {
		cell__answer_bytes(request, strcmp(type, "json") || wants_bytes(request) ? "application/octet-stream" : "application/json", bytes,
				   size);
	}
}

static json_t *handle_args(struct cell__request *request)
{
	return json_pack("{s:O}", "handle", json_object_get(request->query, "handle"));
}

static void load_more(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	json_int_t size = json_integer_value(json_object_get(request->query, "size"));
	json_t *args;

	(void)result;
	if (raw_size && cell__buf_add(&request->body, raw, raw_size) < 0) {
		cell__tell(request, "artifacts.load_close", handle_args(request));
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "no memory for the artifact");
		return;
	}
	if ((json_int_t)request->body.size >= size || (result && !raw_size)) {
		cell__ask(request, "artifacts.load_close", handle_args(request), NULL, 0, loaded);
		return;
	}
	args = handle_args(request);
	json_object_set_new(args, "offset", json_integer((json_int_t)request->body.size));
	json_object_set_new(args, "size", json_integer(PIECE_BYTES));
	cell__ask(request, "artifacts.load_chunk", args, NULL, 0, load_more);
}

static void load_opened(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	int64_t max = request->server->limits.max_artifact_bytes;

	(void)raw;
	(void)raw_size;
	json_object_update(request->query, result);
	if (json_integer_value(json_object_get(result, "size")) > max) {
		cell__tell(request, "artifacts.load_close", handle_args(request));
		cell__answer_fail(request, MHD_HTTP_CONTENT_TOO_LARGE, CELL_E_LIMIT, "an artifact of more than %lld bytes is not handed out",
				  (long long)max);
		return;
	}
	load_more(request, NULL, NULL, 0);
}

static void get_artifact(struct cell__request *request)
{
	cell__ask(request, "artifacts.load_open", json_pack("{s:s}", "name", request->params[0]), NULL, 0, load_opened);
}

void cell__handle_artifact_get(struct cell__request *request)
{
	cell__with_space(request, get_artifact);
}

/* ---- in ---- */

static void save_more(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	size_t at = (size_t)json_integer_value(json_object_get(request->query, "at"));
	size_t left = request->body.size - at, piece = left < PIECE_BYTES ? left : PIECE_BYTES;

	(void)raw;
	(void)raw_size;
	if (json_is_object(result))
		json_object_update(request->query, result);
	if (!left) {
		cell__ask(request, "artifacts.save_commit", handle_args(request), NULL, 0, NULL);
		return;
	}
	json_object_set_new(request->query, "at", json_integer((json_int_t)(at + piece)));
	cell__ask(request, "artifacts.save_chunk", handle_args(request), request->body.data + at, piece, save_more);
}

static void save_artifact(struct cell__request *request)
{
	json_t *args = json_incref(json_object_get(request->query, "save"));

	cell__ask(request, "artifacts.save_begin", args, NULL, 0, save_more);
}

void cell__handle_artifact_save(struct cell__request *request)
{
	json_t *data = json_object_get(request->json, "data"), *metadata = json_object_get(request->json, "metadata");
	json_t *description = json_object_get(request->json, "description");
	bool text = json_is_string(data);
	char *dumped = text ? NULL : json_dumps(data, JSON_COMPACT | JSON_ENCODE_ANY);
	json_t *args = json_pack("{s:O,s:s}", "name", json_object_get(request->json, "name"), "type", text ? "text" : "json");

	request->body.size = 0;
	if (cell__buf_add(&request->body, text ? json_string_value(data) : dumped ? dumped : "",
			  text ? json_string_length(data) : dumped ? strlen(dumped) : 0) < 0 || (!text && !dumped)) {
		json_decref(args);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "no memory for the artifact");
		return;
	}
	free(dumped);
	if (json_is_string(description))
		json_object_set(args, "description", description);
	if (json_is_object(metadata))
		json_object_set(args, "metadata", metadata);
	json_object_set_new(request->query, "save", args);
	cell__with_space(request, save_artifact);
}

void cell__handle_artifact_put(struct cell__request *request)
{
	json_t *args = json_pack("{s:s,s:s}", "name", request->params[0], "type", "bytes");
	json_t *description = json_object_get(request->query, "description"), *type = json_object_get(request->query, "type");
	const char *text = json_string_value(json_object_get(request->query, "metadata"));
	json_t *metadata = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;

	if (text && !json_is_object(metadata)) {
		json_decref(metadata);
		json_decref(args);
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "metadata is no JSON object");
		return;
	}
	if (metadata)
		json_object_set_new(args, "metadata", metadata);
	if (description)
		json_object_set(args, "description", description);
	if (type)
		json_object_set(args, "type", type);
	json_object_clear(request->query);
	json_object_set_new(request->query, "save", args);
	cell__with_space(request, save_artifact);
}

static void check_exists(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	(void)raw;
	(void)raw_size;
	if (json_is_null(result))
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "Artifact '%s' not found", request->params[0]);
	else
		cell__ask(request, "artifacts.delete", json_pack("{s:s}", "name", request->params[0]), NULL, 0, NULL);
}

static void delete_artifact(struct cell__request *request)
{
	cell__ask(request, "artifacts.get", json_pack("{s:s}", "name", request->params[0]), NULL, 0, check_exists);
}

void cell__handle_artifact_delete(struct cell__request *request)
{
	cell__with_space(request, delete_artifact);
}
