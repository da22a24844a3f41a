/*
 * The steps of an operation.  "pool" steps touch files, "program" steps run a program.
 *
 *     prepare (pool) ──list, or nothing to sync──▶ answer
 *        │ ask the interpreter's version (program), unless it is known (python.c)
 *     lock (pool) ◀──timer, while another process has it
 *        │
 *     inspect (pool) ──no venv──▶ make it (program, or pool), adopt it (pool) ──┐
 *        │                                                                   │
 *     probe (program) ◀──────────────────────────────────────────────────────┘
 *        │  it does not run: make another
 *        │  an installer was killed in it: repair (program); confined: make another
 *     contents (pool) ── no pip and no uv: ensurepip (program) ──▶ contents
 *        │            ── a line is gone from requirements.txt: uninstall (install.c) ──▶ contents
 *        │
 *     install or uninstall (install.c)
 *
 * Confined: the venv's own python is never run to ask it; a check from outside shows that it is still the one the venv was
 * made with (cell__venv_is_sealed()).  The locked packages are installed before anything else (lock.c).
 *
 * Invariants: from lock to the end the venv is ours alone; a venv is marked busy before an installer starts, and
 * unmarked only when that ended by itself; requirements.txt changes only after the venv did.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/hole.h"
#include "deps/operation.h"

#define LOCK_PAUSE_MS 10     /* between tries, at first and */
#define LOCK_PAUSE_MAX_MS 500 /* at most */

/*
 * After an installer was killed: a package with missing files is made unknown to installers, so that the next one installs it again. pip
 * moves files out of the way under names that begin with "~".
 */
static const char repair_script[] = "import csv, os, shutil, sys\n"
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

static bool has_package(json_t *list, const struct cell__dep_op *op)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if (cell__dep_concerns(op, cell__dep_text(list, i)))
			return true;
	return false;
}

/* ---- answers ---- */

static bool is_new(const struct cell__dep_op *op, const char *spec)
{
	size_t name = cell__dep_base_size(spec), before_size = 0, after_size = 0;
	const char *before = cell__venv_listed(op->has_first ? &op->first : &op->before, spec, name, &before_size);
	const char *after = cell__venv_listed(&op->after, spec, name, &after_size);
	return !before || !after || before_size != after_size || memcmp(before, after, after_size) != 0;
}

