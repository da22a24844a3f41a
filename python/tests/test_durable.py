"""Saved sessions: hibernated, woken, by whom, and what they carry."""
import glob
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

import workcell
from workcell import CodeModeError, ConflictError, StorageError, UnsupportedError, WakeError
from workcell.sync import Session

KEY = "0123456789abcdef" * 4
EXECUTORS = ["sandbox", "subprocess"]

# What a session can have: code that makes it, an expression afterwards, its value. Each name is its own.
STATES = [
    ("number = 41", "number + 1", 42),
    ("big = 3 ** 500", "big == 3 ** 500", True),
    ("text = 'ä' * 1000", "len(text)", 1000),
    ("data = bytearray(range(200))", "sum(data)", 19900),
    ("view = memoryview(bytearray(b'abc'))", "view[1]", 98),
    ("rows = [[i] * 3 for i in range(100)]", "rows[99][2]", 99),
    ("ring = []; ring.append(ring)", "ring[0] is ring", True),
    ("table = {i: str(i) for i in range(1000)}", "table[999]", "999"),
    ("chosen = {1, 2, frozenset([3])}", "frozenset([3]) in chosen", True),
    ("halfway = (i * i for i in range(10)); next(halfway); next(halfway)", "next(halfway)", 4),
    ("counter = iter(range(5)); next(counter)", "next(counter)", 1),
    ("import itertools; cycle = itertools.cycle('ab'); next(cycle)", "next(cycle)", "b"),
    ("def outer(n):\n    def inner():\n        nonlocal n\n        n += 1\n        return n\n    return inner\nclosure = outer(5); closure()", "closure()", 7),
    ("double = lambda n: 2 * n", "double(4)", 8),
    ("import functools; part = functools.partial(pow, 2)", "part(5)", 32),
    ("@functools.lru_cache\ndef cached(n): return n * n\ncached(7)", "cached.cache_info().currsize", 1),
    ("class Slots:\n    __slots__ = ('a',)\nslotted = Slots(); slotted.a = 5", "slotted.a", 5),
    ("class Base:\n    def hello(self): return 'base'\nclass Derived(Base):\n    def hello(self): return super().hello() + '+'\nderived = Derived()", "derived.hello()", "base+"),
    ("import dataclasses\n@dataclasses.dataclass\nclass Spot:\n    x: int\nspot = Spot(3)", "spot == Spot(3)", True),
    ("import enum\nclass Colour(enum.Enum):\n    RED = 1\ncolour = Colour.RED", "colour is Colour.RED", True),
    ("import collections; queue = collections.deque([1, 2, 3], maxlen=3)", "queue.append(4) or list(queue)", [2, 3, 4]),
    ("Pair = collections.namedtuple('Pair', 'a b'); pair = Pair(1, 2)", "pair.b", 2),
    ("counts = collections.Counter('aab')", "counts['a']", 2),
    ("lists = collections.defaultdict(list); lists['x'].append(1)", "lists['x']", [1]),
    ("import decimal; decimal.getcontext().prec = 5", "str(decimal.Decimal(1) / 3)", "0.33333"),
    ("import fractions; third = fractions.Fraction(1, 3)", "str(third + third)", "2/3"),
    ("import datetime; day = datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc)", "day.isoformat()", "2024-02-29T00:00:00+00:00"),
    ("import logging; log = logging.getLogger('mine'); log.setLevel(13)", "logging.getLogger('mine').level", 13),
    ("import io; buffer = io.StringIO(); _ = buffer.write('abc')", "buffer.getvalue()", "abc"),
    ("import ctypes; raw = ctypes.create_string_buffer(b'abc', 10)", "raw.value == b'abc'", True),
    ("struct_ = type('P', (ctypes.Structure,), {'_fields_': [('x', ctypes.c_int)]})(7)", "struct_.x", 7),
    ("callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: n + 1)", "callback(1)", 2),
    ("import re; pattern = re.compile('a(b+)')", "pattern.match('abb').group(1)", "bb"),
    ("import random; dice = random.Random(1)", "isinstance(dice.random(), float)", True),
    ("import sys; sys.setrecursionlimit(4321)", "sys.getrecursionlimit()", 4321),
    ("import os; os.environ['MINE'] = 'x'", "os.environ['MINE']", "x"),
    ("import json; json.dumps_ = json.dumps; json.patched = True", "json.patched", True),
    ("import weakref\nclass Target: pass\ntarget = Target(); weak = weakref.ref(target)", "weak() is target", True),
    ("import asyncio\nasync def later():\n    await asyncio.sleep(0.01)\n    return 5\ntask = asyncio.ensure_future(later()) if False else None", "await later()", 5),
    ("import contextvars; var = contextvars.ContextVar('var'); token = var.set(3)", "var.get(None) in (3, None)", True),
    ("import array; numbers = array.array('d', [1.5] * 1000)", "numbers[999]", 1.5),
    ("import zlib; packer = zlib.compressobj(); head = packer.compress(b'a' * 1000)", "len(zlib.decompress(head + packer.flush()))", 1000),
    ("import hashlib; digest = hashlib.sha256(b'a')", "digest.update(b'b') or digest.hexdigest()[:8]", "fb8e20fc"),
    ("import sqlite3; base = sqlite3.connect(':memory:'); _ = base.execute('create table t (x)'); _ = base.execute('insert into t values (7)')", "base.execute('select x from t').fetchone()[0]", 7),
    ("import threading; lock = threading.Lock(); lock.acquire()", "lock.locked()", True),
    ("local = threading.local(); local.x = 3", "local.x", 3),
    ("import tempfile; temporary = tempfile.TemporaryFile(); _ = temporary.write(b'abc'); _ = temporary.flush()", "temporary.seek(0) or temporary.read().decode()", "abc"),
    ("file = open('/tmp/durable-state-%d.txt' % os.getuid(), 'w+'); _ = file.write('hello'); file.flush()", "file.tell()", 5),
    ("import types; module = types.ModuleType('made'); module.x = 5; sys.modules['made'] = module", "__import__('made').x", 5),
    ("import warnings; warnings.filterwarnings('ignore', 'mine')", "any('mine' in str(f[1]) for f in warnings.filters)", True),
    ("import string; sys.displayed = 1", "sys.displayed", 1),
    ("code = compile('1 + 1', 'x', 'eval')", "eval(code)", 2),
    ("error = ValueError('kept')", "str(error)", "kept"),
    ("try:\n    1 / 0\nexcept ZeroDivisionError as exc:\n    trace = exc.__traceback__", "trace.tb_lineno > 0", True),
    ("import operator; getter = operator.itemgetter(1)", "getter([1, 2])", 2),
    ("import struct; packed = struct.Struct('<I')", "packed.pack(1)[0]", 1),
    ("class Meta(type):\n    def __call__(cls): return 9\nclass Odd(metaclass=Meta): pass", "Odd()", 9),
    ("class Managed:\n    def __enter__(self): return 3\n    def __exit__(self, *a): pass\nmanaged = Managed()", "managed.__enter__()", 3),
    ("import heapq; heap = []; heapq.heappush(heap, 2); heapq.heappush(heap, 1)", "heap[0]", 1),
    ("def coroutine():\n    total = 0\n    while True:\n        total += yield total\nsent = coroutine(); next(sent); _ = sent.send(4)", "sent.send(3)", 7),
    ("sys.path.append('/nowhere')", "'/nowhere' in sys.path", True),
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "saved"


def saved_session(place, executor, code, **options):
    """The id of a session that was saved after this code, and closed."""
    with Session(None, executor, saved=place, **options) as session:
        session.run(code).raise_for_error()
        return session.hibernate()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_carried(executor, place):
    assert len(STATES) >= 60
    with Session(None, executor, saved=place) as session:
        for code, _, _ in STATES:
            session.run(code).raise_for_error()
        answer = session.hibernate()
    assert answer.not_carried == []
    with Session.wake(answer.session_id, place, None, executor) as session:
        for code, expression, value in STATES:
            result = session.run(expression)
            assert result.error is None and result.value == value, (code, result)
        session.run("file.close(); os.unlink(file.name)").raise_for_error()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_next_use_wakes_it(executor, place):
    with Session(None, executor, saved=place) as session:
        session.run("x = [1]")
        first = session.run("__import__('os').getpid()").value
        answer = session.hibernate()
        assert executor == "sandbox" or not os.path.exists("/proc/%d" % first)
        assert session.hibernate().session_id == answer.session_id  # it is asleep already
        for n in range(3):
            assert session.run("x.append(%d) or len(x)" % n).value == n + 2
            session.hibernate()
        assert session.run("x").value == [1, 0, 1, 2]


def test_a_heap_of_huge_pages_goes_on_growing(place):
    """What the kernel knows of its heap is carried with the heap."""
    with Session(saved=place, executor="sandbox") as session:
        session.run("rows = [bytes([i % 251]) * 1000 for i in range(80_000)]\ntexts = ['%d' % i + 'x' * 40 for i in range(1_000_000)]").raise_for_error()
        session.hibernate()
        more = session.run("more = [bytes([i % 251]) * 1000 for i in range(40_000)]; words = ['%d' % i + 'y' * 40 for i in range(500_000)]\n"
                           "len(rows), sum(map(len, rows)), texts[-1][:6], more[-1][:1], words[-1][:6]")
        assert more.value == (80_000, 80_000_000, "999999", bytes([39_999 % 251]), "499999")
        with session.fork() as fork:
            assert fork.run("del rows, texts; again = [bytes(700) for _ in range(100_000)]; len(again)").value == 100_000
        assert session.run("len(rows) + len(texts)").value == 1_080_000


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_not_carried_is_named(executor, place):
    code = """
import os, socket, subprocess, threading
s, t = socket.socketpair()
p = subprocess.Popen(['sleep', '1000'])
stop = threading.Event(); worker = threading.Thread(target=stop.wait, name='worker', daemon=True); worker.start()
r, w = os.pipe()
x = 5
"""
    answer = saved_session(place, executor, code)
    named = {(each.kind, variable) for each in answer.not_carried for variable in each.variables}
    assert {("socket", "s"), ("socket", "t"), ("process", "p"), ("thread", "worker")} <= named
    assert [each.kind for each in answer.not_carried].count("pipe") == 2
    with Session.wake(answer.session_id, place, None, executor) as session:
        first = session.run("x")
        assert first.value == 5 and len(first.notices) == len(answer.not_carried)
        assert any("socket" in text and "of s" in text for text in first.notices)
        assert session.run("x").notices == []


def test_files_of_its_own_that_are_too_many_are_named(place):
    answer = saved_session(place, "sandbox", "open('/tmp/large', 'wb').write(bytes(65 << 20)); open('/tmp/small', 'w').close(); x = 1", saved_sync=False)
    assert [(each.kind, each.name) for each in answer.not_carried] == [("files", "in /tmp: more than 64 MB")]
    with Session.wake(answer.session_id, place, None, "sandbox") as session:
        first = session.run("import os; x, os.path.exists('/tmp/large'), os.path.exists('/tmp/small')")
        assert first.value == (1, False, False) and any("files in /tmp" in text for text in first.notices)


def test_files_of_its_own_that_cannot_be_carried_are_named(place):
    answer = saved_session(place, "sandbox", """
import os, socket
s = socket.socket(socket.AF_UNIX); s.bind('/tmp/socket'); s.close()
os.mkdir('/tmp/locked'); os.chmod('/tmp/locked', 0); open('/tmp/kept', 'w').close()
for n in range(20): os.close(os.open('/dev/shm/f%02d' % n, os.O_CREAT, 0))
""")
    named = [(each.kind, each.name) for each in answer.not_carried]
    assert {("socket", "/tmp/socket"), ("folder", "/tmp/locked (Permission denied)")} <= set(named), named
    assert ("file", "/dev/shm/f00 (Permission denied)") in named or ("file", "/dev/shm/f19 (Permission denied)") in named
    assert named[-1] == ("more", "6 other files") and len(named) == 17
    with Session.wake(answer.session_id, place, None, "sandbox") as session:
        first = session.run("sorted(os.listdir('/tmp'))")
        assert {"kept", "locked"} <= set(first.value) and "socket" not in first.value and any("socket /tmp/socket" in text for text in first.notices)


def names_of(session):
    return [each.name for each in session.points()]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("key", [None, KEY])
def test_points_are_saved_where_that_is_asked_for(executor, key, place):
    with Session(None, executor, saved=place, saved_key=key, undo=2) as session:
        for n in range(3):
            session.run("x = %d; rows = [x] * 5000" % n).raise_for_error()
            session.checkpoint("after %d" % n)
        kept = names_of(session)
        assert "after 0" in kept and len(kept) == 5
        answer = session.hibernate(points=True)
        assert answer.points == kept and answer.not_carried == []
        assert names_of(session) == []  # it is asleep
        session.rewind("after 1") if session.run("x").value == 2 else None
        assert session.run("x, len(rows)").value == (1, 5000)
        session.run("x = 9")
        session.checkpoint("later")
        answer = session.hibernate(points=True)
        assert {"after 0", "after 1", "after 2", "later"} < set(answer.points)
    with Session.wake(answer.session_id, place, None, executor, saved_key=key, undo=2) as session:
        session.rewind(cells=1)  # to the point that undo kept before the last cell
        assert session.run("x").value == 1
        session.rewind("later")
        assert {"after 0", "after 1", "after 2", "later"} < set(names_of(session)) and session.run("x").value == 9
        with session.fork(point="after 2") as fork:
            assert fork.run("x, len(rows), rows[0]").value == (2, 5000, 2)
        session.rewind("after 0")
        assert session.run("x, rows[-1]").value == (0, 0)
        session.rewind("later")
        assert session.run("x").value == 9
        answer = session.hibernate()
        assert answer.points == [] and {(each.kind, each.name) for each in answer.not_carried} >= {("point", "later"), ("point", "after 0")}
        first = session.run("x")
        assert first.value == 9 and any("point later" in text for text in first.notices)


def test_points_of_a_layer_are_saved_with_their_files(place):
    with Session(None, in_a_layer(), saved=place) as session:
        for n in range(2):
            session.run("open('file', 'w').write('%d' * %d); x = %d" % (n, n + 1, n)).raise_for_error()
            session.checkpoint("p%d" % n)
        session.run("import os; os.unlink('file'); x = 2").raise_for_error()
        answer = session.hibernate(points=True)
    with Session.wake(answer.session_id, place, None, in_a_layer()) as session:
        assert session.run("import os; x, os.listdir()").value == (2, [])
        session.rewind("p0")
        assert session.run("x, open('file').read()").value == (0, "0")
        answer = session.hibernate(points=True)
        session.run("x")
        session.rewind("p1")
        assert session.run("x, open('file').read()").value == (1, "11")


def test_more_points_than_are_saved(place):
    with Session(None, "sandbox", saved=place, saved_points=True, saved_sync=False) as session:
        for n in range(34):
            session.run("x = %d" % n).raise_for_error()
            session.checkpoint("p%d" % n)
        answer = session.hibernate()
        assert answer.points == ["p%d" % n for n in range(33, 1, -1)]
        assert [(each.kind, each.name) for each in answer.not_carried] == [("point", "p1"), ("point", "p0")]
        session.rewind("p2") if session.run("x").value == 33 else None
        assert session.run("x").value == 2


def test_a_reset_leaves_the_saved_state(place):
    with Session(None, "subprocess", saved=place) as session:
        session.run("x = 1")
        session.hibernate()
        session.reset()
        assert session.run("'x' in globals()").value is False


@pytest.mark.parametrize("executor", EXECUTORS)
def test_awake_elsewhere(executor, place):
    with Session(None, executor, saved=place) as session:
        session.run("x = 1")
        answer = session.hibernate()
        assert session.run("x").value == 1
        other = Session.wake(answer.session_id, place, None, executor)
        with pytest.raises(ConflictError, match="awake at .*:%d" % os.getpid()):
            other.run("x")
        session.hibernate()
        with Session.wake(answer.session_id, place, None, executor, saved_host="other", saved_url="http://other:1") as other:
            assert other.run("x += 1; x").value == 2  # it sleeps in the first one
            with pytest.raises(ConflictError, match=r"awake at other \(http://other:1\)"):
                session.run("x")
            other.hibernate()
        assert session.run("x").value == 2  # as the other one left it
        session.hibernate()
        with Session.wake(answer.session_id, place, None, executor) as other:
            assert other.run("x").value == 2
            session.reset()  # its new kernel has the id of a session that is awake elsewhere
            with pytest.raises(ConflictError):
                session.run("x = 3")
        assert session.run("'x' in globals()").value is False


def test_only_its_owner_and_workspace(place, tmp_path):
    answer = saved_session(place, "subprocess", "x = 1")
    (tmp_path / "other").mkdir()
    os.chdir(tmp_path / "other")
    with pytest.raises(WakeError, match="working directory") as caught:
        Session.wake(answer.session_id, place, None, "subprocess").run("x")
    assert caught.value.code == "differs"
    os.chdir(tmp_path / "work")
    with pytest.raises(WakeError, match="executor"):
        Session.wake(answer.session_id, place, None, "sandbox").run("x")
    with pytest.raises(Exception, match="no saved session .* check its id"):
        Session.wake("0" * 32, place, None, "subprocess").run("x")
    with pytest.raises(ValueError, match="not the id"):
        Session.wake("../escape", place, None, "subprocess").run("x")


def test_with_a_key(place):
    answer = saved_session(place, "subprocess", "secret = 'SECRET-' + 'x' * 100", saved_key=KEY)
    for path in glob.glob(str(place / "*" / "*")):
        with open(path, "rb") as file:
            assert b"SECRET-" not in file.read()
    with pytest.raises(WakeError, match="none is given"):
        Session.wake(answer.session_id, place, None, "subprocess").run("1")
    with pytest.raises(WakeError, match="another key"):
        Session.wake(answer.session_id, place, None, "subprocess", saved_key=KEY[::-1]).run("1")
    with pytest.raises(ValueError, match="64 hexadecimal"):
        Session.wake(answer.session_id, place, None, "subprocess", saved_key="abc").run("1")
    with Session.wake(answer.session_id, place, None, "subprocess", saved_key=KEY) as session:
        assert session.run("len(secret)").value == 107


@pytest.mark.parametrize("key", [None, KEY])
def test_files_that_were_changed(place, key, tmp_path):
    answer = saved_session(place, "sandbox", "x = list(range(100000))", saved_key=key)
    home = place / answer.session_id
    shutil.copytree(place, tmp_path / "copy")
    for path in sorted(os.listdir(home)):
        if path == "lock":
            continue
        size = os.path.getsize(home / path)
        for at in (0, 9, 40, 70, size // 2, size - 1):
            with open(home / path, "r+b") as file:
                file.seek(at)
                old = file.read(1)
                file.seek(at)
                file.write(bytes([old[0] ^ 1]))
            try:
                session = Session.wake(answer.session_id, place, None, "sandbox", saved_key=key)
                if path == "state" and 9 <= at < 16:
                    continue  # unused bytes of its head
                with pytest.raises(WakeError) as caught:
                    session.run("x")
                assert caught.value.code in ("damaged", "differs")
            finally:
                with open(home / path, "r+b") as file:
                    file.seek(at)
                    file.write(old)
        os.truncate(home / path, size - 1)
        with pytest.raises(WakeError):
            Session.wake(answer.session_id, place, None, "sandbox", saved_key=key).run("x")
        shutil.copy(tmp_path / "copy" / answer.session_id / path, home / path)
    with Session.wake(answer.session_id, place, None, "sandbox", saved_key=key) as session:
        assert session.run("len(x)").value == 100000


def test_a_session_in_the_place_of_another(place):
    mine, other = (saved_session(place, "subprocess", "x = %d" % n).session_id for n in (1, 2))
    shutil.rmtree(place / mine)
    shutil.copytree(place / other, place / mine)
    with pytest.raises(WakeError, match="another one"):
        Session.wake(mine, place, None, "subprocess").run("x")


@pytest.mark.parametrize("key", [None, KEY])
def test_an_older_save_that_was_put_back(place, key, tmp_path):
    """As a whole it is a save as any other, which the docs say; parts of two saves are refused."""
    with Session(None, "subprocess", saved=place, saved_key=key) as session:
        session.run("x = 1")
        home = place / session.hibernate().session_id
        shutil.copytree(home, tmp_path / "older")
        session.run("x = 2")
        session.hibernate()

    def woken():
        with Session.wake(home.name, place, None, "subprocess", saved_key=key) as session:
            return session.run("x").value

    newer = (home / "state").read_bytes()
    (old,), (new,) = ([each.name for each in folder.glob("p-*")] for folder in (tmp_path / "older", home))
    shutil.copy(tmp_path / "older" / "state", home / "state")
    with pytest.raises(WakeError, match="p-|damaged|No such"):
        woken()
    shutil.copy(home / new, home / old)
    with pytest.raises(WakeError, match="damaged"):
        woken()
    (home / "state").write_bytes(newer)
    shutil.copy(tmp_path / "older" / old, home / new)
    with pytest.raises(WakeError, match="damaged"):
        woken()
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "older", home)
    assert woken() == 1


RACES = """
import ctypes, mmap, os
fd = os.memfd_create('moving')
os.truncate(fd, 64 << 20)
shared, moving = mmap.mmap(-1, 1 << 20), mmap.mmap(fd, 64 << 20)
moving[:] = bytes(64 << 20)
child = os.fork()
if child == 0:
    while True:
        for n in range(0, 1 << 20, 4096):
            shared[n:n + 8] = os.urandom(8)
        os.truncate(fd, 4096)
        os.truncate(fd, 64 << 20)
x = 5
"""


@pytest.mark.parametrize("executor", EXECUTORS)
def test_memory_that_changes_while_it_is_saved(executor, place):
    """A process of the session's own takes away pages that are being read: the save fails, or what was saved wakes."""
    with Session(None, executor, saved=place, saved_sync=False) as session:
        session.run(RACES).raise_for_error()
        for _ in range(3):
            try:
                answer = session.hibernate()
            except (CodeModeError, OSError):
                assert session.run("x").value == 5
                continue
            assert [each for each in answer.not_carried if each.kind == "process"]
            break
        assert session.run("x").value == 5


def test_links_are_not_followed(place, tmp_path):
    answer = saved_session(place, "subprocess", "x = 1")
    state = place / answer.session_id / "state"
    os.rename(state, tmp_path / "state")
    os.symlink(tmp_path / "state", state)
    with pytest.raises((OSError, CodeModeError)):
        Session.wake(answer.session_id, place, None, "subprocess").run("x")


def test_no_file_of_a_session_is_anything_else(place, tmp_path):
    """A pipe that nobody writes to, a folder, a link, the same file of another session: refused at once, and the session is not harmed."""
    mine, other = (saved_session(place, "sandbox", "x = %d" % n, saved_sync=False).session_id for n in (1, 2))
    home, aside = place / mine, tmp_path / "aside"
    names = {name: next(each for each in os.listdir(place / other) if each[:2] == name[:2]) for name in os.listdir(home)}
    assert len(names) == 3
    for name, same in names.items():
        for put in (os.mkfifo, os.mkdir, lambda path: os.symlink(aside, path), lambda path: shutil.copy(place / other / same, path)):
            os.rename(home / name, aside)
            put(home / name)
            if name != "lock" or not os.path.isfile(home / name) or os.path.islink(home / name):
                with pytest.raises((WakeError, OSError, CodeModeError)):
                    Session.wake(mine, place, None, "sandbox").run("x")
            (os.rmdir if os.path.isdir(home / name) else os.unlink)(home / name)
            os.rename(aside, home / name)
    with Session.wake(mine, place, None, "sandbox") as session:
        assert session.run("x").value == 1


def test_forks_outlive_the_sleep_of_their_source(place):
    """They map its files, too, which are shortened when it sleeps; their memory still grows."""
    with Session(None, "sandbox", saved=place, saved_sync=False) as session:
        session.run("data = bytearray(range(256)) * 40000").raise_for_error()
        session.hibernate()
        session.run("data[5] = 1")
        with session.fork() as fork:
            session.hibernate()
            grown = fork.run("data.extend(bytes(60 << 20)); data[-1] = 7; more = bytearray(data); len(more), more[300], more[-1]")
            assert grown.value == (10_240_000 + (60 << 20), 44, 7), grown
        assert session.run("len(data), data[5]").value == (10_240_000, 1)
        session.hibernate()  # nobody maps them any more: they end where their content ends
        assert max(os.path.getsize(path) for path in glob.glob(str(place / "*" / "*"))) < 1 << 30


def test_a_folder_that_others_can_write_to(place):
    place.mkdir(mode=0o700)
    os.chmod(place, 0o777)
    with Session(None, "subprocess", saved=place) as session:
        session.run("x = 1")
        with pytest.raises(ValueError, match="other users can write"):
            session.hibernate()
        assert session.run("x").value == 1


def test_code_cannot_write_to_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match="folder of saved sessions"):
        Session(None, workcell.SandboxExecutor(workcell.SandboxConfig(workspace_mode="rw")), saved=tmp_path / "saved").run("1")


