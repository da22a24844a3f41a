"""Speculation at the gate: a copy of the session goes on while a call waits for a person (`speculate`)."""
import asyncio
import json
import os
import random
import signal
import time

import pytest
from conftest import run

import workcell
import workcell.sync
from workcell import UnsupportedError

EXECUTORS = ["subprocess", "sandbox"]
DEADLINE = 20


class Gate:
    """A session with a tool behind an approval, and what happens to it."""

    def __init__(self, session, events):
        self.session, self.events, self.calls, self.answers, self.waiting = session, events, [], {}, None

        @session.tool(supposed={"ok": True})
        def pay(amount: int) -> dict:
            self.calls.append(["pay", amount])
            return self.answers.get(amount, {"ok": True})

        @session.tool
        def send(text: str) -> str:
            self.calls.append(["send", text])
            return text.upper()

    def states(self):
        return [each.state for each in self.events]

    async def until(self, test):
        end = time.monotonic() + DEADLINE
        while not test():
            assert time.monotonic() < end, (self.states(), [each.reason for each in self.events])
            await asyncio.sleep(0.005)

    async def asks(self, code, **options):
        """Starts a cell and waits for its first request. Returns the cell and the request."""
        self.events.clear()
        self.calls.clear()
        cell = asyncio.ensure_future(self.session.run(code, **options))
        await self.until(lambda: len(self.session.approvals) or cell.done())
        assert not cell.done(), await cell
        return cell, self.session.approvals.pending[0]

    async def runs(self, code, **options):
        cell, request = await self.asks(code, **options)
        await self.until(lambda: self.events)
        assert self.states() == ["started"], self.events[0].reason
        return cell, request

    async def next(self):
        await self.until(lambda: len(self.session.approvals))
        return self.session.approvals.pending[0]


def kernels(session_id):
    """The processes of a session."""
    found, title = set(), b"workcell-kernel " + session_id.encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/cmdline" % name, "rb") as file:
                    if file.read().startswith(title):
                        found.add(int(name))
            except OSError:
                pass
    return found


def layers():
    """The number of descriptors of layers: each copy has some. Those of kernels also come and go with the pools of engines."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += "workcell-layer" in os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass  # closed meanwhile
    return found


def seconds(pid):
    """CPU time of a process."""
    with open("/proc/%d/stat" % pid) as file:
        return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def gated(scenario, executor, tmp_path, **options):
    async def main():
        work, events = tmp_path / "work", []
        work.mkdir(exist_ok=True)
        options.setdefault("speculate", True)
        options.setdefault("workspace_mode", "cow")
        options.setdefault("approval_timeout", None)
        kind = getattr(workcell.Session, executor)
        async with kind(tmp_path / "data", cwd=str(work), policy="ask",
                        on_branch=lambda event: events.append(event) if event.kind == "speculation" else None, **options) as session:
            await scenario(Gate(session, events), work)

    run(main())


@pytest.fixture(params=EXECUTORS)
def executor(request):
    return request.param


def test_kept(executor, tmp_path):
    async def scenario(gate, work):
        session = gate.session
        await session.run("import os, random, time\nrandom.seed(7)\nruns = []\nseen = random.random()")
        started = time.monotonic()
        cell, request = await gate.runs("""
