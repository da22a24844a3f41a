"""workcell.integrations.llama_index with the real CodeActAgent and a model that replays answers."""
import os

import pytest

pytest.importorskip("llama_index.core")
from llama_index.core.agent.workflow import CodeActAgent  # noqa: E402
from llama_index.core.llms import ChatMessage, ChatResponse, CustomLLM, LLMMetadata  # noqa: E402
from llama_index.core.tools import FunctionTool  # noqa: E402

from conftest import run  # noqa: E402
from workcell.integrations.llama_index import WorkcellCode  # noqa: E402


class Replay(CustomLLM):
    codes: list = []
    seen: list = []

    @property
    def metadata(self):
        return LLMMetadata()

    def complete(self, prompt, formatted=False, **options):
        raise NotImplementedError

    def stream_complete(self, prompt, formatted=False, **options):
        raise NotImplementedError

    async def achat(self, messages, **options):
        self.seen.append(messages[-1].content)
        text = "<execute>%s</execute>" % self.codes.pop(0) if self.codes else "done: " + messages[-1].content
        return ChatResponse(message=ChatMessage(role="assistant", content=text))


calls = []


def price(item: str, amounts: list[int]) -> dict:
    """The price of an item."""
    calls.append((item, amounts, os.getpid()))
    return {"total": 4.5 * sum(amounts)}


def test_agent():
    async def main():
        tools = [FunctionTool.from_defaults(price)]
        async with WorkcellCode(tools) as code:
            model = Replay(codes=["t = price('tea', amounts=[1, 2])['total']", "price('tea', amounts=['many'])", "print('\\x1b[2J' + 'y' * 1_000_000)\n1 / 0", "t * 2"])
            agent = CodeActAgent(code.execute, tools=list(tools), llm=model, streaming=False)
            return str(await agent.run("go")), model.seen

    text, seen = run(main())
    assert "27.0" in text and calls == [("tea", [1, 2], os.getpid())]
    assert "valid integer" in seen[2] and "ZeroDivisionError" in seen[3] and "\x1b" not in seen[3] and len(seen[3]) < 42000
    with pytest.raises(ValueError, match="without isolation"):
        WorkcellCode(executor="inprocess")
