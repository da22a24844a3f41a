"""The synchronous twin: the same session for programs without an event loop.

::

    from workcell.sync import Session

    with Session(FileStorage("./data")) as session:
        print(session.run("1 + 1").value)

Sessions may be used from several threads; cells of one session run one after the other. Functions of the host run in
threads of their own (async ones on a loop of their own), so they must be safe there.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set

from . import _facade
from . import session as _async
from ._core import Core, HostTool, SpaceHandle
from ._engine import Engine
from ._runs import run_sync, stream_sync
from .approvals import Approvals
from .audit import AuditLog
from .errors import SessionClosedError, from_native
from .events import Event
from .execution.configs import PathLike
from .execution.executors import LibraryExecutor, SubprocessExecutor
from .policy import PolicyLike
from .storage import StorageBackend
from .tools.middleware import ToolMiddleware
from .types import ExecutionResult, closed_result


#: What the session itself is told, not its executor.
_OWN = frozenset(("policy", "gate", "approval_timeout", "approval_stops_clock", "require_shell_escape", "restore_cwd",
                  "audit", "middlewares", "mcp_servers", "tools", "variables", "progress", "engine", "sync_deps_on_start"))


class Session:
    """As :class:`workcell.Session`, with methods that wait."""

    def __init__(self, storage: Optional[StorageBackend] = None, executor: Optional[LibraryExecutor] = None,
                 sync_deps_on_start: bool = False, *, policy: PolicyLike = None, gate: Optional[Sequence[str]] = None,
                 approval_timeout: Optional[float] = 60.0, approval_stops_clock: bool = False,
                 require_shell_escape: bool = False, restore_cwd: bool = False, audit: Optional[AuditLog] = None,
                 middlewares: Sequence[ToolMiddleware] = (),
                 mcp_servers: Optional[Mapping[str, Mapping[str, Any]]] = None, tools: Sequence[Callable[..., Any]] = (),
                 variables: Optional[Mapping[str, str]] = None, progress: Optional[Callable[[str], Any]] = None,
                 engine: Optional[Engine] = None) -> None:
        _async.check_arguments(storage, executor)
        if executor is not None and not isinstance(executor, LibraryExecutor):
            raise TypeError("a synchronous session needs one of Workcell's own executors")
        self._storage = storage
        self._executor = executor if executor is not None else SubprocessExecutor()
        self._executor.extras = _async.session_extras(
            policy=policy, gate=gate, approval_timeout=approval_timeout, approval_stops_clock=approval_stops_clock,
            require_shell_escape=require_shell_escape, restore_cwd=restore_cwd, audit=audit, middlewares=middlewares,
            mcp_servers=mcp_servers, tools=tools, variables=variables, progress=progress, engine=engine)
        if sync_deps_on_start:
            self._executor.extras["space"] = {"sync_deps_on_start": 1}
        self._lock = threading.Lock()
        self._approvals = Approvals()
        self._core: Optional[Core] = None
        self._closed = False

    # -- constructors

    @classmethod
    def _like(cls, name: str, base_path: PathLike, options: Dict[str, Any]) -> "Session":
        """As the constructor of that name of the async session; what is the session's own goes to ours."""
        kept = {key: options.pop(key) for key in list(options) if key in _OWN}
        made = getattr(_async.Session, name)(base_path, **options)
        return cls(made.storage, made.executor, **kept)

    @classmethod
    def from_base(cls, base_path: PathLike, **options: Any) -> "Session":
        """As :meth:`workcell.Session.from_base`."""
        return cls._like("from_base", base_path, options)

    @classmethod
    def subprocess(cls, base_path: PathLike, **options: Any) -> "Session":
        """As :meth:`workcell.Session.subprocess`."""
        return cls._like("subprocess", base_path, options)

    @classmethod
    def sandbox(cls, base_path: PathLike, **options: Any) -> "Session":
        """As :meth:`workcell.Session.sandbox`."""
        return cls._like("sandbox", base_path, options)

    @classmethod
    def inprocess(cls, base_path: PathLike, **options: Any) -> "Session":
        """As :meth:`workcell.Session.inprocess`."""
        return cls._like("inprocess", base_path, options)

    @classmethod
    def container(cls, base_path: PathLike, **options: Any) -> "Session":
        """As :meth:`workcell.Session.container`."""
        return cls._like("container", base_path, options)

    @classmethod
    def deno(cls, base_path: PathLike, **options: Any) -> "Session":
        """As :meth:`workcell.Session.deno`."""
        return cls._like("deno", base_path, options)

    @classmethod
    def scratch(cls, executor: Optional[LibraryExecutor] = None, **options: Any) -> "Session":
        """A session without a storage."""
        made: Any = _async.NoStorage()
        return cls(made, executor, **options)

    # -- life

    def start(self) -> None:
        """Opens it; more than once is fine."""
        self._need()

    def _need(self) -> Core:
        core = self._core
        if core is not None:
            return core
        with self._lock:
            if self._closed:
                raise SessionClosedError("Session is closed")
            if self._core is None:
                storage: Any = self._storage
                core = Core(self._executor.make_spec(storage))
                core.approvals = self._approvals
                core.go_home(None)
                core.open()
                self._core = core
            return self._core

    def close(self) -> None:
        """Ends it and everything that it started."""
        with self._lock:
            self._closed = True
            core, self._core = self._core, None
        if core is not None:
            core.close()

    def __enter__(self) -> "Session":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_core", None) is not None:
            warnings.warn("a Workcell session was not closed", ResourceWarning, stacklevel=2, source=self)

    @property
    def storage(self) -> Any:
        """What it was made with."""
        return self._storage

    @property
    def executor(self) -> LibraryExecutor:
        """Where its code runs."""
        return self._executor

    @property
    def session_id(self) -> str:
        """The library's id; ``""`` before it is started."""
        return self._core.id if self._core is not None else ""

    # -- cells

    def run(self, code: str, timeout: Optional[float] = None,
            on_event: Optional[Callable[[Event], Any]] = None) -> ExecutionResult:
        """Runs one cell and waits. Ctrl-C interrupts it.

        Args:
            code: Python, as in IPython.
            timeout: seconds; None: the executor's default.
            on_event: is called with what happens meanwhile.
        """
        if self._closed:
            return closed_result()
        return run_sync(self._need(), code, timeout, on_event)

    def stream(self, code: str, timeout: Optional[float] = None) -> Iterator[Event]:
        """Runs one cell and yields what happens; the last event has the result."""
        return stream_sync(self._need(), code, timeout)

    def reset(self) -> None:
        """A fresh kernel."""
        if self._core is not None:
            self._core.reset()

    def interrupt(self) -> None:
        """KeyboardInterrupt in the running cell; from another thread."""
        from . import _native

        if self._core is not None:
            try:
                self._core.need_session().interrupt()
            except _native.NativeError as error:
                raise from_native(error) from None

    def supports(self, capability: str) -> bool:
        """Whether its executor can do that; False before it is started."""
        return self._core is not None and self._executor.supports(capability)

    def supported_capabilities(self) -> Set[str]:
        """All that its executor can do; nothing before it is started."""
        return self._executor.supported_capabilities() if self._core is not None else set()

    # -- functions of the host

    def tool(self, fn: Optional[Callable[..., Any]] = None, *, name: Optional[str] = None,
             description: Optional[str] = None, timeout: Optional[float] = 60.0) -> Any:
        """A function as a tool; it runs in a thread, an async one on a loop of its own."""
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            made = HostTool.of(function, name, description, timeout, True)
            if self._core is not None:
                self._core.add_tool(made)
            else:
                self._executor.extras["tools"].append(made)
            return function

        return add if fn is None else add(fn)

    def middleware(self, fn: ToolMiddleware) -> ToolMiddleware:
        """Adds a middleware, inside of those that are there."""
        if self._core is not None:
            self._core.add_middleware(fn)
        else:
            self._executor.extras["middlewares"].append(fn)
        return fn

    @property
    def approvals(self) -> Approvals:
        """What waits for an agreement, and who answers."""
        return self._approvals

    def add_mcp_server(self, name: str, params: Mapping[str, Any]) -> None:
        """An MCP server as a tool."""
        if self._core is not None:
            self._core.add_mcp(name, params)
        else:
            self._executor.extras["mcp"][name] = dict(params)

    # -- tools, workflows, artifacts, deps: as the functions of _facade, with this session's space

    def _space(self) -> SpaceHandle:
        if self._closed:
            raise SessionClosedError("Session is closed")
        return self._need().need_space()

    def list_tools(self) -> List[Dict[str, Any]]:
        return _facade.list_tools(self._space())

    def search_tools(self, query: str, limit: int = 10) -> List[Dict[str, Any]]:
        return _facade.search_tools(self._space(), query, limit)

    def call_tool(self, name: str, **arguments: Any) -> Any:
        return _facade.call_tool(self._space(), name, arguments)

    def list_workflows(self) -> List[Dict[str, Any]]:
        return _facade.list_workflows(self._space())

    def search_workflows(self, query: str, limit: int = 5) -> List[Dict[str, Any]]:
        return _facade.search_workflows(self._space(), query, limit)

    def get_workflow(self, name: str) -> Optional[Dict[str, Any]]:
        return _facade.get_workflow(self._space(), name)

    def add_workflow(self, name: str, source: str, description: str = "") -> Dict[str, Any]:
        return _facade.create_workflow(self._space(), name, source, description)

    def remove_workflow(self, name: str) -> bool:
        return _facade.remove_workflow(self._space(), name)

    list_skills, search_skills, get_skill = list_workflows, search_workflows, get_workflow
    add_skill, remove_skill = add_workflow, remove_workflow

    def list_artifacts(self) -> List[Dict[str, Any]]:
        return _facade.list_artifacts(self._space())

    def save_artifact(self, name: str, data: Any, description: str = "",
                      metadata: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        return _facade.save_artifact(self._space(), name, data, description, metadata)

    def load_artifact(self, name: str) -> Any:
        return _facade.load_artifact(self._space(), name)

    def delete_artifact(self, name: str) -> None:
        _facade.delete_artifact(self._space(), name)

    def list_deps(self) -> List[str]:
        return _facade.list_deps(self._space())

    def add_dep(self, package: str) -> Dict[str, Any]:
        return _facade.add_dep(self._space(), package)

    def remove_dep(self, package: str) -> Dict[str, Any]:
        return _facade.remove_dep(self._space(), package)

    def sync_deps(self) -> Dict[str, Any]:
        return _facade.sync_deps(self._space())


__all__ = ["Session"]
