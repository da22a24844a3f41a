/*
 * Theory of operation
 *
 * Output comes two ways: Python-level through the ring, everything else through the pipes.  They are merged in
 * the order written (wire/ring_abi.h):
 *
 *   - bytes read from a pipe wait in pipe[i].held until the ring is drained up to now, because records in the ring
 *     before the next SYNC record were written before them;
 *   - a SYNC record says how many pipe bytes precede the following records; those are taken first.
 *
 * The host is woken by a DOORBELL, or by bytes in a pipe, and delivers the output at once.  Then it polls every few
 * milliseconds on its own ("hot"), which coalesces small writes and saves the kernel a system call per write, until a
 * poll finds nothing; then it arms the doorbell again and polls once more, because the kernel does not wait for its own
 * write to be visible before it checks whether it has to ring.  Bytes that arrive in the pipes in between wait for the next
 * poll, unless there are many.  A line without its end may wait too, because print() writes the end separately, but the
 * doorbell is armed at once, so that the end does not wait.
 *
 * Every frame has the position in the ring at which it was sent.  Output up to there is taken before the frame is
 * handled, so a result never overtakes its output.
 *
 * A large frame is read on the pool (reader.h).  In the meantime the link is held: nothing else of the kernel is taken.
 *
 * Paused (a slow reader): all handles are stopped; ring, pipes and socket fill up and the kernel waits.
 *
 * A kernel that yields (subprocess/cpu_share.h) and writes much is read at the regular polls only, and waits in between: reading a
 * flood as fast as it comes would leave the loop no time for the others.
 */
#define _GNU_SOURCE
#include "executors/link.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "executors/link_parts.h"
#include "executors/reader.h"
#include "wire/ring_spin.h"

#define HOT_INTERVAL_MS 4
#define HALF_LINE_MS 1          /* that long at most */
#define PIPE_HOLD_BYTES 32768   /* bytes that may wait for the next poll */
#define PIPE_READ_BYTES 65536
#define SOCKET_READ_BYTES 65536
#define READS_PER_ITERATION 8 /* one kernel does not keep the loop to itself */
#define MUCH_BYTES 131072 /* between two polls: half a ring */

struct pipe_end {
	int fd;
	uv_poll_t poll;
	uint64_t taken; /* bytes read so far, as reported to the kernel */
	uint64_t given; /* of these, handed on */
	struct cell__buf held;
	bool ended;
};

struct cell__link {
	struct cell__loop *loop;
	const struct cell__link_events *events;
	void *owner;
	int fd;
	uv_poll_t poll;
	uv_timer_t hot;
	struct pipe_end pipe[2];
	struct cell__ring ring;
	struct cell_ring_spin spin;
	uint64_t heard_ms; /* when the last frame came, by the loop's clock */
	struct cell__link_shared *shared;
	struct cell__buf in;
	size_t in_used; /* bytes of `in` that are done with */
	struct cell__buf out;
	size_t out_sent; /* bytes of `out` that are done with */
	struct cell__reader reader; /* its frame is in `in` */
	int handles; /* not closed yet */
	bool draining;   /* the kernel is dead: large frames are read at once, too */
	bool freed_late; /* all handles are closed, but the reader is at work */
	bool paused, closed, broken, is_hot;
	bool yields;
	bool resting;      /* no reading until the next poll */
	uint64_t received; /* bytes of the socket */
	uint64_t heard;    /* total bytes received at the last poll */
	uint32_t interrupts; /* requests so far */
	bool last_poll; /* the doorbell is armed, the next poll is the last unless something comes */
	bool rung; /* a DOORBELL came and the ring was not polled since */
	bool woken; /* it came while the link was not polling */
	/* Output of one stream on its way to the owner, so that many small records make one call. */
	enum cell_stream gather_stream;
	size_t gather_size;
	char gather[65536];
};

static void update_polls(struct cell__link *link);

static void free_link(struct cell__link *link)
{
	cell__close_fd(&link->fd);
	cell__close_fd(&link->pipe[0].fd);
	cell__close_fd(&link->pipe[1].fd);
	if (link->shared)
		cell__bulk_unref(&link->shared->bulk);
	cell__buf_finish(&link->in);
	cell__buf_finish(&link->out);
	cell__buf_finish(&link->pipe[0].held);
	cell__buf_finish(&link->pipe[1].held);
	free(link);
}

