"""Progress on the screen of tmux: a bar, a rate and the time left, for everything that takes over a second; plain lines elsewhere."""
import http.server
import json
import os
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading

import pytest

import spaces
import support

RATE = r"[\d.]+ [KMG]?i?B/s"
LEFT = r"[\d.]+ (min( \d+ s)?|m?s|h.*) left"


@pytest.fixture
def watch(tmp_path):
    """Starts workcell in tmux."""
    assert shutil.which("tmux"), "scripts/setup.sh test installs it"
    screens = []

    def make(*words, **env):
        screens.append(support.Screen(tmp_path, support.host_environment(**env), "/bin/sh", "-c", '"$@"; echo "ended with $?"; exec sleep 1000', "sh",
                                      support.BIN, *words))
        return screens[-1]
    yield make
    for screen in screens:
        screen.close()


class Gate:
    """Half of a fake's work is done; the rest waits until open()."""

    def __init__(self):
        self.event = threading.Event()

    def wait(self):
        assert self.event.wait(support.DEADLINE)

    def open(self):
        self.event.set()


# ---- installs ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("said", [
    "Resolved 5 packages in 12ms\nDownloading numpy (20.0MiB)\nDownloading pandas (10MiB)\n Downloaded numpy\n",
    "Collecting numpy\n  Downloading numpy-2.4-py3-none-any.whl (20971.52 kB)\nCollecting pandas\n  Downloading pandas-3.tar.gz (10485.76 kB)\n",
], ids=["uv", "pip"])
def test_an_install_shows_the_bytes_that_are_left(watch, tmp_path, bare_python, said):
    spaces.make_script(tmp_path / "bin" / "uv", """\
        import os, subprocess, sys, time
        if sys.argv[1] == "venv":
            sys.exit(subprocess.call([%r, "-m", "venv", "--without-pip", sys.argv[-1]]))
        for line in %r.splitlines():
            print(line, flush=True)
            time.sleep(0.05)
        while not os.path.exists(%r):
            time.sleep(0.01)
        sys.exit(3)
        """ % (getattr(sys, "_base_executable", sys.executable), said, str(tmp_path / "go")))
    screen = watch("deps", "add", "numpy", "--base", tmp_path / "base", "--python", bare_python, XDG_CACHE_HOME=str(tmp_path / "cache"),
                   PATH="%s:%s" % (tmp_path / "bin", os.environ["PATH"]))
    screen.wait(r"installing packages: \[########----\] 20 MiB of 30 MiB, %s, %s" % (RATE, LEFT))
    (tmp_path / "go").write_text("")
    screen.wait("ended with 1(25)?")
    assert "installing packages" not in "".join(screen.lines()), "it is taken off the screen"


# ---- images ------------------------------------------------------------------------------------------------------

