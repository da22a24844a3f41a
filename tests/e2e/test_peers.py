"""Several servers that save sessions in one folder, or in one Redis, behind a proxy without stickiness: each of them answers for every session."""
import concurrent.futures
import os
import re
import signal
import socket
import subprocess
import threading

import pytest

import serving
import spaces
import support
from crews import Crew, HAProxy

ALICE, BOB = "t0ken-of-alice", "t0ken-of-bob"
ECHO = """name: echo
type: cli
command: echo
description: Says it again.
schema: {positional: [{name: text, type: string, required: true}]}
recipes: {say: {description: Says it., params: {text: {}}}}
"""


@pytest.fixture
def crew(tmp_path):
    made = Crew(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["folder", "redis"])
def any_crew(request, redis, tmp_path):
    made = Crew(tmp_path, redis if request.param == "redis" else None)
    yield made
    made.close()


def value(server, session, code, **options):
    answer = server.execute(code, session, **options)
    assert answer["error"] is None, answer
    return answer["value"]


def test_every_server_answers_for_a_session_that_was_never_saved(any_crew):
    crew = any_crew
    first, second = crew.start(), crew.start()
    session = first.session(token=ALICE)
    assert value(second, session, "x = 41; x", token=ALICE) == 41
    assert value(first, session, "x += 1; x", token=ALICE) == 42
    answer = second.ask("GET", "/v1/sessions/" + session, token=ALICE)
    assert answer.status == 200 and answer.json["session_id"] == session and answer.headers["X-Session-ID"] == session
    assert first.metric("sessions") == 1 and second.metric("sessions") == 0
    assert first.metric("requests_forwarded_total") == 0 and second.metric("requests_forwarded_total") == 2
    # A proxy that learns where sessions are sees that this answer came from elsewhere.
    assert answer.headers["X-Workcell-Owner"] == "http://127.0.0.1:%d" % first.port
    assert first.ask("GET", "/v1/sessions/" + session, token=ALICE).headers.get("X-Workcell-Owner") is None
    # Streams, and their beginning once more at the other server.
    events = second.events(session, "print('one'); print('two'); 3", token=ALICE)
    assert [each[1] for each in events][-1] == "result", events
    job = second.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "print('kept')"}, token=ALICE).json
    connection, response = second.open("GET", "/v1/sessions/%s/runs/%s/events" % (session, job["run_id"]), token=ALICE)
    assert "kept" in response.read().decode()
    connection.close()
    # A body that comes in pieces, both ways.
    data = os.urandom(3_000_000)
    assert second.ask("PUT", "/v1/sessions/%s/files/big.bin" % session, data, token=ALICE).status in (200, 201, 204)
    assert second.ask("GET", "/v1/sessions/%s/files/big.bin" % session, token=ALICE).body == data
    # An error has the owner's words.
    assert second.ask("POST", "/v1/sessions/%s/runs" % session, {"code": 5}, token=ALICE).status == 422
    assert second.ask("DELETE", "/v1/sessions/" + session, token=ALICE).status == 204
    support.wait_until(lambda: first.metric("sessions") == 0, "it has ended")
    # The server that had it remembers that it has ended; others know nothing of it once the note is gone.
    assert second.ask("GET", "/v1/sessions/" + session, token=ALICE).status == 410
    support.wait_until(lambda: crew.owners() == {}, crew.owners)
    assert crew.start().ask("GET", "/v1/sessions/" + session, token=ALICE).status == 404


def test_tasks_batches_and_forks(any_crew):
    crew = any_crew
    first, second = crew.start(), crew.start()
    session = first.session()
    value(first, session, "x = 5")
    answer = second.ask("POST", "/v1/sessions/%s/fork" % session, {"n": 2})
    assert answer.status in (200, 201), answer
    forks = [each["session_id"] if isinstance(each, dict) else each for each in answer.json.get("sessions", answer.json.get("forks"))]
    assert [value(second, fork, "x") for fork in forks] == [5, 5] and first.metric("sessions") == 3
    task = second.ask("POST", "/v1/sessions/%s/fork" % session, {"n": 1}, headers={"Prefer": "respond-async"})
    assert task.status == 202, task
    path = "/v1/tasks/" + task.headers["X-Task-ID"]
    support.wait_until(lambda: second.ask("GET", path).json["state"] not in ("running", "waiting"), lambda: second.ask("GET", path))
    assert second.metric("tasks") == 0 and first.metric("tasks") == 1


