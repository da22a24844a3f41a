"""What MCP servers ask and say while a call is under way: questions at the gate, progress, log lines, images."""
import json
import os
import sys

import pytest

import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402
import web  # noqa: E402

# Tool calls are made without an approval; there is somebody to ask all the same.
POLICY = "default: allow\nrules:\n  - {decision: ask, tool: something-else}\n"


@pytest.fixture
def asking(drive, tmp_path):
    """A driver whose server `s` can ask; its messages are in tmp_path/log."""
    def make(*flags, **params):
        base = peers.write_server(tmp_path, "s", **peers.scripted(log=tmp_path / "log", **params))
        (tmp_path / "policy.yaml").write_text(POLICY)
        return drive("--base", base, "--policy", tmp_path / "policy.yaml", *flags)
    return make


def pending(driver):
    """The next request that waits."""
    while True:
        event = driver.read()
        driver.events.append(event)
        if event.get("event") == "approval":
            return event


def answer(driver, **keys):
    """The code's result; that the answer was taken is told before or after it, by another thread."""
    driver.send(dict({"op": "answer"}, **keys))
    result, taken = None, False
    while result is None or not taken:
        got = driver.answer()
        if "op" in got:
            taken = True
        elif "value" not in got:
            return got  # the answer was refused
        else:
            result = got
    return result


def ask(driver, code="tools.s.ask(message='Who is it?')"):
    driver.send({"code": code})
    return pending(driver)


def run_text(cell, *flags, stdin=None):
    return support.workcell("run", "--python", support.bare_python(), *map(str, flags), "-e", cell, stdin=stdin)


def named(driver, name):
    return [event for event in driver.events if event["event"] == name]


