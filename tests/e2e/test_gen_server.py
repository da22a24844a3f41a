"""workcell gen mcp from a server that runs, and the modules it makes, called in a session through the gate."""
import base64
import json
import os
import shlex
import subprocess
import sys

import pytest

import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402
import scripted  # noqa: E402


def generate(tmp_path, name, argv):
    done = support.workcell("gen", "mcp", "--name", name, "--command", " ".join(map(shlex.quote, argv)), "--out",
                            str(tmp_path / "mcptools"))
    assert done.status == 0, done
    return done.out.split()


def test_a_scripted_server(drive, tmp_path):
    params = peers.scripted()
    assert "echo" in generate(tmp_path, "s", [params["command"], *params["args"]])
    driver = drive("--base", peers.write_server(tmp_path, "s", **params), cwd=str(tmp_path))
    assert driver.value("from mcptools.s.echo import Params, run\nstr(run(Params(text='hello')))").count("hello") == 1


def test_modules_pass_the_gate(drive, tmp_path):
    params = peers.scripted()
    generate(tmp_path, "s", [params["command"], *params["args"]])
    driver = drive("--base", peers.write_server(tmp_path, "s", **params), "--approve", "ask", cwd=str(tmp_path))
    driver.start("from mcptools.s.echo import Params, run\nrun(Params(text='hello'))")
    request = driver.next_event(lambda event: event["event"] == "approval")
    assert (request["adapter"], request["tool"], request["callable"], request["args"]) == ("mcp", "s", "echo", {"text": "hello"})
    driver.send({"op": "answer", "id": request["id"], "accept": False, "reason": "no"})
    answers = [driver.answer(), driver.answer()]
    result = [answer for answer in answers if "duration_ms" in answer][0]
    assert result["error"]["code"] == "rejected" and "s.echo rejected: no" in result["error"]["message"]


# ---- every tool of the servers from npm --------------------------------------------------------------------

# What to call each with, and what the answer has in it; they run in this order. DIR is the server's folder.
CALLS = {
    "everything": {
        "echo": ({"message": "hi"}, "Echo: hi"),
        "get_annotated_message": ({"messageType": "success", "includeImage": True}, "<image image/png"),
        "get_env": ({}, "PATH"),
        "get_resource_links": ({"count": 2}, "resource_link"),
        "get_resource_reference": ({"resourceType": "Blob", "resourceId": 2}, "<data "),
        "get_structured_content": ({"location": "Chicago"}, "temperature="),
        "get_sum": ({"a": 1, "b": 2}, "3"),
        "get_tiny_image": ({}, "<image image/png"),
        "gzip_file_as_resource": ({"name": "x.gz", "data": "data:text/plain,hello", "outputType": "resource"}, "application/gzip"),
        "toggle_simulated_logging": ({}, "simulated"),
        "toggle_subscriber_updates": ({}, "simulated resource update"),
        "trigger_long_running_operation": ({"duration": 0.1, "steps": 2}, "completed"),
        "simulate_research_query": ({"topic": "cells"}, "Research Report: cells"),
        "trigger_elicitation_request": ({}, "declined"),
    },
    "filesystem": {
        "list_allowed_directories": ({}, "DIR"),
        "create_directory": ({"path": "DIR/sub"}, "sub"),
        "write_file": ({"path": "DIR/a.txt", "content": "one\ntwo\n"}, "a.txt"),
        "edit_file": ({"path": "DIR/a.txt", "edits": [{"oldText": "one", "newText": "one"}]}, "a.txt"),
        "read_file": ({"path": "DIR/a.txt"}, "one"),
        "read_text_file": ({"path": "DIR/a.txt", "head": 1}, "one"),
        "read_media_file": ({"path": "DIR/a.png"}, "image/png"),
        "read_multiple_files": ({"paths": ["DIR/a.txt"]}, "two"),
        "list_directory": ({"path": "DIR"}, "a.txt"),
        "list_directory_with_sizes": ({"path": "DIR", "sortBy": "size"}, "a.txt"),
        "directory_tree": ({"path": "DIR"}, "a.txt"),
        "search_files": ({"path": "DIR", "pattern": "**/*.txt"}, "a.txt"),
        "get_file_info": ({"path": "DIR/a.txt"}, "size"),
        "move_file": ({"source": "DIR/from-%(how)s", "destination": "DIR/to-%(how)s"}, "to-"),
    },
    "memory": {
        "create_entities": ({"entities": [{"name": "Ada", "entityType": "person", "observations": ["counts"]}]}, "Result("),
        "create_relations": ({"relations": [{"from": "Ada", "to": "Engine", "relationType": "programs"}]}, "relations="),
        "add_observations": ({"observations": [{"entityName": "Ada", "contents": ["writes"]}]}, "Ada"),
        "read_graph": ({}, "Ada"),
        "search_nodes": ({"query": "Ada"}, "Ada"),
        "open_nodes": ({"names": ["Ada"]}, "Ada"),
        "delete_observations": ({"deletions": [{"entityName": "Ada", "observations": ["nothing"]}]}, "success=True"),
        "delete_relations": ({"relations": [{"from": "x", "to": "y", "relationType": "z"}]}, "success=True"),
        "delete_entities": ({"entityNames": ["nobody"]}, "success=True"),
    },
}
# In the session: both faces of each, one after the other; what takes seconds meanwhile.
RUN = """
import asyncio, importlib, json
async def both(server, tool, by_how):
    module = importlib.import_module("mcptools.%s.%s" % (server, tool))
    made = {how: module.Params(**args) for how, args in by_how.items()}
    if tool == "simulate_research_query":
        waiting = asyncio.get_event_loop().run_in_executor(None, module.run, made["run"])
        return [repr(one) for one in await asyncio.gather(waiting, module.run_async(made["run_async"]))]
    return [repr(module.run(made["run"])), repr(await module.run_async(made["run_async"]))]
async def every(server, calls):
    return {tool: await both(server, tool, by_how) for tool, by_how in calls.items()}
"""


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """mypy --strict of the packages in a folder: what it says."""
    cache = tmp_path_factory.mktemp("mypy")

    def run(folder):
        return subprocess.run([support.PYTHON, "-m", "mypy", "--strict", "--namespace-packages", "--explicit-package-bases",
                               "--cache-dir", str(cache), "mcptools"], cwd=str(folder), stdout=subprocess.PIPE, encoding="utf-8",
                              env=dict(os.environ, MYPYPATH=str(folder)), timeout=600, check=False).stdout
    return run


