"""A pool of Ray actors that run code, each with an engine of its own.

::

    from workcell.integrations.ray import WorkcellPool

    with WorkcellPool(actors=4, prepare=["import numpy as np"]) as pool:
        for number, result in pool.map(codes, timeout=5):
            ...
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import uuid
from typing import Any, Dict, Iterable, Iterator, Mapping, Optional, Sequence, Tuple, Union

import ray
from ray.exceptions import RayActorError

from .. import _branch
from .._session import ExecutorLike
from ..errors import SessionClosedError, SessionExpiredError
from ..types import ErrorInfo
from ._ray_actor import RayResult, WorkcellActor

#: Cells that wait at an actor beside those that run, so that it is never idle while the results of others travel.
_AHEAD = 2


def _died(actor: int) -> RayResult:
    why = "the actor died while it ran the cell"
    return RayResult(error=why, error_info=ErrorInfo("kernel_died", "", why, "", None, 0, 0), state="lost", actor=actor)


def _outcome(call: Any) -> Tuple[Optional[RayResult], bool]:
    """What a call returned, and whether its actor was alive to return it."""
    try:
        return ray.get(call), True
    except RayActorError:
        return None, False


class PoolSession:
    """A session on one of the pool's actors: its variables are there, and all its cells run there."""

    def __init__(self, worker: Any, actor: int) -> None:
        self._worker, self.actor, self._key, self._closed = worker, actor, uuid.uuid4().hex, False
        ray.get(worker.open.remote(self._key))

    def run(self, code: str, timeout: Optional[float] = None) -> RayResult:
        """Runs one cell and waits.

        Raises:
            SessionExpiredError: the actor's process has died, and the session with it.
        """
        if self._closed:
            raise SessionClosedError("the session is closed")
        result, _ = _outcome(self._worker.run.remote(self._key, code, timeout))
        if result is None:
            raise SessionExpiredError("the process of actor %d has died, and the session with it: open a new one" % self.actor)
        return result

    def close(self) -> None:
        """Ends the session."""
        if not self._closed:
            self._closed = True
            _outcome(self._worker.close.remote(self._key))  # of an actor that died it has ended already

    def __enter__(self) -> "PoolSession":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class WorkcellPool:
    """Actors of a Ray cluster that run code. Ray starts an actor whose process died again, and ``prepare`` runs there once more.

    Args:
        actors: how many; None: one for each CPU of the cluster that an actor's ``num_cpus`` leaves room for.
        prepare: cells that each actor runs once. Everything else runs in forks of that state.
        executor: of the actors' sessions; None: ``sandbox``, with an empty folder as its workspace, over which each fork has a layer of its own.
        concurrency: cells that run at once in an actor.
        max_sessions: open sessions of an actor.
        actor_options: for Ray: ``num_cpus`` (1), ``resources``, ``scheduling_strategy``, ``runtime_env``, ``max_restarts`` (-1: always).
        options: of the actors' sessions, as in ``workcell.sync.Session(...)``. They are pickled for the actors' processes.
    """

    def __init__(self, actors: Optional[int] = None, *, prepare: Union[str, Sequence[str]] = (), executor: ExecutorLike = None, concurrency: int = 2,
                 max_sessions: int = 64, actor_options: Optional[Mapping[str, Any]] = None, **options: Any) -> None:
        if concurrency < 1 or max_sessions < 1 or (actors is not None and actors < 1):
            raise ValueError("actors, concurrency and max_sessions must be at least 1")
        given = {"num_cpus": 1, "max_restarts": -1, **(actor_options or {})}
        if not ray.is_initialized():
            ray.init()
        if actors is None:
            actors = max(1, int(ray.cluster_resources().get("CPU", 1) // (given["num_cpus"] or 1)))
        # Cells of map() must not hold up those of sessions, nor either of them the calls that end something.
        threads = {"forks": concurrency, "sessions": max_sessions, "control": 1}
        cells = [prepare] if isinstance(prepare, str) else list(prepare)
        remote: Any = ray.remote  # its types do not know concurrency_groups
        made = remote(concurrency_groups=threads, **given)(WorkcellActor)
        self.concurrency, self._closed, self._next = concurrency, False, 0
        self._workers = [made.remote(number, cells, executor, options, max_sessions) for number in range(actors)]
        try:
            ray.get([worker.ready.remote() for worker in self._workers])
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    def session(self) -> PoolSession:
        """A session that continues from the prepared state, on the next actor in turn."""
        self._check()
        number = self._next % len(self._workers)
        self._next += 1
        return PoolSession(self._workers[number], number)

    def map(self, codes: Iterable[str], *, timeout: Union[float, Sequence[float], None] = None, memory: Union[int, Sequence[int], None] = None,
            max_output: Union[int, Sequence[int], None] = None, retries: int = 2) -> Iterator[Tuple[int, RayResult]]:
        """Runs cells, each in a fork of its own of the prepared state, on whichever actor has room, and yields ``(index, result)`` as they end.

        Args:
            timeout, memory, max_output: of each cell, or a list with one for each, as :meth:`workcell.Session.map` has them.
            retries: how often a cell is run again whose actor died. After that its result has the error ``kernel_died``: it may be what
                ended the process.
        """
        self._check()
        cells = _branch.cells_of(codes, self.concurrency)
        limits, lower = _branch.limits_of(timeout, len(cells)), _branch.lower_of(memory, max_output, len(cells))
        return self._map(cells, limits, lower, retries)

    def _map(self, cells: Sequence[str], limits: Sequence[Optional[float]], lower: Sequence[Tuple[int, int]], retries: int) -> Iterator[Tuple[int, RayResult]]:
        key, waiting, tries = uuid.uuid4().hex, list(range(len(cells)))[::-1], [0] * len(cells)
        running: Dict[Any, Tuple[Optional[int], int]] = {}  # (cell, actor) of what was sent; no cell: whether the actor is back
        load: Dict[int, int] = dict.fromkeys(range(len(self._workers)), 0)  # of the actors that live
        try:
            while waiting or any(index is not None for index, _ in running.values()):
                while waiting and load and min(load.values()) < self.concurrency + _AHEAD:
                    index, actor = waiting.pop(), min(load, key=lambda each: load[each])
                    running[self._workers[actor].run_fork.remote(key, index, cells[index], limits[index], lower[index])] = (index, actor)
                    load[actor] += 1
                if not running:
                    raise SessionClosedError("all actors of the pool have died, and are not started again")
                done, _ = ray.wait(list(running), num_returns=1)
                found, actor = running.pop(done[0])
                result, is_alive = _outcome(done[0])
                if found is None:
                    if is_alive:
                        load[actor] = 0
                    continue
                if not is_alive and load.pop(actor, None) is not None:
                    running[self._workers[actor].ready.remote()] = (None, actor)
                if actor in load:
                    load[actor] -= 1
                if result is None and tries[found] < retries:
                    tries[found] += 1
                    waiting.append(found)
                else:
                    yield found, result if result is not None else _died(actor)
        finally:
            for worker in self._workers:
                worker.end.remote(key)

    def _check(self) -> None:
        if self._closed:
            raise SessionClosedError("the pool is closed")

    def close(self) -> None:
        """Ends all sessions, cells and actors."""
        if self._closed:
            return
        self._closed = True
        shuts = [worker.shut.remote() for worker in self._workers]
        ray.wait(shuts, num_returns=len(shuts), timeout=10)
        for worker in self._workers:
            ray.kill(worker)

    def __enter__(self) -> "WorkcellPool":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


__all__ = ["PoolSession", "RayResult", "WorkcellPool"]
