/*
 * The kernel's C part: frames, the output ring, and the steps by which a process becomes a kernel.  Built once
 * against the stable ABI of CPython 3.9 and loaded by every later one.
 *
 * Theory of operation
 *
 *   kernel:  become_kernel() right after the fork, then recv()/send() of frames.  Python-level output goes
 *            through write functions into the ring (src/wire/ring_abi.h).  All ring state is touched with the
 *            GIL held; only waiting for space, recv and send release it.  send() takes send_lock without the
 *            GIL, so frames of several threads never mix.
 *   forked children of a kernel (os.fork, multiprocessing) share the mapping but are not the producer: a
 *            pthread_atfork handler marks them detached, and their output goes to fds 1 and 2, which are pipes.
 */
#include "ext.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "confine.h"
#include "wire/ring_abi.h"
#include "wire/ring_spin.h"
#include "wire/spawn_msg.h"

#define RECV_BYTES 65536u
#define WRITE_SAMPLES 64
#define ALERT_WRITES 1000 /* see maybe_sync() */

static int sock_fd = -1;
static int pipe_fd[2] = { -1, -1 }; /* private duplicates of fds 1 and 2 */
static struct cell_ring_ctl *ring;
static uint8_t *ring_data;
static uint64_t ring_head;
static uint64_t seen_tail; /* the host's position when last read: reading it moves its cache line here */
static uint64_t last_rung_tail = UINT64_MAX;
static uint64_t pipe_written[2]; /* as in the last SYNC record */
static uint64_t last_write; /* when the last write ended, or an earlier moment; in ticks(), as all below */
static uint64_t soon_ticks; /* see maybe_sync() */
static unsigned alert;
static uint32_t current_run;
static int detached = 1;
static pthread_t main_thread;
static bool bell_is_late; /* see ring_late() */
static pthread_mutex_t send_lock = PTHREAD_MUTEX_INITIALIZER;

static uint8_t recv_buf[RECV_BYTES];
static size_t recv_start, recv_end;
static struct cell_ring_spin spin;
static bool has_asked; /* the frame that was sent last is a call: its answer may take longer than the next cell */
static int lifeline_fd = -1; /* see tie_lifeline() */

static int ring_sync(void);

/* ---- frames out ---- */

/* Sends the whole of iov; to be called without the GIL.  Returns 0 or an errno.  EINTR before the first byte is returned. */
static int send_all(struct iovec *iov, int count)
{
	int error = 0;
	int begun = 0;
	pthread_mutex_lock(&send_lock);
	while (count > 0) {
		struct msghdr msg = { .msg_iov = iov, .msg_iovlen = (size_t)count };
		ssize_t n = sendmsg(sock_fd, &msg, MSG_NOSIGNAL);
		if (n < 0) {
			/* The rest of a frame must follow its beginning, whatever signals arrive. */
			if (errno == EINTR && begun)
				continue;
			error = errno;
			break;
		}
		begun = 1;
		while (count > 0 && (size_t)n >= iov->iov_len) {
			n -= (ssize_t)iov->iov_len;
			iov++;
			count--;
		}
		if (count > 0) {
			iov->iov_base = (char *)iov->iov_base + n;
			iov->iov_len -= (size_t)n;
		}
	}
	if (error == 0)
		cell_ring_spin_beat(&ring->kernel_beat);
	pthread_mutex_unlock(&send_lock);
	return error;
}

/* The raw part may come in two pieces. */
struct outgoing {
	uint8_t type;
	uint32_t id;
	const char *json, *raw, *more;
	size_t json_size, raw_size, more_size;
};

static bool is_same; /* the cell whose RESULT comes next changed nothing */

static void encode(const struct outgoing *out, uint8_t header[CELL_FRAME_HEADER_BYTES])
{
	struct cell_frame frame = {
		.type = out->type,
		.flags = out->type == CELL_FRAME_RESULT && is_same ? CELL_FRAME_SAME : 0,
		.id = out->id,
		.ring_pos = ring_head,
		.json_size = (uint32_t)out->json_size,
		.raw_size = (uint32_t)(out->raw_size + out->more_size),
	};
	cell__frame_encode_header(&frame, header);
}

int wc_send_now(uint8_t type, uint32_t id, const char *json, size_t size)
{
	struct outgoing out = { .type = type, .id = id, .json = json, .json_size = size };
	uint8_t header[CELL_FRAME_HEADER_BYTES];
	int error;
	encode(&out, header);
	do {
		struct iovec iov[2] = { { header, sizeof header }, { (void *)json, size } };
		error = send_all(iov, 2);
	} while (error == EINTR);
	return error;
}

static int send_frame(const struct outgoing *out)
{
	has_asked = out->type == CELL_FRAME_CALL;
	for (;;) {
		uint8_t header[CELL_FRAME_HEADER_BYTES];
		encode(out, header);
		struct iovec iov[4] = {
			{ header, sizeof header },
			{ (void *)out->json, out->json_size },
			{ (void *)out->raw, out->raw_size },
			{ (void *)out->more, out->more_size },
		};
		int error;
		Py_BEGIN_ALLOW_THREADS error = send_all(iov, 4);
		Py_END_ALLOW_THREADS if (error == 0) return 0;
		if (error != EINTR) {
			errno = error;
			PyErr_SetFromErrno(PyExc_OSError);
			return -1;
		}
		if (PyErr_CheckSignals() < 0)
			return -1;
	}
}

static int bytes_or_none(PyObject *object, const char **ret_data, size_t *ret_size)
{
	*ret_data = NULL;
	*ret_size = 0;
	if (object == Py_None)
		return 0;
	char *data;
	Py_ssize_t size;
	if (PyBytes_AsStringAndSize(object, &data, &size) < 0)
		return -1;
	*ret_data = data;
	*ret_size = (size_t)size;
	return 0;
}

