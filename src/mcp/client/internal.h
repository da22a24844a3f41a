/*
 * Shared by the client's files: client.c (life and requests), start.c (connections), modern.c and rounds.c (revision 2026-07-28), message.c
 * (incoming messages), listing.c (the tools).
 */
#ifndef CELL_MCP_CLIENT_INTERNAL_H
#define CELL_MCP_CLIENT_INTERNAL_H

#include "mcp/client/client.h"

enum cell__mcp_state { CELL_MCP_IDLE, CELL_MCP_WAITING, CELL_MCP_STARTING, CELL_MCP_READY };

struct cell__mcp_requests {
	struct cell__mcp_request *first, *last;
	size_t count;
};

struct cell__mcp_elicitation {
	struct cell__mcp_client *client; /* NULL: the client is closed */
	uint64_t connection;             /* that sent the question */
	json_t *id;        /* of the server's request; NULL: see key */
	char *key;         /* its name in the answer that asked it (rounds.c) */
	json_t *form;                    /* the schema of its answer; NULL: it has none */
	struct cell__mcp_request *request; /* of the call that it belongs to, while that is under way; or NULL */
	void (*gone)(void *arg);         /* or NULL */
	void *gone_arg;
	struct cell__mcp_elicitation *next;
};

/* A list that is being read, page by page. */
struct cell__mcp_listing {
	struct cell__mcp_request request;
	json_t *tools;
	char *cursor;   /* of the requested page */
	unsigned pages;
	bool wanted;    /* a caller waits for it */
	bool again;     /* it changed while it was read */
	int64_t ttl_ms; /* of the page that expires first; -1: none yet */
	bool param_headers;
	char problem[160];
};

struct cell__mcp_client {
	struct cell__mcp_client_options opts;
	enum cell__mcp_state state;
	struct cell__mcp_transport *transport;
	unsigned transports;  /* that are not gone */
	uint64_t connection;  /* which one this is */
	enum cell__mcp_kind kind;
	bool batches;
	bool legacy;          /* it answered initialize before, so it is not probed */
	bool modern;          /* this connection speaks revision 2026-07-28 */
	bool renew;           /* the server refused our token: the next start gets another one, once */
	bool logs_in;         /* it is used with a token that can be renewed */
	bool repeated;        /* the probe was made twice: the server refused our revision, but names it */
	bool restarted;       /* it ended at the probe, and was started again without */
	bool guessed;         /* nobody said that it speaks Streamable HTTP, */
	bool older;           /* ... and it refused initialize by that: the transport before it is used */
	struct cell_error refused; /* how it did; code 0: the older one works, or was not tried */
	int64_t probe_at_us;  /* when initialize is sent although the probe was not answered; 0: not */
	bool lists_change, logs; /* capabilities */
	bool param_headers;   /* parameters of a tool are sent as headers */
	struct cell__mcp_request probe, listening;
	int64_t start_us;     /* when this start began */
	int64_t note_at_us;   /* starting: when it is reported next; 0: not */
	int64_t noted_us;     /* when it was last */
	unsigned listen_tries;
	int64_t listen_at_us;
	struct cell__mcp_requests waiting, sent, held; /* held: until the tools are listed again */
	int64_t next_id;
	uv_timer_t timer;
	int64_t armed_us;     /* when it fires; 0: not armed */
	int64_t retry_at_us;  /* before that no start */
	int64_t ready_us;     /* when it became ready */
	unsigned failures;    /* in a row */
	bool broken;          /* the connection is to be dropped for `failure`, in the next iteration */
	struct cell__mcp_failure failure;
	struct cell__buf tail, shown_tail;
	struct cell__mcp_request init, ping;
	struct cell__mcp_listing listing;
	json_t *tools, *server_info;
	int64_t fresh_until_us; /* the list of tools; 0: for ever */
	char *instructions;
	char list_problem[160];
	struct cell__mcp_elicitation *elicitations;
	unsigned n_elicitations;
	int64_t elicit_us;    /* since when at least one is open */
	int64_t window_us;    /* flood: up to when something was forgiven */
	size_t idle_bytes, idle_messages;
	bool closing, timer_closed;
	void (*closed)(void *arg);
	void *closed_arg;
};

