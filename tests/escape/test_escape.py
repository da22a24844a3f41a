"""The escape suite: attempts.py, in sandboxes of an ordinary user, of root, in a user namespace, and with parts of the
system taken away."""
import ctypes
import json
import os
import platform
import pwd
import socket
import struct
import subprocess
import uuid

import pytest

import attempts
import shim
import support

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the attempts have numbers of x86_64's system calls")

NOBODY = 65534


class Host:
    """What there is to be reached: a file, sockets, a secret in the environment, another session."""

    def __init__(self, uid):
        self.folder = support.temporary_folder("workcell-escape-")
        self.workspace = os.path.join(self.folder, "work")
        os.mkdir(self.workspace)
        self.other = support.temporary_folder("workcell-other-")
        os.chmod(self.other, 0o755)
        hidden = support.temporary_folder("workcell-secret-")
        self.secret = os.path.join(hidden, "secret")
        with open(self.secret, "wb") as file:
            file.write(b"secret")
        os.chmod(hidden, 0o755)
        os.chmod(self.secret, 0o644)
        self.mark = "wc" + uuid.uuid4().hex[:12]
        self.tcp, self.listed = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind("\0host" + self.mark)
        self.abstract.listen()
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix_path = os.path.join(self.folder, "s")
        self.unix.bind(self.unix_path)
        self.unix.listen()
        os.chmod(self.unix_path, 0o777)
        os.chmod(self.folder, 0o755)
        self.facts = {
            "secret": self.secret, "secret_name": os.path.basename(hidden), "secret_parent": os.path.dirname(hidden),
            "home": pwd.getpwuid(uid).pw_dir if uid == os.getuid() else self.other,
            "host_pid": os.getpid(), "zygote_pid": os.getpid(), "tcp_port": self.tcp.getsockname()[1],
            "abstract": "host" + self.mark, "unix_path": self.unix_path, "env_secret": "env" + self.mark,
            "sibling_mark": "sib" + self.mark, "sibling_key": 0x57430000 + os.getpid() % 60000, "sibling_port": 1,
            "sibling_pid": os.getpid(), "listed_port": self.listed.getsockname()[1],
        }
        if uid != os.getuid():
            os.chown(self.workspace, uid, uid)

    def close(self):
        for each in (self.tcp, self.listed, self.abstract, self.unix):
            each.close()


def start(host, executor="sandbox", prefix=(), uid=None, preexec=None, flags=(), pool=0):
    env = dict(support.host_environment(), WORKCELL_ESCAPE=host.facts["env_secret"])

    def before():
        if uid is not None and uid != os.getuid():
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        if preexec:
            preexec()

    # The system's interpreter: everybody may read it.
    return support.Driver(*flags, python="/usr/bin/python3", executor=executor, cwd=host.workspace, env=env, preexec_fn=before,
                          prefix=prefix, pool=pool)


def prelude(driver):
    result = driver.run(attempts.PRELUDE.replace("%%", "%"))
    assert result.get("error") is None, result
    return result


def outcomes(driver, chosen, facts):
    """{name: outcome} of attempts, all in one cell."""
    cells = [(a.name, a.code % facts) for a in chosen]
    result = driver.run("""found = {}
for name, code in %r:
    space = dict(globals())
    try:
        exec(code, space)
        found[name] = space["out"]
    except Exception as e:
        found[name] = "error:%%s: %%s" %% (type(e).__name__, e)
found""" % (cells,))
    assert result["error"] is None, result["error"]
    return result["value"]


SIBLING = r'''
import ctypes, mmap, socket
secret_in_memory = [bytes(c ^ 1 for c in b"%(env_secret)s") for _ in range(1000)]
open('/tmp/%(sibling_mark)s', 'w').write('x')
open('/dev/shm/%(sibling_mark)s', 'w').write('x')
ctypes.CDLL(None).shmget(%(sibling_key)d, 4096, 0o1666)
a = socket.socket(socket.AF_UNIX); a.bind('\0%(sibling_mark)s'); a.listen()
t = socket.create_server(('127.0.0.1', 0))
t.getsockname()[1]
'''


def run_all(host, driver, only=None, of=attempts.ALL):
    """What was not denied, as lines."""
    prelude(driver)
    chosen = [a for a in of if only is None or only(a)]
    got = outcomes(driver, chosen, host.facts)
    return ["%s: %s, not %s" % (a.name, got[a.name], " or ".join(a.denied)) for a in chosen if got[a.name] not in a.denied]


