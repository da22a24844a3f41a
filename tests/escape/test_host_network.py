"""Attacks over the network: clients without a token, with a weak one, with that of somebody else, and pages in a browser."""
import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile

import pytest

import listening
import serving
import support

# Long enough that nobody guesses them.
TOKENS = """tokens:
  - {name: ops, token: t0ken-of-the-tests, scopes: [run, read, admin]}
  - {name: runner, token: t0ken-of-the-runner, scopes: [run]}
  - {name: reader, token: t0ken-of-the-reader, scopes: [read]}
  - {name: agent, token: t0ken-of-the-agent-1, scopes: [run, read]}
  - {name: other, token: t0ken-of-the-agent-2, scopes: [run, read]}
  - {name: team, token: t0ken-of-the-team-a1, scopes: [run, read], workspace: team-a}
  - {name: team-admin, token: t0ken-of-the-team-ad, scopes: [run, read, admin], workspace: team-a}
  - {name: bridge, token: t0ken-of-the-bridge1, scopes: [run, read], workspace: "*"}
"""
OPS, RUNNER, READER = "t0ken-of-the-tests", "t0ken-of-the-runner", "t0ken-of-the-reader"
AGENT, OTHER, TEAM, TEAM_ADMIN, BRIDGE = ("t0ken-of-the-agent-1", "t0ken-of-the-agent-2", "t0ken-of-the-team-a1", "t0ken-of-the-team-ad",
                                         "t0ken-of-the-bridge1")
MCP_TOKEN = listening.TOKEN


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base = tmp_path_factory.mktemp("base")
    (base / "secret.txt").write_text("the secret of the base")
    (base.parent / "outside.txt").write_text("the secret outside")
    made = serving.Server("--executor", "subprocess", "--base", base, tokens=TOKENS)
    made.base = base
    with serving.shared(made) as shared:
        yield shared


@contextlib.contextmanager
def serve(*flags, **options):
    made = serving.Server(*flags, **options)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def listen(*flags, **options):
    """`workcell mcp --listen`."""
    made = listening.Listening(*flags, **options)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def mcp(tmp_path_factory):
    """The MCP server by HTTP, with tokens like those of the session server."""
    made = listening.Listening("--base", tmp_path_factory.mktemp("base"), "--cwd", tmp_path_factory.mktemp("cwd"), tokens=TOKENS)
    made.token = AGENT
    support.shared_drivers.append(made)
    made.adopt()
    yield made
    support.shared_drivers.remove(made)
    assert made.status("POST", listening.INITIALIZE) == 200
    made.close()


@pytest.fixture(params=["serve", "mcp"])
def either(request, server, mcp):
    """Both servers, which share a front end."""
    return server if request.param == "serve" else mcp