@pytest.fixture
def slow_redis():
    made = spaces.Redis()
    yield made
    made.process.send_signal(signal.SIGCONT)
    made.close()


def test_ids_are_told_when_others_can_find_them(tmp_path, slow_redis):
    """Redis answers late: the answer of a task with forks, and of a cell that made a child, wait for it."""
    crew = Crew(tmp_path, slow_redis, lease="60")
    try:
        first, second = crew.start("--allow-fork", "2"), crew.start()
        session, here = first.session(), {"X-Workcell-Hop": "1"}
        code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            cell = pool.submit(first.ask, "POST", "/execute", {"code": code}, session=session)
            support.wait_until(lambda: first.metric("runs_running") == 1, "it runs")
            task = first.ask("POST", "/v1/sessions/%s/fork" % session, {"n": 1}, headers={"Prefer": "respond-async"})
            path = "/v1/tasks/" + task.headers["X-Task-ID"]
            slow_redis.process.send_signal(signal.SIGSTOP)
            (tmp_path / "work" / "go").touch()
            assert cell.result(support.DEADLINE).status == 200
            support.wait_until(lambda: len(first.ask("GET", "/v1/sessions").json["sessions"]) == 2, "the fork is there")
            assert first.ask("GET", path, headers=here).json["state"] == "running"
            slow_redis.process.send_signal(signal.SIGCONT)
            ended = support.wait_until(lambda: [answer for answer in [first.ask("GET", path, headers=here)] if answer.json["state"] == "ended"], "it ends")[0]
            fork, = [each["session_id"] if isinstance(each, dict) else each for each in ended.json["answer"].get("sessions", ended.json["answer"].get("forks"))]
            assert second.ask("GET", "/v1/sessions/" + fork).status == 200
            slow_redis.process.send_signal(signal.SIGSTOP)
            cell = pool.submit(first.ask, "POST", "/execute", {"code": "child = sessions.fork()\nchild.id"}, session=session)
            support.wait_until(lambda: len(first.ask("GET", "/v1/sessions").json["sessions"]) == 3 and first.metric("runs_running") == 0, "the child is there")
            with pytest.raises(concurrent.futures.TimeoutError):
                cell.result(0.5)
            slow_redis.process.send_signal(signal.SIGCONT)
            assert second.ask("GET", "/v1/sessions/" + cell.result(support.DEADLINE).json["value"]).status == 200
    finally:
        slow_redis.process.send_signal(signal.SIGCONT)
        crew.close()


def links(server, other):
    """The connections from one server to another."""
    own = set()
    for each in os.listdir("/proc/%d/fd" % server.pid):
        try:
            own.add(os.readlink("/proc/%d/fd/%s" % (server.pid, each)))
        except FileNotFoundError:
            pass  # the server has closed it meanwhile
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file][1:]
    return ["socket:[%s]" % row[9] for row in rows if int(row[2].split(":")[1], 16) == other.port and "socket:[%s]" % row[9] in own]


def test_a_link_to_another_server_is_used_again(crew):
    """Until the other side has closed it: then the request is sent once more, over a new one, and a session that has moved is found."""
    first, second, third = crew.start("--durable", "results"), crew.start("--durable", "results"), crew.start("--durable", "results")
    session = first.session()
    assert [value(second, session, "x = %d; x" % n) for n in range(3)] == [0, 1, 2]
    assert second.ask("GET", "/v1/sessions/" + session).status == 200
    assert len(links(second, first)) == 1
    port = first.port
    crew.stop(first)  # in order: the link is closed, and the session sleeps
    assert value(third, session, "x += 1; x") == 3
    again = crew.start("--durable", "results", port=port)
    assert value(second, session, "x += 1; x") == 4 and again.metric("sessions") == 0 and second.metric("sessions") == 0
    assert value(second, session, "x") == 4 and third.metric("sessions") == 1