def test_executors_that_cannot(place):
    with Session(None, "inprocess", saved=place) as session:
        session.run("x = 1")
        with pytest.raises(UnsupportedError, match="cannot save"):
            session.hibernate()
    with Session(None, "subprocess") as session:
        session.run("x = 1")
        with pytest.raises(ValueError, match="saved_dir"):
            session.hibernate()
    with pytest.raises(UnsupportedError):
        Session.wake("0" * 32, place, None, "inprocess").run("1")


SAVES = """
import os, sys
sys.path.insert(0, %r)
from workcell.sync import Session
session = Session.wake(sys.argv[1], sys.argv[2], None, "subprocess")
session.run("x = [len(x) + 1] * (len(x) + 1)")
print("saving", flush=True)
while True:
    session.hibernate()
    session.run("x = [len(x) + 1] * (len(x) + 1)")
"""


def test_killed_at_any_step(place):
    """An old or a new session, never half of one, and nothing locked."""
    answer = saved_session(place, "subprocess", "x = []")
    site = os.path.dirname(os.path.dirname(sys.modules["workcell"].__file__))
    seen = 0
    for n in range(3):
        child = subprocess.Popen([sys.executable, "-c", SAVES % site, answer.session_id, str(place)], stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"saving\n"
        try:
            child.wait(0.026 * n)
        except subprocess.TimeoutExpired:
            pass
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with Session.wake(answer.session_id, place, None, "subprocess") as session:
            x = session.run("x").value
            assert x == [len(x)] * len(x) and len(x) >= seen
            seen = len(x)
            session.hibernate()
        names = set(os.listdir(place / answer.session_id))
        assert {"lock", "state"} <= names and len(names) == 3


@pytest.mark.parametrize("executor", EXECUTORS + ["inprocess"])
def test_variables(executor, place):
    """Of hostile classes too, and without running their code."""
    code = """
ran = []
class Meta(type):
    @property
    def __name__(cls): ran.append(1); return 'x'
    def __eq__(cls, other): ran.append('eq'); return True
    def __hash__(cls): ran.append('hash'); return 1
class Hostile(metaclass=Meta):
    def __getattribute__(self, name): ran.append(name); raise SystemExit
    def __repr__(self): ran.append('repr'); return 'x'
    __len__ = __sizeof__ = __iter__ = __hash__ = __str__ = __repr__
odd = object.__new__(Hostile)
rows, table, several = [odd, 1], {'a': odd, 'b': [1]}, (1, 2.5, None, True, b'x')
many = list(range(100))
"""
    with Session(None, executor, saved=place if executor != "inprocess" else None) as session:
        assert not [each for each in session.list_variables() if each.name.endswith("Error")], "exceptions of ours are not variables"
        session.run(code).raise_for_error()
        found = {each.name: each for each in session.list_variables()}
        assert session.run("ran").value == []
        assert found["several"].preview == "(1, 2.5, None, True, b'x')" and found["several"].type == "tuple"
        assert found["rows"].preview == "[<Hostile>, 1]" and found["table"].preview == "{'a': <Hostile>, 'b': list of 1}"
        assert "100" in found["many"].preview and len(found["many"].preview) < 121
        assert found["odd"].type == "Hostile" and found["odd"].preview == "" and found["odd"].size > 0
        session.run("for n in range(2000): globals()['v%d' % n] = n")
        assert len(session.list_variables()) == 1000


def wait_until(made):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = made()
        if found is not None:
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come")


def killed_program(code):
    """What a program printed that was killed, with all its processes, in the middle of its last cell."""
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    lines = []
    while not lines or lines[-1] != "running":
        lines.append(program.stdout.readline().strip())
        assert lines[-1], "it has ended"
    program.kill()
    program.wait()
    program.stdout.close()
    return lines


DURABLE = """
import sys
sys.path[:0] = %r
from workcell.sync import Session
session = Session(None, %r, saved=%r, durable=%r)
session.start()
print(session.session_id, flush=True)
for n in range(5):
    result = session.run("x = %%d; rows = list(range(x * 100000)); x" %% n)
    print(result.value, result.durable, flush=True)
session.run("print('begun', flush=True); x = 'half'; import time; time.sleep(100)", on_event=lambda event: print("running", flush=True))
"""


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("mode", ["cells", "results"])
def test_a_program_that_is_killed(executor, mode, place):
    lines = killed_program(DURABLE % (sys.path, executor, str(place), mode))
    assert lines[1:-1] == ["%d %s" % (n, mode == "results") for n in range(5)]

    def woken():
        try:
            session = Session.wake(lines[0], place, None, executor)
            session.start()
            return session
        except ConflictError:
            return None  # its processes have not ended yet

    with wait_until(woken) as session:
        n = session.run("x").value
        assert n == 4 if mode == "results" else n in (3, 4)  # a result that was not saved yet said so
        assert session.run("len(rows)").value == n * 100000


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("mode", ["cells", "results"])
def test_a_kernel_that_dies_goes_on_as_it_was_saved(executor, mode, place):
    events = []
    with Session(None, executor, saved=place, durable=mode, on_branch=events.append) as session:
        for n in range(3):
            assert session.run("x = %d" % n).durable is (mode == "results")
        for _ in range(2):
            result = session.run("x = 'half'; import os; os.kill(os.getpid(), 9)")
            assert result.error_info.code == "kernel_died" and result.state == "restored" and not result.durable
            assert session.run("x").value == 2
        session.reset()
        assert "NameError" in str(session.run("x").error)
        wake = session.session_id
    with Session.wake(wake, place, None, executor) as session:
        assert "NameError" in str(session.run("x").error)  # not as it was before the reset


DIES_LATER = """
import os, threading, time
def wait():
    while not os.path.exists("die"):
        time.sleep(0.01)
    os._exit(3)
threading.Thread(target=wait, daemon=True).start()
"""


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_kernel_that_dies_between_two_cells(executor, place):
    events = []

    def die():
        count = len(events)
        with open("die", "w", encoding="ascii"):
            wait_until(lambda: [event for event in events[count:] if event.kind == "restored"] or None)
        os.remove("die")

    with Session(None, executor, saved=place, durable="results", on_branch=events.append) as session:
        session.run("x = 41").raise_for_error()
        assert session.run(DIES_LATER).durable
        die()
        result = session.run("x += 1; x")
        assert result.value == 42 and result.durable
        assert any(notice == "between two cells the kernel exited with status 3; the session is as it was saved last" for notice in result.notices), result.notices
        session.reset()
        assert session.run(DIES_LATER).durable
        die()
        assert "NameError" in str(session.run("x").error)  # not as it was before the reset


def saved_cells(place, session):
    """How many cells the session on the disk has seen."""
    return json.loads((place / session.session_id / "state").read_bytes()[64:])["cells"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_cells_in_a_long_row_are_saved_together(executor, place):
    """They do not wait for each other's saves; the last is saved in the next pause, and what a kernel that dies takes with it is told."""
    events = []
    with Session(None, executor, saved=place, durable="cells", on_branch=events.append) as session:
        def run_many():
            for _ in range(400):
                session.run("x += 1")

        session.run("x = 0")
        run_many()
        assert 1 < [event.kind for event in events].count("saved") < 300
        wait_until(lambda: saved_cells(place, session) == 401 or None)  # without another cell
        result = session.run("import os; os._exit(1)")
        assert result.state == "restored" and not any("lost" in notice for notice in result.notices)
        session.run("assert x == 400; x += 1").raise_for_error()
        run_many()
        result = session.run("import os; os._exit(1)")
        assert result.state == "restored"
        numbers = [int(word) for notice in result.notices if "faster than they could be saved" in notice for word in notice.split() if word.isdigit()]
        lost = numbers[-1] - numbers[0] + 1 if numbers else 0
        assert session.run("x").value == 801 - lost
        assert not numbers or numbers[-1] == 802, "the one before the cell that died"
        run_many()
        wake = session.session_id
    with Session.wake(wake, place, None, executor) as session:
        assert session.run("x").value == 1201 - lost  # closed right after its last cell


def test_a_row_is_saved_now_and_then(place):
    """However long saves hold up cells: not later than with the cell that ends LAG_MS after the last saved one."""
    events = []
    with Session(None, "subprocess", saved=place, durable="cells", on_branch=events.append) as session:
        session.run("import time; rows = bytes(200 << 20)")
        for _ in range(12):
            session.run("x = 1")
        events.clear()
        end = time.monotonic() + 60
        while time.monotonic() < end and sum(event.kind == "saved" for event in events) < 2:
            session.run("end = time.monotonic() + 0.02\nwhile time.monotonic() < end: pass")
        assert sum(event.kind == "saved" for event in events) >= 2


ON_ANOTHER_MACHINE = """
import sys
sys.path[:0] = %r
from workcell import CodeModeError, SandboxConfig, SandboxExecutor, SubprocessConfig, SubprocessExecutor
from workcell.sync import Session
executor, saved, python, session_id, code = sys.argv[1:]
made = SandboxExecutor(SandboxConfig(python=python)) if executor == "sandbox" else SubprocessExecutor(SubprocessConfig(python=python))
try:
    with Session(None, made, saved=saved, resume=session_id or None) as session:
        result = session.run(code).raise_for_error()
        print(session.hibernate().session_id, result.value)
except CodeModeError as exc:
    print(exc.code, exc)
"""


@pytest.mark.parametrize("executor", EXECUTORS)
def test_files_are_known_by_what_they_contain(executor, place):
    """As on another machine, where the same files have other inodes; files that differ are named."""
    import _lsprof

    subprocess.run([sys.executable, "-m", "venv", "--copies", "--without-pip", str(place.parent / "tree")], check=True)
    python = str(place.parent / "tree" / "bin" / "python")
    library = os.path.abspath(os.path.basename(_lsprof.__file__))
    shutil.copy(_lsprof.__file__, library)
    with open("data", "wb") as file:
        file.write(bytes(range(256)) * 64)

    def run(session_id, code):
        line = [sys.executable, "-c", ON_ANOTHER_MACHINE % (sys.path,), executor, str(place), python, session_id, code]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split(None, 1)

    def copy(path, change=lambda content: content):
        """Another file with the same name."""
        with open(path, "rb") as file:
            content = file.read()
        with open(path + ".new", "wb") as file:
            file.write(change(content))
        shutil.copymode(path, path + ".new")
        inode = os.stat(path).st_ino
        os.replace(path + ".new", path)
        assert os.stat(path).st_ino != inode
        return content

    code = ("import mmap, sys; sys.path.insert(0, %r); import _lsprof; profiler = _lsprof.Profiler(); n = 40\n"
            "file = open(%r, 'rb'); view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); _lsprof.__file__" % (os.getcwd(), os.path.abspath("data")))
    session_id, loaded = run("", code)
    assert loaded.strip() == library
    ask = "n += 1; profiler.enable(); profiler.disable(); (n, view[300], len(profiler.getstats()) > 0)"
    assert run(session_id, ask)[1].strip() == "(41, 44, True)"
    for path in (os.path.realpath(python), library, os.path.abspath("data")):
        copy(path)
    assert run(session_id, ask)[1].strip() == "(42, 44, True)"
    assert run(session_id, ask)[1].strip() == "(43, 44, True)"  # the files that were found by their content are known since

    def flip_build_id(content):
        at = content.index(b"GNU\0", content.index(b"\x14\0\0\0\x03\0\0\0GNU\0")) + 4
        return content[:at] + bytes([content[at] ^ 1]) + content[at + 1:]

    for path, change in ((os.path.abspath("data"), lambda content: content[:-1] + b"?"), (library, flip_build_id)):
        whole = copy(path, change)
        code, message = run(session_id, ask)
        assert code == "differs" and path in message, (code, message)
        copy(path, lambda content, whole=whole: whole)
    assert run(session_id, ask)[1].strip() == "(44, 44, True)"


def test_an_image_that_cannot_be_falls_back_to_objects(place, tmp_path):
    """As with a GPU context: a file stands for its device here."""
    (tmp_path / "device").write_text("")
    code = ("device = open(%r); import importlib\nimportlib.import_module('workcell_kernel.branch').SHARED_DEVICES = (device.name,)\n"
            "x = [1, 2]; halfway = iter(x); made = (n for n in x)" % str(tmp_path / "device"))
    with Session(None, "subprocess", saved=place) as session:
        session.run(code).raise_for_error()
        with pytest.raises(CodeModeError) as caught:
            session.hibernate()
        assert caught.value.code == "cannot_fork" and session.run("x").value == [1, 2]
    with Session(None, "subprocess", saved=place, saved_form="auto") as session:
        session.run("y = 1")
        assert session.hibernate().form == "image"
        session.run(code).raise_for_error()
        answer = session.hibernate()
        assert answer.form == "portable" and "made" in {name for each in answer.not_carried for name in each.variables}
        assert session.run("x + [y]").value == [1, 2, 1]
        session.hibernate()
    with Session.wake(answer.session_id, place, None, "subprocess", saved_form="auto") as session:
        assert session.run("x + [y]").value == [1, 2, 1]


@pytest.mark.parametrize("change, says", [
    (lambda head, state: (head.replace(b"WCELLSV2", b"WCELLSV1"), state), "format 1"),
    (lambda head, state: (head, {**state, "version": 1}), "version 1 of the format"),
    (lambda head, state: (head, {**state, "build": "0.0.1"}), "another version of Workcell: 0.0.1"),
    (lambda head, state: (head, {**state, "machine": "riscv64"}), "another machine type: riscv64"),
], ids=["format", "description", "release", "machine"])
def test_sessions_of_other_versions_are_refused(place, change, says):
    answer = saved_session(place, "subprocess", "x = 1")
    path = place / answer.session_id / "state"
    bytes_ = path.read_bytes()
    head, state = change(bytes_[:32], json.loads(bytes_[64:]))
    body = json.dumps(state).encode()
    path.write_bytes(head + hashlib.sha256(body).digest() + body)
    with pytest.raises(WakeError, match=says) as caught:
        Session.wake(answer.session_id, place, None, "subprocess").run("x")
    assert caught.value.code == "differs"


def in_a_layer():
    return workcell.SandboxExecutor(workcell.SandboxConfig(workspace_mode="cow"))


FILES = """
import os
open('new.txt', 'w').write('new'); open('changed.txt', 'a').write('!'); os.remove('gone.txt')
os.makedirs('a/b'); open('a/b/deep.bin', 'wb').write(bytes(range(256)) * 5000); os.chmod('a/b/deep.bin', 0o640); os.symlink('../new.txt', 'a/link')
os.utime('new.txt', ns=(1, 123456789))
import shutil; shutil.rmtree('folder'); os.mkdir('folder'); open('folder/only', 'w').close()
opened = open('new.txt', 'r+'); opened.seek(3); x = 1
"""
SEEN = """
(sorted(os.path.join(f, n) for f, d, names in os.walk('.') for n in d + names), open('new.txt').read(), open('changed.txt').read(),
 len(open('a/b/deep.bin', 'rb').read()), os.stat('a/b/deep.bin').st_mode & 0o777, os.readlink('a/link'), os.stat('new.txt').st_mtime_ns, opened.tell(), x)
"""


@pytest.mark.parametrize("key", [None, KEY])
def test_a_layer_is_saved(place, tmp_path, key):
    work = tmp_path / "work"
    for name in ("changed.txt", "gone.txt", "kept.txt"):
        (work / name).write_text(name)
    (work / "folder").mkdir()
    (work / "folder" / "hidden").write_text("of base")
    with Session(None, in_a_layer(), saved=place, saved_key=key) as session:
        session.run(FILES).raise_for_error()
        seen = session.run(SEEN).value
        assert "./folder/hidden" not in seen[0] and "./gone.txt" not in seen[0] and seen[4] == 0o640
        answer = session.hibernate()
        assert answer.not_carried == []
        assert session.run(SEEN).value == seen  # woken in the program that saved it
        session.run("open('second', 'w').close()")
        session.hibernate()
    assert sorted(os.listdir(work)) == ["changed.txt", "folder", "gone.txt", "kept.txt"]  # the real ones
    with Session.wake(answer.session_id, place, None, in_a_layer(), saved_key=key) as session:
        again = session.run(SEEN).value
        assert again[1:] == seen[1:] and sorted(again[0]) == sorted(seen[0] + ["./second"])
        changed = {each.path: each.change for each in session.diff().files}
        assert changed["gone.txt"] == "deleted" and changed["changed.txt"] == "changed" and changed["folder/hidden"] == "deleted"
        session.commit()
    assert (work / "new.txt").read_text() == "new" and not (work / "gone.txt").exists()
    with pytest.raises(WakeError, match="saved with a layer") as caught:
        Session.wake(answer.session_id, place, None, "sandbox", saved_key=key).run("x")
    assert caught.value.code == "differs"


def test_a_layer_after_each_cell(place):
    """Memory and files are of the same moment, also after the kernel's death."""
    with Session(None, in_a_layer(), saved=place, durable="results") as session:
        for n in range(3):
            assert session.run("open('count', 'w').write('%d'); n = %d" % (n, n)).durable is True
        result = session.run("open('count', 'w').write('half'); open('other', 'w').close(); import os; os.kill(os.getpid(), 9)")
        assert result.state == "restored"
        assert session.run("import os; (open('count').read(), n, os.listdir())").value == ("2", 2, ["count"])
        wake = session.session_id
    with Session.wake(wake, place, None, in_a_layer()) as session:
        assert session.run("(open('count').read(), n)").value == ("2", 2)


def test_a_session_without_a_folder_is_not_durable(place):
    with pytest.raises(CodeModeError) as raised:
        Session(None, "subprocess", durable="cells").start()
    assert raised.value.code == "invalid"
    with pytest.raises(CodeModeError) as raised:
        Session(None, "subprocess", saved=place, durable="often").start()
    assert raised.value.code == "invalid"


def test_a_session_that_fills_its_memory_limit(place):
    """Its memory is read, not written to a file that would count as well."""
    with Session(None, workcell.SandboxExecutor(workcell.SandboxConfig(memory="300m")), saved=place, saved_sync=False) as session:
        session.run("import os; part = os.urandom(1 << 20); x = bytearray(part) * 170").raise_for_error()
        answer = session.hibernate()
        assert answer.bytes > 170 << 20 and session.run("len(x) >> 20, x.count(part)").value == (170, 170)


WITHOUT = """
import sys
sys.path.insert(0, %r)
import shim
from workcell.sync import Session
shim.take_away("process_vm_readv", "EPERM")
with Session(None, 'subprocess', saved=%r) as session:
    session.run("import random; x = random.Random(1).randbytes(3 << 20)").raise_for_error()
    session.hibernate()
    print(session.run("hash(x) == hash(random.Random(1).randbytes(3 << 20))").value)
    session.run("x = 2")
    session.hibernate()
    print(session.run("x").value)
"""


def test_where_memory_of_other_processes_may_not_be_read(place):
    tests = os.path.join(os.path.dirname(__file__), "..", "..", "tests")
    done = subprocess.run([sys.executable, "-c", WITHOUT % (os.path.abspath(tests), str(place))], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "2"], done.stderr


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_disk_that_is_full(executor, place, tmp_path):
    """A save that fails says so, changes nothing, and the session goes on."""
    small = tmp_path / "small"
    small.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m,mode=700", "tmpfs", str(small)], capture_output=True)
    if done.returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        with Session(None, executor, saved=small, durable="results") as session:
            assert session.run("x = 1").durable is True
            result = session.run("import os; rows = os.urandom(100 << 20)")
            assert result.durable is False and result.error is None and result.notices
            with pytest.raises(StorageError, match="No space"):
                session.hibernate()
            assert session.run("x").value == 1  # also its kernel waited, and goes on
            assert session.run("del rows; x = 2").durable is True
            saved = session.session_id
        with Session.wake(saved, small, None, executor) as session:
            assert session.run("x").value == 2
    finally:
        subprocess.run(["umount", str(small)], check=True)


def random_cell(dice, names):
    """Code that changes a few of the variables, and what it changes in a dict of the same variables."""
    name, other = dice.choice(names), dice.choice(names)
    size = dice.choice([3, 1000, 300000])
    return dice.choice([
        "%s = list(range(%d))" % (name, size),
        "%s = {str(n): [n] for n in range(%d)}" % (name, min(size, 20000)),
        "%s = bytearray(b'%d' * %d)" % (name, dice.randrange(10), size),
        "%s = (%s, 'x' * %d)" % (name, other, size),
        "%s = (n * n for n in range(%d)); next(%s)" % (name, size, name),
        "%s = type('C', (), {'__slots__': ('a',)})(); %s.a = %d" % (name, name, size),
        "%s = None; import gc; gc.collect()" % name,
        "import array; %s = array.array('d', [0.5]) * %d" % (name, size),
        "import mmap; %s = mmap.mmap(-1, 1 << 20); %s[5:8] = b'%03d'" % (name, name, dice.randrange(999)),
    ])


SUMMARY = """
def summary(value, depth=0):
    if type(value).__name__ == "generator":
        return "generator", value.gi_frame is not None and value.gi_frame.f_locals.get("n")
    if type(value).__name__ == "C":
        return "C", value.a
    if type(value).__name__ == "mmap":
        return "mmap", value[:16].hex()
    if type(value) is tuple:
        return [summary(each) for each in value]
    if type(value).__name__ == "array":
        return "array", len(value), value[0]
    import hashlib
    return type(value).__name__, hashlib.sha256(repr(value).encode()).hexdigest()
"""


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("seed", range(3))
def test_random_sessions(executor, seed, place):
    """Whatever cells were run, and wherever it was saved in between, the session is as one that was never saved."""
    dice = random.Random(seed)
    names = ["a", "b", "c", "d"]
    key = dice.choice([None, KEY])
    options = {"saved": place, "saved_key": key, "saved_compress": dice.random() < 0.5}
    begin = SUMMARY + "a = b = c = d = None"
    ask = "[summary(each) for each in (a, b, c, d)]"
    session = Session(None, executor, durable=dice.choice([None, "cells", "results"]), **options)
    with Session(None, executor) as plain:
        try:
            for each in (plain, session):
                each.run(begin).raise_for_error()
            for _ in range(12):
                code = random_cell(dice, names)
                for each in (plain, session):
                    each.run(code).raise_for_error()
                what = dice.random()
                if what < 0.3:
                    session.hibernate()
                elif what < 0.5:
                    answer = session.hibernate()
                    session.close()
                    session = Session.wake(answer.session_id, place, None, executor, **{k: v for k, v in options.items() if k != "saved"})
                assert session.run(ask).value == plain.run(ask).value, code
        finally:
            session.close()


def test_another_version_of_the_format(place):
    """What an older release has written is refused with a code, and stays as it is."""
    answer = saved_session(place, "subprocess", "x = 1")
    state = place / answer.session_id / "state"
    new = state.read_bytes()
    body = new[64:].replace(b'"version":2', b'"version":1')
    state.write_bytes(new[:32] + hashlib.sha256(body).digest() + body)
    with pytest.raises(WakeError) as raised:
        Session.wake(answer.session_id, place, None, "subprocess").start()
    assert raised.value.code == "differs" and "version 1" in str(raised.value)
    state.write_bytes(b"WCELLSV1" + new[8:])  # the form of its head, too
    with pytest.raises(WakeError) as raised:
        Session.wake(answer.session_id, place, None, "subprocess").start()
    assert raised.value.code in ("differs", "damaged")
    state.write_bytes(new)
    with Session.wake(answer.session_id, place, None, "subprocess") as session:
        assert session.run("x").value == 1


def test_saved_sessions_are_listed_in_pages(place):
    ids = []
    for n in range(3):
        ids.insert(0, saved_session(place, "subprocess", "x = %d" % n, saved_form="portable" if n == 2 else "image").session_id)
    saved_session(place, "subprocess", "x = 1", saved_key=KEY)  # cannot be read without its key
    for page in (1, 2, 100):
        found = list(workcell.saved_sessions(place, page=page))
        assert [each.session_id for each in found] == ids, page
    assert [each.form for each in found] == ["portable", "image", "image"] and not any(each.awake for each in found)
    assert len(list(workcell.saved_sessions(place, saved_key=KEY))) == 1
    with Session.wake(ids[1], place, None, "subprocess") as session:
        session.run("x")
        assert [each.awake for each in workcell.saved_sessions(place)] == [False, True, False]
        with pytest.raises(ConflictError):
            workcell.remove_saved(ids[1], place)
    workcell.remove_saved(ids[1], place)
    assert [each.session_id for each in workcell.saved_sessions(place)] == [ids[0], ids[2]]
    assert list(workcell.saved_sessions(place.parent / "nowhere")) == []
    with pytest.raises(CodeModeError, match="at most 1000") as caught:
        next(workcell.saved_sessions(place, page=1001))
    assert caught.value.code == "invalid"
