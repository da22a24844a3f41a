/*
 * The `subprocess` executor, for its files:
 *
 *     subprocess.c  the executor: opening, its vtable, its life; theory of operation
 *     env.c         environments: interpreters with their preloads, and the zygote of each
 *     files.c       paths that are looked up for them, on the pool
 *     pool.c        kernels started in advance, and their waiters
 *     kernel.c      one kernel: its fork, its cells, its frames, its end
 *     branch.c      the fork of a live kernel
 *     image.c       that of a sandboxed one
 *     spawner.c     messages of the spawner
 *
 * What other executors need of it is in subprocess.h.
 */
#ifndef CELL_EXECUTORS_SUBPROCESS_KERNEL_H
#define CELL_EXECUTORS_SUBPROCESS_KERNEL_H

#include <jansson.h>
#include <pthread.h>

#include "base/list.h"
#include "executors/link.h"
#include "executors/subprocess/subprocess.h"
#include "executors/subprocess/cpu_share.h"
#include "sandbox/places.h"
#include "spawn/supervisor.h"

#define CELL_SUB_REFILL_DELAY_MS 5 /* delay, so that the session that emptied the pool goes first */
#define CELL_SUB_REFILL_LOAD_MS \
	15 /* the same for one that maps hundreds of files: a fork of the zygote, which has most of them mapped, holds the same locks */
#define CELL_SUB_ZYGOTE_IDLE_MS 10000 /* an owner's zygote without a session ends */
#define CELL_SUB_BUCKETS 1024 /* ids are consecutive numbers: chains are even */
#define CELL_SUB_BASES CELL_LINK_MAX_FDS
_Static_assert(CELL_SUB_BASES <= CELL__IMAGE_FILES, "an image and those that it refers to");
#define CELL_SUB_POOL_DEATHS_MAX 3 /* pooled kernels that die in a row: stop making more */

enum cell__sub_env_state { CELL_ENV_NONE, CELL_ENV_STARTING, CELL_ENV_READY };

/* Kernels started in advance, all with the same plan. */
struct cell__sub_pool {
	struct cell__sandbox_plan *plan; /* NULL: not sandboxed */
	int deaths;
	/* The kind of the last session, and how many in a row were the same. */
	struct cell__buf session, files;
	unsigned in_a_row;
	uint64_t kind; /* grows with every change */
	struct cell__sub_pool *next;
};

struct cell__sub_image; /* see image.c */

struct cell__sub_prewarm {
	struct cell__sub_env *env;
	struct cell__sandbox_request *request; /* or NULL */
	bool preparing; /* the pool works on its request */
	bool over;      /* it was answered meanwhile */
	struct cell_error err;
	void (*done)(void *arg, const struct cell_env_info *info, const struct cell_error *err);
	void *arg;
	struct cell__sub_prewarm *next;
};

struct cell__sub_env {
	struct cell__subprocess *sub;
	char *python, *preload, *owner; /* owner "": shared by all sessions without an owner */
	enum cell__zygote_kind kind;
	struct cell__sandbox_plan *plan; /* of its zygote; NULL: not confined, or never started */
	int missed;        /* 1 + a step of it that was passed over and is missed */
	enum cell__sub_env_state state;
	uint64_t zygote_id;
	bool warm;
	bool ending; /* no longer found by new sessions; freed with its last kernel */
	int in_flight;
	int64_t forks; /* of this zygote */
	int zone_deaths; /* starts in a row that failed because the zone had died */
	struct cell__sub_pool *pools; /* those that a session has used */
	struct cell__sub_files *files; /* the interpreter's; known when the zygote is ready; guarded by sub->lock */
	struct cell__place_list places; /* the same and more, trusted: a session that can write there is not opened */
	unsigned starts; /* of zygotes: results of the pool for another one are dropped */
	int checking;     /* work of the pool about its files that is in progress */
	bool closed;     /* it is freed with the last of them */
	char **index_hosts;          /* "host:port" of the package index that its installer uses; NULL-terminated */
	int64_t started_us;
	struct cell_env_info info;
	struct cell__sub_prewarm *prewarms;
	struct cell__sub_kernel *fresh, **fresh_end; /* those that wait for their fork, oldest first, and those in pools */
	size_t n_kernels, n_pooled;
	uv_timer_t timer;  /* start timeout while starting, pool refill while ready, another start after the zone's death */
	struct cell__sub_env *next;
};

