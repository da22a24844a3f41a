"""Finds the limit of the sandbox that caused an exception: the operating system does not say which."""

import errno
import os

limits = {}  # name -> the most there may be; 0: no limit


def _tasks():
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                total += len(os.listdir("/proc/%s/task" % name))
            except OSError:
                pass
    return total


def _tmp():
    most, path = 0, "/tmp"
    for path in ("/tmp", "/dev/shm"):
        state = os.statvfs(path)
        most = max(most, (state.f_blocks - state.f_bfree) * state.f_frsize)
    return most


def _memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * 4096


def _run_memory():
    """What a run of a batch may have, where that is less than its session may; else 0. It is set from outside."""
    import resource

    most = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return most if 0 <= most < limits["memory"] else 0


def _full(path):
    """Whether the file system of this path belongs to the sandbox and is full."""
    try:
        state = os.statvfs(path)
    except OSError:
        return False
    return state.f_bavail == 0 or state.f_favail == 0


def _name(exc):
    if isinstance(exc, MemoryError):
        return "memory"
    if isinstance(exc, RuntimeError) and "can't start new thread" in str(exc):
        return "pids"
    if not isinstance(exc, OSError):
        return None
    if exc.errno == errno.EAGAIN and isinstance(exc, BlockingIOError) and exc.filename is None:
        # A descriptor in non-blocking mode says the same; only a full house means the limit.
        return "pids" if _tasks() >= limits.get("pids", 0) * 0.9 else None
    if exc.errno == errno.EMFILE:
        return "files"
    if exc.errno == errno.EFBIG:
        return "file_size"
    if exc.errno == errno.ENOSPC:
        return "tmp" if _full("/tmp") or _full("/dev/shm") else None
    if exc.errno == errno.ENOMEM:
        return "memory"
    return None


_USED = {"pids": _tasks, "tmp": _tmp, "memory": _memory}


def of(exc):
    """{"name", "max", "used"}, or None."""
    seen = 0
    while exc is not None and limits and seen < 10:
        try:
            name = _name(exc)
            if name and limits.get(name):
                most = limits[name]
                try:
                    most = name == "memory" and _run_memory() or most
                    used = _USED[name]() if name in _USED else most
                except (OSError, ImportError):
                    used = most
                return {"name": name, "max": most, "used": used}
        except Exception:
            return None
        exc = exc.__cause__ or exc.__context__
        seen += 1
    return None
