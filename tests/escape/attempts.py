"""Attempts to get out of a sandbox, each with the answers that are denials.

An attempt is Python that runs in a cell and sets `out`: "ok:..." when it got what it wanted, else the name of the errno (or
another word). `denied` lists the answers that mean the sandbox said no; anything else, also a failure of another kind, is
a failure of the test. `control` is what the same code must answer in the `subprocess` executor as the same user, where it
is harmless: it shows that the attempt would work if it were not denied. "ok" stands for every "ok:...".

`%(name)s` in the code is filled with facts of the host that test_escape.py prepares.
"""

PRELUDE = r"""
import ctypes, errno, os, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def word(code):
    return errno.errorcode.get(code, "E%%d" %% code)
def sc(nr, *args):
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(nr), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return "ok:%%d" %% r if r >= 0 else word(ctypes.get_errno())
def tr(fn, *args, **kw):
    try:
        return "ok:%%.60r" %% (fn(*args, **kw),)
    except OSError as e:
        return word(e.errno) if e.errno else type(e).__name__
    except Exception as e:
        return type(e).__name__
def read(path):
    with open(path, "rb") as f:
        return f.read(64)
def write(path, data=b"x"):
    with open(path, "wb") as f:
        f.write(data)
def in_child(fn):
    # The word fn() answers, from a forked child: for what would spoil this process.
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(w, str(fn()).encode())
        finally:
            os._exit(0)
    os.close(w)
    text = os.read(r, 4096).decode()
    os.close(r)
    _, status = os.waitpid(pid, 0)
    return text or ("signal:%%d" %% os.WTERMSIG(status) if os.WIFSIGNALED(status) else "exit:%%d" %% os.WEXITSTATUS(status))
FACTS = r'''
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
facts = {"ids": (os.getresuid(), os.getresgid(), os.getgroups()), "nnp": libc.prctl(39, 0, 0, 0, 0), "seccomp": libc.prctl(21),
         "bounds": [libc.prctl(23, n) for n in range(41)], "name": os.uname().nodename}
caps = ctypes.create_string_buffer(24)
libc.syscall(125, (ctypes.c_uint * 2)(0x20080522, 0), caps)
facts["caps"] = caps.raw
try:
    facts["root"] = sorted(os.listdir("/"))
except OSError as e:
    facts["root"] = e.errno
for name, args in {"unshare": (272, 0x10000000), "mount": (165, b"none", b"/tmp", b"tmpfs", 0, 0), "ptrace": (101, 16, 1, 0, 0),
                   "io_uring": (425, 1, ctypes.create_string_buffer(120)), "raw": (41, 2, 3, 1), "netlink": (41, 16, 3, 0)}.items():
    ctypes.set_errno(0)
    facts[name] = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in args]), ctypes.get_errno()
for path in ("/evil", "/usr/evil", "/etc/evil"):
    try:
        open(path, "wb").close()
        facts[path] = "written"
    except OSError as e:
        facts[path] = e.errno
try:
    open(SECRET).close()
    facts["secret"] = "read"
except OSError as e:
    facts["secret"] = e.errno
'''
def facts(secret):
    space = {"SECRET": secret}
    exec(FACTS, space)
    return repr(space["facts"])
"""


class Attempt:
    def __init__(self, name, code, denied, control=None, layer=None, root_control=None):
        self.name, self.code, self.denied = name, code, denied.split()
        self.control, self.root_control = control, root_control  # root_control: only when the tests run as root
        self.layer = layer  # the layer whose loss this attempt must notice


def A(*args, **kw):
    return Attempt(*args, **kw)


GONE = "ENOENT"
NO = "EPERM"

