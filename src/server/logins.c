/*
 * Logins at remote MCP servers whose definition has `auth: oauth`, by a browser that need not run on this computer.
 *
 *     GET /oauth/login?server=NAME ──▶ a page that says what is asked for, and wants the person's token
 *     POST /oauth/login ── the token may approve ──▶ on the pool: the link ──▶ a cookie, and 303 to the authorization server
 *     GET /oauth/callback ── state and cookie are those of one login ──▶ on the pool: the code for tokens, a file ──▶ a page
 *
 * A login belongs to the principal that began it and to the browser that it did it with: a redirect with the state of somebody else is refused,
 * and leaves that login as it was.  It counts once and for LOGIN_US.  A link that is passed on leads to the page, which asks its reader for a token
 * of their own: nobody can make others log in for them.
 *
 * The redirect goes to the address that the server's options name, never to one from a request.  With workers the state names the worker.
 */
#define _GNU_SOURCE
#include "server/api.h"

#include <openssl/crypto.h>
#include <string.h>
#include <strings.h>

#include "base/random.h"
#include "mcp/client/oauth.h"
#include "server/pool.h"
#include "space/servers.h"
#include "tools/tools.h"
#include "wire/oauth.h"

#define MAX_LOGINS 64u
#define MAX_OWN 8u /* of one principal */
#define LOGIN_US INT64_C(600000000)
#define MAX_FORM 16384u
#define ID_DIGITS 32
#define BROWSER_DIGITS 32

#define PAGE_POLICY "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"

struct cell__login {
	struct cell_server *server;
	char id[ID_DIGITS + 1];           /* begins the state, and names the cookie */
	char browser[BROWSER_DIGITS + 1]; /* the cookie's value */
	char owner[CELL_SERVER_MAX_NAME + 1];
	char name[CELL_SERVER_MAX_NAME + 1]; /* of the MCP server */
	char workspace[CELL_SERVER_MAX_WORKSPACE + 1];
	char *scope;        /* further scopes; or NULL */
	int64_t until_us;
	struct cell__request *request;    /* that waits for `work`; NULL: nothing is under way */
	struct cell__workspace *used;     /* while something is under way; NULL: the space is the server's */
	struct cell__oauth *oauth;
	struct cell__oauth_pending pending;
	char *query;        /* of the redirect; NULL: it has not come */
	uv_work_t work;
	int status;
	struct cell_error err;
	struct cell__login *next;
};

/* ---- pages ---- */

static int add_html(struct cell__buf *out, const char *text)
{
	int rc = 0;

	for (; *text && rc == 0; text++) {
		const char *entity = *text == '&'   ? "&amp;"
				     : *text == '<' ? "&lt;"
				     : *text == '>' ? "&gt;"
				     : *text == '"' ? "&quot;"
						    : NULL;

		rc = entity ? cell__buf_add_str(out, entity) : cell__buf_add(out, text, 1);
	}
	return rc;
}

static int begin_page(struct cell__buf *out, const char *title)
{
	int rc = cell__buf_add_str(out,
				   "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
				   "<meta name=\"viewport\" content=\"width=device-width\"><title>Workcell</title><style>"
				   "body{font:16px/1.5 system-ui,sans-serif;max-width:34em;margin:3em auto;padding:0 1em}"
				   "label{display:block;margin:1em 0}input{display:block;width:100%;font:inherit;box-sizing:border-box}"
				   "</style><h1>");

	rc |= add_html(out, title);
	return rc | cell__buf_add_str(out, "</h1>");
}

static void answer_page(struct cell__request *request, unsigned status, struct cell__buf *page, int rc)
{
	size_t size = page->size;
	struct MHD_Response *response = rc == 0 ? cell__http_response(cell__buf_take(page), size, "text/html; charset=utf-8") : NULL;

	if (response) {
		MHD_add_response_header(response, "Content-Security-Policy", PAGE_POLICY);
		MHD_add_response_header(response, "Cache-Control", "no-store");
		/* Neither the code of a redirect nor a name leaves this origin; with no-referrer the form would have no Origin. */
		MHD_add_response_header(response, "Referrer-Policy", "same-origin");
	}
	cell__answer_response(request, status, response);
}

