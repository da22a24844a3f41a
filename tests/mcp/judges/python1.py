"""The Python SDK 1.x as a client: python1.py SECONDS http URL TOKEN | stdio COMMAND..."""
import asyncio
import contextlib
import sys

from judging import judge
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from mcp.types import ElicitResult


async def answer(context, params):
    return ElicitResult(action="accept", content={"decision": "accept"})


async def main(seconds, kind, *where):
    async with contextlib.AsyncExitStack() as stack:
        opened = streamablehttp_client(where[0], {"Authorization": "Bearer " + where[1]}) if kind == "http" else stdio_client(StdioServerParameters(command=where[0], args=list(where[1:])))
        streams = await stack.enter_async_context(opened)
        session = await stack.enter_async_context(ClientSession(streams[0], streams[1], elicitation_callback=answer))
        await session.initialize()

        async def call(tool, arguments):
            done = await session.call_tool(tool, arguments, progress_callback=nothing)
            return done.structuredContent, done.content, done.isError
        await judge(call, float(seconds), interrupts=True)


async def nothing(progress, total, message):
    pass


asyncio.run(main(*sys.argv[1:]))
