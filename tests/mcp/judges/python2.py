"""The Python SDK 2.x as a client: python2.py SECONDS http URL TOKEN | stdio COMMAND..."""
import asyncio
import sys

from judging import judge
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import ElicitResult


async def answer(context, params):
    return ElicitResult(action="accept", content={"decision": "accept"})


async def main(seconds, kind, *where):
    server = streamable_http_client(where[0], http_client=create_mcp_http_client({"Authorization": "Bearer " + where[1]})) if kind == "http" else stdio_client(StdioServerParameters(command=where[0], args=list(where[1:])))
    async with Client(server, elicitation_callback=answer) as client:
        assert client.protocol_version == "2026-07-28", client.protocol_version

        async def call(tool, arguments):
            done = await client.call_tool(tool, arguments)
            return done.structured_content, done.content, done.is_error
        await judge(call, float(seconds))


asyncio.run(main(*sys.argv[1:]))
