#!/usr/bin/env python3
"""sizing.py [--workers W] [WORKCELL] [N] [EXECUTOR...]: what sessions of a server cost, for the table of docs/operate.md.

Opens N idle sessions on a server of its own and prints memory (proportional, so that shared pages count once), descriptors and processes of
each, how long the first and the last hundred took to open and a cell takes in each of them, p99 of a cell in ten of them with ten sessions
open and with all (and, where the machine watches its memory with DAMON, of the cells during which that thread did not run), the rate of cells over HTTP, and how long the server takes to end all. As root, because the memory of sandboxes is not readable for others.
A server process needs four descriptors for a sandbox: where the limit on them cannot be raised, W workers have W times as many sessions.
"""
import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from sizing_tree import below, children, spawner_of

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("program", nargs="?", default="build/workcell")
parser.add_argument("n", nargs="?", type=int, default=100)
parser.add_argument("executors", nargs="*", default=["subprocess", "sandbox"])
ARGS = parser.parse_args()
PROGRAM, N, WORKERS = ARGS.program, ARGS.n, ARGS.workers
SECONDS = 3


def pss(pid):
    try:
        with open("/proc/%d/smaps_rollup" % pid) as file:
            return int(re.search(r"^Pss: +(\d+)", file.read(), re.M).group(1)) / 1024
    except (OSError, AttributeError):
        return 0


def descriptors(pid):
    try:
        return len(os.listdir("/proc/%d/fd" % pid))
    except OSError:
        return 0


class Client:
    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, method, path, body=None, session=None):
        headers = {"X-Session-ID": session} if session else {}
        self.connection.request(method, path, body=json.dumps(body) if body else None, headers=headers)
        answer = self.connection.getresponse()
        text = answer.read()
        assert answer.status < 300, text
        return json.loads(text)


def rate(port, connections):
    counts, end = [0] * connections, time.monotonic() + SECONDS

    def work(i):
        client = Client(port)
        session = client.ask("POST", "/v1/sessions", {})["session_id"]
        while time.monotonic() < end:
            client.ask("POST", "/execute", {"code": "1"}, session=session)
            counts[i] += 1
    threads = [threading.Thread(target=work, args=(i,)) for i in range(connections)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(counts) / SECONDS


def watchers():
    """The threads of Linux that look which memory is used. What 5,000 kernels share with their zygote they look up in all of them."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/comm" % pid) as file:
                if file.read().startswith("kdamond"):
                    found.append("/proc/%s/schedstat" % pid)
        except OSError:
            pass
    return found


def ran(paths):
    found = 0
    for path in paths:
        with open(path) as file:
            found += int(file.read().split()[0])
    return found


def p99(sessions):
    """Of 2,000 cells, in ten sessions that took turns, which ran before; of those without the watchers; the part of a CPU that these took."""
    times, paths = [], watchers()
    first, started = ran(paths), time.perf_counter()
    for i in range(2000):
        before, begun = ran(paths), time.perf_counter()
        client, session = sessions[i % 10]
        client.ask("POST", "/execute", {"code": "6 * 7"}, session=session)
        times.append((time.perf_counter() - begun, ran(paths) == before))
    took = (ran(paths) - first) / 1e9 / (time.perf_counter() - started)
    both = [sorted(each for each, alone in times if alone or not wanted) for wanted in (False, True)]
    return [each[len(each) * 99 // 100] * 1e3 for each in both] + [took]


def measure(executor):
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([PROGRAM, "serve", "--executor", executor, "--auth-disabled", "--listen", "127.0.0.1:0", "--log-level",
                                   "warning", "--pool", "0", "--workers", str(WORKERS), "--max-sessions", str(max(10000, N + 100))], stderr=log)
        try:
            while True:
                log.seek(0)
                found = re.search(r"listening on http://127.0.0.1:(\d+)", log.read())
                if found:
                    break
                assert server.poll() is None
                time.sleep(0.05)
            port = int(found.group(1))
            clients = [Client(port) for _ in range(WORKERS)]  # one after the other, so each is another worker's
            servers = [server.pid, *children(server.pid)] if WORKERS > 1 else [server.pid]
            spawners = set()
            for client in clients:
                first = client.ask("POST", "/v1/sessions", {})["session_id"]
                spawners.add(spawner_of(client.ask("GET", "/v1/sessions/" + first)["pid"]))
            assert len(spawners) == WORKERS
            time.sleep(2)
            before = [(pid, pss(pid), descriptors(pid)) for pid in below(server.pid, *spawners)]
            sessions, times = [], [time.monotonic()]
            few = None
            for i in range(N):
                if i == 10:
                    p99(sessions)
                    few, begun = p99(sessions), time.monotonic()
                    times = [each + begun - times[-1] for each in times]
                client = clients[i % WORKERS]
                sessions.append((client, client.ask("POST", "/v1/sessions", {})["session_id"]))
                times.append(time.monotonic())
            opened = (times[-1] - times[0]) / N
            time.sleep(2)
            after = [(pid, pss(pid), descriptors(pid)) for pid in below(server.pid, *spawners)]
            own = [sum(fds for pid, _, fds in each if pid in servers) for each in (before, after)]
            print("%-10s  open %.1f ms  memory %.1f MB  processes %.1f  descriptors of the server %.1f  of all %.1f" % (
                executor, opened * 1e3, (sum(m for _, m, _ in after) - sum(m for _, m, _ in before)) / N, (len(after) - len(before)) / N,
                (own[1] - own[0]) / N, (sum(f for _, _, f in after) - sum(f for _, _, f in before)) / N))
            print("%-10s  server %.0f MB with %d sessions; all before %.0f MB" % (
                executor, sum(m for pid, m, _ in after if pid in servers), N + WORKERS, sum(m for _, m, _ in before)))
            hundred = min(N, 100)
            begun = time.monotonic()
            for client, session in sessions:
                assert client.ask("POST", "/execute", {"code": "6 * 7"}, session=session)["value"] == 42
            print("%-10s  open: the first %d %.1f ms, the last %.1f ms; a cell in each of them, one after the other: %.1f ms" % (
                executor, hundred, (times[hundred] - times[0]) / hundred * 1e3, (times[-1] - times[-1 - hundred]) / hundred * 1e3,
                (time.monotonic() - begun) / N * 1e3))
            if few:
                many = p99(sessions)
                print("%-10s  p99 of a cell: %.2f ms with 10 sessions, %.2f ms with %d: %.1f times" % (executor, few[0], many[0], N + WORKERS, many[0] / few[0]))
                if watchers():
                    print("%-10s  without cells that DAMON delayed, which took %.0f and %.0f %% of a CPU: %.2f and %.2f ms: %.1f times" % (
                        executor, few[2] * 100, many[2] * 100, few[1], many[1], many[1] / few[1]))
            print("%-10s  cells over HTTP: %.0f/s on 1 connection, %.0f/s on 8" % (executor, rate(port, 1), rate(port, 8)))
        finally:
            begun = time.monotonic()
            server.terminate()
            server.wait(60)
            print("%-10s  all ended in %.1f s" % (executor, time.monotonic() - begun))


signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # the server is ended all the same
for name in ARGS.executors:
    measure(name)
