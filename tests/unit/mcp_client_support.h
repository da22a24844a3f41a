/*
 * What the tests of mcp/client share: a stand-in for spawn/process.h and for the loop, with the test as the server.  It sees what the client
 * wrote and puts words into its mouth, all on one thread.
 */
#ifndef CELL_TEST_MCP_CLIENT_SUPPORT_H
#define CELL_TEST_MCP_CLIENT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <uv.h>

#include "mcp/client/client.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct cell__process {
	struct cell__process_spec spec;
	struct cell__buf written; /* lines that the client sent */
	uv_timer_t end;
	bool stdin_closed, killed, ended;
	struct cell__process_exit how;
	struct cell__process *next;
};

/* A stand-in for loop/loop.c as well: the test turns it by hand. */
struct cell__loop {
	uv_loop_t uv;
};

struct asked {
	struct cell__mcp_request request;
	unsigned done, progress;
	int code;
	char text[240]; /* of the failure, or the result as JSON */
	bool close_then;
};

extern struct cell__loop loop;
extern struct cell__process *processes; /* the newest first */
extern unsigned n_started, n_alive;
extern int start_error;
extern struct cell__mcp_client *client;
extern unsigned n_listed, n_closed, n_ended, n_logged;
extern int listed_code;
extern char listed_msg[240], listed_tail[256];
extern int launch_error;
extern struct cell__mcp_elicitation *question, *questions[4]; /* and those before it, the last one first */
extern struct cell__mcp_request *question_of;
extern bool closing;
extern struct asked late; /* for a test that waits for its end */

void end_process(struct cell__process *process, int status);
void turn(void);
bool turn_until(bool (*condition)(void));
void say(const char *line);
void sayf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The next message from the client; NULL: there is none.  Decref it. */
json_t *heard(void);
/* The client must have asked this; its id. */
int64_t expect(const char *method);
void expect_nothing(void);
/* The client's request to initialize, after its probe for the modern era, unless it knows better.  Decref it. */
json_t *heard_initialize(void);
int expect_initialize(void);
/* From initialize to the empty list of tools. */
void greet(void);
void list_nothing(void);
int handle_launch(void *arg, struct cell__mcp_launch *ret_launch, struct cell_error *err);
void handle_listed(void *arg, const struct cell__mcp_failure *failure);
void close_client(void);
bool is_closed(void);
void begin_with(bool asks);
void begin(void);
void finish(void);
void handle_done(struct cell__mcp_request *request, const struct cell__mcp_answer *answer);
void handle_progress(struct cell__mcp_request *request, const json_t *params);
void ask(struct asked *asked, int64_t timeout_ms);
bool late_done(void);
bool all_dead(void);
/* Ready, with nothing under way. */
void make_ready(void);

#endif
