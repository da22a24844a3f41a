#define _GNU_SOURCE
#include "storage/redis_conn.h"

#include <errno.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/certificates.h"

#define READ_BYTES (64 * 1024)

/* It will not be otherwise by trying again. */
static int __attribute__((format(printf, 2, 3))) refused(struct cell_error *err, const char *fmt, ...)
{
	char text[200];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	cell_fail(err, CELL_E_IO, 0, "%s", text);
	if (err)
		err->sys = EACCES;
	return -1;
}

/* ---- batches and replies ---- */

void cell__redis_batch_finish(struct cell__redis_batch *batch)
{
	cell__buf_finish(&batch->text);
}

void cell__redis_add(struct cell__redis_batch *batch, const char *fmt, ...)
{
	char *text = NULL;
	va_list args;
	va_start(args, fmt);
	int size = redisvFormatCommand(&text, fmt, args);
	va_end(args);
	if (size < 0 || cell__buf_add(&batch->text, text, (size_t)size) < 0)
		batch->failed = true;
	if (size >= 0)
		redisFreeCommand(text);
	batch->n++;
}

void cell__redis_add_words(struct cell__redis_batch *batch, const char *const *words, const char *bytes, size_t size)
{
	size_t n = 0;
	while (words[n])
		n++;
	batch->failed = batch->failed || cell__buf_printf(&batch->text, "*%zu\r\n", n) < 0;
	for (size_t i = 0; i < n; i++) {
		size_t length = bytes && words[i] == bytes ? size : strlen(words[i]);
		batch->failed = batch->failed || cell__buf_printf(&batch->text, "$%zu\r\n", length) < 0 ||
				cell__buf_add(&batch->text, words[i], length) < 0 || cell__buf_add_str(&batch->text, "\r\n") < 0;
	}
	batch->n++;
}

void cell__redis_replies_finish(struct cell__redis_replies *replies)
{
	for (size_t i = 0; i < replies->n; i++)
		if (replies->list[i])
			freeReplyObject(replies->list[i]);
	free(replies->list);
	*replies = (struct cell__redis_replies)CELL__REDIS_REPLIES_INIT;
}

/* ---- bytes ---- */

static int wait_fd(int fd, short events, int timeout_ms)
{
	struct pollfd poll_fd = { .fd = fd, .events = events };
	int n;
	do
		n = poll(&poll_fd, 1, timeout_ms);
	while (n < 0 && errno == EINTR);
	if (n == 0)
		errno = ETIMEDOUT;
	return n > 0 ? 0 : -1;
}

static int send_all(int fd, const char *bytes, size_t size, int timeout_ms)
{
	while (size > 0) {
		ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			if (wait_fd(fd, POLLOUT, timeout_ms) < 0)
				return -1;
			continue;
		}
		if (n < 0)
			return -1;
		bytes += n;
		size -= (size_t)n;
	}
	return 0;
}

/* At least one byte; -1 with errno, ECONNRESET at the end. */
static ssize_t receive(int fd, char *buf, size_t size, int timeout_ms)
{
	for (;;) {
		ssize_t n = recv(fd, buf, size, MSG_DONTWAIT);
		if (n > 0)
			return n;
		if (n == 0) {
			errno = ECONNRESET;
			return -1;
		}
		if (errno == EAGAIN && wait_fd(fd, POLLIN, timeout_ms) < 0)
			return -1;
		if (errno != EAGAIN && errno != EINTR)
			return -1;
	}
}

/* ---- TLS: OpenSSL between two pieces of memory, so that the socket stays ours ---- */

static int flush_tls(struct cell__redis_conn *conn, int timeout_ms)
{
	char *bytes;
	long size = BIO_get_mem_data(SSL_get_wbio(conn->ssl), &bytes);
	if (size > 0 && send_all(conn->fd, bytes, (size_t)size, timeout_ms) < 0)
		return -1;
	(void)BIO_reset(SSL_get_wbio(conn->ssl));
	return 0;
}

