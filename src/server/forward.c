/*
 * Requests for sessions of other workers.
 *
 *     client ──▶ worker A: head checked, token checked ──the same request, over a link──▶ worker B: checks everything again, answers
 *            ◀── the same answer, as it comes ◀──────────────────────────────────────────
 *
 * A link is a pair of sockets, of which B got one in its inbox (pool.c).  B takes it for what it is because of where it came from: its
 * requests arrive at a server of libmicrohttpd of their own, which no client can reach.  A trusts B for nothing but the answer's form, and B
 * trusts A for the client's address (CELL_FORWARD_CLIENT), because the token is forwarded too, and is checked again.  Clients that send
 * headers of this name are refused.  A forwarded request is never forwarded again.
 *
 *     link:     idle ──a request──▶ busy ──its answer is whole──▶ idle
 *                 └── the worker died ──▶ closed ◀── the client left, the answer is broken ──┘
 *     forward:  sending ──the head of the answer──▶ answered ──its end──▶ ended
 *                  └── the link is closed ──▶ 410: the session has ended with its worker
 *
 * Both directions are bounded: neither side reads more than WINDOW_BYTES that the other has not taken.
 *
 * Requests for sessions of other servers (peers.c) take the same way over a connection to the address that the other server advertises.  There B
 * knows nothing of A, and takes it for the client that it is.  Until B has said that it reads the body nothing was done, so that the request can
 * still be handled otherwise; later it is answered with 502, because B may have carried it out.  An idle link may be one that B has just closed:
 * it is used again only for requests that can be sent once more, over a new one.
 *
 * Lists of all workers (cell__gather_begin()) are asked of each worker in the same way, ourselves included, and joined.
 */
#define _GNU_SOURCE
#include "server/peers.h"
#include "server/pool.h"

#include <assert.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define WINDOW_BYTES (256u * 1024)
#define READ_BYTES 65536u
#define MAX_HEAD_BYTES 65536u
#define MAX_PART_BYTES (64u << 20)
#define MAX_IDLE_LINKS 64u
#define MAX_HEADERS 64
#define CONNECT_US 2000000 /* to another server */
#define SILENT_MS 10000    /* of its machine, not of its work: then it is gone */
#define READ_US 5000000    /* until it says that it reads a body: it is paused, and another one may have its session by now */

enum framing { FRAMED_BY_LENGTH, FRAMED_BY_CHUNKS };
enum chunk_step { CHUNK_SIZE, CHUNK_DATA, CHUNK_DATA_END, CHUNK_TRAILER };

struct cell__peer_link {
	uv_poll_t poll;
	struct cell_server *server;
	struct cell__forward *user; /* NULL: idle */
	int worker, fd, events; /* worker -1: of another server */
	struct cell__address peer; /* of that */
	bool connecting, closing;
	bool proven; /* it is one of our servers (greeting.c): until then nothing of a request is sent */
	char nonce[CELL_GREETING_NONCE];
	bool is_old;    /* it had a request before */
	bool is_closed; /* by the other side */
	bool is_unread; /* it ended before the other side had read all that was sent: a request has not begun */
	struct cell__buf out, in;
	size_t out_at; /* so much of `out` is sent */
	struct cell__peer_link *next; /* idle ones */
};

struct cell__forward {
	unsigned refs; /* of its request or gather, and of the answer that libmicrohttpd reads */
	struct cell_server *server;
	struct cell__request *request; /* NULL: it has ended, or this is a part */
	struct cell__gather *gather;   /* NULL: not a part of several */
	struct cell__peer_link *link;       /* NULL: it has been given back or closed */
	struct MHD_Connection *connection;
	bool chunked; /* the client's body has no length */
	bool is_peers; /* it is for another server */
	bool whole;   /* of another server, with all of its body: it can be handled otherwise */
	bool holds;   /* the body of a whole one, until the owner says that it reads: before that it has done nothing */
	int64_t begun_us;
	bool sent;    /* all of the request is handed to the link */
	bool has_head, ended, failed, keep;
	bool answered;  /* the request has its answer */
	bool suspended; /* the client waits for more of the body */
	bool told;      /* the owner knows that the client sends nothing more */
	unsigned status;
	enum framing framing;
	enum chunk_step step;
	uint64_t left;   /* bytes of the body, or of the chunk */
	char *head;      /* its lines */
	char *text;      /* of a short answer that came before the end of the request */
	struct cell__buf body;
};

struct cell__gather {
	struct cell__request *request;
	unsigned left;
	int n;
	struct cell__forward *parts[]; /* NULL: the worker does not answer */
};

static void handle_link(uv_poll_t *poll, int status, int events);
static void fail_link(struct cell__peer_link *link);

/* ---- links ---- */

static void handle_link_closed(uv_handle_t *handle)
{
	struct cell__peer_link *link = handle->data;
	struct cell_server *server = link->server;

	cell__close_fd(&link->fd);
	cell__buf_finish(&link->out);
	cell__buf_finish(&link->in);
	free(link);
	server->n_links--;
	cell__server_advance(server);
}

