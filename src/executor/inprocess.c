/*
 * The `inprocess` executor: the kernel's package in the host's own process, called directly.
 *
 * Actors.  Each kernel has a thread of its own that runs cells; it holds Python's GIL while it does and never while it
 * waits for us.  The loop belongs to whoever runs it, and nobody who runs it ever takes the GIL: what needs it (an
 * interrupt is an asynchronous exception) is done by the keeper of libpython.h.
 *
 * To the kernel go messages in a list.  From the kernel come calls of functions (wire/inproc_abi.h): its thread takes
 * the loop for as long as that takes, does what the loop would have done with a frame, and lets go.  So a call of a host
 * function runs on the thread that made it, and a result needs nobody else.  A call that is not answered at once is
 * waited for by running the loop.  Who waits for a run must therefore not keep the loop: `takes_loop`.
 *
 *     asking (an interpreter, where its library is) ──▶ starting (the thread) ──READY──▶ live
 *     any ──close──▶ leaving ──the thread ends──▶ finishing ──nobody of Python inside──▶ exited() and gone
 *                       └── it does not: abandoned ──▶ finishing
 *
 * An abandoned thread keeps its reference: what it still calls answers CLOSED, what it writes is dropped.  When the code
 * comes to its end after all, the thread ends too.
 *
 * Locks: a kernel's lock guards what both sides touch.  The GIL and the loop are never waited for with it held; the
 * loop's own lock may be taken inside it.
 */
#define _GNU_SOURCE
#include "wire/inproc_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include "executor/answer.h"
#include "executor/executor.h"
#include "executor/libpython.h"
#include "spawn/hub.h"
#include "wire/spin.h"

#define STACK_BYTES (64u << 20) /* of a kernel's thread: deep recursion through C code ends in an exception, not in a crash */
#define OUT_BYTES (1u << 20)    /* output that nobody has taken yet */
#define PACE_MS 4               /* output that follows other output waits this long */
#define ABANDON_MS 500          /* for code that is interrupted because its session ends */
#define TRIED_MS 100            /* ... unless it was interrupted so long ago */
#define ASK_TIMEOUT_MS 20000    /* an interpreter that does not say where its library is */
#define SAID_BYTES 16384u
#define ASK_BIT 0x80000000u     /* ids of ask() have it, those that Python gives do not */
#define WAIT_MS 100

enum state { ASKING, STARTING, LIVE, LEAVING, FINISHING };

struct ask {
	struct cell__task task;
	struct kernel *kernel;
	const struct cell_frame *call;
	struct cell__waiter waiter;
	uint32_t id;
	bool is_main;
	enum cell_inproc_status status;
	struct cell_inproc_message *reply;
	struct ask *next;
};

struct sending {
	struct cell__task task;
	struct kernel *kernel;
	const struct cell_frame *frame;
	struct cell__waiter waiter;
	enum cell_inproc_status status;
	struct sending *next;
};

/* Output in the order written: one of these, then its bytes. */
struct record {
	uint32_t stream, size;
};

struct kernel {
	struct cell__kernel base;
	struct cell_inproc abi;
	atomic_int refs; /* the loop's side, the thread, Python's link, jobs of the keeper */

	/* loop's thread */
	const struct cell__kernel_events *events;
	void *owner;
	enum state state;
	bool asked, abandoned, paused, threaded;
	char *python, *kernel_dir;
	struct cell__libpython_info info;
	struct cell__process *process;
	struct cell__buf said;
	struct ask *asks;
	uint32_t next_ask;
	struct sending *held, **held_end; /* while paused */
	uv_timer_t timer, pace;
	uv_poll_t polls[2];
	bool polling;
	int open_handles;

	pthread_mutex_t lock;
	/* under the lock */
	pthread_cond_t cond; /* a message, or room for output */
	struct cell__loop *loop; /* NULL: finished */
	bool closed;
	int inside;        /* threads that have to do with the loop */
	bool finish_wanted;
	struct cell_inproc_message *first, *last;
	int event_fd;
	bool watched;
	struct cell__buf out;
	size_t last_record; /* where it begins */
	bool scheduled;     /* the output will be looked at */
	int pipes[2][2];    /* stdout and stderr of children: reading, writing; -1 until asked for */
	struct cell_error error;
	bool job_posted, stop_posted;
	struct cell__task flush, poll_pipes, ended, finish, stop;

	struct cell__libpython_job interrupt_job, abandon_job;
	_Atomic uint32_t interrupt_run;
	int64_t interrupt_us; /* loop's thread */
	struct cell_ring_beat beat; /* messages sent to it */
	struct cell_spin spin;
};

static atomic_bool forked;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void finish(struct kernel *kernel);

static struct kernel *of_abi(struct cell_inproc *abi)
{
	return (struct kernel *)((char *)abi - offsetof(struct kernel, abi));
}

static void unref(struct kernel *kernel)
{
	if (atomic_fetch_sub(&kernel->refs, 1) != 1)
		return;
	while (kernel->first) {
		struct cell_inproc_message *next = kernel->first->next;
		free(kernel->first);
		kernel->first = next;
	}
	cell__close_fd(&kernel->event_fd);
	for (int i = 0; i < 4; i++)
		cell__close_fd(&kernel->pipes[i / 2][i % 2]);
	cell__buf_finish(&kernel->out);
	cell__buf_finish(&kernel->said);
	free(kernel->python);
	free(kernel->kernel_dir);
	pthread_cond_destroy(&kernel->cond);
	pthread_mutex_destroy(&kernel->lock);
	free(kernel);
}

