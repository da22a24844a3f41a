"""Sessions in the host's own process: what they share with the host, and how each keeps to itself.

A session's kernel (guest.py) has a thread of its own. Which session a thread belongs to stands in ``owners``; threads
that a session's code starts belong to it too. Whatever the interpreter has only one of is handed out by that: a thread of
a session sees the session's, every other thread the host's.

    sys.stdin, stdout, stderr, argv   properties of a class that the module ``sys`` gets; C code, which does not ask
                                      for attributes, finds streams in sys.__dict__ that look for the owner themselves
    sys.modules["__main__"]           a module that stands for the session's, or for the host's
    children                          write to the session's pipes, not to the host's stdout

Modules of the kernel that keep a session's state are loaded once for each session, under a name of their own.

All of this is put in place with the first session. Once the last one has gone, and the last thread of any, everything is
as it was; environment, working directory, sys.path and the like already when the last session is closed.
"""

import _thread
import builtins
import importlib.util
import io
import os
import sys
import threading
from _thread import allocate_lock, get_ident
from functools import partial
from importlib.machinery import BuiltinImporter
from itertools import count
from types import ModuleType

import _workcell

from . import display, errors, figures, rpc
from .streams import no_input

owners = {}    # thread: its Guest
guests = {}    # address: Guest, of sessions that are open
host = {}      # name: the host's value of what sessions have their own of
_lock = allocate_lock()
_numbers = count(1)
_undo = []     # what puts the interpreter back; not empty: the hooks are in place
_before = None

STREAMS = ("stdin", "stdout", "stderr")
_ORIGINALS = tuple("__%s__" % name for name in STREAMS)
# Modules that each session has for itself, in the order of their imports; the others keep no state that is a session's.
_OWN = ("guard", "interactive", "cell", "streams", "namespaces", "kernel", "guest")
_LATER = ("ipy", "magics")  # where they are needed
_code = {}
SHUTDOWN_WAIT = 5  # seconds for the kernel that a reset replaces


def owner():
    return owners.get(get_ident())


def fail(status):
    """Raises what a status of hostlink.c stands for."""
    if status == 1:
        raise rpc.Shutdown("the session is closing")
    if status == 4:
        raise rpc.forked()
    raise RuntimeError("a callback of the host cannot call tools, workflows, artifacts and deps of a session: the answer "
                       "would have to come from the thread that waits for it")


# ---- streams

class _Current:
    """In sys.__dict__, for C code such as print(): whatever is sys.stdout for the thread that writes."""

    def __init__(self, name):
        self._name = name

    def _target(self):
        guest = owners.get(get_ident())
        if guest is None:
            return host[self._name]
        replaced = guest.replaced
        return replaced[self._name] if self._name in replaced else guest.streams[self._name]

    def write(self, text):
        target = self._target()
        return None if target is None else target.write(text)

    def flush(self):
        target = self._target()
        if target is not None:
            target.flush()

    def readline(self, *args):
        if owner() is not None and self._name not in owner().replaced:
            no_input()
        return self._target().readline(*args)

    def __getattr__(self, name):
        return getattr(self._target(), name)


class _Own(io.TextIOBase):
    """What a session's code gets for sys.stdout: the session's stream for its threads, the host's for those of others.

    Code may keep it: a logging handler, for one, lives longer than the session and serves every thread.
    """

    def __init__(self, name):
        self._name = name

    def _target(self):
        guest = owners.get(get_ident())
        return host[self._name] if guest is None else guest.streams[self._name]

    def write(self, text):
        return self._target().write(text)

    def writelines(self, lines):
        self._target().writelines(lines)

    def flush(self):
        target = self._target()
        if target is not None:
            target.flush()

    def fileno(self):
        return self._target().fileno()

    def read(self, *args):
        return self._target().read(*args)

    def readline(self, *args):
        return self._target().readline(*args)

    def isatty(self):
        return self._target().isatty()

    def readable(self):
        return self._name == "stdin"

    def writable(self):
        return self._name != "stdin"

    def reconfigure(self, **options):
        pass

    def close(self):
        pass

    name = property(lambda self: "<%s>" % self._name)
    mode = property(lambda self: "r" if self._name == "stdin" else "w")
    buffer = property(lambda self: self._target().buffer)
    encoding = property(lambda self: getattr(self._target(), "encoding", "utf-8"))
    errors = property(lambda self: getattr(self._target(), "errors", "surrogateescape"))


