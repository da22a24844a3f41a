"""Nothing a session started outlives it: not after reset, close, death of a part, or kill -9 of the host."""
import os
import re
import signal

import pytest

import support

# Ways to start a process that would like to stay.  %(mark)s is an argument to know it by.
WAYS = {
    "child": "import subprocess\np = subprocess.Popen(['sleep', '%(mark)s'])",
    "new session": "import subprocess\np = subprocess.Popen(['sleep', '%(mark)s'], start_new_session=True)",
    "shell in the background": "import os\nr = os.system('sleep %(mark)s &')",
    "nohup": "import os\nr = os.system('nohup setsid sleep %(mark)s >/dev/null 2>&1 &')",
    "double fork": (
        "import os\npid = os.fork()\nif pid == 0:\n    os.setsid()\n    if os.fork():\n        os._exit(0)\n"
        "    for fd in range(3): os.close(fd)\n    os.execvp('sleep', ['sleep', '%(mark)s'])\nn = os.waitpid(pid, 0)"),
    "ignores signals": (
        "import subprocess\np = subprocess.Popen(['sh', '-c', \"trap '' TERM HUP INT; sleep %(mark)s; sleep %(mark)s\"],"
        " start_new_session=True)"),
    "tree": "import subprocess\np = subprocess.Popen(['sh', '-c', 'sleep %(mark)s & sh -c \"sleep %(mark)s & wait\" & wait'])",
}
number = [0]


def start(driver, way):
    """Starts one; returns its mark once it is seen running."""
    number[0] += 1
    mark = "9%05d%04d" % (os.getpid() % 100000, number[0])
    result = driver.run(WAYS[way] % {"mark": mark})
    assert result["error"] is None, result
    # Not the shell that has it in its command line, but sleep itself.
    support.wait_until(lambda: any(re.match(r"\S*sleep %s$" % mark, p.cmdline)
                                   for p in support.with_argument(mark)),
                       "%s has started" % way)
    return mark


@pytest.fixture(scope="module")
def host():
    driver = support.Driver(cwd="/")
    driver.locate()
    support.shared_drivers.append(driver)
    yield driver
    driver.close()
    support.shared_drivers.remove(driver)


@pytest.mark.parametrize("way", WAYS)
def test_gone_after_reset(host, way):
    mark = start(host, way)
    assert support.with_argument(mark)
    host.reset()
    assert support.with_argument(mark) == []
    assert host.value("1") == 1


@pytest.mark.parametrize("way", WAYS)
def test_gone_after_the_kernel_died(host, way):
    mark = start(host, way)
    result = host.run("import os\nos.kill(os.getpid(), 9)")
    assert result["error"]["code"] == "kernel_died"
    support.wait_until(lambda: not support.with_argument(mark), "what the dead kernel left is gone", 10)


def test_gone_after_close(drive):
    driver = drive()
    marks = [start(driver, way) for way in WAYS]
    driver.close()
    for mark in marks:
        assert support.with_argument(mark) == []


def test_children_live_from_cell_to_cell(host):
    """They are the session's until it ends; and their exit status is the code's to collect."""
    host.reset()
    assert host.run("import subprocess\np = subprocess.Popen(['sh', '-c', 'read x; exit 5'], stdin=subprocess.PIPE)")["error"] is None
    assert host.value("p.poll() is None") is True
    assert host.value("p.communicate(b'\\n')\np.returncode") == 5


def test_orphans_of_one_cell_do_not_confuse_waits(host):
    host.reset()
    host.run("import os\nr = os.system('(sleep 0 &) ; (sleep 0 &)')")
    assert host.value("import subprocess\nsubprocess.run(['sh', '-c', 'exit 6']).returncode") == 6


def test_one_sessions_reset_spares_another(drive):
    first, second = drive(), drive()
    mark = start(second, "new session")
    start(first, "new session")
    first.reset()
    assert support.with_argument(mark)
    assert second.value("p.poll() is None") is True


# ---- zygote ------------------------------------------------------------------------------------------------


def test_a_killed_zygote_is_repaired_and_sessions_survive(drive):
    driver = drive()
    kernel = driver.locate()
    driver.run("x = 7")
    zygote = driver.zygote
    os.kill(zygote, signal.SIGKILL)
    support.wait_until(lambda: not support.alive(zygote), "the zygote is dead")
    assert driver.value("x") == 7
    assert driver.kernel_pid() == kernel
    assert driver.run("while True: pass", timeout=0.3)["error"]["code"] == "timeout"
    assert driver.value("x") == 7
    driver.reset()
    assert driver.run("x")["error"]["type"] == "NameError"
    driver.locate()
    assert driver.zygote != zygote
    driver.run("import os\nos._exit(1)")
    assert driver.value("2") == 2


def test_the_kernel_of_a_killed_zygote_can_still_die_well(drive):
    driver = drive()
    driver.locate()
    os.kill(driver.zygote, signal.SIGKILL)
    support.wait_until(lambda: not support.alive(driver.zygote), "the zygote is dead")
    result = driver.run("import os\nos._exit(6)")
    assert (result["error"]["code"], result["state"]) == ("kernel_died", "lost")
    assert driver.value("1") == 1


def test_zygote_killed_with_a_pool(drive):
    driver = drive(pool=2)
    kernel = driver.kernel_pid()
    zygote = support.read_process(kernel).ppid
    driver.run("x = 7")
    os.kill(zygote, signal.SIGKILL)
    support.wait_until(lambda: not support.alive(zygote), "the zygote is dead")
    assert driver.value("x") == 7
    for n in range(4):
        driver.reset()
        assert driver.value("%d + 1" % n) == n + 1


