"""A live kernel's fork: what stands against it, and what the new kernel does first.

A fork copies memory. What lives outside of it (threads, child processes, connections) is not copied, and code that relies on it would go on
with a false picture. So it is looked for first, and named; the host decides whether to go on without it.
"""

import fcntl
import os
import stat
import sys

import _workcell

# Idle threads of these pools: see end_pools().
OMP_PAUSE_HARD = 2
NO_ROOM = "the memory of the session does not fit a second time into its limit of %d MB, and a fork writes it to a file; raise the limit"
SHARED_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


# -- what cannot be forked

def held_things(kernel, drop, passed):
    """[[kind, name], ...] of what a fork would not have; with ``drop`` only what must not be dropped. passed: the fork's descriptors."""
    targets = open_fds(passed)
    if drop:
        return graphics(targets)
    return threads() + children() + descriptors(kernel, targets) + graphics(targets)


def thread_ids():
    return [int(name) for name in os.listdir("/proc/self/task") if int(name) != os.getpid()]


def threads():
    """Threads other than ours. Those of idle pools are ended, because their libraries start them again."""
    if not thread_ids():
        return []
    end_pools()
    left = thread_ids()
    if not left:
        return []
    import threading

    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    return [["thread", names.get(tid) or thread_name(tid)] for tid in left]


def thread_name(tid):
    try:
        with open("/proc/self/task/%d/comm" % tid) as file:
            return "%s (%d, not Python's)" % (file.read().strip(), tid)
    except OSError:
        return "%d (not Python's)" % tid


def end_pools():
    """Ends idle threads of OpenBLAS, which has a handler for forks, and of OpenMP, which has not.

    Neither has work between two cells, unless a thread of Python's uses it, which is found by itself.
    """
    pid = os.fork()  # its handlers run here too, before the fork
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if not thread_ids():
        return
    import ctypes

    with open("/proc/self/maps") as file:
        paths = {line.split()[-1] for line in file if "/libgomp" in line or "/libiomp" in line or "/libomp" in line}
    for path in paths:
        try:
            ctypes.CDLL(path).omp_pause_resource_all(OMP_PAUSE_HARD)
        except (OSError, AttributeError):
            pass  # not one of those that can; its threads are named


def children():
    """Child processes that have not ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name) as file:
                    text = file.read()
            except OSError:
                continue
            comm, rest = text[text.index("(") + 1:].rsplit(")", 1)
            state, parent = rest.split()[:2]
            if parent == str(os.getpid()) and state not in "ZX":
                found.append(["process", "%s (%s)" % (comm, name)])
    return found


def open_fds(passed=()):
    """{number: what it leads to} of the code's own descriptors."""
    streams = stream_fds()
    return {fd: target for fd, target in all_fds(passed).items() if fd > 2 and fd not in streams}


def all_fds(passed):
    """The same with the three streams and their duplicates; without what belongs to the kernel alone."""
    own = set(_workcell.fds()).union(passed)
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) not in own:
                found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass  # that of the listing itself
    return found


def stream_fds():
    """{number: 1 or 2} of the code's duplicates of stdout and stderr."""
    streams = {os.readlink("/proc/self/fd/%d" % fd): number for number, fd in enumerate(_workcell.fds())}
    return {fd: streams[target] for fd, target in all_fds(()).items() if fd > 2 and streams.get(target)}


def loop_fds(kernel):
    """Descriptors of the session's event loop, which a fork gets anew, and of one that runs, which it does not need."""
    asyncio = sys.modules.get("asyncio")
    loops = {kernel.cells.loop, asyncio._get_running_loop() if asyncio is not None else None}
    found = set()
    for loop in loops:
        if hasattr(loop, "_selector") and not loop.is_closed():
            found.update((loop._selector.fileno(), loop._ssock.fileno(), loop._csock.fileno()))
    return found


def is_lifeline(fd):
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & fcntl.FASYNC)


def descriptors(kernel, targets):
    """Connections and locks, which two processes cannot have both."""
    found, ours = [], loop_fds(kernel)
    for fd, target in targets.items():
        if fd in ours:
            continue
        if target.startswith("socket:"):
            found.append(["socket", "descriptor %d" % fd])
        elif target.startswith("pipe:") and not is_lifeline(fd):
            found.append(["pipe", "descriptor %d" % fd])
        elif target.startswith("anon_inode:") and not target.startswith("anon_inode:[timerfd"):
            found.append(["descriptor", "%d (%s)" % (fd, target[len("anon_inode:"):].strip("[]"))])
        elif target.startswith("/") and has_lock(fd):
            found.append(["lock", target])
    return found


def has_lock(fd):
    try:
        with open("/proc/self/fdinfo/%d" % fd) as file:
            return "lock:" in file.read()
    except OSError:
        return False


