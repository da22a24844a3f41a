"""Nodes for test_kubernetes.py: a kubelet, a containerd and a kube-proxy each, in a network namespace of this machine, and the images that they run.

    this machine, 10.77.0.1 ── bridge ──┬── node-1, 10.77.0.11, pods 10.78.1.0/24
                                        └── node-2, 10.77.0.12, pods 10.78.2.0/24

There is no registry: the workcell image is made of debootstrap's Debian and this build, the pause image of a static program, and both are imported. Needs root.
"""
import hashlib
import json
import os
import shutil
import subprocess
import tarfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "workcell-tests")
PACKAGES = ("ca-certificates,python3,python3-venv,libuv1,libjansson4,libyaml-0-2,libsqlite3-0,libcurl4,libssl3,libseccomp2,libmicrohttpd12,"
            "libhiredis0.14,libzmq5,libedit2")
BRIDGE, HERE = "wk8s", "10.77.0.1"
IMAGE, PAUSE = "docker.io/library/workcell:test", "docker.io/library/pause:test"

CONTAINERD = """version = 2
root = "%(folder)s/root"
state = "%(folder)s/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "%(socket)s"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "%(pause)s"
disable_apparmor = true
# Without CAP_SYS_RESOURCE nobody may lower it, and runc fails.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "%(folder)s/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def run(*argv, **options):
    return subprocess.run([str(each) for each in argv], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options).stdout


# ---- images ----


def archive(target, name, tree, config):
    """An image with one layer, as `docker save` writes it."""
    folder = target + ".parts"
    os.makedirs(folder, exist_ok=True)
    layer = os.path.join(folder, "layer.tar")
    run("tar", "-C", tree, "--numeric-owner", "--exclude=./var/cache/apt", "--exclude=./var/lib/apt/lists", "--exclude=./proc/*", "--exclude=./sys/*",
        "--exclude=./usr/share/doc", "--exclude=./usr/share/man", "--exclude=./usr/share/locale", "-cf", layer, ".")
    with open(layer, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"architecture": "amd64", "os": "linux", "config": config, "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest]}}, file)
    with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as file:
        json.dump([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}], file)
    with tarfile.open(target, "w") as file:
        for each in ("manifest.json", "config.json", "layer.tar"):
            file.add(os.path.join(folder, each), each)
    shutil.rmtree(folder)
    return target


def make_images(folder):
    """The paths of two archives."""
    base = os.path.join(CACHE, "debian-base")
    if not os.path.exists(base):
        print("making the base of the image with debootstrap, once", flush=True)
        shutil.rmtree(base + ".new", ignore_errors=True)
        run("debootstrap", "--variant=minbase", "--include=" + PACKAGES, "bookworm", base + ".new")
        os.rename(base + ".new", base)
    tree = os.path.join(folder, "tree")
    run("cp", "-a", "--reflink=auto", base, tree)
    run("meson", "install", "-C", os.path.join(ROOT, "build"), "--no-rebuild", env={**os.environ, "DESTDIR": tree})
    for name, mode in (("app/tools", 0o755), ("home/workcell", 0o1777), ("run/workcell", 0o1777), ("workspace", 0o1777)):
        os.makedirs(os.path.join(tree, name), exist_ok=True)
        os.chmod(os.path.join(tree, name), mode)
    workcell = archive(os.path.join(folder, "workcell.tar"), IMAGE, tree, {
        "User": "10001:10001", "Entrypoint": ["workcell"], "Cmd": ["serve", "--help"], "WorkingDir": "/tmp",
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/home/workcell"]})
    shutil.rmtree(tree)
    tree = os.path.join(folder, "pause")
    os.makedirs(tree)
    run("gcc", "-static", "-Os", "-x", "c", "-o", os.path.join(tree, "pause"), "-", input=b"#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    return workcell, archive(os.path.join(folder, "pause.tar"), PAUSE, tree, {"User": "65535:65535", "Entrypoint": ["/pause"]})


# ---- the network ----


def spaces():
    """Network namespaces that containerd has made for pods, of this machine's other containerds too."""
    folder = "/run/netns"
    return {each for each in os.listdir(folder) if each.startswith("cni-")} if os.path.isdir(folder) else set()


BEFORE = spaces()


def make_network():
    remove_network()
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", HERE + "/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    with open("/proc/sys/net/ipv4/ip_forward", "w", encoding="ascii") as file:
        file.write("1")


def remove_network():
    for at in (1, 2):
        subprocess.run(["ip", "netns", "del", "wk8s-%d" % at], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["ip", "link", "del", "wk8s-%d" % at], stderr=subprocess.DEVNULL, check=False)
    subprocess.run(["ip", "link", "del", BRIDGE], stderr=subprocess.DEVNULL, check=False)
    for each in spaces() - BEFORE:  # of pods that were ended without their kubelet
        subprocess.run(["ip", "netns", "del", each], stderr=subprocess.DEVNULL, check=False)


