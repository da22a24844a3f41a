"""Three servers and a real Redis under load of many durable sessions, while servers and Redis are killed, paused and restarted at moments that a seed decides.

Each client knows which of its cells were acknowledged as durable. In the end the session's own log must have all of those, once, in their order; a cell without
an answer may be there once or not at all; nothing else may. Every cell holds a lock that Linux gives to one process, so two servers that run a session are seen.

WORKCELL_TEST_SESSIONS (200), WORKCELL_TEST_SEED, WORKCELL_TEST_ROUNDS (of faults, 12), WORKCELL_TEST_PAUSE (seconds between cells of a client, 2).
"""
import collections
import http.client
import os
import random
import signal
import threading
import time

import pytest

import crews
import serving
import spaces
import support

SESSIONS = int(os.environ.get("WORKCELL_TEST_SESSIONS", "200"))
ROUNDS = int(os.environ.get("WORKCELL_TEST_ROUNDS", "12"))
PAUSE = float(os.environ.get("WORKCELL_TEST_PAUSE", "2"))
LEASE = 10
ENOUGH = 240  # seconds in which every session must have gone on after a fault
FLAGS = ["--drain-delay", "0.5", "--max-sessions", "1000", "--max-connections", "4096", "--max-queue", "1000"]
PRELUDE = """
import fcntl
log = []
def step(name, token):
    with open("lock-" + name, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        log.append(token)
    return len(log)
"""


class Client(threading.Thread):
    """Counts in its session, at any of the servers; a request that was refused before anything was done is sent again."""

    def __init__(self, trial, n):
        super().__init__(daemon=True)
        self.trial, self.name, self.tokens, self.acknowledged = trial, "c%d" % n, 0, []
        self.random = random.Random("%s-%d" % (trial.seed, n))
        self.session, self.problem = None, None

    def ask(self, method, path, body=None):
        """An answer that is not a refusal; None: it is not known what became of the request."""
        deadline = time.monotonic() + ENOUGH
        while True:
            begun = time.monotonic()
            try:
                server = self.trial.other(self.random)
                answer = server.ask(method, path, body, session=self.session)
            except (OSError, http.client.HTTPException) as error:
                self.trial.count(type(error).__name__, None)
                if isinstance(error, ConnectionRefusedError):
                    answer = None
                elif method == "POST":
                    return None
                else:
                    answer = None
            if answer is not None:
                took = time.monotonic() - begun
                with self.trial.lock:
                    self.trial.times.append(took)
                if answer.status < 400:
                    return answer
                self.trial.count("%d %s" % (answer.status, answer.json.get("detail", "")[:90]), took)
                if answer.status in (500, 502):
                    return None
                assert answer.status == 503 and answer.headers["Retry-After"], answer
            assert time.monotonic() < deadline, "no server takes the request of %s: %s" % (self.session, answer)
            time.sleep(0.1 + self.random.random() / 5)

    def cell(self, code):
        answer = self.ask("POST", "/execute", {"code": code})
        return answer.json if answer else None

    def run(self):
        try:
            while not self.session:
                answer = self.ask("POST", "/v1/sessions", {})
                self.session = answer.json["session_id"] if answer else None
            while not self.is_ready():
                pass
            while not self.trial.stopping:
                self.step() if self.random.random() > 0.05 else self.die()
                time.sleep(PAUSE * (0.5 + self.random.random()))
            self.check()
        except Exception as problem:  # the test reports it
            self.problem = "%s (%s): %r" % (self.name, self.session, problem)

    def is_ready(self):
        result = self.cell(PRELUDE)
        return result and not result["error"] and (result["durable"] or self.confirm())

    def confirm(self):
        """With `durable: cells` no result says that it is durable; a session that was put to sleep is, with as many cells as it had then."""
        path = "/v1/sessions/" + self.session
        before = self.ask("GET", path).json["cells"]
        result = self.cell("log")
        after = self.ask("GET", path).json["cells"]
        if not result or result["error"] or after != before + 1:
            return False
        answer = self.ask("POST", path + "/hibernate", {})
        if not answer or answer.json["cells"] != after:
            return False
        log, known = result["value"], set(self.acknowledged)
        assert [each for each in log if each in known] == self.acknowledged, "acknowledged %r, but found %r" % (self.acknowledged, log)
        self.acknowledged = log
        return True

    def step(self):
        token = self.tokens = self.tokens + 1
        result = self.cell("step(%r, %d)" % (self.name, token))
        if result is None:
            return
        if result["error"]:
            self.trial.count("cell: " + str(result["error"])[-90:], None)
            assert "BlockingIOError" not in str(result["error"]), "two run it at once"
            return
        if result["durable"]:
            self.acknowledged.append(token)
        elif self.trial.durable == "cells":
            if self.random.random() < 0.3:
                self.confirm()
        else:
            self.trial.count("not durable: %s" % " ".join(result.get("notices") or [])[:120], None)

    def die(self):
        """Its kernel ends in a cell, or just after one."""
        self.cell(self.random.choice(["import os; os._exit(1)", "import os, threading; threading.Timer(0.02, os._exit, [1]).start()"]))

    def check(self):
        result = None
        while not result or result["error"]:
            result = self.cell("log")
        log, known = result["value"], set(self.acknowledged)
        assert [each for each in log if each in known] == self.acknowledged, "acknowledged %r, but found %r" % (self.acknowledged, log)
        assert sorted(set(log)) == log and set(log) <= set(range(1, self.tokens + 1)), log


