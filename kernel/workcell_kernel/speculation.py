"""The copy of a kernel that goes on while a call of its source waits for a person (docs/branches.md, "Speculation").

The host forks the kernel in the middle of the call, answers the copy with the result that the call will probably have, and reads nothing that
the copy sends until it takes its source's place. So output and calls to the host wait by themselves. Here are the other effects of a copy that no
sandbox confines: CPython's audit events say when one is about to happen, and the copy then makes a call, which is answered once it has become the
session. As with guard.py that is a rail for honest code; code that reaches for C goes around it.
"""

import os
import sys

# Held unless all of their paths lie in the copy's own workspace.
_PATHS = {
    "os.chmod": 1, "os.chown": 1, "os.link": 2, "os.mkdir": 1, "os.remove": 1, "os.removexattr": 1, "os.rename": 2, "os.rmdir": 1,
    "os.setxattr": 1, "os.symlink": 2, "os.truncate": 1, "os.utime": 1, "sqlite3.connect": 1,
}
_ALWAYS = frozenset((
    "ctypes.dlopen", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn",
    "signal.pthread_kill", "socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyaddr", "socket.gethostbyname",
    "socket.sendmsg", "socket.sendto", "subprocess.Popen", "syslog.syslog",
))
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

holding = None  # (channel, workspace) of a copy; None: this is a session's kernel
_installed = False


def hold_effects(channel, workspace):
    """In the copy."""
    global holding, _installed
    holding = channel, os.path.realpath(workspace)
    if not _installed:
        _installed = True
        sys.addaudithook(_hook)


def release():
    """It is the session's kernel now."""
    global holding
    holding = None


def _hook(event, args):
    if holding is None:
        return
    if event == "open":
        path, _, flags = args
        if not isinstance(flags, int) or not flags & _WRITES or isinstance(path, int) or path in ("/dev/null", b"/dev/null"):
            return
        paths = (path,)
    elif event in _PATHS:
        paths = args[:_PATHS[event]]
    elif event not in _ALWAYS:
        return
    else:
        paths = ()
    _wait(paths)


def _wait(paths):
    global holding
    channel, workspace = holding
    holding = None
    try:
        inside = bool(paths)
        for path in paths:
            real = os.path.realpath(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else ""
            inside = inside and real.startswith(workspace + "/")
        if inside:
            holding = channel, workspace
            return
        if not channel.closed:
            channel.call("sessions.list")
    except BaseException:
        holding = channel, workspace  # an interrupt: the effect does not happen
        raise


# -- before the fork

def shared_things(targets):
    """[[kind, name], ...] of what two processes would write to together: open files and mapped memory."""
    import fcntl

    found = []
    for fd, target in targets.items():
        if target.startswith("/") and not target.startswith("/dev/"):
            try:
                writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
            except OSError:
                continue
            if writable:
                found.append(["file", "%s, open for writing" % target])
    with open("/proc/self/maps") as file:
        for line in file:
            parts = line.split(None, 5)
            if parts[1][1] == "w" and parts[1][3] == "s" and not (len(parts) > 5 and parts[5].startswith("/memfd:workcell")):
                found.append(["memory", "mapped from %s" % (parts[5].strip() if len(parts) > 5 else "nowhere")])
    return found


class Randomness:
    """``random`` seeds itself anew after a fork. Only one of the two goes on, so it keeps its numbers."""

    def __init__(self):
        self.module = sys.modules.get("random")
        self.state = self.module.getstate() if self.module is not None else None

    def put_back(self):
        if self.module is not None:
            self.module.setstate(self.state)
