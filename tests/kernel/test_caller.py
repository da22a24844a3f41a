"""The kernel's C part as the link: all of test_rpc.py and what test_namespaces.py has on tools once more on it, and the
short way of a call (kernel/ext/caller.c), which is taken there only.  Needs no pytest.

Each test is a process of its own, since a process becomes a kernel once.
"""

import asyncio
import faulthandler
import gc
import json
import math
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.environ.get("WORKCELL_BIN", os.path.join(ROOT, "build", "workcell"))
RING_BYTES = 4096 + 256 * 1024 + 2 * 1024 * 1024
RING_VERSION = 3

if __name__ == "__main__":
    sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(BIN)), "kernel"), HERE]
    import _workcell
    import fake_workcell
    from fake_workcell import REPLY, RUN, SHUTDOWN, Host, raises

    class Link:
        """What fake_workcell.Link stands for."""

        most_readers = 0

        def __init__(self, sock):
            ring = os.memfd_create("ring")
            os.ftruncate(ring, RING_BYTES)
            self.ring = mmap.mmap(ring, RING_BYTES)
            self.ring[:4] = RING_VERSION.to_bytes(4, sys.byteorder)
            self.sock = os.fdopen(os.pipe()[1], "wb", 0)  # to be closed with us
            self.lifeline = os.pipe()
            self.fd = _workcell.become_kernel(sock.detach(), os.dup(1), os.dup(2), ring, self.lifeline[0])

        def fileno(self):
            return self.fd

        def __getattr__(self, name):
            return getattr(_workcell, name)

    fake_workcell.Link = Link
    import test_namespaces
    import test_rpc
    from test_rpc import assert_quiet, in_threads, interrupted, join
    from workcell_kernel import ns_tools, rpc


# ---- the short way

def tools_of(host):
    """``tools`` with the tool ``x``, and the number of calls that took the long way."""
    tools = ns_tools.ToolsNamespace(host.channel())
    tools._tools = {"x": {"name": "x", "callables": [{"name": "x", "parameters": []}]}}
    long_ways = []
    long_way = ns_tools._Call._call

    def counted(self, args, kwargs):
        long_ways.append(kwargs)
        return long_way(self, args, kwargs)

    ns_tools._Call._call = counted
    return tools, long_ways


def raw_json(host, ident, method, args, raw):
    """Answers with the argument, as a host function does."""
    if method == "tools.list":
        host.reply(ident, [{"name": "x", "callables": [{"name": "x", "parameters": []}]}])
        return
    host.send(REPLY, ident, {"result": {"raw": "json"}}, json.dumps(args["args"].get("v")).encode())


def short_arguments():
    with Host(raw_json) as host:
        tools, long_ways = tools_of(host)
        deep = [[[{"a": [1, {"b": ()}]}]]]
        for value in (0, -1, 7, 10 ** 17, -(1 << 63), (1 << 63) - 1, True, False, None, "", "é\u2028\U0001f600", 'a"\\\n\t\x01\x7f',
                      "x" * 100000, "é" * 5000, 0.0, -0.0, 1.5, 1e300, 5e-324, 0.1, [], {}, deep, {"k": {"": 1}}, "\0"):
            again = tools.x(v=value)
            assert again == (deep if value is deep else value) or value is deep, value
            assert type(again) is type(value) and math.copysign(1, again if again == 0.0 and type(again) is float else 1) == \
                math.copysign(1, value if type(value) is float and value == 0.0 else 1)
            sent = host.calls[-1][2]
            assert sent["name"] == "x" and (value is deep or sent["args"] == {"v": value})
        assert tools.x() is None and host.calls[-1][2]["args"] == {}
        assert not long_ways, long_ways
        assert_quiet(tools._channel)


def not_plain_arguments():
    import enum

    class Text(str):
        pass

    with Host(raw_json) as host:
        tools, long_ways = tools_of(host)
        assert tools.x(v=enum.IntEnum("kind", "a b").b) == 2
        assert tools.x(v=Text("t")) == "t" and tools.x(v={1: "a"}) == {"1": "a"}
        assert len(long_ways) == 3
        nested = []
        nested.append(nested)
        for value, words in ((b"x", "bytes"), ({1}, "set"), (float("nan"), "nan"), (float("-inf"), "-inf"), (1 << 63, "64 bits"),
                             ("\ud800", "surrogate"), (nested, "deeply"), ({"a\0": 1}, "NUL"), (object(), "object")):
            assert words in str(raises(TypeError, tools.x, v=value)), value
        assert "keyword arguments only" in str(raises(TypeError, tools.x, 1))
        assert "Signature: x.x()" in str(raises(TypeError, tools.x, v={2}))
        assert [call[1] for call in host.calls].count("tools.call") == 3
        assert_quiet(tools._channel)


