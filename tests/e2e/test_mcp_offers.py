"""What a program offers by its MCP server (tests/mcp/offering.c), the storage's resources and prompts, and content from code: both eras, both
transports, and who sees what."""
import base64
import json
import os
import sys

import pytest

import support
from listening import Listening

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import client as mcp_client  # noqa: E402
from test_mcp_modern import META, MODERN, ONE, TOKENS, TWO, Stdio, envelope, message  # noqa: E402

PROGRAM = (os.path.join(os.path.dirname(support.BIN), "tests", "mcp-offering"),)
SOURCE = '''
def run(city: str, days: int = 3) -> str:
    """Forecasts the weather.

    Needs no key."""
    return city * days
'''


@pytest.fixture
def connect():
    """connect(era, ...): a client by pipes, legacy or modern."""
    made = []

    def begin(era, *flags, program=PROGRAM, **options):
        kind = mcp_client.Client if era == "legacy" else Stdio
        made.append(kind(*flags, program=program, **options))
        return made[-1]
    yield begin
    for each in made:
        if each.process.poll() is None:
            each.close()


def ask(client, method, **params):
    return client.result(client.send(method, **params))


def text_of(result):
    return result["content"][0]["text"]


ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


# ---- tools -----------------------------------------------------------------------------------------------------


@ERAS
def test_tools_of_the_program(connect, era):
    client = connect(era)
    listed = [tool["name"] for tool in ask(client, "tools/list")["tools"]]
    assert {"run_code", "test_simple_text", "for_approvers"} <= set(listed) and "for_two" not in listed
    assert listed == [tool["name"] for tool in ask(client, "tools/list")["tools"]]

    def call(name, **arguments):
        return ask(client, "tools/call", name=name, arguments=arguments)
    assert text_of(call("test_simple_text")) == "This is a simple text response for testing."
    mixed = call("test_multiple_content_types")
    assert [block["type"] for block in mixed["content"]] == ["text", "image", "resource"] and mixed["structuredContent"] == {"n": 3}
    assert call("test_audio_content")["content"][0]["mimeType"] == "audio/wav"
    assert call("test_error_handling")["isError"] is True
    assert call("bytes")["content"][0]["resource"]["blob"] == base64.b64encode(b"\0\1\xff").decode()
    assert text_of(call("typed", n=3, s=None)) == 'typed: typed by stdio (tests) with {"n":3,"s":null}'
    assert "argument 'n' is missing" in text_of(call("typed"))
    assert "argument 'n' has the wrong type" in text_of(call("typed", n="3"))
    assert "unknown argument 'x'" in text_of(call("typed", n=1, x=1))
    for name, words in (("wrong_content", "invalid: "), ("fails", "not_found: there is nothing here"), ("silent", "io: the function did not")):
        result = call(name)
        assert result["isError"] and text_of(result).startswith(words), result
    assert client.error(client.send("tools/call", name="for_two", arguments={}))["code"] == -32602
    assert ask(client, "tools/call", name="run_code", arguments={"code": "6*7"})["structuredContent"]["value"] == 42


@ERAS
def test_progress_and_log(connect, era):
    client = connect(era)
    meta = {"progressToken": "p", **({META + "logLevel": "info"} if era == "modern" else {})}
    assert text_of(ask(client, "tools/call", name="test_tool_with_progress", arguments={}, _meta=meta)) == "done"
    assert [note["params"]["progress"] for note in client.notes if note["method"] == "notifications/progress"] == [0, 50, 100]
    assert [note["params"]["data"] for note in client.notes if note["method"] == "notifications/message"] == ["half way"]
    client.notes.clear()
    ask(client, "tools/call", name="test_tool_with_progress", arguments={})
    assert not [note for note in client.notes if note["method"] == "notifications/progress"]


