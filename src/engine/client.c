/*
 * A session server as seen by its operators: one request after the other, on the caller's thread, without an engine.  libcurl does the
 * transfers; answers and events are bounded, whoever the server is.
 */
#define _GNU_SOURCE
#include "workcell.h"

#include <curl/curl.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "base/sized.h"
#include "files/relay.h"
#include "wire/sse.h"

#define MAX_ANSWER_BYTES (64u << 20)
#define MAX_EVENT_BYTES (4u << 20)
#define BLOCK_BYTES (256u * 1024u)
#define REQUEST_TIMEOUT_MS 60000
#define TICK_MS 200
#define SILENT_S 60 /* the server sends something every 15 s */
#define UNIX_HOST "http://localhost"

struct cell_client {
	CURL *curl;
	struct curl_slist *headers;
	char *base, *socket;
	char detail[CURL_ERROR_SIZE];
};

/* ---- the connection ---- */

static int set_token(struct cell_client *client, const char *token, struct cell_error *err)
{
	CELL_AUTO_FREE char *header = NULL;

	if (!token || !*token)
		return 0;
	if (asprintf(&header, "Authorization: Bearer %s", token) < 0)
		header = NULL;
	client->headers = header ? curl_slist_append(NULL, header) : NULL;
	if (header)
		explicit_bzero(header, strlen(header));
	return client->headers ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the token");
}

static int set_address(struct cell_client *client, const char *url, struct cell_error *err)
{
	bool is_unix = url && !strncmp(url, "unix:", 5);
	size_t size = url ? strlen(url) : 0;

	if (!url || (!is_unix && strncmp(url, "http://", 7) && strncmp(url, "https://", 8)))
		return cell_fail(err, CELL_E_INVALID, 0, "the address of a server must begin with http://, https:// or unix:, not '%.100s'",
				 url ? url : "");
	while (!is_unix && size && url[size - 1] == '/')
		size--;
	client->base = is_unix ? cell__strdup(UNIX_HOST) : cell__strndup(url, size);
	client->socket = is_unix ? cell__strdup(url + 5) : NULL;
	if (!client->base || (is_unix && !client->socket))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the address");
	return 0;
}

int cell_client_create(const struct cell_client_options *opts, struct cell_client **ret_client, struct cell_error *err)
{
	struct cell_client_options all = CELL_CLIENT_OPTIONS_INIT;
	struct cell_client *client;

	if (cell__require(err, opts, ret_client) < 0 || cell__sized_read(&all, sizeof(all), opts, "cell_client_options", err) < 0)
		return -1;
	client = cell__alloc(1, sizeof(*client));
	if (!client)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a client");
	if (set_address(client, all.url, err) < 0 || !(client->curl = cell__relay_easy(client->socket, all.ca, err)) ||
	    set_token(client, all.token, err) < 0) {
		cell_client_destroy(client);
		return -1;
	}
	curl_easy_setopt(client->curl, CURLOPT_ERRORBUFFER, client->detail);
	*ret_client = client;
	return 0;
}

void cell_client_destroy(struct cell_client *client)
{
	if (!client)
		return;
	if (client->curl)
		curl_easy_cleanup(client->curl);
	if (client->headers)
		curl_slist_free_all(client->headers);
	free(client->base);
	free(client->socket);
	free(client);
}

static int fail_curl(const struct cell_client *client, CURLcode code, struct cell_error *err)
{
	return cell_fail(err, code == CURLE_OUT_OF_MEMORY ? CELL_E_NOMEM : CELL_E_IO, 0, "no answer from the server at %.100s: %.100s",
			 client->socket ? client->socket : client->base, *client->detail ? client->detail : curl_easy_strerror(code));
}

/* ---- requests ---- */

static size_t take_bytes(char *bytes, size_t size, size_t count, void *arg)
{
	struct cell__buf *answer = arg;

	if (answer->size + size * count > MAX_ANSWER_BYTES || cell__buf_add(answer, bytes, size * count) < 0)
		return 0;
	return size * count;
}

