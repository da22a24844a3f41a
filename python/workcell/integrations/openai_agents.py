"""A tool for the OpenAI Agents SDK: Python code that calls the agent's other tools.

::

    from agents import Agent, Runner
    from workcell.integrations.openai_agents import WorkcellCodeTool

    async with WorkcellCodeTool(tools=[...]) as code:
        agent = Agent(name="analyst", tools=[code.tool])
        result = await Runner.run(agent, "...")
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
from typing import Any, Callable, Optional, Sequence

from agents import FunctionTool
from agents.tool_context import ToolContext

from .._session import ExecutorLike
from ..prompt import MAX_ANSWER
from ..session import Session
from ._code import Code, run_code_about
from ._common import AsyncClosing

_SCHEMA = {"type": "object", "properties": {"code": {"type": "string", "description": "Python code"}}, "required": ["code"], "additionalProperties": False}


class WorkcellCodeTool(AsyncClosing):
    """``tool`` runs Python code in a Workcell session; the given tools are functions of that code, and run in this program.

    Args:
        tools: function tools that the code can call by their names. Tools with ``needs_approval`` or guardrails are refused: the SDK would not
            see the calls; use ``policy`` of the session for approvals.
        session: a session of yours, which stays open; None: a new one, which :meth:`close` ends.
        executor: of the new session; None: ``sandbox``, with an empty folder as its workspace.
        name: of the tool.
        timeout: seconds of each piece of code; None: the executor's default.
        max_output: characters that the model gets.
        options: of the new session: ``policy``, ``gate``, ``audit``.
    """

    def __init__(self, tools: Sequence[FunctionTool] = (), session: Optional[Session] = None, *, executor: ExecutorLike = None,
                 name: str = "run_code", timeout: Optional[float] = None, max_output: int = MAX_ANSWER, **options: Any) -> None:
        for each in tools:
            guarded = [what for what in ("needs_approval", "tool_input_guardrails", "tool_output_guardrails") if getattr(each, what, None)]
            if guarded:
                raise ValueError("the tool %s has %s, which calls from code would not pass; give it to the agent itself, or let a policy of the "
                                 "session decide" % (each.name, guarded[0]))
        self._code = Code(session, executor, timeout, max_output, options)
        self.session, self._close = self._code.session, self._code.close
        for each in tools:
            self._code.tools.add(each.name, each.description, each.params_json_schema, self._caller(each))

        async def invoke(context: "ToolContext[Any]", arguments: str) -> str:
            try:
                code = json.loads(arguments)["code"]
                if not isinstance(code, str):
                    raise TypeError
            except (ValueError, TypeError, KeyError, RecursionError):
                return "Error: the argument code must be a string"
            return await self._code.text(code, context)

        self.tool = FunctionTool(name, run_code_about(self._code.tools.describe()), _SCHEMA, invoke)

    def _caller(self, tool: FunctionTool) -> Callable[..., Any]:
        async def call(**given: Any) -> Any:
            outer = self._code.need_context()
            arguments = json.dumps(given)
            context: Any = ToolContext(outer.context, outer.usage, tool.name, outer.tool_call_id, arguments, agent=outer.agent,
                                       run_config=outer.run_config)
            return await tool.on_invoke_tool(context, arguments)

        return call


__all__ = ["WorkcellCodeTool"]
