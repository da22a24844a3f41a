/*
 * Sandboxes without kernels: the plan of a policy, and one command run under it.
 *
 *     caller ──clone──▶ pid 1 of new namespaces: JAIL steps ──fork──▶ EARLY and KERNEL steps, exec of the command
 *       └── waits for pid 1, which reaps, and ends as the command did
 *
 * A step that fails is reported through a pipe that closes on exec.  If the network is filtered, pid 1 hands out its listening
 * socket, and a loop of the caller's, started after that, is the proxy while the command runs.  It keeps the audit log, if one
 * is configured: a log that cannot be written is an error before the command runs, and a connection that cannot be recorded is
 * not made.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/words.h"
#include "base/sized.h"
#include "sandbox/build.h"
#include "sandbox/apply.h"
#include "egress/egress.h"
#include "sandbox/plans.h"
#include "gate/audit.h"
#include "engine/engine.h"
#include "spawn/guard.h"
#include "spawn/message.h"

#define ANSWER_BYTES 16384 /* of an interpreter, about itself */
#define ANSWER_LINES 64

struct command {
	struct cell__sandbox_policy policy;
	bool has_policy;
	struct cell__plan_env env;
	struct cell__buf plan, session;
	char *workspace, *cwd;
	char index[ANSWER_BYTES];                  /* the names, each with a NUL */
	const char *index_hosts[ANSWER_LINES + 1]; /* in it; NULL-terminated */
};

static void command_finish(struct command *command)
{
	if (command->has_policy)
		cell__sandbox_policy_finish(&command->policy);
	cell__plan_env_finish(&command->env);
	cell__buf_finish(&command->plan);
	cell__buf_finish(&command->session);
	free(command->workspace);
	free(command->cwd);
}