def answers():
    def handle(host, ident, method, args, raw):
        kind = args["args"]["how"]
        if kind == "fail":
            host.fail(ident, type="ToolCallError", message="Tool 'x' failed: no", code="tool", namespace="tools")
        elif kind == "value":
            host.reply(ident, {"value": [1]})
        elif kind == "bytes":
            host.reply(ident, {"raw": "bytes"}, b"\0\xff")
        elif kind == "text":
            host.reply(ident, {"raw": "text"}, "é\xff".encode() + b"\xff")
        elif kind == "nothing":
            host.reply(ident, {"raw": "text"})
        elif kind == "large":
            host.reply(ident, {"raw": "text"}, b"x" * 3000000)
        elif kind == "pieces":
            data = fake_workcell.frame_bytes(REPLY, ident, b'{"result":{"raw":"json"}}', b"123456")
            for byte in data:
                host.sock.sendall(bytes([byte]))
                time.sleep(0)

    with Host(handle) as host:
        tools, long_ways = tools_of(host)
        assert str(raises("ToolCallError", tools.x, how="fail")) == "Tool 'x' failed: no"
        assert tools.x(how="value") == [1] and tools.x(how="bytes") == b"\0\xff"
        assert tools.x(how="text") == "éÿ\ufffd" and tools.x(how="nothing") == ""
        assert tools.x(how="large") == "x" * 3000000 and tools.x(how="pieces") == 123456
        assert tools.x(how="value") == [1]
        assert not long_ways
        assert_quiet(tools._channel)


def other_frames_first():
    """A RUN, an answer that nobody waits for, and our own, in one piece."""
    def handle(host, ident, method, args, raw):
        head = b'{"result":{"raw":"json"}}'
        host.sock.sendall(fake_workcell.frame_bytes(RUN, 7, b"", b"1+1") + fake_workcell.frame_bytes(REPLY, 999, head, b"0") +
                          fake_workcell.frame_bytes(REPLY, ident, head, b"5") + fake_workcell.frame_bytes(RUN, 8))

    with Host(handle) as host:
        tools, _ = tools_of(host)
        assert tools.x() == 5
        channel = tools._channel
        assert channel.next_frame() == (RUN, 7, None, b"1+1") and channel.next_frame() == (RUN, 8, None, None)
        host.handle = raw_json
        assert tools.x(v=1) == 1
        assert_quiet(channel)


def short_and_long_ways_at_once():
    """Threads, tasks and the main thread; short calls become leaders and followers like all others."""
    with Host(raw_json) as host:
        tools, long_ways = tools_of(host)
        tools.x(v=0)
        stop = []

        def work(i):
            for n in range(300):
                assert tools.x(v=[i, n]) == [i, n]

        async def tasks():
            async def one(i):
                for n in range(100):
                    assert await tools.x.call_async(v=[i, n]) == [i, n]
                    if n % 10 == 0:
                        assert tools.x(v=n) == n

            await asyncio.gather(*map(one, range(5)))

        threads, problems = in_threads(3, lambda i: asyncio.run(tasks()) if i == 2 else work(i))
        for n in range(300):
            assert tools.x(v=n) == n
        asyncio.run(tasks())
        stop.append(1)
        join(threads, problems)
        assert long_ways, "nothing was ever in the way"
        assert_quiet(tools._channel)


def a_thread_between_cells():
    with Host(raw_json) as host:
        tools, _ = tools_of(host)

        def work(i):
            for n in range(200):
                assert tools.x(v=n) == n

        threads, problems = in_threads(2, work)
        for n in range(100):
            host.send(RUN, n + 1)
            assert tools._channel.next_frame()[:2] == (RUN, n + 1)
        join(threads, problems)
        assert_quiet(tools._channel)


def interrupt():
    with Host(lambda *a: None) as host:
        tools, long_ways = tools_of(host)
        interrupted(host, lambda: host.calls, tools.x)
        first = host.calls[0][0]
        host.wait_for(lambda: host.cancelled == [first])
        assert_quiet(tools._channel)
        host.send(REPLY, first, {"result": {"raw": "json"}}, b'"late"')
        host.handle = raw_json
        assert tools.x(v="next") == "next" and not long_ways
        assert_quiet(tools._channel)


