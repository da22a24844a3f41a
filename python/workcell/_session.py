"""What the async and the synchronous session have in common: how they are made, and functions of the host."""

from __future__ import annotations

import difflib
import os
import re
import threading
from pathlib import Path
from typing import Any, Callable, Dict, Literal, Mapping, Optional, Sequence, Type, TypeVar, Union, overload

from ._core import Core, HostTool, milliseconds
from ._engine import Engine, Size, bytes_of
from .approvals import Approvals
from .audit import AuditLog
from .events import BranchEvent
from .execution.configs import (ContainerConfig, DenoSandboxConfig, ExecutorConfig, InProcessConfig, Network, NetworkProfile, PathLike,
                                SandboxConfig, SubprocessConfig, WorkspaceMode)
from .execution.executors import (ContainerExecutor, DenoSandboxExecutor, InProcessExecutor, JupyterExecutor, KubernetesExecutor,
                                  LibraryExecutor, SandboxExecutor, SubprocessExecutor)
from .execution.protocol import Executor
from .llm import LlmBudget, LlmFunction, budget_of
from .policy import Gate, PolicyLike, gate_bits
from .prompt import Rules
from .storage import FileStorage, RedisStorage, StorageBackend
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
        """No options: the library opens no storage."""
        return {}

    def __repr__(self) -> str:
        return "None"


#: Names of the executors, and the other names that they have elsewhere.
ExecutorName = Literal["subprocess", "sandbox", "inprocess", "in-process", "deno", "deno-sandbox", "jupyter", "container", "kubernetes"]
StorageLike = Union[StorageBackend, PathLike, None]
ExecutorLike = Union[Executor, Type[LibraryExecutor], ExecutorConfig, ExecutorName, None]
_EXECUTORS: Dict[str, Type[LibraryExecutor]] = {
    "subprocess": SubprocessExecutor, "sandbox": SandboxExecutor, "inprocess": InProcessExecutor,
    "in-process": InProcessExecutor, "deno": DenoSandboxExecutor, "deno-sandbox": DenoSandboxExecutor,
    "jupyter": JupyterExecutor, "container": ContainerExecutor, "kubernetes": KubernetesExecutor}


def storage_of(storage: Any) -> Any:
    """The storage that a folder, a URL of Redis or a storage means; None: a session without storage."""
    if storage is None:
        return NoStorage()
    if isinstance(storage, str) and re.match(r"(rediss?|redis\+unix|unix)://", storage):
        return RedisStorage(storage)
    if isinstance(storage, (str, os.PathLike)):
        return FileStorage(storage)
    if isinstance(storage, type):
        raise TypeError("storage must be an object: give %s(...), not the class" % storage.__name__)
    if not hasattr(storage, "space_options"):
        raise TypeError("storage must be a FileStorage, a RedisStorage, a folder or None, not %s; a storage class of your own needs "
                        "the method space_options()" % type(storage).__name__)
    return storage


def executor_of(executor: Any) -> Any:
    """The executor that a name, a class, a configuration or an executor means."""
    if executor is None:
        return SubprocessExecutor()
    if isinstance(executor, str):
        if executor == "remote" or executor.startswith(("http://", "https://", "unix:")):
            raise TypeError("a session server needs its address and token: executor=ContainerExecutor(remote_url=..., auth_token=...)")
        if executor not in _EXECUTORS:
            near = difflib.get_close_matches(executor, _EXECUTORS, 1)
            raise ValueError("unknown executor %r%s: it must be one of %s" % (
                executor, ", did you mean %r" % near[0] if near else "", ", ".join(sorted(_EXECUTORS))))
        return _EXECUTORS[executor]()
    if isinstance(executor, type):
        return executor()
    if isinstance(executor, ExecutorConfig):
        for made in _EXECUTORS.values():
            if made.config_type is type(executor):
                return made(executor)
    if not isinstance(executor, Executor):
        raise TypeError("executor must be an executor, its name, class or configuration, or None, not %s" % type(executor).__name__)
    return executor


def absolute(path: Optional[PathLike]) -> Optional[str]:
    return None if path is None else str(Path(path).expanduser().resolve())


def saved_place(place: Optional[PathLike]) -> Optional[str]:
    """A folder, or the URL of Redis as it is."""
    return place if isinstance(place, str) and place.startswith(("redis://", "rediss://", "redis+unix://", "unix://")) else absolute(place)


