/*
 * States of a connection:
 *
 *     greeting ──▶ request ──allowed──▶ resolving ──▶ connecting ──▶ piping ──both ends done──▶ closed
 *                     └──refused, bad, too slow──▶ answered and closed
 *
 * While bytes of one side are being written to the other, that side is not read: a slow reader slows its peer, and memory
 * is bounded by one buffer a direction.
 */
#define _GNU_SOURCE
#include "egress/egress.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/address.h"

#define REQUEST_BYTES 16384u
#define PIPE_BYTES 32768u
#define HANDSHAKE_MS 30000
#define SECOND_US 1000000

struct half {
	struct conn *conn;
	uv_stream_t *from, *to;
	uv_write_t write;
	uv_shutdown_t shutdown;
	bool ended;
	char bytes[PIPE_BYTES];
};

struct conn {
	struct cell__egress *egress;
	uv_tcp_t client, upstream;
	uv_timer_t timer;
	int handles;
	bool has_upstream, closing, socks, greeted, asked, resolving;
	bool told; /* that it was decided on */
	bool let_through;
	const char *failure;
	int64_t began_us;
	uint64_t bytes[2]; /* from the code, to it */
	char address[INET6_ADDRSTRLEN];
	struct cell__egress_wish wish;
	uv_getaddrinfo_t resolver;
	uv_connect_t connect;
	uv_write_t write;
	char reply[256];
	char request[REQUEST_BYTES];
	size_t size;
	struct half half[2];
	struct conn *next;
};

struct cell__egress {
	struct cell__loop *loop;
	uv_tcp_t server;
	uv_timer_t pace;    /* the next connection is taken when it fires */
	int64_t credit_us, credit_at_us; /* SECOND_US / CELL_EGRESS_RATE buys a connection */
	char **hosts; /* NULL-terminated */
	int (*tell)(void *arg, const struct cell__egress_event *event, struct cell_error *err);
	void *arg;
	struct conn *conns;
	size_t count;
	bool closing;
	int handles; /* of its own */
};

/* ---- pure ---- */

bool cell__egress_rule_matches(const char *rule, const char *host, unsigned port)
{
	const char *colon = strrchr(rule, ':');
	if (!colon)
		return false;
	size_t n = (size_t)(colon - rule), size = strlen(host);
	if (strcmp(colon + 1, "*") != 0 && strtoul(colon + 1, NULL, 10) != port)
		return false;
	if (n > 2 && rule[0] == '[' && rule[n - 1] == ']') { /* [::1]:443 */
		rule++;
		n -= 2;
	}
	if (size > 0 && host[size - 1] == '.')
		size--; /* the same name in its absolute form */
	if (n > 2 && rule[0] == '*' && rule[1] == '.')
		return size > n - 1 && strncasecmp(host + size - (n - 1), rule + 1, n - 1) == 0;
	return size == n && strncasecmp(host, rule, n) == 0;
}

/* host[:port] up to `end`; port 0 in: it must be there. */
static bool take_authority(const char *at, const char *end, unsigned port, struct cell__egress_wish *wish)
{
	const char *host = at, *host_end = end, *colon = NULL;
	if (at < end && *at == '[') {
		const char *close = memchr(at, ']', (size_t)(end - at));
		if (!close)
			return false;
		host = at + 1;
		host_end = close;
		colon = close + 1 < end && close[1] == ':' ? close + 1 : NULL;
		if (close + 1 < end && !colon)
			return false;
	} else {
		colon = memrchr(at, ':', (size_t)(end - at));
		if (colon)
			host_end = colon;
	}
	if (colon) {
		port = 0;
		if (colon + 1 == end || end - colon > 6)
			return false;
		for (const char *d = colon + 1; d < end; d++) {
			if (*d < '0' || *d > '9')
				return false;
			port = port * 10 + (unsigned)(*d - '0');
		}
	}
	size_t n = (size_t)(host_end - host);
	if (n == 0 || n >= sizeof wish->host || port == 0 || port > 65535)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!(strchr("-._:", host[i]) || (host[i] >= '0' && host[i] <= '9') || ((host[i] | 32) >= 'a' && (host[i] | 32) <= 'z')) ||
		    host[i] == '\0')
			return false;
	memcpy(wish->host, host, n);
	wish->host[n] = '\0';
	wish->port = port;
	return true;
}

