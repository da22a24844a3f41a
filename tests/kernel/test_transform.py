"""IPython syntax to Python: fixed answers everywhere, those of the real IPython where there is one."""

import ast
import os
import sys

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "kernel")))

from workcell_kernel.interactive import Interactive, transform_cell  # noqa: E402

try:
    import IPython
    from IPython.core.inputtransformer2 import TransformerManager

    # The series whose rules for prompts and indentation we follow.
    theirs = TransformerManager().transform_cell if int(IPython.__version__.split(".")[0]) >= 9 else None
except ImportError:
    theirs = None

LINE = "get_ipython().run_line_magic(%r, %r)"
SYSTEM = "get_ipython().system(%r)"
OUTPUT = "get_ipython().getoutput(%r)"
CELL = "get_ipython().run_cell_magic(%r, %r, %r)"

# cell, expected Python; line numbers included
CELLS = [
    ("!ls", SYSTEM % "ls"),
    ("!ls -l *.py | wc -l", SYSTEM % "ls -l *.py | wc -l"),
    ("  !ls", SYSTEM % "ls"),
    ("!!ls", OUTPUT % "ls"),
    ("x = !ls", "x = " + OUTPUT % "ls"),
    ("x = !echo it's", "x = " + OUTPUT % "echo it's"),
    ('x = !echo "a', "x = " + OUTPUT % 'echo "a'),
    ('x = !awk "{print $1}" f', "x = " + OUTPUT % 'awk "{print $1}" f'),
    ("a, b = !ls", "a, b = " + OUTPUT % "ls"),
    ("x.y[0] = !ls", "x.y[0] = " + OUTPUT % "ls"),
    ("x[f(a=1)] = !ls", "x[f(a=1)] = " + OUTPUT % "ls"),
    ("x: list = !ls", "x: list = " + OUTPUT % "ls"),
    ("x = %time 5", "x = " + LINE % ("time", "5")),
    ("x =%pwd", "x =" + LINE % ("pwd", "")),
    ("if 1: y = !ls", "if 1: y = " + OUTPUT % "ls"),
    ("%time x = 5", LINE % ("time", "x = 5")),
    ("%matplotlib inline\nx = 1", LINE % ("matplotlib", "inline") + "\nx = 1"),
    ("x = 1\n!echo {x}\ny = 2", "x = 1\n" + SYSTEM % "echo {x}" + "\ny = 2"),
    ("for i in range(2):\n    !echo {i}", "for i in range(2):\n    " + SYSTEM % "echo {i}"),
    (
        "for i in range(2):\n    x = !ls\n    print(x)",
        "for i in range(2):\n    x = " + OUTPUT % "ls" + "\n    print(x)",
    ),
    ("def f():\n\t%pwd\n\treturn 1\nf()", "def f():\n\t" + LINE % ("pwd", "") + "\n\treturn 1\nf()"),
    (
        "if x:\n    !a\nelse:\n    !b\n!c",
        "if x:\n    " + SYSTEM % "a" + "\nelse:\n    " + SYSTEM % "b" + "\n" + SYSTEM % "c",
    ),
    ("!echo a \\\n   b\nx = 1", SYSTEM % "echo a     b" + "\n\nx = 1"),
    ("x = !echo a \\\n   b\ny", "x = " + OUTPUT % "echo a     b" + "\n\ny"),
    ("%time f(1, \\\n  2)\ny", LINE % ("time", "f(1,    2)") + "\n\ny"),
    ("!echo \\", SYSTEM % "echo \\"),
    ("len?", LINE % ("pinfo", "len")),
    ("len??", LINE % ("pinfo2", "len")),
    ("?len", LINE % ("pinfo", "len")),
    ("??a.b", LINE % ("pinfo2", "a.b")),
    ("a.b[0].c?", LINE % ("pinfo", "a.b[0].c")),
    ("a.*b?", LINE % ("psearch", "a.*b")),
    ("x = 1\nlen?\ny = 2", "x = 1\n" + LINE % ("pinfo", "len") + "\ny = 2"),
    ("if 1:\n    len?", "if 1:\n    " + LINE % ("pinfo", "len")),
    ("%time?", LINE % ("pinfo", "%time")),
    ("%%time?", LINE % ("pinfo", "%%time")),
    ("?", "get_ipython().show_usage()"),
    ("%%time\nx = 1", CELL % ("time", "", "x = 1\n")),
    ('\n\n%%bash -e\necho "%d" \\\n!x\n', "\n\n" + CELL % ("bash", "-e", 'echo "%d" \\\n!x\n')),
    ("%%bash", CELL % ("bash", "", "")),
    ("%%writefile a b.txt \n  x\n\ty\n", CELL % ("writefile", "a b.txt", "  x\n\ty\n")),
    ("    x = 1\n    !ls\n    if x:\n        y = 2", "x = 1\n" + SYSTEM % "ls" + "\nif x:\n    y = 2"),
    (">>> x = 1\n>>> for i in x:\n...     !ls\n", "x = 1\nfor i in x:\n    " + SYSTEM % "ls"),
    ("In [1]: x = 1\n   ...: y = 2", "x = 1\ny = 2"),
    ("In [12]: !ls", SYSTEM % "ls"),
    # not special
    ('x = """\n!ls\n%pwd\nlen?\n"""\n!ls', 'x = """\n!ls\n%pwd\nlen?\n"""\n' + SYSTEM % "ls"),
    ("x = f'{y!r}'\n!ls", "x = f'{y!r}'\n" + SYSTEM % "ls"),
    ("x = (1\n%y)\n!ls", "x = (1\n%y)\n" + SYSTEM % "ls"),
    ("x = 7 \\\n%y\n!ls", "x = 7 \\\n%y\n" + SYSTEM % "ls"),
    ("x = [1,\n  2]\n%pwd", "x = [1,\n  2]\n" + LINE % ("pwd", "")),
    ("f(a=1)\nx = y % z\n!ls", "f(a=1)\nx = y % z\n" + SYSTEM % "ls"),
    ("s = 'what?'\n!ls", "s = 'what?'\n" + SYSTEM % "ls"),
    ("# what?\n!ls", "# what?\n" + SYSTEM % "ls"),
    ("x = 1 # !ls\n%pwd", "x = 1 # !ls\n" + LINE % ("pwd", "")),
    ("x != 1\n%pwd", "x != 1\n" + LINE % ("pwd", "")),
    ('d = {\n"a": """%s\n!x\n""" % 1,\n}\n!ls', 'd = {\n"a": """%s\n!x\n""" % 1,\n}\n' + SYSTEM % "ls"),
    ("@a\nasync def f():\n    await x\n!ls", "@a\nasync def f():\n    await x\n" + SYSTEM % "ls"),
]


