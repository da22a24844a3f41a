"""libworkcell through ctypes: what one program with several sessions sees.

Run as a program with the name of a scenario; prints "ok" at its end.  A process of its own, so that a crash of
the library is a failed test and not the end of the test run.
"""
import ctypes as c
import glob
import json
import os
import signal
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import support  # noqa: E402


def library_path():
    where = os.path.dirname(support.BIN)
    for pattern in ("libworkcell.so*", "src/libworkcell.so*", "../lib/libworkcell.so*",
                    "../lib/*/libworkcell.so*"):
        for path in sorted(glob.glob(os.path.join(where, pattern))):
            if os.path.isfile(path) and not path.endswith(".p"):
                return path
    raise OSError("no libworkcell.so near %s" % support.BIN)


class Error(c.Structure):
    _fields_ = [("code", c.c_int), ("sys", c.c_int), ("msg", c.c_char * 240)]


class EngineOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("lib_dir", c.c_char_p), ("spill_dir", c.c_char_p),
                ("pool_size", c.c_int),
                ("start_timeout_ms", c.c_int64), ("log", c.c_void_p), ("log_arg", c.c_void_p)]


class Event(c.Structure):
    _fields_ = [("type", c.c_int), ("run_id", c.c_uint64), ("stream", c.c_int), ("data", c.c_void_p),
                ("size", c.c_size_t),
                ("parts", c.c_void_p), ("n_parts", c.c_size_t), ("result", c.c_void_p),
                ("message", c.c_char_p)]


EVENT_FN = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(Event))


class SessionOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("executor", c.c_char_p), ("python", c.c_char_p),
                ("preload", c.c_char_p),
                ("cwd", c.c_char_p), ("env", c.POINTER(c.c_char_p)), ("timeout_ms", c.c_int64),
                ("grace_ms", c.c_int64),
                ("max_output_bytes", c.c_int64), ("on_event", EVENT_FN), ("event_arg", c.c_void_p)]


class RunOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("timeout_ms", c.c_int64), ("on_event", EVENT_FN),
                ("event_arg", c.c_void_p)]


class WorkcellError(Exception):
    pass


def load():
    lib = c.CDLL(library_path())
    lib.cell_code_word.restype = c.c_char_p
    lib.cell_version.restype = c.c_char_p
    lib.cell_session_id.restype = c.c_char_p
    lib.cell_session_kernel_pid.restype = c.c_int64
    lib.cell_result_json.restype = c.c_void_p
    for name in ("cell_engine_destroy", "cell_session_close", "cell_session_id", "cell_session_kernel_pid",
                 "cell_result_destroy", "cell_result_json", "cell_result_keep_spill"):
        getattr(lib, name).argtypes = [c.c_void_p]
    lib.cell_engine_create.argtypes = [c.POINTER(EngineOptions), c.POINTER(c.c_void_p), c.POINTER(Error)]
    lib.cell_session_open.argtypes = [c.c_void_p, c.POINTER(SessionOptions), c.POINTER(c.c_void_p),
                                      c.POINTER(Error)]
    lib.cell_session_run.argtypes = [c.c_void_p, c.c_char_p, c.c_size_t, c.POINTER(RunOptions),
                                     c.POINTER(c.c_void_p),
                                     c.POINTER(Error)]
    lib.cell_session_complete.argtypes = [c.c_void_p, c.c_char_p, c.c_size_t, c.POINTER(c.c_void_p), c.POINTER(Error)]
    for name in ("cell_session_interrupt", "cell_session_reset"):
        getattr(lib, name).argtypes = [c.c_void_p, c.POINTER(Error)]
    return lib


LIB = load()
free = c.CDLL(None).free
free.argtypes = [c.c_void_p]


def check(status, error):
    if status < 0:
        raise WorkcellError(LIB.cell_code_word(error.code).decode(), error.msg.decode())


class Engine:
    def __init__(self, pool=0):
        options = EngineOptions(size=c.sizeof(EngineOptions), pool_size=pool, start_timeout_ms=60000)
        self.handle, error = c.c_void_p(), Error()
        check(LIB.cell_engine_create(c.byref(options), c.byref(self.handle), c.byref(error)), error)

    def open(self, python=None, executor=None, preload=None, timeout_ms=60000, max_output=1 << 20):
        return Session(self, SessionOptions(
            size=c.sizeof(SessionOptions), python=(python or os.environ["WORKCELL_BARE_PYTHON"]).encode(),
            executor=executor and executor.encode(), preload=preload and preload.encode(),
            timeout_ms=timeout_ms,
            grace_ms=2000, max_output_bytes=max_output))

    def close(self):
        LIB.cell_engine_destroy(self.handle)


