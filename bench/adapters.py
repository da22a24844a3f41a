"""What the adapters of workcell.integrations cost over the SDK itself: adapters.py BUILD [CALLS] [NAME...]

Needs the frameworks: run it with build/frameworks-venv/bin/python (scripts/setup.sh frameworks). Each line has medians, in microseconds, of CALLS (400)
calls one after the other in turn: the same cell by the session itself, by the framework's own entry point on the adapter, and, where the
framework puts something of its own around the call, the same entry point with a function that does nothing. `over` is what the adapter takes
more than the session; `ours` is that without the framework's part. Cells that run commands (deepagents, Inspect AI, the sandbox of the OpenAI
Agents SDK) are compared with the session that runs the same cell. Ends with 1 if the part that is ours costs more than 200 us.
"""
import asyncio
import json
import os
import statistics
import sys
import time

sys.path.pop(0)  # bench/agents.py is not the framework of that name
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build")
CALLS = int(sys.argv[2]) if len(sys.argv) > 2 else 400
ONLY = sys.argv[3:]
LIMIT_US = 200
sys.path.insert(0, os.path.join(BUILD, "python-site"))
os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", LANGSMITH_TRACING="false", LITELLM_LOCAL_MODEL_COST_MAP="True",
                  DSPY_CACHEDIR=os.path.join(BUILD, "dspy-cache"))
os.chdir("/tmp")
CELL = "1+1"
COMMAND = ["true"]
failed = []


