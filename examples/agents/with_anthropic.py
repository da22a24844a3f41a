"""An agent on Anthropic's client library: the model calls run_code, the session answers.

    pip install anthropic
    ANTHROPIC_API_KEY=... python examples/agents/with_anthropic.py

ANTHROPIC_BASE_URL names another server with the same API; the tests use the one in standin.py.
"""

import asyncio

import anthropic

from workcell import Session

MODEL = "claude-opus-4-6"


async def ask(client, session, task, turns=10):
    """The loop of the agent: until the model answers without a call."""
    tools = await session.tool_schemas("anthropic")
    system = await session.prompt_text()
    messages = [{"role": "user", "content": task}]
    for _ in range(turns):
        response = await client.messages.create(model=MODEL, max_tokens=2000, system=system, messages=messages, tools=tools)
        messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in response.content]})
        if response.stop_reason != "tool_use":
            return "".join(block.text for block in response.content if block.type == "text")
        answers = [{"type": "tool_result", "tool_use_id": block.id, "content": await session.answer(block.name, block.input)}
                   for block in response.content if block.type == "tool_use"]
        messages.append({"role": "user", "content": answers})
    raise RuntimeError("no answer after %d turns" % turns)


async def main(client=None):
    async with Session(executor="sandbox") as session:
        @session.tool
        def price(item: str) -> float:
            """The price of an item in the shop."""
            return {"tea": 4.5, "cake": 3.0}[item]

        answer = await ask(client or anthropic.AsyncAnthropic(), session, "What do two teas and a cake cost?")
        print(answer)
        return answer


if __name__ == "__main__":
    asyncio.run(main())
