"""The API server of a cluster for tests of faults: pods, leases and sandbox claims with resource versions, watches, preconditions and a garbage collector.

Its pods are real session servers at addresses of this machine (127.0.0.2, ...), which a claim gets its token for. scripts/test_kubernetes.py has the real one.
"""
import contextlib
import copy
import http.server
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid

import serving
import support

KEY = "0123456789abcdef" * 4
TOKEN = "token-of-the-api-server"
POOL_LABELS = {"workcell.pool": "workcell", "workcell.state": "idle", "pod-template-hash": "1"}
POD_TOKEN = os.path.join(support.ROOT, "packaging", "pod_token.py")


def certificates(folder):
    """A CA, and a certificate of 127.0.0.1 that it has signed: the paths of (CA, certificate with key)."""
    def run(*argv):
        subprocess.run(["openssl", *argv], check=True, cwd=folder, stderr=subprocess.DEVNULL)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    run("req", "-x509", *curve, "-days", "2", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=cluster")
    run("req", *curve, "-keyout", "key", "-out", "request", "-subj", "/CN=kubernetes")
    run("x509", "-req", "-in", "request", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", "cert")
    (folder / "both").write_text((folder / "cert").read_text() + (folder / "key").read_text())
    return folder / "ca.crt", folder / "both"


def template():
    """A pod as the chart's pool makes it."""
    return {
        "automountServiceAccountToken": False, "nodeName": "node-1",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "server", "image": "workcell:test", "resources": {"limits": {"memory": "512Mi", "cpu": "500m"}},
                        "volumeMounts": [{"name": "run", "mountPath": "/run/workcell"}],
                        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}}],
        "volumes": [{"name": "run", "emptyDir": {}}, {"name": "key", "secret": {"secretName": "key"}}],
    }


def end(server):
    """As a pod's first process it takes no SIGTERM from processes that it can see."""
    server.process.kill()
    server.close(-signal.SIGKILL)


