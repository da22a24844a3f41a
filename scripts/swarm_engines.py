"""A Swarm of three Docker engines on this machine, for the tests of packaging/swarm: machines made of namespaces.

    with swarm_engines.swarm(source, images, say) as swarm: ...    source: the address of an engine that has the images

Each node has namespaces of its own for network, processes, mounts and its name, and a data root; its process 1 ends with the block, or with
Node.kill(), and everything on the node with it. The nodes' networks are joined by a bridge. The bridge is in a network namespace too, which the
calling thread enters for the block: what it starts there reaches the nodes, and neither the machine's own network nor its firewall is touched.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import docker_engine

NODES = 3
NETWORK = "10.213.0."
OURS = NETWORK + "254"
CLONE_NEWNET = 0x40000000
DATA = os.path.join(docker_engine.ROOT, "build", "swarm")
SECONDS = 90
# Process 1 of a node. Nothing that the engine keeps elsewhere is shared with this machine, and names of other machines are refused at once
# instead of being waited for.
NODE = """set -e
hostname "$1"
mount --make-rprivate /
mount -t tmpfs -o mode=755 workcell-swarm /run
printf 'nameserver 127.0.0.1\\noptions timeout:1 attempts:1\\n' >/run/resolv.conf
mount --bind /run/resolv.conf "$(readlink -f /etc/resolv.conf)"
ip link set lo up
echo ready
read -r go
exec dockerd --host "unix://$2/docker.sock" --data-root "$3" --exec-root "$2/exec" --pidfile "$2/pid" --cgroup-parent "$4" $5
"""


def ip(*argv):
    subprocess.run(["ip", *argv], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def own_network():
    """The calling thread is in a network namespace of its own for the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Of the thread: /proc/self would be the one that the process began with.
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(CLONE_NEWNET) < 0:
            raise OSError(ctypes.get_errno(), "a network namespace cannot be made")
        try:
            ip("link", "set", "lo", "up")
            ip("link", "add", "swarm", "type", "bridge")
            ip("addr", "add", OURS + "/24", "dev", "swarm")
            ip("link", "set", "swarm", "up")
            yield
        finally:
            if libc.setns(before, CLONE_NEWNET) < 0:
                raise OSError(ctypes.get_errno(), "the network namespace of before cannot be entered")
    finally:
        os.close(before)


