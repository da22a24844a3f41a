"""Branches of sessions: forks, points, attempts, races."""
import asyncio
import os
import random
import time

import pytest
from conftest import run

import workcell
import workcell.sync
from workcell import CodeModeError, ForkError, PointNotFoundError, UnsupportedError


def test_forks_share_tools_and_storage_and_nothing_else(storage):
    async def main():
        async with workcell.Session(storage) as session:
            @session.tool
            def add(a: int, b: int) -> int:
                return a + b

            await session.run("x = [1]\nartifacts.save('kept', b'bytes')")
            fork = await session.fork()
            more = await session.fork(2)
            assert len({each.session_id for each in [session, fork, *more]}) == 4
            await fork.run("x.append(tools.add(a=1, b=2))")
            assert (await fork.run("x")).value == [1, 3]
            assert (await session.run("x, tools.add(a=3, b=4)")).value == ([1], 7)
            assert (await more[0].run("artifacts.load('kept')")).value == b"bytes"
            await asyncio.gather(*(each.run("artifacts.save('big', bytes(3_000_000))") for each in more))
            for each in more:
                await each.close()
            assert (await fork.run("tools.add(a=5, b=6)")).value == 11
        # The source is closed: its functions are there for the forks that remain.
        assert (await fork.run("x + [tools.add(a=7, b=8)]")).value == [1, 3, 15]
        await fork.close()
        with pytest.raises(workcell.SessionClosedError):
            await fork.run("1")

    run(main())


def test_rewind(storage):
    async def main():
        async with workcell.Session(storage) as session:
            await session.run("x = 1")
            await session.checkpoint("one")
            await session.run("x = 2")
            await session.rewind("one")
            assert (await session.run("x")).value == 1
            await session.run("x = 5")
            await session.rewind(cells=2)
            assert (await session.run("x")).value == 1
            point, = await session.points()
            assert (point.name, point.cell) == ("one", 1) and point.age >= 0 and point.size >= 0
            await session.drop_point("one")
            assert await session.points() == []
            with pytest.raises(PointNotFoundError, match="one"):
                await session.rewind("one")
            with pytest.raises(TypeError):
                await session.rewind()

    run(main())


def test_an_attempt_that_fails_leaves_nothing(storage):
    async def main():
        async with workcell.Session(storage) as session:
            await session.run("x = 1")
            with pytest.raises(ZeroDivisionError):
                async with session.attempt():
                    await session.run("x = 2")
                    1 / 0
            assert (await session.run("x")).value == 1
            async with session.attempt():
                await session.run("x = 3")
            assert (await session.run("x")).value == 3
            assert await session.points() == []

    run(main())


@pytest.mark.parametrize("judge, value", [("x", 9), (lambda result: -result.value, 1), (None, 4)], ids=["expression", "function", "first"])
def test_the_winner_of_a_race_becomes_the_session(storage, judge, value):
    async def main():
        async with workcell.Session(storage) as session:
            await session.run("x = 0")
            race = await session.race(["x = 4\nx", "x = 9\nx", "1 / 0", "x = 1\nx"], judge=judge)
            assert [result.error is None for result in race.results] == [True, True, False, True]
            assert race.scores[2] is None and race.result.value == value
            assert (await session.run("x")).value == value
            kept = await session.race(lambda i: "x = %d" % i, judge="x", n=3, keep="none", concurrency=2)
            assert kept.winner == 2 and (await session.run("x")).value == value
            lost = await session.race(["1 / 0"])
            assert lost.winner is None and (await session.run("x")).value == value

    run(main())


def test_the_synchronous_session_branches_too(storage):
    with workcell.sync.Session(storage) as session:
        session.run("x = 1")
        with session.fork() as fork:
            fork.run("x = 2")
            session.checkpoint("p")
            session.run("x = 3")
            session.rewind("p")
            assert (session.run("x").value, fork.run("x").value) == (1, 2)
        with pytest.raises(KeyError):
            with session.attempt():
                session.run("x = 4")
                raise KeyError
        assert session.run("x").value == 1
        assert session.race(["x = 5", "x = 6"], judge="x").winner == 1
        assert session.run("x").value == 6


