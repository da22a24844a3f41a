/* Deciding on a call; how a policy is read is in policy_load.c. */
#define _GNU_SOURCE
#include "gate/policy.h"

#include <string.h>
#include <strings.h>

#include "base/sized.h"

enum truth { NO, UNKNOWN, YES };

struct decide {
	const struct cell__subject *subject;
	bool shell;
	uint64_t steps;
	const char *doubt_why; /* the first undecidable property of the current argument */
};

static enum truth unknown(struct decide *decide, const char *why)
{
	if (!decide->doubt_why)
		decide->doubt_why = why;
	return UNKNOWN;
}

static enum truth truth_of(bool yes)
{
	return yes ? YES : NO;
}

static enum truth both(enum truth a, enum truth b)
{
	return a < b ? a : b;
}

static enum truth either(enum truth a, enum truth b)
{
	return a > b ? a : b;
}

/* True for all, false for all, or undecided for all together. */
struct together {
	bool any, all_yes, all_no;
};
#define TOGETHER_INIT { false, true, true }

static void together_add(struct together *together, enum truth truth)
{
	together->any = true;
	together->all_yes &= truth == YES;
	together->all_no &= truth == NO;
}

static enum truth together_truth(struct decide *decide, const struct together *together)
{
	if (!together->any)
		return unknown(decide, "is empty");
	if (together->all_yes || together->all_no)
		return truth_of(together->all_yes);
	return unknown(decide, "matches in part");
}

/* ---- texts ---- */

static size_t scheme_size(const char *text, size_t size)
{
	size_t n = 0;
	while (n < size && (((text[n] | 32) >= 'a' && (text[n] | 32) <= 'z') || (n > 0 && memchr("0123456789+.-", text[n], 13))))
		n++;
	return n > 0 && size - n >= 3 && memcmp(text + n, "://", 3) == 0 ? n + 3 : 0;
}

/*
 * Ways to write a path without changing its target: "..", and less important ".", "//" and, in a URL, an encoded slash, dot or letter, and
 * a backslash.
 */
struct detours {
	bool up, other;
};

/* Whether %XX encodes a character that needs no encoding, or one that must not be smuggled into a path. */
static bool hides_plain(const char *text, size_t size)
{
	static const char digits[] = "0123456789abcdef";
	const char *high = size >= 3 ? memchr(digits, text[1] | (text[1] > '9' ? 32 : 0), 16) : NULL;
	const char *low = size >= 3 ? memchr(digits, text[2] | (text[2] > '9' ? 32 : 0), 16) : NULL;
	if (!high || !low)
		return false;
	int c = (int)(high - digits) * 16 + (int)(low - digits);
	return c < ' ' || c == 127 || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || strchr("-._~/\\%", c);
}

static struct detours find_detours(const char *text, size_t size)
{
	struct detours found = { 0 };
	size_t start = scheme_size(text, size);
	for (size_t i = start; start > 0 && i < size; i++)
		found.other |= text[i] == '\\' || (text[i] == '%' && hides_plain(text + i, size - i));
	for (size_t i = start; i < size;) {
		const char *slash = memchr(text + i, '/', size - i);
		size_t n = slash ? (size_t)(slash - text) - i : size - i;
		found.up |= n == 2 && text[i] == '.' && text[i + 1] == '.';
		found.other |= (n == 1 && text[i] == '.') || (n == 0 && i > start);
		i += n + 1;
	}
	return found;
}

/* As if it were written with the slash at its end. */
static bool is_folder_of(struct decide *decide, const struct cell__glob *glob, const char *text, size_t size)
{
	const char *pattern = cell__glob_text(glob);
	size_t n = strlen(pattern);
	if (n < 3 || strcmp(pattern + n - 3, "/**") != 0)
		return false;
	CELL_AUTO_BUF struct cell__buf folder = CELL_BUF_INIT;
	if (cell__buf_add(&folder, text, size) < 0 || cell__buf_add(&folder, "/", 1) < 0)
		return true; /* no memory: on the careful side */
	return cell__glob_match(glob, CELL__GLOB_TEXT, folder.data, folder.size, &decide->steps);
}