class Node:
    """Node 1 or 2 of a control plane (test_kubernetes.Plane)."""

    def __init__(self, plane, at):
        self.plane, self.at, self.name = plane, at, "node-%d" % at
        self.folder = os.path.join(plane.folder, self.name)
        self.socket, self.processes = os.path.join(self.folder, "c.sock"), {}
        self.space, self.address, self.pods = "wk8s-%d" % at, "10.77.0.1%d" % at, "10.78.%d.0/24" % at

    def inside(self, *argv):
        # Not `ip netns exec`, which mounts another /sys, without cgroups.
        return ["nsenter", "--net=/run/netns/" + self.space, *argv]

    def make_network(self):
        run("ip", "netns", "add", self.space)
        run("ip", "link", "add", self.space, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        run("ip", "link", "set", self.space, "master", BRIDGE, "up")
        run("ip", "route", "replace", self.pods, "via", self.address)
        other = 3 - self.at
        for argv in (["addr", "add", self.address + "/24", "dev", "eth0"], ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"],
                     ["route", "add", "default", "via", HERE], ["route", "add", "10.78.%d.0/24" % other, "via", "10.77.0.1%d" % other]):
            run(*self.inside("ip", *argv))
        run(*self.inside("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"))

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def start(self, name, *argv):
        with open(os.path.join(self.folder, name + ".log"), "ab") as log:
            self.processes[name] = subprocess.Popen([str(each) for each in self.inside(*argv)], stdout=log, stderr=log, cwd=self.folder)

    def begin(self, images):
        self.make_network()
        self.write("cni/10-bridge.conflist", json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [
            {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True,
             "ipam": {"type": "host-local", "dataDir": os.path.join(self.folder, "ipam"), "ranges": [[{"subnet": self.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}))
        config = self.write("containerd.toml", CONTAINERD % {"folder": self.folder, "socket": self.socket, "pause": PAUSE})
        self.start("containerd", "containerd", "--config", config)
        self.plane.wait(lambda: subprocess.run(["ctr", "--address", self.socket, "version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                               check=False).returncode == 0, "containerd of " + self.name)
        for each in images:
            run("ctr", "--address", self.socket, "--namespace", "k8s.io", "images", "import", each)
        self.begin_kubelet()

    def begin_kubelet(self):
        programs = self.plane.programs
        config = self.write("kubelet.yaml", json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cgroupDriver": "cgroupfs", "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [], "failSwapOn": False, "containerRuntimeEndpoint": "unix://" + self.socket, "podLogsDir": os.path.join(self.folder, "logs"),
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"},
            "evictionHard": {"memory.available": "1Mi"}, "localStorageCapacityIsolation": False, "resolvConf": "", "nodeStatusUpdateFrequency": "4s",
            "volumePluginDir": os.path.join(self.folder, "plugins"), "registerWithTaints": [], "imageMinimumGCAge": "24h", "maxPods": 240,
            "imageGCHighThresholdPercent": 100, "syncFrequency": "10s"}))
        self.start("kubelet", os.path.join(programs, "kubelet"), "--config", config, "--kubeconfig", self.plane.outer_config, "--hostname-override", self.name,
                   "--root-dir", os.path.join(self.folder, "kubelet"), "--node-ip", self.address, "--cert-dir", os.path.join(self.folder, "pki"), "--v", "2")
        if "kube-proxy" not in self.processes:
            self.start("kube-proxy", os.path.join(programs, "kube-proxy"), "--kubeconfig", self.plane.outer_config, "--hostname-override", self.name,
                       "--proxy-mode", "iptables", "--cluster-cidr", "10.78.0.0/16", "--conntrack-max-per-core", "0")

    def kill(self, container):
        """SIGKILL to all of a container, of which the kubelet knows nothing before."""
        run("ctr", "--address", self.socket, "--namespace", "k8s.io", "tasks", "kill", "--all", "--signal", "SIGKILL", container)

    def die(self):
        """All of its processes at once."""
        for name in ("kubelet", "kube-proxy"):
            self.processes[name].kill()
            self.processes.pop(name).wait()
        ctr = ["ctr", "--address", self.socket, "--namespace", "k8s.io"]
        for task in run(*ctr, "tasks", "list", "-q").decode().split():
            subprocess.run([*ctr, "tasks", "kill", "--all", "--signal", "SIGKILL", task], capture_output=True, check=False)

    def cut(self, cut=True):
        run("ip", "link", "set", self.space, *(["nomaster", "down"] if cut else ["master", BRIDGE, "up"]))
        if not cut:
            run("ip", "route", "replace", self.pods, "via", self.address)

    def tail(self, name):
        with open(os.path.join(self.folder, name + ".log"), encoding="utf-8", errors="replace") as file:
            return file.read()[-3000:]

    def close(self):
        """Pods end before the containerd that would end them."""
        for name in ("kubelet", "kube-proxy"):
            if name in self.processes:
                self.processes[name].kill()
                self.processes.pop(name).wait()
        if "containerd" not in self.processes:
            return
        ctr = ["ctr", "--address", self.socket, "--namespace", "k8s.io"]
        for task in subprocess.run([*ctr, "tasks", "list", "-q"], capture_output=True, text=True, check=False).stdout.split():
            subprocess.run([*ctr, "tasks", "rm", "--force", task], capture_output=True, check=False)
        self.processes["containerd"].terminate()
        self.processes.pop("containerd").wait(60)
        for line in reversed(open("/proc/mounts", encoding="utf-8").read().splitlines()):
            if line.split()[1].startswith(self.folder + "/"):
                subprocess.run(["umount", "-l", line.split()[1]], stderr=subprocess.DEVNULL, check=False)
