"""`workcell serve`: the reference's endpoints, sessions, runs with events, approvals, workspaces."""
import http.client
import io
import json
import os
import signal
import socket
import ssl
import subprocess
import tarfile
import threading

import pytest

import serving
import spaces
import support

ALICE, BOB, TEAM = "t0ken-of-alice", "t0ken-of-bob", "t0ken-of-the-team"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    (folder / "tools").mkdir()
    (folder / "tools" / "echo.yaml").write_text(
        "name: echo\ntype: cli\ncommand: echo\ndescription: Says it again.\n"
        "schema: {positional: [{name: text, type: string, required: true}]}\n"
        "recipes: {say: {description: Says it., params: {text: {}}}}\n")
    return folder


@pytest.fixture(scope="module")
def server(base):
    with serving.shared("--base", base, "--executor", "subprocess", "--policy", write_policy(base)) as made:
        yield made


def write_policy(base):
    path = base / "policy.yaml"
    path.write_text("default: allow\nrules:\n  - tool: echo\n    decision: ask\n    reason: it speaks\n")
    return path


def test_health_needs_no_token(server):
    answer = server.ask("GET", "/health", token=None)
    assert answer.status == 200 and answer.json["status"] == "healthy" and answer.json["uptime_seconds"] >= 0


def test_cells_of_one_session(server):
    first = server.execute("x = 20\nprint('hi')\nx + 1")
    assert first["value"] == 21 and first["stdout"] == "hi\n" and first["error"] is None
    again = server.execute("x * 2", session=first["session_id"])
    assert again["value"] == 40 and again["session_id"] == first["session_id"]
    assert server.execute("'x' in globals()")["value"] is False


def test_what_is_no_json_value_is_its_repr(server):
    assert server.execute("{1, 2}")["value"] == "{1, 2}"
    assert server.execute("None")["value"] is None
    assert server.execute("10**30")["value"] == 10 ** 30


def test_code_that_fails_is_no_failure_of_ours(server):
    done = server.execute("1/0")
    assert "ZeroDivisionError" in done["error"] and done["error_code"] == "exception" and done["value"] is None
    session = done["session_id"]
    dead = server.execute("import os; os._exit(3)", session=session)
    assert dead["error_code"] == "kernel_died" and dead["state"] == "lost"
    assert server.execute("1", session=session)["value"] == 1


def test_what_does_not_fit_into_a_result_is_in_no_file(server):
    """The client could not read one."""
    done = server.execute("print('x' * (3 << 20))")
    assert "bytes left out ...]" in done["stdout"] and "/tmp/" not in done["stdout"] and not done.get("spill"), done["stdout"][-200:]


def test_timeout(server):
    answer = server.ask("POST", "/execute", {"code": "while True: pass", "timeout": 0.2})
    assert answer.status == 200 and answer.json["error_code"] == "timeout"


def test_unknown_sessions(server):
    for path, method in (("/execute", "POST"), ("/reset", "POST"), ("/info", "GET"), ("/api/workflows", "GET")):
        answer = server.ask(method, path, {"code": "1"} if path == "/execute" else None, session="0" * 32)
        assert answer.status == 400 and answer.json["detail"] == "Invalid session ID", (path, answer)
    assert server.ask("POST", "/reset").status == 400
    assert server.ask("GET", "/v1/sessions/" + "0" * 32).status == 404


def test_reset_ends_the_session(server):
    session = server.ask("POST", "/sessions").json["session_id"]
    answer = server.ask("POST", "/reset", session=session)
    assert answer.status == 200 and answer.json == {"status": "reset", "session_id": session}
    assert server.ask("POST", "/execute", {"code": "1"}, session=session).status == 400
    gone = server.ask("GET", "/v1/sessions/" + session)
    assert gone.status == 410 and gone.code == "session_expired"


def test_bodies_are_checked(server):
    for body in (b"{", b"", b"[]", b'{"code": 1}', b'{"cod": "1"}', b'{"code":"1","code":"2"}', b'{"code":"1","timeout":"x"}',
                 b'{"code":"1","timeout":-1}'):
        answer = server.ask("POST", "/execute", body)
        assert answer.status == 422 and isinstance(answer.json["detail"], list), (body, answer)
    assert server.ask("GET", "/api/tools/search").status == 422
    for limit in ("z", "0", "-1", "1.5"):
        assert server.ask("GET", "/api/tools/search?query=x&limit=" + limit).status == 422
        assert server.ask("GET", "/api/workflows/search?query=x&limit=" + limit).status == 422
    assert server.ask("POST", "/sessions", {"workspace_id": "a\0b"}).status == 422
    assert server.ask("GET", "/api/artifacts/%zz").status == 400


