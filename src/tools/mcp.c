/*
 * MCP servers in the registry, and calls of their tools.  See mcp.h.
 *
 *     server:  made with its tool ──first use──▶ has a client ──no tool uses it any more──▶ closing ──▶ gone
 *     call:    request to the client ──▶ answered | failed | timed out
 *                 │                 └─ a task was made ──▶ its result requested ──▶ answered | failed | timed out
 *                 └─ cancelled: the server is notified
 */
#define _GNU_SOURCE
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/hole.h"
#include "spawn/confinement.h"
#include "tools/mcp.h"

struct mcp_run {
	struct cell__mcp_request request;
	struct cell__tool_run *run;
	struct cell__tool_server *server; /* that serves it; a reference */
	char *task; /* that the server works on; NULL: none */
};

static void free_run(struct mcp_run *mcp)
{
	cell__tool_server_unref(mcp->server);
	free(mcp->task);
	free(mcp);
}

/* ---- versions of a tool ---- */

static char **copy_tags(const struct cell__tool_entry *tool)
{
	char **tags = cell__alloc(tool->n_tags, sizeof *tags);
	for (size_t i = 0; tags && i < tool->n_tags; i++)
		tags[i] = cell__strdup(tool->tags[i]);
	return tags;
}

/* The same definition, without callables. */
static struct cell__tool_entry *copy_tool(const struct cell__tool_entry *tool)
{
	struct cell__tool_entry *copy = cell__alloc(1, sizeof *copy);
	if (!copy)
		return NULL;
	*copy = (struct cell__tool_entry){
		.adapter = tool->adapter,
		.refs = 1,
		.line = tool->line,
		.timeout_ms = tool->timeout_ms,
		.max_output = tool->max_output,
		.mcp = tool->mcp,
		.server = tool->server,
		.described = tool->described,
	};
	copy->mcp->refs++;
	copy->server->refs++;
	copy->name = cell__strdup(tool->name);
	copy->file = tool->file ? cell__strdup(tool->file) : NULL;
	copy->description = tool->description ? cell__strdup(tool->description) : NULL;
	copy->tags = copy_tags(tool);
	copy->n_tags = copy->tags ? tool->n_tags : 0;
	bool ok = copy->name && copy->tags && (!tool->file || copy->file);
	for (size_t i = 0; i < copy->n_tags; i++)
		ok &= copy->tags[i] != NULL;
	if (ok)
		return copy;
	cell__tool_unref(copy);
	return NULL;
}

static void set_problem(struct cell__tool_server *server, int code, const char *text, const char *tail);
static void handle_done(struct cell__mcp_request *request, const struct cell__mcp_answer *answer);

static void fill(struct cell__tool_entry *tool)
{
	char problem[160] = "";
	struct cell__tool_server *server = tool->server;
	cell__mcp_fill_callables(tool, cell__mcp_client_tools(server->client), problem);
	const char *cut = cell__mcp_client_list_problem(server->client);
	char all[330];
	snprintf(all, sizeof all, "%s%s%s", cut ? cut : "", cut && problem[0] ? "; " : "", problem);
	if (all[0])
		set_problem(server, CELL_E_LIMIT, all, NULL);
}

static bool renew(struct cell__tool_entry **slot, const struct cell__tool_server *server)
{
	if (!*slot || (*slot)->server != server)
		return false;
	struct cell__tool_entry *next = copy_tool(*slot);
	if (!next)
		return false;
	fill(next);
	cell__tool_unref(*slot);
	*slot = next;
	return true;
}

/* The server listed its tools: its tool gets these callables. */
static void renew_tools(struct cell__tool_server *server)
{
	struct cell__tools *tools = server->tools;
	bool changed = false;
	for (size_t i = 0; i < tools->n_host_tools; i++)
		changed |= renew(&tools->host_tools[i], server);
	for (size_t i = 0; i < tools->n_dirs; i++)
		for (size_t k = 0; k < tools->dirs[i].n_files; k++)
			changed |= renew(&tools->dirs[i].files[k].tool, server);
	if (changed)
		cell__tools_reindex(tools);
}

/* ---- servers ---- */