/* Under the lock: some thread will do it, unless it is over.  What is posted here runs before `finish`, which is the last. */
static bool post(struct kernel *kernel, struct cell__task *task)
{
	if (!kernel->closed)
		cell__loop_post(kernel->loop, task);
	return !kernel->closed;
}

/* ---- to the kernel ---- */

static struct cell_inproc_message *make_message(uint8_t type, uint32_t id, const void *json, size_t json_size,
						const void *raw, size_t raw_size)
{
	struct cell_inproc_message *message = cell__alloc(1, sizeof *message + json_size + raw_size);
	if (!message)
		return NULL;
	message->type = type;
	message->id = id;
	message->json_size = json_size;
	message->raw_size = raw_size;
	if (json_size > 0)
		memcpy(message->data, json, json_size);
	if (raw_size > 0)
		memcpy(message->data + json_size, raw, raw_size);
	return message;
}

/* Under the lock. */
static void ring_event(struct kernel *kernel)
{
	uint64_t one = 1;
	ssize_t n = write(kernel->event_fd, &one, sizeof one);
	(void)n; /* full: it is readable already */
}

static int push(struct kernel *kernel, uint8_t type, uint32_t id, const void *json, size_t json_size, const void *raw,
		size_t raw_size, struct cell_error *err)
{
	if (json_size > CELL_FRAME_MAX_JSON || raw_size > CELL_FRAME_MAX_RAW)
		return cell_fail(err, CELL_E_LIMIT, 0, "a message carries at most %u + %u bytes", CELL_FRAME_MAX_JSON,
				 CELL_FRAME_MAX_RAW);
	struct cell_inproc_message *message = make_message(type, id, json, json_size, raw, raw_size);
	if (!message)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a message to the kernel");
	pthread_mutex_lock(&kernel->lock);
	if (kernel->last)
		kernel->last->next = message;
	else
		kernel->first = message;
	kernel->last = message;
	cell_spin_beat(&kernel->beat);
	if (kernel->watched)
		ring_event(kernel);
	pthread_mutex_unlock(&kernel->lock);
	pthread_cond_broadcast(&kernel->cond); /* after the unlock: who wakes need not wait for that */
	return 0;
}

static struct cell_inproc_message *abi_receive(struct cell_inproc *abi)
{
	struct kernel *kernel = of_abi(abi);
	struct cell_inproc_message *message;
	uint64_t count;
	(void)cell_spin_look(&kernel->beat, &kernel->spin);
	pthread_mutex_lock(&kernel->lock);
	while (!kernel->first && !kernel->closed)
		pthread_cond_wait(&kernel->cond, &kernel->lock);
	message = kernel->first;
	if (message) {
		kernel->first = message->next;
		if (!kernel->first)
			kernel->last = NULL;
		kernel->spin.received++;
	}
	if (kernel->watched && !kernel->first && read(kernel->event_fd, &count, sizeof count) < 0)
		count = 0; /* nothing had been written */
	if (!message)
		message = make_message(CELL_FRAME_SHUTDOWN, 0, NULL, 0, NULL, 0);
	pthread_mutex_unlock(&kernel->lock);
	return message;
}

static bool abi_pending(struct cell_inproc *abi)
{
	struct kernel *kernel = of_abi(abi);
	pthread_mutex_lock(&kernel->lock);
	bool pending = kernel->first || kernel->closed;
	pthread_mutex_unlock(&kernel->lock);
	return pending;
}

static int abi_watch(struct cell_inproc *abi)
{
	struct kernel *kernel = of_abi(abi);
	pthread_mutex_lock(&kernel->lock);
	if (kernel->event_fd < 0)
		kernel->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (kernel->event_fd >= 0 && !kernel->watched) {
		kernel->watched = true;
		if (kernel->first || kernel->closed)
			ring_event(kernel);
	}
	int fd = kernel->event_fd;
	pthread_mutex_unlock(&kernel->lock);
	return fd;
}

/* ---- output ---- */

/* Under the lock. */
static bool add_output(struct kernel *kernel, uint32_t stream, const char *bytes, size_t size)
{
	struct record *last = kernel->out.size > 0 ? (struct record *)(kernel->out.data + kernel->last_record) : NULL;
	struct record fresh = { .stream = stream };
	if (!last || last->stream != stream) {
		size_t padding = (8 - kernel->out.size % 8) % 8;
		if (cell__buf_reserve(&kernel->out, padding + sizeof fresh + size) < 0)
			return false;
		cell__buf_add(&kernel->out, "\0\0\0\0\0\0\0", padding);
		kernel->last_record = kernel->out.size;
		cell__buf_add(&kernel->out, &fresh, sizeof fresh);
	}
	if (cell__buf_add(&kernel->out, bytes, size) < 0)
		return false;
	((struct record *)(kernel->out.data + kernel->last_record))->size += (uint32_t)size;
	return true;
}

/* Under the lock: what children have written so far. */
static void drain_pipes(struct kernel *kernel)
{
	char bytes[65536];
	for (uint32_t i = 0; i < 2; i++) {
		ssize_t n = 1;
		while (kernel->pipes[i][0] >= 0 && n > 0 && kernel->out.size < OUT_BYTES)
			if ((n = read(kernel->pipes[i][0], bytes, sizeof bytes)) > 0)
				add_output(kernel, i + 1, bytes, (size_t)n);
	}
}

/* Under the lock. */
static void schedule(struct kernel *kernel)
{
	if (kernel->scheduled || kernel->out.size == 0 || kernel->closed)
		return;
	kernel->scheduled = true;
	cell__loop_post_lazily(kernel->loop, &kernel->flush);
}

