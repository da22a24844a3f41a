/*
 * `workcell serve`: the library's session server with the common flags.
 *
 * The configuration comes from four sources, of which later ones win: defaults, the environment, --config FILE, the command line. The two
 * in the middle become arguments like those of the command line (cmd_serve_config.c), and the same table reads them all; SIGHUP does that
 * again and applies the limits.
 */
#define _GNU_SOURCE 1
#include "serve.h"

#include "listen.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define TOKEN_VARIABLE "WORKCELL_SERVE_TOKEN"
#define OLD_TOKEN_VARIABLE "CONTAINER_AUTH_TOKEN"
#define WORK_PREFIX "workcell-serve-"
#define FIRST_GIVEN_FD 3 /* of sockets that systemd opened */

struct serve_flags {
	struct cell_cli_session_flags session;
	struct cell_cli_listen_flags http;
	struct cell_cli_list deps;
	const char *config, *log_level, *otlp, *e2b_domain, *advertise;
	int64_t workers;
	int64_t max_runs, max_queue, max_timeout_ms, max_artifact, max_file, drain_ms, drain_delay_ms, execute_idle_ms;
	bool check_config, in_container, sandbox_fusion, e2b, e2b_debug, console, otlp_code, hold_workers;
};

#define DEFAULTS cell__cli_server_defaults
#define SERVE_FLAGS_INIT                                                                       \
	{ .session = CELL_CLI_SESSION_FLAGS_INIT(4),                                           \
	  .http = CELL_CLI_LISTEN_FLAGS_INIT(DEFAULTS.max_sessions, DEFAULTS.max_connections), \
	  .workers = 0,                                                                        \
	  .max_runs = DEFAULTS.max_runs,                                                       \
	  .max_queue = DEFAULTS.max_queue,                                                     \
	  .max_timeout_ms = DEFAULTS.max_timeout_ms,                                           \
	  .max_artifact = DEFAULTS.max_artifact_bytes,                                         \
	  .max_file = DEFAULTS.max_file_bytes,                                                 \
	  .drain_ms = DEFAULTS.drain_ms,                                                       \
	  .execute_idle_ms = DEFAULTS.execute_idle_ms }