static int fill_tls(struct cell__redis_conn *conn, int timeout_ms)
{
	char buf[READ_BYTES];
	ssize_t n = receive(conn->fd, buf, sizeof buf, timeout_ms);
	if (n < 0)
		return -1;
	if (BIO_write(SSL_get_rbio(conn->ssl), buf, (int)n) != n) {
		errno = ENOMEM;
		return -1;
	}
	return 0;
}

/* Handles the result of an SSL_ function: 0 to call it again, -1 with errno. */
static int step_tls(struct cell__redis_conn *conn, int rc, int timeout_ms)
{
	int what = SSL_get_error(conn->ssl, rc);
	if (flush_tls(conn, timeout_ms) < 0)
		return -1;
	if (what == SSL_ERROR_WANT_READ)
		return fill_tls(conn, timeout_ms);
	if (what == SSL_ERROR_WANT_WRITE)
		return 0;
	errno = what == SSL_ERROR_ZERO_RETURN ? ECONNRESET : EPROTO;
	return -1;
}

static int put(struct cell__redis_conn *conn, const char *bytes, size_t size, int timeout_ms)
{
	if (!conn->ssl)
		return send_all(conn->fd, bytes, size, timeout_ms);
	while (size > 0) {
		int rc = SSL_write(conn->ssl, bytes, size > READ_BYTES ? READ_BYTES : (int)size);
		if (rc <= 0 && step_tls(conn, rc, timeout_ms) < 0)
			return -1;
		if (rc > 0) {
			bytes += rc;
			size -= (size_t)rc;
		}
		if (flush_tls(conn, timeout_ms) < 0)
			return -1;
	}
	return 0;
}

static ssize_t take(struct cell__redis_conn *conn, char *buf, size_t size, int timeout_ms)
{
	if (!conn->ssl)
		return receive(conn->fd, buf, size, timeout_ms);
	for (;;) {
		int rc = SSL_read(conn->ssl, buf, (int)size);
		if (rc > 0)
			return rc;
		if (step_tls(conn, rc, timeout_ms) < 0)
			return -1;
	}
}

int cell__redis_tls_create(const struct cell__redis_url *url, SSL_CTX **ret_tls, struct cell_error *err)
{
	SSL_CTX *tls = SSL_CTX_new(TLS_client_method());
	if (!tls)
		return cell_fail(err, CELL_E_NOMEM, 0, "start TLS with Redis");
	SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
	SSL_CTX_set_verify(tls, url->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
	const char *ca = url->ca_file ? url->ca_file : cell__system_certificates();
	int ok = ca ? SSL_CTX_load_verify_locations(tls, ca, NULL) : SSL_CTX_set_default_verify_paths(tls);
	if (ok != 1 && !url->insecure) {
		SSL_CTX_free(tls);
		ERR_clear_error();
		return refused(err, "the certificates in %.160s cannot be read (ssl_ca_certs of the Redis URL)",
			       ca ? ca : "the system's store");
	}
	*ret_tls = tls;
	return 0;
}

static bool is_address(const char *host)
{
	unsigned char buf[16];
	return inet_pton(AF_INET, host, buf) == 1 || inet_pton(AF_INET6, host, buf) == 1;
}

static int begin_tls(struct cell__redis_conn *conn, const struct cell__redis_url *url, SSL_CTX *tls, struct cell_error *err)
{
	conn->ssl = SSL_new(tls);
	BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
	if (!conn->ssl || !in || !out) {
		BIO_free(in);
		BIO_free(out);
		return cell_fail(err, CELL_E_NOMEM, 0, "start TLS with Redis");
	}
	BIO_set_mem_eof_return(in, -1);
	BIO_set_mem_eof_return(out, -1);
	SSL_set_bio(conn->ssl, in, out);
	SSL_set_connect_state(conn->ssl);
	X509_VERIFY_PARAM *param = SSL_get0_param(conn->ssl);
	int ok = is_address(url->host)
			 ? X509_VERIFY_PARAM_set1_ip_asc(param, url->host)
			 : X509_VERIFY_PARAM_set1_host(param, url->host, 0) == 1 && SSL_set_tlsext_host_name(conn->ssl, url->host) == 1;
	int rc = -1;
	while (ok == 1 && (rc = SSL_do_handshake(conn->ssl)) != 1)
		if (step_tls(conn, rc, CELL__REDIS_CONNECT_MS) < 0)
			break;
	long why = SSL_get_verify_result(conn->ssl);
	int saved = errno;
	ERR_clear_error();
	if (ok == 1 && rc == 1 && flush_tls(conn, CELL__REDIS_CONNECT_MS) == 0)
		return 0;
	if (why != X509_V_OK && !url->insecure)
		return refused(err, "the certificate of Redis at %.120s is not trusted: %.60s", url->shown,
			       X509_verify_cert_error_string(why));
	return cell_fail(err, CELL_E_IO, saved, "cannot start TLS with Redis at %.120s; does it use TLS on this port?", url->shown);
}

/* ---- connecting ---- */

static int connect_to(const struct sockaddr *address, socklen_t size)
{
	CELL_AUTO_FD int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	if (connect(fd, address, size) < 0) {
		int error = 0;
		socklen_t error_size = sizeof error;
		/* A Unix socket whose queue is full gives EAGAIN, and is not connected. */
		if (errno != EINPROGRESS || wait_fd(fd, POLLOUT, CELL__REDIS_CONNECT_MS) < 0)
			return -1;
		if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size) < 0 || error != 0) {
			errno = error ? error : EIO;
			return -1;
		}
	}
	const int yes = 1;
	if (address->sa_family != AF_UNIX)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
	return cell__take_fd(&fd);
}

