/* The work of operations on workflows and artifacts, on libuv's pool. */
#define _GNU_SOURCE
#include "storage/operation.h"

#include <errno.h>
#include <string.h>

#include "base/hole.h"
#include "storage/mark.h"

/* ---- arguments and errors ---- */

static const char *text_arg(struct cell__storage_op *op, const char *key, const char *otherwise)
{
	json_t *value = json_object_get(op->args, key);
	return json_is_string(value) ? json_string_value(value) : otherwise;
}

static void artifact_path(struct cell__storage_op *op)
{
	op->result = json_string(cell__store_artifacts_path(op->storage->store));
}

const char *cell__storage_error_type(const struct cell__operation *operation, const struct cell_error *err)
{
	bool artifact = operation->part == CELL__PART_ARTIFACTS;
	if (err->sys == EEXIST)
		return "FileExistsError";
	switch (err->code) {
	case CELL_E_INVALID:
		return "ValueError";
	case CELL_E_NOT_FOUND:
		return artifact ? "ArtifactNotFoundError" : "WorkflowNotFoundError";
	case CELL_E_NOMEM:
		return "MemoryError";
	default:
		return artifact ? "ArtifactError" : "WorkflowError";
	}
}

static void finish_op(struct cell__storage_op *op, int rc)
{
	if (rc < 0 && !op->error_type)
		op->error_type = ""; /* named on the loop's thread */
}

/* Reserves more space for an artifact. Trusted principals have no limit. */
static int take_room(struct cell__storage_op *op, struct cell__taken more, struct cell__taken *taken)
{
	return op->trusted ? 0 : cell__usage_take(&op->storage->usage, op->storage->store, &op->max, &more, taken, &op->err);
}

/* ---- workflows ---- */

static void workflow_list(struct cell__storage_op *op)
{
	finish_op(op, cell__workflow_list(op->storage->store, &op->result, NULL, &op->err));
}

static void workflow_search(struct cell__storage_op *op)
{
	json_int_t limit = json_integer_value(json_object_get(op->args, "limit"));
	finish_op(op, cell__workflow_search(op->storage->store, text_arg(op, "query", ""), limit > 0 ? (size_t)limit : 5, &op->result,
					    &op->err));
}

/* Whether content kept by this principal counts as confined code's. In a container all content does. */
static bool is_confined(const struct cell__storage_op *op)
{
	return !op->trusted || cell__store_is_confined(op->storage->store);
}

static int refuse_marked(struct cell__storage_op *op)
{
	if (!op->by_code || is_confined(op) || !cell__mark_is_on(json_object_get(op->result, "source")) || is_hole("workflow-mark"))
		return 0;
	json_decref(cell__take_ptr(op->result));
	return cell_fail(&op->err, CELL_OUT_REJECTED, 0,
			 "workflow '%.60s' was made by confined code, but this session is not confined: read it (workcell "
			 "workflows show) and trust it (workcell workflows trust), or use --executor sandbox",
			 text_arg(op, "name", ""));
}

static void workflow_get(struct cell__storage_op *op)
{
	int rc = cell__workflow_get(op->storage->store, text_arg(op, "name", ""), &op->result, &op->err);
	if (rc < 0 && op->err.code == CELL_E_NOT_FOUND) {
		op->result = json_null();
		rc = 0;
	}
	if (rc == 0)
		rc = refuse_marked(op);
	if (rc == 0 && is_confined(op))
		rc = cell__mark_hide(op->result, &op->err);
	finish_op(op, rc);
}