#define AT(member) offsetof(struct serve_flags, member)
static const struct cell_cli_flag serve_flag_table[] = {
	{ 0, "config", "FILE", "YAML file with these flags as keys, without the dashes", CELL_FLAG_STRING, AT(config) },
	{ 0, "listen", "ADDRESS", "HOST:PORT, unix:PATH or fd:N, a socket that listens (default: systemd's, else 127.0.0.1:8080)",
	  CELL_FLAG_STRING, AT(http.listen) },
	{ 0, "auth-token-file", "FILE", "a token, or a list of tokens with scopes (default: $" TOKEN_VARIABLE ")", CELL_FLAG_STRING,
	  AT(http.token_file) },
	{ 0, "allow-host", "HOST", "with --auth-disabled: allow this value of the Host header too; may be repeated", CELL_FLAG_LIST,
	  AT(http.hosts) },
	CELL_CLI_LISTEN_FLAGS(AT(http)),
	{ 0, "advertise", "URL",
	  "http://ADDRESS:PORT at which other servers with the same --saved reach this one, to pass requests for its sessions on",
	  CELL_FLAG_STRING, AT(advertise) },
	{ 0, "workers", "N", "number of processes that serve, each with its sessions; 0: one per core", CELL_FLAG_COUNT, AT(workers) },
	{ 0, "hold-workers", NULL, "keep each worker, with its sessions, on a core of its own: for many short cells", CELL_FLAG_SWITCH,
	  AT(hold_workers) },
	{ 0, "session-idle", "SEC", "end an unused session after this many seconds; 0: never", CELL_FLAG_SECONDS, AT(http.idle_ms) },
	{ 0, "execute-idle", "SEC", "the same for a session that POST /execute made, until a request names it; 0: never", CELL_FLAG_SECONDS,
	  AT(execute_idle_ms) },
	{ 0, "max-runs", "N", "number of cells that run at once", CELL_FLAG_COUNT, AT(max_runs) },
	{ 0, "max-queue", "N", "number of cells that may wait; more are refused", CELL_FLAG_COUNT, AT(max_queue) },
	{ 0, "max-timeout", "SEC", "longest timeout of a cell that a client may set; 0: any", CELL_FLAG_SECONDS, AT(max_timeout_ms) },
	{ 0, "max-artifact", "BYTES", "maximum size of an artifact that a client can load", CELL_FLAG_BYTES, AT(max_artifact) },
	{ 0, "max-file", "BYTES", "maximum size of a file or archive that a client writes to a session's workspace", CELL_FLAG_BYTES,
	  AT(max_file) },
	{ 0, "drain-delay", "SEC", "seconds to go on serving after SIGTERM while /ready says \"draining\", for load balancers (default 0)",
	  CELL_FLAG_SECONDS, AT(drain_delay_ms) },
	{ 0, "drain", "SEC", "seconds that cells may take to end when the server stops", CELL_FLAG_SECONDS, AT(drain_ms) },
	{ 0, "log-level", "LEVEL", "info (a line per request), warning or error (default info)", CELL_FLAG_STRING, AT(log_level) },
	{ 0, "sandbox-fusion", NULL, "answer POST /run_code as SandboxFusion does: programs in fresh, confined processes", CELL_FLAG_SWITCH,
	  AT(sandbox_fusion) },
	CELL_CLI_ZYGOTE_FLAGS(offsetof(struct serve_flags, session)),
	{ 0, "dep", "SPEC", "add this package to the storage's and install it before serving; may be repeated", CELL_FLAG_LIST, AT(deps) },
	{ 0, "e2b", NULL, "serve clients of E2B too, on the same address and with the same tokens (docs/e2b.md)", CELL_FLAG_SWITCH,
	  AT(e2b) },
	{ 0, "e2b-domain", "NAME[:PORT]", "where clients of E2B reach sandboxes without E2B_SANDBOX_URL: https://49999-ID.NAME:PORT",
	  CELL_FLAG_STRING, AT(e2b_domain) },
	{ 0, "e2b-debug", NULL,
	  "serve clients of E2B in their debug mode (E2B_DEBUG) too, at the ports 3000, 49983 and 49999; needs --auth-disabled",
	  CELL_FLAG_SWITCH, AT(e2b_debug) },
	{ 0, "console", NULL, "serve the console for browsers at /console/ (docs/console.md)", CELL_FLAG_SWITCH, AT(console) },
	{ 0, "otlp", "URL",
	  "send spans and metrics to this receiver of OpenTelemetry (default $OTEL_EXPORTER_OTLP_ENDPOINT; docs/traces.md)",
	  CELL_FLAG_STRING, AT(otlp) },
	{ 0, "otlp-code", NULL, "with the code of cells, not only its hash", CELL_FLAG_SWITCH, AT(otlp_code) },
	{ 0, "in-container", NULL,
	  "for the host's own containers: mark stored data as made by confined code; remove token and "
	  "configuration files once read",
	  CELL_FLAG_SWITCH, AT(in_container) },
	{ 0, "check-config", NULL, "check the configuration and exit", CELL_FLAG_SWITCH, AT(check_config) },
	CELL_CLI_RECORD_FLAG(offsetof(struct serve_flags, session), "DIR", "write a recording of each session to ID.jsonl in this folder"),
	CELL_CLI_SESSION_FLAGS_OF(offsetof(struct serve_flags, session), "sandbox where it works, else subprocess"),
	{ 0 },
};

const struct cell_cli_command cell__cli_serve_command = {
	.name = "serve",
	.summary = "the session server: sessions over HTTP",
	.synopsis = "[flags]",
	.about = "Serves sessions to clients with a token (docs/server.md).  The default executor is sandbox where it works.\n"
		 "SIGHUP reloads tokens, limits and the certificate; SIGTERM lets running cells end and stops; a second SIGTERM "
		 "stops at once.",
	.examples = "  workcell serve --base ~/agent --auth-token-file token\n"
		    "  workcell serve --config serve.yaml --check-config",
	.flags = serve_flag_table,
	.run = cell__cmd_serve,
};

const struct cell_cli_command cell__cli_console_command = {
	.name = "console",
	.summary = "the session server for one person, with its console in the browser",
	.synopsis = "[flags]",
	.about =
		"Starts a session server on a free port of this machine, prints a link that logs a browser in once, and opens it if there is a\n"
		"desktop.  The flags are those of `workcell serve`, with --console.  Without a token a random one is made, which is gone with the\n"
		"server.  Ctrl-C ends it.",
	.examples = "  workcell console --base ~/agent\n"
		    "  workcell console --base ~/agent --approve ask --listen 127.0.0.1:8081",
	.flags = serve_flag_table,
	.run = cell__cmd_console,
};

/* ---- data that lives as long as the program ----------------------------------------------- */

