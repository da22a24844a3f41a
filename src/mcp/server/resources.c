/*
 * Resources: those that the program offers (offers.c), and the storage's artifacts and workflows.  Each request is a job with a thread of its
 * own, like an operation on the space, and is answered by a result or a protocol error.
 */
#include "mcp/server/server.h"

#include <string.h>

#include "mcp/server/uri.h"

static int fail(struct cell__mcp_answer_out *out, struct cell__buf *message, int code, const char *words)
{
	out->code = code;
	cell__buf_shift(message, message->size);
	cell__buf_add_str(message, words);
	return -1;
}

int cell__mcp_fail_offer(struct cell__mcp_answer_out *out, struct cell__buf *message, const struct cell_error *err)
{
	bool theirs = err->code == CELL_E_NOT_FOUND || err->code == CELL_E_INVALID || err->code == CELL_E_LIMIT ||
		      err->code == CELL_E_DISABLED;

	out->code = theirs ? CELL_RPC_INVALID_PARAMS : CELL_RPC_INTERNAL_ERROR;
	cell__buf_shift(message, message->size);
	cell__buf_printf(message, "%s: %s", cell_code_word(err->code), err->msg);
	return -1;
}

/* ---- pages ---- */

/* Where the page begins; -1: the cursor is not one of ours. */
static int64_t read_cursor(const json_t *params, size_t total)
{
	const json_t *cursor = json_object_get(params, "cursor");
	const char *text = json_string_value(cursor);
	int64_t at = 0;
	char again[32];

	if (!cursor || json_is_null(cursor))
		return 0;
	for (size_t i = 0; text && text[i] >= '0' && text[i] <= '9' && i < 9; i++)
		at = at * 10 + (text[i] - '0');
	snprintf(again, sizeof(again), "%lld", (long long)at);
	return text && !strcmp(again, text) && at > 0 && (size_t)at < total ? at : -1;
}

int cell__mcp_page(struct cell__mcp_job *job, const char *member, json_t *all, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	size_t total = json_array_size(all), i;
	int64_t from = read_cursor(job->args, total);
	json_t *page = json_array(), *entry;

	if (from >= 0) {
		for (i = (size_t)from; i < total && i < (size_t)from + CELL_MCP_PAGE && (entry = json_array_get(all, i)); i++)
			json_array_append(page, entry);
		out->whole = json_pack("{s:O}", member, page);
		if (out->whole && i < total)
			json_object_set_new(out->whole, "nextCursor", json_sprintf("%zu", i));
	}
	json_decref(page);
	json_decref(all);
	if (from < 0)
		return fail(out, message, CELL_RPC_INVALID_PARAMS, "unknown cursor");
	return out->whole ? 0 : -1;
}

/* ---- lists ---- */

static const char *type_of(const char *name, const char *type)
{
	static const char *const types[][2] = {
		{ ".json", "application/json" }, { ".csv", "text/csv" },        { ".html", "text/html" }, { ".md", "text/markdown" },
		{ ".py", "text/x-python" },      { ".txt", "text/plain" },      { ".png", "image/png" },  { ".jpg", "image/jpeg" },
		{ ".svg", "image/svg+xml" },     { ".pdf", "application/pdf" }, { ".wav", "audio/wav" },  { ".mp3", "audio/mpeg" },
		{ ".xml", "application/xml" },   { ".zip", "application/zip" }, { ".gif", "image/gif" },  { ".webp", "image/webp" },
	};
	const char *dot = strrchr(name, '.');

	for (size_t i = 0; dot && i < sizeof(types) / sizeof(*types); i++) {
		if (!strcmp(dot, types[i][0]))
			return types[i][1];
	}
	if (type && !strcmp(type, "json"))
		return "application/json";
	return type && !strcmp(type, "text") ? "text/plain" : NULL;
}