_current = {name: _Current(name) for name in STREAMS}
_own = {name: _Own(name) for name in STREAMS}


def _stream_property(name, stream):
    def get(module):
        guest = owners.get(get_ident())
        if guest is None:
            return host[name]
        return guest.replaced[name] if name in guest.replaced else _own[stream]

    def put(module, value):
        guest = owners.get(get_ident())
        if guest is None:
            host[name] = value
        elif value is _own[stream]:
            guest.replaced.pop(name, None)
        else:
            guest.replaced[name] = value

    return property(get, put)


class _Sys(ModuleType):
    """The class of the module sys while there are sessions."""

    def _get(self):
        guest = owners.get(get_ident())
        return host["argv"] if guest is None else guest.argv

    def _put(self, value):
        guest = owners.get(get_ident())
        if guest is None:
            host["argv"] = value
        else:
            guest.argv = value

    argv = property(_get, _put)


for _name in STREAMS:
    setattr(_Sys, _name, _stream_property(_name, _name))
    setattr(_Sys, "__%s__" % _name, _stream_property("__%s__" % _name, _name))


def _take_streams():
    for name in STREAMS + _ORIGINALS + ("argv",):
        host[name] = sys.__dict__.get(name)
    sys.__class__ = _Sys
    for name in STREAMS:
        sys.__dict__[name] = _current[name]

    def undo():
        sys.__class__ = ModuleType
        sys.__dict__.update(host)

    _undo.append(undo)


# ---- __main__

class _Main(ModuleType):
    """sys.modules["__main__"] while there are sessions."""

    def __getattribute__(self, name):
        return getattr(_main(), name)

    def __setattr__(self, name, value):
        setattr(_main(), name, value)

    def __delattr__(self, name):
        delattr(_main(), name)

    def __dir__(self):
        return dir(_main())

    def __repr__(self):
        return repr(_main())


def _main():
    guest = owners.get(get_ident())
    return host["__main__"] if guest is None else guest.cells.module


def _take_main():
    host["__main__"] = before = sys.modules["__main__"]
    sys.modules["__main__"] = taken = _Main("__main__")

    def undo():
        if sys.modules.get("__main__") is taken:
            sys.modules["__main__"] = before
        del host["__main__"]

    _undo.append(undo)


# ---- threads and children

def run_as(guest, function, args=(), kwargs={}):
    """Calls a function on a new thread, which belongs to a session."""
    me = get_ident()
    owners[me] = guest
    try:
        return function(*args, **kwargs)
    finally:
        owners.pop(me, None)
        if guest.address not in guests:
            settle()  # a thread that outlived its session


def _forget_thread():
    """threading makes an object for a thread that it did not start, and keeps it: in a forked child, where that would be
    the main thread, it stumbles over it, and the next thread of the same number would be taken for this one."""
    if isinstance(threading._active.get(get_ident()), threading._DummyThread):
        threading._active.pop(get_ident(), None)


def _replace(module, name, wrap):
    original = getattr(module, name, None)
    if original is None:
        return
    wrapped = wrap(original)
    setattr(module, name, wrapped)

    def undo():
        if getattr(module, name, None) is wrapped:
            setattr(module, name, original)

    _undo.append(undo)


def _wrap_start(original):
    def start_new_thread(function, *args, **kwargs):
        guest = owners.get(get_ident())
        if guest is None:
            return original(function, *args, **kwargs)
        if args:  # the function's own
            return original(run_as, (guest, function) + args, **kwargs)
        return original(partial(run_as, guest, function), **kwargs)

    return start_new_thread


