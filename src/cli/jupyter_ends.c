/*
 * The sockets of a Jupyter kernel.
 *
 * A socket of ZeroMQ belongs to one thread: shell and stdin to the main thread, control and heartbeat to the control thread. iopub is used
 * by both and by the engine's thread, under a lock.
 *
 * A reader of iopub that does not keep up holds up the sender, and thereby only its own kernel (ZMQ_XPUB_NODROP), so that no output is
 * lost. One that has stopped reading must not hold up everything for ever: after SLOW_MS its messages are dropped until the next cell.
 */
#define _GNU_SOURCE 1
#include "jupyter.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#include "base/libraries.h"
#include "base/random.h"

#define SLOW_MS 10000
#define CONNECT_MS 5000
#define LINGER_MS 1000 /* for the last messages of a kernel that ends */
#define BIND_MS 3000 /* a kernel that was killed is followed by another one at the same address, and its spare may need a moment to end */
#define BIND_NAP_MS 2
#define ID_BYTES 256u  /* of a client's routing id */
#define OWN_ID_BYTES 64u
#define BEATS 64 /* at a time */
#define REPORTS 100u /* of dropped messages, one by one */

struct cell_cli_ends {
	void *zmq, *socket[CELL_JUPYTER_PORTS];
	char key[CELL_JUPYTER_MAX_KEY_BYTES + 1], session[33];
	struct cell__jupyter_seen seen[CELL_JUPYTER_PORTS];
	atomic_uint_fast64_t sent, dropped;
	pthread_mutex_t lock; /* of iopub */
	bool drops; /* with the lock */
};

/* ---- life ---------------------------------------------------------------------- */

static int set_drops(struct cell_cli_ends *ends, bool drops)
{
	int keep = !drops;

	ends->drops = drops;
	return zmq_setsockopt(ends->socket[CELL_JUPYTER_PORT_IOPUB], ZMQ_XPUB_NODROP, &keep, sizeof(keep));
}

static int bind_socket(void *socket, const char *endpoint)
{
	for (int waited_ms = 0; zmq_bind(socket, endpoint) < 0; waited_ms += BIND_NAP_MS) {
		if (errno != EADDRINUSE || waited_ms >= BIND_MS)
			return -1;
		nanosleep(&(struct timespec){ .tv_nsec = BIND_NAP_MS * 1000000 }, NULL);
	}
	return 0;
}

static int open_socket(struct cell_cli_ends *ends, enum cell__jupyter_port port, const char *endpoint)
{
	static const int types[CELL_JUPYTER_PORTS] = { ZMQ_ROUTER, ZMQ_PUB, ZMQ_ROUTER, ZMQ_ROUTER, ZMQ_REP };
	int linger = LINGER_MS, slow = SLOW_MS, on = 1;
	int64_t max = CELL_JUPYTER_MAX_PART_BYTES;
	void *socket = zmq_socket(ends->zmq, types[port]);

	ends->socket[port] = socket;
	if (!socket || zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger)) < 0 ||
	    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max, sizeof(max)) < 0 || zmq_setsockopt(socket, ZMQ_SNDTIMEO, &slow, sizeof(slow)) < 0)
		return -1;
	/* A client that connects again comes under its old name. */
	if (types[port] == ZMQ_ROUTER && zmq_setsockopt(socket, ZMQ_ROUTER_HANDOVER, &on, sizeof(on)) < 0)
		return -1;
	if (port == CELL_JUPYTER_PORT_STDIN && zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &on, sizeof(on)) < 0)
		return -1;
	if (types[port] == ZMQ_PUB && set_drops(ends, false) < 0)
		return -1;
	return bind_socket(socket, endpoint);
}