void cell__dep_done(struct cell__dep_op *op)
{
	json_t *result = json_pack("{s:[], s:[], s:O, s:[], s:s?}", "installed", "already_present", "failed", op->failed, "site", "bin",
				   op->deps->bin);
	const char *site = op->deps->site;
	int rc = result ? 0 : -1;
	for (size_t i = 0; i < json_array_size(op->done); i++)
		rc |= json_array_append(json_object_get(result, is_new(op, cell__dep_text(op->done, i)) ? "installed" : "already_present"),
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

/* Everything is there. */
static void answer_synced(struct cell__dep_op *op)
{
	if (json_array_extend(op->done, op->configured) < 0 || cell__buf_add(&op->after, op->before.data, op->before.size) < 0)
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
	else
		cell__dep_done(op);
}

/* ---- prepare ---- */

/* Reads the configuration: again once we hold the lock, because others may have added to it while we waited. */
static int read_configured(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	json_t *configured = NULL, *problems = NULL, *book = NULL, *others = json_array();
	if (!others)
		return cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
	if ((deps->confined ? cell__depbook_list(deps->store, deps->book, &configured, &problems, &book, &op->err)
			    : cell__deps_list(deps->store, &configured, &problems, &op->err)) < 0) {
		json_decref(others);
		return -1;
	}
	op->hosts = !has_package(json_object_get(book, "packages"), op) && has_package(configured, op);
	json_decref(op->book);
	op->book = book;
	for (size_t i = 0; i < json_array_size(configured); i++)
		if (!cell__dep_concerns(op, cell__dep_text(configured, i)))
			json_array_append(others, json_array_get(configured, i));
	json_decref(op->configured);
	json_decref(op->problems);
	json_decref(op->others);
	op->configured = configured;
	op->problems = problems;
	op->others = others;
	return 0;
}

/* Without the lock: whether nothing has changed since everything configured was installed. */
static bool glance(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if (!deps->dir)
		return false;
	CELL_AUTO_FREE char *site = cell__venv_site(deps->dir, deps->version, deps->confined);
	op->synced = site && cell__venv_inspect(deps->dir, deps->confined) == CELL__VENV_PRESENT && !cell__venv_is_busy(deps->notes) &&
		     cell__venv_listing(deps->dir, site, deps->confined, &op->before, NULL) == 0 &&
		     cell__venv_is_synced(deps->notes, &op->before, op->configured);
	if (op->synced && deps->confined)
		op->synced = cell__venv_is_sealed(deps->notes, deps->dir) && cell__dep_compare_lock(op) == 0 && !op->missing &&
			     json_array_size(op->unresolved) == 0;
	return op->synced;
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
	if (op->quick && op->kind == CELL__DEP_SYNC && (deps->proved || deps->confined) && glance(op))
		return;
	op->uv = cell__venv_find_program("uv", deps->path);
	const char *slash = deps->venv_dir ? strrchr(deps->venv_dir, '/') : NULL;
	CELL_AUTO_FREE char *parent = slash && slash > deps->venv_dir ? cell__strndup(deps->venv_dir, (size_t)(slash - deps->venv_dir))
								      : NULL;
	if (cell__venv_mkdir_all(deps->venvs) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "create the cache folder %s", deps->venvs);
	else if (parent && cell__venv_mkdir_all(parent) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "create the folder %s", parent);
	else if (deps->project && cell__deps_make_project(deps) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "create the folder %s", deps->project);
}

static void handle_prepared(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if (op->kind == CELL__DEP_LIST) {
		cell__dep_answer(op, json_incref(op->configured));
		return;
	}
	if (deps->confined && op->kind == CELL__DEP_REMOVE && op->hosts) {
		cell_fail(&op->err, CELL_E_DISABLED, 0,
			  "%.60s is configured in the host's requirements.txt: code in a sandbox can only remove packages that it added",
			  cell__dep_spec(op));
		cell__dep_fail_err(op);
		return;
	}
	/* A venv may still hold packages that were configured before. */
	if (op->kind == CELL__DEP_SYNC && json_array_size(op->configured) == 0 && !deps->site) {
		cell__dep_done(op);
		return;
	}
	if (deps->no_python.code) {
		op->err = deps->no_python;
		cell__dep_fail_err(op);
		return;
	}
	if (op->quick && op->synced) {
		answer_synced(op);
		return;
	}
	cell__dep_know_python(op, want_lock);
}

void cell__dep_begin(struct cell__dep_op *op)
{
	cell__dep_pool(op, prepare_work, handle_prepared);
}

/* ---- the lock ---- */

static void inspect_work(struct cell__dep_op *op)
{
	const struct cell__deps *deps = op->deps;
	op->state = cell__venv_inspect(deps->dir, deps->confined);
	op->ours = deps->confined || cell__venv_is_ours(deps->notes);
	op->dirty = cell__venv_is_busy(deps->notes);
	if (deps->confined && op->state == CELL__VENV_PRESENT && !op->dirty)
		op->dirty = !cell__venv_is_sealed(deps->notes, deps->dir);
	op->rc = read_configured(op);
}

static void handle_inspected(struct cell__dep_op *op);

/*
 * Confined: not in a folder that kernels can see, because installers lock files in it, and every process that can read a file can hold its
 * lock.
 */
static char *make_temp(const struct cell__deps *deps)
{
	CELL_AUTO_BUF struct cell__buf beside = CELL_BUF_INIT;
	if (!deps->confined || is_hole("deps-temp"))
		return cell__venv_sibling(deps->dir, "new", true);
	if (cell__buf_printf(&beside, "%s/cache/temp", deps->project) < 0)
		return NULL;
	cell__venv_sweep(beside.data);
	return cell__venv_sibling(beside.data, "new", true);
}

/* The lock is ours. */
static void locked_work(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	cell__venv_sweep(deps->dir);
	op->temp = make_temp(deps);
	inspect_work(op);
	if (op->rc == 0 && (!op->temp || cell__venv_mkdir_all(op->temp) < 0))
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "create a folder beside %.160s", deps->dir);
}

static void lock_work(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if (op->asked)
		cell__venv_version_save(deps->venvs, deps->stamp, deps->version);
	if (deps->private_name)
		cell__venv_sweep_private(deps->confined ? deps->sandboxes : deps->venvs, deps->confined);
	op->rc = cell__venv_lock(deps->lock_file, &op->lock_fd, &op->err);
	op->busy_lock = op->rc > 0;
	if (op->rc == 0)
		locked_work(op);
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
		handle_inspected(op);
		return;
	}
	if (cell__now_us() > op->lock_until_us) {
		cell_fail(&op->err, CELL_E_INSTALL, 0, "another process has been working on the venv %.120s for %.3g s", deps->dir,
			  (double)deps->timeout_ms / 1000.0);
		cell__dep_fail_err(op);
		return;
	}
	if (op->lock_pause_ms == LOCK_PAUSE_MS)
		cell__dep_say(op, "waiting for another process that is working on this environment");
	deps->waiting = true;
	uv_update_time(cell__loop_uv(deps->loop));
	uv_timer_start(&deps->timer, handle_timer, (uint64_t)op->lock_pause_ms, 0);
	op->lock_pause_ms = op->lock_pause_ms * 2 < LOCK_PAUSE_MAX_MS ? op->lock_pause_ms * 2 : LOCK_PAUSE_MAX_MS;
}