static struct {
	int argc;
	char **argv;
	struct cell_server *server;
	struct cell_server_pool *pool; /* of a worker; it goes with the process, because a worker may not destroy it */
	struct serve_flags *flags;
	struct cell_cli_host *host;
	struct cell_cli_session_options *session;
	const json_t *servers; /* of MCP, by name */
	char *work_dir, *tools, *token;
	const char *given; /* the address of a socket that systemd opened; or NULL */
	int work_fd;
	int worker, ready_fd; /* one of several processes that serve; -1: there is only this */
	bool is_successor; /* of a worker that died */
	const struct cell_cli_command *command;
	char own_token[65], code[33]; /* of `workcell console` */
} live = { .work_fd = -1, .worker = -1, .ready_fd = -1, .command = &cell__cli_serve_command };

static void limits_of(const struct serve_flags *flags, struct cell_server_limits *limits)
{
	*limits = (struct cell_server_limits)CELL_SERVER_LIMITS_INIT;
	cell__cli_listen_limits(&flags->http, limits);
	limits->max_runs = flags->max_runs;
	limits->execute_idle_ms = flags->execute_idle_ms;
	limits->max_queue = flags->max_queue;
	limits->max_timeout_ms = flags->max_timeout_ms;
	limits->max_artifact_bytes = flags->max_artifact;
	limits->max_file_bytes = flags->max_file;
	limits->drain_ms = flags->drain_ms < 0 ? 0 : flags->drain_ms; /* 0 s became -1 */
	limits->drain_delay_ms = flags->drain_delay_ms < 0 ? 0 : flags->drain_delay_ms;
}

static void flags_finish(struct serve_flags *flags)
{
	cell__cli_list_finish(&flags->session.env);
	cell__cli_listen_flags_finish(&flags->http);
	cell__cli_list_finish(&flags->deps);
}

static int reload(void *arg, struct cell_server_limits *limits, struct cell_error *err)
{
	struct serve_flags flags = SERVE_FLAGS_INIT;
	struct cell_serve_arguments arguments = { .quiet = true };
	int status;

	(void)arg;
	if (cell__serve_gather(live.argc, live.argv, &arguments, err) < 0) {
		cell__serve_arguments_finish(&arguments);
		return -1;
	}
	if (cell__cli_parse(live.command, arguments.count, arguments.list, &flags, NULL, &status)) {
		limits_of(&flags, limits);
		status = 0;
	} else {
		status = cell_fail(err, CELL_E_INVALID, 0, "the configuration is not valid");
	}
	flags_finish(&flags);
	cell__serve_arguments_finish(&arguments);
	return status;
}

static int call_deps(struct cell_space *space, const char *operation, json_t *args, json_t **ret_answer, struct cell_error *err)
{
	char *text = args ? json_dumps(args, JSON_COMPACT) : NULL, *answer = NULL;
	int status = text ? cell_space_call(space, operation, text, NULL, 0, &answer, NULL, NULL, err)
			  : cell_fail(err, CELL_E_INVALID, 0, "a package's name is not UTF-8");

	if (!status && ret_answer && !(*ret_answer = json_loads(answer, JSON_DECODE_ANY, NULL)))
		status = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the packages");
	json_decref(args);
	free(text);
	free(answer);
	return status;
}

static bool is_listed(const json_t *list, const char *spec)
{
	size_t i;
	json_t *one;

	json_array_foreach((json_t *)list, i, one) {
		if (!strcmp(json_string_value(one), spec))
			return true;
	}
	return false;
}

/* The first package that could not be installed, with the installer's message in one line. */
static int check_synced(const json_t *answer, struct cell_error *err)
{
	const char *spec = json_string_value(json_array_get(json_object_get(answer, "failed"), 0));
	const char *words = spec ? json_string_value(json_object_get(json_object_get(answer, "errors"), spec)) : NULL;

	if (!spec)
		return 0;
	cell_fail(err, CELL_E_INSTALL, 0, "cannot install %.60s: %s", spec, words ? words : "no reason was given");
	for (char *end = strchr(err->msg, '\n'); end; end = strchr(end, '\n'))
		*end = ' ';
	return -1;
}

/* Costs nothing if nothing has changed. */
static int sync_space(struct cell_space *space, struct cell_error *err)
{
	json_t *synced = NULL;
	int status = 0;

	if ((live.flags->session.space.sync_deps || live.flags->deps.count) && strcmp(live.session->options.executor, "container"))
		status = call_deps(space, "deps.sync", json_pack("{s:b}", "quick", 1), &synced, err);
	if (!status)
		status = check_synced(synced, err);
	json_decref(synced);
	return status;
}

