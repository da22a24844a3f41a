"""Quotas of tokens, sessions that /execute makes, and metrics."""
import re
import time

import pytest

import serving
import support

TOKENS = serving.TOKENS + """
  - {name: two, token: t0ken-of-two-sessions, quota: {sessions: 2}}
  - {name: one, token: t0ken-of-one-run, quota: {runs: 1}}
  - {name: cpu, token: t0ken-of-some-cpu, quota: {cpu_seconds: 2}}
  - {name: disk, token: t0ken-of-some-disk, quota: {disk: 5M}}
  - {name: none, token: t0ken-of-nothing, quota: {cpu_seconds: 0}}
  - {name: prometheus, token: t0ken-of-metrics, scopes: [metrics]}
"""


@pytest.fixture(scope="module")
def server():
    with serving.shared(serving.Server("--executor", "subprocess", tokens=TOKENS)) as shared:
        yield shared


def refused(answer, words):
    assert (answer.status, answer.code) == (429, "busy") and words in answer.json["detail"], answer
    assert int(answer.headers["Retry-After"]) >= 1
    return True


def test_sessions(server):
    token = "t0ken-of-two-sessions"
    first, second = server.session(token=token), server.session(token=token)
    assert refused(server.ask("POST", "/v1/sessions", token=token), '"two" has as many sessions as it may have (quota 2)')
    assert refused(server.ask("POST", "/execute", {"code": "1"}, token=token), "sessions")
    server.session(), "others go on"
    server.ask("DELETE", "/v1/sessions/" + first, token=token)
    support.wait_until(lambda: server.ask("POST", "/v1/sessions", token=token).status == 201, server.text)
    del second


def test_runs(server):
    token = "t0ken-of-one-run"
    first, second = server.session(token=token), server.session(token=token)
    run = {"code": "import time; time.sleep(60)"}
    assert server.ask("POST", "/v1/sessions/%s/runs" % first, run, token=token).status == 202
    for session in (first, second):
        assert refused(server.ask("POST", "/v1/sessions/%s/runs" % session, run, token=token), "running and waiting")
        assert refused(server.ask("POST", "/execute", {"code": "1"}, token=token, session=session), "running and waiting")
    server.ask("POST", "/v1/sessions/%s/interrupt" % first, token=token)
    support.wait_until(lambda: server.ask("POST", "/execute", {"code": "1"}, token=token, session=second).status == 200, server.text)


def test_cpu_seconds(server):
    token = "t0ken-of-some-cpu"
    session, idle = server.session(token=token), server.session(token=token)
    begun = time.monotonic()
    result = server.execute("while True: pass", session=session, token=token)
    assert result["error_code"] == "limit_exceeded" and result["state"] == "kept", result
    assert time.monotonic() - begun < 60
    answer = server.ask("POST", "/execute", {"code": "1"}, token=token, session=idle)
    assert refused(answer, "has used up its CPU seconds (quota 2)")
    assert 0 < int(answer.headers["Retry-After"]) < 3600  # half a minute for each hundredth of a second that it was over
    assert 'a cell of "cpu" is stopped: cpu_seconds is over its quota (2)' in server.text(), server.text()
    assert server.metric("quota_stops_total") >= 1 and server.metric("quota_refusals_total") >= 1
    assert server.execute("1")["value"] == 1


def test_cpu_in_the_background_ends_the_session(server):
    token = "t0ken-of-nothing"
    session = server.session(token=token)
    assert refused(server.ask("POST", "/execute", {"code": "1"}, token=token, session=session), "CPU seconds (quota 0)")


def test_cpu_of_threads_between_cells_counts(tmp_path):
    tokens = serving.TOKENS + "  - {name: cpu, token: t0ken-of-some-cpu, quota: {cpu_seconds: 3}}\n"
    server = serving.Server("--executor", "subprocess", tokens=tokens)
    session = server.session(token="t0ken-of-some-cpu")
    code = "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()"
    assert server.execute(code, session=session, token="t0ken-of-some-cpu")["error"] is None
    support.wait_until(lambda: 'a session of "cpu" is stopped' in server.text(), server.text)
    support.wait_until(lambda: server.ask("GET", "/v1/sessions?all=true").json["sessions"] == [], server.text)
    server.close()


def test_disk(server):
    token = "t0ken-of-some-disk"
    session = server.session(token=token)
    code = "import time\nopen('big', 'wb').write(b'x' * (8 << 20))\ntime.sleep(60)"
    result = server.execute(code, session=session, token=token)
    assert result["error_code"] == "limit_exceeded", result
    assert refused(server.ask("POST", "/execute", {"code": "1"}, token=token, session=session), "too many bytes")
    server.ask("DELETE", "/v1/sessions/" + session, token=token)
    support.wait_until(lambda: server.ask("POST", "/execute", {"code": "1"}, token=token).status == 200, server.text)


