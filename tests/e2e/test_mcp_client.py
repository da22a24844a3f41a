"""MCP servers as tools: a scripted one for what honest ones cannot show, and the real ones from npm."""
import json
import os
import sys

import pytest

import spaces
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402

SECRET = "s3cr3t-mcp-value"


@pytest.fixture
def serve(drive, tmp_path):
    """A driver with one scripted server, `s`; its messages are in tmp_path/log."""
    def make(*behaviours, **keys):
        base = peers.write_server(tmp_path, "s", **peers.scripted(*behaviours, log=tmp_path / "log", **keys))
        return drive("--base", base, env=support.host_environment(TEST_TOKEN=SECRET))
    return make


def fails(driver, code, kind="ToolCallError", **options):
    error = spaces.error(driver, code, **options)
    assert error["type"] == kind, error
    return error["message"]


def code_of(driver, call):
    """The word of the code that a call fails with."""
    return driver.value("""
try:
    %s
    found = None
except CodeModeError as error:
    found = error.code
found""" % call)


def server_pid(driver):
    return driver.value("tools.s.pid()")["pid"]


# ---- looking -----------------------------------------------------------------------------------------------


def test_servers_are_looked_up_in_the_hosts_path(drive, tmp_path):
    base = spaces.write_files(tmp_path / "base", {"tools/s.yaml": "name: s\ntype: mcp\ncommand: my-server\n",
                                                  "tools/gone.yaml": "name: gone\ntype: mcp\ncommand: no-server\n",
                                                  "tools/away.yaml": "name: away\ntype: mcp\ncommand: my-server\ncwd: /no/folder\n"})
    folder = tmp_path / "bin"
    spaces.make_script(folder / "my-server", SMALL_SERVER)
    driver = drive("--base", base, env=support.host_environment(PATH="%s:/usr/bin:/bin" % folder, HOME=str(tmp_path)))
    assert driver.value("tools.s.env(name='HOME')") == str(tmp_path)
    assert driver.value("tools.s.env(name='PATH')") == "%s:/usr/bin:/bin" % folder
    assert "command 'no-server' not found in PATH (%s:" % folder in driver.run("tools.gone.x()")["error"]["message"]
    assert "working directory" in driver.run("tools.away.x()")["error"]["message"]


SMALL_SERVER = """\
import json, os, sys
for line in sys.stdin:
    ask = json.loads(line)
    if "id" not in ask:
        continue
    if ask["method"] == "initialize":
        out = {"protocolVersion": ask["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif ask["method"] == "tools/list":
        out = {"tools": [{"name": "env", "inputSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}]}
    else:
        out = {"content": [{"type": "text", "text": os.environ.get(ask["params"]["arguments"]["name"], "")}]}
    print(json.dumps({"jsonrpc": "2.0", "id": ask["id"], "result": out}), flush=True)
"""


def test_callables_come_from_the_server(serve):
    driver = serve()
    tool = driver.value("tools.list()")[0]
    assert (tool["name"], tool["tags"]) == ("s", [])
    assert tool["description"].startswith("echo: Says it again; args: ")
    echo = tool["callables"][0]
    assert (echo["name"], echo["description"]) == ("echo", "Says it again")
    assert echo["parameters"] == [{"name": "text", "type": "string", "required": True, "default": None, "description": ""}]
    assert [t["name"] for t in driver.value("tools.search('somebody else first')")] == ["s"]
    assert driver.value("tools.s.echo.signature()") == "echo(text: str)"
    assert driver.value("tools.s.describe()")["grow"] == "Gets a new tool"
    assert "Says it again" in driver.run("help(tools.s.echo)")["stdout"]
    assert "dash_ed_name" in driver.value("dir(tools.s)")
    assert driver.value("str(__import__('inspect').signature(tools.s.typed))").startswith("(*, n: int, level")


def test_pages_are_read_to_the_end(serve):
    names = [c["name"] for c in serve("pages=3").value("tools.s.list()")]
    assert len(names) > 30 and names[0] == "echo" and names[-1] == "dash-ed.name"


