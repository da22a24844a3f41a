"""Runs the tables of cells.py and namespaces.py against every executor named in WORKCELL_EXECUTORS.

One program serves all cases of one executor and interpreter that need no base folder, another one those that do;
between cases it is told to reset, which is a fresh kernel, and after that only the program, its spawner and its
zygote may be there.  Where a kernel takes a second to start, several cases share one.
"""
import base64
import os
import re
import shutil
import textwrap

import pytest

import cells
import containers
import namespaces
import serving
import shim
import spaces
import support

CASES = cells.CASES + namespaces.CASES

INTERPRETERS = ("ipython", "plain")
# ipykernel brings IPython along, Pyodide has none, and what a server adds does not depend on the interpreter behind it.
ONE_INTERPRETER = {"jupyter": "ipython", "deno": "plain", "remote": "plain", "container": "plain", "no-userns": "plain"}
# So many cases in one kernel; one that fails there gets a fresh one before it counts.
SHARED = {"deno": 48, "jupyter": 48}
# Importing matplotlib takes a second: in each kernel anew only with `subprocess`, whose kernels these executors have too.
SHARED_PLOTS = {"sandbox": 16, "remote": 16}
# With the sandbox comes its lower level, where user namespaces are forbidden; all of its cases run where it is named.
EXECUTORS = list(dict.fromkeys(e for name in support.EXECUTORS for e in ((name, "no-userns") if name == "sandbox" else (name,))))
TARGETS = [(e, i) for e in EXECUTORS for i in INTERPRETERS if ONE_INTERPRETER.get(e, i) == i]


