/*
 * Finds what must be known of the interpreter first: its version and, for confined programs, the paths of its files and its configured
 * package index. The host's own interpreter is asked, with input that only the host wrote.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "deps/operation.h"

/* Without site: packages in the venv get no chance to run code here. */
const char cell__dep_ask_script[] = "import sys; print('%s-%d.%d.%d' % ((sys.implementation.name,) + tuple(sys.version_info[:3])))";

/* The same, and the folders that it needs: a confined program must see these. */
static const char ask_more_script[] =
	"import json, os, sys\n"
	"print('%s-%d.%d.%d' % ((sys.implementation.name,) + tuple(sys.version_info[:3])))\n"
	"program = os.path.abspath(sys.executable)\n"
	"venv = os.path.dirname(os.path.dirname(program))\n"
	"paths = sys.path + [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix,\n"
	"                    os.path.dirname(os.path.realpath(program))]\n"
	"if os.path.exists(venv + '/pyvenv.cfg'):\n"
	"    paths.append(venv)\n" /* without site, sys.prefix does not name it */
	"else:\n"
	"    program = os.path.realpath(program)\n"
	"base = os.path.realpath(getattr(sys, '_base_executable', None) or program)\n"
	"print(json.dumps([program, base, sorted({os.path.abspath(path) for path in paths if path and os.path.exists(path)})]))\n";

bool cell__dep_take_version(struct cell__dep_op *op, char out[static CELL__VENV_VERSION_SIZE])
{
	const char *end = op->captured.size ? memchr(op->captured.data, '\n', op->captured.size) : NULL;
	size_t n = end ? (size_t)(end - op->captured.data) : op->captured.size;
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

/* After the version: ["/usr/bin/python3", "/usr/bin/python3.11", ["/usr/lib/python3.11", ...]]. */
static int take_paths(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	const char *text = memchr(op->captured.data, '\n', op->captured.size);
	json_t *answer = text ? json_loadb(text, op->captured.size - (size_t)(text - op->captured.data), 0, NULL) : NULL;
	const char *executable = json_string_value(json_array_get(answer, 0)), *base = json_string_value(json_array_get(answer, 1));
	json_t *paths = json_array_get(answer, 2);
	bool ok = executable && executable[0] == '/' && base && json_is_array(paths);
	if (ok) {
		json_decref(deps->paths);
		deps->paths = json_incref(paths);
		free(deps->executable);
		free(deps->base);
		deps->executable = cell__strdup(executable);
		deps->base = cell__strdup(base);
	}
	json_decref(answer);
	return ok && deps->executable && deps->base ? 0 : -1;
}

static void handle_hosts(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	const char *at = op->captured.data, *end = at + op->captured.size;
	if (op->how.error || op->how.signalled || op->how.status != 0) {
		cell__dep_fail_program(op, CELL_E_PYTHON, "find out which package index is configured", NULL);
		return;
	}
	deps->hosts = json_array();
	while (at < end) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));
		size_t size = (size_t)((stop ? stop : end) - at);
		if (size > 0)
			json_array_append_new(deps->hosts, json_stringn(at, size));
		at += size + 1;
	}
	op->known(op);
}

/* Confined installers reach only the index: asks for its hosts. */
static void ask_hosts(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	CELL_AUTO_BUF struct cell__buf script = CELL_BUF_INIT;
	if (!deps->confined || deps->hosts || !cell__deps_has_network(deps) || !deps->kernel_dir) {
		op->known(op);
		return;
	}
	json_t *hosts = cell__deps_env_hosts(deps);
	if (json_array_size(hosts) > 0) {
		deps->hosts = hosts;
		op->known(op);
		return;
	}
	json_decref(hosts);
	if (cell__buf_printf(&script, "%s/workcell_kernel/index_hosts.py", deps->kernel_dir) < 0) {
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		return;
	}
	op->program = deps->python;
	const char *argv[] = { deps->python, "-I", script.data, NULL };
	cell__dep_run_trusted(op, argv, CELL__DEP_ASK_MS, handle_hosts);
}

/* Only saves a question; a script may lead elsewhere tomorrow. */
static void save_work(struct cell__dep_op *op)
{
	const struct cell__deps *deps = op->deps;
	if (deps->confined && !deps->script)
		cell__venv_answer_save(deps->venvs, deps->python, deps->stamp, &op->captured);
}

static void handle_asked(struct cell__dep_op *op)
{
	char version[CELL__VENV_VERSION_SIZE] = "";
	if (!cell__dep_take_version(op, version)) {
		cell__dep_fail_program(op, CELL_E_PYTHON, "ask the interpreter for its version", NULL);
		return;
	}
	struct cell__deps *deps = op->deps;
	if (deps->confined && take_paths(op) < 0) {
		cell__dep_fail_program(op, CELL_E_PYTHON, "ask the interpreter where its files are", NULL);
		return;
	}
	/* Remembered from another time, and no longer so: the venv is another one. */
	if (strcmp(deps->version, version) != 0) {
		cell__deps_forget_place(deps);
		deps->proved = false;
		cell__deps_set_version(deps, version);
	}
	op->asked = deps->asked = true;
	cell__dep_pool(op, save_work, ask_hosts);
}

/* Whether an earlier answer is known for this version. */
static bool is_same_answer(struct cell__dep_op *op)
{
	char version[CELL__VENV_VERSION_SIZE] = "";
	op->how = (struct cell__process_exit){ .status = 0 };
	return cell__dep_take_version(op, version) && strcmp(version, op->deps->version) == 0 && take_paths(op) == 0;
}

static void ask_python(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	op->program = deps->python;
	const char *argv[] = { deps->python, "-I", "-S", "-c", deps->confined ? ask_more_script : cell__dep_ask_script, NULL };
	cell__dep_run_trusted(op, argv, CELL__DEP_ASK_MS, handle_asked);
}

static void load_work(struct cell__dep_op *op)
{
	const struct cell__deps *deps = op->deps;
	cell__buf_finish(&op->captured);
	if (cell__venv_answer_load(deps->venvs, deps->python, deps->stamp, &op->captured) < 0)
		cell__buf_finish(&op->captured);
}

static void handle_loaded(struct cell__dep_op *op)
{
	if (op->captured.size > 0 && is_same_answer(op))
		ask_hosts(op);
	else
		ask_python(op);
}

void cell__dep_know_python(struct cell__dep_op *op, cell__dep_step known)
{
	struct cell__deps *deps = op->deps;
	op->known = known;
	if (deps->version[0] && (deps->asked || !deps->script) && (!deps->confined || deps->paths))
		known(op);
	else if (deps->confined && deps->version[0] && !deps->script)
		cell__dep_pool(op, load_work, handle_loaded);
	else
		ask_python(op);
}
