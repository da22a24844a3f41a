/*
 * Requests for sessions that another server of the same folder has awake.
 *
 *     client ──▶ server A: not here ──pool: who has it?──┬── nobody, or A itself ──▶ handled here, which may wake it (wake.c)
 *                   ▲                                    └── B ──the same request (forward.c)──▶ B: checks everything again, answers
 *                   └── asked again a little later ◀── B stops, or has just put it to sleep ──┘
 *                       (B cannot be reached: A tries to wake it; the lock of the folder decides)
 *
 * SAVED/owners/ID is a symbolic link to the URL of the server that has the session ID (or the task, or the batch): made and read by one call
 * each, so nobody sees half of it.  It is a hint.  Whether a session may run somewhere is decided by the lock of its place (durable/durable.h):
 * a hint that a killed server has left behind costs one connection that is refused.
 *
 * A forwarded request has the client's own token and nothing else: B gives it the rights that the client has there.  It also has the header
 * CELL_FORWARD_HOP, and is never forwarded to a third server; a client that sends this header itself is only not forwarded.  B refuses what it
 * cannot do because the session is moving with 503 and CELL_FORWARD_ELSEWHERE, before anything was done, so that A may ask again.
 */
#define _GNU_SOURCE
#include "server/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/base.h"
#include "wire/redis_url.h"
#include "wire/saved.h"

#define GIVE_UP_US 3000000 /* until a session that is moving has arrived somewhere */
#define AGAIN_MS 25
#define MAX_URL 200u

struct finding {
	uv_work_t work;
	struct cell__request *request;
	int owners_fd; /* the server's, which lives longer */
	char id[33];
	char url[MAX_URL + 1]; /* "": nobody's */
};

struct waiting {
	uv_timer_t timer;
	struct cell__request *request;
};

/* ---- who has it ---- */

static int read_url(const char *url, struct cell__address *ret_address, struct cell_error *err)
{
	const char *colon = strrchr(url, ':');

	if (strncmp(url, "http://", 7) || strlen(url) > MAX_URL || !colon || strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
	    cell__address_parse(url + 7, ret_address, NULL) < 0 || !*ret_address->host || !ret_address->port)
		return cell_fail(err, CELL_E_INVALID, 0, "advertise: \"%.100s\" is not http://ADDRESS:PORT with a numeric address", url);
	return 0;
}

int cell__peers_open(struct cell_server *server, struct cell_error *err)
{
	const char *dir = server->session.saved_dir, *url = server->opts.advertise;
	struct cell__address address;
	char path[4096];

	server->owners_fd = -1;
	if (!url)
		return 0;
	if (!dir)
		return cell_fail(
			err, CELL_E_INVALID, 0,
			"advertise: servers find each other's sessions in the folder that they are saved in: set it too (--saved DIR)");
	if (cell__redis_url_is(dir)) /* without its text: it may have a password */
		return cell_fail(err, CELL_E_INVALID, 0,
				 "advertise: servers find each other's sessions in a folder (--saved DIR), and not in Redis");
	if (server->opts.auth_disabled)
		return cell_fail(err, CELL_E_INVALID, 0, "advertise: servers that others reach need tokens");
	if (read_url(url, &address, err) < 0)
		return -1;
	if (address.at.any.sa_family == AF_INET ? address.at.v4.sin_addr.s_addr == INADDR_ANY
						: IN6_IS_ADDR_UNSPECIFIED(&address.at.v6.sin6_addr))
		return cell_fail(err, CELL_E_INVALID, 0, "advertise: %s is every address, and not one that others can connect to", url);
	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return cell_fail(err, CELL_E_IO, errno, "the folder of saved sessions %.150s", dir);
	if ((size_t)snprintf(path, sizeof(path), "%s/owners", dir) >= sizeof(path) || (mkdir(path, 0700) < 0 && errno != EEXIST))
		return cell_fail(err, CELL_E_IO, errno, "make a folder in %.150s", dir);
	server->owners_fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return server->owners_fd >= 0 ? 0 : cell_fail(err, CELL_E_IO, errno, "open %.150s", path);
}

void cell__peers_close(struct cell_server *server)
{
	if (server->opts.advertise)
		cell__close_fd(&server->owners_fd);
}

static void find_owner(int owners_fd, const char *id, char url[static MAX_URL + 1])
{
	ssize_t n = readlinkat(owners_fd, id, url, MAX_URL);

	url[n > 0 ? n : 0] = '\0';
}

