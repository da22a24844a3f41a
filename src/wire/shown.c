/*
 * Makes untrusted text and arguments safe to show to a person who decides by them.
 *
 * The display must match the content: no character may act on the terminal or the page that shows it (control characters, escape sequences,
 * Markdown, HTML), reorder it (bidirectional controls) or be invisible (zero-width characters). Such characters are written as escapes. A
 * value that is too long is cut in its middle, with its size and its SHA-256; a value cannot contain the line breaks of the frame, so it
 * cannot imitate the frame.
 *
 * Pure, any thread.
 */
#define _GNU_SOURCE
#include "wire/shown.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>
#include <openssl/evp.h>

#include "base/hole.h"

#define MAX_ARGUMENTS 40u         /* of one call; a person cannot survey more */
#define MAX_NAME 120u             /* characters of an argument's name in the display */
#define MAX_VALUE 2000u           /* characters of one value in the display; longer ones are cut */
#define MIN_VALUE 160u
#define MAX_VALUE_LINES 40u       /* a value with more is shown on one line */
#define USUAL_TOTAL 12000u        /* characters that the values share */
#define MAX_TOTAL 32000u          /* of all that is shown */
#define HASH_DIGITS 16

/* ---- characters ---- */

/* Characters that are invisible, change the direction of others, break lines, or are unassigned or for private use. */
static const struct {
	uint32_t first, last;
} hidden[] = {
	{ 0x80, 0x9f },     { 0xad, 0xad },     { 0x34f, 0x34f },     { 0x61c, 0x61c },     { 0x115f, 0x1160 },
	{ 0x17b4, 0x17b5 }, { 0x180b, 0x180f }, { 0x200b, 0x200f },   { 0x2028, 0x202e },   { 0x2060, 0x206f },
	{ 0x3164, 0x3164 }, { 0xfdd0, 0xfdef }, { 0xfe00, 0xfe0f },   { 0xfeff, 0xfeff },   { 0xffa0, 0xffa0 },
	{ 0xfff0, 0xfffb }, { 0xfffe, 0xffff }, { 0x1bca0, 0x1bca3 }, { 0x1d173, 0x1d17a }, { 0xe0000, 0x10ffff },
};

static bool is_hidden(uint32_t c)
{
	for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
		if (c >= hidden[i].first && c <= hidden[i].last)
			return true;
	return (c & 0xfffe) == 0xfffe;
}

/* The length of the character at the start, 0 when bytes are missing at the end, -1 when the first byte is not UTF-8. */
static int decode(const unsigned char *in, size_t size, uint32_t *ret)
{
	unsigned char c = in[0];
	int length = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : -1;
	uint32_t point = length <= 1 ? c : c & (0x7fu >> length);
	for (int i = 1; i < length; i++) {
		if ((size_t)i == size)
			return 0;
		if ((in[i] & 0xc0) != 0x80)
			return -1;
		point = point << 6 | (in[i] & 0x3f);
	}
	if ((length == 3 && (point < 0x800 || (point >= 0xd800 && point < 0xe000))) ||
	    (length == 4 && (point < 0x10000 || point > 0x10ffff)))
		return -1;
	*ret = point;
	return length;
}

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Does a page that renders Markdown or HTML do something with it, on a line that it does not begin? */
static bool is_markup(const char *text, size_t at, size_t size)
{
	if (text[at] == '_') /* not inside a word, where names have it */
		return !(at > 0 && at + 1 < size && is_word(text[at - 1]) && is_word(text[at + 1]));
	return text[at] && strchr("<>&`*[]~$\\", text[at]);
}

