"""Branches of a session: what the async and the synchronous session have in common."""

from __future__ import annotations

import copy
import threading
import uuid
from dataclasses import dataclass
from typing import Any, Callable, Iterable, List, Optional, Sequence, TypeVar, Union, Tuple

from ._core import Core
from .types import ExecutionResult

S = TypeVar("S")
#: Cells to race: their code, or a function from the number of a fork to its code.
Codes = Union[Sequence[str], Callable[[int], str]]
#: Decides a race: an expression that each fork evaluates after its cell, or a function of its result. The largest value wins.
Judge = Union[str, Callable[[ExecutionResult], Any], None]


@dataclass
class Point:
    """A kept state of a session."""

    name: str
    #: The number of cells that had been run by then.
    cell: int
    #: Seconds since it was taken.
    age: float
    #: Memory that only this point uses; None where that cannot be told.
    size: Optional[int]


@dataclass
class Child:
    """An open session that the code of a session has forked (``allow_fork``)."""

    id: str
    #: The id of the session whose code forked it.
    parent: str
    #: ``idle`` or ``busy``.
    state: str
    #: Seconds since it was forked.
    age: float
    #: The process of its kernel.
    pid: int


@dataclass
class Race:
    """The end of a race."""

    #: Of each fork, in the order of the cells.
    results: List[ExecutionResult]
    #: The judge's values; None: the cell or the judge failed.
    scores: List[Any]
    #: The index of the winner; None: every cell failed.
    winner: Optional[int]

    @property
    def result(self) -> Optional[ExecutionResult]:
        """The winner's."""
        return None if self.winner is None else self.results[self.winner]


def points_of(core: Core) -> List[Point]:
    return [Point(each["name"], each["cell"], each["age_ms"] / 1000, each["bytes"] if each["bytes"] >= 0 else None) for each in core.points()]


def children_of(core: Core) -> List[Child]:
    return [Child(each["session_id"], each["parent"], each["state"], each["age_ms"] / 1000, each["pid"]) for each in core.children()]


def copy_of(session: S, core: Core) -> S:
    """A session object for a fork."""
    made: Any = copy.copy(session)
    made._lock = threading.Lock()
    made._approvals = core.approvals
    made._executor = copy.copy(made._executor)
    return made  # type: ignore[no-any-return]


def codes_of(codes: Codes, n: Optional[int]) -> List[str]:
    if callable(codes):
        if n is None:
            raise TypeError("a race of a function needs n=, the number of forks")
        return [codes(i) for i in range(n)]
    if isinstance(codes, str) or n is not None:
        raise TypeError("race() takes a list of cells, or a function and n=")
    if not codes:
        raise ValueError("a race needs at least one cell")
    return list(codes)


def cells_of(codes: Iterable[str], concurrency: int) -> List[str]:
    if isinstance(codes, str):
        raise TypeError("map() takes a list of cells, not one string")
    cells = list(codes)
    for i, code in enumerate(cells):
        if not isinstance(code, str):
            raise TypeError("the code of run %d must be a string, not %s" % (i, type(code).__name__))
    if concurrency < 1:
        raise ValueError("concurrency must be at least 1, not %r" % concurrency)
    return cells


def limits_of(timeout: Union[float, Sequence[float], None], n: int) -> List[Optional[float]]:
    if timeout is None or isinstance(timeout, (int, float)):
        return [timeout] * n
    if len(timeout) != n:
        raise ValueError("timeout has %d entries for %d cells" % (len(timeout), n))
    return list(timeout)


def lower_of(memory: Union[int, Sequence[int], None], max_output: Union[int, Sequence[int], None], n: int) -> List[Tuple[int, int]]:
    """Limits of memory and output of each run, 0: the session's."""
    both: List[List[int]] = []
    for name, given in (("memory", memory), ("max_output", max_output)):
        if given is None or isinstance(given, int):
            both.append([given or 0] * n)
        elif len(given) != n:
            raise ValueError("%s has %d entries for %d cells" % (name, len(given), n))
        else:
            both.append([each or 0 for each in given])
    return list(zip(*both)) if n else []


def check_keep(keep: str) -> None:
    if keep not in ("winner", "none"):
        raise ValueError("keep must be \"winner\" or \"none\", not %r" % keep)


def winner_of(scores: Sequence[Any]) -> Optional[int]:
    """The first of the largest."""
    best: Optional[int] = None
    for i, score in enumerate(scores):
        if score is not None and (best is None or score > scores[best]):
            best = i
    return best


def fresh_name() -> str:
    return "attempt-" + uuid.uuid4().hex[:12]
