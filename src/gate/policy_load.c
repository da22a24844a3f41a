/*
 * A policy from its YAML tree. A file with any problem yields no policy: a skipped rule could be the one that denies. All problems are
 * reported, not only the first.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "gate/policy.h"
#include "tools/tools.h"

static bool is_text(const struct cell__yaml *node)
{
	return node->kind == CELL_YAML_SCALAR && !cell__yaml_is_null(node);
}

static void no_memory(struct cell__loader *loader, const struct cell__yaml *at)
{
	cell__load_problem(loader, at, "out of memory");
}

/* A list, or one thing as a list of one. */
struct each {
	struct cell__yaml *const *items;
	size_t count;
};

static bool each_of(struct cell__loader *loader, struct cell__yaml *const *node, const char *what, struct each *ret)
{
	if ((*node)->kind != CELL_YAML_SEQUENCE) {
		*ret = (struct each){ node, 1 };
		return true;
	}
	*ret = (struct each){ (*node)->items, (*node)->count };
	if (ret->count == 0 || ret->count > CELL__POLICY_LIMIT_ITEMS) {
		cell__load_problem(loader, *node, "%s: a list must have 1 to %u entries", what, CELL__POLICY_LIMIT_ITEMS);
		return false;
	}
	return true;
}

/* The location of the value of a key, so that it can be treated as a list of one. */
static struct cell__yaml *const *value_of(const struct cell__yaml *map, const char *key)
{
	for (size_t i = 0; i + 1 < map->count; i += 2)
		if (strcmp(map->items[i]->text, key) == 0)
			return &map->items[i + 1];
	return NULL;
}

/* A key without a value is a slip, and not one to guess about: `tool:` must not come to mean every tool. */
static bool load_mapping(struct cell__loader *loader, const struct cell__yaml *map, const char *what, const char *const *known)
{
	if (!cell__load_keys(loader, map, what, known))
		return false;
	bool ok = true;
	for (size_t i = 0; i + 1 < map->count; i += 2)
		if (cell__yaml_is_null(map->items[i + 1])) {
			cell__load_problem(loader, map->items[i], "'%.60s' has no value", map->items[i]->text);
			ok = false;
		}
	return ok;
}

/* ---- words ---- */

unsigned cell__policy_kind(const char *word)
{
	return strcmp(word, "any") == 0 ? CELL__KIND_ANY : cell__gate_kind_of(word);
}

const char *cell_decision_word(enum cell_decision decision)
{
	return decision == CELL_ALLOW ? "allow" : decision == CELL_ASK ? "ask" : "deny";
}

static void load_decision(struct cell__loader *loader, const struct cell__yaml *node, const char *what, enum cell_decision *ret)
{
	for (int i = CELL_DENY; i <= CELL_ALLOW; i++)
		if (node->kind == CELL_YAML_SCALAR && strcmp(node->text, cell_decision_word(i)) == 0) {
			*ret = i;
			return;
		}
	cell__load_problem(loader, node, "%s must be allow, ask or deny", what);
}

static void load_kinds(struct cell__loader *loader, struct cell__yaml *const *node, unsigned *ret)
{
	struct each each;
	if (!node || !each_of(loader, node, "kind", &each))
		return;
	for (size_t i = 0; i < each.count; i++) {
		unsigned kind = is_text(each.items[i]) ? cell__policy_kind(each.items[i]->text) : 0;
		if (!kind)
			cell__load_problem(loader, each.items[i], "kind must be " CELL__POLICY_KINDS " or any");
		*ret |= kind;
	}
}

static void load_principals(struct cell__loader *loader, struct cell__yaml *const *node, unsigned *ret)
{
	struct each each;
	if (!node || !each_of(loader, node, "principal", &each))
		return;
	for (size_t i = 0; i < each.count; i++) {
		enum cell__principal_kind kind = is_text(each.items[i]) ? cell__principal_kind_of(each.items[i]->text)
									: CELL__PRINCIPAL_NONE;
		if (!kind)
			cell__load_problem(loader, each.items[i], "principal must be code, mcp, http or host");
		*ret |= kind ? 1u << kind : 0;
	}
}

