"""A tool for the Microsoft Agent Framework: Python code that calls the agent's other tools.

::

    from agent_framework import Agent
    from workcell.integrations.agent_framework import WorkcellExecuteCodeTool

    async with WorkcellExecuteCodeTool(tools=[...]) as code:
        agent = Agent(client=client, tools=[code.tool])
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Union

from agent_framework import FunctionTool
from agent_framework import tool as make_tool

from .._session import ExecutorLike
from ..prompt import MAX_ANSWER
from ..session import Session
from ._common import Code, run_code_about


class WorkcellExecuteCodeTool:
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
        self.session = self._code.session
        for each in found:
            self._code.tools.add(each.name, each.description, each.parameters(), _caller(each))

        async def execute_code(code: str) -> str:
            return await self._code.text(code)

        self.tool = FunctionTool(name="execute_code", description=run_code_about(self._code.tools), approval_mode=approval_mode, func=execute_code)

    async def close(self) -> None:
        """Ends the session, unless it was given."""
        await self._code.close()

    async def __aenter__(self) -> "WorkcellExecuteCodeTool":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _caller(tool: FunctionTool) -> Callable[..., Any]:
    async def call(**given: Any) -> Any:
        return await tool.invoke(arguments=given, skip_parsing=True)

    return call


__all__ = ["WorkcellExecuteCodeTool"]
