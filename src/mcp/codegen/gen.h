/*
 * From the tools of an MCP server to a Python package with a typed module for each: pure, bytes in, bytes out.
 *
 *     tools/list ──▶ cell__gen_parse ──▶ cell__gen_package ──▶ files ──▶ cell__gen_write (mcp/codegen/files.h)
 *
 *     <package>/__init__.py   the list of tools
 *     <package>/_api.py       the base classes of the modules, and the server's name
 *     <package>/<tool>.py     Params, Result, enums and nested models; run() and run_async()
 *
 * Everything that comes from the server is data.  A name becomes an identifier only after every character of it was
 * checked; a text goes into a string literal, with every character escaped that could end it or mislead a reader; no text
 * goes into a comment.  A schema that is invalid or exceeds the limits becomes Any; a tool that cannot be described at
 * all is reported as a problem, and the others are generated.  The same input gives the same bytes.
 *
 * Any thread; nothing here keeps state.
 *
 *     gen.c     the package: tools, modules, their beginning and end
 *     schema.c  schemas: references, unions, objects, arrays
 *     flat.c    schemas: targets of references, and allOf as one schema
 *     scalar.c  schemas: single values, enums, limits
 *     value.c   defaults: whether a value fits a schema, and its Python expression
 *     class.c   classes as text
 *     text.c    memory, strings, numbers, docstrings
 *     names.c   names
 *     json.c    JSON that the parser would refuse as a whole
 */
#ifndef CELL_MCP_CODEGEN_GEN_H
#define CELL_MCP_CODEGEN_GEN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/base.h"

#define CELL_GEN_LIMIT_INPUT_BYTES (32u * 1024u * 1024u)   /* a tools/list result */
#define CELL_GEN_LIMIT_TOOLS 4096u
#define CELL_GEN_LIMIT_SERVER 64u                          /* bytes of a server's name, as a tool's in a space */
#define CELL_GEN_LIMIT_NAME 256u                           /* bytes of a tool's name */
#define CELL_GEN_LIMIT_IDENTIFIER 100u                     /* characters of a name that we make */
#define CELL_GEN_LIMIT_JSON_DEPTH 200u                     /* deeper values are null */
#define CELL_GEN_LIMIT_DEPTH 20u                           /* types in types */
#define CELL_GEN_LIMIT_SCHEMAS 65536u                      /* visited for one tool */
#define CELL_GEN_LIMIT_CLASSES 1024u                       /* in one module */
#define CELL_GEN_LIMIT_FIELDS 4096u                        /* of one class */
#define CELL_GEN_LIMIT_MEMBERS 1024u                       /* of one enum */
#define CELL_GEN_LIMIT_UNION 64u
#define CELL_GEN_LIMIT_TUPLE 64u
#define CELL_GEN_LIMIT_PATTERN_BYTES 4096u
#define CELL_GEN_LIMIT_DOC_BYTES 16384u                    /* of one description; the rest is cut */
#define CELL_GEN_LIMIT_SUMMARY_BYTES 160u                  /* of a tool, in the list of them */
#define CELL_GEN_LIMIT_LITERAL_DEPTH 12u                   /* of a default */
#define CELL_GEN_LIMIT_MODULE_BYTES (8u * 1024u * 1024u)
#define CELL_GEN_LIMIT_PACKAGE_BYTES (128u * 1024u * 1024u)

/* The first line of every file that we make, and of no other. */
#define CELL_GEN_MARK "# Made by `workcell gen mcp`, which replaces it: changes will be lost.\n"

struct cell__codegen_options {
	const char *server; /* the name that the server has among the tools of a session: letters, digits, _ and - */
	bool async_api;     /* run() is a coroutine function and run_sync() waits; else run() waits and run_async() does not */
};

struct cell__gen_file {
	char *name; /* one component, "echo.py" */
	char *text;
	size_t size;
};

struct cell__gen_package {
	char *name; /* of the folder: an identifier */
	char *head; /* the first lines of its __init__.py, by which a folder is known as made for this server */
	struct cell__gen_file *files; /* __init__.py is the last */
	size_t n_files;
	json_t *tools;    /* [{"name", "module"}], in the server's order */
	json_t *problems; /* [{"tool", "message"}] */
};

/*
 * The array of tools of a tools/list result, of its JSON-RPC response, or of a bare array; a new reference.  Numbers out
 * of range, NaN, lone surrogates and values nested too deeply become null, a near number or U+FFFD instead of making the
 * whole text unreadable.  NULL with CELL_E_INVALID or CELL_E_LIMIT.
 */
json_t *cell__gen_parse(const char *text, size_t size, struct cell_error *err);
/* -1 with CELL_E_INVALID (the server's name, or no array), CELL_E_LIMIT or CELL_E_NOMEM; *ret is untouched then. */
int cell__gen_package(const struct cell__codegen_options *opts, const json_t *tools, struct cell__gen_package *ret, struct cell_error *err);
void cell__gen_package_finish(struct cell__gen_package *package);

#endif
