"""`workcell mcp` by revision 2026-07-28: no initialize, sessions named in each call, and both eras on one endpoint."""
import base64
import json
import os
import subprocess
import sys
import textwrap

import pytest

import listening
import spaces
import support
from listening import INITIALIZE, Listening

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import client as mcp_client  # noqa: E402
from stateless import META, MODERN, Stdio, Web, envelope, message  # noqa: E402

TOKENS = ("tokens:\n  - {name: one, token: t0ken-of-the-first-1, scopes: [run, approve]}\n"
          "  - {name: two, token: t0ken-of-the-second, scopes: [run]}\n")
ONE, TWO = "t0ken-of-the-first-1", "t0ken-of-the-second"


@pytest.fixture
def connect():
    yield from mcp_client.clients(Stdio)


@pytest.fixture(scope="module")
def server():
    made = Listening(tokens=TOKENS)
    made.token = ONE
    made.adopt()
    support.shared_drivers.append(made)
    yield made
    support.shared_drivers.remove(made)
    made.close()


@pytest.fixture(scope="module")
def one(server):
    return Web(server, ONE)


@pytest.fixture(scope="module")
def two(server):
    return Web(server, TWO)


# ---- discovery and the envelope ----------------------------------------------------------------------------


def check_discovery(result):
    assert result["resultType"] == "complete" and result["supportedVersions"][:2] == [MODERN, "2025-11-25"]
    assert result["capabilities"]["tools"] == {} and META + "tasks" in result["capabilities"]["extensions"] and result["ttlMs"] >= 0 and result["cacheScope"] == "private"
    assert result["_meta"][META + "serverInfo"]["name"] == "workcell" and "session" in result["instructions"]


def test_discovery_on_both_transports(connect, one):
    client = connect()
    check_discovery(client.result(client.send("server/discover")))
    status, (answer,) = one.post(message("server/discover"))
    assert status == 200
    check_discovery(answer["result"])
    listed = client.result(client.send("tools/list"))
    assert listed == one.post(message("tools/list"))[1][0]["result"] and listed["cacheScope"] == "private" and listed["ttlMs"] > 0


ENVELOPES = [
    ({"x": 1}, -32602, 400), ({META + "protocolVersion": MODERN}, -32602, 400),
    ({**envelope(), META + "clientCapabilities": 5}, -32602, 400), ({**envelope(), META + "logLevel": "loud"}, -32602, 400),
]


@pytest.mark.parametrize("meta, code, status", ENVELOPES)
def test_wrong_envelopes(one, meta, code, status):
    got, (answer,) = one.post(message("server/discover", 77, meta=meta))
    assert (got, answer["error"]["code"], answer["id"]) == (status, code, 77), answer


def test_wrong_envelopes_on_lines(connect):
    client = connect()
    for meta, code, _ in ENVELOPES:
        client.raw(message("server/discover", 77, meta=meta))
        assert client.read()["error"]["code"] == code
    client.raw(message("tools/list", 78, meta={**envelope(), META + "protocolVersion": ["x"]}))
    assert client.read()["error"]["code"] == -32602


def test_a_version_that_is_not_spoken(connect, one):
    for version in ("2099-01-01", "2025-11-25"):
        wanted = {"supported": [MODERN], "requested": version}
        client = connect()
        client.raw(message("tools/list", 9, meta=envelope(version)))
        answer = client.read()
        assert (answer["error"]["code"], answer["error"]["data"], answer["id"]) == (-32022, wanted, 9)
    status, (answer,) = one.post(message("tools/list", 9, meta=envelope("2099-01-01")), MCP_Protocol_Version="2099-01-01")
    assert (status, answer["error"]["code"], answer["error"]["data"]["supported"]) == (400, -32022, [MODERN])


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "no/such"])
def test_methods_that_are_gone(connect, one, method):
    status, (answer,) = one.post(message(method, 4))
    assert (status, answer["error"]["code"], answer["id"]) == (404, -32601, 4)
    client = connect()
    assert client.error(client.send(method))["code"] == -32601


@pytest.mark.parametrize("headers", [
    {"Mcp_Method": None}, {"Mcp_Method": "tools/list"}, {"Mcp_Method": "Tools/Call"}, {"Mcp_Name": None}, {"Mcp_Name": "reset"},
    {"Mcp_Name": "=?base64?cmVzZXQ=?="}, {"Mcp_Name": "=?base64?%%%?="}, {"Mcp_Name": "=?base64?cnVuX2NvZGV=?="},
    {"MCP_Protocol_Version": "2099-01-01"}, {"MCP_Protocol_Version": None}, {"MCP_Protocol_Version": "2025-11-25"},
])
def test_headers_must_repeat_the_body(one, headers):
    status, (answer,) = one.post(message("tools/call", 5, name="run_code", arguments={"code": "1"}), **headers)
    assert (status, answer["error"]["code"], answer["id"]) == (400, -32020, 5)


def test_headers_as_base64(one):
    encoded = "=?base64?%s?=" % base64.b64encode(b"run_code").decode()
    for value in (encoded, "  run_code  "):
        status, messages = one.post(message("tools/call", 5, name="run_code", arguments={"code": "1"}), Mcp_Name=value)
        assert status == 200 and messages[-1]["result"]["structuredContent"]["value"] == 1


