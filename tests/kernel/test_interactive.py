"""The built-in interactive layer: commands, variables in commands, magics, events.  Needs no IPython and no pytest."""

import builtins
import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

KERNEL = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "kernel"))
sys.path.insert(0, KERNEL)

from workcell_kernel import display, magics, interactive  # noqa: E402
from workcell_kernel.interactive import Interactive, SList, UsageError  # noqa: E402


class Session:
    """A Interactive on a fresh namespace, and what running a cell in it printed."""

    def __init__(self):
        self.module = types.ModuleType("__main__")
        self.ns = self.module.__dict__
        self.ns.update(In=[""], Out={}, display=display.display)
        interactive.current = None
        interactive.setup(self.ns, self.module)
        self.ip = interactive.current = Interactive(self.ns, self.module)
        self.published = []
        self.out = self.err = ""

    def run(self, source):
        out, err = io.StringIO(), io.StringIO()
        saved = display.publish, display.redirect, display.formatter
        display.publish, display.redirect, display.formatter = lambda *a: self.published.append(a), None, None
        self.ns["In"].append(source)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                return self.ip._run_plain(source)
        finally:
            display.publish, display.redirect, display.formatter = saved
            self.out, self.err = out.getvalue(), err.getvalue()

    def prints(self, source):
        self.run(source)
        return self.out


def raises(kind, function, *args):
    try:
        function(*args)
    except kind as e:
        return e
    raise AssertionError("expected %s" % kind.__name__)


def run_python(code, check=True, **kwargs):
    """A fresh interpreter with its own fds 1 and 2; IPython is hidden from it."""
    hide = 'import sys\nsys.path.insert(0, %r)\nsys.modules["IPython"] = None\n' % KERNEL
    done = subprocess.run(
        [sys.executable, "-c", hide + code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=60,
        **kwargs
    )
    assert not check or done.returncode == 0, done.stderr.decode()
    return done


# ---- commands


def test_system():
    s = Session()
    assert s.run("!echo out; echo err >&2; exit 3") is None
    assert (s.out, s.err) == ("out\n", "err\n")
    assert s.ns["_exit_code"] == 3
    s.run("!true")
    assert s.ns["_exit_code"] == 0
    s.run("!kill -9 $$")
    assert s.ns["_exit_code"] == -9
    s.run("!(exit 137)")
    assert s.ns["_exit_code"] == -9
    assert s.prints("!cat") == ""  # its standard input is empty
    assert s.prints("!printf 'a\\xc3\\xa9\\xff'") == "aé\ufffd"
    assert s.prints("!test -e /bin/bash && echo $BASH_VERSION")
    assert s.prints("!echo $PPID").strip() == str(os.getpid())


def test_system_writes_to_the_fds():
    code = """
import os, sys
from workcell_kernel import interactive
ns = {}
sh = interactive.get_interactive(ns)
assert type(sh) is interactive.Interactive
sys.stdout.write('before ')
sh.system('echo $$0; echo problem >&2; ls -l /proc/self/fd | wc -l')
print('after', ns['_exit_code'])
"""
    done = run_python(code)
    lines = done.stdout.decode().split("\n")
    assert lines[0] == "before %s" % ("/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh")
    assert lines[2] == "after 0"
    assert done.stderr == b"problem\n"
    assert int(lines[1]) <= 6  # total, 0, 1, 2, the directory, perhaps the shell's: none of ours


def test_own_streams():
    s = Session()
    stream = io.StringIO()
    interactive.own_streams = (stream,)
    try:
        assert interactive._is_own(stream, 1) and not interactive._is_own(io.StringIO(), 1)
    finally:
        interactive.own_streams = ()
    assert s.prints("!echo x") == "x\n"


def test_getoutput():
    s = Session()
    x = s.run("x = !echo a b; echo c d >&2; printf e\nx")
    assert x == ["a b", "c d", "e"] and s.out == s.err == ""  # both streams, as in IPython
    assert type(x) is SList and x.l is x and x.n == "a b\nc d\ne" and x.s == "a b c d e"
    assert (
        x.fields(0) == ["a", "c", "e"] and x.grep("^C") == ["c d"] and x.grep("a", prune=True) == ["c d", "e"]
    )
    assert x.p == [] and SList(["/"]).p[0].is_dir()
    assert SList(["b 10", "a 9"]).sort(1, nums=True) == ["a 9", "b 10"] and SList(["b", "a"]).sort() == [
        "a",
        "b",
    ]
    assert s.run("!!echo hi") == ["hi"]
    assert s.run("x = !true\nx") == []
    assert s.ip.getoutput("echo a; echo b", split=False) == "a\nb\n"
    assert len(s.run("x = !seq 100000\nx")) == 100000


def test_background():
    s = Session()
    start = time.monotonic()
    assert s.prints("!echo now; sleep 200 & echo $! > /dev/stderr") == "now\n"
    pid = int(s.err)
    assert time.monotonic() - start < 100
    os.kill(pid, signal.SIGKILL)
    # It never stops writing and is slower to be read than to write: only so much is taken after the end.
    chunks = []

    def slow(data):
        chunks.append(len(data))
        assert len(chunks) < 1000
        time.sleep(0.002)

    errors = []
    assert interactive.run_process(interactive.shell_argv("yes & sleep 0.2; echo $! >&2"), slow, errors.append) == 0
    os.kill(int(b"".join(errors)), signal.SIGKILL)


def running(argument):
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/cmdline" % name, "rb") as f:
                    if argument.encode() in f.read().split(b"\0"):
                        return True
            except OSError:
                pass
    return False


def test_interrupt():
    s = Session()

    def interrupt(*args):
        raise KeyboardInterrupt

    saved = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number, command in enumerate(
            (
                "!sleep %s",
                "!sleep %s; echo no",
                "x = !sleep %s",
                '!trap "" INT; sleep %s; sleep 99',
                "%%%%bash\nsleep %s\necho no",
            )
        ):
            mark = "98.%d" % (os.getpid() * 10 + number)
            start = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            raises(KeyboardInterrupt, s.run, command % mark)
            assert time.monotonic() - start < 60, command
            deadline = time.monotonic() + 60
            while running(mark):
                assert time.monotonic() < deadline, command
                time.sleep(0.01)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, saved)


