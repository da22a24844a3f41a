"""`workcell mcp --listen`: Streamable HTTP, and who is let in."""
import concurrent.futures
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import listening
import serving
import support
from listening import INITIALIZE, PING, Listening, parse

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402

TOKEN = listening.TOKEN


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
    assert server.ask("POST", PING, token=None).code == "unauthorized"
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


def test_a_silent_cell_beside_a_busy_client(listen, tmp_path):
    """Bytes keep its connection while another client never is silent, and its answer comes. They come five times in a --silent-timeout."""
    server = listen("--silent-timeout", "1")
    silent, busy = server.session(), server.session()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = "print('began', flush=True)\nopen(%r).read()" % str(fifo)
    connection, response = server.open("POST", listening.call("run_code", ident=8, meta={"progressToken": 1}, code=code), session=silent)
    lines, done = [], threading.Event()

    def work():
        while not done.is_set():
            assert server.value(busy, "1") == 1
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        while lines.count(": still here\n") < 2:
            lines.append(response.readline().decode())
            assert lines[-1] and lines.count("\n") < 10, lines
        done.set()
        working.result()
    fifo.write_text("went on")
    answer = parse("".join(lines) + response.read().decode())[-1][1]
    connection.close()
    assert answer["id"] == 8 and answer["result"]["structuredContent"]["value"] == "went on"


def test_a_stream_that_broke_off_before_its_first_event(listen, tmp_path):
    """Since 2025-11-25 an event without data comes first, whose id is enough to fetch the answer."""
    server = listen()
    hello = {**INITIALIZE, "params": {**INITIALIZE["params"], "protocolVersion": "2025-11-25"}}
    connection, response = server.open("POST", hello)
    first, rest = response.read().decode().split("\n\n", 1)
    assert first.splitlines() == ["retry: 1000", "id: 1-0", "data: "] and parse(rest)[0][1]["id"] == 0
    connection.close()
    session = response.headers["Mcp-Session-Id"]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    connection, response = server.open("POST", listening.call("run_code", ident=8, code="open(%r).read()" % str(fifo)), session=session)
    assert response.readline() == b"retry: 1000\n"
    ident = response.readline().decode().strip()
    assert ident.startswith("id: ") and ident.endswith("-0")
    connection.close()
    response.close()
    fifo.write_text("went on")
    rest = server.events("GET", session=session, Last_Event_ID=ident[4:])
    assert rest[-1][1]["id"] == 8 and rest[-1][1]["result"]["structuredContent"]["value"] == "went on"


def test_pages_of_an_allowed_origin(listen):
    server = listen("--allow-origin", "https://app.example")
    ask = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization,mcp-session-id"}
    answer = server.ask("OPTIONS", token=None, Origin="https://app.example", **ask)
    assert answer.status == 204 and answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert "POST" in answer.headers["Access-Control-Allow-Methods"] and answer.headers["Vary"] == "Origin"
    allowed = answer.headers["Access-Control-Allow-Headers"].lower()
    assert all(name in allowed for name in ("authorization", "content-type", "mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"))
    # headers of parameters have names that tools choose; nothing else that was asked for is allowed by asking
    wanted = "cookie, Mcp-Param-Region,mcp-param-,x-evil\t,mcp-param-a b,mcp-param-%s" % ("z" * 5000)
    named = server.ask("OPTIONS", token=None, Origin="https://app.example", Access_Control_Request_Method="POST",
                       Access_Control_Request_Headers=wanted).headers["Access-Control-Allow-Headers"]
    assert named.lower() == allowed + ", mcp-param-region, mcp-param-a"
    answer = server.ask("POST", INITIALIZE, Origin="https://app.example")
    assert answer.status == 200 and answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert "Mcp-Session-Id" in answer.headers["Access-Control-Expose-Headers"]
    assert server.ask("POST", INITIALIZE, token="x", Origin="https://app.example").headers["Access-Control-Allow-Origin"]
    # nobody else is told anything
    for origin in ("https://evil.example", "null", "https://app.example.evil"):
        answer = server.ask("OPTIONS", token=None, Origin=origin, **ask)
        assert answer.status == 403 and not answer.headers["Access-Control-Allow-Origin"]
    assert server.status("OPTIONS", token=None) == 401
    answer = server.ask("OPTIONS", token=None, Origin="http://127.0.0.1:%d" % server.port, **ask)
    assert answer.status == 401 and not answer.headers["Access-Control-Allow-Origin"]
    assert not server.ask("POST", INITIALIZE).headers["Access-Control-Allow-Origin"]


