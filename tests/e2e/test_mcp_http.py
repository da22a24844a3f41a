"""MCP servers by HTTP: sessions, streams that are taken up again, redirects, and what goes wrong; then the real ones."""
import json
import os
import sys

import pytest

import spaces
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402
import web as mcp_web  # noqa: E402

SECRET = "s3cr3t-http-value"


@pytest.fixture
def web():
    with mcp_web.WebMCP() as server:
        yield server


@pytest.fixture
def connect(drive, tmp_path):
    def make(url, **keys):
        base = peers.write_server(tmp_path, "s", url=url, **keys)
        return drive("--base", base, env=support.host_environment(TEST_TOKEN=SECRET))
    return make


def fails(driver, code, kind="ToolCallError"):
    error = spaces.error(driver, code)
    assert error["type"] == kind, error
    return error["message"]


# ---- Streamable HTTP ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["json", "sse", "poll"])
def test_answers_in_every_form(web, connect, how):
    web.how = how
    driver = connect(web.url)
    assert driver.value("[tools.s.echo(text=str(n)) for n in range(5)]") == list("01234")
    assert driver.value("tools.s.structured()['whole'] == 2**80")
    assert fails(driver, "tools.s.fails()") == "Tool 's' failed: it did not work"
    assert "image/png" in driver.run("tools.s.image()")["mime"]


def test_headers_of_the_protocol(web, connect):
    driver = connect(web.url, headers={"Authorization": "Bearer ${TEST_TOKEN}", "X-Plain": "yes"})
    driver.value("tools.s.echo(text='x')")
    support.wait_until(web.gets, "the stream of what comes unasked is open")
    first, call = web.posts("initialize")[0]["headers"], web.posts("tools/call")[0]["headers"]
    assert "mcp-session-id" not in first and "mcp-protocol-version" not in first
    assert first["accept"] == "application/json, text/event-stream" and first["content-type"] == "application/json"
    assert call["mcp-session-id"] == "session-1" and call["mcp-protocol-version"] == "2025-11-25"
    get = web.gets()[0]["headers"]
    assert get["accept"] == "text/event-stream" and get["mcp-session-id"] == "session-1"
    for request in web.requests:
        assert request["headers"]["authorization"] == "Bearer " + SECRET and request["headers"]["x-plain"] == "yes"
        assert request["headers"]["user-agent"].startswith("workcell/")
    order = [r["body"]["method"] for r in web.requests if r["method"] == "POST"]
    assert order[:3] == ["server/discover", "initialize", "notifications/initialized"]
    probe = web.posts("server/discover")[0]["headers"]
    assert probe["mcp-protocol-version"] == "2026-07-28" and probe["mcp-method"] == "server/discover"
    driver.close()
    assert web.deleted == ["session-1"]
    assert SECRET not in driver_text(driver)


def driver_text(driver):
    return json.dumps(driver.events)


def test_older_revisions_get_no_version_header(connect):
    with mcp_web.WebMCP("version=2025-03-26", sessions=False) as web:
        driver = connect(web.url)
        assert driver.value("tools.s.echo(text='x')") == "x"
        headers = web.posts("tools/call")[0]["headers"]
        assert "mcp-protocol-version" not in headers and "mcp-session-id" not in headers
        driver.close()
        assert web.deleted == []


def test_a_session_that_ended_is_replaced_and_the_call_made_again(web, connect):
    driver = connect(web.url)
    assert driver.value("tools.s.echo(text='a')") == "a"
    web.forget_sessions()
    assert driver.value("tools.s.echo(text='b')") == "b"
    assert len(web.posts("initialize")) == 2
    assert web.posts("tools/call")[-1]["headers"]["mcp-session-id"] == "session-2"


def test_the_stream_of_what_comes_unasked(web, connect):
    driver = connect(web.url)
    driver.value("tools.s.echo(text='a')")
    support.wait_until(web.gets, "the stream is open")
    assert driver.value("tools.s.grow(name='fresh')") == "grown"
    support.wait_until(lambda: driver.value("hasattr(tools.s, 'fresh')"), "the change was heard of")
    web.end_streams()
    support.wait_until(lambda: len(web.gets()) == 2, "it is taken up again")
    assert web.gets()[1]["headers"]["last-event-id"] == "unasked-1"


def test_servers_without_that_stream(web, connect):
    web.no_get = True
    driver = connect(web.url)
    assert driver.value("[tools.s.echo(text='a'), tools.s.echo(text='b')]") == ["a", "b"]
    support.wait_until(web.gets, "it was asked for")
    assert driver.value("tools.s.echo(text='c')") == "c"
    assert len(web.gets()) == 1