static void answer_words(struct cell__request *request, unsigned status, const char *title, const char *words)
{
	CELL_AUTO_BUF struct cell__buf page = CELL_BUF_INIT;
	int rc = begin_page(&page, title);

	rc |= cell__buf_add_str(&page, "<p>") | add_html(&page, words) | cell__buf_add_str(&page, "</p></html>");
	answer_page(request, status, &page, rc);
}

static void refuse(struct cell__request *request, unsigned status, const char *words)
{
	answer_words(request, status, "Not logged in", words);
}

static enum MHD_Result add_argument(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
	struct cell__buf *query = arg;

	(void)kind;
	return cell__buf_printf(query, "%s%s=%s", query->size ? "&" : "", name, value ? value : "") < 0 ? MHD_NO : MHD_YES;
}

/* The query as it came, free() it. */
static char *query_of(const struct cell__request *request)
{
	CELL_AUTO_BUF struct cell__buf query = CELL_BUF_INIT;

	MHD_get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND, add_argument, &query); /* not decoded: http.c */
	return cell__buf_take(&query);
}

/* free() it; NULL: it is not there, or is there twice. */
static char *argument(const struct cell__request *request, const char *name)
{
	CELL_AUTO_FREE char *query = query_of(request);

	return query ? cell__query_value(query, strlen(query), name) : NULL;
}

static int add_hidden(struct cell__buf *page, const char *name, const char *value)
{
	int rc = cell__buf_printf(page, "<input type=\"hidden\" name=\"%s\" value=\"", name) < 0 ? -1 : 0;

	return rc | add_html(page, value) | cell__buf_add_str(page, "\">");
}

/* A page that says what it is about; it knows nothing about the server's tools, so that it tells nobody about them. */
void cell__handle_login_page(struct cell__request *request)
{
	CELL_AUTO_BUF struct cell__buf page = CELL_BUF_INIT;
	CELL_AUTO_FREE char *name = argument(request, "server"), *workspace = argument(request, "workspace"),
			    *scope = argument(request, "scope");
	int rc;

	if (!request->server->login_base) {
		refuse(request, MHD_HTTP_NOT_FOUND, "This server does not know its own address: start it with --public-url.");
		return;
	}
	rc = begin_page(&page, "Log in");
	rc |= cell__buf_add_str(&page, "<p>You are about to log in at the MCP server <b>");
	rc |= add_html(&page, name ? name : "");
	rc |= cell__buf_add_str(&page, "</b>. Code of this Workcell server will act there in your name, for everybody in the workspace.</p>"
				       "<form method=\"post\" action=\"login\">");
	rc |= add_hidden(&page, "server", name ? name : "") | add_hidden(&page, "workspace", workspace ? workspace : "");
	rc |= cell__buf_add_str(&page, "<label>Further scopes, if a message asked for them <input name=\"scope\" value=\"");
	rc |= add_html(&page, scope ? scope : "");
	rc |= cell__buf_add_str(&page, "\"></label>");
	if (!request->server->opts.auth_disabled)
		rc |= cell__buf_add_str(&page, "<label>Your token of this Workcell server <input name=\"token\" type=\"password\" "
					       "autocomplete=\"off\" required></label>");
	rc |= cell__buf_add_str(&page, "<button>Continue to the login</button></form></html>");
	answer_page(request, MHD_HTTP_OK, &page, rc);
}

/* ---- the list ---- */

static void login_free(struct cell__login *login)
{
	if (login->used)
		cell__workspace_put(login->used);
	cell__oauth_pending_finish(&login->pending);
	cell__tools_oauth_destroy(login->oauth);
	free(login->scope);
	if (login->query)
		OPENSSL_cleanse(login->query, strlen(login->query));
	free(login->query);
	free(login);
}

static void drop(struct cell__login *login)
{
	struct cell__login **at = &login->server->logins;

	while (*at != login)
		at = &(*at)->next;
	*at = login->next;
	login_free(login);
}

void cell__logins_finish(struct cell_server *server)
{
	while (server->logins)
		drop(server->logins);
}

/* Forgets those that are over and makes room for another; false: there is none. */
static bool make_room(struct cell_server *server, const char *owner)
{
	struct cell__login *oldest = NULL, *next;
	size_t all = 0, own = 0;

	for (struct cell__login *login = server->logins; login; login = next) {
		next = login->next;
		if (!login->request && login->until_us < cell__now_us()) {
			drop(login);
			continue;
		}
		all++;
		if (strcmp(login->owner, owner))
			continue;
		own++;
		oldest = login->request ? oldest : login; /* newest first */
	}
	if (own >= MAX_OWN && oldest)
		drop(oldest);
	else if (own >= MAX_OWN || all >= MAX_LOGINS)
		return false;
	return true;
}

