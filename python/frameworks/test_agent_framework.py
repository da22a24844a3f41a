"""workcell.integrations.agent_framework with the framework's agent and a client that replays answers."""
import os

import pytest

pytest.importorskip("agent_framework")
from agent_framework import (Agent, BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message, tool)  # noqa: E402

from conftest import run  # noqa: E402
from workcell.integrations.agent_framework import WorkcellCodeActProvider, WorkcellExecuteCodeTool  # noqa: E402


class Replay(FunctionInvocationLayer, BaseChatClient):
    codes, seen = [], []

    async def _inner_get_response(self, *, messages, stream, options, **kwargs):
        results = [str(part.result) for part in messages[-1].contents if part.type == "function_result"]
        self.seen.extend(results)
        if self.codes:
            part = Content.from_function_call(call_id="call_%d" % len(self.codes), name="execute_code", arguments={"code": self.codes.pop(0)})
            return ChatResponse(messages=[Message("assistant", [part])])
        return ChatResponse(messages=[Message("assistant", [results[-1]])])


calls = []


@tool(approval_mode="never_require")
def price(item: str, amounts: list[int]) -> dict:
    """The price of an item."""
    calls.append((item, amounts, os.getpid()))
    return {"total": 4.5 * sum(amounts)}


def test_agent():
    async def main():
        async with WorkcellExecuteCodeTool([price]) as code:
            client = Replay()
            client.codes = ["t = price('tea', [1, 2])['total']", "price('tea', amounts=['many'])", "print('\\x1b[2J')\n1 / 0", "t * 2"]
            client.seen = []
            answer = await Agent(client=client, tools=[code.tool]).run("go")
            return answer.text, client.seen

    text, seen = run(main())
    assert text == "27.0" and calls == [("tea", [1, 2], os.getpid())]
    assert "Error" in seen[1] and "ZeroDivisionError" in seen[2] and "\x1b" not in seen[2]


def test_approvals_are_not_bypassed():
    @tool(approval_mode="always_require")
    def wipe() -> str:
        """Deletes everything."""
        raise AssertionError

    with pytest.raises(ValueError, match="needs an approval"):
        WorkcellExecuteCodeTool([wipe])
    with pytest.raises(ValueError, match="without isolation"):
        WorkcellExecuteCodeTool(executor="inprocess")


def test_codeact_provider():
    async def main():
        async with WorkcellCodeActProvider([price]) as codeact:
            client = Replay()
            client.codes = ["x = call_tool('price', item='tea', amounts=[2])['total']", "call_tool('os')", "price('cake', [1])['total'] + x"]
            client.seen = []
            agent = Agent(client=client, context_providers=[codeact])
            session = agent.create_session()
            first = (await agent.run("go", session=session)).text
            codeact.remove_tool("price")
            client.codes = ["x + 1", "price('tea', [1])"]
            await agent.run("again", session=session)
            assert codeact.get_tools() == []
            return first, list(client.seen)

    first, seen = run(main())
    assert first == "13.5" and "there is no tool" in seen[1]
    assert seen[-2] == "10.0" and "no such tool any more" in seen[-1]


def test_codeact_asks_where_a_tool_would():
    @tool(approval_mode="always_require")
    def wipe() -> str:
        """Deletes everything."""
        raise AssertionError

    async def main():
        async with WorkcellCodeActProvider([wipe]) as codeact:
            client = Replay()
            client.codes, client.seen = ["wipe()"], []
            response = await Agent(client=client, context_providers=[codeact]).run("go")
            return response, client.seen

    response, seen = run(main())
    assert response.user_input_requests and not seen
    with pytest.raises(ValueError, match="without isolation"):
        WorkcellCodeActProvider(executor="inprocess")
