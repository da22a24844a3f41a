"""Children over HTTP: sessions that code forks from its own, as the server lists, counts and ends them."""
import pytest

import serving
import support

FEW = "t0ken-of-the-few"
TOKENS = serving.TOKENS + "  - {name: few, token: %s, quota: {sessions: 2, runs: 1}}\n" % FEW


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    flags = "--executor", "subprocess", "--base", tmp_path_factory.mktemp("base"), "--allow-fork", "4", "--max-sessions", "6"
    with serving.shared(serving.Server(*flags, tokens=TOKENS)) as made:
        ended(made, *listed(made))  # that of adopt()
        yield made


def opened(server, body=None, **options):
    answer = server.ask("POST", "/v1/sessions", body, **options)
    assert answer.status == 201, answer
    return answer.json["session_id"]


def value(server, session, code, **options):
    answer = server.ask("POST", "/execute", {"code": code}, headers={"X-Session-ID": session}, **options)
    assert answer.status == 200, answer
    assert answer.json["error"] is None, answer
    return answer.json["value"]


def listed(server, **options):
    return {each["session_id"]: each for each in server.ask("GET", "/v1/sessions", **options).json["sessions"]}


def ended(server, *sessions, **options):
    for session in sessions:
        assert server.ask("DELETE", "/v1/sessions/" + session, **options).status == 204


def test_children_are_sessions_of_the_same_client(server):
    session = opened(server)
    child, grand = value(server, session, "x = 1\nc = sessions.fork()\n[c.id, c.run('g = sessions.fork(); g.id').value]")
    found = listed(server)
    assert found[child]["parent"] == session and found[grand]["parent"] == child and found[child]["owner"] == "all"
    assert found[child]["pid"] != found[session]["pid"]
    environment = support.host_environment(WORKCELL_REMOTE_URL="http://127.0.0.1:%d" % server.port, WORKCELL_SERVE_TOKEN=serving.TOKEN)
    assert child[:12] in support.workcell("ps", env=environment).out
    # A client may use it as any other session of its own.
    assert value(server, child, "x += 1\nx") == 2 and value(server, session, "[x, c.run('x').value]") == [1, 2]
    log = server.ask("GET", "/v1/sessions/%s/log?follow=false" % session).body.decode()
    assert '"child"' in log and child in log
    # Ended from outside: its own children go, and the parent's handle is void.
    pid = found[grand]["pid"]
    ended(server, child)
    support.wait_until(lambda: not support.alive(pid), "the child of the child ends")
    assert value(server, session, "try:\n    c.run('1')\nexcept ChildError as exc:\n    code = exc.code\ncode") in ("not_found", "closed")
    support.wait_until(lambda: set(listed(server)) == {session}, "they are gone from the list")
    assert server.ask("GET", "/v1/sessions/" + child).status == 410
    ended(server, session)


def test_children_end_with_their_parent(server):
    session = opened(server)
    value(server, session, "cs = [sessions.fork() for _ in range(4)]\nNone")
    pids = [each["pid"] for each in listed(server).values()]
    assert len(pids) == 5
    ended(server, session)
    for pid in pids:
        support.wait_until(lambda pid=pid: not support.alive(pid), "a child ends with its parent")
    support.wait_until(lambda: listed(server) == {}, "nothing is listed")


def test_children_count_in_the_limits_of_the_server_and_of_the_token(server):
    said = "try:\n    sessions.fork()\nexcept ChildError as exc:\n    said = [exc.code, str(exc)]\nsaid"
    sessions = [opened(server) for _ in range(4)]
    value(server, sessions[0], "cs = [sessions.fork() for _ in range(2)]\nNone")
    code, words = value(server, sessions[1], said)
    assert code == "busy" and "maximum number of sessions" in words
    assert server.ask("POST", "/v1/sessions").status == 429
    ended(server, *sessions)
    few, made = {"token": FEW}, []
    support.wait_until(lambda: made.append(server.ask("POST", "/v1/sessions", **few)) or made[-1].status == 201, "they are gone")
    session = made[-1].json["session_id"]
    assert value(server, session, "c = sessions.fork()\nc.run('1').value", **few) == 1
    code, words = value(server, session, said, **few)
    assert code == "busy" and "few" in words and "quota 2" in words
    assert value(server, session, """
import asyncio
async def one(code):
    try:
        return (await c.run_async(code)).value
    except ChildError as exc:
        return exc.code
sorted(map(str, await asyncio.gather(one("import time; time.sleep(0.3); 7"), one("8"))))""", **few) == ["7", "busy"]
    assert server.ask("GET", "/v1/sessions/" + opened(server)).status == 200  # others are not concerned
    ended(server, session, **few)
    ended(server, *listed(server))


