/*
 * `workcell doctor`: reports what works on this machine, and why the rest does not.
 *
 * The report is built as JSON and the text is made from it, so the two cannot disagree. The machine's features are found by trying them,
 * not by version numbers, and before the engine's thread starts, because one of the trials forks.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/landlock.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <mntent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "base/file.h"
#include "progress.h"

#define DEFAULT_EXECUTOR "subprocess"
#define MAX_STAT_BYTES 4096 /* of /proc/PID/stat */

/* ---- the machine ------------------------------------------------------------- */

/* Appends {"name", "ok", "detail"}. */
static void add_fact(json_t *facts, const char *name, bool ok, const char *detail)
{
	json_array_append_new(facts, json_pack("{s:s, s:b, s:s}", "name", name, "ok", ok, "detail", detail));
}

static void check_kernel(json_t *facts)
{
	struct utsname name;
	char detail[256];

	uname(&name);
	snprintf(detail, sizeof(detail), "%.100s %.100s, %.20s", name.sysname, name.release, name.machine);
	add_fact(facts, "system", true, detail);
}

static void check_pidfd(json_t *facts)
{
	int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

	add_fact(facts, "pidfd", fd >= 0, fd >= 0 ? "processes are watched without races" : strerror(errno));
	if (fd >= 0)
		close(fd);
}

static void check_memfd(json_t *facts)
{
	int fd = memfd_create("workcell-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	add_fact(facts, "memfd", fd >= 0, fd >= 0 ? "output can go through shared memory" : strerror(errno));
	if (fd >= 0)
		close(fd);
}

static int read_sysctl(const char *path)
{
	FILE *file = fopen(path, "re");
	int value = -1;

	if (!file)
		return -1;
	if (fscanf(file, "%d", &value) != 1)
		value = -1;
	fclose(file);
	return value;
}

static void check_user_namespaces(json_t *facts)
{
	const char *advice = "";
	char detail[256];
	int status = 0;
	pid_t pid = fork();

	if (pid == 0)
		_exit(unshare(CLONE_NEWUSER) < 0 ? errno : 0);
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status)) {
		add_fact(facts, "user namespaces", false, "not tested: cannot start a child process");
		return;
	}
	if (!WEXITSTATUS(status)) {
		add_fact(facts, "user namespaces", true, getuid() ? "allowed without privileges" : "allowed (tried as root)");
		return;
	}
	if (read_sysctl("/proc/sys/user/max_user_namespaces") == 0)
		advice = "; set sysctl user.max_user_namespaces above 0";
	else if (read_sysctl("/proc/sys/kernel/unprivileged_userns_clone") == 0)
		advice = "; set sysctl kernel.unprivileged_userns_clone=1";
	else if (read_sysctl("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1)
		advice = "; set sysctl kernel.apparmor_restrict_unprivileged_userns=0";
	snprintf(detail, sizeof(detail), "%s%s", strerror(WEXITSTATUS(status)), advice);
	add_fact(facts, "user namespaces", false, detail);
}

static void check_landlock(json_t *facts)
{
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
	char detail[128];

	if (abi >= 0)
		snprintf(detail, sizeof(detail), "ABI %ld", abi);
	else if (errno == EOPNOTSUPP)
		snprintf(detail, sizeof(detail), "switched off at boot; add landlock to the lsm= boot parameter");
	else
		snprintf(detail, sizeof(detail), "%s", strerror(errno));
	add_fact(facts, "landlock", abi >= 0, detail);
}

static void check_seccomp(json_t *facts)
{
	uint32_t action = SECCOMP_RET_KILL_PROCESS;
	long status = syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action);

	add_fact(facts, "seccomp", !status, status ? strerror(errno) : "filters can be installed");
}

/* The mechanism that enforces a sandbox's limit on memory here; "" without sandboxes. */
static void find_holder(char *out, size_t size)
{
	struct cell_sandbox_options opts = CELL_SANDBOX_OPTIONS_INIT;
	char *text = NULL;
	const char *mark = "\nreceipt\n", *by = "";

	*out = '\0';
	opts.workspace_mode = "none";
	if (cell_sandbox_explain(&opts, &text, NULL) < 0)
		return;
	const char *receipt = strstr(text, mark);
	json_t *all = receipt ? json_loads(receipt + strlen(mark), 0, NULL) : NULL;
	if (json_unpack(all, "{s:{s:{s:s}}}", "limits", "memory_bytes", "by", &by) == 0)
		snprintf(out, size, "%s", by);
	json_decref(all);
	free(text);
}

