"""Adding an executor takes one folder and one line of registry.def: this test adds one to a copy of the sources, and uses it."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from support import BIN, ROOT

NAME = "echo"
#: A kernel whose cells come to their own text.
SOURCE = r'''
#include <jansson.h>
#include <string.h>

#include "executors/registry.h"

struct kernel {
	struct cell__kernel base; /* first */
	struct cell__task task;
	struct cell__executor_host *host;
	const struct cell__kernel_events *events;
	void *owner;
	char *value; /* of the cell that runs, as JSON */
	uint32_t run_id;
	bool ready, closing;
};

static struct kernel *of_task(struct cell__task *task)
{
	return (struct kernel *)((char *)task - offsetof(struct kernel, task));
}

static void handle_task(struct cell__task *task)
{
	struct kernel *kernel = of_task(task);
	if (kernel->closing) {
		struct cell__exit how = { .asked = true };
		kernel->events->exited(kernel->owner, &how);
		free(kernel->value);
		free(kernel);
	} else if (!kernel->ready) {
		kernel->ready = true;
		kernel->events->ready(kernel->owner);
	} else {
		CELL_AUTO_FREE char *value = cell__take_ptr(kernel->value);
		struct cell__kernel_answer answer = { .value_json = value, .value_size = strlen(value), .repr = value, .repr_size = strlen(value) };
		kernel->events->result(kernel->owner, kernel->run_id, &answer);
	}
}

static void probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	(void)host;
	info->available = 1;
}

static int open_kernel(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
		       void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	(void)spec;
	struct kernel *kernel = cell__alloc(1, sizeof *kernel);
	if (!kernel)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	*kernel = (struct kernel){ .base.executor = &cell__echo_executor, .task.fn = handle_task, .host = host, .events = events, .owner = owner };
	cell__loop_post(host->loop, &kernel->task);
	*ret_kernel = &kernel->base;
	return 0;
}

static void drain(struct cell__kernel *base)
{
	(void)base;
}

static int run(struct cell__kernel *base, uint32_t run_id, const char *code, size_t size, struct cell_error *err)
{
	struct kernel *kernel = (struct kernel *)base;
	json_t *text = json_stringn(code, size);
	kernel->run_id = run_id;
	kernel->value = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
	json_decref(text);
	if (!kernel->value)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	cell__loop_post(kernel->host->loop, &kernel->task);
	return 0;
}

static int reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
		 struct cell_error *err)
{
	(void)base, (void)id, (void)json, (void)json_size, (void)raw, (void)raw_size;
	return cell_fail(err, CELL_E_INVALID, 0, "nothing was asked");
}

static void interrupt(struct cell__kernel *base, uint32_t run_id)
{
	(void)base, (void)run_id;
}

static void pause_kernel(struct cell__kernel *base, bool paused)
{
	(void)base, (void)paused;
}

static void close_kernel(struct cell__kernel *base, int64_t grace_ms)
{
	(void)grace_ms;
	struct kernel *kernel = (struct kernel *)base;
	kernel->closing = true;
	cell__loop_post(kernel->host->loop, &kernel->task);
}

static int64_t pid(const struct cell__kernel *base)
{
	(void)base;
	return 0;
}

const struct cell__executor cell__echo_executor = {
	.name = "echo",
	.isolation = "none",
	.probe = probe,
	.open = open_kernel,
	.drain = drain,
	.run = run,
	.reply = reply,
	.interrupt = interrupt,
	.pause = pause_kernel,
	.close = close_kernel,
	.pid = pid,
	.receipt = "{\"executor\":\"echo\",\"level\":\"none\"}",
};
'''


def take_objects(build):
    """What the program under test was built from, and ninja's notes on it: what has the same command and the same sources is not compiled again."""
    made = os.path.dirname(BIN)
    for name in os.listdir(made):
        if name.endswith(".p"):
            shutil.copytree(os.path.join(made, name), build / name, dirs_exist_ok=True)
    for name in (".ninja_log", ".ninja_deps"):
        shutil.copy2(os.path.join(made, name), build / name)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A workcell with one executor more."""
    tree = tmp_path_factory.mktemp("tree")
    for name in os.listdir(ROOT):
        source = os.path.join(ROOT, name)
        if name.startswith(("build", ".")):
            continue
        if os.path.isdir(source):
            shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, tree / name)

    # All that is to be done:
    folder = tree / "src" / "executors" / NAME
    folder.mkdir()
    (folder / "meson.build").write_text("executors_sources += files('%s.c')\n" % NAME)
    (folder / ("%s.c" % NAME)).write_text(SOURCE)
    with open(tree / "src" / "executors" / "registry.def", "a") as file:
        file.write("CELL__EXECUTOR(%s)\n" % NAME)

    build = tree / "build"
    setup = subprocess.run(["meson", "setup", str(build), str(tree), "-Dwerror=true", "-Dconsole=disabled"], cwd=tree, capture_output=True,
                           text=True, timeout=600)
    assert setup.returncode == 0, setup.stdout[-4000:] + setup.stderr[-2000:]
    take_objects(build)
    done = subprocess.run(["ninja", "-C", str(build), "workcell", "workcell-spawner", "kernel"], cwd=tree, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    check = subprocess.run([sys.executable, str(tree / "scripts" / "check-includes.py")], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout
    return str(build / "workcell")


def test_it_is_listed(program):
    done = subprocess.run([program, "doctor", "--json"], capture_output=True, text=True, timeout=60)
    names = [executor["name"] for executor in json.loads(done.stdout)["executors"]]
    assert NAME in names, done.stdout + done.stderr


def test_it_runs_cells(program):
    done = subprocess.run([program, "run", "--json", "--executor", NAME, "-e", "one", "-e", 'two "2"'], capture_output=True, text=True,
                          timeout=60)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["value"] for result in results] == ["one", 'two "2"'], done.stderr
    assert results[0]["isolation"]["executor"] == NAME and results[0]["state"] == "kept"


def test_options_of_others_are_refused(program):
    done = subprocess.run([program, "run", "--executor", NAME, "--sandbox-policy", "untrusted", "-e", "1"], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 2 and "sandbox" in done.stderr, (done.returncode, done.stderr)
