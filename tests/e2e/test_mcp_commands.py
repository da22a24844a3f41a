"""The MCP tool `command`: programs beside the cells of a session, and what clients and programs do to get further than that."""
import json
import os
import sys
import uuid

import pytest

import spaces
import support
from listening import Listening

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import client as mcp_client  # noqa: E402
from stateless import META, Stdio, Web, envelope, message  # noqa: E402

TOKENS = ("tokens:\n  - {name: one, token: t0ken-of-the-first-1, scopes: [run, approve]}\n"
          "  - {name: two, token: t0ken-of-the-second, scopes: [run]}\n  - {name: reader, token: t0ken-of-the-reader, scopes: [read]}\n")
ONE, TWO, READER = "t0ken-of-the-first-1", "t0ken-of-the-second", "t0ken-of-the-reader"
FORMS = {"elicitation": {}}
ACCEPT = {"action": "accept", "content": {"decision": "accept"}}
MAX = 50_000
PYTHON = "/usr/bin/python3"


@pytest.fixture
def connect():
    yield from mcp_client.clients(mcp_client.Client)


@pytest.fixture
def modern():
    yield from mcp_client.clients(Stdio)


@pytest.fixture(params=["subprocess", "sandbox"])
def flags(request, tmp_path):
    (tmp_path / "work").mkdir()
    return "--executor", request.param, "--base", tmp_path / "base", "--cwd", tmp_path / "work"


@pytest.fixture
def client(connect, flags):
    return connect(*flags, python=PYTHON)


def text_of(result):
    return result["content"][0]["text"]


def result_of(client, number):
    """Of a call that may have been answered before one that was made after it."""
    early = [note["result"] for note in client.notes if note.get("id") == number]
    return early[0] if early else client.result(number)


def begin(client, line, **more):
    began = client.value("command", line=line, wait_ms=0, **more)
    assert began["state"] == "running", began
    return began["command"]


# ---- what an agent does with it ----------------------------------------------------------------------------------


def test_a_program_and_its_end(client):
    answer = client.call("command", line="echo out; echo err >&2; exit 3")
    found = answer["structuredContent"]
    assert sorted(found["output"].splitlines()) == ["err", "out"] and (found["exit_code"], found["state"], found["more"]) == (3, "ended", False)
    assert text_of(answer).endswith("\n[exit code 3]")
    found = client.value("command", line=["printf", "%s|", "a b", "$HOME", "'"])
    assert (found["output"], found["exit_code"]) == ("a b|$HOME|'|", 0)
    assert client.value("command", line="true")["output"] == ""
    assert client.value("command", line="kill -9 $$")["exit_code"] == 137


def test_the_place_is_the_codes(client):
    code = client.value("run_code", code="import os; open('f', 'w').write('of the code'); os.mkdir('sub'); os.getcwd()")["value"]
    assert client.value("command", line="pwd; cat f")["output"] == code + "\nof the code"
    assert client.value("command", line=["pwd"], cwd="sub")["output"] == code + "/sub\n"
    client.value("command", line="echo from the program > g")
    assert client.value("run_code", code="open('g').read()")["value"] == "from the program\n"


def test_it_does_not_wait_for_cells(client):
    number = client.start("run_code", {"code": "import os, time\nopen('runs', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n'went on'"})
    support.wait_until(lambda: "runs" in client.value("command", line="ls")["output"], "the cell runs")
    client.value("command", line="touch go")
    assert result_of(client, number)["structuredContent"]["value"] == "went on"


