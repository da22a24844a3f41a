"""Zygotes of sandboxed kernels, from the host's side: what a module that is preloaded there may do, as an ordinary user and as root.

A zygote runs no code of an agent's, but what the interpreter loads by itself: site, .pth files, preloads. Each attempt is made by such a
module while the zygote imports it; the kernel that is forked from it tells how it ended. The same in a zygote of executor `subprocess`,
which is not confined, shows that the attempts would work."""
import ctypes
import json
import os
import socket
import stat
import subprocess
import sys

import pytest

import support
from test_host_places import Place, USERS

LIBC = ctypes.CDLL(None)
PYTHON = "/usr/bin/python3"
VERSION = "python%d.%d" % sys.version_info[:2]

# name: code whose value is True when the attempt succeeded; facts are filled in.
ATTEMPTS = {
    "write to the home": "open(HOME + '/planted', 'w').write('x') > 0",
    "write to the host's /tmp": "open(TOP + '/planted', 'w').write('x') > 0",
    "write to the workspace": "open(WORK + '/planted', 'w').write('x') > 0",
    "write to its own venv": "open(VENV + '/planted', 'w').write('x') > 0",
    "take a file of its venv away": "os.unlink(VENV + '/bin/activate') is None",
    "change a mode": "os.chmod(VENV + '/pyvenv.cfg', 0o777) is None",
    "write next to its own code": "open(os.path.dirname(os.path.dirname(__file__)) + '/planted', 'w').write('x') > 0",
    "read a key in the home": "open(HOME + '/.ssh/id').read() == 'key'",
    "read a file of the workspace": "open(WORK + '/note').read() == 'note'",
    "list the home": "'.ssh' in os.listdir(HOME)",
    "connect to a port of the host": "socket.create_connection(('127.0.0.1', PORT), 5) is not None",
    "connect to an abstract socket": "connect('\\0' + ABSTRACT)",
    "connect to a socket in a folder": "connect(TOP + '/socket')",
    "signal a process of the user": "os.kill(VICTIM, 18) is None",
    "read another's environment": "len(open('/proc/%d/environ' % VICTIM).read()) > 0",
    "read another's command line": "len(open('/proc/%d/cmdline' % VICTIM).read()) > 0",
    "a segment of shared memory of the host's": "libc.shmget(KEY, 0, 0) >= 0",
    "a cgroup": "os.makedirs(CGROUPS + '/planted') is None",
}

# Where the host finds what these wrote; a zygote has a /tmp of its own.
PLANTED = {
    "write to the home": "home/planted", "write to the host's /tmp": "planted", "write to the workspace": "work/planted",
    "write to its own venv": "venv/planted", "write next to its own code": "venv/lib/%s/planted" % VERSION,
}

# Beyond what the rights of the user are: these fail in an unconfined zygote of an ordinary user too, so they are not compared.
MORE = {
    "a user namespace": "libc.unshare(0x10000000) == 0",
    "a mount": "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "trace its parent": "libc.ptrace(16, 1, None, None) == 0",
    "memory of pid 1": "open('/proc/1/mem', 'rb') is not None",
    "the environment of pid 1": "len(open('/proc/1/environ').read()) > 0",
    "end pid 1": "os.kill(1, 9) is None and False",
    "settings of the machine": "open('/proc/sys/kernel/hostname', 'w').write('x') > 0",
    "become root": "os.setuid(0) is None and os.getuid() == 0 and CALLER != 0",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) is not None",
    "io_uring": "libc.syscall(425, 1, ctypes.byref(ctypes.create_string_buffer(256))) >= 0",
    "bpf": "libc.syscall(321, 0, ctypes.byref(ctypes.create_string_buffer(128)), 128) >= 0",
    "a file of root's": "len(open('/etc/shadow').read()) > 0",
    "capabilities": "[l for l in open('/proc/self/status') if l.startswith(('CapEff', 'CapPrm')) and int(l.split()[1], 16)] != []",
    "new privileges": "'NoNewPrivs:\\t1' not in open('/proc/self/status').read()",
    "no filter": "'Seccomp:\\t2' not in open('/proc/self/status').read()",
}

MODULE = """
import ctypes, os, socket
globals().update(%(facts)r)
libc = ctypes.CDLL(None, use_errno=True)
def connect(name):
    s = socket.socket(socket.AF_UNIX)
    s.connect(name)
    return True
done = {}
for name, code in %(attempts)r.items():
    try:
        done[name] = bool(eval(code))
    except Exception as e:
        done[name] = False
uids = sorted(set(os.getresuid()))
"""


class Rig:
    """A venv with the module, and what it tries to reach."""

    def __init__(self, uid):
        self.place = place = Place(uid)
        place.write("home/.ssh/id", "key")
        place.write("work/note", "note")
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", place.at("venv")], check=True)
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.abstract, self.unix = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        name = "wc-zygote-%d-%d" % (os.getpid(), uid)
        self.abstract.bind("\0" + name)
        self.unix.bind(place.at("socket"))
        for each in (self.abstract, self.unix):
            each.listen()
        os.chmod(place.at("socket"), 0o777)
        self.victim = subprocess.Popen(["sleep", "1000"], preexec_fn=place.become)
        self.facts = {
            "HOME": place.at("home"), "TOP": place.top, "WORK": place.at("work"), "VENV": place.at("venv"), "ABSTRACT": name,
            "PORT": self.tcp.getsockname()[1], "VICTIM": self.victim.pid, "KEY": 0x57440000 + os.getpid() % 60000,
            "CALLER": uid, "CGROUPS": cgroup_of(uid),
        }
        self.segment = LIBC.shmget(self.facts["KEY"], 4096, 0o1666)
        assert self.segment >= 0
        place.own()

    def preload(self, executor, attempts=ATTEMPTS, flags=()):
        """(what succeeded, the uids that the zygote had, the receipt)"""
        module = "venv/lib/%s/site-packages/attack.py" % VERSION
        self.place.write(module, MODULE % {"facts": self.facts, "attempts": attempts})
        done = self.place.workcell("run", "--executor", executor, "--json", "--python", self.place.at("venv/bin/python"), "--preload", "attack",
                                   *flags, "-e", "import attack\n[attack.done, attack.uids]")
        assert done.returncode == 0, done
        result = json.loads(done.stdout.splitlines()[-1])
        assert len(result["value"][0]) == len(attempts), result
        worked = {name for name, worked in result["value"][0].items() if worked}
        worked -= {name for name, path in PLANTED.items() if not os.path.exists(self.place.at(path))}
        return worked, result["value"][1], result["isolation"]

    def close(self):
        LIBC.shmctl(self.segment, 0, None)
        self.victim.kill()
        self.victim.wait()
        for each in (self.tcp, self.abstract, self.unix):
            each.close()


