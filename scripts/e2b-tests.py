#!/usr/bin/env python3
"""e2b-tests.py [--python PATH] SDK [CODE_INTERPRETER]: the tests of E2B's own repositories against `workcell serve --e2b`.

SDK and CODE_INTERPRETER are checkouts of e2b-dev/E2B and e2b-dev/code-interpreter.  PATH is an interpreter with their packages, e2b and
e2b-code-interpreter, and what their tests use: pytest, pytest-xdist, pytest-asyncio, pytest-timeout, pytest-dotenv,
dockerfile-parse, IPython, numpy, pandas, matplotlib, pillow.  Runs what makes sense for a
server on this machine; tests of the groups below fail, for the reasons that docs/e2b.md has.  The exit status is 1 if any other fails.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKEN = "e2b_" + "a" * 40
SDK = ["tests/sync/sandbox_sync", "tests/sync/api_sync", "tests/async/sandbox_async", "tests/async/api_async", "tests/shared/git"]
CODE = ["tests"]
# What is expected to fail, by the reason.
GROUPS = {
    "other languages": r"env_vars/test_(java|js|r)\.py|cwd\.py::test_cwd_(java|javascript|typescript|r)$|kernels\.py::test_(js|ts|java|r|javascript|typescript)|default_kernels|basic\.py::test_.*(js|ts|java|_r)\b",
    "files of /proc, pauses with mode filesystem": r"keep_memory_none|auto_pause_filesystem|test_snapshot_filesystem_only|pause_filesystem_only",
    "networks other than all, none and a list of hosts": r"test_network\.py|test_internet_access\.py",
    "ports of a sandbox, other host names": r"test_host\.py::test_ping_server|auto_resume_wakes_on_http_request|stable_host_routing_headers",
    "mcp": r"test_mcp_gateway",
    "sudo": r"test_bash_command_scoped_env_vars",
    "words of an error, in clients of August 2026": r"test_kill_sandbox_while_command_is_running",
    "services of systemd, JavaScript in lists": r"systemd\.py|contexts\.py::test_list_contexts|box_and_whiskers",
}


def serve(python, token_file):
    log = tempfile.TemporaryFile("w+")  # no pipe: when nobody reads its log, the server waits
    process = subprocess.Popen([os.environ.get("WORKCELL_BIN", os.path.join(ROOT, "build", "workcell")), "serve", "--e2b", "--listen", "127.0.0.1:0",
                                "--auth-token-file", token_file, "--executor", "sandbox", "--workspace-mode", "cow", "--workers", "2", "--python", python,
                                "--max-sessions", "500"], stderr=log)
    while process.poll() is None:
        log.seek(0)
        found = re.search(r"listening on (http://\S+)", log.read())
        if found:
            return process, found.group(1)
        time.sleep(0.05)
    raise SystemExit("the server did not start")


def run(python, folder, paths, url, apart):
    """(how many passed, the names of the others).  apart: without the client's source beside them, so that the package is judged."""
    with tempfile.NamedTemporaryFile("r", suffix=".xml") as report, tempfile.TemporaryDirectory() as copy:
        shutil.copytree(os.path.join(folder, "tests"), os.path.join(copy, "tests"))
        for name in ("pytest.ini", "pyproject.toml"):
            if os.path.exists(os.path.join(folder, name)):
                shutil.copy(os.path.join(folder, name), copy)
        env = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
        subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--timeout", "30", "-rfE", "--tb=no", *paths], cwd=copy if apart else folder, check=False,
                       env=dict(env, E2B_API_URL=url, E2B_SANDBOX_URL=url, E2B_API_KEY=TOKEN), stdout=open(report.name, "w"), stderr=subprocess.STDOUT)
        text = report.read()
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.M)
    passed = re.search(r"(\d+) passed", text)
    if not passed:
        raise SystemExit("no tests ran in %s:\n%s" % (folder, text[-2000:]))
    return int(passed[1]), sorted(set(failed))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("sdk")
    parser.add_argument("code_interpreter", nargs="?")
    args = parser.parse_args()
    others = []
    with tempfile.NamedTemporaryFile("w") as token:
        token.write(TOKEN)
        token.flush()
        process, url = serve(args.python, token.name)
        try:
            suites = [(os.path.join(args.sdk, "packages", "python-sdk"), SDK, False)]
            if args.code_interpreter:  # its client does not go with every version of the SDK
                suites.append((os.path.join(args.code_interpreter, "python"), CODE, True))
            for folder, paths, apart in suites:
                passed, failed = run(args.python, folder, paths, url, apart)
                print("%s: %d passed, %d failed" % (folder, passed, len(failed)), flush=True)
                for group, pattern in GROUPS.items():
                    those = [name for name in failed if re.search(pattern, name)]
                    failed = [name for name in failed if name not in those]
                    if those:
                        print("%5d  %s" % (len(those), group), flush=True)
                others += failed
        finally:
            process.terminate()
            process.wait()
    for name in others:
        print("not expected: " + name)
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
