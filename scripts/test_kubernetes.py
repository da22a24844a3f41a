#!/usr/bin/env python3
"""make test-kubernetes: packaging/kubernetes at a real control plane of Kubernetes, with two nodes.

Builds the programs from the Go module k8s.io/kubernetes once, into $XDG_CACHE_HOME/workcell-tests (or takes them from the folder $WORKCELL_KUBERNETES), starts
them with Debian's etcd, and installs the manifests in namespaces that enforce PodSecurity "restricted": first without nodes, where the controllers must make what the
manifests ask for and a pod that asks for more rights must be refused; then with two (kubernetes_nodes.py), where kubernetes_trials.py runs sessions. Needs root, a built
tree, redis-server, and from Debian etcd-server, containerd, runc, containernetworking-plugins, debootstrap and iptables. WORKCELL_TEST_SESSIONS: of the load, 60 by default.
"""
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import yaml

import kubernetes_nodes
import kubernetes_trials

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VERSION = "1.31.4"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kubectl", "kube-scheduler", "kubelet", "kube-proxy")
SECONDS = 180


def build():
    """The folder of the programs."""
    given = os.environ.get("WORKCELL_KUBERNETES")
    if given:
        return given
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "workcell-tests", "kubernetes-" + VERSION)
    if all(os.path.exists(os.path.join(cache, name)) for name in PROGRAMS):
        return cache
    print("building Kubernetes %s, once" % VERSION, flush=True)
    env = {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false", "CGO_ENABLED": "0"}
    with tempfile.TemporaryDirectory() as folder:
        answer = subprocess.run(["go", "mod", "download", "-json", "k8s.io/kubernetes@v" + VERSION], cwd=folder, env=env, capture_output=True, check=True)
        with open(json.loads(answer.stdout)["GoMod"], encoding="utf-8") as file:
            parts = sorted({line.split()[0] for line in file if line.split()[1:2] == ["v0.0.0"] and line.strip().startswith("k8s.io/")})
        lines = ["module workcell/kubernetes", "go 1.22.0", "require k8s.io/kubernetes v" + VERSION]
        lines += ["replace %s => %s v0.%s" % (part, part, VERSION[2:]) for part in parts]
        with open(os.path.join(folder, "go.mod"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        stamp = "-s -w -X k8s.io/component-base/version.gitVersion=v%s -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=31" % VERSION
        os.makedirs(cache, exist_ok=True)
        for name in PROGRAMS:
            target = os.path.join(cache, name)
            subprocess.run(["go", "build", "-o", target + ".new", "-ldflags", stamp, "k8s.io/kubernetes/cmd/" + name], cwd=folder, env=env, check=True)
            os.rename(target + ".new", target)
    return cache


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


class Plane:
    """etcd, API server and controllers, in a folder of their own."""

    def __init__(self, programs, folder):
        self.programs, self.folder, self.running = programs, folder, []
        self.port, self.token, self.config = free_port(), secrets.token_hex(16), None
        self.redis, self.redis_port = None, free_port()

    def begin(self):
        programs, folder = self.programs, self.folder
        store, peers = ("http://127.0.0.1:%d" % free_port() for _ in range(2))
        self.config = self.write("kubeconfig", json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "all", "contexts": [{"name": "all", "context": {"cluster": "all", "user": "all"}}],
            "clusters": [{"name": "all", "cluster": {"server": "https://127.0.0.1:%d" % self.port, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "all", "user": {"token": self.token}}]}))
        # As nodes and pods reach it.
        with open(self.config, encoding="utf-8") as file:
            self.outer_config = self.write("outer", file.read().replace("https://127.0.0.1:", "https://%s:" % kubernetes_nodes.HERE))
        key = os.path.join(folder, "accounts.key")
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        self.start(os.environ.get("WORKCELL_ETCD") or shutil.which("etcd") or "/usr/bin/etcd", "--data-dir", os.path.join(folder, "etcd"),
                   "--listen-client-urls", store, "--advertise-client-urls", store, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
                   "--initial-cluster", "default=" + peers, "--unsafe-no-fsync")
        self.start(os.path.join(programs, "kube-apiserver"), "--etcd-servers", store, "--secure-port", self.port, "--bind-address", "0.0.0.0",
                   "--advertise-address", kubernetes_nodes.HERE, "--cert-dir", os.path.join(folder, "certificates"), "--service-cluster-ip-range", "10.96.0.0/24",
                   "--service-account-issuer", "https://kubernetes.default", "--service-account-signing-key-file", key,
                   "--service-account-key-file", key, "--authorization-mode", "RBAC", "--allow-privileged=false",
                   "--token-auth-file", self.write("tokens.csv", '%s,all,all,"system:masters"\n' % self.token))
        self.wait(lambda: self.kubectl("get", "--raw", "/readyz", fails=True).returncode == 0, "the API server is ready")
        self.start(os.path.join(programs, "kube-controller-manager"), "--kubeconfig", self.config, "--service-account-private-key-file", key,
                   "--use-service-account-credentials=false", "--leader-elect=false", "--bind-address", "127.0.0.1", "--secure-port", free_port(),
                   "--cert-dir", os.path.join(folder, "controllers"), "--root-ca-file", os.path.join(folder, "certificates", "apiserver.crt"),
                   "--node-monitor-period", "2s", "--node-monitor-grace-period", "16s")
        self.start(os.path.join(programs, "kube-scheduler"), "--kubeconfig", self.config, "--leader-elect=false", "--bind-address", "127.0.0.1",
                   "--secure-port", free_port(), "--cert-dir", os.path.join(folder, "scheduler"))

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def start(self, *argv):
        with open(os.path.join(self.folder, os.path.basename(argv[0]) + ".log"), "wb") as log:
            self.running.append(subprocess.Popen([str(each) for each in argv], stdout=log, stderr=log, cwd=self.folder))

    def wait(self, condition, what):
        end = time.monotonic() + SECONDS
        while not condition():
            for each in self.running:
                assert each.poll() is None, "%s ended: see its log" % each.args[0]
            assert time.monotonic() < end, "not within %d s: %s" % (SECONDS, what() if callable(what) else what)
            time.sleep(0.2)

    def kubectl(self, *argv, given=None, fails=False):
        done = subprocess.run([os.path.join(self.programs, "kubectl"), "--kubeconfig", self.config, *argv], input=given, capture_output=True, text=True,
                              timeout=SECONDS, check=False)
        assert fails or done.returncode == 0, (argv, done.stderr)
        return done

    # ---- Redis of this machine, for pods ----

    def redis_url(self, prefix):
        return "redis://%s:%d?prefix=%s" % (kubernetes_nodes.HERE, self.redis_port, prefix)

    def start_redis(self):
        program = shutil.which("redis-server") or shutil.which("redis-check-rdb")  # one program that asks for its name
        with open(os.path.join(self.folder, "redis.log"), "ab") as log:
            self.redis = subprocess.Popen(["redis-server", "--bind", kubernetes_nodes.HERE, "--port", str(self.redis_port), "--protected-mode", "no", "--save", "",
                                           "--appendonly", "yes", "--appendfsync", "always"], executable=program, stdout=log, stderr=log, cwd=self.folder)

    def restart_redis(self):
        """As after a crash: it has what was answered."""
        self.redis.kill()
        self.redis.wait()
        time.sleep(5)  # for so long there is none
        self.start_redis()

    def tell_servers(self):
        """What the kubelets know of the servers, and the last words of those that died."""
        print(self.kubectl("get", "pods", "-A", "-o", "wide", fails=True).stdout, file=sys.stderr)
        found = json.loads(self.kubectl("get", "pods", "-A", "-l", "app.kubernetes.io/name=workcell", "-o", "json", fails=True).stdout or '{"items": []}')
        for each in found["items"]:
            meta, states = each["metadata"], each["status"].get("containerStatuses", ())
            if any(state["restartCount"] for state in states):
                print(meta["name"], [state.get("lastState") for state in states], file=sys.stderr)
                print(self.kubectl("-n", meta["namespace"], "logs", meta["name"], "--previous", "--tail=20", fails=True).stdout, file=sys.stderr)

    def get(self, space, kind, name):
        return json.loads(self.kubectl("-n", space, "get", kind, name, "-o", "json").stdout)

    def close(self):
        for each in reversed(self.running):
            each.terminate()
            each.wait(30)
        if self.redis:
            self.redis.kill()
            self.redis.wait()


def check(plane, name):
    space = name.split(".")[0]
    plane.kubectl("create", "namespace", space)
    plane.kubectl("label", "namespace", space, "pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted")
    with open(os.path.join(ROOT, "packaging", "kubernetes", name), encoding="utf-8") as file:
        objects = [each for each in yaml.safe_load_all(file) if each and not each["apiVersion"].startswith("monitoring.")]
    done = plane.kubectl("-n", space, "apply", "--validate=strict", "-f", "-", given=yaml.safe_dump_all(objects))
    assert "Warning" not in done.stderr, done.stderr
    stateful, = [each for each in objects if each["kind"] == "StatefulSet"]
    wanted = stateful["spec"].get("replicas", 1)

    def created():
        found = json.loads(plane.kubectl("-n", space, "get", "pods", "-o", "json").stdout)["items"]
        return len(found) == wanted

    plane.wait(created, "%d pods of %s" % (wanted, name))
    plane.wait(lambda: plane.get(space, "pdb", "workcell")["status"].get("expectedPods") == wanted, "the disruption budget counts them")
    assert plane.get(space, "service", "workcell-servers")["spec"]["clusterIP"] == "None"
    # A pod with more rights is refused here, so that the others were looked at.
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "more"}, "spec": json.loads(json.dumps(stateful["spec"]["template"]["spec"]))}
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    done = plane.kubectl("-n", space, "apply", "--dry-run=server", "-f", "-", given=json.dumps(pod), fails=True)
    assert done.returncode != 0 and "violates PodSecurity" in done.stderr, done.stderr
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = False
    plane.kubectl("-n", space, "apply", "--dry-run=server", "-f", "-", given=json.dumps(pod))
    # An update of the chart keeps what cannot be changed.
    stateful["spec"]["template"]["spec"]["containers"][0]["image"] = "workcell:next"
    plane.kubectl("-n", space, "apply", "-f", "-", given=yaml.safe_dump(stateful))
    print("%s: %d objects, %d pods" % (name, len(objects), wanted), flush=True)