class Target:
    """One executor with one interpreter: programs that live from case to case unless a case ends them."""

    def __init__(self, executor, python, redis=None):
        self.executor, self.python, self.redis = executor, python, redis
        self.drivers, self.fds, self.servers = {}, {}, {}  # by whether there is a base folder
        self.used = {}  # drivers whose kernel has run cases: how many
        self.base = support.temporary_folder("workcell-tests-base-")
        self.cwd = support.temporary_folder("workcell-tests-cwd-")
        self.policy = os.path.join(self.base, ".policy.yaml")
        self.capabilities = {"children", "fork", "threads", "descriptors", "files", "shell", "environment",
                             "namespaces", "alone", "main_thread", "modules", "stack", "bare", "semaphores", "proc"}
        self.capabilities -= cells.EXCEPTIONS.get(executor, set())
        if executor == "deno":
            self.capabilities.add("py311")  # it brings its own Python, 3.14
        elif tuple(map(int, support.python_version(python).split(".")[:2])) >= (3, 11):
            self.capabilities.add("py311")
        # Without a home of its own (no-userns) matplotlib says so, and looks for fonts in each kernel anew.
        if executor not in ("deno", "container", "no-userns") and support.module_version(python, "matplotlib"):
            self.capabilities.add("matplotlib")

    def fill(self, files):
        """Makes the base folder hold these files; the caches of a storage may stay, that is what they are."""
        for name in os.listdir(self.base):
            path = os.path.join(self.base, name)
            if name in (".cache", ".policy.yaml"):
                continue
            if name == "tools" and self.executor == "container":
                for inner in os.listdir(path):  # a folder of its own inside, and that stays the same
                    os.unlink(os.path.join(path, inner))
            elif os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        if self.executor == "no-userns":
            # Programs are confined by namespaces: without them a tool runs where its definition says so, or not at all.
            files = {name: "host: true\ncwd: workspace\n" + textwrap.dedent(text) if name.startswith("tools/") else text
                     for name, text in files.items()}
        spaces.write_files(self.base, files)
        if self.executor == "container":
            os.makedirs(os.path.join(self.base, "tools"), exist_ok=True)
            containers.give(self.base)
        if self.redis:
            self.redis.ask("FLUSHALL")
            if any(not name.startswith("tools/") for name in files):
                pushed = support.workcell("store", "push", "--source", self.base, "--target", self.redis.url(), "--type", "all")
                assert pushed.status == 0, pushed

    def open(self, case):
        """The program for a case, made when it is not there."""
        kind = case.base is not None
        if kind:
            self.fill(case.base)
        if self.drivers.get(kind) is None:
            flags = ["--timeout", "60"] + (["--base", self.base] if kind else [])
            flags += ["--redis", self.redis.url()] if kind and self.redis else []
            if self.executor == "remote":
                flags = self.serve(kind, flags)
            if self.executor == "container":
                flags += containers.FLAGS[2:]
            # Starting ipykernel takes most of a second: the next ones are made ready while a case runs.
            lower = self.executor == "no-userns"
            if lower:
                spaces.write_files(self.base, {".policy.yaml": "level: no-userns\nfilesystem: {unprotect: ['*']}\n"})
                flags += ["--sandbox-policy", self.policy]
            driver = support.Driver(*flags, python=self.python, executor="sandbox" if lower else self.executor, cwd=self.cwd,
                                    pool=2 if self.executor == "jupyter" else 0,
                                    preexec_fn=(lambda: shim.take_away("userns", "EPERM")) if lower else None)
            self.drivers[kind] = driver
            support.shared_drivers.append(driver)
            driver.locate()
            if kind:
                # What is opened on first use stays open, and is no leak.
                driver.run("[tools.search('x'), workflows.search('x'), artifacts.list()]")
            driver.reset()
            self.fds[kind] = support.fd_count(driver.pid)
        return self.drivers[kind]

    def serve(self, kind, flags):
        """The server that a program of the executor remote uses: what lives below it is counted as the program's."""
        server = serving.Server("--executor", "subprocess", *flags, tokens=serving.TOKEN, python=self.python, pool=0, cwd=self.cwd)
        support.shared_drivers.append(server)
        self.servers[kind] = server
        return ["--timeout", "60", "--remote-url", "http://127.0.0.1:%d" % server.port, "--auth-token-file", server.tokens]

    def close(self, how):
        for kind in list(self.drivers):
            driver = self.drivers.pop(kind)
            try:
                how(driver)
            finally:
                support.shared_drivers.remove(driver)
                if kind in self.servers:
                    server = self.servers.pop(kind)
                    support.shared_drivers.remove(server)
                    server.close()

    def check_quiet(self, driver):
        """After a reset nothing of the case is left: no process, no descriptor."""
        before = self.fds[[kind for kind in self.drivers if self.drivers[kind] is driver][0]]
        # For tools, also of deno's code, the spawner keeps two jails ready, each with a process that waits in it.
        most = {"sandbox": 2, "deno": 6, "jupyter": 4}.get(self.executor, 3)

        def left():
            """Of a sandbox what is not the spawner's: it keeps the spares of a run of tools for ten seconds."""
            return [each for each in driver.family() if self.executor != "sandbox" or "workcell-spawner" not in each.cmdline]

        support.wait_until(lambda: len(left()) <= most, lambda: "only spawner, zygote and kernel: %r" % left(), 10)
        if self.executor == "container":
            # Server, spawner, zygote, the pool's two kernels and the session's.
            support.wait_until(lambda: len(containers.processes(driver.container)) <= 6,
                               lambda: "only what the server has: %r" % containers.processes(driver.container), 10)
        # A kernel may be open or not yet: socket, two pipes and ring come and go together; with jupyter also what
        # ZeroMQ needs, and the same for the one that is made ready. In the host's process the interpreter keeps what its
        # modules open for good, multiprocessing's tracker for one.
        more = {"jupyter": 60, "inprocess": 12}.get(self.executor, 8)
        support.wait_until(lambda: support.fd_count(driver.pid) <= before + more,
                           lambda: "descriptors grew from %d to %d" % (before, support.fd_count(driver.pid)), 10)


@pytest.fixture(scope="module", params=TARGETS,
                ids=lambda param: "-".join(param))
def target(request, full_python, plain_python):
    executor, interpreter = request.param
    made = Target(executor, full_python if interpreter == "ipython" else plain_python)
    # What the language means is tried at the other level, and for IPython without a sandbox, where the same kernel runs.
    made.system_alone = executor not in support.EXECUTORS or (request.param == ("sandbox", "ipython") and ("subprocess", "ipython") in TARGETS)
    try:
        yield made
        made.close(support.Driver.close)
    finally:
        made.close(support.Driver.kill)


