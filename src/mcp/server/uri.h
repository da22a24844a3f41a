/* URIs and templates of resources (uri.c).  Pure; any thread. */
#ifndef CELL_MCP_SERVER_URI_H
#define CELL_MCP_SERVER_URI_H

#include <jansson.h>
#include <stdbool.h>

#include "base/base.h"

#define CELL_MCP_MAX_URI 4096u     /* bytes of a URI or template */
#define CELL_MCP_MAX_VARIABLES 16  /* of a template */
#define CELL_MCP_MAX_VARIABLE 64u  /* bytes of the name of one */
#define CELL_MCP_ARTIFACTS "workcell://artifacts/"
#define CELL_MCP_WORKFLOWS "workcell://workflows/"

/* The number of its variables; -1: neither a URI nor a template. */
int cell__mcp_template_check(const char *text);
/* The values of its variables, decoded: a new object.  NULL: the URI does not fit, or out of memory. */
json_t *cell__mcp_template_match(const char *template, const char *uri);
bool cell__mcp_uri_is_template(const char *text);
/* The URI of an artifact or a workflow. */
int cell__mcp_uri_add(struct cell__buf *out, const char *prefix, const char *name);
/* The name in such a URI; free() it.  NULL: it is not one. */
char *cell__mcp_uri_name(const char *uri, const char *prefix);

#endif