static int set_request(struct cell_client *client, CURL *curl, const char *method, const char *path, struct cell_error *err)
{
	char *url = NULL;
	CURLcode code;

	if (asprintf(&url, "%s%s", client->base, path) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request");
	code = curl_easy_setopt(curl, CURLOPT_URL, url);
	free(url);
	curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
	curl_easy_setopt(curl, CURLOPT_HTTPHEADER, client->headers);
	client->detail[0] = '\0';
	return code ? fail_curl(client, code, err) : 0;
}

int cell_client_ask(struct cell_client *client, const char *method, const char *path, const char *body, char **ret_body,
		    struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf answer = CELL_BUF_INIT;
	CURL *curl;
	CURLcode code;
	long status = 0;
	int rc;

	if (cell__require(err, client, method, path) < 0)
		return -1;
	curl = curl_easy_duphandle(client->curl);
	rc = curl ? set_request(client, curl, method, path, err) : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request");
	if (!rc) {
		/* Without text for a body libcurl would read one from stdin. */
		if (body || strcmp(method, "GET"))
			curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body ? body : "");
		curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)REQUEST_TIMEOUT_MS);
		curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_bytes);
		curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
		code = curl_easy_perform(curl);
		curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
		if (code)
			rc = fail_curl(client, code, err);
		else if (status < 200 || status > 299)
			rc = cell__relay_refusal(status, &answer, err);
		else if (ret_body && !answer.size)
			*ret_body = NULL;
		else if (ret_body)
			*ret_body = cell__buf_take(&answer);
	}
	if (curl)
		curl_easy_cleanup(curl);
	return rc;
}

/* ---- transfers ---- */

struct moving {
	int in_fd, out_fd;
	int64_t bytes;
	int (*moved)(void *arg, int64_t bytes, struct cell_error *err);
	void *arg;
};

static int count_moved(struct moving *moving, ssize_t n, struct cell_error *err)
{
	moving->bytes += n;
	return moving->moved ? moving->moved(moving->arg, moving->bytes, err) : 0;
}

static int send_all(struct moving *moving, struct cell__relay *relay, char *block, struct cell_error *err)
{
	for (;;) {
		ssize_t n = read(moving->in_fd, block, BLOCK_BYTES);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return cell_fail(err, CELL_E_IO, errno, "read the file");
		if (n == 0)
			return 0;
		if (cell__relay_write(relay, block, (size_t)n, err) < 0 || count_moved(moving, n, err) < 0)
			return -1;
	}
}

static int take_all(struct moving *moving, struct cell__relay *relay, char *block, struct cell_error *err)
{
	ssize_t n;

	while ((n = cell__relay_read(relay, block, BLOCK_BYTES, err)) > 0) {
		if (moving->out_fd >= 0 && cell__fd_write_all(moving->out_fd, block, (size_t)n) < 0)
			return cell_fail(err, CELL_E_IO, errno, "write the file");
		if (moving->out_fd >= 0 && count_moved(moving, n, err) < 0)
			return -1;
	}
	return n < 0 ? -1 : 0;
}

/* The headers of the client for a relay, which frees them. */
static int copy_headers(const struct cell_client *client, struct curl_slist **ret_headers)
{
	*ret_headers = client->headers ? curl_slist_append(NULL, client->headers->data) : NULL;
	return client->headers && !*ret_headers ? -1 : 0;
}

int cell_client_transfer(struct cell_client *client, const char *method, const char *path, int in_fd, int out_fd,
			 int (*moved)(void *arg, int64_t bytes, struct cell_error *err), void *arg, struct cell_error *err)
{
	struct moving moving = { .in_fd = in_fd, .out_fd = out_fd, .moved = moved, .arg = arg };
	struct cell__relay *relay = NULL;
	struct curl_slist *headers = NULL;
	CELL_AUTO_FREE char *block = cell__alloc(1, BLOCK_BYTES);
	CURL *curl;
	int rc;

	if (cell__require(err, client, method, path) < 0)
		return -1;
	curl = block ? curl_easy_duphandle(client->curl) : NULL;
	if (!curl || copy_headers(client, &headers) < 0) {
		if (curl)
			curl_easy_cleanup(curl);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request");
	}
	rc = set_request(client, curl, method, path, err);
	if (rc < 0) {
		curl_easy_cleanup(curl);
		curl_slist_free_all(headers);
		return -1;
	}
	if (in_fd < 0 && strcmp(method, "GET")) {
		curl_easy_setopt(curl, CURLOPT_POSTFIELDS, "");
		curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
	}
	rc = cell__relay_start(curl, headers, in_fd >= 0, NULL, &relay, err);
	if (!rc && in_fd >= 0)
		rc = send_all(&moving, relay, block, err);
	if (!rc)
		rc = take_all(&moving, relay, block, err);
	cell__relay_destroy(relay);
	return rc;
}

