/* Shared by the client's files: client.c (life and requests), message.c (incoming messages), listing.c (the tools). */
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
	json_t *id;
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
	char problem[160];
};

struct cell__mcp_client {
	struct cell__mcp_client_options opts;
	enum cell__mcp_state state;
	struct cell__mcp_transport *transport;
	unsigned transports;  /* that are not gone */
	uint64_t connection;  /* which one this is */
	bool batches;
	struct cell__mcp_requests waiting, sent;
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
/* We consider the connection unusable. */
void cell__mcp_drop(struct cell__mcp_client *client, const struct cell_error *err);
void cell__mcp_finish_request(struct cell__mcp_request *request, const struct cell__mcp_answer *answer);
/* Sends queued messages. */
void cell__mcp_flush(struct cell__mcp_client *client);
void cell__mcp_request_fail(struct cell__mcp_request *request, const struct cell__mcp_failure *failure);
struct cell__mcp_request *cell__mcp_find(struct cell__mcp_client *client, int64_t id);

/* message.c */
void cell__mcp_handle_text(struct cell__mcp_client *client, const char *text, size_t size);
void cell__mcp_drop_elicitations(struct cell__mcp_client *client);
/* The request is over, and so are its questions. */
void cell__mcp_end_elicitations(struct cell__mcp_client *client, const struct cell__mcp_request *request);

/* listing.c */
void cell__mcp_list_start(struct cell__mcp_client *client);
void cell__mcp_list_reset(struct cell__mcp_client *client);

#endif
