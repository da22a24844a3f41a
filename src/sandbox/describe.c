/* Plans as text: for people who ask what a plan does, for errors, and for receipts. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "sandbox/build.h"

static const struct {
	unsigned flag;
	const char *name;
} namespaces[] = {
	{ CLONE_NEWUSER, "user" }, { CLONE_NEWNS, "mount" }, { CLONE_NEWPID, "pid" },       { CLONE_NEWNET, "net" },
	{ CLONE_NEWIPC, "ipc" },   { CLONE_NEWUTS, "uts" },  { CLONE_NEWCGROUP, "cgroup" },
};
#define N_NAMESPACES (sizeof namespaces / sizeof *namespaces)

static const char *rlimit_name(uint64_t resource)
{
	switch (resource) {
	case RLIMIT_CORE:
		return "core dump bytes";
	case RLIMIT_NOFILE:
		return "open files";
	case RLIMIT_FSIZE:
		return "bytes of a file";
	case RLIMIT_NPROC:
		return "processes of this user in this namespace";
	case RLIMIT_CPU:
		return "seconds of CPU of a process";
	case RLIMIT_DATA:
		return "bytes of memory of a process";
	}
	return "a resource";
}

static int describe_namespaces(unsigned flags, struct cell__buf *out)
{
	int rc = cell__buf_add_str(out, "new namespaces:");
	for (size_t i = 0; i < N_NAMESPACES; i++)
		if (flags & namespaces[i].flag)
			rc |= cell__buf_printf(out, " %s", namespaces[i].name);
	return rc;
}

int cell__plan_describe(const struct cell_plan_step *step, struct cell__buf *out)
{
	const char *a = cell__step_a(step), *b = cell__step_b(step);
	unsigned long long arg = step->arg, arg2 = step->arg2;
	switch ((enum cell_plan_op)step->op) {
	case CELL_OP_NAMESPACES:
		return describe_namespaces((unsigned)arg, out);
	case CELL_OP_IDS:
		return cell__buf_printf(out, "map only user %llu and group %llu%s", arg, arg2,
					step->flags & CELL_BIND_MAPPED ? "; they are unused on the host" : "");
	case CELL_OP_TREE:
		return cell__buf_printf(out, "copy the mount at %s for the sandbox's user, until it is detached", a);
	case CELL_OP_ROOT:
		return cell__buf_printf(out, "an empty root of %llu MiB; the host's files stay visible until they are detached", arg >> 20);
	case CELL_OP_DIR:
		return cell__buf_printf(out, "folder %s", a);
	case CELL_OP_LINK:
		return cell__buf_printf(out, "link %s -> %s", b, a);
	case CELL_OP_FILE:
		return cell__buf_printf(out, "a private file %s", a);
	case CELL_OP_BIND:
		if (step->flags & CELL_BIND_INSIDE)
			return cell__buf_printf(out, "show %s as %s too", a, b);
		return cell__buf_printf(out, "show %s%s%s %s%s", a, strcmp(a, b) == 0 ? "" : " as ", strcmp(a, b) == 0 ? "" : b,
					step->flags & CELL_BIND_READ_ONLY ? "read-only" : "writable",
					step->flags & CELL_BIND_DEVICES ? ", a device" : "");
	case CELL_OP_OVERLAY:
		return cell__buf_printf(out, "show %s with a layer over it%s", a, step->flags & CELL_BIND_READ_ONLY ? ", read-only" : "");
	case CELL_OP_TMPFS:
		return cell__buf_printf(out, "private %s of %llu MiB", a, arg >> 20);
	case CELL_OP_PROC:
		return cell__buf_printf(out, "%s of the new pid namespace%s", a,
					arg == CELL_PROC_PROCESSES   ? ", processes alone"
					: arg == CELL_PROC_READ_ONLY ? ", read-only"
								     : "");
	case CELL_OP_PTS:
		return cell__buf_printf(out, "private terminals in %s", a);
	case CELL_OP_MASK:
		return cell__buf_printf(out, "hide %s", a);
	case CELL_OP_LOOPBACK:
		return cell__buf_add_str(out, "bring the loopback interface up");
	case CELL_OP_HOSTNAME:
		return cell__buf_printf(out, "host name \"%s\"", a);
	case CELL_OP_LISTEN:
		return cell__buf_printf(out, "network access through the host's proxy at 127.0.0.1:%llu", arg);
	case CELL_OP_SESSION:
		return cell__buf_add_str(out, arg == CELL_STAGE_SESSION_FILES ? "the session's files (workspace, packages)"
									      : "Landlock: the session's files");
	case CELL_OP_DETACH:
		return cell__buf_add_str(out, "detach the host's files");
	case CELL_OP_SEAL:
		return cell__buf_printf(out, "make %s read-only", a[0] ? a : "the root");
	case CELL_OP_RLIMIT:
		return cell__buf_printf(out, "at most %llu %s", arg2, rlimit_name(arg));
	case CELL_OP_CLOSE_FDS:
		return cell__buf_add_str(out, "close every file descriptor except the session's own");
	case CELL_OP_SESSION_KEYS:
		return cell__buf_add_str(out, "an empty keyring");
	case CELL_OP_NO_NEW_PRIVS:
		return cell__buf_add_str(out, "no new privileges through exec");
	case CELL_OP_NOT_DUMPABLE:
		return cell__buf_add_str(out, "not dumpable, not traceable");
	case CELL_OP_BOUNDS:
		return cell__buf_add_str(out, "no capabilities through exec");
	case CELL_OP_CAPS:
		return cell__buf_add_str(out, "drop all capabilities");
	case CELL_OP_LANDLOCK:
		return cell__buf_printf(out, "Landlock: handle file rights 0x%llx%s%s", arg, arg2 & 0xffffffffu ? ", TCP" : "",
					arg2 >> 32 ? ", signals and abstract sockets" : "");
	case CELL_OP_ALLOW:
		return cell__buf_printf(out, "Landlock: allow 0x%llx in %s", arg, a);
	case CELL_OP_RESTRICT:
		return cell__buf_add_str(out, "Landlock takes effect");
	case CELL_OP_SECCOMP:
		return cell__buf_printf(out, "seccomp filter of %u instructions: %s", step->a_size / 8, b);
	case CELL_OP_GUARD_SOCKET:
		return cell__buf_add_str(out, "pid 1 waits for the process whose files it writes");
	case CELL_OP_GUARD:
		return cell__buf_printf(out, "protected names: pid 1 writes files of the host, and refuses them%s%s",
					b[0] ? " but for " : "", b);
	case CELL_OP_PLACE:
		return cell__buf_printf(out, "%s may be written to%s", a, arg ? ", but for protected names" : "");
	}
	return cell__buf_add_str(out, "something unknown");
}

int cell__plan_print(const struct cell_plan *plan, struct cell__buf *out)
{
	static const char *const stages[] = { "", "jail", "early", "kernel", "session", "session" };
	const struct cell_plan_step *step = cell__plan_first(plan);
	int rc = 0;
	for (uint32_t i = 0; i < plan->n_steps; i++, step = cell__plan_next(step)) {
		rc |= cell__buf_printf(out, "%3u  %-7s  ", i + 1, stages[step->stage]);
		rc |= cell__plan_describe(step, out);
		rc |= cell__buf_add_str(out, step->flags & CELL_STEP_OPTIONAL ? "  (best effort)\n" : "\n");
	}
	return rc;
}

void cell__plan_failure(const struct cell_plan *plan, const struct cell_plan *session, const struct cell_plan_report *report,
			struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf words = CELL_BUF_INIT;
	int32_t index = report->step;
	const char *advice = "";
	if (index >= (int32_t)CELL_PLAN_MAX_STEPS && session) {
		index -= (int32_t)CELL_PLAN_MAX_STEPS;
		plan = session;
	}
	const struct cell_plan_step *step = cell__plan_first(plan);
	for (int32_t i = 0; i < index && i < (int32_t)plan->n_steps; i++)
		step = cell__plan_next(step);
	if (index < 0 || index >= (int32_t)plan->n_steps || cell__plan_describe(step, &words) < 0 || !words.data) {
		cell_fail(err, CELL_E_SANDBOX, report->sys, "the sandbox could not be made");
		return;
	}
	if (report->sys == ENOSPC && step->op == CELL_OP_NAMESPACES)
		advice = " (is a limit in /proc/sys/user/max_*_namespaces reached?)";
	else if (report->sys == EPERM || report->sys == EACCES)
		advice = " (`workcell doctor` says what this machine allows)";
	cell_fail(err, CELL_E_SANDBOX, report->sys, "the sandbox could not be made: %.120s%s", words.data, advice);
}

/* ---- the receipt ---- */