def test_a_program_that_outlives_its_call(client):
    found = begin(client, "echo one; read x; echo two $x; read x; exit 7", keep_stdin=True)
    support.wait_until(lambda: client.value("command", op="output", command=found)["output"] == "one\n", "its first line")
    answer = client.call("command", op="output", command=found)
    assert "is running; its output goes on at position 4]" in text_of(answer) and found in text_of(answer)
    assert client.value("command", op="output", command=found, position=4)["output"] == ""
    client.value("command", op="stdin", command=found, stdin="and ü\n", keep_stdin=True)
    support.wait_until(lambda: client.value("command", op="output", command=found, position=4)["output"] == "two and ü\n", "its second line")
    listed, = client.value("command", op="list")["commands"]
    assert (listed["command"], listed["state"], listed["exit_code"]) == (found, "running", None) and listed["line"].startswith("echo one")
    ended = client.value("command", op="stdin", command=found, stdin="\n", wait_ms=60_000)
    assert (ended["state"], ended["exit_code"]) == ("ended", 7)
    assert client.value("command", op="output", command=found)["output"] == "one\ntwo and ü\n"
    assert client.value("command", op="output", command=found, position=-3)["output"] == "ü\n"
    assert "closed" in client.fails("command", op="stdin", command=found, stdin="x")
    assert "closed" in client.fails("command", op="signal", command=found)


def test_signals(client):
    found = begin(client, [PYTHON, "-uc", "import signal, sys\nsignal.signal(signal.SIGUSR1, lambda *_: (print('caught'), sys.exit(5)))\n"
                                   "print('ready')\nwhile True: signal.pause()"])
    support.wait_until(lambda: client.value("command", op="output", command=found)["output"], "it is ready")
    assert "invalid" in client.fails("command", op="signal", command=found, signal="WHATEVER")
    ended = client.value("command", op="signal", command=found, signal="USR1", wait_ms=60_000)
    assert (ended["exit_code"], ended["output"]) == (5, "caught\n")
    found = begin(client, "sleep 600")
    assert client.value("command", op="signal", command=found, wait_ms=60_000)["exit_code"] == 143
    found = begin(client, "sleep 600")
    ended = client.value("command", op="signal", command=found, signal="SIGKILL", wait_ms=60_000)
    assert (ended["exit_code"], ended["reason"]) == (137, "killed")


def test_a_timeout(client):
    word = uuid.uuid4().int % 10 ** 9 + 10 ** 6
    answer = client.call("command", line="echo begun; sleep %d & sleep %d" % (word, word), timeout=0.3)
    assert (answer["structuredContent"]["output"], answer["structuredContent"]["reason"]) == ("begun\n", "timeout")
    assert "killed by its timeout" in text_of(answer)
    support.wait_until(lambda: not support.with_argument(str(word)), "its processes are gone")


def test_input(client):
    assert client.value("command", line="cat", stdin="a\0ü\n")["output"] == "a\0ü\n"
    assert client.value("command", line="cat")["output"] == ""  # its stdin is at its end
    assert client.value("command", line="wc -c", stdin="x" * (1 << 20))["output"].strip() == str(1 << 20)
    assert client.fails("command", line="touch ran; cat", stdin="x" * ((1 << 20) + 1)).startswith("limit:")
    assert client.value("command", line="ls")["output"] == ""  # that one was not begun
    assert client.value("command", line="exit 4", stdin="x" * (1 << 20))["exit_code"] == 4  # it does not read
    found = begin(client, "sleep 600", keep_stdin=True)
    client.value("command", op="stdin", command=found, stdin="x" * (1 << 20), keep_stdin=True)
    assert client.fails("command", op="stdin", command=found, stdin="x" * (1 << 20), keep_stdin=True).startswith("limit:")
    found = begin(client, "sleep 600")
    assert client.fails("command", op="stdin", command=found, stdin="x").startswith("invalid:")


