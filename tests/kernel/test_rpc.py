"""How calls travel: blocking, from threads, from asyncio, and all of that at once.  Needs no pytest."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fake_workcell import REPLY, RUN, SHUTDOWN, Host, echo, main, raises  # noqa: E402
from workcell_kernel import rpc  # noqa: E402

KERNEL = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "kernel"))


def collect(number):
    """A host that answers only when `number` calls are under way, the last one first."""
    held = []

    def handle(host, ident, method, args, raw):
        held.append((ident, args))
        if len(held) == number:
            for each, arguments in reversed(held):
                host.reply(each, arguments)
            held.clear()

    return handle


def in_threads(number, work):
    problems = []

    def run(i):
        try:
            work(i)
        except BaseException as exc:
            problems.append(exc)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(number)]
    for thread in threads:
        thread.start()
    return threads, problems


def join(threads, problems):
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a call never came back"
    assert not problems, problems


def interrupted(host, condition, call, *args):
    """call() must end with the KeyboardInterrupt that comes when the condition holds."""
    done = threading.Event()

    def interrupt(i):
        host.wait_for(condition)
        # A signal that falls just in front of a system call does not interrupt it: ask again, as people do.
        for attempt in range(20):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            if done.wait(1):
                return

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threads, problems = in_threads(1, interrupt)
        raises(KeyboardInterrupt, call, *args)
        done.set()
        join(threads, problems)
    finally:
        signal.signal(signal.SIGINT, before)


def assert_quiet(channel):
    """Nobody waits, nobody leads, nothing is left."""
    assert not channel._leader and not channel._busy
    assert not channel._waiting and not channel._parked and not channel._inbox
    assert channel.link.most_readers <= 1


def test_call():
    with Host(echo) as host:
        channel = host.channel()
        assert channel.call("tools.list") == ({"method": "tools.list", "args": {}}, None)
        result, raw = channel.call("x.y", {"a": [1, "é\u2028", None, 1.5]}, b"\0\xff")
        assert result == {"method": "x.y", "args": {"a": [1, "é\u2028", None, 1.5]}} and raw == b"\0\xff"
        idents = [call[0] for call in host.calls]
        assert len(set(idents)) == 2 and 0 not in idents
        assert_quiet(channel)


def test_large():
    def handle(host, ident, method, args, raw):
        host.reply(ident, len(raw), raw)

    with Host(handle) as host:
        data = os.urandom(3 * 1024 * 1024)
        assert host.channel().call("x.y", {}, data) == (len(data), data)


def test_empty_reply():
    with Host(lambda host, ident, *a: host.send(REPLY, ident)) as host:
        assert host.channel().call("x") == (None, None)


def test_errors():
    def handle(host, ident, method, args, raw):
        host.fail(ident, **args)

    with Host(handle) as host:
        channel = host.channel()
        exc = raises("ToolCallError", channel.call, "tools.call",
                     {"type": "ToolCallError", "message": "Tool 'x' failed: no", "namespace": "tools",
                      "operation": "call", "code": "exception"})
        assert str(exc) == "Tool 'x' failed: no" and exc.operation == "call" and exc.code == "exception"
        exc = raises("ArtifactError", channel.call, "x",
                     {"type": "Weird", "message": "m", "namespace": "artifacts", "operation": "save"})
        assert str(exc) == "artifacts.save: [Weird] m" and exc.original_type == "Weird"
        exc = raises("ValueError", channel.call, "x", {"type": "ValueError", "message": "m", "namespace": "artifacts"})
        assert isinstance(exc, ValueError) and str(exc) == "m"
        exc = raises("ArtifactNotFoundError", channel.call, "x",
                     {"code": "not_found", "message": "Artifact 'x' not found", "namespace": "artifacts"})
        assert isinstance(exc, KeyError) and str(exc) == "Artifact 'x' not found"
        raises("NamespaceError", channel.call, "x", {"message": "m"})
        raises("ToolTimeoutError", asyncio.run, channel.call_async("x", {"code": "timeout", "namespace": "tools"}))
        assert_quiet(channel)


def test_what_a_call_cannot_carry():
    with Host(echo) as host:
        channel = host.channel()

        def problem(value):
            return str(raises(TypeError, channel.call, "x.y", {"data": value}))

        assert problem(b"x").startswith("argument 'data' is bytes, which JSON cannot represent")
        assert "data['a'][1] is of type set" in problem({"a": [1, {2}]})
        assert "data[0] is nan" in problem([float("nan")])
        assert "more than 64 bits" in problem(1 << 63)
        assert "data[0][0] is an integer of more than 64 bits" in problem([[-(1 << 63) - 1]])
        assert "lone surrogate" in problem("\ud800")
        loop = []
        loop.append(loop)
        assert "nested too deeply" in problem(loop)
        assert "key of type tuple" in problem({(1, 2): 3})
        # What the host's JSON parser refuses would cost the kernel its life.
        assert "two keys that are both '1'" in problem({1: "a", "1": "b"})
        assert "NUL character" in problem([{"a\0b": 1}])
        assert "the key nan" in problem({float("nan"): 1})
        assert not host.calls
        raises(ValueError, channel.call, "x.y", {"a": "x" * rpc.MAX_JSON})
        import enum

        kind = enum.IntEnum("kind", "a b")
        good = {"a": (1, 2), "i": [(1 << 63) - 1, -(1 << 63)], "e": kind.b, "n": {1: [True, 2.5]}, "z": "\0"}
        assert channel.call("x.y", good)[0]["args"] == {"a": [1, 2], "i": good["i"], "e": 2, "n": {"1": [True, 2.5]}, "z": "\0"}
        assert_quiet(channel)


def test_threads():
    with Host(collect(8)) as host:
        channel = host.channel()

        def work(i):
            for n in range(50):
                assert channel.call("x.y", {"i": i, "n": n})[0] == {"i": i, "n": n}

        join(*in_threads(8, work))
        assert_quiet(channel)


def test_main_and_threads():
    with Host(collect(4)) as host:
        channel = host.channel()
        threads, problems = in_threads(3, lambda i: [channel.call("x.y", {"i": i, "n": n}) for n in range(100)])
        for n in range(100):
            assert channel.call("x.y", {"main": n})[0] == {"main": n}
        join(threads, problems)
        assert_quiet(channel)


def test_gather():
    with Host(collect(300)) as host:
        channel = host.channel()

        async def many():
            return await asyncio.gather(*(channel.call_async("x.y", {"n": n}) for n in range(300)))

        assert [result["n"] for result, _ in asyncio.run(many())] == list(range(300))
        loop = asyncio.new_event_loop()
        for _ in range(2):
            assert len(loop.run_until_complete(many())) == 300
        loop.close()
        assert_quiet(channel)


def test_async_in_turn():
    """The watch stays on between calls that follow each other, and goes off afterwards."""
    with Host(echo) as host:
        channel = host.channel()

        async def turns():
            loop = asyncio.get_running_loop()
            for n in range(20):
                assert (await channel.call_async("x.y", {"n": n}))[0]["args"] == {"n": n}
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert loop not in channel._watches
            return loop.remove_reader(channel.fd)

        assert asyncio.run(turns()) is False
        assert_quiet(channel)


def test_blocking_call_on_the_loop():
    """A plain call in async code reads the answers of the tasks that wait meanwhile."""
    held = []

    def handle(host, ident, method, args, raw):
        if method == "task":
            held.append(ident)
        else:
            for each in held:
                host.reply(each, "task")
            host.reply(ident, "plain")
            held.clear()

    with Host(handle) as host:
        channel = host.channel()

        async def mixed():
            tasks = [asyncio.ensure_future(channel.call_async("task")) for _ in range(5)]
            await asyncio.sleep(0)
            assert channel.call("plain") == ("plain", None)
            assert await asyncio.gather(*tasks) == [("task", None)] * 5
            # And the other way round: received together with the plain call's answer.
            late = [asyncio.ensure_future(channel.call_async("task")) for _ in range(5)]
            await asyncio.sleep(0)
            channel.call("plain")
            return await asyncio.wait_for(asyncio.gather(*late), 10)

        asyncio.run(mixed())
        assert_quiet(channel)


def test_everything_at_once():
    with Host(collect(7)) as host:
        channel = host.channel()
        rounds = 60

        async def tasks(name):
            async def one(i):
                for n in range(rounds):
                    assert (await channel.call_async("x", {"i": [name, i], "n": n}))[0] == {"i": [name, i], "n": n}

            await asyncio.gather(one(0), one(1))

        def work(i):
            if i < 2:
                asyncio.run(tasks("thread %d" % i))
            else:
                for n in range(rounds):
                    assert channel.call("x", {"i": i, "n": n})[0] == {"i": i, "n": n}

        threads, problems = in_threads(3, work)  # 2 + 2 tasks, 1 thread, and here 2 tasks
        asyncio.run(tasks("main"))
        join(threads, problems)
        assert_quiet(channel)


def test_interrupt():
    with Host(lambda *a: None) as host:
        channel = host.channel()
        interrupted(host, lambda: host.calls, channel.call, "slow.call")
        first = host.calls[0][0]
        host.wait_for(lambda: first in host.cancelled)
        assert_quiet(channel)
        # Its late answer finds nobody, the next call gets its own.
        host.reply(first, "late")
        host.handle = echo
        assert channel.call("next")[0]["method"] == "next"
        assert_quiet(channel)


def test_interrupt_while_following():
    """The main thread sleeps, a thread reads: the interrupt ends the main thread's wait alone."""
    with Host(lambda *a: None) as host:
        channel = host.channel()
        answers = []
        threads, problems = in_threads(1, lambda i: answers.append(channel.call("thread")))
        host.wait_for(lambda: host.calls)
        interrupted(host, lambda: len(host.calls) == 2, channel.call, "main")
        host.wait_for(lambda: host.cancelled == [host.calls[1][0]])
        host.reply(host.calls[0][0], "done")
        join(threads, problems)
        assert answers == [("done", None)]
        assert_quiet(channel)


