"""A session server that means harm: that of a container, whose code has taken it over, or one elsewhere."""
import contextlib
import resource
import socket
import threading

import pytest

import support

SESSION = b'{"session_id":"%s","workspace_id":null,"owner":"x","created_at":"2026-01-01T00:00:00Z","idle_seconds":0,"state":"idle","runs":0,"pending":0}' % (b"a" * 32)


def answer(body, status=b"201 Created", *headers):
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n%s" % (
        status, len(body), b"".join(each + b"\r\n" for each in headers), body)


@contextlib.contextmanager
def hostile(script):
    """script(method, path) -> bytes, or an iterator of them. Yields the URL and the heads that came."""
    heads = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                with sock, contextlib.suppress(OSError):
                    sock.settimeout(support.DEADLINE)
                    data = b""
                    while b"\r\n\r\n" not in data:
                        piece = sock.recv(65536)
                        if not piece:
                            break
                        data += piece
                    else:
                        heads.append(data.decode("latin-1"))
                        method, path = data.split(b" ", 2)[:2]
                        said = script(method.decode(), path.decode())
                        for each in [said] if isinstance(said, bytes) else said:
                            sock.sendall(each)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield "http://127.0.0.1:%d" % listener.getsockname()[1], heads
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def run(url, *flags):
    return support.workcell("run", "--json", "--executor", "remote", "--remote-url", url, "--timeout", "5", *flags, "-e", "1")


def opens(events):
    """A server that opens sessions, and answers runs with these."""
    def script(method, path):
        if path.endswith("/runs"):
            return events() if callable(events) else events
        return answer(SESSION)

    return script


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def floods():
    yield STREAM + b"id: 1\nevent: chunk\ndata: "
    while True:
        yield b"x" * (1 << 20)


ANSWERS = {
    "a redirect to another place": lambda m, p: answer(b"", b"302 Found", b"Location: http://127.0.0.1:1/elsewhere"),
    "a redirect to a file": lambda m, p: answer(b"", b"302 Found", b"Location: file:///etc/passwd"),
    "no JSON": lambda m, p: answer(b"<html>"),
    "deep JSON": lambda m, p: answer(b"[" * 500000),
    "an answer without end": lambda m, p: iter([b"HTTP/1.1 201 Created\r\n\r\n"] + [b"x" * (1 << 20)] * 8),
    "heads without end": lambda m, p: iter([b"HTTP/1.1 201 Created\r\n"] + [b"X-H: " + b"y" * 60000 + b"\r\n"] * 100),
    "an id that is a path": lambda m, p: answer(SESSION.replace(b"a" * 32, b"../../etc/passwd")),
    "an id with a header in it": lambda m, p: answer(SESSION.replace(b"a" * 32, b"a\\r\\nX-Injected: yes")),
    "an id of another type": lambda m, p: answer(b'{"session_id": 5}'),
    "no HTTP": lambda m, p: b"\x16\x03\x01\x02\x00" * 100,
    "nothing": lambda m, p: b"",
    "a result that is none": opens(STREAM + b"id: 1\nevent: result\ndata: [1]\n\n"),
    "a chunk of no stream": opens(STREAM + b'id: 1\nevent: chunk\ndata: {"stream": 1}\n\n'),
    "too many parts": opens(STREAM + b'id: 1\nevent: display\ndata: {"parts": [%s]}\n\n' % b",".join([b'{"type":"a","text":"b"}'] * 5000)),
}


@pytest.mark.parametrize("what", sorted(ANSWERS))
def test_a_hostile_answer_is_an_error_and_no_more(what):
    """It is told with a code, nothing is followed, and the program ends in order."""
    with hostile(ANSWERS[what]) as (url, heads):
        done = run(url)
    assert done.status in set(support.EXIT.values()) - {0}, done
    assert "root:" not in done.out + done.err
    assert not [head for head in heads if "X-Injected" in head or "passwd" in head or "elsewhere" in head], heads