static void check_cgroup(json_t *facts)
{
	char detail[512] = "", v1[256] = "", holder[32];
	FILE *mounts = setmntent("/proc/self/mounts", "re");
	struct mntent *mount;
	size_t used = 0;
	bool v2 = false;

	while (mounts && (mount = getmntent(mounts))) {
		if (!strcmp(mount->mnt_type, "cgroup2")) {
			v2 = true;
		} else if (!strcmp(mount->mnt_type, "cgroup") && used < sizeof(v1)) {
			const char *slash = strrchr(mount->mnt_dir, '/');

			used += (size_t)snprintf(v1 + used, sizeof(v1) - used, "%s%s", used ? " " : "", slash ? slash + 1 : mount->mnt_dir);
		}
	}
	if (mounts)
		endmntent(mounts);
	find_holder(holder, sizeof(holder));
	bool useless = strcmp(holder, "rlimit") == 0;
	snprintf(detail, sizeof(detail), "%s%s%s%s%s%s%s%s", v2 ? "v2" : "", v2 && *v1 ? " and " : "", *v1 ? "v1 (" : "", v1,
		 *v1 ? ")" : "", *holder && !useless ? "; sandbox limits by " : "", useless ? "" : holder,
		 useless ? "; no usable group, so sandbox limits are rlimits.  With systemd, start workcell with "
			   "`systemd-run --user --scope`, or as a service with Delegate=yes"
			 : "");
	add_fact(facts, "cgroup", (v2 || *v1) && !useless, v2 || *v1 ? detail : "not mounted; limits are rlimits only");
}

static void check_limit(json_t *facts, const char *name, __rlimit_resource_t resource)
{
	struct rlimit limit;
	char text[2][32], detail[128];
	rlim_t values[2];

	if (getrlimit(resource, &limit) < 0)
		return;
	values[0] = limit.rlim_cur;
	values[1] = limit.rlim_max;
	for (int i = 0; i < 2; i++) {
		if (values[i] == RLIM_INFINITY)
			snprintf(text[i], sizeof(text[i]), "unlimited");
		else
			snprintf(text[i], sizeof(text[i]), "%" PRIu64, (uint64_t)values[i]);
	}
	snprintf(detail, sizeof(detail), "%s, at most %s", text[0], text[1]);
	add_fact(facts, name, true, detail);
}

static json_t *check_machine(void)
{
	json_t *facts = json_array();

	check_kernel(facts);
	check_pidfd(facts);
	check_memfd(facts);
	check_user_namespaces(facts);
	check_landlock(facts);
	check_seccomp(facts);
	check_cgroup(facts);
	check_limit(facts, "open files", RLIMIT_NOFILE);
	check_limit(facts, "processes", RLIMIT_NPROC);
	return facts;
}

/* ---- our parts ------------------------------------------------------------------ */

static void set_link(json_t *parts, const char *name, const char *link)
{
	char path[4096];
	ssize_t size = readlink(link, path, sizeof(path));

	if (size > 0)
		json_object_set_new(parts, name, json_stringn(path, (size_t)size));
}

static pid_t parent_of(int64_t pid)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	const char *after;
	char path[64];
	int parent;

	snprintf(path, sizeof(path), "/proc/%" PRId64 "/stat", pid);
	if (cell__file_read(AT_FDCWD, path, 0, MAX_STAT_BYTES, &text, NULL) < 0)
		return -1;
	/* The name in parentheses may hold anything, also parentheses. */
	after = strrchr(text.data, ')');
	return after && sscanf(after, ") %*c %d", &parent) == 1 ? parent : -1;
}

static json_t *find_parts(int64_t zygote_pid)
{
	json_t *parts = json_object();
	const char *spawner;
	char link[64];
	Dl_info info;
	int directory;

	set_link(parts, "program", "/proc/self/exe");
	if (dladdr((void *)(uintptr_t)cell_version, &info) && info.dli_fname)
		json_object_set_new(parts, "library", json_string(info.dli_fname));
	/* The zygote's parent is the spawner, wherever the library found it; the kernel is beside that. */
	if (zygote_pid > 0) {
		snprintf(link, sizeof(link), "/proc/%d/exe", parent_of(zygote_pid));
		set_link(parts, "spawner", link);
		spawner = json_string_value(json_object_get(parts, "spawner"));
		directory = spawner ? (int)(strrchr(spawner, '/') - spawner) : 0;
		if (spawner)
			json_object_set_new(parts, "kernel", json_sprintf("%.*s/kernel", directory, spawner));
	}
	return parts;
}

/* ---- executors and the interpreter ------------------------------------------------ */

static json_t *probe_executors(struct cell_engine *engine, bool *ret_default_ok)
{
	json_t *list = json_array();

	*ret_default_ok = false;
	for (size_t i = 0;; i++) {
		struct cell_executor_info info = { .size = sizeof(info) };

		if (cell_executor_probe(engine, i, &info) < 0)
			return list;
		if (!strcmp(info.name, DEFAULT_EXECUTOR))
			*ret_default_ok = info.available;
		json_array_append_new(list,
				      json_pack("{s:s, s:s, s:s, s:b, s:s, s:s}", "name", info.name, "isolation", info.isolation, "level",
						info.level, "available", info.available, "reason", info.reason, "advice", info.advice));
	}
}

