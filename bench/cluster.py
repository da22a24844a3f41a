#!/usr/bin/env python3
"""cluster.py [--sessions N] [--think SEC] [--settle SEC] [--beside N] [--rounds N] [wake|update|cells]...: several servers with sessions in one Redis, for docs/benchmark.md.

wake    a session with 100 MB of random bytes sleeps at one server and is woken by a request at another; the same at the server that saved it; and the
        floor: the bytes read from Redis by a client that does nothing with them; --beside: while so many other sessions run cells
update  three servers behind HAProxy, nginx and Traefik (if it is there) are replaced one after the other while each of N sessions runs a cell, and another one --think
        seconds after its answer, on average, with --settle seconds (5) between a new server and the end of the next one: what was refused, p50, p99
cells   cells a second with one server and with three by turns, each held to a fixed share of a CPU by cgroups (needs root): clients that reach the
        server that has their session, by themselves and by a proxy with the rules of packaging/haproxy.cfg, and by one that takes any

Needs the set-up of the tests (scripts/setup.sh test).  Absolute times depend on what else the machine does: compare rows of one run.
"""
import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
import crews  # noqa: E402
import serving  # noqa: E402
import spaces  # noqa: E402
import support  # noqa: E402

SHARE = 0.15   # of a CPU, for each server
CLIENTS = 24   # of each: enough that some are always waiting, because a server that has used its share sleeps up to 17 ms
SECONDS = 4


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def timed(call):
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def show(name, values, unit="ms", scale=1000):
    print("%-44s n %-5d p50 %8.1f  p99 %8.1f  max %8.1f %s" % (name, len(values), statistics.median(values) * scale, percentile(values, 0.99) * scale,
                                                               max(values) * scale, unit), flush=True)


def execute(server, code, session):
    answer = server.ask("POST", "/execute", {"code": code}, session=session)
    assert answer.status == 200 and answer.json["error"] is None, answer
    return answer.json["value"]


def read_all(redis, prefix):
    for key in redis.ask("KEYS", prefix + ":saved:*:p-*"):
        for field in redis.ask("HKEYS", key):
            redis.ask("HGET", key, field)


class Clients:
    """N sessions at a server or a proxy, each with a cell, and another one `think` seconds after its answer, on average."""

    def __init__(self, at, sessions, think):
        self.times, self.failures, self.lock, self.ends = [], [], threading.Lock(), threading.Event()
        self.at, self.think, self.phase = at, think, ""
        self.threads = [threading.Thread(target=self.run, args=(at.session(), random.Random(n)), daemon=True) for n in range(sessions)]
        for thread in self.threads:
            thread.start()

    def run(self, session, dice):
        self.ends.wait(dice.random() * self.think)
        while not self.ends.is_set():
            begun, phase = time.perf_counter(), self.phase
            try:
                answer = self.at.ask("POST", "/execute", {"code": "n = globals().get('n', 0) + 1; n"}, session=session)
                problem = None if answer.status == 200 and answer.json["error"] is None else "%d %s" % (answer.status, answer.body[:100])
            except (OSError, http.client.HTTPException) as error:
                problem = repr(error)
            with self.lock:
                self.times.append((phase, time.perf_counter() - begun))
                if problem:
                    self.failures.append(problem)
            self.ends.wait(self.think * (0.5 + dice.random()))

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join(60)


