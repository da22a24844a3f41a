/*
 * Theory of operation
 *
 * A call becomes an op.  One without a handle goes to the pool at once.  Those on one handle go one after another:
 *
 *     op ──handle idle──▶ on the pool ──done──▶ answered
 *      └──handle busy──▶ queued in the handle ──the op before is done──▶ all that are queued go to the pool as one piece
 *
 * One session has at most CELL_LIMIT_SESSION_WORK pieces of work on the pool, which is everybody's; the others wait in the
 * order they came, and go when their call is cancelled.
 *
 * A chunk that is in the page cache is read on the loop's thread, without the way to the pool and back.
 *
 * Invariants: a handle that is not busy has no queue; an op on the pool owns all it touches, or holds a reference to it
 * (the call may go before it); handles are destroyed when they are not busy.
 */
#define _GNU_SOURCE
#include "storage/operations.h"

#include <errno.h>
#include <string.h>

#include "calls/principal.h"
#include "calls/table.h"
#include "base/hole.h"
#include "storage/mark.h"
#include "storage/usage.h"

/* An artifact being read or written. */
struct handle {
	int64_t id;
	json_int_t key; /* what the code called it when it asked, and may close it by: it may not have got our answer; 0: nothing */
	char session_id[33];
	const void *origin; /* whose it is in that session */
	bool writes; /* known before there is a writer or reader, which the pool makes */
	struct cell__artifact_writer *writer;
	struct cell__artifact_reader *reader;
	char type[CELL__STORE_DATA_TYPE_BYTES + 1];
	char *description;
	json_t *metadata;
	struct cell__taken taken; /* while it is written */
	bool busy;    /* on the pool */
	bool dropped; /* its session is gone, or has given it up */
	struct op *first, *last; /* ops that wait */
	unsigned n_waiting;
	struct handle *next;
};

typedef void (*op_fn)(struct op *op);

struct op {
	uv_work_t work;
	struct cell__storage *storage;
	struct cell__call *call; /* NULL: nobody waits any more */
	op_fn fn;
	json_t *args;
	void *raw;
	struct cell__bulk *bulk; /* where `bytes` stand when they are not raw */
	char *bytes;             /* of a chunk: to be written, or read into */
	size_t size;
	bool by_code;          /* who asks is a session's code */
	struct op *then;       /* the next on the same handle, done in the same piece of work */
	struct handle *handle; /* the open artifact it works on, or made */
	bool closes;           /* the handle is over afterwards */
	bool trusted;          /* who asks, ... */
	struct cell__host_limits max; /* ... and what they may fill the storage up to, if not */
	char session_id[33];   /* "": the host */
	bool waits;            /* for a place on the pool */
	struct op *next;       /* on the pool, or waiting for it */
	/* the outcome */
	json_t *result;
	bool wants_text;       /* the result is wanted as text, and made here: the loop has no time for a long one */
	char *text;
	void *out;
	size_t out_size;
	struct cell_error err;
	const char *error_type; /* NULL: it went well */
};

struct cell__storage {
	struct cell__loop *loop;
	struct cell__store *store;
	cell__storage_notice_fn notice;
	void *notice_arg;
	struct handle *handles;
	size_t n_handles;
	int64_t next_handle;
	int under_way; /* on the pool, or waiting for it */
	struct op *at_work;
	struct op *wait_first, *wait_last;
	struct cell__usage usage;
	uv_idle_t idle; /* so that closing always ends in a later iteration of the loop */
	void (*closed)(void *arg);
	void *closed_arg;
};

/* ---- arguments and errors; on the pool ---- */

static const char *text_arg(struct op *op, const char *key, const char *otherwise)
{
	json_t *value = json_object_get(op->args, key);
	return json_is_string(value) ? json_string_value(value) : otherwise;
}

static void artifact_path(struct op *op)
{
	op->result = json_string(cell__store_artifacts_path(op->storage->store));
}

static const char *error_type(const struct cell__operation *operation, const struct cell_error *err)
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

static void finish_op(struct op *op, int rc)
{
	if (rc < 0 && !op->error_type)
		op->error_type = ""; /* named on the loop's thread */
}

