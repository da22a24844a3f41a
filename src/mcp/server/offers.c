/*
 * Tools, resources and prompts that the program offers to the clients of its server.
 *
 *     offered ── found by a request (a reference) ──▶ at work ──▶ answered
 *        └── withdrawn: no longer found; freed when the last call has ended
 *
 * A function runs on the thread of its job.  A tool's call passes the gate of the client's session first: the job's thread asks, waits, and is lent
 * for the function once it is allowed (struct cell__own_work), so that policy, approvals, middlewares and audit log see it like every other tool.
 * Reading a resource or a prompt changes nothing and is not gated.
 *
 * server->lock guards the list, and the questions of functions that wait for an answer.
 */
#include "mcp/server/server.h"

#include <string.h>

#include "base/sized.h"
#include "engine/engine.h"
#include "mcp/client/param_headers.h"
#include "mcp/server/uri.h"

#define MAX_TEXT (64u * 1024u) /* of a description */

struct cell_mcp_call {
	struct cell__own_work work; /* first; of a tool */
	struct cell__mcp_job *job;
	struct cell__mcp_offer *offer;
	cell_mcp_fn fn;
	const char *name;           /* the tool, the prompt, or the URI that was asked for */
	char *args;
	bool completes;
	json_t *result;
};

/* What a function needs that asks its client's user. */
#define ASKING "elicitation"

/* A question of a function to the client's user. */
struct cell__mcp_asking {
	uint64_t id;
	bool done;
	json_t *answer; /* NULL: the client failed to ask */
	struct cell__mcp_asking *next;
};

/* ---- the list ---- */

static const char *const scope_words[] = { "read", "run", "admin", "approve", "metrics", NULL };

void cell__mcp_offer_unref(struct cell__mcp_offer *offer)
{
	if (!offer || --offer->refs)
		return;
	free(offer->name);
	free(offer->mime_type);
	free(offer->principal);
	json_decref(offer->entry);
	json_decref(offer->schema);
	json_decref(offer->needs);
	free(offer);
}

void cell__mcp_offers_end(struct cell_mcp_server *server)
{
	struct cell__mcp_offer *offer;

	while ((offer = server->offers)) {
		server->offers = offer->next;
		cell__mcp_offer_unref(offer);
	}
}

bool cell__mcp_offer_is_for(const struct cell__mcp_offer *offer, const char *owner, unsigned scopes)
{
	if (offer->scope && !(scopes & offer->scope))
		return false;
	return !offer->principal || !strcmp(offer->principal, cell__mcp_principal(owner));
}

const char *cell__mcp_principal(const char *owner)
{
	static const char token[] = "token ";

	return strncmp(owner, token, sizeof(token) - 1) ? owner : owner + sizeof(token) - 1;
}

struct cell__mcp_offer *cell__mcp_offer_find(struct cell_mcp_server *server, enum cell__mcp_offer_kind kind, const char *name,
					     const char *owner, unsigned scopes)
{
	struct cell__mcp_offer *offer = server->offers;

	while (offer && (offer->kind != kind || strcmp(offer->name, name) || !cell__mcp_offer_is_for(offer, owner, scopes)))
		offer = offer->next;
	return offer;
}

int cell__mcp_offers_add(struct cell_mcp_server *server, enum cell__mcp_offer_kind kind, bool template, const char *owner, unsigned scopes,
			 json_t *list)
{
	for (const struct cell__mcp_offer *offer = server->offers; offer; offer = offer->next) {
		if (offer->kind == kind && offer->is_template == template && cell__mcp_offer_is_for(offer, owner, scopes) &&
		    json_array_append(list, offer->entry) < 0)
			return -1;
	}
	return 0;
}

bool cell__mcp_offers_any(const struct cell_mcp_server *server, enum cell__mcp_offer_kind kind)
{
	const struct cell__mcp_offer *offer = server->offers;

	while (offer && offer->kind != kind)
		offer = offer->next;
	return offer != NULL;
}

/* ---- offering ---- */

static bool is_name(const char *name)
{
	size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");

	return size && !name[size] && size <= CELL_MCP_MAX_OFFER_NAME;
}

/* NULL is none.  -1: it is not what it should be. */
static int add_json(json_t *entry, const char *member, const char *text, json_type type, const char *kind, struct cell_error *err)
{
	json_t *value;

	if (!text)
		return 0;
	value = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	if (!value || json_typeof(value) != type) {
		json_decref(value);
		return cell_fail(err, CELL_E_INVALID, 0, "%s of a %s is not a JSON %s", member, kind,
				 type == JSON_ARRAY ? "array" : "object");
	}
	return json_object_set_new(entry, member, value) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory") : 0;
}

