/*
 * One cell on its way through a session: its output, its events, its result.  Belongs to the loop's thread, except
 * for the event queue, which a waiting caller empties on its own thread.
 *
 *     queued ──▶ started ──▶ ending (output file and images being written) ──▶ delivered
 */
#ifndef CELL_SESSION_RUN_H
#define CELL_SESSION_RUN_H

#include "calls/call.h"
#include "session/images.h"
#include "session/output.h"
#include "session/result.h"

struct cell__run_item; /* a queued event */
struct cell__tool_image;

struct cell__run {
	struct cell__task task;
	struct cell_session *session;
	uint32_t id;
	char *code;
	size_t size;
	int64_t timeout_ms; /* -1: none */
	cell_event_fn on_event;
	void *event_arg;
	int spin_us;
	const int *spin_end;
	struct cell__call_trace trace; /* of its calls */
	bool waited; /* a thread waits in cell_session_run(); else callbacks come from the loop */
	struct cell__state_id state_id; /* that the session has after it, of the caller's choice; unknown: a new one */
	bool if_idle; /* a question to the kernel, not a cell: fails with CELL_E_BUSY instead of waiting for cells, but waits for other questions */

	/* the waiting caller's side */
	struct cell__waiter waiter; /* signalled for every event and for the result; its lock guards these: */
	struct cell__run_item *first, *last;
	size_t queued_bytes;
	bool delivered;
	bool throttled; /* the caller does not keep up */

	/* the session's side */
	bool started, ending;
	bool recorded; /* the session's recording has its beginning */
	bool restored; /* its kernel ended, and the session continues from the point before it */
	bool timed_out, interrupt_asked, cancelled;
	bool held; /* the receiver of the events, on the loop's thread, does not keep up */
	const char *over; /* the limit that the host stopped it for; NULL: none */
	uint64_t over_max, over_used;
	int64_t started_us;
	struct cell__capped out, err, text;
	struct cell__spill spill;
	bool spilling, spilled; /* spilled: the file is closed */
	size_t display_bytes;
	struct cell__image_queue images;
	size_t images_asked; /* written and to be written */
	uint64_t image_bytes;
	struct cell__tool_image *tool_images; /* those that tools answered with */
	size_t n_tool_images;
	bool told_displays, told_images; /* that a limit was met */
	struct cell_result *result;
	void (*progress)(void *run);
	void (*finished)(struct cell__run *run); /* the result is complete */
	struct cell__run *next;
};

struct cell__run_config {
	struct cell__loop *loop;
	const char *session_id;
	const char *isolation;
	size_t max_output;
	struct cell__image_folder *images; /* its path may be NULL */
	void (*progress)(void *run); /* the output file or the images caught up a little */
	void (*finished)(struct cell__run *run);
};

struct cell__run *cell__run_create(const char *code, size_t size, const struct cell_run_options *opts,
				   const struct cell__run_config *config, struct cell_error *err);
void cell__run_destroy(struct cell__run *run);

/* spill_dir NULL: output beyond the cap is not kept. */
void cell__run_output(struct cell__run *run, const char *spill_dir, enum cell_stream stream, const char *bytes, size_t size);
void cell__run_display(struct cell__run *run, const struct cell__bundle *bundle);
/* An image in the answer of a tool is written to the folder; if the cell then shows it, it is the same file. */
void cell__run_tool_image(struct cell__run *run, const void *bytes, size_t size);
/* CELL_EVENT_CALL_* and CELL_EVENT_APPROVAL*. */
void cell__run_call_event(struct cell__run *run, const struct cell_event *event);
/* Must the kernel be slowed down? */
bool cell__run_wants_pause(struct cell__run *run);
/* Nothing more comes: closes the output file and completes the result, then calls finished(). */
void cell__run_end(struct cell__run *run, bool state_kept);
/* Delivers the result to its receiver.  The run is freed afterwards unless a thread waits for it. */
void cell__run_deliver(struct cell__run *run);
/*
 * Caller's thread: submits the run (run->task), hands events on until the result is there.  resume() is called when
 * it has caught up.  Callbacks run while other threads run the loop, so a slow callback slows nothing else.
 */
struct cell_result *cell__run_wait(struct cell__run *run, struct cell__loop *loop, void (*resume)(struct cell__run *run));

#endif