/* A server starts when it is first used. */
static int add_servers(struct cell_space *space, struct cell_error *err)
{
	const char *name;
	json_t *params;
	int status = 0;

	json_object_foreach((json_t *)live.servers, name, params) {
		char *text = json_dumps(params, JSON_COMPACT);

		status = text ? cell_space_add_mcp(space, name, text, err)
			      : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for %.60s", name);
		free(text);
		if (status < 0)
			return cell_fail(err, err->code, 0, "MCP server '%.60s' of TOOLS_CONFIG: %s", name, strdupa(err->msg));
	}
	return 0;
}

/* For --check-config: starts nothing, and touches no storage. */
static int check_servers(struct cell_error *err)
{
	struct cell_engine_options engine_options = CELL_ENGINE_OPTIONS_INIT;
	struct cell_space_options space_options = CELL_SPACE_OPTIONS_INIT;
	struct cell_engine *engine;
	struct cell_space *space;
	int status;

	if (!json_object_size(live.servers))
		return 0;
	engine_options.pool_size = 0;
	if (cell_engine_create(&engine_options, &engine, err) < 0)
		return -1;
	status = cell_space_open(engine, &space_options, &space, err);
	if (!status) {
		status = add_servers(space, err);
		cell_space_close(space);
	}
	cell_engine_destroy(engine);
	return status;
}

static int open_space(void *arg, const char *workspace_id, struct cell_space **ret_space, struct cell_error *err)
{
	struct cell_cli_space_flags flags = live.flags->session.space;
	struct cell_space *space;

	(void)arg;
	flags.workspace = workspace_id;
	flags.quiet = true;
	if (cell__cli_space_create(&flags, live.host->engine, live.session->python, live.session->cwd, &space, err) < 0)
		return -1;
	/* A workspace has an environment of its own. */
	if (add_servers(space, err) < 0 || sync_space(space, err) < 0) {
		cell_space_close(space);
		return -1;
	}
	*ret_space = space;
	return 0;
}

/* ---- systemd -------------------------------------------------------------------------- */

/*
 * sd_notify() in short: one datagram to the socket that the service manager names.  Also from signal handlers.  The variables are removed
 * from the environment, so that no program that we start takes itself for the service.
 */
static struct sockaddr_un notify_at;
static socklen_t notify_size;

static void tell_manager(const char *state)
{
	int saved = errno, fd = notify_size ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;

	if (fd >= 0) {
		/* A manager that is not there does not keep us from serving. */
		(void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&notify_at, notify_size);
		close(fd);
	}
	errno = saved;
}

static void find_manager(void)
{
	const char *path = getenv("NOTIFY_SOCKET");
	size_t size = path ? strlen(path) : 0;

	if (size > 1 && size < sizeof(notify_at.sun_path) && (*path == '/' || *path == '@')) {
		notify_at.sun_family = AF_UNIX;
		memcpy(notify_at.sun_path, path, size);
		if (*path == '@')
			notify_at.sun_path[0] = '\0'; /* an abstract name */
		notify_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size);
	}
	unsetenv("NOTIFY_SOCKET");
}

/* The socket of a .socket unit; NULL: there is none. */
static const char *given_socket(struct cell_error *err)
{
	const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
	bool ours = pid && count && strtol(pid, NULL, 10) == getpid();
	long n = ours ? strtol(count, NULL, 10) : 0;

	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	err->code = 0;
	for (long fd = FIRST_GIVEN_FD; fd < FIRST_GIVEN_FD + n && fd < 1024; fd++)
		fcntl((int)fd, F_SETFD, FD_CLOEXEC);
	if (n > 1)
		cell_fail(err, CELL_E_INVALID, 0, "%ld sockets were handed over (LISTEN_FDS); a server listens on one", n);
	return n == 1 ? "fd:3" : NULL;
}

static void say_serving(const char *url)
{
	cell__log_say("workcell: listening on %s\n", url);
	tell_manager("READY=1\nSTATUS=serving");
	if (*live.code)
		cell__console_show(url, live.code);
}

static void say_stopping(void)
{
	tell_manager("STOPPING=1\nSTATUS=waiting for running cells");
}

static void say_listening(void *arg, const char *url)
{
	unsigned char number = (unsigned char)live.worker;

	(void)arg;
	if (live.worker < 0)
		say_serving(url);
	else if (write(live.ready_fd, &number, 1) != 1)
		cell_server_drain(live.server); /* the process that started us is gone */
}

