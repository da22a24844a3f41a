"""A guard rail: in a session with approval of shell commands, processes can only be started with ``!cmd`` and similar syntax.

Python calls audit hooks before it starts a process, and a hook cannot be removed. It is not a security boundary: code that reaches
for C (ctypes, an extension of its own) goes around it, and what must not be reached has to be confined (docs/gate.md).
"""

import sys
from _thread import get_ident

# CPython's audit events, and what the code probably wrote.
_EVENTS = {
    "subprocess.Popen": "subprocess",
    "os.system": "os.system()",
    "os.exec": "os.exec*()",
    "os.posix_spawn": "os.posix_spawn()",
    "os.spawn": "os.spawn*()",
    "os.fork": "os.fork()",
    "os.forkpty": "os.forkpty()",
    "pty.spawn": "pty.spawn()",
    "_posixsubprocess.fork_exec": "_posixsubprocess.fork_exec()",
}


class ShellEscapeError(RuntimeError, PermissionError):
    """Both exceptions: code that handles refusals of the system handles the second."""


ShellEscapeError.__module__ = "builtins"


class _Opened:
    """``with opened:`` this thread may start a process."""

    def __init__(self):
        self.threads = set()

    def __enter__(self):
        self.threads.add(get_ident())

    def __exit__(self, *exc):
        self.threads.discard(get_ident())


opened = _Opened()


def _refuse(event):
    raise ShellEscapeError("Direct %s calls are not allowed. Use ! syntax." % _EVENTS[event])


def install():
    import _posixsubprocess

    def hook(event, args, events=frozenset(_EVENTS), threads=opened.threads, ident=get_ident, refuse=_refuse):
        if event in events and ident() not in threads:
            refuse(event)

    def fork_exec(*args):
        sys.audit("_posixsubprocess.fork_exec")
        return plain(*args)

    plain = _posixsubprocess.fork_exec
    _posixsubprocess.fork_exec = fork_exec
    sys.addaudithook(hook)