static PyObject *wc_send(PyObject *self, PyObject *args)
{
	(void)self;
	int type;
	unsigned int id;
	PyObject *json = Py_None, *raw = Py_None;
	if (!PyArg_ParseTuple(args, "iI|OO", &type, &id, &json, &raw))
		return NULL;
	if (detached)
		Py_RETURN_FALSE;
	struct outgoing out = { .type = (uint8_t)type, .id = id };
	if (bytes_or_none(json, &out.json, &out.json_size) < 0 || bytes_or_none(raw, &out.raw, &out.raw_size) < 0)
		return NULL;
	if (out.json_size > CELL_FRAME_MAX_JSON || out.raw_size > CELL_FRAME_MAX_RAW)
		return PyErr_Format(PyExc_OverflowError, "a frame may carry at most %u + %u bytes", CELL_FRAME_MAX_JSON,
				    CELL_FRAME_MAX_RAW);
	/* A display after a child's write comes after the child's output. */
	if (type == CELL_FRAME_DISPLAY && ring_sync() < 0)
		return NULL;
	if (send_frame(&out) < 0)
		return NULL;
	Py_RETURN_TRUE;
}

/* ---- frames in ---- */

/*
 * Spins for a frame before sleeping for it. -1 with an exception set: a signal that came in between found no system call to interrupt, so
 * its handler runs now.
 */
static int spin_first(void)
{
	bool answer = has_asked, found;
	Py_BEGIN_ALLOW_THREADS found = answer ? cell_ring_spin_wait_answer(&ring->host_beat, &spin)
					      : cell_ring_spin_wait(&ring->host_beat, &spin);
	Py_END_ALLOW_THREADS return !found ? PyErr_CheckSignals() : 0;
}

static ssize_t receive(void *out, size_t size, int flags)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(WC_PASSED_FDS * sizeof(int))];
	} control;
	struct iovec iov = { out, size };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	ssize_t n = recvmsg(sock_fd, &msg, flags | MSG_CMSG_CLOEXEC);
	if (n > 0 && msg.msg_controllen > 0)
		wc_keep_passed(&msg);
	return n;
}

/*
 * recv() that waits. It sleeps in poll(), not in recv(): in recv() Linux wakes the waiter on a Unix socket also when the other side has
 * read the last sent bytes (unix_write_space() makes no distinction), so each of our frames would wake us once without need.
 */
static ssize_t recv_asleep(void *out, size_t size)
{
	ssize_t n = cell_ring_spin_has_come(&ring->host_beat, &spin) ? receive(out, size, MSG_DONTWAIT) : -1;
	if (n >= 0)
		return n;
	struct pollfd p = { .fd = sock_fd, .events = POLLIN };
	if (poll(&p, 1, -1) < 0)
		return -1;
	cell_ring_spin_has_slept(&ring->host_beat, &spin);
	return receive(out, size, 0);
}

/*
 * Reads up to size bytes; 0 at end of file; -1 with an exception set. Inside a frame no signal handler runs: the unread rest of an
 * interrupted frame would be taken for the next frame.
 */
static ssize_t read_some(void *out, size_t size, bool begun)
{
	if (!begun && spin_first() < 0)
		return -1;
	for (;;) {
		ssize_t n;
		int error = 0;
		Py_BEGIN_ALLOW_THREADS n = recv_asleep(out, size);
		error = errno;
		Py_END_ALLOW_THREADS if (n >= 0) return n;
		if (error == ECONNRESET)
			return 0;
		if (error != EINTR) {
			errno = error;
			PyErr_SetFromErrno(PyExc_OSError);
			return -1;
		}
		if (!begun && PyErr_CheckSignals() < 0)
			return -1;
	}
}

/* A bytes object of the next size bytes of the stream, None when size is 0, NULL with an exception or at the end. */
static PyObject *take_bytes(uint32_t size)
{
	if (size == 0)
		Py_RETURN_NONE;
	PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
	if (!bytes)
		return NULL;
	char *out = PyBytes_AsString(bytes);
	size_t have = recv_end - recv_start;
	size_t got = have < size ? have : size;
	memcpy(out, recv_buf + recv_start, got);
	recv_start += got;
	while (got < size) {
		ssize_t n = read_some(out + got, size - got, true);
		if (n <= 0) {
			if (n == 0)
				PyErr_SetString(PyExc_EOFError, "the host closed the connection inside a frame");
			Py_DECREF(bytes);
			return NULL;
		}
		got += (size_t)n;
	}
	return bytes;
}