static void set_problem(struct cell__tool_server *server, int code, const char *text, const char *tail)
{
	CELL_AUTO_BUF struct cell__buf problem = CELL_BUF_INIT;
	free(cell__take_ptr(server->problem));
	server->problem_code = code;
	if (!text)
		return;
	int rc = cell__buf_add_utf8(&problem, text, strlen(text));
	if (tail)
		rc |= cell__buf_add_str(&problem, "\nIts stderr ends with:\n") | cell__buf_add_str(&problem, tail);
	if (rc < 0 || cell__secrets_redact(&server->secrets, &problem) < 0)
		server->problem = cell__strdup("out of memory");
	else
		server->problem = cell__buf_take(&problem);
}

static void handle_listed(void *arg, const struct cell__mcp_failure *failure)
{
	struct cell__tool_server *server = arg;
	server->settling = false;
	server->refs++;
	server->needs_login = failure && failure->err.code == CELL_E_AUTH;
	if (failure) {
		set_problem(server, failure->err.code, failure->err.msg, failure->tail);
		server->failed_us = cell__now_us();
	} else {
		set_problem(server, 0, NULL, NULL);
		renew_tools(server);
	}
	cell__mcp_wake(server->tools);
	cell__tool_server_unref(server);
}

static void tell_start(const struct cell__tool_server *server, const struct cell__call *call, const char *callable, json_t *params)
{
	struct cell__tools *tools = server->tools;
	struct cell__mcp_event event = { .type = CELL_MCP_PROGRESS,
					 .tool = server->name,
					 .callable = callable,
					 .session_id = call->session_id,
					 .call = call,
					 .params = params };
	if (tools->mcp_event)
		tools->mcp_event(tools->mcp_event_arg, &event);
}

/* Whoever waits for it learns how long it has been starting, and what it says. */
static void handle_starting(void *arg, int64_t since_us, const char *line)
{
	struct cell__tool_server *server = arg;
	CELL_AUTO_BUF struct cell__buf said = CELL_BUF_INIT;
	double seconds = (double)(since_us / 100000) / 10;
	char words[40];
	if (line && (cell__buf_add_str(&said, line) < 0 || cell__secrets_redact(&server->secrets, &said) < 0))
		return;
	free(server->said);
	server->said = said.data ? cell__strdup(said.data) : NULL;
	snprintf(words, sizeof words, "starting for %g s", seconds);
	json_t *params = json_pack("{s:f, s:s++}", "progress", seconds, "message", words, said.data ? ": " : "",
				   said.data ? said.data : "");
	if (!params)
		return;
	for (const struct cell__tool_run *run = server->tools->runs; run; run = run->next)
		if (run->tool->adapter == &cell__tool_mcp && run->state && ((struct mcp_run *)run->state)->server == server)
			tell_start(server, run->call, run->callable->name, params);
	for (const struct cell__call *call = NULL; (call = cell__mcp_next_parked(server, call));)
		tell_start(server, call, "", params);
	json_decref(params);
}

/* The origin of the server's messages: the only call in progress, or the session that all such calls share. */
static void set_origin(const struct cell__tool_server *server, struct cell__mcp_event *event)
{
	size_t n = 0;
	for (const struct cell__tool_run *run = server->tools->runs; run; run = run->next) {
		if (run->tool->adapter != &cell__tool_mcp || !run->state || ((struct mcp_run *)run->state)->server != server)
			continue;
		bool same = n == 0 || (event->session_id && strcmp(event->session_id, run->call->session_id) == 0);
		event->session_id = same ? run->call->session_id : NULL;
		event->call = n == 0 ? run->call : NULL;
		event->callable = n == 0 ? run->callable->name : NULL;
		n++;
	}
}

static void handle_log(void *arg, const json_t *params)
{
	struct cell__tool_server *server = arg;
	struct cell__tools *tools = server->tools;
	struct cell__mcp_event event = { .type = CELL_MCP_LOG, .tool = server->name, .params = params };
	set_origin(server, &event);
	if (tools->mcp_event)
		tools->mcp_event(tools->mcp_event_arg, &event);
}

