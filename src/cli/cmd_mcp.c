/*
 * `workcell mcp`: the library's MCP server with the common flags.
 *
 * stdout is for the protocol only. Before anything is started, descriptor 1 is moved to a number that only the server writes to, and
 * becomes stderr; 0 becomes /dev/null, so that no program we start can read the client's messages.
 */
#define _GNU_SOURCE 1
#include "listen.h"
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KERNEL_PREFIX "KERNEL_ENV_"
#define TOKEN_VARIABLE "WORKCELL_MCP_TOKEN"
#define MAX_SESSIONS 64
#define MAX_CONNECTIONS 256
#define DEFAULT_PREFIX "py-code-mode"

struct mcp_flags {
	struct cell_cli_session_flags session;
	struct cell_cli_listen_flags http;
	const char *root, *otlp, *advertise;
	bool no_sync_deps, allow_register, compat, otlp_code;
};

static const struct cell_cli_flag mcp_flag_table[] = {
	{ 0, "root", "DIR", "working folder, created if missing: sets --cwd, --images-dir DIR/images, and a separate --base",
	  CELL_FLAG_STRING, offsetof(struct mcp_flags, root) },
	{ 0, "listen", "ADDRESS", "serve Streamable HTTP at http://HOST:PORT/mcp, or at unix:PATH, instead of stdin and stdout",
	  CELL_FLAG_STRING, offsetof(struct mcp_flags, http.listen) },
	{ 0, "auth-token-file", "FILE", "a token, or a list of tokens with scopes, for clients of --listen (default: $" TOKEN_VARIABLE ")",
	  CELL_FLAG_STRING, offsetof(struct mcp_flags, http.token_file) },
	{ 0, "allow-host", "HOST", "allow this value of the Host header too, as behind a proxy; may be repeated", CELL_FLAG_LIST,
	  offsetof(struct mcp_flags, http.hosts) },
	CELL_CLI_LISTEN_FLAGS(offsetof(struct mcp_flags, http)),
	{ 0, "session-idle", "SEC",
	  "close a client after this many idle seconds when another needs its place; with --saved, save idle sessions; 0: never",
	  CELL_FLAG_SECONDS, offsetof(struct mcp_flags, http.idle_ms) },
	{ 0, "advertise", "URL",
	  "http://ADDRESS:PORT at which other servers with the same --saved reach this one, to pass requests for its sessions on",
	  CELL_FLAG_STRING, offsetof(struct mcp_flags, advertise) },
	{ 0, "allow-register", NULL, "offer register_mcp_server: the agent can then start programs here or use URLs", CELL_FLAG_SWITCH,
	  offsetof(struct mcp_flags, allow_register) },
	{ 0, "compat", NULL, "list tools under their second names too, with output schemas", CELL_FLAG_SWITCH,
	  offsetof(struct mcp_flags, compat) },
	{ 0, "no-sync-deps", NULL, "do not install missing packages of requirements.txt first", CELL_FLAG_SWITCH,
	  offsetof(struct mcp_flags, no_sync_deps) },
	{ 0, "otlp", "URL", "send spans to this receiver of OpenTelemetry (default $OTEL_EXPORTER_OTLP_ENDPOINT)", CELL_FLAG_STRING,
	  offsetof(struct mcp_flags, otlp) },
	{ 0, "otlp-code", NULL, "with the code of cells, not only its hash", CELL_FLAG_SWITCH, offsetof(struct mcp_flags, otlp_code) },
	{ 0, "log-level", "LEVEL", "log to stderr: debug, info, warning, error or critical (default: nothing, with --listen warning)",
	  CELL_FLAG_STRING, offsetof(struct mcp_flags, session.log_level) },
	CELL_CLI_ZYGOTE_FLAGS(offsetof(struct mcp_flags, session)),
	CELL_CLI_SESSION_FLAGS(offsetof(struct mcp_flags, session)),
	{ 0 },
};

const struct cell_cli_command cell__cli_mcp_command = {
	.name = "mcp",
	.summary = "an MCP server: sessions for agents that speak the Model Context Protocol",
	.synopsis = "[flags]",
	.about = "Serves one client on stdin and stdout until its input ends, or with --listen many clients over HTTP.\n"
		 "Tools: run_code, reset, search_tools, and those of --base or --storage.\n\n"
		 "The --base of --root DIR is DIR/.workcell; with --executor sandbox, whose code could write there, it is\n"
		 "$XDG_STATE_HOME/workcell/roots/DIR/.workcell (default ~/.local/state).\n"
		 "A variable KERNEL_ENV_X, of the environment or --env-file, becomes X for the code; nothing else is inherited.\n"
		 "Approvals (--approve ask, --policy) are requested from the client's user by elicitation.",
	.examples = "  workcell mcp --base ~/agent\n"
		    "  workcell mcp --root ./project --preload pandas,matplotlib --approve ask\n"
		    "  WORKCELL_MCP_TOKEN=... workcell mcp --base ~/agent --listen 127.0.0.1:8765",
	.flags = mcp_flag_table,
	.run = cell__cmd_mcp,
};

