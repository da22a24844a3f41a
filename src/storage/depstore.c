/*
 * Dependencies: one validator for specifiers that agents add and for those in requirements.txt, and edits of that file that keep a person's
 * comments in place.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "storage/shared.h"
#include "storage/store.h"

#define FILE_NAME "requirements.txt"
#define OLD_FOLDER "deps"

/* ---- one specifier ---- */

struct text {
	const char *at, *end;
};

/* Independent of the locale: a letter that only looks like one of these makes another name. */
static bool is_alnum(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_separator(char c)
{
	return c == '-' || c == '_' || c == '.';
}

static void skip_spaces(struct text *t)
{
	while (t->at < t->end && (*t->at == ' ' || *t->at == '\t'))
		t->at++;
}

static bool take(struct text *t, const char *word)
{
	size_t size = strlen(word);
	if ((size_t)(t->end - t->at) < size || strncasecmp(t->at, word, size) != 0)
		return false;
	t->at += size;
	return true;
}

static bool take_digits(struct text *t)
{
	const char *start = t->at;
	while (t->at < t->end && *t->at >= '0' && *t->at <= '9')
		t->at++;
	return t->at > start;
}

/* Letters and digits with single separators between them. */
static bool take_identifier(struct text *t)
{
	const char *start = t->at;
	while (t->at < t->end && (is_alnum(*t->at) || is_separator(*t->at))) {
		if (is_separator(*t->at) && (t->at == start || is_separator(t->at[-1])))
			return false;
		t->at++;
	}
	return t->at > start && !is_separator(t->at[-1]);
}

/* [-_.]? word [-_.]? digits*, for one of the words; does not advance t if it is missing. */
static bool take_segment(struct text *t, const char *const *words)
{
	struct text try = *t;
	if (try.at < try.end && is_separator(*try.at))
		try.at++;
	for (; *words; words++) {
		if (!take(&try, *words))
			continue;
		struct text number = try;
		if (number.at < number.end && is_separator(*number.at))
			number.at++;
		if (take_digits(&number))
			try = number;
		*t = try;
		return true;
	}
	return false;
}

/* A version by PEP 440; the count of numbers in its release, 0: not a version. */
static unsigned take_version(struct text *t, bool *ret_local, bool *ret_suffix)
{
	static const char *const pre[] = { "alpha", "a", "beta", "b", "preview", "pre", "c", "rc", NULL };
	static const char *const post[] = { "post", "rev", "r", NULL };
	static const char *const dev[] = { "dev", NULL };
	unsigned parts = 0;
	take(t, "v");
	struct text epoch = *t;
	if (take_digits(&epoch) && take(&epoch, "!"))
		*t = epoch;
	do {
		struct text next = *t;
		if (parts > 0)
			next.at++;
		if (!take_digits(&next))
			break;
		*t = next;
		parts++;
	} while (t->at < t->end && *t->at == '.');
	const char *release_end = t->at;
	take_segment(t, pre);
	struct text implicit = *t;
	if (take(&implicit, "-") && take_digits(&implicit))
		*t = implicit;
	else
		take_segment(t, post);
	take_segment(t, dev);
	*ret_suffix = t->at > release_end;
	*ret_local = take(t, "+");
	if (*ret_local && !take_identifier(t))
		return 0;
	return parts;
}

/* Operator and version; written to out without spaces. */
static bool take_clause(struct text *t, char **out)
{
	static const char *const operators[] = { "===", "==", "!=", "<=", ">=", "~=", "<", ">", NULL };
	const char *const *op = operators;
	while (*op && !take(t, *op))
		op++;
	if (!*op)
		return false;
	skip_spaces(t);
	const char *start = t->at;
	bool exact = op - operators < 3, local = false, suffix = false;
	if (op == operators) {
		while (t->at < t->end && (is_alnum(*t->at) || strchr("._+!-", *t->at)))
			t->at++;
		if (t->at == start)
			return false;
	} else {
		unsigned parts = take_version(t, &local, &suffix);
		if (parts == 0 || (local && !exact) || (**op == '~' && parts < 2))
			return false;
		if (exact && !local && !suffix)
			take(t, ".*");
	}
	*out += sprintf(*out, "%s%.*s", *op, (int)(t->at - start), start);
	return true;
}

static bool take_extras(struct text *t, char **out)
{
	*(*out)++ = '[';
	for (;;) {
		skip_spaces(t);
		const char *start = t->at;
		if (!take_identifier(t))
			return false;
		*out += sprintf(*out, "%.*s", (int)(t->at - start), start);
		skip_spaces(t);
		if (take(t, "]"))
			break;
		if (!take(t, ","))
			return false;
		*(*out)++ = ',';
	}
	*(*out)++ = ']';
	return true;
}

/* PEP 503: lower case, and every run of separators is one '-'. */
static void put_name(const char *name, const char *end, char **out)
{
	for (; name < end; name++)
		*(*out)++ = (char)(is_separator(*name) ? '-' : tolower((unsigned char)*name));
}

/* out never becomes longer than the text. */
static bool parse(const char *spec, char *out)
{
	struct text t = { spec, spec + strlen(spec) };
	skip_spaces(&t);
	const char *name = t.at;
	if (!take_identifier(&t))
		return false;
	put_name(name, t.at, &out);
	skip_spaces(&t);
	if (take(&t, "[") && !take_extras(&t, &out))
		return false;
	skip_spaces(&t);
	while (t.at < t.end) {
		if (!take_clause(&t, &out))
			return false;
		skip_spaces(&t);
		if (t.at == t.end)
			break;
		if (!take(&t, ","))
			return false;
		*out++ = ',';
		skip_spaces(&t);
		if (t.at == t.end)
			return false;
	}
	*out = '\0';
	return true;
}

/* For a message: characters other than plain ASCII might break the line or the JSON. */
static void show(const char *spec, char out[static 100])
{
	size_t n = 0;
	for (; *spec && n < 99; spec++)
		out[n++] = (char)(*spec >= 0x20 && *spec < 0x7f ? *spec : '?');
	out[n] = '\0';
}

int cell__dep_normalise(const char *spec, char out[static CELL__STORE_DEP_BYTES + 1], struct cell_error *err)
{
	char shown[100];
	if (spec[strspn(spec, " \t\n\r\v\f")] == '\0')
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid package: empty or whitespace-only");
	for (const char *c = spec; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			return cell_fail(err, CELL_E_INVALID, 0, "Invalid package: contains control characters");
	if (strlen(spec) > CELL__STORE_DEP_BYTES)
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid package: name too long (max %u characters)", CELL__STORE_DEP_BYTES);
	const char *blocked = strpbrk(spec, "@;()");
	if (blocked)
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid package: contains blocked character '%c'", *blocked);
	show(spec, shown);
	if (strpbrk(spec, "|&`$"))
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid package name: contains shell metacharacters: %s", shown);
	if (spec[strspn(spec, " \t")] == '-')
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid package specifier (starts with -): %s", shown);
	if (strstr(spec, "://") || strchr(spec, '/'))
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid package name: %s (URLs and paths are not allowed)", shown);
	char normal[CELL__STORE_DEP_BYTES + 1];
	if (!parse(spec, normal))
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid package name: %s", shown);
	strcpy(out, normal);
	return 0;
}

size_t cell__dep_base_size(const char *spec)
{
	return strcspn(spec, "[<>=!~ ");
}

bool cell__dep_same_package(const char *a, const char *b)
{
	size_t size = cell__dep_base_size(a);
	return size == cell__dep_base_size(b) && strncmp(a, b, size) == 0;
}

/* ---- the file ---- */

/* One line as written, and the package it names; "" if it names no package. */
struct line {
	const char *text;
	size_t size;        /* without the line's end */
	size_t comment;     /* where " # ..." begins; size if there is no comment */
	bool blank;         /* only spaces and a comment */
	char spec[CELL__STORE_DEP_BYTES + 1];
	struct cell_error problem;
};

struct lines {
	struct line *list;
	size_t n, capacity;
	struct cell__buf text;
};

static void lines_finish(struct lines *lines)
{
	free(lines->list);
	cell__buf_finish(&lines->text);
}

static int parse_line(struct line *line)
{
	size_t end = 0;
	/* As pip: '#' begins a comment at the beginning of a line or after a space. */
	while (end < line->size && !(line->text[end] == '#' && (end == 0 || isspace((unsigned char)line->text[end - 1]))))
		end++;
	while (end > 0 && isspace((unsigned char)line->text[end - 1]))
		end--;
	line->comment = end;
	line->blank = end == 0;
	CELL_AUTO_FREE char *spec = cell__strndup(line->text, end);
	if (spec && !line->blank)
		cell__dep_normalise(spec, line->spec, &line->problem);
	return spec ? 0 : -1;
}

static int add_line(struct lines *lines, const char *text, size_t size)
{
	if (lines->n == lines->capacity) {
		size_t capacity = lines->capacity ? lines->capacity * 2 : 32;
		struct line *more = cell__realloc(lines->list, capacity * sizeof *more);
		if (!more)
			return -1;
		lines->list = more;
		lines->capacity = capacity;
	}
	struct line *line = &lines->list[lines->n++];
	*line = (struct line){ .text = text, .size = size };
	return parse_line(line);
}

/* A file that is not there has no lines. */
static int read_lines(int dir_fd, struct lines *lines, struct cell_error *err)
{
	if (dir_fd < 0)
		return 0;
	if (cell__path_read(dir_fd, FILE_NAME, CELL__STORE_DEPS_BYTES, &lines->text, NULL) < 0) {
		if (errno == ENOENT)
			return 0;
		return cell_fail(err, errno == EFBIG ? CELL_E_LIMIT : CELL_E_IO, errno, "read " FILE_NAME);
	}
	const char *at = lines->text.data, *end = at + lines->text.size;
	if (lines->text.size >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0)
		at += 3;
	while (at < end) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));
		size_t size = (size_t)((stop ? stop : end) - at);
		size_t whole = size + (stop != NULL);
		if (size > 0 && at[size - 1] == '\r')
			size--;
		if (add_line(lines, at, size) < 0)
			return cell_fail(err, CELL_E_NOMEM, 0, "read " FILE_NAME);
		at += whole;
	}
	return 0;
}

