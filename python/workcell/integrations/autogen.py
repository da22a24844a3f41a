"""A function for AutoGen's agents."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, List, Mapping, Optional

from ..execution.executors import ContainerExecutor
from ..prompt import MAX_ANSWER, shorten
from ..types import ExecutionResult
from ._common import printable


def _text(result: ExecutionResult) -> str:
    if result.error is not None:
        return (result.text + "\n" if result.text else "") + "Error: " + result.error
    parts = [result.text.rstrip("\n")] if result.text else []
    if result.value is not None:
        parts.append(str(result.value))
    return "\n".join(parts)


def _target(executor: Any, session_url: Optional[str], auth_token: Optional[str]) -> Any:
    if (executor is None) == (session_url is None):
        raise ValueError("Provide exactly one of 'executor' and 'session_url'")
    return executor if executor is not None else ContainerExecutor(remote_url=session_url, auth_token=auth_token)


def create_run_code_tool(executor: Any = None, session_url: Optional[str] = None, timeout: Optional[float] = 30.0,
                         session_id: Optional[str] = None, *, auth_token: Optional[str] = None
                         ) -> Callable[[str], Awaitable[str]]:
    """``run_code(code)`` for an agent: on an executor or a session, or on a session server.

    Exactly one of ``executor`` and ``session_url``. ``session_id`` is refused: a server chooses the ids of its sessions.
    """
    if session_id is not None:
        raise ValueError("session_id cannot be given: a session server chooses the ids of its sessions")
    target = _target(executor, session_url, auth_token)

    async def run_code(code: str) -> str:
        """Runs Python code and returns what it printed and the value of its last expression. Variables persist."""
        if hasattr(target, "start"):
            await target.start()
        return printable(shorten(_text(await target.run(code, timeout)), MAX_ANSWER))

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


async def get_tools_description(session_url: Optional[str] = None, executor: Any = None, *,
                                auth_token: Optional[str] = None) -> str:
    """The tools of an executor, a session or a session server, for a prompt."""
    if executor is None and session_url is not None and not isinstance(session_url, str):
        session_url, executor = None, session_url
    target = _target(executor, session_url, auth_token)
    if executor is not None:
        return describe_tools(await target.list_tools())
    async with target:
        await target.start()
        return describe_tools(await target.list_tools())


__all__ = ["create_run_code_tool", "get_tools_description", "describe_tools"]