def exchange(port, head, body=b""):
    """One request by hand; the status, or None."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=support.DEADLINE)) as sock:
        sock.sendall(head + b"\r\n" + body)
        data = b""
        while b"\r\n" not in data:
            piece = sock.recv(4096)
            if not piece:
                return None
            data += piece
        return int(data.split(b" ", 2)[1])


def mcp_initialize(made, token=True):
    body = json.dumps(listening.INITIALIZE).encode()
    return exchange(made.port, made.head(token=token) + b"Content-Length: %d\r\n" % len(body), body)


def is_closed(sock):
    sock.setblocking(False)
    try:
        return sock.recv(4096) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


# ---- clients without a token ----


SLOW = {"nothing": b"", "half a head": b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
        "a bad token": b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer nonsense\r\nContent-Length: 100000\r\n\r\n{"}


@pytest.mark.parametrize("what", sorted(SLOW))
def test_slow_heads_keep_no_client_with_a_token_out_of_serve(what):
    """As many connections as the server takes say nothing, little or wrong; a client with a token comes after them."""
    with serve("--executor", "subprocess", "--max-connections", "40", pool=0) as made, contextlib.ExitStack() as stack:
        for _ in range(120):
            sock = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", made.port), timeout=support.DEADLINE)))
            with contextlib.suppress(OSError):
                sock.sendall(SLOW[what])
        assert made.execute("6 * 7")["value"] == 42
        if what != "a bad token":  # those are answered and gone, as fast as they come on a quiet machine
            assert made.metric("evicted_guests_total") > 0


@pytest.mark.parametrize("what", sorted(SLOW))
def test_slow_heads_keep_no_client_with_a_token_out_of_mcp(what):
    """The same against `workcell mcp --listen`."""
    with listen() as made, contextlib.ExitStack() as stack:
        for _ in range(300):
            sock = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", made.port), timeout=support.DEADLINE)))
            with contextlib.suppress(OSError):
                sock.sendall(SLOW[what])
        assert mcp_initialize(made) == 200


def test_a_connection_with_a_token_is_not_evicted():
    """It rests between two requests while others flood the server."""
    with serve("--executor", "subprocess", "--max-connections", "40", pool=0) as made, contextlib.ExitStack() as stack:
        connection = made.connect()
        assert made.ask("GET", "/openapi.json", connection=connection).status == 200
        for _ in range(120):
            stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", made.port), timeout=support.DEADLINE)))
        assert made.ask("GET", "/openapi.json", connection=connection).status == 200
        connection.close()


def test_who_shows_no_token_does_not_stay_for_its_good_requests():
    """A connection that asks for /health is still a guest, and goes after --head-timeout."""
    with serve("--executor", "subprocess", "--head-timeout", "1", pool=0) as made:
        with contextlib.closing(socket.create_connection(("127.0.0.1", made.port), timeout=support.DEADLINE)) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            support.wait_until(lambda: b"uptime" in sock.recv(4096), "no answer")
            support.wait_until(lambda: is_closed(sock), "the guest is still there")


def test_bodies_without_a_token_do_not_fill_the_memory():
    """/health is open to all, and a body for it is kept by nobody."""
    with serve("--executor", "subprocess", pool=0) as made, contextlib.ExitStack() as stack:
        assert made.ask("GET", "/health", token=None).status == 200
        before = support.peak_rss_bytes(made.pid)
        for _ in range(8):
            sock = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", made.port), timeout=support.DEADLINE)))
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000001\r\n\r\n" + b"x" * 8000000)
        assert made.ask("GET", "/health", token=None).status == 200
        assert support.peak_rss_bytes(made.pid) - before < 16 << 20


def test_bad_tokens_lock_no_good_client_out():
    """A neighbour behind the same proxy guesses; clients that were never here before come with good tokens."""
    with serve("--executor", "subprocess", tokens=TOKENS, pool=0) as made:
        statuses = {made.ask("GET", "/openapi.json", token="guess-of-a-neighbour-%04d" % i).status for i in range(60)}
        assert statuses == {401, 429}
        for token in (OPS, AGENT, OTHER, TEAM):
            assert made.ask("GET", "/openapi.json", token=token).status == 200


def test_a_forwarded_address_frees_no_guesser():
    """X-Forwarded-For is a client's word, and no address of its own."""
    with serve("--executor", "subprocess", tokens=TOKENS, pool=0) as made:
        statuses = [made.ask("GET", "/openapi.json", token="guess-of-a-stranger-%04d" % i,
                             headers={"X-Forwarded-For": "10.0.0.%d" % i, "Forwarded": "for=10.0.0.%d" % i}).status for i in range(60)]
        assert statuses[-1] == 429


def test_a_right_guess_of_a_short_token_is_refused_while_others_fail():
    """What slows a guesser down."""
    with serve("--executor", "subprocess", tokens="tokens:\n  - {name: weak, token: abc}\n", pool=0) as made:
        while made.ask("GET", "/openapi.json", token="aaa").status != 429:
            pass
        assert made.ask("GET", "/openapi.json", token="abc").status == 429


