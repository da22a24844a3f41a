"""The deb's units under a real systemd: process 1 of a Debian 12 that systemd-nspawn boots, with a network of its own.

What this does not see: limits by cgroups below the unit's (Delegate=), on a machine whose controllers are those of cgroup v1;
scripts/vm_test.sh tests them with cgroup v2.
"""
import glob
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

import clean
import support

DIST = os.path.join(support.ROOT, "dist")
SECONDS = 60
TOKEN = "0123456789abcdef" * 2
SETTINGS = "storage: /var/lib/workcell/storage\nauth-token-file: /etc/workcell/token\nexecutor: sandbox\n"
pytestmark = pytest.mark.skipif(not shutil.which("systemd-nspawn") or os.geteuid() != 0, reason="needs systemd-container, and root")
BOOT = """set -e
mount --make-rprivate /
mount -t overlay -o lowerdir="$2",upperdir="$3",workdir="$4" overlay "$1"
exec systemd-nspawn --quiet --register=no --keep-unit --private-network --machine=workcell-test --bind-ro="$5":/dist --directory="$1" --boot
"""
ASK = """
import json, sys, urllib.error, urllib.request
path, data, token = sys.argv[1:]
request = urllib.request.Request("http://127.0.0.1:8080" + path, data.encode() or None, {"Authorization": "Bearer " + token, "Content-Type": "application/json"})
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(answer.read().decode())
except urllib.error.HTTPError as error:
    print(json.dumps({"status": error.code}))
"""


