#!/usr/bin/env python3
"""clients_e2b.py [-n RUNS] [--pause SECONDS] [-- FLAGS]: E2B's own client against a `workcell serve --e2b` on the loopback: from Sandbox.create to the first result.

Two servers in turns: ours, and the floor, a process that has read the same requests and writes answers that are known beforehand.  The floor is
what the client itself takes, with its two round trips; the difference is ours.  Needs the package e2b-code-interpreter
(scripts/test-requirements.txt) and build/workcell.  FLAGS are given to `workcell serve`.
Without a pause after each sandbox the next ones wait for processors that are making the pool anew.  Prints lines of JSON, times in milliseconds.
"""
import argparse
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from e2b_code_interpreter import Sandbox

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKEN = "t0ken-of-the-benchmark-of-the-e2b-client"
MADE = json.dumps({"templateID": "code-interpreter-v1", "alias": "code-interpreter-v1", "sandboxID": "s0123456789abcdef", "clientID": "floor",
                   "envdVersion": "0.6.0", "envdAccessToken": "t" * 64, "trafficAccessToken": "t" * 64, "domain": None}).encode()
RAN = (b'{"type":"result","is_main_result":true,"text":"2"}\n{"type":"number_of_executions","execution_count":1}\n')


def answer(head):
    if re.match(rb"POST (/v\d)?/sandboxes ", head):
        status, body = b"201 Created", MADE
    elif head.startswith(b"POST /execute"):
        status, body = b"200 OK", RAN
    else:
        return b"HTTP/1.1 204 No Content\r\n\r\n"
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def serve_floor():
    """Answers on any number of connections, until it is killed."""
    listener, kept = socket.create_server(("127.0.0.1", 0)), {}
    print("listening on http://127.0.0.1:%d" % listener.getsockname()[1], file=sys.stderr, flush=True)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                connection = listener.accept()[0]
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ready.register(connection, selectors.EVENT_READ)
                kept[connection] = b""
                continue
            connection = key.fileobj
            data = connection.recv(65536)
            if not data:
                ready.unregister(connection)
                connection.close()
                del kept[connection]
                continue
            kept[connection] += data
            head, ends, body = kept[connection].partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            if ends and len(body) >= int(length[1] if length else 0):
                kept[connection] = b""
                connection.sendall(answer(head))


class Server:
    def __init__(self, argv):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=self.log, text=True)
        self.created, self.whole, url = [], [], None
        while not url:
            line = self.process.stderr.readline()
            assert line, "the server did not start"
            url = re.search(r"listening on (http://\S+)", line)
        self.options = {"api_key": TOKEN, "api_url": url.group(1), "sandbox_url": url.group(1)}

    def measure(self, runs, pause):
        for _ in range(runs):
            begun = time.perf_counter()
            sandbox = Sandbox.create(**self.options)
            made = time.perf_counter()
            assert sandbox.run_code("1+1").text == "2"
            self.whole.append((time.perf_counter() - begun) * 1e3)
            self.created.append((made - begun) * 1e3)
            sandbox.kill()
            time.sleep(pause)

    def close(self):
        self.process.terminate()
        self.process.wait()


def report(name, server):
    times = sorted(server.whole)
    print(json.dumps({"name": name, "runs": len(times), "min": round(times[0], 2), "median": round(statistics.median(times), 2),
                      "p95": round(times[int(len(times) * 0.95)], 2), "create": round(statistics.median(server.created), 2)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-n", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0, metavar="SECONDS", help="after each sandbox")
    parser.add_argument("--serve-floor", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    if args.serve_floor:
        serve_floor()
    with tempfile.NamedTemporaryFile("w+") as token:
        token.write(TOKEN)
        token.flush()
        floor = Server([sys.executable, os.path.abspath(__file__), "--serve-floor"])
        ours = Server([os.environ.get("WORKCELL_BIN", os.path.join(ROOT, "build", "workcell")), "serve", "--e2b", "--listen", "127.0.0.1:0",
                       "--auth-token-file", token.name, "--log-level", "error", *args.flags])
        try:
            for server in (floor, ours):
                server.measure(10, args.pause)
                server.created, server.whole = [], []
            for _ in range(0, args.n, 10):
                for server in (floor, ours):
                    server.measure(10, args.pause)
        finally:
            floor.close()
            ours.close()
    report("e2b_floor_ms", floor)
    report("e2b_create_to_result_ms", ours)


if __name__ == "__main__":
    main()
