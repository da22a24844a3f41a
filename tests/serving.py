"""A `workcell serve` of the tests' own, and requests to it."""
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading

import support

TOKEN = "t0ken-of-the-tests"
# All servers of the tests with so many workers: WORKCELL_TEST_WORKERS=2 python -m pytest tests/e2e/test_serve*.py
WORKERS = os.environ.get("WORKCELL_TEST_WORKERS", "1")
TOKENS = """tokens:
  - {name: all, token: t0ken-of-the-tests, scopes: [run, read, admin, approve]}
  - {name: alice, token: t0ken-of-alice, scopes: [run, read]}
  - {name: bob, token: t0ken-of-bob}
  - {name: reader, token: t0ken-of-the-reader, scopes: [read]}
  - {name: runner, token: t0ken-of-the-runner, scopes: [run]}
  - {name: team, token: t0ken-of-the-team, workspace: team-a}
"""


def free_port():
    """Below the ports that Linux gives to outgoing connections: one of those could take it before the server does, and while that restarts."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first = int(file.read().split()[0])
    while True:
        port = random.SystemRandom().randrange(10000, max(first, 10001))
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            pass


class Answer:
    def __init__(self, response, body):
        self.status, self.headers, self.body = response.status, response.headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["code"]

    def __repr__(self):
        return "<%d %s>" % (self.status, self.body[:500])


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=support.DEADLINE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def token_file(text):
    path = os.path.join(support.temporary_folder("workcell-tests-tokens-"), "tokens.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


class Server:
    address = "127.0.0.1"

    def __init__(self, *flags, tokens=TOKENS, listen="127.0.0.1:0", env=(), pool=1, python=None, cwd=None):
        self.tokens = token_file(tokens) if tokens else None
        argv = [support.BIN, "serve", "--python", python or support.bare_python(), "--pool", str(pool)]
        if listen:
            argv += ["--listen", listen]
        if cwd:
            argv += ["--cwd", cwd]
        if self.tokens:
            argv += ["--auth-token-file", self.tokens]
        argv += ["--workers", WORKERS]  # before the flags, which may say another number
        self.stderr = tempfile.TemporaryFile()
        self.process = support.popen([*argv, *map(str, flags)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=self.stderr, env=support.host_environment(**dict(env)))
        support.wait_until(lambda: "listening on" in self.text() or self.process.poll() is not None, self.text)
        found = re.search(r"listening on (?:https?://(.*):(\d+)|unix:(.*))\n", self.text())
        assert found, self.text()
        self.pid, self.spawners = self.process.pid, set()
        given = [*argv, *map(str, flags)]
        self.workers = int(given[len(given) - given[::-1].index("--workers")]) if "--workers" in given else 1
        if found.group(1) not in (None, "0.0.0.0"):
            self.address = found.group(1)
        self.port, self.path = found.group(2) and int(found.group(2)), found.group(3)

    def text(self):
        self.stderr.seek(0)
        return self.stderr.read().decode("utf-8", "replace")

    @property
    def spawner(self):
        """That of a server with one worker, which was adopted."""
        pid, = self.spawners
        return pid

    def adopt(self):
        """Finds the spawners, from kernels up; for servers that serve a whole module."""
        connections = self.connect_to_each()
        for connection in connections:
            session = self.session(connection=connection)
            self.execute("1", session=session, connection=connection)
            pid = self.ask("GET", "/v1/sessions/" + session).json["pid"]
            table = support.processes()
            # The first process of a sandbox has the same name.
            while "workcell-spawner" not in table[pid].cmdline or "workcell-spawner" in table[table[pid].ppid].cmdline:
                pid = table[pid].ppid
            self.spawners.add(pid)
            self.ask("DELETE", "/v1/sessions/" + session)
        for connection in connections:
            connection.close()
        assert len(self.spawners) == self.workers

    def worker_pids(self):
        """In the order in which they were started; none of a server that is one process."""
        return sorted(process.pid for process in support.descendants(self.pid, support.processes())
                      if process.ppid == self.pid and "serve" in process.cmdline)

    def family(self, table=None):
        table = support.below(os.getpid()) if table is None else table
        found = support.descendants(self.pid, table)
        for spawner in self.spawners & set(table):
            found += support.descendants(spawner, table) + [table[spawner]]
        return found

    def connect(self):
        if self.path:
            return UnixConnection(self.path)
        return http.client.HTTPConnection(self.address, self.port, timeout=support.DEADLINE)

    def connect_to_each(self):
        """A connection to each worker. Which one has a client depends on what other connections there are; ids of requests begin with a word of
        the worker that answers."""
        found, others = {}, []
        for _ in range(8 * self.workers):
            connection = self.connect()
            answer = self.ask("GET", "/health", token=None, connection=connection)
            if found.setdefault(answer.headers["X-Request-ID"].split("-")[0], connection) is not connection:
                others.append(connection)
            if len(found) == self.workers:
                break
        for connection in others:
            connection.close()
        assert len(found) == self.workers, found
        return list(found.values())

    def open(self, method, path, body=None, token=TOKEN, session=None, headers=(), connection=None):
        connection = connection or self.connect()
        every = dict(headers)
        if token:
            every["Authorization"] = "Bearer " + token
        if session:
            every["X-Session-ID"] = session
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            every.setdefault("Content-Type", "application/json")
        connection.request(method, path, body=body, headers=every)
        return connection, connection.getresponse()

    def ask(self, method, path, body=None, **options):
        connection, response = self.open(method, path, body, **options)
        answer = Answer(response, response.read())
        if "connection" not in options:
            connection.close()
        return answer

    def session(self, **options):
        answer = self.ask("POST", "/v1/sessions", **options)
        assert answer.status == 201, answer
        return answer.json["session_id"]

    def execute(self, code, session=None, **options):
        answer = self.ask("POST", "/execute", {"code": code}, session=session, **options)
        assert answer.status == 200, answer
        return answer.json

    def events(self, session, code, **options):
        """[(id, type, data)] of a run."""
        connection, response = self.open("POST", "/v1/sessions/%s/runs" % session, {"code": code},
                                         headers={"Accept": "text/event-stream"}, **options)
        assert response.status == 200, response.read()
        found = parse_events(response.read().decode())
        connection.close()
        return found

    def metric(self, name):
        text = self.ask("GET", "/metrics").body.decode()
        return float(re.search(r"^workcell_%s (\S+)$" % name, text, re.M).group(1))

    def raw(self, data):
        """Bytes as they are; what comes back until the server closes."""
        with contextlib.closing(socket.create_connection(("127.0.0.1", self.port), timeout=support.DEADLINE)) as sock:
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has hung up; what it said before is there
            return read_all(sock)

    def close(self, status=0):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        found = self.process.wait(support.DEADLINE)
        text = self.text()
        self.stderr.close()
        for sign in ("AddressSanitizer", "LeakSanitizer", "runtime error:"):
            assert sign not in text, text
        assert found == status, text


class Alone(Server):
    """`workcell console` of one person, and the code of its link."""

    def __init__(self, folder, **env):  # noqa: super().__init__ starts `workcell serve`
        variables = support.host_environment(**{"DISPLAY": "", "WAYLAND_DISPLAY": "", "XDG_RUNTIME_DIR": str(folder), **env})
        self.process = support.popen([support.BIN, "console", "--python", support.bare_python(), "--pool", "1", "--executor", "subprocess"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL, env=variables, text=True)
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/console/#code=([0-9a-f]{32})\n", self.process.stdout.readline())
        self.path, self.port, self.code = None, int(found.group(1)), found.group(2)

    def end(self):
        self.process.terminate()
        self.process.communicate(timeout=support.DEADLINE)
        assert self.process.returncode == 0


def read_all(sock):
    data = b""
    while True:
        try:
            piece = sock.recv(65536)
        except OSError:
            return data
        if not piece:
            return data
        data += piece


def parse_events(text):
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if "data" in lines:
            found.append((int(lines.get("id", 0)), lines.get("event"), json.loads(lines["data"])))
    return found


#: Code that swaps `race` between a folder with a file, nothing and a link to `target`, whatever clients make of that name meanwhile.
RACE = """
import os, shutil, threading
def swap():
    while not stop:
        try:
            os.path.islink('race') and os.unlink('race')
            shutil.rmtree('race', ignore_errors=True)
            os.makedirs('real', exist_ok=True)
            with open('next', 'w') as file:
                file.write('inside')
            os.rename('next', 'real/f')
            os.rename('real', 'race'); os.rename('race', 'real')
            os.path.islink('new') or os.symlink(target, 'new')
            os.rename('new', 'race')
        except OSError: pass
