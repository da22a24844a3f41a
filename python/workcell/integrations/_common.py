"""What the adapters share: how they open sessions, values for and from them, and texts for models. Tools are in ``_code``.

Nothing of a framework goes into the session: tools stay functions of the host, called through the gate, and values come back as
data or text. Nothing is pickled in either direction.
"""

from __future__ import annotations

import datetime
import decimal
import keyword
import math
import re
import tempfile
import uuid
import zoneinfo
from pathlib import PurePath
from typing import Any, Awaitable, Callable, Generator, Iterator, List, Mapping, Optional, Tuple, TypeVar, cast

from .._folders import remove_with
from .._session import ExecutorLike
from ..execution.configs import SandboxConfig, WorkspaceMode
from ..execution.executors import SandboxExecutor
from ..prompt import MAX_ANSWER, result_text, shorten
from ..session import Session
from ..sync import Session as SyncSession
from ..types import ExecutionResult

# ---- sessions


def executor_for(executor: ExecutorLike, workspace_mode: Optional[WorkspaceMode] = None) -> Tuple[Any, Callable[[], None]]:
    """The executor of an adapter, and what to call after its end: ``sandbox`` with an empty folder of its own unless another one is given.

    A name cannot choose ``inprocess``, where the code could do what the program can: that takes an object.
    """
    if isinstance(executor, str) and executor.replace("-", "") == "inprocess":
        raise ValueError("executor=%r would run the model's code inside this program, without isolation; if that is what you want, give "
                         "executor=workcell.InProcessExecutor()" % executor)
    if executor is not None and executor != "sandbox":
        return executor, lambda: None
    # The current folder often has the program's own virtual environment in it, which no sandbox may write to.
    folder = tempfile.mkdtemp(prefix="workcell-agent-")
    made = SandboxExecutor(SandboxConfig(cwd=folder, workspace_mode=workspace_mode))
    return made, remove_with(made, folder)


def open_sync(session: Optional[SyncSession], executor: ExecutorLike, options: Mapping[str, Any]) -> Tuple[SyncSession, Callable[[], None]]:
    """A session, and the function that ends it: a session that the caller gave stays open."""
    if session is not None:
        check_alone(executor, options)
        return session, lambda: None
    chosen, cleanup = executor_for(executor)
    made = SyncSession(None, chosen, **options)

    def close() -> None:
        made.close()
        cleanup()

    return made, close


def open_async(session: Optional[Session], executor: ExecutorLike, options: Mapping[str, Any]) -> Tuple[Session, Callable[[], Awaitable[None]]]:
    """As open_sync(), for programs with an event loop."""
    if session is not None:
        check_alone(executor, options)
    chosen, cleanup = executor_for(executor) if session is None else (None, lambda: None)
    made = session if session is not None else Session(None, chosen, **options)

    async def close() -> None:
        if session is None:
            await made.close()
            cleanup()

    return made, close


def check_alone(executor: ExecutorLike, options: Mapping[str, Any]) -> None:
    """A session that exists has its executor and options already."""
    given = [*(["executor"] if executor is not None else []), *options]
    if given:
        raise TypeError("give either a session or options for a new one, not session= and %s=" % "=, ".join(given))


_Adapter = TypeVar("_Adapter")


class Here:
    """Something with sessions of this process: frameworks that copy what they are given get the same one, and cannot pickle it."""

    def __copy__(self: _Adapter) -> _Adapter:
        return self

    def __deepcopy__(self: _Adapter, memo: Any = None) -> _Adapter:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a %s has sessions of this process and cannot be pickled: make one where it is used" % type(self).__name__)


class Closing(Here):
    """An adapter that ends with ``with``; ``_close`` is what open_sync() gave."""

    _close: Callable[[], None]

    def close(self) -> None:
        """Ends the session, unless it was given."""
        self._close()

    def __enter__(self: _Adapter) -> _Adapter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()  # type: ignore[attr-defined]


class AsyncClosing(Here):
    """The same for ``async with``; ``_close`` is what open_async() gave."""

    _close: Callable[[], Awaitable[None]]

    async def close(self) -> None:
        """Ends the session, unless it was given."""
        await self._close()

    async def __aenter__(self: _Adapter) -> _Adapter:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()  # type: ignore[attr-defined]


# ---- cells

#: Bytes of a cell.
_MAX_CELL = 32 << 20


def cell_of(code: str) -> str:
    """What a model wrote as a cell; what no session takes is a cell that says so. The model gets to know, and the agent does not end."""
    try:
        size = len(code.encode("utf-8"))
    except UnicodeEncodeError as error:
        return "raise SyntaxError(%r)" % ("the code is not Unicode: it has half of a surrogate pair at character %d" % error.start)
    if size > _MAX_CELL:
        return "raise SyntaxError(%r)" % ("the code has %d bytes: at most %d can be run at once" % (size, _MAX_CELL))
    return code


