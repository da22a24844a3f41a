/*
 * What every other file stands on: errors, memory, descriptors, byte buffers, limits.
 * Includes nothing of ours but the public header.  No function here blocks or keeps state.
 */
#ifndef CELL_BASE_H
#define CELL_BASE_H

#include <stdbool.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "workcell.h"

/* ---- errors ---- */

/*
 * Fills *err (may be NULL) and returns -1, so that `return cell_fail(err, CELL_E_IO, errno, "open %s", path)`
 * is the whole error path.  Where sys is not 0 its text is appended.
 */
int cell_fail(struct cell_error *err, int code, int sys, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Puts "prefix: " before what the error says already. */
int cell_fail_wrap(struct cell_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- limits: every bound has its name here ---- */

#define CELL_LIMIT_CODE_BYTES (32u * 1024u * 1024u)  /* one cell's source */
#define CELL_LIMIT_DISPLAYS 1000u                    /* displays kept in one result */
#define CELL_LIMIT_DISPLAY_BYTES (256u * 1024u * 1024u) /* their bytes together */
#define CELL_LIMIT_SPILL_BYTES (1024u * 1024u * 1024u) /* of one run's output in its file; more is in no file */
#define CELL_LIMIT_IMAGES 1000u                      /* files that one run makes in images_dir */
#define CELL_LIMIT_IMAGE_BYTES (1024u * 1024u * 1024u) /* their bytes together */
#define CELL_LIMIT_NOTICES 16u                       /* in one result */
#define CELL_LIMIT_SPIN_US 10000                    /* that a caller of cell_session_start() stays */
#define CELL_LIMIT_QUEUE 1000u                       /* cells waiting in one session */
#define CELL_LIMIT_JSON_DEPTH 512u
#define CELL_LIMIT_CALLS 4096u                       /* namespace calls of one kernel under way */
#define CELL_LIMIT_KERNEL_BYTES (256u * 1024u * 1024u) /* kept in memory for one kernel (session/budget.h) ... */
#define CELL_LIMIT_ENGINE_BYTES (1024u * 1024u * 1024u) /* ... and for all kernels of an engine together, ... */
#define CELL_LIMIT_KERNEL_FAIR_BYTES (1024u * 1024u) /* ... but a kernel with no more than this is served even then */
#define CELL_LIMIT_REFUSALS_BYTES (1024u * 1024u) /* of refusals that a kernel leaves unread before it is ended */
#define CELL_LIMIT_TREE_BYTES (64u * 1024u * 1024u)  /* what the JSON of one call may take as a tree, besides its strings */
#define CELL_LIMIT_LARGE_BYTES (64u * 1024u)         /* a longer message is looked into on the pool, not on the loop */
#define CELL_LIMIT_HEAD_BYTES (1024u * 1024u)        /* the same of a result's or display's head, which has few values */
#define CELL_LIMIT_WORKSPACE_DEPTH 128u              /* folders in folders of a workspace with a limit */
#define CELL_LIMIT_OPEN_ARTIFACTS 256u               /* being read or written in one space */
#define CELL_LIMIT_SESSION_ARTIFACTS 64u             /* the same by one session */
#define CELL_LIMIT_SESSION_WORK 2u                   /* calls of one session that the storage works on at once; more wait */
#define CELL_LIMIT_ARTIFACT_CHUNK (4u * 1024u * 1024u)
#define CELL_LIMIT_ARTIFACT_WHOLE (1024u * 1024u * 1024u) /* saved or loaded by one call */
#define CELL_LIMIT_ARTIFACT_CALLS 16u                /* under way on one open artifact */
#define CELL_LIMIT_MIME_PARTS 64u
#define CELL_LIMIT_SPAWN_MESSAGE (128u * 1024u)      /* spawner protocol, one datagram */
#define CELL_LIMIT_POOL 64
#define CELL_LIMIT_MIN_OUTPUT 1024                   /* smallest max_output_bytes */
#define CELL_LIMIT_EVENT_QUEUE_BYTES (1u << 20)      /* events a slow reader has not taken yet */

/* ---- memory ---- */

/* Overflow-checked; NULL when memory is gone or the fault hook says so. */
void *cell__alloc(size_t count, size_t size) __attribute__((malloc));
void *cell__realloc(void *old, size_t size);
char *cell__strdup(const char *text);
char *cell__strndup(const char *bytes, size_t size);
/* Tests: the n-th allocation from now fails (0: never).  Not for several threads at once. */
void cell__alloc_fail_after(long n);

static inline void cell__free_cleanup(void *pointer)
{
	free(*(void **)pointer);
}
static inline void cell__fd_cleanup(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}
#define CELL_AUTO_FREE __attribute__((cleanup(cell__free_cleanup)))
#define CELL_AUTO_FD __attribute__((cleanup(cell__fd_cleanup)))

#define cell__take_ptr(var)                         \
	({                                          \
		__typeof__(var) cell_taken = (var); \
		(var) = NULL;                       \
		cell_taken;                         \
	})
static inline int cell__take_fd(int *fd)
{
	int taken = *fd;
	*fd = -1;
	return taken;
}
static inline void cell__close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* ---- byte buffers ---- */

struct cell__buf {
	char *data; /* NULL while empty; data[size] is NUL once there is data */
	size_t size;
	size_t capacity;
};
#define CELL_BUF_INIT { NULL, 0, 0 }

void cell__buf_finish(struct cell__buf *buf);
#define CELL_AUTO_BUF __attribute__((cleanup(cell__buf_finish)))
/* 0, or -1 when memory is gone (the buffer is as before). */
int cell__buf_reserve(struct cell__buf *buf, size_t more);
int cell__buf_add(struct cell__buf *buf, const void *bytes, size_t size);
int cell__buf_add_str(struct cell__buf *buf, const char *text);
int cell__buf_printf(struct cell__buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Drops the first n bytes. */
void cell__buf_shift(struct cell__buf *buf, size_t n);
/* Hands over the memory, NUL-terminated; NULL only when memory is gone. */
char *cell__buf_take(struct cell__buf *buf);
/* Appends bytes as a JSON string body without quotes; bytes must be valid UTF-8. */
int cell__buf_add_json_escaped(struct cell__buf *buf, const char *bytes, size_t size);
int cell__buf_add_json_string(struct cell__buf *buf, const char *bytes, size_t size);
int cell__buf_add_base64(struct cell__buf *buf, const void *bytes, size_t size);
/* Appends what base64 text stands for (spaces and line breaks are skipped); -1 also when it is none, and nothing is added. */
int cell__buf_add_unbase64(struct cell__buf *buf, const char *text, size_t size);
/* Appends bytes with every ill-formed UTF-8 sequence replaced by U+FFFD. */
int cell__buf_add_utf8(struct cell__buf *buf, const char *bytes, size_t size);

/* ---- small things ---- */

int64_t cell__now_us(void);               /* monotonic */
void cell__random_hex(char *out, size_t n_chars); /* n_chars + NUL; from getrandom */
/* The home directory of this user as the system knows it (not $HOME); "/" when it knows none. */
const char *cell__home_dir(void);
/* True when bytes[0..size) is well-formed UTF-8. */
bool cell__utf8_ok(const char *bytes, size_t size);
/* How many bytes at the end of text begin a UTF-8 character that is not all there. */
size_t cell__utf8_cut(const char *text, size_t size);

#endif