def cgroup_of(uid):
    """A folder in which root could make a group; of others there may be none."""
    for path in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        if os.path.isdir(path) and uid == 0:
            return path
    return "/nonexistent"


@pytest.fixture(params=USERS, ids=lambda uid: "root" if uid == 0 else "user")
def rig(request):
    made = Rig(request.param)
    yield made
    made.close()


def test_what_is_preloaded_reaches_nothing_of_the_host(rig):
    worked, uids, receipt = rig.preload("sandbox", {**ATTEMPTS, **MORE})
    assert not worked, sorted(worked)
    assert receipt["zygote"] == "confined", receipt
    assert rig.victim.poll() is None
    if rig.place.uid == 0 and receipt["uid"] == "unmapped":
        assert [0x70000000 <= uid <= 0x7ffdffff for uid in uids] == [True], uids
    assert not [path for path in PLANTED.values() if os.path.exists(rig.place.at(path))]
    assert stat.S_IMODE(os.stat(rig.place.at("venv/pyvenv.cfg")).st_mode) != 0o777


def test_the_same_works_where_zygotes_are_not_confined(rig):
    """Else the attempts would prove nothing."""
    worked, uids, _ = rig.preload("subprocess")
    missing = {"a cgroup"} if rig.facts["CGROUPS"] == "/nonexistent" else set()
    if os.path.isdir(rig.facts["CGROUPS"] + "/planted"):
        os.rmdir(rig.facts["CGROUPS"] + "/planted")
    assert set(ATTEMPTS) - worked == missing, sorted(set(ATTEMPTS) - worked)
    assert uids == [rig.place.uid]


def test_a_venv_below_a_home_that_is_closed_to_others_works(rig):
    """Root's home is closed to the uid that is nobody's; nothing else of the home is shown."""
    os.chmod(rig.place.at("home"), 0o700)
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", rig.place.at("home/venv")], check=True)
    source = rig.place.at("home/project")
    rig.place.write("home/project/editable.py", "import os\nseen = [os.path.exists(p) for p in %r]\n" % [rig.place.at("home/.ssh"), source])
    rig.place.write("home/venv/lib/%s/site-packages/editable.pth" % VERSION, source + "\n")
    done = rig.place.workcell("run", "--executor", "sandbox", "--json", "--python", rig.place.at("home/venv/bin/python"), "--preload",
                              "editable", "-e", "import editable\neditable.seen")
    assert done.returncode == 0, done
    assert json.loads(done.stdout.splitlines()[-1])["value"] == [False, True]


def test_sessions_of_both_executors_have_zygotes_of_their_own(rig):
    """Code in one that is not confined must not be what sandboxes are forked from."""
    programs = []
    for executor in ("subprocess", "sandbox"):
        with support.Driver(python=PYTHON, executor=executor, cwd=rig.place.at("work"), env=rig.place.env, preexec_fn=rig.place.become) as driver:
            assert driver.value("1 + 1") == 2
            driver.locate()
            programs.append([os.readlink("/proc/%d/ns/%s" % (driver.zygote, kind)) for kind in ("user", "mnt", "net", "pid", "ipc", "uts")])
    here = [os.readlink("/proc/self/ns/" + kind) for kind in ("user", "mnt", "net", "pid", "ipc", "uts")]
    assert programs[0] == here and not set(programs[1]) & set(here), programs


def test_with_all_of_the_network_the_receipt_says_so(rig):
    """A kernel that has the host's network is forked from a zygote that has it."""
    policy = rig.place.write("settings/net.yaml", "network: full\n")
    worked, _, receipt = rig.preload("sandbox", {**ATTEMPTS, **MORE}, ("--sandbox-policy", policy))
    assert worked == {"connect to a port of the host", "connect to an abstract socket"}, sorted(worked)
    assert receipt["zygote"] == "confined" and [line for line in receipt["skipped"] if line.startswith("zygote: no network isolation")], receipt


def test_a_zone_that_is_killed_takes_its_zygotes_and_kernels(rig):
    """Its pid 1 is the parent of all of them; the next cell gets a new one."""
    with support.Driver(python=PYTHON, executor="sandbox", cwd=rig.place.at("work"), env=rig.place.env, preexec_fn=rig.place.become) as driver:
        assert driver.value("x = 1\nx") == 1
        pid = driver.locate()
        zone = support.processes()[pid].ppid
        os.kill(zone, 9)
        support.wait_until(lambda: pid not in support.processes(), "the kernel's end")
        driver.run("1 + 1")  # told of it, or on a new kernel already
        assert driver.value("'x' in globals()") is False
        now = support.processes()
        assert pid not in now and now[driver.locate()].ppid != zone
