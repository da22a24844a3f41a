"""The portable form of saved sessions: what it carries, what it names, where it can be read."""
import importlib
import linecache
import os
import subprocess
import sys
import types

import pytest

import workcell
from test_durable import EXECUTORS, STATES, place  # noqa: F401  a fixture
from workcell import CodeModeError, WakeError
from workcell.sync import Session

KERNEL = os.path.join(os.path.dirname(__file__), "..", "..", "kernel", "workcell_kernel")
# Variables of STATES that are no data: each is named.
LEFT = {"halfway", "raw", "struct_", "callback", "var", "token", "packer", "digest", "base", "lock", "local", "temporary", "trace", "sent"}
# What has no variable: one entry of the list says so.
SETTINGS = {"logging", "json", "warnings", "sys.displayed"}
MORE = [
    ("import numpy as np; matrix = np.arange(6.0).reshape(2, 3); same = matrix", "same is matrix and float(matrix.sum()) == 15.0", True),
    ("import pandas as pd; frame = pd.DataFrame({'a': [1, 2]})", "int(frame.a.sum())", 3),
    ("view_of = matrix[0]", "view_of.tolist()", [0.0, 1.0, 2.0]),
    ("def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)", "even(10)", True),
    ("class Node:\n    made = 0\n    def __init__(self): self.me = self; Node.made += 1\n    @property\n    def twice(self): return 2 * Node.made\n"
     "    @classmethod\n    def make(cls): return cls()\nnode = Node.make()", "node.me is node and node.twice == 2 and Node is type(node)", True),
    ("import abc\nclass Shape(abc.ABC):\n    @abc.abstractmethod\n    def area(self): ...\nclass Box(Shape):\n    def area(self): return 4\nbox = Box()", "box.area()", 4),
    ("import typing\nclass Point(typing.NamedTuple):\n    x: int = 0\npoint = Point(3)", "point.x + Point().x", 3),
    ("class Level(enum.IntEnum):\n    LOW = 1\n    HIGH = 2\n    def up(self): return Level.HIGH\nlevel = Level.LOW", "level.up() is Level.HIGH", True),
    ("def kw(a, *, b=[1]): return a + b[0]\nkw.note = 'x'", "kw(1) + (kw.note == 'x')", 3),
    ("fs = [lambda n, i=i: n + i for i in range(3)]", "[f(1) for f in fs]", [1, 2, 3]),
    ("both = [rows, rows]", "both[0] is both[1] and both[0] is rows", True),
    ("def counting():\n    n = 0\n    def up():\n        nonlocal n; n += 1; return n\n    def get(): return n\n    return up, get\nup, get = counting(); up()",
     "(up(), get())[1]", 2),
]


def name_of(code):
    return [name for name in LEFT if any(part in code for part in (name + " = ", name + ", "))]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_each_state_is_carried_or_named(executor, place):  # noqa: F811
    with Session(None, executor, saved=place, saved_form="portable") as session:
        for code, _, _ in STATES + MORE:
            session.run(code).raise_for_error()
        answer = session.hibernate()
    assert answer.form == "portable"
    left = LEFT | {"file"} if executor == "sandbox" else LEFT  # /tmp is the sandbox's own
    assert {name for each in answer.not_carried for name in each.variables} == left
    assert [each.kind for each in answer.not_carried if not each.variables] == ["modules"]
    with Session.wake(answer.session_id, place, None, executor) as session:
        first = session.run("1")
        assert len(first.notices) == len(answer.not_carried) and any("halfway" in each for each in first.notices)
        checked = 0
        for code, expression, value in STATES + MORE:
            if name_of(code) or (expression.startswith("file.") and executor == "sandbox") or any(code.startswith("import " + each) or each in expression for each in SETTINGS) or "cache_info" in expression:
                continue
            result = session.run(expression)
            assert result.error is None and result.value == value, (code, result)
            checked += 1
        assert checked >= 50
        if executor == "subprocess":
            session.run("file.close(); os.unlink(file.name)").raise_for_error()


@pytest.mark.parametrize("there, here", [("sandbox", "subprocess"), ("subprocess", "sandbox")])
def test_another_executor_and_another_folder_can_wake_it(place, tmp_path, there, here):  # noqa: F811
    with Session(None, there, saved=place, saved_form="portable") as session:
        session.run("def f(n):\n    return n + add\nadd = 5").raise_for_error()
        answer = session.hibernate()
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    with Session.wake(answer.session_id, place, None, here) as session:
        assert session.run("f(1)").value == 6
        assert session.run("import inspect; inspect.getsource(f)").value == "def f(n):\n    return n + add\n"
        again = session.hibernate()
        assert again.form == "image" and session.run("f(2)").value == 7