FILES = [
    A("read shadow", "out = tr(read, '/etc/shadow')", GONE, root_control="ok"),
    A("read a file of the host", "out = tr(read, %(secret)r)", GONE, control="ok"),
    A("cut a file of the host", "out = tr(os.truncate, %(secret)r, 6)", GONE, root_control="ok"),
    A("list the home folder", "out = tr(os.listdir, %(home)r)", GONE, control="ok"),
    A("read ssh configuration", "out = tr(os.listdir, '/etc/ssh')", GONE),
    A("list the host's /tmp", "out = 'ok:seen' if %(secret_name)r in os.listdir(%(secret_parent)r) else 'hidden'", "hidden", control="ok"),
    A("write to the root", "out = tr(write, '/evil')", "EROFS EACCES", root_control=None, layer="seal"),
    A("the root is read-only", "out = 'ro' if os.statvfs('/').f_flag & os.ST_RDONLY else 'ok'", "ro", layer="seal"),
    A("/usr is read-only", "out = 'ro' if os.statvfs('/usr').f_flag & os.ST_RDONLY else 'ok'", "ro", control="ok",
      layer="read-only"),
    A("write to /usr", "out = tr(write, '/usr/evil-workcell')", "EROFS EACCES"),
    A("write to the interpreter's folder", "out = tr(write, os.path.dirname(os.__file__) + '/evil.py')", "EROFS EACCES"),
    A("write to /etc", "out = tr(write, '/etc/evil')", "EROFS EACCES"),
    A("remount /usr writable", "out = sc(165, b'none', b'/usr', 0, 32 | 4096, 0)", NO, layer="seccomp"),
    A("make a folder in the root", "out = tr(os.mkdir, '/evil-dir')", "EROFS EACCES"),
    A("the old root", "out = tr(os.listdir, '/.host')", GONE, layer="detach"),
    A("the caller's files, all of them", "out = tr(os.listdir, '/.mapped')", GONE, layer="detach"),
    A("/proc/1/root", "out = tr(os.listdir, '/proc/1/root/home')", "EACCES EPERM ENOENT"),
    A("/proc/1/root of pid 1 leads nowhere else", "out = tr(read, '/proc/1/root' + %(secret)r)", "EACCES EPERM ENOENT"),
    A("/proc/1/cwd", "out = tr(os.listdir, '/proc/1/cwd/')", "EACCES EPERM"),
    A("/proc/1/mem", "out = tr(lambda: open('/proc/1/mem', 'rb+').close())", "EACCES EPERM"),
    A("/proc/1/environ", "out = tr(read, '/proc/1/environ')", "EACCES EPERM"),
    A("/proc/1/fd", "out = tr(os.readlink, '/proc/1/fd/0')", "EACCES EPERM"),
    A("open /proc/1/fd", "out = tr(os.open, '/proc/1/fd/0', 0)", "EACCES EPERM"),
    A("/proc/1/maps", "out = tr(read, '/proc/1/maps')", "EACCES EPERM"),
    A("processes of the host", "out = 'ok:seen' if os.path.exists('/proc/%(host_pid)d') and %(host_pid)d > 50 else 'hidden'", "hidden",
      control="ok"),
    A("symbolic link to the host", "os.symlink(%(secret)r, 'sl'); out = tr(read, 'sl'); os.unlink('sl')", GONE, control="ok"),
    A("hard link to a file of the system", "out = tr(os.link, '/usr/bin/env', 'hl')", "EXDEV EPERM EACCES"),
    A("hard link to a file of the host", "out = tr(os.link, %(secret)r, 'hl2')", GONE, root_control="ok"),
    A("a link by way of /proc", "os.symlink('/proc/1/root', 'pr'); out = tr(read, 'pr' + %(secret)r); os.unlink('pr')",
      "EACCES EPERM ENOENT"),
    A("memory of the host", "out = tr(lambda: open('/proc/%(host_pid)d/mem', 'rb').close())", GONE, root_control="ok"),
    A("memory of another session", "out = tr(lambda: open('/proc/%(sibling_pid)d/mem', 'rb').close())", GONE),
    A("environment of another session", "out = tr(read, '/proc/%(sibling_pid)d/environ')", GONE),
    A("climb out with ..", "out = tr(read, '../' * 30 + %(secret)r)", GONE, control="ok"),
    A("open_by_handle_at", "out = sc(304, 3, 0, 0)", NO, layer="seccomp"),
    A("name_to_handle_at", "out = sc(303, -100, b'/', 0, 0, 0)", NO),
    A("chroot", "out = sc(161, b'/tmp')", NO),
    A("setuid program", "out = 'ok:%%d' %% os.geteuid() if os.stat('/usr/bin/su').st_mode & 0o4000 and not "
      "os.statvfs('/usr/bin/su').f_flag & os.ST_NOSUID else 'nosuid'", "nosuid"),
    A("make a setuid file", "write('su'); out = tr(os.chmod, 'su', 0o4755)", NO, control="ok", layer="seccomp"),
    A("a setuid file by fchmod", "out = in_child(lambda: tr(os.fchmod, os.open('su1', os.O_CREAT | os.O_RDWR, 0o755), 0o4755))", NO, control="ok", layer="setuid"),
    A("a setuid file by fchmodat2", "write('su2'); out = sc(452, -100, b'su2', 0o4755, 0)", NO, control="ok", layer="setuid"),
    A("a setgid file by fchmodat2", "write('su2'); out = sc(452, -100, b'su2', 0o2755, 0)", NO, control="ok", layer="setuid"),
    A("a setuid file by fchmodat2 of a descriptor", "out = in_child(lambda: sc(452, os.open('su3', os.O_CREAT | os.O_RDWR, 0o755), b'', 0o4755, 0x1000))", NO,
      control="ok", layer="setuid"),
    A("a setuid file by open", "out = tr(os.open, 'su4', os.O_CREAT | os.O_WRONLY, 0o4755)", NO, control="ok", layer="setuid"),
    A("a setgid file by open", "out = tr(os.open, 'su5', os.O_CREAT | os.O_WRONLY, 0o2755)", NO, control="ok", layer="setuid"),
    A("a setuid file by the old open", "out = sc(2, b'su6', os.O_CREAT | os.O_WRONLY, 0o4755)", NO, control="ok", layer="setuid"),
    A("a setuid file by creat", "out = sc(85, b'su7', 0o4755)", NO, control="ok", layer="setuid"),
    A("a setuid file without a name", "out = tr(os.open, '.', os.O_TMPFILE | os.O_RDWR, 0o4755)", NO, control="ok", layer="setuid"),
    A("a setuid file by openat2", "out = sc(437, -100, b'su8', struct.pack('QQQ', os.O_CREAT | os.O_WRONLY, 0o4755, 0), 24)", "ENOSYS",
      control="ok"),
    A("a setuid file by mknod", "out = sc(133, b'su9', 0o104755, 0)", NO, control="ok", layer="seccomp"),
    A("a setgid folder", "out = sc(83, b'sgd%%d' %% os.getpid(), 0o2755)", NO, control="ok", layer="setuid"),
    A("a setuid bit that was got after all", "out = ' '.join(n for n in os.listdir('.') if os.lstat(n).st_mode & 0o6000) or 'none'", "none",
      layer="setuid"),
    A("a lease on a file of the system", "import fcntl; out = in_child(lambda: tr(fcntl.fcntl, os.open('/usr/bin/env', 0), 1024, 0))", NO,
      root_control="ok", layer="leases"),
    A("a lease on a file of the workspace", "import fcntl; write('l'); out = in_child(lambda: tr(fcntl.fcntl, os.open('l', 0), 1024, 0))", NO, control="ok",
      layer="leases"),
    A("notices of a folder's use", "import fcntl; out = in_child(lambda: tr(fcntl.fcntl, os.open('/usr/bin', 0), 1026, 1 << 5))", NO, control="ok", layer="leases"),
    A("watch what others run", "out = sc(294, 0)", "ENOSYS", control="ok", layer="watch"),
    A("watch by the old call", "out = sc(253)", "ENOSYS", control="ok", layer="watch"),
    A("what of a file is in memory", "F = os.open('/usr/bin/env', 0); out = sc(451, F, struct.pack('QQ', 0, 4096), ctypes.create_string_buffer(40), 0); os.close(F)",
      "ENOSYS", root_control="ok"),
    A("read what is in memory", "F = os.open('/usr/bin/env', 0); out = tr(os.preadv, F, [bytearray(16)], 0, os.RWF_NOWAIT); os.close(F)", "ENOTSUP", control="ok",
      layer="cached"),
    A("what /proc tells of the machine", "out = ' '.join(n for n in sorted(os.listdir('/proc')) if not n.isdigit() and n not in "
      "('self', 'thread-self')) or 'none'", "none", layer="subset"),
    A("the kernel's command line", "out = tr(read, '/proc/cmdline')", "ENOENT", control="ok", layer="subset"),
    A("locks of the whole machine", "out = tr(read, '/proc/locks')", "ENOENT", control="ok", layer="subset"),
    A("pressure of the whole machine", "out = tr(read, '/proc/pressure/cpu')", "ENOENT"),
    A("mknod of a disk", "out = tr(os.mknod, 'disk', 0o60600, os.makedev(254, 0))", NO, root_control="ok"),
    A("mknod of memory", "out = tr(os.mknod, '/tmp/mem', 0o20600, os.makedev(1, 1))", NO),
    A("devices of the host", "out = 'ok' if set(os.listdir('/dev')) - set('fd full null ptmx pts random shm stderr stdin stdout "
      "urandom zero'.split()) else 'few'", "few", control="ok"),
    A("sysfs", "out = tr(os.listdir, '/sys/kernel')", GONE, control="ok"),
    A("another session's /tmp", "out = tr(read, '/tmp/%(sibling_mark)s')", GONE),
    A("another session's shared memory", "out = tr(read, '/dev/shm/%(sibling_mark)s')", GONE),
    A("another session's System V memory", "out = sc(29, %(sibling_key)d, 0, 0)", GONE),
    A("a descriptor to somewhere", "out = ' '.join(sorted({os.readlink('/proc/self/fd/' + n).split(':')[0] for n in "
      "os.listdir('/proc/self/fd') if os.path.lexists('/proc/self/fd/' + n)} - {'/dev/null', 'pipe', 'socket'})) or 'none'",
      "none", layer="fds"),
    A("core pattern", "out = tr(write, '/proc/sys/kernel/core_pattern')", "ENOENT EACCES EROFS", layer="mask"),
    A("sysctl", "out = tr(read, '/proc/sys/kernel/hostname')", GONE, control="ok", layer="mask"),
    A("sysrq", "s = '/proc/sysrq-trigger'\nout = 'null' if os.path.exists(s) and os.stat(s).st_rdev == os.makedev(1, 3) else tr(write, s)",
      "null EACCES EROFS ENOENT"),
    A("kallsyms", "out = tr(read, '/proc/kallsyms')", "ok:b'' ENOENT", control="ok", layer="mask"),
    A("write below /proc", "import subprocess; out = 'ok' if subprocess.run(['sh', '-c', 'echo x > /proc/self/comm'], "
      "stderr=subprocess.DEVNULL).returncode == 0 else 'denied'", "denied", control="ok", layer="landlock"),
    A("groups of the host", "out = 'ok' if any(line.split(':', 2)[2] != '/\\n' for line in open('/proc/self/cgroup')) else 'hidden'",
      "hidden"),
    A("cgroup files", "out = tr(os.listdir, '/sys/fs/cgroup')", GONE, control="ok"),
    A("release agent", "out = sc(165, b'cgroup', b'/tmp', b'cgroup', 0, b'memory')", NO),
    A("the host's environment", "out = 'ok' if b'%(env_secret)s' in repr(dict(os.environ)).encode() else 'clean'", "clean"),
    A("the zygote's environment", "out = tr(lambda: open('/proc/self/environ','rb').read()); out = 'ok' if '%(env_secret)s' in out else 'clean'",
      "clean"),
]

