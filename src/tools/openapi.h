/* Tools from OpenAPI documents: openapi.c reads a document, load_openapi.c the definition that names it. */
#ifndef CELL_TOOLS_OPENAPI_H
#define CELL_TOOLS_OPENAPI_H

#include "tools/internal.h"

#define CELL_OPENAPI_LIMIT_BYTES (32u * 1024u * 1024u) /* of a document */
#define CELL_OPENAPI_LIMIT_YAML_BYTES (4u * 1024u * 1024u) /* the same as YAML, whose trees are larger */
#define CELL_OPENAPI_FETCH_S 30                        /* to fetch it */

#define CELL_OPENAPI_LIMIT_DOCUMENTS 64u               /* that a document refers to, directly or not */

/*
 * Loads a document that another one refers to.  place: a path relative to the first document's folder, which it does not leave, or a URL.
 * *bytes_left: of all of them; the function counts down.  *ret_document stays NULL: references to it are left alone.  -1: `why` says what is
 * wrong.
 */
struct cell__openapi_loader {
	int (*load)(void *arg, const char *place, size_t *bytes_left, json_t **ret_document, struct cell__buf *why);
	void *arg;
};

/* Makes references to other documents references within this one, which is at `place` (openapi_refs.c). */
int cell__openapi_bundle(json_t *document, const char *place, const struct cell__openapi_loader *loader, struct cell__buf *why);

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