static void link_close(struct cell__peer_link *link)
{
	struct cell__peer_link **at = &link->server->idle_links;

	if (link->closing)
		return;
	link->closing = true;
	while (*at && *at != link)
		at = &(*at)->next;
	if (*at) {
		*at = link->next;
		link->server->n_idle_links--;
	}
	uv_close((uv_handle_t *)&link->poll, handle_link_closed);
}

void cell__links_close(struct cell_server *server)
{
	while (server->idle_links)
		link_close(server->idle_links);
}

static void watch(struct cell__peer_link *link)
{
	bool paused = link->user && link->user->body.size > WINDOW_BYTES && !link->user->gather;
	bool writes = link->connecting || (link->proven && link->out_at < link->out.size);
	int events = (paused || link->connecting ? 0 : UV_READABLE) | (writes ? UV_WRITABLE : 0);

	if (link->closing || events == link->events)
		return;
	link->events = events;
	if (events)
		uv_poll_start(&link->poll, events, handle_link);
	else
		uv_poll_stop(&link->poll);
}

static struct cell__peer_link *link_open(struct cell_server *server, int worker, int fd);

static bool leads_to(const struct cell__peer_link *link, int worker, const struct cell__address *peer)
{
	return link->worker == worker && (!peer || (link->peer.size == peer->size && !memcmp(&link->peer.at, &peer->at, peer->size)));
}

/* An idle one; peer: of another server. */
static struct cell__peer_link *link_again(struct cell_server *server, int worker, const struct cell__address *peer)
{
	struct cell__peer_link **at = &server->idle_links, *link;

	while (*at && !leads_to(*at, worker, peer))
		at = &(*at)->next;
	link = *at;
	if (link) {
		*at = link->next;
		server->n_idle_links--;
	}
	return link;
}

static struct cell__peer_link *link_get(struct cell_server *server, int worker)
{
	struct cell__peer_link *link = link_again(server, worker, NULL);

	return link ? link : link_open(server, worker, cell__pool_connect(server, worker));
}

static int connect_peer(const struct cell__address *address)
{
	int fd = socket(address->at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int on = 1, idle_s = SILENT_MS / 2000, every_s = 1, count = 5, silent_ms = SILENT_MS;

	if (fd < 0)
		return -1;
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof(every_s));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof(silent_ms));
	if (connect(fd, &address->at.any, address->size) < 0 && errno != EINPROGRESS)
		cell__close_fd(&fd);
	return fd;
}

static struct cell__peer_link *link_open(struct cell_server *server, int worker, int fd)
{
	struct cell__peer_link *link = cell__alloc(1, sizeof(*link));

	if (!link) {
		cell__close_fd(&fd);
		return NULL;
	}
	*link = (struct cell__peer_link){ .server = server, .worker = worker, .fd = fd, .connecting = worker < 0, .proven = worker >= 0 };
	if (link->fd < 0 || uv_poll_init(cell__loop_uv(server->engine->loop), &link->poll, link->fd) < 0) {
		cell__close_fd(&link->fd);
		free(link);
		return NULL;
	}
	link->poll.data = link;
	server->n_links++;
	watch(link);
	return link;
}

/* After the whole answer. */
static void link_put(struct cell__peer_link *link)
{
	struct cell_server *server = link->server;

	link->user = NULL;
	link->is_old = true;
	link->in.size = link->out.size = link->out_at = 0;
	if (server->stopping || server->n_idle_links >= MAX_IDLE_LINKS) {
		link_close(link);
		return;
	}
	link->next = server->idle_links;
	server->idle_links = link;
	server->n_idle_links++;
	watch(link);
}

static bool flush(struct cell__peer_link *link)
{
	if (!link->proven)
		return true;
	while (link->out_at < link->out.size) {
		ssize_t n = send(link->fd, link->out.data + link->out_at, link->out.size - link->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		link->out_at += (size_t)n;
	}
	link->out.size = link->out_at = 0;
	return true;
}

static size_t unsent(const struct cell__peer_link *link)
{
	return link->out.size - link->out_at;
}

/* Sends what there is at once, which spares a turn of the loop, and lets a body go on that waited for that. */
static void push(struct cell__peer_link *link)
{
	struct cell__forward *forward = link->user;

	if (!flush(link)) {
		link->is_unread = link->is_closed = true;
		fail_link(link);
		return;
	}
	if (forward && forward->request && !forward->sent && !cell__forward_is_busy(forward->request))
		cell__request_resume(forward->request);
	watch(link);
}

/* ---- forwards ---- */

static void forward_unref(struct cell__forward *forward)
{
	if (--forward->refs)
		return;
	free(forward->head);
	free(forward->text);
	cell__buf_finish(&forward->body);
	free(forward);
}

/* It no longer needs the link. */
static void leave_link(struct cell__forward *forward, bool is_clean)
{
	struct cell__peer_link *link = cell__take_ptr(forward->link);

	if (!link)
		return;
	forward->server->n_forwards--;
	link->user = NULL;
	if (is_clean && forward->keep && !forward->told && forward->sent && !unsent(link) && !link->in.size)
		link_put(link);
	else
		link_close(link);
	cell__server_advance(forward->server);
}

static struct cell__forward *forward_create(struct cell_server *server, struct cell__peer_link *link)
{
	struct cell__forward *forward = cell__alloc(1, sizeof(*forward));

	if (!forward || !link) {
		if (link)
			link_close(link);
		free(forward);
		return NULL;
	}
	*forward = (struct cell__forward){ .refs = 1, .server = server, .keep = true, .link = link, .begun_us = cell__now_us() };
	forward->link->user = forward;
	server->n_forwards++;
	return forward;
}

/* ---- the request ---- */

/* Of this connection alone, or written by us. */
static bool is_own_header(const char *name)
{
	static const char *const own[] = { "Connection", "Keep-Alive", "Content-Length", "Transfer-Encoding", "TE", "Trailer",
					   "Upgrade",    "Expect",     "Date",           "X-Request-ID" };

	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
		if (!strcasecmp(name, own[i]))
			return true;
	}
	return !strncasecmp(name, CELL_FORWARD_PREFIX, strlen(CELL_FORWARD_PREFIX));
}

