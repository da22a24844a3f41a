/*
 * Confinements: the sandbox of a program of process.h that must not do more than sandboxed code could.
 *
 * A confinement is a plan of a policy (shared by all of that policy, so that the spawner has spare jails for it) and a small session
 * plan with the folders of this one.  It is built once and used for any number of programs, each in its own jail: new namespaces, its
 * own /tmp and cgroup, and a pid 1 whose end also ends all processes that the program left behind.  At the level no-userns a program
 * is confined like the code (Landlock, seccomp, limits), and the spawner kills the processes it left behind before its end is
 * reported.  Counted; belongs to the loop's thread.
 *
 *     struct cell__confinement_options options = { .policy = &policy, .mode = CELL_WORKSPACE_NONE, .write = folders };
 *     cell__confinement_create(supervisor, &options, &confinement, err);
 *     spec.confine = confinement;                   // the process keeps a reference of its own
 *     cell__process_start(supervisor, &spec, &process, err);
 *     cell__confinement_unref(confinement);
 *
 * Differences for a confined program: argv[0] is looked up in `path` inside the sandbox, so hidden programs are not found; `cwd` is a path
 * inside; the environment is only what the caller gives, so with a filtered network it must include cell__confinement_env().  A step that
 * fails ends the start, with CELL_E_SANDBOX and the step in words in cell__process_exit.failure: a program never runs less
 * confined than was asked for.
 */
#ifndef CELL_SPAWN_CONFINEMENT_H
#define CELL_SPAWN_CONFINEMENT_H

#include "egress/egress.h"
#include "sandbox/plans.h"

struct cell__confinement;
struct cell__supervisor;
struct cell__writable_list;

enum cell__confinement_network {
	CELL_CONFINED_AS_POLICY, /* as the policy says */
	CELL_CONFINED_OFFLINE,   /* no network, whatever the policy says */
	CELL_CONFINED_INDEX,     /* index_hosts through the engine's proxy, and no other */
};

struct cell__confinement_options {
	const struct cell__sandbox_policy *policy; /* limits, folders, network; copied.  `mode` overrides its workspace mode */
	const char *workspace;             /* absolute; with CELL_WORKSPACE_NONE it may be NULL */
	enum cell__workspace_mode mode;
	const char *const *read;           /* further visible folders, read-only; NULL-terminated or NULL */
	const char *const *write;          /* further writable folders, which must exist; NULL-terminated or NULL */
	const struct cell__plan_env *env;  /* an interpreter whose files are visible, as for a kernel; NULL: none */
	enum cell__confinement_network network;
	const char *const *index_hosts;    /* "name:port", for CELL_CONFINED_INDEX and for policies with deps-only; copied */
};

/*
 * CELL_E_UNAVAILABLE if the machine cannot confine programs as the policy requires (its level; a network that needs namespaces),
 * CELL_E_INVALID for folders that cannot be made visible this way.
 */
int cell__confinement_create(struct cell__supervisor *supervisor, const struct cell__confinement_options *options,
			     struct cell__confinement **ret_confinement, struct cell_error *err);
/*
 * As a kernel is confined: its plan, and its session's as bytes.  `cwd`: where that session stands inside.  `writable`: the places that it
 * writes to, with the other names that mounts gave them when it was opened.
 */
int cell__confinement_create_like(const struct cell__sandbox_policy *policy, struct cell__sandbox_plan *plan,
				  const struct cell__buf *session, const char *cwd, const struct cell__writable_list *writable,
				  const char *const *index_hosts, struct cell__confinement **ret_confinement, struct cell_error *err);
struct cell__confinement *cell__confinement_ref(struct cell__confinement *confinement);
/* NULL is allowed. */
void cell__confinement_unref(struct cell__confinement *confinement);
/* Sets the callbacks for connections through the proxy (egress.h); arg must live as long as the confinement. */
typedef int (*cell__confinement_tell_fn)(void *arg, const struct cell__confinement *confinement, const struct cell__egress_event *event,
					 struct cell_error *err);
void cell__confinement_watch(struct cell__confinement *confinement, cell__confinement_tell_fn tell, void *arg);
/* The path of the workspace inside; CELL_PLAN_HOME without one. */
const char *cell__confinement_cwd(const struct cell__confinement *confinement);
bool cell__confinement_has_workspace(const struct cell__confinement *confinement);
/* Whether the policy makes this folder, which is not the workspace, visible. */
bool cell__confinement_shows(const struct cell__confinement *confinement, const char *path);
/* Whether code in this confinement can write to this file or replace it.  The path is absolute, without links. */
bool cell__confinement_can_write(const struct cell__confinement *confinement, const char *path);
/* Whether a name in this path below a writable folder is protected (base/protected.h), and the policy does not list it as free. */
bool cell__confinement_protects(const struct cell__confinement *confinement, const char *path);
/* The same as cell__confinement_can_write() for the target of any path, and for each link on the way to it. */
bool cell__confinement_can_redirect(const struct cell__confinement *confinement, const char *path);
/* "K=V", NULL-terminated: HOME and, where the network is filtered, the way to the proxy. */
const char *const *cell__confinement_env(const struct cell__confinement *confinement);
/* Whether both confine in the same way.  NULL, which confines nothing, equals NULL. */
bool cell__confinement_equal(const struct cell__confinement *a, const struct cell__confinement *b);

/* ---- for process.c ---- */

int cell__confinement_plan_fd(const struct cell__confinement *confinement);
int cell__confinement_session_fd(const struct cell__confinement *confinement);
/* The proxy behind a program's listening socket, which is taken over. */
int cell__confinement_open_proxy(struct cell__confinement *confinement, struct cell__loop *loop, int listen_fd,
				 struct cell__egress **ret_egress, struct cell_error *err);
/* Words for a step that failed; step -1: the fork into the jail. */
void cell__confinement_failure(const struct cell__confinement *confinement, int step, int sys, struct cell_error *err);

#endif