def test_a_client_may_allow_less(server):
    assert server.ask("POST", "/v1/sessions", {"allow_fork": 5}).status == 403
    assert server.ask("POST", "/v1/sessions", {"allow_fork": -1}).status == 422
    session = opened(server, {"allow_fork": 1})
    assert value(server, session, "c = sessions.fork()\ntry:\n    sessions.fork()\nexcept ChildError as exc:\n    code = exc.code\ncode") == "limit"
    none = opened(server, {"allow_fork": 0})
    assert value(server, none, "try:\n    sessions.fork()\nexcept ChildError as exc:\n    code = exc.code\ncode") == "forbidden"
    ended(server, session, none)


def test_a_child_that_another_client_uses_lives_no_longer(tmp_path):
    with serving.shared(serving.Server("--executor", "subprocess", "--allow-fork", "1", "--fork-time", "1", "--grace", "1")) as server:
        session = opened(server)
        child = value(server, session, "c = sessions.fork()\nc.id")
        answer = server.ask("POST", "/execute", {"code": "import time; time.sleep(30)"}, headers={"X-Session-ID": child})
        assert answer.json["error_code"] == "limit_exceeded", answer
        support.wait_until(lambda: child not in listed(server), "it ends with its cell")
        ended(server, session)


HOSTILE = support.FRAMES + r'''
def answers():
    """What the host sends now; descriptors that come with it are dropped."""
    got = b""
    while select.select([fd], [], [], 0.5)[0]:
        got += os.read(fd, 65536)
    return got
FORKED = 73
'''


@pytest.mark.parametrize("name, code", [
    ("FORKED that nobody asked for", "send(frame(FORKED, b'{\"pid\": 1}', ident=1)); import time; time.sleep(20)"),
    ("READY in the middle of a cell", "send(frame(READY, b'{\"pid\": 1}')); import time; time.sleep(20)"),
])
def test_frames_of_a_fork_that_was_not_asked_for_end_the_kernel(server, name, code):
    session = opened(server)
    answer = server.ask("POST", "/execute", {"code": HOSTILE + code}, headers={"X-Session-ID": session})
    assert answer.json["error_code"] == "kernel_died", answer
    assert value(server, session, "6 * 7") == 42
    ended(server, session)


def test_a_kernel_that_takes_a_fork_and_lies_about_it(server):
    """It asks for a child, and then claims a process of its own choice, or another's child, or nothing."""
    session = opened(server)
    for claim in ("b'{\"pid\": %d}' % os.getppid()", "b'{\"pid\": 1}'", "b'[]'", "b'{\"held\": 5, \"error\": 7}'"):
        code = HOSTILE + """
send(frame(CALL, b'{"method":"sessions.fork","args":{}}', ident=4000000))
got = answers()
kind, _, ident = struct.unpack_from("<BBI", got, 2)
assert kind == 6, got  # FORK
send(frame(FORKED, %s, ident=ident))
import time; time.sleep(1)
""" % claim
        server.ask("POST", "/execute", {"code": code, "timeout": 5}, headers={"X-Session-ID": session})
        assert value(server, session, "[6 * 7, sessions.fork().run('1').value]") == [42, 1]
        server.ask("POST", "/v1/sessions/%s/reset" % session)
        support.wait_until(lambda: set(listed(server)) == {session}, "no child is left")
    ended(server, session)
