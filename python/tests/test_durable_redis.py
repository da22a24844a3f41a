"""Saved sessions in Redis: carried, encrypted, told who has one, leases that are lost, and servers that lie or die."""
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tests"))

import spaces  # noqa: E402
import support  # noqa: E402

import workcell  # noqa: E402
from workcell import CodeModeError, ConflictError, StorageError, WakeError  # noqa: E402
from workcell.sync import Session  # noqa: E402

KEY = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def redis():
    """With WORKCELL_TEST_REDIS another program that speaks the same: Valkey."""
    server = spaces.Redis()
    yield server
    server.close()


@pytest.fixture
def place(redis, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return redis.url(tmp_path.name)


def key(tmp_path, *rest):
    return ":".join([tmp_path.name, "saved", *rest])


@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
def test_it_is_carried_in_pieces(executor, redis, place, tmp_path):
    options = {"saved_key": KEY} if executor == "sandbox" else {}
    with Session(None, executor, saved=place, **options) as session:
        session.run("import random; data = bytes(5 << 20) + random.Random(1).randbytes(3 << 20); g = iter(range(9)); next(g)")
        answer = session.hibernate()
        first = [each for each in redis.ask("KEYS", key(tmp_path, "*")) if b":p-" in each]
        assert first and sum(redis.ask("HLEN", each) for each in first) >= 8  # a megabyte each
        assert answer.stored_bytes < answer.bytes - (4 << 20)  # compressed
        assert redis.ask("TTL", first[0]) == -1 and not redis.ask("EXISTS", key(tmp_path, answer.session_id, "lease"))
        assert session.run("next(g)").value == 1  # woken here
        session.run("small = 1")
        session.hibernate()
        left = [each for each in redis.ask("KEYS", key(tmp_path, "*")) if b":p-" in each]
        named = set(left) & set(first)
        assert bool(named) == (executor == "sandbox")  # a sandbox saves what changed, and keeps the rest
    with Session.wake(answer.session_id, place, None, executor, **options) as session:
        assert session.run("next(g), len(data), small").value == (2, 8 << 20, 1)


@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
def test_points_are_carried(executor, redis, place, tmp_path):
    with Session(None, executor, saved=place, saved_key=KEY) as session:
        for n in range(2):
            session.run("x = %d; rows = [%d] * 100000" % (n, n))
            session.checkpoint("p%d" % n)
        session.run("x = 9")
        answer = session.hibernate(points=True)
        assert answer.points == ["p1", "p0"]
    with Session.wake(answer.session_id, place, None, executor, saved_key=KEY) as session:
        assert session.run("x").value == 9
        for n in (0, 1):
            session.rewind("p%d" % n)
            assert session.run("x, rows[-1]").value == (n, n)
        session.hibernate()
        assert session.run("x").value == 1
    workcell.remove_saved(answer.session_id, place, saved_key=KEY)
    assert redis.ask("KEYS", key(tmp_path, "*p-*")) == []


def test_it_is_told_who_has_it(redis, place, tmp_path):
    with Session(None, "subprocess", saved=place, saved_host="first", saved_url="https://first.example:8443") as session:
        session.run("x = 1")
        answer = session.hibernate()
        number = int(redis.ask("HGET", key(tmp_path, answer.session_id), "fence"))
        assert session.run("x").value == 1
        assert int(redis.ask("HGET", key(tmp_path, answer.session_id), "fence")) == number + 1
        with pytest.raises(ConflictError, match=r"awake at first \(https://first.example:8443\)"):
            Session.wake(answer.session_id, place, None, "subprocess").run("x")
    with Session.wake(answer.session_id, place, None, "subprocess") as session:  # closing gives it back
        assert session.run("x").value == 1


def test_of_many_that_wake_it_one_wins(place):
    with Session(None, "subprocess", saved=place) as session:
        session.run("x = 1")
        answer = session.hibernate()
    sessions = [Session.wake(answer.session_id, place, None, "subprocess") for _ in range(4)]
    seen = []

    def use(session):
        try:
            seen.append(session.run("x").value)
        except ConflictError as error:
            seen.append("awake at" in str(error))

    threads = [threading.Thread(target=use, args=(each,)) for each in sessions]
    [each.start() for each in threads]
    [each.join() for each in threads]
    for each in sessions:
        each.close()
    assert sorted(map(str, seen)) == ["1", "True", "True", "True"]


def stolen(redis, name, holder="0" * 32):
    """What another program does that takes the session after the lease has expired."""
    redis.ask("DEL", name + ":lease")
    redis.ask("HINCRBY", name, "fence", 1)
    redis.ask("HSET", name, "holder", holder, "name", "thief", "url", "http://thief")
    redis.ask("SET", name + ":lease", holder)


def test_a_stale_holder_is_refused(redis, place, tmp_path):
    with Session(None, "subprocess", saved=place) as session:
        session.run("x = 1")
        answer = session.hibernate()
        session.run("x = 2")
        name = key(tmp_path, answer.session_id)
        before = redis.ask("HGET", name, "state")
        stolen(redis, name)
        with pytest.raises(ConflictError, match=r"thief \(http://thief\)"):
            session.hibernate()
        assert redis.ask("HGET", name, "state") == before
        with pytest.raises(ConflictError):
            session.run("x")  # and its kernel has ended
    assert redis.ask("GET", name + ":lease") == b"0" * 32  # closing does not touch the lease of another one


def test_a_lost_lease_ends_the_kernel(redis, place, tmp_path):
    with Session(None, "subprocess", saved=place, saved_lease=1.0) as session:
        session.run("x = 1")
        answer = session.hibernate()
        pid = session.run("import os; os.getpid()").value
        stolen(redis, key(tmp_path, answer.session_id))  # the next renewal sees it
        with pytest.raises(ConflictError):
            session.run("import time; time.sleep(60)")
        support.wait_until(lambda: not os.path.exists("/proc/%d" % pid), "its kernel ends")


def test_a_server_that_does_not_answer(tmp_path):
    server = spaces.Redis()
    try:
        with Session(None, "subprocess", saved=server.url(), saved_lease=1.0) as session:
            session.run("x = 1")
            session.hibernate()
            pid = session.run("import os; os.getpid()").value
            os.kill(server.process.pid, signal.SIGSTOP)
            with pytest.raises(ConflictError):  # nobody knows who has it after the lease has expired
                session.run("import time; time.sleep(60)")
            support.wait_until(lambda: not os.path.exists("/proc/%d" % pid), "its kernel ends")
            os.kill(server.process.pid, signal.SIGCONT)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
        server.close()


def test_a_lease_is_renewed(redis, place, tmp_path):
    with Session(None, "subprocess", saved=place, saved_lease=1.0) as session:
        session.run("x = 1")
        answer = session.hibernate()
        assert session.run("import time; time.sleep(2.5); x").value == 1
        with pytest.raises(ConflictError):
            Session.wake(answer.session_id, place, None, "subprocess").run("x")


@pytest.mark.parametrize("durable", ["cells", "results"])
def test_after_a_kill_it_is_as_it_was_saved(durable, place):
    code = ("import os, sys; from workcell.sync import Session\n"
            "session = Session(None, 'subprocess', saved=%r, saved_lease=1.0, durable=%r); session.start()\n"
            "results = [session.run('x = %%d' %% n) for n in range(5)]\n"
            "print(session.session_id, [each.durable for each in results], flush=True)\nos.kill(os.getpid(), 9)" % (place, durable))
    out = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()).stdout
    session_id, flags = out.split(" ", 1)
    assert eval(flags) == [durable == "results"] * 5

    def woken():
        try:
            with Session.wake(session_id, place, None, "subprocess") as session:
                return session.run("x").value
        except ConflictError:
            return None

    found = []
    support.wait_until(lambda: found.append(woken()) or found[-1] is not None, "its lease expires")
    assert found[-1] == 4 if durable == "results" else found[-1] in range(5)