static json_t *entry_of(const char *prefix, const json_t *item, const char *type)
{
	const char *name = json_string_value(json_object_get(item, "name")),
		   *words = json_string_value(json_object_get(item, "description"));
	const json_t *size = json_object_get(item, "size"), *created = json_object_get(item, "created_at");
	CELL_AUTO_BUF struct cell__buf uri = CELL_BUF_INIT;
	json_t *entry;

	if (!name || cell__mcp_uri_add(&uri, prefix, name))
		return NULL;
	entry = json_pack("{s:s, s:s}", "uri", uri.data, "name", name);
	if (entry && words && *words)
		json_object_set_new(entry, "description", json_string(words));
	if (entry && type)
		json_object_set_new(entry, "mimeType", json_string(type));
	if (entry && json_is_integer(size))
		json_object_set(entry, "size", (json_t *)size);
	if (entry && json_is_string(created))
		json_object_set_new(entry, "annotations", json_pack("{s:O}", "lastModified", created));
	return entry;
}

/* Adds the storage's own. */
static int add_stored(struct cell__mcp_job *job, enum cell__op op, const char *prefix, json_t *list, struct cell__buf *message)
{
	json_t *items = NULL;
	const json_t *item;
	size_t i;

	if (cell__mcp_space_call(job, cell__operations[op].method, json_object(), &items, NULL, message) < 0)
		return -1;
	json_array_foreach(items, i, item) {
		const char *name = json_string_value(json_object_get(item, "name"));
		json_t *entry = entry_of(prefix, item, op == CELL__OP_WORKFLOWS_LIST ? "text/x-python" : name ? type_of(name, NULL) : NULL);

		if (entry)
			json_array_append_new(list, entry);
	}
	json_decref(items);
	return 0;
}

int cell__mcp_resources_list(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	struct cell_mcp_server *server = job->handle->server;
	json_t *list = json_array();

	(void)args;
	out->code = CELL_RPC_INTERNAL_ERROR;
	pthread_mutex_lock(&server->lock);
	cell__mcp_offers_add(server, CELL__MCP_OFFERS_RESOURCE, false, job->handle->owner, job->scopes, list);
	pthread_mutex_unlock(&server->lock);
	if (server->opts.storage && (add_stored(job, CELL__OP_ARTIFACTS_LIST, CELL_MCP_ARTIFACTS, list, message) < 0 ||
				     add_stored(job, CELL__OP_WORKFLOWS_LIST, CELL_MCP_WORKFLOWS, list, message) < 0)) {
		json_decref(list);
		return -1;
	}
	return cell__mcp_page(job, "resources", list, out, message);
}

int cell__mcp_templates_list(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	struct cell_mcp_server *server = job->handle->server;
	json_t *list = json_array();

	(void)args;
	pthread_mutex_lock(&server->lock);
	cell__mcp_offers_add(server, CELL__MCP_OFFERS_RESOURCE, true, job->handle->owner, job->scopes, list);
	pthread_mutex_unlock(&server->lock);
	if (server->opts.storage) {
		json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "uriTemplate", CELL_MCP_ARTIFACTS "{+name}", "name", "artifact",
						      "description", "An artifact: data that outlives sessions"));
		json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s}", "uriTemplate", CELL_MCP_WORKFLOWS "{name}", "name",
						      "workflow", "description", "The source of a workflow", "mimeType", "text/x-python"));
	}
	return cell__mcp_page(job, "resourceTemplates", list, out, message);
}

/* ---- reading ---- */

struct cell__mcp_offer *cell__mcp_resource_find(struct cell_mcp_server *server, const char *uri, const char *owner, unsigned scopes,
						json_t **ret_values)
{
	struct cell__mcp_offer *offer = server->offers;
	json_t *values = NULL;

	/* One that is named exactly goes before templates. */
	for (; offer; offer = offer->next) {
		if (offer->kind == CELL__MCP_OFFERS_RESOURCE && !offer->is_template && !strcmp(offer->name, uri) &&
		    cell__mcp_offer_is_for(offer, owner, scopes)) {
			values = json_object();
			break;
		}
	}
	for (struct cell__mcp_offer *each = server->offers; !offer && each; each = each->next) {
		if (each->kind == CELL__MCP_OFFERS_RESOURCE && each->is_template && cell__mcp_offer_is_for(each, owner, scopes) &&
		    (values = cell__mcp_template_match(each->name, uri)))
			offer = each;
	}
	if (ret_values)
		*ret_values = values;
	else
		json_decref(values);
	return offer;
}

