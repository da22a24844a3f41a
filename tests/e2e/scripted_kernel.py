"""A Jupyter kernel that does what it is told: the code of a cell names what it does, right or wrong.

    python scripted_kernel.py CONNECTION_FILE [PROTOCOL_VERSION]
"""
import base64
import hashlib
import hmac
import json
import os
import sys
import uuid

import zmq

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()


class Kernel:
    def __init__(self, connection, version):
        self.key, self.version = connection["key"].encode(), version
        context = zmq.Context()
        self.sockets = {}
        for name, kind in (("shell", zmq.ROUTER), ("iopub", zmq.PUB), ("stdin", zmq.ROUTER), ("control", zmq.ROUTER)):
            self.sockets[name] = context.socket(kind)
            self.sockets[name].sndhwm = 0  # or it would drop what it publishes too fast
            self.sockets[name].bind("tcp://%s:%d" % (connection["ip"], connection[name + "_port"]))

    def sign(self, parts):
        return hmac.new(self.key, b"".join(parts), hashlib.sha256).hexdigest().encode()

    def parts(self, kind, content, parent):
        header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "session": "kernel", "version": "5.3"}
        body = [json.dumps(part).encode() for part in (header, parent, {}, content)]
        return [b"<IDS|MSG>", self.sign(body), *body]

    def send(self, where, kind, content, parent=None, idents=()):
        self.sockets[where].send_multipart([*idents, *self.parts(kind, content, self.parent if parent is None else parent)])

    def receive(self, where):
        message = self.sockets[where].recv_multipart()
        at = message.index(b"<IDS|MSG>")
        signature, body = message[at + 1], message[at + 2:at + 6]
        assert hmac.compare_digest(signature, self.sign(body)), "the host signs wrongly"
        header, _, _, content = map(json.loads, body)
        return message[:at], header, content

    def stream(self, text, **options):
        self.send("iopub", "stream", {"name": "stdout", "text": text}, **options)

    def serve(self):
        while True:
            idents, header, content = self.receive("shell")
            self.parent, self.idents = header, idents
            self.send("iopub", "status", {"execution_state": "busy"})
            reply = {"status": "ok", "execution_count": 1, "user_expressions": {}, "payload": []}
            late = None
            if header["msg_type"] == "kernel_info_request":
                reply = {"status": "ok", "protocol_version": self.version, "implementation": "scripted",
                         "language_info": {"name": "words"}}
            elif header["msg_type"] == "execute_request":
                assert content["allow_stdin"] is False
                answer = getattr(self, "do_" + content["code"].split()[0])(*content["code"].split()[1:])
                reply, late = answer if isinstance(answer, tuple) else (answer or reply, None)
            self.send("shell", header["msg_type"].replace("request", "reply"), reply, idents=idents)
            if late:
                late()
            self.send("iopub", "status", {"execution_state": "idle"})

    # -- what cells can say

    def do_late(self, count="1"):
        return {"status": "ok", "execution_count": 1}, lambda: [self.stream("after the reply\n") for _ in range(int(count))]

    def do_replay(self):
        message = self.parts("stream", {"name": "stdout", "text": "once\n"}, self.parent)
        for _ in range(3):
            self.sockets["iopub"].send_multipart([b"stream", *message])

    def do_others(self):
        self.stream("not yours\n", parent={"msg_id": "x", "session": "somebody else"})
        self.stream("yours\n")

    def do_show(self):
        data = {"text/plain": "a picture", "image/png": PNG, "application/json": {"a": [1]}}
        self.send("iopub", "display_data", {"data": data, "metadata": {}, "transient": {"display_id": "d"}})
        self.send("iopub", "update_display_data", {"data": {"text/plain": "changed"}, "metadata": {},
                                                   "transient": {"display_id": "d"}})

    def do_value(self):
        self.send("iopub", "execute_result", {"data": {"text/plain": "<seven>", "application/json": 7,
                                                       "text/html": "<b>7</b>"}, "metadata": {}, "execution_count": 1})

    def do_raise(self):
        error = {"ename": "Oops", "evalue": "it broke", "traceback": ["\x1b[31mline 1\x1b[0m", "Oops: it broke"]}
        self.send("iopub", "error", error)
        return dict(error, status="error")

    def do_ask(self):
        self.send("stdin", "input_request", {"prompt": "?", "password": False}, idents=self.idents)
        _, header, content = self.receive("stdin")
        self.stream("%s %r\n" % (header["msg_type"], content))

    def do_wait(self):
        self.stream("waiting\n")
        _, header, _ = self.receive("control")
        assert header["msg_type"] == "interrupt_request", header
        error = {"ename": "Interrupt", "evalue": "", "traceback": []}
        self.send("iopub", "error", error)
        return dict(error, status="error")

    def do_environment(self):
        self.stream(os.environ.get("SCRIPTED", "") + "\n")

    def do_write(self):
        os.write(1, b"past the protocol\n")

    def do_write_among(self, count):
        """Messages that keep the host busy, and bytes past the protocol before the host can have read them all."""
        message = [self.parts("stream", {"name": "stdout", "text": "m" * 20000}, self.parent) for _ in range(int(count))]
        for parts in message:
            self.sockets["iopub"].send_multipart(parts)
        os.write(1, b"past the protocol\n")

    def do_flood(self, count):
        for number in range(int(count)):
            self.stream("%07d\n" % number)

    def do_die(self):
        os._exit(3)

    # -- what no kernel should

    def do_missign(self):
        message = self.parts("stream", {"name": "stdout", "text": "forged\n"}, self.parent)
        message[-1] = message[-1].replace(b"forged", b"FORGED")
        self.sockets["iopub"].send_multipart(message)

    def do_garbage(self):
        self.sockets["iopub"].send_multipart([os.urandom(100)])

    def do_many(self):
        self.sockets["iopub"].send_multipart([b"x"] * 500)

    def do_nonsense(self):
        """Well signed, but every field of another type than it should have."""
        for kind in ("stream", "display_data", "execute_result", "error", "status", "nobody_knows"):
            for content in ({}, {"text": 1, "name": []}, {"data": [], "traceback": 3}, {"data": {"text/plain": None}},
                            {"ename": {}, "evalue": [], "execution_state": 5}):
                self.send("iopub", kind, content)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        Kernel(json.load(file), sys.argv[2] if len(sys.argv) > 2 else "5.3").serve()
