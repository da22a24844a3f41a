"""workcell gen mcp from a server that runs, and the modules it makes, called in a session through the gate."""
import json
import os
import shlex
import sys

import pytest

import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402


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


@pytest.mark.parametrize("name, argv", [("everything", peers.everything), ("memory", peers.memory)])
def test_real_servers(tmp_path, name, argv):
    modules = generate(tmp_path, name, argv())
    assert len(modules) >= 5
    for module in modules:
        compile((tmp_path / "mcptools" / name / (module + ".py")).read_text(), module, "exec")


@pytest.mark.parametrize("flags, words", [
    ((), "--command, --url and --schema"),
    (("--command", "a", "--url", "http://b/mcp"), "one of"),
    (("--command", "  "), "no program"),
    (("--command", "'open"), "quote"),
    (("--command", "/does/not/exist"), "exist"),
    (("--url", "http://127.0.0.1:9/mcp"), "127.0.0.1"),
])
def test_what_cannot_be_asked(tmp_path, flags, words):
    done = support.workcell("gen", "mcp", "--name", "s", "--out", str(tmp_path), "--json", *flags)
    assert done.status in (2, 125) and words in json.loads(done.out)["error"]["message"], done
