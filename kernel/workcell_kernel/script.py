"""Runs programs (Python scripts, bash scripts), each in a fresh process. ext/script.c forks them.

The kernel itself runs no program, so every child begins from the same clean state. It does this only in a jail with
processes and files of its own (executor sandbox, no workspace): all that a program can leave behind is in there. What
cannot be removed makes the jail ``spent``, and the host uses it no more.
"""

import atexit
import base64
import builtins
import gc
import io
import os
import stat
import sys
import types
from json import dumps, loads

import _signal as signal  # without the conversions to enums: after a fork each page that is touched is copied
import _workcell

from . import kernel, streams

ROOTS = ("/tmp", "/dev/shm")  # all that can be written to in the jail
MAX_FETCHED = 16 * 1024 * 1024
MAX_LEFT = 10000  # files and folders to remove; a jail with more is cheaper to replace

folder = None  # of each program; what is in it is removed after it
kept = {}  # {folder: names in it} below the roots before the first program: mounts, and folders that lead to them


def begin():
    """Before the first program. From now on this process is what a program finds, and runs none of its own Python."""
    global folder
    if folder is not None:
        return
    _workcell.script_kernel()
    for root in ROOTS:
        if os.path.isdir(root):
            remember(root, os.stat(root).st_dev)
    names = b"".join(b"".join(os.fsencode(name) + b"\0" for name in (place, *inside)) + b"\0" for place, inside in kept.items())
    folder = "/tmp/" + os.urandom(8).hex()
    path = folder + "/program.py"
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __annotations__={}, __cached__=None, __file__=path)
    sys.modules["__main__"] = module
    sys.argv = [path]
    sys.path[0] = folder
    sys.excepthook, sys.displayhook = sys.__excepthook__, sys.__displayhook__
    builtins.input = streams.real_input
    builtins.__dict__.pop("display", None)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = sys.__stdout__ = output(1, "<stdout>", "surrogateescape", False)
    sys.stderr = sys.__stderr__ = output(2, "<stderr>", "backslashreplace", True)
    gc.collect()
    gc.freeze()  # a collection in a child touches none of it
    _workcell.script_begin(folder, names + b"\0", {
        "path": path, "names": module.__dict__, "stdout": sys.stdout, "stderr": sys.stderr, "compile": compile, "prepare": prepare,
        "fail": fail, "end": end, "flush": sys.intern("flush"), "count_handlers": atexit._ncallbacks,
        "reseed": kernel.reseed if "numpy.random" in sys.modules else None, "give_files": give_files, "clean_up": clean_up,
    })
    signal.signal(signal.SIGINT, signal.default_int_handler)  # of programs: here it is blocked now


def rehearse():
    """In the zygote: the path of a short program, until the interpreter has specialised it."""
    stream = output(os.open("/dev/null", os.O_WRONLY), "<stdout>", "surrogateescape", False)
    exec(compile("print(1 + 1, file=stream)", "/tmp/program.py", "exec", dont_inherit=True), {"stream": stream})
    stream.flush()
    os.close(stream.fileno())


# -- the program


def prepare(options):
    """What comes with a program: its files, input, and another language than Python. The process has the folder as its own."""
    options = loads(options)
    try:
        write_files(options.get("files") or {})
    except (OSError, ValueError) as exc:
        _workcell.script_refuse("the files of the program cannot be written: %s" % exc)
    _workcell.script_child()
    if options.get("stdin") is not None:
        give_input(options["stdin"].encode("utf-8", "surrogatepass"))
    if options.get("language") == "bash":
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execv("/bin/bash", ["/bin/bash", folder + "/program.sh"])


def write_files(files):
    for name, content in files.items():
        if content is None or "IGNORE_THIS_FILE" in name:
            continue
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(content, validate=False))


def give_input(content):
    fd = os.memfd_create("stdin")
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view):]
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)


def fail(exc):
    """The program has raised: reports it as the interpreter would, and returns the exit status."""
    if isinstance(exc, SystemExit):
        return exit_status(exc.code)
    sys.excepthook(type(exc), exc, exc.__traceback__)
    return 130 if isinstance(exc, KeyboardInterrupt) else 1


def end(status):
    """Threads, exit handlers and streams of the program; returns the exit status."""
    threading = sys.modules.get("threading")
    if threading is not None and len(threading._active) + len(threading._limbo) > 1:
        threading._shutdown()
    if atexit._ncallbacks():
        atexit._run_exitfuncs()
    return status if flush() else 120


def output(fd, name, errors, by_line):
    file = io.FileIO(fd, "w", closefd=False)
    file.name = name
    return io.TextIOWrapper(io.BufferedWriter(file), encoding="utf-8", errors=errors, line_buffering=by_line)


def exit_status(code):
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 255
    print(code, file=sys.stderr)
    return 1


def flush():
    done = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError, AttributeError):
            done = stream is sys.stderr and done
    return done


# -- after


def give_files(fd, options):
    """In a process of its own: the rest of the answer, with the files that were asked for."""
    found = fetch(loads(options)["fetch"])
    with open(fd, "wb", closefd=False) as file:
        file.write(dumps(found)[1:].encode())
    return True


def fetch(names):
    """The contents of these files, base64; what is not a file is left out."""
    files, room = {}, MAX_FETCHED
    found = {"files": files}
    for name in names:
        try:
            content = read_file(os.path.realpath(os.path.join(folder, name)), room)
        except (OSError, ValueError):
            continue
        if len(content) > room:
            found["error"] = "the files to fetch have more than %d bytes" % MAX_FETCHED
            continue
        room -= len(content)
        files[name] = base64.b64encode(content).decode()
    return found


def read_file(path, room):
    """At most one byte more than there is room for."""
    if not path.startswith(tuple(root + "/" for root in ROOTS)):
        raise ValueError("not a file of the program")
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a file")
        pieces, left = [], room + 1
        while left > 0:
            piece = os.read(fd, min(left, 1 << 20))
            if not piece:
                break
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(fd)


def remember(place, device):
    kept[place] = set(os.listdir(place))
    for name in kept[place]:
        path = os.path.join(place, name)
        about = os.lstat(path)
        if stat.S_ISDIR(about.st_mode) and about.st_dev == device:
            remember(path, device)


def clean_up():
    """In a process of its own: removes what the program left; False: something remains."""
    left = MAX_LEFT
    try:
        for root in ROOTS:
            if root in kept:
                os.chmod(root, 0o1777)
        for place, names in kept.items():
            for name in set(os.listdir(place)) - names:
                left = remove(os.path.join(place, name), left)
                if left < 0:
                    return False
    except OSError:
        return False
    return True


def remove(path, left):
    """Returns how many more may be removed; negative: too many."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return left - 1
    folders = [path]
    while folders and left >= 0:
        os.chmod(folders[-1], 0o700)
        deeper = []
        with os.scandir(folders[-1]) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    deeper.append(entry.path)
                else:
                    os.unlink(entry.path)
                    left -= 1
        if not deeper:
            os.rmdir(folders.pop())
            left -= 1
        folders += deeper
    return left
