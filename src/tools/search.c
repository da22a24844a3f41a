/* Finds the tools for a query: by the ranking that the engine was given, else by names and descriptions that contain it. */
#define _GNU_SOURCE
#include <string.h>

#include "tools/internal.h"

#define SCORE_SAME_NAME 100
#define SCORE_IN_NAME 50
#define SCORE_IN_DESCRIPTION 25
#define SCORE_IN_TAG 25
#define SCORE_IN_CALLABLE 10

/* What a document stands for: a callable, or a tool without any. */
struct cell__doc_place {
	size_t tool;
	const struct cell__callable *callable; /* NULL: the tool itself */
};

void cell__tools_free_docs(struct cell__tools *tools)
{
	for (size_t i = 0; i < tools->n_docs; i++) {
		free((char *)tools->docs[i].name);
		free((char *)tools->docs[i].text);
	}
	free(tools->docs);
	free(tools->places);
	tools->docs = NULL;
	tools->places = NULL;
	tools->n_docs = 0;
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

/* The words around a callable: those of its tool and of its parameters. */
static char *doc_text(const struct cell__tool_entry *tool, const struct cell__callable *callable)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	int rc = cell__buf_printf(&text, "%s\n", callable ? or_empty(tool->description) : "");
	for (size_t i = 0; i < tool->n_tags; i++)
		rc |= cell__buf_printf(&text, "%s\n", tool->tags[i]);
	for (size_t i = 0; callable && i < callable->params.count; i++)
		rc |= cell__buf_printf(&text, "%s: %s\n", callable->params.list[i].name, or_empty(callable->params.list[i].description));
	return rc < 0 ? NULL : cell__buf_take(&text);
}

static bool add_doc(struct cell__tools *tools, size_t at, const struct cell__callable *callable)
{
	const struct cell__tool_entry *tool = tools->index[at];
	struct cell__buf name = CELL_BUF_INIT;
	if (cell__buf_printf(&name, "%s%s%s", tool->name, callable ? "." : "", callable ? callable->name : "") < 0)
		return false;
	struct cell__rank_doc *doc = &tools->docs[tools->n_docs];
	*doc = (struct cell__rank_doc){
		.name = cell__buf_take(&name),
		.description = or_empty(callable ? callable->description : tool->description),
		.text = doc_text(tool, callable),
	};
	tools->places[tools->n_docs++] = (struct cell__doc_place){ at, callable };
	return doc->name && doc->text;
}

static int make_docs(struct cell__tools *tools)
{
	size_t n = 0;
	if (tools->docs)
		return 0;
	for (size_t i = 0; i < tools->n_index; i++)
		n += tools->index[i]->n_callables ? tools->index[i]->n_callables : 1;
	tools->docs = cell__alloc(n, sizeof *tools->docs);
	tools->places = cell__alloc(n, sizeof *tools->places);
	bool ok = tools->docs && tools->places;
	for (size_t i = 0; ok && i < tools->n_index; i++) {
		const struct cell__tool_entry *tool = tools->index[i];
		for (size_t k = 0; ok && k < tool->n_callables; k++)
			ok = add_doc(tools, i, &tool->callables[k]);
		if (ok && !tool->n_callables)
			ok = add_doc(tools, i, NULL);
	}
	if (!ok)
		cell__tools_free_docs(tools);
	return ok ? 0 : -1;
}

static bool contains(const char *text, const char *query)
{
	return text && strcasestr(text, query) != NULL;
}

static int plain_score(const struct cell__tool_entry *tool, const struct cell__callable *callable, const char *query)
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
	if (callable && (contains(callable->name, query) || contains(callable->description, query)))
		score += SCORE_IN_CALLABLE;
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
	CELL_AUTO_FREE struct scored *scored = cell__alloc(tools->n_docs, sizeof *scored);
	if (!scored)
		return -1;
	int n = 0;
	for (size_t i = 0; i < tools->n_docs; i++) {
		int score = plain_score(tools->index[tools->places[i].tool], tools->places[i].callable, query);
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
		(void)tools->opts.rank(tools->opts.rank_arg, "", tools->docs, tools->n_docs, tools->generation, 0, NULL);
}

/* The callables of a tool that were found come first among its callables, the best of them first. */
static json_t *found_tool(const struct cell__tools *tools, size_t at, const size_t *order, size_t n)
{
	const struct cell__tool_entry *tool = tools->index[at];
	json_t *out = cell__tool_to_json(tool), *all = json_object_get(out, "callables"), *sorted = json_array();
	CELL_AUTO_FREE bool *taken = cell__alloc(tool->n_callables + 1, sizeof *taken);
	int rc = out && sorted && taken ? 0 : -1;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		const struct cell__doc_place *place = &tools->places[order[i]];
		if (place->tool != at || !place->callable)
			continue;
		size_t k = (size_t)(place->callable - tool->callables);
		taken[k] = true;
		rc = json_array_append(sorted, json_array_get(all, k));
	}
	for (size_t k = 0; rc == 0 && k < tool->n_callables; k++)
		if (!taken[k])
			rc = json_array_append(sorted, json_array_get(all, k));
	if (rc == 0 && json_object_set(out, "callables", sorted) == 0) {
		json_decref(sorted);
		return out;
	}
	json_decref(sorted);
	json_decref(out);
	return NULL;
}

/* The tools of the found callables, or these themselves. */
static json_t *found_json(const struct cell__tools *tools, const size_t *order, size_t n, bool callables, size_t limit,
			  const char *const *scope, const json_t *tags)
{
	CELL_AUTO_FREE bool *seen = cell__alloc(tools->n_index + 1, sizeof *seen);
	json_t *found = seen ? json_array() : NULL;
	for (size_t i = 0; found && i < n && json_array_size(found) < limit; i++) {
		const struct cell__doc_place *place = &tools->places[order[i]];
		const struct cell__tool_entry *tool = tools->index[place->tool];
		if (!cell__tool_in_scope(tool, scope) || !cell__tool_has_tag(tool, tags) ||
		    (callables ? !place->callable : seen[place->tool]))
			continue;
		seen[place->tool] = true;
		if (json_array_append_new(found, callables ? cell__callable_brief(tool, place->callable)
							   : found_tool(tools, place->tool, order + i, n - i)) < 0) {
			json_decref(found);
			return NULL;
		}
	}
	return found;
}

json_t *cell__tools_search(struct cell__tools *tools, const char *query, bool callables, size_t limit, const char *const *scope,
			   const json_t *tags)
{
	if (make_docs(tools) < 0)
		return NULL;
	CELL_AUTO_FREE size_t *order = cell__alloc(tools->n_docs + 1, sizeof *order);
	int n = -1;
	if (!order)
		return NULL;
	/* All are ranked and then cut: the scope is not the index's business. */
	if (tools->opts.rank)
		n = tools->opts.rank(tools->opts.rank_arg, query, tools->docs, tools->n_docs, tools->generation, tools->n_docs, order);
	if (n < 0)
		n = plain_rank(tools, query, order);
	return n < 0 ? NULL : found_json(tools, order, (size_t)n, callables, limit, scope, tags);
}
