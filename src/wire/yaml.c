/* YAML into a tree with line numbers, through libyaml's events. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "base/nearest.h"
#include "wire/yaml.h"

/* ---- problems ---- */

static void add_problem(struct cell__problems *problems, const char *file, int line, const char *fmt, va_list ap)
{
	if (problems->count >= CELL_YAML_LIMIT_PROBLEMS)
		return;
	struct cell__problem *list = cell__realloc(problems->list, (problems->count + 1) * sizeof *list);
	if (!list)
		return;
	problems->list = list;
	char *message = NULL;
	if (vasprintf(&message, fmt, ap) < 0)
		message = NULL;
	list[problems->count++] = (struct cell__problem){ cell__strdup(file), line, message };
}

void cell__problem_add(struct cell__problems *problems, const char *file, int line, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	add_problem(problems, file, line, fmt, ap);
	va_end(ap);
}

void cell__problems_finish(struct cell__problems *problems)
{
	for (size_t i = 0; i < problems->count; i++) {
		free(problems->list[i].file);
		free(problems->list[i].message);
	}
	free(problems->list);
	*problems = (struct cell__problems){ 0 };
}

/* ---- the tree ---- */

struct parse {
	yaml_parser_t parser;
	const char *file;
	struct cell__problems *problems;
	size_t depth;
};

void cell__yaml_destroy(struct cell__yaml *node)
{
	if (!node)
		return;
	for (size_t i = 0; i < node->count; i++)
		cell__yaml_destroy(node->items[i]);
	free(node->items);
	free(node->text);
	free(node);
}

static struct cell__yaml *no_memory(struct parse *parse, struct cell__yaml *node)
{
	cell__problem_add(parse->problems, parse->file, 1, "out of memory");
	cell__yaml_destroy(node);
	return NULL;
}

static struct cell__yaml *complain(struct parse *parse, const yaml_mark_t *at, struct cell__yaml *node, const char *message)
{
	cell__problem_add(parse->problems, parse->file, (int)at->line + 1, "%s", message);
	cell__yaml_destroy(node);
	return NULL;
}

static bool next_event(struct parse *parse, yaml_event_t *event)
{
	if (yaml_parser_parse(&parse->parser, event))
		return true;
	const yaml_parser_t *parser = &parse->parser;
	size_t line = parser->problem_mark.line;
	if (parser->error == YAML_READER_ERROR)
		line = parser->mark.line;
	cell__problem_add(parse->problems, parse->file, (int)line + 1, "malformed YAML: %s%s%s",
			  parser->problem ? parser->problem : "cannot be parsed", parser->context ? ", " : "",
			  parser->context ? parser->context : "");
	return false;
}

static int add_item(struct cell__yaml *node, struct cell__yaml *item)
{
	/* Grows by doubling: a power of two means full. */
	if ((node->count & (node->count - 1)) == 0) {
		size_t room = node->count ? node->count * 2 : 1;
		struct cell__yaml **items = cell__realloc(node->items, room * sizeof(struct cell__yaml *));
		if (!items)
			return -1;
		node->items = items;
	}
	node->items[node->count++] = item;
	return 0;
}

static struct cell__yaml *make_node(enum cell__yaml_kind kind, const yaml_mark_t *at)
{
	struct cell__yaml *node = cell__alloc(1, sizeof *node);
	if (!node)
		return NULL;
	node->kind = kind;
	node->line = (int)at->line + 1;
	return node;
}

static struct cell__yaml *parse_node(struct parse *parse, const yaml_event_t *event);

static struct cell__yaml *parse_scalar(struct parse *parse, const yaml_event_t *event)
{
	const char *tag = (const char *)event->data.scalar.tag;
	bool is_str = tag && strcmp(tag, YAML_STR_TAG) == 0;
	if (tag && !is_str)
		return complain(parse, &event->start_mark, NULL, "YAML tags are not supported");
	struct cell__yaml *node = make_node(CELL_YAML_SCALAR, &event->start_mark);
	if (!node)
		return no_memory(parse, NULL);
	const char *value = (const char *)event->data.scalar.value;
	size_t size = event->data.scalar.length;
	if (memchr(value, '\0', size))
		return complain(parse, &event->start_mark, node, "a string contains a NUL byte");
	node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && !is_str;
	node->text = cell__strndup(value, size);
	return node->text ? node : no_memory(parse, node);
}