@pytest.fixture
def engine(tmp_path):
    """A container engine whose build stands still after two of four steps."""
    gate = Gate()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def address_string(self):
            return "engine"

        def log_message(self, *_):
            pass

        def do_GET(self):
            body = json.dumps({"ApiVersion": "1.44", "Version": "x"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def chunk(self, line):
            data = json.dumps({"stream": line + "\n"}).encode() + b"\r\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def do_POST(self):
            left = int(self.headers.get("Content-Length", 0))
            assert len(self.rfile.read(left)) == left
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for n in (1, 2, 3):
                self.chunk("Step %d/4 : RUN something" % n)
            gate.wait()
            self.chunk("Step 4/4 : CMD x")
            self.wfile.write(b"0\r\n\r\n")

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    server = Server(str(tmp_path / "engine.sock"), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    context = tmp_path / "context"
    (context / "packaging").mkdir(parents=True)
    (context / "packaging" / "Dockerfile").write_text("FROM x\n")
    yield gate, ["container", "build", "--container-host", "unix://%s" % (tmp_path / "engine.sock"), "--container-context", context]
    gate.open()
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_build_of_an_image_shows_its_steps(watch, engine):
    gate, words = engine
    screen = watch(*words)
    screen.wait("Step 3/4 : RUN something", r"building the image: \[######------\] 2 of 4 steps, [\d.]+/(s|min), " + LEFT)
    gate.open()
    screen.wait("Step 3/4 : RUN something", "Step 4/4 : CMD x", "ended with 0")


def test_without_a_terminal_progress_is_lines(engine):
    gate, words = engine
    with support.popen([support.BIN, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=support.host_environment()) as process:
        lines = [process.stderr.readline() for _ in range(4)]
        gate.open()
        rest = process.stderr.read()
    assert lines[:3] == ["Step %d/4 : RUN something\n" % n for n in (1, 2, 3)]
    assert re.fullmatch(r"building the image: 2 of 4 steps, [\d.]+/(s|min), %s\n" % LEFT, lines[3]), lines
    assert "\x1b" not in rest and "\r" not in rest and process.returncode == 0, rest


# ---- transfers ---------------------------------------------------------------------------------------------------

class Valve(threading.Thread):
    """Hands on what a client sends to a server, up to a number of bytes and then no more until the gate opens."""

    def __init__(self, path, target, limit):
        super().__init__(daemon=True)
        self.gate, self.limit, self.target = Gate(), limit, target
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.target)
            threading.Thread(target=self.forward, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self.forward, args=(server, client, False), daemon=True).start()

    def forward(self, source, sink, counts):
        try:
            while data := source.recv(65536):
                if counts:
                    self.limit -= len(data)
                    if self.limit < 0:
                        self.gate.wait()
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.gate.open()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def valve(redis, tmp_path):
    made = []

    def make(limit):
        made.append(Valve(str(tmp_path / "valve"), redis.socket, limit))
        return made[-1], redis.url(tmp_path.name).replace(redis.socket, str(tmp_path / "valve"))
    yield make
    for each in made:
        each.close()


def test_a_push_shows_what_is_left(watch, valve, tmp_path):
    for n in range(4):
        spaces.write_files(tmp_path / "base", {"artifacts/a%d.bin" % n: os.urandom(6 << 20)})
    proxy, url = valve(15 << 20)
    screen = watch("store", "push", "--type", "artifacts", "--source", tmp_path / "base", "--target", url)
    screen.wait("  Added: a0.bin", "  Added: a1.bin", r"pushing: \[#{6,9}-{3,6}\] 1[2-8](\.\d)? MiB of 24 MiB, %s, %s" % (RATE, LEFT))
    proxy.gate.open()
    screen.wait("ended with 0")
    assert "pushing" not in "".join(screen.lines()), "it is taken off the screen"


def test_a_push_of_workflows_counts_them(watch, valve, tmp_path):
    text = "x" * 50000
    for n in range(10):
        spaces.write_files(tmp_path / "base", {"workflows/w%d.py" % n: 'def run():\n    return "%s"\n' % text})
    proxy, url = valve(300000)
    screen = watch("store", "push", "--source", tmp_path / "base", "--target", url)
    screen.wait(r"  Added: w\d", r"pushing: \[#+-+\] [1-9] of 10 workflows, [\d.]+/(s|min), " + LEFT)
    proxy.gate.open()
    screen.wait("ended with 0")


def test_an_artifact_that_is_loaded_shows_what_is_left(watch, tmp_path):
    whole = 24 << 20
    assert support.workcell("artifacts", "put", "x", "-", "--storage", tmp_path / "data", stdin=b"x" * whole).status == 0
    os.mkfifo(tmp_path / "pipe")
    screen = watch("artifacts", "get", "x", tmp_path / "pipe", "--storage", tmp_path / "data")
    with open(tmp_path / "pipe", "rb") as pipe:
        assert len(pipe.read(whole // 2)) == whole // 2
        screen.wait(r"loading: \[#+-+\] 1[23](\.\d)? MiB of 24 MiB, %s, %s" % (RATE, LEFT))
        assert len(pipe.read()) == whole // 2
    screen.wait("ended with 0")


# ---- snapshots, the benchmark ------------------------------------------------------------------------------------

@pytest.mark.parametrize("words, what", [
    (("run", "--executor", "deno", "-e", "6 * 7"), "opening a session"),
    (("doctor", "--fix", "deno"), "starting a session, which keeps a snapshot of its start"),
], ids=["run", "doctor"])
def test_a_first_start_of_deno(watch, words, what):
    """A runner that is stopped takes longer than a second, with a snapshot and without."""
    screen = watch(*words)
    # The spawner leaves its parents; these tests are the next reaper above it.
    runner = support.wait_until(lambda: [each.pid for each in support.descendants(os.getpid()) if re.match(r"\S*/deno-\S*/deno ", each.cmdline)],
                                "the runner starts")[0]
    os.kill(runner, signal.SIGSTOP)
    try:
        screen.wait(what + r": [\d.]+ s")
    finally:
        os.kill(runner, signal.SIGCONT)
    screen.wait("42|deno works.", "ended with 0")
    assert what not in "".join(screen.lines()), "it is taken off the screen"


def test_the_benchmark_shows_what_is_left(watch):
    screen = watch("bench", "--quick", "--no-peer", "--python", support.PYTHON, COLUMNS="80")
    screen.wait(r"first chunks with pauses: (\[-+\] )?1 of \d\d rows, [\d.]+/(s|min), .* left")


def test_the_benchmark_without_a_terminal():
    done = support.workcell("bench", "--quick", "--no-peer", "--only", "cell", "--python", support.PYTHON)
    assert done.status == 0 and re.fullmatch(r"cells: 0 of 1 rows, [\d.]+ m?s\n", done.err), done
