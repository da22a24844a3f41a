"""The conformance table: cells and what must come of them, the same for every executor.

A case is a list of cells that run one after another on a fresh kernel.  A cell says what it expects; what it
does not say is held to the quiet default: no error, nothing on stdout or stderr, state kept.

    value, repr         of the last expression; value is compared with its JSON types
    no_value=True       value and repr are null and there is no MIME part
    stdout, stderr, text  exact, or a compiled pattern to search for, or ANY; text alone replaces the other two
    error               the type name, or a pattern for it, or ANY when both outcomes are fine
    code, message       of the error: the code word (default "exception"); exact, or a pattern
    traceback           strings and patterns that must be found, in this order
    traceback_not       strings that must not
    mime                exact parts of the value, {type: text or pattern or bytes}
    displays            the same for each display(), in order, or ANY
    check               a function of the result, for what does not fit above

`needs` names capabilities that an executor or interpreter may honestly lack.  An executor lists what it lacks
in EXCEPTIONS; everything else must pass.  `base` is what the session's base folder holds when the case begins,
{path: text}; without it the session has none.
"""
import json
import re

ANY = object()
# Executor name -> capabilities it does not have.  Known ones: children (processes), fork, threads, descriptors
# (fds 1 and 2 are real), files (cwd is a real directory), shell (/bin/sh, bash), environment (exact environ),
# namespaces (tools, workflows, artifacts, deps), alone (no thread and no descriptor but the kernel's), main_thread (cells run
# on the interpreter's main thread, where signals are handled), modules (modules are the session's own: code may break them),
# stack (recursion in C code ends in RecursionError), bare (a session can be without namespaces), semaphores (POSIX ones, that
# multiprocessing's pools want), proc (/proc/self can be listed).
EXCEPTIONS = {
    "subprocess": set(),
    # One process: its descriptors, environment, signals and modules are the host's, and the host is not confined.
    "inprocess": {"descriptors", "environment", "main_thread", "modules", "alone"},
    # ipykernel has threads and ZeroMQ sockets of its own in the process.
    "jupyter": {"alone"},
    # WebAssembly has one thread, no processes, and nothing of the system's own: docs/executors.md.
    "deno": {"children", "fork", "threads", "shell", "stack"},
    # A server's sessions always have its storage.
    "remote": {"bare"},
    # The sandbox where user namespaces are forbidden: /dev/shm and /proc are the machine's, and out of reach.
    "no-userns": {"semaphores", "proc"},
    "container": {"bare"},
}


class Case:
    def __init__(self, name, *cells, needs=(), base=None):
        self.name, self.cells, self.needs, self.base = name, cells, set(needs), base


def cell(source, **expect):
    known = {"value", "repr", "no_value", "stdout", "stderr", "text", "error", "code", "message", "traceback",
             "traceback_not", "mime", "displays", "check", "timeout"}
    assert set(expect) <= known, set(expect) - known
    return source, expect


def has(text):
    return re.compile(re.escape(text))


def exact(source, value, **expect):
    """A value that is the same in JSON."""
    return cell(source, value=value, **expect)


def inexact(source, text):
    """A value that JSON would change: null, and the repr tells."""
    return cell(source, value=None, repr=text)


def raises(source, kind, **expect):
    return cell(source, error=kind, **expect)


CASES = []


def case(name, *cells, needs=()):
    CASES.append(Case(name, *cells, needs=needs))


# ---- the value of a cell -----------------------------------------------------------------------------------

case("last expression", exact("1 + 1", 2, repr="2", mime={"text/plain": "2"}))
case("last expression after statements", exact("x = 20\ny = 22\nx + y", 42))
case("last of several expressions", exact("1\n2\n3", 3), exact("4; 5", 5))
case("semicolon hides the value", cell("1 + 1;", no_value=True), cell("1;  # said nothing", no_value=True),
     exact("'a;'", "a;"), exact("2  # not hidden;", 2), cell("x = 3;", no_value=True), exact("x", 3))
case("statements have no value", cell("x = 5", no_value=True), cell("if x:\n    x", no_value=True),
     cell("for i in [1, 2]:\n    i", no_value=True), cell("def f():\n    return 3", no_value=True),
     cell("import os", no_value=True))
case("None", cell("None", value=None), cell("print('x')", stdout="x\n", no_value=True))
case("empty cells", cell("", no_value=True), cell("   \n\n  ", no_value=True),
     cell("# only this", no_value=True),
     cell("\n\n# this\n  # and this\n", no_value=True), cell("pass", no_value=True))
case("docstring alone is a value", exact('"""doc"""', "doc"))
case("conditional expression and lambda", exact("(lambda a: a * 2)(21) if True else 0", 42))
case("walrus", exact("(n := 10) + 1", 11), exact("n", 10))

# ---- state from cell to cell -------------------------------------------------------------------------------

case("variables persist", cell("x = [1]"), cell("x.append(2)"), exact("x", [1, 2]))
case("imports persist", cell("import math\nfrom collections import Counter as C"),
     exact("[math.floor(2.5), C('aab')['a']]", [2, 2]))
case("functions persist", cell("def add(a, b=1):\n    return a + b"), exact("add(41)", 42))
case("classes persist", cell("class A:\n    def m(self):\n        return 'm'"), exact("A().m()", "m"),
     exact("A.__module__", "__main__"), exact("A.__qualname__", "A"))
case("del", cell("x = 1"), cell("del x"), raises("x", "NameError", message=has("'x'")))
case("state after an error", cell("x = 1"), raises("x = 2\n1 / 0\nx = 3", "ZeroDivisionError"), exact("x", 2))
case("state after a syntax error", cell("x = 1"), raises("x = 2\n)", "SyntaxError"), exact("x", 1))
case("global, closures, recursion",
     cell("count = 0\ndef bump():\n    global count\n    count += 1\n    return count"),
     exact("bump(); bump()", 2),
     exact("count", 2), cell("def outer():\n    n = 0\n    def inner():\n        nonlocal n\n        n += 1\n"
                            "        return n\n    return inner\nf = outer()"), exact("f(); f()", 2),
     cell("def fact(n):\n    return 1 if n < 2 else n * fact(n - 1)"), exact("fact(10)", 3628800))
case("dataclass", cell("from dataclasses import dataclass, field\n@dataclass\nclass P:\n    x: int\n"
                       "    tags: list = field(default_factory=list)"),
     exact("P(1) == P(1)", True), inexact("P(1, ['a'])", "P(x=1, tags=['a'])"))
case("pickle of a class made in a cell", cell("import pickle\nclass K:\n    def __init__(self): self.v = 7"),
     exact("pickle.loads(pickle.dumps(K())).v", 7))
