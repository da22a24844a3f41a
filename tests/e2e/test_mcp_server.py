"""`workcell mcp`: the tools, the protocol around them, and clients of others."""
import base64
import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

import spaces
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import client as mcp_client  # noqa: E402
import peers  # noqa: E402

ALL = ["run_code", "execute_ipython_cell", "reset", "interrupt", "files", "command", "get_job", "cancel_job", "close_session", "checkpoint", "rewind", "fork_session", "list_variables", "list_tools", "search_tools", "list_workflows",
         "search_workflows", "get_workflow", "create_workflow", "delete_workflow", "list_artifacts", "save_artifact",
         "load_artifact", "list_deps", "add_dep", "remove_dep", "install_package"]
COMPAT = {"execute_ipython_cell", "get_workflow", "save_artifact", "load_artifact", "install_package"}  # listed with --compat only
TOOLS = [name for name in ALL if name not in COMPAT]
FORMS = {"elicitation": {}}


@pytest.fixture
def connect():
    yield from mcp_client.clients(mcp_client.Client)


@pytest.fixture
def client(connect, tmp_path):
    return connect("--base", spaces.probe_base(tmp_path))


def text_of(result):
    return result["content"][0]["text"]


# ---- the protocol ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked, given", [(v, v) for v in ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")]
                         + [("1999-01-01", "2025-11-25")])
def test_revisions_are_negotiated(connect, asked, given):
    client = connect(version=asked)
    assert client.server["protocolVersion"] == given
    assert client.server["serverInfo"]["name"] == "workcell"
    assert client.value("run_code", code="6 * 7")["value"] == 42


