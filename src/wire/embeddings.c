#include "wire/embeddings.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "wire/json_check.h"

#define SMALLEST_LENGTH 1e-20 /* a shorter vector has no direction */

/* ---- the request ---- */

int cell__embed_request(struct cell__buf *out, const char *model, const char *const *texts, size_t n)
{
	int rc = cell__buf_add_str(out, "{\"model\":");
	rc |= cell__buf_add_json_string(out, model, strlen(model));
	rc |= cell__buf_add_str(out, ",\"input\":[");
	for (size_t i = 0; i < n; i++) {
		CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
		rc |= cell__buf_add_utf8(&clean, texts[i], strlen(texts[i]));
		rc |= cell__buf_add_str(out, i ? "," : "");
		rc |= cell__buf_add_json_string(out, clean.data ? clean.data : "", clean.size);
	}
	return rc | cell__buf_add_str(out, "]}");
}

/* ---- walking through text that is known to be JSON ---- */

struct walk {
	const char *at;
};

static void skip_space(struct walk *w)
{
	while (*w->at == ' ' || *w->at == '\t')
		w->at++;
}

/* At a string: moves past it. */
static void skip_string(struct walk *w)
{
	for (w->at++; *w->at != '"'; w->at++)
		if (*w->at == '\\')
			w->at++;
	w->at++;
}

static void skip_value(struct walk *w)
{
	size_t depth = 0;
	do {
		skip_space(w);
		switch (*w->at) {
		case '{':
		case '[':
			depth++;
			w->at++;
			break;
		case '}':
		case ']':
			depth--;
			w->at++;
			break;
		case '"':
			skip_string(w);
			break;
		case ',':
		case ':':
			w->at++;
			break;
		default: /* a number or a word */
			w->at += strcspn(w->at, " \t,]}");
		}
		skip_space(w);
	} while (depth > 0);
}

/* After an opening bracket, and after each value: whether another value follows. */
static bool has_next(struct walk *w, bool first)
{
	skip_space(w);
	if (*w->at == ']' || *w->at == '}') {
		w->at++;
		return false;
	}
	if (!first)
		w->at++; /* the comma */
	skip_space(w);
	return true;
}

/* At a key: moves to its value; is it this one? */
static bool take_key(struct walk *w, const char *key)
{
	const char *start = w->at + 1;
	skip_string(w);
	size_t size = (size_t)(w->at - 1 - start);
	skip_space(w);
	w->at++; /* the colon */
	skip_space(w);
	return size == strlen(key) && memcmp(start, key, size) == 0;
}

/*
 * The value of a key of the object at w, which is advanced past the object; NULL: missing. Of several members the last counts, as in other
 * parsers.
 */
static const char *find(struct walk *w, const char *key)
{
	const char *value = NULL;
	w->at++;
	for (bool first = true; has_next(w, first); first = false) {
		if (take_key(w, key))
			value = w->at;
		skip_value(w);
	}
	return value;
}

/* ---- numbers ---- */

static void skip_digits(struct walk *w, uint64_t *value, int *scale, int step)
{
	for (; *w->at >= '0' && *w->at <= '9'; w->at++) {
		if (*value < UINT64_MAX / 10 - 1) {
			*value = *value * 10 + (uint64_t)(*w->at - '0');
			*scale += step;
		} else if (step == 0 && *scale < INT_MAX / 2) {
			*scale += 1; /* a digit before the point that does not fit any more */
		}
	}
}

/* Not strtod(): that reads as the host's locale writes. */
static double take_number(struct walk *w)
{
	bool negative = *w->at == '-';
	uint64_t digits = 0, power = 0;
	int scale = 0, unused = 0;
	w->at += negative;
	skip_digits(w, &digits, &scale, 0);
	if (*w->at == '.') {
		w->at++;
		skip_digits(w, &digits, &scale, -1);
	}
	if (*w->at == 'e' || *w->at == 'E') {
		bool down = *++w->at == '-';
		w->at += down || *w->at == '+';
		skip_digits(w, &power, &unused, 0);
		int shift = power > 10000 ? 10000 : (int)power;
		scale += down ? -shift : shift;
	}
	double value = digits == 0 || scale == 0 ? (double)digits : (double)digits * pow(10, scale);
	return negative ? -value : value;
}

static bool is_number(const struct walk *w)
{
	return *w->at == '-' || (*w->at >= '0' && *w->at <= '9');
}

/* ---- the answer ---- */

static int fail(struct cell_error *err, const char *what)
{
	return cell_fail(err, CELL_E_PROTOCOL, 0, "%s", what);
}

