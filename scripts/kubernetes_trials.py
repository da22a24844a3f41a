"""What test_kubernetes.py tries on nodes: the manifests of packaging/kubernetes as they are, except for image, volume and the size of the pods."""
import base64
import http.client
import json
import os
import random
import secrets
import threading
import time
import urllib.error
import urllib.request

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS = "tokens:\n  - {name: all, token: t0ken, scopes: [run, read, admin]}\n"
SESSIONS = 60
MINE = "app.kubernetes.io/name=workcell"


def load(name, space, change=lambda each: None):
    """The objects of a manifest, for this cluster."""
    with open(os.path.join(ROOT, "packaging", "kubernetes", name), encoding="utf-8") as file:
        found = [each for each in yaml.safe_load_all(file) if each and not each["apiVersion"].startswith("monitoring.")]
    found = json.loads(json.dumps(found))  # without YAML's anchors
    for each in found:
        each["metadata"].pop("namespace", None)
        for subject in each.get("subjects", ()):
            subject["namespace"] = space
        pod = each.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", []) + pod.get("initContainers", []):
            container["image"], container["resources"] = "workcell:test", {"requests": {"cpu": "5m", "memory": "32Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
        change(each)
    return found


def secret(name, **values):
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {key.replace("_", "."): base64.b64encode(value.encode()).decode()
                                                                                      for key, value in values.items()}}


def make_space(plane, space):
    plane.kubectl("create", "namespace", space)
    plane.kubectl("label", "namespace", space, "pod-security.kubernetes.io/enforce=restricted")


def apply(plane, space, objects):
    plane.kubectl("-n", space, "apply", "-f", "-", given=yaml.safe_dump_all(objects))


def ready_pods(plane, space, selector):
    """Name -> address of those that get requests."""
    found = json.loads(plane.kubectl("-n", space, "get", "pods", "-l", selector, "-o", "json").stdout)["items"]
    return {each["metadata"]["name"]: each["status"]["podIP"] for each in found if "deletionTimestamp" not in each["metadata"] and any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in each["status"].get("conditions", ()))}


