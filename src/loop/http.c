/* See http.h.  One uv_poll_t for each of libcurl's sockets, one timer for all of its times. */
#define _GNU_SOURCE
#include "loop/http.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "base/address.h"
#include "base/certificates.h"
#include "base/libraries.h"

struct cell__http {
	CURLM *multi;
	struct cell__loop *loop;
	uv_timer_t timer;
	int handles;
	void (*closed)(void *arg);
	void *closed_arg;
};

struct watch {
	uv_poll_t poll;
	struct cell__http *http;
	curl_socket_t fd;
};

/* ---- SIGPIPE ---- */

/*
 * TLS writes can raise SIGPIPE, and the thread that runs the loop may be one of the host's, which need not ignore it. Around libcurl
 * SIGPIPE is blocked, and consumed if it was raised.
 */
struct pipe_guard {
	sigset_t old;
	bool pending;
};

static void guard_pipe(struct pipe_guard *guard)
{
	sigset_t set;
	sigpending(&set);
	guard->pending = sigismember(&set, SIGPIPE);
	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &set, &guard->old);
}

static void unguard_pipe(const struct pipe_guard *guard)
{
	sigset_t set;
	sigpending(&set);
	if (!guard->pending && sigismember(&set, SIGPIPE)) {
		struct timespec now = { 0 };
		sigemptyset(&set);
		sigaddset(&set, SIGPIPE);
		sigtimedwait(&set, NULL, &now);
	}
	pthread_sigmask(SIG_SETMASK, &guard->old, NULL);
}

/* ---- libcurl on the loop ---- */

static void take_finished(struct cell__http *http)
{
	CURLMsg *msg;
	int left;
	while ((msg = curl_multi_info_read(http->multi, &left))) {
		if (msg->msg != CURLMSG_DONE)
			continue;
		CURLcode code = msg->data.result;
		struct cell__http_transfer *transfer = NULL;
		curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &transfer);
		curl_multi_remove_handle(http->multi, msg->easy_handle);
		if (transfer->refused) {
			code = CURLE_GOT_NOTHING;
			snprintf(
				transfer->message, sizeof transfer->message,
				"the connection ended before the answer; the request is not sent again, because it may have been carried out");
		}
		transfer->done(transfer, code);
	}
}

static void act(struct cell__http *http, curl_socket_t fd, int flags)
{
	struct pipe_guard guard;
	int running;
	guard_pipe(&guard);
	curl_multi_socket_action(http->multi, fd, flags, &running);
	take_finished(http);
	unguard_pipe(&guard);
}

static void handle_timer(uv_timer_t *timer)
{
	act(timer->data, CURL_SOCKET_TIMEOUT, 0);
}

static void handle_poll(uv_poll_t *poll, int status, int events)
{
	struct watch *watch = poll->data;
	int flags = (events & UV_READABLE ? CURL_CSELECT_IN : 0) | (events & UV_WRITABLE ? CURL_CSELECT_OUT : 0);
	act(watch->http, watch->fd, status < 0 ? CURL_CSELECT_ERR : flags);
}

static void one_handle_less(struct cell__http *http)
{
	if (--http->handles > 0 || !http->closed)
		return;
	void (*closed)(void *) = http->closed;
	void *arg = http->closed_arg;
	free(http);
	closed(arg);
}

static void handle_watch_closed(uv_handle_t *handle)
{
	struct watch *watch = handle->data;
	struct cell__http *http = watch->http;
	free(watch);
	one_handle_less(http);
}

static void handle_timer_closed(uv_handle_t *handle)
{
	one_handle_less(handle->data);
}

static struct watch *make_watch(struct cell__http *http, curl_socket_t fd)
{
	struct watch *watch = cell__alloc(1, sizeof *watch);
	if (!watch)
		return NULL;
	watch->http = http;
	watch->fd = fd;
	watch->poll.data = watch;
	if (uv_poll_init_socket(cell__loop_uv(http->loop), &watch->poll, fd) < 0) {
		free(watch);
		return NULL;
	}
	http->handles++;
	curl_multi_assign(http->multi, fd, watch);
	return watch;
}

