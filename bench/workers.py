#!/usr/bin/env python3
"""workers.py [--quick] BUILD: stateful cells a second of `workcell serve` with one worker and with as many as there are CPUs.

`POST /execute` of 1+1 by http_load (one thread of C) over keep-alive connections, each with a session of its own that it has opened itself.
Servers in turns:

    one      --workers 1, all its processes on one CPU: what a worker and its kernels do with a core
    free     --workers 1 on all CPUs: the server's thread has one, its kernels have the others
    all      --workers N on all N CPUs
    held     the same with --hold-workers: each worker with its kernels on a CPU of its own
    passed   as `all`, but the sessions were opened on other connections: most requests are passed on to another worker

For each: cells a second; CPU time of a cell in the server's threads, in the kernels with what starts them, and in the client; how many CPUs
that makes.  The client shares the CPUs with all sides but `one`, where another CPU is free for it.  `all against one` says whether workers scale;
`without the client` is the same of the CPU time that is left for the server: all CPUs but what the client takes.
"""
import argparse
import http.client
import json
import os
import resource
import statistics
import subprocess

import served
import sizing_tree

WANTED = 1.8
TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids):
    found = 0
    for pid in pids:
        try:
            with open("/proc/%d/stat" % pid) as file:
                found += sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))
        except OSError:
            pass
    return found / TICK


class Server(served.Served):
    def __init__(self, build, workers, cpus, connections, own=True, held=False):
        super().__init__(build, cpus, "--workers", str(workers), "--max-runs", str(connections), "--max-sessions", "1000",
                         *["--hold-workers"] * held)
        self.load, self.connections = os.path.join(build, "http_load"), connections
        self.rates, self.costs, self.spawners = [], [], set()
        opened = [] if own else [self.ask("POST", "/v1/sessions")["session_id"] for _ in range(connections)]
        self.threads = [self.process.pid] if workers == 1 else [self.process.pid, *sorted(sizing_tree.children(self.process.pid))]
        authorization = "Authorization: Bearer " + served.TOKEN
        self.headers = [authorization, "X-Session-ID: own"] if own else ["%s\r\nX-Session-ID: %s" % (authorization, id) for id in opened]

    def ask(self, method, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, "{}" if method == "POST" else None,
                           {"Authorization": "Bearer " + served.TOKEN, "Content-Type": "application/json"})
        found = json.loads(connection.getresponse().read())
        connection.close()
        return found

    def warm(self):
        self.measure(1)
        self.rates.clear()
        self.costs.clear()
        for session in self.ask("GET", "/v1/sessions")["sessions"]:
            self.spawners.add(sizing_tree.spawner_of(self.ask("GET", "/v1/sessions/" + session["session_id"])["pid"]))

    def measure(self, seconds):
        def used():
            return cpu_seconds(self.threads), cpu_seconds(sizing_tree.below(*self.spawners))

        client, before = resource.getrusage(resource.RUSAGE_CHILDREN), used()
        done = subprocess.run([self.load, str(self.port), str(self.connections), str(seconds), json.dumps({"code": "1+1"}), *self.headers],
                              stdout=subprocess.PIPE, check=True)
        after, now = used(), resource.getrusage(resource.RUSAGE_CHILDREN)
        found = json.loads(done.stdout)
        self.rates.append(found["per_s"])
        took = [after[0] - before[0], after[1] - before[1], now.ru_utime + now.ru_stime - client.ru_utime - client.ru_stime]
        self.costs.append([each / found["n"] * 1e6 for each in took])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("build")
    args = parser.parse_args()
    build, cpus = os.path.abspath(args.build), sorted(os.sched_getaffinity(0))
    rounds, seconds = (2, 2) if args.quick else (5, 5)
    connections, n = 8 * len(cpus), len(cpus)
    sides = {"one": Server(build, 1, cpus[:1], connections), "free": Server(build, 1, cpus, connections), "all": Server(build, n, cpus, connections),
             "held": Server(build, n, cpus, connections, held=True), "passed": Server(build, n, cpus, connections, own=False)}
    try:
        for side in sides.values():
            side.warm()
        for _ in range(rounds):
            for side in sides.values():
                side.measure(seconds)
    finally:
        for side in sides.values():
            side.close()
    rate = {name: statistics.median(side.rates) for name, side in sides.items()}
    cost = {name: [statistics.median(each) for each in zip(*side.costs)] for name, side in sides.items()}
    for name in sides:
        server, kernels, client = cost[name]
        print("%-6s %7.0f cells a second; CPU of a cell: server %.1f us, kernels %.1f us, client %.1f us; %.2f CPUs, of them the client %.2f" % (
            name, rate[name], server, kernels, client, rate[name] * sum(cost[name]) / 1e6, rate[name] * client / 1e6))
    best = max("all", "held", key=rate.get)
    left = n - rate[best] * cost[best][2] / 1e6
    for name in ("all", "held"):
        ratio = rate[name] / rate["one"]
        print("%s against one: %.2fx, wanted %.1fx: %s" % (name, ratio, WANTED, "met" if ratio >= WANTED else "missed"))
    print("%s without the client: %.2fx of one, %.2f CPUs are left for it" % (best, rate[best] / left * n / rate["one"], left))
    print("all against free: %.2fx; passed on against all: %.2fx" % (rate["all"] / rate["free"], rate["passed"] / rate["all"]))


if __name__ == "__main__":
    main()