def report(name, times):
    plain, adapted, *floor = (statistics.median(each[len(each) // 10:]) * 1e6 for each in times)
    over = adapted - plain
    ours = over - (floor[0] if floor else 0)
    framework = "framework %5.0f us   " % floor[0] if floor else " " * 21
    print("%-26s session %6.0f us   adapter %6.0f us   over %5.0f us   %sours %5.0f us%s" % (
        name, plain, adapted, over, framework, ours, "" if ours <= LIMIT_US else "   TOO MUCH"), flush=True)
    if ours > LIMIT_US:
        failed.append(name)


def measure(name, *calls):
    """Calls: of the session, of the adapter and, where it is given, of the framework with a function that does nothing."""
    times = [[] for _ in calls]
    for _ in range(CALLS):
        for each, call in zip(times, calls):
            begin = time.perf_counter()
            call()
            each.append(time.perf_counter() - begin)
    report(name, times)


async def measure_async(name, *calls):
    times = [[] for _ in calls]
    for _ in range(CALLS):
        for each, call in zip(times, calls):
            begin = time.perf_counter()
            await call()
            each.append(time.perf_counter() - begin)
    report(name, times)


def command(session, cell):
    """A cell whose value is what a command did, and that value: a session has it as text until it is asked for."""
    async def call():
        return (await session.run(cell)).value

    return call


async def nothing(code: str) -> str:
    """Does nothing."""
    return "2"


def nothing_sync(code: str) -> str:
    """Does nothing."""
    return "2"


# ---- adapters that block


def smolagents():
    from workcell.integrations.smolagents import WorkcellExecutor

    executor = WorkcellExecutor()
    measure("smolagents", lambda: executor.session.run(CELL), lambda: executor(CELL))
    executor.cleanup()


def dspy():
    from workcell.integrations.dspy import WorkcellInterpreter

    with WorkcellInterpreter() as interpreter:
        session = interpreter._open().session
        measure("dspy", lambda: session.run(CELL), lambda: interpreter.execute(CELL))


def langchain():
    from langchain_core.tools import StructuredTool
    from workcell.integrations.langchain import WorkcellCodeTool

    empty = StructuredTool.from_function(nothing_sync, nothing, name="run_code")
    with WorkcellCodeTool() as code:
        given = {"code": CELL}
        measure("langchain, invoke()", lambda: code.session.run(CELL), lambda: code.tool.invoke(given), lambda: empty.invoke(given))


async def langchain_async():
    from langchain_core.tools import StructuredTool
    from workcell.integrations.langchain import WorkcellCodeTool

    empty = StructuredTool.from_function(nothing_sync, nothing, name="run_code")
    with WorkcellCodeTool() as code:
        given = {"code": CELL}

        async def session():
            code.session.run(CELL)

        await measure_async("langchain, ainvoke()", session, lambda: code.tool.ainvoke(given), lambda: empty.ainvoke(given))


def deepagents():
    from workcell.integrations import _shell
    from workcell.integrations import deepagents as adapter

    with adapter.WorkcellSandbox() as backend:
        path = backend.session.run("import os; os.path.abspath('a.txt')").value
        assert backend.write(path, "one\n").error is None and backend.read(path).file_data["content"] == "one"
        cell = _shell.command("exec 2>&1\ntrue")
        measure("deepagents, execute()", lambda: backend.session.run(cell).value, lambda: backend.execute("true"))
        cells = []
        run = backend.session.run
        backend.session.run = lambda cell, *rest: (cells.append(cell), run(cell, *rest))[1]
        backend.read(path)
        backend.session.run = run
        measure("deepagents, read()", lambda: [run(cell).value for cell in cells], lambda: backend.read(path))


def adk():
    from google.adk.code_executors.code_execution_utils import CodeExecutionInput
    from workcell.integrations.adk import WorkcellCodeExecutor

    made = WorkcellCodeExecutor()
    session = made._sessions._enter("a").made
    measure("adk", lambda: session.run(CELL), lambda: made.execute_code(None, CodeExecutionInput(CELL, [], "a")))
    made.close()


# ---- adapters with an event loop


async def openai_agents():
    from agents import function_tool
    from agents.tool_context import ToolContext
    from workcell.integrations.openai_agents import WorkcellCodeTool

    empty = function_tool(nothing)
    async with WorkcellCodeTool() as code:
        context = ToolContext(None, tool_name="run_code", tool_call_id="1", tool_arguments="")
        given = json.dumps({"code": CELL})
        await measure_async("openai_agents", lambda: code.session.run(CELL), lambda: code.tool.on_invoke_tool(context, given),
                            lambda: empty.on_invoke_tool(context, given))


async def openai_agents_sandbox():
    from agents.sandbox.types import ExecResult
    from workcell.integrations import _shell
    from workcell.integrations.openai_agents_sandbox import WorkcellSandboxClient, WorkcellSandboxSession

    client = WorkcellSandboxClient()
    outer = await client.create()
    await outer.start()
    inner = outer._inner
    environment = await inner.state.manifest.environment.resolve()
    cell = _shell.command(COMMAND, cwd=inner.state.manifest.root, env=environment)
    real = WorkcellSandboxSession._exec_internal

    async def empty(self, *command, timeout=None):
        return ExecResult(stdout=b"", stderr=b"", exit_code=0)

    async def floor():
        WorkcellSandboxSession._exec_internal = empty
        await outer.exec(*COMMAND, shell=False)
        WorkcellSandboxSession._exec_internal = real

    await measure_async("openai_agents, sandbox", command(inner.session, cell), lambda: outer.exec(*COMMAND, shell=False), floor)
    await client.close()


async def pydantic_ai():
    from pydantic_ai import FunctionToolset
    from pydantic_ai.toolsets import WrapperToolset
    from workcell.integrations.pydantic_ai import CodeModeToolset

    class Empty(WrapperToolset):
        async def call_tool(self, name, tool_args, ctx, tool):
            return await nothing(tool_args["code"])

    given, empty = {"code": CELL}, Empty(FunctionToolset())
    async with CodeModeToolset() as toolset:
        await measure_async("pydantic_ai", lambda: toolset.code.session.run(CELL), lambda: toolset.call_tool("run_code", given, None, None),
                            lambda: empty.call_tool("run_code", given, None, None))


async def autogen():
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock
    from workcell.integrations.autogen_executor import WorkcellCodeExecutor

    async with WorkcellCodeExecutor() as executor:
        await measure_async("autogen", lambda: executor.session.run(CELL),
                            lambda: executor.execute_code_blocks([CodeBlock(CELL, "python")], CancellationToken()))


async def agent_framework():
    from agent_framework import FunctionTool
    from workcell.integrations.agent_framework import WorkcellExecuteCodeTool

    empty = FunctionTool(name="execute_code", description="", approval_mode="never_require", func=nothing)
    async with WorkcellExecuteCodeTool() as code:
        given = {"code": CELL}
        await measure_async("agent_framework", lambda: code.session.run(CELL), lambda: code.tool.invoke(arguments=given), lambda: empty.invoke(arguments=given))


async def llama_index():
    from workcell.integrations.llama_index import WorkcellCode

    async with WorkcellCode() as code:
        await measure_async("llama_index", lambda: code.session.run(CELL), lambda: code.execute(CELL))


async def inspect_ai():
    from workcell.integrations import _shell
    from workcell.integrations.inspect_ai import WorkcellSandboxEnvironment

    made = (await WorkcellSandboxEnvironment.sample_init("bench", None, {}))["default"]
    cell = _shell.command(COMMAND)
    await measure_async("inspect_ai", command(made.session, cell), lambda: made.exec(COMMAND))
    await WorkcellSandboxEnvironment.sample_cleanup("bench", None, {"default": made}, False)


async def plain_json():
    from workcell.integrations._common import open_async
    from workcell.integrations.anthropic import tool_results
    from workcell.integrations.anthropic_tools import code_execution
    from workcell.integrations.openai import tool_messages

    session, close = open_async(None, None, {})
    block = {"type": "tool_use", "id": "1", "name": "run_code", "input": {"code": CELL}}
    call = {"id": "1", "type": "function", "function": {"name": "run_code", "arguments": json.dumps({"code": CELL})}}
    await measure_async("anthropic", lambda: session.run(CELL), lambda: tool_results(session, [block]))
    await measure_async("anthropic, code_execution", lambda: session.run(CELL), lambda: code_execution(session, "code_execution", {"code": CELL}))
    await measure_async("openai", lambda: session.run(CELL), lambda: tool_messages(session, [call]))
    await measure_async("answer() of the SDK", lambda: session.run(CELL), lambda: session.answer("run_code", {"code": CELL}))
    await close()


for row in (smolagents, langchain, langchain_async, deepagents, openai_agents, openai_agents_sandbox, plain_json, dspy, pydantic_ai, autogen,
            agent_framework, adk, llama_index, inspect_ai):
    if ONLY and row.__name__ not in ONLY:
        continue
    if asyncio.iscoroutinefunction(row):
        asyncio.run(row())
    else:
        row()
sys.exit(1 if failed else 0)
