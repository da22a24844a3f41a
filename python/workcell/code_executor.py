"""The second family: ``CodeExecutor``, with approvals and plots.

::

    async with CodeExecutor() as executor:
        result = await executor.execute("print('hello world')")
        assert result.text == "hello world"
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, Mapping, Optional, Sequence, Set, Union

from ._core import RUN_MASK
from ._engine import APPROVAL, APPROVAL_ENDED, CHUNK, DISPLAY, mask_of
from ._runs import Cell, events_of
from .approvals import ApprovalRequest
from .errors import ApprovalRejectedError, ApprovalTimeoutError, CodeExecutionError, SessionClosedError
from .events import Chunk, Decoder, Display, ResultEvent
from .execution.configs import SandboxConfig, SubprocessConfig
from .execution.executors import LibraryExecutor, SandboxExecutor, SubprocessExecutor
from .session import Session
from .types import ExecutionResult


@dataclass
class CodeExecutionChunk:
    """A piece of output, as it was written."""

    text: str


@dataclass
class CodeExecutionResult:
    """The end of a cell: all output, and the pictures that it showed."""

    text: Optional[str]
    images: List[Path] = field(default_factory=list)


class CodeExecutor:
    """Runs cells of Python whose variables persist.

    Args:
        kernel_env: environment variables of the code; nothing is inherited.
        working_dir: the code's working directory; each cell ends there.
        images_dir: where plots are written; None: ``images`` in the current folder.
        approval_timeout: seconds after which an unanswered request is rejected; None: never.
        sandbox: confine the code (docs/security.md).
        sandbox_config: a policy file, or the name of a preset.
        approve_tool_calls: whether tool calls need an approval.
        approve_shell_cmds: whether ``!cmd``, ``%%bash`` and similar need one.
        require_shell_escape: processes can be started only with ``!cmd``; needs ``approve_shell_cmds``.
        approval_stops_clock: a cell's timeout does not count the time that it waits for approvals.
        mcp_servers: servers whose tools the code has, by name; servers given to :func:`generate_mcp_sources` are known.
        tools: functions of the host as tools, adapters, registries.
        connect_timeout: seconds that an MCP server has to start.
        kernel_init_timeout: seconds that starting and resetting a kernel may take; asyncio.TimeoutError.
        tool_server_host, tool_server_port, kernel_gateway_host, kernel_gateway_port, log_level: accepted for compatibility;
            there are no such servers and no ports, and the logger ``workcell`` has its level from the program.
    """

    def __init__(self, tool_server_host: str = "localhost", tool_server_port: Optional[int] = None,
                 kernel_gateway_host: str = "localhost", kernel_gateway_port: Optional[int] = None,
                 kernel_env: Optional[Mapping[str, str]] = None, working_dir: Optional[Path] = None,
                 images_dir: Optional[Path] = None, approval_timeout: Optional[float] = 60.0,
                 connect_timeout: float = 30, kernel_init_timeout: float = 10, sandbox: bool = False,
                 sandbox_config: Optional[Union[str, Path]] = None, log_level: str = "WARNING",
                 approve_tool_calls: bool = True, approve_shell_cmds: bool = False, require_shell_escape: bool = False, *,
                 approval_stops_clock: bool = False, mcp_servers: Optional[Mapping[str, Mapping[str, Any]]] = None,
                 tools: Sequence[Callable[..., Any]] = (), executor: Optional[LibraryExecutor] = None,
                 python: Optional[Union[str, Path]] = None, grace: Optional[float] = None) -> None:
        if require_shell_escape and not approve_shell_cmds:
            raise ValueError("require_shell_escape=True requires approve_shell_cmds=True")
        self.tool_server_host, self.tool_server_port = tool_server_host, tool_server_port
        self.kernel_gateway_host, self.kernel_gateway_port = kernel_gateway_host, kernel_gateway_port
        self.kernel_env = dict(kernel_env or {})
        self.working_dir = None if working_dir is None else Path(working_dir)
        self.images_dir = Path("images") if images_dir is None else Path(images_dir)
        self.approval_timeout, self.connect_timeout = approval_timeout, connect_timeout
        self.kernel_init_timeout, self.sandbox, self.sandbox_config = kernel_init_timeout, sandbox, sandbox_config
        self.log_level, self.approve_tool_calls = log_level, approve_tool_calls
        self.approve_shell_cmds, self.require_shell_escape = approve_shell_cmds, require_shell_escape
        self.approval_stops_clock = approval_stops_clock
        self.mcp_servers = {name: dict(params) for name, params in (mcp_servers or {}).items()}
        self.tools = list(tools)
        self._executor, self._python, self._grace = executor, python, grace
        self._session: Optional[Session] = None
        self._running: Set[Cell] = set()

    # -- life

    def _make_session(self) -> Session:
        common: Dict[str, Any] = dict(default_timeout=None, cwd=self.working_dir, env=self.kernel_env,
                                      images_dir=self.images_dir, python=self._python, grace=self._grace)
        executor: LibraryExecutor
        if self._executor is not None:
            executor, self._executor = self._executor, None
        elif self.sandbox:
            executor = SandboxExecutor(SandboxConfig(policy=self.sandbox_config, **common))
        else:
            executor = SubprocessExecutor(SubprocessConfig(**common))
        gate = (["tools"] if self.approve_tool_calls else []) + (["shell"] if self.approve_shell_cmds else [])
        from .mcp import known_servers

        servers = dict(known_servers())
        servers.update(self.mcp_servers)
        servers = {name: {"start_timeout": self.connect_timeout, **params} for name, params in servers.items()}
        return Session.scratch(
            executor, policy="ask" if gate else None, gate=gate or None, approval_timeout=self.approval_timeout,
            approval_stops_clock=self.approval_stops_clock, require_shell_escape=self.require_shell_escape,
            restore_cwd=self.working_dir is not None, mcp_servers=servers, tools=self.tools)

    async def start(self) -> None:
        """Starts the kernel, unless it is running."""
        if self._session is not None:
            return
        if self.working_dir is not None and not self.working_dir.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the working directory does not exist", str(self.working_dir))
        session = self._make_session()
        await self._in_time(session.start(), "started")
        self._session = session

    async def _in_time(self, work: Awaitable[None], what: str) -> None:
        try:
            await asyncio.wait_for(work, self.kernel_init_timeout)
        except asyncio.TimeoutError:
            raise asyncio.TimeoutError("the kernel was not %s within %g seconds" % (what, self.kernel_init_timeout)) from None

    async def stop(self) -> None:
        """Ends the kernel. May be called more than once; the executor may be started again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> "CodeExecutor":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def session(self) -> Session:
        """The session underneath."""
        if self._session is None:
            raise SessionClosedError("the executor is not started")
        return self._session

    async def reset(self) -> None:
        """Starts a fresh kernel. MCP servers end, and start again at their next use."""
        await self._in_time(self.session.reset(), "reset")

    def cancel(self) -> None:
        """Ends the cells running now: their streams end without a result, ``execute()`` gives an empty one."""
        for cell in list(self._running):
            cell.cancel()

    def register_mcp_server(self, server_name: str, server_params: Mapping[str, Any]) -> None:
        """Gives the code the server's tools; changed parameters take effect with the next call."""
        self.mcp_servers[server_name] = dict(server_params)
        if self._session is not None:
            self._session.add_mcp_server(server_name, {"start_timeout": self.connect_timeout, **server_params})

    # -- cells

    async def execute(self, code: str, timeout: Optional[float] = 120) -> CodeExecutionResult:
        """Runs one cell; requests for approval are accepted.

        Raises:
            CodeExecutionError: the code raised, or its kernel died.
            asyncio.TimeoutError: it took longer than ``timeout`` seconds.
        """
        result = CodeExecutionResult(None, [])
        async for item in self.stream(code, timeout):
            if isinstance(item, ApprovalRequest):
                item.accept()
            elif isinstance(item, CodeExecutionResult):
                result = item
        return result

    async def stream(self, code: str, timeout: Optional[float] = 120, chunks: bool = False
                     ) -> AsyncIterator[Union[ApprovalRequest, CodeExecutionChunk, CodeExecutionResult]]:
        """Runs one cell; yields requests for approval, with ``chunks`` output while it is written, and the result at the end.

        Leaving the loop early interrupts the cell; what waited for an approval is rejected.
        """
        core = self.session.executor.core
        text, decoder = _Text(), Decoder()
        # A timeout of None is none: the executor was made without a default.
        cell = Cell.start(core, code, timeout, _MASK)
        self._running.add(cell)
        try:
            while cell.is_going():
                item = await cell.take()
                if item[1] in (APPROVAL, APPROVAL_ENDED):
                    request = core.handle_approval(item)
                    if request is not None:
                        request._late_is_fine = True
                        yield request
                    continue
                for event in events_of(core, decoder, item):
                    if isinstance(event, ResultEvent):
                        if cell.cancelled:
                            return
                        last = text.value_text(event.result)
                        if chunks and last:
                            yield CodeExecutionChunk(last)
                        yield _finish(event.result, text.whole(), timeout)
                    elif isinstance(event, (Chunk, Display)):
                        added = text.add(event)
                        if chunks and added:
                            yield CodeExecutionChunk(added)
        finally:
            self._running.discard(cell)
            await cell.end()


