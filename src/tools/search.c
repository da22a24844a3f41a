/* Finds the tools for a query: by the ranking that the engine was given, else by names and descriptions that contain it. */
#define _GNU_SOURCE
#include <string.h>

#include "tools/internal.h"

#define SCORE_SAME_NAME 100
#define SCORE_IN_NAME 50
#define SCORE_IN_DESCRIPTION 25
#define SCORE_IN_TAG 25
#define SCORE_IN_CALLABLE 10

void cell__tools_free_docs(struct cell__tools *tools)
{
	for (size_t i = 0; tools->doc_texts && i < tools->n_index; i++)
		free(tools->doc_texts[i]);
	free(tools->doc_texts);
	free(tools->docs);
	tools->doc_texts = NULL;
	tools->docs = NULL;
}

bool cell__tool_has_tag(const struct cell__tool_entry *tool, const json_t *tags)
{
	if (!tags)
		return true;
	for (size_t i = 0; i < json_array_size(tags); i++) {
		const char *const one[] = { json_string_value(json_array_get(tags, i)), NULL };
		if (one[0] && cell__tool_in_scope(tool, one))
			return true;
	}
	return false;
}

static const char *or_empty(const char *text)
{
	return text ? text : "";
}

static char *doc_text(const struct cell__tool_entry *tool)
{
	struct cell__buf text = CELL_BUF_INIT;
	int rc = 0;
	for (size_t i = 0; i < tool->n_tags; i++)
		rc |= cell__buf_printf(&text, "%s\n", tool->tags[i]);
	for (size_t i = 0; i < tool->n_callables; i++) {
		const struct cell__callable *callable = &tool->callables[i];
		rc |= cell__buf_printf(&text, "%s: %s\n", callable->name, or_empty(callable->description));
		for (size_t k = 0; k < callable->params.count; k++)
			rc |= cell__buf_printf(&text, "%s: %s\n", callable->params.list[k].name,
					       or_empty(callable->params.list[k].description));
	}
	char *out = rc < 0 ? NULL : cell__buf_take(&text);
	cell__buf_finish(&text);
	return out;
}

static int make_docs(struct cell__tools *tools)
{
	if (tools->docs)
		return 0;
	tools->docs = cell__alloc(tools->n_index, sizeof *tools->docs);
	tools->doc_texts = cell__alloc(tools->n_index, sizeof *tools->doc_texts);
	bool ok = tools->docs && tools->doc_texts;
	for (size_t i = 0; ok && i < tools->n_index; i++) {
		const struct cell__tool_entry *tool = tools->index[i];
		tools->doc_texts[i] = doc_text(tool);
		ok = tools->doc_texts[i] != NULL;
		tools->docs[i] = (struct cell__rank_doc){
			.name = tool->name,
			.description = or_empty(tool->description),
			.text = tools->doc_texts[i],
		};
	}
	if (!ok)
		cell__tools_free_docs(tools);
	return ok ? 0 : -1;
}

static bool contains(const char *text, const char *query)
{
	return text && strcasestr(text, query) != NULL;
}

static int plain_score(const struct cell__tool_entry *tool, const char *query)
{
	int score = 0;
	if (strcasecmp(tool->name, query) == 0)
		score += SCORE_SAME_NAME;
	else if (contains(tool->name, query))
		score += SCORE_IN_NAME;
	if (contains(tool->description, query))
		score += SCORE_IN_DESCRIPTION;
	for (size_t i = 0; i < tool->n_tags; i++)
		if (strcasecmp(tool->tags[i], query) == 0) {
			score += SCORE_IN_TAG;
			break;
		}
	for (size_t i = 0; i < tool->n_callables; i++)
		if (contains(tool->callables[i].name, query) || contains(tool->callables[i].description, query)) {
			score += SCORE_IN_CALLABLE;
			break;
		}
	return score;
}

struct scored {
	size_t at;
	int score;
};

static int best_first(const void *a, const void *b)
{
	const struct scored *one = a, *two = b;
	if (one->score != two->score)
		return two->score - one->score;
	return one->at < two->at ? -1 : 1;
}

static int plain_rank(struct cell__tools *tools, const char *query, size_t *ret_order)
{
	CELL_AUTO_FREE struct scored *scored = cell__alloc(tools->n_index, sizeof *scored);
	if (!scored)
		return -1;
	int n = 0;
	for (size_t i = 0; i < tools->n_index; i++) {
		int score = plain_score(tools->index[i], query);
		if (score > 0)
			scored[n++] = (struct scored){ i, score };
	}
	qsort(scored, (size_t)n, sizeof *scored, best_first);
	for (int i = 0; i < n; i++)
		ret_order[i] = scored[i].at;
	return n;
}

void cell__tools_prepare_rank(struct cell__tools *tools)
{
	if (tools->opts.rank && make_docs(tools) == 0)
		(void)tools->opts.rank(tools->opts.rank_arg, "", tools->docs, tools->n_index, tools->generation, 0, NULL);
}

json_t *cell__tools_search(struct cell__tools *tools, const char *query, size_t limit, const char *const *scope, const json_t *tags)
{
	CELL_AUTO_FREE size_t *order = cell__alloc(tools->n_index, sizeof *order);
	json_t *found = json_array();
	int n = -1;
	if (!order || !found)
		goto no_memory;
	/* All are ranked and then cut: the scope is not the index's business. */
	if (tools->opts.rank && make_docs(tools) == 0)
		n = tools->opts.rank(tools->opts.rank_arg, query, tools->docs, tools->n_index, tools->generation, tools->n_index, order);
	if (n < 0 && (n = plain_rank(tools, query, order)) < 0)
		goto no_memory;
	for (int i = 0; i < n && json_array_size(found) < limit; i++) {
		const struct cell__tool_entry *tool = order[i] < tools->n_index ? tools->index[order[i]] : NULL;
		if (!tool || !cell__tool_in_scope(tool, scope) || !cell__tool_has_tag(tool, tags))
			continue;
		if (json_array_append_new(found, cell__tool_to_json(tool)) < 0)
			goto no_memory;
	}
	return found;
no_memory:
	json_decref(found);
	return NULL;
}