/* ---- flags ---------------------------------------------------------------------- */

static int make_dirs(char *path, struct cell_error *err)
{
	for (char *at = path + 1;; at++) {
		char end = *at;

		if (end && end != '/')
			continue;
		*at = '\0';
		if (mkdir(path, 0777) < 0 && errno != EEXIST)
			return cell_fail(err, CELL_E_IO, errno, "cannot make %s", path);
		*at = end;
		if (!end)
			return 0;
	}
}

/* The data that the flags point to besides argv; it lives as long as the program. */
static struct {
	char *root, *images, *base;
} kept;

static int join(const char *folder, const char *name, char **ret_path, struct cell_error *err)
{
	if (asprintf(ret_path, "%s/%s", folder, name) >= 0)
		return 0;
	*ret_path = NULL;
	return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
}

/*
 * The storage of --root. Code in a sandbox can write to everything below the root, so files that the host trusts must be elsewhere: beside
 * those of other roots, by the root's real path.
 */
static int choose_base(const struct mcp_flags *flags, struct cell_error *err)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	bool confined = flags->session.executor && !strcmp(flags->session.executor, "sandbox");
	char *real = NULL, *inside = NULL, *tools = NULL;
	int status = -1;

	if (!flags->root || cell__cli_has_storage(&flags->session.space))
		return 0;
	if (!confined)
		return join(kept.root, ".workcell", &kept.base, err);
	if ((!state || *state != '/') && (!home || *home != '/'))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "--root keeps its storage in $XDG_STATE_HOME or $HOME/.local/state, but neither is set; give --base DIR");
	real = realpath(kept.root, NULL);
	if (!real)
		return cell_fail(err, CELL_E_IO, errno, "cannot open %s", kept.root);
	if (asprintf(&kept.base, "%s%s/workcell/roots%s/.workcell", state && *state == '/' ? state : home,
		     state && *state == '/' ? "" : "/.local/state", real) < 0) {
		kept.base = NULL;
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	} else if (!join(kept.base, "tools", &tools, err) && !make_dirs(tools, err)) {
		status = join(real, ".workcell", &inside, err);
		if (!status && access(inside, F_OK) == 0)
			fprintf(stderr,
				"workcell: %s is not used with --executor sandbox, because the code can write there; the storage is %s\n",
				inside, kept.base);
	}
	free(real);
	free(inside);
	free(tools);
	return status;
}

/* Earlier servers read it by themselves. */
static void hint_dotenv(const struct mcp_flags *flags)
{
	char *dotenv = NULL;

	if (!flags->session.space.env_file && asprintf(&dotenv, "%s/.env", kept.root) > 0 && access(dotenv, F_OK) == 0)
		fprintf(stderr, "workcell: %s is not read; to have it read, move it out of the workspace and give --env-file FILE\n",
			dotenv);
	free(dotenv);
}

/* Expands --root to the flags it stands for. Paths become absolute here, once. */
static int apply_root(struct mcp_flags *flags, struct cell_error *err)
{
	struct cell_cli_session_flags *session = &flags->session;
	const char *folder = flags->root ? flags->root : session->cwd ? session->cwd : ".";

	kept.root = cell__cli_absolute(folder, err);
	if (!kept.root || (flags->root && make_dirs(kept.root, err) < 0) || join(kept.root, "images", &kept.images, err) < 0 ||
	    choose_base(flags, err) < 0)
		return -1;
	if (flags->root && !session->cwd)
		session->cwd = kept.root;
	if (flags->root && !session->images_dir)
		session->images_dir = kept.images;
	if (kept.base)
		session->space.base = kept.base;
	session->space.sync_deps = !flags->no_sync_deps && cell__cli_has_storage(&session->space);
	/* The place where earlier servers keep it. */
	if (session->space.redis && !session->space.prefix && !strstr(session->space.redis, "prefix="))
		session->space.prefix = DEFAULT_PREFIX;
	hint_dotenv(flags);
	return cell__cli_load_env_file(session->space.env_file, err);
}