def test_paths_and_methods(server):
    assert server.ask("GET", "/nowhere").status == 404
    answer = server.ask("PUT", "/execute", {})
    assert answer.status == 405 and answer.headers["Allow"] == "POST"


def test_tools(server):
    tool, = server.ask("GET", "/api/tools").json
    assert tool["name"] == "echo" and tool["callables"][0]["name"] == "say"
    assert server.ask("GET", "/api/tools/search?query=says+it").json[0]["name"] == "echo"
    info = server.ask("GET", "/info").json
    assert info["tools"] == [{"name": "echo", "description": "Says it again."}] and info["artifacts_path"].endswith("/artifacts")


def test_tools_are_called_from_outside(server, base):
    """As code in the session does it: the policy asks before echo, and the answer may edit or reject."""
    session = server.session()
    call = {"args": {"text": "hi"}}

    def answered(answer, **options):
        found = []
        asking = threading.Thread(target=lambda: found.append(server.ask("POST", "/api/tools/echo.say/call", call, session=session, **options)))
        asking.start()
        waiting, = support.wait_until(lambda: approvals_of(server, session), "a request")
        assert waiting["tool"] == "echo" and waiting["callable"] == "say" and waiting["args"] == call["args"]
        assert server.ask("POST", "/v1/sessions/%s/approvals/%d" % (session, waiting["id"]), answer).status == 204
        asking.join()
        return found[0]

    assert answered({"accept": True}).json == {"value": "hi\n"}
    assert answered({"accept": True, "args": {"text": "edited"}}).json == {"value": "edited\n"}
    rejected = answered({"accept": False, "reason": "not now"})
    assert rejected.status == 403 and rejected.code == "rejected" and "not now" in rejected.json["detail"], rejected

    # Those of other clients, of no session, and of none that is known.
    assert server.ask("POST", "/api/tools/echo.say/call", call, session=session, token=ALICE).status == 400
    before = len(server.ask("GET", "/v1/sessions").json["sessions"])
    unknown = server.ask("POST", "/api/tools/nothing/call", call)
    assert unknown.status == 404 and unknown.code == "not_found" and "X-Session-ID" not in unknown.headers, unknown
    assert len(server.ask("GET", "/v1/sessions").json["sessions"]) == before
    for path, body, status, code in (("echo.nothing", call, 404, "not_found"), ("echo.say", {"args": {"txt": 1}}, 400, "invalid"),
                                     ("echo.say", {"args": {"text": [1]}}, 400, "invalid"), ("echo.say", {"args": 1}, 422, "invalid")):
        answer = server.ask("POST", "/api/tools/%s/call" % path, body, session=session)
        assert answer.status == status and answer.code == code, (path, body, answer)

    # What waits in a session of its own is found among all.
    found = []
    asking = threading.Thread(target=lambda: found.append(server.ask("POST", "/api/tools/echo.say/call", call)))
    asking.start()
    waiting, = support.wait_until(lambda: server.ask("GET", "/v1/approvals").json["approvals"], "a request")
    assert server.ask("POST", "/v1/sessions/%s/approvals/%d" % (waiting["session_id"], waiting["id"]), {"accept": True}).status == 204
    asking.join()
    assert found[0].json == {"value": "hi\n"}

    # A call that waits goes with its kernel, and with its session.
    for end in ({"method": "POST", "path": "/reset"}, {"method": "DELETE", "path": ""}):
        found = []
        asking = threading.Thread(target=lambda: found.append(server.ask("POST", "/api/tools/echo.say/call", call, session=session)))
        asking.start()
        support.wait_until(lambda: approvals_of(server, session), "a request")
        assert server.ask(end["method"], "/v1/sessions/" + session + end["path"]).status in (200, 204)
        asking.join()
        assert found[0].code == "cancelled", found


