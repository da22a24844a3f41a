"""Who runs what on a server: /v1/sessions, the log of a session, `workcell ps`, `top`, `kill`, `logs`, `attach`; what weak tokens see of it."""
import concurrent.futures
import json
import os
import re
import socket
import termios
import time

import pytest

import serving
import support

ALICE, BOB, READER = "t0ken-of-alice", "t0ken-of-bob", "t0ken-of-the-reader"
ESC = "\x1b]0;owned\x07\x1b[31m"
TOKENS = serving.TOKENS + '  - {name: "e\\e[31mvil", token: t0ken-of-the-evil}\n'


@pytest.fixture(scope="module")
def server():
    with serving.shared(serving.Server("--executor", "subprocess", tokens=TOKENS)) as shared:
        yield shared


def cli(server, command, *words, token=serving.TOKEN, status=0, **options):
    env = support.host_environment(WORKCELL_REMOTE_URL="http://127.0.0.1:%d" % server.port, WORKCELL_SERVE_TOKEN=token)
    done = support.workcell(command, *words, env=env, **options)
    assert done.status == status, done
    return done


def listed(server, **options):
    return {each["session_id"]: each for each in server.ask("GET", "/v1/sessions?all=true", **options).json["sessions"]}


def start(server, session, code, token=serving.TOKEN):
    answer = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": code}, token=token)
    assert answer.status == 202, answer
    support.wait_until(lambda: listed(server)[session]["running"], server.text)
    return answer.json["run_id"]


def end(server, session, token=serving.TOKEN):
    assert server.ask("DELETE", "/v1/sessions/" + session, token=token).status == 204


# ---- what a list tells ----

def test_a_session_tells_who_what_and_how_much(server):
    session = server.session(token=ALICE)
    start(server, session, "\n  \nimport time; x = b'x' * (200 << 20)\nwhile True: pass", token=ALICE)
    support.wait_until(lambda: (listed(server)[session]["memory_bytes"] or 0) > 200 << 20, server.text)
    support.wait_until(lambda: (listed(server)[session]["cpu_seconds"] or 0) > 0.2, server.text)
    found = listed(server)[session]
    assert found["owner"] == "alice" and found["client"] == "127.0.0.1" and found["executor"] == "subprocess"
    assert found["state"] == "busy" and re.match(r"\d{4}-\d\d-\d\dT", found["created_at"])
    assert found["running"]["code"] == "import time; x = b'x' * (200 << 20)" and found["running"]["run_id"] == 1
    assert found["running"]["seconds"] > 0 and found["memory_bytes"] > 200 << 20
    with open("/proc/%d/cmdline" % found["pid"], "rb") as file:
        assert file.read().rstrip(b"\0").decode() == "workcell-kernel " + session
    with open("/proc/%d/comm" % found["pid"], encoding="ascii") as file:
        assert file.read() == "workcell-kernel\n"
    assert server.ask("GET", "/v1/sessions/" + session, token=ALICE).json["pid"] == found["pid"]
    end(server, session)


def test_children_count(server):
    session = server.session()
    code = "import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', 'x = bytes([1]) * (300 << 20); input()'], stdin=subprocess.PIPE)"
    server.execute(code, session=session)
    support.wait_until(lambda: (listed(server)[session]["memory_bytes"] or 0) > 300 << 20, server.text)
    end(server, session)


def test_the_code_line_has_no_secrets_and_is_cut(server):
    session = server.session()
    for code, shown in (("password = 'hunter2-is-secret'; import time; time.sleep(60)", "hunter2"),
                        ("key = 'AKIAIOSFODNN7EXAMPLE'; import time; time.sleep(60)", "AKIAIOSFODNN7"),
                        ("import time; time.sleep(60)  # " + "x" * 90 + " password=hunter2-is-secret", "hunter2")):
        start(server, session, code)
        line = listed(server)[session]["running"]["code"]
        assert shown not in line and len(line.encode()) <= 123, line
        assert shown not in cli(server, "ps").out + cli(server, "logs", session).err
        server.ask("POST", "/v1/sessions/%s/interrupt" % session)
        support.wait_until(lambda: not listed(server)[session]["running"], server.text)
    end(server, session)


