"""`workcell serve` against clients that are slow, large, malformed or many, and against its own end."""
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import time

import pytest

import serving
import support

AUTH = b"Authorization: Bearer " + serving.TOKEN.encode() + b"\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = serving.Server("--executor", "subprocess", "--base", tmp_path_factory.mktemp("base"), "--head-timeout", "1", "--max-body", "1M",
                          "--max-header", "8k", "--log-level", "warning")
    with serving.shared(made) as shared:
        yield shared


def status_of(data):
    return int(data.split(b" ", 2)[1]) if data.startswith(b"HTTP/1.1 ") else None


def post(body, *headers, path=b"/execute"):
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\n%s%s\r\n%s" % (path, AUTH, b"".join(h + b"\r\n" for h in headers), body)


CODE = b'{"code":"1+1"}'


@pytest.mark.parametrize("data", [
    b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 100, b"GET /%s HTTP/1.1\r\n" % (b"a" * 20000),
    b"POST /execute HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Content-Length: -5\r\n\r\n{}",
    b"POST /execute HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    b"POST /execute HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /execute HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
])
def test_malformed(server, data):
    assert status_of(server.raw(data)) in (None, 400, 413, 414, 431, 505)


@pytest.mark.parametrize("headers", [
    (b"Content-Length: 14", b"Content-Length: 15"),
    (b"Content-Length: 14", b"Content-Length: 14"),
    (b"Content-Length: 14, 14",),
    (b"Content-Length: +14",),
    (b"Content-Length: 14", b"Transfer-Encoding: chunked"),
    (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    (b"Transfer-Encoding: identity", b"Content-Length: 14"),
    (b"Transfer-Encoding: xchunked",),
    (b"Transfer-Encoding: gzip, chunked",),
    (b"Content-Length: 14", b"Host: other"),
    (b"Content-Length: 14", b"Authorization: Bearer other"),
    (b"Content-Length : 14",),
    (b"X-A: b\r\n Content-Length: 3", b"Content-Length: 14", b"Transfer-Encoding : chunked"),
])
def test_what_could_be_read_in_two_ways_is_not_read(server, headers):
    smuggled = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    found = server.raw(post(CODE, *headers) + smuggled)
    assert b"healthy" not in found and b'"value":2' not in found, found
    assert status_of(found) in (None, 400, 413, 501), found


def test_pipelined_requests_are_answered_in_order(server):
    session = server.session()
    one = b"X-Session-ID: " + session.encode()
    data = b"".join(post(body, one, b"Content-Length: %d" % len(body)) for body in
                    (json.dumps({"code": "import time; time.sleep(%g); %d" % (0.05 * (i == 0), i)}).encode() for i in range(5)))
    with socket.create_connection(("127.0.0.1", server.port), timeout=support.DEADLINE) as sock:
        sock.sendall(data)
        text = b""
        while text.count(b'"execution_time_ms"') < 5:
            piece = sock.recv(65536)
            assert piece, text
            text += piece
    assert [text.find(b'"value":%d,' % i) for i in range(5)] == sorted(text.find(b'"value":%d,' % i) for i in range(5))
    assert all(b'"value":%d,' % i in text for i in range(5))


def test_too_large(server):
    answer = server.raw(post(b"", b"Content-Length: 1048577"))
    assert status_of(answer) == 413
    assert status_of(server.raw(post(CODE, b"Content-Length: 14", b"X-Long: " + b"a" * 9000))) in (431, 413)
    chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=support.DEADLINE) as sock:
        sock.sendall(post(b"", b"Transfer-Encoding: chunked") + 17 * chunk)
        text = sock.recv(65536)  # while the body is still under way
        assert status_of(text) == 413 and b'"code":"limit"' in text and b"Connection: close" in text, text
        with pytest.raises(OSError):  # and then it hangs up
            while True:
                sock.sendall(chunk)
    # Who sends everything before it reads hears of it too, and nothing that follows is taken for a request.
    smuggled = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for data in (post(32 * chunk + b"0\r\n\r\n", b"Transfer-Encoding: chunked"), post(b"a" * 4000000, b"Content-Length: 4000000")):
        found = server.raw(data + smuggled)
        assert status_of(found) == 413 and found.count(b"HTTP/1.1 ") == 1, found
    with socket.create_connection(("127.0.0.1", server.port), timeout=support.DEADLINE) as sock:
        sock.sendall(post(b"", b"Content-Length: 4000000", b"Expect: 100-continue"))
        assert status_of(sock.recv(65536)) == 413  # and no 100 before it
    within = server.ask("POST", "/execute", {"code": "'%s'" % ("a" * 1000000)})
    assert within.status == 200 and len(within.json["value"]) == 1000000