/* A text for people: no control characters, which could steer a terminal; line breaks only where `lines`. */
static void load_words(struct cell__loader *loader, const struct cell__yaml *node, const char *what, size_t limit, bool lines, char **ret)
{
	cell__load_text(loader, node, what, ret);
	if (!*ret)
		return;
	size_t size = strlen(*ret);
	while (size > 0 && strchr(" \n", (*ret)[size - 1]))
		(*ret)[--size] = '\0';
	for (const unsigned char *c = (unsigned char *)*ret; *c; c++)
		if ((*c < ' ' && !(lines && *c == '\n')) || *c == 127 || (*c == 0xc2 && c[1] < 0xa0)) {
			cell__load_problem(loader, node, "%s contains a control character", what);
			return;
		}
	if (size == 0 || size > limit)
		cell__load_problem(loader, node, "%s must have 1 to %zu bytes", what, limit);
}

static struct cell__glob *load_glob(struct cell__loader *loader, const struct cell__yaml *at, const char *what, const char *pattern)
{
	const char *problem = NULL;
	struct cell__glob *glob = cell__glob_create(pattern, &problem);
	if (!glob)
		cell__load_problem(loader, at, "%s: invalid pattern '%.60s': %s", what, pattern, problem);
	return glob;
}

/* ---- names ---- */

static void load_names(struct cell__loader *loader, struct cell__yaml *const *node, const char *what, struct cell__glob ***ret,
		       size_t *ret_count)
{
	struct each each;
	if (!node || !each_of(loader, node, what, &each))
		return;
	*ret = cell__alloc(each.count, sizeof **ret);
	if (!*ret) {
		no_memory(loader, *node);
		return;
	}
	for (size_t i = 0; i < each.count; i++) {
		if (!is_text(each.items[i]))
			cell__load_problem(loader, each.items[i], "%s must be a pattern or a list of patterns", what);
		else if (((*ret)[*ret_count] = load_glob(loader, each.items[i], what, each.items[i]->text)))
			++*ret_count;
	}
}

/* "tool" or "tool.callable". */
static void load_tool(struct cell__loader *loader, const struct cell__yaml *node, bool has_callable, struct cell__name_rule *ret)
{
	char *tool = cell__strdup(node->text);
	if (!tool) {
		no_memory(loader, node);
		return;
	}
	char *dot = strchr(tool, '.');
	if (dot)
		*dot = '\0';
	if (*tool == '\0' || (dot && dot[1] == '\0'))
		cell__load_problem(loader, node, "tool: invalid name '%.60s': expected TOOL or TOOL.CALLABLE", node->text);
	else if (dot && has_callable)
		cell__load_problem(loader, node, "tool: '%.60s' names a callable, but the key callable is given too", node->text);
	else {
		ret->tool = load_glob(loader, node, "tool", tool);
		if (dot)
			ret->callable = load_glob(loader, node, "tool", dot + 1);
	}
	free(tool);
}

static void load_tools(struct cell__loader *loader, struct cell__yaml *const *node, bool has_callable, struct cell__rule *rule)
{
	struct each each;
	if (!node || !each_of(loader, node, "tool", &each))
		return;
	rule->tools = cell__alloc(each.count, sizeof *rule->tools);
	if (!rule->tools) {
		no_memory(loader, *node);
		return;
	}
	for (size_t i = 0; i < each.count; i++) {
		if (is_text(each.items[i]))
			load_tool(loader, each.items[i], has_callable, &rule->tools[rule->n_tools++]);
		else
			cell__load_problem(loader, each.items[i], "tool must be a pattern or a list of patterns");
	}
}

/* ---- conditions on arguments ---- */

static void destroy_condition(struct cell__condition *condition)
{
	if (!condition)
		return;
	for (size_t i = 0; i < condition->count; i++)
		destroy_condition(condition->items[i]);
	free(condition->items);
	cell__glob_destroy(condition->glob);
	cell__url_glob_destroy(condition->url);
	json_decref(condition->value);
	free(condition);
}

static struct cell__condition *make_condition(struct cell__loader *loader, const struct cell__yaml *at, enum cell__condition_kind kind,
					      size_t room)
{
	struct cell__condition *condition = cell__alloc(1, sizeof *condition);
	if (condition) {
		condition->kind = kind;
		condition->items = room ? cell__alloc(room, sizeof(struct cell__condition *)) : NULL;
	}
	if (!condition || (room && !condition->items)) {
		no_memory(loader, at);
		free(condition);
		return NULL;
	}
	return condition;
}

