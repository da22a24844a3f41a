"""Builds what the tests need and runs them all: make test.

Stages, each named on the command line to run it alone: gcc, clang, checks, unit, e2e, asan, fuzz. Builds are made with
-Werror. Ends with one line `N passed, N failed`; a stage that cannot run counts as a failure.
"""

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYTHON = os.path.join(ROOT, "build", "venv", "bin", "python")
PYTEST_DIRS = ["tests/kernel", "tests/conformance", "tests/e2e", "tests/faults"]

passed, failed, notes = 0, 0, []


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


def meson_tests(folder, *selection, **env):
    """Runs the tests that meson knows in a build folder."""
    global passed
    log = os.path.join(ROOT, folder, "meson-logs", "testlog.json")
    if os.path.exists(log):
        os.unlink(log)
    run("meson", "test", "-C", folder, "--print-errorlogs", "--timeout-multiplier", "4", *selection, **env)
    if not os.path.exists(log):
        fail("meson test in %s" % folder)
        return
    with open(log) as file:
        for line in file:
            test = json.loads(line)
            if test["result"] in ("OK", "EXPECTEDFAIL"):
                passed += 1
            else:
                fail("%s in %s: %s" % (test["name"], folder, test["result"]))


def pytests(folder, *options):
    global passed
    report = os.path.join(ROOT, folder, "pytest.xml")
    if os.path.exists(report):
        os.unlink(report)
    run(PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", report, "--durations", "5", *options,
        WORKCELL_BIN=os.path.join(ROOT, folder, "workcell"), WORKCELL_TEST_PYTHON=PYTHON)
    if not os.path.exists(report):
        fail("pytest on %s" % folder)
        return
    suite = xml.parse(report).getroot().find("testsuite")
    bad = int(suite.get("failures")) + int(suite.get("errors"))
    skipped = int(suite.get("skipped"))
    passed += int(suite.get("tests")) - bad - skipped
    for _ in range(bad):
        fail("pytest on %s" % folder)
    if skipped and os.environ.get("CI"):
        # What this machine can do must be tested here.
        fail("%d skipped tests on %s" % (skipped, folder))


def stage_gcc():
    build("build")


def stage_clang():
    build("build-clang", CC="clang")


def stage_checks():
    global passed
    say("checks")
    for argv in (["scripts/check-includes.py", "--self-test"], ["scripts/check-includes.py"]):
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


def stage_asan():
    if build("build-asan", "-Db_sanitize=address,undefined", "-Db_lundef=false"):
        say("unit tests under ASan and UBSan")
        meson_tests("build-asan")
        say("end-to-end tests under ASan and UBSan")
        pytests("build-asan", "tests/conformance", "tests/e2e", "tests/faults")


def stage_fuzz():
    if build("build-fuzz", "-Dfuzz=true", "-Db_lundef=false", "-Db_sanitize=address,undefined", CC="clang"):
        say("fuzz targets, a few seconds each")
        meson_tests("build-fuzz", "--suite", "fuzz")


STAGES = [stage_gcc, stage_clang, stage_checks, stage_unit, stage_e2e, stage_asan, stage_fuzz]


def main():
    wanted = sys.argv[1:]
    start = time.time()
    for stage in STAGES:
        if not wanted or stage.__name__[len("stage_"):] in wanted:
            stage()
    say("%.0f s" % (time.time() - start))
    for note in notes:
        print("failed: " + note)
    print("%d passed, %d failed" % (passed, failed))
    sys.exit(1 if failed or not passed else 0)


main()
