/*
 * Theory of operation
 *
 * libzmq does the network work on a thread of its own and queues received messages in memory. ZMQ_FD reports that a socket's state has
 * changed, edge-triggered: it becomes readable once, and only reading ZMQ_EVENTS arms it again. Sending also reads it internally. So after
 * every wake, and after every send, ZMQ_EVENTS is read until it reports nothing (`drain`). Nothing here waits: every call of libzmq's has
 * ZMQ_DONTWAIT, and sockets do not linger.
 */
#include "executors/jupyter/channels.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#define SOCKETS 4 /* the heartbeat is not used: the spawner reports the end of the process */
#define MESSAGES_PER_ITERATION 64
#define DRAIN_MESSAGES 16384 /* a kernel that keeps writing does not keep us there */
#define IOPUB_MESSAGES 100000 /* that wait for us; past them the kernel drops its publications */
#define RECONNECT_MS 5 /* until the kernel has bound its sockets */

struct end {
	void *socket;
	uv_poll_t poll;
};

struct cell__jupyter_channels {
	struct cell__loop *loop;
	const struct cell__jupyter_events *events;
	void *owner;
	char key[CELL_JUPYTER_KEY_CHARS + 1];
	char session[33];
	uint64_t sent;
	struct end end[SOCKETS];
	struct cell__jupyter_seen seen[SOCKETS];
	struct cell__task again; /* drain once more */
	bool posted, paused, broken, closed, draining;
	int handles;
};

static void free_when_done(struct cell__jupyter_channels *channels)
{
	if (channels->closed && channels->handles == 0 && !channels->posted && !channels->draining)
		free(channels);
}

static void handle_closed(uv_handle_t *handle)
{
	struct cell__jupyter_channels *channels = handle->data;
	channels->handles--;
	free_when_done(channels);
}

static void handle_poll(uv_poll_t *poll, int status, int events);

/* While it is paused or broken the descriptors, which stay readable, must not wake the loop. */
static void update_polls(struct cell__jupyter_channels *channels)
{
	for (int i = 0; i < SOCKETS && !channels->closed; i++) {
		if (channels->paused || channels->broken)
			uv_poll_stop(&channels->end[i].poll);
		else
			uv_poll_start(&channels->end[i].poll, UV_READABLE, handle_poll);
	}
}

static void break_channels(struct cell__jupyter_channels *channels, const char *reason)
{
	if (channels->broken || channels->closed)
		return;
	channels->broken = true;
	update_polls(channels);
	channels->events->broken(channels->owner, reason);
}

/* ---- receiving ---- */

static void handle_parts(struct cell__jupyter_channels *channels, int channel, zmq_msg_t *parts, size_t n)
{
	struct cell__jupyter_part views[CELL_JUPYTER_MAX_PARTS];
	struct cell__jupyter_message message;
	for (size_t i = 0; i < n; i++)
		views[i] = (struct cell__jupyter_part){ zmq_msg_data(&parts[i]), zmq_msg_size(&parts[i]) };
	enum cell__jupyter_status status = cell__jupyter_decode(views, n, channels->key, &channels->seen[channel], &message);
	if (status == CELL_JUPYTER_REPLAYED)
		return; /* counts as received once */
	if (status != CELL_JUPYTER_OK) {
		break_channels(channels, cell__jupyter_status_word(status));
		return;
	}
	channels->events->message(channels->owner, channel, &message);
	cell__jupyter_message_finish(&message);
}