def interrupt_with_a_follower():
    """The main thread leads and is interrupted: the thread that follows must still get its answer."""
    with Host(lambda *a: None) as host:
        tools, _ = tools_of(host)
        answers, problems = [], []

        def follow(i):
            host.wait_for(lambda: host.calls)
            answers.append(tools.x(v="thread"))

        threads, problems = in_threads(1, follow)
        interrupted(host, lambda: len(host.calls) == 2, tools.x)
        host.send(REPLY, host.calls[1][0], {"result": {"raw": "json"}}, b'"done"')
        join(threads, problems)
        assert answers == ["done"]
        assert_quiet(tools._channel)


def handlers_that_return():
    """Signals come all the time; calls go on."""
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *a: seen.append(1))
    with Host(lambda host, *a: (time.sleep(0.01), raw_json(host, *a))) as host:
        tools, long_ways = tools_of(host)
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        try:
            for n in range(50):
                assert tools.x(v=n) == n
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert len(seen) > 20 and len(host.calls) == 50 and not host.cancelled
        assert_quiet(tools._channel)


def many_interrupts():
    with Host(raw_json) as host:
        tools, _ = tools_of(host)
        stop, armed, hits = [], [False], 0

        def work(i):
            n = 0
            while not stop:
                n += 1
                assert tools.x(v=n) == n

        def pester(i):
            while not stop:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                time.sleep(0.0005)

        def handler(signum, frame):
            if armed[0]:
                armed[0] = False
                raise KeyboardInterrupt

        signal.signal(signal.SIGUSR1, handler)
        threads, problems = in_threads(3, lambda i: pester(i) if i == 2 else work(i))
        end = time.monotonic() + 1.5
        n = 0
        while time.monotonic() < end:
            n += 1
            try:
                armed[0] = True
                assert tools.x(v=n) == n
                armed[0] = False
            except KeyboardInterrupt:
                hits += 1
            armed[0] = False
        stop.append(1)
        host.send(RUN, 9)
        assert tools._channel.next_frame()[1] == 9
        join(threads, problems)
        assert hits > 3 and n - hits > 3, (hits, n)
        assert not tools._channel._waiting and not tools._channel._leader


def a_call_inside_a_call():
    """From a signal handler while the short way waits: refused, the outer call goes on."""
    with Host(lambda *a: None) as host:
        tools, _ = tools_of(host)
        seen = []

        def handler(signum, frame):
            if not seen:
                seen.append(raises(RuntimeError, tools.x, v="inner"))
                seen.append(raises(RuntimeError, tools._channel.call, "inner"))
                host.send(REPLY, host.calls[0][0], {"result": {"raw": "json"}}, b'"outer"')

        signal.signal(signal.SIGUSR1, handler)

        def alarm(i):
            host.wait_for(lambda: host.calls)
            while not seen:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                time.sleep(0.2)

        threads, problems = in_threads(1, alarm)
        assert tools.x(v="outer") == "outer"
        join(threads, problems)
        assert "signal handler" in str(seen[0]) and len(host.calls) == 1
        assert_quiet(tools._channel)


def a_handler_that_raises_timeout():
    with Host(lambda *a: None) as host:
        tools, _ = tools_of(host)

        def handler(signum, frame):
            raise TimeoutError("mine")

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        exc = raises(TimeoutError, tools.x)
        assert str(exc) == "mine" and not tools._channel.closed
        host.handle = raw_json
        assert tools.x(v=1) == 1


class FarHost:
    """A host in a process of its own: no code of the kernel's, finalizers neither, runs on its threads."""

    def __init__(self):
        ours, self.sock = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            stream = fake_workcell.Stream(self.sock)
            while True:
                frame = stream.next()
                if frame is None:
                    os._exit(0)
                raw_json(self, frame[1], "tools.call", json.loads(frame[2])["args"], None)
        self.sock.close()
        self.link = Link(ours)

    def send(self, kind, ident, value, raw):
        self.sock.sendall(fake_workcell.frame_bytes(kind, ident, json.dumps(value).encode(), raw))

    def channel(self):
        return rpc.Channel(self.link, self.link.fileno())