def test_a_list_that_does_not_end_is_cut(serve):
    driver = serve("endless", "pages=5")
    assert driver.value("len(tools.s.list())") > 0
    assert "does not end" in driver.value("tools.list()")[0]["problem"]


def test_too_many_tools_are_cut(serve):
    driver = serve("many=600", "pages=50")
    assert driver.value("len(tools.s.list())") == 512
    assert "more than 512 tools" in driver.value("tools.list()")[0]["problem"]


def test_hostile_descriptions_are_data(serve):
    driver = serve("hostile")
    tool = driver.value("tools.list()")[0]
    assert [c["name"] for c in tool["callables"]] == ["fine", "__class__", "import", "no_schema", "1digit"]
    assert [c.get("alias") for c in tool["callables"]] == [None, "class__", "import_", None, "tool_1digit"]
    assert len(tool["callables"][1]["description"]) == 4096
    assert "skipped" in tool["problem"]
    assert [p["name"] for p in tool["callables"][2]["parameters"]] == ["", "ok"]
    assert [p["name"] for p in tool["callables"][4]["parameters"]] == []


def test_a_server_without_tools(serve):
    driver = serve("no_tools")
    assert driver.value("tools.list()")[0]["callables"] == []
    assert spaces.error(driver, "tools.s.x")["type"] == "AttributeError"


def test_changed_lists_count_at_once(serve):
    driver = serve()
    assert spaces.error(driver, "tools.s.fresh()")["type"] == "AttributeError"
    assert driver.value("tools.s.grow(name='fresh')") == "grown"
    support.wait_until(lambda: driver.value("hasattr(tools.s, 'fresh')"), "the new tool is known")
    assert driver.value("tools.s.fresh()") == "I am fresh"


def test_one_server_that_fails_keeps_no_other_tool_from_working(drive, tmp_path):
    base = spaces.probe_base(tmp_path)
    peers.write_server(base, "good", **peers.scripted())
    peers.write_server(base, "bad", **peers.scripted("dies"))
    peers.write_server(base, "none", command="no-such-program-anywhere")
    peers.write_server(base, "mute", start_timeout=600, **peers.scripted("silent"))
    driver = drive("--base", base)
    assert json.loads(driver.value("tools.probe.go(a='x')"))["argv"][-1] == "x"  # no server was waited for
    tools = {tool["name"]: tool for tool in driver.value("tools.list()")}
    assert sorted(tools) == ["bad", "good", "mute", "none", "probe"]
    assert len(tools["good"]["callables"]) > 30 and "problem" not in tools["good"]
    assert "exit status 7" in tools["bad"]["problem"] and "cannot start: no such thing" in tools["bad"]["problem"]
    assert "'no-such-program-anywhere' not found" in tools["none"]["problem"]
    assert tools["mute"]["callables"] == [] and "is still starting" in tools["mute"]["problem"]
    assert driver.value("tools.good.echo(text='works')") == "works"
    assert "exit status 7" in fails(driver, "tools.bad.echo(text='x')")
    for how in ("list", "describe", "signature"):
        assert "exit status 7" in fails(driver, "tools.bad.%s()" % how) and "'no-such-program-anywhere' not found" in fails(driver, "tools.none.%s()" % how)


# ---- arguments ---------------------------------------------------------------------------------------------


def test_names_reach_the_server_as_it_spelt_them(serve):
    driver = serve()
    assert driver.value("tools.s.odd(**{'my-field': 'a', 'class': 'b', '@id': 1, '1st': 0.5})") == {
        "my-field": "a", "class": "b", "@id": 1, "1st": 0.5}
    names = {p["name"]: p.get("alias") for p in
             {c["name"]: c for c in driver.value("tools.s.list()")}["odd"]["parameters"]}
    assert names == {"my-field": "my_field_2", "class": "class_", "@id": "_id", "1st": "_1st", "my_field": None, "from": "from_"}
    assert driver.value("tools.s.odd(my_field_2='a', class_='b', _id=1, _1st=2, my_field=3, from_='there')") == {
        "my-field": "a", "class": "b", "@id": 1, "1st": 2, "my_field": 3, "from": "there"}
    assert driver.value("tools.s.odd.signature()").startswith("odd(my_field_2: str, class_: str, ")