def test_a_question_waits_at_the_gate_and_its_content_goes_to_the_server(asking, tmp_path):
    driver = asking("--audit", tmp_path / "audit.jsonl")
    request = ask(driver)
    assert (request["kind"], request["tool"], request["callable"], request["adapter"]) == ("question", "s", "ask", "mcp")
    assert request["args"] == {"message": "Who is it?", "requestedSchema": {
        "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}
    assert peers.messages(tmp_path / "log", "initialize")[0]["params"]["capabilities"] == {"elicitation": {}}
    for wrong in ({}, {"content": {"name": 7}}, {"content": {}}, {"content": {"name": "x"}, "always": True}):
        assert answer(driver, id=request["id"], accept=True, **wrong)["error"]["code"] == "invalid", wrong
    assert answer(driver, id=request["id"], accept=True, content={"name": "Ada"})["value"] == {
        "action": "accept", "content": {"name": "Ada"}}
    assert [event["decision"] for event in named(driver, "approval_ended")] == ["accepted"]
    assert answer(driver, id=request["id"], accept=True)["error"]["code"] == "not_found"
    with open(tmp_path / "audit.jsonl") as file:
        records = {record["kind"]: record for record in map(json.loads, file)}
    assert records["question"]["decision"] == "accepted" and records["question"]["args"]["message"] == "Who is it?"


def test_rejected_is_declined_and_the_cell_goes_on(asking):
    driver = asking()
    request = ask(driver)
    assert answer(driver, id=request["id"], accept=False, reason="not now")["value"] == {"action": "decline"}
    ask(driver)
    # A yes to all that waits is no answer to a question; a no is.
    assert driver.send({"op": "answer", "accept": True}) is None and driver.answer() == {"op": "answer", "ok": True}
    assert answer(driver, accept=False)["value"] == {"action": "decline"}


def test_nobody_answers(asking):
    driver = asking("--approval-timeout", "0.2", timeout=0.1)
    driver.send({"code": "tools.s.ask(message='Who?')"})
    assert driver.answer()["value"] == {"action": "cancel"}  # and the call's own time did not run meanwhile
    assert [event["decision"] for event in named(driver, "approval_ended")] == ["expired"]


def test_a_question_goes_with_the_call_that_it_belongs_to(asking, tmp_path):
    driver = asking()
    ask(driver)
    driver.interrupt()
    assert driver.answer()["error"]["code"] == "interrupted"
    assert [event["decision"] for event in named(driver, "approval_ended")] == ["cancelled"]
    request = ask(driver, "import threading; t = threading.Thread(target=lambda: tools.s.ask(message='x')); t.start(); t.join()")
    driver.interrupt()
    driver.answer()
    driver.reset()
    assert driver.value("1") == 1
    error = answer(driver, id=request["id"], accept=True, content={"name": "late"})["error"]
    assert error["code"] == "not_found"


def test_a_question_goes_with_its_server(asking):
    driver = asking()
    driver.value("tools.s.echo(text='x')")
    pid = driver.value("tools.s.pid()['pid']")
    ask(driver, "try:\n    tools.s.ask(message='Who?')\nexcept ToolCallError as e:\n    found = str(e)\nfound")
    os.kill(pid, 9)
    assert "killed by signal 9" in driver.answer()["value"]
    assert [event["decision"] for event in named(driver, "approval_ended")] == ["cancelled"]


def test_several_questions_in_any_order(asking):
    driver = asking()
    driver.send({"code": "import asyncio\nawait asyncio.gather(*(tools.s.ask.call_async(message=str(i)) for i in range(3)))"})
    requests = {request["args"]["message"]: request["id"] for request in (pending(driver) for _ in range(3))}
    for name in "21":
        driver.send({"op": "answer", "id": requests[name], "accept": True, "content": {"name": name}})
        assert driver.answer() == {"op": "answer", "ok": True}
    found = answer(driver, id=requests["0"], accept=True, content={"name": "0"})["value"]
    assert [one["content"]["name"] for one in found] == ["0", "1", "2"]


@pytest.mark.parametrize("how", ["sse", "get", "old"])
def test_questions_by_http(drive, tmp_path, how):
    """In the stream of the call, in the one of what comes unasked, and by the older transport."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    with web.WebMCP() as server:
        server.how = "json" if how == "get" else "sse"
        base = peers.write_server(tmp_path, "s", url=server.sse_url if how == "old" else server.url)
        driver = drive("--base", base, "--policy", tmp_path / "policy.yaml")
        request = ask(driver)
        assert answer(driver, id=request["id"], accept=True, content={"name": "Ada"})["value"] == {
            "action": "accept", "content": {"name": "Ada"}}
        assert driver.value("tools.s.progress(steps=2)") == "2 steps"
        if how != "get":  # there what is said and the answer come by different ways, in any order
            assert len(named(driver, "tool_progress")) == 2
        driver.close()


def test_a_person_fills_in_a_form(tmp_path):
    base = peers.write_server(tmp_path, "s", **peers.scripted())
    (tmp_path / "policy.yaml").write_text(POLICY)
    flags = ["--base", base, "--policy", tmp_path / "policy.yaml"]
    cell = "tools.s.ask(message='Who\\x1b[1m?')"
    done = run_text(cell, *flags, stdin=b"what\ny\n\ny\nAda\n")
    assert done.out == "{'action': 'accept', 'content': {'name': 'Ada'}}\n"
    text = done.err
    assert 's.ask (mcp) asks: "Who\\u001B[1m?"' in text and "'name' is missing" in text
    done = run_text(cell, *flags, stdin=b"n\n")
    assert done.out == "{'action': 'decline'}\n"
    done = run_text(cell, *flags, stdin=b"")
    assert done.out == "{'action': 'decline'}\n"


def test_progress_and_log_lines_are_events(asking, tmp_path):
    driver = asking()
    assert driver.value("tools.s.progress(steps=3)") == "3 steps"
    events = named(driver, "tool_progress")
    assert [(e["tool"], e["callable"], e["params"]["progress"], e["params"]["message"]) for e in events] == [
        ("s", "progress", n, "step %d" % n) for n in (1, 2, 3)]
    started = named(driver, "call_started")
    assert {e["id"] for e in events} == {e["id"] for e in started if e["callable"] == "progress"}
    assert driver.value("tools.s.log(text='be careful')") == "logged"
    line, = named(driver, "tool_log")
    assert (line["tool"], line["params"]) == ("s", {"level": "warning", "logger": "scripted", "data": "be careful"})
    done = run_text("tools.s.progress(steps=2); tools.s.log(text='a\\x1b[1mb\\nc')", "--base", tmp_path)
    assert done.err == "workcell: s.progress: 1/2 step 1\nworkcell: s.progress: 2/2 step 2\nworkcell: s.log: warning: a\\x1b[1mb\n"


SLOW = """printf 'npm http fetch\\033[1m GET\\033[0m %s\\r\\n' "$TOKEN" >&2; while [ ! -e "$0" ]; do sleep 0.1; done; exec "$@\""""


def slow(tmp_path):
    """A server that says on stderr what it does before it starts, as `npx -y` does, and starts when the file `go` is there."""
    known = peers.scripted()
    return peers.write_server(tmp_path, "s", **{**known, "command": "/bin/sh", "env": {**known.get("env", {}), "TOKEN": "${START_TOKEN}"},
                                                "args": ["-c", SLOW, str(tmp_path / "go"), known["command"], *known["args"]]})


def test_a_start_that_takes_long_is_told_to_those_who_wait(drive, tmp_path):
    driver = drive("--base", slow(tmp_path), env=support.host_environment(START_TOKEN="s3cr3t-of-the-start"))
    driver.send({"code": "tools.s.echo(text='x')"})
    while not named(driver, "tool_progress"):
        driver.events.append(driver.read())
    said, = named(driver, "tool_progress")
    assert said["tool"] == "s" and said["params"]["progress"] >= 0
    words = said["params"]["message"]
    assert words.startswith("starting for ") and "s: npm http fetch GET " in words and "s3cr3t" not in words
    driver.events.append(driver.read())  # and again, while it is silent
    assert named(driver, "tool_progress")[1]["params"]["progress"] > said["params"]["progress"]
    (tmp_path / "go").touch()
    assert driver.answer()["value"] == "x"


def test_the_list_says_what_a_starting_server_says(drive, tmp_path):
    driver = drive("--base", slow(tmp_path), env=support.host_environment(START_TOKEN="s3cr3t-of-the-start"))
    problem = driver.value("[t.get('problem') for t in __import__('json').loads(__import__('json').dumps(tools.list())) if t['name'] == 's'][0]")
    assert "is still starting" in problem and "it says: npm http fetch GET" in problem and "s3cr3t" not in problem
    (tmp_path / "go").touch()


def test_images_are_files_like_plots(asking, tmp_path):
    folder = tmp_path / "shown"
    driver = asking("--images-dir", folder)
    result = driver.run("picture = tools.s.image()\n1")
    path, = result["images"]
    assert os.path.dirname(path) == str(folder) and path.endswith(".png")
    with open(path, "rb") as file:
        assert file.read() == bytes(driver.value("list(picture)"))
    assert [event["path"] for event in named(driver, "image")] == [path]
    # Shown, it is the same file, and its bytes are in no display.
    for cell, count in (("tools.s.image()", 1), ("display(tools.s.image())", 1), ("tools.s.two_images()", 2),
                        ("display(picture)", 1)):
        result = driver.run(cell)
        assert len(result["images"]) == count, cell
        assert not any("image/png" in shown for shown in result["displays"] + [result["mime"]]), cell
    assert len(os.listdir(folder)) == 6
