"""The executor `jupyter`: ipykernel with a session in it, a kernel of another language, and kernels that misbehave."""
import json
import os
import re
import shutil
import signal
import stat

import pytest

import spaces
import support
from support import PYTHON, Driver, wait_until, workcell

HERE = os.path.dirname(os.path.abspath(__file__))


def environment(**extra):
    return support.host_environment(**extra)


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """A JUPYTER_PATH with kernelspecs of our own."""
    path = tmp_path_factory.mktemp("jupyter")
    scripted = [PYTHON, os.path.join(HERE, "scripted_kernel.py"), "{connection_file}"]
    for name, spec in {
        "scripted": {"argv": scripted, "interrupt_mode": "message", "env": {"SCRIPTED": "<${LANG}> {x} ${NOT_SET}"}},
        "mine": {"argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "language": "python",
                 "env": {"FROM_SPEC": "${LANG}!"}},
        "old": {"argv": scripted + ["4.1"]},
        "missing": {"argv": ["no-such-program-here", "{connection_file}"]},
        "broken": {"argv": "python"},
        "quits": {"argv": [PYTHON, "-c", "import sys; sys.exit('cannot do this')"]},
    }.items():
        folder = path / "kernels" / name
        folder.mkdir(parents=True)
        (folder / "kernel.json").write_text(json.dumps({"display_name": name, "language": "words", **spec}))
    return str(path)


def spawners():
    """Those of the programs that this process started: they have left the programs' own trees."""
    return {p.pid for p in support.processes().values() if p.ppid == os.getpid() and "workcell-spawner" in p.cmdline}


def shared(*flags, **options):
    before = spawners()
    driver = Driver(*flags, executor="jupyter", **options)
    support.shared_drivers.append(driver)
    try:
        driver.spawner, = wait_until(lambda: spawners() - before, "a spawner")
        yield driver
        driver.close()
    finally:
        support.shared_drivers.remove(driver)
        if driver.process.poll() is None:
            driver.kill()


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """One session of ipykernel; a test that ends its kernel leaves a fresh one."""
    base = tmp_path_factory.mktemp("base")
    spaces.probe_base(str(base))
    yield from shared("--timeout", "30", "--base", str(base), "--print-connection-file", python=PYTHON, pool=1)


@pytest.fixture(scope="module")
def scripted(specs):
    yield from shared("--timeout", "30", "--kernel", "scripted", python=PYTHON, env=environment(JUPYTER_PATH=specs))


@pytest.fixture(scope="module")
def r_kernel():
    assert shutil.which("R"), "scripts/setup.sh test installs r-cran-irkernel"
    yield from shared("--timeout", "60", "--kernel", "IR", python=PYTHON)


def connection_file(driver):
    return re.findall(r"connection file: (.+)", driver.stderr_text())[-1]


# ---- ipykernel -------------------------------------------------------------------------------------------------


def test_it_is_ipykernel(python):
    assert python.value("'ipykernel' in __import__('sys').modules and type(get_ipython().kernel).__name__") == "IPythonKernel"
    result = python.run("1 + 1")
    assert result["isolation"]["executor"] == "jupyter" and result["isolation"]["level"] == "process"


def test_input_is_refused(python):
    assert python.run("input('?')")["error"]["type"] == "RuntimeError"


def test_asyncio_in_cells(python):
    assert python.value("import asyncio\nasync def f(): return 5\nasyncio.run(f())") == 5
    assert python.value("await f() + 1") == 6
    assert python.value("tick = []\nasync def g():\n    await asyncio.sleep(0)\n    tick.append(1)\n"
                        "async def start():\n    global task\n    task = asyncio.ensure_future(g())\nawait start()\n0") == 0
    # Tasks go on between cells.
    wait_until(lambda: python.value("tick"), "the task ran")