static struct cell__condition *load_condition(struct cell__loader *loader, const struct cell__yaml *node);

/* NULL items are left out: there is a problem then, and no policy. */
static void add_condition(struct cell__condition *parent, struct cell__condition *item)
{
	if (item)
		parent->items[parent->count++] = item;
}

/* A condition that holds conditions is about presence when all of them are. */
static void note_presence(struct cell__condition *condition)
{
	condition->presence = condition->count > 0;
	for (size_t i = 0; i < condition->count; i++)
		condition->presence &= condition->items[i]->presence;
}

static struct cell__condition *load_value(struct cell__loader *loader, const struct cell__yaml *node, enum cell__condition_kind kind,
					  const char *what)
{
	bool number = kind >= CELL__COND_ABOVE;
	json_t *value = node->kind == CELL_YAML_SCALAR ? cell__yaml_to_json(node) : NULL;
	struct cell__condition *condition = NULL;
	if (node->kind != CELL_YAML_SCALAR)
		cell__load_problem(loader, node, "%s takes a single value; to reach into a list or a mapping, name the argument by a path",
				   what);
	else if (!value)
		no_memory(loader, node);
	else if (number && !json_is_number(value))
		cell__load_problem(loader, node, "%s takes a number", what);
	else if ((condition = make_condition(loader, node, kind, 0)))
		condition->value = json_incref(value);
	json_decref(value);
	return condition;
}

static struct cell__condition *load_glob_condition(struct cell__loader *loader, const struct cell__yaml *node)
{
	struct cell__condition *condition = make_condition(loader, node, CELL__COND_GLOB, 0);
	if (condition && !(condition->glob = load_glob(loader, node, "args", node->text))) {
		free(condition);
		return NULL;
	}
	if (condition && cell__url_glob_create(node->text, &condition->url) < 0)
		cell__load_problem(loader, node, "out of memory");
	return condition;
}

static struct cell__condition *load_presence(struct cell__loader *loader, const struct cell__yaml *node, const char *what)
{
	bool yes = node->kind == CELL_YAML_SCALAR && node->plain && strcmp(node->text, "true") == 0;
	if (!yes && !(node->kind == CELL_YAML_SCALAR && node->plain && strcmp(node->text, "false") == 0)) {
		cell__load_problem(loader, node, "%s must be true or false", what);
		return NULL;
	}
	struct cell__condition *condition = make_condition(loader, node, CELL__COND_PRESENT, 0);
	if (condition) {
		condition->flag = yes == (strcmp(what, "present") == 0);
		condition->presence = true;
	}
	return condition;
}

static struct cell__condition *load_not(struct cell__loader *loader, const struct cell__yaml *node)
{
	struct cell__condition *condition = make_condition(loader, node, CELL__COND_NOT, 1);
	if (condition) {
		add_condition(condition, load_condition(loader, node));
		note_presence(condition);
	}
	return condition;
}

static struct cell__condition *load_operator(struct cell__loader *loader, const struct cell__yaml *key, const struct cell__yaml *value)
{
	static const struct {
		const char *word;
		enum cell__condition_kind kind;
	} values[] = {
		{ "is", CELL__COND_IS },       { "above", CELL__COND_ABOVE },     { "at_least", CELL__COND_AT_LEAST },
		{ "below", CELL__COND_BELOW }, { "at_most", CELL__COND_AT_MOST },
	};
	for (size_t i = 0; i < sizeof values / sizeof *values; i++)
		if (strcmp(key->text, values[i].word) == 0)
			return load_value(loader, value, values[i].kind, values[i].word);
	if (strcmp(key->text, "present") == 0 || strcmp(key->text, "missing") == 0)
		return load_presence(loader, value, key->text);
	if (strcmp(key->text, "not") == 0)
		return load_not(loader, value);
	if (strcmp(key->text, "glob") == 0 && is_text(value))
		return load_glob_condition(loader, value);
	if (strcmp(key->text, "glob") == 0)
		cell__load_problem(loader, value, "glob takes a pattern");
	else
		cell__load_problem(
			loader, key,
			"unknown operator '%.60s'; known operators: is, glob, not, present, missing, above, at_least, below, at_most",
			key->text);
	return NULL;
}