/* The program's output, up to size - 1 bytes. Its stderr is ours. */
static int read_program(const char *const argv[], const char *const envp[], char *out, size_t size, struct cell_error *err)
{
	int ends[2], status = 0;
	pid_t pid;
	posix_spawn_file_actions_t actions;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return cell_fail(err, CELL_E_IO, errno, "make a pipe");
	int rc = posix_spawn_file_actions_init(&actions);
	if (rc == 0) {
		rc = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
		if (rc == 0)
			rc = posix_spawn(&pid, argv[0], &actions, NULL, (char *const *)argv, (char *const *)envp);
		posix_spawn_file_actions_destroy(&actions);
	}
	close(ends[1]);
	size_t n = 0;
	ssize_t got = 0;
	while (rc == 0 && n + 1 < size && ((got = read(ends[0], out + n, size - 1 - n)) > 0 || (got < 0 && errno == EINTR)))
		n += got > 0 ? (size_t)got : 0;
	out[n] = '\0';
	close(ends[0]);
	while (rc == 0 && waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return cell_fail(err, CELL_E_IO, errno, "wait for %.120s", argv[0]);
	return rc != 0 || status != 0 ? cell_fail(err, CELL_E_PYTHON, rc, "ask %.120s for its file paths and its package index", argv[0])
				      : 0;
}

/* The output of index_hosts.py about the interpreter: one line each, in `text`. what: its argument, or NULL. */
static int ask_python(const char *python, const char *what, char text[static ANSWER_BYTES], const char *ret_lines[static ANSWER_LINES + 1],
		      struct cell_error *err)
{
	char dir[PATH_MAX], script[PATH_MAX + 64], home[PATH_MAX];
	if (cell__engine_find_parts(NULL, dir, sizeof dir, err) < 0)
		return -1;
	snprintf(script, sizeof script, "%s/kernel/workcell_kernel/index_hosts.py", dir);
	snprintf(home, sizeof home, "HOME=%s", cell__home_dir());
	const char *const argv[] = { python, "-I", script, what, NULL };
	const char *const envp[] = { "LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin", home, NULL };
	if (read_program(argv, envp, text, ANSWER_BYTES, err) < 0)
		return -1;
	size_t n = 0;
	char *rest = NULL;
	for (char *line = strtok_r(text, "\n", &rest); line && n < ANSWER_LINES; line = strtok_r(NULL, "\n", &rest))
		ret_lines[n++] = line;
	ret_lines[n] = NULL;
	return 0;
}

/* The interpreter's files as far as its path shows: a venv's folder, and the folder of the program behind it. */
static int guess_env(const char *python, struct cell__plan_env *env)
{
	char folder[PATH_MAX], real[PATH_MAX];
	snprintf(folder, sizeof folder, "%s", python);
	if (!realpath(python, real))
		real[0] = '\0';
	for (int i = 0; i < 2; i++) {
		char *slash = strrchr(folder, '/'), *other = strrchr(real, '/');
		if (slash)
			*slash = '\0';
		if (other)
			*other = '\0';
	}
	const char *paths[3] = { folder, real[0] ? real : NULL, NULL };
	return cell__plan_env_init(env, folder[0] ? paths : paths + 2);
}

/* The same, as a session knows them. */
static int ask_env(const char *python, struct cell__plan_env *env, struct cell_error *err)
{
	char text[ANSWER_BYTES];
	const char *paths[ANSWER_LINES + 1];
	if (ask_python(python, "files", text, paths, err) < 0)
		return -1;
	return cell__plan_env_init(env, paths) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox") : 0;
}

/* Before the interpreter is started: no file that the host runs or reads may be writable for the command. */
static int check_places(const struct command *command, const struct cell_sandbox_options *opts, const char *python, struct cell_error *err)
{
	struct cell__place_list trusted = CELL_PLACE_LIST_INIT;
	struct cell__writable_list writable = CELL_WRITABLE_LIST_INIT;
	char dir[PATH_MAX];
	CELL_AUTO_FREE char *program = realpath("/proc/self/exe", NULL);
	int rc = cell__engine_find_parts(NULL, dir, sizeof dir, err);
	if (rc == 0)
		rc = cell__writable_init(&writable, &command->policy, command->cwd, err);
	if (rc == 0)
		rc = cell__place_add(&trusted, "Workcell's own folder", false, dir, err);
	if (rc == 0)
		rc = cell__place_add(&trusted, "the host's program", false, program, err);
	if (rc == 0 && opts->policy && cell__sandbox_policy_is_file(opts->policy))
		rc = cell__place_add(&trusted, "the policy file", false, opts->policy, err);
	if (rc == 0)
		rc = cell__place_add(&trusted, "the audit log", false, opts->audit, err);
	if (rc == 0)
		rc = cell__place_add_python(&trusted, python, err);
	for (size_t i = 0; rc == 0 && opts->trusted && opts->trusted[i]; i++)
		rc = cell__place_add(&trusted, "the trusted path", false, opts->trusted[i], err);
	if (rc == 0)
		rc = cell__places_check(&trusted, &writable, err);
	cell__place_list_finish(&trusted);
	cell__writable_finish(&writable);
	return rc;
}

/* The same for the files that the interpreter loads. */
static int check_env(const struct command *command, struct cell_error *err)
{
	struct cell__place_list trusted = CELL_PLACE_LIST_INIT;
	struct cell__writable_list writable = CELL_WRITABLE_LIST_INIT;
	int rc = cell__writable_init(&writable, &command->policy, command->cwd, err);
	for (char **folder = command->env.folders; rc == 0 && folder && *folder; folder++)
		rc = cell__place_add(&trusted, "the interpreter's", true, *folder, err);
	if (rc == 0)
		rc = cell__places_check(&trusted, &writable, err);
	cell__place_list_finish(&trusted);
	cell__writable_finish(&writable);
	return rc;
}

/* explains: for a session, with the interpreter's files that it would see. */
static int command_init(struct command *command, const struct cell_sandbox_options *opts, bool explains, struct cell_error *err)
{
	struct cell__machine machine = *cell__machine_here();
	if (cell__sandbox_policy_load(&command->policy, opts->policy ? opts->policy : CELL_POLICY_DEFAULT, err) < 0)
		return -1;
	command->has_policy = true;
	cell__sandbox_policy_obey(&command->policy);
	if (opts->workspace_mode && cell__workspace_from_word(opts->workspace_mode, &command->policy.workspace, err) < 0)
		return -1;
	command->workspace = opts->cwd ? cell__strdup(opts->cwd) : getcwd(NULL, 0);
	if (!command->workspace)
		return cell_fail(err, CELL_E_INVALID, errno, "the current working directory");
	const char *python = opts->python ? opts->python : CELL_DEFAULT_PYTHON;
	if (cell__plan_workspace(command->workspace, command->policy.workspace, &command->cwd, err) < 0 ||
	    check_places(command, opts, python, err) < 0)
		return -1;
	if (explains && ask_env(python, &command->env, err) < 0)
		return -1;
	if (!explains && opts->python && guess_env(opts->python, &command->env) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	if (command->policy.network == CELL_NET_DEPS && ask_python(python, NULL, command->index, command->index_hosts, err) < 0)
		return -1;
	struct cell__plan_session session = { .workspace = command->workspace,
					      .cwd = command->cwd,
					      .mode = command->policy.workspace,
					      .env = &command->env,
					      .policy = &command->policy };
	if (!explains && session.mode == CELL_WORKSPACE_COW)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "a single command has no session that could commit its changes; use rw, ro or none");
	session.layer = session.mode == CELL_WORKSPACE_COW ? "/tmp" : NULL; /* any folder: it is not shown */
	if (check_env(command, err) < 0)
		return -1;
	/* Subordinate ids belong to the zone (spawn/zone.h), and a command has no zone; a session is explained. */
	if (!explains)
		machine.subids.count = 0;
	struct cell__plans plans = CELL_PLANS_INIT;
	int rc = cell__plans_map(&plans, &session, &machine);
	session.mapped = machine.trees != NULL;
	if (rc < 0)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	else
		rc = cell__plan_build(&command->policy, &machine, &command->env, 1, &command->plan, err);
	if (rc == 0)
		rc = cell__plan_build_session(&machine, &session, &command->session, err);
	cell__strings_free((char **)machine.trees);
	cell__plans_finish(&plans);
	return rc;
}

static int take_options(const struct cell_sandbox_options *opts, struct cell_sandbox_options *ret, struct cell_error *err)
{
	struct cell_sandbox_options all = CELL_SANDBOX_OPTIONS_INIT;
	if (opts && cell__sized_read(&all, sizeof all, opts, "cell_sandbox_options", err) < 0)
		return -1;
	*ret = all;
	return 0;
}

/* The parts that are not steps of a process: limits enforced by a group or the host, and the proxy's rules. */
static int explain_rest(const struct command *command, struct cell__buf *out)
{
	const struct cell__sandbox_policy *p = &command->policy;
	const struct cell_cgroups *groups = &cell__machine_here()->cgroups;
	const struct {
		const char *words;
		uint64_t max;
		bool held;
	} rows[] = {
		{ "group: at most %llu bytes of memory\n", p->memory_bytes, groups->parent[CELL_CG_MEMORY][0] },
		{ "group: at most %llu processes\n", p->pids, groups->parent[CELL_CG_PIDS][0] },
		{ "group: at most %llu%% of one CPU core\n", p->cpu_percent, groups->parent[CELL_CG_CPU][0] },
		{ "host: at most %llu bytes of output per cell\n", p->output_bytes, true },
		{ "host: at most %llu ms of kernel lifetime\n", p->wall_ms, true },
		{ "host: at most %llu bytes in the workspace and writable folders of a session (monitored)\n", p->workspace_bytes,
		  cell__workspace_is_writable(p->workspace) || p->write.count > 0 },
		{ "host: at most %llu files in the workspace and writable folders of a session (monitored)\n", p->workspace_files,
		  cell__workspace_is_writable(p->workspace) || p->write.count > 0 },
		{ "host: at most %llu bytes of artifacts in a session's storage\n", p->storage_bytes, true },
		{ "host: at most %llu artifacts in a session's storage\n", p->storage_artifacts, true },
		{ "host: at most %llu bytes of descriptions and metadata of artifacts\n", p->storage_index_bytes, true },
		{ "host: at most %llu workflows in a session's storage\n", p->storage_workflows, true },
		{ "host: at most %llu bytes per second of audit records from a session\n", p->audit_bytes, true },
	};
	int rc = cell__buf_add_str(out, "around it\n");
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (rows[i].max && rows[i].held)
			rc |= cell__buf_add_str(out, "     ") | cell__buf_printf(out, rows[i].words, (unsigned long long)rows[i].max);
	for (size_t i = 0; i < p->hosts.count; i++)
		rc |= cell__buf_printf(out, "     proxy: lets %s through\n", p->hosts.items[i]);
	for (const char *const *host = command->index_hosts; *host; host++)
		rc |= cell__buf_printf(out, "     proxy: lets %s through\n", *host);
	return rc;
}

/* "2 GiB", "1.5 MiB", "no limit" */
static const char *size_words(uint64_t bytes, char words[32])
{
	if (bytes)
		return cell__size_words(bytes, words);
	snprintf(words, 32, "no limit");
	return words;
}

static const char *count_words(uint64_t count, char words[32])
{
	snprintf(words, 32, count ? "%llu" : "no limit", (unsigned long long)count);
	return words;
}

static int add_paths(struct cell__buf *out, const char *before, const struct cell__sandbox_policy_list *list)
{
	int rc = 0;
	for (size_t i = 0; i < list->count; i++)
		rc |= cell__buf_printf(out, "%s%s", i ? ", " : before, list->items[i]);
	return rc;
}

static int summarize_network(const struct command *command, struct cell__buf *out)
{
	const struct cell__sandbox_policy *p = &command->policy;
	int rc = cell__buf_add_str(out, "network    ");
	if (p->network == CELL_NET_NONE)
		return rc | cell__buf_add_str(out, "none\n");
	if (p->network == CELL_NET_FULL)
		return rc | cell__buf_add_str(out, "the host's, all of it\n");
	rc |= cell__buf_add_str(out, "through a proxy to ");
	rc |= add_paths(out, "", &p->hosts);
	for (const char *const *host = command->index_hosts; *host; host++)
		rc |= cell__buf_printf(out, "%s%s", host == command->index_hosts && !p->hosts.count ? "" : ", ", *host);
	return rc | cell__buf_add_str(out, "\n");
}

/* About ten lines: what somebody wants to know before the steps. */
static int summarize(const struct command *command, const struct cell_plan *plan, struct cell__buf *out)
{
	static const char *const access[] = { "read and write", "read only", "not visible" };
	const struct cell__machine *machine = cell__machine_here();
	const struct cell__sandbox_policy *p = &command->policy;
	char a[32], b[32], c[32];
	bool full = machine->level == CELL_LEVEL_FULL;
	int rc = cell__buf_printf(out, "policy     %s, on this machine at level %s%s%s\n", p->name, cell__level_word(machine->level),
				  full ? "" : ": ", full ? "" : machine->reason);
	rc |= cell__buf_printf(out, "workspace  %s: %s\n", command->workspace ? command->workspace : "(none)", access[p->workspace]);
	rc |= cell__buf_printf(out, "sees       the system's programs and libraries and the interpreter, read only%s",
			       full ? "; no other file of the host" : "");
	rc |= add_paths(out, "; ", &p->read);
	rc |= cell__buf_add_str(out, "\nwrites     ");
	rc |= cell__buf_printf(out, "%sa private /tmp of %s",
			       p->workspace == CELL_WORKSPACE_RW    ? "the workspace, "
			       : p->workspace == CELL_WORKSPACE_COW ? "a layer over the workspace, "
								    : "",
			       size_words(p->tmp_bytes, a));
	rc |= add_paths(out, ", ", &p->write) | cell__buf_add_str(out, "\n");
	if (p->unprotect.count)
		rc |= cell__buf_add_str(out, "           protected names: ") | add_paths(out, "", &p->unprotect) |
		      cell__buf_add_str(out, "\n");
	if (p->hide.count)
		rc |= cell__buf_add_str(out, "hidden     ") | add_paths(out, "", &p->hide) | cell__buf_add_str(out, "\n");
	rc |= summarize_network(command, out);
	rc |= cell__buf_printf(out, "machine    %s\n", p->shows_machine ? "its files in /proc are visible" : "not visible in /proc");
	rc |= cell__buf_printf(out, "limits     memory %s, processes %s, open files %s\n", size_words(p->memory_bytes, a),
			       count_words(p->pids, b), count_words(p->files, c));
	rc |= cell__buf_printf(out, "disk       workspace %s, a file %s, output of a cell %s\n", size_words(p->workspace_bytes, a),
			       size_words(p->file_size_bytes, b), size_words(p->output_bytes, c));
	if (p->cpu_percent || p->cpu_time_ms || p->wall_ms)
		rc |= cell__buf_printf(out, "time       CPU %s %% of one core, %s ms of CPU, %s ms in all\n",
				       count_words(p->cpu_percent, a), count_words(p->cpu_time_ms, b), count_words(p->wall_ms, c));
	return rc | cell__buf_printf(out, "steps      %u, listed with -v; sessions list those that were skipped in their receipt\n",
				     (unsigned)(plan->n_steps + ((const struct cell_plan *)command->session.data)->n_steps));
}

/* The plan of the zygote of such sessions. If it is not confined, *out stays empty. */
static int plan_zygote(const struct command *command, const char *python, struct cell__buf *out, struct cell_error *err)
{
	char dir[PATH_MAX], kernel_dir[PATH_MAX + 8];
	const struct cell__machine *machine = cell__machine_here();
	if (machine->level != CELL_LEVEL_FULL)
		return 0;
	if (cell__engine_find_parts(NULL, dir, sizeof dir, err) < 0)
		return -1;
	snprintf(kernel_dir, sizeof kernel_dir, "%s/kernel", dir);
	struct cell__plans plans = CELL_PLANS_INIT;
	int rc = cell__plans_zygote(&plans, python, kernel_dir, command->policy.network == CELL_NET_FULL, out, err);
	cell__plans_finish(&plans);
	return rc;
}

int cell_sandbox_explain(const struct cell_sandbox_options *opts, char **ret_text, struct cell_error *err)
{
	if (cell__require(err, ret_text) < 0)
		return -1;
	struct cell_sandbox_options all;
	struct command command = { 0 };
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	CELL_AUTO_BUF struct cell__buf zygote_plan = CELL_BUF_INIT;
	struct cell_plan_report nothing = { .step = -1 };
	if (take_options(opts, &all, err) < 0)
		return -1;
	int rc = command_init(&command, &all, true, err);
	if (rc == 0 && all.summary) {
		rc = summarize(&command, (const struct cell_plan *)command.plan.data, &out);
		if (rc < 0)
			cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	} else if (rc == 0) {
		rc = plan_zygote(&command, all.python ? all.python : CELL_DEFAULT_PYTHON, &zygote_plan, err);
	}
	if (rc == 0 && !all.summary) {
		struct cell__zygote_state zygote = { .plan = zygote_plan.size ? (const struct cell_plan *)zygote_plan.data : NULL };
		const struct cell_plan *plan = (const struct cell_plan *)command.plan.data;
		rc |= cell__buf_add_str(&out, "jail: made ahead; early: in the kernel, before it knows its session; kernel: the last "
					      "thing before the code\n");
		rc |= cell__plan_print(plan, &out);
		rc |= cell__buf_add_str(&out, "the session's own steps\n");
		rc |= cell__plan_print((const struct cell_plan *)command.session.data, &out);
		rc |= explain_rest(&command, &out);
		if (zygote.plan)
			rc |= cell__buf_add_str(&out, "the zygote, from which kernels are forked\n") | cell__plan_print(zygote.plan, &out);
		rc |= cell__buf_add_str(&out, "receipt\n");
		rc |= cell__plan_receipt(&command.policy, cell__machine_here(), plan, &nothing, command.policy.workspace, NULL, &zygote,
					 &out);
		rc |= cell__buf_add_str(&out, "\n");
		if (rc < 0)
			cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	command_finish(&command);
	if (rc < 0)
		return -1;
	*ret_text = cell__buf_take(&out);
	return 0;
}

/* ---- running ---- */

struct child {
	struct cell_apply apply;
	struct cell_cgroup group;
	const char *cwd;
	char *const *argv;
	char *const *envp;
	int report_fd;
	int listen_fd; /* receives the socket of the egress proxy; -1: none is made */
};

static void __attribute__((noreturn)) report_and_end(const struct child *child, int step, int sys)
{
	struct cell_plan_report report = { .step = step, .sys = sys };
	_exit(write(child->report_fd, &report, sizeof report) == (ssize_t)sizeof report ? 125 : 126);
}

#define STEP_EXEC (-2)
#define STEP_BEGIN (-3)

static void __attribute__((noreturn)) run_command(struct child *child)
{
	struct cell_plan_report report = { .step = -1 };
	sigset_t none;
	if (cell__apply_stage(&child->apply, CELL_STAGE_EARLY, &report) < 0 ||
	    cell__apply_stage(&child->apply, CELL_STAGE_KERNEL, &report) < 0)
		report_and_end(child, report.step, report.sys);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (chdir(child->cwd) < 0)
		report_and_end(child, STEP_EXEC, errno);
	execvpe(child->argv[0], child->argv, child->envp);
	report_and_end(child, STEP_EXEC, errno);
}

/* Ends as the command did; a signal cannot end a pid 1 from inside, so it becomes a number. */
static void __attribute__((noreturn)) run_pid1(struct child *child)
{
	struct cell_plan_report report = { .step = -1 };
	sigset_t wanted;
	int status = 0;
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || cell__cgroup_join(&child->group) < 0)
		report_and_end(child, STEP_BEGIN, errno);
	if (cell__apply_stage(&child->apply, CELL_STAGE_JAIL, &report) < 0)
		report_and_end(child, report.step, report.sys);
	if (child->listen_fd >= 0) {
		struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION };
		int rc = cell__spawn_send(child->listen_fd, &head, NULL, 0, &child->apply.listen_fd, child->apply.has_listener, 0);
		if (rc < 0)
			report_and_end(child, STEP_BEGIN, -rc);
		close(child->apply.listen_fd);
		close(child->listen_fd);
	}
	pid_t pid = fork();
	if (pid == 0)
		run_command(child);
	if (pid < 0)
		report_and_end(child, STEP_BEGIN, errno);
	close(child->report_fd);
	if (child->apply.has_guard)
		cell__guard_begin(child->apply.guard_fd);
	sigemptyset(&wanted);
	sigaddset(&wanted, SIGCHLD);
	for (;;) {
		pid_t ended;
		(void)cell__guard_wait(&wanted, NULL, 0);
		while ((ended = waitpid(-1, &status, WNOHANG | __WALL)) > 0)
			if (ended == pid)
				_exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
		if (ended < 0 && errno != EINTR)
			_exit(125);
	}
}

