/*
 * One run of uv that chooses versions, records them with the hashes of their files, and installs exactly those; `uv pip`
 * needs two runs for that (lock.c).
 *
 *     write a project (pool) ──▶ uv sync (program) ──▶ read uv.lock (pool) ──▶ on, as after any installer
 *                                    │ it fails, or the index does not give hashes
 *                                    └──▶ uv pip compile, uv pip install (lock.c)
 *
 * The project depends on the wanted packages, for this kind of machine only, and is limited to the locked versions.  uv checks
 * every file that it fetches against the hash that it has just recorded.  For files of the wheel folder it records no hash: the
 * host hashes those itself, as long as they are older than the run.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>

#include "base/hole.h"
#include "deps/operation.h"
#include "deps/uvlock.h"

#define PROJECT "pyproject.toml"
#define LOCK "uv.lock"
#define LOCK_BYTES (4u * 1024u * 1024u)

/* ---- the project ---- */

/* A specifier has no character that a TOML string must escape; a text with one is refused. */
static int add_text(struct cell__buf *out, const char *text, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (text[i] == '"' || text[i] == '\\' || text[i] < 0x20 || text[i] == 0x7f)
			return -1;
	return cell__buf_printf(out, "\"%.*s\", ", (int)size, text);
}

/* The lines that limit versions, as for uv pip, and the locked versions. */
static int add_limits(struct cell__dep_op *op, struct cell__buf *out)
{
	CELL_AUTO_BUF struct cell__buf limits = CELL_BUF_INIT, pin = CELL_BUF_INIT;
	json_t *entry;
	const char *name;
	int rc = 0;
	if (op->limited && cell__venv_read(op->deps->notes, CELL__DEP_LIMITS, CELL__STORE_DEPS_BYTES, &limits) < 0)
		return -1;
	for (size_t at = 0, n; at < limits.size; at += n + 1) {
		const char *stop = memchr(limits.data + at, '\n', limits.size - at);
		n = stop ? (size_t)(stop - limits.data) - at : limits.size - at;
		rc |= add_text(out, limits.data + at, n);
	}
	json_object_foreach(json_object_get(op->book, "locked"), name, entry) {
		cell__buf_finish(&pin);
		rc |= cell__buf_printf(&pin, "%s==%s", name, cell__dep_text(entry, 0));
		rc |= rc == 0 ? add_text(out, pin.data, pin.size) : -1;
	}
	return rc;
}