static PyObject *receive_frame(bool runs_plain)
{
again:
	if (recv_start == recv_end)
		recv_start = recv_end = 0;
	while (recv_end - recv_start < CELL_FRAME_HEADER_BYTES) {
		if (recv_start > 0) {
			memmove(recv_buf, recv_buf + recv_start, recv_end - recv_start);
			recv_end -= recv_start;
			recv_start = 0;
		}
		ssize_t n = read_some(recv_buf + recv_end, RECV_BYTES - recv_end, recv_end > recv_start);
		if (n < 0)
			return NULL;
		if (n == 0)
			Py_RETURN_NONE;
		recv_end += (size_t)n;
	}
	struct cell_frame frame;
	uint8_t header[CELL_FRAME_HEADER_BYTES];
	memcpy(header, recv_buf + recv_start, sizeof header);
	size_t used = 0;
	enum cell_frame_status status = cell__frame_decode(recv_buf + recv_start, recv_end - recv_start, &frame, &used);
	if (status != CELL_FRAME_OK && status != CELL_FRAME_MORE)
		return PyErr_Format(PyExc_ConnectionError, "from the host: %s", cell__frame_status_word(status));
	uint32_t id, json_size, raw_size;
	memcpy(&id, header + 4, 4);
	memcpy(&json_size, header + 8, 4);
	memcpy(&raw_size, header + 12, 4);
	recv_start += CELL_FRAME_HEADER_BYTES;
	spin.received++;
	if (runs_plain && header[2] == CELL_FRAME_RUN && json_size == 0 && raw_size <= recv_end - recv_start) {
		int done = wc_run_script(id, (const char *)recv_buf + recv_start, raw_size);
		if (done > 0) {
			recv_start += raw_size;
			goto again; /* without Python in between */
		}
		if (done == 0 && !wc_has_programs())
			done = wc_run_plain(id, (const char *)recv_buf + recv_start, raw_size);
		if (done < 0)
			return NULL;
		if (done > 0) {
			recv_start += raw_size;
			Py_RETURN_TRUE;
		}
	}
	PyObject *json = take_bytes(json_size);
	if (!json)
		return NULL;
	PyObject *raw = take_bytes(raw_size);
	if (!raw) {
		Py_DECREF(json);
		return NULL;
	}
	return Py_BuildValue("iINN", (int)header[2], id, json, raw);
}

/* recv() -> (type, id, json, raw), or None when the host has closed the connection. */
static PyObject *wc_recv(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	return receive_frame(false);
}

/* next() -> as recv(), or True: it was a plain cell, and that has run. Not for kernels that receive anything during a cell. */
static PyObject *wc_next(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	return receive_frame(true);
}

/* pending() -> True when recv() would not have to wait for the socket. */
static PyObject *wc_pending(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	struct pollfd p = { .fd = sock_fd, .events = POLLIN };
	return PyBool_FromLong(recv_end > recv_start || poll(&p, 1, 0) > 0);
}

/* ---- both in one step, for caller.c ---- */

bool wc_is_quiet(void)
{
	return !detached && recv_start == recv_end;
}

enum wc_exchange wc_exchange(uint32_t id, const char *json, size_t size)
{
	struct cell_frame frame = { .type = CELL_FRAME_CALL, .id = id, .ring_pos = ring_head, .json_size = (uint32_t)size };
	uint8_t header[CELL_FRAME_HEADER_BYTES];
	cell__frame_encode_header(&frame, header);
	struct iovec iov[2] = { { header, sizeof header }, { (void *)json, size } };
	enum wc_exchange end = WC_NOT_SENT;
	recv_start = recv_end = 0;
	Py_BEGIN_ALLOW_THREADS if (json && send_all(iov, 2) == 0)
		end = cell_ring_spin_wait_answer(&ring->host_beat, &spin) ? WC_SENT : WC_INTERRUPTED;
	if (!json || end == WC_SENT) {
		ssize_t n = recv_asleep(recv_buf, RECV_BYTES);
		end = n < 0 && errno == EINTR ? WC_INTERRUPTED : WC_SENT;
		recv_end = n > 0 ? (size_t)n : 0;
	}
	Py_END_ALLOW_THREADS return end;
}

bool wc_peek(struct cell_frame *ret_frame)
{
	size_t used;
	return cell__frame_decode(recv_buf + recv_start, recv_end - recv_start, ret_frame, &used) == CELL_FRAME_OK;
}

void wc_skip(const struct cell_frame *frame)
{
	recv_start += CELL_FRAME_HEADER_BYTES + (size_t)frame->json_size + frame->raw_size;
	spin.received++;
}

/* ---- the output ring ---- */

static int ring_doorbell(uint64_t tail)
{
	last_rung_tail = tail;
	return send_frame(&(struct outgoing){ .type = CELL_FRAME_DOORBELL });
}

static uint64_t ring_tail(void)
{
	return atomic_load_explicit((_Atomic uint64_t *)&ring->tail, memory_order_acquire);
}

/* Waits until the host has taken something.  -1 with an exception set (an interrupt, a dead host). */
static int ring_wait(uint64_t tail)
{
	if (last_rung_tail != tail && ring_doorbell(tail) < 0)
		return -1;
	atomic_store((_Atomic uint32_t *)&ring->kernel_waits, 1);
	uint32_t seen = atomic_load((_Atomic uint32_t *)&ring->space_futex);
	if (ring_tail() == tail) {
		struct timespec timeout = { .tv_nsec = 100 * 1000 * 1000 };
		Py_BEGIN_ALLOW_THREADS syscall(SYS_futex, &ring->space_futex, FUTEX_WAIT, seen, &timeout, NULL, 0);
		Py_END_ALLOW_THREADS
	}
	atomic_store((_Atomic uint32_t *)&ring->kernel_waits, 0);
	return PyErr_CheckSignals();
}

static void ring_copy(uint64_t at, const void *bytes, size_t size)
{
	size_t offset = (size_t)(at & (CELL_RING_DATA_BYTES - 1));
	size_t first = CELL_RING_DATA_BYTES - offset;
	if (size <= first) {
		memcpy(ring_data + offset, bytes, size);
		return;
	}
	memcpy(ring_data + offset, bytes, first);
	memcpy(ring_data, (const char *)bytes + first, size - first);
}

/*
 * Rings for half a line, once the interpreter has returned from the call that wrote it. Always 0: an exception would have no visible
 * cause.
 */
static int ring_late(void *arg)
{
	(void)arg;
	bell_is_late = false;
	if (!detached && atomic_exchange((_Atomic uint32_t *)&ring->armed, 0) && ring_doorbell(seen_tail) < 0)
		PyErr_Clear(); /* a dead host; reading will tell */
	return 0;
}