static void handle_elicit(void *arg, struct cell__mcp_elicitation *elicitation, struct cell__mcp_request *request, const json_t *params)
{
	struct cell__tool_server *server = arg;
	struct cell__tools *tools = server->tools;
	struct cell__mcp_event event = { .type = CELL_MCP_QUESTION, .tool = server->name, .params = params, .elicitation = elicitation };
	const struct cell__tool_run *run = request && request->done == handle_done ? ((struct mcp_run *)request)->run : NULL;
	if (run) {
		event.session_id = run->call->session_id;
		event.call = run->call;
		event.callable = run->callable->name;
	} else {
		set_origin(server, &event);
	}
	if (tools->mcp_event)
		tools->mcp_event(tools->mcp_event_arg, &event);
	else
		cell__mcp_elicitation_answer(elicitation, "decline", NULL);
}

static bool handle_elicits(void *arg)
{
	struct cell__tools *tools = ((struct cell__tool_server *)arg)->tools;
	return tools->mcp_elicits && tools->mcp_elicits(tools->mcp_event_arg);
}

static void handle_ended(void *arg);

static int need_client(struct cell__tool_server *server, struct cell_error *err)
{
	if (server->client)
		return 0;
	if (server->closing || server->tools->closing)
		return cell_fail(err, CELL_E_CLOSED, 0, "the server is closed");
	struct cell__mcp_client_options opts = {
		.loop = server->tools->opts.loop,
		.supervisor = server->tools->opts.supervisor,
		.start_timeout_ms = server->params->start_timeout_ms,
		.launch = cell__mcp_launch,
		.listed = handle_listed,
		.starting = handle_starting,
		.ended = handle_ended,
		.log = handle_log,
		.elicit = handle_elicit,
		.elicits = handle_elicits,
		.arg = server,
	};
	return cell__mcp_client_create(&opts, &server->client, err);
}

bool cell__mcp_known(const struct cell__tool_server *server)
{
	return server->client && cell__mcp_client_tools(server->client);
}

/* Whether it is our program, and runs where the caller's code may. */
static bool confines_server(const struct cell__mcp_params *params)
{
	return params->kind == CELL_MCP_STDIO && !params->host && !is_hole("servers");
}

/* A server's first use determines which callers it serves. */
static int need_client_for(struct cell__tool_server *server, struct cell__confinement *confinement, struct cell_error *err)
{
	if (server->client)
		return 0;
	cell__confinement_unref(server->confine);
	server->confine = cell__confinement_ref(confinement);
	return need_client(server, err);
}

static void fail_list(struct cell__tool_server *server, const struct cell_error *err)
{
	set_problem(server, err->code, err->msg, NULL);
	server->failed_us = cell__now_us();
}

static void request_list(struct cell__tool_server *server, struct cell__confinement *confinement)
{
	struct cell_error err;
	if (need_client_for(server, confinement, &err) < 0) {
		fail_list(server, &err);
		return;
	}
	if (cell__mcp_known(server) || cell__mcp_client_backing_off(server->client))
		return;
	server->settling = true;
	server->asked_us = cell__now_us();
	cell__mcp_client_list(server->client);
}

static void handle_confined(struct cell__confine_wait *wait, struct cell__confinement *confinement, const struct cell_error *err)
{
	struct cell__tool_server *server = (struct cell__tool_server *)((char *)wait - offsetof(struct cell__tool_server, confining));
	server->settling = false;
	if (!confinement)
		fail_list(server, err);
	else if (server->refs > 1) /* else it was dropped meanwhile */
		request_list(server, confinement);
	cell__confinement_unref(confinement);
	if (!server->settling)
		cell__mcp_wake(server->tools);
	cell__tool_server_unref(server);
}

