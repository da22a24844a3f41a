#define _GNU_SOURCE
#include "gate/redact.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "gate/glob.h"

#define MAX_AUTHORITY 512 /* of a URL */
#define MAX_BLANKS 8
#define MAX_KEY_HEAD 100  /* -----BEGIN ... PRIVATE KEY----- */
#define MAX_TO_DIGIT 64   /* in a key */
#define MAX_NAME 1024     /* bytes of a name that are checked */
#define MIN_FOUND 4       /* a shorter value would match everywhere */

struct cell__redactor {
	struct cell__glob **names, **paths;
	size_t n_names, n_paths;
};

/* ---- names ---- */

/* In lower case, with _ for -: parts of names that are secret, and whole names. */
static const char *const secret_parts[] = { "password",    "passwd",     "passphrase", "secret",    "token",      "api_key", "apikey",
					    "private_key", "privatekey", "access_key", "accesskey", "credential", "cookie" };
static const char *const secret_names[] = { "authorization", "proxy_authorization", "auth", "sig", "x_amz_signature" };

static char normal(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c == '-' ? '_' : c;
}

/* A pattern to be compared with normal names; a - in a set is a range and stays. */
static char *normal_pattern(const char *pattern)
{
	char *copy = cell__strdup(pattern);
	bool set = false;
	for (char *c = copy; copy && *c; c++) {
		set = set ? *c != ']' : *c == '[';
		if (!set || *c != '-')
			*c = normal(*c);
	}
	return copy;
}

void cell__redactor_destroy(struct cell__redactor *redactor)
{
	if (!redactor)
		return;
	for (size_t i = 0; i < redactor->n_names; i++)
		cell__glob_destroy(redactor->names[i]);
	for (size_t i = 0; i < redactor->n_paths; i++)
		cell__glob_destroy(redactor->paths[i]);
	free(redactor->names);
	free(redactor->paths);
	free(redactor);
}

static int add_pattern(struct cell__redactor *redactor, const char *pattern, struct cell_error *err)
{
	const char *problem = "out of memory";
	CELL_AUTO_FREE char *copy = normal_pattern(pattern);
	struct cell__glob *glob = copy ? cell__glob_create(copy, &problem) : NULL;
	if (!glob)
		return cell_fail(err, copy ? CELL_E_INVALID : CELL_E_NOMEM, 0, "redact: invalid pattern '%.60s': %s", pattern, problem);
	if (strchr(pattern, '.'))
		redactor->paths[redactor->n_paths++] = glob;
	else
		redactor->names[redactor->n_names++] = glob;
	return 0;
}

int cell__redactor_create(const char *const *more, struct cell__redactor **ret_redactor, struct cell_error *err)
{
	size_t count = 0;
	while (more && more[count])
		count++;
	if (count > CELL__REDACT_LIMIT_PATTERNS)
		return cell_fail(err, CELL_E_LIMIT, 0, "redact: more than %u patterns", CELL__REDACT_LIMIT_PATTERNS);
	struct cell__redactor *redactor = cell__alloc(1, sizeof *redactor);
	if (redactor)
		*redactor = (struct cell__redactor){
			.names = cell__alloc(count, sizeof(struct cell__glob *)),
			.paths = cell__alloc(count, sizeof(struct cell__glob *)),
		};
	if (!redactor || !redactor->names || !redactor->paths) {
		cell__redactor_destroy(redactor);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for redaction");
	}
	for (size_t i = 0; i < count; i++)
		if (add_pattern(redactor, more[i], err) < 0) {
			cell__redactor_destroy(redactor);
			return -1;
		}
	*ret_redactor = redactor;
	return 0;
}

/* By the names that everybody uses. */
static bool is_usual(const char *text, size_t size)
{
	if (size < 3)
		return false;
	for (size_t i = 0; i < sizeof secret_parts / sizeof *secret_parts; i++)
		if (memmem(text, size, secret_parts[i], strlen(secret_parts[i])))
			return true;
	for (size_t i = 0; i < sizeof secret_names / sizeof *secret_names; i++)
		if (size == strlen(secret_names[i]) && memcmp(text, secret_names[i], size) == 0)
			return true;
	return false;
}

