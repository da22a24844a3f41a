#define _GNU_SOURCE
#include "server/pool.h"
#include "server/starting.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 1024
#define SEND_BUFFER_BYTES (256 * 1024)
#define MAX_ACCEPTED 64 /* in one go */
#define INBOX_BYTES (1 << 20)
#define NEAR_CLIENTS 8 /* that a worker may have more, and twice as many, if they are on its core */

struct place {
	struct cell__server_use use;
	int64_t connections; /* of clients; counted up by the program, down by the worker */
	unsigned generation;
	int up;    /* it takes clients */
	int reads; /* its inbox */
};

/* Only what is used is ever touched, and so takes memory. */
struct list {
	unsigned used; /* places that were ever taken */
	char ids[CELL_POOL_MAX_LISTED][33]; /* "": free */
};

/* Written and read with the lock. */
struct given_name {
	char owner[CELL_SERVER_MAX_NAME + 1], name[CELL_POOL_MAX_GIVEN_NAME + 1];
	char id[33]; /* "": free */
	uint64_t number; /* the newest has the highest */
};

struct shared {
	pthread_mutex_t lock;
	int64_t started_us, started_s;
	int leaves, hands_out; /* the program's: no worker is started any more; clients may wait to be handed to workers */
	int stops;             /* written with the lock */
	char secret[CELL_SERVER_SECRET + 1];
	struct place workers[CELL_POOL_MAX_WORKERS];
	struct cell__address_count addresses[CELL_SERVER_ADDRESSES];
	unsigned n_accounts;
	struct cell__account_share accounts[CELL_POOL_MAX_ACCOUNTS];
	uint64_t names_given;
	unsigned n_names; /* places that were ever taken */
	struct given_name names[CELL_POOL_MAX_NAMED];
	struct list lists[]; /* of each worker */
};

struct cell_server_pool {
	struct shared *shared;
	size_t shared_bytes;
	struct cell__address address;
	char *url;
	int listen_fd;
	struct cell__starting *starting; /* until a worker is up; or NULL */
	int n;
	pid_t program; /* that started this worker */
	int64_t max_connections;
	bool holds; /* each worker is held on a core */
	cpu_set_t cores;
	int next; /* worker, where several have as little to do */
	int inboxes[CELL_POOL_MAX_WORKERS][2]; /* read, written */
};

/* ---- limits ---- */

void cell__pool_lock(const struct cell_server *server)
{
	if (server->pool && pthread_mutex_lock(&server->pool->shared->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&server->pool->shared->lock); /* counts of a dead worker are cleared by the program */
}

void cell__pool_unlock(const struct cell_server *server)
{
	if (server->pool)
		pthread_mutex_unlock(&server->pool->shared->lock);
}

static int64_t load(const void *base, size_t offset)
{
	return __atomic_load_n((const int64_t *)(const void *)((const char *)base + offset), __ATOMIC_RELAXED);
}

int cell__pool_size(const struct cell_server *server)
{
	return server->pool ? server->pool->n : 1;
}

int64_t cell__pool_sum(const struct cell_server *server, size_t offset)
{
	int64_t sum = 0;

	if (!server->pool)
		return load(server->use, offset);
	for (int i = 0; i < server->pool->n; i++)
		sum += load(&server->pool->shared->workers[i].use, offset);
	return sum;
}

int64_t cell__pool_account_sum(const struct cell_server *server, const struct cell__account *account, size_t offset)
{
	int64_t sum = 0;

	if (!account->share)
		return load(account->use, offset);
	for (int i = 0; i < server->pool->n; i++) {
		int64_t one = load(&account->share->use[i], offset);

		sum = one > INT64_MAX - sum ? INT64_MAX : sum + one;
	}
	return sum;
}

struct cell__account_share *cell__pool_account(const struct cell_server *server, const char *name)
{
	struct shared *shared = server->pool->shared;
	struct cell__account_share *found = NULL;

	cell__pool_lock(server);
	for (unsigned i = 0; i < shared->n_accounts && !found; i++) {
		if (!strcmp(shared->accounts[i].name, name))
			found = &shared->accounts[i];
	}
	if (!found && shared->n_accounts < CELL_POOL_MAX_ACCOUNTS) {
		found = &shared->accounts[shared->n_accounts];
		*found = (struct cell__account_share){ .cpu.at_us = cell__now_us() };
		snprintf(found->name, sizeof(found->name), "%s", name);
		shared->n_accounts++; /* last: a worker that dies before leaves none */
	}
	cell__pool_unlock(server);
	return found;
}

const char *cell__pool_secret(const struct cell_server *server)
{
	return server->pool ? server->pool->shared->secret : server->own_secret;
}

/* ---- messages ---- */

static int send_message(const struct cell_server_pool *pool, int worker, char what, int fd, const struct sockaddr *from,
			socklen_t from_size)
{
	struct iovec parts[] = { { &what, 1 }, { (void *)from, from ? from_size : 0 } };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

	if (fd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control.room);
		control.head = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
		memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	}
	return sendmsg(pool->inboxes[worker][1], &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 0;
}

/* 0: there was one. */
static int take_message(int inbox, char *ret_what, int *ret_fd, struct sockaddr_storage *ret_from, socklen_t *ret_from_size)
{
	struct iovec parts[] = { { ret_what, 1 }, { ret_from, sizeof(*ret_from) } };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof(control.room) };
	ssize_t n = recvmsg(inbox, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;

	if (n <= 0)
		return -1;
	*ret_fd = -1;
	if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(head), sizeof(*ret_fd));
	*ret_from_size = (socklen_t)(n - 1);
	return 0;
}

