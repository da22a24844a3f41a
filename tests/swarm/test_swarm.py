"""packaging/swarm/stack.yaml as it is shipped, on three nodes: what becomes of sessions when servers, nodes and the network come and go."""
import contextlib
import json
import os
import shutil
import subprocess
import threading

import pytest

import serving
import support
import swarm_engines
from workcell import ContainerConfig
from workcell.sync import Session

pytestmark = pytest.mark.skipif(not os.environ.get("WORKCELL_TEST_PARTS"), reason="needs an engine with the images: scripts/test.sh swarm")
PACKAGING = os.path.join(support.ROOT, "packaging", "swarm")
PORT, USER, CLIENTS = 8080, 10001, int(os.environ.get("WORKCELL_TEST_SWARM_SESSIONS", "8"))
PASSWORD = "passw0rd-of-the-tests"
# The sizes, limits and clocks of a machine that has three nodes on it. The parts of others are in one image, made of Debian's packages.
OVER = """version: "3.9"
services:
  server:
    ulimits: {nofile: 4096}
    healthcheck: {interval: 1s}
    deploy:
      resources: {limits: {memory: 2G}, reservations: {memory: 64M}}
      update_config: {order: start-first, parallelism: 1, delay: 0s, monitor: 1s, failure_action: rollback}
"""
# What code in a session tries: the tokens, the password, what others have saved, other servers, the proxy, the machine.
ATTACKS = [
    "open('/run/secrets/tokens.yaml').read()",
    "open('/run/secrets/redis').read()",
    "open('/proc/1/environ').read()",
    "import os; os.listdir('/var/lib/workcell/saved')",
    "import subprocess; subprocess.run(['ls', '/var/lib/workcell/saved'], check=True)",
    "open('/var/lib/workcell/work/../saved/planted', 'w')",
    "import socket; socket.create_connection(('proxy', 8080), 5)",
    "import socket; socket.create_connection(('127.0.0.1', 8080), 5)",
    "import os; os.kill(1, 9)",
]


class Door(serving.Server):
    """A node's published port."""

    def __init__(self, node):
        self.address, self.port, self.path = node.address, PORT, None

    def answers(self):
        try:
            return self.ask("GET", "/ready", token=None).status == 200
        except OSError:
            return False