def test_rights_are_the_clients_own(crew):
    first, second = crew.start(), crew.start()
    session = first.session(token=ALICE)
    value(first, session, "x = 1", token=ALICE)
    for token, status in ((BOB, 404), ("t0ken-of-the-reader", 404), ("t0ken-of-the-team", 404), ("wrong", 401)):
        answer = second.ask("GET", "/v1/sessions/" + session, token=token)
        assert answer.status == status, (token, answer)
    assert second.ask("POST", "/execute", {"code": "x"}, session=session, token="t0ken-of-the-reader").status == 403
    assert second.ask("GET", "/v1/sessions/" + session, token=serving.TOKEN).status == 200  # admin, as at the owner
    # A client cannot speak for another server: the header only keeps its request from being forwarded.
    answer = second.ask("GET", "/v1/sessions/" + session, token=ALICE, headers={"X-Workcell-Hop": "1"})
    assert answer.status == 404, answer
    for name in ("X-Workcell-Client", "X-Workcell-Elsewhere", "X-Workcell-Part"):
        assert second.ask("GET", "/v1/sessions/" + session, token=BOB, headers={name: "1"}).status == 404
    assert first.metric("sessions") == 1


def test_no_loops(any_crew):
    """Hints that are wrong: one names a server that does not have the session, others are not addresses."""
    crew = any_crew
    first, second = crew.start(), crew.start()
    session = "ab" * 16
    crew.set_owner(session, "http://127.0.0.1:%d" % second.port)
    answer = first.ask("GET", "/v1/sessions/" + session)
    assert answer.status == 404, answer
    refused = [int(re.search(r'requests_total{status="4xx"} (\d+)', server.ask("GET", "/metrics").body.decode()).group(1))
               for server in (first, second)]
    assert refused == [0, 1]  # the one that answered counts it, and it has seen it once
    for wrong in ("http://127.0.0.1:%d/x" % second.port, "https://127.0.0.1:1", "http://0.0.0.0:0", "/etc/passwd", "http://", "x" * 300):
        crew.set_owner(session, wrong)
        assert first.ask("GET", "/v1/sessions/" + session).status == 404, wrong


def test_a_killed_owner(any_crew):
    crew = any_crew
    first, second, third = (crew.start("--durable", "results") for _ in range(3))
    sessions = [first.session() for _ in range(3)]
    for n, session in enumerate(sessions):
        assert first.execute("x = [%d]" % n, session)["durable"] is True
        assert value(second, session, "x.append(1); len(x)") == 2
    crew.kill(first)
    for session in sessions:  # in Redis: when its lease has ended; until then requests wait or are told to come again
        support.wait_until(lambda: second.ask("GET", "/v1/sessions/" + session).status == 200, lambda: second.ask("GET", "/v1/sessions/" + session))
    assert [value(second, session, "x") for session in sessions] == [[n, 1] for n in range(3)]
    assert [value(third, session, "x.append(2); x") for session in sessions] == [[n, 1, 2] for n in range(3)]
    assert second.metric("sessions") == 3 and third.metric("sessions") == 0 and second.metric("sessions_woken_total") == 3