static int write_lines(int dir_fd, const struct lines *lines, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	int rc = cell__buf_add(&text, "", 0);
	for (size_t i = 0; i < lines->n; i++) {
		rc |= cell__buf_add(&text, lines->list[i].text, lines->list[i].size);
		rc |= cell__buf_add(&text, "\n", 1);
	}
	if (rc < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "write " FILE_NAME);
	if (text.size > CELL__STORE_DEPS_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, FILE_NAME " would exceed %u bytes", CELL__STORE_DEPS_BYTES);
	if (cell__file_replace(dir_fd, FILE_NAME, text.data, text.size) < 0)
		return cell_fail(err, CELL_E_IO, errno, "write " FILE_NAME);
	return 0;
}

/*
 * ---- the files: ours, and deps/ of older storages, which is read and removed from but not added to ----
 *
 * If a container can write to the storage, ours is the file in .host (shared.h), and there is no older one. Inside the container that file
 * belongs to the host, and is only read.
 */

struct deps {
	int lock;
	int fd, host_fd, old_fd; /* the folders; -1: does not exist */
	struct lines ours, hosts, old;
};

static void deps_finish(struct deps *deps)
{
	cell__close_fd(&deps->fd);
	cell__close_fd(&deps->host_fd);
	cell__close_fd(&deps->old_fd);
	lines_finish(&deps->ours);
	lines_finish(&deps->hosts);
	lines_finish(&deps->old);
	cell__close_fd(&deps->lock);
}
#define AUTO_DEPS __attribute__((cleanup(deps_finish)))
#define DEPS_INIT { .lock = -1, .fd = -1, .host_fd = -1, .old_fd = -1 }