static enum cell_inproc_status write_forked(struct kernel *kernel, int stream, const char *bytes, size_t size)
{
	int fd = kernel->pipes[stream - 1][1];
	while (fd >= 0 && size > 0) {
		ssize_t n = write(fd, bytes, size);
		if (n < 0 && errno != EINTR)
			break;
		if (n > 0) {
			bytes += n;
			size -= (size_t)n;
		}
	}
	return CELL_INPROC_FORKED;
}

static enum cell_inproc_status abi_write(struct cell_inproc *abi, int stream, const char *bytes, size_t size)
{
	struct kernel *kernel = of_abi(abi);
	if (atomic_load_explicit(&forked, memory_order_relaxed))
		return write_forked(kernel, stream, bytes, size);
	enum cell_inproc_status status = CELL_INPROC_OK;
	pthread_mutex_lock(&kernel->lock);
	if (kernel->pipes[0][0] >= 0)
		drain_pipes(kernel);
	if (kernel->closed)
		status = CELL_INPROC_CLOSED;
	else if (kernel->out.size > 0 && kernel->out.size + size > OUT_BYTES)
		status = CELL_INPROC_FULL;
	else if (!add_output(kernel, (uint32_t)stream, bytes, size))
		status = CELL_INPROC_NO_MEMORY;
	schedule(kernel);
	pthread_mutex_unlock(&kernel->lock);
	return status;
}

static void abi_wait(struct cell_inproc *abi)
{
	struct kernel *kernel = of_abi(abi);
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += WAIT_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	pthread_mutex_lock(&kernel->lock);
	if (kernel->out.size > 0 && !kernel->closed)
		pthread_cond_timedwait(&kernel->cond, &kernel->lock, &until);
	pthread_mutex_unlock(&kernel->lock);
}

/* Loop's thread: hands on all output so far. */
static void deliver_output(struct kernel *kernel)
{
	pthread_mutex_lock(&kernel->lock);
	if (kernel->pipes[0][0] >= 0)
		drain_pipes(kernel);
	struct cell__buf out = kernel->out;
	kernel->out = (struct cell__buf)CELL_BUF_INIT;
	kernel->last_record = 0;
	if (out.size > 0)
		pthread_cond_broadcast(&kernel->cond);
	pthread_mutex_unlock(&kernel->lock);
	for (size_t at = 0; at + sizeof(struct record) <= out.size;) {
		const struct record *record = (const struct record *)(out.data + at);
		at += sizeof *record;
		kernel->events->output(kernel->owner, record->stream == 2 ? CELL_STDERR : CELL_STDOUT, out.data + at, record->size);
		at = (at + record->size + 7) / 8 * 8;
	}
	cell__buf_finish(&out);
}

static void handle_pace(uv_timer_t *timer)
{
	struct kernel *kernel = timer->data;
	pthread_mutex_lock(&kernel->lock);
	bool more = kernel->out.size > 0;
	kernel->scheduled = more;
	pthread_mutex_unlock(&kernel->lock);
	if (!more || kernel->paused || kernel->state == FINISHING)
		return;
	deliver_output(kernel);
	uv_timer_start(&kernel->pace, handle_pace, PACE_MS, 0);
}

/* The first output after a silence goes at once, what follows it soon waits for more. */
static void do_flush(struct cell__task *task)
{
	struct kernel *kernel = (struct kernel *)((char *)task - offsetof(struct kernel, flush));
	if (kernel->state != FINISHING)
		handle_pace(&kernel->pace);
}

/* ---- children ---- */

static void handle_pipe(uv_poll_t *poll, int status, int events)
{
	struct kernel *kernel = poll->data;
	(void)status;
	(void)events;
	pthread_mutex_lock(&kernel->lock);
	drain_pipes(kernel);
	bool full = kernel->out.size >= OUT_BYTES;
	pthread_mutex_unlock(&kernel->lock);
	if (full)
		for (int i = 0; i < 2; i++)
			uv_poll_stop(&kernel->polls[i]); /* deliver_output() is near, or the kernel is paused */
	if (!kernel->paused && !uv_is_active((uv_handle_t *)&kernel->pace))
		handle_pace(&kernel->pace);
}

static void poll_again(struct kernel *kernel)
{
	for (int i = 0; kernel->polling && i < 2; i++)
		uv_poll_start(&kernel->polls[i], UV_READABLE, handle_pipe);
}

static void do_poll_pipes(struct cell__task *task)
{
	struct kernel *kernel = (struct kernel *)((char *)task - offsetof(struct kernel, poll_pipes));
	if (kernel->state == FINISHING)
		return;
	for (int i = 0; i < 2; i++) {
		uv_poll_init(&kernel->loop->uv, &kernel->polls[i], kernel->pipes[i][0]);
		kernel->polls[i].data = kernel;
		kernel->open_handles++;
	}
	kernel->polling = true;
	poll_again(kernel);
}

static int abi_pipe(struct cell_inproc *abi, int stream)
{
	struct kernel *kernel = of_abi(abi);
	int made[2][2] = { { -1, -1 }, { -1, -1 } };
	pthread_mutex_lock(&kernel->lock);
	if (kernel->pipes[0][0] < 0 && !kernel->closed && !atomic_load(&forked) && pipe2(made[0], O_CLOEXEC) == 0 &&
	    pipe2(made[1], O_CLOEXEC) == 0) {
		for (int i = 0; i < 2; i++) {
			fcntl(made[i][0], F_SETFL, O_NONBLOCK);
			for (int k = 0; k < 2; k++)
				kernel->pipes[i][k] = cell__take_fd(&made[i][k]);
		}
		post(kernel, &kernel->poll_pipes);
	}
	for (int i = 0; i < 4; i++)
		cell__close_fd(&made[i / 2][i % 2]);
	int fd = kernel->pipes[stream - 1][1];
	pthread_mutex_unlock(&kernel->lock);
	return fd;
}

