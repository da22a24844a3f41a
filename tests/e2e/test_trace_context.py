"""The trace of a caller goes on: to MCP servers and to servers of HTTP tools; spans of MCP on stdin and stdout. `remote`: tests/otel/test_sdk.py."""
import contextlib
import os
import sys

import pytest

import serving
import spaces
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import client as mcp_client  # noqa: E402
import peers  # noqa: E402
from test_serve_traces import PARENT, SPAN, TRACE, Receiver, attributes  # noqa: E402

NOT_RECORDED = {"traceparent": PARENT["traceparent"][:-1] + "0"}
WEB = """name: web
type: http
description: A server of the tests
base_url: %s
%s
endpoints:
  get: {path: /anything}
"""


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


@contextlib.contextmanager
def served(*flags, **options):
    server = serving.Server("--executor", "subprocess", *flags, **options)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def connect():
    yield from mcp_client.clients(mcp_client.Client)


def given(log):
    """The traceparent that the scripted MCP server got with each call."""
    return [message["params"].get("_meta", {}).get("traceparent") for message in peers.messages(log, "tools/call")]


# ---- MCP servers ----

def test_an_mcp_server_gets_the_span_of_its_request(tmp_path, receiver):
    peers.write_server(tmp_path, "s", **peers.scripted(log=tmp_path / "log"))
    with served("--base", str(tmp_path), "--otlp", receiver.url) as server:
        session = server.session()
        for _ in range(2):
            assert server.execute("tools.s.echo(text='x')", session=session, headers=PARENT)["error"] is None
        server.execute("tools.s.echo(text='x')", session=session, headers=NOT_RECORDED)
        server.execute("tools.s.echo(text='x')", session=session)
        support.wait_until(lambda: len([span for span in receiver.spans() if span["name"] == "mcp"]) == 3, lambda: "only %r" % receiver.spans())
    requests = [span for span in receiver.spans() if span["name"] == "mcp"]
    first, second, third, fourth = given(tmp_path / "log")
    assert [first, second, fourth] == ["00-%s-%s-01" % (span["traceId"], span["spanId"]) for span in requests]
    assert [span["traceId"] == TRACE for span in requests] == [True, True, False] and len({span["spanId"] for span in requests}) == 3
    assert third == NOT_RECORDED["traceparent"], "what is not recorded goes on as it came"


def test_without_a_receiver_the_clients_span_goes_on(tmp_path):
    peers.write_server(tmp_path, "s", **peers.scripted(log=tmp_path / "log"))
    with served("--base", str(tmp_path)) as server:
        session = server.session()
        for headers in (PARENT, {"traceparent": "nonsense"}, {}):
            assert server.execute("tools.s.echo(text='x')", session=session, headers=headers)["error"] is None
    assert given(tmp_path / "log") == [PARENT["traceparent"], None, None]


def test_code_cannot_choose_the_trace(tmp_path):
    """Arguments are arguments, whatever their names."""
    peers.write_server(tmp_path, "s", **peers.scripted(log=tmp_path / "log"))
    with served("--base", str(tmp_path)) as server:
        session = server.session()
        other = PARENT["traceparent"].replace("4", "5")
        server.execute("tools.s.args(_meta={'traceparent': %r}, traceparent=%r)" % (other, other), session=session, headers=PARENT)
    assert given(tmp_path / "log") == [PARENT["traceparent"]]


# ---- HTTP tools ----

def test_http_tools_get_the_span_of_their_call(tmp_path, receiver):
    with spaces.WebServer() as web:
        spaces.write_files(tmp_path, {"tools/web.yaml": WEB % (web.url, "")})
        with served("--base", str(tmp_path), "--otlp", receiver.url) as server:
            result = server.execute("tools.web.get()", session=server.session(), headers=PARENT)
            assert result["error"] is None, result
            tool = receiver.wait("tool")["tool"]
        headers = {key.lower(): value for key, value in web.requests[-1]["headers"].items()}
    assert tool["traceId"] == TRACE and headers["traceparent"] == "00-%s-%s-01" % (TRACE, tool["spanId"])


def test_a_definition_with_that_header_keeps_it(tmp_path):
    with spaces.WebServer() as web:
        spaces.write_files(tmp_path, {"tools/web.yaml": WEB % (web.url, "headers: {Traceparent: mine}")})
        with served("--base", str(tmp_path)) as server:
            server.execute("tools.web.get()", session=server.session(), headers=PARENT)
        assert [value for key, value in web.requests[-1]["headers"].items() if key.lower() == "traceparent"] == ["mine"]


# ---- MCP on stdin and stdout ----

def test_spans_and_links_of_an_mcp_server_on_stdin(tmp_path, receiver, connect):
    peers.write_server(tmp_path, "s", **peers.scripted(log=tmp_path / "log"))
    client = connect("--executor", "subprocess", "--base", tmp_path, "--otlp", receiver.url)
    done = client.result(client.start("run_code", {"code": "tools.s.echo(text='x')"}, _meta={"traceparent": PARENT["traceparent"]}))
    assert not done["isError"], done
    fork, = client.call("fork_session", n=1)["structuredContent"]["sessions"]
    assert not client.result(client.start("run_code", {"code": "2", "session": fork}))["isError"]
    assert not client.result(client.start("run_code", {"code": "3", "session": fork}))["isError"]
    client.close()
    spans = receiver.spans()  # the end of the program has sent the last ones
    cells = [span for span in spans if span["name"] == "cell"]
    call, = [span for span in spans if span["name"] == "mcp"]
    run = next(span for span in spans if span["spanId"] == cells[0]["parentSpanId"])
    assert (run["parentSpanId"], run["traceId"], attributes(cells[0])["workcell.executor"]) == (SPAN, TRACE, "subprocess")
    assert given(tmp_path / "log") == ["00-%s-%s-01" % (TRACE, call["spanId"])]
    assert cells[1]["links"] == [{"traceId": TRACE, "spanId": cells[0]["spanId"]}] and "links" not in cells[0] and "links" not in cells[2]


def test_a_receiver_for_other_programs_does_not_stop_an_mcp_server(connect):
    client = connect("--executor", "subprocess", env=support.host_environment(OTEL_EXPORTER_OTLP_ENDPOINT="localhost:4317"))
    assert client.call("run_code", code="6 * 7")["structuredContent"]["value"] == 42
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in client.stderr_text()
    done = support.workcell("mcp", "--executor", "subprocess", "--otlp", "localhost:4317")
    assert done.status == 2 and "begins with http://" in done.err, done