/* Whether nothing may be taken for now. */
static bool is_held(const struct cell__link *link)
{
	return link->paused || (link->reader.at_work && !link->reader.taken);
}

/* ---- handing output on ---- */

static void flush_gather(struct cell__link *link)
{
	size_t size = link->gather_size;
	link->gather_size = 0;
	if (size > 0 && !link->closed)
		link->events->output(link->owner, link->gather_stream, link->gather, size);
}

static void give(struct cell__link *link, enum cell_stream stream, const void *bytes, size_t size)
{
	if (stream != link->gather_stream || link->gather_size + size > sizeof link->gather)
		flush_gather(link);
	link->gather_stream = stream;
	memcpy(link->gather + link->gather_size, bytes, size); /* records and pipe reads are at most its size */
	link->gather_size += size;
}

static void break_link(struct cell__link *link, const char *reason)
{
	if (link->broken || link->closed)
		return;
	link->broken = true;
	update_polls(link);
	link->events->broken(link->owner, reason);
}

/* ---- pipes ---- */

/* Reads the available bytes, at most one portion, into held. False: none. */
static bool read_pipe(struct cell__link *link, int i)
{
	struct pipe_end *pipe = &link->pipe[i];
	if (pipe->ended || cell__buf_reserve(&pipe->held, PIPE_READ_BYTES) < 0)
		return false;
	cell__ring_pipe_begin(&link->ring);
	ssize_t n = read(pipe->fd, pipe->held.data + pipe->held.size, PIPE_READ_BYTES);
	if (n > 0)
		pipe->taken += (uint64_t)n;
	cell__ring_pipe_end(&link->ring, i, pipe->taken);
	if (n > 0) {
		pipe->held.size += (size_t)n;
		return true;
	}
	if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
		pipe->ended = true; /* every writer is gone */
		uv_poll_stop(&pipe->poll);
	}
	return false;
}

/* Delivers the held bytes, at most up to position `upto`. */
static void give_held(struct cell__link *link, int i, uint64_t upto)
{
	struct pipe_end *pipe = &link->pipe[i];
	size_t size = pipe->held.size;
	if (upto < pipe->given + size)
		size = upto > pipe->given ? (size_t)(upto - pipe->given) : 0;
	for (size_t at = 0; at < size; at += PIPE_READ_BYTES) {
		size_t part = size - at < PIPE_READ_BYTES ? size - at : PIPE_READ_BYTES;
		give(link, i == 0 ? CELL_STDOUT : CELL_STDERR, pipe->held.data + at, part);
	}
	pipe->given += size;
	if (size == pipe->held.size && pipe->held.capacity > 2 * PIPE_READ_BYTES)
		cell__buf_finish(&pipe->held);
	else if (size > 0)
		cell__buf_shift(&pipe->held, size);
}

/* A kernel that claims more than was written gets the bytes available now, not bytes that it may still write. */
static void take_pipe_upto(struct cell__link *link, int i, uint64_t upto)
{
	int waiting = 0;
	give_held(link, i, upto);
	if (link->pipe[i].given >= upto || link->pipe[i].ended || ioctl(link->pipe[i].fd, FIONREAD, &waiting) < 0)
		return;
	if (upto - link->pipe[i].taken > (uint64_t)waiting)
		upto = link->pipe[i].taken + (uint64_t)waiting;
	while (link->pipe[i].given < upto && read_pipe(link, i))
		give_held(link, i, upto);
}

/* ---- ring ---- */

