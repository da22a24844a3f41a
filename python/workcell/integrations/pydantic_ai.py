"""Code mode for pydantic-ai: one tool that runs Python code, which calls the tools of another toolset.

::

    from pydantic_ai import Agent, FunctionToolset
    from workcell.integrations.pydantic_ai import CodeModeToolset

    agent = Agent(model, toolsets=[CodeModeToolset(FunctionToolset([...]))])
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import copy
from typing import Any, Callable, Dict, NamedTuple, Optional

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
from ._code import Code, describe, run_code_about
from ._common import Here, open_async


class _Arguments(TypedDict):
    code: str


_VALIDATOR: Any = TypeAdapter(_Arguments).validator
_SCHEMA = {"type": "object", "properties": {"code": {"type": "string", "description": "Python code"}}, "required": ["code"], "additionalProperties": False}


class _Run(NamedTuple):
    """What calls of a cell belong to."""

    context: RunContext[Any]
    wrapped: AbstractToolset[Any]
    tools: Dict[str, ToolsetTool[Any]]


class _Kept(Here):
    """The session, and how often the toolsets that share it are entered."""

    def __init__(self, make: Callable[[], Code], is_given: bool) -> None:
        self.make, self.is_given = make, is_given
        self.code = make() if is_given else None
        self.entered = 0

    def need(self) -> Code:
        if self.code is None:
            self.code = self.make()
        return self.code


class CodeModeToolset(WrapperToolset[Any]):
    """``run_code`` instead of the tools of a toolset: the code calls them as functions, and they run in this program.

    Tools that need an approval, or that somebody else runs, stay tools of the agent.

    Args:
        wrapped: the toolset whose tools the code can call; None: none.
        session: a session of yours, which stays open; None: a new one for each run, or for as long as the toolset is entered around runs.
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
        self._kept = _Kept(lambda: Code(session, executor, timeout, max_output, options), session is not None)
        self._tools: Dict[str, ToolsetTool[Any]] = {}
        if isinstance(executor, str):
            open_async(None, executor, options)  # a wrong name must fail here

    @property
    def code(self) -> Code:
        """The session that runs the code."""
        return self._kept.need()

    def around(self, wrapped: AbstractToolset[Any], is_own: bool = False) -> "CodeModeToolset":
        """The same for another toolset, in the same session; ``is_own``: in one of its own."""
        made = copy.copy(self)
        made.wrapped, made._tools = wrapped, {}
        if is_own and not self._kept.is_given:
            made._kept = _Kept(self._kept.make, False)
        return made

    async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        """Runs do not see each other's variables, unless the toolset is entered around them."""
        return self.around(await self.wrapped.for_run(ctx), not self._kept.entered)

    async def for_run_step(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        """The same session in all steps."""
        wrapped = await self.wrapped.for_run_step(ctx)
        return self if wrapped is self.wrapped else self.around(wrapped)

    def visit_and_replace(self, visitor: Callable[[AbstractToolset[Any]], AbstractToolset[Any]]) -> AbstractToolset[Any]:
        """The same around what the visitor makes of the toolset."""
        return self.around(self.wrapped.visit_and_replace(visitor))

    async def __aenter__(self) -> "CodeModeToolset":
        await self.wrapped.__aenter__()
        self._kept.entered += 1
        return self

    async def __aexit__(self, *args: Any) -> Optional[bool]:
        kept = self._kept
        kept.entered -= 1
        if kept.entered == 0 and kept.code is not None and not kept.is_given:
            code, kept.code = kept.code, None
            await code.close()
        return await self.wrapped.__aexit__(*args)

    async def get_tools(self, ctx: RunContext[Any]) -> Dict[str, ToolsetTool[Any]]:
        """``run_code``, and the tools that code may not call."""
        inner = await self.wrapped.get_tools(ctx)
        self._tools = {name: tool for name, tool in inner.items() if tool.tool_def.kind == "function"}
        found = {name: tool for name, tool in inner.items() if name not in self._tools}
        tools, shown = self.code.tools, []
        for name, tool in self._tools.items():
            about, schema = tool.tool_def.description or "", tool.tool_def.parameters_json_schema
            tools.add(name, about, schema, self._caller(name), replace=True)
            shown.append((tools.written(name), about, schema))
        definition = ToolDefinition(name=self.name, description=run_code_about(describe(shown)), parameters_json_schema=_SCHEMA, sequential=True)
        found[self.name] = ToolsetTool(toolset=self, tool_def=definition, max_retries=self.max_retries, args_validator=_VALIDATOR)
        return found

    async def call_tool(self, name: str, tool_args: Dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
        """Runs the code, or calls a tool that is not for code."""
        if name != self.name:
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        return await self.code.text(tool_args["code"], _Run(ctx, self.wrapped, self._tools))

    def _caller(self, name: str) -> Callable[..., Any]:
        code = self.code

        async def call(**given: Any) -> Any:
            run: _Run = code.need_context()
            tool = run.tools.get(name)
            if tool is None:  # another run has it
                raise LookupError("the agent has no such tool")
            try:
                return await run.wrapped.call_tool(name, tool.args_validator.validate_python(given), run.context, tool)
            except ModelRetry as error:
                raise ValueError(error.message) from None

        return call


class CodeMode(AbstractCapability[Any]):
    """The same as a capability: the agent's own tools become functions of the code, ``Agent(model, tools=[...], capabilities=[CodeMode()])``.

    Args:
        options: as of :class:`CodeModeToolset`.
    """

    def __init__(self, session: Optional[Session] = None, **options: Any) -> None:
        self._mode = CodeModeToolset(None, session, **options)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        """``run_code`` in front of the agent's tools."""
        return self._mode.around(toolset, is_own=True)

    def get_instructions(self) -> str:
        """For the model."""
        return ("Use run_code to combine functions, loops and data in one step. Its variables stay between calls; only what the code prints, and the "
                "value of its last expression, is shown to you.")


__all__ = ["CodeMode", "CodeModeToolset"]
