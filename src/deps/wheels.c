/*
 * Packages for a Python that is not a process of this machine (Pyodide): wheels of pure Python, which the host resolves and
 * fetches with pip, checks and hands over as bytes.  They are neither run nor unpacked here.
 *
 *     plan (pool) ──▶ pip download (program) ──▶ keep (pool) ──▶ answer
 *          └──nothing is wanted────────────────────▲
 *
 * They are kept in <cache>/wheels/<key of the store>/ beside a manifest with their hashes, for later sessions.  Every
 * operation makes the folder again, under another name, and replaces the old one when it is complete.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "executors/deno/deno.h"
#include "deps/operation.h"
#include "gate/redact.h"

#define WANTED "wanted.txt"
#define ADVICE                                                                                            \
	"packages for Pyodide must be pure Python wheels (-none-any.whl) for Python " CELL_PYODIDE_PYTHON \
	"; packages that need a compiled extension cannot be installed"

/* The installed pip; else the one bundled with the interpreter for making venvs. */
static const char pip_script[] =
	"import glob, os, runpy, sys\n"
	"try:\n"
	"    import pip\n"
	"except ImportError:\n"
	"    import ensurepip\n"
	"    folders = [os.path.join(os.path.dirname(ensurepip.__file__), '_bundled'), '/usr/share/python-wheels']\n"
	"    found = [name for folder in folders for name in glob.glob(os.path.join(folder, 'pip-*.whl'))]\n"
	"    if not found:\n"
	"        sys.exit('%s has no pip, and none to make venvs with' % sys.executable)\n"
	"    sys.path.insert(0, found[0])\n"
	"runpy.run_module('pip', run_name='__main__')\n";

/* <cache>/wheels/<key>; NULL: out of memory. */
static char *wheel_folder(const struct cell__deps *deps)
{
	char key[CELL__VENV_KEY_SIZE];
	const char *slash = strrchr(deps->venvs, '/');
	cell__venv_key("pyodide", CELL_PYODIDE_VERSION, cell__store_root(deps->store), key);
	struct cell__buf path = CELL_BUF_INIT;
	if (cell__buf_printf(&path, "%.*s/wheels/%s", (int)(slash - deps->venvs), deps->venvs, key) < 0)
		return NULL;
	return cell__buf_take(&path);
}

/* ---- plan ---- */

static int read_wanted(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if ((deps->confined ? cell__depbook_list(deps->store, deps->book, &op->configured, &op->problems, &op->book, &op->err)
			    : cell__deps_list(deps->store, &op->configured, &op->problems, &op->err)) < 0)
		return -1;
	op->wanted = json_array();
	for (size_t i = 0; i < json_array_size(op->configured); i++) {
		const char *spec = cell__dep_text(op->configured, i);
		if (!cell__dep_concerns(op, spec))
			json_array_append(op->wanted, json_array_get(op->configured, i));
	}
	if (op->kind == CELL__DEP_ADD)
		json_array_extend(op->wanted, op->specs);
	return op->wanted ? 0 : cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
}

static void plan_work(struct cell__dep_op *op)
{
	CELL_AUTO_BUF struct cell__buf wanted = CELL_BUF_INIT;
	CELL_AUTO_FREE char *folder = wheel_folder(op->deps);
	op->rc = read_wanted(op);
	if (op->rc == 0 && op->deps->project && cell__deps_make_project(op->deps) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "create the folder %s", op->deps->project);
	if (op->rc < 0)
		return;
	int rc = folder ? 0 : -1;
	for (size_t i = 0; i < json_array_size(op->wanted); i++)
		rc |= cell__buf_printf(&wanted, "%s\n", cell__dep_text(op->wanted, i));
	op->made = folder ? cell__venv_sibling(folder, "new", true) : NULL;
	if (rc != 0 || !op->made)
		op->rc = cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
	else if (cell__venv_mkdir_all(op->made) < 0 || cell__venv_write(op->made, WANTED, wanted.data ? wanted.data : "", wanted.size) < 0)
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "create the folder %s", op->made);
}

/* ---- keep ---- */

static int read_whole(const char *folder, const char *name, struct cell__buf *out)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	if (cell__buf_printf(&path, "%s/%s", folder, name) < 0)
		return -1;
	return cell__file_read(AT_FDCWD, path.data, CELL_FILE_NO_LINK, CELL_WHEELS_BYTES - out->size, out, NULL);
}

static int only_wheels(const struct dirent *entry)
{
	size_t size = strlen(entry->d_name);
	return size > 4 && strcmp(entry->d_name + size - 4, ".whl") == 0;
}

/* op->captured: the bytes of all; op->done: [[name, size, hash], ...]. */
static int read_wheels(struct cell__dep_op *op)
{
	struct dirent **names = NULL;
	int n = scandir(op->made, &names, only_wheels, alphasort), rc = 0;
	cell__buf_finish(&op->captured);
	op->done = json_array();
	if (n < 0)
		return cell_fail(&op->err, CELL_E_IO, errno, "read %s", op->made);
	for (int i = 0; i < n; i++) {
		size_t before = op->captured.size;
		char hash[CELL__SHA256_SIZE] = "";
		if (rc == 0 && read_whole(op->made, names[i]->d_name, &op->captured) < 0) {
			if (op->captured.size > CELL_WHEELS_BYTES)
				rc = cell_fail(&op->err, CELL_E_LIMIT, 0,
					       "the packages take more than the %u MiB that a Pyodide session may load",
					       CELL_WHEELS_BYTES >> 20);
			else
				rc = cell_fail(&op->err, CELL_E_IO, errno, "read %s", names[i]->d_name);
		}
		size_t size = op->captured.size - before;
		if (rc == 0 && (cell__sha256_hex(op->captured.data + before, size, hash) < 0 ||
				json_array_append_new(op->done, json_pack("[s, I, s]", names[i]->d_name, (json_int_t)size, hash)) < 0))
			rc = cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
		free(names[i]);
	}
	free(names);
	return rc;
}

