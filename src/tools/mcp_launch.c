/* The parameters of an MCP server's start: every ${VAR} is resolved at that moment. */
#define _GNU_SOURCE
#include <string.h>

#include "mcp/client/oauth.h"
#include "spawn/confinement.h"
#include "tools/mcp.h"

struct launching {
	struct cell__tool_server *server;
	struct cell__buf why;
};

static char *expand(struct launching *launching, const char *text)
{
	char *value = NULL;
	struct cell__tool_server *server = launching->server;
	return cell__vars_expand(text, &server->tools->opts, &server->secrets, &value, &launching->why) < 0 ? NULL : value;
}

static int launch_argv(struct launching *launching, struct cell__mcp_launch *launch)
{
	const struct cell__mcp_params *params = launching->server->params;
	launch->argv = cell__alloc(params->n_args + 2, sizeof *launch->argv);
	if (!launch->argv || !(launch->argv[0] = expand(launching, params->command)))
		return -1;
	for (size_t i = 0; i < params->n_args; i++)
		if (!(launch->argv[i + 1] = expand(launching, params->args[i])))
			return -1;
	return 0;
}

static int set_var(struct cell__mcp_launch *launch, size_t *count, const char *key, const char *value)
{
	struct cell__buf line = CELL_BUF_INIT;
	size_t n = strlen(key) + 1, at = 0;
	if (cell__buf_reserve(&line, n + strlen(value)) < 0 || cell__buf_printf(&line, "%s=%s", key, value) < 0)
		return -1;
	while (at < *count && strncmp(launch->env[at], line.data, n) != 0)
		at++;
	if (at == *count)
		++*count;
	else
		cell__secret_free(launch->env[at]);
	launch->env[at] = line.data;
	return 0;
}

static int launch_env(struct launching *launching, struct cell__mcp_launch *launch)
{
	const struct cell__tool_server *server = launching->server;
	const struct cell__mcp_params *params = server->params;
	const char *const *more = server->confine ? cell__confinement_env(server->confine) : NULL;
	size_t count = 0, n_more = 0;
	while (more && more[n_more])
		n_more++;
	launch->env = cell__alloc(params->env.count + n_more + 4, sizeof *launch->env);
	if (!launch->env || set_var(launch, &count, "PATH", server->tools->path) < 0 ||
	    set_var(launch, &count, "HOME", cell__program_home(server->tools, !server->confine && !params->host)) < 0 ||
	    set_var(launch, &count, "LANG", "C.UTF-8") < 0)
		return -1;
	for (size_t i = 0; i < n_more; i++) {
		CELL_AUTO_FREE char *key = cell__strndup(more[i], strcspn(more[i], "="));
		if (!key || set_var(launch, &count, key, strchr(more[i], '=') + 1) < 0)
			return -1;
	}
	for (size_t i = 0; i < params->env.count; i++) {
		char *value = expand(launching, params->env.list[i].value);
		int rc = value ? set_var(launch, &count, params->env.list[i].key, value) : -1;
		cell__secret_free(value);
		if (rc < 0)
			return -1;
	}
	for (size_t i = 0; i < count; i++)
		if (strncmp(launch->env[i], "PATH=", 5) == 0)
			launch->path = cell__strdup(launch->env[i] + 5);
	return launch->path ? 0 : -1;
}

/* A server that runs on the host for all callers is not started in a folder that code may control, unless its definition says so. */
static int launch_cwd(struct launching *launching, struct cell__mcp_launch *launch)
{
	const struct cell__tool_server *server = launching->server;
	const char *home = server->params->host || !server->tools->opts.cwd ? "/" : server->tools->opts.cwd;
	char *cwd = NULL;
	if (server->params->cwd && !(cwd = expand(launching, server->params->cwd)))
		return -1;
	if (cwd && strcmp(cwd, "workspace") == 0 && server->tools->opts.cwd)
		home = server->tools->opts.cwd;
	launch->cwd = cell__program_cwd(server->confine, false, cwd, home, &launching->why);
	cell__secret_free(cwd);
	return launch->cwd ? 0 : -1;
}

/* For a program that is confined, because it runs for code: it may hold secrets that the code must not get by being it. */
static int check_program(struct cell__mcp_launch *launch, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	cell__program_clean_path(launch->confine, launch->path);
	if (cell__program_check(launch->confine, launch->argv[0], launch->path, launch->cwd, &why) < 0)
		return cell_fail(err, CELL_E_TOOL, 0, "%s", why.size ? why.data : "out of memory");
	return 0;
}

static void launch_confined(struct launching *launching, struct cell__mcp_launch *launch)
{
	launch->confine = cell__confinement_ref(launching->server->confine);
	launch->check = launch->confine ? check_program : NULL;
}