def test_table():
    for cell, expected in CELLS:
        got = transform_cell(cell)
        assert got == expected + "\n", "%r\n--- got\n%s--- expected\n%s" % (cell, got, expected)


def test_like_ipython():
    if theirs is None:
        return
    for cell, _ in CELLS:
        ours, other = transform_cell(cell), theirs(cell)
        try:
            assert ast.dump(ast.parse(ours)) == ast.dump(ast.parse(other)), "%r\n%s\n%s" % (cell, ours, other)
        except SyntaxError:
            assert ours.split() == other.split(), "%r\n%s\n%s" % (cell, ours, other)


def test_shell_lines_are_never_help():
    # IPython would describe an object called `file` here.
    assert transform_cell("!ls file?") == SYSTEM % "ls file?" + "\n"
    assert transform_cell("x = !ls file?") == "x = " + OUTPUT % "ls file?" + "\n"


def test_line_endings():
    assert transform_cell("!ls\r\nx = 1\r\n") == SYSTEM % "ls" + "\nx = 1\n"
    assert transform_cell("%%bash\r\na\r\nb") == CELL % ("bash", "", "a\nb\n") + "\n"


def test_python_is_left_alone():
    sources = [
        "",
        "\n",
        "   \n",
        "x",
        "x = 1\n",
        "\n\nx = (\n1)\n",
        'def f():\n    """doc\n  x"""\n    return 1\n',
    ]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "kernel", "workcell_kernel")
    for name in os.listdir(path):
        if name.endswith(".py"):
            with open(os.path.join(path, name), encoding="utf-8") as f:
                sources.append(f.read())
    for source in sources:
        assert transform_cell(source).rstrip("\n") == source.rstrip("\n").rstrip(" ") or not source.strip()


def test_broken_python_keeps_its_lines():
    # The error is for the compiler to report, at the right line.
    for source in (
        "x = (1,\n!ls\n",
        'x = """abc\n!ls\n',
        "x = 'abc\n!ls\n",
        "if 1:\n  x\n y\n!ls\n",
        "08\n!ls\n",
        "a b c\n!ls",
    ):
        got = transform_cell(source)
        assert got.count("\n") == source.rstrip("\n").count("\n") + 1, (source, got)
        assert got.split("\n")[0] == source.split("\n")[0]
    assert transform_cell("x = 'abc\n!ls\n") == "x = 'abc\n" + SYSTEM % "ls" + "\n"


def test_many_commands_are_fast():
    import time

    source = "".join("x%d = [1, 2, (3, 4)]\n!echo %d\ny = !ls\n" % (i, i) for i in range(700))
    start = time.process_time()  # whatever else the machine does
    ast.parse(transform_cell(source))
    assert time.process_time() - start < 3


def test_automagic():
    ip = Interactive({"x": 1, "cd": 2})
    assert ip.transform_cell("pip install -q numpy") == LINE % ("pip", "install -q numpy") + "\n"
    assert ip.transform_cell("cat a.txt\n") == LINE % ("cat", "a.txt") + "\n"
    for source in (
        "cd ..\n",
        "nosuch magic\n",
        "pip = = 3\n",
        "x y\n",
        "pip install a\npip install b\n",
        "time, = 3 4\n",
    ):
        assert ip.transform_cell(source) == source


def main():
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)


if __name__ == "__main__":
    main()
