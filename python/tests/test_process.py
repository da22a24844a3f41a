"""The SDK in a process: threads, forks, signals, the end of the interpreter, leaks."""
import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from conftest import DEADLINE, run

import workcell
import workcell.sync


def program(source, **options):
    """A program of its own: (exit status, stdout, stderr)."""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", textwrap.dedent(source)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True, timeout=DEADLINE, **options)
    return done.returncode, done.stdout, done.stderr


def test_sync_session(storage):
    with workcell.sync.Session(storage) as session:
        assert session.run("x = 5; x").value == 5
        heard = []
        assert session.run("print('a')", on_event=heard.append).stdout == "a\n" and heard[0].text == "a\n"
        assert [event.type for event in session.stream("print('b')")] == ["chunk", "result"]

        @session.tool
        async def twice(n: int) -> int:
            await asyncio.sleep(0)
            return 2 * n

        @session.tool
        def thrice(n: int) -> int:
            return 3 * n

        assert session.run("tools.twice(n=2), tools.thrice(n=2)").value == (4, 6)
        assert session.call_tool("thrice", n=3) == 9
        session.add_workflow("w", "async def run(): return 1", "one")
        assert [each["name"] for each in session.list_workflows()] == ["w"] and session.get_workflow("w")["source"]
        session.save_artifact("a", [1])
        assert session.load_artifact("a") == [1] and session.list_artifacts()[0]["name"] == "a"
        session.delete_artifact("a")
        assert session.list_deps() == [] and session.supports("reset")
        session.reset()
        assert session.run("'x' in globals()").value is False
    for call in (lambda: session.run("1"), session.reset, session.interrupt, session.list_tools, lambda: next(session.stream("1"))):
        with pytest.raises(workcell.SessionClosedError):
            call()


