"""What the tests of tools, workflows, artifacts and deps share: base folders, a web server, packages."""
import base64
import contextlib
import hashlib
import http.server
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import urllib.parse
import zipfile

import support

EXAMPLE_BASE = os.path.join(support.ROOT, "examples", "base")


def write_files(folder, files):
    """files: {relative path: text}; returns the folder as text."""
    for name, text in files.items():
        path = os.path.join(str(folder), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
    return str(folder)


def make_script(path, source):
    """An executable Python program."""
    os.makedirs(os.path.dirname(str(path)), exist_ok=True)
    with open(str(path), "w", encoding="utf-8") as file:
        file.write("#!%s -IS\n%s" % (os.path.realpath(sys.executable), textwrap.dedent(source)))
    os.chmod(str(path), stat.S_IRWXU)
    return str(path)


def probe(folder):
    """A program that tells how it was started: the name it has is that of its file."""
    return make_script(os.path.join(str(folder), "probe"), """\
        import json, os, sys
        print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(),
                          "stdin": sys.stdin.read() if sys.stdin else None,
                          "pgid": os.getpgid(0) == os.getpid(),
                          "fds": sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) > 2)[:-1]}))
        """)


PROBE_YAML = """\
    name: probe
    description: Tells how it was called
    tags: [test, inspection]
    command: %s
    schema:
      options:
        v: {type: boolean, short: v}
        hdr: {type: array, short: H}
        n: {type: integer}
        s: {type: string}
        level: {type: string, enum: [low, high]}
        ratio: {type: number, short: r}
        loose: {type: string, short: L, allow_dash: true}
        tight: {type: string, short: T}
      positional:
        - {name: a, type: string, required: true, description: the first one}
        - {name: b, type: string}
    recipes:
      go:
        description: Goes
        preset: {v: true, n: 3}
        params:
          a: {description: where to}
          n: {default: 9}
          s: {default: x}
      plain:
        description: Everything that the schema has
    """


def probe_base(folder, **files):
    """A base folder with the tool `probe`, and other files by path."""
    program = probe(os.path.join(str(folder), "bin"))
    return write_files(folder, {"tools/probe.yaml": PROBE_YAML % program, **files})


# Source of a program that becomes `sleep WORD`, so that a test finds it by its argument.
SLEEP = "import os, sys\nos.execvp('sleep', ['sleep', sys.argv[1]])\n"


def script_tool(folder, name, source, **keys):
    """A tool of one recipe, `run`, that starts a Python program with the text `word` as its argument."""
    program = make_script(os.path.join(str(folder), "bin", name), source)
    keys = dict({"timeout": 20}, **keys)
    write_files(folder, {"tools/%s.yaml" % name: "".join(
        ["name: %s\ncommand: %s\n" % (name, program)] + ["%s: %s\n" % item for item in keys.items()]
        + ["schema:\n  positional:\n    - {name: word, type: string}\nrecipes:\n  run: {description: runs}\n"])})
    return program


# ---- a web server ------------------------------------------------------------------------------------------


class WebServer:
    """Answers in the test's own process and remembers what it was asked.

    /status/N answers with that status and the text `said`; /text is plain text; /slow waits for `release`;
    /json answers with `payload`; /to redirects to ?url=; everything else answers with what was asked.
    """

    def __init__(self):
        self.requests, self.said, self.payload = [], "", {}
        self.release = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def answer(self, status, data, kind="application/json", headers=()):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    with contextlib.suppress(OSError):
                        self.wfile.write(data)

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path, _, query = self.path.partition("?")
                asked = {"method": self.command, "path": path, "query": urllib.parse.parse_qsl(query, True),
                         "headers": {k.lower(): v for k, v in self.headers.items()},
                         "body": body.decode("utf-8", "replace")}
                outer.requests.append(asked)
                if path.startswith("/status/"):
                    self.answer(int(path[8:]), outer.said.encode(), "text/plain")
                elif path == "/text":
                    self.answer(200, "plain \u00e9".encode(), "text/plain; charset=utf-8")
                elif path == "/slow":
                    outer.release.wait(support.DEADLINE)
                    self.answer(200, b"{}")
                elif path == "/json":
                    self.answer(200, json.dumps(outer.payload).encode())
                elif path == "/to":
                    self.answer(302, b"", headers=[("Location", dict(asked["query"])["url"])])
                else:
                    self.answer(200, json.dumps(asked).encode())

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = handle_any

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


# ---- Redis -------------------------------------------------------------------------------------------------


class Redis:
    """A redis-server of the tests' own, on a Unix socket (and a port, with TLS, when given certificates); or what is named instead."""

    def __init__(self, *flags):
        self.folder = support.temporary_folder("workcell-tests-redis-")
        self.socket = os.path.join(self.folder, "s")
        self.flags = flags
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", self.socket, "--dir", self.folder, "--save", "",
             "--logfile", "log", *self.flags], stdout=subprocess.DEVNULL, executable=self.program())
        support.wait_until(self.answers, "redis-server answers")

    @staticmethod
    def program():
        """redis-server; Debian's redis-tools has the same program, which goes by its name, under another one."""
        found = os.environ.get("WORKCELL_TEST_REDIS") or shutil.which("redis-server") or shutil.which("redis-check-rdb")
        assert found, "there is no redis-server; scripts/setup.sh test installs it"
        return found

    def answers(self):
        assert self.process.poll() is None, "redis-server ended"
        try:
            return self.ask("PING") == b"PONG"
        except PermissionError:
            return True  # it wants a password
        except (OSError, EOFError):
            return False

    def ask(self, *words):
        """One command; the answer as bytes, a number, None or a list of these."""
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(self.socket)
            parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            link.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
            with link.makefile("rb") as file:
                return self.read(file)

    def read(self, file):
        line = file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.read(file) for _ in range(int(rest))]
        if line.startswith(b"-NOAUTH"):
            raise PermissionError(line)
        if not line or line.startswith(b"-LOADING"):
            raise EOFError
        assert kind in b"+:", line
        return int(rest) if kind == b":" else rest

    def url(self, prefix=None):
        return "redis+unix://%s%s" % (self.socket, "?prefix=" + prefix if prefix else "")

    def close(self):
        self.process.terminate()
        self.process.wait()