int cell__egress_parse_http(const char *bytes, size_t size, struct cell__egress_wish *ret_wish)
{
	struct cell__egress_wish wish = { 0 };
	const char *end = memmem(bytes, size, "\r\n\r\n", 4);
	if (!end)
		return size >= REQUEST_BYTES ? -1 : 0;
	const char *line_end = memmem(bytes, size, "\r\n", 2);
	const char *space = memchr(bytes, ' ', (size_t)(line_end - bytes));
	const char *second = space ? memchr(space + 1, ' ', (size_t)(line_end - space - 1)) : NULL;
	if (!second || line_end - second < 9 || strncmp(second + 1, "HTTP/1.", 7) != 0)
		return -1;
	/* Reject a line or text that another parser would end elsewhere (request smuggling). */
	for (const char *at = bytes; at < line_end; at++)
		if ((unsigned char)*at < ' ' || *at == 127)
			return -1;
	wish.used = (size_t)(end - bytes) + 4;
	wish.method_size = (size_t)(space - bytes);
	if (wish.method_size == 7 && strncmp(bytes, "CONNECT", 7) == 0) {
		if (!take_authority(space + 1, second, 0, &wish))
			return -1;
		*ret_wish = wish;
		return 1;
	}
	if (second - space < 9 || strncasecmp(space + 1, "http://", 7) != 0)
		return -1;
	const char *authority = space + 8;
	const char *slash = memchr(authority, '/', (size_t)(second - authority));
	if (!take_authority(authority, slash ? slash : second, 80, &wish))
		return -1;
	wish.plain = true;
	wish.path = (size_t)((slash ? slash : second) - bytes);
	wish.path_end = (size_t)(second - bytes);
	*ret_wish = wish;
	return 1;
}

int cell__egress_parse_socks(const uint8_t *b, size_t size, struct cell__egress_wish *ret_wish)
{
	struct cell__egress_wish wish = { 0 };
	if (size < 5)
		return 0;
	if (b[0] != 5 || b[1] != 1) /* CONNECT only */
		return -1;
	size_t n = b[3] == 1 ? 4 : b[3] == 4 ? 16 : b[3] == 3 ? (size_t)b[4] + 1 : 0;
	if (n == 0)
		return -1;
	if (size < 4 + n + 2)
		return 0;
	if (b[3] == 3) {
		char text[300];
		size_t length = (size_t)snprintf(text, sizeof text, "%.*s:1", (int)b[4], (const char *)b + 5);
		if (memchr(b + 5, ':', b[4]) || length != (size_t)b[4] + 2 || !take_authority(text, text + length, 0, &wish))
			return -1;
	} else if (!inet_ntop(b[3] == 1 ? AF_INET : AF_INET6, b + 4, wish.host, sizeof wish.host)) {
		return -1;
	}
	wish.port = (unsigned)b[4 + n] << 8 | b[5 + n];
	wish.used = 4 + n + 2;
	*ret_wish = wish;
	return wish.port ? 1 : -1;
}

/* ---- ends ---- */

static void maybe_free(struct cell__egress *egress)
{
	if (!egress->closing || egress->handles > 0 || egress->conns)
		return;
	cell__strings_free(egress->hosts);
	free(egress);
}

static void handle_conn_closed(uv_handle_t *handle)
{
	struct conn *conn = handle->data;
	struct cell__egress *egress = conn->egress;
	if (--conn->handles > 0 || conn->resolving)
		return;
	for (struct conn **at = &egress->conns; *at; at = &(*at)->next)
		if (*at == conn) {
			*at = conn->next;
			break;
		}
	egress->count--;
	free(conn);
	maybe_free(egress);
}

