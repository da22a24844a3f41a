"""A function for AutoGen's agents."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, List, Mapping, Optional

from ..execution.executors import ContainerExecutor
from ..types import ExecutionResult


def _text(result: ExecutionResult) -> str:
    if result.error is not None:
        return (result.text + "\n" if result.text else "") + "Error: " + result.error
    parts = [result.text.rstrip("\n")] if result.text else []
    if result.value is not None:
        parts.append(str(result.value))
    return "\n".join(parts)


def create_run_code_tool(executor: Any = None, session_url: Optional[str] = None, timeout: Optional[float] = 30.0,
                         auth_token: Optional[str] = None) -> Callable[[str], Awaitable[str]]:
    """``run_code(code)`` for an agent: on an executor or a session, or on a session server.

    Exactly one of ``executor`` and ``session_url``.
    """
    if (executor is None) == (session_url is None):
        raise ValueError("Provide exactly one of 'executor' and 'session_url'")
    target: Any = executor if executor is not None else ContainerExecutor(remote_url=session_url, auth_token=auth_token)

    async def run_code(code: str) -> str:
        """Runs Python code and returns what it printed and the value of its last expression. Variables persist."""
        if hasattr(target, "start"):
            await target.start()
        return _text(await target.run(code, timeout))

    return run_code


def describe_tools(tools: List[Mapping[str, Any]]) -> str:
    """A listing of tools for a prompt."""
    lines = []
    for tool in tools:
        lines.append("%s: %s" % (tool["name"], tool.get("description") or ""))
        for each in tool.get("callables") or ():
            names = ", ".join(parameter["name"] for parameter in each.get("parameters") or ())
            lines.append("  tools.%s.%s(%s): %s" % (tool["name"], each["name"], names, each.get("description") or ""))
    return "\n".join(lines)


async def get_tools_description(executor: Any) -> str:
    """The tools of an executor or a session, for a prompt."""
    return describe_tools(await executor.list_tools())


__all__ = ["create_run_code_tool", "get_tools_description", "describe_tools"]