static int socket_wanted(CURL *easy, curl_socket_t fd, int what, void *arg, void *assigned)
{
	(void)easy;
	struct cell__http *http = arg;
	struct watch *watch = assigned;
	if (what == CURL_POLL_REMOVE) {
		if (watch) {
			uv_poll_stop(&watch->poll);
			uv_close((uv_handle_t *)&watch->poll, handle_watch_closed);
			curl_multi_assign(http->multi, fd, NULL);
		}
		return 0;
	}
	if (!watch && !(watch = make_watch(http, fd)))
		return -1;
	int events = (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);
	return uv_poll_start(&watch->poll, events, handle_poll) < 0 ? -1 : 0;
}

static int time_wanted(CURLM *multi, long timeout_ms, void *arg)
{
	(void)multi;
	struct cell__http *http = arg;
	if (timeout_ms < 0)
		return uv_timer_stop(&http->timer);
	return uv_timer_start(&http->timer, handle_timer, (uint64_t)timeout_ms, 0);
}

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;

static void init_curl(void)
{
	curl_global_init(CURL_GLOBAL_DEFAULT);
}

int cell__http_create(struct cell__loop *loop, long max_connections, struct cell__http **ret_http, struct cell_error *err)
{
	if (cell__library_load(CELL__LIBRARY_CURL, err) < 0)
		return -1;
	pthread_once(&curl_once, init_curl);
	struct cell__http *http = cell__alloc(1, sizeof *http);
	if (!http || !(http->multi = curl_multi_init())) {
		free(http);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for HTTP");
	}
	http->loop = loop;
	http->timer.data = http;
	http->handles = 1;
	uv_timer_init(cell__loop_uv(loop), &http->timer);
	curl_multi_setopt(http->multi, CURLMOPT_SOCKETFUNCTION, socket_wanted);
	curl_multi_setopt(http->multi, CURLMOPT_SOCKETDATA, http);
	curl_multi_setopt(http->multi, CURLMOPT_TIMERFUNCTION, time_wanted);
	curl_multi_setopt(http->multi, CURLMOPT_TIMERDATA, http);
	curl_multi_setopt(http->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, max_connections);
	*ret_http = http;
	return 0;
}

void cell__http_close(struct cell__http *http, void (*closed)(void *arg), void *arg)
{
	struct pipe_guard guard;
	http->closed = closed;
	http->closed_arg = arg;
	guard_pipe(&guard);
	curl_multi_cleanup(http->multi);
	unguard_pipe(&guard);
	uv_close((uv_handle_t *)&http->timer, handle_timer_closed);
}

/* ---- transfers ---- */

/* The list begins with the header that stops libcurl from waiting for "100 Continue". */
static int begin_headers(struct cell__http_transfer *transfer)
{
	if (!transfer->headers)
		transfer->headers = curl_slist_append(NULL, "Expect:");
	return transfer->headers ? 0 : -1;
}

int cell__http_add_header(struct cell__http_transfer *transfer, const char *line)
{
	return begin_headers(transfer) == 0 && curl_slist_append(transfer->headers, line) ? 0 : -1;
}

void cell__http_clear_headers(struct cell__http_transfer *transfer)
{
	for (struct curl_slist *at = transfer->headers; at; at = at->next)
		explicit_bzero(at->data, strlen(at->data));
	curl_slist_free_all(cell__take_ptr(transfer->headers));
}

static size_t body_came(char *bytes, size_t one, size_t size, void *arg)
{
	struct cell__http_transfer *transfer = arg;
	(void)one;
	return transfer->body(transfer, bytes, size);
}

static size_t header_came(char *bytes, size_t one, size_t size, void *arg)
{
	struct cell__http_transfer *transfer = arg;
	(void)one;
	if (transfer->header)
		transfer->header(transfer, bytes, size);
	return size;
}

