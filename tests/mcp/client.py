"""A small MCP client that says exactly what it is told to: lines of JSON to `workcell mcp`, and what comes back."""
import json
import queue
import subprocess
import tempfile
import threading

import support


class Client:
    def __init__(self, *flags, python=None, env=None, cwd=None, capabilities=None, version="2025-11-25", initialize=True,
                 program=()):
        argv = [*(program or (support.BIN, "mcp")), "--python", python or support.bare_python(), "--pool", "0"] + [str(flag) for flag in flags]
        self.stderr = tempfile.TemporaryFile()
        self.process = support.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, cwd=cwd,
                                     env=env if env is not None else support.host_environment())
        self.pid = self.process.pid
        self.lines = queue.Queue()
        self.notes, self.asked = [], []
        self.count = 0
        self.on_request = None
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if initialize:
            self.server = self.result(self.send("initialize", protocolVersion=version, capabilities=capabilities or {},
                                                clientInfo={"name": "tests", "version": "1"}))
            self.notify("notifications/initialized")

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def stderr_text(self):
        self.stderr.seek(0)
        return self.stderr.read().decode("utf-8", "replace")

    def raw(self, data):
        self.process.stdin.write(data if isinstance(data, bytes) else json.dumps(data).encode() + b"\n")
        self.process.stdin.flush()

    def send(self, method, **params):
        self.count += 1
        self.raw({"jsonrpc": "2.0", "id": self.count, "method": method, "params": params})
        return self.count

    def notify(self, method, **params):
        self.raw({"jsonrpc": "2.0", "method": method, "params": params})

    def read(self, deadline=support.DEADLINE):
        """The next message; every line must be one."""
        try:
            line = self.lines.get(timeout=deadline)
        except queue.Empty:
            raise AssertionError("nothing came; stderr: %s" % self.stderr_text()) from None
        assert line is not None, "the program ended; stderr: %s" % self.stderr_text()
        message = json.loads(line)
        assert isinstance(message, list) or message["jsonrpc"] == "2.0", message
        return message

    def answer(self, number):
        """The answer with this id; what comes before it is kept, and requests are answered by on_request."""
        while True:
            message = self.read()
            if isinstance(message, dict) and "method" not in message and message.get("id") == number:
                return message
            if isinstance(message, dict) and "id" in message and "method" in message:
                self.asked.append(message)
                if self.on_request:
                    self.raw({"jsonrpc": "2.0", "id": message["id"], "result": self.on_request(message)})
            else:
                self.notes.append(message)

    def result(self, number):
        message = self.answer(number)
        assert "result" in message, message
        return message["result"]

    def error(self, number):
        return self.answer(number)["error"]

    def start(self, tool, arguments=None, **more):
        return self.send("tools/call", name=tool, arguments=arguments or {}, **more)

    def call(self, tool, **arguments):
        result = self.result(self.start(tool, arguments))
        assert not result["isError"], result
        return result

    def value(self, tool, **arguments):
        return self.call(tool, **arguments)["structuredContent"]

    def fails(self, tool, **arguments):
        """The words of a call that fails."""
        result = self.result(self.start(tool, arguments))
        assert result["isError"], result
        return result["content"][0]["text"]

    def noted(self, method):
        return [note["params"] for note in self.notes if isinstance(note, dict) and note.get("method") == method]

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            status = self.process.wait(support.DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("does not end when its input does: %s" % self.stderr_text()) from None
        self.reader.join(support.DEADLINE)
        self.process.stdout.close()
        text = self.stderr_text()
        self.stderr.close()
        for sign in ("AddressSanitizer", "LeakSanitizer", "runtime error:"):
            assert sign not in text, text
        return status


def clients(make):
    """What a fixture yields from: a function that makes clients as make() does; those that are left are closed at the end."""
    made = []

    def make_one(*flags, **options):
        made.append(make(*flags, **options))
        return made[-1]

    yield make_one
    for client in made:
        if client.process.poll() is None:
            assert client.close() == 0
