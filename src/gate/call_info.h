/* The description of a request, shared by all its events.  Counted, immutable, any thread. */
#ifndef CELL_GATE_CALL_INFO_H
#define CELL_GATE_CALL_INFO_H

#include "base/base.h"

/* Copies all strings but `args`, which it takes over.  NULL: out of memory, and args are freed. */
const struct cell_call_info *cell__call_info_create(const struct cell_call_info *info, char *args);
const struct cell_call_info *cell__call_info_ref(const struct cell_call_info *info);
void cell__call_info_unref(const struct cell_call_info *info);

#endif
