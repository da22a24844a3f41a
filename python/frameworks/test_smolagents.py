"""workcell.integrations.smolagents with the real CodeAgent and a model that replays answers."""
import importlib
import os

import pytest

smolagents = pytest.importorskip("smolagents")
from smolagents import ChatMessage, CodeAgent, FinalAnswerTool, LogLevel, Model, Tool, tool  # noqa: E402
from smolagents.local_python_executor import InterpreterError, PythonExecutor  # noqa: E402

from conftest import ROOT  # noqa: E402
import workcell  # noqa: E402
import workcell.sync  # noqa: E402
from workcell.integrations.smolagents import WorkcellExecutor  # noqa: E402


class Replay(Model):
    def __init__(self, *steps):
        super().__init__(model_id="replay")
        self.steps, self.seen = list(steps), []

    def generate(self, messages, **kwargs):
        self.seen.append(messages)
        return ChatMessage(role="assistant", content="Thought: go\n<code>\n%s\n</code>" % self.steps.pop(0))


calls = []


@tool
def weather(city: str, days: int = 1) -> dict:
    """The weather.

    Args:
        city: where
        days: how many
    """
    calls.append((city, days, os.getpid()))
    return {"city": city, "degrees": [20 + day for day in range(days)]}


def agent_of(executor, *steps, tools=(), **options):
    return CodeAgent(tools=[weather, *tools], model=Replay(*steps), executor=executor, additional_authorized_imports=["*"],
                     verbosity_level=LogLevel.OFF, **options)


@pytest.fixture(scope="module")
def executor():
    made = WorkcellExecutor()
    yield made
    made.cleanup()


def test_agent_of_three_steps(executor):
    agent = agent_of(executor, "import statistics\nfound = weather('Bern', days=3)\nprint(found['city'])",
                     "import os\nmean = statistics.mean(found['degrees'])\n(mean, os.getpid())", "final_answer((mean, {'city': found['city']}))")
    assert agent.run("the mean?") == (21, {"city": "Bern"})
    assert calls[-1] == ("Bern", 3, os.getpid())  # the tool ran here, the code elsewhere
    steps = [step for step in agent.memory.steps if hasattr(step, "observations")]
    assert "Bern" in steps[0].observations and str(os.getpid()) not in steps[1].observations


def test_errors_go_to_the_model_and_state_stays(executor):
    agent = agent_of(executor, "x = 41\nprint('before')\n1 / 0", "final_answer(x + 1)")
    assert agent.run("go") == 42
    failed = next(step for step in agent.memory.steps if getattr(step, "error", None))
    assert "ZeroDivisionError" in str(failed.error) and "before" in str(failed.error)


def test_variables(executor):
    import datetime
    import decimal

    given = {"rows": [{"a": 1}, {"a": float("inf")}], "when": datetime.date(2026, 1, 2), "price": decimal.Decimal("1.10"), "pair": (1, {2}),
             "raw": b"\x00\xff", "long": "ä'\n" * 1_500_000}
    agent = agent_of(executor, "final_answer((rows, when, price, pair, raw, len(long), long[-3:]))")
    assert agent.run("go", additional_args=given) == (given["rows"], given["when"], given["price"], given["pair"], given["raw"], 4_500_000, "ä'\n")
    with pytest.raises(TypeError, match="cannot be given to a session"):
        executor.send_variables({"thing": object()})
    with pytest.raises(ValueError, match="not the name of a variable"):
        executor.send_variables({"a = 1; b": 1})


def test_arguments_are_checked_on_the_host(executor):
    executor.send_tools({"weather": weather})
    before = len(calls)
    for call, why in (("weather(city=5)", "string"), ("weather()", "city"), ("weather('a', 1, 2)", "takes 2 positional"),
                      ("weather('a', city='b')", "multiple values"), ("weather('a', nonsense=1)", "nonsense"),
                      ("tools.weather(city='a', days='many')", "days")):
        with pytest.raises(InterpreterError, match=why):
            executor(call)
    assert len(calls) == before