class Session:
    def __init__(self, engine, options):
        self.handle, error = c.c_void_p(), Error()
        check(LIB.cell_session_open(engine.handle, c.byref(options), c.byref(self.handle), c.byref(error)),
              error)

    def run(self, code, on_event=None, timeout_ms=0):
        options = RunOptions(size=c.sizeof(RunOptions), timeout_ms=timeout_ms)
        if on_event:
            options.on_event = EVENT_FN(lambda arg, event: on_event(event.contents))
        data, result, error = code.encode(), c.c_void_p(), Error()
        check(LIB.cell_session_run(self.handle, data, len(data), c.byref(options), c.byref(result),
                                   c.byref(error)), error)
        text = LIB.cell_result_json(result)
        try:
            return json.loads(c.string_at(text))
        finally:
            free(text)
            LIB.cell_result_destroy(result)

    def complete(self, before):
        data, text, error = before.encode(), c.c_void_p(), Error()
        check(LIB.cell_session_complete(self.handle, data, len(data), c.byref(text), c.byref(error)), error)
        try:
            return json.loads(c.string_at(text.value))
        finally:
            free(text)

    def value(self, code):
        result = self.run(code)
        assert result["error"] is None, result
        return result["value"]

    def reset(self):
        error = Error()
        check(LIB.cell_session_reset(self.handle, c.byref(error)), error)

    def interrupt(self):
        error = Error()
        check(LIB.cell_session_interrupt(self.handle, c.byref(error)), error)

    def pid(self):
        return LIB.cell_session_kernel_pid(self.handle)

    def id(self):
        return LIB.cell_session_id(self.handle).decode()

    def close(self):
        LIB.cell_session_close(self.handle)


def in_thread(target, *args):
    box = []
    thread = threading.Thread(target=lambda: box.append(target(*args)))
    thread.start()

    def join():
        thread.join(support.DEADLINE)
        assert not thread.is_alive(), "hangs"
        return box[0]
    return join


# ---- scenarios ---------------------------------------------------------------------------------------------


def many_sessions():
    """Opened, used and closed, again and again, without a leak of descriptors, threads or processes."""
    engine = Engine(pool=2)

    def cycle(count):
        sessions = [engine.open() for _ in range(count)]
        for n, session in enumerate(sessions):
            session.run("x = %d" % n)
        assert [s.value("x") for s in sessions] == list(range(count))
        assert len({s.id() for s in sessions}) == count and len({s.pid() for s in sessions}) == count
        pids = [s.pid() for s in sessions]
        for session in sessions:
            session.close()
        assert not any(support.alive(pid) for pid in pids)

    cycle(40)
    settled = []

    def settle():
        settled.append(support.fd_count(os.getpid()))
        return len(settled) > 20 and len(set(settled[-20:])) == 1
    support.wait_until(settle, "the pool is full")
    before, threads = settled[-1], len(os.listdir("/proc/self/task"))
    for _ in range(3):
        cycle(40)
    support.wait_until(lambda: support.fd_count(os.getpid()) <= before,
                       lambda: "descriptors %d, then %d" % (before, support.fd_count(os.getpid())), 10)
    assert len(os.listdir("/proc/self/task")) == threads
    engine.close()


def engine_cycles():
    """An engine leaves nothing in its process."""
    def cycle():
        engine = Engine(pool=1)
        session = engine.open()
        assert session.value("1") == 1
        session.close()
        engine.close()
    cycle()
    before, threads = support.fd_count(os.getpid()), len(os.listdir("/proc/self/task"))
    for _ in range(4):
        cycle()
    assert support.fd_count(os.getpid()) == before and len(os.listdir("/proc/self/task")) == threads


def unused_engine():
    for _ in range(3):
        Engine().close()


def engine_closes_sessions():
    engine = Engine()
    sessions = [engine.open() for _ in range(3)]
    pids = [s.value("import os\nos.getpid()") for s in sessions]
    engine.close()
    assert not any(support.alive(pid) for pid in pids)


def parallel():
    """One session waits for what another does: only possible if they run at the same time."""
    engine = Engine()
    first, second = engine.open(), engine.open()
    path = "/tmp/workcell-parallel-%d" % os.getpid()
    waiting = in_thread(first.value, "import os\nwhile not os.path.exists(%r): pass\n'seen'" % path)
    assert second.value("open(%r, 'w').close()\n5" % path) == 5
    assert waiting() == "seen"
    os.unlink(path)
    engine.close()


