"""An actor of ``ray``: a session, forks of it, and what their cells came to. It lives in a process of its own, which Ray may end and start again."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import ray

from .._session import ExecutorLike
from ..errors import BusyError
from ..sync import Session
from ..types import ErrorInfo, ExecutionResult
from ._common import executor_for

#: Calls of map() that an actor remembers as ended.
_ENDED = 1000


@dataclass(frozen=True)
class RayResult:
    """What became of a cell in an actor: plain data. The names are those of :class:`workcell.ExecutionResult`."""

    value: Any = None
    stdout: str = ""
    stderr: str = ""
    error: Optional[str] = None
    error_info: Optional[ErrorInfo] = None
    execution_time_ms: Optional[float] = None
    state: str = "kept"
    notices: List[str] = field(default_factory=list)
    isolation: Dict[str, Any] = field(default_factory=dict)  #: the receipt
    actor: int = -1  #: the number of the actor in the pool

    @property
    def is_ok(self) -> bool:
        """Whether the cell ended without an error."""
        return self.error is None


def plain(result: ExecutionResult, actor: int) -> RayResult:
    return RayResult(result.value, result.stdout, result.stderr, result.error, result.error_info, result.execution_time_ms, result.state,
                     result.notices, result.isolation, actor)


class WorkcellActor:
    """An actor: a session that has run the cells of ``prepare``, and forks of it. Ray calls it on several threads."""

    def __init__(self, number: int, prepare: Sequence[str], executor: ExecutorLike, options: Mapping[str, Any], max_sessions: int) -> None:
        self._number, self._max, self._lock = number, max_sessions, threading.Lock()
        self._sessions: Dict[str, Session] = {}
        self._running: Dict[str, Dict[int, Session]] = {}  # forks of map(), by the key of its call
        self._ended: Dict[str, None] = {}  # keys of calls that have ended: their cells may still be on the way
        self._problem: Optional[Exception] = None
        self._ends: List[Callable[[], None]] = []
        try:
            chosen, cleanup = executor_for(executor, "cow")
            self._ends.append(cleanup)
            self._base = Session(None, chosen, **options)
            self._ends.insert(0, self._base.close)
            for cell in prepare:
                self._base.run(cell).raise_for_error()
        except Exception as problem:  # ready() says it: of a constructor that raises, Ray reports that the actor died
            self._problem = problem

    @ray.method(max_task_retries=-1)
    def ready(self) -> None:
        """Answers once the cells of ``prepare`` have run, also after the process has died and was started again. Raises what went wrong there."""
        if self._problem is not None:
            raise self._problem

    @ray.method(concurrency_group="forks")
    def run_fork(self, key: str, index: int, code: str, timeout: Optional[float], lower: Tuple[int, int]) -> Optional[RayResult]:
        """One cell in a fork; None: its map() has ended."""
        if key in self._ended:
            return None
        fork = self._base.fork()
        try:
            with self._lock:
                if key in self._ended:
                    return None
                self._running.setdefault(key, {})[index] = fork
            if lower != (0, 0):
                fork._need().limit(*lower)
            return plain(fork.run(code, timeout), self._number)
        finally:
            with self._lock:
                self._running.get(key, {}).pop(index, None)
            fork.close()

    @ray.method(concurrency_group="control")
    def end(self, key: str) -> None:
        """Ends what still runs of a map(), and what of it comes later."""
        with self._lock:
            self._ended[key] = None
            if len(self._ended) > _ENDED:
                del self._ended[next(iter(self._ended))]
            forks = list(self._running.pop(key, {}).values())
        for fork in forks:
            fork.close()

    @ray.method(concurrency_group="sessions")
    def open(self, key: str) -> None:
        with self._lock:
            if len(self._sessions) >= self._max:
                raise BusyError("actor %d has %d sessions (max_sessions): close some of them" % (self._number, self._max))
            self._sessions[key] = self._base  # its place
        try:
            self._sessions[key] = self._base.fork()
        except BaseException:
            self._sessions.pop(key, None)
            raise

    @ray.method(concurrency_group="sessions")
    def run(self, key: str, code: str, timeout: Optional[float]) -> Optional[RayResult]:
        """One cell of a session; None: it was lost with the actor's process."""
        session = self._sessions.get(key)
        return plain(session.run(code, timeout), self._number) if session is not None else None

    @ray.method(concurrency_group="control")
    def close(self, key: str) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.close()

    def shut(self) -> None:
        """Ends everything, before the actor's process is ended."""
        with self._lock:
            forks = [fork for each in self._running.values() for fork in each.values()]
        for session in [*forks, *self._sessions.values()]:
            session.close()
        for end in self._ends:
            end()
