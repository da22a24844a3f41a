/* `workcell kill`: ends sessions of a server, or interrupts their cells. */
#include "client.h"

#include <stdio.h>

struct kill_flags {
	struct cell_cli_client_flags client;
	bool interrupt;
};

static const struct cell_cli_flag kill_flag_table[] = {
	{ 0, "interrupt", NULL, "only interrupt the running cell; the session and its variables stay", CELL_FLAG_SWITCH,
	  offsetof(struct kill_flags, interrupt) },
	CELL_CLI_CLIENT_FLAGS(offsetof(struct kill_flags, client)),
	{ 0 },
};

const struct cell_cli_command cell__cli_kill_command = {
	.name = "kill",
	.summary = "end sessions of a server",
	.synopsis = "[--interrupt] SESSION...",
	.about =
		"SESSION is an id that `workcell ps` shows, or its beginning.  The token must be the session's own or have the scope admin.",
	.examples = "  workcell kill 3f2a --auth-token-file token\n"
		    "  workcell kill --interrupt 3f2a --auth-token-file token",
	.flags = kill_flag_table,
	.run = cell__cmd_kill,
};

static int kill_one(struct cell_client *client, const char *prefix, bool interrupt, struct cell_error *err)
{
	char id[33], path[96];

	if (cell__cli_client_find(client, prefix, id, err) < 0)
		return -1;
	snprintf(path, sizeof(path), "/v1/sessions/%s%s", id, interrupt ? "/interrupt" : "");
	return cell__cli_client_ask(client, interrupt ? "POST" : "DELETE", path, NULL, NULL, err);
}

int cell__cmd_kill(int argc, char **argv)
{
	struct kill_flags flags = { 0 };
	struct cell_cli_list sessions = { 0 };
	struct cell_client *client = NULL;
	struct cell_error err;
	int status, exit_status = 0;

	if (!cell__cli_parse(&cell__cli_kill_command, argc, argv, &flags, &sessions, &exit_status)) {
		cell__cli_list_finish(&sessions);
		return exit_status;
	}
	status = sessions.count ? cell__cli_client_open(&flags.client, &client, &err)
				: cell_fail(&err, CELL_E_INVALID, 0, "give at least one session; `workcell ps` lists them");
	if (status < 0)
		exit_status = cell__cli_report(&err, false);
	for (size_t i = 0; client && i < sessions.count; i++) {
		if (kill_one(client, sessions.items[i].value, flags.interrupt, &err) < 0)
			exit_status = cell__cli_report(&err, false);
	}
	cell_client_destroy(client);
	cell__cli_list_finish(&sessions);
	return exit_status;
}