static int add_text(json_t *entry, const char *member, const char *text, struct cell_error *err)
{
	if (!text)
		return 0;
	if (strlen(text) > MAX_TEXT || !cell__utf8_ok(text, strlen(text)))
		return cell_fail(err, CELL_E_INVALID, 0, "%s must be UTF-8 of at most %u bytes", member, MAX_TEXT);
	return json_object_set_new(entry, member, json_string(text)) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory") : 0;
}

static int read_scope(const char *word, unsigned *ret_scope, struct cell_error *err)
{
	unsigned i = 0;

	if (!word)
		return 0;
	while (scope_words[i] && strcmp(scope_words[i], word))
		i++;
	if (!scope_words[i])
		return cell_fail(err, CELL_E_INVALID, 0, "unknown scope \"%.40s\": read, run, approve, admin or metrics", word);
	*ret_scope = 1u << i;
	return 0;
}

static int read_needs(const char *text, struct cell__mcp_offer *offer, struct cell_error *err)
{
	const char *key;
	json_t *each;

	offer->needs = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
	if (text && !json_is_object(offer->needs))
		return cell_fail(err, CELL_E_INVALID, 0, "needs must be a JSON object of client capabilities, like {\"elicitation\": {}}");
	json_object_foreach(offer->needs, key, each) {
		if (!json_is_object(each))
			return cell_fail(err, CELL_E_INVALID, 0, "needs: the capability \"%.100s\" must be a JSON object", key);
	}
	return 0;
}

/* With its name, audience and function.  NULL: *err has the reason. */
static struct cell__mcp_offer *make_offer(enum cell__mcp_offer_kind kind, const char *name, const char *scope, const char *principal,
					  struct cell_error *err)
{
	struct cell__mcp_offer *offer = cell__alloc(1, sizeof(*offer));

	if (offer) {
		*offer = (struct cell__mcp_offer){ .kind = kind, .refs = 1, .name = cell__strdup(name), .entry = json_object() };
		offer->principal = principal ? cell__strdup(principal) : NULL;
	}
	if (!offer || !offer->name || !offer->entry || (principal && !offer->principal)) {
		cell__mcp_offer_unref(offer);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		return NULL;
	}
	if (read_scope(scope, &offer->scope, err) < 0) {
		cell__mcp_offer_unref(offer);
		return NULL;
	}
	return offer;
}

static int publish(struct cell_mcp_server *server, struct cell__mcp_offer *offer, struct cell_error *err)
{
	struct cell__mcp_offer **at;
	int status = 0;
	size_t n = 0;

	pthread_mutex_lock(&server->lock);
	for (at = &server->offers; *at && !status; at = &(*at)->next) {
		/* The same name for different audiences would depend on the order of offering. */
		if ((*at)->kind == offer->kind && !strcmp((*at)->name, offer->name))
			status = cell_fail(err, CELL_E_EXISTS, 0, "\"%.100s\" is already offered", offer->name);
		n++;
	}
	if (!status && n >= CELL_MCP_MAX_OFFERS)
		status = cell_fail(err, CELL_E_LIMIT, 0, "a server offers at most %u tools, resources and prompts", CELL_MCP_MAX_OFFERS);
	if (!status) {
		*at = offer;
		cell__mcp_tell_offer(server, offer);
	}
	pthread_mutex_unlock(&server->lock);
	if (status)
		cell__mcp_offer_unref(offer);
	return status;
}