static bool is_set(const struct cell_cli_list *env, const char *entry)
{
	size_t size = strcspn(entry, "=") + 1;

	for (size_t i = 0; i < env->count; i++) {
		if (!strncmp(env->items[i].value, entry, size))
			return true;
	}
	return false;
}

/* KERNEL_ENV_X=V is X=V for the code, unless --env or an earlier source sets X. */
static int kernel_env(struct cell_cli_list *env, char *const *entries, struct cell_error *err)
{
	size_t prefix = strlen(KERNEL_PREFIX);

	for (char *const *entry = entries; *entry; entry++) {
		const char *value = *entry + prefix;
		struct cell_cli_item *items;

		if (strncmp(*entry, KERNEL_PREFIX, prefix) || *value == '=' || is_set(env, value))
			continue;
		items = reallocarray(env->items, env->count + 1, sizeof(*items));
		if (!items)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the environment");
		env->items = items;
		env->items[env->count++] = (struct cell_cli_item){ .value = value };
		env->room = env->count;
	}
	return 0;
}

/* ---- stdin and stdout ------------------------------------------------------------- */

static int take_stdio(int *ret_in, int *ret_out, struct cell_error *err)
{
	int in = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	int out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (in < 0 || out < 0 || null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot take over stdin and stdout");
	close(null);
	*ret_in = in;
	*ret_out = out;
	return 0;
}

static struct cell_mcp_server *live_server;
static bool live_listens;

static void handle_signal(int number)
{
	int saved = errno;

	if (number == SIGHUP && live_listens)
		cell_mcp_server_reload(live_server);
	else if (number != SIGPIPE)
		cell_mcp_server_stop(live_server);
	errno = saved;
}

/* Handlers, not a mask: programs that we start must not inherit it. */
static void catch_signals(struct cell_mcp_server *server, bool listens)
{
	static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGPIPE };
	struct sigaction action = { .sa_handler = handle_signal, .sa_flags = SA_RESTART };

	live_server = server;
	live_listens = listens;
	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		sigaction(numbers[i], &action, NULL);
}

/* ---- HTTP --------------------------------------------------------------------------- */

/* From the file or the environment; a token is never on the command line. */
static int fill_token(const struct cell_cli_listen_flags *flags, struct cell_server_options *options, struct cell_error *err)
{
	const char *token = getenv(TOKEN_VARIABLE);

	options->token = flags->token_file || !token || !*token ? NULL : token;
	if (!flags->auth_disabled && !flags->token_file && !options->token && !flags->oauth)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "--listen needs a token: give --auth-token-file FILE, set " TOKEN_VARIABLE
				 ", give --oauth FILE, or --auth-disabled on a loopback address");
	return 0;
}

/* Flags for clients of HTTP would have no effect. */
static int check_stdio(const struct mcp_flags *all, struct cell_error *err)
{
	const struct cell_cli_listen_flags *flags = &all->http;
	const char *name = flags->token_file      ? "auth-token-file"
			   : flags->oauth         ? "oauth"
			   : flags->public_url    ? "public-url"
			   : flags->auth_disabled ? "auth-disabled"
			   : flags->tls_cert      ? "tls-cert"
			   : flags->tls_key       ? "tls-key"
			   : flags->origins.count ? "allow-origin"
			   : flags->hosts.count   ? "allow-host"
			   : all->advertise       ? "advertise"
						  : NULL;

	return name && !flags->listen ? cell_fail(err, CELL_E_INVALID, 0, "--%s needs --listen HOST:PORT", name) : 0;
}

static void say_listening(void *arg, const char *url)
{
	(void)arg;
	cell__log_say("workcell: listening on %s%s\n", url, strncmp(url, "unix:", 5) ? "/mcp" : "");
}

static int fill_options(const struct mcp_flags *flags, struct cell_server_options *options, struct cell_error *err)
{
	const char *level = flags->session.log_level ? flags->session.log_level : "warning";

	options->otlp = flags->otlp ? flags->otlp : cell__serve_variable("OTEL_EXPORTER_OTLP_ENDPOINT");
	options->otlp_headers = cell__serve_variable("OTEL_EXPORTER_OTLP_HEADERS");
	options->otlp_code = flags->otlp_code;
	options->advertise = flags->advertise;
	if (!flags->http.listen)
		return 0;
	options->listen = flags->http.listen;
	options->listening = say_listening;
	if (fill_token(&flags->http, options, err) < 0 ||
	    cell__cli_listen_options(&flags->http, strcmp(level, "critical") ? level : "error", options, err) < 0)
		return -1;
	return cell_server_check(options, err);
}