def test_questions_of_functions(connect):
    legacy = connect("legacy", capabilities={"elicitation": {}})
    legacy.on_request = lambda asked: {"action": "accept", "content": {"username": asked["params"]["message"][:6]}}
    text = text_of(ask(legacy, "tools/call", name="test_elicitation", arguments={"message": "x"}))
    assert text == 'User response: {"action":"accept","content":{"username":"Please"}}'
    mute = connect("legacy")
    assert text_of(ask(mute, "tools/call", name="test_elicitation", arguments={"message": "x"})).startswith("disabled: ")

    modern = connect("modern")
    meta = {META + "clientCapabilities": {"elicitation": {}}}
    first = ask(modern, "tools/call", name="test_elicitation", arguments={"message": "x"}, _meta=meta)
    assert first["resultType"] == "input_required"
    key, = first["inputRequests"]
    again = {"name": "test_elicitation", "arguments": {"message": "x"}, "requestState": first["requestState"], "_meta": meta}
    wrong = modern.error(modern.send("tools/call", **{**again, "arguments": {"message": "y"}}))
    assert wrong["code"] == -32602
    answered = ask(modern, "tools/call", **again, inputResponses={key: {"action": "decline"}})
    assert text_of(answered) == 'User response: {"action":"decline"}'


def test_questions_of_prompts_and_resources(connect):
    legacy = connect("legacy", capabilities={"elicitation": {}})
    legacy.on_request = lambda asked: {"action": "accept", "content": {"context": asked["params"]["message"][:4]}}
    answered = 'User response: {"action":"accept","content":{"context":"What"}}'
    got = ask(legacy, "prompts/get", name="test_input_required_result_prompt")
    assert got["messages"][0]["content"]["text"] == answered
    assert ask(legacy, "resources/read", uri="test://asks/1")["contents"][0]["text"] == answered

    modern = connect("modern")
    meta = {META + "clientCapabilities": {"elicitation": {}}}
    for method, params, text in (
            ("prompts/get", {"name": "test_input_required_result_prompt"}, lambda result: result["messages"][0]["content"]["text"]),
            ("resources/read", {"uri": "test://asks/1"}, lambda result: result["contents"][0]["text"])):
        first = ask(modern, method, **params, _meta=meta)
        assert first["resultType"] == "input_required" and list(first["inputRequests"]) == ["user_context"] and "ttlMs" not in first
        assert first["inputRequests"]["user_context"]["params"]["mode"] == "form"
        again = {**params, "requestState": first["requestState"], "_meta": meta,
                 "inputResponses": {"user_context": {"action": "accept", "content": {"context": "What"}}}}
        other = {**again, "name": "asks_and_fails"} if method == "prompts/get" else {**again, "uri": "test://asks/2"}
        assert modern.error(modern.send(method, **other))["code"] == -32602
        last = ask(modern, method, **again)
        assert last["resultType"] == "complete" and text(last) == answered
        assert (method == "resources/read") == ("ttlMs" in last)
        assert modern.error(modern.send(method, **again))["code"] == -32602, "a state is good once"
    first = ask(modern, "prompts/get", name="asks_and_fails", _meta=meta)
    wrong = modern.error(modern.send("prompts/get", name="asks_and_fails", requestState=first["requestState"], _meta=meta,
                                     inputResponses={"user_context": {"action": "decline"}}))
    assert (wrong["code"], wrong["message"]) == (-32602, "not_found: there is nothing here")


def test_capabilities_that_are_needed(connect):
    modern = connect("modern")

    def error(method, can, **params):
        return modern.error(modern.send(method, **params, _meta={META + "clientCapabilities": can}))
    # Named by the program, and a question of a function.
    for method, params, needed in (("tools/call", {"name": "test_missing_capability", "arguments": {}}, {"sampling": {}}),
                                   ("prompts/get", {"name": "test_missing_capability"}, {"sampling": {}}),
                                   ("tools/call", {"name": "needs_form", "arguments": {}}, {"elicitation": {"form": {}}}),
                                   ("tools/call", {"name": "test_elicitation", "arguments": {"message": "x"}}, {"elicitation": {}}),
                                   ("prompts/get", {"name": "test_input_required_result_prompt"}, {"elicitation": {}}),
                                   ("resources/read", {"uri": "test://asks/1"}, {"elicitation": {}})):
        wrong = error(method, {"roots": {}}, **params)
        assert (wrong["code"], wrong["data"]) == (-32021, {"requiredCapabilities": needed}), (method, params, wrong)
    assert error("tools/call", {"elicitation": {"url": {}}}, name="needs_form", arguments={})["data"]["requiredCapabilities"] == {
        "elicitation": {"form": {}}}
    for can in ({"elicitation": {}}, {"elicitation": {"form": {}, "url": {}}}):
        assert "has it" in text_of(ask(modern, "tools/call", name="needs_form", arguments={}, _meta={META + "clientCapabilities": can}))
    done = ask(modern, "tools/call", name="test_missing_capability", arguments={}, _meta={META + "clientCapabilities": {"sampling": {"tools": {}}}})
    assert text_of(done).startswith("has it")
    legacy = connect("legacy", capabilities={"sampling": {}})
    assert text_of(ask(legacy, "tools/call", name="test_missing_capability", arguments={})).startswith("has it")
    assert legacy.error(legacy.send("tools/call", name="needs_form", arguments={}))["code"] == -32602