print('before')
runs.append('cell')
answer = tools.pay(amount=1)
print('after', answer)
runs.append('copy')
open('made.txt', 'w').write('by the copy')
time.sleep(0.3)
seen = random.random()
sent = tools.send(text='hello')
print(sent)
runs.append('end')
[answer, sent, runs]""")
        await asyncio.sleep(0.4)  # the copy runs; there is nothing to wait for, because nothing of it may be seen
        assert gate.calls == [] and os.listdir(work) == [] and (await session.diff()).files == []
        assert len(session.approvals) == 1 and not cell.done()
        await request.accept()
        second = await gate.next()
        assert second.tool_args == {"text": "hello"} and time.monotonic() - started < 0.4 + DEADLINE
        assert gate.states() == ["started", "kept"] and gate.events[1].ran_ms >= 300
        await second.accept()
        result = await cell
        assert result.error is None, result
        assert result.value == [{"ok": True}, "HELLO", ["cell", "copy", "end"]] and gate.calls == [["pay", 1], ["send", "hello"]]
        assert result.stdout == "before\nafter {'ok': True}\nHELLO\n"
        assert [each.path for each in (await session.diff()).files] == ["made.txt"] and os.listdir(work) == []
        await session.run("again = open('made.txt').read()")
        random.seed(7)
        random.random()
        assert (await session.run("[runs, again, seen]")).value == [["cell", "copy", "end"], "by the copy", random.random()]
        await session.commit()
        assert (work / "made.txt").read_text() == "by the copy"

    gated(scenario, executor, tmp_path)


def test_dropped(executor, tmp_path):
    """Another result, a rejection, edited arguments, a failure: the original goes on, and nothing of the copy remains."""
    code = """
print('before')
try:
    seen = tools.pay(amount=%d)
except Exception as exc:
    seen = type(exc).__name__
