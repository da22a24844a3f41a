"""workcell.integrations.agent_framework with the framework's agent and a client that replays answers."""
import os

import pytest

pytest.importorskip("agent_framework")
from agent_framework import (Agent, BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message, tool)  # noqa: E402

from conftest import run  # noqa: E402
from workcell.integrations.agent_framework import WorkcellExecuteCodeTool  # noqa: E402


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