case("annotations", exact("import __main__\nx: int = 3\n__main__.__annotations__['x'].__name__", "int"))
case("future import persists", cell("from __future__ import annotations"), cell("def f(x: Undefined): pass"),
     exact("f.__annotations__", {"x": "Undefined"}))
case("_ and friends", exact("40 + 1", 41), exact("_ + 1", 42), exact("[_, __]", [42, 41]),
     exact("Out[1]", 41), exact("_2", 42), exact("In[1]", "40 + 1"), exact("len(In) >= 6", True))
case("_ skips hidden and missing values", exact("7", 7), cell("x = 1"), exact("_", 7))
case("main module", exact("__name__", "__main__"), raises("__file__", "NameError"), cell("x = 5"),
     exact("import __main__\n__main__.x", 5), exact("import sys\nsys.modules['__main__'].x", 5),
     exact("globals() is locals() is vars(__main__)", True))
case("name is main guard", cell("if __name__ == '__main__':\n    print('ran')", stdout="ran\n"))
case("source of a function of an earlier cell", cell("def f():\n    # why\n    return 1"),
     exact("import inspect\ninspect.getsource(f)", "def f():\n    # why\n    return 1\n"))
case("patched modules do not break the kernel",
     cell("import json, sys, builtins\njson.dumps = json.loads = lambda *a, **k: b'patched'\nsys.modules['re'] = None\n"
          "builtins.print = builtins.open = None"),
     exact("{'a': [1]}", {"a": [1]}), inexact("(1, 2)", "(1, 2)"), raises("1 / 0", "ZeroDivisionError"),
     cell("display(5)", displays=[{"text/plain": "5"}]), exact("x = [1]\nx", [1]), needs=["modules"])
case("names of the kernel do not leak", exact(
    "sorted(n for n in dir() if not n.startswith('_') and n not in "
    "('In', 'Out', 'exit', 'quit', 'get_ipython', 'open', 'display'))", []), needs={"bare"})

# ---- source ------------------------------------------------------------------------------------------------

case("indented cell", exact("    x = 1\n    x + 1", 2), exact("\ty = 2\n\ty", 2))
case("unicode", exact("π = 3\nπ", 3), exact("'naïve 🐍 ' + '\\u00e9'", "naïve 🐍 é"),
     cell("print('日本語 🐍')", stdout="日本語 🐍\n"), exact("ﬁ = 1\nfi", 1))
case("CRLF", exact("x = 1\r\nif x:\r\n    x += 1\r\nx\r\n", 2), exact("'''a\r\nb'''", "a\nb"))
case("tabs", exact("if True:\n\tx = 5\n\tif x:\n\t\tx += 1\nx", 6))
case("no newline, many newlines", exact("5", 5), exact("\n\n\n6\n\n\n\n", 6))
case("NUL in the source", raises("x = 1\0", re.compile("SyntaxError|ValueError"), message=has("null byte")),
     exact("1", 1))
case("1 MB of source", exact("x = '" + "a" * (1 << 20) + "'\nlen(x)", 1 << 20),
     exact("\n".join("v%d = %d" % (i, i) for i in range(20000)) + "\nv19999", 19999))
case("form feed and backslash", exact("x = 1\n\f\nx + \\\n1", 2))
case("signs of the shell inside Python", exact('s = """\n!not a command\n%not a magic\n"""\ns',
                                               "\n!not a command\n%not a magic\n"),
     exact("(7\n%4)", 3), exact("x = (1\n!=2)\nx", True), exact("y = 7\ny %= 4\ny", 3),
     exact("'!ls', \"%time\"\n'?'", "?"))
case("type comments and decorators", exact("def twice(f):\n    return lambda: f() * 2\n\n@twice\ndef g():\n"
                                           "    return 21\n\ng()", 42))

# ---- async -------------------------------------------------------------------------------------------------

case("await", cell("import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x"),
     exact("await f(5)", 5), exact("y = await f(6)\ny + 1", 7), exact("[await f(i) for i in (1, 2)]", [1, 2]),
     exact("await asyncio.gather(f(1), f(2))", [1, 2]), cell("await f(3);", no_value=True))
case("async for", cell("async def gen():\n    for i in range(3):\n        yield i\nout = []"),
     cell("async for i in gen():\n    out.append(i)"), exact("out", [0, 1, 2]),
     exact("[i async for i in gen()]", [0, 1, 2]))
case("async with", cell("class M:\n    async def __aenter__(self): return 5\n    async def __aexit__(self, *a): "
                        "print('left')"), cell("async with M() as m:\n    print(m)", stdout="5\nleft\n"),
     exact("m", 5))
case("background task goes on in later cells",
     cell("import asyncio\nlog = []\nasync def bg():\n    for i in range(3):\n        log.append(i)\n"
          "        await asyncio.sleep(0)\n    return 'done'"),
     cell("task = asyncio.create_task(bg())\nawait asyncio.sleep(0)"), exact("log[0]", 0),
     exact("await task", "done"),
     exact("log", [0, 1, 2]))
case("objects of the loop in later cells", cell("import asyncio\nq = asyncio.Queue()\nawait q.put(1)"),
     exact("await q.get()", 1),
     cell("fut = asyncio.get_running_loop().create_future()\nawait asyncio.sleep(0)"),
     cell("fut.set_result(8)"), exact("await fut", 8))
case("asyncio.run", exact("import asyncio\nasync def f():\n    return 3\nasyncio.run(f())", 3),
     exact("await f()", 3), exact("asyncio.run(f())", 3))
case("error under await", cell("async def bad():\n    raise KeyError('gone')"),
     raises("await bad()", "KeyError",
            traceback=["await bad()", "raise KeyError('gone')", "KeyError: 'gone'"],
            traceback_not=["asyncio"]))
case("await of a non-awaitable", raises("await 1", "TypeError"))
case("yield and return outside a function", raises("return 1", "SyntaxError"),
     raises("yield 1", "SyntaxError"))

# ---- shell and magics --------------------------------------------------------------------------------------

case("!cmd", cell("!echo hi", stdout="hi\n", no_value=True), cell("!printf 'a\\nb\\n'", stdout="a\nb\n"),
     cell("x = 'v'\n!echo {x} $x", stdout="v v\n"), cell("!echo one\n!echo two\nprint('three')",
                                                        stdout="one\ntwo\nthree\n"), needs=["shell"])
case("!cmd to stderr", cell("!echo oops >&2", text="oops\n"), needs=["shell"])
case("!cmd that fails", cell("!exit 3"), exact("_exit_code", 3),
     cell("!nosuchcommand_1", text=has("not found")),
     exact("_exit_code", 127), needs=["shell"])