/* ---- from the kernel ---- */

/* May this thread have to do with the loop?  If so, until it leaves. */
static enum cell_inproc_status enter(struct kernel *kernel)
{
	enum cell_inproc_status status = CELL_INPROC_OK;
	if (atomic_load_explicit(&forked, memory_order_relaxed))
		return CELL_INPROC_FORKED;
	pthread_mutex_lock(&kernel->lock);
	if (kernel->closed)
		status = CELL_INPROC_CLOSED;
	else if (cell__loop_is_current(kernel->loop))
		status = CELL_INPROC_NESTED;
	else
		kernel->inside++;
	pthread_mutex_unlock(&kernel->lock);
	return status;
}

static void leave(struct kernel *kernel)
{
	pthread_mutex_lock(&kernel->lock);
	if (--kernel->inside == 0 && kernel->finish_wanted)
		cell__loop_post(kernel->loop, &kernel->finish);
	pthread_mutex_unlock(&kernel->lock);
}

static void end_ask(struct ask *ask, enum cell_inproc_status status)
{
	for (struct ask **at = &ask->kernel->asks; *at; at = &(*at)->next)
		if (*at == ask) {
			*at = ask->next;
			break;
		}
	ask->status = status;
	cell__waiter_signal(&ask->waiter);
}

static void do_ask(struct cell__task *task)
{
	struct ask *ask = (struct ask *)task;
	struct kernel *kernel = ask->kernel;
	const struct cell_frame *call = ask->call;
	if (kernel->state != LIVE) {
		end_ask(ask, CELL_INPROC_CLOSED);
		return;
	}
	ask->id = ++kernel->next_ask | ASK_BIT;
	ask->next = kernel->asks;
	kernel->asks = ask;
	uint32_t id = ask->id; /* the ask may be answered, and gone */
	const char *problem = kernel->events->call(kernel->owner, id, (const char *)call->json, call->json_size, call->raw,
						   call->raw_size);
	for (ask = problem ? kernel->asks : NULL; ask; ask = ask->next)
		if (ask->id == id) {
			end_ask(ask, CELL_INPROC_REFUSED);
			break;
		}
}

static enum cell_inproc_status abi_ask(struct cell_inproc *abi, const struct cell_frame *call,
				       struct cell_inproc_message **ret_reply)
{
	struct kernel *kernel = of_abi(abi);
	enum cell_inproc_status status = enter(kernel);
	if (status != CELL_INPROC_OK)
		return status;
	struct ask ask = { .task.fn = do_ask, .kernel = kernel, .call = call };
	ask.is_main = (unsigned long)pthread_self() == abi->main_thread;
	cell__waiter_init(&ask.waiter);
	cell__loop_visit(kernel->loop, &ask.task, &ask.waiter);
	cell__waiter_finish(&ask.waiter);
	leave(kernel);
	*ret_reply = ask.reply;
	return ask.status;
}

/* The host does not want the answer of what the main thread waits for: that is interrupted. */
static void do_stop(struct cell__task *task)
{
	struct kernel *kernel = (struct kernel *)((char *)task - offsetof(struct kernel, stop));
	pthread_mutex_lock(&kernel->lock);
	kernel->stop_posted = false;
	pthread_mutex_unlock(&kernel->lock);
	for (struct ask *ask = kernel->asks, *next; ask; ask = next) {
		char cancel[64];
		next = ask->next;
		if (!ask->is_main)
			continue;
		int n = snprintf(cancel, sizeof cancel, "{\"method\":\"cancel\",\"args\":{\"id\":%u}}", ask->id);
		end_ask(ask, CELL_INPROC_INTERRUPTED);
		(void)kernel->events->call(kernel->owner, 0, cancel, (size_t)n, NULL, 0); /* our own words are well-formed */
		break;
	}
}

static void handle_ready(struct kernel *kernel, const struct cell_frame *frame)
{
	const char *message = NULL, *code = "";
	json_t *ready = json_loadb((const char *)frame->json, frame->json_size, 0, NULL);
	(void)json_unpack(ready, "{s:{s:s, s:s}}", "error", "code", &code, "message", &message);
	if (message) {
		cell_fail(&kernel->error, strcmp(code, "preload_failed") == 0 ? CELL_E_PRELOAD : CELL_E_INVALID, 0, "%s", message);
		kernel->state = LEAVING;
		(void)push(kernel, CELL_FRAME_SHUTDOWN, 0, NULL, 0, NULL, 0, NULL);
	} else if (kernel->state == STARTING) {
		kernel->state = LIVE;
		kernel->events->ready(kernel->owner);
	}
	json_decref(ready);
}

/* What is wrong with it, or NULL. */
static const char *handle_frame(struct kernel *kernel, const struct cell_frame *frame)
{
	struct cell__answer answer;
	struct cell__bundle bundle;
	json_t *memory = NULL;
	const char *problem = NULL;
	deliver_output(kernel);
	switch (frame->type) {
	case CELL_FRAME_HELLO:
		break;
	case CELL_FRAME_READY:
		handle_ready(kernel, frame);
		break;
	case CELL_FRAME_DISPLAY:
		if (!(problem = cell__answer_display(frame, &bundle, &memory)))
			kernel->events->display(kernel->owner, &bundle);
		break;
	case CELL_FRAME_RESULT:
		if (!(problem = cell__answer_result(frame, &answer, &memory)))
			kernel->events->result(kernel->owner, frame->id, &answer);
		break;
	case CELL_FRAME_CALL:
		problem = kernel->events->call(kernel->owner, frame->id, (const char *)frame->json, frame->json_size, frame->raw,
					       frame->raw_size);
		break;
	default:
		problem = "a frame that only the host sends";
	}
	json_decref(memory);
	return problem;
}

