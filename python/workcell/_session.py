"""What the async and the synchronous session have in common: how they are made, and functions of the host."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Type, TypeVar, Union, overload

from ._core import Core, HostTool, milliseconds
from ._engine import Engine
from .approvals import Approvals
from .audit import AuditLog
from .execution.configs import (ContainerConfig, DenoSandboxConfig, InProcessConfig, PathLike, SandboxConfig,
                                SubprocessConfig)
from .execution.executors import (ContainerExecutor, DenoSandboxExecutor, InProcessExecutor, LibraryExecutor,
                                  SandboxExecutor, SubprocessExecutor)
from .execution.protocol import Executor
from .policy import PolicyLike, gate_bits
from .storage import FileStorage, StorageBackend
from .tools.adapters import ToolAdapter
from .tools.middleware import ToolMiddleware
from .tools.registry import ToolRegistry

#: A function of the host, or something that has tools.
ToolLike = Union[Callable[..., Any], ToolAdapter, ToolRegistry]
F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound="_Session")


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
                   tools: Sequence[ToolLike], variables: Optional[Mapping[str, str]],
                   progress: Optional[Callable[[str], Any]], engine: Optional[Engine]) -> Dict[str, Any]:
    """Options of a session as parts of a Spec."""
    return {
        "policy": policy, "audit": audit, "middlewares": list(middlewares), "variables": variables, "progress": progress,
        "engine": engine, "mcp": {name: dict(params) for name, params in (mcp_servers or {}).items()},
        "tools": [HostTool.of(each) if callable(each) else each for each in tools],
        "session": {"gate": gate_bits(gate), "approval_timeout_ms": milliseconds(approval_timeout),
                    "approval_stops_clock": int(approval_stops_clock), "require_shell_escape": int(require_shell_escape),
                    "restore_cwd": int(restore_cwd)},
    }


def base_parts(base_path: PathLike, extra_deps: Optional[Sequence[str]]) -> Dict[str, Any]:
    """The folder of ``from_base``: storage there, tools in ``tools/``, deps from ``requirements.txt``."""
    base = Path(base_path).expanduser().resolve()
    (base / "tools").mkdir(parents=True, exist_ok=True)
    return {"storage": FileStorage(base), "tools_path": base / "tools", "deps": list(extra_deps) if extra_deps else None}


class _Session:
    _library_only = False  # it takes no executor of somebody else
    _threads = False  # plain functions of the host run in threads

    def __init__(self, storage: Optional[StorageBackend] = None, executor: Optional[Executor] = None,
                 sync_deps_on_start: bool = False, *, policy: PolicyLike = None, gate: Optional[Sequence[str]] = None,
                 approval_timeout: Optional[float] = 60.0, approval_stops_clock: bool = False,
                 require_shell_escape: bool = False, restore_cwd: bool = False, audit: Optional[AuditLog] = None,
                 middlewares: Sequence[ToolMiddleware] = (),
                 mcp_servers: Optional[Mapping[str, Mapping[str, Any]]] = None, tools: Sequence[ToolLike] = (),
                 variables: Optional[Mapping[str, str]] = None, progress: Optional[Callable[[str], Any]] = None,
                 engine: Optional[Engine] = None) -> None:
        check_arguments(storage, executor)
        if self._library_only and not isinstance(executor, (LibraryExecutor, type(None))):
            raise TypeError("a synchronous session needs one of Workcell's own executors")
        self._storage = storage
        self._executor: Any = executor if executor is not None else SubprocessExecutor()
        self._sync_deps = sync_deps_on_start
        self._closed = False
        self._lock = threading.Lock()
        self._approvals = Approvals()
        if isinstance(self._executor, LibraryExecutor):
            self._executor.extras = session_extras(
                policy=policy, gate=gate, approval_timeout=approval_timeout, approval_stops_clock=approval_stops_clock,
                require_shell_escape=require_shell_escape, restore_cwd=restore_cwd, audit=audit, middlewares=middlewares,
                mcp_servers=mcp_servers, tools=tools, variables=variables, progress=progress, engine=engine)
            if sync_deps_on_start:
                self._executor.extras["space"] = {"sync_deps_on_start": 1}

    def _open_core(self) -> Optional[Core]:
        """The session of the library; None before the start."""
        raise NotImplementedError

    # -- constructors

    @classmethod
    def scratch(cls: Type[S], executor: Optional[Executor] = None, **options: Any) -> S:
        """A session without a storage: tools, but no workflows, artifacts and deps."""
        made: Any = NoStorage()
        return cls(made, executor, **options)

    @classmethod
    def from_base(cls: Type[S], base_path: PathLike, *, timeout: Optional[float] = 30.0,
                  extra_deps: Optional[Sequence[str]] = None, allow_runtime_deps: bool = True,
                  sync_deps_on_start: bool = False, **options: Any) -> S:
        """Storage in a folder, tools in its ``tools/``, deps from its ``requirements.txt``."""
        parts = base_parts(base_path, extra_deps)
        config = SubprocessConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps,
                                  tools_path=parts["tools_path"], deps=parts["deps"])
        return cls(parts["storage"], SubprocessExecutor(config), sync_deps_on_start, **options)

    @classmethod
    def subprocess(cls: Type[S], base_path: PathLike, *, timeout: Optional[float] = 60.0,
                   extra_deps: Optional[Sequence[str]] = None, allow_runtime_deps: bool = True,
                   sync_deps_on_start: bool = False, python_version: Optional[str] = None, cache_venv: bool = True,
                   **options: Any) -> S:
        """The same, with the options of :class:`SubprocessConfig`."""
        parts = base_parts(base_path, extra_deps)
        config = SubprocessConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps,
                                  tools_path=parts["tools_path"], deps=parts["deps"], python_version=python_version,
                                  cache_venv=cache_venv)
        return cls(parts["storage"], SubprocessExecutor(config), sync_deps_on_start, **options)

    @classmethod
    def sandbox(cls: Type[S], base_path: PathLike, *, timeout: Optional[float] = 60.0,
                extra_deps: Optional[Sequence[str]] = None, allow_runtime_deps: bool = True,
                sync_deps_on_start: bool = False, policy_name: Optional[PathLike] = None,
                network: Union[str, Sequence[str], None] = None, memory_limit: Union[str, int, None] = None,
                cpu_quota: Optional[float] = None, cwd: Optional[PathLike] = None, workspace_mode: Optional[str] = None,
                **options: Any) -> S:
        """As :meth:`subprocess`, but confined."""
        parts = base_parts(base_path, extra_deps)
        config = SandboxConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps, cwd=cwd,
                               tools_path=parts["tools_path"], deps=parts["deps"], policy=policy_name, network=network,
                               memory_limit=memory_limit, cpu_quota=cpu_quota, workspace_mode=workspace_mode)
        return cls(parts["storage"], SandboxExecutor(config), sync_deps_on_start, **options)

    @classmethod
    def inprocess(cls: Type[S], base_path: PathLike, *, timeout: Optional[float] = 30.0,
                  extra_deps: Optional[Sequence[str]] = None, allow_runtime_deps: bool = True,
                  sync_deps_on_start: bool = False, **options: Any) -> S:
        """As :meth:`subprocess`, but in this process."""
        parts = base_parts(base_path, extra_deps)
        config = InProcessConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps,
                                 tools_path=parts["tools_path"], deps=parts["deps"])
        return cls(parts["storage"], InProcessExecutor(config), sync_deps_on_start, **options)

    in_process = inprocess

    @classmethod
    def container(cls: Type[S], base_path: PathLike, *, timeout: Optional[float] = 30.0,
                  extra_deps: Optional[Sequence[str]] = None, allow_runtime_deps: bool = True,
                  sync_deps_on_start: bool = False, auth_token: Optional[str] = None, auth_disabled: bool = False,
                  image: Optional[str] = None, network_disabled: bool = False,
                  memory_limit: Union[str, int, None] = None, cpu_quota: Optional[float] = None,
                  **options: Any) -> S:
        """As :meth:`subprocess`, but in a container."""
        parts = base_parts(base_path, extra_deps)
        config = ContainerConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps, image=image,
                                 tools_path=parts["tools_path"], deps=parts["deps"], auth_token=auth_token,
                                 auth_disabled=auth_disabled, network_disabled=network_disabled,
                                 memory_limit=memory_limit, cpu_quota=cpu_quota)
        return cls(parts["storage"], ContainerExecutor(config), sync_deps_on_start, **options)

    @classmethod
    def deno(cls: Type[S], base_path: PathLike, *, timeout: Optional[float] = 60.0, extra_deps: Optional[Sequence[str]] = None,
             allow_runtime_deps: bool = True, sync_deps_on_start: bool = False, network_profile: Optional[str] = None,
             **options: Any) -> S:
        """As :meth:`subprocess`, but in Pyodide under Deno."""
        parts = base_parts(base_path, extra_deps)
        config = DenoSandboxConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps,
                                   tools_path=parts["tools_path"], deps=parts["deps"], network_profile=network_profile)
        return cls(parts["storage"], DenoSandboxExecutor(config), sync_deps_on_start, **options)

    @property
    def storage(self) -> Any:
        """The storage of the session."""
        return self._storage

    @property
    def executor(self) -> Any:
        """Where its code runs."""
        return self._executor

    @property
    def session_id(self) -> str:
        """The library's id; ``""`` before it is started."""
        core = self._open_core()
        return core.id if core is not None else ""

    # -- functions of the host

    @overload
    def tool(self, fn: F) -> F: ...

    @overload
    def tool(self, fn: None = None, *, name: Optional[str] = None, description: Optional[str] = None,
             timeout: Optional[float] = 60.0, thread: bool = False) -> Callable[[F], F]: ...

    def tool(self, fn: Optional[F] = None, *, name: Optional[str] = None, description: Optional[str] = None,
             timeout: Optional[float] = 60.0, thread: bool = False) -> Any:
        """A function, sync or async, as a tool of this session; its signature, types and docstring become the schema.

        It runs on the event loop of the session; with ``thread=True``, and always in a synchronous session, a plain function
        runs in a thread instead. Before or after the start. A name with a dot makes several functions callables of one tool: ``math.add``.
        """
        def add(function: F) -> F:
            made = HostTool.of(function, name, description, timeout, thread or self._threads)
            core = self._open_core()
            if core is not None:
                core.add_tool(made)
            else:
                self._executor.extras["tools"].append(made)
            return function

        return add if fn is None else add(fn)

    def middleware(self, fn: ToolMiddleware) -> ToolMiddleware:
        """Adds a middleware, inside the existing ones."""
        core = self._open_core()
        if core is not None:
            core.add_middleware(fn)
        else:
            self._executor.extras["middlewares"].append(fn)
        return fn

    @property
    def approvals(self) -> Approvals:
        """The pending requests, and who answers them."""
        return self._approvals

    def add_mcp_server(self, name: str, params: Mapping[str, Any]) -> None:
        """An MCP server as a tool: ``{"command", "args", "env", "cwd"}`` or ``{"url", "headers"}``."""
        core = self._open_core()
        if core is not None:
            core.add_mcp(name, params)
        else:
            self._executor.extras["mcp"][name] = dict(params)