case("x = !cmd", cell("x = !printf 'a\\nb\\n'"), exact("list(x)", ["a", "b"]), cell("n = 2"),
     exact("y = !echo {n + 1}\ny[0]", "3"), needs=["shell"])
case("x = !cmd has .n .s .l", cell("x = !printf 'a\\nb\\n'"),
     exact("[x.n, x.s, list(x.l)]", ["a\nb", "a b", ["a", "b"]]),
     needs=["shell"])
case("! in a loop", cell("for i in range(3):\n    !echo item {i}", stdout="item 0\nitem 1\nitem 2\n"),
     cell("def f(w):\n    !echo {w}\nf('in f')", stdout="in f\n"),
     cell("if True:\n    z = !echo q\nprint(z[0])", stdout="q\n"), needs=["shell"])
case("! pipes and quotes", cell("!echo 'a b' | tr ' ' '\\n' | sort -r", stdout="b\na\n"),
     cell("!echo ${HOME:+set}", stdout="set\n"), cell("!echo $$ | grep -c '[0-9]'", stdout="1\n"),
     needs=["shell"])
case("! between prints", cell("print('1')\n!echo 2\nprint('3')", stdout="1\n2\n3\n"), needs=["shell"])
case("stdin of !cmd is empty", cell("!cat; echo end", stdout="end\n"), needs=["shell"])
case("%%bash", cell("%%bash\nfor i in 1 2; do echo $i; done", stdout="1\n2\n"),
     cell("%%bash\necho out\necho err >&2", stdout="out\n", stderr="err\n"),
     raises("%%bash\necho before\nexit 4", "CalledProcessError", stdout="before\n", message=has("4")),
     exact("1", 1), needs=["shell"])
case("%%sh", cell("%%sh\necho from sh", stdout="from sh\n"), needs=["shell"])
case("%%time and %time", exact("%%time\nx = 5\nx + 1", 6, stdout=has("Wall time")), exact("x", 5),
     exact("%time 2 + 2", 4, stdout=has("Wall time")))
case("%timeit", cell("%timeit -n 2 -r 1 1 + 1", stdout=has("loop")))
case("%%capture", cell("%%capture c\nprint('hidden')"), exact("c.stdout", "hidden\n"))
case("%cd and %pwd", cell("import os\nd = os.getcwd()"), cell("%cd /", stdout=ANY), exact("os.getcwd()", "/"),
     exact("%pwd", "/"), needs=["files"])
case("%env", cell("%env WC_A=b", stdout=ANY), exact("import os\nos.environ['WC_A']", "b"))
case("%who", cell("wc_name = 1"), cell("%who", stdout=has("wc_name")))
case("magic assigned", cell("p = %pwd"), exact("type(p).__name__", "str"), needs=["files"])
case("unknown magic", raises("%nosuch_magic 1", "UsageError", stderr=ANY, message=has("nosuch_magic")),
     exact("1", 1))
case("unknown cell magic", raises("%%nosuch_magic\nx", "UsageError", stderr=ANY, message=has("nosuch_magic")))
case("%matplotlib inline is accepted", cell("%matplotlib inline"), needs=["matplotlib"])
case("get_ipython", cell("get_ipython().run_line_magic('time', '1')", stdout=has("Wall time")),
     cell("get_ipython().system('echo sys')", stdout="sys\n"), needs=["shell"])

# ---- display and MIME --------------------------------------------------------------------------------------

HTML = "class H:\n    def _repr_html_(self): return '<b>h</b>'\n    def __repr__(self): return 'plain h'"
case("rich repr of the value", cell(HTML), cell("H()", value=None, repr="plain h",
                                              mime={"text/plain": "plain h", "text/html": "<b>h</b>"}))
case("display", cell(HTML), cell("display(H())", no_value=True,
                                displays=[{"text/plain": "plain h", "text/html": "<b>h</b>"}]),
     cell("display(1)\ndisplay('two', [3])\n4", value=4,
          displays=[{"text/plain": "1"}, {"text/plain": "'two'"}, {"text/plain": "[3]"}]))
case("display in a function and in a loop", cell("def f(x):\n    display(x)\nfor i in range(2):\n    f(i)",
                                               displays=[{"text/plain": "0"}, {"text/plain": "1"}]))
case("binary MIME data",
     cell("class P:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n\\x00\\xff'\n"
                              "    def __repr__(self): return 'P'"),
     cell("P()", repr="P", value=None, mime={"text/plain": "P", "image/png": b"\x89PNG\r\n\x1a\n\x00\xff"}),
     cell("display(P())", displays=[{"text/plain": "P", "image/png": b"\x89PNG\r\n\x1a\n\x00\xff"}]))
case("binary MIME data that looks like text",
     cell("class D:\n    def _repr_pdf_(self): return b'%PDF-1.4 all ASCII'\n    def __repr__(self): return 'D'"),
     cell("D()", mime={"text/plain": "D", "application/pdf": b"%PDF-1.4 all ASCII"}))
case("mimebundle", cell("class B:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n"
                        "        return {'text/plain': 'b', 'application/json': {'k': [1]}, 'text/x-own': 'own'}"),
     cell("B()", mime={"text/plain": "b", "application/json": {"k": [1]}, "text/x-own": "own"}))
case("other rich reprs",
     cell("class R:\n    def __repr__(self): return 'R'\n    def _repr_svg_(self): return '<svg/>'\n"
                              "    def _repr_markdown_(self): return '*m*'\n    def _repr_latex_(self): return '$l$'\n"
                              "    def _repr_json_(self): return {'a': 1}\n    def _repr_html_(self): return None"),
     cell("R()", mime={"text/plain": "R", "image/svg+xml": "<svg/>", "text/markdown": "*m*",
                       "text/latex": "$l$",
                       "application/json": {"a": 1}}))
case("a frame-like class",
     cell("class Frame:\n    def __init__(self, d): self.d = d\n    def __repr__(self):\n"
                                "        return '\\n'.join(' '.join(map(str, r)) for r in zip(*self.d.values()))\n"
                                "    def _repr_html_(self):\n        return '<table><tr><td>1</td></tr></table>'"),
     cell("Frame({'a': [1, 2], 'b': [3, 4]})", repr="1 3\n2 4",
          mime={"text/plain": "1 3\n2 4", "text/html": has("<table>")}))
case("a rich repr that fails", cell("class F:\n    def _repr_html_(self): raise ValueError('html')\n"
                                    "    def __repr__(self): return 'F'"), cell("F()", repr="F", stderr=ANY),
     exact("1", 1))
case("a class is not its instance", cell(HTML),
     cell("H", check=lambda r: "text/html" not in r["mime"] or None))