static void project_work(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	const char *number = strchr(op->deps->version, '-') + 1;
	struct utsname machine;
	char marker[256];
	clock_gettime(CLOCK_REALTIME_COARSE, &op->began);
	int rc = uname(&machine);
	snprintf(marker, sizeof marker, "sys_platform == 'linux' and platform_machine == '%.64s' and implementation_name == '%.*s'",
		 machine.machine, (int)(number - op->deps->version - 1), op->deps->version);
	rc |= cell__buf_printf(&text,
			       "[project]\nname = \"workcell-wanted\"\nversion = \"0\"\nrequires-python = \"==%.*s.*\"\ndependencies = [",
			       (int)(strrchr(number, '.') - number), number);
	for (size_t i = 0; i < json_array_size(op->wanted); i++)
		rc |= add_text(&text, cell__dep_text(op->wanted, i), strlen(cell__dep_text(op->wanted, i)));
	rc |= cell__buf_printf(&text,
			       "]\n\n[tool.uv]\npackage = false\nenvironments = [\"%s\"]\nrequired-environments = [\"%s\"]\n"
			       "constraint-dependencies = [",
			       marker, marker);
	rc |= add_limits(op, &text);
	rc |= cell__buf_printf(&text, "]\n");
	if (rc != 0 || cell__venv_write_hostile(op->temp, PROJECT, text.data, text.size) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write %s/" PROJECT, op->temp);
}

/* ---- the chosen versions ---- */

/* Changed before uv began? */
static bool is_older(const struct timespec *changed, const struct timespec *began)
{
	return changed->tv_sec != began->tv_sec ? changed->tv_sec < began->tv_sec : changed->tv_nsec < began->tv_nsec;
}

/* Hashes a file of the wheel folder that is unchanged since uv began. 0, or -1. */
static int hash_wheel(const struct cell__dep_op *op, const char *path, char out[static CELL__VENV_HASH_SIZE])
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	if (!op->deps->wheel_dir || name[0] == '.' || name[0] == '\0')
		return -1;
	CELL_AUTO_FD int dir = open(op->deps->wheel_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	CELL_AUTO_FD int fd = dir < 0 ? -1 : openat(dir, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	CELL_AUTO_FREE char *bytes = cell__alloc(1, 1 << 18);
	unsigned char digest[EVP_MAX_MD_SIZE];
	struct stat st;
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	bool ok = fd >= 0 && bytes && context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
	ssize_t n = 0;
	while (ok && (n = read(fd, bytes, 1 << 18)) > 0)
		ok = EVP_DigestUpdate(context, bytes, (size_t)n) == 1;
	ok = ok && n == 0 && EVP_DigestFinal_ex(context, digest, NULL) == 1;
	EVP_MD_CTX_free(context);
	ok = ok && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (is_older(&st.st_ctim, &op->began) || is_hole("deps-touched"));
	for (size_t i = 0; ok && i < CELL__VENV_HASH_SIZE - 1; i++)
		out[i] = "0123456789abcdef"[i % 2 ? digest[i / 2] & 15 : digest[i / 2] >> 4];
	out[CELL__VENV_HASH_SIZE - 1] = '\0';
	return ok ? 0 : -1;
}

/* 0: it is locked, or not installed. 1: some of its hashes are unknown. */
static int lock_package(struct cell__dep_op *op, json_t *package)
{
	const char *name = json_string_value(json_object_get(package, "name")),
		   *version = json_string_value(json_object_get(package, "version"));
	json_t *hashes = json_object_get(package, "hashes"), *files = json_object_get(package, "files"), *entry = NULL;
	size_t size;
	const char *there = cell__venv_listed(&op->after, name, strlen(name), &size);
	if (!there || !cell__dep_same_version(version, strlen(version), there, size))
		return 0; /* for other machines */
	op->bare = json_integer_value(json_object_get(package, "bare")) > 0;
	if (op->bare || json_object_get(op->locked, name))
		return 1;
	if (json_array_size(files) > CELL__DEPBOOK_HASHES || cell__dep_lock_entry(op, "uv", name, version, &entry) < 0)
		return -1;
	int rc = json_array_extend(entry, hashes);
	for (size_t i = 0; rc == 0 && i < json_array_size(files); i++) {
		char hash[CELL__VENV_HASH_SIZE];
		if (hash_wheel(op, cell__dep_text(files, i), hash) < 0)
			return 1;
		rc = json_array_append_new(entry, json_string(hash));
	}
	return rc < 0 ? cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory") : 0;
}

static void chosen_work(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell__deps *deps = op->deps;
	cell__buf_finish(&op->after);
	op->unhashed = op->bare = false;
	op->locked = json_object();
	op->rc = op->locked ? cell__venv_listing(deps->dir, op->site, true, &op->after, &op->err)
			    : cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
	if (op->rc == 0 && cell__venv_read(op->temp, LOCK, LOCK_BYTES, &text) < 0)
		op->rc = cell_fail(&op->err, errno == EFBIG ? CELL_E_LIMIT : CELL_E_INSTALL, errno, "read the packages that uv installed");
	if (op->rc < 0)
		return;
	json_t *packages = cell__uvlock_parse(text.data, text.size);
	if (!packages)
		op->unhashed = true; /* of another format */
	for (size_t i = 0; op->rc == 0 && i < json_array_size(packages); i++)
		op->rc = lock_package(op, json_array_get(packages, i));
	json_decref(packages);
	op->unhashed |= op->rc == 1;
	op->rc = op->rc < 0 ? -1 : op->unhashed ? 0 : cell__dep_check_entries(op, "uv");
}

/* ---- the run ---- */

static void choose_apart(struct cell__dep_op *op)
{
	op->again = true;
	json_decref(cell__take_ptr(op->locked));
	cell__dep_resolve(op);
}

static void handle_chosen(struct cell__dep_op *op)
{
	if (!op->unhashed) {
		cell__dep_installed(op);
		return;
	}
	/* The installed files were not checked against a hash: they are installed again. */
	op->deps->unhashed = op->bare;
	choose_apart(op);
}

static void handle_synced(struct cell__dep_op *op)
{
	if (op->how.error || op->how.signalled || op->how.timed_out) {
		cell__dep_installed(op);
	} else if (op->how.status != 0) {
		/* The lock may be in the way, or this uv is too old. Otherwise the next program reports the error. */
		cell__dep_say(op, "uv sync failed; trying uv pip");
		choose_apart(op);
	} else {
		cell__dep_pool(op, chosen_work, handle_chosen);
	}
}

static void run_sync(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	const char *argv[16] = {
		op->uv, "sync", "--no-progress", "--no-build", "--inexact", "--project", op->temp, "--python", op->python,
	};
	size_t n = 9;
	if (deps->wheel_dir && !deps->has_index)
		argv[n++] = "--no-index";
	if (deps->wheel_dir) {
		argv[n++] = "--find-links";
		argv[n++] = deps->wheel_dir;
	}
	op->program = "uv";
	op->online = true;
	cell__dep_run(op, argv, INT64_MAX, false, handle_synced);
}

void cell__dep_project(struct cell__dep_op *op)
{
	op->again = false;
	/* An index without hashes now will not have them the next time. */
	if (op->deps->unhashed)
		cell__dep_resolve(op);
	else
		cell__dep_pool(op, project_work, run_sync);
}
