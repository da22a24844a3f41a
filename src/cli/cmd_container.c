/*
 * `workcell container`: the image of the executor container.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "progress.h"

static const struct cell_cli_flag container_flag_table[] = {
	CELL_CLI_CONTAINER_IMAGE_FLAGS(0),
	{ 0 },
};

const struct cell_cli_command cell__cli_container_command = {
	.name = "container",
	.summary = "build the image of the executor container",
	.synopsis = "build",
	.about =
		"Builds the image from a source tree's packaging/Dockerfile (docs/executors.md).  An image that is missing when a session\n"
		"is opened is built the same way.",
	.examples = "  workcell container build\n"
		    "  workcell container build --container-context ~/src/workcell --image registry.example/workcell:1",
	.flags = container_flag_table,
	.verbs = "build",
	.run = cell__cmd_container,
};

static void print_line(void *arg, const char *line)
{
	(void)arg;
	cell__progress_note(line);
}

static int build(const struct cell_cli_container_flags *flags, struct cell_error *err)
{
	struct cell_container_options options;
	struct cell_engine *engine = NULL;
	char *context = NULL;
	int status = -1;

	if (cell__cli_fill_container(flags, &options, &context, err) == 0 && cell_engine_create(NULL, &engine, err) == 0) {
		cell__progress_begin("building the image");
		status = cell_container_build(engine, &options, print_line, NULL, err);
		cell__progress_end();
	}
	if (engine)
		cell_engine_destroy(engine);
	free(context);
	return status;
}

int cell__cmd_container(int argc, char **argv)
{
	struct cell_cli_container_flags flags = CELL_CLI_CONTAINER_FLAGS_INIT;
	struct cell_cli_list operands = { 0 };
	struct cell_error err = { 0 };
	int status;

	if (cell__cli_parse(&cell__cli_container_command, argc, argv, &flags, &operands, &status)) {
		if (operands.count != 1 || strcmp(operands.items[0].value, "build"))
			status = cell__cli_report((cell_fail(&err, CELL_E_INVALID, 0, "usage: workcell container build"), &err), false);
		else
			status = build(&flags, &err) == 0 ? 0 : cell__cli_report(&err, false);
	}
	cell__cli_list_finish(&operands);
	return status;
}
