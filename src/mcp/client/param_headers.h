/*
 * Parameters of a tool that are sent as HTTP headers too (`x-mcp-header` in its schema), and the values of such headers.  Pure.
 */
#ifndef CELL_MCP_CLIENT_PARAM_HEADERS_H
#define CELL_MCP_CLIENT_PARAM_HEADERS_H

#include <jansson.h>

#include "base/base.h"

#define CELL_MCP_LIMIT_PARAM_HEADERS 64u   /* of one tool */
#define CELL_MCP_LIMIT_PARAM_NAME 128u     /* bytes of the name of a header, without its prefix */
#define CELL_MCP_LIMIT_PARAM_DEPTH 32u     /* schemas in schemas that are searched for annotations */
#define CELL_MCP_LIMIT_PARAM_VALUE 8192u   /* bytes of one value */

struct cell__header_list {
	char **lines; /* "Name: value", NULL-terminated; or NULL */
	size_t count;
};
/* A value that no header can hold as it is goes as =?base64?…?=. */
int cell__header_list_add(struct cell__header_list *list, const char *name, const char *value);
void cell__header_list_finish(struct cell__header_list *list);

/* How many parameters of the schema are annotated; -1: an annotation is invalid, and *ret_why says why. */
int cell__param_headers_check(const json_t *schema, const char **ret_why);
/* Adds Mcp-Param-{name} of the arguments that are given. CELL_E_INVALID: a value cannot be sent. */
int cell__param_headers_add(struct cell__header_list *list, const json_t *schema, const json_t *args, struct cell_error *err);

#endif
