"""Sessions of the executor `inprocess` in a Python program: this one.  As library.py, a scenario a process."""
import ctypes as c
import io
import os
import signal
import subprocess
import sys
import threading
import time

import library
from library import LIB, Engine, Error, Session, SessionOptions, check, in_thread, outcome
from support import DEADLINE, wait_until


def open_session(engine, timeout_ms=60000, grace_ms=2000, space=None):
    options = Options(size=c.sizeof(Options), executor=b"inprocess", timeout_ms=timeout_ms, grace_ms=grace_ms,
                      max_output_bytes=1 << 20, space=space)
    return Session(engine, c.cast(c.pointer(options), c.POINTER(SessionOptions)).contents)


class Options(c.Structure):
    _fields_ = SessionOptions._fields_ + [("space", c.c_void_p)]


class SpaceOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("storage", c.c_char_p)]


TOOL_FN = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p)


class Tool(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("description", c.c_char_p), ("parameters", c.c_char_p),
                ("timeout_ms", c.c_int64), ("fn", TOOL_FN), ("arg", c.c_void_p)]


LIB.cell_tool_call_args.restype = c.c_char_p
LIB.cell_tool_call_args.argtypes = [c.c_void_p]
LIB.cell_tool_call_answer_json.argtypes = [c.c_void_p, c.c_char_p, c.c_size_t]
LIB.cell_space_close.argtypes = [c.c_void_p]


def open_space(engine, storage, **functions):
    """A space whose tools are functions of this program: each takes and answers JSON text, on whatever thread."""
    space, error = c.c_void_p(), Error()
    options = SpaceOptions(size=c.sizeof(SpaceOptions), storage=storage and str(storage).encode())
    check(LIB.cell_space_open(engine.handle, c.byref(options), c.byref(space), c.byref(error)), error)
    kept = []
    for name, function in functions.items():
        def call(arg, handle, function=function):
            answer = function(LIB.cell_tool_call_args(handle).decode()).encode()
            LIB.cell_tool_call_answer_json(handle, answer, len(answer))

        tool = Tool(size=c.sizeof(Tool), name=name.encode(), timeout_ms=60000, fn=TOOL_FN(call),
                    parameters=b'{"type": "object", "properties": {"n": {"type": "integer"}}}')
        check(LIB.cell_space_add_tool(space, c.byref(tool), c.byref(error)), error)
        kept.append(tool)
    space.kept = kept
    return space


def state():
    """What a session must not change for its host."""
    import _thread

    import __main__

    return {
        "handlers": [signal.getsignal(n) for n in range(1, 32)], "cwd": os.getcwd(), "environ": dict(os.environ),
        "argv": (id(sys.argv), list(sys.argv)), "streams": [id(s) for s in (sys.stdin, sys.stdout, sys.stderr)],
        "dict": [id(sys.__dict__[name]) for name in ("stdin", "stdout", "stderr")], "path": list(sys.path),
        "main": id(sys.modules["__main__"]), "main2": id(__main__), "sys": type(sys), "meta": list(sys.meta_path),
        "threads": [getattr(_thread, "start_new_thread"), getattr(threading, "_start_new_thread", None),
                    getattr(threading, "_start_joinable_thread", None)], "system": os.system,
        "child": subprocess.Popen._execute_child, "recursion": sys.getrecursionlimit(),
        "names": [hasattr(sys.modules["builtins"], n) for n in ("display", "get_ipython")],
        "hook": (sys.displayhook, sys.excepthook, threading.excepthook), "mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "kernels": [name for name in sys.modules if name.startswith("workcell_kernel_")],
    }


NASTY = """import os, sys, builtins, threading
os.chdir('/'); os.environ['WC_LEFT'] = '1'; sys.argv = ['x']; sys.path.append('/nowhere'); sys.setrecursionlimit(5000)
sys.stdout = None
'done'"""