class Cluster:
    def __init__(self, swarm, folder):
        self.swarm, self.folder, self.doors = swarm, folder, [Door(node) for node in swarm.nodes]
        self.shared = folder / "shared"
        for path in (self.shared, self.shared / "work", self.shared / "saved"):
            path.mkdir()
            os.chown(path, USER, USER)
            os.chmod(path, 0o700)
        for path in (folder, folder.parent, folder.parent.parent):
            os.chmod(path, 0o755)
        self.secret("workcell-tokens", serving.TOKENS)
        self.secret("workcell-redis", "redis://:%s@%s:6379" % (PASSWORD, swarm_engines.OURS))

    def secret(self, name, text):
        self.swarm.docker("secret", "create", name, "-", input=text.encode())

    def deploy(self):
        (self.folder / "over.yaml").write_text(OVER)
        env = dict(os.environ, WORKCELL_IMAGE=os.environ["WORKCELL_TEST_IMAGE"], WORKCELL_PROXY_IMAGE=os.environ["WORKCELL_TEST_PARTS"],
                   WORKCELL_SHARED=str(self.shared))
        self.swarm.docker("stack", "deploy", "--resolve-image", "never", "--compose-file", os.path.join(PACKAGING, "stack.yaml"), "--compose-file",
                          str(self.folder / "over.yaml"), "workcell", env=env)
        self.wait_for_servers(3)
        for door in self.doors:
            self.wait(door.answers, "the proxy at " + door.address)

    def wait(self, condition, what):
        return support.wait_until(condition, lambda: "%s\n%s" % (what, self.swarm.docker("stack", "ps", "workcell", "--no-trunc")), 3 * support.DEADLINE)

    def tasks(self):
        """(id, node, state) of the servers that should run."""
        rows = self.swarm.rows("service", "ps", "workcell_server", "--filter", "desired-state=running", "--no-trunc")
        return [(row["ID"], row["Node"], row["CurrentState"].split()[0]) for row in rows]

    def wait_for_servers(self, count):
        # A task that has a health check runs when it is healthy.
        self.wait(lambda: [task[2] for task in self.tasks()] == ["Running"] * count, "%d servers that are healthy" % count)

    def worker(self):
        """A node that has a server and is not the manager, and the doors of the others."""
        node = next(each for each in self.swarm.nodes if each is not self.swarm.manager and self.containers(each))
        return node, [door for door in self.doors if door.address != node.address]

    def containers(self, node):
        rows = [line.split() for line in node.docker("ps", "--no-trunc", "--filter", "label=com.docker.swarm.service.name=workcell_server", "--format",
                                                     "{{.ID}}").splitlines()]
        return [row[0] for row in rows]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swarm")
    images = [os.environ["WORKCELL_TEST_IMAGE"], os.environ["WORKCELL_TEST_PARTS"]]
    with contextlib.ExitStack() as stack:
        swarm = stack.enter_context(swarm_engines.swarm(os.environ["DOCKER_HOST"], images, print))
        program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
        redis = subprocess.Popen(["redis-server", "--bind", swarm_engines.OURS, "--requirepass", PASSWORD, "--save", "", "--dir", str(folder)], executable=program,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        stack.callback(redis.wait)
        stack.callback(redis.kill)
        made = Cluster(swarm, folder)
        made.deploy()
        yield made


class Client(threading.Thread):
    """Counts in a durable session, by each door in turn. An answer is final: no later one may know less, and none may be counted twice."""

    def __init__(self, cluster, doors):
        super().__init__(daemon=True)
        self.doors, self.count, self.problems, self.repeats, self.broken, self.turn = doors, 0, [], 0, 0, 0
        self.session = cluster.wait(lambda: self.opened(doors[0]), "a session")
        self.stop = threading.Event()

    @staticmethod
    def opened(door):
        answer = door.ask("POST", "/v1/sessions")
        return answer.json["session_id"] if answer.status == 201 else None

    def run(self):
        while not self.stop.is_set() and not self.problems:
            self.turn += 1
            try:
                answer = self.doors[self.turn % len(self.doors)].ask("POST", "/execute", {"code": "n = globals().get('n', 0) + 1; n"}, session=self.session)
            except OSError:
                answer = None
            if answer is None or answer.status in (502, 504):
                self.broken += 1  # it may have been carried out
                self.ask_count()
            elif answer.status == 503:
                self.repeats += 1  # nothing was done
                self.stop.wait(0.05)
            elif answer.status == 200 and answer.json["error"] is None and answer.json["value"] == self.count + 1:
                self.count += 1
            else:
                self.problems.append((answer, self.count))

    def ask_count(self):
        """What the session says: all the cells that were acknowledged, and perhaps the one of which we do not know."""
        while not self.stop.is_set():
            with contextlib.suppress(OSError):
                answer = self.doors[0].ask("POST", "/execute", {"code": "globals().get('n', 0)"}, session=self.session)
                if answer.status == 200 and answer.json["error"] is None:
                    if answer.json["value"] not in (self.count, self.count + 1):
                        self.problems.append((answer, self.count, "after a broken connection"))
                    self.count = answer.json["value"]
                    return
            self.stop.wait(0.05)

    def __repr__(self):
        return "<%s: %d cells, %d repeated, %d broken, problems %r>" % (self.session[:8], self.count, self.repeats, self.broken, self.problems)


@contextlib.contextmanager
def load(cluster, doors=None):
    """Clients that count meanwhile. Afterwards each goes on counting, and none has lost or doubled a cell."""
    clients = [Client(cluster, doors or cluster.doors) for _ in range(CLIENTS)]
    for client in clients:
        client.start()

    def advance(by, what):
        marks = [client.count + by for client in clients]
        cluster.wait(lambda: all(client.problems or client.count >= mark for client, mark in zip(clients, marks)), lambda: "%s: %r" % (what, clients))

    try:
        advance(3, "all count")
        yield clients
        advance(3, "all count again")
    finally:
        for client in clients:
            client.stop.set()
        for client in clients:
            client.join(support.DEADLINE)
        print(clients)
    assert not any(client.problems for client in clients), clients
    for client in clients:
        assert cluster.doors[0].ask("DELETE", "/v1/sessions/" + client.session).status == 204


def test_the_stack(cluster):
    assert sorted(node for _, node, _ in cluster.tasks()) == ["node1", "node2", "node3"]
    node = cluster.swarm.nodes[1]
    found, = json.loads(node.docker("inspect", *cluster.containers(node)))
    assert found["HostConfig"]["ReadonlyRootfs"] and found["HostConfig"]["CapDrop"] == ["ALL"] and found["Config"]["User"] == "10001:10001"
    assert found["State"]["Health"]["Status"] == "healthy" and not found["HostConfig"]["PortBindings"] and found["HostConfig"]["PidsLimit"] == 4096
    door = cluster.doors[0]
    assert door.ask("POST", "/execute", {"code": "1"}, token="other").status == 401
    session = door.session()
    for attack in ATTACKS:
        answer = door.execute(attack, session=session)
        assert answer["error"] is not None and serving.TOKEN not in answer["stdout"], (attack, answer)
    # Any door, any server: the session has its variables, and artifacts are in Redis.
    door.execute("x = artifacts.save('a', 'kept') and 1", session=session)
    hosts = {each.execute("x = globals().get('x', 0); __import__('socket').gethostname()", session=session)["value"] for each in cluster.doors * 3}
    assert len(hosts) == 1, "one server runs it"
    used = set()
    # A proxy learns of a server a moment after Swarm says that it runs.
    cluster.wait(lambda: used.add(cluster.doors[1].execute("__import__('socket').gethostname()", session=cluster.doors[1].session())["value"]) or len(used) == 3,
                 "all servers are used")
    assert cluster.doors[2].execute("artifacts.load('a')", session=cluster.doors[2].session())["value"] == "kept"


def test_a_node_is_killed(cluster):
    """Its sessions are woken elsewhere, as they were after their last cell. A session of the SDK is one of them."""
    victim, doors = cluster.worker()
    hosts = [container[:12] for container in cluster.containers(victim)]
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            session = stack.enter_context(Session(None, ContainerConfig(remote_url="http://%s:%d" % (doors[0].address, PORT), auth_token=serving.TOKEN)))
            if session.run("rows = list(range(1000)); __import__('socket').gethostname()").raise_for_error().value in hosts:
                break
        else:
            raise AssertionError("20 sessions, and none on " + victim.name)
        with load(cluster, doors):
            victim.kill()
            cluster.wait(lambda: cluster.swarm.states()[victim.name] == "Down", "the manager notices")
            # Swarm starts another server on a node that is left.
            cluster.wait_for_servers(3)
            assert victim.name not in {node for _, node, _ in cluster.tasks()}
        assert session.run("len(rows)").raise_for_error().value == 1000
    victim.start()
    cluster.wait(lambda: cluster.swarm.states()[victim.name] == "Ready", "the node is back")
    cluster.wait(Door(victim).answers, "its proxy is back")
    # Swarm moves nothing to a node that came back: that is the operator's decision.
    update(cluster, "--force")
    assert victim.name in {node for _, node, _ in cluster.tasks()}


def update(cluster, *flags):
    cluster.swarm.docker("service", "update", "--detach", "--no-resolve-image", *flags, "workcell_server")

    def state():
        return cluster.swarm.docker("service", "inspect", "--format", "{{.UpdateStatus.State}}", "workcell_server").strip()

    cluster.wait(lambda: state() != "updating", "the end of the update")
    assert state() == "completed", state()
    cluster.wait_for_servers(3)


def test_a_rolling_update(cluster):
    """No request fails, and no acknowledged cell is lost."""
    before = {task for task, _, _ in cluster.tasks()}
    with load(cluster) as clients:
        update(cluster, "--env-add", "WORKCELL_VERSION_OF_THE_TEST=2")
    assert not before & {task for task, _, _ in cluster.tasks()}, "each server was replaced"
    assert not sum(client.broken for client in clients), clients


def test_two_servers_more_and_back(cluster):
    with load(cluster) as clients:
        cluster.swarm.docker("service", "scale", "--detach", "workcell_server=5")
        cluster.wait_for_servers(5)
        cluster.swarm.docker("service", "scale", "--detach", "workcell_server=2")
        cluster.wait_for_servers(2)
    assert not sum(client.broken for client in clients), clients
    cluster.swarm.docker("service", "scale", "--detach", "workcell_server=3")
    cluster.wait_for_servers(3)


def test_a_network_that_is_cut_and_healed(cluster):
    """The servers behind the cut live on, and hold what they have: nobody else runs it. Swarm has replaced them meanwhile, and ends them afterwards."""
    node, doors = cluster.worker()
    with load(cluster, doors) as clients:
        there = set(cluster.containers(node))
        assert there
        node.cut()
        cluster.wait(lambda: cluster.swarm.states()[node.name] == "Down", "the manager notices")
        cluster.wait_for_servers(3)
        marks = [client.count for client in clients]
        cluster.wait(lambda: sum(client.count > mark + 3 for client, mark in zip(clients, marks)) > 0, "others go on")
        assert set(cluster.containers(node)) == there, "the node lives"
        node.heal()
        cluster.wait(lambda: cluster.swarm.states()[node.name] == "Ready" and not there & set(cluster.containers(node)), "its old servers end")
    cluster.wait(Door(node).answers, "its proxy is back")
