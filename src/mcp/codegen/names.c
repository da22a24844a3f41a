/*
 * Turns names that a server chose into our names. Only these characters get into an identifier: ASCII letters, digits, the underscore, and
 * letters of a few left-to-right scripts that Python keeps unchanged (it normalizes identifiers: others could become a name that is
 * taken).
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "mcp/codegen/internal.h"

/* clang-format off */
static const char *const keywords[] = { "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class",
	"continue", "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is",
	"lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield" };

/* In the order of enum cell__gen_import. */
static const char *const import_names[GEN_IMPORTS] = { "Date", "DateTime", "Time", "IPv4Address", "IPv6Address", "Annotated",
	"Any", "Dict", "List", "Literal", "Optional", "Tuple", "Union", "UUID", "BaseModel", "CLIENT", "Field", "IntEnum",
	"Nullable", "OneOf", "Pattern", "RootModel", "StrEnum", "Unique" };

/* Members of a model's class: a field of this name would hide one. */
static const char *const model_names[] = { "construct", "copy", "dict", "from_orm", "json", "model_computed_fields",
	"model_config", "model_construct", "model_copy", "model_dump", "model_dump_json", "model_extra", "model_fields",
	"model_fields_set", "model_json_schema", "model_parametrized_name", "model_post_init", "model_rebuild",
	"model_validate", "model_validate_json", "model_validate_strings", "mro", "parse_file", "parse_obj", "parse_raw",
	"register", "root", "schema", "schema_json", "update_forward_refs", "validate" };
/* clang-format on */

/* Names in annotations beside the imports. */
static const char *const builtin_names[] = { "bool", "float", "int", "str" };

/* Members of str, int and Enum: a member of this name would hide one. */
static const char *const member_names[] = { "as_integer_ratio",
					    "bit_count",
					    "bit_length",
					    "capitalize",
					    "casefold",
					    "center",
					    "conjugate",
					    "count",
					    "denominator",
					    "encode",
					    "endswith",
					    "expandtabs",
					    "find",
					    "format",
					    "format_map",
					    "from_bytes",
					    "imag",
					    "index",
					    "is_integer",
					    "isalnum",
					    "isalpha",
					    "isascii",
					    "isdecimal",
					    "isdigit",
					    "isidentifier",
					    "islower",
					    "isnumeric",
					    "isprintable",
					    "isspace",
					    "istitle",
					    "isupper",
					    "join",
					    "ljust",
					    "lower",
					    "lstrip",
					    "maketrans",
					    "mro",
					    "name",
					    "numerator",
					    "partition",
					    "real",
					    "removeprefix",
					    "removesuffix",
					    "replace",
					    "rfind",
					    "rindex",
					    "rjust",
					    "rpartition",
					    "rsplit",
					    "rstrip",
					    "split",
					    "splitlines",
					    "startswith",
					    "strip",
					    "swapcase",
					    "title",
					    "to_bytes",
					    "translate",
					    "upper",
					    "value",
					    "zfill" };

static bool is_one_of(const char *const *list, size_t n, const char *word)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(list[i], word) == 0)
			return true;
	return false;
}
#define IS_ONE_OF(list, word) is_one_of(list, sizeof(list) / sizeof *(list), word)

bool cell__gen_is_keyword(const char *word)
{
	return IS_ONE_OF(keywords, word);
}

const char *cell__gen_import_name(enum cell__gen_import name)
{
	return import_names[name];
}

/* ---- characters: not those of <ctype.h>, which depend on the locale ---- */

static bool is_digit(uint32_t c)
{
	return c >= '0' && c <= '9';
}

static bool is_word(uint32_t c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
}

static char to_lower(uint32_t c)
{
	return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}