enum cell__sub_kernel_state {
	CELL_KERNEL_WAITING,
	CELL_KERNEL_FORKING,
	CELL_KERNEL_POOLED,
	CELL_KERNEL_OPENING,
	CELL_KERNEL_LIVE,
	CELL_KERNEL_DYING,
};

struct cell__sub_kernel {
	struct cell__kernel base;
	struct cell__subprocess *sub;
	struct cell__sub_env *env;
	uint64_t id;
	enum cell__sub_kernel_state state;
	struct cell__link *link;
	pid_t pid;
	bool forking; /* counted in env->in_flight */
	bool up;      /* HELLO seen */
	bool ready;   /* READY seen */
	bool pooled;  /* made for the pool and not taken yet */
	bool asked;   /* we closed it */
	bool preparing; /* the pool works on its request */
	bool closed;  /* it is freed with that */
	bool timing;  /* the timer waits for a cell to become a long one, or for it to hear of its interrupt */
	int unheard;  /* signals that were sent again */
	struct cell__cpu_share entry;
	int tries;
	struct cell_error error;
	struct cell__sandbox_request *request; /* NULL: not sandboxed, or in the pool */
	struct cell__sandbox_plan *plan;       /* NULL: not sandboxed, or not prepared yet */
	uint64_t kind;    /* of its pool, that it is confined for already; 0: none */
	struct cell_plan_report report;        /* of its jail */
	int listen_fd;    /* of its way out; -1: none */
	unsigned skipped[16];                  /* steps that it passed over itself */
	size_t n_skipped;
	const struct cell__kernel_events *events; /* NULL: no owner */
	void *owner;
	char *init; /* the INIT frame's JSON; kept until READY, in case the fork has to be repeated */
	uv_timer_t timer;
	struct cell__task gone;
	struct cell__sub_kernel *next, *prev;
	struct cell__sub_kernel *id_next; /* in its bucket */
	unsigned forks_asked; /* of it, that it has not answered yet */
	struct cell__sub_image *image; /* that it continues from, or is; NULL: neither */
	struct cell__sub_image *bases[CELL_SUB_BASES]; /* images that parts of its memory are in */
	size_t n_bases;
	struct cell__sub_image *asked_image; /* the last request to it was for this one; NULL: it was another */
	bool is_image; /* a point: it has no process */
	bool woken; /* its image was saved */
	uint64_t source; /* of a fork that is not done: the kernel that was asked for it; 0: none */
	bool is_fresh; /* in the list of its environment */
	struct cell__sub_kernel *fresh_next;
};

struct cell__subprocess {
	struct cell__executor_host *host;
	struct cell__supervisor *supervisor;
	const char *kernel_dir;
	int pool_size;
	int64_t start_timeout_ms;
	int64_t zygote_forks; /* 0: no limit */
	pthread_mutex_t
		lock; /* other threads read the list and its members that they need to find files; the loop's writes them under it */
	struct cell__sub_env *envs;
	struct cell__sub_kernel *kernels;
	struct cell__sub_image *images; /* that are being written */
	struct cell__sub_kernel *by_id[CELL_SUB_BUCKETS];
	bool destroying;
	struct cell__cpu_shares shares;
	int open_handles;
	void (*destroyed)(void *arg);
	void *destroyed_arg;
};

#define CELL_SUB_LOG(sub, level, ...) (sub)->host->log((sub)->host->log_arg, level, __VA_ARGS__)

/* ---- subprocess.c ---- */

