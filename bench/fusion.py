#!/usr/bin/env python3
"""fusion.py [--quick] [--peer FOLDER --peer-python PATH] BUILD: fresh confined programs, a second and core.

Three ways to run the same program in a fresh process, in turns, each with all its processes on one CPU; the client has another:

    workcell   `workcell serve --sandbox-fusion`, with --preload numpy for the second program; POST /run_code over keep-alive connections
    bwrap      bubblewrap with the same namespaces, and a plain python3 in it
    peer       SandboxFusion's own runner (run_python() of a checkout, without isolation, as its local configuration says); left out without --peer

Programs: `print(1 + 1)`, and a small one that uses numpy.  Prints runs a second and the ratios that are wanted.  The interpreter is the one
that runs this script; it needs numpy for the second program.
"""
import argparse
import http.client
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time

import served

PROGRAMS = {"1+1": "print(1 + 1)", "numpy": "import numpy\nprint(int(numpy.arange(1000).reshape(10, 100).sum(axis=0).max()))"}
OUTPUTS = {"1+1": "2\n", "numpy": "5490\n"}
WANTED = {("1+1", "bwrap"): 20, ("numpy", "bwrap"): 20, ("1+1", "peer"): 10, ("numpy", "peer"): 10}
PEER = """
import asyncio, json, sys, time
import structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
import os
import sandbox.runners.major as major
major.get_python_rt_env = lambda name: {"PATH": os.environ["PATH"]}  # it looks for an environment of conda
run_python = major.run_python
from sandbox.runners.types import CodeRunArgs
async def main(code, seconds, at_once):
    end, done = time.monotonic() + seconds, 0
    async def work():
        nonlocal done
        while time.monotonic() < end:
            found = await run_python(CodeRunArgs(code=code))
            assert found.run_result.return_code == 0, found
            done += 1
    begun = time.monotonic()
    await asyncio.gather(*(work() for _ in range(at_once)))
    print(json.dumps(done / (time.monotonic() - begun)))
asyncio.run(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
"""


class Server(served.Served):
    def measure(self, name, seconds, at_once):
        body = json.dumps({"code": PROGRAMS[name], "language": "python", "run_timeout": 10})
        headers = {"Authorization": "Bearer " + served.TOKEN, "Content-Type": "application/json"}
        counts, end = queue.Queue(), time.monotonic() + seconds

        def work():
            connection, done = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60), 0
            while time.monotonic() < end:
                connection.request("POST", "/run_code", body, headers)
                answer = json.loads(connection.getresponse().read())
                if answer.get("run_result", {}).get("stdout") != OUTPUTS[name]:
                    counts.put(answer)
                    return
                done += 1
            counts.put(done)

        begun = time.monotonic()
        threads = [threading.Thread(target=work) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [counts.get() for _ in threads]
        if any(isinstance(each, dict) for each in found):
            raise SystemExit("a program failed: %s" % next(each for each in found if isinstance(each, dict)))
        return sum(found) / (time.monotonic() - begun)


def measure_bwrap(cpu, name, seconds, at_once):
    argv = ["taskset", "-c", str(cpu), "bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev",
            "--tmpfs", "/tmp", sys.executable, "-c", PROGRAMS[name]]
    end, done, begun = time.monotonic() + seconds, 0, time.monotonic()
    running = []
    while time.monotonic() < end or running:
        while len(running) < at_once and time.monotonic() < end:
            running.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
        process = running.pop(0)
        if process.communicate()[0].decode() != OUTPUTS[name] or process.returncode:
            raise SystemExit("bwrap failed")
        done += 1
    return done / (time.monotonic() - begun)


def measure_peer(args, cpu, name, seconds, at_once):
    env = dict(os.environ, PYTHONPATH=args.peer, PATH=os.path.dirname(sys.executable) + ":" + os.environ["PATH"])
    done = subprocess.run(["taskset", "-c", str(cpu), args.peer_python, "-c", PEER, PROGRAMS[name], str(seconds), str(at_once)], env=env, cwd=args.peer,
                          stdout=subprocess.PIPE, check=True)
    return float(done.stdout.decode().strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peer", help="a checkout of SandboxFusion")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter that has its dependencies")
    parser.add_argument("build")
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise SystemExit("it needs two CPUs: one for what is measured, one for the client")
    os.sched_setaffinity(0, {cpus[1]})
    rounds, seconds = (2, 1.0) if args.quick else (5, 4.0)
    for name in PROGRAMS:
        server = Server(os.path.abspath(args.build), cpus[:1], "--sandbox-fusion", *(["--preload", "numpy"] if name == "numpy" else []))
        try:
            server.measure(name, 1.0, 4)  # warm
            found = {"workcell": [], "bwrap": []}
            if args.peer:
                found["peer"] = []
            for _ in range(rounds):
                found["workcell"].append(server.measure(name, seconds, 4))
                found["bwrap"].append(measure_bwrap(cpus[0], name, seconds, 2))
                if args.peer:
                    found["peer"].append(measure_peer(args, cpus[0], name, seconds, 2))
            middle = {side: statistics.median(values) for side, values in found.items()}
            for side, value in middle.items():
                line = "%-6s %-9s %8.1f a second" % (name, side, value)
                if side != "workcell":
                    ratio, wanted = middle["workcell"] / value, WANTED[name, side]
                    line += "   workcell %.1fx, wanted %dx: %s" % (ratio, wanted, "met" if ratio >= wanted else "missed")
                print(line, flush=True)
        finally:
            server.close()


if __name__ == "__main__":
    main()