def graphics(targets):
    return [["device", target] for target in sorted(set(targets.values())) if target.startswith(SHARED_DEVICES)]


# -- in the fork

def take_over(kernel, fds, options, alone):
    """alone: the source had no descriptors but ours."""
    session = options["session"]
    if not options["heir"] and session == kernel.session:
        # A point. The kernels that go on from it are forks of it, and have random numbers of their own. It shares what it does not touch.
        _workcell.become_branch(*fds)
        if not alone:
            own_offsets(kernel)
            own_loop(kernel.cells.loop)
        return
    leave_exit_handlers(kernel, options)
    _workcell.become_branch(*fds)
    if not alone:
        own_offsets(kernel)
        own_loop(kernel.cells.loop)
    own_workspace(kernel, options.get("workspace"))
    if not options.get("speculate"):
        own_randomness(kernel.cells.ns)
    kernel.session = session
    _workcell.title("workcell-kernel " + session)


def own_workspace(kernel, folder):
    """The fork of a session with a layer works in a copy of its own."""
    if folder is None or folder == kernel.workspace:
        return
    here, old = os.getcwd(), kernel.workspace
    if here == old or here.startswith(old + "/"):
        os.chdir(folder + here[len(old):])
    if kernel.cells.home:
        kernel.cells.home = folder, folder
    kernel.workspace = folder
    own_tmp(*(os.path.join(os.path.dirname(each), "tmp") for each in (old, folder)))


def own_tmp(old, folder):
    """A layer's folder for temporary files is beside the one for the workspace."""
    if os.environ.get("TMPDIR") != old:
        return
    os.environ["TMPDIR"] = folder
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None and tempfile.tempdir == old:
        tempfile.tempdir = folder


def leave_exit_handlers(kernel, options):
    if not options["heir"] and options["session"] != kernel.session:
        # A session of its own. The source runs the exit handlers that it registered; those that are registered from now on run here.
        import atexit

        atexit._clear()
        kernel.is_copy = True


def continue_from_image(kernel, carried, options):
    """The same in a process that continues from an image: descriptors and folders are those of another kernel."""
    leave_exit_handlers(kernel, options)
    carried.put_back(kernel.stderr.write)
    _workcell.begin_again()
    own_loop(kernel.cells.loop)
    if not options.get("speculate"):
        own_randomness(kernel.cells.ns)
    ssl = sys.modules.get("_ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(32), 32.0)  # it tells forks apart by their pid, which may be the same here
    kernel.session = options["session"]
    if kernel.confinement is not None:
        kernel.confinement.skipped = options["skipped"]
    _workcell.title("workcell-kernel " + kernel.session)


def own_offsets(kernel):
    """Files have positions of their own from now on; connections, which belong to the source, are closed."""
    ours = loop_fds(kernel)
    for fd, target in open_fds().items():
        if fd in ours:
            continue
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISREG(mode):
                reopen(fd)
            elif stat.S_ISSOCK(mode) or (stat.S_ISFIFO(mode) and not is_lifeline(fd)):
                null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
                os.dup2(null, fd, os.get_inheritable(fd))
                os.close(null)
        except OSError:
            pass  # a file that cannot be opened again keeps the position it shares


def reopen(fd):
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_SYNC)
    again = os.open("/proc/self/fd/%d" % fd, flags | os.O_CLOEXEC)
    try:
        os.lseek(again, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(again, fd, os.get_inheritable(fd))
    finally:
        os.close(again)


def own_loop(loop):
    """The selector's descriptor and the pipe that wakes it are shared with the source: new ones take their place."""
    if loop is None or loop.is_closed():
        return
    import selectors

    old, woken_by = loop._selector, loop._ssock.fileno()
    new = selectors.DefaultSelector()
    for key in list(old.get_map().values()):
        if key.fd != woken_by:
            try:
                new.register(key.fileobj, key.events, key.data)
            except OSError:
                pass  # a connection that was not carried
    loop._selector = new
    old._selector.close()  # not old.unregister(): that would reach the source's
    loop._ssock.close()
    loop._csock.close()
    loop._internal_fds -= 1
    loop._make_self_pipe()


def begin_randomness():
    """OpenSSL begins its generator with the first use, which takes longer than all of a fork. Begun here, the forks need not."""
    ssl = sys.modules.get("_ssl")
    if ssl is not None:
        ssl.RAND_status()


def own_randomness(namespace):
    """Random numbers and temporary names differ from the source's. ``random``, ``uuid``, ``secrets`` and OpenSSL see to it themselves."""
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None
    plain, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    for value in list(namespace.values()):
        if plain is not None and isinstance(value, plain.Random):
            value.seed()
        elif numpy is not None and isinstance(value, numpy.Generator):
            value.bit_generator.state = type(value.bit_generator)().state
        elif numpy is not None and isinstance(value, numpy.RandomState):
            value.seed()