def test_who_shows_no_token_does_not_stay_at_mcp():
    """Silent, with half a head, or refused and silent: gone after --head-timeout."""
    with listen("--head-timeout", "1") as made, contextlib.ExitStack() as stack:
        socks = []
        for data in (b"", b"POST /mcp HTTP/1.1\r\nX-Slow: ", b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            socks.append(stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", made.port), timeout=support.DEADLINE))))
            socks[-1].sendall(data)
        for sock in socks:
            support.wait_until(lambda: is_closed(sock), "the guest is still there")  # pylint: disable=cell-var-from-loop


def test_a_connection_with_a_token_is_not_evicted_from_mcp():
    """Neither one that rests nor one that reads a stream."""
    with listen("--max-connections", "40") as made, contextlib.ExitStack() as stack:
        session = made.session()
        resting, response = made.open("POST", listening.PING, session=session)
        response.read()
        reading, events = made.open("GET", session=session)
        for _ in range(120):
            stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", made.port), timeout=support.DEADLINE)))
        assert made.open("POST", listening.PING, session=session, connection=resting)[1].status == 200
        assert not is_closed(events.fp.raw._sock)  # pylint: disable=protected-access
        resting.close()
        reading.close()


def test_bad_tokens_lock_no_good_client_out_of_mcp():
    """A neighbour behind the same proxy guesses, whatever address it says it has."""
    with listen(tokens=TOKENS) as made:
        statuses = [made.status("GET", token="guess-of-a-neighbour-%04d" % i, X_Forwarded_For="10.0.0.%d" % i) for i in range(60)]
        assert statuses[0] == 401 and statuses[-1] == 429
        for token in (OPS, AGENT, RUNNER):
            assert made.status("POST", listening.INITIALIZE, token=token) == 200


def test_a_right_guess_of_a_short_token_of_mcp_is_refused_while_others_fail():
    """What slows a guesser down."""
    with listen(token="abc") as made:
        while made.status("GET", token="aaa") != 429:
            pass
        assert made.status("POST", listening.INITIALIZE) == 429


def test_bodies_without_a_token_do_not_fill_the_memory_of_mcp():
    """Eight of them, each of 8 MB."""
    with listen() as made, contextlib.ExitStack() as stack:
        assert made.status("GET", token=None) == 401
        before = support.peak_rss_bytes(made.pid)
        for _ in range(8):
            sock = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", made.port), timeout=support.DEADLINE)))
            with contextlib.suppress(OSError):
                sock.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000001\r\n\r\n" + b"x" * 8000000)
        assert made.status("GET", token=None) == 401
        assert support.peak_rss_bytes(made.pid) - before < 16 << 20


@pytest.mark.parametrize("given", ["", "t", MCP_TOKEN[:-1], MCP_TOKEN + "x", MCP_TOKEN.upper(), "x" * 4000, MCP_TOKEN + " ", "\x00" + MCP_TOKEN])
def test_a_token_is_whole_or_wrong(given):
    """Prefixes, longer ones, other cases: compared by hash, so none is nearer than another."""
    with listen() as made:
        assert mcp_initialize(made, given) in (400, 401, None)


# ---- approving oneself ----


@pytest.mark.parametrize("executor", ["subprocess", "inprocess", "jupyter"])
@pytest.mark.parametrize("command", ["serve", "mcp"])
def test_code_does_not_approve_itself_over_an_open_listener(command, executor):
    """The code connects to the server on loopback, where no token is asked for, and answers its own question."""
    done = support.workcell(command, "--executor", executor, "--auth-disabled", "--approve", "ask", "--listen", "127.0.0.1:0",
                            "--cwd", ".")
    assert done.error_code == "invalid" and "approve its own" in done.err, done


@pytest.mark.parametrize("command", ["serve", "mcp"])
def test_neither_does_code_in_a_sandbox_with_the_hosts_network(command):
    """Preset `developer`: the host's loopback interface is there."""
    done = support.workcell(command, "--executor", "sandbox", "--sandbox-policy", "developer", "--auth-disabled", "--approve", "ask",
                            "--listen", "127.0.0.1:0")
    assert done.error_code == "invalid" and "approve its own" in done.err, done


def test_nor_through_a_socket_in_its_own_folder(tmp_path):
    """A Unix socket needs no network."""
    done = support.workcell("serve", "--executor", "sandbox", "--cwd", tmp_path, "--auth-disabled", "--listen", "unix:%s/socket" % tmp_path)
    assert done.error_code == "invalid" and "listen elsewhere" in done.err, done


def test_a_sandbox_without_a_network_may_be_served_openly():
    """What cannot reach the listener cannot approve itself."""
    with serve("--executor", "sandbox", "--approve", "ask", "--auth-disabled", tokens=None, pool=0) as made:
        code = "import socket; socket.create_connection(('127.0.0.1', %d), 5)" % made.port
        assert made.execute(code, token=None)["error"]


# ---- tokens of others ----


def all_routes(server):
    found = server.ask("GET", "/openapi.json", token=READER).json["paths"]
    return [(method.upper(), path) for path, methods in found.items() for method in methods]


BODIES = {"code": "1", "workspace_id": None, "packages": [], "package": "x", "name": "n", "source": "def run(): pass", "description": "d",
          "data": 1, "accept": True, "args": {}}


STRICT = {"fork": {}, "rewind": {"name": "n"}, "race": {"codes": ["1"]}, "commit": {}, "discard": {}, "batch": {"runs": [{"code": "1"}]},
          "commands": {"argv": ["true"]}, "stdin": {"text": "x"}, "signal": {"signal": "KILL"}, "resize": {"rows": 1, "cols": 1}}  # routes that take no other members


def test_another_client_finds_no_session_by_its_id(server):
    """Every route that names a session, with the token of another client, of another workspace, and of that workspace's admin."""
    session = server.session(token=AGENT)
    server.execute("x = 'of the agent'", session=session, token=AGENT)
    run = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "1"}, token=AGENT).json["run_id"]
    tried = 0
    for method, path in all_routes(server):
        url = path.replace("{session}", session).replace("{run}", str(run)).replace("{id}", "1").replace("{name}", "n").replace("{command}", "0" * 16)
        if (method, path) == ("DELETE", "/v1/sessions/{session}/files"):
            url += "?path=n"
        by_path, by_header = "{session}" in path, "{session}" not in path and path not in ("/health", "/metrics", "/openapi.json")
        for token in (OTHER, TEAM, TEAM_ADMIN):
            answer = server.ask(method, url, STRICT.get(path.rsplit("/", 1)[1], BODIES) if method in ("POST", "PUT") else None, token=token,
                                session=session if by_header else None)
            if by_path:
                assert answer.code == ("forbidden" if path.endswith(("/approvals/{id}", "/files/commit")) else "not_found"), (method, path, answer)
                tried += 1
            elif answer.status < 300:
                assert session not in answer.body.decode() and answer.headers["X-Session-ID"] != session, (method, path, answer)
    assert tried >= 27
    assert server.execute("x", session=session, token=AGENT)["value"] == "of the agent"