def test_what_does_not_fit_together(server, one):
    """Eras mixed in one request."""
    # a modern body in a session of the other era
    session = server.session()
    body = message("tools/call", 6, name="run_code", arguments={"code": "1"})
    answer = server.ask("POST", body, session=session, MCP_Protocol_Version="2025-11-25")
    assert answer.status == 400 and answer.json["error"]["code"] == -32020 and answer.json["id"] == 6
    # the session of the other era is ignored, also one that never was
    status, messages = one.post(body, Mcp_Session_Id=session)
    assert status == 200 and messages[-1]["result"]["structuredContent"]["session"]
    status, _ = one.post(body, Mcp_Session_Id="0" * 32, Last_Event_ID="1-1")
    assert status == 200
    # initialize with a header of the new one; a body of the old one without a session
    status, (answer,) = one.post(INITIALIZE)
    assert (status, answer["error"]["code"]) == (400, -32602)
    status, (answer,) = one.post(listening.PING, MCP_Protocol_Version=None)
    assert status == 400 and answer["id"] == 1
    assert server.status("GET", session=session, MCP_Protocol_Version=MODERN) == 405
    assert server.status("DELETE", session=session, MCP_Protocol_Version=MODERN) == 405
    assert server.status("DELETE", session=session) == 204


def test_both_types_must_be_accepted(one):
    body = message("tools/call", 5, name="run_code", arguments={"code": "1"})
    for accept, status in (("application/json", 406), ("text/event-stream", 406), ("text/html", 406), ("*/*", 200),
                           ("application/json;q=0.5, text/event-stream", 200)):
        assert one.post(body, Accept=accept)[0] == status, accept


def test_notifications_and_nonsense(one):
    assert one.post({"jsonrpc": "2.0", "method": "notifications/whatever", "params": {}}) == (202, [])
    assert one.post({"jsonrpc": "2.0", "id": 3, "result": {}}) == (202, [])
    status, (answer,) = one.post({"jsonrpc": "2.0", "id": 3, "method": 5})
    assert status == 400 and answer["error"]["code"] == -32600


# ---- sessions -----------------------------------------------------------------------------------------------


def test_a_session_is_made_and_named(one):
    first = one.call("run_code", code="x = 41")
    session = first["structuredContent"]["session"]
    assert len(session) == 32 and session in first["content"][-1]["text"] and first["resultType"] == "complete"
    again = one.call("run_code", code="x + 1", session=session)
    assert again["structuredContent"]["value"] == 42 and again["structuredContent"]["session"] == session
    assert session not in json.dumps(again["content"])
    other = one.value("run_code", code="'x' in globals()")
    assert other["value"] is False and other["session"] != session
    assert one.value("execute_ipython_cell", code="x", session=session)["value"] == 41
    assert one.value("reset", session=session)["result"] == "reset"
    assert one.value("run_code", code="'x' in globals()", session=session)["value"] is False
    assert one.value("close_session", session=session)["result"] == "closed"
    words = one.fails("run_code", code="1", session=session)
    assert words.startswith("not_found: no session") and "leave `session` out" in words


def test_sessions_on_lines(connect):
    """A process is not a session either."""
    client = connect()
    session = client.value("run_code", code="x = 1")["session"]
    assert client.value("run_code", code="'x' in globals()")["value"] is False
    assert client.value("run_code", code="x", session=session)["value"] == 1
    assert "argument 'session' is missing" in client.fails("reset")
    assert "argument 'session' is missing" in client.fails("checkpoint", name="p")


def test_a_session_belongs_to_its_token(one, two):
    session = one.value("run_code", code="secret = 1")["session"]
    unknown = one.fails("run_code", code="1", session="0" * 32)
    for tool, more in (("run_code", {"code": "secret"}), ("reset", {}), ("close_session", {}), ("checkpoint", {"name": "p"}),
                       ("fork_session", {}), ("interrupt", {})):
        assert two.fails(tool, session=session, **more) == unknown.replace("0" * 32, session)
    assert one.value("run_code", code="secret", session=session)["value"] == 1
    one.value("close_session", session=session)


@pytest.mark.parametrize("name", ["x" * 2_000_000, "x", "0" * 31, "0" * 33, "\u00e9" * 16, "../" * 10, "new\u200b"])
def test_names_of_no_session(one, name):
    words = one.fails("run_code", code="1", session=name)
    assert "not_found" in words and len(words) < 500


def test_names_that_are_not_text(one):
    assert "must be of type string" in one.fails("run_code", code="1", session=5)
    assert "must not be empty" in one.fails("run_code", code="1", session="")
    assert "not_found" in one.fails("reset", session="new")


def test_the_same_session_in_both_eras(server, one):
    session = one.value("run_code", code="x = 'shared'")["session"]
    old = server.session()
    result = server.events("POST", listening.call("run_code", code="x", session=session), session=old)[-1][1]["result"]
    assert result["structuredContent"]["value"] == "shared"
    # without a name it is the connection's own, and nothing new is in the answer
    result = server.events("POST", listening.call("run_code", code="'x' in globals()"), session=old)[-1][1]["result"]
    assert result["structuredContent"]["value"] is False and "session" not in result["structuredContent"] and "resultType" not in result
    made = server.events("POST", listening.call("run_code", code="y = 5", session="new"), session=old)[-1][1]["result"]["structuredContent"]
    assert server.status("DELETE", session=old) == 204
    assert one.value("run_code", code="y", session=made["session"])["value"] == 5  # it outlives the connection
    one.value("close_session", session=made["session"])