/* value is the value with this name, or NULL. */
static bool name_is_secret(const struct cell__redactor *redactor, const char *name, size_t size, const json_t *value)
{
	char text[MAX_NAME];
	if (size > sizeof text)
		return true;
	for (size_t i = 0; i < size; i++)
		text[i] = normal(name[i]);
	for (size_t i = 0; i < redactor->n_names; i++)
		if (cell__glob_match(redactor->names[i], CELL__GLOB_TEXT, text, size, NULL))
			return true;
	bool count = json_is_number(value) && size >= 6 && memcmp(text + size - 6, "tokens", 6) == 0; /* max_tokens */
	return !count && is_usual(text, size);
}

/* ---- texts ---- */

struct text {
	const struct cell__redactor *redactor;
	const struct cell__redact_found *found;
	const char *data;
	size_t size;
};

/* From where to where a secret goes. */
struct span {
	size_t from, to;
};

static bool is_word(char c)
{
	return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_';
}

static bool starts(const struct text *text, size_t at, const char *with)
{
	size_t n = strlen(with);
	return text->size - at >= n && memcmp(text->data + at, with, n) == 0;
}

static bool in(const char *set, char c)
{
	return c != '\0' && strchr(set, c);
}

/* The shapes that keys of well-known services have. */
static const struct shape {
	const char *start;
	const char *more;  /* characters besides letters and digits */
	size_t least;      /* of them behind the start */
} shapes[] = {
	{ "sk-", "_-", 16 },
	{ "sk_live_", "", 16 },
	{ "sk_test_", "", 16 },
	{ "rk_live_", "", 16 },
	{ "ghp_", "", 20 },
	{ "gho_", "", 20 },
	{ "ghu_", "", 20 },
	{ "ghs_", "", 20 },
	{ "ghr_", "", 20 },
	{ "github_pat_", "_", 20 },
	{ "glpat-", "_-", 16 },
	{ "xoxa-", "-", 10 },
	{ "xoxb-", "-", 10 },
	{ "xoxp-", "-", 10 },
	{ "xoxr-", "-", 10 },
	{ "xoxs-", "-", 10 },
	{ "xapp-", "-", 10 },
	{ "AKIA", "", 16 },
	{ "ASIA", "", 16 },
	{ "AIza", "_-", 30 },
	{ "ya29.", "._-", 20 },
	{ "eyJ", "._-", 30 },
	{ "hf_", "", 20 },
	{ "npm_", "", 30 },
	{ "pypi-", "_-", 30 },
	{ "SG.", "._-", 30 },
	{ "dop_v1_", "", 30 },
	{ "shpat_", "", 20 },
	{ "AGE-SECRET-KEY-", "", 20 },
};

/*
 * A digit must be among them, because ordinary names often have the same shape. It must come soon, so that a text full of prefixes does not
 * take quadratic time.
 */
static bool find_shape(const struct text *text, size_t at, struct span *ret)
{
	if (at > 0 && is_word(text->data[at - 1]))
		return false;
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		if (*shapes[i].start != text->data[at] || !starts(text, at, shapes[i].start))
			continue;
		size_t start = at + strlen(shapes[i].start), end = start;
		bool digit = false;
		for (; end < text->size && (digit || end - start < MAX_TO_DIGIT); end++) {
			char c = text->data[end];
			if ((!is_word(c) || c == '_') && !in(shapes[i].more, c))
				break;
			digit |= c >= '0' && c <= '9';
		}
		if (digit && end - start >= shapes[i].least) {
			*ret = (struct span){ at, end };
			return true;
		}
	}
	return false;
}

static size_t find_after(const struct text *text, size_t at, const char *what)
{
	const char *found = memmem(text->data + at, text->size - at, what, strlen(what));
	return found ? (size_t)(found - text->data) + strlen(what) : text->size;
}

static bool find_private_key(const struct text *text, size_t at, struct span *ret)
{
	static const char begin[] = "-----BEGIN ", what[] = "PRIVATE KEY";
	if (!starts(text, at, begin))
		return false;
	size_t window = text->size - at < MAX_KEY_HEAD ? text->size - at : MAX_KEY_HEAD;
	if (!memmem(text->data + at, window, what, sizeof what - 1))
		return false;
	size_t end = find_after(text, at + sizeof begin - 1, "-----END ");
	*ret = (struct span){ at, find_after(text, end, "-----") };
	return true;
}