PROCESS = [
    A("unshare user", "out = in_child(lambda: sc(272, 0x10000000))", NO, control="ok", layer="seccomp"),
    A("unshare mount", "out = in_child(lambda: sc(272, 0x20000))", NO),
    A("unshare pid", "out = in_child(lambda: sc(272, 0x20000000))", NO),
    A("unshare net", "out = in_child(lambda: sc(272, 0x40000000))", NO),
    A("clone with a user namespace", "out = in_child(lambda: sc(56, 0x10000000 | 17, 0, 0, 0, 0))", NO, layer="seccomp"),
    A("clone with a mount namespace and more", "out = in_child(lambda: sc(56, 0x20000 | 0x10000000 | 17, 0, 0, 0, 0))", NO),
    A("clone3", "out = in_child(lambda: sc(435, ctypes.create_string_buffer(b'\\0' * 64), 64))", "ENOSYS"),
    A("setns", "out = sc(308, 0, 0)", NO, layer="seccomp"),
    A("mount", "out = sc(165, b'none', b'/tmp', b'tmpfs', 0, 0)", NO, root_control=None, layer="seccomp"),
    A("umount", "out = sc(166, b'/tmp', 2)", NO),
    A("open_tree", "out = sc(428, -100, b'/', 1)", NO),
    A("fsopen", "out = sc(430, b'tmpfs', 0)", NO),
    A("mount_setattr", "out = sc(442, -100, b'/usr', 0, 0, 0)", NO),
    A("pivot_root", "out = sc(155, b'.', b'.')", NO),
    A("ptrace a child", "def t():\n    pid = os.fork()\n    if pid == 0:\n        signal.pause()\n    r = sc(101, 16, pid, 0, 0)\n"
      "    os.kill(pid, 9)\n    os.waitpid(pid, 0)\n    return r\nout = t()", NO, control="ok", layer="seccomp"),
    A("ptrace pid 1", "out = sc(101, 16, 1, 0, 0)", NO),
    A("process_vm_readv of pid 1", "b = ctypes.create_string_buffer(64); v = struct.pack('PN', ctypes.addressof(b), 64); "
      "out = sc(310, 1, v, 1, v, 1, 0)", NO),
    A("process_vm_readv of oneself", "b = ctypes.create_string_buffer(64); v = struct.pack('PN', ctypes.addressof(b), 64); "
      "out = sc(310, os.getpid(), v, 1, v, 1, 0)", NO, control="ok", layer="seccomp"),
    A("ptrace the zygote", "out = sc(101, 16, %(zygote_pid)d, 0, 0)", NO),
    A("ptrace another session", "out = sc(101, 16, %(sibling_pid)d, 0, 0)", NO),
    A("process_vm_readv of the zygote", "b = ctypes.create_string_buffer(64); v = struct.pack('PN', ctypes.addressof(b), 64); "
      "out = sc(310, %(zygote_pid)d, v, 1, v, 1, 0)", NO),
    A("process_vm_readv of another session", "b = ctypes.create_string_buffer(64); v = struct.pack('PN', ctypes.addressof(b), 64); "
      "out = sc(310, %(sibling_pid)d, v, 1, v, 1, 0)", NO),
    A("process_vm_writev to another session", "b = ctypes.create_string_buffer(64); v = struct.pack('PN', ctypes.addressof(b), 64); "
      "out = sc(311, %(sibling_pid)d, v, 1, v, 1, 0)", NO),
    A("pidfd of the host", "out = sc(434, %(host_pid)d, 0)", "ESRCH", control="ok"),
    # CVE-2026-43391 and its kind: handles of namespaces.
    A("the owner of a namespace", "out = sc(16, os.open('/proc/self/ns/mnt', 0), 0xb701)", NO, control="ok", layer="nsfs"),
    A("the parent of a namespace", "out = sc(16, os.open('/proc/self/ns/pid', 0), 0xb702)", NO, layer="nsfs"),
    A("the next mount namespace", "out = sc(16, os.open('/proc/self/ns/mnt', 0), 0x8010b70b, ctypes.create_string_buffer(16))", NO),
    A("a namespace by a pidfd", "out = sc(16, os.pidfd_open(os.getpid()), 0xff03, 0)", NO, layer="nsfs"),
    A("a handle of a namespace", "out = sc(303, -100, b'/proc/self/ns/mnt', struct.pack('Ii128x', 128, 0), ctypes.create_string_buffer(8), 0x400)", NO),
    A("open the handle of a namespace", "out = sc(304, os.open('/proc/self/ns/mnt', 0), struct.pack('IiQII', 16, 0xf1, 0xeffffff8, 0, 0), 0)", NO),
    A("list namespaces", "out = sc(470, 0, 0, 0, 0)", "EPERM"),
    A("ask about mounts", "out = sc(457, 0, 0, 0, 0)", "EPERM"),
    A("list mounts", "out = sc(458, 0, 0, 0, 0)", "EPERM"),
    # CVE-2026-31431: pages of a file that can only be read, by way of a pipe.
    A("splice", "r, w = os.pipe(); out = tr(os.splice, os.open('/usr/bin/env', 0), w, 16) if hasattr(os, 'splice') else "
      "sc(275, os.open('/usr/bin/env', 0), 0, w, 0, 16, 0)", "EINVAL", control="ok", layer="splice"),
    A("vmsplice", "r, w = os.pipe(); b = ctypes.create_string_buffer(16); out = sc(278, w, struct.pack('PN', ctypes.addressof(b), 16), 1, 0)",
      "EINVAL", control="ok", layer="splice"),
    A("tee", "r, w = os.pipe(); r2, w2 = os.pipe(); os.write(w, b'x'); out = sc(276, r, w2, 1, 0)", "EINVAL", control="ok", layer="splice"),
    A("merge pages with others", "import mmap; m = mmap.mmap(-1, 4096); out = tr(m.madvise, 12)", "EINVAL", layer="merging"),
    # CVE-2026-32048: a child must not have less isolation than its parent.
    A("what a child may do", "out = 'same' if in_child(lambda: facts(%(secret)r)) == facts(%(secret)r) else 'differs'", "same"),
    A("what a thread may do", "import threading\ngot = []\nt = threading.Thread(target=lambda: got.append(facts(%(secret)r)))\nt.start()\nt.join()\n"
      "out = 'same' if got == [facts(%(secret)r)] else 'differs'", "same"),
    A("what a grandchild in a session of its own may do", "def t():\n    os.setsid()\n    return in_child(lambda: facts(%(secret)r))\n"
      "out = 'same' if in_child(t) == facts(%(secret)r) else 'differs'", "same"),
    A("what a program may do", "import subprocess, sys\nran = subprocess.run([sys.executable, '-I', '-c', 'SECRET = %%r\\n%%s\\nprint(repr(facts))' "
      "%% (%(secret)r, FACTS)], capture_output=True, text=True)\nout = 'same' if ran.stdout.strip() == facts(%(secret)r) else ran.stderr or ran.stdout",
      "same"),
    A("what a program of a shell may do", "import subprocess, sys\nran = subprocess.run(['setsid', '-w', 'sh', '-c', 'exec \"$0\" -I -c \"$1\"', "
      "sys.executable, 'SECRET = %%r\\n%%s\\nprint(repr(facts))' %% (%(secret)r, FACTS)], capture_output=True, text=True)\n"
      "out = 'same' if ran.stdout.strip() == facts(%(secret)r) else ran.stderr or ran.stdout", "same"),
    A("a user namespace by a program", "import subprocess; out = 'ok' if subprocess.run(['unshare', '-U', 'true'], "
      "stderr=subprocess.DEVNULL).returncode == 0 else 'denied'", "denied", control="ok", layer="seccomp"),
    A("pidfd_getfd", "out = sc(438, 0, 0, 0)", NO),
    A("kcmp", "out = sc(312, os.getpid(), os.getpid(), 0, 0, 0)", NO),
    A("signal the zygote", "out = tr(os.kill, %(zygote_pid)d, 0)", "ESRCH"),
    A("signal another session", "out = tr(os.kill, %(sibling_pid)d, 0)", "ESRCH"),
    A("signal the host", "out = tr(os.kill, %(host_pid)d, 0)", "ESRCH", root_control="ok"),
    A("kill pid 1", "tr(os.kill, 1, 9); tr(os.kill, 1, 15); out = 'alive'", "alive"),
    A("capabilities", "out = [l.split()[1] for l in open('/proc/self/status') if l.startswith('CapEff')][0].strip('0') or 'none'",
      "none", layer="caps", root_control=None),
    A("bounding set", "out = [l.split()[1] for l in open('/proc/self/status') if l.startswith('CapBnd')][0].strip('0') or 'none'",
      "none"),
    A("capabilities by exec", "import subprocess; out = subprocess.run(['grep', 'CapEff', '/proc/self/status'], "
      "capture_output=True, text=True).stdout.split()[1].strip('0') or 'none'", "none"),
    A("raise a capability", "out = sc(126, struct.pack('II', 0x20080522, 0), struct.pack('6I', *[0xffffffff]*6))", NO),
    A("no new privileges", "out = [l.split()[1] for l in open('/proc/self/status') if l.startswith('NoNewPrivs')][0]", "1",
      layer="nnp"),
    A("a protected name", "out = tr(write, 'Makefile')", "EACCES", layer="guard"),
    A("a hook", "out = tr(os.makedirs, '.git/hooks')", "EACCES", layer="guard"),
    A("a protected name by a rename", "write('renamed'); out = tr(os.rename, 'renamed', '.envrc')", "EACCES", layer="guard"),
    A("a protected name by a link", "write('linked'); out = tr(os.link, 'linked', 'conftest.py')", "EACCES", layer="guard"),
    A("a protected name by a program", "import subprocess; out = subprocess.run(['sh', '-c', 'echo x > .env || echo no'], "
      "capture_output=True, text=True).stdout.strip() or 'ok'", "no", layer="guard"),
    A("the memory of pid 1", "out = tr(open, '/proc/1/mem', 'rb')", "EACCES"),
    A("seccomp off", "out = tr(lambda: libc.prctl(22, 0)) ; out = [l.split()[1] for l in open('/proc/self/status') "
      "if l.startswith('Seccomp:')][0]", "2", layer="seccomp"),
    A("change uid", "out = tr(os.setuid, 12345)", "EPERM EINVAL"),
    A("change groups", "out = tr(os.setgroups, [0, 5])", "EPERM EINVAL"),
    A("personality", "out = sc(135, 0x0040000)", "ENOSYS", control="ok", layer="seccomp"),
    A("keyctl", "out = sc(250, 0, -3, 0)", NO, control="ok", layer="seccomp"),
    A("add_key", "out = sc(248, b'user', b'x', b'y', 1, -3)", NO),
    A("request_key", "out = sc(249, b'user', b'x', 0, -3)", NO),
    A("bpf", "out = sc(321, 0, 0, 0)", NO, layer="seccomp"),
    A("perf_event_open", "out = sc(298, 0, 0, -1, -1, 0)", NO),
    A("io_uring_setup", "out = sc(425, 4, ctypes.create_string_buffer(120))", NO, control="ok", layer="seccomp"),
    A("io_uring_enter", "out = sc(426, 0, 0, 0, 0, 0)", NO),
    A("userfaultfd", "out = sc(323, 1)", NO, control="ok", layer="seccomp"),
    A("modify_ldt", "out = sc(154, 0, ctypes.create_string_buffer(64), 64)", NO, control="ok", layer="seccomp"),
    A("memfd_secret", "out = sc(447, 0)", "EPERM ENOSYS"),
    A("x32 system call", "out = sc(0x40000000 + 39)", NO, layer="seccomp"),
    A("i386 system call", "import mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('b814000000cd80c3'))\n"
      "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
      "def t():\n    r = f()\n    return 'ok:%%d' %% r if r >= 0 else word(-r)\nout = in_child(t)", NO, control="ok", layer="seccomp"),
    A("load a module", "out = sc(313, 0, b'', 0)", NO),
    A("kexec", "out = sc(246, 0, 0, 0, 0)", NO),
    A("reboot", "out = sc(169, 0, 0, 0, 0)", NO),
    A("set the clock", "out = sc(227, 0, struct.pack('qq', 0, 0))", NO),
    A("adjust the clock", "out = sc(159, ctypes.create_string_buffer(208))", NO, control="ok"),
    A("the host's name", "out = os.uname().nodename", "sandbox"),
    A("host name", "out = sc(170, b'evil', 4)", NO),
    A("syslog", "out = sc(103, 10, 0, 0)", NO),
    A("acct", "out = sc(163, b'/tmp/acct')", NO),
    A("swapon", "out = sc(167, b'/tmp/x', 0)", NO),
    A("iopl", "out = sc(172, 3)", NO),
    A("quotactl", "out = sc(179, 0, 0, 0, 0)", NO),
    A("fanotify", "out = sc(300, 0, 0)", NO),
    A("unknown system call", "out = sc(999)", "ENOSYS"),
    A("more open files", "import resource; out = tr(resource.setrlimit, resource.RLIMIT_NOFILE, (99999, 99999))",
      "ValueError EPERM", layer="rlimits"),
    A("core files", "import resource; out = str(resource.getrlimit(resource.RLIMIT_CORE)[1])", "0", layer="rlimits"),
    A("nice below the host", "out = tr(os.setpriority, os.PRIO_PROCESS, 0, -20)", "EACCES EPERM"),
    A("a shorter slice", "out = sc(314, 0, struct.pack('IIQiIQQQ', 48, 0, 0, os.nice(0), 0, 100000, 0, 0), 0)", NO, control="ok",
      layer="seccomp"),
    A("another scheduling class", "out = tr(os.sched_setscheduler, 0, os.SCHED_BATCH, os.sched_param(0))", "EPERM", control="ok"),
    A("TIOCSTI", "import pty\ndef t():\n    import fcntl\n    a, b = pty.openpty()\n    return tr(fcntl.ioctl, b, 0x5412, b'x')\n"
      "out = t()", NO, layer="seccomp"),
    A("TIOCSTI with high bits", "import pty\ndef t():\n    a, b = pty.openpty()\n    return sc(16, b, 0x5412 | (1 << 32), b'x')\n"
      "out = t()", NO, layer="seccomp"),
    A("console paste", "out = sc(16, 0, 0x541c, b'\\x03')", NO),
]

