/*
 * Several servers behind one address, each with its engine in a process of its own: workers.
 *
 *     clients ──▶ the program that started them ──accept, pass the socket──▶ worker 0 ◀──┐ requests for sessions of others
 *                 (cell_server_pool_accept())                            └─▶ worker 1 ◀──┘ (forward.c)
 *
 * The program makes the pool and forks the workers, which inherit:
 *
 *     memory   shared by all.  Each worker counts what it uses in a place of its own; a limit is compared with the sum, and the lock makes
 *              that exact.  The program clears the place of a worker that died, so nothing is counted for ever.
 *     inboxes  one pair of sockets per worker.  Everybody may write to each, only the worker reads its own.  They outlive the worker:
 *              messages for one that died are read by its successor.  Nobody else can write: they have no name.
 *
 * The number of a worker and its generation are in the ids of its sessions, so that each worker knows whom a request concerns.
 */
#ifndef CELL_SERVER_POOL_H
#define CELL_SERVER_POOL_H

#include "server/server.h"

#define CELL_POOL_MAX_WORKERS 64
#define CELL_POOL_MAX_ACCOUNTS 2048u /* tokens with different names, ever */
#define CELL_POOL_MAX_LISTED 16384u  /* sessions of a worker that others find without knowing their ids */
#define CELL_POOL_MAX_NAMED 1024u    /* snapshots with names, of all workers */
#define CELL_POOL_MAX_GIVEN_NAME 128u

/* In a message to a worker: a connection of a client, one of another worker, a free slot for a cell. */
enum cell__pool_message { CELL_POOL_CLIENT = 'c', CELL_POOL_PEER = 'p', CELL_POOL_SLOT = 's' };

struct cell__account_share {
	char name[CELL_SERVER_MAX_NAME + 1];
	struct cell__account_cpu cpu;
	struct cell__account_use use[CELL_POOL_MAX_WORKERS];
};

/* Without a pool the locks do nothing and the sums are the server's own.  The lock may be taken again by its holder. */
void cell__pool_lock(const struct cell_server *server);
void cell__pool_unlock(const struct cell_server *server);
int64_t cell__pool_sum(const struct cell_server *server, size_t offset);
int64_t cell__pool_account_sum(const struct cell_server *server, const struct cell__account *account, size_t offset);
#define CELL_ALL(server, member) cell__pool_sum(server, offsetof(struct cell__server_use, member))
#define CELL_ALL_OF(server, account, member) cell__pool_account_sum(server, account, offsetof(struct cell__account_use, member))
/* 1 without a pool. */
int cell__pool_size(const struct cell_server *server);
/* The place of a token; NULL: there are too many. */
struct cell__account_share *cell__pool_account(const struct cell_server *server, const char *name);

/* Takes a slot for a cell that has waited since then; false: none is free, or a worker with an older one is told. */
bool cell__pool_take_slot(struct cell_server *server, int64_t since_us);
/* Gives one back: workers whose cells wait are told. */
void cell__pool_free_slot(struct cell_server *server);
/* Each worker looks whether it can go on. */
void cell__pool_tell_all(struct cell_server *server);

/* The worker of this session; -1: this one, or none. */
int cell__pool_owner(const struct cell_server *server, const char *session_id);
/* The session was one of a worker that died. */
bool cell__pool_has_ended(const struct cell_server *server, const char *session_id);
/* The worker reads its inbox: it serves, or leaves and has not ended. */
bool cell__pool_reads(const struct cell_server *server, int worker);
/* It does not, and none takes its place, which would read what was sent: all leave. */
bool cell__pool_is_gone(const struct cell_server *server, int worker);
/* A new connection to a worker, perhaps ourselves; -1: it cannot be made, or the worker has ended and none takes its place. */
int cell__pool_connect(const struct cell_server *server, int worker);

/*
 * The ids that a worker lists for the others: sandboxes, which a signed URL may mean without naming them.  A place in the list is written by
 * its worker alone, and read without a lock: a reader checks what it finds.
 */
/* The place; -1: there is no pool, or the list is full. */
int cell__pool_list(struct cell_server *server, const char *session_id);
void cell__pool_unlist(struct cell_server *server, int place);
/* The next of another worker, from *at on, which is 0 at first; false: there are no more. */
bool cell__pool_next_listed(const struct cell_server *server, uint64_t *at, char ret_id[static 33]);

/*
 * Names that tokens gave to sessions: snapshots, which any worker may be asked for.  Several may have one name, the newest is found.  Without
 * a pool nothing is kept and nothing found.
 */
/* False: there are too many. */
bool cell__pool_name(struct cell_server *server, const char *owner, const char *name, const char *session_id);
/* The session has ended. */
void cell__pool_unname(struct cell_server *server, const char *session_id);
bool cell__pool_named(const struct cell_server *server, const char *owner, const char *name, char ret_id[static 33]);

/*
 * The end of all workers.  A worker that has ended cannot be asked, so none stops before the sessions of all of them sleep, their cells have
 * ended, and the program has handed out the last clients.
 */
/* The program has told, or tells, all workers to end.  False without a pool. */
bool cell__pool_leaves(const struct cell_server *server);
/* All of them stop. */
bool cell__pool_stops(const struct cell_server *server);
/* rests: sessions of this worker do not sleep yet; is_over: it waits for nothing more.  Returns whether it stops now; then all do that leave. */
bool cell__pool_may_stop(struct cell_server *server, bool rests, bool is_over);

/* Digits that no client knows, the same for all workers. */
const char *cell__pool_secret(const struct cell_server *server);

/* In a new worker, before its engine has sessions. */
void cell__pool_join(struct cell_server *server);
/* The worker serves; false: it no longer takes clients. */
void cell__pool_set_up(struct cell_server *server, bool up);
/* Starts reading messages, on the loop. */
void cell__pool_start(struct cell_server *server);
/* Reads those that are there. */
void cell__pool_receive(struct cell_server *server);
/* Reads none any more: other workers see the end of connections that wait. */
void cell__pool_stop(struct cell_server *server);
/* A client that was passed to us has gone. */
void cell__pool_client_left(struct cell_server *server);

/* "http://HOST:PORT" or "unix:PATH"; free() it.  NULL: out of memory. */
char *cell__server_url(const struct cell__address *address, bool tls);

#endif
