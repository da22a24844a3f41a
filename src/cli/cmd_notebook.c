/* `workcell notebook`: a Jupyter notebook of a recording. */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct notebook_flags {
	const char *out;
};

static const struct cell_cli_flag notebook_flag_table[] = {
	{ 0, "out", "FILE", "write it to this file instead of stdout", CELL_FLAG_STRING, offsetof(struct notebook_flags, out) },
	{ 0 },
};

const struct cell_cli_command cell__cli_notebook_command = {
	.name = "notebook",
	.summary = "make a Jupyter notebook of a recording",
	.synopsis = "[--out FILE] RECORDING",
	.about = "Prints a notebook (nbformat 4.5) with the cells of a recorded session, their output, values, plots and errors.\n"
		 "`workcell run FILE.ipynb` runs one.",
	.examples = "  workcell run --record session.jsonl -e 'print(1)'\n"
		    "  workcell notebook session.jsonl > session.ipynb",
	.flags = notebook_flag_table,
	.run = cell__cmd_notebook,
};

static int write_out(const char *path, const char *text, struct cell_error *err)
{
	FILE *file = path ? fopen(path, "we") : stdout;

	if (!file)
		return cell_fail(err, CELL_E_IO, errno, "cannot write %.150s", path);
	int failed = fputs(text, file) == EOF || fputc('\n', file) == EOF || fflush(file) == EOF;
	if (failed)
		cell_fail(err, CELL_E_IO, errno, "cannot write %.150s", path ? path : "to stdout");
	if (path && fclose(file) == EOF && !failed)
		failed = cell_fail(err, CELL_E_IO, errno, "cannot write %.150s", path);
	return failed ? -1 : 0;
}

int cell__cmd_notebook(int argc, char **argv)
{
	struct notebook_flags flags = { 0 };
	struct cell_cli_list files = { 0 };
	struct cell_error err;
	char *text = NULL;
	int status = 0;

	if (cell__cli_parse(&cell__cli_notebook_command, argc, argv, &flags, &files, &status)) {
		if (files.count != 1)
			cell_fail(&err, CELL_E_INVALID, 0, "give one recording");
		else
			text = cell_recording_notebook(files.items[0].value, &err);
		if (!text || write_out(flags.out, text, &err) < 0)
			status = cell__cli_report(&err, false);
	}
	free(text);
	cell__cli_list_finish(&files);
	return status;
}