def test_forks(one):
    session = one.value("run_code", code="import os\nx = [1]")["session"]
    forks = one.value("fork_session", session=session, n=3)["sessions"]
    assert len(set(forks + [session])) == 4
    for i, fork in enumerate(forks):
        assert one.value("run_code", code="x.append(%d); x" % i, session=fork)["value"] == [1, i]
    assert one.value("run_code", code="x", session=session)["value"] == [1]
    pids = {one.value("run_code", code="os.getpid()", session=name)["value"] for name in forks + [session]}
    assert len(pids) == 4
    one.value("close_session", session=session)
    assert one.value("run_code", code="x", session=forks[0])["value"] == [1, 0]
    grand = one.value("fork_session", session=forks[0])["sessions"]
    assert one.value("run_code", code="x", session=grand[0])["value"] == [1, 0]
    assert "must be from 1 to 64" in one.fails("fork_session", session=forks[0], n=65)
    # what cannot be forked is said, and nothing is left over
    one.value("run_code", code="import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
              session=forks[1])
    assert "thread" in one.fails("fork_session", session=forks[1], n=2)
    for name in forks + grand:
        one.value("close_session", session=name)


def test_checkpoints_of_a_session(one):
    session = one.value("run_code", code="x = 1")["session"]
    one.value("checkpoint", name="p", session=session)
    one.value("run_code", code="x = 2", session=session)
    one.value("rewind", name="p", session=session)
    assert one.value("run_code", code="x", session=session)["value"] == 1
    one.value("close_session", session=session)


def test_the_idlest_goes_and_nobody_takes_it_all(request):
    server = Listening("--max-sessions", "4", tokens=TOKENS)
    request.addfinalizer(server.close)
    one, two = Web(server, ONE), Web(server, TWO)
    kept = two.value("run_code", code="x = 'kept'")["session"]
    flood = [one.value("run_code", code="x = %d" % i)["session"] for i in range(12)]
    # the flood pushed out its own, oldest first
    assert two.value("run_code", code="x", session=kept)["value"] == "kept"
    assert "not_found" in one.fails("run_code", code="x", session=flood[8])
    assert [one.value("run_code", code="x", session=name)["value"] for name in flood[9:]] == [9, 10, 11]
    # the idlest is the one that was not used for longest, not the oldest
    one.value("run_code", code="x", session=flood[9])
    one.value("run_code", code="1")
    assert one.value("run_code", code="x", session=flood[9])["value"] == 9
    assert "not_found" in one.fails("run_code", code="x", session=flood[10])
    # another principal gets its share of a full server
    more = [two.value("run_code", code="x = %d" % i)["session"] for i in range(1)]
    assert two.value("run_code", code="x", session=kept)["value"] == "kept"
    assert two.value("run_code", code="x", session=more[0])["value"] == 0
    # forks need room too: without it there are none
    assert "busy" in one.fails("fork_session", session=flood[9], n=20)
    assert one.value("run_code", code="x", session=flood[9])["value"] == 9


def test_sessions_in_use_stay(request, tmp_path):
    server = Listening("--max-sessions", "1", "--auth-disabled", token=None)
    request.addfinalizer(server.close)
    web = Web(server, None)
    session = web.value("run_code", code="x = 1")["session"]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    body = message("tools/call", 2, name="run_code", arguments={"code": "open(%r).read()" % str(fifo), "session": session})
    connection = begin(web, body)
    support.wait_until(lambda: web.call("run_code", code="1")["isError"], server.text)
    assert "busy: all 1 sessions are in use" in web.fails("run_code", code="1")
    fifo.write_text("")
    connection.getresponse().read()
    connection.close()
    assert web.value("run_code", code="x", session=session)["value"] == 1


def threads(server):
    return len(os.listdir("/proc/%d/task" % server.pid))


MANY = "tokens:\n" + "".join("  - {name: t%d, token: t0ken-of-number-%04d}\n" % (i, i) for i in range(80))


def test_principals_that_come_once_leave_nothing(request):
    """An issuer may know any number of them: each costs a thread, and a kernel if it has called a tool."""
    few = Listening(tokens=MANY)
    request.addfinalizer(few.close)
    before = threads(few)
    for i in range(80):
        assert Web(few, "t0ken-of-number-%04d" % i).post(message("server/discover"))[0] == 200
    support.wait_until(lambda: threads(few) - before <= 66, lambda: str(threads(few)))
    short = Listening("--session-idle", "0.7", tokens=MANY)
    request.addfinalizer(short.close)
    one, others = Web(short, "t0ken-of-number-0000"), [Web(short, "t0ken-of-number-%04d" % i) for i in range(1, 5)]
    began = one.value("run_code", code="import time; time.sleep(2); 5", wait_ms=0)
    for each in others:
        each.value("list_tools")
    # One thread feeds each client, and one is its session's, as long as it is there.
    most = threads(short)
    support.wait_until(lambda: threads(short) <= most - 2 * len(others), lambda: "%d of %d threads" % (threads(short), most))
    # A job that goes on keeps its client, and the result is there afterwards; so is the session.
    assert one.value("get_job", job=began["job"], wait_ms=10_000)["value"] == 5
    support.wait_until(lambda: threads(short) <= most - 2 * len(others) - 1, lambda: "%d of %d threads" % (threads(short), most))
    assert one.value("get_job", job=began["job"])["value"] == 5 and one.value("run_code", code="6", session=began["session"])["value"] == 6


