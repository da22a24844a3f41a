"""`workcell serve --workers 2` that stops: as one process does, it answers for the sessions of every worker until they sleep."""
import concurrent.futures
import http.client
import json
import os
import signal
import socket
import threading

import pytest

import serving
import support
from crews import Crew

WAIT_FOR_GO = "import os, time\nwhile not os.path.exists(%r): time.sleep(0.01)\n%s"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "work").mkdir()
    return ["--executor", "subprocess", "--base", tmp_path / "base", "--cwd", tmp_path / "work", "--saved", tmp_path / "saved", "--workers", 2]


@pytest.fixture
def crew(tmp_path):
    made = Crew(tmp_path)
    yield made
    made.close()


def connected(server, n):
    """Connections that are there before the server stops to listen, half of them to each worker."""
    made = [server.connect() for _ in range(n)]
    for connection in made:
        connection.connect()
    return made


def connection_to_each(server):
    """[(a connection, a session that was opened over it)], by the number of the worker."""
    found = {}
    for connection in connected(server, 2):
        session = server.session(connection=connection)
        found[session[:2]] = connection, session
    assert sorted(found) == ["00", "01"], found
    return found["00"], found["01"]


def session_of_each(server):
    found = connection_to_each(server)
    for connection, _ in found:
        connection.close()
    return [session for _, session in found]


def refuses(server):
    return refuses_at(server.port)


def refuses_at(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=support.DEADLINE).close()
    except ConnectionRefusedError:
        return True
    return False


def ask_all(server, connections, method, path, body=None, **options):
    """Over each of them: their answers end them."""
    answers = []
    for connection in connections:
        answers.append(server.ask(method, path, body, connection=connection, **options))
        connection.close()
    return answers


@pytest.mark.parametrize("flags", [[], ["--drain-delay", "0.1"]], ids=["at once", "with a delay"])
def test_sessions_of_every_worker_are_answered_until_they_sleep(place, tmp_path, flags):
    """A cell holds one worker; the sessions of both are used meanwhile, over connections to both that were there."""
    server, go = serving.Server(*place, "--drain", "600", *flags), str(tmp_path / "work" / "go")
    sessions = session_of_each(server)
    for n, session in enumerate(sessions):
        assert server.execute("x = %d" % n, session=session)["error"] is None
    answers = []
    thread = threading.Thread(target=lambda: answers.append(server.ask("POST", "/execute", {"code": WAIT_FOR_GO % (go, "y = 7; y")}, session=sessions[0])))
    thread.start()
    support.wait_until(lambda: server.metric("runs_running") == 1, "it runs")
    connections = [connected(server, 4) for _ in range(4)]
    server.process.send_signal(signal.SIGTERM)
    support.wait_until(lambda: refuses(server), "new connections are refused")
    found = ask_all(server, connections[0], "POST", "/execute", {"code": "x += 1; x"}, session=sessions[1])
    assert [(answer.status, answer.json.get("value")) for answer in found] == [(200, n) for n in range(2, 6)], found
    found = ask_all(server, connections[1], "GET", "/v1/sessions/" + sessions[0])
    assert [(answer.status, answer.json["state"]) for answer in found] == [(200, "busy")] * 4
    found = ask_all(server, connections[2], "GET", "/v1/sessions")
    assert all(sessions[0] in {each["session_id"] for each in answer.json["sessions"]} for answer in found), found
    found = ask_all(server, connections[3], "GET", "/metrics")
    assert all(b"workcell_draining 2" in answer.body for answer in found), found
    assert not answers and server.process.poll() is None and len(server.worker_pids()) == 2
    with open(go, "w", encoding="utf-8"):
        pass
    thread.join(support.DEADLINE)
    assert answers[0].status == 200 and answers[0].json["value"] == 7, answers
    server.close()
    with serving.shared(*place) as server:
        assert [server.execute("x", session=session)["value"] for session in sessions] == [0, 5]
        assert server.execute("y", session=sessions[0])["value"] == 7


def test_the_second_signal_ends_the_wait(place):
    server = serving.Server(*place, "--drain", "600")
    sessions = session_of_each(server)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        cells = [pool.submit(server.ask, "POST", "/execute", {"code": "import time; time.sleep(600)"}, session=session) for session in sessions]
        support.wait_until(lambda: server.metric("runs_running") == 2, "they run")
        server.process.send_signal(signal.SIGTERM)
        support.wait_until(lambda: refuses(server), "new connections are refused")
        assert not any(cell.done() for cell in cells)
        server.process.send_signal(signal.SIGTERM)
        assert [cell.result(support.DEADLINE).status for cell in cells] == [200, 200]
    server.close()


def test_the_time_for_cells_is_that_of_all_workers(place):
    server = serving.Server(*place, "--drain", "0.3")
    sessions = session_of_each(server)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        cell = pool.submit(server.execute, "import time; time.sleep(600)", session=sessions[0])
        support.wait_until(lambda: server.metric("runs_running") == 1, "it runs")
        server.process.send_signal(signal.SIGTERM)
        assert cell.result(support.DEADLINE)["error_code"] in ("cancelled", "interrupted", "closed")
    server.close()


