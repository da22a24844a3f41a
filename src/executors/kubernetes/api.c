/* See api.h. */
#define _GNU_SOURCE
#include "executors/kubernetes/api.h"

#include <stdio.h>
#include <string.h>

#define MAX_ANSWER_BYTES (16u << 20)
#define CONNECT_TIMEOUT_MS 5000
#define REQUEST_TIMEOUT_MS 15000
#define SILENT_S 120 /* of a watch: bookmarks come every minute */

struct cell__kube_request {
	struct cell__http_transfer transfer; /* first */
	struct cell__http *http;
	struct cell__kube_call call;
	struct cell__buf answer;
	bool too_large;
	char url[128]; /* of the server, for messages */
};

static void request_free(struct cell__kube_request *request)
{
	cell__http_finish(&request->transfer);
	cell__buf_finish(&request->answer);
	free(request->call.body);
	free(request);
}

static size_t take_bytes(struct cell__http_transfer *transfer, const char *bytes, size_t count)
{
	struct cell__kube_request *request = (struct cell__kube_request *)transfer;
	long status = cell__http_status(transfer);

	if (request->call.piece && status >= 200 && status < 300)
		return request->call.piece(request->call.arg, bytes, count) ? count : 0;
	request->too_large = request->answer.size + count > MAX_ANSWER_BYTES;
	return request->too_large || cell__buf_add(&request->answer, bytes, count) < 0 ? 0 : count;
}

/* The words are the API server's: what a terminal would act on is left out. */
static void copy_words(char *to, size_t size, const char *words)
{
	size_t i = 0;

	for (; words[i] && i + 1 < size; i++)
		to[i] = words[i] >= ' ' && words[i] <= '~' ? words[i] : '?';
	to[i] = '\0';
}

static int code_of(long status)
{
	switch (status) {
	case 401:
		return CELL_E_AUTH;
	case 403:
		return CELL_E_FORBIDDEN;
	case 404:
		return CELL_E_NOT_FOUND;
	case 409:
		return CELL_E_CONFLICT;
	case 429:
	case 503:
		return CELL_E_BUSY;
	default:
		return CELL_E_IO;
	}
}

static void describe(const struct cell__kube_request *request, CURLcode code, long status, json_t *answer, struct cell_error *err)
{
	const char *words = json_string_value(json_object_get(answer, "message"));
	char clean[140];

	if (request->too_large)
		cell_fail(err, CELL_E_LIMIT, 0, "the API server at %.90s answered with more than %u MiB", request->url,
			  MAX_ANSWER_BYTES >> 20);
	else if (code != CURLE_OK) {
		copy_words(clean, sizeof(clean), cell__http_explain(&request->transfer, code));
		cell_fail(err, code == CURLE_COULDNT_CONNECT ? CELL_E_UNAVAILABLE : CELL_E_IO, 0, "the API server at %.80s: %s",
			  request->url, clean);
	} else {
		copy_words(clean, sizeof(clean), words ? words : "it gave no reason");
		cell_fail(err, code_of(status), 0, "the API server at %.60s answered %ld: %s", request->url, status, clean);
	}
}

static void handle_done(struct cell__http_transfer *transfer, CURLcode code)
{
	struct cell__kube_request *request = (struct cell__kube_request *)transfer;
	struct cell_error err = { 0 };
	long status = code == CURLE_OK ? cell__http_status(transfer) : 0;
	json_t *answer = NULL;

	if (request->answer.size && code == CURLE_OK)
		answer = json_loadb(request->answer.data, request->answer.size, 0, NULL);
	if (code != CURLE_OK || status < 200 || status >= 300)
		describe(request, code, status, answer, &err);
	/* A redirect would take the token elsewhere. */
	if (status && status < 400 && err.code)
		status = 500;
	request->call.done(request->call.arg, status, answer, &err);
	json_decref(answer);
	request_free(request);
}

static int add_headers(struct cell__kube_request *request, const struct cell__kube_access *access)
{
	CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
	int status = cell__http_add_header(&request->transfer, "Accept: application/json");

	if (!status && request->call.body) {
		status = cell__buf_printf(&line, "Content-Type: %s", request->call.type ? request->call.type : "application/json");
		if (!status)
			status = cell__http_add_header(&request->transfer, line.data);
		cell__buf_finish(&line);
		line = (struct cell__buf)CELL_BUF_INIT;
	}
	if (!status && access->token) {
		status = cell__buf_printf(&line, "Authorization: Bearer %s", access->token);
		if (!status)
			status = cell__http_add_header(&request->transfer, line.data);
		if (line.data)
			explicit_bzero(line.data, line.size);
	}
	return status;
}

struct cell__kube_request *cell__kube_start(struct cell__http *http, const struct cell__kube_access *access,
					    const struct cell__kube_call *call)
{
	struct cell__kube_request *request = cell__alloc(1, sizeof(*request));
	CELL_AUTO_BUF struct cell__buf url = CELL_BUF_INIT;

	if (!request) {
		free(call->body);
		return NULL;
	}
	*request = (struct cell__kube_request){ .transfer = { .done = handle_done, .body = take_bytes }, .http = http, .call = *call };
	copy_words(request->url, sizeof(request->url), access->url);
	const struct cell__http_request what = {
		.method = call->method,
		.url = cell__buf_printf(&url, "%s%s", access->url, call->path) < 0 ? NULL : url.data,
		.body = call->body,
		.body_size = call->body ? strlen(call->body) : 0,
		.ca_pem = access->ca,
		.cert_pem = access->cert,
		.key_pem = access->key,
		.connect_ms = CONNECT_TIMEOUT_MS,
		.timeout_ms = call->streams ? 0 : REQUEST_TIMEOUT_MS,
		.silence_s = call->streams ? SILENT_S : 0,
	};
	if (!what.url || add_headers(request, access) < 0 || cell__http_start(http, &request->transfer, &what) < 0) {
		request_free(request);
		return NULL;
	}
	return request;
}

void cell__kube_cancel(struct cell__kube_request *request)
{
	if (!request)
		return;
	cell__http_cancel(request->http, &request->transfer);
	request_free(request);
}