def modes():
    made = [("user", dict(uid=NOBODY if os.getuid() == 0 else None))]
    if os.getuid() == 0:
        made.append(("root", {}))
    made.append(("nested", dict(uid=NOBODY if os.getuid() == 0 else None, prefix=("unshare", "-Ur"))))
    return made


@pytest.fixture(scope="module", params=modes(), ids=lambda mode: mode[0])
def mode(request):
    name, how = request.param
    host = Host(how.get("uid") if how.get("uid") is not None else os.getuid())
    try:
        with start(host, **how) as sibling:
            port = sibling.value(SIBLING % host.facts)
            host.facts["sibling_port"] = port
            host.facts["sibling_pid"] = sibling.kernel_pid()
            with start(host, **how) as driver:
                for each in (sibling, driver):
                    support.shared_drivers.append(each)
                    each.locate()
                host.facts["zygote_pid"] = driver.zygote
                yield name, host, how, driver
    finally:
        del support.shared_drivers[:]
        host.close()


def test_every_attempt_is_denied(mode):
    name, host, how, driver = mode
    escaped = run_all(host, driver)
    assert not escaped, "\n".join(escaped)


class InChild:
    """Runs cells in a child that the code of a driver's session has forked."""

    def __init__(self, driver):
        self.driver = driver
        result = driver.run("child = sessions.fork()")
        assert result["error"] is None, result

    def run(self, code):
        result = self.driver.run("import json\nr = child.run(%r)\njson.dumps([r.value, r.error])" % code)
        assert result["error"] is None, result
        value, error = json.loads(result["value"])
        return {"value": value, "error": error}


def test_every_attempt_is_denied_to_a_child(mode):
    """Forked in the middle of a cell. Its parent and its siblings are other sandboxes."""
    _, host, how, _ = mode
    with start(host, flags=("--allow-fork", "2"), **how) as driver:
        child = InChild(driver)
        escaped = run_all(host, child)
        assert not escaped, "\n".join(escaped)
        # A pid of the parent's namespace means nothing in the child's: it sees itself and the first process of its jail.
        seen = child.run("import os\n[int(each) for each in os.listdir('/proc') if each.isdigit()]")["value"]
        assert len(seen) <= 2, seen


def test_nothing_gets_past_the_proxy(mode):
    _, host, how, _ = mode
    policy = os.path.join(host.folder, "filtered.yaml")
    with open(policy, "w", encoding="utf-8") as file:
        file.write("network:\n  allow: ['127.0.0.1:%(listed_port)d', 'localhost:%(tcp_port)d', '*.example.net:443']\n" % host.facts)
    with start(host, flags=("--sandbox-policy", policy), **how) as driver:
        prelude(driver)
        assert driver.run(attempts.PROXY_PRELUDE.replace("%%", "%"))["error"] is None
        escaped = run_all(host, driver, of=attempts.PROXY)
    assert not escaped, "\n".join(escaped)


def test_killing_everything_ends_nobody_else(mode):
    """Every process that may be signalled: those of the other session, and the program itself, are of the same user."""
    _, host, how, other = mode
    mine = other.kernel_pid()
    with start(host, **how) as driver:
        # All but the kernel itself, who asks, and pid 1.
        assert driver.value("import os, subprocess\nchild = subprocess.Popen(['sleep', '1000'])\nos.kill(-1, 9)\nchild.wait()") == -9
    assert other.value("2 + 2") == 4 and other.kernel_pid() == mine


def filters(pid):
    try:
        with open("/proc/%d/status" % pid, encoding="ascii") as file:
            return int(dict(line.split(":\t", 1) for line in file.read().splitlines())["Seccomp_filters"])
    except (OSError, KeyError):
        return 0


def test_every_attempt_is_denied_to_a_kernel_confined_ahead(mode):
    """The same session again and again: the pool expects it, and its kernels have gone through all steps before."""
    name, host, how, usual = mode
    usual_filters = filters(usual.kernel_pid())
    with start(host, pool=3, **how) as driver:
        driver.run("1")
        driver.reset()
        kernel = driver.kernel_pid()
        spawner = support.processes()[kernel].ppid

        def ahead():
            return {p.pid for p in support.processes().values()
                    if p.ppid == spawner and p.pid != kernel and filters(p.pid) == usual_filters}

        support.wait_until(lambda: len(ahead()) >= 2, "kernels that are confined ahead", 30)
        known = ahead()
        driver.reset()
        escaped = run_all(host, driver)
        assert driver.kernel_pid() in known
    assert not escaped, "\n".join(escaped)