/* One message of one socket. False: none is available. */
static bool receive(struct cell__jupyter_channels *channels, int channel)
{
	zmq_msg_t parts[CELL_JUPYTER_MAX_PARTS];
	size_t n = 0;
	int more = 1;
	bool too_many = false, got = false;
	while (more) {
		zmq_msg_t *part = &parts[n];
		zmq_msg_init(part);
		if (zmq_msg_recv(part, channels->end[channel].socket, ZMQ_DONTWAIT) < 0) {
			zmq_msg_close(part);
			break; /* parts arrive together, so this is the first */
		}
		got = true;
		more = zmq_msg_more(part);
		if (n + 1 < CELL_JUPYTER_MAX_PARTS) {
			n++;
		} else {
			zmq_msg_close(part);
			too_many = true;
		}
	}
	if (too_many)
		break_channels(channels, "a message of too many parts");
	else if (got)
		handle_parts(channels, channel, parts, n);
	for (size_t i = 0; i < n; i++)
		zmq_msg_close(&parts[i]);
	return got;
}

static bool is_readable(struct cell__jupyter_channels *channels, int channel)
{
	int events = 0;
	size_t size = sizeof events;
	return zmq_getsockopt(channels->end[channel].socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN);
}

static void post_again(struct cell__jupyter_channels *channels)
{
	if (channels->posted)
		return;
	channels->posted = true;
	cell__loop_post(channels->loop, &channels->again);
}

/* At most `most` messages; the rest waits for the next iteration. */
static void take(struct cell__jupyter_channels *channels, int most)
{
	if (channels->draining)
		return;
	channels->draining = true;
	bool got = true;
	while (got && most > 0) {
		got = false;
		for (int i = 0; i < SOCKETS && most > 0; i++)
			while (most > 0 && !channels->paused && !channels->broken && !channels->closed && is_readable(channels, i) &&
			       receive(channels, i)) {
				got = true;
				most--;
			}
	}
	channels->draining = false;
	if (got && !channels->closed)
		post_again(channels);
	free_when_done(channels);
}

static void handle_again(struct cell__task *task)
{
	struct cell__jupyter_channels *channels = (struct cell__jupyter_channels *)((char *)task -
										    offsetof(struct cell__jupyter_channels, again));
	channels->posted = false;
	take(channels, MESSAGES_PER_ITERATION);
}

static void handle_poll(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	take(poll->data, MESSAGES_PER_ITERATION);
}

void cell__jupyter_channels_drain(struct cell__jupyter_channels *channels)
{
	take(channels, DRAIN_MESSAGES);
}

void cell__jupyter_channels_pause(struct cell__jupyter_channels *channels, bool paused)
{
	channels->paused = paused;
	update_polls(channels);
	if (!paused)
		post_again(channels);
}

/* ---- sending ---- */

static int send_parts(void *socket, const struct cell__jupyter_part *parts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (zmq_send(socket, parts[i].data, parts[i].size, ZMQ_DONTWAIT | (i + 1 < n ? ZMQ_SNDMORE : 0)) < 0)
			return -1;
	return 0;
}

const char *cell__jupyter_channels_session(const struct cell__jupyter_channels *channels)
{
	return channels->session;
}