@pytest.fixture(scope="module")
def redis_target(full_python):
    """Storage in a redis-server of its own; tools and interpreter as ever."""
    server = spaces.Redis()
    made = Target(support.EXECUTORS[0], full_python, server)
    try:
        yield made
        made.close(support.Driver.close)
    finally:
        made.close(support.Driver.kill)
        server.close()


def same(got, want):
    """Equality as JSON sees it: 1, 1.0 and true are three things, and so are 0.0 and -0.0."""
    if type(got) is not type(want):
        return False
    if isinstance(want, list):
        return len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(same(got[key], want[key]) for key in want)
    if isinstance(want, float):
        return repr(got) == repr(want)
    return got == want


def matches(got, want):
    if want is cells.ANY:
        return True
    if isinstance(want, re.Pattern):
        return isinstance(got, str) and want.search(got) is not None
    if isinstance(want, bytes):
        return isinstance(got, str) and base64.b64decode(got, validate=True) == want
    return got == want


#: A figure may come with its data, which ipykernel does not give.
CHART = "application/vnd.workcell.chart+json"


def matches_mime(got, want):
    chart = got.get(CHART) if "image/png" in want else None
    if chart is not None:
        if not (isinstance(chart, dict) and isinstance(chart.get("type"), str)):
            return False
        got = {key: part for key, part in got.items() if key != CHART}
    return isinstance(got, dict) and got.keys() == want.keys() and all(matches(got[k], want[k]) for k in want)


def shape_problems(result):
    """What holds for every result, whatever the cell did."""
    kinds = {
        "mime": dict, "stdout": str, "stderr": str, "text": str, "images": list, "displays": list,
        "state": str, "isolation": dict, "session_id": str, "repr": (str, type(None)),
        "error": (dict, type(None)), "spill": (str, type(None)), "duration_ms": (int, float),
    }
    if "value" not in result:
        yield "no value key"
    for key, kind in kinds.items():
        if key not in result:
            yield "no %s key" % key
        elif not isinstance(result[key], kind):
            yield "%s is %r" % (key, result[key])
    if result["duration_ms"] < 0 or not result["session_id"]:
        yield "duration_ms %r, session_id %r" % (result["duration_ms"], result["session_id"])
    if sorted(result["stdout"] + result["stderr"]) != sorted(result["text"]):
        yield "text is not made of stdout and stderr"
    error = result["error"]
    if error is not None:
        if not {"type", "message", "traceback", "code"} <= error.keys():
            yield "error lacks a key: %r" % error
        elif not all(isinstance(error[key], str) for key in ("type", "message", "traceback", "code")):
            yield "error has a part that is no string: %r" % error
        else:
            for sign in ("workcell_kernel", "zygote", "IPython/core", "/site-packages/IPython",
                         "asyncio/base_events"):
                if sign in error["traceback"]:
                    yield "the traceback shows %r" % sign
            if re.search(r"\x1b\[[0-9;]*m", error["traceback"].replace(error["message"], "")):
                yield "the traceback has colours"


