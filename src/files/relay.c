/*
 * libcurl's multi interface with one transfer, driven by the functions that wait for it.
 *
 *     write() ── bytes ──▶ give_bytes() ──▶ the server ──▶ take_bytes() ── waiting ──▶ read()
 *
 * give_bytes() pauses the transfer when the caller's bytes are used up, take_bytes() when a block is waiting for the caller.
 */
#define _GNU_SOURCE
#include "files/relay.h"

#include <jansson.h>
#include <string.h>

#include "base/clock.h"
#include "base/libraries.h"

#define BLOCK_BYTES (256u * 1024u)
#define MAX_REFUSAL_BYTES (64u * 1024u)
#define CONNECT_TIMEOUT_MS 10000
#define TICK_MS 200 /* a cancelled relay is left within that */
#define SILENT_US 60000000

struct cell__relay {
	CURLM *multi;
	CURL *easy;
	struct curl_slist *headers;
	const char *bytes; /* of the caller, during write() */
	size_t left;
	bool body_ended, added;
	bool paused_out, paused_in;
	struct cell__buf waiting, refusal;
	bool over;
	CURLcode code;
	long status;
	int64_t moved_us; /* when a byte last went either way */
	const atomic_bool *cancelled; /* or NULL */
	char detail[CURL_ERROR_SIZE];
};

/* ---- places ---- */

void cell__elsewhere_destroy(struct cell__elsewhere *place)
{
	if (!place)
		return;
	if (place->authorization)
		explicit_bzero(place->authorization, strlen(place->authorization));
	free(place->url);
	free(place->socket);
	free(place->authorization);
	free(place->ca);
	free(place);
}

struct cell__elsewhere *cell__elsewhere_create(const char *url, const char *socket, const char *authorization, const char *ca,
					       const char *session)
{
	struct cell__elsewhere *place = cell__alloc(1, sizeof *place);
	if (!place)
		return NULL;
	place->url = cell__strdup(url);
	place->socket = socket ? cell__strdup(socket) : NULL;
	place->authorization = authorization ? cell__strdup(authorization) : NULL;
	place->ca = ca ? cell__strdup(ca) : NULL;
	if (!place->url || (socket && !place->socket) || (authorization && !place->authorization) || (ca && !place->ca) ||
	    strlen(session) >= sizeof place->session) {
		cell__elsewhere_destroy(place);
		return NULL;
	}
	strcpy(place->session, session);
	return place;
}

/* ---- requests ---- */

CURL *cell__relay_easy(const char *socket, const char *ca, struct cell_error *err)
{
	if (cell__library_load(CELL__LIBRARY_CURL, err) < 0)
		return NULL;
	CURL *easy = curl_global_init(CURL_GLOBAL_DEFAULT) ? NULL : curl_easy_init();
	if (!easy) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request");
		return NULL;
	}
	/* A proxy of the environment must not see the token, and a redirection must not take it elsewhere. */
	curl_easy_setopt(easy, CURLOPT_PROXY, "");
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_TIMEOUT_MS);
	if (socket)
		curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, socket);
	if (ca)
		curl_easy_setopt(easy, CURLOPT_CAINFO, ca);
	return easy;
}

int cell__relay_refusal(long status, const struct cell__buf *answer, struct cell_error *err)
{
	json_t *body = answer->size ? json_loadb(answer->data, answer->size, 0, NULL) : NULL;
	const char *word = json_string_value(json_object_get(body, "code")), *detail = json_string_value(json_object_get(body, "detail"));
	int code = CELL_E_PROTOCOL;
	for (int i = 1; word && i < CELL_CODE_COUNT; i++)
		code = strcmp(cell_code_word(i), word) ? code : i;
	if (!word || !detail)
		cell_fail(err, code, 0, "the server answered with status %ld; is it a session server?", status);
	else
		cell_fail(err, code, 0, "%.200s", detail);
	json_decref(body);
	return -1;
}

/* ---- libcurl's callbacks ---- */

static size_t give_bytes(char *out, size_t size, size_t count, void *arg)
{
	struct cell__relay *relay = arg;
	size_t n = size * count < relay->left ? size * count : relay->left;
	if (n == 0 && !relay->body_ended) {
		relay->paused_out = true;
		return CURL_READFUNC_PAUSE;
	}
	if (n > 0) {
		memcpy(out, relay->bytes, n);
		relay->bytes += n;
		relay->left -= n;
	}
	relay->moved_us = cell__now_us();
	return n;
}

static bool is_success(long status)
{
	return status >= 200 && status <= 299;
}

static size_t take_bytes(char *bytes, size_t size, size_t count, void *arg)
{
	struct cell__relay *relay = arg;
	size_t n = size * count;
	curl_easy_getinfo(relay->easy, CURLINFO_RESPONSE_CODE, &relay->status);
	relay->moved_us = cell__now_us();
	if (!is_success(relay->status))
		return n > MAX_REFUSAL_BYTES - relay->refusal.size || cell__buf_add(&relay->refusal, bytes, n) < 0 ? 0 : n;
	if (relay->waiting.size >= BLOCK_BYTES) {
		relay->paused_in = true;
		return CURL_WRITEFUNC_PAUSE;
	}
	return cell__buf_add(&relay->waiting, bytes, n) < 0 ? 0 : n;
}

/* ---- the transfer ---- */

static int explain(const struct cell__relay *relay, struct cell_error *err)
{
	if (relay->over && (relay->refusal.size > 0 || (relay->code == CURLE_OK && !is_success(relay->status))))
		return cell__relay_refusal(relay->status, &relay->refusal, err);
	return cell_fail(err, relay->code == CURLE_OUT_OF_MEMORY ? CELL_E_NOMEM : CELL_E_IO, 0,
			 "the transfer with the server failed: %.160s", *relay->detail ? relay->detail : curl_easy_strerror(relay->code));
}