static struct cell__condition *load_condition(struct cell__loader *loader, const struct cell__yaml *node)
{
	if (cell__yaml_is_null(node)) {
		cell__load_problem(loader, node, "args: a condition is missing; to match null write {is: null}");
		return NULL;
	}
	if (node->kind == CELL_YAML_SCALAR) {
		json_t *value = cell__yaml_to_json(node);
		bool text = json_is_string(value);
		json_decref(value);
		return text ? load_glob_condition(loader, node) : load_value(loader, node, CELL__COND_IS, "a condition");
	}
	bool map = node->kind == CELL_YAML_MAPPING;
	if (node->count == 0 || node->count > 2 * CELL__POLICY_LIMIT_ITEMS) {
		cell__load_problem(loader, node, "args: a %s must have 1 to %u entries", map ? "mapping" : "list",
				   CELL__POLICY_LIMIT_ITEMS);
		return NULL;
	}
	struct cell__condition *condition = make_condition(loader, node, map ? CELL__COND_ALL : CELL__COND_ONE_OF, node->count);
	for (size_t i = 0; condition && i < node->count; i += 1 + map)
		add_condition(condition,
			      map ? load_operator(loader, node->items[i], node->items[i + 1]) : load_condition(loader, node->items[i]));
	if (condition)
		note_presence(condition);
	return condition;
}

/* ---- paths ---- */

/* The part of a path up to the next dot; moves *at behind the dot, or to the end.  \. is a dot of the name. */
static bool load_part(const char **at, struct cell__path_part *part)
{
	char *out = part->key = cell__alloc(strlen(*at) + 1, 1);
	if (!out)
		return false;
	bool escaped = false;
	for (; **at && **at != '.'; ++*at) {
		if (**at == '\\' && (*at)[1]) {
			++*at;
			escaped = true;
		}
		*out++ = **at;
	}
	part->every = !escaped && strcmp(part->key, "*") == 0;
	return true;
}

static void load_path(struct cell__loader *loader, const struct cell__yaml *key, struct cell__arg_rule *arg)
{
	size_t dots = 0;
	for (const char *c = key->text; *c; c++)
		dots += *c == '.';
	arg->text = cell__strdup(key->text);
	arg->parts = cell__alloc(dots + 1, sizeof *arg->parts);
	if (!arg->text || !arg->parts) {
		no_memory(loader, key);
		return;
	}
	for (const char *at = key->text;; at++) {
		struct cell__path_part *part = &arg->parts[arg->n_parts];
		if (!load_part(&at, part)) {
			no_memory(loader, key);
			return;
		}
		arg->n_parts++;
		if (*part->key == '\0')
			cell__load_problem(loader, key, "args: invalid path '%.60s': expected NAME or NAME.NAME", key->text);
		if (*at == '\0')
			return;
	}
}

static void load_args(struct cell__loader *loader, const struct cell__yaml *node, struct cell__rule *rule)
{
	if (node->kind != CELL_YAML_MAPPING || node->count == 0) {
		cell__load_problem(loader, node, "args must be a mapping of paths to conditions");
		return;
	}
	rule->args = cell__alloc(node->count / 2, sizeof *rule->args);
	if (!rule->args) {
		no_memory(loader, node);
		return;
	}
	for (size_t i = 0; i < node->count; i += 2) {
		struct cell__arg_rule *arg = &rule->args[rule->n_args++];
		load_path(loader, node->items[i], arg);
		arg->condition = load_condition(loader, node->items[i + 1]);
	}
}

/* ---- rules ---- */

/* Whether it is about certain tools, and not about every tool with such an argument. */
static bool is_particular(const struct cell__rule *rule)
{
	if (rule->kinds && !(rule->kinds & (CELL_GATE_TOOLS | CELL__KIND_ANY)))
		return true;
	for (size_t i = 0; i < rule->n_tools; i++) {
		const struct cell__name_rule *name = &rule->tools[i];
		if (!name->tool || name->callable || strspn(cell__glob_text(name->tool), "*") != strlen(cell__glob_text(name->tool)))
			return true;
	}
	return rule->n_callables > 0;
}