@ERAS
def test_functions_that_wait_end_with_the_server(connect, era):
    """Several at once: each of them is woken, also when another one ends in the meantime."""
    client = connect(era, capabilities={"elicitation": {}}) if era == "legacy" else connect(era)
    meta = {META + "clientCapabilities": {"elicitation": {}}} if era == "modern" else {}
    sent = [client.send("tools/call", name="test_elicitation", arguments={"message": str(i)}, _meta=meta) for i in range(8)]
    for _ in sent:
        came = client.read()
        assert came["result"]["resultType"] == "input_required" if era == "modern" else came["method"] == "elicitation/create"
    assert client.close() == 0


@ERAS
def test_a_cancelled_function_is_told(connect, era):
    client = connect(era)
    number = client.send("tools/call", name="waits", arguments={})
    support.wait_until(lambda: "offering: waiting" in client.stderr_text(), client.stderr_text)
    client.notify("notifications/cancelled", requestId=number)
    support.wait_until(lambda: "offering: cancelled" in client.stderr_text(), client.stderr_text)
    assert text_of(ask(client, "tools/call", name="typed", arguments={"n": 1})).startswith("typed")


WITH_TASKS = {"elicitation": {}, "extensions": {META + "tasks": {}}}


def test_tools_that_are_tasks(connect):
    """A function says when; its questions and its answer are the task's, and its client may listen instead of asking again and again."""
    client = connect("modern")
    knows, other = {META + "clientCapabilities": WITH_TASKS}, {META + "clientCapabilities": {"elicitation": {}}}

    def call(name, meta=knows, **arguments):
        return ask(client, "tools/call", name=name, arguments=arguments, _meta=meta)

    def listen(*tasks):
        client.send("subscriptions/listen", notifications={"taskIds": list(tasks)}, _meta=knows)
        return client.read()["params"]["notifications"]

    def heard(number=None):
        note = client.read()
        assert note["method"] == "notifications/tasks" and (number is None or note["params"]["_meta"] == {META + "subscriptionId": number})
        return note["params"]
    # Those who do not know tasks wait for the answer; who listens to tasks has to know them.
    assert text_of(call("slow_compute", other, seconds=0)) == "computed"
    wrong = client.error(client.send("subscriptions/listen", notifications={"taskIds": []}, _meta=other))
    assert (wrong["code"], wrong["data"]) == (-32021, {"requiredCapabilities": {"extensions": {META + "tasks": {}}}})
    task = call("confirm_delete")
    assert (task["resultType"], task["status"]) == ("task", "working")
    assert listen(task["taskId"], "x" * 40, "0" * 32) == {"taskIds": [task["taskId"]]}
    number = client.count
    asked = heard(number)
    assert (asked["taskId"], asked["status"], len(asked["inputRequests"])) == (task["taskId"], "input_required", 1)
    (key, request), = asked["inputRequests"].items()
    assert request["params"]["message"] == "Are you sure?"
    update = client.send("tasks/update", taskId=task["taskId"], inputResponses={key: {"action": "accept", "content": {"confirm": True}}}, _meta=knows)
    states = []
    while "completed" not in states:
        came = client.read()
        states += [came["params"]["status"]] if came.get("method") == "notifications/tasks" else [came["id"]]
    assert [each for each in states if each != update] == ["working", "completed"] and update in states
    assert text_of(came["params"]["result"]) == "done"
    # One that has ended already is told of at once.
    assert listen(task["taskId"]) == {"taskIds": [task["taskId"]]} and heard()["status"] == "completed"
    # Errors of the protocol, and those of the tool.
    ends = {}
    for name in ("failing_job", "protocol_error_job"):
        listen(call(name)["taskId"])
        ends[name] = heard()
    assert ends["failing_job"]["status"] == "completed" and ends["failing_job"]["result"]["isError"]
    assert ends["protocol_error_job"]["status"] == "failed" and ends["protocol_error_job"]["error"]["code"] == -32603
    assert client.error(client.send("tools/call", name="failing_job", arguments={}, _meta=other))["code"] == -32021
    # It is cancelled, and its function is told.
    listen(running := call("slow_compute", seconds=600)["taskId"])
    number = client.count
    cancel = client.send("tasks/cancel", taskId=running, _meta=knows)
    came = [client.read() for _ in range(3)]
    assert [each["params"]["status"] for each in came if "params" in each] == ["cancelled"] * 2 and cancel in [each.get("id") for each in came]
    # A question before it is a task is asked by its request.
    first = call("test_tool_with_task")
    assert first["resultType"] == "input_required" and list(first["inputRequests"]) == ["user_name"]
    again = ask(client, "tools/call", name="test_tool_with_task", arguments={}, requestState=first["requestState"], _meta=knows,
                inputResponses={"user_name": {"action": "accept", "content": {"name": "Ada"}}})
    assert again["resultType"] == "task" and "requestState" not in again
    listen(again["taskId"])
    assert "Ada" in text_of(heard()["result"])


