"""One open session of the library with its space: what the async and the synchronous sessions stand on.

Blocking methods here release the GIL and may be called from any thread. Functions of the host (tools, middlewares, approval
handlers) run on the *home* loop: the event loop that opened the session, or the background loop of the process for
synchronous sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _calls, _engine, _native
from ._engine import Background, Channel, Engine, Item, default_engine, log
from .approvals import ApprovalRequest, Approvals, ask_handler
from .audit import AuditLog
from .events import BranchEvent
from .errors import (ConfigurationError, ExecutorUnavailableError, ServerError, PointNotFoundError, SessionClosedError, ToolCallError, ToolNotFoundError,
                     from_native, from_operation)
from .llm import LlmBudget, LlmFunction, serve_llm
from .policy import PolicyLike, resolve
from .tools.middleware import ToolCallContext, ToolMiddleware, compose_tool_middlewares
from .tools.schema import converter_of, doc_parts, dumps, parameters_of

SESSION_MASK = _engine.mask_of(_engine.KERNEL_DIED, _engine.APPROVAL, _engine.APPROVAL_ENDED, _engine.POINT_LOST, _engine.BRANCH)
RUN_MASK = _engine.mask_of(_engine.APPROVAL, _engine.APPROVAL_ENDED)
STREAM_MASK = RUN_MASK | _engine.mask_of(_engine.CHUNK, _engine.DISPLAY, _engine.CALL_STARTED, _engine.CALL_ENDED,
                                         _engine.IMAGE)
# A thread stays at most so long with what it has started, and with a call that it approved only where the one before was
# followed by the next request within PROMPT seconds.
SPIN_US, PROMPT = 5000, 0.001


#: Names of executors in middlewares, where they differ from the library's: those of get_backend().
BACKENDS = {"inprocess": "in-process", "deno": "deno-sandbox"}


def milliseconds(seconds: Optional[float]) -> int:
    """A timeout as the library takes it; None: none."""
    if seconds is None:
        return -1
    if seconds <= 0:
        raise ValueError("a timeout must be more than 0 seconds, or None for no limit, not %r" % seconds)
    return max(1, int(seconds * 1000))


@dataclass
class HostTool:
    """A function of the host as a tool."""

    name: str
    description: str
    parameters: Dict[str, Any]
    fn: Callable[..., Any]
    timeout: Optional[float] = 60.0
    thread: bool = True
    convert: Callable[[Dict[str, Any]], Dict[str, Any]] = lambda args: args
    supposed: Optional[str] = None  # JSON of the result that it usually has, for sessions that speculate

    @classmethod
    def of(cls, fn: Callable[..., Any], name: Optional[str] = None, description: Optional[str] = None,
           timeout: Optional[float] = 60.0, thread: bool = True, supposed: Any = ...) -> "HostTool":
        about = description if description is not None else doc_parts(fn.__doc__)[0]
        name = name or getattr(fn, "__name__", None)
        if not name:
            raise TypeError("a %s has no name: give one with name=" % type(fn).__name__)
        if name in ("list", "search"):  # functions of `tools` itself
            raise ValueError("tools.%s() is reserved: give this function another name with name=" % name)
        return cls(name, about, parameters_of(fn), fn, timeout, thread, converter_of(fn),
                   None if supposed is ... else json.dumps(supposed))


_JSON_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}


def tools_of(source: Any) -> List[HostTool]:
    """The tools of an adapter or a registry; blocking, where it has to ask a server for them."""
    tools = source.get_all_tools() if hasattr(source, "get_all_tools") else source.list_tools()
    return [_adapted(source, tool, each, len(tool.callables) == 1) for tool in tools for each in tool.callables]


def _adapted(source: Any, tool: Any, called: Any, alone: bool) -> HostTool:
    properties: Dict[str, Any] = {}
    for parameter in called.parameters:
        kind = _JSON_TYPES.get(parameter.type, parameter.type)
        known = kind in _JSON_TYPES.values()
        properties[parameter.name] = {
            name: value for name, value in (("type", kind if known else None), ("description", parameter.description or None),
                                            ("default", None if parameter.required else parameter.default))
            if value is not None}

    async def call(**args: Any) -> Any:
        return await source.call_tool(tool.name, called.name, args)

    required = [parameter.name for parameter in called.parameters if parameter.required]
    name = tool.name if alone and called.name == tool.name else "%s.%s" % (tool.name, called.name)
    # The adapter has its own idea of how long a call may take.
    return HostTool(name, called.description or tool.description,
                    {"type": "object", "properties": properties, "required": required}, call, None)


@dataclass
class Spec:
    """What a session is opened with. ``session`` and ``space`` are options of the library by their names there."""

    executor: str = "subprocess"
    session: Dict[str, Any] = field(default_factory=dict)
    space: Dict[str, Any] = field(default_factory=dict)
    policy: PolicyLike = None
    audit: Optional[AuditLog] = None
    variables: Optional[Mapping[str, str]] = None
    progress: Optional[Callable[[str], Any]] = None
    on_branch: Optional[Callable[[BranchEvent], Any]] = None
    tools: List[Any] = field(default_factory=list)  # HostTool, adapters, registries
    llm: Optional[LlmFunction] = None
    llm_budget: LlmBudget = LlmBudget()
    middlewares: List[ToolMiddleware] = field(default_factory=list)
    mcp: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    deps: List[str] = field(default_factory=list)
    engine: Optional[Engine] = None

    @property
    def remote(self) -> bool:
        """Tools, storage and packages are a server's."""
        return self.executor == "remote"