/* An artifact is going to take more than it has taken.  What is trusted may keep what it likes. */
static int take_room(struct op *op, struct cell__taken more, struct cell__taken *taken)
{
	return op->trusted ? 0 : cell__usage_take(&op->storage->usage, op->storage->store, &op->max, &more, taken, &op->err);
}

/* ---- workflows ---- */

static void workflow_list(struct op *op)
{
	finish_op(op, cell__workflow_list(op->storage->store, &op->result, NULL, &op->err));
}

static void workflow_search(struct op *op)
{
	json_int_t limit = json_integer_value(json_object_get(op->args, "limit"));
	finish_op(op, cell__workflow_search(op->storage->store, text_arg(op, "query", ""), limit > 0 ? (size_t)limit : 5, &op->result,
					    &op->err));
}

/* Is what this principal keeps confined code's?  In a container that of everybody is. */
static bool is_confined(const struct op *op)
{
	return !op->trusted || cell__store_is_confined(op->storage->store);
}

static int refuse_marked(struct op *op)
{
	if (!op->by_code || is_confined(op) || !cell__mark_is_on(json_object_get(op->result, "source")) || is_hole("workflow-mark"))
		return 0;
	json_decref(cell__take_ptr(op->result));
	return cell_fail(&op->err, CELL_OUT_REJECTED, 0,
			 "workflow '%.60s' was made by confined code, but this session is not confined: read it (workcell "
			 "workflows show) and trust it (workcell workflows trust), or use --executor sandbox",
			 text_arg(op, "name", ""));
}

static void workflow_get(struct op *op)
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

