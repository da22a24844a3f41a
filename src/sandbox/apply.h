/*
 * Applies a plan.  Runs in single-threaded processes that are about to be confined: allocates nothing, prints
 * nothing, reports errors as numbers (the host has the plan and makes the message).
 */
#ifndef CELL_SANDBOX_APPLY_H
#define CELL_SANDBOX_APPLY_H

#include <sys/types.h>

#include "sandbox/plan.h"

#define CELL_APPLY_MAX_KEEP 20

struct cell_apply {
	const struct cell_plan *plan;
	const struct cell_plan *session; /* may be NULL */
	int keep[CELL_APPLY_MAX_KEEP];   /* descriptors that OP_CLOSE_FDS leaves open */
	int n_keep;
	int landlock_fd;                 /* -1 */
	int listen_fd;                   /* made by OP_LISTEN, valid when has_listener */
	bool has_listener;
	int guard_fd;                    /* made by OP_GUARD_SOCKET, valid when has_guard */
	bool has_guard;
	bool joins;        /* a sandbox that is complete and runs code: see is_done() */
	int join_fd;       /* then: a socket to its guard */
	bool ids_come;                   /* the starter writes the id maps, as for a mapped plan */
	int start_fd;                    /* then: the socket on which cell__mapped_start() answers */
	int trees[CELL_PLAN_MAX_TREES];  /* from there, or our own; OP_TREE takes them in order */
	uint32_t n_trees, next_tree;
	bool processes_alone;            /* /proc was mounted so */
	bool keeps_parent, has_parent;   /* the folder of the last created entry */
	int parent_fd;
	char parent[256];
	bool has_root[2];                /* of the host, of the mapped copies: open between binds of a jail */
	int root_fd[2];
};

/* Every step of a stage, in order.  0, or -1 with *report filled; report->skipped is filled in both cases. */
int cell__apply_stage(struct cell_apply *apply, enum cell_plan_stage stage, struct cell_plan_report *report);
/* The namespaces that a jail is created with: for clone(). */
int cell__apply_birth_flags(const struct cell_plan *plan);
/*
 * Enters the namespaces of a jail, with raw system calls: the caller may be a child of vfork().  fds: its pidfd, or handles of the
 * namespaces, the user namespace first, so that only rights in that one are needed.  becomes: switch to the plan's user, if the caller is
 * another user.
 */
int cell__apply_join(const int *fds, size_t n, const struct cell_plan *plan, bool becomes);
/* Becomes this user and group.  leaves_groups: without other groups; only root and users of subordinate ids may. */
int cell__become(uid_t uid, gid_t gid, bool leaves_groups);
/* Maps a sealed plan; NULL with errno set.  It stays mapped. */
const struct cell_plan *cell__plan_map(int fd);
/* Prevents capabilities through exec; uid 0 has no privileges. */
int cell__bound_capabilities(void);
int cell__drop_capabilities(void);
/* All but this one. */
int cell__keep_capability(int cap);

#endif