void cell__mcp_ask(struct cell__tool_server *server, const struct cell__call *call)
{
	struct cell__confinement *confinement = NULL;
	struct cell_error err;
	cell__learn_begin(server->tools);
	/* A list that the server allows to keep for a time only is used while it is asked for again. */
	if (cell__mcp_known(server) && cell__mcp_client_stale(server->client) && cell__mcp_client_lives(server->client) &&
	    cell__now_us() - server->listed_us >= CELL_MCP_AGAIN_MS * 1000) {
		server->listed_us = cell__now_us();
		cell__mcp_client_list(server->client);
	}
	if (cell__mcp_known(server) || server->settling)
		return;
	/* Looking at a tool asks several times in a row; one failure is enough. */
	if (server->problem && cell__now_us() - server->failed_us < CELL_MCP_AGAIN_MS * 1000)
		return;
	server->confining.ready = handle_confined;
	int rc = server->client || !confines_server(server->params)
			 ? 0
			 : cell__tools_confine(server->tools, call, &server->confining, &confinement, &err);
	if (rc < 0) {
		fail_list(server, &err);
	} else if (rc > 0) {
		server->settling = true;
		server->refs++;
	} else {
		request_list(server, confinement);
		cell__confinement_unref(confinement);
	}
}

/* ---- waiting for servers to be gone ---- */

struct cell__mcp_stop {
	void (*done)(void *arg);
	void *arg;
	struct cell__mcp_stop *next;
};

static void tell_stopped(struct cell__tools *tools)
{
	bool lives = tools->mcp_closing > 0;
	for (const struct cell__tool_server *server = tools->servers; server; server = server->next)
		lives |= server->client && cell__mcp_client_lives(server->client);
	while (!lives && tools->stops) {
		struct cell__mcp_stop *stop = tools->stops;
		tools->stops = stop->next;
		stop->done(stop->arg);
		free(stop);
	}
}

static void handle_ended(void *arg)
{
	tell_stopped(((struct cell__tool_server *)arg)->tools);
}

static void free_server(struct cell__tool_server *server)
{
	cell__mcp_params_unref(server->params);
	cell__secrets_finish(&server->secrets);
	cell__confinement_unref(server->confine);
	free(server->problem);
	free(server->said);
	free(server->name);
	free(server);
}

static void handle_client_closed(void *arg)
{
	struct cell__tool_server *server = arg;
	struct cell__tools *tools = server->tools;
	free_server(server);
	if (--tools->mcp_closing > 0)
		return;
	tell_stopped(tools);
	if (tools->mcp_closed)
		tools->mcp_closed(tools);
}

void cell__tool_server_unref(struct cell__tool_server *server)
{
	if (!server || --server->refs > 0)
		return;
	if (!server->client) {
		free_server(server);
		return;
	}
	server->closing = true;
	server->tools->mcp_closing++;
	cell__mcp_client_close(cell__take_ptr(server->client), handle_client_closed, server);
}

static struct cell__tool_server *make_server(struct cell__tools *tools, const struct cell__tool_entry *tool)
{
	struct cell__tool_server *server = cell__alloc(1, sizeof *server);
	char *name = cell__strdup(tool->name);
	if (!server || !name) {
		free(server);
		free(name);
		return NULL;
	}
	server->refs = 1;
	server->tools = tools;
	server->name = name;
	server->params = tool->mcp;
	server->params->refs++;
	server->next = tools->servers;
	tools->servers = server;
	return server;
}

static bool is_defined_by(const struct cell__tool_server *server, const struct cell__tool_entry *tool)
{
	return tool->adapter == &cell__tool_mcp && strcmp(server->name, tool->name) == 0 &&
	       cell__mcp_params_equal(server->params, tool->mcp);
}

/* Makes one more server of a definition: closes unused ones to make room, the oldest first. */
static struct cell__tool_server *make_another(const struct cell__tool_entry *tool, struct cell_error *err)
{
	struct cell__tools *tools = tool->server->tools;
	struct cell__tool_server **idle = NULL;
	size_t count = 0;
	for (struct cell__tool_server **at = &tools->servers; *at; at = &(*at)->next)
		if (is_defined_by(*at, tool)) {
			count++;
			idle = *at != tool->server && (*at)->refs == 1 ? at : idle;
		}
	if (count >= CELL_MCP_LIMIT_LIKE && !idle) {
		cell_fail(err, CELL_E_LIMIT, 0, "sessions with more than %u different sandboxes use this server", CELL_MCP_LIMIT_LIKE);
		return NULL;
	}
	if (count >= CELL_MCP_LIMIT_LIKE) {
		struct cell__tool_server *oldest = *idle;
		*idle = oldest->next;
		cell__tool_server_unref(oldest);
	}
	struct cell__tool_server *server = make_server(tools, tool);
	if (!server)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return server;
}

