/*
 * Shapes of results: a JSON Schema made from values, for tools that declare no output schema.  Pure.
 *
 * A shape holds types and names of fields, never a value.  It uses few keywords:
 *
 *     {}                                                      anything
 *     {"type": "string"}                                      also integer, number, boolean, null
 *     {"type": "object", "properties": {}, "required": []}    fields; those that some values lack are not required
 *     {"type": "object", "additionalProperties": SHAPE}       a map, whose keys are data
 *     {"type": "array", "items": SHAPE}                       without items: only empty ones were seen
 *     {"anyOf": [SHAPE, ...]}                                 of different types, in a fixed order
 *
 * Keys that may be data make an object a map: names that are not short ASCII identifiers, names with many digits, too many names, and two
 * objects of alike values that share no name.  Values are hostile: what exceeds a limit becomes {}, and every shape is finite, so that a
 * sequence of merges ends.
 */
#ifndef CELL_WIRE_SHAPE_H
#define CELL_WIRE_SHAPE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/base.h"

#define CELL_SHAPE_LIMIT_DEPTH 6u      /* containers in containers; deeper is anything */
#define CELL_SHAPE_LIMIT_FIELDS 64u    /* of one object; more make it a map */
#define CELL_SHAPE_LIMIT_NAME 48u      /* bytes of a field's name */
#define CELL_SHAPE_LIMIT_DIGITS 4u     /* in a field's name */
#define CELL_SHAPE_LIMIT_NODES 256u    /* of one shape; more cut its depth */
#define CELL_SHAPE_LIMIT_ITEMS 32u     /* of one array that are looked at */
#define CELL_SHAPE_LIMIT_VISITS 1024u  /* values of one result that are looked at */
#define CELL_SHAPE_LIMIT_DRIFTS 1000000 /* that are counted */
#define CELL_SHAPE_LIMIT_DRIFT_TEXT 240u
#define CELL_SHAPE_STABLE 3            /* equal observations in a row that make a shape the type of a result */

/* A new shape.  NULL: out of memory. */
json_t *cell__shape_of(const json_t *value);
/* A new shape that both fit.  NULL: out of memory. */
json_t *cell__shape_merge(const json_t *a, const json_t *b);
/* Whether it is a shape, within the limits: for those that come from a storage. */
bool cell__shape_ok(const json_t *shape);
/* "{id: int, tags: [str], note?: str}", at most max bytes: deeper parts become dict and list, further fields "...".  -1: out of memory. */
int cell__shape_text(const json_t *shape, size_t max, struct cell__buf *out);
/* The first difference, as text: "result.items[].id: int became int | str".  Nothing where they are equal.  -1: out of memory. */
int cell__shape_change(const json_t *before, const json_t *after, struct cell__buf *out);

/*
 * What is known of one tool's results:
 *
 *     {"shape": SHAPE, "same": N}                            N equal observations in a row
 *     {..., "drifts": N, "drift": TEXT}                      it changed N times after it was stable; the last change
 *
 * A shape that was stable stays the type of the result when it changes: the wider shape fits all results that were seen.
 */
/* The entry after one more observation, new; entry NULL: the first one.  *ret_drift: a stable shape has changed.  NULL: out of memory. */
json_t *cell__shape_learn(const json_t *entry, const json_t *shape, bool *ret_drift);
bool cell__shape_entry_ok(const json_t *entry);
/* The shape of an entry that is stable, borrowed; NULL: not yet, or entry is NULL. */
json_t *cell__shape_stable(const json_t *entry);

#endif
