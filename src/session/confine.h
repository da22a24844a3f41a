/*
 * What confines programs that are run for somebody who is not trusted: as the code of the session is confined.  Belongs to the
 * loop's thread.
 */
#ifndef CELL_SESSION_CONFINE_H
#define CELL_SESSION_CONFINE_H

#include "loop/call.h"
#include "spawn/confinement.h"

struct cell_space;

/* For a call in this space (arg) by an untrusted principal: that of its session; a new reference. */
int cell__space_confine(void *arg, const struct cell__call *call, struct cell__confinement **ret_confinement,
			struct cell_error *err);

#endif
