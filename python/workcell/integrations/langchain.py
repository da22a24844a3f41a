"""For LangChain and LangGraph: Python code that calls the agent's other tools, as a tool or as a middleware.

::

    from langchain.agents import create_agent
    from workcell.integrations.langchain import WorkcellCodeTool

    with WorkcellCodeTool(tools=[...]) as code:
        agent = create_agent(model, tools=[code.tool])

    with WorkcellCodeMiddleware(tools=[...]) as code:
        agent = create_agent(model, middleware=[code])
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, Optional, Sequence, Tuple, Union

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.tools import tool as make_tool

from .._session import ExecutorLike
from .._telemetry import within_langchain
from ..prompt import MAX_ANSWER
from ..sync import Session
from ._code import SyncCode, run_code_about
from ._common import Closing, text_of
from ._conversations import Conversations


class WorkcellCodeTool(Closing):
    """``tool`` runs Python code in a Workcell session; the given tools are functions of that code, and run in this program.

    Each thread of LangGraph (``thread_id``) has a session of its own; ``session`` is that of calls without one.

    Args:
        tools: tools and functions that the code can call by their names. A tool that a person must approve does not belong here unless
            ``policy`` asks for it: LangChain's middlewares see the call of ``run_code``, not those that the code makes.
        session: a session of yours, for all threads, which stays open; None: new ones, which :meth:`close` ends.
        executor: of the new sessions; None: ``sandbox``, with an empty folder as the workspace of each.
        name: of the tool.
        timeout: seconds of each piece of code; None: the executor's default.
        max_output: characters that the model gets.
        options: of the new sessions: ``policy``, ``gate``, ``audit``.
    """

    def __init__(self, tools: Sequence[Union[BaseTool, Callable[..., Any]]] = (), session: Optional[Session] = None, *,
                 executor: ExecutorLike = None, name: str = "run_code", timeout: Optional[float] = None, max_output: int = MAX_ANSWER,
                 **options: Any) -> None:
        described = [_described(each if isinstance(each, BaseTool) else make_tool(each)) for each in tools]

        def make() -> Tuple[SyncCode, Callable[[], None]]:
            made = SyncCode(session, executor, timeout, max_output, options)
            for each in described:
                made.tools.add(*each)
            return made, made.close

        base, self._close_base = make()
        self.session = base.session
        self._threads = Conversations(make)

        def of(config: RunnableConfig) -> ContextManager[SyncCode]:
            thread = (config.get("configurable") or {}).get("thread_id")
            return nullcontext(base) if thread is None or session is not None else self._threads.of(thread)

        def run_code(code: str, config: RunnableConfig) -> str:
            with within_langchain(), of(config) as made:
                return text_of(made.run(code), max_output)

        async def run_code_async(code: str, config: RunnableConfig) -> str:
            with within_langchain(), of(config) as made:
                return await made.text_async(code)

        self.tool = StructuredTool.from_function(run_code, run_code_async, name=name, description=run_code_about(base.tools.describe()))

    def _close(self) -> None:
        for close in [*self._threads.take_all(), self._close_base]:
            close()


class WorkcellCodeMiddleware(Closing, AgentMiddleware):
    """Code mode: the agent gets ``run_code``, and its code calls the given tools, which the model does not see as tools of its own.

    Args:
        tools: tools and functions for the code; also names of the agent's own tools with ``hide``.
        hide: names of tools of the agent, or of other middlewares, that the model shall not see; code calls those that are in ``tools``.
        options: as of :class:`WorkcellCodeTool`.
    """

    def __init__(self, tools: Sequence[Union[BaseTool, Callable[..., Any]]] = (), session: Optional[Session] = None, *,
                 hide: Sequence[str] = (), **options: Any) -> None:
        super().__init__()
        self.code = WorkcellCodeTool(tools, session, **options)
        self.session, self.tools, self._close = self.code.session, [self.code.tool], self.code.close
        self._hidden = frozenset(hide)

    INSTRUCTIONS = ("Use run_code to combine functions, loops and data in one step. Its variables stay between calls; only what the code prints, and "
                    "the value of its last expression, is shown to you.")

    def _prepared(self, request: Any) -> Any:
        shown = [each for each in request.tools if (each.get("name") if isinstance(each, dict) else each.name) not in self._hidden]
        before = request.system_message.text + "\n\n" if request.system_message is not None else ""
        return request.override(tools=shown, system_message=SystemMessage(before + self.INSTRUCTIONS))

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """What the model is shown."""
        return handler(self._prepared(request))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """What the model is shown."""
        return await handler(self._prepared(request))


def _described(tool: Any) -> Tuple[str, str, Dict[str, Any], Callable[..., Any]]:
    schema: Any = tool.tool_call_schema
    return tool.name, tool.description, schema if isinstance(schema, dict) else schema.model_json_schema(), _caller(tool)


def _caller(tool: Any) -> Callable[..., Any]:
    async def call(**given: Any) -> Any:
        return await tool.ainvoke(given)  # checks the arguments against the tool's own schema

    return call


__all__ = ["WorkcellCodeMiddleware", "WorkcellCodeTool"]
