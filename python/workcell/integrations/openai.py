"""The loop of an agent on OpenAI's chat completions, whose tools are those of a Workcell session.

::

    from openai import AsyncOpenAI
    from workcell import Session
    from workcell.integrations.openai import run

    async with Session(None, "sandbox") as session:
        messages = [{"role": "user", "content": "..."}]
        answer = await run(AsyncOpenAI(), session, messages, model="...")
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from ..session import Session
from ._common import printable


async def tool_messages(session: Session, calls: Optional[Sequence[Any]], timeout: Optional[float] = None) -> List[Dict[str, Any]]:
    """The messages that answer the ``tool_calls`` of a message, in their order.

    Nothing that the model wrote raises here. Calls may be objects of the package ``openai`` or plain dicts.
    """
    found: List[Dict[str, Any]] = []
    for call in calls or ():
        part = call if isinstance(call, dict) else call.model_dump()
        function = part.get("function") or {}
        text = await session.answer(str(function.get("name")), function.get("arguments") or "{}", timeout)
        found.append({"role": "tool", "tool_call_id": part.get("id"), "content": printable(text)})
    return found


async def run(client: Any, session: Session, messages: List[Dict[str, Any]], *, model: str, max_turns: int = 20,
              timeout: Optional[float] = None, direct: bool = False, **options: Any) -> Any:
    """Asks the model and makes the calls that it asks for, until it answers without any; returns the last message of the model.

    Args:
        client: an ``AsyncOpenAI``, or a client of any server with the same interface.
        session: whose code and tools the model gets. Sessions of the executor ``sandbox`` confine the code.
        messages: the conversation, to which everything is added; the session's description comes first.
        max_turns: answers of the model; RuntimeError after that many.
        timeout: seconds of each piece of code.
        direct: the model may also call every tool of the session without code.
        options: of ``client.chat.completions.create()``; ``tools`` are added to those of the session.
    """
    rules: Dict[str, Any] = {"role": "system", "content": await session.prompt_text()}
    tools = [*await session.tool_schemas("openai", direct), *options.pop("tools", ())]
    for _ in range(max_turns):
        answer = await client.chat.completions.create(model=model, messages=[rules, *messages], tools=tools, **options)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message
        messages += await tool_messages(session, message.tool_calls, timeout)
    raise RuntimeError("the model has not finished after %d turns" % max_turns)


__all__ = ["run", "tool_messages"]
