"""Plain expressions run in one step of C (kernel/ext/plain.c). Nothing but the time may tell them from those that run in Python."""
import json
import re

import pytest

import support

CELLS = (
    "1+1", "_ + 1", "In[-1], len(In), sorted(Out), _2, __, ___", "None", "'text'", "10**30", "-5", "2**63", "-2**63", "True", "b'x'",
    "x = 5", "x", "x; 6", "x;", " 7", "7 # seven", "ä = 1", "ä", "'ü'", "(1", "1 +", "1/0", "missing", "'\\ud800'", "'\\0'",
    "int('7' * 5000)", "print('a') or 3", "print('err', file=__import__('sys').stderr)", "quit", "display(1)",
    "[n for n in range(3)]", "lambda: 1", "not x", "await_ = 1", "await_", "__import__('asyncio').sleep(0)",
    "await __import__('asyncio').sleep(0, 4)", "[y async for y in z]", "!echo shell", "%who_ls", "len?", "1 is 1",
    "__import__('warnings').warn('here')", "'__warningregistry__' in globals()", "__import__('warnings').warn('here')", "'\\d'",
    "from __future__ import annotations", "1 + 2", "__import__('sys')._getframe().f_code.co_filename",
    "__import__('linecache').getline(__import__('sys')._getframe().f_code.co_filename, 1)",
    "def fail(n):\n    raise ValueError(n)", "fail(3)", "def deep(): deep()", "deep()", "class Odd(int):\n    __repr__ = lambda self: 'odd'",
    "Odd(3)", "get_ipython().run_cell('5').result", "get_ipython().events.register('post_execute', lambda: print('post'))", "8", "x = 9",
    "get_ipython().events.callbacks['post_execute'].clear()", "10", "_", "exit(4)",
)


def outcome(cell):
    text = json.dumps({name: cell[name] for name in ("value", "repr", "mime", "stdout", "stderr", "error")})
    return json.loads(re.sub(r"\b0x[0-9a-f]+|repeated \d+ more", "", text))


def run(*flags, python=None):
    done = support.run_cells(*CELLS, flags=("--keep-going", *flags), python=python)
    found = [outcome(json.loads(line)) for line in done.out.splitlines()]
    assert len(found) == len(CELLS), done.err
    return found


@pytest.mark.parametrize("python", (None, support.PYTHON), ids=("bare", "with IPython"))
def test_plain_cells_as_in_python(python, tmp_path):
    in_python = run("--restore-cwd", python=python)
    assert in_python[0]["value"] == 2 and in_python[CELLS.index("1/0")]["error"]["type"] == "ZeroDivisionError"
    for flags in ((), ("--base", str(tmp_path))):
        for source, plain, slow in zip(CELLS, run(*flags, python=python), in_python):
            assert plain == slow, (flags, source)


@pytest.mark.parametrize("loop", ("spin()", "__import__('time').sleep(60)", "all(True for _ in iter(int, 1))"))
def test_plain_cell_is_interrupted(loop):
    done = support.run_cells("def spin():\n    while True: pass", loop, "1 + 1", "len(In)", flags=("--keep-going", "--timeout", "0.3"))
    _, stopped, after, cells = map(json.loads, done.out.splitlines())
    assert stopped["error"]["code"] == "timeout" and stopped["state"] == "kept"
    assert (after["value"], cells["value"]) == (2, 5)