static int connect_tcp(const struct cell__redis_url *url, struct cell_error *err)
{
	char port[8];
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV }, *list = NULL;
	snprintf(port, sizeof port, "%d", url->port);
	int rc = getaddrinfo(url->host, port, &hints, &list);
	if (rc != 0) {
		cell_fail(err, CELL_E_IO, 0, "the host of Redis at %.120s is not found: %.80s", url->shown, gai_strerror(rc));
		return -1;
	}
	int fd = -1;
	for (struct addrinfo *at = list; at && fd < 0; at = at->ai_next)
		fd = connect_to(at->ai_addr, at->ai_addrlen);
	int saved = errno;
	freeaddrinfo(list);
	if (fd < 0)
		cell_fail(err, CELL_E_IO, saved, "Redis at %.120s cannot be reached; is it running there?", url->shown);
	return fd;
}

static int connect_unix(const struct cell__redis_url *url, struct cell_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	strcpy(address.sun_path, url->path); /* it fits, says redis_url.c */
	int fd = connect_to((struct sockaddr *)&address, sizeof address);
	if (fd < 0)
		cell_fail(err, CELL_E_IO, errno, "Redis at %.120s cannot be reached; is it running there?", url->shown);
	return fd;
}

/* A connection that another process made: see executors/container/dialer.h. On failure it sends the reason. */
static int connect_via(const struct cell__redis_url *url, struct cell_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char words[128] = "";
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int))];
	struct iovec text = { words, sizeof words - 1 };
	struct msghdr message = { .msg_iov = &text, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room };
	strcpy(address.sun_path, url->via); /* it fits, says redis_url.c */
	CELL_AUTO_FD int fd = connect_to((struct sockaddr *)&address, sizeof address);
	ssize_t n = fd < 0 || wait_fd(fd, POLLIN, CELL__REDIS_CONNECT_MS) < 0 ? -1 : recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	struct cmsghdr *head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	int found = -1;
	if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof found))
		memcpy(&found, CMSG_DATA(head), sizeof found);
	if (found < 0)
		cell_fail(err, CELL_E_IO, n < 0 ? errno : 0, "Redis at %.120s cannot be reached%s%s", url->shown, *words ? ": " : "",
			  words);
	return found;
}