/* The server for this caller, with a client: the tool's, or one that is confined like the caller. NULL: err has the reason. */
static struct cell__tool_server *server_for(const struct cell__tool_entry *tool, struct cell__confinement *confinement,
					    struct cell_error *err)
{
	struct cell__tool_server *server = tool->server;
	if (!server->client)
		return need_client_for(server, confinement, err) < 0 ? NULL : server;
	if (!cell__confinement_equal(server->confine, confinement)) {
		for (server = server->tools->servers; server; server = server->next)
			if (is_defined_by(server, tool) && server->client && cell__confinement_equal(server->confine, confinement))
				break;
		if (!server && (server = make_another(tool, err)))
			server->confine = cell__confinement_ref(confinement);
	}
	return server && need_client(server, err) == 0 ? server : NULL;
}

static void attach(struct cell__tools *tools, struct cell__tool_entry *tool)
{
	if (tool->server)
		return;
	struct cell__tool_server *server = tools->servers;
	while (server && !is_defined_by(server, tool))
		server = server->next;
	if (!server)
		server = make_server(tools, tool);
	if (!server)
		return;
	server->refs++;
	tool->server = server;
	if (cell__mcp_known(server))
		fill(tool);
}

void cell__mcp_attach(struct cell__tools *tools)
{
	for (size_t i = 0; i < tools->n_index; i++)
		if (tools->index[i]->adapter == &cell__tool_mcp)
			attach(tools, tools->index[i]);
	for (struct cell__tool_server **at = &tools->servers; *at;) {
		struct cell__tool_server *server = *at;
		bool used = false;
		for (size_t i = 0; i < tools->n_index && !used; i++)
			used = tools->index[i]->server == server || is_defined_by(server, tools->index[i]);
		if (used) {
			at = &server->next;
			continue;
		}
		*at = server->next;
		cell__tool_server_unref(server);
	}
}

void cell__mcp_close_all(struct cell__tools *tools, void (*done)(struct cell__tools *tools))
{
	/* Even if versions of tools still refer to them, they are not used any more. */
	while (tools->servers) {
		struct cell__tool_server *server = tools->servers;
		tools->servers = server->next;
		cell__tool_server_unref(server);
	}
	for (size_t i = 0; i < tools->n_host_tools; i++)
		cell__tool_server_unref(cell__take_ptr(tools->host_tools[i]->server));
	for (size_t i = 0; i < tools->n_dirs; i++)
		for (size_t k = 0; k < tools->dirs[i].n_files; k++)
			if (tools->dirs[i].files[k].tool)
				cell__tool_server_unref(cell__take_ptr(tools->dirs[i].files[k].tool->server));
	if (tools->mcp_closing == 0)
		done(tools);
	else
		tools->mcp_closed = done;
}

void cell__mcp_add_problem(json_t *out, const struct cell__tool_server *server)
{
	char starting[560];
	const char *problem = server->problem;
	if (!problem && server->settling && !cell__mcp_known(server)) {
		const char *command = server->params->command ? server->params->command : server->params->url;
		snprintf(starting, sizeof starting,
			 "the server ('%.80s') is still starting, for %lld s now; it has %lld s in all (start_timeout)%s%.200s", command,
			 (long long)((cell__now_us() - server->asked_us) / 1000000), (long long)(server->params->start_timeout_ms / 1000),
			 server->said ? "; it says: " : "", server->said ? server->said : "");
		problem = starting;
	}
	if (problem)
		json_object_set_new(out, "problem", json_string(problem));
}

void cell__mcp_add_problems(const struct cell__tools *tools, json_t *list)
{
	for (size_t i = 0; i < tools->n_index; i++) {
		const struct cell__tool_entry *tool = tools->index[i];
		if (tool->server && tool->server->problem)
			json_array_append_new(list, json_pack("{s:s, s:i, s:s}", "file", tool->file ? tool->file : tool->name, "line",
							      tool->line > 0 ? tool->line : 1, "message", tool->server->problem));
	}
}

/* ---- calls ---- */

