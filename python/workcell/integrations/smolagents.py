"""Runs the code of smolagents' ``CodeAgent`` in a Workcell session.

::

    from smolagents import CodeAgent
    from workcell.integrations.smolagents import WorkcellExecutor

    with CodeAgent(tools=[...], model=model, executor=WorkcellExecutor(), additional_authorized_imports=["*"]) as agent:
        agent.run("...")
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import inspect
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from smolagents import FinalAnswerTool, Tool
from smolagents.local_python_executor import CodeOutput, InterpreterError, PythonExecutor
from smolagents.tools import validate_tool_arguments

from .._session import ExecutorLike
from ..prompt import MAX_ANSWER
from ..sync import Session
from ._code import SyncCode, answering, is_answer
from ._common import Here, error_of, output_of, value_of

# The agent's code ends where it gives its answer, as with smolagents' own executors.
_OWN, _GIVEN = "(lambda answer: answer)", "_workcell_custom"


class WorkcellExecutor(Here, PythonExecutor):
    """A ``PythonExecutor`` whose code runs in a Workcell session.

    The agent's tools, and the agents that it manages, stay in this program: the code calls them through the session's gate, so schema,
    policy, approvals and audit apply. The answer is data (numbers, texts, lists, arrays, ...) or the ``repr`` of anything else.

    Args:
        session: a session of yours, which stays open; None: a new one, which :meth:`cleanup` ends.
        executor: of the new session; None: ``sandbox``, with an empty folder as its workspace.
        timeout: seconds of each step; None: the executor's default.
        max_output: characters of output and errors that the model gets.
        options: of the new session, as in ``workcell.sync.Session(...)``: ``policy``, ``gate``, ``audit``, ``tools``.
    """

    def __init__(self, session: Optional[Session] = None, *, executor: ExecutorLike = None, timeout: Optional[float] = None,
                 max_output: int = MAX_ANSWER, **options: Any) -> None:
        self._code = SyncCode(session, executor, timeout, max_output, options)
        self.session, self.timeout, self.max_output = self._code.session, timeout, max_output
        self._answers: List[Any] = []  # of a final_answer tool of the agent's own
        self._lock = threading.Lock()
        self.send_tools({})

    # -- what smolagents calls

    def send_tools(self, tools: Mapping[str, Any]) -> None:
        """Makes the tools, and agents that are managed, functions that the code can call."""
        # The answer of smolagents' own tool is its argument: it does not have to be called here.
        called = {name: tool for name, tool in tools.items() if type(tool) is not FinalAnswerTool}
        plain = self._code.tools
        plain.drop([name for name in plain.names() if name not in called])
        for name, tool in called.items():
            fn = functools.partial(_call, tool)
            plain.add(name, tool.description, _schema_of(tool), self._keep_answer(fn) if name == "final_answer" else fn, replace=True, exact=True)
        custom = "_workcell_custom = final_answer\n" if "final_answer" in called else ""
        plain.more = custom + answering("final_answer", "    _workcell_answer = %s(*args, **kwargs)" % (_GIVEN if custom else _OWN))
        plain.changed = True

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Makes variables of the agent's state variables of the code."""
        self._code.timeout = self.timeout
        self._code.assign(variables)
        self._code.kept.update(variables)

    def __call__(self, code_action: str) -> CodeOutput:
        """Runs one step; raises InterpreterError with what was printed and the traceback."""
        self._code.check_turn()
        with self._lock:  # agents in several threads do not get each other's answers
            return self._step(code_action)

    def _step(self, code_action: str) -> CodeOutput:
        self._answers.clear()
        self._code.timeout, limit = self.timeout, self.max_output
        result = self._code.run(code_action)
        if is_answer(result):
            logs = output_of(result, limit)
            if self._answers:
                return CodeOutput(self._answers[-1], logs, True)
            answer = self._code.run("_workcell_answer")
            if answer.error is not None:  # its repr raised, or it is too large
                raise InterpreterError("the final answer cannot be shown: " + error_of(answer, limit))
            return CodeOutput(value_of(answer), logs, True)
        if result.error is not None:
            raise InterpreterError(error_of(result, limit))
        return CodeOutput(value_of(result), output_of(result, limit), False)

    def cleanup(self) -> None:
        """Ends the session, unless it was given."""
        self._code.close()

    # --

    def _keep_answer(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def answer(**given: Any) -> None:
            self._answers.append(fn(**given))  # stays here: the code has no use for it

        return answer


def create_executor(additional_authorized_imports: Sequence[str] = (), logger: Any = None, **options: Any) -> WorkcellExecutor:
    """What the entry point ``workcell`` of the group ``smolagents.executors`` names: for agents that make their executor themselves, with their imports,
    their logger and ``executor_kwargs``, which are the options of :class:`WorkcellExecutor`. The code can import everything that is installed."""
    return WorkcellExecutor(**options)


def _call(tool: Any, /, **given: Any) -> Any:
    """The session has checked plain types; smolagents checks its own, such as those that may be None."""
    if isinstance(tool, Tool):
        validate_tool_arguments(tool, given)
    return tool(**given)


def _schema_of(tool: Any) -> Dict[str, Any]:
    """The JSON Schema of a tool's arguments. smolagents' own types (``any``, ``image``, ``audio``) stand for any value."""
    optional = _defaults_of(tool)
    properties: Dict[str, Any] = {}
    required: List[str] = []
    for name, given in tool.inputs.items():
        kinds = [given["type"]] if isinstance(given["type"], str) else list(given["type"])
        schema: Dict[str, Any] = {"description": str(given.get("description") or "")}
        if all(kind in ("string", "boolean", "integer", "number", "array", "object", "null") for kind in kinds):
            kinds += ["null"] if given.get("nullable") and "null" not in kinds else []
            schema["type"] = kinds[0] if len(kinds) == 1 else kinds
        properties[name] = schema
        if name not in optional and not given.get("nullable"):
            required.append(name)
    return {"properties": properties, "required": required}


def _defaults_of(tool: Any) -> List[str]:
    if not isinstance(tool, Tool):  # an agent that is managed
        return ["additional_args"]
    return [name for name, parameter in inspect.signature(tool.forward).parameters.items() if parameter.default is not parameter.empty]


__all__ = ["WorkcellExecutor", "create_executor"]