static int record(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if (deps->confined && op->kind == CELL__DEP_ADD)
		return cell__depbook_add(deps->store, deps->book, op->specs, NULL, NULL, &op->err);
	if (deps->confined && op->kind == CELL__DEP_REMOVE) {
		json_t *names = json_pack("[s%]", cell__dep_spec(op), cell__dep_base_size(cell__dep_spec(op)));
		int rc = cell__depbook_drop(deps->store, deps->book, names, true, false, &op->removed, &op->err);
		json_decref(names);
		return rc;
	}
	if (op->kind == CELL__DEP_ADD)
		return cell__deps_add_all(op->deps->store, op->specs, &op->err);
	if (op->kind == CELL__DEP_REMOVE)
		return cell__deps_remove(op->deps->store, cell__dep_spec(op), &op->removed, &op->err);
	return 0;
}

static void keep_work(struct cell__dep_op *op)
{
	CELL_AUTO_FREE char *folder = wheel_folder(op->deps);
	CELL_AUTO_FREE char *old = folder ? cell__venv_sibling(folder, "old", true) : NULL;
	op->rc = read_wheels(op);
	CELL_AUTO_FREE char *manifest = op->rc == 0 ? json_dumps(op->done, JSON_COMPACT) : NULL;
	if (op->rc < 0)
		return;
	if (!old || !manifest) {
		op->rc = cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
		return;
	}
	if (cell__venv_write(op->made, CELL_WHEELS_MANIFEST, manifest, strlen(manifest)) < 0) {
		op->rc = cell_fail(&op->err, CELL_E_IO, errno, "write to %s", op->made);
		return;
	}
	op->rc = record(op);
	if (op->rc < 0)
		return;
	/* Another process may do the same: the last one wins, and both results are complete. */
	bool had = rename(folder, old) == 0;
	if (rename(op->made, folder) == 0)
		free(cell__take_ptr(op->made));
	if (had)
		(void)cell__venv_remove_tree(old);
}

static void handle_kept(struct cell__dep_op *op)
{
	if (op->kind == CELL__DEP_REMOVE) {
		cell__dep_answer(op, json_boolean(op->removed));
		return;
	}
	struct cell__call *call = cell__take_ptr(op->call);
	json_t *asked = json_incref(op->kind == CELL__DEP_ADD ? op->specs : op->wanted);
	json_t *result = json_pack("{s:o, s:[], s:[], s:[], s:O}", "installed", asked, "already_present", "failed", "site", "wheels",
				   op->done);
	if (call && result) {
		call->cancel = NULL;
		call->answer(call, result, op->captured.data, op->captured.size);
	} else {
		json_decref(result);
		op->call = call;
		if (call) {
			cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
			return;
		}
	}
	cell__dep_answer(op, NULL);
}

/* ---- pip ---- */

static void handle_downloaded(struct cell__dep_op *op)
{
	if (!op->how.error && !op->how.signalled && op->how.status == 0) {
		cell__dep_pool(op, keep_work, handle_kept);
		return;
	}
	CELL_AUTO_BUF struct cell__buf doing = CELL_BUF_INIT;
	if (op->kind == CELL__DEP_ADD)
		cell__dep_tell_install(op, &doing);
	else
		(void)cell__buf_add_str(&doing, "install the configured packages");
	cell__dep_fail_program(op, CELL_E_INSTALL, doing.data ? doing.data : "install", ADVICE);
}

static void run_download(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	CELL_AUTO_BUF struct cell__buf wanted = CELL_BUF_INIT;
	if (cell__buf_printf(&wanted, "%s/" WANTED, op->made) < 0) {
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		return;
	}
	const char *argv[32] = {
		deps->confined ? deps->executable : deps->python,
		"-I",
		"-u",
		"-c",
		pip_script,
		"download",
		"--disable-pip-version-check",
		"--no-input",
		"--progress-bar",
		"off",
		"--only-binary",
		":all:",
		"--python-version",
		CELL_PYODIDE_PYTHON,
		"--implementation",
		"py",
		"--abi",
		"none",
		"--platform",
		"any",
		"--dest",
		op->made,
		"--requirement",
		wanted.data,
	};
	size_t n = 24;
	if (deps->wheel_dir && !deps->has_index)
		argv[n++] = "--no-index";
	if (deps->wheel_dir) {
		argv[n++] = "--find-links";
		argv[n++] = deps->wheel_dir;
	}
	op->program = "pip";
	op->online = true;
	cell__dep_run(op, argv, INT64_MAX, false, handle_downloaded);
}

static void handle_planned(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	if (json_array_size(op->wanted) == 0) {
		cell__dep_pool(op, keep_work, handle_kept);
		return;
	}
	if (deps->no_python.code) {
		op->err = deps->no_python;
		cell__dep_fail_err(op);
		return;
	}
	cell__dep_know_python(op, run_download);
}

void cell__dep_begin_wheels(struct cell__dep_op *op)
{
	cell__dep_pool(op, plan_work, handle_planned);
}

char *cell__deps_wheels(struct cell__deps *deps)
{
	char *folder = wheel_folder(deps);
	struct stat st;
	if (folder && stat(folder, &st) < 0) {
		free(folder);
		return NULL;
	}
	return folder;
}
