"""Attempts to get out of a sandbox, each with the answers that are denials.

An attempt is Python that runs in a cell and sets `out`: "ok:..." when it got what it wanted, else the name of the errno (or
another word). `denied` lists the answers that mean the sandbox said no; anything else, also a failure of another kind, is
a failure of the test. `control` is what the same code must answer in the `subprocess` executor as the same user, where it
is harmless: it shows that the attempt would work if it were not denied. "ok" stands for every "ok:...".

`%(name)s` in the code is filled with facts of the host that test_escape.py prepares.
"""

PRELUDE = r'''
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
    """The word fn() answers, from a forked child: for what would spoil this process."""
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
'''


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
    A("list the host's /tmp", "out = 'ok:seen' if %(secret_name)r in os.listdir('/tmp') else 'hidden'", "hidden", control="ok"),
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
    A("kallsyms", "out = 'ok' if tr(read, '/proc/kallsyms') != \"ok:b''\" else 'empty'", "empty", control="ok", layer="mask"),
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
    A("dumpable", "out = str(libc.prctl(3))", "0"),
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
    A("interfaces of the host", "out = ' '.join(l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l)", "lo"),
    A("raw socket", "out = tr(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)", NO, root_control="ok", layer="seccomp"),
    A("packet socket", "out = tr(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 3)", "EAFNOSUPPORT", root_control="ok",
      layer="seccomp"),
    A("netlink", "out = tr(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0)", "EAFNOSUPPORT", control="ok", layer="seccomp"),
    A("vsock", "out = tr(socket.socket, socket.AF_VSOCK, socket.SOCK_STREAM)", "EAFNOSUPPORT", layer="seccomp"),
    A("crypto sockets", "out = tr(socket.socket, socket.AF_ALG, socket.SOCK_SEQPACKET)", "EAFNOSUPPORT", layer="seccomp"),
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
    "capabilities by exec": None, "TIOCSTI": None, "TIOCSTI with high bits": None,
}
LOWER_ONLY = [
    A("kernel symbols", "out = tr(read, '/proc/kallsyms')", "EACCES"),
    A("memory of another process", "out = tr(read, '/proc/%(host_pid)d/environ')", "EACCES"),
    A("datagrams to a socket of the host", "out = tr(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)", NO, control="ok"),
    A("a POSIX message queue", "out = sc(240, b'wc', 0o102, 0o600, 0)", NO),
    A("privileges by exec", "import subprocess; out = subprocess.run(['/usr/bin/python3', '-c', 'import ctypes; "
      "print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))'], capture_output=True, text=True).stdout.strip()", "1", control="0"),
]

ALL = FILES + PROCESS + NETWORK
assert len(ALL) >= 80 and len({a.name for a in ALL}) == len(ALL)