static int start_child(struct child *child, struct cell_error *err)
{
	sigset_t all, before;
	const struct cell_plan *plan = child->apply.plan;
	CELL_AUTO_FD int ours = -1;
	CELL_AUTO_FD int theirs = -1;
	if (plan->mapped) {
		int ends[2];
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
			return cell_fail(err, CELL_E_SANDBOX, errno, "start a sandbox");
		ours = ends[0];
		child->apply.start_fd = theirs = ends[1];
		child->apply.ids_come = true;
	}
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	long pid = syscall(SYS_clone, cell__apply_birth_flags(child->apply.plan) | SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0) {
		if (child->apply.plan->level == CELL_LEVEL_FULL)
			run_pid1(child);
		if (cell__cgroup_join(&child->group) < 0)
			report_and_end(child, STEP_BEGIN, errno);
		run_command(child);
	}
	int error = errno;
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (pid > 0 && plan->mapped) {
		cell__close_fd(&theirs); /* should it end before it has heard, sending fails */
		cell__mapped_start(plan, (pid_t)pid, ours, false);
	}
	return pid < 0 ? cell_fail(err, CELL_E_SANDBOX, error, "start a sandbox") : (int)pid;
}

/* False also if that is unknown: a limit must hold. */
static bool ends_within(int pid, uint64_t ms)
{
	const int64_t end_us = cell__now_us() + (int64_t)ms * 1000;
	CELL_AUTO_FD int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
	for (int64_t left_us; fd >= 0 && (left_us = end_us - cell__now_us()) > 0;) {
		int left_ms = left_us / 1000 < INT_MAX ? (int)(left_us / 1000) + 1 : INT_MAX;
		if (poll(&poll_fd, 1, left_ms) > 0)
			return true;
	}
	return false;
}