# ---- weak tokens ----

def test_others_see_nothing(server):
    session = server.session(token=ALICE)
    server.execute("print('private')", session=session, token=ALICE)
    for token in (BOB, READER):
        assert session not in listed(server, token=token)
        assert server.ask("GET", "/v1/sessions/%s/log?follow=false" % session, token=token).status == 404
        assert session[:12] not in cli(server, "ps", token=token).out
        for command in ("kill", "logs"):
            refused = cli(server, command, session, token=token, status=1)
            assert "not_found" in refused.err and "private" not in refused.out
        assert "not_found" in cli(server, "attach", session, token=token, status=1, stdin=b"1").err
    assert server.ask("GET", "/v1/sessions/%s/log" % session, token="t0ken-of-the-runner").status == 403
    assert "unauthorized" in cli(server, "ps", token="wrong-wrong-wrong-wrong", status=1).err
    assert "private" in cli(server, "logs", session, token=ALICE).out
    assert session[:12] in cli(server, "ps").out, "an admin sees all"
    end(server, session)


def test_no_escape_reaches_a_terminal(server):
    session = server.session(token="t0ken-of-the-evil")
    code = "# %s\nimport time\nprint(%r)\ntime.sleep(60)" % (ESC, ESC)
    start(server, session, code, token="t0ken-of-the-evil")
    for words in (("ps",), ("top", "-n", "1"), ("logs", session)):
        env = support.host_environment(WORKCELL_REMOTE_URL="http://127.0.0.1:%d" % server.port, WORKCELL_SERVE_TOKEN=serving.TOKEN)
        with support.Terminal(*words, env=env) as terminal:
            assert terminal.wait_end() == 0
            text = terminal.seen
            assert "owned" in text, text
            assert "\x1b]" not in text and "\x07" not in text and "\x1b[31m" not in text, text
    for line in cli(server, "ps").out.splitlines():
        assert "\x1b" not in line
    end(server, session)


# ---- the commands ----

def test_ps_and_kill(server):
    first, second = server.session(token=ALICE), server.session(token=ALICE)
    out = cli(server, "ps", token=ALICE).out.splitlines()
    assert out[0].split() == ["SESSION", "OWNER", "CLIENT", "AGE", "STATE", "PID", "MEMORY", "CPU", "%CPU", "EXECUTOR", "CODE"]
    assert {line.split()[0] for line in out[1:]} >= {first[:12], second[:12]} and all(" alice " in line for line in out[1:])
    assert {each["session_id"] for each in json.loads(cli(server, "ps", "--json", token=ALICE).out)} >= {first, second}
    start(server, first, "import time; time.sleep(60)", token=ALICE)
    cli(server, "kill", "--interrupt", first[:16], token=ALICE)
    support.wait_until(lambda: not listed(server)[first]["running"], server.text)
    cli(server, "kill", first[:16], second, token=ALICE)
    assert not {first, second} & set(listed(server))
    assert "not_found" in cli(server, "kill", first, status=1).err
    assert "is not the beginning" in cli(server, "kill", "../../x", status=2).err
    assert "give at least one" in cli(server, "kill", status=2).err


def test_nobody_at_the_address():
    done = support.workcell("ps", "--remote-url", "http://127.0.0.1:%d" % serving.free_port())
    assert done.status == 125 and "no answer from the server at" in done.err, done
    assert support.workcell("ps", "--remote-url", "ftp://x").status == 2


def test_top_shows_the_busiest_first(server):
    idle, busy = server.session(), server.session()
    start(server, busy, "while True: pass")
    out = cli(server, "top", "-n", "2", "-d", "1").out
    last = [line.split() for line in out.split("SESSION")[2].splitlines()[1:]]
    assert last[0][0] == busy[:12] and float(last[0][8]) > 10, out
    end(server, idle), end(server, busy)