/* The key just added must be new, and a string. */
static bool key_ok(struct parse *parse, const struct cell__yaml *map)
{
	const struct cell__yaml *key = map->items[map->count - 1];
	if (key->kind != CELL_YAML_SCALAR) {
		cell__problem_add(parse->problems, parse->file, key->line, "a key must be a string");
		return false;
	}
	if (map->count > 2 * CELL_YAML_LIMIT_KEYS) {
		cell__problem_add(parse->problems, parse->file, key->line, "more than %u keys", CELL_YAML_LIMIT_KEYS);
		return false;
	}
	for (size_t i = 0; i + 1 < map->count; i += 2)
		if (strcmp(map->items[i]->text, key->text) == 0) {
			cell__problem_add(parse->problems, parse->file, key->line, "duplicate key '%s', first in line %d", key->text,
					  map->items[i]->line);
			return false;
		}
	return true;
}

static struct cell__yaml *parse_items(struct parse *parse, const yaml_event_t *start)
{
	bool map = start->type == YAML_MAPPING_START_EVENT;
	if ((map ? start->data.mapping_start.tag : start->data.sequence_start.tag))
		return complain(parse, &start->start_mark, NULL, "YAML tags are not supported");
	if (parse->depth >= CELL_YAML_LIMIT_DEPTH)
		return complain(parse, &start->start_mark, NULL, "nested too deeply");
	struct cell__yaml *node = make_node(map ? CELL_YAML_MAPPING : CELL_YAML_SEQUENCE, &start->start_mark);
	if (!node)
		return no_memory(parse, NULL);
	parse->depth++;
	for (;;) {
		yaml_event_t event;
		if (!next_event(parse, &event))
			break;
		if (event.type == YAML_MAPPING_END_EVENT || event.type == YAML_SEQUENCE_END_EVENT) {
			yaml_event_delete(&event);
			parse->depth--;
			return node;
		}
		struct cell__yaml *item = parse_node(parse, &event);
		yaml_event_delete(&event);
		if (!item)
			break;
		if (add_item(node, item) < 0) {
			cell__yaml_destroy(item);
			return no_memory(parse, node);
		}
		if (map && node->count % 2 == 1 && !key_ok(parse, node))
			break;
	}
	cell__yaml_destroy(node);
	return NULL;
}

static struct cell__yaml *parse_node(struct parse *parse, const yaml_event_t *event)
{
	const yaml_char_t *anchor = NULL;
	if (event->type == YAML_SCALAR_EVENT)
		anchor = event->data.scalar.anchor;
	else if (event->type == YAML_MAPPING_START_EVENT)
		anchor = event->data.mapping_start.anchor;
	else if (event->type == YAML_SEQUENCE_START_EVENT)
		anchor = event->data.sequence_start.anchor;
	if (anchor || event->type == YAML_ALIAS_EVENT)
		return complain(parse, &event->start_mark, NULL, "YAML anchors and aliases are not supported");
	if (event->type == YAML_SCALAR_EVENT)
		return parse_scalar(parse, event);
	return parse_items(parse, event);
}

/* Nothing may follow the one document. */
static struct cell__yaml *expect_end(struct parse *parse, struct cell__yaml *root)
{
	for (;;) {
		yaml_event_t event;
		if (!next_event(parse, &event))
			break;
		enum yaml_event_type_e type = event.type;
		yaml_mark_t at = event.start_mark;
		yaml_event_delete(&event);
		if (type == YAML_STREAM_END_EVENT)
			return root;
		if (type == YAML_DOCUMENT_START_EVENT)
			return complain(parse, &at, root, "a file must contain only one YAML document");
	}
	cell__yaml_destroy(root);
	return NULL;
}

static struct cell__yaml *parse_document(struct parse *parse)
{
	for (;;) {
		yaml_event_t event;
		if (!next_event(parse, &event))
			return NULL;
		enum yaml_event_type_e type = event.type;
		if (type == YAML_STREAM_START_EVENT || type == YAML_DOCUMENT_START_EVENT) {
			yaml_event_delete(&event);
			continue;
		}
		struct cell__yaml *root = NULL;
		if (type == YAML_STREAM_END_EVENT)
			cell__problem_add(parse->problems, parse->file, 1, "the file is empty");
		else
			root = parse_node(parse, &event);
		yaml_event_delete(&event);
		return root ? expect_end(parse, root) : NULL;
	}
}

struct cell__yaml *cell__yaml_parse(const char *file, const char *bytes, size_t size, struct cell__problems *problems)
{
	return cell__yaml_parse_within(file, bytes, size, CELL_YAML_LIMIT_FILE_BYTES, problems);
}

