"""Children: sessions that code forks from its own (`sessions.fork()`, `allow_fork`)."""
import asyncio
import os
import random
import signal
import threading
import time

import pytest
from conftest import run

import workcell
import workcell.sync
from workcell import UnsupportedError

EXECUTORS = ["subprocess", "sandbox"]


@pytest.fixture(params=EXECUTORS)
def made(request, storage, tmp_path):
    """make(**options): a session of either executor, closed afterwards."""
    open_ones = []

    def make(**options):
        options.setdefault("allow_fork", 3)
        if request.param == "sandbox":
            work = tmp_path / "work"
            work.mkdir(exist_ok=True)
            session = workcell.sync.Session.sandbox(tmp_path / "data", cwd=str(work), **options)
        else:
            session = workcell.sync.Session(storage, **options)
        session.run("0")
        open_ones.append(session)
        return session

    yield make
    for session in open_ones:
        session.close()


def value(session, code):
    result = session.run(code)
    assert result.error is None, result
    return result.value


def gone(pid):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            state = open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def test_a_child_goes_on_from_the_middle_of_a_cell(made):
    session = made()

    @session.tool
    def add(a: int, b: int) -> int:
        return a + b

    assert value(session, """
x = [1]
def deep(n):
    local = n
    return deep(n - 1) if n else sessions.fork()
child = deep(200)
r = child.run("x.append(tools.add(a=1, b=1)); print('out'); import sys; print('err', file=sys.stderr); x")
[r.value, r.repr, r.stdout, r.stderr, sorted(r.text.split()), r.error, r.state, x]""") == [
        [1, 2], "[1, 2]", "out\n", "err\n", ["err", "out"], None, "kept", [1]]
    # The rest of the cell is not run there, and locals of the source's functions are not visible.
    assert value(session, "[child.run('[\"r\" in globals(), \"child\" in globals(), \"local\" in globals()]').value, len(child.id)]") == [
        [False, False, False], 32]
    assert value(session, "e = child.run('1 / 0').error\n[e['type'], e['code'], 'ZeroDivisionError' in e['traceback'], 'deep' in e['traceback']]") == [
        "ZeroDivisionError", "exception", True, False]
    assert value(session, """
try:
    child.run('raise KeyError(5)').raise_for_error()
except ChildError as exc:
    caught = [exc.code, exc.original_type, exc.result.error['type']]
caught""") == ["exception", "KeyError", "KeyError"]
    assert value(session, "import random\n[random.random() == child.run('import random; random.random()').value, child.run('x').value, x]") == [
        False, [1, 2], [1]]
    assert value(session, "child.close()\nchild.close()\nsessions.list()") == []
    # Random cells after the handle is gone.
    assert value(session, "try:\n    child.run('1')\nexcept ChildError as exc:\n    code = exc.code\ncode") == "not_found"


def test_streams_loops_and_recursion_are_the_childs_own(made):
    session = made()
    assert value(session, """
import asyncio, contextlib, io, sys
with contextlib.redirect_stdout(io.StringIO()) as caught:
    child = sessions.fork()
r = child.run("print('seen')\\ndef down(n):\\n    return n and down(n - 1)\\ndown(sys.getrecursionlimit() // 2)")
[r.stdout, r.value, caught.getvalue()]""") == ["seen\n", 0, ""]
    assert value(session, "child.close()") is None
    assert value(session, """
async def main():
    children = [sessions.fork() for _ in range(3)]
    try:
        results = await asyncio.gather(*(each.run_async("import asyncio\\nawait asyncio.sleep(0.1)\\n%d" % i) for i, each in enumerate(children)))
        return [result.value for result in results]
    finally:
        for each in children:
            each.close()
await main()""") == [0, 1, 2]
    assert value(session, "asyncio.run(main())") == [0, 1, 2]


def test_one_budget_for_the_tree(made):
    session = made(allow_fork=2)
    assert value(session, """
def attempt(code):
    try:
        exec(code, globals())
    except ChildError as exc:
        return [exc.code, "allow_fork" in str(exc)]
child = sessions.fork()
inner = child.run("grand = sessions.fork(); grand.id").value
[attempt("sessions.fork()"), child.run("len(sessions.list())").value, len(sessions.list())]""") == [["limit", True], 1, 1]
    tree = {each.id: each.parent for each in session.children()}
    ids = value(session, "[child.id, inner]")
    assert tree == {ids[0]: session.session_id, ids[1]: ids[0]}
    assert all(each.pid > 0 and each.state == "idle" for each in session.children())
    # A child of a child ends with it.
    pids = [each.pid for each in session.children()]
    assert value(session, "child.close()\nsessions.list()") == []
    assert session.children() == [] and all(gone(pid) for pid in pids)
    # A child has no handle of its sibling, nor of itself.
    assert value(session, """
a = sessions.fork()
b = sessions.fork()
code = '''
try:
    %s
except ChildError as exc:
    said = exc.code
said'''
[b.run(code % "a.run('1')").value, b.run("a.close()").error, a.run("2").value]""") == ["not_found", None, 2]