/* How many values the list at `list` has, up to one more than may be. */
static size_t count_values(const char *list)
{
	struct walk w = { list + 1 };
	size_t n = 0;
	for (bool first = true; n <= CELL__EMBED_DIMENSIONS && has_next(&w, first); first = false) {
		skip_value(&w);
		n++;
	}
	return n;
}

static int read_vector(const char *list, float *out, size_t dimensions, struct cell_error *err)
{
	struct walk w = { list + 1 };
	size_t n = 0;
	double sum = 0;
	for (bool first = true; has_next(&w, first); first = false) {
		if (!is_number(&w))
			return fail(err, "a vector contains a value that is not a number");
		if (n == dimensions)
			return fail(err, "the vectors have different numbers of dimensions");
		double value = take_number(&w);
		if (!(fabs(value) <= FLT_MAX))
			return fail(err, "a vector contains a number that is too large");
		sum += value * value;
		out[n++] = (float)value;
	}
	if (n != dimensions)
		return fail(err, "the vectors have different numbers of dimensions");
	double length = sqrt(sum);
	for (size_t i = 0; i < n; i++)
		out[i] = length < SMALLEST_LENGTH ? 0 : (float)(out[i] / length);
	return 0;
}

struct answer {
	float *vectors;
	bool *seen;
	size_t n, dimensions;
};

/* One element of "data". Without an index it is the one at `position`. */
static int read_item(struct walk *w, struct answer *answer, size_t position, struct cell_error *err)
{
	if (*w->at != '{')
		return fail(err, "\"data\" contains an item that is not an object");
	struct walk other = *w;
	const char *list = find(w, "embedding"), *index = find(&other, "index");
	if (!list || *list != '[')
		return fail(err, "an \"embedding\" is not a list of numbers");
	double at = (double)position;
	if (index) {
		struct walk number = { index };
		if (!is_number(&number))
			return fail(err, "an \"index\" is not a number");
		at = take_number(&number);
	}
	if (!(at >= 0) || at >= (double)answer->n || at != floor(at) || answer->seen[(size_t)at])
		return fail(err, "the indexes of the vectors do not match the texts");
	answer->seen[(size_t)at] = true;
	if (answer->dimensions == 0) {
		answer->dimensions = count_values(list);
		if (answer->dimensions == 0 || answer->dimensions > CELL__EMBED_DIMENSIONS)
			return cell_fail(err, CELL_E_PROTOCOL, 0, "a vector is empty or has more than %u numbers", CELL__EMBED_DIMENSIONS);
		answer->vectors = cell__alloc(answer->n * answer->dimensions, sizeof *answer->vectors);
		if (!answer->vectors)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for vectors");
	}
	return read_vector(list, answer->vectors + (size_t)at * answer->dimensions, answer->dimensions, err);
}

static int read_data(const char *text, struct answer *answer, struct cell_error *err)
{
	struct walk w = { text };
	skip_space(&w);
	const char *data = *w.at == '{' ? find(&w, "data") : NULL;
	if (!data || *data != '[')
		return fail(err, "the answer lacks the list \"data\"");
	size_t n = 0;
	w.at = data + 1;
	for (bool first = true; has_next(&w, first); first = false) {
		if (n == answer->n)
			return cell_fail(err, CELL_E_PROTOCOL, 0, "more vectors than the %zu texts", answer->n);
		if (read_item(&w, answer, n++, err) < 0)
			return -1;
	}
	if (n != answer->n)
		return cell_fail(err, CELL_E_PROTOCOL, 0, "%zu vectors for %zu texts", n, answer->n);
	return 0;
}

int cell__embed_parse(char *text, size_t size, size_t n, float **ret_vectors, size_t *ret_dimensions, struct cell_error *err)
{
	CELL_AUTO_FREE bool *seen = cell__alloc(n, sizeof *seen);
	struct answer answer = { .seen = seen, .n = n };
	if (!seen)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for vectors");
	/* Inside a string they are invalid JSON, outside they are blanks. */
	for (size_t i = 0; i < size; i++)
		if (text[i] == '\n' || text[i] == '\r')
			text[i] = ' ';
	/* From here on the text ends only where a value does, and the walk cannot leave it. */
	if (!cell__json_check(text, size))
		return fail(err, "the answer is not JSON");
	if (read_data(text, &answer, err) < 0) {
		free(answer.vectors);
		return -1;
	}
	*ret_vectors = answer.vectors;
	*ret_dimensions = answer.dimensions;
	return 0;
}