def test_defaults_are_the_servers_and_none_is_sent_where_it_is_a_value(serve):
    driver = serve()
    assert driver.value("tools.s.typed(n=1, level='low', maybe=None)") == {"n": 1, "level": "low", "maybe": None}
    assert driver.value("tools.s.odd(**{'my-field': 'a', 'class': 'b', 'from_': None})") == {
        "my-field": "a", "class": "b", "from": None}
    assert driver.value("tools.s.odd(**{'my-field': 'a', 'class': 'b', 'my_field': None})") == {"my-field": "a", "class": "b"}
    assert "size: int = 7" in driver.value("tools.s.typed.signature()")


def test_wrong_arguments_do_not_reach_the_server(serve, tmp_path):
    driver = serve()
    assert "must be an integer" in fails(driver, "tools.s.typed(n='1', level='low', maybe=1)")
    assert "must be one of" in fails(driver, "tools.s.typed(n=1, level='middle', maybe=1)")
    assert "'maybe' is missing" in fails(driver, "tools.s.typed(n=1, level='low')")
    assert "Unknown argument 'extra'" in fails(driver, "tools.s.echo(text='x', extra=1)")
    assert peers.messages(tmp_path / "log", "tools/call") == []
    assert driver.value("tools.s.args(any_thing=[1, {'a': None}])") == {"any_thing": [1, {"a": None}]}
    assert driver.value("tools.s.args(nothing=None)") == {"nothing": None}


def test_names_that_python_cannot_write(serve):
    driver = serve()
    assert driver.value("tools.s.dash_ed_name()") == "dashed"
    assert driver.value("tools.s['dash-ed.name']()") == "dashed"
    assert driver.value("tools.s.list_()") == "not the method"
    assert driver.value("tools.s['list']()") == "not the method"
    assert driver.value("type(tools.s.list()).__name__") == "list"


# ---- answers -----------------------------------------------------------------------------------------------


def test_text_and_nothing(serve):
    driver = serve()
    assert driver.value("tools.s.echo(text='h\\u00e9 \\U0001f600\\n')") == "h\u00e9 \U0001f600\n"
    assert driver.value("tools.s.echo(text='')") == ""
    assert driver.value("tools.s.empty() is None")


def test_structured_content_is_exact(serve):
    driver = serve()
    assert driver.value("tools.s.structured() == {'whole': 2**80, 'small': 0.1, 'text': '\\u00e9\\n\"', "
                        "'list': [1, None, True], 'nested': {'a': {}}}")


def test_images_are_bytes_that_show_themselves(serve):
    driver = serve()
    result = driver.run("tools.s.image()")
    assert result["mime"]["text/plain"] == "<image image/png, %d bytes>" % driver.value("len(tools.s.image())")
    assert "image/png" in result["mime"]
    assert driver.value("(lambda i: [i[:4] == b'\\x89PNG', i.mime, isinstance(i, bytes)])(tools.s.image())") == [True, "image/png", True]
    assert driver.value("[type(p).__name__ for p in tools.s.two_images()]") == ["str", "ToolImage", "str", "ToolImage"]
    assert driver.value("(lambda r: [r.text, len(r.images)])(tools.s.two_images())") == ["before\nbetween", 2]
    assert "image/png" in driver.run("tools.s.two_images()")["mime"]
    assert driver.value("(lambda r: [r.structured, len(r)])(tools.s.structured_image())") == [{"n": 1}, 1]
    assert driver.value("import pickle; (lambda i: [i == tools.s.image(), i.mime])(pickle.loads(pickle.dumps(tools.s.image())))") == [
        True, "image/png"]
    assert "not base64" in fails(driver, "tools.s.bad_image()")


def test_resources_and_sound(serve):
    driver = serve()
    assert driver.value("(lambda r: [r + '', r.uri, r.mime])(tools.s.resource())") == ["the text", "test://one", "text/plain"]
    assert driver.value("(lambda r: [list(r), r.uri, r.mime])(tools.s.resource(blob=True))") == [
        [0, 1, 2, 255], "test://two", "application/zip"]
    assert driver.value("(lambda r: [list(r), r.mime])(tools.s.audio())") == [[82, 73, 70, 70], "audio/wav"]