static int tell(struct conn *conn, const char *refusal, bool denied, bool ended, struct cell_error *err)
{
	const struct cell__egress_event event = {
		.protocol = !conn->asked       ? NULL
			    : conn->socks      ? "socks5"
			    : conn->wish.plain ? "http"
					       : "connect",
		.host = conn->wish.host[0] ? conn->wish.host : NULL,
		.port = conn->wish.port,
		.address = conn->address[0] ? conn->address : NULL,
		.refusal = refusal,
		.denied = denied,
		.ended = ended,
		.sent = conn->bytes[0],
		.received = conn->bytes[1],
		.duration_us = cell__now_us() - conn->began_us,
	};
	conn->told = true;
	return conn->egress->tell(conn->egress->arg, &event, err);
}

static void close_conn(struct conn *conn)
{
	if (conn->closing)
		return;
	if (conn->let_through)
		(void)tell(conn, conn->failure, false, true, NULL);
	else if (!conn->told)
		(void)tell(conn, conn->failure ? conn->failure : "the connection ended before a request", false, false, NULL);
	conn->closing = true;
	uv_close((uv_handle_t *)&conn->client, handle_conn_closed);
	uv_close((uv_handle_t *)&conn->timer, handle_conn_closed);
	if (conn->has_upstream)
		uv_close((uv_handle_t *)&conn->upstream, handle_conn_closed);
	if (conn->resolving)
		uv_cancel((uv_req_t *)&conn->resolver);
}

static void handle_last_write(uv_write_t *write, int status)
{
	(void)status;
	close_conn(write->data);
}

/* Says no, and ends. */
static void refuse(struct conn *conn, const char *why, int http, uint8_t socks)
{
	if (conn->let_through)
		conn->failure = why;
	else
		(void)tell(conn, why, http == 403, false, NULL);
	uv_read_stop((uv_stream_t *)&conn->client);
	int n;
	if (conn->socks) {
		uint8_t answer[10] = { 5, socks, 0, 1 };
		n = sizeof answer;
		memcpy(conn->reply, answer, sizeof answer);
	} else {
		n = snprintf(conn->reply, sizeof conn->reply, "HTTP/1.1 %d refused\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s\n",
			     http, strlen(why) + 1, why);
	}
	uv_buf_t buf = uv_buf_init(conn->reply, (unsigned)n);
	conn->write.data = conn;
	if (uv_write(&conn->write, (uv_stream_t *)&conn->client, &buf, 1, handle_last_write) < 0)
		close_conn(conn);
}

/* ---- piping ---- */

static void pipe_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
	struct conn *conn = handle->data;
	struct half *half = &conn->half[handle == (uv_handle_t *)&conn->upstream];
	(void)size;
	*buf = uv_buf_init(half->bytes, sizeof half->bytes);
}

