/*
 * Planted holes: a program made to prove that the tests notice when a defence is missing.  In workcell-holes (meson.build,
 * `hole_sources`), $WORKCELL_PLANTED_HOLE names the defence that is left out; everywhere else is_hole() is false and
 * costs nothing.  tests/escape/holes.py plants one after another.
 */
#ifndef CELL_BASE_HOLE_H
#define CELL_BASE_HOLE_H

#ifdef CELL_PLANTED_HOLES
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool is_hole(const char *name)
{
	const char *hole = getenv("WORKCELL_PLANTED_HOLE");
	return hole && strcmp(hole, name) == 0;
}
#else
#define is_hole(name) false
#endif

#endif
