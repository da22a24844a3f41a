/*
 * Installers: their arguments, and the handling of their results.  We hold the lock, and the venv's content is known.
 *
 *     begin (pool) ──▶ installer (program) ──▶ record (pool) ──▶ answer, or the next of several
 *
 *     keep (pool) ──▶ needed by others? (program) ──no──▶ mark (pool) ──▶ uninstaller (program) ──▶ unmark (pool) ──▶ on
 *                                                  └─yes───────────────────────────────────────────────────────▲
 *
 * Confined: uv chooses versions, hashes and installs in one run (project.c), or chooses before it installs (lock.c);
 * pip chooses them itself and reports.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/hole.h"
#include "deps/operation.h"

#define WANTED CELL__DEP_WANTED
#define LIMITS CELL__DEP_LIMITS
#define KEPT ".workcell-kept.txt"

/*
 * Prints the packages in argv[3:] that no kept package needs, directly or not. Markers other than extras are assumed to hold: an extra
 * package does no harm.
 */
static const char needless_script[] = "import importlib.metadata as metadata, re, sys\n"
				      "site, kept, targets = sys.argv[1], sys.argv[2], sys.argv[3:]\n"
				      "def normal(name):\n"
				      "    return re.sub('[-_.]+', '-', name.strip()).lower()\n"
				      "def split(text):\n"
				      "    found = re.match(r'\\s*([\\w.-]+)\\s*(?:\\[([^]]*)\\])?', text)\n"
				      "    extras = (found.group(2) or '').split(',') if found else ()\n"
				      "    return normal(found.group(1)) if found else '', frozenset(map(normal, extras))\n"
				      "def name_of(dist):\n"
				      "    try:\n"
				      "        return normal(dist.metadata['Name'])\n"
				      "    except Exception:\n"
				      "        return ''\n"
				      "dists = {name_of(dist): dist for dist in metadata.distributions(path=[site])}\n"
				      "with open(kept, encoding='utf-8') as file:\n"
				      "    todo = [split(line) for line in file]\n"
				      "seen = set()\n"
				      "while todo:\n"
				      "    each = todo.pop()\n"
				      "    if each in seen or each[0] not in dists:\n"
				      "        continue\n"
				      "    seen.add(each)\n"
				      "    for text in dists[each[0]].requires or ():\n"
				      "        extras = set(map(normal, re.findall(r'extra *== *\\W([\\w.-]+)', text)))\n"
				      "        if not extras or extras & each[1]:\n"
				      "            todo.append(split(text))\n"
				      "needed = {name for name, _ in seen}\n"
				      "print(''.join(name + '\\n' for name in targets if name not in needed), end='')\n";

/* ---- install ---- */

static bool contains(json_t *array, const char *spec)
{
	for (size_t i = 0; i < json_array_size(array); i++)
		if (strcmp(cell__dep_text(array, i), spec) == 0)
			return true;
	return false;
}

/* The other configured specifiers limit the possible versions: a constraint has no extras. */
static int add_limits(struct cell__dep_op *op, struct cell__buf *out)
{
	int rc = 0;
	for (size_t i = 0; i < json_array_size(op->others); i++) {
		const char *spec = cell__dep_text(op->others, i);
		size_t name = cell__dep_base_size(spec);
		const char *versions = spec + name;
		if (*versions == '[')
			versions += strcspn(versions, "]") + 1;
		if (*versions && !contains(op->wanted, spec))
			rc |= cell__buf_printf(out, "%.*s%s\n", (int)name, spec, versions);
	}
	return rc;
}

/* Before uv works on a venv that kernels can see into. */
static int move_lock(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf file = CELL_BUF_INIT;
	if (!op->deps->confined || !op->uv || is_hole("deps-lock"))
		return 0;
	return cell__buf_printf(&file, "%s/cache/venv.lock", op->deps->project) < 0 ? -1 : cell__venv_move_lock(op->deps->dir, file.data);
}

