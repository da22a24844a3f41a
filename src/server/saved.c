/*
 * GET /v1/saved: the saved sessions of a client, also those that are awake.  What owns one is the token and the workspace that made it, and a client
 * is shown those of the workspaces that its token may enter now.
 */
#include "server/api.h"

#include <string.h>
#include <time.h>

#include "durable/durable.h"

/* Of the server's directories and of other programs nothing is shown; NULL: not to this client. */
static json_t *show_saved(const struct cell__request *request, const json_t *item)
{
	const char *owner = json_string_value(json_object_get(item, "owner")), *slash = owner ? strrchr(owner, '/') : NULL;
	json_int_t ms = json_integer_value(json_object_get(item, "saved_ms"));
	time_t at = (time_t)(ms / 1000);
	char text[32];
	struct tm tm;

	if (!slash || !cell__token_may_enter(&request->server->tokens, &request->who, slash + 1) || !gmtime_r(&at, &tm))
		return NULL;
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
	return json_pack("{s:O,s:s%,s:o,s:s,s:O,s:O,s:O,s:O,s:O}", "session_id", json_object_get(item, "session_id"), "owner", owner,
			 (size_t)(slash - owner), "workspace_id", slash[1] ? json_string(slash + 1) : json_null(), "saved_at", text,
			 "cells", json_object_get(item, "cells"), "executor", json_object_get(item, "executor"), "form",
			 json_object_get(item, "form"), "bytes", json_object_get(item, "bytes"), "awake", json_object_get(item, "awake"));
}

/* On the loop's thread, where the tokens are. */
static void show_page(struct cell__lookup *reading)
{
	json_t *list = json_array(), *item;
	size_t i;

	json_array_foreach(json_object_get(reading->answer, "sessions"), i, item) {
		json_t *shown = show_saved(reading->request, item);

		if (shown)
			json_array_append_new(list, shown);
	}
	json_object_set_new(reading->answer, "sessions", list);
}

static void read_saved(struct cell__lookup *reading)
{
	const struct cell__request *request = reading->request;
	const json_t *limit = json_object_get(request->query, "limit");
	const bool all = json_is_true(json_object_get(request->query, "all")) && request->who.scopes & CELL_SCOPE_ADMIN;
	const struct cell__saved_search search = { .owner = all ? NULL : request->who.name,
						   .is_client = true,
						   .limit = limit ? (size_t)json_integer_value(limit) : CELL_DEFAULT_SAVED_PAGE,
						   .after = json_string_value(json_object_get(request->query, "after")) };

	reading->answer = cell__durable_page(reading->path, &search, reading->key, &reading->err);
}

void cell__handle_v1_saved(struct cell__request *request)
{
	const struct cell_session_options *session = &request->server->session;
	struct cell__lookup *reading;

	if (!session->saved_dir) {
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND,
				  "this server saves no sessions: start it with --saved DIR");
		return;
	}
	reading = cell__lookup_create(request, read_saved, session->saved_dir, session->saved_key);
	if (reading)
		reading->shown = show_page;
	cell__lookup_begin(reading);
}
