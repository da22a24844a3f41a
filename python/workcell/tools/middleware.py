"""Middlewares: functions of the host around every tool call, the first outermost.

::

    async def log_calls(ctx, call_next):
        print(ctx.full_name, ctx.args)
        return await call_next(ctx)

Order of a call: middlewares, policy, approval, the tool, and back out through the middlewares.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Awaitable, Callable, Dict, Optional, Sequence


@dataclass
class ToolCallContext:
    """A tool call before it is made. A middleware may change ``args``."""

    tool_name: str
    callable_name: Optional[str]
    args: Dict[str, Any] = field(default_factory=dict)
    adapter_name: Optional[str] = None
    executor_type: Optional[str] = None
    origin: Optional[str] = None
    request_id: Optional[str] = None
    timeout: Optional[float] = None
    session_id: Optional[str] = None

    @property
    def full_name(self) -> str:
        """``tool.callable``, or the tool alone."""
        return "%s.%s" % (self.tool_name, self.callable_name) if self.callable_name else self.tool_name


CallNext = Callable[[ToolCallContext], Awaitable[Any]]
ToolMiddleware = Callable[[ToolCallContext, CallNext], Awaitable[Any]]


def compose_tool_middlewares(middlewares: Sequence[ToolMiddleware], terminal: CallNext) -> CallNext:
    """Combines them into one function; the first is the outermost."""
    composed = terminal
    for middleware in reversed(middlewares):
        composed = _around(middleware, composed)
    return composed


def _around(middleware: ToolMiddleware, inner: CallNext) -> CallNext:
    async def call(ctx: ToolCallContext) -> Any:
        return await middleware(ctx, inner)

    return call


__all__ = ["ToolCallContext", "ToolMiddleware", "CallNext", "compose_tool_middlewares"]
