"""What the kernel's C part offers rpc.py, on a socketpair, and a scripted host at the other end.

Frames have the layout of src/wire/frame.h. Needs no pytest.
"""

import json
import os
import socket
import struct
import sys
import threading

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "kernel")))

HEADER = struct.Struct("<BBBBIIIQ")
MAGIC, VERSION = 0x57, 1
RUN, REPLY, SHUTDOWN, CALL = 2, 3, 4, 69
RECV_BYTES = 65536


def frame_bytes(kind, ident, text=b"", raw=b""):
    return HEADER.pack(MAGIC, VERSION, kind, 0, ident, len(text), len(raw), 0) + text + raw


class Stream:
    """Frames off a socket, read in large pieces as the C part does."""

    def __init__(self, sock):
        self.sock = sock
        self.buffer = b""

    def need(self, size):
        while len(self.buffer) < size:
            try:
                part = self.sock.recv(RECV_BYTES)
            except ConnectionResetError:
                part = b""
            if not part:
                return False
            self.buffer += part
        return True

    def next(self):
        if not self.need(HEADER.size):
            return None
        magic, version, kind, _, ident, text_size, raw_size, _ = HEADER.unpack_from(self.buffer)
        assert (magic, version) == (MAGIC, VERSION)
        end = HEADER.size + text_size + raw_size
        if not self.need(end):
            raise EOFError
        text = self.buffer[HEADER.size:HEADER.size + text_size]
        raw = self.buffer[HEADER.size + text_size:end]
        self.buffer = self.buffer[end:]
        return kind, ident, text or None, raw or None


class Link:
    """Stands for the module _workcell."""

    RUN, REPLY, SHUTDOWN, CALL = RUN, REPLY, SHUTDOWN, CALL

    def __init__(self, sock):
        self.sock = sock
        self.stream = Stream(sock)
        self.pid = os.getpid()
        self.send_lock = threading.RLock()  # a signal handler of a test may send too
        self.readers = 0
        self.most_readers = 0

    def fileno(self):
        return self.sock.fileno()

    def is_kernel(self):
        return os.getpid() == self.pid

    def send(self, kind, ident, text=None, raw=None):
        for part in (text, raw):
            assert part is None or type(part) is bytes
        if not self.is_kernel():
            return False
        with self.send_lock:
            self.sock.sendall(frame_bytes(kind, ident, text or b"", raw or b""))
        return True

    def recv(self):
        self.readers += 1
        self.most_readers = max(self.most_readers, self.readers)
        try:
            return self.stream.next()
        finally:
            self.readers -= 1

    def pending(self):
        import select

        return bool(self.stream.buffer) or bool(select.select([self.sock], [], [], 0)[0])


class Host:
    """Reads calls on a thread of its own. handle(host, ident, method, args, raw) answers, now or later."""

    def __init__(self, handle):
        ours, theirs = socket.socketpair()
        self.sock = theirs
        self.link = Link(ours)
        self.handle = handle
        self.calls = []
        self.cancelled = []
        self.seen = threading.Condition()
        self.problem = None
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def channel(self):
        from workcell_kernel.rpc import Channel

        return Channel(self.link, self.link.fileno())

    def serve(self):
        stream = Stream(self.sock)
        try:
            while True:
                frame = stream.next()
                if frame is None:
                    return
                kind, ident, text, raw = frame
                assert kind == CALL, frame
                call = json.loads(text)
                assert set(call) == {"method", "args"}, call
                with self.seen:
                    if call["method"] == "cancel":
                        self.cancelled.append(call["args"]["id"])
                    else:
                        self.calls.append((ident, call["method"], call["args"], raw))
                    self.seen.notify_all()
                if call["method"] != "cancel":
                    self.handle(self, ident, call["method"], call["args"], raw)
        except OSError:
            pass
        except BaseException as exc:
            self.problem = exc
            self.sock.close()
            raise

    def wait_for(self, condition, seconds=20):
        with self.seen:
            assert self.seen.wait_for(condition, seconds), "the host waited in vain"

    def send(self, kind, ident=0, value=None, raw=None):
        text = b"" if value is None else json.dumps(value).encode()
        with self.lock:
            self.sock.sendall(frame_bytes(kind, ident, text, raw or b""))

    def reply(self, ident, result=None, raw=None):
        self.send(REPLY, ident, {"result": result}, raw)

    def fail(self, ident, **error):
        self.send(REPLY, ident, {"error": error})

    def close(self):
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.sock.close()
        self.link.sock.close()
        assert self.problem is None, self.problem

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def echo(host, ident, method, args, raw):
    host.reply(ident, {"method": method, "args": args}, raw)


def raises(kind, call, *args, **kwargs):
    """The exception that call() must end with."""
    try:
        value = call(*args, **kwargs)
    except BaseException as exc:
        assert type(exc).__name__ == getattr(kind, "__name__", kind), "%r instead of %s" % (exc, kind)
        return exc
    raise AssertionError("expected %s, got %r" % (kind, value))


def main(tests):
    for name, test in sorted(tests.items()):
        if name.startswith("test_"):
            test()
            print("ok", name)