def test_zygote_killed_in_a_cell(drive, tmp_path):
    """Code can kill its own parent; that is no way to harm anyone but itself."""
    driver = drive()
    driver.run("x = 3")
    driver.run("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)")
    driver.reset()
    assert driver.value("4") == 4


def test_stopped_zygote_does_not_hang_the_host_forever(drive):
    driver = drive()
    driver.locate()
    os.kill(driver.zygote, signal.SIGSTOP)
    assert driver.value("1 + 1") == 2
    os.kill(driver.zygote, signal.SIGCONT)
    driver.reset()
    assert driver.value("2") == 2


# ---- spawner -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["none", "child", "new session", "double fork", "ignores signals"])
def test_a_killed_spawner_ends_sessions_and_leaves_no_orphan(drive, way):
    driver = drive()
    kernel = driver.locate()
    mark = start(driver, way) if way != "none" else None
    os.kill(driver.spawner, signal.SIGKILL)
    support.wait_until(lambda: not support.alive(driver.zygote) and not support.alive(kernel),
                       "zygote and kernel are gone", 10)
    if mark:
        support.wait_until(lambda: not support.with_argument(mark), "and what the session started", 10)
    driver.start("1")
    obj = driver.answer()
    code = obj["error"]["code"] if obj.get("error") else None
    assert code in ("spawner_failed", "kernel_died"), obj
    assert len(obj["error"]["message"]) > 10


def test_spawner_killed_while_a_cell_runs(drive, tmp_path):
    driver = drive()
    kernel = driver.locate()
    up = tmp_path / "up"
    driver.start("open(%r, 'w').close()\nwhile True: pass" % str(up))
    support.wait_until(up.exists, "the cell runs")
    os.kill(driver.spawner, signal.SIGKILL)
    obj = driver.answer()
    assert obj["error"]["code"] in ("spawner_failed", "kernel_died"), obj
    if "state" in obj:
        assert obj["state"] == "lost"
    support.wait_until(lambda: not support.alive(kernel), "the kernel is gone", 10)


def test_spawner_killed_by_the_code(drive):
    """Same user, so it can: the session ends with a clear error, and nothing is left."""
    driver = drive()
    driver.locate()
    driver.start("import os, signal\nos.kill(%d, signal.SIGKILL)\nwhile True: pass" % driver.spawner)
    assert driver.answer()["error"]["code"] in ("spawner_failed", "kernel_died")


# ---- host --------------------------------------------------------------------------------------------------

IDLE = {
    "idle": "x = 1",
    "children": "\n".join(WAYS[way] for way in WAYS),
}
BUSY = {
    "busy loop": "while True: pass",
    "busy in C": "import itertools\nsum(itertools.repeat(1))",
    "blocked signals": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    "printing": "while True: print('x' * 1000)",
    "children": "%s\nwhile True: pass" % "\n".join(WAYS[way] for way in WAYS),
    "threads": "import threading, time\nfor _ in range(4): threading.Thread(target=time.sleep, args=(1000,)).start()\ntime.sleep(1000)",
}


def kill_host(driver, kernel, mark):
    zygote, spawner = driver.zygote, driver.spawner
    driver.kill()
    for pid, name in ((kernel, "kernel"), (zygote, "zygote"), (spawner, "spawner")):
        support.wait_until(lambda: not support.alive(pid), "the %s is gone" % name, 10)
    support.wait_until(lambda: not support.with_argument(mark),
                       lambda: "no child is left: %r" % support.with_argument(mark), 10)


@pytest.mark.parametrize("name", IDLE)
def test_kill_9_of_an_idle_host(drive, name):
    driver = drive()
    kernel = driver.locate()
    mark = "97%07d" % driver.pid
    assert driver.run(IDLE[name].replace("%(mark)s", mark))["error"] is None
    kill_host(driver, kernel, mark)


@pytest.mark.parametrize("name", BUSY)
def test_kill_9_of_a_busy_host(drive, name, tmp_path):
    driver = drive()
    kernel = driver.locate()
    mark = "96%07d" % driver.pid
    up = tmp_path / "up"
    code = BUSY[name].replace("%(mark)s", mark)
    driver.start("open(%r, 'w').close()\n" % str(up) + code)
    support.wait_until(up.exists, "the cell runs")
    if name == "children":
        support.wait_until(lambda: len(support.with_argument(mark)) >= len(WAYS), "the children run")
    kill_host(driver, kernel, mark)


def test_kill_9_of_a_host_that_is_starting():
    """In the middle of whatever it is doing: the harness sees to it that nothing is left."""
    for _ in range(3):
        driver = support.Driver(pool=2)
        driver.start("1")
        support.wait_until(lambda: len(support.descendants(os.getpid())) > 1, "it has started something")
        driver.kill()


def test_kill_9_of_a_host_with_a_pool(drive):
    driver = drive(pool=3)
    kernel = driver.kernel_pid()
    driver.kill()
    support.wait_until(lambda: not support.alive(kernel), "the kernel is gone", 10)


def test_a_stopped_kernel_goes_too(drive):
    driver = drive()
    kernel = driver.locate()
    os.kill(kernel, signal.SIGSTOP)
    driver.kill()
    support.wait_until(lambda: not support.alive(kernel), "the kernel is gone", 10)