/*
 * print() writes a line and then its end. A bell between the two wakes a host that takes the CPU from us on a busy machine and delivers
 * half a line, so half a line rings when the interpreter handles pending calls: after print(), or before the next Python code. Only the
 * main thread does that; the others ring at once.
 */
static bool can_ring_late(void)
{
	if (!pthread_equal(pthread_self(), main_thread))
		return false;
	if (!bell_is_late)
		bell_is_late = Py_AddPendingCall(ring_late, NULL) == 0;
	return bell_is_late;
}

static int ring_put(uint32_t type, const void *bytes, uint32_t size)
{
	uint64_t need = sizeof(struct cell_ring_record) + ((uint64_t)size + 7) / 8 * 8;
	while (CELL_RING_DATA_BYTES - (ring_head - seen_tail) < need) {
		uint64_t before = seen_tail;
		seen_tail = ring_tail();
		if (seen_tail == before && ring_wait(before) < 0)
			return -1;
	}
	struct cell_ring_record record = { .size = size, .type = type };
	/* Records begin at multiples of their header's size: it never goes around the end. */
	memcpy(ring_data + (ring_head & (CELL_RING_DATA_BYTES - 1)), &record, sizeof record);
	ring_copy(ring_head + sizeof record, bytes, size);
	ring_head += need;
	/*
	 * No full fence between this store and reading `armed`: it would cost more than the rest of a short write. A host that arms at this
	 * very moment may then see neither the record nor a bell; it polls once more after arming.
	 */
	atomic_store_explicit((_Atomic uint64_t *)&ring->head, ring_head, memory_order_release);
	/*
	 * The host sleeps: wake it.  It is awake but the ring is half full: do not wait for its next poll.  Output, or a frame that wakes it, follows
	 * each SYNC record.
	 */
	if (type != CELL_RING_SYNC && atomic_load_explicit((_Atomic uint32_t *)&ring->armed, memory_order_relaxed)) {
		bool half = size > 0 && ((const char *)bytes)[size - 1] != '\n';
		if (!(half && can_ring_late()) && atomic_exchange((_Atomic uint32_t *)&ring->armed, 0))
			return ring_doorbell(seen_tail);
	}
	if (ring_head - seen_tail > CELL_RING_DATA_BYTES / 2) {
		seen_tail = ring_tail();
		if (ring_head - seen_tail > CELL_RING_DATA_BYTES / 2 && last_rung_tail != seen_tail)
			return ring_doorbell(seen_tail);
	}
	return 0;
}

/* Finds how much children and C code have written to the pipes; adds a SYNC record if it is more than in the last one. */
static int ring_sync(void)
{
	uint64_t written[2] = { pipe_written[0], pipe_written[1] };
	/* The host may be preempted inside a read for a whole time slice: first be quick, then patient, then give up. */
	for (int tries = 0; tries < 10000; tries++) {
		uint32_t before = atomic_load_explicit((_Atomic uint32_t *)&ring->pipe_seq, memory_order_acquire);
		if (before & 1) {
			if (tries < 100)
				sched_yield();
			else
				usleep(100);
			continue;
		}
		for (int i = 0; i < 2; i++) {
			int waiting = 0;
			uint64_t taken = atomic_load_explicit((_Atomic uint64_t *)&ring->pipe_read[i], memory_order_acquire);
			if (ioctl(pipe_fd[i], FIONREAD, &waiting) < 0)
				waiting = 0;
			written[i] = taken + (uint64_t)waiting;
		}
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit((_Atomic uint32_t *)&ring->pipe_seq, memory_order_relaxed) == before)
			break;
	}
	if (written[0] == pipe_written[0] && written[1] == pipe_written[1]) {
		alert -= alert > 0;
		return 0;
	}
	alert = ALERT_WRITES;
	pipe_written[0] = written[0];
	pipe_written[1] = written[1];
	return ring_put(CELL_RING_SYNC, written, sizeof written);
}

/* A clock that is only compared with itself: read twice per print(), so it must cost almost nothing. */
static uint64_t ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#endif
}

/*
 * Sets soon_ticks by the fastest write to a pipe on this machine; 0, and every write is checked, when that fails. No process waits at this
 * pipe, so a write that wakes the host takes longer, and the call around it is not counted either: hence the three quarters.
 */
void wc_measure_write(void)
{
	int fds[2];
	uint64_t best = UINT64_MAX;
	if (pipe2(fds, O_CLOEXEC) < 0)
		return;
	for (int i = 0; i < WRITE_SAMPLES; i++) {
		uint64_t began = ticks();
		if (write(fds[1], "", 1) != 1)
			break;
		uint64_t took = ticks() - began;
		best = took < best ? took : best;
	}
	close(fds[0]);
	close(fds[1]);
	soon_ticks = best == UINT64_MAX ? 0 : best + best * 3 / 4;
}

/*
 * Before a Python-level write: checks whether another writer has written to the pipes since the last one. The check costs two system calls,
 * more than the write itself, so it is skipped when the last write ended so short a time ago that no other write was possible, as in a loop
 * that prints: os.write() is a system call and the interpreter's path there and back. Once another write has been seen, every write checks
 * for a while, so that correctness does not depend on a few nanoseconds.
 */
static int maybe_sync(void)
{
	uint64_t now = ticks();
	uint64_t gap = now - last_write; /* a clock that went back makes it huge */
	last_write = now;
	return alert > 0 || gap > soon_ticks ? ring_sync() : 0;
}

