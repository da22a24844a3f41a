"""The C programs that a reader copies: their exit status says whether the cells succeeded."""
import os
import re
import subprocess

import pytest

import support

INCLUDE = os.path.join(support.ROOT, "include")
# Where the code of the program's first cell is, and what it becomes: (code, exit status, in what it prints).
CODES = [("6 * 7", 0, "42"), ("x = 1", 0, ""), ("1 / 0", 1, "ZeroDivisionError"), ("import os; os._exit(3)", 1, "")]
PROGRAMS = {
    "README.md": ("first.c", r'"sum\(n \* n for n in range\(10\)\)"'),
    "examples/hello.c": (None, r'"words = \[.*?\]"'),
    "docs/tasks/embed-in-c.md": ("agent.c", r'"total = tools.add\(a=20, b=22\).*?"'),
}


def source(page):
    name, code = PROGRAMS[page]
    with open(os.path.join(support.ROOT, page), encoding="utf-8") as file:
        text = file.read()
    if name:
        text = re.search(r"^<!-- file: %s -->\n```c\n(.*?)^```" % re.escape(name), text, re.M | re.S)[1]
    assert len(re.findall(code, text)) == 1
    return text, code


def run(program, text, env):
    build = os.path.dirname(support.BIN)
    with open(program + ".c", "w", encoding="utf-8") as file:
        file.write(text)
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", program + ".c", "-I", INCLUDE, "-L", build, "-lworkcell", "-Wl,-rpath," + build, "-o", program],
                   check=True)
    process = support.popen([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True)
    return process.communicate(timeout=support.DEADLINE)[0], process.returncode


if not support.is_asan():  # a program that is built without sanitizers cannot load a library that has them
    @pytest.mark.parametrize("code, status, words", CODES)
    def test_the_first_program(code, status, words, tmp_path):
        text, pattern = source("README.md")
        out, returned = run(str(tmp_path / "program"), re.sub(pattern, lambda _: '"%s"' % code, text), support.host_environment())
        assert returned == status and words in out, out

    @pytest.mark.parametrize("page", ["examples/hello.c", "docs/tasks/embed-in-c.md"])
    def test_a_cell_that_fails_is_seen_in_the_exit_status(page, tmp_path):
        text, pattern = source(page)
        out, returned = run(str(tmp_path / "program"), re.sub(pattern, lambda _: '"1 / 0"', text), support.host_environment())
        assert returned == 1 and ("ZeroDivisionError" in out or "error: exception" in out), out

    @pytest.mark.parametrize("page", sorted(PROGRAMS))
    def test_an_engine_that_cannot_start_is_seen_in_the_exit_status(page, tmp_path):
        """No spawner beside the library: a failure of Workcell, which the program reports."""
        text = source(page)[0].replace("cell_engine_create(NULL, ", "cell_engine_create(&nowhere, ")
        text = text.replace("int main(", "static const struct cell_engine_options nowhere = { .size = sizeof nowhere, .lib_dir = \"/nonexistent\" };\n\nint main(")
        out, returned = run(str(tmp_path / "program"), text, support.host_environment())
        assert returned == 1 and "not_found: /nonexistent does not contain workcell-spawner" in out, out

    def test_a_server_without_a_space_refuses_sessions(tmp_path):
        text = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <workcell.h>
static struct cell_server *server;
static char url[200];
static int status = 1;
static void *ask(void *arg)
{
	struct cell_client_options options = CELL_CLIENT_OPTIONS_INIT;
	struct cell_client *client = NULL;
	struct cell_error err = { 0 };
	(void)arg;
	options.url = url;
	options.token = "a-token-of-this-test";
	if (cell_client_create(&options, &client, &err) == 0 && cell_client_ask(client, "POST", "/v1/sessions", "{}", NULL, &err) < 0)
		status = printf("%s: %s\n", cell_code_word(err.code), err.msg) < 0;
	cell_client_destroy(client);
	cell_server_drain(server);
	return NULL;
}
static void listening(void *arg, const char *at)
{
	pthread_t thread;
	(void)arg;
	snprintf(url, sizeof url, "%s", at);
	pthread_create(&thread, NULL, ask, NULL);
	pthread_detach(thread);
}
int main(void)
{
	struct cell_server_options options = CELL_SERVER_OPTIONS_INIT;
	struct cell_engine *engine = NULL;
	struct cell_error err = { 0 };
	options.listen = "127.0.0.1:0";
	options.token = "a-token-of-this-test";
	options.listening = listening;
	if (cell_engine_create(NULL, &engine, &err) < 0 || cell_server_create(engine, &options, &server, &err) < 0 ||
	    cell_server_run(server, &err) < 0)
		status = printf("%s\n", err.msg) * 0 + 2;
	cell_server_destroy(server);
	cell_engine_destroy(engine);
	return status;
}
"""
        out, returned = run(str(tmp_path / "program"), text, support.host_environment())
        assert returned == 0 and "its options need space or open_space" in out, (returned, out)
