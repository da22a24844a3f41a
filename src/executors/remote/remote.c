/*
 * A kernel here is a session of a server (docs/server.md): tools, storage and packages are that server's.
 *
 *     opening ──POST /v1/sessions──▶ idle ──POST .../runs──▶ running ──event "result"──▶ idle ... ──close──▶ DELETE ──▶ exited
 *                                                    │  ▲
 *                                    the stream breaks  │ GET .../events with Last-Event-ID, again and again for 30 s
 *                                                    ▼  │
 *                                                  broken ──▶ exited, with an error
 *
 * libcurl's callbacks only collect bytes: a task of the loop processes them, where a receiver may call any function
 * (run, interrupt, close).  Bytes that wait for it are bounded; past that libcurl pauses, TCP fills up, and the server holds
 * its kernel.  Everything from the server is checked like everything from a kernel.
 */
#define _GNU_SOURCE
#include "base/random.h"
#include "executors/registry.h"
#include "executors/remote/kernel.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "files/relay.h"

#define MAX_CONNECTIONS 2048 /* including those of containers, one each */
#define CLOSE_MS 5000

/* ---- the end ---- */

void cell__remote_kernel_free(struct cell__remote_kernel *kernel)
{
	cell__sse_finish(&kernel->sse);
	cell__buf_finish(&kernel->in);
	free(kernel->result);
	free(kernel->code);
	free(kernel->url);
	free(kernel->socket);
	free(kernel->authorization);
	free(kernel->workspace);
	free(kernel->ca);
	free(kernel->receipt);
	free(kernel);
}

void cell__remote_handle_timer_closed(uv_handle_t *handle)
{
	struct cell__remote_kernel *kernel = handle->data;
	void *owner = kernel->owner;
	void (*exited)(void *, const struct cell__exit *) = kernel->events->exited;
	struct cell__exit how = kernel->how;

	if (kernel->posted) { /* the task runs first, and comes back here */
		kernel->over = true;
		return;
	}
	if (kernel->gone)
		kernel->gone(kernel->gone_arg, &how);
	cell__remote_kernel_free(kernel);
	exited(owner, &how);
}

/* Nothing more comes but exited(). */
static void leave(struct cell__remote_kernel *kernel)
{
	cell__remote_part(kernel);
	cell__remote_drop_exchanges(kernel);
	if (!uv_is_closing((uv_handle_t *)&kernel->timer))
		uv_close((uv_handle_t *)&kernel->timer, cell__remote_handle_timer_closed);
}

static void end_session(struct cell__remote_kernel *kernel);

/* Of a server that cannot be reached the session stays to its own expiry. */
void cell__remote_fail(struct cell__remote_kernel *kernel, const struct cell_error *err)
{
	if (kernel->state == CELL_REMOTE_CLOSING)
		return;
	kernel->state = CELL_REMOTE_CLOSING;
	kernel->run_waits = false;
	kernel->how.error = *err;
	if (err->code == CELL_E_IO || err->code == CELL_E_EXPIRED)
		leave(kernel);
	else
		end_session(kernel);
}

void cell__remote_out_of_memory(struct cell__remote_kernel *kernel)
{
	struct cell_error err;

	cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a request to the server");
	cell__remote_fail(kernel, &err);
}

void cell__remote_protocol_error(struct cell__remote_kernel *kernel, const char *problem)
{
	struct cell_error err;

	cell_fail(&err, CELL_E_PROTOCOL, 0, "the server at %.100s sent %s", kernel->url, problem);
	cell__remote_fail(kernel, &err);
}

/* ---- sessions ---- */

void cell__remote_session_opened(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	struct cell__remote_kernel *kernel = exchange->kernel;
	json_t *answer = code == CURLE_OK && status == 201 ? json_loadb(exchange->answer.data ? exchange->answer.data : "",
									exchange->answer.size, JSON_DECODE_INT_AS_REAL, NULL)
							   : NULL;
	const char *id = json_string_value(json_object_get(answer, "session_id"));
	struct cell_error err;

	cell__remote_part(kernel);
	if (id && *id && strlen(id) < sizeof(kernel->session) && !id[strspn(id, "0123456789abcdefABCDEF-")]) {
		strcpy(kernel->session, id);
		cell__remote_read_known(answer, &kernel->known);
		kernel->state = CELL_REMOTE_IDLE;
	}
	json_decref(answer);
	if (kernel->state == CELL_REMOTE_IDLE && kernel->reopening) {
		kernel->reopening = false;
		kernel->state = CELL_REMOTE_RUNNING;
		cell__remote_start_run(kernel);
	} else if (kernel->state == CELL_REMOTE_IDLE) {
		kernel->events->ready(kernel->owner);
	} else {
		cell__remote_describe(kernel, exchange, code, status, &err);
		cell__remote_fail(kernel, &err);
	}
}