def session_extras(*, policy: PolicyLike, gate: Optional[Sequence[Gate]], approval_timeout: Optional[float],
                   approval_stops_clock: bool, require_shell_escape: bool, restore_cwd: bool, undo: int,
                   points_memory: Size, allow_fork: int, fork_memory: Size, fork_time: Optional[float],
                   speculate: bool, saved: Optional[PathLike], saved_key: Optional[str], saved_compress: bool, saved_sync: bool, saved_points: bool,
                   durable: Optional[Literal["cells", "results"]], resume: Optional[str],
                   record: Optional[PathLike], saved_form: Optional[str], saved_host: Optional[str], saved_url: Optional[str],
                   saved_lease: Optional[float], changes: bool,
                   on_branch: Optional[Callable[[BranchEvent], Any]], audit: Optional[AuditLog],
                   middlewares: Sequence[ToolMiddleware], mcp_servers: Optional[Mapping[str, Mapping[str, Any]]],
                   tools: Sequence[ToolLike], llm: Optional[LlmFunction],
                   llm_budget: Union[LlmBudget, Mapping[str, Any], None], variables: Optional[Mapping[str, str]],
                   progress: Optional[Callable[[str], Any]], engine: Optional[Engine]) -> Dict[str, Any]:
    """Options of a session as parts of a Spec."""
    if llm is None and llm_budget is not None:
        raise TypeError("llm_budget is the budget of llm=, which was not given")
    if llm is not None and not callable(llm):
        raise TypeError("llm must be a function, not %s" % type(llm).__name__)
    return {
        "policy": policy, "audit": audit, "middlewares": list(middlewares), "variables": variables, "progress": progress,
        "engine": engine, "on_branch": on_branch, "mcp": {name: dict(params) for name, params in (mcp_servers or {}).items()},
        "tools": [HostTool.of(each) if callable(each) else each for each in tools], "llm": llm, "llm_budget": budget_of(llm_budget),
        "session": {"gate": gate_bits(gate), "approval_timeout_ms": milliseconds(approval_timeout),
                    "approval_stops_clock": int(approval_stops_clock), "require_shell_escape": int(require_shell_escape),
                    "restore_cwd": int(restore_cwd), "undo": int(undo),
                    "points_bytes": bytes_of("points_memory", points_memory), "allow_fork": int(allow_fork),
                    "fork_memory": bytes_of("fork_memory", fork_memory), "fork_time_ms": milliseconds(fork_time) if fork_time else 0,
                    "speculate": int(speculate), "saved_dir": saved_place(saved),
                    "saved_key": saved_key, "saved_compress": int(saved_compress), "saved_unsynced": int(not saved_sync),
                    "saved_points": int(saved_points),
                    "durable": durable, "resume": resume, "record": absolute(record), "saved_form": saved_form,
                    "saved_host": saved_host, "saved_url": saved_url, "saved_lease_ms": milliseconds(saved_lease) if saved_lease else 0,
                    "changes": int(changes)},
    }


def base_parts(base_path: PathLike, extra_deps: Optional[Sequence[str]]) -> Dict[str, Any]:
    """The folder of ``from_base``: storage there, tools in ``tools/``, deps from ``requirements.txt``."""
    base = Path(base_path).expanduser().resolve()
    (base / "tools").mkdir(parents=True, exist_ok=True)
    return {"storage": FileStorage(base), "tools_path": base / "tools", "deps": list(extra_deps) if extra_deps else None}