int cell_mcp_server_offer_tool(struct cell_mcp_server *server, const struct cell_offered_tool *tool, struct cell_error *err)
{
	struct cell_offered_tool all = CELL_OFFERED_TOOL_INIT;
	struct cell__mcp_offer *offer;
	const char *wrong = NULL;
	json_t *schema;

	if (cell__require(err, server, tool) < 0 || cell__sized_read(&all, sizeof(all), tool, "cell_offered_tool", err) < 0)
		return -1;
	if (!all.name || !is_name(all.name) || !all.fn)
		return cell_fail(err, CELL_E_INVALID, 0, "a tool needs a function and a name of letters, digits, '_', '-' and '.'");
	if (cell__mcp_tools_is_ours(all.name))
		return cell_fail(err, CELL_E_EXISTS, 0, "the server has a tool \"%.100s\" itself", all.name);
	offer = make_offer(CELL__MCP_OFFERS_TOOL, all.name, all.scope, all.principal, err);
	if (!offer)
		return -1;
	offer->fn = all.fn;
	offer->arg = all.arg;
	offer->tool = (struct cell__mcp_tool){ .name = offer->name, .run = cell__mcp_offer_run, .offer = offer };
	json_object_set_new(offer->entry, "name", json_string(all.name));
	if (add_text(offer->entry, "title", all.title, err) < 0 || add_text(offer->entry, "description", all.description, err) < 0 ||
	    add_json(offer->entry, "inputSchema", all.input_schema ? all.input_schema : "{\"type\":\"object\"}", JSON_OBJECT, "tool", err) <
		    0 ||
	    add_json(offer->entry, "outputSchema", all.output_schema, JSON_OBJECT, "tool", err) < 0 ||
	    add_json(offer->entry, "annotations", all.annotations, JSON_OBJECT, "tool", err) < 0 || read_needs(all.needs, offer, err) < 0) {
		cell__mcp_offer_unref(offer);
		return -1;
	}
	schema = json_object_get(offer->entry, "inputSchema");
	if (cell__param_headers_check(schema, &wrong) < 0) {
		cell__mcp_offer_unref(offer);
		return cell_fail(err, CELL_E_INVALID, 0, "input_schema of the tool \"%.100s\": %s", all.name, wrong);
	}
	offer->schema = json_incref(schema);
	return publish(server, offer, err);
}

int cell_mcp_server_offer_resource(struct cell_mcp_server *server, const struct cell_offered_resource *resource, struct cell_error *err)
{
	struct cell_offered_resource all = CELL_OFFERED_RESOURCE_INIT;
	struct cell__mcp_offer *offer;
	int n;

	if (cell__require(err, server, resource) < 0 || cell__sized_read(&all, sizeof(all), resource, "cell_offered_resource", err) < 0)
		return -1;
	n = all.uri ? cell__mcp_template_check(all.uri) : -1;
	if (n < 0 || !all.fn)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "a resource needs a function and a URI like app://x or a template like app://x/{id}");
	if (!strncmp(all.uri, "workcell:", 9))
		return cell_fail(err, CELL_E_INVALID, 0, "URIs that begin with workcell: are the server's own");
	offer = make_offer(CELL__MCP_OFFERS_RESOURCE, all.uri, all.scope, all.principal, err);
	if (!offer)
		return -1;
	offer->is_template = n > 0;
	offer->fn = all.fn;
	offer->complete = all.complete;
	offer->arg = all.arg;
	offer->mime_type = all.mime_type ? cell__strdup(all.mime_type) : NULL;
	json_object_set_new(offer->entry, n > 0 ? "uriTemplate" : "uri", json_string(all.uri));
	if (add_text(offer->entry, "name", all.name ? all.name : all.uri, err) < 0 || add_text(offer->entry, "title", all.title, err) < 0 ||
	    add_text(offer->entry, "description", all.description, err) < 0 || add_text(offer->entry, "mimeType", all.mime_type, err) < 0 ||
	    add_json(offer->entry, "annotations", all.annotations, JSON_OBJECT, "resource", err) < 0 ||
	    read_needs(all.needs, offer, err) < 0) {
		cell__mcp_offer_unref(offer);
		return -1;
	}
	return publish(server, offer, err);
}

static bool are_arguments(const json_t *arguments)
{
	const json_t *argument;
	size_t i;

	json_array_foreach(arguments, i, argument) {
		if (!json_is_string(json_object_get(argument, "name")))
			return false;
	}
	return true;
}