# ---- packages ----------------------------------------------------------------------------------------------


def make_wheel(folder, name, version="1.0", source="", requires=(), files=None):
    """A wheel with one module of the package's name and other files in its .dist-info; returns its file name."""
    module = name.replace("-", "_")
    info = "%s-%s.dist-info" % (module, version)
    files = {
        **{info + "/" + path: text for path, text in (files or {}).items()},
        # Versions differ in size: Python tells a stale .pyc by time, in seconds, and size alone.
        module + ".py": "__version__ = %r\n%s%s\n" % (version, source, "#" * int(version.partition(".")[0])),
        info + "/METADATA": "Metadata-Version: 2.1\nName: %s\nVersion: %s\n%s" % (
            name, version, "".join("Requires-Dist: %s\n" % each for each in requires)),
        info + "/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += "%s,sha256=%s,%d\n" % (path, digest, len(text.encode()))
    files[info + "/RECORD"] = record + info + "/RECORD,,\n"
    os.makedirs(str(folder), exist_ok=True)
    target = "%s-%s-py3-none-any.whl" % (module, version)
    with zipfile.ZipFile(os.path.join(str(folder), target), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return target


# ---- file systems ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder, size="1m"):
    """A file system of its own of this size."""
    os.makedirs(str(folder), exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=" + size, "tmpfs", str(folder)], check=True)
    try:
        yield str(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def set_read_only(folder, yes):
    subprocess.run(["mount", "-o", "remount,%s" % ("ro" if yes else "rw"), str(folder)], check=True)


# ---- memory ------------------------------------------------------------------------------------------------


def memory_holds(pid, wanted):
    """Do these bytes stand anywhere in what a process can write to?"""
    with open("/proc/%d/maps" % pid, encoding="utf-8", errors="replace") as maps, \
            open("/proc/%d/mem" % pid, "rb", 0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if "w" not in rights:
                continue
            start, end = (int(number, 16) for number in span.split("-"))
            if end - start > 1 << 30:
                continue  # the sanitizer's own terabytes
            try:
                memory.seek(start)
                if wanted in memory.read(end - start):
                    return True
            except OSError:
                pass  # a region that cannot be read, as [vvar]
    return False


# ---- cells -------------------------------------------------------------------------------------------------


def value(driver, code):
    """The cell's value; it must end well."""
    return driver.value(textwrap.dedent(code))


def error(driver, code, **options):
    """The error of a cell that must fail in its code."""
    result = driver.run(textwrap.dedent(code), **options)
    assert result.get("error"), result
    return result["error"]