def answers(driver, code):
    """The value of a cell whose servers ask a person, who does not want to say."""
    driver.send({"code": code})
    while True:
        got = driver.read()
        if got.get("event") == "approval":
            assert got["kind"] == "question" and got["args"]["requestedSchema"]["properties"]
            driver.send({"op": "answer", "id": got["id"], "accept": False})
        elif got.get("event") == "result":
            assert got["error"] is None, got
            return got["value"]


@pytest.mark.parametrize("name", CALLS)
def test_every_tool_of_real_servers(drive, mypy, tmp_path, name):
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.png").write_bytes(base64.b64decode(scripted.PNG))
    for how in ("run", "run_async"):
        (files / ("from-" + how)).write_text(how)
    argv = {"everything": peers.everything(), "filesystem": peers.filesystem(files), "memory": peers.memory()}[name]
    modules = generate(tmp_path, name, argv)
    assert sorted(modules) == sorted(CALLS[name])
    assert "no issues found in %d source files" % (len(modules) + 2) in mypy(tmp_path)
    peers.write_server(tmp_path, name, env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}, **peers.params(argv))
    (tmp_path / "policy.yaml").write_text("default: allow\nrules:\n  - {decision: ask, tool: something-else}\n")
    driver = drive("--base", tmp_path, "--policy", tmp_path / "policy.yaml", cwd=str(tmp_path))
    text = json.dumps({tool: args for tool, (args, _) in CALLS[name].items()}).replace("DIR", str(files))
    calls = {tool: {how: json.loads(json.dumps(args).replace("%(how)s", how)) for how in ("run", "run_async")}
             for tool, args in json.loads(text).items()}
    driver.value(RUN + "1")
    found = answers(driver, "await every(%r, json.loads(%r))" % (name, json.dumps(calls)))
    for tool, (_, words) in CALLS[name].items():
        for answer in found[tool]:
            assert words.replace("DIR", str(files)) in answer, (tool, answer)


@pytest.mark.parametrize("flags, words", [
    ((), "--command, --url, --schema, --tools and --base"),
    (("--command", "a", "--url", "http://b/mcp"), "one of"),
    (("--command", "  "), "no program"),
    (("--command", "'open"), "quote"),
    (("--command", "/does/not/exist"), "exist"),
    (("--url", "http://127.0.0.1:9/mcp"), "127.0.0.1"),
])
def test_what_cannot_be_asked(tmp_path, flags, words):
    done = support.workcell("gen", "mcp", "--name", "s", "--out", str(tmp_path), "--json", *flags)
    assert done.status in (1, 2) and words in json.loads(done.out)["error"]["message"], done