def test_bodies_of_other_types(listen):
    server = listen()
    session = server.session()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", "multipart/form-data; boundary=x"):
        answer = server.ask("POST", PING, session=session, Content_Type=kind)
        assert answer.status == 415 and "id" not in answer.json
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        assert server.status("POST", PING, session=session, Content_Type=kind) == 200


def test_errors_without_an_id_have_none(listen):
    server = listen()
    session = server.session()
    (_, answer), = server.events("POST", [], session=session)
    assert answer["error"]["code"] == -32600 and "id" not in answer
    assert "id" not in server.ask("GET").json


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
    (["--listen", "0.0.0.0:0", "--auth-disabled"], None, "a token is required"),
    (["--listen", "127.0.0.1:0", "--auth-disabled"], TOKEN, "cannot be used together"),
    (["--listen", "127.0.0.1"], TOKEN, "expected HOST:PORT"),
    (["--listen", "nowhere:0"], TOKEN, "not an IP address"),
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


def test_several_tokens_and_the_file_read_again(listen):
    server = listen(tokens="tokens:\n  - {name: one, token: t0ken-of-the-first-1, scopes: [run]}\n")
    server.token = "t0ken-of-the-first-1"
    session = server.session()
    with open(server.tokens, "w", encoding="utf-8") as file:
        file.write("tokens:\n  - {name: one, token: t0ken-of-the-second}\n  - {name: two, token: t0ken-of-another-1}\n")
    server.process.send_signal(signal.SIGHUP)
    support.wait_until(lambda: server.status("POST", PING, session=session, token="t0ken-of-the-second") == 200, server.text)
    assert server.status("POST", PING, session=session) == 401  # the secret is another, the name and so the session the same
    assert server.status("POST", PING, session=session, token="t0ken-of-another-1") == 404
    with open(server.tokens, "w", encoding="utf-8") as file:
        file.write("tokens: nonsense")
    server.process.send_signal(signal.SIGHUP)
    support.wait_until(lambda: "not reloaded" in server.text(), server.text)
    assert server.status("POST", PING, session=session, token="t0ken-of-the-second") == 200


def test_tls(listen, tmp_path):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", tmp_path / "k",
                    "-out", tmp_path / "c", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
                   check=True, stderr=subprocess.DEVNULL)
    server = listen("--tls-cert", tmp_path / "c", "--tls-key", tmp_path / "k", "--cwd", "/")
    assert server.scheme == "https"
    context = ssl.create_default_context(cafile=str(tmp_path / "c"))

    def connect():
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=support.DEADLINE)
        connection = serving.http.client.HTTPConnection("localhost", server.port)
        connection.sock = context.wrap_socket(sock, server_hostname="localhost")
        return connection

    server.connect, plain = connect, server.connect
    assert server.value(server.session(), "6 * 7") == 42
    with pytest.raises((OSError, serving.http.client.HTTPException)):
        server.open("POST", INITIALIZE, connection=plain())


def test_a_unix_socket(listen, tmp_path):
    server = listen(listen="unix:%s/socket" % tmp_path)
    assert server.value(server.session(), "6 * 7") == 42
    assert server.status("GET", token="another") == 401


def test_as_many_sessions_as_there_can_be(listen):
    """A client that never says DELETE pushes out its own oldest session, and is not refused."""
    server = listen("--max-sessions", "2")
    sessions = [server.session() for _ in range(6)]
    assert [server.status("POST", PING, session=session) for session in sessions] == [404] * 4 + [200] * 2
    opened = [server.open("GET", session=session) for session in sessions[4:]]  # in use: they stay
    answer = server.ask("POST", INITIALIZE)
    assert (answer.status, answer.code) == (429, "busy") and int(answer.headers["Retry-After"]) >= 1
    assert server.status("DELETE", session=sessions[4]) == 204
    server.session()
    for connection, response in opened:
        connection.close()
        response.close()


