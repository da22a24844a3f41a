"""What a saved session goes without: threads, processes, connections. Each is named, with the variables that refer to it.

A fork refuses to drop these; a session that is saved must end as a process, so they end too, and the answer lists them. Nothing of the
session's code runs here: only exact types of the standard library are asked for what they refer to.
"""

import os
import sys

from . import branch

MAX_LEFT = 32  # things that are listed
MAX_NAMES = 4  # variables of each
MAX_TEXT = 100


def left_behind(kernel, passed, alone, carried):
    """[[kind, name, [variable, ...]], ...]"""
    lost = [[kind, name[:MAX_TEXT], []] for kind, name in carried.lost]
    if alone:
        return lost
    targets = branch.open_fds(passed)
    found = [(kind, name, thread_key(name)) for kind, name in branch.threads()]
    found += [(kind, name, ("process", number_in(name))) for kind, name in branch.children()]
    found += [(kind, name, ("descriptor", number_in(name))) for kind, name in branch.descriptors(kernel, targets)]
    found += [(kind, name, None) for kind, name in files_left(carried)]
    names = variables_of(kernel.cells.ns)
    listed = [[kind, name[:MAX_TEXT], names.get(key, [])[:MAX_NAMES]] for kind, name, key in found[:MAX_LEFT]]
    if len(found) > MAX_LEFT:
        listed.append(["more", "%d others" % (len(found) - MAX_LEFT), []])
    return lost + listed


def files_left(carried):
    return [["file", "descriptor %d (removed, and too large to carry)" % fd] for fd, _, path, _, _ in carried.fds
            if path == "/dev/null" and is_removed(fd)]


def is_removed(fd):
    try:
        return os.readlink("/proc/self/fd/%d" % fd).endswith(" (deleted)")
    except OSError:
        return False


def number_in(name):
    digits = "".join(char if char.isdigit() else " " for char in name).split()
    return int(digits[-1] if name.endswith(")") and digits else digits[0]) if digits else None


def thread_key(name):
    return "thread", name


def variables_of(namespace):
    """{(kind, number or name): [variable]} for values of the standard library's own types."""
    found = {}
    for name, value in list(namespace.items()):
        if type(name) is not str or name.startswith("_"):
            continue
        try:
            key = key_of(value)
        except Exception:
            continue  # closed meanwhile, or half made
        if key is not None:
            found.setdefault(key, []).append(name[:MAX_TEXT])
    return found


def key_of(value):
    threading, subprocess, socket = (sys.modules.get(each) for each in ("threading", "subprocess", "socket"))
    kind = type(value)
    if threading is not None and isinstance(value, threading.Thread):
        return thread_key(threading.Thread.name.fget(value))
    if subprocess is not None and kind is subprocess.Popen:
        return "process", value.pid
    if socket is not None and kind is socket.socket:
        return "descriptor", value.fileno()
    import io

    if kind in (io.FileIO, io.BufferedReader, io.BufferedWriter, io.TextIOWrapper):
        return "descriptor", value.fileno()
    return None