static int wait_child(struct command *command, struct child *child, int pid, int report_fd, char *const argv[], int *ret_status,
		      struct cell_error *err)
{
	struct cell_plan_report report;
	ssize_t n = read(report_fd, &report, sizeof report);
	const uint64_t wall_ms = command->policy.wall_ms;
	bool over = wall_ms && n == 0 && !ends_within(pid, wall_ms);
	if (over)
		kill(pid, SIGKILL); /* pid 1 of all its processes, except for the level without namespaces */
	while (waitpid(pid, ret_status, 0) < 0)
		if (errno != EINTR)
			return cell_fail(err, CELL_E_SANDBOX, errno, "wait for a sandbox");
	(void)cell__cgroup_remove(&child->group);
	if (over)
		return cell_fail(err, CELL_OUT_LIMIT, 0, "the command exceeded the limit on wall_time: %llu of %llu ms",
				 (unsigned long long)wall_ms, (unsigned long long)wall_ms);
	if (n != (ssize_t)sizeof report)
		return 0;
	if (report.step == STEP_EXEC)
		return cell_fail(err, report.sys == ENOENT ? CELL_E_NOT_FOUND : CELL_E_IO, report.sys, "run %.120s in the sandbox",
				 argv[0]);
	if (report.step == STEP_BEGIN)
		return cell_fail(err, CELL_E_SANDBOX, report.sys, "start a sandbox");
	cell__plan_failure((const struct cell_plan *)command->plan.data, (const struct cell_plan *)command->session.data, &report, err);
	return -1;
}