def test_errors_in_the_servers_words(serve):
    driver = serve()
    assert fails(driver, "tools.s.fails()") == "Tool 's' failed: it did not work"
    assert fails(driver, "tools.s.rpc_error()") == "Tool 's' failed: MCP error -32000: as a request"
    assert "no content" in fails(driver, "tools.s.no_content()")
    assert code_of(driver, "tools.s.no_content()") == "protocol"
    assert code_of(driver, "tools.s.fails()") == "tool_failed"
    text = fails(driver, "tools.s.fails(words='x' * 100000)")
    assert len(text) < 20000 and "left out" in text


# ---- life --------------------------------------------------------------------------------------------------


def test_one_process_serves_all_cells_and_starts_with_the_first_use(serve, tmp_path):
    driver = serve()
    driver.value("1 + 1")
    assert not (tmp_path / "log").exists()
    pid = server_pid(driver)
    assert server_pid(driver) == pid
    assert driver.value("tools.s.pid()['pgid']") == pid  # a group of its own
    assert len(peers.messages(tmp_path / "log", "initialize")) == 1
    # Which era it speaks is asked first, once.
    assert [m["method"] for m in peers.messages(tmp_path / "log")[:3]] == ["server/discover", "initialize", "notifications/initialized"]
    assert len(peers.messages(tmp_path / "log", "server/discover")) == 1


def test_calls_overlap(serve):
    driver = serve()
    result = driver.value("""
        import asyncio, time
        async def go():
            return await asyncio.gather(*(tools.s.slow.call_async(seconds=1) for _ in range(20)))
        start = time.monotonic()
        answers = await go()
        [len(answers), set(answers) == {"after 1"}, time.monotonic() - start < 19]""".replace("\n        ", "\n"))
    assert result == [20, True, True]


def test_a_crash_fails_the_call_and_the_next_one_works(serve):
    driver = serve()
    pid = server_pid(driver)
    text = fails(driver, "tools.s.die(status=5)")
    assert "the server ended with exit status 5" in text and "dying as asked" in text
    again = server_pid(driver)
    assert again != pid
    assert "killed by signal 9" in fails(driver, "tools.s.kill()")
    assert server_pid(driver) not in (pid, again)
    assert code_of(driver, "tools.s.die()") == "tool_failed"


def test_a_server_that_keeps_crashing_is_given_time(serve, tmp_path):
    driver = serve()
    for _ in range(6):
        fails(driver, "tools.s.kill()")
    assert driver.value("tools.s.echo(text='still there')") == "still there"
    assert len(peers.messages(tmp_path / "log", "initialize")) == 7


def test_changed_parameters_count_at_once(serve, tmp_path):
    driver = serve(env={"MARK": "one"})
    assert driver.value("tools.s.env()['env']['MARK']") == "one"
    pid = server_pid(driver)
    peers.write_server(tmp_path, "s", description="Only words changed", **peers.scripted(log=tmp_path / "log", env={"MARK": "one"}))
    assert driver.value("tools.list()")[0]["description"] == "Only words changed"
    assert server_pid(driver) == pid
    peers.write_server(tmp_path, "s", **peers.scripted(log=tmp_path / "log", env={"MARK": "two"}))
    assert driver.value("tools.s.env()['env']['MARK']") == "two"
    support.wait_until(lambda: not support.alive(pid), "the old server is gone")
    os.unlink(tmp_path / "tools" / "s.yaml")
    assert driver.value("tools.list()") == []


def test_servers_end_with_the_session_and_all_they_started(serve):
    marker = "314159.%d" % os.getpid()
    driver = serve("child=" + marker)
    pid = server_pid(driver)
    support.wait_until(lambda: support.with_argument(marker), "the server's child runs")
    driver.close()
    support.wait_until(lambda: not support.alive(pid) and not support.with_argument(marker), "all are gone")


def test_a_server_that_does_not_end_is_killed(serve):
    driver = serve("hang_on_close")
    pid = server_pid(driver)
    driver.close()
    support.wait_until(lambda: not support.alive(pid), "it is gone")