/* As a string, with the host in lower case as in DNS. */
static bool matches_as_text(struct decide *decide, const struct cell__glob *glob, const char *text, size_t size)
{
	CELL_AUTO_BUF struct cell__buf lower = CELL_BUF_INIT;
	size_t start = scheme_size(text, size), end = start;
	if (cell__buf_add(&lower, text, size) < 0)
		return true; /* no memory: on the careful side */
	while (end < size && text[end] != '/')
		end++;
	for (size_t i = 0; i < end; i++)
		if (lower.data[i] >= 'A' && lower.data[i] <= 'Z')
			lower.data[i] = (char)(lower.data[i] | 32);
	return cell__glob_match(glob, CELL__GLOB_TEXT, lower.data, size, &decide->steps);
}

static enum truth url_truth(struct decide *decide, const struct cell__condition *condition, const char *text, size_t size)
{
	switch (cell__url_match(condition->url, text, size, &decide->steps)) {
	case CELL__URL_MATCHES:
		return YES;
	case CELL__URL_PORT:
		return unknown(decide, "contains a port that the pattern does not name");
	case CELL__URL_ODD:
		return unknown(decide, "is not written as a plain URL");
	default:
		if (matches_as_text(decide, condition->glob, text, size))
			return unknown(decide, "matches as a string, but not part by part");
		return is_folder_of(decide, condition->glob, text, size) ? unknown(decide, "is the folder of the pattern") : NO;
	}
}

static enum truth path_truth(struct decide *decide, const struct cell__condition *condition, const char *text, size_t size)
{
	const struct cell__glob *glob = condition->glob;
	const char *pattern = cell__glob_text(glob);
	struct detours in_text = find_detours(text, size), in_pattern = find_detours(pattern, strlen(pattern));
	bool everything = strcmp(pattern, "**") == 0;
	if (in_text.up && !in_pattern.up && !everything)
		return unknown(decide, "holds '..'");
	if (in_text.other && !in_pattern.other && strchr(pattern, '/'))
		return unknown(decide, "is not written as a plain path");
	if (condition->url)
		return url_truth(decide, condition, text, size);
	if (scheme_size(text, size) > 0 && !everything && cell__glob_match(glob, CELL__GLOB_TEXT, text, size, &decide->steps))
		return unknown(decide, "is a URL, and the pattern has no ://");
	if (cell__glob_match(glob, CELL__GLOB_PATH, text, size, &decide->steps))
		return YES;
	if (cell__glob_match(glob, CELL__GLOB_TEXT, text, size, &decide->steps))
		return unknown(decide, "has a slash where the pattern has *");
	if (is_folder_of(decide, glob, text, size))
		return unknown(decide, "is the folder of the pattern");
	return NO;
}

static void trim(const char **text, size_t *size)
{
	while (*size > 0 && strchr(" \t\n", **text)) {
		++*text;
		--*size;
	}
	while (*size > 0 && strchr(" \t\n", (*text)[*size - 1]))
		--*size;
}

/* A compound command is split if possible: each of its commands may be the one that the rule means. */
static enum truth shell_truth(struct decide *decide, const struct cell__condition *condition, const char *text, size_t size)
{
	const struct cell__glob *glob = condition->glob;
	trim(&text, &size);
	if (cell__glob_match(glob, CELL__GLOB_SHELL, text, size, &decide->steps))
		return YES;
	if (cell__glob_match(glob, CELL__GLOB_TEXT, text, size, &decide->steps))
		return unknown(decide, "contains shell operators that the pattern does not name");
	for (size_t start = 0, i = 0; i <= size; i++) {
		if (i < size && !cell__glob_is_shell((unsigned char)text[i]))
			continue;
		const char *part = text + start;
		size_t n = i - start;
		trim(&part, &n);
		if (n > 0 && cell__glob_match(glob, CELL__GLOB_TEXT, part, n, &decide->steps))
			return unknown(decide, "contains a command that the pattern names");
		start = i + 1;
	}
	return NO;
}

static enum truth glob_truth(struct decide *decide, const struct cell__condition *condition, const json_t *value)
{
	if (!json_is_string(value))
		return unknown(decide, "is of another type");
	const char *text = json_string_value(value);
	size_t size = json_string_length(value);
	if (size > CELL__POLICY_LIMIT_TEXT)
		return unknown(decide, "is too long to be compared");
	if (memchr(text, '\0', size))
		return unknown(decide, "holds a NUL");
	return (decide->shell ? shell_truth : path_truth)(decide, condition, text, size);
}

/* ---- values ---- */

