/*
 * Removes secrets from logs: values by their names, and strings that look like keys.  Nothing of
 * them is left, not even their length.  Pure; a redactor is immutable, any thread.
 */
#ifndef CELL_GATE_REDACT_H
#define CELL_GATE_REDACT_H

#include <jansson.h>

#include "base/base.h"

#define CELL__REDACTED "[redacted]"
#define CELL__REDACT_LIMIT_PATTERNS 1000u
#define CELL__REDACT_LIMIT_NAME 64u    /* bytes of a name before = or : in a text that are looked at */
#define CELL__REDACT_LIMIT_DEPTH 64u   /* nesting; deeper values are left out */
#define CELL__REDACT_LIMIT_STRING 2048u /* bytes of a text; a longer one is cut */
#define CELL__REDACT_LIMIT_FOUND 32u   /* values that are remembered */
#define CELL__REDACT_LIMIT_HEAD 256u   /* bytes kept of a truncated value */
#define CELL__SHA256_SIZE 65

struct cell__redactor;

/*
 * more: further globs (NULL-terminated; may be NULL).  One with a dot is for the dotted path of an argument, others are
 * for the name at any depth; upper and lower case are the same, and so are - and _.
 */
int cell__redactor_create(const char *const *more, struct cell__redactor **ret_redactor, struct cell_error *err);
void cell__redactor_destroy(struct cell__redactor *redactor);

/* Values that were cut out because of their names, so that they can be cut out elsewhere too; borrowed. */
struct cell__redact_found {
	const json_t *list[CELL__REDACT_LIMIT_FOUND];
	size_t count;
};

/*
 * Appends a value as JSON on one line, texts cut to CELL__REDACT_LIMIT_STRING: {"[cut]": HEAD, "bytes": N, "sha256": X}, of
 * the text after redaction.  0, or -1: out of memory.
 */
int cell__redact_json(const struct cell__redactor *redactor, const json_t *value, struct cell__redact_found *found, struct cell__buf *out);
/* Appends a text, as UTF-8 where it was.  found may be NULL. */
int cell__redact_text(const struct cell__redactor *redactor, const char *text, size_t size, const struct cell__redact_found *found,
		      struct cell__buf *out);
/* Appends {"[cut]": the first head bytes, "bytes": N, "sha256": X}. */
int cell__redact_add_cut(struct cell__buf *out, const char *text, size_t size, size_t head);
/* In hex.  -1: out of memory. */
int cell__sha256_hex(const void *bytes, size_t size, char out[static CELL__SHA256_SIZE]);

#endif