def test_another_token_finds_no_session_of_mcp(mcp):
    """By its id, to call, to listen, to replay what was answered, to end it; an admin's neither."""
    session = mcp.session()
    (ident, _), = mcp.run(session, "secret = 'of the agent'")
    for token in (OTHER, RUNNER, OPS, BRIDGE):
        assert mcp.status("POST", listening.call("run_code", code="secret"), session=session, token=token) == 404
        for headers in ({}, {"Last_Event_ID": ident}, {"Last_Event_ID": ident.split("-")[0] + "-0"}, {"Last_Event_ID": "0-0"}):
            answer = mcp.ask("GET", session=session, token=token, **headers)
            assert answer.status == 404 and b"result" not in answer.body, answer
        assert mcp.status("DELETE", session=session, token=token) == 404
    assert mcp.value(session, "secret") == "of the agent"
    # The ids of events are the client's own, too.
    other = mcp.session(token=OTHER)
    answer = mcp.ask("GET", session=other, token=OTHER, Last_Event_ID=ident.split("-")[0] + "-999999")
    assert b"of the agent" not in answer.body


def test_a_token_without_the_scope_or_the_workspace_does_not_enter_mcp(mcp):
    """read is not enough, nor is a token of another workspace."""
    for token in (READER, TEAM, TEAM_ADMIN):
        answer = mcp.ask("POST", listening.INITIALIZE, token=token)
        assert (answer.status, answer.code) == (403, "forbidden"), answer


def test_a_workspace_that_a_token_is_bound_to_is_closed_for_others_of_mcp(tmp_path):
    """`--workspace team-a`: its own token, "*" and an unbound admin."""
    with listen("--base", tmp_path, "--workspace", "team-a", tokens=TOKENS) as made:
        found = {token: made.status("POST", listening.INITIALIZE, token=token) for token in (TEAM, TEAM_ADMIN, BRIDGE, OPS, AGENT, RUNNER)}
        assert found == {TEAM: 200, TEAM_ADMIN: 200, BRIDGE: 200, OPS: 200, AGENT: 403, RUNNER: 403}


ELICITS = json.loads(json.dumps(listening.INITIALIZE).replace('"capabilities": {}', '"capabilities": {"elicitation": {}}'))


@pytest.mark.parametrize("scopes, accepted", [("run, approve", True), ("run", False)])
def test_an_mcp_client_is_asked_only_with_the_scope_approve(tmp_path, scopes, accepted):
    """What an agent asks for, its own token does not approve."""
    tokens = "tokens:\n  - {name: agent, token: t0ken-of-the-agent-1, scopes: [%s]}\n" % scopes
    with listen("--base", tmp_path, "--approve", "ask", tokens=tokens) as made:
        made.token = AGENT
        session = made.session(initialize=ELICITS)
        connection, response = made.open("POST", listening.call("create_workflow", name="w", source="def run():\n    return 1\n", description="d"),
                                         session=session)
        (_, message), *_ = listening.parse(read_block(response))
        assert (message.get("method") == "elicitation/create") is accepted, message
        if accepted:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"action": "accept", "content": {"decision": "accept"}}}
            assert made.status("POST", answer, session=session) == 202
            (_, message), *_ = listening.parse(read_block(response))
        assert message["result"]["isError"] is not accepted and (accepted or "scope approve" in json.dumps(message)), message
        connection.close()


def read_block(response):
    """One event of a stream that may stay open."""
    lines = []
    while not lines or lines[-1].strip():
        lines.append(response.readline().decode())
        assert lines[-1], lines
    return "".join(lines)


def test_answers_that_nobody_reads_do_not_fill_the_memory_of_mcp():
    """Calls with large answers, on connections whose client never reads."""
    with listen() as made, contextlib.ExitStack() as stack:
        session = made.session()
        made.value(session, "import sys; text = 'x' * 999000")
        before = support.peak_rss_bytes(made.pid)
        body = json.dumps(listening.call("execute_ipython_cell", code="print(text)", max_output_chars=1000000)).encode()
        for i in range(100):
            sock = stack.enter_context(contextlib.closing(socket.socket()))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", made.port))
            each = body.replace(b'"id": 5', b'"id": %d' % (1000 + i))
            sock.sendall(made.head() + b"Mcp-Session-Id: %s\r\nContent-Length: %d\r\n\r\n" % (session.encode(), len(each)) + each)
        assert made.value(session, "6 * 7") == 42  # in its turn, after all of them
        grown = support.peak_rss_bytes(made.pid) - before
        assert grown < 160 << 20, grown