/* The password in scheme://user:password@host. */
static bool find_userinfo(const struct text *text, size_t at, struct span *ret)
{
	if (!starts(text, at, "://"))
		return false;
	size_t colon = 0, end = 0;
	for (size_t i = at + 3; i < text->size && i < at + MAX_AUTHORITY && !in("/?# \t\r\n\"'<>\\", text->data[i]); i++) {
		if (text->data[i] == ':' && colon == 0)
			colon = i;
		if (text->data[i] == '@')
			end = i;
	}
	if (colon == 0 || end <= colon + 1)
		return false;
	*ret = (struct span){ colon + 1, end };
	return true;
}

static bool find_bearer(const struct text *text, size_t at, struct span *ret)
{
	if ((at > 0 && is_word(text->data[at - 1])) || text->size - at < 8 || strncasecmp(text->data + at, "bearer ", 7) != 0)
		return false;
	size_t end = at + 7;
	bool odd = false;
	for (; end < text->size && (is_word(text->data[end]) || in(".~+/=-", text->data[end])); end++)
		odd |= text->data[end] < 'a' || text->data[end] > 'z';
	*ret = (struct span){ at + 7, end };
	return odd && end - (at + 7) >= 8;
}

static size_t skip_blanks(const struct text *text, size_t at)
{
	size_t end = at;
	while (end < text->size && end < at + MAX_BLANKS && (text->data[end] == ' ' || text->data[end] == '\t'))
		end++;
	return end;
}

/* The value that begins here, in quotes (also \" as in JSON within a string) or up to one of `ends`. */
static bool take_value(const struct text *text, size_t at, const char *ends, struct span *ret)
{
	size_t from = at;
	bool escaped = from + 1 < text->size && text->data[from] == '\\' && in("\"'", text->data[from + 1]);
	from += escaped;
	char quote = from < text->size && in("\"'", text->data[from]) ? text->data[from] : '\0';
	from += quote != '\0';
	size_t to = from;
	for (; to < text->size; to++) {
		char c = text->data[to];
		if (quote ? c == quote || c == '\n' || (escaped && c == '\\') : in(ends, c))
			break;
		if (quote && c == '\\' && to + 1 < text->size)
			to++;
	}
	*ret = (struct span){ from, to };
	return to > from;
}

/* name=value, name: value, "name": "value"; at points to the = or : */
static bool find_assigned(const struct text *text, size_t at, struct span *ret)
{
	if (!in("=:", text->data[at]))
		return false;
	size_t end = at;
	while (end > 0 && at - end < MAX_BLANKS && text->data[end - 1] == ' ')
		end--;
	if (end > 0 && in("\"'", text->data[end - 1]))
		end -= end > 1 && text->data[end - 2] == '\\' ? 2 : 1;
	size_t start = end;
	while (start > 0 && end - start < CELL__REDACT_LIMIT_NAME && (is_word(text->data[start - 1]) || in(".-", text->data[start - 1])))
		start--;
	if (start == end || !name_is_secret(text->redactor, text->data + start, end - start, NULL))
		return false;
	size_t value = at + 1;
	while (value < text->size && value < at + 3 && in("=>", text->data[value]))
		value++;
	return take_value(text, skip_blanks(text, value), text->data[at] == '=' ? " \t\r\n&;,'\"<>|)}]" : "\r\n\"'", ret);
}

/* --name value; at points to the first dash. */
static bool find_flag(const struct text *text, size_t at, struct span *ret)
{
	if (!starts(text, at, "--") || (at > 0 && !in(" \t\r\n\"'", text->data[at - 1])))
		return false;
	size_t end = at + 2;
	while (end < text->size && end - at < CELL__REDACT_LIMIT_NAME && (is_word(text->data[end]) || in(".-", text->data[end])))
		end++;
	size_t value = skip_blanks(text, end);
	if (value == end || !name_is_secret(text->redactor, text->data + at + 2, end - at - 2, NULL))
		return false;
	return take_value(text, value, " \t\r\n;&|<>\"'", ret) && text->data[ret->from] != '-';
}