static void workflow_create(struct op *op)
{
	CELL_AUTO_BUF struct cell__buf marked = CELL_BUF_INIT;
	json_t *value = json_object_get(op->args, "source");
	const char *source = json_string_value(value);
	size_t size = json_string_length(value);
	if (cell__mark_is_on(value)) { /* whoever is trusted vouches for what they keep */
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

static void workflow_delete(struct op *op)
{
	bool deleted = false;
	int rc = cell__workflow_delete(op->storage->store, text_arg(op, "name", ""), &deleted, &op->err);
	op->result = json_boolean(deleted);
	finish_op(op, rc);
}

/* ---- artifacts ---- */

static int check_type(const char *type, struct cell_error *err)
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

static void artifact_list(struct op *op)
{
	finish_op(op, cell__artifact_list(op->storage->store, &op->result, &op->err));
}

static void artifact_get(struct op *op)
{
	int rc = cell__artifact_get(op->storage->store, text_arg(op, "name", ""), &op->result, &op->err);
	if (rc < 0 && op->err.code == CELL_E_NOT_FOUND) {
		op->result = json_null();
		rc = 0;
	}
	finish_op(op, rc);
}

static void artifact_exists(struct op *op)
{
	bool exists = false;
	int rc = cell__artifact_exists(op->storage->store, text_arg(op, "name", ""), &exists, &op->err);
	op->result = json_boolean(exists);
	finish_op(op, rc);
}

static void artifact_delete(struct op *op)
{
	finish_op(op, cell__artifact_delete(op->storage->store, text_arg(op, "name", ""), NULL, &op->err));
	if (!op->error_type)
		op->result = json_null();
}

static int64_t index_bytes(const char *description, const json_t *metadata)
{
	return (description ? (int64_t)strlen(description) : 0) + (metadata ? (int64_t)json_dumpb(metadata, NULL, 0, JSON_COMPACT) : 0);
}

static void artifact_save(struct op *op)
{
	const char *type = text_arg(op, "type", "bytes"), *description = text_arg(op, "description", NULL);
	json_t *given = json_object_get(op->args, "metadata"), *metadata = json_is_object(given) ? given : NULL;
	const struct cell__taken more = { .artifacts = 1, .bytes = (int64_t)op->size, .index_bytes = index_bytes(description, metadata) };
	struct cell__taken taken = { 0 };
	int rc = check_type(type, &op->err);
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

static void artifact_load(struct op *op)
{
	int64_t max = CELL_LIMIT_ARTIFACT_WHOLE, given = json_integer_value(json_object_get(op->args, "max_bytes"));
	max = json_is_integer(json_object_get(op->args, "max_bytes")) && given < max ? given : max;
	finish_op(op, cell__artifact_load_whole(op->storage->store, text_arg(op, "name", ""), max, &op->result, &op->out, &op->out_size,
						&op->err));
	if (!op->error_type)
		add_type(op->result);
}

static void artifact_begin(struct op *op)
{
	struct handle *handle = op->handle;
	if (take_room(op, (struct cell__taken){ .artifacts = 1, .index_bytes = index_bytes(handle->description, handle->metadata) },
		      &handle->taken) < 0) {
		finish_op(op, -1);
		return;
	}
	finish_op(op, cell__artifact_begin(op->storage->store, text_arg(op, "name", ""), &handle->writer, &op->err));
	if (!op->error_type)
		op->result = json_pack("{s:I}", "handle", (json_int_t)handle->id);
}

static void artifact_chunk(struct op *op)
{
	int rc = take_room(op, (struct cell__taken){ .bytes = (int64_t)op->size }, &op->handle->taken);
	finish_op(op, rc < 0 ? rc : cell__artifact_write(op->handle->writer, op->bytes, op->size, &op->err));
	if (!op->error_type)
		op->result = json_null();
}

static void artifact_commit(struct op *op)
{
	struct handle *handle = op->handle;
	finish_op(op, cell__artifact_commit(cell__take_ptr(handle->writer), handle->type, handle->description, handle->metadata,
					    &op->result, &op->err));
	if (!op->error_type)
		cell__usage_keep(&op->storage->usage, &handle->taken);
}

static void artifact_abort(struct op *op)
{
	cell__artifact_abort(cell__take_ptr(op->handle->writer));
	op->result = json_null();
}

static void artifact_open(struct op *op)
{
	struct handle *handle = op->handle;
	finish_op(op, cell__artifact_open(op->storage->store, text_arg(op, "name", ""), &handle->reader, &op->err));
	if (op->error_type)
		return;
	op->result = json_deep_copy(cell__artifact_reader_info(handle->reader));
	json_object_set_new(op->result, "handle", json_integer(handle->id));
	json_object_set_new(op->result, "size", json_integer(cell__artifact_reader_size(handle->reader)));
	add_type(op->result);
}

static void artifact_read(struct op *op)
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

static void artifact_close(struct op *op)
{
	cell__artifact_reader_close(cell__take_ptr(op->handle->reader));
	op->result = json_null();
}

enum handle_use { NONE, OPENS, WRITES, READS };
/* WHOLE: carries bytes without a handle; CHUNK: carries or wants them; CLOSES: the handle is over afterwards */
enum handle_what { PLAIN, WHOLE, CHUNK, CLOSES };

static const struct {
	op_fn fn;
	enum handle_use use;
	enum handle_what what;
} methods[CELL__OPS] = {
	[CELL__OP_WORKFLOWS_LIST] = { workflow_list, NONE, PLAIN },
	[CELL__OP_WORKFLOWS_SEARCH] = { workflow_search, NONE, PLAIN },
	[CELL__OP_WORKFLOWS_GET] = { workflow_get, NONE, PLAIN },
	[CELL__OP_WORKFLOWS_CREATE] = { workflow_create, NONE, PLAIN },
	[CELL__OP_WORKFLOWS_DELETE] = { workflow_delete, NONE, PLAIN },
	[CELL__OP_ARTIFACTS_PATH] = { artifact_path, NONE, PLAIN },
	[CELL__OP_ARTIFACTS_LIST] = { artifact_list, NONE, PLAIN },
	[CELL__OP_ARTIFACTS_GET] = { artifact_get, NONE, PLAIN },
	[CELL__OP_ARTIFACTS_EXISTS] = { artifact_exists, NONE, PLAIN },
	[CELL__OP_ARTIFACTS_DELETE] = { artifact_delete, NONE, PLAIN },
	[CELL__OP_ARTIFACTS_SAVE] = { artifact_save, NONE, WHOLE },
	[CELL__OP_ARTIFACTS_LOAD] = { artifact_load, NONE, PLAIN },
	[CELL__OP_ARTIFACTS_SAVE_BEGIN] = { artifact_begin, OPENS, PLAIN },
	[CELL__OP_ARTIFACTS_SAVE_CHUNK] = { artifact_chunk, WRITES, CHUNK },
	[CELL__OP_ARTIFACTS_SAVE_COMMIT] = { artifact_commit, WRITES, CLOSES },
	[CELL__OP_ARTIFACTS_SAVE_ABORT] = { artifact_abort, WRITES, CLOSES },
	[CELL__OP_ARTIFACTS_LOAD_OPEN] = { artifact_open, OPENS, PLAIN },
	[CELL__OP_ARTIFACTS_LOAD_CHUNK] = { artifact_read, READS, CHUNK },
	[CELL__OP_ARTIFACTS_LOAD_CLOSE] = { artifact_close, READS, CLOSES },
};

/* ---- handles; on the loop's thread ---- */

static void destroy_handle(struct cell__storage *storage, struct handle *handle)
{
	for (struct handle **at = &storage->handles; *at; at = &(*at)->next)
		if (*at == handle) {
			*at = handle->next;
			storage->n_handles--;
			break;
		}
	/* Closing and unlinking a temporary file: short enough for the loop. */
	cell__artifact_abort(handle->writer);
	cell__artifact_reader_close(handle->reader);
	cell__usage_drop(&storage->usage, &handle->taken);
	free(handle->description);
	json_decref(handle->metadata);
	free(handle);
}

static struct handle *create_handle(struct cell__storage *storage, struct cell__call *call, struct cell_error *err)
{
	if (storage->n_handles >= CELL_LIMIT_OPEN_ARTIFACTS) {
		cell_fail(err, CELL_E_LIMIT, 0, "more than %u artifacts are open at once", CELL_LIMIT_OPEN_ARTIFACTS);
		return NULL;
	}
	size_t mine = 0;
	for (const struct handle *h = call->session_id[0] ? storage->handles : NULL; h; h = h->next)
		mine += strcmp(h->session_id, call->session_id) == 0;
	if (mine >= CELL_LIMIT_SESSION_ARTIFACTS) {
		cell_fail(err, CELL_E_LIMIT, 0, "this session already has %u artifacts open: close some", CELL_LIMIT_SESSION_ARTIFACTS);
		return NULL;
	}
	struct handle *handle = cell__alloc(1, sizeof *handle);
	json_t *type = json_object_get(call->args, "type");
	json_t *description = json_object_get(call->args, "description");
	json_t *metadata = json_object_get(call->args, "metadata");
	if (json_is_string(type) && check_type(json_string_value(type), err) < 0) {
		free(handle);
		return NULL;
	}
	if (handle && json_is_string(description))
		handle->description = cell__strdup(json_string_value(description));
	if (!handle || (json_is_string(description) && !handle->description)) {
		free(handle);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		return NULL;
	}
	handle->id = ++storage->next_handle;
	handle->origin = call->origin;
	handle->writes = call->operation->id == CELL__OP_ARTIFACTS_SAVE_BEGIN;
	handle->key = json_integer_value(json_object_get(call->args, "key"));
	strncpy(handle->session_id, call->session_id, sizeof handle->session_id - 1);
	strcpy(handle->type, json_is_string(type) ? json_string_value(type) : "bytes");
	handle->metadata = json_is_object(metadata) ? json_deep_copy(metadata) : NULL;
	handle->next = storage->handles;
	storage->handles = handle;
	storage->n_handles++;
	return handle;
}

static void fail_unknown(int64_t id, struct cell_error *err)
{
	cell_fail(err, CELL_E_INVALID, 0, "this session has no open artifact with handle %lld", (long long)id);
}

static struct handle *find_handle(struct cell__storage *storage, struct cell__call *call, enum handle_use use, struct cell_error *err)
{
	json_int_t id = json_integer_value(json_object_get(call->args, "handle"));
	json_int_t key = json_integer_value(json_object_get(call->args, "key"));
	for (struct handle *h = storage->handles; h; h = h->next)
		if ((id ? h->id == id : key && h->key == key) && strcmp(h->session_id, call->session_id) == 0 && !h->dropped &&
		    h->writes == (use == WRITES))
			return h;
	fail_unknown(id, err);
	return NULL;
}

/* ---- work ---- */

static void maybe_closed(struct cell__storage *storage);

static void run_op(uv_work_t *work)
{
	for (struct op *op = work->data; op; op = op->then) {
		op->fn(op);
		if (op->wants_text && op->result && !op->error_type &&
		    (op->text = json_dumps(op->result, JSON_COMPACT | JSON_ENCODE_ANY))) {
			json_decref(op->result);
			op->result = NULL;
		}
	}
}

static void end_op(struct op *op);

static void stop_waiting(struct cell__storage *storage, struct op *op)
{
	struct op *before = NULL;
	for (struct op *at = storage->wait_first; at != op; at = at->next)
		before = at;
	*(before ? &before->next : &storage->wait_first) = op->next;
	if (storage->wait_last == op)
		storage->wait_last = before;
	op->waits = false;
}

static void handle_cancel(struct cell__call *call)
{
	struct op *op = call->handler;
	op->call = NULL; /* the work goes on to its end; its answer has nowhere to go */
	if (op->waits && !op->handle) {
		stop_waiting(op->storage, op);
		op->storage->under_way--;
		end_op(op);
	}
}

static void answer_op(struct op *op)
{
	struct cell__call *call = op->call;
	if (!op->error_type && op->text)
		call->answer_text(call, op->text, op->out, op->out_size);
	else if (!op->error_type)
		call->answer(call, cell__take_ptr(op->result), op->out, op->out_size);
	else
		call->fail(call, op->err.sys == EEXIST ? CELL_E_EXISTS : op->err.code, error_type(call->operation, &op->err), op->err.msg);
}

static void end_op(struct op *op)
{
	if (op->call)
		answer_op(op);
	json_decref(op->result);
	free(op->text);
	json_decref(op->args);
	cell__bulk_unref(op->bulk);
	free(op->raw);
	free(op->out);
	free(op);
}

static void handle_done(uv_work_t *work, int status);

static void go_to_work(struct op *op)
{
	struct cell__storage *storage = op->storage;
	op->work.data = op;
	op->next = storage->at_work;
	storage->at_work = op;
	uv_queue_work(cell__loop_uv(storage->loop), &op->work, run_op, handle_done);
}

static void leave_work(struct op *op)
{
	for (struct op **at = &op->storage->at_work; *at; at = &(*at)->next)
		if (*at == op) {
			*at = op->next;
			break;
		}
}

/* The pool is everybody's: has this session its part of it? */
static bool has_its_part(const struct cell__storage *storage, const struct op *op)
{
	unsigned n = 0;
	for (const struct op *at = op->session_id[0] ? storage->at_work : NULL; at; at = at->next)
		n += strcmp(at->session_id, op->session_id) == 0;
	return n >= CELL_LIMIT_SESSION_WORK;
}

static void start_work(struct op *op)
{
	struct cell__storage *storage = op->storage;
	if (op->handle)
		op->handle->busy = true;
	storage->under_way++;
	if (!has_its_part(storage, op)) {
		go_to_work(op);
		return;
	}
	op->waits = true;
	op->next = NULL;
	if (storage->wait_last)
		storage->wait_last->next = op;
	else
		storage->wait_first = op;
	storage->wait_last = op;
}

static void start_waiting(struct cell__storage *storage)
{
	for (struct op *op = storage->wait_first; op; op = op->next)
		if (!has_its_part(storage, op)) {
			stop_waiting(storage, op);
			go_to_work(op);
			return;
		}
}

/* Takes what waits out of the handle, as one piece of work; nothing that comes after its end. */
static struct op *take_waiting(struct handle *handle)
{
	struct op *first = handle->first, *last = first;
	unsigned n = 1;
	for (; last->then && !last->closes; last = last->then)
		n++;
	handle->first = cell__take_ptr(last->then);
	if (!handle->first)
		handle->last = NULL;
	handle->n_waiting -= n;
	return first;
}

/* The handle is over: what waited for it fails. */
static void give_up(struct cell__storage *storage, struct handle *handle)
{
	struct op *op = handle->first;
	int64_t id = handle->id;
	destroy_handle(storage, handle);
	while (op) {
		struct op *then = op->then;
		op->error_type = "";
		fail_unknown(id, &op->err);
		end_op(op);
		op = then;
	}
}

static void handle_done(uv_work_t *work, int status)
{
	(void)status; /* never cancelled */
	struct op *op = work->data;
	struct cell__storage *storage = op->storage;
	struct handle *handle = op->handle;
	bool over = false;
	struct cell_error repaired;
	leave_work(op);
	if (cell__store_take_notice(storage->store, &repaired))
		storage->notice(storage->notice_arg, &repaired);
	if (handle) {
		handle->busy = false;
		over = handle->dropped || (!handle->writer && !handle->reader); /* or it never was opened */
	}
	while (op) {
		struct op *then = op->then;
		/* A session that was interrupted while opening would leave it open for ever. */
		over |= op->closes || (!op->call && !op->bytes);
		end_op(op);
		op = then;
	}
	if (handle && over)
		give_up(storage, handle);
	else if (handle && handle->first)
		start_work(take_waiting(handle));
	start_waiting(storage);
	storage->under_way--;
	maybe_closed(storage);
}

/* The bytes that came with the call. */
static int take_bytes(struct op *op, const struct cell__call *call, size_t max, struct cell_error *err)
{
	if (call->raw_size > max)
		return cell_fail(err, CELL_E_LIMIT, 0, "%s takes at most %zu bytes", call->method, max);
	op->bytes = op->raw = call->raw_size > 0 ? cell__strndup(call->raw, call->raw_size) : NULL;
	op->size = call->raw_size;
	return call->raw_size > 0 && !op->raw ? cell_fail(err, CELL_E_NOMEM, 0, "the host is out of memory") : 0;
}

/* Where the bytes of a chunk are, or are to be.  -1: nowhere that could be. */
static int place_chunk(struct op *op, const struct cell__call *call, enum handle_use use, struct cell_error *err)
{
	json_t *at = json_object_get(call->args, "at");
	json_t *size = json_object_get(call->args, "size");
	json_int_t from = json_integer_value(at), n = json_integer_value(size);
	if (use == WRITES && !at)
		return take_bytes(op, call, CELL_LIMIT_ARTIFACT_CHUNK, err);
	if (n <= 0 || n > (json_int_t)CELL_LIMIT_ARTIFACT_CHUNK ||
	    (use == READS && json_integer_value(json_object_get(call->args, "offset")) < 0))
		return cell_fail(err, CELL_E_INVALID, 0, "a chunk must have an offset and 1 to %u bytes", CELL_LIMIT_ARTIFACT_CHUNK);
	op->size = (size_t)n;
	if (!at)
		return 0;
	if (!json_is_integer(at) || !call->bulk || from < 0 || (uint64_t)from > call->bulk->size ||
	    (uint64_t)n > call->bulk->size - (uint64_t)from)
		return cell_fail(err, CELL_E_INVALID, 0, "a chunk that is not in the shared memory");
	op->bulk = cell__bulk_ref(call->bulk);
	op->bytes = op->bulk->data + from;
	return 0;
}

/* Reads a chunk that is in the page cache right here.  False: it has to go the long way. */
static bool read_now(struct op *op)
{
	json_int_t offset = json_integer_value(json_object_get(op->args, "offset"));
	if (!op->bulk || op->handle->busy)
		return false;
	ssize_t n = cell__artifact_pread_cached(op->handle->reader, op->bytes, op->size, offset);
	op->result = n >= 0 ? json_integer(n) : NULL;
	return op->result != NULL;
}

/* Starts it, or puts it behind those that are on their way. */
static void submit(struct op *op)
{
	struct handle *handle = op->handle;
	if (!handle || !handle->busy) {
		start_work(op);
		return;
	}
	if (handle->last)
		handle->last->then = op;
	else
		handle->first = op;
	handle->last = op;
	handle->n_waiting++;
}

/* NULL with the error set. */
static struct op *make_op(struct cell__storage *storage, struct cell__call *call, size_t which, struct handle *handle,
			  struct cell_error *err)
{
	struct op *op = cell__alloc(1, sizeof *op);
	if (!op) {
		cell_fail(err, CELL_E_NOMEM, 0, "the host is out of memory");
		return NULL;
	}
	*op = (struct op){
		.storage = storage,
		.call = call,
		.by_code = call->principal->kind == CELL__PRINCIPAL_CODE,
		.fn = methods[which].fn,
		.handle = handle,
		.closes = methods[which].what == CLOSES,
		.trusted = cell__principal_is_trusted(call->principal),
		.max = call->principal->limits,
		.wants_text = call->answer_text && methods[which].use == NONE,
	};
	strncpy(op->session_id, call->session_id, sizeof op->session_id - 1);
	if ((methods[which].what == CHUNK && place_chunk(op, call, methods[which].use, err) < 0) ||
	    (methods[which].what == WHOLE && take_bytes(op, call, CELL_LIMIT_ARTIFACT_WHOLE, err) < 0)) {
		free(op);
		return NULL;
	}
	op->args = json_incref(call->args);
	call->handler = op;
	call->cancel = handle_cancel;
	return op;
}

static void start_op(struct cell__storage *storage, struct cell__call *call, size_t which, struct cell_error *err)
{
	enum handle_use use = methods[which].use;
	struct handle *handle = NULL;
	if (use == OPENS)
		handle = create_handle(storage, call, err);
	else if (use != NONE)
		handle = find_handle(storage, call, use, err);
	/* What ends it is always taken: nothing comes behind it. */
	if (handle && handle->n_waiting >= CELL_LIMIT_ARTIFACT_CALLS && methods[which].what != CLOSES) {
		cell_fail(err, CELL_E_LIMIT, 0, "more than %u calls wait for one artifact", CELL_LIMIT_ARTIFACT_CALLS);
		handle = NULL;
	}
	struct op *op = use == NONE || handle ? make_op(storage, call, which, handle, err) : NULL;
	if (!op) {
		if (use == OPENS && handle)
			destroy_handle(storage, handle);
		call->fail(call, err->code, err->code == CELL_E_NOMEM ? "MemoryError" : "ValueError", err->msg);
	} else if (op->fn == artifact_read && read_now(op)) {
		end_op(op);
	} else {
		submit(op);
	}
}

void cell__storage_handle(struct cell__storage *storage, struct cell__call *call)
{
	struct cell_error err = { 0 };
	start_op(storage, call, call->operation->id, &err);
}

void cell__storage_session_ended(struct cell__storage *storage, const char *session_id, const void *origin)
{
	for (struct handle *h = storage->handles, *next; h; h = next) {
		next = h->next;
		if (h->origin != origin || strcmp(h->session_id, session_id) != 0)
			continue;
		h->dropped = true;
		if (!h->busy)
			destroy_handle(storage, h);
	}
}

/* ---- create and close ---- */

int cell__storage_create(struct cell__loop *loop, struct cell__store *store, cell__storage_notice_fn notice, void *notice_arg,
			 struct cell__storage **ret_storage, struct cell_error *err)
{
	struct cell__storage *storage = cell__alloc(1, sizeof *storage);
	if (!storage)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	storage->loop = loop;
	storage->store = store;
	storage->notice = notice;
	storage->notice_arg = notice_arg;
	cell__usage_init(&storage->usage);
	uv_idle_init(cell__loop_uv(loop), &storage->idle);
	storage->idle.data = storage;
	*ret_storage = storage;
	return 0;
}

static void handle_closed(uv_handle_t *idle)
{
	struct cell__storage *storage = idle->data;
	void (*closed)(void *) = storage->closed;
	void *arg = storage->closed_arg;
	cell__usage_finish(&storage->usage);
	free(storage);
	closed(arg);
}

static void maybe_closed(struct cell__storage *storage)
{
	if (!storage->closed || storage->under_way > 0)
		return;
	while (storage->handles)
		destroy_handle(storage, storage->handles);
	uv_close((uv_handle_t *)&storage->idle, handle_closed);
}

void cell__storage_close(struct cell__storage *storage, void (*done)(void *arg), void *arg)
{
	storage->closed = done;
	storage->closed_arg = arg;
	maybe_closed(storage);
}