@pytest.mark.parametrize("dies", [0, 1], ids=["the one with the cell", "the idle one"])
def test_a_worker_that_dies_does_not_hold_the_stop_up(place, tmp_path, dies):
    server, go = serving.Server(*place, "--drain", "600", "--durable", "results"), str(tmp_path / "work" / "go")
    (_, one), (_, other) = each = connection_to_each(server)
    sessions = one, other
    for n, session in enumerate(sessions):
        assert server.execute("x = %d" % n, session=session)["durable"]
    answers, refused = [], []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        cell = pool.submit(server.ask, "POST", "/execute", {"code": WAIT_FOR_GO % (go, "x = 7; x")}, session=sessions[0],
                           connection=each[1 - dies][0])  # the one that lives
        support.wait_until(lambda: server.metric("runs_running") == 1, "it runs")
        connections = connected(server, 8)
        server.process.send_signal(signal.SIGTERM)
        support.wait_until(lambda: refuses(server), "new connections are refused")
        victim = server.worker_pids()[dies]
        os.kill(victim, signal.SIGKILL)
        support.wait_until(lambda: len(server.worker_pids()) < 2, "it has ended")
        if dies:
            # What the idle one had is answered by the one that is left, over its connections; those of the dead one have ended.
            for connection in connections:
                try:
                    answer = server.ask("POST", "/execute", {"code": "x += 1; x"}, session=sessions[1], connection=connection)
                except OSError:
                    continue
                if answer.status == 200:
                    answers.append(answer.json["value"])
                else:  # it was asked before its end was noticed, and has not read the request
                    refused.append((answer.status, answer.headers["Retry-After"]))
            with open(go, "w", encoding="utf-8"):
                pass
            assert cell.result(support.DEADLINE).json["value"] == 7
        else:
            assert cell.result(support.DEADLINE).status == 502, cell.result()
    if dies:
        assert answers == list(range(2, 2 + len(answers))) and answers and set(refused) <= {(503, "1")}, (answers, refused)
    for connection, _ in each:
        connection.close()
    assert server.process.wait(support.DEADLINE) == 125  # a worker was killed
    with serving.shared(*place) as server:
        assert [server.execute("x", session=session)["value"] for session in sessions] == [7 if dies else 0, 1 + len(answers)]


def test_workers_whose_first_process_is_killed_stop_as_one(place, tmp_path):
    """Nobody hands out clients or tells them that one has ended; they wait for each other's cells all the same."""
    server, go = serving.Server(*place, "--drain", "600"), str(tmp_path / "work" / "go")
    sessions = session_of_each(server)
    assert server.execute("x = 1", session=sessions[1])["error"] is None
    connections, pids = connected(server, 4), server.worker_pids()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        cell = pool.submit(server.ask, "POST", "/execute", {"code": WAIT_FOR_GO % (go, "y = 7; y")}, session=sessions[0])
        support.wait_until(lambda: server.metric("runs_running") == 1, "it runs")
        server.process.kill()
        server.process.wait(support.DEADLINE)
        support.wait_until(lambda: server.text().count("stopping: ") == 2, server.text)
        found = ask_all(server, connections, "POST", "/execute", {"code": "x += 1; x"}, session=sessions[1])
        assert [(answer.status, answer.json.get("value")) for answer in found] == [(200, n) for n in range(2, 6)], found
        with open(go, "w", encoding="utf-8"):
            pass
        assert cell.result(support.DEADLINE).json["value"] == 7
    support.wait_until(lambda: support.reap_orphans() or not any(os.path.exists("/proc/%d" % pid) for pid in pids), "they end")
    with serving.shared(*place) as server:
        assert [server.execute(name, session=session)["value"] for name, session in zip("yx", sessions)] == [7, 5]


def test_one_worker_that_is_told_to_end_does_not_wait_for_the_others(place):
    """By somebody else than the process that started it, which starts another in its place."""
    server = serving.Server(*place)
    sessions = session_of_each(server)
    for n, session in enumerate(sessions):
        assert server.execute("x = %d" % n, session=session)["error"] is None
    first = server.worker_pids()[0]
    os.kill(first, signal.SIGTERM)
    support.wait_until(lambda: first not in server.worker_pids() and len(server.worker_pids()) == 2, server.text)

    def value(session):
        answer = server.ask("POST", "/execute", {"code": "x"}, session=session)
        return (answer.status, answer.json.get("value"))

    for n, session in enumerate(sessions):
        support.wait_until(lambda: value(session) == (200, n), lambda: value(session))
    server.close()