/* Takes the ring up to a position.  False: the link is broken. */
static bool take_ring(struct cell__link *link, uint64_t upto)
{
	uint8_t bytes[CELL_RING_MAX_RECORD];
	uint32_t type, size;
	enum cell__ring_status status;
	unsigned count = 0;
	uint64_t head = cell__ring_head(&link->ring);
	if ((int64_t)(upto - head) > 0)
		upto = head; /* or a kernel that keeps writing would keep us here */
	while ((status = cell__ring_next(&link->ring, upto, &type, bytes, &size)) == CELL__RING_RECORD) {
		if (type == CELL_RING_SYNC) {
			uint64_t written[2];
			memcpy(written, bytes, sizeof written);
			take_pipe_upto(link, 0, written[0]);
			take_pipe_upto(link, 1, written[1]);
		} else {
			give(link, type == CELL_RING_STDOUT ? CELL_STDOUT : CELL_STDERR, bytes, size);
		}
		/* Space goes back early, so that a flood does not stop and go. */
		if (++count % 64 == 0)
			cell__ring_release(&link->ring);
	}
	if (cell__ring_release(&link->ring))
		syscall(SYS_futex, &link->ring.ctl->space_futex, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	if (status == CELL__RING_BAD) {
		break_link(link, "the output ring contains invalid data");
		return false;
	}
	return true;
}

/*
 * The positions that were reached: first of the pipes, then of the ring. Everything written to the ring before those bytes of the pipes is
 * in the ring then; bytes that are read later may follow records that are not in it yet.
 */
struct place {
	uint64_t pipe[2], head;
};

static struct place place_now(struct cell__link *link)
{
	struct place place = { .pipe = { link->pipe[0].taken, link->pipe[1].taken } };
	place.head = cell__ring_head(&link->ring);
	return place;
}

/* Takes the ring up to a place, then the bytes that had come through the pipes. */
static void take_upto(struct cell__link *link, const struct place *place)
{
	link->rung = link->woken = false;
	if (take_ring(link, place->head) && !link->closed)
		for (int i = 0; i < 2; i++)
			give_held(link, i, place->pipe[i]);
	flush_gather(link);
}

static void take_all(struct cell__link *link)
{
	struct place place = place_now(link);
	take_upto(link, &place);
}

static void read_socket(struct cell__link *link);

/*
 * The same when frames may be waiting in the socket: frames sent before now have the position of the ring that precedes them, so they go
 * first.
 */
static void take_in_order(struct cell__link *link)
{
	struct place place = place_now(link);
	read_socket(link);
	if (!link->closed && !link->broken && !is_held(link))
		take_upto(link, &place);
}

/* The positions of ring and pipes without the bytes that wait in `gather`: the same value twice means that nothing came in between. */
static uint64_t given_so_far(const struct cell__link *link)
{
	return link->ring.tail + link->pipe[0].given + link->pipe[1].given - link->gather_size;
}

static bool holds_nothing(const struct cell__link *link)
{
	return link->pipe[0].held.size == 0 && link->pipe[1].held.size == 0;
}

static void rest_after_much(struct cell__link *link);

static void handle_hot(uv_timer_t *timer)
{
	struct cell__link *link = timer->data;
	if (is_held(link))
		return;
	uint64_t before = given_so_far(link);
	link->heard = before + link->received;
	if (link->resting) {
		link->resting = false;
		update_polls(link);
	}
	take_in_order(link);
	rest_after_much(link);
	if (link->closed || link->broken || is_held(link))
		return;
	bool quiet = given_so_far(link) == before && holds_nothing(link) && cell__ring_arm(&link->ring);
	if (quiet && link->last_poll) {
		uv_timer_stop(&link->hot);
		link->is_hot = false;
	}
	link->last_poll = quiet;
}

static void rest_after_much(struct cell__link *link)
{
	if (!link->yields || link->resting || link->closed || link->broken || is_held(link) ||
	    given_so_far(link) + link->received - link->heard < MUCH_BYTES)
		return;
	link->resting = true;
	link->is_hot = true;
	link->last_poll = false;
	uv_timer_start(&link->hot, handle_hot, HOT_INTERVAL_MS, HOT_INTERVAL_MS);
	update_polls(link);
}

/* Whether no output arrives at present. */
static bool is_idle(const struct cell__link *link)
{
	return !link->is_hot || link->last_poll;
}

static void become_hot(struct cell__link *link)
{
	link->last_poll = false;
	if (link->is_hot)
		return;
	link->is_hot = true;
	uv_timer_start(&link->hot, handle_hot, HOT_INTERVAL_MS, HOT_INTERVAL_MS);
}

/* A cell ended: no more output is expected. */
static void cool_down(struct cell__link *link)
{
	if (link->is_hot && !is_held(link) && holds_nothing(link))
		link->last_poll = cell__ring_arm(&link->ring);
}

/*
 * The kernel rang, and kept writing while we woke up: delivers all available output up to `head`, which was read before the socket was.
 * False: half a line waits, and more has come.
 */
static bool answer_bell(struct cell__link *link, uint64_t head)
{
	bool woken = link->woken;
	link->rung = link->woken = false;
	if (!take_ring(link, head))
		return true;
	if (link->gather_size == 0 || link->gather[link->gather_size - 1] == '\n') {
		flush_gather(link);
		return true;
	}
	if (!woken)
		return true; /* the next poll is near */
	uv_timer_start(&link->hot, handle_hot, HALF_LINE_MS, HOT_INTERVAL_MS);
	return cell__ring_arm(&link->ring);
}

/* ---- events of the loop ---- */

static void handle_pipe(uv_poll_t *poll, int status, int events)
{
	(void)events;
	struct cell__link *link = poll->data;
	int i = poll == &link->pipe[0].poll ? 0 : 1;
	if (status < 0) {
		link->pipe[i].ended = true;
		uv_poll_stop(poll);
		return;
	}
	if (!read_pipe(link, i))
		return;
	if (is_idle(link) || link->pipe[i].held.size >= PIPE_HOLD_BYTES)
		take_in_order(link);
	if (!link->closed && !link->broken && !is_held(link))
		become_hot(link);
	rest_after_much(link);
}

static void flush_out(struct cell__link *link)
{
	while (cell__link_unread(link) > 0) {
		ssize_t n = send(link->fd, link->out.data + link->out_sent, cell__link_unread(link), MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0) {
			if (errno != EAGAIN && errno != EINTR) {
				cell__buf_finish(&link->out); /* a dead kernel; reading will tell */
				link->out_sent = 0;
			}
			break;
		}
		link->out_sent += (size_t)n;
	}
	if (link->out_sent == link->out.size) {
		cell__buf_finish(&link->out);
		link->out_sent = 0;
	} else if (link->out_sent > link->out.size / 2) { /* seldom enough: much that is unread is not moved for every byte */
		cell__buf_shift(&link->out, link->out_sent);
		link->out_sent = 0;
	}
	update_polls(link);
}

static void hand_on(struct cell__link *link, const struct cell_frame *frame, const struct cell__read *read)
{
	link->events->frame(link->owner, frame, read);
	if (!link->closed && frame->type == CELL_FRAME_RESULT)
		cool_down(link);
}

/* Goes on after having been held. */
static void go_on(struct cell__link *link)
{
	link->resting = false;
	link->is_hot = true;
	link->last_poll = false;
	uv_timer_start(&link->hot, handle_hot, 0, HOT_INTERVAL_MS);
	update_polls(link);
}

static struct cell__link *link_of(struct cell__reader *reader)
{
	return (struct cell__link *)((char *)reader - offsetof(struct cell__link, reader));
}

static void handle_read(struct cell__reader *reader)
{
	struct cell__link *link = link_of(reader);
	if (link->closed)
		return;
	hand_on(link, &reader->frame, &reader->read);
	if (!link->closed && !link->broken && !is_held(link))
		go_on(link);
}

static void handle_reader_over(struct cell__reader *reader)
{
	if (link_of(reader)->freed_late)
		free_link(link_of(reader));
}

static void handle_frame(struct cell__link *link, const struct cell_frame *frame)
{
	struct cell__read read = { .problem = NULL };
	if (frame->type != CELL_FRAME_CALL && frame->type != CELL_FRAME_RESULT && frame->type != CELL_FRAME_DISPLAY) {
		hand_on(link, frame, NULL);
		return;
	}
	if (!link->draining && cell__reader_wants(frame) && !link->reader.at_work &&
	    cell__reader_start(&link->reader, link->loop, frame) == 0) {
		update_polls(link);
		return;
	}
	cell__read_frame(frame, &read);
	hand_on(link, frame, &read);
	cell__read_finish(&read);
}

/* True while there may be more to decode. */
static bool handle_next_frame(struct cell__link *link)
{
	struct cell_frame frame;
	size_t need;
	if (link->in_used == link->in.size)
		return false;
	const uint8_t *bytes = (const uint8_t *)link->in.data + link->in_used;
	enum cell_frame_status status = cell__frame_decode(bytes, link->in.size - link->in_used, &frame, &need);
	if (status == CELL_FRAME_MORE)
		return false;
	if (status != CELL_FRAME_OK) {
		break_link(link, cell__frame_status_word(status));
		return false;
	}
	link->in_used += need;
	link->spin.received++;
	link->heard_ms = uv_now(cell__loop_uv(link->loop));
	cell_ring_spin_has_slept(&link->ring.ctl->kernel_beat, &link->spin);
	if (!take_ring(link, frame.ring_pos))
		return false;
	if (frame.type == CELL_FRAME_DOORBELL) {
		link->rung = true;
		link->woken |= is_idle(link);
		if (!link->closed && !link->broken)
			become_hot(link);
	} else {
		flush_gather(link);
		if (link->closed)
			return false;
		handle_frame(link, &frame);
	}
	return !link->closed && !link->broken && !is_held(link);
}

static void compact_in(struct cell__link *link)
{
	if (link->in_used == link->in.size && link->in.capacity > 4 * SOCKET_READ_BYTES)
		cell__buf_finish(&link->in); /* a large frame's memory is not kept */
	else
		cell__buf_shift(&link->in, link->in_used);
	link->in_used = 0;
}

static void read_socket(struct cell__link *link)
{
	bool last = false;
	if (is_held(link))
		return;
	for (int reads = 0; reads < READS_PER_ITERATION; reads++) {
		while (handle_next_frame(link)) {
		}
		if (link->closed || link->broken || is_held(link) || last)
			return;
		compact_in(link);
		struct cell_frame ignored;
		size_t need = 0;
		if (link->in.size > 0)
			cell__frame_decode((const uint8_t *)link->in.data, link->in.size, &ignored, &need);
		size_t room = need > link->in.size + SOCKET_READ_BYTES ? need - link->in.size : SOCKET_READ_BYTES;
		if (cell__buf_reserve(&link->in, room) < 0) {
			break_link(link, "out of memory for a frame");
			return;
		}
		ssize_t n = recv(link->fd, link->in.data + link->in.size, room, MSG_DONTWAIT);
		if (n > 0) {
			link->in.size += (size_t)n;
			link->received += (uint64_t)n;
			last = (size_t)n < room; /* the socket is empty; if not, the loop comes back */
			continue;
		}
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		break_link(link, link->in.size > 0 ? cell__frame_status_word(CELL_FRAME_MORE) : NULL);
		return;
	}
}

static void handle_socket(uv_poll_t *poll, int status, int events)
{
	struct cell__link *link = poll->data;
	if (status == 0 && (events & UV_WRITABLE))
		flush_out(link);
	/* On an error too: frames sent before it can still be read, and reading shows the rest. */
	for (int tries = 0; tries < 2 && !link->closed && (status < 0 || (events & UV_READABLE)); tries++) {
		uint64_t head = cell__ring_head(&link->ring);
		read_socket(link);
		if (link->closed || link->broken || is_held(link) || !link->rung || answer_bell(link, head))
			break;
		link->rung = true; /* for the end of the line */
	}
	rest_after_much(link);
}

static void update_polls(struct cell__link *link)
{
	if (link->closed)
		return;
	int events = 0;
	bool reads = !is_held(link) && !link->broken && !link->resting;
	if (reads)
		events |= UV_READABLE;
	if (cell__link_unread(link) > 0 && !link->broken)
		events |= UV_WRITABLE;
	if (events)
		uv_poll_start(&link->poll, events, handle_socket);
	else
		uv_poll_stop(&link->poll);
	for (int i = 0; i < 2; i++) {
		struct pipe_end *pipe = &link->pipe[i];
		if (reads && !pipe->ended)
			uv_poll_start(&pipe->poll, UV_READABLE, handle_pipe);
		else
			uv_poll_stop(&pipe->poll);
	}
}

/* ---- public ---- */

static int init_handles(struct cell__link *link, struct cell_error *err)
{
	int rc = uv_poll_init(cell__loop_uv(link->loop), &link->poll, link->fd);
	if (rc < 0)
		return cell_fail(err, CELL_E_IO, -rc, "watch a kernel");
	link->poll.data = link;
	link->handles++;
	for (int i = 0; i < 2; i++) {
		rc = uv_poll_init(cell__loop_uv(link->loop), &link->pipe[i].poll, link->pipe[i].fd);
		if (rc < 0)
			return cell_fail(err, CELL_E_IO, -rc, "watch a kernel's output");
		link->pipe[i].poll.data = link;
		link->handles++;
	}
	uv_timer_init(cell__loop_uv(link->loop), &link->hot);
	link->hot.data = link;
	link->handles++;
	return 0;
}

int cell__link_create(struct cell__loop *loop, const struct cell__link_events *events, void *owner, struct cell__link **ret_link,
		      struct cell__link_fds *ret_fds, struct cell_error *err)
{
	int pair[2] = { -1, -1 }, out[2] = { -1, -1 }, err_pipe[2] = { -1, -1 }, ring_fd = -1;
	struct cell__link *link = cell__alloc(1, sizeof *link);
	if (!link)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	int rc = cell__link_make_fds(pair, out, err_pipe, &ring_fd, err);
	struct cell__link_fds theirs = { { pair[1], out[1], err_pipe[1], ring_fd } };
	link->loop = loop;
	link->spin.cell_ns = CELL_RING_SPIN_HOST_NS;
	link->events = events;
	link->owner = owner;
	link->fd = pair[0];
	link->reader.ready = handle_read;
	link->reader.over = handle_reader_over;
	link->pipe[0].fd = out[0];
	link->pipe[1].fd = err_pipe[0];
	if (rc == 0)
		rc = cell__link_map(ring_fd, &link->shared, err);
	if (rc == 0)
		rc = init_handles(link, err);
	if (rc < 0) {
		cell__link_fds_close(&theirs);
		cell__link_close(link);
		return -1;
	}
	cell__ring_init(&link->ring, link->shared->map);
	update_polls(link);
	*ret_link = link;
	*ret_fds = theirs;
	return 0;
}

static void spin(void *arg)
{
	struct cell__link *link = arg;
	/* Its own spin is over after a tenth of a millisecond. */
	link->spin.was_asleep = uv_now(cell__loop_uv(link->loop)) - link->heard_ms > 1;
	/* A kernel that has not sent a frame is being forked, which takes longer than any spin and needs this CPU. */
	if (link->spin.received > 0 && !is_held(link) && !link->broken)
		(void)cell_ring_spin_wait(&link->ring.ctl->kernel_beat, &link->spin);
}

/* A frame is on its way, and the kernel will likely answer, unless it was told to end. */
static void expect(struct cell__link *link, uint8_t type)
{
	cell_ring_spin_beat(&link->ring.ctl->host_beat);
	if (type == CELL_FRAME_SHUTDOWN)
		cell__loop_drop_spin(link->loop, link);
	else
		cell__loop_set_spin(link->loop, spin, link);
}

int cell__link_send(struct cell__link *link, uint8_t type, uint32_t id, const void *json, size_t json_size, const void *raw,
		    size_t raw_size, struct cell_error *err)
{
	struct cell_frame frame = { .type = type, .id = id, .json_size = (uint32_t)json_size, .raw_size = (uint32_t)raw_size };
	uint8_t header[CELL_FRAME_HEADER_BYTES];
	if (json_size > CELL_FRAME_MAX_JSON || raw_size > CELL_FRAME_MAX_RAW)
		return cell_fail(err, CELL_E_LIMIT, 0, "a frame may carry at most %u + %u bytes", CELL_FRAME_MAX_JSON, CELL_FRAME_MAX_RAW);
	cell__frame_encode_header(&frame, header);
	size_t sent = 0;
	if (cell__link_unread(link) == 0) {
		struct iovec iov[3] = {
			{ header, sizeof header },
			{ (void *)json, json_size },
			{ (void *)raw, raw_size },
		};
		struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 3 };
		ssize_t n = sendmsg(link->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		sent = n > 0 ? (size_t)n : 0;
		if (sent == sizeof header + json_size + raw_size) {
			expect(link, type);
			return 0;
		}
		/* Reading detects a dead kernel; frames that cannot be sent are queued and dropped there. */
	}
	const struct {
		const void *bytes;
		size_t size;
	} parts[3] = { { header, sizeof header }, { json, json_size }, { raw, raw_size } };
	size_t before = link->out.size;
	for (int i = 0; i < 3; i++) {
		size_t skip = sent < parts[i].size ? sent : parts[i].size;
		sent -= skip;
		if (skip < parts[i].size && cell__buf_add(&link->out, (const char *)parts[i].bytes + skip, parts[i].size - skip) < 0) {
			link->out.size = before;
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a frame of %zu bytes", raw_size);
		}
	}
	expect(link, type);
	update_polls(link);
	return 0;
}

int cell__link_send_fds(struct cell__link *link, uint8_t type, uint32_t id, const void *json, size_t json_size, const void *raw,
			size_t raw_size, const int *fds, size_t n_fds, struct cell_error *err)
{
	struct cell_frame frame = { .type = type, .id = id, .json_size = (uint32_t)json_size, .raw_size = (uint32_t)raw_size };
	uint8_t header[CELL_FRAME_HEADER_BYTES];
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(CELL_LINK_MAX_FDS * sizeof *fds)];
	} control = { 0 };
	struct iovec iov[3] = { { header, sizeof header }, { (void *)json, json_size }, { (void *)raw, raw_size } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 3, .msg_control = &control, .msg_controllen = CMSG_SPACE(n_fds * sizeof *fds) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n_fds * sizeof *fds);
	memcpy(CMSG_DATA(c), fds, n_fds * sizeof *fds);
	cell__frame_encode_header(&frame, header);
	if (cell__link_unread(link) > 0)
		return cell_fail(err, CELL_E_BUSY, 0, "the kernel has not read earlier messages yet");
	ssize_t n = sendmsg(link->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n <= 0)
		return cell_fail(err, CELL_E_BUSY, errno, "the kernel takes no message");
	/* The descriptors went with the first bytes; the rest follows. */
	for (size_t i = 0, sent = (size_t)n; i < 3; i++) {
		size_t done = sent < iov[i].iov_len ? sent : iov[i].iov_len;
		sent -= done;
		if (done < iov[i].iov_len && cell__buf_add(&link->out, (const char *)iov[i].iov_base + done, iov[i].iov_len - done) < 0) {
			break_link(link, "out of memory for a frame");
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a frame");
		}
	}
	if (cell__link_unread(link) > 0)
		update_polls(link);
	expect(link, type);
	return 0;
}

