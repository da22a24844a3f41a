/*
 * Builds a plan from a policy.  Reads the host's file system (links, existing files) but changes nothing, so a plan
 * can be made, printed and tested without any privilege.
 */
#ifndef CELL_SANDBOX_BUILD_H
#define CELL_SANDBOX_BUILD_H

#include "base/base.h"
#include "sandbox/machine.h"
#include "sandbox/policy.h"

/* The interpreter's files, which must be at their usual paths; resolved once. */
struct cell__plan_env {
	char **folders;           /* real paths, none below another; NULL-terminated */
	char **links;             /* name, what it points to, name, ...; NULL-terminated */
};

int cell__plan_env_init(struct cell__plan_env *env, const char *const *paths);
void cell__plan_env_finish(struct cell__plan_env *env);

#define CELL_PLAN_HOME "/tmp"

/* The session's part of a plan. */
struct cell__plan_session {
	const char *workspace; /* absolute, as the caller knows it */
	const char *cwd;       /* the same as cell__plan_workspace() answered */
	const char *shown;     /* another name of it inside, where it is the code's cwd; NULL: none */
	enum cell__workspace_mode mode;
	const char *const *read;    /* visible folders, read-only; NULL-terminated */
	const char *const *write;   /* writable folders, besides the workspace and the policy's; NULL-terminated */
	const struct cell__plan_env *env;
	const struct cell__sandbox_policy *policy; /* that of the plan */
	const char *layer; /* CELL_WORKSPACE_COW: the layer's folder, or with layer_is_copy the folder to show in place of the workspace */
	bool layer_is_copy;
	bool layer_read_only; /* for a second user of the same layer */
	bool mapped; /* as the plan is */
};

/* The path of this workspace inside the sandbox; free() it. */
int cell__plan_workspace(const char *workspace, enum cell__workspace_mode mode, char **ret_cwd, struct cell_error *err);
/* Both append a plan to out. */
int cell__plan_build(const struct cell__sandbox_policy *policy, const struct cell__machine *machine, const struct cell__plan_env *env,
		     uint64_t id, struct cell__buf *out, struct cell_error *err);
int cell__plan_build_session(const struct cell__machine *machine, const struct cell__plan_session *session, struct cell__buf *out,
			     struct cell_error *err);

/* ---- zygotes ---- */

/*
 * The files of an interpreter before it has reported them: its venv and the venv's base, folders that .pth files name,
 * kernel_dir, the configuration of its package index in `home`.
 */
int cell__plan_env_of(struct cell__plan_env *ret_env, const char *python, const char *kernel_dir, const char *home, struct cell_error *err);
/*
 * The plan of a zygote: as kernels see the system, nothing of the session, no network unless `online` (a kernel has its zygote's where
 * it has none of its own), a filter that allows what kernels need before they are confined.  machine: as for cell__plan_build().
 */
int cell__plan_build_zygote(const struct cell__machine *machine, const struct cell__plan_env *env, bool online, struct cell__buf *out,
			    struct cell_error *err);

/* Whether protected names are refused wherever the code of this policy may write to files of the host. */
bool cell__policy_protects(const struct cell__sandbox_policy *policy);

/* Whether the code of this policy has a guard of protected names (guard.h): where it may write to files of the host. */
bool cell__plan_guards(const struct cell__sandbox_policy *policy, const struct cell__machine *machine);
/* Whether the limit on processes is enforced.  Without a cgroup it is an rlimit, which does not apply to the host's root. */
bool cell__plan_holds_pids(const struct cell__machine *machine, bool mapped);

/* Describes a step in one line. */
int cell__plan_describe(const struct cell_plan_step *step, struct cell__buf *out);
/* All of it, numbered. */
int cell__plan_print(const struct cell_plan *plan, struct cell__buf *out);
/* The error of a failed step, with advice if we have some. */
void cell__plan_failure(const struct cell_plan *plan, const struct cell_plan *session, const struct cell_plan_report *report,
			struct cell_error *err);
/* The zygote of a kernel, for its receipt. */
struct cell__zygote_state {
	const struct cell_plan *plan; /* NULL: not confined */
	int missed; /* 1 + a step that was passed over and is missed */
};

/* The isolation receipt, a JSON object.  layer: the form of the session's layer, or NULL. */
int cell__plan_receipt(const struct cell__sandbox_policy *policy, const struct cell__machine *machine, const struct cell_plan *plan,
		       const struct cell_plan_report *report, enum cell__workspace_mode mode, const char *layer,
		       const struct cell__zygote_state *zygote, struct cell__buf *out);

#endif