def test_no_descriptor_leaks():
    s = Session()
    s.run("!true")
    before = sorted(os.listdir("/proc/self/fd"))
    for source in (
        "!echo x",
        "x = !echo y",
        "%%bash\necho z",
        "%%bash --out o\necho z",
        "%%python\nprint(1)",
    ):
        s.run(source)
    for source in ("%%script nosuchprogram\nx", "%%bash\nexit 1"):
        raises(Exception, s.run, source)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_children_start_clean():
    s = Session()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        masks = s.run("x = !grep -E '^Sig(Blk|Ign)' /proc/self/status\nx")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
    # The two above 31 are glibc's own and left ignored by its posix_spawn().
    assert [int(line.split()[1], 16) & 0x7FFFFFFF for line in masks] == [0, 0]


# ---- variables in commands


def test_var_expand():
    s = Session()
    s.ns.update(x=5, name="a b", d={"k": [1, 2, 3]}, obj=types.SimpleNamespace(attr="at"))
    for text, expected in (
        ("echo {x} $x", "echo 5 5"),
        ("{x + 1}", "6"),
        ('{d["k"][0:2]}', "[1, 2]"),
        ("{name!r}", "'a b'"),
        ("$obj.attr", "at"),
        ("$$HOME", "$HOME"),
        ("'$x'", "'$x'"),
        ('"$x"', '"5"'),
        ("{{x}}", "{x}"),
        ("$nosuch {x}", "$nosuch {x}"),
        ("{nosuch}", "{nosuch}"),
        ("${x}", "$5"),
        ("a\n$x\n$x", "a\n5\n5"),
        ("awk '{print $1}'", "awk '{print $1}'"),
        ("{", "{"),
        ("no variables", "no variables"),
        ("$$", "$$"),
    ):
        assert s.ip.var_expand(text) == expected, text
    try:
        from IPython.utils.text import DollarFormatter
    except ImportError:
        return
    for text in (
        "echo {x} $x",
        "{x + 1}",
        '{d["k"][0:2]}',
        "{name!r}",
        "$obj.attr",
        "$$HOME",
        "'$x'",
        '"$x"',
        "{{x}}",
        "${x}",
    ):
        assert s.ip.var_expand(text) == DollarFormatter().vformat(text, [], s.ns), text


