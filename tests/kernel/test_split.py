"""The last statement of a cell, cut off without a tree: never otherwise than a tree would have it."""
import ast
import glob
import os
import random
import sys
import textwrap
import warnings

import pytest

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "kernel")))

from workcell_kernel.split import place, split  # noqa: E402

FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def check(source):
    """Whether it was cut; compared with the tree."""
    parts = split(source, "<cell>", FLAGS)
    if parts is None:
        return False
    compile(source, "<cell>", "exec", FLAGS, True)
    at = place(source)
    first = ast.parse(source[:at]).body
    last = ast.parse("\n" * source.count("\n", 0, at) + source[at:]).body

    def dumps(nodes):
        return [ast.dump(node, include_attributes=True) for node in nodes]

    assert dumps(first + last) == dumps(ast.parse(source).body)
    assert len(last) == 1 and (parts[0] is not None) == (at > 0)
    assert parts[2] == isinstance(last[0], ast.Expr)
    return True


@pytest.mark.parametrize("source", [
    "x = 1\nx", "x = 1\nx\n\n", "x = 1\nx  # it\n# more\n", "x = 1", "f(a=1)", "x = 1\nprint(x, end='')", "a\nf(\n    1,\n)\n",
    "a\n[\n  1,\n]", "import os\nos", "for i in a:\n    f(i)\n", "f(1)\nfor i in a:\n    f(i)\n    # the end\n", "a\nx == 1", "a\nx >= 1",
    "if a:\n    b\nelse:\n    c\nd", "@f\ndef g(): pass\ng()", "def f():\n    return 1\n", "'''doc'''\nx", "x = '''\na\n'''\nx",
    "\n\nx = 1\nx", "a\nwith b as c:\n    d", "a[1:2]\nb[f(1)]", "a\n'x = ' in f(1)", "a\n'b=c'", "a\nx, y = b", "a\nx.y += 1", "a\nx **= 2", "a\nx = y = 1", "a\nx <<= 1",
    "x = 1\\\n\ny", "x = '\\d'\nx",
])
def test_cut(source):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert check(source)


@pytest.mark.parametrize("source", [
    "", "\n", "# nothing", "a\nif b:\n    c\nelse:\n    d", "try:\n    a\nexcept E:\n    b", "a; b", "a\nb;", "x = 1 + \\\n2",
    "f('''\nimport x''')", "f(a\nif b else c)", "x = '''\nfoo()\n'''", "(a\n+b)", "@f\nx", "await a", "a\nawait b", "x = 1\nglobal x",
    "x = 1\nif x:\n    global x", "x = 1\nfrom __future__ import annotations", "from __future__ import annotations\nx", "%%bash\nls",
    "x = !ls\nx", "%time f()\ng()", "a\nb?", "a\nreturn 1", "a\nx := 1", "a\n    b", "if a:\nb", "a\n\0", "a b\nc", "a\n\x0cb", "a\nd['k'] = 1", "a\nx: int = 1",
])
def test_left_to_the_tree(source):
    assert not check(source)


def test_a_future_that_is_there_already():
    import __future__

    flag = __future__.annotations.compiler_flag
    assert split("x: int = 1\nx", "<cell>", FLAGS | flag) is not None


def test_as_the_tree_of_real_programs():
    """Pieces of the standard library, whole statements and cut anywhere."""
    dice = random.Random(2)
    files = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))
    dice.shuffle(files)
    cut = tried = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in files[:30]:
            with open(name, encoding="utf-8", errors="replace") as file:
                text = file.read()
            lines, tree = text.split("\n"), ast.parse(text)
            bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list) and node.body]
            for _ in range(40 if bodies else 0):
                body = dice.choice(bodies)
                i = dice.randrange(len(body))
                begin = min([body[i].lineno] + [each.lineno for each in getattr(body[i], "decorator_list", [])]) - 1
                end = body[min(len(body), i + dice.randint(1, 6)) - 1].end_lineno
                if dice.random() < 0.3:
                    end = dice.randint(begin + 1, len(lines))
                tried += 1
                piece = textwrap.dedent("\n".join(lines[begin:end]))
                cut += check(piece + dice.choice(["", "\n", "\n\n", "  ", "\n# c\n", "\n    # c"]))
    assert cut > tried / 3
