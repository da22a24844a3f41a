/*
 * Any bytes as the URL of a storage in Redis, as a workflow's value and as an artifact's entry there: they are understood or
 * refused, and what is understood keeps the promises that the store builds on.
 */
#define _GNU_SOURCE
#include "fuzz.h"
#include "storage/redis.h"

static void check_url(const char *text)
{
	struct cell__redis_url url;
	struct cell_error err = { 0 };
	if (cell__redis_url_parse(text, &url, &err) < 0) {
		MUST(err.code == CELL_E_INVALID || err.code == CELL_E_LIMIT);
		return;
	}
	MUST(!url.host != !url.path && url.port >= 0 && url.port <= 65535 && url.db >= 0);
	MUST(url.prefix && url.prefix[0] && strlen(url.prefix) <= CELL__REDIS_PREFIX_BYTES);
	MUST(url.shown && cell__utf8_ok(url.shown, strlen(url.shown)));
	/* The text that is shown has no room for a login. */
	const char *scheme = strstr(text, "://");
	MUST(scheme && strlen(url.shown) <= strlen(scheme) + 16);
	cell__redis_url_finish(&url);
}

static void check_workflow(const char *text, size_t size)
{
	struct cell__workflow_kept kept = { 0 };
	struct cell_error err = { 0 };
	if (cell__redis_workflow_parse(text, size, &kept, &err) == 0) {
		json_t *description = json_object_get(kept.entry, "description");
		MUST(kept.source.size <= CELL__STORE_SOURCE_BYTES && json_is_object(kept.entry));
		MUST(!description || strlen(json_string_value(description)) == json_string_length(description));
	} else {
		MUST(err.code == CELL_E_IO || err.code == CELL_E_LIMIT);
	}
	cell__buf_finish(&kept.source);
	json_decref(kept.entry);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1)
		return 0;
	const char *text = (const char *)data + 1;
	CELL_AUTO_FREE char *copy = cell__strndup(text, size - 1);
	if (data[0] % 3 == 0) {
		check_url(copy);
	} else if (data[0] % 3 == 1) {
		check_workflow(text, size - 1);
	} else {
		json_t *entry = cell__redis_entry_parse(text, size - 1);
		json_t *info = cell__artifact_info("a", "p:a", entry, "", cell__artifact_typed(entry) ? NULL : "text", 1);
		MUST(info && json_is_string(json_object_get(info, "description")) && json_is_string(json_object_get(info, "created_at")));
		MUST(json_is_string(json_object_get(json_object_get(info, "metadata"), "_data_type")));
		json_decref(info);
		json_decref(entry);
	}
	return 0;
}
