"""A session's kernel in the host's own process. Its host side is inproc.py, its way to the host hostlink.c.

Each session has this module, and those that it imports and that keep a session's state, for itself.
"""

import builtins
import linecache
import os
import sys
from _thread import allocate_lock, get_ident
from json import dumps, loads

import _workcell
from workcell_kernel import inproc

from . import display as display_module
from . import errors, interactive, kernel, namespaces, ns_deps, portable, rpc, streams
from .cell import Cells


class Link(_workcell.Link):
    """Replaces the module _workcell."""

    INIT, RUN, REPLY, SHUTDOWN = _workcell.INIT, _workcell.RUN, _workcell.REPLY, _workcell.SHUTDOWN
    FORK, LOAD = _workcell.FORK, _workcell.LOAD
    READY, RESULT, DISPLAY, CALL = _workcell.READY, _workcell.RESULT, _workcell.DISPLAY, _workcell.CALL
    HELLO, MAX_JSON, MAX_RAW = _workcell.HELLO, _workcell.MAX_JSON, _workcell.MAX_RAW
    blank, fill = staticmethod(_workcell.blank), staticmethod(_workcell.fill)


class Direct(rpc.Channel):
    """A call is a function call. Only tasks, of which many may wait at once, wait for messages."""

    overlaps = False

    def __init__(self, link):
        self.direct = link
        super().__init__(link, -1)

    fd = property(lambda self: self.direct.watch(), lambda self, value: None)

    def call(self, method, args=None, raw=None, data=None):
        return self.result_of(self.direct.ask(rpc.encode(method, args) if data is None else data, raw))

    def submit(self, method, args=None, raw=None, data=None, slot=None):
        if slot is None:
            slot = rpc._ThreadSlot()
        slot.ident = 0
        slot.deliver(self.direct.ask(rpc.encode(method, args) if data is None else data, raw))
        return slot

    def wait(self, slot):
        return self.result_of(slot.frame)


class Out(streams.TextOut):
    def __init__(self, link, fd):
        super().__init__(fd)
        self._link = link

    def fileno(self):
        """An output stream for children: it leads to the same place as our own output."""
        return self._link.pipe(self._fd)


class In:
    """sys.stdin: at its end."""

    encoding, errors, mode, name, closed = "utf-8", "surrogateescape", "r", "<stdin>", False

    def read(self, size=-1):
        return ""

    def readline(self, size=-1):
        return ""

    def readlines(self, hint=-1):
        return []

    def __iter__(self):
        return iter(())

    def isatty(self):
        return False

    def flush(self):
        pass

    def fileno(self):
        import io

        raise io.UnsupportedOperation("stdin of an in-process session has no file descriptor")


class Guest(kernel.Kernel):
    session = None
    plain_names = False

    def __init__(self, address):
        self.address, self.thread = address, get_ident()
        self.link = link = Link(address)
        kernel._workcell = streams._workcell = link
        self.gone = allocate_lock()
        self.gone.acquire()
        self.publish = kernel.publish
        self.replaced, self.hooks, self.argv = {}, {}, [""]
        self.streams = {"stdin": In(), "stdout": Out(link, 1), "stderr": Out(link, 2)}
        kernel.own_stderr = self.streams["stderr"]
        before = builtins.__dict__.get("get_ipython")
        self.cells = Cells()
        if before is None:
            builtins.__dict__.pop("get_ipython", None)  # another session of this process may have been faster
        else:
            builtins.get_ipython = before
        self.cells.interrupted = lambda: self.running != 0 and link.interrupted_run() == self.running

    fd = property(lambda self: self.link.watch())

    def pipe(self, stream, null):
        """Where a child's stdout or stderr goes; ``null`` once the session is over."""
        fd = self.link.pipe(stream)
        return null if fd < 0 else fd

    def configure(self, text, session):
        options = loads(text)
        inproc.begin(self, options["session"])
        if not self.plain_names:
            self.cells.name = "<cell %%d of session %s>" % self.session[:8]
        for name in options["preload"].split(","):
            try:
                if name:
                    __import__(name)
            except BaseException as exc:
                return {"error": {"code": "preload_failed", "message": "%s: %s: %s" % (name, type(exc).__name__, exc)}}
        if "" not in sys.path[:1] and getattr(inproc.host.get("__main__"), "__file__", None) is None:
            sys.path.insert(0, "")
        if options.get("site"):
            ns_deps.make_importable([options["site"]])
        if options.get("namespaces") or options.get("gate_shell"):
            self.channel = Direct(self.link)
        if options.get("namespaces"):
            namespaces.install(self.cells.ns, self.channel, self.cells.run_coroutine)
        if options.get("gate_shell"):
            self.ask_before_commands()
        if options.get("portable"):
            self.cells.portable = portable.part
        if options.get("tables"):
            display_module.tables = True
        if options.get("restore_cwd"):
            self.cells.home = options["cwd"], os.getcwd()
        if "IPython" in sys.modules:
            interactive.get_interactive()  # its one global instance is that of a session before this one
        else:
            interactive.install_import_hook()
        return {"python": "%d.%d.%d" % sys.version_info[:3], "pid": os.getpid()}

    running = 0

    def run(self, ident, raw):
        """As in kernel.py, but that an interrupt is an exception which may come at any step of this thread."""
        link, outcome = self.link, None
        try:
            try:
                self.running = ident
                link.begin_run(ident)
                outcome = self.cells.run(raw.decode() if raw else "")
            except Exception as exc:
                outcome = None, None, (), errors.describe(exc)  # source that is not UTF-8
            finally:
                link.end_run()
        except KeyboardInterrupt as exc:
            link.end_run()
            if outcome is None:
                outcome = None, None, (), errors.describe(exc)
        self.running = 0
        value, text, mime, error = outcome
        if error is None and not mime and link.answer(ident, value, text):
            return
        if not link.is_kernel():
            self.leave_child(error)
        self.answer(ident, value, text, mime, error)

    def leave(self):
        """Ends the session, but not the process."""
        cells = self.cells
        for n in range(1, cells.count + 1):
            linecache.cache.pop(cells.name % n, None)
        if cells.loop is not None and not cells.loop.is_closed():
            cells.loop.close()
        cells.ns.clear()
        cells.out.clear()