static bool find_found(const struct text *text, size_t at, struct span *ret)
{
	for (size_t i = 0; text->found && i < text->found->count; i++) {
		const char *value = json_string_value(text->found->list[i]);
		size_t size = json_string_length(text->found->list[i]);
		if (text->size - at >= size && memcmp(text->data + at, value, size) == 0) {
			*ret = (struct span){ at, at + size };
			return true;
		}
	}
	return false;
}

/* Most bytes do not begin a secret: they must cost almost no time. */
static bool find_secret(const struct text *text, size_t at, struct span *ret)
{
	if (text->found && find_found(text, at, ret))
		return true;
	switch (text->data[at]) {
	case '=':
		return find_assigned(text, at, ret);
	case ':':
		return find_assigned(text, at, ret) || find_userinfo(text, at, ret);
	case '-':
		return find_flag(text, at, ret) || find_private_key(text, at, ret);
	case 'b':
	case 'B':
		return find_bearer(text, at, ret);
	default:
		return is_word(text->data[at]) && find_shape(text, at, ret);
	}
}

int cell__redact_text(const struct cell__redactor *redactor, const char *data, size_t size, const struct cell__redact_found *found,
		      struct cell__buf *out)
{
	struct text text = { redactor, found, data, size };
	size_t copied = 0;
	for (size_t at = 0; at < size; at++) {
		struct span span;
		if (!find_secret(&text, at, &span))
			continue;
		if (cell__buf_add(out, data + copied, span.from - copied) < 0 || cell__buf_add_str(out, CELL__REDACTED) < 0)
			return -1;
		copied = span.to;
		at = span.to - 1;
	}
	return cell__buf_add(out, data + copied, size - copied);
}

/* ---- truncation ---- */

int cell__sha256_hex(const void *bytes, size_t size, char out[static CELL__SHA256_SIZE])
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	if (EVP_Digest(bytes, size, digest, &n, EVP_sha256(), NULL) != 1 || 2 * n + 1 != CELL__SHA256_SIZE)
		return -1;
	for (size_t i = 0; i < 2 * n; i++)
		out[i] = "0123456789abcdef"[i % 2 ? digest[i / 2] & 15 : digest[i / 2] >> 4];
	out[2 * n] = '\0';
	return 0;
}

int cell__redact_add_cut(struct cell__buf *out, const char *text, size_t size, size_t head)
{
	char hash[CELL__SHA256_SIZE];
	head = head < size ? head : size;
	head -= cell__utf8_cut(text, head);
	if (cell__sha256_hex(text, size, hash) < 0 || cell__buf_add_str(out, "{\"[cut]\":") < 0 ||
	    cell__buf_add_json_string(out, text, head) < 0)
		return -1;
	return cell__buf_printf(out, ",\"bytes\":%zu,\"sha256\":\"%s\"}", size, hash);
}

/* ---- JSON ---- */

struct walk {
	const struct cell__redactor *redactor;
	struct cell__redact_found *found;
	struct cell__buf *out;
	struct cell__buf path; /* dotted and normalised; kept only if patterns use it */
	struct cell__buf text;
};

static int add_text(struct walk *walk, const char *text, size_t size)
{
	walk->text.size = 0;
	if (cell__redact_text(walk->redactor, text, size, NULL, &walk->text) < 0)
		return -1;
	if (walk->text.size > CELL__REDACT_LIMIT_STRING)
		return cell__redact_add_cut(walk->out, walk->text.data, walk->text.size, CELL__REDACT_LIMIT_HEAD);
	return cell__buf_add_json_string(walk->out, walk->text.data ? walk->text.data : "", walk->text.size);
}

/* A key cannot be replaced by an object: a key that is too long is simply truncated. */
static int add_key(struct walk *walk, const char *key)
{
	walk->text.size = 0;
	if (cell__redact_text(walk->redactor, key, strlen(key), NULL, &walk->text) < 0)
		return -1;
	size_t size = walk->text.size < CELL__REDACT_LIMIT_HEAD ? walk->text.size : CELL__REDACT_LIMIT_HEAD;
	size -= cell__utf8_cut(walk->text.data ? walk->text.data : "", size);
	if (cell__buf_add_json_string(walk->out, walk->text.data ? walk->text.data : "", size) < 0)
		return -1;
	return cell__buf_add(walk->out, ":", 1);
}