def problems(result, want):
    yield from shape_problems(result)
    error = result["error"]
    if want.get("error") is cells.ANY:
        pass
    elif "error" not in want:
        if error is not None:
            yield "error %s" % error
    elif error is None:
        yield "no error"
    else:
        if not matches(error["type"], want["error"]):
            yield "error type %r" % error["type"]
        if not matches(error["code"], want.get("code", "exception")):
            yield "error code %r" % error["code"]
        if not matches(error["message"], want.get("message", cells.ANY)):
            yield "error message %r, not %r" % (error["message"], want["message"])
        at = 0
        for part in want.get("traceback", ()):
            pattern = part if isinstance(part, re.Pattern) else re.compile(re.escape(part))
            found = pattern.search(error["traceback"], at)
            if not found:
                yield "traceback lacks %r" % part
                break
            at = found.start()
        for part in want.get("traceback_not", ()):
            if part in error["traceback"]:
                yield "traceback has %r" % part
    if "value" in want and not same(result["value"], want["value"]):
        yield "value %.200r, not %.200r" % (result["value"], want["value"])
    if "repr" in want and not matches(result["repr"], want["repr"]):
        yield "repr %.200r" % result["repr"]
    if want.get("no_value") and not (result["value"] is None and result["repr"] is None
                                     and result["mime"] == {}):
        yield "there is a value: %r" % {key: result[key] for key in ("value", "repr", "mime")}
    for stream in ("stdout", "stderr", "text"):
        if stream in want:
            if not matches(result[stream], want[stream]):
                yield "%s %.200r" % (stream, result[stream])
        elif stream != "text" and "text" not in want and result[stream]:
            yield "%s %.200r" % (stream, result[stream])
    if "mime" in want and not matches_mime(result["mime"], want["mime"]):
        yield "mime %r" % result["mime"]
    if want.get("displays") is cells.ANY:
        pass
    elif len(result["displays"]) != len(want.get("displays", ())):
        yield "displays %r" % result["displays"]
    else:
        for got, wanted in zip(result["displays"], want.get("displays", ())):
            if not matches_mime(got, wanted):
                yield "display %r" % got
    if "check" in want and want["check"](result) is False:
        yield "check failed on %.2000r" % result
    if result["state"] != "kept":
        yield "state %r" % result["state"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_cell(target, case):
    if target.system_alone and not case.needs and case.base is None:
        return  # the language alone: nothing of the system is in it that could differ
    lacking = case.needs - target.capabilities
    if lacking:
        # Not a skip: this executor or interpreter says that it does not have this, and the table knows.
        assert lacking <= {"py311", "matplotlib"} | cells.EXCEPTIONS.get(target.executor, set())
        return
    check_case(target, case)


@pytest.mark.parametrize("case", namespaces.CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_cell_with_redis(redis_target, case):
    check_case(redis_target, case)


def failures(driver, case):
    for number, (code, want) in enumerate(case.cells, 1):
        result = driver.run(code)
        assert "session_id" in result, result
        for problem in problems(result, want):
            yield "cell %d %.100r: %s" % (number, code, problem)


def kernel_share(target, case):
    """So many cases of its kind may use one kernel."""
    if "matplotlib" in case.needs and target.executor in SHARED_PLOTS:
        return SHARED_PLOTS[target.executor]
    return SHARED.get(target.executor, 1)


def check_case(target, case):
    failed = []
    driver = target.open(case)
    try:
        if driver in target.used and kernel_share(target, case) == 1:
            del target.used[driver]
            driver.reset()
        failed = list(failures(driver, case))
        used = target.used.pop(driver, 0)
        if failed and used:
            driver = target.open(case)
            driver.reset()
            failed, used = list(failures(driver, case)), 0
        if used + 1 < kernel_share(target, case) and not failed and driver.run("%reset -f")["error"] is None:
            target.used[driver] = used + 1
        else:
            driver.reset()
            target.check_quiet(driver)
    except (AssertionError, OSError) as error:
        failed.append(str(error))
        target.close(support.Driver.kill)
    assert not failed, "\n".join(failed)


def test_names_are_unique():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))


def test_the_suite_can_fail():
    """A check that cannot fail is no check: each kind of expectation is seen red once."""
    good = {"value": 2, "repr": "2", "mime": {"text/plain": "2"}, "stdout": "", "stderr": "", "text": "",
            "error": None,
            "images": [], "displays": [], "duration_ms": 0.1, "state": "kept", "isolation": {},
            "session_id": "s",
            "spill": None}
    assert not list(problems(good, {"value": 2, "repr": "2", "mime": {"text/plain": "2"}}))
    raised = dict(good, error={"type": "E", "message": "m", "traceback": "t\nE: m", "code": "exception"})
    for result, want in [(good, {"value": 2.0}), (good, {"value": True}), (good, {"repr": "3"}),
                         (good, {"no_value": True}),
                         (good, {"mime": {}}), (good, {"stdout": "x"}), (good, {"displays": [{}]}),
                         (good, {"error": "E"}),
                         (good, {"check": lambda r: False}), (dict(good, stderr="w", text="w"), {}),
                         (dict(good, state="lost"), {}), (dict(good, text="q"), {}), (raised, {}),
                         (raised, {"error": "F"}), (raised, {"error": "E", "message": "n"}),
                         (raised, {"error": "E", "code": "timeout"}),
                         (raised, {"error": "E", "traceback": ["E", "t"]}),
                         (raised, {"error": "E", "traceback_not": ["E"]})]:
        assert list(problems(result, want)), (result, want)