static bool begins(const redisReply *reply, const char *word)
{
	size_t size = strlen(word);
	return reply->type == REDIS_REPLY_ERROR && reply->len >= size && strncmp(reply->str, word, size) == 0;
}

/* The server's answer to AUTH is not shown: a server that does not know the command repeats its arguments. */
static int check_login(const struct cell__redis_url *url, const struct cell__redis_replies *replies, struct cell_error *err)
{
	size_t at = 0;
	if (url->password && replies->list[at++]->type == REDIS_REPLY_ERROR)
		return begins(replies->list[0], "LOADING")
			       ? cell_fail(err, CELL_E_IO, EAGAIN, "Redis at %.120s is still loading its data", url->shown)
			       : refused(err, "Redis at %.120s refuses the user or password of the URL", url->shown);
	if (url->db != 0 && replies->list[at]->type == REDIS_REPLY_ERROR) {
		if (begins(replies->list[at], "NOAUTH") || begins(replies->list[at], "LOADING"))
			return cell__redis_fail(err, url->shown, replies->list[at]);
		return refused(err, "Redis at %.120s does not allow the use of database %d", url->shown, url->db);
	}
	return 0;
}

static int log_in(struct cell__redis_conn *conn, const struct cell__redis_url *url, struct cell_error *err)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	bool sent;
	if (url->password && url->user)
		cell__redis_add(&batch, "AUTH %s %s", url->user, url->password);
	else if (url->password)
		cell__redis_add(&batch, "AUTH %s", url->password);
	if (url->db != 0)
		cell__redis_add(&batch, "SELECT %d", url->db);
	int rc = batch.n > 0 ? cell__redis_conn_run(conn, &batch, &replies, &sent, err) : 0;
	if (rc == 0 && batch.n > 0)
		rc = check_login(url, &replies, err);
	else if (rc < 0)
		cell_fail_wrap(err, "Redis at %.120s", url->shown);
	if (batch.text.data)
		explicit_bzero(batch.text.data, batch.text.size);
	return rc;
}

#if HIREDIS_MAJOR >= 1
typedef size_t array_size;
#else
typedef int array_size;
#endif

/* The length of an array precedes its elements: it is not trusted for allocating memory. */
static void *create_array(const redisReadTask *task, array_size elements)
{
	struct cell__redis_conn *conn = task->privdata;
	return (size_t)elements > CELL__REDIS_REPLY_ELEMENTS ? NULL : conn->create_array(task, elements);
}

int cell__redis_conn_open(const struct cell__redis_url *url, SSL_CTX *tls, struct cell__redis_conn **ret_conn, struct cell_error *err)
{
	struct cell__redis_conn *conn = cell__alloc(1, sizeof *conn);
	if (!conn)
		return cell_fail(err, CELL_E_NOMEM, 0, "connect to Redis");
	conn->fd = -1;
	conn->reader = redisReaderCreate();
	int rc = conn->reader ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "connect to Redis");
	if (rc == 0) {
		conn->functions = *conn->reader->fn;
		conn->create_array = conn->functions.createArray;
		conn->functions.createArray = create_array;
		conn->reader->fn = &conn->functions;
		conn->reader->privdata = conn;
		conn->fd = url->via ? connect_via(url, err) : url->host ? connect_tcp(url, err) : connect_unix(url, err);
		rc = conn->fd < 0 ? -1 : 0;
	}
	if (rc == 0 && tls)
		rc = begin_tls(conn, url, tls, err);
	if (rc == 0)
		rc = log_in(conn, url, err);
	if (rc < 0) {
		cell__redis_conn_close(conn);
		return -1;
	}
	*ret_conn = conn;
	return 0;
}

void cell__redis_conn_close(struct cell__redis_conn *conn)
{
	if (!conn)
		return;
	SSL_free(conn->ssl);
	cell__close_fd(&conn->fd);
	if (conn->reader)
		redisReaderFree(conn->reader);
	free(conn);
}