NETWORK = [
    A("the host's loopback", "s = socket.socket(); s.settimeout(3); out = tr(s.connect, ('127.0.0.1', %(tcp_port)d))",
      "ECONNREFUSED", control="ok"),
    A("a public address", "s = socket.socket(); s.settimeout(3); out = tr(s.connect, ('192.0.2.1', 80))", "ENETUNREACH EPERM"),
    A("the metadata address", "s = socket.socket(); s.settimeout(3); out = tr(s.connect, ('169.254.169.254', 80))",
      "ENETUNREACH EPERM"),
    A("UDP to outside", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); out = tr(s.sendto, b'x', ('192.0.2.1', 53))",
      "ENETUNREACH EPERM"),
    A("names", "out = tr(socket.getaddrinfo, 'example.org', 80)", "gaierror E-3 E-2 E-5"),
    A("interfaces", "out = tr(socket.if_nameindex)", "EAFNOSUPPORT", control="ok", layer="seccomp"),
    A("interfaces of the host", "out = ' '.join(l.split(':')[0].strip() for l in open('/proc/self/net/dev') if ':' in l)", "lo"),
    A("raw socket", "out = tr(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)", NO, root_control="ok", layer="seccomp"),
    A("packet socket", "out = tr(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 3)", "EAFNOSUPPORT", root_control="ok",
      layer="seccomp"),
    A("netlink", "out = tr(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0)", "EAFNOSUPPORT", control="ok", layer="seccomp"),
    A("vsock", "out = tr(socket.socket, socket.AF_VSOCK, socket.SOCK_STREAM)", "EAFNOSUPPORT", layer="seccomp"),
    A("crypto sockets", "out = tr(socket.socket, socket.AF_ALG, socket.SOCK_SEQPACKET)", "EAFNOSUPPORT", layer="seccomp"),
    # CVE-2026-31431, CVE-2026-43284, CVE-2026-43500: what each is reached by.
    A("authenticated encryption in the kernel", "def t():\n    s = socket.socket(38, socket.SOCK_SEQPACKET)\n"
      "    s.bind(('aead', 'authencesn(hmac(sha256),cbc(aes))'))\nout = tr(t)", "EAFNOSUPPORT", layer="seccomp"),
    A("netlink of IPsec", "out = tr(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 6)", "EAFNOSUPPORT", layer="seccomp"),
    A("RxRPC", "out = sc(41, 33, socket.SOCK_DGRAM, socket.AF_INET)", "EAFNOSUPPORT", layer="seccomp"),
    A("IPsec within UDP", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); out = tr(s.setsockopt, 17, 100, 2)", "ENOPROTOOPT",
      layer="options"),
    A("IPsec within TCP", "a = socket.create_server(('127.0.0.1', 0)); b = socket.create_connection(a.getsockname()); "
      "out = tr(b.setsockopt, 6, 31, b'espintcp')", "ENOPROTOOPT", layer="options"),
    A("send a mapped file without a copy", "s = socket.socket(); out = tr(s.setsockopt, 1, 60, 1)", "ENOTSUP", control="ok", layer="options"),
    A("the kernel's TLS", "a = socket.create_server(('127.0.0.1', 0)); b = socket.create_connection(a.getsockname()); "
      "out = tr(b.setsockopt, 6, 31, b'tls')", "ENOPROTOOPT", layer="options"),
    A("a program on a socket", "p = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0)); s = socket.socket(); "
      "out = tr(s.setsockopt, 1, 26, struct.pack('HxxxxxxP', 1, ctypes.addressof(p)))", NO, root_control="ok", layer="options"),
    A("urgent bytes between Unix sockets", "a, b = socket.socketpair(); out = tr(a.send, b'x', socket.MSG_OOB)", "ENOTSUP", layer="urgent"),
    A("take urgent bytes", "a, b = socket.socketpair(); out = tr(b.recv, 1, socket.MSG_OOB | socket.MSG_DONTWAIT)", "ENOTSUP"),
    # Protocols that load a module each.
    A("MPTCP", "out = tr(socket.socket, socket.AF_INET, socket.SOCK_STREAM, 262)", "EPROTONOSUPPORT", layer="protocols"),
    A("SCTP", "out = tr(socket.socket, socket.AF_INET, socket.SOCK_STREAM, 132)", "EPROTONOSUPPORT"),
    A("SCTP by its type", "out = tr(socket.socket, socket.AF_INET6, socket.SOCK_SEQPACKET, 132)", "ESOCKTNOSUPPORT", layer="seccomp"),
    A("DCCP", "out = sc(41, 2, 6, 33)", "ESOCKTNOSUPPORT", layer="seccomp"),
    A("UDP-Lite", "out = tr(socket.socket, socket.AF_INET, socket.SOCK_DGRAM, 136)", "EPROTONOSUPPORT"),
    A("L2TP", "out = tr(socket.socket, socket.AF_INET, socket.SOCK_DGRAM, 115)", "EPROTONOSUPPORT"),
    A("ping", "out = tr(socket.socket, socket.AF_INET, socket.SOCK_DGRAM, 1)", "EPROTONOSUPPORT"),
    A("TCP with bits above 32", "out = sc(41, 2, 1, (1 << 32) | 262)", "EPROTONOSUPPORT"),
    A("a pair of TIPC sockets", "out = sc(53, 30, 1, 0, ctypes.create_string_buffer(8))", "EAFNOSUPPORT", layer="seccomp"),
    A("a pair of netlink sockets", "out = sc(53, 16, 3, 0, ctypes.create_string_buffer(8))", "EAFNOSUPPORT", layer="pairs"),
    A("a pair with bits above 32", "out = sc(53, (1 << 32) | 30, 1, 0, ctypes.create_string_buffer(8))", "EAFNOSUPPORT"),
    A("abstract socket of the host", "s = socket.socket(socket.AF_UNIX); out = tr(s.connect, '\\0%(abstract)s')",
      "ECONNREFUSED EPERM", control="ok"),
    A("unix socket of the host", "s = socket.socket(socket.AF_UNIX); out = tr(s.connect, %(unix_path)r)", GONE, control="ok"),
    A("abstract socket of another session", "s = socket.socket(socket.AF_UNIX); out = tr(s.connect, '\\0%(sibling_mark)s')",
      "ECONNREFUSED EPERM"),
    A("another session's loopback", "s = socket.socket(); s.settimeout(3); out = tr(s.connect, ('127.0.0.1', %(sibling_port)d))",
      "ECONNREFUSED"),
    A("loopback of its own works", "a = socket.create_server(('127.0.0.1', 0)); b = socket.create_connection(a.getsockname()); "
      "out = 'works'", "works"),
]

