"""The other tests of this folder on every other CPython of this machine, which need not have pytest or IPython."""

import glob
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = ("test_pretty.py", "test_transform.py", "test_display.py", "test_interactive.py", "test_ipy.py",
         "test_rpc.py", "test_namespaces.py", "test_mcpmodels.py")


def interpreters():
    """One for each version, the running one left out where it has no venv."""
    candidates = glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python3")) + glob.glob("/usr/bin/python3")
    found = {}
    for path in candidates:
        code = "import sys; print(sys.version_info >= (3, 9), sys.implementation.name, '%d.%d' % sys.version_info[:2], sys.base_prefix)"
        try:
            answer = subprocess.run([path, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
        except OSError:
            continue
        words = answer.stdout.decode().split(None, 3)
        if answer.returncode == 0 and words[:2] == ["True", "cpython"]:
            if words[3].strip() != sys.base_prefix or sys.prefix != sys.base_prefix:
                found.setdefault(words[2], path)
    return sorted(found.values())


@pytest.mark.parametrize("path, name", [(path, name) for path in interpreters() for name in FILES])
def test_interpreters(path, name):
    done = subprocess.run([path, os.path.join(HERE, name)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300)
    assert done.returncode == 0, "%s %s\n%s" % (path, name, done.stdout.decode("utf-8", "replace"))
