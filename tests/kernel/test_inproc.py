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


# The collector is made to run after a few objects, with objects whose end adds a module each: it runs while the list of modules is read.
COLLECTED = """
import gc, sys, types
sys.path[:0] = %r
import fake_workcell
sys.modules["_workcell"] = fake_workcell
from workcell_kernel import inproc

inproc._OWN, inproc._code["guest"] = ("guest",), compile("class Guest: pass", "guest.py", "exec")

class Late:
    def __init__(self):
        self.self = self
    def __del__(self):
        sys.modules["late_module_%%d" %% len(sys.modules)] = types.ModuleType("late")

for number in range(1, 200):
    gc.collect()
    gc.disable()
    late = [Late() for _ in range(5)]
    late.clear()
    gc.set_threshold(number)
    gc.enable()
    name, _ = inproc._modules()
    gc.set_threshold(700)
    inproc._forget_modules(name)
assert any(name.startswith("late_module_") for name in sys.modules)
"""


def test_a_session_begins_while_garbage_is_collected():
    """A garbage collection runs code, of this thread or of another, while the modules of a new session are made."""
    folders = [HERE, os.path.join(HERE, "..", "..", "kernel")]
    done = subprocess.run([sys.executable, "-c", COLLECTED % (folders,)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
