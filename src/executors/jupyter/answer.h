/*
 * Converts a Jupyter kernel's messages about a cell to the form of executors: MIME bundles with their bytes, errors without colours.  Pure
 * but for memory.
 */
#ifndef CELL_EXECUTORS_JUPYTER_ANSWER_H
#define CELL_EXECUTORS_JUPYTER_ANSWER_H

#include <jansson.h>

#include "executors/executor.h"

/* A bundle and the memory it needs; the JSON it was made of must outlive it. */
struct cell__jupyter_bundle {
	struct cell__bundle bundle;
	char *owned[CELL_LIMIT_MIME_PARTS];
	size_t n_owned;
};

/* data: a JSON object, as in display_data.  skip: a type that is left out, or NULL.  Never fails: unusable parts are left out. */
void cell__jupyter_bundle_init(struct cell__jupyter_bundle *bundle, json_t *data, const char *skip);
void cell__jupyter_bundle_finish(struct cell__jupyter_bundle *bundle);

/* The lines of a traceback as one text without colour codes; NULL: out of memory. */
char *cell__jupyter_traceback(json_t *lines);

#endif
