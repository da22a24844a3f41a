/* Tools from OpenAPI documents: openapi.c reads a document, load_openapi.c the definition that names it. */
#ifndef CELL_TOOLS_OPENAPI_H
#define CELL_TOOLS_OPENAPI_H

#include "tools/internal.h"

#define CELL_OPENAPI_LIMIT_BYTES (32u * 1024u * 1024u) /* of a document */
#define CELL_OPENAPI_LIMIT_YAML_BYTES (4u * 1024u * 1024u) /* the same as YAML, whose trees are larger */
#define CELL_OPENAPI_FETCH_S 30                        /* to fetch it */

/* What a definition chooses from a document; NULL: nothing is said. */
struct cell__openapi_wish {
	const char *server;       /* a URL, or the URL or description of one of the document's */
	const char *document_url; /* relative servers are relative to it */
	const json_t *variables;  /* of the server's URL: an object of strings */
	const json_t *auth;       /* security scheme -> text with ${VAR} */
	const json_t *tags, *operations, *without_tags, *without_operations; /* lists of patterns */
};

/* Adds base URL, authentication and callables.  -1: `why` says what is wrong; the tool may have some of them. */
int cell__openapi_read(const json_t *document, const struct cell__openapi_wish *wish, struct cell__tool_entry *tool, struct cell__buf *why);

#endif
