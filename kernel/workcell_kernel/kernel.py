"""One session's process: takes frames from the host, runs cells, answers.

Single-threaded until the code in it says otherwise, so that it can be forked. Interrupts come as SIGINT, and count
only when the host named the run they are meant for.
"""

import builtins
import errno
import os
import sys
from json import dumps, loads  # taken now: code in the session may replace what the module holds

import _signal
import _workcell

from . import display as display_module
from . import errors, figures, guard, interactive, limits, ns_sessions, portable, speculation
from .cell import Cells, part_bytes
from .streams import TextOut, no_input

SIGINT = 2
SCRIPT = b"%%workcell_script\n"  # as ext/script.c has it
INTERRUPTIBLE = (Cells.attempt.__code__, Cells.complete.__code__, Cells.answer_notebook.__code__)
in_plain = getattr(_workcell, "in_plain", bool)  # Deno runs no plain cells
own_stderr = None  # the session's, whatever the code puts into sys.stderr


def on_interrupt(signum, frame):
    """Handles SIGINT. Our own code around a cell is never interrupted, because the answer to the run could get lost.

    The host sends the signal again when this does not run soon: one that comes just before a system call that waits is
    seen by CPython after that call only.
    """
    if not _workcell.interrupt_wanted():
        return
    while frame is not None:
        code = frame.f_code
        if code in INTERRUPTIBLE or (code is SERVE and in_plain()):
            if _workcell.take_interrupt():
                raise KeyboardInterrupt
            return
        if code in OURS:
            return
        frame = frame.f_back


def publish(data, metadata=None, transient=None, update=False):
    """display(): one DISPLAY frame, the parts raw behind each other."""
    parts = fitting([(kind, part_bytes(part)) for kind, part in data.items()], _workcell.MAX_RAW)
    head = {"mime": [[kind, len(part)] for kind, part in parts]}
    if metadata:
        head["metadata"] = metadata
    if transient and "display_id" in transient:
        head["display_id"] = transient["display_id"]
    if update:
        head["update"] = True
    try:
        structure = dumps(head).encode()
    except (TypeError, ValueError):
        del head["metadata"]
        structure = dumps(head).encode()
    if not _workcell.send(_workcell.DISPLAY, 0, structure, b"".join(part for _, part in parts)):
        # In a forked child there is no way to the host but the plain streams.
        sys.stdout.write(str(data.get("text/plain", "")) + "\n")


def fitting(parts, room):
    """The MIME parts that fit into one frame; others are reported on stderr and do not fail the cell."""
    kept = []
    for kind, part in parts:
        if len(part) <= room:
            room -= len(part)
            kept.append((kind, part))
        else:
            own_stderr.write("[%s of %d bytes left out: too large]\n" % (kind, len(part)))
    return kept


def reseed():
    """Siblings forked from one zygote must not draw the same random numbers.

    ``random`` reseeds itself after a fork, OpenSSL and os.urandom are not affected; numpy's global generator is.
    """
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


class Confinement:
    """How this kernel is confined: a plan, and whether it was forked into namespaces of its own."""

    def __init__(self, fds, in_jail, way_in):
        self.plan, self.in_jail, self.finished = fds[4], in_jail, False
        if not in_jail:
            _workcell.join_group(fds, way_in)

    def begin(self):
        """As soon as the kernel has its descriptors."""
        self.step, self.error, self.skipped = _workcell.confine_early(self.plan, _workcell.fds())

    def finish(self, session):
        """The last step before the agent's code may run. Returns None, or the error that ends the session."""
        if self.step < 0 and not self.finished:
            self.finished = True
            self.step, self.error, skipped = _workcell.confine(session)
            self.skipped += skipped
        return None if self.step < 0 else {"code": "sandbox", "message": "", "step": self.step, "sys": self.error}


def flush_files(objects):
    """In a copy of another kernel, whose finalizers would remove what that one still uses: temporary files, for one."""
    from io import BufferedRandom, BufferedWriter, TextIOWrapper

    for kind in (TextIOWrapper, BufferedWriter, BufferedRandom):
        for file in objects:
            try:
                if type(file) is kind and not file.closed:
                    file.flush()
            except (OSError, ValueError):
                pass  # its reader is gone; nobody is there to be told