@pytest.mark.parametrize("arguments, words", [
    ({}, "argument 'line' is missing"), ({"line": []}, "argument 'line' is missing"), ({"line": ["a\0b"]}, "NUL"), ({"line": "a\0b"}, "NUL"),
    ({"line": [1]}, "argument 'line' must be"), ({"line": [""]}, "argv[0]"), ({"line": ["nope-nope"]}, "not_found:"), ({"line": ["/etc"]}, "invalid:"),
    ({"line": "ls", "cwd": "/nope"}, "invalid:"), ({"line": ["true", "x" * 200_000]}, "limit:"), ({"line": ["true"] * 5000}, "limit:"),
    ({"line": "ls", "timeout": -1}, "'timeout' must be from"), ({"line": "ls", "op": "start"}, "'op' must be one of"), ({"op": "output"}, "argument 'command' is missing"),
    ({"op": "output", "command": "0" * 16}, "not_found:"), ({"op": "stdin", "command": "x", "stdin": "y"}, "not_found:"),
    ({"op": "signal", "command": "x" * 100_000}, "not_found:"), ({"line": "ls", "env": {"A": "1"}}, "unknown argument 'env'"),
])
def test_wrong_calls(connect, arguments, words):
    assert words in connect().fails("command", **arguments)


# ---- output ------------------------------------------------------------------------------------------------------


def test_long_output_is_cut_in_the_middle_and_read_in_pages(client):
    answer = client.call("command", line="i=0; while [ $i -lt 30000 ]; do echo line $i; i=$((i+1)); done")
    output = answer["structuredContent"]["output"]
    assert output.startswith("line 0\nline 1\n") and output.endswith("line 29999\n") and len(output) < MAX + 500
    assert "[Output truncated: " in output and "op output, position 30000 of command" in output
    whole = "".join("line %d\n" % i for i in range(30000))
    pages, position = [], 0
    while True:
        page = client.value("command", op="output", command=answer["structuredContent"]["command"], position=position)
        assert len(page["output"]) <= MAX
        pages.append(page["output"])
        position = page["position"]
        if not page["more"]:
            break
    assert "".join(pages) == whole and position == len(whole) and len(pages) == len(whole) // MAX + 1
    assert client.value("command", op="output", command=page["command"], position=-6)["output"] == "29999\n"


def test_a_flood_stays_bounded(client):
    """100 MB of it: the answer has its ends, the server has a part of it, and other calls go on."""
    before = support.peak_rss_bytes(client.pid)
    number = client.start("command", {"line": "echo begin; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo end"})
    assert client.value("command", line="echo beside it")["output"] == "beside it\n"
    found = result_of(client, number)["structuredContent"]
    assert found["output"].startswith("begin\nxxx") and found["output"].endswith("x\nend\n") and len(found["output"]) < MAX + 500
    assert found["position"] == 100_000_011
    # In small pieces too, which are read one by one.
    small = client.value("command", line=[PYTHON, "-c", "import os, time\nfor i in range(6000): os.write(1, b'x' * 15000); time.sleep(0.0003)"])
    assert small["position"] == 90_000_000 and len(small["output"]) < MAX + 500
    assert support.peak_rss_bytes(client.pid) - before < support.memory(40)
    late = client.value("command", op="output", command=found["command"], position=30_000)
    assert late["output"].startswith("[") and "bytes before this are no longer kept]\nxxx" in late["output"]
    assert late["more"] and late["position"] > 90_000_000


def test_a_flood_that_nobody_reads(client):
    found = begin(client, "yes")
    support.wait_until(lambda: client.value("command", op="output", command=found)["position"] > 3_000_000, "it goes on")
    assert client.value("command", op="signal", command=found, signal="KILL", wait_ms=60_000)["state"] == "ended"


def test_bytes_that_are_not_text(client):
    answer = client.call("command", line="printf 'a\\377b\\342\\202\\254\\342\\202 \\033]0;t\\007\\033[2J\\000\\360'")
    assert answer["structuredContent"]["output"] == "a\ufffdb€\ufffd \x1b]0;t\x07\x1b[2J\0\ufffd"


