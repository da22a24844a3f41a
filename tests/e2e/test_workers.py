"""`workcell serve --workers 2`: several processes behind one address, with one set of limits."""
import os
import re
import signal
import socket
import threading

import pytest

import serving
import spaces
import support

TOKENS = serving.TOKENS + "  - {name: few, token: t0ken-of-the-few-sessions, quota: {sessions: 5}}\n" \
    "  - {name: disk, token: t0ken-of-some-disk, quota: {disk: 4M}}\n"
FEW = "t0ken-of-the-few-sessions"


@pytest.fixture(scope="module")
def server():
    with serving.shared("--executor", "subprocess", "--workers", 2, "--max-runs", 4, tokens=TOKENS) as made:
        yield made


@pytest.fixture
def pair(server):
    """A connection to each worker, and a session of each."""
    connections = server.connect_to_each()
    sessions = [server.session(connection=connection) for connection in connections]
    assert sessions[0][:2] != sessions[1][:2]
    yield connections, sessions
    for session in sessions:
        server.ask("DELETE", "/v1/sessions/" + session)
    for connection in connections:
        connection.close()


def test_clients_one_after_the_other_get_sessions_of_all_workers(server):
    """Each has left when the next one comes, so no worker has more clients than another."""
    sessions, held = [], server.connect_to_each()
    for _ in range(6):
        client = server.connect()
        sessions.append(server.session(connection=client))
        client.close()
        for connection in held * 5:  # the workers go on, and find that the client has left
            server.ask("GET", "/health", connection=connection)
    for connection in held:
        connection.close()
    first = [session[:2] for session in sessions].count(sessions[0][:2])
    assert 2 <= first <= 4, sessions  # one that has left may still be counted when the next one comes
    for session in sessions:
        server.ask("DELETE", "/v1/sessions/" + session)


def test_any_worker_answers_for_any_session(server, pair):
    connections, sessions = pair
    for turn in (1, 2, 3):
        for connection in connections:
            for session in sessions:
                server.execute("x = globals().get('x', 0) + 1", session=session, connection=connection)
    assert [server.execute("x", session=session)["value"] for session in sessions] == [6, 6]
    for connection in connections:
        listed = {item["session_id"] for item in server.ask("GET", "/v1/sessions", connection=connection).json["sessions"]}
        assert set(sessions) <= listed
        answer = server.ask("GET", "/v1/sessions/" + sessions[0], connection=connection)
        assert answer.status == 200 and len(answer.headers.get_all("X-Request-ID")) == 1


def test_streams_files_and_forks_through_another_worker(server, pair):
    connections, sessions = pair
    other = {"connection": connections[1], "session": None}
    events = server.events(sessions[0], "for i in range(1000): print(i)", connection=connections[1])
    assert events[-1][1] == "result" and "".join(e[2]["text"] for e in events if e[1] == "chunk").split()[-1] == "999"
    data = os.urandom(3 << 20)
    path = "/v1/sessions/%s/files/big" % sessions[0]
    assert server.ask("PUT", path, data, **other).status in (200, 201)
    assert server.ask("GET", path, **other).body == data
    fork = server.ask("POST", "/v1/sessions/%s/fork" % sessions[0], **other)
    assert fork.status == 201 and fork.json["session_id"][:2] == sessions[0][:2]
    assert server.ask("DELETE", "/v1/sessions/" + fork.json["session_id"], **other).status == 204


def test_bodies_without_a_length_are_passed_on(server, pair):
    connections, sessions = pair
    connection = connections[1]
    headers = {"Authorization": "Bearer " + serving.TOKEN, "X-Session-ID": sessions[0], "Content-Type": "application/json"}
    connection.request("POST", "/execute", iter([b'{"code": ', b'"6*7"}']), headers, encode_chunked=True)
    assert b'"value":42' in connection.getresponse().read()
    connection.close()


def test_too_large_a_body_is_refused_before_it_is_passed_on(server, pair):
    _, sessions = pair
    for session in sessions:
        head = ("POST /execute HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nX-Session-ID: %s\r\n"
                "Content-Length: 99999999999\r\n\r\n" % (serving.TOKEN, session))
        assert b"413" in server.raw(head.encode() + b"{" * 1000).split(b"\r\n")[0]


