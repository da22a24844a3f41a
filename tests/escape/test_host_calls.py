"""Attacks on the path that all calls take: whoever asks for a change to the host (code, an MCP client, an HTTP client) passes policy, approval
and audit, and has no more trust than its executor gives to code."""
import json
import os
import subprocess
import sys
import threading

import pytest

import serving
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import client as mcp_client  # noqa: E402
import peers  # noqa: E402

SOURCE = "def run():\n    return 1\n"
AGENT, PERSON, OTHER = "t0ken-of-the-agent", "t0ken-of-the-person", "t0ken-of-another"
TOKENS = """tokens:
  - {name: agent, token: %s, scopes: [read, run]}
  - {name: person, token: %s, scopes: [read, approve]}
  - {name: elsewhere, token: %s, scopes: [read, approve], workspace: other}
""" % (AGENT, PERSON, OTHER)
CHANGES = [("add_dep", {"package": "nothing-of-ours"}, "deps.add"), ("install_package", {"package_name": "nothing-of-ours"}, "deps.add"),
           ("remove_dep", {"package": "six"}, "deps.remove"), ("create_workflow", {"name": "w", "source": SOURCE, "description": "d"},
                                                               "workflows.create"),
           ("delete_workflow", {"name": "kept"}, "workflows.delete")]


def base_of(folder):
    """A storage with a workflow and a package, beside the workspace and not in it."""
    base = folder / "base"
    (base / "workflows").mkdir(parents=True)
    (base / "workflows" / "kept.py").write_text('"""Kept."""\n' + SOURCE)
    (base / "requirements.txt").write_text("six\n")
    (folder / "work").mkdir()
    return base


def records(log):
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def agent(tmp_path):
    """An agent that speaks MCP, with the executor sandbox."""
    def make(*flags, executor="sandbox", **options):
        base = tmp_path / "base" if (tmp_path / "base").exists() else base_of(tmp_path)
        return mcp_client.Client("--base", base, "--cwd", tmp_path / "work", "--executor", executor, "--no-sync-deps", "--audit",
                                 tmp_path / "audit.jsonl", *flags, **options)

    yield from mcp_client.clients(make)


@pytest.fixture
def server(tmp_path):
    made = []

    def make(*flags, **options):
        made.append(serving.Server("--base", base_of(tmp_path), "--cwd", tmp_path / "work", "--audit", tmp_path / "audit.jsonl", *flags,
                                   **{"tokens": TOKENS, "pool": 0, **options}))
        return made[-1]

    yield make
    for each in made:
        if each.process.poll() is None:
            each.close()


# ---- an MCP client is the agent ------------------------------------------------------------------------------


def test_an_agent_is_not_offered_to_register_servers(agent, tmp_path):
    """register_mcp_server runs any command on the host: without --allow-register it does not exist."""
    client = agent()
    assert "register_mcp_server" not in [tool["name"] for tool in client.result(client.send("tools/list"))["tools"]]
    number = client.start("register_mcp_server", {"server_name": "s", "server_params": {"command": "touch", "args": [str(tmp_path / "x")]}})
    assert client.error(number)["code"] == -32602
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("how", ["deny", "ask"])
def test_registering_is_gated(agent, tmp_path, how):
    """With --allow-register it still passes the gate: denied, or asked of somebody who cannot be asked."""
    client = agent("--allow-register", "--approve", how)
    words = client.fails("register_mcp_server", server_name="s", server_params={"command": "touch", "args": [str(tmp_path / "x")]})
    assert words.startswith("rejected:") and "tools.register" in words
    assert not (tmp_path / "x").exists()
    client.close()
    record = records(tmp_path / "audit.jsonl")[-1]
    assert (record["kind"], record["tool"], record["callable"], record["principal"], record["client"]) == \
        ("server", "tools", "register", "mcp", "tests")
    assert record["decision"] in ("deny", "rejected") and record["args"]["params"]["command"] == "touch"


