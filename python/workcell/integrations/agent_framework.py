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

import contextlib
from typing import Any, AsyncIterator, Callable, Dict, List, Optional, Sequence, Tuple, Union, cast

from agent_framework import ContextProvider, FunctionTool
from agent_framework import tool as make_tool

from .._session import ExecutorLike
from ..prompt import MAX_ANSWER
from ..session import Session
from ._code import Code, run_code_about
from ._common import AsyncClosing, open_async
from ._conversations import Conversations


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


class _Conversation(Code):
    """The session of a conversation, and the provider's tools that its code has."""

    has: Optional[Dict[str, FunctionTool]] = None


class WorkcellCodeActProvider(AsyncClosing, ContextProvider):
    """Gives an agent ``execute_code`` before each run, with the surface of the framework's other CodeAct providers.

    Each session of the agent (``agent.create_session()``) has a Workcell session of its own, so that users do not see each other's variables; a run
    without one has a fresh one. Code calls tools as functions or with ``call_tool("name", argument=...)``. The tools run in this program; the agent
    does not get them itself. If one of them needs an approval, ``execute_code`` does, unless ``approval_mode`` says so anyway.

    Args:
        tools: tools and functions that the code can call.
        session: a Workcell session of yours, for all conversations, which stays open; None: new ones, which :meth:`close` ends.
        executor: of the new sessions; None: ``sandbox``, with an empty folder as the workspace of each.
        approval_mode: of ``execute_code``.
        source_id: of the provider.
        timeout: seconds of each piece of code; None: the executor's default.
        max_output: characters that the model gets.
        options: of the new sessions: ``policy``, ``gate``, ``audit``, ``llm``.
    """

    INSTRUCTIONS = ("Use execute_code to combine tools, loops and data in one step instead of calling tools one by one. Variables, imports and "
                    "functions stay between calls.")

    def __init__(self, tools: Sequence[Union[FunctionTool, Callable[..., Any]]] = (), session: Optional[Session] = None, *,
                 executor: ExecutorLike = None, approval_mode: Any = "never_require", source_id: str = "workcell_codeact",
                 timeout: Optional[float] = None, max_output: int = MAX_ANSWER, **options: Any) -> None:
        super().__init__(source_id)
        self.session, self.approval_mode = session, approval_mode

        def make() -> Tuple[_Conversation, Callable[[], Any]]:
            made = _Conversation(session, executor, timeout, max_output, options)
            return made, made.close

        if session is not None or isinstance(executor, str):
            open_async(session, executor, options)  # a wrong option must fail here
        self._conversations = Conversations(make)
        self._tools: Dict[str, FunctionTool] = {}  # never changed: a run keeps the one that it began with
        self.add_tools(tools)

    def add_tools(self, tools: Union[FunctionTool, Callable[..., Any], Sequence[Union[FunctionTool, Callable[..., Any]]]]) -> None:
        """Adds tools for the next run; one of the same name is replaced."""
        given: Any = tools if isinstance(tools, (list, tuple)) else [tools]
        for each in given:
            found: FunctionTool = each if isinstance(each, FunctionTool) else make_tool(cast(Callable[..., Any], each))
            self._tools = {**self._tools, found.name: found}

    def get_tools(self) -> List[FunctionTool]:
        """The tools that code can call."""
        return list(self._tools.values())

    def remove_tool(self, name: str) -> None:
        """Code of the next run cannot call this tool any more; KeyError: it is not there."""
        left = dict(self._tools)
        del left[name]
        self._tools = left

    def clear_tools(self) -> None:
        """Code of the next run cannot call any tool."""
        self._tools = {}

    @contextlib.asynccontextmanager
    async def _conversation(self, session: Any, tools: Dict[str, FunctionTool]) -> AsyncIterator[Code]:
        async with self._conversations.of_async(None if self.session is not None else session.session_id) as made:
            if made.has is not tools:
                made.tools.drop([name for name in made.tools.names() if name not in tools])
                for each in tools.values():
                    made.tools.add(each.name, each.description, each.parameters(), _of_the_run(made, each.name), replace=True)
                made.tools.more = _CALL_TOOL % ({name: made.tools.written(name) for name in sorted(tools)},)
                made.tools.changed, made.has = True, tools
            yield made

    async def before_run(self, *, agent: Any, session: Any, context: Any, state: Dict[str, Any]) -> None:
        """Adds ``execute_code`` to a run."""
        tools = self._tools
        asks = any(each.approval_mode == "always_require" for each in tools.values())

        async def execute_code(code: str) -> str:
            async with self._conversation(session, tools) as made:
                return await made.text(code, tools)

        async with self._conversation(session, tools) as made:
            about = run_code_about(made.tools.describe())
        context.extend_instructions(self.source_id, self.INSTRUCTIONS)
        context.extend_tools(self.source_id, [FunctionTool(name="execute_code", description=about, func=execute_code,
                                                           approval_mode="always_require" if asks else self.approval_mode)])

    async def _close(self) -> None:
        for close in self._conversations.take_all():
            await close()


def _of_the_run(code: Code, name: str) -> Callable[..., Any]:
    """A tool that was added meanwhile may be one that needs an approval, which this run did not ask for."""
    async def call(**given: Any) -> Any:
        tool = code.need_context().get(name)
        if tool is None:
            raise LookupError("the agent has no such tool any more")
        return await _caller(tool)(**given)

    return call


def _caller(tool: FunctionTool) -> Callable[..., Any]:
    async def call(**given: Any) -> Any:
        return await tool.invoke(arguments=given, skip_parsing=True)

    return call


__all__ = ["WorkcellCodeActProvider", "WorkcellExecuteCodeTool"]