bool cell__redis_conn_quiet(const struct cell__redis_conn *conn)
{
	struct pollfd poll_fd = { .fd = conn->fd, .events = POLLIN };
	return poll(&poll_fd, 1, 0) == 0;
}

/* ---- commands ---- */

/* The opener of a new connection adds "Redis at ..." to the message; here the connection's owner does. */
static int read_reply(struct cell__redis_conn *conn, size_t *fed, redisReply **ret_reply, struct cell_error *err)
{
	char buf[READ_BYTES];
	for (;;) {
		void *reply = NULL;
		if (redisReaderGetReply(conn->reader, &reply) != REDIS_OK)
			return cell_fail(err, CELL_E_PROTOCOL, 0, "invalid answer from Redis: %.80s", conn->reader->errstr);
		if (reply) {
			*ret_reply = reply;
			return 0;
		}
		ssize_t n = take(conn, buf, sizeof buf, CELL__REDIS_REPLY_MS);
		if (n < 0)
			return cell_fail(err, CELL_E_IO, errno, "no answer was received");
		*fed += (size_t)n;
		if (*fed > CELL__REDIS_REPLY_BYTES)
			return cell_fail(err, CELL_E_LIMIT, 0, "the answer is larger than %zu bytes", CELL__REDIS_REPLY_BYTES);
		if (redisReaderFeed(conn->reader, buf, (size_t)n) != REDIS_OK)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an answer");
	}
}

int cell__redis_conn_run(struct cell__redis_conn *conn, const struct cell__redis_batch *batch, struct cell__redis_replies *ret_replies,
			 bool *ret_sent, struct cell_error *err)
{
	struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	size_t fed = 0;
	*ret_sent = false;
	if (!batch->failed)
		replies.list = cell__alloc(batch->n, sizeof *replies.list);
	if (!replies.list)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a command");
	*ret_sent = true;
	if (put(conn, batch->text.data, batch->text.size, CELL__REDIS_REPLY_MS) < 0) {
		free(replies.list);
		return cell_fail(err, CELL_E_IO, errno, "the connection broke");
	}
	for (; replies.n < batch->n; replies.n++)
		if (read_reply(conn, &fed, &replies.list[replies.n], err) < 0) {
			cell__redis_replies_finish(&replies);
			return -1;
		}
	*ret_replies = replies;
	return 0;
}

#ifdef __clang_analyzer__
#undef cell__redis_fail
#endif

int cell__redis_fail(struct cell_error *err, const char *shown, const redisReply *reply)
{
	static const struct {
		const char *word, *advice;
		int sys;
	} known[] = {
		{ "NOAUTH", "requires a password; give it in the URL: redis://user:password@host", EACCES },
		{ "NOPERM", "does not allow this user to do it; see docs/storage.md for the required permissions", EACCES },
		{ "LOADING", "is still loading its data; try again soon", EAGAIN },
		{ "READONLY", "is a replica that cannot be written to; give the primary's address", EROFS },
		{ "OOM", "has reached its maxmemory; nothing was written", ENOSPC },
		{ "MISCONF", "cannot write to its disk and accepts no writes until it can", EROFS },
		{ "WRONGTYPE", "has a value of another type under a key of ours; does another program use the same prefix?", EUCLEAN },
		{ "EXECABORT", "did not execute a transaction", 0 },
	};
	if (reply->type != REDIS_REPLY_ERROR)
		return cell_fail(err, CELL_E_PROTOCOL, 0, "Redis at %.100s sent an unexpected answer", shown);
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (begins(reply, known[i].word)) {
			cell_fail(err, CELL_E_IO, 0, "Redis at %.100s %s", shown, known[i].advice);
			if (err)
				err->sys = known[i].sys;
			return -1;
		}
	char words[100];
	size_t n = 0;
	for (const char *at = reply->str; *at && n < sizeof words - 1; at++)
		words[n++] = (char)(*at >= 0x20 && *at < 0x7f ? *at : '?');
	words[n] = '\0';
	return cell_fail(err, CELL_E_IO, 0, "Redis at %.100s: %s", shown, words);
}
