/* The state of a space's MCP servers (servers.c).  Belongs to the loop's thread. */
#ifndef CELL_SPACE_SERVERS_H
#define CELL_SPACE_SERVERS_H

#include "loop/loop.h"
#include "tools/tools.h"

struct cell__servers {
	struct cell__loop *loop;
	struct cell_space *space;
	cell_tool_event_fn fn; /* the receiver of events; NULL: none */
	void *arg;
};

/* Loop's thread: from now on notifications of the space's servers reach its sessions. */
void cell__servers_init(struct cell__servers *servers, struct cell_space *space);

/* space.c; any thread */
struct cell_engine *cell__space_engine(struct cell_space *space);
/* Loop's thread. */
struct cell__tools *cell__space_tools(struct cell_space *space);
struct cell__servers *cell__space_servers(struct cell_space *space);

/* ---- functions.c ---- */

struct cell__function; /* of the host, as a tool */
struct cell__middlewares;
struct cell__function **cell__space_functions(struct cell_space *space);
struct cell__middlewares *cell__space_middlewares(struct cell_space *space);
void cell__functions_free(struct cell__function *functions);

#endif