static void take_frame(struct sending *sending)
{
	struct kernel *kernel = sending->kernel;
	if (kernel->state != LIVE && sending->frame->type != CELL_FRAME_READY && sending->frame->type != CELL_FRAME_HELLO)
		sending->status = CELL_INPROC_CLOSED;
	else
		sending->status = handle_frame(kernel, sending->frame) ? CELL_INPROC_REFUSED : CELL_INPROC_OK;
	cell__waiter_signal(&sending->waiter);
}

static void do_send(struct cell__task *task)
{
	struct sending *sending = (struct sending *)task;
	struct kernel *kernel = sending->kernel;
	if (!kernel->paused) {
		take_frame(sending);
		return;
	}
	sending->next = NULL;
	*kernel->held_end = sending;
	kernel->held_end = &sending->next;
}

static void take_held(struct kernel *kernel)
{
	while (kernel->held && !kernel->paused) {
		struct sending *sending = kernel->held;
		kernel->held = sending->next;
		if (!kernel->held)
			kernel->held_end = &kernel->held;
		take_frame(sending);
	}
}

static enum cell_inproc_status abi_send(struct cell_inproc *abi, const struct cell_frame *frame)
{
	struct kernel *kernel = of_abi(abi);
	enum cell_inproc_status status = enter(kernel);
	if (status != CELL_INPROC_OK)
		return status;
	struct sending sending = { .task.fn = do_send, .kernel = kernel, .frame = frame };
	cell__waiter_init(&sending.waiter);
	cell__loop_visit(kernel->loop, &sending.task, &sending.waiter);
	cell__waiter_finish(&sending.waiter);
	leave(kernel);
	return sending.status;
}

/* ---- small things that Python asks ---- */

static void abi_retain(struct cell_inproc *abi)
{
	atomic_fetch_add(&of_abi(abi)->refs, 1);
}

static void abi_release(struct cell_inproc *abi)
{
	unref(of_abi(abi));
}

static uint32_t abi_interrupted_run(struct cell_inproc *abi)
{
	return atomic_load(&of_abi(abi)->interrupt_run);
}

static bool abi_is_forked(struct cell_inproc *abi)
{
	(void)abi;
	return atomic_load_explicit(&forked, memory_order_relaxed);
}

/* ---- the thread ---- */

static const char bootstrap[] =
	"import sys\n"
	"said = ''\n"
	"try:\n"
	"    sys.path.insert(0, folder)\n"
	"    try:\n"
	"        from workcell_kernel import inproc\n"
	"    finally:\n"
	"        sys.path.remove(folder)\n"
	"    inproc.main(int(address))\n"
	"except BaseException:\n"
	"    import traceback\n"
	"    said = traceback.format_exc()\n";

/* With the GIL. */
static void set_text(const struct cell__libpython *python, void *dict, const char *key, const char *text)
{
	void *object = python->text_new(text);
	if (object && python->dict_set(dict, key, object) == 0)
		python->decref(object);
}

/* With the GIL: runs the kernel to its end. */
static void serve(struct kernel *kernel, const struct cell__libpython *python)
{
	char address[32];
	snprintf(address, sizeof address, "%llu", (unsigned long long)(uintptr_t)&kernel->abi);
	void *globals = python->dict_new(), *builtins = python->import("builtins");
	void *code = python->compile(bootstrap, "<workcell>", 257 /* Py_file_input */);
	if (!globals || !builtins || !code) {
		cell_fail(&kernel->error, CELL_E_PYTHON, 0, "Python has no memory for a kernel");
		return;
	}
	python->dict_set(globals, "__builtins__", builtins);
	set_text(python, globals, "folder", kernel->kernel_dir);
	set_text(python, globals, "address", address);
	void *done = python->eval(code, globals, globals);
	void *said = python->dict_get(globals, "said");
	const char *text = said ? python->text_utf8(said, NULL) : NULL;
	if (text && *text) {
		/* Its last line says what it is. */
		size_t end = strlen(text);
		while (end > 0 && text[end - 1] == '\n')
			end--;
		size_t start = end;
		while (start > 0 && text[start - 1] != '\n')
			start--;
		pthread_mutex_lock(&kernel->lock);
		cell_fail(&kernel->error, CELL_E_KERNEL, 0, "the kernel ended: %.*s", (int)(end - start), text + start);
		pthread_mutex_unlock(&kernel->lock);
	}
	if (done)
		python->decref(done);
	python->decref(code);
	python->decref(builtins);
	python->decref(globals);
}

static void *thread_main(void *arg)
{
	struct kernel *kernel = arg;
	struct cell_error err = { 0 };
	const struct cell__libpython *python = cell__libpython_find();
	pthread_setname_np(pthread_self(), "workcell-cells");
	kernel->abi.main_thread = (unsigned long)pthread_self();
	int rc = python && python->hosted ? 0 : cell__libpython_load(kernel->python, &kernel->info, &err);
	if (rc == 0) {
		python = cell__libpython_find();
		int state = python->gil_ensure();
		serve(kernel, python);
		python->gil_release(state);
	}
	pthread_mutex_lock(&kernel->lock);
	if (rc < 0)
		kernel->error = err;
	post(kernel, &kernel->ended);
	pthread_mutex_unlock(&kernel->lock);
	unref(kernel);
	return NULL;
}