@pytest.mark.parametrize("token", [AGENT, RUNNER, READER, TEAM])
def test_the_agents_own_token_approves_nothing(server, token):
    """Not even in its own session: that is the scope approve."""
    session = server.session(token=AGENT)
    assert server.ask("POST", "/v1/sessions/%s/approvals/1" % session, {"accept": True}, token=token).code == "forbidden"


@pytest.mark.parametrize("token, status", [(AGENT, 403), (RUNNER, 403), (TEAM, 201), (TEAM_ADMIN, 201), (BRIDGE, 201), (OPS, 201)])
def test_an_unbound_token_does_not_enter_a_bound_workspace(server, token, status):
    """team-a is bound to a token; `workspace: "*"` and admin are the words that open it to others."""
    for path, good in (("/v1/sessions", 201), ("/sessions", 200)):
        answer = server.ask("POST", path, {"workspace_id": "team-a"}, token=token)
        assert answer.status == (good if status == 201 else 403), answer
        assert status == 201 or answer.code == "forbidden"


def test_an_unbound_token_enters_what_is_nobodys(server):
    """And a bound one only its own."""
    assert server.ask("POST", "/v1/sessions", {"workspace_id": "free"}, token=AGENT).status == 201
    assert server.ask("POST", "/v1/sessions", {"workspace_id": "free"}, token=TEAM).code == "forbidden"
    assert server.ask("POST", "/v1/sessions", token=TEAM).json["workspace_id"] == "team-a"


def test_artifacts_and_workflows_of_a_workspace_are_not_seen_from_another(server):
    """By routes without a session too."""
    assert server.ask("PUT", "/api/artifacts/plan.txt?type=text", b"of team a", token=TEAM).status == 200
    server.ask("POST", "/api/workflows", {"name": "teamflow", "source": "def run(): pass", "description": "d"}, token=TEAM)
    for token in (AGENT, OTHER):
        assert "plan.txt" not in server.ask("GET", "/api/artifacts", token=token).body.decode()
        assert server.ask("GET", "/api/artifacts/plan.txt", token=token).status == 404
        assert "teamflow" not in server.ask("GET", "/api/workflows", token=token).body.decode()
        assert server.ask("GET", "/api/workflows/teamflow", token=token).status == 404
    for name in ("../../team-a/artifacts/plan.txt", "workspaces/team-a/plan.txt", "../workspaces/team-a/artifacts/plan.txt"):
        assert server.ask("GET", "/api/artifacts/" + name.replace("/", "%2f"), token=AGENT).status in (400, 404)


def test_lists_of_sessions_and_approvals_are_ones_own(server):
    """?all=true is the admin's word, and a bound admin's only for its workspace."""
    own, theirs = server.session(token=AGENT), server.session(token=TEAM)
    for query in ("", "?all=true"):
        found = {each["session_id"] for each in server.ask("GET", "/v1/sessions" + query, token=AGENT).json["sessions"]}
        assert own in found and theirs not in found
    found = {each["session_id"] for each in server.ask("GET", "/v1/sessions?all=true", token=TEAM_ADMIN).json["sessions"]}
    assert theirs in found and own not in found
    found = {each["session_id"] for each in server.ask("GET", "/v1/sessions?all=true", token=OPS).json["sessions"]}
    assert {own, theirs} <= found


def test_a_workspace_that_is_bound_later_closes_for_others(tmp_path):
    """The token file changes while a session of an unbound token is in the workspace."""
    with serve("--executor", "subprocess", "--base", tmp_path, tokens=TOKENS, pool=0) as made:
        session = made.ask("POST", "/v1/sessions", {"workspace_id": "later"}, token=AGENT).json["session_id"]
        with open(made.tokens, "a", encoding="utf-8") as file:
            file.write("  - {name: late, token: t0ken-of-the-late-one, workspace: later}\n")
        support.wait_until(lambda: made.ask("GET", "/openapi.json", token="t0ken-of-the-late-one").status == 200, made.text)
        assert made.ask("GET", "/v1/sessions/" + session, token=AGENT).code == "not_found"
        assert session not in made.ask("GET", "/v1/sessions", token=AGENT).body.decode()


def test_each_scope_opens_only_its_routes(server):
    """Every route with a token that has one scope."""
    for method, path in all_routes(server):
        url = re.sub(r"\{.*?\}", "n", path)
        body = BODIES if method in ("POST", "PUT") else None
        # Pages have nothing in them but scripts that ask with a token, and every token may learn whose it is.
        if path not in ("/health", "/ready", "/started", "/docs", "/v1/whoami") and not path.startswith(("/console", "/oauth/")):
            assert server.ask(method, url, body, token=RUNNER if method == "GET" else READER).code == "forbidden", (method, path)
        if path == "/metrics":
            assert server.ask(method, url, body, token=AGENT).code == "forbidden"


