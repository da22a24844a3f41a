"""packaging/nginx.conf: a request that no server took goes to another one, and one that may have begun is never sent twice."""
import contextlib
import http.client
import os
import socket
import subprocess
import threading

import pytest

import crews
import serving
import support

BUSY = b'HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 7\r\nContent-Length: 15\r\n\r\n{"code":"busy"}'
GOOD = b"HTTP/1.1 200 OK\r\nX-Session-ID: s\r\nX-Workcell-Owner: http://10.0.0.1:1\r\nContent-Length: 4\r\n\r\ngood"
DIES = b""


class Peer:
    """A server with an answer for each request in turn, the last one for all that follow; remembers method, path and body. DIES: it closes the
    connection when it has the request. LEAVES (after an answer): it does not listen any more."""

    def __init__(self, *answers):
        self.answers, self.seen = list(answers), []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.serve, args=(self.listener.accept()[0],), daemon=True).start()

    def serve(self, sock):
        with sock, contextlib.suppress(OSError):
            file = sock.makefile("rb")
            method, path, _ = file.readline().decode().split()
            head = http.client.parse_headers(file)
            body = file.read(int(head.get("Content-Length") or 0))
            self.seen.append((method, path, len(body)))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if callable(answer):
                answer = answer(self)
            for piece in [answer] if isinstance(answer, bytes) else answer:
                sock.sendall(piece)
            sock.shutdown(socket.SHUT_WR)

    def leave(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def busy_and_leaves(peer):
    peer.leave()
    return BUSY


def refusing():
    """A port that refuses connections."""
    return serving.free_port()


@contextlib.contextmanager
def nginx(tmp_path, *peers):
    proxy = crews.Nginx(tmp_path / "nginx.conf", [peer if isinstance(peer, int) else peer.port for peer in peers], wait=False)
    try:
        def listens():
            assert proxy.process.poll() is None, (tmp_path / "nginx.conf.log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", proxy.port)):
                return True

        support.wait_until(listens, "nginx listens")
        yield proxy
    finally:
        proxy.close()
        for peer in peers:
            if not isinstance(peer, int):
                peer.leave()


def ask(proxy, method, path="/execute", body=None):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=support.DEADLINE)
    with contextlib.closing(connection):
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


def seen(*peers):
    return sum((peer.seen for peer in peers), [])