def test_interrupt_on_the_loop():
    with Host(lambda *a: None) as host:
        channel = host.channel()

        async def three():
            await asyncio.gather(*(channel.call_async("slow", {"n": n}) for n in range(3)))

        interrupted(host, lambda: len(host.calls) == 3, asyncio.run, three())
        host.wait_for(lambda: len(host.cancelled) == 3)
        assert_quiet(channel)


def test_many_interrupts():
    """Interrupts at any moment lose no answer of another thread and leave the channel usable."""
    with Host(echo) as host:
        channel = host.channel()
        stop = []

        def work(i):
            n = 0
            while not stop:
                n += 1
                assert channel.call("thread", {"n": n})[0]["args"] == {"n": n}

        def pester():
            while not stop:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                time.sleep(0.0005)

        armed = [False]

        def handler(signum, frame):
            # Only inside rpc.py: the test's own lines, and the fake's, are not written for it.
            if armed[0] and frame is not None and frame.f_code.co_filename == rpc.__file__:
                armed[0] = False
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGUSR1, handler)
        threads, problems = in_threads(3, lambda i: pester() if i == 2 else work(i))
        interrupted = 0
        try:
            deadline = time.monotonic() + 1.5
            n = 0
            while time.monotonic() < deadline:
                n += 1
                armed[0] = True
                try:
                    assert channel.call("main", {"n": n})[0]["args"] == {"n": n}
                except KeyboardInterrupt:
                    interrupted += 1
                armed[0] = False
        finally:
            armed[0] = False
            stop.append(1)
            # Whatever an interrupt left behind is put right by the main thread's next turn.
            host.send(RUN, 9)
            assert channel.next_frame()[1] == 9
            join(threads, problems)
            signal.signal(signal.SIGUSR1, before)
        assert interrupted, "no interrupt hit"
        assert not channel._waiting and not channel._leader


