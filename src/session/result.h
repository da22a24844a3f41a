/* The result of a run, as the caller gets it.  Built on the loop's thread, then owned by the receiver. */
#ifndef CELL_SESSION_RESULT_H
#define CELL_SESSION_RESULT_H

#include "executors/executor.h"
#include "wire/saved.h"

struct cell__kept_text {
	struct cell__buf raw;
	struct cell__buf clean; /* empty if raw is already valid UTF-8 */
	uint64_t total;
};

/* MIME parts that own their memory. */
struct cell__owned_bundle {
	struct cell_mime_part *parts;
	size_t n_parts;
};

struct cell_result {
	char session_id[33];
	char *value_json;
	char *repr;
	size_t repr_size;
	struct cell__owned_bundle mime;
	struct cell__owned_bundle *displays;
	size_t n_displays;
	char **images; /* paths */
	size_t n_images;
	char *notices[CELL_LIMIT_NOTICES];
	size_t n_notices;
	struct cell__kept_text out, err, text;
	bool failed;
	struct cell_outcome outcome;
	char *error_type, *error_message, *error_traceback, *error_limit;
	int64_t duration_us;
	bool unbegun; /* it failed before its code ran */
	int state_kept; /* as cell_result_state_kept() says */
	int durable; /* as cell_result_durable() says, plus 1 */
	const char *isolation;
	char *own_isolation; /* NULL, or what isolation points to */
	uint64_t cells; /* of the session after it, plus 1; 0: not told */
	struct cell__state_id state_id, awake_id;
	char *changes; /* JSON; NULL: not known */
	char *spill_path;
	bool keep_spill;
};

int cell__owned_bundle_copy(struct cell__owned_bundle *out, const struct cell__bundle *in);
void cell__owned_bundle_finish(struct cell__owned_bundle *bundle);
/* The index of a type; n_parts if it is missing. */
size_t cell__owned_bundle_find(const struct cell__owned_bundle *bundle, const char *type);
void cell__owned_bundle_remove(struct cell__owned_bundle *bundle, size_t at);
/* A deviation in the run that is not an error.  The last notice that fits says that there were more. */
void cell__result_add_notice(struct cell_result *result, const char *text);
/* Takes a value, repr and MIME parts over from an answer. */
int cell__result_take_answer(struct cell_result *result, const struct cell__kernel_answer *answer);
/* Takes over what is well-formed of a kernel's list of changes; NULL is allowed.  Without memory there is none. */
void cell__result_take_changes(struct cell_result *result, const json_t *changes);
/* Sets the outcome; strings are copied. */
int cell__result_set_error(struct cell_result *result, int code, const char *type, const char *message, const char *traceback);
/* Sets the outcome to an exceeded limit; call after cell__result_set_error(). */
int cell__result_set_limit(struct cell_result *result, const char *name, uint64_t max, uint64_t used);

#endif
