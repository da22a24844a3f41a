/*
 * Command-line tools: one process for a call.
 *
 *     waiting ──a process may start──▶ starting: its files are looked up (pool) ──▶ running ──exited()──▶ answered
 *        └───────────── cancel ────────────┴────────────────────────────────────────┴──▶ abandoned
 *
 * At most CELL_TOOL_LIMIT_PROCESSES start or run at once; the others wait in the order of their calls, and their timeout has not begun.
 * The environment, which may hold secrets, is made when the start begins and wiped when the process has started.
 *
 * For an untrusted caller the process is confined like the caller's code (confine.c), and its program must not be a file of the code's.
 * That check, and opening arguments that are files, may block: the pool does both, and hands descriptors back, so that no path is looked up
 * again.  Without either the process starts at once.  Processes of one session start in the order of their calls.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/hole.h"
#include "spawn/confinement.h"
#include "tools/internal.h"

/* A start: on the pool, or looked up.  It owns all that the pool uses, because its call may be cancelled meanwhile. */
struct start {
	uv_work_t work;
	struct cli *cli; /* NULL: cancelled */
	struct cell__tools *tools;
	struct cell__tool_entry *tool; /* a reference */
	struct cell__program_caller caller; /* with a reference to the confinement */
	struct cell__argv argv;
	char *cwd, *workspace;
	char **env;
	int fds[CELL_PROCESS_FDS];
	size_t n_fds;
	bool looked;
	int code; /* it cannot start; 0: it can */
	struct cell__buf why;
};

struct cli {
	struct cell__tool_run *run;
	struct cell__argv argv;        /* until the start */
	struct start *start;           /* NULL: waiting, or running */
	struct cell__process *process; /* NULL: not running yet */
	struct cell__buf out[2];       /* the head of stdout, stderr */
	uint64_t total[2];
	struct cli *next;              /* waiting or starting after us */
};

static void start_waiting(struct cell__tools *tools);

static void destroy_cli(struct cli *cli)
{
	cell__argv_finish(&cli->argv);
	cell__buf_finish(&cli->out[0]);
	cell__buf_finish(&cli->out[1]);
	free(cli);
}

static bool is_confined(const struct cell__tool_run *run)
{
	return run->code && !run->tool->host && !is_hole("tools");
}

/* ---- the environment ---- */

static void free_env(char **env)
{
	for (size_t i = 0; env && env[i]; i++)
		cell__secret_free(env[i]);
	free(env);
}

static int set_var(char **env, size_t *count, const char *key, const char *value)
{
	struct cell__buf line = CELL_BUF_INIT;
	if (cell__buf_reserve(&line, strlen(key) + strlen(value) + 1) < 0 || cell__buf_printf(&line, "%s=%s", key, value) < 0) {
		cell__buf_finish(&line);
		return -1;
	}
	size_t n = strlen(key) + 1, at = 0;
	while (at < *count && strncmp(env[at], line.data, n) != 0)
		at++;
	if (at == *count)
		++*count;
	else
		cell__secret_free(env[at]);
	env[at] = line.data;
	return 0;
}

/* "K=V" */
static int add_line(char **env, size_t *count, const char *line)
{
	CELL_AUTO_FREE char *key = cell__strndup(line, strcspn(line, "="));
	return key ? set_var(env, count, key, strchr(line, '=') + 1) : -1;
}

static char *env_path(char *const *env)
{
	static char none[1];
	for (; *env; env++)
		if (strncmp(*env, "PATH=", 5) == 0)
			return *env + 5;
	return none;
}

static int build_env(struct cell__tool_run *run, char ***ret_env, struct cell__buf *why)
{
	const struct cell__tool_entry *tool = run->tool;
	size_t count = 0, n_more = 0;
	const char *const *more = is_confined(run) ? cell__confinement_env(run->code) : NULL;
	while (more && more[n_more])
		n_more++;
	char **env = cell__alloc(tool->env.count + n_more + 4, sizeof *env);
	int rc = env ? 0 : -1;
	if (rc == 0)
		rc = set_var(env, &count, "PATH", run->tools->path) |
		     set_var(env, &count, "HOME", cell__program_home(run->tools, !run->code)) | set_var(env, &count, "LANG", "C.UTF-8");
	for (size_t i = 0; rc == 0 && i < n_more; i++)
		rc = add_line(env, &count, more[i]);
	for (size_t i = 0; rc == 0 && i < tool->env.count; i++) {
		char *value = NULL;
		rc = cell__vars_expand(tool->env.list[i].value, &run->tools->opts, &run->secrets, &value, why);
		if (rc == 0)
			rc = set_var(env, &count, tool->env.list[i].key, value);
		cell__secret_free(value);
	}
	if (rc < 0) {
		if (why->size == 0)
			cell__buf_add_str(why, "out of memory");
		free_env(env);
		return -1;
	}
	*ret_env = env;
	return 0;
}

