"""The interface of the kernel's C extension, on the bridge to the runner's worker (worker.mjs).

Frames are those of src/wire/frame.h. There is no shared memory with the host: output and data travel in frames. Nothing here
holds a JavaScript object before connect(), so that all of it can be in a memory snapshot.
"""

import re
import struct
import sys
import time

INIT, RUN, REPLY, SHUTDOWN, FORK, LOAD = 1, 2, 3, 4, 6, 7
READY, RESULT, DISPLAY, CALL, HELLO = 65, 66, 67, 69, 70
MAX_RAW = 64 * 1024 * 1024
SIGINT = 2

_HEADER = struct.Struct("<BBBBIIIQ")
_bridge = None
_to_js = None
_run = 0  # the run under way; 0: none
_word = re.compile(r"\w*").match


def connect():
    global _bridge, _to_js
    import _workcell_bridge
    from pyodide.ffi import to_js

    _bridge, _to_js = _workcell_bridge, to_js


# ---- frames


def send(kind, ident, text=None, raw=None):
    _bridge.send(kind, ident, _to_js(text) if text else None, _to_js(raw) if raw else None)
    return True


def _fill(size):
    """Reads this many bytes from the host; None: the host has ended. An interrupt loses no bytes."""
    data = bytearray(size)
    at = 0
    while at < size:
        beat = _bridge.beat()
        if _bridge.available():
            at += _bridge.take(data, at)
        elif _bridge.ended():
            return None
        else:
            _bridge.wait(beat, -1)
    return data


def recv():
    """The next frame, (kind, ident, json or None, raw or None); None: the host has ended. Interrupts are raised out of the wait."""
    while True:
        beat = _bridge.beat()
        if _bridge.available():
            break
        if _bridge.ended():
            return None
        check_interrupt()
        _bridge.wait(beat, -1)
    head = _fill(_HEADER.size)
    if head is None:
        return None
    _, _, kind, _, ident, text_size, raw_size, _ = _HEADER.unpack(head)
    text, raw = _fill(text_size), _fill(raw_size)
    if text is None or raw is None:
        return None
    return kind, ident, bytes(text) or None, bytes(raw) or None


def pending():
    return bool(_bridge.available() or _bridge.ended())


def wait(seconds, for_frames):
    """Sleeps; None: for ever. Ends early with an interrupt, and with a frame if that is asked for."""
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        beat = _bridge.beat()
        check_interrupt()
        if for_frames and pending():
            return
        left = -1 if end is None else (end - time.monotonic()) * 1000
        if end is not None and left <= 0:
            return
        _bridge.wait(beat, left)


# ---- interrupts


def interrupt_wanted():
    return _run != 0 and _bridge.interrupted() == _run


# An interrupt is written once, into memory: there is no signal that could come again.
take_interrupt = interrupt_wanted

_told = 0


def check_interrupt():
    """Checks for an interrupt while sleeping; running Python code checks by itself."""
    global _told
    if interrupt_wanted() and _told != _run:
        import _signal

        _told = _run
        _bridge.calm()
        handler = _signal.getsignal(SIGINT)
        if callable(handler):
            handler(SIGINT, sys._getframe(1))


# ---- cells


def begin_run(ident):
    global _run
    _bridge.begin()
    _run = ident


def end_run():
    global _run
    _run = 0
    left_out = _bridge.end()
    if left_out:
        note = "\n[workcell: %d bytes of output left out: a cell may write at most %d]\n" % (left_out, _bridge.cap)
        _bridge.begin()
        _bridge.text(2, note)


def answer(ident, value, text):
    """The fast path of a plain result; always the slow path in Pyodide."""
    return False


def title(text):
    """There is no process of its own to name: Deno's runs the interpreter."""


def is_kernel():
    return True


def is_expression(source, statements):
    """One line without "=" and ";" that does not begin with a space or with one of the statements: likely an expression."""
    if not source or source[0].isspace() or "\n" in source or "=" in source or ";" in source:
        return False
    return _word(source).group() not in statements


def remember(ns, out, n, value):
    """The value of cell n under _, _n and Out[n], those before it under __ and ___. None: what it looks like is not known."""
    ns["___"] = ns.get("__", "")
    ns["__"] = ns.get("_", "")
    ns["_"] = ns["_%d" % n] = out[n] = value
    return None


# ---- output


def writer(fd):
    def write(text):
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        if text.isascii():
            _bridge.text(fd, text)
        else:
            write_bytes(fd, text.encode("utf-8", "surrogateescape"))
        return len(text)

    return write


def write_bytes(fd, data):
    if data:
        _bridge.bytes(fd, _to_js(data))
    return len(data)


# ---- the network, where the session has one


def has_network():
    return bool(_bridge.network)


def net(op, ident=0, host="", port=0, size=0, data=None, timeout=None):
    """Asks the runner: (result, bytes). OSError where it was refused or failed."""
    call = _bridge.ask(op, ident, host, port, size, None if data is None else _to_js(data))
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        beat = _bridge.beat()
        if _bridge.asked(call):
            break
        check_interrupt()
        left = -1 if end is None else (end - time.monotonic()) * 1000
        if end is not None and left <= 0:
            raise TimeoutError("timed out")
        _bridge.wait(beat, left)
    result, received = _bridge.result(), _bridge.received().to_bytes()
    if result < 0:
        words = received.decode("utf-8", "replace")
        if words.startswith(("NotCapable", "PermissionDenied")):
            raise PermissionError(13, "the session's network profile does not allow this: %s" % words)
        raise ConnectionError(words)
    return result, received
