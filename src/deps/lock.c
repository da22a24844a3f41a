/*
 * The lock of untrusted principals: exact versions, and the hashes of their wheels (store.h, the book).
 *
 *     uv:  wanted ──▶ one run (project.c)
 *             └─if that fails─▶ uv pip compile (program) ──▶ check (pool) ──▶ uv pip install --require-hashes --no-deps
 *     pip: wanted ──▶ pip install --report ──▶ check (pool): one program, because starting pip twice costs half an install
 *
 * The first resolution decides.  Later ones prefer locked versions, and a file whose hash is not the locked one is refused.
 * Programs' output files are hostile data: they are read without following links, within limits, and only names, versions
 * and hashes are taken over.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/hole.h"
#include "deps/operation.h"

#define RESOLVED "resolved.txt"
#define RESOLVED_BYTES (4u * 1024u * 1024u)
#define REPORT_BYTES (16u * 1024u * 1024u) /* metadata of packages, with their descriptions */
#define HASH "--hash=sha256:"

/* ---- the venv compared with the lock ---- */

static bool lists(json_t *array, const char *spec)
{
	for (size_t i = 0; i < json_array_size(array); i++)
		if (strcmp(cell__dep_text(array, i), spec) == 0)
			return true;
	return false;
}

/* The next number, without leading zeros, or word of a version; false at its end. */
static bool next_part(const char **at, const char *end, const char **ret_part, size_t *ret_size)
{
	const char *c = *at;
	while (c < end && !isalnum((unsigned char)*c))
		c++;
	bool number = c < end && isdigit((unsigned char)*c);
	while (number && c + 1 < end && *c == '0' && isdigit((unsigned char)c[1]))
		c++;
	*ret_part = c;
	while (c < end && isalnum((unsigned char)*c) && (isdigit((unsigned char)*c) != 0) == number)
		c++;
	*ret_size = (size_t)(c - *ret_part);
	*at = c;
	return *ret_size > 0;
}

/* A package's folder is named as its maker did. */
bool cell__dep_same_version(const char *a, size_t a_size, const char *b, size_t b_size)
{
	const char *a_end = a + a_size, *b_end = b + b_size, *x, *y;
	for (;;) {
		size_t x_size, y_size;
		bool more_a = next_part(&a, a_end, &x, &x_size), more_b = next_part(&b, b_end, &y, &y_size);
		if (!more_a && !more_b)
			return true;
		if (more_a && more_b ? x_size != y_size || strncasecmp(x, y, x_size) != 0
				     : (more_a ? x_size : y_size) != 1 || *(more_a ? x : y) != '0')
			return false;
	}
}

int cell__dep_compare_lock(struct cell__dep_op *op)
{
	json_t *locked = json_object_get(op->book, "locked"), *resolved = json_object_get(op->book, "resolved"), *entry;
	const char *name;
	int rc = 0;
	json_decref(op->unresolved);
	op->unresolved = json_array();
	op->missing = false;
	for (size_t i = 0; i < json_array_size(op->configured); i++)
		if (!lists(resolved, cell__dep_text(op->configured, i)))
			rc |= json_array_append(op->unresolved, json_array_get(op->configured, i));
	json_object_foreach(locked, name, entry) {
		size_t size;
		const char *version = cell__dep_text(entry, 0), *there = cell__venv_listed(&op->before, name, strlen(name), &size);
		if (!there || !cell__dep_same_version(version, strlen(version), there, size))
			op->missing = json_array_size(op->configured) > 0 && !op->relocked;
	}
	return op->unresolved ? rc : -1;
}

int cell__dep_write_lock(json_t *book, json_t *names, const char *folder, const char *file)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	json_t *locked = json_object_get(book, "locked"), *entry;
	const char *name;
	int rc = cell__buf_add(&text, "", 0);
	json_object_foreach(locked, name, entry) {
		if (names && !json_object_get(names, name))
			continue;
		rc |= cell__buf_printf(&text, "%s==%s", name, cell__dep_text(entry, 0));
		for (size_t i = 1; i < json_array_size(entry) && !is_hole("deps-hashes"); i++)
			rc |= cell__buf_printf(&text, " \\\n    " HASH "%s", cell__dep_text(entry, i));
		rc |= cell__buf_add(&text, "\n", 1);
	}
	if (rc != 0) {
		errno = ENOMEM;
		return -1;
	}
	return cell__venv_write_hostile(folder, file, text.data, text.size);
}

/* ---- the chosen versions ---- */

static int fail_odd(struct cell__dep_op *op, const char *what, const char *text, size_t size)
{
	char shown[80];
	size_t n = 0;
	for (; n < size && n < sizeof shown - 1; n++)
		shown[n] = (char)(text[n] >= 0x20 && text[n] < 0x7f ? text[n] : '?');
	shown[n] = '\0';
	return cell_fail(&op->err, CELL_E_INSTALL, 0, "%s names a package that cannot be locked: %s", what, shown);
}

int cell__dep_lock_entry(struct cell__dep_op *op, const char *what, const char *given, const char *version, json_t **ret_entry)
{
	char name[CELL__STORE_DEP_BYTES + 1];
	json_t *entry = json_pack("[s]", version);
	if (!entry || cell__dep_normalise(given, name, NULL) < 0 || cell__dep_base_size(name) != strlen(name)) {
		json_decref(entry);
		return fail_odd(op, what, given, strlen(given));
	}
	*ret_entry = entry;
	return json_object_set_new(op->locked, name, entry);
}

int cell__dep_check_entries(struct cell__dep_op *op, const char *what)
{
	json_t *entry;
	const char *name;
	json_object_foreach(op->locked, name, entry)
		if (!cell__depbook_entry_ok(name, entry))
			return fail_odd(op, what, name, strlen(name));
	return 0;
}