def test_what_a_fork_would_not_have_is_named(storage):
    async def main():
        async with workcell.Session(storage) as session:
            await session.run("import threading; e = threading.Event(); t = threading.Thread(target=e.wait, name='my-thread'); t.start()")
            with pytest.raises(ForkError, match="my-thread"):
                await session.fork()
            fork = await session.fork(drop=True)
            assert (await fork.run("threading.active_count()")).value == 1
            await fork.close()
            await session.run("e.set()")
        async with workcell.Session(storage, "inprocess") as session:
            with pytest.raises(UnsupportedError, match="subprocess"):
                await session.fork()

    run(main())


def test_numpy_and_its_generators_differ_between_forks(storage):
    async def main():
        async with workcell.Session(storage) as session:
            if (await session.run("import numpy as np")).error is not None:
                pytest.skip("numpy is not installed")
            await session.run("np.random.seed(1); rng = np.random.default_rng(1); a = np.ones((400, 400)); b = (a @ a).sum()")
            forks = await session.fork(5)
            seen = [(await each.run("float(np.random.rand()), float(rng.random())")).value for each in [session, *forks]]
            assert len({first for first, _ in seen}) == len({second for _, second in seen}) == 6, seen
            assert (await forks[0].run("float((a @ a).sum()) == b")).value is True
            for each in forks:
                await each.close()

    run(main())


def test_undo(storage):
    async def main():
        async with workcell.Session(storage, undo=5) as session:
            await session.run("x = 1")
            await session.run("x = 2")
            result = await session.run("import os; os._exit(1)")
            assert (result.state, result.state_kept, result.to_dict()["state"]) == ("restored", True, "restored")
            assert "restored" in repr(result)
            assert (await session.run("x")).value == 2
            await session.rewind(cells=2)
            assert (await session.run("x")).value == 1
        with pytest.raises(UnsupportedError, match="subprocess"):
            async with workcell.Session(storage, "inprocess", undo=5):
                pass

    run(main())


class Model:
    """What a session must hold: its variables, and those of its points."""

    def __init__(self, session, state=None, points=()):
        self.session, self.state, self.points = session, dict(state or {}), {name: dict(kept) for name, kept in dict(points).items()}

    def check(self):
        assert self.session.run("dict(kept)").value == self.state
        assert {point.name for point in self.session.points() if not point.name.startswith("#")} == set(self.points)