static int compare(const json_t *a, const json_t *b)
{
	if (json_is_integer(a) && json_is_integer(b)) {
		json_int_t x = json_integer_value(a), y = json_integer_value(b);
		return (x > y) - (x < y);
	}
	long double x = json_is_integer(a) ? (long double)json_integer_value(a) : json_real_value(a);
	long double y = json_is_integer(b) ? (long double)json_integer_value(b) : json_real_value(b);
	return (x > y) - (x < y);
}

static enum truth is_truth(struct decide *decide, const json_t *wanted, const json_t *value)
{
	if (json_is_null(wanted))
		return truth_of(json_is_null(value));
	if (json_is_number(wanted) && json_is_number(value))
		return truth_of(compare(wanted, value) == 0);
	if (json_is_boolean(wanted) && json_is_boolean(value))
		return truth_of(json_is_true(wanted) == json_is_true(value));
	if (json_is_string(wanted) && json_is_string(value))
		return truth_of(json_equal(wanted, value));
	return unknown(decide, "is of another type");
}

static enum truth number_truth(struct decide *decide, const struct cell__condition *condition, const json_t *value)
{
	if (!json_is_number(value))
		return unknown(decide, "is not a number");
	int order = compare(value, condition->value);
	switch (condition->kind) {
	case CELL__COND_ABOVE:
		return truth_of(order > 0);
	case CELL__COND_AT_LEAST:
		return truth_of(order >= 0);
	case CELL__COND_BELOW:
		return truth_of(order < 0);
	default:
		return truth_of(order <= 0);
	}
}

/* value NULL: missing. */
static enum truth condition_truth(struct decide *decide, const struct cell__condition *condition, const json_t *value, size_t depth)
{
	if (++decide->steps > CELL__POLICY_LIMIT_STEPS)
		return unknown(decide, "takes too long to compare");
	/* A list is decided by its elements; only its presence is checked on the list itself. */
	if (json_is_array(value) && !condition->presence) {
		struct together together = TOGETHER_INIT;
		const json_t *item;
		size_t i;
		if (depth >= CELL__POLICY_LIMIT_DEPTH)
			return unknown(decide, "is nested too deeply");
		json_array_foreach(value, i, item)
			together_add(&together, condition_truth(decide, condition, item, depth + 1));
		return together_truth(decide, &together);
	}
	enum truth truth = condition->kind == CELL__COND_ONE_OF ? NO : YES;
	switch (condition->kind) {
	case CELL__COND_ALL:
		for (size_t i = 0; i < condition->count; i++)
			truth = both(truth, condition_truth(decide, condition->items[i], value, depth));
		return truth;
	case CELL__COND_ONE_OF:
		for (size_t i = 0; i < condition->count && truth != YES; i++)
			truth = either(truth, condition_truth(decide, condition->items[i], value, depth));
		return truth;
	case CELL__COND_NOT:
		return (enum truth)(YES - condition_truth(decide, condition->items[0], value, depth));
	case CELL__COND_PRESENT:
		if (json_is_null(value)) /* some tools treat null as a value, others as missing */
			return unknown(decide, "is null");
		return truth_of((value != NULL) == condition->flag);
	default:
		break;
	}
	if (!value)
		return unknown(decide, "is missing");
	if (condition->kind == CELL__COND_GLOB)
		return glob_truth(decide, condition, value);
	if (condition->kind == CELL__COND_IS)
		return is_truth(decide, condition->value, value);
	return number_truth(decide, condition, value);
}

/* ---- arguments ---- */

static bool same_name(const char *a, const char *b)
{
	for (; *a && *b; a++, b++)
		if (*a != *b && !((*a == '-' || *a == '_') && (*b == '-' || *b == '_')))
			return false;
	return *a == *b;
}

/*
 * A parameter max-count is called max_count in Python, and tools accept both; an argument that is given under both names is undecidable.
 * *ret_clear is false then.
 */
static const json_t *find_argument(const json_t *object, const char *key, bool *ret_clear)
{
	*ret_clear = true;
	if (!strpbrk(key, "-_"))
		return json_object_get(object, key);
	const json_t *found = NULL;
	const char *name;
	json_t *value;
	json_object_foreach((json_t *)object, name, value) {
		if (!same_name(name, key))
			continue;
		*ret_clear = !found;
		found = value;
	}
	return found;
}

static bool is_index(const char *key)
{
	size_t n = strspn(key, "0123456789");
	return n > 0 && n < 10 && key[n] == '\0';
}