static void look_for_work(struct cell_server *server)
{
	cell__jobs_advance(server);
	cell__fusion_advance(server);
	cell__server_advance(server);
}

void cell__pool_receive(struct cell_server *server)
{
	int inbox = server->pool ? server->pool->inboxes[server->worker][0] : -1;
	struct sockaddr_storage from = { 0 };
	socklen_t size;
	char what;
	int fd;

	while (inbox >= 0 && take_message(inbox, &what, &fd, &from, &size) == 0) {
		if (fd >= 0)
			cell__http_add(server, fd, (const struct sockaddr *)&from, size, what == CELL_POOL_PEER);
		else if (what == CELL_POOL_SLOT)
			look_for_work(server);
	}
}

static void handle_message(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	cell__pool_receive(poll->data);
}

static void clear_inbox(const struct cell_server_pool *pool, int worker)
{
	struct sockaddr_storage from;
	socklen_t size;
	char what;
	int fd;

	while (take_message(pool->inboxes[worker][0], &what, &fd, &from, &size) == 0)
		cell__close_fd(&fd);
}

bool cell__pool_is_gone(const struct cell_server *server, int worker)
{
	return !cell__pool_reads(server, worker) && (server->leaving || cell__pool_leaves(server));
}

int cell__pool_connect(const struct cell_server *server, int worker)
{
	int pair[2], status;

	if (cell__pool_is_gone(server, worker) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
		return -1;
	status = send_message(server->pool, worker, CELL_POOL_PEER, pair[1], NULL, 0);
	cell__close_fd(&pair[1]);
	/* Once more: it may have emptied its inbox for the last time before the message was there. */
	if (status < 0 || cell__pool_is_gone(server, worker))
		cell__close_fd(&pair[0]);
	return pair[0];
}

/* ---- slots for cells ---- */

bool cell__pool_take_slot(struct cell_server *server, int64_t since_us)
{
	int64_t free_slots;
	bool taken;

	cell__pool_lock(server);
	free_slots = server->limits.max_runs - CELL_ALL(server, running);
	/* Cells that have waited longer elsewhere come first. */
	for (int i = 0; free_slots > 0 && i < cell__pool_size(server) && server->pool; i++) {
		const struct cell__server_use *use = &server->pool->shared->workers[i].use;
		int older = (use->oldest_us && use->oldest_us < since_us) + (use->oldest_script_us && use->oldest_script_us < since_us);

		if (i != server->worker && older) {
			free_slots -= older;
			(void)send_message(server->pool, i, CELL_POOL_SLOT, -1, NULL, 0); /* full: it is told already */
		}
	}
	taken = free_slots > 0;
	if (taken)
		server->use->running++;
	cell__pool_unlock(server);
	return taken;
}

void cell__pool_free_slot(struct cell_server *server)
{
	/* With the lock, so that a worker either sees the free slot or is seen waiting for it. */
	cell__pool_lock(server);
	server->use->running--;
	cell__pool_unlock(server);
	for (int i = 0; server->pool && i < server->pool->n; i++) {
		const struct cell__server_use *use = &server->pool->shared->workers[i].use;

		if (i != server->worker && (use->oldest_us || use->oldest_script_us))
			(void)send_message(server->pool, i, CELL_POOL_SLOT, -1, NULL, 0);
	}
}

static void tell_all(const struct cell_server_pool *pool, int except)
{
	for (int i = 0; i < pool->n; i++) {
		if (i != except)
			(void)send_message(pool, i, CELL_POOL_SLOT, -1, NULL, 0);
	}
}

void cell__pool_tell_all(struct cell_server *server)
{
	if (server->pool)
		tell_all(server->pool, server->worker);
}

/* ---- owners ---- */

static int hex_pair(const char *text)
{
	char pair[3] = { text[0], text[1], '\0' };

	return (int)strtoul(pair, NULL, 16);
}

static bool is_id(const char *id)
{
	return strlen(id) == 32 && strspn(id, "0123456789abcdef") == 32;
}

/* Of a saved session whose worker is gone, or never was one of these: always the same, so that its requests come together. */
static int find_home(const struct cell_server *server, const char *session_id)
{
	unsigned sum = 0;

	for (const char *at = session_id; *at; at++)
		sum = sum * 31 + (unsigned char)*at;
	/* One that has ended while all leave has no successor: the next one has its sessions. */
	for (int i = 0; i < server->pool->n; i++, sum++) {
		if (!cell__pool_is_gone(server, (int)(sum % (unsigned)server->pool->n)))
			break;
	}
	return (int)(sum % (unsigned)server->pool->n);
}

int cell__pool_owner(const struct cell_server *server, const char *session_id)
{
	int worker;

	if (!server->pool || !is_id(session_id))
		return -1;
	worker = hex_pair(session_id);
	if (server->session.saved_dir && (worker >= server->pool->n || cell__pool_has_ended(server, session_id))) {
		worker = find_home(server, session_id);
		return worker != server->worker ? worker : -1;
	}
	return worker < server->pool->n && worker != server->worker && !cell__pool_has_ended(server, session_id) ? worker : -1;
}

bool cell__pool_has_ended(const struct cell_server *server, const char *session_id)
{
	if (!server->pool || !is_id(session_id) || hex_pair(session_id) >= server->pool->n)
		return false;
	return (server->pool->shared->workers[hex_pair(session_id)].generation & 0xff) != (unsigned)hex_pair(session_id + 2);
}

bool cell__pool_reads(const struct cell_server *server, int worker)
{
	return __atomic_load_n(&server->pool->shared->workers[worker].reads, __ATOMIC_SEQ_CST);
}

/* ---- the end of all ---- */

bool cell__pool_leaves(const struct cell_server *server)
{
	const struct cell_server_pool *pool = server->pool;

	/* Without that program nobody else tells them to end. */
	return pool && (__atomic_load_n(&pool->shared->leaves, __ATOMIC_SEQ_CST) || getppid() != pool->program);
}

bool cell__pool_stops(const struct cell_server *server)
{
	return server->pool && __atomic_load_n(&server->pool->shared->stops, __ATOMIC_SEQ_CST);
}

static bool is_handing_out(const struct cell_server *server)
{
	const struct cell_server_pool *pool = server->pool;

	return pool && __atomic_load_n(&pool->shared->hands_out, __ATOMIC_SEQ_CST) && getppid() == pool->program;
}

bool cell__pool_may_stop(struct cell_server *server, bool rests, bool is_over)
{
	bool stops, is_last = server->use->awake && !rests, all = cell__pool_leaves(server);

	/* With the lock, as sessions are counted: after that none is woken. */
	cell__pool_lock(server);
	server->use->awake = rests;
	stops = is_over || cell__pool_stops(server) ||
		(!rests && !CELL_ALL(server, running) && !CELL_ALL(server, queued) &&
		 !(all && (CELL_ALL(server, awake) || is_handing_out(server))));
	if (stops && all)
		__atomic_store_n(&server->pool->shared->stops, 1, __ATOMIC_SEQ_CST);
	cell__pool_unlock(server);
	if (is_last || stops) /* others may wait for this one */
		cell__pool_tell_all(server);
	return stops;
}

/* ---- lists of sessions ---- */

int cell__pool_list(struct cell_server *server, const char *session_id)
{
	struct list *list = server->pool ? &server->pool->shared->lists[server->worker] : NULL;
	unsigned place = 0;

	while (list && place < list->used && *list->ids[place])
		place++;
	if (!list || place == CELL_POOL_MAX_LISTED)
		return -1;
	snprintf(list->ids[place], sizeof(list->ids[place]), "%s", session_id);
	if (place == list->used)
		__atomic_store_n(&list->used, place + 1, __ATOMIC_RELEASE);
	return (int)place;
}

void cell__pool_unlist(struct cell_server *server, int place)
{
	if (place >= 0)
		*server->pool->shared->lists[server->worker].ids[place] = '\0';
}

bool cell__pool_next_listed(const struct cell_server *server, uint64_t *at, char ret_id[static 33])
{
	for (int worker = (int)(*at >> 32); server->pool && worker < server->pool->n; worker++, *at = (uint64_t)worker << 32) {
		const struct list *list = &server->pool->shared->lists[worker];
		unsigned used = __atomic_load_n(&list->used, __ATOMIC_ACQUIRE);

		for (unsigned place = (unsigned)*at; worker != server->worker && place < used; place++) {
			memcpy(ret_id, list->ids[place], 33);
			ret_id[32] = '\0';
			*at = ((uint64_t)worker << 32) + place + 1;
			if (is_id(ret_id))
				return true;
		}
	}
	return false;
}

/* ---- names ---- */

bool cell__pool_name(struct cell_server *server, const char *owner, const char *name, const char *session_id)
{
	struct shared *shared = server->pool ? server->pool->shared : NULL;
	unsigned place = 0;

	if (!shared)
		return true;
	cell__pool_lock(server);
	while (place < shared->n_names && *shared->names[place].id)
		place++;
	if (place < CELL_POOL_MAX_NAMED) {
		struct given_name *given = &shared->names[place];

		snprintf(given->owner, sizeof(given->owner), "%s", owner);
		snprintf(given->name, sizeof(given->name), "%s", name);
		given->number = ++shared->names_given;
		snprintf(given->id, sizeof(given->id), "%s", session_id);
		shared->n_names += place == shared->n_names;
	}
	cell__pool_unlock(server);
	return place < CELL_POOL_MAX_NAMED;
}

/* All whose ids begin so. */
static void forget_names(const struct cell_server *server, const char *beginning)
{
	struct shared *shared = server->pool->shared;

	cell__pool_lock(server);
	for (unsigned i = 0; i < shared->n_names; i++) {
		if (!strncmp(shared->names[i].id, beginning, strlen(beginning)))
			*shared->names[i].id = '\0';
	}
	cell__pool_unlock(server);
}

void cell__pool_unname(struct cell_server *server, const char *session_id)
{
	if (server->pool)
		forget_names(server, session_id);
}

bool cell__pool_named(const struct cell_server *server, const char *owner, const char *name, char ret_id[static 33])
{
	const struct shared *shared = server->pool ? server->pool->shared : NULL;
	uint64_t newest = 0;

	cell__pool_lock(server);
	for (unsigned i = 0; shared && i < shared->n_names; i++) {
		const struct given_name *given = &shared->names[i];

		if (*given->id && given->number > newest && !strcmp(given->owner, owner) && !strcmp(given->name, name)) {
			newest = given->number;
			memcpy(ret_id, given->id, sizeof(given->id));
		}
	}
	cell__pool_unlock(server);
	return newest;
}

/* ---- in a worker ---- */

void cell__pool_join(struct cell_server *server)
{
	struct cell_server_pool *pool = server->pool;
	struct place *place = &pool->shared->workers[server->worker];
	char number[3];

	/* Clients that nobody accepts are not to wait: only the program listens. */
	cell__close_fd(&pool->listen_fd);
	cell__starting_forget(cell__take_ptr(pool->starting));
	pool->program = getppid();
	server->address = pool->address;
	server->use = &place->use;
	server->addresses = pool->shared->addresses;
	snprintf(server->engine->id_tag, sizeof(server->engine->id_tag), "%02x%02x", (unsigned)server->worker & 0xff,
		 place->generation & 0xff);
	snprintf(number, sizeof(number), "%02x", (unsigned)server->worker & 0xff);
	forget_names(server, number); /* of the one before us, which died */
}

void cell__pool_set_up(struct cell_server *server, bool up)
{
	if (!server->pool)
		return;
	server->started_us = server->pool->shared->started_us;
	server->started_s = server->pool->shared->started_s;
	__atomic_store_n(&server->pool->shared->workers[server->worker].up, up, __ATOMIC_SEQ_CST);
}

void cell__pool_start(struct cell_server *server)
{
	if (!server->pool)
		return;
	uv_poll_init(cell__loop_uv(server->engine->loop), &server->inbox, server->pool->inboxes[server->worker][0]);
	server->inbox.data = server;
	uv_poll_start(&server->inbox, UV_READABLE, handle_message);
	server->use->awake = 1;
	__atomic_store_n(&server->pool->shared->workers[server->worker].reads, 1, __ATOMIC_SEQ_CST);
}

void cell__pool_stop(struct cell_server *server)
{
	uv_poll_stop(&server->inbox);
	__atomic_store_n(&server->pool->shared->workers[server->worker].reads, 0, __ATOMIC_SEQ_CST);
	clear_inbox(server->pool, server->worker);
}

void cell__pool_client_left(struct cell_server *server)
{
	if (server->pool)
		__atomic_sub_fetch(&server->pool->shared->workers[server->worker].connections, 1, __ATOMIC_RELAXED);
}

/* ---- in the program that starts them ---- */

char *cell__server_url(const struct cell__address *address, bool tls)
{
	const char *scheme = tls ? "https" : "http";
	char *url;

	if ((*address->host
		     ? asprintf(&url, strchr(address->host, ':') ? "%s://[%s]:%d" : "%s://%s:%d", scheme, address->host, address->port)
		     : asprintf(&url, "unix:%s", address->at.local.sun_path)) < 0)
		return NULL;
	return url;
}

static int init_shared(struct shared *shared, struct cell_error *err)
{
	pthread_mutexattr_t kind;
	int status;

	pthread_mutexattr_init(&kind);
	pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
	pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
	status = pthread_mutex_init(&shared->lock, &kind);
	pthread_mutexattr_destroy(&kind);
	shared->started_us = cell__now_us();
	shared->started_s = time(NULL);
	cell__random_hex(shared->secret, CELL_SERVER_SECRET);
	return status ? cell_fail(err, CELL_E_IO, status, "make a lock for the workers") : 0;
}

int cell_server_pool_create(const struct cell_server_options *opts, int workers, struct cell_server_pool **ret_pool, struct cell_error *err)
{
	if (cell__require(err, opts, ret_pool) < 0)
		return -1;
	struct cell_server_pool *pool;
	int size = SEND_BUFFER_BYTES, inbox = INBOX_BYTES;

	if (cell_server_check(opts, err) < 0)
		return -1;
	if (workers < 1 || workers > CELL_POOL_MAX_WORKERS)
		return cell_fail(err, CELL_E_INVALID, 0, "workers is %d, expected 1 to %d", workers, CELL_POOL_MAX_WORKERS);
	pool = cell__alloc(1, sizeof(*pool));
	if (!pool)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the workers");
	pool->listen_fd = -1;
	pool->max_connections = opts->limits ? opts->limits->max_connections
					     : (struct cell_server_limits)CELL_SERVER_LIMITS_INIT.max_connections;
	for (int i = 0; i < CELL_POOL_MAX_WORKERS; i++)
		pool->inboxes[i][0] = pool->inboxes[i][1] = -1;
	pool->shared_bytes = sizeof(*pool->shared) + (size_t)workers * sizeof(struct list);
	pool->shared = mmap(NULL, pool->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pool->shared == MAP_FAILED) {
		pool->shared = NULL;
		cell_fail(err, CELL_E_NOMEM, errno, "out of memory for the workers");
		goto failed;
	}
	if (init_shared(pool->shared, err) < 0)
		goto failed;
	for (; pool->n < workers; pool->n++) {
		if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pool->inboxes[pool->n]) < 0) {
			cell_fail(err, CELL_E_IO, errno, "make sockets for the workers");
			goto failed;
		}
		(void)setsockopt(pool->inboxes[pool->n][1], SOL_SOCKET, SO_SNDBUF, &inbox, sizeof(inbox));
	}
	if (cell__address_parse(opts->listen, &pool->address, err) < 0 || cell__listen(&pool->address, BACKLOG, &pool->listen_fd, err) < 0)
		goto failed;
	(void)setsockopt(pool->listen_fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)); /* connections inherit it */
	/* Clients of a socket that a manager holds wait in its queue, as the manager promised them. */
	pool->starting = opts->tls_cert || pool->address.given_fd ? NULL : cell__starting_create(pool->listen_fd);
	pool->url = cell__server_url(&pool->address, opts->tls_cert);
	if (!pool->url) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the workers");
		goto failed;
	}
	pool->shared->hands_out = 1;
	*ret_pool = pool;
	return 0;
