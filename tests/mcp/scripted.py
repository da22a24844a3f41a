#!/usr/bin/env python3
"""An MCP server that does what it is told, also what no honest one does: scripted.py [--log FILE] [BEHAVIOUR ...]

Speaks on its standard streams, or is imported for its `Server` (tests/mcp/web.py serves it by HTTP). The log has every
message that came in, a line each. Behaviours: silent, dies, banner, version=V, init_error, pages=N, endless, batch,
hang_on_close, exit_after=N, no_tools, and more below where they are looked up.
"""

import json
import os
import signal
import sys
import threading
import time

NUMBER, TEXT = {"type": "number"}, {"type": "string"}


def schema(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


PNG = ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==")

# name: (description, inputSchema); what they do is in Server.call_NAME.
TOOLS = {
    "echo": ("Says it again", schema(["text"], text=TEXT)),
    "args": ("Answers with its arguments", {"type": "object"}),
    "odd": ("Has odd names", schema(["my-field", "class"], **{
        "my-field": {"type": "string", "description": "with a dash"}, "class": TEXT, "@id": {"type": "integer"}, "1st": NUMBER,
        "my_field": {"type": "integer"}, "from": {"type": ["string", "null"], "default": "here"}})),
    "typed": ("Has types", schema(["n", "level", "maybe"], n={"type": "integer"}, level={"enum": ["low", "high"]},
                                  maybe={"anyOf": [NUMBER, {"type": "null"}]}, size={"type": "integer", "default": 7})),
    "die": ("Ends", schema(status={"type": "integer"})),
    "kill": ("Is killed", schema()),
    "twice": ("Answers twice", schema()),
    "wrong_id": ("Answers somebody else first", schema()),
    "flood": ("Says much before it answers; endlessly without a count", schema(count={"type": "integer"})),
    "huge": ("Answers with a text of so many bytes", schema(["size"], size={"type": "integer"})),
    "never": ("Does not answer", schema()),
    "hang": ("Neither answers nor reads any more", schema()),
    "slow": ("Answers later", schema(["seconds"], seconds=NUMBER)),
    "progress": ("Tells how it goes", schema(["steps"], steps={"type": "integer"})),
    "log": ("Logs", schema(["text"], text=TEXT)),
    "grow": ("Gets a new tool", schema(["name"], name=TEXT)),
    "ask": ("Asks a person", schema(["message"], message=TEXT, more={"type": "object"})),
    "sample": ("Asks for what clients need not have", schema()),
    "ping": ("Asks whether we are there", schema()),
    "image": ("An image", schema()),
    "two_images": ("Texts and images", schema()),
    "bad_image": ("Not base64", schema()),
    "resource": ("A resource", schema(blob={"type": "boolean"})),
    "audio": ("Sound", schema()),
    "structured": ("Data", schema()),
    "structured_image": ("Data and an image", schema()),
    "empty": ("Nothing", schema()),
    "fails": ("Fails in its own words", schema(words=TEXT)),
    "rpc_error": ("Fails as a request", schema()),
    "no_content": ("An answer that is none", schema()),
    "env": ("Its environment", schema()),
    "pid": ("Its process", schema()),
    "stderr": ("Writes to stderr", schema(text=TEXT)),
    "noise": ("Prints before it answers", schema()),
    "unreadable": ("Answers with JSON that is beyond us", schema(["how"], how=TEXT)),
    "batch": ("Answers in a batch", schema()),
    "task": ("Is a task", schema(forever={"type": "boolean"})),
    "list": ("Has the name of a method", schema()),
    "dash-ed.name": ("Is no Python name", schema()),
}


class Stop(Exception):
    """The connection is to end now."""


def text(value):
    return {"content": [{"type": "text", "text": value}]}


class Server:
    """One connection. send(message) is how it speaks; send_text(text) is for what is no message."""

    def __init__(self, behaviours, log=None):
        self.behaviours = dict(b.partition("=")[::2] for b in behaviours)
        self.log_file = log
        self.send = self.send_text = None
        self.tools = dict(TOOLS)
        self.waiting, self.next_id, self.calls = {}, 1000, 0
        self.lock = threading.Lock()

    def log(self, message):
        if self.log_file:
            with open(self.log_file, "a", encoding="utf-8") as file:
                file.write(json.dumps(message) + "\n")

    def notify(self, method, **params):
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method, params, then):
        """A question of the server's; then(answer) when it is there."""
        with self.lock:
            self.next_id += 1
            ident = "q%d" % self.next_id
            self.waiting[ident] = then
        self.send({"jsonrpc": "2.0", "id": ident, "method": method, "params": params})

    def handle(self, message):
        """Answers by send(), now or later."""
        self.log(message)
        if "method" not in message:
            then = self.waiting.pop(message.get("id"), None)
            if then:
                then(message)
            return
        if "id" not in message:
            return
        name = "handle_" + message["method"].replace("/", "_")
        if not hasattr(self, name):
            self.fail(message["id"], -32601, "Method not found")
            return
        getattr(self, name)(message["id"], message.get("params") or {})

    def answer(self, ident, result):
        self.send({"jsonrpc": "2.0", "id": ident, "result": result})

    def fail(self, ident, code, words):
        self.send({"jsonrpc": "2.0", "id": ident, "error": {"code": code, "message": words}})

    def handle_initialize(self, ident, params):
        if "silent" in self.behaviours:
            return
        if "init_error" in self.behaviours:
            self.fail(ident, -32602, "not today")
            return
        version = self.behaviours.get("version") or params["protocolVersion"]
        self.answer(ident, {"protocolVersion": version, "capabilities": {"tools": {"listChanged": True}},
                            "serverInfo": {"name": "scripted", "version": "1"}, "instructions": "Do as you are told."})

    def handle_ping(self, ident, params):
        self.answer(ident, {})

    def handle_tools_list(self, ident, params):
        names, at = list(self.tools), int(params.get("cursor") or 0)
        if "no_tools" in self.behaviours:
            self.fail(ident, -32601, "Method not found")
            return
        if "list_error" in self.behaviours:
            self.fail(ident, -32603, "the list is lost")
            return
        if "bad_list" in self.behaviours:
            self.answer(ident, {"tools": "none"})
            return
        if "many" in self.behaviours:
            names = ["t%d" % n for n in range(int(self.behaviours["many"]))]
        size = int(self.behaviours.get("pages") or len(names))
        page = [self.describe(name) for name in names[at:at + size]]
        result = {"tools": page}
        if at + size < len(names):
            result["nextCursor"] = str(at + size)
        if "endless" in self.behaviours:
            result["nextCursor"] = str((at + 1) % 1000)
        if "hostile" in self.behaviours:
            result["tools"] = HOSTILE
        self.answer(ident, result)

    def describe(self, name):
        description, inputs = self.tools.get(name) or ("one of many", schema())
        made = {"name": name, "description": description, "inputSchema": inputs}
        if name == "structured" and "output_schema" in self.behaviours:
            made["outputSchema"] = {"type": "object"}
        return dict(made, execution={"taskSupport": "required"}) if name == "task" else made

    def handle_tools_call(self, ident, params):
        name, args = params["name"], params.get("arguments") or {}
        self.calls += 1
        self.meta = params.get("_meta") or {}
        method = getattr(self, "call_" + name.replace("-", "_").replace(".", "_"), None)
        if name not in self.tools or not method:
            self.fail(ident, -32602, "Unknown tool: %s" % name)
            return
        result = method(ident, **args)
        if result is not None:
            self.answer(ident, result)
        if self.calls == int(self.behaviours.get("exit_after") or 0):
            raise Stop

    # -- the tools

    def call_echo(self, ident, text):
        return {"content": [{"type": "text", "text": text}]}

    def call_args(self, ident, **args):
        return {"content": [], "structuredContent": args}

    call_odd = call_typed = call_args

    def call_die(self, ident, status=3):
        sys.stderr.write("dying as asked\n")
        sys.stderr.flush()
        os._exit(status)

    def call_kill(self, ident):
        os.kill(os.getpid(), signal.SIGKILL)

    def call_twice(self, ident):
        self.answer(ident, text("first"))
        return text("second")

    def call_wrong_id(self, ident):
        self.answer(ident + 100000, text("wrong"))
        self.answer("nobody", text("wrong"))
        self.answer(1, text("wrong"))
        return text("right")

    def call_flood(self, ident, count=None):
        done = 0
        while count is None or done < count:
            self.notify("notifications/message", level="info", data="x" * 500)
            done += 1
        return text("flooded")

    def call_huge(self, ident, size):
        self.send_text('{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"%s"}]}}' % (ident, "x" * size))

    def call_never(self, ident):
        pass

    def call_hang(self, ident):
        while True:
            time.sleep(3600)

    def call_slow(self, ident, seconds):
        threading.Timer(seconds, lambda: self.answer(ident, text("after %g" % seconds))).start()

    def call_progress(self, ident, steps):
        for step in range(steps):
            if "progressToken" in self.meta:
                self.notify("notifications/progress", progressToken=self.meta["progressToken"], progress=step + 1, total=steps,
                            message="step %d" % (step + 1))
        return text("%d steps" % steps)

    def call_log(self, ident, text):
        self.notify("notifications/message", level="warning", logger="scripted", data=text)
        return {"content": [{"type": "text", "text": "logged"}]}

    def call_grow(self, ident, name):
        self.tools[name] = ("New", schema())
        setattr(self, "call_" + name, lambda ident: text("I am " + name))
        self.notify("notifications/tools/list_changed")
        return text("grown")

    def call_ask(self, ident, message, more=None):
        params = {"message": message, "requestedSchema": schema(["name"], name=TEXT), **(more or {})}
        self.ask("elicitation/create", {key: value for key, value in params.items() if value is not None},
                 lambda answer: self.answer(ident, {"content": [], "structuredContent": answer.get("result") or answer}))

    def call_sample(self, ident):
        found = {}

        def got(which):
            def then(answer):
                found[which] = (answer.get("error") or {}).get("code")
                if len(found) == 2:
                    self.answer(ident, {"content": [], "structuredContent": found})
            return then

        self.ask("sampling/createMessage", {"messages": []}, got("sampling"))
        self.ask("roots/list", {}, got("roots"))

    def call_ping(self, ident):
        self.ask("ping", {}, lambda answer: self.answer(ident, text(json.dumps(answer.get("result")))))

    def call_image(self, ident):
        return {"content": [{"type": "image", "mimeType": "image/png", "data": PNG}]}

    def call_two_images(self, ident):
        image = {"type": "image", "mimeType": "image/png", "data": PNG}
        return {"content": [{"type": "text", "text": "before"}, image, {"type": "text", "text": "between"}, image]}

    def call_bad_image(self, ident):
        return {"content": [{"type": "image", "mimeType": "image/png", "data": "***"}]}

    def call_resource(self, ident, blob=False):
        resource = {"uri": "test://one", "mimeType": "text/plain", "text": "the text"}
        if blob:
            resource = {"uri": "test://two", "mimeType": "application/zip", "blob": "AAEC/w=="}
        return {"content": [{"type": "resource", "resource": resource}]}

    def call_audio(self, ident):
        return {"content": [{"type": "audio", "mimeType": "audio/wav", "data": "UklGRg=="}]}

    def call_structured(self, ident):
        data = {"whole": 2**80, "small": 0.1, "text": "\u00e9\n\"", "list": [1, None, True], "nested": {"a": {}}}
        return {"content": [{"type": "text", "text": "not this"}], "structuredContent": data}

    def call_structured_image(self, ident):
        return {"content": [{"type": "image", "mimeType": "image/png", "data": PNG}], "structuredContent": {"n": 1}}

    def call_empty(self, ident):
        return {"content": []}

    def call_fails(self, ident, words="it did not work"):
        return {"content": [{"type": "text", "text": words}], "isError": True}

    def call_rpc_error(self, ident):
        self.fail(ident, -32000, "as a request")

    def call_no_content(self, ident):
        return {"nothing": 1}

    def call_env(self, ident):
        return {"content": [], "structuredContent": {"env": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd()}}

    def call_pid(self, ident):
        return {"content": [], "structuredContent": {"pid": os.getpid(), "pgid": os.getpgid(0)}}

    def call_stderr(self, ident, text="to stderr"):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
        return {"content": [{"type": "text", "text": "written"}]}

    def call_noise(self, ident):
        self.send_text("this is no message")
        self.send_text('{"jsonrpc": "2.0", "id": {}}')
        self.send_text("[]")
        return text("after the noise")

    def call_unreadable(self, ident, how):
        result = {"nul": '{"a\\u0000b": 1}', "number": "1e999", "deep": "[" * 600 + "]" * 600}[how]
        self.send_text('{"jsonrpc":"2.0","id":%d,"result":%s}' % (ident, result))

    def call_batch(self, ident):
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "in a batch"}}
        answer = {"jsonrpc": "2.0", "id": ident, "result": text("by batch")}
        self.send_text(json.dumps([note, answer]))

    def call_task(self, ident, forever=False):
        self.forever = forever
        return {"task": {"taskId": "t1", "status": "working", "ttl": None, "createdAt": "", "lastUpdatedAt": ""}}

    def handle_tasks_result(self, ident, params):
        if not self.forever:
            self.answer(ident, text("the task %s is done" % params["taskId"]))

    def handle_tasks_cancel(self, ident, params):
        self.answer(ident, {"taskId": params["taskId"], "status": "cancelled"})

    def call_list(self, ident):
        return text("not the method")

    def call_dash_ed_name(self, ident):
        return text("dashed")


