/*
 * Parses and checks a kernel's RESULT and DISPLAY frames.  Pure except for the JSON document, which the caller drops
 * with json_decref(*memory); the answer points into it and into the frame.
 */
#ifndef CELL_EXECUTORS_ANSWER_H
#define CELL_EXECUTORS_ANSWER_H

#include <jansson.h>

#include "executors/executor.h"
#include "wire/frame.h"

/* Returns NULL, or the problem of the frame; the same for the other functions here. */
const char *cell__answer_result(const struct cell_frame *frame, struct cell__kernel_answer *ret_answer, json_t **ret_memory);
const char *cell__answer_display(const struct cell_frame *frame, struct cell__bundle *ret_bundle, json_t **ret_memory);

/* The contents of a RESULT, DISPLAY or CALL; points into the frame. */
struct cell__read {
	struct cell__kernel_answer answer;
	struct cell__bundle bundle;
	struct cell__asked asked;
	json_t *memory;
	const char *problem;
};
/* Any thread.  A large CALL is parsed; a small one is left to its handler, which may not need that. */
void cell__read_frame(const struct cell_frame *frame, struct cell__read *ret_read);
void cell__read_finish(struct cell__read *read);
/* Passes the contents of a frame of a ready kernel on to its owner. */
const char *cell__answer_hand_on(const struct cell_frame *frame, const struct cell__read *read, const struct cell__kernel_events *events,
				 void *owner);
/* READY: the code of ret_refusal is not 0 if the kernel refuses the session. */
const char *cell__answer_ready(const struct cell_frame *frame, struct cell_error *ret_refusal);

#endif
