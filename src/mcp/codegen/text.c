#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "mcp/codegen/internal.h"

/* ---- the module's memory ---- */

#define BLOCK_BYTES 16384u

struct cell__gen_block {
	struct cell__gen_block *next;
	size_t used, size;
	max_align_t bytes[];
};

/* Returned when out of memory: zeros that are hardly written to before the module is given up. */
static void *no_memory(struct cell__gen_module *m)
{
	m->nomem = true;
	return NULL;
}

void *cell__gen_alloc(struct cell__gen_module *m, size_t count, size_t size)
{
	const size_t align = _Alignof(max_align_t);
	if (size && count > SIZE_MAX / 4 / size)
		return no_memory(m);
	size_t need = (count * size + align) / align * align;
	struct cell__gen_block *block = m->blocks;
	if (!block || block->size - block->used < need) {
		size_t room = need > BLOCK_BYTES ? need : BLOCK_BYTES;
		block = cell__alloc(1, sizeof *block + room);
		if (!block)
			return no_memory(m);
		block->size = room;
		block->next = m->blocks;
		m->blocks = block;
	}
	void *at = (char *)block->bytes + block->used;
	block->used += need;
	return at;
}

void cell__gen_free_blocks(struct cell__gen_module *m)
{
	while (m->blocks) {
		struct cell__gen_block *next = m->blocks->next;
		free(m->blocks);
		m->blocks = next;
	}
}

const char *cell__gen_copy(struct cell__gen_module *m, const char *text, size_t size)
{
	char *copy = cell__gen_alloc(m, size + 1, 1);
	if (!copy)
		return "";
	memcpy(copy, text, size);
	return copy;
}

const char *cell__gen_printf(struct cell__gen_module *m, const char *fmt, ...)
{
	va_list ap, again;
	va_start(ap, fmt);
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	char *text = n < 0 ? no_memory(m) : cell__gen_alloc(m, (size_t)n + 1, 1);
	if (text)
		vsnprintf(text, (size_t)n + 1, fmt, again);
	va_end(again);
	return text ? text : "";
}

void cell__gen_use(struct cell__gen_module *m, enum cell__gen_import name)
{
	m->imports |= 1u << name;
}

/* ---- characters ---- */

uint32_t cell__gen_char(const char *text, size_t size, size_t *ret_size)
{
	const unsigned char *b = (const unsigned char *)text;
	size_t n = b[0] < 0x80 ? 1 : b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : 4;
	if (n > size || (b[0] >= 0x80 && b[0] < 0xc0)) {
		*ret_size = 1; /* jansson lets no such text through */
		return 0xfffd;
	}
	*ret_size = n;
	switch (n) {
	case 1:
		return b[0];
	case 2:
		return (b[0] & 0x1fu) << 6 | (b[1] & 0x3fu);
	case 3:
		return (b[0] & 0x0fu) << 12 | (b[1] & 0x3fu) << 6 | (b[2] & 0x3fu);
	default:
		return (b[0] & 0x07u) << 18 | (b[1] & 0x3fu) << 12 | (b[2] & 0x3fu) << 6 | (b[3] & 0x3fu);
	}
}

/*
 * Characters that a source must not contain (NUL), that end a line for some readers, or that make a person see something else than Python
 * does: control characters, characters that change the direction of text, and invisible ones.
 */
static bool must_escape(uint32_t c)
{
	static const struct {
		uint32_t first, last;
	} ranges[] = {
		{ 0x00, 0x1f },     { 0x7f, 0x9f },     { 0xad, 0xad },     { 0x34f, 0x34f },      { 0x61c, 0x61c },
		{ 0x115f, 0x1160 }, { 0x17b4, 0x17b5 }, { 0x180b, 0x180f }, { 0x200b, 0x200f },    { 0x2028, 0x202e },
		{ 0x2060, 0x206f }, { 0x3164, 0x3164 }, { 0xd800, 0xf8ff }, { 0xfe00, 0xfe0f },    { 0xfeff, 0xfeff },
		{ 0xffa0, 0xffa0 }, { 0xfff0, 0xfffb }, { 0xfffe, 0xffff }, { 0xe0000, 0x10ffff },
	};
	for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
		if (c >= ranges[i].first && c <= ranges[i].last)
			return true;
	return false;
}

static int add_escape(struct cell__buf *out, uint32_t c)
{
	const char *fmt = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
	return cell__buf_printf(out, fmt, c);
}

int cell__gen_add_string(struct cell__buf *out, const char *text, size_t size)
{
	if (cell__buf_add_str(out, "\"") < 0)
		return -1;
	for (size_t i = 0, n; i < size; i += n) {
		uint32_t c = cell__gen_char(text + i, size - i, &n);
		int rc;
		if (c == '"' || c == '\\')
			rc = cell__buf_printf(out, "\\%c", (char)c);
		else if (c == '\n')
			rc = cell__buf_add_str(out, "\\n");
		else if (c == '\t')
			rc = cell__buf_add_str(out, "\\t");
		else if (must_escape(c))
			rc = add_escape(out, c);
		else
			rc = cell__buf_add(out, text + i, n);
		if (rc < 0)
			return -1;
	}
	return cell__buf_add_str(out, "\"");
}

/* ---- docstrings ---- */

