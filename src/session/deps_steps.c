/*
 * What an operation does, step by step.  "pool" steps touch files, "program" steps run something.
 *
 *     prepare (pool) ──list, or nothing to sync──▶ answer
 *        │ ask the interpreter's version (program), unless it is known
 *     lock (pool) ◀──timer, while somebody else has it
 *        │
 *     look (pool) ──no venv──▶ make it (program), adopt it (pool) ──┐
 *        │                                                          │
 *     probe (program) ◀─────────────────────────────────────────────┘
 *        │  it does not run: make another
 *        │  an installer was killed in it: repair (program)
 *     contents (pool) ── no pip and no uv: ensurepip (program) ──▶ contents
 *        │
 *     begin (pool) ──▶ installer (program) ──▶ record (pool) ──▶ answer, or the next of several
 *
 * Invariants: from lock to the end the venv is ours alone; a venv is marked busy before an installer starts, and
 * unmarked only when that ended by itself; requirements.txt changes only after the venv did.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "session/deps_op.h"

#define ASK_MS 30000         /* an interpreter that says its version */
#define LOCK_PAUSE_MS 10     /* between tries, at first and */
#define LOCK_PAUSE_MAX_MS 500 /* at most */
#define WANTED ".workcell-wanted.txt"
#define LIMITS ".workcell-limits.txt"

/* Without site: packages in the venv get no chance to run code here. */
static const char ask_script[] =
	"import sys; print('%s-%d.%d.%d' % ((sys.implementation.name,) + tuple(sys.version_info[:3])))";

/*
 * After an installer was killed: a package whose files are not all there is made unknown to installers, so that the
 * next one installs it again.  Names that begin with "~" are what pip moved out of the way.
 */
static const char repair_script[] =
	"import csv, os, shutil, sys\n"
	"site = sys.argv[1]\n"
	"def whole(info):\n"
	"    try:\n"
	"        with open(os.path.join(info, 'RECORD'), newline='', encoding='utf-8') as record:\n"
	"            rows = [row for row in csv.reader(record) if row]\n"
	"    except (OSError, ValueError, csv.Error):\n"
	"        return False\n"
	"    for row in rows:\n"
	"        if row[0].endswith('.pyc'):\n"
	"            continue\n"
	"        try:\n"
	"            size = os.stat(os.path.join(site, row[0])).st_size\n"
	"        except OSError:\n"
	"            return False\n"
	"        if len(row) > 2 and row[2].isdigit() and int(row[2]) != size and site in os.path.abspath(\n"
	"                os.path.join(site, row[0])):\n"
	"            return False\n"
	"    return bool(rows) and os.path.exists(os.path.join(info, 'METADATA'))\n"
	"for name in os.listdir(site):\n"
	"    path = os.path.join(site, name)\n"
	"    if name.startswith('~') or (name.endswith('.dist-info') and not whole(path)):\n"
	"        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)\n";

static void want_lock(struct cell__dep_op *op);
static void probe(struct cell__dep_op *op);
static void make(struct cell__dep_op *op);
static void look_inside(struct cell__dep_op *op);
static void install(struct cell__dep_op *op);

static const char *text_at(json_t *array, size_t i)
{
	return json_string_value(json_array_get(array, i));
}

static bool same_package(const char *spec, const struct cell__dep_op *op)
{
	return cell__dep_base_size(spec) == op->name_size && memcmp(spec, op->spec, op->name_size) == 0;
}

/* ---- answers ---- */

static bool is_new(const struct cell__dep_op *op, const char *spec)
{
	size_t name = cell__dep_base_size(spec), before_size = 0, after_size = 0;
	const char *before = cell__venv_listed(&op->before, spec, name, &before_size);
	const char *after = cell__venv_listed(&op->after, spec, name, &after_size);
	return !before || !after || before_size != after_size || memcmp(before, after, after_size) != 0;
}