size_t cell__link_unread(const struct cell__link *link)
{
	return link->out.size - link->out_sent;
}

struct cell__bulk *cell__link_bulk(struct cell__link *link)
{
	return &link->shared->bulk;
}

void cell__link_set_interrupt(struct cell__link *link, uint32_t run_id)
{
	__atomic_store_n(&link->ring.ctl->interrupt_id, run_id, __ATOMIC_SEQ_CST);
	__atomic_store_n(&link->ring.ctl->interrupt_no, ++link->interrupts, __ATOMIC_SEQ_CST);
}

bool cell__link_interrupt_taken(const struct cell__link *link)
{
	return __atomic_load_n(&link->ring.ctl->interrupt_taken, __ATOMIC_SEQ_CST) == link->interrupts;
}

void cell__link_pause(struct cell__link *link, bool paused)
{
	if (link->paused == paused)
		return;
	link->paused = paused;
	if (paused && link->is_hot)
		uv_timer_stop(&link->hot);
	if (!paused && !link->closed)
		go_on(link);
	else
		update_polls(link);
}

void cell__link_yield(struct cell__link *link, bool yields)
{
	link->yields = yields; /* a resting link continues at its next poll */
}

void cell__link_poll(struct cell__link *link)
{
	if (!is_held(link) && !link->broken)
		take_all(link);
}