def test_changed_pieces_are_refused(redis, place, tmp_path):
    with Session(None, "subprocess", saved=place) as session:
        session.run("x = 1")
        answer = session.hibernate()
    name = key(tmp_path, answer.session_id)
    pieces = [each for each in redis.ask("KEYS", name + ":p-*")][0]
    first, state = redis.ask("HGET", pieces, "0"), redis.ask("HGET", name, "state")

    def refused(error=WakeError):
        with pytest.raises(error):
            Session.wake(answer.session_id, place, None, "subprocess").run("x")

    for changed in (first[:-1] + bytes([first[-1] ^ 1]), first[:-1], b""):
        redis.ask("HSET", pieces, "0", changed)
        refused()
    redis.ask("HDEL", pieces, "0")
    refused()
    redis.ask("HSET", pieces, "0", first)
    for changed in (state[:-1], b"", b"x" * 100, state[:40] + bytes([state[40] ^ 1]) + state[41:]):
        redis.ask("HSET", name, "state", changed)
        refused()
    redis.ask("HSET", name, "state", state)
    other = "f" * 32  # the files of one under the id of another
    redis.ask("HSET", key(tmp_path, other), "state", state)
    with pytest.raises(WakeError):
        Session.wake(other, place, None, "subprocess").run("x")
    redis.ask("DEL", name)
    redis.ask("SET", name, "a string")
    refused(StorageError)
    redis.ask("DEL", name)
    refused(CodeModeError)