#: What pip and uv are told of the host's environment, as the command line does.
_INSTALLER = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME",
              "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy")


def installer_env() -> List[str]:
    """The part of the environment that is about pip and uv."""
    return ["%s=%s" % item for item in os.environ.items() if item[0] in _INSTALLER or item[0].startswith(("PIP_", "UV_"))]


def cache_dir() -> Optional[str]:
    """Where packages are installed, the same place as the command line's; None: the library's default."""
    for folder, below in ((os.environ.get("XDG_CACHE_HOME", ""), "workcell"), (os.environ.get("HOME", ""), ".cache/workcell")):
        if folder.startswith("/"):
            return os.path.join(folder, below)
    return None


def oauth_dir(workspace: Optional[str] = None) -> Optional[str]:
    """Where tokens of logins at MCP servers are kept, the same place as the command line's; None: there are no logins."""
    for folder, below in ((os.environ.get("XDG_STATE_HOME", ""), "workcell/oauth"), (os.environ.get("HOME", ""), ".local/state/workcell/oauth")):
        if folder.startswith("/"):
            return os.path.join(folder, below, workspace) if workspace else os.path.join(folder, below)
    return None


def trusted_paths() -> List[str]:
    """The folders that commands of tools are looked up in, and HOME: a sandbox that could write to one of them is refused."""
    path = os.environ.get("PATH")
    found = [os.path.abspath(folder or ".") for folder in path.split(":")] if path is not None else []
    home = os.environ.get("HOME", "")
    return list(dict.fromkeys(found + [home] if home.startswith("/") else found))


_looked_at: "set[Tuple[str, Optional[str]]]" = set()


def _new_workflow_files(space: Mapping[str, Any]) -> Dict[str, str]:
    """The workflows of a file storage as a person sees them, name: path; once for each storage of this process."""
    key = str(space.get("storage") or ""), space.get("workspace_id")
    if not key[0].startswith("/") or key in _looked_at:
        return {}
    _looked_at.add(key)
    found: Dict[str, str] = {}
    for folder in ("workflows", "skills"):
        path = os.path.join(key[0], *(("workspaces", key[1]) if key[1] else ()), folder)
        try:
            names = os.listdir(path)
        except OSError:
            continue
        found.update({name[:-3]: os.path.join(path, name) for name in names if name.endswith(".py") and not name.startswith((".", "_"))})
    return found


if TYPE_CHECKING:
    from ._operations import Operations
else:
    Operations = object