int cell_mcp_server_offer_prompt(struct cell_mcp_server *server, const struct cell_offered_prompt *prompt, struct cell_error *err)
{
	struct cell_offered_prompt all = CELL_OFFERED_PROMPT_INIT;
	struct cell__mcp_offer *offer;

	if (cell__require(err, server, prompt) < 0 || cell__sized_read(&all, sizeof(all), prompt, "cell_offered_prompt", err) < 0)
		return -1;
	if (!all.name || !is_name(all.name) || !all.fn)
		return cell_fail(err, CELL_E_INVALID, 0, "a prompt needs a function and a name of letters, digits, '_', '-' and '.'");
	offer = make_offer(CELL__MCP_OFFERS_PROMPT, all.name, all.scope, all.principal, err);
	if (!offer)
		return -1;
	offer->fn = all.fn;
	offer->complete = all.complete;
	offer->arg = all.arg;
	json_object_set_new(offer->entry, "name", json_string(all.name));
	if (add_text(offer->entry, "title", all.title, err) < 0 || add_text(offer->entry, "description", all.description, err) < 0 ||
	    add_json(offer->entry, "arguments", all.arguments, JSON_ARRAY, "prompt", err) < 0 || read_needs(all.needs, offer, err) < 0) {
		cell__mcp_offer_unref(offer);
		return -1;
	}
	if (!are_arguments(json_object_get(offer->entry, "arguments"))) {
		cell__mcp_offer_unref(offer);
		return cell_fail(err, CELL_E_INVALID, 0, "each argument of a prompt is an object with a \"name\"");
	}
	return publish(server, offer, err);
}

int cell_mcp_server_withdraw(struct cell_mcp_server *server, const char *kind, const char *name, struct cell_error *err)
{
	static const char *const kinds[] = { "tool", "resource", "prompt", NULL };
	struct cell__mcp_offer *offer = NULL;
	unsigned i = 0;

	if (cell__require(err, server, kind, name) < 0)
		return -1;
	while (kinds[i] && strcmp(kinds[i], kind))
		i++;
	if (!kinds[i])
		return cell_fail(err, CELL_E_INVALID, 0, "unknown kind \"%.40s\": tool, resource or prompt", kind);
	pthread_mutex_lock(&server->lock);
	for (struct cell__mcp_offer **at = &server->offers; *at && !offer; at = *at ? &(*at)->next : at) {
		if ((*at)->kind == (enum cell__mcp_offer_kind)i && !strcmp((*at)->name, name)) {
			offer = *at;
			*at = offer->next;
			break;
		}
	}
	if (offer)
		cell__mcp_tell_offer(server, offer);
	cell__mcp_offer_unref(offer);
	pthread_mutex_unlock(&server->lock);
	return offer ? 0 : cell_fail(err, CELL_E_NOT_FOUND, 0, "the server does not offer a %s \"%.100s\"", kind, name);
}

int cell_mcp_server_resource_changed(struct cell_mcp_server *server, const char *uri, struct cell_error *err)
{
	if (cell__require(err, server, uri) < 0)
		return -1;
	pthread_mutex_lock(&server->lock);
	cell__mcp_tell_updated(server, uri);
	pthread_mutex_unlock(&server->lock);
	return 0;
}

/* ---- arguments of a tool ---- */

static bool has_type(const json_t *value, const char *type)
{
	if (!strcmp(type, "number"))
		return json_is_number(value);
	if (!strcmp(type, "integer"))
		return json_is_integer(value) || (json_is_real(value) && json_real_value(value) == (double)(int64_t)json_real_value(value));
	return (!strcmp(type, "string") && json_is_string(value)) || (!strcmp(type, "boolean") && json_is_boolean(value)) ||
	       (!strcmp(type, "array") && json_is_array(value)) || (!strcmp(type, "object") && json_is_object(value)) ||
	       (!strcmp(type, "null") && json_is_null(value));
}

/* Keywords that we do not know are left to the function. */
static bool fits(const json_t *schema, const json_t *value)
{
	const json_t *type = json_object_get(schema, "type"), *each;
	size_t i;

	if (json_is_string(type))
		return has_type(value, json_string_value(type));
	json_array_foreach(type, i, each) {
		if (json_is_string(each) && has_type(value, json_string_value(each)))
			return true;
	}
	return !json_array_size(type);
}

json_t *cell__mcp_offer_check(const struct cell__mcp_offer *offer, const json_t *args, struct cell__buf *message)
{
	const json_t *properties = json_object_get(offer->schema, "properties"), *required = json_object_get(offer->schema, "required");
	json_t *all = json_is_object(args) ? json_deep_copy(args) : json_object(), *value;
	const json_t *name;
	const char *key;
	size_t i;

	json_array_foreach(required, i, name) {
		if (json_is_string(name) && !json_object_get(all, json_string_value(name)) && !message->size)
			cell__buf_printf(message, "argument '%.100s' is missing", json_string_value(name));
	}
	json_object_foreach(all, key, value) {
		const json_t *schema = json_object_get(properties, key);

		if (message->size)
			break;
		if (!schema && json_is_false(json_object_get(offer->schema, "additionalProperties")))
			cell__buf_printf(message, "unknown argument '%.100s'", key);
		else if (!fits(schema, value))
			cell__buf_printf(message, "argument '%.100s' has the wrong type", key);
	}
	if (!message->size)
		return all;
	CELL_AUTO_FREE char *text = json_dumps(offer->schema, JSON_COMPACT);
	if (text)
		cell__buf_printf(message, "; the arguments of %s are %.4000s", offer->name, text);
	json_decref(all);
	return NULL;
}