static void handle_task_cancelled(struct cell__mcp_request *request, const struct cell__mcp_answer *answer)
{
	(void)answer; /* it was a courtesy */
	free(request);
}

/* The result of the task is no longer needed. */
static void cancel_task(struct cell__tool_server *server, const char *task)
{
	struct cell__mcp_request *request = cell__alloc(1, sizeof *request);
	if (!request)
		return;
	request->method = "tasks/cancel";
	request->params = json_pack("{s:s}", "taskId", task);
	request->timeout_ms = CELL_MCP_PING_TIMEOUT_MS;
	request->done = handle_task_cancelled;
	if (request->params && server && server->client && cell__mcp_request_start(server->client, request, NULL) == 0)
		return;
	json_decref(request->params);
	free(request);
}

/* The server made a task of the call: its result is the call's. The request for the result waits until it exists. */
static bool follow_task(struct mcp_run *mcp, const struct cell__mcp_answer *answer)
{
	struct cell__tool_run *run = mcp->run;
	const json_t *result = answer->message && answer->message->kind == CELL__RPC_RESULT ? answer->message->result : NULL;
	const char *task = json_string_value(json_object_get(json_object_get(result, "task"), "taskId"));
	if (!run->callable->task || mcp->task || !task || !mcp->server->client)
		return false;
	mcp->task = cell__strdup(task);
	mcp->request = (struct cell__mcp_request){
		.method = "tasks/result",
		.params = json_pack("{s:s}", "taskId", task),
		.timeout_ms = cell__tool_run_timeout_ms(run),
		.done = handle_done,
	};
	if (mcp->task && mcp->request.params && cell__mcp_request_start(mcp->server->client, &mcp->request, NULL) == 0)
		return true;
	json_decref(mcp->request.params);
	return false;
}

static void handle_done(struct cell__mcp_request *request, const struct cell__mcp_answer *answer)
{
	struct mcp_run *mcp = (struct mcp_run *)request;
	struct cell__tool_run *run = mcp->run;
	if (follow_task(mcp, answer))
		return;
	if (answer->failure && answer->failure->err.code == CELL_E_AUTH)
		mcp->server->needs_login = true;
	if (mcp->task && answer->failure && answer->failure->err.code == CELL_E_TOOL_TIMEOUT)
		cancel_task(mcp->server, mcp->task);
	run->state = NULL;
	free_run(mcp);
	cell__mcp_finish_run(run, answer);
}

static void handle_progress(struct cell__mcp_request *request, const json_t *params)
{
	struct cell__tool_run *run = ((struct mcp_run *)request)->run;
	struct cell__mcp_event event = {
		.type = CELL_MCP_PROGRESS,
		.tool = run->tool->name,
		.callable = run->callable->name,
		.session_id = run->call->session_id,
		.call = run->call,
		.params = params,
	};
	if (run->tools->mcp_event)
		run->tools->mcp_event(run->tools->mcp_event_arg, &event);
}

static void start(struct cell__tool_run *run, json_t *args)
{
	struct cell_error err;
	struct mcp_run *mcp = cell__alloc(1, sizeof *mcp);
	json_t *params = json_pack("{s:s, s:O}", "name", run->callable->name, "arguments", args);
	if (!mcp || !params || !run->tool->server) {
		json_decref(params);
		free(mcp);
		cell__tool_run_fail(run, CELL_E_NOMEM, "out of memory");
		return;
	}
	if (run->callable->task)
		json_object_set_new(params, "task", json_object());
	mcp->run = run;
	mcp->request.method = "tools/call";
	mcp->request.params = params;
	mcp->request.timeout_ms = cell__tool_run_timeout_ms(run);
	mcp->request.done = handle_done;
	mcp->request.progress = run->tools->mcp_event ? handle_progress : NULL;
	mcp->request.traceparent = run->call->trace.parent;
	run->state = mcp;
	mcp->server = server_for(run->tool, run->code, &err);
	if (mcp->server)
		mcp->server->refs++;
	if (mcp->server && cell__mcp_request_start(mcp->server->client, &mcp->request, &err) == 0)
		return;
	run->state = NULL;
	json_decref(params);
	free_run(mcp);
	cell__tool_run_fail(run, err.code, "%s", err.msg);
}