def test_local_variables():
    s = Session()
    s.ns["x"] = "global"
    s.run('def f(x):\n    !echo {x}\n    y = !echo $x\n    return y\nr = f("local")')
    assert s.out == "local\n" and s.ns["r"] == ["local"]
    assert s.run('def g():\n    y = 7\n    return get_ipython().run_line_magic("time", "y + 1")\ng()') == 8


# ---- magics


def test_time():
    s = Session()
    assert s.run("%time 1 + 1") == 2
    assert re.match(r"CPU times: user .*, sys: .*, total: .*\nWall time: [\d.]+ [nμm]?s\n$", s.out)
    assert s.run("%%time\nx = 3\nx + 2") == 5
    assert s.run("%time y = 4") is None and s.ns["y"] == 4
    assert s.run("%time 5;") is None
    s.run("%%time\n!echo in\nz = 6")
    assert s.out.startswith("in\n") and s.ns["z"] == 6
    raises(ZeroDivisionError, s.run, "%time 1/0")
    raises(ZeroDivisionError, s.run, "%%time\n1/0")
    assert [magics.format_time(t) for t in (0, 1e-9, 1.5e-6, 0.25, 3, 61, 3725)] == [
        "0 ns",
        "1 ns",
        "1.5 μs",
        "250 ms",
        "3 s",
        "1min 1s",
        "1h 2min 5s",
    ]


def test_timeit():
    s = Session()
    assert s.run("%timeit -n 10 -r 3 sum(range(10))") is None
    assert re.match(
        r"(The slowest.*\n)?[\d.]+ .s ± [\d.]+ .s per loop \(mean ± std. dev. of 3 runs, 10 loops each\)\n$",
        s.out,
    )
    result = s.run("%timeit -n1 -r1 -q -o x = 1")
    assert (
        s.out == ""
        and result.loops == 1
        and result.repeat == 1
        and len(result.all_runs) == 1
        and "x" not in s.ns
    )
    s.run("%%timeit -n 2 -r 1 a = 5\na + 1\na + 2")
    assert "of 1 run, 2 loops each" in s.out
    s.ns["calls"] = []
    s.run("%timeit -n 3 -r 2 -q calls.append(1)")
    assert len(s.ns["calls"]) == 6
    assert "option -z not recognized" in str(raises(UsageError, s.run, "%timeit -z 1"))


def test_directories():
    s = Session()
    home, start = tempfile.mkdtemp(), os.getcwd()
    try:
        os.mkdir(os.path.join(home, "a b"))
        assert s.prints("%%cd %s" % home) == os.path.realpath(home) + "\n"
        assert s.run("%pwd") == os.path.realpath(home)
        s.run('%cd "a b"')
        assert os.getcwd().endswith("/a b")
        assert s.prints("%cd -") == os.path.realpath(home) + "\n"
        assert s.prints("%cd -q a b") == "" and os.getcwd().endswith("/a b")
        assert "No such file" in s.prints("%cd /nosuch/dir") and os.getcwd().endswith("/a b")
        with open("f.txt", "w") as f:
            f.write("text\n")
        assert s.prints("%ls") == "f.txt\n" and s.prints("%cat f.txt") == "text\n"
        assert s.prints("cat f.txt") == "text\n"
        os.chdir(start)
        os.environ["HOME"], saved = home, os.environ.get("HOME", "/")
        try:
            assert s.prints("%cd") == os.path.realpath(home) + "\n"
            s.run("%cd ~")
            assert os.getcwd() == os.path.realpath(home)
        finally:
            os.environ["HOME"] = saved
    finally:
        os.chdir(start)
        shutil.rmtree(home)


def test_env():
    s = Session()
    try:
        assert s.prints("%env WC_TEST=1") == "env: WC_TEST=1\n" and s.run("%env WC_TEST") == "1"
        assert s.prints("!echo $WC_TEST") == "1\n"
        s.ns["v"] = 7
        s.run("%set_env WC_TEST {v}")
        assert os.environ["WC_TEST"] == "7"
        os.environ["WC_TEST_TOKEN"] = "secret"
        shown = s.run("%env")
        assert shown["WC_TEST"] == "7" and shown["WC_TEST_TOKEN"] == "<hidden>"
        raises(UsageError, s.run, "%env WC_NOSUCH")
        raises(UsageError, s.run, "%set_env")
    finally:
        os.environ.pop("WC_TEST", None)
        os.environ.pop("WC_TEST_TOKEN", None)