int cell__cli_ends_create(const struct cell__jupyter_connection *connection, struct cell_cli_ends **ret_ends, struct cell_error *err)
{
	struct cell_cli_ends *ends;

	if (cell__library_load(CELL__LIBRARY_ZMQ, err) < 0)
		return -1;
	ends = calloc(1, sizeof(*ends));
	if (!ends)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	pthread_mutex_init(&ends->lock, NULL);
	memcpy(ends->key, connection->key, sizeof(ends->key));
	cell__random_hex(ends->session, sizeof(ends->session) - 1);
	ends->zmq = zmq_ctx_new();
	for (int i = 0; i < CELL_JUPYTER_PORTS; i++) {
		if (!ends->zmq || open_socket(ends, i, connection->endpoint[i]) < 0) {
			cell_fail(err, CELL_E_IO, 0, "cannot listen at %s: %s", connection->endpoint[i], zmq_strerror(errno));
			cell__cli_ends_destroy(ends);
			return -1;
		}
	}
	*ret_ends = ends;
	return 0;
}

void cell__cli_ends_destroy(struct cell_cli_ends *ends)
{
	if (!ends)
		return;
	for (int i = 0; i < CELL_JUPYTER_PORTS; i++) {
		if (ends->socket[i])
			zmq_close(ends->socket[i]);
	}
	while (ends->zmq && zmq_ctx_term(ends->zmq) < 0 && errno == EINTR) {
		/* what was sent is still on its way */
	}
	pthread_mutex_destroy(&ends->lock);
	free(ends);
}

/* ---- receiving ------------------------------------------------------------------ */

unsigned cell__cli_ends_wait(struct cell_cli_ends *ends, enum cell__jupyter_port one, enum cell__jupyter_port two, int fd)
{
	zmq_pollitem_t items[3] = { { ends->socket[one], 0, ZMQ_POLLIN, 0 },
				    { ends->socket[two], 0, ZMQ_POLLIN, 0 },
				    { NULL, fd, ZMQ_POLLIN, 0 } };
	unsigned ready = 0;

	if (zmq_poll(items, fd < 0 ? 2 : 3, -1) < 0)
		return 0;
	for (unsigned i = 0; i < 3; i++) {
		if (items[i].revents & ZMQ_POLLIN)
			ready |= 1u << i;
	}
	return ready;
}

/* Whoever reaches a port can send what is dropped: past some lines only every doubling of their number is worth one. */
static void report_dropped(struct cell_cli_ends *ends, const char *what)
{
	uint64_t n = atomic_fetch_add(&ends->dropped, 1) + 1;

	if (n <= REPORTS)
		fprintf(stderr, "workcell: dropped %s\n", what);
	else if (!(n & (n - 1)))
		fprintf(stderr, "workcell: dropped %s; %llu messages by now\n", what, (unsigned long long)n);
}

static int keep_parts(struct cell_cli_request *request, const struct cell__jupyter_part *parts, size_t n)
{
	const struct cell__jupyter_message *message = &request->message;

	request->header = json_dumps(message->header, JSON_COMPACT);
	request->n_buffers = n > message->buffers ? n - message->buffers : 0;
	request->buffers = request->n_buffers ? calloc(request->n_buffers, sizeof(*request->buffers)) : NULL;
	if (!request->header || (request->n_buffers && !request->buffers))
		return -1;
	for (; request->n_ids < message->n_ids; request->n_ids++) {
		const struct cell__jupyter_part *id = &parts[request->n_ids];

		if (cell__buf_add(&request->ids[request->n_ids], id->data, id->size) < 0)
			return -1;
	}
	for (size_t i = 0; i < request->n_buffers; i++) {
		if (cell__buf_add(&request->buffers[i], parts[message->buffers + i].data, parts[message->buffers + i].size) < 0)
			return -1;
	}
	return 0;
}

static bool take_message(struct cell_cli_ends *ends, enum cell__jupyter_port port, const struct cell__jupyter_part *parts, size_t n,
			 struct cell_cli_request *ret_request)
{
	struct cell_cli_request request = { 0 };
	enum cell__jupyter_status status = cell__jupyter_decode(parts, n, ends->key, &ends->seen[port], &request.message);
	bool ids_fit = true;