static void answer(struct cell__dep_op *op)
{
	json_t *result = json_pack("{s:[], s:[], s:O, s:[], s:s?}", "installed", "already_present", "failed",
				   op->failed, "site", "bin", cell__deps_bin(op->deps));
	const char *site = cell__deps_site(op->deps);
	int rc = result ? 0 : -1;
	for (size_t i = 0; i < json_array_size(op->done); i++)
		rc |= json_array_append(json_object_get(result, is_new(op, text_at(op->done, i)) ? "installed"
											  : "already_present"),
					json_array_get(op->done, i));
	if (site)
		rc |= json_array_append_new(json_object_get(result, "site"), json_string(site));
	if (json_object_size(op->errors) > 0)
		rc |= json_object_set(result, "errors", op->errors);
	if (json_array_size(op->problems) > 0)
		rc |= json_object_set(result, "problems", op->problems);
	if (rc != 0) {
		json_decref(result);
		result = NULL;
	}
	cell__dep_answer(op, result);
}

/* ---- prepare ---- */

/* What is configured now: again once the lock is ours, because others may have added to it while we waited. */
static int read_configured(struct cell__dep_op *op)
{
	json_t *configured = NULL, *problems = NULL, *others = json_array();
	if (!others)
		return cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
	if (cell__deps_list(op->deps->store, &configured, &problems, &op->err) < 0) {
		json_decref(others);
		return -1;
	}
	for (size_t i = 0; i < json_array_size(configured); i++)
		if (op->kind == CELL__DEP_SYNC || !same_package(text_at(configured, i), op))
			json_array_append(others, json_array_get(configured, i));
	json_decref(op->configured);
	json_decref(op->problems);
	json_decref(op->others);
	op->configured = configured;
	op->problems = problems;
	op->others = others;
	return 0;
}

static void prepare_work(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	op->rc = read_configured(op);
	if (op->rc < 0 || op->kind == CELL__DEP_LIST)
		return;
	op->done = json_array();
	op->failed = json_array();
	op->errors = json_object();
	if (!op->done || !op->failed || !op->errors) {
		op->rc = cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
		return;
	}
	op->uv = cell__venv_find_program("uv", deps->path);
	const char *slash = deps->venv_dir ? strrchr(deps->venv_dir, '/') : NULL;
	CELL_AUTO_FREE char *parent = slash && slash > deps->venv_dir
					      ? cell__strndup(deps->venv_dir, (size_t)(slash - deps->venv_dir)) : NULL;
	if (cell__venv_mkdir_all(deps->venvs) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "make the cache folder %s", deps->venvs);
	else if (parent && cell__venv_mkdir_all(parent) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "make the folder %s", parent);
}

/* "cpython-3.11.2\n" as it was printed; false when it is no such thing. */
static bool take_version(struct cell__dep_op *op, char out[static CELL__VENV_VERSION_SIZE])
{
	size_t n = op->captured.size;
	while (n > 0 && strchr(" \r\n", op->captured.data[n - 1]))
		n--;
	if (op->how.error || op->how.signalled || op->how.status != 0 || n == 0 || n >= CELL__VENV_VERSION_SIZE)
		return false;
	char version[CELL__VENV_VERSION_SIZE];
	memcpy(version, op->captured.data, n);
	version[n] = '\0';
	if (!cell__venv_version_ok(version))
		return false;
	memcpy(out, version, sizeof version);
	return true;
}

static void handle_asked(struct cell__dep_op *op)
{
	char version[CELL__VENV_VERSION_SIZE] = "";
	if (!take_version(op, version)) {
		cell__dep_fail_program(op, CELL_E_PYTHON, "ask the interpreter for its version", NULL);
		return;
	}
	memcpy(op->deps->version, version, sizeof version);
	op->asked = true;
	want_lock(op);
}

static void handle_prepared(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if (op->kind == CELL__DEP_LIST) {
		cell__dep_answer(op, json_incref(op->configured));
		return;
	}
	if (op->kind == CELL__DEP_SYNC && json_array_size(op->configured) == 0) {
		answer(op);
		return;
	}
	if (deps->no_python.code) {
		op->err = deps->no_python;
		cell__dep_fail_err(op);
		return;
	}
	(void)cell__deps_site(deps); /* may find the version that another process asked for */
	if (deps->version[0]) {
		want_lock(op);
		return;
	}
	op->program = deps->python;
	const char *argv[] = { deps->python, "-I", "-S", "-c", ask_script, NULL };
	cell__dep_run(op, argv, ASK_MS, true, handle_asked);
}

