/*
 * Snapshots: a fork of a sandbox that nobody can run code in, and that new sandboxes are forked from.
 *
 * It outlives its source, and has the layer of files that the source had then: so sandboxes need a layer of their own (--workspace-mode
 * cow).  It counts as a session of its token, and ends after SNAPSHOT_S.
 */
#include "server/e2b/e2b.h"

#include <string.h>

#include "server/pool.h"

#define SNAPSHOT_S 86400
#define MAX_NAME CELL_POOL_MAX_GIVEN_NAME

static json_t *describe(const struct cell__e2b_sandbox *snapshot)
{
	json_t *info = json_pack("{s:s,s:[]}", "snapshotID", cell__e2b_id(snapshot), "names");

	if (snapshot->name)
		json_array_append_new(json_object_get(info, "names"), json_string(snapshot->name));
	return info;
}

static bool is_mine(const struct cell__request *request, const struct cell__served *served)
{
	return !strcmp(served->owner, request->who.name);
}

struct cell__e2b_sandbox *cell__e2b_snapshot_find(const struct cell__request *request, const char *name)
{
	/* The newest of a name is first. */
	for (const struct cell__served *served = request->server->sessions; served; served = served->next) {
		struct cell__e2b_sandbox *snapshot = cell__e2b_snapshot_by_id(request->server, served->id);

		if (snapshot && snapshot->is_snapshot && is_mine(request, served) &&
		    (!strcmp(served->id, name) || (snapshot->name && !strcmp(snapshot->name, name))))
			return snapshot;
	}
	return NULL;
}

/* ---- taking one ---- */

static void handle_taken(struct cell__request *request, struct cell__served **forks, size_t n)
{
	struct cell__e2b_sandbox *source = request->served->context ? request->served->context->sandbox : NULL, *snapshot = NULL;
	const char *name = json_string_value(json_object_get(request->json, "name"));

	(void)n; /* one */
	if (source)
		snapshot = cell__e2b_sandbox_create(forks[0], source->metadata, source->envs, source->network, SNAPSHOT_S, false);
	if (!snapshot || (name && !(snapshot->name = cell__strdup(name)))) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "the sandbox has ended, or there is no memory");
		cell__served_end(forks[0]);
		return;
	}
	if (name && !cell__pool_name(request->server, forks[0]->owner, name, forks[0]->id)) {
		cell__answer_fail(request, MHD_HTTP_TOO_MANY_REQUESTS, CELL_E_LIMIT,
				  "there are %u snapshots with names: remove some, or leave out the name", CELL_POOL_MAX_NAMED);
		cell__served_end(forks[0]);
		return;
	}
	snapshot->is_snapshot = true;
	strcpy(snapshot->source, cell__e2b_id(source));
	cell__answer_json(request, MHD_HTTP_CREATED, describe(snapshot));
}

void cell__e2b_handle_snapshot(struct cell__request *request)
{
	const char *mode = request->server->session.workspace_mode;
	const json_t *name;

	if (!cell__e2b_body(request) || !cell__e2b_find(request))
		return;
	name = json_object_get(request->json, "name");
	if (!mode || strcmp(mode, "cow"))
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_UNSUPPORTED,
				  "a snapshot keeps files only where sandboxes have a layer: start the server with --workspace-mode cow");
	else if (json_is_false(json_object_get(request->json, "memory")))
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_UNSUPPORTED,
				  "a snapshot has the memory of its sandbox: mode \"filesystem\" is not supported");
	else if (name && !json_is_null(name) &&
		 (!json_is_string(name) || !json_string_length(name) || json_string_length(name) > MAX_NAME ||
		  strlen(json_string_value(name)) != json_string_length(name)))
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "name must be a string of 1 to %u bytes", MAX_NAME);
	else
		cell__served_fork(request, 1, NULL, false, handle_taken);
}

/* ---- the others ---- */

void cell__e2b_answer_snapshots(struct cell__request *request, json_t *list)
{
	cell__answer_json(request, MHD_HTTP_OK, list);
}

void cell__e2b_handle_snapshots(struct cell__request *request)
{
	CELL_AUTO_FREE char *source = cell__e2b_query(request, "sandboxID"), *name = cell__e2b_query(request, "name");
	json_t *list = json_array();

	for (const struct cell__served *served = request->server->sessions; served; served = served->next) {
		const struct cell__e2b_sandbox *snapshot = cell__e2b_snapshot_by_id(request->server, served->id);

		if (snapshot && snapshot->is_snapshot && is_mine(request, served) && (!source || !strcmp(source, snapshot->source)) &&
		    (!name || !strcmp(name, served->id) || (snapshot->name && !strcmp(name, snapshot->name))))
			json_array_append_new(list, describe(snapshot));
	}
	if (request->part)
		cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:o}", "snapshots", list));
	else
		cell__e2b_answer_snapshots(request, list);
}

void cell__e2b_handle_snapshot_remove(struct cell__request *request)
{
	struct cell__e2b_sandbox *snapshot = cell__e2b_snapshot_find(request, request->params[0]);

	if (!snapshot) {
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "snapshot \"%.60s\" not found", request->params[0]);
		return;
	}
	cell__served_end(snapshot->contexts->served);
	cell__answer_none(request, MHD_HTTP_NO_CONTENT);
}

static void handle_restored(struct cell__request *request, struct cell__served **forks, size_t n)
{
	const struct cell__e2b_sandbox *snapshot = request->served->context ? request->served->context->sandbox : NULL;
	struct cell__e2b_sandbox *sandbox = NULL;

	(void)n; /* one */
	if (snapshot)
		sandbox = cell__e2b_sandbox_create(forks[0], json_object_get(request->kept, "metadata"), snapshot->envs, snapshot->network,
						   json_integer_value(json_object_get(request->kept, "timeout")),
						   json_is_true(json_object_get(request->json, "autoPause")));
	if (sandbox) {
		cell__answer_json(request, MHD_HTTP_CREATED, cell__e2b_admission(sandbox));
		return;
	}
	cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "the snapshot has ended, or there is no memory");
	cell__served_end(forks[0]);
}

void cell__e2b_restore(struct cell__request *request, struct cell__e2b_sandbox *snapshot)
{
	/* A kernel has its variables and its network from its birth. */
	if (json_object_size(json_object_get(request->kept, "envs")))
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_UNSUPPORTED,
				  "a sandbox from a snapshot has its variables: leave out envs, or give them with each cell");
	else if (request->network && (!snapshot->network || strcmp(request->network, snapshot->network)))
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_UNSUPPORTED,
				  "a sandbox from a snapshot has its network: leave out network and allow_internet_access");
	else if (cell__served_find(request, cell__e2b_id(snapshot), false))
		cell__served_fork(request, 1, NULL, false, handle_restored);
}