void cell__remote_open_session(struct cell__remote_kernel *kernel)
{
	json_t *body = json_pack("{s:s*}", "workspace_id", kernel->workspace);

	if (body && kernel->allow_fork)
		json_object_set_new(body, "allow_fork", json_integer(kernel->allow_fork));
	char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;

	json_decref(body);
	struct cell__remote_exchange *exchange = text ? cell__remote_begin(kernel, "POST", "/v1/sessions", text, NULL, false,
									   cell__remote_session_opened)
						      : NULL;
	if (exchange)
		exchange->repeats = exchange->repeats_lost = true;
	else
		cell__remote_out_of_memory(kernel);
}

static void session_closed(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	/* A session that cannot be deleted expires, if the server is trustworthy. */
	exchange->kernel->how.suspect |= code != CURLE_OK || (status >= 300 && status != 404 && status != 410);
	leave(exchange->kernel);
}

static void handle_close_timeout(uv_timer_t *timer)
{
	struct cell__remote_kernel *kernel = timer->data;

	kernel->how.suspect = true;
	leave(kernel);
}

static void end_session(struct cell__remote_kernel *kernel)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	struct cell__remote_exchange *exchange = NULL;

	cell__remote_drop_exchanges(kernel);
	if (*kernel->session && !cell__buf_printf(&path, "/v1/sessions/%s", kernel->session))
		exchange = cell__remote_begin(kernel, "DELETE", path.data, NULL, NULL, false, session_closed);
	if (exchange) {
		exchange->repeats = true; /* until the timer ends */
		uv_timer_start(&kernel->timer, handle_close_timeout, CLOSE_MS, 0);
		return;
	}
	leave(kernel);
}

/* ---- the vtable ---- */

static void remote_probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	(void)host;
	info->available = 1;
}

static char *text_of(const char *format, const char *text)
{
	char *made = NULL;

	return asprintf(&made, format, text) < 0 ? NULL : made;
}

static int set_place(struct cell__remote_kernel *kernel, const char *url, const char *token, struct cell_error *err)
{
	size_t size;

	if (!url || (strncmp(url, "http://", 7) && strncmp(url, "https://", 8) && strncmp(url, "unix:", 5)))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "the executor \"remote\" needs the URL of a server: http://, https:// or unix:PATH");
	if (!strncmp(url, "unix:", 5)) {
		kernel->socket = cell__strdup(url + 5);
		kernel->url = cell__strdup("http://localhost");
	} else {
		kernel->url = cell__strdup(url);
	}
	size = kernel->url ? strlen(kernel->url) : 0;
	while (size && kernel->url[size - 1] == '/')
		kernel->url[--size] = '\0';
	if (token) {
		if (strpbrk(token, "\r\n"))
			return cell_fail(err, CELL_E_INVALID, 0, "the token contains a line break");
		kernel->authorization = text_of("Authorization: Bearer %s", token);
	}
	if (!kernel->url || (token && !kernel->authorization) || (!strncmp(url, "unix:", 5) && !kernel->socket))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	return 0;
}

static int remote_create(struct cell__executor_host *host, const struct cell_engine_options *opts, void **ret_state, struct cell_error *err)
{
	(void)opts;
	return cell__executor_create_state(host, sizeof(struct cell__remote), ret_state, err);
}

/* Connections are made ready with the first kernel. */
struct cell__http *cell__remote_http(struct cell__executor_host *host, struct cell_error *err)
{
	struct cell__remote *remote = *cell__executor_state(host, &cell__remote_executor);

	return remote->http || cell__http_create(host->loop, MAX_CONNECTIONS, &remote->http, err) == 0 ? remote->http : NULL;
}

