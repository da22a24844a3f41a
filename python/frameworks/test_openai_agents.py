"""workcell.integrations.openai_agents with the real Runner and a model that replays answers."""
import json
import os

import pytest

pytest.importorskip("agents")
from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool  # noqa: E402
from agents.run_context import RunContextWrapper  # noqa: E402
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText  # noqa: E402

from conftest import run  # noqa: E402
from workcell.integrations.openai_agents import WorkcellCodeTool  # noqa: E402


class Replay(Model):
    def __init__(self, *codes):
        self.codes, self.inputs = list(codes), []

    async def get_response(self, system_instructions, input, *rest, **options):
        self.inputs.append(input)
        if self.codes:
            arguments = self.codes.pop(0)
            output = ResponseFunctionToolCall(type="function_call", call_id="call_%d" % len(self.codes), name="run_code",
                                              arguments=arguments if arguments.startswith("{") else json.dumps({"code": arguments}))
        else:
            text = next(each["output"] for each in reversed(input) if isinstance(each, dict) and each.get("type") == "function_call_output")
            output = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed",
                                           content=[ResponseOutputText(type="output_text", text=text, annotations=[])])
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *args, **options):
        raise NotImplementedError


calls = []


@function_tool
async def price(context: RunContextWrapper[dict], item: str, amounts: list[int]) -> float:
    """The price of an item.

    Args:
        item: what
        amounts: how many
    """
    calls.append((item, amounts, context.context, os.getpid()))
    return 4.5 * sum(amounts)


def outputs(model):
    return [each["output"] for each in model.inputs[-1] if isinstance(each, dict) and each.get("type") == "function_call_output"]


def test_agent():
    async def main():
        async with WorkcellCodeTool([price]) as code:
            model = Replay("total = price('tea', amounts=[1, 2])", "{broken", "price('tea', amounts=['many'])", "print('\\x1b[2J')\n1 / 0", "total * 2")
            result = await Runner.run(Agent(name="a", model=model, tools=[code.tool]), "go", context={"user": "ann"})
            return result.final_output, outputs(model)

    final, seen = run(main())
    assert final == "27.0" and calls == [("tea", [1, 2], {"user": "ann"}, os.getpid())]
    assert seen[1].startswith("Error: the argument code") and "ZeroDivisionError" in seen[3] and "\x1b" not in seen[3]


def test_approvals_are_not_bypassed():
    @function_tool(needs_approval=True)
    def wipe() -> str:
        """Deletes everything."""
        raise AssertionError

    with pytest.raises(ValueError, match="needs_approval"):
        WorkcellCodeTool([wipe])
    with pytest.raises(ValueError, match="without isolation"):
        WorkcellCodeTool(executor="inprocess")