# With a filtered network: what is listed, by number, is %(listed_port)d on the host; by name, localhost:%(tcp_port)d and
# *.example.net:443.
PROXY_PRELUDE = r'''
def via(text):
    s = socket.create_connection(('127.0.0.1', 3128), 10)
    s.sendall(text if b' HTTP/' in text else b'CONNECT ' + text + b' HTTP/1.1\r\n\r\n')
    return s.recv(64).split()[1].decode()
def socks(rest):
    s = socket.create_connection(('127.0.0.1', 3128), 10)
    s.sendall(b'\x05\x01\x00')
    assert s.recv(2) == b'\x05\x00'
    s.sendall(b'\x05' + rest)
    return 'socks:%%d' %% s.recv(10)[1]
'''
PROXY = [
    A("what is listed is reached", "out = via(b'127.0.0.1:%(listed_port)d')", "200"),
    A("past the proxy", "s = socket.socket(); s.settimeout(3); out = tr(s.connect, ('192.0.2.1', 443))", "ENETUNREACH"),
    A("past the proxy to what is listed", "s = socket.socket(); s.settimeout(3); out = tr(s.connect, ('127.0.0.1', %(listed_port)d))",
      "ECONNREFUSED"),
    A("UDP past the proxy", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); out = tr(s.sendto, b'x', ('192.0.2.1', 53))",
      "ENETUNREACH"),
    A("names past the proxy", "out = tr(socket.getaddrinfo, 'a.example.net', 443)", "gaierror E-3 E-2 E-5"),
    A("metadata through the proxy", "out = via(b'169.254.169.254:80')", "403"),
    A("metadata as one number", "out = via(b'2852039166:80')", "403"),
    A("metadata in hexadecimal", "out = via(b'0xa9fea9fe:80')", "403"),
    A("metadata within IPv6", "out = via(b'[::ffff:169.254.169.254]:80')", "403"),
    A("metadata by a listed name's side", "out = via(b'GET http://169.254.169.254/ HTTP/1.1\\r\\nHost: a.example.net\\r\\n\\r\\n')", "403"),
    A("a listed name as user", "out = via(b'GET http://a.example.net:443@169.254.169.254/ HTTP/1.1\\r\\n\\r\\n')", "400"),
    A("a listed name of a private address", "out = via(b'localhost:%(tcp_port)d')", "403"),
    A("a listed host at another port", "out = via(b'127.0.0.1:%(tcp_port)d')", "403"),
    A("a name that ends alike", "out = via(b'evilexample.net:443')", "403"),
    A("the name above the listed ones", "out = via(b'example.net:443')", "403"),
    A("SOCKS to metadata", "out = socks(b'\\x01\\x00\\x01' + bytes([169, 254, 169, 254]) + b'\\x00\\x50')", "socks:2"),
    A("SOCKS to a name with a NUL", "out = socks(b'\\x01\\x00\\x03\\x0fa.example.net\\x00x\\x01\\xbb')", "socks:7"),
    # The suffix bypass of SOCKS5 proxies: what is checked is longer than what is resolved.
    A("SOCKS to a name cut by a NUL", "out = socks(b'\\x01\\x00\\x03\\x17127.0.0.1\\x00.example.net\\x00\\x01\\xbb')", "socks:7"),
    A("SOCKS to a listed suffix after a NUL", "out = socks(b'\\x01\\x00\\x03\\x16evil.test\\x00.example.net\\x01\\xbb')", "socks:7"),
    A("SOCKS to a name with a line's end", "out = socks(b'\\x01\\x00\\x03\\x0fa\\r\\n.example.net\\x01\\xbb')", "socks:7"),
    A("SOCKS to a name with a control byte", "out = socks(b'\\x01\\x00\\x03\\x0ea\\x7f.example.net\\x01\\xbb')", "socks:7"),
    A("a NUL in the host", "out = via(b'evil.test\\x00.example.net:443')", "400"),
    A("a line's end in the host", "out = via(b'evil.test\\n.example.net:443')", "400"),
    A("a NUL in the path", "out = via(b'GET http://a.example.net/\\x00x HTTP/1.1\\r\\n\\r\\n')", "400"),
    A("a second request in the path", "out = via(b'GET http://a.example.net/x\\nHost:evil HTTP/1.1\\r\\n\\r\\n')", "400"),
    A("Azure's services", "out = via(b'168.63.129.16:80')", "403"),
    A("metadata of IPv6", "out = via(b'[fd00:ec2::254]:80')", "403"),
    A("metadata of Alibaba", "out = via(b'100.100.100.200:80')", "403"),
    A("SOCKS that listens", "out = socks(b'\\x02\\x00\\x01' + bytes([127, 0, 0, 1]) + b'\\x00\\x50')", "socks:7"),
]

