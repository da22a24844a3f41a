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
from typing import Any, Callable, Dict, List, Mapping, Optional

from smolagents import FinalAnswerTool, Tool
from smolagents.local_python_executor import CodeOutput, InterpreterError, PythonExecutor
from smolagents.tools import validate_tool_arguments

from .._session import ExecutorLike
from ..prompt import MAX_ANSWER
from ..sync import Session
from ._common import PlainTools, assignments, error_of, open_sync, output_of, value_of

_FINAL = "_WorkcellFinalAnswer"
# The agent's code ends where it gives its answer, as with smolagents' own executors.
_FINAL_ANSWER = '''
_workcell_custom = globals().get("final_answer")
class %s(BaseException):
    pass
def final_answer(*args, **kwargs):
    global _workcell_answer
    _workcell_answer = %s
    raise %s("the final answer was given")
'''


class WorkcellExecutor(PythonExecutor):
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
        self.session, self._close = open_sync(session, executor, options)
        self.timeout, self.max_output = timeout, max_output
        self._tools = PlainTools(self.session)
        self._variables: Dict[str, Any] = {}
        self._answers: List[Any] = []  # of a final_answer tool of the agent's own
        self._prepared = self._lost = False

    # -- what smolagents calls

    def send_tools(self, tools: Mapping[str, Any]) -> None:
        """Makes the tools, and agents that are managed, functions that the code can call."""
        # The answer of smolagents' own tool is its argument: it does not have to be called here.
        called = {name: tool for name, tool in tools.items() if type(tool) is not FinalAnswerTool}
        self._tools.drop([name for name in self._tools.names() if name not in called])
        for name, tool in called.items():
            fn = functools.partial(_call, tool)
            self._tools.add(name, tool.description, _schema_of(tool), self._keep_answer(fn) if name == "final_answer" else fn)
        self._prepared = False

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Makes variables of the agent's state variables of the code."""
        self._prepare()
        self._assign(variables)
        self._variables.update(variables)

    def __call__(self, code_action: str) -> CodeOutput:
        """Runs one step; raises InterpreterError with what was printed and the traceback."""
        self._prepare()
        self._answers.clear()
        result = self.session.run(code_action, self.timeout)
        if result.error_info is not None and result.error_info.type == _FINAL:
            logs = output_of(result, self.max_output)
            if self._answers:
                return CodeOutput(self._answers[-1], logs, True)
            answer = self.session.run("_workcell_answer", self.timeout)
            if answer.error is not None:  # its repr raised, or it is too large
                raise InterpreterError("the final answer cannot be shown: " + error_of(answer, self.max_output))
            return CodeOutput(value_of(answer), logs, True)
        if result.error is not None:
            if result.state == "lost":
                self._prepared, self._lost = False, True
            raise InterpreterError(error_of(result, self.max_output))
        return CodeOutput(value_of(result), output_of(result, self.max_output), False)

    def cleanup(self) -> None:
        """Ends the session, unless it was given."""
        self._close()

    # --

    def _keep_answer(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def answer(**given: Any) -> None:
            self._answers.append(fn(**given))  # stays here: the code has no use for it

        return answer

    def _prepare(self) -> None:
        """Defines the functions, at the start and after a kernel was lost with everything in it."""
        if self._prepared:
            return
        final = "_workcell_custom(*args, **kwargs)" if "final_answer" in self._tools.names() else "(lambda answer: answer)(*args, **kwargs)"
        self.session.run(self._tools.code() + _FINAL_ANSWER % (_FINAL, final, _FINAL), self.timeout).raise_for_error()
        if self._lost:
            self._assign(self._variables)
        self._prepared, self._lost = True, False

    def _assign(self, variables: Mapping[str, Any]) -> None:
        for cell in assignments(variables):
            self.session.run(cell, self.timeout).raise_for_error()


def _call(tool: Any, **given: Any) -> Any:
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


__all__ = ["WorkcellExecutor"]