def test_namespace():
    s = Session()
    assert s.prints("%who") == "Interactive namespace is empty.\n"
    s.run('a = 1\nb = "x" * 60\n_hidden = 1\nc = [1, 2]')
    assert s.run("%who_ls") == ["a", "b", "c"] and s.run("%who_ls int") == ["a"]
    assert s.prints("%who") == "a\t b\t c\t \n"
    assert s.prints("%whos").split("\n") == [
        "Variable   Type    Data/Info",
        "----------------------------",
        "a          int     1",
        "b          str     %s<...>%s" % ("x" * 25, "x" * 25),
        "c          list    n=2",
        "",
    ]
    interactive.protected.add("tools")
    s.ns["tools"] = object()
    try:
        s.run("%reset -f")
    finally:
        interactive.protected.discard("tools")
    assert "a" not in s.ns and "tools" in s.ns and "display" in s.ns and "get_ipython" in s.ns
    assert s.ns["In"][-1] == "%reset -f" and s.ns["__name__"] == "__main__"
    s.run("a = 1\nOut[1] = 2")
    s.run("%reset -s")
    assert "a" not in s.ns and s.ns["Out"] == {1: 2}
    s.run("%reset out")
    assert s.ns["Out"] == {}
    s.ns["In"][:] = [""]
    s.run("a = 1")
    assert s.prints("%history") == "a = 1\n%history\n"
    assert s.prints("%history -n 1") == "   1: a = 1\n"


def test_inspection():
    s = Session()
    s.run(
        'def f(x, y=3):\n    "doc"\n    return x\nclass C:\n    """Of C."""\n    def m(self): "of m"\nc = C()\nl = [C]'
    )
    assert (
        s.prints("f?").startswith("Signature: f(x, y=3)\nDocstring: doc\n")
        and "Type:      function\n" in s.out
    )
    assert "Docstring: of m" in s.prints("c.m?")
    assert "Init signature: C()" in s.prints("C?") and "Of C." in s.prints("l[0]?")
    assert s.prints("x = 5\nx?").startswith("Type:        int\nString form: 5\n")
    assert s.prints("nosuch?") == "Object `nosuch` not found.\n"
    assert "Time the execution" in s.prints("%time?") and "Time the execution" in s.prints("%%time?")
    assert "def _describe" in s.prints("from workcell_kernel.magics import _describe as q\nq??")
    assert s.prints("zi*?").split() == ["zip"] and "os.getpid" in s.prints("import os\nos.get*?").split()
    assert "%%bash" in s.prints("%lsmagic") and "%time: Time" in s.prints("%magic")


def test_run():
    s = Session()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "prog.py")
        with open(path, "w") as f:
            f.write(
                'import sys\nargs = sys.argv[1:]\nname = __name__\nfile = __file__\nsaw = globals().get("given")\n'
                'import helper\nif "exit" in args: sys.exit(len(args) - 1)\nif "fail" in args: raise ValueError("bad")\n'
            )
        with open(os.path.join(folder, "helper.py"), "w") as f:
            f.write('print("helper")\nmine = 1\n')
        s.ns["given"] = 5
        argv, path_before = sys.argv, list(sys.path)
        try:
            assert s.prints('%%run %s a "b c"' % path) == "helper\n"
            assert (s.ns["args"], s.ns["name"], s.ns["file"], s.ns["saw"]) == (
                ["a", "b c"],
                "__main__",
                path,
                None,
            )
            s.run("%%run -i %s" % path)
            assert s.ns["saw"] == 5 and s.ns["__name__"] == "__main__" and "__file__" not in s.ns
            s.run("%%run -n %s" % path[:-3])
            assert s.ns["name"] == "prog"
            s.run("%%run %s exit" % path)
            assert raises(SystemExit, s.run, "%%run %s exit 1" % path).code == 1
            raises(ValueError, s.run, "%%run %s fail" % path)
            assert sys.argv is argv and sys.path == path_before
            sys.path.insert(0, folder)
            del sys.modules["helper"]
            s.run("%run -m helper")
            assert s.ns["mine"] == 1
            with open(os.path.join(folder, "n.ipynb"), "w") as f:
                f.write(
                    '{"cells": [{"cell_type": "markdown", "source": "x"}, {"cell_type": "code", "source": ["q = 1\\n", "!echo nb"]}]}'
                )
            assert s.prints("%%run %s/n.ipynb" % folder) == "nb\n" and s.ns["q"] == 1
        finally:
            sys.path[:] = path_before
            sys.modules.pop("helper", None)
    raises(UsageError, s.run, "%run /nosuch/file.py")
    raises(UsageError, s.run, "%run")