def ask(address, method, path, body=None, timeout=60):
    request = urllib.request.Request("http://%s:8080%s" % (address, path), method=method, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Authorization": "Bearer t0ken", "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def cell(address, session, code):
    """The result of a cell, from the events of its run."""
    request = urllib.request.Request("http://%s:8080/v1/sessions/%s/runs" % (address, session), method="POST", data=json.dumps({"code": code}).encode(),
                                     headers={"Authorization": "Bearer t0ken", "Content-Type": "application/json", "Accept": "text/event-stream"})
    with urllib.request.urlopen(request, timeout=30) as answer:  # a node that is cut off answers nothing, and what became of the cell is unknown then
        try:
            text = answer.read()
        except http.client.IncompleteRead as error:  # read line by line, a connection that broke looks like the end of the stream
            raise ConnectionError("the connection broke: %r" % error.partial[-200:]) from error
    for event in reversed(text.split(b"\n\n")):
        if event.startswith((b"event: result\n", b"id: ")) and b"event: result\n" in event:
            return json.loads(event.partition(b"data: ")[2])
    raise ConnectionError("the stream ended without a result: %r" % text[-200:])


def kill(plane, nodes, space, name):
    """kill -9 of a server; the kubelet starts another in the same pod."""
    pod = plane.get(space, "pod", name)
    node, = [each for each in nodes if each.name == pod["spec"]["nodeName"]]
    state = pod["status"]["containerStatuses"][0]
    node.kill(state["containerID"].removeprefix("containerd://"))
    plane.wait(lambda: plane.get(space, "pod", name)["status"]["containerStatuses"][0]["restartCount"] > state["restartCount"], "the kubelet starts the server again")


# ---- the executor kubernetes ----


def pods_of_their_own(plane, nodes):
    space, servers, idle = "own", "app.kubernetes.io/name=workcell", "workcell.state=idle"

    def change(each):
        if each["kind"] == "StatefulSet":
            each["spec"]["replicas"] = 2

    make_space(plane, space)
    apply(plane, space, [secret("workcell-tokens", tokens_yaml=TOKENS), secret("workcell-pool-key", key=secrets.token_hex(32)),
                         *load("workcell-pods.yaml", space, change)])
    plane.wait(lambda: len(ready_pods(plane, space, servers)) == 2 and len(ready_pods(plane, space, idle)) == 2, "servers and idle pods are ready")
    one, two = sorted(ready_pods(plane, space, servers).items())
    sessions = {}
    for at in range(6):  # more than there are idle pods
        address = (one, two)[at % 2][1]
        sessions[at] = address, ask(address, "POST", "/v1/sessions", {}, timeout=90)["session_id"]
        result = cell(*sessions[at], "import os\nx = %d\nos.environ.get('KUBERNETES_SERVICE_HOST'), os.path.exists('/var/run/secrets'), os.path.exists('/etc/workcell')" % at)
        assert result["error"] is None and result["repr"] == "(None, False, False)", result
        assert result["isolation"]["executor"] == "kubernetes" and result["isolation"]["seccomp_profile"] == "RuntimeDefault", result["isolation"]
    claimed = lambda: json.loads(plane.kubectl("-n", space, "get", "pods", "-l", "workcell.state=claimed", "-o", "json").stdout)["items"]
    assert len(claimed()) == 6 and len({each["metadata"]["labels"]["workcell.owner"] for each in claimed()}) == 2
    assert all(cell(*sessions[at], "x")["value"] == at for at in sessions)
    print("own pods: 6 sessions of 2 servers have 6 pods", flush=True)
    # A pod that dies.
    victim = json.loads(json.dumps(cell(*sessions[0], "1")["isolation"]["pod"]))
    plane.kubectl("-n", space, "delete", "pod", victim, "--grace-period=0", "--force")
    plane.wait(lambda: cell(*sessions[0], "'x' in globals()")["error"] is None, "the session has another pod")
    assert cell(*sessions[0], "'x' in globals()")["value"] is False
    # A session's end is its pod's.
    ask(sessions[2][0], "DELETE", "/v1/sessions/" + sessions[2][1])
    plane.wait(lambda: len(claimed()) == 5, "the pod of a session that has ended is deleted")
    # A server is killed: the lease that it does not renew is found, and its pods go.
    owners = {each["metadata"]["labels"]["workcell.owner"]: each["metadata"]["name"] for each in claimed()}
    alive = next(each["metadata"]["labels"]["workcell.owner"] for each in claimed() if each["metadata"]["name"] == cell(*sessions[4], "1")["isolation"]["pod"])
    kill(plane, nodes, space, two[0])
    plane.wait(lambda: {each["metadata"]["labels"]["workcell.owner"] for each in claimed()} == {alive}, "the pods of the killed server are gone")
    assert len(owners) == 2 and cell(*sessions[4], "x")["value"] == 4
    plane.wait(lambda: len(ready_pods(plane, space, idle)) == 2, "the pool is full again")
    plane.kubectl("delete", "namespace", space, "--wait=false")
    print("own pods: a dead pod is replaced, the pods of a killed server go", flush=True)


# ---- servers with saved sessions ----


class Load:
    """Clients that count in sessions, each cell at any server that is ready, again after a failure. What was acknowledged must be there at the end."""

    def __init__(self, plane, space, sessions):
        self.plane, self.space, self.stopping = plane, space, False
        self.addresses, self.failures, self.longest = list(ready_pods(plane, space, "app.kubernetes.io/name=workcell").values()), [], 0
        self.counts, self.tried, self.values, self.problems = {}, {}, {}, []
        for _ in range(sessions):
            made = self.again(lambda address: ask(address, "POST", "/v1/sessions", {}))["session_id"]
            self.again(lambda address, made=made: cell(address, made, "n = 0"))
            self.counts[made], self.tried[made] = 0, 0
        self.threads = [threading.Thread(target=self.count, args=(part,), daemon=True) for part in (list(self.counts)[at::8] for at in range(8))]
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        for each in (*self.threads, self.watcher):
            each.start()

    def watch(self):
        """As a Service knows them: the pods that are ready."""
        while not self.stopping:
            found = list(ready_pods(self.plane, self.space, "app.kubernetes.io/name=workcell").values())
            self.addresses = found or self.addresses
            time.sleep(0.5)

    def again(self, step):
        began, tries = time.monotonic(), 0
        while True:
            try:
                return step(random.choice(self.addresses))
            except (OSError, ConnectionError, urllib.error.URLError) as error:
                tries += 1
                text = error.read()[:200] if isinstance(error, urllib.error.HTTPError) else repr(error)
                self.failures.append((tries, str(text)))
                assert time.monotonic() - began < 120, self.failures[-5:]
                time.sleep(0.2)
            finally:
                self.longest = max(self.longest, time.monotonic() - began)

    def count(self, sessions):
        while not self.stopping:
            for each in sessions:
                self.tried[each] += 1
                result = self.again(lambda address, each=each: cell(address, each, "n += 1\nn"))
                if result["error"] is None and result["durable"]:
                    self.counts[each] += 1
                    # Of two servers that run the session each would count for itself.
                    if result["value"] <= self.values.get(each, 0):
                        self.problems.append((each, result["value"], self.values[each]))
                        return
                    self.values[each] = result["value"]
                else:  # it says itself that it may be lost
                    self.failures.append((0, str(result["error"] or "not durable")[:200]))
                if self.stopping:
                    break

    def told(self):
        return "%d tries again, the longest request took %.1f s%s" % (len(self.failures), self.longest, "; the last: %s" % self.failures[-1][1] if self.failures else "")

    def progress(self):
        """Each session has another cell."""
        marks = dict(self.counts)
        self.plane.wait(lambda: self.problems or all(self.counts[each] > mark for each, mark in marks.items()), lambda: "all sessions go on: %s" % self.failures[-3:])
        assert not self.problems, self.problems

    def stop(self):
        """Nothing that was acknowledged is lost; a cell whose answer was lost may have run."""
        self.stopping = True
        for each in (*self.threads, self.watcher):
            each.join()
        cells, lost = sum(self.counts.values()), []
        for each, count in self.counts.items():
            value = self.again(lambda address, each=each: cell(address, each, "n"))["value"]
            if not (isinstance(value, int) and count <= value <= self.tried[each] + len(self.failures)):
                lost.append((each, count, value))
        print("load: %d sessions, %d cells acknowledged, %d requests were tried again, the longest took %.1f s" % (
            len(self.counts), cells, len(self.failures), self.longest), flush=True)
        assert not self.problems and not lost and cells, (self.problems, lost[:5], self.failures[:5])
        assert all(self.values.get(each) for each in self.counts), "a client has ended before its time"


def volume(plane, space):
    """All nodes are this machine, so a folder of it is one that they share, locks included."""
    path = os.path.join(plane.folder, "volume-" + space)
    os.makedirs(path)
    os.chown(path, 10001, 10001)
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "shared-" + space}, "spec": {
        "capacity": {"storage": "20Gi"}, "accessModes": ["ReadWriteMany"], "hostPath": {"path": path}, "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": space, "name": "workcell-shared"}}}