def test_a_flood_of_sessions_does_not_push_out_others(listen):
    server = listen("--max-sessions", "3", tokens="tokens:\n  - {name: one, token: t0ken-of-the-first-1}\n"
                                                  "  - {name: two, token: t0ken-of-the-second}\n")
    kept = server.session(token="t0ken-of-the-first-1")
    for _ in range(6):
        server.session(token="t0ken-of-the-second")
    assert server.status("POST", PING, session=kept, token="t0ken-of-the-first-1") == 200


def test_who_was_silent_makes_room(listen):
    server = listen("--max-sessions", "2", "--session-idle", "0.2")
    one, two = server.session(), server.session()
    connection, response = server.open("GET", session=two)  # who reads is not silent
    support.wait_until(lambda: server.status("POST", INITIALIZE) == 200, server.text)
    assert server.status("POST", PING, session=one) == 404 and server.status("POST", PING, session=two) == 200
    connection.close()
    response.close()


def test_messages_of_a_client_are_read_in_their_order(listen):
    """Cells that were sent at once, on connections of their own."""
    server = listen()
    session = server.session()
    server.value(session, "seen = []")
    opened = []
    for i in range(12):
        connection = server.connect()
        connection.putrequest("POST", "/mcp")
        body = json.dumps(listening.call("run_code", ident=100 + i, code="seen.append(%d)" % i)).encode()
        for name, value in (("Authorization", "Bearer " + TOKEN), ("Mcp-Session-Id", session), ("Content-Length", str(len(body)))):
            connection.putheader(name, value)
        connection.endheaders(body)
        opened.append(connection)
        time.sleep(0.002)  # the order of arrival, not of answers, is what counts
    for connection in opened:
        assert parse(connection.getresponse().read().decode())[-1][1]["result"]["isError"] is False
        connection.close()
    assert server.value(session, "seen") == list(range(12))


def test_the_end_with_streams_open_and_a_cell_that_runs(listen, tmp_path):
    server = listen()
    session = server.session()
    quiet, empty = server.open("GET", session=session)
    running, response = server.open("POST", listening.call("run_code", code="open(%r, 'w').close()\nwhile True: pass" % str(tmp_path / "runs")),
                                    session=session)
    waiting, later = server.open("POST", listening.call("run_code", ident=6, code="1"), session=session)
    support.wait_until((tmp_path / "runs").exists, server.text)
    server.process.send_signal(signal.SIGTERM)
    assert empty.read() == b"" and "structuredContent" not in later.read().decode()
    response.read()
    assert server.process.wait(support.DEADLINE) == 0
    for connection in (quiet, running, waiting):
        connection.close()


@pytest.mark.parametrize("flags, words", [
    (["--tls-cert", "c"], "--listen"), (["--auth-disabled"], "--listen"), (["--allow-host", "x"], "--listen"),
    (["--listen", "127.0.0.1:0", "--log", "xml"], "--log must be"),
    (["--listen", "127.0.0.1:0", "--max-header", "100"], "max_header_bytes"),
    (["--listen", "127.0.0.1:0", "--tls-cert", "/dev/null"], "both"),
    (["--listen", "unix:" + "x" * 200], "a socket path has"),
])
def test_flags_that_do_nothing_or_do_not_fit_are_refused(flags, words):
    done = support.workcell("mcp", "--python", support.bare_python(), *flags, env=support.host_environment(WORKCELL_MCP_TOKEN=TOKEN))
    assert done.error_code == "invalid" and words in done.err, done


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
    assert json.loads(done.stdout) == [14, 42, "hi\n"]


def test_the_inspector(listen, tmp_path):
    server = listen()
    answer = peers.inspect(tmp_path / "cli", "http://127.0.0.1:%d/mcp" % server.port, "--transport", "http",
                           "--header", "Authorization: Bearer " + TOKEN, "--method", "tools/call", "--tool-name", "run_code",
                           "--tool-arg", "code=6 * 7")
    assert answer["structuredContent"]["value"] == 42