/* "name==version \n --hash=sha256:... \n --hash=...", as uv writes it. */
static int parse_resolved(struct cell__dep_op *op, char *text)
{
	json_t *entry = NULL;
	char *rest = NULL;
	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *at = line + strspn(line, " \t");
		size_t size = strcspn(at, " \t\\;");
		if (*at == '#' || size == 0)
			continue;
		if (at[size + strspn(at + size, " \t\\")] != '\0')
			return fail_odd(op, "uv", at, strlen(at));
		at[size] = '\0';
		if (strncmp(at, HASH, sizeof HASH - 1) == 0 && entry) {
			json_array_append_new(entry, json_string(at + sizeof HASH - 1));
			continue;
		}
		char *equals = strstr(at, "==");
		if (!equals)
			return fail_odd(op, "uv", at, size);
		*equals = '\0';
		if (cell__dep_lock_entry(op, "uv", at, equals + 2, &entry) < 0)
			return -1;
	}
	return cell__dep_check_entries(op, "uv");
}

static void resolved_work(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	op->locked = json_object();
	if (cell__venv_read(op->temp, RESOLVED, RESOLVED_BYTES, &text) < 0 || cell__buf_add(&text, "", 1) < 0) {
		op->rc = cell_fail(&op->err, CELL_E_INSTALL, errno, "read the packages that uv resolved");
		return;
	}
	op->rc = op->locked ? parse_resolved(op, text.data) : cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
	if (op->rc < 0)
		return;
	json_t *merged = json_deep_copy(op->book);
	op->rc = cell__depbook_merge(merged, NULL, NULL, op->locked, &op->err);
	if (op->rc == 0 && cell__dep_write_lock(merged, op->locked, op->deps->notes, CELL__DEP_WANTED) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to %s", op->deps->notes);
	json_decref(merged);
}

static void handle_resolved(struct cell__dep_op *op)
{
	if (op->how.error || op->how.signalled || op->how.timed_out || op->how.status != 0)
		cell__dep_installed(op);
	else
		cell__dep_pool(op, resolved_work, cell__dep_run_installer);
}

static void prefer_work(struct cell__dep_op *op)
{
	if (cell__dep_write_lock(op->book, NULL, op->temp, RESOLVED) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to %s", op->temp);
}

static void run_resolver(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	CELL_AUTO_BUF struct cell__buf wanted = CELL_BUF_INIT, limits = CELL_BUF_INIT, out = CELL_BUF_INIT;
	if (cell__buf_printf(&wanted, "%s/" CELL__DEP_WANTED, deps->notes) < 0 ||
	    cell__buf_printf(&limits, "%s/" CELL__DEP_LIMITS, deps->notes) < 0 || cell__buf_printf(&out, "%s/" RESOLVED, op->temp) < 0) {
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		return;
	}
	/* The host's interpreter, not the venv's: no installed code runs here. */
	const char *argv[28] = {
		op->uv,          "pip",         "compile",       "--no-progress",
		"--quiet",       "--no-header", "--no-annotate", "--generate-hashes",
		"--only-binary", ":all:",       "--python",      deps->executable,
		"--output-file", out.data,
	};
	size_t n = 14;
	if (deps->wheel_dir && !deps->has_index)
		argv[n++] = "--no-index";
	if (deps->wheel_dir) {
		argv[n++] = "--find-links";
		argv[n++] = deps->wheel_dir;
	}
	if (op->limited) {
		argv[n++] = "-c";
		argv[n++] = limits.data;
	}
	argv[n++] = wanted.data;
	op->program = "uv";
	op->online = true;
	cell__dep_run(op, argv, INT64_MAX, true, handle_resolved);
}

void cell__dep_resolve(struct cell__dep_op *op)
{
	cell__dep_pool(op, prefer_work, run_resolver);
}

/* ---- pip's report ---- */

static int take_hash(struct cell__dep_op *op, json_t *archive, json_t *entry, const char *name)
{
	const char *hash = json_string_value(json_object_get(json_object_get(archive, "hashes"), "sha256"));
	const char *old = json_string_value(json_object_get(archive, "hash"));
	if (!hash && old && strncmp(old, "sha256=", 7) == 0)
		hash = old + 7;
	if (!hash)
		return fail_odd(op, "pip", name, strlen(name));
	return json_array_append_new(entry, json_string(hash));
}

int cell__dep_read_report(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	op->locked = json_object();
	if (cell__venv_read(op->temp, CELL__DEP_REPORT, REPORT_BYTES, &text) < 0)
		return cell_fail(&op->err, errno == EFBIG ? CELL_E_LIMIT : CELL_E_INSTALL, errno, "read the packages that pip installed");
	json_t *report = json_loadb(text.data, text.size, 0, NULL), *installed = json_object_get(report, "install");
	int rc = json_is_array(installed) && op->locked ? 0
							: cell_fail(&op->err, CELL_E_INSTALL, 0, "pip's installation report is damaged");
	for (size_t i = 0; rc == 0 && i < json_array_size(installed); i++) {
		json_t *one = json_array_get(installed, i), *metadata = json_object_get(one, "metadata"), *entry = NULL;
		const char *name = json_string_value(json_object_get(metadata, "name"));
		const char *version = json_string_value(json_object_get(metadata, "version"));
		if (!name || !version)
			rc = cell_fail(&op->err, CELL_E_INSTALL, 0, "pip's installation report lacks a name or version");
		else
			rc = cell__dep_lock_entry(op, "pip", name, version, &entry);
		if (rc == 0)
			rc = take_hash(op, json_object_get(json_object_get(one, "download_info"), "archive_info"), entry, name);
	}
	json_decref(report);
	return rc == 0 ? cell__dep_check_entries(op, "pip") : -1;
}
