"""E2B's JavaScript clients, unmodified, against `workcell serve --e2b` (tests/javascript/e2b.test.mjs)."""
import os
import subprocess

import pytest

import serving
import support

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGES = os.path.join(ROOT, "build", "e2b")  # made by scripts/setup.sh
OWN, STRANGER = ("t0ken-of-%s-%s" % (name, "x" * 40) for name in ("own", "stranger"))
TOKENS = """tokens:
  - {name: own, token: %s, scopes: [run, read]}
  - {name: stranger, token: %s, scopes: [run, read]}
  - {name: tests, token: t0ken-of-the-tests}
""" % (OWN, STRANGER)


@pytest.mark.parametrize("workers", [1, 2])
def test_clients(workers):
    server = serving.Server("--executor", "sandbox", "--e2b", "--workers", workers, python="/usr/bin/python3", tokens=TOKENS)
    url = "http://127.0.0.1:%d" % server.port
    node = os.path.join(ROOT, "build", "node", "bin")
    try:
        done = subprocess.run(["node", "--test", "--test-force-exit", "--test-reporter=spec", os.path.join(ROOT, "tests", "javascript", "e2b.test.mjs")], cwd=PACKAGES,
                              env={**support.host_environment(), "PATH": node + ":" + os.environ["PATH"], "PACKAGES": PACKAGES, "E2B_API_URL": url,
                                   "E2B_SANDBOX_URL": url, "E2B_API_KEY": OWN, "STRANGER_KEY": STRANGER, "WORKERS": str(workers)},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3 * support.DEADLINE, text=True)
        assert done.returncode == 0, done.stdout + server.text()
        assert "pass 20\n" in done.stdout and "skipped 0\n" in done.stdout, done.stdout
    finally:
        server.close()