static void cancel(struct cell__tool_run *run)
{
	struct mcp_run *mcp = cell__take_ptr(run->state);
	cell__mcp_request_cancel(&mcp->request, "the caller no longer waits for the answer");
	if (mcp->task)
		cancel_task(mcp->server, mcp->task);
	free_run(mcp);
}

static bool confines(const struct cell__tool_entry *tool)
{
	return tool->mcp && confines_server(tool->mcp);
}

const struct cell__tool_adapter cell__tool_mcp = { .name = "mcp", .start = start, .cancel = cancel, .confines = confines };

/* ---- at run time ---- */

static bool is_added(const struct cell__tools *tools, size_t i, const char *name)
{
	return tools->host_tools[i]->adapter == &cell__tool_mcp && strcmp(tools->host_tools[i]->name, name) == 0;
}

int cell__tools_add_mcp(struct cell__tools *tools, const char *name, const json_t *params, struct cell_error *err)
{
	if (!cell__tool_name_ok(name) || strcmp(name, "list") == 0 || strcmp(name, "search") == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "invalid tool name '%.80s'", name);
	size_t at = 0;
	while (at < tools->n_host_tools && strcmp(tools->host_tools[at]->name, name) != 0)
		at++;
	if (at < tools->n_host_tools && !is_added(tools, at, name))
		return cell_fail(err, CELL_E_EXISTS, 0, "Tool '%s' already registered by the host program", name);
	if (tools->n_host_tools >= CELL_TOOL_LIMIT_TOOLS)
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %u tools", CELL_TOOL_LIMIT_TOOLS);
	struct cell__tool_entry **list = cell__realloc(tools->host_tools, (tools->n_host_tools + 1) * sizeof *list);
	if (!list)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a tool");
	tools->host_tools = list;
	struct cell__tool_entry *tool = cell__mcp_tool_from_json(name, params, err);
	if (!tool)
		return cell_fail_wrap(err, "MCP server '%s'", name);
	if (at < tools->n_host_tools)
		cell__tool_unref(list[at]);
	else
		tools->n_host_tools++;
	list[at] = tool;
	cell__tools_reindex(tools);
	return 0;
}

int cell__tools_remove_mcp(struct cell__tools *tools, const char *name, struct cell_error *err)
{
	for (size_t i = 0; i < tools->n_host_tools; i++) {
		if (!is_added(tools, i, name))
			continue;
		struct cell__tool_entry *tool = tools->host_tools[i];
		memmove(&tools->host_tools[i], &tools->host_tools[i + 1], (tools->n_host_tools - i - 1) * sizeof *tools->host_tools);
		tools->n_host_tools--;
		cell__tool_unref(tool);
		cell__tools_reindex(tools);
		return 0;
	}
	return cell_fail(err, CELL_E_NOT_FOUND, 0, "MCP server '%.80s' is not registered", name);
}

static void stop_servers(struct cell__tools *tools)
{
	/* A stopped server fails its calls, whose callbacks may change the list. */
	struct cell__tool_server *server = tools->servers;
	while (server) {
		server->refs++;
		if (server->client)
			cell__mcp_client_stop(server->client);
		struct cell__tool_server *next = server->next;
		bool listed = false;
		for (struct cell__tool_server *each = tools->servers; each; each = each->next)
			listed |= each == server;
		assert(!listed || server->refs > 1); /* the list's and ours */
		cell__tool_server_unref(server);
		server = listed ? next : tools->servers;
	}
}

void cell__tools_stop_mcp(struct cell__tools *tools, void (*done)(void *arg), void *arg)
{
	struct cell__mcp_stop *stop = cell__alloc(1, sizeof *stop);
	stop_servers(tools);
	if (!stop) {
		done(arg); /* without memory the caller is not kept waiting */
		return;
	}
	*stop = (struct cell__mcp_stop){ .done = done, .arg = arg, .next = tools->stops };
	tools->stops = stop;
	tell_stopped(tools);
}