def test_an_owner_that_dies_during_a_request(any_crew):
    crew = any_crew
    first, second = crew.start("--durable", "results"), crew.start("--durable", "results")
    session = first.session()
    assert value(first, session, "x = 1; x") == 1
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(second.ask, "POST", "/execute", {"code": "x = 2; import time; time.sleep(60)"}, session=session)
        support.wait_until(lambda: first.metric("runs_running") == 1, "it runs")
        crew.kill(first)
        answer = answer.result(support.DEADLINE)
    assert answer.status == 502 and answer.code == "closed" and "may have carried out" in answer.json["detail"], answer
    support.wait_until(lambda: second.ask("GET", "/v1/sessions/" + session).status == 200, "it is woken")
    assert value(second, session, "x") == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_an_owner_that_leaves_answers_for_its_sessions(any_crew, tmp_path, workers):
    """Until each of them sleeps: others pass requests on to it, and have them afterwards."""
    first, second = any_crew.start("--drain-delay", "60", "--workers", workers), any_crew.start("--workers", workers)
    session = first.session()
    value(first, session, "x = 1")
    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nx = 2; x"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        cell = pool.submit(second.ask, "POST", "/execute", {"code": code}, session=session)
        support.wait_until(lambda: first.metric("runs_running") == 1, "it runs")
        first.process.send_signal(signal.SIGTERM)
        support.wait_until(lambda: first.ask("GET", "/ready", token=None).status == 503, "it leaves")
        for _ in range(3):  # over connections that are there, and over new ones
            answer = second.ask("GET", "/v1/sessions/" + session)
            assert answer.status == 200 and answer.headers["X-Workcell-Owner"] == "http://127.0.0.1:%d" % first.port, answer
            assert answer.json["state"] == "busy" and answer.json["cells"] == 2
        (tmp_path / "work" / "go").touch()
        answer = cell.result(support.DEADLINE)
        assert answer.status == 200 and answer.json["value"] == 2, answer
    first.process.send_signal(signal.SIGTERM)  # enough
    any_crew.stop(first)
    assert value(second, session, "x") == 2 and second.metric("sessions_woken_total") == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_an_owner_that_leaves_puts_its_sessions_to_sleep_first(crew, workers):
    """Before it refuses connections: after that, servers without one cannot bring it requests for those that are still awake."""
    first, second = crew.start("--drain-delay", "0.1", "--workers", workers), crew.start("--workers", workers)
    sessions = [first.session() for _ in range(6)]
    for session in sessions:
        value(first, session, "x = 1")
    first.process.send_signal(signal.SIGTERM)
    first.process.wait(support.DEADLINE)
    lines = [line for line in first.text().splitlines() if " hibernated" in line or "stopping: " in line]
    assert len(lines) == 6 + workers and "stopping: " in lines[-1], lines
    assert workers > 1 or "hibernated" in lines[-2], lines
    assert [value(second, session, "x") for session in sessions] == [1] * 6


def test_an_owner_that_is_paused_keeps_its_session(crew):
    """With a folder the lock decides: nobody else runs a cell of it, and requests wait for the owner."""
    first, second = crew.start("--durable", "results"), crew.start("--durable", "results")
    session = first.session()
    value(first, session, "x = 1")
    first.process.send_signal(signal.SIGSTOP)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(second.ask, "POST", "/execute", {"code": "x += 1; x"}, session=session)
        with pytest.raises(concurrent.futures.TimeoutError):
            answer.result(0.5)
        assert second.metric("sessions") == 0
        first.process.send_signal(signal.SIGCONT)
        assert answer.result(support.DEADLINE).json["value"] == 2
    assert value(second, session, "x") == 2 and second.metric("sessions_woken_total") == 0


def test_an_owner_that_cannot_be_reached(crew):
    """It is alive and has the session, but its network is cut: the other server neither runs it nor says that it is gone."""
    first = crew.start("--durable", "results")
    second = crew.start("--durable", "results")
    session = first.session()
    value(first, session, "x = 1")
    crew.set_owner(session, "http://127.0.0.1:%d" % serving.free_port())  # connections are refused
    answer = second.ask("POST", "/execute", {"code": "x"}, session=session)
    assert answer.status == 503 and answer.code == "busy" and answer.headers["Retry-After"] == "1", answer
    assert second.metric("sessions") == 0 and second.ask("GET", "/ready", token=None).status == 200
    crew.set_owner(session, "http://127.0.0.1:%d" % first.port)  # healed
    assert value(second, session, "x") == 1


def test_an_owner_that_is_paused_for_longer_than_its_lease(tmp_path, redis):
    """In Redis another server may have the session then. The one that was paused ends its kernel, and passes requests on to the other."""
    crew = Crew(tmp_path, redis)
    first, second = crew.start("--durable", "results"), crew.start("--durable", "results")
    try:
        session = first.session()
        pid = value(first, session, "import os; x = 1; os.getpid()")
        first.process.send_signal(signal.SIGSTOP)
        support.wait_until(lambda: second.ask("POST", "/execute", {"code": "1"}, session=session).status == 200, "another one has it")
        assert value(second, session, "x += 1; x") == 2
        first.process.send_signal(signal.SIGCONT)
        support.wait_until(lambda: not os.path.exists("/proc/%d" % pid), "its kernel ends")
        support.wait_until(lambda: first.metric("sessions") == 0, "it forgets the session")
        assert value(first, session, "x += 1; x") == 3 and crew.owners() == {session: "http://127.0.0.1:%d" % second.port}
    finally:
        first.process.send_signal(signal.SIGCONT)
        crew.close()


