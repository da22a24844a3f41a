/*
 * The audit log: one JSON object per line for every call that was decided on.
 *
 *     loop's thread                       libuv's pool                          disk
 *     write() ──▶ queue ──── batch ─────▶ redact, cut, as JSON ── lock, append, (sync,) unlock ──▶ audit.jsonl
 *     written() ◀──────────────────────── done, or failed and kept for the next try              audit.jsonl.1 ...
 *
 * Several processes may write to one file.  A writer holds flock(LOCK_EX) on the file while it writes, and has
 * seen that it is still the one that the path names; rotation happens under the same lock.  So a record is never
 * written to a file that was rotated away, records do not mix, and one that did not get through (a full disk) is cut
 * off again before the next writer comes.
 *
 * A record is never dropped silently.  While the file cannot be written, records wait in memory and are tried again;
 * with fail_closed, cell__audit_admit() refuses new calls as long.  Past twice queue_bytes cell__audit_write() refuses
 * the record itself, counts it, and the log gets a record of how many are missing as soon as it can be written again.
 *
 * Belongs to the loop's thread.
 */
#ifndef CELL_GATE_AUDIT_H
#define CELL_GATE_AUDIT_H

#include <jansson.h>

#include "base/base.h"
#include "loop/loop.h"
#include "gate/redact.h"

#define CELL__AUDIT_LIMIT_KEEP 1000          /* rotated files */
#define CELL__AUDIT_LIMIT_ARGS (16u * 1024u) /* bytes of a call's arguments as JSON; more is cut */
#define CELL__AUDIT_LIMIT_WORD 256u          /* bytes of a name or id */
#define CELL__AUDIT_LIMIT_ERROR 1024u        /* bytes of an error's message */
#define CELL__AUDIT_LIMIT_LINE (1024u * 1024u) /* bytes of a line that is read; no record comes near it */
#define CELL__AUDIT_LIMIT_MIN_FILE 4096      /* smallest max_bytes */
#define CELL__AUDIT_LOCK_MS 5000             /* another process that holds the lock for longer has stalled */
#define CELL__AUDIT_RETRY_MS 200             /* first pause after a failure; it doubles up to the next */
#define CELL__AUDIT_RETRY_MAX_MS 5000

struct cell__audit_log;

enum cell__audit_log_sync {
	CELL__AUDIT_SYNC_NEVER,    /* the system writes when it likes: a power failure loses seconds, a crash nothing */
	CELL__AUDIT_SYNC_INTERVAL, /* fsync every sync_ms while there is something new */
	CELL__AUDIT_SYNC_ALWAYS,   /* written() comes after the fsync */
};

