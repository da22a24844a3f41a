"""A sandbox for Inspect AI: ``sandbox="workcell"`` gives each sample a Workcell session; and a tool whose code calls other tools there.

::

    import workcell.integrations.inspect_ai  # registers the name

    @task
    def example():
        return Task(dataset=..., solver=basic_agent(tools=[bash(), run_code([search()])]), sandbox="workcell")
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import contextvars
import errno
import inspect
import uuid
from typing import Any, Callable, Dict, List, Literal, Optional, Sequence, Union, overload

from inspect_ai.log import transcript
from inspect_ai.model._call_tools import tool_params
from inspect_ai.tool import Tool, ToolDef, tool
from inspect_ai.util import sandbox as sandbox_of
from inspect_ai.util import (ExecResult, OutputLimitExceededError, SandboxEnvironment, SandboxEnvironmentConfigType, SandboxEnvironmentLimits,
                             SandboxUserUnsupportedError, sandboxenv)

from .._calls import inside
from .._session import ExecutorLike
from ..errors import WorkcellError
from ..prompt import MAX_ANSWER
from . import _shell
from ._code import Code, describe, run_code_about, written_names
from ._common import drive_async, open_async, printable

_KINDS = {"FileNotFoundError": (FileNotFoundError, errno.ENOENT), "PermissionError": (PermissionError, errno.EACCES),
          "IsADirectoryError": (IsADirectoryError, errno.EISDIR), "NotADirectoryError": (NotADirectoryError, errno.ENOTDIR)}


@sandboxenv(name="workcell")
class WorkcellSandboxEnvironment(SandboxEnvironment):
    """A ``SandboxEnvironment`` whose commands and files are those of a Workcell session in the executor ``sandbox``."""

    #: For other executors and options of the sessions: set them in a subclass that is registered under a name of its own.
    executor: ExecutorLike = None
    options: Dict[str, Any] = {}

    def __init__(self) -> None:
        super().__init__()
        self.session, self._close = open_async(None, self.executor, self.options)
        self._codes: Dict[object, Code] = {}  # for each use of run_code()

    @classmethod
    async def sample_init(cls, task_name: str, config: Optional[SandboxEnvironmentConfigType],
                          metadata: Dict[str, str]) -> Dict[str, SandboxEnvironment]:
        """A session for a sample."""
        made = cls()
        await made.session.start()
        return {"default": made}

    @classmethod
    async def sample_cleanup(cls, task_name: str, config: Optional[SandboxEnvironmentConfigType],
                             environments: Dict[str, SandboxEnvironment], interrupted: bool) -> None:
        """Ends it."""
        for each in environments.values():
            await each.as_type(WorkcellSandboxEnvironment)._close()

    async def exec(self, cmd: List[str], input: Optional[Union[str, bytes]] = None, cwd: Optional[str] = None,
                   env: Optional[Dict[str, str]] = None, user: Optional[str] = None, timeout: Optional[int] = None,
                   timeout_retry: bool = True, concurrency: bool = True) -> "ExecResult[str]":
        """Runs a command."""
        if user is not None:
            raise SandboxUserUnsupportedError("a Workcell sandbox has one user, not %s" % user)
        data: Union[bytes, str] = input.encode() if isinstance(input, str) else input or b""
        if len(data) > _shell.PIECE:
            name = ".workcell-input-" + uuid.uuid4().hex
            await self.write_file(name, data)
            data = name
        limit = min(_shell.PIECE, int(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE))
        cell = _shell.command(cmd, data, cwd, env, timeout, limit)
        result = await self.session.run(cell, None if timeout is None else timeout + 5)
        try:
            done = _shell.done(result)
        except WorkcellError as error:  # what the code before has broken must not end the evaluation
            return ExecResult(False, 1, "", printable(str(error)))
        if done.late:
            raise TimeoutError("the command was stopped after %s seconds" % timeout)
        texts = [each.decode("utf-8", "replace") for each in (done.stdout, done.stderr)]
        if done.cut:
            raise OutputLimitExceededError("%d bytes" % limit, texts[0])
        if done.status == 126 and not done.stdout:
            raise PermissionError(errno.EACCES, texts[1] or "the command cannot be executed")
        return ExecResult(done.status == 0, done.status, texts[0], texts[1])

    async def write_file(self, file: str, contents: Union[str, bytes]) -> None:
        """Writes a file, with the folders above it."""
        await self._do(_shell.write(file, contents.encode() if isinstance(contents, str) else contents), file)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> Union[str, bytes]:
        """Reads a file."""
        data: bytes = await self._do(_shell.read(file, int(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)), file)
        return data.decode("utf-8") if text else data

    async def _do(self, steps: Any, file: str) -> Any:
        try:
            return await drive_async(self.session.run, steps)
        except _shell.FileError as error:
            if error.kind == "FileTooLarge":
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
            if error.kind == "timeout":
                raise TimeoutError(str(error)) from error
            if error.kind in _KINDS:
                kind, number = _KINDS[error.kind]
                raise kind(number, str(error), file) from error
            raise


@tool
def run_code(tools: Sequence[Tool] = (), *, timeout: Optional[float] = None, max_output: int = MAX_ANSWER, sandbox: Optional[str] = None) -> Tool:
    """Python code in the session of the sample, whose variables stay between calls; the given tools are functions of that code, and run in this program.

    Args:
        tools: that the code can call. They cannot use the sandbox of the sample, which waits for them: the code itself can. Inspect's approvers see the call of ``run_code`` and not those that the code makes; each of these is in the
            transcript, and passes the gate of the session (``options`` of a subclass of :class:`WorkcellSandboxEnvironment`).
        timeout: seconds of each piece of code; None: the executor's default.
        max_output: characters that the model gets.
        sandbox: the name of the environment, where a sample has several.
    """
    found = [ToolDef(each) for each in tools]
    names = written_names([each.name for each in found])
    schemas = [each.parameters.model_dump(exclude_none=True) for each in found]
    key = object()

    async def execute(code: str) -> str:
        made = sandbox_of(sandbox).as_type(WorkcellSandboxEnvironment)
        if key not in made._codes:
            runner = Code(made.session, None, timeout, max_output, {})
            for each, schema in zip(found, schemas):
                runner.tools.add(each.name, each.description, schema, _caller(runner, each))
            made._codes[key] = runner
        return await made._codes[key].text(code, contextvars.copy_context())

    about = describe(zip(names, [each.description for each in found], schemas))
    return ToolDef(execute, name="run_code", description=run_code_about(about), parameters={"code": "Python code"}).as_tool()


def _caller(runner: Code, called: ToolDef) -> Callable[..., Any]:
    async def call(**given: Any) -> Any:
        result = called.tool(**tool_params(given, called.tool))
        if inspect.isawaitable(result):
            result = await result
        parts = result if isinstance(result, list) else [result]
        return result if isinstance(result, (str, int, float, bool)) else "\n".join(getattr(each, "text", "(%s)" % type(each).__name__) for each in parts)

    async def in_the_sample(**given: Any) -> Any:
        context: contextvars.Context = runner.need_context()

        def start() -> "asyncio.Future[Any]":
            transcript().info({"tool": called.name, "arguments": given}, source="workcell")
            return asyncio.ensure_future(call(**given))

        # Inspect knows the sample, its sandbox and its store by the context.
        return await inside(context).run(start)

    return in_the_sample


__all__ = ["WorkcellSandboxEnvironment", "run_code"]
