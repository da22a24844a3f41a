/*
 * Requests for sessions that another server of the same folder has awake.
 *
 *     client ──▶ server A: not here ──who has it?──────┬── nobody, or A itself ──▶ handled here, which may wake it (wake.c)
 *                   ▲                                    └── B ──the same request (forward.c)──▶ B: checks everything again, answers
 *                   └── asked again a little later ◀── B stops, or has just put it to sleep ──┘
 *                       (B cannot be reached: A tries to wake it; the lock or the lease decides)
 *
 * The storage of saved sessions knows the URL of the server that has the session (or the task, or the batch; directory.c).  That is a hint.
 * Whether a session may run somewhere is decided by the lock or the lease of its place (durable/lease.h): a hint that a killed server has left
 * behind costs one connection that is refused, and in Redis the time until its lease has ended.  A found one is remembered for HINT_US, and its
 * session's next requests go there without a question: a server that no longer has the session answers as it would a client, wakes it, or says
 * that it is elsewhere, which makes A ask.  Before a connection is used B has to prove that it is one of ours (greeting.c).
 *
 * A forwarded request has the client's own token and nothing else: B gives it the rights that the client has there.  It also has the header
 * CELL_FORWARD_HOP, and is never forwarded to a third server; a client that sends this header itself is only not forwarded.  B refuses what it
 * cannot do because the session is moving with 503 and CELL_FORWARD_ELSEWHERE, before anything was done, so that A may ask again.
 */
#define _GNU_SOURCE
#include "server/pool.h"

#include <string.h>
#include <strings.h>

#include "base/base.h"
#include "server/peers.h"
#include "wire/saved.h"

#define GIVE_UP_US 10000000 /* until a session that is moving has arrived somewhere */
#define AGAIN_MS 25        /* first; then a quarter of the time that the request has waited */
#define AGAIN_MAX_MS 400
#define HINTS 1024u
#define HINT_US 30000000

struct waiting {
	uv_timer_t timer;
	struct cell__request *request;
};

/* Of the sessions whose ids end alike the last one. */
struct cell__peer_hint {
	char id[33];
	struct cell__address peer;
	int64_t until_us;
};

/* ---- who has it ---- */

static int read_url(const char *url, struct cell__address *ret_address, struct cell_error *err)
{
	const char *colon = strrchr(url, ':');

	if (strncmp(url, "http://", 7) || strlen(url) > CELL_PEER_URL_BYTES || !colon ||
	    strspn(colon + 1, "0123456789") != strlen(colon + 1) || cell__address_parse(url + 7, ret_address, NULL) < 0 ||
	    !*ret_address->host || !ret_address->port)
		return cell_fail(err, CELL_E_INVALID, 0, "advertise: \"%.100s\" is not http://ADDRESS:PORT with a numeric address", url);
	return 0;
}

int cell__peers_open(struct cell_server *server, struct cell_error *err)
{
	const char *dir = server->session.saved_dir, *url = server->opts.advertise;
	struct cell__address address;

	if (!url)
		return 0;
	if (!dir)
		return cell_fail(
			err, CELL_E_INVALID, 0,
			"advertise: servers find each other's sessions where they are saved: set that too (--saved DIR or redis://...)");
	if (server->opts.auth_disabled)
		return cell_fail(err, CELL_E_INVALID, 0, "advertise: servers that others reach need tokens");
	if (read_url(url, &address, err) < 0)
		return -1;
	if (address.at.any.sa_family == AF_INET ? address.at.v4.sin_addr.s_addr == INADDR_ANY
						: IN6_IS_ADDR_UNSPECIFIED(&address.at.v6.sin6_addr))
		return cell_fail(err, CELL_E_INVALID, 0, "advertise: %s is every address, and not one that others can connect to", url);
	/* The lease of a session has it: who finds the lease has found the server. */
	if (server->session.saved_url && strcmp(server->session.saved_url, url))
		return cell_fail(err, CELL_E_INVALID, 0, "advertise: %.100s is not the saved_url of the sessions; leave that out", url);
	server->session.saved_url = url;
	server->hints = cell__alloc(HINTS, sizeof(*server->hints));
	server->peer_url = cell__server_url(&address, false);
	if (!server->hints || !server->peer_url)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the server");
	return cell__directory_start(server, err);
}

/* ---- hints ---- */

/* id: 32 hexadecimal digits. */
static struct cell__peer_hint *hint_of(struct cell_server *server, const char *id)
{
	return &server->hints[strtoul(id + 27, NULL, 16) % HINTS];
}

static void keep_hint(struct cell_server *server, const char *id, const struct cell__address *peer)
{
	struct cell__peer_hint *hint = hint_of(server, id);

	*hint = (struct cell__peer_hint){ .peer = *peer, .until_us = cell__now_us() + HINT_US };
	strcpy(hint->id, id);
}

static const struct cell__address *find_hint(struct cell_server *server, const char *id)
{
	const struct cell__peer_hint *hint = hint_of(server, id);

	return !strcmp(hint->id, id) && cell__now_us() < hint->until_us ? &hint->peer : NULL;
}

