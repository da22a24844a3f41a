"""AutoGen's ``CodeExecutor`` on a Workcell session.

::

    from workcell.integrations.autogen_executor import WorkcellCodeExecutor

    async with WorkcellCodeExecutor() as executor:
        agent = CodeExecutorAgent("coder", executor)
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
from typing import Any, List, Optional

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult

from .._session import ExecutorLike
from ..errors import WorkcellError
from ..prompt import MAX_ANSWER, shorten
from ..session import Session
from . import _shell
from ._code import Code
from ._common import Here, printable, text_of

_PYTHON = ("python", "py", "python3", "ipython")
_SHELLS = ("bash", "sh", "shell")


class WorkcellCodeExecutor(Here, CodeExecutor):
    """Runs blocks of Python, whose variables persist, and of shell commands in a Workcell session.

    Args:
        session: a session of yours, which stays open; None: a new one, which :meth:`stop` ends.
        executor: of the new session; None: ``sandbox``, with an empty folder as its workspace.
        timeout: seconds of each block; None: the executor's default.
        max_output: characters that the model gets of each block.
        options: of the new session: ``policy``, ``gate``, ``audit``, ``tools``.
    """

    def __init__(self, session: Optional[Session] = None, *, executor: ExecutorLike = None, timeout: Optional[float] = None,
                 max_output: int = MAX_ANSWER, **options: Any) -> None:
        self._code = Code(session, executor, timeout, max_output, options)
        self.session = self._code.session

    async def start(self) -> None:
        """Opens the session."""
        await self.session.start()

    async def stop(self) -> None:
        """Ends the session, unless it was given."""
        await self._code.close()

    async def restart(self) -> None:
        """Starts with fresh variables."""
        await self.session.reset()

    async def execute_code_blocks(self, code_blocks: List[CodeBlock], cancellation_token: CancellationToken) -> CodeResult:
        """Runs blocks up to the first that fails; a cancelled token interrupts the one that runs."""
        outputs: List[str] = []
        for block in code_blocks:
            running = asyncio.ensure_future(self._run(block))
            cancellation_token.link_future(running)
            status, text = await running
            outputs.append(text)
            if status:
                return CodeResult(status, "\n".join(outputs))
        return CodeResult(0, "\n".join(outputs))

    async def _run(self, block: CodeBlock) -> "tuple[int, str]":
        language = block.language.strip().lower()
        if language in _PYTHON:
            result = await self._code.run(block.code)
            info = result.error_info
            return 0 if info is None else 124 if info.code == "timeout" else 1, text_of(result, self._code.max_output)
        if language in _SHELLS:
            result = await self.session.run(_shell.command(["bash" if language == "bash" else "sh", "-c", block.code]), self._code.timeout)
            try:
                done = _shell.done(result)
            except WorkcellError as error:  # what the code before has broken is told to the model
                return 1, printable(shorten(str(error), self._code.max_output))
            text = (done.stdout + done.stderr).decode("utf-8", "replace")
            return done.status, printable(shorten(text, self._code.max_output))
        return 1, "unknown language %s: Python and shell commands can be run" % printable(language[:40])


__all__ = ["WorkcellCodeExecutor"]
