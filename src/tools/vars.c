/* ${VAR} in the values of env and headers: resolved for one call, then forgotten. */
#define _GNU_SOURCE
#include <ctype.h>
#include <string.h>

#include "tools/internal.h"

#define NAME_BYTES 128u
/* Shorter values are not secrets, and removing them would damage ordinary text. */
#define REDACT_BYTES 4u

void cell__secret_free(char *text)
{
	if (text)
		explicit_bzero(text, strlen(text));
	free(text);
}

void cell__secrets_finish(struct cell__secrets *secrets)
{
	for (size_t i = 0; i < secrets->count; i++)
		cell__secret_free(secrets->list[i]);
	free(secrets->list);
	*secrets = (struct cell__secrets){ 0 };
}

static int keep_secret(struct cell__secrets *secrets, const char *value)
{
	char **list = cell__realloc(secrets->list, (secrets->count + 1) * sizeof *list);
	if (!list)
		return -1;
	secrets->list = list;
	list[secrets->count] = cell__strdup(value);
	if (!list[secrets->count])
		return -1;
	/* The longest first: one may be part of another. */
	size_t at = secrets->count++;
	for (; at > 0 && strlen(list[at - 1]) < strlen(list[at]); at--) {
		char *swap = list[at];
		list[at] = list[at - 1];
		list[at - 1] = swap;
	}
	return 0;
}

static int redact_one(const char *secret, struct cell__buf *text)
{
	size_t n = strlen(secret);
	if (n < REDACT_BYTES || text->size < n || !memmem(text->data, text->size, secret, n))
		return 0;
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	const char *at = text->data, *end = text->data + text->size, *hit;
	int rc = 0;
	while ((hit = memmem(at, (size_t)(end - at), secret, n))) {
		rc |= cell__buf_add(&out, at, (size_t)(hit - at)) | cell__buf_add_str(&out, "***");
		at = hit + n;
	}
	rc |= cell__buf_add(&out, at, (size_t)(end - at));
	if (rc < 0)
		return -1;
	struct cell__buf swap = *text;
	*text = out;
	out = swap;
	return 0;
}

int cell__secrets_redact(const struct cell__secrets *secrets, struct cell__buf *text)
{
	for (size_t i = 0; i < secrets->count; i++)
		if (redact_one(secrets->list[i], text) < 0)
			return -1;
	return 0;
}

/* At "${": the length of a valid, closed name, else 0. */
static size_t name_size(const char *at)
{
	const char *name = at + 2;
	size_t n = 0;
	while (isalnum((unsigned char)name[n]) || name[n] == '_')
		n++;
	return n < NAME_BYTES && name[n] == '}' && !isdigit((unsigned char)name[0]) ? n : 0;
}

bool cell__vars_ok(const char *text)
{
	const char *at = text;
	while ((at = strstr(at, "${"))) {
		bool literal = at > text && at[-1] == '$';
		if (!literal && name_size(at) == 0)
			return false;
		at += 2;
	}
	return true;
}

static int add_var(const char *name, const struct cell__tools_options *opts, struct cell__secrets *secrets, struct cell__buf *out,
		   struct cell__buf *why)
{
	const char *value = opts->getenv_fn ? opts->getenv_fn(opts->getenv_arg, name) : NULL;
	if (!value) {
		cell__buf_printf(why, "environment variable %s is not set", name);
		return -1;
	}
	if (keep_secret(secrets, value) < 0 || cell__buf_add_str(out, value) < 0) {
		cell__buf_add_str(why, "out of memory");
		return -1;
	}
	return 0;
}

static int expand(const char *text, const struct cell__tools_options *opts, struct cell__secrets *secrets, struct cell__buf *out,
		  struct cell__buf *why)
{
	int rc = 0;
	while (*text && rc == 0) {
		if (strncmp(text, "$${", 3) == 0) {
			rc = cell__buf_add_str(out, "${");
			text += 3;
		} else if (strncmp(text, "${", 2) == 0 && name_size(text) > 0) {
			char name[NAME_BYTES];
			size_t n = name_size(text);
			memcpy(name, text + 2, n);
			name[n] = '\0';
			if (add_var(name, opts, secrets, out, why) < 0)
				return -1;
			text += n + 3;
		} else {
			rc = cell__buf_add(out, text++, 1);
		}
	}
	if (rc < 0)
		cell__buf_add_str(why, "out of memory");
	return rc;
}

int cell__vars_expand(const char *text, const struct cell__tools_options *opts, struct cell__secrets *secrets, char **ret_text,
		      struct cell__buf *why)
{
	/* Room for all at once where that is likely, so that growing leaves no copies behind. */
	struct cell__buf out = CELL_BUF_INIT;
	int rc = cell__buf_reserve(&out, strlen(text) + 4096);
	if (rc == 0)
		rc = cell__buf_add(&out, "", 0);
	if (rc == 0)
		rc = expand(text, opts, secrets, &out, why);
	char *done = rc == 0 ? cell__buf_take(&out) : NULL;
	if (!done) {
		if (out.data)
			explicit_bzero(out.data, out.capacity);
		cell__buf_finish(&out);
		if (why->size == 0)
			cell__buf_add_str(why, "out of memory");
		return -1;
	}
	*ret_text = done;
	return 0;
}
