#!/usr/bin/env python3
"""e2b.py [-n RUNS]: E2B's own client against a `workcell serve --e2b` on the loopback: from Sandbox.create to the first result of run_code.

Needs the package e2b-code-interpreter (scripts/test-requirements.txt) and build/workcell. Prints one line of JSON, times in milliseconds.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import time

from e2b_code_interpreter import Sandbox

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKEN = "t0ken-of-the-benchmark-of-the-e2b-client"


def measure(options, runs):
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        sandbox = Sandbox.create(**options)
        assert sandbox.run_code("1+1").text == "2"
        times.append((time.perf_counter() - begun) * 1e3)
        sandbox.kill()
    return sorted(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-n", type=int, default=100)
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile("w+") as token, tempfile.TemporaryFile("w+") as log:
        token.write(TOKEN)
        token.flush()
        server = subprocess.Popen([os.environ.get("WORKCELL_BIN", os.path.join(ROOT, "build", "workcell")), "serve", "--e2b", "--listen",
                                   "127.0.0.1:0", "--auth-token-file", token.name, "--log-level", "error"],
                                  stderr=subprocess.PIPE, stdout=log, text=True)
        try:
            url = None
            while not url:
                line = server.stderr.readline()
                assert line, "the server did not start"
                url = re.search(r"listening on (http://\S+)", line)
            options = {"api_key": TOKEN, "api_url": url.group(1), "sandbox_url": url.group(1)}
            measure(options, 10)
            times = measure(options, args.n)
        finally:
            server.terminate()
            server.wait()
    print(json.dumps({"name": "e2b_create_to_result_ms", "runs": len(times), "min": round(times[0], 2),
                      "median": round(statistics.median(times), 2), "p95": round(times[int(len(times) * 0.95)], 2)}))


if __name__ == "__main__":
    main()