def test_results_of_tools_from_outside(tmp_path):
    spaces.write_files(tmp_path, {
        "tools/say.yaml": "name: say\ncommand: printf\nschema: {positional: [{name: text, type: string}]}\nrecipes: {it: {}}\n",
        "tools/fail.yaml": "name: fail\ncommand: 'false'\nrecipes: {it: {}}\n"})
    server = serving.Server("--executor", "subprocess", "--base", tmp_path, "--audit", tmp_path / "audit", pool=0)
    assert server.ask("POST", "/api/tools/say.it/call", {"args": {"text": "a\\000b"}}).json == {"value": "a\0b"}
    assert server.ask("POST", "/api/tools/say.it/call", {"args": {"text": ""}}).json == {"value": ""}
    failed = server.ask("POST", "/api/tools/fail.it/call")
    assert failed.status == 502 and failed.code == "tool_failed", failed
    assert server.ask("GET", "/v1/sessions").json["sessions"] == []
    server.close()
    records = [json.loads(line) for path in sorted(tmp_path.glob("audit*")) for line in path.read_text().splitlines()]
    assert [record["tool"] for record in records if record.get("tool")] == ["say", "say", "fail"], records


def test_workflows(server):
    source = "async def run(word: str) -> str:\n    return word * 2\n"
    made = server.ask("POST", "/api/workflows", {"name": "twice", "source": source, "description": "Twice."})
    assert made.status == 200 and made.json["source"] == source and made.json["params"] == {"word": "string"}, made
    assert {item["name"] for item in server.ask("GET", "/api/workflows").json} == {"twice"}
    assert server.ask("GET", "/api/skills/twice").json["description"] == "Twice."
    assert server.ask("GET", "/api/workflows/search?query=twice").json[0]["name"] == "twice"
    assert server.execute("workflows.twice(word='ab')")["value"] == "abab"
    assert server.ask("POST", "/api/workflows", {"name": "bad", "source": "def run(:", "description": ""}).status == 400
    assert server.ask("DELETE", "/api/workflows/twice").json is True
    assert server.ask("DELETE", "/api/workflows/twice").status == 404
    assert server.ask("GET", "/api/workflows/twice").status == 404


def test_artifacts(server):
    every = bytes(range(256)) * 9000
    saved = server.ask("PUT", "/api/artifacts/deep/er/all%20bytes.bin?description=d", every)
    assert saved.status == 200 and saved.json["name"] == "deep/er/all bytes.bin" and saved.json["size"] == len(every), saved
    loaded = server.ask("GET", "/api/artifacts/deep/er/all%20bytes.bin")
    assert loaded.body == every and loaded.headers["Content-Type"] == "application/octet-stream"
    assert server.execute("artifacts.load('deep/er/all bytes.bin') == bytes(range(256)) * 9000")["value"] is True
    for name, data in (("text", "grüße"), ("json", {"a": [1, None, 2.5]}), ("number", 3), ("none", None)):
        assert server.ask("POST", "/api/artifacts", {"name": name, "data": data, "metadata": {"k": 1}}).status == 200
        assert server.ask("GET", "/api/artifacts/" + name).json == data
        assert server.execute("artifacts.load(%r)" % name)["value"] == data
    assert server.ask("GET", "/api/artifacts/text", headers={"Accept": "application/octet-stream"}).body.decode() == "grüße"
    names = {item["name"] for item in server.ask("GET", "/api/artifacts").json}
    assert names == {"deep/er/all bytes.bin", "text", "json", "number", "none"}
    for name in names:
        assert server.ask("DELETE", "/api/artifacts/" + name.replace(" ", "%20")).status == 200
    for method in ("GET", "DELETE"):
        answer = server.ask(method, "/api/artifacts/text")
        assert answer.status == 404 and answer.json["detail"] == "Artifact 'text' not found", answer
    answer = server.ask("POST", "/api/artifacts", {"name": "../out", "data": 1})
    assert answer.status == 400, answer
    assert server.ask("GET", "/api/artifacts/..%2fout").status == 400
    assert server.ask("PUT", "/api/artifacts/dir/file", b"x").status == 200
    for name in ("dir", "dir/file/deeper"):
        answer = server.ask("PUT", "/api/artifacts/" + name, b"x")
        assert answer.status == 409 and answer.code == "exists", answer
    assert server.ask("DELETE", "/api/artifacts/dir/file").status == 200