# ---- paths, heads and bodies ----


TRAVERSALS = ["..%2f..%2foutside.txt", "%2e%2e%2f%2e%2e%2foutside.txt", "..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd",
              "a%2f..%2f..%2f..%2foutside.txt", "..%5c..%5coutside.txt", "%c0%ae%c0%ae%2foutside.txt", "a%00.txt", "%2e%2e", ".", "..%2fsecret.txt",
              "a%0d%0aX-Injected:%20yes", "CON", "a%2f", "%ff"]


@pytest.mark.parametrize("name", TRAVERSALS)
def test_no_name_leads_out_of_the_storage(server, name):
    """Artifacts, workflows, tools, sessions, runs and approvals by names that mean other places."""
    session = server.session(token=AGENT)
    for method, path in (("GET", "/api/artifacts/%s"), ("DELETE", "/api/artifacts/%s"), ("GET", "/api/workflows/%s"),
                         ("DELETE", "/api/workflows/%s"), ("POST", "/api/tools/%s/call"), ("GET", "/v1/sessions/%s"),
                         ("GET", "/v1/sessions/" + session + "/runs/%s"), ("POST", "/v1/sessions/%s/interrupt")):
        answer = server.ask(method, path % name, {} if method == "POST" else None, token=AGENT)
        assert answer.status in (400, 403, 404, 405, 422), (method, path, answer)
        assert b"root:" not in answer.body and b"the secret" not in answer.body
        assert "X-Injected" not in answer.headers
    answer = server.ask("PUT", "/api/artifacts/" + name, b"planted", token=AGENT)
    assert b"the secret" not in answer.body and "X-Injected" not in answer.headers
    if answer.status == 200:  # a name that is odd, and means nothing but itself
        assert server.ask("DELETE", "/api/artifacts/" + name, token=AGENT).status == 200
    assert (server.base.parent / "outside.txt").read_text() == "the secret outside"
    assert (server.base / "secret.txt").read_text() == "the secret of the base"


def test_an_artifact_that_is_a_link_is_not_followed(server):
    """Code of a session without confinement, or a person, left a link in the storage."""
    assert server.ask("PUT", "/api/artifacts/real.txt?type=text", b"fine", token=AGENT).status == 200
    path = os.path.join(server.base, "artifacts", "real.txt")
    assert os.path.exists(path)
    os.unlink(path)
    os.symlink(server.base.parent / "outside.txt", path)
    try:
        answer = server.ask("GET", "/api/artifacts/real.txt", token=AGENT)
        assert b"the secret" not in answer.body
    finally:
        os.unlink(path)
        server.ask("DELETE", "/api/artifacts/real.txt", token=AGENT)


@pytest.mark.parametrize("body", [b"[" * 100000, b'{"code":' + b'{"a":' * 50000, b'{"code": "1", "code": "2"}', b"\xff\xfe", b'{"code": "\\ud800"}',
                                  b'{"code": 1e999}', b"null", b'{"timeout": 1e400, "code": "1"}'])
def test_bodies_that_are_deep_or_odd_are_refused(server, body):
    """Parsers that recurse, duplicate keys, broken texts."""
    answer = server.ask("POST", "/execute", body, token=RUNNER)
    assert answer.status == 422 and answer.code == "invalid", answer


@pytest.mark.parametrize("members", [{"executor": "inprocess"}, {"sandbox_policy": "developer"}, {"cwd": "/"}, {"env": {"LD_PRELOAD": "/x.so"}},
                                     {"python": "/bin/sh"}, {"image": "evil"}, {"network_disabled": False}, {"workspace_mode": "rw"},
                                     {"memory_limit": -1}, {"approve": "auto"}, {"policy": None}])
@pytest.mark.parametrize("path", ["/sessions", "/v1/sessions"])
def test_a_client_does_not_choose_its_confinement(server, path, members):
    """What is asked for is neither given nor ignored, for a session opens with one member only: workspace_id."""
    answer = server.ask("POST", path, members, token=AGENT)
    assert answer.status == 422 and answer.code == "invalid", answer


def test_a_clients_timeout_is_at_most_the_servers():
    """--max-timeout is the operator's."""
    with serve("--executor", "subprocess", "--max-timeout", "1", pool=0) as made:
        answer = made.ask("POST", "/execute", {"code": "while True: pass", "timeout": 1e9})
        assert answer.json["error_code"] == "timeout", answer


