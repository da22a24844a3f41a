"""Two session servers with one Redis behind HAProxy, as packaging/haproxy.cfg says: one is killed under load."""
import http.client
import os
import shutil
import signal
import subprocess
import threading

import pytest

import serving
import spaces
import support

CONFIG = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "packaging", "haproxy.cfg")
CLIENTS = 8


class Proxy(serving.Server):
    """HAProxy; what is asked of it as of a server."""

    def __init__(self, *servers):
        self.port, self.path = serving.free_port(), None
        program = shutil.which("haproxy") or "/usr/sbin/haproxy"
        env = {"LISTEN": "127.0.0.1:%d" % self.port}
        env.update(("SERVER_" + name, "127.0.0.1:%d" % server.port) for name, server in zip("AB", servers))
        self.process = subprocess.Popen([program, "-db", "-f", CONFIG], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        support.wait_until(self.answers, "haproxy answers")

    def answers(self):
        assert self.process.poll() is None, "haproxy ended"
        try:
            return self.ask("GET", "/health").status == 200
        except OSError:
            return False

    def close(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def parts(tmp_path):
    redis = spaces.Redis()
    # A server that is killed leaves its folder to the next one that starts: here there is none.
    servers = [serving.Server("--executor", "subprocess", "--storage", redis.url(), "--prefix", "app", tokens=serving.TOKEN,
                              env={"TMPDIR": str(tmp_path)}) for _ in range(2)]
    proxy = Proxy(*servers)
    yield proxy, servers
    proxy.close()
    for server in servers:
        if server.process.poll() is None:
            server.close()
    redis.close()


class Client(threading.Thread):
    """Counts in a session, and saves each number, until its session is gone."""

    def __init__(self, proxy, number):
        super().__init__(daemon=True)
        self.proxy, self.number, self.saved, self.ended, self.problem = proxy, number, 0, None, None
        self.session = proxy.session()
        self.server = proxy.execute("import os; os.getppid()", session=self.session)["value"]
        self.stop = threading.Event()

    def run(self):
        connection = self.proxy.connect()
        while not self.stop.is_set() and not self.ended and not self.problem:
            code = "n = globals().get('n', 0) + 1; artifacts.save('%d/%%d' %% n, str(n)); n" % self.number
            try:
                answer = self.proxy.ask("POST", "/execute", {"code": code}, session=self.session, connection=connection)
            except (OSError, http.client.HTTPException):
                connection.close()
                connection = self.proxy.connect()
                continue
            if answer.status == 200 and answer.json["error"] is None:
                if answer.json["value"] < self.saved + 1:
                    self.problem = answer
                self.saved = answer.json["value"]
            elif answer.status == 502 or answer.status == 503 or answer.status == 504:
                continue  # the proxy's own words while it finds out
            elif answer.headers["Content-Type"].startswith("application/json") and answer.status == 400:
                self.ended = answer.code
            else:
                self.problem = answer
        connection.close()


def test_one_of_two_is_killed_under_load(parts):
    proxy, servers = parts
    clients = [Client(proxy, number) for number in range(CLIENTS)]
    homes = {client.server for client in clients}
    assert len(homes) == 2  # a zygote each
    for client in clients:
        client.start()
    support.wait_until(lambda: all(client.saved >= 3 for client in clients), lambda: [vars(client) for client in clients])
    servers[0].process.send_signal(signal.SIGKILL)
    servers[0].process.wait()
    support.wait_until(lambda: any(client.ended for client in clients), lambda: [vars(client) for client in clients])
    lost_home = next(client.server for client in clients if client.ended)
    support.wait_until(lambda: all(client.ended or client.server != lost_home for client in clients),
                       lambda: [vars(client) for client in clients])
    marks = {client: client.saved for client in clients if not client.ended}
    support.wait_until(lambda: all(client.saved > mark for client, mark in marks.items()), lambda: [vars(client) for client in clients])
    for client in clients:
        client.stop.set()
        client.join(support.DEADLINE)
        assert client.problem is None, client.problem
        # Its own sessions end with a code, the others go on.
        assert (client.ended is not None) == (client.server == lost_home)
        assert client.ended in (None, "not_found"), client.ended
    # New ones land on the other server, and all that was acknowledged is there.
    session = proxy.session()
    assert proxy.execute("import os; os.getppid()", session=session)["value"] in homes - {lost_home}
    names = set(proxy.execute("[a['name'] for a in artifacts.list()]", session=session)["value"])
    for client in clients:
        assert {"%d/%d" % (client.number, n) for n in range(1, client.saved + 1)} <= names