def test_registering_asks_with_the_command(agent):
    """The person sees the command before it runs."""
    client = agent("--allow-register", "--approve", "ask", executor="subprocess", capabilities={"elicitation": {}})
    client.on_request = lambda message: {"action": "accept", "content": {"decision": "accept"}}
    client.call("register_mcp_server", server_name="s", server_params=peers.scripted())
    assert "The agent wants" in client.asked[0]["params"]["message"] and "command" in client.asked[0]["params"]["message"]


@pytest.mark.parametrize("tool, arguments, name", CHANGES, ids=[change[0] for change in CHANGES])
def test_an_agent_changes_nothing_under_deny(agent, tmp_path, tool, arguments, name):
    """--executor sandbox --approve deny: the client's own tools are refused as its code's calls are, and the log says so."""
    client = agent("--approve", "deny")
    words = client.fails(tool, **arguments)
    assert words.startswith("rejected:") and name in words
    client.close()
    assert (tmp_path / "base" / "requirements.txt").read_text() == "six\n"
    assert sorted(os.listdir(tmp_path / "base" / "workflows")) == ["kept.py"]
    record = records(tmp_path / "audit.jsonl")[-1]
    assert (record["decision"], record["principal"], "%s.%s" % (record["tool"], record["callable"])) == ("deny", "mcp", name)


def test_an_agent_is_asked_about(agent, tmp_path):
    """--approve ask: what the client itself asks for is put to the person, on its stream, and a no is a no."""
    client = agent("--approve", "ask", capabilities={"elicitation": {}})
    client.on_request = lambda message: {"action": "accept", "content": {"decision": "reject", "reason": "not this one"}}
    assert "not this one" in client.fails("delete_workflow", name="kept")
    assert (tmp_path / "base" / "workflows" / "kept.py").exists()
    client.on_request = lambda message: {"action": "accept", "content": {"decision": "accept"}}
    assert client.value("delete_workflow", name="kept")["result"] is True
    assert len(client.asked) == 2 and "workflows.delete" in client.asked[0]["params"]["message"]


@pytest.mark.parametrize("package", ["x @ file:///tmp/x", "./sdist", "git+https://example.org/x"])
def test_an_agent_has_the_trust_of_its_executor(agent, package):
    """A sandboxed agent's add_dep must not build what it names by path or address: its setup.py would run on the host."""
    words = agent().fails("add_dep", package=package)
    assert words.split(":")[0] in ("disabled", "invalid"), words


def test_an_agents_artifacts_pass_the_policy(agent, tmp_path):
    """save_artifact of the client is judged by the same rules as artifacts.save of the code."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("default: allow\nrules:\n  - {kind: artifact, args: {name: 'secret/**'}, decision: deny}\n")
    client = agent("--policy", policy)
    assert client.fails("save_artifact", name="secret/a.txt", data="x").startswith("rejected:")
    client.call("save_artifact", name="public.txt", data="x")
    assert "ApprovalRejectedError" in client.fails("run_code", code="artifacts.save('secret/a.txt', 'x')")
    client.close()
    found = [(r["principal"], r["callable"], r["decision"]) for r in records(tmp_path / "audit.jsonl") if r["kind"] == "artifact"]
    assert found == [("mcp", "save", "deny"), ("mcp", "save", "allow"), ("code", "save", "deny")]


# ---- code ----------------------------------------------------------------------------------------------------


def test_code_does_not_register_servers(drive, tmp_path):
    """The operation is in the table, but not for code: by the raw channel neither."""
    driver = drive("--base", base_of(tmp_path))
    answer = driver.run("deps._channel.call('tools.register', {'name': 's', 'params': {'command': 'touch', 'args': ['%s']}})"
                        % (tmp_path / "x"))
    assert "there is no method" in answer["error"]["message"]
    assert not (tmp_path / "x").exists()


def operations():
    """The rows of src/calls/table.c."""
    program = os.path.join(os.path.dirname(support.BIN), "operations")
    return json.loads(subprocess.run([program], check=True, capture_output=True).stdout)["operations"]


def test_code_asks_for_what_is_codes(drive, tmp_path):
    """Every operation by the raw channel: those whose row does not name code do not exist for it, nor do names beside the table."""
    driver = drive("--base", base_of(tmp_path))
    driver.value("""
