#!/usr/bin/env python3
"""A server built with the newest Python SDK, both eras: modern.py [http PORT].  The newest calls say which era they came in."""
import sys
from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, Image, MCPServer, Resolve
from pydantic import BaseModel

mcp = MCPServer("modern", instructions="for tests")


class Person(BaseModel):
    name: str
    age: int = 30


async def who() -> Elicit[Person]:
    return Elicit("who is it?", Person)


@mcp.tool()
def era(ctx: Context) -> str:
    """The revision that the request came in."""
    return str(ctx.request_context.protocol_version)


@mcp.tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@mcp.tool()
async def greet(person: Annotated[Person, Resolve(who)]) -> str:
    """Greets somebody, whom it asks for."""
    return "hello %s, %d" % (person.name, person.age)


@mcp.tool()
async def count(steps: int, ctx: Context) -> int:
    """Counts, and tells how far it is."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, "step %d" % (step + 1))
    return steps


@mcp.tool()
def grüße(wort: str) -> str:
    """Has a name beyond ASCII."""
    return wort


@mcp.tool()
async def grow(ctx: Context) -> str:
    """Gets a new tool."""
    mcp.add_tool(lambda: 7, name="grown", description="is new")
    await ctx.notify_tools_changed()
    return "done"


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        mcp.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]), json_response="json" in sys.argv)
    else:
        mcp.run("stdio")