static struct cell__login *login_create(struct cell__request *request, const char *name)
{
	struct cell_server *server = request->server;
	struct cell__login *login = make_room(server, request->who.name) ? cell__alloc(1, sizeof(*login)) : NULL;

	if (!login)
		return NULL;
	*login = (struct cell__login){
		.server = server, .request = request, .until_us = cell__now_us() + LOGIN_US, .next = server->logins
	};
	cell__random_hex(login->id, ID_DIGITS);
	cell__random_hex(login->browser, BROWSER_DIGITS);
	if (server->pool)
		memcpy(login->id, server->engine->id_tag, strlen(server->engine->id_tag)); /* the worker that has it */
	snprintf(login->owner, sizeof(login->owner), "%s", request->who.name);
	snprintf(login->name, sizeof(login->name), "%s", name);
	login->work.data = login;
	server->logins = login;
	return login;
}

/* ---- the beginning ---- */

static void fail(struct cell__login *login, const struct cell_error *err)
{
	struct cell__request *request = login->request;
	int status = cell_code_http_status(err->code);

	cell__server_log(request->server, CELL_LOG_INFO, "request %s: the login of %s at the MCP server %s failed: %s", request->id,
			 login->owner, login->name, err->msg);
	refuse(request, status >= 400 && status < 500 && err->code != CELL_E_AUTH ? (unsigned)status : MHD_HTTP_BAD_GATEWAY, err->msg);
	drop(login);
}

static void do_begin(uv_work_t *work)
{
	struct cell__login *login = work->data;
	struct cell__oauth with = *login->oauth;
	CELL_AUTO_BUF struct cell__buf scopes = CELL_BUF_INIT, prefix = CELL_BUF_INIT, redirect = CELL_BUF_INIT;

	if (login->scope && cell__buf_printf(&scopes, "%s%s%s", with.scope ? with.scope : "", with.scope ? " " : "", login->scope) == 0)
		with.scope = scopes.data;
	if (cell__buf_printf(&prefix, "%s.", login->id) < 0 ||
	    cell__buf_printf(&redirect, "%s/oauth/callback", login->server->login_base) < 0)
		login->status = cell_fail(&login->err, CELL_E_NOMEM, 0, "out of memory");
	else
		login->status = cell__oauth_begin(&with, redirect.data, prefix.data, &login->pending, &login->err);
}

static void handle_begun(uv_work_t *work, int cancelled)
{
	struct cell__login *login = work->data;
	struct cell__request *request = login->request;
	struct MHD_Response *response;
	char cookie[200];

	(void)cancelled; /* never */
	if (login->status < 0) {
		fail(login, &login->err);
		return;
	}
	if (login->used)
		cell__workspace_put(cell__take_ptr(login->used));
	login->request = NULL;
	response = cell__http_response(NULL, 0, NULL);
	if (response) {
		/* Lax: it has to come with the redirect, from another site. */
		snprintf(cookie, sizeof(cookie), "workcell-login-%.8s=%s; Path=/; Max-Age=%d; HttpOnly; SameSite=Lax%s", login->id + 8,
			 login->browser, (int)(LOGIN_US / 1000000), strncmp(request->server->login_base, "https:", 6) ? "" : "; Secure");
		MHD_add_response_header(response, "Set-Cookie", cookie);
		MHD_add_response_header(response, "Location", login->pending.link);
		MHD_add_response_header(response, "Cache-Control", "no-store");
		MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
	}
	cell__answer_response(request, MHD_HTTP_SEE_OTHER, response);
}

static void begin(struct cell__login *login, struct cell_space *space)
{
	struct cell_error err;

	login->oauth = cell__tools_oauth(cell__space_tools(space), login->name, &err);
	if (!login->oauth)
		fail(login, &err);
	else
		uv_queue_work(cell__loop_uv(login->server->engine->loop), &login->work, do_begin, handle_begun);
}

static void handle_workspace(void *arg, struct cell__workspace *workspace, const struct cell_error *err)
{
	struct cell__login *login = arg;

	login->used = workspace;
	if (workspace)
		begin(login, workspace->space);
	else
		fail(login, err);
}