def test_deps(server):
    assert server.ask("GET", "/api/deps").json == []
    assert server.ask("POST", "/api/deps/add", {"package": "-e ."}).status == 400
    assert server.ask("POST", "/api/deps/remove", {"package": "nothing"}).json == {
        "removed": [], "not_found": ["nothing"], "failed": [], "removed_from_config": False}
    answer = server.ask("POST", "/api/deps/add", {"package": ["six", "-e ."]})
    assert answer.status == 400 and "starts with -" in answer.json["detail"], answer
    assert server.ask("POST", "/api/deps/add", {"package": [1]}).status == 422
    assert server.ask("POST", "/install_deps", {"packages": []}).json["installed"] == []
    empty = {"installed": [], "already_present": [], "removed": [], "not_found": [], "failed": []}
    assert server.ask("POST", "/install_deps", {"packages": ["-e .", "a\0b"]}).json == {**empty, "failed": ["-e .", "a\0b"]}
    assert server.ask("POST", "/uninstall_deps", {"packages": ["-y", "nothing", ""]}).json == {**empty, "failed": ["-y"], "not_found": ["nothing", ""]}
    assert len(server.ask("POST", "/uninstall_deps", {"packages": [""] * 256}).json["not_found"]) == 256
    many = server.ask("POST", "/uninstall_deps", {"packages": [""] * 100000})
    assert many.status == 413 and many.code == "limit", many


def test_clients_of_confined_code_get_wheels_only(tmp_path):
    """Making a package runs its code, and here would do so outside."""
    sources = tmp_path / "wheels"
    sources.mkdir()
    backend = "open(%r, 'w').close()\ndef build_wheel(*_, **__): raise SystemExit(1)\n" % str(tmp_path / "ran")
    with tarfile.open(sources / "wc-odd-1.0.tar.gz", "w:gz") as archive:
        for name, text in (("PKG-INFO", "Metadata-Version: 2.1\nName: wc-odd\nVersion: 1.0\n"), ("odd.py", backend),
                           ("pyproject.toml", '[build-system]\nrequires = []\nbuild-backend = "odd"\nbackend-path = ["."]\n')):
            member = tarfile.TarInfo("wc-odd-1.0/" + name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    for executor in ("sandbox", "subprocess"):
        server = serving.Server("--executor", executor, "--storage", tmp_path / executor, "--wheel-dir", sources, pool=0,
                                env={"XDG_CACHE_HOME": str(tmp_path / "cache"),
                                     "PATH": os.pathsep.join([os.path.dirname(support.PYTHON), os.environ["PATH"]])}.items())
        answer = server.ask("POST", "/api/deps/add", {"package": "wc-odd"})
        assert answer.code == "install_failed" if answer.status != 200 else answer.json["failed"], answer
        assert (tmp_path / "ran").exists() is (executor == "subprocess"), (executor, answer)
        server.close()


# ---- /v1 ---------------------------------------------------------------------------------------------------


def test_sessions_belong_to_their_token(server):
    mine = server.session(token=ALICE)
    assert server.execute("1", session=mine, token=ALICE)["value"] == 1
    assert [s["session_id"] for s in server.ask("GET", "/v1/sessions", token=ALICE).json["sessions"]] == [mine]
    assert server.ask("GET", "/v1/sessions", token=BOB).json["sessions"] == []
    assert server.ask("GET", "/v1/sessions?all=true", token=BOB).json["sessions"] == []
    assert mine in {s["session_id"] for s in server.ask("GET", "/v1/sessions?all=true").json["sessions"]}
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/interrupt"), ("POST", "/reset"), ("GET", "/approvals")):
        assert server.ask(method, "/v1/sessions/" + mine + path, token=BOB).status == 404, path
    assert server.ask("POST", "/execute", {"code": "1"}, session=mine, token=BOB).status == 400
    assert server.ask("DELETE", "/v1/sessions/" + mine).status == 204  # an admin's


def test_reset_keeps_the_id(server):
    session = server.session()
    server.execute("x = 1", session=session)
    assert server.ask("POST", "/v1/sessions/%s/reset" % session).json["session_id"] == session
    assert server.execute("'x' in globals()", session=session)["value"] is False


def test_a_run_and_its_events(server):
    session = server.session()
    code = ("import sys\nfrom IPython.display import display, Image\nprint('out')\nprint('err', file=sys.stderr)\n"
            "class P:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\ndisplay(P())\n7")
    code = code.replace("from IPython.display import display, Image\n", "")
    events = server.events(session, code)
    assert [n for n, _, _ in events] == list(range(1, len(events) + 1))
    kinds = [kind for _, kind, _ in events]
    assert kinds[-1] == "result" and kinds.count("result") == 1 and "image" in kinds
    assert {"stream": "stdout", "text": "out\n"} in [data for _, _, data in events]
    assert events[-1][2]["value"] == 7 and events[-1][2]["stderr"] == "err\n"
    image, = [data for _, kind, data in events if kind == "image"]
    assert {"type": "image/png", "base64": "iVBORw0KGgo="} in image["parts"]


def test_events_are_taken_up_again(server):
    session = server.session()
    begun = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "for i in range(5): print(i, flush=True)\n'end'"})
    assert begun.status == 202 and begun.json["state"] in ("running", "waiting", "ended")
    path = "/v1/sessions/%s/runs/%d" % (session, begun.json["run_id"])
    whole = serving.parse_events(server.ask("GET", path + "/events").body.decode())
    for after in (0, 1, whole[-1][0] - 1, whole[-1][0]):
        rest = server.ask("GET", path + "/events", headers={"Last-Event-ID": str(after)})
        assert serving.parse_events(rest.body.decode()) == whole[after:]
    for bad in ("x", "-1", str(whole[-1][0] + 1), "1-1"):
        assert server.ask("GET", path + "/events", headers={"Last-Event-ID": bad}).status == 400
    ended = server.ask("GET", path).json
    assert ended["state"] == "ended" and ended["result"]["value"] == "end"
    assert server.ask("GET", path + "0").status == 404


