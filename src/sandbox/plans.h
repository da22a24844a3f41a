/*
 * Plans for the spawner and kernels: sealed memfds, reference-counted, and cached for the next user of the same kind.
 *
 * A plan depends on the policy and on the folders that every process confined by it sees. Users whose plans have the same bytes share one,
 * and with it the spawner's spare jails. Belongs to the loop's thread.
 */
#ifndef CELL_SANDBOX_PLANS_H
#define CELL_SANDBOX_PLANS_H

#include "sandbox/build.h"
#include "sandbox/mapped.h"

#define CELL_PLANS_MAX 16 /* kept without a user */

struct cell__sandbox_plan {
	int refs;
	int fd; /* sealed memfd */
	char *bytes;
	size_t size;
};

/* Seals the bytes, which are taken over; one reference.  NULL: err has the reason. */
struct cell__sandbox_plan *cell__sandbox_plan_create(struct cell__buf *bytes, struct cell_error *err);
struct cell__sandbox_plan *cell__sandbox_plan_ref(struct cell__sandbox_plan *plan);
/* NULL is allowed. */
void cell__sandbox_plan_unref(struct cell__sandbox_plan *plan);

struct cell__cached_plan;

struct cell__plans {
	struct cell__cached_plan *list; /* newest first */
	struct cell__mounts *mounts;
};

/*
 * The plan of a session's policy and interpreter, made unless there is one; borrowed from the cache until the next call.  Says in
 * session->mapped what the session's own plan has to be like.
 */
int cell__plans_find(struct cell__plans *plans, struct cell__plan_session *session, struct cell__sandbox_plan **ret_plan,
		     struct cell_error *err);
/* Fills machine->trees where all that this session is shown can be shown with a uid that is not the caller's. */
int cell__plans_map(struct cell__mounts *mounts, const struct cell__plan_session *session, struct cell__machine *machine);
/* Appends the plan of a zygote of this interpreter (cell__plan_build_zygote()). mounts: NULL if no unused uid is available. */
int cell__plans_zygote(struct cell__mounts *mounts, const char *python, const char *kernel_dir, bool online, struct cell__buf *out,
		       struct cell_error *err);
void cell__plans_finish(struct cell__plans *plans);

#endif