def test_pip():
    s = Session()
    s.run("%pip --version")
    assert s.out.startswith("pip ") or "No module named pip" in s.err
    assert "restart the kernel" in s.out


def test_scripts():
    s = Session()
    s.run('%%bash\necho "$((1 + 1))" $0\necho e >&2')
    assert s.out == "2 bash\n" and s.err == "e\n"
    s.run("%%sh\necho sh")
    assert s.out == "sh\n"
    s.run("%%python\nimport sys\nprint(sys.executable)")
    assert s.out == sys.executable + "\n"
    s.run("%%script cat -n\nx")
    assert s.out.split() == ["1", "x"]
    s.run("%%bash --out o --err e\necho out; echo err >&2")
    assert (s.out, s.err, s.ns["o"], s.ns["e"]) == ("", "", "out\n", "err\n")
    s.run("%%bash --out=o\necho out; echo err >&2")
    assert (s.out, s.err, s.ns["o"]) == ("", "err\n", "out\n")
    error = raises(subprocess.CalledProcessError, s.run, "%%bash\nexit 3")
    assert error.returncode == 3 and error.cmd == "exit 3\n" and s.ns["_exit_code"] == 3
    s.run("%%bash --no-raise-error\nexit 3")
    raises(subprocess.CalledProcessError, s.run, "%%python\nraise SystemExit(4)")
    assert "Couldn't find program: 'nosuchprogram'" in str(
        raises(UsageError, s.run, "%%script nosuchprogram\nx")
    )
    raises(UsageError, s.run, "%%script\nx")
    s.ns["n"] = "name"
    s.run("%%script echo {n}\n$ignored")
    assert s.out == "name\n"
    s.run("%%bash\n" + "# padding\n" * 20000 + "echo end")
    assert s.out == "end\n"
    assert s.run("%sx echo a") == ["a"] and s.run("%%system\necho a\necho b") == ["a", "b"]


def test_capture():
    s = Session()
    s.run('%%capture c\nimport sys\nprint("o")\nprint("e", file=sys.stderr)\n!echo sub\ndisplay(1)\n[2]')
    c = s.ns["c"]
    assert (s.out, s.err, s.published) == ("", "", [])
    assert c.stdout == "o\nsub\n" and c.stderr == "e\n" and str(c) == c.stdout
    assert [output.data for output in c.outputs] == [{"text/plain": "1"}, {"text/plain": "[2]"}]
    s.run("c.show()")
    assert (
        s.out == "o\nsub\n" and s.err == "e\n" and [p[0]["text/plain"] for p in s.published] == ["1", "[2]"]
    )
    s.published.clear()
    s.run('%%capture --no-stderr --no-display c\nimport sys\nprint("e", file=sys.stderr)\ndisplay(1)')
    assert s.err == "e\n" and len(s.published) == 1 and s.ns["c"].stderr == ""
    s.run('%%capture --no-stdout\nprint("o")')
    assert s.out == "o\n"
    raises(ZeroDivisionError, s.run, '%%capture c\nprint("before")\n1/0')
    assert s.ns["c"].stdout == "before\n"
    s.run('print("normal")')
    assert s.out == "normal\n"
    raises(UsageError, s.run, "%%capture --nosuch\nx")


def test_files_and_rich_cells():
    s = Session()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "f.txt")
        assert s.prints("%%%%writefile %s\na\n  b" % path) == "Writing %s\n" % path
        assert s.prints("%%%%writefile -a %s\nc\n" % path) == "Appending to %s\n" % path
        with open(path) as f:
            assert f.read() == "a\n  b\nc\n"
        assert s.prints("%%%%file %s\nnew" % path) == "Overwriting %s\n" % path
    raises(UsageError, s.run, "%%writefile\nx")
    for name, mime in (
        ("html", "text/html"),
        ("markdown", "text/markdown"),
        ("latex", "text/latex"),
        ("svg", "image/svg+xml"),
        ("javascript", "application/javascript"),
    ):
        s.published.clear()
        s.run("%%%%%s\nbody" % name)
        assert s.published[0][0][mime] == "body\n"