def one_at_a_time():
    """Cells of one session never overlap, from however many threads they come."""
    engine = Engine()
    session = engine.open()
    session.run("inside = 0; most = 0; total = 0")
    code = "inside += 1; most = max(most, inside); __import__('time').sleep(0.002); total += 1; inside -= 1"
    joins = [in_thread(lambda: [session.run(code) for _ in range(5)]) for _ in range(6)]
    for join in joins:
        assert all(r["error"] is None for r in join())
    assert session.value("[most, total]") == [1, 30]
    engine.close()


def slow_reader():
    """A callback that does not return holds up its own session and no other."""
    engine = Engine()
    first, second = engine.open(), engine.open()
    release, blocked = threading.Event(), threading.Event()

    def block(event):
        if event.type == 1:
            blocked.set()
            release.wait(support.DEADLINE)
    flood = in_thread(lambda: first.run("for _ in range(3000): print('x' * 10000)\n'end'", on_event=block))
    assert blocked.wait(support.DEADLINE)
    for n in range(20):
        assert second.value("%d" % n) == n
    third = engine.open()
    assert third.value("'opened'") == "opened"
    third.close()
    release.set()
    result = flood()
    assert result["value"] == "end" and result["spill"]
    engine.close()


def slow_reader_slows_its_kernel():
    """While the callback does not return, the kernel stops writing after what the buffers hold, on every way out."""
    engine = Engine()
    other = engine.open()
    ways = {"print": "sys.stdout.write(block)", "descriptor": "os.write(1, block.encode())",
            "child": "subprocess.run(['head', '-c', '100000', '/dev/zero'])", "display": "display(block)"}
    for name, write in ways.items():
        session = engine.open(max_output=1 << 20)
        path = "/tmp/workcell-slow-%d-%s" % (os.getpid(), name)
        with open(path, "w", encoding="ascii"):
            pass
        release, blocked = threading.Event(), threading.Event()

        def block(event, blocked=blocked, release=release):
            if event.type in (1, 2):
                blocked.set()
                release.wait(support.DEADLINE)
        code = ("import sys, os, subprocess\nblock = 'x' * 100000\nwith open(%r, 'a') as progress:\n"
                "    for _ in range(400):\n        %s\n        progress.write('.')\n        progress.flush()\n'end'"
                % (path, write))
        running = in_thread(lambda session=session, code=code, block=block: session.run(code, on_event=block))
        assert blocked.wait(support.DEADLINE)
        seen = []

        def stands_still(path=path, seen=seen):
            assert other.value("1 + 1") == 2
            seen.append(os.path.getsize(path))
            return len(seen) > 60 and len(set(seen[-60:])) == 1
        support.wait_until(stands_still, "the kernel waits")
        assert seen[-1] < 200, (name, seen[-1])
        release.set()
        result = running()
        assert result["value"] == "end" and os.path.getsize(path) == 400, (name, result)
        os.unlink(path)
        session.close()
    engine.close()


def slow_reader_of_a_cell_that_ends():
    """Output that fills the queue and comes together with the cell's end does not hold up the next cell."""
    engine = Engine()
    session = engine.open(max_output=64 << 20)
    for size in range((1 << 20) - (96 << 10), (1 << 20) + (256 << 10), 16 << 10):
        release, blocked = threading.Event(), threading.Event()

        def block(event, blocked=blocked, release=release):
            if event.type == 1 and not blocked.is_set():
                blocked.set()
                release.wait(0.05)  # long enough for the cell to end meanwhile
        result = session.run("print('.', flush=True)\nprint('x' * %d)" % size, on_event=block)
        assert blocked.is_set() and len(result["stdout"]) == size + 3
        assert len(session.run("print('y' * 600000)", on_event=lambda event: None)["stdout"]) == 600001
    engine.close()


def two_engines():
    one, two = Engine(pool=1), Engine()
    a, b = one.open(), two.open()
    a.run("x = 'a'")
    b.run("x = 'b'")
    assert (a.value("x"), b.value("x")) == ("a", "b")
    one.close()
    assert b.value("x") == "b"
    two.close()