static int deps_read(struct cell__store *store, bool lock, struct deps *deps, struct cell_error *err)
{
	if (cell__shared_open(store, &deps->fd, err) < 0)
		return -1;
	bool shared = deps->fd >= 0;
	if (!shared && (deps->fd = fcntl(store->base_fd, F_DUPFD_CLOEXEC, 3)) < 0)
		return cell_fail(err, CELL_E_IO, errno, "read " FILE_NAME);
	if (lock && cell__dir_lock(deps->fd, true, &deps->lock, err) < 0)
		return cell_fail_wrap(err, "change " FILE_NAME);
	deps->old_fd = shared ? -1 : cell__dir_open(store->base_fd, OLD_FOLDER, false);
	if (!shared && deps->old_fd < 0 && errno != ENOENT)
		return cell__dir_fail(err, OLD_FOLDER, errno);
	if (store->confined) /* which is a mount */
		deps->host_fd = openat(store->base_fd, CELL__SHARED_FOLDER, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (read_lines(deps->fd, &deps->ours, err) < 0 || read_lines(deps->host_fd, &deps->hosts, err) < 0)
		return -1;
	return read_lines(deps->old_fd, &deps->old, err);
}

int cell__deps_tell(json_t *list, const char *spec)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if (cell__dep_same_package(json_string_value(json_array_get(list, i)), spec))
			return 0;
	return json_array_append_new(list, json_string(spec));
}