/*
 * With the signal mask that the host's own threads have, and without SIGPIPE, which Python expects to be ignored: a
 * blocked one is as good, and changes nothing for the host.
 */
static int start_thread(struct kernel *kernel, struct cell_error *err)
{
	pthread_t thread;
	pthread_attr_t attr;
	struct sigaction action;
	sigset_t mask = kernel->loop->mask, old;
	if (sigaction(SIGPIPE, NULL, &action) < 0 || action.sa_handler != SIG_IGN)
		sigaddset(&mask, SIGPIPE);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_sigmask(SIG_SETMASK, &mask, &old);
	atomic_fetch_add(&kernel->refs, 1);
	int rc = pthread_create(&thread, &attr, thread_main, kernel);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (rc != 0) {
		atomic_fetch_sub(&kernel->refs, 1);
		return cell_fail(err, CELL_E_KERNEL, rc, "start a thread for the kernel");
	}
	kernel->threaded = true;
	kernel->state = STARTING;
	return 0;
}

/* ---- which library ---- */

static void handle_said(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct kernel *kernel = owner;
	if (stream == CELL_STDOUT && kernel->said.size + size <= SAID_BYTES)
		(void)cell__buf_add(&kernel->said, bytes, size);
}

static void handle_asked(void *owner, const struct cell__process_exit *how)
{
	struct kernel *kernel = owner;
	struct cell_error *err = &kernel->error;
	kernel->process = NULL;
	if (kernel->state != ASKING)
		return;
	int rc = -1;
	if (how->error)
		cell_fail(err, CELL_E_PYTHON, how->error, "%.160s", kernel->python);
	else if (how->timed_out || how->signalled || how->status != 0)
		cell_fail(err, CELL_E_PYTHON, 0, "%.160s does not work as a Python interpreter", kernel->python);
	else
		rc = cell__libpython_parse(kernel->python, kernel->said.data ? kernel->said.data : "", kernel->said.size,
					   &kernel->info, err);
	if (rc < 0 || start_thread(kernel, err) < 0)
		finish(kernel);
}

static int ask_python(struct kernel *kernel, struct cell__executor_host *host, struct cell_error *err)
{
	const char *argv[] = { kernel->python, "-I", "-c", cell__libpython_question, NULL };
	static const char *const env[] = { "PATH=/usr/bin:/bin", "LANG=C.UTF-8", NULL };
	struct cell__process_spec spec = {
		.argv = argv, .env = env, .path = "/usr/bin:/bin", .cwd = "/", .timeout_ms = ASK_TIMEOUT_MS,
		.output = handle_said, .exited = handle_asked, .owner = kernel,
	};
	return cell__process_start(host->hub, &spec, &kernel->process, err);
}

/* ---- the end ---- */

static void handle_closed(uv_handle_t *handle)
{
	struct kernel *kernel = handle->data;
	if (--kernel->open_handles > 0)
		return;
	struct cell__exit how = { .asked = kernel->asked, .abandoned = kernel->abandoned };
	pthread_mutex_lock(&kernel->lock);
	kernel->loop = NULL;
	how.error = kernel->error;
	/* A thread that lives on may start children: theirs must not become the host's streams. */
	for (int i = 0; !kernel->abandoned && i < 4; i++)
		cell__close_fd(&kernel->pipes[i / 2][i % 2]);
	if (!kernel->abandoned)
		cell__close_fd(&kernel->event_fd);
	kernel->watched = kernel->watched && kernel->abandoned;
	pthread_mutex_unlock(&kernel->lock);
	kernel->events->exited(kernel->owner, &how);
	unref(kernel);
}

/* Nobody of Python's side is inside any more, and nobody will be. */
static void do_finish(struct cell__task *task)
{
	struct kernel *kernel = (struct kernel *)((char *)task - offsetof(struct kernel, finish));
	deliver_output(kernel);
	for (int i = 0; kernel->polling && i < 2; i++)
		uv_close((uv_handle_t *)&kernel->polls[i], handle_closed);
	uv_close((uv_handle_t *)&kernel->pace, handle_closed);
	uv_close((uv_handle_t *)&kernel->timer, handle_closed);
}

static void finish(struct kernel *kernel)
{
	if (kernel->state == FINISHING)
		return;
	kernel->state = FINISHING;
	kernel->paused = false;
	pthread_mutex_lock(&kernel->lock);
	kernel->closed = true;
	pthread_cond_broadcast(&kernel->cond);
	if (kernel->watched)
		ring_event(kernel);
	pthread_mutex_unlock(&kernel->lock);
	while (kernel->asks)
		end_ask(kernel->asks, CELL_INPROC_CLOSED);
	take_held(kernel);
	pthread_mutex_lock(&kernel->lock);
	kernel->finish_wanted = true;
	if (kernel->inside == 0)
		cell__loop_post(kernel->loop, &kernel->finish);
	pthread_mutex_unlock(&kernel->lock);
}

static void do_ended(struct cell__task *task)
{
	finish((struct kernel *)((char *)task - offsetof(struct kernel, ended)));
}

/* ---- interrupts ---- */

/* With the GIL: a function of inproc.py for this kernel. */
static void tell_python(struct kernel *kernel, const char *function)
{
	const struct cell__libpython *python = cell__libpython_find();
	void *module = python->import("workcell_kernel.inproc");
	void *done = module ? python->call_method(module, function, "K", (unsigned long long)(uintptr_t)&kernel->abi) : NULL;
	if (done)
		python->decref(done);
	else
		python->err_clear(); /* a module that the code has broken: there is nobody to tell */
	if (module)
		python->decref(module);
}