void cell__dep_begin(struct cell__dep_op *op)
{
	cell__dep_pool(op, prepare_work, handle_prepared);
}

/* ---- the lock ---- */

static void look_work(struct cell__dep_op *op)
{
	const char *dir = op->deps->dir;
	op->state = cell__venv_look(dir);
	op->ours = cell__venv_is_ours(dir);
	op->dirty = cell__venv_is_busy(dir);
	op->rc = read_configured(op);
}

static void handle_looked(struct cell__dep_op *op);

static void lock_work(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if (op->asked)
		cell__venv_version_save(deps->venvs, deps->stamp, deps->version);
	if (deps->private_name)
		cell__venv_sweep_private(deps->venvs);
	op->rc = cell__venv_lock(deps->dir, &op->lock_fd, &op->err);
	op->busy_lock = op->rc > 0;
	if (op->rc == 0) {
		cell__venv_sweep(deps->dir);
		look_work(op);
	}
}

static void handle_lock_tried(struct cell__dep_op *op);

static void handle_timer(uv_timer_t *timer)
{
	struct cell__deps *deps = timer->data;
	deps->waiting = false;
	cell__dep_pool(deps->current, lock_work, handle_lock_tried);
}

static void handle_lock_tried(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if (!op->busy_lock) {
		deps->lock_fd = cell__take_fd(&op->lock_fd);
		/* The time that others took is not ours. */
		op->until_us = cell__now_us() + deps->timeout_ms * 1000;
		handle_looked(op);
		return;
	}
	if (cell__now_us() > op->lock_until_us) {
		cell_fail(&op->err, CELL_E_INSTALL, 0, "another process has been at work on the venv %.120s for %.3g s",
			  deps->dir, (double)deps->timeout_ms / 1000.0);
		cell__dep_fail_err(op);
		return;
	}
	deps->waiting = true;
	uv_update_time(&deps->loop->uv);
	uv_timer_start(&deps->timer, handle_timer, (uint64_t)op->lock_pause_ms, 0);
	op->lock_pause_ms = op->lock_pause_ms * 2 < LOCK_PAUSE_MAX_MS ? op->lock_pause_ms * 2 : LOCK_PAUSE_MAX_MS;
}

static void want_lock(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if (!deps->dir)
		deps->dir = cell__deps_make_dir(deps);
	if (!deps->dir) {
		cell__dep_fail(op, CELL_E_IO, "the folder for venvs is not there");
		return;
	}
	struct cell__buf python = CELL_BUF_INIT;
	if (cell__buf_printf(&python, "%s/bin/python", deps->dir) < 0) {
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		return;
	}
	op->python = cell__buf_take(&python);
	op->lock_until_us = cell__now_us() + deps->timeout_ms * 1000;
	op->lock_pause_ms = LOCK_PAUSE_MS;
	if (deps->lock_fd >= 0)
		cell__dep_pool(op, look_work, handle_looked);
	else
		cell__dep_pool(op, lock_work, handle_lock_tried);
}

/* ---- is it a venv, and does it work ---- */

static void forget_work(struct cell__dep_op *op)
{
	op->rc = cell__deps_remove(op->deps->store, op->spec, &op->removed, &op->err);
}

static void handle_forgotten(struct cell__dep_op *op)
{
	size_t size;
	bool was_there = cell__venv_listed(&op->before, op->spec, op->name_size, &size) != NULL;
	cell__dep_answer(op, json_boolean(op->removed || was_there));
}

/* A venv that is not there or does not work has to be made, unless something is to be removed from it. */
static void need_another(struct cell__dep_op *op)
{
	if (op->kind == CELL__DEP_REMOVE)
		cell__dep_pool(op, forget_work, handle_forgotten);
	else
		make(op);
}

