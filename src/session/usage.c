#include "session/usage.h"

#include "core/hole.h"

#define ENTRY_BYTES 100 /* of an index, besides description and metadata */

void cell__usage_init(struct cell__usage *usage)
{
	*usage = (struct cell__usage){ 0 };
	pthread_mutex_init(&usage->lock, NULL);
}

void cell__usage_finish(struct cell__usage *usage)
{
	pthread_mutex_destroy(&usage->lock);
}

/* Under the lock. */
static int measure(struct cell__usage *usage, struct cell__store *store, struct cell_error *err)
{
	json_t *list = NULL, *info;
	size_t i;
	if (cell__artifact_list(store, &list, err) < 0)
		return -1;
	usage->bytes = usage->index_bytes = 0;
	usage->artifacts = json_array_size(list);
	json_array_foreach(list, i, info) {
		usage->bytes += json_integer_value(json_object_get(info, "size"));
		usage->index_bytes += ENTRY_BYTES + (int64_t)json_string_length(json_object_get(info, "description")) +
				      (int64_t)json_dumpb(json_object_get(info, "metadata"), NULL, 0, JSON_COMPACT);
	}
	json_decref(list);
	usage->known = true;
	return 0;
}

static bool is_full(const struct cell__usage *usage)
{
	return usage->bytes >= CELL_LIMIT_STORAGE_BYTES || usage->artifacts >= CELL_LIMIT_STORAGE_ARTIFACTS ||
	       usage->index_bytes >= CELL_LIMIT_STORAGE_INDEX_BYTES;
}

int cell__usage_take(struct cell__usage *usage, struct cell__store *store, size_t artifacts, int64_t bytes, int64_t index_bytes,
		     struct cell_error *err)
{
	int rc = 0;
	if (is_hole("storage"))
		return 0;
	pthread_mutex_lock(&usage->lock);
	if (!usage->known || is_full(usage))
		rc = measure(usage, store, err);
	if (rc == 0 && is_full(usage))
		rc = cell_fail(err, CELL_E_LIMIT, 0,
			       "the storage is full for this session: %zu artifacts, %lld MiB, %lld KiB of descriptions and metadata "
			       "(at most %u, %lld MiB, %d KiB); delete some",
			       usage->artifacts, (long long)(usage->bytes >> 20), (long long)(usage->index_bytes >> 10),
			       CELL_LIMIT_STORAGE_ARTIFACTS, (long long)(CELL_LIMIT_STORAGE_BYTES >> 20),
			       CELL_LIMIT_STORAGE_INDEX_BYTES >> 10);
	if (rc == 0) {
		usage->artifacts += artifacts;
		usage->bytes += bytes;
		usage->index_bytes += artifacts * ENTRY_BYTES + index_bytes;
	}
	pthread_mutex_unlock(&usage->lock);
	return rc;
}

int cell__usage_check_workflows(struct cell__store *store, struct cell_error *err)
{
	json_t *list = NULL;
	if (is_hole("storage"))
		return 0;
	if (cell__workflow_list(store, &list, NULL, err) < 0)
		return -1;
	size_t count = json_array_size(list);
	json_decref(list);
	if (count < CELL_LIMIT_STORAGE_WORKFLOWS)
		return 0;
	return cell_fail(err, CELL_E_LIMIT, 0, "there are %zu workflows, a session may make at most %u: delete some", count,
			 CELL_LIMIT_STORAGE_WORKFLOWS);
}