struct writing {
	struct cell__buf *out;
	bool is_addressed; /* to that server: Host and Origin, which were checked here, are of our own address */
	int rc;
};

static enum MHD_Result add_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
	struct writing *writing = arg;

	(void)kind;
	/* The head was checked: names are tokens, and values have no control characters (head.c). */
	if (!is_own_header(name) && !(writing->is_addressed && (!strcasecmp(name, "Host") || !strcasecmp(name, "Origin"))))
		writing->rc |= cell__buf_printf(writing->out, "%s: %s\r\n", name, value ? value : "");
	return writing->rc ? MHD_NO : MHD_YES;
}

enum reader { FOR_WORKER, FOR_EACH_WORKER, FOR_SERVER };

static int add_head(struct cell__request *request, const char *url, enum reader reader, struct cell__buf *out)
{
	const char *length = cell__request_header(request, "Content-Length");
	struct writing writing = { .out = out, .is_addressed = reader == FOR_SERVER && request->server->mcp };
	char client[CELL_SERVER_CLIENT];

	cell__request_client(request, client);
	writing.rc = cell__buf_printf(out, "%s %s HTTP/1.1\r\n", request->method, url);
	MHD_get_connection_values(request->connection, MHD_HEADER_KIND, add_header, &writing);
	if (writing.is_addressed) {
		CELL_AUTO_FREE char *peer = cell__server_url(&request->peer, false);

		writing.rc |= peer ? cell__buf_printf(out, "Host: %s\r\n", peer + strlen("http://")) : -1;
	} else if (!cell__request_header(request, "Host")) /* HTTP/1.0 */
		writing.rc |= cell__buf_add_str(out, "Host: localhost\r\n");
	writing.rc |= cell__buf_printf(out, "X-Request-ID: %s\r\n", request->id);
	if (reader != FOR_SERVER)
		writing.rc |= cell__buf_printf(out, CELL_FORWARD_CLIENT ": %s\r\n", client);
	if (reader == FOR_SERVER || cell__request_header(request, CELL_FORWARD_HOP))
		writing.rc |= cell__buf_add_str(out, CELL_FORWARD_HOP ": 1\r\n");
	if (reader == FOR_EACH_WORKER)
		writing.rc |= cell__buf_add_str(out, CELL_FORWARD_PART ": 1\r\n");
	else if (reader == FOR_SERVER && !request->route->streamed)
		writing.rc |= request->body.size
				      ? cell__buf_printf(out, "Expect: 100-continue\r\nContent-Length: %zu\r\n", request->body.size)
			      : strcmp(request->method, "GET") ? cell__buf_add_str(out, "Content-Length: 0\r\n")
							       : 0;
	else if (cell__request_header(request, "Transfer-Encoding"))
		writing.rc |= cell__buf_add_str(out, "Transfer-Encoding: chunked\r\n");
	else if (length)
		writing.rc |= cell__buf_printf(out, "Content-Length: %s\r\n", length);
	return writing.rc | cell__buf_add_str(out, "\r\n");
}

int cell__request_owner(struct cell__request *request)
{
	const struct cell__route *route = request->route;
	const char *id = NULL;

	if (!request->server->pool || request->inner)
		return -1;
	if (request->is_e2b)
		id = cell__e2b_owner_id(request);
	else if (!strncmp(route->path, "/v1/sessions/{session}", 22))
		id = request->params[0];
	else if (!strncmp(route->path, "/v1/batches/{batch}", 19) || !strncmp(route->path, "/v1/tasks/{task}", 16))
		id = request->params[0];
	else if (!strcmp(route->path, "/oauth/callback"))
		return cell__login_owner(request);
	else if (route->session_header)
		id = cell__request_header(request, "X-Session-ID");
	return id ? cell__pool_owner(request->server, id) : -1;
}

int cell__request_owner_by_body(struct cell__request *request)
{
	const char *id = NULL;

	if (!request->server->pool || request->inner || request->forward)
		return -1;
	if (request->is_e2b)
		id = cell__e2b_owner_by_body(request);
	else if (!strcmp(request->route->path, "/v1/sessions") && json_is_object(request->json))
		id = json_string_value(json_object_get(request->json, "resume"));
	return id ? cell__pool_owner(request->server, id) : -1;
}

