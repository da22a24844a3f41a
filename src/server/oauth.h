/*
 * OAuth: the server as a protected resource (RFC 9728) whose clients have access tokens of one authorization server, beside the tokens of a
 * file.  Belongs to the loop's thread, except for cell__oauth_config_load().
 *
 *     a request with a token that is not in the file
 *         │
 *         ├── accepted not long ago ─────────────────────────────▶ good
 *         ├── JWT: its key is known ─────────────────────────────▶ good or refused, at once
 *         │        its key is not known ──▶ waits for the keys ──▶ good, refused, or the issuer cannot be reached
 *         └── introspection ──▶ waits for the issuer's answer ───▶ the same
 *
 * A request that waits is suspended; nothing blocks.  A wait belongs to its request, which takes it off the list when it ends.
 *
 * The principal is "oauth:" and the subject; no token of a file can have such a name, so sessions of a subject are its own.
 */
#ifndef CELL_SERVER_OAUTH_H
#define CELL_SERVER_OAUTH_H

#include "server/server.h"

#define CELL_OAUTH_PREFIX "oauth:"
#define CELL_OAUTH_MAX_SCOPES 64u     /* of the configuration */
#define CELL_OAUTH_MAX_VALUES 16u     /* audiences, required claims */
#define CELL_OAUTH_MAX_SKEW_S 300
#define CELL_OAUTH_MAX_CACHE_S 300
#define CELL_OAUTH_MAX_WAITING 256u   /* requests that wait for the issuer */
#define CELL_OAUTH_ACCEPTED 1024u     /* tokens that are known to be good */
#define CELL_OAUTH_METADATA "/.well-known/oauth-protected-resource"

struct cell__oauth_scope {
	char *name; /* the issuer's */
	unsigned scopes; /* ours */
};

struct cell__oauth_config {
	char *resource, *issuer, *jwks, *introspection, *client_id, *client_secret, *ca, *subject, *workspace;
	char *metadata; /* the URL of our own */
	char *audiences[CELL_OAUTH_MAX_VALUES + 1];
	size_t n_audiences;
	struct {
		char *name, *value;
	} claims[CELL_OAUTH_MAX_VALUES]; /* that a token must have */
	size_t n_claims;
	struct cell__oauth_scope scopes[CELL_OAUTH_MAX_SCOPES];
	size_t n_scopes;
	struct cell__quotas quotas; /* of each subject */
	unsigned algs;
	int64_t skew_s, cache_s;
};

/* Reads the file; may wait. */
int cell__oauth_config_load(const char *file, struct cell__oauth_config **ret_config, struct cell_error *err);
/* The same from bytes.  Pure. */
int cell__oauth_config_parse(const char *file, const char *text, size_t size, struct cell__oauth_config **ret_config,
			     struct cell_error *err);
void cell__oauth_config_destroy(struct cell__oauth_config *config);
/* For the MCP server, which cannot keep quotas. */
int cell__oauth_refuse_quotas(const struct cell__oauth_config *config, struct cell_error *err);
/* The principal of claims that have been checked: name, scopes, workspace, quotas.  Pure.  -1: CELL_E_AUTH, with the reason. */
int cell__oauth_principal(const struct cell__oauth_config *config, const json_t *claims, struct cell__token *ret_token,
			  struct cell_error *err);
/* The issuer's scopes that give these of ours, with spaces between them.  Pure.  -1: out of memory. */
int cell__oauth_scopes(const struct cell__oauth_config *config, unsigned scopes, struct cell__buf *out);

/* Takes the configuration over.  Before the server runs. */
int cell__oauth_create(struct cell_server *server, struct cell__oauth_config *config, struct cell_error *err);
/* On the loop: the server runs. */
const struct cell__oauth_config *cell__oauth_config_of(const struct cell_server *server);
int cell__oauth_start(struct cell_server *server, struct cell_error *err);
/* Takes the new one over; tokens are checked again, and requests that wait are refused for now. */
void cell__oauth_replace(struct cell_server *server, struct cell__oauth_config *config);
/* Requests that wait are refused.  Nothing is asked any more. */
void cell__oauth_stop(struct cell_server *server);
/* After cell__oauth_stop(); closed() is called in a later iteration of the loop. */
void cell__oauth_close(struct cell_server *server, void (*closed)(void *arg), void *arg);
void cell__oauth_destroy(struct cell_server *server);
/* Once a second: keys are fetched again. */
void cell__oauth_sweep(struct cell_server *server, int64_t now_us);

enum cell__oauth_verdict {
	CELL_OAUTH_GOOD,    /* request->who is set */
	CELL_OAUTH_REFUSED, /* err has the reason */
	CELL_OAUTH_BROKEN,  /* the issuer cannot be asked, and err has the reason */
	CELL_OAUTH_LOCKED,  /* too many failures of its address: the issuer is not asked */
	CELL_OAUTH_WAITING, /* call it again when the request, to be suspended now, is resumed */
};
enum cell__oauth_verdict cell__oauth_check(struct cell__request *request, const char *token, struct cell_error *err);
/* The request ends. */
void cell__oauth_leave(struct cell__request *request);
/* The WWW-Authenticate of a refusal; error NULL: no token was sent.  free() it; NULL: out of memory. */
char *cell__oauth_challenge_for(const struct cell_server *server, unsigned scopes, const char *error, const char *words);
/* Whether the path is one of our metadata. */
bool cell__oauth_is_metadata(const struct cell_server *server, const char *method, const char *path);
extern const struct cell__route cell__oauth_route;

#endif
