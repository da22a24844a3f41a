"""DSPy's ``CodeInterpreter`` on a Workcell session, for ``dspy.RLM`` and others that run code.

::

    import dspy
    from workcell.integrations.dspy import WorkcellInterpreter

    rlm = dspy.RLM("context, query -> answer", interpreter_factory=WorkcellInterpreter)
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional

from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError, FinalOutput

from .._session import ExecutorLike
from ..errors import WorkcellError
from ..prompt import MAX_ANSWER
from ..sync import Session
from ..tools.schema import doc_parts, parameters_of
from ._code import SyncCode, answering, is_answer
from ._common import Closing, Here, error_of, executor_for, output_of, value_of

_SUBMIT = '''
    names = %r
    if names is None:
        if len(args) != 1 or kwargs:
            raise TypeError("SUBMIT requires one output value")
        values = {"output": args[0]}
    else:
        if args and kwargs:
            raise TypeError("SUBMIT accepts positional or keyword values, not both")
        values = dict(zip(names, args)) if args else dict(kwargs)
        if set(values) != set(names) or len(args) > len(names):
            raise TypeError("SUBMIT needs the fields %%s" %% ", ".join(names))
    _workcell_answer = values'''


class WorkcellInterpreter(Here):
    """A ``CodeInterpreter``: one Workcell session, whose kernel is forked from a warm interpreter, with numpy and everything else that is installed.

    Tools are functions of this program; the code calls them through the session's gate. The class is itself a factory for
    ``dspy.RLM(interpreter_factory=...)``; with options: ``functools.partial(WorkcellInterpreter, timeout=30)``.

    Args:
        tools: functions of this program, by their names in the code.
        output_fields: the fields of ``SUBMIT(...)``, as ``dspy.RLM`` sets them.
        session: a session of yours, which stays open; None: a new one, which :meth:`shutdown` ends.
        executor: of the new session; None: ``sandbox``, with an empty folder as its workspace.
        timeout: seconds of each piece of code, calls of tools included; None: the executor's default.
        max_output: characters of output that the model gets.
        options: of the new session: ``policy``, ``gate``, ``audit``.
    """

    execution_instructions = (
        "Code runs as Python in a persistent session: variables, imports and functions stay. All installed packages can be imported. "
        "Host tools and SUBMIT are global functions.")

    def __init__(self, tools: Optional[Mapping[str, Callable[..., Any]]] = None, output_fields: Optional[List[Dict[str, Any]]] = None, *,
                 session: Optional[Session] = None, executor: ExecutorLike = None, timeout: Optional[float] = None,
                 max_output: int = MAX_ANSWER, **options: Any) -> None:
        self.tools: Dict[str, Callable[..., Any]] = dict(tools or {})
        self.output_fields = output_fields
        self.timeout, self.max_output = timeout, max_output
        self._make: Callable[[], SyncCode] = lambda: SyncCode(session, executor, timeout, max_output, options)
        self._code: Optional[SyncCode] = None
        self._ends: Callable[[], None] = lambda: None  # a session that was forked for this interpreter
        self._lock = threading.Lock()
        self._defined: Any = None
        self._ended = False

    # -- the protocol

    def start(self) -> None:
        """Opens the session; may be called more than once."""
        self._open()

    def execute(self, code: str, variables: Optional[Dict[str, Any]] = None) -> Any:
        """Runs code; the value of its last expression, else its output, or FinalOutput."""
        if self._code is not None:
            try:
                self._code.check_turn()
            except WorkcellError as error:
                raise CodeInterpreterError(str(error)) from None
        with self._lock:
            made = self._open()
            made.timeout, limit = self.timeout, self.max_output
            try:
                self._define(made)
                self._assign(made, variables or {})
                result = made.run(code)
                if is_answer(result):
                    # As JSON, which is what DSPy takes: whatever else the code made stays there.
                    answer = made.run("__import__('json').dumps(_workcell_answer, default=repr)")
                    if answer.error is not None or type(answer.value) is not str:
                        raise CodeExecutionError("SUBMIT: " + (error_of(answer, limit) if answer.error else "the answer is too large"))
                    return FinalOutput(_answer_of(answer.value))
            except WorkcellError as error:
                self.shutdown()
                raise CodeInterpreterError(str(error)) from error
            info = result.error_info
            if info is None:
                value, output = value_of(result), output_of(result, limit)
                return value if value is not None else output or None
            if info.code == "kernel_died" or result.state == "lost":
                self.shutdown()
                raise CodeInterpreterError(error_of(result, limit))
            if info.type in ("SyntaxError", "IndentationError", "TabError"):
                raise SyntaxError(error_of(result, limit))
            raise CodeExecutionError(error_of(result, limit))

    def shutdown(self) -> None:
        """Ends the session, unless it was given."""
        self._ended = True
        if self._code is not None:
            self._code.close()
        self._ends()

    def __enter__(self) -> "WorkcellInterpreter":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    # --

    def _open(self) -> SyncCode:
        if self._ended:
            raise CodeInterpreterError("the interpreter has been shut down")
        if self._code is None:
            try:
                made = self._make()
                made.session.start()
            except WorkcellError as error:
                raise CodeInterpreterError(str(error)) from error
            self._code = made
        return self._code

    def _define(self, code: SyncCode) -> None:
        """Tools and SUBMIT where they are not the ones of the last time: RLM adds some before each use."""
        names = None if self.output_fields is None else [str(field["name"]) for field in self.output_fields]
        wanted = dict(self.tools), names
        if self._defined == wanted:
            return
        code.tools.drop([name for name in code.tools.names() if name not in self.tools])
        for name, fn in self.tools.items():
            try:
                schema = parameters_of(fn)
            except (TypeError, ValueError):
                schema = {"properties": {}, "additionalProperties": True}
            code.tools.add(name, doc_parts(fn.__doc__)[0], schema, fn, replace=True, exact=True)
        code.tools.more, code.tools.changed = answering("SUBMIT", _SUBMIT % (names,)), True
        self._defined = wanted

    def _assign(self, code: SyncCode, variables: Mapping[str, Any]) -> None:
        taken = [name for name in variables if name in self.tools or name in ("SUBMIT", "__builtins__")]
        if taken:
            raise CodeInterpreterError("variables cannot replace tools: %s" % ", ".join(taken))
        try:
            code.assign(variables)
        except (TypeError, ValueError) as error:
            raise CodeInterpreterError(str(error)) from None


def _answer_of(text: str) -> Dict[str, Any]:
    """Code of the session may have replaced everything that made this text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CodeExecutionError("SUBMIT: the answer is not a JSON object")
    return found


