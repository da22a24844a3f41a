/*
 * The start of a connection: the program or the web service, and which of the protocol's two eras the server speaks.
 *
 *     launch ──▶ check (on the pool, for confined programs) ──▶ transport open
 *        ──▶ server/discover ──result──▶ ready, modern: every request describes itself (modern.c)
 *                 │  └──silence for CELL_MCP_PROBE_MS──▶ initialize is sent as well; the first result decides
 *                 ├──an error, an HTTP status──▶ initialize ──result──▶ ready, legacy
 *                 └──the program ends──▶ started once more, with initialize alone: some servers end at a first message that they do not know
 *        initialize ──HTTP 4xx, and nobody said which transport it is──▶ started once more by the older transport (sse.c)
 *
 * A server that turned out to be legacy is not probed again until a start fails.
 */
#define _GNU_SOURCE
#include <string.h>

#include "mcp/client/internal.h"

/* ---- the server's description of itself ---- */

static const char *const versions[] = { CELL_MCP_VERSION, "2025-06-18", "2025-03-26", "2024-11-05" };

static const char *known_version(const char *asked)
{
	for (size_t i = 0; asked && i < sizeof versions / sizeof *versions; i++)
		if (strcmp(asked, versions[i]) == 0)
			return versions[i];
	return NULL;
}

static bool names_version(const json_t *list, const char *version)
{
	size_t i;
	json_t *each;
	json_array_foreach((json_t *)list, i, each)
		if (json_is_string(each) && strcmp(json_string_value(each), version) == 0)
			return true;
	return false;
}

static bool names_known_version(const json_t *list)
{
	size_t i;
	json_t *each;
	json_array_foreach((json_t *)list, i, each)
		if (known_version(json_string_value(each)))
			return true;
	return false;
}

static void keep_description(struct cell__mcp_client *client, const json_t *result, json_t *info)
{
	const char *instructions = json_string_value(json_object_get(result, "instructions"));
	json_decref(client->server_info);
	client->server_info = json_is_object(info) ? json_incref(info) : NULL;
	free(client->instructions);
	client->instructions = instructions ? cell__strdup(instructions) : NULL;
}

static void become_ready(struct cell__mcp_client *client, const char *version)
{
	client->state = CELL_MCP_READY;
	client->ready_us = cell__now_us();
	client->probe_at_us = 0;
	client->restarted = client->renew = false;
	client->refused.code = 0;
	if (client->transport->ops->agreed)
		client->transport->ops->agreed(client->transport, version);
}

static void fail_start(struct cell__mcp_client *client, const struct cell_error *err)
{
	if (client->state == CELL_MCP_STARTING)
		cell__mcp_drop(client, err);
}

/* ---- legacy: initialize ---- */

/* The connection was lost, which has been reported already, or the server was silent. */
static void handle_no_answer(struct cell__mcp_client *client, const struct cell__mcp_request *request,
			     const struct cell__mcp_failure *failure)
{
	struct cell_error err;
	if (failure->err.code != CELL_E_TOOL_TIMEOUT)
		return;
	cell_fail(&err, CELL_E_TIMEOUT, 0, "the server did not answer %s within %gs", request->method, (double)request->timeout_ms / 1000);
	fail_start(client, &err);
}

