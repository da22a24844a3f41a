"""A session inside ipykernel.

The host starts ipykernel, and has it call join() before anything else. From then on the cells of the session run here as
they do in a kernel of our own, by the same code, and what they write, show and answer goes to the host by the same
frames; what comes by Jupyter's protocol is only the request. Everybody else who is attached talks to ipykernel as usual, and
works on the same variables.

    execute_request of the host's ──▶ do_execute() ──▶ Kernel.run() ──▶ RESULT frame, then execute_reply
    execute_request of another's  ──▶ ipykernel's own do_execute(), with ipykernel's own streams

ipykernel runs everything inside its asyncio loop. While a cell of the session runs, that loop is put aside: the cell finds none
running, as everywhere else, and may run its own.
"""

import asyncio
import atexit
import builtins
import functools
import os
import signal
import sys
from json import dumps, loads

import _workcell

from . import display as display_module
from . import figures, interactive, kernel
from .awaits import NoLoop
from .cell import Cells
from .streams import TextOut, no_input

PUMP_SECONDS = 0.005  # between iterations of the session's loop while no cell runs and tasks of it are pending


class JupyterKernel(kernel.Kernel):
    foreign = 0      # requests of others under way
    pumping = False

    def __init__(self, app_kernel, session):
        self.app, self.client = app_kernel, session
        self.main = asyncio.get_running_loop()

    def take_over(self, fds):
        self.fd = _workcell.join_kernel(*fds)
        self.streams = sys.stdin, sys.stdout, sys.stderr  # ipykernel's
        sys.stdin = sys.__stdin__ = open(0, "r", encoding="utf-8", errors="surrogateescape", closefd=False)
        sys.stdout = sys.__stdout__ = TextOut(1)
        sys.stderr = sys.__stderr__ = kernel.own_stderr = TextOut(2)
        self.own_streams = sys.stdin, sys.stdout, sys.stderr
        display_module.publish = kernel.publish
        figures.install_hook()
        self.cells = Cells()
        self.cells.interrupted = _workcell.interrupt_wanted
        self.take_over_requests()
        # What ipykernel runs has these names from now on.
        self.app.shell.user_module, self.app.shell.user_ns = self.cells.module, self.cells.ns
        signal.signal(signal.SIGINT, self.on_signal)
        signal.siginterrupt(signal.SIGINT, True)
        self.app.pre_handler_hook = self.app.post_handler_hook = lambda: None  # they change the handler
        self.main.add_reader(self.fd, self.on_readable)
        _workcell.send(_workcell.HELLO, 0)

    def on_readable(self):
        """INIT, which comes once. After it whoever calls the host reads."""
        self.main.remove_reader(self.fd)
        frame = _workcell.recv()
        if frame is None or frame[0] != _workcell.INIT:
            os._exit(70)
        # Not in join(): ipykernel puts builtins back when the request that called it ends.
        self.cells.install()
        builtins.input = no_input
        interactive.get_interactive().kernel = self.app
        _workcell.send(_workcell.READY, frame[1], dumps(self.configure(frame[2], frame[3])).encode())

    def on_signal(self, signum, frame):
        if self.foreign:
            signal.default_int_handler(signum, frame)
        else:
            kernel.on_interrupt(signum, frame)

    # -- requests

    def take_over_requests(self):
        original = self.app.do_execute

        @functools.wraps(original)
        async def do_execute(code, silent, *args, **kwargs):
            parent = self.app.get_parent("shell")
            run = (parent.get("metadata") or {}).get("workcell_run")
            if run is None or parent.get("header", {}).get("session") != self.client:
                return await self.run_foreign(original, code, silent, *args, **kwargs)
            with NoLoop():
                self.take_queued()
                self.run(run, code.encode("utf-8", "surrogatepass"))
            if not self.pumping:
                self.pump()
            return {"status": "ok", "execution_count": self.cells.count, "payload": [], "user_expressions": {}}

        self.app.do_execute = do_execute

        async def shutdown_request(stream, ident, parent):
            # On the control thread. The session ends as everywhere else, on the main thread and when its cell is over; the
            # host waits for the end of the process, not for an answer.
            self.main.call_soon_threadsafe(self.leave)

        # What ipykernel would tidy up then goes with the process.
        atexit.unregister(self.app.shell.atexit_operations)
        for name in ("close", "cleanup_connection_file"):
            atexit.unregister(getattr(self.app.parent, name))
        self.app.control_handlers["shutdown_request"] = shutdown_request
        self.app.shell_handlers["shutdown_request"] = shutdown_request

    async def run_foreign(self, original, *args, **kwargs):
        """Somebody else's cell: ipykernel's business. The first one brings the names that IPython needs."""
        ns = self.cells.ns
        ns.setdefault("_ih", ns.get("In", [""]))
        ns.setdefault("_oh", ns.get("Out", {}))
        ns.setdefault("_dh", [os.getcwd()])
        self.foreign += 1
        sys.stdin, sys.stdout, sys.stderr = self.streams
        for stream in self.streams[1:]:
            stream.set_parent(self.app.get_parent("shell"))
        try:
            return await original(*args, **kwargs)
        finally:
            for stream in self.streams[1:]:
                stream.flush()
            self.foreign -= 1
            if not self.foreign:
                sys.stdin, sys.stdout, sys.stderr = self.own_streams

    # -- between cells

    def take_queued(self):
        """What the host has told meanwhile."""
        if self.channel is not None:
            for frame in self.channel.take_queued():
                if frame and frame[0] == _workcell.REPLY:
                    self.take_news(loads(frame[2]))

    def pump(self):
        """One iteration of the session's loop, and another one soon while tasks are pending."""
        loop = self.cells.loop
        self.pumping = loop is not None and not loop.is_closed() and bool(asyncio.all_tasks(loop))
        if not self.pumping:
            return
        with NoLoop():
            loop.call_soon(loop.stop)
            loop.run_forever()
        self.main.call_later(PUMP_SECONDS, self.pump)


def keep_modules():
    """Code in the session may replace what a module holds; ipykernel's messages must not depend on it."""
    import json
    import types

    from jupyter_client import session

    session.json = types.ModuleType("json")
    session.json.__dict__.update(json.__dict__)


def join(fds, session, preload):
    from ipykernel.kernelapp import IPKernelApp

    for name in filter(None, preload.split(",")):
        __import__(name)
    sys.argv = [""]
    keep_modules()
    JupyterKernel(IPKernelApp.instance().kernel, session).take_over(fds)