static enum truth path_walk(struct decide *decide, const struct cell__arg_rule *rule, size_t part, const json_t *value, size_t depth);

static enum truth members_truth(struct decide *decide, const struct cell__arg_rule *rule, size_t part, const json_t *value, size_t depth)
{
	struct together together = TOGETHER_INIT;
	const char *key;
	json_t *item;
	size_t i;
	if (depth >= CELL__POLICY_LIMIT_DEPTH)
		return unknown(decide, "is nested too deeply");
	json_array_foreach(value, i, item)
		together_add(&together, path_walk(decide, rule, part, item, depth + 1));
	json_object_foreach((json_t *)value, key, item)
		together_add(&together, path_walk(decide, rule, part, item, depth + 1));
	return together_truth(decide, &together);
}

/* value is the result of the path before this part; NULL: missing. */
static enum truth path_walk(struct decide *decide, const struct cell__arg_rule *rule, size_t part, const json_t *value, size_t depth)
{
	if (++decide->steps > CELL__POLICY_LIMIT_STEPS)
		return unknown(decide, "takes too long to compare");
	if (part == rule->n_parts || !value)
		return condition_truth(decide, rule->condition, value, depth);
	const char *key = rule->parts[part].key;
	if (rule->parts[part].every && (json_is_object(value) || json_is_array(value)))
		return members_truth(decide, rule, part + 1, value, depth);
	if (json_is_array(value) && is_index(key))
		return path_walk(decide, rule, part + 1, json_array_get(value, (size_t)atol(key)), depth);
	if (json_is_array(value))
		return members_truth(decide, rule, part, value, depth);
	if (!json_is_object(value))
		return unknown(decide, "is of another type");
	bool clear;
	const json_t *next = find_argument(value, key, &clear);
	if (!clear)
		return unknown(decide, "is given twice, once with - and once with _");
	return path_walk(decide, rule, part + 1, next, depth);
}

/* Is the argument that the path begins with not there at all? */
static bool is_absent(const struct cell__arg_rule *rule, const json_t *args)
{
	bool clear;
	return !rule->parts[0].every && !find_argument(args, rule->parts[0].key, &clear);
}

/* ---- rules ---- */

/*
 * The empty pattern means a call without a name. For other patterns such a call is undecidable: a tool that is called by its schema alone,
 * without a callable, can do what any of its callables does.
 */
static enum truth name_truth(const struct cell__glob *glob, const char *name)
{
	size_t size = name ? strlen(name) : 0;
	bool empty = *cell__glob_text(glob) == '\0';
	if (size == 0)
		return empty ? YES : UNKNOWN;
	if (size > CELL__POLICY_LIMIT_TOOL_NAME)
		return UNKNOWN;
	return truth_of(cell__glob_match(glob, CELL__GLOB_TEXT, name, size, NULL));
}

static enum truth names_truth(struct cell__glob *const *globs, size_t count, const char *name)
{
	enum truth truth = count ? NO : YES;
	for (size_t i = 0; i < count; i++)
		truth = either(truth, name_truth(globs[i], name));
	return truth;
}

static enum truth tools_truth(const struct cell__rule *rule, const struct cell__subject *subject)
{
	enum truth truth = rule->n_tools ? NO : YES;
	for (size_t i = 0; i < rule->n_tools; i++) {
		const struct cell__name_rule *name = &rule->tools[i];
		enum truth one = name_truth(name->tool, subject->tool);
		if (name->callable)
			one = both(one, name_truth(name->callable, subject->callable));
		truth = either(truth, one);
	}
	return truth;
}

/* An allow rule without kinds means tools: it must not allow shell commands by accident. */
static bool kind_matches(const struct cell__rule *rule, const char *word)
{
	unsigned kinds = rule->kinds;
	if (!kinds)
		kinds = rule->decision == CELL_ALLOW ? CELL_GATE_TOOLS : CELL__KIND_ANY;
	return (kinds & CELL__KIND_ANY) || (kinds & cell__policy_kind(word));
}

/* A rule applies to the host program, whose calls are its own decision, only if the rule says so. */
static bool principal_matches(const struct cell__rule *rule, enum cell__principal_kind kind)
{
	return rule->principals ? rule->principals & (1u << kind) : kind != CELL__PRINCIPAL_HOST;
}