def test_redis_that_is_gone_and_comes_back_empty(tmp_path):
    """Without it nobody knows who has a session: that is no "not found". Servers tell an empty one again what they have."""
    redis = spaces.Redis()
    crew = Crew(tmp_path, redis)
    crew.place[-1] = "60"
    try:
        first, second = crew.start(), crew.start()
        known, session = first.session(), first.session()
        assert value(second, known, "x = 5; x") == 5 and value(first, session, "x = 1; x") == 1
        redis.process.kill()
        redis.process.wait()
        answer = second.ask("POST", "/execute", {"code": "x"}, session=session)
        assert answer.status == 503 and answer.code == "busy" and answer.headers["Retry-After"] == "1", answer
        assert second.ask("PUT", "/v1/sessions/%s/files/a" % session, b"1").status == 503
        assert value(first, session, "x += 1; x") == 2  # where it is nothing has changed
        assert value(second, known, "x") == 5  # it was found before
        redis.start()
        support.wait_until(lambda: second.ask("POST", "/execute", {"code": "x"}, session=session).status == 200, crew.owners)
        assert value(second, session, "x") == 2
    finally:
        crew.close()
        redis.close()


def test_a_session_that_cannot_wake_now(tmp_path):
    """Its kernel has ended, and what was saved cannot be read: the cell did not begin, and the client may come again."""
    redis = spaces.Redis("--appendonly", "yes", "--appendfsync", "always")
    crew = Crew(tmp_path, redis, lease="60")
    try:
        server = crew.start("--durable", "results")
        session = server.session()
        assert server.execute("x = 1", session)["durable"] is True
        assert server.execute("import os; os._exit(1)", session)["state"] == "restored"
        redis.process.kill()
        redis.process.wait()
        answer = server.ask("POST", "/execute", {"code": "x"}, session=session)
        assert answer.status == 503 and answer.code == "busy" and answer.headers["Retry-After"] == "1", answer
        kind, data = server.events(session, "x")[-1][1:]
        assert kind == "result" and data["error"]["code"] == "busy", data
        redis.start()
        support.wait_until(lambda: server.ask("POST", "/execute", {"code": "x"}, session=session).status == 200, server.text)
        assert value(server, session, "x") == 1
    finally:
        crew.close()
        redis.close()


