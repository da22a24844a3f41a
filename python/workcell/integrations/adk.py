"""Google ADK's ``BaseCodeExecutor`` on Workcell sessions.

::

    from google.adk.agents import LlmAgent
    from workcell.integrations.adk import WorkcellCodeExecutor

    agent = LlmAgent(name="coder", model=..., code_executor=WorkcellCodeExecutor())
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import base64
from typing import Any, Optional, cast

from google.adk.agents.invocation_context import InvocationContext
from google.adk.code_executors import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
from pydantic import PrivateAttr

from .._session import ExecutorLike
from ..errors import WorkcellError
from ..prompt import MAX_ANSWER, shorten
from ..sync import Session
from . import _shell
from ._common import Here, cell_of, drive, error_of, open_sync, output_of, printable
from ._conversations import Conversations


class WorkcellCodeExecutor(Here, BaseCodeExecutor):
    """Runs the agent's code in a Workcell session of each conversation, so that variables persist.

    Args:
        executor: of the sessions; None: ``sandbox``, with an empty folder as its workspace.
        max_output: characters of output that the model gets.
        options: of the sessions: ``policy``, ``gate``, ``audit``, ``tools``.
    """

    stateful: bool = True
    max_output: int = MAX_ANSWER
    _sessions: Any = PrivateAttr(default=None)

    def __init__(self, *, executor: ExecutorLike = None, max_output: int = MAX_ANSWER, stateful: bool = True, **options: Any) -> None:
        own = {name: options.pop(name) for name in list(options) if name in BaseCodeExecutor.model_fields}
        super().__init__(stateful=stateful, **own)
        self.max_output = max_output
        self._sessions = Conversations(lambda: open_sync(None, executor, options))
        if isinstance(executor, str):  # a wrong name must fail here, not in a conversation
            open_sync(None, executor, options)[1]()

    def __copy__(self) -> "WorkcellCodeExecutor":
        return cast("WorkcellCodeExecutor", BaseCodeExecutor.__copy__(self))  # which model_copy() changes

    def __deepcopy__(self, memo: Any = None) -> "WorkcellCodeExecutor":
        return self.__copy__()

    def execute_code(self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput) -> CodeExecutionResult:
        """Runs a piece of code; what it displayed comes back as files."""
        if self.stateful:
            with self._sessions.of(_conversation(invocation_context, code_execution_input.execution_id)) as session:
                return self._execute(session, code_execution_input)
        session, close = self._sessions.make()
        try:
            return self._execute(session, code_execution_input)
        finally:
            close()

    def _execute(self, session: Session, given: CodeExecutionInput) -> CodeExecutionResult:
        for file in given.input_files:
            try:
                drive(session.run, _shell.write(file.name.rpartition("/")[2] or "file", _content_of(file)))
            except (OSError, ValueError, WorkcellError) as error:
                return CodeExecutionResult("", printable(shorten("the file %s was not written: %s" % (file.name, error), self.max_output)), [])
        result = session.run(cell_of(given.code), self.timeout_seconds)
        files = [File("plot_%d.png" % number, image.data, image.mime) for number, image in enumerate(result.images)]
        if result.error is not None:
            return CodeExecutionResult(output_of(result, self.max_output), error_of(result, self.max_output), files)
        shown = result.repr if result.repr is not None else ""
        return CodeExecutionResult(output_of(result, self.max_output) + printable(shorten(shown, self.max_output)), "", files)

    def close(self) -> None:
        """Ends all sessions."""
        for close in self._sessions.take_all():
            close()


def _content_of(file: File) -> bytes:
    """A text is base64, as ADK's own flow and its saved artifacts have it."""
    return file.content if isinstance(file.content, bytes) else base64.b64decode(file.content, validate=True)


def _conversation(context: Optional[InvocationContext], execution_id: Optional[str]) -> Any:
    """Whose code it is. Ids of ADK's sessions are those of one user of one application, and callers can choose them."""
    if context is None:
        return execution_id
    return context.session.app_name, context.session.user_id, execution_id or context.session.id


__all__ = ["WorkcellCodeExecutor"]