static void load_rule(struct cell__loader *loader, const struct cell__yaml *node, struct cell__rule *rule)
{
	static const char *const known[] = {
		"name", "decision", "reason", "kind", "principal", "tool", "callable", "adapter", "args", NULL
	};
	rule->line = node->line;
	if (!load_mapping(loader, node, "a rule", known))
		return;
	load_words(loader, cell__yaml_get(node, "name"), "name", CELL__POLICY_LIMIT_NAME, false, &rule->name);
	load_words(loader, cell__yaml_get(node, "reason"), "reason", CELL__POLICY_LIMIT_REASON, true, &rule->reason);
	struct cell__yaml *const *decision = value_of(node, "decision");
	if (decision)
		load_decision(loader, *decision, "decision", &rule->decision);
	else
		cell__load_problem(loader, node, "a rule needs a decision: allow, ask or deny");
	struct cell__yaml *const *kind = value_of(node, "kind"), *const *tool = value_of(node, "tool"),
				 *const *callable = value_of(node, "callable"), *const *adapter = value_of(node, "adapter"),
				 *const *args = value_of(node, "args");
	if (!kind && !tool && !callable && !adapter && !args)
		cell__load_problem(loader, node, "a rule needs a kind, tool, callable, adapter or args; use default for all other calls");
	load_kinds(loader, kind, &rule->kinds);
	load_tools(loader, tool, callable != NULL, rule);
	load_names(loader, callable, "callable", &rule->callables, &rule->n_callables);
	load_principals(loader, value_of(node, "principal"), &rule->principals);
	load_names(loader, adapter, "adapter", &rule->adapters, &rule->n_adapters);
	rule->is_particular = is_particular(rule);
	if (args)
		load_args(loader, *args, rule);
}

static void finish_rule(struct cell__rule *rule)
{
	free(rule->name);
	free(rule->reason);
	for (size_t i = 0; i < rule->n_tools; i++) {
		cell__glob_destroy(rule->tools[i].tool);
		cell__glob_destroy(rule->tools[i].callable);
	}
	for (size_t i = 0; i < rule->n_callables; i++)
		cell__glob_destroy(rule->callables[i]);
	for (size_t i = 0; i < rule->n_adapters; i++)
		cell__glob_destroy(rule->adapters[i]);
	for (size_t i = 0; i < rule->n_args; i++) {
		for (size_t k = 0; k < rule->args[i].n_parts; k++)
			free(rule->args[i].parts[k].key);
		free(rule->args[i].parts);
		free(rule->args[i].text);
		destroy_condition(rule->args[i].condition);
	}
	free(rule->tools);
	free(rule->callables);
	free(rule->adapters);
	free(rule->args);
}

void cell_policy_destroy(struct cell_policy *policy)
{
	if (!policy)
		return;
	for (size_t i = 0; i < policy->count; i++)
		finish_rule(&policy->rules[i]);
	free(policy->rules);
	free(policy->source);
	free(policy);
}

static void load_rules(struct cell__loader *loader, const struct cell__yaml *node, struct cell_policy *policy)
{
	if (node->kind != CELL_YAML_SEQUENCE) {
		cell__load_problem(loader, node, "rules must be a list");
		return;
	}
	if (node->count > CELL__POLICY_LIMIT_RULES) {
		cell__load_problem(loader, node, "more than %u rules", CELL__POLICY_LIMIT_RULES);
		return;
	}
	policy->rules = cell__alloc(node->count, sizeof *policy->rules);
	if (!policy->rules) {
		no_memory(loader, node);
		return;
	}
	for (size_t i = 0; i < node->count; i++)
		load_rule(loader, node->items[i], &policy->rules[policy->count++]);
}

static void load_policy(struct cell__loader *loader, const struct cell__yaml *doc, struct cell_policy *policy)
{
	static const char *const known[] = { "default", "rules", NULL };
	if (!load_mapping(loader, doc, "a policy", known))
		return;
	struct cell__yaml *const *fallback = value_of(doc, "default"), *const *rules = value_of(doc, "rules");
	if (fallback)
		load_decision(loader, *fallback, "default", &policy->fallback);
	if (rules)
		load_rules(loader, *rules, policy);
	if (!fallback && !rules)
		cell__load_problem(loader, doc, "a policy needs rules or a default");
}

struct cell_policy *cell_policy_of(enum cell_decision decision)
{
	struct cell_policy *policy = cell__alloc(1, sizeof *policy);
	if (policy)
		policy->fallback = decision;
	return policy;
}

unsigned cell__policy_kinds(const struct cell_policy *policy)
{
	return policy->written ? CELL__GATE_ALL : CELL__GATE_USUAL;
}

