"""Code mode for pydantic-ai: one tool that runs Python code, which calls the tools of another toolset.

::

    from pydantic_ai import Agent, FunctionToolset
    from workcell.integrations.pydantic_ai import CodeModeToolset

    agent = Agent(model, toolsets=[CodeModeToolset(FunctionToolset([...]))])
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from pydantic import TypeAdapter
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, WrapperToolset
from pydantic_ai.toolsets.abstract import ToolsetTool
from typing_extensions import TypedDict

from .._session import ExecutorLike
from ..prompt import MAX_ANSWER
from ..session import Session
from ._code import Code, run_code_about
from ._common import executor_for


class _Arguments(TypedDict):
    code: str


_VALIDATOR: Any = TypeAdapter(_Arguments).validator
_SCHEMA = {"type": "object", "properties": {"code": {"type": "string", "description": "Python code"}}, "required": ["code"], "additionalProperties": False}


class CodeModeToolset(WrapperToolset[Any]):
    """``run_code`` instead of the tools of a toolset: the code calls them as functions, and they run in this program.

    Tools that need an approval, or that somebody else runs, stay tools of the agent.

    Args:
        wrapped: the toolset whose tools the code can call; None: none.
        session: a session of yours, which stays open; None: a new one for as long as the agent runs.
        executor: of the new session; None: ``sandbox``, with an empty folder as its workspace.
        name: of the tool.
        timeout: seconds of each piece of code; None: the executor's default.
        max_output: characters that the model gets.
        max_retries: of code that raises.
        options: of the new session: ``policy``, ``gate``, ``audit``.
    """

    def __init__(self, wrapped: Optional[AbstractToolset[Any]] = None, session: Optional[Session] = None, *, executor: ExecutorLike = None,
                 name: str = "run_code", timeout: Optional[float] = None, max_output: int = MAX_ANSWER, max_retries: int = 3,
                 **options: Any) -> None:
        super().__init__(wrapped if wrapped is not None else FunctionToolset())
        self.name, self.max_retries = name, max_retries
        self._make: Callable[[], Code] = lambda: Code(session, executor, timeout, max_output, options)
        self._code: Optional[Code] = None
        self._entered = 0
        if session is not None or isinstance(executor, str):
            self._code = self._make()  # a wrong option must fail here

    @property
    def code(self) -> Code:
        """The session that runs the code."""
        if self._code is None:
            self._code = self._make()
        return self._code

    async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        """The toolset keeps its session in all runs."""
        return self

    async def for_run_step(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        """The toolset keeps its session in all steps."""
        return self

    async def __aenter__(self) -> "CodeModeToolset":
        self._entered += 1
        await self.wrapped.__aenter__()
        return self

    async def __aexit__(self, *args: Any) -> Optional[bool]:
        self._entered -= 1
        if self._entered == 0 and self._code is not None:
            code, self._code = self._code, None
            await code.close()
        return await self.wrapped.__aexit__(*args)

    async def get_tools(self, ctx: RunContext[Any]) -> Dict[str, ToolsetTool[Any]]:
        """``run_code``, and the tools that code may not call."""
        found: Dict[str, ToolsetTool[Any]] = {}
        tools = self.code.tools
        inner = await self.wrapped.get_tools(ctx)
        callable_ones = {name: tool for name, tool in inner.items() if tool.tool_def.kind == "function"}
        tools.drop([name for name in tools.names() if name not in callable_ones])
        for name, tool in inner.items():
            if name not in callable_ones:
                found[name] = tool
                continue
            tools.add(name, tool.tool_def.description or "", tool.tool_def.parameters_json_schema, self._caller(name, tool), replace=True)
        definition = ToolDefinition(name=self.name, description=run_code_about(tools.describe()), parameters_json_schema=_SCHEMA, sequential=True)
        found[self.name] = ToolsetTool(toolset=self, tool_def=definition, max_retries=self.max_retries, args_validator=_VALIDATOR)
        return found

    async def call_tool(self, name: str, tool_args: Dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
        """Runs the code, or calls a tool that is not for code."""
        if name != self.name:
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        return await self.code.text(tool_args["code"], ctx)

    def _caller(self, name: str, tool: ToolsetTool[Any]) -> Callable[..., Any]:
        async def call(**given: Any) -> Any:
            context = self.code.need_context()
            try:
                arguments = tool.args_validator.validate_python(given)
                return await self.wrapped.call_tool(name, arguments, context, tool)
            except ModelRetry as error:
                raise ValueError(error.message) from None

        return call


class CodeMode(AbstractCapability[Any]):
    """The same as a capability: the agent's own tools become functions of the code, ``Agent(model, tools=[...], capabilities=[CodeMode()])``.

    Args:
        options: as of :class:`CodeModeToolset`.
    """

    def __init__(self, session: Optional[Session] = None, **options: Any) -> None:
        self._make: Callable[[AbstractToolset[Any]], CodeModeToolset] = lambda toolset: CodeModeToolset(toolset, session, **options)
        if isinstance(options.get("executor"), str):
            executor_for(options["executor"])[1]()  # a wrong name must fail here

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        """``run_code`` in front of the agent's tools."""
        return self._make(toolset)

    def get_instructions(self) -> str:
        """For the model."""
        return ("Use run_code to combine functions, loops and data in one step. Its variables stay between calls; only what the code prints, and the "
                "value of its last expression, is shown to you.")


__all__ = ["CodeMode", "CodeModeToolset"]