# ---- requests and their streams ------------------------------------------------------------------------------


def begin(web, body):
    """Sends a call, whose answer may take a while to begin."""
    connection = web.server.connect()
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", "MCP-Protocol-Version": MODERN,
               "Mcp-Method": body["method"], "Mcp-Name": body["params"]["name"]}
    if web.token:
        headers["Authorization"] = "Bearer " + web.token
    connection.request("POST", "/mcp", json.dumps(body), headers)
    return connection


def running(server, web, session, tmp_path, **meta):
    """A cell that runs until it is interrupted: its connection, and the file that shows that it was."""
    began, ended = tmp_path / "began", tmp_path / "ended"
    code = ("import time\ntry:\n    open(%r, 'w').close()\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    open(%r, 'w').close()\n    raise"
            % (str(began), str(ended)))
    body = message("tools/call", 8, meta=envelope(**meta), name="run_code", arguments={"code": code, "session": session})
    connection = begin(web, body)
    support.wait_until(began.exists, server.text)
    return connection, ended


def test_a_reader_that_leaves_cancels(server, one, tmp_path):
    session = one.value("run_code", code="x = 1")["session"]
    connection, ended = running(server, one, session, tmp_path)
    connection.close()
    support.wait_until(ended.exists, server.text)
    assert one.value("run_code", code="x", session=session)["value"] == 1
    one.value("close_session", session=session)


def test_interrupt_and_reset_do_not_wait(server, one, tmp_path):
    session = one.value("run_code", code="x = 1")["session"]
    assert one.value("interrupt", session=session)["result"] == "idle"
    connection, ended = running(server, one, session, tmp_path)
    assert one.value("interrupt", session=session)["result"] == "interrupted"
    assert "KeyboardInterrupt" in connection.getresponse().read().decode() and ended.exists()
    connection.close()
    assert one.value("run_code", code="x", session=session)["value"] == 1
    (tmp_path / "began").unlink()
    connection, _ = running(server, one, session, tmp_path)
    one.value("reset", session=session)
    assert '"isError":true' in connection.getresponse().read().decode()
    connection.close()
    assert one.value("run_code", code="'x' in globals()", session=session)["value"] is False
    connection, _ = running(server, one, session, tmp_path)
    one.value("close_session", session=session)
    assert '"isError":true' in connection.getresponse().read().decode()
    connection.close()


def test_a_reset_ends_what_was_sent_before_and_not_what_comes_after(connect):
    client = connect()
    session = client.value("run_code", code="x = 1")["session"]
    runs = client.start("run_code", {"code": "import time; time.sleep(600)", "session": session})
    waits = client.start("run_code", {"code": "x = 2", "session": session})
    reset = client.start("reset", {"session": session})
    after = client.start("run_code", {"code": "'x' in globals()", "session": session})
    answers = {}
    while len(answers) < 4:
        answer = client.read()
        answers[answer["id"]] = answer["result"]
    assert answers[runs]["isError"] and answers[waits]["isError"] and not answers[reset]["isError"]
    assert answers[after]["structuredContent"]["value"] is False


def test_progress_and_log_only_where_they_are_asked_for(one):
    def notes(meta):
        body = message("tools/call", 8, meta=meta, name="run_code", arguments={"code": "print('out')"})
        return one.post(body)[1][:-1]

    assert notes(envelope()) == []
    progress = notes(envelope(progressToken="p"))
    assert "".join(note["params"]["message"] for note in progress) == "out\n"
    logged = notes(envelope(**{META + "logLevel": "info"}))
    assert logged and all(note["method"] == "notifications/message" for note in logged)
    assert notes(envelope(**{META + "logLevel": "error"})) == []


def test_an_answer_that_comes_late_is_a_stream(one):
    body = message("tools/call", 8, name="run_code", arguments={"code": "import time; time.sleep(3.5); 7"})
    connection = begin(one, body)
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "text/event-stream" and response.headers["X-Accel-Buffering"] == "no"
    assert '"value":7' in response.read().decode()
    connection.close()
    response = begin(one, message("tools/call", 8, name="run_code", arguments={"code": "7"})).getresponse()
    assert response.headers["Content-Type"] == "application/json" and json.loads(response.read())["result"]["structuredContent"]["value"] == 7
    response.close()


def test_subscriptions(connect, server, one):
    client = connect()
    number = client.send("subscriptions/listen", notifications={"toolsListChanged": True})
    note = client.read()
    assert note["method"] == "notifications/subscriptions/acknowledged"
    assert note["params"] == {"notifications": {}, "_meta": {META + "subscriptionId": number}}
    assert client.value("run_code", code="1")["value"] == 1
    client.notify("notifications/cancelled", requestId=number)
    assert client.error(client.send("subscriptions/listen"))["code"] == -32602
    last = client.send("subscriptions/listen", notifications={})
    client.read()
    client.process.stdin.close()
    ends = [client.read(), client.read()]
    assert ends[0]["method"] == "notifications/cancelled" and ends[0]["params"]["requestId"] == last
    assert ends[1] == {"jsonrpc": "2.0", "id": last, "result": {"resultType": "complete", "_meta": ends[1]["result"]["_meta"]}}
    assert ends[1]["result"]["_meta"][META + "subscriptionId"] == last
    body = message("subscriptions/listen", "s", notifications={})
    connection, response = server.open("POST", body, token=ONE, **{"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"})
    assert b"acknowledged" in response.readline()
    connection.close()
    response.close()


