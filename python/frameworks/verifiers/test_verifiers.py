"""The page about verifiers with verifiers itself: its tasksets, and its scoring of what a model replied."""
import ast
import os
import re

from conftest import ROOT, run

import verifiers.v1 as vf
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, TraceTask
from verifiers.v1.types import AssistantMessage

REPLIES = [("```python\ndef add(a, b): return a + b\n```", 1.0), ("```python\ndef add(a, b): return a - b\n```", 0.0), ("```python\ndef add(a, b:\n```", 0.0),
           ("no code", 0.0), ("```python\nwhile True: pass\n```", 0.0), ("```python\nimport os; os._exit(0)\n```", 0.0)]


def traced(task, reply):
    return vf.Trace(task=TraceTask(type=type(task).__name__, data=task.data), agent=AgentInfo(config=AgentConfig()),
                    nodes=[MessageNode(message=AssistantMessage(content=reply), sampled=True)])


def test_page():
    with open(os.path.join(ROOT, "docs", "frameworks", "verifiers.md"), encoding="utf-8") as file:
        code, = re.findall(r"```python\n(.*?)```\n", file.read(), re.S)
    names = {"__name__": "example", "rows": [("add two numbers", "assert add(1, 2) == 3")]}

    async def main():
        await eval(compile(code, "verifiers.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        task, = names["CodeTaskset"](vf.TasksetConfig())
        try:
            for reply, wanted in REPLIES:
                trace = traced(task, reply)
                await task.score(trace)
                assert trace.reward == wanted, (reply, trace.rewards)
        finally:
            await names["runner"].session.close()

    run(main())