@pytest.mark.parametrize("header", [{"X-HTTP-Method-Override": "DELETE"}, {"X-Method-Override": "DELETE"}, {"X-HTTP-Method": "DELETE"}])
def test_a_method_is_the_one_of_the_request_line(server, header):
    """GET with the scope read, DELETE by the back door."""
    session = server.session(token=AGENT)
    answer = server.ask("GET", "/v1/sessions/" + session, token=AGENT, headers=header)
    assert answer.status == 200 and server.ask("GET", "/v1/sessions/" + session, token=AGENT).status == 200


@pytest.mark.parametrize("headers", [{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
                                      "Sec-WebSocket-Version": "13"},
                                     {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}])
def test_no_other_protocol_is_switched_to(server, headers):
    """WebSocket and h2c, through a proxy that would then look away."""
    answer = server.ask("GET", "/openapi.json", token=READER, headers=headers)
    assert answer.status in (200, 400) and "Upgrade" not in answer.headers


# What stands between two good headers, and what a proxy may make of it.
HEADS = {
    "two lengths": b"Content-Length: 5\r\nContent-Length: 0", "a length and an encoding": b"Content-Length: 0\r\nTransfer-Encoding: chunked",
    "two encodings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "a list of encodings": b"Transfer-Encoding: \tchunked, identity",
    "a space before the colon": b"Transfer-Encoding : chunked", "a length in hex": b"Content-Length: 0x5", "a list of lengths": b"Content-Length: 5,5",
    "a sign": b"Content-Length: +5", "a tab after the encoding": b"Transfer-Encoding: chunked\t", "an encoding of another name": b"Transfer-Encoding: xchunked",
    "a folded line": b"X-A: b\r\n Transfer-Encoding: chunked", "a folded value": b"Transfer-Encoding:\r\n chunked",
    "a folded length": b"Content-Length:\r\n 5", "a bare LF": b"X-A: b\nTransfer-Encoding: chunked", "a bare CR": b"X-A: b\rTransfer-Encoding: chunked",
    "a NUL in a value": b"X-A: b\0c", "a NUL in a length": b"Content-Length: 5\0", "a NUL in a name": b"X\0A: b", "a NUL first": b"\0X: b",
    "no name": b": x\r\nContent-Length: 5", "no colon": b"Nonsense", "a control character": b"X-A: \x0b", "a name beyond ASCII": b"X-\xff: a",
    "two hosts": b"Host: other", "two authorizations": b"Authorization: Bearer other", "two origins": b"Origin: http://a\r\nOrigin: http://b",
    "two sessions": b"Mcp-Session-Id: a\r\nMcp-Session-Id: b\r\nX-Session-ID: a\r\nX-Session-ID: b",
}


def post(made, lines=b"", body=b"", request=None, token=RUNNER):
    """A request that is good but for these lines."""
    path = b"/mcp" if isinstance(made, listening.Listening) else b"/execute"
    return b"%s\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n%sX-Last: 1\r\n\r\n%s" % (
        (request or b"POST PATH HTTP/1.1").replace(b"PATH", path), made.port, token.encode(), lines + b"\r\n" if lines else b"", body)


def statuses(data):
    return [int(found) for found in re.findall(rb"HTTP/1\.[01] (\d+)", data)]


@pytest.mark.parametrize("what", sorted(HEADS))
def test_a_second_request_is_not_smuggled_in_a_body(either, what):
    """A proxy with one token for many clients reads one request, and the server two."""
    inner = b"0\r\n\r\n" + post(either, request=b"GET PATH?smuggled HTTP/1.1", token=OPS)
    data = either.raw(post(either, HEADS[what], inner))
    assert set(statuses(data)) <= {400}, data
    assert b"session" not in data.lower().replace(b"x-session-id", b""), data


@pytest.mark.parametrize("line", [b"POST PATH HTTP/1.2", b"POST PATH HTTP/2.0", b"POST PATH", b"POST  PATH  HTTP/1.1", b"POST\tPATH\tHTTP/1.1",
                                  b"POST PATH\0x HTTP/1.1", b"POST PATH x HTTP/1.1", b"POST http://evil.example/PATH HTTP/1.1", b"POST /PATH HTTP/1.1",
                                  b"post PATH HTTP/1.1", b"CONNECT 127.0.0.1:1 HTTP/1.1", b"TRACE PATH HTTP/1.1", b"OPTIONS * HTTP/1.1"])