# These must work: a sandbox in which nothing works denies everything.
USEFUL = [
    ("write to the workspace", "write('f'); read('f')"),
    ("write to /tmp", "write('/tmp/f'); read('/tmp/f')"),
    ("start a program", "import subprocess; subprocess.run(['true'], check=True)"),
    ("threads", "import threading; t = threading.Thread(target=lambda: None); t.start(); t.join()"),
    ("multiprocessing", "import multiprocessing.shared_memory as m; s = m.SharedMemory(create=True, size=64); s.unlink()"),
    ("a terminal", "import pty; a, b = pty.openpty(); assert os.isatty(b)"),
    ("sqlite", "import sqlite3; sqlite3.connect('/tmp/d.sqlite').execute('create table t(x)')"),
    ("cpu count", "assert os.cpu_count() >= 1"),
    ("abort", "assert in_child(os.abort) == 'signal:6'"),
    ("its own memory map", "assert b'/' in open('/proc/self/maps', 'rb').read(4096)"),
    ("random", "assert os.urandom(8) != os.urandom(8)"),
]

# Where user namespaces are forbidden and the level `no-userns` will do: answers of this level that are denials. None: it does not
# claim to deny that (processes, interfaces and mounts of the host are seen), or the attempt is about namespaces.
LOWER = {
    "a protected name": None, "a hook": None, "a protected name by a rename": None, "a protected name by a link": None,
    "a protected name by a program": None,
    "read shadow": "EACCES", "read a file of the host": "EACCES", "cut a file of the host": "EACCES EPERM", "list the home folder": "EACCES", "read ssh configuration": "EACCES",
    "list the host's /tmp": "error:PermissionError", "symbolic link to the host": "EACCES", "climb out with ..": "EACCES",
    "devices of the host": "error:PermissionError", "sysfs": "EACCES", "sysctl": "EACCES", "cgroup files": "EACCES",
    "signal the zygote": "EPERM", "signal the host": "EPERM", "signal another session": "EPERM",
    "hard link to a file of the host": "EACCES EPERM EXDEV", "memory of the host": "EACCES", "memory of another session": "EACCES",
    "environment of another session": "EACCES", "groups of the host": None, "the host's name": None, "pidfd of the host": None, "raw socket": "EAFNOSUPPORT",
    "another session's System V memory": "EPERM", "another session's /tmp": "EACCES ENOENT",
    "another session's shared memory": "EACCES ENOENT", "abstract socket of the host": "error:OSError",
    "unix socket of the host": "error:OSError", "abstract socket of another session": "error:OSError",
    "the host's loopback": "error:OSError", "a public address": "error:OSError", "the metadata address": "error:OSError",
    "UDP to outside": "error:OSError", "another session's loopback": "error:OSError",
    "the root is read-only": None, "/usr is read-only": None, "processes of the host": None, "setuid program": None,
    "kallsyms": None, "interfaces of the host": None, "loopback of its own works": None, "bounding set": None,
    "what /proc tells of the machine": "error:PermissionError", "the kernel's command line": "EACCES", "locks of the whole machine": "EACCES",
    "pressure of the whole machine": "EACCES ENOENT", "the kernel's TLS": "error:OSError", "IPsec within TCP": "error:OSError",
    "send a mapped file without a copy": "error:OSError", "IPsec within UDP": "error:OSError",
    "a program on a socket": "error:OSError", "MPTCP": "EAFNOSUPPORT", "SCTP": "EAFNOSUPPORT", "SCTP by its type": "EAFNOSUPPORT",
    "DCCP": "EAFNOSUPPORT", "UDP-Lite": "EAFNOSUPPORT", "L2TP": "EAFNOSUPPORT", "ping": "EAFNOSUPPORT",
    "TCP with bits above 32": "EAFNOSUPPORT",
    "capabilities by exec": None, "TIOCSTI": None, "TIOCSTI with high bits": None,
}
LOWER_ONLY = [
    A("a setuid bit on a file of the host", "out = sc(452, -100, %(secret)r.encode(), 0o4755, 0)", NO),
    A("a setuid bit on a file of the host by chmod", "out = tr(os.chmod, %(secret)r, 0o4755)", NO),
    A("a lease on a file of the host", "import fcntl; out = in_child(lambda: tr(fcntl.fcntl, os.open('/usr/bin/env', 0), 1024, 0))", NO),
    A("kernel symbols", "out = tr(read, '/proc/kallsyms')", "EACCES"),
    A("memory of another process", "out = tr(read, '/proc/%(host_pid)d/environ')", "EACCES"),
    A("datagrams to a socket of the host", "out = tr(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)", NO, control="ok"),
    A("a POSIX message queue", "out = sc(240, b'wc', 0o102, 0o600, 0)", NO),
    A("privileges by exec", "import subprocess; out = subprocess.run(['/usr/bin/python3', '-c', 'import ctypes; "
      "print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))'], capture_output=True, text=True).stdout.strip()", "1", control="0"),
]

ALL = FILES + PROCESS + NETWORK
assert len(ALL) >= 80 and len({a.name for a in ALL}) == len(ALL)