/* With the GIL, on the keeper's thread. */
static void do_interrupt(struct cell__libpython_job *job)
{
	struct kernel *kernel = (struct kernel *)((char *)job - offsetof(struct kernel, interrupt_job));
	const struct cell__libpython *python = cell__libpython_find();
	uint32_t run = atomic_load(&kernel->abi.run);
	bool wanted = run != 0 && run == atomic_load(&kernel->interrupt_run);
	if (wanted) {
		python->set_async_exc(kernel->abi.main_thread, *python->keyboard_interrupt);
		tell_python(kernel, "interrupted");
	}
	pthread_mutex_lock(&kernel->lock);
	kernel->job_posted = false;
	if (wanted && atomic_load(&kernel->abi.main_asks) && !kernel->stop_posted)
		kernel->stop_posted = post(kernel, &kernel->stop);
	pthread_mutex_unlock(&kernel->lock);
	unref(kernel);
}

static void inprocess_interrupt(struct cell__kernel *base, uint32_t run_id)
{
	struct kernel *kernel = (struct kernel *)base;
	atomic_store(&kernel->interrupt_run, run_id);
	kernel->interrupt_us = cell__now_us();
	pthread_mutex_lock(&kernel->lock);
	bool ask = !kernel->job_posted && !kernel->closed;
	kernel->job_posted |= ask;
	pthread_mutex_unlock(&kernel->lock);
	if (!ask)
		return;
	atomic_fetch_add(&kernel->refs, 1);
	/* Without a thread to do it the run's grace ends it. */
	if (cell__libpython_post(&kernel->interrupt_job, NULL) < 0) {
		pthread_mutex_lock(&kernel->lock);
		kernel->job_posted = false;
		pthread_mutex_unlock(&kernel->lock);
		unref(kernel);
	}
}

/* With the GIL, on the keeper's thread: Python's side forgets the kernel. */
static void do_forget(struct cell__libpython_job *job)
{
	struct kernel *kernel = (struct kernel *)((char *)job - offsetof(struct kernel, abandon_job));
	tell_python(kernel, "abandoned");
	unref(kernel);
}

static void abandon(struct kernel *kernel)
{
	kernel->abandoned = true;
	atomic_fetch_add(&kernel->refs, 1);
	if (cell__libpython_post(&kernel->abandon_job, NULL) < 0)
		unref(kernel);
	finish(kernel);
}

static void handle_grace_over(uv_timer_t *timer)
{
	struct kernel *kernel = timer->data;
	if (kernel->state == LEAVING)
		abandon(kernel);
}

static void inprocess_close(struct cell__kernel *base, int64_t grace_ms)
{
	struct kernel *kernel = (struct kernel *)base;
	uint32_t run = atomic_load(&kernel->abi.run);
	kernel->asked = true;
	if (kernel->state == FINISHING || kernel->state == LEAVING)
		return;
	if (!kernel->threaded) {
		if (kernel->process)
			cell__process_abandon(cell__take_ptr(kernel->process));
		finish(kernel);
		return;
	}
	/* It had its grace: asked once more it may end one day, but nobody waits for that. */
	bool tried = run != 0 && atomic_load(&kernel->interrupt_run) == run &&
		     cell__now_us() - kernel->interrupt_us > TRIED_MS * 1000;
	kernel->state = LEAVING;
	kernel->paused = false;
	take_held(kernel);
	(void)push(kernel, CELL_FRAME_SHUTDOWN, 0, NULL, 0, NULL, 0, NULL);
	while (kernel->asks)
		end_ask(kernel->asks, CELL_INPROC_CLOSED);
	if (run != 0)
		inprocess_interrupt(base, run);
	if (tried) {
		abandon(kernel);
		return;
	}
	uv_update_time(&kernel->loop->uv);
	uv_timer_start(&kernel->timer, handle_grace_over, (uint64_t)(grace_ms > 0 ? grace_ms : ABANDON_MS), 0);
}

/* ---- the executor ---- */

static void handle_fork(void)
{
	atomic_store(&forked, true);
}

static void register_fork(void)
{
	pthread_atfork(NULL, NULL, handle_fork);
}

static void probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	(void)host;
	cell__libpython_probe(info);
}

static char *init_json(const struct cell__kernel_spec *spec)
{
	json_t *init = json_pack("{s:s, s:s, s:s, s:b, s:b, s:b, s:b, s:s?}", "session", spec->session_id, "cwd", spec->cwd,
				 "preload", spec->preload, "namespaces", spec->namespaces, "gate_shell", spec->gate_shell,
				 "restore_cwd", spec->restore_cwd, "portable", spec->portable, "site", spec->site);
	char *text = init ? json_dumps(init, JSON_COMPACT) : NULL;
	json_decref(init);
	return text;
}

/* What one process cannot give each of its sessions is refused, not ignored. */
static int check(const struct cell_session_options *opts, struct cell_error *err)
{
	char here[PATH_MAX], there[PATH_MAX];
	const struct cell__libpython *python = cell__libpython_find();
	/* The interpreter here is a copy with hooks, and perhaps locks, of sessions whose threads are not in this process. */
	if (atomic_load(&forked))
		return cell_fail(err, CELL_E_UNAVAILABLE, 0,
				 "inprocess: this process was forked from one that had in-process sessions; use another executor here, or "
				 "start the process anew (in Python's multiprocessing: \"spawn\")");
	if (opts->env && opts->env[0])
		return cell_fail(err, CELL_E_INVALID, 0,
				 "inprocess: the code has the host's own environment; set %.80s there instead of giving it to the session",
				 opts->env[0]);
	if (opts->cwd && (!realpath(".", here) || !realpath(opts->cwd, there) || strcmp(here, there) != 0))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "inprocess: the code has the host's own working directory; start the host in %.100s instead", opts->cwd);
	if (opts->require_shell_escape)
		return cell_fail(err, CELL_E_INVALID, 0, "inprocess: require_shell_escape would bind the host's own code too");
	if (python && python->hosted && opts->python)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "inprocess: in a Python program the code runs on that program's interpreter; do not name another");
	return 0;
}

