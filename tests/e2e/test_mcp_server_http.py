"""`workcell mcp --listen`: Streamable HTTP, and who is let in."""
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap

import pytest

import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402

TOKEN = "t0ken-of-the-tests"
INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize",
              "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}


class Listening:
    def __init__(self, *flags, token=TOKEN):
        env = support.host_environment(**({"WORKCELL_MCP_TOKEN": token} if token else {}))
        self.stderr = tempfile.TemporaryFile()
        self.process = support.popen([support.BIN, "mcp", "--python", support.bare_python(), "--pool", "0", "--listen", "127.0.0.1:0",
                                      *map(str, flags)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.stderr, env=env)
        found = support.wait_until(lambda: re.search(r"http://127\.0\.0\.1:(\d+)/mcp", self.text()) or self.process.poll(), self.text)
        assert not isinstance(found, int), self.text()
        self.port = int(found.group(1))

    def text(self):
        self.stderr.seek(0)
        return self.stderr.read().decode("utf-8", "replace")

    def open(self, method, body=None, path="/mcp", session=None, token=TOKEN, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=support.DEADLINE)
        every = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if token:
            every["Authorization"] = "Bearer " + token
        if session:
            every["Mcp-Session-Id"] = session
        every.update({name.replace("_", "-"): value for name, value in headers.items()})
        connection.request(method, path, body=json.dumps(body) if body is not None else None, headers=every)
        return connection, connection.getresponse()

    def status(self, *args, **options):
        connection, response = self.open(*args, **options)
        connection.close()
        return response.status

    def events(self, *args, **options):
        """[(id, message)] of a response that ends."""
        connection, response = self.open(*args, **options)
        assert response.status == 200, (response.status, response.read())
        assert response.headers["Content-Type"] == "text/event-stream"
        found = parse(response.read().decode())
        connection.close()
        return found

    def session(self):
        connection, response = self.open("POST", INITIALIZE)
        (_, message), = parse(response.read().decode())
        assert message["result"]["protocolVersion"] == "2025-06-18"
        connection.close()
        session = response.headers["Mcp-Session-Id"]
        assert self.status("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}, session=session) == 202
        return session

    def run(self, session, code, **meta):
        return self.events("POST", {"jsonrpc": "2.0", "id": 5, "method": "tools/call",
                                    "params": {"name": "run_code", "arguments": {"code": code}, "_meta": meta}}, session=session)

    def value(self, session, code):
        return self.run(session, code)[-1][1]["result"]["structuredContent"]["value"]

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.wait(support.DEADLINE) == 0, self.text()
        text = self.text()
        self.stderr.close()
        for sign in ("AddressSanitizer", "LeakSanitizer", "runtime error:"):
            assert sign not in text, text


def parse(text):
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            found.append((lines.get("id"), json.loads(lines["data"])))
    return found


@pytest.fixture
def listen():
    made = []

    def make(*flags, **options):
        made.append(Listening(*flags, **options))
        return made[-1]

    yield make
    for server in made:
        server.close()


def test_sessions_are_apart(listen):
    server = listen()
    one, two = server.session(), server.session()
    assert one != two
    assert server.value(one, "x = 1\nx") == 1 and server.value(two, "'x' in globals()") is False
    assert server.value(one, "x") == 1
    assert server.status("DELETE", session=one) == 204
    assert server.status("POST", {"jsonrpc": "2.0", "id": 1, "method": "ping"}, session=one) == 404
    assert server.status("DELETE", session=one) == 404
    assert server.value(two, "2") == 2


def test_who_is_let_in(listen):
    server = listen("--allow-origin", "https://app.example", "--allow-host", "proxy.example")
    assert server.status("POST", INITIALIZE, token=None) == 401
    assert server.status("POST", INITIALIZE, token=TOKEN[:-1]) == 401
    assert server.status("POST", INITIALIZE, token=TOKEN + "x") == 401
    assert server.status("POST", INITIALIZE, Host="evil.example") == 403
    assert server.status("POST", INITIALIZE, Host="evil.example:%d" % server.port) == 403
    assert server.status("POST", INITIALIZE, Host="localhost.evil.example") == 403
    assert server.status("POST", INITIALIZE, Origin="http://evil.example") == 403
    assert server.status("POST", INITIALIZE, Origin="null") == 403
    assert server.status("POST", INITIALIZE, Origin="https://app.example") == 200
    assert server.status("POST", INITIALIZE, Host="proxy.example") == 200
    assert server.status("POST", INITIALIZE, Host="localhost:%d" % server.port) == 200


def test_what_is_refused(listen):
    server = listen()
    session = server.session()
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert server.status("POST", ping) == 400
    assert server.status("POST", ping, session="0" * 32) == 404
    assert server.status("POST", ping, session=session, path="/other") == 404
    assert server.status("POST", ping, session=session, Accept="text/html") == 406
    assert server.status("POST", ping, session=session, MCP_Protocol_Version="1999-01-01") == 400
    assert server.status("PUT", ping, session=session) == 405
    assert server.status("GET") == 400 and server.status("GET", session="0" * 32) == 404
    assert server.status("GET", session=session, Last_Event_ID="nonsense") == 400
    assert server.status("GET", session=session, Last_Event_ID="999-1") == 404
    (_, message), = server.events("POST", [], session=session)
    assert message["error"]["code"] == -32600
    assert server.events("POST", ping, session=session, MCP_Protocol_Version="2025-06-18")[0][1]["result"] == {}


def test_progress_comes_in_the_stream_and_can_be_taken_up_again(listen):
    server = listen()
    session = server.session()
    events = server.run(session, "print('a')\nprint('b')\n3", progressToken="p")
    assert events[-1][1]["result"]["structuredContent"]["value"] == 3
    notes = [message for _, message in events[:-1]]
    assert "".join(note["params"]["message"] for note in notes) == "a\nb\n"
    ids = [ident for ident, _ in events]
    assert len(set(ids)) == len(ids)
    assert server.events("GET", session=session, Last_Event_ID=ids[0]) == events[1:]
    assert server.events("GET", session=session, Last_Event_ID=ids[-1]) == []


def test_a_stream_that_broke_off(listen, tmp_path):
    server = listen()
    session = server.session()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    call = {"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": {
        "name": "run_code", "arguments": {"code": "print('began', flush=True)\nopen(%r).read()" % str(fifo)}, "_meta": {"progressToken": 1}}}
    connection, response = server.open("POST", call, session=session)
    lines = []
    while not lines or lines[-1].strip():
        lines.append(response.fp.readline().decode() if not response.chunked else response.readline().decode())
    (ident, first), = parse("".join(lines))
    assert first["method"] == "notifications/progress"
    connection.close()
    fifo.write_text("went on")
    rest = server.events("GET", session=session, Last_Event_ID=ident)
    assert rest[-1][1]["id"] == 8 and rest[-1][1]["result"]["structuredContent"]["value"] == "went on"


def test_one_reader_of_what_belongs_to_no_request(listen):
    server = listen()
    session = server.session()
    connection, response = server.open("GET", session=session)
    assert response.status == 200
    assert server.status("GET", session=session) == 409
    assert server.status("DELETE", session=session) == 204  # ends the stream
    assert response.read() == b""
    connection.close()


@pytest.mark.parametrize("flags, token, words", [
    (["--listen", "127.0.0.1:0"], None, "needs a token"),
    (["--listen", "0.0.0.0:0", "--auth-disabled"], None, "a token is needed"),
    (["--listen", "127.0.0.1:0", "--auth-disabled"], TOKEN, "cannot be used together"),
    (["--listen", "127.0.0.1"], TOKEN, "an address is HOST:PORT"),
    (["--listen", "nowhere:0"], TOKEN, "no address"),
])
def test_it_does_not_start_unsafe(flags, token, words):
    env = support.host_environment(**({"WORKCELL_MCP_TOKEN": token} if token else {}))
    done = support.workcell("mcp", "--python", support.bare_python(), *flags, env=env)
    assert (done.status, done.error_code) == (support.EXIT["invalid"], "invalid"), done
    assert words in done.err and TOKEN not in done.err


def test_no_token_on_loopback_and_a_token_from_a_file(listen, tmp_path):
    assert listen("--auth-disabled", token=None).status("POST", INITIALIZE, token=None) == 200
    (tmp_path / "token").write_text("other\n")
    server = listen("--auth-token-file", tmp_path / "token")
    assert server.status("POST", INITIALIZE, token="other") == 200 and server.status("POST", INITIALIZE) == 401


PYTHON_SDK = textwrap.dedent("""\
    import asyncio, sys
    from mcp import ClientSession
    try:
        from mcp.client.streamable_http import streamable_http_client as connect
    except ImportError:
        from mcp.client.streamable_http import streamablehttp_client as connect

    async def main():
        async with connect(sys.argv[1]) as streams, ClientSession(streams[0], streams[1]) as session:
            await session.initialize()
            good = await session.call_tool("run_code", {"code": "6 * 7"})
            print(good.model_dump(by_alias=True, mode="json")["structuredContent"]["value"])

    asyncio.run(main())
    """)


def test_the_python_sdk(listen):
    server = listen("--auth-disabled", token=None)
    python = os.environ.get("WORKCELL_MCP_PYTHON", support.PYTHON)
    done = subprocess.run([python, "-c", PYTHON_SDK, "http://127.0.0.1:%d/mcp" % server.port], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=support.DEADLINE, check=False)
    assert (done.returncode, done.stdout) == (0, b"42\n"), done.stderr.decode()


TS_SDK = """
import { Client } from "%(sdk)s/client/index.js";
import { StreamableHTTPClientTransport } from "%(sdk)s/client/streamableHttp.js";
const [url, token] = process.argv.slice(2);
const client = new Client({ name: "tests", version: "1" }, { capabilities: {} });
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: "Bearer " + token } } });
await client.connect(transport);
const names = (await client.listTools()).tools.map((tool) => tool.name);
const seen = [];
const good = await client.callTool({ name: "run_code", arguments: { code: "print('hi')\\n6 * 7" } }, undefined,
    { onprogress: (progress) => seen.push(progress.message) });
await transport.terminateSession();
await client.close();
console.log(JSON.stringify([names.length, good.structuredContent.value, seen.join("")]));
"""


def test_the_typescript_sdk(listen, tmp_path):
    server = listen()
    sdk = os.path.dirname(os.path.dirname(peers.package("@modelcontextprotocol/sdk", "dist/esm/client/index.js")))
    script = tmp_path / "client.mjs"
    script.write_text(TS_SDK % {"sdk": sdk})
    done = subprocess.run([peers.node(), str(script), "http://127.0.0.1:%d/mcp" % server.port, TOKEN], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=support.DEADLINE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == [5, 42, "hi\n"]


def test_the_inspector(listen, tmp_path):
    server = listen()
    answer = peers.inspect(tmp_path / "cli", "http://127.0.0.1:%d/mcp" % server.port, "--transport", "http",
                           "--header", "Authorization: Bearer " + TOKEN, "--method", "tools/call", "--tool-name", "run_code",
                           "--tool-arg", "code=6 * 7")
    assert answer["structuredContent"]["value"] == 42