int cell__deps_tell_problem(json_t *problems, const char *file, size_t line, const char *text, size_t size,
			    const struct cell_error *problem)
{
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
	if (cell__buf_add_utf8(&clean, text, size) < 0)
		return -1;
	json_t *one = json_pack("{s:s, s:I, s:s%, s:s}", "file", file, "line", (json_int_t)line, "text", clean.data ? clean.data : "",
				clean.size, "message", problem->msg);
	return one ? json_array_append_new(problems, one) : -1;
}

static int tell_lines(const struct lines *lines, const char *file, json_t *list, json_t *problems)
{
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < lines->n; i++) {
		const struct line *line = &lines->list[i];
		if (line->spec[0])
			rc = cell__deps_tell(list, line->spec);
		else if (!line->blank)
			rc = cell__deps_tell_problem(problems, file, i + 1, line->text, line->size, &line->problem);
	}
	return rc;
}

static int compare_specs(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

json_t *cell__deps_sorted(json_t *list)
{
	size_t n = json_array_size(list);
	CELL_AUTO_FREE const char **specs = cell__alloc(n, sizeof *specs);
	json_t *out = json_array();
	if (!specs || !out)
		return json_decref(out), NULL;
	for (size_t i = 0; i < n; i++)
		specs[i] = json_string_value(json_array_get(list, i));
	qsort(specs, n, sizeof *specs, compare_specs);
	for (size_t i = 0; i < n; i++)
		json_array_append_new(out, json_string(specs[i]));
	return out;
}

int cell__deps_listed(bool ok, json_t *list, json_t *problems, json_t **ret_list, json_t **ret_problems, struct cell_error *err)
{
	json_t *sorted = ok ? cell__deps_sorted(list) : NULL;
	json_decref(list);
	if (!sorted) {
		json_decref(problems);
		return cell_fail(err, CELL_E_NOMEM, 0, "list dependencies");
	}
	*ret_list = sorted;
	*ret_problems = problems;
	return 0;
}

static int list_deps(struct cell__store *store, json_t **ret_list, json_t **ret_problems, struct cell_error *err)
{
	AUTO_DEPS struct deps deps = DEPS_INIT;
	if (deps_read(store, false, &deps, err) < 0)
		return -1;
	json_t *list = json_array(), *problems = json_array();
	bool ok = list && problems && tell_lines(&deps.ours, FILE_NAME, list, problems) == 0 &&
		  tell_lines(&deps.hosts, CELL__SHARED_FOLDER "/" FILE_NAME, list, problems) == 0 &&
		  tell_lines(&deps.old, OLD_FOLDER "/" FILE_NAME, list, problems) == 0;
	return cell__deps_listed(ok, list, problems, ret_list, ret_problems, err);
}

/* Removes the lines of a package, except for `keep` (may be NULL); true when others were removed. */
static bool drop_lines(struct lines *lines, const char *spec, const struct line *keep)
{
	size_t kept = 0;
	assert(lines->list || lines->n == 0);
	for (size_t i = 0; i < lines->n; i++) {
		const struct line *line = &lines->list[i];
		if (line == keep || !line->spec[0] || !cell__dep_same_package(line->spec, spec))
			lines->list[kept++] = *line;
	}
	bool dropped = kept < lines->n;
	lines->n = kept;
	return dropped;
}

/* The place of a new line: sorted if the file is sorted, else at the end. */
static size_t place(const struct lines *lines, const char *spec)
{
	size_t at = 0;
	for (size_t i = 0; i < lines->n; i++) {
		if (!lines->list[i].spec[0] || (i > 0 && strcmp(lines->list[i - 1].spec, lines->list[i].spec) > 0))
			return lines->n;
		if (strcmp(lines->list[i].spec, spec) < 0)
			at = i + 1;
	}
	return at;
}

static size_t count_specs(const struct lines *lines)
{
	size_t n = 0;
	for (size_t i = 0; i < lines->n; i++)
		n += lines->list[i].spec[0] != '\0';
	return n;
}

/* replaced (empty) outlives the lines that point to it. */
static int put_spec(struct lines *lines, const char *spec, struct cell__buf *replaced, struct cell_error *err)
{
	size_t at = 0;
	while (at < lines->n && !(lines->list[at].spec[0] && cell__dep_same_package(lines->list[at].spec, spec)))
		at++;
	int rc = cell__buf_add_str(replaced, spec);
	if (at < lines->n) {
		struct line *line = &lines->list[at];
		rc |= cell__buf_add(replaced, line->text + line->comment, line->size - line->comment);
		drop_lines(lines, spec, line); /* earlier lines are not of this package */
	} else {
		if (count_specs(lines) >= CELL__STORE_DEPS)
			return cell_fail(err, CELL_E_LIMIT, 0, "more than %u dependencies", CELL__STORE_DEPS);
		at = place(lines, spec);
		rc |= add_line(lines, "", 0);
		if (rc == 0)
			memmove(&lines->list[at + 1], &lines->list[at], (lines->n - 1 - at) * sizeof *lines->list);
	}
	if (rc < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "add dependency");
	lines->list[at] = (struct line){ .text = replaced->data, .size = replaced->size };
	strcpy(lines->list[at].spec, spec);
	return 0;
}

static int put_specs(struct deps *deps, const json_t *specs, struct cell__buf *replaced, struct cell_error *err)
{
	bool drops = false;
	for (size_t i = 0; i < json_array_size(specs); i++) {
		const char *spec = json_string_value(json_array_get(specs, i));
		if (put_spec(&deps->ours, spec, &replaced[i], err) < 0)
			return -1;
		drops |= drop_lines(&deps->old, spec, NULL);
	}
	if (write_lines(deps->fd, &deps->ours, err) < 0)
		return -1;
	/* Ours counts where both name a package, so dying between the two writes does no harm. */
	return drops ? write_lines(deps->old_fd, &deps->old, err) : 0;
}

static int add_deps(struct cell__store *store, const json_t *specs, struct cell_error *err)
{
	AUTO_DEPS struct deps deps = DEPS_INIT;
	size_t n = json_array_size(specs);
	CELL_AUTO_FREE struct cell__buf *replaced = cell__alloc(n, sizeof *replaced);
	if (!replaced)
		return cell_fail(err, CELL_E_NOMEM, 0, "add dependency");
	int rc = deps_read(store, true, &deps, err);
	if (rc == 0)
		rc = put_specs(&deps, specs, replaced, err);
	for (size_t i = 0; i < n; i++)
		cell__buf_finish(&replaced[i]);
	return rc;
}

static int drop_dep(struct cell__store *store, const char *spec, bool *ret_dropped, struct cell_error *err)
{
	AUTO_DEPS struct deps deps = DEPS_INIT;
	if (deps_read(store, true, &deps, err) < 0)
		return -1;
	/* The older file first: else its entry would come back if we died in between. */
	bool old = drop_lines(&deps.old, spec, NULL), ours = drop_lines(&deps.ours, spec, NULL);
	if (old && write_lines(deps.old_fd, &deps.old, err) < 0)
		return -1;
	if (ours && write_lines(deps.fd, &deps.ours, err) < 0)
		return -1;
	*ret_dropped = old || ours;
	return 0;
}

/* ---- books ---- */

/* Learned types can be learned again, so they are in the folder of caches, which no code can write to; *ret_cache is to be closed. */
static int book_folder(struct cell__store *store, enum cell__book which, int *ret_cache, int *ret_at, struct cell_error *err)
{
	bool shared;
	if (which != CELL__BOOK_RESULTS) {
		*ret_at = store->root_fd;
		return 0;
	}
	*ret_at = *ret_cache = cell__shared_open_cache(store, &shared);
	return *ret_at < 0 ? cell_fail(err, CELL_E_IO, errno, "open the cache of the storage") : 0;
}

static int read_book_at(int at, enum cell__book which, struct cell__buf *out, struct cell_error *err)
{
	const char *name = cell__book_name(which);
	if (cell__path_read(at, name, CELL__DEPBOOK_BYTES, out, NULL) == 0 || errno == ENOENT)
		return 0;
	return cell_fail(err, errno == EFBIG ? CELL_E_LIMIT : CELL_E_IO, errno, "read %s", name);
}

static int read_book(struct cell__store *store, enum cell__book which, struct cell__buf *out, struct cell_error *err)
{
	CELL_AUTO_FD int cache = -1;
	int at = -1;
	if (book_folder(store, which, &cache, &at, err) < 0)
		return -1;
	return read_book_at(at, which, out, err);
}

static int write_book(struct cell__store *store, enum cell__book which, const struct cell__buf *old, const struct cell__buf *text,
		      bool *ret_done, struct cell_error *err)
{
	const char *name = cell__book_name(which);
	CELL_AUTO_BUF struct cell__buf now = CELL_BUF_INIT;
	CELL_AUTO_FD int lock = -1, cache = -1;
	int at = -1;
	if (book_folder(store, which, &cache, &at, err) < 0)
		return -1;
	if (cell__dir_lock(at, true, &lock, err) < 0)
		return cell_fail_wrap(err, "change %s", name);
	if (read_book_at(at, which, &now, err) < 0)
		return -1;
	*ret_done = now.size == old->size && (now.size == 0 || memcmp(now.data, old->data, now.size) == 0);
	if (*ret_done && cell__file_replace(at, name, text->data, text->size) < 0)
		return cell_fail(err, CELL_E_IO, errno, "write %s", name);
	return 0;
}

const struct cell__deps_ops cell__file_deps = {
	.list = list_deps,
	.add = add_deps,
	.drop = drop_dep,
	.read_book = read_book,
	.write_book = write_book,
};

/* ---- on either backend ---- */

int cell__deps_list(struct cell__store *store, json_t **ret_list, json_t **ret_problems, struct cell_error *err)
{
	json_t *problems;
	if (store->backend->deps->list(store, ret_list, &problems, err) < 0)
		return -1;
	if (ret_problems)
		*ret_problems = problems;
	else
		json_decref(problems);
	return 0;
}

int cell__deps_add(struct cell__store *store, const char *spec, struct cell_error *err)
{
	char normal[CELL__STORE_DEP_BYTES + 1];
	if (cell__dep_normalise(spec, normal, err) < 0)
		return -1;
	json_t *specs = json_pack("[s]", normal);
	int rc = specs ? cell__deps_add_all(store, specs, err) : cell_fail(err, CELL_E_NOMEM, 0, "add dependency");
	json_decref(specs);
	return rc;
}

int cell__deps_add_all(struct cell__store *store, const json_t *specs, struct cell_error *err)
{
	return store->backend->deps->add(store, specs, err);
}

int cell__deps_remove(struct cell__store *store, const char *spec, bool *ret_removed, struct cell_error *err)
{
	char normal[CELL__STORE_DEP_BYTES + 1];
	bool removed = false;
	if (spec[strspn(spec, " \t\r\n")] != '\0') {
		if (cell__dep_normalise(spec, normal, err) < 0 || store->backend->deps->drop(store, normal, &removed, err) < 0)
			return -1;
	}
	if (ret_removed)
		*ret_removed = removed;
	return 0;
}
