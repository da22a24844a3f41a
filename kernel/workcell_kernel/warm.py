"""The warm process that kernels are forked from: one per environment (interpreter, venv, preloads).

Runs no code of an agent, holds no secret, and has one thread whenever it forks. It is ready as soon as the lean kernel can run; what makes later kernels and the first
magic fast (rehearsing, importing IPython) is done in small steps while nobody asks for anything, the rehearsal at the latest before the second fork.

    starting ──▶ ready ──▶ (idle: rehearse, then the next warm step) ──▶ warm
                   │                                   │
                   └────────── KERNEL_FORK ◀───────────┘
"""

import gc
import json
import os
import sys

import _workcell

from . import cell, figures, interactive, kernel
from .index_hosts import file_paths, index_hosts

IDLE_BEFORE_WARMING_MS = 20
BUSY_FORKS = 10  # after so many a step is done without a pause: where none comes, the zygote would never be warm, and have no pool


def preload(names):
    """Imports the preloads. A module that cannot be imported is reported and does not end the zygote."""
    import importlib

    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as exc:
            return "%s: %s: %s" % (name, type(exc).__name__, exc)
    return None


REHEARSED = ("1+1", "x = {'a': [1, 2.5, None]}\nx", "def f(n):\n    return n / 0\nf(1)", "x =")
SPECIALISED = 20


def rehearse(sources=REHEARSED):
    """Runs the paths of a first cell, so that a fork finds their memory in place."""
    cells = cell.Cells()
    for source in sources:
        cells.run(source)
    return cells


def rehearse_start():
    """What every kernel does once, often: until the interpreter has specialised it, running code writes to its pages."""
    kernel.load_all()
    cells = rehearse()
    for _ in range(SPECIALISED):
        cells.run(REHEARSED[0])
        kernel.rehearse_configure()
    forget_sources()


def rehearse_programs():
    """The same in a zygote whose kernels run nothing but programs, in forks: what is not loaded is not copied for each of them."""
    from . import script

    for _ in range(SPECIALISED):
        script.rehearse()
        kernel.rehearse_configure()
    _workcell.template_code()


def warm_saving():
    """What the first save of a session, and each wake, would have to import."""
    from . import branch, carry, held  # noqa: F401


def forget_sources():
    import linecache

    linecache.cache.clear()


def rehearse_once_more():
    """In a kernel of the pool: the pages that every cell writes to. Those of errors would be 1.3 MB more that most never need."""
    rehearse(REHEARSED[:1])
    forget_sources()


class Zygote:
    rehearsed = forked = False

    def __init__(self, lifeline, for_programs):
        self.for_programs = for_programs
        _workcell.image_learn()
        self.kernel = kernel.Kernel()
        gc.freeze()  # without a collection: our own modules leave no garbage, and it would visit every object
        self.lifeline = lifeline
        self.children = {}
        self.steps = None

    def settle(self):
        """Freezes the current objects: kernels start with them."""
        _workcell.image_learn()
        self.kernel = kernel.Kernel()
        gc.collect()
        gc.freeze()

    def rehearse(self):
        """Once. The first kernel does without, unless it has time: a command that runs one cell would only wait for it."""
        if not self.rehearsed:
            self.rehearsed = True
            if self.for_programs:
                rehearse_programs()
            else:
                rehearse_start()
            self.settle()

    def warm_step(self):
        """Does the next bit of warming; False when there is nothing left to do."""
        if not self.rehearsed:
            self.rehearse()
            return True
        if self.steps is None:
            self.steps = [] if self.for_programs else [*interactive.warm_steps(), warm_saving]
        if self.steps:
            self.steps.pop(0)()
            if self.steps:
                gc.freeze()  # a kernel's last collection would visit, and so copy, what was imported
                return True
            os.environ.clear()  # it is the session's; what was imported has seen the interpreter's own
            self.settle()
        _workcell.zygote_send(_workcell.ZYGOTE_WARMED, 0, 0, 0, b"")
        return False

    def fork(self, ident, pooled, fds, payload):
        # socket, stdout, stderr, ring; for a sandboxed kernel also its plan, and the way in: payload says how many of what (spawn_msg.h).
        if self.forked or pooled or self.for_programs:
            self.rehearse()
        self.forked = True
        plan = fds[4] if len(fds) > 4 else -1
        into = plan >= 0 and payload[:4] != bytes(4)
        try:
            pid = _workcell.fork_into(fds, payload) if into else os.fork()
        except OSError as exc:
            for fd in fds:
                os.close(fd)
            _workcell.zygote_send(_workcell.KERNEL_FORKED, ident, 0, exc.errno, b"")
            return
        if pid == 0:
            _workcell.zygote_leave()
            gc.enable()
            # A kernel for the pool has time: it touches the memory a first cell needs before anybody waits for it.
            confinement = kernel.Confinement(fds, into, payload) if plan >= 0 else None
            rehearse = rehearse_once_more if pooled and not self.for_programs else None
            kernel.main(self.kernel, fds[:4], self.lifeline, rehearse, confinement)
        for fd in fds:
            os.close(fd)
        if not into:
            self.children[pid] = ident
        _workcell.zygote_send(_workcell.KERNEL_FORKED, ident, pid, 0, b"", pid if into else 0)

    def serve(self):
        warming, forks = True, 0
        while True:
            event = _workcell.zygote_next(IDLE_BEFORE_WARMING_MS if warming else -1)
            if event is None:
                if warming:
                    warming = self.warm_step()
            elif event[0] == "exit":
                ident = self.children.pop(event[1], None)
                if ident is not None:
                    _workcell.zygote_send(_workcell.KERNEL_EXITED, ident, event[2], 0, b"")
            elif event[0] == "end":
                return
            elif event[1] == _workcell.KERNEL_FORK:
                self.fork(event[2], event[3], event[4], event[5])
                forks += 1
                if warming and forks % BUSY_FORKS == 0:
                    warming = self.warm_step()
            elif event[1] == _workcell.ZYGOTE_WARM:
                while warming:
                    warming = self.warm_step()


def main():
    control, lifeline = int(sys.argv[1]), int(sys.argv[2])
    names, for_programs = [name for name in sys.argv[3].split(",") if name], sys.argv[4:] == ["programs"]
    sys.argv = [""]
    _workcell.zygote_open(control)
    figures.install_hook()
    error = preload(names)
    if names:
        gc.collect()
    interactive.install_import_hook()
    ready = {"version": "%d.%d.%d" % sys.version_info[:3], "ipython": interactive.have_ipython()}
    ready["paths"] = file_paths()
    ready["index"] = index_hosts()
    if error:
        ready["preload_error"] = error
    zygote = Zygote(lifeline, for_programs)
    _workcell.zygote_send(_workcell.ZYGOTE_READY, 0, os.getpid(), 0, json.dumps(ready).encode())
    zygote.serve()
