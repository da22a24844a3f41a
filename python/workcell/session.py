"""The async session."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, AsyncIterator, Callable, Dict, List, Mapping, Optional, Sequence, Set, TypeVar, Union, overload

from . import _facade
from ._core import Core, HostTool, SpaceHandle, milliseconds
from ._engine import Engine
from ._runs import run_async
from .approvals import Approvals
from .audit import AuditLog
from .errors import SessionClosedError
from .events import Event
from .execution.configs import (ContainerConfig, DenoSandboxConfig, InProcessConfig, PathLike, SandboxConfig,
                                SubprocessConfig)
from .execution.executors import (ContainerExecutor, DenoSandboxExecutor, InProcessExecutor, LibraryExecutor,
                                  SandboxExecutor, SubprocessExecutor, in_thread)
from .execution.protocol import Executor
from .policy import PolicyLike, gate_bits
from .storage import FileStorage, StorageBackend
from .tools.middleware import ToolMiddleware
from .types import ExecutionResult, closed_result

F = TypeVar("F", bound=Callable[..., Any])


class NoStorage:
    """For sessions without workflows, artifacts and deps."""

    workspace_id: Optional[str] = None

    def space_options(self) -> Dict[str, Any]:
        return {}


def check_arguments(storage: Any, executor: Any) -> None:
    """What both kinds of sessions refuse."""
    if storage is None:
        raise TypeError("storage is required (use FileStorage or RedisStorage)")
    if isinstance(executor, str):
        raise TypeError("String-based executor selection is no longer supported. Pass an executor, such as "
                        "SubprocessExecutor(SubprocessConfig(...)), or None for the default.")
    if executor is not None and not isinstance(executor, Executor):
        raise TypeError("executor must be an Executor instance or None, got %s" % type(executor).__name__)


def session_extras(*, policy: PolicyLike, gate: Optional[Sequence[str]], approval_timeout: Optional[float],
                   approval_stops_clock: bool, require_shell_escape: bool, restore_cwd: bool, audit: Optional[AuditLog],
                   middlewares: Sequence[ToolMiddleware], mcp_servers: Optional[Mapping[str, Mapping[str, Any]]],
                   tools: Sequence[Callable[..., Any]], variables: Optional[Mapping[str, str]],
                   progress: Optional[Callable[[str], Any]], engine: Optional[Engine]) -> Dict[str, Any]:
    """Options of a session as parts of a Spec."""
    return {
        "policy": policy, "audit": audit, "middlewares": list(middlewares), "variables": variables, "progress": progress,
        "engine": engine, "mcp": {name: dict(params) for name, params in (mcp_servers or {}).items()},
        "tools": [each if isinstance(each, HostTool) else HostTool.of(each) for each in tools],
        "session": {"gate": gate_bits(gate), "approval_timeout_ms": milliseconds(approval_timeout),
                    "approval_stops_clock": int(approval_stops_clock), "require_shell_escape": int(require_shell_escape),
                    "restore_cwd": int(restore_cwd)},
    }


def base_parts(base_path: PathLike, extra_deps: Optional[Sequence[str]]) -> Dict[str, Any]:
    """The folder of ``from_base``: storage there, tools in ``tools/``, deps from ``requirements.txt``."""
    base = Path(base_path).expanduser().resolve()
    (base / "tools").mkdir(parents=True, exist_ok=True)
    return {"storage": FileStorage(base), "tools_path": base / "tools", "deps": list(extra_deps) if extra_deps else None}


class Session:
    """Runs cells of Python and keeps their variables.

    ::

        async with Session(storage=FileStorage("./data")) as session:
            result = await session.run("1 + 1")

    Args:
        storage: where workflows, artifacts and deps are kept.
        executor: where code runs; None: :class:`SubprocessExecutor`.
        sync_deps_on_start: first installs what the storage lists.
        policy: which calls are made, asked about, refused: ``"ask"``, ``"deny"``, a YAML file, a :class:`Policy`, or a
            function of an :class:`ApprovalRequest` that answers ``allow``, ``ask`` or ``deny``.
        gate: what the policy is asked about: some of ``tools``, ``shell``, ``installs``, ``workflows``.
        approval_timeout: seconds after which an unanswered request is rejected; None: never.
        approval_stops_clock: a cell's timeout does not count the time that it waits for approvals.
        require_shell_escape: the code starts processes by ``!cmd`` only.
        restore_cwd: each cell ends in the session's working directory.
        audit: where calls are recorded.
        middlewares: functions around every tool call, the first outermost.
        mcp_servers: ``{name: {"command", "args", ...} or {"url", ...}}``.
        tools: functions of the host as tools.
        variables: for ``${VAR}`` in tool definitions; None: the environment as it is when the session starts.
        progress: is told what pip and uv say.
        engine: None: the engine of the process.
    """

    def __init__(self, storage: Optional[StorageBackend] = None, executor: Optional[Executor] = None,
                 sync_deps_on_start: bool = False, *, policy: PolicyLike = None, gate: Optional[Sequence[str]] = None,
                 approval_timeout: Optional[float] = 60.0, approval_stops_clock: bool = False,
                 require_shell_escape: bool = False, restore_cwd: bool = False, audit: Optional[AuditLog] = None,
                 middlewares: Sequence[ToolMiddleware] = (),
                 mcp_servers: Optional[Mapping[str, Mapping[str, Any]]] = None, tools: Sequence[Callable[..., Any]] = (),
                 variables: Optional[Mapping[str, str]] = None, progress: Optional[Callable[[str], Any]] = None,
                 engine: Optional[Engine] = None) -> None:
        check_arguments(storage, executor)
        self._storage = storage
        self._executor: Any = executor if executor is not None else SubprocessExecutor()
        self._sync_deps = sync_deps_on_start
        self._started = self._closed = False
        self._approvals = Approvals()
        if isinstance(self._executor, LibraryExecutor):
            self._executor.extras = session_extras(
                policy=policy, gate=gate, approval_timeout=approval_timeout, approval_stops_clock=approval_stops_clock,
                require_shell_escape=require_shell_escape, restore_cwd=restore_cwd, audit=audit, middlewares=middlewares,
                mcp_servers=mcp_servers, tools=tools, variables=variables, progress=progress, engine=engine)
            if sync_deps_on_start:
                self._executor.extras["space"] = {"sync_deps_on_start": 1}

    # -- constructors

    @classmethod
    def scratch(cls, executor: Optional[Executor] = None, **options: Any) -> "Session":
        """A session without a storage: tools, but no workflows, artifacts and deps."""
        made: Any = NoStorage()
        return cls(made, executor, **options)

    @classmethod
    def from_base(cls, base_path: PathLike, *, timeout: Optional[float] = 30.0,
                  extra_deps: Optional[Sequence[str]] = None, allow_runtime_deps: bool = True,
                  sync_deps_on_start: bool = False, **options: Any) -> "Session":
        """Storage in a folder, tools in its ``tools/``, deps from its ``requirements.txt``."""
        parts = base_parts(base_path, extra_deps)
        config = SubprocessConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps,
                                  tools_path=parts["tools_path"], deps=parts["deps"])
        return cls(parts["storage"], SubprocessExecutor(config), sync_deps_on_start, **options)

    @classmethod
    def subprocess(cls, base_path: PathLike, *, timeout: Optional[float] = 60.0,
                   extra_deps: Optional[Sequence[str]] = None, allow_runtime_deps: bool = True,
                   sync_deps_on_start: bool = False, python_version: Optional[str] = None, cache_venv: bool = True,
                   **options: Any) -> "Session":
        """The same, with what :class:`SubprocessConfig` has."""
        parts = base_parts(base_path, extra_deps)
        config = SubprocessConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps,
                                  tools_path=parts["tools_path"], deps=parts["deps"], python_version=python_version,
                                  cache_venv=cache_venv)
        return cls(parts["storage"], SubprocessExecutor(config), sync_deps_on_start, **options)

    @classmethod
    def sandbox(cls, base_path: PathLike, *, timeout: Optional[float] = 60.0,
                extra_deps: Optional[Sequence[str]] = None, allow_runtime_deps: bool = True,
                sync_deps_on_start: bool = False, policy_name: Optional[PathLike] = None,
                network: Union[str, Sequence[str], None] = None, memory_limit: Union[str, int, None] = None,
                cpu_quota: Optional[float] = None, cwd: Optional[PathLike] = None, workspace_mode: Optional[str] = None,
                **options: Any) -> "Session":
        """The same, confined."""
        parts = base_parts(base_path, extra_deps)
        config = SandboxConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps, cwd=cwd,
                               tools_path=parts["tools_path"], deps=parts["deps"], policy=policy_name, network=network,
                               memory_limit=memory_limit, cpu_quota=cpu_quota, workspace_mode=workspace_mode)
        return cls(parts["storage"], SandboxExecutor(config), sync_deps_on_start, **options)

    @classmethod
    def inprocess(cls, base_path: PathLike, *, timeout: Optional[float] = 30.0,
                  extra_deps: Optional[Sequence[str]] = None, allow_runtime_deps: bool = True,
                  sync_deps_on_start: bool = False, **options: Any) -> "Session":
        """The same, in this process."""
        parts = base_parts(base_path, extra_deps)
        config = InProcessConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps,
                                 tools_path=parts["tools_path"], deps=parts["deps"])
        return cls(parts["storage"], InProcessExecutor(config), sync_deps_on_start, **options)

    in_process = inprocess

    @classmethod
    def container(cls, base_path: PathLike, *, timeout: Optional[float] = 30.0,
                  extra_deps: Optional[Sequence[str]] = None, allow_runtime_deps: bool = True,
                  sync_deps_on_start: bool = False, auth_token: Optional[str] = None, auth_disabled: bool = False,
                  image: Optional[str] = None, network_disabled: bool = False,
                  memory_limit: Union[str, int, None] = None, cpu_quota: Optional[float] = None,
                  **options: Any) -> "Session":
        """The same, in a container."""
        parts = base_parts(base_path, extra_deps)
        config = ContainerConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps, image=image,
                                 tools_path=parts["tools_path"], deps=parts["deps"], auth_token=auth_token,
                                 auth_disabled=auth_disabled, network_disabled=network_disabled,
                                 memory_limit=memory_limit, cpu_quota=cpu_quota)
        return cls(parts["storage"], ContainerExecutor(config), sync_deps_on_start, **options)

    @classmethod
    def deno(cls, base_path: PathLike, *, timeout: Optional[float] = 60.0, extra_deps: Optional[Sequence[str]] = None,
             allow_runtime_deps: bool = True, sync_deps_on_start: bool = False, network_profile: Optional[str] = None,
             **options: Any) -> "Session":
        """The same, in Pyodide under Deno."""
        parts = base_parts(base_path, extra_deps)
        config = DenoSandboxConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps,
                                   tools_path=parts["tools_path"], deps=parts["deps"], network_profile=network_profile)
        return cls(parts["storage"], DenoSandboxExecutor(config), sync_deps_on_start, **options)

    # -- life

    async def start(self) -> None:
        """Opens it; more than once is fine."""
        if self._closed:
            raise SessionClosedError("Session is closed")
        if self._started:
            return
        await self._executor.start(storage=self._storage)
        if not isinstance(self._executor, LibraryExecutor) and self._sync_deps:
            deps = self._executor.get_configured_deps()
            if deps:
                await self._executor.install_deps(deps)
        if not self._started and isinstance(self._executor, LibraryExecutor):
            self._executor.core.approvals = self._approvals
        self._started = True

    async def close(self) -> None:
        """Ends it and everything that it started. More than once is fine."""
        self._closed = True
        if self._started:
            self._started = False
            await self._executor.close()

    async def __aenter__(self) -> "Session":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_started", False):
            warnings.warn("a Workcell session was not closed", ResourceWarning, stacklevel=2, source=self)

    @property
    def storage(self) -> Any:
        """What it was made with."""
        return self._storage

    @property
    def executor(self) -> Any:
        """Where its code runs."""
        return self._executor

    @property
    def session_id(self) -> str:
        """The library's id; ``""`` before it is started."""
        return self._core.id if self._started else ""

    @property
    def _core(self) -> Core:
        if not isinstance(self._executor, LibraryExecutor):
            raise TypeError("this needs one of Workcell's own executors")
        return self._executor.core

    # -- cells

    async def run(self, code: str, timeout: Optional[float] = None) -> ExecutionResult:
        """Runs one cell. When the awaiting task is cancelled, the cell is interrupted.

        Args:
            code: Python, as in IPython.
            timeout: seconds; None: the executor's default.
        """
        if self._closed:
            return closed_result()
        if not self._started:
            await self.start()
        executor = self._executor
        if type(executor).run is LibraryExecutor.run:
            return await run_async(executor.core, code, timeout)
        result: ExecutionResult = await executor.run(code, timeout)
        return result

    async def stream(self, code: str, timeout: Optional[float] = None) -> AsyncIterator[Event]:
        """Runs one cell and yields what happens: output, displays, calls, approvals, and at last the result."""
        if self._closed:
            raise SessionClosedError("Session is closed")
        if not self._started:
            await self.start()
        events = self._executor.stream(code, timeout)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def reset(self) -> None:
        """A fresh kernel: variables are gone, storage is kept. MCP servers end, and start again when they are used."""
        if not self._started:
            return
        if self._executor.supports("reset"):
            await self._executor.reset()
        else:
            await self._executor.close()
            await self._executor.start(storage=self._storage)

    async def interrupt(self) -> None:
        """KeyboardInterrupt in the running cell."""
        await self._executor.interrupt()

    def supports(self, capability: str) -> bool:
        """Whether its executor can do that; False before it is started."""
        return self._started and bool(self._executor.supports(capability))

    def supported_capabilities(self) -> Set[str]:
        """All that its executor can do; nothing before it is started."""
        return set(self._executor.supported_capabilities()) if self._started else set()

    # -- functions of the host

    @overload
    def tool(self, fn: F) -> F: ...

    @overload
    def tool(self, fn: None = None, *, name: Optional[str] = None, description: Optional[str] = None,
             timeout: Optional[float] = 60.0, thread: bool = False) -> Callable[[F], F]: ...

    def tool(self, fn: Optional[F] = None, *, name: Optional[str] = None, description: Optional[str] = None,
             timeout: Optional[float] = 60.0, thread: bool = False) -> Any:
        """A function, sync or async, as a tool of this session; its signature, types and docstring become the schema.

        It runs on the event loop of the session; with ``thread=True`` a plain function runs in a thread instead. Before or
        after the start. A name with a dot makes several functions callables of one tool: ``math.add``.
        """
        def add(function: F) -> F:
            made = HostTool.of(function, name, description, timeout, thread)
            if self._started:
                self._core.add_tool(made)
            else:
                self._executor.extras["tools"].append(made)
            return function

        return add if fn is None else add(fn)

    def middleware(self, fn: ToolMiddleware) -> ToolMiddleware:
        """Adds a middleware, inside of those that are there."""
        if self._started:
            self._core.add_middleware(fn)
        else:
            self._executor.extras["middlewares"].append(fn)
        return fn

    @property
    def approvals(self) -> Approvals:
        """What waits for an agreement, and who answers."""
        return self._approvals

    def add_mcp_server(self, name: str, params: Mapping[str, Any]) -> None:
        """An MCP server as a tool: ``{"command", "args", "env", "cwd"}`` or ``{"url", "headers"}``."""
        if self._started:
            self._core.add_mcp(name, params)
        else:
            self._executor.extras["mcp"][name] = dict(params)

    # -- tools, workflows, artifacts, deps

    async def _space(self) -> SpaceHandle:
        if self._closed:
            raise SessionClosedError("Session is closed")
        if not self._started:
            await self.start()
        if isinstance(self._executor, LibraryExecutor):
            return self._executor.core.need_space()
        space: SpaceHandle = self._storage.space()  # type: ignore[union-attr]
        return space

    async def list_tools(self) -> List[Dict[str, Any]]:
        """``[{name, description, tags, callables: [{name, description, parameters}]}]``"""
        await self._space()
        found: List[Dict[str, Any]] = await self._executor.list_tools()
        return found

    async def search_tools(self, query: str, limit: int = 10) -> List[Dict[str, Any]]:
        """The same, best first."""
        await self._space()
        found: List[Dict[str, Any]] = await self._executor.search_tools(query, limit)
        return found

    async def call_tool(self, name: str, **arguments: Any) -> Any:
        """Calls a tool from the host, through the middlewares: ``call_tool("curl.get", url=...)``."""
        return await in_thread(_facade.call_tool, await self._space(), name, arguments)

    async def list_workflows(self) -> List[Dict[str, Any]]:
        """``[{name, description, parameters}]``"""
        return await in_thread(_facade.list_workflows, await self._space())

    async def search_workflows(self, query: str, limit: int = 5) -> List[Dict[str, Any]]:
        """The same, best first."""
        return await in_thread(_facade.search_workflows, await self._space(), query, limit)

    async def get_workflow(self, name: str) -> Optional[Dict[str, Any]]:
        """The same with ``source``; None where there is none."""
        return await in_thread(_facade.get_workflow, await self._space(), name)

    async def add_workflow(self, name: str, source: str, description: str = "") -> Dict[str, Any]:
        """Keeps a workflow; ValueError or SyntaxError where it is none. Nothing of it runs."""
        return await in_thread(_facade.create_workflow, await self._space(), name, source, description)

    async def remove_workflow(self, name: str) -> bool:
        """Whether there was one."""
        return await in_thread(_facade.remove_workflow, await self._space(), name)

    list_skills, search_skills, get_skill = list_workflows, search_workflows, get_workflow
    add_skill, remove_skill = add_workflow, remove_workflow

    async def list_artifacts(self) -> List[Dict[str, Any]]:
        """``[{name, path, description, metadata, created_at, size}]``"""
        return await in_thread(_facade.list_artifacts, await self._space())

    async def save_artifact(self, name: str, data: Any, description: str = "",
                            metadata: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """Text, bytes, JSON data, a DataFrame."""
        return await in_thread(_facade.save_artifact, await self._space(), name, data, description, metadata)

    async def load_artifact(self, name: str) -> Any:
        """The data, of the type it had; ArtifactNotFoundError."""
        return await in_thread(_facade.load_artifact, await self._space(), name)

    async def delete_artifact(self, name: str) -> None:
        """One that is not there is fine."""
        await in_thread(_facade.delete_artifact, await self._space(), name)

    async def list_deps(self) -> List[str]:
        """``["pandas>=2", ...]``"""
        await self._space()
        found: List[str] = await self._executor.list_deps()
        return found

    async def add_dep(self, package: str) -> Dict[str, Any]:
        """``{installed, already_present, failed}``; DepsError with the installer's words."""
        await self._space()
        found: Dict[str, Any] = await self._executor.add_dep(package)
        return found

    async def remove_dep(self, package: str) -> Dict[str, Any]:
        """``{removed, not_found, failed, removed_from_config}``"""
        await self._space()
        found: Dict[str, Any] = await self._executor.remove_dep(package)
        return found

    async def sync_deps(self) -> Dict[str, Any]:
        """``{installed, already_present, failed}``"""
        await self._space()
        found: Dict[str, Any] = await self._executor.sync_deps()
        return found


__all__ = ["Session"]
