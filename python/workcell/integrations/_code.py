"""A model's code in a session, with a framework's tools as plain functions of that code.

Tools stay functions of the host, called through the gate. Cells of one session come one after the other, also those of an adapter that several
runs of agents share: what belongs to a run (its context) is that of the cell that calls.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import keyword
import re
import threading
import unicodedata
from collections import deque
from typing import Any, Callable, Deque, Dict, Generator, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .._calls import check_not_waiting
from .._core import HostTool
from .._engine import _running_loop
from .._runs import run_async
from .._session import ExecutorLike, _Session
from ..prompt import entry_text
from ..session import Session
from ..sync import Session as SyncSession
from ..types import ExecutionResult
from ._common import assignments, cell_of, drive, drive_async, open_async, open_sync, text_of

# ---- tools


class _Bound(NamedTuple):
    written: str  # its name in the code
    path: str  # its name among the session's tools
    parameters: Tuple[str, ...]
    schema: str
    holder: List[Callable[..., Any]]  # the function as it was given last


#: What code of a session runs once, so that tools can be called as plain functions with positional arguments. The code may have given the
#: name `tools` to something else since.
_BIND = '''
_workcell_tools = _workcell_tools if "_workcell_tools" in globals() else tools
def _workcell_bind(name, path, parameters, about):
    call = _workcell_tools[path]
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
#: What a plain function may not hide: the namespaces of the session, and names without which code cannot show or find anything.
_KEPT_NAMES = frozenset(("tools", "workflows", "skills", "artifacts", "deps", "sessions", "llm", "print", "globals", "__builtins__", "__name__", "__import__"))
#: The same for Python's own functions, unless the framework's prompt has the name as it is: a tool "open" or "str" would be given what code reads.
_BUILTINS = frozenset(dir(builtins))
_LONGEST_NAME = 64


def _written(name: str, exact: bool = False) -> str:
    """The name of a tool as code can write it: MCP servers call theirs "resolve-library-id", a hostile one "print"."""
    found = re.sub(r"\W", "_", unicodedata.normalize("NFKC", name))[:_LONGEST_NAME]
    found = found if found.isidentifier() else "_" + found
    kept = keyword.iskeyword(found) or found in _KEPT_NAMES or (not exact and found in _BUILTINS) or found.startswith("_workcell")
    return "tool" + found if found.startswith("_workcell") else found + "_" if kept else found


def written_names(names: Sequence[str]) -> List[str]:
    """The names of tools as code can write them, each another one."""
    found: List[str] = []
    for name in names:
        found.append(_unlike(_written(name), set(found)))
    return found


class PlainTools:
    """A framework's tools as tools of a session, and as plain functions of its code."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._bound: Dict[str, _Bound] = {}
        self._about: Dict[str, str] = {}
        self.changed = False  # since code() was asked
        self.more = ""  # code that stands after the functions

    def add(self, name: str, description: str, schema: Mapping[str, Any], fn: Callable[..., Any], timeout: Optional[float] = None,
            *, replace: bool = False, exact: bool = False) -> None:
        """Adds a tool, whose arguments the session checks.

        ``replace``: or gives one of this name another function. ``exact``: code must write its name as it is, because the framework's own prompt does.
        """
        known = self._bound.get(name)
        if exact and _written(name, exact) != name:
            raise ValueError("the tool %r needs a name that code can write" % name)
        if known is not None and not replace:
            raise ValueError("two tools have the name %r: the second would take the calls of the first" % name)
        # An MCP server may have sent half of a surrogate pair, which no session and no model's API takes.
        text = _encodable(json.dumps(schema, ensure_ascii=False))
        schema, description = json.loads(text), _encodable(description)
        self._about[name] = description
        if known is not None and known.schema == text:
            known.holder[0] = fn
            return
        holder = [fn]
        self.changed = True
        written = known.written if known is not None else _unlike(_written(name, exact), {each.written for each in self._bound.values()})
        # The session cannot change a tool: code calls the new one by another path.
        path = _unlike(written.strip("_") or "tool", {each["name"] for each in self._listed()})
        add_tool(self._session, path, description, schema, lambda **given: holder[0](**given), timeout)
        self._bound[name] = _Bound(written, path, tuple(schema.get("properties") or ()), text, holder)

    def _listed(self) -> List[Dict[str, Any]]:
        core = self._session._open_core()
        if core is None:
            return [{"name": tool.name} for tool in self._session.executor.extras["tools"] if isinstance(tool, HostTool)]
        return [{"name": each["name"]} for each in core.need_space().call("tools.list")]

    def code(self) -> str:
        """Code that defines the plain functions."""
        self.changed = False
        lines = ["%s = _workcell_bind(%r, %r, %r, %r)" % (bound.written, bound.written, bound.path, bound.parameters, self._about[name])
                 for name, bound in self._bound.items()]
        return _BIND + "\n".join(lines) + "\n" + self.more

    def describe(self) -> str:
        """The functions for a model's prompt, a line each."""
        return describe((bound.written, self._about[name], json.loads(bound.schema)) for name, bound in self._bound.items())

    def names(self) -> List[str]:
        """Of the tools, as the framework has them."""
        return list(self._bound)

    def written(self, name: str) -> str:
        """The name of a tool as code writes it."""
        return self._bound[name].written

    def drop(self, names: Sequence[str]) -> None:
        """The functions of these tools are called no more."""
        for name in names:
            bound = self._bound.pop(name, None)
            if bound is not None:
                bound.holder[0] = _gone