void cell__forward_whole(struct cell__request *request, int worker, const char *url)
{
	cell__forward_begin(request, worker, url);
	if (request->state != CELL_REQUEST_ANSWERED && request->body.size)
		(void)cell__forward_take(request, request->body.data, request->body.size); /* of a new link all of it */
	if (request->state != CELL_REQUEST_ANSWERED)
		(void)cell__forward_take(request, NULL, 0);
}

static struct cell__forward *begin(struct cell__request *request, struct cell__peer_link *link, enum reader reader, const char *url)
{
	struct cell__forward *forward = forward_create(request->server, link);

	if (!forward) {
		cell__answer_shortage(request, "the process of this session cannot be reached now");
		return NULL;
	}
	forward->request = request;
	forward->connection = request->connection;
	forward->is_peers = reader == FOR_SERVER;
	forward->chunked = cell__request_header(request, "Transfer-Encoding");
	request->forward = forward;
	request->server->counts.in_flight--;
	if (add_head(request, url, reader, &forward->link->out) < 0) {
		leave_link(forward, false);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a request");
		return NULL;
	}
	return forward;
}

void cell__forward_begin(struct cell__request *request, int worker, const char *url)
{
	(void)begin(request, link_get(request->server, worker), FOR_WORKER, url);
}

static struct cell__peer_link *link_peer(struct cell_server *server, const struct cell__address *address)
{
	int fd = connect_peer(address);
	struct cell__peer_link *link = fd >= 0 ? link_open(server, -1, fd) : NULL;

	if (link)
		link->peer = *address;
	return link;
}

void cell__forward_to_peer(struct cell__request *request)
{
	request->server->counts.forwarded++;
	(void)begin(request, link_peer(request->server, &request->peer), FOR_SERVER, cell__request_url(request));
}

static void pass_on(struct cell__request *request, const struct cell__address *address, bool may_be_old)
{
	struct cell__peer_link *link = may_be_old ? link_again(request->server, -1, address) : NULL;
	if (!link)
		link = link_peer(request->server, address);
	if (link)
		request->peer = link->peer;

	struct cell__forward *forward = link ? begin(request, link, FOR_SERVER, cell__request_url(request)) : NULL;

	if (!link)
		cell__peers_unreached(request);
	if (!forward)
		return;
	forward->whole = forward->sent = true;
	forward->holds = request->body.size > 0;
	push(forward->link);
}

void cell__forward_whole_to_peer(struct cell__request *request, const struct cell__address *address)
{
	request->server->counts.forwarded++;
	/* Others may have been carried out when the link breaks. */
	pass_on(request, address, request->body.size || !strcmp(request->method, "GET"));
}

size_t cell__forward_take(struct cell__request *request, const char *bytes, size_t size)
{
	struct cell__forward *forward = request->forward;
	struct cell__peer_link *link = forward->link;
	struct cell__buf *out = link ? &link->out : NULL;
	int rc = 0;

	if (!link)
		return 0; /* it failed, and was answered */
	if (size && unsent(link) > WINDOW_BYTES)
		return size;
	if (size && forward->chunked)
		rc |= cell__buf_printf(out, "%zx\r\n", size);
	if (size)
		rc |= cell__buf_add(out, bytes, size);
	if (forward->chunked)
		rc |= cell__buf_add_str(out, size ? "\r\n" : "0\r\n\r\n");
	forward->sent = !size;
	if (rc) {
		fail_link(link);
	} else if ((!size || unsent(link) > READ_BYTES) && !flush(link)) {
		link->is_unread = link->is_closed = true;
		fail_link(link);
	} else {
		watch(link);
	}
	return 0;
}

/*
 * libmicrohttpd does not look at a suspended connection.  A client that closed its side may only have finished sending: its owner is told in the
 * same way, and does with it as with a client of its own (cell__events_sweep()).
 */
void cell__forward_sweep(struct cell__request *request, int client_fd)
{
	struct cell__forward *forward = request->forward;
	struct pollfd fd = { .fd = client_fd, .events = POLLRDHUP };

	int64_t waited_us = cell__now_us() - forward->begun_us;

	if (forward->link && forward->link->worker >= 0 && cell__pool_is_gone(forward->server, forward->link->worker)) {
		fail_link(forward->link); /* the connection may still lie in its inbox */
		return;
	}
	if (forward->link && ((forward->link->connecting && waited_us > CONNECT_US) ||
			      ((forward->holds || !forward->link->proven) && waited_us > READ_US))) {
		fail_link(forward->link);
		return;
	}
	if (!forward->suspended || !forward->link || poll(&fd, 1, 0) <= 0)
		return;
	if (fd.revents & (POLLHUP | POLLERR)) {
		fail_link(forward->link);
	} else if (forward->sent && !unsent(forward->link) && !forward->told) {
		forward->told = true; /* and so the link is of no use to another request */
		shutdown(forward->link->fd, SHUT_WR);
	}
}

bool cell__forward_is_busy(const struct cell__request *request)
{
	const struct cell__peer_link *link = request->forward->link;

	return link && unsent(link) > WINDOW_BYTES;
}