def test_streams_are_taken_up_where_they_ended(web, connect):
    web.how, web.retry = "poll", 20
    driver = connect(web.url)
    web.how = "poll"
    assert driver.value("tools.s.slow(seconds=0.2)") == "after 0.2"
    resumed = [g for g in web.gets() if g["headers"].get("last-event-id", "").startswith("event-")]
    assert resumed and resumed[-1]["headers"]["mcp-session-id"] == "session-1"
    web.retry = 700
    assert driver.value("tools.s.echo(text='later')") == "later"
    call = [post for post in web.requests if post["method"] == "POST"][-1]
    assert web.gets()[-1]["at"] - call["at"] >= 0.69  # no sooner than it was asked to


def test_streams_that_end_with_nothing(web, connect):
    driver = connect(web.url)
    driver.value("tools.s.echo(text='a')")
    web.how = "cut"
    assert "without an answer" in fails(driver, "tools.s.echo(text='b')")
    web.how = "accepted"
    assert "did not answer it" in fails(driver, "tools.s.echo(text='c')")
    web.how = "wrong"
    assert "did not answer it" in fails(driver, "tools.s.echo(text='d')")
    web.how = "json"
    assert driver.value("tools.s.echo(text='e')") == "e"


@pytest.mark.parametrize("status, body, words", [
    (401, "who are you?", "HTTP 401: who are you?"),
    (403, '{"error": "not you"}', "HTTP 403: not you"),
    (500, '{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"broken"}}', "HTTP 500: broken"),
    (503, "", "HTTP 503"),
])
def test_statuses_that_are_no_success(web, connect, status, body, words):
    web.how = (status, body)
    driver = connect(web.url)
    assert words in fails(driver, "tools.s.echo(text='x')")
    web.how = "json"
    assert support.wait_until(lambda: driver.run("tools.s.echo(text='x')").get("value"), "it works again") == "x"
    web.how = (status, body)
    assert words in fails(driver, "tools.s.echo(text='x')")


def test_redirects_stay_with_the_host(web, connect, drive, tmp_path):
    driver = connect(web.root + "/old", transport="streamable_http")
    assert driver.value("[tools.s.echo(text='x'), tools.s.echo(text='y')]") == ["x", "y"]
    assert [r["path"] for r in web.requests if r["method"] == "POST"].count("/old") == 1
    base = peers.write_server(tmp_path / "away", "s", url=web.root + "/away", transport="http",
                              headers={"Authorization": "Bearer ${TEST_TOKEN}"})
    before = len(web.requests)
    driver = drive("--base", base, env=support.host_environment(TEST_TOKEN=SECRET))
    assert "HTTP 307" in fails(driver, "tools.s.echo(text='x')")
    assert [r["path"] for r in web.requests[before:]] == ["/away"]


def test_nobody_is_there(connect):
    driver = connect("http://127.0.0.1:%d/mcp" % peers.free_port())
    assert "the request to the server failed" in fails(driver, "tools.s.echo(text='x')")


def test_timeouts_and_interrupts_cancel(web, connect):
    driver = connect(web.url, timeout=0.4)
    driver.value("tools.s.echo(text='x')")
    web.how = "sse"
    assert "timed out after 0.4s" in fails(driver, "tools.s.never()", "ToolTimeoutError")
    support.wait_until(lambda: web.posts("notifications/cancelled"), "the server is told")
    call = web.posts("tools/call")[-1]["body"]
    assert web.posts("notifications/cancelled")[0]["body"]["params"]["requestId"] == call["id"]
    assert driver.value("tools.s.echo(text='y')") == "y"


def test_calls_overlap(web, connect):
    web.how = "sse"
    driver = connect(web.url)
    assert driver.value("""
import asyncio, time
tools.s.echo(text='x')
start = time.monotonic()
answers = await asyncio.gather(*(tools.s.slow.call_async(seconds=1) for _ in range(20)))
[len(answers), time.monotonic() - start < 19]""") == [20, True]


@pytest.mark.slow
def test_bodies_that_are_too_large(web, connect):
    driver = connect(web.url)
    for how in ("json", "sse"):
        web.how = how
        assert "a message" in fails(driver, "tools.s.huge(size=40000000)")
        assert driver.value("tools.s.echo(text='goes on')") == "goes on"


# ---- the older transport -----------------------------------------------------------------------------------


def test_sse(web, connect):
    driver = connect(web.sse_url, headers={"X-Token": "${TEST_TOKEN}"})
    assert driver.value("[tools.s.echo(text='x'), tools.s.echo(text='y')]") == ["x", "y"]
    assert {r["headers"]["x-token"] for r in web.requests} == {SECRET}
    assert driver.value("tools.s.grow(name='fresh')") == "grown"
    support.wait_until(lambda: driver.value("hasattr(tools.s, 'fresh')"), "the change was heard of")
    web.how = (500, "not now")
    assert "HTTP 500: not now" in fails(driver, "tools.s.echo(text='x')")
    web.how = "json"
    assert driver.value("tools.s.echo(text='z')") == "z"


