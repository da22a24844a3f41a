/*
 * Theory of operation
 *
 * A call becomes an op.  An op without a handle goes to the pool at once.  Ops on one handle run one after another:
 *
 *     op ──handle idle──▶ on the pool ──done──▶ answered
 *      └──handle busy──▶ queued in the handle ──the op before is done──▶ all queued ops go to the pool as one piece
 *
 * Instead of the pool a thread of the host that waits for its call does the work itself (lend in calls/call.h).
 *
 * One session has at most CELL_LIMIT_SESSION_WORK pieces of work on the pool, which all share; the others wait in the
 * order of their arrival, and are dropped when their call is cancelled.
 *
 * A chunk that is in the page cache is read on the loop's thread, without the detour through the pool.
 *
 * Invariants: a handle that is not busy has no queue; an op on the pool owns all data it touches, or holds a reference to
 * it (the call may end before it); handles are destroyed when they are not busy.
 */
#define _GNU_SOURCE
#include "storage/operation.h"

#include <errno.h>
#include <string.h>

/* ---- handles; on the loop's thread ---- */

static void destroy_handle(struct cell__storage *storage, struct cell__storage_handle *handle)
{
	for (struct cell__storage_handle **at = &storage->handles; *at; at = &(*at)->next)
		if (*at == handle) {
			*at = handle->next;
			storage->n_handles--;
			break;
		}
	/* Closing and unlinking a temporary file: short enough for the loop. */
	cell__artifact_abort(handle->writer);
	cell__artifact_reader_close(handle->reader);
	cell__usage_drop(&storage->usage, &handle->taken);
	free(handle->name);
	free(handle->description);
	json_decref(handle->metadata);
	free(handle);
}

