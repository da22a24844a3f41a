/* See docker.h. */
#define _GNU_SOURCE
#include "executors/container/docker.h"

#include <stdio.h>
#include <string.h>

#define MAX_ANSWER_BYTES (8u << 20)
#define CONNECT_TIMEOUT_MS 5000
#define REQUEST_TIMEOUT_MS 60000
#define SILENT_S 1800 /* a build step without output */

struct cell__docker_request {
	struct cell__http_transfer transfer; /* first */
	struct cell__docker *docker;
	struct cell__docker_call call;
	struct cell__buf answer;
};

/* ---- its address ---- */

int cell__docker_init(struct cell__docker *docker, struct cell__http *http, const char *address, struct cell_error *err)
{
	const char *at = address && *address ? address : CELL_DOCKER_SOCKET;

	*docker = (struct cell__docker){ .http = http };
	if (!strncmp(at, "unix://", 7) && at[7] == '/') {
		docker->socket = cell__strdup(at + 7);
		docker->url = cell__strdup("http://localhost");
	} else if ((!strncmp(at, "tcp://", 6) && at[6]) || (!strncmp(at, "http://", 7) && at[7])) {
		if (asprintf(&docker->url, "http://%s", strchr(at, '/') + 2) < 0)
			docker->url = NULL;
		else if (docker->url[strlen(docker->url) - 1] == '/')
			docker->url[strlen(docker->url) - 1] = '\0';
	} else {
		return cell_fail(err, CELL_E_INVALID, 0,
				 "invalid address of a container engine '%.100s': expected unix:///PATH or tcp://HOST:PORT", at);
	}
	if (!docker->url || (!strncmp(at, "unix://", 7) && !docker->socket)) {
		cell__docker_finish(docker);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	return 0;
}

void cell__docker_finish(struct cell__docker *docker)
{
	free(cell__take_ptr(docker->url));
	free(cell__take_ptr(docker->socket));
}

/* ---- requests ---- */

static void request_free(struct cell__docker_request *request)
{
	cell__http_finish(&request->transfer);
	cell__buf_finish(&request->answer);
	free(request->call.body);
	free(request);
}

static size_t take_bytes(struct cell__http_transfer *transfer, const char *bytes, size_t count)
{
	struct cell__docker_request *request = (struct cell__docker_request *)transfer;

	if (request->call.piece && cell__http_status(transfer) < 300)
		return request->call.piece(request->call.arg, bytes, count) ? count : 0;
	if (request->answer.size + count > MAX_ANSWER_BYTES)
		return 0;
	return cell__buf_add(&request->answer, bytes, count) < 0 ? 0 : count;
}

static void describe(const struct cell__docker_request *request, CURLcode code, long status, json_t *answer, struct cell_error *err)
{
	const struct cell__docker *docker = request->docker;
	const char *words = json_string_value(json_object_get(answer, "message"));

	if (code != CURLE_OK)
		cell_fail(err, code == CURLE_COULDNT_CONNECT ? CELL_E_UNAVAILABLE : CELL_E_IO, 0, "the container engine at %.100s: %s",
			  docker->socket ? docker->socket : docker->url, curl_easy_strerror(code));
	else
		cell_fail(err, status == 404 ? CELL_E_NOT_FOUND : CELL_E_IO, 0, "the container engine answered %ld: %.160s", status,
			  words ? words : "it gave no reason");
}

static void handle_done(struct cell__http_transfer *transfer, CURLcode code)
{
	struct cell__docker_request *request = (struct cell__docker_request *)transfer;
	struct cell_error err = { 0 };
	json_t *answer = NULL;
	long status = code == CURLE_OK ? cell__http_status(transfer) : 0;

	if (request->answer.size)
		answer = json_loadb(request->answer.data, request->answer.size, 0, NULL);
	if (code != CURLE_OK || status >= 400)
		describe(request, code, status, answer, &err);
	request->call.done(request->call.arg, status, answer, &err);
	json_decref(answer);
	request_free(request);
}

struct cell__docker_request *cell__docker_start(struct cell__docker *docker, const struct cell__docker_call *call)
{
	struct cell__docker_request *request = cell__alloc(1, sizeof(*request));
	CELL_AUTO_BUF struct cell__buf type = CELL_BUF_INIT, url = CELL_BUF_INIT;

	if (!request) {
		free(call->body);
		return NULL;
	}
	*request = (struct cell__docker_request){ .transfer = { .done = handle_done, .body = take_bytes },
						  .docker = docker,
						  .call = *call };
	if ((call->body && (cell__buf_printf(&type, "Content-Type: %s", call->type ? call->type : "application/json") < 0 ||
			    cell__http_add_header(&request->transfer, type.data) < 0)) ||
	    cell__buf_printf(&url, "%s%s", docker->url, call->path) < 0) {
		request_free(request);
		return NULL;
	}
	const struct cell__http_request what = {
		.method = call->method,
		.url = url.data,
		.body = call->body || strcmp(call->method, "POST") ? call->body : "",
		.body_size = call->size,
		.socket = docker->socket,
		.connect_ms = CONNECT_TIMEOUT_MS,
		.timeout_ms = call->timeout_ms < 0 ? 0
			      : call->timeout_ms   ? call->timeout_ms
						   : REQUEST_TIMEOUT_MS,
		.silence_s = call->timeout_ms < 0 ? SILENT_S : 0,
	};
	if (cell__http_start(docker->http, &request->transfer, &what) < 0) {
		request_free(request);
		return NULL;
	}
	return request;
}

void cell__docker_cancel(struct cell__docker_request *request)
{
	cell__http_cancel(request->docker->http, &request->transfer);
	request_free(request);
}
