/*
 * Artifacts over HTTP. In JSON, texts and JSON values; as bytes, any content. Each is saved and loaded by one operation; its bytes are in
 * memory once as the body of the request or the answer, and once more while the operation works.
 */
#include "server/api.h"

#include <string.h>

/* ---- out ---- */

static bool wants_bytes(const struct cell__request *request)
{
	const char *accept = cell__request_header(request, "Accept");

	return accept && strstr(accept, "application/octet-stream");
}

static void loaded(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	const char *type = json_string_value(json_object_get(result, "type"));
	CELL_AUTO_FREE char *bytes = NULL;
	struct cell__buf quoted = CELL_BUF_INIT;

	if (!type)
		type = "bytes";
	if (!strcmp(type, "text") && !wants_bytes(request) && cell__utf8_ok(raw_size ? raw : "", raw_size)) {
		int rc = cell__buf_add_json_string(&quoted, raw_size ? raw : "", raw_size);

		if (rc)
			cell__buf_finish(&quoted);
		cell__answer_text(request, MHD_HTTP_OK, rc ? NULL : cell__buf_take(&quoted));
		return;
	}
	bytes = raw_size ? cell__strndup(raw, raw_size) : NULL;
	if (raw_size && !bytes)
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the artifact");
	else
		cell__answer_bytes(request, strcmp(type, "json") || wants_bytes(request) ? "application/octet-stream" : "application/json",
				   cell__take_ptr(bytes), raw_size);
}

static void get_artifact(struct cell__request *request)
{
	json_t *args = cell__request_args(request);

	json_object_set_new(args, "max_bytes", json_integer(request->server->limits.max_artifact_bytes));
	cell__ask(request, CELL__OP_ARTIFACTS_LOAD, args, NULL, 0, loaded);
}

void cell__handle_artifact_get(struct cell__request *request)
{
	cell__with_space(request, get_artifact);
}

/* ---- in ---- */

/* The bytes are the body's, the arguments those in request->query. */
static void save_artifact(struct cell__request *request)
{
	cell__ask(request, CELL__OP_ARTIFACTS_SAVE, json_incref(json_object_get(request->query, "save")), request->body.data,
		  request->body.size, NULL);
}

static void begin_save(struct cell__request *request, json_t *args)
{
	json_object_clear(request->query);
	json_object_set_new(request->query, "save", args);
	cell__with_space(request, save_artifact);
}

void cell__handle_artifact_save(struct cell__request *request)
{
	json_t *data = json_object_get(request->json, "data"), *args;
	bool text = json_is_string(data);
	char *dumped = text ? NULL : json_dumps(data, JSON_COMPACT | JSON_ENCODE_ANY);

	request->body.size = 0;
	if (cell__buf_add(&request->body,
			  text     ? json_string_value(data)
			  : dumped ? dumped
				   : "",
			  text     ? json_string_length(data)
			  : dumped ? strlen(dumped)
				   : 0) < 0 ||
	    (!text && !dumped)) {
		free(dumped);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the artifact");
		return;
	}
	free(dumped);
	args = cell__request_args(request);
	json_object_del(args, "data");
	json_object_set_new(args, "type", json_string(text ? "text" : "json"));
	begin_save(request, args);
}

void cell__handle_artifact_put(struct cell__request *request)
{
	json_t *args = cell__request_args(request);
	const char *text = json_string_value(json_object_get(args, "metadata"));
	json_t *metadata = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;

	if (text && !json_is_object(metadata)) {
		json_decref(metadata);
		json_decref(args);
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "metadata is not a JSON object");
		return;
	}
	if (metadata)
		json_object_set_new(args, "metadata", metadata);
	begin_save(request, args);
}

static void check_exists(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	(void)raw;
	(void)raw_size;
	if (json_is_null(result))
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "Artifact '%s' not found", request->params[0]);
	else
		cell__ask(request, CELL__OP_ARTIFACTS_DELETE, cell__request_args(request), NULL, 0, NULL);
}

static void delete_artifact(struct cell__request *request)
{
	cell__ask(request, CELL__OP_ARTIFACTS_GET, cell__request_args(request), NULL, 0, check_exists);
}

void cell__handle_artifact_delete(struct cell__request *request)
{
	cell__with_space(request, delete_artifact);
}