/* ---- output and exit ---- */

static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct cli *cli = owner;
	int i = stream == CELL_STDERR;
	cli->total[i] += size;
	size_t room = cli->run->tool->max_output - cli->out[i].size;
	/* Without memory the text ends here, and the marker says so. */
	cell__buf_add(&cli->out[i], bytes, size < room ? size : room);
}

/* The head of a stream as UTF-8, and a word about the rest. */
static int add_stream(struct cell__buf *text, const struct cli *cli, int i, size_t limit,
		      int (*add)(struct cell__buf *, const char *, size_t))
{
	size_t kept = cli->out[i].size < limit ? cli->out[i].size : limit;
	int rc = add(text, cli->out[i].data, kept);
	if (cli->total[i] > kept)
		rc |= cell__buf_printf(text, "\n[... %llu bytes left out ...]\n", (unsigned long long)(cli->total[i] - kept));
	return rc;
}

static void answer_output(struct cell__tool_run *run, const struct cli *cli)
{
	const struct cell__buf *out = &cli->out[0];
	if (cli->total[0] == out->size && cell__utf8_ok(out->data, out->size)) {
		cell__tool_run_answer_raw(run, "text", out->data ? out->data : "", out->size);
		return;
	}
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (add_stream(&text, cli, 0, run->tool->max_output, cell__buf_add_utf8) < 0)
		cell__tool_run_fail(run, CELL_E_NOMEM, "out of memory");
	else
		cell__tool_run_answer_raw(run, "text", text.data, text.size);
}

/* The command failed: its status, then its output. */
static void fail_command(struct cell__tool_run *run, const struct cli *cli, const struct cell__process_exit *how)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	int rc;
	if (how->signalled)
		rc = cell__buf_printf(&text, "Command was killed by signal %d (%s)", how->status,
				      sigdescr_np(how->status) ? sigdescr_np(how->status) : "unknown");
	else
		rc = cell__buf_printf(&text, "Command failed with exit code %d", how->status);
	if (cli->total[1] > 0)
		rc |= cell__buf_add_str(&text, ": ") | add_stream(&text, cli, 1, CELL_TOOL_LIMIT_ERROR_TEXT, cell__buf_add_quote);
	if (cli->total[0] > 0)
		rc |= cell__buf_add_str(&text, text.data[text.size - 1] == '\n' ? "stdout:\n" : "\nstdout:\n") |
		      add_stream(&text, cli, 0, CELL_TOOL_LIMIT_ERROR_TEXT, cell__buf_add_quote);
	while (text.size > 0 && text.data[text.size - 1] == '\n')
		text.data[--text.size] = '\0';
	cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "%s", rc < 0 ? "Command failed" : text.data);
}

/* It never ran. */
static void fail_start(struct cell__tool_run *run, const struct cell__process_exit *how, const char *path)
{
	static const char advice[] = "it is not visible in the calling code's sandbox; list it under read: in the sandbox policy, or set "
				     "`host: true` in the tool's definition to run it on the host";
	const char *command = run->tool->command, *cwd = run->tool->cwd ? run->tool->cwd : run->cwd;
	int sys = how->error;
	bool hidden = is_confined(run) && (sys == ENOENT || sys == EACCES || sys == ENOTDIR);
	if (how->failure.code)
		cell__tool_run_fail(run, how->failure.code, "%s", how->failure.msg);
	else if (how->bad_cwd && hidden)
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "it cannot run in '%s': %s", cwd, advice);
	else if (how->bad_cwd)
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "the working directory '%s' does not exist", cwd);
	else if (hidden)
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "its program '%s' was not found: %s", command, advice);
	else if (sys == ENOENT && !strchr(command, '/'))
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "command '%s' not found in PATH (%s)", command, path);
	else
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "command '%s' cannot be started: %s", command,
				    strerrordesc_np(sys) ? strerrordesc_np(sys) : "unknown error");
}

static const char *search_path(const struct cell__tool_run *run)
{
	for (size_t i = 0; i < run->tool->env.count; i++)
		if (strcmp(run->tool->env.list[i].key, "PATH") == 0)
			return run->tool->env.list[i].value;
	return run->tools->path;
}

