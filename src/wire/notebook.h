/*
 * Jupyter notebooks (nbformat 4): the cells of one, and one made of cells and results.
 *
 * Pure.  The bytes of a notebook are hostile: they come from a file or a client.
 */
#ifndef CELL_WIRE_NOTEBOOK_H
#define CELL_WIRE_NOTEBOOK_H

#include <jansson.h>
#include <stddef.h>

#include "base/error.h"

#define CELL_NOTEBOOK_BYTES (64u << 20)
#define CELL_NOTEBOOK_TREE_BYTES (512u << 20) /* of its values in memory */
#define CELL_NOTEBOOK_CELLS 10000

/*
 * The code of its code cells, an array of strings; empty ones are left out.  CELL_E_INVALID: not a notebook; CELL_E_UNSUPPORTED: another format
 * or language; CELL_E_LIMIT; CELL_E_NOMEM.
 */
json_t *cell__notebook_read(const char *bytes, size_t size, struct cell_error *err);
/* A notebook, format 4.5: cells is an array of {"code", "result"}, results as cell_result_json() writes them.  NULL: out of memory. */
json_t *cell__notebook_make(const json_t *cells);

#endif