static void handle_initialized(struct cell__mcp_request *request, const struct cell__mcp_answer *answer)
{
	struct cell__mcp_client *client = request->client;
	struct cell_error err;
	if (answer->failure) {
		handle_no_answer(client, request, answer->failure);
		return;
	}
	const struct cell__rpc_message *message = answer->message;
	const char *asked = NULL, *version = NULL;
	if (message->kind == CELL__RPC_ERROR) {
		if (client->probe.list)
			return; /* it may be a modern server that has not answered the probe yet */
		cell_fail(&err, CELL_E_TOOL, 0, "the server refused initialize: %.160s (MCP error %lld)", message->error_text,
			  (long long)message->code);
	} else {
		asked = json_string_value(json_object_get(message->result, "protocolVersion"));
		version = known_version(asked);
		if (!asked)
			cell_fail(&err, CELL_E_PROTOCOL, 0, "the server's answer to initialize has no protocolVersion");
		else if (!version)
			cell_fail(&err, CELL_E_VERSION, 0, "the server uses protocol revision %.40s; supported revisions are %s to %s",
				  asked, versions[3], CELL_MCP_MODERN);
	}
	if (!version) {
		fail_start(client, &err);
		return;
	}
	cell__mcp_take(&client->probe);
	client->legacy = true;
	client->batches = strcmp(version, "2025-03-26") == 0;
	keep_description(client, message->result, json_object_get(message->result, "serverInfo"));
	become_ready(client, version);
	cell__mcp_notify(client, "notifications/initialized", NULL);
	cell__mcp_flush(client);
	cell__mcp_list_start(client);
}

static int send_initialize(struct cell__mcp_client *client, struct cell_error *err)
{
	bool elicits = cell__mcp_elicits(client);
	json_t *capabilities = elicits ? json_pack("{s:{}}", "elicitation") : json_object();
	json_t *params = json_pack("{s:s, s:o, s:{s:s, s:s}}", "protocolVersion", CELL_MCP_VERSION, "capabilities", capabilities,
				   "clientInfo", "name", "workcell", "version", cell_version());
	if (!params)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	client->init = (struct cell__mcp_request){
		.method = "initialize",
		.params = params,
		.timeout_ms = client->opts.start_timeout_ms,
		.done = handle_initialized,
		.client = client,
		.own = true,
		.era = CELL_MCP_LEGACY,
	};
	client->probe_at_us = 0;
	cell__mcp_send_request(client, &client->init);
	return 0;
}

static void fall_back(struct cell__mcp_client *client)
{
	struct cell_error err;
	if (client->state != CELL_MCP_STARTING || client->init.list)
		return;
	if (send_initialize(client, &err) < 0)
		cell__mcp_fail_soon(client, &err);
}

/* ---- modern: server/discover ---- */

static int send_probe(struct cell__mcp_client *client, struct cell_error *err);

/* The revision that we asked for is not spoken: the server names those that are. */
static void handle_other_version(struct cell__mcp_client *client, const struct cell__rpc_message *message)
{
	struct cell_error err;
	const json_t *supported = json_object_get(message->data, "supported");
	if (names_version(supported, CELL_MCP_MODERN) && !client->repeated) {
		client->repeated = true;
		if (send_probe(client, &err) < 0)
			cell__mcp_fail_soon(client, &err);
		return;
	}
	if (!json_is_array(supported) || names_known_version(supported)) {
		fall_back(client);
		return;
	}
	const char *first = json_string_value(json_array_get(supported, 0));
	cell_fail(&err, CELL_E_VERSION, 0, "the server uses protocol revision %.40s; supported revisions are %s to %s",
		  first ? first : "(none)", versions[3], CELL_MCP_MODERN);
	fail_start(client, &err);
}

static void handle_discovered(struct cell__mcp_request *request, const struct cell__mcp_answer *answer)
{
	struct cell__mcp_client *client = request->client;
	const struct cell__rpc_message *message = answer->message;
	if (answer->failure) {
		handle_no_answer(client, request, answer->failure);
		return;
	}
	if (message->kind == CELL__RPC_ERROR && message->code == CELL_RPC_VERSION) {
		handle_other_version(client, message);
		return;
	}
	/* By HTTP these are a modern server's own: initialize would not help. */
	if (message->kind == CELL__RPC_ERROR && client->kind == CELL_MCP_HTTP &&
	    (message->code == CELL_RPC_HEADER_MISMATCH || message->code == CELL_RPC_NEEDS_CAPABILITY)) {
		struct cell_error err;
		cell_fail(&err, CELL_E_TOOL, 0, "the server refused server/discover: %.160s (MCP error %lld)", message->error_text,
			  (long long)message->code);
		fail_start(client, &err);
		return;
	}
	const json_t *supported = message->result ? json_object_get(message->result, "supportedVersions") : NULL;
	if (!names_version(supported, CELL_MCP_MODERN)) {
		fall_back(client); /* an error, or the advertisement of older revisions */
		return;
	}
	cell__mcp_take(&client->init);
	client->modern = true;
	client->legacy = false;
	client->batches = false;
	keep_description(client, message->result, json_object_get(json_object_get(message->result, "_meta"), CELL_MCP_META "serverInfo"));
	cell__mcp_keep_capabilities(client, json_object_get(message->result, "capabilities"));
	become_ready(client, CELL_MCP_MODERN);
	cell__mcp_flush(client);
	cell__mcp_list_start(client);
	cell__mcp_listen(client);
}

