"""Spans and metrics as the OpenTelemetry collector understands them: it takes them by OTLP/HTTP and sends them on, as JSON of its own."""
import contextlib
import json
import os
import subprocess
import sys
import threading

import pytest

import serving
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "e2e"))
from test_serve_traces import PARENT, SPAN, TRACE, Receiver, attributes  # noqa: E402

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402

COLLECTOR = os.path.join(support.ROOT, "build", "otel-collector")
pytestmark = pytest.mark.skipif(not os.path.exists(COLLECTOR), reason="needs build/otel-collector: scripts/setup.sh otel")
CONFIG = """
receivers:
  otlp: {protocols: {http: {endpoint: "127.0.0.1:%d"}}}
exporters:
  otlphttp: {endpoint: "%s", encoding: json, compression: none}
service:
  telemetry: {metrics: {level: none}, logs: {level: warn}}
  pipelines:
    traces: {receivers: [otlp], exporters: [otlphttp]}
    metrics: {receivers: [otlp], exporters: [otlphttp]}
"""


class Collector:
    """One process; what it has understood arrives at `sink`. What it refused is in its log."""

    def __init__(self, folder):
        self.sink, port = Receiver(), serving.free_port()
        path = os.path.join(folder, "collector.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(CONFIG % (port, self.sink.url))
        self.log = open(os.path.join(folder, "log"), "w+b")
        self.process = subprocess.Popen([COLLECTOR, "--config", "file:" + path], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.url = "http://127.0.0.1:%d" % port
        support.wait_until(lambda: serving_at(port) or self.process.poll() is not None, lambda: "the collector does not listen: %s" % self.said())
        assert self.process.poll() is None, self.said()

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def metrics(self):
        return {metric["name"]: metric for path, _, body in self.sink.posts if path == "/v1/metrics" for resource in body["resourceMetrics"]
                for scope in resource["scopeMetrics"] for metric in scope["metrics"]}

    def close(self):
        self.process.terminate()
        self.process.wait(support.DEADLINE)
        self.sink.close()
        self.log.close()


def serving_at(port):
    import socket
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.fixture
def collector(tmp_path):
    made = Collector(str(tmp_path))
    try:
        yield made
    finally:
        made.close()


def test_spans_of_a_run(collector, tmp_path):
    base = tmp_path / "base"
    peers.write_server(base, "s", **peers.scripted())
    (base / "tools" / "echo.yaml").write_text(serving.ECHO_TOOL)
    server = serving.Server("--executor", "subprocess", "--base", str(base), "--otlp", collector.url, "--approve", "ask")
    try:
        session = server.session(headers=PARENT)
        code = "tools.echo.say(text='x')\ntools.s.echo(text='y')"
        thread = threading.Thread(target=server.execute, args=(code,), kwargs={"session": session, "headers": PARENT})
        thread.start()
        for _ in range(2):
            waiting = support.wait_until(lambda: server.ask("GET", "/v1/approvals").json["approvals"], lambda: "it does not ask")
            server.ask("POST", "/v1/sessions/%s/approvals/%d" % (session, waiting[0]["id"]), {"accept": True})
            support.wait_until(lambda: not any(each["id"] == waiting[0]["id"] for each in server.ask("GET", "/v1/approvals").json["approvals"]), lambda: "it goes on asking")
        thread.join()
        fork = server.ask("POST", "/v1/sessions/%s/fork" % session, {}).json["session_id"]
        server.execute("1", session=fork)
        found = collector.sink.wait("open", "run", "cell", "tool", "mcp", "approval")
        support.wait_until(lambda: any(span.get("links") for span in collector.sink.spans()), lambda: "no link: %s" % collector.said())
    finally:
        server.close()
    spans = collector.sink.spans()
    traced = {span["name"]: span for span in spans if span["traceId"] == TRACE and attributes(span).get("workcell.callable") != "say"}
    assert traced["run"]["parentSpanId"] == traced["open"]["parentSpanId"] == SPAN
    assert traced["cell"]["parentSpanId"] == traced["run"]["spanId"] and traced["tool"]["parentSpanId"] == traced["cell"]["spanId"]
    assert traced["mcp"]["parentSpanId"] == traced["approval"]["parentSpanId"] == traced["tool"]["spanId"]
    linked = [span for span in spans if span.get("links")]
    assert [(link["traceId"], link["spanId"]) for link in linked[0]["links"]] == [(TRACE, traced["cell"]["spanId"])]
    resource = {each["key"]: each["value"]["stringValue"] for path, _, body in collector.sink.posts if path == "/v1/traces" for one in body["resourceSpans"] for each in one["resource"]["attributes"]}
    assert resource["service.name"] == "workcell"
    assert found and "error" not in collector.said().lower(), collector.said()


def test_metrics(collector):
    server = serving.Server("--executor", "subprocess", "--otlp", collector.url)
    try:
        session = server.session()
        server.execute("1", session=session)
        support.wait_until(lambda: "workcell_runs_total" in collector.metrics(), lambda: "only %r, %s" % (list(collector.metrics()), collector.said()))
    finally:
        server.close()
    total = collector.metrics()["workcell_runs_total"]["sum"]
    assert total["isMonotonic"] is True and total["aggregationTemporality"] == 2 and len(total["dataPoints"]) == 1
    assert "gauge" in collector.metrics()["workcell_sessions"]
    assert "error" not in collector.said().lower(), collector.said()


def test_odd_texts_arrive_whole(collector, tmp_path):
    """Names and types of the agent's, with quotes, line ends and characters outside of the first plane."""
    server = serving.Server("--executor", "subprocess", "--otlp", collector.url, "--otlp-code")
    code = "class Odd(Exception): pass\nOdd.__name__ = Odd.__qualname__ = 'O\"d\\\\d\\n\U0001f600'\nraise Odd('\u202e')"
    try:
        session = server.session()
        server.execute(code, session=session)
        support.wait_until(lambda: any(span["name"] == "cell" for span in collector.sink.spans()), lambda: collector.said())
    finally:
        server.close()
    cell = next(span for span in collector.sink.spans() if span["name"] == "cell")
    assert attributes(cell)["workcell.code"] == code
    assert cell["status"]["code"] == 2 and json.dumps(attributes(cell)["exception.type"])
