/*
 * Plans for the spawner and kernels: sealed memfds, reference-counted, and cached for the next user of the same kind.
 *
 * A plan depends on the policy and on the folders that every process confined by it sees. Users whose plans have the same bytes share one,
 * and with it the spawner's spare jails.
 *
 * Finding a plan looks up paths, which may block: any thread but the loop's. Plans that are found, their references and their release
 * belong to any thread.
 */
#ifndef CELL_SANDBOX_PLANS_H
#define CELL_SANDBOX_PLANS_H

#include <pthread.h>

#include "sandbox/build.h"
#include "sandbox/mapped.h"

#define CELL_PLANS_MAX 16 /* kept without a user */

struct cell__sandbox_plan {
	int refs; /* atomic */
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

/* Starts as CELL_PLANS_INIT. */
struct cell__plans {
	pthread_mutex_t lock;           /* guards both; paths are looked up without it, except those of mounts */
	struct cell__cached_plan *list; /* newest first */
	struct cell__mounts *mounts;    /* made when the first plan needs them */
};
#define CELL_PLANS_INIT { .lock = PTHREAD_MUTEX_INITIALIZER }

/*
 * The plan of a session's policy and interpreter, made unless there is one; a new reference.  Says in session->mapped what the session's
 * own plan has to be like.
 */
int cell__plans_find(struct cell__plans *plans, struct cell__plan_session *session, struct cell__sandbox_plan **ret_plan,
		     struct cell_error *err);
/* Fills machine->trees, for cell__strings_free(), where all that this session is shown can be shown with a uid that is not the caller's. */
int cell__plans_map(struct cell__plans *plans, const struct cell__plan_session *session, struct cell__machine *machine);
/* Appends the plan of a zygote of this interpreter (cell__plan_build_zygote()). */
int cell__plans_zygote(struct cell__plans *plans, const char *python, const char *kernel_dir, bool online, struct cell__buf *out,
		       struct cell_error *err);
/* No other thread uses them any more. */
void cell__plans_finish(struct cell__plans *plans);

#endif
