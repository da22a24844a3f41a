"""The kernel's C part that every cell runs through (kernel/ext/cell.c), and what stands for it in Pyodide (deno/_workcell.py)."""
import importlib.util
import os
import random
import re
import string
import sys

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BIN = os.environ.get("WORKCELL_BIN", os.path.join(ROOT, "build", "workcell"))
sys.path.insert(0, os.path.join(ROOT, "kernel"))

from workcell_kernel.split import STATEMENTS  # noqa: E402


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


in_c = load("_workcell", os.path.join(os.path.dirname(os.path.abspath(BIN)), "kernel", "_workcell.abi3.so"))
in_pyodide = load("_workcell_of_deno", os.path.join(ROOT, "deno", "_workcell.py"))
each = pytest.mark.parametrize("link", [in_c, in_pyodide], ids=["c", "pyodide"])
meant = re.compile(r"(?:[^\s=;a-zA-Z]|(?!(?:%s)\b)[a-zA-Z])[^\n=;]*\Z" % "|".join(sorted(STATEMENTS))).match


@each
@pytest.mark.parametrize("source", ["1+1", "x", "f(1)", "not x", "lambda: 1", "await f()", "importer", "if_", "None", "ä+1", "-1", "'if'", "%time f()",
                                    "_", "(1,\t2)", "x.if_", "ifä"])
def test_is_expression(link, source):
    assert link.is_expression(source, STATEMENTS) is True


@each
@pytest.mark.parametrize("source", ["", " x", "\tx", "\x1fx", "\nx", "x\n", "x = 1", "f(a=1)", "x;", "import os", "if", "if(x):y", "for i in x: pass",
                                    "raise", "def f(): pass", "pass#", "yield 1", "x\ny"])
def test_is_not_expression(link, source):
    assert link.is_expression(source, STATEMENTS) is False


@each
def test_is_expression_as_meant(link):
    chance = random.Random(17)
    words = sorted(STATEMENTS) + ["x", "None", "not", " ", "\t", "\n", "=", ";", "_", "1", "(", ".", "\0", "\x0b", "\x1c", "\x7f"]
    for _ in range(20000):
        source = "".join(chance.choice(words) if chance.random() < 0.6 else chance.choice(string.printable) for _ in range(chance.randrange(5)))
        assert link.is_expression(source, STATEMENTS) is bool(meant(source)), repr(source)


def test_is_expression_of_what_cannot_be_encoded():
    assert in_c.is_expression("'\ud800'", STATEMENTS) is False  # compile() says why it is not Python
    for wrong in (b"1", None, 1):
        with pytest.raises(TypeError):
            in_c.is_expression(wrong, STATEMENTS)
    with pytest.raises((TypeError, SystemError)):
        in_c.is_expression("x", None)


@pytest.mark.parametrize("value", [0, 7, -1, 10, 99, 100, -100, 2**31, -2**31, 2**63 - 1, -2**63, 123456789012345678])
def test_remembered_numbers(value):
    ns, out = {"_": "before"}, {}
    assert in_c.remember(ns, out, 12, value) == str(value).encode()
    assert ns == {"_": value, "__": "before", "___": None, "_12": value} and out == {12: value}


@pytest.mark.parametrize("value", [2**63, -2**63 - 1, True, 1.5, "x", None])
def test_other_values_have_no_plain_text(value):
    assert in_c.remember({}, {}, 1, value) is None