def test_a_call_that_takes_long(connect):
    """Any tool of the program: signs of life for who wants progress, and a task for who knows them."""
    client = connect("modern")
    meta = {META + "clientCapabilities": WITH_TASKS, "progressToken": "p"}
    waits = client.send("tools/call", name="waits", arguments={}, _meta={"progressToken": "q"})
    task = ask(client, "tools/call", name="waits", arguments={}, _meta=meta)
    assert task["resultType"] == "task" and task["status"] == "working"
    while not [note for note in client.notes if note.get("method") == "notifications/progress" and note["params"]["progressToken"] == "q"]:
        client.notes.append(client.read())
    client.notify("notifications/cancelled", requestId=waits)
    ask(client, "tasks/cancel", taskId=task["taskId"], _meta=meta)
    support.wait_until(lambda: client.stderr_text().count("offering: cancelled") == 2, client.stderr_text)


def test_the_gate_sees_tools_of_the_program(connect, tmp_path):
    policy, audit = tmp_path / "policy.yaml", tmp_path / "audit.jsonl"
    policy.write_text("default: allow\nrules:\n  - {decision: deny, tool: test_simple_text, reason: not today}\n"
                      "  - {decision: ask, tool: typed}\n")
    client = connect("legacy", "--policy", policy, "--audit", audit, capabilities={"elicitation": {}})
    client.on_request = lambda asked: {"action": "accept", "content": {"decision": "accept"}}
    denied = ask(client, "tools/call", name="test_simple_text", arguments={})
    assert denied["isError"] and "not today" in text_of(denied)
    assert text_of(ask(client, "tools/call", name="typed", arguments={"n": 7})).endswith('with {"n":7}')
    assert "typed" in client.asked[0]["params"]["message"] and '"n": 7' in client.asked[0]["params"]["message"].replace('"n":7', '"n": 7')
    assert ask(client, "tools/call", name="fails", arguments={})["isError"]
    seen = [(row["tool"], row["adapter"], row["principal"], row["outcome"]) for row in map(json.loads, audit.read_text().splitlines())
            if row.get("tool")]
    assert ("typed", "host", "mcp", "ok") in seen and ("fails", "host", "mcp", "error") in seen, seen
    assert [row for row in seen if row[0] == "test_simple_text"][0][3] != "ok"