def test_a_request_of_another_server_is_sent_back_through_a_worker(place):
    """The session sleeps, at a server that leaves: also by way of the other worker the answer says that it is to be sought elsewhere."""
    server = serving.Server(*place, "--drain-delay", "60")
    sessions = session_of_each(server)
    pids = [server.execute("import os; os.getpid()", session=session)["value"] for session in sessions]
    server.process.send_signal(signal.SIGTERM)
    support.wait_until(lambda: not any(os.path.exists("/proc/%d" % pid) for pid in pids), "they sleep")
    for session in sessions:
        for _ in range(4):  # connections go to the workers in turn
            answer = server.ask("POST", "/execute", {"code": "1"}, session=session, headers={"X-Workcell-Hop": "1"})
            assert answer.status == 503 and answer.headers["X-Workcell-Elsewhere"] == "1", answer
    server.process.send_signal(signal.SIGTERM)
    server.close()


class Client(threading.Thread):
    """Counts in a session, at whichever server is ready, as behind a load balancer that asks just before: nothing may fail, and each number comes once."""

    def __init__(self, servers, number):
        super().__init__(daemon=True)
        self.servers, self.number, self.count, self.problems = servers, number, 0, []
        self.pause_s = 1.6 if number % 3 else 0  # so long that its session sleeps while its server leaves
        self.stop = threading.Event()
        self.session = self.ask("POST", "/v1/sessions").json["session_id"]

    def ask(self, method, path, body=None, session=None):
        def ready():
            self.number += 1
            server = self.servers[self.number % len(self.servers)]
            connection = server.connect()
            try:
                return (server, connection) if server.ask("GET", "/ready", token=None, connection=connection).status == 200 else None
            except OSError:  # it does not listen
                return None

        server, connection = support.wait_until(ready, "a server is ready")
        answer = server.ask(method, path, body, session=session, connection=connection)
        connection.close()
        return answer

    def run(self):
        while not self.stop.wait(self.pause_s) and not self.problems:
            try:
                answer = self.ask("POST", "/execute", {"code": "n = globals().get('n', 0) + 1; n"}, session=self.session)
            except OSError as problem:
                self.problems.append(problem)
                return
            if answer.status != 200 or answer.json["error"] or answer.json["value"] != self.count + 1:
                self.problems.append((answer, self.count))
                return
            self.count += 1


def test_a_rolling_update_of_servers_with_workers(crew):
    """Two servers with two workers each, one after the other, under load: no request is refused or fails, no cell is lost or run twice."""
    flags = ["--drain-delay", "4", "--durable", "results", "--workers", "2"]
    servers = [crew.start(*flags) for _ in range(2)]
    clients = [Client(servers, n) for n in range(12)]
    for client in clients:
        client.start()

    def go_on():
        marks = [client.count for client in clients]
        support.wait_until(lambda: all(client.problems or client.count > mark + 1 for client, mark in zip(clients, marks)),
                           lambda: [vars(client) for client in clients])
        assert not any(client.problems for client in clients), [(client.problems, client.count) for client in clients]

    for n in range(2):
        go_on()
        old = servers[n]
        old.process.send_signal(signal.SIGTERM)
        go_on()
        crew.stop(old)
        go_on()
        servers[n] = crew.start(*flags, port=old.port)
    go_on()
    for client in clients:
        client.stop.set()
    for client in clients:
        client.join(support.DEADLINE)
    assert not any(client.problems for client in clients), [(client.problems, client.count) for client in clients]
    log = [value["value"] for value in (servers[0].execute("n", session=client.session) for client in clients)]
    assert log == [client.count for client in clients]


def stop_by_ctrl_c(terminal, tmp_path):
    port = int(terminal.expect(r"listening on http://127\.0\.0\.1:(\d+)")[1])
    begun, go, answers = tmp_path / "begun", tmp_path / "go", []

    def ask():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=support.DEADLINE)
        connection.request("POST", "/execute", json.dumps({"code": "open(%r, 'w').close()\n" % str(begun) + WAIT_FOR_GO % (str(go), "6 * 7")}),
                           {"Content-Type": "application/json"})
        answers.append(json.loads(connection.getresponse().read()))
        connection.close()

    client = threading.Thread(target=ask)
    client.start()
    support.wait_until(begun.exists, "the cell runs")
    os.write(terminal.fd, b"\x03")
    support.wait_until(lambda: refuses_at(port), "it stops")
    assert not answers
    go.touch()
    client.join(support.DEADLINE)
    assert [answer["value"] for answer in answers] == [42], answers
    assert terminal.process.wait(support.DEADLINE) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_lets_cells_end(workers, tmp_path):
    """The terminal sends SIGINT to all of its processes, and the first one tells the workers: that is one request to stop, not two."""
    flags = ["--executor", "subprocess", "--auth-disabled", "--workers", workers, "--listen", "127.0.0.1:0", "--python", support.PYTHON]
    with support.Terminal("serve", *flags, cwd=tmp_path) as terminal:
        stop_by_ctrl_c(terminal, tmp_path)
