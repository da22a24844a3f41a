/*
 * Globs: patterns on texts, for policies and for redaction.  Pure; a compiled glob never changes, any thread.
 *
 *     *      any characters, in a path none of them a slash      ?       one character (not a byte), likewise
 *     **     any characters                                      [a-z]   one of these ASCII characters; [!a-z] any other
 *     \x     x itself                                            { }     refused: alternatives are a list of patterns
 *
 * Matching is of the whole text, on bytes, case-sensitive.  The work is at most the pattern's size times the text's:
 * all positions of the pattern that may be the current one are carried along together, nothing is tried again.
 */
#ifndef CELL_GATE_GLOB_H
#define CELL_GATE_GLOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

#define CELL__GLOB_LIMIT 512u /* bytes of a pattern */

/* The characters that a wildcard (not a literal) does not match. */
enum cell__glob_mode {
	CELL__GLOB_TEXT,  /* nothing; * is ** */
	CELL__GLOB_PATH,  /* * ? [!x] refuse the slash */
	CELL__GLOB_SHELL, /* none matches shell metacharacters; * is ** */
};

struct cell__glob;

/* NULL: *ret_problem describes the problem of the pattern (or "out of memory"). */
struct cell__glob *cell__glob_create(const char *pattern, const char **ret_problem);
void cell__glob_destroy(struct cell__glob *glob);
/* The pattern as written. */
const char *cell__glob_text(const struct cell__glob *glob);
/* Adds what it cost to *steps (may be NULL). */
bool cell__glob_match(const struct cell__glob *glob, enum cell__glob_mode mode, const char *text, size_t size, uint64_t *steps);
/* Whether this byte is a shell metacharacter. */
bool cell__glob_is_shell(unsigned char c);

#endif