static size_t put_escape(char *out, uint32_t c, bool is_byte)
{
	return (size_t)sprintf(out, is_byte || c < 0x80 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
}

static size_t put_char(char *out, const unsigned char *in, int length, uint32_t c, enum cell_shown how)
{
	bool stays = c >= 0x20 && c != 0x7f && (c < 0x80 || (how != CELL_SHOWN_ASCII && !is_hidden(c)));
	if (how == CELL_SHOWN_LINES && (c == '\n' || c == '\t'))
		stays = true;
	if (how == CELL_SHOWN_ASCII && c == '\\') {
		memcpy(out, "\\\\", 2);
		return 2;
	}
	if (!stays && !is_hole("shown"))
		return put_escape(out, c, false);
	memcpy(out, in, (size_t)length);
	return (size_t)length;
}

size_t cell__shown_bytes(const char *bytes, size_t size, enum cell_shown how, char *out)
{
	const unsigned char *in = (const unsigned char *)bytes;
	size_t filled = 0;
	for (size_t at = 0; at < size;) {
		uint32_t c;
		int length = decode(in + at, size - at, &c);
		if (length == 1 && how == CELL_SHOWN_MARKDOWN && is_markup(bytes, at, size) && !is_hole("markup"))
			filled += put_escape(out + filled, c, false);
		else if (length > 0)
			filled += put_char(out + filled, in + at, length, c, how);
		else
			filled += put_escape(out + filled, in[at], true);
		at += length > 0 ? (size_t)length : 1;
	}
	return filled;
}

char *cell_shown_text(const char *bytes, size_t size, enum cell_shown how)
{
	if (!bytes)
		size = 0;
	char *out = cell__alloc(size + 1, CELL__SHOWN_GROWTH);
	if (out)
		out[cell__shown_bytes(bytes, size, how, out)] = '\0';
	return out;
}

/* ---- output of code, at a terminal ---- */

/* Is it a colour or another style that another sequence takes back?  Not: hidden text, blinking. */
static bool is_harmless_style(const char *at, size_t size)
{
	unsigned numbers[CELL__SHOWN_STYLE_MAX], count = 0;
	numbers[0] = 0;
	for (size_t i = 0; i < size; i++) {
		if (at[i] == ';') {
			numbers[++count] = 0;
		} else if (at[i] < '0' || at[i] > '9' || numbers[count] > 255) {
			return false;
		} else {
			numbers[count] = numbers[count] * 10 + (unsigned)(at[i] - '0');
		}
	}
	for (unsigned i = 0; i <= count; i++) {
		unsigned n = numbers[i];
		if ((n == 38 || n == 48) && i + 2 <= count && numbers[i + 1] == 5)
			i += 2;
		else if ((n == 38 || n == 48) && i + 4 <= count && numbers[i + 1] == 2)
			i += 4;
		else if (!(n <= 4 || n == 7 || n == 9 || (n >= 21 && n <= 24) || n == 27 || n == 29 || (n >= 30 && n <= 37) || n == 39 ||
			   (n >= 40 && n <= 47) || n == 49 || (n >= 90 && n <= 97) || (n >= 100 && n <= 107)))
			return false;
	}
	return true;
}

/* "ESC [ numbers m": its length; 0: more bytes are needed; -1: not such a sequence. */
static int style_size(const char *at, size_t size)
{
	if (size > 1 && at[1] != '[')
		return -1;
	for (size_t i = 2; i < size; i++) {
		if (i >= CELL__SHOWN_STYLE_MAX)
			return -1;
		if (at[i] == 'm')
			return is_harmless_style(at + 2, i - 2) ? (int)i + 1 : -1;
		if (at[i] != ';' && (at[i] < '0' || at[i] > '9'))
			return -1;
	}
	return 0;
}

/* The number of bytes to keep unchanged; 0: more bytes are needed; -n: escape the first n bytes. */
static int stream_step(const char *at, size_t size, bool redraws)
{
	uint32_t c;
	if (*at == '\x1b') {
		int style = style_size(at, size);
		return style >= 0 ? style : -1;
	}
	if (redraws && (*at == '\r' || *at == '\b'))
		return 1;
	if (*at == '\r')
		return size < 2 ? 0 : at[1] == '\n' ? 2 : -1;
	int length = decode((const unsigned char *)at, size, &c);
	if (length <= 0)
		return length;
	if (c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7f && !is_hidden(c)))
		return length;
	return -length;
}

size_t cell__shown_stream(const char *bytes, size_t size, bool last, bool redraws, char *out, size_t *ret_used)
{
	size_t used = 0, filled = 0;
	while (used < size) {
		int step = is_hole("stream") ? 1 : stream_step(bytes + used, size - used, redraws);
		if (step == 0 && !last)
			break;
		size_t n = step > 0 ? (size_t)step : step < 0 ? (size_t)-step : 1;
		if (step > 0) {
			memcpy(out + filled, bytes + used, n);
			filled += n;
		} else {
			filled += cell__shown_bytes(bytes + used, n, CELL_SHOWN_LINE, out + filled);
		}
		used += n;
	}
	*ret_used = used;
	return filled;
}