/* ---- the answer ---- */

/* The value of a header in the lines of a head; NULL: it is not there. */
static const char *find_line(char *const *lines, const char *name)
{
	size_t size = strlen(name);

	for (; *lines; lines++) {
		if (!strncasecmp(*lines, name, size) && (*lines)[size] == ':')
			return *lines + size + 1 + strspn(*lines + size + 1, " ");
	}
	return NULL;
}

static void cut_lines(char *head, char *lines[static MAX_HEADERS + 1])
{
	size_t n = 0;
	char *end;

	for (char *at = strstr(head, "\r\n"); at && n < MAX_HEADERS; at = end) {
		*at = '\0';
		at += 2;
		end = strstr(at, "\r\n");
		if (*at)
			lines[n++] = at;
	}
	lines[n] = NULL;
}

char *cell__forward_text(struct cell__request *request)
{
	return cell__take_ptr(request->forward->text);
}

static ssize_t read_body(void *arg, uint64_t position, char *out, size_t max)
{
	struct cell__forward *forward = arg;
	size_t n = forward->body.size < max ? forward->body.size : max;

	(void)position;
	if (n) {
		memcpy(out, forward->body.data, n);
		cell__buf_shift(&forward->body, n);
		if (forward->link)
			watch(forward->link);
		return (ssize_t)n;
	}
	if (forward->failed)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	if (forward->ended)
		return MHD_CONTENT_READER_END_OF_STREAM;
	forward->suspended = true;
	MHD_suspend_connection(forward->connection);
	return 0;
}

static void body_free(void *arg)
{
	forward_unref(arg);
}

static void wake(struct cell__forward *forward)
{
	if (!forward->suspended || !forward->request)
		return;
	forward->suspended = false;
	MHD_resume_connection(forward->connection);
	cell__http_kick(forward->server);
}

static void answer(struct cell__forward *forward)
{
	struct cell__request *request = forward->request;
	struct MHD_Response *response;
	char *lines[MAX_HEADERS + 1];

	forward->answered = true;
	if (forward->ended) {
		size_t size = forward->body.size;

		if (!forward->sent)
			forward->text = cell__strndup(size ? forward->body.data : "", size);
		response = cell__http_response(size ? cell__buf_take(&forward->body) : NULL, size, NULL);
	} else {
		response = MHD_create_response_from_callback(forward->framing == FRAMED_BY_LENGTH ? forward->left + forward->body.size
												  : MHD_SIZE_UNKNOWN,
							     READ_BYTES, read_body, forward, body_free);
		if (response)
			forward->refs++;
	}
	cut_lines(forward->head, lines);
	if (response && forward->is_peers) {
		CELL_AUTO_FREE char *peer = cell__server_url(&request->peer, false);

		MHD_add_response_header(response, CELL_FORWARD_OWNER, peer ? peer : "");
	}
	for (char **line = lines; response && *line; line++) {
		char *colon = strchr(*line, ':');

		if (!colon)
			continue;
		*colon = '\0';
		/* Of another worker also its words to the server that asked, and to proxies. */
		if (!is_own_header(*line) || !strcasecmp(*line, "X-Request-ID") ||
		    (!forward->is_peers && (!strcasecmp(*line, CELL_FORWARD_ELSEWHERE) || !strcasecmp(*line, CELL_FORWARD_OWNER))))
			MHD_add_response_header(response, *line, colon + 1 + strspn(colon + 1, " "));
	}
	if (response && request->server->mcp && request->crosses)
		cell__answer_crosses(request, response);
	request->state = CELL_REQUEST_ANSWERED;
	request->status = forward->status;
	request->response = response;
	request->counted = true; /* by its owner */
	cell__request_resume(request);
}

/* -1: the answer is broken. */
static int read_head(struct cell__forward *forward, struct cell__buf *in)
{
	const char *end = in->size ? memmem(in->data, in->size, "\r\n\r\n", 4) : NULL, *length, *encoding, *connection;
	size_t size = end ? (size_t)(end - in->data) + 4 : 0;
	char *lines[MAX_HEADERS + 1], *copy;

	if (!end)
		return in->size > MAX_HEAD_BYTES ? -1 : 0;
	forward->head = cell__strndup(in->data, size - 2);
	copy = forward->head ? cell__strdup(forward->head) : NULL;
	if (!copy || sscanf(copy, "HTTP/1.1 %u", &forward->status) != 1) {
		free(copy);
		return -1;
	}
	cell__buf_shift(in, size);
	if (forward->status == 100) {
		free(copy);
		free(cell__take_ptr(forward->head));
		if (forward->holds && forward->request &&
		    cell__buf_add(&forward->link->out, forward->request->body.data, forward->request->body.size) < 0)
			return -1;
		forward->holds = false;
		return read_head(forward, in);
	}
	cut_lines(copy, lines);
	length = find_line(lines, "Content-Length");
	encoding = find_line(lines, "Transfer-Encoding");
	connection = find_line(lines, "Connection");
	forward->has_head = true;
	forward->framing = encoding ? FRAMED_BY_CHUNKS : FRAMED_BY_LENGTH;
	forward->left = length ? strtoull(length, NULL, 10) : 0;
	forward->keep = !connection || strcasecmp(connection, "close");
	if (forward->status == MHD_HTTP_NO_CONTENT)
		forward->left = 0;
	free(copy);
	return !encoding && !length && forward->status != MHD_HTTP_NO_CONTENT ? -1 : 0;
}