static volatile sig_atomic_t has_to_end; /* set before there is a server to notify */

/*
 * The first process of a container gets only signals that it handles, and the code beside it can send them too. Senders outside have no pid
 * in there.
 */
static void handle_signal(int number, siginfo_t *info, void *context)
{
	(void)context;
	if (number == SIGPIPE || (live.flags && live.flags->in_container && info->si_pid))
		return;
	/* Ctrl-C reaches every process of a terminal; the first one tells its workers, for whom that would be the second time. */
	if (number == SIGINT && live.worker >= 0 && info->si_code == SI_KERNEL)
		return;
	if (!live.server)
		has_to_end |= number != SIGHUP;
	else if (number == SIGHUP)
		cell_server_reload(live.server);
	else
		cell_server_drain(live.server);
	if (number != SIGHUP)
		say_stopping();
}

static void ignore_signal(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)info;
	(void)context;
}

/* Handlers, not a mask and not SIG_IGN: programs that we start must not inherit it. */
static void set_signals(void (*handler)(int number, siginfo_t *info, void *context))
{
	static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGPIPE };
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_RESTART | SA_SIGINFO };

	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (handler == handle_signal || numbers[i] != SIGPIPE)
			sigaction(numbers[i], &action, NULL);
	}
}

/* ---- folders of sessions ----------------------------------------------------------- */

/* Removes folders of servers that were killed: their locks are free. */
static void sweep(const char *temp)
{
	DIR *dir = opendir(temp);
	struct dirent *entry;
	struct stat st;
	char *path;
	int fd;

	while (dir && (entry = readdir(dir))) {
		if (strncmp(entry->d_name, WORK_PREFIX, strlen(WORK_PREFIX)) || asprintf(&path, "%s/%s", temp, entry->d_name) < 0)
			continue;
		fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd >= 0 && !fstat(fd, &st) && st.st_uid == geteuid() && !flock(fd, LOCK_EX | LOCK_NB))
			(void)cell_remove_tree(path, NULL); /* if it fails, the folder stays */
		if (fd >= 0)
			close(fd);
		free(path);
	}
	if (dir)
		closedir(dir);
}

static int make_work_dir(struct cell_error *err)
{
	const char *temp = cell__serve_variable("TMPDIR");

	if (!temp || *temp != '/')
		temp = "/tmp";
	sweep(temp);
	while (live.work_fd < 0) {
		struct stat st;

		free(live.work_dir);
		if (asprintf(&live.work_dir, "%s/" WORK_PREFIX "XXXXXX", temp) < 0) {
			live.work_dir = NULL;
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
		}
		if (!mkdtemp(live.work_dir)) {
			int saved = errno;

			free(live.work_dir);
			live.work_dir = NULL;
			return cell_fail(err, CELL_E_IO, saved, "make a folder in %s", temp);
		}
		live.work_fd = open(live.work_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (live.work_fd < 0 && errno != ENOENT)
			return cell_fail(err, CELL_E_IO, errno, "open %s", live.work_dir);
		/* Until it is locked, another server that starts may take it for an abandoned one. */
		if (live.work_fd >= 0 && !flock(live.work_fd, LOCK_EX) && !fstat(live.work_fd, &st) && !st.st_nlink) {
			close(live.work_fd);
			live.work_fd = -1;
		}
	}
	return 0;
}

/* ---- serve --------------------------------------------------------------------------- */

/* From the file or the environment; a token is never on the command line. */
static int fill_auth(const struct serve_flags *flags, struct cell_server_options *options, struct cell_error *err)
{
	const char *token = cell__serve_variable(TOKEN_VARIABLE), *disabled = cell__serve_variable("CONTAINER_AUTH_DISABLED");

	if (!token)
		token = cell__serve_variable(OLD_TOKEN_VARIABLE);
	options->auth_disabled = flags->http.auth_disabled ||
				 (disabled && !strcasecmp(disabled, "true") && !token && !flags->http.token_file);
	if (!token && *live.own_token && !options->auth_disabled)
		token = live.own_token;
	options->token = flags->http.token_file ? NULL : token;
	if (!options->auth_disabled && !options->token && !options->token_file && !options->oauth_file)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "Server authentication requires --auth-token-file FILE, " TOKEN_VARIABLE ", " OLD_TOKEN_VARIABLE
				 " or --oauth FILE; or --auth-disabled on a loopback address");
	return 0;
}