def test_output_that_nobody_reads_is_bounded_and_the_gap_is_told(server):
    session = server.session()
    begun = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "for i in range(500): print('x' * 20000, flush=True)"})
    path = "/v1/sessions/%s/runs/%d" % (session, begun.json["run_id"])
    support.wait_until(lambda: server.ask("GET", path).json["state"] == "ended", "the end of the run")
    events = serving.parse_events(server.ask("GET", path + "/events").body.decode())
    assert events[0][1] == "gap" and events[1][0] == events[0][2]["missed"] + 1 and events[-1][1] == "result"
    assert sum(len(data.get("text", "")) for _, kind, data in events if kind == "chunk") < 5 << 20


def test_a_slow_reader_holds_the_code_and_loses_nothing(server):
    session = server.session()
    connection, response = server.open("POST", "/v1/sessions/%s/runs" % session, {"code": "for i in range(3000): print('%05d' % i * 2000)"},
                                       headers={"Accept": "text/event-stream"})
    assert server.ask("GET", "/v1/sessions/" + session).json["state"] == "busy"
    text = "".join(data["text"] for _, kind, data in serving.parse_events(response.read().decode()) if kind == "chunk")
    connection.close()
    assert text == "".join("%05d" % i * 2000 + "\n" for i in range(3000))


def test_a_connection_that_breaks_loses_nothing(server):
    session = server.session()
    connection, response = server.open("POST", "/v1/sessions/%s/runs" % session, {"code": "for i in range(1000): print('%05d' % i * 2000)"},
                                       headers={"Accept": "text/event-stream"})
    got = response.read(300000).decode()
    connection.close()
    had = serving.parse_events(got[:got.rindex("\n\n") + 2])
    rest = server.ask("GET", "/v1/sessions/%s/runs/1/events" % session, headers={"Last-Event-ID": str(had[-1][0])})
    every = had + serving.parse_events(rest.body.decode())
    assert [n for n, _, _ in every] == list(range(1, len(every) + 1))
    assert "".join(d["text"] for _, kind, d in every if kind == "chunk") == "".join("%05d" % i * 2000 + "\n" for i in range(1000))


def test_interrupt(server):
    session = server.session()
    begun = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "print('on', flush=True)\nwhile True: pass"}).json
    path = "/v1/sessions/%s/runs/%d" % (session, begun["run_id"])
    support.wait_until(lambda: server.ask("GET", path).json["last_event"], "output")
    assert server.ask("POST", "/v1/sessions/%s/interrupt" % session).status == 204
    done = support.wait_until(lambda: server.ask("GET", path).json["result"], "the result")
    assert done["error"]["code"] == "interrupted" and done["state"] == "kept"