class Node:
    """One machine with an engine."""

    def __init__(self, number, folder, driver):
        self.number, self.driver, self.name, self.address = number, driver, "node%d" % number, NETWORK + str(number)
        self.run = os.path.join(folder, str(number))
        self.data = os.path.join(DATA, str(number))
        self.log = os.path.join(DATA, self.name + ".log")
        self.group = "workcell-swarm-%d-%d" % (os.getpid(), number)
        self.host = "unix://%s/docker.sock" % self.run
        self.process = None
        # Images stay from run to run, the cluster does not.
        shutil.rmtree(os.path.join(self.data, "swarm"), ignore_errors=True)
        os.makedirs(self.data, exist_ok=True)

    def start(self):
        """Switches it on."""
        shutil.rmtree(self.run, ignore_errors=True)
        os.makedirs(self.run)
        more = "--storage-driver=" + self.driver if self.driver else ""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                ["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc", "sh", "-c", NODE, "node", self.name,
                 self.run, self.data, "/" + self.group, more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                env=dict(os.environ, TMPDIR=self.run))  # for the stacks of a containerd that answers late, see docker_engine.py
        assert self.process.stdout.readline() == b"ready\n", "node %d does not start, see %s" % (self.number, self.log)
        with open("/proc/%d/task/%d/children" % (self.process.pid, self.process.pid)) as file:
            self.leader = file.read().split()[0]
        port = "node%d" % self.number
        ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", self.leader)
        ip("link", "set", port, "master", "swarm", "up")
        enter = ["nsenter", "--target", self.leader, "--net", "ip"]
        for argv in (["addr", "add", self.address + "/24", "dev", "eth0"], ["link", "set", "eth0", "up"], ["route", "add", "default", "via", OURS]):
            subprocess.run([*enter, *argv], check=True)
        self.process.stdin.write(b"\n")
        self.process.stdin.close()

    def answers(self):
        assert self.process.poll() is None, "the engine of %s ended, see %s" % (self.name, self.log)
        return docker_engine.answers(self.host)

    def docker(self, *argv, **more):
        done = docker_engine.docker(self.host, *argv, **more)
        assert done.returncode == 0, "docker %s on %s ended with %d:\n%s" % (" ".join(argv), self.name, done.returncode, done.stdout.decode(errors="replace"))
        return done.stdout.decode()

    def kill(self):
        """The power is cut: nothing on it runs on, and nothing says goodbye."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self.leader), signal.SIGKILL)
            self.process.wait()
            self.process.stdout.close()
            self.process = None
            wait(lambda: not os.path.exists("/sys/class/net/node%d" % self.number) and not os.path.exists("/proc/%s" % self.leader), "the end of " + self.name)

    def cut(self):
        """Its cable is pulled."""
        ip("link", "set", "node%d" % self.number, "down")

    def heal(self):
        ip("link", "set", "node%d" % self.number, "up")

    def close(self):
        self.kill()
        for folder, _, _ in os.walk("/sys/fs/cgroup", topdown=False):
            if "/" + self.group in folder:
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(folder)


class Swarm:
    """The nodes; the first one is the manager."""

    def __init__(self, nodes):
        self.nodes, self.manager = nodes, nodes[0]

    def docker(self, *argv, **more):
        return self.manager.docker(*argv, **more)

    def rows(self, *argv):
        return [json.loads(line) for line in self.docker(*argv, "--format", "{{json .}}").splitlines()]

    def join(self):
        # A node counts as down after three heartbeats.
        self.docker("swarm", "init", "--advertise-addr", self.manager.address, "--dispatcher-heartbeat", "2s", "--task-history-limit", "2")
        token = self.docker("swarm", "join-token", "--quiet", "worker").strip()
        for node in self.nodes[1:]:
            node.docker("swarm", "join", "--token", token, self.manager.address + ":2377")

    def states(self):
        return {row["Hostname"]: row["Status"] for row in self.rows("node", "ls")}


def wait(condition, what, seconds=SECONDS):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not within %g s: %s" % (seconds, what)
        time.sleep(0.1)


def give_images(source, nodes, images):
    """Of the engine `source`, to each node that does not have them."""
    def ids(host):
        return [docker_engine.docker(host, "image", "inspect", "--format", "{{.Id}}", image).stdout for image in images]

    wanted = ids(source)
    missing = [node for node in nodes if ids(node.host) != wanted]
    if not missing:
        return
    save = subprocess.Popen([docker_engine.PROGRAM, "--host", source, "save", *images], stdout=subprocess.PIPE)
    loads = [subprocess.Popen([docker_engine.PROGRAM, "--host", node.host, "load", "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) for node in missing]
    while block := save.stdout.read(1 << 20):
        for load in loads:
            load.stdin.write(block)
    for load in loads:
        load.stdin.close()
    assert save.wait() == 0 and all(load.wait() == 0 for load in loads), "images were not loaded"
    assert all(ids(node.host) == wanted for node in missing), "images were not loaded"


@contextlib.contextmanager
def swarm(source, images, say):
    driver = docker_engine.docker(source, "info", "--format", "{{.Driver}}").stdout.decode().strip()
    folder = tempfile.mkdtemp(prefix="workcell-swarm-")  # a socket's path is short; the build folder's may not be
    os.makedirs(DATA, exist_ok=True)
    nodes = []
    try:
        with own_network():
            nodes = [Node(number, folder, driver) for number in range(1, NODES + 1)]
            try:
                say("three engines, joined by a bridge")
                for node in nodes:
                    node.start()
                for node in nodes:
                    wait(node.answers, "the engine of " + node.name)
                give_images(source, nodes, images)
                made = Swarm(nodes)
                made.join()
                wait(lambda: list(made.states().values()) == ["Ready"] * NODES, "the nodes to join")
                yield made
            finally:
                for node in nodes:
                    node.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
