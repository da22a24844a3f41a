"""Kernels that die, by their own code or for want of memory: the run says why, and the next one works."""
import os
import re

import pytest

import support

DEATHS = {
    "segfault": ("import ctypes\nctypes.string_at(0)", r"SIGSEGV|signal 11|segmentation"),
    "exit status": ("import os\nos._exit(3)", r"\b3\b"),
    "exit zero": ("import os\nos._exit(0)", r"\b0\b"),
    "kill": ("import os\nos.kill(os.getpid(), 9)", r"SIGKILL|signal 9|killed"),
    "abort": ("import os\nos.abort()", r"SIGABRT|signal 6|abort"),
    "terminate": ("import os, signal\nsignal.signal(15, signal.SIG_DFL)\nos.kill(os.getpid(), 15)\nwhile True: pass",
                  r"SIGTERM|signal 15|terminat"),
    "stack overflow": ("import ctypes\nf = ctypes.CFUNCTYPE(None)(lambda: f())\nimport sys\nsys.setrecursionlimit(10**9)\nf()",
                       r"SIGSEGV|signal 11|SIGABRT|signal 6"),
    "exit of a thread": ("import os, threading, time\nthreading.Thread(target=lambda: os._exit(4)).start()\ntime.sleep(1000)",
                         r"\b4\b"),
    "libc exit": ("import ctypes\nctypes.CDLL(None).exit(5)", r"\b5\b"),
    "exec": ("import os\nos.execv('/bin/true', ['true'])", r"."),
    "exec that lives on": ("import os\nos.execv('/bin/sleep', ['sleep', '1000'])", r"."),
}


@pytest.fixture(scope="module")
def doomed():
    driver = support.Driver(cwd="/")
    driver.locate()
    support.shared_drivers.append(driver)
    yield driver
    driver.close()
    support.shared_drivers.remove(driver)


@pytest.mark.parametrize("name", DEATHS)
def test_death_is_reported_and_the_next_run_works(doomed, name):
    code, cause = DEATHS[name]
    doomed.run("marker = 1")
    result = doomed.run("print('last words')\n" + code, timeout=20)
    assert result["state"] == "lost", result
    assert result["error"]["code"] == "kernel_died", result
    assert re.search(cause, result["error"]["message"], re.I), result["error"]
    assert result["stdout"].startswith("last words\n"), result
    assert result["value"] is None and result["repr"] is None
    after = doomed.run("marker")
    assert after["error"]["type"] == "NameError" and after["state"] == "kept"
    assert doomed.value("1 + 1") == 2


def test_faulthandler_speaks_before_a_segfault(doomed):
    result = doomed.run("import faulthandler, ctypes\nfaulthandler.enable()\nctypes.string_at(0)")
    assert result["error"]["code"] == "kernel_died"
    assert "Segmentation fault" in result["stderr"]


def test_death_between_runs(drive, tmp_path):
    driver = drive()
    driver.run("marker = 1")
    go = tmp_path / "go"
    pid = driver.kernel_pid()
    driver.run("import os, threading\ndef die():\n    while not os.path.exists(%r): pass\n    os._exit(9)\n"
               "threading.Thread(target=die).start()" % str(go))
    go.write_text("")
    support.wait_until(lambda: not support.alive(pid), "the kernel is dead")
    # The next run either works on a fresh kernel or says that the old one died; the one after it works.
    first = driver.run("2")
    assert first["error"] is None or (first["error"]["code"], first["state"]) == ("kernel_died",
                                                                                  "lost"), first
    assert driver.value("3") == 3
    assert driver.run("marker")["error"]["type"] == "NameError"
    if first["error"] is None:
        assert any(e["event"] == "kernel_died" for e in driver.events)


def test_killed_from_outside_between_runs_and_in_one(drive, tmp_path):
    driver = drive()
    os.kill(driver.kernel_pid(), 9)
    support.wait_until(lambda: driver.run("1")["error"] is None, "a fresh kernel answers")
    pid = driver.kernel_pid()
    up = tmp_path / "up"
    driver.start("open(%r, 'w').close()\nwhile True: pass" % str(up))
    support.wait_until(up.exists, "the cell runs")
    os.kill(pid, 9)
    result = driver.answer()
    assert (result["error"]["code"], result["state"]) == ("kernel_died", "lost")
    assert driver.value("1") == 1


