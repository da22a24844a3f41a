"""Code execution for LlamaIndex' ``CodeActAgent``.

::

    from workcell.integrations.llama_index import WorkcellCode

    code = WorkcellCode(tools)
    agent = CodeActAgent(code_execute_fn=code.execute, tools=tools, llm=llm)
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence, Union

from llama_index.core.tools import AsyncBaseTool, BaseTool, FunctionTool, adapt_to_async_tool

from .._session import ExecutorLike
from ..prompt import MAX_ANSWER
from ..session import Session
from ._code import Code
from ._common import AsyncClosing, text_of


class WorkcellCode(AsyncClosing):
    """Runs the code of agents in a Workcell session; the agent's tools stay functions of this program.

    Args:
        tools: functions and tools that the code can call by their names.
        session: a session of yours, which stays open; None: a new one, which :meth:`close` ends.
        executor: of the new session; None: ``sandbox``, with an empty folder as its workspace.
        timeout: seconds of each piece of code; None: the executor's default.
        max_output: characters that the model gets.
        options: of the new session: ``policy``, ``gate``, ``audit``.
    """

    def __init__(self, tools: Sequence[Union[BaseTool, Callable[..., Any]]] = (), session: Optional[Session] = None, *,
                 executor: ExecutorLike = None, timeout: Optional[float] = None, max_output: int = MAX_ANSWER, **options: Any) -> None:
        self._code = Code(session, executor, timeout, max_output, options)
        self.session, self._close = self._code.session, self._code.close
        for each in tools:
            tool = adapt_to_async_tool(each if isinstance(each, BaseTool) else FunctionTool.from_defaults(each))
            about = tool.metadata
            self._code.tools.add(about.get_name(), about.description or "", about.get_parameters_dict(), _caller(tool), exact=True)

        async def execute(code: str) -> Dict[str, Any]:
            """Runs Python code and returns what it printed, the value of its last expression, or its error. Variables persist."""
            result = await self._code.run(code)
            return {"success": result.error is None, "output": text_of(result, max_output)}

        self.execute = execute


def _caller(tool: AsyncBaseTool) -> Callable[..., Any]:
    schema: Any = tool.metadata.fn_schema

    async def call(**given: Any) -> Any:
        if schema is not None:  # nested values too; the session has checked the outermost
            given = {name: value for name, value in schema.model_validate(given) if name in given}
        output = await tool.acall(**given)
        if output.is_error:
            raise output.exception or RuntimeError(output.content)
        return output.raw_output

    return call


__all__ = ["WorkcellCode"]