/* Takes the carried-over and the new bytes; see the header. */
char *cell_shown_output(struct cell_shown_carry *carry, const char *bytes, size_t size, size_t *ret_size)
{
	if (!carry || !ret_size || carry->size > sizeof carry->bytes)
		return NULL;
	bool last = !bytes;
	size_t all = carry->size + (last ? 0 : size), used, filled;
	char *joined = cell__alloc(all + 1, CELL__SHOWN_GROWTH + 1), *out = joined + all;
	if (!joined)
		return NULL;
	memcpy(joined, carry->bytes, carry->size);
	if (!last)
		memcpy(joined + carry->size, bytes, size);
	filled = cell__shown_stream(joined, all, last, carry->redraws != 0, out, &used);
	carry->size = all - used;
	memcpy(carry->bytes, joined + used, carry->size);
	memmove(joined, out, filled);
	joined[filled] = '\0';
	*ret_size = filled;
	return joined;
}

/* ---- arguments ---- */

/* Writes JSON in ASCII, with active characters in strings escaped. indent: after each line break. */
static void put_json(FILE *out, const char *text, enum cell_shown how, const char *indent)
{
	bool in_string = false;
	size_t size = strlen(text);
	for (size_t i = 0; i < size; i++) {
		char c = text[i];
		if (in_string && c == '\\' && how == CELL_SHOWN_MARKDOWN && strchr("\"\\/", text[i + 1])) {
			/* Markdown takes a backslash before these away. */
			fprintf(out, "\\u%04x", (unsigned)text[++i]);
		} else if (in_string && c == '\\') {
			fputc(c, out);
			fputc(text[++i], out);
		} else if (c == '"') {
			in_string = !in_string;
			fputc(c, out);
		} else if (c == 0x7f || (in_string && how == CELL_SHOWN_MARKDOWN && is_markup(text, i, size) && !is_hole("markup"))) {
			fprintf(out, "\\u%04x", (unsigned)c);
		} else {
			fputc(c, out);
			if (c == '\n')
				fputs(indent, out);
		}
	}
}

/* free() it; NULL: no memory. */
static char *json_text(const json_t *value, size_t flags, enum cell_shown how, const char *indent)
{
	char *plain = json_dumps(value, flags | JSON_ENSURE_ASCII | JSON_SORT_KEYS | JSON_ENCODE_ANY), *text = NULL;
	size_t size = 0;
	FILE *out = plain ? open_memstream(&text, &size) : NULL;
	if (out) {
		put_json(out, plain, how, indent);
		if (ferror(out) | fclose(out)) {
			free(text);
			text = NULL;
		}
	}
	free(plain);
	return text;
}

/* The size of the unit at the start of text that must not be split: an escape, a pair of them for one character, or a byte. */
static size_t token_size(const char *text)
{
	if (text[0] != '\\')
		return 1;
	if (text[1] != 'u')
		return 2;
	return (text[2] == 'd' || text[2] == 'D') && strchr("89abAB", text[3]) ? 12 : 6;
}

static int put_hash(FILE *out, const json_t *value)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	char *dump = json_is_string(value) ? NULL : json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
	const char *bytes = dump ? dump : json_string_value(value);
	size_t size = dump ? strlen(dump) : json_string_length(value);
	bool ok = bytes && EVP_Digest(bytes, size, digest, &n, EVP_sha256(), NULL) == 1;
	if (ok) {
		fprintf(out, "%zu bytes%s, sha256 ", size, dump ? " of JSON" : "");
		for (unsigned i = 0; i < HASH_DIGITS / 2; i++)
			fprintf(out, "%02x", digest[i]);
	}
	free(dump);
	return ok ? 0 : -1;
}