# ---- plots -------------------------------------------------------------------------------------------------

FIGURE = {"text/plain": re.compile("^<Figure size "), "image/png": re.compile("^iVBORw0KGgo")}
PLOT = "import matplotlib.pyplot as plt\n"


def plots(name, *cells):
    case("plot: " + name, *cells, cell("1", value=1), needs=["matplotlib"])


plots("show", cell(PLOT + "plt.plot([1, 2])\nplt.show()", displays=[FIGURE], no_value=True),
      cell("for i in range(3):\n    plt.plot([i, 1])\n    plt.show()", displays=[FIGURE] * 3))
plots("open at the end", cell(PLOT + "plt.plot([1, 2]);", displays=[FIGURE]), exact("plt.get_fignums()", []),
      cell("plt.figure(); plt.plot([1])\nplt.figure(); plt.plot([2]);", displays=[FIGURE] * 2),
      cell("fig, axes = plt.subplots(2, 2)\naxes[0, 0].plot([1]);", displays=[FIGURE]))
plots("shown, then another left open", cell(PLOT + "plt.plot([1])\nplt.show()\nplt.plot([2]);",
                                            displays=[FIGURE] * 2))
plots("closed or saved by the code", cell(PLOT + "plt.plot([1])\nplt.close()"),
      cell("import io\nplt.plot([1])\nplt.savefig(io.BytesIO())\nplt.close('all')"))
plots("the value is not shown twice", cell(PLOT + "fig, ax = plt.subplots()\nline = ax.plot([1])\nfig", mime=FIGURE))
plots("what was displayed is not shown again",
      cell(PLOT + "fig, ax = plt.subplots()\nline = ax.plot([1])\ndisplay(fig)", displays=[FIGURE]),
      cell("fig, ax = plt.subplots()\ndisplay(fig)\nline = ax.plot([1])", displays=[FIGURE] * 2))
plots("kept in a variable and shown later",
      cell(PLOT + "fig, ax = plt.subplots()\nline = ax.plot([1])", displays=[FIGURE]),
      cell("line = ax.plot([2])\nfig", mime=FIGURE), cell("display(fig)", displays=[FIGURE]),
      cell("fig.show()", displays=[FIGURE]), cell("f = plt.figure(fig)\nplt.show()", displays=[FIGURE]))
plots("after an error", raises(PLOT + "plt.plot([1])\n1 / 0", "ZeroDivisionError", displays=[FIGURE]),
      raises("plt.plot([1])\nimport sys\nsys.exit()", "SystemExit", displays=[FIGURE]))
plots("another backend",
      cell("import matplotlib\nmatplotlib.use('Agg')\n" + PLOT + "plt.plot([1])\nplt.show()\nplt.plot([2]);",
           displays=[FIGURE] * 2),
      cell("plt.switch_backend('svg')\nplt.plot([1]);", displays=[FIGURE]),
      cell("%matplotlib inline\nplt.plot([1])\nplt.show()\nplt.plot([2]);", displays=[FIGURE] * 2))
plots("without pyplot", cell("from matplotlib.figure import Figure\nfig = Figure()\nax = fig.subplots()\nfig", mime=FIGURE),
      cell("display(fig)", displays=[FIGURE]), cell("fig.show()", displays=[FIGURE]),
      cell("fig.clear()\ndisplay(fig)", displays=[{"text/plain": FIGURE["text/plain"]}]))
plots("interactive mode, draw and pause",
      cell(PLOT + "plt.ion()\nplt.plot([1])\nplt.plot([2])\nplt.draw()", displays=[FIGURE]),
      cell("plt.plot([1])\nplt.pause(0.001)", displays=[FIGURE]))
plots("threads", cell(PLOT + "import threading\ndef draw():\n    plt.figure()\n    plt.plot([1])\n"
                      "t = threading.Thread(target=draw)\nt.start()\nt.join()", displays=[FIGURE]))
plots("animation", cell(PLOT + "from matplotlib.animation import FuncAnimation\nfig, ax = plt.subplots()\n"
                        "line, = ax.plot([1, 2])\n"
                        "animation = FuncAnimation(fig, lambda i: line.set_ydata([i, 1]), frames=3)\n"
                        "pages = animation.to_jshtml()", displays=[FIGURE]))
plots("captured", cell(PLOT + "pass"), cell("%%capture c\nlines = plt.plot([1])"), exact("len(c.outputs)", 1))
plots("a figure that cannot be drawn",
      cell(PLOT + "plt.title('$\\\\nosuchcommand$');", stderr=has("nosuchcommand"), displays=ANY))
plots("PIL", cell("from PIL import Image\nimage = Image.new('RGB', (3, 3))"),
      cell("image", check=lambda r: r["mime"]["image/png"].startswith("iVBORw0KGgo")),
      cell("image.show()", displays=ANY, check=lambda r: [d["image/png"][:8] for d in r["displays"]] == ["iVBORw0K"]))

# ---- input and exit ----------------------------------------------------------------------------------------

case("input fails at once", cell("x = 1"), raises("input('name? ')", re.compile("."), stdout=ANY,
                                                 message=re.compile("input|stdin", re.I)), exact("x", 1))
case("getpass fails at once",
     raises("import getpass\ngetpass.getpass()", re.compile("."), stdout=ANY, stderr=ANY))
case("stdin is at its end", exact("import sys\nsys.stdin.read()", ""),
     exact("import os\nlen(os.read(0, 10))", 0),
     needs=["descriptors"])
case("sys.exit ends the cell, not the kernel", cell("x = 1"),
     raises("import sys\nx = 2\nsys.exit(3)\nx = 4", "SystemExit", message="3", stderr=ANY), exact("x", 2),
     raises("sys.exit()", "SystemExit", stderr=ANY),
     raises("sys.exit('why')", "SystemExit", message="why", stderr=ANY),
     raises("raise SystemExit(0)", "SystemExit", stderr=ANY), exact("x", 2))
case("quit and exit", cell("x = 1"), raises("quit()", "SystemExit", stderr=ANY),
     raises("exit()", "SystemExit", stderr=ANY),
     exact("x", 1))
case("SystemExit in a function", raises("def f():\n    raise SystemExit(2)\nf()", "SystemExit", stderr=ANY),
     exact("1", 1))

# ---- errors ------------------------------------------------------------------------------------------------

case("an exception", raises("x = 1\n1 / 0", "ZeroDivisionError", message="division by zero",
                            traceback=[re.compile(r"line 2|> 2 "), "1 / 0",
                                       "ZeroDivisionError: division by zero"],
                            check=lambda r: r["value"] is None and r["repr"] is None))
