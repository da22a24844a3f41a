"""workcell.integrations.inspect_ai: Inspect's own checks of sandboxes, and a task with a scripted model."""
import os
import types

import pytest

pytest.importorskip("inspect_ai")
tiktoken = pytest.importorskip("tiktoken")
from inspect_ai import Task  # noqa: E402
from inspect_ai import eval as evaluate  # noqa: E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.model import ModelOutput, get_model  # noqa: E402
from inspect_ai.scorer import includes  # noqa: E402
from inspect_ai.solver import generate, use_tools  # noqa: E402
from inspect_ai.tool import Tool, ToolError, bash, python, tool  # noqa: E402
from inspect_ai.util import sandbox, store  # noqa: E402
from inspect_ai.util._sandbox import self_check as checks  # noqa: E402

from conftest import run  # noqa: E402
from workcell.integrations.inspect_ai import WorkcellSandboxEnvironment, run_code  # noqa: E402

# A sandbox has one user, and no other can be made in it.
LEFT_OUT = ["test_exec_as_user"]


def test_own_checks_of_inspect():
    async def main():
        environments = await WorkcellSandboxEnvironment.sample_init("t", None, {})
        failed = {}
        try:
            for name in checks.__all__:
                try:
                    await getattr(checks, name)(environments["default"])
                except BaseException as error:
                    failed[name] = repr(error)
            return failed
        finally:
            await WorkcellSandboxEnvironment.sample_cleanup("t", None, environments, False)

    failed = run(main(), 120)
    assert len(checks.__all__) > 35 and set(failed) == set(LEFT_OUT), failed


def test_task(monkeypatch):
    # Inspect counts tokens with a table that it downloads.
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: types.SimpleNamespace(encode=lambda text, **options: text.split()))
    outputs = [ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "echo 6 > six; id -u; cat /etc/shadow"}),
               ModelOutput.for_tool_call("mockllm/model", "python", {"code": "print(int(open('six').read()) * 7)"}),
               ModelOutput.from_content("mockllm/model", "The answer is 42")]
    log, = evaluate(Task(dataset=[Sample("6 * 7?", target="42", files={"given.txt": "given"})], solver=[use_tools(bash(), python()), generate()],
                         scorer=includes(), sandbox="workcell"), model=get_model("mockllm/model", custom_outputs=outputs), display="none")
    assert log.status == "success", log.error
    sample, = log.samples
    shown = [message.text for message in sample.messages if message.role == "tool"]
    assert sample.scores["includes"].value == "C" and "42" in shown[1] and "root:" not in shown[0]


@tool
def lookup() -> Tool:
    async def execute(item: str, amounts: list[int]) -> str:
        """The price of an item.

        Args:
            item: what
            amounts: how many
        """
        if item == "nothing":
            raise ToolError("there is no nothing")
        store().set("asked", store().get("asked", 0) + 1)  # of the sample
        if item == "sandbox":
            await sandbox().exec(["true"])
        return "%s: %s in %d" % (item, sum(amounts), os.getpid())

    return execute


def test_code_calls_tools(monkeypatch):
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: types.SimpleNamespace(encode=lambda text, **options: text.split()))

    def outputs():
        for code in ("found = lookup('tea', [1, 2])\nprint(found)", "found.upper() + open('given.txt').read()", "lookup('tea', ['many'])", "lookup('nothing', [])", "lookup(5, [1])", "lookup('sandbox', [])"):
            yield ModelOutput.for_tool_call("mockllm/model", "run_code", {"code": code})
        yield ModelOutput.from_content("mockllm/model", "done")

    log, = evaluate(Task(dataset=[Sample("go", files={"given.txt": "of %s" % name}, id=name) for name in "ab"], solver=[use_tools(run_code([lookup()])), generate()],
                         sandbox="workcell"), model=get_model("mockllm/model", custom_outputs=[each for _ in "ab" for each in outputs()]), display="none",
                    max_samples=1)
    assert log.status == "success", log.error
    for sample in log.samples:
        shown = [message.text for message in sample.messages if message.role == "tool"]
        assert "tea: 3 in %d" % os.getpid() in shown[0] and "TEA: 3" in shown[1] and "of " + sample.id in shown[1]
        assert "many" in shown[2] and "there is no nothing" in shown[3] and "Error" in shown[4]
        assert "cannot run code in the session whose code has called it" in shown[5]
        assert sample.store["asked"] == 2
        made = [event.data for event in sample.events if event.event == "info" and event.source == "workcell"]
        assert made[0] == {"tool": "lookup", "arguments": {"item": "tea", "amounts": [1, 2]}}
