"""What installs cost in two builds of Workcell, measured in turns: the one before a change, and the one after it.

    python3 bench/installs.py [--rounds N] [--only TEXT] [--folder] [--python PATH] [--uv PATH] [--json FILE] OLD NEW

OLD and NEW are programs `workcell`. Each round opens a session of either, on a storage and a workspace of its own, and has it do

    fresh     deps.add() of a package where there is no environment yet
    second    deps.add() of another, which needs nothing
    larger    deps.add() of one that needs three more
    present   deps.add() of the same again
    sync      deps.sync() with nothing to do

by `uv` and by `pip`, with the executor `sandbox` (untrusted principals) and `subprocess` (trusted ones). Packages are made here and
come from an index on the loopback, which says their SHA-256 as public ones do, or with --folder from a folder of wheels. Either
build keeps its caches from round to round, as a person's are kept from day to day, but each round has packages that were never
installed before. The first round, in which the caches are made, is not counted. Times are taken in the cell. Ratios are NEW to OLD.
"""
import argparse
import base64
import hashlib
import http.server
import json
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile

CALLS = {"fresh": "deps.add('wc-small-%d')", "second": "deps.add('wc-other-%d')", "larger": "deps.add('wc-large-%d')",
         "present": "deps.add('wc-large-%d')", "sync": "deps.sync()"}
# pip takes seconds to make an environment, uv a fraction of one.
SECONDS = 300


# ---- the index ---------------------------------------------------------------------------------------------