bool cell__policy_can_ask(const struct cell_policy *policy)
{
	bool asks = policy->fallback == CELL_ASK;
	for (size_t i = 0; i < policy->count; i++)
		asks |= policy->rules[i].decision == CELL_ASK;
	return asks;
}

struct cell_policy *cell__policy_read(const char *file, const char *text, size_t size, struct cell__problems *problems)
{
	struct cell__yaml *doc = cell__yaml_parse(file, text, size, problems);
	if (!doc)
		return NULL;
	struct cell__loader loader = { .file = file, .problems = problems };
	struct cell_policy *policy = cell_policy_of(CELL_ASK);
	if (policy) {
		policy->written = true;
		load_policy(&loader, doc, policy);
	} else {
		no_memory(&loader, doc);
	}
	cell__yaml_destroy(doc);
	if (loader.bad) {
		cell_policy_destroy(policy);
		return NULL;
	}
	return policy;
}

/* ---- the public edge ---- */

static int fail_with(const struct cell__problems *problems, struct cell_error *err)
{
	if (problems->count == 0 || !problems->list[0].message)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a policy");
	const struct cell__problem *first = &problems->list[0];
	char more[64] = "";
	if (problems->count > 1)
		snprintf(more, sizeof more, " (and %zu more)", problems->count - 1);
	/* The end of a long path is more informative. */
	const char *file = first->file ? first->file : "";
	size_t size = strlen(file);
	return cell_fail(err, CELL_E_INVALID, 0, "%s%s:%d: %.100s%s", size > 80 ? "..." : "", size > 80 ? file + size - 80 : file,
			 first->line, first->message, more);
}

int cell_policy_parse(const char *text, size_t size, const char *file_name, struct cell_policy **ret_policy, struct cell_error *err)
{
	if (cell__require(err, text, ret_policy) < 0)
		return -1;
	struct cell__problems problems = { 0 };
	struct cell_policy *policy = cell__policy_read(file_name ? file_name : "policy", text, size, &problems);
	int rc = 0;
	if (policy) {
		policy->source = cell__strndup(text, size); /* without memory there is nothing to show */
		*ret_policy = policy;
	} else {
		rc = fail_with(&problems, err);
	}
	cell__problems_finish(&problems);
	return rc;
}

static int read_file(const char *path, struct cell__buf *text, struct cell_error *err)
{
	/* A file that is too large is read with one byte more than the limit: the parser reports it with the other problems. */
	if (cell__file_read(AT_FDCWD, path, 0, CELL_TOOL_LIMIT_FILE_BYTES, text, NULL) == 0 || errno == EFBIG)
		return 0;
	return cell__file_fail(err, "the policy", path, CELL_TOOL_LIMIT_FILE_BYTES, errno);
}

int cell_policy_load(const char *path, struct cell_policy **ret_policy, struct cell_error *err)
{
	if (cell__require(err, path, ret_policy) < 0)
		return -1;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (read_file(path, &text, err) < 0)
		return -1;
	return cell_policy_parse(text.data, text.size, path, ret_policy, err);
}

int cell_policy_check(const char *path, char **ret_json, struct cell_error *err)
{
	if (cell__require(err, path, ret_json) < 0)
		return -1;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (read_file(path, &text, err) < 0)
		return -1;
	struct cell__problems problems = { 0 };
	struct cell_policy *policy = cell__policy_read(path, text.data, text.size, &problems);
	json_t *list = json_array();
	CELL_AUTO_BUF struct cell__buf file = CELL_BUF_INIT, message = CELL_BUF_INIT;
	for (size_t i = 0; i < problems.count; i++) {
		const struct cell__problem *problem = &problems.list[i];
		const char *said = problem->message ? problem->message : "out of memory";
		/* A path or a truncated text may not be UTF-8, and JSON must be. */
		file.size = message.size = 0;
		(void)cell__buf_add_utf8(&file, path, strlen(path));
		(void)cell__buf_add_utf8(&message, said, strlen(said));
		json_array_append_new(list, json_pack("{s:s#, s:i, s:s#}", "file", file.data, (int)file.size, "line", problem->line,
						      "message", message.data, (int)message.size));
	}
	char *json = policy || problems.count > 0 ? json_dumps(list, JSON_COMPACT) : NULL;
	json_decref(list);
	cell_policy_destroy(policy);
	cell__problems_finish(&problems);
	if (!json)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a policy");
	*ret_json = json;
	return 0;
}
