/* Requests that are for another worker of this server, or for another server. */
#ifndef CELL_SERVER_PEERS_H
#define CELL_SERVER_PEERS_H

#include "server/server.h"

/* ---- requests for other workers (forward.c) ---- */

#define CELL_FORWARD_PREFIX "X-Workcell-"
#define CELL_FORWARD_CLIENT CELL_FORWARD_PREFIX "Client" /* the address of the client */
#define CELL_FORWARD_PART CELL_FORWARD_PREFIX "Part"     /* all workers are asked: answer for yourself */
#define CELL_FORWARD_HOP CELL_FORWARD_PREFIX "Hop"       /* another server forwarded it: it is not forwarded again */
#define CELL_FORWARD_ELSEWHERE CELL_FORWARD_PREFIX "Elsewhere" /* of an answer to that: nothing was done, ask again */
#define CELL_FORWARD_OWNER CELL_FORWARD_PREFIX "Owner"         /* of an answer to a client: the URL of the server that gave it */
#define CELL_FORWARD_NONCE CELL_FORWARD_PREFIX "Nonce"         /* greeting.c */
#define CELL_FORWARD_PROOF CELL_FORWARD_PREFIX "Proof"
/* The worker that a request is for; -1: this one.  The one place that decides it. */
int cell__request_owner(struct cell__request *request);
/* The same of one whose body names a session: that has to be read first. */
int cell__request_owner_by_body(struct cell__request *request);
/* Passes on a request whose body was read. */
void cell__forward_whole(struct cell__request *request, int worker, const char *url);
/* Passes the request on; request->forward, or it was answered. */
void cell__forward_begin(struct cell__request *request, int worker, const char *url);
/* The same to request->peer, another server. */
void cell__forward_to_peer(struct cell__request *request);
/* Passes a request whose body is here on to another server; it is answered, or cell__peers_unreached() or cell__peers_again() get it. */
void cell__forward_whole_to_peer(struct cell__request *request, const struct cell__address *address);
/* Takes bytes of the body and returns how many are left; size 0: its end. */
size_t cell__forward_take(struct cell__request *request, const char *bytes, size_t size);
bool cell__forward_is_busy(const struct cell__request *request);
/* Once a second: whether its client has left while it waits for more of a stream. */
void cell__forward_sweep(struct cell__request *request, int client_fd);
/* The body of an answer that came before the end of the request; free() it.  NULL: there is none. */
char *cell__forward_text(struct cell__request *request);
/* Asks all workers, and answers. */
void cell__gather_begin(struct cell__request *request, const char *url);
/* The request ends. */
void cell__forward_forget(struct cell__request *request);
/* Connections to other workers that nobody uses are closed. */
void cell__links_close(struct cell_server *server);

/* ---- whether the server at an address is one of ours (greeting.c) ---- */

#define CELL_PEER_URL_BYTES 200u
#define CELL_GREETING_NONCE 33
#define CELL_GREETING_PROOF 65
#define CELL_GREETING_BYTES 400

/* The key that is in the storage of saved sessions; false: it has not the form of one, and nothing changes. */
bool cell__greeting_key(struct cell_server *server, const char *key);
/* The first bytes of a connection to another server; false: out of memory. */
bool cell__greeting_write(const struct cell__address *peer, char nonce[static CELL_GREETING_NONCE], char out[static CELL_GREETING_BYTES]);
/* proof: what it answered; NULL: nothing. */
bool cell__greeting_check(const struct cell_server *server, const struct cell__address *peer, const char *nonce, const char *proof);
/* Whether it is the greeting of another server; its route is this one then. */
bool cell__greeting_is(const struct cell__request *request, const char *method, const char *path);
extern const struct cell__route cell__greeting_route;

/* ---- requests for other servers (peers.c) ---- */

/* If the options ask for it. */
int cell__peers_open(struct cell_server *server, struct cell_error *err);
/* The answer to a question of cell__peers_first(): a URL, or ""; err: the storage does not answer. */
void cell__peers_found(struct cell__request *request, const char *url, const struct cell_error *err);
/* Whether it is for something that another server may have: it is looked for, and the request goes on later. */
bool cell__peers_first(struct cell__request *request);
/* The storage does not answer, so that nobody knows whose it is: 503. */
void cell__peers_unknown(struct cell__request *request);
/* The other server was not reached: nothing was sent. */
void cell__peers_unreached(struct cell__request *request);
/* It is looked for again a little later; false: that has been done for long enough. */
bool cell__peers_again(struct cell__request *request);
/* A saved session could not be opened.  True: another server has it, or the storage does not answer, and the request goes on later or is answered. */
bool cell__peers_moving(struct cell__request *request, int code);

/* ---- which server has what (directory.c); without other servers these do nothing ---- */

int cell__directory_start(struct cell_server *server, struct cell_error *err);
void cell__directory_stop(struct cell_server *server);
/*
 * This server has, or no longer has, the session, task or batch of this id.  *ret_announced, which may be NULL, gets the number of changes that
 * are noted when others can find it: the answer that tells the id leaves then (cell__directory_hold()).
 */
void cell__directory_add(struct cell_server *server, const char *id, uint64_t *ret_announced);
void cell__directory_remove(struct cell_server *server, const char *id);
/* It still has it: noted again, if the storage has lost that. */
void cell__directory_keep(struct cell_server *server, const char *id);
/* Ends in cell__peers_found(); false: out of memory. */
bool cell__directory_find(struct cell__request *request, const char *id);
/* True: the answer of the request leaves later. */
bool cell__directory_hold(struct cell__request *request);
/* The request ends. */
void cell__directory_forget(struct cell__request *request);
bool cell__directory_is_idle(const struct cell_server *server);
/* Once a second. */
void cell__directory_sweep(struct cell_server *server, int64_t now_us);

#endif