static int take_body(struct cell__forward *forward, struct cell__buf *in)
{
	size_t n = in->size < forward->left ? in->size : (size_t)forward->left;

	if (n && cell__buf_add(&forward->body, in->data, n) < 0)
		return -1;
	cell__buf_shift(in, n);
	forward->left -= n;
	return 0;
}

/* 1: a line was taken off; 0: it is not whole. */
static int take_line(struct cell__buf *in, char line[static 32])
{
	const char *end = in->size ? memmem(in->data, in->size, "\r\n", 2) : NULL;
	size_t size = end ? (size_t)(end - in->data) : 0;

	if (!end)
		return in->size > 30 ? -1 : 0;
	if (size > 31)
		return -1;
	memcpy(line, in->data, size);
	line[size] = '\0';
	cell__buf_shift(in, size + 2);
	return 1;
}

static int read_chunks(struct cell__forward *forward, struct cell__buf *in)
{
	char line[32];
	int rc = 1;

	while (rc > 0 && !forward->ended) {
		switch (forward->step) {
		case CHUNK_SIZE:
			rc = take_line(in, line);
			if (rc > 0) {
				forward->left = strtoull(line, NULL, 16);
				forward->step = forward->left ? CHUNK_DATA : CHUNK_TRAILER;
			}
			break;
		case CHUNK_DATA:
			rc = take_body(forward, in) < 0 ? -1 : !forward->left;
			if (rc > 0)
				forward->step = CHUNK_DATA_END;
			break;
		case CHUNK_DATA_END:
			rc = take_line(in, line);
			if (rc > 0)
				forward->step = CHUNK_SIZE;
			break;
		case CHUNK_TRAILER:
			rc = take_line(in, line);
			forward->ended = rc > 0 && !*line;
			break;
		}
	}
	return rc < 0 ? -1 : 0;
}

static void part_ended(struct cell__forward *forward);

static bool is_elsewhere(const struct cell__forward *forward)
{
	return forward->status == MHD_HTTP_SERVICE_UNAVAILABLE && strcasestr(forward->head, "\r\n" CELL_FORWARD_ELSEWHERE ":");
}

/* The session is on its way to another server.  The forward is gone, or has answered. */
static void ask_again(struct cell__forward *forward)
{
	struct cell__request *request = forward->request;

	if (!request)
		return;
	if (!cell__peers_again(request))
		answer(forward);
	else
		cell__forward_forget(request);
}

/* New bytes have come. */
static int advance(struct cell__forward *forward)
{
	struct cell__buf *in = &forward->link->in;

	if (!forward->has_head && read_head(forward, in) < 0)
		return -1;
	if (!forward->has_head)
		return 0;
	if (forward->framing == FRAMED_BY_CHUNKS) {
		if (read_chunks(forward, in) < 0)
			return -1;
	} else {
		if (take_body(forward, in) < 0)
			return -1;
		forward->ended = !forward->left;
	}
	if (forward->gather && forward->body.size > MAX_PART_BYTES)
		return -1;
	if (forward->ended)
		leave_link(forward, true);
	if (forward->gather) {
		if (forward->ended)
			part_ended(forward);
		return 0;
	}
	if (forward->whole && forward->ended && !forward->answered && is_elsewhere(forward)) {
		ask_again(forward);
		return 0;
	}
	/* A short answer goes out in one piece, a stream at once. */
	if (!forward->answered &&
	    (forward->ended || forward->framing == FRAMED_BY_CHUNKS || forward->left + forward->body.size > WINDOW_BYTES))
		answer(forward);
	else if (forward->answered)
		wake(forward);
	return 0;
}

static void fail_link(struct cell__peer_link *link)
{
	struct cell__forward *forward = link->user;
	bool is_undone;

	if (!forward) {
		link_close(link);
		return;
	}
	/* Not begun, or a question that may be asked twice and that nobody answered. */
	is_undone = !link->proven || forward->holds || (link->is_unread && !forward->has_head && !link->in.size) ||
		    (forward->whole && !forward->has_head && !link->in.size && forward->request &&
		     !strcmp(forward->request->method, "GET"));
	forward->failed = true;
	leave_link(forward, false);
	if (forward->whole && is_undone && forward->request) {
		struct cell__request *request = forward->request;
		const struct cell__address peer = link->peer;
		bool again = link->is_old && link->is_closed && !forward->server->stopping;

		cell__forward_forget(request);
		if (again)
			pass_on(request, &peer, false);
		else
			cell__peers_unreached(request);
	} else if (forward->gather) {
		part_ended(forward);
	} else if (forward->answered) {
		wake(forward);
	} else if (forward->request && is_undone) {
		forward->answered = true;
		cell__answer_moving(forward->request, "the server that has this session cannot be reached: try again");
	} else if (forward->request && forward->has_head && link->worker >= 0) {
		forward->answered = true;
		cell__answer_fail(forward->request, MHD_HTTP_BAD_GATEWAY, CELL_E_CLOSED,
				  "the answer to this request, which was carried out, broke off: what it reads was changed or has ended");
	} else if (forward->request && (link->worker < 0 || forward->server->session.saved_dir)) {
		forward->answered = true;
		cell__answer_fail(forward->request, MHD_HTTP_BAD_GATEWAY, CELL_E_CLOSED,
				  "the server that had this session stopped during the request, which it may have carried out");
	} else if (forward->request) {
		forward->answered = true;
		cell__answer_fail(forward->request, MHD_HTTP_GONE, CELL_E_EXPIRED,
				  "this session has ended: the worker that had it stopped unexpectedly");
	}
}