/* A handle was closed: it may have been the last. */
void cell__sub_maybe_destroyed(struct cell__subprocess *sub);

/* ---- files.c ---- */

/*
 * Looks up and trusts the files of a zygote: before its start (ready NULL), which ends in cell__sub_zygote_planned(), or those of its
 * report, which is taken over, which ends in cell__sub_zygote_known(); or in cell__sub_zygote_failed().  Never from inside the call.
 */
int cell__sub_check_files(struct cell__sub_env *env, json_t *ready, int64_t pid, struct cell_error *err);
/* Prepares a request on the pool; then done(arg, err) on the loop, err with code 0 if all is well. */
int cell__sub_prepare(struct cell__sub_env *env, struct cell__sandbox_request *request,
		      void (*done)(void *arg, const struct cell_error *err), void *arg, struct cell_error *err);

/* ---- env.c ---- */

int cell__sub_env_find(struct cell__subprocess *sub, const char *python, const char *preload, const char *owner,
		       enum cell__zygote_kind kind, struct cell__sub_env **ret_env, struct cell_error *err);
/* Would a new session of this kind get it?  Reads members that never change, and `ending`: under sub->lock, or on the loop's thread. */
bool cell__sub_env_serves(const struct cell__sub_env *env, const char *python, const char *preload, const char *owner,
			  enum cell__zygote_kind kind);
/* Its interpreter is trusted; plan: NULL, or taken over. */
void cell__sub_zygote_planned(struct cell__sub_env *env, struct cell__sandbox_plan *plan);
/* The files that it reported are trusted, and taken over. */
void cell__sub_zygote_known(struct cell__sub_env *env, int64_t pid, json_t *ready, struct cell__sub_files *files);
/* Gives up the zygote that is starting: every waiter gets the reason. */
void cell__sub_zygote_failed(struct cell__sub_env *env, const struct cell_error *err);
/* A kernel has ended, or the pool is full: an owner's unused zygote ends after a while. */
void cell__sub_env_rest(struct cell__sub_env *env);
/* Replaces a zygote that has forked as many kernels as one may, once the last fork is done. */
void cell__sub_zygote_rotate(struct cell__sub_env *env);
/* Its timer is closed: the rest goes too, as soon as the pool has no work for it. */
void cell__sub_handle_env_closed(uv_handle_t *handle);
/* Has no effect if a zygote runs or starts. */
int cell__sub_zygote_start(struct cell__sub_env *env, struct cell_error *err);
void cell__sub_zygote_ready(struct cell__sub_env *env, int64_t pid, int64_t missed, const char *payload, size_t size);
/* It has imported all that it imports ahead; may come while the pool looks up the files of its report. */
void cell__sub_zygote_warmed(struct cell__sub_env *env);
void cell__sub_zygote_exited(struct cell__sub_env *env, int64_t status, int64_t failure, const char *payload, size_t size);
/* Forks the kernels that wait, as many as the zygote takes now. */
void cell__sub_fork_waiting(struct cell__sub_env *env);

/* ---- pool.c ---- */

/* NULL: kernels of this plan have not been used. */
struct cell__sub_pool *cell__sub_pool_find(const struct cell__sub_env *env, const struct cell__sandbox_plan *plan);
struct cell__sub_pool *cell__sub_pool_use(struct cell__sub_env *env, struct cell__sandbox_plan *plan);
void cell__sub_pool_confine(struct cell__sub_env *env, struct cell__sub_pool *pool);
void cell__sub_pool_learn(struct cell__sub_env *env, struct cell__sub_pool *pool, const struct cell__sandbox_request *request,
			  unsigned times);
void cell__sub_pool_fill(struct cell__sub_env *env);
struct cell__sub_kernel *cell__sub_pool_take(struct cell__sub_env *env, const struct cell__sandbox_request *request);
/* The environment's timer, once its zygote is ready. */
void cell__sub_handle_refill(uv_timer_t *timer);
/* Answers the waiters whose pool is full. */
void cell__sub_check_prewarms(struct cell__sub_env *env);
/* Answers all of them; err: NULL, or why there is no pool. */
void cell__sub_end_prewarms(struct cell__sub_env *env, const struct cell_error *err);

