/* `workcell models`: models for searches by meaning in this process (--embeddings builtin). */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/words.h"

struct models_flags {
	bool json;
	const char *name, *sha256;
	struct cell_cli_list operands;
};

#define AT(member) offsetof(struct models_flags, member)

static const struct cell_cli_flag flags[] = {
	{ 0, "json", NULL, "print JSON", CELL_FLAG_SWITCH, AT(json) },
	{ 0, "name", "NAME", "install: the model's name (default " CELL_CLI_MODEL ")", CELL_FLAG_STRING, AT(name) },
	{ 0, "sha256", "HEX", "install: refuse a model.onnx with another checksum", CELL_FLAG_STRING, AT(sha256) },
	{ 0 },
};

const struct cell_cli_command cell__cli_models_command = {
	.name = "models",
	.summary = "install models for searches by meaning without a server",
	.synopsis = "install SOURCE... [--name NAME] [--sha256 HEX] | list | remove NAME",
	.about = "With --embeddings builtin tools and workflows are also searched by meaning, by a small model that ONNX\n"
		 "Runtime computes in this process. Nothing is sent anywhere.\n\n"
		 "  install  copies a model from files, folders or URLs: *.onnx, *tokenizer.json, and libonnxruntime.so*\n"
		 "           unless the system has it; prints their checksums. URLs are https, or http on a private network\n"
		 "  list     the installed models\n"
		 "  remove   removes one\n\n"
		 "Models are in $XDG_DATA_HOME/workcell/models (default ~/.local/share). A library that is installed here is\n"
		 "run in this process: take it from where you would take a program.",
	.examples = "  workcell models install ~/Downloads/bge-small-en-v1.5\n"
		    "  workcell models list",
	.flags = flags,
	.verbs = "install list remove",
	.run = cell__cmd_models,
};

static int print_files(const char *text)
{
	json_t *files = json_loads(text, 0, NULL), *file;
	size_t i;

	json_array_foreach(files, i, file)
		printf("%s  %s  %lld bytes\n", cell__cli_text(file, "sha256"), cell__cli_text(file, "file"),
		       (long long)json_integer_value(json_object_get(file, "bytes")));
	json_decref(files);
	return 0;
}

static int list_models(const char *text)
{
	json_t *models = json_loads(text, 0, NULL), *model;
	char size[32];
	size_t i;

	if (!json_array_size(models))
		printf("no models; see `workcell models --help`\n");
	json_array_foreach(models, i, model) {
		cell__size_words((uint64_t)json_integer_value(json_object_get(model, "bytes")), size);
		printf("%s  %s\n", cell__cli_text(model, "name"), size);
	}
	json_decref(models);
	return 0;
}

static int install(const struct models_flags *values, const char *dir, struct cell_error *err)
{
	size_t n = values->operands.count;
	const char **sources = calloc(n, sizeof(*sources));
	char *text = NULL;
	int status;

	if (!sources)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	for (size_t i = 1; i < n; i++)
		sources[i - 1] = values->operands.items[i].value;
	status = cell_model_install(dir, values->name ? values->name : CELL_CLI_MODEL, sources, values->sha256, &text, err);
	if (!status && values->json)
		cell__cli_line(text);
	else if (!status)
		print_files(text);
	free(sources);
	free(text);
	return status;
}

static int do_verb(const struct models_flags *values, const char *verb, const char *dir, struct cell_error *err)
{
	char *text = NULL;
	int status;

	if (!strcmp(verb, "install") && values->operands.count > 1)
		return install(values, dir, err);
	if (!strcmp(verb, "remove") && values->operands.count == 2)
		return cell_model_remove(dir, values->operands.items[1].value, err);
	if (strcmp(verb, "list") || values->operands.count != 1)
		return cell_fail(err, CELL_E_INVALID, 0, "usage: workcell models install SOURCE... | list | remove NAME");
	status = cell_model_list(dir, &text, err);
	if (!status && values->json)
		cell__cli_line(text);
	else if (!status)
		list_models(text);
	free(text);
	return status;
}

int cell__cmd_models(int argc, char **argv)
{
	struct models_flags values = { 0 };
	struct cell_error err;
	char *dir = NULL;
	int status;

	if (cell__cli_parse(&cell__cli_models_command, argc, argv, &values, &values.operands, &status)) {
		dir = cell__cli_models_dir(NULL);
		if (!dir)
			status = cell_fail(&err, CELL_E_INVALID, 0,
					   "models have no folder: neither XDG_DATA_HOME nor HOME is an absolute path");
		else
			status = do_verb(&values, values.operands.count ? values.operands.items[0].value : "", dir, &err);
		if (status < 0)
			status = cell__cli_report(&err, values.json);
	}
	free(dir);
	cell__cli_list_finish(&values.operands);
	return status;
}