def test_every_attempt_is_denied_to_a_kernel_that_continues_from_an_image(mode):
    """Forks, points and states that are restored: the memory of one kernel in the sandbox of another."""
    name, host, how, usual = mode
    with start(host, flags=("--undo", "2"), **how) as driver:
        driver.run("x = 41")
        assert driver.run("import os; os._exit(1)")["state"] == "restored"
        assert driver.value("x + 1") == 42
        receipt = driver.run("1")["isolation"]
        assert receipt.pop("points")["count"] > 0 and receipt == usual.run("1")["isolation"]
        escaped = run_all(host, driver)
        assert driver.value("x") == 41
    assert not escaped, "\n".join(escaped)


def test_the_receipt_tells_the_truth(mode):
    receipt = mode[3].run("1")["isolation"]
    assert receipt["level"] == "full" and receipt["executor"] == "sandbox" and receipt["seccomp"] is True
    assert receipt["namespaces"] == ["user", "mount", "pid", "net", "ipc", "uts", "cgroup"]
    assert receipt["network"] == "none" and receipt["limits"]["memory_bytes"]["max"] > 0


@pytest.mark.parametrize("what,code", attempts.USEFUL, ids=lambda value: value.replace(" ", "-")[:30])
def test_what_must_work(mode, what, code):
    driver = mode[3]
    prelude(driver)
    result = driver.run(code)
    assert result["error"] is None, result["error"]


def slice_of(pid):
    """How long a thread runs before it is another's turn, in ns; 0 before Linux 6.12."""
    attributes = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(315, pid, attributes, 48, 0) == 0
    return struct.unpack("IIQiIQQQ", attributes.raw)[5]


def test_long_cells_let_others_go_first(mode):
    """Where there is no group for it: all of a sandbox whose cell runs long gets the longest slice, and keeps it for so long."""
    _, host, how, _ = mode
    with start(host, **how) as driver:
        kernel = driver.kernel_pid()
        usual = slice_of(kernel)
        with open("/proc/%d/cgroup" % kernel) as file:
            if usual == 0 or "/workcell-" in file.read():
                return  # a group does it, or the kernel is too old
        driver.start("import os\nif os.fork() == 0: os.fork()\nwhile True: pass")

        def all_of_it():
            return [p.pid for p in support.descendants(kernel)] + [kernel]

        support.wait_until(lambda: len(all_of_it()) == 3 and {slice_of(pid) for pid in all_of_it()} == {100000000},
                           "all of it yields", 30)
        driver.interrupt()
        assert driver.answer()["error"]["code"] == "interrupted"
        # Its next cell does not: unless the machine is so busy that it runs long too.
        support.wait_until(lambda: driver.value("1") == 1 and slice_of(kernel) == usual, "it counts as before")
        driver.reset()


def test_the_attempts_would_work_outside(mode):
    """The same code in `subprocess`: an attempt that fails there too proves nothing."""
    name, host, how, _ = mode
    if name == "nested":
        return  # the same processes, but what they may do is another question
    wanted = {a: a.root_control if name == "root" and a.root_control else a.control for a in attempts.ALL}
    with start(host, executor="subprocess", **how) as driver:
        prelude(driver)
        got = outcomes(driver, [a for a in attempts.ALL if wanted[a]], host.facts)
    useless = ["%s: %s" % (a.name, got[a.name]) for a in attempts.ALL if wanted[a] and not str(got[a.name]).startswith(wanted[a])]
    assert not useless, "\n".join(useless)


def test_memory_holds_nothing_of_another_session(mode):
    """The sibling holds a thousand copies of a text; here are at most the few that the search itself makes."""
    name, host, how, driver = mode
    prelude(driver)
    code = r'''
found, needle = 0, bytes(c ^ 1 for c in %r)
for line in list(open('/proc/self/maps')):
    span, perms = line.split()[:2]
    if perms[0] != 'r' or '[v' in line:
        continue
    a, b = (int(x, 16) for x in span.split('-'))
    for at in range(a, b, 1 << 20):
        found += ctypes.string_at(at, min(b - at, 1 << 20)).count(needle)
found
''' % host.facts["env_secret"].encode()
    assert driver.value(code) < 50


def test_siblings_draw_different_numbers(mode):
    name, host, how, driver = mode
    with start(host, **how) as other:
        code = "import os, random, uuid\n[random.random(), os.urandom(8).hex(), uuid.uuid4().hex]"
        first, second = driver.value(code), other.value(code)
        assert all(a != b for a, b in zip(first, second))