class Kernel:
    channel = None
    is_copy = False
    next = plain = None  # of ext/plain.c, where it may run cells
    changes = None  # the module, where results name the variables that changed
    late = None  # for the first cell after waking
    recorded = None  # the module, in a session that is recorded or replayed
    is_pure = None  # with undo: whether a cell changes nothing
    confinement = None
    runs_scripts = False  # in a jail of its own without a workspace: see script.py. None: it has begun, and runs nothing else

    # -- start

    def __init__(self):
        """In the zygote: creates objects in advance, so that kernels need not and their memory stays shared."""
        self.stdin = open(0, "r", encoding="utf-8", errors="surrogateescape", closefd=False)
        self.stdout, self.stderr = TextOut(1), TextOut(2)
        self.make_cells()

    def make_cells(self):
        self.cells = Cells()
        self.cells.interrupted = _workcell.interrupt_wanted

    def take_over(self, fds, lifeline, rehearse, confinement):
        """In the freshly forked process."""
        global own_stderr
        socket, out, err, ring = fds
        self.confinement = confinement
        in_jail = confinement is not None and confinement.in_jail
        self.fd = _workcell.become_kernel(socket, out, err, ring, -1 if in_jail else lifeline)
        os.close(lifeline)
        if confinement is not None:
            confinement.begin()
        reseed()
        sys.stdin = sys.__stdin__ = self.stdin
        sys.stdout = sys.__stdout__ = self.stdout
        own_stderr = sys.stderr = sys.__stderr__ = self.stderr
        builtins.input = no_input
        display_module.publish = publish
        if rehearse:
            rehearse()
            self.make_cells()
        self.cells.install()
        _signal.signal(SIGINT, on_interrupt)
        _signal.siginterrupt(SIGINT, True)

    def configure(self, text, session):
        options = loads(text)
        ready = {"python": "%d.%d.%d" % sys.version_info[:3], "pid": os.getpid()}
        if self.confinement is not None:
            error = self.confinement.finish(session or b"")
            if error:
                return {"error": error}
            ready["skipped"] = self.confinement.skipped
            limits.limits.update(options.get("limits") or {})
        if os.environ:
            os.environ.clear()
        os.environ.update(options["env"])
        if "TMPDIR" in options["env"] and "tempfile" in sys.modules:
            sys.modules["tempfile"].tempdir = None  # a preload may have asked for it in the zygote
        path = options["env"].get("PYTHONPATH")
        extra = [p for p in path.split(os.pathsep) if p] if path else []
        sys.path[:0] = [""] + extra
        sites = [site for site in (options.get("host_site"), options.get("site")) if site]
        if sites:
            from . import ns_deps

            ns_deps.make_importable(sites)  # the last one comes first
        if "TZ" in options["env"]:
            import time

            time.tzset()
        self.session = options["session"]
        _workcell.title("workcell-kernel " + self.session)
        if options.get("namespaces") or options.get("gate_shell") or options.get("sessions") or options.get("notebook") \
                or options.get("recording"):
            from . import rpc

            self.channel = rpc.Channel(_workcell, self.fd)
            self.channel.speculate = self.speculate
        if options.get("recording"):
            from . import recorded

            recorded.install(self.channel, options["recording"], options.get("replay"))
            self.recorded = recorded
        if options.get("namespaces") or options.get("sessions"):
            from . import namespaces, softener  # noqa: F401  softener: while modules of the session cannot be found yet

            ns_sessions.fork_hook = self.fork_in_cell
            namespaces.install(self.cells.ns, self.channel, self.cells.run_coroutine, not options.get("namespaces"))
        if options.get("gate_shell"):
            self.ask_before_commands()
        if options.get("shell_escape"):
            guard.install()
        if options.get("notebook"):
            from . import notebook

            notebook.install(self.cells, self.channel, publish)
        if options.get("undo"):
            from .pure import changes_nothing

            self.is_pure = changes_nothing
        if options.get("portable"):
            self.cells.portable = portable.part
        if options.get("changes"):
            from . import changes

            self.changes = changes
        display_module.tables = bool(options.get("tables"))
        if options.get("saved_images"):
            figures.show_saved_images()
        try:
            os.chdir(options["cwd"])
            self.workspace = options["cwd"]
            self.runs_scripts = self.confinement is not None and self.confinement.in_jail and options["cwd"] == "/tmp"
            if options.get("restore_cwd"):
                self.cells.home = options["cwd"], os.getcwd()
        except OSError as exc:
            return {"error": {"code": "invalid", "message": "working directory: %s" % exc}}
        if self.is_pure is None and self.recorded is None and self.changes is None and self.cells.home is None and hasattr(_workcell, "plain"):
            self.cells.begin_plain(_workcell.plain_begin)
            self.next, self.plain = _workcell.next, _workcell.plain
        return ready

    def ask_before_commands(self):
        from .ns_errors import EXPORTED

        channel = self.channel

        def approve(name, args):
            return channel.call("shell.approve", {"name": name, "args": args})[0]

        interactive.approve = approve
        for name in ("ApprovalRejectedError", "ApprovalTimeoutError"):
            self.cells.ns[name] = EXPORTED[name]
            interactive.protected.add(name)

    # -- loop

    def idle(self):
        """Waits for a frame. While the code's asyncio tasks are pending, its loop runs meanwhile."""
        loop = self.cells.loop
        if loop is None or loop.is_closed():
            return
        import asyncio

        if not asyncio.all_tasks(loop) or _workcell.pending():
            return
        loop.add_reader(self.fd, loop.stop)
        try:
            loop.run_forever()
        finally:
            loop.remove_reader(self.fd)

    def serve(self):
        recv, run = _workcell.recv, _workcell.RUN
        while True:
            if self.channel is not None:
                # Threads and tasks that the code left behind may wait for answers of the host.
                frame = self.channel.next_frame(self.cells.loop)
            else:
                if self.cells.loop is not None:
                    self.idle()
                frame = (self.next or recv)()
            if frame is True:
                continue
            if frame is None:
                return
            kind, ident, text, raw = frame
            if kind == run:
                if self.channel is None or self.plain is None or not self.run_plain(ident, raw):
                    self.run(ident, raw)
            elif kind == _workcell.INIT and not text:
                # In the pool: the session that will most likely come. A kernel that cannot be confined for it is of no use. With an id:
                # for an image that is being written; the answer to LOAD has the failure.
                if self.confinement.finish(raw) and not ident:
                    os._exit(71)
            elif kind == _workcell.INIT:
                _workcell.send(_workcell.READY, ident, dumps(self.configure(text, raw)).encode())
            elif kind == _workcell.REPLY:
                self.take_news(loads(text))
            elif kind == _workcell.FORK:
                self.fork(ident, loads(text))
            elif kind == _workcell.LOAD:
                self.load(loads(text), raw)
            elif kind == _workcell.SHUTDOWN:
                return

    def fork_in_cell(self):
        """For sessions.fork(): the copy, in the middle of its source's cell, serves from here and never returns."""
        _, ident, text, _ = self.channel.take_frame(_workcell.FORK)
        asyncio = sys.modules.get("asyncio")
        running = asyncio and asyncio._get_running_loop()
        if self.fork(ident, loads(text)):
            self.leave_cell(asyncio, running)
            self.serve_to_the_end()

    def speculate(self, ident, options, waits):
        """For a call that waits for a person: makes a copy that waits for the same answer. True in the copy."""
        asyncio, problem = sys.modules.get("asyncio"), None
        if not waits:
            problem = "call", "that does not wait on the main thread"
        elif asyncio is not None and asyncio._get_running_loop() is not None:
            problem = "call", "on an event loop"
        elif any(_signal.getitimer(which)[0] for which in (0, 1, 2)):
            problem = "timer", "that sends a signal, which a fork does not have"
        if problem is None:
            run, random = self.run_id, speculation.Randomness()
            if not self.fork(ident, options):
                return False
            _workcell.begin_run(run)
            random.put_back()
            if not options.get("image"):
                speculation.hold_effects(self.channel, self.workspace)
            return True
        for fd in _workcell.take_fds():
            os.close(fd)
        _workcell.send(_workcell.FORKED, ident, dumps({"held": [problem]}).encode())
        return False

    def leave_cell(self, asyncio, running):
        """The cell is the source's: nothing of it goes on here but the variables."""
        sys.stdin, sys.stdout, sys.stderr = self.stdin, self.stdout, self.stderr
        _workcell.leave_plain()
        figures.discard()
        depth, frame = 0, sys._getframe()
        while frame is not None:
            depth, frame = depth + 1, frame.f_back
        sys.setrecursionlimit(sys.getrecursionlimit() + depth)  # the source's frames stay on the stack
        if running is None:
            return
        # The task that called, and the loop below it on the stack, never continue. A cell that needs a loop gets a new one.
        task = asyncio.current_task(running)
        if task is not None:
            asyncio.tasks._leave_task(running, task)
        asyncio._set_running_loop(None)
        asyncio.set_event_loop(None)
        if running is self.cells.loop:
            self.cells.loop = None
        if hasattr(running, "_selector"):
            for end in (running._selector, running._ssock, running._csock):
                end.close()

    def fork(self, ident, options):
        """Makes a kernel that goes on from here; it answers with READY on a connection of its own. True in the copy."""
        from . import branch

        fds = _workcell.take_fds()
        if options.get("image"):
            return self.save_image(ident, fds, options)
        alone = _workcell.is_alone(*fds)
        held = None if alone else branch.held_things(self, options["drop"], fds)
        if not held and options.get("speculate"):
            held = speculation.shared_things({} if alone else branch.open_fds(fds))
        pid, problem = None, None
        if not held:
            try:
                pid = _workcell.branch()
            except OSError as exc:
                problem = str(exc)
        if pid == 0:
            branch.take_over(self, fds, options, alone)
            if self.channel is not None:
                self.channel.begin_again()
            _workcell.send(_workcell.HELLO, 0)
            _workcell.send(_workcell.READY, 0, b'{"python": "%d.%d.%d", "pid": %d}' % (*sys.version_info[:3], os.getpid()))
            return True
        for fd in fds:
            os.close(fd)
        if pid:
            answer = b'{"pid": %d}' % pid
        else:
            answer = dumps({"error": problem, "held": held} if problem else {"held": held}).encode()
        _workcell.send(_workcell.FORKED, ident, answer)
        return False

    def save_image(self, ident, fds, options):
        """Writes the memory to a file. A kernel that loads it continues here too, and answers with READY."""
        from . import branch, carry

        drop, saves = options["drop"], options.get("save")
        if options.get("portable"):
            return self.save_objects(ident, fds)
        alone = _workcell.is_alone(*fds)
        answer = {"held": None if alone else branch.held_things(self, drop, fds)}
        in_jail, answered = self.confinement is not None and self.confinement.in_jail, False
        if not answer["held"]:
            try:
                branch.begin_randomness()
                carried = carry.Carried(self, fds, drop, alone)
                if in_jail:
                    carried.take_files(drop)
                if saves:
                    from . import held

                    answer["left"] = held.left_behind(self, fds, alone, carried)
                answer["held"] = carried.held
                keeps = in_jail and not options.get("ends")
                answer["stays"] = not keeps  # this kernel's memory is in the images that it was in before
                reads = options.get("reads")  # the host reads the memory, and has the answer then
                waits = (fds[1], ident, dumps(answer)[:-1].encode(), reads) if reads and not carried.held else ()
                uses = None if carried.held else _workcell.image_save(fds[0], limits.limits.get("memory", 0), keeps, *waits)
                if not carried.held and uses is None:
                    options = loads(_workcell.image_given())
                    branch.continue_from_image(self, carried, options)
                    if self.channel is not None:
                        self.channel.begin_again()
                    self.send_ready()
                    return True
                if not carried.held:
                    answer["image"] = uses
                answered = bool(waits)
            except OSError as exc:
                full = exc.errno == errno.EDQUOT
                answer["full" if full else "error"] = branch.NO_ROOM % (limits.limits["memory"] >> 20) if full else str(exc)
        for fd in fds:
            os.close(fd)
        if not answered:
            _workcell.send(_workcell.FORKED, ident, dumps(answer).encode())
        return False

    def save_objects(self, ident, fds):
        """Writes the variables to a file, in the portable form."""
        from . import carry, objects, variables

        answer = {"held": None}
        try:
            cells, in_jail = self.cells, self.confinement is not None and self.confinement.in_jail
            left = objects.save(fds[0], cells.ns, variables.is_shown, cells.history, cells.count, carry.own_places() if in_jail else ())
            answer.update(left=left, image=[])
        except Exception as exc:
            answer["error"] = str(exc)[:200] or type(exc).__name__
        for fd in fds:
            os.close(fd)
        _workcell.send(_workcell.FORKED, ident, dumps(answer).encode())
        return False

    def load_objects(self, fds, options, session):
        """Becomes the kernel of a session in the portable form: configured as a new one, with its variables."""
        from . import objects

        ready = self.configure(dumps(options), session)
        if "error" not in ready:
            try:
                told = []
                head = objects.load(fds[0], self.cells.ns, told.append)
                if told:  # the first cell's output has it
                    self.late, self.next, self.plain = "".join(told), None, None
                self.cells.count, self.cells.history[:] = head["count"], head["history"]
            except Exception as exc:
                ready = {"error": {"message": "the saved variables cannot be read here: %s" % str(exc)[:400]}}
        for fd in fds:
            os.close(fd)
        _workcell.send(_workcell.READY, 0, dumps(ready).encode())

    def load(self, options, session):
        """Confined as for any session, this kernel becomes another one; if that works, this does not return."""
        fds = _workcell.take_fds()
        spec = options.pop("spec", None)
        if spec is not None:
            from . import carry

            if carry.is_portable(fds[0]):
                return self.load_objects(fds, spec, session)
        error = self.confinement.finish(session or b"") if self.confinement is not None else None
        if not error:
            options["skipped"] = self.confinement.skipped if self.confinement is not None else []
            inodes = options.pop("inodes", None) or [os.fstat(fd).st_ino for fd in fds]
            live = options.pop("live", None) or inodes
            in_jail = self.confinement is not None and self.confinement.in_jail
            try:
                _workcell.image_load(fds, dumps(options).encode(), inodes, live, in_jail)
            except OSError as exc:
                error = {"message": "the state could not be loaded: %s" % why_not(exc)}
        _workcell.send(_workcell.READY, 0, dumps({"error": error}).encode())

    def send_ready(self):
        ready = {"python": "%d.%d.%d" % sys.version_info[:3], "pid": os.getpid()}
        if self.confinement is not None:
            ready["skipped"] = self.confinement.skipped
        _workcell.send(_workcell.READY, 0, dumps(ready).encode())

    @staticmethod
    def take_news(news):
        """Handles notifications of the host between cells: packages were installed."""
        from . import ns_deps

        ns_deps.make_importable(news.get("site"), news.get("bin"))

    def run_plain(self, ident, raw):
        self.run_id = ident
        speculation.holding = None
        return self.plain(ident, raw)

    def run(self, ident, raw):
        if self.runs_scripts is None or (raw and raw.startswith(SCRIPT)):
            return self.run_script(ident, raw or b"")
        cells, self.run_id = self.cells, ident
        if cells.begun is None:
            speculation.holding = None
        _workcell.begin_run(ident)
        if self.late is not None:
            self.stderr.write(self.late)
            self.late = None
        if self.is_pure is not None:
            _workcell.mark_same(self.is_pure(raw, cells.ns))
        before = self.changes.snapshot(cells.ns) if self.changes is not None else None
        try:
            value, text, mime, error = cells.run(raw.decode() if raw else "")
        except Exception as exc:
            # Source that is not UTF-8.
            value, text, mime, error = None, None, (), errors.describe(exc)
        if self.recorded is not None:
            self.recorded.next_cell()
        if error is None and not mime and before is None and _workcell.answer(ident, value, text):
            return
        if not _workcell.is_kernel():
            # os.fork() in the cell, and this is the child: it has run off the end of its program.
            self.leave_child(error)
        changed = self.changes.compare(before, cells.ns) if before is not None else None
        before = None
        _workcell.end_run()
        self.answer(ident, value, text, mime, error, changed)

    def run_script(self, ident, raw):
        """A program in a process of its own. Not a cell: it has no number, no history and no value."""
        try:
            if self.runs_scripts is False:
                raise RuntimeError("programs in processes of their own need a sandbox of level full without a workspace")
            if not raw.startswith(SCRIPT):
                raise RuntimeError("this session runs programs in processes of their own, and no cells")
            from . import script

            script.begin()
        except Exception as exc:
            self.answer(ident, None, None, (), errors.describe(exc))
            return
        self.runs_scripts, self.next = None, _workcell.next  # which runs all further ones without Python
        _workcell.script_run(ident, raw)

    def answer(self, ident, value, text, mime, error, changed=None):
        head, parts = {}, []
        if changed is not None:
            head["changes"] = changed
        if value is not None:
            head["v"] = len(value)
            parts.append(value)
        if text is not None:
            head["r"] = len(text)
            parts.append(text)
        if mime:
            # A value whose pictures do not fit into a frame keeps its repr.
            kept = fitting(mime, _workcell.MAX_RAW - sum(map(len, parts)))
            head["mime"] = [[kind, len(part)] for kind, part in kept]
            parts.extend(part for _, part in kept)
        if error is not None:
            head["error"] = error
        _workcell.send(_workcell.RESULT, ident, dumps(head).encode(), b"".join(parts))

    def leave_child(self, error):
        status = 0
        if error is not None and error["type"] != "SystemExit":
            os.write(2, error["traceback"].encode() + b"\n")
            status = 1
        elif error is not None:
            status = int(error["message"]) if error["message"].isdigit() else int(error["message"] not in ("", "None"))
        os._exit(status & 255)

    def serve_to_the_end(self):
        """Never returns."""
        try:
            self.serve()
            self.leave()
        except BaseException:
            die()

    def leave(self):
        """Ends the session: runs exit handlers, flushes open files and ends the process."""
        import atexit
        import gc

        speculation.release()
        try:
            atexit._run_exitfuncs()
            if self.is_copy:
                return flush_files(gc.get_objects())
            self.cells.ns.clear()
            self.cells.out.clear()
            gc.collect()
        finally:
            os._exit(0)


