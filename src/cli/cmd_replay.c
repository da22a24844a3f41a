/* `workcell replay`: runs recordings again and compares. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

struct replay_flags {
	struct cell_cli_session_flags session;
	struct cell_cli_list files;
	bool json;
};

static const struct cell_cli_flag replay_flag_table[] = {
	{ 0, "json", NULL, "print one JSON object per recording, on one line", CELL_FLAG_SWITCH, offsetof(struct replay_flags, json) },
	CELL_CLI_SESSION_FLAGS_OF(offsetof(struct replay_flags, session), "as recorded"),
	{ 0 },
};

const struct cell_cli_command cell__cli_replay_command = {
	.name = "replay",
	.summary = "run recordings again and compare",
	.synopsis = "[flags] FILE...",
	.about = "Runs the cells of a recording (--record of run, shell and serve) again in a new session.  Calls to tools, storage\n"
		 "and packages are answered from the recording, and so are the time and the seed of random numbers.  Shows the\n"
		 "first difference of results or calls.\n\n"
		 "exit status: 0 the same, 1 a difference, 2 usage, 125 Workcell itself failed, or a file is not a recording.",
	.examples = "  workcell run --record session.jsonl -e 'import random' -e 'random.random()'\n"
		    "  workcell replay session.jsonl",
	.flags = replay_flag_table,
	.run = cell__cmd_replay,
};

/* Lines of a text, each behind a mark, without what a terminal would obey. */
static void print_side(const char *mark, const char *text)
{
	while (*text) {
		size_t n = strcspn(text, "\n");
		printf("  %s ", mark);
		for (size_t i = 0; i < n; i++)
			putchar((unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i]);
		putchar('\n');
		text += n + (text[n] == '\n');
	}
}

static void print_report(const char *name, const json_t *report)
{
	const json_t *difference = json_object_get(report, "difference");
	long long cells = json_integer_value(json_object_get(report, "cells"));

	if (!json_is_object(difference)) {
		printf("%s: %lld cell%s, the same%s\n", name, cells, cells == 1 ? "" : "s",
		       json_is_true(json_object_get(report, "whole")) ? "" : "; the recording ends in the middle of a cell");
		return;
	}
	printf("%s: cell %lld of %lld differs: %s, line %lld\n", name, (long long)json_integer_value(json_object_get(difference, "cell")),
	       cells, cell__cli_text(difference, "what"), (long long)json_integer_value(json_object_get(difference, "line")));
	print_side("-", cell__cli_text(difference, "expected"));
	print_side("+", cell__cli_text(difference, "actual"));
}

/* source NULL: a recording as it is; else of the workflow `name`, with this source. */
static int replay_one(struct cell_engine *engine, struct cell_session_options *options, const char *file, const char *name,
		      const char *source, bool json, struct cell_error *err)
{
	json_t *report;
	char *text;
	int status;

	options->replay = file;
	text = source ? cell_replay_workflow(engine, options, name, source, err) : cell_replay(engine, options, err);
	if (!text)
		return -1;
	report = json_loads(text, 0, NULL);
	status = !json_is_true(json_object_get(report, "same"));
	if (json)
		puts(text);
	else
		print_report(name, report);
	json_decref(report);
	free(text);
	return status;
}

int cell__cli_replay_workflow(struct cell_engine *engine, struct cell_session_options *options, const char *file, const char *name,
			      const char *source, bool json, struct cell_error *err)
{
	return replay_one(engine, options, file, name, source, json, err);
}

int cell__cmd_replay(int argc, char **argv)
{
	struct replay_flags flags = { .session = CELL_CLI_SESSION_FLAGS_INIT(0) };
	struct cell_cli_session_options all;
	struct cell_cli_host host;
	struct cell_error err;
	int status, exit_status = 0;

	if (!cell__cli_parse(&cell__cli_replay_command, argc, argv, &flags, &flags.files, &exit_status))
		goto out;
	status = flags.files.count ? cell__cli_check_executor(&flags.session, flags.session.executor, &err)
				   : cell_fail(&err, CELL_E_INVALID, 0, "give at least one recording");
	if (status == 0 && cell__cli_has_space(&flags.session.space))
		status = cell_fail(&err, CELL_E_INVALID, 0, "a replay has no tools and no storage: they are answered from the recording");
	if (status == 0)
		status = cell__cli_open_host(&flags.session, false, &host, &all, &err);
	if (status < 0) {
		exit_status = cell__cli_report(&err, flags.json);
		goto out;
	}
	for (size_t i = 0; i < flags.files.count && exit_status < 2; i++) {
		const char *name = flags.files.items[i].value;

		status = replay_one(host.engine, &all.options, name, name, NULL, flags.json, &err);
		if (status < 0) {
			exit_status = cell__cli_report(&err, flags.json);
			exit_status = exit_status == 1 ? 125 : exit_status; /* 1 is a difference */
		} else if (status) {
			exit_status = 1;
		}
	}
	cell__cli_options_finish(&all);
	cell__cli_close(&host);
out:
	cell__cli_list_finish(&flags.files);
	cell__cli_list_finish(&flags.session.env);
	return exit_status;
}
