"""A server that leaves: it is not ready first, serves on for a while, puts idle sessions to sleep, and lets cells end."""
import os
import signal
import socket
import subprocess
import threading

import pytest

import serving
import support


@pytest.fixture
def place(tmp_path):
    (tmp_path / "work").mkdir()
    return ["--executor", "subprocess", "--base", tmp_path / "base", "--cwd", tmp_path / "work", "--saved", tmp_path / "saved"]


def ready(server):
    answer = server.ask("GET", "/ready", token=None)
    return answer.status, answer.json["status"]


def told(server):
    server.process.send_signal(signal.SIGTERM)
    support.wait_until(lambda: ready(server) == (503, "draining"), lambda: ready(server))


@pytest.mark.parametrize("workers", [1, 2])
def test_readiness_goes_first(place, workers):
    server = serving.Server(*place, "--drain-delay", "30", "--workers", workers)
    session = server.session()
    assert ready(server) == (200, "ready") and server.metric("draining") == 0
    connection = server.connect()
    assert server.execute("x = 1", session=session, connection=connection)["error"] is None
    told(server)
    assert server.ask("GET", "/health", token=None).status == 200 and server.metric("draining") == workers
    # Whoever is still here is served, on connections that end, and new sessions can be opened: they will be saved.
    answer = server.ask("POST", "/execute", {"code": "x + 1"}, session=session)
    assert answer.status == 200 and answer.json["value"] == 2, answer
    assert answer.headers["Connection"] == "close"
    other = server.session()
    assert server.execute("y = 5", session=other)["error"] is None
    server.process.send_signal(signal.SIGTERM)  # enough
    server.close()
    with serving.shared(*place) as server:
        assert server.execute("x", session=session)["value"] == 1
        assert server.execute("y", session=other)["value"] == 5