@ERAS
def test_lists_that_change(connect, era):
    client = connect(era)

    def changed(kind):
        return [note for note in client.notes if note.get("method") == "notifications/%s/list_changed" % kind]
    if era == "modern":
        listening = client.send("subscriptions/listen", notifications={"toolsListChanged": True, "promptsListChanged": True,
                                                                       "resourceSubscriptions": ["test://static-text", "test://two/1"]})
    else:
        ask(client, "resources/subscribe", uri="test://static-text")
        assert client.error(client.send("resources/subscribe", uri="test://two/1"))["code"] == -32602
    ask(client, "tools/call", name="control", arguments={"do": "offer"})
    assert "late" in [tool["name"] for tool in ask(client, "tools/list")["tools"]]
    assert text_of(ask(client, "tools/call", name="late", arguments={})).startswith("late: late")
    ask(client, "tools/call", name="control", arguments={"do": "withdraw"})
    assert client.error(client.send("tools/call", name="late", arguments={}))["code"] == -32602
    assert len(changed("tools")) == 2 and not changed("prompts")
    ask(client, "tools/call", name="control", arguments={"do": "changed"})
    updated = [note["params"] for note in client.notes if note.get("method") == "notifications/resources/updated"]
    assert [each["uri"] for each in updated] == ["test://static-text"]
    if era == "modern":
        told = [note for note in client.notes if note["method"].endswith("acknowledged")][0]["params"]
        assert told["notifications"] == {"toolsListChanged": True, "promptsListChanged": True, "resourceSubscriptions": ["test://static-text"]}
        assert {note["params"]["_meta"][META + "subscriptionId"] for note in changed("tools")} == {listening}
    else:
        ask(client, "resources/unsubscribe", uri="test://static-text")
        client.notes.clear()
        ask(client, "tools/call", name="control", arguments={"do": "changed"})
        assert not [note for note in client.notes if note["method"] == "notifications/resources/updated"]


# ---- resources and prompts ------------------------------------------------------------------------------------------


@ERAS
def test_resources_and_prompts_of_the_program(connect, era):
    client = connect(era)
    found = ask(client, "resources/list")
    uris = [each["uri"] for each in found["resources"]]
    assert "test://static-text" in uris and "test://approvers" in uris and (era == "legacy" or found["ttlMs"] == 0)
    templates = [each["uriTemplate"] for each in ask(client, "resources/templates/list")["resourceTemplates"]]
    assert templates == ["test://template/{id}/data", "test://files/{+path}", "test://asks/{x}"]

    def read(uri):
        return ask(client, "resources/read", uri=uri)["contents"][0]
    assert read("test://static-text")["text"].startswith("This is the content")
    assert base64.b64decode(read("test://bytes")["blob"]) == b"\0\1\xff"
    assert read("test://template/a%2Fb/data") == {"uri": "test://template/a%2Fb/data", "mimeType": "application/json",
                                                  "text": 'template: test://template/a%2Fb/data by stdio (tests) with {"id":"a/b"}'}
    assert read("test://files/a/b c".replace(" ", "%20"))["text"].endswith('{"path":"a/b c"}')
    for uri in ("test://template/a/b/data", "test://template//data", "test://nothing", "test://two/1", "workcell://artifacts/x", "test://gone",
                "test://template/%ff/data", "test://template/%00/data", 3, "test://" + "x" * 5000):
        assert client.error(client.send("resources/read", uri=uri))["code"] == -32602, uri
    assert client.error(client.send("resources/list", cursor="1000"))["code"] == -32602
    assert client.error(client.send("resources/list", cursor="0"))["code"] == -32602

    prompts = {each["name"]: each for each in ask(client, "prompts/list")["prompts"]}
    assert "for_two" not in prompts and prompts["test_prompt_with_arguments"]["arguments"][0]["required"] is True
    got = ask(client, "prompts/get", name="test_prompt_with_arguments", arguments={"arg1": "a", "arg2": "b"})
    assert got["messages"][0]["content"]["text"].endswith('{"arg1":"a","arg2":"b"}')
    assert ask(client, "prompts/get", name="test_prompt_with_image")["messages"][0]["content"]["type"] == "image"
    for params in ({"name": "test_prompt_with_arguments", "arguments": {"arg1": "a"}}, {"name": "for_two"}, {"name": "x"}, {},
                   {"name": "test_prompt_with_arguments", "arguments": {"arg1": 1, "arg2": "b"}}):
        assert client.error(client.send("prompts/get", **params))["code"] == -32602, params
    done = ask(client, "completion/complete", ref={"type": "ref/prompt", "name": "test_prompt_with_arguments"},
               argument={"name": "arg1", "value": "pa"})
    assert done["completion"]["values"] == ["paris", "park"]
    assert client.error(client.send("completion/complete", ref={"type": "ref/prompt", "name": "for_two"},
                                    argument={"name": "x", "value": ""}))["code"] == -32602


