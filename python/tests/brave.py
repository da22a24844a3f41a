"""A small MCP server on stdio, in place of the one that the examples use: search results, and some ways to misbehave."""
import json
import os
import sys

TOOLS = [
    {"name": "brave_image_search", "description": "Searches for images.",
     "inputSchema": {"type": "object", "properties": {"query": {"type": "string"}, "count": {"type": "integer", "default": 5}},
                     "required": ["query"]},
     "outputSchema": {"type": "object", "properties": {"items": {"type": "array", "items": {
         "type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}}}, "required": ["items"]}},
    {"name": "echo", "description": "Says it again.",
     "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}},
    {"name": "my-tool", "description": 'Names """ and \\ to trip over.',
     "inputSchema": {"type": "object", "required": ["my-field"], "properties": {
         "my-field": {"type": "integer", "description": '""" + __import__("os").abort() + """'},
         "class": {"type": "string"}, "int": {"type": "integer"},
         "secret": {"type": "string", "format": "password"}, "maybe": {"type": ["string", "null"]}}}},
    {"name": "die", "description": "Ends the server.", "inputSchema": {"type": "object", "properties": {}}},
    {"name": "pid", "description": "Its process.", "inputSchema": {"type": "object", "properties": {}}},
    {"name": "greet", "description": "Says what it was told.", "inputSchema": {"type": "object", "properties": {}}},
]


def call(name, args):
    if name == "brave_image_search":
        items = [{"title": "%s %d" % (args["query"], i)} for i in range(args.get("count", 5))]
        return {"content": [{"type": "text", "text": "see items"}], "structuredContent": {"items": items}}
    if name == "die":
        os._exit(3)
    text = {"pid": str(os.getpid()), "greet": os.environ.get("GREETING", "nothing")}.get(name)
    if name == "echo":
        text = "%d bytes" % len(args["text"]) if len(args["text"]) > 100 else args["text"]
    return {"content": [{"type": "text", "text": text if text is not None else json.dumps(args, sort_keys=True)}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "brave", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": TOOLS}
    elif method == "tools/call":
        result = call(params["name"], params.get("arguments") or {})
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