def finalizers_that_call():
    """The garbage collector may run in the middle of anything: what its finalizers call is answered or refused."""
    host = FarHost()
    tools, _ = tools_of(host)
    made = []

    class Node:
        def __init__(self):
            self.me = self

        def __del__(self):
            try:
                made.append(tools.x(v="fin"))
            except RuntimeError:
                made.append("refused")

    gc.set_threshold(3, 2, 2)
    for n in range(300):
        Node()
        assert tools.x(v={"n": [n]}) == {"n": [n]}
        if n % 3 == 0:
            assert tools._channel.call("tools.call", {"name": "x", "args": {"v": n}}) == ({"raw": "json"}, b"%d" % n)
    gc.set_threshold(700, 10, 10)
    gc.collect()
    assert len(made) == 300 and made.count("fin") > 30 and set(made) <= {"fin", "refused"}, made
    assert_quiet(tools._channel)


def shutdown_and_end():
    with Host(lambda host, *a: host.send(SHUTDOWN)) as host:
        tools, _ = tools_of(host)
        raises("Shutdown", tools.x)
        raises("Shutdown", tools.x)
        assert tools._channel.next_frame()[0] == SHUTDOWN and not host.cancelled


def host_is_gone():
    host = Host(lambda host, *a: host.sock.shutdown(2))
    tools, _ = tools_of(host)
    raises("Shutdown", tools.x)
    raises("Shutdown", tools.x)
    host.close()


def forked_child():
    with Host(raw_json) as host:
        tools, _ = tools_of(host)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                assert "forked" in str(raises(RuntimeError, tools.x))
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert tools.x(v=1) == 1 and len(host.calls) == 1


def attributes():
    with Host(raw_json) as host:
        tools, _ = tools_of(host)
        assert tools.x is tools.x is tools["x"]
        for target in (tools, tools.x):
            try:
                target.name = 1
            except AttributeError:
                continue
            raise AssertionError("an attribute of tools was set")


def encode_agrees():
    """The C encoder says what json says, or leaves it to Python."""
    rng = random.Random(5)

    def value(depth):
        kind = rng.randrange(9 if depth < 4 else 6)
        if kind == 0:
            return rng.choice([0, 1, -1, rng.randrange(-1 << 63, 1 << 63), 255])
        if kind == 1:
            return "".join(chr(rng.choice([rng.randrange(0xd800), rng.randrange(1, 128), 0x1f600])) for _ in range(rng.randrange(9)))
        if kind == 2:
            return rng.choice([rng.random() * 10 ** rng.randrange(-320, 300), float(rng.randrange(100)), -0.0])
        if kind < 6:
            return rng.choice([True, False, None])
        if kind == 6:
            return [value(depth + 1) for _ in range(rng.randrange(5))]
        if kind == 7:
            return tuple(value(depth + 1) for _ in range(rng.randrange(5)))
        return {"k%d" % i: value(depth + 1) for i in range(rng.randrange(5))}

    for _ in range(3000):
        given = {"a": value(0)}
        text = _workcell.encode(b"<", given, b">")
        assert text == b"<" + json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode() + b">", given
    assert _workcell.encode(b"", {"a": {1}}, b"") is None


OWN = (short_arguments, not_plain_arguments, answers, other_frames_first, short_and_long_ways_at_once, a_thread_between_cells,
       interrupt, interrupt_with_a_follower, handlers_that_return, many_interrupts, a_call_inside_a_call,
       a_handler_that_raises_timeout, finalizers_that_call, shutdown_and_end, host_is_gone, forked_child, attributes,
       encode_agrees)

TWO_KERNELS = ("test_tools_change",)


def all_tests():
    found = list(OWN)
    for module, prefix in ((test_rpc, "test_"), (test_namespaces, "test_tools_"), (test_namespaces, "test_artifact")):
        found += [test for name, test in sorted(vars(module).items()) if name.startswith(prefix) and name not in TWO_KERNELS]
    return found


def in_a_process(test):
    pid = os.fork()
    if pid == 0:
        try:
            faulthandler.dump_traceback_later(100, exit=True)
            test()
            os._exit(0)
        except BaseException:
            import traceback

            os.write(2, traceback.format_exc().encode())
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def main(names):
    failed = []
    for test in all_tests():
        if names and test.__name__ not in names:
            continue
        status = in_a_process(test)
        print("ok" if status == 0 else "FAILED (%d)" % status, test.__name__, flush=True)
        if status:
            failed.append(test.__name__)
    return 1 if failed else 0


def test_the_c_part():
    done = subprocess.run([sys.executable, os.path.abspath(__file__)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=600)
    assert done.returncode == 0, done.stdout.decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