def test_characters_are_not_torn(client):
    """Neither by the pieces in which they come, nor by the other stream, nor by pages."""
    found = client.value("command", line=[PYTHON, "-c", "import os, time\nfor byte in '€'.encode():\n os.write(1, bytes([byte]))\n time.sleep(0.05)\n"
                                          " os.write(2, b'.')\n time.sleep(0.05)"])
    assert sorted(found["output"]) == sorted("..€.") or "\ufffd" not in found["output"], found
    found = client.value("command", line=[PYTHON, "-c", "print('x' + '€' * 60000, end='')"])
    page = client.value("command", op="output", command=found["command"])
    assert page["output"] == "x" + "€" * (len(page["output"]) - 1) and page["more"]
    rest = client.value("command", op="output", command=found["command"], position=page["position"])
    assert rest["output"][:100] == "€" * 100
    head, _, tail = found["output"].partition("\n\n[Output truncated: ")
    assert set(head) == {"x", "€"} and set(tail.rpartition("]\n\n")[2]) == {"€"}
    # The beginning of one is not answered before its end may have come.
    found = begin(client, [PYTHON, "-c", "import os; os.write(1, b'a\\xe2\\x82'); input(); os.write(1, b'\\xac')"], keep_stdin=True)
    support.wait_until(lambda: client.value("command", op="output", command=found)["output"], "its first bytes")
    first = client.value("command", op="output", command=found)
    assert (first["output"], first["position"]) == ("a", 1)
    last = client.value("command", op="stdin", command=found, stdin="\n", position=first["position"], wait_ms=60_000)
    assert last["output"] == "€"


def test_output_comes_as_progress(client):
    result = client.result(client.start("command", {"line": "echo first; echo second >&2"}, _meta={"progressToken": "t"}))
    notes = client.noted("notifications/progress")
    assert sorted("".join(note["message"] for note in notes).splitlines()) == ["first", "second"] and not result["isError"]
    assert notes[-1]["progress"] == 13 and notes[-1]["progressToken"] == "t"


def test_a_list_is_bounded(client):
    for _ in range(3):
        client.value("command", line=": " + "ü" * 50_000)
    listed = client.call("command", op="list")
    assert len(json.dumps(listed)) < 5000 and len(listed["structuredContent"]["commands"]) == 3


# ---- its end -----------------------------------------------------------------------------------------------------


def word_of_sleep():
    return str(uuid.uuid4().int % 10 ** 9 + 10 ** 6)


def test_a_cancelled_call_ends_its_program(client):
    word = word_of_sleep()
    number = client.start("command", {"line": "sleep %s & sleep %s" % (word, word)})
    support.wait_until(lambda: support.with_argument(word), "it runs")
    client.notify("notifications/cancelled", requestId=number)
    support.wait_until(lambda: not support.with_argument(word), "it is gone")
    assert client.value("command", op="list")["commands"] == []
    # Of one that was only looked at nothing ends.
    found = begin(client, "sleep %s" % word)
    number = client.start("command", {"op": "output", "command": found, "wait_ms": 600_000})
    client.notify("notifications/cancelled", requestId=number)
    assert client.value("command", op="output", command=found)["state"] == "running"
    assert all(message.get("id") != number for message in client.notes)


@pytest.mark.parametrize("how", ["reset", "close_session"])
def test_the_session_ends(modern, flags, how):
    client, word = modern(*flags, python=PYTHON), word_of_sleep()
    session = client.value("command", line="true")["session"]
    waits = client.start("command", {"line": "sleep %s" % word, "session": session})
    support.wait_until(lambda: support.with_argument(word), "it runs")
    client.value(how, session=session)
    result = result_of(client, waits)
    support.wait_until(lambda: not support.with_argument(word), "it is gone")
    if how == "reset":
        assert result["structuredContent"]["reason"] == "session" and "the kernel ended" in text_of(result)
        assert client.value("command", line="echo again", session=session)["output"] == "again\n"
    else:
        assert result["isError"] and text_of(result).startswith("closed:")
        assert client.fails("command", line="true", session=session).startswith("not_found:")


def test_the_server_ends(connect, flags):
    client, word = connect(*flags, python=PYTHON), word_of_sleep()
    client.start("command", {"line": "sleep %s" % word})
    begin(client, "sleep %s" % word)
    support.wait_until(lambda: len(support.with_argument(word)) >= 2, "they run")
    assert client.close() == 0
    support.wait_until(lambda: not support.with_argument(word), "they are gone")