def describe(tools: Iterable[Tuple[str, str, Mapping[str, Any]]]) -> str:
    """Functions for a model's prompt: (name, description, schema). Schemas may be those of MCP servers: of one that is odd, what can be shown."""
    lines: List[str] = []
    for name, description, schema in tools:
        needed, properties = schema.get("required"), schema.get("properties")
        required = needed if isinstance(needed, (list, tuple)) else ()
        parameters = []
        for each, given in properties.items() if isinstance(properties, Mapping) else ():
            about = given if isinstance(given, Mapping) else {}  # true allows everything
            parameters.append({"name": each, "type": about.get("type"), "description": about.get("description"), "required": each in required,
                               "default": about.get("default")})
        lines += entry_text(name, description, parameters)
    return "\n".join(lines)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _unlike(name: str, taken: "set[str]") -> str:
    found, number = name, 1
    while found in taken:
        number += 1
        found = "%s_%d" % (name, number)
    return found


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


def run_code_about(functions: str) -> str:
    """The description of a tool that runs code, which can call these functions."""
    return RUN_CODE + ("\n\nThe code can call these functions:\n\n" + functions if functions else "")


class _Turns:
    """A place for one task or thread; the others wait in their order. Tasks may be of several loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: Deque[Callable[[], bool]] = deque()

    def _take(self, wake: Callable[[], bool]) -> bool:
        """Whether the place was free; else ``wake`` is called once it is ours."""
        with self._lock:
            if self._taken:
                self._waiting.append(wake)
                return False
            self._taken = True
            return True

    def _give_up(self, wake: Callable[[], bool]) -> None:
        """A task that was cancelled, perhaps just when its turn had come."""
        with self._lock:
            waits = wake in self._waiting
            if waits:
                self._waiting.remove(wake)
        if not waits:
            self._leave()

    @contextlib.contextmanager
    def blocking(self) -> Iterator[None]:
        """For a thread. One with a running loop does not wait: it would hold up the task whose turn it is."""
        if _running_loop() is not None:
            yield
            return
        turn = threading.Event()

        def wake() -> bool:
            turn.set()
            return True

        if not self._take(wake):
            try:
                turn.wait()
            except BaseException:  # Ctrl-C
                self._give_up(wake)
                raise
        try:
            yield
        finally:
            self._leave()

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        turn: "asyncio.Future[None]" = loop.create_future()

        def give() -> None:
            if not turn.done():
                turn.set_result(None)

        def wake() -> bool:
            try:
                loop.call_soon_threadsafe(give)
            except RuntimeError:  # the loop has ended, and the task with it
                return False
            return True

        if not self._take(wake):
            try:
                await turn
            except BaseException:
                self._give_up(wake)
                raise

    async def __aexit__(self, *exc: object) -> None:
        self._leave()

    def _leave(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._taken = False
                    return
                wake = self._waiting.popleft()
            if wake():
                return


class _Code:
    """What has to be in a session before a model's code: a framework's tools as plain functions, and variables that outlive a kernel."""

    def __init__(self, session: _Session, timeout: Optional[float], max_output: int) -> None:
        self.timeout, self.max_output = timeout, max_output
        self._session = session
        self.tools = PlainTools(session)
        self.kept: Dict[str, Any] = {}  # assigned again after a kernel was lost
        self._kernels = 0  # that were lost
        self._turns = _Turns()
        self._made = -1  # the one that the functions were made for
        self._unsure = False  # a cell was left before its result came

    def check_turn(self) -> None:
        """Raises where a tool would wait for code of the session that waits for the tool."""
        core = self._session._open_core()
        if core is not None:
            check_not_waiting(core.id)

    def _missing(self) -> List[str]:
        """Cells to run first, where there are new functions, or where a kernel was lost with everything in it."""
        fresh = self._made != self._kernels
        if not fresh and not self.tools.changed:
            return []
        cells = list(assignments(self.kept)) if fresh and self._kernels else []
        return cells + [self.tools.code()] if self.tools.names() or self.tools.more else cells

    def _steps(self, code: str) -> Generator[str, ExecutionResult, ExecutionResult]:
        """The cells to run, whose results it is given. What code has broken for itself is the result: it is for the model."""
        sure, self._unsure = not self._unsure, True
        if not sure and self._made >= 0 and (yield "'_workcell_bind' in globals()").value is not True:
            self._kernels += 1
        kernels, cells = self._kernels, self._missing()
        if cells:
            self._made = -1
        for cell in cells:
            prepared = yield cell
            if prepared.error is not None:
                return self._ran(prepared)
        self._made = kernels
        return self._ran((yield cell_of(code)))

    def _ran(self, result: ExecutionResult) -> ExecutionResult:
        self._unsure = False
        if result.state == "lost":
            self._kernels += 1
        return result


class Code(_Code):
    """A session that runs what a model wrote, with a framework's tools as plain functions."""

    def __init__(self, session: Optional[Session], executor: ExecutorLike, timeout: Optional[float], max_output: int,
                 options: Mapping[str, Any]) -> None:
        self.session, self.close = open_async(session, executor, options)
        super().__init__(self.session, timeout, max_output)
        self._context: Any = None  # of the cell that runs

    async def run(self, code: str, context: Any = None) -> ExecutionResult:
        """One cell. Its calls of tools find ``context``, which is that of no other cell: agents may share this, and a model may call in parallel."""
        self.check_turn()
        async with self._turns:
            self._context = context
            try:
                return await drive_async(lambda cell: self.session.run(cell, self.timeout), self._steps(code))
            finally:
                self._context = None

    def need_context(self) -> Any:
        """The context of the cell that runs; LookupError for a call that a thread of the code makes after its cell."""
        if self._context is None:
            raise LookupError("this function can be called only while a piece of code runs")
        return self._context

    async def text(self, code: str, context: Any = None) -> str:
        """One cell; the text for the model."""
        return text_of(await self.run(code, context), self.max_output)