static void handle_looked(struct cell__dep_op *op)
{
	if (op->kind == CELL__DEP_SYNC && json_array_size(op->configured) == 0) {
		answer(op);
	} else if (op->state == CELL__VENV_PRESENT) {
		probe(op);
	} else if (op->state == CELL__VENV_ABSENT) {
		need_another(op);
	} else {
		cell_fail(&op->err, CELL_E_INVALID, 0, "%.160s is not empty and no venv: choose another venv_dir",
			  op->deps->dir);
		cell__dep_fail_err(op);
	}
}

static void handle_repaired(struct cell__dep_op *op)
{
	if (op->how.error || op->how.timed_out || op->how.status != 0) {
		cell__dep_fail_program(op, CELL_E_INSTALL, "repair the venv after an installer was killed in it", NULL);
		return;
	}
	op->fresh = true;
	look_inside(op);
}

static void repair(struct cell__dep_op *op)
{
	const char *site = cell__deps_site(op->deps);
	op->program = "python";
	const char *argv[] = { op->python, "-I", "-S", "-c", repair_script, site, NULL };
	cell__dep_run(op, argv, INT64_MAX, true, handle_repaired);
}

/* The same implementation, major and minor version. */
static bool same_series(const char *a, const char *b)
{
	const char *end = strrchr(a, '.');
	return strncmp(a, b, (size_t)(end - a) + 1) == 0;
}

static void handle_probed(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	char version[CELL__VENV_VERSION_SIZE] = "";
	bool runs = take_version(op, version);
	/* Neither says anything about the venv. */
	if (op->how.timed_out || op->how.error == ECONNRESET) {
		cell__dep_fail_program(op, CELL_E_INSTALL, "look at the venv", NULL);
		return;
	}
	if (runs && same_series(version, deps->version) && cell__deps_site(deps)) {
		if (op->dirty)
			repair(op);
		else
			look_inside(op);
		return;
	}
	if (op->remade) {
		cell__dep_fail_program(op, CELL_E_INSTALL, "use the venv that was just made", NULL);
		return;
	}
	if (runs && !op->ours) {
		cell_fail(&op->err, CELL_E_INVALID, 0,
			  "the venv %.100s is for %s, the session's interpreter is %s: choose another venv_dir", deps->dir, version,
			  deps->version);
		cell__dep_fail_err(op);
		return;
	}
	need_another(op);
}

static void probe(struct cell__dep_op *op)
{
	op->program = "the venv's python";
	const char *argv[] = { op->python, "-I", "-S", "-c", ask_script, NULL };
	cell__dep_run(op, argv, ASK_MS, true, handle_probed);
}

/* ---- make one ---- */

static void adopt_work(struct cell__dep_op *op)
{
	op->rc = cell__venv_adopt(op->made, op->deps->dir, &op->err);
}

static void handle_adopted(struct cell__dep_op *op)
{
	free(cell__take_ptr(op->made));
	op->fresh = op->remade = op->ours = true;
	op->dirty = false;
	probe(op);
}

static void handle_made(struct cell__dep_op *op)
{
	if (!op->how.error && !op->how.signalled && op->how.status == 0) {
		cell__dep_pool(op, adopt_work, handle_adopted);
		return;
	}
	const char *advice = NULL;
	for (int i = 0; i < 2; i++) {
		const char *words = op->words[i].data ? op->words[i].data : "";
		if (strstr(words, "ensurepip") || strstr(words, "No module named venv"))
			advice = "This interpreter cannot make venvs: apt install python3-venv, or put uv into PATH.";
	}
	cell__dep_fail_program(op, CELL_E_INSTALL, "make the venv", advice);
}

static void make(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	op->made = cell__venv_sibling(deps->dir, "new", true);
	if (!op->made) {
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		return;
	}
	const char *name = strrchr(deps->dir, '/') + 1;
	const char *with_uv[] = { op->uv, "venv", "--no-project", "--prompt", name, "--python", deps->python,
				  op->made, NULL };
	const char *with_venv[] = { deps->python, "-I", "-m", "venv", "--prompt", name, op->made, NULL };
	op->program = op->uv ? "uv" : "python -m venv";
	cell__dep_run(op, op->uv ? with_uv : with_venv, INT64_MAX, false, handle_made);
}