class SpaceHandle(Operations):
    """A space of the library: storage and tools, without a session."""

    close_order = 1
    has_storage = True
    wheels = False  # its packages are for Pyodide
    own_python = False  # its code is run by the version of Python that runs this

    def __init__(self, engine: Engine, options: Mapping[str, Any], variables: Optional[Mapping[str, str]] = None,
                 progress: Optional[Callable[[str], Any]] = None) -> None:
        given = {name: value for name, value in {"cache_dir": cache_dir(), "oauth_dir": oauth_dir(options.get("workspace_id")), **options}.items() if value is not None}
        self.has_storage = "storage" in given
        self.own_python = "python_version" not in given and given.get("python", sys.executable) == sys.executable
        self.oauth_dir = given.get("oauth_dir")
        given.setdefault("installer_env", installer_env())
        given.setdefault("path", os.environ.get("PATH"))
        names = os.environ if variables is None else variables
        try:
            self.native = _native.Space(engine.native, given, ["%s=%s" % item for item in names.items()], progress)
        except _native.NativeError as error:
            raise from_native(error) from None
        engine.owned.add(self)

    if not TYPE_CHECKING:  # its types are in _operations.pyi, an overload for each method
        def call(self, method: str, raw: Optional[bytes] = None, **args: Any) -> Any:
            """One operation of docs/namespaces.md."""
            return self.call_raw(method, raw, args)[0]

    def need_storage(self) -> None:
        if not self.has_storage:
            raise ConfigurationError("this session has no storage for workflows, artifacts and packages: open it with one, as in "
                                     "Session(storage=FileStorage(\"./data\"))")

    def call_raw(self, method: str, raw: Optional[bytes], args: Dict[str, Any]) -> Tuple[Any, Optional[bytes]]:
        """One operation with the bytes that belong to it."""
        if not method.startswith(("tools.", "llm.")):
            self.need_storage()
        if self.wheels and method in ("deps.add", "deps.remove", "deps.sync"):
            args = {**args, "pyodide": True}
        try:
            text, data = self.native.call(method, json.dumps(args), raw)
        except _native.NativeError as error:
            raise from_operation(error, method, args) from None
        return json.loads(text), data

    def call_tool(self, name: str, args: Mapping[str, Any]) -> Any:
        """A tool, through middlewares; answers what code in a session would get."""
        try:
            answer, raw = self.call_raw("tools.call", None, {"name": name, "args": dict(args)})
        except ToolNotFoundError as error:
            raise ToolNotFoundError(error.tool_name, sorted(each["name"] for each in self.call("tools.list"))) from None
        if not isinstance(answer, dict) or "raw" not in answer:
            return answer["value"] if isinstance(answer, dict) else answer
        if answer["raw"] == "text":
            return (raw or b"").decode("utf-8", "replace")
        if answer["raw"] == "json":
            return json.loads(raw or b"null")
        return _parts(answer["parts"], raw or b"")

    # -- artifacts

    def save_artifact(self, name: str, kind: str, data: bytes, description: str, metadata: Mapping[str, Any]) -> Any:
        args = {"name": name, "type": kind, "description": description, "metadata": dict(metadata)}
        self.need_storage()
        try:
            return json.loads(self.native.save_artifact(json.dumps(args), data))
        except _native.NativeError as error:
            raise from_operation(error, "artifacts.save", args) from None

    def load_artifact(self, name: str) -> Tuple[str, bytes]:
        """(type, bytes)"""
        args = {"name": name}
        self.need_storage()
        try:
            info, data = self.native.load_artifact(json.dumps(args))
        except _native.NativeError as error:
            raise from_operation(error, "artifacts.load", args) from None
        return json.loads(info).get("type") or "", data

    def close(self) -> None:
        self.close_native()

    def close_native(self) -> None:
        self.native.close()


def _parts(parts: Sequence[Mapping[str, Any]], raw: bytes) -> Any:
    found: List[Any] = []
    at = 0
    for part in parts:
        found.append(part_value(part["type"], raw[at:at + part["size"]]))
        at += part["size"]
    return found[0] if len(found) == 1 else found


def part_value(kind: str, data: bytes) -> Any:
    """A part of a tool's answer."""
    if kind in ("json", "structured"):
        return json.loads(data)
    return data.decode("utf-8", "replace") if kind == "text" else data


def _point_error(error: _native.NativeError) -> Exception:
    return PointNotFoundError(str(error.args[0])) if error.args[1] == "not_found" else from_native(error)