class Trial:
    def __init__(self, crew, redis, seed, durable):
        self.crew, self.redis, self.seed, self.random, self.durable = crew, redis, seed, random.Random(seed), durable
        self.flags = ["--durable", durable, *FLAGS]
        self.lock, self.times, self.counts, self.stopping = threading.Lock(), [], collections.Counter(), False
        self.ports = [serving.free_port() for _ in range(3)]
        self.servers = [crew.start(*self.flags, port=port) for port in self.ports]
        self.paused = set()
        self.clients = [Client(self, n) for n in range(SESSIONS)]
        for client in self.clients:
            client.start()

    def other(self, dice):
        """A server as a balancer would choose it: not one that is known not to answer."""
        with self.lock:
            return dice.choice([each for each in self.servers if each not in self.paused] or self.servers)

    def count(self, what, took):
        with self.lock:
            self.counts[what] += 1

    def progress(self, n=1):
        marks = [len(client.acknowledged) for client in self.clients]

        def gone_on():
            problems = [client.problem for client in self.clients if client.problem]
            assert not problems, problems[:5]
            return all(len(client.acknowledged) >= mark + n for client, mark in zip(self.clients, marks))

        support.wait_until(gone_on, lambda: "these go on: %s; %s" % (
            [client.session for client, mark in zip(self.clients, marks) if len(client.acknowledged) < mark + n][:5], self.counts.most_common(8)), ENOUGH)

    # ---- faults ----

    def begin_again(self, n):
        server = self.crew.start(*self.flags, port=self.ports[n])
        with self.lock:
            self.servers[n] = server

    def kill_server(self):
        n = self.random.randrange(3)
        self.crew.kill(self.servers[n])
        self.begin_again(n)

    def update_server(self):
        n = self.random.randrange(3)
        self.crew.stop(self.servers[n])
        self.begin_again(n)

    def pause_server(self):
        server = self.random.choice(self.servers)
        with self.lock:
            self.paused.add(server)
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(LEASE * (0.5 + self.random.random()))
        server.process.send_signal(signal.SIGCONT)
        with self.lock:
            self.paused.clear()

    def kill_redis(self):
        self.redis.process.kill()
        self.redis.process.wait()
        time.sleep(self.random.choice([0, 1, 5, LEASE]))
        self.redis.start()

    def pause_redis(self):
        self.redis.process.send_signal(signal.SIGSTOP)
        time.sleep(self.random.choice([1, 5, 12]))
        self.redis.process.send_signal(signal.SIGCONT)

    def kill_both(self):
        self.redis.process.kill()
        n = self.random.randrange(3)
        self.crew.kill(self.servers[n])
        self.redis.process.wait()
        self.redis.start()
        self.begin_again(n)

    def told(self, name, begun):
        with self.lock:
            times, self.times = sorted(self.times), []
            counts, self.counts = self.counts, collections.Counter()
        print("%-14s %5.1f s  %5d answers  p50 %6.3f  p99 %6.3f  max %6.3f s  acknowledged %d  %s" % (
            name, time.monotonic() - begun, len(times), times[len(times) // 2], times[len(times) * 99 // 100], times[-1],
            sum(len(client.acknowledged) for client in self.clients), dict(counts.most_common(12))), flush=True)

    def run(self):
        begun = time.monotonic()
        self.progress(2)
        self.told("quiet", begun)
        faults = [self.kill_server, self.kill_redis, self.pause_server, self.pause_redis, self.kill_both, self.update_server]
        for n in range(ROUNDS):
            fault, begun = faults[n % len(faults)], time.monotonic()
            fault()
            self.progress()
            self.told(fault.__name__, begun)
        self.stopping, begun = True, time.monotonic()
        for client in self.clients:
            client.join(ENOUGH)
        assert not any(client.is_alive() for client in self.clients), "a client does not end"
        problems = [client.problem for client in self.clients if client.problem]
        assert not problems, problems[:5]
        self.told("the end", begun)


@pytest.mark.parametrize("durable", ["results", "cells"])
def test_nothing_acknowledged_is_lost(tmp_path, durable):
    seed = os.environ.get("WORKCELL_TEST_SEED") or str(random.SystemRandom().randrange(10000))
    print("\nWORKCELL_TEST_SEED=%s" % seed, flush=True)
    redis = spaces.Redis("--appendonly", "yes", "--appendfsync", "always")
    crew = crews.Crew(tmp_path, redis, lease=str(LEASE), executor="sandbox")
    try:
        Trial(crew, redis, seed, durable).run()
    finally:
        for server in crew.servers:
            server.process.send_signal(signal.SIGCONT)
        redis.process.send_signal(signal.SIGCONT)
        crew.close()
        redis.close()
