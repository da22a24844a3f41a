/*
 * The least that a kernel of Jupyter has to do: it binds its sockets and answers kernel_info_request and execute_request, without running
 * anything. bench/jupyter.py starts it beside the real ones: what jupyter_client takes with it is the floor of any kernel.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/jupyter.h"

#define MAX_FILE_BYTES 65536

static void answer(struct cell_cli_ends *ends, const struct cell_cli_request *request)
{
	const char *type = request->message.type;
	bool info = !strcmp(type, "kernel_info_request");
	json_t *content = info ? json_pack("{s:s, s:s, s:s, s:s, s:s, s:{s:s, s:s}}", "status", "ok", "protocol_version",
					   CELL_JUPYTER_VERSION, "implementation", "floor", "implementation_version", "0", "banner", "",
					   "language_info", "name", "none", "version", "0")
			       : json_pack("{s:s, s:i, s:{}, s:[]}", "status", "ok", "execution_count", 1, "user_expressions", "payload");

	cell__cli_ends_send_json(ends, CELL_JUPYTER_PORT_SHELL, request, request->header, info ? "kernel_info_reply" : "execute_reply",
				 content);
	cell__cli_ends_send_json(ends, CELL_JUPYTER_PORT_IOPUB, NULL, request->header, "status",
				 json_pack("{s:s}", "execution_state", "idle"));
}

int main(int argc, char **argv)
{
	struct cell__jupyter_connection connection;
	struct cell_cli_request request = { 0 };
	struct cell_cli_ends *ends;
	struct cell_error err;
	char text[MAX_FILE_BYTES];
	size_t size;
	FILE *file = argc == 2 ? fopen(argv[1], "re") : NULL;

	if (!file) {
		fprintf(stderr, "usage: jupyter_floor CONNECTION_FILE\n");
		return 2;
	}
	size = fread(text, 1, sizeof(text), file);
	fclose(file);
	if (cell__jupyter_connection_parse(text, size, &connection, &err) < 0 || cell__cli_ends_create(&connection, &ends, &err) < 0) {
		fprintf(stderr, "jupyter_floor: %s\n", err.msg);
		return 1;
	}
	for (;;) { /* until it is killed */
		cell__cli_ends_wait(ends, CELL_JUPYTER_PORT_SHELL, CELL_JUPYTER_PORT_SHELL, -1);
		while (cell__cli_ends_receive(ends, CELL_JUPYTER_PORT_SHELL, &request)) {
			answer(ends, &request);
			cell__cli_request_finish(&request);
		}
	}
}
