"""The adapters' types, with the frameworks' own types."""
import os
import subprocess
import sys

from conftest import HERE, ROOT


def test_pyright():
    path = os.path.join(ROOT, "build", "node", "bin") + ":" + os.environ["PATH"]
    checker = os.path.join(ROOT, "build", "venv", "bin", "python")
    done = subprocess.run([checker, "-m", "pyright", "--pythonpath", sys.executable, "--project", os.path.join(HERE, "pyrightconfig.json")],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ, PATH=path))
    assert done.returncode == 0, done.stdout.decode()
