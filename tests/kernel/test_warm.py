"""When a zygote warms itself.  Needs no pytest and no build."""

import os
import subprocess
import sys

KERNEL = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "kernel"))

SERVE = """
import sys, types

class Extension(types.ModuleType):
    KERNEL_FORK, ZYGOTE_WARM = 1, 2
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

fake = sys.modules["_workcell"] = Extension("_workcell")
from workcell_kernel import warm

def serve(events, steps):
    done, events = [], iter(events)
    fake.zygote_next = lambda wait_ms: next(events)
    zygote = warm.Zygote.__new__(warm.Zygote)
    zygote.children = {}
    zygote.fork = lambda *arguments: done.append("f")
    zygote.warm_step = lambda: done.append("w") or done.count("w") < steps
    zygote.serve()
    return "".join(done)

fork, idle, end = ("request", 1, 7, [], b"", b""), None, ("end",)
assert serve([idle, fork, idle, idle, idle, end], 3) == "wfww"
# Sessions that are opened without a pause do not put it off for ever, and each waits for one step at most.
busy = serve([fork] * 35 + [end], 3)
assert busy == "f" * 10 + "w" + "f" * 10 + "w" + "f" * 10 + "w" + "f" * 5, busy
assert serve([fork] * 9 + [idle] + [fork] * 9 + [end], 9) == "f" * 9 + "w" + "f" + "w" + "f" * 8
assert serve([fork] * 3 + [("request", 2, 0, [], b"", b""), fork, end], 3) == "fffwwwf"
"""


def test_a_busy_zygote_becomes_warm():
    subprocess.run([sys.executable, "-c", SERVE], check=True, env=dict(os.environ, PYTHONPATH=KERNEL))


if __name__ == "__main__":
    test_a_busy_zygote_becomes_warm()