def test_cancelled_task():
    with Host(lambda *a: None) as host:
        channel = host.channel()

        async def cancel():
            task = asyncio.ensure_future(channel.call_async("slow"))
            await asyncio.get_running_loop().run_in_executor(None, host.wait_for, lambda: host.calls)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return True

        assert asyncio.run(cancel())
        host.wait_for(lambda: host.cancelled == [host.calls[0][0]])
        assert_quiet(channel)


def transfer(channel, number, done=None, size=rpc.CHUNK):
    """Sends pieces that begin with their number; returns what was answered."""
    answers = []
    pieces = channel.transfer(done or (lambda answer, piece, at: answers.append(answer["args"]["n"])))
    try:
        for n in range(number):
            at, memory = pieces.piece(size)
            memory[:] = bytes([n]) * len(memory)
            pieces.send("n", {"n": n}, at, memory)
        pieces.finish()
    finally:
        pieces.end()
    return answers


def content(channel, args, raw):
    """The bytes of a piece as the host sees them."""
    return raw if raw is not None else bytes(channel.bulk[args["at"]:args["at"] + args["size"]])


def short_echo(host, ident, method, args, raw):
    """Without the bytes: a host that sends as much as it receives, and waits for that, would be waited for."""
    host.reply(ident, {"method": method, "args": args})


