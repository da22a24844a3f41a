/* Between the host and an in-process kernel: messages to it, and the functions that its threads call to send frames and requests. */
#define _GNU_SOURCE
#include "executors/inprocess/inprocess.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "executors/answer.h"

#define ASK_BIT 0x80000000u /* set in ids of ask(), clear in ids that Python gives */

/* ---- to the kernel ---- */

static struct cell_inproc_message *make_message(uint8_t type, uint32_t id, const void *json, size_t json_size, const void *raw,
						size_t raw_size)
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
void cell__inprocess_ring(struct cell__inprocess *kernel)
{
	uint64_t one = 1;
	ssize_t n = write(kernel->event_fd, &one, sizeof one);
	(void)n; /* full: it is readable already */
}

int cell__inprocess_push(struct cell__inprocess *kernel, uint8_t type, uint32_t id, const void *json, size_t json_size, const void *raw,
			 size_t raw_size, struct cell_error *err)
{
	if (json_size > CELL_FRAME_MAX_JSON || raw_size > CELL_FRAME_MAX_RAW)
		return cell_fail(err, CELL_E_LIMIT, 0, "a message may carry at most %u + %u bytes", CELL_FRAME_MAX_JSON,
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
	cell_ring_spin_beat(&kernel->beat);
	if (kernel->watched)
		cell__inprocess_ring(kernel);
	pthread_mutex_unlock(&kernel->lock);
	pthread_cond_broadcast(&kernel->cond); /* after the unlock: the woken thread need not wait for it */
	return 0;
}

static struct cell_inproc_message *abi_receive(struct cell_inproc *abi)
{
	struct cell__inprocess *kernel = cell__inprocess_of_abi(abi);
	struct cell_inproc_message *message;
	uint64_t count;
	(void)cell_ring_spin_wait(&kernel->beat, &kernel->spin);
	pthread_mutex_lock(&kernel->lock);
	while (!kernel->first && !kernel->closed)
		pthread_cond_wait(&kernel->cond, &kernel->lock);
	message = kernel->first;
	if (message) {
		kernel->first = message->next;
		if (!kernel->first)
			kernel->last = NULL;
		kernel->spin.received++;
		cell_ring_spin_has_slept(&kernel->beat, &kernel->spin);
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
	struct cell__inprocess *kernel = cell__inprocess_of_abi(abi);
	pthread_mutex_lock(&kernel->lock);
	bool pending = kernel->first || kernel->closed;
	pthread_mutex_unlock(&kernel->lock);
	return pending;
}

static int abi_watch(struct cell_inproc *abi)
{
	struct cell__inprocess *kernel = cell__inprocess_of_abi(abi);
	pthread_mutex_lock(&kernel->lock);
	if (kernel->event_fd < 0)
		kernel->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (kernel->event_fd >= 0 && !kernel->watched) {
		kernel->watched = true;
		if (kernel->first || kernel->closed)
			cell__inprocess_ring(kernel);
	}
	int fd = kernel->event_fd;
	pthread_mutex_unlock(&kernel->lock);
	return fd;
}

/* ---- from the kernel ---- */

/* May this thread have to do with the loop?  If so, until it leaves. */
static enum cell_inproc_status enter(struct cell__inprocess *kernel)
{
	enum cell_inproc_status status = CELL_INPROC_OK;
	if (cell__inprocess_is_forked())
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

static void leave(struct cell__inprocess *kernel)
{
	pthread_mutex_lock(&kernel->lock);
	if (--kernel->inside == 0 && kernel->finish_wanted)
		cell__loop_post(kernel->loop, &kernel->finish);
	pthread_mutex_unlock(&kernel->lock);
}

static void end_ask(struct cell__inprocess_ask *ask, enum cell_inproc_status status)
{
	for (struct cell__inprocess_ask **at = &ask->kernel->asks; *at; at = &(*at)->next)
		if (*at == ask) {
			*at = ask->next;
			break;
		}
	ask->status = status;
	cell__waiter_signal(&ask->waiter);
}

void cell__inprocess_end_asks(struct cell__inprocess *kernel)
{
	while (kernel->asks)
		end_ask(kernel->asks, CELL_INPROC_CLOSED);
}

static void do_ask(struct cell__task *task)
{
	struct cell__inprocess_ask *ask = (struct cell__inprocess_ask *)task;
	struct cell__inprocess *kernel = ask->kernel;
	const struct cell_frame *call = ask->call;
	if (kernel->state != CELL_INPROCESS_LIVE) {
		end_ask(ask, CELL_INPROC_CLOSED);
		return;
	}
	ask->id = ++kernel->next_ask | ASK_BIT;
	ask->next = kernel->asks;
	kernel->asks = ask;
	uint32_t id = ask->id; /* the ask may be answered, and gone */
	struct cell__asked asked = {
		.id = id, .json = (const char *)call->json, .json_size = call->json_size, .raw = call->raw, .raw_size = call->raw_size
	};
	const char *problem = kernel->events->call(kernel->owner, &asked);
	for (ask = problem ? kernel->asks : NULL; ask; ask = ask->next)
		if (ask->id == id) {
			end_ask(ask, CELL_INPROC_REFUSED);
			break;
		}
}

static enum cell_inproc_status abi_ask(struct cell_inproc *abi, const struct cell_frame *call, struct cell_inproc_message **ret_reply)
{
	struct cell__inprocess *kernel = cell__inprocess_of_abi(abi);
	enum cell_inproc_status status = enter(kernel);
	if (status != CELL_INPROC_OK)
		return status;
	struct cell__inprocess_ask ask = { .task.fn = do_ask, .kernel = kernel, .call = call };
	ask.is_main = (unsigned long)pthread_self() == abi->main_thread;
	cell__waiter_init(&ask.waiter);
	cell__loop_visit(kernel->loop, &ask.task, &ask.waiter);
	cell__waiter_finish(&ask.waiter);
	leave(kernel);
	*ret_reply = ask.reply;
	return ask.status;
}

/* The host does not need the answer that the main thread waits for: interrupts that wait. */
static void do_stop(struct cell__task *task)
{
	struct cell__inprocess *kernel = (struct cell__inprocess *)((char *)task - offsetof(struct cell__inprocess, stop));
	pthread_mutex_lock(&kernel->lock);
	kernel->stop_posted = false;
	pthread_mutex_unlock(&kernel->lock);
	for (struct cell__inprocess_ask *ask = kernel->asks, *next; ask; ask = next) {
		char cancel[64];
		next = ask->next;
		if (!ask->is_main)
			continue;
		int n = snprintf(cancel, sizeof cancel, "{\"method\":\"cancel\",\"args\":{\"id\":%u}}", ask->id);
		end_ask(ask, CELL_INPROC_INTERRUPTED);
		struct cell__asked asked = { .json = cancel, .json_size = (size_t)n };
		(void)kernel->events->call(kernel->owner, &asked); /* our own text is well-formed */
		break;
	}
}

int cell__inprocess_reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
			  struct cell_error *err)
{
	struct cell__inprocess *kernel = (struct cell__inprocess *)base;
	struct cell__inprocess_ask *ask = kernel->asks;
	while (ask && ask->id != id)
		ask = ask->next;
	if (!ask)
		/* The answer of an abandoned ask has no receiver. */
		return id & ASK_BIT ? 0 : cell__inprocess_push(kernel, CELL_FRAME_REPLY, id, json, json_size, raw, raw_size, err);
	if (json_size > CELL_FRAME_MAX_JSON || raw_size > CELL_FRAME_MAX_RAW)
		return cell_fail(err, CELL_E_LIMIT, 0, "an answer may carry at most %u + %u bytes", CELL_FRAME_MAX_JSON,
				 CELL_FRAME_MAX_RAW);
	ask->reply = make_message(CELL_FRAME_REPLY, id, json, json_size, raw, raw_size);
	end_ask(ask, ask->reply ? CELL_INPROC_OK : CELL_INPROC_NO_MEMORY);
	return 0;
}

static const char *handle_ready(struct cell__inprocess *kernel, const struct cell_frame *frame)
{
	struct cell_error refusal;
	const char *problem = cell__answer_ready(frame, &refusal);
	if (refusal.code) {
		kernel->error = refusal;
		kernel->state = CELL_INPROCESS_LEAVING;
		(void)cell__inprocess_push(kernel, CELL_FRAME_SHUTDOWN, 0, NULL, 0, NULL, 0, NULL);
	} else if (!problem && kernel->state == CELL_INPROCESS_STARTING) {
		kernel->state = CELL_INPROCESS_LIVE;
		kernel->events->ready(kernel->owner);
	}
	return problem;
}

/* The problem of the frame, or NULL. */
static const char *handle_frame(struct cell__inprocess *kernel, const struct cell_frame *frame)
{
	cell__inprocess_deliver_output(kernel);
	if (frame->type == CELL_FRAME_HELLO)
		return NULL;
	if (frame->type == CELL_FRAME_READY)
		return handle_ready(kernel, frame);
	struct cell__read read;
	cell__read_frame(frame, &read);
	const char *problem = cell__answer_hand_on(frame, &read, kernel->events, kernel->owner);
	cell__read_finish(&read);
	return problem;
}

static void take_frame(struct cell__inprocess_sending *sending)
{
	struct cell__inprocess *kernel = sending->kernel;
	uint8_t type = sending->frame->type;
	if (kernel->state != CELL_INPROCESS_LIVE && type != CELL_FRAME_READY && type != CELL_FRAME_HELLO)
		sending->status = CELL_INPROC_CLOSED;
	else
		sending->status = handle_frame(kernel, sending->frame) ? CELL_INPROC_REFUSED : CELL_INPROC_OK;
	cell__waiter_signal(&sending->waiter);
}

static void do_send(struct cell__task *task)
{
	struct cell__inprocess_sending *sending = (struct cell__inprocess_sending *)task;
	struct cell__inprocess *kernel = sending->kernel;
	if (!kernel->paused) {
		take_frame(sending);
		return;
	}
	sending->next = NULL;
	*kernel->held_end = sending;
	kernel->held_end = &sending->next;
}

void cell__inprocess_take_held(struct cell__inprocess *kernel)
{
	while (kernel->held && !kernel->paused) {
		struct cell__inprocess_sending *sending = kernel->held;
		kernel->held = sending->next;
		if (!kernel->held)
			kernel->held_end = &kernel->held;
		take_frame(sending);
	}
}

static enum cell_inproc_status abi_send(struct cell_inproc *abi, const struct cell_frame *frame)
{
	struct cell__inprocess *kernel = cell__inprocess_of_abi(abi);
	enum cell_inproc_status status = enter(kernel);
	if (status != CELL_INPROC_OK)
		return status;
	struct cell__inprocess_sending sending = { .task.fn = do_send, .kernel = kernel, .frame = frame };
	cell__waiter_init(&sending.waiter);
	cell__loop_visit(kernel->loop, &sending.task, &sending.waiter);
	cell__waiter_finish(&sending.waiter);
	leave(kernel);
	return sending.status;
}

void cell__inprocess_init_calls(struct cell__inprocess *kernel)
{
	kernel->abi.send = abi_send;
	kernel->abi.ask = abi_ask;
	kernel->abi.receive = abi_receive;
	kernel->abi.pending = abi_pending;
	kernel->abi.watch = abi_watch;
	kernel->stop.fn = do_stop;
	kernel->held_end = &kernel->held;
	kernel->event_fd = -1;
}