def make_wheel(folder, name, modules, requires=()):
    module = name.replace("-", "_")
    info = module + "-1.0.dist-info"
    files = {"%s/m%d.py" % (module, i): "def f%d(x):\n    return x + %d\n" % (i, i) * 40 for i in range(modules)}
    files[module + "/__init__.py"] = "who = %r\n" % name
    files[info + "/METADATA"] = "Metadata-Version: 2.1\nName: %s\nVersion: 1.0\n%s" % (
        name, "".join("Requires-Dist: %s\n" % each for each in requires))
    files[info + "/WHEEL"] = "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[info + "/RECORD"] = "".join("%s,sha256=%s,%d\n" % (path, base64.urlsafe_b64encode(
        hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode(), len(text)) for path, text in files.items()) + info + "/RECORD,,\n"
    file = "%s-1.0-py3-none-any.whl" % module
    with zipfile.ZipFile(os.path.join(folder, file), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    with open(os.path.join(folder, file), "rb") as wheel:
        digest = hashlib.sha256(wheel.read()).hexdigest()
    os.makedirs(os.path.join(folder, "simple", name))
    with open(os.path.join(folder, "simple", name, "index.html"), "w", encoding="utf-8") as page:
        page.write('<!DOCTYPE html><html><body><a href="../../%s#sha256=%s">%s</a></body></html>' % (file, digest, file))


def make_index(folder, rounds):
    os.mkdir(folder)
    for i in range(rounds):
        needed = ["wc-%s-%d" % (name, i) for name in ("one", "two", "three")]
        make_wheel(folder, "wc-small-%d" % i, 1)
        make_wheel(folder, "wc-other-%d" % i, 1)
        make_wheel(folder, "wc-large-%d" % i, 40, requires=needed)
        for name in needed:
            make_wheel(folder, name, 20)


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def translate_path(self, path):
        """Through a proxy, requests after the first of a connection name the whole address (RFC 9112, 3.2.2)."""
        return super().translate_path(re.sub("^http://[^/]*", "", path))

    def log_message(self, *args):
        pass


def serve(folder, ports):
    os.chdir(folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        ports.put(server.server_address[1])
        server.serve_forever()


# ---- one session -------------------------------------------------------------------------------------------


class Session:
    def __init__(self, program, executor, python, folder, cache, path, source):
        for name in ("base", "work"):
            os.makedirs(os.path.join(folder, name))
        self.process = subprocess.Popen(
            [program, "run", "--json", "--cells", "--pool", "0", "--python", python, "--executor", executor, "--base",
             os.path.join(folder, "base"), *source, "--timeout", str(SECONDS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=os.path.join(folder, "work"),
            env={"PATH": path, "HOME": cache, "XDG_CACHE_HOME": os.path.join(cache, "cache"), "LANG": "C.UTF-8"})
        self.run("import time")

    def run(self, code):
        self.process.stdin.write(json.dumps({"code": code}).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        result = json.loads(line) if line else {"error": self.process.stderr.read().decode()}
        if result["error"] is not None:
            raise SystemExit("bench: %s: %s" % (code, result["error"]))
        return result["value"]

    def measure(self, call):
        return float(self.run("began = time.perf_counter(); done = %s; time.perf_counter() - began" % call)) * 1000

    def close(self):
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.wait(60)


def one_round(i, program, executor, python, folder, cache, path, source):
    os.makedirs(cache, exist_ok=True)
    session = Session(program, executor, python, folder, cache, path, source)
    try:
        found = {name: session.measure(call % i if "%" in call else call) for name, call in CALLS.items()}
        if not session.run("import wc_small_%d as a, wc_large_%d as b, wc_three_%d as c; [a.who, b.who, c.who] == "
                           "['wc-small-%d', 'wc-large-%d', 'wc-three-%d']" % ((i,) * 6)):
            raise SystemExit("bench: what was installed is not what was asked for")
        return found
    finally:
        session.close()
        shutil.rmtree(folder)


# ---- all of them -------------------------------------------------------------------------------------------


def paths(folder, uv):
    usual = os.pathsep.join(each for each in ("/usr/local/bin", "/usr/bin", "/bin") if not os.path.exists(os.path.join(each, "uv")))
    found = {"pip": usual}
    if uv:
        os.mkdir(os.path.join(folder, "bin"))
        shutil.copy(os.path.realpath(uv), os.path.join(folder, "bin", "uv"))
        found["uv"] = os.path.join(folder, "bin") + os.pathsep + usual
    return found


def measure(options, folder, source):
    rows, turn = {}, 0
    for installer, path in paths(folder, options.uv).items():
        for executor in ("sandbox", "subprocess"):
            if options.only not in "%s %s" % (installer, executor):
                continue
            for i in range(options.rounds + 1):
                for side in ("old", "new") if i % 2 else ("new", "old"):
                    turn += 1
                    found = one_round(i, getattr(options, side), executor, options.python, os.path.join(folder, str(turn)),
                                      os.path.join(folder, side + installer + executor), path, source)
                    for name, value in found.items() if i > 0 else ():
                        rows.setdefault((installer, executor, name), {"old": [], "new": []})[side].append(value)
            show({key: values for key, values in rows.items() if key[:2] == (installer, executor)})
    return rows


def summary(values):
    return {"min": min(values), "p50": statistics.median(values)}


def show(rows):
    for (installer, executor, name), sides in rows.items():
        old, new = summary(sides["old"]), summary(sides["new"])
        ratios = "  ".join("%s %7.1f %7.1f ms %5.2fx" % (kind, old[kind], new[kind], new[kind] / old[kind]) for kind in ("min", "p50"))
        print("%-4s %-10s %-8s %s" % (installer, executor, name, ratios), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help='part of "INSTALLER EXECUTOR", as "uv sandbox"')
    parser.add_argument("--folder", action="store_true", help="packages come from a folder of wheels")
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--uv", default=shutil.which("uv", path=os.path.dirname(sys.executable)) or shutil.which("uv"))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW")
    options = parser.parse_args()
    options.old, options.new = os.path.abspath(options.old), os.path.abspath(options.new)
    with tempfile.TemporaryDirectory(prefix="workcell-installs-", dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        make_index(os.path.join(folder, "index"), options.rounds + 1)
        ports = multiprocessing.Queue()
        server = multiprocessing.Process(target=serve, args=(os.path.join(folder, "index"), ports), daemon=True)
        server.start()
        try:
            index = "http://127.0.0.1:%d/simple" % ports.get()
            rows = measure(options, folder, ("--wheel-dir", os.path.join(folder, "index")) if options.folder else ("--index-url", index))
        finally:
            server.terminate()
            server.join()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({" ".join(key): sides for key, sides in rows.items()}, file)
    if not options.uv:
        print("uv was not measured: not found in PATH")


if __name__ == "__main__":
    main()