def ask(method):
    try:
        return repr(deps._channel.call(method, {})[0])
    except Exception as error:
        return str(error)
None""")
    rows = operations()
    assert [row["method"] for row in rows if "code" not in row["who"]] == \
        ["tools.register", "tools.unregister", "artifacts.save", "artifacts.load", "question", "offered.call"]
    for row in rows:
        answer = driver.value("ask(%r)" % row["method"])
        assert ("there is no method" in answer) == ("code" not in row["who"]), (row["method"], answer)
    for method in ("", "tools", "tools.", ".list", "TOOLS.LIST", "tools.list ", "cancel.x"):
        assert "there is no method" in driver.value("ask(%r)" % method), method


@pytest.mark.parametrize("method, args", [("deps.add", {"package": "six\0==0"}), ("workflows.delete", {"name": "kept\0x"}),
                                          ("artifacts.save_begin", {"name": "a\0b"}), ("workflows.get", {"name": "kept\0x"})])
def test_texts_do_not_end_early(drive, tmp_path, method, args):
    """What is judged and shown with a NUL in it would be done without what follows."""
    base = base_of(tmp_path)
    driver = drive("--base", base)
    assert "must not contain NUL" in driver.run("deps._channel.call(%r, %r)" % (method, args))["error"]["message"]
    assert (base / "workflows" / "kept.py").exists()


@pytest.mark.parametrize("kind, code", [
    ("remove", "deps.remove('six')"), ("workflow", "workflows.delete('kept')"), ("artifact", "artifacts.delete('a.txt')"),
    ("artifact", "artifacts.save('a.txt', 'y')"), ("install", "deps.sync()"), ("workflow", "workflows.create('v', 'def run(): pass', 'd')"),
])
def test_removals_pass_the_gate(drive, tmp_path, kind, code):
    """deps.remove, workflows.delete, artifacts.save and delete went through no gate."""
    base = base_of(tmp_path)
    policy = tmp_path / "policy.yaml"
    policy.write_text("default: allow\nrules:\n  - {kind: %s, decision: deny, reason: 'not here'}\n" % kind)
    driver = drive("--base", base, "--policy", policy, "--audit", tmp_path / "audit.jsonl")
    assert "not here" in driver.run(code)["error"]["message"]
    driver.close()
    record = records(tmp_path / "audit.jsonl")[-1]
    assert (record["kind"], record["decision"], record["principal"]) == (kind, "deny", "code")
    assert (base / "requirements.txt").read_text() == "six\n" and (base / "workflows" / "kept.py").exists()


@pytest.mark.parametrize("code", ["deps.remove('six')", "workflows.delete('kept')", "deps.add('nothing-of-ours')", "deps.sync()", "!true",
                                  "workflows.create('v', 'def run(): pass', 'd')"])
def test_approve_deny_means_every_kind(drive, tmp_path, code):
    """--approve deny alone covers whatever changes the host, not tools only."""
    driver = drive("--base", base_of(tmp_path), "--approve", "deny")
    assert driver.run(code)["error"]["code"] == "rejected"
    assert driver.value("artifacts.save('a.txt', 'x') and artifacts.load('a.txt')") == "x"


def test_a_sync_is_asked_with_its_packages(drive, tmp_path):
    """deps.sync was shown without what it installs."""
    driver = drive("--base", base_of(tmp_path), "--approve", "ask")
    driver.start("deps.sync()")
    event = driver.next_event(lambda event: event.get("event") == "approval")
    assert event["args"]["packages"] == ["six"]
    driver.interrupt()
    driver.answer()


@pytest.mark.parametrize("again", ["trust", "overwrite"])
def test_a_workflow_of_confined_code_is_not_run_unconfined(tmp_path, again):
    """Write now, executed later by the host: a workflow that sandboxed code keeps must not run in an unconfined session without a word."""
    base = base_of(tmp_path)
    source = "open(%r, 'w')\ndef run():\n    return 'ran'" % str(tmp_path / "x")
    made = support.run_cells("workflows.create('evil', %r, 'd')" % source, "workflows.evil()",
                             flags=("--executor", "sandbox", "--base", base, "--cwd", tmp_path / "work"))
    assert made.results[0]["error"] is None and not (tmp_path / "x").exists()
    here = ("--base", base, "--cwd", tmp_path / "work", "--python", support.bare_python())
    done = support.workcell("workflows", "run", "evil", *here)
    assert done.status == 1 and "workcell workflows trust" in done.err, done
    refused = support.run_cells("workflows.evil()", flags=("--base", base)).results[0]
    assert "made by confined code" in refused["error"]["message"]
    assert not (tmp_path / "x").exists()
    shown = support.workcell("workflows", "show", "evil", "--base", base).out
    assert shown.startswith("# workcell: untrusted") and source in shown
    if again == "trust":
        assert support.workcell("workflows", "trust", "evil", "--base", base).status == 0
    else:
        (tmp_path / "w.py").write_text(shown)
        assert support.workcell("workflows", "add", "evil", tmp_path / "w.py", "--overwrite", "--base", base).status == 0
    assert support.workcell("workflows", "show", "evil", "--base", base).out == source
    assert support.workcell("workflows", "run", "evil", *here).status == 0
    assert (tmp_path / "x").exists()


def test_confined_code_does_not_unmark_a_workflow(tmp_path):
    """A source that brings the mark itself, or replaces a trusted workflow, is marked all the same."""
    base = base_of(tmp_path)
    cells = ("workflows.create('kept', '# workcell: untrusted, made by confined code\\ndef run():\\n    return 2', 'd', overwrite=True)",
             "workflows.kept()")
    done = support.run_cells(*cells, flags=("--executor", "sandbox", "--base", base, "--cwd", tmp_path / "work"))
    assert done.results[1]["value"] == 2, done
    assert "made by confined code" in support.run_cells("workflows.kept()", flags=("--base", base)).results[0]["error"]["message"]


# ---- HTTP clients --------------------------------------------------------------------------------------------


def run_asking(server, token=AGENT):
    """A session of the agent whose code waits for an approval: its id, and the request's."""
    session = server.ask("POST", "/v1/sessions", {}, token=token).json["session_id"]
    server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "workflows.delete('kept')"}, token=token)
    waiting, = support.wait_until(lambda: server.ask("GET", "/v1/sessions/%s/approvals" % session, token=token).json["approvals"], "a request")
    return session, waiting["id"]