@pytest.mark.parametrize("quota, words", [
    ("{sessions: -1}", "sessions must be a whole number from 0"), ("{sessions: many}", "sessions must be"),
    ("{disk: 5X}", "disk must be a whole number of bytes"), ("{disk: 99999999999999G}", "disk must be"), ("{cpu: 1}", "cpu"),
    ("{runs: [1]}", "runs must be"), ("5", "quota")])
def test_wrong_quotas_are_named(quota, words):
    tokens = "tokens:\n  - {name: x, token: 0123456789abcdef, quota: %s}\n" % quota
    done = support.workcell("serve", "--check-config", "--auth-token-file", serving.token_file(tokens))
    assert done.status == 2 and words in done.err and ":2: " in done.err, done


def test_an_mcp_server_refuses_quotas():
    tokens = "tokens:\n  - {name: x, token: 0123456789abcdef, quota: {sessions: 1}}\n"
    done = support.workcell("mcp", "--listen", "127.0.0.1:0", "--python", support.bare_python(), "--auth-token-file",
                            serving.token_file(tokens))
    assert done.status == 2 and 'the token "x" has a quota, which only the session server keeps' in done.err, done


def test_a_changed_quota_holds_at_once():
    tokens = serving.TOKENS + "  - {name: one, token: t0ken-of-one-run%s}\n"
    server = serving.Server("--executor", "subprocess", tokens=tokens % "")
    session = server.session(token="t0ken-of-one-run")
    with open(server.tokens, "w", encoding="utf-8") as file:
        file.write(tokens % ", quota: {runs: 0}")
    support.wait_until(lambda: server.ask("POST", "/execute", {"code": "1"}, token="t0ken-of-one-run", session=session).status == 429,
                       server.text)
    server.close()


# ---- sessions of /execute ----

def test_a_session_of_execute_ends_soon_unless_it_is_named():
    server = serving.Server("--executor", "subprocess", "--execute-idle", "1")
    forgotten, named = server.execute("1")["session_id"], server.execute("x = 1")["session_id"]
    assert server.execute("x", session=named)["value"] == 1
    support.wait_until(lambda: "session %s of" % forgotten in server.text(), server.text)
    assert server.ask("GET", "/v1/sessions/" + forgotten).status == 410
    assert server.execute("x", session=named)["value"] == 1, "it was named: --session-idle holds"
    server.close()


# ---- metrics ----

def test_metrics_have_a_scope_of_their_own(server):
    assert server.ask("GET", "/metrics", token="t0ken-of-metrics").status == 200
    assert server.ask("GET", "/metrics").status == 200, "an admin's is in it"
    for path in ("/v1/sessions", "/info", "/openapi.json"):
        assert server.ask("GET", path, token="t0ken-of-metrics").status == 403
    for token in ("t0ken-of-alice", "t0ken-of-the-reader"):
        assert server.ask("GET", "/metrics", token=token).status == 403


def test_metrics_of_everything(server):
    session = server.session()
    server.execute("x = b'x' * (50 << 20)", session=session)
    text = server.ask("GET", "/metrics").body.decode()
    for name in ("process_open_fds", "process_max_fds", "process_resident_memory_bytes", "process_start_time_seconds"):
        assert float(re.search(r"^%s (\S+)$" % name, text, re.M).group(1)) > 0
    assert server.metric("kernels_memory_bytes") > 50 << 20 and server.metric("zygotes") == 1
    support.wait_until(lambda: server.metric("pool_kernels") == 1, text)
    assert server.metric("run_seconds_count") == server.metric("runs_total") >= 1
    assert re.search(r'^workcell_run_seconds_bucket\{le="\+Inf"\} %d$' % server.metric("run_seconds_count"), server.ask(
        "GET", "/metrics").body.decode(), re.M)
    assert re.search(r'^workcell_token_sessions\{token="all"\} \d+$', text, re.M)
    for line in text.splitlines():
        assert re.match(r"# (HELP|TYPE) \w+ .+$|\w+(\{\w+=\"[^\"]*\"\})? [-+0-9.e]+$", line), line


def test_tool_calls_and_approvals_are_counted(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "echo.yaml").write_text(
        "name: echo\ntype: cli\ncommand: echo\nschema: {positional: [{name: text, type: string, required: true}]}\n"
        "recipes: {say: {description: Says it., params: {text: {}}}}\n")
    server = serving.Server("--base", tmp_path, "--executor", "subprocess", "--approve", "ask")
    session = server.session()
    run = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "tools.echo.say(text='x')"}).json["run_id"]
    support.wait_until(lambda: server.metric("approvals_waiting") == 1, server.text)
    pending, = server.ask("GET", "/v1/sessions/%s/approvals" % session).json["approvals"]
    server.ask("POST", "/v1/sessions/%s/approvals/%d" % (session, pending["id"]), {"accept": True})
    support.wait_until(lambda: server.ask("GET", "/v1/sessions/%s/runs/%d" % (session, run)).json["state"] == "ended", server.text)
    assert server.metric("approvals_total") == server.metric("approvals_accepted_total") == server.metric("tool_calls_total") == 1
    assert server.metric("approvals_waiting") == server.metric("tool_calls_failed_total") == 0
    server.close()
