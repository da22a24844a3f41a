"""workcell.integrations.pydantic_ai with the real agent and FunctionModel."""
import os

import pytest

pytest.importorskip("pydantic_ai")
from pydantic_ai import Agent, DeferredToolRequests, FunctionToolset, ModelRetry, RunContext  # noqa: E402
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart  # noqa: E402
from pydantic_ai.models.function import FunctionModel  # noqa: E402

from conftest import run  # noqa: E402
from workcell.integrations.pydantic_ai import CodeMode, CodeModeToolset  # noqa: E402

calls = []


def price(ctx: RunContext[str], item: str, amounts: list[int]) -> dict:
    """The price of an item."""
    calls.append((item, amounts, ctx.deps, os.getpid()))
    if item == "nothing":
        raise ModelRetry("there is no nothing")
    return {"total": 4.5 * sum(amounts)}


def replay(*codes, name="run_code"):
    left = list(codes)

    def answer(messages, info):
        answer.tools = {each.name: each for each in info.function_tools}
        returned = [part.content for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        answer.seen += returned
        if left:
            return ModelResponse([ToolCallPart(name, {"code": left.pop(0)})])
        return ModelResponse([TextPart(str(returned[-1]) if returned else "none")])

    answer.seen, answer.tools = [], {}
    return answer


def test_agent():
    function = replay("t = price('tea', amounts=[1, 2])['total']", "price('tea', amounts=['many'])", "price(item=5, amounts=[])", "price('nothing', [])",
                      "print('\\x1b[2J' + 'y' * 1_000_000)", "import os; os._exit(1)", "price('cake', [2])")
    agent = Agent(FunctionModel(function), deps_type=str, toolsets=[CodeModeToolset(FunctionToolset([price]))])
    result = run(agent.run("go", deps="ann"))
    assert result.output == "{'total': 9.0}"
    assert [each[:3] for each in calls] == [("tea", [1, 2], "ann"), ("nothing", [], "ann"), ("cake", [2], "ann")] and calls[0][3] == os.getpid()
    assert set(function.tools) == {"run_code"} and "price(item: str, amounts: list)" in function.tools["run_code"].description
    assert "valid integer" in function.seen[1] and "there is no nothing" in function.seen[3]
    assert "\x1b" not in function.seen[4] and len(function.seen[4]) < 21000 and "lost" in function.seen[5]


def test_tools_that_need_an_approval_are_not_for_code():
    toolset = FunctionToolset()

    @toolset.tool_plain(requires_approval=True)
    def wipe() -> str:
        raise AssertionError

    function = replay("wipe()")
    agent = Agent(FunctionModel(function), toolsets=[CodeModeToolset(toolset)], output_type=[str, DeferredToolRequests])
    assert "NameError" in run(agent.run("go")).output and set(function.tools) == {"run_code", "wipe"}
    with pytest.raises(ValueError, match="without isolation"):
        CodeModeToolset(executor="inprocess")


def test_capability():
    function = replay("price('tea', amounts=[1, 2])['total']")
    agent = Agent(FunctionModel(function), deps_type=str, tools=[price], capabilities=[CodeMode()])
    assert run(agent.run("go", deps="ann")).output == "13.5"
    assert set(function.tools) == {"run_code"}
    with pytest.raises(ValueError, match="without isolation"):
        CodeMode(executor="inprocess")