class Family:
    """A session and its forks: they share the space, and the functions of the host. The last one to close closes those."""

    def __init__(self) -> None:
        self._open = 1
        self._lock = threading.Lock()

    def join(self) -> None:
        with self._lock:
            self._open += 1

    def leave(self) -> bool:
        """True for the last one."""
        with self._lock:
            self._open -= 1
            return self._open == 0


class Core:
    """A session of the library with its space."""

    close_order = 0

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.engine = spec.engine or default_engine()
        self.session: Optional[_native.Session] = None
        self.space: Optional[SpaceHandle] = None
        self.id = ""
        self.home = Channel()
        self.channel: Optional[Channel] = None  # where the last awaited cell's result came
        self.quick = False  # the last cell was
        self.last_cell: Any = None  # its span's context, where it was recorded
        self.cell_link: Any = None  # that of the source of a fork, until its first cell
        self.answered = 0.0  # when an approval was given
        self.prompt = False  # the next was asked for at once after it
        self.approvals = Approvals()
        self.policy = resolve(spec.policy)
        self.on_kernel_died: List[Callable[[str], Any]] = []
        self._background = False
        self._middlewares = list(spec.middlewares)
        self._middleware_token: Optional[int] = None
        self._after: Dict[str, "asyncio.Future[Item]"] = {}
        self._tasks: "set[asyncio.Task[Any]]" = set()
        self._lock = threading.Lock()
        self._family = Family()
        self._event_token = 0

    # -- opening and closing

    def go_home(self, loop: Optional[asyncio.AbstractEventLoop]) -> None:
        """Binds functions of the host to a loop (on its thread); None: to that of the process."""
        if loop is not None:
            self.home.attach(loop)
            return
        background = Background.get()
        self._background = True
        background.call(lambda: self.home.attach(background.loop))

    def check_home(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that opened the session may have ended, as after asyncio.run(): then this one, which runs, takes over: nobody would
        answer calls of functions there."""
        with self.home.lock:
            home = self.home.loop
            if home is None or home.is_closed() or not (home is loop or home.is_running()):
                self.home.attach(loop)

    def open(self) -> None:
        """Blocking; go_home() first."""
        spec = self.spec
        if not spec.session.get("container", {}).get("engine"):  # one elsewhere is looked for when the session is opened
            self.engine.require(spec.executor)
        space = self.space = self._open_space()
        try:
            for name, params in spec.mcp.items():
                self.add_mcp(name, params)
            for given in spec.tools:
                for tool in [given] if isinstance(given, HostTool) else tools_of(given):
                    self.add_tool(tool)
            if spec.llm is not None:
                self._set_llm(spec.llm)
            if self._middlewares:
                self._register_middlewares()
            self._log_problems()
            self._configure_deps()
            options = {name: value for name, value in spec.session.items() if value is not None}
            options["executor"] = spec.executor
            if spec.executor == "sandbox":
                options["trusted"] = trusted_paths()
            # Tools and storage are those of a server, elsewhere or in the container; the host's facades have the same folders.
            served = spec.executor in ("remote", "container", "kubernetes")
            if spec.executor == "container":
                options["container"] = {**options.get("container", {}), **self._container_parts()}
                if spec.space.get("workspace_id") is not None:
                    options["remote_workspace"] = spec.space["workspace_id"]
            self._event_token = self.home.add(self._handle_session_event)
            self.session = _native.Session(
                self.engine.native, options, None if served else space.native, self.policy.native,
                spec.audit.native if spec.audit is not None else None, self.home.port, self._event_token, SESSION_MASK)
        except _native.NativeError as error:
            self.space.close()
            self.home.close()
            if error.args[1] == "executor_unavailable":
                raise ExecutorUnavailableError(str(from_native(error))) from None
            if spec.remote and error.args[1] == "io":
                raise ServerError(str(error.args[0])) from None
            raise from_native(error) from None
        except BaseException:
            self.space.close()
            self.home.close()
            raise
        self.id = self.session.id()
        self.engine.owned.add(self)

    def _log_problems(self) -> None:
        """Says which tool definitions and workflows are left out: they would be missing without a word."""
        if self.spec.remote:
            return
        assert self.space is not None
        if self.spec.space.get("tools_dir") is not None:
            for each in self.space.call("tools.problems"):
                log.warning("a tool definition is left out: %s:%s: %s", each["file"], each.get("line", 0), each["message"])
        files = _new_workflow_files(self.spec.space)
        known = {each["name"] for each in self.space.call("workflows.list")} if files else set()
        for name, path in sorted(files.items()):
            if name not in known:
                log.warning("a workflow is left out, because it is not Python with a function run() and a valid name: %s", path)

    def _container_parts(self) -> Dict[str, Any]:
        """What the server in a container is given of the storage: packages are installed by its own Python."""
        space = self.spec.space
        parts = {"tools": space.get("tools_dir"), "storage": space.get("storage"), "wheel_dir": space.get("wheel_dir"),
                 "index_url": space.get("index_url") or os.environ.get("PIP_INDEX_URL")}
        given: Dict[str, Any] = {name: str(part) for name, part in parts.items() if part is not None}
        if self.spec.deps:
            given["deps"] = list(self.spec.deps)
        if space.get("sync_deps_on_start"):
            given["sync_deps"] = 1
        return given

    def _open_space(self) -> SpaceHandle:
        spec = self.spec
        if not spec.remote:
            space = SpaceHandle(self.engine, spec.space, spec.variables, spec.progress)
            space.wheels = spec.executor == "deno"
            return space
        from ._remote import RemoteSpace

        given = [name for name, value in (("tools", spec.tools), ("mcp_servers", spec.mcp), ("policy", spec.policy),
                                          ("middlewares", self._middlewares), ("audit", spec.audit), ("llm", spec.llm)) if value]
        given += [name for name in ("require_shell_escape", "restore_cwd") if spec.session.get(name)]
        if given:
            self.home.close()
            raise ConfigurationError("with a session server, these belong to the server and cannot be given here: %s"
                                     % ", ".join(given))
        return RemoteSpace(spec.session["remote_url"], spec.session.get("remote_token"),
                           spec.session.get("remote_workspace"), spec.session.get("remote_ca"))

    @property
    def _locked(self) -> bool:
        return not self.spec.remote and not self.spec.space.get("allow_runtime_deps", 1)

    @contextlib.contextmanager
    def deps_space(self) -> Iterator[SpaceHandle]:
        """A space whose packages may be changed. The host may do what its code may not: in a space of its own on the same storage."""
        if not self._locked:
            yield self.need_space()
            return
        space = SpaceHandle(self.engine, {**self.spec.space, "allow_runtime_deps": 1, "tools_dir": None}, {}, self.spec.progress)
        space.wheels = self.spec.executor == "deno"
        try:
            yield space
        finally:
            space.close()
        self.need_space().call("deps.sync")

    def _configure_deps(self) -> None:
        """What was configured is there before the first cell, also where code may not add packages."""
        assert self.space is not None
        wanted = self.spec.deps
        if not wanted or self.spec.executor == "container":  # there the server does it
            return
        have = set(self.space.call("deps.list"))
        missing = [each for each in wanted if each not in have]
        with self.deps_space() if missing else contextlib.nullcontext(self.space) as space:
            if missing:
                space.call("deps.add", package=missing)
        if not self.spec.remote and not missing:
            self.space.call("deps.sync", quick=True)

    def close(self) -> None:
        self.close_native()

    def close_native(self) -> None:
        """Blocking, any thread, more than once."""
        with self._lock:  # who comes second may close the engine next, and must wait
            session, self.session = self.session, None
            space, self.space = self.space, None
            self.approvals.end()
            if session is not None:
                session.close()
            if session is None and space is None:
                return
            if not self._family.leave():
                self.home.handlers.pop(self._event_token, None)
                return
            if space is not None:
                space.close()
            self.home.close()

    def need_session(self) -> _native.Session:
        session = self.session
        if session is None:
            raise SessionClosedError("the session is closed")
        return session

    def need_space(self) -> SpaceHandle:
        space = self.space
        if space is None:
            raise SessionClosedError("the session is closed")
        return space

    def reset(self) -> None:
        """Blocking."""
        try:
            self.need_session().reset()
        except _native.NativeError as error:
            raise from_native(error) from None

    # -- branches; blocking

    def fork(self, n: int, drop: bool, point: Optional[str]) -> List["Core"]:
        made = []
        for _ in range(n):
            core = Core(self.spec)
            core.home.close()
            core.home, core.space, core._family, core._background = self.home, self.need_space(), self._family, self._background
            core.approvals._handler = self.approvals._handler
            core._event_token = self.home.add(core._handle_session_event)
            made.append(core)
        try:
            forks = self.need_session().fork(self.home.port, [core._event_token for core in made], SESSION_MASK, drop, point)
        except _native.NativeError as error:
            for core in made:
                self.home.handlers.pop(core._event_token, None)
            raise (_point_error(error) if point is not None else from_native(error)) from None
        for core, session in zip(made, forks):
            self._family.join()
            core.session = session
            core.id = session.id()
            core.cell_link = self.last_cell
            core.engine.owned.add(core)
        return made

    def checkpoint(self, name: str, drop: bool) -> None:
        try:
            self.need_session().checkpoint(name, drop)
        except _native.NativeError as error:
            raise from_native(error) from None

    def list_variables(self) -> Dict[str, Any]:
        try:
            answer: Dict[str, Any] = json.loads(self.need_session().variables())
        except _native.NativeError as error:
            raise from_native(error) from None
        return answer

    def hibernate(self, points: bool) -> Dict[str, Any]:
        try:
            answer: Dict[str, Any] = json.loads(self.need_session().hibernate(points))
        except _native.NativeError as error:
            raise from_native(error) from None
        return answer

    def rewind(self, name: Optional[str], cells: Optional[int]) -> None:
        if (name is None) == (cells is None):
            raise TypeError("rewind() takes the name of a point, or cells=")
        try:
            self.need_session().rewind(name, cells or 0)
        except _native.NativeError as error:
            raise _point_error(error) from None

    def become(self, other: "Core") -> None:
        try:
            self.need_session().become(other.need_session())
        except _native.NativeError as error:
            raise from_native(error) from None

    def drop_point(self, name: str) -> None:
        try:
            self.need_session().drop_point(name)
        except _native.NativeError as error:
            raise _point_error(error) from None

    def points(self) -> List[Dict[str, Any]]:
        found: List[Dict[str, Any]] = json.loads(self.need_session().points())
        return found

    def children(self) -> List[Dict[str, Any]]:
        found: List[Dict[str, Any]] = json.loads(self.need_session().children())
        return found

    # -- files; blocking

    def diff(self, with_text: bool) -> Dict[str, Any]:
        try:
            found: Dict[str, Any] = json.loads(self.need_session().diff(with_text))
        except _native.NativeError as error:
            raise from_native(error) from None
        return found

    def commit(self, paths: Optional[Iterable[Union[str, "os.PathLike[str]"]]], force: bool) -> Dict[str, Any]:
        if isinstance(paths, (str, os.PathLike)):
            paths = [paths]
        named = None if paths is None else [os.fspath(each) for each in paths]
        if named == []:
            return {"committed": [], "protected": [], "skipped": []}
        try:
            found: Dict[str, Any] = json.loads(self.need_session().commit({"paths": named, "force": int(force)}))
        except _native.NativeError as error:
            raise from_native(error) from None
        return found

    def discard(self) -> None:
        try:
            self.need_session().discard()
        except _native.NativeError as error:
            raise from_native(error) from None

    def limit(self, memory: int, max_output: int) -> None:
        try:
            self.need_session().limit(memory, max_output)
        except _native.NativeError as error:
            raise from_native(error) from None

    # -- approvals

    def spin_us(self) -> int:
        """How long the thread that approves a call stays with what follows; see _runs.py, where cells are started."""
        alone = self.channel is None or len(self.channel.handlers) <= 1
        self.answered = time.monotonic()
        return SPIN_US if self.prompt and alone else 0

    def handle_approval(self, item: Item) -> Optional[ApprovalRequest]:
        """Any thread; item: (token, APPROVAL or APPROVAL_ENDED, run id, ...). Functions that decide run at home."""
        if item[1] == _engine.APPROVAL_ENDED:
            self.approvals.remove(item[3])
            return None
        self.prompt = time.monotonic() - self.answered < PROMPT
        request = ApprovalRequest._from_item(self, item)
        self.approvals.add(request)
        policy, handler = self.policy.function, self.approvals._handler
        if policy is not None or handler is not None:
            self._at_home(lambda: self._spawn(ask_handler(request, policy, handler)))
        return request

    def _at_home(self, fn: Callable[[], Any]) -> None:
        loop = self.home.loop
        if loop is None:
            return
        if _engine._running_loop() is loop:
            fn()
        else:
            loop.call_soon_threadsafe(fn)

    def _spawn(self, coroutine: Any) -> "asyncio.Task[Any]":
        """On the home loop's thread."""
        task: "asyncio.Task[Any]" = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _handle_session_event(self, item: Item) -> None:
        if item[1] in (_engine.APPROVAL, _engine.APPROVAL_ENDED):
            self.handle_approval(item)
        elif item[1] == _engine.KERNEL_DIED:
            for fn in list(self.on_kernel_died):
                fn(item[3])
        elif item[1] in (_engine.BRANCH, _engine.POINT_LOST):
            self.tell_branch(json.loads(item[3]) if item[1] == _engine.BRANCH else {"kind": "lost", "message": item[3]})

    def tell_branch(self, fields: Dict[str, Any]) -> None:
        """Tells ``on_branch``, on the home loop's thread."""
        if self.spec.on_branch is None:
            return
        try:
            self.spec.on_branch(BranchEvent(self.id, **fields))
        except Exception:
            log.exception("on_branch failed")

    def tell_race(self, n: int, winner: Optional[int]) -> None:
        """The library sees a race of this package as forks and a rewind."""
        self._at_home(lambda: self.tell_branch({"kind": "race", "n": n, "winner": winner}))

    # -- tools

    def add_tool(self, tool: HostTool) -> None:
        """Blocking, but short."""
        token = self.home.add(functools.partial(self._handle_tool_call, tool))
        try:
            self.need_space().native.add_tool(tool.name, tool.description or None, json.dumps(tool.parameters),
                                              milliseconds(tool.timeout), self.home.port, token, tool.supposed)
        except _native.NativeError as error:
            self.home.handlers.pop(token, None)
            raise from_native(error) from None

    def _handle_tool_call(self, tool: HostTool, item: Item) -> None:
        self._spawn(self._run_tool(tool, item[2], item[3], item[4]))

    async def _run_tool(self, tool: HostTool, args: str, session_id: str, call: _native.ToolCall) -> None:
        waiting = _calls.Waiting(session_id, tool.name)
        raised: Optional[BaseException] = None
        try:
            arguments = tool.convert(json.loads(args))
            fn = tool.fn
            if (tool.thread or self._background) and not inspect.iscoroutinefunction(fn):
                context, bound = contextvars.copy_context(), functools.partial(fn, **arguments)
                value, raised = await asyncio.get_running_loop().run_in_executor(
                    _engine.tool_threads(), lambda: context.run(_calls.outcome, bound))
                if raised is not None:
                    raise raised
            else:
                value = fn(**arguments)
            if inspect.isawaitable(value):
                value = await value
            if isinstance(value, str):
                call.answer_text(value)
            else:
                call.answer_json(dumps(value))
        except BaseException as error:
            # A call that is not answered would hold the cell for ever. A tool does not end the program either: SystemExit is what
            # functions with argparse raise, and a thread can raise anything.
            if isinstance(error, (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)) and error is not raised:
                call.fail("the host cancelled the call")
                raise
            log.warning("the tool %s raised", tool.name, exc_info=True)
            call.fail(_calls.told(error))
        finally:
            waiting.end()

    # -- llm

    def _set_llm(self, fn: LlmFunction) -> None:
        budget = self.spec.llm_budget
        if self.spec.executor in ("container", "kubernetes"):
            raise ConfigurationError("the code in a container cannot reach a function of this program: llm works with the executors subprocess, "
                                     "sandbox, inprocess and deno")
        def handle(item: Item) -> None:
            self._spawn(serve_llm(fn, item[2], item[3], item[4]))

        token = self.home.add(handle)
        try:
            self.need_space().native.set_llm(
                self.home.port, token, budget.concurrency, -1 if budget.calls is None else budget.calls,
                -1 if budget.tokens is None else budget.tokens, -1.0 if budget.cost is None else budget.cost, budget.call_tokens, budget.call_cost)
        except _native.NativeError as error:
            self.home.handlers.pop(token, None)
            raise from_native(error) from None

    def add_mcp(self, name: str, params: Mapping[str, Any]) -> None:
        """Blocking, but short."""
        try:
            self.need_space().native.add_mcp(name, json.dumps(dict(params)))
        except _native.NativeError as error:
            raise from_native(error) from None

    def login(self, name: str, show: Callable[[str], object], scope: Optional[str], timeout: Optional[float]) -> None:
        """Blocking; show is called on this thread."""
        folder = self.need_space().oauth_dir
        if folder is not None:  # the library creates the last folder itself, with its mode
            os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        try:
            self.need_space().native.login(name, scope, show, 0 if timeout is None else max(1, int(timeout * 1000)))
        except _native.NativeError as error:
            raise from_native(error) from None

    def logout(self, name: str) -> None:
        """Blocking, but short."""
        try:
            self.need_space().native.logout(name)
        except _native.NativeError as error:
            raise from_native(error) from None

    # -- middlewares

    def add_middleware(self, middleware: ToolMiddleware) -> None:
        """Blocking, but short. The first added is the outermost."""
        self._middlewares.append(middleware)
        if self.space is not None and self._middleware_token is None:
            self._register_middlewares()

    def _register_middlewares(self) -> None:
        self._middleware_token = token = self.home.add(self._handle_middleware)
        try:
            self.need_space().native.add_middleware("python", self.home.port, token)
        except _native.NativeError as error:
            raise from_native(error) from None

    def _handle_middleware(self, item: Item) -> None:
        if item[1] == _engine.BEFORE:
            self._spawn(self._walk(item))
            return
        future = self._after.pop(item[6], None)
        if future is None or future.done():
            item[11].next()  # nobody waits on our side: it goes its way unchanged
        else:
            future.set_result(item)

    async def _walk(self, item: Item) -> None:
        """One call through all middlewares: `before` brings it, `after` brings what the tool answered."""
        _, _, tool, called, session_id, executor, request_id, args, _, _, _, before = item
        executor = BACKENDS.get(executor, executor)
        ctx = ToolCallContext(tool, called or None, json.loads(args or "{}"), executor_type=executor, origin=executor,
                              request_id=request_id, session_id=session_id or None)
        given = dict(ctx.args)
        state: Dict[str, Any] = {}

        async def terminal(context: ToolCallContext) -> Any:
            if "passed" in state:
                raise RuntimeError("call_next() may be called once")
            state["passed"] = True
            if context.args != given:
                before.set_args(dumps(context.args))
            future: "asyncio.Future[Item]" = asyncio.get_running_loop().create_future()
            self._after[request_id] = future
            before.next()
            answered = await future
            state["after"] = answered[11]
            if answered[8] is not None:
                state["error"] = error = ToolCallError(context.full_name, context.args, answered[8])
                raise error
            state["value"] = answered[9] if answered[10] else json.loads(answered[9] or "null")
            return state["value"]

        try:
            value = await compose_tool_middlewares(self._middlewares, terminal)(ctx)
        except BaseException as error:
            self._after.pop(request_id, None)
            after = state.get("after")
            if after is not None and error is state.get("error"):
                after.next()  # the tool's own failure
            elif after is not None or "passed" not in state:
                (after or before).fail(_calls.text_of(error) or type(error).__name__)
            if not isinstance(error, Exception):
                raise
            return
        target = state.get("after") or before
        if "value" in state and value is state["value"]:
            target.next()
        elif isinstance(value, str):
            target.answer_text(value)
        else:
            try:
                target.answer_json(dumps(value))
            except (TypeError, ValueError) as error:
                target.fail("the middleware's answer: %s" % error)