/* Something came of it. */
static bool has_connected(struct cell__peer_link *link)
{
	socklen_t size = sizeof(int);
	int sys = 0;

	link->connecting = getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &sys, &size) < 0 || sys;
	return !link->connecting;
}

/* The other side has closed it before it read all, and has said nothing that was not read here. */
static bool was_reset(const struct cell__peer_link *link)
{
	socklen_t size = sizeof(int);
	int sys = 0;
	char byte;

	return getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &sys, &size) == 0 && sys == ECONNRESET &&
	       recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

/* The other server has its answer to this before it gets anything else. */
static bool greet(struct cell__peer_link *link)
{
	char text[CELL_GREETING_BYTES];
	size_t size;

	if (!cell__greeting_write(&link->peer, link->nonce, text))
		return false;
	size = strlen(text);
	return send(link->fd, text, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size; /* of a new connection all of it */
}

static void tell_stranger(const struct cell__peer_link *link)
{
	CELL_AUTO_FREE char *url = cell__server_url(&link->peer, false);

	cell__server_log(link->server, CELL_LOG_WARN,
			 "the server at %s does not prove that it is one of ours, and gets no requests: an old note, or it starts or stops",
			 url ? url : "?");
}

/* -1: it is none of ours; 0: its answer is not whole. */
static int read_proof(struct cell__peer_link *link)
{
	struct cell__buf *in = &link->in;
	const char *end = memmem(in->data, in->size, "\r\n\r\n", 4);
	char *lines[MAX_HEADERS + 1];

	if (!end || end + 4 != in->data + in->size)
		return end || in->size > MAX_HEAD_BYTES ? -1 : 0;
	CELL_AUTO_FREE char *head = cell__strndup(in->data, in->size - 2);

	if (!head || strncmp(head, "HTTP/1.1 204 ", 13))
		return -1;
	cut_lines(head, lines);
	if (!cell__greeting_check(link->server, &link->peer, link->nonce, find_line(lines, CELL_FORWARD_PROOF)))
		return -1;
	in->size = 0;
	return 1;
}

static void handle_link(uv_poll_t *poll, int status, int events)
{
	struct cell__peer_link *link = poll->data;
	struct cell__buf *in = &link->in;
	struct cell__forward *forward = link->user;
	ssize_t n;

	if (status < 0) /* an error, and libuv does not say which */
		link->is_unread = link->is_closed = was_reset(link);
	if (status < 0 || (link->connecting && !has_connected(link))) {
		fail_link(link);
		return;
	}
	if (!link->proven && !*link->nonce && !greet(link)) {
		fail_link(link);
		return;
	}
	if (events & UV_WRITABLE && link->proven) {
		push(link);
		if (link->closing)
			return;
	}
	if (events & UV_READABLE) {
		if (cell__buf_reserve(in, READ_BYTES) < 0) {
			fail_link(link);
			return;
		}
		n = recv(link->fd, in->data + in->size, READ_BYTES, MSG_DONTWAIT);
		if (n > 0)
			in->size += (size_t)n;
		link->is_unread = (n < 0 && errno == ECONNRESET) || (n == 0 && unsent(link));
		link->is_closed = n == 0 || link->is_unread;
		/* An idle worker says nothing. */
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) || (n > 0 && !forward)) {
			fail_link(link);
			return;
		}
		if (n > 0 && !link->proven) {
			int proof = read_proof(link);

			if (proof < 0) {
				tell_stranger(link);
				fail_link(link);
				return;
			}
			link->proven = proof > 0;
		} else if (n > 0 && advance(forward) < 0) {
			if (forward->link)
				fail_link(forward->link);
			return;
		}
	}
	if (!link->closing)
		push(link);
}

/* ---- lists of all workers ---- */

/* Lines of one name stay together: a new one follows the last of them. */
static int add_line(json_t *order, const char *line)
{
	size_t size = strcspn(line, "{"), i = json_array_size(order);
	json_t *text = json_string(line);

	while (i && line[size] == '{' && strncmp(json_string_value(json_array_get(order, i - 1)), line, size + 1))
		i--;
	return i && line[size] == '{' ? json_array_insert_new(order, i, text) : json_array_append_new(order, text);
}

