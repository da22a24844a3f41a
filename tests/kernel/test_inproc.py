"""What sessions in one process share with threads that they do not know of."""
import os
import sys
import threading
import types

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture
def inproc(monkeypatch):
    monkeypatch.syspath_prepend(os.path.join(HERE, "..", "..", "kernel"))
    import fake_workcell

    monkeypatch.setitem(sys.modules, "_workcell", fake_workcell)
    from workcell_kernel import inproc

    yield inproc
    for name in [name for name in list(sys.modules) if name.split(".")[0] == "workcell_kernel"]:
        monkeypatch.delitem(sys.modules, name)


def test_a_session_ends_while_others_import(inproc, monkeypatch):
    """Modules that come and go in another thread do not disturb the end of a session."""
    before = sys.getswitchinterval()
    over = threading.Event()

    def imports():
        number = 0
        while not over.is_set():
            name = "workcell_test_module_%d" % number
            sys.modules[name] = types.ModuleType(name)
            sys.modules.pop("workcell_test_module_%d" % (number - 50), None)
            number += 1
        for each in range(number):
            sys.modules.pop("workcell_test_module_%d" % each, None)

    thread = threading.Thread(target=imports)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for number in range(300):
            name = "workcell_kernel_x%d" % number
            sys.modules[name] = sys.modules[name + ".cell"] = types.ModuleType(name)
            inproc._forget_modules(name)
            assert name not in sys.modules and name + ".cell" not in sys.modules
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(before)