def test_the_file_as_it_is():
    path = os.path.join(support.ROOT, "packaging", "nginx.conf")
    done = subprocess.run([crews.Nginx.program(), "-t", "-q", "-c", path, "-g", "pid /dev/null; error_log stderr;"], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE", "PATCH"])
def test_a_server_that_refuses_connections(tmp_path, method):
    good = Peer(GOOD)
    with nginx(tmp_path, refusing(), good, refusing()) as proxy:
        for n in range(6):
            assert ask(proxy, method, "/%d" % n, b"x" * n)[:2] == (200, b"good")
        assert seen(good) == [(method, "/%d" % n, n) for n in range(6)]


@pytest.mark.parametrize("size", [0, 10, 20 << 20])
def test_a_server_that_answers_503(tmp_path, size):
    """Also with a body that nginx keeps in a file."""
    busy, good = Peer(BUSY), Peer(GOOD)
    with nginx(tmp_path, busy, good) as proxy:
        for n in range(4):
            status, body, head = ask(proxy, "POST", "/%d" % n, b"x" * size)
            assert (status, body, head["X-Workcell-Owner"], head["X-Session-ID"]) == (200, b"good", "http://10.0.0.1:1", "s")
        assert sorted(set(seen(good))) == [("POST", "/%d" % n, size) for n in range(4)] and len(good.seen) == 4
        assert 0 < len(busy.seen) <= 8 and {size for _, _, size in busy.seen} == {size}


def test_all_servers_answer_503(tmp_path):
    """Each is asked, none without end, and the client gets the answer with Retry-After."""
    peers = [Peer(BUSY) for _ in range(3)]
    with nginx(tmp_path, *peers) as proxy:
        for _ in range(3):
            status, body, head = ask(proxy, "POST", body=b"{}")
            assert (status, body, head["Retry-After"]) == (503, b'{"code":"busy"}', "7")
        assert all(peer.seen for peer in peers) and len(seen(*peers)) == 3 * 4


def test_a_request_that_may_have_begun_is_sent_once(tmp_path):
    """The server that has it dies; so it does where another one answered 503 before."""
    for first in ([DIES], [BUSY, DIES]):
        peers = [Peer(*first), Peer(*first)]
        folder = tmp_path / str(len(first))
        folder.mkdir()
        with nginx(folder, *peers) as proxy:
            for _ in range(4):
                assert ask(proxy, "POST", body=b"{}")[0] == 502
            assert len(seen(*peers)) == 4 + 2 * (len(first) - 1), seen(*peers)  # each that was sent to a server that dies, and the 503s


def test_reading_is_repeated(tmp_path):
    dies, good = Peer(DIES), Peer(GOOD)
    with nginx(tmp_path, dies, good) as proxy:
        for n in range(4):
            assert ask(proxy, "GET", "/%d" % n)[:2] == (200, b"good")
        assert dies.seen


def test_a_server_that_answers_503_and_then_refuses(tmp_path):
    """As one does that has just stopped: nginx may ask it once more, and the request has not begun."""
    for order in (lambda *peers: peers, lambda *peers: peers[::-1]):
        stops, good = Peer(busy_and_leaves), Peer(GOOD)
        folder = tmp_path / str(len(os.listdir(tmp_path)))
        folder.mkdir()
        with nginx(folder, *order(stops, good)) as proxy:
            for n in range(4):
                assert ask(proxy, "POST", body=b"{}")[:2] == (200, b"good")
            assert len(good.seen) == 4 and len(stops.seen) <= 1


def test_no_server_is_there(tmp_path):
    with nginx(tmp_path, refusing(), refusing()) as proxy:
        for method in ("POST", "GET"):
            assert ask(proxy, method)[0] == 502


@pytest.mark.parametrize("answer", [b'HTTP/1.1 502 Bad Gateway\r\nContent-Length: 17\r\n\r\n{"code":"closed"}', b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
                                    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n{}"], ids=lambda answer: answer[9:12].decode())
def test_other_answers_are_passed_on(tmp_path, answer):
    """502 of a server: another one, which it had passed the request on to, died."""
    peers = [Peer(answer), Peer(answer)]
    with nginx(tmp_path, *peers) as proxy:
        status, body, head = ask(proxy, "POST", body=b"{}")
        assert (b"%d" % status, body) == (answer[9:12], answer.partition(b"\r\n\r\n")[2]) and len(seen(*peers)) == 1
        assert head["Retry-After"] == ("3" if status == 429 else None)


@pytest.mark.parametrize("before", [[], [BUSY]])
def test_events_are_not_held_back(tmp_path, before):
    go = threading.Event()

    def events(peer):
        def pieces():
            yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Run-ID: 1\r\nConnection: close\r\n\r\n"
            yield b"id: 1\nevent: chunk\ndata: {}\n\n"
            go.wait()
            yield b"id: 2\nevent: result\ndata: {}\n\n"

        return pieces()

    peers = [Peer(*before, events), Peer(*before, events)]
    with nginx(tmp_path, *peers) as proxy:
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=support.DEADLINE)
        connection.request("POST", "/v1/sessions/s/runs", b"{}", {"Accept": "text/event-stream"})
        answer = connection.getresponse()
        try:
            assert answer.headers["X-Run-ID"] == "1" and answer.readline() == b"id: 1\n"  # while the second one has not been sent
        finally:
            go.set()
        assert b"id: 2" in answer.read()
        connection.close()


def test_uploads_are_passed_on_as_they_come(tmp_path):
    """Without a copy at nginx, and of any size; what was sent is not sent again."""
    path, size = "/v1/sessions/s/files/a/b", 80 << 20
    good = Peer(GOOD)
    with nginx(tmp_path, refusing(), good) as proxy:
        for _ in range(3):
            assert ask(proxy, "PUT", path, b"x" * size)[0] == 200
        assert good.seen == [("PUT", path, size)] * 3
        assert ask(proxy, "POST", "/execute", b"x" * size)[0] == 413
    busy = [Peer(BUSY), Peer(BUSY)]
    (tmp_path / "b").mkdir()
    with nginx(tmp_path / "b", *busy) as proxy:
        status, _, head = ask(proxy, "PUT", path, b"x" * size)
        assert (status, head["Retry-After"]) == (503, "7") and len(seen(*busy)) == 1