@pytest.mark.parametrize("frame", ["garbage", "giant", "wrong version", "forged result", "descriptors"])
def test_a_hostile_holder_of_the_socket(mode, frame):
    name, host, how, driver = mode
    code = r'''
import os, socket, struct
n = [int(n) for n in os.listdir('/proc/self/fd') if int(n) > 60 and os.readlink('/proc/self/fd/' + n).startswith('socket')][0]
s = socket.socket(fileno=os.dup(n))
bad = {"garbage": b'\xff' * 4096, "giant": struct.pack('<BBBBIIIQ', 0x57, 1, 66, 0, 1, 0xffffffff, 0xffffffff, 0),
       "wrong version": struct.pack('<BBBBIIIQ', 0x57, 9, 66, 0, 1, 0, 0, 0),
       "forged result": struct.pack('<BBBBIIIQ', 0x57, 1, 66, 0, 12345, 0, 0, 0)}.get(%r)
if bad:
    s.sendall(bad)
else:
    # Descriptors with a frame: the host must not even take them.
    for _ in range(50):
        try:
            socket.send_fds(s, [struct.pack('<BBBBIIIQ', 0x57, 1, 68, 0, 0, 0, 0, 0)], [1] * 100)
        except OSError as e:
            assert e.errno == 109  # the kernel's own bound on descriptors under way
import time; time.sleep(0.2 if not bad else 20)
''' % frame
    before = support.fd_count(driver.pid)
    result = driver.run(code)
    if frame == "descriptors":
        assert result["error"] is None, result
        support.wait_until(lambda: support.fd_count(driver.pid) <= before + 8, "the host has taken no descriptors", 10)
    else:
        assert result["error"]["code"] == "kernel_died", result
    assert driver.value("1 + 1") == 2


def test_nothing_is_left(mode):
    name, host, how, driver = mode
    with start(host, **how) as other:
        mark = "987%06d" % (os.getpid() % 1000000)
        other.run("import subprocess\nsubprocess.Popen(['setsid', 'sleep', %r])" % mark)
        support.wait_until(lambda: any(mark in p.cmdline for p in support.processes().values()), "it runs")
        other.reset()
        assert not any(mark in p.cmdline for p in support.processes().values() if p.state not in "ZX")


# ---- parts of the system taken away --------------------------------------------------------------------------


@pytest.mark.parametrize("call", sorted(shim.FACILITIES), ids=str)
@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
def test_without_one_facility(call, error):
    """Less is refused with a code, or the receipt says what is missing and every attempt is denied all the same."""
    host = Host(os.getuid())
    try:
        driver = start(host, preexec=lambda: shim.take_away(call, error))
        with driver:
            result = driver.run("1 + 1")
            if "error" in result and result.get("session_id") is None:
                assert result["error"]["code"] in ("sandbox_failed", "executor_unavailable"), result
                return
            assert result["value"] == 2, result
            assert result["isolation"]["level"] == "full", result
            assert call in shim.OPTIONAL, "%s is gone, and nobody noticed: %s" % (call, result["isolation"])
            if shim.OPTIONAL[call]:
                assert any(shim.OPTIONAL[call] in line for line in result["isolation"]["skipped"]), result["isolation"]
            escaped = run_all(host, driver, lambda attempt: attempt.layer != call)
            assert not escaped, "\n".join(escaped)
    except AssertionError as problem:
        # The program ended instead of opening a session: it says why.
        text = str(problem)
        assert "sandbox_failed" in text or "executor_unavailable" in text, text
    finally:
        host.close()


# ---- the level without user namespaces -----------------------------------------------------------------------


@pytest.fixture(scope="module", params=[name for name, _ in modes() if name != "nested"])
def lower(request):
    """A sandbox of the level no-userns, where the system allows no more; a sibling of the same kind."""
    how = dict(modes())[request.param]
    host = Host(how.get("uid") if how.get("uid") is not None else os.getuid())
    policy = os.path.join(host.folder, "p.yaml")
    with open(policy, "w", encoding="utf-8") as file:
        file.write("level: no-userns\nfilesystem: {unprotect: ['*']}\nlimits: {memory: 256M, files: 64, file_size: 1M, output: 1M, cpu_time: 20}\n")
    how = dict(how, preexec=lambda: shim.take_away("userns", "EPERM"), flags=("--sandbox-policy", policy))
    try:
        with start(host, **how) as driver:
            support.shared_drivers.append(driver)
            driver.locate()
            yield host, how, driver
    finally:
        del support.shared_drivers[:]
        host.close()