/* Once around: something has happened, or TICK_MS have passed. */
static int turn(struct cell__relay *relay, struct cell_error *err)
{
	int running = 0, left;
	CURLMsg *message;
	if (relay->cancelled && atomic_load(relay->cancelled))
		return cell_fail(err, CELL_E_CANCELLED, 0, "the transfer was cancelled");
	if (curl_multi_perform(relay->multi, &running))
		return cell_fail(err, CELL_E_IO, 0, "the transfer with the server failed");
	while ((message = curl_multi_info_read(relay->multi, &left))) {
		relay->over = true;
		relay->code = message->data.result;
		curl_easy_getinfo(relay->easy, CURLINFO_RESPONSE_CODE, &relay->status);
	}
	if (relay->over)
		return 0;
	if (cell__now_us() - relay->moved_us > SILENT_US)
		return cell_fail(err, CELL_E_IO, 0, "the server has been silent for %d s", SILENT_US / 1000000);
	return 0;
}

static int wait_turn(struct cell__relay *relay, struct cell_error *err)
{
	if (curl_multi_poll(relay->multi, NULL, 0, TICK_MS, NULL))
		return cell_fail(err, CELL_E_IO, 0, "the transfer with the server failed");
	return turn(relay, err);
}

/* The caller is back: it counts from now on how long the server is silent. */
static int go_on(struct cell__relay *relay, struct cell_error *err)
{
	relay->moved_us = cell__now_us();
	if (!relay->added && curl_multi_add_handle(relay->multi, relay->easy))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request");
	relay->added = true;
	if ((relay->paused_out && (relay->left > 0 || relay->body_ended)) || relay->paused_in) {
		relay->paused_out = relay->paused_in = false;
		curl_easy_pause(relay->easy, CURLPAUSE_CONT);
	}
	return turn(relay, err);
}

int cell__relay_start(CURL *easy, struct curl_slist *headers, bool sends, const atomic_bool *cancelled, struct cell__relay **ret_relay,
		      struct cell_error *err)
{
	struct cell__relay *relay = cell__alloc(1, sizeof *relay);
	CURLM *multi = relay ? curl_multi_init() : NULL;
	if (!multi) {
		free(relay);
		curl_easy_cleanup(easy);
		curl_slist_free_all(headers);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request");
	}
	*relay = (struct cell__relay){ .multi = multi,
				       .easy = easy,
				       .headers = headers,
				       .cancelled = cancelled,
				       .body_ended = !sends,
				       .waiting = CELL_BUF_INIT,
				       .refusal = CELL_BUF_INIT };
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, relay->detail);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_bytes);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, relay);
	if (sends) {
		curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L); /* of unknown size, in chunks */
		curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, (long)BLOCK_BYTES);
		curl_easy_setopt(easy, CURLOPT_READFUNCTION, give_bytes);
		curl_easy_setopt(easy, CURLOPT_READDATA, relay);
	}
	*ret_relay = relay;
	return 0;
}

void cell__relay_destroy(struct cell__relay *relay)
{
	if (!relay)
		return;
	if (relay->added)
		curl_multi_remove_handle(relay->multi, relay->easy);
	curl_easy_cleanup(relay->easy);
	curl_multi_cleanup(relay->multi);
	curl_slist_free_all(relay->headers);
	cell__buf_finish(&relay->waiting);
	cell__buf_finish(&relay->refusal);
	free(relay);
}

int cell__relay_write(struct cell__relay *relay, const char *bytes, size_t size, struct cell_error *err)
{
	relay->bytes = bytes;
	relay->left = size;
	int rc = relay->over ? 0 : go_on(relay, err);
	while (rc == 0 && relay->left > 0 && !relay->over)
		rc = wait_turn(relay, err);
	relay->left = 0;
	if (rc == 0 && relay->over && relay->code == CURLE_OK && is_success(relay->status))
		return cell_fail(err, CELL_E_PROTOCOL, 0, "the server accepted the body before it had all of it");
	return rc == 0 && relay->over ? explain(relay, err) : rc;
}

ssize_t cell__relay_read(struct cell__relay *relay, char *out, size_t max, struct cell_error *err)
{
	relay->body_ended = true;
	int rc = relay->over || relay->waiting.size > 0 ? 0 : go_on(relay, err);
	while (rc == 0 && relay->waiting.size == 0 && !relay->over)
		rc = wait_turn(relay, err);
	if (rc < 0)
		return -1;
	if (relay->over && (relay->code != CURLE_OK || !is_success(relay->status)))
		return explain(relay, err);
	size_t n = relay->waiting.size < max ? relay->waiting.size : max;
	if (n > 0)
		memcpy(out, relay->waiting.data, n);
	cell__buf_shift(&relay->waiting, n);
	return (ssize_t)n;
}

int cell__relay_finish(struct cell__relay *relay, size_t max, struct cell__buf *out, struct cell_error *err)
{
	CELL_AUTO_FREE char *block = cell__alloc(1, BLOCK_BYTES);
	ssize_t n = -1;
	if (!block)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an answer");
	while ((n = cell__relay_read(relay, block, BLOCK_BYTES, err)) > 0) {
		if ((size_t)n > max - out->size)
			return cell_fail(err, CELL_E_PROTOCOL, 0, "the server's answer is longer than %zu bytes", max);
		if (cell__buf_add(out, block, (size_t)n) < 0)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an answer");
	}
	return n < 0 ? -1 : 0;
}
