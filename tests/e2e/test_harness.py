"""The harness itself: each of its gates is seen red once."""
import os
import subprocess
import sys

import pytest

import conftest
import support

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def inner(tmp_path, code, **env):
    """Runs pytest on one file with our conftest as a plugin; returns its output."""
    path = tmp_path / "test_inner.py"
    path.write_text(code)
    process = support.popen([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conftest",
                             str(path)],
                            env=support.host_environment(PYTHONPATH=TESTS, WORKCELL_BIN=support.BIN, **env),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=str(tmp_path))
    return process.communicate(timeout=support.DEADLINE)[0].decode()


def test_a_process_left_behind_fails_the_test(tmp_path):
    code = "import os\ndef test_leak():\n    os.system('setsid sleep 9870%05d >/dev/null 2>&1 &')\n" % (os.getpid() % 99999)
    out = inner(tmp_path, code, WORKCELL_TEST_DEADLINE="1")
    assert "processes left behind" in out and "1 passed, 1 error" in out


def test_a_skip_fails_in_ci(tmp_path):
    code = "import pytest\ndef test_skip():\n    pytest.skip('cannot')\n"
    assert "1 failed" in inner(tmp_path, code, CI="true")
    assert "1 skipped" in inner(tmp_path, code)


def test_daemons_stay_below_us():
    mark = "9871%05d" % (os.getpid() % 99999)
    support.popen(["sh", "-c", "setsid sh -c 'sleep %s & ' &" % mark]).wait(support.DEADLINE)
    support.wait_until(lambda: [p.cmdline for p in conftest.strangers().values()
                                if mark in p.cmdline] == ["sleep " + mark],
                       "the daemon is seen")
    for process in support.with_argument(mark):
        support.end_process(process)


def test_a_condition_that_never_holds_fails():
    with pytest.raises(AssertionError, match="not within 0.05 s: the impossible"):
        support.wait_until(lambda: False, "the impossible", 0.05)