static int put_output(uint32_t stream, const char *bytes, size_t size)
{
	if (detached) {
		while (size > 0) {
			ssize_t n = write((int)stream, bytes, size);
			if (n < 0 && errno != EINTR) {
				PyErr_SetFromErrno(PyExc_OSError);
				return -1;
			}
			if (n > 0) {
				bytes += n;
				size -= (size_t)n;
			}
		}
		return 0;
	}
	/* print() writes the line and then its end: nothing may come between those two. */
	static bool mid_line;
	bool line_end = mid_line && size == 1 && *bytes == '\n';
	mid_line = size > 0 && bytes[size - 1] != '\n';
	if (!line_end && maybe_sync() < 0)
		return -1;
	while (size > 0) {
		uint32_t part = size < CELL_RING_MAX_RECORD ? (uint32_t)size : CELL_RING_MAX_RECORD;
		if (ring_put(stream, bytes, part) < 0)
			return -1;
		bytes += part;
		size -= part;
	}
	/* A line is complete: the next one may come soon.  Elsewhere the beginning of the write does. */
	if (!mid_line)
		last_write = ticks();
	return 0;
}

const char *wc_text_bytes(PyObject *text, Py_ssize_t *ret_size, PyObject **ret_memory)
{
	if (!PyUnicode_Check(text)) {
		PyErr_SetString(PyExc_TypeError, "write() argument must be str");
		return NULL;
	}
	const char *bytes = PyUnicode_AsUTF8AndSize(text, ret_size);
	if (bytes)
		return bytes;
	/* Lone surrogates: undecodable input bytes are written as they were, the rest escaped. */
	PyErr_Clear();
	PyObject *encoded = PyUnicode_AsEncodedString(text, "utf-8", "surrogateescape");
	if (!encoded) {
		PyErr_Clear();
		encoded = PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace");
	}
	char *data;
	if (!encoded || PyBytes_AsStringAndSize(encoded, &data, ret_size) < 0) {
		Py_XDECREF(encoded);
		return NULL;
	}
	*ret_memory = encoded;
	return data;
}

/* The write method of sys.stdout and sys.stderr: self is the stream's number. */
static PyObject *stream_write(PyObject *self, PyObject *text)
{
	PyObject *encoded = NULL;
	Py_ssize_t size;
	const char *bytes = wc_text_bytes(text, &size, &encoded);
	if (!bytes)
		return NULL;
	int rc = put_output((uint32_t)PyLong_AsLong(self), bytes, (size_t)size);
	Py_XDECREF(encoded);
	return rc < 0 ? NULL : PyLong_FromSsize_t(PyUnicode_GetLength(text));
}

static PyMethodDef stream_write_def = { "write", stream_write, METH_O, "write(text) -> number of characters written" };

/* writer(stream) -> a write(str) function */
static PyObject *wc_writer(PyObject *self, PyObject *stream)
{
	(void)self;
	return PyCFunction_NewEx(&stream_write_def, stream, NULL);
}

static PyObject *wc_write_bytes(PyObject *self, PyObject *args)
{
	(void)self;
	int stream;
	const char *bytes;
	Py_ssize_t size;
	if (!PyArg_ParseTuple(args, "iy#", &stream, &bytes, &size))
		return NULL;
	if (put_output((uint32_t)stream, bytes, (size_t)size) < 0)
		return NULL;
	return PyLong_FromSsize_t(size);
}

/* ---- runs ---- */

/* begin_run(id): interrupts meant for this run are welcome from now on. */
static PyObject *begin_run(PyObject *self, PyObject *id)
{
	(void)self;
	unsigned long value = PyLong_AsUnsignedLong(id);
	if (value == (unsigned long)-1 && PyErr_Occurred())
		return NULL;
	current_run = (uint32_t)value;
	Py_RETURN_NONE;
}

/* end_run(): no more interrupts; all output of children so far is counted. */
static PyObject *wc_end_run(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	current_run = 0;
	if (!detached && ring_sync() < 0)
		return NULL;
	Py_RETURN_NONE;
}

bool wc_begin_run(uint32_t id)
{
	current_run = id;
	return !detached && atomic_load((_Atomic uint32_t *)&ring->interrupt_id) != id;
}

bool wc_is_detached(void)
{
	return detached;
}

int wc_send_result(uint32_t id, const struct wc_result *result)
{
	current_run = 0;
	if (ring_sync() < 0)
		return -1;
	/* {"v":SIZE,"r":SIZE}, {"r":SIZE} or nothing */
	char sizes[64], *at = sizes;
	if (result->has_value) {
		at = stpcpy(at, "{\"v\":");
		at += wc_put_number(at, (long long)result->value_size);
	}
	if (result->has_value || result->has_repr) {
		at = stpcpy(at, result->has_value ? ",\"r\":" : "{\"r\":");
		at += wc_put_number(at, (long long)result->repr_size);
		*at++ = '}';
	}
	return send_frame(&(struct outgoing){
		.type = CELL_FRAME_RESULT,
		.id = id,
		.json = sizes,
		.json_size = (size_t)(at - sizes),
		.raw = result->value,
		.raw_size = result->value_size,
		.more = result->repr,
		.more_size = result->repr_size,
	});
}

int wc_send_value(uint32_t id, const char *value, size_t size, const char *more, size_t more_size)
{
	char sizes[32], *at = stpcpy(sizes, "{\"v\":");
	current_run = 0;
	if (ring_sync() < 0)
		return -1;
	at += wc_put_number(at, (long long)(size + more_size));
	*at++ = '}';
	return send_frame(&(struct outgoing){
		.type = CELL_FRAME_RESULT,
		.id = id,
		.json = sizes,
		.json_size = (size_t)(at - sizes),
		.raw = value,
		.raw_size = size,
		.more = more,
		.more_size = more_size,
	});
}

int wc_send_error(uint32_t id, const char *json, size_t size)
{
	current_run = 0;
	if (ring_sync() < 0)
		return -1;
	return send_frame(&(struct outgoing){ .type = CELL_FRAME_RESULT, .id = id, .json = json, .json_size = size });
}

