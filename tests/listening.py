"""A `workcell mcp --listen` of the tests' own, and requests to it."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile

import serving
import support

TOKEN = "t0ken-of-the-mcp-client"
INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize",
              "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def call(tool, /, *, ident=5, meta=None, **arguments):
    return {"jsonrpc": "2.0", "id": ident, "method": "tools/call", "params": {"name": tool, "arguments": arguments, "_meta": meta or {}}}


class Listening:
    """token: of the environment; tokens: a file of several; with neither, --auth-disabled is among the flags."""

    def __init__(self, *flags, token=TOKEN, tokens=None, listen="127.0.0.1:0", program=()):
        self.token, self.tokens = token, tokens and serving.token_file(tokens)
        if tokens:
            flags, token = (*flags, "--auth-token-file", self.tokens), None
        env = support.host_environment(**({"WORKCELL_MCP_TOKEN": token} if token else {}))
        self.stderr = tempfile.TemporaryFile()
        self.process = support.popen([*(program or (support.BIN, "mcp")), "--python", support.bare_python(), "--pool", "0", "--listen", listen,
                                      *map(str, flags)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.stderr, env=env)
        self.pid, self.spawner = self.process.pid, None
        support.wait_until(lambda: "listening on" in self.text() or self.process.poll() is not None, self.text)
        found = re.search(r"listening on (?:(https?)://127\.0\.0\.1:(\d+)/mcp|unix:(.*))\n", self.text())
        assert found, self.text()
        self.scheme, self.port, self.path = found.group(1), found.group(2) and int(found.group(2)), found.group(3)

    def text(self):
        self.stderr.seek(0)
        return self.stderr.read().decode("utf-8", "replace")

    def adopt(self):
        """Finds the spawner, from a kernel up; for servers that serve a whole module, with the executor subprocess."""
        pid = self.value(self.session(), "import os; os.getpid()")
        table = support.processes()
        while "workcell-spawner" not in table[pid].cmdline:
            pid = table[pid].ppid
        self.spawner = pid

    def family(self, table=None):
        table = support.below(os.getpid()) if table is None else table
        found = support.descendants(self.pid, table)
        if self.spawner in table:
            found += support.descendants(self.spawner, table) + [table[self.spawner]]
        return found

    def connect(self):
        if self.path:
            return serving.UnixConnection(self.path)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=support.DEADLINE)

    def open(self, method, body=None, path="/mcp", session=None, token=True, connection=None, **headers):
        connection = connection or self.connect()
        every = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        token = self.token if token is True else token
        if token:
            every["Authorization"] = "Bearer " + token
        if session:
            every["Mcp-Session-Id"] = session
        every.update({name.replace("_", "-"): value for name, value in headers.items()})
        connection.request(method, path, body=json.dumps(body) if body is not None else None, headers=every)
        return connection, connection.getresponse()

    def ask(self, *args, **options):
        connection, response = self.open(*args, **options)
        answer = serving.Answer(response, response.read())
        connection.close()
        return answer

    def status(self, *args, **options):
        connection, response = self.open(*args, **options)
        connection.close()
        return response.status

    def events(self, *args, **options):
        """[(id, message)] of a response that ends."""
        connection, response = self.open(*args, **options)
        assert response.status == 200, (response.status, response.read())
        assert response.headers["Content-Type"] == "text/event-stream"
        found = parse(response.read().decode())
        connection.close()
        return found

    def session(self, initialize=INITIALIZE, **options):
        connection, response = self.open("POST", initialize, **options)
        assert response.status == 200, (response.status, response.read())
        (_, message), = parse(response.read().decode())
        assert message["result"]["protocolVersion"] == "2025-06-18"
        connection.close()
        session = response.headers["Mcp-Session-Id"]
        assert self.status("POST", INITIALIZED, session=session, **options) == 202
        return session

    def run(self, session, code, token=True, **meta):
        return self.events("POST", call("run_code", meta=meta, code=code), session=session, token=token)

    def value(self, session, code, **options):
        return self.run(session, code, **options)[-1][1]["result"]["structuredContent"].get("value")

    def head(self, request=b"POST /mcp HTTP/1.1", token=True):
        """Lines of a head with what is needed to be let in."""
        return b"%s\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\nAuthorization: Bearer %s\r\n" % (
            request, self.port, (self.token if token is True else token).encode())

    def raw(self, data):
        """Bytes as they are; what comes back until the server closes."""
        with contextlib.closing(socket.create_connection(("127.0.0.1", self.port), timeout=support.DEADLINE)) as sock:
            with contextlib.suppress(OSError):  # it has hung up; what it said before is there
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            return serving.read_all(sock)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(support.DEADLINE) == 0, self.text()
        text = self.text()
        self.stderr.close()
        for sign in ("AddressSanitizer", "LeakSanitizer", "runtime error:"):
            assert sign not in text, text


def parse(text):
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            found.append((lines.get("id"), json.loads(lines["data"])))
    return found