def test_the_token_goes_nowhere_else(tmp_path):
    """A redirect to another server, which would be sent the token."""
    (tmp_path / "token").write_text("t0ken-of-the-tests")
    with hostile(lambda m, p: answer(b"{}")) as (other, seen):
        with hostile(lambda m, p: answer(b"", b"307 Temporary Redirect", b"Location: %s/v1/sessions" % other.encode())) as (url, _):
            done = run(url, "--auth-token-file", tmp_path / "token")
    assert done.status != 0 and not seen, (done, seen)


def test_an_event_without_end_does_not_stay():
    """The cell's own time ends it, whatever the server sends."""
    with hostile(opens(floods)) as (url, _):
        done = support.workcell("run", "--json", "--executor", "remote", "--remote-url", url, "--timeout", "1", "-e", "1")
    assert done.status in set(support.EXIT.values()) - {0}, done


def bounded():
    if not support.is_asan():  # which maps terabytes
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))


def result(body):
    return STREAM + b"id: 1\nevent: result\ndata: " + body + b"\n\n"


RESULT = b'{"session_id":"%s","value":1,"repr":"1","mime":{},"error":null,"state":"kept","isolation":{}%s}'
BRACKETS = b"[" + b"[]," * ((8 << 20) - 1) + b"[]]"  # some gigabytes as a tree

HEAVY = {
    "a value's parts": lambda: result(b'{"repr":null,"error":null,"state":"kept","mime":{"a/b":%s}}' % BRACKETS),
    "what a result does not have": lambda: result(RESULT % (b"a" * 32, b',"other":' + BRACKETS)),
    "a receipt": lambda: result(RESULT.replace(b'"isolation":{}', b'"isolation":%s' % BRACKETS) % (b"a" * 32, b"")),
    "a chunk": lambda: STREAM + b'id: 1\nevent: chunk\ndata: {"stream":"stdout","text":"x","other":%s}\n\n' % BRACKETS,
    "a display": lambda: STREAM + b'id: 1\nevent: display\ndata: {"parts":%s}\n\n' % BRACKETS,
}


@pytest.mark.parametrize("what", sorted(HEAVY))
def test_a_few_bytes_that_would_be_gigabytes(what):
    with hostile(opens(HEAVY[what]())) as (url, _):
        done = support.workcell("run", "--json", "--executor", "remote", "--remote-url", url, "-e", "1", preexec_fn=bounded)
    if what == "a value's parts":  # without which it is a result
        assert done.result["mime"] == {} and done.result["error"] is None, done
    else:
        assert done.status == support.EXIT["kernel_died"] and "too much memory" in done.out + done.err, done


def test_a_server_that_says_it_is_broken_breaks_nothing_here():
    """Its codes are those of its own engine; what it lost is a kernel."""
    answers = [result(b'{"repr":null,"mime":{},"state":"lost","error":{"code":"spawner_failed","type":"","message":"\x1b[2J\x1b]0;x\x07","traceback":""}}'.replace(
        b"\x1b", b"\\u001b").replace(b"\x07", b"\\u0007")), result(RESULT % (b"a" * 32, b""))]
    with hostile(opens(lambda: iter([answers.pop(0)]))) as (url, _):
        done = support.workcell("run", "--executor", "remote", "--remote-url", url, "--keep-going", "-e", "first", "-e", "second")
    assert "kernel_died" in done.err and done.out.strip() == "1", done
    assert "\x1b" not in done.out + done.err and "\x07" not in done.out + done.err, done


