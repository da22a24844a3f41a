/* The flags of commands that listen for clients of HTTP (`workcell serve`, `workcell mcp --listen`), and the options they become. */
#ifndef CELL_CLI_LISTEN_H
#define CELL_CLI_LISTEN_H

#include "cli.h"

struct cell_cli_listen_flags {
	struct cell_cli_list origins, hosts;
	const char *listen, *token_file, *oauth, *public_url, *tls_cert, *tls_key, *log;
	int64_t max_sessions, idle_ms, max_body, stream_bytes, resume_ms, head_ms, silent_ms, max_connections, max_header;
	bool auth_disabled;
};

extern const struct cell_server_limits cell__cli_server_defaults;
#define CELL_CLI_LISTEN_FLAGS_INIT(sessions, connections)         \
	{ .max_sessions = (sessions),                             \
	  .idle_ms = cell__cli_server_defaults.idle_ms,           \
	  .max_body = cell__cli_server_defaults.max_body_bytes,   \
	  .stream_bytes = cell__cli_server_defaults.stream_bytes, \
	  .resume_ms = cell__cli_server_defaults.resume_ms,       \
	  .head_ms = cell__cli_server_defaults.head_ms,           \
	  .silent_ms = cell__cli_server_defaults.silent_ms,       \
	  .max_connections = (connections),                       \
	  .max_header = cell__cli_server_defaults.max_header_bytes }

/* The rows of a flag table; `at` is the offset of the struct above. Each server describes --listen, the token and --allow-host itself. */
#define CELL_CLI_LISTEN_AT(at, member) ((at) + offsetof(struct cell_cli_listen_flags, member))
/* clang-format off */
#define CELL_CLI_LISTEN_FLAGS(at)                                                                 \
	{ 0, "oauth", "FILE", "accept access tokens of the OAuth authorization server in this file too (docs/oauth.md)", \
	  CELL_FLAG_STRING, CELL_CLI_LISTEN_AT(at, oauth) },                                      \
	{ 0, "public-url", "URL", "how browsers reach this server, for logins at MCP servers (docs/mcp.md); default: a loopback address itself", \
	  CELL_FLAG_STRING, CELL_CLI_LISTEN_AT(at, public_url) },                                 \
	{ 0, "auth-disabled", NULL, "accept every client on this machine; only with a loopback address or a Unix socket", \
	  CELL_FLAG_SWITCH, CELL_CLI_LISTEN_AT(at, auth_disabled) },                              \
	{ 0, "tls-cert", "FILE", "serve HTTPS with this certificate (PEM)", CELL_FLAG_STRING, CELL_CLI_LISTEN_AT(at, tls_cert) }, \
	{ 0, "tls-key", "FILE", "the key of the certificate (PEM)", CELL_FLAG_STRING, CELL_CLI_LISTEN_AT(at, tls_key) }, \
	{ 0, "allow-origin", "ORIGIN", "allow web pages of this origin, like https://example.org; may be repeated", \
	  CELL_FLAG_LIST, CELL_CLI_LISTEN_AT(at, origins) },                                      \
	{ 0, "max-sessions", "N", "maximum number of sessions", CELL_FLAG_COUNT, CELL_CLI_LISTEN_AT(at, max_sessions) }, \
	{ 0, "max-body", "BYTES", "of a request", CELL_FLAG_BYTES, CELL_CLI_LISTEN_AT(at, max_body) }, \
	{ 0, "max-header", "BYTES", "maximum size of a request's header", CELL_FLAG_BYTES, CELL_CLI_LISTEN_AT(at, max_header) }, \
	{ 0, "max-connections", "N", "at once", CELL_FLAG_COUNT, CELL_CLI_LISTEN_AT(at, max_connections) }, \
	{ 0, "stream-buffer", "BYTES", "sent events to keep for readers that reconnect", \
	  CELL_FLAG_BYTES, CELL_CLI_LISTEN_AT(at, stream_bytes) },                                \
	{ 0, "resume-window", "SEC", "seconds to wait for a reader whose connection broke",   \
	  CELL_FLAG_SECONDS, CELL_CLI_LISTEN_AT(at, resume_ms) },                                 \
	{ 0, "head-timeout", "SEC", "seconds within which a new connection must send a request",       \
	  CELL_FLAG_SECONDS, CELL_CLI_LISTEN_AT(at, head_ms) },                                   \
	{ 0, "silent-timeout", "SEC", "seconds after which an idle connection is closed",            \
	  CELL_FLAG_SECONDS, CELL_CLI_LISTEN_AT(at, silent_ms) },                                 \
	{ 0, "log", "FORM", "text, json or off (default text)", CELL_FLAG_STRING, CELL_CLI_LISTEN_AT(at, log) }
/* clang-format on */

/* The limits that are flags here. */
void cell__cli_listen_limits(const struct cell_cli_listen_flags *flags, struct cell_server_limits *limits);
/*
 * Sets all options except --listen, the token and the limits. log_level: debug, info, warning or error. Reads files, and those with the
 * certificate again on reload; the flags must outlive the server. Finish the options in any case.
 */
int cell__cli_listen_options(const struct cell_cli_listen_flags *flags, const char *log_level, struct cell_server_options *options,
			     struct cell_error *err);
void cell__cli_listen_options_finish(struct cell_server_options *options);
void cell__cli_listen_flags_finish(struct cell_cli_listen_flags *flags);

#endif
