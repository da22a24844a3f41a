"""The unit tests of a build for aarch64: emulated_tests.py BUILD [TEST...], under scripts/emulate.sh.

Programs whose failures are among those of BEYOND, with the reason, count as passed; one that passes against that list fails, so that the list
stays true. Another that fails gets a second try alone: emulation is slow, and some tests have deadlines. Ends with `N passed, N failed`.
"""
import concurrent.futures
import json
import os
import re
import subprocess
import sys

SECONDS = 600
# What QEMU's emulation of user programs, and the namespace that it runs in, do not have.
NO_SECCOMP = "seccomp(2) and PR_SET_SECCOMP are not emulated, so no program is confined"
NO_MOUNTS = "mounts of a sandbox need clone() with flags of namespaces, which is EINVAL"
ONE_ID = "only one uid is mapped: a file cannot be given to another"
NO_VFORK = "CLONE_VM with CLONE_VFORK is a fork, so posix_spawn() does not learn that exec failed"
NO_PTRACE = "ptrace(2) is not emulated"
THREAD = "every process has a thread of the emulator's, with which a kernel is not forked"
# test program: ({cases that fail}, why); an empty set: any of them
BEYOND = {
    "base": ({"test_first_readable"}, "the portable build, unlike that of a distribution, looks for certificates itself"),
    "sandbox": ({"links_in_the_way"}, NO_MOUNTS),
    "container": ({"test_what_is_kept_back"}, ONE_ID),
    "spawn": ({"test_client_bad_programs", "test_children"}, NO_VFORK + "; threads of the emulator are counted"),
    "confinement": (set(), NO_SECCOMP),
    "branch": (set(), THREAD),
    "store_artifacts": ({"test_killed_at_every_call"}, NO_PTRACE),
    "tools_registry": ({"test_command_failures"}, NO_VFORK),
    "paths": ({"test_sandbox", "test_sandbox_without_pool", "test_sandbox_with_space", "test_jupyter"},
              NO_SECCOMP + "; the venv with ipykernel is of this machine's architecture"),
}


def cases_of(output):
    """Names of the cases that failed, or after which something was left (cmocka's ERROR)."""
    return set(re.findall(r"^\[  (?:FAILED|ERROR ) +\] (\w+)$", output, re.M))


def run(test):
    """(whether it is as expected, what to say)"""
    env = dict(os.environ, **test.get("env", {}))
    try:
        done = subprocess.run(test["cmd"], cwd=test.get("workdir") or sys.argv[1], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=SECONDS)
        status, output = done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        status, output = -1, (error.stdout or b"").decode(errors="replace") + "\ntimed out"
    failed = cases_of(output)
    cases, why = BEYOND.get(test["name"], (None, None))
    if cases is None:
        return status == 0, output if status else "ok"
    if status == 0:
        return False, "passes, though this is said of it: " + why
    if cases and not failed or not failed <= (cases or failed):
        return False, "fails in %s, expected %s\n%s" % (sorted(failed), sorted(cases), output)
    return True, "cannot be emulated (%s): %s" % (", ".join(sorted(failed)) or "all of it", why)


def main():
    build, wanted = sys.argv[1], sys.argv[2:]
    with open(os.path.join(build, "meson-info", "intro-tests.json")) as file:
        tests = [test for test in json.load(file) if any(suite.endswith("unit") for suite in test["suite"])]
    tests = [test for test in tests if not wanted or test["name"] in wanted]
    passed = failed = 0
    alone = []
    with concurrent.futures.ThreadPoolExecutor((os.cpu_count() or 1) + 2) as pool:
        for test, (good, text) in zip(tests, pool.map(run, tests)):
            if not good:
                alone.append(test)
                continue
            passed += 1
            print("    %s: %s" % (test["name"], text), flush=True)
    for test in alone:
        good, text = run(test)
        passed, failed = passed + good, failed + (not good)
        print("%s %s: %s" % ("   " if good else "BAD", test["name"], text), flush=True)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