def test_a_tool_that_fails_and_one_that_is_replaced(executor):
    class Shaky(Tool):
        name, description, output_type = "shaky", "fails", "string"
        inputs = {"text": {"type": "string", "description": "any", "nullable": True}}

        def forward(self, text: str = None):
            raise RuntimeError("no luck with %s" % text)

    class Steady(Shaky):
        inputs = {"number": {"type": "integer", "description": "any"}}

        def forward(self, number: int):
            return "steady %d" % number

    executor.send_tools({"shaky": Shaky()})
    with pytest.raises(InterpreterError, match="no luck with None"):
        executor("shaky()")
    executor.send_tools({"shaky": Steady()})  # another schema under the same name
    assert executor("shaky(3)").output == "steady 3"
    executor.send_tools({})
    with pytest.raises(InterpreterError, match="no such tool any more"):
        executor("shaky(3)")


def test_names_of_arguments(executor):
    """Also those that functions on the way have."""
    class Odd(Tool):
        name, description, output_type = "odd", "tells its arguments", "string"
        inputs = {each: {"type": "string", "description": "any"} for each in ("tool", "name", "given", "args", "kwargs", "code")}

        def forward(self, tool: str, name: str, given: str, args: str, kwargs: str, code: str):
            return tool + name + given + args + kwargs + code

    executor.send_tools({"odd": Odd()})
    assert executor("odd('a', 'b', 'c', args='d', kwargs='e', code='f')").output == "abcdef"


def test_agents_that_make_their_executor_themselves():
    """By the group of entry points that smolagents has a proposal for (its pull requests 2724 and 2806): with imports, logger and executor_kwargs."""
    from smolagents.monitoring import AgentLogger

    with open(os.path.join(ROOT, "pyproject.toml")) as file:
        lines = file.read().split('[project.entry-points."smolagents.executors"]')[1].strip().split("\n")
    module, _, name = lines[0].partition("= ")[2].strip('"').partition(":")
    make = getattr(importlib.import_module(module), name)
    made = make(["*"], AgentLogger(level=LogLevel.OFF), timeout=30)
    try:
        assert isinstance(made, PythonExecutor) and made.timeout == 30 and made("6 * 7").output == 42
        assert agent_of(made, "final_answer(weather('Bern')['city'])").run("go") == "Bern"
    finally:
        made.cleanup()
    with pytest.raises(ValueError, match="without isolation"):
        make([], None, executor="inprocess")


def test_custom_final_answer(executor):
    class Checked(FinalAnswerTool):
        inputs = {"answer": {"type": "integer", "description": "a number"}}

        def forward(self, answer: int):
            return {"checked": answer, "by": self}  # an object of this program

    own = Checked()
    agent = agent_of(executor, "final_answer('text')", "final_answer(answer=7)\nprint('never')", tools=[own])
    answer = agent.run("go")
    assert answer["checked"] == 7 and answer["by"] is own
    executor.send_tools({"final_answer": FinalAnswerTool()})
    assert executor("final_answer(8)").output == 8


def test_managed_agents_are_called_here(executor):
    inner = CodeAgent(tools=[], model=Replay("final_answer('inner says ' + str(6 * 7))"), executor=WorkcellExecutor(), name="helper",
                      description="helps", additional_authorized_imports=["*"], verbosity_level=LogLevel.OFF)
    with inner:
        agent = agent_of(executor, "final_answer(helper('help me'))", managed_agents=[inner])
        assert "inner says 42" in agent.run("go")


def test_a_lost_kernel(executor):
    executor.send_tools({"weather": weather, "final_answer": FinalAnswerTool()})
    executor.send_variables({"kept": 5})
    with pytest.raises(InterpreterError, match="variables are lost"):
        executor("import os; os._exit(3)")
    assert executor("final_answer(kept + weather('x')['degrees'][0])").output == 25
    executor.timeout = 1
    with pytest.raises(InterpreterError, match="(?i)time"):
        executor("while True: pass")
    executor.timeout = None