@pytest.mark.parametrize("header", ["X-Workcell-Client", "X-Workcell-Part", "x-workcell-part"])
def test_headers_of_workers_are_refused_from_clients(server, header):
    answer = server.ask("GET", "/v1/sessions", headers={header: "127.0.0.1"})
    assert (answer.status, answer.code) == (400, "invalid")


def test_other_clients_find_no_session_through_any_worker(server, pair):
    connections, sessions = pair
    for connection in connections:
        for session in sessions:
            answer = server.ask("GET", "/v1/sessions/" + session, token="t0ken-of-alice", connection=connection)
            assert (answer.status, answer.code) == (404, "not_found")
            assert server.ask("GET", "/v1/sessions/" + session, token="wrong", connection=connection).status == 401


def test_smuggled_requests_are_not_passed_on(server, pair):
    _, sessions = pair
    for session in sessions:
        for odd in ("Transfer-Encoding: chunked\r\nContent-Length: 5", "Transfer-Encoding: gzip, chunked", "Content-Length: 1\r\nContent-Length: 2"):
            head = "POST /execute HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nX-Session-ID: %s\r\n%s\r\n\r\n"
            assert server.raw((head % (serving.TOKEN, session, odd)).encode() + b"0\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_quotas_hold_for_all_workers_together(server):
    opened, refused, lock = [], [], threading.Lock()

    def open_some():
        connection = server.connect()
        for _ in range(4):
            answer = server.ask("POST", "/v1/sessions", token=FEW, connection=connection)
            with lock:
                (opened if answer.status == 201 else refused).append(answer)
        connection.close()

    threads = [threading.Thread(target=open_some) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 5 and {answer.status for answer in refused} == {429}
    for answer in opened:
        assert server.ask("DELETE", "/v1/sessions/" + answer.json["session_id"], token=FEW).status == 204
    support.wait_until(lambda: server.metric("sessions") == len(server.ask("GET", "/v1/sessions?all=true").json["sessions"]), "closed")


def test_disk_of_ended_sessions_is_free_for_other_workers(server):
    token, connections = "t0ken-of-some-disk", server.connect_to_each()
    session = server.session(token=token, connection=connections[0])
    code = "import time\nopen('big', 'wb').write(b'x' * (8 << 20))\ntime.sleep(60)"
    assert server.execute(code, session=session, token=token)["error_code"] == "limit_exceeded"

    def run():
        return server.ask("POST", "/execute", {"code": "1"}, token=token, connection=connections[1], session=other).status

    other = server.session(token=token, connection=connections[1])
    assert other[:2] != session[:2] and run() == 429
    server.ask("DELETE", "/v1/sessions/" + session, token=token)
    support.wait_until(lambda: run() == 200, server.text, 15)
    server.ask("DELETE", "/v1/sessions/" + other, token=token)
    for connection in connections:
        connection.close()


def test_no_more_cells_run_at_once_than_one_server_allows(server, pair):
    connections, sessions = pair
    every = sessions + [server.session(connection=c) for c in connections for _ in range(3)]
    for session in every:
        assert server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "import time; time.sleep(0.3)"}).status == 202
    assert server.metric("runs_running") == 4 and server.metric("runs_waiting") == 4
    support.wait_until(lambda: not server.metric("runs_waiting") and not server.metric("runs_running"), "all ran")
    for session in every[2:]:
        server.ask("DELETE", "/v1/sessions/" + session)


def test_a_worker_that_dies_takes_only_its_sessions():
    server = serving.Server("--executor", "subprocess", "--workers", 2)
    connections = server.connect_to_each()
    sessions = [server.session(connection=connection) for connection in connections]
    owner = {session[:2]: session for session in sessions}
    first, second = server.worker_pids()
    waiting, response = server.connect(), []

    def wait_for_result():
        response.append(server.ask("POST", "/execute", {"code": "import time; time.sleep(60)"}, session=owner["00"],
                                   connection=connections[sessions.index(owner["01"])]))

    thread = threading.Thread(target=wait_for_result)
    thread.start()
    support.wait_until(lambda: server.metric("runs_running") == 1, "it runs")
    os.kill(first, signal.SIGKILL)
    thread.join(support.DEADLINE)
    assert [(answer.status, answer.code) for answer in response] == [(410, "session_expired")]
    waiting.close()
    assert server.execute("1", session=owner["01"])["value"] == 1
    support.wait_until(lambda: len(server.worker_pids()) == 2, server.text)
    answer = server.ask("GET", "/v1/sessions/" + owner["00"])
    assert (answer.status, answer.code) == (410, "session_expired")
    support.wait_until(lambda: "reloaded" in server.text(), server.text)
    assert server.metric("sessions") == 1 and server.metric("runs_running") == 0
    assert second in server.worker_pids() and "ended by signal 9" in server.text()
    server.process.send_signal(signal.SIGHUP)
    support.wait_until(lambda: len(re.findall("reloaded: ", server.text())) == 3, server.text)
    for connection in connections:
        connection.close()
    server.close()