/* ---- kernel.c ---- */

struct cell__sub_kernel *cell__sub_kernel_create(struct cell__sub_env *env, struct cell_error *err);
/* Its descriptors are to be handed to the process that will be the kernel. */
int cell__sub_kernel_link(struct cell__sub_kernel *kernel, struct cell__link_fds *ret_fds, struct cell_error *err);
/* It no longer waits for its fork. */
void cell__sub_kernel_leave_fresh(struct cell__sub_kernel *kernel);
int cell__sub_kernel_fork(struct cell__sub_kernel *kernel, struct cell_error *err);
struct cell__sub_kernel *cell__sub_kernel_by_id(const struct cell__subprocess *sub, uint64_t id);
/* It waits for its fork again: before all others. */
void cell__sub_kernel_wait_again(struct cell__sub_kernel *kernel);
void cell__sub_kernel_set_pooled(struct cell__sub_kernel *kernel, bool pooled);
/* Its fork is done, or was given up. */
void cell__sub_kernel_not_forking(struct cell__sub_kernel *kernel);
/* Its session has it now: a pooled one is told so, another is forked first. */
void cell__sub_kernel_begin(struct cell__sub_kernel *kernel, bool pooled);
void cell__sub_kernel_configure(struct cell__sub_kernel *kernel);
void cell__sub_kernel_maybe_live(struct cell__sub_kernel *kernel);
void cell__sub_kernel_kill(struct cell__sub_kernel *kernel);
void cell__sub_kernel_gone(struct cell__sub_kernel *kernel, const struct cell__exit *how);
void cell__sub_kernel_gone_later(struct cell__sub_kernel *kernel);
/* A fork whose source, or which itself, does not answer for as long as a start may take is given up. */
void cell__sub_kernel_expect_answer(struct cell__sub_kernel *kernel);
/* Of the shares that sandboxes take. */
void cell__sub_tell_share(struct cell__cpu_share *entry, enum cell_cgroup_share share);

/* ---- branch.c ---- */

/* Tells the spawner that there will be no such kernel; its answer ends ours, with its error. */
void cell__sub_branch_give_up(struct cell__sub_kernel *branch);

/* A live kernel's answer to a request for its fork.  Returns NULL, or the violation of the protocol. */
const char *cell__sub_branch_answered(struct cell__sub_kernel *source, const struct cell_frame *frame);
/* Why it does not fork. */
void cell__sub_branch_refused(const json_t *answer, struct cell_error *err);
/* It has ended: forks that it was asked for will not come. */
void cell__sub_branch_source_gone(struct cell__sub_kernel *source);

/* ---- image.c ---- */

/* False: it was not asked for an image with this id. */
bool cell__sub_image_answered(struct cell__sub_kernel *source, uint32_t id, const json_t *answer);
void cell__sub_image_source_gone(struct cell__sub_kernel *source);
/* Tells a kernel to continue from its image, as soon as that is written.  session: NULL, or its plan. */
bool cell__sub_image_load(struct cell__sub_kernel *kernel, const struct cell__buf *session, struct cell_error *err);
/* A kernel that has not been told what to do continues from these files, which are duplicated; its INIT frame's text is that for LOAD. */
int cell__sub_image_woken(struct cell__sub_kernel *kernel, const struct cell__image_files *files, struct cell_error *err);
/* free() it; NULL: out of memory. */
char *cell__sub_image_wake_json(const struct cell__kernel_spec *spec);
/* The kernel has ended. */
void cell__sub_image_leave(struct cell__sub_kernel *kernel);

/* ---- spawner.c ---- */

void cell__sub_handle_message(void *arg, const struct cell_spawn_msg *head, const char *payload, size_t size);
void cell__sub_handle_spawner_end(void *arg);

#endif
