"""The same wheel on every CPython from 3.9 that the machine has."""
import glob
import os
import re
import subprocess
import sys

import pytest
from conftest import BUILD, HERE

# What could differ from one version to the next: asyncio, types, the stable ABI, threads, forks, the end of the interpreter.
TESTS = ["test_session.py", "test_process.py", "test_inprocess.py", "test_approvals.py", "test_code_executor.py", "test_names.py"]
# What a cell leaks does not depend on the interpreter's version, nor what an installer does: those are for one of them.
LEFT_OUT = "not leak and not d14_a_relative"


def interpreters():
    found = {}
    places = glob.glob("/usr/bin/python3.*") + glob.glob("/usr/local/bin/python3.*") + glob.glob(
        os.path.expanduser("~/.pyenv/versions/*/bin/python3.*"))
    for path in sorted(places):
        match = re.fullmatch(r"python3\.(\d+)", os.path.basename(path))
        if match and int(match.group(1)) >= 9 and int(match.group(1)) != sys.version_info[1]:
            found.setdefault("3.%s" % match.group(1), path)
    ordered = sorted(found.items(), key=lambda item: int(item[0].split(".")[1]))
    # What breaks with a version breaks with the oldest or the newest first; make soak takes those between as well.
    return ordered if os.environ.get("WORKCELL_ALL_PYTHONS") or len(ordered) < 3 else [ordered[0], ordered[-1]]


def venv_with_pytest(version, python):
    """Made once; a build folder of its own for each interpreter."""
    folder = os.path.join(BUILD, "python-venvs", version)
    made = os.path.join(folder, ".made")
    if not os.path.exists(made):
        own = os.path.join(folder, "bin", "python")
        uv = os.path.join(os.path.dirname(sys.executable), "uv")  # much quicker, where it is there
        if os.path.exists(uv):
            subprocess.run([uv, "venv", "-q", "--clear", "--python", python, folder], check=True)
            subprocess.run([uv, "pip", "install", "-q", "--python", own, "pytest"], check=True)
        else:
            subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([own, "-m", "pip", "install", "-q", "--disable-pip-version-check", "pytest"], check=True)
        open(made, "w").close()
    return os.path.join(folder, "bin", "python")


@pytest.mark.skipif(os.environ.get("WORKCELL_ONE_PYTHON") is not None, reason="this is one of them")
@pytest.mark.parametrize("version, python", interpreters(), ids=[version for version, _ in interpreters()])
def test_interpreter(version, python):
    own = venv_with_pytest(version, python)
    environment = dict(os.environ, WORKCELL_ONE_PYTHON="1")
    environment.pop("CI", None)  # what needs pandas or uvloop is skipped there
    done = subprocess.run([own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", "-k", LEFT_OUT, *TESTS],
                          cwd=HERE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    assert done.returncode == 0, done.stdout.decode()[-4000:]