/* ---- a filtered network ---- */

/* The socket that pid 1 listens on; -1: it failed earlier, and its report has the reason. */
static int take_listener(int fd)
{
	struct cell_spawn_msg head;
	size_t n_fds;
	int listener = -1;
	(void)cell__spawn_receive(fd, &head, sizeof head, &listener, 1, &n_fds, 0);
	return listener;
}

struct way_out {
	struct cell__task closing; /* first */
	struct cell__waiter closed;
	struct cell__loop *loop;
	struct cell__egress_options options;
	struct cell__egress *egress;
	const char *audit_path; /* NULL: no log is kept */
	struct cell__audit_log *audit;
	char id[33]; /* of this command, in the log */
	int rc;
	struct cell_error *err;
};

static int tell(void *arg, const struct cell__egress_event *event, struct cell_error *err)
{
	struct way_out *way = arg;
	return way->audit ? cell__audit_connection(way->audit, way->id, NULL, "sandbox", event, err) : 0;
}

static void open_way_out(void *arg)
{
	struct way_out *way = arg;
	struct cell__audit_log_options log = CELL__AUDIT_OPTIONS_INIT;
	log.loop = way->loop;
	log.path = way->audit_path;
	way->rc = way->audit_path ? cell__audit_log_open(&log, &way->audit, way->err) : 0;
	if (way->rc < 0)
		close(way->options.listen_fd);
	else
		way->rc = cell__egress_create(&way->options, &way->egress, way->err);
}