/* ---- streams ---- */

struct stream {
	struct cell_client *client;
	CURL *curl;
	struct cell__sse sse;
	struct cell__buf refusal;
	cell_client_event_fn on_event;
	void *arg;
	struct cell_error err;
	bool failed;
};

static size_t take_events(char *bytes, size_t size, size_t count, void *arg)
{
	struct stream *stream = arg;
	const char *at = bytes;
	size_t left = size * count;
	struct cell__sse_event event;
	long status = 0;
	int rc;

	curl_easy_getinfo(stream->curl, CURLINFO_RESPONSE_CODE, &status);
	if (status != 200)
		return take_bytes(bytes, size, count, &stream->refusal);
	while ((rc = cell__sse_next(&stream->sse, &at, &left, &event, &stream->err)) > 0)
		stream->on_event(stream->arg, event.type, event.data, event.size);
	stream->failed |= rc < 0;
	return rc < 0 ? 0 : size * count;
}

#define NOT_WATCHED 2 /* of tick() */

/* Until the transfer is over (1) or has to be (1), or -1. */
static int pump(CURLM *multi, struct stream *stream, int watched_fd, int (*tick)(void *arg, int readable, struct cell_error *err),
		struct cell_error *err)
{
	int running = 1, rc = 0;

	while (running && (!rc || rc == NOT_WATCHED)) {
		struct curl_waitfd watched = { .fd = watched_fd, .events = CURL_WAIT_POLLIN };

		if (curl_multi_perform(multi, &running))
			return cell_fail(err, CELL_E_IO, 0, "the transfer failed");
		if (!running)
			break;
		if (curl_multi_poll(multi, &watched, watched_fd >= 0 && rc != NOT_WATCHED, TICK_MS, NULL))
			return cell_fail(err, CELL_E_IO, 0, "the transfer failed");
		if (tick)
			rc = tick(stream->arg, watched.revents != 0, err);
	}
	return rc == NOT_WATCHED ? 0 : rc;
}

static int stream_result(CURLM *multi, struct stream *stream, struct cell_error *err)
{
	CURLMsg *message;
	CURLcode code = CURLE_OK;
	long status = 0;
	int left;

	while ((message = curl_multi_info_read(multi, &left)))
		code = message->data.result;
	curl_easy_getinfo(stream->curl, CURLINFO_RESPONSE_CODE, &status);
	if (stream->failed) {
		*err = stream->err;
		return -1;
	}
	if (code)
		return fail_curl(stream->client, code, err);
	return status == 200 ? 0 : cell__relay_refusal(status, &stream->refusal, err);
}

int cell_client_stream(struct cell_client *client, const char *path, cell_client_event_fn on_event, int watched_fd,
		       int (*tick)(void *arg, int readable, struct cell_error *err), void *arg, struct cell_error *err)
{
	struct stream stream = { .client = client, .refusal = CELL_BUF_INIT, .on_event = on_event, .arg = arg };
	CURLM *multi;
	int rc;

	if (cell__require(err, client, path, on_event) < 0)
		return -1;
	multi = curl_multi_init();
	stream.curl = curl_easy_duphandle(client->curl);
	rc = !multi || !stream.curl ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request")
				    : set_request(client, stream.curl, "GET", path, err);
	if (!rc) {
		cell__sse_init(&stream.sse, MAX_EVENT_BYTES);
		curl_easy_setopt(stream.curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
		curl_easy_setopt(stream.curl, CURLOPT_LOW_SPEED_TIME, (long)SILENT_S);
		curl_easy_setopt(stream.curl, CURLOPT_WRITEFUNCTION, take_events);
		curl_easy_setopt(stream.curl, CURLOPT_WRITEDATA, &stream);
		curl_multi_add_handle(multi, stream.curl);
		rc = pump(multi, &stream, watched_fd, tick, err);
		if (!rc)
			rc = stream_result(multi, &stream, err);
		curl_multi_remove_handle(multi, stream.curl);
		cell__sse_finish(&stream.sse);
	}
	if (stream.curl)
		curl_easy_cleanup(stream.curl);
	if (multi)
		curl_multi_cleanup(multi);
	cell__buf_finish(&stream.refusal);
	return rc < 0 ? -1 : 0;
}