def test_clients_that_a_dead_worker_had_not_taken_go_to_another():
    """Its death is known a moment later: until then clients are handed to it."""
    server = serving.Server("--executor", "subprocess", "--workers", 2)
    for connection in server.connect_to_each():
        connection.close()
    first, _ = server.worker_pids()
    os.kill(first, signal.SIGSTOP)
    clients = [server.connect() for _ in range(4)]
    for client in clients:
        client.connect()
        client.request("GET", "/health")
    os.kill(first, signal.SIGKILL)
    assert [client.getresponse().status for client in clients] == [200] * 4
    support.wait_until(lambda: len(server.worker_pids()) == 2, server.text)
    for client in clients:
        client.close()
    server.close()


@pytest.mark.parametrize("flags", [(), ("--e2b", "--hold-workers")], ids=["plain", "e2b, held"])
def test_there_is_a_worker_for_each_core(flags):
    server = serving.Server("--executor", "subprocess", "--workers", 0, *flags)
    cores = len(os.sched_getaffinity(0))
    assert len(server.worker_pids()) == (cores if cores > 1 else 0)  # one is the process itself
    own = sorted(os.sched_getaffinity(0))
    connections = []  # one to each: workers that are held get the clients of their core
    for cpu in own:
        os.sched_setaffinity(0, {cpu})
        try:
            connections.append(server.connect())
            connections[-1].connect()
        finally:
            os.sched_setaffinity(0, own)
    seen = [server.execute("import os; sorted(os.sched_getaffinity(0))", session=server.session(connection=connection), connection=connection)["value"]
            for connection in connections]
    assert (seen if flags else sorted(seen)) == ([[cpu] for cpu in own] if flags and cores > 1 else [own] * cores)
    for connection in connections:
        connection.close()
    server.close()


def test_workers_end_with_the_process_that_started_them():
    server = serving.Server("--executor", "subprocess", "--workers", 2)
    server.process.kill()
    server.process.wait(support.DEADLINE)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_unix_socket_and_drain(tmp_path):
    path = str(tmp_path / "socket")
    server = serving.Server("--executor", "subprocess", "--workers", 2, listen="unix:" + path)
    connections = server.connect_to_each()
    session = server.session(connection=connections[0])
    got = []
    thread = threading.Thread(target=lambda: got.append(server.execute("import time; time.sleep(1); 7", session=session,
                                                                       connection=connections[1])))
    thread.start()
    support.wait_until(lambda: server.metric("runs_running") == 1, "it runs")
    server.process.send_signal(signal.SIGTERM)
    thread.join(support.DEADLINE)
    assert got and got[0]["value"] == 7
    server.close()
    assert not os.path.exists(path)


def test_readiness_is_that_of_all_workers():
    """A request is answered by one worker, which may not have asked the storage since it went away."""
    redis = spaces.Redis()
    server = serving.Server("--storage", redis.url("ready"), "--executor", "subprocess", "--workers", 2)
    assert {server.ask("GET", "/ready", token=None).status for _ in range(8)} == {200}
    redis.close()
    support.wait_until(lambda: "the storage does not answer: Redis at" in server.text(), server.text)
    assert {server.ask("GET", "/ready", token=None).status for _ in range(8)} == {503}
    redis.start()
    support.wait_until(lambda: server.text().count("the storage answers again, after") == server.text().count("the storage does not answer"),
                       server.text)
    assert {server.ask("GET", "/ready", token=None).status for _ in range(8)} == {200}
    server.close()
    redis.close()