static int add_doc_char(struct cell__buf *out, const char *text, size_t size, size_t i, size_t *ret_size)
{
	uint32_t c = cell__gen_char(text + i, size - i, ret_size);
	if (c == '\\')
		return cell__buf_add_str(out, "\\\\");
	/* A quote is harmless when neither a quote nor the end follows: three in a row never come about. */
	if (c == '"')
		return cell__buf_add_str(out, i + 1 == size || text[i + 1] == '"' ? "\\\"" : "\"");
	if (c == '\t')
		return cell__buf_add_str(out, "    ");
	if (must_escape(c))
		return add_escape(out, c);
	return cell__buf_add(out, text + i, *ret_size);
}

static bool is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

int cell__gen_add_doc(struct cell__buf *out, const char *text, size_t size, unsigned indent, size_t limit)
{
	bool cut = size > limit;
	if (cut)
		size = limit - cell__utf8_cut(text, limit);
	while (size > 0 && is_space(text[0])) {
		text++;
		size--;
	}
	while (size > 0 && is_space(text[size - 1]))
		size--;
	if (size == 0)
		return 0;
	bool lines = false;
	int rc = cell__buf_printf(out, "%*s\"\"\"", (int)indent, "");
	for (size_t i = 0, n; i < size && rc == 0; i += n) {
		n = 1;
		if (text[i] == '\r' && i + 1 < size && text[i + 1] == '\n')
			continue;
		if (text[i] != '\n' && text[i] != '\r') {
			rc = add_doc_char(out, text, size, i, &n);
			continue;
		}
		lines = true;
		rc = cell__buf_add_str(out, "\n");
		/* Empty lines stay empty. */
		if (rc == 0 && i + 1 < size && text[i + 1] != '\n' && text[i + 1] != '\r')
			rc = cell__buf_printf(out, "%*s", (int)indent, "");
	}
	if (rc == 0 && cut)
		rc = cell__buf_add_str(out, " [...]");
	if (rc == 0 && lines)
		rc = cell__buf_printf(out, "\n%*s", (int)indent, "");
	return rc < 0 ? -1 : cell__buf_add_str(out, "\"\"\"\n");
}

int cell__gen_add_json_doc(struct cell__buf *out, const json_t *text, unsigned indent)
{
	if (!json_is_string(text))
		return 0;
	return cell__gen_add_doc(out, json_string_value(text), json_string_length(text), indent, CELL_GEN_LIMIT_DOC_BYTES);
}

/* ---- literals ---- */

static int add_real(struct cell__buf *out, double value)
{
	static const char digits[] = "0123456789+-e";
	char text[64];
	if (!isfinite(value))
		return 1;
	/* The shortest form that reads back as the same number. */
	for (int precision = 15; precision <= 17; precision++) {
		snprintf(text, sizeof text, "%.*g", precision, value);
		if (strtod(text, NULL) == value)
			break;
	}
	/* The host's locale may have another decimal point, even one of several bytes. */
	size_t whole = strspn(text, digits), point = strcspn(text + whole, digits);
	const char *rest = text + whole + point;
	if (cell__buf_add(out, text, whole) < 0)
		return -1;
	if (point > 0)
		return cell__buf_printf(out, ".%s", rest);
	return memchr(text, 'e', whole) ? 0 : cell__buf_add_str(out, ".0");
}

static int add_container(struct cell__buf *out, const json_t *value, unsigned depth)
{
	const json_t *member;
	const char *key;
	size_t i;
	bool first = true;
	int rc = cell__buf_add_str(out, json_is_array(value) ? "[" : "{");
	if (json_is_array(value)) {
		json_array_foreach(value, i, member) {
			if (rc == 0 && i > 0)
				rc = cell__buf_add_str(out, ", ");
			if (rc == 0)
				rc = cell__gen_add_literal(out, member, depth + 1);
		}
		return rc ? rc : cell__buf_add_str(out, "]");
	}
	json_object_foreach((json_t *)value, key, member) {
		if (rc == 0 && !first)
			rc = cell__buf_add_str(out, ", ");
		first = false;
		if (rc == 0 && (cell__gen_add_string(out, key, strlen(key)) < 0 || cell__buf_add_str(out, ": ") < 0))
			rc = -1;
		if (rc == 0)
			rc = cell__gen_add_literal(out, member, depth + 1);
	}
	return rc ? rc : cell__buf_add_str(out, "}");
}

int cell__gen_add_literal(struct cell__buf *out, const json_t *value, unsigned depth)
{
	if (depth > CELL_GEN_LIMIT_LITERAL_DEPTH)
		return 1;
	switch (json_typeof(value)) {
	case JSON_NULL:
		return cell__buf_add_str(out, "None");
	case JSON_TRUE:
		return cell__buf_add_str(out, "True");
	case JSON_FALSE:
		return cell__buf_add_str(out, "False");
	case JSON_INTEGER:
		return cell__buf_printf(out, "%" PRId64, (int64_t)json_integer_value(value));
	case JSON_REAL:
		return add_real(out, json_real_value(value));
	case JSON_STRING:
		return cell__gen_add_string(out, json_string_value(value), json_string_length(value));
	default:
		return add_container(out, value, depth);
	}
}

const char *cell__gen_literal(struct cell__gen_module *m, const json_t *value)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	int rc = cell__gen_add_literal(&text, value, 0);
	if (rc < 0)
		m->nomem = true;
	return rc == 0 && text.data ? cell__gen_copy(m, text.data, text.size) : NULL;
}