static int send_probe(struct cell__mcp_client *client, struct cell_error *err)
{
	client->probe = (struct cell__mcp_request){
		.method = "server/discover",
		.params = json_object(),
		.timeout_ms = client->opts.start_timeout_ms,
		.done = handle_discovered,
		.client = client,
		.own = true,
		.era = CELL_MCP_MODERN_ERA,
	};
	if (!client->probe.params)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	client->probe_at_us = cell__now_us() + CELL_MCP_PROBE_MS * 1000;
	cell__mcp_arm(client, client->probe_at_us);
	cell__mcp_send_request(client, &client->probe);
	return 0;
}

void cell__mcp_probe_late(struct cell__mcp_client *client)
{
	client->probe_at_us = 0;
	if (client->state == CELL_MCP_STARTING && client->probe.list)
		fall_back(client);
}

/* The connection is made once more, in another way; requests that waited for it go on. */
static void connect_again(struct cell__mcp_client *client)
{
	struct cell__mcp_transport *transport = cell__take_ptr(client->transport);
	cell__mcp_take(&client->probe);
	cell__mcp_take(&client->init);
	client->probe_at_us = 0;
	if (transport)
		transport->ops->close(transport);
	cell__mcp_connect(client);
}

/* Neither a login nor a pause would be another transport's. */
static bool may_be_older(const struct cell__mcp_client *client, const struct cell__mcp_rejection *refusal)
{
	return client->kind == CELL_MCP_HTTP && client->guessed && !client->older && !client->closing && refusal->status >= 400 &&
	       refusal->status < 500 && refusal->status != 401 && refusal->status != 403 && refusal->status != 429;
}

void cell__mcp_start_refused(struct cell__mcp_client *client, struct cell__mcp_request *request, const struct cell__mcp_rejection *refusal)
{
	/* Without a status, or without permission, nothing is known about the era. */
	bool era = request == &client->probe && refusal->status >= 400 && refusal->status != 401 && refusal->status != 403;
	if (cell__mcp_renews(client, refusal))
		return;
	if (era) {
		cell__mcp_take(request);
		fall_back(client);
	} else if (request == &client->init && client->probe.list) {
		cell__mcp_take(request);
	} else if (request == &client->init && may_be_older(client, refusal)) {
		client->older = client->restarted = true;
		client->refused = refusal->err;
		connect_again(client);
	} else {
		cell__mcp_drop(client, &refusal->err);
	}
}

/* The token was refused: the connection is made once more with a fresh one, and requests that waited for it go on. */
bool cell__mcp_renews(struct cell__mcp_client *client, const struct cell__mcp_rejection *refusal)
{
	if (refusal->status != 401 || !client->logs_in || client->renew || client->closing)
		return false;
	client->renew = true;
	connect_again(client);
	return true;
}

bool cell__mcp_restart_legacy(struct cell__mcp_client *client)
{
	bool probing = client->state == CELL_MCP_STARTING && client->probe.list && !client->init.list;
	if (!probing || client->restarted || client->closing)
		return false;
	cell__mcp_take(&client->probe);
	client->legacy = client->restarted = true;
	client->connection++;
	client->probe_at_us = 0;
	cell__mcp_connect(client);
	return true;
}

/* ---- the transport ---- */

