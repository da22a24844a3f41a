#include "search/wordpiece.h"

#include <stdbool.h>
#include <string.h>

#define MAX_TOKENS 200000u /* of a vocabulary */

/* ---- characters ---- */

/* The next character and its bytes; malformed bytes are one character each, U+FFFD. */
static unsigned next_char(const char *text, size_t size, size_t *ret_used)
{
	const unsigned char *at = (const unsigned char *)text;
	unsigned n = at[0] < 0x80                    ? 1
		     : at[0] >= 0xf0 && at[0] < 0xf5 ? 4
		     : at[0] >= 0xe0 && at[0] < 0xf0 ? 3
		     : at[0] >= 0xc2 && at[0] < 0xe0 ? 2
						     : 0;
	unsigned value = n == 1 ? at[0] : n ? at[0] & (0xffu >> (n + 1)) : 0;

	*ret_used = 1;
	if (!n || n > size || !cell__utf8_ok(text, n))
		return n == 1 ? value : 0xfffd;
	for (unsigned i = 1; i < n; i++)
		value = value << 6 | (at[i] & 0x3fu);
	*ret_used = n;
	return value;
}

static bool is_space(unsigned c)
{
	return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
	       c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Left out: control characters, accents that stand alone, marks of direction. */
static bool is_dropped(unsigned c)
{
	return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xad || (c >= 0x300 && c <= 0x36f) || (c >= 0x200b && c <= 0x200f) ||
	       (c >= 0x202a && c <= 0x202e) || (c >= 0x2060 && c <= 0x2064) || c == 0xfeff || c == 0xfffd;
}

static bool is_punctuation(unsigned c)
{
	return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126) || c == 0xa1 || c == 0xa7 ||
	       c == 0xab || c == 0xb6 || c == 0xb7 || c == 0xbb || c == 0xbf || (c >= 0x2010 && c <= 0x2027) ||
	       (c >= 0x2030 && c <= 0x205e) || (c >= 0x3001 && c <= 0x3003) || (c >= 0x3008 && c <= 0x3011);
}

/* Each of these is a word. */
static bool is_ideograph(unsigned c)
{
	return (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x4e00 && c <= 0x9fff) || (c >= 0xf900 && c <= 0xfaff) ||
	       (c >= 0x20000 && c <= 0x2fa1f);
}

/* Lower case, without an accent. */
static unsigned fold(unsigned c)
{
	/* U+00C0 to U+017F: the letter without its accent; '.' is one that has none. */
	static const char latin[] = "aaaaaa.ceeeeiiii.nooooo..uuuuy..aaaaaa.ceeeeiiii.nooooo..uuuuy.y"
				    "aaaaaaccccccccdd..eeeeeeeeeegggggggghh..iiiiiiiiii..jjkk.llllll"
				    "....nnnnnn...oooooo..rrrrrrssssssssttttuuuuuuuuuuuuuuwwyyyzzzzzz.";

	if (c >= 'A' && c <= 'Z')
		return c + 32;
	if (c >= 0xc0 && c < 0xc0 + sizeof(latin) - 1 && latin[c - 0xc0] != '.')
		return (unsigned char)latin[c - 0xc0];
	if ((c >= 0xc0 && c <= 0xde && c != 0xd7) || (c >= 0x391 && c <= 0x3a9) || (c >= 0x410 && c <= 0x42f))
		return c + 32;
	return c >= 0x400 && c <= 0x40f ? c + 80 : c;
}