def test_a_run_token_does_not_approve(server, tmp_path):
    """The agent's own token answered what its code asked for. Now another scope does, for its own workspace alone."""
    http = server("--approve", "ask")
    session, number = run_asking(http)
    path = "/v1/sessions/%s/approvals/%d" % (session, number)
    refused = http.ask("POST", path, {"accept": True}, token=AGENT)
    assert (refused.status, refused.code) == (403, "forbidden") and '"approve"' in refused.json["detail"]
    assert http.ask("POST", path, {"accept": True}, token=OTHER).status == 404
    assert http.ask("GET", "/v1/approvals?all=true", token=OTHER).json["approvals"] == []
    assert (tmp_path / "base" / "workflows" / "kept.py").exists()
    # Who may approve may not run: nor see or end the session.
    assert http.ask("DELETE", "/v1/sessions/" + session, token=PERSON).status == 403
    assert http.ask("GET", "/v1/sessions/" + session, token=PERSON).status == 404
    listed, = http.ask("GET", "/v1/approvals?all=true", token=PERSON).json["approvals"]
    assert (listed["id"], listed["session_id"]) == (number, session)
    assert http.ask("POST", path, {"accept": True}, token=PERSON).status == 204
    support.wait_until(lambda: not (tmp_path / "base" / "workflows" / "kept.py").exists(), "the workflow to go")