def test_slow_heads_are_let_go_and_hold_up_nobody(server):
    before = server.metric("slow_clients_total")
    socks = [socket.create_connection(("127.0.0.1", server.port), timeout=support.DEADLINE) for _ in range(20)]
    for sock in socks:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        sock.setblocking(False)
    session = server.session()

    def dripping():
        for sock in list(socks):
            try:
                sock.sendall(b"a")
                if sock.recv(1) == b"":
                    raise ConnectionError
            except BlockingIOError:
                pass
            except OSError:
                sock.close()
                socks.remove(sock)
        assert server.execute("1", session=session)["value"] == 1
        return not socks

    support.wait_until(dripping, "the server to hang up")
    assert server.metric("slow_clients_total") >= before + 20


def test_the_queue_is_bounded(tmp_path):
    server = serving.Server("--executor", "subprocess", "--max-runs", "2", "--max-queue", "3", "--pool", "0", "--drain", "20")
    go = tmp_path / "go"
    code = "import os, time\nwhile not os.path.exists(%r): time.sleep(0.01)\n'done'" % str(go)
    sessions = [server.session() for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(server.execute, code, session) for session in (*sessions, sessions[0])]
        support.wait_until(lambda: server.metric("runs_running") == 2 and server.metric("runs_waiting") == 3, "all places taken")
        answer = server.ask("POST", "/execute", {"code": "1"}, session=sessions[3])
        assert answer.status == 429 and answer.code == "busy" and int(answer.headers["Retry-After"]) >= 1
        go.write_text("")
        assert [one.result()["value"] for one in waiting] == ["done"] * 5
    server.close()


def test_idle_sessions_expire_by_themselves():
    server = serving.Server("--executor", "subprocess", "--session-idle", "1", pool=0)
    session = server.session()
    support.wait_until(lambda: server.metric("sessions") == 0, "the session to expire")
    answer = server.ask("GET", "/v1/sessions/" + session)
    assert answer.status == 410 and answer.code == "session_expired"
    assert server.metric("sessions_expired_total") == 1
    server.close()


def test_it_drains(tmp_path):
    server = serving.Server("--executor", "subprocess", "--drain", "60", pool=0)
    go = tmp_path / "go"
    session = server.session()
    idle = server.connect()
    assert server.ask("GET", "/health", connection=idle).status == 200
    code = "import os, time\nwhile not os.path.exists(%r): time.sleep(0.01)\n'done'" % str(go)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.execute, code, session)
        support.wait_until(lambda: server.metric("runs_running") == 1, "the cell to run")
        server.process.send_signal(signal.SIGTERM)
        support.wait_until(lambda: "stopping" in server.text(), server.text)
        answer = server.ask("POST", "/execute", {"code": "1"}, session=session, connection=idle)
        assert answer.status == 503 and answer.headers["Retry-After"]
        with pytest.raises(OSError):
            server.ask("GET", "/health")
        assert server.process.poll() is None
        go.write_text("")
        assert running.result()["value"] == "done"
    server.close()


def test_the_second_signal_does_not_wait():
    server = serving.Server("--executor", "subprocess", "--drain", "600", pool=0)
    session = server.session()
    connection, response = server.open("POST", "/v1/sessions/%s/runs" % session, {"code": "print(1, flush=True)\nwhile True: pass"},
                                       headers={"Accept": "text/event-stream"})
    response.read(5)
    server.process.send_signal(signal.SIGTERM)
    support.wait_until(lambda: "stopping" in server.text(), server.text)
    server.close()  # sends another
    connection.close()