class WorkcellInterpreters(Closing):
    """A factory whose interpreters are forks of one prepared session: each has its imports and data at once, and shares their memory.

    ::

        with WorkcellInterpreters("import numpy as np") as interpreters:
            rlm = dspy.RLM("context, query -> answer", interpreter_factory=interpreters)

    Modules that the code of an RLM makes (``dspy.RLM`` inside of it) get interpreters from the same factory. Files are those of the prepared
    session, copied when they change.

    Args:
        code: what the session runs before the first fork.
        executor: None: ``sandbox``, with an empty folder as its workspace; it must be one that can fork: ``sandbox``, ``subprocess``.
        timeout, max_output: of each interpreter.
        options: of the session: ``policy``, ``gate``, ``audit``, ``llm``. All forks share the budget of ``llm``.
    """

    def __init__(self, code: str = "", *, executor: ExecutorLike = None, timeout: Optional[float] = None, max_output: int = MAX_ANSWER,
                 **options: Any) -> None:
        if executor is None or executor == "sandbox":
            executor, self._cleanup = executor_for(None, "cow")
        else:
            executor, self._cleanup = executor_for(executor)
        self._timeout, self._max_output = timeout, max_output
        self._base = Session(None, executor, **options)
        self._lock = threading.Lock()
        self._code: Optional[str] = code

    def __call__(self) -> WorkcellInterpreter:
        """A new interpreter, which :meth:`WorkcellInterpreter.shutdown` ends."""
        with self._lock:
            try:
                self._base.start()
                if self._code is not None:
                    self._base.run(self._code, self._timeout).raise_for_error()
                    self._code = None
                session = self._base.fork()
            except WorkcellError as error:
                raise CodeInterpreterError(str(error)) from error
        made = WorkcellInterpreter(session=session, timeout=self._timeout, max_output=self._max_output)
        made._ends = session.close
        return made

    def _close(self) -> None:  # forks end with their interpreters
        self._base.close()
        self._cleanup()


__all__ = ["WorkcellInterpreter", "WorkcellInterpreters"]