/* client.c */
void cell__mcp_arm(struct cell__mcp_client *client, int64_t at_us);
/* Sends, or loses the connection: the caller must not use it then. */
void cell__mcp_send(struct cell__mcp_client *client, const struct cell__buf *text, int64_t id);
void cell__mcp_notify(struct cell__mcp_client *client, const char *method, const json_t *params);
void cell__mcp_take(struct cell__mcp_request *request);
void cell__mcp_send_request(struct cell__mcp_client *client, struct cell__mcp_request *request);
/* The connection cannot go on; the owner hears of it from a later iteration of the loop. */
void cell__mcp_fail_soon(struct cell__mcp_client *client, const struct cell_error *err);
void cell__mcp_transport_gone(void *owner);
extern const struct cell__mcp_transport_events cell__mcp_events;
/* The server is told that nobody waits for the answer. */
void cell__mcp_abandon(struct cell__mcp_request *request, const char *reason);
/* The tools were listed again, or not: requests that waited for it are sent. */
void cell__mcp_release_held(struct cell__mcp_client *client);
void cell__mcp_hold(struct cell__mcp_request *request);
/* We consider the connection unusable. */
void cell__mcp_drop(struct cell__mcp_client *client, const struct cell_error *err);
void cell__mcp_finish_request(struct cell__mcp_request *request, const struct cell__mcp_answer *answer);
/* Sends queued messages. */
void cell__mcp_flush(struct cell__mcp_client *client);
void cell__mcp_request_fail(struct cell__mcp_request *request, const struct cell__mcp_failure *failure);
struct cell__mcp_request *cell__mcp_find(struct cell__mcp_client *client, int64_t id);

/* start.c */
void cell__mcp_connect(struct cell__mcp_client *client);
/* The probe was not answered for a while. */
void cell__mcp_probe_late(struct cell__mcp_client *client);
void cell__mcp_start_refused(struct cell__mcp_client *client, struct cell__mcp_request *request, const struct cell__mcp_rejection *refusal);
/* True: the server wants another token, and the connection is made again with one. */
bool cell__mcp_renews(struct cell__mcp_client *client, const struct cell__mcp_rejection *refusal);
/* The program has ended. True: because of the probe, perhaps, and it is started again. */
bool cell__mcp_restart_legacy(struct cell__mcp_client *client);

/* modern.c */
bool cell__mcp_elicits(const struct cell__mcp_client *client);
void cell__mcp_keep_capabilities(struct cell__mcp_client *client, const json_t *capabilities);
int cell__mcp_describe(struct cell__mcp_client *client, struct cell__mcp_request *request);
int cell__mcp_make_headers(struct cell__mcp_client *client, const struct cell__mcp_request *request, char ***ret_headers,
			   struct cell_error *err);
const json_t *cell__mcp_find_tool(const struct cell__mcp_client *client, const char *name);
void cell__mcp_listen(struct cell__mcp_client *client);

/* rounds.c */
/* True: the result is not the request's end, or was not understood, and has been handled. */
bool cell__mcp_round(struct cell__mcp_client *client, struct cell__mcp_request *request, const json_t *result);
void cell__mcp_round_free(struct cell__mcp_round *round);
void cell__mcp_round_answer(struct cell__mcp_client *client, struct cell__mcp_request *request, const char *key, const char *action,
			    json_t *content);
int64_t cell__mcp_round_due(const struct cell__mcp_request *request); /* when it is polled; 0: not */
void cell__mcp_round_poll(struct cell__mcp_client *client, struct cell__mcp_request *request);
const char *cell__mcp_round_task(const struct cell__mcp_request *request); /* or NULL */

/* message.c */
/* id: of the server's request, key: of a question in an answer; one is NULL.  NULL: out of memory. */
struct cell__mcp_elicitation *cell__mcp_elicitation_create(struct cell__mcp_client *client, struct cell__mcp_request *request, json_t *id,
							   const char *key, const json_t *params);
void cell__mcp_elicitation_discard(struct cell__mcp_elicitation *elicitation);
void cell__mcp_handle_text(struct cell__mcp_client *client, const char *text, size_t size);
void cell__mcp_drop_elicitations(struct cell__mcp_client *client);
/* The request is over, and so are its questions. */
void cell__mcp_end_elicitations(struct cell__mcp_client *client, const struct cell__mcp_request *request);

/* listing.c */
void cell__mcp_list_start(struct cell__mcp_client *client);
void cell__mcp_list_reset(struct cell__mcp_client *client);

#endif