static char to_upper(uint32_t c)
{
	return (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
}

/* A letter beyond ASCII that stays unchanged in an identifier. */
static bool is_letter(uint32_t c)
{
	static const struct {
		uint16_t first, last;
	} ranges[] = {
		{ 0xc0, 0xd6 },   { 0xd8, 0xf6 },     { 0xf8, 0x131 },    { 0x134, 0x13e },   { 0x141, 0x148 },   { 0x14a, 0x17e },
		{ 0x386, 0x386 }, { 0x388, 0x38a },   { 0x38c, 0x38c },   { 0x38e, 0x3a1 },   { 0x3a3, 0x3ce },   { 0x400, 0x481 },
		{ 0x48a, 0x52f }, { 0x3041, 0x3096 }, { 0x30a1, 0x30fa }, { 0x4e00, 0x9fa5 }, { 0xac00, 0xd7a3 },
	};
	for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
		if (c >= ranges[i].first && c <= ranges[i].last)
			return true;
	return false;
}

/* Every other character becomes "_". Uses at most CELL_GEN_LIMIT_IDENTIFIER characters. `letters`: those beyond ASCII may stay. */
static int add_clean(struct cell__buf *out, const char *text, size_t size, bool letters, bool lower)
{
	unsigned count = 0;
	for (size_t i = 0, n; i < size && count < CELL_GEN_LIMIT_IDENTIFIER; i += n, count++) {
		uint32_t c = cell__gen_char(text + i, size - i, &n);
		int rc;
		if (is_word(c)) {
			char one = lower ? to_lower(c) : (char)c;
			rc = cell__buf_add(out, &one, 1);
		} else if (letters && is_letter(c)) {
			rc = cell__buf_add(out, text + i, n);
		} else {
			rc = cell__buf_add(out, "_", 1);
		}
		if (rc < 0)
			return -1;
	}
	return cell__buf_reserve(out, 0) < 0 ? -1 : cell__buf_add(out, "", 0);
}

/* ---- packages and modules ---- */

bool cell__gen_server_ok(const char *name)
{
	size_t size = strlen(name);
	return size >= 1 && size <= CELL_GEN_LIMIT_SERVER &&
	       strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") == size;
}

/* Adds a prefix to a name that begins with an invalid character, and a suffix to a keyword. */
static char *finish_name(struct cell__buf *clean, const char *prefix)
{
	struct cell__buf name = CELL_BUF_INIT;
	const char *text = clean->data;
	bool dunder = text[0] == '_' && (text[1] == '_' || text[1] == '\0');
	int rc = 0;
	if (text[0] == '\0' || is_digit((unsigned char)text[0]) || dunder)
		rc = cell__buf_printf(&name, "%s%s", prefix, text[0] == '_' ? "" : "_");
	if (rc == 0)
		rc = cell__buf_printf(&name, "%s%s", text, cell__gen_is_keyword(text) ? "_" : "");
	if (rc < 0) {
		cell__buf_finish(&name);
		return NULL;
	}
	return cell__buf_take(&name);
}

char *cell__gen_package_name(const char *server)
{
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
	if (add_clean(&clean, server, strlen(server), false, false) < 0)
		return NULL;
	return finish_name(&clean, "mcp");
}

char *cell__gen_module_name(const char *tool, size_t size)
{
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
	if (add_clean(&clean, tool, size, false, true) < 0)
		return NULL;
	return finish_name(&clean, "tool");
}

/* ---- classes ---- */

const char *cell__gen_class_name(struct cell__gen_module *m, const char *text, size_t size)
{
	char name[CELL_GEN_LIMIT_IDENTIFIER + 8];
	size_t used = 0;
	bool upper = true;
	for (size_t i = 0, n; i < size && used < CELL_GEN_LIMIT_IDENTIFIER; i += n) {
		uint32_t c = cell__gen_char(text + i, size - i, &n);
		if (!is_word(c) || c == '_') {
			upper = true;
			continue;
		}
		if (used == 0 && is_digit(c))
			used = (size_t)snprintf(name, sizeof name, "Field");
		name[used++] = upper ? to_upper(c) : (char)c;
		upper = false;
	}
	return used ? cell__gen_copy(m, name, used) : "Model";
}

/* The end is in small letters. */
static bool ends_with(const char *text, size_t size, const char *end)
{
	size_t n = strlen(end);
	for (size_t i = 0; i < n && size >= n; i++)
		if (to_lower((unsigned char)text[size - n + i]) != end[i])
			return false;
	return size >= n;
}

const char *cell__gen_singular(struct cell__gen_module *m, const char *class_name)
{
	static const struct {
		const char *many, *one;
	} endings[] = {
		{ "children", "child" },  { "people", "person" },   { "indices", "index" },
		{ "vertices", "vertex" }, { "matrices", "matrix" }, { "criteria", "criterion" },
		{ "data", "datum" },      { "series", "series" },   { "ies", "y" },
		{ "sses", "ss" },         { "shes", "sh" },         { "ches", "ch" },
		{ "xes", "x" },           { "uses", "us" },         { "ss", "ss" },
		{ "us", "us" },           { "is", "is" },           { "s", "" },
	};
	size_t size = strlen(class_name);
	for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
		size_t n = strlen(endings[i].many);
		bool whole = size == n;
		if (!ends_with(class_name, size, endings[i].many) || (whole && n < 4))
			continue;
		const char *one = endings[i].one;
		/* The first letter keeps its case if it is part of the ending. */
		char first = whole ? class_name[0] : one[0];
		return cell__gen_printf(m, "%.*s%.*s%s", (int)(size - n), class_name, one[0] ? 1 : 0, &first, one[0] ? one + 1 : "");
	}
	return class_name;
}

