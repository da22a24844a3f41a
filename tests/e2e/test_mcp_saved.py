"""Sessions of `workcell mcp` that outlive their server (--saved), and that every server of one storage answers for (--advertise)."""
import os
import signal
import sys

import pytest

import listening
import serving
import spaces
import support
from listening import Listening

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import client as mcp_client  # noqa: E402
from stateless import META, Stdio, Web, envelope, message  # noqa: E402

ONE, TWO = "t0ken-of-the-first-1", "t0ken-of-the-second"
TOKENS = ("tokens:\n  - {name: one, token: %s, scopes: [run, approve]}\n  - {name: two, token: %s, scopes: [run]}\n" % (ONE, TWO))
TASKS = {"extensions": {META + "tasks": {}}}
FORMS = {"elicitation": {}}


@pytest.fixture
def connect(tmp_path):
    (tmp_path / "work").mkdir()
    made = mcp_client.clients(Stdio)
    make = next(made)
    yield lambda *flags: make("--cwd", tmp_path / "work", "--base", spaces.probe_base(tmp_path), "--saved", tmp_path / "saved", *flags)
    next(made, None)


def saved(tmp_path):
    """The ids of the sessions that are saved."""
    return sorted(path.parent.name for path in (tmp_path / "saved").glob("*/state"))


def begin(client, code):
    return client.value("run_code", code=code)["session"]


def value(client, session, code):
    return client.value("run_code", code=code, session=session)["value"]


# ---- one server after the other ---------------------------------------------------------------------------


def test_a_session_outlives_its_server(connect, tmp_path):
    first = connect()
    session, other = begin(first, "squares = (n * n for n in range(9)); next(squares)"), begin(first, "y = 5")
    fork, = first.value("fork_session", session=other)["sessions"]
    first.value("close_session", session=other)
    assert first.close() == 0
    assert saved(tmp_path) == sorted([session, fork])
    second = connect()
    for tool, more in ("run_code", {"code": "1"}), ("interrupt", {}), ("reset", {}), ("close_session", {}), ("list_variables", {}), ("files", {"op": "list"}):
        words = second.fails(tool, session=other, **more)
        assert words.startswith("not_found: no session '%s'" % other) and "to begin a new one" in words, (tool, words)
    # The first call may be any that needs a session, and several may come at once.
    assert "squares" in second.call("list_variables", session=session)["content"][0]["text"]
    assert value(second, session, "next(squares)") == 1 and value(second, fork, "y") == 5
    second.value("reset", session=session)
    assert second.fails("run_code", session=session, code="squares").count("NameError")
    second.value("close_session", session=session)
    second.value("close_session", session=fork)
    assert second.fails("run_code", session=session, code="1").startswith("not_found")
    support.wait_until(lambda: saved(tmp_path) == [], lambda: saved(tmp_path))


def test_points_outlive_their_server(connect):
    first = connect("--saved-points")
    session = begin(first, "x = 1")
    first.value("checkpoint", session=session, name="one")
    assert value(first, session, "x = 2; x") == 2
    assert first.close() == 0
    second = connect("--saved-points")
    second.value("rewind", session=session, name="one")  # also as the first call
    assert value(second, session, "x") == 1


def test_calls_that_come_at_once_take_up_one_session(connect):
    first = connect()
    session = begin(first, "n = 0")
    assert first.close() == 0
    second = connect()
    calls = [second.start("run_code", {"session": session, "code": "n += 1; n"}) for _ in range(4)]
    asked = [second.start("interrupt", {"session": "0" * 31 + str(i)}) for i in range(8)]
    answers = {message["id"]: message["result"] for message in (second.read() for _ in calls + asked)}
    assert [answers[call]["structuredContent"]["value"] for call in calls] == [1, 2, 3, 4]
    assert all(answers[call]["isError"] for call in asked)


def test_one_that_is_idle_is_let_go(connect, tmp_path):
    """Two servers that cannot reach each other."""
    first, second = connect("--session-idle", "1"), connect("--session-idle", "0")
    session = begin(first, "import os; x = 41; os.getpid()")
    support.wait_until(lambda: saved(tmp_path) == [session], lambda: saved(tmp_path))
    assert value(second, session, "x += 1; x") == 42
    # The second does not let go of it.
    words = first.fails("run_code", session=session, code="x")
    assert words.startswith("conflict:"), words
    assert value(second, session, "x") == 42
    assert second.close() == 0
    assert value(first, session, "x") == 42


def test_sessions_that_make_room_are_saved(connect, tmp_path):
    client = connect("--max-sessions", "2")
    sessions = [begin(client, "x = %d" % n) for n in range(4)]
    assert [value(client, session, "x") for session in sessions] == [0, 1, 2, 3]
    # An id that was never given costs nobody its session.
    held = value(client, sessions[3], "import os; os.getpid()")
    for n in range(3):
        assert client.fails("run_code", session="%032x" % n, code="1").startswith("not_found")
    assert value(client, sessions[3], "os.getpid()") == held