def test_a_bomb_of_forks_is_bounded(made):
    session = made(allow_fork=3)
    # Each generation forks until it is refused; all of them together stay within the budget.
    assert value(session, """
bomb = '''
made = []
try:
    while True:
        made.append(sessions.fork())
except ChildError as exc:
    code = exc.code
for each in made:
    each.run(bomb)
[len(made), code]'''
exec(bomb)
[len(made), code, len(sessions.list())]""") == [3, "limit", 3]
    assert len(session.children()) == 3


@pytest.mark.parametrize("end", ["reset", "rewind", "crash", "kill", "close"])
def test_children_end_with_the_kernel_that_forked_them(made, end):
    session = made()
    value(session, "x = 1")
    session.checkpoint("p")
    value(session, "child = sessions.fork()\nchild.run('y = sessions.fork()').error")
    pids = [each.pid for each in session.children()]
    assert len(pids) == 2
    if end == "reset":
        session.reset()
    elif end == "rewind":
        session.rewind("p")
        assert value(session, "['child' in globals(), x]") == [False, 1]
    elif end == "crash":
        assert session.run("import os; os._exit(3)").error_info.code == "kernel_died"
    elif end == "kill":
        thread = threading.Thread(target=lambda: time.sleep(0.3) or os.kill(session_pid(session), signal.SIGKILL))
        thread.start()
        assert session.run("child.run('import time; time.sleep(30)')").error_info.code == "kernel_died"
        thread.join()
    else:
        session.close()
    assert all(gone(pid) for pid in pids)
    if end != "close":
        assert session.children() == []
        assert value(session, "sessions.fork().run('6 * 7').value") == 42


def session_pid(session):
    return session._core.need_session().kernel_pid()


def test_a_child_is_killed_and_a_cell_of_it_is_interrupted(made):
    session = made()
    value(session, "child = sessions.fork()")
    pid = session.children()[0].pid
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    assert value(session, "r = child.run('import time; time.sleep(30)')\n[r.error['code'], r.state]") == ["kernel_died", "lost"]
    assert value(session, "x = 5\nchild.run('\"x\" in globals()').value") is False  # a fresh kernel, as with any session
    # The parent's timeout ends the child's cell too, and both live on.
    began = time.monotonic()
    assert session.run("child.run('import time; time.sleep(30)')", timeout=0.5).error_info.code == "timeout"
    assert time.monotonic() - began < 10
    assert value(session, "[x, child.run('1 + 1').value]") == [5, 2]
    assert value(session, "r = child.run('import time; time.sleep(30)', timeout=0.2)\n[r.error['code'], child.run('3').value]") == ["timeout", 3]


def test_time_and_memory_of_children(made):
    session = made(fork_time=1.0, allow_fork=2)
    assert value(session, "child = sessions.fork()\nr = child.run('import time; time.sleep(30)')\n[r.error['code'], 'fork_time' in r.error['message']]") == [
        "limit_exceeded", True]
    deadline = time.monotonic() + 10
    while session.children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert session.children() == []
    session = made(fork_memory=150 << 20)
    assert value(session, "child = sessions.fork()\nr = child.run('big = bytearray(300 << 20)\\nimport time; time.sleep(30)')\n"
                          "[r.error['code'], 'fork_memory' in r.error['message']]") == ["limit_exceeded", True]
    assert value(session, "sessions.fork().run('7').value") == 7


def test_approvals_of_a_child_are_asked_at_the_root(storage):
    calls = []

    async def main():
        async with workcell.Session(storage, allow_fork=2, policy="ask") as session:
            @session.tool
            def pay(amount: int) -> int:
                calls.append(amount)
                return amount

            answers, seen = iter([True, True, False]), []

            @session.approvals.handler
            def decide(request):
                seen.append(request.session_id)
                return next(answers)

            result = await session.run("""
child = sessions.fork()
[child.run("tools.pay(amount=3)").value, child.run("sessions.fork().run('tools.pay(amount=4)').value").value, child.run("tools.pay(amount=5)").error['code']]""")
            assert result.error is None, result
            assert result.value == [3, 4, "rejected"] and calls == [3, 4]
            assert len(set(seen)) == 2 and session.session_id not in seen

    run(main())


