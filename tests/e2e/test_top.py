"""`workcell top` on the screen of tmux: what sessions, tools and servers of others write cannot fool the person who looks at it."""
import http.server
import json
import os
import re
import threading

import pytest

import serving
import support

ESC = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x1b[1;1H"
BIDI = "\u202egnp.exe\u202c\u200b\u2066"
WIDE = "\u6f22\u5b57" * 60
MARKS = "e" + "\u0301" * 400
TOOL = serving.ECHO_TOOL


class FakeServer:
    """Answers as a session server does, with what it is told to; what it is asked for is in `posts`."""

    def __init__(self):
        fake = self
        self.sessions, self.approvals, self.posts, self.raw = [], [], [], None

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, status, body):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):  # noqa: N802
                if fake.raw is not None:
                    self.answer(200, fake.raw)
                elif "approvals" in self.path:
                    self.answer(200, json.dumps({"approvals": fake.approvals}).encode())
                else:
                    self.answer(200, json.dumps({"sessions": fake.sessions}).encode())

            def do_POST(self):  # noqa: N802
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fake.posts.append((self.command, self.path, body))
                self.answer(500, json.dumps({"code": "io", "detail": "no " + ESC + BIDI}).encode())

            do_DELETE = do_POST  # noqa: N815

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = "http://127.0.0.1:%d" % self.http.server_port

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def name(number):
    return "%012x%020x" % (number, 0)


def session(number, **more):
    return {"session_id": name(number), "owner": "ann", "client": "127.0.0.1", "created_at": "2026-01-01T00:00:00Z", "idle_seconds": 1, "state": "idle", "executor": "sandbox",
            "pid": 7, "memory_bytes": 1000, "cpu_seconds": 1.0, "running": None, **more}


def waits(number, of, **more):
    return {"id": number, "request_id": "r%d" % number, "session_id": name(of), "kind": "tool", "tool": "echo", "callable": "say", "args": {"text": "call %d" % number}, "reason": "", "waited_ms": 1000, **more}


@pytest.fixture
def fake():
    made = FakeServer()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def top(tmp_path):
    screens = []

    def make(url, *words):
        env = support.host_environment(WORKCELL_REMOTE_URL=url, WORKCELL_SERVE_TOKEN=serving.TOKEN)
        screens.append(support.Screen(tmp_path, env, "/bin/sh", "-c", '"$@"; echo "ended with $?"; exec sleep 1000', "sh", support.BIN, "top", "-d", "0.2", *words))
        return screens[-1]
    yield make
    for screen in screens:
        screen.close()


def shows(screen, pattern):
    return support.wait_until(lambda: re.search(pattern, "\n".join(screen.lines()), re.M), lambda: "%r is not in\n%s" % (pattern, "\n".join(screen.lines())))


def no_harm(screen, pattern):
    """The lines of a whole picture that has the pattern. The first is the head, nothing has a colour or an odd character, and the title is not the code's."""
    def whole():
        lines = screen.lines()
        return lines if lines[0].startswith("SESSION ") and lines[-1].startswith("j k choose") and re.search(pattern, "\n".join(lines), re.M) else None

    lines = support.wait_until(whole, lambda: "%r is not in\n%s" % (pattern, "\n".join(screen.lines())))
    no_escapes(screen, lines)
    assert len(lines) <= 24
    return lines


def no_escapes(screen, lines):
    assert not set("".join(lines)) & set("\u202e\u202c\u200b\u2066\x1b\x07"), lines
    assert "\x1b[31m" not in screen.coloured()
    assert "owned" not in screen.tmux("display-message", "-p", "#{pane_title}")


def test_hostile_texts_of_sessions_and_calls(fake, top):
    bad = ESC + BIDI + "\r\n\t\b\x7f\x9b31m"
    fake.sessions = [session(1, owner="honest", state="busy", running={"code": "the real code", "seconds": 1, "run_id": 1}),
                     session(2, owner=bad * 20, client=bad, state=bad, executor=bad, running={"code": bad + WIDE + MARKS, "seconds": 1e300, "run_id": 1}),
                     session(3, owner=WIDE, running={"code": WIDE, "seconds": 1, "run_id": 1}), session(4, owner=MARKS, running={"code": MARKS * 3, "seconds": 1, "run_id": 1})]
    fake.approvals = [waits(1, 2, tool=bad, callable=bad, reason=bad + WIDE, args={bad: bad + "x" * 100000}), waits(2, 3, tool=WIDE, reason=MARKS * 5), waits(3, 1)]
    screen = top(fake.url)
    lines = no_harm(screen, "echo.say .*call 3")
    rows = [line for line in lines if re.match("00000000000[1-4] ", line)]
    assert len(rows) == 4, "one line for each session:\n" + "\n".join(lines)
    assert any(" honest " in row and row.rstrip().endswith("the real code") for row in rows), "nobody's texts take its place from another one:\n" + "\n".join(lines)
    assert any("WAITS" in line for line in lines) and len([line for line in lines if re.match(r"1\.0s", line)]) == 3


