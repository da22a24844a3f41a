/*
 * Policies: what a sandboxed session may see, use and reach.  Pure data, read from a YAML file or a preset.
 */
#ifndef CELL_SANDBOX_POLICY_H
#define CELL_SANDBOX_POLICY_H

#include "calls/principal.h"
#include "base/base.h"
#include "sandbox/plan.h"

#define CELL_POLICY_LIMIT_PATHS 64u /* in one list */
#define CELL_POLICY_LIMIT_HOSTS 256u
#define CELL_POLICY_LIMIT_ENV 256u
#define CELL_POLICY_DEFAULT "untrusted"

enum cell__workspace_mode { CELL_WORKSPACE_RW, CELL_WORKSPACE_RO, CELL_WORKSPACE_NONE, CELL_WORKSPACE_COW };
enum cell__network { CELL_NET_NONE, CELL_NET_DEPS, CELL_NET_ALLOW, CELL_NET_FULL };

struct cell__sandbox_policy_list {
	char **items;
	int *lines; /* where each was written */
	size_t count;
};

#define CELL_UNPROTECT_ALL "*" /* in `unprotect`: the code may write every name */

struct cell__sandbox_policy {
	char name[64];  /* of the preset, or the file */
	enum cell_plan_level level; /* the lowest acceptable level */
	enum cell__workspace_mode workspace;
	struct cell__sandbox_policy_list read, write, hide; /* absolute paths */
	struct cell__sandbox_policy_list unprotect; /* protected names (base/protected.h) that the code may write */
	bool shows_machine; /* files in /proc about the whole machine, and inotify, which reports everybody's use of a file */
	enum cell__network network;
	struct cell__sandbox_policy_list hosts; /* "name:port"; "*.name", ":*" and addresses are fine */
	struct cell__sandbox_policy_list env;   /* "K=V" */
	/* 0: none */
	uint64_t memory_bytes, pids, files, file_size_bytes, tmp_bytes, output_bytes;
	uint64_t workspace_bytes,
		workspace_files; /* size of a writable workspace and the folders of `write`; monitored (session/quota.h) */
	uint64_t storage_bytes, storage_artifacts, storage_index_bytes, storage_workflows; /* what code may store (storage/usage.h) */
	uint64_t audit_bytes; /* of records in the audit log that calls may cause, a second (gate/pace.h) */
	uint64_t cpu_percent, cpu_time_ms, wall_ms;
	bool pids_asked; /* `pids` was given: it is enforced or refused.  A preset's is enforced if possible */
};

void cell__sandbox_policy_finish(struct cell__sandbox_policy *policy);
/* A preset's name, or the path of a file (with a slash or ending in .yaml or .yml). */
int cell__sandbox_policy_load(struct cell__sandbox_policy *policy, const char *name_or_path, struct cell_error *err);
/* Whether this is the path of a file, not a preset's name. */
bool cell__sandbox_policy_is_file(const char *name_or_path);
/* YAML text; `file` is what messages call it. */
int cell__sandbox_policy_parse(struct cell__sandbox_policy *policy, const char *file, const char *text, size_t size,
			       struct cell_error *err);
int cell__sandbox_policy_copy(struct cell__sandbox_policy *out, const struct cell__sandbox_policy *in, struct cell_error *err);
/*
 * Appends bytes that are equal for equal policies and differ for others.  Every member is in them, so a new one is too; equal
 * policies may differ by their padding.
 */
int cell__sandbox_policy_add_bytes(const struct cell__sandbox_policy *policy, struct cell__buf *out);
/* How much the code under this policy may make the host store. */
struct cell__host_limits cell__policy_host_limits(const struct cell__sandbox_policy *policy);
/* The same of a policy by its name; NULL: the default. */
int cell__policy_load_host_limits(const char *name_or_path, struct cell__host_limits *ret_limits, struct cell_error *err);
/* Whether code can write to what it sees as its workspace: the real one (rw), or a layer over it (cow). */
static inline bool cell__workspace_is_writable(enum cell__workspace_mode mode)
{
	return mode == CELL_WORKSPACE_RW || mode == CELL_WORKSPACE_COW;
}
/* Whether the path is this folder or below it, by name only. */
bool cell__path_is_under(const char *path, const char *folder);
/* The same, with links resolved. */
bool cell__path_lies_in(const char *path, const char *folder);
/* Lowers limits to those that this process, and everything that it starts, already has. */
void cell__sandbox_policy_obey(struct cell__sandbox_policy *policy);
const char *cell__workspace_word(enum cell__workspace_mode mode);
const char *cell__network_word(enum cell__network network);
const char *cell__level_word(enum cell_plan_level level);
/* "none", "deps-only", "full" or "allow=HOST[:PORT],..."; without a port: every port. */
int cell__sandbox_policy_set_network(struct cell__sandbox_policy *policy, const char *network, struct cell_error *err);
int cell__workspace_from_word(const char *word, enum cell__workspace_mode *ret_mode, struct cell_error *err);

#endif