@ERAS
def test_artifacts_and_workflows(connect, era, tmp_path):
    client = connect(era, "--base", tmp_path, "--no-runtime-deps", program=())
    if era == "modern":
        client.send("subscriptions/listen", notifications={"resourcesListChanged": True, "promptsListChanged": True,
                                                           "resourceSubscriptions": ["workcell://artifacts/a/b%20c.json"]})
    else:
        ask(client, "resources/subscribe", uri="workcell://artifacts/a/b%20c.json")
    code = "artifacts.save('a/b c.json', {'n': 1}, 'a number'); artifacts.save('raw', b'\\0\\xff', '')"
    result = ask(client, "tools/call", name="run_code", arguments={"code": code})
    assert not result["isError"], result
    for name, source in (("weather", SOURCE), ("bare", "def run():\n    return 1\n")):
        made = ask(client, "tools/call", name="create_workflow", arguments={"name": name, "source": source, "description": "d"})
        assert not made["isError"], made
    methods = [note["method"] for note in client.notes]
    assert methods.count("notifications/resources/updated") == 1 and methods.count("notifications/prompts/list_changed") == 2
    assert methods.count("notifications/resources/list_changed") == 4
    listed = {each["uri"]: each for each in ask(client, "resources/list")["resources"]}
    assert listed["workcell://artifacts/a/b%20c.json"]["mimeType"] == "application/json"
    assert listed["workcell://artifacts/a/b%20c.json"]["description"] == "a number" and "workcell://workflows/weather" in listed
    assert json.loads(ask(client, "resources/read", uri="workcell://artifacts/a/b%20c.json")["contents"][0]["text"]) == {"n": 1}
    assert base64.b64decode(ask(client, "resources/read", uri="workcell://artifacts/raw")["contents"][0]["blob"]) == b"\0\xff"
    assert ask(client, "resources/read", uri="workcell://workflows/weather")["contents"][0]["text"] == SOURCE
    for uri in ("workcell://artifacts/../weather", "workcell://artifacts/%2e%2e/x", "workcell://workflows/none", "workcell://artifacts/",
                "workcell://artifacts//etc/passwd", "workcell://other/x"):
        assert client.error(client.send("resources/read", uri=uri))["code"] == -32602, uri
    prompt, = ask(client, "prompts/list")["prompts"]
    assert prompt == {"name": "weather", "description": "Forecasts the weather.",
                      "arguments": [{"name": "city", "required": True}, {"name": "days", "required": False}]}
    got = ask(client, "prompts/get", name="weather", arguments={"city": 'O"slo\n', "days": "2"})["messages"][0]["content"]["text"]
    assert '    workflows.weather(city="O\\"slo\\n", days=2)\n' in got and "Needs no key." in got
    for params in ({"name": "weather"}, {"name": "weather", "arguments": {"city": "x", "y": "z"}}, {"name": "bare"}):
        assert client.error(client.send("prompts/get", **params))["code"] == -32602
    done = ask(client, "completion/complete", ref={"type": "ref/resource", "uri": "workcell://workflows/{name}"},
               argument={"name": "name", "value": "we"})
    assert done["completion"] == {"values": ["weather"], "total": 1, "hasMore": False}


def test_pages(connect, tmp_path):
    client = connect("legacy", "--base", tmp_path, "--no-runtime-deps", program=())
    ask(client, "tools/call", name="run_code", arguments={"code": "for i in range(201): artifacts.save('n%03d' % i, 'x', '')"})
    first = ask(client, "resources/list")
    assert len(first["resources"]) == 200
    second = ask(client, "resources/list", cursor=first["nextCursor"])
    assert len(second["resources"]) == 1 and "nextCursor" not in second
    for cursor in (" " + first["nextCursor"], "-1", "1e2", "", 5, "99999999999999999999"):
        assert client.error(client.send("resources/list", cursor=cursor))["code"] == -32602


# ---- by HTTP: who sees what ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def web():
    made = Listening(tokens=TOKENS, program=PROGRAM)
    made.token = ONE
    made.adopt()
    support.shared_drivers.append(made)
    yield made
    support.shared_drivers.remove(made)
    made.close()