static void handle_piped(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

static void handle_written(uv_write_t *write, int status)
{
	struct half *half = write->data;
	if (half->conn->closing)
		return;
	if (status < 0 || uv_read_start(half->from, pipe_alloc, handle_piped) < 0)
		close_conn(half->conn);
}

static void handle_shut(uv_shutdown_t *shutdown, int status)
{
	struct half *half = shutdown->data;
	struct conn *conn = half->conn;
	(void)status;
	if (!conn->closing && conn->half[0].ended && conn->half[1].ended)
		close_conn(conn);
}

static void handle_piped(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	struct conn *conn = stream->data;
	struct half *half = &conn->half[stream == (uv_stream_t *)&conn->upstream];
	if (n == 0)
		return;
	uv_read_stop(stream);
	if (n == UV_EOF) {
		half->ended = true;
		half->shutdown.data = half;
		if (uv_shutdown(&half->shutdown, half->to, handle_shut) < 0)
			close_conn(conn);
		return;
	}
	uv_buf_t out = uv_buf_init(buf->base, n > 0 ? (unsigned)n : 0);
	conn->bytes[half - conn->half] += n > 0 ? (uint64_t)n : 0;
	half->write.data = half;
	if (n < 0 || uv_write(&half->write, half->to, &out, 1, handle_written) < 0)
		close_conn(conn);
}

/* Bytes that came with the request go first; the request itself too, unless it is a CONNECT. */
static void begin_piping(struct conn *conn)
{
	struct half *up = &conn->half[0], *down = &conn->half[1];
	const struct cell__egress_wish *wish = &conn->wish;
	*up = (struct half){ .conn = conn, .from = (uv_stream_t *)&conn->client, .to = (uv_stream_t *)&conn->upstream };
	*down = (struct half){ .conn = conn, .from = (uv_stream_t *)&conn->upstream, .to = (uv_stream_t *)&conn->client };
	uv_timer_stop(&conn->timer);
	uv_buf_t parts[4];
	unsigned n = 0;
	if (wish->plain) {
		parts[n++] = uv_buf_init(conn->request, (unsigned)wish->method_size + 1);
		if (wish->path == wish->path_end)
			parts[n++] = uv_buf_init((char *)"/", 1);
		parts[n++] = uv_buf_init(conn->request + wish->path, (unsigned)(conn->size - wish->path));
	} else if (conn->size > wish->used) {
		parts[n++] = uv_buf_init(conn->request + wish->used, (unsigned)(conn->size - wish->used));
	}
	for (unsigned i = 0; i < n; i++)
		conn->bytes[0] += parts[i].len;
	up->write.data = up;
	if (uv_read_start(down->from, pipe_alloc, handle_piped) < 0 ||
	    (n > 0 ? uv_write(&up->write, up->to, parts, n, handle_written) : uv_read_start(up->from, pipe_alloc, handle_piped)) < 0)
		close_conn(conn);
}

static void handle_answered(uv_write_t *write, int status)
{
	struct conn *conn = write->data;
	if (conn->closing)
		return;
	if (status < 0)
		close_conn(conn);
	else
		begin_piping(conn);
}

/* ---- connecting ---- */

static void handle_connected(uv_connect_t *connect, int status)
{
	struct conn *conn = connect->data;
	if (conn->closing)
		return;
	if (status < 0) {
		refuse(conn, "the host does not answer", 502, 5);
		return;
	}
	if (conn->wish.plain) {
		begin_piping(conn);
		return;
	}
	static const uint8_t yes[10] = { 5, 0, 0, 1 };
	static const char established[] = "HTTP/1.1 200 Connection established\r\n\r\n";
	uv_buf_t buf = conn->socks ? uv_buf_init((char *)yes, sizeof yes) : uv_buf_init((char *)established, sizeof established - 1);
	conn->write.data = conn;
	if (uv_write(&conn->write, (uv_stream_t *)&conn->client, &buf, 1, handle_answered) < 0)
		close_conn(conn);
}

static bool rules_allow(const struct cell__egress *egress, const char *host, unsigned port)
{
	for (char **rule = egress->hosts; *rule; rule++)
		if (cell__egress_rule_matches(*rule, host, port))
			return true;
	return false;
}

/* Whether connecting to this address is allowed. A private one only if it is listed itself. */
static bool address_allowed(struct conn *conn, const struct sockaddr *address)
{
	char *text = conn->address; /* of the last one checked, whatever the result */
	if (address->sa_family == AF_INET)
		inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, text, sizeof conn->address);
	else
		inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)address)->sin6_addr, text, sizeof conn->address);
	return !cell__address_is_private(address) || rules_allow(conn->egress, text, conn->wish.port);
}

/* The name is known and its address is fine. */
static void connect_to(struct conn *conn, const struct sockaddr *address)
{
	struct cell_error err = { 0 };
	if (tell(conn, NULL, false, false, &err) < 0) {
		refuse(conn, "the connection cannot be recorded", 503, 1);
		return;
	}
	conn->let_through = true;
	if (uv_tcp_init(cell__loop_uv(conn->egress->loop), &conn->upstream) < 0) {
		refuse(conn, "out of memory", 502, 1);
		return;
	}
	conn->upstream.data = conn;
	conn->has_upstream = true;
	conn->handles++;
	conn->connect.data = conn;
	if (uv_tcp_connect(&conn->connect, &conn->upstream, address, handle_connected) < 0)
		refuse(conn, "the host cannot be reached", 502, 3);
}

