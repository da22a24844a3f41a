/*
 * Zygotes and pools: the part of the `subprocess` executor that outlives single kernels.  Belongs to the loop's
 * thread.
 */
#ifndef CELL_EXECUTORS_SUBPROCESS_H
#define CELL_EXECUTORS_SUBPROCESS_H

#include "executors/executor.h"
#include "sandbox/plans.h"

/* Zygotes and pools of an engine. */
struct cell__subprocess;

struct cell__subprocess *cell__subprocess_of(const struct cell__executor_host *host);

/* How a zygote is confined: sessions share one only if they need the same. */
enum cell__zygote_kind {
	CELL_ZYGOTE_ISOLATED, /* from the user's settings, and not confined */
	CELL_ZYGOTE_CONFINED,
	CELL_ZYGOTE_ONLINE,   /* confined except for the network, which its kernels have as well */
};

/* The interpreter's files as a zygote reported them; never changed.  Any thread. */
struct cell__sub_files {
	int refs; /* atomic */
	struct cell__plan_env env;
};
struct cell__sub_files *cell__sub_files_ref(struct cell__sub_files *files);
/* NULL is allowed. */
void cell__sub_files_unref(struct cell__sub_files *files);

/*
 * The requirements of the `sandbox` executor for a kernel; NULL members for the others.  `prepare` is called once the interpreter's
 * paths are known, before the fork, and fills plan (a reference) and session; they and the request are the kernel's.  It looks up paths:
 * any thread but the loop's.
 */
struct cell__sandbox_request {
	int (*prepare)(struct cell__sandbox_request *request, const struct cell__plan_env *env, struct cell_error *err);
	void (*destroy)(struct cell__sandbox_request *request);
	enum cell__zygote_kind zygote;
	bool alone; /* no second kernel may see its files: none is confined for it in advance */
	struct cell__sandbox_plan *plan;
	struct cell__sub_files *from; /* that the plan was made from */
	struct cell__buf session; /* the session's plan */
	struct cell__buf files;   /* which files its paths name at this moment: another file there is another sandbox */
};

/* Prepares a request, if a zygote of its kind has reported its files.  Any thread but the loop's. */
int cell__subprocess_prepare(struct cell__subprocess *sub, const char *python, const char *preload, const char *owner,
			     struct cell__sandbox_request *request, struct cell_error *err);
/* NULL is allowed.  One that was not handed to a kernel: any thread. */
void cell__sub_request_destroy(struct cell__sandbox_request *request);

/* Describes the step of a plan at which a kernel failed. */
void cell__sandbox_failure(const struct cell__sandbox_request *request, int step, int sys, struct cell_error *err);
/* A kernel is ready; jail and skipped say which steps were passed over. */
void cell__sandbox_ready(struct cell__sandbox_request *request, const void *jail_report, size_t size, const unsigned *skipped,
			 size_t n_skipped, const struct cell__zygote_state *zygote);
/* Before that, where the plan has a way out: fd is taken over.  An error ends the session. */
int cell__sandbox_listen(struct cell__sandbox_request *request, int fd, const char *const *index_hosts, struct cell_error *err);

/* The kernel has ended: connections end, and the session gets no more reports about them. */
void cell__sandbox_silence(struct cell__sandbox_request *request);

/* The executors' vtables are made of these.  request: NULL, or what is to be done first; it is taken over. */
int cell__subprocess_open(struct cell__executor_host *host, const struct cell__executor *executor, const struct cell__kernel_spec *spec,
			  struct cell__sandbox_request *request, const struct cell__kernel_events *events, void *owner,
			  struct cell__kernel **ret_kernel, struct cell_error *err);
void cell__subprocess_probe(struct cell__executor_host *host, struct cell_executor_info *info);
void cell__subprocess_count(struct cell__executor_host *host, struct cell__executor_counts *ret_counts);
void cell__subprocess_drain(struct cell__kernel *base);
int cell__subprocess_run(struct cell__kernel *base, uint32_t run_id, const char *code, size_t size, struct cell_error *err);
size_t cell__subprocess_unread(const struct cell__kernel *base);
struct cell__bulk *cell__subprocess_bulk(struct cell__kernel *base);
int cell__subprocess_reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
			   struct cell_error *err);
void cell__subprocess_interrupt(struct cell__kernel *base, uint32_t run_id);
void cell__subprocess_hand_over(struct cell__kernel *base, const struct cell__kernel_events *events, void *owner);
void cell__subprocess_pause(struct cell__kernel *base, bool paused);
void cell__subprocess_close(struct cell__kernel *base, int64_t grace_ms);
int64_t cell__subprocess_pid(const struct cell__kernel *base);
/* See executor.h; of kernels that are not sandboxed. */
int cell__subprocess_fork(struct cell__kernel *base, const char *session_id, const struct cell__layer *layer, unsigned flags,
			  const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel, struct cell_error *err);
/*
 * The same of sandboxed ones, and of memories that are files (image.c); request: of the fork, prepared; taken over.  A fork with CELL__FORK_POINT has no process, and
 * cell__subprocess_kept() tells its size.
 */
int cell__sub_image_fork(struct cell__kernel *base, struct cell__sandbox_request *request, const char *session_id, unsigned flags,
			 const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel, struct cell_error *err);
/* keep() of executor.h; request as above, NULL: not sandboxed. */
int cell__sub_image_keep(struct cell__kernel *base, struct cell__sandbox_request *request, const struct cell__image_files *files,
			 const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel, struct cell_error *err);
int64_t cell__subprocess_kept(const struct cell__kernel *base);
/* See executor.h. */
void cell__subprocess_image(const struct cell__kernel *base, struct cell__image_files *ret_files, const json_t **ret_left);
/* The common part of the vtables of all executors whose kernels these functions work on. */
#define CELL__SUBPROCESS_KERNEL                                                                                                           \
	.drain = cell__subprocess_drain, .run = cell__subprocess_run, .reply = cell__subprocess_reply, .unread = cell__subprocess_unread, \
	.bulk = cell__subprocess_bulk, .interrupt = cell__subprocess_interrupt, .pause = cell__subprocess_pause,                          \
	.close = cell__subprocess_close, .pid = cell__subprocess_pid, .kept = cell__subprocess_kept, .image = cell__subprocess_image
/* "host:port" of the package index that its interpreter's installer uses; NULL-terminated, or NULL. */
const char *const *cell__subprocess_index_hosts(const struct cell__kernel *base);
const struct cell__sandbox_request *cell__subprocess_request(const struct cell__kernel *base);
/* See executor.h. */
int cell__subprocess_place(struct cell__kernel *base, const char *const *env, struct cell__kernel_place *ret_place, struct cell_error *err);

/*
 * Starts the environment, warms it, fills its pool; then done(arg, info, NULL), or done(arg, NULL, err).  A
 * returned error means done() never runs.  request: as for open.
 */
int cell__subprocess_prewarm(struct cell__subprocess *sub, const char *python, const char *preload, const char *zygote_owner,
			     struct cell__sandbox_request *request, cell__prewarmed_fn done, void *arg, struct cell_error *err);

#endif
