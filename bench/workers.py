#!/usr/bin/env python3
"""workers.py [--quick] BUILD: stateful cells a second of `workcell serve` with one worker and with as many as there are CPUs.

`POST /execute` of 1+1 over keep-alive connections, each with a session of its own, by http_load (one thread of C).  Three servers in turns:

    one      --workers 1, all its processes on one CPU: what a worker and its kernels do with a core
    free     --workers 1 on all CPUs: the server's thread has one, its kernels have the others
    all      --workers N on all N CPUs

The client shares the CPUs with `free` and `all`: what it takes is printed, as CPUs.  `all` against `one` says whether workers scale, `all` against
`free` whether they are worth it on this machine.
"""
import argparse
import http.client
import json
import os
import resource
import statistics
import subprocess

import served

WANTED = 1.8


class Server(served.Served):
    def __init__(self, build, workers, cpus, connections):
        super().__init__(build, cpus, "--workers", str(workers), "--max-runs", str(connections))
        self.headers = ["Authorization: Bearer %s\r\nX-Session-ID: %s" % (served.TOKEN, self.open()) for _ in range(connections)]
        self.rates, self.client = [], []

    def open(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/sessions", "{}", {"Authorization": "Bearer " + served.TOKEN, "Content-Type": "application/json"})
        found = json.loads(connection.getresponse().read())["session_id"]
        connection.close()
        return found

    def measure(self, build, seconds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([os.path.join(build, "http_load"), str(self.port), str(len(self.headers)), str(seconds), json.dumps({"code": "1+1"}),
                               *self.headers], stdout=subprocess.PIPE, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = json.loads(done.stdout)
        self.rates.append(found["per_s"])
        self.client.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("build")
    args = parser.parse_args()
    build, cpus = os.path.abspath(args.build), sorted(os.sched_getaffinity(0))
    rounds, seconds = (2, 1) if args.quick else (5, 5)
    connections = 8 * len(cpus)
    sides = {"one": Server(build, 1, cpus[:1], connections), "free": Server(build, 1, cpus, connections),
             "all": Server(build, len(cpus), cpus, connections)}
    try:
        for side in sides.values():
            side.measure(build, 1)  # warm
            side.rates.clear()
        for _ in range(rounds):
            for side in sides.values():
                side.measure(build, seconds)
    finally:
        for side in sides.values():
            side.close()
    middle = {name: statistics.median(side.rates) for name, side in sides.items()}
    for name, side in sides.items():
        print("%-5s %9.0f cells a second, client %.2f CPUs" % (name, middle[name], statistics.median(side.client)))
    ratio = middle["all"] / middle["one"]
    print("all against one: %.2fx, wanted %.1fx: %s" % (ratio, WANTED, "met" if ratio >= WANTED else "missed"))
    print("all against free: %.2fx" % (middle["all"] / middle["free"]))


if __name__ == "__main__":
    main()
