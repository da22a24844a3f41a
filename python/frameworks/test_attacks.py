"""What every adapter keeps: a sandbox unless something else is given, no inprocess by a name, tools that stay on the host and are never pickled."""
import asyncio
import importlib
import os
import pickle
import types

import pytest

from conftest import run

#: adapter: (framework, how to make one with options, its Workcell session)
ADAPTERS = {
    "smolagents.WorkcellExecutor": ("smolagents", lambda made: made.session),
    "langchain.WorkcellCodeTool": ("langchain", lambda made: made.session),
    "langchain.WorkcellCodeMiddleware": ("langchain", lambda made: made.session),
    "deepagents.WorkcellSandbox": ("deepagents", lambda made: made.session),
    "openai_agents.WorkcellCodeTool": ("agents", lambda made: made.session),
    "openai_agents_sandbox.WorkcellSandboxClient": ("agents", None),
    "dspy.WorkcellInterpreter": ("dspy", lambda made: made._open().session),
    "dspy.WorkcellInterpreters": ("dspy", lambda made: made._base),
    "pydantic_ai.CodeModeToolset": ("pydantic_ai", lambda made: made.code.session),
    "autogen_executor.WorkcellCodeExecutor": ("autogen_core", lambda made: made.session),
    "agent_framework.WorkcellExecuteCodeTool": ("agent_framework", lambda made: made.session),
    "agent_framework.WorkcellCodeActProvider": ("agent_framework", lambda made: made._conversations._enter("a").made.session),
    "adk.WorkcellCodeExecutor": ("google.adk", lambda made: made._sessions._enter("a").made),
    "llama_index.WorkcellCode": ("llama_index.core", lambda made: made.session),
}


def adapter(name):
    framework, session_of = ADAPTERS[name]
    pytest.importorskip(framework)
    module, _, made = name.partition(".")
    return getattr(importlib.import_module("workcell.integrations." + module), made), session_of


def close(made, session):
    """However it is called."""
    for name in ("close", "cleanup", "shutdown", "stop"):
        end = getattr(made, name, None)
        if end is not None:
            done = end()
            if asyncio.iscoroutine(done):
                run(done)
            break
    else:
        run(made.__aexit__(None, None, None)) if hasattr(made, "__aexit__") else None


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_inprocess_cannot_be_chosen_by_a_name(name):
    make, _ = adapter(name)
    for word in ("inprocess", "in-process"):
        with pytest.raises(ValueError, match="without isolation"):
            made = make(executor=word)
            getattr(made, "start", lambda: None)()
    with pytest.raises((ValueError, TypeError)):
        made = make(executor="no-such-executor")
        getattr(made, "start", lambda: None)()


@pytest.mark.parametrize("name", sorted(each for each in ADAPTERS if ADAPTERS[each][1] is not None))
def test_the_default_is_a_sandbox(name, tmp_path, monkeypatch):
    make, session_of = adapter(name)
    secret = tmp_path / "secret"
    secret.write_text("top secret")
    monkeypatch.setenv("API_KEY_OF_THE_HOST", "k")
    made = make()
    session = session_of(made)
    code = ("import os, socket\nseen = [os.path.exists(%r), os.environ.get('API_KEY_OF_THE_HOST'), os.getpid() == %d, os.listdir('.')]\n"
            "try: socket.create_connection(('127.0.0.1', 9), 1); seen.append('connected')\nexcept OSError as e: seen.append(type(e).__name__)\nseen"
            % (str(secret), os.getpid()))

    async def ask():
        result = session.run(code)
        return await result if asyncio.iscoroutine(result) else result

    try:
        result = run(ask()) if asyncio.iscoroutinefunction(type(session).run) else session.run(code)
        assert result.value[:4] == [False, None, False, []] and result.value[4] != "connected", result
        assert result.isolation["executor"] == "sandbox" if "executor" in result.isolation else result.isolation
    finally:
        close(made, session)


class Unpicklable:
    """A tool with state that must not leave this process: pickling it is an error that a test sees."""

    pickled = []

    def __init__(self):
        self.secret = "key of the tool"

    def __reduce__(self):
        self.pickled.append(os.getpid())
        raise AssertionError("a tool was pickled")

    def __call__(self, item: str) -> str:
        """The price of an item."""
        return "%s in %d" % (item, os.getpid())


def with_tool(name, tool):
    """An adapter whose code can call the function `price`."""
    def price(item: str) -> str:
        """The price of an item."""
        return tool(item)

    make, session_of = adapter(name)
    framework = name.partition(".")[0]
    if framework == "smolagents":
        smolagents = importlib.import_module("smolagents")

        class Price(smolagents.Tool):
            name, description, output_type = "price", "The price of an item.", "string"
            inputs = {"item": {"type": "string", "description": "what"}}

            def forward(self, item):
                return tool(item)

        made = make()
        made.send_tools({"price": Price()})
        return made, made.session, lambda code: made(code).output
    if framework == "dspy":
        made = make({"price": price})
        return made, None, made.execute
    if framework == "langchain":
        made = make([price])
        code = getattr(made, "code", made)
        return made, made.session, lambda text: code.tool.invoke({"code": text})
    if framework == "openai_agents":
        agents = importlib.import_module("agents")
        context = importlib.import_module("agents.tool_context").ToolContext
        made = make([agents.function_tool(price)])
        import json

        return made, made.session, lambda text: made.tool.on_invoke_tool(context(None, tool_name="run_code", tool_call_id="1", tool_arguments=""),
                                                                         json.dumps({"code": text}))
    if name == "agent_framework.WorkcellCodeActProvider":
        made = make([price])

        async def call(text):
            async with made._conversation(types.SimpleNamespace(session_id="a"), made._tools) as code:
                return await code.text(text, made._tools)

        return made, None, call
    if framework == "agent_framework":
        made = make([price])
        return made, made.session, made._code.text
    made = make([price])  # llama_index
    return made, made.session, made._code.text


@pytest.mark.parametrize("name", ["smolagents.WorkcellExecutor", "dspy.WorkcellInterpreter", "langchain.WorkcellCodeTool", "langchain.WorkcellCodeMiddleware",
                                  "openai_agents.WorkcellCodeTool", "agent_framework.WorkcellExecuteCodeTool", "agent_framework.WorkcellCodeActProvider",
                                  "llama_index.WorkcellCode"])
def test_tools_stay_on_the_host(name, monkeypatch):
    Unpicklable.pickled.clear()
    tool = Unpicklable()
    pickles = []
    for each in ("dumps", "dump"):
        kept = getattr(pickle, each)
        monkeypatch.setattr(pickle, each, lambda *args, kept=kept, **more: (pickles.append(args[0]), kept(*args, **more))[1])
    loads = pickle.loads
    monkeypatch.setattr(pickle, "loads", lambda *args, **more: (pickles.append("loaded"), loads(*args, **more))[1])
    made, session, call = with_tool(name, tool)
    searched = "import gc\nsorted({type(each).__name__ for each in gc.get_objects()} & {'Unpicklable', 'Price'}), 'key of the ' + 'tool' in str(globals())"

    async def both():
        found = []
        for code in ("price('tea')", searched):
            answer = call(code)
            found.append(await answer if asyncio.iscoroutine(answer) else answer)
        return found

    try:
        answer, found = run(both())
        assert "tea in %d" % os.getpid() in str(answer)
        assert str(found) == "([], False)"
        assert not Unpicklable.pickled and not pickles
    finally:
        close(made, session)