def approvals_of(server, session):
    return server.ask("GET", "/v1/sessions/%s/approvals" % session).json["approvals"]


def test_approvals(server):
    session = server.session()
    code = "tools.echo.say(text='a'), tools.echo.say(text='b')"
    begun = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": code}).json
    first, = support.wait_until(lambda: approvals_of(server, session), "a request")
    assert first["tool"] == "echo" and first["args"] == {"text": "a"} and first["session_id"] == session
    assert server.ask("GET", "/v1/approvals", token=ALICE).json["approvals"] == []
    path = "/v1/sessions/%s/approvals/%d" % (session, first["id"])
    assert server.ask("POST", path, {"accept": True}, token=ALICE).code == "forbidden"
    assert server.ask("POST", path, {"accept": True, "args": {"text": 1, "no": 2}}).status == 400
    assert server.ask("POST", path, {"accept": True, "args": {"text": "edited"}}).status == 204
    assert server.ask("POST", path, {"accept": True}).status == 404
    second = support.wait_until(lambda: [a for a in approvals_of(server, session) if a["id"] != first["id"]], "the second")[0]
    listed, = server.ask("GET", "/v1/approvals").json["approvals"]
    assert listed.pop("waited_ms") >= second.pop("waited_ms") and listed == second
    assert server.ask("POST", "/v1/sessions/%s/approvals/%d" % (session, second["id"]), {"accept": False, "reason": "enough"}).status == 204
    path = "/v1/sessions/%s/runs/%d" % (session, begun["run_id"])
    events = serving.parse_events(server.ask("GET", path + "/events").body.decode())
    assert events[-1][2]["error"]["code"] == "rejected" and "enough" in events[-1][2]["error"]["message"]
    decisions = [data["decision"] for _, kind, data in events if kind == "approval_ended"]
    assert decisions == ["edited", "rejected"]
    assert [data["reason"] for _, kind, data in events if kind == "approval"] == ["it speaks", "it speaks"]