static void handle_resolved(uv_getaddrinfo_t *resolver, int status, struct addrinfo *list)
{
	struct conn *conn = resolver->data;
	conn->resolving = false;
	if (conn->closing) {
		uv_freeaddrinfo(list);
		if (conn->handles == 0) {
			/* the handles were closed first: we report the end */
			conn->handles = 1;
			handle_conn_closed((uv_handle_t *)&conn->client);
		}
		return;
	}
	const struct addrinfo *at = status == 0 ? list : NULL;
	while (at && !address_allowed(conn, at->ai_addr))
		at = at->ai_next;
	if (status < 0)
		refuse(conn, "unknown host name", 502, 4);
	else if (!at)
		refuse(conn, "refused: the address is in a private network", 403, 2);
	else
		connect_to(conn, at->ai_addr);
	uv_freeaddrinfo(list);
}

static void begin_connecting(struct conn *conn)
{
	char port[8];
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC };
	conn->asked = true;
	uv_read_stop((uv_stream_t *)&conn->client);
	if (!rules_allow(conn->egress, conn->wish.host, conn->wish.port)) {
		refuse(conn, "refused by the policy", 403, 2);
		return;
	}
	snprintf(port, sizeof port, "%u", conn->wish.port);
	conn->resolver.data = conn;
	if (uv_getaddrinfo(cell__loop_uv(conn->egress->loop), &conn->resolver, handle_resolved, conn->wish.host, port, &hints) < 0)
		refuse(conn, "the host name cannot be resolved", 502, 4);
	else
		conn->resolving = true;
}

/* ---- the request ---- */

static void request_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
	struct conn *conn = handle->data;
	(void)size;
	*buf = uv_buf_init(conn->request + conn->size, (unsigned)(sizeof conn->request - conn->size));
}

static void greet(struct conn *conn)
{
	static const uint8_t fine[2] = { 5, 0 };
	size_t need = conn->size >= 2 ? 2 + (size_t)(uint8_t)conn->request[1] : 2;
	if (conn->size < need)
		return;
	conn->greeted = true;
	memmove(conn->request, conn->request + need, conn->size - need);
	conn->size -= need;
	uv_buf_t buf = uv_buf_init((char *)fine, sizeof fine);
	if (uv_try_write((uv_stream_t *)&conn->client, &buf, 1) != (int)sizeof fine)
		close_conn(conn);
}

static void handle_request(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	struct conn *conn = stream->data;
	(void)buf;
	if (n == 0)
		return;
	if (n < 0) {
		close_conn(conn);
		return;
	}
	conn->size += (size_t)n;
	conn->socks |= !conn->greeted && conn->request[0] == 5;
	if (conn->socks && !conn->greeted) {
		greet(conn);
		if (conn->closing || !conn->greeted)
			return;
	}
	int rc = conn->socks ? cell__egress_parse_socks((const uint8_t *)conn->request, conn->size, &conn->wish)
			     : cell__egress_parse_http(conn->request, conn->size, &conn->wish);
	if (rc > 0)
		begin_connecting(conn);
	else if (rc < 0 || conn->size == sizeof conn->request)
		refuse(conn, "not a proxy request", 400, 7);
}

static void handle_slow(uv_timer_t *timer)
{
	struct conn *conn = timer->data;
	conn->failure = "timed out";
	close_conn(conn);
}

static void handle_connection(uv_stream_t *server, int status);

static void handle_pace(uv_timer_t *timer)
{
	struct cell__egress *egress = timer->data;
	handle_connection((uv_stream_t *)&egress->server, 0);
}

/*
 * Every connection leaves lines in the logs. One that comes too soon is not accepted yet: libuv accepts no other before it, and the system
 * makes the code wait.
 */