def test_readers_that_are_gone_or_do_not_read_do_not_hold_up_the_end():
    server = serving.Server("--executor", "subprocess", "--drain", "1", pool=0)
    held = []
    for gone in (True, False):
        session = server.session()
        body = json.dumps({"code": "for i in range(100000): print('x' * 1000)"}).encode()
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=support.DEADLINE)
        sock.sendall(post(body, b"Accept: text/event-stream", b"Content-Length: %d" % len(body),
                          path=b"/v1/sessions/%s/runs" % session.encode()))
        assert sock.recv(10)
        if gone:
            sock.close()
        else:
            held.append(sock)
    support.wait_until(lambda: server.metric("runs_running") == 2, "both")
    server.close()
    held[0].close()


def test_killed_under_load_nothing_is_left_and_storage_is_whole(tmp_path):
    server = serving.Server("--executor", "sandbox", "--storage", tmp_path / "st", pool=1)
    sessions = [server.session() for _ in range(4)]
    acknowledged = []

    def save(session):
        for i in range(10000):
            name = "%s-%d" % (session[:6], i)
            try:
                answer = server.ask("POST", "/execute", {"code": "artifacts.save(%r, %r * 1000).name" % (name, name)}, session=session)
            except (OSError, serving.http.client.HTTPException):
                return
            if answer.status == 200 and answer.json["value"] == name:
                acknowledged.append(name)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(save, session) for session in sessions]
        support.wait_until(lambda: len(acknowledged) > 40, "artifacts")
        server.process.kill()
        for job in jobs:
            job.result()
    assert server.process.wait(support.DEADLINE) == -signal.SIGKILL
    again = serving.Server("--executor", "sandbox", "--storage", tmp_path / "st", pool=0)
    names = {item["name"] for item in again.ask("GET", "/api/artifacts").json}
    assert set(acknowledged) <= names
    for name in acknowledged[-5:]:
        assert again.ask("GET", "/api/artifacts/" + name).json == name * 1000
    for session in sessions:
        assert again.ask("GET", "/v1/sessions/" + session).status == 404
    again.close()


def test_many_sessions_and_streams(tmp_path):
    """As many as a loaded machine makes quickly; what is bounded is the memory of each."""
    count = int(os.environ.get("WORKCELL_TEST_SESSIONS", "250"))
    server = serving.Server("--executor", "subprocess", "--max-sessions", str(count), "--max-runs", "500", "--log", "off", pool=4)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        sessions = list(pool.map(lambda _: server.session(), range(count)))
        assert server.ask("POST", "/sessions").status == 429
        go = tmp_path / "go"
        code = "import os, time\nprint(1, flush=True)\nwhile not os.path.exists(%r): time.sleep(0.05)\n'done'" % str(go)
        streams = [server.open("POST", "/v1/sessions/%s/runs" % session, {"code": code}, headers={"Accept": "text/event-stream"})
                   for session in sessions[:200]]
        support.wait_until(lambda: server.metric("runs_running") == len(streams), "all streams")
        assert server.execute("1", session=sessions[-1] if count > 200 else None)["value"] == 1 if count > 200 else True
        go.write_text("")
        for connection, response in streams:
            assert serving.parse_events(response.read().decode())[-1][2]["value"] == "done"
            connection.close()
    assert support.peak_rss_bytes(server.pid) < support.memory(100)
    server.close()


def test_signals_at_any_moment_leave_no_folder(tmp_path):
    tokens = serving.token_file(serving.TOKENS)
    for pause in range(0, 150, 5):
        process = support.popen([support.BIN, "serve", "--listen", "127.0.0.1:0", "--executor", "subprocess", "--python", support.bare_python(),
                                 "--pool", "0", "--auth-token-file", tokens], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, env=support.host_environment(TMPDIR=str(tmp_path)))
        time.sleep(pause / 1000)
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.001)
        assert process.returncode in (0, -signal.SIGTERM)
        assert os.listdir(tmp_path) == []


def test_signals_until_the_end_do_not_change_the_status():
    """It was asked to stop and did: the last of many requests is not what ended it."""
    tokens = serving.token_file(serving.TOKENS)
    for _ in range(10):
        process = support.popen([support.BIN, "serve", "--listen", "127.0.0.1:0", "--executor", "subprocess", "--python", support.bare_python(),
                                 "--pool", "0", "--workers", "1", "--auth-token-file", tokens], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, env=support.host_environment())
        assert any(b"listening" in line for line in process.stderr)
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.0003)
        process.stderr.close()
        assert process.returncode == 0