stop = False
threading.Thread(target=swap, daemon=True).start()
"""

#: A file for a folder of tools.
ECHO_TOOL = """name: echo
description: Says it again
command: echo
schema:
  positional:
    - {name: text, type: string, required: true}
recipes:
  say:
    description: Says a text
    params:
      text: {}
"""


@contextlib.contextmanager
def shared(*args, **options):
    """A server for all tests of a module: one that was made, or what it is to be made with."""
    made = args[0] if isinstance(args[0], Server) else Server(*args, **options)
    made.adopt()
    support.shared_drivers.append(made)
    yield made
    assert made.ask("GET", "/health", token=None).status == 200
    support.shared_drivers.remove(made)
    made.close()


class Proxy:
    """Passes bytes on, and cuts all connections when it is told to, or the first few after so many bytes. answers: for the first requests, a
    connection each; b"": none. While `passes` is clear, nothing of the server reaches its clients. `drops`: so many connections end when a client next
    sends something, which the server does not get."""

    def __init__(self, port, cut_after=None, answers=()):
        self.port_of_server, self.cut_after, self.pairs, self.cuts, self.answers = port, cut_after, [], 0, list(answers)
        self.drops, self.passes = 0, threading.Event()
        self.passes.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            if self.answers:
                client.recv(65536)
                client.sendall(self.answers.pop(0))
                client.shutdown(socket.SHUT_WR)
                client.recv(65536)
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.port_of_server))
            self.pairs.append((client, server))
            for one, other, limit in ((client, server, None), (server, client, self.cut_after)):
                threading.Thread(target=self.pump, args=(one, other, limit), daemon=True).start()

    def pump(self, source, sink, limit):
        passed = 0
        try:
            while True:
                data = source.recv(16384)
                passed += len(data)
                if not data:
                    break
                if limit and passed > limit and self.cuts < 4:
                    self.cuts += 1
                    break
                if source.getpeername()[1] == self.port_of_server:
                    self.passes.wait()
                elif self.drops:
                    self.drops -= 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for sock in (source, sink):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        for pair in self.pairs:
            for sock in pair:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.pairs.clear()

    def lose(self):
        """What is held back never arrives."""
        self.cut()
        self.passes.set()

    def close(self):
        self.listener.close()
        self.lose()
