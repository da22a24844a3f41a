/*
 * The output of an in-process kernel's code: collected under the kernel's lock, in order, and delivered by the loop. Output of its children
 * comes through two pipes that are made for the first child.
 */
#define _GNU_SOURCE
#include "executors/inprocess/inprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>

#define OUT_BYTES (1u << 20) /* output that has not been taken yet */
#define PACE_MS 4            /* output that follows other output waits this long */
#define WAIT_MS 100

/* Output in the order written: one of these, then its bytes. */
struct record {
	uint32_t stream, size;
};

/* Under the lock. */
static bool add_output(struct cell__inprocess *kernel, uint32_t stream, const char *bytes, size_t size)
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

/* Under the lock: reads the children's output so far. */
static void drain_pipes(struct cell__inprocess *kernel)
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
static void schedule(struct cell__inprocess *kernel)
{
	if (kernel->scheduled || kernel->out.size == 0 || kernel->closed)
		return;
	kernel->scheduled = true;
	cell__loop_post_lazily(kernel->loop, &kernel->flush);
}

static enum cell_inproc_status write_forked(struct cell__inprocess *kernel, int stream, const char *bytes, size_t size)
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
	struct cell__inprocess *kernel = cell__inprocess_of_abi(abi);
	if (cell__inprocess_is_forked())
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
	struct cell__inprocess *kernel = cell__inprocess_of_abi(abi);
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
void cell__inprocess_deliver_output(struct cell__inprocess *kernel)
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
	struct cell__inprocess *kernel = timer->data;
	pthread_mutex_lock(&kernel->lock);
	bool more = kernel->out.size > 0;
	kernel->scheduled = more;
	pthread_mutex_unlock(&kernel->lock);
	if (!more || kernel->paused || kernel->state == CELL_INPROCESS_FINISHING)
		return;
	cell__inprocess_deliver_output(kernel);
	uv_timer_start(&kernel->pace, handle_pace, PACE_MS, 0);
}

/* The first output after a pause is delivered at once; output that follows soon is collected. */
static void do_flush(struct cell__task *task)
{
	struct cell__inprocess *kernel = (struct cell__inprocess *)((char *)task - offsetof(struct cell__inprocess, flush));
	if (kernel->state != CELL_INPROCESS_FINISHING)
		handle_pace(&kernel->pace);
}

/* ---- children ---- */

static void handle_pipe(uv_poll_t *poll, int status, int events)
{
	struct cell__inprocess *kernel = poll->data;
	(void)status;
	(void)events;
	pthread_mutex_lock(&kernel->lock);
	drain_pipes(kernel);
	bool full = kernel->out.size >= OUT_BYTES;
	pthread_mutex_unlock(&kernel->lock);
	if (full)
		for (int i = 0; i < 2; i++)
			uv_poll_stop(&kernel->polls[i]); /* cell__inprocess_deliver_output() is near, or the kernel is paused */
	if (!kernel->paused && !uv_is_active((uv_handle_t *)&kernel->pace))
		handle_pace(&kernel->pace);
}

static void poll_again(struct cell__inprocess *kernel)
{
	for (int i = 0; kernel->polling && i < 2; i++)
		uv_poll_start(&kernel->polls[i], UV_READABLE, handle_pipe);
}

static void do_poll_pipes(struct cell__task *task)
{
	struct cell__inprocess *kernel = (struct cell__inprocess *)((char *)task - offsetof(struct cell__inprocess, poll_pipes));
	if (kernel->state == CELL_INPROCESS_FINISHING)
		return;
	for (int i = 0; i < 2; i++) {
		uv_poll_init(cell__loop_uv(kernel->loop), &kernel->polls[i], kernel->pipes[i][0]);
		kernel->polls[i].data = kernel;
		kernel->open_handles++;
	}
	kernel->polling = true;
	poll_again(kernel);
}

static int abi_pipe(struct cell_inproc *abi, int stream)
{
	struct cell__inprocess *kernel = cell__inprocess_of_abi(abi);
	int made[2][2] = { { -1, -1 }, { -1, -1 } };
	pthread_mutex_lock(&kernel->lock);
	if (kernel->pipes[0][0] < 0 && !kernel->closed && !cell__inprocess_is_forked() && pipe2(made[0], O_CLOEXEC) == 0 &&
	    pipe2(made[1], O_CLOEXEC) == 0) {
		for (int i = 0; i < 2; i++) {
			fcntl(made[i][0], F_SETFL, O_NONBLOCK);
			for (int k = 0; k < 2; k++)
				kernel->pipes[i][k] = cell__take_fd(&made[i][k]);
		}
		cell__inprocess_post(kernel, &kernel->poll_pipes);
	}
	for (int i = 0; i < 4; i++)
		cell__close_fd(&made[i / 2][i % 2]);
	int fd = kernel->pipes[stream - 1][1];
	pthread_mutex_unlock(&kernel->lock);
	return fd;
}

void cell__inprocess_resume_output(struct cell__inprocess *kernel)
{
	handle_pace(&kernel->pace);
	poll_again(kernel);
}

void cell__inprocess_init_output(struct cell__inprocess *kernel)
{
	kernel->abi.write = abi_write;
	kernel->abi.wait = abi_wait;
	kernel->abi.pipe = abi_pipe;
	kernel->flush.fn = do_flush;
	kernel->poll_pipes.fn = do_poll_pipes;
	kernel->pipes[0][0] = kernel->pipes[0][1] = kernel->pipes[1][0] = kernel->pipes[1][1] = -1;
}
