"""Session.map(): many cells, each in a fork of one state."""
import asyncio
import time

import pytest
from conftest import run

import workcell
import workcell.sync
from workcell import UnsupportedError


def test_results_come_as_they_end(storage):
    async def main():
        async with workcell.Session(storage) as session:
            await session.run("x = [1]")
            codes = ["import time; time.sleep(0.6); x"] + ["x.append(%d); x" % i for i in range(1, 12)]
            found = [(i, result.value) async for i, result in session.map(codes, concurrency=3)]
            assert sorted(found) == [(0, [1])] + [(i, [1, i]) for i in range(1, 12)] and found[0][0] != 0
            assert (await session.run("x")).value == [1]
            assert [each async for each in session.map([])] == []

    run(main())


def test_runs_that_hang_or_crash(storage):
    async def main():
        async with workcell.Session(storage) as session:
            codes = ["1", "while True: pass", "import os; os._exit(1)", "2"]
            found = dict([each async for each in session.map(codes, timeout=[5, 0.3, 5, 5])])
            assert found[0].value == 1 and found[3].value == 2
            assert found[1].error_info.code == "timeout" and found[2].error_info.code == "kernel_died"

    run(main())


def test_leaving_the_loop_stops_the_rest(storage):
    async def main():
        async with workcell.Session(storage) as session:
            begun = time.monotonic()
            results = session.map(["1"] + ["import time; time.sleep(60)"] * 20, concurrency=4)
            async for i, result in results:
                assert (i, result.value) == (0, 1)
                break
            await results.aclose()
            assert time.monotonic() - begun < 30
            assert (await session.run("5")).value == 5
            with pytest.raises(TypeError):
                await session.map("1").__anext__()
            with pytest.raises(ValueError):
                await session.map(["1"], timeout=[1, 2]).__anext__()
            with pytest.raises(ValueError):
                await session.map(["1"], concurrency=0).__anext__()

    run(main())


def test_a_slow_loop_slows_the_runs(storage):
    async def main():
        async with workcell.Session(storage) as session:
            await session.run("import time, os\nnames = open(%r, 'a')" % str(storage.base / "log") if hasattr(storage, "base") else "names = None")
            count = 0
            async for _ in session.map(["1"] * 12, concurrency=2):
                await asyncio.sleep(0.01)
                count += 1
            assert count == 12

    run(main())


def test_executors_that_cannot_fork(storage):
    async def main():
        async with workcell.Session(storage, executor="inprocess") as session:
            with pytest.raises(UnsupportedError):
                await session.map(["1"]).__anext__()

    run(main())


def test_the_synchronous_map(storage):
    with workcell.sync.Session(storage) as session:
        session.run("x = 3")
        found = dict(session.map(["x + %d" % i for i in range(10)], concurrency=4))
        assert [found[i].value for i in range(10)] == list(range(3, 13))
        begun = time.monotonic()
        for i, result in session.map(["1"] + ["import time; time.sleep(60)"] * 6, concurrency=4):
            assert (i, result.value) == (0, 1)
            break
        assert time.monotonic() - begun < 30 and session.run("x").value == 3
        assert list(session.map([])) == []


@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
def test_limits_of_each_run(storage, executor, tmp_path):
    (tmp_path / "work").mkdir()
    chosen = {"subprocess": workcell.SubprocessExecutor(workcell.SubprocessConfig(cwd=tmp_path / "work")),
              "sandbox": workcell.SandboxExecutor(workcell.SandboxConfig(cwd=tmp_path / "work"))}[executor]
    take, raise_it = "len(bytearray(60_000_000))", "import resource; resource.setrlimit(resource.RLIMIT_DATA, (2**40, 2**40))"
    with workcell.sync.Session(executor=chosen) as session:
        session.run("state = bytearray(100_000_000)")
        found = dict(session.map([take, take, "import subprocess, sys; subprocess.run([sys.executable, '-c', 'bytearray(10**9)']).returncode"],
                                 memory=[32 << 20, 256 << 20, 256 << 20]))
        assert found[0].error_info.type == "MemoryError" and found[1].value == 60_000_000 and found[2].value == 1
        if executor == "sandbox":
            assert dict(session.map([raise_it], memory=32 << 20))[0].error_info.type == "ValueError"
        shown = dict(session.map(["print('x' * 100_000)"] * 2, max_output=[4096, 0]))
        assert len(shown[0].stdout) <= 4096 + 200 and len(shown[1].stdout) == 100_001
        assert session.run(take).value == 60_000_000, "the session has its own limits"
        with pytest.raises(ValueError, match="memory has 1 entries for 2 cells"):
            list(session.map(["1", "2"], memory=[1]))
        with pytest.raises(workcell.WorkcellError, match="max_output is 5"):
            list(session.map(["1"], max_output=5))
