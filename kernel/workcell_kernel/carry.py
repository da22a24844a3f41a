"""What a kernel has outside of its memory, for one that continues from its image (kernel/ext/image.c) in a sandbox of its own.

It is collected into the memory before the image is written: the working directory, open files, and the files of folders that only this
sandbox has.
"""

import errno
import fcntl
import os
import stat

from . import branch

OWN_FILES = "workcell"  # CELL_PLAN_TMPFS of src/sandbox/plan.h
CARRIED_BYTES = 64 << 20
MAX_LOST = 16  # files that are named
KEPT_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_SYNC
NULL = "/dev/null"
PORTABLE = b"workcell-portable-1\n"  # a session in the portable form begins so (objects.py)


class TooMuch(Exception):
    pass


own_places_found = None  # a sandbox has the same ones until its end, and so has the sandbox of an image


def own_places():
    """Writable folders that only this sandbox has. A workspace that is mounted there is not one of them."""
    global own_places_found
    if own_places_found is None:
        own_places_found = find_own_places()
    return own_places_found


def find_own_places():
    found = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, after = line.split(" - ", 1)
            place, options = before.split()[4:6]
            kind, source = after.split()[:2]
            found[place] = kind == "tmpfs" and source == OWN_FILES and "ro" not in options.split(",")
    return [place for place, is_own in found.items() if is_own and place != "/"]


def is_portable(fd):
    return os.pread(fd, len(PORTABLE), 0) == PORTABLE


def is_empty(folder):
    with os.scandir(folder) as entries:
        return next(entries, None) is None


class Carried:
    def __init__(self, kernel, passed, drop, alone):
        """alone: the kernel has no descriptors but its own."""
        self.held = []
        self.lost = []  # [kind, name]; with drop: named in the answer of a save
        self.files = []
        self.room = CARRIED_BYTES
        self.cwd = os.getcwd()
        self.umask = os.umask(0o077)
        os.umask(self.umask)
        self.streams = {} if alone else branch.stream_fds()
        self.renewed = branch.loop_fds(kernel)
        self.fds = [] if alone else [self.note(fd, target, drop) for fd, target in branch.open_fds(passed).items()
                                         if not branch.is_lifeline(fd)]

    def note(self, fd, target, drop):
        """(number, inheritable, path, flags, position) of a descriptor. The path is /dev/null for what has none, and the content of a file
        that was removed while it was open."""
        info, inheritable = os.fstat(fd), os.get_inheritable(fd)
        nothing = fd, inheritable, NULL, os.O_RDWR, 0
        if target.startswith("anon_inode:") and fd not in self.renewed and not drop:
            self.held.append(["descriptor", "%d (%s)" % (fd, target[len("anon_inode:"):].strip("[]"))])
        if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode) and not target.startswith("/dev/"):
            return nothing
        try:
            there = os.stat(target)
        except OSError:
            there = None
        flags = fcntl.fcntl(fd, fcntl.F_GETFL) & KEPT_FLAGS
        if there is None or (there.st_dev, there.st_ino) != (info.st_dev, info.st_ino):
            if stat.S_ISREG(info.st_mode) and flags & os.O_ACCMODE != os.O_WRONLY and info.st_size <= self.room:
                self.room -= info.st_size
                return fd, inheritable, os.pread(fd, info.st_size, 0), flags, os.lseek(fd, 0, os.SEEK_CUR)
            if not drop:
                self.held.append(["file", "%s (removed, and still open)" % target.replace(" (deleted)", "")])
            return nothing
        return fd, inheritable, target, flags, os.lseek(fd, 0, os.SEEK_CUR) if stat.S_ISREG(info.st_mode) else 0

    def take_files(self, drop):
        """Those of folders that the other sandbox has as well, but empty."""
        try:
            for place in own_places():
                if is_empty(place):
                    continue
                device = os.stat(place).st_dev
                for folder, folders, files in os.walk(place, onerror=self.lose_folder):
                    folders[:] = [name for name in folders if os.lstat(os.path.join(folder, name)).st_dev == device]
                    for name in folders + files:
                        self.room -= self.take_file(os.path.join(folder, name), self.room)
        except TooMuch:
            self.files = []
            (self.lost if drop else self.held).append(["files", "in /tmp: more than %d MB" % (CARRIED_BYTES >> 20)])
        if len(self.lost) > MAX_LOST:
            self.lost[MAX_LOST:] = [["more", "%d other files" % (len(self.lost) - MAX_LOST)]]

    def lose_folder(self, exc):
        if exc.errno != errno.ENOENT:
            self.lost.append(["folder", "%s (%s)" % (exc.filename, exc.strerror)])

    def take_file(self, path, room):
        try:
            info = os.lstat(path)
            mode, content = info.st_mode, None
            if stat.S_ISREG(mode):
                if info.st_size > room:
                    raise TooMuch
                with open(path, "rb") as file:
                    content = file.read(room)
            elif stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif not stat.S_ISDIR(mode):
                self.lost.append(["socket" if stat.S_ISSOCK(mode) else "pipe" if stat.S_ISFIFO(mode) else "file", path])
                return 0  # its other end is not carried
        except OSError as exc:
            if exc.errno != errno.ENOENT:  # else it was removed meanwhile
                self.lost.append(["file", "%s (%s)" % (path, exc.strerror)])  # not readable for the code itself
            return 0
        self.files.append((path, mode, info.st_mtime_ns, content))
        return 512 + (len(content) if content else 0)

    # -- in the process that continues

    def put_back(self, tell):
        for path, mode, mtime, content in self.files:
            try:
                put_file(path, mode, mtime, content)
            except OSError as exc:
                tell("[%s was not carried over: %s]\n" % (path, exc.strerror))
        self.files = []
        os.umask(self.umask)
        try:
            os.chdir(self.cwd)
        except OSError as exc:
            tell("[the working directory was not carried over: %s: %s]\n" % (self.cwd, exc.strerror))
        for fd, number in self.streams.items():
            os.dup2(number, fd)
        for fd, inheritable, path, flags, position in self.fds:
            try:
                again = os.open(path, flags | os.O_CLOEXEC) if isinstance(path, str) else put_removed(path, flags)
            except OSError as exc:
                tell("[descriptor %d was not carried over: %s: %s]\n" % (fd, path if isinstance(path, str) else "its file", exc.strerror))
                again = os.open(NULL, os.O_RDWR | os.O_CLOEXEC)
                position = 0
            if position:
                os.lseek(again, position, os.SEEK_SET)
            if again == fd:
                os.set_inheritable(fd, inheritable)
            else:
                os.dup2(again, fd, inheritable)
                os.close(again)


def put_removed(content, flags):
    """A file without a name."""
    import tempfile

    fd, path = tempfile.mkstemp()
    try:
        with open(fd, "wb") as file:
            file.write(content)
        return os.open(path, flags | os.O_CLOEXEC)
    finally:
        os.unlink(path)


def put_file(path, mode, mtime, content):
    if stat.S_ISDIR(mode):
        os.makedirs(path, exist_ok=True)
    elif stat.S_ISLNK(mode):
        os.symlink(content, path)
        return
    else:
        with open(path, "wb") as file:
            file.write(content)
    os.chmod(path, stat.S_IMODE(mode))
    os.utime(path, ns=(mtime, mtime))