class Cluster:
    """`change(pod)` is applied to each new pod; `lie(method, path, status, answer)` may return another (status, answer)."""

    def __init__(self, folder, pods=1, change=None, replace=False):
        self.folder, self.change, self.replace, self.lie = folder, change or (lambda pod: None), replace, None
        self.lock, self.version, self.events, self.requests = threading.Condition(), 100, [], []
        self.objects = {"pods": {}, "leases": {}, "sandboxclaims": {}, "sandboxes": {}}
        self.servers, self.tokens, self.port_of_pods, self.next_address = {}, {TOKEN}, serving.free_port(), 2
        self.ca, both = certificates(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(both)
        cluster = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def handle_all(self):
                cluster.handle(self)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_all

        class Listener(http.server.ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                pass  # clients that hang up, or do not like the certificate

        self.http = Listener(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.url = "https://127.0.0.1:%d" % self.http.server_port
        self.stopped = False
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.token_file, self.key_file = folder / "token", folder / "key-of-the-pool"
        self.token_file.write_text(TOKEN + "\n")
        self.key_file.write_text(KEY + "\n")
        for _ in range(pods):
            self.add_pod()

    @property
    def flags(self):
        return ["--executor", "kubernetes", "--kubernetes-api", self.url, "--kubernetes-token-file", self.token_file, "--kubernetes-ca", self.ca,
                "--pod-namespace", "agents", "--pool-key-file", self.key_file, "--pod-port", self.port_of_pods]

    # ---- pods ----

    def add_pod(self, labels=None, **meta):
        uid, name, address = str(uuid.uuid4()), "pool-%d" % self.next_address, "127.0.0.%d" % self.next_address
        self.next_address += 1
        pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "agents", "uid": uid, "labels": dict(labels or POOL_LABELS),
                                                               "ownerReferences": [{"kind": "ReplicaSet", "uid": "1", "name": "pool"}], **meta},
               "spec": template(), "status": {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}],
                                              "containerStatuses": [{"name": "server", "restartCount": 0, "state": {"running": {}}}]}}
        self.change(pod)
        made = self.folder / ("token-" + name)
        subprocess.run([sys.executable, "-I", POD_TOKEN, self.key_file, made], env={"POD_UID": uid}, check=True)
        token = made.read_text()
        work = self.folder / ("work-" + name)
        work.mkdir()
        self.servers[name] = serving.Server("--in-container", "--executor", "subprocess", "--storage", self.folder / ("storage-" + name), tokens=token,
                                            listen="%s:%d" % (address, self.port_of_pods), cwd=str(work))
        with self.lock:
            self.put("pods", pod, "ADDED")
        return name

    def put(self, kind, thing, event):
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self.objects[kind][thing["metadata"]["name"]] = thing
        if kind == "pods":
            self.events.append((self.version, event, copy.deepcopy(thing)))
        self.lock.notify_all()

    def drop(self, kind, name):
        thing = self.objects[kind].pop(name)
        self.version += 1
        if kind == "pods":
            thing["metadata"]["resourceVersion"] = str(self.version)
            self.events.append((self.version, "DELETED", thing))
            end(self.servers.pop(name))
        for other in ("pods", "sandboxclaims"):  # the garbage collector
            for each in [key for key, value in self.objects[other].items()
                         if any(ref["uid"] == thing["metadata"]["uid"] for ref in value["metadata"].get("ownerReferences", ()))]:
                self.drop(other, each)
        self.lock.notify_all()

    def set_pod(self, name, change):
        with self.lock:
            pod = self.objects["pods"][name]
            change(pod)
            self.put("pods", pod, "MODIFIED")

    def states(self):
        with self.lock:
            return sorted(pod["metadata"]["labels"].get("workcell.state", "") for pod in self.objects["pods"].values())

    def count(self, kind):
        with self.lock:
            return len(self.objects[kind])

    # ---- requests ----

    def handle(self, request):
        size = int(request.headers.get("Content-Length") or 0)
        body = json.loads(request.rfile.read(size)) if size else None
        url = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        self.requests.append((request.command, request.path))
        if request.headers.get("Authorization") not in {"Bearer " + token for token in self.tokens}:
            self.answer(request, 401, {"kind": "Status", "message": "Unauthorized"})
            return
        found = re.fullmatch(r"/(?:api/v1|apis/[a-z0-9.-]+/v1(?:beta1)?)/namespaces/agents/(\w+)(?:/([a-z0-9.-]+))?", url.path)
        if not found or found.group(1) not in self.objects:
            self.answer(request, 404, {"kind": "Status", "message": "the server could not find the requested resource"})
            return
        if query.get("watch"):
            self.watch(request, query)
            return
        with self.lock:
            status, answer = getattr(self, "do_" + request.command.lower())(found.group(1), found.group(2), query, body)
            answer = copy.deepcopy(answer)
        if self.lie:
            status, answer = self.lie(request.command, request.path, status, answer) or (status, answer)
        self.answer(request, status, answer)

    def answer(self, request, status, answer):
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    @staticmethod
    def matches(thing, query):
        wanted = dict(each.split("=") for each in query.get("labelSelector", "").split(",") if each)
        return all(thing["metadata"].get("labels", {}).get(key) == value for key, value in wanted.items())

    def watch(self, request, query):
        request.send_response(200)
        request.send_header("Connection", "close")
        request.end_headers()
        at, last = int(query["resourceVersion"]), time.monotonic()
        with self.lock:
            while not self.stopped and time.monotonic() - last < 60:
                for version, kind, thing in [each for each in self.events if each[0] > at]:
                    at = version
                    if self.matches(thing, query):
                        request.wfile.write(json.dumps({"type": kind, "object": thing}).encode() + b"\n")
                request.wfile.flush()
                self.lock.wait(1)
        request.close_connection = True

    def do_get(self, kind, name, query, body):
        if name:
            thing = self.objects[kind].get(name)
            return (200, thing) if thing else (404, {"message": "not found"})
        return 200, {"metadata": {"resourceVersion": str(self.version)}, "items": [each for each in self.objects[kind].values() if self.matches(each, query)]}

    def do_post(self, kind, name, query, body):
        thing = {**body, "metadata": {**body["metadata"], "uid": str(uuid.uuid4())}}
        self.put(kind, thing, "ADDED")
        if kind == "sandboxclaims":
            threading.Thread(target=self.adopt, args=(thing["metadata"]["name"],)).start()
        return 201, thing

    def adopt(self, claim):
        """The controller of agent-sandbox: gives an idle pod the labels of the claim, and tells which one it is."""
        with self.lock:
            thing = self.objects["sandboxclaims"][claim]
            pod = next(each for each in self.objects["pods"].values() if each["metadata"]["labels"].get("workcell.state") == "idle")
            pod["metadata"]["labels"].update(thing["spec"]["additionalPodMetadata"]["labels"])
            pod["metadata"]["ownerReferences"] = [{"uid": thing["metadata"]["uid"]}]
            self.put("pods", pod, "MODIFIED")
            self.put("sandboxes", {"metadata": {"name": "box", "uid": "b", "annotations": {"agents.x-k8s.io/pod-name": pod["metadata"]["name"]}}}, "ADDED")
            thing["status"] = {"conditions": [{"type": "Ready", "status": "True"}], "sandbox": {"name": "box"}}
            self.put("sandboxclaims", thing, "MODIFIED")

    def do_patch(self, kind, name, query, body):
        thing = self.objects[kind].get(name)
        meta = body.get("metadata", {})
        if not thing:
            return 404, {"message": "not found"}
        for key in ("resourceVersion", "uid"):
            if key in meta and meta[key] != thing["metadata"][key]:
                return 409, {"message": "the object has been modified"}
        for key, value in meta.items():
            if isinstance(value, dict):
                thing["metadata"].setdefault(key, {}).update(value)
            else:
                thing["metadata"][key] = value
        thing.setdefault("spec", {}).update(body.get("spec", {}))
        self.put(kind, thing, "MODIFIED")
        if kind == "pods" and self.replace:
            threading.Thread(target=self.add_pod).start()
        return 200, thing

    def do_delete(self, kind, name, query, body):
        thing = self.objects[kind].get(name)
        if not thing:
            return 404, {"message": "not found"}
        for key, value in ((body or {}).get("preconditions") or {}).items():
            if value != thing["metadata"][key]:
                return 409, {"message": "the precondition is not met"}
        self.drop(kind, name)
        return 200, {"kind": "Status", "status": "Success"}

    def close(self):
        with self.lock:
            self.stopped = True
            self.lock.notify_all()
        self.http.shutdown()
        self.http.server_close()
        for server in list(self.servers.values()):
            end(server)


@contextlib.contextmanager
def running(folder, **options):
    made = Cluster(folder, **options)
    try:
        yield made
    finally:
        made.close()