	if (status != CELL_JUPYTER_OK) {
		report_dropped(ends, cell__jupyter_status_word(status));
		return false;
	}
	for (size_t i = 0; i < request.message.n_ids; i++)
		ids_fit = ids_fit && parts[i].size <= ID_BYTES;
	if (!ids_fit || request.message.n_ids > CELL_CLI_MAX_IDS) {
		report_dropped(ends, "a message with too many or too long routing ids");
	} else if (keep_parts(&request, parts, n) < 0) {
		report_dropped(ends, "a message for lack of memory");
	} else {
		*ret_request = request;
		return true;
	}
	cell__cli_request_finish(&request);
	return false;
}

bool cell__cli_ends_receive(struct cell_cli_ends *ends, enum cell__jupyter_port port, struct cell_cli_request *ret_request)
{
	struct cell__jupyter_part views[CELL_JUPYTER_MAX_PARTS];
	zmq_msg_t parts[CELL_JUPYTER_MAX_PARTS];
	size_t n = 0, left_out = 0;
	bool taken = false;
	int more = 1;

	while (more) {
		zmq_msg_t part;

		zmq_msg_init(&part);
		if (zmq_msg_recv(&part, ends->socket[port], ZMQ_DONTWAIT) < 0) {
			zmq_msg_close(&part);
			break; /* the parts of a message arrive together: this is the first */
		}
		more = zmq_msg_more(&part);
		if (n < CELL_JUPYTER_MAX_PARTS) {
			parts[n] = part;
			views[n] = (struct cell__jupyter_part){ zmq_msg_data(&parts[n]), zmq_msg_size(&parts[n]) };
			n++;
		} else {
			zmq_msg_close(&part);
			left_out++;
		}
	}
	if (left_out)
		report_dropped(ends, "a message of too many parts");
	else if (n)
		taken = take_message(ends, port, views, n, ret_request);
	for (size_t i = 0; i < n; i++)
		zmq_msg_close(&parts[i]);
	return taken;
}

void cell__cli_request_finish(struct cell_cli_request *request)
{
	cell__jupyter_message_finish(&request->message);
	free(request->header);
	for (size_t i = 0; i < CELL_CLI_MAX_IDS; i++)
		cell__buf_finish(&request->ids[i]);
	for (size_t i = 0; i < request->n_buffers; i++)
		cell__buf_finish(&request->buffers[i]);
	free(request->buffers);
	*request = (struct cell_cli_request){ 0 };
}

void cell__cli_ends_beat(struct cell_cli_ends *ends)
{
	void *socket = ends->socket[CELL_JUPYTER_PORT_HB];
	bool more = false;

	for (int n = 0; n < BEATS || more; n++) {
		zmq_msg_t beat;

		zmq_msg_init(&beat);
		if (zmq_msg_recv(&beat, socket, ZMQ_DONTWAIT) < 0)
			break;
		more = zmq_msg_more(&beat);
		if (zmq_msg_send(&beat, socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) < 0) {
			zmq_msg_close(&beat);
			break;
		}
	}
}

/* ---- sending --------------------------------------------------------------------- */

static void write_date(char *date, size_t size)
{
	struct timespec now;
	struct tm tm;
	size_t at;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	at = strftime(date, size, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(date + at, size - at, ".%06ldZ", now.tv_nsec / 1000);
}

static int send_parts(void *socket, const struct cell__jupyter_part *parts, size_t n)
{
	int waited_ms = 0;

	for (size_t i = 0; i < n; i++) {
		while (zmq_send(socket, parts[i].data, parts[i].size, i + 1 < n ? ZMQ_SNDMORE : 0) < 0) {
			/* The stdin socket of a client may connect later than its others. */
			if (errno == EHOSTUNREACH && waited_ms < CONNECT_MS) {
				waited_ms += 10;
				nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000000 }, NULL);
			} else if (errno != EINTR) {
				return -1;
			}
		}
	}
	return 0;
}

static void publish(struct cell_cli_ends *ends, const struct cell__jupyter_part *parts, size_t n)
{
	void *socket = ends->socket[CELL_JUPYTER_PORT_IOPUB];

	pthread_mutex_lock(&ends->lock);
	if (send_parts(socket, parts, n) < 0 && errno == EAGAIN && !ends->drops) {
		fprintf(stderr, "workcell: a client does not read its messages; some of this cell's output will not reach it\n");
		set_drops(ends, true);
		(void)send_parts(socket, parts, n);
	}
	pthread_mutex_unlock(&ends->lock);
}