/* Each taken name knows the number that the next one like it will get, so that many of them take no long search. */
static void take(struct cell__gen_module *m, json_t *names, const char *name, json_int_t next)
{
	if (json_object_set_new(names, name, json_integer(next)) < 0)
		m->nomem = true;
}

static bool is_taken(const struct cell__gen_module *m, const char *name)
{
	return json_object_get(m->names, name) != NULL;
}

/* base, or base with a number behind it. */
static const char *free_name(struct cell__gen_module *m, json_t *names, const char *base, const char *between)
{
	json_t *taken = json_object_get(names, base);
	const char *name = base;
	json_int_t number = taken ? json_integer_value(taken) : 1;
	while (json_object_get(names, name) && !m->nomem)
		name = cell__gen_printf(m, "%s%s%lld", base, between, (long long)number++);
	if (taken)
		take(m, names, base, number);
	take(m, names, name, 1);
	return name;
}

const char *cell__gen_take_class_name(struct cell__gen_module *m, const char *base)
{
	const char *name = base;
	if (cell__gen_is_keyword(base) || IS_ONE_OF(import_names, base))
		name = cell__gen_printf(m, "%sModel", base);
	/* A result class with the name of a parameter class gets a suffix. */
	for (const struct cell__gen_class *class = m->known; class && m->output; class = class->next_known) {
		if (!class->output && strcmp(class->name, name) == 0) {
			name = cell__gen_printf(m, "Result%s", name);
			break;
		}
	}
	return free_name(m, m->names, name, "");
}

void cell__gen_reserve_names(struct cell__gen_module *m)
{
	for (size_t i = 0; i < GEN_IMPORTS; i++)
		take(m, m->names, import_names[i], 1);
	take(m, m->names, "Params", 1);
	take(m, m->names, "Result", 1);
}

/* ---- fields and members ---- */

/* The name of a field or a member, before collisions are resolved; *ret_same: it equals the server's name. */
static const char *clean_name(struct cell__gen_module *m, const char *text, size_t size, const char *const *reserved, size_t n_reserved,
			      bool *ret_same)
{
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
	*ret_same = false;
	if (add_clean(&clean, text, size, true, false) < 0) {
		m->nomem = true;
		return "";
	}
	const char *word = clean.data;
	if (word[0] == '\0')
		return "field_";
	if (word[0] == '_' || is_digit((unsigned char)word[0]))
		return cell__gen_printf(m, "field%s%s", word[0] == '_' ? "" : "_", word);
	if (cell__gen_is_keyword(word) || is_one_of(reserved, n_reserved, word))
		return cell__gen_printf(m, "%s_", word);
	*ret_same = clean.size == size && memcmp(word, text, size) == 0;
	return cell__gen_copy(m, word, clean.size);
}

void cell__gen_name_fields(struct cell__gen_module *m, struct cell__gen_class *class)
{
	json_t *used = json_object();
	/* First those that can keep the server's name: no other takes it. */
	for (int round = 0; round < 2 && used; round++) {
		for (size_t i = 0; i < class->n_fields && !m->nomem; i++) {
			struct cell__gen_field *field = &class->fields[i];
			if (field->name)
				continue;
			bool same;
			size_t size = strlen(field->property);
			const char *name = clean_name(m, field->property, size, model_names, sizeof model_names / sizeof *model_names,
						      &same);
			/* Inside the class it would hide the type of this name. */
			if (is_taken(m, name) || IS_ONE_OF(builtin_names, name)) {
				same = false;
				name = cell__gen_printf(m, "%s_", name);
			}
			if (same || round == 1)
				field->name = free_name(m, used, name, "_");
		}
	}
	if (!used)
		m->nomem = true;
	json_decref(used);
}

void cell__gen_name_members(struct cell__gen_module *m, struct cell__gen_class *class)
{
	json_t *used = json_object();
	for (int round = 0; round < 2 && used; round++) {
		for (size_t i = 0; i < class->n_members && !m->nomem; i++) {
			struct cell__gen_member *member = &class->members[i];
			if (member->name)
				continue;
			bool same = true;
			const char *name;
			if (json_is_integer(member->value)) {
				unsigned long long number = (unsigned long long)json_integer_value(member->value);
				bool negative = json_integer_value(member->value) < 0;
				name = cell__gen_printf(m, "integer_%s%llu", negative ? "_" : "", negative ? 0 - number : number);
			} else {
				name = clean_name(m, json_string_value(member->value), json_string_length(member->value), member_names,
						  sizeof member_names / sizeof *member_names, &same);
			}
			if (same || round == 1)
				member->name = free_name(m, used, name, "_");
		}
	}
	if (!used)
		m->nomem = true;
	json_decref(used);
}