def test_logs_have_the_output_of_all_cells(server):
    session = server.session()
    server.execute("print('by execute')", session=session)
    server.events(session, "import sys; print('by a run'); print('and this', file=sys.stderr)")
    server.execute("6 * 7", session=session)
    server.execute("1 / 0", session=session)
    done = cli(server, "logs", session[:10])
    assert done.out == "by execute\nby a run\nand this\n42\n", done
    assert "-- cell 1: print('by execute')" in done.err and "-- cell 4: exception: division by zero" in done.err, done
    assert cli(server, "logs", "-q", session).err == ""
    end(server, session)


def test_logs_follow_until_the_session_ends(server):
    session = server.session()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        following = pool.submit(cli, server, "logs", "-f", "-q", session)
        support.wait_until(lambda: server.metric("requests_in_flight") >= 2, server.text)
        for i in range(3):
            server.execute("print(%d)" % i, session=session)
        end(server, session)
        assert following.result(support.DEADLINE).out == "0\n1\n2\n"


def test_attach_runs_code_in_it(server):
    session = server.session()
    server.execute("x = 20; print('before')", session=session)
    done = cli(server, "attach", "-q", session, stdin=b"print('now')\nx * 2.1")
    assert done.out == "now\n42.0\n", done
    assert "-- cell 3: exception: name 'y' is not defined" in cli(server, "attach", session, stdin=b"y", status=1).err
    end(server, session)


def test_attach_on_a_terminal(server):
    session = server.session()
    env = support.host_environment(WORKCELL_REMOTE_URL="http://127.0.0.1:%d" % server.port, WORKCELL_SERVE_TOKEN=serving.TOKEN)
    with support.Terminal("attach", session, env=env) as terminal:
        support.wait_until(lambda: server.metric("requests_in_flight") >= 2, server.text)
        terminal.send("6 * 7\n")
        terminal.expect("42")
        terminal.send("import time; time.sleep(60)\n")
        support.wait_until(lambda: listed(server)[session]["running"], server.text)
        terminal.send("\x03")
        terminal.expect("interrupted")
        terminal.send("\x04")
        assert terminal.wait_end() == 0
    assert session in listed(server), "it stays"
    end(server, session)


# ---- slow readers, floods ----

def whole(answer):
    """The events of a chunked body, up to the last one that is complete."""
    rest, body = answer.split(b"\r\n\r\n", 1)[1], b""
    while b"\r\n" in rest:
        size, rest = rest.split(b"\r\n", 1)
        body, rest = body + rest[:int(size, 16)], rest[int(size, 16) + 2:]
    return body[:body.rindex(b"\n\n")]


def test_a_reader_that_does_not_read_holds_nothing(server):
    session = server.session()
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(("GET /v1/sessions/%s/log HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n" % (session, serving.TOKEN)).encode())
    # More than sockets and the log can hold.
    code = "for i in range(200): print('x' * 100_000)\nprint('the end')"
    assert server.execute(code, session=session)["stdout"].endswith("the end\n")
    end(server, session)
    sock.settimeout(support.DEADLINE)
    text = b""
    while b"the end" not in text:
        piece = sock.recv(65536)
        assert piece, text[-1000:]
        text += piece
    sock.close()
    assert b"event: gap" in text and len(text) < 8_000_000, len(text)
    kinds = [json.loads(line[6:]) and None for line in whole(text).splitlines() if line.startswith(b"data: ")]
    assert len(kinds) > 2, "every event that came is whole"


def test_looking_on_keeps_no_session():
    server = serving.Server("--executor", "subprocess", "--session-idle", "1")
    session = server.session()
    connection, response = server.open("GET", "/v1/sessions/%s/log" % session)
    support.wait_until(lambda: session not in listed(server), server.text)
    assert response.read() == b"", "and the log ends with it"
    connection.close()
    server.close()


def test_a_flood_of_lists(server):
    sessions = [server.session() for _ in range(5)]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: server.ask("GET", "/v1/sessions").status, range(300)))
        begun = time.monotonic()
        assert server.execute("1", session=sessions[0])["value"] == 1
        assert time.monotonic() - begun < 10
    assert set(answers) == {200}
    for session in sessions:
        end(server, session)