def test_gate_applies_to_the_agents_tools():
    asked = []

    def policy(request):
        asked.append((request.tool_name, dict(request.tool_args)))
        return "deny"

    with agent_of(WorkcellExecutor(policy=policy, gate=["tools"]), "weather('Rome')", "final_answer('gave up')") as agent:
        before = len(calls)
        assert agent.run("go") == "gave up" and len(calls) == before
        failed = next(step for step in agent.memory.steps if getattr(step, "error", None))
        assert "Rejected" in str(failed.error)
    assert asked == [("weather", {"city": "Rome"})]


HOSTILE = [
    # a class of the session, whose unpickling, repr, comparison or attributes would run its code
    "class Evil:\n    def __reduce__(self): return (print, ('owned',))\n    def __repr__(self): return '\\x1b]0;owned\\x07[red]evil'\nfinal_answer(Evil())",
    "import os\nclass Evil(dict):\n    def __repr__(self): return '__import__(\"os\").system(\"touch owned\")'\nfinal_answer(Evil())",
    "final_answer('\\x1b[2J\\x1b]52;c;b3duZWQ=\\x07\\u202etext\\x9b31m')",
]


@pytest.mark.parametrize("code", HOSTILE)
def test_hostile_answers_are_texts(executor, code):
    executor.send_tools({"final_answer": FinalAnswerTool()})
    output = executor(code).output
    assert type(output) is str and "\x1b" not in output and "\x9b" not in output and "\u202e" not in output
    assert not os.path.exists("owned")


def test_hostile_output(executor):
    output = executor("print('\\x1b[31mred\\x1b[0m \\x1b]8;;http://x\\x07link\\x1b]8;;\\x07\\rover\\x00'); print('y' * 5_000_000)")
    assert output.logs.startswith("red link\nover\\x00\n") and len(output.logs) < 21000
    with pytest.raises(InterpreterError) as raised:
        executor("raise ValueError('\\x1b[2J' + 'z' * 1_000_000)")
    assert len(str(raised.value)) < 21000 and "\x1b" not in str(raised.value)
    # An exception that looks like the final answer, without one.
    executor._code._defined = False
    with pytest.raises(InterpreterError):
        executor("del globals()['_workcell_answer']\nraise _WorkcellFinalAnswer()")


def test_code_cannot_reach_other_tools_or_arguments(executor):
    executor.send_tools({"weather": weather})
    before = len(calls)
    for code in ("tools.__class__", "tools['weather'](city='a', __class__='x')", "tools.call('weather')", "tools['final_answer'](answer=1)",
                 "tools['../weather'](city='a')", "weather(**{'city': 'a', 'self': 1})", "weather(city={'__class__': 'str'})",
                 "weather(city='a', days=10**400)"):
        try:
            executor(code)
        except InterpreterError:
            pass
    assert len(calls) == before


def test_choosing_an_executor(tmp_path):
    for name in ("inprocess", "in-process"):
        with pytest.raises(ValueError, match="without isolation"):
            WorkcellExecutor(executor=name)
    with workcell.sync.Session(None, "subprocess") as session:
        mine = WorkcellExecutor(session)
        assert mine("6 * 7").output == 42
        mine.cleanup()
        assert session.run("1").value == 1  # a session that was given stays open
        with pytest.raises(TypeError, match="either a session or options"):
            WorkcellExecutor(session, policy="ask")
    made = WorkcellExecutor()
    assert made.session.executor.name == "sandbox"
    folder = made.session.executor.config.cwd
    made("open('x', 'w').write('y')")
    assert os.listdir(folder) == ["x"]
    made.cleanup()
    assert not os.path.exists(folder)
