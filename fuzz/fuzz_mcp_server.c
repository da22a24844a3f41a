/*
 * mcp/server: what a client sends, line by line, and what an HTTP request says of itself.  The first byte chooses.
 *
 * The peer has no session and no room for calls, so that nothing is run: every request is answered in the call that brings
 * it, once, with a line of JSON.  Client and server agree about parameters that are headers too.  No request comes in by a Host or an Origin that is not ours.
 */
#include <strings.h>

#include "fuzz.h"
#include "mcp/client/param_headers.h"
#include "mcp/server/server.h"
#include "wire/access.h"
#include "wire/sse.h"

static struct cell_mcp_server server;
static struct cell__mcp_handle home;

struct heard {
	size_t sent, lasts;
	void *stream;
};

static void hear(void *arg, void *stream, const char *text, size_t size, bool last)
{
	struct heard *heard = arg;
	MUST(stream == heard->stream || !last);
	heard->lasts += last;
	if (!text)
		return;
	heard->sent++;
	MUST(!memchr(text, '\n', size));
	json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
	MUST(json_is_object(json) || json_is_array(json));
	json_decref(json);
}

static bool is_full(void *arg, void *stream)
{
	(void)arg, (void)stream;
	return false;
}

static struct cell__mcp_peer *make_peer(struct heard *heard)
{
	struct cell__mcp_sink sink = { hear, is_full, NULL, heard };
	if (!server.tools) {
		server.opts = (struct cell_mcp_server_options)CELL_MCP_SERVER_OPTIONS_INIT;
		server.opts.max_sessions = 0;
		pthread_mutex_init(&server.lock, NULL);
		server.tools = cell__mcp_tools_list(&server.opts);
	}
	struct cell__mcp_peer *peer = cell__mcp_peer_create(&server, &sink, "tests", false, NULL);
	MUST(peer);
	/* A session without a thread, ... */
	home = (struct cell__mcp_handle){ .server = &server, .serial = 7, .home = peer, .is_home = true };
	cell__mcp_cond_init(&home.changed);
	server.handles = peer->home = &home;
	/* ... and no room. */
	peer->n_workers = CELL_MCP_MAX_CALLS;
	home.n_cells = CELL_MCP_MAX_CELLS;
	return peer;
}

/* head: as an HTTP request; NULL: as a line. */
static void feed(struct cell__mcp_peer *peer, struct heard *heard, const char *line, size_t size, const struct cell__mcp_head *head)
{
	struct cell__mcp_refusal refusal = { 0 };
	char stream;
	*heard = (struct heard){ .stream = &stream };
	size_t n = cell__mcp_peer_feed(peer, line, size, &stream, head, &refusal);
	/* A subscription is acknowledged, and open until it is cancelled. */
	if (peer->requests) {
		MUST(n == 1 && heard->sent == 1 && !heard->lasts && !peer->requests->job);
		cell__mcp_peer_cancel(peer, &stream);
		MUST(heard->sent == 1);
	}
	MUST(heard->lasts == (n > 0) && (n == 0 || heard->sent >= 1) && heard->sent <= (n ? n : 0));
	MUST(!refusal.status || (head && n == 0 && refusal.body.size));
	if (refusal.status) {
		json_t *json = json_loadb(refusal.body.data, refusal.body.size, JSON_REJECT_DUPLICATES, NULL);
		MUST(json_is_object(json_object_get(json, "error")));
		json_decref(json);
	}
	cell__buf_finish(&refusal.body);
	MUST(!peer->requests && !peer->n_requests && !home.cells);
}