def host_state():
    before = state()
    for cycle in range(2):  # embedding twice
        engine = Engine()
        session = open_session(engine)
        assert session.pid() == os.getpid()
        during = state()
        for same in ("handlers", "cwd", "environ", "argv", "streams", "recursion", "names", "hook", "mask"):
            assert during[same] == before[same], same
        assert session.value(NASTY) == "done"
        session.reset()
        assert session.value("import sys, os\n[sys.argv, 'WC_LEFT' in os.environ]") == [[""], False]
        assert session.value(NASTY) == "done"
        session.close()
        after = state()
        assert after == before, [(key, before[key], after[key]) for key in before if before[key] != after[key]]
        engine.close()
    assert state() == before


def streams_apart():
    """What a session writes is its own, what the host writes goes where the host says, also at the same time."""
    mine = sys.stdout = io.StringIO()
    engine = Engine()
    session = open_session(engine)
    running = in_thread(lambda: session.run("import threading\nfor i in range(2000): print('theirs')\n"
                                            "t = threading.Thread(target=print, args=('child',))\nt.start(); t.join()"))
    for _ in range(2000):
        print("mine")
    result = running()
    assert result["stdout"] == "theirs\n" * 2000 + "child\n", result["stdout"][-100:]
    assert mine.getvalue() == "mine\n" * 2000
    # Code that takes sys.stdout for itself takes its own.
    assert session.run("import sys, io\nsys.stdout = kept = io.StringIO()\nprint('x')")["stdout"] == ""
    print("mine again")
    assert session.value("kept.getvalue()") == "x\n" and mine.getvalue().endswith("mine\nmine again\n")
    # A handler that is made in a session serves the host's threads too.
    assert session.run("sys.stdout = sys.__stdout__\nimport logging\nlogging.warning('a')")["stderr"] == "WARNING:root:a\n"
    sys.stderr = io.StringIO()
    import logging
    logging.warning("b")
    assert sys.stderr.getvalue() == "WARNING:root:b\n"
    logging.getLogger().handlers.clear()
    session.close()
    engine.close()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


def two_sessions():
    engine = Engine()
    a, b = open_session(engine), open_session(engine)
    assert a.value("x = 'a'\nimport __main__, pickle\nclass K: name = 'a'\n__main__.x") == "a"
    assert b.value("x = 'b'\nimport __main__, pickle\nclass K: name = 'b'\n__main__.x") == "b"
    for session, name in ((a, "a"), (b, "b")):
        assert session.value("pickle.loads(pickle.dumps(K())).name") == name
        assert session.value("t = !echo {x}\nt[0]") == name
        assert "raise KeyError(x)  # " + name in session.run("raise KeyError(x)  # " + name)["error"]["traceback"]
    assert "# a" in a.run("def f():\n    1 / 0  # a\nf()")["error"]["traceback"]
    # Both run, on threads of the host's own.
    joins = [in_thread(lambda s=s, n=n: s.run("import time\nfor i in range(20):\n    print(x); time.sleep(0.001)"))
             for s, n in ((a, "a"), (b, "b"))]
    assert [join()["stdout"] for join in joins] == ["a\n" * 20, "b\n" * 20]
    a.close()
    assert b.value("x") == "b"
    engine.close()


def never_ends_the_host():
    engine = Engine()
    session = open_session(engine)
    session.run("x = 1")
    for code, kind in (("import sys; sys.exit(3)", "SystemExit"), ("raise SystemExit", "SystemExit"), ("quit()", "SystemExit"),
                       ("def f(): f()\nf()", "RecursionError"), ("class B(BaseException): pass\nraise B", "B"),
                       ("raise KeyboardInterrupt", "KeyboardInterrupt"), ("raise MemoryError", "MemoryError"),
                       ("import sys\nsys.setrecursionlimit(20000)\nx = []\nfor i in range(15000): x = [x]\nimport json\n"
                        "def g(n): return max([n], key=lambda m: g(m - 1) if m else 0)\ng(4000)\nn = len(json.dumps(x))\n1 / 0",
                        "ZeroDivisionError or RecursionError")):  # how deep C code may go depends on the version
        result = session.run(code)
        assert result["error"] and result["error"]["type"] in kind, (code, result)
        assert result["state"] == "kept"
    assert session.value("1 + 1") == 2
    engine.close()