def test_servers_end_with_a_host_that_is_killed(serve):
    driver = serve()
    pid = server_pid(driver)
    driver.kill()
    support.wait_until(lambda: not support.alive(pid), "it is gone")


# ---- interrupts and time -----------------------------------------------------------------------------------


def cancelled(log):
    calls = peers.messages(log, "tools/call")
    notes = peers.messages(log, "notifications/cancelled")
    return [note["params"]["requestId"] for note in notes] == [calls[-1]["id"]]


def test_an_interrupt_cancels_the_call(serve, tmp_path):
    driver = serve()
    driver.value("tools.s.echo(text='warm')")
    driver.send({"code": "tools.s.never()"})
    support.wait_until(lambda: len(peers.messages(tmp_path / "log", "tools/call")) == 2, "the call is made")
    driver.interrupt()
    assert driver.answer()["error"]["code"] == "interrupted"
    support.wait_until(lambda: cancelled(tmp_path / "log"), "the server is told")
    assert driver.value("tools.s.echo(text='goes on')") == "goes on"


def test_a_timeout_cancels_the_call(serve, tmp_path):
    driver = serve(timeout=0.3)
    pid = server_pid(driver)
    assert fails(driver, "tools.s.never()", "ToolTimeoutError") == "Tool 's' timed out after 0.3s"
    assert code_of(driver, "tools.s.never()") == "tool_timeout"
    support.wait_until(lambda: len(peers.messages(tmp_path / "log", "notifications/cancelled")) == 2, "the server is told")
    assert server_pid(driver) == pid  # it answered the ping


def test_tools_that_are_called_as_tasks(serve, tmp_path):
    driver = serve(timeout=0.3)
    log = tmp_path / "log"
    assert driver.value("tools.s.task()") == "the task t1 is done"
    assert peers.messages(log, "tools/call")[0]["params"]["task"] == {}
    fails(driver, "tools.s.task(forever=True)", "ToolTimeoutError")
    support.wait_until(lambda: len(peers.messages(log, "tasks/cancel")) == 1, "the server is told")
    peers.write_server(tmp_path, "s", **peers.scripted(log=log))
    driver.send({"code": "tools.s.task(forever=True)"})
    support.wait_until(lambda: len(peers.messages(log, "tasks/result")) == 3, "the call is made")
    driver.interrupt()
    assert driver.answer()["error"]["code"] == "interrupted"
    support.wait_until(lambda: len(peers.messages(log, "tasks/cancel")) == 2, "the server is told again")
    assert peers.messages(log, "tasks/cancel")[1]["params"] == {"taskId": "t1"}


def test_a_server_that_hangs_is_replaced(serve):
    driver = serve(timeout=1)
    pid = server_pid(driver)
    fails(driver, "tools.s.hang()", "ToolTimeoutError")
    support.wait_until(lambda: not support.alive(pid), "it is ended when it does not answer a ping")
    assert server_pid(driver) != pid


def test_initialize_that_is_never_answered(serve):
    driver = serve("silent", start_timeout=0.5)
    assert "did not answer initialize within 0.5s" in fails(driver, "tools.s.echo(text='x')")
    done = support.workcell("tools", "call", "s.echo", "text=x", "--base", driver.argv[driver.argv.index("--base") + 1])
    assert done.status == support.EXIT["start_timeout"] and "start_timeout" in done.err, done


def test_starts_that_fail(serve):
    assert "not today" in fails(serve("init_error"), "tools.s.echo(text='x')")


def test_other_revisions(serve, drive, tmp_path):
    for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"):
        base = peers.write_server(tmp_path / version, "s", **peers.scripted("version=" + version))
        assert drive("--base", base).value("tools.s.echo(text='x')") == "x"
    base = peers.write_server(tmp_path / "odd", "s", **peers.scripted("version=1999-01-01"))
    driver = drive("--base", base)
    assert "uses protocol revision 1999-01-01" in fails(driver, "tools.s.echo(text='x')")


# ---- hostile servers ---------------------------------------------------------------------------------------


