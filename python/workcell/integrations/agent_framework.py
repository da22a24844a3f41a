"""For the Microsoft Agent Framework: Python code that calls the agent's other tools, as a tool or as a CodeAct provider.

::

    from agent_framework import Agent
    from workcell.integrations.agent_framework import WorkcellExecuteCodeTool

    async with WorkcellExecuteCodeTool(tools=[...]) as code:
        agent = Agent(client=client, tools=[code.tool])

    async with WorkcellCodeActProvider(tools=[...]) as codeact:
        agent = Agent(client=client, context_providers=[codeact])
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Union, cast

from agent_framework import ContextProvider, FunctionTool
from agent_framework import tool as make_tool

from .._session import ExecutorLike
from ..prompt import MAX_ANSWER
from ..session import Session
from ._code import Code, run_code_about
from ._common import AsyncClosing


class WorkcellExecuteCodeTool(AsyncClosing):
    """``tool`` is ``execute_code``: Python code in a Workcell session; the given tools are functions of that code, and run in this program.

    Args:
        tools: tools and functions that the code can call by their names. Those with ``approval_mode="always_require"`` are refused: the
            framework would not see the calls; use ``policy`` of the session.
        session: a session of yours, which stays open; None: a new one, which :meth:`close` ends.
        executor: of the new session; None: ``sandbox``, with an empty folder as its workspace.
        approval_mode: of ``execute_code`` itself.
        timeout: seconds of each piece of code; None: the executor's default.
        max_output: characters that the model gets.
        options: of the new session: ``policy``, ``gate``, ``audit``.
    """

    def __init__(self, tools: Sequence[Union[FunctionTool, Callable[..., Any]]] = (), session: Optional[Session] = None, *,
                 executor: ExecutorLike = None, approval_mode: Any = "never_require", timeout: Optional[float] = None,
                 max_output: int = MAX_ANSWER, **options: Any) -> None:
        found = [each if isinstance(each, FunctionTool) else make_tool(each) for each in tools]
        for each in found:
            if each.approval_mode == "always_require":
                raise ValueError("the tool %s needs an approval, which calls from code would not ask for; give it to the agent itself, or let a "
                                 "policy of the session decide" % each.name)
        self._code = Code(session, executor, timeout, max_output, options)
        self.session, self._close = self._code.session, self._code.close
        for each in found:
            self._code.tools.add(each.name, each.description, each.parameters(), _caller(each))

        async def execute_code(code: str) -> str:
            return await self._code.text(code)

        self.tool = FunctionTool(name="execute_code", description=run_code_about(self._code.tools.describe()), approval_mode=approval_mode, func=execute_code)


#: As code of the framework's other providers calls tools.
_CALL_TOOL = '''
def call_tool(name, /, **arguments):
    """Calls a tool by its name."""
    found = %r.get(name)
    if found is None:
        raise LookupError("there is no tool %%r" %% (name,))
    return globals()[found](**arguments)
'''


class WorkcellCodeActProvider(AsyncClosing, ContextProvider):
    """Gives an agent ``execute_code`` before each run, with the surface of the framework's other CodeAct providers.

    Code calls tools as functions or with ``call_tool("name", argument=...)``. The tools run in this program; the agent does not get them
    itself. If one of them needs an approval, ``execute_code`` does, unless ``approval_mode`` says so anyway.

    Args:
        tools: tools and functions that the code can call.
        session: a session of yours, which stays open; None: a new one, which :meth:`close` ends.
        executor: of the new session; None: ``sandbox``, with an empty folder as its workspace.
        approval_mode: of ``execute_code``.
        source_id: of the provider.
        timeout: seconds of each piece of code; None: the executor's default.
        max_output: characters that the model gets.
        options: of the new session: ``policy``, ``gate``, ``audit``, ``llm``.
    """

    INSTRUCTIONS = ("Use execute_code to combine tools, loops and data in one step instead of calling tools one by one. Variables, imports and "
                    "functions stay between calls.")

    def __init__(self, tools: Sequence[Union[FunctionTool, Callable[..., Any]]] = (), session: Optional[Session] = None, *,
                 executor: ExecutorLike = None, approval_mode: Any = "never_require", source_id: str = "workcell_codeact",
                 timeout: Optional[float] = None, max_output: int = MAX_ANSWER, **options: Any) -> None:
        super().__init__(source_id)
        self._code = Code(session, executor, timeout, max_output, options)
        self.session, self._close, self.approval_mode = self._code.session, self._code.close, approval_mode
        self._tools: Dict[str, FunctionTool] = {}
        self.add_tools(tools)

    def add_tools(self, tools: Union[FunctionTool, Callable[..., Any], Sequence[Union[FunctionTool, Callable[..., Any]]]]) -> None:
        """Adds tools for the next run; one of the same name is replaced."""
        given: Any = tools if isinstance(tools, (list, tuple)) else [tools]
        for each in given:
            found: FunctionTool = each if isinstance(each, FunctionTool) else make_tool(cast(Callable[..., Any], each))
            self._code.tools.add(found.name, found.description, found.parameters(), _caller(found), replace=found.name in self._tools)
            self._tools[found.name] = found
        self._name_tools()

    def get_tools(self) -> List[FunctionTool]:
        """The tools that code can call."""
        return list(self._tools.values())

    def remove_tool(self, name: str) -> None:
        """Code cannot call this tool any more; KeyError: it is not there."""
        del self._tools[name]
        self._code.tools.drop([name])
        self._name_tools()

    def clear_tools(self) -> None:
        """Code cannot call any tool."""
        for name in list(self._tools):
            self.remove_tool(name)

    def _name_tools(self) -> None:
        self._code.tools.more = _CALL_TOOL % ({name: self._code.tools.written(name) for name in sorted(self._tools)},)
        self._code.tools.changed = True

    async def before_run(self, *, agent: Any, session: Any, context: Any, state: Dict[str, Any]) -> None:
        """Adds ``execute_code`` to a run."""
        asks = any(each.approval_mode == "always_require" for each in self._tools.values())

        async def execute_code(code: str) -> str:
            return await self._code.text(code)

        made = FunctionTool(name="execute_code", description=run_code_about(self._code.tools.describe()), func=execute_code,
                            approval_mode="always_require" if asks else self.approval_mode)
        context.extend_instructions(self.source_id, self.INSTRUCTIONS)
        context.extend_tools(self.source_id, [made])


def _caller(tool: FunctionTool) -> Callable[..., Any]:
    async def call(**given: Any) -> Any:
        return await tool.invoke(arguments=given, skip_parsing=True)

    return call


__all__ = ["WorkcellCodeActProvider", "WorkcellExecuteCodeTool"]