#: Which events of the library are looked at.
_MASK = RUN_MASK | mask_of(CHUNK, DISPLAY)


class _Text:
    """The output of a cell as one text: output, displays and the value, each on lines of its own."""

    def __init__(self) -> None:
        self.parts: List[str] = []

    def add(self, event: Union[Chunk, Display]) -> str:
        return self._append(event.text) if isinstance(event, Chunk) else self._line(event.text)

    def value_text(self, result: ExecutionResult) -> str:
        if result.error is not None or result.repr is None:
            return ""
        plain = result.mime.get("text/plain")
        return self._line(plain.decode("utf-8", "replace") if plain is not None else result.repr)

    def _append(self, text: str) -> str:
        if text:
            self.parts.append(text)
        return text

    def _line(self, text: str) -> str:
        """On a line of its own."""
        if not text:
            return ""
        begin = "\n" if self.parts and not self.parts[-1].endswith("\n") else ""
        return self._append(begin + text + ("" if text.endswith("\n") else "\n"))

    def whole(self) -> Optional[str]:
        return "".join(self.parts).strip("\n").rstrip() if self.parts else None


def _finish(result: ExecutionResult, text: Optional[str], timeout: Optional[float]) -> CodeExecutionResult:
    info = result.error_info
    if info is None:
        return CodeExecutionResult(text, [image.path for image in result.images if image.path is not None])
    if info.code == "timeout":
        raise asyncio.TimeoutError("Code execution exceeded timeout of %.2fs: %s" % (timeout or 0, info.message))
    message = "%s: %s" % (info.type, info.message) if info.type else info.message
    if info.traceback:
        message += "\n" + info.traceback
    kind = CodeExecutionError
    if info.code == "rejected":
        kind = ApprovalTimeoutError if info.type == "ApprovalTimeoutError" else ApprovalRejectedError
    raise kind(message, text or "", info.code)


__all__ = ["CodeExecutor", "CodeExecutionChunk", "CodeExecutionResult", "CodeExecutionError", "ApprovalRequest"]
