#!/usr/bin/env python3
"""mcp_figures.py [--handles N] [--json]: figures of `workcell mcp` on pipes.

    call     run_code("1") in one session, median and 99th percentile (µs)
    handles  N sessions with ids, made by one run_code each: the time for all (s), a call in the first one afterwards (µs), and the memory of
             the server with all its processes (PSS), for each session (KiB)
    poll     tasks/get of a cell that runs, median and 99th percentile (µs); asked: less than 1 ms
"""
import argparse
import json
import os
import statistics
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.environ.get("WORKCELL_BIN", os.path.join(ROOT, "build", "workcell"))
META = "io.modelcontextprotocol/"
TASKS = {"extensions": {META + "tasks": {}}}


class Server:
    """Requests of revision 2026-07-28, one after the other."""

    def __init__(self, *flags):
        self.process = subprocess.Popen([BIN, "mcp", *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.count = 0

    def ask(self, method, capabilities=None, **params):
        self.count += 1
        meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": capabilities or {}}
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": self.count, "method": method, "params": {**params, "_meta": meta}}).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if answer.get("id") != self.count or "result" not in answer:
            raise RuntimeError(answer)
        return answer["result"]

    def run(self, code, capabilities=None, **arguments):
        return self.ask("tools/call", capabilities, name="run_code", arguments={"code": code, **arguments})

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def spawner_of(pid):
    """The parent of all kernels, which is no child of the server's."""
    while True:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            if b"workcell-spawner" in file.read():
                return pid
        with open("/proc/%d/stat" % pid) as file:
            pid = int(file.read().rsplit(") ", 1)[1].split()[1])


def below(*pids):
    found = list(pids)
    for each in found:
        for task in os.listdir("/proc/%d/task" % each):
            with open("/proc/%d/task/%s/children" % (each, task)) as file:
                found += map(int, file.read().split())
    return found


def memory_kib(*pids):
    total = 0
    for each in below(*pids):
        with open("/proc/%d/smaps_rollup" % each) as file:
            total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total


def timed(count, function):
    times = []
    for _ in range(count):
        began = time.perf_counter()
        function()
        times.append((time.perf_counter() - began) * 1e6)
    return {"median_us": round(statistics.median(times), 1), "p99_us": round(sorted(times)[int(count * 0.99)], 1)}


def measure(handles):
    server = Server("--max-sessions", str(handles + 2))
    found = {}
    session = server.run("x = 1")["structuredContent"]["session"]
    timed(50, lambda: server.run("1", session=session))
    found["call"] = timed(500, lambda: server.run("1", session=session))
    task = server.run("import time; time.sleep(30)", TASKS, wait_ms=1)["taskId"]
    found["poll"] = timed(1000, lambda: server.ask("tasks/get", TASKS, taskId=task))
    server.ask("tasks/cancel", TASKS, taskId=task)
    pids = server.process.pid, spawner_of(server.run("__import__('os').getpid()", session=session)["structuredContent"]["value"])
    before = memory_kib(*pids)
    began = time.perf_counter()
    ids = [server.run(str(i))["structuredContent"]["session"] for i in range(handles)]
    found["handles"] = {"count": len(set(ids)), "seconds": round(time.perf_counter() - began, 2),
                        **timed(200, lambda: server.run("1", session=ids[0]))}
    found["handles"]["each_kib"] = round((memory_kib(*pids) - before) / handles, 1)
    server.close()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--handles", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(args.handles)
    if args.json:
        print(json.dumps(found))
        return
    for name, row in found.items():
        print(name.ljust(8), "  ".join("%s %s" % pair for pair in row.items()))


if __name__ == "__main__":
    main()