/* Whether a person with this token may do it, and where.  False: it is answered. */
static bool check_person(struct cell__request *request, const char *token, const char *workspace)
{
	struct cell_server *server = request->server;
	CELL_AUTO_BUF struct cell__buf header = CELL_BUF_INIT;
	const char *words = "this token is not valid";
	int retry_s = 0;
	unsigned status;

	(void)cell__buf_printf(&header, "Bearer %s", token ? token : "");
	status = cell__auth_check(server, header.data, cell__request_address(request), &request->who, &words, &retry_s);
	if (header.data)
		OPENSSL_cleanse(header.data, header.size);
	if (!status && !(request->who.scopes & CELL_SCOPE_APPROVE)) {
		status = MHD_HTTP_FORBIDDEN;
		words = "the token lacks the scope \"approve\"";
	} else if (!status && !cell__token_may_enter(&server->tokens, &request->who, workspace)) {
		status = MHD_HTTP_FORBIDDEN;
		words = "the token is not for this workspace";
	}
	if (status)
		refuse(request, status, words);
	return !status;
}

void cell__handle_login(struct cell__request *request)
{
	struct cell_server *server = request->server;
	const char *type = cell__request_header(request, "Content-Type"), *form = request->body.data ? request->body.data : "";
	size_t size = request->body.size;
	CELL_AUTO_FREE char *name = cell__query_value(form, size, "server");
	CELL_AUTO_FREE char *token = cell__query_value(form, size, "token");
	CELL_AUTO_FREE char *scope = cell__query_value(form, size, "scope");
	CELL_AUTO_FREE char *given = cell__query_value(form, size, "workspace");
	const char *fixed = server->mcp ? cell__space_workspace(server->opts.space) : NULL;
	const char *workspace = server->mcp ? fixed ? fixed : "" : given ? given : "";
	struct cell__login *login;
	bool valid = server->login_base && type && !strncasecmp(type, "application/x-www-form-urlencoded", 33) && size <= MAX_FORM &&
		     name && *name && strlen(name) <= CELL_SERVER_MAX_NAME && (!*workspace || cell__workspace_id_ok(workspace));

	if (!valid)
		refuse(request, MHD_HTTP_BAD_REQUEST, "This is not the form of this page.");
	else if (!check_person(request, token, workspace))
		; /* answered */
	else if (!(login = login_create(request, name)))
		refuse(request, MHD_HTTP_TOO_MANY_REQUESTS, "Too many logins are under way.");
	else {
		snprintf(login->workspace, sizeof(login->workspace), "%s", *workspace ? workspace : request->who.workspace);
		login->scope = scope && *scope ? cell__take_ptr(scope) : NULL;
		if (server->mcp)
			begin(login, server->opts.space);
		else
			cell__workspace_get(server, login->workspace, handle_workspace, login);
	}
	if (token)
		OPENSSL_cleanse(token, strlen(token));
	if (request->body.data)
		OPENSSL_cleanse(request->body.data, size);
}

/* ---- the redirect ---- */

/* The login that a redirect ends: its state, from the browser that began it. */
static struct cell__login *find_login(const struct cell__request *request, const char *state)
{
	struct cell__login *login = request->server->logins;
	size_t size = strlen(state);
	const char *browser;
	char name[40];

	while (login && (login->request || !login->pending.state || strlen(login->pending.state) != size ||
			 CRYPTO_memcmp(login->pending.state, state, size) != 0))
		login = login->next;
	if (!login || login->until_us < cell__now_us())
		return NULL;
	snprintf(name, sizeof(name), "workcell-login-%.8s", login->id + 8);
	browser = MHD_lookup_connection_value(request->connection, MHD_COOKIE_KIND, name);
	return browser && strlen(browser) == BROWSER_DIGITS && CRYPTO_memcmp(browser, login->browser, BROWSER_DIGITS) == 0 ? login : NULL;
}

static void do_complete(uv_work_t *work)
{
	struct cell__login *login = work->data;

	login->status = cell__oauth_complete(login->oauth, &login->pending, login->query, &login->err);
}

