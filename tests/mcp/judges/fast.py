"""FastMCP's client: fast.py SECONDS http URL TOKEN | stdio COMMAND..."""
import asyncio
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from judging import judge


async def answer(message, response_type, params, context):
    return {"decision": "accept"}


async def main(seconds, kind, *where):
    server = where[0] if kind == "http" else StdioTransport(where[0], list(where[1:]))
    async with Client(server, elicitation_handler=answer, auth=where[1] if kind == "http" else None) as client:
        async def call(tool, arguments):
            done = await client.call_tool(tool, arguments, raise_on_error=False)
            return done.structured_content, done.content, done.is_error
        await judge(call, float(seconds))


asyncio.run(main(*sys.argv[1:]))
