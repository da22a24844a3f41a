/*
 * From a policy to a plan.  Looks at the host's file system (what is a link, what exists) but changes nothing, so a plan
 * can be made, printed and tested without any privilege.
 */
#ifndef CELL_SANDBOX_BUILD_H
#define CELL_SANDBOX_BUILD_H

#include "core/core.h"
#include "sandbox/machine.h"
#include "sandbox/policy.h"

/* What the interpreter must find where it is, resolved once. */
struct cell__plan_env {
	char **folders;           /* real paths, none below another; NULL-terminated */
	char **links;             /* name, what it points to, name, ...; NULL-terminated */
};

int cell__plan_env_init(struct cell__plan_env *env, const char *const *paths);
void cell__plan_env_finish(struct cell__plan_env *env);

#define CELL_PLAN_HOME "/tmp"

/* What only the session knows. */
struct cell__plan_session {
	const char *workspace; /* absolute, as the caller knows it */
	const char *cwd;       /* the same as cell__plan_workspace() answered */
	enum cell__workspace_mode mode;
	const char *const *read;    /* folders to be seen, read-only; NULL-terminated */
	const char *const *write;   /* folders to be written to, beside the workspace and the policy's; NULL-terminated */
	const struct cell__plan_env *env;
	const struct cell__policy *policy; /* that of the plan */
	bool mapped;                       /* as the plan is */
};

/* Where a session with this workspace stands inside; free() it. */
int cell__plan_workspace(const char *workspace, enum cell__workspace_mode mode, char **ret_cwd, struct cell_error *err);
/* Both append a plan to out. */
int cell__plan_build(const struct cell__policy *policy, const struct cell__machine *machine,
		     const struct cell__plan_env *env, uint64_t id, struct cell__buf *out, struct cell_error *err);
int cell__plan_build_session(const struct cell__machine *machine, const struct cell__plan_session *session,
			     struct cell__buf *out, struct cell_error *err);

/* Is the limit on processes kept?  Without a cgroup, by an rlimit, which means nothing to the host's root. */
bool cell__plan_holds_pids(const struct cell__machine *machine, bool mapped);

/* A step in words, one line. */
int cell__plan_describe(const struct cell_plan_step *step, struct cell__buf *out);
/* All of it, numbered. */
int cell__plan_print(const struct cell_plan *plan, struct cell__buf *out);
/* The error of a step that failed, with advice where we know some. */
void cell__plan_failure(const struct cell_plan *plan, const struct cell_plan *session, const struct cell_plan_report *report,
			struct cell_error *err);
/* The isolation receipt, a JSON object. */
int cell__plan_receipt(const struct cell__policy *policy, const struct cell__machine *machine, const struct cell_plan *plan,
		       const struct cell_plan_report *report, enum cell__workspace_mode mode, struct cell__buf *out);

#endif