def wake(crew, redis, options):
    first, second = crew.start(), crew.start()
    session = first.session()
    execute(first, "import os; x = os.urandom(100_000_000); len(x)", session)
    beside = [Clients(server, options.beside // 2, options.think) for server in (first, second)]
    rows = {"wake at another server, 100 MB": [], "wake at the server that saved it": [], "floor: read from Redis": [], "save (hibernate)": []}
    at = first
    for n in range(2 * options.rounds):
        rows["save (hibernate)"].append(timed(lambda: at.ask("POST", "/v1/sessions/%s/hibernate" % session)))
        rows["floor: read from Redis"].append(timed(lambda: read_all(redis, crew.path.name)))
        other = second if at is first else first
        to = other if n % 2 == 0 else at
        name = "wake at another server, 100 MB" if to is other else "wake at the server that saved it"
        rows[name].append(timed(lambda: execute(to, "len(x)", session)))
        at = to
    for each in beside:
        each.stop()
    print("beside %d sessions with %g s between cells: %d cells, %d failed" % (
        options.beside, options.think, sum(len(each.times) for each in beside), sum(len(each.failures) for each in beside)))
    for name, values in rows.items():
        show(name, values)


def update(crew, redis, options):
    flags = ["--durable", "results", "--drain-delay", "2", "--max-sessions", "1000", "--max-connections", "4096", "--max-queue", "1000"]
    servers = [crew.start(*flags) for _ in range(3)]
    ports = [server.port for server in servers]
    for kind in (crews.HAProxy, crews.Nginx, *([crews.Traefik] if crews.Traefik.program() else [])):
        proxy = kind(crew.path / (kind.__name__ + ".cfg"), ports)
        clients = Clients(proxy, options.sessions, options.think)
        replace_all(crew, clients, flags, options.settle)
        print("%s, %d sessions, %g s between cells; the update took %.1f s" % (kind.__name__, options.sessions, options.think, clients.took))
        for name in ("before", "during", "after"):
            show("%s a rolling update" % name, [value for phase, value in clients.times if phase == name] or [0])
        print("requests that failed: %d of %d %s" % (len(clients.failures), len(clients.times), collections.Counter(clients.failures).most_common(4)), flush=True)
        proxy.close()


def replace_all(crew, clients, flags, settle):
    clients.phase = "before"
    time.sleep(clients.think + SECONDS)
    clients.phase, begun = "during", time.perf_counter()
    for server in list(crew.servers):
        crew.stop(server)
        crew.start(*flags, port=server.port)
        time.sleep(settle)  # as engines do: minReadySeconds of the chart, update_config of the Swarm stack
    clients.took = time.perf_counter() - begun
    clients.phase = "after"
    time.sleep(clients.think + SECONDS)
    clients.stop()


class Share:
    """A cgroup with a share of a CPU; v1 or v2."""

    def __init__(self, name):
        v1 = pathlib.Path("/sys/fs/cgroup/cpu")
        root = v1 if (v1 / "cpu.cfs_quota_us").exists() or (v1 / "tasks").exists() else pathlib.Path("/sys/fs/cgroup")
        self.path = root / ("workcell-bench-%d-%s" % (os.getpid(), name))
        self.path.mkdir()
        if root == v1:
            (self.path / "cpu.cfs_period_us").write_text("20000")
            (self.path / "cpu.cfs_quota_us").write_text(str(int(20000 * SHARE)))
        else:
            (self.path / "cpu.max").write_text("%d 20000" % int(20000 * SHARE))

    def take(self, server):
        table = support.processes()
        for pid in [server.pid] + [each.pid for each in support.descendants(server.pid, table)]:
            (self.path / "cgroup.procs").write_text(str(pid))

    def close(self):
        support.wait_until(self.is_removed, "the group is empty")

    def is_removed(self):
        try:
            self.path.rmdir()
        except OSError:
            return False
        return True


def rate(parts):
    """Cells a second of clients in C; parts: [(port, ids of sessions)], all at once."""
    programs = []
    for port, sessions in parts:
        headers = ["Authorization: Bearer %s\r\nX-Session-ID: %s" % (serving.TOKEN, session) for session in sessions]
        programs.append(subprocess.Popen([os.path.join(os.path.dirname(support.BIN), "http_load"), str(port), str(len(sessions)), str(SECONDS),
                                          json.dumps({"code": "sum(range(1000))"}), *headers], stdout=subprocess.PIPE))
    found = [json.loads(program.communicate()[0])["per_s"] for program in programs]
    assert not any(program.returncode for program in programs)
    return sum(found)


def cells(crew, redis, options):
    servers = [crew.start() for _ in range(3)]
    shares = [Share(str(n)) for n in range(3)]
    ports = [server.port for server in servers]
    proxies = {"": crews.HAProxy(crew.path / "any.cfg", ports), "keeps": crews.HAProxy(crew.path / "keeps.cfg", ports, keeps=True)}
    alone = crews.HAProxy(crew.path / "one.cfg", ports[:1])
    try:
        # Opened by way of the proxy that learns from the answers where they are.
        sessions = [proxies["keeps"].session() for _ in range(CLIENTS * len(servers))]
        owned = [[each["session_id"] for each in server.ask("GET", "/v1/sessions").json["sessions"]] for server in servers]
        assert sorted(sum(owned, [])) == sorted(sessions) and all(owned), owned
        for share, server in zip(shares, servers):
            share.take(server)
        rows = {
            "directly, its owner": (lambda: rate([(ports[0], owned[0])]), lambda: rate(list(zip(ports, owned)))),
            "a proxy that keeps sessions": (lambda: rate([(alone.port, owned[0])]), lambda: rate([(proxies["keeps"].port, sessions)])),
            "a proxy that takes any server": (lambda: rate([(alone.port, owned[0])]), lambda: rate([(proxies[""].port, sessions)])),
        }
        ratios = {name: [] for name in rows}
        for _ in range(options.rounds):
            for name, (one, three) in rows.items():
                found = one(), three()
                ratios[name].append(found[1] / found[0])
                print("cells a second, %g CPU each, %s: one server %.0f, three %.0f: %.2f times" % (SHARE, name, *found, ratios[name][-1]), flush=True)
        for name, values in ratios.items():
            print("three servers, clients reach %s: median %.2f times one (%.2f to %.2f)" % (name, statistics.median(values), min(values), max(values)))
    finally:
        for proxy in (*proxies.values(), alone):
            proxy.close()
        for server in servers:
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(60)
            server.stderr.close()
        crew.servers.clear()
        for share in shares:
            share.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--think", type=float, default=4)
    parser.add_argument("--settle", type=float, default=5)
    parser.add_argument("--beside", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("what", nargs="*", default=["wake", "update", "cells"])
    options = parser.parse_args()
    for name in options.what:
        redis = spaces.Redis("--appendonly", "yes", "--rdbcompression", "no") if name == "update" else spaces.Redis()
        with tempfile.TemporaryDirectory(prefix="workcell-cluster-") as folder:
            crew = crews.Crew(pathlib.Path(folder), redis, lease="15", executor="sandbox" if name != "cells" else "subprocess")
            try:
                {"wake": wake, "update": update, "cells": cells}[name](crew, redis, options)
            finally:
                crew.close()
                redis.close()


if __name__ == "__main__":
    main()
