"""The peer of the benchmark's row `mcp`: the same server, called through the official Python SDK.

    python3 peer_mcp.py [--quick] SERVER.py

Run by `workcell bench`.  Prints one JSON object with every value measured: as the scheduler pleases, and with client and
server held on one CPU.  One session, one event loop, nothing else on it; calls one after another, as in Workcell's row.
Every answer is checked.
"""
import argparse
import asyncio
import importlib.metadata
import json
import os
import sys
import time


async def measure(server, count):
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    took = []
    parameters = StdioServerParameters(command=sys.executable, args=["-IS", server])
    async with stdio_client(parameters) as (read, write):
        async with ClientSession(read, write) as session:
            await session.initialize()
            await session.list_tools()
            for i in range(-50, count):
                began = time.perf_counter_ns()
                result = await session.call_tool("add", {"a": i, "b": 1})
                ended = time.perf_counter_ns()
                if result.content[0].text != str(i + 1):
                    raise RuntimeError("add(%d, 1) is %r" % (i, result.content))
                if i >= 0:
                    took.append(ended - began)
    return took


def main():
    parser = argparse.ArgumentParser(description="Measures the Python SDK's client.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("server")
    args = parser.parse_args()
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        print(json.dumps({"ok": False, "missing": error.name, "rows": {}}))
        return 0
    # On a terminal workcell-bench has drawn its progress into this line.
    print(("\r\x1b[K" if sys.stderr.isatty() else "") + "peer: calls through the Python SDK", file=sys.stderr, flush=True)
    count = 100 if args.quick else 400
    rows = {"mcp": asyncio.run(measure(args.server, count))}
    try:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the server inherits it
    except OSError:
        pass  # then Workcell's side has no such row either
    else:
        rows["mcp-one-cpu"] = asyncio.run(measure(args.server, count))
    print(json.dumps({"ok": True, "mcp": importlib.metadata.version("mcp"), "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