static int open_transport(struct cell__mcp_client *client, const struct cell__mcp_launch *launch, struct cell_error *err)
{
	struct cell__mcp_transport_spec spec = {
		.loop = client->opts.loop,
		.supervisor = client->opts.supervisor,
		.launch = launch,
		.connect_timeout_ms = client->opts.start_timeout_ms,
		.events = &cell__mcp_events,
		.owner = client,
		.tail = &client->tail,
	};
	client->tail.size = 0;
	int rc = launch->kind == CELL_MCP_STDIO  ? cell__mcp_stdio_open(&spec, &client->transport, err)
		 : launch->kind == CELL_MCP_HTTP ? cell__mcp_http_open(&spec, &client->transport, err)
						 : cell__mcp_sse_open(&spec, &client->transport, err);
	if (rc == 0)
		client->transports++;
	return rc;
}

static void open_connection(struct cell__mcp_client *client, const struct cell__mcp_launch *launch)
{
	struct cell_error err;
	client->kind = launch->kind;
	int rc = open_transport(client, launch, &err);
	if (rc == 0)
		rc = client->legacy || launch->kind == CELL_MCP_SSE ? send_initialize(client, &err) : send_probe(client, &err);
	if (rc < 0)
		cell__mcp_fail_soon(client, &err);
}

/* ---- the check of a program, on the pool ---- */

struct checking {
	uv_work_t work;
	struct cell__mcp_client *client; /* stays until the check is over, as for a transport */
	uint64_t connection;
	struct cell__mcp_launch launch;
	struct cell_error err;
};

static void do_check(uv_work_t *work)
{
	struct checking *checking = work->data;
	if (checking->launch.check(&checking->launch, &checking->err) == 0)
		checking->err.code = 0;
}

static void handle_checked(uv_work_t *work, int status)
{
	struct checking *checking = work->data;
	struct cell__mcp_client *client = checking->client;
	(void)status; /* never cancelled */
	if (client->connection == checking->connection && !checking->err.code)
		open_connection(client, &checking->launch);
	else if (client->connection == checking->connection)
		cell__mcp_fail_soon(client, &checking->err);
	cell__mcp_launch_finish(&checking->launch);
	free(checking);
	cell__mcp_transport_gone(client);
}

/* Takes the launch over, also on failure. */
static int start_check(struct cell__mcp_client *client, struct cell__mcp_launch *launch, struct cell_error *err)
{
	struct checking *checking = cell__alloc(1, sizeof *checking);
	if (!checking) {
		cell__mcp_launch_finish(launch);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an MCP server");
	}
	*checking = (struct checking){ .work.data = checking, .client = client, .connection = client->connection, .launch = *launch };
	client->transports++;
	uv_queue_work(cell__loop_uv(client->opts.loop), &checking->work, do_check, handle_checked);
	return 0;
}

void cell__mcp_connect(struct cell__mcp_client *client)
{
	struct cell_error err;
	struct cell__mcp_launch launch = { 0 };
	client->state = CELL_MCP_STARTING;
	client->connection++;
	if (!client->restarted)
		client->start_us = cell__now_us();
	client->note_at_us = client->opts.starting ? cell__now_us() + CELL_MCP_STARTING_MS * 1000 : 0;
	if (client->note_at_us)
		cell__mcp_arm(client, client->note_at_us);
	client->window_us = cell__now_us();
	client->idle_bytes = client->idle_messages = 0;
	client->batches = client->modern = client->repeated = false;
	int rc = client->opts.launch(client->opts.arg, &launch, &err);
	launch.renew = client->renew;
	client->guessed = launch.guessed;
	if (client->older && launch.kind == CELL_MCP_HTTP)
		launch.kind = CELL_MCP_SSE;
	client->logs_in = launch.check_arg != NULL;
	if (rc < 0) {
		cell__mcp_fail_soon(client, &err);
	} else if (!launch.check) {
		open_connection(client, &launch);
		cell__mcp_launch_finish(&launch);
	} else if (start_check(client, &launch, &err) < 0) {
		cell__mcp_fail_soon(client, &err);
	}
}
