#include "storage/usage.h"

#include "base/hole.h"

#define ENTRY_BYTES 100 /* of an index, besides description and metadata */

void cell__usage_init(struct cell__usage *usage)
{
	*usage = (struct cell__usage){ 0 };
	pthread_mutex_init(&usage->lock, NULL);
	pthread_mutex_init(&usage->workflows, NULL);
}

void cell__usage_finish(struct cell__usage *usage)
{
	pthread_mutex_destroy(&usage->lock);
	pthread_mutex_destroy(&usage->workflows);
}

/* Under the lock. */
static int measure(struct cell__usage *usage, struct cell__store *store, struct cell_error *err)
{
	json_t *list = NULL, *info;
	size_t i;
	if (cell__artifact_list(store, &list, err) < 0)
		return -1;
	usage->bytes = usage->index_bytes = 0;
	usage->artifacts = (int64_t)json_array_size(list);
	json_array_foreach(list, i, info) {
		usage->bytes += json_integer_value(json_object_get(info, "size"));
		usage->index_bytes += ENTRY_BYTES + (int64_t)json_string_length(json_object_get(info, "description")) +
				      (int64_t)json_dumpb(json_object_get(info, "metadata"), NULL, 0, JSON_COMPACT);
	}
	json_decref(list);
	usage->known = true;
	return 0;
}

/* Under the lock: whether there is room for the request. A quantity that is not requested may be above its limit. */
static int check(const struct cell__usage *usage, const struct cell__host_limits *max, const struct cell__taken *more,
		 struct cell_error *err)
{
	const struct {
		int64_t used, more;
		uint64_t max;
		const char *words, *limit;
	} rows[] = {
		{ usage->artifacts + usage->open_artifacts, more->artifacts, max->artifacts, "artifacts", "storage_artifacts" },
		{ usage->bytes + usage->open_bytes, more->bytes, max->bytes, "bytes of artifacts", "storage" },
		{ usage->index_bytes + usage->open_index_bytes, more->index_bytes, max->index_bytes, "bytes of descriptions and metadata",
		  "storage_descriptions" },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (rows[i].more > 0 && (uint64_t)rows[i].used + (uint64_t)rows[i].more > rows[i].max)
			return cell_fail(err, CELL_E_LIMIT, 0,
					 "the storage is full: it contains %lld %s, and sandboxed code may use up to %llu; delete some, or "
					 "raise limits.%s in the sandbox policy",
					 (long long)rows[i].used, rows[i].words, (unsigned long long)rows[i].max, rows[i].limit);
	return 0;
}

int cell__usage_take(struct cell__usage *usage, struct cell__store *store, const struct cell__host_limits *max,
		     const struct cell__taken *more, struct cell__taken *taken, struct cell_error *err)
{
	struct cell__taken add = *more;
	struct cell_error full;
	int rc = 0;
	if (is_hole("storage"))
		return 0;
	add.index_bytes += add.artifacts * ENTRY_BYTES;
	pthread_mutex_lock(&usage->lock);
	if (!usage->known || check(usage, max, &add, &full) < 0)
		rc = measure(usage, store, err);
	if (rc == 0)
		rc = check(usage, max, &add, err);
	if (rc == 0) {
		usage->open_artifacts += add.artifacts;
		usage->open_bytes += add.bytes;
		usage->open_index_bytes += add.index_bytes;
		taken->artifacts += add.artifacts;
		taken->bytes += add.bytes;
		taken->index_bytes += add.index_bytes;
	}
	pthread_mutex_unlock(&usage->lock);
	return rc;
}

void cell__usage_drop(struct cell__usage *usage, struct cell__taken *taken)
{
	usage->open_artifacts -= taken->artifacts;
	usage->open_bytes -= taken->bytes;
	usage->open_index_bytes -= taken->index_bytes;
	*taken = (struct cell__taken){ 0 };
}

void cell__usage_keep(struct cell__usage *usage, struct cell__taken *taken)
{
	/* A list that is being made may have it or not: counting it once too often is found out before anything is refused. */
	pthread_mutex_lock(&usage->lock);
	usage->artifacts += taken->artifacts;
	usage->bytes += taken->bytes;
	usage->index_bytes += taken->index_bytes;
	pthread_mutex_unlock(&usage->lock);
	cell__usage_drop(usage, taken);
}

int cell__usage_begin_workflow(struct cell__usage *usage, struct cell__store *store, const struct cell__host_limits *max,
			       struct cell_error *err)
{
	json_t *list = NULL;
	pthread_mutex_lock(&usage->workflows);
	int rc = max->workflows == UINT64_MAX ? 0 : cell__workflow_list(store, &list, NULL, err);
	size_t count = json_array_size(list);
	json_decref(list);
	if (rc == 0 && count >= max->workflows && !is_hole("storage"))
		rc = cell_fail(err, CELL_E_LIMIT, 0,
			       "there are %zu workflows, and sandboxed code may have at most %llu; delete some, or raise "
			       "limits.storage_workflows in the sandbox policy",
			       count, (unsigned long long)max->workflows);
	if (rc < 0)
		pthread_mutex_unlock(&usage->workflows);
	return rc;
}

void cell__usage_workflow_made(struct cell__usage *usage)
{
	pthread_mutex_unlock(&usage->workflows);
}