/* ---- requests ---- */

/* What the request is for: a session, a task or a batch; NULL: nothing that a server has. */
static const char *named(const struct cell__request *request)
{
	const char *path = request->route->path;

	if (request->server->mcp)
		return *request->subject ? request->subject : NULL;
	if (!strncmp(path, "/v1/sessions/{session}", 22) || !strncmp(path, "/v1/batches/{batch}", 19) ||
	    !strncmp(path, "/v1/tasks/{task}", 16))
		return request->params[0];
	return request->route->session_header ? cell__request_header(request, "X-Session-ID") : NULL;
}

/* It may be there: "not found" would be wrong. */
void cell__peers_unknown(struct cell__request *request)
{
	cell__answer_moving(request, "the storage of saved sessions does not answer: try again");
}

void cell__peers_found(struct cell__request *request, const char *url, const struct cell_error *err)
{
	struct cell__address address;
	bool is_elsewhere = *url && strcmp(url, request->server->opts.advertise) && read_url(url, &address, NULL) == 0;

	request->sought = true;
	request->unfound = err != NULL;
	if (is_elsewhere)
		keep_hint(request->server, named(request), &address);
	if (request->state == CELL_REQUEST_ASKING) {
		request->has_peer = is_elsewhere;
		if (is_elsewhere)
			request->peer = address;
		cell__request_resume(request); /* the rest of its head is checked */
	} else if (request->unfound) {
		cell__peers_unknown(request);
	} else if (is_elsewhere && !request->server->stopping) {
		cell__forward_whole_to_peer(request, &address);
	} else {
		cell__request_dispatch(request);
	}
}

bool cell__peers_first(struct cell__request *request)
{
	struct cell_server *server = request->server;
	const struct cell__address *hint;
	const char *id;

	if (!server->opts.advertise)
		return false;
	if (server->mcp && !request->sought)
		cell__mcp_name(request);
	id = named(request);
	/* A browser's cookie is good at one server only. */
	if (!id || request->sought || request->is_e2b || request->detached || server->stopping || !cell__saved_is_id(id) ||
	    cell__served_by_id(server, id) || cell__request_header(request, CELL_FORWARD_HOP) ||
	    !cell__request_header(request, "Authorization"))
		return false;
	hint = request->route->streamed ? NULL : find_hint(server, id);
	if (!hint)
		return cell__directory_find(request, id);
	const struct cell__address peer = *hint;

	request->sought = request->hinted = true;
	cell__forward_whole_to_peer(request, &peer);
	return true;
}

/* The storage is asked from now on.  Returns whether it was not asked for this request. */
static bool drop_hint(struct cell__request *request)
{
	const char *id = named(request);
	struct cell__peer_hint *hint = id && cell__saved_is_id(id) ? hint_of(request->server, id) : NULL;
	bool hinted = request->hinted;

	request->hinted = false;
	if (hint && !strcmp(hint->id, id))
		hint->id[0] = '\0';
	return hinted;
}

void cell__peers_unreached(struct cell__request *request)
{
	if (drop_hint(request))
		request->sought = false;
	cell__server_log(request->server, CELL_LOG_INFO, "request %s: the server of its session cannot be reached", request->id);
	cell__request_dispatch(request); /* if it was sought, it is handled here */
}

/* ---- once more ---- */

static void handle_closed(uv_handle_t *handle)
{
	free(handle->data);
}

static void handle_again(uv_timer_t *timer)
{
	struct waiting *waiting = timer->data;
	struct cell__request *request = waiting->request;

	uv_close((uv_handle_t *)timer, handle_closed);
	request->sought = request->woken = false;
	if (request->detached)
		cell__request_handle(request);
	else
		cell__request_dispatch(request);
}

bool cell__peers_again(struct cell__request *request)
{
	struct cell_server *server = request->server;
	int64_t waited_us = cell__now_us() - request->begun_us, pause_ms = waited_us / 4000;
	struct waiting *waiting;

	if (!server->opts.advertise || server->stopping || waited_us > GIVE_UP_US ||
	    (!request->detached && cell__request_header(request, CELL_FORWARD_HOP)))
		return false;
	waiting = cell__alloc(1, sizeof(*waiting));
	if (!waiting)
		return false;
	(void)drop_hint(request);
	waiting->request = request;
	uv_timer_init(cell__loop_uv(server->engine->loop), &waiting->timer);
	waiting->timer.data = waiting;
	uv_timer_start(&waiting->timer, handle_again,
		       (uint64_t)(pause_ms < AGAIN_MS       ? AGAIN_MS
				  : pause_ms > AGAIN_MAX_MS ? AGAIN_MAX_MS
							    : pause_ms),
		       0);
	return true;
}

bool cell__peers_moving(struct cell__request *request, int code)
{
	if (code == CELL_E_STORAGE) {
		cell__peers_unknown(request);
		return true;
	}
	if (!request->server->opts.advertise || code != CELL_E_CONFLICT)
		return false;
	if (!cell__peers_again(request))
		cell__answer_moving(request, "another server has this session, and does not answer for it: try again");
	return true;
}