/* Right before a request is sent. */
static int may_send(void *arg, char *address, char *own_address, int port, int own_port)
{
	struct cell__http_transfer *transfer = arg;
	(void)address;
	(void)own_address;
	(void)port;
	(void)own_port;
	transfer->refused = transfer->once && transfer->sent;
	transfer->sent = true;
	return transfer->refused ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

static void set_common(struct cell__http_transfer *transfer)
{
	CURL *easy = transfer->easy;
	char agent[64];
	snprintf(agent, sizeof agent, "workcell/%s", cell_version());
	curl_easy_setopt(easy, CURLOPT_PRIVATE, transfer);
	curl_easy_setopt(easy, CURLOPT_USERAGENT, agent);
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(easy, CURLOPT_PROXY, "");
	curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer->message);
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer->headers);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, body_came);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer);
	curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, header_came);
	curl_easy_setopt(easy, CURLOPT_HEADERDATA, transfer);
	curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, may_send);
	curl_easy_setopt(easy, CURLOPT_PREREQDATA, transfer);
#if LIBCURL_VERSION_NUM >= 0x075700 /* 7.87 */
	/* A name lookup in progress when a request ends must not delay the loop; its thread ends by itself. */
	curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
#endif
}

static void set_blob(CURL *easy, CURLoption option, const char *text)
{
	struct curl_blob blob = { .data = (void *)(uintptr_t)text, .len = text ? strlen(text) : 0, .flags = CURL_BLOB_COPY };
	if (text)
		curl_easy_setopt(easy, option, &blob);
}

static void set_certificates(CURL *easy, const struct cell__http_request *request)
{
	const char *ca = request->ca ? request->ca : cell__system_certificates();
	if (request->ca_pem)
		curl_easy_setopt(easy, CURLOPT_CAINFO, NULL);
	else if (ca)
		curl_easy_setopt(easy, CURLOPT_CAINFO, ca);
	/* Debian's libcurl also has a folder of authorities, which would be trusted beside those that were given. */
	if (request->ca || request->ca_pem)
		curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
	set_blob(easy, CURLOPT_CAINFO_BLOB, request->ca_pem);
	set_blob(easy, CURLOPT_SSLCERT_BLOB, request->cert_pem);
	set_blob(easy, CURLOPT_SSLKEY_BLOB, request->key_pem);
}

static void set_request(CURL *easy, const struct cell__http_request *request)
{
	curl_easy_setopt(easy, CURLOPT_URL, request->url);
	curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, (long)request->path_as_is);
	if (request->socket)
		curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, request->socket);
	set_certificates(easy, request);
	if (request->body) {
		curl_easy_setopt(easy, CURLOPT_POST, 1L);
		curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->body);
		curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_size);
	}
	if (strcmp(request->method, "HEAD") == 0)
		curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
	curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method);
	curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)request->connect_ms);
	curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)request->timeout_ms);
	if (request->silence_s > 0) {
		curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
		curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)request->silence_s);
	}
}

int cell__http_start(struct cell__http *http, struct cell__http_transfer *transfer, const struct cell__http_request *request)
{
	if (!transfer->easy && !(transfer->easy = curl_easy_init()))
		return -1;
	if (begin_headers(transfer) < 0)
		return -1;
	curl_easy_reset(transfer->easy);
	transfer->message[0] = '\0';
	transfer->once = !request->repeats && (strcmp(request->method, "POST") == 0 || strcmp(request->method, "PATCH") == 0);
	transfer->sent = transfer->refused = false;
	set_common(transfer);
	set_request(transfer->easy, request);
	return curl_multi_add_handle(http->multi, transfer->easy) == CURLM_OK ? 0 : -1;
}

void cell__http_cancel(struct cell__http *http, struct cell__http_transfer *transfer)
{
	struct pipe_guard guard;
	guard_pipe(&guard);
	curl_multi_remove_handle(http->multi, transfer->easy);
	unguard_pipe(&guard);
}

void cell__http_finish(struct cell__http_transfer *transfer)
{
	if (transfer->easy)
		curl_easy_cleanup(cell__take_ptr(transfer->easy));
	cell__http_clear_headers(transfer);
}

long cell__http_status(const struct cell__http_transfer *transfer)
{
	long status = 0;
	if (transfer->easy)
		curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &status);
	return status;
}

const char *cell__http_explain(const struct cell__http_transfer *transfer, CURLcode code)
{
	return transfer->message[0] ? transfer->message : curl_easy_strerror(code);
}

/* ---- one request without a loop ---- */

struct performing {
	struct cell__http_transfer transfer;
	struct cell__http_reply *reply;
	size_t max_body;
	bool allow_private, too_large, refused;
};