bool wc_is_interrupted(void)
{
	return !detached && current_run != 0 && atomic_load((_Atomic uint32_t *)&ring->interrupt_id) == current_run;
}

char *wc_bulk_memory(void)
{
	return (char *)ring + CELL_BULK_OFFSET;
}

/*
 * answer(id, value, repr) -> True: end_run() and the RESULT of a cell that has only these, bytes or None. False in a forked child, and when
 * they do not fit into a frame.
 */
static PyObject *wc_answer(PyObject *self, PyObject *args)
{
	(void)self;
	unsigned int id;
	PyObject *value, *repr;
	struct wc_result result;
	if (!PyArg_ParseTuple(args, "IOO", &id, &value, &repr) || bytes_or_none(value, &result.value, &result.value_size) < 0 ||
	    bytes_or_none(repr, &result.repr, &result.repr_size) < 0)
		return NULL;
	if (detached || result.value_size + result.repr_size > CELL_FRAME_MAX_RAW)
		Py_RETURN_FALSE;
	result.has_value = value != Py_None;
	result.has_repr = repr != Py_None;
	if (wc_send_result(id, &result) < 0)
		return NULL;
	Py_RETURN_TRUE;
}

/* mark_same(bool): whether the cell that runs changes nothing */
static PyObject *wc_mark_same(PyObject *self, PyObject *same)
{
	(void)self;
	is_same = same == Py_True;
	Py_RETURN_NONE;
}

static PyObject *wc_interrupt_wanted(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	return PyBool_FromLong(wc_is_interrupted());
}

/* type_changed(type): its dictionary was changed behind its back (recorded.py). */
static PyObject *wc_type_changed(PyObject *self, PyObject *type)
{
	(void)self;
	if (!PyType_Check(type)) {
		PyErr_SetString(PyExc_TypeError, "not a type");
		return NULL;
	}
	PyType_Modified((PyTypeObject *)type);
	Py_RETURN_NONE;
}

/* take_interrupt() -> True when there is an interrupt for this run that has not been raised yet; now it counts as raised. */
static PyObject *wc_take_interrupt(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	if (detached || current_run == 0 || atomic_load((_Atomic uint32_t *)&ring->interrupt_id) != current_run)
		Py_RETURN_FALSE;
	uint32_t number = atomic_load((_Atomic uint32_t *)&ring->interrupt_no);
	return PyBool_FromLong(atomic_exchange((_Atomic uint32_t *)&ring->interrupt_taken, number) != number);
}

static PyObject *wc_is_kernel(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	return PyBool_FromLong(!detached);
}

/* ---- becoming a kernel ---- */

static void after_fork_in_child(void)
{
	detached = 1;
}

PyObject *wc_fail_step(const char *step)
{
	int error = errno;
	return PyErr_Format(PyExc_OSError, "%s: %s", step, strerror(error));
}

/*
 * The lifeline is a pipe whose writing end only host and spawner hold. When both have ended the kernel of the operating system sends
 * SIGKILL to our process group, even while we spin in C code with all signals blocked. Each kernel needs an open file description of its
 * own, because the owner of the signal belongs to the description.
 */
static int tie_lifeline(int lifeline)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", lifeline);
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return -1;
	struct pollfd p = { .fd = fd };
	if (fcntl(fd, F_SETSIG, SIGKILL) < 0 || fcntl(fd, F_SETOWN, -getpid()) < 0 ||
	    fcntl(fd, F_SETFL, O_RDONLY | O_NONBLOCK | O_ASYNC) < 0 || poll(&p, 1, 0) < 0 || (p.revents & POLLHUP)) {
		close(fd);
		return -1;
	}
	lifeline_fd = fcntl(fd, F_DUPFD_CLOEXEC, 64);
	if (lifeline_fd >= 0)
		close(fd);
	else
		lifeline_fd = fd;
	return 0;
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	/* Best effort: it only makes the OOM killer prefer kernels over the host. */
	if (write(fd, text, strlen(text)) < 0)
		errno = 0;
	close(fd);
}

static int keep_fd(int fd, int *ret_fd)
{
	*ret_fd = fcntl(fd, F_DUPFD_CLOEXEC, 64);
	return *ret_fd < 0 ? -1 : 0;
}

/* Fds 0 to 2, the socket, the ring: from now on this process is a kernel. */
static PyObject *take_descriptors(int sock, int out, int err, int ring_fd)
{
	write_file("/proc/self/oom_score_adj", "500");
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
		return wc_fail_step("set up stdin, stdout, stderr");
	close(null);
	/* High numbers: agent code that closes "all" small descriptors by mistake keeps its session. */
	if (keep_fd(sock, &sock_fd) < 0 || keep_fd(out, &pipe_fd[0]) < 0 || keep_fd(err, &pipe_fd[1]) < 0)
		return wc_fail_step("keep descriptors");
	close(sock);
	close(out);
	close(err);
	void *map = mmap(NULL, CELL_RING_MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd, 0);
	if (map == MAP_FAILED)
		return wc_fail_step("map the output ring");
	/* A forked child must not even be able to disturb the ring by accident. */
	close(ring_fd);
	ring = map;
	ring_data = (uint8_t *)map + CELL_RING_DATA_OFFSET;
	if (ring->version != CELL_RING_VERSION)
		return PyErr_Format(PyExc_OSError, "output ring version %u, expected %u", ring->version, CELL_RING_VERSION);
	ring_head = ring->head;
	seen_tail = ring_tail();
	detached = 0;
	if (pthread_atfork(NULL, NULL, after_fork_in_child) != 0)
		return wc_fail_step("pthread_atfork");
	return PyLong_FromLong(sock_fd);
}