static int fill_options(const struct serve_flags *flags, struct cell_server_options *options, struct cell_error *err)
{
	if (flags->http.listen && live.given)
		return cell_fail(err, CELL_E_INVALID, 0, "systemd opened a socket for this server: leave --listen out");
	options->listen = flags->http.listen ? flags->http.listen : live.given ? live.given : *live.code ? "127.0.0.1:0" : "127.0.0.1:8080";
	options->reload = reload;
	options->listening = say_listening;
	options->advertise = flags->advertise;
	if (cell__cli_listen_options(&flags->http, flags->log_level ? flags->log_level : "info", options, err) < 0 ||
	    fill_auth(flags, options, err) < 0)
		return -1;
	return cell_server_check(options, err);
}

/* Without an explicit executor: confined, if that works. It is tried in any case. */
static const char *choose_executor(struct cell_engine *engine, const char *asked)
{
	struct cell_executor_info info = { .size = sizeof(info) };
	size_t i = 0;

	while (!cell_executor_probe(engine, i, &info) && strcmp(info.name, "sandbox"))
		i++;
	if (asked)
		return asked;
	if (!strcmp(info.name, "sandbox") && info.available)
		return "sandbox";
	cell__log_say("workcell: warning: the code is not confined: %s\n",
		      strcmp(info.name, "sandbox") ? "built without the sandbox" : info.reason);
	return "subprocess";
}

/* Installs the configured packages before the first session, also if code may not add packages: in a space of our own. */
static int install_deps(const struct serve_flags *flags, const struct cell_cli_host *host, struct cell_error *err)
{
	struct cell_cli_space_flags own = flags->session.space;
	struct cell_space *space = NULL;
	json_t *have = NULL, *missing = json_array();
	int status = 0;

	own.no_runtime_deps = false;
	own.tools = own.base = NULL;
	own.storage = own.storage ? own.storage : flags->session.space.base;
	if (flags->deps.count) {
		status = cell__cli_space_create(&own, host->engine, live.session->python, live.session->cwd, &space, err);
		if (!status)
			status = call_deps(space, "deps.list", json_object(), &have, err);
		for (size_t i = 0; !status && i < flags->deps.count; i++) {
			const char *spec = flags->deps.items[i].value;

			if (!is_listed(have, spec))
				json_array_append_new(missing, json_string(spec));
		}
		if (!status && json_array_size(missing))
			status = call_deps(space, "deps.add", json_pack("{s:O}", "package", missing), NULL, err);
		json_decref(have);
		cell_space_close(space);
	}
	json_decref(missing);
	return status ? status : sync_space(host->space, err);
}

/*
 * The code in a container can write to the folder of the storage. Tools that exist at the start are read-only inside; the code could create
 * a folder of tools later, and the server would run their definitions here.
 */
static int guard_storage(struct serve_flags *flags, char **ret_tools, struct cell_error *err)
{
	struct cell_cli_space_flags *space = &flags->session.space;

	if (!flags->session.executor || strcmp(flags->session.executor, "container"))
		return 0;
	if (!space->base || space->tools)
		return 0;
	if (asprintf(ret_tools, "%s/tools", space->base) < 0) {
		*ret_tools = NULL;
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	}
	if (access(*ret_tools, F_OK) == 0)
		space->tools = *ret_tools;
	if (!space->storage)
		space->storage = space->base;
	space->base = NULL;
	return 0;
}

/* In a container, packages and code run as the user who owns these files: they are removed before. Those of the host contain one token. */
static int take_secrets(struct serve_flags *flags, struct cell_server_options *options, struct cell_error *err)
{
	if (!flags->in_container)
		return 0;
	flags->session.space.confined = true;
	if (options->token_file) {
		size_t size;

		if (cell__cli_read_file(options->token_file, &live.token, &size, err) < 0)
			return -1;
		live.token[strcspn(live.token, "\r\n")] = '\0';
		options->token = live.token;
		options->token_file = NULL;
	}
	if ((flags->http.token_file && unlink(flags->http.token_file) < 0) || (flags->config && unlink(flags->config) < 0))
		return cell_fail(err, CELL_E_IO, errno, "remove %.100s and %.100s",
				 flags->http.token_file ? flags->http.token_file : "no token",
				 flags->config ? flags->config : "no configuration");
	return 0;
}

