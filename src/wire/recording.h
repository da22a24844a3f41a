/*
 * The recording of a session: lines of JSON, the first of which describes the session.
 *
 *     {"workcell_recording": 1, "version", "executor", "python", "machine", "seed", "namespaces", "started_ms"}
 *     {"cell": N, "code", "timeout_ms", "at_ms"}            a cell begins
 *     {"call": {"method", "args"}, "raw"?, "answer": {...}, "answer_raw"?, "progress"?}     raw parts are base64
 *     {"clock": {"time": [...], ...}}                       times that the code of the cell has read
 *     {"result": {"stdout", "stderr", "value_json", "repr", "mime", "displays", "error", "state"}}     the cell has ended
 *     {"reset": true}                                       the session was reset
 *
 * A line belongs to the last cell before it.  The last line may be cut off: its writer was killed.
 *
 * Pure: bytes to structs and back.  The bytes are hostile: they come from a file, and code of the session decided most of them.
 */
#ifndef CELL_WIRE_RECORDING_H
#define CELL_WIRE_RECORDING_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"

#define CELL_RECORDING_VERSION 1
#define CELL_RECORDING_BYTES (256u << 20)
#define CELL_RECORDING_LINE_BYTES (64u << 20)
#define CELL_RECORDING_TREE_BYTES (1024u << 20) /* of all its values in memory */
#define CELL_RECORDING_CELLS 100000
#define CELL_RECORDING_CALLS 200000
#define CELL_RECORDING_SEED 32 /* hexadecimal digits */

struct cell__recorded_call {
	size_t cell;  /* the index of its cell; calls before the first one have 0 */
	uint64_t key; /* of what was asked, see cell__recording_key() */
	json_t *asked; /* {"method", "args"} */
	struct cell__buf raw;
	char *answer; /* {"result": ...} or {"error": ...} as it went to the kernel */
	struct cell__buf answer_raw;
	char *progress; /* lines that the code's stderr got meanwhile; or NULL */
	bool used;    /* for the reader's user */
};

struct cell__recorded_cell {
	char *code;
	size_t size;
	int64_t timeout_ms; /* -1: none */
	bool reset_before;
	json_t *clock;  /* {"time": [...], ...}; or NULL */
	json_t *result; /* NULL: the recording ends before the cell did */
};

struct cell__recording {
	char seed[CELL_RECORDING_SEED + 1];
	json_t *head;
	bool namespaces;
	struct cell__recorded_cell *cells;
	size_t n_cells;
	struct cell__recorded_call *calls;
	size_t n_calls;
};

void cell__recording_finish(struct cell__recording *recording);
/* CELL_E_DAMAGED, CELL_E_DIFFERS (another version), CELL_E_LIMIT or CELL_E_NOMEM.  *ret_recording must be finished in any case. */
int cell__recording_read(const char *bytes, size_t size, struct cell__recording *ret_recording, struct cell_error *err);
/* Appends a line; it is taken over, and may be NULL (out of memory). */
int cell__recording_add(struct cell__buf *out, json_t *line);
/* Equal for calls that ask the same; different ones may be equal too. */
uint64_t cell__recording_key(const json_t *method, const json_t *args, size_t raw_size);

#endif