def test_a_cell_that_runs_at_the_end_is_interrupted(connect, tmp_path):
    client = connect()
    session, marker = begin(client, "x = 1"), tmp_path / "begun"
    client.start("run_code", {"session": session, "code": "x = 2\nopen(%r, 'w').close()\nimport time\ntime.sleep(600)\nx = 3" % str(marker)})
    support.wait_until(marker.exists, "it runs")
    assert client.close() == 0
    assert value(connect(), session, "x") == 2


def test_a_session_of_a_connection_leaves_nothing(tmp_path):
    (tmp_path / "work").mkdir()
    client = mcp_client.Client("--cwd", tmp_path / "work", "--saved", tmp_path / "saved", "--durable", "results")
    assert client.value("run_code", code="x = 1; x")["value"] == 1 and len(saved(tmp_path)) == 1
    assert client.fails("run_code", code="import os; os._exit(1)").startswith("Error: KernelDied")
    assert client.value("run_code", code="x")["value"] == 1
    assert client.close() == 0 and saved(tmp_path) == []


# ---- several servers at once -------------------------------------------------------------------------------


class Crew:
    """Servers of one storage, which reach each other."""

    def __init__(self, path, redis):
        self.path, self.servers = path, []
        self.place = [redis.url(path.name), "--saved-lease", "1"] if redis else [path / "saved"]
        (path / "work").mkdir()

    def start(self, *flags):
        port = serving.free_port()
        server = Listening("--executor", "subprocess", "--cwd", self.path / "work", "--base", spaces.probe_base(self.path), "--saved", *self.place,
                           "--advertise", "http://127.0.0.1:%d" % port, *flags, tokens=TOKENS, listen="127.0.0.1:%d" % port)
        server.token = ONE
        self.servers.append(server)
        return Web(server, ONE)

    def kill(self, web):
        table = support.processes()
        family = [each.pid for each in support.descendants(web.server.pid, table)]
        os.kill(web.server.pid, signal.SIGKILL)
        web.server.process.wait(support.DEADLINE)
        support.wait_until(lambda: not any(os.path.exists("/proc/%d" % pid) for pid in family), "its processes end")
        self.servers.remove(web.server)

    def stop(self, web):
        self.servers.remove(web.server)
        web.server.close()


@pytest.fixture(params=["folder", "redis"])
def crew(request, redis, tmp_path):
    made = Crew(tmp_path, redis if request.param == "redis" else None)
    yield made
    for server in made.servers:
        server.close()


def test_every_server_answers_for_a_session(crew, tmp_path):
    """One that was never saved: its kernel stays where it is."""
    first, second = crew.start(), crew.start()
    session = begin(first, "import os; x = 41; os.getpid()")
    pid = value(first, session, "os.getpid()")
    assert value(second, session, "x += 1; [x, os.getpid()]") == [42, pid] and value(first, session, "x") == 42
    assert Web(second.server, TWO).fails("run_code", session=session, code="x").startswith("not_found")
    assert "x" in second.call("list_variables", session=session)["content"][0]["text"]
    fork, = second.value("fork_session", session=session)["sessions"]
    assert value(second, fork, "x") == 42
    second.value("close_session", session=fork)
    assert first.fails("run_code", session=fork, code="x").startswith("not_found")
    # A cell that runs there, and its output, job, interrupt and end here.
    status, messages = second.post(message("tools/call", 7, meta={**envelope(), "progressToken": "p"}, name="run_code",
                                           arguments={"session": session, "code": "print('one'); print('two')"}))
    assert status == 200 and any("one" in each.get("params", {}).get("message", "") for each in messages), messages
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    job = second.value("run_code", session=session, code="open(%r).read()" % str(fifo), wait_ms=50)["job"]
    assert second.value("get_job", job=job)["result"] == "running" and first.value("get_job", job=job)["result"] == "running"
    assert Web(second.server, TWO).fails("get_job", job=job).startswith("not_found")
    assert second.value("interrupt", session=session)["result"] == "interrupted"
    assert second.fails("get_job", job=job, wait_ms=10000).count("KeyboardInterrupt")
    second.value("close_session", session=session)
    for web in first, second, crew.start():
        assert web.fails("run_code", session=session, code="x").startswith("not_found")