def test_nothing_but_ping_before_initialize(connect):
    client = connect(initialize=False)
    assert client.result(client.send("ping")) == {}
    assert client.error(client.send("tools/list"))["code"] == -32600
    assert client.error(client.send("initialize"))["code"] == -32602
    client.result(client.send("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={}))
    assert client.error(client.send("initialize", protocolVersion="2025-06-18"))["code"] == -32600
    assert client.result(client.send("tools/list"))["tools"]


def test_what_is_no_message_gets_an_error_and_the_stream_goes_on(client):
    for line, code in ((b"{nonsense\n", -32700), (b'{"jsonrpc": "1.0", "id": 900, "method": "ping"}\n', -32600),
                       (b'[{"jsonrpc": "2.0", "id": 901, "method": "ping"}]\n', -32600), (b"\xff\xfe\n", -32700)):
        client.raw(line)
        message = client.read()
        assert message["error"]["code"] == code, (line, message)
    client.raw(b"\n\n")
    assert client.error(client.send("$/unknown"))["code"] == -32601
    assert client.error(client.send("resources/none"))["code"] == -32601
    client.notify("$/whatever")
    client.notify("notifications/cancelled", requestId=12345)
    assert client.error(client.send("tools/list", cursor="abc"))["code"] == -32602
    assert client.error(client.send("tools/call", name="nope"))["message"] == "Unknown tool: nope"
    assert client.error(client.send("tools/call", name="run_code", arguments=[1]))["code"] == -32602
    assert client.error(client.send("logging/setLevel", level="loud"))["code"] == -32602
    assert client.result(client.send("ping")) == {}


def test_batches_where_the_revision_has_them(connect):
    client = connect(version="2025-03-26")
    client.raw([{"jsonrpc": "2.0", "id": "a", "method": "ping"}, {"jsonrpc": "2.0", "method": "notifications/x"},
                {"jsonrpc": "2.0", "id": "b", "method": "tools/call", "params": {"name": "run_code", "arguments": {"code": "3"}}},
                {"jsonrpc": "2.0", "id": "c", "method": "none"}])
    answers = {answer["id"]: answer for answer in client.read()}
    assert sorted(answers) == ["a", "b", "c"]
    assert answers["b"]["result"]["structuredContent"]["value"] == 3 and answers["c"]["error"]["code"] == -32601


def test_a_line_past_the_bound(client):
    client.raw(b'{"jsonrpc": "2.0", "id": 1, "method": "' + b"x" * (33 << 20) + b'"}\n')
    assert client.read()["error"]["code"] == -32600
    assert client.result(client.send("ping")) == {}


def test_the_list_of_tools(client):
    """What a model reads before every task is short."""
    tools = client.result(client.send("tools/list"))["tools"]
    assert [tool["name"] for tool in tools] == TOOLS
    for tool in tools:
        assert set(tool) <= {"name", "description", "inputSchema", "annotations"} and tool["description"]
        assert set(tool["inputSchema"].get("required", [])) <= set(tool["inputSchema"]["properties"])
    # 1,500 tokens of o200k, 4.4 bytes each, and no more are allowed (bench/tokens.py counts them).
    assert len(json.dumps(tools, separators=(",", ":"))) < 6600
    hints = {tool["name"]: tool.get("annotations") for tool in tools}
    assert hints["list_tools"] == {"readOnlyHint": True} and hints["checkpoint"] == {"destructiveHint": False}
    assert hints["run_code"] is None


def test_files(connect, tmp_path):
    (tmp_path / "work").mkdir()
    client = connect("--base", tmp_path, "--cwd", tmp_path / "work")
    assert text_of(client.call("files", op="write", path="a/f", data="text ü")) == "Done."
    assert client.value("run_code", code="open('a/f').read()")["value"] == "text ü"
    assert client.value("files", op="read", path="a/f") == {"data": "text ü", "base64": False}
    client.call("files", op="write", path="b", data="AP8=", base64=True)
    assert client.value("files", op="read", path="b") == {"data": "AP8=", "base64": True}
    assert [each["name"] for each in client.value("files", op="list", path="a")["entries"]] == ["f"]
    client.call("run_code", code="import os; os.symlink('/etc', 'link'); open('big', 'wb').write(bytes((1 << 20) + 1)); os.mkfifo('pipe')")
    for words, code in ((dict(op="read", path="link/passwd"), "forbidden"), (dict(op="write", path="link/x", data=""), "forbidden"),
                        (dict(op="read", path="../x"), "invalid"), (dict(op="read", path="/etc/passwd"), "invalid"), (dict(op="read", path="big"), "limit"),
                        (dict(op="write", path="x", data="x" * ((1 << 20) + 1)), "limit"), (dict(op="write", path="x"), "invalid"),
                        (dict(op="write", path="x", data="?", base64=True), "invalid"), (dict(op="read", path="pipe"), "invalid"),
                        (dict(op="remove", path="a"), "exists"), (dict(op="read", path="none"), "not_found")):
        answer = client.result(client.start("files", words))
        assert answer["isError"] and text_of(answer).startswith(code + ":"), (words, answer)
    client.call("files", op="remove", path="b")
    assert client.value("run_code", code="os.path.exists('b') or os.path.exists('x')")["value"] is False


def test_tools_that_are_not_listed_can_be_called(client):
    assert text_of(client.call("execute_ipython_cell", code="6 * 7")) == "42"
    assert client.value("save_artifact", name="a", data="x")["name"] == "a" and text_of(client.call("load_artifact", name="a")) == "x"


def test_the_whole_list_of_tools(connect, tmp_path):
    client = connect("--base", tmp_path, "--compat")
    tools = client.result(client.send("tools/list"))["tools"]
    assert [tool["name"] for tool in tools] == ALL
    for tool in tools:
        assert tool["description"] and tool["title"]
        assert tool["inputSchema"]["type"] == tool["outputSchema"]["type"] == "object"
        assert set(tool["inputSchema"]["required"]) <= set(tool["inputSchema"]["properties"])
        assert set(tool["annotations"]) == {"title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}
    by_name = {tool["name"]: tool for tool in tools}
    cell = by_name["execute_ipython_cell"]["inputSchema"]["properties"]
    assert (cell["timeout"]["default"], cell["max_output_chars"]["default"]) == (120, 5000)
    assert by_name["list_tools"]["annotations"]["readOnlyHint"] and not by_name["run_code"]["annotations"]["readOnlyHint"]


def test_tools_that_cannot_work_are_not_offered(connect, tmp_path):
    client = connect()
    names = [tool["name"] for tool in client.result(client.send("tools/list"))["tools"]]
    assert names == TOOLS[:14]
    assert client.error(client.start("list_deps"))["message"] == "Unknown tool: list_deps"
    client = connect("--storage", tmp_path, "--no-runtime-deps")
    names = [tool["name"] for tool in client.result(client.send("tools/list"))["tools"]]
    assert names == [name for name in TOOLS if name not in ("add_dep", "remove_dep", "install_package")]


@pytest.mark.parametrize("tool, arguments, words", [
    ("run_code", {}, "argument 'code' is missing"),
    ("run_code", {"code": 1}, "argument 'code' must be of type string, not an integer"),
    ("run_code", {"code": "1", "x": 1}, "unknown argument 'x'"),
    ("search_tools", {"query": "x", "limit": 0}, "argument 'limit' must be from 1 to 1000"),
    ("search_tools", {"query": ""}, "argument 'query' must not be empty"),
    ("execute_ipython_cell", {"code": "1", "timeout": "1"}, "argument 'timeout' must be of type number"),
    ("execute_ipython_cell", {"code": "1", "max_output_chars": 1.5}, "argument 'max_output_chars' must be of type integer"),
    ("save_artifact", {"name": "a", "data": "x", "type": "pickle"}, "argument 'type' must be one of text, json, bytes"),
])
def test_wrong_arguments(client, tool, arguments, words):
    assert words in client.fails(tool, **arguments)


# ---- cells -------------------------------------------------------------------------------------------------


def test_run_code(client):
    assert text_of(client.call("run_code", code="x = 1")) == "(no output)"
    assert text_of(client.call("run_code", code="print('out')\nx + 1")) == "2\n\nStdout:\nout\n"
    assert text_of(client.call("run_code", code="'text'")) == "text"
    assert text_of(client.call("run_code", code="print('only')")) == "Stdout:\nonly\n"
    assert client.value("run_code", code="{'a': [1, None]}")["value"] == {"a": [1, None]}
    result = client.result(client.start("run_code", {"code": "print('before')\n1 / 0"}))
    assert result["isError"] and text_of(result).startswith("Error: ")
    assert "ZeroDivisionError: division by zero" in text_of(result) and text_of(result).endswith("Stdout:\nbefore\n")
    error = result["structuredContent"]["error"]
    assert (error["type"], error["code"]) == ("ZeroDivisionError", "exception")


def test_execute_ipython_cell(client):
    assert text_of(client.call("execute_ipython_cell", code="y = 5\nprint('a')\ny")) == "a\n5"
    assert text_of(client.call("run_code", code="y")) == "5"  # one session
    words = client.fails("execute_ipython_cell", code="import time\ntime.sleep(600)", timeout=0.3)
    assert "timed out" in words or "timeout" in words.lower(), words
    words = client.fails("execute_ipython_cell", code="import os\nos._exit(3)")
    assert "variables are lost" in words
    assert client.value("run_code", code="1")["state"] == "kept"


def test_long_output_is_cut_in_the_middle_and_kept(client):
    result = client.call("execute_ipython_cell", code="print('é' * 3000 + 'middle' + 'z' * 3000)", max_output_chars=100)
    text, structured = text_of(result), result["structuredContent"]
    assert text.startswith("é" * 60 + "\n\n[Output truncated: exceeded 100 character limit")
    assert text.endswith("z" * 39 + "\n") and "middle" not in text
    path = structured["output_file"]
    assert structured["truncated"] and path in text
    with open(path, encoding="utf-8") as file:
        assert file.read() == "é" * 3000 + "middle" + "z" * 3000 + "\n"
    assert client.value("run_code", code="len(open(%r).read())" % path)["value"] == 6007
    assert client.close() == 0
    assert not os.path.exists(path)


def test_output_past_what_a_result_keeps(connect):
    client = connect("--max-output", "4096")
    result = client.call("run_code", code="print('a' * 300000)")
    structured = result["structuredContent"]
    assert structured["truncated"] and os.path.getsize(structured["output_file"]) == 300001
    assert structured["output_file"] in text_of(result)
    assert client.close() == 0
    assert not os.path.exists(structured["output_file"])


def test_reset(client):
    client.call("run_code", code="z = 1")
    client.call("reset")
    assert "NameError" in client.fails("run_code", code="z")


def test_cells_run_in_order_and_other_calls_beside_them(client, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    first = client.start("run_code", {"code": "order = [open(%r).read()]" % str(fifo)})
    second = client.start("run_code", {"code": "order.append(2); order"})
    assert "tools.probe" in client.value("list_tools")["result"][0]  # while the first one waits
    fifo.write_text("1")
    assert client.result(second)["structuredContent"]["value"] == ["1", 2]
    assert any(note.get("id") == first for note in client.notes)


def test_cancellation_interrupts_and_is_not_answered(client, tmp_path):
    began = tmp_path / "began"
    number = client.start("run_code", {"code": "kept = 7\nopen(%r, 'w').close()\nimport time\ntime.sleep(600)" % str(began)})
    waiting = client.start("run_code", {"code": "kept = 8"})
    support.wait_until(began.exists, "the cell runs")
    client.notify("notifications/cancelled", requestId=waiting)
    client.notify("notifications/cancelled", requestId=number, reason="enough")
    assert client.value("run_code", code="kept")["value"] == 7
    assert not [note for note in client.notes if "id" in note], client.notes


def test_an_id_cannot_be_used_twice_at_once(client, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    number = client.start("run_code", {"code": "open(%r).read()" % str(fifo)})
    client.raw({"jsonrpc": "2.0", "id": number, "method": "tools/list"})
    assert client.read()["error"]["code"] == -32600
    fifo.write_text("done")
    assert client.result(number)["structuredContent"]["value"] == "done"


def test_progress(client):
    number = client.start("run_code", {"code": "print('one', flush=True)\nprint('zwei é', flush=True)"}, _meta={"progressToken": "tok"})
    client.result(number)
    notes = client.noted("notifications/progress")
    assert "".join(note["message"] for note in notes) == "one\nzwei é\n"
    assert all(note["progressToken"] == "tok" for note in notes)
    steps = [note["progress"] for note in notes]
    assert steps == sorted(set(steps))


def test_log_messages_where_they_are_asked_for(client):
    client.call("run_code", code="print('quiet')")
    assert client.noted("notifications/message") == []
    client.result(client.send("logging/setLevel", level="info"))
    client.call("run_code", code="import sys\nprint('loud')\nprint('err', file=sys.stderr)")
    notes = client.noted("notifications/message")
    assert "".join(note["data"] for note in notes if note["logger"] == "stdout") == "loud\n"
    assert "".join(note["data"] for note in notes if note["logger"] == "stderr") == "err\n"
    client.result(client.send("logging/setLevel", level="error"))
    client.notes.clear()
    client.call("run_code", code="print('quiet')")
    assert client.noted("notifications/message") == []


PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"


@pytest.mark.parametrize("with_folder", [False, True])
def test_plots_are_images(connect, tmp_path, with_folder):
    flags = ["--images-dir", tmp_path / "shown"] if with_folder else []
    result = connect(*flags, python=support.PYTHON).call("execute_ipython_cell", code=PLOT)
    image, = [part for part in result["content"] if part["type"] == "image"]
    assert image["mimeType"] == "image/png"
    data = base64.b64decode(image["data"], validate=True)
    assert data.startswith(b"\x89PNG\r\n")
    paths = result["structuredContent"].get("images", [])
    assert len(paths) == with_folder
    for path in paths:
        name = os.path.basename(path)[:-4]
        assert "Generated images:\n\n- [%s](%s)\n" % (name, path) in text_of(result)
        with open(path, "rb") as file:
            assert file.read() == data


def test_stdout_is_the_protocol_alone(connect, tmp_path):
    script = spaces.make_script(tmp_path / "loud", "import os\nos.write(1, b'tool says\\n')\nos.write(2, b'tool warns\\n')\n")
    base = spaces.write_files(tmp_path / "base", {"tools/loud.yaml": "name: loud\ncommand: %s\nrecipes:\n  go: {}\n" % script})
    client = connect("--base", base)
    # Every line that read() gets must be a message.
    client.call("run_code", code="import os, subprocess, sys\nos.write(1, b'raw\\n')\nsys.__stdout__.write('dunder\\n')\n"
                "subprocess.run(['echo', 'child'])\nprint(tools.loud.go())")
    client.call("run_code", code="os.system('echo system; (sleep 0; echo late) &')")
    assert client.value("run_code", code="sys.stdin.read()")["value"] == ""  # the client's messages are not the code's
    assert client.result(client.send("ping")) == {}


# ---- the space ---------------------------------------------------------------------------------------------


def test_tools_of_the_space(client):
    listed = text_of(client.call("list_tools"))
    assert listed.startswith('tools.probe\n.go(a: str, n: int = 3, s: str = "x")\n.plain(a: str, b: str = None,')
    assert client.value("list_tools")["result"] == [listed[:-1]]
    found = client.call("search_tools", query="how it was called", limit=1)
    line, = found["structuredContent"]["result"]
    assert line.startswith("tools.probe.go(a: str, ") and text_of(found) == line + "\n"
    assert client.value("search_tools", query="zebra") == {"result": []}
    assert "list_tools" in text_of(client.call("search_tools", query="zebra"))
    assert json.loads(client.value("run_code", code="tools.probe.go(a='x')")["value"])["argv"][-1] == "x"


def test_signatures_are_short(connect, tmp_path):
    """Long defaults and types that say nothing are left out, and a tool that declares no parameters has none."""
    base = peers.write_server(tmp_path, "s", **peers.scripted())
    (tmp_path / "tools" / "h.yaml").write_text(json.dumps({"name": "h", "type": "http", "base_url": "http://127.0.0.1:9", "endpoints": {
        "e": {"path": "/", "parameters": {name: {"type": "string", "default": name * size} for name, size in (("a", 38), ("b", 39))}}}}))
    listed = text_of(connect("--base", base).call("list_tools"))
    assert '.e(a: str = "%s", b: str = ...)\n' % ("a" * 38) in listed, listed
    assert ".ping()\n" in listed and ".args(**kwargs)\n" in listed and ".typed(n: int, level, maybe: float, size: int = 7)\n" in listed


def test_workflows(client):
    source = "async def run(n: int = 2):\n    return n * 2\n"
    made = client.value("create_workflow", name="double", source=source, description="Doubles a number")
    assert (made["name"], made["source"], made["description"]) == ("double", source, "Doubles a number")
    assert "exists" in client.fails("create_workflow", name="double", source=source, description="")
    client.call("create_workflow", name="double", source=source, description="Doubles it", overwrite=True)
    assert [w["name"] for w in client.value("list_workflows")["result"]] == ["double"]
    assert client.value("search_workflows", query="double a number")["result"][0]["description"] == "Doubles it"
    assert client.value("get_workflow", name="double")["source"] == source
    assert "not_found" in client.fails("get_workflow", name="half")
    assert "invalid" in client.fails("create_workflow", name="bad", source="def nope(): pass", description="")
    assert client.value("run_code", code="workflows.double(n=4)")["value"] == 8
    assert client.value("delete_workflow", name="double") == {"result": True}
    assert client.value("delete_workflow", name="double") == {"result": False}


def test_artifacts(client):
    client.call("save_artifact", name="notes/a.txt", data="text é", description="Notes", metadata={"k": 1})
    client.call("save_artifact", name="b.json", data='{"a": 1}', type="json")
    client.call("save_artifact", name="c.bin", data=base64.b64encode(b"\xff\x00").decode(), type="bytes")
    assert sorted(a["name"] for a in client.value("list_artifacts")["result"]) == ["b.json", "c.bin", "notes/a.txt"]
    loaded = client.value("load_artifact", name="notes/a.txt")
    assert (loaded["data"], loaded["encoding"], loaded["description"]) == ("text é", "utf-8", "Notes")
    loaded = client.value("load_artifact", name="c.bin")
    assert (base64.b64decode(loaded["data"]), loaded["encoding"]) == (b"\xff\x00", "base64")
    assert client.value("run_code", code="artifacts.load('b.json')")["value"] == {"a": 1}
    assert "not_found" in client.fails("load_artifact", name="none")
    assert "not JSON" in client.fails("save_artifact", name="d", data="{", type="json")
    assert "not base64" in client.fails("save_artifact", name="d", data="%%", type="bytes")
    client.call("run_code", code="artifacts.save('big', b'x' * (5 << 20))")
    assert "limit" in client.fails("load_artifact", name="big")


def test_workflows_by_the_names_of_skills(client):
    """Agents that know py-code-mode call them so; they are answered, and not listed."""
    source = "async def run(n: int = 2):\n    return n * 2\n"
    assert client.value("create_skill", name="double", source=source, description="Doubles a number")["name"] == "double"
    assert [w["name"] for w in client.value("list_skills")["result"]] == ["double"]
    assert client.value("search_skills", query="double")["result"][0]["name"] == "double"
    assert client.value("delete_skill", name="double") == {"result": True}


def test_deps_for_deno(connect, tmp_path):
    """What a client adds can be imported after the next reset."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    spaces.make_wheel(str(wheels), "tinypkg")
    client = connect("--base", tmp_path / "base", "--wheel-dir", wheels, "--executor", "deno", "--timeout", "100")
    assert client.value("add_dep", package="tinypkg")["installed"]
    client.call("reset")
    assert client.value("run_code", code="import tinypkg\ntinypkg.__name__")["value"] == "tinypkg"


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    """Where packages go: made by whoever is first, which takes a while. Tests take packages of different names."""
    return tmp_path_factory.mktemp("venv") / "venv"


def test_deps(connect, tmp_path, venv):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    spaces.make_wheel(str(wheels), "tinypkg")
    client = connect("--base", tmp_path / "base", "--wheel-dir", wheels, "--venv-dir", venv)
    assert client.value("list_deps")["result"] == []
    assert client.value("add_dep", package="tinypkg")["installed"] == ["tinypkg"]
    assert client.value("install_package", package_name="tinypkg")["already_present"] == ["tinypkg"]
    assert client.value("list_deps")["result"] == ["tinypkg"]
    assert client.value("run_code", code="import tinypkg\ntinypkg.__name__")["value"] == "tinypkg"
    assert client.value("remove_dep", package="tinypkg")["removed"] == ["tinypkg"]
    assert client.value("remove_dep", package="tinypkg")["not_found"] == ["tinypkg"]
    assert "no-such-package-here" in client.fails("add_dep", package="no-such-package-here")


@pytest.mark.parametrize("name, flags, there", [("earlypkg", [], True), ("latepkg", ["--no-sync-deps"], False)])
def test_configured_packages_are_there_from_the_start(connect, tmp_path, venv, name, flags, there):
    spaces.make_wheel(str(tmp_path / "wheels"), name)
    spaces.write_files(tmp_path / "base", {"requirements.txt": name + "\n"})
    client = connect("--base", tmp_path / "base", "--wheel-dir", tmp_path / "wheels", "--venv-dir", venv, *flags)
    code = "import importlib.util\nimportlib.util.find_spec(%r) is not None" % name
    assert client.value("run_code", code=code)["value"] is there


def test_cancelling_an_install_stops_it(connect, tmp_path, venv):
    with socket.socket() as index:
        index.bind(("127.0.0.1", 0))
        index.listen()
        index.settimeout(support.DEADLINE)
        client = connect("--base", tmp_path / "base", "--venv-dir", venv, "--index-url",
                         "http://127.0.0.1:%d/simple" % index.getsockname()[1])
        number = client.start("add_dep", {"package": "slowpkg"})
        asked, _ = index.accept()
        with asked:
            asked.settimeout(support.DEADLINE)
            assert asked.recv(65536)
            client.notify("notifications/cancelled", requestId=number)
            assert asked.recv(65536) == b""  # the installer is gone
        assert client.value("list_deps")["result"] == []
        assert not [note for note in client.notes if "id" in note], client.notes
        # The same when the client goes.
        client.start("add_dep", {"package": "slowpkg"})
        asked, _ = index.accept()
        with asked:
            assert client.close() == 0
            asked.settimeout(support.DEADLINE)
            while asked.recv(65536):
                pass
    # What the installer had begun has gone with it.
    assert [name for name in os.listdir(os.path.dirname(venv)) if ".new-" in name] == []


def test_register_mcp_server(connect, tmp_path):
    client = connect("--root", tmp_path, "--allow-register")
    answer = client.call("register_mcp_server", server_name="s", server_params=peers.scripted())
    names = answer["structuredContent"].pop("result")
    assert names[0] == "echo" and names[-1] == "dash_ed_name" and len(names) > 30
    assert answer["structuredContent"] == {"problems": [], "package": "s"}
    assert answer["content"] == [{"type": "text", "text": name} for name in names]
    assert client.value("run_code", code="tools.s.echo(text='hi')")["value"] == "hi"
    assert client.value("run_code", code="from mcptools.s.echo import Params, run\nrun(Params(text='typed'))")["value"] == "typed"
    assert sorted(name for name in os.listdir(tmp_path / "mcptools") if name[0] != ".") == ["s"]
    other = connect("--cwd", "/proc", "--python", support.bare_python(), "--allow-register")
    answer = other.value("register_mcp_server", server_name="s", server_params=peers.scripted())
    assert answer["result"][-1] == "dash-ed.name" and "no package was created" in answer["problems"][0]
    assert other.value("run_code", code="tools.s.echo(text='hi')")["value"] == "hi"
    words = client.fails("register_mcp_server", server_name="bad", server_params={"command": "no-such-program-anywhere"})
    assert "no-such-program-anywhere" in words
    assert "tools.bad" not in text_of(client.call("list_tools"))
    # Of a server's many callables those that fit are found, and names that Python cannot write are written as code has to write them.
    found = client.value("search_tools", query="echo", limit=3)["result"]
    assert found[0].startswith("tools.s.echo(") and len(found) <= 3
    assert ".dash_ed_name(" in text_of(client.call("list_tools"))
    shown = text_of(client.call("run_code", code="tools.search('echo')"))
    assert shown.startswith("tools.s") and shown.splitlines()[1].startswith("    .echo(") and "more: tools.s.signature()" in shown
    assert "invalid" in client.fails("register_mcp_server", server_name="bad", server_params={"nothing": 1})


# ---- approvals -----------------------------------------------------------------------------------------------


@pytest.fixture
def gated(connect, tmp_path):
    def make(**options):
        return connect("--base", spaces.probe_base(tmp_path), "--approve", "ask", **options)
    return make


CALL = "import json\njson.loads(tools.probe.go(a='x'))['argv'][-1]"


def test_approval_by_elicitation(gated):
    client = gated(capabilities=FORMS)
    client.on_request = lambda message: {"action": "accept", "content": {"decision": "accept"}}
    assert client.value("run_code", code=CALL)["value"] == "x"
    asked, = client.asked
    assert asked["method"] == "elicitation/create" and "probe.go" in asked["params"]["message"]
    assert '"a"' in asked["params"]["message"]
    assert asked["params"]["requestedSchema"]["properties"]["decision"]["enum"] == ["accept", "always", "reject"]
    client.on_request = lambda message: {"action": "accept", "content": {"decision": "reject", "reason": "not today"}}
    assert "not today" in client.fails("run_code", code=CALL)
    client.on_request = lambda message: {"action": "decline"}
    assert "declined" in client.fails("run_code", code=CALL)
    client.on_request = lambda message: {"action": "accept", "content": {"decision": "always"}}
    assert client.value("run_code", code=CALL)["value"] == "x"
    n = len(client.asked)
    assert client.value("run_code", code=CALL)["value"] == "x"
    assert len(client.asked) == n


def test_an_answer_that_makes_no_sense_is_a_rejection(gated):
    client = gated(capabilities=FORMS)
    for result in ({}, {"action": "accept"}, {"action": "accept", "content": {"decision": "yes"}}, {"action": 1}, []):
        client.on_request = lambda message, result=result: result
        error = client.result(client.start("run_code", {"code": CALL}))["structuredContent"]["error"]
        assert error["code"] == "rejected", error


def test_without_elicitation_requests_are_rejected(gated):
    client = gated()
    result = client.result(client.start("run_code", {"code": CALL}))
    assert result["structuredContent"]["error"]["code"] == "rejected"
    assert "elicitation" in text_of(result) and client.asked == []


def test_a_question_is_taken_back_when_the_cell_is_cancelled(gated):
    client = gated(capabilities=FORMS)
    number = client.start("run_code", {"code": CALL})
    asked = client.read()
    assert asked["method"] == "elicitation/create"
    client.notify("notifications/cancelled", requestId=number)
    client.result(client.send("ping"))
    client.value("run_code", code="1")
    taken, = client.noted("notifications/cancelled")
    assert taken["requestId"] == asked["id"]


def test_questions_of_mcp_servers_reach_the_client(connect, tmp_path):
    base = peers.write_server(tmp_path, "s", **peers.scripted())
    client = connect("--base", base, capabilities=FORMS)
    client.on_request = lambda message: {"action": "accept", "content": {"name": "Ada"}}
    result = client.result(client.start("run_code", {"code": "str(tools.s.ask(message='Who?'))"}))
    assert client.asked and client.asked[0]["method"] == "elicitation/create", result
    assert client.asked[0]["params"] == {"message": "s.ask asks: Who?", "requestedSchema": {
        "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}
    assert "Ada" in text_of(result)
    for said, heard in (({"action": "decline"}, "decline"), ({"action": "cancel"}, "cancel"), ({"action": "accept"}, "cancel")):
        client.on_request = lambda message, said=said: said
        assert client.value("run_code", code="tools.s.ask(message='Who?')['action']")["value"] == heard
    # It gets the form and nothing else that the server sends, and no page.
    client.asked.clear()
    more = {"name": "x", "url": "https://evil.example", "task": {"ttl": 1}}
    assert client.value("run_code", code="tools.s.ask(message='Who?', more=%r)['action']" % more)["value"] == "cancel"
    assert sorted(client.asked.pop()["params"]) == ["message", "requestedSchema"]
    for more in ({"mode": "url", "url": "https://evil.example", "requestedSchema": None}, {"mode": "url"}, {"requestedSchema": None}):
        assert client.value("run_code", code="tools.s.ask(message='Who?', more=%r)['action']" % more)["value"] in ("decline", "cancel")
    assert not client.asked
    silent = connect("--base", base)
    assert silent.value("run_code", code="tools.s.ask(message='Who?')")["value"] == {"action": "decline"}
    assert not silent.asked


def test_what_mcp_servers_say_reaches_the_client(connect, tmp_path):
    client = connect("--base", peers.write_server(tmp_path, "s", **peers.scripted()))
    client.result(client.send("logging/setLevel", level="warning"))
    client.result(client.start("run_code", {"code": "tools.s.progress(steps=2); tools.s.log(text='careful')"},
                               _meta={"progressToken": "t"}))
    notes = client.noted("notifications/progress")
    assert [note["message"] for note in notes] == ["s.progress: 1/2 step 1", "s.progress: 2/2 step 2"]
    assert notes[0]["progress"] < notes[1]["progress"] and {note["progressToken"] for note in notes} == {"t"}
    assert client.noted("notifications/message") == [{"level": "warning", "logger": "s", "data": "careful"}]


def test_the_start_of_an_mcp_server_is_progress(connect, tmp_path):
    known = peers.scripted()
    slow = "echo npm fetch >&2; while [ ! -e \"$0\" ]; do sleep 0.1; done; exec \"$@\""
    client = connect("--base", peers.write_server(tmp_path, "s", **{**known, "command": "/bin/sh", "args": [
        "-c", slow, str(tmp_path / "go"), known["command"], *known["args"]]}))
    number = client.start("run_code", {"code": "tools.s.echo(text='x')"}, _meta={"progressToken": "t"})
    support.wait_until(lambda: client.read()["method"] == "notifications/progress", "the start is told")
    (tmp_path / "go").touch()
    assert client.result(number)["structuredContent"]["value"] == "x"


# ---- environment and end -----------------------------------------------------------------------------------------


def test_root_env_file_and_kernel_variables(connect, tmp_path):
    spaces.write_files(tmp_path / "settings", {"env": """\
        # comment
        KERNEL_ENV_FROM_FILE='in file'
        export KERNEL_ENV_BOTH=file
        KERNEL_ENV_QUOTED="a\\nb" # comment
        PRIVATE=secret
        """})
    env = support.host_environment(KERNEL_ENV_BOTH="environment", KERNEL_ENV_FLAG="environment")
    client = connect("--root", "root", "--env-file", "settings/env", "--env", "FLAG=flag", env=env, cwd=tmp_path)
    names = ["FROM_FILE", "BOTH", "QUOTED", "FLAG", "PRIVATE", "KERNEL_ENV_BOTH"]
    values = client.value("run_code", code="import os\n[os.environ.get(n) for n in %r]" % names)["value"]
    assert values == ["in file", "environment", "a\nb", "flag", None, None]
    assert client.value("run_code", code="os.getcwd()")["value"] == str(tmp_path / "root")
    client.call("save_artifact", name="a", data="x")
    assert (tmp_path / "root" / ".workcell" / "artifacts" / "a").read_text() == "x"
    fresh = connect("--root", tmp_path / "deep" / "er")
    assert fresh.value("run_code", code="import os\nos.getcwd()")["value"] == str(tmp_path / "deep" / "er")


def test_log_level(connect, tmp_path):
    client = connect("--log-level", "DEBUG")
    client.call("run_code", code="1")
    client.process.stdin.close()
    assert client.process.wait(support.DEADLINE) == 0
    assert "workcell: debug: " in client.stderr_text() or "workcell: info: " in client.stderr_text()
    done = support.workcell("mcp", "--log-level", "loud")
    assert (done.status, done.error_code) == (support.EXIT["invalid"], "invalid") and "loud" in done.err


def test_a_bad_env_file_is_refused(tmp_path):
    (tmp_path / "env").write_text("A=1\nnot a variable: s3cret\n")
    done = support.workcell("mcp", "--root", tmp_path, "--env-file", tmp_path / "env")
    assert (done.status, done.error_code) == (support.EXIT["invalid"], "invalid")
    assert "env:2" in done.err and "s3cret" not in done.err and done.out == ""
    done = support.workcell("mcp", "--root", tmp_path, "--env-file", tmp_path / "none")
    assert (done.status, done.error_code) == (support.EXIT["not_found"], "not_found"), done.err
    done = support.workcell("mcp", "--root", tmp_path, "--env-file", tmp_path)
    assert (done.status, done.error_code) == (support.EXIT["io"], "io"), done.err


def test_closing_stdin_ends_everything(connect, tmp_path):
    client = connect("--root", tmp_path)
    marker = "sleep 98765.%d" % os.getpid()
    client.start("run_code", {"code": "import subprocess, time\nsubprocess.Popen(%r.split())\nopen('began', 'w')\ntime.sleep(600)" % marker})
    support.wait_until((tmp_path / "began").exists, "the cell runs")
    assert support.with_argument(marker)
    assert client.close() == 0
    support.wait_until(lambda: not support.with_argument(marker), "what the cell started is gone")


def test_sigterm_ends_it(connect):
    client = connect()
    client.call("run_code", code="1")
    client.process.terminate()
    assert client.process.wait(support.DEADLINE) == 0
    client.close()


# ---- clients of others -------------------------------------------------------------------------------------------


PYTHON_SDK = textwrap.dedent("""\
    import asyncio, json, sys
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def main():
        params = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])
        async with stdio_client(params) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            names = [tool.name for tool in (await session.list_tools()).tools]
            good = await session.call_tool("run_code", {"code": "print('hi')\\n6 * 7"})
            bad = await session.call_tool("run_code", {"code": "1 / 0"})
            listed = await session.call_tool("list_tools", {})
            loaded = await session.call_tool("save_artifact", {"name": "a", "data": "x"})
            dump = lambda model: model.model_dump(by_alias=True, mode="json")
            print(json.dumps([names, dump(good), dump(bad), dump(listed), dump(loaded)]))

    asyncio.run(main())
    """)


def test_the_python_sdk(tmp_path):
    python = os.environ.get("WORKCELL_MCP_PYTHON", support.PYTHON)
    assert support.module_version(python, "mcp") or subprocess.run([python, "-c", "import mcp"], check=False).returncode == 0, \
        "the package mcp is not there: run scripts/setup.sh test"
    done = subprocess.run([python, "-c", PYTHON_SDK, support.BIN, "mcp", "--python", support.bare_python(), "--base", str(tmp_path)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=support.DEADLINE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    names, good, bad, listed, saved = json.loads(done.stdout)
    assert names == TOOLS
    assert good["structuredContent"]["value"] == 42 and not good["isError"]
    assert bad["isError"] and bad["structuredContent"]["error"]["type"] == "ZeroDivisionError"
    assert listed["structuredContent"] == {"result": []} and saved["structuredContent"]["name"] == "a"


TS_SDK = """
import { Client } from "%(sdk)s/client/index.js";
import { StdioClientTransport } from "%(sdk)s/client/stdio.js";
const [command, ...args] = process.argv.slice(2);
const client = new Client({ name: "tests", version: "1" }, { capabilities: {} });
await client.connect(new StdioClientTransport({ command, args }));
const names = (await client.listTools()).tools.map((tool) => tool.name);
const good = await client.callTool({ name: "run_code", arguments: { code: "6 * 7" } });
const bad = await client.callTool({ name: "run_code", arguments: { code: "1 / 0" } });
console.log(JSON.stringify([names, good, bad]));
await client.close();
"""


def test_the_typescript_sdk(tmp_path):
    sdk = os.path.dirname(os.path.dirname(peers.package("@modelcontextprotocol/sdk", "dist/esm/client/index.js")))
    script = tmp_path / "client.mjs"
    script.write_text(TS_SDK % {"sdk": sdk})
    done = subprocess.run([peers.node(), str(script), support.BIN, "mcp", "--python", support.bare_python(), "--base", str(tmp_path)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=support.DEADLINE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    names, good, bad = json.loads(done.stdout)
    assert names == TOOLS and good["structuredContent"]["value"] == 42
    assert bad["isError"] and bad["structuredContent"]["error"]["type"] == "ZeroDivisionError"


def test_the_inspector(tmp_path):
    server = [support.BIN, "mcp", "--python", support.bare_python(), "--base", tmp_path / "base"]
    listed = peers.inspect(tmp_path / "first", *server, "--method", "tools/list")
    assert [tool["name"] for tool in listed["tools"]] == TOOLS
    answer = peers.inspect(tmp_path / "second", *server, "--method", "tools/call", "--tool-name", "execute_ipython_cell",
                           "--tool-arg", "code=print('hi'); 6 * 7", "timeout=5")
    assert answer["structuredContent"]["value"] == 42 and text_of(answer) == "hi\n42"


def test_variables(client):
    client.call("run_code", code="x = [1, 2]; class_ = type('Odd', (), {'__repr__': lambda self: 1 / 0}); odd = class_()")
    answer = client.call("list_variables")
    found = {each["name"]: each for each in answer["structuredContent"]["variables"]}
    assert (found["x"]["type"], found["x"]["preview"], found["odd"]["preview"]) == ("list", "[1, 2]", "")
    assert text_of(answer).splitlines()[0] == "x: list = [1, 2]"


def test_points(client, connect):
    client.call("run_code", code="x = 1")
    assert client.call("checkpoint", name="one")["structuredContent"] == {"result": "kept"}
    client.call("run_code", code="x = 2")
    assert client.call("rewind", name="one")["structuredContent"] == {"result": "rewound"}
    assert client.call("run_code", code="x")["structuredContent"]["value"] == 1
    assert client.fails("rewind", name="two").startswith("not_found")
    other = connect("--executor", "deno")
    names = [tool["name"] for tool in other.result(other.send("tools/list"))["tools"]]
    assert "run_code" in names and "checkpoint" not in names and "rewind" not in names