def test_lower_every_attempt_is_denied(lower):
    host, how, driver = lower
    driver.reset()
    prelude(driver)
    chosen = [a for a in attempts.ALL + attempts.LOWER_ONLY if attempts.LOWER.get(a.name, "") is not None]
    assert len(chosen) > 80
    got = outcomes(driver, chosen, host.facts)
    denied = {a.name: attempts.LOWER[a.name].split() if a.name in attempts.LOWER else a.denied for a in chosen}
    escaped = ["%s: %s" % (name, word) for name, word in got.items()
               if ":".join(str(word).split(":")[:2]) not in denied[name] and word not in denied[name]]
    assert not escaped, "\n".join(escaped)


def test_lower_receipt(lower):
    receipt = lower[2].run("1")["isolation"]
    assert receipt["level"] == "no-userns" and receipt["namespaces"] == [] and receipt["filesystem"] == "landlock"
    assert receipt["seccomp"] is True and receipt["landlock"] >= 1 and any("/tmp" in line for line in receipt["skipped"])


@pytest.mark.parametrize("name,code", [
    ("files", "kept = [open('/dev/null') for i in range(100)]"),
    ("file_size", "open('big', 'wb').write(b'x' * (2 << 20))"),
    ("output", "while True: print('y' * 1000)"),
    ("memory", "x = bytearray(900 << 20)\nx[::4096] = b'1' * len(x[::4096])"),
])
def test_lower_limits(lower, name, code):
    driver = lower[2]
    result = driver.run(code)
    support.forget(result)
    error = result["error"]
    assert error["code"] == "limit_exceeded" and error["limit"]["name"] == name and error["limit"]["used"] > 0, error
    assert driver.value("1 + 1") == 2


def test_lower_life(lower):
    """What cells, interrupts, timeouts, ends and children come to is the same at this level."""
    host, how, driver = lower
    driver.reset()
    assert driver.value("x = [1, 2]\nx + [3]") == [1, 2, 3] and driver.value("x") == [1, 2]
    result = driver.run("import sys\nprint('out'); print('err', file=sys.stderr); 1 / 0")
    assert (result["stdout"], result["stderr"], result["error"]["type"]) == ("out\n", "err\n", "ZeroDivisionError")
    assert driver.run("!echo from the shell")["stdout"] == "from the shell\n"
    assert driver.value("import subprocess\nsubprocess.run(['echo', 'x'], capture_output=True, text=True).stdout") == "x\n"
    assert driver.value("import threading\nt = threading.Thread(target=lambda: x.append(9)); t.start(); t.join(); x") == [1, 2, 9]
    assert driver.value("import asyncio\nawait asyncio.sleep(0, 5)") == 5
    assert driver.value("open('f', 'w').write('x'); open('f').read()") == "x"
    assert driver.value("import tempfile\nwith tempfile.TemporaryFile() as t: t.write(b'x'); n = t.tell()\nn") == 1
    assert driver.run("while True: pass", timeout=0.2)["error"]["code"] == "timeout" and driver.value("len(x)") == 3
    assert driver.run("import os; os._exit(3)")["error"]["code"] == "kernel_died" and driver.value("1 + 1") == 2
    mark = "986%06d" % (os.getpid() % 1000000)
    driver.run("import subprocess\nsubprocess.Popen(['setsid', 'sleep', %r])" % mark)
    support.wait_until(lambda: any(mark in p.cmdline for p in support.processes().values()), "it runs")
    driver.reset()
    assert not any(mark in p.cmdline for p in support.processes().values() if p.state not in "ZX")


def test_lower_is_never_taken_silently(lower):
    """Asked for more than there is: refused, with a reason and what to do. So is what this level cannot hold."""
    host, how, _ = lower
    for policy, words in [("untrusted", "full"), ("{level: no-userns, network: {allow: ['a.b:1']}}", "network"),
                          ("{level: no-userns, filesystem: {hide: [/etc/x]}}", "hide"),
                          ("{level: no-userns}", "protected names.*unprotect"), ("developer", "protected names.*unprotect")]:
        if policy.startswith("{"):
            path = os.path.join(host.folder, "q.yaml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(policy)
            policy = path
        with pytest.raises(AssertionError, match="(?s)executor_unavailable.*%s" % words):
            with start(host, **dict(how, flags=("--sandbox-policy", policy))) as driver:
                result = driver.run("1")
                raise AssertionError(str(result))
