"""Spans and metrics that `workcell serve --otlp` sends, as a receiver of OTLP/HTTP gets them."""
import contextlib
import hashlib
import http.server
import json
import os
import sys
import threading

import listening
import serving
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": "00-%s-%s-01" % (TRACE, SPAN)}


class Receiver:
    """Keeps what is posted."""

    def __init__(self, status=200):
        self.posts, self.status, outer = [], status, self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                outer.posts.append((self.path, dict(self.headers), json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                self.send_response(outer.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.url = "http://127.0.0.1:%d" % self.server.server_port

    def spans(self):
        return [span for path, _, body in self.posts if path == "/v1/traces" for resource in body["resourceSpans"] for scope in resource["scopeSpans"] for span in scope["spans"]]

    def wait(self, *names):
        support.wait_until(lambda: set(names) <= {span["name"] for span in self.spans()}, lambda: "only %r" % [span["name"] for span in self.spans()])
        return {span["name"]: span for span in self.spans()}

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@contextlib.contextmanager
def traced(*flags, receiver=None, **options):
    folder = support.temporary_folder("workcell-tests-traces-")
    os.makedirs(os.path.join(folder, "tools"))
    with open(os.path.join(folder, "tools", "echo.yaml"), "w", encoding="utf-8") as file:
        file.write(serving.ECHO_TOOL)
    receiver = receiver or Receiver()
    server = serving.Server("--executor", "subprocess", "--base", folder, "--otlp", receiver.url, *flags, **options)
    try:
        yield server, receiver
    finally:
        server.close()
        receiver.close()


def attributes(span):
    return {each["key"]: each["value"]["stringValue"] for each in span["attributes"]}


def test_a_run_belongs_to_the_clients_trace():
    with traced("--approve", "ask") as (server, receiver):
        session = server.session(headers=PARENT)
        code = "tools.echo.say(text='secret')"
        thread = threading.Thread(target=server.execute, args=(code,), kwargs={"session": session, "headers": PARENT})
        thread.start()
        waiting = support.wait_until(lambda: server.ask("GET", "/v1/approvals").json["approvals"], lambda: "it does not ask")
        server.ask("POST", "/v1/sessions/%s/approvals/%d" % (session, waiting[0]["id"]), {"accept": True})
        thread.join()
        found = receiver.wait("open", "run", "cell", "tool", "approval")
    assert {span["traceId"] for span in found.values()} == {TRACE}
    parents = {name: span.get("parentSpanId") for name, span in found.items()}
    assert parents == {"open": SPAN, "run": SPAN, "cell": found["run"]["spanId"], "tool": found["cell"]["spanId"], "approval": found["tool"]["spanId"]}
    for span in found.values():
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) and len(span["spanId"]) == 16
    assert attributes(found["cell"])["workcell.code.sha256"] == hashlib.sha256(code.encode()).hexdigest()
    assert attributes(found["tool"])["workcell.callable"] == "say" and attributes(found["approval"])["workcell.decision"] == "accepted"
    assert "secret" not in json.dumps([body for _, _, body in receiver.posts]), "neither code nor arguments leave the server"
    resource = receiver.posts[0][2]["resourceSpans"][0]["resource"]["attributes"]
    assert {"key": "service.name", "value": {"stringValue": "workcell"}} in resource


def test_without_a_parent_and_with_one_that_is_not_recorded():
    with traced("--otlp-code", env={"OTEL_EXPORTER_OTLP_HEADERS": "api-key=k1,other=two"}) as (server, receiver):
        session = server.session()
        server.execute("1 / 0", session=session)
        server.execute("2", session=session, headers={"traceparent": PARENT["traceparent"][:-1] + "0"})
        server.execute("3", session=session, headers={"traceparent": "nonsense"})
        support.wait_until(lambda: len([span for span in receiver.spans() if span["name"] == "cell"]) >= 2, lambda: "only %r" % receiver.spans())
        cells = [span for span in receiver.spans() if span["name"] == "cell"]
    assert [attributes(cell)["workcell.code"] for cell in cells] == ["1 / 0", "3"]
    assert len({cell["traceId"] for cell in cells}) == 2 and TRACE not in {cell["traceId"] for cell in cells}
    assert cells[0]["status"]["code"] == 2 and attributes(cells[0])["exception.type"] == "ZeroDivisionError" and cells[1]["status"] == {}
    assert receiver.posts[0][1]["api-key"] == "k1" and receiver.posts[0][1]["other"] == "two"


def test_a_fork_is_linked_to_its_source():
    with traced() as (server, receiver):
        session = server.session()
        server.execute("x = 1", session=session)
        fork = server.ask("POST", "/v1/sessions/%s/fork" % session).json["session_id"]
        server.execute("x", session=fork)
        support.wait_until(lambda: len([span for span in receiver.spans() if span["name"] == "cell"]) == 2, lambda: "only %r" % receiver.spans())
        first, second = [span for span in receiver.spans() if span["name"] == "cell"]
    assert second["links"] == [{"traceId": first["traceId"], "spanId": first["spanId"]}] and "links" not in first


def test_the_request_to_an_mcp_server_is_a_child_of_the_call(tmp_path):
    peers.write_server(tmp_path, "s", **peers.scripted())
    receiver = Receiver()
    server = serving.Server("--executor", "subprocess", "--base", str(tmp_path), "--otlp", receiver.url)
    try:
        session = server.session()
        result = server.execute("tools.s.echo(text='x')", session=session, headers=PARENT)
        assert result["error"] is None, result
        found = receiver.wait("run", "cell", "tool", "mcp")
    finally:
        server.close()
        receiver.close()
    assert {found[name]["traceId"] for name in ("run", "cell", "tool", "mcp")} == {TRACE}
    assert [found[name]["parentSpanId"] for name in ("run", "cell", "tool", "mcp")] == [SPAN] + [found[name]["spanId"] for name in ("run", "cell", "tool")]
    assert found["mcp"]["kind"] == 3 and attributes(found["mcp"])["rpc.method"] == "tools/call" and attributes(found["tool"])["workcell.adapter"] == "mcp"


def test_traceparent_of_mcp_clients(tmp_path):
    receiver = Receiver()
    server = listening.Listening("--executor", "subprocess", "--base", support.temporary_folder("workcell-tests-traces-"), "--otlp", receiver.url)
    try:
        session = server.session()
        assert server.value(session, "6 * 7", traceparent=PARENT["traceparent"]) == 42
        # What is too long or malformed is not a parent; the cell is a trace of its own.
        assert server.value(session, "7", traceparent="00-" + "a" * 1000) == 7
        assert server.value(session, "8", traceparent=PARENT["traceparent"][:-1] + "0") == 8  # not recorded
        support.wait_until(lambda: len([span for span in receiver.spans() if span["name"] == "run"]) == 2, lambda: "only %r" % receiver.spans())
        assert server.run(session, "1 / 0", traceparent=PARENT["traceparent"])[-1][1]["result"]["isError"]
        support.wait_until(lambda: len([span for span in receiver.spans() if span["name"] == "run"]) == 3, lambda: "only %r" % receiver.spans())
    finally:
        server.close()
        receiver.close()
    runs = [span for span in receiver.spans() if span["name"] == "run"]
    cells = [span for span in receiver.spans() if span["name"] == "cell"]
    assert [span["traceId"] == TRACE for span in runs] == [True, False, True] and runs[0]["parentSpanId"] == SPAN and "parentSpanId" not in runs[1]
    assert [cell["parentSpanId"] for cell in cells] == [run["spanId"] for run in runs]
    assert attributes(cells[0])["workcell.code.sha256"] == hashlib.sha256(b"6 * 7").hexdigest() and attributes(cells[2])["exception.type"] == "ZeroDivisionError"


def test_a_receiver_that_is_gone_holds_nothing():
    receiver = Receiver()
    receiver.close()
    gone = Receiver.__new__(Receiver)
    gone.url, gone.close = receiver.url, lambda: None
    with traced(receiver=gone) as (server, _):
        session = server.session()
        for _ in range(50):
            assert server.execute("6 * 7", session=session)["value"] == 42
        support.wait_until(lambda: b"workcell_spans_lost_total 0" not in server.ask("GET", "/metrics").body, lambda: "nothing is counted as lost")


def test_a_bad_address():
    done = support.workcell("serve", "--executor", "subprocess", "--listen", "127.0.0.1:0", "--auth-disabled", "--otlp", "ftp://x")
    assert done.status == 2 and "begins with http://" in done.err, done