def start_servers(plane, space, change):
    def larger(each):
        if each["kind"] == "StatefulSet":
            each["spec"]["replicas"] = 3
            server = each["spec"]["template"]["spec"]["containers"][0]
            server["resources"]["limits"]["memory"] = "4Gi"
            change(server)

    make_space(plane, space)
    apply(plane, space, [volume(plane, space), secret("workcell-tokens", tokens_yaml=TOKENS), secret("workcell-redis", url=plane.redis_url(space)),
                         *load("workcell.yaml", space, larger)])
    plane.wait(lambda: len(ready_pods(plane, space, MINE)) == 3, "the servers are ready")
    work = Load(plane, space, int(os.environ.get("WORKCELL_TEST_SESSIONS", SESSIONS)))
    print("%s: %d sessions are open" % (space, len(work.counts)), flush=True)
    return work


def update(plane, space, work):
    plane.kubectl("-n", space, "rollout", "restart", "statefulset", "workcell")
    plane.kubectl("-n", space, "rollout", "status", "statefulset", "workcell", "--timeout=%ds" % 600)
    print("%s: rolling update, %s" % (space, work.told()), flush=True)


def servers_of_redis(plane, nodes):
    """Sessions are saved in Redis, which is this machine's: it is killed, and a node that is cut off loses its leases to the others."""
    space = "redis"

    def change(server):
        # What the chart makes of redis: {secret: workcell-redis, sessions: true} (workcell-scaled.yaml).
        server["args"][server["args"].index("/var/lib/workcell/saved")] = "env:WORKCELL_REDIS"
        server["env"].append({"name": "WORKCELL_REDIS", "valueFrom": {"secretKeyRef": {"name": "workcell-redis", "key": "url"}}})

    work = start_servers(plane, space, change)
    update(plane, space, work)
    plane.restart_redis()
    work.progress()
    print("%s: Redis was killed and is back, %s" % (space, work.told()), flush=True)
    kill(plane, nodes, space, "workcell-1")
    plane.wait(lambda: len(ready_pods(plane, space, MINE)) == 3, "the killed server is back")
    work.progress()
    print("%s: one server killed, %s" % (space, work.told()), flush=True)
    nodes[1].cut()
    plane.wait(lambda: " NotReady" in plane.kubectl("get", "node", nodes[1].name).stdout, "the node is missed")
    work.progress()  # all sessions, while the node is away
    nodes[1].cut(False)
    plane.wait(lambda: " Ready" in plane.kubectl("get", "node", nodes[1].name).stdout and len(ready_pods(plane, space, MINE)) == 3, "the node is back")
    work.progress()
    print("%s: network of a node cut and healed, %s" % (space, work.told()), flush=True)
    work.stop()
    plane.kubectl("delete", "namespace", space, "--wait=false")