static void begin_work(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf wanted = CELL_BUF_INIT, limits = CELL_BUF_INIT;
	const char *notes = op->deps->notes;
	int rc = add_limits(op, &limits);
	for (size_t i = 0; i < json_array_size(op->wanted); i++)
		rc |= cell__buf_printf(&wanted, "%s\n", cell__dep_text(op->wanted, i));
	if (rc != 0) {
		op->rc = cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
		return;
	}
	op->limited = limits.size > 0 && !op->locking; /* an empty file makes uv complain */
	json_decref(cell__take_ptr(op->locked));
	if (op->locking)
		rc = cell__dep_write_lock(op->book, NULL, notes, WANTED);
	else
		rc = cell__venv_write(notes, WANTED, wanted.data, wanted.size);
	if (rc == 0)
		rc = move_lock(op);
	if (rc < 0 || (op->limited && cell__venv_write(notes, LIMITS, limits.data, limits.size) < 0) ||
	    cell__venv_set_busy(notes, true) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to the venv %s", notes);
}

/* When everything that is configured is installed, the venv records that for the next sync. */
static void note_synced(struct cell__dep_op *op, json_t *now)
{
	bool whole = op->kind == CELL__DEP_SYNC ? !op->one_by_one
						: op->synced || json_array_size(op->others) == 0 || (op->fresh && !op->one_by_one);
	if (!whole)
		return;
	/* Only saves work: after a failure here the next sync checks everything. */
	(void)cell__venv_set_synced(op->deps->notes, &op->after, now);
}

/* The venv has changed, and the configuration may have too. */
static void note_configured(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	json_t *now = NULL, *problems = NULL, *book = NULL;
	op->rc = deps->confined ? cell__depbook_list(deps->store, deps->book, &now, &problems, &book, &op->err)
				: cell__deps_list(deps->store, &now, &problems, &op->err);
	if (op->rc < 0)
		return;
	if (cell__venv_set_configured(deps->notes, now) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to the venv %s", deps->notes);
	else
		note_synced(op, now);
	json_decref(now);
	json_decref(problems);
	json_decref(book);
}

/* Confined: everything new in the venv must be in the installer's record, or have been locked before. */
static int check_new(struct cell__dep_op *op)
{
	json_t *book = NULL;
	int rc = cell__depbook_load(op->deps->store, op->deps->book, &book, &op->err);
	const char *at = op->after.data ? op->after.data : "", *end;
	for (; rc == 0 && *at && (end = strchr(at, '\n')); at = end + 1) {
		const char *version = memmem(at, (size_t)(end - at), "==", 2), *before;
		size_t name = (size_t)(version - at), size, before_size;
		version += 2;
		size = (size_t)(end - version);
		before = cell__venv_listed(&op->before, at, name, &before_size);
		if (before && before_size == size && memcmp(before, version, size) == 0)
			continue;
		json_t *entry = json_object_getn(op->locked, at, name);
		entry = entry ? entry : json_object_getn(json_object_get(book, "locked"), at, name);
		const char *locked = cell__dep_text(entry, 0);
		if (!locked || !cell__dep_same_version(locked, strlen(locked), version, size))
			rc = cell_fail(&op->err, CELL_E_INSTALL, 0, "%s installed %.*s, which is not in the list of locked packages",
				       op->program, (int)(end - at < 100 ? end - at : 100), at);
	}
	json_decref(book);
	return rc;
}

/* Records the installed packages as configured, and locked. */
static int record(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	json_t *specs = op->kind == CELL__DEP_ADD ? op->specs : NULL;
	int rc = 0;
	if (deps->confined && !is_hole("deps-book")) {
		if (json_array_size(op->wanted) > 0 && !op->locked && cell__dep_read_report(op) < 0)
			return -1;
		if (json_array_size(op->wanted) > 0 && !is_hole("deps-record") && check_new(op) < 0)
			return -1;
		rc = cell__depbook_add(deps->store, deps->book, specs, op->wanted, op->locked, &op->err);
	} else if (specs) {
		rc = cell__deps_add_all(deps->store, specs, &op->err);
	}
	if (rc < 0 && op->err.code != CELL_E_INSTALL && json_array_size(specs) == 1)
		cell_fail_wrap(&op->err, "%.60s is installed but could not be recorded", cell__dep_text(specs, 0));
	else if (rc < 0 && op->err.code != CELL_E_INSTALL)
		cell_fail_wrap(&op->err, "the packages are installed but could not be recorded");
	return rc;
}

static void record_work(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	cell__buf_finish(&op->after);
	op->rc = cell__venv_listing(deps->dir, op->site, deps->confined, &op->after, &op->err);
	if (op->rc == 0 && op->installed_ok && !op->locking)
		op->rc = record(op);
	/* Confined: a venv that differs from the lock stays marked, and is made again. */
	if ((op->rc == 0 || !deps->confined) && cell__venv_set_busy(deps->notes, false) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to the venv %s", deps->notes);
	if (op->rc == 0 && op->installed_ok && !op->locking)
		note_configured(op);
}

static void settle_work(struct cell__dep_op *op)
{
	if (cell__buf_add(&op->after, op->before.data, op->before.size) < 0)
		op->rc = cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
	else
		op->rc = op->kind == CELL__DEP_ADD ? record(op) : 0;
	if (op->rc == 0)
		note_configured(op);
}

static void handle_settled(struct cell__dep_op *op)
{
	if (op->kind == CELL__DEP_ADD)
		json_array_extend(op->done, op->specs);
	cell__dep_done(op);
}

void cell__dep_settle(struct cell__dep_op *op)
{
	cell__dep_pool(op, settle_work, handle_settled);
}

/* The next specifier of a sync that installs one by one; false at the end. */
static bool next_alone(struct cell__dep_op *op)
{
	json_t *pending = op->deps->confined ? op->unresolved : op->configured;
	if (op->at >= json_array_size(pending))
		return false;
	json_decref(op->wanted);
	op->wanted = json_pack("[O]", json_array_get(pending, op->at++));
	return true;
}

/* Whether an add is to install other configured packages too. */
static bool has_others(const struct cell__dep_op *op)
{
	for (size_t i = 0; i < json_array_size(op->wanted); i++)
		if (!cell__dep_concerns(op, cell__dep_text(op->wanted, i)))
			return true;
	return false;
}

static void handle_failed(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf words = CELL_BUF_INIT, doing = CELL_BUF_INIT;
	bool alone = json_array_size(op->wanted) <= 1;
	if (op->locking) {
		cell__dep_fail_program(
			op, CELL_E_INSTALL, "install the packages that are locked for sandboxed sessions",
			"The index or wheel folder no longer has exactly the files that were installed before. Restore them, "
			"or resolve the packages again with deps.remove() and deps.add().");
		return;
	}
	if (op->kind == CELL__DEP_ADD) {
		if (has_others(op)) { /* another configured package may be the cause */
			op->one_by_one = true;
			json_decref(op->wanted);
			op->wanted = json_copy(op->specs);
			cell__dep_install(op);
			return;
		}
		cell__dep_tell_install(op, &doing);
		cell__dep_fail_program(op, CELL_E_INSTALL, doing.data ? doing.data : "install", NULL);
		return;
	}
	op->one_by_one = true;
	if (alone) {
		json_array_append(op->failed, json_array_get(op->wanted, 0));
		json_object_set_new(op->errors, cell__dep_text(op->wanted, 0), json_string(cell__dep_words(op, &words)));
	}
	if (alone && op->at == 0) /* it was the only one */
		op->at = SIZE_MAX;
	if (next_alone(op))
		cell__dep_install(op);
	else
		cell__dep_done(op);
}

static void handle_recorded(struct cell__dep_op *op)
{
	if (!op->installed_ok) {
		handle_failed(op);
		return;
	}
	if (op->locking) {
		op->locking = false;
		op->relocked = true;
		json_decref(cell__take_ptr(op->wanted));
		cell__dep_inspect(op);
		return;
	}
	json_array_extend(op->done, op->wanted);
	/* Those that were there already. */
	for (size_t i = 0; op->kind == CELL__DEP_ADD && i < json_array_size(op->specs); i++)
		if (!contains(op->done, cell__dep_text(op->specs, i)))
			json_array_append(op->done, json_array_get(op->specs, i));
	if (op->kind == CELL__DEP_SYNC && op->one_by_one && next_alone(op))
		cell__dep_install(op);
	else
		cell__dep_done(op);
}

void cell__dep_installed(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf doing = CELL_BUF_INIT;
	const char *first = cell__dep_text(op->wanted, 0);
	/* Stopped in the middle: the venv stays marked, and the next operation repairs it. */
	if (op->how.error || op->how.signalled || op->how.timed_out) {
		bool others = op->kind == CELL__DEP_ADD ? has_others(op) : json_array_size(op->wanted) > 1;
		if (op->kind == CELL__DEP_ADD)
			cell__dep_tell_install(op, &doing);
		else
			(void)cell__buf_printf(&doing, "install %s", first);
		if (others)
			(void)cell__buf_add_str(&doing, " and the other configured packages");
		cell__dep_fail_program(op, CELL_E_INSTALL, doing.data ? doing.data : "install", NULL);
		return;
	}
	op->installed_ok = op->how.status == 0;
	cell__dep_pool(op, record_work, handle_recorded);
}

void cell__dep_run_installer(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	CELL_AUTO_BUF struct cell__buf wanted = CELL_BUF_INIT, limits = CELL_BUF_INIT, report = CELL_BUF_INIT;
	if (cell__buf_printf(&wanted, "%s/" WANTED, deps->notes) < 0 || cell__buf_printf(&limits, "%s/" LIMITS, deps->notes) < 0 ||
	    cell__buf_printf(&report, "%s/" CELL__DEP_REPORT, op->temp ? op->temp : "") < 0) {
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		return;
	}
	const char *argv[28];
	size_t n = 0;
	const char *const with_uv[] = { op->uv, "pip", "install", "--no-progress", "--python", op->python };
	const char *const with_pip[] = { op->python,       "-I", "-u", "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
					 "--progress-bar", "off" };
	size_t head = op->uv ? sizeof with_uv / sizeof *with_uv : sizeof with_pip / sizeof *with_pip;
	for (; n < head; n++)
		argv[n] = op->uv ? with_uv[n] : with_pip[n];
	if (deps->wheel_dir && !deps->has_index)
		argv[n++] = "--no-index";
	if (deps->wheel_dir) {
		argv[n++] = "--find-links";
		argv[n++] = deps->wheel_dir;
	}
	/* A wheel is only unpacked; a source distribution would run its own code here. */
	if (op->wheels_only) {
		argv[n++] = "--only-binary";
		argv[n++] = ":all:";
	}
	bool chosen = op->locking || op->locked;
	if (chosen) {
		if (!is_hole("deps-hashes"))
			argv[n++] = "--require-hashes";
		argv[n++] = "--no-deps";
		if (op->again && !op->locking)
			argv[n++] = "--reinstall";
	} else if (deps->confined) {
		argv[n++] = "--report";
		argv[n++] = report.data;
	}
	if (op->limited && !chosen) {
		argv[n++] = "-c";
		argv[n++] = limits.data;
	}
	/* Many may be more than a command line of the spawner's holds. */
	bool by_file = deps->confined || json_array_size(op->wanted) > 1;
	argv[n++] = by_file ? "-r" : "--";
	argv[n++] = by_file ? wanted.data : cell__dep_text(op->wanted, 0);
	argv[n] = NULL;
	op->program = op->uv ? "uv" : "pip";
	op->online = true;
	cell__dep_run(op, argv, INT64_MAX, false, cell__dep_installed);
}

static void handle_begun(struct cell__dep_op *op)
{
	if (op->deps->confined && op->uv && !op->locking)
		cell__dep_project(op);
	else
		cell__dep_run_installer(op);
}

void cell__dep_install(struct cell__dep_op *op)
{
	if (json_array_size(op->wanted) == 0)
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
	else
		cell__dep_pool(op, begin_work, handle_begun);
}

/* ---- uninstall ---- */

static void forget_work(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if (!deps->confined) {
		op->rc = cell__deps_remove(deps->store, cell__dep_spec(op), &op->removed, &op->err);
		return;
	}
	/* Other packages may need one that could not be checked: it stays locked. */
	json_t *names = json_pack("[s%]", cell__dep_spec(op), cell__dep_base_size(cell__dep_spec(op)));
	op->rc = cell__depbook_drop(deps->store, deps->book, names, true, op->gone, &op->removed, &op->err);
	json_decref(names);
}

/* Confined: packages that left the host's list, or were removed, are no longer locked. */
static void prune_work(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	op->rc = cell__depbook_drop(deps->store, deps->book, op->leaving, false, false, NULL, &op->err);
	if (op->rc == 0)
		op->rc = cell__depbook_drop(deps->store, deps->book, op->stale, false, true, NULL, &op->err);
}

static void handle_forgotten(struct cell__dep_op *op)
{
	size_t size;
	const char *spec = cell__dep_spec(op);
	bool was_there = cell__venv_listed(&op->before, spec, cell__dep_base_size(spec), &size) != NULL;
	cell__dep_answer(op, json_boolean(op->removed || was_there));
}

void cell__dep_forget(struct cell__dep_op *op)
{
	cell__dep_pool(op, forget_work, handle_forgotten);
}

static void handle_pruned(struct cell__dep_op *op)
{
	op->pruned = true;
	cell__dep_inspect(op);
}

/* The packages are out of the venv, or stay because others need them. */
static void uninstalled(struct cell__dep_op *op)
{
	if (op->deps->confined && op->kind == CELL__DEP_SYNC) {
		cell__dep_pool(op, prune_work, handle_pruned);
		return;
	}
	op->gone = json_array_size(op->stale) > 0;
	json_decref(op->stale);
	op->stale = NULL;
	op->pruned = true;
	if (op->kind == CELL__DEP_REMOVE)
		cell__dep_forget(op);
	else
		cell__dep_inspect(op);
}

static void fail_uninstall(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf doing = CELL_BUF_INIT;
	(void)cell__buf_printf(&doing, "uninstall %s", cell__dep_text(op->stale, 0));
	cell__dep_fail_program(op, CELL_E_INSTALL, doing.data ? doing.data : "uninstall", NULL);
}

static void unmark_work(struct cell__dep_op *op)
{
	cell__buf_finish(&op->after);
	struct cell__deps *deps = op->deps;
	if (cell__venv_set_busy(deps->notes, false) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to the venv %s", deps->notes);
	else
		op->rc = cell__venv_listing(deps->dir, op->site, deps->confined, &op->after, &op->err);
	op->installed_ok = op->how.status == 0;
	for (size_t i = 0; i < json_array_size(op->stale) && op->installed_ok; i++) {
		size_t size;
		const char *name = cell__dep_text(op->stale, i);
		op->installed_ok = !cell__venv_listed(&op->after, name, strlen(name), &size);
	}
}

static void handle_unmarked(struct cell__dep_op *op)
{
	if (op->installed_ok)
		uninstalled(op);
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
	const char *const with_uv[] = { op->uv, "pip", "uninstall", "--python", op->python, "--" };
	const char *const with_pip[] = { op->python,   "-I", "-u", "-m", "pip", "uninstall", "--disable-pip-version-check",
					 "--no-input", "-y", "--" };
	size_t head = op->uv ? sizeof with_uv / sizeof *with_uv : sizeof with_pip / sizeof *with_pip;
	size_t n = json_array_size(op->stale);
	CELL_AUTO_FREE const char **argv = cell__alloc(head + n + 1, sizeof *argv);
	if (!argv) {
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		return;
	}
	memcpy(argv, op->uv ? with_uv : with_pip, head * sizeof *argv);
	for (size_t i = 0; i < n; i++)
		argv[head + i] = cell__dep_text(op->stale, i);
	op->program = op->uv ? "uv" : "pip";
	cell__dep_run(op, argv, INT64_MAX, false, handle_uninstalled);
}

static void mark_work(struct cell__dep_op *op)
{
	if (move_lock(op) < 0 || cell__venv_set_busy(op->deps->notes, true) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to the venv %s", op->deps->notes);
}

static void handle_needless(struct cell__dep_op *op)
{
	if (op->how.error || op->how.signalled || op->how.status != 0) {
		cell__dep_fail_program(op, CELL_E_INSTALL, "find out which packages need the package", NULL);
		return;
	}
	/* Only packages from the question: the venv's own interpreter gives the answer. */
	json_t *needless = json_array();
	const char *at = op->captured.data ? op->captured.data : "";
	for (size_t size; (size = strcspn(at, "\n")) > 0 && at[size] == '\n'; at += size + 1)
		for (size_t i = 0; i < json_array_size(op->stale); i++)
			if (strlen(cell__dep_text(op->stale, i)) == size && memcmp(cell__dep_text(op->stale, i), at, size) == 0) {
				json_array_append(needless, json_array_get(op->stale, i));
				break;
			}
	json_decref(op->stale);
	op->stale = needless;
	if (json_array_size(needless) == 0)
		uninstalled(op);
	else
		cell__dep_pool(op, mark_work, run_uninstaller);
}

static void ask_needless(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf kept = CELL_BUF_INIT;
	size_t n = json_array_size(op->stale);
	CELL_AUTO_FREE const char **argv = cell__alloc(n + 8, sizeof *argv);
	if (!argv || cell__buf_printf(&kept, "%s/" KEPT, op->deps->notes) < 0) {
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		return;
	}
	const char *const head[] = { op->python, "-I", "-S", "-c", needless_script, op->site, kept.data };
	memcpy(argv, head, sizeof head);
	for (size_t i = 0; i < n; i++)
		argv[sizeof head / sizeof *head + i] = cell__dep_text(op->stale, i);
	op->program = "the venv's python";
	cell__dep_run(op, argv, INT64_MAX, true, handle_needless);
}

static void keep_work(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf kept = CELL_BUF_INIT;
	int rc = cell__buf_add(&kept, "", 0);
	for (size_t i = 0; i < json_array_size(op->others); i++)
		rc |= cell__buf_printf(&kept, "%s\n", cell__dep_text(op->others, i));
	if (rc != 0)
		op->rc = cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
	else if (cell__venv_write(op->deps->notes, KEPT, kept.data, kept.size) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to the venv %s", op->deps->notes);
}

void cell__dep_uninstall(struct cell__dep_op *op)
{
	json_decref(op->leaving);
	op->leaving = json_copy(op->stale);
	if (json_array_size(op->others) > 0)
		cell__dep_pool(op, keep_work, ask_needless);
	else
		cell__dep_pool(op, mark_work, run_uninstaller);
}