static void add_limit(struct cell__buf *out, bool *first, const char *name, uint64_t max, const char *by, int *rc)
{
	if (!max)
		return;
	*rc |= cell__buf_printf(out, "%s\"%s\":{\"max\":%llu,\"by\":\"%s\"}", *first ? "" : ",", name, (unsigned long long)max, by);
	*first = false;
}

static int add_limits(const struct cell__sandbox_policy *policy, const struct cell__machine *machine, const struct cell_plan *plan,
		      struct cell__buf *out)
{
	const struct cell_cgroups *groups = &machine->cgroups;
	const char *group = groups->version == 2 ? "cgroup v2" : "cgroup v1";
	bool first = true;
	int rc = 0;
	add_limit(out, &first, "memory_bytes", policy->memory_bytes, groups->parent[CELL_CG_MEMORY][0] ? group : "rlimit", &rc);
	if (cell__plan_holds_pids(machine, plan->mapped))
		add_limit(out, &first, "pids", policy->pids, groups->parent[CELL_CG_PIDS][0] ? group : "rlimit", &rc);
	if (groups->parent[CELL_CG_CPU][0])
		add_limit(out, &first, "cpu_percent", policy->cpu_percent, group, &rc);
	add_limit(out, &first, "cpu_time_ms", policy->cpu_time_ms, "rlimit", &rc);
	add_limit(out, &first, "files", policy->files, "rlimit", &rc);
	add_limit(out, &first, "file_size_bytes", policy->file_size_bytes, "rlimit", &rc);
	add_limit(out, &first, "tmp_bytes", machine->level == CELL_LEVEL_FULL ? policy->tmp_bytes : 0, "tmpfs", &rc);
	add_limit(out, &first, "output_bytes", policy->output_bytes, "host", &rc);
	add_limit(out, &first, "wall_ms", policy->wall_ms, "host", &rc);
	if (cell__workspace_is_writable(policy->workspace) || policy->write.count > 0) {
		add_limit(out, &first, "workspace_bytes", policy->workspace_bytes, "watched", &rc);
		add_limit(out, &first, "workspace_files", policy->workspace_files, "watched", &rc);
	}
	add_limit(out, &first, "storage_bytes", policy->storage_bytes, "host", &rc);
	add_limit(out, &first, "storage_artifacts", policy->storage_artifacts, "host", &rc);
	add_limit(out, &first, "storage_descriptions_bytes", policy->storage_index_bytes, "host", &rc);
	add_limit(out, &first, "storage_workflows", policy->storage_workflows, "host", &rc);
	add_limit(out, &first, "audit_bytes_per_s", policy->audit_bytes, "host", &rc);
	return rc;
}