def test_second_and_wrong_answers_count_for_nothing(serve):
    driver = serve()
    assert driver.value("[tools.s.twice(), tools.s.echo(text='a'), tools.s.twice(), tools.s.echo(text='b')]") == [
        "first", "a", "first", "b"]
    assert driver.value("tools.s.wrong_id()") == "right"


def test_noise_between_messages(serve):
    assert serve("banner").value("[tools.s.noise(), tools.s.echo(text='a')]") == ["after the noise", "a"]


@pytest.mark.parametrize("how, code", [("nul", "protocol"), ("number", "protocol"), ("deep", "limit")])
def test_answers_that_cannot_be_read(serve, how, code):
    driver = serve(timeout=600)
    assert "the server's answer cannot be read" in fails(driver, "tools.s.unreadable(how=%r)" % how)
    assert code_of(driver, "tools.s.unreadable(how=%r)" % how) == code
    assert driver.value("tools.s.echo(text='goes on')") == "goes on"


def test_batches_are_part_of_one_revision_only(serve, drive, tmp_path):
    driver = serve("version=2025-03-26", timeout=5)
    assert driver.value("tools.s.batch()") == "by batch"
    base = peers.write_server(tmp_path / "new", "s", timeout=0.5, **peers.scripted("version=2025-11-25"))
    driver = drive("--base", base)
    assert driver.run("tools.s.batch()")["error"]["type"] == "ToolTimeoutError"


def test_a_flood_does_no_harm_and_an_endless_one_is_ended(serve):
    driver = serve()
    assert driver.value("tools.s.flood(count=20000)") == "flooded"
    pid = server_pid(driver)
    assert "too many messages" in fails(driver, "tools.s.flood()")
    support.wait_until(lambda: not support.alive(pid), "it was ended")
    assert driver.value("tools.s.echo(text='goes on')") == "goes on"


@pytest.mark.slow
def test_messages_that_are_too_large(serve):
    driver = serve(timeout=50)
    assert driver.value("len(tools.s.huge(size=10000000))") == 10000000
    assert "max_output" in fails(driver, "tools.s.huge(size=20000000)")
    peak = support.peak_rss_bytes(driver.pid)
    assert "more than 33554432 bytes" in fails(driver, "tools.s.huge(size=100000000)")
    assert code_of(driver, "tools.s.huge(size=100000000)") == "limit"
    assert support.peak_rss_bytes(driver.pid) < peak + 200_000_000
    assert driver.value("tools.s.echo(text='goes on')") == "goes on"


def test_one_server_that_floods_keeps_no_other_from_answering(drive, tmp_path):
    peers.write_server(tmp_path, "loud", **peers.scripted(timeout=30))
    base = peers.write_server(tmp_path, "calm", **peers.scripted())
    driver = drive("--base", base)
    assert driver.value("""
import threading
flood = threading.Thread(target=lambda: tools.loud.flood(count=40000))
tools.loud.echo(text='a'), tools.calm.echo(text='b')
flood.start()
answers = [tools.calm.echo(text=str(n)) for n in range(200)]
flood.join()
len(answers)""") == 200


# ---- questions ---------------------------------------------------------------------------------------------


def test_what_we_do_not_have_is_said_so(serve):
    driver = serve()
    assert driver.value("tools.s.sample()") == {"sampling": -32601, "roots": -32601}
    assert driver.value("tools.s.ping()") == "{}"


def test_questions_are_declined_when_nobody_listens(serve, tmp_path):
    driver = serve()
    assert driver.value("tools.s.ask(message='who?')") == {"action": "decline"}
    assert peers.messages(tmp_path / "log", "initialize")[0]["params"]["capabilities"] == {}


# ---- definitions and secrets -------------------------------------------------------------------------------


def test_variables_of_the_host_and_nothing_else(serve, drive, tmp_path):
    driver = serve("${TEST_TOKEN}", env={"TOKEN": "${TEST_TOKEN}", "PLAIN": "$${X}"}, cwd=str(tmp_path))
    seen = driver.value("tools.s.env()")
    assert seen["env"].pop("TOKEN") == SECRET and seen["env"].pop("PLAIN") == "${X}"
    assert set(seen["env"]) <= {"PATH", "HOME", "LANG", "LC_CTYPE"} and seen["cwd"] == str(tmp_path)
    assert seen["argv"][-1] == SECRET
    assert SECRET not in json.dumps(driver.value("tools.list()"))
    text = fails(driver, "tools.s.fails(words='it is %s')" % SECRET)
    assert SECRET not in text and "***" in text
    assert SECRET not in json.dumps(driver.value("dict(__import__('os').environ)"))