struct cell__yaml *cell__yaml_parse_within(const char *file, const char *bytes, size_t size, size_t limit, struct cell__problems *problems)
{
	struct parse parse = { .file = file, .problems = problems };
	if (size > limit) {
		cell__problem_add(problems, file, 1, "larger than %zu bytes", limit);
		return NULL;
	}
	if (!yaml_parser_initialize(&parse.parser)) {
		cell__problem_add(problems, file, 1, "out of memory");
		return NULL;
	}
	yaml_parser_set_input_string(&parse.parser, (const unsigned char *)bytes, size);
	yaml_parser_set_encoding(&parse.parser, YAML_UTF8_ENCODING);
	struct cell__yaml *root = parse_document(&parse);
	yaml_parser_delete(&parse.parser);
	return root;
}

/* ---- looking at it ---- */

const struct cell__yaml *cell__yaml_get(const struct cell__yaml *map, const char *key)
{
	for (size_t i = 0; i + 1 < map->count; i += 2)
		if (strcmp(map->items[i]->text, key) == 0)
			return map->items[i + 1];
	return NULL;
}

bool cell__yaml_is_null(const struct cell__yaml *node)
{
	if (node->kind != CELL_YAML_SCALAR || !node->plain)
		return false;
	static const char *const words[] = { "", "~", "null", "Null", "NULL" };
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strcmp(node->text, words[i]) == 0)
			return true;
	return false;
}

static json_t *number_to_json(const char *text)
{
	size_t size = strlen(text);
	const char *digits = text + (*text == '-' || *text == '+');
	if (size == 0 || size > 40 || strspn(text, "0123456789+-.eE") != size || strcspn(digits, "0123456789") > 1)
		return NULL;
	char *end;
	errno = 0;
	long long whole = strtoll(text, &end, 10);
	if (*end == '\0' && errno == 0)
		return json_integer(whole);
	errno = 0;
	double real = strtod(text, &end);
	return *end == '\0' && errno == 0 ? json_real(real) : NULL;
}

static json_t *scalar_to_json(const struct cell__yaml *node)
{
	if (node->plain) {
		if (cell__yaml_is_null(node))
			return json_null();
		if (strcmp(node->text, "true") == 0 || strcmp(node->text, "True") == 0)
			return json_true();
		if (strcmp(node->text, "false") == 0 || strcmp(node->text, "False") == 0)
			return json_false();
		json_t *number = number_to_json(node->text);
		if (number)
			return number;
	}
	return json_string(node->text);
}

json_t *cell__yaml_to_json(const struct cell__yaml *node)
{
	if (node->kind == CELL_YAML_SCALAR)
		return scalar_to_json(node);
	bool map = node->kind == CELL_YAML_MAPPING;
	json_t *out = map ? json_object() : json_array();
	for (size_t i = 0; out && i + map < node->count; i += 1 + map) {
		json_t *item = cell__yaml_to_json(node->items[i + map]);
		int rc = map ? json_object_set_new(out, node->items[i]->text, item) : json_array_append_new(out, item);
		if (rc < 0) {
			json_decref(out);
			return NULL;
		}
	}
	return out;
}

/* ---- reading it strictly ---- */

void cell__load_problem(struct cell__loader *loader, const struct cell__yaml *at, const char *fmt, ...)
{
	loader->bad = true;
	va_list ap;
	va_start(ap, fmt);
	add_problem(loader->problems, loader->file, at ? at->line : 1, fmt, ap);
	va_end(ap);
}

void cell__load_text(struct cell__loader *loader, const struct cell__yaml *value, const char *what, char **ret)
{
	if (!value || cell__yaml_is_null(value))
		return;
	if (value->kind != CELL_YAML_SCALAR) {
		cell__load_problem(loader, value, "%s must be a string", what);
		return;
	}
	char *copy = cell__strdup(value->text);
	if (!copy) {
		cell__load_problem(loader, value, "out of memory");
		return;
	}
	free(*ret);
	*ret = copy;
}

bool cell__load_keys(struct cell__loader *loader, const struct cell__yaml *map, const char *what, const char *const *known)
{
	if (map->kind != CELL_YAML_MAPPING) {
		cell__load_problem(loader, map, "%s must be a mapping", what);
		return false;
	}
	for (size_t i = 0; i < map->count; i += 2) {
		const struct cell__yaml *key = map->items[i];
		const char *const *at = known;
		while (*at && strcmp(*at, key->text) != 0)
			at++;
		if (*at)
			continue;
		const char *near = cell__nearest(key->text, known);
		cell__load_problem(loader, key, "unknown key '%.100s' in %s%s%s%s", key->text, what, near ? "; did you mean '" : "",
				   near ? near : "", near ? "'?" : "");
	}
	return true;
}