/* A kernel without a place. */
static struct cell__remote_kernel *make_kernel(struct cell__executor_host *host, const struct cell__remote_options *own,
					       const struct cell__kernel_events *events, void *owner, struct cell_error *err)
{
	struct cell__remote_kernel *kernel;

	if (!cell__remote_http(host, err))
		return NULL;
	kernel = cell__alloc(1, sizeof(*kernel));
	if (kernel) {
		*kernel = (struct cell__remote_kernel){ .base.executor = &cell__remote_executor,
							.remote = *cell__executor_state(host, &cell__remote_executor),
							.events = events,
							.owner = owner,
							.reopen = own->reopen,
							.repeat = own->repeat,
							.known.cells = -1,
							.allow_fork = own->allow_fork };
		cell__sse_init(&kernel->sse, CELL_REMOTE_MAX_EVENT_BYTES);
		kernel->workspace = own->workspace ? cell__strdup(own->workspace) : NULL;
		kernel->ca = own->ca ? cell__strdup(own->ca) : NULL;
	}
	if (!kernel || (own->workspace && !kernel->workspace) || (own->ca && !kernel->ca)) {
		if (kernel)
			cell__remote_kernel_free(kernel);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
		return NULL;
	}
	return kernel;
}

void cell__remote_start_kernel(struct cell__remote_kernel *kernel)
{
	uv_timer_init(cell__loop_uv(kernel->remote->host->loop), &kernel->timer);
	kernel->timer.data = kernel;
}

static int remote_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
		       void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	const struct cell__remote_options *own = spec->own;
	struct cell__remote_kernel *kernel;

	if (spec->namespaces)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "with the executor \"remote\" tools and storage belong to the server and cannot be given here");
	kernel = make_kernel(host, own, events, owner, err);
	if (!kernel)
		return -1;
	if (set_place(kernel, own->url, own->token, err) < 0) {
		cell__remote_kernel_free(kernel);
		return -1;
	}
	cell__remote_start_kernel(kernel);
	cell__remote_open_session(kernel);
	*ret_kernel = &kernel->base;
	return 0;
}

int cell__remote_wait(struct cell__executor_host *host, const struct cell__executor *executor, const struct cell__remote_options *own,
		      const struct cell__kernel_events *events, void *owner, void (*gone)(void *arg, const struct cell__exit *how),
		      void *arg, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	struct cell__remote_kernel *kernel = make_kernel(host, own, events, owner, err);

	if (!kernel)
		return -1;
	kernel->base.executor = executor;
	kernel->gone = gone;
	kernel->gone_arg = arg;
	cell__remote_start_kernel(kernel);
	*ret_kernel = &kernel->base;
	return 0;
}

char *cell__remote_receipt(json_t *root)
{
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;

	json_decref(root);
	if (text) { /* the members alone */
		size_t size = strlen(text);

		memmove(text, text + 1, size - 2);
		text[size - 2] = '\0';
	}
	return text;
}

void cell__remote_connect(struct cell__kernel *base, const char *url, const char *token, const char *receipt)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;
	struct cell_error err;

	if (kernel->state != CELL_REMOTE_OPENING)
		return;
	kernel->receipt = cell__strdup(receipt);
	if (!kernel->receipt)
		cell__remote_out_of_memory(kernel);
	else if (set_place(kernel, url, token, &err) < 0)
		cell__remote_fail(kernel, &err);
	else
		cell__remote_open_session(kernel);
}

void cell__remote_refuse(struct cell__kernel *base, const struct cell_error *err)
{
	cell__remote_fail((struct cell__remote_kernel *)base, err);
}

void cell__remote_drain(struct cell__kernel *base)
{
	(void)base; /* output between runs stays with the server */
}

void cell__remote_trace(struct cell__kernel *base, const char *traceparent)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;

	snprintf(kernel->traceparent, sizeof(kernel->traceparent), "%s", traceparent);
}

int cell__remote_run(struct cell__kernel *base, uint32_t run_id, const char *code, size_t size, struct cell_error *err)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;
	char after[33];

	if (!cell__utf8_ok(code, size))
		return cell_fail(err, CELL_E_INVALID, 0, "the code is not valid UTF-8, which a session server requires");
	free(kernel->code);
	free(cell__take_ptr(kernel->result));
	kernel->code = cell__strndup(code, size);
	if (!kernel->code)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the cell");
	kernel->code_size = size;
	kernel->run_id = run_id;
	kernel->interrupt_wanted = kernel->counting = kernel->counted = kernel->repeated = kernel->joined = false;
	cell__random_hex(after, sizeof(after) - 1);
	if (!cell__state_id_read(after, &kernel->after))
		kernel->after.low = 1; /* all zeros, once in 2^128 runs */
	kernel->refused_us = 0;
	/* It has failed between two runs, and exited() is on its way: that ends the run.  A request now could outlive the kernel. */
	if (kernel->state == CELL_REMOTE_CLOSING)
		return 0;
	kernel->run_waits = kernel->branches != NULL;
	if (kernel->run_waits)
		return 0;
	kernel->state = CELL_REMOTE_RUNNING;
	cell__remote_start_run(kernel);
	return 0;
}

