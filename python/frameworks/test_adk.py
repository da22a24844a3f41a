"""workcell.integrations.adk with ADK's own runner and a model that replays answers."""
import pytest

pytest.importorskip("google.adk")
from google.adk.agents import LlmAgent  # noqa: E402
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File  # noqa: E402
from google.adk.models import BaseLlm, LlmResponse  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402
from google.genai import types  # noqa: E402

from conftest import run  # noqa: E402
from workcell.integrations.adk import WorkcellCodeExecutor  # noqa: E402


class Replay(BaseLlm):
    answers: list = []

    async def generate_content_async(self, llm_request, stream=False):
        text = self.answers.pop(0)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]))


@pytest.fixture(scope="module")
def executor():
    made = WorkcellCodeExecutor(timeout_seconds=30)
    yield made
    made.close()


def test_agent(executor):
    async def main():
        model = Replay(model="replay", answers=["```python\nx = 6\nprint('hi')\n```", "```python\nprint(x * 7)\n```", "It is 42."])
        runner = InMemoryRunner(LlmAgent(name="a", model=model, code_executor=executor), app_name="test")
        await runner.session_service.create_session(app_name="test", user_id="u", session_id="s")
        outputs, final = [], ""
        async for event in runner.run_async(user_id="u", session_id="s", new_message=types.Content(role="user", parts=[types.Part(text="go")])):
            for part in event.content.parts if event.content else ():
                if part.code_execution_result:
                    outputs.append(part.code_execution_result.output)
                elif part.text:
                    final = part.text
        return outputs, final

    outputs, final = run(main())
    assert "hi" in outputs[0] and "42" in outputs[1] and final == "It is 42."


def test_execute(executor):
    def execute(code, key="a", files=()):
        return executor.execute_code(None, CodeExecutionInput(code, list(files), key))

    execute("y = 5")
    assert execute("y + 1").stdout == "6" and "NameError" in execute("y", "another").stderr
    done = execute("print('before')\n1 / 0")
    assert done.stdout == "before\n" and "ZeroDivisionError" in done.stderr
    assert execute("open('data.csv').read()", files=[File("../../data.csv", b"a,b\n1,2", "text/csv")]).stdout == "'a,b\\n1,2'"
    done = execute("print('\\x1b[2J' + 'y' * 1_000_000)")
    assert "\x1b" not in done.stdout and len(done.stdout) < 21000
    single = WorkcellCodeExecutor(stateful=False)
    single.execute_code(None, CodeExecutionInput("z = 1"))
    assert "NameError" in single.execute_code(None, CodeExecutionInput("z")).stderr
    with pytest.raises(ValueError, match="without isolation"):
        WorkcellCodeExecutor(executor="inprocess")


def test_files_of_the_user(executor):
    """ADK's own flow takes them from the message, and hands them on as base64."""
    async def main():
        model = Replay(model="replay", answers=["```python\nprint(open('data_1_2.csv').read())\n```", "done"])
        agent = LlmAgent(name="a", model=model, code_executor=WorkcellCodeExecutor(optimize_data_file=True))
        runner = InMemoryRunner(agent, app_name="test")
        await runner.session_service.create_session(app_name="test", user_id="u", session_id="files")
        message = types.Content(role="user", parts=[types.Part(text="go"), types.Part.from_bytes(data=b"name,price\ntea,4.5\n", mime_type="text/csv")])
        outputs = []
        try:
            async for event in runner.run_async(user_id="u", session_id="files", new_message=message):
                outputs += [part.code_execution_result.output for part in (event.content.parts if event.content else ()) if part.code_execution_result]
        finally:
            agent.code_executor.close()
        return outputs

    assert "name,price\ntea,4.5" in run(main())[-1]
    for name, content, words in (("..", b"", "Is a directory"), ("a\x1b[2J", "no base64!", "was not written"), ("b\0", b"", "null"), ("c", "YQ", "padding")):
        done = executor.execute_code(None, CodeExecutionInput("1", [File(name, content)], "names"))
        assert words in done.stderr and "\x1b" not in done.stderr and done.stdout == "", done