def test_a_reader_that_leaves_another_server_cancels(crew, tmp_path):
    first, second = crew.start(), crew.start()
    session, fifo = begin(first, "x = 1"), tmp_path / "fifo"
    os.mkfifo(fifo)
    body = message("tools/call", 7, meta={**envelope(), "progressToken": "p"}, name="run_code", arguments={"session": session, "code": (
        "print('begun', flush=True)\ntry:\n    open(%r).read()\nexcept KeyboardInterrupt:\n    x = 'cancelled'" % str(fifo))})
    connection, response = second.server.open("POST", body, token=ONE, MCP_Protocol_Version="2026-07-28", Mcp_Method="tools/call", Mcp_Name="run_code")
    while b"begun" not in response.readline():
        pass
    response.close()
    connection.close()
    assert value(second, session, "x") == "cancelled"


def test_tasks_and_approvals_at_another_server(crew, tmp_path):
    first, second = crew.start("--approve", "ask"), crew.start("--approve", "ask")
    session, fifo = begin(first, "x = 1"), tmp_path / "fifo"
    os.mkfifo(fifo)

    def ask(web, method, capabilities=TASKS, **params):
        status, messages = web.post(message(method, 5, meta=envelope(capabilities=capabilities), **params), Mcp_Name=params.get("taskId", params.get("name")))
        return messages[-1].get("result") or (status, messages[-1]["error"]["code"])

    task = ask(second, "tools/call", name="run_code", arguments={"session": session, "code": "open(%r).read()" % str(fifo), "wait_ms": 50})["taskId"]
    assert [ask(web, "tasks/get", taskId=task)["status"] for web in (first, second)] == ["working"] * 2
    assert ask(Web(second.server, TWO), "tasks/get", taskId=task) == (200, -32602)
    fifo.write_text("went on")
    support.wait_until(lambda: ask(second, "tasks/get", taskId=task)["status"] == "completed", "it ends")
    assert ask(second, "tasks/get", taskId=task)["result"]["structuredContent"]["value"] == "went on"
    # The call that asks and the one that answers may reach different servers; the cell runs once.
    call = {"name": "run_code", "arguments": {"session": session, "code": "x += 1; [__import__('json').loads(tools.probe.go(a='y'))['argv'][-1], x]"}}
    asked = ask(second, "tools/call", FORMS, **call)
    assert asked["resultType"] == "input_required", asked
    answers = {"inputResponses": {key: {"action": "accept", "content": {"decision": "accept"}} for key in asked["inputRequests"]},
               "requestState": asked["requestState"]}
    assert ask(Web(first.server, TWO), "tools/call", FORMS, **call, **answers) == (200, -32602)
    assert ask(first, "tools/call", FORMS, **call, **answers)["structuredContent"]["value"] == ["y", 2]
    assert ask(second, "tools/call", FORMS, **call, **answers) == (200, -32602)
    assert value(second, session, "x") == 2


def test_a_server_that_stops_leaves_its_sessions(crew):
    first, second = crew.start(), crew.start()
    session = begin(first, "x = 41")
    assert value(second, session, "x += 1; x") == 42
    crew.stop(first)
    assert value(second, session, "x") == 42
    third = crew.start()
    assert value(third, session, "x += 1; x") == 43 and value(second, session, "x") == 43


def test_a_server_that_is_killed(crew):
    first, second = crew.start("--durable", "results"), crew.start("--durable", "results")
    session, lost = begin(first, "x = 41"), "f" * 32
    assert value(second, session, "x += 1; x") == 42
    crew.kill(first)
    assert value(second, session, "x") == 42
    assert second.fails("run_code", session=lost, code="x").startswith("not_found")


def test_a_connection_of_an_earlier_revision_is_not_passed_on(crew):
    """It has a session of its own at its server, so a session elsewhere is told of, and can be used when that server has let go of it."""
    first, second = crew.start("--durable", "results"), crew.start("--durable", "results")
    session = begin(first, "x = 41")
    connection = second.server.session()
    events = second.server.events("POST", listening.call("run_code", code="x", session=session), session=connection, token=ONE)
    words = events[-1][1]["result"]["content"][0]["text"]
    assert words.startswith("conflict:"), words
    crew.stop(first)
    events = second.server.events("POST", listening.call("run_code", code="x", session=session), session=connection, token=ONE)
    assert events[-1][1]["result"]["structuredContent"]["value"] == 41


def test_an_id_in_odd_places_reaches_nobody(crew):
    first, second = crew.start(), crew.start()
    session = begin(first, "x = 41")
    for odd in (session.upper(), session + " ", session[:31], session + ".", session + "\0", {"a": session}, [session], "../" + session):
        status, messages = second.post(message("tools/call", 7, name="run_code", arguments={"session": odd, "code": "x"}))
        assert status == 200 and messages[-1]["result"]["isError"], (odd, messages)
    for state in (session, session + ".1.2.3", ".".join([session, "9" * 10, "0" * 32, "0" * 64])):
        status, messages = second.post(message("tools/call", 7, name="run_code", arguments={"session": session, "code": "x"}, requestState=state))
        assert messages[-1]["error"]["code"] == -32602, messages
    assert value(second, session, "x") == 41