def test_interrupt_and_time(python):
    python.start("print('begun')\nimport time\ntime.sleep(60)")
    python.next_event(lambda event: "begun" in str(event))
    python.interrupt()
    result = python.answer()
    assert result["error"]["code"] == "interrupted" and result["state"] == "kept"
    assert python.run("import time\nkept = 3\ntime.sleep(60)", timeout=0.2)["error"]["code"] == "timeout"
    assert python.value("kept") == 3


def test_death_and_a_fresh_kernel(python):
    python.run("x = 1")
    result = python.run("import os, signal\nprint('last words', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)")
    assert result["error"]["code"] == "kernel_died" and result["state"] == "lost"
    assert result["stdout"] == "last words\n"
    # Everything is there again.
    assert python.value("['x' in dir(), callable(tools.list), callable(workflows.list), callable(artifacts.list)]") == [
        False, True, True, True]


def test_namespaces(python):
    assert python.value("artifacts.save('n', {'a': 1})\nartifacts.load('n')") == {"a": 1}
    source = "async def run(n: int) -> int:\n    return n + 1"
    assert python.value("workflows.create('plus', %r)\nworkflows.plus(n=41)" % source) == 42


def test_connection_file_and_attaching(python):
    from jupyter_client import BlockingKernelClient

    python.reset()
    path = connection_file(python)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    assert python.value("x = 41\nx") == 41
    client = BlockingKernelClient(connection_file=path)
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=support.DEADLINE)
        seen = []
        reply = client.execute_interactive("print('me', x)\nx += 1\nx", timeout=support.DEADLINE,
                                           output_hook=lambda message: seen.append((message["msg_type"], message["content"])))
        assert reply["content"]["status"] == "ok"
        assert ("stream", {"name": "stdout", "text": "me 41\n"}) in seen
        assert [content["data"]["text/plain"] for kind, content in seen if kind == "execute_result"] == ["42"]
    finally:
        client.stop_channels()
    result = python.run("print('mine')\nx")
    assert (result["value"], result["stdout"]) == (42, "mine\n")
    assert not any("me 41" in str(event) for event in python.events)
    python.reset()
    assert not os.path.exists(os.path.dirname(path))
    assert connection_file(python) != path


def test_a_wrong_key_gets_nothing(python):
    """Somebody who found the sockets but not the key."""
    from jupyter_client import BlockingKernelClient

    client = BlockingKernelClient(connection_file=connection_file(python))
    client.load_connection_file()
    client.session.key = b"another"
    client.start_channels()
    try:
        client.execute("__import__('os')._exit(9)")
        assert python.value("6 * 7") == 42
    finally:
        client.stop_channels()


# ---- another language ------------------------------------------------------------------------------------------


def test_r_output_value_error(r_kernel):
    result = r_kernel.run('cat("out\\n")\nmessage("err")\nx <- 40 + 2\nx')
    assert result["error"] is None, result
    assert result["stdout"] == "out\n" and result["stderr"].startswith("err")
    assert [shown["text/plain"] for shown in result["displays"]] == ["[1] 42"]
    result = r_kernel.run('stop("bad")')
    assert result["error"]["code"] == "exception" and "bad" in result["error"]["message"]
    assert r_kernel.run("cat(x)")["stdout"] == "42"


def test_r_plot(r_kernel):
    shown, = r_kernel.run("plot(1:3)")["displays"]
    assert shown["image/png"].startswith("iVBOR")


def test_r_interrupt_by_signal(r_kernel):
    result = r_kernel.run('Sys.sleep(60)', timeout=0.5)
    assert result["error"]["code"] == "timeout"
    assert r_kernel.run("cat(1)")["stdout"] == "1"


# ---- what a kernel may and may not do --------------------------------------------------------------------------


def test_no_output_is_lost_after_the_reply(scripted):
    assert scripted.run("late")["stdout"] == "after the reply\n"
    # Much of it, and read slowly: the reply has come long before the last of it.
    assert scripted.run("late 3000")["stdout"] == "after the reply\n" * 3000