def test_threads_share_sessions(storage):
    with workcell.sync.Session(storage) as session:
        session.run("n = 0")
        results = []

        def work(own):
            for _ in range(20):
                results.append(session.run("n += 1; n").value)
                results.append(own.run("1").value and 0)

        sessions = [workcell.sync.Session.scratch() for _ in range(4)]
        threads = [threading.Thread(target=work, args=(each,)) for each in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        for each in sessions:
            each.close()
        assert session.run("n").value == 80 and len(results) == 160


def test_a_session_is_closed_under_a_running_cell(storage):
    session = workcell.sync.Session(storage)
    session.start()
    failures = []

    def work():
        try:
            result = session.run("while True: pass")
            failures.append(result.error_info.code)
        except workcell.SessionClosedError:
            failures.append("closed")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    session.close()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(failures) == 3 and set(failures) <= {"closed", "interrupted"}


def test_interrupt_from_another_thread(storage):
    with workcell.sync.Session(storage) as session:
        session.run("x = 1")
        threading.Timer(0.1, session.interrupt).start()
        assert session.run("while True: pass").error_info.code == "interrupted"
        assert session.run("x").value == 1


def test_ctrl_c_interrupts_the_cell_and_then_the_caller():
    status, out, err = program("""
        import os, signal, threading, workcell.sync
        with workcell.sync.Session.scratch() as session:
            session.run("x = 1")
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                session.run("while True: pass")
            except KeyboardInterrupt:
                print("interrupted", session.run("x").value)
        """)
    assert (status, out) == (0, "interrupted 1\n"), err


def test_ctrl_c_ends_a_cell_that_does_not_stop():
    status, out, err = program("""
        import os, signal, threading, workcell.sync
        with workcell.sync.Session.scratch() as session:
            session.run("x = 1")
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            code = "import time\\nwhile True:\\n  try:\\n    time.sleep(9)\\n  except KeyboardInterrupt: pass"
            try:
                session.run(code)
            except KeyboardInterrupt:
                print("ended", session.run("'x' in globals()").value)
            print(signal.set_wakeup_fd(-1))
        """)
    assert (status, out) == (0, "ended False\n-1\n"), err


def test_a_forked_child_has_an_engine_of_its_own():
    status, out, err = program("""
        import os, sys, workcell, workcell.sync
        session = workcell.sync.Session.scratch()
        result = session.run("21")
        pid = os.fork()
        if pid == 0:
            try:
                session.run("1")
            except workcell.SessionClosedError as error:
                assert "forked" in str(error)
                with workcell.sync.Session.scratch() as own:
                    @own.tool
                    def f() -> int:
                        return 5
                    assert own.run("tools.f()").value == 5
                del result
                sys.exit(7)
            os._exit(1)
        assert os.WEXITSTATUS(os.waitpid(pid, 0)[1]) == 7
        assert session.run("2").value == 2 and result.value == 21
        session.close()
        print("fine")
        """)
    assert (status, out) == (0, "fine\n"), err


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise ValueError('x')", "del session; del workcell"])
def test_the_interpreter_ends_without_a_close(ending):
    status, out, err = program("""
        import sys, threading, workcell, workcell.sync
        session = workcell.sync.Session.scratch()
        @session.tool
        def f() -> int:
            return 5
        session.run("tools.f()")
        pid = session._core.session.kernel_pid()
        print(pid, flush=True)
        threading.Thread(target=lambda: session.run("while True: pass"), daemon=True).start()
        %s
        """ % ending)
    assert status == {"sys.exit(3)": 3, "raise ValueError('x')": 1}.get(ending, 0), err
    assert "Fatal" not in err and "Segmentation" not in err
    deadline = time.monotonic() + DEADLINE
    while os.path.exists("/proc/%s" % out.strip()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists("/proc/%s" % out.strip())


def test_an_async_program_may_end_in_the_middle():
    status, out, err = program("""
        import asyncio, workcell
        async def main():
            session = workcell.Session.scratch()
            await session.start()
            asyncio.ensure_future(session.run("while True: pass"))
            await asyncio.sleep(0.1)
            print("leaving")
        asyncio.run(main())
        """)
    assert (status, out) == (0, "leaving\n"), err


def counts():
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(os.listdir("/proc/self/task")), pages


def leaked(before, after):
    """The pool may have made a few kernels since `before`, of six descriptors each; a leak is one for each cell, call or stream."""
    return any(late - early >= 30 for early, late in zip(before[:3], after)) or after[3] - before[3] >= 1000


def settled(check):
    deadline = time.monotonic() + 10
    while not check() and time.monotonic() < deadline:
        time.sleep(0.01)
    return check()


def test_ten_thousand_cells_leak_nothing(storage):
    async def awaited(session, n):
        for _ in range(n):
            await session.run("1")

    async def main():
        async with workcell.Session(storage) as session:
            @session.tool
            def one() -> int:
                return 1

            await awaited(session, 500)
            await session.run("for _ in range(50): tools.one()")
            with_loop = counts()
            await awaited(session, 4500)
            await session.run("for _ in range(450): tools.one()")
            for _ in range(50):
                async for _event in session.stream("print(1)"):
                    pass
            after = counts()
            assert not leaked(with_loop, after), (with_loop, after)

    run(main())
    with workcell.sync.Session(storage) as session:
        for _ in range(500):
            session.run("1")
        before = counts()
        for _ in range(5000):
            session.run("1")
        after = counts()
        assert not leaked(before, after), (before, after)


def test_sessions_leak_no_descriptors(storage):
    async def once():
        async with workcell.Session(storage) as session:
            await session.run("1")

    run(once())
    before = counts()
    for _ in range(40):
        run(once())
    assert settled(lambda: not leaked(before, counts())), (before, counts())


def test_signals_reach_handlers_while_a_stream_waits():
    status, out, err = program("""
        import os, signal, tempfile, threading, workcell.sync
        heard = []
        with workcell.sync.Session.scratch() as session, tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "heard")
            signal.signal(signal.SIGUSR1, lambda *args: heard.append(open(path, "w").close()))
            session.run("1")
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            # It ends when the handler has run, and not before.
            session.run("import os, time\\nwhile not os.path.exists(%r): time.sleep(0.01)" % path, timeout=30)
            print(heard)
        """)
    assert (status, out) == (0, "[None]\n"), err