# An operation is a generator of cells, which is given their results, so that it is written once for sessions that block and for others.

_T = TypeVar("_T")
Steps = Generator[str, ExecutionResult, _T]


def drive(run: Callable[[str], ExecutionResult], steps: "Steps[_T]") -> _T:
    """Runs the cells of an operation; what it returns."""
    try:
        cell = next(steps)
        while True:
            cell = steps.send(run(cell))
    except StopIteration as end:
        return cast(_T, end.value)


async def drive_async(run: Callable[[str], Awaitable[ExecutionResult]], steps: "Steps[_T]") -> _T:
    """The same on an event loop."""
    try:
        cell = next(steps)
        while True:
            cell = steps.send(await run(cell))
    except StopIteration as end:
        return cast(_T, end.value)


# ---- values

#: Of the text of one cell; a session takes 32 MiB.
_CELL_TEXT = 4 << 20
_DATES = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone)


def literal(value: Any, depth: int = 0) -> str:
    """Data as an expression that code can evaluate; TypeError for anything else, which would have to be pickled."""
    kind = type(value)
    if depth > 100:
        raise TypeError("the data is nested more than 100 deep, or contains itself")
    if value is None or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else "float(%r)" % repr(value)
    if kind is dict:
        return "{%s}" % ", ".join("%s: %s" % (literal(key, depth + 1), literal(each, depth + 1)) for key, each in value.items())
    if kind in (list, tuple, set, frozenset):
        parts = "[%s]" % ", ".join(literal(each, depth + 1) for each in value)
        return parts if kind is list else "%s(%s)" % (kind.__name__, parts)
    if kind in _DATES:
        return _date(value)
    if kind in (decimal.Decimal, uuid.UUID):
        return "__import__(%r).%r" % (kind.__module__, value)
    if isinstance(value, PurePath):
        return "__import__('pathlib').Path(%r)" % str(value)
    raise TypeError("a %s cannot be given to a session: numbers, texts, bytes, dates, lists, tuples, sets and dicts of them can" % kind.__name__)


def _date(value: Any) -> str:
    """A date, time, span or zone; a time zone stands beside its time, because its repr() may be anything."""
    zone = getattr(value, "tzinfo", None)
    if zone is not None:
        return "%s.replace(tzinfo=%s)" % (_date(value.replace(tzinfo=None)), _date(zone))
    if type(value) is datetime.timezone:
        return "__import__('datetime').timezone(%s)" % ", ".join(map(literal, value.__getinitargs__()))  # type: ignore[attr-defined]
    if type(value) is zoneinfo.ZoneInfo and value.key is not None:
        return "__import__('zoneinfo').ZoneInfo(%r)" % value.key
    if type(value) not in _DATES:
        raise TypeError("a time zone that is a %s cannot be given to a session: those of datetime and zoneinfo can" % type(value).__name__)
    return "__import__('datetime').%s" % repr(value).partition(".")[2]


def assignments(variables: Mapping[str, Any]) -> Iterator[str]:
    """Cells that assign variables."""
    lines: List[str] = []
    size = 0
    for name, value in variables.items():
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError("%r is not the name of a variable" % name)
        pieces = [value[at:at + _CELL_TEXT] for at in range(0, len(value), _CELL_TEXT)] or [value] if type(value) in (str, bytes) else [value]
        for number, piece in enumerate(pieces):
            line = "%s %s %s" % (name, "+=" if number else "=", literal(piece))
            if lines and size + len(line) > _CELL_TEXT:
                yield "\n".join(lines) + "\n"
                lines, size = [], 0
            lines.append(line)
            size += len(line)
    if lines:
        yield "\n".join(lines) + "\n"


# ---- texts

_ESCAPES = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[ -/]*[0-~])")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """A text of the code without terminal sequences and other control characters: frameworks print what they get."""
    if text.isprintable():
        return text
    text = _ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _CONTROLS.sub(lambda found: "\\x%02x" % ord(found.group()) if found.group() < "\u0100" else "\\u%04x" % ord(found.group()), text)


def output_of(result: ExecutionResult, limit: int = MAX_ANSWER) -> str:
    """The output of a cell, without the value of its last expression."""
    return printable(shorten(result.text, limit))


def text_of(result: ExecutionResult, limit: int = MAX_ANSWER) -> str:
    """What became of a cell, for a model: output, then the value or the error."""
    return printable(result_text(result, limit))


def error_of(result: ExecutionResult, limit: int = MAX_ANSWER) -> str:
    """The error of a cell with the output before it."""
    assert result.error is not None
    output = result.text.rstrip("\n")
    lost = "" if result.state == "kept" else "\nAll variables are lost." if result.state == "lost" else ""
    return printable(shorten((output + "\n" if output else "") + result.error + lost, limit))


def value_of(result: ExecutionResult) -> Any:
    """The value of a cell as data; a text without control characters."""
    value = result.value
    return printable(value) if type(value) is str else value
