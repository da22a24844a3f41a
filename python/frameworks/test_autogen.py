"""workcell.integrations.autogen_executor: AutoGen's CodeExecutor, and its agents with a model that replays answers."""
import asyncio
import json

import pytest

pytest.importorskip("autogen_agentchat")
from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent  # noqa: E402
from autogen_agentchat.messages import CodeExecutionEvent  # noqa: E402
from autogen_core import CancellationToken, FunctionCall  # noqa: E402
from autogen_core.code_executor import CodeBlock, CodeExecutor  # noqa: E402
from autogen_core.models import CreateResult, RequestUsage  # noqa: E402
from autogen_ext.models.replay import ReplayChatCompletionClient  # noqa: E402

from conftest import run  # noqa: E402
from workcell import Session  # noqa: E402
from workcell.integrations.autogen import create_run_code_tool  # noqa: E402
from workcell.integrations.autogen_executor import WorkcellCodeExecutor  # noqa: E402


def asks(code):
    """An answer of a model that calls run_code."""
    return CreateResult(finish_reason="function_calls", content=[FunctionCall("1", json.dumps({"code": code}), "run_code")],
                        usage=RequestUsage(prompt_tokens=0, completion_tokens=0), cached=False)


def replay(*answers):
    return ReplayChatCompletionClient(answers, model_info={"vision": False, "function_calling": True, "json_output": False, "family": "unknown",
                                                           "structured_output": True})


def test_agents():
    """A failing block goes back to the model, which writes another one; variables stay."""
    async def main():
        async with WorkcellCodeExecutor() as executor:
            blocks = ["```python\nx = 6\nprint(y)\n```", "```python\nprint(x * 7)\n```", "It is 42"]
            retry = '{"retry": true, "reason": "y is missing"}'
            model = replay(blocks[0], retry, *blocks[1:])
            coder = CodeExecutorAgent("coder", executor, model_client=model, max_retries_on_error=1)
            *messages, last = [each async for each in coder.run_stream(task="go")]
            done = [each.result for each in messages if isinstance(each, CodeExecutionEvent)]
            assert [each.exit_code for each in done] == [1, 0] and "NameError" in done[0].output and done[1].output == "42", done
            assert last.messages[-1].content == "It is 42"

    run(main())


def test_what_code_prints_is_text_of_bounded_size():
    async def main():
        async with Session(None, "sandbox") as session:
            tool = create_run_code_tool(session)
            helper = AssistantAgent("helper", replay(asks("print('\\x1b[2Jred' + 'y' * 100_000)"), asks("'\\x1b]0;title\\x07' + 'z' * 100_000"),
                                                     asks("raise ValueError('\\x1b[31m' + 'w' * 100_000)")), tools=[tool])
            for word in ("red", "zzz", "ValueError"):
                text = (await helper.run(task="go")).messages[-1].content
                assert word in text and len(text) < 21000 and "\x1b" not in text and "\x07" not in text

    run(main())


def test_blocks():
    async def main():
        async with WorkcellCodeExecutor() as executor:
            assert isinstance(executor, CodeExecutor)

            async def blocks(*given):
                return await executor.execute_code_blocks([CodeBlock(code, language) for language, code in given], CancellationToken())

            done = await blocks(("python", "x = 6\nprint('hi')"), ("sh", "echo shell; echo bad >&2"), ("python", "x * 7"))
            assert (done.exit_code, done.output) == (0, "hi\nshell\nbad\n\n42")
            done = await blocks(("python", "1 / 0"), ("python", "print('never')"))
            assert done.exit_code == 1 and "ZeroDivisionError" in done.output and "never" not in done.output
            assert (await blocks(("bash", "exit 5"))).exit_code == 5
            done = await blocks(("ru\x1b[2Jby", "puts 1"))
            assert done.exit_code == 1 and "unknown language" in done.output and "\x1b" not in done.output
            done = await blocks(("python", "print('\\x1b[31m' + 'y' * 1_000_000)"), ("sh", "printf '\\033[2J'"))
            assert len(done.output) < 21000 and "\x1b" not in done.output
            token = CancellationToken()
            running = asyncio.ensure_future(executor.execute_code_blocks([CodeBlock("while True: pass", "python")], token))
            await asyncio.sleep(0.2)
            token.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await blocks(("python", "x"))).output == "6"  # the interrupted block left variables
            await executor.restart()
            assert "NameError" in (await blocks(("python", "x"))).output
        with pytest.raises(ValueError, match="without isolation"):
            WorkcellCodeExecutor(executor="inprocess")

    run(main())