# ---- sessions, and who may ---------------------------------------------------------------------------------------


def test_a_session_is_made_for_a_program(modern, flags):
    client = modern(*flags, python=PYTHON)
    answer = client.call("command", line="echo x > f")
    session = answer["structuredContent"]["session"]
    assert session in answer["content"][-1]["text"]
    assert client.value("run_code", code="open('f').read()", session=session)["value"] == "x\n"
    for op in ("list", "output", "stdin", "signal"):
        assert "argument 'session' is missing" in client.fails("command", op=op, command="x", stdin="x")
        assert "no session 'new'" in client.fails("command", op=op, command="x", session="new")
    other = client.value("command", line="true")["session"]
    assert other != session and client.value("command", op="list", session=other)["commands"]
    found = client.value("command", line="sleep 600", wait_ms=0, session=session)["command"]
    assert client.fails("command", op="output", command=found, session=other).startswith("not_found:")
    client.value("command", op="signal", command=found, session=session, wait_ms=60_000)


def test_tokens(request):
    server = Listening(tokens=TOKENS)
    request.addfinalizer(server.close)
    one, two = Web(server, ONE), Web(server, TWO)
    began = one.value("command", line="cat", keep_stdin=True, wait_ms=0)
    session, found = began["session"], began["command"]
    unknown = one.fails("run_code", code="1", session="0" * 32).replace("0" * 32, session)
    for arguments in ({"line": "id"}, {"op": "list"}, {"op": "output", "command": found}, {"op": "stdin", "command": found, "stdin": "x\n"},
                      {"op": "signal", "command": found, "signal": "KILL"}):
        assert two.fails("command", session=session, **arguments) == unknown
    mine = two.value("command", line="true")["session"]
    assert two.fails("command", op="output", command=found, session=mine).startswith("not_found:")
    assert one.value("command", op="output", command=found, session=session)["state"] == "running"
    body = message("tools/call", 1, name="command", arguments={"line": "id"})
    assert Web(server, READER).post(body)[0] == 403 and Web(server, "wrong-token-wrong").post(body)[0] == 401
    # A reader that leaves cancels, here too.
    word = word_of_sleep()
    body["params"]["arguments"] = {"line": "sleep " + word, "session": session}
    connection = server.connect()
    connection.request("POST", "/mcp", body=json.dumps(body), headers={
        "Accept": "application/json, text/event-stream", "Content-Type": "application/json", "Authorization": "Bearer " + ONE,
        "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "command"})
    support.wait_until(lambda: support.with_argument(word), "it runs")
    connection.close()
    support.wait_until(lambda: not support.with_argument(word), "it is gone")


def test_long_calls_become_tasks(modern, tmp_path):
    client = modern("--base", tmp_path)
    meta = {META + "clientCapabilities": {"extensions": {META + "tasks": {}}}}

    def ask(method, **params):
        return client.result(client.send(method, **params, _meta=meta))

    word = word_of_sleep()
    session = client.value("command", line="true")["session"]
    os.mkfifo(tmp_path / "fifo")
    tasks = [ask("tools/call", name="command", arguments={"line": line, "session": session})
             for line in ("echo before; cat %s" % (tmp_path / "fifo"), "sleep %s" % word)]
    assert [task["status"] for task in tasks] == ["working"] * 2, tasks
    ask("tasks/cancel", taskId=tasks[1]["taskId"])
    support.wait_until(lambda: not support.with_argument(word), "the cancelled one is gone")
    (tmp_path / "fifo").write_text("after\n")
    support.wait_until(lambda: ask("tasks/get", taskId=tasks[0]["taskId"])["status"] == "completed", "the other one ends")
    assert ask("tasks/get", taskId=tasks[0]["taskId"])["result"]["structuredContent"]["output"] == "before\nafter\n"


def test_a_session_that_opens_slowly(connect, tmp_path):
    """Its client waits a little, and then has a job."""
    gate, python = tmp_path / "gate", tmp_path / "python"
    python.write_text("#!/bin/sh\nwhile [ ! -e %s ]; do sleep 0.05; done\nexec %s \"$@\"\n" % (gate, support.bare_python()))
    python.chmod(0o755)
    client = connect(python=str(python))
    began = client.value("command", line="echo done", wait_ms=0)
    assert began["result"] == "running"
    gate.touch()
    ended = client.value("get_job", job=began["job"], wait_ms=60_000)
    assert client.value("command", op="output", command=ended["command"], wait_ms=60_000)["output"] == "done\n"


def test_executors_without_commands(connect, tmp_path):
    client = connect("--executor", "inprocess")
    assert "command" not in [tool["name"] for tool in client.result(client.send("tools/list"))["tools"]]
    assert client.fails("command", line="true").startswith("unsupported: the executor inprocess does not run commands")
    assert client.value("command", op="list")["commands"] == []


# ---- policy, approval, audit ---------------------------------------------------------------------------------------


def write_policy(tmp_path, text):
    (tmp_path / "policy.yaml").write_text(text)
    return "--policy", tmp_path / "policy.yaml"


def test_the_policy_decides_as_about_lines_of_the_code(connect, tmp_path):
    policy = write_policy(tmp_path, "default: deny\nrules:\n  - {kind: shell, decision: allow, args: {cmd: ['echo *', cat]}}\n"
                                    "  - {kind: shell, decision: deny, args: {cmd: '**'}, reason: not here}\n")
    client = connect("--base", tmp_path / "base", *policy, capabilities=FORMS)
    assert client.value("command", line="echo a b")["output"] == "a b\n"
    assert client.value("command", line=["echo", "a", "b"])["output"] == "a b\n"
    mark = tmp_path / "mark"
    for line in ("touch %s" % mark, ["touch", str(mark)], "echo; touch %s" % mark, "echo $(touch %s)" % mark, ["/bin/sh", "-c", "touch %s" % mark],
                 ["sh", "-c", "echo; touch %s" % mark], ["echo", "$(touch %s)" % mark], " touch %s" % mark, "echo a\ntouch %s" % mark):
        words = client.fails("command", line=line)
        assert words.startswith("rejected:") and ("not here" in words or "denies shell" in words), words
    assert not mark.exists() and client.asked == []
    began = client.value("command", line="cat", keep_stdin=True, wait_ms=0)
    assert client.value("command", op="stdin", command=began["command"], stdin="x", wait_ms=60_000)["output"] == "x"
    assert "rejected" in client.fails("run_code", code="!touch %s" % mark)
    assert client.fails("command", line="cat " + "x" * 100_000).startswith("rejected:")


def test_a_policy_that_denies_everything(connect, tmp_path):
    client = connect("--base", tmp_path / "base", "--approve", "deny")
    assert client.fails("command", line="true").startswith("rejected:")


def test_approvals_by_elicitation(connect, tmp_path):
    client = connect("--base", tmp_path / "base", "--approve", "ask", capabilities=FORMS)
    client.on_request = lambda asked: ACCEPT
    assert client.value("command", line="cat; echo $((1 + 1))", stdin="given\n", cwd=str(tmp_path))["output"] == "given\n2\n"
    (asked,) = client.asked
    words = asked["params"]["message"]
    assert words.startswith("The agent wants to use shell") and '"cat; echo' in words and "given" in words and "cwd" in words
    # Input may be a shell's: it is asked about as well, and what has been rejected is not written.
    began = client.value("command", line="sh", keep_stdin=True, wait_ms=0)
    client.on_request = lambda asked: {"action": "accept", "content": {"decision": "reject", "reason": "not that"}}
    assert "not that" in client.fails("command", op="stdin", command=began["command"], stdin="echo bad\n", keep_stdin=True)
    assert '"sh"' in client.asked[-1]["params"]["message"] and "echo bad" in client.asked[-1]["params"]["message"]
    assert "not that" in client.fails("command", line="true")
    client.on_request = lambda asked: ACCEPT
    assert client.value("command", op="stdin", command=began["command"], stdin="echo good\n", wait_ms=60_000)["output"] == "good\n"
    client.on_request = lambda asked: {"action": "accept", "content": {"decision": "always"}}
    client.value("command", line="true")
    n = len(client.asked)
    assert client.value("command", line="echo quietly")["output"] == "quietly\n" and len(client.asked) == n


def test_approvals_that_are_not_given(connect, tmp_path):
    client = connect("--base", tmp_path / "base", "--approve", "ask")
    assert "does not support elicitation" in client.fails("command", line="touch %s" % (tmp_path / "mark"))
    client = connect("--base", tmp_path / "base", "--approve", "ask", capabilities=FORMS)
    number = client.start("command", {"line": "touch %s" % (tmp_path / "mark")})
    asked = client.read()
    client.notify("notifications/cancelled", requestId=number)
    client.value("command", op="list")
    taken, = client.noted("notifications/cancelled")
    assert taken["requestId"] == asked["id"]
    client.raw({"jsonrpc": "2.0", "id": asked["id"], "result": ACCEPT})  # too late
    assert client.value("command", op="list")["commands"] == [] and not (tmp_path / "mark").exists()


def test_approvals_of_the_other_revision(modern, tmp_path):
    client = modern("--base", tmp_path / "base", "--approve", "ask")
    meta = {META + "clientCapabilities": FORMS}
    call = {"name": "command", "arguments": {"line": "echo ran >> %s; echo done" % (tmp_path / "log")}}
    asked = client.result(client.send("tools/call", **call, _meta=meta))
    assert asked["resultType"] == "input_required" and not (tmp_path / "log").exists()
    more = {"inputResponses": {key: ACCEPT for key in asked["inputRequests"]}, "requestState": asked["requestState"]}
    changed = {"name": "command", "arguments": {"line": "touch %s" % (tmp_path / "mark")}}
    assert client.error(client.send("tools/call", **changed, **more, _meta=meta))["code"] == -32602
    done = client.result(client.send("tools/call", **call, **more, _meta=meta))
    assert done["structuredContent"]["output"] == "done\n" and (tmp_path / "log").read_text() == "ran\n" and not (tmp_path / "mark").exists()


def test_a_token_that_may_not_approve(request, tmp_path):
    server = Listening("--base", spaces.probe_base(tmp_path), "--approve", "ask", tokens=TOKENS)
    request.addfinalizer(server.close)
    body = message("tools/call", 1, meta={**envelope(capabilities=FORMS)}, name="command", arguments={"line": "true"})
    _, messages = Web(server, TWO).post(body)
    assert messages[-1]["result"]["isError"] and "lacks the scope approve" in json.dumps(messages[-1])


def test_the_audit_log(connect, tmp_path):
    log = tmp_path / "audit.jsonl"
    client = connect("--base", tmp_path / "base", "--audit", log)
    client.value("command", line="echo hello", cwd=str(tmp_path))
    client.fails("command", line=["nope-nope"])

    def records():
        return [each for each in map(json.loads, log.read_text().splitlines()) if each["kind"] in ("command", "shell")]

    support.wait_until(lambda: len(records()) == 2, lambda: log.read_text())
    first, second = records()
    assert (first["kind"], first["callable"], first["principal"], first["client"], first["decision"]) == ("command", "command", "mcp", "tests", "allow")
    assert first["args"] == {"argv": ["/bin/sh", "-c", "echo hello"], "cwd": str(tmp_path), "tag": None} and second["args"]["argv"] == ["nope-nope"]
    client = connect("--base", tmp_path / "base", "--audit", log, "--approve", "deny")
    client.fails("command", line="echo not this")
    support.wait_until(lambda: len(records()) == 3, lambda: log.read_text())
    last = records()[-1]
    assert (last["kind"], last["tool"], last["decision"], last["principal"], last["args"]) == ("shell", "shell", "deny", "mcp", {"cmd": "echo not this"})