void cell__link_drain(struct cell__link *link)
{
	/* Frames first: frames sent before death still count, also a result. */
	bool was_broken = link->broken;
	link->paused = false;
	link->draining = true;
	if (cell__reader_await(&link->reader) && !was_broken)
		hand_on(link, &link->reader.frame, &link->reader.read);
	if (!was_broken && !link->closed)
		read_socket(link);
	if (link->closed)
		return;
	for (int i = 0; i < 2 && !link->closed; i++)
		while (read_pipe(link, i) && !link->closed)
			take_all(link);
	do /* output that arrives while the ring is taken waits for the next time */
		if (!link->closed)
			take_all(link);
	while (!link->closed && !link->broken && !holds_nothing(link));
}

static void handle_closed(uv_handle_t *handle)
{
	struct cell__link *link = handle->data;
	if (--link->handles > 0)
		return;
	if (link->reader.at_work)
		link->freed_late = true;
	else
		free_link(link);
}

void cell__link_close(struct cell__link *link)
{
	if (!link || link->closed)
		return;
	link->closed = true;
	cell__loop_drop_spin(link->loop, link);
	if (link->handles == 0) {
		link->handles = 1;
		link->poll.data = link;
		handle_closed((uv_handle_t *)&link->poll);
		return;
	}
	uv_handle_t *handles[4] = { (uv_handle_t *)&link->poll, (uv_handle_t *)&link->pipe[0].poll, (uv_handle_t *)&link->pipe[1].poll,
				    (uv_handle_t *)&link->hot };
	int count = link->handles;
	for (int i = 0; i < count; i++)
		uv_close(handles[i], handle_closed);
}