def test_a_save_whose_pieces_were_evicted(redis, place, tmp_path):
    with Session(None, "sandbox", saved=place) as session:
        session.run("data = bytes(range(256)) * 40000")
        answer = session.hibernate()
        session.run("small = 1")
        name = key(tmp_path, answer.session_id)
        for each in redis.ask("KEYS", name + ":p-*"):
            redis.ask("DEL", each)
        with pytest.raises(StorageError, match="evict"):
            session.hibernate()
        assert session.run("small").value == 1  # it goes on


class Liar(threading.Thread):
    """A server that answers everything with the same bytes."""

    def __init__(self, path, answer):
        super().__init__(daemon=True)
        self.answer = answer
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(path)
        self.socket.listen(16)
        self.start()

    def run(self):
        while True:
            link, _ = self.socket.accept()
            threading.Thread(target=self.talk, args=(link,), daemon=True).start()

    def talk(self, link):
        try:
            while link.recv(1 << 16):
                if self.answer is None:
                    break
                link.sendall(self.answer)
        except OSError:
            pass
        link.close()


LIES = [b"+OK\r\n", b"*1\r\n:1\r\n", b"*2\r\n:1\r\n$1\r\nx\r\n", b"*3\r\n:0\r\n$2\r\n\x1b[\r\n$-1\r\n", b"*-1\r\n", b"*4000000000\r\n", b"$x\r\n",
        b"garbage\r\n", b"-ERR \x1b[31m\r\n", b":9223372036854775807\r\n", b"*2\r\n:7\r\n:7\r\n"]


@pytest.mark.parametrize("answer", range(len(LIES)))
def test_a_server_that_lies(answer, tmp_path):
    folder = support.temporary_folder("workcell-tests-liar-")
    path = os.path.join(folder, "s")
    Liar(path, LIES[answer])
    session = Session.wake("a" * 32, "redis+unix://" + path, None, "subprocess")
    with pytest.raises((StorageError, OSError, LookupError, ConflictError, WakeError, RuntimeError, ValueError)) as caught:
        session.run("x")
    assert "\x1b" not in str(caught.value)
    with Session(None, "subprocess", saved="redis+unix://" + path) as session:
        session.run("x = 1")
        with pytest.raises(Exception):
            session.hibernate()
        assert session.run("x").value == 1  # a save that fails changes nothing


