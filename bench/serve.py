#!/usr/bin/env python3
"""serve.py [--quick] BUILD: `workcell serve` beside a FastAPI app and jupyter-kernel-gateway, in turns, with the same client.

BUILD is the build folder (workcell, http_load).  The peers are run by this interpreter (`make bench`: that of build/bench-venv,
made from scripts/bench-requirements.txt) and left out, which is said, where it does not have them.  `POST /execute` of 1+1 over keep-alive connections, each with a
session of its own; then 200 runs with Server-Sent Events at once.  Prints a table and the ratios that are wanted.
"""
import argparse
import http.client
import importlib.util
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BODY = json.dumps({"code": "1+1"})
NOTEBOOK = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": {"name": "python3", "display_name": "p", "language": "python"}},
            "cells": [{"id": "a", "cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None,
                       "source": "# POST /execute\nimport json\nprint(json.dumps({'value': eval(json.loads(REQUEST)['body']['code'])}))"}]}


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_for(port, process):
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("a server did not come up")


def ask(port, method, path, body=None, headers=()):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body, dict(headers))
    answer = connection.getresponse().read()
    connection.close()
    return json.loads(answer)


class Side:
    def __init__(self, name, argv, port, env=None):
        self.name, self.port, self.runs, self.headers = name, port, [], []
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(port, self.process)

    def warm(self):
        """A kernel that is still coming up is not what is measured."""
        headers = dict(line.split(": ", 1) for line in (self.headers or [""])[0].split("\r\n") if line)
        for _ in range(20):
            answer = ask(self.port, "POST", "/execute", BODY, dict(headers, **{"Content-Type": "application/json"}))
            if answer["value"] != 2:
                raise SystemExit("%s answered %r" % (self.name, answer))

    def load(self, build, connections, seconds):
        done = subprocess.run([os.path.join(build, "http_load"), str(self.port), str(connections), str(seconds), BODY, *self.headers],
                              stdout=subprocess.PIPE, check=True)
        self.runs.append(json.loads(done.stdout))

    def close(self):
        self.process.terminate()
        self.process.wait()


def start_workcell(build, folder, connections):
    token, port = secrets.token_hex(16), free_port()
    side = Side("workcell", [os.path.join(build, "workcell"), "serve", "--listen", "127.0.0.1:%d" % port, "--log", "off", "--max-runs", "1000", "--workers", "1", "--python", sys.executable,
                             "--storage", os.path.join(folder, "storage")], port, dict(os.environ, WORKCELL_SERVE_TOKEN=token))
    auth = "Authorization: Bearer " + token
    side.auth = {"Authorization": "Bearer " + token}
    for _ in range(connections):
        session = ask(port, "POST", "/sessions", headers=side.auth)["session_id"]
        side.headers.append("%s\r\nX-Session-ID: %s" % (auth, session))
    return side


def start_fastapi(connections):
    port = free_port()
    side = Side("fastapi", [sys.executable, os.path.join(HERE, "peer_fastapi.py"), str(port)], port)
    side.headers = ["X-Session-ID: s%d" % i for i in range(connections)]
    return side


def start_gateway(folder):
    port, notebook = free_port(), os.path.join(folder, "execute.ipynb")
    with open(notebook, "w", encoding="utf-8") as file:
        json.dump(NOTEBOOK, file)
    return Side("kernel-gateway", [sys.executable, "-m", "kernel_gateway", "--KernelGatewayApp.api=kernel_gateway.notebook_http",
                                   "--KernelGatewayApp.seed_uri=" + notebook, "--KernelGatewayApp.port=%d" % port], port)


def streams(side, count):
    """So many runs with their events at once: seconds from the first request to the last result."""
    sessions = [ask(side.port, "POST", "/v1/sessions", headers=side.auth)["session_id"] for _ in range(count)]
    found = []

    def read(session):
        connection = http.client.HTTPConnection("127.0.0.1", side.port, timeout=120)
        connection.request("POST", "/v1/sessions/%s/runs" % session, json.dumps({"code": "for i in range(10): print(i, flush=True)\n'done'"}),
                           dict(side.auth, Accept="text/event-stream"))
        text = connection.getresponse().read().decode()
        connection.close()
        found.append(len(re.findall("^event: ", text, re.M)) > 1 and '"value":"done"' in text)

    threads = [threading.Thread(target=read, args=(session,)) for session in sessions]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    if len(found) != count or not all(found):
        raise SystemExit("a stream was not whole")
    return took


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("build")
    args = parser.parse_args()
    seconds, rounds, connections = (1, 3, 8) if args.quick else (3, 5, 8)
    with tempfile.TemporaryDirectory() as folder:
        sides = [start_workcell(args.build, folder, connections)]
        try:
            for start, needs in ((lambda: start_fastapi(connections), ("fastapi", "uvicorn")),
                                 (lambda: start_gateway(folder), ("kernel_gateway", "ipykernel"))):
                absent = [name for name in needs if not importlib.util.find_spec(name)]
                if absent:
                    print("left out: %s has no %s" % (sys.executable, ", ".join(absent)))
                else:
                    sides.append(start())
            for side in sides:
                side.warm()
            for _ in range(rounds):
                for side in sides:
                    side.load(args.build, connections, seconds)
            print("POST /execute of 1+1, %d keep-alive connections, medians of %d turns" % (connections, rounds))
            rate = {side.name: median([run["per_s"] for run in side.runs]) for side in sides}
            p99 = {side.name: median([run["p99_ms"] for run in side.runs]) for side in sides}
            for side in sides:
                print("  %-15s %9.0f requests/s   p50 %8.3f ms   p99 %8.3f ms" % (
                    side.name, rate[side.name], median([run["p50_ms"] for run in side.runs]), p99[side.name]))
            for name, wanted in (("fastapi", 5), ("kernel-gateway", 30)):
                if name in rate:
                    print("  %-15s %9.1f times its requests (wanted: %d), p99 %s" % (
                        name, rate["workcell"] / rate[name], wanted, "no worse" if p99["workcell"] <= p99[name] else "worse"))
            print("200 runs with events at once: %.2f s" % streams(sides[0], 200))
        finally:
            for side in sides:
                side.close()


if __name__ == "__main__":
    main()
