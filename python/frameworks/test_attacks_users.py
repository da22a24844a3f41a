"""Several users, threads, loops and processes of one adapter: whose variables, tools, answers and files they get."""
import asyncio
import copy
import datetime
import gc
import os
import pickle
import subprocess
import sys
import threading
import types
import zoneinfo

import pytest

from conftest import run
from test_attacks import ADAPTERS, adapter, close
from workcell.integrations._code import Code
from workcell.integrations._common import executor_for, literal
from workcell.integrations._conversations import Conversations

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def at_once(*calls):
    """What each call returned, from threads of their own that start together."""
    start, found = threading.Barrier(len(calls)), [None] * len(calls)

    def work(number, call):
        start.wait(30)
        found[number] = call()

    threads = [threading.Thread(target=work, args=each, daemon=True) for each in enumerate(calls)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not any(each.is_alive() for each in threads), "a call hangs"
    return found


# ---- conversations


def test_conversations_are_ended_when_nobody_uses_them():
    ended = []
    kept = Conversations(lambda: (object(), lambda: ended.append(1)), 2)
    with kept.of("a") as first:
        for key in "bcd":
            with kept.of(key):
                pass
        assert len(ended) == 2  # b and c: the longest unused goes first, and one that is used does not
        with kept.of("a") as again:
            assert again is first
    with kept.of("d"), kept.of("e"), kept.of("f"):
        assert len(ended) == 2
    assert len(ended) == 4 and len(kept.take_all()) == 2


def test_threads_of_langgraph_do_not_meet():
    pytest.importorskip("langchain")
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver
    from test_langchain import answers, replay
    from workcell.integrations.langchain import WorkcellCodeMiddleware

    def price(item: str) -> float:
        """The price."""
        return 4.5

    def turn(user, code, middleware, saver):
        agent = create_agent(replay(("run_code", {"code": code})), middleware=[middleware], checkpointer=saver)
        given, config = {"messages": [{"role": "user", "content": "go"}]}, {"configurable": {"thread_id": user}}
        return answers(agent.invoke(given, config))[-1], lambda: run(agent.aget_state(config))

    with WorkcellCodeMiddleware([price]) as middleware:
        saver = InMemorySaver()
        users = ["user %d" % number for number in range(4)]
        at_once(*(lambda user=user: turn(user, "mine = %r + str(price('tea'))" % user, middleware, saver) for user in users))
        assert [turn(user, "mine", middleware, saver)[0] for user in users] == ["'%s4.5'" % user for user in users]
        assert "NameError" in turn("another", "mine", middleware, saver)[0]
        assert "NameError" in middleware.code.tool.invoke({"code": "mine"})  # without a thread
        assert set(middleware.code.tool.args) == {"code"}


def test_conversations_of_the_agent_framework_do_not_meet():
    pytest.importorskip("agent_framework")
    from agent_framework import Agent, tool
    from test_agent_framework import Replay
    from workcell.integrations.agent_framework import WorkcellCodeActProvider

    @tool(approval_mode="always_require")
    def wipe() -> str:
        """Deletes everything."""
        raise AssertionError

    async def text(made, code):
        return "".join(part.text for part in await made.invoke(arguments={"code": code}))

    async def main():
        async with WorkcellCodeActProvider() as codeact:
            def agent_of(*codes):
                client = Replay()
                client.codes, client.seen = list(codes), []
                return Agent(client=client, context_providers=[codeact])

            ann, bob = agent_of().create_session(), agent_of().create_session()
            await asyncio.gather(*(agent_of("mine = %r" % name).run("go", session=session) for name, session in (("ann", ann), ("bob", bob))))
            seen = [(await agent_of("mine").run("go", session=each)).text for each in (ann, bob)]
            assert seen == ["'ann'", "'bob'"] and "NameError" in (await agent_of("mine").run("go")).text
            # A tool that is added while a run goes on is not one that this run has asked an approval for.
            context = types.SimpleNamespace(extend_instructions=lambda *given: None, extend_tools=lambda source, tools: context.made.extend(tools), made=[])
            await codeact.before_run(agent=None, session=ann, context=context, state={})
            codeact.add_tools(wipe)
            await codeact.before_run(agent=None, session=ann, context=context, state={})
            before, after = context.made
            assert (before.approval_mode, after.approval_mode) == ("never_require", "always_require")
            assert "NameError" in await text(before, "wipe()")
            # Also where the other run's code has made the function.
            async with codeact._conversation(ann, codeact._tools) as made:
                await made.text("keep = wipe", codeact._tools)
            assert "no such tool" in await text(before, "keep()")

    run(main())


def test_runs_of_pydantic_ai_do_not_meet():
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.function import FunctionModel
    from test_pydantic_ai import replay
    from workcell import Session
    from workcell.integrations.pydantic_ai import CodeMode, CodeModeToolset

    both = {}

    async def meet(ctx: pydantic_ai.RunContext[str]) -> str:
        """Waits until two runs are here."""
        both[ctx.deps] = True
        while len(both) < 2:
            await asyncio.sleep(0.005)
        return ctx.deps

    async def admin(ctx: pydantic_ai.RunContext[str]) -> str:
        """Not for everybody."""
        return "secret of " + ctx.deps

    async def only_for_ann(ctx, definition):
        return definition if ctx.deps == "ann" else None

    def toolset():
        made = pydantic_ai.FunctionToolset([meet])
        made.add_function(admin, prepare=only_for_ann)
        return made

    def agent_of(codes, **options):
        return pydantic_ai.Agent(FunctionModel(replay(*codes)), deps_type=str, **options)

    code = ["mine = meet()\nmine", "found = [meet()]\ntry: found.append(admin())\nexcept Exception as error: found.append(type(error).__name__)\n"
            "found + [mine, sorted(each for each in globals() if each.startswith('of_')) and of_ann]"]

    async def ask(user, lines, **options):
        return (await agent_of(["of_%s = 1" % user] + lines, **options).run("go", deps=user)).output

    async def main():
        shared = CodeModeToolset(toolset())
        for options in ({"toolsets": [shared]}, {"toolsets": [toolset()], "capabilities": [CodeMode()]}):
            both.clear()
            ann, bob = await asyncio.gather(ask("ann", code, **options), ask("bob", code, **options))
            assert ann == "['ann', 'secret of ann', 'ann', 1]", ann
            assert "NameError: name 'of_ann' is not defined" in bob, bob
        # Where they share a session on purpose, code still has only its own run's tools and dependencies.
        code[1] = code[1].replace(" and of_ann", "[:1]")
        async with Session(None, "sandbox") as session:
            for options in ({"toolsets": [CodeModeToolset(toolset(), session)]}, {"toolsets": [toolset()], "capabilities": [CodeMode(session)]}):
                ann = await ask("ann", ["keep = admin", "admin()"], **options)
                bob = await ask("bob", ["try: found = keep()\nexcept Exception as error: found = str(error)\nfound, of_ann"], **options)
                assert ann == "'secret of ann'" and "no such tool" in bob and bob.endswith(", 1)"), (ann, bob)
        # Entered around runs, they share the variables.
        agent = agent_of(["x = 1"], toolsets=[shared])
        async with agent:
            await agent.run("go", deps="ann")
            assert (await agent_of(["x + 1"], toolsets=[shared]).run("go", deps="ann")).output == "2"
        assert "NameError" in (await agent_of(["x"], toolsets=[shared]).run("go", deps="ann")).output

    run(main())


def test_toolsets_of_a_run_work_inside_of_code_mode():
    """Those that are made for a run, or for a step; and a toolset that is rebuilt keeps what it was made with."""
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.function import FunctionModel
    from test_pydantic_ai import replay
    from workcell.integrations.pydantic_ai import CodeMode, CodeModeToolset

    made = []

    def of_the_run(ctx: pydantic_ai.RunContext[str]):
        made.append(ctx.deps)
        return pydantic_ai.FunctionToolset([pydantic_ai.Tool(lambda: "for " + ctx.deps, name="whoami")])

    for per_step in (False, True):
        agent = pydantic_ai.Agent(FunctionModel(replay("whoami()")), deps_type=str, capabilities=[CodeMode()])
        agent.toolset(per_run_step=per_step)(of_the_run)
        assert run(agent.run("go", deps="ann")).output == "'for ann'"
    assert "ann" in made
    seen = []
    toolset = CodeModeToolset(pydantic_ai.FunctionToolset([pydantic_ai.Tool(lambda: 1, name="one")]), name="python", timeout=7,
                              policy=lambda request: seen.append(request) or "deny")
    rebuilt = toolset.visit_and_replace(lambda each: each)
    assert rebuilt.name == "python" and rebuilt.code.timeout == 7 and rebuilt is not toolset
    agent = pydantic_ai.Agent(FunctionModel(replay("one()", name="python")), toolsets=[rebuilt])
    assert "rejected" in run(agent.run("go")).output and seen


# ---- threads and loops


def test_agents_in_threads_do_not_get_each_others_answers():
    pytest.importorskip("smolagents")
    from workcell.integrations.smolagents import WorkcellExecutor

    executor = WorkcellExecutor()
    try:
        found = at_once(*(lambda n=n: [executor("final_answer(%d)" % n).output for _ in range(20)] for n in range(8)))
        assert found == [[n] * 20 for n in range(8)]
    finally:
        executor.cleanup()


def test_tools_that_run_code_again_do_not_wait_for_themselves():
    pytest.importorskip("dspy")
    from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError
    from workcell.integrations.dspy import WorkcellInterpreter

    seen = []

    def again() -> str:
        """Runs code in the session whose code waits for this."""
        try:
            return interpreter.execute("1")
        except CodeInterpreterError as error:
            seen.append(str(error))
            raise

    with WorkcellInterpreter({"again": again}, timeout=20) as interpreter:
        with pytest.raises(CodeExecutionError, match="cannot run code in the session whose code has called it"):
            interpreter.execute("again()")
        assert len(seen) == 1 and interpreter.execute("2") == 2


def test_one_adapter_of_several_loops():
    """One after the other, and several at once: a call whose loop ends meanwhile is told so; nothing hangs."""
    async def ask(code, text):
        return await code.text(text)

    code = Code(None, None, None, 20000, {})

    async def add() -> str:
        await asyncio.sleep(0)
        return "added"

    code.tools.add("add", "about", {"properties": {}}, lambda: add())
    try:
        assert [run(ask(code, "x = %d; add()" % n)) for n in range(3)] == ["'added'"] * 3

        def other():
            try:
                return run(ask(code, "add()"))
            except Exception as error:
                return type(error).__name__ + str(error)

        found = at_once(*[other] * 4)
        assert "'added'" in found and all(each == "'added'" or "loop" in each or "cancelled the call" in each for each in found), found
        assert run(ask(code, "add()")) == "'added'"
    finally:
        run(code.close())


def test_a_blocking_adapter_inside_of_a_loop():
    """It holds up the loop, but not its own tools: those have another one."""
    pytest.importorskip("langchain")
    from langchain_core.tools import tool
    from workcell.integrations.langchain import WorkcellCodeTool

    @tool
    async def price(item: str) -> float:
        """The price."""
        await asyncio.sleep(0)
        return 4.5

    async def main():
        with WorkcellCodeTool([price]) as code:
            assert code.tool.invoke({"code": "price('tea')"}) == "4.5"
            waiting = asyncio.ensure_future(code.tool.ainvoke({"code": "[price('tea') for _ in range(9)][0] * 2"}))
            await asyncio.sleep(0)
            assert code.tool.invoke({"code": "price('tea')"}) == "4.5"  # while the task cannot go on
            return await waiting

    assert run(main()) == "9.0"


# ---- copies and processes


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_copies_are_the_same_adapter(name):
    """Optimizers of DSPy, and whoever else copies an agent, would open a second session, or fail at a lock."""
    make, session_of = adapter(name)
    made = make()
    session = session_of(made) if session_of is not None else None
    try:
        for copied in (copy.deepcopy(made), copy.copy(made), copy.deepcopy({"adapter": made})["adapter"]):
            assert session is None or session_of(copied) is session
        with pytest.raises((TypeError, AttributeError)):
            pickle.dumps(made)
    finally:
        close(made, session)


def test_copies_of_a_program_of_dspy():
    dspy = pytest.importorskip("dspy")
    from workcell.integrations.dspy import WorkcellInterpreters

    with WorkcellInterpreters("import os; ran = os.urandom(8)") as interpreters:
        rlm = dspy.RLM("query -> answer", interpreter_factory=interpreters)
        made = [each._interpreter_factory() for each in (rlm, rlm.deepcopy(), rlm.reset_copy())]
        assert len({each.execute("ran") for each in made}) == 1  # prepared once
        for each in made:
            each.shutdown()


def in_a_child(work):
    """What a forked child of this process wrote, once it has ended as programs do: with the functions of atexit."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read)
            os.write(write, str(work()).encode())
            gc.collect()
            import atexit

            atexit._run_exitfuncs()
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as file:
        found = file.read()
    assert os.waitpid(pid, 0)[1] == 0, found
    return found


def test_a_forked_child_leaves_alone_what_is_its_parents():
    """Servers fork workers, and those end."""
    pytest.importorskip("smolagents")
    from workcell.integrations.smolagents import WorkcellExecutor
    from workcell.tools import CLIAdapter

    executor, folder = WorkcellExecutor(), None
    tools = CLIAdapter.from_configs([{"name": "echo", "type": "cli", "command": "echo", "schema": {"positional": []}, "recipes": {"echo": {}}}])
    try:
        folder = executor("import os; open('kept', 'w').write('1'); os.getcwd()").output
        host = executor.session.executor.config.cwd

        def child():
            executor.cleanup()  # as `with` does
            try:
                executor("1")
                return "ran"
            except Exception as error:
                return type(error).__name__

        assert in_a_child(child) == "SessionClosedError"
        assert os.listdir(host) == ["kept"] and os.path.isdir(tools.tools_path if hasattr(tools, "tools_path") else host)
        assert executor("open('kept').read()").output == "1" and folder
    finally:
        executor.cleanup()
    assert not os.path.exists(host)


# ---- values


@pytest.mark.parametrize("value", [
    datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.timezone.utc), datetime.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
    datetime.time(1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=-3), "X")), datetime.timezone.utc, datetime.timedelta(-1), datetime.datetime.min], ids=str)
def test_times_with_zones(value):
    again = eval(literal(value), {})
    assert again == value and repr(again) == repr(value)


def test_zones_are_not_code():
    class Zone(datetime.tzinfo):
        def __repr__(self):
            return "__import__('os').system('id')"

    with pytest.raises(TypeError, match="a time zone that is a Zone"):
        literal({"when": datetime.datetime(2026, 1, 1, tzinfo=Zone())})


def test_the_folder_goes_with_the_executor():
    made, cleanup = executor_for(None)
    folder = made.config.cwd
    assert in_a_child(lambda: (cleanup(), os.path.isdir(folder))[1]) == "True" and os.path.isdir(folder)
    del made, cleanup
    gc.collect()
    assert not os.path.exists(folder)


def test_parallel_calls_of_one_thread():
    """A model may call in parallel, and LangGraph then does so in threads; one of the calls ends the kernel of all."""
    pytest.importorskip("langchain")
    from workcell.integrations.langchain import WorkcellCodeTool

    def price(item: str) -> float:
        """The price."""
        return 4.5

    config = {"configurable": {"thread_id": "a"}}
    with WorkcellCodeTool([price]) as code:
        for _ in range(3):
            found = at_once(*(lambda n=n: code.tool.invoke({"code": "import os; os._exit(1)" if n == 2 else "price('tea') * %d" % n}, config) for n in range(6)))
            assert "lost" in found[2]
            assert all(each == str(4.5 * n) or "lost" in each for n, each in enumerate(found)), found
            assert code.tool.invoke({"code": "price('tea')"}, config) == "4.5"


END = """
import asyncio
from workcell.integrations._code import Code
from workcell.integrations.smolagents import WorkcellExecutor

executor = WorkcellExecutor()
executor("open('a', 'w').write('1')")
code = Code(None, None, None, 100, {})
print(asyncio.run(code.text("6 * 7")))
"""


def test_a_program_that_ends_without_closing(tmp_path):
    pytest.importorskip("smolagents")
    done = subprocess.run([sys.executable, "-c", END], env=dict(os.environ, TMPDIR=str(tmp_path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0 and done.stdout == b"42\n", done.stderr.decode()
    assert os.listdir(tmp_path) == []
