/*
 * Large libraries that most programs never call: loaded when they are first needed, because loading them and what they need takes longer
 * than the rest of a short program.  In a build that links them statically there is nothing to load.
 *
 * Callers use the libraries' own headers and names; before the first call they load the library here.
 */
#ifndef CELL_BASE_LIBRARIES_H
#define CELL_BASE_LIBRARIES_H

#include "base/base.h"

enum cell__library {
	CELL__LIBRARY_CURL,
	CELL__LIBRARY_MICROHTTPD,
	CELL__LIBRARY_GNUTLS,
	CELL__LIBRARY_ZLIB,
	CELL__LIBRARY_ZMQ,
	CELL__LIBRARY_EDIT,
	CELL__LIBRARIES
};

/* Any thread.  It stays loaded.  CELL_E_IO: it is not there, or lacks a function. */
int cell__library_load(enum cell__library library, struct cell_error *err);

#endif
