"""The kernel in Pyodide: the same package as elsewhere, one thread, no processes, a file system in memory.

warm() is what a memory snapshot is made after; main() is a session.
"""

import asyncio
import builtins
import os
import sys
import time

import _workcell
from workcell_kernel import cell, errors, interactive, kernel, ns_deps, streams
from workcell_kernel import display as display_module


class Loop(asyncio.BaseEventLoop):
    """An event loop that sleeps until a frame of the host arrives; nothing else can wake it."""

    def __init__(self):
        super().__init__()
        self._selector = self
        self._readers = {}

    # -- what BaseEventLoop asks of its parts

    def select(self, timeout):
        _workcell.wait(timeout, bool(self._readers))
        return list(self._readers.values()) if self._readers and _workcell.pending() else []

    def _process_events(self, ready):
        for callback, args in ready:
            self.call_soon(callback, *args)

    def _write_to_self(self):
        """Has no effect: there is no other thread."""

    def add_reader(self, fd, callback, *args):
        self._check_closed()
        self._readers[fd] = callback, args

    def remove_reader(self, fd):
        return self._readers.pop(fd, None) is not None


class Policy(asyncio.events._BaseDefaultEventLoopPolicy):
    _loop_factory = Loop


def sleep(seconds):
    """time.sleep() that an interrupt ends."""
    if isinstance(seconds, str) or not hasattr(seconds, "__float__") and not hasattr(seconds, "__index__"):
        raise TypeError("'%s' object cannot be interpreted as an integer" % type(seconds).__name__)
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    _workcell.wait(float(seconds), False)


class Kernel(kernel.Kernel):
    fd = 0

    def take_over(self):
        _workcell.connect()
        reseed()
        sys.stdin = sys.__stdin__ = open(os.devnull, "r", encoding="utf-8", errors="surrogateescape")
        sys.stdout = sys.__stdout__ = streams.TextOut(1)
        kernel.own_stderr = sys.stderr = sys.__stderr__ = streams.TextOut(2)
        builtins.input = streams.no_input
        display_module.publish = kernel.publish
        if _workcell.has_network():
            import workcell_network

            workcell_network.install()
        self.cells = cell.Cells()
        self.cells.interrupted = _workcell.interrupt_wanted
        self.cells.install()
        import _signal

        _signal.signal(_workcell.SIGINT, kernel.on_interrupt)

    def configure(self, text, session):
        options = kernel.loads(text)
        ns_deps.extra = {"pyodide": True}
        ns_deps.install_wheels = install_wheels
        try:
            install_wheels(options.get("wheels"), session)
        except Exception as exc:
            return {"error": {"code": "invalid", "message": "packages: %s" % exc}}
        # The same names as outside, in a file system of its own.
        for folder in (options["cwd"], options["env"].get("HOME", "/")):
            os.makedirs(folder, exist_ok=True)
        return super().configure(text, session)

    def leave(self):
        import atexit

        atexit._run_exitfuncs()
        self.cells.ns.clear()


_installed = set()


def install_wheels(wheels, data):
    """Unpacks wheels of pure Python: [[name, size, hash], ...] and their bytes, one after another."""
    import hashlib
    import io
    import sysconfig
    import zipfile

    site = sysconfig.get_paths()["purelib"]
    at, data = 0, memoryview(data or b"")
    for name, size, digest in wheels or ():
        wheel, at = data[at:at + size], at + size
        if digest in _installed:
            continue
        if hashlib.sha256(wheel).hexdigest() != digest:
            raise ValueError("%s differs from what the host sent" % name)
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            members = archive.namelist()
            broken = [m for m in members if m.startswith("/") or ".." in m.split("/")]
            if broken:
                raise ValueError("%s holds %r" % (name, broken[0]))
            archive.extractall(site)
        _installed.add(digest)
        # What a wheel puts elsewhere than into site-packages.
        root = os.path.join(site, "-".join(name.split("-")[:2]) + ".data")
        for part in ("purelib", "platlib"):
            if os.path.isdir(os.path.join(root, part)):
                import shutil

                shutil.copytree(os.path.join(root, part), site, dirs_exist_ok=True)
    if site not in sys.path:
        sys.path.append(site)
    errors.add_library(site)
    ns_deps.invalidate_caches()


def reseed():
    """Reseeds random number generators: all sessions start from the same memory snapshot."""
    import random

    random.seed()
    kernel.reseed()


def warm(preload):
    """Everything that does not depend on the session. None, or why a preload cannot be imported."""
    import random  # noqa: F401
    from importlib import import_module

    for name in filter(None, preload.split(",")):
        try:
            import_module(name)
        except BaseException as exc:
            return "%s: %s: %s" % (name, type(exc).__name__, exc)
    asyncio.events._set_event_loop_policy(Policy())
    asyncio._set_running_loop(None)
    time.sleep = sleep
    errors._OURS = os.path.dirname(__file__) + os.sep
    errors.add_library("/lib/python%d%d.zip" % sys.version_info[:2])
    interactive.install_import_hook()
    for step in interactive.warm_steps():
        step()
    interactive.current = None
    rehearse()


def rehearse():
    """The paths of a first cell once: in WebAssembly the first time costs much more than the second."""
    cells = cell.Cells()
    for source in ("1+1", "x = {'a': [1, 2.5, None]}\nx", "def f(n):\n    return n / 0\nf(1)", "x =", "await asyncio.sleep(0)"):
        cells.run(source)
    import linecache

    linecache.cache.clear()


def main():
    own = Kernel()
    own.take_over()
    _workcell.send(_workcell.HELLO, 0)
    own.serve()
    own.leave()