def test_an_image_is_refused_where_the_portable_form_is_not(place):  # noqa: F811
    with Session(None, "sandbox", saved=place) as session:
        session.run("x = 1")
        answer = session.hibernate()
    with pytest.raises(WakeError):
        Session.wake(answer.session_id, place, None, "subprocess").start()


def test_a_form_that_does_not_exist(place):  # noqa: F811
    with pytest.raises((CodeModeError, ValueError), match="saved_form"):
        Session(saved=place, saved_form="zip").start()


def test_reading_runs_no_code_outside_of_the_kernel(place):  # noqa: F811
    """An object whose reading runs code: it runs where the session is confined, and not in this process."""
    with Session(None, "sandbox", saved=place, saved_form="portable") as session:
        session.run("class Evil:\n    def __reduce__(self): return (exec, ('import os; pid = os.getpid(); who = open(\"/proc/self/comm\").read()', shared))\n"
                    "shared = {}\nevil = Evil()").raise_for_error()
        answer = session.hibernate()
    with Session.wake(answer.session_id, place, None, "sandbox") as session:
        assert session.run("shared['pid'] == __import__('os').getpid() or shared").value is True
    assert "shared" not in globals()


def test_a_variable_whose_module_is_missing_is_named_and_the_others_are_there(place, tmp_path):  # noqa: F811
    """The module is on the path of the saving session only."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_here.py").write_text("__version__ = '1.2'\nclass Thing:\n    pass\n")
    with Session(None, "subprocess", saved=place, saved_form="portable") as session:
        session.run("import sys; sys.path.insert(0, %r)\nimport only_here\nthing = only_here.Thing(); other = [1, 2]; inside = {'t': thing}\n"
                    "sys.path.pop(0); None" % str(tmp_path / "lib")).raise_for_error()
        answer = session.hibernate()
    with Session.wake(answer.session_id, place, None, "subprocess") as session:
        result = session.run("other, 'thing' in globals(), 'inside' in globals(), 'only_here' in globals()")
        assert result.value == [[1, 2], False, False, False] or result.repr == "([1, 2], False, False, False)"
        assert "[not carried: " in result.stderr and "No module named 'only_here'" in result.stderr
        assert session.run("1").stderr == ""


@pytest.fixture
def objects(monkeypatch):
    """The module in this process, beside that of any session: it uses nothing of the kernel's extension."""
    package = types.ModuleType("workcell_kernel_alone")
    package.__path__ = [KERNEL]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, "_workcell", types.ModuleType("_workcell"))
    yield importlib.import_module(package.__name__ + ".objects")
    for name in [name for name in sys.modules if name.startswith(package.__name__ + ".")]:
        del sys.modules[name]


def test_functions_of_another_python_are_made_of_their_source(objects, monkeypatch):
    source = "def outer(a):\n    b = 2\n    def inner(c): return a + b + c\n    return inner\nf = outer(1); g = lambda n: n * 3\n"
    linecache.cache["<cell 1>"] = (len(source), None, source.splitlines(True), "<cell 1>")
    ns = {"__name__": "__main__"}
    exec(compile(source, "<cell 1>", "exec"), ns)
    fd = os.memfd_create("portable")
    assert objects.save(fd, ns, lambda name, value: not name.startswith("_")) == [["modules", objects.SETTINGS, []]]
    monkeypatch.setattr(objects, "same_python", lambda head: False)
    monkeypatch.setattr(objects.marshal, "loads", lambda data: pytest.fail("code of another Python"))
    found = {}
    objects.load(fd, found, print)
    assert found["f"](3) == 6 and found["g"](2) == 6
    os.close(fd)


@pytest.mark.parametrize("spoil", [
    lambda data: data[:20] + (1 << 40).to_bytes(8, "little") + data[28:],  # the size of the head
    lambda data: data[:200],
    lambda data: data[:20] + b"\0" * 100,
    lambda data: data.replace(b'"version": 1', b'"version": 9'),
    lambda data: data[:-4],
], ids=["huge head", "cut", "zeros", "version", "cut pickle"])
def test_a_spoilt_file_is_an_error(objects, spoil):
    fd = os.memfd_create("portable")
    objects.save(fd, {"a": list(range(100))}, lambda name, value: True)
    data = spoil(os.pread(fd, 1 << 20, 0))
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)
    with pytest.raises(ValueError):
        objects.load(fd, {}, print)
    os.close(fd)
