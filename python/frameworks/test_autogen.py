"""workcell.integrations.autogen_executor: AutoGen's CodeExecutor."""
import asyncio

import pytest

pytest.importorskip("autogen_core")
from autogen_core import CancellationToken  # noqa: E402
from autogen_core.code_executor import CodeBlock, CodeExecutor  # noqa: E402

from conftest import run  # noqa: E402
from workcell.integrations.autogen_executor import WorkcellCodeExecutor  # noqa: E402


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
