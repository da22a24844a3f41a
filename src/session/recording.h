/*
 * What a session that is recorded writes, and what a session that is replayed is answered (wire/recording.h).
 *
 *     record   cells, answers of the host, times and results ──▶ lines in memory ──▶ pool: appended to the file
 *     replay   calls of the code ──▶ the answer to the same call in the recording, or CELL_E_DIFFERS: nobody else is asked
 *
 * Belongs to the loop's thread, except for opening and freeing.  A recording that cannot be written, or is full, ends: the next result says so.
 */
#ifndef CELL_SESSION_RECORDING_H
#define CELL_SESSION_RECORDING_H

#include "executors/executor.h"
#include "loop/loop.h"
#include "session/result.h"
#include "wire/recording.h"

struct cell__recorder {
	char seed[CELL_RECORDING_SEED + 1];
	struct cell__recording replayed; /* of a session that is replayed */
	bool replays;
	size_t first_unused; /* of its calls */
	size_t at; /* of its cells: one more than those that have begun */
	char *strange; /* the first call that it does not have, JSON; or NULL */

	/* of a session that is recorded */
	struct cell__loop *loop; /* NULL: the session has not begun */
	char *path;
	int fd;
	uint64_t cells, bytes;
	struct cell__buf waiting, writing;
	uv_work_t work;
	bool busy;
	int write_error; /* the pool's; looked at when it is done */
	char problem[160]; /* why nothing more is written; "" */
	bool is_told;
	int *filing; /* of the session: the pool has work for it */
	void (*progress)(void *arg); /* a write is done */
	void *arg;
};

/*
 * record: a file that does not exist yet, or a folder, in which it gets the name ID.jsonl; replay: one that is read.  One of them is NULL.  Any
 * thread but the loop's.
 */
int cell__recorder_create(const char *record, const char *replay, const char *id, const char *executor, const char *python, bool namespaces,
			  struct cell__recorder **ret_recorder, struct cell_error *err);
/* NULL is allowed.  No write is under way. */
void cell__recorder_destroy(struct cell__recorder *recorder);
/* What belongs to the file's end and may not be there yet; *ret_at: where it begins. */
int cell__recorder_unwritten(const struct cell__recorder *recorder, struct cell__buf *out, uint64_t *ret_at);

/* The session is being closed: a file without a cell is removed. */
void cell__recorder_close(struct cell__recorder *recorder);
void cell__recorder_begin_cell(struct cell__recorder *recorder, const char *code, size_t size, int64_t timeout_ms);
void cell__recorder_end_cell(struct cell__recorder *recorder, struct cell_result *result);
void cell__recorder_reset(struct cell__recorder *recorder);
/* asked: the call's JSON; answer: {"result"} or {"error"}. */
void cell__recorder_add_call(struct cell__recorder *recorder, const char *asked, size_t size, const void *raw, size_t raw_size,
			     const char *answer, const void *answer_raw, size_t answer_size, const char *progress);

/* A call that the recorder answers itself. */
struct cell__recorded_answer {
	char *own; /* text, where it is not the recording's */
	const char *text;
	const void *raw;
	size_t raw_size;
	const char *progress; /* or NULL */
	bool silent; /* no answer is expected */
};
/* False: it is to be made. */
bool cell__recorder_answer(struct cell__recorder *recorder, const struct cell__asked *asked, struct cell__recorded_answer *ret_answer);

/* What a result is compared by, and what is recorded of it; NULL: out of memory. */
json_t *cell__recorder_describe(const struct cell_result *result);

#endif