class _Session:
    _library_only = False  # it takes no executor of somebody else
    _threads = False  # plain functions of the host run in threads

    def __init__(self, storage: StorageLike = None, executor: ExecutorLike = None,
                 sync_deps_on_start: bool = False, *, policy: PolicyLike = None, gate: Optional[Sequence[Gate]] = None,
                 approval_timeout: Optional[float] = 60.0, approval_stops_clock: bool = False,
                 require_shell_escape: bool = False, restore_cwd: bool = False, undo: int = 0, points_memory: Size = 0,
                 allow_fork: int = 0, fork_memory: Size = 0, fork_time: Optional[float] = None,
                 speculate: bool = False, saved: Optional[PathLike] = None, saved_key: Optional[str] = None,
                 saved_compress: bool = False, saved_sync: bool = True, saved_points: bool = False, durable: Optional[Literal["cells", "results"]] = None,
                 resume: Optional[str] = None, record: Optional[PathLike] = None,
                 saved_form: Optional[str] = None, saved_host: Optional[str] = None, saved_url: Optional[str] = None,
                 saved_lease: Optional[float] = None, changes: bool = False, on_branch: Optional[Callable[[BranchEvent], Any]] = None, audit: Optional[AuditLog] = None,
                 middlewares: Sequence[ToolMiddleware] = (),
                 mcp_servers: Optional[Mapping[str, Mapping[str, Any]]] = None, tools: Sequence[ToolLike] = (),
                 llm: Optional[LlmFunction] = None, llm_budget: Union[LlmBudget, Mapping[str, Any], None] = None,
                 variables: Optional[Mapping[str, str]] = None, progress: Optional[Callable[[str], Any]] = None,
                 engine: Optional[Engine] = None, embeddings_url: Optional[str] = None,
                 embeddings_model: Optional[str] = None, embeddings_key: Optional[str] = None) -> None:
        self._storage: Any = storage_of(storage)
        self._executor: Any = executor_of(executor)
        if self._library_only and not isinstance(self._executor, LibraryExecutor):
            raise TypeError("a synchronous session needs one of Workcell's own executors")
        self._sync_deps = sync_deps_on_start
        self._closed = False
        self._lock = threading.Lock()
        self._approvals = Approvals()
        if isinstance(self._executor, LibraryExecutor):
            self._executor.extras = session_extras(
                policy=policy, gate=gate, approval_timeout=approval_timeout, approval_stops_clock=approval_stops_clock,
                require_shell_escape=require_shell_escape, restore_cwd=restore_cwd, undo=undo,
                points_memory=points_memory, allow_fork=allow_fork, fork_memory=fork_memory, fork_time=fork_time,
                speculate=speculate, saved=saved, saved_key=saved_key,
                saved_compress=saved_compress, saved_sync=saved_sync, saved_points=saved_points, durable=durable, resume=resume, record=record, saved_form=saved_form,
                saved_host=saved_host, saved_url=saved_url, saved_lease=saved_lease, changes=changes, on_branch=on_branch, audit=audit, middlewares=middlewares,
                mcp_servers=mcp_servers, tools=tools, llm=llm, llm_budget=llm_budget, variables=variables, progress=progress, engine=engine)
            space: Dict[str, Any] = {
                "embeddings_url": embeddings_url, "embeddings_model": embeddings_model, "embeddings_key": embeddings_key}
            if sync_deps_on_start:
                space["sync_deps_on_start"] = 1
            self._executor.extras["space"] = space

    __init__.__qualname__ = "Session.__init__"  # as Python's own messages about arguments name it

    def _open_core(self) -> Optional[Core]:
        """The session of the library; None before the start."""
        raise NotImplementedError

    # -- constructors

    @classmethod
    def scratch(cls: Type[S], executor: ExecutorLike = None, **options: Any) -> S:
        """A session without a storage: tools, but no workflows, artifacts and deps. The same as ``Session(None, executor)``."""
        return cls(None, executor, **options)

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
                   cwd: Optional[PathLike] = None, workspace_mode: Optional[WorkspaceMode] = None, **options: Any) -> S:
        """The same, with the options of :class:`SubprocessConfig`."""
        parts = base_parts(base_path, extra_deps)
        config = SubprocessConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps,
                                  tools_path=parts["tools_path"], deps=parts["deps"], python_version=python_version,
                                  cache_venv=cache_venv, cwd=cwd, workspace_mode=workspace_mode)
        return cls(parts["storage"], SubprocessExecutor(config), sync_deps_on_start, **options)

    @classmethod
    def sandbox(cls: Type[S], base_path: PathLike, *, timeout: Optional[float] = 60.0,
                extra_deps: Optional[Sequence[str]] = None, allow_runtime_deps: bool = True,
                sync_deps_on_start: bool = False, policy_name: Optional[PathLike] = None,
                network: Optional[Network] = None, memory: Optional[Size] = None, cpus: Optional[float] = None,
                pids: Optional[int] = None, disk: Optional[Size] = None, cwd: Optional[PathLike] = None,
                workspace_mode: Optional[WorkspaceMode] = None, memory_limit: Optional[Size] = None,
                cpu_quota: Optional[float] = None, **options: Any) -> S:
        """As :meth:`subprocess`, but confined."""
        parts = base_parts(base_path, extra_deps)
        config = SandboxConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps, cwd=cwd,
                               tools_path=parts["tools_path"], deps=parts["deps"], policy=policy_name, network=network,
                               memory=memory, cpus=cpus, pids=pids, disk=disk, workspace_mode=workspace_mode,
                               memory_limit=memory_limit, cpu_quota=cpu_quota)
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
                  image: Optional[str] = None, network: Optional[Network] = None, memory: Optional[Size] = None,
                  cpus: Optional[float] = None, pids: Optional[int] = None, network_disabled: bool = False,
                  memory_limit: Optional[Size] = None, cpu_quota: Optional[float] = None, **options: Any) -> S:
        """As :meth:`subprocess`, but in a container."""
        parts = base_parts(base_path, extra_deps)
        config = ContainerConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps, image=image,
                                 tools_path=parts["tools_path"], deps=parts["deps"], auth_token=auth_token,
                                 auth_disabled=auth_disabled, network=network, memory=memory, cpus=cpus, pids=pids,
                                 network_disabled=network_disabled, memory_limit=memory_limit, cpu_quota=cpu_quota)
        return cls(parts["storage"], ContainerExecutor(config), sync_deps_on_start, **options)

    @classmethod
    def deno(cls: Type[S], base_path: PathLike, *, timeout: Optional[float] = 60.0, extra_deps: Optional[Sequence[str]] = None,
             allow_runtime_deps: bool = True, sync_deps_on_start: bool = False, network: Optional[Network] = None,
             network_profile: Optional[NetworkProfile] = None, **options: Any) -> S:
        """As :meth:`subprocess`, but in Pyodide under Deno."""
        parts = base_parts(base_path, extra_deps)
        config = DenoSandboxConfig(default_timeout=timeout, allow_runtime_deps=allow_runtime_deps,
                                   tools_path=parts["tools_path"], deps=parts["deps"], network=network,
                                   network_profile=network_profile)
        return cls(parts["storage"], DenoSandboxExecutor(config), sync_deps_on_start, **options)

    @property
    def storage(self) -> Any:
        """The storage of the session."""
        return self._storage

    @property
    def executor(self) -> Any:
        """Where its code runs."""
        return self._executor

    def __repr__(self) -> str:
        core = None if self._closed else self._open_core()
        state = "closed" if self._closed else "not started" if core is None else core.id
        return "<%s %s, %s, storage=%r>" % (type(self).__name__, getattr(self._executor, "name", type(self._executor).__name__), state,
                                           self._storage)

    @property
    def session_id(self) -> str:
        """The library's id; ``""`` before it is started."""
        core = self._open_core()
        return core.id if core is not None else ""

    def _has_storage(self) -> bool:
        return not isinstance(self._storage, NoStorage) or getattr(self._executor, "name", "") == "remote"

    def _rules(self) -> Rules:
        config = getattr(self._executor, "config", None)
        name = getattr(self._executor, "name", type(self._executor).__name__)
        extras = getattr(self._executor, "extras", {})
        network = getattr(config, "network", None)
        if network is None and name in ("sandbox", "deno") and getattr(config, "policy", None) in (None, "untrusted"):
            network = "none"
        if network is not None and not isinstance(network, str):
            network = ", ".join(network) or "none"
        return Rules(name, getattr(config, "default_timeout", None), network, self._has_storage(),
                     getattr(config, "allow_runtime_deps", False), extras.get("policy") not in (None, "auto", "allow"))

    # -- functions of the host

    @overload
    def tool(self, fn: F) -> F: ...

    @overload
    def tool(self, fn: None = None, *, name: Optional[str] = None, description: Optional[str] = None,
             timeout: Optional[float] = 60.0, thread: bool = True, supposed: Any = ...) -> Callable[[F], F]: ...

    def tool(self, fn: Optional[F] = None, *, name: Optional[str] = None, description: Optional[str] = None,
             timeout: Optional[float] = 60.0, thread: bool = True, supposed: Any = ...) -> Any:
        """A function, sync or async, as a tool of this session; its signature, types and docstring become the schema.

        An async function runs on the event loop of the session. A plain one runs in a thread, so it may block; with
        ``thread=False`` it runs on the loop too (but in a synchronous session, whose tools always run in threads). Before or
        after the start. A name with a dot makes several functions callables of one tool: ``math.add``. ``supposed`` is the result that it
        usually has, with which a session that speculates goes on while a call waits for an approval.
        """
        def add(function: F) -> F:
            made = HostTool.of(function, name, description, timeout, thread or self._threads, supposed)
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