static struct cell__storage_handle *create_handle(struct cell__storage *storage, struct cell__call *call, struct cell_error *err)
{
	if (storage->n_handles >= CELL_LIMIT_OPEN_ARTIFACTS) {
		cell_fail(err, CELL_E_LIMIT, 0, "more than %u artifacts are open at once", CELL_LIMIT_OPEN_ARTIFACTS);
		return NULL;
	}
	size_t mine = 0;
	for (const struct cell__storage_handle *h = call->session_id[0] ? storage->handles : NULL; h; h = h->next)
		mine += strcmp(h->session_id, call->session_id) == 0;
	if (mine >= CELL_LIMIT_SESSION_ARTIFACTS) {
		cell_fail(err, CELL_E_LIMIT, 0, "this session already has %u artifacts open: close some", CELL_LIMIT_SESSION_ARTIFACTS);
		return NULL;
	}
	struct cell__storage_handle *handle = cell__alloc(1, sizeof *handle);
	json_t *type = json_object_get(call->args, "type");
	json_t *description = json_object_get(call->args, "description");
	json_t *metadata = json_object_get(call->args, "metadata");
	if (json_is_string(type) && cell__storage_check_type(json_string_value(type), err) < 0) {
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
	handle->name = cell__strdup(json_string_value(json_object_get(call->args, "name"))); /* without memory its change is not told */
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

static struct cell__storage_handle *find_handle(struct cell__storage *storage, struct cell__call *call, enum cell__handle_use use,
						struct cell_error *err)
{
	json_int_t id = json_integer_value(json_object_get(call->args, "handle"));
	json_int_t key = json_integer_value(json_object_get(call->args, "key"));
	for (struct cell__storage_handle *h = storage->handles; h; h = h->next)
		if ((id ? h->id == id : key && h->key == key) && strcmp(h->session_id, call->session_id) == 0 && !h->dropped &&
		    h->writes == (use == CELL__HANDLE_WRITES))
			return h;
	fail_unknown(id, err);
	return NULL;
}

/* ---- work ---- */

static void maybe_closed(struct cell__storage *storage);

static void run_ops(struct cell__storage_op *first)
{
	for (struct cell__storage_op *op = first; op; op = op->then) {
		op->fn(op);
		if (op->wants_text && op->result && !op->error_type &&
		    (op->text = json_dumps(op->result, JSON_COMPACT | JSON_ENCODE_ANY))) {
			json_decref(op->result);
			op->result = NULL;
		}
	}
}

static void run_on_pool(uv_work_t *work)
{
	run_ops(work->data);
}

static struct cell__storage_op *lent_op(struct cell__lent_work *lent)
{
	return (struct cell__storage_op *)((char *)lent - offsetof(struct cell__storage_op, lent));
}

static void run_lent(struct cell__lent_work *lent)
{
	run_ops(lent_op(lent));
}

static void end_op(struct cell__storage_op *op);

static void stop_waiting(struct cell__storage *storage, struct cell__storage_op *op)
{
	struct cell__storage_op *before = NULL;
	for (struct cell__storage_op *at = storage->wait_first; at != op; at = at->next)
		before = at;
	*(before ? &before->next : &storage->wait_first) = op->next;
	if (storage->wait_last == op)
		storage->wait_last = before;
	op->waits = false;
}

static void handle_cancel(struct cell__call *call)
{
	struct cell__storage_op *op = call->handler;
	op->call = NULL; /* the work runs to its end; its answer is dropped */
	if (op->waits && !op->handle) {
		stop_waiting(op->storage, op);
		op->storage->under_way--;
		end_op(op);
	}
}

static void answer_op(struct cell__storage_op *op)
{
	struct cell__call *call = op->call;
	if (!op->error_type && op->text)
		call->answer_text(call, op->text, op->out, op->out_size);
	else if (!op->error_type)
		call->answer(call, cell__take_ptr(op->result), op->out, op->out_size);
	else
		call->fail(call, op->err.sys == EEXIST ? CELL_E_EXISTS : op->err.code, cell__storage_error_type(call->operation, &op->err),
			   op->err.msg);
}

void cell__storage_on_change(struct cell__storage *storage, cell__storage_changed_fn changed, void *arg)
{
	storage->changed = changed;
	storage->changed_arg = arg;
}

static void tell_change(const struct cell__storage_op *op)
{
	const struct cell__storage *storage = op->storage;
	const char *name = json_string_value(json_object_get(op->args, "name"));
	enum cell__op what = op->id;
	if (op->error_type || !storage->changed)
		return; /* its handle may be gone */
	if (what == CELL__OP_ARTIFACTS_SAVE_COMMIT) {
		what = CELL__OP_ARTIFACTS_SAVE;
		name = op->handle->name;
	}
	if (name && (what == CELL__OP_ARTIFACTS_SAVE || what == CELL__OP_ARTIFACTS_DELETE || what == CELL__OP_WORKFLOWS_CREATE ||
		     what == CELL__OP_WORKFLOWS_DELETE))
		storage->changed(storage->changed_arg, what, name);
}

static void end_op(struct cell__storage_op *op)
{
	tell_change(op);
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

static void handle_done(struct cell__storage_op *op);

static void handle_pool_done(uv_work_t *work, int status)
{
	(void)status; /* never cancelled */
	handle_done(work->data);
}

static void handle_lent_done(struct cell__lent_work *lent)
{
	handle_done(lent_op(lent));
}

static void go_to_work(struct cell__storage_op *op)
{
	struct cell__storage *storage = op->storage;
	op->work.data = op;
	op->next = storage->at_work;
	storage->at_work = op;
	op->lent = (struct cell__lent_work){ .run = run_lent, .done = handle_lent_done };
	if (op->call && op->call->lend)
		op->call->lend(op->call, &op->lent);
	else
		uv_queue_work(cell__loop_uv(storage->loop), &op->work, run_on_pool, handle_pool_done);
}

static void leave_work(struct cell__storage_op *op)
{
	for (struct cell__storage_op **at = &op->storage->at_work; *at; at = &(*at)->next)
		if (*at == op) {
			*at = op->next;
			break;
		}
}

/* All sessions share the pool: whether this session has used its part of it. */
static bool has_its_part(const struct cell__storage *storage, const struct cell__storage_op *op)
{
	unsigned n = 0;
	for (const struct cell__storage_op *at = op->session_id[0] ? storage->at_work : NULL; at; at = at->next)
		n += strcmp(at->session_id, op->session_id) == 0;
	return n >= CELL_LIMIT_SESSION_WORK;
}

static void start_work(struct cell__storage_op *op)
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
	for (struct cell__storage_op *op = storage->wait_first; op; op = op->next)
		if (!has_its_part(storage, op)) {
			stop_waiting(storage, op);
			go_to_work(op);
			return;
		}
}

/* Takes the waiting ops out of the handle, as one piece of work; none that follow its end. */
static struct cell__storage_op *take_waiting(struct cell__storage_handle *handle)
{
	struct cell__storage_op *first = handle->first, *last = first;
	unsigned n = 1;
	for (; last->then && !last->closes; last = last->then)
		n++;
	handle->first = cell__take_ptr(last->then);
	if (!handle->first)
		handle->last = NULL;
	handle->n_waiting -= n;
	return first;
}

/* The handle is over: ops that waited for it fail. */
static void give_up(struct cell__storage *storage, struct cell__storage_handle *handle)
{
	struct cell__storage_op *op = handle->first;
	int64_t id = handle->id;
	destroy_handle(storage, handle);
	while (op) {
		struct cell__storage_op *then = op->then;
		op->error_type = "";
		fail_unknown(id, &op->err);
		end_op(op);
		op = then;
	}
}

static void handle_done(struct cell__storage_op *op)
{
	struct cell__storage *storage = op->storage;
	struct cell__storage_handle *handle = op->handle;
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
		struct cell__storage_op *then = op->then;
		/* Else a session that was interrupted while opening would leave it open for ever. */
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

/* The bytes of the call. */
static int take_bytes(struct cell__storage_op *op, const struct cell__call *call, size_t max, struct cell_error *err)
{
	if (call->raw_size > max)
		return cell_fail(err, CELL_E_LIMIT, 0, "%s takes at most %zu bytes", call->method, max);
	op->bytes = op->raw = call->raw_size > 0 ? cell__strndup(call->raw, call->raw_size) : NULL;
	op->size = call->raw_size;
	return call->raw_size > 0 && !op->raw ? cell_fail(err, CELL_E_NOMEM, 0, "the host is out of memory") : 0;
}

/* Where the bytes of a chunk are, or are to be.  -1: nowhere that could be. */
static int place_chunk(struct cell__storage_op *op, const struct cell__call *call, enum cell__handle_use use, struct cell_error *err)
{
	json_t *at = json_object_get(call->args, "at");
	json_t *size = json_object_get(call->args, "size");
	json_int_t from = json_integer_value(at), n = json_integer_value(size);
	if (use == CELL__HANDLE_WRITES && !at)
		return take_bytes(op, call, CELL_LIMIT_ARTIFACT_CHUNK, err);
	if (n <= 0 || n > (json_int_t)CELL_LIMIT_ARTIFACT_CHUNK ||
	    (use == CELL__HANDLE_READS && json_integer_value(json_object_get(call->args, "offset")) < 0))
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
static bool read_now(struct cell__storage_op *op)
{
	json_int_t offset = json_integer_value(json_object_get(op->args, "offset"));
	if (!op->bulk || op->handle->busy)
		return false;
	ssize_t n = cell__artifact_pread_cached(op->handle->reader, op->bytes, op->size, offset);
	op->result = n >= 0 ? json_integer(n) : NULL;
	return op->result != NULL;
}

/* Starts it, or queues it behind earlier ops. */
static void submit(struct cell__storage_op *op)
{
	struct cell__storage_handle *handle = op->handle;
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
static struct cell__storage_op *make_op(struct cell__storage *storage, struct cell__call *call, size_t which,
					struct cell__storage_handle *handle, struct cell_error *err)
{
	struct cell__storage_op *op = cell__alloc(1, sizeof *op);
	if (!op) {
		cell_fail(err, CELL_E_NOMEM, 0, "the host is out of memory");
		return NULL;
	}
	*op = (struct cell__storage_op){
		.storage = storage,
		.call = call,
		.by_code = call->principal->kind == CELL__PRINCIPAL_CODE,
		.id = (enum cell__op)which,
		.fn = cell__storage_methods[which].fn,
		.handle = handle,
		.closes = cell__storage_methods[which].what == CELL__CARRIES_LAST,
		.trusted = cell__principal_is_trusted(call->principal),
		.max = call->principal->limits,
		.wants_text = call->answer_text && cell__storage_methods[which].use == CELL__HANDLE_NONE,
	};
	strncpy(op->session_id, call->session_id, sizeof op->session_id - 1);
	if ((cell__storage_methods[which].what == CELL__CARRIES_CHUNK &&
	     place_chunk(op, call, cell__storage_methods[which].use, err) < 0) ||
	    (cell__storage_methods[which].what == CELL__CARRIES_WHOLE && take_bytes(op, call, CELL_LIMIT_ARTIFACT_WHOLE, err) < 0)) {
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
	enum cell__handle_use use = cell__storage_methods[which].use;
	struct cell__storage_handle *handle = NULL;
	if (use == CELL__HANDLE_OPENS)
		handle = create_handle(storage, call, err);
	else if (use != CELL__HANDLE_NONE)
		handle = find_handle(storage, call, use, err);
	/* An op that ends the handle is always accepted: no other follows it. */
	if (handle && handle->n_waiting >= CELL_LIMIT_ARTIFACT_CALLS && cell__storage_methods[which].what != CELL__CARRIES_LAST) {
		cell_fail(err, CELL_E_LIMIT, 0, "more than %u calls wait for one artifact", CELL_LIMIT_ARTIFACT_CALLS);
		handle = NULL;
	}
	struct cell__storage_op *op = use == CELL__HANDLE_NONE || handle ? make_op(storage, call, which, handle, err) : NULL;
	if (!op) {
		if (use == CELL__HANDLE_OPENS && handle)
			destroy_handle(storage, handle);
		call->fail(call, err->code, err->code == CELL_E_NOMEM ? "MemoryError" : "ValueError", err->msg);
	} else if (which == CELL__OP_ARTIFACTS_LOAD_CHUNK && read_now(op)) {
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
	for (struct cell__storage_handle *h = storage->handles, *next; h; h = next) {
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