struct cell__oauth *cell__tools_oauth(struct cell__tools *tools, const char *name, struct cell_error *err)
{
	for (struct cell__tool_server *server = tools->servers; server; server = server->next) {
		if (strcmp(server->name, name) != 0)
			continue;
		if (server->params->oauth)
			return cell__mcp_oauth_create(server, err);
		cell_fail(err, CELL_E_INVALID, 0, "the MCP server '%.80s' has no login: its definition lacks auth: oauth", name);
		return NULL;
	}
	cell_fail(err, CELL_E_NOT_FOUND, 0, "there is no MCP server '%.80s'", name);
	return NULL;
}

void cell__tools_oauth_changed(struct cell__tools *tools, const char *name)
{
	for (struct cell__tool_server *server = tools->servers; server; server = server->next) {
		if (!server->params->oauth || strcmp(server->name, name) != 0)
			continue;
		server->failed_us = 0; /* asked again at once */
		server->needs_login = false;
		if (server->client) {
			cell__mcp_client_stop(server->client);
			break; /* calls that failed may have changed the list */
		}
	}
}

void cell__tools_login_at(struct cell__tools *tools, const char *page)
{
	free(tools->login_page);
	tools->login_page = page ? cell__strdup(page) : NULL;
}

json_t *cell__tools_logins(const struct cell__tools *tools)
{
	json_t *list = json_array();
	for (const struct cell__tool_server *server = tools->servers; list && server; server = server->next) {
		CELL_AUTO_BUF struct cell__buf page = CELL_BUF_INIT;
		if (!server->params->oauth)
			continue;
		if (tools->login_page)
			(void)cell__buf_printf(&page, "%s%s", tools->login_page, server->name);
		json_array_append_new(
			list, json_pack("{s:s, s:b, s:s*}", "server", server->name, "needed", server->needs_login, "link", page.data));
	}
	return list;
}

void cell__tools_oauth_destroy(struct cell__oauth *oauth)
{
	cell__mcp_oauth_destroy(oauth);
}

/* The server's list; tools without an output schema get what was learned of their results as learnedSchema.  NULL: out of memory. */
static json_t *with_learned(struct cell__tools *tools, const char *name, const json_t *list)
{
	const json_t *at = json_object_get(tools->names, name);
	const struct cell__tool_entry *tool = at ? tools->index[json_integer_value(at)] : NULL;
	json_t *copy = json_copy((json_t *)list), *spec;
	size_t i;
	json_array_foreach((json_t *)list, i, spec) {
		const char *own = json_string_value(json_object_get(spec, "name"));
		const struct cell__callable *callable = tool && own ? cell__tool_callable(tool, own) : NULL;
		const json_t *shape = callable && strcmp(callable->name, own) == 0 ? cell__learned_shape(tool, callable) : NULL;
		if (!copy || (!shape && !json_object_get(spec, "learnedSchema")))
			continue;
		json_t *changed = json_copy(spec);
		json_object_del(changed, "learnedSchema"); /* a word of ours, which the server has no use for */
		if (!changed || (shape && json_object_set_new(changed, "learnedSchema", json_deep_copy(shape)) < 0) ||
		    json_array_set(copy, i, changed) < 0) {
			json_decref(copy);
			copy = NULL;
		}
		json_decref(changed);
	}
	return copy;
}

json_t *cell__tools_mcp_schema(struct cell__tools *tools, const char *name)
{
	for (const struct cell__tool_server *server = tools->servers; server; server = server->next) {
		if (strcmp(server->name, name) != 0 || !cell__mcp_known(server))
			continue;
		json_t *info = cell__mcp_client_server_info(server->client);
		const char *instructions = cell__mcp_client_instructions(server->client);
		json_t *list = with_learned(tools, name, cell__mcp_client_tools(server->client));
		return list ? json_pack("{s:s, s:O?, s:s?, s:o}", "name", name, "server", info, "instructions", instructions, "tools", list)
			    : NULL;
	}
	return NULL;
}

void cell__tools_on_mcp(struct cell__tools *tools, void (*event)(void *arg, const struct cell__mcp_event *event),
			bool (*elicits)(void *arg), void *arg)
{
	tools->mcp_event = event;
	tools->mcp_elicits = elicits;
	tools->mcp_event_arg = arg;
}