static double now_ms(void)
{
	return (double)cell__now_us() / 1e3;
}

/* Opens a session, runs a cell and adds their durations. */
static int try_cell(struct cell_engine *engine, const char *path, json_t *python, struct cell_error *err)
{
	static const char code[] = "6 * 7";
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_session *session;
	struct cell_result *result;
	double start = now_ms(), opened;
	const char *value;
	int status;

	options.python = path;
	if (cell_session_open(engine, &options, &session, err) < 0)
		return -1;
	opened = now_ms();
	status = cell_session_run(session, code, strlen(code), NULL, &result, err);
	if (!status) {
		json_object_set_new(python, "open_ms", json_real(opened - start));
		json_object_set_new(python, "cell_ms", json_real(now_ms() - opened));
		value = cell_result_repr(result);
		if (!value || strcmp(value, "42"))
			status = cell_fail(err, CELL_E_KERNEL, 0, "a cell that computes 6 * 7 answered %s", value ? value : "nothing");
		cell_result_destroy(result);
	}
	cell_session_close(session);
	return status;
}

static json_t *check_python(struct cell_engine *engine, const char *name, int64_t *ret_zygote_pid)
{
	struct cell_env_info info = { .size = sizeof(info) };
	json_t *python = json_object();
	struct cell_error err;
	char *path = NULL;
	int status;

	status = cell__cli_find_python(name, &path, &err);
	if (!status) {
		json_object_set_new(python, "path", json_string(path));
		status = cell_engine_prewarm(engine, path, NULL, &info, &err);
	}
	if (!status) {
		*ret_zygote_pid = info.zygote_pid;
		json_object_set_new(python, "version", json_string(info.version));
		json_object_set_new(python, "ipython", json_string(info.ipython));
		json_object_set_new(python, "start_ms", json_real(info.start_ms));
		status = try_cell(engine, path, python, &err);
	}
	free(path);
	json_object_set_new(python, "ok", json_boolean(!status));
	if (status)
		json_object_set_new(python, "error", json_pack("{s:s, s:s}", "code", cell_code_word(err.code), "message", err.msg));
	return python;
}

/* ---- the report ------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

static void print_python(const json_t *python)
{
	const json_t *error = json_object_get(python, "error");
	const char *ipython = text_of(python, "ipython");

	printf("python\n  %-16s %s\n", "path", text_of(python, "path"));
	if (*text_of(python, "version")) {
		printf("  %-16s %s\n", "version", text_of(python, "version"));
		printf("  %-16s %s%s\n", "cells run by",
		       *ipython ? "IPython " : "the built-in interactive layer (no IPython in this environment)", ipython);
		printf("  %-16s %.0f ms\n", "zygote start", json_real_value(json_object_get(python, "start_ms")));
	}
	if (json_object_get(python, "cell_ms"))
		printf("  %-16s open %.2f ms, cell %.2f ms\n", "session", json_real_value(json_object_get(python, "open_ms")),
		       json_real_value(json_object_get(python, "cell_ms")));
	if (error)
		printf("  %-16s %s: %s\n", "FAILED", text_of(error, "code"), text_of(error, "message"));
}

static void print_text(json_t *report)
{
	json_t *item;
	const char *key;
	size_t i;

	printf("workcell %s\n", text_of(report, "version"));
	json_object_foreach(json_object_get(report, "parts"), key, item)
		printf("  %-16s %s\n", key, json_string_value(item));
	printf("\nexecutors\n");
	json_array_foreach(json_object_get(report, "executors"), i, item) {
		bool available = json_is_true(json_object_get(item, "available"));

		printf("  %-16s %-3s isolation: %s%s%s\n", text_of(item, "name"), available ? "ok" : "no", text_of(item, "isolation"),
		       *text_of(item, "level") ? ", level " : "", text_of(item, "level"));
		if (*text_of(item, "reason"))
			printf("  %-16s     %s: %s\n", "", available ? "note" : "why", text_of(item, "reason"));
		if (*text_of(item, "advice"))
			printf("  %-16s     do: %s\n", "", text_of(item, "advice"));
	}
	putchar('\n');
	print_python(json_object_get(report, "python"));
	printf("\nthis machine\n");
	json_array_foreach(json_object_get(report, "machine"), i, item)
		printf("  %-16s %-3s %s\n", text_of(item, "name"), json_is_true(json_object_get(item, "ok")) ? "ok" : "no",
		       text_of(item, "detail"));
	printf("\n%s\n", json_is_true(json_object_get(report, "ok")) ? "The default executor works."
								     : "The default executor does not work here; see above.");
}

/* ---- mending -------------------------------------------------------------------- */