def test_refusals(storage):
    with workcell.sync.Session(storage) as session:
        code = "try:\n    sessions.fork()\nexcept ChildError as exc:\n    said = [exc.code, 'allow_fork' in str(exc)]\nsaid"
        assert session.run(code).value == ["forbidden", True]
    with workcell.sync.Session(storage, "inprocess") as session:
        assert session.run(code.replace("'allow_fork'", "'sandbox'")).value == ["unsupported", True]
    with pytest.raises(UnsupportedError, match="allow_fork"):
        workcell.sync.Session(storage, "inprocess", allow_fork=1).run("1")
    for options in ({"allow_fork": -1}, {"allow_fork": 1001}, {"allow_fork": 1, "fork_memory": -5}):
        with pytest.raises(ValueError):
            workcell.sync.Session(storage, **options).run("1")


def test_what_cannot_be_forked_is_named(made):
    session = made()
    assert value(session, """
import threading
held = threading.Event()
thread = threading.Thread(target=held.wait, name="mine", daemon=True)
thread.start()
try:
    sessions.fork()
except ChildError as exc:
    said = [exc.code, "thread mine" in str(exc)]
child = sessions.fork(drop=True)
out = [said, child.run("threading.active_count()").value]
held.set()
thread.join()
def other():
    try:
        sessions.fork()
    except RuntimeError as exc:
        out.append("main thread" in str(exc))
thread = threading.Thread(target=other)
thread.start()
thread.join()
out + [len(sessions.list())]""") == [["cannot_fork", True], 1, True, 1]


def test_files_of_a_child_are_its_own_layer(storage, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    with workcell.sync.Session.sandbox(tmp_path / "data", cwd=str(work), workspace_mode="cow", allow_fork=2) as session:
        assert value(session, """
open('a', 'w').write('mine')
child = sessions.fork()
r = child.run("[open('a').read(), open('b', 'w').write('theirs')]")
import os
[r.value[0], os.path.exists('b'), os.path.exists('a')]""") == ["mine", False, True]
        assert value(session, "child.close()") is None
        assert [each.path for each in session.diff().files] == ["a"]
    assert os.listdir(str(work)) == []


def test_the_receipt_of_a_child_is_that_of_its_parent(storage, tmp_path):
    """Isolation of a child is never less: the same processes, users, files and system calls."""
    work = tmp_path / "work"
    work.mkdir()
    look = ("import os\n[open('/proc/self/status').read().split('Seccomp:')[1].split()[0], open('/proc/self/status').read().split('CapEff:')[1].split()[0],"
            " sorted(os.listdir('/')), os.getuid(), len([name for name in os.listdir('/proc') if name.isdigit()]) <= 2]")
    with workcell.sync.Session.sandbox(tmp_path / "data", cwd=str(work), allow_fork=2) as session:
        assert value(session, "child = sessions.fork()\nlook = %r\nchild.run(look).value" % look) == value(session, look)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_tree_follows_its_model(storage, tmp_path, executor):
    """Random forks, cells and ends of children against a model of their variables."""
    dice = random.Random(os.environ.get("WORKCELL_TEST_SEED", "children"))
    work = tmp_path / "work"
    work.mkdir()
    opened = (workcell.sync.Session.sandbox(tmp_path / "data", cwd=str(work), allow_fork=4) if executor == "sandbox"
              else workcell.sync.Session(storage, allow_fork=4))
    with opened as session:
        state, children, n = {"x": 0}, {}, 0
        value(session, "x = 0\nkids = {}")
        for step in range(40):
            move = dice.choice(["fork", "run", "run", "set", "close", "check"])
            if move == "fork" and len(children) < 4:
                n += 1
                value(session, "kids[%d] = sessions.fork()" % n)
                children[n] = dict(state)
            elif move == "fork":
                assert session.run("sessions.fork()").error_info.type == "ChildError"
            elif move == "set":
                state["x"] = step
                value(session, "x = %d" % step)
            elif move == "run" and children:
                which = dice.choice(list(children))
                children[which]["x"] += 1
                assert value(session, "kids[%d].run('x += 1\\nx').value" % which) == children[which]["x"]
            elif move == "close" and children:
                which = dice.choice(list(children))
                del children[which]
                value(session, "kids.pop(%d).close()" % which)
            assert value(session, "[x, {str(k): v.run('x').value for k, v in kids.items()}]") == [
                state["x"], {str(k): v["x"] for k, v in children.items()}]
            assert len(session.children()) == len(children)