def main():
    subprocess.run([os.path.join(ROOT, "scripts", "kubernetes.sh"), "--check"], check=True)
    programs = build()
    folder = tempfile.mkdtemp(prefix="workcell-kubernetes-")
    plane = Plane(programs, folder)
    nodes = [kubernetes_nodes.Node(plane, at) for at in (1, 2)]
    kubernetes_nodes.make_network()
    try:
        plane.begin()
        for name in ("workcell.yaml", "workcell-scaled.yaml"):
            check(plane, name)
            plane.kubectl("delete", "namespace", name.split(".")[0])
        images = kubernetes_nodes.make_images(folder)
        for node in nodes:
            os.makedirs(node.folder)
            node.begin(images)
        plane.wait(lambda: plane.kubectl("get", "nodes").stdout.count(" Ready") == len(nodes), "the nodes are ready")
        plane.start_redis()
        for trial in [getattr(kubernetes_trials, name) for name in sys.argv[1:]] or (
                kubernetes_trials.pods_of_their_own, kubernetes_trials.servers_of_redis, kubernetes_trials.servers):
            trial(plane, nodes)
    except BaseException:
        plane.tell_servers()
        print("the logs are in %s" % folder, file=sys.stderr)
        raise
    finally:
        for node in nodes:
            node.close()
        plane.close()
        kubernetes_nodes.remove_network()
    shutil.rmtree(folder)
    print("passed")


if __name__ == "__main__":
    main()
