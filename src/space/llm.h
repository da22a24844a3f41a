/*
 * `llm`: the model that the code of a space's sessions may ask, a function of the host.  Belongs to the loop's thread.
 *
 * All sessions of the space share its budget, so what a session forks, by its code or by the host, spends from the same one.
 */
#ifndef CELL_SPACE_LLM_H
#define CELL_SPACE_LLM_H

#include "calls/call.h"
#include "loop/loop.h"
#include "workcell.h"

struct cell__model;

/* The limits were checked by cell__llm_check(). */
int cell__llm_create(struct cell__loop *loop, const struct cell_llm *spec, struct cell__model **ret_llm, struct cell_error *err);
int cell__llm_check(const struct cell_llm *spec, struct cell_error *err);
/* Answers of running calls are dropped from now on; nobody waits any more.  NULL is allowed. */
void cell__llm_destroy(struct cell__model *llm);
/* llm.query and llm.usage.  llm NULL: the host has given none. */
void cell__llm_handle(struct cell__model *llm, struct cell__call *call);

/* space.c */
struct cell__model **cell__space_llm(struct cell_space *space);

#endif