def test_missing_variables_are_named(serve):
    driver = serve(env={"TOKEN": "${NO_SUCH_VARIABLE}"})
    assert "environment variable NO_SUCH_VARIABLE is not set" in fails(driver, "tools.s.echo(text='x')")


@pytest.mark.parametrize("params, words", [
    ({}, "Neither a"),
    ({"command": "x", "url": "http://h/mcp"}, "not both"),
    ({"url": "http://h/other"}, "Unable to determine MCP client type from URL: http://h/other"),
    ({"url": "ftp://h/mcp"}, "must begin with http"),
    ({"command": "x", "transport": "carrier-pigeon"}, "Unknown MCP transport: carrier-pigeon"),
    ({"command": "x", "transport": "sse"}, "needs a url"),
    ({"url": "http://h/mcp", "transport": "stdio"}, "needs a command"),
    ({"command": "x", "args": "y"}, "args must be a list"),
    ({"command": "x", "args": ["${bad-name}"]}, "${NAME}"),
    ({"command": "x", "headers": {"a": "b"}}, "headers require a url"),
    ({"url": "http://h/mcp", "env": {"a": "b"}}, "require a command"),
    ({"url": "http://h/mcp", "headers": {"bad name": "b"}}, "invalid header name"),
    ({"command": "x", "env": {"a=b": "c"}}, "invalid variable name"),
    ({"command": "x", "wrong": 1}, "unknown key 'wrong'"),
    ({"command": "x", "timeout": 0}, "timeout must be"),
])
def test_bad_definitions(tmp_path, params, words):
    base = peers.write_server(tmp_path, "s", **params)
    done = support.workcell("tools", "check", os.path.join(base, "tools"))
    assert done.status == 1 and words in done.out + done.err, done


# ---- the real ones -----------------------------------------------------------------------------------------


def test_server_everything(drive, tmp_path):
    driver = drive("--base", peers.write_server(tmp_path, "s", **peers.params(peers.everything("stdio"))))
    from test_mcp_http import check_everything

    check_everything(driver)
    seen = json.loads(driver.value("tools.s.get_env()"))
    assert set(seen) == {"PATH", "HOME", "LANG"}


def test_server_filesystem(drive, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "poem.txt").write_text("one\ntwo\n")
    driver = drive("--base", peers.write_server(tmp_path, "fs", **peers.params(peers.filesystem(folder))))
    assert driver.value("tools.fs.read_text_file(path=%r)" % str(folder / "poem.txt"))["content"] == "one\ntwo\n"
    driver.value("tools.fs.write_file(path=%r, content='three')" % str(folder / "new.txt"))
    assert (folder / "new.txt").read_text() == "three"
    assert "new.txt" in json.dumps(driver.value("tools.fs.list_directory(path=%r)" % str(folder)))
    assert "outside allowed directories" in fails(driver, "tools.fs.read_text_file(path='/etc/passwd')")


def test_server_memory(drive, tmp_path):
    keys = peers.params(peers.memory(), env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")})
    driver = drive("--base", peers.write_server(tmp_path, "m", **keys))
    driver.value("tools.m.create_entities(entities=[{'name': 'a', 'entityType': 'letter', 'observations': ['first']}])")
    assert driver.value("[e['name'] for e in tools.m.read_graph()['entities']]") == ["a"]
    assert driver.value("tools.m.search_nodes(query='first')")["entities"][0]["observations"] == ["first"]


# ---- reset ---------------------------------------------------------------------------------------------------


def test_reset_stops_servers_and_they_come_back(serve):
    driver = serve()
    first = server_pid(driver)
    driver.reset()
    support.wait_until(lambda: not support.alive(first), "the server is still there")
    assert server_pid(driver) != first