def test_a_server_that_dies_in_a_save(tmp_path):
    server = spaces.Redis("--appendonly", "yes", "--appendfsync", "always")
    try:
        with Session(None, "subprocess", saved=server.url()) as session:
            session.run("x = 1")
            answer = session.hibernate()
            session.run("x = 2; data = bytes(range(256)) * (40 << 12)")
            ended = threading.Timer(0.02, server.process.kill)
            ended.start()
            try:
                session.hibernate()
                saved = 2
            except (StorageError, ConflictError):
                saved = None
            ended.join()
            server.process.wait()
            server.start()
        server.ask("DEL", "py_code_mode:saved:%s:lease" % answer.session_id)

        def woken():
            try:
                with Session.wake(answer.session_id, server.url(), None, "subprocess") as session:
                    return session.run("x").value
            except StorageError:  # a server that was down is left alone for a moment
                return None

        found = []
        support.wait_until(lambda: found.append(woken()) or found[-1] is not None, "the server is used again")
        assert found[-1] == 2 if saved else found[-1] in (1, 2)  # the old or the new one
    finally:
        server.close()


def value_of(session, code):
    """None: the storage is left alone for some moments, because it did not answer."""
    try:
        return session.run(code).value
    except StorageError:
        return None


def test_a_kernel_that_dies_after_a_save_that_failed(place, tmp_path):
    """It goes back to the last one that did not, and says which cells that costs."""
    server = spaces.Redis("--appendonly", "yes", "--appendfsync", "always")
    try:
        with Session(None, "subprocess", saved=server.url(), saved_lease=60, durable="results") as session:
            assert session.run("x = 41").durable
            server.process.kill()
            server.process.wait()
            assert not session.run("x = 42; y = 1").durable
            server.start()
            result = session.run("import os; os._exit(1)")
            assert result.state == "restored" and any("cell 2 is lost, too" in notice for notice in result.notices), result
            support.wait_until(lambda: value_of(session, "x") == 41, "Redis is asked again")
            assert session.run("'y' in globals()").value is False and session.run("x").durable
    finally:
        server.close()