void cell__cli_ends_begin(struct cell_cli_ends *ends)
{
	pthread_mutex_lock(&ends->lock);
	if (ends->drops)
		set_drops(ends, false);
	pthread_mutex_unlock(&ends->lock);
}

static void write_id(const struct cell_cli_ends *ends, uint64_t number, char id[OWN_ID_BYTES])
{
	snprintf(id, OWN_ID_BYTES, "%s_%llu", ends->session, (unsigned long long)number);
}

bool cell__cli_ends_is_number(const struct cell_cli_ends *ends, uint64_t number, const char *id)
{
	char own[OWN_ID_BYTES];

	write_id(ends, number, own);
	return !strcmp(own, id);
}

uint64_t cell__cli_ends_send(struct cell_cli_ends *ends, enum cell__jupyter_port port, const struct cell_cli_sent *sent)
{
	struct cell__jupyter_part parts[CELL_CLI_MAX_IDS + 6 + CELL_JUPYTER_MAX_PARTS];
	char id[OWN_ID_BYTES], date[40], signature[CELL_JUPYTER_SIGNATURE_BYTES + 1];
	const char *parent = sent->parent ? sent->parent : "{}", *metadata = sent->metadata ? sent->metadata : "{}";
	CELL_AUTO_BUF struct cell__buf header = CELL_BUF_INIT;
	uint64_t number = atomic_fetch_add(&ends->sent, 1);
	size_t n = 0;

	write_date(date, sizeof(date));
	write_id(ends, number, id);
	if (cell__jupyter_encode(&(struct cell__jupyter_out){ .type = sent->type,
							      .id = id,
							      .session = ends->session,
							      .date = date,
							      .parent = parent,
							      .metadata = metadata,
							      .content = sent->content,
							      .content_size = sent->content_size },
				 ends->key, &header, signature) < 0) {
		report_dropped(ends, "a message to clients for lack of memory");
		return number;
	}
	for (size_t i = 0; sent->to && i < sent->to->n_ids; i++)
		parts[n++] = (struct cell__jupyter_part){ sent->to->ids[i].data, sent->to->ids[i].size };
	if (port == CELL_JUPYTER_PORT_IOPUB)
		parts[n++] = (struct cell__jupyter_part){ sent->type, strlen(sent->type) };
	parts[n++] = (struct cell__jupyter_part){ CELL_JUPYTER_DELIMITER, sizeof(CELL_JUPYTER_DELIMITER) - 1 };
	parts[n++] = (struct cell__jupyter_part){ signature, CELL_JUPYTER_SIGNATURE_BYTES };
	parts[n++] = (struct cell__jupyter_part){ header.data, header.size };
	parts[n++] = (struct cell__jupyter_part){ parent, strlen(parent) };
	parts[n++] = (struct cell__jupyter_part){ metadata, strlen(metadata) };
	parts[n++] = (struct cell__jupyter_part){ sent->content, sent->content_size };
	for (size_t i = 0; i < sent->n_buffers && i < CELL_JUPYTER_MAX_PARTS; i++)
		parts[n++] = (struct cell__jupyter_part){ sent->buffers[i].data, sent->buffers[i].size };
	if (port == CELL_JUPYTER_PORT_IOPUB)
		publish(ends, parts, n);
	else
		(void)send_parts(ends->socket[port], parts, n);
	return number;
}

uint64_t cell__cli_ends_send_json(struct cell_cli_ends *ends, enum cell__jupyter_port port, const struct cell_cli_request *to,
				  const char *parent, const char *type, json_t *content)
{
	char *text = content ? json_dumps(content, JSON_COMPACT) : NULL;
	uint64_t number = UINT64_MAX;

	json_decref(content);
	if (text)
		number = cell__cli_ends_send(
			ends, port,
			&(struct cell_cli_sent){ .type = type, .to = to, .parent = parent, .content = text, .content_size = strlen(text) });
	else
		report_dropped(ends, "a message to clients for lack of memory");
	free(text);
	return number;
}