def test_odd_request_lines_are_refused(either, line):
    """Other versions, absolute forms, spaces, NULs, methods."""
    data = either.raw(post(either, b"Content-Length: 2", b"{}", request=line))
    assert not data or statuses(data)[0] in (400, 403, 404, 405, 505), data


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@pytest.mark.parametrize("line", [b"2\r\n{}\r\n", b"2;a=b\r\n{}\r\n", b"2;a\n{}\r\n", b"2\n{}\r\n", b"2\r\n{}\n"])
def test_what_follows_a_chunked_body_is_not_read(either, line, version):
    """Where it ends is seen differently by proxies that take LF in an extension, or after a chunk, for something else."""
    inner = post(either, request=b"GET PATH?smuggled HTTP/1.1")
    data = either.raw(post(either, b"Transfer-Encoding: chunked", line + b"0\r\n\r\n" + inner, request=b"POST PATH " + version))
    assert len(statuses(data)) == 1 and statuses(data)[0] in (400, 422), data
    assert version == b"HTTP/1.1" or b"HTTP/1.0 without" in data


def test_good_requests_in_pieces_and_in_a_row_are_read(either):
    """What the check of heads must let through: pipelining, long heads, single bytes, odd but good spaces."""
    lines = b"X-Tab:\tx\r\nX-None:\r\nX-Spaces:   y  z  \r\nContent-Length: 2"
    short, long = post(either, lines, b"{}"), post(either, b"X-Long: %s\r\n" % (b"v" * 9000) + lines, b"{}")
    refusal = 400 if isinstance(either, listening.Listening) else 422  # the body, not the head
    for step in (1, 37, 1000, 1 << 20):
        with contextlib.closing(socket.create_connection(("127.0.0.1", either.port), timeout=support.DEADLINE)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = short if step == 1 else (short + long) * 2
            for at in range(0, len(data), step):
                sock.sendall(data[at:at + step])
            sock.shutdown(socket.SHUT_WR)
            found = serving.read_all(sock)
        assert statuses(found) == [refusal] * (1 if step == 1 else 4) and b"header line" not in found, found


# ---- browsers ----


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0", ""])
def test_an_open_listener_answers_to_its_own_names_only(host):
    """DNS rebinding: a page of evil.example, whose name now means 127.0.0.1."""
    with serve("--executor", "subprocess", "--auth-disabled", tokens=None, pool=0) as made:
        head = b"POST /execute HTTP/1.1\r\nHost: %s\r\nContent-Length: 14\r\n" % host.encode()
        assert exchange(made.port, head, b'{"code":"1+1"}') in (400, 403)
    with listen("--auth-disabled", token=None) as made:
        assert exchange(made.port, b"POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Length: 2\r\n" % host.encode(), b"{}") in (400, 403)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example", "http://127.0.0.1:1", "file://", "chrome-extension://x"])
def test_a_page_of_another_origin_is_refused(server, origin):
    """A simple request needs no preflight."""
    answer = server.ask("POST", "/execute", {"code": "1"}, token=RUNNER, headers={"Origin": origin, "Content-Type": "text/plain"})
    assert answer.code == "forbidden" and "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example", "http://127.0.0.1:1", "file://", "chrome-extension://x"])
def test_a_page_of_another_origin_is_refused_by_mcp(mcp, origin):
    """With a token, and on every method."""
    for method in ("POST", "GET", "DELETE"):
        answer = mcp.ask(method, listening.INITIALIZE if method == "POST" else None, Origin=origin, Content_Type="text/plain")
        assert answer.code == "forbidden" and "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("path", ["/execute", "/mcp"])
def test_no_preflight_is_answered(server, mcp, path):
    """OPTIONS without a token says nothing about routes or origins."""
    if path == "/mcp":
        answer = mcp.ask("OPTIONS", token=None, Access_Control_Request_Method="POST")
    else:
        answer = server.ask("OPTIONS", path, token=None, headers={"Access-Control-Request-Method": "POST"})
    assert answer.status in (401, 405) and not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("kind", ["text", "json", "bytes"])
def test_a_download_is_nothing_that_a_browser_runs(server, kind):
    """An artifact that is a page with a script, or an SVG."""
    data = b'"<script>alert(1)</script>"' if kind == "json" else b"<html><script>alert(1)</script></html>"
    assert server.ask("PUT", "/api/artifacts/page.html?type=" + kind, data, token=AGENT).status == 200
    for accept in ("*/*", "text/html", "application/octet-stream"):
        answer = server.ask("GET", "/api/artifacts/page.html", token=AGENT, headers={"Accept": accept})
        assert answer.headers["Content-Type"] in ("application/json", "application/octet-stream")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in answer.headers["Content-Security-Policy"]
        if kind == "bytes":
            assert answer.headers["Content-Disposition"] == "attachment"
    server.ask("DELETE", "/api/artifacts/page.html", token=AGENT)


def test_an_error_that_quotes_a_page_is_none(server):
    """The path of a request comes back in a message."""
    answer = server.ask("GET", "/api/artifacts/%3Cscript%3Ealert(1)%3C%2fscript%3E", token=AGENT)
    assert answer.headers["Content-Type"] == "application/json" and answer.headers["X-Content-Type-Options"] == "nosniff"
