/*
 * Artifacts of any size for programs: cell_artifact_save() and cell_artifact_load().  On the caller's thread, which waits for one operation
 * after another.  Kernels drive the same chunk operations themselves, over the memory that they share with the host.
 */
#include <jansson.h>

#include "space/space.h"

#define SMALL_BYTES (16u * 1024u * 1024u) /* so much goes in one operation, which holds it in memory more than once */
#define PIECE_BYTES (1024u * 1024u)

struct transfer {
	struct cell_space *space;
	json_int_t handle;
	struct cell_answer *answer;
	struct cell_error *err;
};

/* One operation on the handle; its answer replaces the one before. */
static int step(struct transfer *transfer, const char *method, int64_t offset, const void *bytes, size_t size)
{
	char args[128];
	int n = snprintf(args, sizeof args, "{\"handle\":%lld", (long long)transfer->handle);
	if (offset >= 0)
		n += snprintf(args + n, sizeof args - (size_t)n, ",\"offset\":%lld,\"size\":%u", (long long)offset, PIECE_BYTES);
	snprintf(args + n, sizeof args - (size_t)n, "}");
	cell_answer_finish(transfer->answer);
	return cell_space_call_ex(transfer->space, method, args, bytes, size, transfer->answer, transfer->err);
}

/* The same after a failure, whose error is kept. */
static void give_up(const struct transfer *transfer, const char *method)
{
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct transfer last = *transfer;
	last.answer = &answer;
	last.err = NULL;
	(void)step(&last, method, -1, NULL, 0);
	cell_answer_finish(&answer);
}

static int read_handle(struct transfer *transfer, json_int_t *ret_size)
{
	json_t *begun = json_loads(transfer->answer->json, JSON_ALLOW_NUL, NULL);
	int rc = begun && json_unpack(begun, "{s:I}", "handle", &transfer->handle) == 0 ? 0 : -1;
	if (rc == 0 && ret_size)
		*ret_size = json_integer_value(json_object_get(begun, "size"));
	json_decref(begun);
	return rc < 0 ? cell_fail(transfer->err, CELL_E_NOMEM, 0, "out of memory for an artifact") : 0;
}

static int send_pieces(struct transfer *transfer, const char *bytes, size_t size)
{
	for (size_t at = 0; at < size; at += PIECE_BYTES)
		if (step(transfer, "artifacts.save_chunk", -1, bytes + at, size - at < PIECE_BYTES ? size - at : PIECE_BYTES) < 0)
			return -1;
	return 0;
}

/* Failures of `more` and `take`: *err has the whole message. */
static int fail_message(struct transfer *transfer)
{
	cell_answer_finish(transfer->answer);
	transfer->answer->message = transfer->err ? cell__strdup(transfer->err->msg) : NULL;
	return -1;
}

int cell_artifact_save(struct cell_space *space, const char *args_json, const void *bytes, size_t size, cell_more_fn more, void *arg,
		       struct cell_answer *ret_answer, struct cell_error *err)
{
	if (cell__require(err, space, ret_answer) < 0 || (size > 0 && cell__require(err, bytes) < 0))
		return -1;
	struct cell_error why = { 0 };
	struct transfer transfer = { .space = space, .answer = ret_answer, .err = err ? err : &why };
	if (!more && size <= SMALL_BYTES)
		return cell_space_call_ex(space, "artifacts.save", args_json, bytes, size, ret_answer, err);
	if (cell_space_call_ex(space, "artifacts.save_begin", args_json, NULL, 0, ret_answer, err) < 0 || read_handle(&transfer, NULL) < 0)
		return -1;
	int rc = send_pieces(&transfer, bytes, size);
	for (size = 1; rc == 0 && more && size > 0;) {
		if (more(arg, &bytes, &size, transfer.err) < 0)
			rc = fail_message(&transfer);
		else
			rc = send_pieces(&transfer, bytes, size);
	}
	if (rc == 0)
		return step(&transfer, "artifacts.save_commit", -1, NULL, 0);
	give_up(&transfer, "artifacts.save_abort");
	return rc;
}

static int take_pieces(struct transfer *transfer, json_int_t size, cell_take_fn take, void *arg)
{
	for (json_int_t at = 0; at < size;) {
		if (step(transfer, "artifacts.load_chunk", at, NULL, 0) < 0)
			return -1;
		size_t n = transfer->answer->raw_size;
		if (n == 0)
			cell_fail(transfer->err, CELL_E_IO, 0, "the artifact is shorter than its recorded size");
		if (n == 0 || take(arg, transfer->answer->raw, n, size, transfer->err) < 0)
			return fail_message(transfer);
		at += (json_int_t)n;
	}
	return 0;
}

static int load_large(struct transfer *transfer, const char *args, cell_take_fn take, void *arg)
{
	json_int_t size;
	cell_answer_finish(transfer->answer);
	if (cell_space_call_ex(transfer->space, "artifacts.load_open", args, NULL, 0, transfer->answer, transfer->err) < 0 ||
	    read_handle(transfer, &size) < 0)
		return -1;
	CELL_AUTO_FREE char *info = cell__take_ptr(transfer->answer->json);
	int rc = take_pieces(transfer, size, take, arg);
	give_up(transfer, "artifacts.load_close");
	if (rc < 0)
		return rc;
	/* It may have been replaced by a small one in the meantime: then its only piece stays. */
	if (transfer->answer->raw_size < (size_t)size)
		cell_answer_finish(transfer->answer);
	free(transfer->answer->json);
	transfer->answer->json = cell__take_ptr(info);
	return 0;
}

int cell_artifact_load(struct cell_space *space, const char *args_json, cell_take_fn take, void *arg, struct cell_answer *ret_answer,
		       struct cell_error *err)
{
	if (cell__require(err, space, take, ret_answer) < 0)
		return -1;
	struct cell_error why = { 0 };
	struct transfer transfer = { .space = space, .answer = ret_answer, .err = err ? err : &why };
	json_t *bounded = json_loads(args_json, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	(void)json_object_set_new(bounded, "max_bytes", json_integer(SMALL_BYTES));
	CELL_AUTO_FREE char *args = bounded ? json_dumps(bounded, JSON_COMPACT) : NULL;
	json_decref(bounded);
	/* The operation reports invalid JSON. */
	int rc = cell_space_call_ex(space, "artifacts.load", args ? args : args_json, NULL, 0, ret_answer, transfer.err);
	if (rc < 0 && transfer.err->code == CELL_E_LIMIT)
		return load_large(&transfer, args_json, take, arg);
	if (rc == 0 && ret_answer->raw_size > 0 &&
	    take(arg, ret_answer->raw, ret_answer->raw_size, (int64_t)ret_answer->raw_size, transfer.err) < 0)
		rc = fail_message(&transfer);
	return rc;
}
