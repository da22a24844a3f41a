/*
 * News for clients that asked for it: lists that have changed, resources that have.
 *
 * A client of an earlier revision hears of lists once it is initialized, and of resources after resources/subscribe.  By revision 2026-07-28 a
 * request subscriptions/listen says what it wants, and its stream carries it.  Nobody hears of what is not offered to him.
 *
 * All with the lock held.  News of artifacts and workflows come on the engine's thread (cell__space_watch()), which must not wait: they become
 * messages in the sink at once, and a client that does not keep up misses them.
 */
#include "mcp/server/server.h"

#include <string.h>

#include "mcp/server/uri.h"

/* ---- who wants what ---- */

bool cell__mcp_may_subscribe(struct cell__mcp_peer *peer, const char *uri)
{
	return (peer->server->opts.storage && (!strncmp(uri, CELL_MCP_ARTIFACTS, strlen(CELL_MCP_ARTIFACTS)) ||
					       !strncmp(uri, CELL_MCP_WORKFLOWS, strlen(CELL_MCP_WORKFLOWS)))) ||
	       cell__mcp_resource_find(peer->server, uri, peer->owner, atomic_load(&peer->scopes), NULL);
}

const char *cell__mcp_subscribe(struct cell__mcp_peer *peer, const json_t *params, bool on)
{
	const json_t *uri = json_object_get(params, "uri");

	if (!json_is_string(uri) || strlen(json_string_value(uri)) != json_string_length(uri) || json_string_length(uri) > CELL_MCP_MAX_URI)
		return "params.uri must be a URI";
	if (!on) {
		json_object_del(peer->subscribed, json_string_value(uri));
		return NULL;
	}
	if (!cell__mcp_may_subscribe(peer, json_string_value(uri)))
		return "not_found: no such resource";
	if (!peer->subscribed)
		peer->subscribed = json_object();
	if (json_object_size(peer->subscribed) >= CELL_MCP_MAX_URIS && !json_object_get(peer->subscribed, json_string_value(uri)))
		return "too many subscriptions: unsubscribe from some";
	return json_object_set_new(peer->subscribed, json_string_value(uri), json_true()) < 0 ? "out of memory" : NULL;
}

/* Those of its tasks. */
static json_t *honour_tasks(struct cell__mcp_peer *peer, const json_t *ids)
{
	json_t *kept = json_array();
	const json_t *id;
	size_t i;

	json_array_foreach(ids, i, id) {
		json_t *task = json_is_string(id) && json_array_size(kept) < CELL_MCP_MAX_URIS
				       ? cell__mcp_task_get(peer, json_string_value(id))
				       : NULL;

		if (task)
			json_array_append(kept, (json_t *)id);
		json_decref(task);
	}
	return kept;
}

json_t *cell__mcp_honour(struct cell__mcp_peer *peer, const json_t *wanted)
{
	static const char *const lists[] = { "toolsListChanged", "promptsListChanged", "resourcesListChanged" };
	const json_t *uris = json_object_get(wanted, "resourceSubscriptions"), *uri;
	json_t *honoured = json_object(), *kept = json_array(), *tasks = honour_tasks(peer, json_object_get(wanted, "taskIds"));
	size_t i;

	for (i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
		if (json_is_true(json_object_get(wanted, lists[i])) && cell__mcp_has_lists(peer->server, lists[i]))
			json_object_set_new(honoured, lists[i], json_true());
	}
	json_array_foreach(uris, i, uri) {
		if (json_is_string(uri) && json_string_length(uri) <= CELL_MCP_MAX_URI && json_array_size(kept) < CELL_MCP_MAX_URIS &&
		    strlen(json_string_value(uri)) == json_string_length(uri) && cell__mcp_may_subscribe(peer, json_string_value(uri)))
			json_array_append(kept, (json_t *)uri);
	}
	if (json_array_size(kept))
		json_object_set(honoured, "resourceSubscriptions", kept);
	if (json_array_size(tasks))
		json_object_set(honoured, "taskIds", tasks);
	json_decref(kept);
	json_decref(tasks);
	return honoured;
}

/* ---- telling ---- */

static void tell(struct cell__mcp_peer *peer, const struct cell__mcp_pending *listening, const char *method, json_t *params)
{
	void *stream = listening ? listening->unit->stream : NULL;

	if (params && listening)
		json_object_set_new(params, "_meta", json_pack("{s:O}", CELL_MCP_META "subscriptionId", listening->id));
	if (params && !peer->sink.full(peer->sink.arg, stream))
		cell__mcp_peer_notify(peer, stream, method, json_incref(params));
	json_decref(params);
}

/* offer NULL: the list is everybody's. */
static void tell_list(struct cell_mcp_server *server, const char *kind, const struct cell__mcp_offer *offer)
{
	char method[64], name[64];

	snprintf(method, sizeof(method), "notifications/%s/list_changed", kind);
	snprintf(name, sizeof(name), "%sListChanged", kind);
	for (struct cell__mcp_peer *peer = server->peers; peer; peer = peer->next) {
		if (offer && !cell__mcp_offer_is_for(offer, peer->owner, atomic_load(&peer->scopes)))
			continue;
		if (peer->hears)
			tell(peer, NULL, method, json_object());
		for (const struct cell__mcp_pending *request = peer->requests; request; request = request->next) {
			if (json_is_true(json_object_get(request->listens, name)))
				tell(peer, request, method, json_object());
		}
	}
}