case("frames of earlier cells with their lines",
     cell("def inner(a):\n    b = a  # first\n    return b / 0  # boom\n"),
     cell("def outer():\n    return inner(1)  # via"),
     raises("outer()  # top", "ZeroDivisionError",
            traceback=["outer()  # top", "return inner(1)  # via", "return b / 0  # boom",
                       "ZeroDivisionError"]))
case("redefinition shows the right source",
     cell("def f():\n    return 1 / 0  # old"), cell("g = f\ndef f():\n    return 2 / 0  # new"),
     raises("g()", "ZeroDivisionError", traceback=["1 / 0  # old"], traceback_not=["# new"]),
     raises("f()", "ZeroDivisionError", traceback=["2 / 0  # new"], traceback_not=["# old"]))
case("frames of libraries", raises("import json\njson.loads('{')", "JSONDecodeError",
                                  traceback=["json.loads('{')", "JSONDecodeError: Expecting property name"]))
case("syntax error", raises("x = 1\ny = = 2", "SyntaxError", message=has("invalid syntax"),
                            traceback=[re.compile(r"line 2\b"), "y = = 2", "^",
                                       "SyntaxError: invalid syntax"]))
case("syntax error on the first line", raises("print('a'", "SyntaxError", traceback=[re.compile(r"line 1\b"),
                                                                                  "print('a'", "^"]))
case("indentation error",
     raises("if True:\nx = 1", "IndentationError", traceback=[re.compile(r"line 2\b"), "x = 1"]),
     raises("x = 1\n  y = 2", "IndentationError", message=has("unexpected indent"), traceback=["y = 2"]))
case("tab error", raises("if 1:\n        a = 1\n\tb = 2", re.compile("TabError|IndentationError")))
case("nothing ran before a syntax error", raises("print('no')\nx = (", "SyntaxError"))
case("raise from", raises("try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('v') from e",
                          "ValueError",
                          traceback=["{}['k']", "KeyError: 'k'", "direct cause of the following exception",
                                     "raise ValueError('v') from e", "ValueError: v"]))
case("during handling", raises("try:\n    1 / 0\nexcept Exception:\n    undefined_name", "NameError",
                               traceback=["ZeroDivisionError: division by zero",
                                          "During handling of the above exception",
                                          "undefined_name", "NameError"]))
case("raise from None", raises("try:\n    1 / 0\nexcept Exception:\n    raise ValueError('only') from None",
                               "ValueError", traceback=["ValueError: only"],
                               traceback_not=["ZeroDivisionError"]))
case("chain over cells",
     cell("def low():\n    raise KeyError('low')  # deep\ndef mid():\n    try:\n        low()\n"
                              "    except KeyError as e:\n        raise RuntimeError('mid') from e"),
     raises("mid()", "RuntimeError",
            traceback=["raise KeyError('low')  # deep", "KeyError: 'low'", "RuntimeError: mid"]))
case("own exception class", cell("class MyError(Exception):\n    pass"),
     raises("raise MyError('mine')", "MyError", message="mine", traceback=["MyError: mine"]))
case("exception with notes", raises("e = ValueError('v')\ne.add_note('a note')\nraise e", "ValueError",
                                  traceback=["ValueError: v", "a note"]), needs=["py311"])
case("exception group", raises("raise ExceptionGroup('both', [ValueError('one'), TypeError('two')])",
                               "ExceptionGroup", message=has("both"),
                               traceback=["ExceptionGroup: both", "ValueError: one", "TypeError: two"]),
     needs=["py311"])
case("exception whose text fails",
     cell("class Bad(Exception):\n    def __str__(self): raise RuntimeError('in str')\n"
          "    def __repr__(self): raise RuntimeError('in repr')"),
     raises("raise Bad()", "Bad", traceback=["raise Bad()", "Bad"]), exact("1", 1))
case("exception whose text is no string", cell("class Bad(Exception):\n    def __str__(self): return 5"),
     raises("raise Bad()", "Bad"), exact("1", 1))
case("exception with odd text", raises("raise ValueError('two\\nlines é \\x1b[31m \\x00')", "ValueError",
                                       message=has("two\nlines é")), exact("1", 1))
case("exception with a lone surrogate", raises("raise ValueError('\\ud800')", "ValueError"), exact("1", 1))
case("exception without text", raises("raise ValueError", "ValueError", message=""),
     raises("assert False", "AssertionError"))
case("base exceptions", raises("class B(BaseException): pass\nraise B('b')", "B", message="b"),
     raises("raise GeneratorExit", "GeneratorExit"), exact("1", 1))
case("KeyboardInterrupt raised by the code", cell("x = 1"),
     raises("raise KeyboardInterrupt", "KeyboardInterrupt", code=re.compile("exception|interrupted")),
     exact("x", 1))
case("recursion error", cell("def f():\n    return f()"),
     raises("f()", "RecursionError", traceback=["RecursionError: maximum recursion depth exceeded"],
            check=lambda r: len(r["error"]["traceback"]) < 200000), exact("1", 1))
case("huge message", raises("raise ValueError('x' * 3000000)", "ValueError"), exact("1", 1))
case("error in a comprehension and in a class body", raises("[1 / i for i in [0]]", "ZeroDivisionError",
                                                           traceback=["1 / i"]),
     raises("class A:\n    x = 1 / 0", "ZeroDivisionError", traceback=["x = 1 / 0"]))
case("exec and eval", raises("exec('1/0')", "ZeroDivisionError", traceback=["exec('1/0')"]),
     raises("eval('1 +')", "SyntaxError"))
case("error in a thread does not end the cell",
     cell("import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()\nprint('on')",
          stdout="on\n", stderr=has("ZeroDivisionError")), needs=["threads"])
case("sys.last_value is nobody's business but traceback works",
     cell("import traceback\ntry:\n    1 / 0  # here\nexcept Exception:\n    t = traceback.format_exc()"),
     exact("'1 / 0  # here' in t", True))
case("warnings", cell("import warnings\nwarnings.warn('careful')", stderr=has("UserWarning: careful")),
     cell("warnings.warn('old', DeprecationWarning)", stderr=has("DeprecationWarning: old")))
case("syntax warning", exact("x = 1\nx is 1", True, stderr=has("SyntaxWarning")))
case("assertion message", raises("assert 1 == 2, 'differ'", "AssertionError", message="differ"))

# ---- values ------------------------------------------------------------------------------------------------

case("JSON scalars", exact("True", True), exact("False", False), exact("0", 0), exact("-5", -5),
     exact("1.5", 1.5),
     exact("''", ""), exact("'text'", "text"), exact("1e308", 1e308), exact("5e-324", 5e-324),
     exact("0.1", 0.1),
     exact("1.0", 1.0), exact("-0.0", -0.0, repr="-0.0"), exact("1e16", 1e16))
