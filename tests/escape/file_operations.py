"""Random operations on files, for test_protected.py: the same from the same seed.  Runs in a sandbox."""
import errno
import fcntl
import os
import random
import stat


def operations(root, seed, n):
    """Random operations on files below root; what each answered, and what is there at the end."""
    rng = random.Random(seed)
    os.makedirs(root)
    os.chdir(root)
    said = []
    names = ["a", "b", "c", "d", "l", "m"]
    held = [os.open(".", os.O_RDONLY)]
    def path():
        kind = rng.random()
        parts = [rng.choice(names) for _ in range(rng.choice([1, 1, 1, 2, 2, 3]))]
        text = "/".join(parts)
        if kind < 0.04: text += "/"
        elif kind < 0.08: text = "./" + text
        elif kind < 0.12: text = rng.choice(names) + "/../" + text
        elif kind < 0.14: text = text + rng.choice(["/.", "/..", "//"])
        elif kind < 0.2: text = root + "/" + text
        elif kind < 0.21: text = ""
        elif kind < 0.22: text = "x" * rng.choice([255, 256, 300])
        elif kind < 0.23: text = "y/" * rng.choice([2040, 2047, 2048, 2050])
        elif kind < 0.25: text = "/proc/self/cwd/" + text
        elif kind < 0.27: text = "/proc/self/root" + root + "/" + text
        elif kind < 0.28: text = "/proc/thread-self/cwd/" + text
        elif kind < 0.31: text = "/proc/self/fd/%d" % rng.choice(held)
        elif kind < 0.32: text = "/dev/fd/%d/" % rng.choice(held) + text
        elif kind < 0.33: text = rng.choice([".", "..", "/", "//", root])
        elif kind < 0.34: text = "\udcff\udcfe" + text
        return text
    def target():
        return rng.choice([rng.choice(names), "../" + rng.choice(names), root + "/" + rng.choice(names), ".", "..", rng.choice(names) + "/" + rng.choice(names),
                           "/proc/self/cwd/" + rng.choice(names), rng.choice(names) + "/"])
    def at():
        return rng.choice([None, None, rng.choice(held), 997])
    def run(what, call):
        try:
            value = call()
        except OSError as error:
            value = errno.errorcode.get(error.errno, str(error.errno))
        except ValueError as error:
            value = str(error)
        said.append([what, value])
        return value
    def opened(name, flags, mode, base):
        fd = os.open(name, flags, mode, dir_fd=base)
        st = os.fstat(fd)
        told = [fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETFD), oct(st.st_mode)] + ([] if stat.S_ISDIR(st.st_mode) else [st.st_nlink, st.st_size])
        if flags & 3 and stat.S_ISREG(st.st_mode):
            os.write(fd, b"w" * rng.randrange(4))
        if stat.S_ISDIR(st.st_mode) and len(held) < 8 or rng.random() < 0.05:
            held.append(fd)
        else:
            if rng.random() < 0.1 and flags & os.O_TMPFILE == os.O_TMPFILE:
                run("link unnamed", lambda: os.link("/proc/self/fd/%d" % fd, rng.choice(names), src_dir_fd=held[0], follow_symlinks=True))
            os.close(fd)
        return told
    extra = [os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_APPEND, os.O_NOFOLLOW, os.O_DIRECTORY, os.O_NONBLOCK, os.O_SYNC, os.O_CREAT, os.O_CREAT]
    for _ in range(n):
        what = rng.choice(["open"] * 6 + ["mkdir", "mkdir", "rename", "rename", "link", "symlink", "unlink", "rmdir", "truncate", "umask", "chdir", "tmpfile",
                           "creat", "stat"])
        if what == "open":
            flags = rng.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR, 3])
            for bit in rng.sample(extra, rng.randrange(4)):
                flags |= bit
            if rng.random() < 0.03: flags |= os.O_PATH
            if flags & os.O_CREAT and flags & os.O_DIRECTORY: flags &= ~os.O_DIRECTORY
            mode, base, name = rng.choice([0o777, 0o666, 0o600, 0o444, 0o1777]), at(), path()
            run("open %r %o %o %s" % (name, flags, mode, base), lambda: opened(name, flags, mode, base))
        elif what == "tmpfile":
            mode, name = rng.choice([0o666, 0o600]), rng.choice([".", path()])
            run("tmpfile %r" % name, lambda: opened(name, os.O_TMPFILE | os.O_RDWR, mode, None))
        elif what == "creat":
            name = path()
            run("creat %r" % name, lambda: os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o640)))
        elif what == "mkdir":
            name, mode, base = path(), rng.choice([0o777, 0o700, 0o1777]), at()
            run("mkdir %r %o %s" % (name, mode, base), lambda: os.mkdir(name, mode, dir_fd=base))
        elif what in ("unlink", "rmdir"):
            name, base = path(), at()
            run("%s %r %s" % (what, name, base), lambda: getattr(os, what)(name, dir_fd=base))
        elif what == "rename":
            a, b, x, y = path(), path(), at(), at()
            run("rename %r %r %s %s" % (a, b, x, y), lambda: os.rename(a, b, src_dir_fd=x, dst_dir_fd=y))
        elif what == "link":
            a, b, x, y, follow = path(), path(), at(), at(), rng.random() < 0.5
            run("link %r %r %s %s %s" % (a, b, x, y, follow), lambda: os.link(a, b, src_dir_fd=x, dst_dir_fd=y, follow_symlinks=follow))
        elif what == "symlink":
            a, b, y = target(), path(), at()
            run("symlink %r %r %s" % (a, b, y), lambda: os.symlink(a, b, dir_fd=y))
        elif what == "truncate":
            name, size = path(), rng.choice([0, 3, 100, -1, 1 << 40])
            run("truncate %r %d" % (name, size), lambda: os.truncate(name, size))
        elif what == "umask":
            os.umask(rng.choice([0o022, 0, 0o077, 0o027]))
        elif what == "chdir":
            name = rng.choice([root, path()])
            run("chdir %r" % name, lambda: os.chdir(name))
        else:
            name = path()
            run("stat %r" % name, lambda: oct(os.lstat(name).st_mode))
    os.umask(0o022)
    for folder, folders, files in sorted(os.walk(root)):
        for name in sorted(folders + files):
            full = os.path.join(folder, name)
            st = os.lstat(full)
            said.append([full[len(root):].encode(errors="surrogateescape").decode("latin1"), oct(st.st_mode), st.st_nlink if not stat.S_ISDIR(st.st_mode) else 0,
                         os.readlink(full) if stat.S_ISLNK(st.st_mode) else "", st.st_size if stat.S_ISREG(st.st_mode) else 0])
    for fd in held:
        os.close(fd)
    os.chdir("/")
    return said