/* ---- calls ---- */

const char *cell_mcp_call_name(const struct cell_mcp_call *call)
{
	return call ? call->name : "";
}

const char *cell_mcp_call_args(const struct cell_mcp_call *call)
{
	return call ? call->args : "{}";
}

const char *cell_mcp_call_principal(const struct cell_mcp_call *call)
{
	return call ? cell__mcp_principal(call->job->handle->owner) : "";
}

const char *cell_mcp_call_client(const struct cell_mcp_call *call)
{
	return call ? call->job->client : "";
}

/* With the lock held. */
static bool is_cancelled(const struct cell__mcp_job *job)
{
	return job->stopped || (job->request ? job->request->cancelled : !job->parked);
}

int cell_mcp_call_cancelled(const struct cell_mcp_call *call)
{
	struct cell_mcp_server *server;
	bool cancelled;

	if (!call)
		return 0;
	server = call->job->handle->server;
	pthread_mutex_lock(&server->lock);
	cancelled = is_cancelled(call->job);
	pthread_mutex_unlock(&server->lock);
	return cancelled;
}

int cell_mcp_call_become_task(struct cell_mcp_call *call)
{
	bool became;

	if (!call || call->completes || call->offer->kind != CELL__MCP_OFFERS_TOOL)
		return 0;
	pthread_mutex_lock(&call->job->handle->server->lock);
	became = cell__mcp_job_become_task(call->job);
	pthread_mutex_unlock(&call->job->handle->server->lock);
	return became;
}

/* With the lock held.  NULL: nobody waits, or the client does not keep up. */
static struct cell__mcp_pending *listener_of(const struct cell_mcp_call *call)
{
	struct cell__mcp_pending *request = call->job->request;

	if (!request || request->cancelled || request->peer->sink.full(request->peer->sink.arg, request->unit->stream))
		return NULL;
	return request;
}

void cell_mcp_call_progress(struct cell_mcp_call *call, double progress, double total, const char *message)
{
	struct cell__mcp_pending *request;
	struct cell__mcp_job *job = call ? call->job : NULL;
	json_t *params;

	if (!call)
		return;
	pthread_mutex_lock(&call->job->handle->server->lock);
	job->told_us = cell__now_us();
	/* Signs of life that were told before it count too: progress has to grow. */
	if (!job->reports && job->progress > 0)
		job->progress_base = job->progress + 1;
	job->reports = true;
	job->progress = job->progress_base + progress;
	request = listener_of(call);
	if (request && request->token) {
		params = json_pack("{s:O, s:f}", "progressToken", request->token, "progress", job->progress);
		if (params && total >= 0)
			json_object_set_new(params, "total", json_real(job->progress_base + total));
		if (params && message)
			json_object_set_new(params, "message", json_string(message));
		cell__mcp_peer_notify(request->peer, request->unit->stream, "notifications/progress", params);
	}
	pthread_mutex_unlock(&call->job->handle->server->lock);
}