static void remember(struct walk *walk, const json_t *value)
{
	if (walk->found && json_is_string(value) && json_string_length(value) >= MIN_FOUND && walk->found->count < CELL__REDACT_LIMIT_FOUND)
		walk->found->list[walk->found->count++] = value;
}

static int hide(struct walk *walk, const json_t *value)
{
	remember(walk, value);
	return cell__buf_add_str(walk->out, "\"" CELL__REDACTED "\"");
}

/* {"name": "Authorization", "value": ...}: the name of the value is its neighbour. */
static bool value_is_secret(const struct cell__redactor *redactor, const json_t *object)
{
	static const char *const keys[] = { "name", "key", "header" };
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		const json_t *name = json_object_get(object, keys[i]);
		if (json_is_string(name) && name_is_secret(redactor, json_string_value(name), json_string_length(name), NULL))
			return true;
	}
	return false;
}

static bool path_is_secret(const struct walk *walk)
{
	for (size_t i = 0; i < walk->redactor->n_paths; i++)
		if (cell__glob_match(walk->redactor->paths[i], CELL__GLOB_TEXT, walk->path.data, walk->path.size, NULL))
			return true;
	return false;
}

static int extend_path(struct walk *walk, const char *key)
{
	if (walk->path.size > 0 && cell__buf_add(&walk->path, ".", 1) < 0)
		return -1;
	size_t start = walk->path.size;
	if (cell__buf_add_str(&walk->path, key) < 0)
		return -1;
	for (size_t i = start; i < walk->path.size; i++)
		walk->path.data[i] = normal(walk->path.data[i]);
	return 0;
}

static int add_value(struct walk *walk, const json_t *value, size_t depth);

static int add_object(struct walk *walk, const json_t *object, size_t depth)
{
	bool pair = json_object_get(object, "value") && value_is_secret(walk->redactor, object), first = true;
	const char *key;
	json_t *value;
	if (cell__buf_add(walk->out, "{", 1) < 0)
		return -1;
	json_object_foreach((json_t *)object, key, value) {
		size_t before = walk->path.size;
		if ((!first && cell__buf_add(walk->out, ",", 1) < 0) || add_key(walk, key) < 0 ||
		    (walk->redactor->n_paths > 0 && extend_path(walk, key) < 0))
			return -1;
		bool secret = name_is_secret(walk->redactor, key, strlen(key), value) || (pair && strcmp(key, "value") == 0) ||
			      path_is_secret(walk);
		if ((secret && !json_is_null(value) ? hide(walk, value) : add_value(walk, value, depth + 1)) < 0)
			return -1;
		walk->path.size = before;
		first = false;
	}
	return cell__buf_add(walk->out, "}", 1);
}

static int add_array(struct walk *walk, const json_t *array, size_t depth)
{
	json_t *item;
	size_t i;
	if (cell__buf_add(walk->out, "[", 1) < 0)
		return -1;
	json_array_foreach(array, i, item)
		if ((i > 0 && cell__buf_add(walk->out, ",", 1) < 0) || add_value(walk, item, depth + 1) < 0)
			return -1;
	return cell__buf_add(walk->out, "]", 1);
}

static int add_value(struct walk *walk, const json_t *value, size_t depth)
{
	char number[64];
	if (depth > CELL__REDACT_LIMIT_DEPTH)
		return cell__buf_add_str(walk->out, "\"[cut]\"");
	switch (json_typeof(value)) {
	case JSON_OBJECT:
		return add_object(walk, value, depth);
	case JSON_ARRAY:
		return add_array(walk, value, depth);
	case JSON_STRING:
		return add_text(walk, json_string_value(value), json_string_length(value));
	default: {
		size_t n = json_dumpb(value, number, sizeof number, JSON_ENCODE_ANY | JSON_COMPACT);
		return n > 0 && n <= sizeof number ? cell__buf_add(walk->out, number, n) : -1;
	}
	}
}

int cell__redact_json(const struct cell__redactor *redactor, const json_t *value, struct cell__redact_found *found, struct cell__buf *out)
{
	struct walk walk = { redactor, found, out, CELL_BUF_INIT, CELL_BUF_INIT };
	int rc = add_value(&walk, value, 0);
	cell__buf_finish(&walk.path);
	cell__buf_finish(&walk.text);
	return rc;
}