def test_transfer():
    seen = []

    def handle(host, ident, method, args, raw):
        seen.append(content(channel, args, raw) == bytes([args["n"]]) * size)
        echo(host, ident, method, args, None)

    with Host(handle) as host:
        channel = host.channel()
        places = sorted(channel.places)
        for size in (rpc.CHUNK, rpc.SMALL + 1, rpc.SMALL, 1):
            assert transfer(channel, 20, size=size) == list(range(20))
        assert seen == [True] * 80

        def failing(host, ident, method, args, raw):
            if args["n"] == 3:
                host.fail(ident, type="OSError", message="full", namespace="artifacts")
            else:
                host.reply(ident, {"args": args})

        host.handle = failing
        raises("OSError", transfer, channel, 20)
        host.handle = short_echo
        channel.call("x")
        raises(ZeroDivisionError, transfer, channel, 9, lambda *a: 1 / 0)
        for ident, method, args, raw in host.calls:
            assert raw is None or len(raw) <= rpc.CHUNK
        # Whatever was still under way has been answered by now, and the places are free again.
        host.reply(host.calls[-1][0])
        channel.call("x")
        assert sorted(channel.places) == places
        assert_quiet(channel)


def test_transfers_of_threads():
    """More than there are places: some pieces travel in frames."""
    seen = []

    def handle(host, ident, method, args, raw):
        seen.append(raw is None)
        assert content(channel, args, raw) == bytes([args["n"]]) * rpc.CHUNK
        echo(host, ident, method, args, None)

    with Host(handle) as host:
        channel = host.channel()
        places = sorted(channel.places)

        def work(i):
            for _ in range(3):
                assert transfer(channel, 20) == list(range(20))

        join(*in_threads(4, work))
        assert len(seen) == 240 and sorted(channel.places) == places
        assert_quiet(channel)


def test_interrupted_transfer():
    """Places of pieces that nobody waits for stay taken until the host has answered."""
    with Host(lambda *a: None) as host:
        channel = host.channel()
        places = sorted(channel.places)
        interrupted(host, lambda: len(host.calls) == rpc.WINDOW, transfer, channel, 20)
        taken = [args.get("at") for _, _, args, _ in host.calls]
        assert not set(taken) & set(channel.places)
        host.handle = short_echo
        assert transfer(channel, 3) == [0, 1, 2]
        assert not set(taken) & {args.get("at") for _, _, args, _ in host.calls[rpc.WINDOW:]} - {None}
        for ident, _, args, _ in host.calls[:rpc.WINDOW]:
            host.reply(ident, {"args": args})
        channel.call("x")
        assert sorted(channel.places) == places
        assert_quiet(channel)