int cell__jupyter_channels_send(struct cell__jupyter_channels *channels, int channel, const char *type, const char *content,
				size_t content_size, const char *metadata, char *ret_id, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf header = CELL_BUF_INIT;
	char id[CELL_JUPYTER_ID_BYTES], date[40], signature[CELL_JUPYTER_SIGNATURE_BYTES + 1];
	struct timespec now;
	struct tm tm;
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	size_t at = strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(date + at, sizeof date - at, ".%06ldZ", now.tv_nsec / 1000);
	snprintf(id, sizeof id, "%s_%llu", channels->session, (unsigned long long)++channels->sent);
	const struct cell__jupyter_out out = {
		.type = type,
		.id = id,
		.session = channels->session,
		.date = date,
		.metadata = metadata,
		.content = content,
		.content_size = content_size,
	};
	if (cell__jupyter_encode(&out, channels->key, &header, signature) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	const struct cell__jupyter_part parts[] = {
		{ CELL_JUPYTER_DELIMITER, sizeof CELL_JUPYTER_DELIMITER - 1 },
		{ signature, CELL_JUPYTER_SIGNATURE_BYTES },
		{ header.data, header.size },
		{ "{}", 2 },
		{ metadata, strlen(metadata) },
		{ content, content_size },
	};
	if (send_parts(channels->end[channel].socket, parts, sizeof parts / sizeof *parts) < 0)
		return cell_fail(err, CELL_E_KERNEL, errno, "send %s to the kernel", type);
	if (ret_id)
		memcpy(ret_id, id, sizeof id);
	post_again(channels);
	return 0;
}

/* ---- life ---- */

static int set_options(void *socket, int type)
{
	int zero = 0, reconnect = RECONNECT_MS, queue = IOPUB_MESSAGES;
	int64_t max = CELL_JUPYTER_MAX_PART_BYTES;
	if (zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof zero) < 0 || zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max, sizeof max) < 0 ||
	    zmq_setsockopt(socket, ZMQ_RECONNECT_IVL, &reconnect, sizeof reconnect) < 0)
		return -1;
	/* A kernel that a slow reader must hold up is stopped as a whole, so this bounds the messages of one iteration of the loop. */
	if (type == ZMQ_SUB)
		return zmq_setsockopt(socket, ZMQ_RCVHWM, &queue, sizeof queue) < 0 ? -1 : zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
	return 0;
}

static int open_end(struct cell__jupyter_channels *channels, void *zmq, int channel, const char *endpoint)
{
	struct end *end = &channels->end[channel];
	int type = channel == CELL_JUPYTER_IOPUB ? ZMQ_SUB : ZMQ_DEALER, fd = -1;
	size_t size = sizeof fd;
	end->socket = zmq_socket(zmq, type);
	/* One identity: kernels send input requests to the stdin socket of the client that made the request on the shell socket. */
	if (!end->socket || set_options(end->socket, type) < 0 ||
	    (type == ZMQ_DEALER && zmq_setsockopt(end->socket, ZMQ_IDENTITY, channels->session, strlen(channels->session)) < 0) ||
	    zmq_connect(end->socket, endpoint) < 0 || zmq_getsockopt(end->socket, ZMQ_FD, &fd, &size) < 0)
		return -1;
	int rc = uv_poll_init(cell__loop_uv(channels->loop), &end->poll, fd);
	if (rc < 0) {
		errno = -rc;
		return -1;
	}
	end->poll.data = channels;
	channels->handles++;
	uv_poll_start(&end->poll, UV_READABLE, handle_poll);
	return 0;
}

int cell__jupyter_channels_create(struct cell__loop *loop, void *zmq, const struct cell__jupyter_spec *spec,
				  const struct cell__jupyter_events *events, void *owner, struct cell__jupyter_channels **ret_channels,
				  struct cell_error *err)
{
	struct cell__jupyter_channels *channels = cell__alloc(1, sizeof *channels);
	if (!channels)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	channels->loop = loop;
	channels->events = events;
	channels->owner = owner;
	channels->again.fn = handle_again;
	memcpy(channels->key, spec->key, sizeof channels->key);
	cell__random_hex(channels->session, sizeof channels->session - 1);
	for (int i = 0; i < SOCKETS; i++)
		if (open_end(channels, zmq, i, spec->endpoint[i]) < 0) {
			cell_fail(err, CELL_E_IO, 0, "connect to %s: %s", spec->endpoint[i], zmq_strerror(errno));
			cell__jupyter_channels_close(channels);
			return -1;
		}
	post_again(channels);
	*ret_channels = channels;
	return 0;
}

void cell__jupyter_channels_close(struct cell__jupyter_channels *channels)
{
	if (!channels || channels->closed)
		return;
	channels->closed = true;
	for (int i = 0; i < SOCKETS; i++) {
		struct end *end = &channels->end[i];
		if (end->poll.data)
			uv_close((uv_handle_t *)&end->poll, handle_closed);
		if (end->socket)
			zmq_close(end->socket);
	}
	free_when_done(channels);
}