int cell__remote_reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
		       struct cell_error *err)
{
	(void)base;
	(void)id;
	(void)json;
	(void)json_size;
	(void)raw;
	(void)raw_size;
	(void)err;
	return 0; /* its code asks the server, never us */
}

void cell__remote_interrupt(struct cell__kernel *base, uint32_t run_id)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;

	if (kernel->run_id != run_id || (kernel->state == CELL_REMOTE_IDLE && !kernel->run_waits) || kernel->state == CELL_REMOTE_CLOSING)
		return;
	/* The server cannot interrupt a run before it has begun. */
	kernel->interrupt_wanted = true;
	cell__remote_schedule(kernel);
}

void cell__remote_pause(struct cell__kernel *base, bool paused)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;

	kernel->paused = paused;
	if (!paused)
		cell__remote_schedule(kernel);
}

void cell__remote_close(struct cell__kernel *base, int64_t grace_ms)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;

	(void)grace_ms;
	if (kernel->state == CELL_REMOTE_CLOSING)
		return;
	kernel->state = CELL_REMOTE_CLOSING;
	kernel->run_waits = false;
	kernel->how.asked = true;
	end_session(kernel);
}

int64_t cell__remote_pid(const struct cell__kernel *base)
{
	(void)base;
	return 0;
}

struct cell__elsewhere *cell__remote_place(const struct cell__kernel *base)
{
	const struct cell__remote_kernel *kernel = (const struct cell__remote_kernel *)base;

	return *kernel->session ? cell__elsewhere_create(kernel->url, kernel->socket, kernel->authorization, kernel->ca, kernel->session)
				: NULL;
}

struct destroying {
	struct cell__remote *remote;
	void (*done)(void *arg);
	void *arg;
};

static void handle_http_closed(void *arg)
{
	struct destroying *destroying = arg;

	free(destroying->remote);
	destroying->done(destroying->arg);
	free(destroying);
}

static void remote_destroy(void *state, void (*done)(void *arg), void *arg)
{
	struct cell__remote *remote = state;
	struct destroying *destroying = remote->http ? cell__alloc(1, sizeof(*destroying)) : NULL;

	if (!destroying) {
		if (!remote->http)
			free(remote);
		done(arg); /* without memory its connections go with the process */
		return;
	}
	*destroying = (struct destroying){ remote, done, arg };
	cell__http_close(remote->http, handle_http_closed, destroying);
}

/* ---- its own options ---- */

void cell__remote_free_options(void *state)
{
	struct cell__remote_options *own = state;

	free(own->url);
	free(own->token);
	free(own->workspace);
	free(own->ca);
	free(own);
}

int cell__remote_read_options(const struct cell_session_options *opts, void **ret_own, struct cell_error *err)
{
	struct cell__remote_options *own = cell__alloc(1, sizeof(*own));
	const char *const texts[] = { opts->remote_url, opts->remote_token, opts->remote_workspace, opts->remote_ca };
	char **copies[] = { own ? &own->url : NULL, own ? &own->token : NULL, own ? &own->workspace : NULL, own ? &own->ca : NULL };

	if (!own)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	own->reopen = opts->remote_reopen != 0;
	own->repeat = opts->remote_repeat != 0;
	own->allow_fork = opts->allow_fork;
	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		if (texts[i] && !(*copies[i] = cell__strdup(texts[i]))) {
			cell__remote_free_options(own);
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		}
	}
	*ret_own = own;
	return 0;
}

static int remote_check(const struct cell_session_options *opts, struct cell_error *err)
{
	if (opts->fork_memory || opts->fork_time_ms)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "with the executor \"remote\" the limits of children are the server's: leave out %s",
				 opts->fork_memory ? "fork_memory" : "fork_time");
	return 0;
}

const struct cell__executor cell__remote_executor = {
	.name = "remote",
	.isolation = "server",
	.takes = CELL_TAKES_SERVER | CELL_TAKES_WORKSPACE,
	.calls_there = true,
	.create = remote_create,
	.destroy = remote_destroy,
	.read_options = cell__remote_read_options,
	.free_options = cell__remote_free_options,
	.check = remote_check,
	.probe = remote_probe,
	.open = remote_open,
	.fork = cell__remote_fork,
	CELL__REMOTE_KERNEL,
	.receipt = "{\"executor\":\"remote\"}",
};
