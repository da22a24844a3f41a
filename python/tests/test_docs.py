"""The examples of docs/python, the example agents, and the API reference."""
import glob
import importlib
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT, run
from test_seeds import execute

PAGES = sorted([*glob.glob(os.path.join(ROOT, "docs", "python", "*.md")), os.path.join(ROOT, "docs", "branches.md")])


def blocks(path):
    with open(path, encoding="utf-8") as file:
        return re.findall(r"```python\n(.*?)```", file.read(), re.S)


WITH_CODE = [path for path in PAGES if blocks(path)]


@pytest.mark.parametrize("path", WITH_CODE, ids=[os.path.basename(path) for path in WITH_CODE])
def test_page(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def main():
        names = {}
        for code in blocks(path):
            await execute(code, names)

    run(main())


def test_links_lead_somewhere():
    for path in PAGES:
        with open(path, encoding="utf-8") as file:
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read()):
                assert os.path.exists(os.path.join(os.path.dirname(path), target)), (path, target)


@pytest.fixture
def agents(monkeypatch):
    monkeypatch.syspath_prepend(os.path.join(ROOT, "examples", "agents"))
    return importlib.import_module


def test_analyst(agents):
    answer, kept = run(agents("analyst").main())
    assert kept == {"north": 295, "south": 240} and "north" in answer


def test_careful(agents):
    answer, sent, decisions = run(agents("careful").main())
    assert sent == [("ann@example.org", "hello -- sent by an agent")]
    assert "FileNotFoundError" in answer
    assert decisions == ["rejected", "accepted"]


def test_librarian(agents):
    answer, seen = run(agents("librarian").main())
    assert "('the', 2)" in answer or "['the', 2]" in answer
    assert "chunk" in seen and seen.count("result") == 3


CODES = ["total = 2 * tools.price(item='tea') + tools.price(item='coke')", "total = 2 * tools.price(item='tea') + tools.price(item='cake')\ntotal"]


def test_openai_client(agents, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    standin, openai = agents("standin"), pytest.importorskip("openai")
    with standin.StandIn(CODES) as server:
        client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none")
        assert run(agents("with_openai").main(client)) == "12.0"
    first, second, third = server.requests
    assert first["tools"][0]["function"]["name"] == "run_code" and "tools.price(item: str)" in first["messages"][0]["content"]
    assert second["messages"][-1]["role"] == "tool" and "ToolCallError" in second["messages"][-1]["content"]
    assert third["messages"][-1] == {"role": "tool", "tool_call_id": "call_1", "content": "12.0"}


def test_anthropic_client(agents, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    standin, anthropic = agents("standin"), pytest.importorskip("anthropic")
    with standin.StandIn(CODES) as server:
        client = anthropic.AsyncAnthropic(base_url=server.url, api_key="none")
        assert run(agents("with_anthropic").main(client)) == "12.0"
    first, second, third = server.requests
    assert first["tools"][0]["name"] == "run_code" and "tools.price(item: str)" in first["system"]
    assert "ToolCallError" in second["messages"][-1]["content"][0]["content"]
    assert third["messages"][-1]["content"] == [{"type": "tool_result", "tool_use_id": "call_1", "content": "12.0"}]


@pytest.mark.skipif(sys.version_info[:2] < (3, 11), reason="the page is made with a newer Python")
def test_the_api_reference_is_up_to_date():
    subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "python-api.py"), "--check"], check=True)