def test_ids_are_each_client_s_own(server, one, tmp_path):
    """Clients of one token all begin with the same ids."""
    session = one.value("run_code", code="1")["session"]
    connection, ended = running(server, one, session, tmp_path)
    status, messages = one.post(message("tools/call", 8, name="run_code", arguments={"code": "2"}))
    assert status == 200 and messages[-1]["result"]["structuredContent"]["value"] == 2
    assert not ended.exists()
    one.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 8}})
    assert one.value("interrupt", session=session)["result"] == "interrupted"
    connection.getresponse().read()
    connection.close()


def test_tools_on_the_space(connect, tmp_path):
    client = connect("--base", spaces.probe_base(tmp_path))
    assert client.value("list_workflows")["result"] == []
    client.value("create_workflow", name="w", source="def run():\n    return 5\n", description="five")
    session = client.value("run_code", code="workflows.w()")
    assert session["value"] == 5


# ---- jobs ---------------------------------------------------------------------------------------------------


def test_a_job_goes_on_without_its_client(one, two, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    began = one.value("run_code", code="x = open(%r).read()\nx" % str(fifo), wait_ms=50)
    job, session = began["job"], began["session"]
    assert began["result"] == "running" and job.startswith(session + ".") and len(job.rpartition(".")[2]) >= 16
    waits = one.value("run_code", code="x * 2", session=session, wait_ms=0)  # one that has not begun
    assert one.value("get_job", job=job)["result"] == "running"
    for stranger in (two.fails("get_job", job=job), two.fails("cancel_job", job=job), one.fails("get_job", job="0" * 32)):
        assert stranger == one.fails("get_job", job="x" * 100_000)
    fifo.write_text("went on")
    assert one.value("get_job", job=job, wait_ms=10_000)["value"] == "went on"
    assert one.value("get_job", job=job)["session"] == session  # and again
    assert one.value("get_job", job=waits["job"], wait_ms=10_000)["value"] == "went onwent on"
    assert one.value("cancel_job", job=job)["result"] == "ended"
    assert one.value("run_code", code="x", session=session, wait_ms=10_000)["value"] == "went on"
    one.value("close_session", session=session)


def test_a_session_that_opens_slowly(connect, tmp_path):
    """Its client waits no longer for that."""
    gate, python = tmp_path / "gate", tmp_path / "python"
    python.write_text("#!/bin/sh\nwhile [ ! -e %s ]; do sleep 0.05; done\nexec %s \"$@\"\n" % (gate, support.bare_python()))
    python.chmod(0o755)
    client = connect(python=str(python))
    began = client.value("run_code", code="6 * 7", wait_ms=0)
    assert began["result"] == "running" and began["session"]
    gate.touch()
    assert client.value("get_job", job=began["job"], wait_ms=20_000)["value"] == 42


def test_jobs_are_cancelled(one, tmp_path):
    runs = tmp_path / "runs"
    began = one.value("run_code", code="x = 1\nopen(%r, 'w').close()\nimport time; time.sleep(600)" % str(runs), wait_ms=0)
    support.wait_until(runs.exists, "the cell to run")
    waits = one.value("run_code", code="y = 1", session=began["session"], wait_ms=0)
    assert one.value("cancel_job", job=waits["job"])["result"] == "cancelled"
    assert one.value("cancel_job", job=began["job"])["result"] == "cancelled"
    assert one.call("get_job", job=began["job"], wait_ms=10_000)["structuredContent"]["error"]["code"] == "interrupted"
    assert one.value("get_job", job=waits["job"], wait_ms=10_000)["result"] == "cancelled"
    assert one.value("run_code", code="[x, 'y' in globals()]", session=began["session"])["value"] == [1, False]
    one.value("close_session", session=began["session"])


def test_jobs_of_the_other_era(server, one):
    """They outlive the connection in a session that does."""
    old = server.session()
    session = one.value("run_code", code="1")["session"]
    began = server.events("POST", listening.call("run_code", code="import time; time.sleep(0.5); 8", session=session, wait_ms=0),
                          session=old)[-1][1]["result"]["structuredContent"]
    assert server.status("DELETE", session=old) == 204
    assert one.value("get_job", job=began["job"], wait_ms=10_000)["value"] == 8
    one.value("close_session", session=session)


def test_a_silent_cell_shows_that_it_runs(one):
    body = message("tools/call", 8, meta=envelope(progressToken="p"), name="run_code", arguments={"code": "import time; time.sleep(5.5)"})
    _, messages = one.post(body)
    assert [note["params"]["progressToken"] for note in messages[:-1]] == ["p"]


# ---- tasks --------------------------------------------------------------------------------------------------


TASKS = META + "tasks"
WITH_TASKS = {"extensions": {TASKS: {}}}


class Tasks(Web):
    """A client that knows them."""

    def ask(self, method, capabilities=WITH_TASKS, **params):
        status, (answer,) = self.post(message(method, 5, meta=envelope(capabilities=capabilities), **params), Mcp_Name=params.get("taskId", params.get("name")))
        return answer.get("result") or (status, answer["error"])

    def start(self, code, **more):
        task = self.ask("tools/call", name="run_code", arguments={"code": code, "wait_ms": 50, **more})
        assert task["resultType"] == "task" and task["status"] == "working" and task["ttlMs"] > 0, task
        assert task["createdAt"].endswith("Z") and task["lastUpdatedAt"] >= task["createdAt"]
        return task["taskId"]

    def ended(self, task):
        support.wait_until(lambda: self.ask("tasks/get", taskId=task)["status"] not in ("working", "input_required"), "the task ends")
        return self.ask("tasks/get", taskId=task)


@pytest.fixture(scope="module")
def tasks(server):
    return Tasks(server, ONE)


def test_a_task(tasks, server, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    task = tasks.start("x = open(%r).read()\nx" % str(fifo))
    got = tasks.ask("tasks/get", taskId=task)
    assert got["resultType"] == "complete" and got["status"] == "working" and "result" not in got
    stranger = Tasks(server, TWO)
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        assert stranger.ask(method, taskId=task)[1]["code"] == tasks.ask(method, taskId="0" * 32)[1]["code"] == -32602
        assert tasks.ask(method, taskId=5)[1]["code"] == -32602
        status, error = tasks.ask(method, capabilities={}, taskId=task)
        assert (status, error["code"]) == (400, -32021) and TASKS in error["data"]["requiredCapabilities"]["extensions"]
    fifo.write_text("went on")
    done = tasks.ended(task)
    assert done["status"] == "completed" and done["result"]["structuredContent"]["value"] == "went on"
    assert done["lastUpdatedAt"] >= done["createdAt"] and tasks.ask("tasks/get", taskId=task)["result"] == done["result"]
    assert tasks.ask("tasks/cancel", taskId=task)["resultType"] == "complete"
    assert tasks.ask("tasks/get", taskId=task)["status"] == "completed"
    tasks.value("close_session", session=done["result"]["structuredContent"]["session"])


def test_what_is_quick_is_no_task(tasks):
    answer = tasks.ask("tools/call", name="run_code", arguments={"code": "6 * 7"})
    assert answer["resultType"] == "complete" and answer["structuredContent"]["value"] == 42
    tasks.value("close_session", session=answer["structuredContent"]["session"])


def test_a_task_that_failed_and_one_that_was_cancelled(tasks):
    done = tasks.ended(tasks.start("import time; time.sleep(0.2); 1 / 0"))
    assert done["status"] == "completed" and done["result"]["isError"]
    session = done["result"]["structuredContent"]["session"]
    task = tasks.start("x = 1\ntime.sleep(600)", session=session)
    assert tasks.ask("tasks/cancel", taskId=task) and tasks.ask("tasks/get", taskId=task)["status"] == "cancelled"
    assert tasks.value("run_code", code="x", session=session)["value"] == 1
    tasks.value("close_session", session=session)


# ---- approvals ----------------------------------------------------------------------------------------------


FORMS = {META + "clientCapabilities": {"elicitation": {}}}
ACCEPT = {"action": "accept", "content": {"decision": "accept"}}


class Asked:
    """A call that was answered with questions, and how it is repeated."""

    def __init__(self, client, tool, arguments, result):
        self.client, self.call, self.result = client, {"name": tool, "arguments": arguments}, result
        assert result["resultType"] == "input_required", result
        self.state, self.keys = result["requestState"], sorted(result["inputRequests"])

    def again(self, answers, state=None, **change):
        responses = dict(zip(self.keys, answers)) if isinstance(answers, list) else answers
        return self.client.answer(self.client.send("tools/call", **{**self.call, **change}, inputResponses=responses,
                                                   requestState=state or self.state, _meta=FORMS))


def ask(client, tool, **arguments):
    return Asked(client, tool, arguments, client.result(client.send("tools/call", name=tool, arguments=arguments, _meta=FORMS)))


@pytest.fixture
def gated(connect, tmp_path):
    return connect("--base", spaces.probe_base(tmp_path), "--approve", "ask")


CALL = "__import__('json').loads(tools.probe.go(a='x'))['argv'][-1]"


def test_an_approval_is_asked_and_nothing_runs_twice(gated, tmp_path):
    log = tmp_path / "runs"
    asked = ask(gated, "run_code", code="open(%r, 'a').write('.')\n%s" % (str(log), CALL))
    (request,) = asked.result["inputRequests"].values()
    assert request["method"] == "elicitation/create" and request["params"]["mode"] == "form" and "probe.go" in request["params"]["message"]
    # what is not its state, or not its call, is not taken
    session, until, used, code = asked.state.split(".")
    for answer in (asked.again([ACCEPT], state="0" * 32), asked.again([ACCEPT], state="x"), asked.again([ACCEPT], state=asked.state + "x"),
                   asked.again([ACCEPT], state=".".join([session, str(int(until) + 1), used, code])),
                   asked.again([ACCEPT], state=".".join(["0" * 32, until, used, code])),
                   asked.again([ACCEPT], state=".".join([session, until, used, code[:-1] + ("0" if code[-1] != "0" else "1")])),
                   asked.again([ACCEPT], arguments={"code": "1"}), asked.again([ACCEPT], name="execute_ipython_cell")):
        assert answer["error"]["code"] == -32602 and "requestState" in answer["error"]["message"]
    # without an answer it is asked again, under a new state; the old one is used
    twice = Asked(gated, "run_code", asked.call["arguments"], asked.again({"other": ACCEPT, asked.keys[0]: "no object"})["result"])
    assert twice.keys == asked.keys and twice.state != asked.state
    assert asked.again([ACCEPT])["error"]["code"] == -32602
    done = twice.again([ACCEPT])["result"]
    assert done["structuredContent"]["value"] == "x" and done["resultType"] == "complete" and done["structuredContent"]["session"]
    assert twice.again([ACCEPT])["error"]["code"] == -32602
    assert log.read_text() == "."


def test_a_state_is_good_for_its_own_round(gated):
    """Two cells wait for the same call: the code of one state does not fit to the round of another, and each state resumes its own cell."""
    code = "import uuid; made = str(uuid.uuid4())\n%s\nmade" % CALL
    first, second = ask(gated, "run_code", code=code), ask(gated, "run_code", code=code)
    parts = [each.state.split(".") for each in (first, second)]
    assert parts[0][0] != parts[1][0] and parts[0][2] != parts[1][2]
    for mixed in ([*parts[0][:2], parts[1][2], parts[0][3]], [parts[1][0], *parts[0][1:]], [*parts[1][:3], parts[0][3]]):
        assert first.again([ACCEPT], state=".".join(mixed))["error"]["code"] == -32602
    ends = [each.again([ACCEPT])["result"]["structuredContent"] for each in (first, second)]
    assert [each["session"] for each in ends] == [part[0] for part in parts] and ends[0]["value"] != ends[1]["value"]


def test_a_state_of_another_server(connect, tmp_path):
    """Servers have keys of their own: what waits in one process is not known in another."""
    clients = [connect("--base", spaces.probe_base(tmp_path / str(number)), "--approve", "ask") for number in range(2)]
    one, two = (ask(client, "run_code", code=CALL) for client in clients)
    assert two.again([ACCEPT], state=one.state)["error"]["code"] == -32602
    assert [each.again([ACCEPT])["result"]["structuredContent"]["value"] for each in (one, two)] == ["x", "x"]


def test_approvals_of_a_task(gated):
    """They wait in the task, whoever fetches it, and are answered once."""
    meta = {META + "clientCapabilities": {"elicitation": {}, **WITH_TASKS}}

    def ask_task(method, **params):
        return gated.result(gated.send(method, **params, _meta=meta))

    task = ask_task("tools/call", name="run_code", arguments={"code": "import time; time.sleep(0.3)\n" + CALL, "wait_ms": 0})["taskId"]
    support.wait_until(lambda: ask_task("tasks/get", taskId=task)["status"] == "input_required", "the task asks")
    (key, request), = ask_task("tasks/get", taskId=task)["inputRequests"].items()
    assert request["method"] == "elicitation/create" and "probe.go" in request["params"]["message"]
    ask_task("tasks/update", taskId=task, inputResponses={"other": ACCEPT, key: "no object"})
    assert ask_task("tasks/get", taskId=task)["status"] == "input_required"
    ask_task("tasks/update", taskId=task, inputResponses={key: ACCEPT})
    support.wait_until(lambda: ask_task("tasks/get", taskId=task)["status"] == "completed", "the task ends")
    assert ask_task("tasks/get", taskId=task)["result"]["structuredContent"]["value"] == "x"
    ask_task("tasks/update", taskId=task, inputResponses={key: ACCEPT})  # too late, and nothing happens


@pytest.mark.parametrize("answer, words", [
    ({"action": "accept", "content": {"decision": "reject", "reason": "not today"}}, "not today"), ({"action": "decline"}, "declined"),
    ({"action": "cancel"}, "no answer"), ({}, "no answer"), ({"action": "accept"}, "rejected"),
])
def test_rejections(gated, answer, words):
    result = ask(gated, "run_code", code=CALL).again([answer])["result"]
    assert result["isError"] and words in json.dumps(result)


def test_several_approvals_one_after_the_other_and_at_once(gated):
    first = ask(gated, "run_code", code="[%s, %s]" % (CALL, CALL))
    second = Asked(gated, "run_code", first.call["arguments"], first.again([ACCEPT])["result"])
    assert second.keys != first.keys
    assert second.again([ACCEPT])["result"]["structuredContent"]["value"] == ["x", "x"]
    both = ask(gated, "run_code", code="from concurrent.futures import ThreadPoolExecutor as P\n"
                                       "with P(2) as p: r = list(p.map(lambda a: tools.probe.go(a=a), 'xy'))\n"
                                       "[__import__('json').loads(each)['argv'][-1] for each in r]")
    rounds = 0
    while "structuredContent" not in (result := both.again([ACCEPT] * len(both.keys))["result"]):
        both = Asked(gated, "run_code", both.call["arguments"], result)
        rounds += 1
    assert result["structuredContent"]["value"] == ["x", "y"] and rounds <= 1


def test_an_operation_of_the_agent_is_asked_too(gated):
    asked = ask(gated, "create_workflow", name="w", source="def run():\n    return 1\n", description="d")
    assert asked.again([ACCEPT])["result"]["structuredContent"]["name"] == "w"


def test_a_client_that_cannot_ask_is_rejected(gated):
    assert "does not support elicitation" in gated.fails("run_code", code=CALL)


def test_the_result_waits_for_a_client_that_comes_late(connect, tmp_path):
    client = connect("--base", spaces.probe_base(tmp_path), "--approve", "ask", "--approval-timeout", "0.3")
    asked = ask(client, "run_code", code="x = 1\n" + CALL)
    support.wait_until(lambda: client.value("run_code", code="1")["value"] == 1, "another session")
    late = None

    def ended():
        nonlocal asked, late
        answer = asked.again({})["result"]
        if answer["resultType"] == "input_required":
            asked = Asked(client, "run_code", asked.call["arguments"], answer)
            return False
        late = answer
        return True

    support.wait_until(ended, client.stderr_text)
    assert late["isError"] and late["structuredContent"]["error"]["code"] == "rejected"
    assert client.value("run_code", code="x", session=late["structuredContent"]["session"])["value"] == 1


def test_the_end_with_a_call_that_waits(gated):
    ask(gated, "run_code", code=CALL)
    ask(gated, "create_workflow", name="w", source="def run():\n    return 1\n", description="d")
    assert gated.close() == 0


def test_a_state_belongs_to_its_token(request, tmp_path):
    server = Listening("--base", spaces.probe_base(tmp_path), "--approve", "ask", tokens=TOKENS)
    request.addfinalizer(server.close)
    one, two = Web(server, ONE), Web(server, TWO)
    call = {"name": "run_code", "arguments": {"code": CALL}}
    asked = one.post(message("tools/call", 1, meta={**envelope(), **FORMS}, **call))[1][-1]["result"]
    answers = {"inputResponses": {key: ACCEPT for key in asked["inputRequests"]}, "requestState": asked["requestState"]}
    assert two.post(message("tools/call", 2, meta={**envelope(), **FORMS}, **call, **answers))[1][-1]["error"]["code"] == -32602
    done = one.post(message("tools/call", 2, meta={**envelope(), **FORMS}, **call, **answers))[1][-1]["result"]
    assert done["structuredContent"]["value"] == "x"
    # the other token has no right to approve
    result = two.post(message("tools/call", 3, meta={**envelope(), **FORMS}, **call))[1][-1]["result"]
    assert result["isError"] and "scope approve" in json.dumps(result)


# ---- real clients ------------------------------------------------------------------------------------------


PYTHON_SDK = textwrap.dedent("""\
    import asyncio, json, sys
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def main():
        where = sys.argv[1] if len(sys.argv) == 2 else stdio_client(StdioServerParameters(command=sys.argv[1], args=sys.argv[2:]))
        async with Client(where) as client:
            first = await client.call_tool("run_code", {"code": "x = 41"})
            session = first.structured_content["session"]
            again = await client.call_tool("run_code", {"code": "x + 1", "session": session})
            print(json.dumps([client.protocol_version, len((await client.list_tools()).tools) > 5, again.structured_content["value"]]))

    asyncio.run(main())
    """)


ELICITING = textwrap.dedent("""\
    import asyncio, json, sys
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.types import ElicitResult

    async def answer(context, params):
        return ElicitResult(action="accept", content={"decision": "accept"})

    async def main():
        server = stdio_client(StdioServerParameters(command=sys.argv[1], args=sys.argv[2:-1]))
        async with Client(server, elicitation_callback=answer) as client:
            done = await client.call_tool("run_code", {"code": sys.argv.pop()})
            print(json.dumps([client.protocol_version, done.structured_content["value"]]))

    asyncio.run(main())
    """)


def test_the_python_sdk_answers_questions(tmp_path):
    done = subprocess.run([os.environ.get("WORKCELL_MCP_PYTHON", support.PYTHON), "-c", ELICITING, support.BIN, "mcp", "--python",
                           support.bare_python(), "--base", spaces.probe_base(tmp_path), "--approve", "ask", CALL], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=support.DEADLINE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == [MODERN, "x"]


LARGE = textwrap.dedent("""\
    import asyncio, base64, json, sys
    from mcp import Client

    async def main():
        async with Client(sys.argv[1]) as client:
            code = "import os\\nclass P:\\n    def _repr_png_(self): return b'\\\\x89PNG\\\\r\\\\n\\\\x1a\\\\n' + os.urandom(3 << 20)\\nP()"
            done = await client.call_tool("run_code", {"code": code})
            print(json.dumps([len(base64.b64decode(part.data)) for part in done.content if part.type == "image"]))

    asyncio.run(main())
    """)


def test_the_python_sdk_gets_a_large_image(request):
    """It reads events of at most 1 MiB."""
    server = Listening("--auth-disabled", token=None)
    request.addfinalizer(server.close)
    done = subprocess.run([os.environ.get("WORKCELL_MCP_PYTHON", support.PYTHON), "-c", LARGE, "http://127.0.0.1:%d/mcp" % server.port],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=support.DEADLINE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == [(3 << 20) + 8]


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_python_sdk_finds_the_revision_by_itself(request, transport):
    python = os.environ.get("WORKCELL_MCP_PYTHON", support.PYTHON)
    where = [support.BIN, "mcp", "--python", support.bare_python(), "--pool", "0"]
    if transport == "http":
        server = Listening("--auth-disabled", token=None)
        request.addfinalizer(server.close)
        where = ["http://127.0.0.1:%d/mcp" % server.port]
    done = subprocess.run([python, "-c", PYTHON_SDK, *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=support.DEADLINE,
                          check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == [MODERN, True, 42]