def signal_sets():
    """Blocked, ignored and caught signals; the two that the C library keeps for its threads do not count."""
    with open("/proc/self/status", encoding="ascii") as file:
        sets = dict(line.split() for line in file if line[:6] in ("SigBlk", "SigIgn", "SigCgt"))
    return {name: int(value, 16) & ~(3 << 31) for name, value in sets.items()}


def good_guest():
    """The host's signal handlers, mask, children and directory are its own."""
    seen = []
    numbers = [signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM]
    signal.signal(signal.SIGCHLD, lambda *a: seen.append(1))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    before = signal_sets()
    handlers = [signal.getsignal(n) for n in numbers]
    mask, cwd = signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getcwd()
    engine = Engine(pool=1)
    session = engine.open()
    assert session.value("1") == 1
    assert session.run("import os\nos._exit(1)")["error"]["code"] == "kernel_died"
    session.reset()
    session.close()
    engine.close()
    assert len(seen) <= 1, "SIGCHLD may come once, when the spawner goes into the background"
    assert [signal.getsignal(n) for n in numbers] == handlers
    assert signal_sets() == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask and os.getcwd() == cwd
    # A child of the host's own: its status is not taken by anyone else.
    engine = Engine()
    session = engine.open()
    child = subprocess.Popen(["sh", "-c", "exit 7"])
    assert session.value("2") == 2
    assert child.wait(support.DEADLINE) == 7
    try:
        os.waitpid(-1, os.WNOHANG)
        raise AssertionError("the library left a child to its host")
    except ChildProcessError:
        pass
    engine.close()


def blocked_signals():
    """A host that blocks or ignores everything does not hand that on to kernels."""
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    engine = Engine()
    session = engine.open(timeout_ms=300)
    result = session.run("x = 1\nwhile True: pass")
    assert (result["error"]["code"], result["state"]) == ("timeout", "kept"), result
    assert session.value("import signal\nsorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))") == []
    assert session.value("import subprocess\nsubprocess.run(['sh', '-c', 'exit 3']).returncode") == 3
    assert session.value("subprocess.run(['sh', '-c', 'kill -TERM $$; exit 3']).returncode") == -15
    engine.close()


def spawner_dies():
    """All sessions end with a clear error; a new session starts a new spawner or says why it cannot."""
    engine = Engine()
    sessions = [engine.open() for _ in range(3)]
    pids = [s.value("import os\nos.getpid()") for s in sessions]
    zygote = support.read_process(pids[0]).ppid
    spawner = support.read_process(zygote).ppid
    assert "spawner" in support.read_process(spawner).cmdline
    running = in_thread(lambda: outcome(lambda: sessions[0].run("while True: pass")))
    os.kill(spawner, signal.SIGKILL)
    codes = [running()] + [outcome(lambda s=s: s.run("1")) for s in sessions[1:]]
    assert set(codes) <= {"spawner_failed", "kernel_died"}, codes
    for pid in pids + [zygote]:
        support.wait_until(lambda: not support.alive(pid), "no orphan", 10)
    for session in sessions:
        session.close()
    session = engine.open()
    assert session.value("1 + 1") == 2
    engine.close()


def outcome(call):
    try:
        result = call()
        return result["error"] and result["error"]["code"]
    except WorkcellError as error:
        return error.args[0]


def zygote_dies():
    """Sessions go on, and opening goes on."""
    engine = Engine(pool=2)
    sessions = [engine.open() for _ in range(3)]
    pids = [s.value("import os\nx = 5\nos.getpid()") for s in sessions]
    zygote = support.read_process(pids[0]).ppid
    os.kill(zygote, signal.SIGKILL)
    support.wait_until(lambda: not support.alive(zygote), "the zygote is dead")
    assert [s.value("x") for s in sessions] == [5, 5, 5]
    more = [engine.open() for _ in range(4)]
    assert [s.value("2") for s in more] == [2, 2, 2, 2]
    assert [s.value("x") for s in sessions] == [5, 5, 5]
    engine.close()


def interrupt_from_another_thread():
    engine = Engine()
    session = engine.open()
    session.interrupt()
    session.run("x = 1")
    up = threading.Event()
    running = in_thread(lambda: session.run("print('up')\nwhile True: pass", on_event=lambda e: up.set()))
    assert up.wait(support.DEADLINE)
    session.interrupt()
    result = running()
    assert (result["error"]["code"], result["state"]) == ("interrupted", "kept"), result
    assert session.value("x") == 1
    engine.close()