static void handle_exited(void *owner, const struct cell__process_exit *how)
{
	struct cli *cli = owner;
	struct cell__tool_run *run = cli->run;
	struct cell__tools *tools = run->tools;
	run->state = NULL;
	tools->n_processes--;
	if (how->error != 0)
		fail_start(run, how, search_path(run));
	else if (how->timed_out)
		cell__tool_run_timed_out(run, cell__tool_run_timeout_ms(run));
	else if (how->signalled || how->status != 0)
		fail_command(run, cli, how);
	else
		answer_output(run, cli);
	destroy_cli(cli);
	start_waiting(tools);
}

/* ---- on the pool ---- */

/* Words that are files become descriptors, numbered as the program gets them. */
static int open_paths(struct start *start)
{
	struct cell__argv *argv = &start->argv;
	for (size_t i = 0; i < argv->n_paths; i++) {
		char **word = &argv->list[argv->paths[i].at], *name = NULL;
		struct cell__buf number = CELL_BUF_INIT;
		if (cell__path_arg_open(&start->caller, argv->paths[i].param, *word, &start->fds[start->n_fds], &name, &start->why) < 0)
			return -1;
		if (!name && cell__buf_printf(&number, "/proc/self/fd/%zu", 3 + start->n_fds++) == 0)
			name = number.data;
		if (!name)
			return -1;
		free(*word);
		*word = name;
	}
	return 0;
}

static void look_up(uv_work_t *work)
{
	struct start *start = work->data;
	const struct cell__confinement *code = start->caller.code;
	char *path = env_path(start->env);
	if (code)
		cell__program_clean_path(code, path);
	if ((code && cell__program_check(code, start->tool->command, path, start->cwd, &start->why) < 0) || open_paths(start) < 0)
		start->code = CELL_TOOL_E_ARGS;
}

/* ---- start and cancel ---- */

static void destroy_start(struct start *start)
{
	for (size_t i = 0; i < CELL_PROCESS_FDS; i++)
		cell__close_fd(&start->fds[i]);
	cell__argv_finish(&start->argv);
	cell__tool_unref(start->tool);
	cell__confinement_unref(start->caller.code);
	free_env(start->env);
	free(start->cwd);
	free(start->workspace);
	cell__buf_finish(&start->why);
	free(start);
}

static void append(struct cell__cli_queue *queue, struct cli *cli)
{
	if (queue->last)
		((struct cli *)queue->last)->next = cli;
	else
		queue->first = cli;
	cli->next = NULL;
	queue->last = cli;
}

static void leave(struct cell__cli_queue *queue, struct cli *cli)
{
	struct cli *before = NULL;
	for (struct cli *at = queue->first; at && at != cli; at = at->next)
		before = at;
	if (before)
		before->next = cli->next;
	else
		queue->first = cli->next;
	if (queue->last == cli)
		queue->last = before;
}

/* NULL: it cannot start, and the run has failed. */
static struct start *make_start(struct cli *cli)
{
	struct cell__tool_run *run = cli->run;
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	int code = CELL_TOOL_E_ARGS;
	struct start *start = cell__alloc(1, sizeof *start);
	if (start) {
		memset(start->fds, -1, sizeof start->fds);
		start->work.data = start;
		start->cli = cli;
		start->tools = run->tools;
		start->tool = cell__tool_ref(run->tool);
		start->workspace = cell__strdup(run->cwd);
		start->caller = (struct cell__program_caller){ .code = cell__confinement_ref(run->code),
							       .host = run->tool->host,
							       .cwd = start->workspace };
		start->argv = cli->argv;
		cli->argv = (struct cell__argv){ 0 };
		start->cwd = cell__program_cwd(run->code, run->tool->host, run->tool->cwd, run->cwd, &why);
		if (start->cwd)
			code = CELL_TOOL_E_FAILED;
		if (start->cwd && start->workspace && build_env(run, &start->env, &why) == 0)
			return start;
		destroy_start(start);
	}
	run->state = NULL;
	cell__tool_run_fail(run, code, "%s", why.size ? why.data : "out of memory");
	destroy_cli(cli);
	return NULL;
}

