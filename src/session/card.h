/* What a request says about itself, shared by all events that speak of it.  Counted, immutable, any thread. */
#ifndef CELL_SESSION_CARD_H
#define CELL_SESSION_CARD_H

#include "core/core.h"

/* Copies all texts but `args`, which it takes over.  NULL: no memory, and args are freed. */
const struct cell_call_info *cell__card_create(const struct cell_call_info *info, char *args);
const struct cell_call_info *cell__card_ref(const struct cell_call_info *info);
void cell__card_unref(const struct cell_call_info *info);

#endif