/* ---- mcp ------------------------------------------------------------------------------ */

static int serve(struct mcp_flags *flags, const struct cell_server_options *http, struct cell_cli_host *host,
		 const struct cell_cli_session_options *session, int in, int out, struct cell_error *err)
{
	struct cell_mcp_server_options options = CELL_MCP_SERVER_OPTIONS_INIT;
	struct cell_mcp_server *server;
	int status;

	options.space = host->space;
	options.session = &session->options;
	options.storage = cell__cli_has_storage(&flags->session.space);
	options.allow_register = flags->allow_register;
	options.compat = flags->compat;
	options.max_sessions = flags->http.max_sessions;
	options.saved_idle_ms = flags->http.idle_ms;
	options.runtime_deps = !flags->session.space.no_runtime_deps;
	/* All clients of such a server share a workspace. */
	options.zygote_per_session = cell__cli_zygote_per(&flags->session) == CELL_ZYGOTE_PER_SESSION;
	if (cell_mcp_server_create(host->engine, &options, &server, err) < 0)
		return -1;
	if (!http->listen && http->otlp && cell_mcp_server_trace(server, http, err) < 0) {
		if (flags->otlp) {
			cell_mcp_server_destroy(server);
			return -1;
		}
		/* The variable may be meant for other programs, which speak another protocol. */
		dprintf(STDERR_FILENO, "workcell: no spans are sent to OTEL_EXPORTER_OTLP_ENDPOINT: %s\n", err->msg);
	}
	catch_signals(server, http->listen);
	status = http->listen ? cell_mcp_server_listen(server, http, err) : cell_mcp_server_run(server, in, out, err);
	/* For example an installation in progress: the spawner ends it after our exit. */
	if (status < 0 && err->code == CELL_E_TIMEOUT)
		_exit(0);
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	cell_mcp_server_destroy(server);
	return status;
}

static void flags_finish(struct mcp_flags *flags)
{
	cell__cli_list_finish(&flags->session.env);
	cell__cli_listen_flags_finish(&flags->http);
}

/* Everything that can be refused before anything is started. */
static int prepare(struct mcp_flags *flags, struct cell_server_options *http, int *ret_in, int *ret_out, struct cell_error *err)
{
	struct cell_cli_session_flags *session = &flags->session;

	if (check_stdio(flags, err) < 0 || fill_options(flags, http, err) < 0 ||
	    cell__cli_check_executor(session, session->executor, err) < 0 || apply_root(flags, err) < 0 ||
	    cell__cli_check_secrets(session, session->executor, session->cwd ? session->cwd : ".", err) < 0 ||
	    kernel_env(&session->env, environ, err) < 0 || kernel_env(&session->env, cell__cli_env_entries(), err) < 0)
		return -1;
	return take_stdio(ret_in, ret_out, err);
}

int cell__cmd_mcp(int argc, char **argv)
{
	struct mcp_flags flags = { .session = CELL_CLI_SESSION_FLAGS_INIT(1),
				   .http = CELL_CLI_LISTEN_FLAGS_INIT(MAX_SESSIONS, MAX_CONNECTIONS) };
	struct cell_server_limits limits = CELL_SERVER_LIMITS_INIT;
	struct cell_server_options http = CELL_SERVER_OPTIONS_INIT;
	struct cell_cli_session_options options;
	struct cell_cli_host host = { 0 };
	struct cell_error err;
	int status, in = -1, out = -1;

	if (!cell__cli_parse(&cell__cli_mcp_command, argc, argv, &flags, NULL, &status)) {
		flags_finish(&flags);
		return status;
	}
	const char *secrets[] = { flags.http.token_file, flags.http.tls_cert, flags.http.tls_key, NULL, flags.http.oauth };

	memcpy(flags.session.secrets, secrets, sizeof(secrets));
	cell__log_use(!flags.http.listen                                  ? CELL_CLI_LOG_PLAIN
		      : flags.http.log && !strcmp(flags.http.log, "json") ? CELL_CLI_LOG_JSON
									  : CELL_CLI_LOG_TEXT);
	cell__cli_listen_limits(&flags.http, &limits);
	http.limits = &limits;
	status = prepare(&flags, &http, &in, &out, &err);
	if (!status && !(status = cell__cli_open_host(&flags.session, true, &host, &options, &err))) {
		status = serve(&flags, &http, &host, &options, in, out, &err);
		cell__cli_close(&host);
		cell__cli_options_finish(&options);
	}
	cell__cli_listen_options_finish(&http);
	flags_finish(&flags);
	return status < 0 ? cell__cli_report(&err, false) : 0;
}