int wc_lead(int lifeline)
{
	if (setsid() < 0) {
		wc_fail_step("setsid");
		return -1;
	}
	if (lifeline >= 0 && prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) {
		wc_fail_step("become subreaper");
		return -1;
	}
	if (lifeline >= 0 && tie_lifeline(lifeline) < 0) {
		wc_fail_step("set up the lifeline");
		return -1;
	}
	return 0;
}

/* become_kernel(socket, stdout, stderr, ring, lifeline or -1 in a sandbox): takes the descriptors over. */
static PyObject *wc_become_kernel(PyObject *self, PyObject *args)
{
	(void)self;
	int sock, out, err, ring_fd, lifeline;
	if (!PyArg_ParseTuple(args, "iiiii", &sock, &out, &err, &ring_fd, &lifeline) || wc_lead(lifeline) < 0)
		return NULL;
	return take_descriptors(sock, out, err, ring_fd);
}

/*
 * join_kernel(socket, stdout, stderr, ring): the same for a process that another program started separately (a Jupyter kernel), which leads
 * a session and reaps already.
 */
static PyObject *wc_join_kernel(PyObject *self, PyObject *args)
{
	(void)self;
	int sock, out, err, ring_fd;
	if (!PyArg_ParseTuple(args, "iiii", &sock, &out, &err, &ring_fd))
		return NULL;
	return take_descriptors(sock, out, err, ring_fd);
}

struct wc_ends wc_ends(void)
{
	return (struct wc_ends){ .sock = sock_fd, .out = pipe_fd[0], .err = pipe_fd[1], .lifeline = lifeline_fd };
}

size_t wc_ring(void **ret_ring)
{
	*ret_ring = ring;
	return ring ? CELL_RING_MAP_BYTES : 0;
}

int wc_begin_again(int ring_fd)
{
	if (ring_fd >= 0 && mmap(ring, CELL_RING_MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ring_fd, 0) == MAP_FAILED) {
		wc_fail_step("map the output ring");
		return -1;
	}
	if (ring_fd >= 0)
		close(ring_fd);
	if (ring->version != CELL_RING_VERSION) {
		PyErr_Format(PyExc_OSError, "output ring version %u, expected %u", ring->version, CELL_RING_VERSION);
		return -1;
	}
	recv_start = recv_end = 0;
	ring_head = ring->head;
	seen_tail = ring_tail();
	last_rung_tail = UINT64_MAX;
	pipe_written[0] = pipe_written[1] = 0;
	current_run = 0;
	bell_is_late = has_asked = false;
	memset(&spin, 0, sizeof spin);
	pthread_mutex_init(&send_lock, NULL);
	main_thread = pthread_self();
	detached = 0;
	return 0;
}

/* begin_again(): after an image was loaded */
static PyObject *wc_begin_again_here(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	if (wc_begin_again(-1) < 0)
		return NULL;
	Py_RETURN_NONE;
}

/* fds() -> the descriptors that this kernel must keep: its socket and its private duplicates of 1 and 2 */
static PyObject *wc_fds(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	return Py_BuildValue("[iii]", sock_fd, pipe_fd[0], pipe_fd[1]);
}