class Post:
    """A client of either era with a token."""

    def __init__(self, server, token, era):
        self.server, self.token, self.era, self.count = server, token, era, 0
        self.session = server.session(token=token) if era == "legacy" else None

    def ask(self, method, **params):
        self.count += 1
        headers, body = {}, {"jsonrpc": "2.0", "id": self.count, "method": method, "params": params}
        if self.era == "modern":
            body = message(method, self.count, **params)
            headers = {"MCP_Protocol_Version": MODERN, "Mcp_Method": method}
            if "name" in params or "uri" in params:
                headers["Mcp_Name"] = params.get("name", params.get("uri"))
        connection, response = self.server.open("POST", body, session=self.session, token=self.token, **headers)
        text = response.read().decode()
        connection.close()
        messages = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")] or [json.loads(text)]
        return messages[-1]


@ERAS
def test_scopes_and_principals_decide(web, era):
    one, two = Post(web, ONE, era), Post(web, TWO, era)  # scopes: run and approve; run

    def names(client, method, member, key):
        return {each[key] for each in client.ask(method)["result"][member]}
    assert {"for_approvers", "for_two"} & names(one, "tools/list", "tools", "name") == {"for_approvers"}
    assert {"for_approvers", "for_two"} & names(two, "tools/list", "tools", "name") == {"for_two"}
    assert "test://approvers" in names(one, "resources/list", "resources", "uri")
    assert "test://approvers" not in names(two, "resources/list", "resources", "uri")
    assert "test://two/{x}" not in names(one, "resources/templates/list", "resourceTemplates", "uriTemplate")
    assert "for_two" in names(two, "prompts/list", "prompts", "name") and "for_two" not in names(one, "prompts/list", "prompts", "name")
    for client, method, params in ((one, "tools/call", {"name": "for_two", "arguments": {}}), (two, "tools/call", {"name": "for_approvers", "arguments": {}}),
                                   (one, "resources/read", {"uri": "test://two/1"}), (two, "resources/read", {"uri": "test://approvers"}),
                                   (one, "prompts/get", {"name": "for_two"})):
        assert client.ask(method, **params)["error"]["code"] == -32602, (method, params)
    assert "by two" in two.ask("tools/call", name="for_two", arguments={})["result"]["content"][0]["text"]
    assert "by two" in two.ask("resources/read", uri="test://two/1")["result"]["contents"][0]["text"]
    assert "by one" in one.ask("tools/call", name="for_approvers", arguments={})["result"]["content"][0]["text"]


