#define _GNU_SOURCE 1
#include "listen.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct cell_server_limits cell__cli_server_defaults = CELL_SERVER_LIMITS_INIT;

void cell__cli_listen_limits(const struct cell_cli_listen_flags *flags, struct cell_server_limits *limits)
{
	limits->max_sessions = flags->max_sessions;
	limits->idle_ms = flags->idle_ms;
	limits->max_body_bytes = flags->max_body;
	limits->max_header_bytes = flags->max_header;
	limits->max_connections = flags->max_connections;
	limits->stream_bytes = flags->stream_bytes;
	/* 0 s became -1 ("no limit"), which here means no time at all. */
	limits->resume_ms = flags->resume_ms < 0 ? 0 : flags->resume_ms;
	limits->head_ms = flags->head_ms;
	limits->silent_ms = flags->silent_ms;
}

static void write_log(void *arg, const char *lines, size_t size)
{
	(void)arg;
	cell__cli_write(STDERR_FILENO, lines, size);
}

static int fill_log(const struct cell_cli_listen_flags *flags, const char *level, struct cell_server_options *options,
		    struct cell_error *err)
{
	static const struct {
		const char *word;
		enum cell_log_level level;
	} levels[] = { { "debug", CELL_LOG_DEBUG }, { "info", CELL_LOG_INFO }, { "warning", CELL_LOG_WARN }, { "error", CELL_LOG_ERROR } };
	const char *form = flags->log ? flags->log : "text";
	size_t i = 0;

	while (i < 4 && strcmp(levels[i].word, level))
		i++;
	if (i == 4)
		return cell_fail(err, CELL_E_INVALID, 0, "--log-level must be info, warning or error, not '%s'", level);
	if (strcmp(form, "text") && strcmp(form, "json") && strcmp(form, "off"))
		return cell_fail(err, CELL_E_INVALID, 0, "--log must be text, json or off, not '%s'", form);
	options->log_level = levels[i].level;
	options->log_json = !strcmp(form, "json");
	options->log = strcmp(form, "off") ? write_log : NULL;
	return 0;
}

static int read_text(const char *path, char **ret_text, struct cell_error *err)
{
	size_t size;

	return path ? cell__cli_read_file(path, ret_text, &size, err) : 0;
}

/* On a thread of the pool; the flags do not change. */
static int reload_tls(void *arg, char **ret_cert, char **ret_key, struct cell_error *err)
{
	const struct cell_cli_listen_flags *flags = arg;

	if (read_text(flags->tls_cert, ret_cert, err) < 0)
		return -1;
	return read_text(flags->tls_key, ret_key, err);
}

static int fill_tls(const struct cell_cli_listen_flags *flags, struct cell_server_options *options, struct cell_error *err)
{
	char *cert = NULL, *key = NULL;
	int status = read_text(flags->tls_cert, &cert, err);

	if (!status)
		status = read_text(flags->tls_key, &key, err);
	options->tls_cert = cert;
	options->tls_key = key;
	options->reload_tls = reload_tls;
	options->reload_arg = (void *)flags;
	return status;
}

int cell__cli_listen_options(const struct cell_cli_listen_flags *flags, const char *log_level, struct cell_server_options *options,
			     struct cell_error *err)
{
	options->auth_disabled = flags->auth_disabled;
	options->token_file = flags->token_file;
	options->oauth_file = flags->oauth;
	options->public_url = flags->public_url;
	if (fill_log(flags, log_level, options, err) < 0 || fill_tls(flags, options, err) < 0)
		return -1;
	options->origins = cell__cli_list_values(&flags->origins);
	options->hosts = cell__cli_list_values(&flags->hosts);
	return options->origins && options->hosts ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the configuration");
}

void cell__cli_listen_options_finish(struct cell_server_options *options)
{
	free((void *)options->origins);
	free((void *)options->hosts);
	free((void *)options->tls_cert);
	free((void *)options->tls_key);
}

void cell__cli_listen_flags_finish(struct cell_cli_listen_flags *flags)
{
	cell__cli_list_finish(&flags->origins);
	cell__cli_list_finish(&flags->hosts);
}