static void test_lines(const uint8_t *data, size_t size)
{
	struct heard heard = { 0 };
	struct cell__mcp_peer *peer = make_peer(&heard);
	struct cell__lines lines;
	const char *line;
	size_t n;
	cell__lines_init(&lines, 4096);
	for (size_t at = 0; at < size; at += 61)
		MUST(cell__lines_add(&lines, (const char *)data + at, size - at < 61 ? size - at : 61) == 0);
	MUST(cell__lines_add(&lines, "\n", 1) == 0);
	for (enum cell__line_status status; (status = cell__lines_next(&lines, &line, &n)) != CELL__LINE_MORE;) {
		if (status != CELL__LINE_OK)
			continue;
		feed(peer, &heard, line, n, NULL);
		/* The same as a request without a session, with headers that it may or may not repeat. */
		peer->stateless = true;
		feed(peer, &heard, line, n,
		     &(struct cell__mcp_head){ .version = n % 3 ? CELL_MCP_MODERN : NULL,
					       .method = "tools/call",
					       .name = n % 5 ? "run_code" : "=?base64?cnVuX2NvZGU=?=" });
		peer->stateless = false;
		/* Something for answers to answer. */
		(void)cell__mcp_peer_ask(peer, NULL, json_object(), 99, 1, n % 2);
	}
	cell__lines_finish(&lines);
	peer->n_workers = 0;
	MUST(cell__mcp_peer_destroy(peer, true, NULL) == 0);
	pthread_cond_destroy(&home.changed);
}

/* The next of the NUL-terminated texts; NULL: a header that is not there. */
static const char *take(const char **at, const char *end)
{
	const char *text = *at;
	if (text >= end)
		return NULL;
	*at += strlen(text) + 1;
	return *text == '\x01' ? NULL : text;
}

static void test_access(const uint8_t *data, size_t size)
{
	static const char *const origins[] = { "https://example.org", NULL }, *const hosts[] = { "proxy.example", NULL };
	char *text = malloc(size + 1);
	const char *at = text, *end = text + size;
	uint64_t stream, event;
	MUST(text);
	if (size)
		memcpy(text, data, size);
	text[size] = '\0';
	const char *authorization = take(&at, end), *host = take(&at, end), *origin = take(&at, end), *last = take(&at, end);
	const char *given = cell__access_bearer(authorization);
	MUST(!given || (given >= authorization + 7 && *given && !strncasecmp(authorization, "bearer ", 7)));
	if (cell__access_host(host, "127.0.0.1", 80, hosts))
		MUST(!strncasecmp(host, "localhost", 9) || !strncmp(host, "127.0.0.1", 9) || !strncmp(host, "[::1]", 5) ||
		     !strcasecmp(host, hosts[0]));
	if (host && origin && cell__access_origin(origin, host, origins))
		MUST(!strcasecmp(origin, origins[0]) || !strcasecmp(origin + 7, host) || !strcasecmp(origin + 8, host));
	if (last && cell__sse_read_id(last, &stream, &event)) {
		char again[64];
		snprintf(again, sizeof again, "%llu-%llu", (unsigned long long)stream, (unsigned long long)event);
		MUST(strlen(again) <= strlen(last));
	}
	free(text);
}

/* {"schema", "args"}: the headers that a client makes of them are those that the server expects, and no others are. */
static void test_params(const uint8_t *data, size_t size)
{
	json_t *json = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL), *headers = json_object();
	const json_t *schema = json_object_get(json, "schema"), *args = json_object_get(json, "args");
	struct cell__header_list list = { 0 };
	const char *why;
	int n = cell__param_headers_check(schema, &why);
	if (n >= 0 && cell__param_headers_add(&list, schema, args, NULL) == 0) {
		MUST(list.count <= (size_t)n);
		for (size_t i = 0; i < list.count; i++) {
			char *name = list.lines[i] + strlen("Mcp-Param-"), *value = strstr(name, ": ");
			*value = '\0';
			for (char *at = name; *at; at++)
				*at = (char)(*at >= 'A' && *at <= 'Z' ? *at + 32 : *at);
			json_object_set_new(headers, name, json_string(value + 2));
		}
		MUST(json_object_size(headers) == list.count && !cell__mcp_param_mismatch(schema, args, headers));
		if (list.count) {
			json_object_del(headers, json_object_iter_key(json_object_iter(headers)));
			MUST(cell__mcp_param_mismatch(schema, args, headers));
		}
	}
	cell__header_list_finish(&list);
	json_decref(headers);
	json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	if (data[0] == '{')
		test_params(data, size);
	else if (data[0] & 1)
		test_access(data + 1, size - 1);
	else
		test_lines(data + 1, size - 1);
	return 0;
}