static void want_lock(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if (!deps->dir) {
		cell__dep_fail(op, CELL_E_IO, "the folder for venvs does not exist");
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
		cell__dep_pool(op, locked_work, handle_inspected);
	else
		cell__dep_pool(op, lock_work, handle_lock_tried);
}

/* ---- is it a venv, and does it work ---- */

/* A venv that is not there or does not work has to be made, unless something is to be removed from it. */
static void need_another(struct cell__dep_op *op)
{
	if (op->kind == CELL__DEP_REMOVE)
		cell__dep_forget(op);
	else
		make(op);
}

static void handle_inspected(struct cell__dep_op *op)
{
	if (op->kind == CELL__DEP_SYNC && json_array_size(op->configured) == 0 && op->state != CELL__VENV_PRESENT) {
		cell__dep_done(op);
	} else if (op->deps->confined) {
		/* Whatever packages did to it, or an installer left half done: it is made again from the lock. */
		if (op->state == CELL__VENV_PRESENT && !op->dirty && op->deps->site)
			cell__dep_inspect(op);
		else
			need_another(op);
	} else if (op->state == CELL__VENV_PRESENT) {
		probe(op);
	} else if (op->state == CELL__VENV_ABSENT) {
		need_another(op);
	} else {
		cell_fail(&op->err, CELL_E_INVALID, 0, "%.160s is neither empty nor a venv: choose another venv_dir", op->deps->dir);
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
	cell__dep_inspect(op);
}

static void repair(struct cell__dep_op *op)
{
	const char *site = op->deps->site;
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
	bool runs = cell__dep_take_version(op, version);
	/* Neither concerns the venv. */
	if (op->how.timed_out || op->how.error == ECONNRESET) {
		cell__dep_fail_program(op, CELL_E_INSTALL, "inspect the venv", NULL);
		return;
	}
	if (runs && same_series(version, deps->version) && deps->site) {
		deps->proved = true;
		if (op->dirty)
			repair(op);
		else
			cell__dep_inspect(op);
		return;
	}
	if (op->remade) {
		cell__dep_fail_program(op, CELL_E_INSTALL, "use the venv that was just created", NULL);
		return;
	}
	if (runs && !op->ours) {
		cell_fail(&op->err, CELL_E_INVALID, 0,
			  "the venv %.100s is for %s, but the session's interpreter is %s: choose another venv_dir", deps->dir, version,
			  deps->version);
		cell__dep_fail_err(op);
		return;
	}
	need_another(op);
}

static void probe(struct cell__dep_op *op)
{
	op->program = "the venv's python";
	const char *argv[] = { op->python, "-I", "-S", "-c", cell__dep_ask_script, NULL };
	cell__dep_run(op, argv, CELL__DEP_ASK_MS, true, handle_probed);
}

/* ---- make one ---- */

static void adopt_work(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	op->rc = cell__venv_adopt(op->made, deps->dir, deps->notes, &op->err);
	if (op->rc == 0 && deps->confined &&
	    (cell__venv_set_seal(deps->notes, deps->dir) < 0 || cell__venv_set_busy(deps->notes, false) < 0))
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to %s", deps->notes);
	/* Only `workcell cache` reads it: an environment without it works as well. */
	CELL_AUTO_FREE char *shown = op->rc == 0 ? cell_storage_shown(cell__store_root(deps->store)) : NULL;
	if (shown)
		(void)cell__venv_write(deps->notes, CELL__VENV_PROJECT, shown, strlen(shown));
}

static void handle_adopted(struct cell__dep_op *op)
{
	free(cell__take_ptr(op->made));
	op->fresh = op->remade = op->ours = true;
	op->dirty = false;
	if (op->deps->confined)
		cell__dep_inspect(op);
	else
		probe(op);
}

static void make_work(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if (cell__venv_make(op->made, deps->version, deps->base, strrchr(deps->dir, '/') + 1) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "create the venv %s", op->made);
	else
		adopt_work(op);
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
			advice = "This interpreter cannot create venvs: apt install python3-venv, or put uv into PATH.";
	}
	cell__dep_fail_program(op, CELL_E_INSTALL, "create the venv", advice);
}

static void make(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	op->made = cell__venv_sibling(deps->dir, "new", true);
	if (!op->made) {
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		return;
	}
	/* The interpreter's own program puts pip into a venv; uv needs no pip in it. */
	if (deps->confined && op->uv && cell__venv_can_make(deps->version, deps->base)) {
		cell__dep_say(op, "creating an environment");
		cell__dep_pool(op, make_work, handle_adopted);
		return;
	}
	const char *name = strrchr(deps->dir, '/') + 1;
	/* A script that leads to an interpreter (pyenv's) needs files that confined programs are not shown. */
	const char *interpreter = deps->confined ? deps->executable : deps->python;
	const char *with_uv[] = { op->uv, "venv", "--no-project", "--prompt", name, "--python", interpreter, op->made, NULL };
	const char *with_venv[] = { interpreter, "-I", "-m", "venv", "--prompt", name, op->made, NULL };
	op->program = op->uv ? "uv" : "python -m venv";
	cell__dep_say(op, op->uv ? "creating an environment with uv" : "creating an environment with python -m venv");
	cell__dep_run(op, op->uv ? with_uv : with_venv, INT64_MAX, false, handle_made);
}

/* ---- its content ---- */

static bool is_configured(const struct cell__dep_op *op, const char *name, size_t size)
{
	for (size_t i = 0; i < json_array_size(op->configured); i++) {
		const char *spec = cell__dep_text(op->configured, i);
		if (cell__dep_base_size(spec) == size && memcmp(spec, name, size) == 0)
			return true;
	}
	return false;
}

/* The packages that must leave the venv: the package itself; for a sync, those that were configured before and are no longer. */
static int find_stale(struct cell__dep_op *op)
{
	json_t *once = NULL;
	op->stale = json_array();
	if (op->kind == CELL__DEP_REMOVE)
		return json_array_append_new(op->stale, json_stringn(cell__dep_spec(op), cell__dep_base_size(cell__dep_spec(op))));
	if (op->kind != CELL__DEP_SYNC || op->pruned)
		return op->stale ? 0 : -1;
	int rc = 0;
	if (op->deps->confined)
		once = json_incref(json_object_get(op->book, "resolved"));
	else
		rc = cell__venv_configured(op->deps->dir, &once);
	for (size_t i = 0; i < json_array_size(once); i++) {
		const char *spec = cell__dep_text(once, i);
		size_t name = cell__dep_base_size(spec), size;
		if (!is_configured(op, spec, name) && cell__venv_listed(&op->before, spec, name, &size))
			rc |= json_array_append_new(op->stale, json_stringn(spec, name));
	}
	json_decref(once);
	return rc;
}

static bool contains(json_t *array, const char *spec)
{
	for (size_t i = 0; i < json_array_size(array); i++)
		if (strcmp(cell__dep_text(array, i), spec) == 0)
			return true;
	return false;
}

/* Is exactly this specifier locked, and installed? */
static bool is_resolved(const struct cell__dep_op *op, const char *spec)
{
	size_t size;
	return contains(json_object_get(op->book, "resolved"), spec) &&
	       cell__venv_listed(&op->before, spec, cell__dep_base_size(spec), &size);
}

static void contents_work(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	cell__buf_finish(&op->before);
	op->rc = cell__venv_listing(deps->dir, op->site, deps->confined, &op->before, &op->err);
	/* The book changes with the installed and uninstalled packages. */
	if (op->rc == 0 && deps->confined && (op->relocked || op->pruned))
		op->rc = read_configured(op);
	if (op->rc == 0 && (find_stale(op) < 0 || (deps->confined && cell__dep_compare_lock(op) < 0)))
		op->rc = cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
	op->synced = op->rc == 0 && !op->dirty && cell__venv_is_synced(deps->notes, &op->before, op->configured);
	if (deps->confined)
		op->synced = op->synced && !op->missing && json_array_size(op->unresolved) == 0 && json_array_size(op->stale) == 0;
}

static void handle_has_pip(struct cell__dep_op *op)
{
	if (op->how.error || op->how.signalled || op->how.status != 0) {
		cell__dep_fail_program(op, CELL_E_INSTALL, "put pip into the venv",
				       "On Debian: apt install python3-venv, or put uv into PATH.");
		return;
	}
	cell__dep_inspect(op);
}

/* First the missing locked packages, then those that have left, then the new ones. */
static void go_on_locked(struct cell__dep_op *op)
{
	if (op->missing && op->kind != CELL__DEP_REMOVE) {
		op->locking = true;
		op->wanted = json_copy(op->configured);
		cell__dep_install(op);
		return;
	}
	if (json_array_size(op->stale) > 0) {
		cell__dep_uninstall(op);
		return;
	}
	json_decref(op->wanted);
	op->wanted = json_array();
	for (size_t i = 0; op->wanted && (op->kind == CELL__DEP_SYNC || op->fresh) && i < json_array_size(op->unresolved); i++)
		if (!cell__dep_concerns(op, cell__dep_text(op->unresolved, i)))
			json_array_append(op->wanted, json_array_get(op->unresolved, i));
	for (size_t i = 0; op->kind == CELL__DEP_ADD && i < json_array_size(op->specs); i++)
		if (!is_resolved(op, cell__dep_text(op->specs, i)))
			json_array_append(op->wanted, json_array_get(op->specs, i));
	for (size_t i = 0; op->kind == CELL__DEP_SYNC && i < json_array_size(op->configured); i++)
		if (!contains(op->unresolved, cell__dep_text(op->configured, i)))
			json_array_append(op->done, json_array_get(op->configured, i));
	if (!op->wanted)
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
	else if (json_array_size(op->wanted) == 0)
		cell__dep_settle(op);
	else
		cell__dep_install(op);
}

static void handle_contents(struct cell__dep_op *op)
{
	size_t size;
	if (op->kind == CELL__DEP_SYNC && op->synced) {
		answer_synced(op);
		return;
	}
	if (op->deps->confined && !op->has_first) {
		op->has_first = true;
		(void)cell__buf_add(&op->first, op->before.data, op->before.size);
	}
	if (op->kind == CELL__DEP_REMOVE &&
	    !cell__venv_listed(&op->before, cell__dep_spec(op), cell__dep_base_size(cell__dep_spec(op)), &size)) {
		cell__dep_forget(op);
		return;
	}
	/* Nothing is configured any more, or never was. */
	if (op->kind == CELL__DEP_SYNC && json_array_size(op->configured) == 0 && json_array_size(op->stale) == 0) {
		cell__dep_done(op);
		return;
	}
	/* uv makes venvs without pip; then uv was taken away. */
	if (!op->uv && !cell__venv_listed(&op->before, "pip", 3, &size)) {
		op->program = "ensurepip";
		const char *argv[] = { op->python, "-I", "-m", "ensurepip", "--default-pip", NULL };
		cell__dep_run(op, argv, INT64_MAX, false, handle_has_pip);
		return;
	}
	if (op->deps->confined) {
		go_on_locked(op);
		return;
	}
	if (json_array_size(op->stale) > 0) {
		cell__dep_uninstall(op);
		return;
	}
	bool all = op->kind == CELL__DEP_SYNC || op->fresh;
	op->wanted = all ? json_copy(op->others) : json_array();
	if (op->wanted && op->kind == CELL__DEP_ADD)
		json_array_extend(op->wanted, op->specs);
	cell__dep_install(op);
}

void cell__dep_inspect(struct cell__dep_op *op)
{
	const char *site = op->deps->site;
	json_decref(cell__take_ptr(op->stale));
	free(op->site);
	op->site = site ? cell__strdup(site) : NULL;
	if (!op->site)
		cell__dep_fail(op, CELL_E_INSTALL, "the venv has no site-packages");
	else
		cell__dep_pool(op, contents_work, handle_contents);
}
