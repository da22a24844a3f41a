"""Runs programs (Python scripts, bash scripts), each in a fresh process.

    kernel ──fork──▶ child: the program ──▶ ends, or its time is over
      └── kills whatever is left in the jail, reads the files that were asked for, empties the jail, answers

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
import time
import types
from json import dumps, loads

import _signal as signal  # without the conversions to enums: after a fork each page that is touched is copied
import _workcell

from . import streams

HEAD = "%%workcell_script\n"  # the first line of such a cell, before a JSON object; as cell.py has it
ROOTS = ("/tmp", "/dev/shm")  # all that can be written to in the jail
MAX_FETCHED = 16 * 1024 * 1024
MAX_LEFT = 10000  # files and folders to remove; a jail with more is cheaper to replace
CLEAN_SECONDS = 2

main = None  # the module of the program and its streams, made before the fork
kept = None  # {folder: names in it} below the roots before the first program: mounts, and folders that lead to them


def answer(text):
    """Runs the program of this request and returns its answer, both JSON."""
    global kept, main
    if kept is None:
        _workcell.script_kernel()
        main = types.ModuleType("__main__")
        main.__dict__.update(__builtins__=builtins, __annotations__={}, __cached__=None)
        main = main, open(0, encoding="utf-8", errors="surrogateescape", closefd=False), \
            output(1, "<stdout>", "surrogateescape", False), output(2, "<stderr>", "backslashreplace", True)
        kept = {}
        for root in ROOTS:
            if os.path.isdir(root):
                remember(root, os.stat(root).st_dev)
        gc.collect()
        gc.freeze()  # a collection in a child touches none of it
    request = loads(text)
    try:
        folder, path = prepare(request)
    except (OSError, ValueError) as exc:
        found = {"error": "the files of the program cannot be written: %s" % exc}
    else:
        found = run(request, folder, path)
        found["files"] = fetch(folder, request["fetch"], found)
    found["spent"] = not clean()
    return dumps(found).encode()


# -- before


def prepare(request):
    folder = "/tmp/%s" % os.urandom(8).hex()
    os.mkdir(folder, 0o700)
    for name, content in request["files"].items():
        if content is None or "IGNORE_THIS_FILE" in name:
            continue
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(content, validate=False))
    path = "%s/tmp%s.%s" % (folder, os.urandom(4).hex(), "sh" if request["language"] == "bash" else "py")
    with open(path, "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
        file.write(request["code"])
    return folder, path


# -- the child


def run(request, folder, path):
    """{"return_code", "timed_out", "seconds"}; everything that the program started is gone."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    begun = time.monotonic()
    try:
        pid = os.fork()
        if pid == 0:
            play(request, folder, path, mask)
        status = wait(pid, begun + request["timeout"])
    finally:
        empty_jail()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    seconds = time.monotonic() - begun
    if status is None:
        return {"return_code": None, "timed_out": True, "seconds": seconds}
    return {"return_code": os.waitstatus_to_exitcode(status), "timed_out": False, "seconds": seconds}


def wait(pid, deadline):
    """The child's status; None: it has been killed because its time is over."""
    while True:
        left = deadline - time.monotonic()
        if left > 0:
            signal.sigtimedwait((signal.SIGCHLD,), left)
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if left <= 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None


def play(request, folder, path, mask):
    """Never returns."""
    status = 70
    try:
        _workcell.script_child()
        os.setsid()
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if request["stdin"] is not None:
            give_input(request["stdin"].encode("utf-8", "surrogatepass"))
        if request["language"] == "bash":
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execv("/bin/bash", ["/bin/bash", path])
        status = play_python(request["code"], folder, path)
    except BaseException as exc:
        os.write(2, ("the program could not be started: %s\n" % exc).encode("utf-8", "backslashreplace"))
    finally:
        os._exit(status)


def give_input(content):
    fd = os.memfd_create("stdin")
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view):]
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)


def play_python(source, folder, path):
    """As `python PATH` would; returns the exit status."""
    module, stdin, stdout, stderr = main
    module.__file__ = path
    sys.modules["__main__"] = module
    sys.argv = [path]
    sys.path[0] = folder
    sys.excepthook, sys.displayhook = sys.__excepthook__, sys.__displayhook__
    builtins.input = streams.real_input
    builtins.__dict__.pop("display", None)
    sys.stdin = sys.__stdin__ = stdin
    sys.stdout = sys.__stdout__ = stdout
    sys.stderr = sys.__stderr__ = stderr
    status = execute(source, path, module.__dict__)
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


def execute(source, path, namespace):
    try:
        exec(compile(source, path, "exec", dont_inherit=True), namespace)
        return 0
    except SystemExit as exc:
        return exit_status(exc.code)
    except BaseException as exc:
        trace = exc.__traceback__.tb_next  # without this function
        sys.excepthook(type(exc), exc.with_traceback(trace), trace)
        return 130 if isinstance(exc, KeyboardInterrupt) else 1


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


def empty_jail():
    """Kills every process of the jail but pid 1 and this one."""
    deadline = time.monotonic() + CLEAN_SECONDS
    while True:
        try:
            os.kill(-1, signal.SIGKILL)  # all at once: a process cannot fork with the signal pending
        except ProcessLookupError:
            return
        if time.monotonic() > deadline:
            os._exit(71)  # the host makes another jail
        time.sleep(0.0005)  # pid 1 reaps them


def fetch(folder, names, found):
    """The contents of these files, base64; what is not a file is left out."""
    files, room = {}, MAX_FETCHED
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
    return files


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


def remember(folder, device):
    kept[folder] = set(os.listdir(folder))
    for name in kept[folder]:
        path = os.path.join(folder, name)
        about = os.lstat(path)
        if stat.S_ISDIR(about.st_mode) and about.st_dev == device:
            remember(path, device)


def clean():
    """Removes what the program left; False: something remains."""
    left = MAX_LEFT
    try:
        for root in ROOTS:
            if root in kept:
                os.chmod(root, 0o1777)
        for folder, names in kept.items():
            if os.listxattr(folder):
                return False
            for name in set(os.listdir(folder)) - names:
                left = remove(os.path.join(folder, name), left)
                if left < 0:
                    return False
    except OSError:
        return False
    return _workcell.ipc_is_empty()


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
