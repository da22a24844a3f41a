"""The async session."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import warnings
from typing import Any, AsyncGenerator, AsyncIterator, Callable, Dict, Iterable, List, Literal, Mapping, NoReturn, Optional, Sequence, Set, Tuple, Union, overload

from . import _branch, _facade, _files
from . import prompt as _prompt
from ._branch import Child, Codes, Judge, Point, Race
from ._core import Core, SpaceHandle
from ._commands import Commands
from ._durable import Hibernated, Variable, hibernated, variables_of
from ._notebook import notebook_cells
from ._files import Commit, Diff
from ._runs import run_async
from ._session import _Session
from ._workspace import Files
from .errors import CodeModeError, SessionClosedError
from .events import Event
from .execution.configs import PathLike
from .execution.executors import LibraryExecutor, in_thread
from .llm import LlmUsage, usage_of
from .types import ExecutionResult


def _copy_of(session: "Session", core: Core) -> "Session":
    made = _branch.copy_of(session, core)
    made._executor._core, made._executor._starting, made._executor._closed = core, None, False
    made._started, made._closed = True, False
    return made


class Session(_Session):
    """Runs cells of Python and keeps their variables.

    ::

        async with Session("./data") as session:
            result = await session.run("1 + 1")

    Args:
        storage: where workflows, artifacts and deps are kept: a :class:`FileStorage` or its folder, a :class:`RedisStorage` or its
            URL; None: nowhere, the session has none of them.
        executor: where code runs: an executor, its name (``"sandbox"``), its class or its configuration; None:
            :class:`SubprocessExecutor`.
        sync_deps_on_start: first installs the packages that the storage lists.
        policy: which calls are made, asked about, refused: ``"ask"``, ``"deny"``, a YAML file, a :class:`Policy`, or a
            function of an :class:`ApprovalRequest` that returns ``allow``, ``ask`` or ``deny``.
        gate: the kinds of calls that the policy decides about: some of ``tools``, ``shell``, ``installs``, ``workflows``, ``llm``.
        approval_timeout: seconds after which an unanswered request is rejected; None: never.
        approval_stops_clock: a cell's timeout does not count the time that it waits for approvals.
        require_shell_escape: the code can start processes only with ``!cmd``.
        restore_cwd: each cell ends in the session's working directory.
        undo: keeps a point before each of the last ``undo`` cells that change something, for ``rewind(cells=n)``. A cell that ends the kernel
            then sets the session back to the state before it (``result.state`` is ``"restored"``). Executors ``subprocess``, ``sandbox``,
            ``container`` and ``remote``.
        points_memory: what the points of the session may take, in bytes or like ``"500m"``; beyond it the oldest are dropped; 0: no limit.
        on_branch: called with a :class:`BranchEvent` for each fork, point, rewind and race of the session, and for points that were dropped
            or lost. It runs in the thread of the session's event loop.
        allow_fork: how many children the code may have open at a time (``sessions.fork()``); 0: it may not fork its session. Executors
            ``subprocess``, ``sandbox``, ``container`` and ``remote``.
        fork_memory: what all children may take together, in bytes or like ``"500m"``; beyond it the largest is ended; 0: no limit.
        fork_time: seconds that a child may live; None: no limit.
        saved: a folder for saved sessions, which code cannot write to, or the URL of Redis or Valkey; see :meth:`hibernate`.
        saved_key: 64 hexadecimal digits; saved sessions are encrypted with it.
        saved_compress: compress saved sessions, which takes longer than writing them does.
        saved_sync: a save ends when the disk has it; without, when Linux has it: it may be lost if the machine loses power.
        durable: the session is saved after each cell, and after the end of its kernel, program or machine it wakes as it was then. ``"cells"``: behind
            the result, whose ``durable`` is False; ``"results"``: before the result, whose ``durable`` is True.
        saved_host, saved_url: a name and a URL that other programs are told which want a session that is awake here.
        saved_lease: in Redis, the seconds after which others may have a session of a program that does not answer any more (15).
        resume: the id of a saved session to continue; see :meth:`wake`.
        saved_points: :meth:`hibernate` saves the states that the session keeps, too.
        saved_form: how :meth:`hibernate` writes the session: ``"image"`` (default), its memory; ``"portable"``, its variables as objects, for
            another interpreter, executor or machine type; ``"auto"``: an image, and portable where there can be none.
        changes: results name the variables that their cell added, changed and removed, in ``changes``.
        record: a new file for a recording of the session, or a folder for a file with its id; see :func:`workcell.replay`.
        speculate: while a call of a tool waits for an approval and its result can be supposed, a copy of the session goes on with that result, and
            takes the session's place if the call ends with it. Executors ``subprocess`` and ``sandbox``, with ``workspace_mode="cow"``, and in a
            sandbox also ``"ro"`` and ``"none"``.
        audit: where calls are recorded.
        middlewares: functions around every tool call, the first outermost.
        mcp_servers: ``{name: {"command", "args", ...} or {"url", ...}}``.
        tools: functions of the host as tools; or adapters and registries, of :mod:`workcell.tools` or your own.
        llm: answers ``llm.query()`` of the code: a function of an :class:`LlmRequest` that returns the answer, a str or an
            :class:`LlmAnswer`; one that is not async runs in a thread. Executors ``subprocess``, ``sandbox``, ``inprocess`` and ``deno``.
        llm_budget: what the code may ask of it, an :class:`LlmBudget` or a dict of its fields; forks share it.
        variables: for ``${VAR}`` in tool definitions; None: the environment as it is when the session starts.
        progress: called with the messages of pip and uv.
        engine: None: the process's default engine.
        embeddings_url: also searches tools and workflows by meaning, with an OpenAI-compatible endpoint (``.../v1/embeddings``), which
            gets names, descriptions and the beginning of sources; None: by words only.
        embeddings_model, embeddings_key: the model there; the key, or ``"${NAME}"`` for one in ``variables``.
    """

    _started = False

    # -- life

    async def start(self) -> None:
        """Opens the session; may be called more than once."""
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
        """Ends the session and everything that it started. May be called more than once."""
        self._closed = True
        if self._started:
            self._started = False
            await self._executor.close()

    async def __aenter__(self) -> "Session":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __enter__(self) -> NoReturn:
        raise TypeError("this session is async: write `async with`, or use workcell.sync.Session in a program without an event loop")

    def __exit__(self, *exc: object) -> None:
        """Never entered."""

    def __del__(self) -> None:
        if getattr(self, "_started", False):
            warnings.warn("a Workcell session was not closed", ResourceWarning, stacklevel=2, source=self)

    @property
    def _core(self) -> Core:
        if not isinstance(self._executor, LibraryExecutor):
            raise TypeError("this needs one of Workcell's own executors")
        return self._executor.core

    def _open_core(self) -> Optional[Core]:
        return self._core if self._started else None

    # -- cells

    async def run_notebook(self, notebook: PathLike, timeout: Optional[float] = None) -> List[ExecutionResult]:
        """Runs the code cells of a Jupyter notebook, up to the first that fails; ``timeout`` is that of each cell."""
        results: List[ExecutionResult] = []
        for code in notebook_cells(notebook):
            results.append(await self.run(code, timeout))
            if results[-1].error is not None:
                break
        return results

    async def run(self, code: str, timeout: Optional[float] = None) -> ExecutionResult:
        """Runs one cell. When the awaiting task is cancelled, the cell is interrupted.

        Args:
            code: Python, as in IPython.
            timeout: seconds; None: the executor's default.
        """
        if self._closed:
            raise SessionClosedError("Session is closed")
        if not self._started:
            await self.start()
        executor = self._executor
        if type(executor).run is LibraryExecutor.run:
            return await run_async(executor.core, code, timeout)
        result: ExecutionResult = await executor.run(code, timeout)
        return result

    async def stream(self, code: str, timeout: Optional[float] = None) -> AsyncGenerator[Event, None]:
        """Runs one cell and yields its events: output, displays, calls, approvals, and the result at the end."""
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
        """Starts a fresh kernel: variables are lost, storage is kept. MCP servers end, and start again at their next use."""
        if self._closed:
            raise SessionClosedError("Session is closed")
        if not self._started:
            return
        if self._executor.supports("reset"):
            await self._executor.reset()
        else:
            await self._executor.close()
            await self._executor.start(storage=self._storage)

    async def interrupt(self) -> None:
        """Raises KeyboardInterrupt in the running cell."""
        if self._closed:
            raise SessionClosedError("Session is closed")
        await self._executor.interrupt()

    def supports(self, capability: str) -> bool:
        """Whether its executor has the capability; False before the start."""
        return self._started and bool(self._executor.supports(capability))

    def supported_capabilities(self) -> Set[str]:
        """The capabilities of its executor; empty before the start."""
        return set(self._executor.supported_capabilities()) if self._started else set()

    # -- branches

    @overload
    async def fork(self, n: None = None, *, drop: bool = False, point: Optional[str] = None) -> "Session": ...

    @overload
    async def fork(self, n: int, *, drop: bool = False, point: Optional[str] = None) -> List["Session"]: ...

    async def fork(self, n: Optional[int] = None, *, drop: bool = False, point: Optional[str] = None) -> Union["Session", List["Session"]]:
        """A session, or n of them, that continue from the current state: variables, imports, open files; tools and storage are shared.

        Each must be closed. Random numbers differ between them. Executor ``subprocess``.

        Args:
            n: the number of forks; None: one, which is returned itself.
            drop: the forks go without threads, child processes, connections and file locks, which otherwise raise
                :class:`ForkError` before anything happens.
            point: the name of a kept state (:meth:`checkpoint`) that they continue from instead; it stays.
        """
        await self.start()
        made = [_copy_of(self, core) for core in await in_thread(self._core.fork, 1 if n is None else n, drop, point)]
        return made[0] if n is None else made

    async def checkpoint(self, name: str, *, drop: bool = False) -> None:
        """Keeps the current state under a name, in place of an earlier point of that name. Files are not included."""
        await self.start()
        await in_thread(self._core.checkpoint, name, drop)

    async def list_variables(self) -> List[Variable]:
        """The variables of the session: names, types, sizes and short previews, at most 1000. No code of the session runs for it: no ``repr()`` of
        its classes. Raises :class:`BusyError` while a cell runs."""
        await self.start()
        return variables_of(await in_thread(self._core.list_variables))

    async def login(self, name: str, show: Callable[[str], Any], *, scope: Optional[str] = None, timeout: Optional[float] = None) -> None:
        """Logs in at the remote MCP server ``name``, whose definition has ``auth: oauth``, and waits until it is done.

        ``show(link)``, sync or async, gets the link that a person has to open in a browser on this computer; what it raises ends the login.
        ``scope`` asks for further scopes, separated by spaces; ``timeout`` is in seconds (default five minutes). Tokens are kept outside of every
        workspace, in ``$XDG_STATE_HOME/workcell/oauth`` (default ``~/.local/state``), and renewed when they expire.
        """
        await self.start()
        loop = asyncio.get_running_loop()

        def show_there(link: str) -> None:
            shown = show(link)
            if inspect.isawaitable(shown):
                async def wait() -> None:
                    await shown
                asyncio.run_coroutine_threadsafe(wait(), loop).result()

        await in_thread(self._core.login, name, show_there, scope, timeout)

    async def logout(self, name: str) -> None:
        """Removes the tokens of a login; a :class:`CodeModeError` with the code ``not_found`` without a login."""
        await self.start()
        await in_thread(self._core.logout, name)

    async def hibernate(self, points: bool = False) -> Hibernated:
        """Writes the session to its folder of saved sessions (``saved``) and ends its process; the next use wakes it.

        points: the states that it keeps (:meth:`checkpoint`, ``undo``) are saved, too, at most 32, the latest; their names are in the answer.

        After :meth:`close`, any program that shares the folder can continue it with :meth:`wake`. What is not carried (threads, sockets, child
        processes) is listed in the answer, and by the first cell after waking. Executors ``subprocess`` and ``sandbox``.
        """
        await self.start()
        return hibernated(await in_thread(self._core.hibernate, points))

    @classmethod
    def wake(cls, session_id: str, saved: PathLike, *args: Any, **options: Any) -> "Session":
        """A session that continues a saved one, with its id. The other arguments are those of :class:`Session`, and must be as when it was saved.

        Starting it raises :class:`EngineError` with the code ``not_found`` if it does not exist, :class:`ConflictError` if it is awake elsewhere,
        :class:`WakeError` if it cannot be woken here.
        """
        return cls(*args, saved=saved, resume=session_id, **options)

    async def rewind(self, name: Optional[str] = None, *, cells: Optional[int] = None) -> None:
        """Continues from a point, which stays; or from the point that was taken so many cells ago."""
        await self.start()
        await in_thread(self._core.rewind, name, cells)

    async def points(self) -> List[Point]:
        """The kept states, the latest first."""
        await self.start()
        return await in_thread(_branch.points_of, self._core)

    async def children(self) -> List[Child]:
        """The open sessions that its code has forked, and those that their code has."""
        await self.start()
        return await in_thread(_branch.children_of, self._core)

    async def drop_point(self, name: str) -> None:
        """Frees a point."""
        await self.start()
        await in_thread(self._core.drop_point, name)

    async def llm_usage(self) -> LlmUsage:
        """What the code has used of ``llm``, and what is left."""
        await self.start()
        return usage_of(await in_thread(self._core.need_space().call, "llm.usage"))

    # -- files

    @property
    def files(self) -> Files:
        """The files of its workspace: read, written, listed, uploaded and downloaded."""
        return Files(self)

    @property
    def commands(self) -> Commands:
        """Programs that run where its code does: a shell line, a build, a server, a terminal."""
        return Commands(self)

    async def diff(self, *, text: bool = True) -> Diff:
        """What the code changed in its layer over the workspace (``workspace_mode="cow"``).

        Args:
            text: text files have a unified diff.
        """
        await self.start()
        return _files.diff_of(await in_thread(self._core.diff, text))

    async def commit(self, paths: Optional[Iterable[Union[str, "os.PathLike[str]"]]] = None, *, force: bool = False) -> Commit:
        """Writes changes to the real workspace, each file at once or not at all.

        Raises :class:`ConflictError`, and writes nothing, if files were changed there since the layer was made.

        Args:
            paths: what to commit, with everything below folders; None: all. Names that make other programs run code are left out unless
                they are named exactly.
            force: also files that were changed in the real workspace since.
        """
        await self.start()
        return _files.commit_of(await in_thread(self._core.commit, paths, force))

    async def discard(self) -> None:
        """Drops the changes of the layer: the code sees the real workspace again."""
        await self.start()
        await in_thread(self._core.discard)

    @contextlib.asynccontextmanager
    async def attempt(self) -> AsyncIterator["Session"]:
        """Rewinds the session when the block raises::

            async with session.attempt():
                (await session.run("risky()")).raise_for_error()
        """
        name = _branch.fresh_name()
        await self.checkpoint(name)
        try:
            yield self
        except BaseException:
            if not self._closed:
                await self.rewind(name)
            raise
        finally:
            if not self._closed:
                await self.drop_point(name)

    async def race(self, codes: Codes, judge: Judge = None, *, n: Optional[int] = None, keep: Literal["winner", "none"] = "winner",
                   concurrency: Optional[int] = None, timeout: Optional[float] = None, drop: bool = False) -> Race:
        """Runs cells side by side in forks of the current state. The winner's state becomes the session's; the others leave nothing.

        Args:
            codes: the cells, or a function from a fork's number to its cell.
            judge: an expression that each fork evaluates, or a function (sync or async) of each result; the largest value wins. None: the
                first of the list that succeeds.
            n: the number of forks for a function.
            keep: "none": the session stays as it is.
            concurrency: how many run at once; None: all.
            timeout: of each cell.
        """
        _branch.check_keep(keep)
        cells = _branch.codes_of(codes, n)
        forks = await self.fork(len(cells), drop=drop)
        turns = asyncio.Semaphore(concurrency or len(cells))

        async def compete(fork: "Session", code: str) -> Tuple[ExecutionResult, Any]:
            async with turns:
                result = await fork.run(code, timeout)
                if result.error is not None:
                    return result, None
                if judge is None:
                    return result, 1
                if isinstance(judge, str):
                    judged = await fork.run(judge, timeout)
                    return result, None if judged.error is not None else judged.value
                score = judge(result)
                return result, await score if inspect.isawaitable(score) else score

        try:
            ends = await asyncio.gather(*(compete(fork, code) for fork, code in zip(forks, cells)))
            race = Race([result for result, _ in ends], [score for _, score in ends], _branch.winner_of([score for _, score in ends]))
            if keep == "winner" and race.winner is not None:
                await in_thread(self._core.become, forks[race.winner]._core)
            self._core.tell_race(len(race.results), race.winner)
            return race
        finally:
            await asyncio.gather(*(fork.close() for fork in forks))

    async def map(self, codes: Iterable[str], *, concurrency: int = 8, timeout: Union[float, Sequence[float], None] = None,
                  memory: Union[int, Sequence[int], None] = None, max_output: Union[int, Sequence[int], None] = None,
                  drop: bool = False) -> AsyncIterator[Tuple[int, ExecutionResult]]:
        """Runs cells, each in a fork of its own of the current state, and yields ``(index, result)`` as they end.

        The session stays as it is, and may be used meanwhile. A run that hangs or crashes occupies its own place only. No more results are
        kept than run at once: a slow loop over them slows the runs. When the loop is left, runs that have not ended are stopped.

        Args:
            codes: the cells.
            concurrency: how many run at once.
            timeout: of each cell, or a list with one for each.
            memory: bytes that each process of a run may allocate beyond what the state has, or a list; then its code gets a MemoryError.
            max_output: bytes of output that a result has, or a list.
            drop: as in :meth:`fork`.
        """
        cells = _branch.cells_of(codes, concurrency)
        limits = _branch.limits_of(timeout, len(cells))
        lower = _branch.lower_of(memory, max_output, len(cells))
        if not cells:
            return
        anchor = await self.fork(drop=drop)
        ended: "asyncio.Queue[Tuple[int, Union[ExecutionResult, BaseException]]]" = asyncio.Queue(concurrency)
        numbers = iter(range(len(cells)))

        async def work() -> None:
            for i in numbers:
                try:
                    fork = await anchor.fork(drop=drop)
                    try:
                        if lower[i] != (0, 0):
                            await in_thread(fork._core.limit, *lower[i])
                        await ended.put((i, await fork.run(cells[i], limits[i])))
                    finally:
                        await fork.close()
                except Exception as exc:
                    await ended.put((i, exc))

        workers = [asyncio.ensure_future(work()) for _ in range(min(concurrency, len(cells)))]
        try:
            for _ in cells:
                i, result = await ended.get()
                if isinstance(result, BaseException):
                    raise result
                yield i, result
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await anchor.close()

    # -- the model's side

    async def prompt_text(self) -> str:
        """Its tools, workflows and rules as text for a model's prompt. Descriptions are cut, and one line each."""
        return _prompt.prompt_text(await self.list_tools(), await self.list_workflows() if self._has_storage() else (), self._rules())

    async def tool_schemas(self, style: _prompt.Style = "openai", direct: bool = False) -> List[Dict[str, Any]]:
        """Schemas for function calling in the shape of OpenAI or Anthropic: ``run_code``; with ``direct``, also every tool."""
        return _prompt.tool_schemas(await self.list_tools() if direct else (), style, direct)

    async def answer(self, name: str, arguments: Union[str, Mapping[str, Any]], timeout: Optional[float] = None) -> str:
        """Makes a call that a model asked for, by a function of :meth:`tool_schemas`, and returns the text for the model.

        Nothing that the model wrote raises here: the text says what was wrong.
        """
        try:
            call = _prompt.read_call(name, arguments, () if name == _prompt.RUN_CODE else await self.list_tools())
            if call.code is not None:
                return _prompt.result_text(await self.run(call.code, timeout))
            return _prompt.value_text(await self.call_tool(call.tool, **call.arguments))
        except SessionClosedError:
            raise
        except (CodeModeError, ValueError, TypeError, RecursionError) as error:
            return "Error: %s" % error

    # -- tools, workflows, artifacts, deps

    async def _space(self) -> SpaceHandle:
        if self._closed:
            raise SessionClosedError("Session is closed")
        if not self._started:
            await self.start()
        if isinstance(self._executor, LibraryExecutor):
            return self._executor.core.need_space()
        space: SpaceHandle = self._storage.space()
        return space

    async def list_tools(self) -> List[Dict[str, Any]]:
        """``[{name, description, tags, callables: [{name, description, parameters}]}]``"""
        await self._space()
        found: List[Dict[str, Any]] = await self._executor.list_tools()
        return found

    async def search_tools(self, query: str, limit: int = 10) -> List[Dict[str, Any]]:
        """The entries that match, best match first."""
        await self._space()
        found: List[Dict[str, Any]] = await self._executor.search_tools(query, limit)
        return found

    async def call_tool(self, name: str, /, **arguments: Any) -> Any:
        """Calls a tool from the host, through the middlewares: ``call_tool("curl.get", url=...)``."""
        return await in_thread(_facade.call_tool, await self._space(), name, arguments)

    async def list_workflows(self) -> List[Dict[str, Any]]:
        """``[{name, description, parameters}]``"""
        return await in_thread(_facade.list_workflows, await self._space())

    async def search_workflows(self, query: str, limit: int = 5) -> List[Dict[str, Any]]:
        """The entries that match, best match first."""
        return await in_thread(_facade.search_workflows, await self._space(), query, limit)

    async def get_workflow(self, name: str) -> Optional[Dict[str, Any]]:
        """A workflow with its ``source``, or None if it does not exist."""
        return await in_thread(_facade.get_workflow, await self._space(), name)

    async def add_workflow(self, name: str, source: str, description: str = "") -> Dict[str, Any]:
        """Stores a workflow, which code calls as workflows.NAME(...); raises ValueError or SyntaxError if it is not valid. Nothing of it runs."""
        return await in_thread(_facade.create_workflow, await self._space(), name, source, description)

    async def remove_workflow(self, name: str) -> bool:
        """Deletes a workflow, and returns whether it existed."""
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
        """Returns the data in its original type; raises ArtifactNotFoundError."""
        return await in_thread(_facade.load_artifact, await self._space(), name)

    async def delete_artifact(self, name: str) -> None:
        """Deletes an artifact; it does not have to exist."""
        await in_thread(_facade.delete_artifact, await self._space(), name)

    async def list_deps(self) -> List[str]:
        """``["pandas>=2", ...]``"""
        await self._space()
        found: List[str] = await self._executor.list_deps()
        return found

    async def add_dep(self, package: Union[str, Sequence[str]], *more: str) -> Dict[str, Any]:
        """``{installed, already_present, failed}``; raises DepsError with the installer's message.

        Several packages, or a list, are resolved together: if one cannot be installed, none is added."""
        await self._space()
        packages = [*([package] if isinstance(package, str) else package), *more]
        found: Dict[str, Any] = await self._executor.add_dep(packages[0] if len(packages) == 1 else packages)
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
