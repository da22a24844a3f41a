/* The executor "remote": sessions of a session server elsewhere, see remote.c.  Loop's thread. */
#ifndef CELL_EXECUTORS_REMOTE_H
#define CELL_EXECUTORS_REMOTE_H

#include "executors/executor.h"

/* Options of a session that are this executor's own; NULL: not given. */
struct cell__remote_options {
	char *url, *token, *workspace, *ca;
	bool reopen, repeat;
	int allow_fork;
};

int cell__remote_read_options(const struct cell_session_options *opts, void **ret_own, struct cell_error *err);
void cell__remote_free_options(void *own);

struct cell__http;

/* The connections of all its kernels, also for an executor that builds on this one.  NULL: err has the reason. */
struct cell__http *cell__remote_http(struct cell__executor_host *host, struct cell_error *err);

/*
 * Kernels for an executor that must start the server first: a kernel that waits until it gets the server's address, or the reason why
 * there is none.  gone(arg) is called when it has ended, right before exited().
 */
int cell__remote_wait(struct cell__executor_host *host, const struct cell__executor *executor, const struct cell__remote_options *own,
		      const struct cell__kernel_events *events, void *owner, void (*gone)(void *arg, const struct cell__exit *how),
		      void *arg, struct cell__kernel **ret_kernel, struct cell_error *err);
/* url as the option remote_url; token may be NULL; receipt: members of a JSON object, which the server's receipt is added to. */
void cell__remote_connect(struct cell__kernel *kernel, const char *url, const char *token, const char *receipt);
/* Such a receipt of an object, whose reference is taken and which may be NULL; free() it. */
char *cell__remote_receipt(json_t *root);
void cell__remote_refuse(struct cell__kernel *kernel, const struct cell_error *err);

/* As the executor's fork(); gone() as of cell__remote_wait(). */
int cell__remote_branch(struct cell__kernel *kernel, unsigned flags, const struct cell__kernel_events *events, void *owner,
			void (*gone)(void *arg, const struct cell__exit *how), void *arg, struct cell__kernel **ret_kernel,
			struct cell_error *err);
/* arg of the kernel's gone(). */
void *cell__remote_gone_arg(const struct cell__kernel *kernel);
int cell__remote_fork(struct cell__kernel *kernel, const char *session_id, const struct cell__layer *layer, unsigned flags,
		      const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel, struct cell_error *err);

/* For the vtable of such an executor. */
int cell__remote_files(struct cell__kernel *base, enum cell__files_verb verb, const char *const *paths, bool flag, cell__files_done done,
		       void *arg, struct cell_error *err);
void cell__remote_drain(struct cell__kernel *base);
void cell__remote_trace(struct cell__kernel *base, const char *traceparent);
int cell__remote_run(struct cell__kernel *base, uint32_t run_id, const char *code, size_t size, struct cell_error *err);
int cell__remote_reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
		       struct cell_error *err);
void cell__remote_interrupt(struct cell__kernel *base, uint32_t run_id);
void cell__remote_pause(struct cell__kernel *base, bool paused);
void cell__remote_close(struct cell__kernel *base, int64_t grace_ms);
int64_t cell__remote_pid(const struct cell__kernel *base);
struct cell__elsewhere *cell__remote_place(const struct cell__kernel *base);
int cell__remote_command(struct cell__kernel *base, const struct cell__process_spec *spec, struct cell__far_command **ret_command,
			 struct cell_error *err);
/* The common part of the vtables of all executors whose kernels these functions work on. */
#define CELL__REMOTE_KERNEL                                                                                                         \
	.files = cell__remote_files, .drain = cell__remote_drain, .trace = cell__remote_trace, .run = cell__remote_run,             \
	.reply = cell__remote_reply, .interrupt = cell__remote_interrupt, .pause = cell__remote_pause, .close = cell__remote_close, \
	.pid = cell__remote_pid, .elsewhere = cell__remote_place, .command = cell__remote_command

#endif