def test_an_answer_that_is_broken(crew):
    second = crew.start()
    with socket.create_server(("127.0.0.1", 0)) as fake:
        fake.settimeout(support.DEADLINE)
        for n, (words, status) in enumerate(((b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", 502), (b"no HTTP at all\r\n\r\n", 502), (b"", 404),
                              (b"HTTP/1.1 200 OK\r\nX-Workcell-Elsewhere: 1\r\nContent-Length: 2\r\n\r\n{}", 200))):
            session = "%032x" % n  # one that is not known yet: what was found before is asked for once more when it does not answer
            os.symlink("http://127.0.0.1:%d" % fake.getsockname()[1], crew.path / "saved" / "owners" / session)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                answer = pool.submit(second.ask, "GET", "/v1/sessions/" + session)
                peer = crew.accept(fake)
                head = peer.recv(65536).decode()
                peer.sendall(words)
                peer.close()
                assert answer.result(support.DEADLINE).status == status, words
                assert "X-Workcell-Hop: 1" in head and "Bearer " + serving.TOKEN in head and "X-Workcell-Client" not in head
    assert second.ask("GET", "/health", token=None).status == 200


def test_a_stranger_at_the_address_of_an_owner(any_crew):
    """A note is old, and another program has that address by now, or somebody has forged it: it sees no token, also if it asks a real server for the proof."""
    crew = any_crew
    first, second = crew.start(), crew.start()
    session = first.session()
    assert value(second, session, "x = 1; x") == 1
    nonce = {"X-Workcell-Nonce": "0123456789abcdef" * 2}
    answer = first.ask("GET", "/health", token=None, headers=nonce)
    proof = answer.headers["X-Workcell-Proof"]
    assert answer.status == 204 and second.ask("GET", "/health", token=None, headers=nonce).headers["X-Workcell-Proof"] != proof
    for wrong in ("0" * 31, "x" * 32, "0" * 33):
        assert first.ask("GET", "/health", token=None, headers={"X-Workcell-Nonce": wrong}).status == 200
    with socket.create_server(("127.0.0.1", 0)) as fake:
        fake.settimeout(support.DEADLINE)
        for n in range(3):
            unknown = "%032x" % n
            crew.set_owner(unknown, "http://127.0.0.1:%d" % fake.getsockname()[1])
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                answer = pool.submit(second.ask, "POST", "/execute", {"code": "'secret'"}, session=unknown)
                peer = fake.accept()[0]
                peer.settimeout(support.DEADLINE)
                text = peer.recv(65536)
                asked = re.search(rb"X-Workcell-Nonce: (\w+)", text).group(1).decode()
                real = first.ask("GET", "/health", token=None, headers={"X-Workcell-Nonce": asked}).headers["X-Workcell-Proof"]
                peer.sendall(("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 204 \r\n\r\n",
                              "HTTP/1.1 204 \r\nX-Workcell-Proof: %s\r\n\r\n" % real)[n].encode())
                text += peer.recv(65536)
                assert answer.result(support.DEADLINE).status == 400, answer.result()
                assert b"Authorization" not in text and serving.TOKEN.encode() not in text and b"secret" not in text, text
                peer.close()
    assert "does not prove that it is one of ours" in second.text()


def test_a_cell_that_its_owner_has_not_read(crew):
    """The body is sent when the owner asks for it. Until then it has done nothing, and the request is handled otherwise: here there is no such session."""
    second = crew.start()
    session = "cd" * 16
    with socket.create_server(("127.0.0.1", 0)) as fake:
        fake.settimeout(support.DEADLINE)
        os.symlink("http://127.0.0.1:%d" % fake.getsockname()[1], crew.path / "saved" / "owners" / session)
        for words, status in ((b"", 404), (b"HTTP/1.1 100 Continue\r\n\r\n", 502)):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                answer = pool.submit(second.ask, "POST", "/v1/sessions/%s/runs" % session, {"code": "'the body'"})
                peer = crew.accept(fake)
                head = peer.recv(65536)
                assert b"Expect: 100-continue" in head and b"the body" not in head
                peer.sendall(words)
                if words:
                    assert b"the body" in peer.recv(65536)
                peer.close()
                assert answer.result(support.DEADLINE).status == status, answer.result()


class Client(threading.Thread):
    """Counts in a session, and repeats what it may: each number must come exactly once."""

    def __init__(self, proxy):
        super().__init__(daemon=True)
        self.proxy, self.session, self.count, self.problems, self.repeats = proxy, proxy.session(), 0, [], 0
        self.stop = threading.Event()

    def run(self):
        while not self.stop.is_set() and not self.problems:
            try:
                answer = self.proxy.ask("POST", "/execute", {"code": "n = globals().get('n', 0) + 1; n"}, session=self.session)
            except OSError as problem:
                self.problems.append(problem)
                return
            if answer.status == 200 and answer.json["error"] is None and answer.json["value"] == self.count + 1:
                self.count += 1
            elif answer.status == 503 and answer.headers.get("Retry-After"):
                self.repeats += 1  # nothing was done
            else:
                self.problems.append((answer, self.count))


@pytest.mark.parametrize("any_crew, workers", [("folder", 2), ("redis", 1)], indirect=["any_crew"])
def test_a_rolling_update_behind_a_proxy(any_crew, workers):
    """Each of three servers is replaced while clients use sessions by way of all of them: no request fails, no cell is lost or run twice."""
    crew = any_crew
    flags = ["--drain-delay", "0.6", "--durable", "results", "--workers", workers, "--saved-lease", "15"]
    servers = [crew.start(*flags) for _ in range(3)]
    proxy = HAProxy(crew.path / "haproxy.cfg", [server.port for server in servers])
    try:
        support.wait_until(lambda: all(proxy.is_up(n) for n in range(3)), "requests go to all of them")
        clients = [Client(proxy) for _ in range(6)]
        for client in clients:
            client.start()
        support.wait_until(lambda: all(client.count > 3 for client in clients), lambda: [vars(client) for client in clients])
        for n, server in enumerate(servers):
            server.close()
            crew.servers.remove(server)
            crew.start(*flags, port=server.port)
            support.wait_until(lambda n=n: proxy.is_up(n), "requests go there again")
        marks = [client.count for client in clients]
        support.wait_until(lambda: all(client.problems or client.count > mark + 3 for client, mark in zip(clients, marks)),
                           lambda: [vars(client) for client in clients])
        for client in clients:
            client.stop.set()
        for client in clients:
            client.join(support.DEADLINE)
        assert not any(client.problems for client in clients), [(client.problems, client.count) for client in clients]
        assert sum(server.metric("sessions") for server in crew.servers) == 6
    finally:
        proxy.close()


def test_two_servers_that_wake_at_once(any_crew):
    """Eight requests at two servers for a session that sleeps: one server wakes it, and all are answered."""
    crew = any_crew
    first, second = crew.start(), crew.start()
    session = first.session()
    value(first, session, "x = []")
    assert first.ask("POST", "/v1/sessions/%s/hibernate" % session).status == 200
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: [first, second][n % 2].ask("POST", "/execute", {"code": "x.append(%d); len(x)" % n}, session=session),
                                range(8)))
    assert [answer.status for answer in answers] == [200] * 8, answers
    assert sorted(answer.json["value"] for answer in answers) == list(range(1, 9))
    assert first.metric("sessions") + second.metric("sessions") == 1


