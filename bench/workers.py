#!/usr/bin/env python3
"""workers.py [--quick] BUILD: stateful cells a second of `workcell serve` with one worker and with as many as there are CPUs.

`POST /execute` of 1+1 by http_load (one thread of C) over keep-alive connections, each with a session of its own that it has opened itself.
There is a client with eight connections for each CPU, held on it, so that the client's share is the same on all sides.  Servers in turns:

    one      --workers 1, all its processes and its client on one CPU: what a worker and its kernels do with a core
    free     --workers 1 on all CPUs: the server's thread has one, its kernels have the others
    all      --workers N on all N CPUs
    held     the same with --hold-workers: each worker with its kernels on a CPU of its own
    apart    as many servers as CPUs, as `one`, each with its client on a CPU of its own: what the machine allows
    passed   as `all`, but the sessions were opened on other connections: most requests are passed on to another worker

For each: cells a second; CPU time of a cell in the server's threads, in the kernels with what starts them, and in the client; how many CPUs
that makes.  `all against one` says whether workers scale: cells a second of N cores over those of one, clients on the same cores both times, and `of apart` what part that is of servers that have nothing in common.
`by CPU time` is the same of the server and its kernels alone: N times what a cell costs with one worker over what it costs with N.
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
        super().__init__(build, cpus, "--workers", str(workers), "--max-runs", str(connections * len(cpus)), "--max-sessions", "1000",
                         *["--hold-workers"] * held)
        self.load, self.cpus, self.connections = os.path.join(build, "http_load"), cpus, connections
        self.rates, self.costs, self.spawners = [], [], set()
        opened = [] if own else [[self.ask("POST", "/v1/sessions")["session_id"] for _ in range(connections)] for _ in cpus]
        self.threads = [self.process.pid] if workers == 1 else [self.process.pid, *sorted(sizing_tree.children(self.process.pid))]
        authorization = "Authorization: Bearer " + served.TOKEN
        self.headers = [[authorization, "X-Session-ID: own"]] * len(cpus) if own else [
            ["%s\r\nX-Session-ID: %s" % (authorization, id) for id in each] for each in opened]

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

    def used(self):
        return cpu_seconds(self.threads), cpu_seconds(sizing_tree.below(*self.spawners))

    def start(self, seconds):
        clients = [subprocess.Popen(["taskset", "-c", str(cpu), self.load, "-w", str(self.port), str(self.connections), str(seconds),
                                     json.dumps({"code": "1+1"}), *headers], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                   for cpu, headers in zip(self.cpus, self.headers)]
        for each in clients:
            if each.stdout.readline() != b"ready\n":
                raise SystemExit("http_load failed")
        return clients

    def measure(self, seconds):
        clients = self.start(seconds)
        children, before = resource.getrusage(resource.RUSAGE_CHILDREN), self.used()
        for each in clients:
            each.stdin.close()
        found = [json.loads(each.stdout.read()) for each in clients]
        for each in clients:
            each.wait()
        after, now = self.used(), resource.getrusage(resource.RUSAGE_CHILDREN)
        self.rates.append(sum(each["per_s"] for each in found))
        took = [after[0] - before[0], after[1] - before[1], now.ru_utime + now.ru_stime - children.ru_utime - children.ru_stime]
        self.costs.append([each / sum(one["n"] for one in found) * 1e6 for each in took])


def measure_apart(servers, seconds):
    """Cells a second of all of them together."""
    clients = [client for server in servers for client in server.start(seconds)]
    for each in clients:
        each.stdin.close()
    found = sum(json.loads(each.stdout.read())["per_s"] for each in clients)
    for each in clients:
        each.wait()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("build")
    args = parser.parse_args()
    build, cpus = os.path.abspath(args.build), sorted(os.sched_getaffinity(0))
    rounds, seconds = (2, 2) if args.quick else (5, 5)
    connections, n = 8, len(cpus)
    sides = {"one": Server(build, 1, cpus[:1], connections), "free": Server(build, 1, cpus, connections), "all": Server(build, n, cpus, connections),
             "held": Server(build, n, cpus, connections, held=True), "passed": Server(build, n, cpus, connections, own=False)}
    apart, rates = [sides["one"], *(Server(build, 1, [cpu], connections) for cpu in cpus[1:])], []
    try:
        for side in {*sides.values(), *apart}:
            side.warm()
        for _ in range(rounds):
            for side in sides.values():
                side.measure(seconds)
            rates.append(measure_apart(apart, seconds))
    finally:
        for side in {*sides.values(), *apart}:
            side.close()
    rate = {name: statistics.median(side.rates) for name, side in sides.items()}
    cost = {name: [statistics.median(each) for each in zip(*side.costs)] for name, side in sides.items()}
    for name in sides:
        server, kernels, client = cost[name]
        print("%-6s %7.0f cells a second; CPU of a cell: server %.1f us, kernels %.1f us, client %.1f us; %.2f CPUs, of them the client %.2f" % (
            name, rate[name], server, kernels, client, rate[name] * sum(cost[name]) / 1e6, rate[name] * client / 1e6))
    machine = statistics.median(rates)
    print("apart  %7.0f cells a second, %.2fx one" % (machine, machine / rate["one"]))
    for name in ("all", "held"):
        ratio = rate[name] / rate["one"]
        print("%s against one: %.2fx, wanted %.1fx: %s; by CPU time %.2fx; %.2f of apart" % (
            name, ratio, WANTED, "met" if ratio >= WANTED else "missed", n * sum(cost["one"][:2]) / sum(cost[name][:2]), rate[name] / machine))
    print("all against free: %.2fx; passed on against all: %.2fx" % (rate["all"] / rate["free"], rate["passed"] / rate["all"]))


if __name__ == "__main__":
    main()