class SyncCode(_Code):
    """As Code, with a session whose methods block."""

    def __init__(self, session: Optional[SyncSession], executor: ExecutorLike, timeout: Optional[float], max_output: int,
                 options: Mapping[str, Any]) -> None:
        self.session, self.close = open_sync(session, executor, options)
        super().__init__(self.session, timeout, max_output)

    def run(self, code: str) -> ExecutionResult:
        """One cell."""
        self.check_turn()
        with self._turns.blocking():
            return drive(lambda cell: self.session.run(cell, self.timeout), self._steps(code))

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
        opened = core
        self.check_turn()
        async with self._turns:
            return text_of(await drive_async(lambda cell: run_async(opened, cell, self.timeout), self._steps(code)), self.max_output)


#: The type of the exception that ends a cell with an answer.
_FINAL = "_WorkcellFinalAnswer"


def answering(name: str, body: str) -> str:
    """Code of a function that ends the cell with an answer, as frameworks' own executors do; body: lines that set ``_workcell_answer``."""
    return "class %s(BaseException):\n    pass\ndef %s(*args, **kwargs):\n    global _workcell_answer\n%s\n    raise %s(\"the answer was given\")\n" % (
        _FINAL, name, body, _FINAL)


def is_answer(result: ExecutionResult) -> bool:
    """Whether the cell ended with an answer, which is in ``_workcell_answer``."""
    return result.error_info is not None and result.error_info.type == _FINAL
