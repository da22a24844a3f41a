"""MCP servers of revision 2026-07-28 as tools: a server of the newest Python SDK, and Workcell's own, on both transports."""
import http.server
import json
import os
import socket
import sys
import threading

import pytest

import serving
import spaces
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402

POLICY = "default: allow\nrules:\n  - {decision: ask, tool: something-else}\n"
SERVER = os.path.join(support.ROOT, "tests", "mcp", "modern.py")


def listens(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def serve_http():
    """modern.py by HTTP: its URL."""
    started = []

    def make(*flags):
        port = serving.free_port()
        process = support.popen([support.PYTHON, SERVER, "http", str(port), *flags], env=support.host_environment())
        started.append(process)
        support.wait_until(lambda: listens(port), "the server listens")
        return "http://127.0.0.1:%d/mcp" % port
    yield make
    for process in started:
        process.kill()  # a polite end waits for streams that are open
        process.wait()


@pytest.fixture(params=["stdio", "http", "http-json"])
def modern(request, drive, tmp_path, serve_http):
    """A driver with the server `m`."""
    def make(*flags):
        if request.param == "stdio":
            params = {"command": support.PYTHON, "args": [SERVER]}
        else:
            params = {"url": serve_http(*request.param.split("-")[1:])}
        base = peers.write_server(tmp_path, "m", **params)
        return drive("--base", base, *flags)
    return make


def approval(driver):
    while True:
        event = driver.read()
        driver.events.append(event)
        if event.get("event") == "approval":
            return event


def result_of(driver):
    while True:
        got = driver.answer()
        if "op" not in got:
            return got


def test_calls_progress_and_names(modern):
    driver = modern()
    assert driver.value("tools.m.era()") == {"result": "2026-07-28"}
    assert driver.value("[tools.m.add(a=n, b=1)['result'] for n in range(5)]") == [1, 2, 3, 4, 5]
    assert driver.value("tools.m['grüße'](wort='ä')") == {"result": "ä"}
    assert driver.value("tools.m.count(steps=3)") == {"result": 3}
    error = driver.run("tools.m.add(a=1, b='x')")["error"]
    assert error["type"] == "ToolCallError"


def test_a_question_and_its_defaults(modern, tmp_path):
    (tmp_path / "policy.yaml").write_text(POLICY)
    driver = modern("--policy", tmp_path / "policy.yaml")
    driver.send({"code": "tools.m.greet()"})
    request = approval(driver)
    assert (request["kind"], request["tool"], request["callable"]) == ("question", "m", "greet")
    assert request["args"]["message"] == "who is it?"
    driver.send({"op": "answer", "id": request["id"], "accept": True, "content": {"name": "Ada"}})
    assert result_of(driver)["value"] == {"result": "hello Ada, 30"}
    driver.send({"code": "tools.m.greet()"})
    driver.send({"op": "answer", "id": approval(driver)["id"], "accept": False})
    assert result_of(driver)["error"]["type"] == "ToolCallError"


def test_nobody_to_ask(modern):
    assert "elicitation" in modern().run("tools.m.greet()")["error"]["message"]


def test_a_list_that_changes(modern):
    driver = modern()
    assert "grown" not in driver.value("[c['name'] for c in tools.m.list()]")
    driver.value("tools.m.grow()['result']")
    support.wait_until(lambda: "grown" in driver.value("[c['name'] for c in tools.m.list()]"), "the new tool is listed")
    assert driver.value("tools.m.grown()") == "7"


# ---- Workcell as the server: tasks, approvals in the middle of a cell, cancels ------------------------------


@pytest.fixture
def own(drive, tmp_path):
    def make(*server_flags, flags=()):
        base = peers.write_server(tmp_path, "w", command=support.BIN, timeout=30,
                                  args=["mcp", "--python", support.bare_python(), "--pool", "0", *map(str, server_flags)])
        return drive("--base", base, *flags)
    return make


def test_our_own_server(own):
    driver = own()
    first = driver.value("tools.w.run_code(code='x = 20; x + 1')")
    session = json.loads(json.dumps(first)).get("session") if isinstance(first, dict) else None
    assert session, first
    again = driver.value("tools.w.run_code(code='x * 2', session=%r)" % session)
    assert "40" in json.dumps(again)


def test_tasks_and_approvals_of_our_own_server(own, tmp_path):
    """A cell that its server makes a task is waited for, its question reaches the gate here, and a cancelled call ends it."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    driver = own("--base", spaces.probe_base(tmp_path / "inner"), "--approve", "ask", flags=("--policy", tmp_path / "policy.yaml"))
    assert driver.value("tools.w.run_code(code='import time; time.sleep(0.3); 6 * 7', wait_ms=50)['value']") == 42
    driver.send({"code": "tools.w.run_code(code='import time; time.sleep(0.3); tools.probe.go(a=str(1)); 8', wait_ms=50)['value']"})
    request = approval(driver)
    assert (request["kind"], request["tool"]) == ("question", "w") and "probe.go" in request["args"]["message"]
    driver.send({"op": "answer", "id": request["id"], "accept": True, "content": {"decision": "accept"}})
    assert result_of(driver)["value"] == 8
    marks = [tmp_path / name for name in ("began", "ended")]
    code = "import time\ntry:\n    open(%r, 'w').close()\n    time.sleep(600)\nfinally:\n    open(%r, 'w').close()" % tuple(map(str, marks))
    driver.send({"code": "tools.w.run_code(code=%r, wait_ms=50)" % code})
    support.wait_until(marks[0].exists, "the cell runs")
    driver.interrupt()
    assert result_of(driver)["error"]
    support.wait_until(marks[1].exists, "it was cancelled there too")


# ---- which era: errors of the probe -------------------------------------------------------------------------


class Probed:
    """A server by HTTP that answers its first server/discover with an error, and knows the revision then."""

    def __init__(self, code, status, data=None, once=True):
        self.methods = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_POST(self):
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.methods.append(message["method"])
                answer = {"jsonrpc": "2.0", "id": message.get("id")}
                refused = message["method"] == "server/discover" and (not once or outer.methods.count("server/discover") == 1)
                if refused:
                    answer["error"] = {"code": code, "message": "no", **({"data": data} if data else {})}
                elif message["method"] == "server/discover":
                    answer["result"] = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0}
                else:
                    answer["result"] = {"resultType": "complete", "tools": [{"name": "t", "inputSchema": {"type": "object"}}], "ttlMs": 60000}
                body = json.dumps(answer).encode()
                self.send_response(status if refused else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d/mcp" % self.server.server_port

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()


def test_a_refused_revision_that_is_named_is_tried_again_once(drive, tmp_path):
    both = {"supported": ["2026-07-28", "2025-11-25"], "requested": "2026-07-28"}
    with Probed(-32022, 400, both) as server:
        driver = drive("--base", peers.write_server(tmp_path, "p", url=server.url))
        assert driver.value("[c['name'] for c in tools.p.list()]") == ["t"]
        assert server.methods[:3] == ["server/discover", "server/discover", "tools/list"]
    with Probed(-32022, 400, {"supported": ["2026-07-28"]}, once=False) as server:
        driver = drive("--base", peers.write_server(tmp_path, "p", url=server.url))
        assert "protocol revision" in driver.run("tools.p.t()")["error"]["message"]
        assert server.methods[:2] == ["server/discover"] * 2 and "initialize" not in server.methods


@pytest.mark.parametrize("code", [-32020, -32021])
def test_errors_of_a_modern_server_lead_to_no_initialize(drive, tmp_path, code):
    with Probed(code, 400, once=False) as server:
        driver = drive("--base", peers.write_server(tmp_path, "p", url=server.url))
        assert "MCP error %d" % code in driver.run("tools.p.t()")["error"]["message"]
        assert set(server.methods) == {"server/discover"}