@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
@pytest.mark.parametrize("seed", range(4))
def test_random_programs_of_cells_points_forks_and_races_against_a_model(storage, seed, executor, tmp_path, monkeypatch):
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    monkeypatch.chdir(workspace)
    dice = random.Random(seed)
    log = []
    first = Model(workcell.sync.Session(storage, executor, undo=dice.choice([0, 3])))
    first.session.run("kept = {}")
    models = [first]
    try:
        for step in range(60):
            model = dice.choice(models)
            what = dice.choice(["set", "set", "set", "delete", "checkpoint", "rewind", "rewind", "drop", "fork", "become", "race", "crash", "close"])
            key, value, name = dice.choice("abc"), dice.randrange(1000), dice.choice(["p", "q", "r"])
            log.append((models.index(model), what, key, value, name))
            if what == "set":
                model.session.run("kept[%r] = %d" % (key, value))
                model.state[key] = value
            elif what == "delete":
                model.session.run("kept.pop(%r, None); None" % key)
                model.state.pop(key, None)
            elif what == "checkpoint":
                model.session.checkpoint(name)
                model.points[name] = dict(model.state)
            elif what == "rewind" and name in model.points:
                model.session.rewind(name)
                model.state = dict(model.points[name])
            elif what == "drop" and name in model.points:
                model.session.drop_point(name)
                del model.points[name]
            elif what == "fork" and len(models) < 4 and name in model.points:
                models.append(Model(model.session.fork(point=name), model.points[name]))
            elif what == "fork" and len(models) < 4:
                models.append(Model(model.session.fork(), model.state))
            elif what == "become":
                other = dice.choice(models)
                if other is not model:
                    model.session._need().become(other.session._need())
                    model.state = dict(other.state)
            elif what == "race":
                model.session.race(["kept[%r] = %d" % (key, value), "kept[%r] = %d" % (key, value + 1), "1 / 0"], judge="kept[%r]" % key)
                model.state[key] = value + 1
            elif what == "crash":
                result = model.session.run("kept.clear(); import os; os._exit(9)")
                assert result.state == ("restored" if first.session._executor.extras["session"]["undo"] else "lost"), result
                if result.state == "lost":
                    model.session.run("kept = {}")
                    model.state = {}
            elif what == "close" and len(models) > 1:
                models.remove(model)
                model.session.close()
            for each in models:
                each.check()
    except BaseException:
        print("steps:", *log, sep="\n  ")
        raise
    finally:
        for each in models:
            each.session.close()


def pids_of(name):
    """Processes whose title has this name: kernels and points of a session."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as file:
                title = file.read()
        except OSError:
            continue
        if b"workcell-kernel " + name.encode() in title:
            found.append(int(pid))
    return found


def parent_of(pid):
    with open("/proc/%d/stat" % pid) as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


def ancestors_of(pid):
    found = []
    while pid > 1:
        pid = parent_of(pid)
        found.append(pid)
    return found


def kernels_beside(session):
    """Kernels and points of its engine, which has one spawner: tests beside this one have others."""
    spawner, found = ancestors_of(pids_of(session.session_id)[0])[-2], set()
    for pid in pids_of(""):
        try:
            found |= {pid} if spawner in ancestors_of(pid) else set()
        except OSError:
            pass  # it has ended
    return found


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_random_streams_and_names_differ_between_1000_forks(storage):
    with workcell.sync.Session(storage) as session:
        session.run("import random, secrets, tempfile, uuid\nown = random.Random(7)\nrandom.seed(7)")
        numpy = session.run("import numpy\nnumpy.random.seed(7); rng = numpy.random.default_rng(7)").error is None
        seen = []
        for _ in range(10):
            forks = session.fork(100)
            for fork in forks:
                seen.append(fork.run("(random.random(), own.random(), uuid.uuid4().hex, uuid.uuid1().hex, secrets.token_hex(8), tempfile.mktemp()"
                                     + (", float(numpy.random.rand()), float(rng.random()))" if numpy else ")")).value)
                fork.close()
        for column in zip(*seen):
            assert len(set(column)) == 1000


def test_a_fork_that_names_another_process_gets_nothing(storage):
    """The kernel is the code's: it may say anything about the process that it has forked."""
    with workcell.sync.Session(storage) as victim, workcell.sync.Session(storage) as session:
        victim.run("import os; kept = 1")
        other = victim.fork()
        pids = [victim.run("os.getpid()").value, other.run("os.getpid()").value, session.run("import os; os.getpid()").value,
                session.run("os.getppid()").value, os.getpid(), 1, -1, 2 ** 31 - 1, 2 ** 40]
        session.run("import _workcell\nreal = _workcell.branch\ndef lie():\n    _workcell.branch = real\n    return said")
        for pid in pids:
            session.run("_workcell.branch = lie; said = %d" % pid)
            with pytest.raises(CodeModeError):
                session.fork()
            assert (victim.run("kept").value, other.run("kept").value, session.run("said").value) == (1, 1, pid)
        with session.fork() as fork:
            assert fork.run("said").value == pid
        # An answer that nobody asked for ends the kernel that gives it, and nothing else.
        result = session.run("_workcell.send(_workcell.FORKED, 1, b'{\"pid\": %d}')\nimport time; time.sleep(60)" % pids[1])
        assert result.state == "lost", result
        assert (victim.run("kept").value, other.run("kept").value) == (1, 1)
        other.close()