failed:
	cell_server_pool_destroy(pool);
	return -1;
}

const char *cell_server_pool_url(const struct cell_server_pool *pool)
{
	return pool ? pool->url : NULL;
}

int cell_server_pool_fd(const struct cell_server_pool *pool)
{
	return pool ? pool->listen_fd : -1;
}

/* Has it fewer clients, or as many and fewer sessions?  Clients that come one after the other leave their sessions behind. */
static bool is_idler(const struct place *one, const struct place *other)
{
	if (one->connections != other->connections)
		return one->connections < other->connections;
	return load(&one->use, offsetof(struct cell__server_use, sessions)) <
	       load(&other->use, offsetof(struct cell__server_use, sessions));
}

/* The one with the least to do; any: also one that leaves; core: only those that are held on that one, -1: all.  -1: none. */
static int find_worker(const struct cell_server_pool *pool, bool any, int core)
{
	int found = -1;

	for (int i = 0; i < pool->n; i++) {
		int at = (pool->next + i) % pool->n;
		const struct place *place = &pool->shared->workers[at];
		bool may = __atomic_load_n(&place->up, __ATOMIC_SEQ_CST) || (any && __atomic_load_n(&place->reads, __ATOMIC_SEQ_CST));

		if (may && (core < 0 || at % CPU_COUNT(&pool->cores) == core) &&
		    (found < 0 || is_idler(place, &pool->shared->workers[found])))
			found = at;
	}
	return found;
}