/* ---- what is in it ---- */

static void contents_work(struct cell__dep_op *op)
{
	cell__buf_finish(&op->before);
	op->rc = cell__venv_listing(op->site, &op->before, &op->err);
	op->synced = op->rc == 0 && !op->dirty && cell__venv_is_synced(op->deps->dir, &op->before, op->configured);
}

static void handle_has_pip(struct cell__dep_op *op)
{
	if (op->how.error || op->how.signalled || op->how.status != 0) {
		cell__dep_fail_program(op, CELL_E_INSTALL, "put pip into the venv",
				       "On Debian: apt install python3-venv, or put uv into PATH.");
		return;
	}
	look_inside(op);
}

static void begin_uninstall(struct cell__dep_op *op);

static void handle_contents(struct cell__dep_op *op)
{
	size_t size;
	if (op->kind == CELL__DEP_SYNC && op->synced) {
		json_array_extend(op->done, op->configured);
		if (cell__buf_add(&op->after, op->before.data, op->before.size) < 0)
			cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		else
			answer(op);
		return;
	}
	if (op->kind == CELL__DEP_REMOVE && !cell__venv_listed(&op->before, op->spec, op->name_size, &size)) {
		cell__dep_pool(op, forget_work, handle_forgotten);
		return;
	}
	/* uv makes venvs without pip; then uv was taken away. */
	if (!op->uv && !cell__venv_listed(&op->before, "pip", 3, &size)) {
		op->program = "ensurepip";
		const char *argv[] = { op->python, "-I", "-m", "ensurepip", "--default-pip", NULL };
		cell__dep_run(op, argv, INT64_MAX, false, handle_has_pip);
		return;
	}
	if (op->kind == CELL__DEP_REMOVE) {
		begin_uninstall(op);
		return;
	}
	bool all = op->kind == CELL__DEP_SYNC || op->fresh;
	op->wanted = all ? json_copy(op->others) : json_array();
	if (op->wanted && op->kind == CELL__DEP_ADD)
		json_array_append_new(op->wanted, json_string(op->spec));
	install(op);
}

static void look_inside(struct cell__dep_op *op)
{
	const char *site = cell__deps_site(op->deps);
	free(op->site);
	op->site = site ? cell__strdup(site) : NULL;
	if (!op->site)
		cell__dep_fail(op, CELL_E_INSTALL, "the venv has no site-packages");
	else
		cell__dep_pool(op, contents_work, handle_contents);
}

/* ---- install ---- */

static bool contains(json_t *array, const char *spec)
{
	for (size_t i = 0; i < json_array_size(array); i++)
		if (strcmp(text_at(array, i), spec) == 0)
			return true;
	return false;
}

/* What else is configured limits the versions that may come: a constraint has no extras. */
static int add_limits(struct cell__dep_op *op, struct cell__buf *out)
{
	int rc = 0;
	for (size_t i = 0; i < json_array_size(op->others); i++) {
		const char *spec = text_at(op->others, i);
		size_t name = cell__dep_base_size(spec);
		const char *versions = spec + name;
		if (*versions == '[')
			versions += strcspn(versions, "]") + 1;
		if (*versions && !contains(op->wanted, spec))
			rc |= cell__buf_printf(out, "%.*s%s\n", (int)name, spec, versions);
	}
	return rc;
}

