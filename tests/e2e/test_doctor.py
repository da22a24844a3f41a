"""`workcell doctor`: what works here, and why the rest does not."""
import json
import os

import support
from support import workcell


def test_text(bare_python):
    done = workcell("doctor", "--python", bare_python)
    assert done.status == 0, done
    assert "subprocess" in done.out and support.python_version(bare_python) in done.out
    assert "\x1b" not in done.out


def test_json(bare_python):
    done = workcell("doctor", "--json", "--python", bare_python)
    assert done.status == 0, done
    (report,) = done.objects
    names = json.dumps(report)
    assert isinstance(report, dict) and support.python_version(bare_python) in names
    executors = {e["name"]: e for e in report["executors"]}
    assert executors["subprocess"]["available"] is True
    for executor in executors.values():
        assert executor["available"] or (executor["reason"] and executor["advice"])


def test_says_which_shell_serves(bare_python, full_python):
    with_ipython = workcell("doctor", "--python", full_python).out
    without = workcell("doctor", "--python", bare_python).out
    version = support.module_version(full_python, "IPython")
    assert "IPython " + version in with_ipython
    assert version not in without and "IPython" in without


def test_says_what_is_wrong():
    done = workcell("doctor", "--python", "/bin/true")
    assert done.status != 0
    assert "/bin/true" in done.out + done.err
    done = workcell("doctor", "--json", "--python", "/nonexistent/python")
    assert done.status != 0
    assert "python_unusable" in done.out + done.err


def test_leaves_nothing_behind(tmp_path, bare_python):
    home = tmp_path / "home"
    home.mkdir()
    done = workcell("doctor", "--python", bare_python, env=support.host_environment(HOME=str(home)),
                    cwd=str(tmp_path))
    assert done.status == 0 and os.listdir(home) == [] and os.listdir(tmp_path) == ["home"]