REQUESTS = [("POST", "/api/deps/add", {"package": "nothing-of-ours"}), ("POST", "/api/deps/remove", {"package": "six"}),
            ("POST", "/api/deps/sync", None), ("POST", "/api/workflows", {"name": "v", "source": SOURCE, "description": "d"}),
            ("DELETE", "/api/workflows/kept", None), ("POST", "/api/skills", {"name": "v", "source": SOURCE, "description": "d"}),
            ("DELETE", "/api/skills/kept", None)]


@pytest.mark.parametrize("how", ["deny", "ask"])
def test_a_client_changes_nothing_past_the_gate(server, tmp_path, how):
    """/api routes went past policy and audit: denied, and what would be asked of nobody is refused with what to do."""
    http = server("--approve", how)
    for method, path, body in REQUESTS:
        refused = http.ask(method, path, body, token=AGENT)
        assert (refused.status, refused.code) == (403, "rejected"), (path, refused)
        assert how == "deny" or "X-Session-ID" in refused.json["detail"]
    for path in ("/install_deps", "/uninstall_deps"):
        assert http.ask("POST", path, {"packages": ["six"]}, token=AGENT).status == 403
    http.close()
    assert (tmp_path / "base" / "requirements.txt").read_text() == "six\n"
    assert sorted(os.listdir(tmp_path / "base" / "workflows")) == ["kept.py"]
    found = records(tmp_path / "audit.jsonl")
    assert len(found) >= len(REQUESTS) and {(r["decision"], r["principal"], r["client"]) for r in found} == {("deny", "http", "agent")}


def test_a_client_with_a_session_is_asked_about(server, tmp_path):
    """In the name of a session the request waits for the person."""
    http = server("--approve", "ask")
    session = http.ask("POST", "/v1/sessions", {}, token=AGENT).json["session_id"]
    answers = []
    thread = threading.Thread(target=lambda: answers.append(http.ask("DELETE", "/api/workflows/kept", token=AGENT, session=session)))
    thread.start()
    waiting, = support.wait_until(lambda: http.ask("GET", "/v1/approvals?all=true", token=PERSON).json["approvals"], "a request")
    assert (waiting["kind"], waiting["tool"], waiting["callable"], waiting["args"]) == ("workflow", "workflows", "delete", {"name": "kept"})
    assert http.ask("POST", "/v1/sessions/%s/approvals/%d" % (session, waiting["id"]), {"accept": False, "reason": "keep it"},
                    token=PERSON).status == 204
    thread.join(support.DEADLINE)
    assert (answers[0].status, answers[0].code) == (403, "rejected") and "keep it" in answers[0].json["detail"]
    assert (tmp_path / "base" / "workflows" / "kept.py").exists()


def test_what_a_client_does_is_recorded(server, tmp_path):
    """Changes over HTTP stood in no log."""
    http = server()
    assert http.ask("PUT", "/api/artifacts/a.txt", b"x", token=AGENT).status == 200
    assert http.ask("DELETE", "/api/artifacts/a.txt", token=AGENT).status == 200
    assert http.ask("DELETE", "/api/workflows/kept", token=AGENT).status == 200
    http.close()
    assert [(r["kind"], r["tool"], r["callable"], r["principal"], r["client"], r["decision"]) for r in records(tmp_path / "audit.jsonl")] == [
        ("artifact", "artifacts", "save", "http", "agent", "allow"), ("artifact", "artifacts", "delete", "http", "agent", "allow"),
        ("workflow", "workflows", "delete", "http", "agent", "allow")]