static void begin_work(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf wanted = CELL_BUF_INIT, limits = CELL_BUF_INIT;
	const char *dir = op->deps->dir;
	int rc = add_limits(op, &limits);
	for (size_t i = 0; i < json_array_size(op->wanted); i++)
		rc |= cell__buf_printf(&wanted, "%s\n", text_at(op->wanted, i));
	if (rc != 0) {
		op->rc = cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
		return;
	}
	op->limited = limits.size > 0; /* an empty file makes uv complain */
	if (cell__venv_write(dir, WANTED, wanted.data, wanted.size) < 0 ||
	    (op->limited && cell__venv_write(dir, LIMITS, limits.data, limits.size) < 0) || cell__venv_set_busy(dir, true) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to the venv %s", dir);
}

/* When everything that is configured is installed, the venv can say so to the next sync. */
static void note_synced(struct cell__dep_op *op)
{
	bool whole = op->kind == CELL__DEP_SYNC ? !op->one_by_one
						: op->synced || json_array_size(op->others) == 0 ||
							  (op->fresh && !op->one_by_one);
	if (!whole)
		return;
	json_t *now = NULL;
	/* Only saves work: whatever fails here means that the next sync looks closely. */
	if (cell__deps_list(op->deps->store, &now, NULL, NULL) == 0)
		(void)cell__venv_set_synced(op->deps->dir, &op->after, now);
	json_decref(now);
}

static void record_work(struct cell__dep_op *op)
{
	cell__buf_finish(&op->after);
	if (cell__venv_set_busy(op->deps->dir, false) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to the venv %s", op->deps->dir);
	else
		op->rc = cell__venv_listing(op->site, &op->after, &op->err);
	if (op->rc < 0 || !op->installed_ok)
		return;
	if (op->kind == CELL__DEP_ADD) {
		op->rc = cell__deps_add(op->deps->store, op->spec, &op->err);
		if (op->rc < 0)
			cell_fail_wrap(&op->err, "%.60s is installed but could not be recorded", op->spec);
	}
	if (op->rc == 0)
		note_synced(op);
}

/* The next specifier of a sync that goes one by one; false when there is none. */
static bool next_alone(struct cell__dep_op *op)
{
	if (op->at >= json_array_size(op->configured))
		return false;
	json_decref(op->wanted);
	op->wanted = json_pack("[O]", json_array_get(op->configured, op->at++));
	return true;
}

static void handle_failed(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf words = CELL_BUF_INIT, doing = CELL_BUF_INIT;
	bool alone = json_array_size(op->wanted) <= 1;
	if (op->kind == CELL__DEP_ADD) {
		if (!alone) { /* what else is configured may be at fault */
			op->one_by_one = true;
			json_decref(op->wanted);
			op->wanted = json_pack("[s]", op->spec);
			install(op);
			return;
		}
		(void)cell__buf_printf(&doing, "install %s", op->spec);
		cell__dep_fail_program(op, CELL_E_INSTALL, doing.data ? doing.data : "install", NULL);
		return;
	}
	op->one_by_one = true;
	if (alone) {
		json_array_append(op->failed, json_array_get(op->wanted, 0));
		json_object_set_new(op->errors, text_at(op->wanted, 0), json_string(cell__dep_words(op, &words)));
	}
	if (alone && op->at == 0) /* it was the only one */
		op->at = json_array_size(op->configured);
	if (next_alone(op))
		install(op);
	else
		answer(op);
}

static void handle_recorded(struct cell__dep_op *op)
{
	if (!op->installed_ok) {
		handle_failed(op);
		return;
	}
	json_array_extend(op->done, op->wanted);
	if (op->kind == CELL__DEP_SYNC && op->one_by_one && next_alone(op))
		install(op);
	else
		answer(op);
}

static void handle_installed(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf doing = CELL_BUF_INIT;
	const char *first = text_at(op->wanted, 0);
	/* Stopped in the middle: the venv stays marked, and the next operation repairs it. */
	if (op->how.error || op->how.signalled || op->how.timed_out) {
		size_t n = json_array_size(op->wanted);
		(void)cell__buf_printf(&doing, "install %s%s", op->kind == CELL__DEP_ADD ? op->spec : first,
				       n > 1 ? " and what else is configured" : "");
		cell__dep_fail_program(op, CELL_E_INSTALL, doing.data ? doing.data : "install", NULL);
		return;
	}
	op->installed_ok = op->how.status == 0;
	cell__dep_pool(op, record_work, handle_recorded);
}

static void run_installer(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	CELL_AUTO_BUF struct cell__buf wanted = CELL_BUF_INIT, limits = CELL_BUF_INIT;
	if (cell__buf_printf(&wanted, "%s/" WANTED, deps->dir) < 0 ||
	    cell__buf_printf(&limits, "%s/" LIMITS, deps->dir) < 0) {
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		return;
	}
	const char *argv[24];
	size_t n = 0;
	const char *const with_uv[] = { op->uv, "pip", "install", "--no-progress", "--python", op->python };
	const char *const with_pip[] = { op->python, "-I", "-m", "pip", "install", "--disable-pip-version-check",
					 "--no-input", "--progress-bar", "off" };
	size_t head = op->uv ? sizeof with_uv / sizeof *with_uv : sizeof with_pip / sizeof *with_pip;
	for (; n < head; n++)
		argv[n] = op->uv ? with_uv[n] : with_pip[n];
	if (deps->wheel_dir && !deps->has_index)
		argv[n++] = "--no-index";
	if (deps->wheel_dir) {
		argv[n++] = "--find-links";
		argv[n++] = deps->wheel_dir;
	}
	/* A wheel is unpacked; a source distribution would run its own code here, outside the sandbox. */
	if (op->wheels_only) {
		argv[n++] = "--only-binary";
		argv[n++] = ":all:";
	}
	if (op->limited) {
		argv[n++] = "-c";
		argv[n++] = limits.data;
	}
	/* Many may be more than a command line of the spawner's holds. */
	if (json_array_size(op->wanted) > 1)
		argv[n++] = "-r";
	argv[n++] = json_array_size(op->wanted) > 1 ? wanted.data : text_at(op->wanted, 0);
	argv[n] = NULL;
	op->program = op->uv ? "uv" : "pip";
	cell__dep_run(op, argv, INT64_MAX, false, handle_installed);
}

static void install(struct cell__dep_op *op)
{
	if (json_array_size(op->wanted) == 0)
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
	else
		cell__dep_pool(op, begin_work, run_installer);
}

/* ---- uninstall ---- */

static void mark_work(struct cell__dep_op *op)
{
	if (cell__venv_set_busy(op->deps->dir, true) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to the venv %s", op->deps->dir);
}

static void unmark_work(struct cell__dep_op *op)
{
	size_t size;
	cell__buf_finish(&op->after);
	if (cell__venv_set_busy(op->deps->dir, false) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to the venv %s", op->deps->dir);
	else
		op->rc = cell__venv_listing(op->site, &op->after, &op->err);
	op->installed_ok = op->rc == 0 && op->how.status == 0 &&
			   !cell__venv_listed(&op->after, op->spec, op->name_size, &size);
	if (op->installed_ok)
		forget_work(op);
}

static void fail_uninstall(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf doing = CELL_BUF_INIT;
	(void)cell__buf_printf(&doing, "uninstall %.*s", (int)op->name_size, op->spec);
	cell__dep_fail_program(op, CELL_E_INSTALL, doing.data ? doing.data : "uninstall", NULL);
}

static void handle_unmarked(struct cell__dep_op *op)
{
	if (op->installed_ok)
		handle_forgotten(op);
	else
		fail_uninstall(op);
}

static void handle_uninstalled(struct cell__dep_op *op)
{
	if (op->how.error || op->how.signalled || op->how.timed_out)
		fail_uninstall(op);
	else
		cell__dep_pool(op, unmark_work, handle_unmarked);
}

static void run_uninstaller(struct cell__dep_op *op)
{
	char name[CELL__STORE_DEP_BYTES + 1];
	snprintf(name, sizeof name, "%.*s", (int)op->name_size, op->spec);
	const char *with_uv[] = { op->uv, "pip", "uninstall", "--python", op->python, name, NULL };
	const char *with_pip[] = { op->python, "-I", "-m", "pip", "uninstall", "--disable-pip-version-check",
				   "--no-input", "-y", name, NULL };
	op->program = op->uv ? "uv" : "pip";
	cell__dep_run(op, op->uv ? with_uv : with_pip, INT64_MAX, false, handle_uninstalled);
}

static void begin_uninstall(struct cell__dep_op *op)
{
	cell__dep_pool(op, mark_work, run_uninstaller);
}