print('after', seen)
open('made.txt', 'w').write(repr(seen))
runs = runs + 1
[seen, runs]"""

    async def scenario(gate, work):
        session = gate.session
        await session.run("runs = 0")
        gate.answers = {2: {"ok": False}, 5: {"ok": True, "more": 1}}
        for n, (amount, answer, seen, reason) in enumerate([
                (2, lambda request: request.accept(), {"ok": False}, "another"),
                (3, lambda request: request.reject("no"), "ApprovalRejectedError", "rejected"),
                (4, lambda request: request.accept({"amount": 40}), {"ok": True}, "edited"),
                (5, lambda request: request.accept(), {"ok": True, "more": 1}, "another")], 1):
            cell, request = await gate.runs(code % amount)
            await answer(request)
            result = await cell
            assert result.value == [seen, n] and result.stdout == "before\nafter %s\n" % (seen,), result
            assert gate.states() == ["started", "dropped"] and reason in gate.events[1].reason
        assert (await session.run("open('made.txt').read()")).value == repr({"ok": True, "more": 1})
        await gate.until(lambda: len(kernels(session.session_id)) == 1)

    gated(scenario, executor, tmp_path)


def test_the_order_of_keys_is_part_of_a_result(tmp_path):
    """The code sees it: the copy would have gone on with another one."""
    async def scenario(gate, work):
        @gate.session.tool(supposed={"a": 1, "b": 2})
        def pair() -> dict:
            return {"b": 2, "a": 1}

        cell, request = await gate.runs("list(tools.pair())")
        await request.accept()
        assert (await cell).value == ["b", "a"] and gate.states() == ["started", "dropped"] and "another" in gate.events[1].reason

    gated(scenario, "subprocess", tmp_path)


def test_files_from_outside(executor, tmp_path):
    """What the host does to the files of the session while it waits is not lost."""
    async def scenario(gate, work):
        session = gate.session
        await session.run("open('a.txt', 'w').write('1')")
        cell, request = await gate.runs("tools.pay(amount=1)\nopen('b.txt', 'w').write('2')")
        assert [each.path for each in (await session.diff()).files] == ["a.txt"]  # reading changes nothing
        assert gate.states() == ["started"]
        await session.commit()
        assert gate.states() == ["started", "dropped"] and "outside" in gate.events[1].reason
        await request.accept()
        assert (await cell).error is None and [each.path for each in (await session.diff()).files] == ["b.txt"]
        assert os.listdir(work) == ["a.txt"]

    gated(scenario, executor, tmp_path)


def test_recorded(executor, tmp_path):
    """The last result of the same call, where the tool announces none; not that of edited arguments."""
    async def scenario(gate, work):
        code = "pid = __import__('os').getpid()\ntools.send(text=%r)"
        cell, request = await gate.asks(code % "a")
        await request.accept({"text": "b"})
        assert (await cell).value == "B" and gate.events == []
        cell, request = await gate.asks(code % "a")
        await request.accept()
        assert (await cell).value == "A" and gate.events == []
        cell, request = await gate.runs(code % "a")
        await request.accept()
        assert (await cell).value == "A" and gate.states() == ["started", "kept"] and gate.calls == [["send", "a"]]

    gated(scenario, executor, tmp_path)


def test_recorded_results_are_bounded(tmp_path):
    """The last 32, of at most 64 KiB with their arguments."""
    async def scenario(gate, work):
        cell, request = await gate.asks("for n in range(33): tools.send(text=str(n))")
        for n in range(33):
            await gate.until(lambda: [each for each in gate.session.approvals.pending if each.tool_args == {"text": str(n)}])
            await gate.session.approvals.pending[0].accept()
        assert (await cell).error is None and gate.events == []
        for text, known in (("1", True), ("0", False), ("x" * 20000, False), ("x" * 20000, True), ("y" * 40000, False), ("y" * 40000, False)):
            cell, request = await (gate.runs if known else gate.asks)("tools.send(text=%r)" % text)
            await request.accept()
            assert (await cell).value == text.upper() and gate.states() == (["started", "kept"] if known else []), text[:2]

    gated(scenario, "subprocess", tmp_path)


def test_the_copy_ends_the_cell(executor, tmp_path):
    """Its result, an exception, a display and an image wait too; errors keep their traceback."""
    async def scenario(gate, work):
        session = gate.session
        cell, request = await gate.runs("tools.pay(amount=1)\nfrom IPython.display import display, HTML\ndisplay(HTML('<b>x</b>'))\n1 // 0")
        await asyncio.sleep(0.2)
        assert not cell.done()
        await request.accept()
        result = await cell
        assert result.error_info.type == "ZeroDivisionError" and gate.states() == ["started", "kept"], result
        cell, request = await gate.runs("tools.pay(amount=1)\nprint('x' * 3_000_000)\n'end'", timeout=DEADLINE)
        await asyncio.sleep(0.1)  # more than the ring holds: the copy waits
        await request.accept()
        result = await cell
        assert result.value == "end" and gate.states() == ["started", "kept"], result
        assert (await session.run("40 + 2")).value == 42

    gated(scenario, executor, tmp_path)


def cpu_ticks(session_id):
    """That the kernels of a session have used."""
    used = 0
    for pid in kernels(session_id):
        try:
            with open("/proc/%d/stat" % pid) as file:
                used += int(file.read().rpartition(")")[2].split()[11])
        except OSError:
            pass  # it has ended
    return used


def test_stopped_while_it_waits(executor, tmp_path):
    """Interrupt, timeout, reset, expiry: each ends the copy; the session goes on."""
    code = "x = 1\ntools.pay(amount=1)\nx = 2\nwhile True: pass"

    async def scenario(gate, work):
        session = gate.session
        await session.run("x = 0")
        cell, request = await gate.runs(code)
        await session.interrupt()
        assert (await cell).error_info.code == "interrupted" and gate.states() == ["started", "dropped"]
        assert (await session.run("x")).value == 1
        cell, request = await gate.runs(code, timeout=0.4)
        assert (await cell).error_info.code == "timeout" and gate.states() == ["started", "dropped"]
        # After it is kept, the copy is the cell: the same interrupt and the same clock.
        cell, request = await gate.runs(code)
        await request.accept()
        await gate.until(lambda: "kept" in gate.states())
        begun = cpu_ticks(session.session_id)
        await gate.until(lambda: cpu_ticks(session.session_id) > begun + 2)  # it is in the loop, behind x = 2
        await session.interrupt()
        assert (await cell).error_info.code == "interrupted" and (await session.run("x")).value == 2
        cell, request = await gate.runs(code, timeout=0.8)
        await request.accept()
        assert (await cell).error_info.code == "timeout" and gate.states() == ["started", "kept"]
        assert (await session.run("x")).value == 2
        cell, request = await gate.runs(code)
        await session.reset()
        assert (await cell).error_info.code == "interrupted"
        await gate.until(lambda: len(kernels(session.session_id)) == 1)
        assert (await session.run("'x' in globals()")).value is False

    gated(scenario, executor, tmp_path)


def test_either_is_killed(tmp_path):
    async def scenario(gate, work):
        session = gate.session
        pid = (await session.run("import os\nx = 1\nos.getpid()")).value
        cell, request = await gate.runs("y = tools.pay(amount=1)\nx = 2\nos.getpid()")
        (copy,) = kernels(session.session_id) - {pid}
        os.kill(copy, signal.SIGKILL)
        await gate.until(lambda: gate.states() == ["started", "dropped"])
        await request.accept()
        assert (await cell).value == pid and (await session.run("[x, y]")).value == [2, {"ok": True}]
        cell, request = await gate.runs("y = tools.pay(amount=1)\nx = 3\nos.getpid()")
        os.kill(pid, signal.SIGKILL)
        assert (await cell).error_info.code == "kernel_died" and gate.states() == ["started", "dropped"]
        assert (await session.run("'x' in globals()")).value is False
        # A copy that ends itself has done nothing; its source does the same.
        cell, request = await gate.asks("import os\ntools.pay(amount=1)\nos._exit(3)")
        await gate.until(lambda: gate.states() == ["started", "dropped"])
        await request.accept()
        assert (await cell).error_info.code == "kernel_died"
        # One that was kept is the session's kernel.
        cell, request = await gate.runs("import os\ntools.pay(amount=1)\ntools.pay(amount=2)\nos._exit(3)")
        await request.accept()
        await (await gate.next()).accept()
        assert (await cell).error_info.code == "kernel_died"
        assert (await session.run("1 + 1")).value == 2

    gated(scenario, "subprocess", tmp_path)


def test_effects_outside_of_the_layer_wait(tmp_path):
    """With `subprocess` nothing confines the copy: it stops before effects that a layer does not hold back."""
    async def scenario(gate, work):
        outside, sock = tmp_path / "outside.txt", tmp_path / "sock"
        server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), str(sock))
        effects = ["open(%r, 'w').write('x')" % str(outside), "os.mkdir(%r)" % str(tmp_path / "folder"),
                   "os.rename('inside.txt', %r)" % str(tmp_path / "moved.txt"), "os.system('touch %s')" % (tmp_path / "shell.txt"),
                   "import socket; s = socket.socket(socket.AF_UNIX); s.connect(%r)" % str(sock),
                   "import subprocess; subprocess.run(['touch', %r])" % str(tmp_path / "child.txt"),
                   # the name begins as that of the workspace does, which is no folder of it
                   "try: open(os.getcwd() + '-beside/x', 'w')\nexcept OSError: pass"]
        first = set(os.listdir(tmp_path))
        await gate.session.run("import ctypes, os\nlibc = ctypes.CDLL(None)")

        def names_of_kernels():
            return {open("/proc/%d/comm" % pid).read().strip() for pid in kernels(gate.session.session_id)}

        for n, effect in enumerate(effects):
            names = set(os.listdir(tmp_path))
            cell, request = await gate.runs("tools.pay(amount=1)\nopen('inside.txt', 'w').close()\nprint('in')\nlibc.prctl(15, b'there-%d')\n%s\n"
                                            "libc.prctl(15, b'past')\nprint('out')\ns = None" % (n, effect))
            await gate.until(lambda: "there-%d" % n in names_of_kernels())
            await asyncio.sleep(0.15)  # the effect would come at once
            assert set(os.listdir(tmp_path)) == names and os.listdir(work) == [] and "past" not in names_of_kernels(), effect
            await request.accept()
            result = await cell
            assert result.error is None and result.stdout == "in\nout\n" and gate.states() == ["started", "kept"], (effect, result)
            await gate.session.run("libc.prctl(15, b'kernel')")
        made = {"outside.txt", "folder", "moved.txt", "shell.txt", "child.txt"}
        assert set(os.listdir(tmp_path)) == first | made
        server.close()

    gated(scenario, "subprocess", tmp_path)


def test_declined(tmp_path):
    """What would be shared by the two, or cannot be held back."""
    async def scenario(gate, work):
        session = gate.session
        for code, reason in [("f = open('x.txt', 'w')", "open for writing"), ("f.close()\nimport mmap\nm = mmap.mmap(-1, 4096)", "mapped"),
                             ("m.close()\nimport threading, time\ne = threading.Event()\nthreading.Thread(target=e.wait, daemon=True).start()",
                              "thread"), ("e.set()\ntime.sleep(0.05)\nimport signal\nsignal.alarm(60)", "timer")]:
            assert (await session.run(code)).error is None
            cell, request = await gate.asks("tools.pay(amount=1)")
            await gate.until(lambda: gate.events)
            assert gate.states() == ["dropped"] and reason in gate.events[0].reason
            await request.accept()
            assert (await cell).value == {"ok": True} and gate.states() == ["dropped"]
        await session.run("signal.alarm(0)")
        cell, request = await gate.asks("import asyncio\nawait asyncio.gather(tools.pay.call_async(amount=1), tools.pay.call_async(amount=2))")
        await gate.until(lambda: len(session.approvals) == 2 and gate.events)
        for each in session.approvals.pending:
            await each.accept()
        assert (await cell).value == [{"ok": True}] * 2 and "kept" not in gate.states() and "started" not in gate.states()

    gated(scenario, "subprocess", tmp_path)

    async def never(gate, work):
        cell, request = await gate.asks("tools.pay(amount=1)")
        assert gate.states() == ["declined"]
        await request.accept()
        result = await cell
        assert result.value == {"ok": True} and result.isolation["speculation"] == gate.events[0].reason

    gated(never, "subprocess", tmp_path, workspace_mode=None)
    gated(never, "sandbox", tmp_path, workspace_mode="rw")
    gated(never, "sandbox", tmp_path, network="full")
    out, policy = tmp_path / "out", tmp_path / "policy.yaml"
    out.mkdir()
    policy.write_text("preset: untrusted\nworkspace: cow\nfilesystem: {write: [%s]}\n" % out)
    gated(never, "sandbox", tmp_path, policy_name=str(policy))

    async def with_a_point(gate, work):
        await gate.session.run("open('x.txt', 'w').write('x')")
        await gate.session.checkpoint("p")
        cell, request = await gate.asks("tools.pay(amount=1)")
        assert gate.states() == ["declined"] and "points" in gate.events[0].reason
        await request.accept()
        assert (await cell).value == {"ok": True}

    gated(with_a_point, "sandbox", tmp_path)
    with pytest.raises(UnsupportedError, match="speculate"):
        workcell.sync.Session(tmp_path / "data", "inprocess", speculate=True).run("1")


def test_clock_and_recorded_events(tmp_path):
    """Time that the copy computes counts while the clock of the cell stands still; the audit log has a record of each step."""
    log = tmp_path / "audit.jsonl"

    async def scenario(gate, work):
        cell, request = await gate.runs("tools.pay(amount=1)\nwhile True: pass", timeout=1.0)
        await gate.until(lambda: len(gate.events) == 2)
        assert gate.states() == ["started", "dropped"] and "time" in gate.events[1].reason and not cell.done()
        await request.reject("no")
        assert (await cell).error_info.code == "rejected"
        cell, request = await gate.runs("import time\ntools.pay(amount=1)\nt = time.process_time() + 0.6\n"
                                        "while time.process_time() < t: pass\ntools.send(text='x')\n"
                                        "t = time.process_time() + 30\nwhile time.process_time() < t: pass", timeout=1.0)
        await gate.until(lambda: max(map(seconds, kernels(gate.session.session_id))) >= 0.58)
        await request.accept()
        second = await gate.next()
        start = time.monotonic()
        await second.accept()
        assert (await cell).error_info.code == "timeout" and time.monotonic() - start < 0.9
        assert gate.states() == ["started", "kept"]

    with workcell.AuditLog(log) as audit:
        gated(scenario, "subprocess", tmp_path, approval_stops_clock=True, audit=audit)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [each["args"]["state"] for each in records if each["kind"] == "branch" and each["callable"] == "speculation"] == [
        "started", "dropped", "started", "kept"]


def test_memory_of_both_counts(tmp_path):
    """A copy that takes what its source leaves of the limit is dropped; the source goes on."""
    async def scenario(gate, work):
        cell, request = await gate.runs("data = bytearray(b'x') * (60 << 20)\ntools.pay(amount=1)\n"
                                        "sum(data[::4096])\nmore = bytearray(b'y') * (190 << 20)\nimport time\ntime.sleep(60)")
        await gate.until(lambda: len(gate.events) == 2)
        assert gate.states() == ["started", "dropped"] and "memory" in gate.events[1].reason and not cell.done()
        await request.reject("no")
        assert (await cell).error_info.code == "rejected" and (await gate.session.run("len(data)")).value == 60 << 20

    policy = tmp_path / "policy.yaml"
    policy.write_text("preset: untrusted\nworkspace: cow\nlimits: {memory: 256M}\n")
    gated(scenario, "sandbox", tmp_path, policy_name=str(policy))


OWN_VARIABLES = """
found = [(*(int(end, 16) for end in line.split()[0].split("-")), line) for line in open("/proc/self/maps")]
begin = max(end for _, end, line in found if "_workcell.abi3.so" in line)
end = next(end for start, end, _ in found if start == begin)
n, big = 0, b"x" * 20000000
"""
WRITE_TO_THEM = """
import ctypes
for at in range(begin, end, 4096):
    byte = ctypes.c_char.from_address(at)
    byte.value = byte.value