def test_questions_that_a_server_makes_up_are_not_asked():
    """Nor are calls that it asks for made: nothing of it reaches this machine's tools, whatever its events are called."""
    words = b"".join(b'id: %d\nevent: %s\ndata: {"id":"1","name":"tools.x","call":"tools.call","method":"tools.call","args":{}}\n\n' % (i, name)
                     for i, name in enumerate((b"approval", b"approval_waiting", b"approval_requested", b"call", b"ask", b"tool", b"message")))
    with hostile(opens(STREAM + words + b"id: 9\nevent: result\ndata: " + RESULT % (b"a" * 32, b"") + b"\n\n")) as (url, heads):
        with support.Terminal("run", "--executor", "remote", "--remote-url", url, "-e", "1") as terminal:
            assert terminal.wait_end() == 0
            while terminal._fill(0.1):
                pass
            text = terminal.plain
    assert "1" in text and "approv" not in text.lower() and "tools" not in text, text
    assert not [head for head in heads if "approv" in head.split("\r\n")[0]], heads


def test_a_flood_of_events():
    """What a cell may print is bounded here, and so is the time."""
    def flood():
        yield STREAM
        piece = b"".join(b'id: %d\nevent: chunk\ndata: {"stream":"stdout","text":"%s"}\n\n' % (i, b"y" * 1000) for i in range(1000))
        while True:
            yield piece

    with hostile(opens(flood)) as (url, _):
        done = support.workcell("run", "--json", "--executor", "remote", "--remote-url", url, "--timeout", "3", "-e", "1",
                                preexec_fn=bounded)
    found = done.results[0]
    support.forget(found)
    assert found["error"]["code"] == "timeout" and len(found["stdout"]) < 64 << 20, found["error"]


# ---- a cell whose answer is lost ----

STATE = b"1" * 32


def loses(before, after):
    """A server that opens a session with these members, closes the connection of its run, and then says that of the session."""
    def script(method, path):
        if path.endswith("/runs"):
            return b""
        return answer(SESSION[:-1] + b"," + (before if method == "POST" else after) + b"}", b"201 Created" if method == "POST" else b"200 OK")

    return script


def error_of(script, *flags):
    with hostile(script) as (url, heads):
        done = run(url, *flags)
    assert done.status == support.EXIT["kernel_died"], done
    return done.result["error"], heads


def test_what_the_server_says_of_a_lost_cell():
    """The other cases below differ in what the server says, and must not end like this one."""
    named = b'"cells":3,"state_id":"%s"' % STATE
    error, _ = error_of(loses(named, named))
    assert error["retry"] is True and "run it again" in error["message"], error
    error, _ = error_of(loses(b'"cells":3', b'"cells":3'))  # an older server
    assert error["retry"] is True, error
    error, _ = error_of(loses(b'"cells":3', b'"cells":2'))
    assert "retry" not in error and "cells before it" in error["message"], error
    error, _ = error_of(loses(b'"cells":3', b'"cells":4'))  # somebody's
    assert "retry" not in error and "not known" in error["message"], error


LIES = [b"-1", b'"3"', b"1e300", b"1" + b"0" * 300, b"9007199254740993", b"18446744073709551616", b"3.5", b"true", b"null", b"[3]", b'{"a":3}', b"-0.5"]


@pytest.mark.parametrize("cells", LIES, ids=lambda cells: cells.decode()[:24])
def test_a_number_of_cells_that_is_none_is_not_known(cells):
    error, _ = error_of(loses(b'"cells":' + cells, b'"cells":' + cells))
    assert error["code"] == "kernel_died" and "retry" not in error, error


@pytest.mark.parametrize("name", [b'"%s"' % (b"0" * 32), b'"%s"' % (b"A" * 32), b'"%s"' % (b"1" * 31), b'"%s"' % (b"1" * 33), b"5", b"null", b'"' + b"1" * (1 << 19) + b'"'],
                         ids=lambda name: name.decode()[:36])
def test_a_name_of_a_state_that_is_none_is_not_known(name):
    error, _ = error_of(loses(b'"state_id":' + name, b'"state_id":' + name))
    assert error["code"] == "kernel_died" and "retry" not in error, error