def test_too_many_readers_of_one_log(server):
    session = server.session()
    held = [server.open("GET", "/v1/sessions/%s/log" % session) for _ in range(16)]
    assert {response.status for _, response in held} == {200}
    refused = server.ask("GET", "/v1/sessions/%s/log" % session)
    assert (refused.status, refused.code) == (429, "busy")
    for connection, _ in held:
        connection.close()
    end(server, session)


def test_the_log_has_the_clients_address(server):
    server.ask("GET", "/info", headers={"X-Request-ID": "with-address"})
    line = support.wait_until(lambda: re.search(r"info with-address .*", server.text()), server.text).group(0)
    assert " client=127.0.0.1" in line, line


def test_the_log_as_json_and_a_unix_socket(tmp_path):
    server = serving.Server("--executor", "subprocess", "--log", "json", listen="unix:%s" % (tmp_path / "s"))
    server.ask("GET", "/info", headers={"X-Request-ID": "with-address"})
    line = support.wait_until(lambda: re.search(r'.*"with-address".*', server.text()), server.text).group(0)
    assert json.loads(line)["client"] == "unix"
    session = server.session()
    env = support.host_environment(WORKCELL_SERVE_TOKEN=serving.TOKEN)
    done = support.workcell("ps", "--remote-url", "unix:%s" % (tmp_path / "s"), env=env)
    assert session[:12] in done.out and " unix " in done.out, done
    server.close()
    assert not os.path.exists(tmp_path / "s")


# ---- keys ----

def test_keys_of_top(tmp_path):
    """On a terminal: a call that waits is accepted, a cell interrupted, a session ended."""
    os.makedirs(tmp_path / "tools")
    (tmp_path / "tools" / "echo.yaml").write_text("name: echo\ndescription: Says it again\ncommand: echo\nschema:\n  positional:\n    - {name: text, type: string, required: true}\n"
                                                  "recipes:\n  say:\n    description: Says a text\n    params:\n      text: {}\n")
    server = serving.Server("--executor", "subprocess", "--base", tmp_path, "--approve", "ask")
    env = support.host_environment(WORKCELL_REMOTE_URL="http://127.0.0.1:%d" % server.port, WORKCELL_SERVE_TOKEN=serving.TOKEN)
    terminal = None
    try:
        session = server.session()
        server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "answer = tools.echo.say(text='one\\x1b[31m')\nprint('answered', flush=True)\nwhile True: pass"})
        support.wait_until(lambda: server.ask("GET", "/v1/approvals").json["approvals"], server.text)
        terminal = support.Terminal("top", "-d", "0.3", env=env)
        terminal.expect("WAITS(.|\n)*%s *echo.say" % session[:12])
        assert "\x1b[31m" not in terminal.seen, "the arguments are escaped"
        os.write(terminal.fd, b"a")
        terminal.expect(r"accept echo.say of %s\?(.|\n)*one(.|\n)*y: yes" % session[:12])
        os.write(terminal.fd, b"y")
        terminal.expect("accepted a call of " + session[:12])
        support.wait_until(lambda: b"answered" in server.ask("GET", "/v1/sessions/%s/log?follow=false" % session).body, server.text)
        os.write(terminal.fd, b"i")
        support.wait_until(lambda: server.ask("GET", "/v1/sessions/" + session).json["state"] == "idle", server.text)
        assert "one" in server.execute("answer", session=session)["value"]
        os.write(terminal.fd, b"x")
        terminal.expect("y: yes")
        os.write(terminal.fd, b"n")
        terminal.expect("q quit")
        assert server.ask("GET", "/v1/sessions/" + session).status == 200, "another key than y ends nothing"
        os.write(terminal.fd, b"x")
        terminal.expect("y: yes")
        os.write(terminal.fd, b"y")
        support.wait_until(lambda: server.ask("GET", "/v1/sessions/" + session).status == 410, server.text)
        os.write(terminal.fd, b"q")
        assert terminal.wait_end() == 0
        assert termios.tcgetattr(terminal.fd)[3] & termios.ECHO, "the terminal is as it was"
    finally:
        if terminal:
            terminal.close()
        server.close()