static bool rule_matches(struct decide *decide, const struct cell__rule *rule, struct cell_policy_verdict *verdict)
{
	const struct cell__subject *subject = decide->subject;
	if (!kind_matches(rule, subject->kind ? subject->kind : "tool") ||
	    !principal_matches(rule, subject->principal ? subject->principal : CELL__PRINCIPAL_CODE))
		return false;
	enum truth truth = tools_truth(rule, subject);
	truth = both(truth, names_truth(rule->callables, rule->n_callables, subject->callable));
	if (subject->adapter || rule->n_adapters == 0)
		truth = both(truth, names_truth(rule->adapters, rule->n_adapters, subject->adapter));
	else
		truth = NO; /* the host knows what serves a call: nothing is undecidable */
	verdict->doubt = truth == UNKNOWN ? "the name of the tool or callable" : NULL;
	verdict->doubt_why = truth == UNKNOWN ? "is missing or too long" : NULL;
	for (size_t i = 0; i < rule->n_args && truth != NO; i++) {
		decide->doubt_why = NULL;
		enum truth one = path_walk(decide, &rule->args[i], 0, subject->args, 0);
		if (one == UNKNOWN && !rule->is_particular && is_absent(&rule->args[i], subject->args))
			one = NO;
		if (one == UNKNOWN && !verdict->doubt) {
			verdict->doubt = rule->args[i].text;
			verdict->doubt_why = decide->doubt_why;
		}
		truth = both(truth, one);
	}
	return rule->decision == CELL_ALLOW ? truth == YES : truth != NO;
}

void cell__policy_judge(const struct cell_policy *policy, const struct cell__subject *subject, struct cell_policy_verdict *ret)
{
	struct decide decide = { .subject = subject, .shell = subject->kind && strcmp(subject->kind, "shell") == 0 };
	struct cell_policy_verdict verdict = { .size = ret->size };
	for (size_t i = 0; i < policy->count; i++) {
		const struct cell__rule *rule = &policy->rules[i];
		if (!rule_matches(&decide, rule, &verdict))
			continue;
		verdict.decision = rule->decision;
		verdict.rule = (int)i + 1;
		verdict.line = rule->line;
		verdict.name = rule->name;
		verdict.reason = rule->reason;
		*ret = verdict;
		return;
	}
	/* The default does not apply to the host program, and artifacts need no approval unless a rule says so. */
	bool artifact = subject->kind && strcmp(subject->kind, "artifact") == 0 && policy->fallback == CELL_ASK;
	bool open = artifact || subject->principal == CELL__PRINCIPAL_HOST;
	*ret = (struct cell_policy_verdict){ .size = ret->size, .decision = open ? CELL_ALLOW : policy->fallback };
}

int cell_policy_decide(const struct cell_policy *policy, const struct cell_policy_subject *subject, struct cell_policy_verdict *ret_verdict,
		       struct cell_error *err)
{
	if (cell__require(err, policy, subject, ret_verdict) < 0)
		return -1;
	struct cell_policy_subject all = CELL_POLICY_SUBJECT_INIT;
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT;
	if (cell__sized_read(&all, sizeof all, subject, "cell_policy_subject", err) < 0 ||
	    cell__sized_check(ret_verdict, "cell_policy_verdict", err) < 0)
		return -1;
	if (all.kind && (!cell__policy_kind(all.kind) || cell__policy_kind(all.kind) == CELL__KIND_ANY))
		return cell_fail(err, CELL_E_INVALID, 0, "'%.40s' is not a kind of call: " CELL__POLICY_KINDS, all.kind);
	if (all.principal && !cell__principal_kind_of(all.principal))
		return cell_fail(err, CELL_E_INVALID, 0, "'%.40s' is not a principal: code, mcp, http or host", all.principal);
	json_error_t bad;
	json_t *args = all.args_json ? json_loads(all.args_json, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &bad) : NULL;
	if (all.args_json && !args)
		return cell_fail(err, CELL_E_INVALID, 0, "the arguments are not JSON: %.120s", bad.text);
	if (args && !json_is_object(args)) {
		json_decref(args);
		return cell_fail(err, CELL_E_INVALID, 0, "the arguments are not a JSON object");
	}
	struct cell__subject inner = {
		all.kind,    all.tool, all.callable,
		all.adapter, args,     all.principal ? cell__principal_kind_of(all.principal) : CELL__PRINCIPAL_CODE
	};
	cell__policy_judge(policy, &inner, &verdict);
	json_decref(args);
	cell__sized_write(ret_verdict, &verdict, sizeof verdict);
	return 0;
}