case("ints of any size", exact("2 ** 53 + 1", 2 ** 53 + 1), exact("2 ** 64", 2 ** 64),
     exact("-10 ** 40", -10 ** 40),
     exact("[10 ** 30]", [10 ** 30]), exact("10 ** 4000", 10 ** 4000))
case("ints past the digits limit", cell("10 ** 5000", value=10 ** 5000, stderr=ANY))
case("nan and inf", inexact("float('nan')", "nan"), inexact("float('inf')", "inf"),
     inexact("-float('inf')", "-inf"),
     inexact("[1.0, float('nan')]", "[1.0, nan]"), inexact("{'a': float('inf')}", "{'a': inf}"))
case("strings", exact("'\"quoted\" \\\\ / \\b\\f\\n\\r\\t'", '"quoted" \\ / \b\f\n\r\t'),
     exact("'\\x00\\x01\\x7f'", "\0\1\x7f"),
     exact("'é 日本 🐍 \\u2028'", "é 日本 🐍 \u2028"), exact("'</script>'", "</script>"),
     exact("'a' * 100000", "a" * 100000))
case("lone surrogates", inexact("'\\ud800'", "'\\ud800'"), inexact("['ok', '\\udfff']", "['ok', '\\udfff']"),
     inexact("{'\\udc80': 1}", "{'\\udc80': 1}"), exact("'\\ud83d\\udc0d' == '🐍'", False))
case("nested JSON", exact("{'a': [1, 2.5, None, True, {'b': 'c', 'd': []}], 'e': {}}",
                          {"a": [1, 2.5, None, True, {"b": "c", "d": []}], "e": {}}),
     exact("[]", []), exact("{}", {}), exact("[[], [[]]]", [[], [[]]]),
     exact("{'z': 1, 'a': 2}", {"z": 1, "a": 2}, check=lambda r: list(r["value"]) == ["z", "a"]),
     exact("{'': 0, 'é\\n': 1}", {"": 0, "é\n": 1}))
case("a value used twice", exact("x = [1]\n[x, x]", [[1], [1]]))
case("containers that JSON does not have", inexact("(1, 2)", "(1, 2)"), inexact("()", "()"),
     inexact("{1}", "{1}"),
     inexact("set()", "set()"), inexact("frozenset([1])", "frozenset({1})"),
     inexact("b'ab\\xff'", "b'ab\\xff'"),
     inexact("bytearray(b'x')", "bytearray(b'x')"), inexact("[1, (2, 3)]", "[1, (2, 3)]"),
     inexact("range(3)", "range(0, 3)"),
     inexact("{'a': {1}}", "{'a': {1}}"), inexact("1j", "1j"), inexact("...", "Ellipsis"))
case("dict keys that are not strings", inexact("{1: 'a'}", "{1: 'a'}"), inexact("{None: 1}", "{None: 1}"),
     inexact("{True: 1}", "{True: 1}"), inexact("{'a': {1.5: 2}}", "{'a': {1.5: 2}}"),
     inexact("{(1, 2): 3}", "{(1, 2): 3}"))
case("subclasses are not exact",
     cell("import enum, collections\nclass E(enum.IntEnum):\n    A = 1\nclass S(str):\n    pass\n"
                                      "class L(list):\n    pass\nclass D(dict):\n    pass\nclass I(int):\n    pass\n"
                                      "class F(float):\n    pass"),
     cell("E.A", value=None, repr=re.compile("E.A")), inexact("S('s')", "'s'"), inexact("L([1])", "[1]"),
     inexact("D(a=1)", "{'a': 1}"), inexact("I(5)", "5"), inexact("F(0.5)", "0.5"),
     inexact("{S('k'): 1}", "{'k': 1}"),
     cell("collections.OrderedDict(a=1)", value=None, repr=re.compile(r"OrderedDict\(")),
     cell("collections.Counter('a')", value=None, repr="Counter({'a': 1})"), cell("[E.A]", value=None))
case("deep nesting", cell("x = []\nfor _ in range(2000):\n    x = [x]"), cell("x", error=ANY, stderr=ANY),
     exact("1", 1),
     exact("y = []\nfor _ in range(50):\n    y = [y]\ny", json.loads("[" * 51 + "]" * 51)))
case("very deep nesting", cell("x = []\nfor _ in range(200000):\n    x = [x]"),
     cell("x", error=ANY, stderr=ANY),
     cell("del x"), exact("1", 1), needs=["stack"])
case("self-reference", inexact("x = []\nx.append(x)\nx", "[[...]]"),
     inexact("d = {}\nd['d'] = d\nd", "{'d': {...}}"))
case("a large value", cell("list(range(200000))", check=lambda r: r["value"] == list(range(200000))))
case("repr that fails", cell("class B:\n    def __repr__(self): return 1 / 0"),
     cell("B()", value=None, error=ANY, stderr=ANY),
     exact("1", 1))
case("repr that is no string", cell("class B:\n    def __repr__(self): return 5"),
     cell("B()", value=None, error=ANY, stderr=ANY),
     exact("1", 1))
case("repr that prints",
     cell("class B:\n    def __repr__(self):\n        print('side')\n        return 'B!'"),
     cell("B()", repr="B!", stdout=has("side")))
case("repr that exits", cell("class B:\n    def __repr__(self): raise SystemExit(1)"),
     cell("B()", error=ANY, stderr=ANY),
     exact("1", 1))
case("objects", cell("class O: pass"), cell("O()", value=None, repr=re.compile(r"<__main__\.O .*at 0x")),
     cell("O", value=None, repr=re.compile("__main__.O")),
     cell("len", value=None, repr="<built-in function len>"))
case("hostile classes",
     cell("class Liar(list):\n    def __iter__(self): raise ValueError\n    def __len__(self): return -1\n"
                             "class Fake:\n    @property\n    def __class__(self): return dict\n    def __repr__(self): return 'Fake'"),
     cell("Fake()", value=None, repr="Fake", stderr=ANY), exact("from unittest import mock\n1", 1),
     cell("mock.Mock(spec=dict)", value=None, repr=has("<Mock spec='dict'"), stderr=ANY),
     cell("mock.MagicMock()", value=None, repr=has("<MagicMock id="), stderr=ANY),
     cell("Liar()", value=None, error=ANY, stderr=ANY), exact("1", 1))
case("getattr that never ends well", cell("class G:\n    def __getattr__(self, n): raise RuntimeError(n)\n"
                                          "    def __repr__(self): return 'G'"),
     cell("G()", repr="G", stderr=ANY),
     cell("class Y:\n    def __getattr__(self, n): return Y()\n    def __call__(self, *a, **k): return Y()\n"
          "    def __repr__(self): return 'Y'"), cell("Y()", repr="Y", stderr=ANY), exact("1", 1))