static void handle_completed(uv_work_t *work, int cancelled)
{
	struct cell__login *login = work->data;
	struct cell_server *server = login->server;
	struct cell__request *request = login->request;
	struct cell_space *space = server->mcp ? server->opts.space : NULL;

	(void)cancelled; /* never */
	if (login->status < 0) {
		fail(login, &login->err);
		return;
	}
	for (struct cell__workspace *at = server->workspaces; at && !server->mcp; at = at->next) {
		if (at->space && !strcmp(at->id, login->workspace))
			space = at->space;
	}
	if (space)
		cell__tools_oauth_changed(cell__space_tools(space), login->name);
	cell__server_log(server, CELL_LOG_INFO, "request %s: %s has logged in at the MCP server %s", request->id, login->owner,
			 login->name);
	answer_words(request, MHD_HTTP_OK, "Logged in", "Calls of this server's tools work from now on. This window may be closed.");
	drop(login);
}

void cell__handle_login_callback(struct cell__request *request)
{
	CELL_AUTO_FREE char *query = query_of(request), *state = argument(request, "state");
	struct cell__login *login = state ? find_login(request, state) : NULL;
	struct cell__token owner;

	if (!login) {
		refuse(request, MHD_HTTP_FORBIDDEN,
		       "This login is not known: it was completed already, is too old, or was begun with another browser.");
		return;
	}
	login->request = request;
	login->query = cell__take_ptr(query);
	request->who = (struct cell__token){ 0 };
	snprintf(request->who.name, sizeof(request->who.name), "%s", login->owner); /* for the log */
	if (!cell__token_by_name(request->server, login->owner, &owner) || !(owner.scopes & CELL_SCOPE_APPROVE)) {
		struct cell_error err;

		cell_fail(&err, CELL_E_FORBIDDEN, 0, "the token that began this login was withdrawn");
		fail(login, &err);
		return;
	}
	uv_queue_work(cell__loop_uv(request->server->engine->loop), &login->work, do_complete, handle_completed);
}

int cell__login_owner(const struct cell__request *request)
{
	CELL_AUTO_FREE char *state = argument(request, "state");
	char id[ID_DIGITS + 1];

	if (!state || strlen(state) <= ID_DIGITS || state[ID_DIGITS] != '.')
		return -1;
	memcpy(id, state, ID_DIGITS);
	id[ID_DIGITS] = '\0';
	return cell__pool_owner(request->server, id);
}

/* ---- what a client sees of it ---- */

void cell__logins_offer(struct cell_server *server, struct cell_space *space, const char *workspace)
{
	CELL_AUTO_BUF struct cell__buf page = CELL_BUF_INIT;

	if (server->login_base && cell__buf_printf(&page, "%s/oauth/login?%s%s%sserver=", server->login_base,
						   *workspace ? "workspace=" : "", workspace, *workspace ? "&" : "") == 0)
		cell__tools_login_at(cell__space_tools(space), page.data);
}

static void answer_list(struct cell__request *request, struct cell_space *space)
{
	json_t *list = cell__tools_logins(cell__space_tools(space));

	cell__answer_json(request, MHD_HTTP_OK, list ? json_pack("{s:o}", "logins", list) : NULL);
}

static void handle_listed(void *arg, struct cell__workspace *workspace, const struct cell_error *err)
{
	struct cell__request *request = arg;

	if (!workspace) {
		cell__answer_error(request, err);
		return;
	}
	request->workspace = workspace;
	answer_list(request, workspace->space);
}

void cell__handle_v1_logins(struct cell__request *request)
{
	if (request->server->mcp)
		answer_list(request, request->server->opts.space);
	else
		cell__workspace_get(request->server, request->who.workspace, handle_listed, request);
}

int cell__logins_init(struct cell_server *server, struct cell_error *err)
{
	const char *given = server->opts.public_url;
	struct cell__oauth_url parts;
	size_t size;

	if (!given && !server->address.loopback)
		return 0; /* what others call this server is not known */
	if (!given && !strncmp(server->url, "unix:", 5))
		return 0;
	if (given &&
	    (cell__oauth_url_read(given, &parts) < 0 || strchr(given, '?') || (!parts.secure && !cell__oauth_is_loopback(parts.host))))
		return cell_fail(err, CELL_E_INVALID, 0, "public_url must be an https URL without a query, not '%.120s'", given);
	size = strlen(given ? given : server->url);
	while (size && (given ? given : server->url)[size - 1] == '/')
		size--;
	server->login_base = cell__strndup(given ? given : server->url, size);
	return server->login_base ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}