struct cell__audit_log_options {
	struct cell__loop *loop;
	const char *path;
	int64_t max_bytes;         /* the file is rotated before it gets larger; 0: never */
	int keep;    /* rotated files: path.1 (newest) to path.<keep> */
	enum cell__audit_log_sync sync;
	int64_t sync_ms;
	size_t queue_bytes;        /* more than this is waiting: new calls are refused */
	const char *const *redact; /* further names and paths, see cell__redactor_create(); NULL: none */
	bool fail_closed;          /* refuse calls while the log cannot be written */
	void (*log)(void *arg, enum cell_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
	void *log_arg;             /* log may be NULL; the loop's thread */
};
#define CELL__AUDIT_OPTIONS_INIT             \
	{ .max_bytes = 64 << 20,             \
	  .keep = 5,                         \
	  .sync = CELL__AUDIT_SYNC_INTERVAL, \
	  .sync_ms = 1000,                   \
	  .queue_bytes = 8u << 20,           \
	  .fail_closed = true }

/* The log behind its public name. */
struct cell__audit_log *cell__audit_of(struct cell_audit *audit);
/* As it was given; never changes.  Any thread. */
const char *cell__audit_path(const struct cell__audit_log *audit);
/* Opens or creates the file, 0600, at once: problems with the path are reported here. */
int cell__audit_log_open(const struct cell__audit_log_options *opts, struct cell__audit_log **ret_audit, struct cell_error *err);
/* Writes the queued records, with one more try after a failure, then calls closed() in a later iteration of the loop; then all memory is freed. */
void cell__audit_log_close(struct cell__audit_log *audit, void (*closed)(void *arg), void *arg);

/*
 * Whether a call may be made.  CELL_E_IO: the log cannot be written, and fail_closed; CELL_E_LIMIT: more than
 * queue_bytes wait to be written.  Records of calls that were admitted are taken also when the queue has filled since.
 */
int cell__audit_admit(struct cell__audit_log *audit, struct cell_error *err);

enum cell__audit_decision {
	CELL__AUDIT_ALLOW, /* by policy */
	CELL__AUDIT_DENY, /* by policy or a middleware */
	CELL__AUDIT_ACCEPTED, /* asked, and accepted */
	CELL__AUDIT_EDITED, /* asked, and accepted with other arguments */
	CELL__AUDIT_REJECTED,
	CELL__AUDIT_TIMEOUT, /* asked, but not answered in time */
	CELL__AUDIT_WITHDRAWN, /* cancelled (interrupt, reset, close, death) before a decision */
};
enum cell__audit_by {
	CELL__AUDIT_BY_POLICY, /* rule 0: its default */
	CELL__AUDIT_BY_PERSON, /* through the API */
	CELL__AUDIT_BY_CLI,
	CELL__AUDIT_BY_TIMEOUT,
	CELL__AUDIT_BY_MIDDLEWARE,
	CELL__AUDIT_BY_SESSION, /* which ended, or stopped the call */
	CELL__AUDIT_BY_HOST, /* the program itself: no rule applied, or one that would ask */
};
enum cell__audit_outcome { CELL__AUDIT_OK, CELL__AUDIT_ERROR, CELL__AUDIT_CANCELLED };

/* Strings may be NULL: null in the log.  Ill-formed UTF-8 is replaced, long strings are cut. */
struct cell__audit_record {
	const char *session_id;
	const char *cell_hash; /* cell__sha256_hex() of the code */
	const char *request_id;
	const char *kind; /* "tool", "shell", ... */
	const char *tool, *callable, *adapter, *executor;
	const char *principal; /* "code", "mcp", "http", "host" */
	const char *client; /* its name */
	json_t *args; /* as they were run; or NULL.  From now on they must not be changed: they are read on the pool */
	json_t *args_before; /* as the code gave them, where a person or a middleware changed them; else NULL */
	enum cell__audit_decision decision;
	enum cell__audit_by by;
	int rule; /* of the policy; 0: none */
	const char *rule_name;
	int64_t duration_us;
	enum cell__audit_outcome outcome;
	int code; /* CELL__AUDIT_ERROR: enum cell_code */
	const char *error; /* its message */
};

/*
 * 0: taken; written() (may be NULL) is called exactly once, in a later iteration of the loop, with 0 when the record is in the file
 * (with SYNC_ALWAYS: on the disk) or a negative errno when the first try failed: the record is kept and tried again, and
 * the caller knows that it is not there yet.  -1: CELL_E_LIMIT (see above), CELL_E_NOMEM or CELL_E_CLOSED; written()
 * never comes, and the record counts as lost.
 */
int cell__audit_write(struct cell__audit_log *audit, const struct cell__audit_record *record, void (*written)(void *arg, int rc), void *arg,
		      struct cell_error *err);

/*
 * A record of calls of a session that were withdrawn while they waited for room in the log (gate/pace.h).  -1: not now.
 */
int cell__audit_write_withdrawn(struct cell__audit_log *audit, const char *session_id, uint64_t count);
/* The approximate memory size of a value. */
size_t cell__audit_memory_of(const json_t *value);
/* At least what these arguments take in a record, and at most about CELL__AUDIT_LIMIT_ARGS.  Quick, however large they are. */
size_t cell__audit_size_of(const json_t *args);
/* The same of an error's message; NULL is allowed. */
size_t cell__audit_size_of_error(const char *error);

struct cell__egress_event;
/*
 * A connection of a sandbox, as the same kind of record: kind "network", callable "connect", and "close" for its end.  One
 * that is about to be made is refused like a call that is not admitted: -1.
 */
int cell__audit_connection(struct cell__audit_log *audit, const char *session_id, const char *cell_hash, const char *executor,
			   const struct cell__egress_event *event, struct cell_error *err);

struct cell__audit_stats {
	uint64_t written; /* records in the file */
	uint64_t failures; /* tries to write or to sync that failed */
	uint64_t lost; /* records that were refused, or given up at the end */
	size_t backlog_bytes; /* waiting in memory, as they were estimated */
	bool failing;
	int error; /* errno of the last failure */
};
void cell__audit_stats(const struct cell__audit_log *audit, struct cell__audit_stats *ret);

/* ---- inside: audit_file.c, on the pool ---- */

struct cell__audit_file {
	char *path;
	int64_t max_bytes;
	int keep;
	bool sync; /* rotation and creation are made durable */
	int fd; /* -1: to be opened with the next write */
	bool is_new; /* the folder may not have its name on the disk yet */
	dev_t dev;
	ino_t ino;
	off_t end; /* our last position; with another size, the writer checks that the last line is complete */
	int rotate_error; /* errno: it could not be rotated and grows */
};

void cell__audit_file_init(struct cell__audit_file *file, const char *path);
void cell__audit_file_finish(struct cell__audit_file *file);
/* 0, or an errno, like all below.  The one that is called on the loop's thread, once: it neither writes nor syncs. */
int cell__audit_file_open(struct cell__audit_file *file);
/*
 * Appends lines (each ends in \n): all of them that fit at once are one write.  *ret_done says how many of them are
 * in the file; with durable, on the disk.
 */
int cell__audit_file_append(struct cell__audit_file *file, const struct cell__buf *lines, size_t count, bool durable, size_t *ret_done);
int cell__audit_file_sync(struct cell__audit_file *file);

/* ---- inside: audit_record.c ---- */

/* A record on its way. */
struct cell__audit_item {
	struct cell__audit_item *next;
	struct cell__buf head, tail; /* of the line; the arguments and the error's message are made on the pool */
	json_t *args, *args_before;
	char *error;
	struct cell__buf line; /* all of it, once made */
	size_t cost;
	bool done;
	void (*written)(void *arg, int rc);
	void *arg;
};

/* Loop's thread.  NULL: out of memory. */
struct cell__audit_item *cell__audit_item_create(const struct cell__audit_record *record);
/* A record that says how many are missing. */
struct cell__audit_item *cell__audit_item_create_lost(uint64_t lost, int error);
/* A record of how many calls of a session were withdrawn before they were decided on. */
struct cell__audit_item *cell__audit_item_create_withdrawn(const char *session_id, uint64_t count);
/* Loop's thread. */
void cell__audit_item_destroy(struct cell__audit_item *item);
/* Loop's thread: frees the source data once the line is made. */
void cell__audit_item_shrink(struct cell__audit_item *item);
/* On the pool: makes the line.  -1: out of memory. */
int cell__audit_item_make_line(struct cell__audit_item *item, const struct cell__redactor *redactor);

/* "2026-11-15T05:06:40.123Z" */
#define CELL__AUDIT_TIME_SIZE 32
void cell__audit_time(const struct timespec *when, char out[static CELL__AUDIT_TIME_SIZE]);

#endif