# ---- output ------------------------------------------------------------------------------------------------

case("print", cell("print('a', 1, [2])", stdout="a 1 [2]\n", text="a 1 [2]\n"),
     cell("print('x', end='')", stdout="x"),
     cell("print()", stdout="\n"), cell("print('a', 'b', sep='\\n')", stdout="a\nb\n"))
case("stderr", cell("import sys\nprint('e', file=sys.stderr)", stdout="", stderr="e\n"))
case("stdout and stderr in order",
     cell("import sys\nfor i in range(3):\n    print('o', i)\n    print('e', i, file=sys.stderr)",
                                       stdout="o 0\no 1\no 2\n", stderr="e 0\ne 1\ne 2\n"),
     cell("for i in range(50):\n    print('o', i)\n    print('e', i, file=sys.stderr)",
          text="".join("o %d\ne %d\n" % (i, i) for i in range(50))),
     cell("for i in range(50):\n    sys.stdout.write('o'); sys.stderr.write('e')", text="oe" * 50))
case("write returns the length", exact("import sys\nsys.stdout.write('abcé')", 4, stdout="abcé"),
     exact("sys.stderr.write('xyz')", 3, stderr="xyz"))
case("streams look like files",
     exact("import sys\n[sys.stdout.isatty(), sys.stdout.writable(), sys.stdout.readable(), "
                                      "sys.stdout.encoding.lower().replace('_', '-'), sys.stdout.closed, sys.stderr.isatty()]",
                                      [False, True, False, "utf-8", False, False]),
     exact("[sys.stdout.fileno(), sys.stderr.fileno()]", [1, 2]),
     cell("sys.stdout.flush(); sys.stderr.flush()"),
     cell("sys.stdout.writelines(['a\\n', 'b\\n'])", stdout="a\nb\n"),
     raises("sys.stdout.write(5)", "TypeError"),
     cell("print('x', file=sys.__stdout__)", stdout="x\n"), needs=["descriptors"])
case("bytes as a value", cell("b'a\\xff'", value=None, repr="b'a\\xff'",
                              mime={"text/plain": "b'a\\xff'", "application/octet-stream": b"a\xff"}))
case("bytes to stdout",
     cell("import sys\nn = sys.stdout.buffer.write(b'ok \\xff\\xfe end\\n')\nsys.stdout.flush()",
                             stdout="ok \ufffd\ufffd end\n"))
case("text and bytes in order",
     cell("import sys\nprint('a')\nn = sys.stdout.buffer.write(b'b\\n')\nsys.stdout.buffer.flush()\n"
                                     "print('c')", stdout="a\nb\nc\n"))
case("UTF-8 cut in two",
     cell("import os\nfor b in '🐍é'.encode():\n    n = os.write(1, bytes([b]))", stdout="🐍é"),
     needs=["descriptors"])
case("print of a lone surrogate", cell("print('\\ud800')", error=ANY, stdout=ANY, stderr=ANY), exact("1", 1))
case("NUL and control characters in output", cell("print('a\\0b\\x1b[31mred')", stdout="a\0b\x1b[31mred\n"))
case("os.write", cell("import os\nn = os.write(1, b'raw\\n'); n = os.write(2, b'err\\n')", stdout="raw\n",
                      stderr="err\n"),
     cell("print('1'); n = os.write(1, b'2\\n'); print('3')", stdout="1\n2\n3\n"), needs=["descriptors"])
case("child processes in order",
     cell("import subprocess\nprint('a')\nsubprocess.run(['echo', 'b'])\nprint('c');",
                                     stdout="a\nb\nc\n"),
     cell("import os\nprint('1')\nr = os.system('echo 2')\nprint('3')\nr = os.system('echo 4')\nprint('5')",
          stdout="1\n2\n3\n4\n5\n"),
     cell("for i in range(10):\n    print('p', i)\n    r = os.system('echo c %d' % i)",
          stdout="".join("p %d\nc %d\n" % (i, i) for i in range(10))), needs=["children"])
case("stderr of children in order", cell(
    "import os, sys\nprint('a')\nr = os.system('echo b >&2')\nprint('c', file=sys.stderr)\nr = os.system('echo d')\nprint('e')",
    text="a\nb\nc\nd\ne\n"), needs=["children"])
case("output of C code",
     cell("import ctypes\nlibc = ctypes.CDLL(None)\nprint('py')\nn = libc.puts(b'from C')\n"
                              "n = libc.fflush(None)\nprint('py again')", stdout="py\nfrom C\npy again\n"),
     needs=["descriptors"])
case("large output of a child",
     cell("import subprocess\nr = subprocess.run(['sh', '-c', 'yes | head -c 300000'])",
                                    stdout="y\n" * 150000), needs=["children"])
case("threads", cell("import threading\ndef say(n):\n    print('t%d' % n)\nts = [threading.Thread(target=say, args=(i,)) "
                     "for i in range(4)]\nfor t in ts:\n    t.start(); t.join()", stdout="t0\nt1\nt2\nt3\n"),
     cell("ts = [threading.Thread(target=lambda i=i: [print('x' * 50) for _ in range(200)]) for i in range(4)]\n"
          "for t in ts: t.start()\nfor t in ts: t.join()",
          check=lambda r: sorted(r["stdout"].replace("\n", "")) == ["x"] * 40000
          and r["stdout"].count("\n") == 800,
          stdout=ANY), needs=["threads"])
case("redirect", cell("import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b):\n    print('in')"),
     exact("b.getvalue()", "in\n"), cell("print('out')", stdout="out\n"))
case("stdout replaced", cell("import sys, io\nkeep = sys.stdout\nsys.stdout = io.StringIO()"),
     cell("print('lost')"),
     exact("sys.stdout.getvalue()", "lost\n"), cell("sys.stdout = keep\nprint('back')", stdout="back\n"))
case("stdout gone", cell("import sys\nsys.stdout = None"), cell("print('x')"), exact("1 + 1", 2))
case("logging", cell("import logging\nlogging.warning('w')", stderr="WARNING:root:w\n"),
     cell("logging.getLogger('a.b').error('e')", stderr="ERROR:a.b:e\n"))
case("faulthandler", cell("import faulthandler\nfaulthandler.enable()"),
     cell("faulthandler.dump_traceback()", stderr=has("most recent call first")), needs=["descriptors"])
case("pprint", cell("from pprint import pprint\npprint({'a': 1})", stdout="{'a': 1}\n"))
case("output before an error is kept",
     raises("print('before')\n1 / 0", "ZeroDivisionError", stdout="before\n"))