@pytest.mark.parametrize("error", ["errno.EAGAIN", "errno.ENOMEM"])
def test_a_fork_of_several_that_fails_in_the_middle_leaves_nothing(storage, error):
    with workcell.sync.Session(storage) as session:
        session.run("""
import _workcell, errno, os
real, left = _workcell.branch, 3
def limited():
    global left
    left -= 1
    if left == 0:
        raise OSError(%s, os.strerror(%s))
    return real()
_workcell.branch = limited
x = 7""" % (error, error))
        before = kernels_beside(session)
        assert before
        with pytest.raises(CodeModeError, match="cannot fork"):
            session.fork(6)
        wait_for(lambda: kernels_beside(session) <= before)
        assert session.run("x").value == 7
        assert session.run("_workcell.branch = real").error is None
        with session.fork() as fork:
            assert fork.run("x").value == 7


def test_points_that_the_code_kills_are_lost_and_nothing_else(storage):
    with workcell.sync.Session(storage) as other, workcell.sync.Session(storage) as session:
        other.run("kept = 1")
        other.checkpoint("p")
        session.run("x = 1")
        session.checkpoint("p")
        mine = session.run("import os; os.getpid()").value
        name = open("/proc/%d/cmdline" % mine).read().split("\0")[0].split(" ")[1]
        point, = [pid for pid in pids_of(name) if pid != mine]
        session.run("os.kill(%d, 9)" % point)
        wait_for(lambda: not session.points())
        with pytest.raises(PointNotFoundError):
            session.rewind("p")
        assert session.run("x").value == 1 and [each.name for each in other.points()] == ["p"]
        session.checkpoint("p")
        session.run("x = 2")
        session.rewind("p")
        assert session.run("x").value == 1
        other.rewind("p")
        assert other.run("kept").value == 1


def test_forks_outlive_a_source_that_is_killed(storage):
    with workcell.sync.Session(storage) as session:
        session.run("import os, signal; x = 1")
        session.checkpoint("p")
        forks = session.fork(3)
        assert session.run("os.kill(os.getpid(), signal.SIGKILL)").state == "lost"
        assert [fork.run("x").value for fork in forks] == [1, 1, 1]
        session.rewind("p")
        assert session.run("x").value == 1
        # Nor does the zygote matter to them.
        zygote = session.run("os.getppid()").value
        parents = {fork.run("os.getppid()").value for fork in forks}
        assert parents == {zygote}, "a fork is the spawner's child, and so is the session after a rewind"
        for fork in forks:
            fork.close()


def pss(pids):
    total = 0
    for pid in pids:
        with open("/proc/%d/smaps_rollup" % pid) as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total * 1024


def test_points_cost_what_changed(storage):
    """As many in `make test`, and 1,000 with WORKCELL_TEST_POINTS, in `make soak`."""
    count = int(os.environ.get("WORKCELL_TEST_POINTS", "250"))
    with workcell.sync.Session(storage) as session:
        session.run("data = bytearray(100_000_000); data[::4096] = b'x' * len(data[::4096]); x = 0")
        name = session.run("import os; open('/proc/self/cmdline').read()").value.split("\0")[0].split(" ")[1]
        before = pss(pids_of(name))
        assert before > 100_000_000
        for i in range(count):
            session.run("x += 1")
            session.checkpoint("p%d" % i)
        assert len(session.points()) == count
        cost = pss(pids_of(name)) - before
        # Each keeps the pages that its cell, and its own start, have changed: 0.85 MB, more where the interpreter's heap is more scattered.
        assert cost < count * 2_000_000, cost
        session.rewind("p17")
        assert session.run("x, len(data)").value == (18, 100_000_000)


