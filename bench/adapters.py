"""What the adapters of workcell.integrations cost over the SDK itself: adapters.py BUILD [CALLS]

Needs the frameworks: run it with build/frameworks-venv/bin/python (scripts/setup.sh frameworks). Each line is the median time of the same small
cell by the session and by the adapter on that session, one after the other in turn, in microseconds. Ends with 1 if one costs more than 200 us.
"""
import asyncio
import json
import os
import statistics
import sys
import time

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build")
CALLS = int(sys.argv[2]) if len(sys.argv) > 2 else 400
LIMIT_US = 200
sys.path.insert(0, os.path.join(BUILD, "python-site"))
os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", LANGSMITH_TRACING="false", LITELLM_LOCAL_MODEL_COST_MAP="True")
os.chdir("/tmp")
CELL = "n = 6 * 7"
failed = []


def report(name, plain, adapted):
    plain, adapted = (statistics.median(each[len(each) // 10:]) * 1e6 for each in (plain, adapted))
    over = adapted - plain
    print("%-18s session %6.0f us   adapter %6.0f us   over %5.0f us%s" % (name, plain, adapted, over, "" if over <= LIMIT_US else "   TOO MUCH"), flush=True)
    if over > LIMIT_US:
        failed.append(name)


def measure(name, session, call):
    plain, adapted = [], []
    for _ in range(CALLS):
        for times, fn in ((plain, session.run), (adapted, call)):
            begin = time.perf_counter()
            fn(CELL)
            times.append(time.perf_counter() - begin)
    report(name, plain, adapted)


async def measure_async(name, session, call):
    plain, adapted = [], []
    for _ in range(CALLS):
        for times, fn in ((plain, session.run), (adapted, call)):
            begin = time.perf_counter()
            await fn(CELL)
            times.append(time.perf_counter() - begin)
    report(name, plain, adapted)


def blocking():
    from workcell.integrations.smolagents import WorkcellExecutor

    executor = WorkcellExecutor()
    measure("smolagents", executor.session, executor)
    executor.cleanup()

    from workcell.integrations.dspy import WorkcellInterpreter

    with WorkcellInterpreter() as interpreter:
        measure("dspy", interpreter._need(), interpreter.execute)

    from workcell.integrations.langchain import WorkcellCodeTool

    with WorkcellCodeTool() as code:
        measure("langchain", code.session, code.tool.func)

    from google.adk.code_executors.code_execution_utils import CodeExecutionInput
    from workcell.integrations.adk import WorkcellCodeExecutor

    made = WorkcellCodeExecutor()
    session, _ = made._session("a")
    measure("adk", session, lambda cell: made.execute_code(None, CodeExecutionInput(cell, [], "a")))
    made.close()


async def awaited():
    from agents.tool_context import ToolContext
    from workcell.integrations.openai_agents import WorkcellCodeTool

    async with WorkcellCodeTool() as code:
        context = ToolContext(None, tool_name="run_code", tool_call_id="1", tool_arguments="")
        await measure_async("openai_agents", code.session, lambda cell: code.tool.on_invoke_tool(context, json.dumps({"code": cell})))

    from workcell.integrations.pydantic_ai import CodeModeToolset

    async with CodeModeToolset() as toolset:
        await measure_async("pydantic_ai", toolset.code.session, lambda cell: toolset.call_tool("run_code", {"code": cell}, None, None))

    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock
    from workcell.integrations.autogen_executor import WorkcellCodeExecutor

    async with WorkcellCodeExecutor() as executor:
        await measure_async("autogen", executor.session, lambda cell: executor.execute_code_blocks([CodeBlock(cell, "python")], CancellationToken()))

    from workcell.integrations.agent_framework import WorkcellExecuteCodeTool

    async with WorkcellExecuteCodeTool() as code:
        await measure_async("agent_framework", code.session, lambda cell: code.tool.invoke(arguments={"code": cell}))

    from workcell.integrations.llama_index import WorkcellCode

    async with WorkcellCode() as code:
        await measure_async("llama_index", code.session, code.execute)

    from workcell import Session
    from workcell.integrations._common import open_async
    from workcell.integrations.anthropic import tool_results

    session, close = open_async(None, None, {})
    assert isinstance(session, Session)
    await measure_async("anthropic", session, lambda cell: tool_results(session, [{"type": "tool_use", "id": "1", "name": "run_code", "input": {"code": cell}}]))
    await close()


blocking()
asyncio.run(awaited())
sys.exit(1 if failed else 0)