case("output does not cross cells", cell("print('one')", stdout="one\n"), cell("2"),
     cell("print('three')", stdout="three\n"))
case("unflushed tail comes with its cell",
     cell("import sys\nn = sys.stdout.write('no newline')", stdout="no newline"),
     cell("n = sys.stdout.buffer.write(b'bytes')", stdout="bytes"), cell("pass"))
case("many small writes",
     cell("for i in range(20000):\n    print(i)", stdout="".join("%d\n" % i for i in range(20000))))
case("one large write", cell("print('z' * 900000)", stdout="z" * 900000 + "\n"))

# ---- environment -------------------------------------------------------------------------------------------

case("environment", exact("import os\nsorted(os.environ)", ["HOME", "LANG", "PATH"]),
     exact("os.path.isdir(os.environ['HOME']) and '/usr/bin' in os.environ['PATH'].split(':')", True),
     exact("os.environ['LANG'].lower().replace('-', '').endswith('utf8')", True),
     cell("import subprocess\nprint(subprocess.run(['env'], stdout=subprocess.PIPE).stdout.decode().count('CANARY'))",
          stdout="0\n"), needs=["environment", "children"])
case("changes of the environment persist", cell("import os\nos.environ['WC_X'] = '1'"),
     exact("os.environ['WC_X']", "1"),
     cell("!echo $WC_X", stdout="1\n"), needs=["shell"])
case("umask, cwd and chdir",
     cell("import os, tempfile\nd = os.path.realpath(tempfile.mkdtemp())\nos.chdir(d)"),
     exact("os.getcwd() == d", True), cell("!pwd", stdout=re.compile("^/")), cell("os.rmdir(d)"),
     needs=["files", "shell"])
case("modules of the working directory", exact("import sys\nsys.path[0]", ""),
     cell("import os, tempfile\nd = tempfile.mkdtemp()\nos.chdir(d)\nopen('wc_mod_a.py', 'w').write('V = 9\\n');"),
     exact("import wc_mod_a\nwc_mod_a.V", 9), cell("import shutil\nos.chdir('/')\nshutil.rmtree(d)"),
     needs=["files"])
case("time and locale",
     exact("import locale\nlocale.getpreferredencoding(False).lower().replace('-', '')", "utf8"),
     exact("import time\ntime.time() > 1.6e9", True),
     exact("open(__import__('os').devnull).encoding.lower().replace('-', '')", "utf8"))
case("the main thread",
     exact("import threading\nthreading.current_thread() is threading.main_thread()", True),
     needs=["threads", "main_thread"])
case("alone in the process",
     exact("import threading\nthreading.active_count()", 1),
     exact("import os\nlen([f for f in os.listdir('/proc/self/fd')]) <= 8", True), needs=["threads", "descriptors", "alone"])
case("no descriptor but the kernel's own",
     cell("import subprocess\nout = subprocess.run(['ls', '/proc/self/fd'], stdout=subprocess.PIPE, close_fds=False).stdout\n"
          "len(out.split())", value=4), needs=["descriptors", "children", "proc"])

# ---- processes ---------------------------------------------------------------------------------------------

case("multiprocessing with fork", cell("import multiprocessing as mp\ndef sq(x):\n    return x * x"),
     exact("with mp.get_context('fork').Pool(2) as p:\n    r = p.map(sq, [1, 2, 3])\nr", [1, 4, 9],
           stderr=ANY),
     needs=["fork", "semaphores"])
case("multiprocessing output",
     cell("import multiprocessing as mp\ndef hi():\n    print('from child', flush=True)\n"
                                    "p = mp.get_context('fork').Process(target=hi)\np.start(); p.join()\nprint(p.exitcode)",
                                    stdout="from child\n0\n"), needs=["fork"])
case("multiprocessing with spawn",
     exact("import multiprocessing as mp\nwith mp.get_context('spawn').Pool(1) as p:\n"
                                         "    r = p.map(abs, [-1, -2])\nr", [1, 2], stderr=ANY),
     needs=["children", "semaphores"])
case("process pool executor",
     cell("import concurrent.futures as cf, multiprocessing as mp\ndef inc(x):\n    return x + 1"),
     exact("with cf.ProcessPoolExecutor(2, mp_context=mp.get_context('fork')) as ex:\n    r = list(ex.map(inc, [1, 2]))\nr",
           [2, 3], stderr=ANY), needs=["fork", "semaphores"])
case("thread pool executor", exact("import concurrent.futures as cf\nwith cf.ThreadPoolExecutor(2) as ex:\n"
                                   "    r = list(ex.map(abs, [-1, -2]))\nr", [1, 2]), needs=["threads"])
case("fork in a cell",
     cell("import os, sys\nsys.stdout.flush()\npid = os.fork()\nif pid == 0:\n    print('child')\n"
                            "    sys.stdout.flush()\n    os._exit(0)\nn = os.waitpid(pid, 0)\nprint('parent')",
                            stdout="child\nparent\n", stderr=ANY), needs=["fork"])
case("fork whose child falls off the cell", cell("import os"),
     exact("pid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\n'parent' if pid else 'child'", "parent",
           stdout=ANY, stderr=ANY),
     cell("pid = os.fork()\nif not pid:\n    raise ValueError('in child')\nos.waitpid(pid, 0)\n'parent'",
          value="parent",
          stdout=ANY, stderr=ANY),
     cell("import sys\npid = os.fork()\nif not pid:\n    sys.exit(0)\nos.waitpid(pid, 0)\n'parent'",
          value="parent",
          stdout=ANY, stderr=ANY), exact("1 + 1", 2), needs=["fork"])
case("exit status of children",
     exact("import subprocess\nsubprocess.run(['sh', '-c', 'exit 7']).returncode", 7),
     exact("subprocess.check_output(['echo', 'x'], text=True)", "x\n"),
     raises("subprocess.check_call('false')", "CalledProcessError"), needs=["children"])
case("signals work", cell("import os, signal\ngot = []\nh = signal.signal(signal.SIGUSR1, lambda *a: got.append(1))\n"
                          "os.kill(os.getpid(), signal.SIGUSR1)"), exact("got", [1]),
     exact("signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN", True), needs=["main_thread"])
case("SIGCHLD is the code's own",
     exact("import signal\nsignal.getsignal(signal.SIGCHLD) == signal.SIG_DFL", True),
     exact("sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))", []), needs=["main_thread"])
case("signal handlers of children are the default",
     cell("!sleep 0; kill -l >/dev/null; yes | head -1", stdout="y\n"),
     needs=["shell"])