def test_shutdown_while_waiting():
    def handle(host, ident, method, args, raw):
        host.send(SHUTDOWN)

    with Host(handle) as host:
        channel = host.channel()
        exc = raises("Shutdown", channel.call, "x")
        assert isinstance(exc, SystemExit)
        raises("Shutdown", channel.call, "x")
        raises("Shutdown", asyncio.run, channel.call_async("x"))
        assert channel.next_frame()[0] == SHUTDOWN
        assert channel.next_frame() is None
        assert not host.cancelled


def test_shutdown_ends_tasks_and_threads():
    with Host(lambda *a: None) as host:
        channel = host.channel()
        ends = []

        def work(i):
            ends.append(type(raises("Shutdown", channel.call, "x")))

        threads, problems = in_threads(2, work)

        async def wait():
            task = asyncio.ensure_future(channel.call_async("y"))
            await asyncio.get_running_loop().run_in_executor(None, host.wait_for, lambda: len(host.calls) == 3)
            host.send(SHUTDOWN)
            await task

        raises("Shutdown", asyncio.run, wait())
        join(threads, problems)
        assert len(ends) == 2
        assert channel.next_frame()[0] == SHUTDOWN


def test_host_is_gone():
    host = Host(lambda host, *a: host.sock.shutdown(2))
    channel = host.channel()
    raises("Shutdown", channel.call, "x")
    assert channel.next_frame() is None
    host.close()


def test_next_frame():
    with Host(echo) as host:
        channel = host.channel()
        host.send(RUN, 5, None, b"1+1")
        assert channel.next_frame() == (RUN, 5, None, b"1+1")
        host.send(REPLY, 99, {"result": 1})  # an answer nobody waits for
        host.send(RUN, 6)
        assert channel.next_frame() == (RUN, 6, None, None)
        # A frame that arrives in front of an answer is kept.
        host.handle = lambda host, ident, *a: (host.send(RUN, 7), host.reply(ident, "answer"))
        assert channel.call("x") == ("answer", None)
        assert channel.next_frame() == (RUN, 7, None, None)
        assert_quiet(channel)


def test_threads_between_cells():
    """The main loop reads the answers of threads while it waits, and threads read its frames."""
    with Host(echo) as host:
        channel = host.channel()

        def work(i):
            for n in range(200):
                assert channel.call("x", {"n": n})[0]["args"] == {"n": n}

        threads, problems = in_threads(3, work)
        for n in range(200):
            host.send(RUN, n + 1)
            assert channel.next_frame()[:2] == (RUN, n + 1)
        join(threads, problems)
        assert_quiet(channel)


def test_loops_of_threads_between_cells():
    with Host(echo) as host:
        channel = host.channel()

        async def turns():
            for n in range(100):
                assert (await channel.call_async("x", {"n": n}))[0]["args"] == {"n": n}

        threads, problems = in_threads(2, lambda i: asyncio.run(turns()))
        for n in range(100):
            host.send(RUN, n + 1)
            assert channel.next_frame()[:2] == (RUN, n + 1)
        join(threads, problems)
        assert_quiet(channel)