static int read_offered(struct cell__mcp_job *job, struct cell__mcp_offer *offer, const char *uri, json_t *values,
			struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	struct cell_mcp_server *server = job->handle->server;
	struct cell_error err;
	int status = cell__mcp_offer_ask(job, offer, false, uri, values, &out->whole, &err);

	pthread_mutex_lock(&server->lock);
	cell__mcp_offer_unref(offer);
	pthread_mutex_unlock(&server->lock);
	json_decref(values);
	return status < 0 ? cell__mcp_fail_offer(out, message, &err) : 0;
}

static int read_artifact(struct cell__mcp_job *job, const char *uri, const char *name, struct cell__mcp_answer_out *out,
			 struct cell__buf *message)
{
	json_t *found = NULL, *contents;
	struct cell_answer answer = CELL_ANSWER_INIT;
	json_t *args = json_pack("{s:s, s:i}", "name", name, "max_bytes", (int)CELL_MCP_MAX_ARTIFACT_BYTES);
	const char *type;

	if (cell__mcp_space_call(job, cell__operations[CELL__OP_ARTIFACTS_LOAD].method, args, &found, &answer, message) < 0) {
		out->code = CELL_RPC_INVALID_PARAMS;
		return -1;
	}
	type = type_of(name, json_string_value(json_object_get(found, "type")));
	/* Bytes that are text are sent as text. */
	if (!type && !cell__utf8_ok(answer.raw, answer.raw_size))
		type = "application/octet-stream";
	contents = cell__mcp_contents(uri, type, answer.raw, answer.raw_size);
	out->whole = contents ? json_pack("{s:[o]}", "contents", contents) : NULL;
	json_decref(found);
	cell_answer_finish(&answer);
	return out->whole ? 0 : -1;
}

static int read_workflow(struct cell__mcp_job *job, const char *uri, const char *name, struct cell__mcp_answer_out *out,
			 struct cell__buf *message)
{
	json_t *found = NULL;

	if (cell__mcp_space_call(job, cell__operations[CELL__OP_WORKFLOWS_GET].method, json_pack("{s:s}", "name", name), &found, NULL,
				 message) < 0) {
		out->code = CELL_RPC_INVALID_PARAMS;
		return -1;
	}
	if (json_is_object(found))
		out->whole = json_pack("{s:[{s:s, s:s, s:O}]}", "contents", "uri", uri, "mimeType", "text/x-python", "text",
				       json_object_get(found, "source"));
	json_decref(found);
	return out->whole ? 0 : fail(out, message, CELL_RPC_INVALID_PARAMS, "not_found: no such resource");
}

int cell__mcp_resources_read(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	struct cell_mcp_server *server = job->handle->server;
	const json_t *asked = json_object_get(args, "uri");
	const char *uri = json_string_value(asked);
	struct cell__mcp_offer *offer;
	json_t *values = NULL;

	if (!uri || strlen(uri) != json_string_length(asked) || json_string_length(asked) > CELL_MCP_MAX_URI)
		return fail(out, message, CELL_RPC_INVALID_PARAMS, "params.uri must be a URI");
	pthread_mutex_lock(&server->lock);
	offer = cell__mcp_resource_find(server, uri, job->handle->owner, job->scopes, &values);
	if (offer)
		offer->refs++;
	pthread_mutex_unlock(&server->lock);
	if (offer)
		return read_offered(job, offer, uri, values, out, message);
	CELL_AUTO_FREE char *artifact = server->opts.storage ? cell__mcp_uri_name(uri, CELL_MCP_ARTIFACTS) : NULL;
	CELL_AUTO_FREE char *workflow = server->opts.storage ? cell__mcp_uri_name(uri, CELL_MCP_WORKFLOWS) : NULL;

	out->code = CELL_RPC_INTERNAL_ERROR;
	if (artifact)
		return read_artifact(job, uri, artifact, out, message);
	if (workflow)
		return read_workflow(job, uri, workflow, out, message);
	return fail(out, message, CELL_RPC_INVALID_PARAMS, "not_found: no such resource");
}
