"""Clients of revision 2026-07-28, which say everything in each request: on lines, and by HTTP."""
import json

import client as mcp_client

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"


def envelope(version=MODERN, capabilities=None, **more):
    return {META + "protocolVersion": version, META + "clientCapabilities": {} if capabilities is None else capabilities,
            META + "clientInfo": {"name": "tests", "version": "1"}, **more}


def message(method, ident=1, meta=None, **params):
    return {"jsonrpc": "2.0", "id": ident, "method": method, "params": {**params, "_meta": envelope() if meta is None else meta}}


class Stdio(mcp_client.Client):
    """Says nothing before the first request."""

    def __init__(self, *flags, **options):
        super().__init__(*flags, initialize=False, **options)

    def send(self, method, **params):
        meta = params.pop("_meta", {})
        return super().send(method, **params, _meta={**envelope(), **meta})


class Web:
    """The same by HTTP: each request on a connection of its own."""

    def __init__(self, server, token):
        self.server, self.token, self.count = server, token, 0

    def post(self, body, **headers):
        known = {"MCP-Protocol-Version": MODERN, "Mcp-Method": body.get("method", ""), "Accept": "application/json, text/event-stream",
                 "Content-Type": "application/json"}
        if "name" in body.get("params", {}):
            known["Mcp-Name"] = body["params"]["name"]
        known.update({name.replace("_", "-"): value for name, value in headers.items()})
        connection, response = self.server.open("POST", body, token=self.token, **{k: v for k, v in known.items() if v is not None})
        text = response.read().decode()
        connection.close()
        if response.headers["Content-Type"] == "text/event-stream":
            assert "\nid:" not in "\n" + text and not response.headers["Mcp-Session-Id"]
            messages = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")]
            return response.status, messages
        return response.status, [json.loads(text)] if text else []

    def call(self, tool, **arguments):
        self.count += 1
        status, messages = self.post(message("tools/call", self.count, name=tool, arguments=arguments))
        assert status == 200 and messages[-1]["id"] == self.count, (status, messages)
        return messages[-1]["result"]

    def value(self, tool, **arguments):
        result = self.call(tool, **arguments)
        assert not result["isError"], result
        return result["structuredContent"]

    def fails(self, tool, **arguments):
        result = self.call(tool, **arguments)
        assert result["isError"], result
        return result["content"][0]["text"]
