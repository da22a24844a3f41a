"""What the adapters share: how they open sessions, how a framework's tools become tools of a session, and texts for models.

Nothing of a framework goes into the session: tools stay functions of the host, called through the gate, and values come back as
data or text. Nothing is pickled in either direction.
"""

from __future__ import annotations

import asyncio
import datetime
import decimal
import json
import keyword
import math
import re
import shutil
import tempfile
import uuid
import weakref
from pathlib import PurePath
from typing import Any, Awaitable, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

from .._core import HostTool
from .._runs import run_async
from .._session import ExecutorLike, _Session
from ..execution.configs import SandboxConfig, WorkspaceMode
from ..execution.executors import SandboxExecutor
from ..prompt import MAX_ANSWER, entry_text, result_text, shorten
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
    return made, weakref.finalize(made, shutil.rmtree, folder, True)


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


class Closing:
    """An adapter that ends with ``with``; ``_close`` is what open_sync() gave."""

    _close: Callable[[], None]

    def close(self) -> None:
        """Ends the session, unless it was given."""
        self._close()

    def __enter__(self: _Adapter) -> _Adapter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()  # type: ignore[attr-defined]


class AsyncClosing:
    """The same for ``async with``; ``_close`` is what open_async() gave."""

    _close: Callable[[], Awaitable[None]]

    async def close(self) -> None:
        """Ends the session, unless it was given."""
        await self._close()

    async def __aenter__(self: _Adapter) -> _Adapter:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()  # type: ignore[attr-defined]


# ---- tools


class _Bound(NamedTuple):
    path: str  # its name among the session's tools
    parameters: Tuple[str, ...]
    schema: str
    holder: List[Callable[..., Any]]  # the function as it was given last


#: What code of a session runs once, so that tools can be called as plain functions with positional arguments.
_BIND = '''
def _workcell_bind(name, path, parameters, about):
    call = tools[path]
    def function(*args, **kwargs):
        if len(args) > len(parameters):
            raise TypeError("%s() takes %d positional arguments, but %d were given" % (name, len(parameters), len(args)))
        for parameter, value in zip(parameters, args):
            if parameter in kwargs:
                raise TypeError("%s() got multiple values for argument %r" % (name, parameter))
            kwargs[parameter] = value
        return call(**kwargs)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = about
    return function
'''


class PlainTools:
    """A framework's tools as tools of a session, and as plain functions of its code."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._bound: Dict[str, _Bound] = {}
        self._about: Dict[str, str] = {}
        self.changed = False  # since code() was asked
        self.more = ""  # code that stands after the functions

    def add(self, name: str, description: str, schema: Mapping[str, Any], fn: Callable[..., Any], timeout: Optional[float] = None) -> None:
        """Adds a tool, or replaces the function of one. The session checks arguments against the schema."""
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_workcell"):
            raise ValueError("the tool %r needs a name that code can write" % name)
        text = json.dumps(schema)
        known = self._bound.get(name)
        self._about[name] = description
        if known is not None and known.schema == text:
            known.holder[0] = fn
            return
        holder = [fn]
        self.changed = True
        plain, number = name.lstrip("_") or "tool", 1
        path = plain
        taken = {each["name"] for each in self._listed()}
        while path in taken:  # the session cannot change a tool: code calls the new one by another path
            number += 1
            path = "%s_%d" % (plain, number)
        add_tool(self._session, path, description, schema, lambda **given: holder[0](**given), timeout)
        self._bound[name] = _Bound(path, tuple(schema.get("properties") or ()), text, holder)

    def _listed(self) -> List[Dict[str, Any]]:
        core = self._session._open_core()
        if core is None:
            return [{"name": tool.name} for tool in self._session.executor.extras["tools"] if isinstance(tool, HostTool)]
        return [{"name": each["name"]} for each in core.need_space().call("tools.list")]

    def code(self) -> str:
        """Code that defines the plain functions."""
        self.changed = False
        lines = ["%s = _workcell_bind(%r, %r, %r, %r)" % (name, name, bound.path, bound.parameters, self._about[name])
                 for name, bound in self._bound.items()]
        return _BIND + "\n".join(lines) + "\n" + self.more

    def describe(self) -> str:
        """The functions for a model's prompt, a line each."""
        lines = []
        for name, bound in self._bound.items():
            schema = json.loads(bound.schema)
            required = schema.get("required") or ()
            parameters = [{"name": each, "type": about.get("type"), "description": about.get("description"), "required": each in required,
                           "default": about.get("default")} for each, about in (schema.get("properties") or {}).items()]
            lines += entry_text(name, self._about[name], parameters)
        return "\n".join(lines)

    def names(self) -> List[str]:
        """Of the tools, as code writes them."""
        return list(self._bound)

    def drop(self, names: Sequence[str]) -> None:
        """The functions of these tools are called no more."""
        for name in names:
            bound = self._bound.pop(name, None)
            if bound is not None:
                bound.holder[0] = _gone