def test_tasks_between_cells():
    """Tasks of the session go on, and make calls, while the main loop waits for the next cell."""
    with Host(echo) as host:
        channel = host.channel()
        loop = asyncio.new_event_loop()
        done = []

        async def background():
            for n in range(50):
                done.append((await channel.call_async("x", {"n": n}))[0]["args"]["n"])
            host.send(RUN, 3)
            await asyncio.sleep(3600)

        async def start():
            return asyncio.ensure_future(background())

        task = loop.run_until_complete(start())
        assert channel.next_frame(loop)[:2] == (RUN, 3)
        assert done == list(range(50))
        # The loop serves cells as before.
        for n in range(3):
            assert loop.run_until_complete(channel.call_async("y", {"n": n}))[0]["args"] == {"n": n}
            host.send(RUN, 10 + n)
            assert channel.next_frame(loop)[:2] == (RUN, 10 + n)
        task.cancel()
        raises("CancelledError", loop.run_until_complete, task)

        async def leave():
            sys.exit(3)

        # A task that exits ends itself, not the session.
        later = loop.create_task(leave())
        host.send(RUN, 20)
        assert channel.next_frame(loop)[:2] == (RUN, 20)
        if not later.done():
            host.send(RUN, 21)
            channel.next_frame(loop)
        assert isinstance(later.exception(), SystemExit)
        loop.close()
        assert_quiet(channel)


def test_tasks_and_a_reading_thread_between_cells():
    with Host(lambda *a: None) as host:
        channel = host.channel()
        loop = asyncio.new_event_loop()
        threads, problems = in_threads(1, lambda i: channel.call("thread"))
        host.wait_for(lambda: len(host.calls) == 1)

        async def start():
            return asyncio.ensure_future(channel.call_async("task"))

        task = loop.run_until_complete(start())
        threading.Timer(0.05, lambda: host.send(RUN, 1)).start()
        assert channel.next_frame(loop)[:2] == (RUN, 1)
        host.wait_for(lambda: len(host.calls) == 2)
        for ident, method, _, _ in host.calls:
            host.reply(ident, method)
        assert loop.run_until_complete(asyncio.wait_for(task, 10)) == ("task", None)
        join(threads, problems)
        loop.close()
        assert_quiet(channel)


def test_forked_child():
    with Host(echo) as host:
        channel = host.channel()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                exc = raises(RuntimeError, channel.call, "x")
                assert "forked" in str(exc)
                raises(RuntimeError, asyncio.run, channel.call_async("x"))
                raises(RuntimeError, channel.submit, "x")
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert channel.call("x")[0]["method"] == "x"
        assert len(host.calls) == 1


def test_a_call_inside_a_call():
    """From a signal handler while the answer is awaited: refused, and nothing is broken."""
    with Host(lambda *a: None) as host:
        channel = host.channel()
        seen = []

        def handler(signum, frame):
            if not seen:
                seen.append(raises(RuntimeError, channel.call, "inner"))
                host.reply(host.calls[0][0], "outer")

        def alarm():
            host.wait_for(lambda: host.calls)
            while not seen:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                time.sleep(0.2)

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            threads, problems = in_threads(1, lambda i: alarm())
            assert channel.call("outer") == ("outer", None)
            join(threads, problems)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert "signal handler" in str(seen[0])
        assert [call[1] for call in host.calls] == ["outer"]
        assert_quiet(channel)


def test_handler_that_raises_timeout():
    """TimeoutError is an OSError: one raised by the user's alarm is not the end of the connection."""
    with Host(lambda *a: None) as host:
        channel = host.channel()

        def handler(signum, frame):
            raise TimeoutError("mine")

        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            exc = raises(TimeoutError, channel.call, "x")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert str(exc) == "mine" and not channel.closed
        host.handle = echo
        assert channel.call("y")[0]["method"] == "y"


def test_costs_nothing_at_import():
    """Neither threads nor asyncio are paid for by a kernel that uses neither."""
    code = ("import sys; sys.path.insert(0, %r); sys.modules.pop('threading', None); sys.modules.pop('asyncio', None)\n"
            "import workcell_kernel.rpc, workcell_kernel.namespaces\n"
            "print(sorted({'threading', 'asyncio', 'inspect', 'pandas', 'typing'} & set(sys.modules)))" % KERNEL)
    done = subprocess.run([sys.executable, "-S", "-E", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.stdout.decode().strip() == "[]", done.stdout.decode()


if __name__ == "__main__":
    main(dict(globals()))