def servers(plane, nodes):
    space, mine = "shared", MINE

    def scale(count):
        plane.kubectl("-n", space, "scale", "statefulset", "workcell", "--replicas=%d" % count)
        plane.wait(lambda: len(ready_pods(plane, space, mine)) == count, "%d servers are ready" % count)

    work = start_servers(plane, space, lambda server: None)
    update(plane, space, work)
    scale(5)
    scale(2)
    print("servers: from 3 to 5 to 2, %s" % work.told(), flush=True)
    kill(plane, nodes, space, "workcell-1")
    plane.wait(lambda: len(ready_pods(plane, space, mine)) == 2, "the killed server is back")
    print("servers: one killed, %s" % work.told(), flush=True)
    # The network of a node, for longer than the control plane waits for it. Its servers keep their sessions, and nobody else runs them.
    scale(4)
    nodes[1].cut()
    plane.wait(lambda: " NotReady" in plane.kubectl("get", "node", nodes[1].name).stdout, "the node is missed")
    nodes[1].cut(False)
    plane.wait(lambda: " Ready" in plane.kubectl("get", "node", nodes[1].name).stdout and len(ready_pods(plane, space, mine)) == 4, "the node is back")
    print("servers: network of a node cut and healed, %s" % work.told(), flush=True)
    # A node with all that it has; its pods are then given to the other one.
    gone = [each for each in ready_pods(plane, space, mine) if plane.get(space, "pod", each)["spec"]["nodeName"] == nodes[1].name]
    nodes[1].die()
    plane.wait(lambda: " NotReady" in plane.kubectl("get", "node", nodes[1].name).stdout, "the node is missed")
    for each in gone:
        plane.kubectl("-n", space, "delete", "pod", each, "--grace-period=0", "--force")
    plane.wait(lambda: len(ready_pods(plane, space, mine)) == 4, "the servers of the dead node run on the other one")
    print("servers: a node with %d servers killed, %s" % (len(gone), work.told()), flush=True)
    work.stop()
    plane.kubectl("delete", "namespace", space, "--wait=false")