def test_a_lost_cell_is_repeated_once():
    """By a server that says again and again that it did not take place."""
    named = b'"cells":3,"state_id":"%s"' % STATE
    error, heads = error_of(loses(named, named), "--remote-repeat")
    assert error["retry"] is True and len([head for head in heads if "/runs " in head.split("\r\n")[0]]) == 2, heads


@pytest.mark.parametrize("number", [b"1", b"-5", b'"x"', b"1e300", b"null", b"0"])
def test_a_run_that_is_said_to_go_on_is_looked_for_once(number):
    """The server names the client's run as the one that runs, and never has it. The time of the cell ends that."""
    posted = []

    def script(method, path):
        if path.endswith("/runs"):
            return b""
        if "/events" in path:
            posted.append(path)
            return answer(b'{"code":"not_found","detail":"no"}', b"404 Not Found")
        mine = next((head.partition('"state_id":"')[2][:32] for head in heads if "/runs " in head and '"state_id":"' in head), "1" * 32).encode()
        return answer(SESSION[:-1].replace(b"idle\"", b"busy\"") + b',"running":{"run_id":%s,"state_id":"%s"}}' % (number, mine),
                      b"201 Created" if method == "POST" else b"200 OK")

    with hostile(script) as (url, heads):
        done = support.workcell("run", "--json", "--executor", "remote", "--remote-url", url, "--timeout", "2", "--grace", "1", "-e", "1")
    assert done.status == support.EXIT["timeout"] and len(posted) == (number == b"1"), (done, posted)


def test_the_server_is_not_asked_for_what_its_results_say():
    """With --remote-repeat the state before a cell is known from the opening and from the cell before; of a server that does not say it, it is asked."""
    for said, asked in ((b"1", 0), (b'"x"', 2)):
        state = b',"cells":%s' % said
        with hostile(lambda m, p: result(RESULT % (b"a" * 32, state)) if p.endswith("/runs") else answer(SESSION[:-1] + state + b"}")) as (url, heads):
            done = support.workcell("run", "--executor", "remote", "--remote-url", url, "--remote-repeat", "-e", "first", "-e", "second")
        assert done.status == 0 and len([head for head in heads if head.startswith("GET /v1/sessions/")]) == asked, heads


def test_retry_of_a_server_is_a_truth_value_or_nothing():
    for said, known in ((b"true", True), (b"false", False), (b'"true"', None), (b"1", None), (b"null", None)):
        failed = (RESULT % (b"a" * 32, b"")).replace(b'"error":null', b'"error":{"code":"kernel_died","type":"","message":"x","traceback":"","retry":%s}' % said)
        error, _ = error_of(opens(result(failed)))
        assert error.get("retry") is known, error


# ---- notices ----

def test_notices_of_a_server_are_shown():
    with hostile(opens(result(RESULT % (b"a" * 32, b',"notices":["one","two"]')))) as (url, _):
        assert run(url).result["notices"] == ["one", "two"]


def test_notices_are_bounded_and_cannot_obey():
    limit = 2000
    said = [b'"\\u001b]0;x\\u0007\\u009b2J\\n%s"' % (b"\xc3\xa9" * limit), b"5", b"null", b'{"a":1}', b'""', *[b'"n%d"' % n for n in range(100)]]
    with hostile(opens(result(RESULT % (b"a" * 32, b',"notices":[%s]' % b",".join(said))))) as (url, _):
        done = run(url)
    notices = done.result["notices"]
    assert len(notices) == 16 and notices[1] == "n0" and notices[-1] == "more notices followed that were not kept", notices
    assert notices[0].startswith("?]0;x???2J?\u00e9") and limit - 2 < len(notices[0].encode()) <= limit and notices[0].isprintable(), notices[0]
    for wrong in (b'"text"', b"5", b'{"a":"b"}', b"null"):
        with hostile(opens(result(RESULT % (b"a" * 32, b',"notices":' + wrong)))) as (url, _):
            assert run(url).result["notices"] == []
