"""Models that replay answers, for the examples of docs/frameworks: the names that an example expects, and what must be true after it."""
import contextlib
import os
import shutil
import tempfile
from typing import Any, Callable, Dict, NamedTuple, Tuple


class Example(NamedTuple):
    framework: str
    make: Callable[[], Tuple[Dict[str, Any], Callable[[Dict[str, Any]], None]]]


def expect(text):
    def check(names):
        assert text in str(names["answer"]), names["answer"]

    return check


def smolagents():
    import smolagents

    class Replay(smolagents.Model):
        steps = ["both = population('Bern') + population(city='Basel')\nprint(both)", "final_answer(both)"]

        def generate(self, messages, **kwargs):
            return smolagents.ChatMessage(role="assistant", content="<code>\n%s\n</code>" % self.steps.pop(0))

    return {"model": Replay()}, expect("314000")


CODE = "2 * price('tea') + price('cake')"


def standin(make):
    """A client of a model's API, whose server is one that writes the code that it was told to write."""
    def made():
        import os
        import sys

        from conftest import ROOT

        sys.path.insert(0, os.path.join(ROOT, "examples", "agents"))
        from standin import StandIn

        server = StandIn(["2 * tools.price(item='tea') + tools.price(item='cake')"]).__enter__()

        def check(names):
            server.__exit__()
            expect("12.0")(names)
            assert "results" not in names or "tea: 4.5" in names["results"][1]["content"]

        return {"client": make(server.url)}, check

    return made


@standin
def anthropic(url):
    import anthropic

    return anthropic.AsyncAnthropic(api_key="x", base_url=url)


@standin
def openai(url):
    import openai

    return openai.AsyncOpenAI(api_key="x", base_url=url + "/v1")


def langchain():
    from test_langchain import replay

    return {"model": replay(("run_code", {"code": CODE})), "other_model": replay(("run_code", {"code": "price('tea')"}))}, expect("12.0")


def deepagents():
    from test_langchain import replay

    return {"model": replay(("execute", {"command": "printf 'a\\nb\\n' > notes.txt; wc -l notes.txt"}))}, expect("2 notes.txt")


def openai_agents():
    from test_openai_agents import Replay

    from test_openai_sandbox import Calls

    return {"model": Replay(CODE), "sandbox_model": Calls(("exec_command", {"cmd": "wc -l /etc/hostname"}))}, expect("12.0")


def dspy():
    from dspy.utils import DummyLM

    return {"lm": DummyLM([{"reasoning": "count", "code": "SUBMIT(answer=str(len(context.split())))"}])}, expect("30000")


def pydantic_ai():
    from pydantic_ai.models.function import FunctionModel
    from test_pydantic_ai import replay

    return {"model": FunctionModel(replay(CODE))}, expect("12.0")


def autogen():
    from test_autogen import asks, replay

    def check(names):
        assert names["answer"] == "It is 12.0" and names["output"].endswith("12.0") and names["again"] == "12.0", names

    return {"model": replay("```python\nprint(2 * 4.5 + 3)\n```", "It is 12.0"),
            "other_model": replay(asks("2 * tools.price(item='tea') + tools.price(item='cake')"))}, check


def agent_framework():
    from test_agent_framework import Replay

    client = Replay()
    client.codes, client.seen = [CODE], []
    other = Replay()
    other.codes, other.seen = ["call_tool('price', item='tea')"], []

    def check(names):
        assert "12.0" in names["answer"] and "4.5" in names["again"]

    return {"client": client, "other_client": other}, check


def adk():
    from test_adk import Replay

    return {"model": Replay(model="replay", answers=["```python\nprint(2 * 4.5 + 3)\n```", "12"])}, expect("12.0")


def llama_index():
    from test_llama_index import Replay

    return {"llm": Replay(codes=[CODE])}, expect("12.0")


def inspect_ai():
    import types

    import tiktoken
    from inspect_ai.model import ModelOutput, get_model

    tiktoken.get_encoding = lambda name: types.SimpleNamespace(encode=lambda text, **options: text.split())
    outputs = [ModelOutput.for_tool_call("mockllm/model", "python", {"code": "print(6 * 7)"}), ModelOutput.from_content("mockllm/model", "42")]
    shop = [ModelOutput.for_tool_call("mockllm/model", "run_code", {"code": CODE}), ModelOutput.from_content("mockllm/model", "It is 12.0")]

    def check(names):
        assert names["answer"] == 1.0 and names["shop_answer"] == 1.0

    return {"model": get_model("mockllm/model", custom_outputs=outputs), "shop_model": get_model("mockllm/model", custom_outputs=shop)}, check


@standin
def litellm_options(url):
    return url


def litellm():
    given, check = litellm_options()
    return {"model": "openai/any", "options": {"api_base": given["client"] + "/v1", "api_key": "x"}}, check


def rewards(expected):
    def made():
        texts = ["```python\ndef add(a, b): return a + b\n```", [{"role": "assistant", "content": "```python\ndef add(a, b): return a - b\n```"}],
                 "```python\ndef add(a, b:\n```", "no code", "```python\nwhile True: pass\n```", "```python\nimport os; os._exit(0)\n```"]

        def check(names):
            assert names["answer"] == expected, names["answer"]

        return {"completions": texts, "tests": ["assert add(1, 2) == 3"] * len(texts)}, check

    return made


@contextlib.contextmanager
def local_ray():
    """A cluster on this machine. Its files, and those of its workers, are in a folder that goes with it; a socket's path is short."""
    import ray

    folder = tempfile.mkdtemp(prefix="ray-")
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = folder
    try:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20, _temp_dir=folder)
        yield
    finally:
        ray.shutdown()
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
        shutil.rmtree(folder)


def ray_pool():
    cluster = local_ray()
    cluster.__enter__()

    def check(names):
        cluster.__exit__(None, None, None)
        assert names["rewards"] == [1.0, 0.1, 0.0, 0.0] and names["answer"] == 6, names

    return {"completions": ["def twice(n):\n    return 2 * n", "def twice(n):\n    return n", "def twice(n)", "while True:\n    pass"],
            "tests": ["assert twice(4) == 8"] * 4}, check


#: Pages whose framework has a venv, and a test, of its own.
ELSEWHERE = {"verifiers"}
MODELS = {
    "ray": Example("ray", ray_pool), "litellm": Example("litellm", litellm), "trl": Example("workcell", rewards([1.0, 0.1, 0.0, 0.0, 0.0, 0.0])),
    "smolagents": Example("smolagents", smolagents), "anthropic": Example("anthropic", anthropic), "openai": Example("openai", openai),
    "langchain": Example("langchain", langchain), "deepagents": Example("deepagents", deepagents),
    "openai-agents": Example("agents", openai_agents), "dspy": Example("dspy", dspy), "pydantic-ai": Example("pydantic_ai", pydantic_ai),
    "autogen": Example("autogen_agentchat", autogen), "agent-framework": Example("agent_framework", agent_framework),
    "adk": Example("google.adk", adk), "llama-index": Example("llama_index.core", llama_index), "inspect": Example("inspect_ai", inspect_ai)}