/* Made on this thread, because it is one call to the file system. */
void cell__peers_add(struct cell_server *server, const char *id)
{
	char name[40];
	bool is_there;

	if (!server->opts.advertise || symlinkat(server->opts.advertise, server->owners_fd, id) == 0)
		return;
	is_there = errno == EEXIST;
	/* Of a server that was killed: it is replaced at once. */
	snprintf(name, sizeof(name), ".%s", id);
	if (is_there)
		(void)unlinkat(server->owners_fd, name, 0);
	if (!is_there || symlinkat(server->opts.advertise, server->owners_fd, name) < 0 ||
	    renameat(server->owners_fd, name, server->owners_fd, id) < 0)
		cell__server_log(server, CELL_LOG_WARN, "other servers do not find the session %s: %s", id, strerror(errno));
}

void cell__peers_remove(struct cell_server *server, const char *id)
{
	char url[MAX_URL + 1];

	if (!server->opts.advertise)
		return;
	find_owner(server->owners_fd, id, url);
	if (!strcmp(url, server->opts.advertise))
		(void)unlinkat(server->owners_fd, id, 0); /* one that stays is a wrong hint */
}

/* ---- requests ---- */

/* What the request is for: a session, a task or a batch; NULL: nothing that a server has. */
static const char *named(const struct cell__request *request)
{
	const char *path = request->route->path;

	if (!strncmp(path, "/v1/sessions/{session}", 22) || !strncmp(path, "/v1/batches/{batch}", 19) ||
	    !strncmp(path, "/v1/tasks/{task}", 16))
		return request->params[0];
	return request->route->session_header ? cell__request_header(request, "X-Session-ID") : NULL;
}

static void go_on(struct cell__request *request)
{
	if (request->state == CELL_REQUEST_ASKING)
		cell__request_resume(request); /* the rest of its head is checked */
	else
		cell__request_dispatch(request);
}

static void do_find(uv_work_t *work)
{
	struct finding *finding = work->data;

	find_owner(finding->owners_fd, finding->id, finding->url);
}

static void handle_found(uv_work_t *work, int status)
{
	struct finding *finding = work->data;
	struct cell__request *request = finding->request;
	const char *own = request->server->opts.advertise;
	struct cell__address address;
	bool is_elsewhere = *finding->url && strcmp(finding->url, own) && read_url(finding->url, &address, NULL) == 0;

	(void)status; /* never cancelled */
	free(finding);
	request->sought = true;
	if (is_elsewhere && request->state == CELL_REQUEST_ASKING) {
		request->peer = address;
		request->has_peer = true;
		cell__request_resume(request);
	} else if (is_elsewhere && !request->server->stopping) {
		cell__forward_whole_to_peer(request, &address);
	} else {
		go_on(request);
	}
}

bool cell__peers_first(struct cell__request *request)
{
	struct cell_server *server = request->server;
	const char *id = named(request);
	struct finding *finding;

	/* A browser's cookie is good at one server only. */
	if (!server->opts.advertise || !id || request->sought || request->is_e2b || request->detached || server->stopping ||
	    !cell__saved_is_id(id) || cell__served_by_id(server, id) || cell__request_header(request, CELL_FORWARD_HOP) ||
	    !cell__request_header(request, "Authorization"))
		return false;
	finding = cell__alloc(1, sizeof(*finding));
	if (!finding)
		return false;
	*finding = (struct finding){ .request = request, .owners_fd = server->owners_fd };
	strcpy(finding->id, id);
	finding->work.data = finding;
	uv_queue_work(cell__loop_uv(server->engine->loop), &finding->work, do_find, handle_found);
	return true;
}

void cell__peers_unreached(struct cell__request *request)
{
	cell__server_log(request->server, CELL_LOG_INFO, "request %s: the server of its session cannot be reached", request->id);
	cell__request_dispatch(request); /* it was sought: it is handled here */
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
	struct waiting *waiting;

	if (!server->opts.advertise || server->stopping || cell__now_us() - request->begun_us > GIVE_UP_US ||
	    (!request->detached && cell__request_header(request, CELL_FORWARD_HOP)))
		return false;
	waiting = cell__alloc(1, sizeof(*waiting));
	if (!waiting)
		return false;
	waiting->request = request;
	uv_timer_init(cell__loop_uv(server->engine->loop), &waiting->timer);
	waiting->timer.data = waiting;
	uv_timer_start(&waiting->timer, handle_again, AGAIN_MS, 0);
	return true;
}

bool cell__peers_moving(struct cell__request *request, int code)
{
	if (!request->server->opts.advertise || code != CELL_E_CONFLICT)
		return false;
	if (!cell__peers_again(request))
		cell__answer_moving(request, "another server has this session, and does not answer for it: try again");
	return true;
}