/* The beginning and the end of a value on lines of their own, after its size and hash. */
static int put_cut(FILE *out, const json_t *value, const char *text, size_t room, enum cell_shown how)
{
	size_t size = strlen(text), head = 0, tail = 0;
	size_t head_room = room * 2 / 3, tail_room = room / 3;
	for (size_t at = 0; at < size; at += token_size(text + at)) {
		if (at <= head_room)
			head = at;
		if (size - at <= tail_room && !tail)
			tail = at;
	}
	if (!tail)
		tail = size;
	if (put_hash(out, value) < 0)
		return -1;
	fprintf(out, ", cut in the middle%s:\n      %.*s\n      (%zu characters are left out here)\n      %s",
		how == CELL_SHOWN_MARKDOWN ? "" : " (v shows all)", (int)head, text, tail - head, text + tail);
	return 0;
}

static size_t count_lines(const char *text)
{
	size_t n = 1;
	for (; *text; text++)
		n += *text == '\n';
	return n;
}

static int put_argument(FILE *out, const char *name, const json_t *value, size_t room, enum cell_shown how, struct cell_error *err)
{
	json_t *key = json_string(name);
	CELL_AUTO_FREE char *shown = json_text(key, 0, how, "");
	CELL_AUTO_FREE char *text = json_text(value, JSON_INDENT(2), how, "      ");
	json_decref(key);
	if (!shown || !text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (strlen(shown) > MAX_NAME)
		return cell_fail(err, CELL_E_LIMIT, 0, "an argument's name is too long to be shown");
	if (how != CELL_SHOWN_ALL && strlen(text) > room / 2 && count_lines(text) > MAX_VALUE_LINES) {
		free(text);
		text = json_text(value, 0, how, "");
		if (!text)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	fprintf(out, "    %s: ", shown);
	if (how == CELL_SHOWN_ALL || strlen(text) <= room || is_hole("cut-notice")) {
		fputs(text, out);
		return 0;
	}
	return put_cut(out, value, text, room, how) < 0 ? cell_fail(err, CELL_E_IO, 0, "SHA-256 is not available") : 0;
}

static int put_arguments(FILE *out, const json_t *args, enum cell_shown how, struct cell_error *err)
{
	size_t count = json_object_size(args), room = count ? USUAL_TOTAL / count : 0;
	const char *name;
	json_t *value;
	if (how != CELL_SHOWN_ALL && count > MAX_ARGUMENTS)
		return cell_fail(err, CELL_E_LIMIT, 0, "too many arguments to show: %zu, at most %u", count, MAX_ARGUMENTS);
	room = room < MIN_VALUE ? MIN_VALUE : room > MAX_VALUE ? MAX_VALUE : room;
	json_object_foreach((json_t *)args, name, value)
		if (fputs("\n", out), put_argument(out, name, value, room, how, err) < 0)
			return -1;
	return 0;
}

/* A copy with its keys in order, so that the same call always looks the same. */
static json_t *sorted(const json_t *args)
{
	char *text = json_dumps(args, JSON_COMPACT | JSON_SORT_KEYS);
	json_t *copy = text ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
	free(text);
	return copy;
}

int cell_shown_args(const char *json, size_t size, enum cell_shown how, char **ret_text, struct cell_error *err)
{
	if (cell__require(err, json, ret_text) < 0)
		return -1;
	size_t limit = how == CELL_SHOWN_MARKDOWN ? CELL__SHOWN_MAX_PAGE : CELL__SHOWN_MAX_ARGS, used = 0;
	if (size > limit)
		return cell_fail(err, CELL_E_LIMIT, 0, "the arguments are too large to show: %zu bytes, at most %zu", size, limit);
	json_t *given = json_loadb(json, size, JSON_ALLOW_NUL, NULL), *args = given ? sorted(given) : NULL;
	json_decref(given);
	if (!json_is_object(args)) {
		json_decref(args);
		return cell_fail(err, CELL_E_INVALID, 0, "the arguments are not a JSON object, and cannot be shown");
	}
	char *text = NULL;
	FILE *out = open_memstream(&text, &used);
	int rc = out ? put_arguments(out, args, how, err) : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (out && json_object_size(args) == 0)
		fputs("\n    (no arguments)", out);
	if (out && (ferror(out) | fclose(out)) && rc == 0)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (rc == 0 && how != CELL_SHOWN_ALL && used > MAX_TOTAL)
		rc = cell_fail(err, CELL_E_LIMIT, 0, "the arguments are too large to show");
	json_decref(args);
	if (rc < 0) {
		free(text);
		return -1;
	}
	*ret_text = text;
	return 0;
}