/* On which of our cores the packets of this client arrive: its number among them.  -1: on another, or nobody knows. */
static int find_core(const struct cell_server_pool *pool, int fd)
{
	int cpu = -1, core = 0;
	socklen_t size = sizeof(cpu);

	if (getsockopt(fd, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &size) < 0 || cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &pool->cores))
		return -1;
	for (int i = 0; i < cpu; i++)
		core += CPU_ISSET(i, &pool->cores) ? 1 : 0;
	return core;
}

/*
 * The worker for a client.  fd: -1: it has not been accepted.  Workers that are held on cores get the clients of theirs: waking a process on another
 * core costs more than a short cell.  But clients that all arrive on one core are shared out.
 */
static int choose_worker(const struct cell_server_pool *pool, bool any, int fd)
{
	int found = find_worker(pool, any, -1), core = found >= 0 && fd >= 0 && pool->holds ? find_core(pool, fd) : -1;
	int near = core < 0 ? -1 : find_worker(pool, any, core);
	const struct place *places = pool->shared->workers;

	if (near >= 0 && places[near].connections <= 2 * places[found].connections + NEAR_CLIENTS)
		found = near;
	return found;
}

void cell_server_pool_hold(struct cell_server_pool *pool)
{
	if (pool)
		pool->holds = sched_getaffinity(0, sizeof(pool->cores), &pool->cores) == 0 && CPU_COUNT(&pool->cores) > 0;
}