def test_values_displays_errors(scripted):
    result = scripted.run("value")
    assert (result["value"], result["repr"]) == (7, "<seven>")
    assert result["mime"]["text/html"] == "<b>7</b>"
    first, second = scripted.run("show")["displays"]
    assert first["text/plain"] == "a picture" and first["image/png"].startswith("iVBORw0K")
    assert second == {"text/plain": "changed"}
    error = scripted.run("raise")["error"]
    assert (error["type"], error["message"], error["code"]) == ("Oops", "it broke", "exception")
    assert error["traceback"] == "line 1\nOops: it broke"


def test_messages_of_others_and_twice(scripted):
    assert scripted.run("others")["stdout"] == "yours\n"
    assert scripted.run("replay")["stdout"] == "once\n"


def test_a_question_is_answered_with_nothing(scripted):
    assert scripted.run("ask")["stdout"] == "input_reply {'value': ''}\n"


def test_interrupt_by_message(scripted):
    scripted.start("wait")
    scripted.next_event(lambda event: "waiting" in str(event))
    scripted.interrupt()
    result = scripted.answer()
    assert result["error"]["code"] == "interrupted" and result["error"]["type"] == "Interrupt"


def test_environment_of_the_kernelspec(scripted):
    assert scripted.run("environment")["stdout"] == "<C.UTF-8> {x} ${NOT_SET}\n"


def test_output_past_the_protocol(scripted):
    assert scripted.run("write")["stdout"] == "past the protocol\n"


def test_output_past_the_protocol_among_messages(scripted):
    """The host reads messages until none is left: the reply may be among them before it has read the pipe."""
    for _ in range(20):
        assert scripted.run("write_among 40")["stdout"].replace("m", "") == "past the protocol\n"


def test_flood(scripted):
    result = scripted.run("flood 5000")
    assert result["stdout"].startswith("0000000\n") and result["stdout"].endswith("0004999\n")
    assert len(result["stdout"]) == 8 * 5000


@pytest.mark.parametrize("code, reason", [("missign", "signature"), ("garbage", "delimiter"), ("many", "parts")])
def test_broken_messages_end_the_kernel(scripted, code, reason):
    result = scripted.run(code)
    assert result["error"]["code"] == "kernel_died" and result["state"] == "lost"
    assert reason in result["error"]["message"]
    assert "FORGED" not in result["stdout"]
    assert scripted.run("late")["stdout"] == "after the reply\n"


def test_nonsense_is_left_out(scripted):
    assert scripted.run("nonsense")["state"] == "kept"
    assert scripted.run("late")["stdout"] == "after the reply\n"


def test_exit_is_reported(scripted):
    result = scripted.run("die")
    assert result["error"]["code"] == "kernel_died" and "3" in result["error"]["message"]


# ---- kernels that do not start ---------------------------------------------------------------------------------


def run(*flags, specs=None):
    return workcell("run", "--executor", "jupyter", *flags, env=environment(JUPYTER_PATH=specs or "/nowhere"))


@pytest.mark.parametrize("name, code, words", [
    ("no-such", "not_found", "scripted"), ("../etc", "invalid", "expected letters"), ("broken", "invalid", "argv"),
    ("missing", "kernel", "no-such-program-here"), ("quits", "kernel", "cannot do this"), ("old", "protocol", "version 5"),
])
def test_kernels_that_do_not_start(specs, name, code, words):
    done = run("--python", PYTHON, "--kernel", name, "-e", "1", specs=specs)
    assert words in done.error_message, done
    assert done.error_code.startswith(code), done


def test_python_without_ipykernel():
    done = run("--python", support.bare_python(), "-e", "1")
    assert done.error_code == "executor_unavailable" and "pip install ipykernel" in done.error_message, done


