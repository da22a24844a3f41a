/*
 * OAuth 2.1 for remote MCP servers: who may issue tokens for a server, the login of a person, and tokens that are kept.
 *
 *     login:  401 of the server ──▶ its metadata ──▶ its authorization server's metadata ──▶ our client there (given, by metadata, registered)
 *             ──▶ link with PKCE S256, shown to a person ──▶ loopback redirect: state and iss checked ──▶ code for tokens ──▶ file
 *     use:    file ──▶ still valid ──▶ header
 *                └──▶ expired, or refused ──▶ refreshed ──▶ file, header
 *
 * All functions block, and are called on the pool or on a caller's thread, never on the loop's.  Tokens are in one file for each server's
 * URL, mode 0600, in a folder that the program names; a definition with another URL never finds them.
 *
 * A public server cannot make us talk to a private network, redirects are not followed, and answers are limited.
 */
#ifndef CELL_MCP_CLIENT_OAUTH_H
#define CELL_MCP_CLIENT_OAUTH_H

#include <jansson.h>

#include "base/base.h"

#define CELL_OAUTH_LIMIT_METADATA (256u * 1024u) /* bytes of one answer */
#define CELL_OAUTH_TIMEOUT_MS 20000              /* for one request */
#define CELL_OAUTH_LOGIN_MS 300000               /* for a person */
#define CELL_OAUTH_EARLY_S 30                    /* a token is refreshed so long before it expires */

/* What a definition says; strings may be NULL but for url and dir. */
struct cell__oauth {
	const char *url;
	const char *dir;           /* of the kept tokens */
	const char *client_id, *client_secret; /* registered by hand */
	const char *client_metadata_url;       /* an https URL that describes us, for servers that accept one as client_id */
	const char *scope;         /* further scopes to ask for */
	const char *page;          /* where a person can log in with a browser; NULL: nowhere */
};

struct cell__oauth_login {
	/* The link that a person has to open.  It has only printable ASCII.  0, or -1 to give up. */
	int (*show)(void *arg, const char *link);
	void *arg;
	int64_t timeout_ms;
};

/* What is known about a server and its issuer; all members owned. */
struct cell__oauth_issuer {
	json_t *metadata; /* of the authorization server */
	char *issuer, *resource, *scope;
	bool allow_private;
};

/* A login whose person is at the authorization server; all members owned. */
struct cell__oauth_pending {
	struct cell__oauth_issuer issuer;
	json_t *kept; /* what will be kept, without tokens */
	char *redirect, *state, *verifier, *link;
};
/*
 * The two halves of a login whose redirect somebody else receives, for example an HTTP server.  prefix: begins the state.  query: that of the
 * redirect, whose state the caller has compared.
 */
int cell__oauth_begin(const struct cell__oauth *oauth, const char *redirect, const char *prefix, struct cell__oauth_pending *ret_pending,
		      struct cell_error *err);
int cell__oauth_complete(const struct cell__oauth *oauth, struct cell__oauth_pending *pending, const char *query, struct cell_error *err);
void cell__oauth_pending_finish(struct cell__oauth_pending *pending);

/* Both halves, with a redirect to a port of this computer. */
int cell__oauth_login(const struct cell__oauth *oauth, const struct cell__oauth_login *login, struct cell_error *err);
/* "Authorization: Bearer ..."; free() it after zeroing.  renew: the server refused the one that was used. */
int cell__oauth_header(const struct cell__oauth *oauth, bool renew, char **ret_header, struct cell_error *err);
/* CELL_E_NOT_FOUND: there were no tokens. */
int cell__oauth_logout(const struct cell__oauth *oauth, struct cell_error *err);

/* ---- between oauth.c, oauth_find.c and oauth_store.c ---- */

int cell__oauth_find(const struct cell__oauth *oauth, struct cell__oauth_issuer *ret_issuer, struct cell_error *err);
void cell__oauth_issuer_finish(struct cell__oauth_issuer *issuer);
/* An endpoint of the metadata, checked; NULL: err has the reason. */
const char *cell__oauth_endpoint(const struct cell__oauth_issuer *issuer, const char *name, struct cell_error *err);
/* A POST whose answer is a JSON object.  *ret_status is set also on failure. */
int cell__oauth_post(const char *url, const char *type, const char *body, const char *authorization, bool allow_private, json_t **ret_json,
		     long *ret_status, struct cell_error *err);

/* {"url", "issuer", "client_id", "client_secret", "method", "token_endpoint", "access_token", "refresh_token", "expires", "scope", ...} */
int cell__oauth_load(const struct cell__oauth *oauth, json_t **ret_kept, struct cell_error *err);
int cell__oauth_keep(const struct cell__oauth *oauth, const json_t *kept, struct cell_error *err);
int cell__oauth_forget(const struct cell__oauth *oauth, struct cell_error *err);

#endif