def test_extensions():
    s = Session()
    extension = types.ModuleType("wc_ext")
    events = []
    extension.load_ipython_extension = lambda ip: events.append(("load", ip))
    extension.unload_ipython_extension = lambda ip: events.append(("unload", ip))
    sys.modules["wc_ext"] = extension
    try:
        s.run("%load_ext wc_ext")
        assert events == [("load", s.ip)]
        assert "already loaded" in s.prints("%load_ext wc_ext")
        s.run("%unload_ext wc_ext")
        assert events[1:] == [("unload", s.ip)]
        assert "not an IPython extension" in s.prints("%load_ext json")
        raises(ImportError, s.run, "%load_ext nosuch_extension")
    finally:
        del sys.modules["wc_ext"]


def test_settings():
    from workcell_kernel.pretty import pretty

    s = Session()
    try:
        assert s.run("%precision 2") == "%.2f" and pretty([1 / 3]) == "[0.33]"
        s.run("%precision %.3e")
        assert pretty(1 / 3) == "3.333e-01"
        raises(UsageError, s.run, "%precision abc")
    finally:
        s.run("%precision")
    assert pretty(0.5) == "0.5"
    for source in ("%xmode Plain", "%colors NoColor", "%config X.y = 1"):
        s.run(source)


def test_matplotlib():
    try:
        import matplotlib
    except ImportError:
        return
    s = Session()
    from workcell_kernel import figures
    figures.install_hook()
    s.run("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1])")
    saved, display.publish = display.publish, lambda *a: s.published.append(a)
    redirect, display.redirect = display.redirect, None
    try:
        figures.flush()
    finally:
        display.publish, display.redirect = saved, redirect
    assert s.published[0][0]["image/png"].startswith(b"\x89PNG")
    s.run("%matplotlib agg")
    assert matplotlib.get_backend().lower() == "agg"


def test_unknown_magics():
    s = Session()
    for source, text in (
        ("%tim 1", "Line magic function `%tim` not found. Did you mean `%time` or `%timeit`?"),
        ("%zzz", "Line magic function `%zzz` not found."),
        ("%%zzz\nx", "Cell magic `%%zzz` not found."),
        (
            "%capture",
            "Line magic function `%capture` not found (But cell magic `%%capture` exists, did you mean "
            "that instead?).",
        ),
        (
            "%%pwd\nx",
            "Cell magic `%%pwd` not found (But line magic `%pwd` exists, did you mean that instead?).",
        ),
        (
            "%%time",
            "%%time is a cell magic, but the cell body is empty. Did you mean the line magic %time "
            "(single %)?",
        ),
        (
            "x = 1\n%%time\nx",
            "Line magic function `%%time` not found: a cell magic must be the first line of " "its cell.",
        ),
    ):
        assert str(raises(UsageError, s.run, source)) == text


def test_user_magics():
    s = Session()
    s.run(
        'ip = get_ipython()\nip.register_magic_function(lambda line: line.upper(), magic_name="up")\n'
        'def both(line, cell=None):\n    return (line, cell)\nip.register_magic_function(both, "line_cell")'
    )
    s.ns["v"] = "x"
    assert (
        s.run("%up a {v}") == "A X"
        and s.run("%both a") == ("a", None)
        and s.run("%%both a\nb") == ("a", "b\n")
    )
    assert s.ip.find_line_magic("up")("q") == "Q" and s.ip.find_cell_magic("up") is None
    assert s.run('get_ipython().magic("%both z")') == ("z", None)


def test_run_cell():
    s = Session()
    result = s.run('get_ipython().run_cell("x = 1\\nx + 1")')
    assert result.result == 2 and result.success and s.ns["x"] == 1
    assert s.published[0][0] == {"text/plain": "2"}
    result = s.run('r = get_ipython().run_cell("1/0")\nr')
    assert (
        not result.success
        and isinstance(result.error_in_exec, ZeroDivisionError)
        and "ZeroDivisionError" in s.err
    )
    raises(ZeroDivisionError, result.raise_error)
    calls = []
    interactive.run_cell_hook = lambda source: calls.append(source)
    try:
        s.ip.run_cell("hooked")
    finally:
        interactive.run_cell_hook = None
    assert calls == ["hooked"]