def test_many_deaths_leak_nothing(drive):
    driver = drive()
    driver.locate()

    def die():
        assert driver.run("import os\nos._exit(1)")["error"]["code"] == "kernel_died"
    for _ in range(3):
        die()
    driver.value("1")
    before = support.fd_count(driver.pid)
    zygote_before, spawner_before = support.fd_count(driver.zygote), support.fd_count(driver.spawner)
    for _ in range(30):
        die()
    driver.value("1")
    support.wait_until(lambda: support.fd_count(driver.pid) <= before
                       and support.fd_count(driver.zygote) <= zygote_before
                       and support.fd_count(driver.spawner) <= spawner_before,
                       lambda: "descriptors grew: host %d to %d, zygote %d to %d, spawner %d to %d"
                       % (before, support.fd_count(driver.pid), zygote_before,
                          support.fd_count(driver.zygote),
                          spawner_before, support.fd_count(driver.spawner)), 10)
    support.wait_until(lambda: len(driver.family()) == 3,
                       lambda: "only three processes: %r" % driver.family(), 10)

    def zombies():
        return [p for p in support.processes().values() if p.state == "Z"
                and p.ppid in (driver.pid, driver.spawner, driver.zygote)]
    support.wait_until(lambda: not zombies(), lambda: "all are reaped: %r" % zombies(), 10)


def test_many_resets_leak_nothing(drive):
    driver = drive(pool=2)

    def use():
        assert driver.value("x = 1\nx") == 1
        driver.reset()
    for _ in range(5):
        use()
    settled = []

    def settle():
        settled.append(support.fd_count(driver.pid))
        return len(settled) > 20 and len(set(settled[-20:])) == 1
    support.wait_until(settle, "the pool is full")
    before = settled[-1]
    for _ in range(40):
        use()
    support.wait_until(lambda: support.fd_count(driver.pid) <= before,
                       lambda: "descriptors grew from %d to %d" % (before, support.fd_count(driver.pid)), 10)


def test_a_long_life_does_not_grow_the_host(drive):
    driver = drive(events=False)

    def work(count):
        for n in range(count):
            result = driver.run("print('x' * 10000)\ndisplay(%d)\nlist(range(1000))" % n)
            assert result["error"] is None
    work(300)
    before = support.peak_rss_bytes(driver.pid)
    work(1500)
    assert support.peak_rss_bytes(driver.pid) - before < support.memory(8)


# ---- memory ------------------------------------------------------------------------------------------------


@pytest.fixture
def cgroup():
    try:
        made = support.MemoryCgroup(400 << 20)
    except OSError as error:
        pytest.skip("cannot make a memory cgroup: %s" % error)
    yield made
    made.remove()


def test_out_of_memory(cgroup):
    with support.Driver(preexec_fn=cgroup.join, cwd="/") as driver:
        driver.run("marker = 1")
        result = driver.run("x = []\nwhile True:\n    x.append(b'x' * (16 << 20))", timeout=50)
        assert (result["error"]["code"], result["state"]) == ("kernel_died", "lost"), result
        assert re.search("memory", result["error"]["message"], re.I), result["error"]
        assert driver.run("marker")["error"]["type"] == "NameError"
        assert driver.value("1 + 1") == 2


def test_memory_error_of_python_is_just_an_exception(drive):
    driver = drive()
    driver.run("marker = 1")
    result = driver.run("import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\nx = bytearray(4 << 30)")
    assert result["error"]["type"] == "MemoryError" and result["state"] == "kept"
    assert driver.value("marker") == 1


def test_limits_the_code_sets_itself(drive):
    """No more descriptors, no more processes: errors of the code, not of the session."""
    driver = drive()
    driver.run("marker = 1")
    result = driver.run("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\nf = [open('/dev/null') for _ in range(50)]")
    assert result["error"]["type"] == "OSError"
    assert driver.value("marker") == 1
    assert driver.run("!echo x")["state"] in ("kept", "lost")
    driver.reset()
    assert driver.value("open('/dev/null').close()\n2") == 2