/* Called with the address that will be connected to, after names are looked up: a name cannot mean another one later. */
static curl_socket_t open_checked(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	struct performing *performing = arg;
	(void)purpose;
	bool private_address = cell__address_is_private(&address->addr);
	if (private_address && !performing->allow_private) {
		performing->refused = true;
		return CURL_SOCKET_BAD;
	}
	performing->reply->private_address = private_address;
	return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

static size_t performed_body(struct cell__http_transfer *transfer, const char *bytes, size_t size)
{
	struct performing *performing = (struct performing *)transfer;
	performing->too_large = performing->reply->body.size + size > performing->max_body;
	return performing->too_large || cell__buf_add(&performing->reply->body, bytes, size) < 0 ? 0 : size;
}

static void performed_header(struct cell__http_transfer *transfer, const char *line, size_t size)
{
	static const char name[] = "www-authenticate:";
	struct cell__buf *challenge = &((struct performing *)transfer)->reply->challenge;
	if (size < sizeof name - 1 || strncasecmp(line, name, sizeof name - 1) != 0 || challenge->size + size > 16384)
		return;
	while (size > 0 && (line[size - 1] == '\r' || line[size - 1] == '\n'))
		size--;
	if (challenge->size > 0)
		(void)cell__buf_add_str(challenge, ", ");
	(void)cell__buf_add(challenge, line + sizeof name - 1, size - (sizeof name - 1));
}

int cell__http_perform(const struct cell__http_request *request, const char *const *headers, const struct cell__http_rules *rules,
		       struct cell__http_reply *reply, struct cell_error *err)
{
	struct performing performing = {
		.transfer = { .body = performed_body, .header = performed_header },
		.reply = reply,
		.max_body = rules->max_body,
		.allow_private = rules->allow_private,
	};
	struct cell__http_transfer *transfer = &performing.transfer;
	if (cell__library_load(CELL__LIBRARY_CURL, err) < 0)
		return -1;
	pthread_once(&curl_once, init_curl);
	int rc = (transfer->easy = curl_easy_init()) ? begin_headers(transfer) : -1;
	for (size_t i = 0; rc == 0 && headers && headers[i]; i++)
		rc = cell__http_add_header(transfer, headers[i]);
	if (rc < 0) {
		cell__http_finish(transfer);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for HTTP");
	}
	set_common(transfer);
	set_request(transfer->easy, request);
	curl_easy_setopt(transfer->easy, CURLOPT_OPENSOCKETFUNCTION, open_checked);
	curl_easy_setopt(transfer->easy, CURLOPT_OPENSOCKETDATA, &performing);
	struct pipe_guard guard;
	guard_pipe(&guard);
	CURLcode code = curl_easy_perform(transfer->easy);
	unguard_pipe(&guard);
	reply->status = cell__http_status(transfer);
	const char *next = NULL; /* absolute, also where the header is not */
	if (curl_easy_getinfo(transfer->easy, CURLINFO_REDIRECT_URL, &next) == CURLE_OK && next)
		(void)cell__buf_add_str(&reply->location, next);
	if (performing.refused)
		rc = cell_fail(err, CELL_E_FORBIDDEN, 0, "%.120s is on a private network, where a public server may not send us",
			       request->url);
	else if (performing.too_large)
		rc = cell_fail(err, CELL_E_LIMIT, 0, "%.120s answered with more than %zu bytes", request->url, rules->max_body);
	else if (code != CURLE_OK)
		rc = cell_fail(err, CELL_E_IO, 0, "%.100s: %s", request->url, cell__http_explain(transfer, code));
	else if (cell__buf_reserve(&reply->body, 1) < 0 || cell__buf_reserve(&reply->challenge, 1) < 0 ||
		 cell__buf_reserve(&reply->location, 1) < 0)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	cell__http_finish(transfer);
	return rc;
}

void cell__http_reply_finish(struct cell__http_reply *reply)
{
	if (reply->body.data)
		explicit_bzero(reply->body.data, reply->body.size);
	cell__buf_finish(&reply->body);
	cell__buf_finish(&reply->challenge);
	cell__buf_finish(&reply->location);
}