def test_branches_are_told_of(storage):
    heard = []
    with workcell.sync.Session(storage, on_branch=heard.append) as session:
        session.run("x = 1")
        session.checkpoint("p")
        fork, = session.fork(1)
        fork.checkpoint("q")
        session.run("x = 2")
        session.rewind("p")
        race = session.race(["y = 1", "y = 2"], judge="y")
        mine, other = session.session_id, fork.session_id
        fork.close()
        wait_for(lambda: heard[-1].kind == "race")
    assert race.winner == 1 and mine != other
    assert [(each.session_id, each.kind) for each in heard[:4]] == [(mine, "point"), (mine, "fork"), (other, "point"), (mine, "rewind")]
    assert (heard[0].name, heard[0].cell, heard[1].new_session_id, heard[3].name) == ("p", 1, other, "p")
    assert (heard[-1].kind, heard[-1].n, heard[-1].winner) == ("race", 2, 1)


def test_a_listener_that_fails_hurts_nobody(storage, caplog):
    def listener(event):
        raise RuntimeError("planned")

    with workcell.sync.Session(storage, on_branch=listener) as session:
        session.checkpoint("p")
        assert session.run("1").value == 1
        wait_for(lambda: "on_branch failed" in caplog.text)  # events come on a thread of their own


@pytest.mark.parametrize("where", ["session", "engine"])
def test_points_over_the_budget_are_dropped(storage, where):
    heard = []
    engine = workcell.Engine(points_memory="24m" if where == "engine" else 0)
    try:
        with workcell.sync.Session(storage, engine=engine, points_memory="24m" if where == "session" else 0, on_branch=heard.append) as session:
            session.run("data = bytearray(10_000_000)")
            for i in range(6):
                session.run("data[::4096] = bytes([%d]) * len(data[::4096])" % (i + 1))
                session.checkpoint("p%d" % i)
            wait_for(lambda: any(each.kind == "dropped" for each in heard))
            dropped = next(each for each in heard if each.kind == "dropped")
            assert dropped.name == "p0" and dropped.budget == where and dropped.bytes > 0
            assert "p5" in [each.name for each in session.points()]
    finally:
        engine.close()


def test_a_budget_that_is_no_size_is_refused(storage):
    with pytest.raises(ValueError, match="points_memory"):
        workcell.sync.Session(storage, points_memory="much")


def kill_zygote(session):
    """Of a sandboxed session: a child of the spawner, which is some generations above the kernel."""
    ancestors = ancestors_of(pids_of(session.session_id)[0])
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                if b"workcell_kernel/zygote.py" in file.read() and parent_of(pid) in ancestors[:-1]:
                    os.kill(pid, 9)
                    wait_for(lambda: not os.path.exists("/proc/%d" % pid))
                    return pid
        except OSError:
            pass
    raise AssertionError("no zygote")


STATE = """
import asyncio, collections, ctypes, decimal, json, math, re, sqlite3, sys, time, zlib
numbers = (i * i for i in range(100)); next(numbers)
def counter():
    n = 0
    def more():
        nonlocal n
        n += 1
        return n
    return more
count = counter(); count()
buffer = ctypes.create_string_buffer(b"kept")
db = sqlite3.connect(":memory:"); db.execute("create table t (x)"); db.execute("insert into t values (41)")
decimal.getcontext().prec = 7
big = [bytes([i % 256]) * 100_000 for i in range(200)]
pattern = re.compile("(a+)b")
stream = zlib.compressobj(); head = stream.compress(b"abc" * 1000)
"""
CHECK = """
(next(numbers), count(), buffer.value, db.execute("select x + 1 from t").fetchone()[0], str(decimal.Decimal(1) / 3),
 [len(each) for each in big] == [100_000] * 200 and big[7][0], pattern.match("aab").group(1),
 zlib.decompress(head + stream.copy().flush()) == b"abc" * 1000, abs(time.time() - time.clock_gettime(time.CLOCK_REALTIME)) < 5,
 asyncio.run(asyncio.sleep(0, "slept")), len([bytes(1000) for _ in range(20_000)]))
"""
CHECKED = (1, 2, b"kept", 42, "0.3333333", 7, "aa", True, True, "slept", 20_000)