/* Describes one step of a zygote's plan. */
static int describe_missed(const struct cell__zygote_state *zygote, char *out, size_t size)
{
	CELL_AUTO_BUF struct cell__buf words = CELL_BUF_INIT;
	const struct cell_plan_step *step = zygote->plan ? cell__plan_first(zygote->plan) : NULL;
	if (!step || zygote->missed < 1 || zygote->missed > (int)zygote->plan->n_steps)
		return 0;
	for (int i = 1; i < zygote->missed; i++)
		step = cell__plan_next(step);
	int rc = cell__plan_describe(step, &words);
	snprintf(out, size, "zygote: %.200s", words.data ? words.data : "");
	return rc;
}

/* Is a protected name refused wherever the code could write to it?  A layer is not the host's: its commit refuses them. */
static bool holds_names(const struct cell__sandbox_policy *policy, const struct cell_plan *plan)
{
	const struct cell_plan_step *step = cell__plan_first(plan);
	for (uint32_t i = 0; i < plan->n_steps; i++, step = cell__plan_next(step))
		if (step->op == CELL_OP_GUARD)
			return true;
	return cell__policy_protects(policy) && policy->workspace != CELL_WORKSPACE_RW && policy->write.count == 0;
}

static int add_skipped(const struct cell__sandbox_policy *policy, const struct cell__machine *machine, const struct cell_plan *plan,
		       const struct cell_plan_report *report, const struct cell__zygote_state *zygote, struct cell__buf *out)
{
	const struct cell_plan_step *step = cell__plan_first(plan);
	bool first = true;
	int rc = 0;
	for (uint32_t i = 0; i < plan->n_steps; i++, step = cell__plan_next(step)) {
		CELL_AUTO_BUF struct cell__buf words = CELL_BUF_INIT;
		if (!(report->skipped[i / 8] & (1u << (i % 8))))
			continue;
		rc |= cell__plan_describe(step, &words);
		rc |= cell__buf_add_str(out, first ? "" : ",") | cell__buf_add_json_string(out, words.data ? words.data : "", words.size);
		first = false;
	}
	char uid[256], zygote_uid[256] = "", missed[256] = "";
	const struct cell_plan *warm = zygote ? zygote->plan : NULL;
	if (warm && warm->not_mapped[0])
		snprintf(zygote_uid, sizeof zygote_uid, "zygote: a separate uid: %s", warm->not_mapped);
	if (zygote)
		rc |= describe_missed(zygote, missed, sizeof missed);
	snprintf(uid, sizeof uid, "a separate uid: %s", plan->not_mapped);
	bool unprotected = cell__policy_protects(policy) && !holds_names(policy, plan);
	const struct {
		bool missing;
		const char *words;
	} rows[] = {
		{ machine->landlock_abi == 0, "Landlock: not supported by this kernel" },
		{ machine->landlock_abi > 0 && machine->landlock_abi < 6,
		  "Landlock: this kernel cannot restrict signals and abstract sockets" },
		{ policy->cpu_percent && !machine->cgroups.parent[CELL_CG_CPU][0], "the limit on CPU share: no cgroup available" },
		{ policy->memory_bytes && !machine->cgroups.parent[CELL_CG_MEMORY][0],
		  "the limit on the total and shared memory of all processes: no cgroup available" },
		{ policy->pids && !cell__plan_holds_pids(machine, plan->mapped),
		  "the limit on processes: no cgroup available, and rlimits do not apply to root" },
		{ plan->not_mapped[0] != '\0', uid },
		{ zygote && !warm, "confinement of the zygote: no namespaces; it is only isolated from the user's settings" },
		{ zygote_uid[0] != '\0', zygote_uid },
		{ missed[0] != '\0', missed },
		{ warm && !(warm->clone_flags & CLONE_NEWNET),
		  "zygote: no network isolation, because kernels with full network access share its network" },
		{ unprotected && machine->level != CELL_LEVEL_FULL, "protected names: no mount namespace" },
		{ unprotected && machine->level == CELL_LEVEL_FULL && !machine->guards,
		  "protected names: this kernel is older than Linux 5.19" },
		{ machine->level != CELL_LEVEL_FULL && policy->tmp_bytes, "the limit on the size of /tmp: no mount namespace" },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (rows[i].missing) {
			rc |= cell__buf_add_str(out, first ? "" : ",") |
			      cell__buf_add_json_string(out, rows[i].words, strlen(rows[i].words));
			first = false;
		}
	return rc;
}

static const char *uid_word(uint32_t mapped)
{
	return mapped == CELL_MAPPED_MOUNTS ? "unmapped" : mapped == CELL_MAPPED_SUBIDS ? "subuid" : "caller";
}

int cell__plan_receipt(const struct cell__sandbox_policy *policy, const struct cell__machine *machine, const struct cell_plan *plan,
		       const struct cell_plan_report *report, enum cell__workspace_mode mode, const char *layer,
		       const struct cell__zygote_state *zygote, struct cell__buf *out)
{
	bool full = plan->level == CELL_LEVEL_FULL, first = true;
	int rc = cell__buf_printf(
		out, "{\"executor\":\"sandbox\",\"level\":\"%s\",\"policy\":", cell__level_word((enum cell_plan_level)plan->level));
	rc |= cell__buf_add_json_string(out, policy->name, strlen(policy->name));
	rc |= cell__buf_add_str(out, ",\"namespaces\":[");
	for (size_t i = 0; i < N_NAMESPACES; i++)
		if (plan->clone_flags & namespaces[i].flag) {
			rc |= cell__buf_printf(out, "%s\"%s\"", first ? "" : ",", namespaces[i].name);
			first = false;
		}
	rc |= cell__buf_printf(out, "],\"uid\":\"%s\"", uid_word(plan->mapped));
	rc |= cell__buf_printf(out, ",\"seccomp\":true,\"landlock\":%d,\"capabilities\":[],\"no_new_privs\":true,\"limits\":{",
			       machine->landlock_abi);
	rc |= add_limits(policy, machine, plan, out);
	if (zygote)
		rc |= cell__buf_printf(out, "},\"zygote\":\"%s\"", zygote->plan ? "confined" : "isolated");
	rc |= cell__buf_printf(out, "%s,\"network\":\"%s\",\"filesystem\":\"%s\",\"workspace\":\"%s\"", zygote ? "" : "}",
			       cell__network_word(policy->network), full ? "private" : "landlock", cell__workspace_word(mode));
	if (layer)
		rc |= cell__buf_printf(out, ",\"layer\":\"%s\"", layer);
	rc |= cell__buf_printf(out, ",\"protected\":\"%s\"", holds_names(policy, plan) ? "enforced" : "not enforced");
	rc |= cell__buf_add_str(out, ",\"skipped\":[");
	rc |= add_skipped(policy, machine, plan, report, zygote, out);
	return rc | cell__buf_add_str(out, "]}");
}