def why_not(exc):
    """Of an image that this kernel cannot continue from."""
    if exc.filename is not None and exc.errno in (errno.ESTALE, errno.ENOENT):
        return "%s is not the file that it was saved with" % exc.filename
    if exc.errno == errno.EXDEV:
        return "it was saved with another version of Linux"
    if exc.errno == errno.ENOEXEC:
        return "it was saved with a processor that can do more than this one"
    return exc


def load_all():
    """For the zygote, when it has time: what configure() loads only for sessions that use it."""
    from . import namespaces, ns_deps, rpc, softener  # noqa: F401


def rehearse_configure():
    """For the zygote: the parts of configure() that change nothing there."""
    loads(dumps({"python": "3", "pid": os.getpid()}).encode())
    environ = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)


def main(kernel, fds, lifeline, rehearse, confinement=None):
    """Never returns."""
    try:
        kernel.take_over(fds, lifeline, rehearse, confinement)
        _workcell.send(_workcell.HELLO, 0)
    except BaseException:
        die()
    kernel.serve_to_the_end()


def die():
    import traceback

    os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    os._exit(70)


# What no interrupt may break off, also where a cell is further up on the stack (fork_in_cell).
SERVE = Kernel.serve.__code__
OURS = (Kernel.fork.__code__, SERVE, Kernel.speculate.__code__)

