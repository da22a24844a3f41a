"""What sessions in one process share with threads that they do not know of."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

# In an interpreter of its own: other tests of this process have modules of the same names.
PROGRAM = """
import sys, threading, types
sys.path[:0] = %r
import fake_workcell
sys.modules["_workcell"] = fake_workcell
from workcell_kernel import inproc

over = threading.Event()

def imports():
    number = 0
    while not over.is_set():
        name = "other_module_%%d" %% number
        sys.modules[name] = types.ModuleType(name)
        sys.modules.pop("other_module_%%d" %% (number - 50), None)
        number += 1

thread = threading.Thread(target=imports)
sys.setswitchinterval(1e-6)
thread.start()
try:
    for number in range(300):
        name = "workcell_kernel_x%%d" %% number
        sys.modules[name] = sys.modules[name + ".cell"] = types.ModuleType(name)
        inproc._forget_modules(name)
        assert name not in sys.modules and name + ".cell" not in sys.modules
finally:
    over.set()
    thread.join()
"""


def test_a_session_ends_while_others_import():
    """Modules that come and go in another thread do not disturb the end of a session."""
    folders = [HERE, os.path.join(HERE, "..", "..", "kernel")]
    done = subprocess.run([sys.executable, "-c", PROGRAM % (folders,)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