static int serve(struct serve_flags *flags, struct cell_server_options *options, struct cell_error *err)
{
	const char **deps = NULL;
	struct cell_cli_host host = { 0 };
	struct cell_cli_session_options session;
	struct cell_cli_space_flags *space = &flags->session.space;
	int status = -1;

	const char *secrets[] = { flags->http.token_file, flags->http.tls_cert, flags->http.tls_key, flags->config, flags->http.oauth };

	memcpy(flags->session.secrets, secrets, sizeof(secrets));
	if (guard_storage(flags, &live.tools, err) < 0 || take_secrets(flags, options, err) < 0)
		return -1;
	if (cell__cli_open_host(&flags->session, true, &host, &session, err) < 0)
		return -1;
	session.options.executor = choose_executor(host.engine, session.options.executor);
	if (cell__cli_check_executor(&flags->session, session.options.executor, err) < 0 ||
	    (session.options.cwd && cell__cli_check_secrets(&flags->session, session.options.executor, session.options.cwd, err) < 0))
		goto out;
	/*
	 * Code that runs as our user must not find tokens and passwords in our memory.  Not before the sandbox was tried: a
	 * process that is not dumpable has no rights over its own files in /proc, and can give itself no ids in a user namespace.
	 */
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	live.flags = flags;
	live.host = &host;
	live.session = &session;
	options->space = host.space;
	options->session = &session.options;
	options->zygote_per = cell__cli_zygote_per(&flags->session);
	options->sandbox_fusion = flags->sandbox_fusion;
	options->e2b = flags->e2b || flags->e2b_debug;
	options->e2b_debug = flags->e2b_debug;
	options->e2b_domain = flags->e2b_domain;
	options->otlp = flags->otlp ? flags->otlp : cell__serve_variable("OTEL_EXPORTER_OTLP_ENDPOINT");
	options->otlp_headers = cell__serve_variable("OTEL_EXPORTER_OTLP_HEADERS");
	options->otlp_code = flags->otlp_code;
	options->console = flags->console || *live.code;
	options->console_code = *live.code && !options->auth_disabled ? live.code : NULL;
	if (json_object_size(live.servers) &&
	    (!strcmp(session.options.executor, "container") || !strcmp(session.options.executor, "remote") ||
	     !strcmp(session.options.executor, "kubernetes"))) {
		cell_fail(
			err, CELL_E_INVALID, 0,
			"with the executor %s tools are called elsewhere, where the MCP servers of TOOLS_CONFIG are unknown: define them there",
			session.options.executor);
		goto out;
	}
	if (add_servers(host.space, err) < 0)
		goto out;
	if (cell__cli_has_storage(space))
		options->open_space = open_space;
	if (!strcmp(session.options.executor, "container")) {
		session.container.deps = deps = cell__cli_list_values(&flags->deps); /* installed there */
	} else if (flags->deps.count && !(cell__cli_has_storage(space) && host.space)) {
		cell_fail(err, CELL_E_INVALID, 0,
			  "packages (--dep, CONTAINER_DEPS, TOOLS_CONFIG) need a storage of this server: --storage");
		goto out;
	} else if (options->open_space && install_deps(flags, &host, err) < 0) {
		goto out;
	}
	if (!strcmp(session.options.executor, "kubernetes"))
		options->open_space = open_space; /* for the name of the workspace: the storage is in the pod */
	/* From the folder's birth to its end no signal ends us half-way. */
	set_signals(handle_signal);
	if (!session.options.cwd && make_work_dir(err) < 0)
		goto out;
	options->work_dir = live.work_dir;
	if (cell_server_create(host.engine, options, &live.server, err) < 0)
		goto out;
	if (has_to_end)
		cell_server_drain(live.server);
	if (live.is_successor)
		cell_server_reload(live.server); /* the configuration may have changed since its arguments were read */
	status = cell_server_run(live.server, err);
	set_signals(ignore_signal);
	cell_server_destroy(live.server);
out:
	options->session = NULL; /* they end here */
	options->space = NULL;
	cell__cli_close(&host);
	cell__cli_options_finish(&session);
	free(deps);
	if (live.work_dir)
		(void)cell_remove_tree(live.work_dir, NULL);
	if (live.work_fd >= 0)
		close(live.work_fd);
	free(live.work_dir);
	/* Signals stay ignored: one that comes between here and the end of the process does not change its status. */
	options->session = NULL;
	return status;
}