def reset_while_running():
    engine = Engine()
    session = engine.open()
    up = threading.Event()
    running = in_thread(lambda: session.run("print('up')\nwhile True: pass", on_event=lambda e: up.set()))
    assert up.wait(support.DEADLINE)
    session.reset()
    result = running()
    assert (result["error"]["code"], result["state"]) == ("interrupted", "lost"), result
    assert session.value("1") == 1
    engine.close()


def close_while_running():
    engine = Engine()
    session = engine.open()
    up = threading.Event()
    running = in_thread(lambda: outcome(lambda: session.run("print('up')\nwhile True: pass",
                                                            on_event=lambda e: up.set())))
    assert up.wait(support.DEADLINE)
    session.close()
    assert running() in ("closed", "cancelled", "interrupted")
    engine.close()


def fork_of_the_host():
    """A host that forks: the child's copy of the library does not take the parent's processes with it."""
    engine = Engine()
    session = engine.open()
    session.run("x = 1")
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert session.value("x") == 1
    engine.close()


def completions():
    """Names and attributes, without running the code's properties, without a trace, and not while a cell runs."""
    engine = Engine()
    session = engine.open()
    session.run("import os\nran = []\nclass A:\n    field = 1\n    @property\n    def prop(self):\n        ran.append(1)\n        return ''\n"
                "    def method(self): pass\na = A()\na.own = {}\nclass Slow:\n    def __dir__(self):\n        while True: pass\nslow = Slow()")
    session.run("6 * 7")
    for before, wanted in (("a.", ["field", "method", "own", "prop"]), ("a.me", ["method"]), ("x = [a.o", ["own"]), ("a.prop.up", []),
                           ("a.own.ke", ["keys"]), ("os.path.basen", ["basename"]), ("import collec", ["collections"]),
                           ("from os import getcw", ["getcwd", "getcwdb"]), ("whi", ["while"]), ("'a.", []), ("# a.", []),
                           ("len(a).", []), ("nothing.", []), ("%%ba", ["bash"]), ("é = a.fi", ["field"])):
        found = session.complete(before)
        assert found["matches"] == wanted and before.endswith(found["prefix"]) and found["more"] == 0, (before, found)
    assert session.value("[ran, _, len(In), str(Out)]") == [[], 42, 4, "{2: 42}"], "no trace of them"
    assert len(session.complete("")["matches"]) > 100
    try:
        session.complete("slow.")
        raise AssertionError("it ends")
    except WorkcellError as error:
        assert error.args[0] == "start_timeout", error
    assert session.value("a.field") == 1, "the variables are kept"
    go = os.path.join(session.value("os.getcwd()"), "completions-%d" % os.getpid())
    begun = threading.Event()
    join = in_thread(lambda: session.run("print('on', flush=True)\nwhile not os.path.exists(%r): pass" % go, lambda event: begun.set()))
    assert begun.wait(support.DEADLINE)
    try:
        session.complete("a.")
        raise AssertionError("a cell runs")
    except WorkcellError as error:
        assert error.args[0] == "busy", error
    open(go, "w").close()
    assert join()["error"] is None
    os.unlink(go)
    assert session.complete("a.me")["matches"] == ["method"]
    session.close()
    engine.close()


def bad_arguments():
    error = Error()
    handle = c.c_void_p()
    engine = Engine()
    for options in (SessionOptions(size=3), SessionOptions(size=c.sizeof(SessionOptions), executor=b"nosuch"),
                    SessionOptions(size=c.sizeof(SessionOptions), python=b"/nonexistent")):
        assert LIB.cell_session_open(engine.handle, c.byref(options), c.byref(handle), c.byref(error)) < 0
        assert not handle.value, "ret_ is untouched on failure"
        assert error.code and error.msg
    assert LIB.cell_session_open(engine.handle, c.byref(options), c.byref(handle), None) < 0
    LIB.cell_session_close(None)
    LIB.cell_engine_destroy(None)
    LIB.cell_result_destroy(None)
    engine.close()


SCENARIOS = [many_sessions, engine_cycles, unused_engine, engine_closes_sessions, parallel, one_at_a_time,
             slow_reader, slow_reader_slows_its_kernel, slow_reader_of_a_cell_that_ends,
             two_engines, good_guest, blocked_signals, spawner_dies, zygote_dies,
             interrupt_from_another_thread,
             reset_while_running, close_while_running, fork_of_the_host, completions, bad_arguments]

if __name__ == "__main__":
    {scenario.__name__: scenario for scenario in SCENARIOS}[sys.argv[1]]()
    print("ok")
