/*
 * The row of generated modules: from the text of a tools/list answer with a hundred tools to the package in its folder.
 */
#define _GNU_SOURCE
#include "rows_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#define TOOLS 100
#define CHECKED "tool_099.py"

/* What tools of real servers have: texts, numbers with limits, enums, defaults, nested objects, references, a result. */
static const char schema_text[] =
	"{\"type\": \"object\", \"properties\": {"
	"\"path\": {\"type\": \"string\", \"description\": \"Where to look, relative to the root of the repository.\"},"
	"\"query\": {\"type\": \"string\", \"minLength\": 1, \"maxLength\": 256, \"description\": \"What to look for.\"},"
	"\"page\": {\"type\": \"integer\", \"minimum\": 1, \"default\": 1, \"description\": \"Which page of the answer.\"},"
	"\"per-page\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 100, \"default\": 30},"
	"\"order\": {\"type\": \"string\", \"enum\": [\"asc\", \"desc\"], \"default\": \"desc\"},"
	"\"since\": {\"type\": \"string\", \"format\": \"date-time\"},"
	"\"labels\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}, \"default\": []},"
	"\"edits\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/Edit\"}}},"
	"\"required\": [\"path\", \"query\"], \"additionalProperties\": false,"
	"\"$defs\": {\"Edit\": {\"type\": \"object\", \"properties\": {\"old\": {\"type\": \"string\"}, \"new\": {\"type\": \"string\"},"
	"\"more\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/Edit\"}}}, \"required\": [\"old\", \"new\"]}}}";
static const char result_text[] =
	"{\"type\": \"object\", \"properties\": {\"total\": {\"type\": \"integer\"}, \"items\": {\"type\": \"array\", \"items\": {"
	"\"type\": \"object\", \"properties\": {\"id\": {\"type\": \"string\", \"format\": \"uuid\"}, \"title\": {\"type\": \"string\"},"
	"\"state\": {\"enum\": [\"open\", \"closed\"]}, \"score\": {\"type\": [\"number\", \"null\"]}}, \"required\": [\"id\"]}}},"
	"\"required\": [\"total\", \"items\"]}";

/* The text of the answer; NULL: no memory. */
static char *list_text(void)
{
	json_t *schema = json_loads(schema_text, 0, NULL), *result = json_loads(result_text, 0, NULL);
	json_t *tools = json_array(), *list = NULL;
	char name[32], *text = NULL;

	for (int i = 0; i < TOOLS && schema && result && tools; i++) {
		snprintf(name, sizeof(name), "tool-%03d", i);
		json_array_append_new(tools, json_pack("{s:s, s:s, s:O, s:O}", "name", name, "description",
						       "Finds what was asked for, page by page.\n\nOlder entries come last.", "inputSchema",
						       schema, "outputSchema", result));
	}
	if (json_array_size(tools) == TOOLS)
		list = json_pack("{s:O}", "tools", tools);
	if (list)
		text = json_dumps(list, JSON_COMPACT);
	json_decref(schema);
	json_decref(result);
	json_decref(tools);
	json_decref(list);
	return text;
}

static int generate_once(const char *text, const char *out, double *ret_ns)
{
	struct cell_gen_options options = CELL_GEN_OPTIONS_INIT;
	struct cell_error err = { 0 };
	char path[4096], *answer;
	struct stat st;
	json_t *report;
	size_t made;
	double began;

	options.server = "bench";
	options.tools_json = text;
	options.out_dir = out;
	began = now_ns();
	if (cell_gen_mcp(&options, &answer, &err))
		return complain_err("generate", &err);
	*ret_ns = now_ns() - began;
	report = json_loads(answer, 0, NULL);
	made = json_array_size(json_object_get(report, "tools"));
	json_decref(report);
	free(answer);
	snprintf(path, sizeof(path), "%s/bench/%s", out, CHECKED);
	if (made != TOOLS || stat(path, &st) || st.st_size < 1000)
		return complain("%zu modules were made of %d tools, and %s is not as it should be", made, TOOLS, path);
	return 0;
}

int cell__bench_measure_gen(struct cell__bench *b, struct cell__bench_row *row)
{
	char *text = list_text(), *out = NULL;
	double ns;
	int r = text && asprintf(&out, "%s/mcptools", b->folder.path) >= 0 ? 0 : complain("out of memory");

	/* The first makes the folder; from then on the package is replaced, which is the longer way. */
	for (int i = -2; !r && i < rounds(b, 100); i++) {
		r = generate_once(text, out, &ns);
		if (!r && i >= 0)
			r = add_sample(&row->cell, ns);
	}
	free(out);
	free(text);
	return r;
}