def test_another_token_cannot_answer_a_question(web):
    capabilities = {"elicitation": {}}

    def post(token, ident, **params):
        body = message("tools/call", ident, envelope(capabilities=capabilities), name="test_elicitation", arguments={"message": "x"}, **params)
        connection, response = web.open("POST", body, token=token, MCP_Protocol_Version=MODERN, Mcp_Method="tools/call", Mcp_Name="test_elicitation")
        text = response.read().decode()
        connection.close()
        return ([json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")] or [json.loads(text)])[-1]
    first = post(ONE, 1)["result"]
    key, = first["inputRequests"]
    answer = {"requestState": first["requestState"], "inputResponses": {key: {"action": "accept", "content": {"username": "u"}}}}
    assert post(TWO, 2, **answer)["error"]["code"] == -32602
    assert '"username":"u"' in post(ONE, 3, **answer)["result"]["content"][0]["text"]


def post_modern(web, method, headers=(), capabilities=None, **params):
    """The status, and the answer."""
    known = {"MCP_Protocol_Version": MODERN, "Mcp_Method": method, "Mcp_Name": params.get("name", params.get("uri"))}
    connection = web.connect()
    body = json.dumps(message(method, 1, envelope(capabilities=capabilities), **params)).encode()
    connection.putrequest("POST", "/mcp")
    for name, value in [*known.items(), ("Accept", "application/json, text/event-stream"), ("Content-Type", "application/json"),
                        ("Authorization", "Bearer " + ONE), ("Content-Length", str(len(body))), *headers]:
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def test_a_capability_that_is_needed_by_http(web):
    for method, params in (("tools/call", {"name": "test_missing_capability", "arguments": {}}), ("resources/read", {"uri": "test://asks/1"})):
        status, answer = post_modern(web, method, **params)
        assert (status, answer["id"], answer["error"]["code"]) == (400, 1, -32021)


def test_headers_of_parameters(web):
    def call(arguments, *headers):
        status, answer = post_modern(web, "tools/call", headers, name="test_x_mcp_header", arguments=arguments)
        if status == 200:
            assert not answer["result"]["isError"], answer
            return True
        assert (status, answer["id"], answer["error"]["code"]) == (400, 1, -32020), answer
        return False
    region, encoded = ("Mcp-Param-Region", "Hello"), ("mcp-param-REGION", "=?base64?SGVsbG8=?=")
    assert call({"region": "Hello"}, region) and call({"region": "Hello"}, encoded)
    assert call({"region": "Hello"}, ("Mcp-Param-Region", " Hello "), ("Mcp-Param-Other", "ignored"))
    assert call({"region": "=?base64?SGVsbG8="}, ("Mcp-Param-Region", "=?base64?SGVsbG8="))
    assert call({"region": "é"}, ("Mcp-Param-Region", "=?base64?w6k=?="))
    assert call({"region": "Hello", "n": -7, "deep": {"on": True}}, region, ("Mcp-Param-N", "-7"), ("Mcp-Param-On", "true"))
    for arguments, *headers in (
            ({"region": "Hello"},), ({"region": "hello"}, region), ({"region": "Hello"}, region, region),
            ({"region": "Hello"}, ("Mcp-Param-Region", "=?base64?SGVsbG8?=")), ({"region": "Hello"}, ("Mcp-Param-Region", "=?base64?SGVs!!!bG8=?=")),
            ({"region": "Hello"}, region, ("Mcp-Param-N", "1")), ({"region": "Hello", "n": 7}, region), ({"region": "Hello", "n": 7}, region, ("Mcp-Param-N", "07")),
            ({"region": "Hello", "deep": {"on": True}}, region, ("Mcp-Param-On", "false")), ({"region": "Hello", "deep": {}}, region, ("Mcp-Param-On", "true")),
            ({"region": "é"}, ("Mcp-Param-Region", "é".encode())), ({"region": "Hello"}, region, ("Mcp-Param-Region", "Other"))):
        assert not call(arguments, *headers), (arguments, headers)


# ---- content from code -----------------------------------------------------------------------------------------------------


def test_audio_files_and_mixed_content_from_code(connect):
    client = connect("legacy", program=())

    def run(code):
        return ask(client, "tools/call", name="run_code", arguments={"code": code})
    shown = run("""
display({"audio/wav": b"RIFF", "text/plain": "a sound"}, raw=True)
display({"application/pdf": b"%PDF-1", "text/plain": "a paper"}, raw=True)
display({"application/vnd.mcp.content+json": [{"type": "text", "text": "before"}, {"type": "resource_link", "uri": "app://x", "name": "x"},
         {"type": "resource", "resource": {"uri": "app://y", "text": "inside"}}]}, raw=True)
display({"text/html": "<b>page</b>", "text/plain": "page"}, raw=True)
class Audio:
    mimetype, data = "audio/mpeg", b"ID3"
    def _repr_html_(self): return "<audio>"
display(Audio())
""")
    kinds = [block["type"] for block in shown["content"]]
    assert kinds == ["text", "audio", "resource", "text", "resource_link", "resource", "audio"], shown
    assert shown["content"][1] == {"type": "audio", "data": base64.b64encode(b"RIFF").decode(), "mimeType": "audio/wav"}
    assert shown["content"][2]["resource"]["mimeType"] == "application/pdf" and shown["content"][6]["mimeType"] == "audio/mpeg"
    for wrong in ('{"type": "image", "data": "?", "mimeType": "image/png"}', '[{"type": "nothing"}]', '{"no": 1}', '[]' + ', []' * 0 + '[', '3'):
        result = run("display({'application/vnd.mcp.content+json': %r}, raw=True)" % wrong)
        assert [block["type"] for block in result["content"]] == ["text"] and "1 images or files were omitted" in text_of(result), result
    many = run("for i in range(17): display({'audio/wav': b'x'}, raw=True)")
    assert len(many["content"]) == 17 and "1 images or files were omitted" in text_of(many)
    large = run("display({'audio/wav': bytes(8 << 20)}, raw=True); display({'audio/wav': b'1'}, raw=True)")
    assert len(large["content"]) == 2 and "1 images or files were omitted" in text_of(large)
