"""smolagents' own E2B executor, unmodified, against `workcell serve --e2b`."""
import os
import sys

import pytest

pytest.importorskip("smolagents")
pytest.importorskip("e2b_code_interpreter")
from smolagents import ChatMessage, CodeAgent, FinalAnswerTool, LogLevel, Model, tool  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import serving  # noqa: E402

TOKEN = "t0ken-of-the-executor-" + "x" * 30
TOKENS = "tokens:\n  - {name: agent, token: %s}\n  - {name: tests, token: t0ken-of-the-tests}\n" % TOKEN


class Replay(Model):
    def __init__(self, *steps):
        super().__init__(model_id="replay")
        self.steps, self.seen = list(steps), []

    def generate(self, messages, **kwargs):
        self.seen.append(str(messages))
        return ChatMessage(role="assistant", content="Thought: go\n<code>\n%s\n</code>" % self.steps.pop(0))


@tool
def price(item: str) -> float:
    """The price of an item.

    Args:
        item: which one
    """
    return {"tea": 4.5, "cake": 3.0}[item]


@pytest.fixture(scope="module")
def server():
    # Its code imports PIL, which images of E2B have: so has this interpreter.
    made = serving.Server("--executor", "sandbox", "--e2b", python=sys.executable, tokens=TOKENS)
    yield made
    made.close()


@pytest.fixture
def agent_of(server, monkeypatch):
    url = "http://127.0.0.1:%d" % server.port
    monkeypatch.setenv("E2B_API_KEY", TOKEN)
    monkeypatch.setenv("E2B_API_URL", url)
    monkeypatch.setenv("E2B_SANDBOX_URL", url)
    made = []

    def make(*steps, tools=(), **options):
        agent = CodeAgent(tools=[*tools, FinalAnswerTool()], model=Replay(*steps), executor_type="e2b", max_steps=len(steps),
                          verbosity_level=LogLevel.OFF, **options)
        made.append(agent)
        return agent

    yield make
    for agent in made:
        agent.cleanup()


def test_an_agent_works_in_steps_that_share_variables(agent_of, server):
    agent = agent_of("x = 20\nprint('so far', x)", "import os\nopen('kept.txt', 'w').write(str(x * 2 + 2))", "final_answer(int(open('kept.txt').read()))")
    assert agent.run("Compute.") == 42
    assert "so far 20" in agent.model.seen[1]
    assert server.ask("GET", "/v1/sessions?all=true").json["sessions"] == []  # not of this token


def test_tools_are_sent_along(agent_of):
    assert agent_of("final_answer(2 * price('tea') + price(item='cake'))", tools=[price]).run("Add up.") == 12.0


def test_errors_reach_the_model_and_the_state_stays(agent_of):
    agent = agent_of("y = 7\n1/0", "final_answer(y)")
    assert agent.run("Try.") == 7
    assert "ZeroDivisionError" in agent.model.seen[1]


def test_files_of_the_host_are_not_there(agent_of):
    agent = agent_of("open(%r)" % os.path.abspath(__file__), "final_answer('over')")
    assert agent.run("Look.") == "over"
    assert "FileNotFoundError" in agent.model.seen[1]
