"""The MCP server of the benchmark, on standard streams: add(a, b), and pid().  Does as little as a server in Python can."""
import json
import os
import sys

ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
}
PID = {"name": "pid", "description": "The server's process.", "inputSchema": {"type": "object", "properties": {}}}


def answer(method, params):
    if method == "tools/call" and params["name"] == "pid":
        return {"content": [{"type": "text", "text": str(os.getpid())}]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": str(params["arguments"]["a"] + params["arguments"]["b"])}]}
    if method == "tools/list":
        return {"tools": [ADD, PID]}
    if method == "initialize":
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "bench", "version": "1"}}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params") or {})
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
        sys.stdout.flush()