def _gone(**_: Any) -> None:
    raise LookupError("the agent has no such tool any more")


def add_tool(session: _Session, name: str, description: str, schema: Mapping[str, Any], fn: Callable[..., Any],
             timeout: Optional[float] = None) -> None:
    """A function of the host as a tool whose schema is given; None: it may take as long as its cell."""
    made = HostTool(name, description, {"type": "object", **schema}, fn, timeout)
    core = session._open_core()
    if core is not None:
        core.add_tool(made)
    else:
        session.executor.extras["tools"].append(made)


# ---- code of a model

RUN_CODE = ("Runs Python code in a session that keeps variables, imports and functions between calls. Returns what the code printed, and the "
            "value of its last expression or its error.")


def run_code_about(tools: PlainTools) -> str:
    """The description of a tool that runs code."""
    return RUN_CODE + ("\n\nThe code can call these functions:\n\n" + tools.describe() if tools.names() else "")


class _Code:
    """What has to be in a session before a model's code: a framework's tools as plain functions, and variables that outlive a kernel."""

    def __init__(self, session: _Session, timeout: Optional[float], max_output: int) -> None:
        self.timeout, self.max_output = timeout, max_output
        self.tools = PlainTools(session)
        self.kept: Dict[str, Any] = {}  # assigned again after a kernel was lost
        self._defined, self._dead = False, False

    def _missing(self) -> List[str]:
        """Cells to run first, where there are new functions, or where a kernel was lost with everything in it."""
        if self._defined and not self.tools.changed:
            return []
        self._defined = False
        cells = list(assignments(self.kept)) if self._dead else []
        return cells + [self.tools.code()] if self.tools.names() or self.tools.more else cells

    def _ran(self, result: ExecutionResult) -> ExecutionResult:
        self._dead = result.state == "lost"
        self._defined = not self._dead
        return result


class Code(_Code):
    """A session that runs what a model wrote, with a framework's tools as plain functions."""

    def __init__(self, session: Optional[Session], executor: ExecutorLike, timeout: Optional[float], max_output: int,
                 options: Mapping[str, Any]) -> None:
        self.session, self.close = open_async(session, executor, options)
        super().__init__(self.session, timeout, max_output)

    async def run(self, code: str) -> ExecutionResult:
        """One cell."""
        for cell in self._missing():
            (await self.session.run(cell, self.timeout)).raise_for_error()
        return self._ran(await self.session.run(code, self.timeout))

    async def text(self, code: str) -> str:
        """One cell; the text for the model."""
        return text_of(await self.run(code), self.max_output)


class SyncCode(_Code):
    """As Code, with a session whose methods block."""

    def __init__(self, session: Optional[SyncSession], executor: ExecutorLike, timeout: Optional[float], max_output: int,
                 options: Mapping[str, Any]) -> None:
        self.session, self.close = open_sync(session, executor, options)
        super().__init__(self.session, timeout, max_output)

    def run(self, code: str) -> ExecutionResult:
        """One cell."""
        for cell in self._missing():
            self.session.run(cell, self.timeout).raise_for_error()
        return self._ran(self.session.run(code, self.timeout))

    def assign(self, variables: Mapping[str, Any]) -> None:
        """Makes data variables of the code."""
        for cell in assignments(variables):
            self.session.run(cell, self.timeout).raise_for_error()

    async def text_async(self, code: str) -> str:
        """One cell without holding up the running loop; the text for the model. A cancelled task interrupts the cell."""
        core = self.session._open_core()
        if core is None:  # opening blocks
            await asyncio.to_thread(self.session.start)
            core = self.session._need()
        for cell in self._missing():
            (await run_async(core, cell, self.timeout)).raise_for_error()
        return text_of(self._ran(await run_async(core, code, self.timeout)), self.max_output)


#: The type of the exception that ends a cell with an answer.
_FINAL = "_WorkcellFinalAnswer"


def answering(name: str, body: str) -> str:
    """Code of a function that ends the cell with an answer, as frameworks' own executors do; body: lines that set ``_workcell_answer``."""
    return "class %s(BaseException):\n    pass\ndef %s(*args, **kwargs):\n    global _workcell_answer\n%s\n    raise %s(\"the answer was given\")\n" % (
        _FINAL, name, body, _FINAL)


def is_answer(result: ExecutionResult) -> bool:
    """Whether the cell ended with an answer, which is in ``_workcell_answer``."""
    return result.error_info is not None and result.error_info.type == _FINAL


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
        return "__import__(%r).%s" % ("datetime", repr(value).partition(".")[2])
    if kind in (decimal.Decimal, uuid.UUID):
        return "__import__(%r).%r" % (kind.__module__, value)
    if isinstance(value, PurePath):
        return "__import__('pathlib').Path(%r)" % str(value)
    raise TypeError("a %s cannot be given to a session: numbers, texts, bytes, dates, lists, tuples, sets and dicts of them can" % kind.__name__)


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
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


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