n += 1
tools.pay(amount=1)
"""


def test_a_session_that_is_copied_again_and_again(tmp_path):
    """A copy has the kernel's own variables from the file of the first one, as all of their pages were written to. Later that file goes, because
    little else of it is used."""
    async def scenario(gate, work):
        await gate.session.run(OWN_VARIABLES)
        for i in range(5):
            cell, request = await gate.runs(WRITE_TO_THEM)
            await (request.reject() if i else request.accept())
            assert bool((await cell).error) == bool(i)
            await gate.session.run("big = None")
        assert (await gate.session.run("n")).value == 5

    gated(scenario, "sandbox", tmp_path)


def test_nothing_is_left(executor, tmp_path):
    async def scenario(gate, work):
        await gate.session.run("n = 0")
        files, opened[:] = layers(), [gate.session.session_id]
        for i in range(20):
            cell, request = await gate.runs("n += 1\ntools.pay(amount=1)\nn")
            await (request.accept() if i % 2 else request.reject())
            await cell
            await gate.until(lambda: len(kernels(gate.session.session_id)) == 1)
        await gate.until(lambda: layers() <= files)
        assert (await gate.session.run("n")).value == 20
        cell, request = await gate.runs("tools.pay(amount=1)\nwhile True: pass")

    opened = []
    gated(scenario, executor, tmp_path)  # closed while a copy runs
    assert not kernels(opened[0])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_same_as_without(executor, tmp_path):
    """Random cells, answers and results: values, output and files are those of a session that does not speculate."""
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)

    def statement():
        return chance.choice([
            "total += %d" % chance.randrange(9), "print('line', total)", "items.append(random.randrange(100))",
            "open('f%d.txt' % (total % 3), 'a').write(str(total))", "print(sorted(os.listdir('.')), file=sys.stderr)",
            "items.append(tools.pay(amount=%d)['ok'])" % chance.randrange(4), "items.append(tools.send(text='t%d'))" % chance.randrange(2),
            "total //= chance_zero()", "items = items[-5:]"])

    cells = ["\n".join(statement() for _ in range(chance.randrange(2, 7))) + "\n[total, items]" for _ in range(6)]
    decisions = [chance.random() < 0.8 for _ in range(100)]
    found = []
    for speculate in (True, False):
        async def scenario(gate, work):
            answers = iter(decisions)
            gate.answers = {2: {"ok": False}}

            @gate.session.approvals.handler
            async def decide(request):
                await asyncio.sleep(0.01)
                return next(answers)

            await gate.session.run("import os, random, sys\nrandom.seed(%d)\ntotal, items = 1, []\n"
                                   "def chance_zero(): return random.randrange(3)" % seed)
            seen = []
            for code in cells:
                result = await gate.session.run(code)
                seen.append([result.value, result.stdout, result.stderr, result.error and result.error_info.type])
            files = [[each.path, each.size] for each in (await gate.session.diff()).files]
            found.append([seen, files, gate.calls])
            assert bool(gate.events) <= speculate

        place = tmp_path / str(speculate)
        place.mkdir()
        gated(scenario, executor, place, speculate=speculate)
    assert found[0] == found[1], seed


CONFINED = r"""
def confined():
    import os, re, resource, socket
    text = open('/proc/self/status').read()
    found = [re.search('^%s:\\s*(.*)$' % name, text, re.M).group(1) for name in ('Uid', 'Gid', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')]
    found.append([resource.getrlimit(n) for n in range(16)])
    for attempt in ("open('/etc/shadow').read()", "os.listdir('/root')", "open('/proc/1/environ').read()", "os.kill(1, 9)", "os.setuid(0)",
                    "os.mount" if hasattr(os, 'mount') else "os.chroot('/')", "open('/etc/x', 'w')", "socket.create_connection(('127.0.0.1', 22), 1)",
                    "os.unshare(0x10000000)" if hasattr(os, 'unshare') else "os.mknod('/dev/x')", "open('.git/hooks/pre-commit', 'w')"):
        try:
            eval(attempt)
            found.append(attempt)
        except Exception as exc:
            found.append((attempt, type(exc).__name__))
    return found
"""


def test_a_copy_is_as_confined_as_its_source(tmp_path):
    """Every attempt ends in the copy as it ends in the session, and what it does is seen only once it is kept."""
    async def scenario(gate, work):
        await gate.session.run(CONFINED + "\nbefore = confined()")
        cell, request = await gate.runs("tools.pay(amount=1)\ninside = confined()\nimport os\nos.makedirs('sub', exist_ok=True)\nn = open('sub/f', 'w').write('x')\ninside == before")
        await gate.until(lambda: "started" in gate.states())
        await asyncio.sleep(0.3)  # the copy attacks
        assert os.listdir(work) == [] and (await gate.session.diff()).files == []
        await request.accept()
        assert (await cell).value is True and gate.states() == ["started", "kept"]
        assert (await gate.session.run("[inside == before, confined() == before]")).value == [True, True]

    gated(scenario, "sandbox", tmp_path)


def line_of(pid):
    """Its parents, the nearest first."""
    found = []
    while pid > 1:
        with open("/proc/%d/stat" % pid) as file:
            pid = int(file.read().rsplit(")", 1)[1].split()[1])
        found.append(pid)
    return found


def title_of(pid):
    with open("/proc/%d/cmdline" % pid, "rb") as file:
        return file.read()


def zygotes(session_id):
    """Those that have the spawner of the session's kernel, which is the last of that name above it: pid 1 of a sandbox has it too."""
    kernel, *_ = kernels(session_id)
    spawner = [pid for pid in line_of(kernel) if b"workcell-spawner" in title_of(pid)][-1]
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"workcell_kernel/zygote.py" in title_of(int(name)) and spawner in line_of(int(name)):
                found.append(int(name))
        except OSError:
            pass  # it has ended
    return found


@pytest.mark.parametrize("accept", [True, False])
def test_the_zygote_is_killed_beside_a_copy(executor, tmp_path, accept):
    async def scenario(gate, work):
        await gate.session.run("n = 0")
        cell, request = await gate.runs("n += 1\ntry: tools.pay(amount=1)\nexcept Exception: n += 10\nn")
        killed = []

        def found():  # the session's kernel may come from a pool that the zygote before this one had filled
            killed[:] = zygotes(gate.session.session_id)
            return killed

        await gate.until(found)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        await (request.accept() if accept else request.reject())
        assert (await cell).value == (1 if accept else 11)
        assert gate.states()[-1] == ("kept" if accept else "dropped")
        assert (await gate.session.run("n")).value == (1 if accept else 11)

    gated(scenario, executor, tmp_path)