static void handle_log_closed(void *arg)
{
	cell__waiter_signal(&((struct way_out *)arg)->closed);
}

/* Connections that end now are recorded as well. */
static void close_way_out(struct cell__task *task)
{
	struct way_out *way = (struct way_out *)task;
	cell__egress_close(way->egress);
	if (way->audit)
		cell__audit_log_close(way->audit, handle_log_closed, way);
	else
		handle_log_closed(way);
}

/* The log can be written. */
static int check_log(const char *path, struct cell_error *err)
{
	struct cell__audit_file file;
	cell__audit_file_init(&file, path);
	int rc = file.path ? cell__audit_file_open(&file) : ENOMEM;
	cell__audit_file_finish(&file);
	return rc ? cell_fail(err, CELL_E_IO, rc, "the audit log %.160s", path) : 0;
}

/* Is the proxy while the command runs. */
static int wait_as_proxy(struct command *command, struct child *child, int pid, int report_fd, int listener, const char *audit,
			 char *const argv[], int *ret_status, struct cell_error *err)
{
	struct way_out way = { .closing.fn = close_way_out,
			       .options = { .listen_fd = listener,
					    .hosts = &command->policy.hosts,
					    .more_hosts = command->index_hosts,
					    .tell = tell,
					    .arg = &way },
			       .audit_path = audit,
			       .err = err };
	int status;
	cell__random_hex(way.id, 32);
	bool looped = cell__loop_create(&way.loop, err) == 0;
	if (looped) {
		way.options.loop = way.loop;
		cell__loop_call(way.loop, open_way_out, &way);
	} else {
		close(listener);
		way.rc = -1;
	}
	if (way.rc < 0)
		kill(pid, SIGKILL); /* pid 1 of all that is in there */
	int rc = wait_child(command, child, pid, report_fd, argv, &status, way.rc < 0 ? NULL : err);
	if (way.rc == 0)
		*ret_status = status;
	if (looped) {
		cell__waiter_init(&way.closed);
		cell__loop_do(way.loop, &way.closing, &way.closed);
		cell__waiter_finish(&way.closed);
		cell__loop_destroy(way.loop);
	}
	return way.rc < 0 ? -1 : rc;
}

