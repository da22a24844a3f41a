"""A /tmp for the tests alone: what lies in it after a stage, that stage has left there."""

import ctypes
import os
import re

import docker_engine

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What is kept in /tmp on purpose: by pytest folders of failed tests, by Node its cache, and whole outputs that a result names.
KEPT = re.compile(r"pytest-of-\w+|node-compile-cache|hsperfdata_\w+|workcell-[0-9a-f]{32}-\w{6}\.txt")
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000


def take(folder):
    """Makes this folder the /tmp of this process and all that it starts. False where that is not allowed, or of no use because a
    container engine that was up before sees the other /tmp."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source, target, flags):
        if libc.mount(source.encode(), target.encode(), None, flags, None) != 0:
            raise OSError(ctypes.get_errno(), "mount on " + target)

    if docker_engine.wanted() and docker_engine.answers(docker_engine.host()) or libc.unshare(CLONE_NEWNS) != 0:
        return False
    # A tree in /tmp keeps its place, with what lies beside it.
    beside = "/".join(ROOT.split("/")[:3]) if ROOT.startswith("/tmp/") else None
    try:
        mount("none", "/", MS_REC | MS_PRIVATE)
        fd = os.open(beside or "/", os.O_PATH)
        mount(folder, "/tmp", MS_BIND)
        if beside:
            os.mkdir(beside)
            mount("/proc/self/fd/%d" % fd, beside, MS_BIND | MS_REC)
        os.close(fd)
    except OSError as error:
        print("no /tmp for this run alone: %s" % error)
        return False
    os.chdir(ROOT)
    os.environ.pop("TMPDIR", None)
    return True


def names():
    return set(os.listdir("/tmp"))


def left_since(before):
    """The names that were not there before; at most 20 of them, as text, or ""."""
    left = sorted(name for name in names() - before if not KEPT.fullmatch(name))
    return ", ".join(left[:20]) + (" and %d more" % (len(left) - 20) if len(left) > 20 else "")
