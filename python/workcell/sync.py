"""The synchronous API: the same session for programs without an event loop.

::

    from workcell.sync import Session

    with Session(FileStorage("./data")) as session:
        print(session.run("1 + 1").value)

Sessions may be used from several threads; cells of one session run one after the other. Functions of the host run in
threads of their own (async ones on a loop of their own), so they must be safe there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Callable, Dict, Iterable, Iterator, List, Literal, Mapping, NoReturn, Optional, Sequence, Set, Tuple, Union, overload

from . import _branch, _facade, _files, _native
from . import prompt as _prompt
from ._branch import Child, Codes, Judge, Point, Race
from ._core import Core, SpaceHandle
from ._commands import SyncCommands
from ._durable import Hibernated, Variable, hibernated, variables_of
from ._notebook import notebook_cells
from ._files import Commit, Diff
from ._runs import run_sync, stream_sync
from ._session import _Session
from ._workspace import SyncFiles
from .errors import CodeModeError, SessionClosedError, from_native
from .events import Event
from .execution.configs import PathLike
from .llm import LlmUsage, usage_of
from .types import ExecutionResult


class Session(_Session):
    """As :class:`workcell.Session`, with methods that block."""

    _library_only = _threads = True
    _core: Optional[Core] = None

    def _open_core(self) -> Optional[Core]:
        return self._core

    # -- life

    def start(self) -> None:
        """Opens the session; may be called more than once."""
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
        """Ends the session and everything that it started."""
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

    async def __aenter__(self) -> NoReturn:
        raise TypeError("this session is synchronous: write `with`, or use workcell.Session in async code")

    async def __aexit__(self, *exc: object) -> None:
        """Never entered."""

    def __del__(self) -> None:
        if getattr(self, "_core", None) is not None:
            warnings.warn("a Workcell session was not closed", ResourceWarning, stacklevel=2, source=self)

    # -- cells

    def run_notebook(self, notebook: PathLike, timeout: Optional[float] = None) -> List[ExecutionResult]:
        """Runs the code cells of a Jupyter notebook, up to the first that fails; ``timeout`` is that of each cell."""
        results: List[ExecutionResult] = []
        for code in notebook_cells(notebook):
            results.append(self.run(code, timeout))
            if results[-1].error is not None:
                break
        return results

    def run(self, code: str, timeout: Optional[float] = None,
            on_event: Optional[Callable[[Event], Any]] = None) -> ExecutionResult:
        """Runs one cell and waits. Ctrl-C interrupts it.

        Args:
            code: Python, as in IPython.
            timeout: seconds; None: the executor's default.
            on_event: is called with what happens meanwhile.
        """
        return run_sync(self._need(), code, timeout, on_event)

    def stream(self, code: str, timeout: Optional[float] = None) -> Iterator[Event]:
        """Runs one cell and yields its events; the last one has the result."""
        return stream_sync(self._need(), code, timeout)

    def reset(self) -> None:
        """Starts a fresh kernel: variables are lost, storage is kept."""
        if self._closed:
            raise SessionClosedError("Session is closed")
        if self._core is not None:
            self._core.reset()

    def interrupt(self) -> None:
        """Raises KeyboardInterrupt in the running cell; to be called from another thread."""
        if self._closed:
            raise SessionClosedError("Session is closed")
        if self._core is not None:
            try:
                self._core.need_session().interrupt()
            except _native.NativeError as error:
                raise from_native(error) from None

    def supports(self, capability: str) -> bool:
        """Whether its executor has the capability; False before the start."""
        return self._core is not None and bool(self._executor.supports(capability))

    def supported_capabilities(self) -> Set[str]:
        """The capabilities of its executor; empty before the start."""
        return set(self._executor.supported_capabilities()) if self._core is not None else set()

    # -- branches

    @overload
    def fork(self, n: None = None, *, drop: bool = False, point: Optional[str] = None) -> "Session": ...

    @overload
    def fork(self, n: int, *, drop: bool = False, point: Optional[str] = None) -> List["Session"]: ...

    def fork(self, n: Optional[int] = None, *, drop: bool = False, point: Optional[str] = None) -> Union["Session", List["Session"]]:
        """A session, or n of them, that continue from the current state; see :meth:`workcell.Session.fork`."""
        made = []
        for core in self._need().fork(1 if n is None else n, drop, point):
            fork = _branch.copy_of(self, core)
            fork._core, fork._closed = core, False
            made.append(fork)
        return made[0] if n is None else made

    def checkpoint(self, name: str, *, drop: bool = False) -> None:
        """Keeps the current state under a name, in place of an earlier point of that name. Files are not included."""
        self._need().checkpoint(name, drop)

    def list_variables(self) -> List[Variable]:
        """The variables of the session; see :meth:`workcell.Session.list_variables`."""
        return variables_of(self._need().list_variables())

    def login(self, name: str, show: Callable[[str], Any], *, scope: Optional[str] = None, timeout: Optional[float] = None) -> None:
        """Logs in at a remote MCP server; ``show(link)`` gets the link for a browser. See :meth:`workcell.Session.login`."""
        self._need().login(name, show, scope, timeout)

    def logout(self, name: str) -> None:
        """Removes the tokens of a login; see :meth:`workcell.Session.logout`."""
        self._need().logout(name)

    def hibernate(self, points: bool = False) -> Hibernated:
        """Saves the session and ends its process; the next use wakes it. See :meth:`workcell.Session.hibernate`."""
        return hibernated(self._need().hibernate(points))

    @classmethod
    def wake(cls, session_id: str, saved: PathLike, *args: Any, **options: Any) -> "Session":
        """A session that continues a saved one; see :meth:`workcell.Session.wake`."""
        return cls(*args, saved=saved, resume=session_id, **options)

    def rewind(self, name: Optional[str] = None, *, cells: Optional[int] = None) -> None:
        """Continues from a point, which stays; or from the point that was taken so many cells ago."""
        self._need().rewind(name, cells)

    def points(self) -> List[Point]:
        """The kept states, the latest first."""
        return _branch.points_of(self._need())

    def children(self) -> List[Child]:
        """The open sessions that its code has forked, and those that their code has."""
        return _branch.children_of(self._need())

    def drop_point(self, name: str) -> None:
        """Frees a point."""
        self._need().drop_point(name)

    def llm_usage(self) -> LlmUsage:
        """What the code has used of ``llm``, and what is left."""
        return usage_of(self._need().need_space().call("llm.usage"))

    # -- files

    @property
    def files(self) -> SyncFiles:
        """The files of its workspace; see :class:`workcell.Files`."""
        return SyncFiles(self)

    @property
    def commands(self) -> SyncCommands:
        """Programs that run where its code does; see :class:`workcell.Commands`."""
        return SyncCommands(self)

    def diff(self, *, text: bool = True) -> Diff:
        """What the code changed in its layer over the workspace (``workspace_mode="cow"``)."""
        return _files.diff_of(self._need().diff(text))

    def commit(self, paths: Optional[Iterable[Union[str, "os.PathLike[str]"]]] = None, *, force: bool = False) -> Commit:
        """Writes changes to the real workspace; see :meth:`workcell.Session.commit`."""
        return _files.commit_of(self._need().commit(paths, force))

    def discard(self) -> None:
        """Drops the changes of the layer: the code sees the real workspace again."""
        self._need().discard()

    @contextlib.contextmanager
    def attempt(self) -> Iterator["Session"]:
        """Rewinds the session when the block raises."""
        name = _branch.fresh_name()
        self.checkpoint(name)
        try:
            yield self
        except BaseException:
            if not self._closed:
                self.rewind(name)
            raise
        finally:
            if not self._closed:
                self.drop_point(name)

    def race(self, codes: Codes, judge: Judge = None, *, n: Optional[int] = None, keep: Literal["winner", "none"] = "winner",
             concurrency: Optional[int] = None, timeout: Optional[float] = None, drop: bool = False) -> Race:
        """Runs cells side by side in forks of the current state; see :meth:`workcell.Session.race`."""
        _branch.check_keep(keep)
        cells = _branch.codes_of(codes, n)
        forks = self.fork(len(cells), drop=drop)

        def compete(fork: "Session", code: str) -> Tuple[ExecutionResult, Any]:
            result = fork.run(code, timeout)
            if result.error is not None:
                return result, None
            if judge is None:
                return result, 1
            if isinstance(judge, str):
                judged = fork.run(judge, timeout)
                return result, None if judged.error is not None else judged.value
            return result, judge(result)

        try:
            with ThreadPoolExecutor(concurrency or len(cells)) as threads:
                ends = list(threads.map(compete, forks, cells))
            race = Race([result for result, _ in ends], [score for _, score in ends], _branch.winner_of([score for _, score in ends]))
            if keep == "winner" and race.winner is not None:
                self._need().become(forks[race.winner]._need())
            self._need().tell_race(len(race.results), race.winner)
            return race
        finally:
            for fork in forks:
                fork.close()

    def map(self, codes: Iterable[str], *, concurrency: int = 8, timeout: Union[float, Sequence[float], None] = None,
            memory: Union[int, Sequence[int], None] = None, max_output: Union[int, Sequence[int], None] = None,
            drop: bool = False) -> Iterator[Tuple[int, ExecutionResult]]:
        """Runs cells, each in a fork of its own of the current state, and yields ``(index, result)`` as they end; see
        :meth:`workcell.Session.map`."""
        cells = _branch.cells_of(codes, concurrency)
        limits = _branch.limits_of(timeout, len(cells))
        lower = _branch.lower_of(memory, max_output, len(cells))
        if not cells:
            return
        anchor = self.fork(drop=drop)
        turns = threading.Semaphore(concurrency)  # runs, and results that were not taken yet
        open_forks: Dict[int, Session] = {}
        stopped = threading.Event()

        def work(i: int) -> Tuple[int, Optional[ExecutionResult]]:
            turns.acquire()
            if stopped.is_set():
                return i, None
            fork = open_forks[i] = anchor.fork(drop=drop)
            try:
                if lower[i] != (0, 0):
                    fork._need().limit(*lower[i])
                return i, None if stopped.is_set() else fork.run(cells[i], limits[i])
            finally:
                open_forks.pop(i, None)
                fork.close()

        threads = ThreadPoolExecutor(min(concurrency, len(cells)))
        try:
            for done in as_completed([threads.submit(work, i) for i in range(len(cells))]):
                i, result = done.result()
                turns.release()
                assert result is not None
                yield i, result
        finally:
            stopped.set()
            for fork in list(open_forks.values()):
                fork.close()  # ends its run; an interrupt before the run has begun would be lost
            for _ in cells:
                turns.release()
            threads.shutdown()
            anchor.close()

    # -- the model's side

    def prompt_text(self) -> str:
        """Its tools, workflows and rules as text for a model's prompt. Descriptions are cut, and one line each."""
        return _prompt.prompt_text(self.list_tools(), self.list_workflows() if self._has_storage() else (), self._rules())

    def tool_schemas(self, style: _prompt.Style = "openai", direct: bool = False) -> List[Dict[str, Any]]:
        """Schemas for function calling in the shape of OpenAI or Anthropic: ``run_code``; with ``direct``, also every tool."""
        return _prompt.tool_schemas(self.list_tools() if direct else (), style, direct)

    def answer(self, name: str, arguments: Union[str, Mapping[str, Any]], timeout: Optional[float] = None) -> str:
        """Makes a call that a model asked for, by a function of :meth:`tool_schemas`, and returns the text for the model.

        Nothing that the model wrote raises here: the text says what was wrong.
        """
        try:
            call = _prompt.read_call(name, arguments, () if name == _prompt.RUN_CODE else self.list_tools())
            if call.code is not None:
                return _prompt.result_text(self.run(call.code, timeout))
            return _prompt.value_text(self.call_tool(call.tool, **call.arguments))
        except SessionClosedError:
            raise
        except (CodeModeError, ValueError, TypeError, RecursionError) as error:
            return "Error: %s" % error

    # -- tools, workflows, artifacts, deps: as the functions of _facade, with this session's space

    def _space(self) -> SpaceHandle:
        if self._closed:
            raise SessionClosedError("Session is closed")
        return self._need().need_space()

    def list_tools(self) -> List[Dict[str, Any]]:
        """``[{name, description, tags, callables: [{name, description, parameters}]}]``"""
        return _facade.list_tools(self._space())

    def search_tools(self, query: str, limit: int = 10) -> List[Dict[str, Any]]:
        """The entries that match, best match first."""
        return _facade.search_tools(self._space(), query, limit)

    def call_tool(self, name: str, /, **arguments: Any) -> Any:
        """Calls a tool from the host, through the middlewares: ``call_tool("curl.get", url=...)``."""
        return _facade.call_tool(self._space(), name, arguments)

    def list_workflows(self) -> List[Dict[str, Any]]:
        """``[{name, description, parameters}]``"""
        return _facade.list_workflows(self._space())

    def search_workflows(self, query: str, limit: int = 5) -> List[Dict[str, Any]]:
        """The entries that match, best match first."""
        return _facade.search_workflows(self._space(), query, limit)

    def get_workflow(self, name: str) -> Optional[Dict[str, Any]]:
        """A workflow with its ``source``, or None if it does not exist."""
        return _facade.get_workflow(self._space(), name)

    def add_workflow(self, name: str, source: str, description: str = "") -> Dict[str, Any]:
        """Stores a workflow, which code calls as workflows.NAME(...); raises ValueError or SyntaxError if it is not valid. Nothing of it runs."""
        return _facade.create_workflow(self._space(), name, source, description)

    def remove_workflow(self, name: str) -> bool:
        """Deletes a workflow, and returns whether it existed."""
        return _facade.remove_workflow(self._space(), name)

    list_skills, search_skills, get_skill = list_workflows, search_workflows, get_workflow
    add_skill, remove_skill = add_workflow, remove_workflow

    def list_artifacts(self) -> List[Dict[str, Any]]:
        """``[{name, path, description, metadata, created_at, size}]``"""
        return _facade.list_artifacts(self._space())

    def save_artifact(self, name: str, data: Any, description: str = "",
                      metadata: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """Text, bytes, JSON data, a DataFrame."""
        return _facade.save_artifact(self._space(), name, data, description, metadata)

    def load_artifact(self, name: str) -> Any:
        """Returns the data in its original type; raises ArtifactNotFoundError."""
        return _facade.load_artifact(self._space(), name)

    def delete_artifact(self, name: str) -> None:
        """Deletes an artifact; it does not have to exist."""
        _facade.delete_artifact(self._space(), name)

    def list_deps(self) -> List[str]:
        """``["pandas>=2", ...]``"""
        return _facade.list_deps(self._space())

    def add_dep(self, package: Union[str, Sequence[str]], *more: str) -> Dict[str, Any]:
        """``{installed, already_present, failed}``; raises DepsError with the installer's message.

        Several packages, or a list, are resolved together: if one cannot be installed, none is added."""
        return _facade.add_dep(self._space(), package, *more)

    def remove_dep(self, package: str) -> Dict[str, Any]:
        """``{removed, not_found, failed, removed_from_config}``"""
        return _facade.remove_dep(self._space(), package)

    def sync_deps(self) -> Dict[str, Any]:
        """``{installed, already_present, failed}``"""
        return _facade.sync_deps(self._space())


__all__ = ["Session"]