/* The outcome of a first cell, which also makes the cached parts for later sessions. */
static int try_executor(struct cell_engine *engine, const char *name, struct cell_error *err)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_result *result = NULL;
	struct cell_session *session;
	const char *repr;
	int status;

	options.executor = name;
	options.cwd = "/";
	if (cell_session_open(engine, &options, &session, err) < 0)
		return -1;
	status = cell_session_run(session, "1 + 1", 5, NULL, &result, err);
	repr = status < 0 ? NULL : cell_result_repr(result);
	if (status == 0 && (!repr || strcmp(repr, "2")))
		status = cell_fail(err, CELL_E_KERNEL, 0, "%s returned a wrong result for a test cell", name);
	if (status == 0)
		cell_result_destroy(result);
	cell_session_close(session);
	return status;
}

/* Runs the command that an executor suggests as its fix, then tries it. */
static int fix_executor(struct cell_engine *engine, const char *name, struct cell_error *err)
{
	struct cell_executor_info info = { .size = sizeof(info) };
	size_t i = 0;

	while (cell_executor_probe(engine, i, &info) == 0 && strcmp(info.name, name))
		i++;
	if (cell_executor_probe(engine, i, &info) < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "unknown executor '%s'", name);
	if (!info.available && !info.fix[0])
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "%s cannot be fixed automatically: %s; %s", name, info.reason, info.advice);
	fflush(stdout);
	if (!info.available) {
		int status = system(info.fix);

		if (status != 0)
			return cell_fail(err, CELL_E_UNAVAILABLE, 0, "cannot install the parts of %s (status %d)", name,
					 WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	}
	cell__progress_begin("starting a session, which keeps a snapshot of its start");
	int status = try_executor(engine, name, err);
	cell__progress_end();
	if (status < 0)
		return -1;
	printf("%s works.\n", name);
	return 0;
}

struct doctor_flags {
	bool json;
	const char *fix;
	const char *python;
};

static const struct cell_cli_flag doctor_flag_table[] = {
	{ 0, "json", NULL, "print one JSON object instead of text", CELL_FLAG_SWITCH, offsetof(struct doctor_flags, json) },
	{ 0, "fix", "EXECUTOR", "install the missing parts of this executor (deno: from npm), test it, and stop", CELL_FLAG_STRING,
	  offsetof(struct doctor_flags, fix) },
	{ 0, "python", "PATH", "the interpreter to test, a path or a name on $PATH (default python3)", CELL_FLAG_STRING,
	  offsetof(struct doctor_flags, python) },
	{ 0 },
};

const struct cell_cli_command cell__cli_doctor_command = {
	.name = "doctor",
	.summary = "what works on this machine, and why the rest does not",
	.synopsis = "[--json] [--python PATH] [--fix EXECUTOR]",
	.about = "Tests the executors, the interpreter and the features of the kernel, and reports what to do.\n"
		 "Exit status: 0 when the default executor runs a cell, 1 when it does not.",
	.examples = "  workcell doctor\n"
		    "  workcell doctor --python ./venv/bin/python\n"
		    "  workcell doctor --json | jq .python\n"
		    "  workcell doctor --fix deno",
	.flags = doctor_flag_table,
	.run = cell__cmd_doctor,
};

int cell__cmd_doctor(int argc, char **argv)
{
	struct doctor_flags flags = { 0 };
	json_t *machine, *executors, *python, *report;
	struct cell_engine *engine;
	struct cell_error err;
	bool executor_ok, ok;
	int64_t zygote_pid = 0;
	int status;

	if (!cell__cli_parse(&cell__cli_doctor_command, argc, argv, &flags, NULL, &status))
		return status;
	machine = check_machine();
	if (cell_engine_create(NULL, &engine, &err) < 0) {
		json_decref(machine);
		return cell__cli_report(&err, flags.json);
	}
	if (flags.fix) {
		status = fix_executor(engine, flags.fix, &err) < 0 ? cell__cli_report(&err, flags.json) : 0;
		cell_engine_destroy(engine);
		json_decref(machine);
		return status;
	}
	executors = probe_executors(engine, &executor_ok);
	python = check_python(engine, flags.python, &zygote_pid);
	ok = executor_ok && json_is_true(json_object_get(python, "ok"));
	report = json_pack("{s:s, s:b, s:o, s:o, s:o, s:o}", "version", cell_version(), "ok", ok, "parts", find_parts(zygote_pid),
			   "executors", executors, "python", python, "machine", machine);
	cell_engine_destroy(engine);
	if (!report) {
		cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for the report");
		return cell__cli_report(&err, flags.json);
	}
	if (flags.json) {
		json_dumpf(report, stdout, JSON_COMPACT);
		putchar('\n');
	} else {
		print_text(report);
	}
	json_decref(report);
	return ok ? 0 : 1;
}
