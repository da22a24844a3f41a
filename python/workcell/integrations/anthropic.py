"""The loop of an agent on Anthropic's Messages API, whose tools are those of a Workcell session.

::

    from anthropic import AsyncAnthropic
    from workcell import Session
    from workcell.integrations.anthropic import run

    async with Session(None, "sandbox") as session:
        messages = [{"role": "user", "content": "..."}]
        answer = await run(AsyncAnthropic(), session, messages, model="...", max_tokens=4096)
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from ..session import Session
from ._common import printable


async def tool_results(session: Session, content: Sequence[Any], timeout: Optional[float] = None) -> List[Dict[str, Any]]:
    """The blocks ``tool_result`` that answer the blocks ``tool_use`` of a message, in their order.

    Nothing that the model wrote raises here. Blocks may be objects of the package ``anthropic`` or plain dicts.
    """
    found: List[Dict[str, Any]] = []
    for block in content:
        part = block if isinstance(block, dict) else block.model_dump()
        if part.get("type") != "tool_use":
            continue
        given = part.get("input")
        text = printable(await session.answer(str(part.get("name")), given if isinstance(given, dict) else {}, timeout))
        found.append({"type": "tool_result", "tool_use_id": part.get("id"), "content": text,
                      **({"is_error": True} if text.startswith("Error: ") else {})})
    return found


async def run(client: Any, session: Session, messages: List[Dict[str, Any]], *, model: str, max_tokens: int = 4096, max_turns: int = 20,
              timeout: Optional[float] = None, direct: bool = False, system: Optional[str] = None, **options: Any) -> Any:
    """Asks the model and makes the calls that it asks for, until it answers without any; returns the last message of the model.

    Args:
        client: an ``AsyncAnthropic``.
        session: whose code and tools the model gets. Sessions of the executor ``sandbox`` confine the code.
        messages: the conversation, to which everything is added.
        max_turns: answers of the model; RuntimeError after that many.
        timeout: seconds of each piece of code.
        direct: the model may also call every tool of the session without code.
        system: put before the session's own description.
        options: of ``client.messages.create()``; ``tools`` are added to those of the session.
    """
    rules = await session.prompt_text()
    tools = [*await session.tool_schemas("anthropic", direct), *options.pop("tools", ())]
    for _ in range(max_turns):
        message = await client.messages.create(model=model, max_tokens=max_tokens, messages=messages, tools=tools,
                                               system=rules if system is None else system + "\n\n" + rules, **options)
        messages.append({"role": "assistant", "content": [each.model_dump(exclude_none=True) for each in message.content]})
        if message.stop_reason != "tool_use":
            return message
        messages.append({"role": "user", "content": await tool_results(session, message.content, timeout)})
    raise RuntimeError("the model has not finished after %d turns" % max_turns)


__all__ = ["run", "tool_results"]