def test_sse_connections_are_made_anew(web, connect):
    driver = connect(web.sse_url)
    assert driver.value("tools.s.echo(text='x')") == "x"
    web.end_streams()
    support.wait_until(lambda: driver.run("tools.s.echo(text='y')").get("value"), "there is a new connection")
    assert len(web.posts("initialize")) >= 2


def test_sse_endpoints_of_other_hosts_are_refused(web, connect):
    web.endpoint = "http://192.0.2.1/messages"
    driver = connect(web.sse_url)
    assert "not a URL on the same host" in fails(driver, "tools.s.echo(text='x')")
    assert web.posts("initialize") == []


def test_sse_that_is_none(web, connect):
    driver = connect(web.root + "/mcp", transport="sse")
    assert "HTTP 404" in fails(driver, "tools.s.echo(text='x')")


def test_the_older_transport_is_tried_where_nobody_said_which(web, connect):
    driver = connect(web.root + "/mcp/older", headers={"X-Token": "${TEST_TOKEN}"})
    assert driver.value("[tools.s.echo(text='x'), tools.s.echo(text='y')]") == ["x", "y"]
    first = [(r["method"], (r["body"] or {}).get("method")) for r in web.requests if r["path"] == "/mcp/older"]
    assert first == [("POST", "server/discover"), ("POST", "initialize"), ("GET", None)]
    assert {r["headers"]["x-token"] for r in web.requests} == {SECRET}
    # The verdict is kept.
    web.end_streams()
    support.wait_until(lambda: driver.run("tools.s.echo(text='z')").get("value"), "there is a new connection")
    assert [r["method"] for r in web.requests if r["path"] == "/mcp/older"] == ["POST", "POST", "GET", "GET"]


def test_what_is_there_by_neither_transport(web, connect):
    """The first refusal is the reason; a failed start forgets the verdict."""
    web.no_get = True
    driver = connect(web.root + "/mcp/older")
    assert "HTTP 405" in fails(driver, "tools.s.echo(text='x')") and len(web.gets()) == 1
    web.no_get = False
    support.wait_until(lambda: driver.run("tools.s.echo(text='z')").get("value"), "it is started again")
    assert [r["method"] for r in web.requests if r["path"] == "/mcp/older"][:3] == ["POST", "POST", "GET"]


@pytest.mark.parametrize("keys, how", [({"transport": "streamable_http"}, (405, "no")), ({}, (401, "no")), ({}, (403, "no")), ({}, (429, "later")),
                                       ({}, (500, "broken"))])
def test_where_the_older_transport_is_not_tried(web, connect, keys, how):
    web.how = how
    driver = connect(web.url, **keys)
    assert "HTTP %d" % how[0] in fails(driver, "tools.s.echo(text='x')")
    assert not web.gets()


# ---- the real ones -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["streamableHttp", "sse"])
def test_server_everything(connect, kind):
    with peers.Listening(kind) as server:
        driver = connect(server.url)
        check_everything(driver)
        assert driver.value("""
import asyncio
answers = await asyncio.gather(*(tools.s.trigger_long_running_operation.call_async(duration=1, steps=2) for _ in range(10)))
[len(answers), answers[0]]""") == [10, "Long running operation completed. Duration: 1 seconds, Steps: 2."]


def test_server_everything_by_the_older_transport_without_a_word_about_it(connect):
    """The TypeScript SDK's server of that revision; the address alone says Streamable HTTP."""
    with peers.Listening("sse") as server:
        driver = connect(server.url + "?/mcp")
        assert driver.value("tools.s.get_sum(a=2, b=3)") == "The sum of 2 and 3 is 5."


def test_server_everything_that_was_restarted(connect):
    with peers.Listening("streamableHttp") as server:
        driver = connect(server.url)
        assert driver.value("tools.s.echo(message='a')") == "Echo: a"
        server.stop()
        assert "the request to the server failed" in fails(driver, "tools.s.echo(message='b')")
        server.start()
        assert driver.value("tools.s.echo(message='c')") == "Echo: c"


def check_everything(driver):
    assert driver.value("tools.s.echo(message='h\\u00e9')") == "Echo: h\u00e9"
    assert driver.value("tools.s.get_sum(a=2, b=3)") == "The sum of 2 and 3 is 5."
    assert set(driver.value("tools.s.get_structured_content(location='Chicago')")) == {"temperature", "conditions", "humidity"}
    assert driver.value("[type(p).__name__ for p in tools.s.get_tiny_image()]") == ["str", "ToolImage", "str"]
    assert driver.value("tools.s.get_tiny_image().images[0][:4] == b'\\x89PNG'")
    assert driver.value("[p.get('type') for p in tools.s.get_resource_links(count=2)[1:]]") == ["resource_link"] * 2
    assert driver.value("type(tools.s.get_resource_reference(resourceType='Blob', resourceId=1)[1]).__name__") == "ToolBytes"
    assert "must be one of" in fails(driver, "tools.s.get_annotated_message(messageType='loud')")