static size_t put_char(char *at, unsigned c)
{
	if (c < 0x80) {
		at[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		at[0] = (char)(0xc0 | c >> 6);
		at[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		at[0] = (char)(0xe0 | c >> 12);
		at[1] = (char)(0x80 | (c >> 6 & 0x3f));
		at[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	at[0] = (char)(0xf0 | c >> 18);
	at[1] = (char)(0x80 | (c >> 12 & 0x3f));
	at[2] = (char)(0x80 | (c >> 6 & 0x3f));
	at[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

/* ---- the vocabulary ---- */

static json_t *read_lines(const char *text, size_t size)
{
	json_t *vocabulary = json_object();
	const char *end = text + size;
	json_int_t n = 0;

	for (const char *at = text, *next; at < end && n < (json_int_t)MAX_TOKENS; at = next + 1) {
		next = memchr(at, '\n', (size_t)(end - at));
		next = next ? next : end;
		size_t length = (size_t)(next - at);

		length -= length && at[length - 1] == '\r';
		if (json_object_setn_new(vocabulary, at, length, json_integer(n++)) < 0) {
			json_decref(vocabulary);
			return NULL;
		}
	}
	return vocabulary;
}

static int64_t number_of(const struct cell__wordpiece *pieces, const char *token)
{
	const json_t *number = json_object_get(pieces->vocabulary, token);

	return json_is_integer(number) ? json_integer_value(number) : -1;
}

int cell__wordpiece_init(struct cell__wordpiece *pieces, const char *text, size_t size, struct cell_error *err)
{
	json_t *file = size && text[0] == '{' ? json_loadb(text, size, 0, NULL) : NULL;
	json_t *found = json_object_get(json_object_get(file, "model"), "vocab");

	*pieces = (struct cell__wordpiece){ .vocabulary = file ? json_incref(found) : read_lines(text, size) };
	json_decref(file);
	if (!json_is_object(pieces->vocabulary) || json_object_size(pieces->vocabulary) > MAX_TOKENS) {
		cell__wordpiece_finish(pieces);
		return cell_fail(err, CELL_E_INVALID, 0, "the tokenizer has no vocabulary");
	}
	pieces->cls = number_of(pieces, "[CLS]");
	pieces->sep = number_of(pieces, "[SEP]");
	pieces->unknown = number_of(pieces, "[UNK]");
	if (pieces->cls >= 0 && pieces->sep >= 0 && pieces->unknown >= 0)
		return 0;
	cell__wordpiece_finish(pieces);
	return cell_fail(err, CELL_E_INVALID, 0, "the tokenizer's vocabulary lacks [CLS], [SEP] or [UNK]");
}

void cell__wordpiece_finish(struct cell__wordpiece *pieces)
{
	json_decref(pieces->vocabulary);
	*pieces = (struct cell__wordpiece){ 0 };
}

/* ---- encoding ---- */

struct sink {
	const struct cell__wordpiece *pieces;
	int64_t *ids;
	size_t n, max;
	char word[CELL__WORD_BYTES + 4];
	size_t size;
	bool too_long;
};

static bool add(struct sink *sink, int64_t id)
{
	if (sink->n >= sink->max)
		return false;
	sink->ids[sink->n++] = id;
	return true;
}

/* The longest piece that begins the word, then the longest that goes on with it, ...; unknown if there is none. */
static void end_word(struct sink *sink)
{
	char piece[CELL__WORD_BYTES + 8] = "##";
	size_t at = 0, first = sink->n, end;

	while (at < sink->size && !sink->too_long) {
		const json_t *found = NULL;

		for (end = sink->size; end > at && !found; end--) {
			if (end < sink->size && ((unsigned char)sink->word[end] & 0xc0) == 0x80)
				continue;
			memcpy(piece + 2, sink->word + at, end - at);
			found = at ? json_object_getn(sink->pieces->vocabulary, piece, end - at + 2)
				   : json_object_getn(sink->pieces->vocabulary, piece + 2, end);
			if (found)
				break;
		}
		if (!json_is_integer(found))
			break;
		if (!add(sink, json_integer_value(found)))
			return;
		at = end;
	}
	if (sink->size && (at < sink->size || sink->too_long)) {
		sink->n = first;
		add(sink, sink->pieces->unknown);
	}
	sink->size = 0;
	sink->too_long = false;
}

static void add_to_word(struct sink *sink, unsigned c)
{
	if (sink->size + 4 > CELL__WORD_BYTES)
		sink->too_long = true;
	else
		sink->size += put_char(sink->word + sink->size, c);
}

size_t cell__wordpiece_encode(const struct cell__wordpiece *pieces, const char *text, size_t size, int64_t *ids, size_t max)
{
	struct sink sink = { .pieces = pieces, .ids = ids, .max = max - 1 };
	size_t used;

	add(&sink, pieces->cls);
	for (size_t at = 0; at < size && sink.n < sink.max; at += used) {
		unsigned c = next_char(text + at, size - at, &used);

		if (is_space(c)) {
			end_word(&sink);
		} else if (is_punctuation(c) || is_ideograph(c)) {
			end_word(&sink);
			add_to_word(&sink, c);
			end_word(&sink);
		} else if (!is_dropped(c)) {
			add_to_word(&sink, fold(c));
		}
	}
	end_word(&sink);
	ids[sink.n++] = pieces->sep;
	return sink.n;
}
