/* The server that the commands `ps`, `top`, `kill`, `logs`, `attach` and `files` operate: its flags, its sessions. */
#ifndef CELL_CLI_CLIENT_H
#define CELL_CLI_CLIENT_H

#include "cli.h"

#define CELL_CLI_URL_VARIABLE "WORKCELL_REMOTE_URL"
#define CELL_CLI_TOKEN_VARIABLE "WORKCELL_SERVE_TOKEN"

struct cell_cli_client_flags {
	const char *url, *token_file, *ca;
};

/* The rows of a flag table; `at` is the offset of the struct above. */
#define CELL_CLI_CLIENT_AT(at, member) ((at) + offsetof(struct cell_cli_client_flags, member))
/* clang-format off */
#define CELL_CLI_CLIENT_FLAGS(at)                                                                                     \
	{ 0, "remote-url", "URL", "the server: http://, https:// or unix:PATH (default $" CELL_CLI_URL_VARIABLE ", else http://127.0.0.1:8080)", \
	  CELL_FLAG_STRING, CELL_CLI_CLIENT_AT(at, url) },                                                            \
	{ 0, "auth-token-file", "FILE", "its token (default $" CELL_CLI_TOKEN_VARIABLE ")",                           \
	  CELL_FLAG_STRING, CELL_CLI_CLIENT_AT(at, token_file) },                                                     \
	{ 0, "remote-ca", "FILE", "certificates to trust instead of the system's (PEM)",                              \
	  CELL_FLAG_STRING, CELL_CLI_CLIENT_AT(at, ca) }
/* clang-format on */

int cell__cli_client_open(const struct cell_cli_client_flags *flags, struct cell_client **ret_client, struct cell_error *err);
/* body NULL: none; borrowed.  *ret_answer stays as it is for an answer without a body; ret_answer may be NULL. */
int cell__cli_client_ask(struct cell_client *client, const char *method, const char *path, const json_t *body, json_t **ret_answer,
			 struct cell_error *err);

/* {"sessions": [...]}, those of all clients if the token may see them. */
int cell__cli_client_sessions(struct cell_client *client, json_t **ret_list, struct cell_error *err);
/* The id of the session that begins like this. */
int cell__cli_client_find(struct cell_client *client, const char *prefix, char ret_id[static 33], struct cell_error *err);

#endif