class Relay(threading.Thread):
    """A network between a session and Redis that keeps, at a word of a command, what is sent, or its answer, and is cut then until it is healed."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.word, self.answers, self.held, self.cut, self.seen = server, None, False, None, False, []
        self.caught, self.healed = threading.Event(), threading.Event()
        self.path = os.path.join(support.temporary_folder("workcell-tests-relay-"), "s")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.path)
        self.socket.listen(16)
        self.start()

    def catch(self, word, answers=False):
        self.answers, self.word = answers, word

    def heal(self):
        self.cut = False
        self.healed.set()

    def run(self):
        while True:
            link, _ = self.socket.accept()
            threading.Thread(target=self.talk, args=(link,), daemon=True).start()

    def talk(self, link):
        with link, socket.socket(socket.AF_UNIX) as redis:
            redis.connect(self.server.socket)
            threading.Thread(target=self.return_answers, args=(redis, link), daemon=True).start()
            while not self.cut and (data := link.recv(1 << 20)) and not self.cut:
                self.seen.append(data)
                if self.word and self.word in data:
                    self.word, self.held, self.cut = None, data, True
                    if self.answers:
                        self.deliver()
                    self.caught.set()
                    return
                redis.sendall(data)

    def return_answers(self, redis, link):
        try:
            while data := redis.recv(1 << 20):
                link.sendall(data)
        except OSError:
            pass  # the other half has ended

    def deliver(self, data=None):
        """What was held comes to Redis after all; returns its answer."""
        with socket.socket(socket.AF_UNIX) as redis:
            redis.settimeout(support.DEADLINE)
            redis.connect(self.server.socket)
            redis.sendall(data or self.held)
            return redis.recv(1 << 16)


COMMIT = b"'PERSIST', KEYS[1]"  # of the script that replaces the description


def relayed(redis, tmp_path, executor):
    relay = Relay(redis)
    url = "redis+unix://%s?prefix=%s" % (relay.path, tmp_path.name)
    return relay, Session(None, executor, saved=url, saved_lease=60, durable="results")


def test_a_save_that_comes_late(redis, place, tmp_path):
    """A later one has succeeded meanwhile, and stays."""
    relay, session = relayed(redis, tmp_path, "sandbox")
    with session:
        assert session.run("x = 1").durable
        relay.catch(COMMIT)
        assert not session.run("x = 2").durable
        assert relay.caught.is_set()
        relay.heal()
        support.wait_until(lambda: session.run("x = 3").durable, "Redis is asked again")
        name = key(tmp_path, session.session_id)
        before = redis.ask("HGET", name, "state")
        assert relay.deliver() == b"*1\r\n:-2\r\n"
        for data in [each for each in relay.seen if b":p-" in each and COMMIT not in each]:
            relay.deliver(data)  # pieces that come twice
        assert redis.ask("HGET", name, "state") == before
        wake = session.session_id
    for each in redis.ask("KEYS", name + ":p-*"):
        if redis.ask("TTL", each) >= 0:
            redis.ask("DEL", each)  # what would have ended by itself
    with Session.wake(wake, place, None, "sandbox") as session:
        assert session.run("x").value == 3


def test_a_save_whose_answer_is_lost(redis, place, tmp_path):
    """It was carried out, and the files of the one before are gone: the session goes on with it, and the next one is durable again."""
    relay, session = relayed(redis, tmp_path, "subprocess")
    with session:
        assert session.run("x = 1").durable
        relay.catch(COMMIT, answers=True)
        assert not session.run("x = 2").durable
        relay.heal()
        assert session.run("import os; os._exit(1)").state == "restored"
        support.wait_until(lambda: value_of(session, "x") == 2, "Redis is asked again")
        assert session.run("x = 3").durable


def test_a_renewal_that_comes_after_the_lease_was_given_back(redis, place, tmp_path):
    relay = Relay(redis)
    with Session(None, "subprocess", saved="redis+unix://%s?prefix=%s" % (relay.path, tmp_path.name), saved_lease=1.0) as session:
        session.run("x = 1")
        session.hibernate()
        session.run("x")
        relay.catch(b"'PX', ARGV[3]) return {1}")  # the next renewal
        assert relay.caught.wait(support.DEADLINE)
        relay.heal()
        answer = session.hibernate()
        assert relay.deliver().startswith(b"*3\r\n:0\r\n")
        assert not redis.ask("EXISTS", key(tmp_path, answer.session_id, "lease"))
    with Session.wake(answer.session_id, place, None, "subprocess") as session:
        assert session.run("x").value == 1


def test_options(place):
    for options in ({"saved_host": "a b"}, {"saved_url": "x" * 257}, {"saved_lease": 0.5}, {"saved_host": "\x1b"}):
        with pytest.raises(ValueError):
            Session(None, "subprocess", saved=place, **options).run("1")
    with Session(None, "subprocess", saved="redis+unix:///nonexistent/socket") as session:
        session.run("x = 1")
        with pytest.raises(StorageError):
            session.hibernate()


def test_they_are_listed_in_pages(place):
    ids = []
    for n in range(3):
        with Session(None, "subprocess", saved=place) as session:
            session.run("x = %d" % n)
            ids.insert(0, session.hibernate().session_id)
    for page in (1, 2, 100):
        assert [each.session_id for each in workcell.saved_sessions(place, page=page)] == ids, page
    workcell.remove_saved(ids[1], place)
    assert [each.session_id for each in workcell.saved_sessions(place, page=1)] == [ids[0], ids[2]]