def code_that_will_not_stop():
    mine = sys.stdout = io.StringIO()
    engine = Engine()
    for code in ("while True: pass", "await asyncio.sleep(60)", "asyncio.run(asyncio.sleep(60))"):
        session = open_session(engine, timeout_ms=20000, grace_ms=20000)
        session.run("import asyncio\nx = 1")
        result = session.run(code, timeout_ms=200)
        assert (result["error"]["code"], result["state"]) == ("timeout", "kept"), result
        assert session.value("x") == 1
        session.close()
    session = open_session(engine, timeout_ms=200, grace_ms=100)
    result = session.run("import time, sys\nprint('before')\ntime.sleep(1.5)\nprint('after')\nsys.stdout.flush()")
    assert (result["error"]["code"], result["state"], result["stdout"]) == ("timeout", "lost", "before\n"), result
    assert "abandoned" in result["error"]["message"]
    # At once there is a fresh namespace, on another thread.
    assert session.run("x", timeout_ms=20000)["error"]["type"] == "NameError"
    assert session.run("x = 2\nx", timeout_ms=20000)["value"] == 2
    result = session.run("def deaf():\n    try:\n        for i in range(10 ** 6): len('x')\n    except BaseException:\n"
                         "        pass\nwhile True: deaf()")
    assert (result["error"]["code"], result["state"]) == ("timeout", "lost"), result
    session.close()
    engine.close()
    assert mine.getvalue() == ""
    sys.stdout = sys.__stdout__
    os._exit(0 if sys.stdout.write("ok\n") and not sys.stdout.flush() else 1)  # one thread spins for ever


def interrupts():
    engine = Engine()
    session = open_session(engine)
    for code in ("while True: pass", "import os\n!sleep 30", "import asyncio\nawait asyncio.sleep(30)"):
        up = threading.Event()
        running = in_thread(lambda code=code: session.run("x = 1\nprint('up', flush=True)\n" + code,
                                                          on_event=lambda e: up.set()))
        assert up.wait(DEADLINE)
        session.interrupt()
        result = running()
        assert (result["error"]["code"], result["state"]) == ("interrupted", "kept"), result
        assert session.value("x") == 1
    engine.close()


def tools():
    """Functions of a Python host, called by code in the same interpreter: from threads, tasks, workflows."""
    import tempfile

    seen, gate = set(), threading.Event()

    def double(args):
        seen.add(threading.get_ident())
        return "{}".format(int(args.partition(":")[2].strip(" }")) * 2)

    def wait(args):
        return "1" if gate.wait(DEADLINE) else "0"

    with tempfile.TemporaryDirectory() as storage:
        engine = Engine()
        space = open_space(engine, storage, double=double)
        session = open_session(engine, space=space)
        other = open_session(engine, space=space)
        assert session.value("[tools.double(n=i) for i in range(100)]") == [2 * i for i in range(100)]
        assert session.value("from concurrent.futures import ThreadPoolExecutor as P\nwith P(8) as pool:\n"
                             "    r = list(pool.map(lambda i: tools.double(n=i), range(400)))\nr[-1]") == 798
        assert session.value("import asyncio\nsum(await asyncio.gather(*(tools.double.call_async(n=i) for i in range(200))))"
                             ) == 2 * sum(range(200))
        assert session.value("async def f():\n    return tools.double(n=4)\nawait f()") == 8
        assert session.value("workflows.create('w', 'def run(n):\\n    return tools.double(n=n)');workflows.w(n=3)") == 6
        assert session.value("workflows.create('v', 'async def run(n):\\n"
                             "    return workflows.w(n=n) + await tools.double.call_async(n=n)');workflows.v(n=3)") == 12
        assert session.value("artifacts.save('x', b'1' * 3000000);len(artifacts.load('x'))") == 3000000
        # Two sessions and threads of the host's, all at once.
        joins = [in_thread(lambda s=s: s.value("sum(tools.double(n=i) for i in range(500))")) for s in (session, other)]
        assert [join() for join in joins] == [sum(range(500)) * 2] * 2
        assert threading.get_ident() not in seen
        session.close()
        other.close()
        LIB.cell_space_close(space)
        engine.close()