static int launch_headers(struct launching *launching, struct cell__mcp_launch *launch)
{
	const struct cell__pairs *headers = &launching->server->params->headers;
	launch->headers = cell__alloc(headers->count + 2, sizeof *launch->headers);
	for (size_t i = 0; launch->headers && i < headers->count; i++) {
		struct cell__buf line = CELL_BUF_INIT;
		char *value = expand(launching, headers->list[i].value);
		if (!value)
			return -1;
		if (strpbrk(value, "\r\n")) {
			cell__buf_printf(&launching->why, "header %s: the resolved value contains a line break", headers->list[i].key);
			cell__secret_free(value);
			return -1;
		}
		int rc = cell__buf_reserve(&line, strlen(headers->list[i].key) + strlen(value) + 2);
		rc |= cell__buf_printf(&line, *value ? "%s: %s" : "%s;", headers->list[i].key, value);
		cell__secret_free(value);
		launch->headers[i] = line.data;
		if (rc < 0)
			return -1;
	}
	return launch->headers ? 0 : -1;
}

/* ---- logins ---- */

void cell__mcp_oauth_destroy(struct cell__oauth *oauth)
{
	if (!oauth)
		return;
	free((char *)oauth->url);
	free((char *)oauth->dir);
	free((char *)oauth->client_id);
	cell__secret_free((char *)oauth->client_secret);
	free((char *)oauth->client_metadata_url);
	free((char *)oauth->scope);
	free((char *)oauth->page);
	free(oauth);
}

struct cell__oauth *cell__mcp_oauth_create(struct cell__tool_server *server, struct cell_error *err)
{
	struct launching launching = { .server = server };
	const struct cell__mcp_params *params = server->params;
	const char *dir = server->tools->opts.oauth_dir;
	struct cell__oauth *oauth = cell__alloc(1, sizeof *oauth);
	bool ok = oauth && (oauth->url = expand(&launching, params->url)) && (!dir || (oauth->dir = cell__strdup(dir))) &&
		  (!params->client_id || (oauth->client_id = expand(&launching, params->client_id))) &&
		  (!params->client_secret || (oauth->client_secret = expand(&launching, params->client_secret))) &&
		  (!params->client_metadata_url || (oauth->client_metadata_url = expand(&launching, params->client_metadata_url))) &&
		  (!params->scope || (oauth->scope = expand(&launching, params->scope)));
	if (ok && server->tools->login_page) {
		struct cell__buf page = CELL_BUF_INIT;
		ok = cell__buf_printf(&page, "%s%s", server->tools->login_page, server->name) >= 0;
		oauth->page = page.data;
	}
	if (!ok) {
		cell_fail(err, CELL_E_TOOL, 0, "%s", launching.why.size ? launching.why.data : "out of memory");
		cell__mcp_oauth_destroy(cell__take_ptr(oauth));
	}
	cell__buf_finish(&launching.why);
	return oauth;
}

static void free_oauth(void *arg)
{
	cell__mcp_oauth_destroy(arg);
}

/* On the pool: a token of the login, as the last header. */
static int get_token(struct cell__mcp_launch *launch, struct cell_error *err)
{
	char *header = NULL;
	size_t n = 0;
	while (launch->headers[n])
		n++;
	const struct cell__oauth *oauth = launch->check_arg;
	if (cell__oauth_header(oauth, launch->renew, &header, err) < 0) {
		err->code = CELL_E_AUTH;
		return oauth->page ? cell_fail_wrap(err, "a person has to log in at %s", oauth->page)
				   : cell_fail_wrap(err, "log in at this server (workcell tools login)");
	}
	launch->headers[n] = header; /* launch_headers() left room */
	return 0;
}

static int launch_oauth(struct launching *launching, struct cell__mcp_launch *launch)
{
	struct cell_error err;
	if (!launching->server->params->oauth)
		return 0;
	struct cell__oauth *oauth = cell__mcp_oauth_create(launching->server, &err);
	if (!oauth) {
		cell__buf_add_str(&launching->why, err.msg);
		return -1;
	}
	launch->check_arg = oauth;
	launch->check_free = free_oauth;
	launch->check = get_token;
	return 0;
}

int cell__mcp_launch(void *arg, struct cell__mcp_launch *ret_launch, struct cell_error *err)
{
	struct launching launching = { .server = arg };
	struct cell__mcp_launch launch = { .kind = launching.server->params->kind, .guessed = launching.server->params->guessed };
	int rc;
	cell__secrets_finish(&launching.server->secrets);
	if (launch.kind == CELL_MCP_STDIO) {
		rc = launch_argv(&launching, &launch);
		rc = rc < 0 ? rc : launch_env(&launching, &launch);
		rc = rc < 0 ? rc : launch_cwd(&launching, &launch);
		launch_confined(&launching, &launch);
	} else {
		launch.url = expand(&launching, launching.server->params->url);
		rc = launch.url ? launch_headers(&launching, &launch) : -1;
		rc = rc < 0 ? rc : launch_oauth(&launching, &launch);
	}
	if (rc < 0) {
		cell_fail(err, CELL_E_TOOL, 0, "%s", launching.why.size ? launching.why.data : "out of memory");
		cell__mcp_launch_finish(&launch);
	} else {
		*ret_launch = launch;
	}
	cell__buf_finish(&launching.why);
	return rc;
}