static void start_process(struct cli *cli, struct start *start)
{
	struct cell__tool_run *run = cli->run;
	struct cell__process_spec spec = {
		.argv = (const char *const *)start->argv.list,
		.env = (const char *const *)start->env,
		.fds = start->fds,
		.n_fds = start->n_fds,
		.path = env_path(start->env),
		.cwd = start->cwd,
		.timeout_ms = cell__tool_run_timeout_ms(run),
		.confine = is_confined(run) ? run->code : NULL,
		.output = handle_output,
		.exited = handle_exited,
		.owner = cli,
	};
	struct cell_error err = { 0 };
	if (start->code == 0 && cell__process_start(run->tools->opts.supervisor, &spec, &cli->process, &err) < 0) {
		cell__buf_add_str(&start->why, err.msg);
		start->code = err.code == CELL_E_UNAVAILABLE ? CELL_E_UNAVAILABLE : CELL_TOOL_E_FAILED;
	}
	if (start->code == 0)
		return;
	run->state = NULL;
	run->tools->n_processes--;
	cell__tool_run_fail(run, start->code, "%s", start->why.size ? start->why.data : "out of memory");
	destroy_cli(cli);
}

/* Whether an earlier call of the same session has not started its process yet. */
static bool is_behind(const struct cell__tools *tools, const struct cli *cli)
{
	const char *session = cli->run->call->session_id;
	for (const struct cli *at = tools->cli_starting.first; session && *session && at != cli; at = at->next)
		if (at->run->call->session_id && strcmp(at->run->call->session_id, session) == 0)
			return true;
	return false;
}

/* Starts the processes whose files have been looked up and whose turn it is. */
static void start_looked_up(struct cell__tools *tools)
{
	struct cli *cli = tools->cli_starting.first;
	while (cli) {
		if (!cli->start->looked || is_behind(tools, cli)) {
			cli = cli->next;
			continue;
		}
		struct start *start = cell__take_ptr(cli->start);
		leave(&tools->cli_starting, cli);
		start_process(cli, start);
		destroy_start(start);
		cli = tools->cli_starting.first; /* the list may be another now */
	}
}

static void handle_looked_up(uv_work_t *work, int status)
{
	struct start *start = work->data;
	struct cell__tools *tools = start->tools;
	(void)status; /* never cancelled */
	start->looked = true;
	if (start->cli) {
		start_looked_up(tools);
		start_waiting(tools);
	} else {
		destroy_start(start);
	}
	cell__tools_left_pool(tools);
}

static void start_one(struct cell__tools *tools, struct cli *cli)
{
	struct start *start = make_start(cli);
	if (!start)
		return;
	cli->start = start;
	tools->n_processes++;
	append(&tools->cli_starting, cli);
	if (start->caller.code || start->argv.n_paths > 0) {
		tools->on_pool++;
		uv_queue_work(cell__loop_uv(tools->opts.loop), &start->work, look_up, handle_looked_up);
	} else {
		start->looked = true;
		start_looked_up(tools);
	}
}

static void start_waiting(struct cell__tools *tools)
{
	while (tools->cli_waiting.first && tools->n_processes < CELL_TOOL_LIMIT_PROCESSES) {
		struct cli *cli = tools->cli_waiting.first;
		leave(&tools->cli_waiting, cli);
		start_one(tools, cli);
	}
}

static void start(struct cell__tool_run *run, json_t *args)
{
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	struct cell__tools *tools = run->tools;
	struct cli *cli = cell__alloc(1, sizeof *cli);
	if (!cli) {
		cell__tool_run_fail(run, CELL_E_NOMEM, "out of memory");
		return;
	}
	if (cell__argv_build(run->tool, run->callable, args, &cli->argv, &why) < 0) {
		free(cli);
		cell__tool_run_fail(run, CELL_TOOL_E_ARGS, "%s", why.size ? why.data : "out of memory");
		return;
	}
	cli->run = run;
	run->state = cli;
	append(&tools->cli_waiting, cli);
	start_waiting(tools);
}

static void cancel(struct cell__tool_run *run)
{
	struct cli *cli = cell__take_ptr(run->state);
	struct cell__tools *tools = run->tools;
	if (cli->process) {
		cell__process_abandon(cli->process);
		tools->n_processes--;
	} else if (cli->start) {
		leave(&tools->cli_starting, cli);
		tools->n_processes--;
		if (cli->start->looked)
			destroy_start(cli->start);
		else
			cli->start->cli = NULL; /* the pool still uses it */
	} else {
		leave(&tools->cli_waiting, cli);
	}
	destroy_cli(cli);
	if (!tools->closing) {
		start_looked_up(tools);
		start_waiting(tools);
	}
}

/* Also with host: true: the program must not depend on files that the code can write to. */
static bool confines(const struct cell__tool_entry *tool)
{
	(void)tool;
	return true;
}

const struct cell__tool_adapter cell__tool_cli = { .name = "cli", .start = start, .cancel = cancel, .confines = confines };