static int make_env(const char *const *extra, const struct cell__sandbox_policy *policy, char ***ret_env, struct cell_error *err)
{
	size_t n = 0, at = 0;
	while (extra && extra[n])
		n++;
	static const char *const proxy_env[] = { CELL_EGRESS_ENV };
	bool filtered = policy->network == CELL_NET_ALLOW || policy->network == CELL_NET_DEPS;
	size_t n_proxy = filtered ? sizeof proxy_env / sizeof *proxy_env : 0;
	const char **env = cell__alloc(n + n_proxy + policy->env.count + 4, sizeof *env);
	if (!env)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	env[at++] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	env[at++] = "HOME=" CELL_PLAN_HOME;
	env[at++] = "LANG=C.UTF-8";
	for (size_t i = 0; i < n_proxy; i++)
		env[at++] = proxy_env[i];
	for (size_t i = 0; i < policy->env.count; i++)
		env[at++] = policy->env.items[i];
	for (size_t i = 0; i < n; i++)
		env[at++] = extra[i];
	*ret_env = (char **)env;
	return 0;
}

int cell_sandbox_run(const struct cell_sandbox_options *opts, char *const argv[], int *ret_status, struct cell_error *err)
{
	if (cell__require(err, argv, ret_status) < 0)
		return -1;
	struct cell_sandbox_options all;
	struct command command = { 0 };
	CELL_AUTO_FREE char **envp = NULL;
	int report[2] = { -1, -1 }, lines[2] = { -1, -1 }, rc = -1;
	if (take_options(opts, &all, err) < 0)
		return -1;
	if (!argv[0])
		return cell_fail(err, CELL_E_INVALID, 0, "argv is empty: it must contain a command");
	if (command_init(&command, &all, false, err) < 0 || make_env(all.env, &command.policy, &envp, err) < 0)
		goto out;
	if (all.audit && check_log(all.audit, err) < 0)
		goto out;
	bool filtered = command.policy.network == CELL_NET_ALLOW || command.policy.network == CELL_NET_DEPS;
	if (pipe2(report, O_CLOEXEC) < 0 || (filtered && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, lines) < 0)) {
		cell_fail(err, CELL_E_IO, errno, "make a pipe");
		goto out;
	}
	struct child child = {
		.apply = { .plan = (const struct cell_plan *)command.plan.data,
			   .session = (const struct cell_plan *)command.session.data,
			   .keep = { report[1] },
			   .n_keep = 1,
			   .landlock_fd = -1 },
		.cwd = command.cwd,
		.argv = argv,
		.envp = envp,
		.report_fd = report[1],
		.listen_fd = lines[1],
	};
	char name[64];
	snprintf(name, sizeof name, "workcell-%d-command", (int)getpid());
	rc = cell__cgroup_make(&cell__machine_here()->cgroups, name, &child.apply.plan->limits, &child.group);
	if (rc < 0) {
		rc = cell_fail(err, CELL_E_SANDBOX, -rc, "set the sandbox's limits");
		goto out;
	}
	int pid = start_child(&child, err);
	cell__close_fd(&report[1]);
	cell__close_fd(&lines[1]);
	int listener = pid < 0 || !filtered ? -1 : take_listener(lines[0]);
	if (pid < 0) {
		(void)cell__cgroup_remove(&child.group);
		rc = -1;
	} else if (listener >= 0) {
		rc = wait_as_proxy(&command, &child, pid, report[0], listener, all.audit, argv, ret_status, err);
	} else {
		rc = wait_child(&command, &child, pid, report[0], argv, ret_status, err);
	}
out:
	cell__close_fd(&report[0]);
	cell__close_fd(&report[1]);
	cell__close_fd(&lines[0]);
	cell__close_fd(&lines[1]);
	command_finish(&command);
	return rc;
}