def _wrap_execute_child(original):
    """subprocess.Popen: what would be inherited of the host's streams is the session's."""
    import signal

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags,
                       shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest):
        guest = owners.get(get_ident())
        if guest is None:
            return original(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags,
                            shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        # A session's thread may hold SIGPIPE back; children start without that.
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPIPE])
        try:
            if p2cread == -1:
                p2cread = null
            if c2pwrite == -1:
                c2pwrite = guest.pipe(1, null)
            if errwrite == -1:
                errwrite = guest.pipe(2, null)
            return original(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags,
                            shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(null)

    return _execute_child


def _wrap_system(original):
    def system(command):
        if owners.get(get_ident()) is None:
            return original(command)
        import subprocess

        status = subprocess.Popen(command, shell=True).wait()
        return -status if status < 0 else status << 8

    return system


def _after_fork():
    """In a child: its descriptors are the session's, and of the sessions' threads there is this one only."""
    guest = owners.get(get_ident())
    owners.clear()
    if guest is None:
        return
    import signal

    owners[get_ident()] = guest
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    for stream in (1, 2):
        os.dup2(guest.pipe(stream, null), stream)
    os.close(null)
    # Handlers of the host's, which are not Python's, tell the host of signals that were meant for this process.
    for number in range(1, signal.NSIG):
        if signal.getsignal(number) is None:
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                pass  # not one that can be handled


def _before_fork():
    guest = owners.get(get_ident())
    if guest is not None:
        guest.link.pipe(1)  # they can be made by the parent only
        _forget_thread()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


# ---- what shows things

class _Display(ModuleType):
    """The class of our module display, whose hooks each session sets for itself."""


def _display_property(name):
    def get(module):
        return module.__dict__[name]

    def put(module, value):
        guest = owners.get(get_ident())
        if guest is not None:
            guest.hooks[name] = value

    return property(get, put)


def _publish(data, metadata=None, transient=None, update=False):
    guest = owner()
    if guest is not None:
        guest.publish(data, metadata, transient, update)


def _redirect(data, metadata, transient, update):
    guest = owner()
    if guest is not None:
        (guest.hooks.get("redirect") or guest.publish)(data, metadata, transient, update)


def _format(obj, include, exclude):
    guest = owner()
    formatter = guest and guest.hooks.get("formatter")
    return formatter(obj, include, exclude) if formatter else None


for _name in ("publish", "redirect", "formatter"):
    setattr(_Display, _name, _display_property(_name))
display.publish, display.redirect, display.formatter = _publish, _redirect, _format
display.__class__ = _Display


# ---- the whole of it

def _snapshot():
    """What code changes for everybody, as it is now; the answer puts it back."""
    environ, path, meta_path = dict(os.environ), list(sys.path), list(sys.meta_path)
    limit, names = sys.getrecursionlimit(), {n: builtins.__dict__.get(n) for n in ("display", "get_ipython", "exit", "quit")}
    try:
        cwd = os.getcwd()
    except OSError:
        cwd = None

    def restore():
        for name in set(os.environ) - set(environ):
            del os.environ[name]
        os.environ.update(each for each in environ.items() if os.environ.get(each[0]) != each[1])
        try:
            if cwd is not None and _cwd() != cwd:
                os.chdir(cwd)
        except OSError:
            pass  # it is gone
        # Other lists, and not the same ones made shorter: another thread that imports goes through them meanwhile, and would miss
        # the last.
        if sys.path != path:
            sys.path = list(path)
        if sys.meta_path != meta_path:
            before, sys.meta_path = sys.meta_path, list(meta_path)
            # The interpreter keeps the list that it began with (in its copy of sys): a session's finders must not stay in it.
            before[:] = [finder if finder in meta_path else BuiltinImporter for finder in before]
        sys.setrecursionlimit(limit)
        for name, value in names.items():
            if value is not None:
                setattr(builtins, name, value)
            else:
                builtins.__dict__.pop(name, None)

    return restore


def _cwd():
    try:
        return os.getcwd()
    except OSError:
        return None


def _install():
    """With the first session."""
    import subprocess

    _take_streams()
    _take_main()
    for module, name in ((_thread, "start_new_thread"), (_thread, "start_new"), (_thread, "start_joinable_thread"),
                         (threading, "_start_new_thread"), (threading, "_start_joinable_thread")):
        _replace(module, name, _wrap_start)
    _replace(subprocess.Popen, "_execute_child", _wrap_execute_child)
    _replace(os, "system", _wrap_system)


def settle():
    """Puts back what nobody needs any more."""
    global _before
    with _lock:
        if guests:
            return
        if _before is not None:
            _before()
            _before = None
        if owners:
            return  # a thread that would not end: it must not find the host's stdout
        while _undo:
            _undo.pop()()


def _modules():
    """The kernel's package for one session."""
    name = "workcell_kernel_%d" % next(_numbers)
    package = ModuleType(name)
    package.__path__ = sys.modules[__package__].__path__
    sys.modules[name] = package
    prefix = __package__ + "."
    # A copy, not list(items()): that makes a tuple for each item, and a garbage collection on the way runs code that may import.
    for shared, module in sys.modules.copy().items():
        if shared.startswith(prefix) and shared[len(prefix):] not in _OWN + _LATER:
            sys.modules[name + shared[len(prefix) - 1:]] = module
            setattr(package, shared[len(prefix):], module)
    for each in _OWN:
        if each not in _code:
            spec = importlib.util.find_spec(prefix + each)
            _code[each] = spec.loader.get_code(spec.name)
        module = ModuleType(name + "." + each)
        module.__package__, module.__file__ = name, _code[each].co_filename
        sys.modules[module.__name__] = module
        setattr(package, each, module)
        exec(_code[each], module.__dict__)
    return name, package.guest.Guest


def _forget_modules(name):
    for each in [each for each in list(sys.modules) if each == name or each.startswith(name + ".")]:
        del sys.modules[each]


def begin(guest, session):
    """A session's kernel comes up: nothing of the one that it replaces may come after this."""
    global _before
    with _lock:
        older = [each for each in guests.values() if each is not guest and each.session == session]
    for each in older:
        each.gone.acquire(timeout=SHUTDOWN_WAIT)
    with _lock:
        guest.session = session
        if _before is None:
            _before = _snapshot()
            figures.install_hook()
        if not _undo:
            _install()
        others = [each for each in guests.values() if each.plain_names]
        guest.plain_names = not others
        guests[guest.address] = guest


def end(guest):
    with _lock:
        guests.pop(guest.address, None)
    try:
        guest.gone.release()
    except RuntimeError:
        pass  # told already
    settle()


def interrupted(address):
    """From the keeper: an exception waits for this kernel's thread. A loop that sleeps until something happens would not see it."""
    guest = guests.get(address)
    frame = guest and sys._current_frames().get(guest.thread)
    while frame:
        if frame.f_code.co_name == "run_forever":
            wake = getattr(frame.f_locals.get("self"), "call_soon_threadsafe", None)
            if wake is not None:
                try:
                    wake(int)
                except RuntimeError:
                    pass  # closed meanwhile
        frame = frame.f_back


def abandoned(address):
    """A thread did not end. From the keeper, for the kernel at this address."""
    guest = guests.get(address)
    if guest is not None:
        end(guest)


def channel():
    """For modules that code in a session imports: the way to the host, or None."""
    guest = owner()
    return guest and guest.channel


def main(address):
    """A kernel's whole life, on its thread."""
    name, make = _modules()
    guest = None
    try:
        guest = make(address)
        owners[get_ident()] = guest
        guest.serve()
        guest.leave()
    except rpc.Shutdown:
        guest.leave()
    finally:
        owners.pop(get_ident(), None)
        _forget_thread()
        _forget_modules(name)
        if guest is not None:
            end(guest)


from . import namespaces  # noqa: E402

namespaces.channel = channel
errors.add_library(os.path.dirname(threading.__file__))
