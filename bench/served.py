"""A `workcell serve` for the benchmarks, on some CPUs alone."""
import os
import re
import subprocess
import sys
import tempfile
import time

TOKEN = "t0ken-of-the-benchmark"


class Served:
    def __init__(self, build, cpus, *flags):
        self.log, self.folder = tempfile.TemporaryFile(), tempfile.TemporaryDirectory()
        tokens = os.path.join(self.folder.name, "tokens")
        with open(tokens, "w", encoding="utf-8") as file:
            file.write("tokens:\n  - {name: bench, token: %s, scopes: [run, read]}\n" % TOKEN)
        argv = ["taskset", "-c", ",".join(map(str, cpus)), os.path.join(build, "workcell"), "serve", "--python", sys.executable, "--listen", "127.0.0.1:0",
                "--auth-token-file", tokens, *flags]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log, cwd=self.folder.name)
        self.port = self.find_port(time.monotonic() + 60)

    def find_port(self, deadline):
        while time.monotonic() < deadline and self.process.poll() is None:
            self.log.seek(0)
            found = re.search(rb"listening on http://[^:]*:(\d+)", self.log.read())
            if found:
                return int(found[1])
            time.sleep(0.05)
        self.log.seek(0)
        raise SystemExit("the server did not start: " + self.log.read().decode())

    def close(self):
        self.process.terminate()
        self.process.wait(60)