/* Closes our fd of it. */
static void give_client(struct cell_server_pool *pool, int worker, int fd, const struct sockaddr_storage *from, socklen_t size)
{
	int64_t *counted = &pool->shared->workers[worker].connections;

	pool->next = worker + 1;
	__atomic_add_fetch(counted, 1, __ATOMIC_RELAXED);
	if (send_message(pool, worker, CELL_POOL_CLIENT, fd, (const struct sockaddr *)from, size) < 0)
		__atomic_sub_fetch(counted, 1, __ATOMIC_RELAXED); /* it is too far behind: the client is turned away */
	cell__close_fd(&fd);
}

/* What a dead worker had not taken: nothing of its clients was read, so others can have them.  The rest sees the end of its connections. */
static void pass_on_inbox(struct cell_server_pool *pool, int dead)
{
	struct sockaddr_storage from = { 0 };
	socklen_t size;
	char what;
	int fd, worker;

	while (take_message(pool->inboxes[dead][0], &what, &fd, &from, &size) == 0) {
		worker = what == CELL_POOL_CLIENT && fd >= 0 ? choose_worker(pool, false, fd) : -1;
		if (worker >= 0)
			give_client(pool, worker, fd, &from, size);
		else
			cell__close_fd(&fd);
	}
}

/* Gives one client to a worker.  1: done; 0: none waits; -1: not now. */
static int hand_out(struct cell_server_pool *pool, bool any)
{
	struct sockaddr_storage from = { 0 };
	socklen_t size = sizeof(from);
	int64_t connections = 0;
	int worker = choose_worker(pool, any, -1), fd;

	for (int at = 0; at < pool->n; at++)
		connections += pool->shared->workers[at].connections;
	if (worker < 0 || connections >= pool->max_connections)
		return -1;
	fd = accept4(pool->listen_fd, (struct sockaddr *)&from, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM ? -1 : 0;
	if (pool->holds)
		worker = choose_worker(pool, any, fd);
	if (worker < 0) { /* it left just now */
		cell__close_fd(&fd);
		return -1;
	}
	give_client(pool, worker, fd, &from, size);
	return 1;
}

int cell_server_pool_accept(struct cell_server_pool *pool)
{
	int status = 1;

	if (!pool || pool->listen_fd < 0)
		return 0;
	if (pool->starting && choose_worker(pool, false, -1) < 0) {
		(void)cell__starting_step(pool->starting, 0);
		return -1;
	}
	cell__starting_destroy(cell__take_ptr(pool->starting));
	for (int i = 0; i < MAX_ACCEPTED && status > 0; i++)
		status = hand_out(pool, false);
	return status < 0 ? -1 : 0;
}

int cell_server_pool_leave(struct cell_server_pool *pool)
{
	if (!pool)
		return 0;
	__atomic_store_n(&pool->shared->leaves, 1, __ATOMIC_SEQ_CST);
	return choose_worker(pool, false, -1) >= 0;
}

void cell_server_pool_clear(struct cell_server_pool *pool, int worker)
{
	if (!pool || worker < 0 || worker >= pool->n)
		return;
	struct place *place = &pool->shared->workers[worker];

	place->up = 0;
	__atomic_store_n(&place->reads, 0, __ATOMIC_SEQ_CST);
	place->generation++;
	pass_on_inbox(pool, worker);
	memset(&pool->shared->lists[worker], 0,
	       pool->shared->lists[worker].used * sizeof(pool->shared->lists[worker].ids[0]) + offsetof(struct list, ids));
	place->connections = 0;
	place->use = (struct cell__server_use){ 0 };
	for (unsigned i = 0; i < CELL_POOL_MAX_ACCOUNTS; i++) {
		if (i < pool->shared->n_accounts)
			pool->shared->accounts[i].use[worker] = (struct cell__account_use){ 0 };
	}
	tell_all(pool, worker);
}

/* Clients that are connected already, as far as they know: with the socket their connections would be reset. */
static void hand_out_rest(struct cell_server_pool *pool)
{
	for (int i = 0; i < BACKLOG && hand_out(pool, true) > 0; i++)
		continue;
}

void cell_server_pool_close(struct cell_server_pool *pool)
{
	if (!pool || pool->listen_fd < 0)
		return;
	if (!pool->starting)
		hand_out_rest(pool);
	cell__starting_destroy(cell__take_ptr(pool->starting));
	cell__listen_end(&pool->address);
	cell__close_fd(&pool->listen_fd);
	__atomic_store_n(&pool->shared->hands_out, 0, __ATOMIC_SEQ_CST);
	tell_all(pool, -1); /* they may wait for that */
}

void cell_server_pool_destroy(struct cell_server_pool *pool)
{
	if (!pool)
		return;
	cell_server_pool_close(pool);
	for (int i = 0; i < pool->n; i++) {
		cell__close_fd(&pool->inboxes[i][0]);
		cell__close_fd(&pool->inboxes[i][1]);
	}
	if (pool->shared)
		munmap(pool->shared, pool->shared_bytes);
	free(pool->url);
	free(pool);
}