void cell__mcp_tell_offer(struct cell_mcp_server *server, const struct cell__mcp_offer *offer)
{
	tell_list(server,
		  offer->kind == CELL__MCP_OFFERS_TOOL     ? "tools"
		  : offer->kind == CELL__MCP_OFFERS_PROMPT ? "prompts"
							   : "resources",
		  offer);
}

static bool has_uri(const json_t *list, const char *uri)
{
	const json_t *each;
	size_t i;

	json_array_foreach(list, i, each) {
		if (!strcmp(json_string_value(each), uri))
			return true;
	}
	return false;
}

void cell__mcp_tell_updated(struct cell_mcp_server *server, const char *uri)
{
	for (struct cell__mcp_peer *peer = server->peers; peer; peer = peer->next) {
		bool may = cell__mcp_may_subscribe(peer, uri); /* still: its token may have lost a scope */

		if (may && peer->hears && json_object_get(peer->subscribed, uri))
			tell(peer, NULL, "notifications/resources/updated", json_pack("{s:s}", "uri", uri));
		for (const struct cell__mcp_pending *request = may ? peer->requests : NULL; request; request = request->next) {
			if (has_uri(json_object_get(request->listens, "resourceSubscriptions"), uri))
				tell(peer, request, "notifications/resources/updated", json_pack("{s:s}", "uri", uri));
		}
	}
}

static void tell_task(struct cell__mcp_peer *peer, const struct cell__mcp_pending *request, const char *id)
{
	json_t *task = cell__mcp_task_get(peer, id);

	if (task)
		tell(peer, request, "notifications/tasks", task);
}

void cell__mcp_tell_task(struct cell_mcp_server *server, const char *owner, const char *id)
{
	for (struct cell__mcp_peer *peer = server->peers; peer; peer = peer->next) {
		for (const struct cell__mcp_pending *request = strcmp(peer->owner, owner) ? NULL : peer->requests; request;
		     request = request->next) {
			if (has_uri(json_object_get(request->listens, "taskIds"), id))
				tell_task(peer, request, id);
		}
	}
}

void cell__mcp_tell_tasks(struct cell__mcp_pending *request)
{
	const json_t *id;
	size_t i;

	json_array_foreach(json_object_get(request->listens, "taskIds"), i, id) {
		json_t *task = cell__mcp_task_get(request->peer, json_string_value(id));
		const char *status = json_string_value(json_object_get(task, "status"));

		if (status && strcmp(status, "working"))
			tell(request->peer, request, "notifications/tasks", json_incref(task));
		json_decref(task);
	}
}

void cell__mcp_storage_changed(void *arg, enum cell__op op, const char *name)
{
	struct cell_mcp_server *server = arg;
	bool workflow = op == CELL__OP_WORKFLOWS_CREATE || op == CELL__OP_WORKFLOWS_DELETE;
	CELL_AUTO_BUF struct cell__buf uri = CELL_BUF_INIT;

	if (!server->opts.storage || cell__mcp_uri_add(&uri, workflow ? CELL_MCP_WORKFLOWS : CELL_MCP_ARTIFACTS, name))
		return; /* without memory clients hear a little less */
	pthread_mutex_lock(&server->lock);
	cell__mcp_tell_updated(server, uri.data);
	tell_list(server, "resources", NULL);
	if (workflow)
		tell_list(server, "prompts", NULL);
	pthread_mutex_unlock(&server->lock);
}

/* ---- what there is ---- */

bool cell__mcp_has_lists(const struct cell_mcp_server *server, const char *list)
{
	if (!strcmp(list, "toolsListChanged"))
		return cell__mcp_offers_any(server, CELL__MCP_OFFERS_TOOL);
	if (server->opts.storage)
		return true;
	return cell__mcp_offers_any(server, strcmp(list, "promptsListChanged") ? CELL__MCP_OFFERS_RESOURCE : CELL__MCP_OFFERS_PROMPT);
}

json_t *cell__mcp_capabilities(struct cell_mcp_server *server, bool modern)
{
	json_t *all = json_pack("{s:{}, s:{}}", "tools", "logging");
	bool tools, resources, prompts;

	pthread_mutex_lock(&server->lock);
	tools = cell__mcp_has_lists(server, "toolsListChanged");
	resources = cell__mcp_has_lists(server, "resourcesListChanged");
	prompts = cell__mcp_has_lists(server, "promptsListChanged");
	pthread_mutex_unlock(&server->lock);
	if (all && tools)
		json_object_set_new(all, "tools", json_pack("{s:b}", "listChanged", true));
	if (all && resources)
		json_object_set_new(all, "resources", json_pack("{s:b, s:b}", "subscribe", true, "listChanged", true));
	if (all && prompts)
		json_object_set_new(all, "prompts", json_pack("{s:b}", "listChanged", true));
	if (all && (resources || prompts))
		json_object_set_new(all, "completions", json_object());
	if (all && modern)
		json_object_set_new(all, "extensions", json_pack("{s:{}}", CELL_MCP_TASKS));
	return all;
}