static void workflow_create(struct cell__storage_op *op)
{
	CELL_AUTO_BUF struct cell__buf marked = CELL_BUF_INIT;
	json_t *value = json_object_get(op->args, "source");
	const char *source = json_string_value(value);
	size_t size = json_string_length(value);
	if (cell__mark_is_on(value)) { /* a trusted principal approves the content by keeping it */
		source += CELL__MARK_BYTES;
		size -= CELL__MARK_BYTES;
	}
	if (is_confined(op)) {
		if (cell__buf_add_str(&marked, CELL__MARK) < 0 || cell__buf_add(&marked, source, size) < 0) {
			finish_op(op, cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory for a workflow"));
			return;
		}
		source = marked.data;
		size = marked.size;
	}
	if (!op->trusted && cell__usage_begin_workflow(&op->storage->usage, op->storage->store, &op->max, &op->err) < 0) {
		finish_op(op, -1);
		return;
	}
	int rc = cell__workflow_create(op->storage->store, text_arg(op, "name", ""), source, size, text_arg(op, "description", NULL),
				       json_is_true(json_object_get(op->args, "overwrite")), &op->result, &op->err);
	if (!op->trusted)
		cell__usage_workflow_made(&op->storage->usage);
	finish_op(op, rc == 0 && is_confined(op) ? cell__mark_hide(op->result, &op->err) : rc);
}

static void workflow_delete(struct cell__storage_op *op)
{
	bool deleted = false;
	int rc = cell__workflow_delete(op->storage->store, text_arg(op, "name", ""), &deleted, &op->err);
	op->result = json_boolean(deleted);
	finish_op(op, rc);
}

/* ---- artifacts ---- */

int cell__storage_check_type(const char *type, struct cell_error *err)
{
	if (strlen(type) <= CELL__STORE_DATA_TYPE_BYTES)
		return 0;
	return cell_fail(err, CELL_E_LIMIT, 0, "the type of an artifact may have at most %u bytes", CELL__STORE_DATA_TYPE_BYTES);
}

static void add_type(json_t *info)
{
	const char *type = NULL;
	if (json_unpack(info, "{s:{s:s}}", "metadata", "_data_type", &type) == 0)
		json_object_set_new(info, "type", json_string(type));
}

static void artifact_list(struct cell__storage_op *op)
{
	finish_op(op, cell__artifact_list(op->storage->store, &op->result, &op->err));
}

static void artifact_get(struct cell__storage_op *op)
{
	int rc = cell__artifact_get(op->storage->store, text_arg(op, "name", ""), &op->result, &op->err);
	if (rc < 0 && op->err.code == CELL_E_NOT_FOUND) {
		op->result = json_null();
		rc = 0;
	}
	finish_op(op, rc);
}

static void artifact_exists(struct cell__storage_op *op)
{
	bool exists = false;
	int rc = cell__artifact_exists(op->storage->store, text_arg(op, "name", ""), &exists, &op->err);
	op->result = json_boolean(exists);
	finish_op(op, rc);
}

static void artifact_delete(struct cell__storage_op *op)
{
	finish_op(op, cell__artifact_delete(op->storage->store, text_arg(op, "name", ""), NULL, &op->err));
	if (!op->error_type)
		op->result = json_null();
}

static int64_t index_bytes(const char *description, const json_t *metadata)
{
	return (description ? (int64_t)strlen(description) : 0) + (metadata ? (int64_t)json_dumpb(metadata, NULL, 0, JSON_COMPACT) : 0);
}

static void artifact_save(struct cell__storage_op *op)
{
	const char *type = text_arg(op, "type", "bytes"), *description = text_arg(op, "description", NULL);
	json_t *given = json_object_get(op->args, "metadata"), *metadata = json_is_object(given) ? given : NULL;
	const struct cell__taken more = { .artifacts = 1, .bytes = (int64_t)op->size, .index_bytes = index_bytes(description, metadata) };
	struct cell__taken taken = { 0 };
	int rc = cell__storage_check_type(type, &op->err);
	if (rc == 0)
		rc = take_room(op, more, &taken);
	if (rc == 0)
		rc = cell__artifact_save_whole(op->storage->store, text_arg(op, "name", ""), op->bytes, op->size, type, description,
					       metadata, &op->result, &op->err);
	if (rc == 0)
		cell__usage_keep(&op->storage->usage, &taken);
	else
		cell__usage_drop(&op->storage->usage, &taken);
	finish_op(op, rc);
}

static void artifact_load(struct cell__storage_op *op)
{
	int64_t max = CELL_LIMIT_ARTIFACT_WHOLE, given = json_integer_value(json_object_get(op->args, "max_bytes"));
	max = json_is_integer(json_object_get(op->args, "max_bytes")) && given < max ? given : max;
	finish_op(op, cell__artifact_load_whole(op->storage->store, text_arg(op, "name", ""), max, &op->result, &op->out, &op->out_size,
						&op->err));
	if (!op->error_type)
		add_type(op->result);
}

static void artifact_begin(struct cell__storage_op *op)
{
	struct cell__storage_handle *handle = op->handle;
	if (take_room(op, (struct cell__taken){ .artifacts = 1, .index_bytes = index_bytes(handle->description, handle->metadata) },
		      &handle->taken) < 0) {
		finish_op(op, -1);
		return;
	}
	finish_op(op, cell__artifact_begin(op->storage->store, text_arg(op, "name", ""), &handle->writer, &op->err));
	if (!op->error_type)
		op->result = json_pack("{s:I}", "handle", (json_int_t)handle->id);
}

static void artifact_chunk(struct cell__storage_op *op)
{
	int rc = take_room(op, (struct cell__taken){ .bytes = (int64_t)op->size }, &op->handle->taken);
	finish_op(op, rc < 0 ? rc : cell__artifact_write(op->handle->writer, op->bytes, op->size, &op->err));
	if (!op->error_type)
		op->result = json_null();
}

static void artifact_commit(struct cell__storage_op *op)
{
	struct cell__storage_handle *handle = op->handle;
	finish_op(op, cell__artifact_commit(cell__take_ptr(handle->writer), handle->type, handle->description, handle->metadata,
					    &op->result, &op->err));
	if (!op->error_type)
		cell__usage_keep(&op->storage->usage, &handle->taken);
}

static void artifact_abort(struct cell__storage_op *op)
{
	cell__artifact_abort(cell__take_ptr(op->handle->writer));
	op->result = json_null();
}

static void artifact_open(struct cell__storage_op *op)
{
	struct cell__storage_handle *handle = op->handle;
	finish_op(op, cell__artifact_open(op->storage->store, text_arg(op, "name", ""), &handle->reader, &op->err));
	if (op->error_type)
		return;
	op->result = json_deep_copy(cell__artifact_reader_info(handle->reader));
	json_object_set_new(op->result, "handle", json_integer(handle->id));
	json_object_set_new(op->result, "size", json_integer(cell__artifact_reader_size(handle->reader)));
	add_type(op->result);
}

static void artifact_read(struct cell__storage_op *op)
{
	json_int_t offset = json_integer_value(json_object_get(op->args, "offset"));
	if (!op->bulk) {
		op->out = op->bytes = cell__alloc(1, op->size);
		if (!op->out) {
			finish_op(op, cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory for a chunk"));
			return;
		}
	}
	ssize_t n = cell__artifact_pread(op->handle->reader, op->bytes, op->size, offset, &op->err);
	op->out_size = n > 0 && op->out ? (size_t)n : 0;
	finish_op(op, n < 0 ? -1 : 0);
	if (!op->error_type)
		op->result = json_integer(n);
}

static void artifact_close(struct cell__storage_op *op)
{
	cell__artifact_reader_close(cell__take_ptr(op->handle->reader));
	op->result = json_null();
}

const struct cell__storage_method cell__storage_methods[CELL__OPS] = {
	[CELL__OP_WORKFLOWS_LIST] = { workflow_list, CELL__HANDLE_NONE, CELL__CARRIES_PLAIN },
	[CELL__OP_WORKFLOWS_SEARCH] = { workflow_search, CELL__HANDLE_NONE, CELL__CARRIES_PLAIN },
	[CELL__OP_WORKFLOWS_GET] = { workflow_get, CELL__HANDLE_NONE, CELL__CARRIES_PLAIN },
	[CELL__OP_WORKFLOWS_CREATE] = { workflow_create, CELL__HANDLE_NONE, CELL__CARRIES_PLAIN },
	[CELL__OP_WORKFLOWS_DELETE] = { workflow_delete, CELL__HANDLE_NONE, CELL__CARRIES_PLAIN },
	[CELL__OP_ARTIFACTS_PATH] = { artifact_path, CELL__HANDLE_NONE, CELL__CARRIES_PLAIN },
	[CELL__OP_ARTIFACTS_LIST] = { artifact_list, CELL__HANDLE_NONE, CELL__CARRIES_PLAIN },
	[CELL__OP_ARTIFACTS_GET] = { artifact_get, CELL__HANDLE_NONE, CELL__CARRIES_PLAIN },
	[CELL__OP_ARTIFACTS_EXISTS] = { artifact_exists, CELL__HANDLE_NONE, CELL__CARRIES_PLAIN },
	[CELL__OP_ARTIFACTS_DELETE] = { artifact_delete, CELL__HANDLE_NONE, CELL__CARRIES_PLAIN },
	[CELL__OP_ARTIFACTS_SAVE] = { artifact_save, CELL__HANDLE_NONE, CELL__CARRIES_WHOLE },
	[CELL__OP_ARTIFACTS_LOAD] = { artifact_load, CELL__HANDLE_NONE, CELL__CARRIES_PLAIN },
	[CELL__OP_ARTIFACTS_SAVE_BEGIN] = { artifact_begin, CELL__HANDLE_OPENS, CELL__CARRIES_PLAIN },
	[CELL__OP_ARTIFACTS_SAVE_CHUNK] = { artifact_chunk, CELL__HANDLE_WRITES, CELL__CARRIES_CHUNK },
	[CELL__OP_ARTIFACTS_SAVE_COMMIT] = { artifact_commit, CELL__HANDLE_WRITES, CELL__CARRIES_LAST },
	[CELL__OP_ARTIFACTS_SAVE_ABORT] = { artifact_abort, CELL__HANDLE_WRITES, CELL__CARRIES_LAST },
	[CELL__OP_ARTIFACTS_LOAD_OPEN] = { artifact_open, CELL__HANDLE_OPENS, CELL__CARRIES_PLAIN },
	[CELL__OP_ARTIFACTS_LOAD_CHUNK] = { artifact_read, CELL__HANDLE_READS, CELL__CARRIES_CHUNK },
	[CELL__OP_ARTIFACTS_LOAD_CLOSE] = { artifact_close, CELL__HANDLE_READS, CELL__CARRIES_LAST },
};