/* -1 in err: an error; else an exit status, of all workers, or of the one that this process has become. */
static int serve_all(struct serve_flags *flags, struct cell_server_options *options, struct cell_error *err)
{
	const char *executor = flags->session.executor;
	struct cell_serve_crew crew = {
		.count = (int)flags->workers, .holds = flags->hold_workers, .serving = say_serving, .stopping = say_stopping
	};
	int status;

	if (cell__log_share(err) < 0)
		return -1;
	crew.leave_ms = flags->drain_delay_ms < 0 ? 0 : flags->drain_delay_ms;
	crew.is_confined = !executor || (strcmp(executor, "subprocess") && strcmp(executor, "inprocess"));
	if (cell_server_pool_create(options, crew.count, &options->pool, err) < 0)
		return -1;
	if (crew.holds)
		cell_server_pool_hold(options->pool);
	status = cell__serve_supervise(options->pool, &crew, &live.worker, &live.ready_fd, err);
	if (live.worker < 0) {
		cell_server_pool_destroy(options->pool);
		return status;
	}
	live.pool = options->pool;
	live.is_successor = status;
	notify_size = 0; /* the process that started us tells the service manager */
	options->worker = live.worker;
	flags->session.pool = (flags->session.pool + crew.count - 1) / crew.count;
	return serve(flags, options, err);
}

/* Why there is one worker where nobody said how many; NULL: there are as many as cores. */
static const char *why_one(const struct serve_flags *flags)
{
	if (flags->in_container)
		return "--in-container removes files that each worker would read";
	if (*live.code)
		return "`workcell console` is for one person";
	return flags->e2b_debug ? "the debug mode of E2B's clients has one sandbox" : NULL;
}

static int count_cores(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static int check_workers(struct serve_flags *flags, struct cell_error *err)
{
	const char *why = why_one(flags);
	int cores = count_cores();

	if (!flags->workers && why)
		flags->workers = 1;
	if (!flags->workers)
		flags->workers = cores > CELL_SERVE_MAX_WORKERS ? CELL_SERVE_MAX_WORKERS : cores;
	if (flags->workers < 1 || flags->workers > CELL_SERVE_MAX_WORKERS)
		return cell_fail(err, CELL_E_INVALID, 0, "--workers must be at most %d", CELL_SERVE_MAX_WORKERS);
	if (flags->workers > 1 && why)
		return cell_fail(err, CELL_E_INVALID, 0, "%s: leave --workers out", why);
	return 0;
}

int cell__cmd_serve(int argc, char **argv)
{
	struct serve_flags flags = SERVE_FLAGS_INIT;
	struct cell_server_limits limits;
	struct cell_server_options options = CELL_SERVER_OPTIONS_INIT;
	struct cell_serve_arguments arguments = { 0 };
	struct cell_error err;
	int status = -1, exit_status;

	live.argc = argc;
	live.argv = argv;
	find_manager();
	live.given = given_socket(&err);
	if (err.code)
		return cell__cli_report(&err, false);
	if (cell__serve_gather(argc, argv, &arguments, &err) < 0) {
		cell__serve_arguments_finish(&arguments);
		return cell__cli_report(&err, false);
	}
	if (!cell__cli_parse(live.command, arguments.count, arguments.list, &flags, NULL, &exit_status)) {
		flags_finish(&flags);
		cell__serve_arguments_finish(&arguments);
		return exit_status;
	}
	live.servers = arguments.servers;
	limits_of(&flags, &limits);
	options.limits = &limits;
	status = check_workers(&flags, &err);
	if (!status && flags.session.executor)
		status = cell__cli_check_executor(&flags.session, flags.session.executor, &err);
	if (!status)
		status = fill_options(&flags, &options, &err);
	if (!status && flags.check_config)
		status = check_servers(&err);
	if (!status && flags.check_config)
		printf("the configuration is valid\n");
	if (!status && !flags.check_config)
		cell__log_use(options.log_json ? CELL_CLI_LOG_JSON : CELL_CLI_LOG_TEXT);
	if (!status && !flags.check_config)
		status = flags.workers > 1 ? serve_all(&flags, &options, &err) : serve(&flags, &options, &err);
	cell__cli_listen_options_finish(&options);
	free(live.tools);
	free(live.token);
	flags_finish(&flags);
	cell__serve_arguments_finish(&arguments);
	return status < 0 ? cell__cli_report(&err, false) : status;
}

int cell__cmd_console(int argc, char **argv)
{
	int status;

	live.command = &cell__cli_console_command;
	cell__random_hex(live.own_token, sizeof(live.own_token) - 1);
	cell__random_hex(live.code, sizeof(live.code) - 1);
	status = cell__cmd_serve(argc, argv);
	cell__console_hide();
	return status;
}
