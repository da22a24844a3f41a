"""``sessions``: children of this session, forked by its own code where the host allows it.

``sessions.fork()`` is one call of the host in three steps:

    CALL sessions.fork ──▶ host: FORK frame, then the reply with the child's id
    this kernel forks, in the middle of its cell; the copy serves its own connection from there and never returns to the code
    CALL sessions.ready ──▶ host: the reply once the child can run cells, or why there is none

The order of the connection guarantees that the FORK frame is there before the first reply.
"""

from _thread import get_ident

fork_hook = None  # the kernel's: forks for the FORK frame that has come, and does not return in the copy


class ChildResult:
    """What a cell did in a child. ``error`` is None, or a dict with ``type``, ``message``, ``traceback`` and ``code``."""

    __slots__ = ("value", "repr", "stdout", "stderr", "text", "error", "state", "duration_ms")

    def __init__(self, answer):
        for name in self.__slots__:
            setattr(self, name, answer.get(name))

    def raise_for_error(self):
        """Raises ``ChildError`` if the cell failed; returns the result otherwise."""
        if self.error is not None:
            from .ns_errors import ChildError

            exc = ChildError("%s: %s" % (self.error["type"], self.error["message"]), "sessions", "run", self.error["type"],
                             self.error["code"])
            exc.result = self
            raise exc
        return self

    def __repr__(self):
        if self.error is not None:
            return "<ChildResult %s: %s>" % (self.error["type"], self.error["message"])
        return "<ChildResult %s>" % (self.repr if self.repr is not None else "without a value")


class Child:
    """A session that goes on from the state of this one. It ends with ``close()``, and with the kernel that forked it."""

    __slots__ = ("id", "_channel")

    def __init__(self, channel, ident):
        self.id, self._channel = ident, channel

    def run(self, code, timeout=None):
        """Runs a cell in the child and waits; returns its ``ChildResult``. ``timeout``: seconds; None: the session's."""
        return ChildResult(self._channel.call("sessions.run", self._run_args(code, timeout))[0])

    async def run_async(self, code, timeout=None):
        """``run()`` for code on an event loop: several children run side by side."""
        return ChildResult((await self._channel.call_async("sessions.run", self._run_args(code, timeout)))[0])

    def close(self):
        """Ends the child; may be called more than once."""
        self._channel.call("sessions.close", {"session_id": self.id})

    def _run_args(self, code, timeout):
        args = {"session_id": self.id, "code": code}
        if timeout is not None:
            args["timeout_ms"] = max(1, int(timeout * 1000))
        return args

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        return "<Child %s>" % self.id


class SessionsNamespace:
    """``sessions.fork()`` gives a child; ``sessions.list()`` names those that are open."""

    def __init__(self, channel):
        self._channel = channel

    def fork(self, drop=False):
        """A child that goes on from here. ``drop``: also if threads, child processes or connections cannot go with it."""
        channel = self._channel
        if fork_hook is not None and get_ident() != channel.main_thread:
            raise RuntimeError("sessions.fork() works on the session's main thread only, because a fork has no other threads")
        ident = channel.call("sessions.fork", {"drop": bool(drop)})[0]["session_id"]
        try:
            fork_hook()
            channel.call("sessions.ready", {"session_id": ident})
        except BaseException:
            channel.notify("sessions.close", {"session_id": ident})
            raise
        return Child(channel, ident)

    def list(self):
        """The children that this session's code has forked and that are open."""
        return [Child(self._channel, ident) for ident in self._channel.call("sessions.list")[0]]

    def __repr__(self):
        return "<sessions: fork() gives a child session, list() those that are open>"