def any_state():
    """Reset and close while a cell runs, while it waits for a tool, while it prints; and the engine under a session."""
    for code in ("while True: pass", "import time\nwhile True: time.sleep(0.01)", "while True: print('x' * 1000)"):
        engine = Engine()
        session = open_session(engine)
        for end in (session.reset, session.close):
            up = threading.Event()
            running = in_thread(lambda code=code: outcome(lambda: session.run("print('up')\n" + code,
                                                                              on_event=lambda e: up.set())))
            assert up.wait(DEADLINE)
            end()
            assert running() in ("interrupted", "closed"), code
        again = open_session(engine)
        assert again.value("1") == 1
        engine.close()


def refusals():
    engine = Engine()
    env = (c.c_char_p * 2)(b"A=b", None)
    for options in (dict(env=env), dict(cwd=b"/"), dict(python=b"/usr/bin/python3")):
        made = SessionOptions(size=c.sizeof(SessionOptions), executor=b"inprocess", timeout_ms=1000, grace_ms=1000,
                              max_output_bytes=4096, **options)
        try:
            Session(engine, made)
            raise AssertionError("was not refused: %r" % options)
        except library.WorkcellError as error:
            assert error.args[0] == "invalid" and "inprocess" in error.args[1], error
    engine.close()


def left_threads():
    """A thread that outlives its session keeps writing to nowhere; when it ends, nothing of ours is left."""
    mine = sys.stdout = io.StringIO()
    before = state()
    engine = Engine()
    session = open_session(engine)
    session.run("import threading\ngo = threading.Event()\ndef late():\n    go.wait()\n    print('late')\n"
                "t = threading.Thread(target=late)\nt.start()")
    go = [t for t in threading.enumerate() if t is not threading.main_thread()]
    sys.modules["__main__"].go = None
    event = session.value("id(go)")
    go_event = c.cast(event, c.py_object).value
    session.close()
    engine.close()
    assert sys.stdout is mine
    go_event.set()
    wait_until(lambda: not any(t.is_alive() for t in go if not isinstance(t, threading._DummyThread)), "the thread ends")
    wait_until(lambda: type(sys).__name__ == "module", "sys is as before")
    assert mine.getvalue() == ""
    after = state()
    assert after == before, [(key, before[key], after[key]) for key in before if before[key] != after[key]]
    sys.stdout = sys.__stdout__


def imports_meanwhile():
    """The last session closes while another thread is on its way through sys.meta_path: it comes to the end of it."""
    reached, go_on = threading.Event(), threading.Event()

    class Wait:
        def find_spec(self, name, path=None, target=None):
            if name == "colorsys":
                reached.set()
                go_on.wait(DEADLINE)

    sys.meta_path.insert(len(sys.meta_path) - 1, Wait())
    engine = Engine()
    session = open_session(engine)
    session.run("1")
    imported = in_thread(__import__, "colorsys")
    assert reached.wait(DEADLINE)
    session.close()
    go_on.set()
    assert imported().__name__ == "colorsys"
    engine.close()


SCENARIOS = [host_state, streams_apart, two_sessions, never_ends_the_host, code_that_will_not_stop, interrupts, tools,
             any_state, refusals, left_threads, imports_meanwhile]

if __name__ == "__main__":
    {scenario.__name__: scenario for scenario in SCENARIOS}[sys.argv[1]]()
    print("ok")