static PyMethodDef methods[] = {
	{ "send", wc_send, METH_VARARGS, "send(type, id, json=None, raw=None) -> False in a forked child" },
	{ "recv", wc_recv, METH_NOARGS, "recv() -> (type, id, json, raw) or None at the end" },
	{ "next", wc_next, METH_NOARGS, "next() -> as recv(), or True: a plain cell has run" },
	{ "encode", wc_encode, METH_VARARGS, "encode(head, value, tail) -> bytes, or None when the value is not plain" },
	{ "attach", wc_attach, METH_VARARGS, "attach(channel, leader, inbox, parked, watches, ids, loads)" },
	{ "in_call", wc_in_call, METH_NOARGS, "in_call() -> bool" },
	{ "pending", wc_pending, METH_NOARGS, "pending() -> bool" },
	{ "writer", wc_writer, METH_O, "writer(stream) -> write function" },
	{ "write_bytes", wc_write_bytes, METH_VARARGS, "write_bytes(stream, bytes) -> size" },
	{ "begin_run", begin_run, METH_O, "begin_run(id)" },
	{ "end_run", wc_end_run, METH_NOARGS, "end_run()" },
	{ "answer", wc_answer, METH_VARARGS, "answer(id, value, repr) -> bool" },
	{ "mark_same", wc_mark_same, METH_O, "mark_same(bool)" },
	{ "names_before", wc_names_before, METH_O, "names_before(dict) -> [name, value, length, ...]" },
	{ "names_differ", wc_names_differ, METH_VARARGS, "names_differ(before, dict) -> [name, value, whether it was there, ...] or None" },
	{ "plain_begin", wc_plain_begin, METH_VARARGS, "plain_begin(cells, interactive, linecache, shown, statements, compile, eval)" },
	{ "plain", wc_plain, METH_VARARGS, "plain(id, source) -> bool" },
	{ "in_plain", wc_in_plain, METH_NOARGS, "in_plain() -> bool" },
	{ "leave_plain", wc_leave_plain, METH_NOARGS, "leave_plain()" },
	{ "is_expression", wc_is_expression_py, METH_VARARGS, "is_expression(source, statements) -> bool" },
	{ "remember", wc_remember_py, METH_VARARGS, "remember(ns, out, n, value) -> bytes or None" },
	{ "interrupt_wanted", wc_interrupt_wanted, METH_NOARGS, "interrupt_wanted() -> bool" },
	{ "type_changed", wc_type_changed, METH_O, "type_changed(type)" },
	{ "take_interrupt", wc_take_interrupt, METH_NOARGS, "take_interrupt() -> bool" },
	{ "bulk", wc_bulk, METH_NOARGS, "bulk() -> memoryview or None" },
	{ "blank", wc_blank, METH_O, "blank(size) -> bytes" },
	{ "fill", wc_fill, METH_VARARGS, "fill(blank, offset, source, size)" },
	{ "free_bulk", wc_free_bulk, METH_NOARGS, "free_bulk()" },
	{ "is_kernel", wc_is_kernel, METH_NOARGS, "is_kernel() -> bool" },
	{ "join_kernel", wc_join_kernel, METH_VARARGS, "join_kernel(socket, stdout, stderr, ring) -> socket" },
	{ "become_kernel", wc_become_kernel, METH_VARARGS, "become_kernel(socket, stdout, stderr, ring, lifeline) -> socket" },
	{ "take_fds", wc_take_fds, METH_NOARGS, "take_fds() -> [socket, stdout, stderr, ring]" },
	{ "is_alone", wc_is_alone, METH_VARARGS, "is_alone(fd, ...) -> bool" },
	{ "branch", wc_branch, METH_NOARGS, "branch() -> pid, 0 in the fork" },
	{ "begin_again", wc_begin_again_here, METH_NOARGS, "begin_again()" },
	{ "image_save", wc_image_save, METH_VARARGS,
	  "image_save(fd, limit, keeps) -> [inode], None in the process that continues from the image" },
	{ "image_learn", wc_image_learn, METH_NOARGS, "image_learn(): knows the files that are mapped, also where they cannot be opened" },
	{ "image_load", wc_image_load, METH_VARARGS, "image_load(fds, given, inodes, maps)" },
	{ "image_given", wc_image_given, METH_NOARGS, "image_given() -> bytes" },
	{ "become_branch", wc_become_branch, METH_VARARGS, "become_branch(socket, stdout, stderr, ring)" },
	{ "fds", wc_fds, METH_NOARGS, "fds() -> [socket, stdout, stderr]" },
	{ "fork_into", wc_fork_into, METH_VARARGS, "fork_into(fds, join) -> pid, 0 in the kernel" },
	{ "join_group", wc_join_group, METH_VARARGS, "join_group(fds, join)" },
	{ "confine_early", wc_confine_early, METH_VARARGS, "confine_early(plan, keep) -> (step, errno, skipped)" },
	{ "confine", wc_confine, METH_O, "confine(session) -> (step, errno, skipped)" },
	{ "script_kernel", wc_script_kernel, METH_NOARGS, "script_kernel()" },
	{ "script_child", wc_script_child, METH_NOARGS, "script_child()" },
	{ "script_begin", wc_script_begin, METH_VARARGS, "script_begin(play, give_files, clean_up, kept)" },
	{ "script_refuse", wc_script_refuse, METH_O, "script_refuse(text)" },
	{ "script_run", wc_script_run, METH_VARARGS, "script_run(id, source) -> bool" },
	{ "template_code", wc_template_code, METH_NOARGS, "template_code() -> number of huge pages" },
	{ "title", wc_title, METH_VARARGS, "title(text)" },
	{ "zygote_open", wc_zygote_open, METH_O, "zygote_open(fd)" },
	{ "zygote_leave", wc_zygote_leave, METH_NOARGS, "zygote_leave()" },
	{ "zygote_next", wc_zygote_next, METH_VARARGS, "zygote_next(timeout_ms)" },
	{ "zygote_send", wc_zygote_send, METH_VARARGS, "zygote_send(type, id, a, b, payload, pid=0)" },
	{ NULL, NULL, 0, NULL }
};

static struct PyModuleDef module = { PyModuleDef_HEAD_INIT, "_workcell", "The kernel's C part.", -1, methods, NULL, NULL, NULL, NULL };

PyMODINIT_FUNC PyInit__workcell(void);
PyMODINIT_FUNC PyInit__workcell(void)
{
	main_thread = pthread_self();
	PyObject *m = PyModule_Create(&module);
	if (!m)
		return NULL;
	static const struct {
		const char *name;
		long value;
	} constants[] = {
		{ "INIT", CELL_FRAME_INIT },
		{ "RUN", CELL_FRAME_RUN },
		{ "REPLY", CELL_FRAME_REPLY },
		{ "SHUTDOWN", CELL_FRAME_SHUTDOWN },
		{ "FORK", CELL_FRAME_FORK },
		{ "LOAD", CELL_FRAME_LOAD },
		{ "FORKED", CELL_FRAME_FORKED },
		{ "READY", CELL_FRAME_READY },
		{ "RESULT", CELL_FRAME_RESULT },
		{ "DISPLAY", CELL_FRAME_DISPLAY },
		{ "CALL", CELL_FRAME_CALL },
		{ "HELLO", CELL_FRAME_HELLO },
		{ "MAX_JSON", CELL_FRAME_MAX_JSON },
		{ "MAX_RAW", CELL_FRAME_MAX_RAW },
		{ "KERNEL_FORK", CELL_SPAWN_KERNEL_FORK },
		{ "ZYGOTE_WARM", CELL_SPAWN_ZYGOTE_WARM },
		{ "ZYGOTE_READY", CELL_SPAWN_ZYGOTE_READY },
		{ "ZYGOTE_WARMED", CELL_SPAWN_ZYGOTE_WARMED },
		{ "KERNEL_FORKED", CELL_SPAWN_KERNEL_FORKED },
		{ "KERNEL_EXITED", CELL_SPAWN_KERNEL_EXITED },
	};
	for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
		if (PyModule_AddIntConstant(m, constants[i].name, constants[i].value) < 0) {
			Py_DECREF(m);
			return NULL;
		}
	if (wc_add_caller(m) < 0 || wc_add_link(m) < 0) {
		Py_DECREF(m);
		return NULL;
	}
	return m;
}
