"""E2B's clients in their debug mode, unmodified, against `workcell serve --e2b-debug`."""
import os
import subprocess
import sys

import pytest

import support

pytest.importorskip("e2b", reason="scripts/test-requirements.txt has it")
HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.mark.parametrize("what", ["python", "javascript", "first_requests_at_once", "strangers"])
def test_debug_mode(what):
    done = subprocess.run(["unshare", *(["--net"] if os.geteuid() == 0 else ["--net", "--map-root-user"]), sys.executable,
                           os.path.join(HERE, "e2b_debug.py"), what], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=3 * support.DEADLINE, env={**os.environ, "PYTHONPATH": os.path.dirname(HERE)})
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("flags, words", [
    ((), "needs e2b and disabled authentication (--auth-disabled)"),
    (("--auth-disabled", "--workers", "2"), "leave --workers out"),
])
def test_what_it_needs(flags, words, tmp_path):
    token = tmp_path / "token"
    token.write_text("t0ken-of-the-tests")
    given = flags if "--auth-disabled" in flags else (*flags, "--auth-token-file", str(token))
    done = support.workcell("serve", "--e2b-debug", "--executor", "sandbox", "--listen", "127.0.0.1:0", *given)
    assert done.status and words in done.err, done