int cell_mcp_call_log(struct cell_mcp_call *call, const char *level, const char *logger, const char *data_json, struct cell_error *err)
{
	struct cell__mcp_pending *request;
	int number = cell__mcp_log_level(level), wanted;
	json_t *data;

	if (cell__require(err, call, level, data_json) < 0)
		return -1;
	data = json_loads(data_json, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
	if (number < 0 || !data) {
		json_decref(data);
		return cell_fail(err, CELL_E_INVALID, 0,
				 number < 0 ? "unknown level of a log message" : "data of a log message is not JSON");
	}
	pthread_mutex_lock(&call->job->handle->server->lock);
	request = listener_of(call);
	/* An earlier revision leaves it to the server when its client has not set a level. */
	wanted = !request ? -1 : request->unit->modern ? request->log_level : request->peer->log_level < 0 ? 1 : request->peer->log_level;
	if (request && wanted >= 0 && number >= wanted) {
		json_t *params = json_pack("{s:s, s:O}", "level", level, "data", data);

		if (params && logger)
			json_object_set_new(params, "logger", json_string(logger));
		cell__mcp_peer_notify(request->peer, request->unit->stream, "notifications/message", params);
	}
	pthread_mutex_unlock(&call->job->handle->server->lock);
	json_decref(data);
	return 0;
}

/* ---- questions ---- */

void cell__mcp_offer_answered(struct cell_mcp_server *server, uint64_t id, const json_t *result)
{
	pthread_mutex_lock(&server->lock);
	for (struct cell__mcp_asking *asking = server->asking; asking; asking = asking->next) {
		if (asking->id == id && !asking->done) {
			asking->done = true;
			asking->answer = json_deep_copy(result);
		}
	}
	pthread_cond_broadcast(&server->changed);
	pthread_mutex_unlock(&server->lock);
}

/* With the lock held, which is released in between.  -1: the client cannot be asked. */
static int put_question(struct cell_mcp_call *call, json_t *form, uint64_t id)
{
	struct cell__mcp_job *job = call->job;
	struct cell_mcp_server *server = job->handle->server;
	struct cell__mcp_pending *request = job->request;
	json_t *result = NULL;

	if (cell__mcp_job_asks(job) || (request && request->unit->modern && request->elicits)) {
		if (!cell__mcp_job_park(job, form, id, true, &result))
			return -1;
		request = result ? cell__mcp_take_request(job) : NULL;
		if (request) {
			pthread_mutex_unlock(&server->lock);
			cell__mcp_pending_answer(request, result);
			pthread_mutex_lock(&server->lock);
		}
		return 0;
	}
	if (request && request->unit->modern && !job->lacking)
		job->lacking = json_pack("{s:{}}", ASKING);
	if (!request || request->unit->modern || !request->peer->elicits)
		return -1;
	json_object_del(form, "name"); /* earlier revisions know a question by the id of its request */
	return cell__mcp_peer_ask(request->peer, request->unit->stream, json_incref(form), job->handle->serial, id, true) ? 0 : -1;
}

static json_t *read_form(const char *params_json, struct cell_error *err)
{
	json_t *form = json_loads(params_json, JSON_REJECT_DUPLICATES, NULL);

	if (json_is_string(json_object_get(form, "message")) && json_is_object(json_object_get(form, "requestedSchema")))
		return form;
	json_decref(form);
	cell_fail(err, CELL_E_INVALID, 0, "a question must be an object with \"message\" and \"requestedSchema\"");
	return NULL;
}

/* With the lock held. */
static void forget_question(struct cell_mcp_call *call, struct cell__mcp_asking *asking)
{
	struct cell_mcp_server *server = call->job->handle->server;
	struct cell__mcp_asking **at = &server->asking;

	while (*at != asking)
		at = &(*at)->next;
	*at = asking->next;
	if (asking->done)
		return;
	cell__mcp_job_unpark(call->job, asking->id);
	for (struct cell__mcp_peer *peer = server->peers; peer; peer = peer->next)
		cell__mcp_peer_forget(peer, NULL, call->job->handle->serial, asking->id, "the question is no longer open");
}

int cell_mcp_call_ask(struct cell_mcp_call *call, const char *params_json, int64_t timeout_ms, char **ret_json, struct cell_error *err)
{
	struct cell__mcp_asking asking = { 0 };
	struct cell_mcp_server *server;
	int64_t until_us;
	json_t *form;
	char *text;
	int status;

	if (cell__require(err, call, params_json, ret_json) < 0)
		return -1;
	form = read_form(params_json, err);
	if (!form)
		return -1;
	server = call->job->handle->server;
	until_us = cell__now_us() + (timeout_ms > 0 ? timeout_ms : 0) * 1000;
	pthread_mutex_lock(&server->lock);
	asking = (struct cell__mcp_asking){ .id = CELL_MCP_OWN_QUESTION | ++server->next_question, .next = server->asking };
	server->asking = &asking;
	status = is_cancelled(call->job)                   ? cell_fail(err, CELL_E_CANCELLED, 0, "the client no longer waits")
		 : put_question(call, form, asking.id) < 0 ? cell_fail(err, CELL_E_DISABLED, 0, "the client cannot ask its user")
							   : 0;
	while (!status && !asking.done && !is_cancelled(call->job) && cell__now_us() < until_us)
		cell__mcp_cond_wait(&server->changed, &server->lock, until_us);
	forget_question(call, &asking);
	pthread_mutex_unlock(&server->lock);
	json_decref(form);
	if (status)
		return -1;
	text = json_is_object(asking.answer) ? json_dumps(asking.answer, JSON_COMPACT) : cell__strdup("{\"action\":\"cancel\"}");
	json_decref(asking.answer);
	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	*ret_json = text;
	return 0;
}

/* ---- answers ---- */

static bool is_message(const json_t *message)
{
	const char *role = json_string_value(json_object_get(message, "role"));

	return role && (!strcmp(role, "user") || !strcmp(role, "assistant")) && cell__mcp_is_content(json_object_get(message, "content"));
}

/* The reason why it cannot be sent; NULL: it can. */
static const char *check_result(const struct cell_mcp_call *call, const json_t *result)
{
	const json_t *list, *each;
	size_t i;

	if (!json_is_object(result))
		return "the answer is not a JSON object";
	if (call->completes) {
		list = json_object_get(result, "values");
		json_array_foreach(list, i, each) {
			if (!json_is_string(each))
				return "values must be strings";
		}
		return json_is_array(list) ? NULL : "the answer has no array \"values\"";
	}
	switch (call->offer->kind) {
	case CELL__MCP_OFFERS_TOOL:
		return cell__mcp_is_content_list(json_object_get(result, "content"))
			       ? NULL
			       : "the answer of a tool needs \"content\", an array of content of the protocol";
	case CELL__MCP_OFFERS_RESOURCE:
		list = json_object_get(result, "contents");
		json_array_foreach(list, i, each) {
			if (!cell__mcp_is_contents(each))
				return "contents need \"uri\" and \"text\" or \"blob\"";
		}
		return json_is_array(list) ? NULL : "the answer of a resource has no array \"contents\"";
	default:
		list = json_object_get(result, "messages");
		json_array_foreach(list, i, each) {
			if (!is_message(each))
				return "messages need \"role\" and \"content\"";
		}
		return json_is_array(list) ? NULL : "the answer of a prompt has no array \"messages\"";
	}
}

/* Takes the result over. */
static int set_result(struct cell_mcp_call *call, json_t *result, struct cell_error *err)
{
	const char *wrong = result ? check_result(call, result) : NULL;

	if (!result)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (wrong) {
		json_decref(result);
		return cell_fail(err, CELL_E_INVALID, 0, "%s", wrong);
	}
	json_decref(call->result);
	call->result = result;
	return 0;
}

int cell_mcp_call_answer(struct cell_mcp_call *call, const char *result_json, struct cell_error *err)
{
	json_t *result;

	if (cell__require(err, call, result_json) < 0)
		return -1;
	result = json_loads(result_json, JSON_REJECT_DUPLICATES, NULL);
	return result ? set_result(call, result, err) : cell_fail(err, CELL_E_INVALID, 0, "the answer is not JSON");
}

int cell_mcp_call_answer_text(struct cell_mcp_call *call, const char *text, size_t size, struct cell_error *err)
{
	json_t *words;

	if (cell__require(err, call) < 0 || (size && cell__require(err, text) < 0))
		return -1;
	if (!cell__utf8_ok(text, size))
		return cell_fail(err, CELL_E_INVALID, 0, "the text is not UTF-8");
	if (call->completes)
		return cell_fail(err, CELL_E_INVALID, 0, "a completion is answered with JSON");
	words = json_stringn(size ? text : "", size);
	if (call->offer->kind == CELL__MCP_OFFERS_TOOL)
		return set_result(call, json_pack("{s:[{s:s, s:o}]}", "content", "type", "text", "text", words), err);
	if (call->offer->kind == CELL__MCP_OFFERS_PROMPT)
		return set_result(
			call, json_pack("{s:[{s:s, s:{s:s, s:o}}]}", "messages", "role", "user", "content", "type", "text", "text", words),
			err);
	return set_result(
		call, json_pack("{s:[{s:s, s:o, s:s*}]}", "contents", "uri", call->name, "text", words, "mimeType", call->offer->mime_type),
		err);
}

int cell_mcp_call_answer_bytes(struct cell_mcp_call *call, const void *bytes, size_t size, const char *mime_type, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf blob = CELL_BUF_INIT;
	json_t *content;

	if (cell__require(err, call, mime_type) < 0 || (size && cell__require(err, bytes) < 0))
		return -1;
	if (call->completes || call->offer->kind == CELL__MCP_OFFERS_PROMPT)
		return cell_fail(err, CELL_E_INVALID, 0, "only tools and resources are answered with bytes");
	if (call->offer->kind == CELL__MCP_OFFERS_TOOL) {
		content = cell__mcp_content("workcell://answer", mime_type, bytes, size);
		return set_result(call, content ? json_pack("{s:[o]}", "content", content) : NULL, err);
	}
	if (cell__buf_add_base64(&blob, bytes, size) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return set_result(call,
			  json_pack("{s:[{s:s, s:s#, s:s}]}", "contents", "uri", call->name, "blob", blob.size ? blob.data : "",
				    (int)blob.size, "mimeType", mime_type),
			  err);
}

/* ---- running ---- */

static int run_function(struct cell_mcp_call *call, struct cell_error *err)
{
	*err = (struct cell_error){ 0 };
	if (call->fn(call->offer->arg, call, err) < 0)
		return err->code ? -1 : cell_fail(err, CELL_E_IO, 0, "the function failed and did not say why");
	return call->result ? 0 : cell_fail(err, CELL_E_IO, 0, "the function did not answer");
}

static void run_lent(struct cell__lent_work *lent)
{
	struct cell_mcp_call *call = (struct cell_mcp_call *)lent;
	struct cell_error err;

	call->args = call->work.args;
	if (run_function(call, &err) < 0) {
		call->work.code = err.code;
		snprintf(call->work.message, sizeof(call->work.message), "%s", err.msg);
	} else {
		call->work.result = cell__take_ptr(call->result);
	}
}

/* The function failed for another reason than that its client cannot be asked. */
static void forgive(struct cell__mcp_job *job, const struct cell_error *err)
{
	if (err->code != CELL_E_DISABLED)
		json_decref(cell__take_ptr(job->lacking));
}

int cell__mcp_offer_run(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	struct cell_mcp_call call = { .work.lent.run = run_lent, .job = job, .offer = job->offer, .fn = job->offer->fn };
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	struct cell_session *session = cell__mcp_handle_session(job->handle, &err);
	json_t *result = NULL;
	int status = -1;

	call.name = job->offer->name;
	if (!session || cell__session_own_call(session, job->client, job, call.name, args, &call.work, job->canceller, &answer, &err) < 0) {
		cell__buf_printf(message, "%s: ", cell_code_word(err.code));
		cell__buf_add_str(message, answer.message ? answer.message : err.msg);
		out->code = err.code == CELL_E_PROTOCOL ? CELL_RPC_INTERNAL_ERROR : 0;
		forgive(job, &err);
	} else {
		result = json_loads(answer.json, JSON_ALLOW_NUL, NULL);
		status = 0;
	}
	if (!status && !cell__mcp_is_content_list(json_object_get(result, "content"))) {
		/* A middleware has replaced it. */
		status = -1;
		cell__buf_add_str(message, "the answer is not a result of the protocol");
	}
	if (!status) {
		out->content = json_incref(json_object_get(result, "content"));
		out->structured = json_incref(json_object_get(result, "structuredContent"));
		out->failed = json_is_true(json_object_get(result, "isError"));
	}
	json_decref(result);
	json_decref(call.result);
	json_decref(call.work.result);
	free(call.work.args);
	cell_answer_finish(&answer);
	return status;
}

int cell__mcp_offer_ask(struct cell__mcp_job *job, struct cell__mcp_offer *offer, bool completes, const char *name, const json_t *args,
			json_t **ret_result, struct cell_error *err)
{
	struct cell_mcp_call call = {
		.job = job, .offer = offer, .fn = completes ? offer->complete : offer->fn, .name = name, .completes = completes
	};
	json_t *lacking = completes ? NULL : cell__mcp_lacking(offer->needs, job->can);
	int status;

	if (lacking && job->modern)
		job->lacking = json_incref(lacking);
	json_decref(lacking);
	if (lacking)
		return cell_fail(err, CELL_E_DISABLED, 0, "%.150s needs capabilities that the client does not have", offer->name);
	call.args = json_dumps(args, JSON_COMPACT);
	status = call.args ? run_function(&call, err) : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	free(call.args);
	if (!status) {
		*ret_result = call.result;
	} else {
		json_decref(call.result);
		forgive(job, err);
	}
	return status;
}