def test_approvals_at_another_server(any_crew):
    crew = any_crew
    (crew.path / "base" / "tools").mkdir(parents=True)
    (crew.path / "base" / "tools" / "echo.yaml").write_text(ECHO)
    (crew.path / "policy.yaml").write_text("default: allow\nrules:\n  - {tool: echo, decision: ask}\n")
    first, second = (crew.start("--policy", crew.path / "policy.yaml") for _ in range(2))
    session = first.session(token=ALICE)
    job = second.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "tools.echo.say(text='a')"}, token=ALICE)
    assert job.status == 202, job
    path = "/v1/sessions/%s/approvals" % session
    # Of somebody else's session, by one who may approve; and not by one who may not.
    waiting, = support.wait_until(lambda: second.ask("GET", path).json["approvals"], "a request")
    assert second.ask("POST", "%s/%d" % (path, waiting["id"]), {"accept": True}, token=ALICE).code == "forbidden"
    assert second.ask("POST", "%s/%d" % (path, waiting["id"]), {"accept": True}).status == 204
    events = second.ask("GET", "/v1/sessions/%s/runs/%s/events" % (session, job.json["run_id"]), token=ALICE).body.decode()
    assert serving.parse_events(events)[-1][2]["value"] == "a\n", events


@pytest.mark.parametrize("flags, words", [
    (["--advertise", "http://127.0.0.1:1"], "--saved DIR"),
    (["--saved", "env:NO_SUCH_PLACE", "--advertise", "http://127.0.0.1:1"], "the environment variable NO_SUCH_PLACE is not set"),
    (["--saved", "SAVED", "--advertise", "https://127.0.0.1:1"], "is not http://ADDRESS:PORT"),
    (["--saved", "SAVED", "--advertise", "http://example.org:80"], "is not http://ADDRESS:PORT"),
    (["--saved", "SAVED", "--advertise", "http://127.0.0.1:80/path"], "is not http://ADDRESS:PORT"),
    (["--saved", "SAVED", "--advertise", "http://0.0.0.0:80"], "every address"),
    (["--saved", "SAVED", "--advertise", "http://127.0.0.1:1", "--saved-url", "http://127.0.0.1:2"], "is not the saved_url"),
])
def test_settings_that_are_refused(tmp_path, flags, words):
    flags = [str(tmp_path / "saved") if flag == "SAVED" else flag for flag in flags]
    done = subprocess.run([support.BIN, "serve", "--executor", "subprocess", "--cwd", str(tmp_path), "--listen", "127.0.0.1:0", *flags],
                          capture_output=True, text=True, timeout=support.DEADLINE, check=False,
                          env=support.host_environment(WORKCELL_SERVE_TOKEN=serving.TOKEN))
    assert done.returncode != 0 and words in done.stderr, done