HOSTILE = [
    {"name": "fine", "description": "The one that can be used", "inputSchema": schema()},
    {"name": "fine", "description": "The same name again", "inputSchema": schema()},
    {"name": "", "inputSchema": schema()},
    {"name": "a\nb", "inputSchema": schema()},
    {"name": "nul\0", "inputSchema": schema()},
    {"name": "x" * 1000, "inputSchema": schema()},
    {"name": 7},
    "not even an object",
    {"name": "__class__", "description": "d" * 100000, "inputSchema": {"type": "object", "properties": "none"}},
    {"name": "import", "inputSchema": {"type": "object", "properties": {"": {}, "a\nb": {}, "p" * 5000: {}, "ok": TEXT}}},
    {"name": "no_schema"},
    {"name": "1digit", "inputSchema": schema(["gone"])},
]


def main():
    arguments = sys.argv[1:]
    log = None
    if arguments[:1] == ["--log"]:
        log, arguments = arguments[1], arguments[2:]
    server = Server(arguments, log)
    lock = threading.Lock()

    def send_text(line):
        with lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    server.send_text = send_text
    server.send = lambda message: send_text(json.dumps(message))
    if "dies" in server.behaviours:
        sys.stderr.write("cannot start: no such thing\n")
        sys.exit(7)
    if "banner" in server.behaviours:
        print("Welcome to the server!", flush=True)
    if "child" in server.behaviours and not os.fork():
        os.execvp("sleep", ["sleep", server.behaviours["child"]])
    try:
        for line in sys.stdin:
            server.handle(json.loads(line))
    except (Stop, BrokenPipeError):
        os._exit(0)
    while "hang_on_close" in server.behaviours:
        time.sleep(3600)
    os._exit(0)


if __name__ == "__main__":
    main()