@pytest.mark.parametrize("workers", [1, 2])
def test_connections_that_wait_are_served(place, workers):
    """Those that Linux has accepted for the server when it stops to listen: a proxy has sent its request by then, and would not send it again."""
    server = serving.Server(*place, "--workers", workers)
    pids = server.worker_pids() or [server.pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    clients = []
    for _ in range(20):
        client = socket.create_connection(("127.0.0.1", server.port), timeout=support.DEADLINE)
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        clients.append(client)
    server.process.send_signal(signal.SIGTERM)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    for client in clients:
        with client:
            assert client.recv(4096).startswith(b"HTTP/1.1 ")  # 503, or 200 if it was read before the signal
    server.close()


def test_sessions_that_would_be_lost_are_not_opened(tmp_path):
    server = serving.Server("--executor", "subprocess", "--base", tmp_path / "base", "--drain-delay", "30")
    session = server.session()
    told(server)
    answer = server.ask("POST", "/v1/sessions")
    assert answer.status == 503 and answer.code == "busy" and answer.headers["Retry-After"], answer
    assert server.execute("1", session=session)["value"] == 1
    server.process.send_signal(signal.SIGTERM)
    server.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_idle_sessions_sleep_while_the_server_is_leaving(place, workers):
    server = serving.Server(*place, "--drain-delay", "30", "--workers", workers)
    session = server.session()
    pid = server.execute("import os; x = 7; os.getpid()", session=session)["value"]
    told(server)
    support.wait_until(lambda: not os.path.exists("/proc/%d" % pid), "it sleeps")
    assert server.execute("x", session=session)["value"] == 7  # and wakes for whoever still comes here
    server.process.send_signal(signal.SIGTERM)
    server.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cell_ends_and_idle_sessions_do_not_wait_for_it(place, workers):
    """Another server has the idle session while the first still runs the other's cell."""
    first, second = (serving.Server(*place, "--workers", workers) for _ in range(2))
    try:
        idle, busy = first.session(), first.session()
        assert first.execute("x = 3", session=idle)["error"] is None
        go = os.path.join(str(place[5]), "go")
        code = "import os, time\nwhile not os.path.exists(%r): time.sleep(0.01)\ny = 'done'\ny" % go
        answers = []
        thread = threading.Thread(target=lambda: answers.append(first.ask("POST", "/execute", {"code": code}, session=busy)))
        thread.start()
        support.wait_until(lambda: first.metric("runs_running") == 1, "it runs")
        first.process.send_signal(signal.SIGTERM)

        def woken():
            return second.ask("POST", "/execute", {"code": "x"}, session=idle)

        support.wait_until(lambda: woken().status == 200, woken)
        assert woken().json["value"] == 3
        assert first.process.poll() is None and not answers  # the cell still runs there
        with open(go, "w", encoding="utf-8"):
            pass
        thread.join(support.DEADLINE)
        assert answers[0].status == 200 and answers[0].json["value"] == "done", answers
        first.close()
        assert second.execute("y", session=busy)["value"] == "done"
    finally:
        for server in (first, second):
            if server.process.poll() is None:
                server.close()


def test_a_save_that_is_under_way_is_not_cut_off(place):
    server = serving.Server(*place, "--session-idle", "1")
    sessions = [server.session() for _ in range(4)]
    for n, session in enumerate(sessions):
        assert server.execute("x = bytearray(30_000_000); n = %d" % n, session=session)["error"] is None
    support.wait_until(lambda: server.metric("sessions_hibernated_total") >= 1, "the first sleeps")
    server.close()
    with serving.shared(*place) as server:
        assert [server.execute("[n, len(x)]", session=session)["value"] for session in sessions] == [[n, 30_000_000] for n in range(4)]


def test_a_cell_whose_time_is_over_ends_its_stream_with_a_result(place):
    """Not with the end of the stream alone, which says nothing."""
    server = serving.Server(*place, "--drain", "0.2")
    session = server.session()
    connection, response = server.open("POST", "/v1/sessions/%s/runs" % session, {"code": "print('on', flush=True)\nimport time\ntime.sleep(600)"},
                                       headers={"Accept": "text/event-stream"})
    while b"on" not in response.readline():
        pass
    server.process.send_signal(signal.SIGTERM)
    name, data = serving.parse_events(response.read().decode())[-1][1:]
    assert name == "result" and data["state"] in ("lost", "kept") and data["error"]["code"] in ("closed", "cancelled", "interrupted"), (name, data)
    connection.close()
    server.close()


def test_the_delay_ends_by_itself(place):
    server = serving.Server(*place, "--drain-delay", "0.3")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(support.DEADLINE) == 0
    assert "leaving: not ready for new clients, and stopping in 0.3 s" in server.text()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_that_starts_says_so(tmp_path, workers):
    """Its interpreter waits for a file: until then a probe tells it from one that is not ready, and from none."""
    python, go, port = tmp_path / "python", tmp_path / "go", serving.free_port()
    python.write_text('#!/bin/sh\nwhile [ ! -e %s ]; do sleep 0.02; done\nexec %s "$@"\n' % (go, support.bare_python()))
    python.chmod(0o755)
    asked = serving.Server.__new__(serving.Server)
    asked.port, asked.path, asked.workers = port, None, workers
    process = support.popen([support.BIN, "serve", "--python", str(python), "--executor", "subprocess", "--workers", str(workers), "--cwd",
                             str(tmp_path), "--listen", "127.0.0.1:%d" % port, "--pool", "1"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, env=support.host_environment(WORKCELL_SERVE_TOKEN=serving.TOKEN))

    def status(path, **options):
        try:
            answer = asked.ask("GET", path, **options)
        except OSError:
            return None  # it does not listen yet
        return answer.status, answer.json.get("status") or answer.code

    try:
        support.wait_until(lambda: status("/started", token=None) == (503, "starting"), lambda: status("/started", token=None))
        assert status("/ready", token=None) == (503, "starting") and status("/health", token=None) == (200, "starting")
        assert status("/v1/sessions") == (503, "busy") and status("/startedx", token=None) == (503, "busy")
        # Clients that say nothing, too much, or half of it hold up nobody, and not the start either.
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        silent[1].sendall(b"GET /ready HTTP/1.1\r\nX: " + b"x" * 100_000)
        silent[2].sendall(b"GET /rea")
        support.wait_until(lambda: status("/started", token=None) == (503, "starting"), "others are answered")
        go.write_text("")
        support.wait_until(lambda: status("/started", token=None) == (200, "started"), lambda: status("/started", token=None))
        assert status("/ready", token=None) == (200, "ready") and status("/v1/sessions", token=None)[0] == 401
        for each in silent:
            each.close()
    finally:
        go.write_text("")
        process.terminate()
        assert process.wait(support.DEADLINE) == 0
