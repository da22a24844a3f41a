"""Sessions in this very process, and functions of the host on the loop that waits for them."""
import asyncio
import os
import signal
import sys
import threading

import pytest
from conftest import run

import workcell
from workcell import ConfigurationError, FileStorage, InProcessConfig, InProcessExecutor, Session
from workcell.sync import Session as SyncSession


def test_is_this_process(storage, tmp_path):
    async def main():
        async with Session(storage, InProcessExecutor(), restore_cwd=False) as session, \
                Session(FileStorage(tmp_path / "other"), InProcessExecutor()) as other:
            result = await session.run("import os, sys\nx = 1\nprint('hi')\n(os.getpid(), sys.executable)")
            assert result.value == (os.getpid(), sys.executable) and result.stdout == "hi\n"
            assert result.isolation["level"] == "none"
            # Each has variables of its own.
            assert (await other.run("x")).error_info.type == "NameError"
            events = [event async for event in session.stream("print('a')\nx + 1")]
            assert "a" in "".join(event.text for event in events if isinstance(event, workcell.Chunk))
            assert events[-1].result.value == 2
            assert (await session.run("while True: pass", timeout=0.2)).error_info.code == "timeout"
            assert (await session.run("x + 2")).value == 3
            task = asyncio.ensure_future(session.run("while True: pass"))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await session.run("x + 3")).value == 4
            await session.save_artifact("note", {"a": 1})
            assert (await session.run("artifacts.load('note')")).value == {"a": 1}
            await session.reset()
            assert (await session.run("x")).error_info.type == "NameError"

    run(main())


def test_tools_on_the_hosts_loop(storage):
    """The cell waits in this process for functions that run on this very loop, through a middleware there."""
    seen = []

    async def note(ctx, call_next):
        await asyncio.sleep(0)
        seen.append(ctx.full_name)
        return await call_next(ctx)

    async def main():
        here = threading.get_ident()
        async with Session(storage, InProcessExecutor(), middlewares=[note]) as session:
            @session.tool
            async def double(n: int) -> int:
                assert threading.get_ident() == here
                await asyncio.sleep(0.001)
                return 2 * n

            @session.tool(thread=False)
            def plain(n: int) -> int:
                assert threading.get_ident() == here
                return n + 1

            @session.tool
            def apart(n: int) -> bool:
                return threading.get_ident() != here

            @session.tool
            async def again(n: int) -> int:
                # Another session in the same process, from within a call of the first one.
                async with Session.scratch(InProcessExecutor()) as inner:
                    return (await inner.run("%d * 10" % n)).value

            result = await session.run("[tools.double(n=i) for i in range(50)][-1], tools.plain(n=1), tools.apart(n=1), "
                                       "tools.again(n=4)")
            assert result.value == (98, 2, True, 40), result.error
            result = await session.run("from concurrent.futures import ThreadPoolExecutor\n"
                                       "with ThreadPoolExecutor(8) as pool:\n"
                                       "    found = sum(pool.map(lambda i: tools.double(n=i), range(40)))\nfound")
            assert result.value == 1560, result.error
            assert seen.count("double") == 90
            ask = Session.scratch(InProcessExecutor(), policy="ask")
            ask.tool(thread=False)(plain)
            async with ask:
                events = []
                async for event in ask.stream("tools.plain(n=41)"):
                    events.append(event)
                    if isinstance(event, workcell.ApprovalEvent):
                        event.request.accept()
                assert events[-1].result.value == 42

    run(main())


def test_a_forked_child_is_told(tmp_path):
    """The interpreter there is a copy, with hooks of sessions whose threads stayed in the parent."""
    with SyncSession.scratch(InProcessExecutor()) as session:
        assert session.run("1").value == 1
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            try:
                with SyncSession.scratch(InProcessExecutor()):
                    os.write(write, b"opened")
            except workcell.ExecutorUnavailableError as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as file:
            assert b"forked" in file.read()
        os.waitpid(pid, 0)
        assert session.run("2").value == 2


def test_without_a_loop(tmp_path):
    with SyncSession.inprocess(tmp_path / "base") as session:
        session.tool(lambda n: n + 1, name="inc")
        assert session.run("tools.inc(n=1)").value == 2
        with SyncSession.scratch(InProcessExecutor()) as other:
            assert other.run("1 + 1").value == 2
    for config in (InProcessConfig(python="/usr/bin/python3"), InProcessConfig(env={"A": "b"}), InProcessConfig(cwd="/")):
        with pytest.raises(ConfigurationError, match="inprocess"), SyncSession.scratch(InProcessExecutor(config)):
            pass