static bool is_too_soon(struct cell__egress *egress)
{
	const int64_t price = SECOND_US / CELL_EGRESS_RATE, now_us = cell__now_us();
	egress->credit_us += now_us - egress->credit_at_us;
	egress->credit_at_us = now_us;
	if (egress->credit_us > CELL_EGRESS_BURST * price)
		egress->credit_us = CELL_EGRESS_BURST * price;
	if (egress->credit_us < price) {
		uv_timer_start(&egress->pace, handle_pace, (uint64_t)(price - egress->credit_us) / 1000 + 1, 0);
		return true;
	}
	egress->credit_us -= price;
	return false;
}

static void handle_connection(uv_stream_t *server, int status)
{
	struct cell__egress *egress = server->data;
	if (status == 0 && is_too_soon(egress))
		return;
	struct conn *conn = status < 0 ? NULL : cell__alloc(1, sizeof *conn);
	if (!conn)
		return;
	conn->egress = egress;
	conn->began_us = cell__now_us();
	uv_tcp_init(cell__loop_uv(egress->loop), &conn->client);
	uv_timer_init(cell__loop_uv(egress->loop), &conn->timer);
	conn->client.data = conn->timer.data = conn;
	conn->handles = 2;
	conn->next = egress->conns;
	egress->conns = conn;
	egress->count++;
	if (egress->count > CELL_EGRESS_CONNECTIONS)
		conn->failure = "too many connections at once";
	if (uv_accept(server, (uv_stream_t *)&conn->client) < 0 || egress->count > CELL_EGRESS_CONNECTIONS ||
	    uv_read_start((uv_stream_t *)&conn->client, request_alloc, handle_request) < 0) {
		close_conn(conn);
		return;
	}
	uv_timer_start(&conn->timer, handle_slow, HANDSHAKE_MS, 0);
}

/* ---- life ---- */

static int copy_hosts(struct cell__egress *egress, const struct cell__egress_options *options)
{
	size_t n = options->hosts->count, more = 0;
	while (options->more_hosts && options->more_hosts[more])
		more++;
	egress->hosts = cell__alloc(n + more + 1, sizeof *egress->hosts);
	for (size_t i = 0; egress->hosts && i < n + more; i++)
		if (!(egress->hosts[i] = cell__strdup(i < n ? options->hosts->items[i] : options->more_hosts[i - n])))
			return -1;
	return egress->hosts ? 0 : -1;
}

static void handle_own_closed(uv_handle_t *handle)
{
	struct cell__egress *egress = handle->data;
	egress->handles--;
	maybe_free(egress);
}

int cell__egress_create(const struct cell__egress_options *options, struct cell__egress **ret_egress, struct cell_error *err)
{
	struct cell__egress *egress = cell__alloc(1, sizeof *egress);
	if (!egress) {
		close(options->listen_fd);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a proxy");
	}
	*egress = (struct cell__egress){ .loop = options->loop, .tell = options->tell, .arg = options->arg };
	uv_tcp_init(cell__loop_uv(egress->loop), &egress->server);
	uv_timer_init(cell__loop_uv(egress->loop), &egress->pace);
	egress->server.data = egress->pace.data = egress;
	egress->handles = 2;
	egress->credit_us = CELL_EGRESS_BURST * (SECOND_US / CELL_EGRESS_RATE);
	egress->credit_at_us = cell__now_us();
	int rc = uv_tcp_open(&egress->server, options->listen_fd);
	if (rc < 0)
		close(options->listen_fd);
	else
		rc = uv_listen((uv_stream_t *)&egress->server, 64, handle_connection);
	if (rc < 0 || copy_hosts(egress, options) < 0) {
		cell__egress_close(egress);
		return cell_fail(err, CELL_E_SANDBOX, rc < 0 ? -rc : 0, "listen for the sandbox's connections");
	}
	*ret_egress = egress;
	return 0;
}

void cell__egress_close(struct cell__egress *egress)
{
	if (!egress)
		return;
	egress->closing = true;
	for (struct conn *conn = egress->conns; conn; conn = conn->next)
		close_conn(conn);
	uv_close((uv_handle_t *)&egress->server, handle_own_closed);
	uv_close((uv_handle_t *)&egress->pace, handle_own_closed);
}