def test_points_and_forks_outlive_the_zygote_of_their_kernel(tmp_path):
    """A kernel of another zygote has everything at other addresses."""
    engine = workcell.Engine(pool_size=0)  # kernels that wait in a pool would be of the first zygote, or die with it
    try:
        with workcell.sync.Session(None, workcell.SandboxExecutor(workcell.SandboxConfig(cwd=str(tmp_path))), engine=engine) as session:
            assert session.run(STATE).error is None
            session.checkpoint("p")
            first = kill_zygote(session)
            fork, = session.fork(1)
            assert fork.run(CHECK).value == CHECKED
            assert kill_zygote(session) != first
            again, = fork.fork(1)
            assert again.run("next(numbers), count()").value == (4, 3)
            assert again.run("def deep(n): return n and 1 + deep(n - 1)\nsys.setrecursionlimit(10_000)\ndeep(9_000)").value == 9_000
            session.run("del numbers, big")
            session.rewind("p")
            assert session.run(CHECK).value == CHECKED
            again.checkpoint("q")
            again.run("count()")
            again.rewind("q")
            assert again.run("count()").value == 4
            assert [len(pids_of(each.session_id)) for each in (session, fork, again)] == [1, 1, 1], "their titles are seen"
            again.close()
            fork.close()
    finally:
        engine.close()


def test_the_heap_of_a_large_session_lies_in_huge_pages(storage):
    """A fork copies page tables: a large session has few of them, a small one does not pay 2 MB where it uses 4 kB."""
    with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as setting:
        has_huge_pages = "[never]" not in setting.read()
    memory = "{k: int(v.split()[0]) // 1024 for k, v in (line.split(':') for line in open('/proc/self/smaps_rollup') if line.endswith('kB\\n'))}"

    with workcell.sync.Session(storage, executor="subprocess") as session:
        def measure(code):
            session.run(code).raise_for_error()
            now = session.run(memory).value
            return now["Rss"], now["AnonHugePages"]

        _, huge = measure("small = [bytes(1000) for _ in range(20_000)], [str(i) for i in range(200_000)]")
        assert huge == 0
        measure("rows = [bytes([i % 251]) * 1000 for i in range(150_000)]")
        measure("texts = ['%d' % i + 'x' * 40 for i in range(1_500_000)]")
        # A block that grows is moved by Linux, not copied: its pages stay what they are.
        full, huge = measure("block = bytearray()\nwhile len(block) < 100_000_000: block += b'y' * 100_000")
        assert huge > (full - 200) / 2 if has_huge_pages else huge == 0

        session.run("from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as pool:\n"
                    "    many = list(pool.map(lambda n: [bytes([n]) * 2000 for _ in range(10_000)], range(8)))").raise_for_error()
        check = "len(rows), rows[999] == bytes([999 % 251]) * 1000, texts[-1][:7], block.count(b'y') == len(block), [each[-1][5] for each in many]"
        expected = session.run(check).value
        assert expected == (150_000, True, "1499999", True, list(range(8)))
        session.checkpoint("full")
        with session.fork() as fork:
            fork.run("rows[999] = texts[-1] = b''; block[0] = 0").raise_for_error()
            assert fork.run(check).value != expected and session.run(check).value == expected
        # What is given back is given back to the machine.
        less, _ = measure("del rows, texts, block, many, pool")
        assert less < full - 150
        session.rewind("full")
        assert session.run(check).value == expected
