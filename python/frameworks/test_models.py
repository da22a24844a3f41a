"""workcell.integrations.anthropic and .openai with their client libraries and a server that stands in for the models."""
import os
import sys

import pytest
from conftest import ROOT, run

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")
sys.path.insert(0, os.path.join(ROOT, "examples", "agents"))
from standin import StandIn  # noqa: E402

from workcell import Session  # noqa: E402
from workcell.integrations import anthropic as messages_api  # noqa: E402
from workcell.integrations import openai as completions_api  # noqa: E402

CODES = ["t = 3 * tools.price(item='tea')", "print('\\x1b[2J')\n1 / 0", "t"]


def price(item: str) -> float:
    """The price of an item."""
    return {"tea": 4.5}[item]


def test_loops(tmp_path):
    async def main():
        found = []
        async with Session(None, "sandbox", tools=[price]) as session:
            with StandIn(CODES) as server:
                client = anthropic.AsyncAnthropic(api_key="x", base_url=server.url)
                talk = [{"role": "user", "content": "go"}]
                message = await messages_api.run(client, session, talk, model="m", system="Be brief.")
                found.append((message.content[0].text, server.requests))
                await client.close()
            assert talk[2]["content"][0]["type"] == "tool_result" and talk[-1]["role"] == "assistant"
            with StandIn(CODES) as server:
                client = openai.AsyncOpenAI(api_key="x", base_url=server.url + "/v1")
                talk = [{"role": "user", "content": "go"}]
                message = await completions_api.run(client, session, talk, model="m")
                found.append((message.content, server.requests))
                with pytest.raises(RuntimeError, match="after 1 turns"):
                    server.requests.clear()
                    await completions_api.run(client, session, [], model="m", max_turns=1)
                await client.close()
        return found

    (text, requests), (other, _) = run(main())
    assert "13.5" in text and "13.5" in other
    assert requests[0]["system"].startswith("Be brief.") and "tools.price(item: str)" in requests[0]["system"]
    error = requests[2]["messages"][-1]["content"][0]
    assert "ZeroDivisionError" in error["content"] and "\x1b" not in error["content"]


def test_hostile_calls():
    async def main():
        async with Session(None, "sandbox", tools=[price]) as session:
            blocks = [{"type": "tool_use", "id": "1", "name": name, "input": given} for name, given in (
                ("run_code", None), ("run_code", {"code": 5}), ("__class__", {}), ("price", {"item": {"a": 1}}), ("price", {"other": 1}),
                ("../../x\x1b[2J", {"code": "1"}), ("run_code", {"code": "'y' * 10_000_000"}))]
            results = await messages_api.tool_results(session, [{"type": "text", "text": "hm"}, *blocks])
            calls = [{"id": "1", "function": {"name": "run_code", "arguments": each}} for each in ("{", "[]", "null", '{"code": "6 * 7"}')]
            return results, await completions_api.tool_messages(session, [*calls, {"id": "2"}])

    results, messages = run(main())
    assert len(results) == 7 and all(each.get("is_error") for each in results[:6]), results
    assert all("\x1b" not in each["content"] and len(each["content"]) < 21000 for each in results)
    assert [each["content"].startswith("Error: ") for each in messages] == [True, True, True, False, True] and messages[3]["content"] == "42"