/* The numbers of all texts, added up; those of time are not. */
static char *join_metrics(const struct cell__gather *gather)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	json_t *sums = json_object(), *order = json_array(), *line;
	size_t i;
	int rc = 0;

	for (int part = 0; part < gather->n; part++) {
		char *text = gather->parts[part] ? gather->parts[part]->body.data : NULL, *rest = NULL;

		for (char *at = text ? strtok_r(text, "\n", &rest) : NULL; at; at = strtok_r(NULL, "\n", &rest)) {
			char *space = *at == '#' ? NULL : strrchr(at, ' ');
			double value = space ? strtod(space + 1, NULL) : 0, before;
			json_t *sum;

			if (space)
				*space = '\0';
			sum = json_object_get(sums, at);
			before = json_real_value(sum);
			if (!sum)
				rc |= add_line(order, at);
			else if (!strcmp(at, "workcell_uptime_seconds") || !strcmp(at, "process_start_time_seconds"))
				value = before;
			else
				value += before;
			rc |= json_object_set_new(sums, at, space ? json_real(value) : json_null());
		}
	}
	json_array_foreach(order, i, line) {
		const char *name = json_string_value(line);
		const json_t *sum = json_object_get(sums, name);

		rc |= json_is_null(sum) ? cell__buf_printf(&out, "%s\n", name)
					: cell__buf_printf(&out, "%s %.17g\n", name, json_real_value(sum));
	}
	json_decref(sums);
	json_decref(order);
	return rc ? NULL : cell__buf_take(&out);
}

static json_t *join_lists(const struct cell__gather *gather, const char *member)
{
	json_t *list = json_array();

	for (int i = 0; i < gather->n; i++) {
		const struct cell__forward *part = gather->parts[i];
		json_t *value = part ? json_loadb(part->body.data, part->body.size, JSON_ALLOW_NUL, NULL) : NULL;

		json_array_extend(list, json_object_get(value, member));
		json_decref(value);
	}
	return list;
}

static void gather_free(struct cell__gather *gather)
{
	for (int i = 0; i < gather->n; i++) {
		if (gather->parts[i])
			forward_unref(gather->parts[i]);
	}
	free(gather);
}

static void gather_end(struct cell__gather *gather)
{
	struct cell__request *request = gather->request;
	const char *member = request->route->gather;
	char *text;

	request->gather = NULL;
	for (int i = 0; i < gather->n; i++) {
		struct cell__forward *part = gather->parts[i];

		if (part && part->status != MHD_HTTP_OK) { /* a refusal, the same of all */
			size_t size = part->body.size;

			cell__answer_response(request, part->status,
					      cell__http_response(size ? cell__buf_take(&part->body) : NULL, size, "application/json"));
			gather_free(gather);
			return;
		}
	}
	if (*member && request->route->joined) {
		request->route->joined(request, join_lists(gather, member));
	} else if (*member) {
		cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:o}", member, join_lists(gather, member)));
	} else if ((text = join_metrics(gather))) {
		cell__answer_bytes(request, "text/plain; version=0.0.4", text, strlen(text));
	} else {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the answer");
	}
	gather_free(gather);
}

/* A worker that died has nothing to list. */
static void part_ended(struct cell__forward *forward)
{
	struct cell__gather *gather = forward->gather;

	forward->gather = NULL;
	if (forward->failed) {
		for (int i = 0; i < gather->n; i++) {
			if (gather->parts[i] == forward)
				gather->parts[i] = NULL;
		}
		forward_unref(forward);
	}
	if (--gather->left == 0)
		gather_end(gather);
}

void cell__gather_begin(struct cell__request *request, const char *url)
{
	struct cell_server *server = request->server;
	int n = cell__pool_size(server);
	struct cell__gather *gather = cell__alloc(1, sizeof(*gather) + (size_t)n * sizeof(struct cell__forward *));

	if (!gather) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a request");
		return;
	}
	*gather = (struct cell__gather){ .request = request, .left = 1, .n = n };
	request->gather = gather;
	for (int i = 0; i < n; i++) {
		struct cell__forward *part = cell__pool_reads(server, i) ? forward_create(server, link_get(server, i)) : NULL;

		gather->parts[i] = part;
		if (!part)
			continue;
		gather->left++;
		part->gather = gather;
		part->sent = true;
		if (add_head(request, url, FOR_EACH_WORKER, &part->link->out) < 0 || !flush(part->link))
			fail_link(part->link);
		else
			watch(part->link);
	}
	if (--gather->left == 0)
		gather_end(gather);
}

/* ---- the end of a request ---- */

void cell__forward_forget(struct cell__request *request)
{
	struct cell__forward *forward = cell__take_ptr(request->forward);
	struct cell__gather *gather = cell__take_ptr(request->gather);

	if (forward) {
		forward->request = NULL;
		leave_link(forward, forward->ended);
		request->server->counts.in_flight++; /* the owner counts it, and our caller counts it down */
		forward_unref(forward);
	}
	for (int i = 0; gather && i < gather->n; i++) {
		if (gather->parts[i]) {
			gather->parts[i]->gather = NULL;
			leave_link(gather->parts[i], false);
		}
	}
	if (gather)
		gather_free(gather);
}