class Booted:
    """A machine that runs."""

    def __init__(self, machine):
        folder = machine.folder
        self.log = folder + "/console.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(["unshare", "--mount", "sh", "-c", BOOT, "boot", folder + "/root", clean.ROOT, folder + "/upper",
                                             folder + "/work", machine.dist], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.leader = None
        try:
            self.wait(self.find_leader, "process 1")
            # "degraded" where this machine lacks something that a unit of Debian's wants.
            self.wait(lambda: self.run("systemctl is-system-running", status=None) in ("running\n", "degraded\n"), "the end of the start")
        except BaseException:
            self.close()
            raise

    def find_leader(self):
        assert self.process.poll() is None, open(self.log).read()
        with open("/proc/%d/task/%d/children" % (self.process.pid, self.process.pid)) as file:
            for pid in file.read().split():
                # nspawn starts a helper first; process 1 of the new namespace is its child.
                with open("/proc/%s/status" % pid) as status:
                    ids = [line for line in status if line.startswith("NSpid:")][0].split()[1:]
                if ids[-1] == "1" and os.path.exists("/proc/%s/root/run/systemd/private" % pid):
                    self.leader = pid
        return self.leader

    def wait(self, condition, what):
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end, "waited in vain for %s\n%s" % (what, self.run("journalctl --no-pager -n 60", status=None) if self.leader else "")
            time.sleep(0.1)

    def run(self, command, status=0, text=""):
        """Of a command that is passed as its words or as a line of sh: what it printed."""
        argv = ["sh", "-c", command] if isinstance(command, str) else command
        done = subprocess.run(["nsenter", "--target", self.leader, "--all", "--wdns=/", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", *argv],
                              cwd="/", input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=2 * SECONDS)
        found = done.stdout.decode(errors="replace")
        assert status is None or done.returncode == status, "%s\nended with %d:\n%s" % (command, done.returncode, found)
        return found

    def ask(self, path, data=None, token=TOKEN):
        return json.loads(self.run(["python3", "-c", ASK, path, json.dumps(data) if data is not None else "", token]))

    def show(self, name, unit="workcell.service"):
        return self.run("systemctl show --property=%s --value %s" % (name, unit)).strip()

    def processes(self):
        return self.run("cat /sys/fs/cgroup/systemd/system.slice/workcell.service/cgroup.procs /sys/fs/cgroup/system.slice/workcell.service/cgroup.procs 2>/dev/null",
                        status=None).split()

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def installed():
    """A folder with a machine on which the deb is installed, as it is on a machine with systemd."""
    os.makedirs(clean.FOLDER, exist_ok=True)
    folder = os.path.join(clean.FOLDER, "service-%d" % os.getpid())
    os.mkdir(folder)
    dist = folder + "/dist"
    os.mkdir(dist)
    found, = glob.glob(os.path.join(DIST, "workcell_*.deb"))
    shutil.copy(found, dist + "/workcell.deb")
    try:
        machine = clean.Machine(folder, dist)
        machine.run("apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends systemd systemd-sysv dbus /dist/workcell.deb")
        yield machine
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def booted(installed):
    made = Booted(installed)
    try:
        yield made
    finally:
        made.close()


def configure(booted, settings=SETTINGS):
    booted.run("cat >/etc/workcell/serve.yaml", text=settings)
    booted.run("umask 027; cat >/etc/workcell/token; chgrp workcell /etc/workcell/token", text=TOKEN + "\n")


def test_the_service(booted):
    # Installed: nothing is enabled, the user is there, its settings are not readable by others.
    assert booted.run("systemctl is-enabled workcell.socket workcell.service", status=None).split() == ["disabled", "disabled"]
    assert booted.run("stat -c '%U %G %a' /etc/workcell") == "root workcell 750\n"
    booted.run("systemctl start workcell.service", status=1)
    assert booted.show("AssertResult") == "no" and booted.show("ActiveState") == "inactive"

    # The socket's first connection starts it, and it is active when it has said so.
    configure(booted)
    booted.run("systemctl enable --now workcell.socket")
    assert booted.show("ActiveState") == "inactive"
    assert booted.ask("/ready")["status"] == "ready"
    assert booted.show("ActiveState") == "active" and booted.show("StatusText") == "serving"
    assert booted.ask("/execute", {"code": "import os; [6 * 7, os.path.exists('/etc/workcell')]"})["value"] == [42, False]
    assert booted.show("Delegate") == "yes"
    # A setting that systemd keeps by seccomp would imply it, and newuidmap could not be used.
    assert booted.run("grep NoNewPrivs /proc/%s/status" % booted.show("MainPID")).split() == ["NoNewPrivs:", "0"]
    assert " level full" in booted.run("journalctl --no-pager --unit workcell.service --grep executor"), "all of the sandbox"

    # Killed: it is started again, who connects meanwhile is served, and nothing of the old one is left.
    first = booted.show("MainPID")
    before = set(booted.processes())
    booted.run("kill -KILL " + first)
    assert booted.ask("/execute", {"code": "1 + 1"})["value"] == 2
    assert booted.show("NRestarts") == "1" and booted.show("MainPID") != first
    assert not before & set(booted.processes())

    # Reloaded: another token.
    assert booted.ask("/v1/sessions", token="other" * 8) == {"status": 401}
    booted.run("cat >/etc/workcell/token", text="other" * 8 + "\n")
    pid = booted.show("MainPID")
    booted.run("systemctl reload workcell.service")
    booted.wait(lambda: "status" not in booted.ask("/v1/sessions", token="other" * 8), "the new token")
    assert booted.show("MainPID") == pid and booted.ask("/v1/sessions") == {"status": 401}
    booted.run("cat >/etc/workcell/token", text=TOKEN + "\n")

    # An upgrade restarts it.
    booted.run("dpkg --install /dist/workcell.deb")
    assert booted.show("ActiveState") == "active" and booted.show("MainPID") != pid
    assert booted.ask("/execute", {"code": "3"})["value"] == 3

    # Stopped: soon, without a complaint, and nothing stays.
    begin = time.monotonic()
    booted.run("systemctl stop workcell.socket workcell.service")
    assert time.monotonic() - begin < 20 and booted.show("Result") == "success" and booted.processes() == []

    # Wrong settings are not tried again and again.
    configure(booted, SETTINGS + "listen: 127.0.0.1:8080\nexecutr: sandbox\n")
    booted.run("systemctl start workcell.service", status=1)
    assert booted.show("ActiveState") == "failed" and booted.show("ExecMainStatus") == "2" and booted.show("NRestarts") == "0"
    assert "executr" in booted.run("journalctl --no-pager --unit workcell.service -n 20")
    # Without the socket, and with `listen:`.
    configure(booted, SETTINGS + "listen: 127.0.0.1:8080\n")
    booted.run("systemctl start workcell.service")
    assert booted.ask("/execute", {"code": "4"})["value"] == 4

    # Removed: stopped; what an administrator wrote is theirs.
    booted.run("DEBIAN_FRONTEND=noninteractive dpkg --purge workcell")
    assert booted.processes() == [] and booted.run("ls /etc/workcell") == "serve.yaml\ntoken\n"
    assert booted.run("systemctl list-unit-files --no-legend 'workcell*'", status=None) == ""


SAVED = SETTINGS + "saved: /var/lib/workcell/saved\ncwd: /var/lib/workcell/work\ndurable: results\n"


def test_sessions_outlive_a_restart(booted):
    """A running cell may finish while the service stops, and its session is there afterwards; also when the server was killed."""
    booted.run("dpkg --install /dist/workcell.deb")  # the test before may have removed it
    configure(booted, SAVED)
    booted.run("install -d -o workcell -g workcell -m 700 /var/lib/workcell /var/lib/workcell/work && systemctl enable --now workcell.socket")
    session = booted.ask("/v1/sessions", {})["session_id"]
    path = "/v1/sessions/%s/runs" % session

    def run(code):
        run_path = "%s/%s" % (path, booted.ask(path, {"code": code})["run_id"])
        booted.wait(lambda: booted.ask(run_path)["state"] not in ("waiting", "running"), "the end of a cell")
        return booted.ask(run_path)["result"]["value"]

    assert run("x = 40; x") == 40
    started = booted.ask(path, {"code": "import time; time.sleep(2); x += 2; open('done', 'w').close()"})
    assert "run_id" in started, started
    booted.run("systemctl restart workcell.service")
    assert booted.show("Result") == "success" and booted.run("ls /var/lib/workcell/work/done")
    assert run("x") == 42
    first = booted.show("MainPID")
    booted.run("kill -KILL " + first)
    assert run("x + 1") == 43 and booted.show("MainPID") != first


def test_what_the_server_may(booted):
    """The unit's own confinement: neither the machine's files nor its devices can be written to, and no capability but those of newuidmap can be had."""
    booted.run("dpkg --install /dist/workcell.deb")
    configure(booted)
    booted.run("systemctl start workcell.socket")
    assert booted.ask("/execute", {"code": "1"})["value"] == 1
    enter = "nsenter --target %s --mount --cgroup setpriv --reuid workcell --regid workcell --clear-groups sh -c " % booted.show("MainPID")
    for path in ("/etc/workcell/planted", "/usr/local/planted", "/srv/planted", "/opt/planted", "/var/lib/planted"):
        booted.run("chmod 1777 %s" % path.rpartition("/")[0])
        assert "Read-only file system" in booted.run(enter + "'touch %s'" % path, status=None), path
    for path in ("/var/lib/workcell/made", "/var/cache/workcell/made", "/var/log/workcell/made", "/tmp/made"):
        booted.run(enter + "'touch %s'" % path)
    assert booted.run("ls /tmp/made", status=None).startswith("ls: cannot access"), "its /tmp is its own"
    bounds = booted.run("grep -E 'CapBnd|CapEff|CapPrm' /proc/%s/status" % booted.show("MainPID")).split()
    assert dict(zip(bounds[::2], bounds[1::2])) == {"CapPrm:": "0" * 16, "CapEff:": "0" * 16, "CapBnd:": "00000000000000c0"}