static void init_kernel(struct kernel *kernel, struct cell__executor_host *host)
{
	kernel->abi = (struct cell_inproc){
		.version = CELL_INPROC_VERSION,
		.retain = abi_retain,
		.release = abi_release,
		.send = abi_send,
		.ask = abi_ask,
		.receive = abi_receive,
		.pending = abi_pending,
		.watch = abi_watch,
		.write = abi_write,
		.wait = abi_wait,
		.pipe = abi_pipe,
		.interrupted_run = abi_interrupted_run,
		.is_forked = abi_is_forked,
	};
	kernel->base.executor = &cell__inprocess_executor;
	atomic_store(&kernel->refs, 1);
	kernel->loop = host->loop;
	kernel->held_end = &kernel->held;
	kernel->event_fd = -1;
	kernel->pipes[0][0] = kernel->pipes[0][1] = kernel->pipes[1][0] = kernel->pipes[1][1] = -1;
	kernel->flush.fn = do_flush;
	kernel->poll_pipes.fn = do_poll_pipes;
	kernel->ended.fn = do_ended;
	kernel->finish.fn = do_finish;
	kernel->stop.fn = do_stop;
	kernel->interrupt_job.fn = do_interrupt;
	kernel->abandon_job.fn = do_forget;
	pthread_mutex_init(&kernel->lock, NULL);
	pthread_cond_init(&kernel->cond, NULL);
}

static int inprocess_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec,
			  const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel,
			  struct cell_error *err)
{
	pthread_once(&once, register_fork);
	CELL_AUTO_FREE char *init = init_json(spec);
	struct kernel *kernel = cell__alloc(1, sizeof *kernel);
	if (!kernel || !init) {
		free(kernel);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	}
	init_kernel(kernel, host);
	kernel->events = events;
	kernel->owner = owner;
	kernel->python = cell__strdup(spec->python);
	kernel->kernel_dir = cell__strdup(host->kernel_dir);
	int rc = kernel->python && kernel->kernel_dir ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	if (rc == 0)
		rc = push(kernel, CELL_FRAME_INIT, 0, init, strlen(init), NULL, 0, err);
	if (rc == 0)
		rc = cell__libpython_find() ? start_thread(kernel, err) : ask_python(kernel, host, err);
	if (rc < 0) {
		unref(kernel);
		return -1;
	}
	uv_timer_init(&host->loop->uv, &kernel->timer);
	uv_timer_init(&host->loop->uv, &kernel->pace);
	kernel->timer.data = kernel->pace.data = kernel;
	kernel->open_handles = 2;
	*ret_kernel = &kernel->base;
	return 0;
}

static void inprocess_look(struct cell__kernel *base)
{
	deliver_output((struct kernel *)base);
}

static int inprocess_run(struct cell__kernel *base, uint32_t run_id, const char *code, size_t size, struct cell_error *err)
{
	struct kernel *kernel = (struct kernel *)base;
	if (kernel->state != LIVE)
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel is gone");
	return push(kernel, CELL_FRAME_RUN, run_id, NULL, 0, code, size, err);
}

static int inprocess_reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw,
			   size_t raw_size, struct cell_error *err)
{
	struct kernel *kernel = (struct kernel *)base;
	struct ask *ask = kernel->asks;
	while (ask && ask->id != id)
		ask = ask->next;
	if (!ask)
		/* That of an ask which was given up has nobody. */
		return id & ASK_BIT ? 0 : push(kernel, CELL_FRAME_REPLY, id, json, json_size, raw, raw_size, err);
	if (json_size > CELL_FRAME_MAX_JSON || raw_size > CELL_FRAME_MAX_RAW)
		return cell_fail(err, CELL_E_LIMIT, 0, "an answer carries at most %u + %u bytes", CELL_FRAME_MAX_JSON,
				 CELL_FRAME_MAX_RAW);
	ask->reply = make_message(CELL_FRAME_REPLY, id, json, json_size, raw, raw_size);
	end_ask(ask, ask->reply ? CELL_INPROC_OK : CELL_INPROC_NO_MEMORY);
	return 0;
}

static void inprocess_pause(struct cell__kernel *base, bool paused)
{
	struct kernel *kernel = (struct kernel *)base;
	if (kernel->paused == paused || kernel->state != LIVE)
		return;
	kernel->paused = paused;
	if (paused)
		return;
	handle_pace(&kernel->pace);
	poll_again(kernel);
	take_held(kernel);
}

static int64_t inprocess_pid(const struct cell__kernel *base)
{
	(void)base;
	return getpid();
}

const struct cell__executor cell__inprocess_executor = {
	.name = "inprocess",
	.isolation = "none",
	.takes_loop = true,
	.probe = probe,
	.check = check,
	.open = inprocess_open,
	.look = inprocess_look,
	.run = inprocess_run,
	.reply = inprocess_reply,
	.interrupt = inprocess_interrupt,
	.pause = inprocess_pause,
	.close = inprocess_close,
	.pid = inprocess_pid,
	.receipt = "{\"executor\":\"inprocess\",\"level\":\"none\",\"namespaces\":[],\"seccomp\":false,"
		   "\"landlock\":0,\"limits\":{},\"network\":\"host\",\"filesystem\":\"host\",\"skipped\":[]}",
};