def test_more_than_the_screen_has(fake, top):
    """500 sessions and a flood of calls: the chosen session and its call are seen."""
    fake.sessions = [session(n + 1) for n in range(500)]
    fake.approvals = [waits(n, 2) for n in range(300)] + [waits(1000, 1)]
    screen = top(fake.url)
    lines = no_harm(screen, "more sessions")
    assert lines[1].startswith("000000000001 ") and any("call 1000" in line for line in lines), "its own calls come first:\n" + "\n".join(lines)
    assert any(re.search(r"293 more calls wait", line) for line in lines), lines
    for _ in range(30):
        screen.press("j")
    lines = no_harm(screen, "^00000000001f .* >0")
    assert len([line for line in lines if line.startswith("0000000000")]) >= 8 and any("call 0" in line for line in lines), "those of others are shown where it has none"


def test_the_call_that_was_shown_is_accepted(fake, top):
    """Between the look and the key another call may take its place: the answer is for the one that was shown whole."""
    fake.sessions = [session(1)]
    fake.approvals = [waits(5, 1, reason="harmless" + ESC, args={"text": "harmless " + "x" * 150 + " the end"})]
    screen = top(fake.url)
    shows(screen, "echo.say")
    screen.type("ayyy")  # what is typed before the question is seen answers nothing
    shows(screen, "^accept echo.say of 000000000001\\?")
    shows(screen, "the end")
    assert "\x1b[31m" not in screen.coloured() and fake.posts == []
    fake.approvals = [waits(6, 1, tool="rm"), *fake.approvals]
    screen.press("y")
    support.wait_until(lambda: fake.posts, lambda: "nothing is sent")
    assert fake.posts == [("POST", "/v1/sessions/%s/approvals/5" % name(1), b'{"accept":true}')]
    # The server's refusal is shown as text.
    shows(screen, "no .x1b.0;owned")
    no_escapes(screen, screen.lines())
    # One that no longer waits is not answered, neither is the one that came instead.
    screen.press("r")
    shows(screen, "^reject rm.say")
    fake.approvals = [waits(7, 1, tool="rm")]
    shows(screen, "the call no longer waits")
    screen.press("y")
    screen.press("q")
    shows(screen, "ended with 0")
    assert len(fake.posts) == 1


def test_what_does_not_fit_is_not_accepted(fake, top):
    fake.sessions = [session(1)]
    for args, words in (({"text": "line\n" * 300}, "do not fit on this screen|too long|console"), ({"n%d" % n: 1 for n in range(100)}, "argument")):
        fake.approvals = [waits(5, 1, args=args)]
        screen = top(fake.url)
        shows(screen, "echo.say")
        screen.press("a")
        shows(screen, words)
        screen.press("y")
        screen.press("q")
        shows(screen, "ended with 0")
    assert fake.posts == []


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"sessions": 7}', b'{"sessions": {"a": 1}}', b"\x1b[45m" * 100, b'{"sessions": [1, null, [], {"session_id": 7, "running": [], "pid": {}}], "approvals": 5}',
                                 b'{"sessions": ' + b"[" * 100000, b'{"sessions": [{"session_id": "../../x?\\r\\nX: y", "memory_bytes": 99999999999999999999}]}'])
def test_odd_answers_of_a_server(fake, top, raw):
    fake.raw = raw
    screen = top(fake.url, "-n", "2")
    shows(screen, r"ended with \d+")
    assert not re.search(r"ended with (13[0-9]|139)", "\n".join(screen.lines())), screen.lines()
    assert "\x1b[45m" not in screen.coloured()


def test_a_server_that_does_not_answer(tmp_path):
    """Ctrl-C ends it while it waits, and the terminal is as it was."""
    import socket
    import termios
    with socket.create_server(("127.0.0.1", 0)) as silent:
        terminal = support.Terminal("top", env=support.host_environment(WORKCELL_REMOTE_URL="http://127.0.0.1:%d" % silent.getsockname()[1], WORKCELL_SERVE_TOKEN="x"))
        try:
            connection, _ = silent.accept()
            assert connection.recv(4096).startswith(b"GET /v1/sessions")
            os.write(terminal.fd, b"\x03")
            terminal.wait_end()
            assert termios.tcgetattr(terminal.fd)[3] & termios.ECHO
            connection.close()
        finally:
            terminal.close()
