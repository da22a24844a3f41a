"""An agent on OpenAI's client library: the model calls run_code, the session answers.

    pip install openai
    OPENAI_API_KEY=... python examples/agents/with_openai.py

OPENAI_BASE_URL names another server with the same API; the tests use the one in standin.py.
"""

import asyncio

import openai

from workcell import Session

MODEL = "gpt-6-sol"


async def ask(client, session, task, turns=10):
    """The loop of the agent: until the model answers without a call."""
    tools = await session.tool_schemas("openai")
    messages = [{"role": "system", "content": await session.prompt_text()}, {"role": "user", "content": task}]
    for _ in range(turns):
        response = await client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
        message = response.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            text = await session.answer(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    raise RuntimeError("no answer after %d turns" % turns)


async def main(client=None):
    async with Session(executor="sandbox") as session:
        @session.tool
        def price(item: str) -> float:
            """The price of an item in the shop."""
            return {"tea": 4.5, "cake": 3.0}[item]

        answer = await ask(client or openai.AsyncOpenAI(), session, "What do two teas and a cake cost?")
        print(answer)
        return answer


if __name__ == "__main__":
    asyncio.run(main())
