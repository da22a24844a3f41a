/*
 * The link to one kernel process: its frame socket, its two output pipes and the output ring.  Used by every
 * executor whose kernels use frames.  Belongs to the loop's thread.
 *
 * The kernel is hostile: bytes that no honest kernel would send end in broken(), once, and nothing more is
 * read.  Callbacks may close the link.
 */
#ifndef CELL_EXECUTORS_LINK_H
#define CELL_EXECUTORS_LINK_H

#include "executors/answer.h"
#include "wire/frame.h"
#include "wire/ring.h"

struct cell__link;

struct cell__link_events {
	/* read: the contents of a DISPLAY, RESULT or CALL; empty for other frames. */
	void (*frame)(void *owner, const struct cell_frame *frame, const struct cell__read *read);
	void (*output)(void *owner, enum cell_stream stream, const char *bytes, size_t size);
	/* The kernel closed its end (reason NULL) or broke the protocol. */
	void (*broken)(void *owner, const char *reason);
};

/* The descriptors for the kernel: socket, stdout, stderr, ring. */
#define CELL_LINK_FDS 4
#define CELL_LINK_MAX_FDS 7 /* with one frame */
struct cell__link_fds {
	int fd[CELL_LINK_FDS];
};
void cell__link_fds_close(struct cell__link_fds *fds);

int cell__link_create(struct cell__loop *loop, const struct cell__link_events *events, void *owner, struct cell__link **ret_link,
		      struct cell__link_fds *ret_fds, struct cell_error *err);
/* Queues bytes that the socket does not accept at once. */
int cell__link_send(struct cell__link *link, uint8_t type, uint32_t id, const void *json, size_t json_size, const void *raw,
		    size_t raw_size, struct cell_error *err);
/* The same with descriptors, which stay the caller's.  CELL_E_BUSY: the kernel does not read. */
int cell__link_send_fds(struct cell__link *link, uint8_t type, uint32_t id, const void *json, size_t json_size, const void *raw,
			size_t raw_size, const int *fds, size_t n_fds, struct cell_error *err);
/* Queued bytes that the kernel has not read yet. */
size_t cell__link_unread(const struct cell__link *link);
/* The bulk area of the shared memory; borrowed. */
struct cell__bulk *cell__link_bulk(struct cell__link *link);
void cell__link_set_interrupt(struct cell__link *link, uint32_t run_id);
/* Whether the kernel reports that it has raised the last interrupt. */
bool cell__link_interrupt_taken(const struct cell__link *link);
void cell__link_pause(struct cell__link *link, bool paused);
/* Whether other sessions have priority: then large output is read in portions, with pauses. */
void cell__link_yield(struct cell__link *link, bool yields);
/* Reads everything written to the ring so far. */
void cell__link_poll(struct cell__link *link);
/* Reads everything that is left in the ring and the pipes, after the kernel's death. */
void cell__link_drain(struct cell__link *link);
/* Memory is freed when the loop has closed the handles.  NULL is allowed. */
void cell__link_close(struct cell__link *link);

#endif