def test_events():
    s = Session()
    seen = []
    s.ip.events.register("pre_run_cell", lambda info: seen.append(info.raw_cell))
    s.ip.events.register("post_run_cell", lambda result: seen.append(result.success))
    after = lambda: seen.append("post")  # noqa: E731
    s.ip.events.register("post_execute", after)
    s.ip.fire("pre_execute")
    s.ip.fire("pre_run_cell", source="x")
    s.ip.fire("post_execute")
    s.ip.fire("post_run_cell", source="x", error=ValueError())
    assert seen == ["x", "post", False]
    s.ip.events.unregister("post_execute", after)
    raises(ValueError, s.ip.events.unregister, "post_execute", after)

    def bad():
        raise ZeroDivisionError("in callback")

    s.ip.events.register("post_execute", bad)
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        s.ip.fire("post_execute")
    assert "ZeroDivisionError: in callback" in err.getvalue()


def test_interface():
    s = Session()
    ip = s.run("get_ipython()")
    assert ip is s.ip and builtins.get_ipython is interactive.get_ipython and ip.get_ipython() is ip
    ip.ex("a = 2")
    assert ip.execution_count == 1 and s.run("get_ipython().execution_count") == 2
    assert ip.ev("a + 1") == 3 and ip.user_ns is s.ns and ip.user_global_ns is s.ns
    ip.push({"b": 1})
    local = 5
    ip.push("local")
    assert s.ns["b"] == 1 and s.ns["local"] == local
    ip.set_next_input("x")
    ip.ask_exit()
    saved, display.publish = display.publish, lambda *a: s.published.append(a)
    redirect, display.redirect = display.redirect, None
    try:
        ip.display_pub.publish(
            data={"text/plain": "p"}, metadata={"m": 1}, transient={"display_id": "i"}, update=True
        )
    finally:
        display.publish, display.redirect = saved, redirect
    assert s.published == [({"text/plain": "p"}, {"m": 1}, {"display_id": "i"}, True)]
    assert ip.display_formatter.format(1) == ({"text/plain": "1"}, {})


def test_namespace_can_change():
    s = Session()
    other = {}
    assert (
        interactive.get_interactive(other) is s.ip
        and s.ip.user_ns is other
        and other["get_ipython"] is interactive.get_ipython
    )


def test_nothing_is_loaded_early():
    code = """
before = set(sys.modules)
from workcell_kernel import interactive, display, pretty
extra = {m.partition('.')[0] for m in set(sys.modules) - before}
allowed = {'workcell_kernel', 're', 'sre_compile', 'sre_parse', 'sre_constants', 'enum', 'functools', 'collections', 'operator',
           'reprlib', 'itertools', 'heapq', 'keyword', 'copyreg', 'types', '_collections', '_functools', '_operator', '_sre', '_heapq',
           'builtins', '_collections_abc', '_locale'}
assert extra <= allowed, extra - allowed
interactive.install_import_hook()
assert interactive.current is None
"""
    run_python(code)


def test_without_ipython():
    code = """
import threading
from workcell_kernel import interactive
assert interactive.have_ipython() == ''
interactive.setup({})
for step in interactive.warm_steps():
    step()
sh = interactive.get_interactive()
assert type(sh) is interactive.Interactive and interactive.get_ipython() is sh
import os
pid = os.fork()
if not pid:
    x = sh.getoutput('echo child')
    os._exit(0 if x == ['child'] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert threading.active_count() == 1
"""
    run_python(code)


def test_an_interrupt_right_after_the_start_ends_the_process():
    """It may come before anybody has seen the process id."""
    started = []

    def interrupt(frame, event, _):
        if event == "return" and frame.f_code.co_name == "_spawn":
            sys.setprofile(None)
            started.extend(frame.f_locals["started"])
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        raises(KeyboardInterrupt, interactive.run_process, ["sleep", "1000"])
    finally:
        sys.setprofile(None)
    pid, = started  # the process of the tests may have other children
    raises(ChildProcessError, os.waitpid, pid, os.WNOHANG)


def test_no_threads():
    assert threading.active_count() == 1, threading.enumerate()


def main():
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)


if __name__ == "__main__":
    main()