@pytest.mark.parametrize("flag", [["--approve", "deny", "--approve-shell"], ["--restore-cwd"]])
def test_what_a_kernel_cannot_guard_is_refused(specs, flag):
    done = run("--python", PYTHON, "--kernel", "scripted", *flag, "-e", "late", specs=specs)
    assert done.error_code == "executor_unavailable" and "only ipykernel" in done.error_message, done


def test_commands_are_asked_for_in_ipykernel():
    done = run("--python", PYTHON, "--json", "--keep-going", "--approve", "deny", "--approve-shell", "--restore-cwd",
               "-e", "!echo no", "-e", "import os\nos.chdir('/usr')", "-e", "os.getcwd()")
    results = done.results
    assert results[0]["error"]["code"] == "rejected" and results[0]["stdout"] == "", done
    assert results[2]["value"] == os.getcwd()


def test_a_kernelspec_of_ipykernel(specs):
    """"python" in it is the interpreter that was chosen; its variables are there, and the namespaces too."""
    done = run("--python", PYTHON, "--kernel", "MINE", "--json",
               "-e", "import os, sys\n[os.environ['FROM_SPEC'], sys.executable, 'LANG' in os.environ]", specs=specs)
    assert done.result["value"] == ["C.UTF-8!", PYTHON, True], done


def test_kernel_is_for_jupyter_only():
    done = workcell("run", "--kernel", "ir", "-e", "1")
    assert done.error_code == "invalid" and done.status == support.EXIT["invalid"]


def scripted_kernels():
    return {process.pid for process in support.with_argument("scripted_kernel.py") if "jupyter-" in process.cmdline}


def test_nothing_is_left_when_the_host_is_killed(specs):
    before = scripted_kernels()
    driver = Driver("--kernel", "scripted", "--print-connection-file", python=PYTHON, executor="jupyter",
                    env=environment(JUPYTER_PATH=specs))
    driver.run("late")
    kernel, = scripted_kernels() - before
    driver.kill()
    wait_until(lambda: not support.alive(kernel), "the kernel is gone")
    shutil.rmtree(os.path.dirname(connection_file(driver)))  # a host that is killed cannot


def test_a_second_session_uses_the_one_made_ready(python):
    """With --pool a reset takes a kernel that is up already."""
    before = python.kernel_pid()
    ready = wait_until(lambda: [p.pid for p in python.family() if "ipykernel" in p.cmdline and p.pid != before], "a spare")
    python.reset()
    assert python.kernel_pid() in ready


def test_exit_handlers_run(python, tmp_path):
    mark = tmp_path / "mark"
    python.run("import atexit\natexit.register(lambda: open(%r, 'w').write('x'))" % str(mark))
    python.reset()
    assert mark.read_text() == "x"


@pytest.mark.parametrize("start", [
    "subprocess.Popen(['sleep', '%s'], start_new_session=True)",
    "subprocess.Popen(['sh', '-c', \"trap '' TERM HUP INT; sleep %s; sleep %s\"], start_new_session=True)",
    "os.system('nohup setsid sleep %s >/dev/null 2>&1 &')",
])
def test_nothing_a_cell_started_is_left(python, start):
    mark = "8%05d%04d" % (os.getpid() % 100000, len(start))
    python.run("import os, subprocess\np = " + start.replace("%s", mark))
    wait_until(lambda: support.with_argument(mark), "it has started")
    python.reset()
    assert support.with_argument(mark) == []


def test_a_killed_spawner_ends_the_session(specs):
    before, kernels = spawners(), scripted_kernels()
    driver = Driver("--kernel", "scripted", python=PYTHON, executor="jupyter", env=environment(JUPYTER_PATH=specs))
    assert driver.run("late")["error"] is None
    kernel, = scripted_kernels() - kernels
    spawner, = spawners() - before
    os.kill(spawner, signal.SIGKILL)
    wait_until(lambda: not support.alive(kernel), "the kernel is gone")
    result = driver.run("late")
    assert result["error"]["code"] in ("spawner_failed", "kernel_died", "kernel_failed"), result
    driver.kill()