def test_two_clients_of_one_session_wait_for_each_other(server):
    session = server.session()
    server.execute("n = 0", session=session)
    threads = [threading.Thread(target=server.execute, args=("m = n\nimport time; time.sleep(0.01)\nn = m + 1", session)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.execute("n", session=session)["value"] == 8


def test_workspaces(server):
    one, two, none = (server.ask("POST", "/sessions", body).json["session_id"] for body in
                      ({"workspace_id": "w1"}, {"workspace_id": "w2"}, {}))
    server.execute("artifacts.save('who', 'one')", session=one)
    assert server.ask("GET", "/api/artifacts/who", session=one).json == "one"
    assert server.ask("GET", "/api/artifacts/who", session=two).status == 404
    assert server.ask("GET", "/api/artifacts/who", session=none).status == 404
    other = server.session(body={"workspace_id": "w1"}, token=BOB)
    assert server.execute("artifacts.load('who')", session=other, token=BOB)["value"] == "one"
    assert server.ask("GET", "/info", session=one).json["artifacts_path"].endswith("/workspaces/w1/artifacts")
    for bad in ("a/b", "", "x" * 129, "ä"):
        answer = server.ask("POST", "/sessions", {"workspace_id": bad})
        assert answer.status == 400 and answer.json["detail"].startswith("workspace_id must be 1-128"), answer


def test_a_token_for_one_workspace(server):
    session = server.session(token=TEAM)
    described = server.ask("GET", "/v1/sessions/" + session, token=TEAM).json
    assert described["workspace_id"] == "team-a"
    assert server.ask("POST", "/sessions", {"workspace_id": "other"}, token=TEAM).status == 403
    assert server.ask("POST", "/api/artifacts", {"name": "t", "data": "x"}, token=TEAM).status == 200
    assert server.execute("artifacts.load('t')", session=session, token=TEAM)["value"] == "x"
    assert server.ask("GET", "/api/artifacts/t").status == 404


def test_request_ids_and_the_log(server):
    answer = server.ask("GET", "/info", headers={"X-Request-ID": "mine.1"})
    assert answer.headers["X-Request-ID"] == "mine.1"
    odd = server.ask("GET", "/info", headers={"X-Request-ID": "a b\x07"}).headers["X-Request-ID"]
    assert odd != "a b\x07"
    support.wait_until(lambda: "mine.1" in server.text() and odd in server.text(), server.text)
    assert serving.TOKEN not in server.text()


def test_metrics(server):
    before = server.metric("runs_total")
    server.execute("1")
    assert server.metric("runs_total") == before + 1 and server.metric("sessions") >= 1


def test_keep_alive(server):
    connection = server.connect()
    session = server.session()
    for i in range(20):
        assert server.execute(str(i), session=session, connection=connection)["value"] == i
    sock = connection.sock
    assert sock is not None and server.ask("GET", "/health", connection=connection).status == 200 and connection.sock is sock
    connection.close()


# ---- other ways to listen --------------------------------------------------------------------------------------


def test_unix_socket_and_environment(tmp_path):
    path = tmp_path / "s"
    server = serving.Server("--executor", "subprocess", "--log", "json", listen="unix:%s" % path, tokens=None,
                            env={"CONTAINER_AUTH_TOKEN": "t0ken-of-the-tests", "DEFAULT_TIMEOUT": "0.3", "STORAGE_BASE_PATH": tmp_path / "st",
                                 "ALLOW_RUNTIME_DEPS": "false"}.items())
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert server.execute("artifacts.save('a', 1); 5")["value"] == 5
    assert server.execute("while True: pass")["error_code"] == "timeout"
    answer = server.ask("POST", "/api/deps/add", {"package": "six"})
    assert answer.status == 403 and answer.code == "disabled"
    server.close()
    assert not path.exists() and (tmp_path / "st" / "artifacts" / "a").exists()


def make_certificate(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", folder / "k",
                    "-out", folder / "c", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    return ssl.PEM_cert_to_DER_cert((folder / "c").read_text())


def test_https(tmp_path):
    first = make_certificate(tmp_path)
    server = serving.Server("--executor", "subprocess", "--max-body", "1M", "--tls-cert", tmp_path / "c", "--tls-key", tmp_path / "k")
    context = ssl.create_default_context(cafile=str(tmp_path / "c"))
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=support.DEADLINE)
    session = server.session(connection=connection)
    for i in range(3):
        assert server.execute(str(i), session=session, connection=connection)["value"] == i
    big = server.execute("'y' * 300000", session=session, connection=connection)
    assert len(big["value"]) == 300000

    # A body that is too large is refused while it comes, here too.
    with context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), timeout=support.DEADLINE), server_hostname="127.0.0.1") as sock:
        assert sock.getpeercert(True) == first
        sock.sendall(b"POST /execute HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nTransfer-Encoding: chunked\r\n\r\n" % serving.TOKEN.encode())
        for _ in range(17):
            sock.sendall(b"10000\r\n" + b"a" * 65536 + b"\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")

    def presented():
        with context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), timeout=support.DEADLINE), server_hostname="127.0.0.1") as sock:
            return sock.getpeercert(True)

    second = make_certificate(tmp_path)
    context.load_verify_locations(str(tmp_path / "c"))
    assert presented() == first
    server.process.send_signal(signal.SIGHUP)
    support.wait_until(lambda: "reloaded" in server.text(), server.text)
    assert presented() == second != first
    # A bad one is refused, and what was stays; the key of another certificate is bad too.
    key = (tmp_path / "k").read_text()
    make_certificate(tmp_path)
    (tmp_path / "k").write_text(key)
    for text in (None, "no certificate"):
        if text:
            (tmp_path / "c").write_text(text)
        before = server.text().count("not reloaded")
        server.process.send_signal(signal.SIGHUP)
        support.wait_until(lambda: server.text().count("not reloaded") > before, server.text)
        assert "certificate" in server.text().rsplit("not reloaded", 1)[1]
        assert presented() == second
    assert server.execute("1", session=session, connection=connection)["value"] == 1  # the first connection goes on
    connection.close()
    server.close()
    done = support.workcell("serve", "--check-config", "--auth-token-file", server_token(tmp_path), "--tls-cert", tmp_path / "c", "--tls-key",
                            tmp_path / "k", env=support.host_environment())
    assert done.status == support.EXIT["invalid"] and "certificate" in done.error_message


def server_token(folder):
    (folder / "token").write_text("t0ken-of-the-tests")
    return folder / "token"
