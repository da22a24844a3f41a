"""The log on stderr, whose reader may be stuck, slow or gone: that is no reason not to serve."""
import fcntl
import json
import os
import re
import signal
import subprocess
import threading

import pytest

import serving
import support

#: Its line in the log is some 200 bytes; a pipe holds 64 kB, the queue of a server 512.
REQUESTS = 12000


class Piped(serving.Server):
    """Its stderr is a pipe, of which only the beginning is read."""

    def __init__(self, *flags, workers=1):  # noqa: super().__init__ reads a file
        self.port, self.path, self.workers, self.seen = serving.free_port(), None, workers, b""
        self.reads, self.writes = os.pipe()
        self.process = support.popen([support.BIN, "serve", "--python", support.bare_python(), "--executor", "subprocess", "--pool", "1", "--listen",
                                      "127.0.0.1:%d" % self.port, "--workers", str(workers), "--auth-token-file", serving.token_file(serving.TOKENS),
                                      *map(str, flags)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=self.writes, env=support.host_environment())
        self.pid = self.process.pid
        while b"listening on" not in self.seen:
            self.seen += os.read(self.reads, 65536)

    def drain(self):
        """Reads what there is, until the server has ended; on a thread."""
        os.close(self.writes)

        def pump():
            while True:
                piece = os.read(self.reads, 65536)
                if not piece:
                    return
                self.seen += piece

        self.reader = threading.Thread(target=pump, daemon=True)
        self.reader.start()

    def text(self):
        return self.seen.decode("utf-8")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(support.DEADLINE) == 0
        self.reader.join(support.DEADLINE)
        os.close(self.reads)
        return self.text()


def flood(server, n, name="r", path="/v1/sessions/unknown"):
    """n requests over one connection, each with a line in the log."""
    connection = server.connect()
    for i in range(n):
        answer = server.ask("GET", path, connection=connection, headers={"X-Request-ID": "%s-%d" % (name, i)})
        assert answer.status == 404, answer
    connection.close()


def lost_lines(text):
    return sum(int(n) for n in re.findall(r"(\d+) lines were not written: nobody read them", text))


@pytest.mark.parametrize("workers", [1, 2])
def test_nobody_reads_the_log(workers):
    """Thousands of requests are answered, and cells run. Who reads again gets whole lines, each once, and learns how many are missing."""
    server = Piped(workers=workers)
    assert not fcntl.fcntl(server.writes, fcntl.F_GETFL) & os.O_NONBLOCK
    session = server.session()
    threads = [threading.Thread(target=flood, args=(server, REQUESTS // 2, name)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(support.DEADLINE)
    assert server.execute("6 * 7", session=session)["value"] == 42
    assert not fcntl.fcntl(server.writes, fcntl.F_GETFL) & os.O_NONBLOCK
    server.drain()
    support.wait_until(lambda: lost_lines(server.text()), "how many are lost")
    flood(server, 10, "late")
    text = server.end()
    lines = [line for line in text.splitlines() if '"/v1/sessions/unknown"' in line]
    seen = [re.match(r"\S+Z info ((?:a|b|late)-\d+) \"GET\" \"/v1/sessions/unknown\" 404 \S+ms client=\S+ token=\"all\"$", line) for line in lines]
    assert all(seen), [line for line, each in zip(lines, seen) if not each][:5]
    ids = [each.group(1) for each in seen]
    assert len(ids) == len(set(ids)) and {"late-%d" % n for n in range(10)} <= set(ids)
    others = sum(1 for name in ("POST", ) for line in text.splitlines() if '"%s"' % name in line)
    assert len(ids) + lost_lines(text) + others == REQUESTS + 10 + 2, (len(ids), lost_lines(text), others)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_ends_though_nobody_reads_its_log(workers):
    server = Piped(workers=workers)
    flood(server, REQUESTS // 2)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(support.DEADLINE) == 0
    os.close(server.writes)
    os.close(server.reads)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_reader_of_the_log_goes_away(workers):
    server = Piped(workers=workers)
    os.close(server.writes)
    os.close(server.reads)
    flood(server, 100)
    if workers > 1:
        victim = server.worker_pids()[0]
        os.kill(victim, signal.SIGKILL)
        support.wait_until(lambda: victim not in server.worker_pids() and len(server.worker_pids()) == 2, "it is started again")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(support.DEADLINE) == 0


def test_a_worker_is_started_again_though_nobody_reads_the_log():
    """The process that does it writes a line about it, when there is room."""
    server = Piped(workers=2)
    flood(server, REQUESTS // 4)
    victim = server.worker_pids()[0]
    os.kill(victim, signal.SIGKILL)
    support.wait_until(lambda: victim not in server.worker_pids() and len(server.worker_pids()) == 2, "it is started again")
    # The first process hands out clients: both workers serve.
    support.wait_until(lambda: {server.session(connection=connection)[:2] for connection in [server.connect() for _ in range(4)]} == {"00", "01"},
                       "both serve")
    server.drain()
    text = server.end()
    assert "worker 0 (process %d) was ended by signal 9" % victim in text, text[-2000:]


def test_lines_of_workers_stay_whole():
    """Also those that are longer than what Linux writes to a pipe in one piece, while the reader is slow."""
    server = Piped("--log", "json", workers=2)
    threads = [threading.Thread(target=flood, args=(server, 150, "t%d" % n, "/v1/sessions/" + "xyz%d" % n * 1500)) for n in range(4)]
    for thread in threads:
        thread.start()
    server.drain()
    for thread in threads:
        thread.join(support.DEADLINE)
    text = server.end()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    found = [line["request_id"] for line in lines if "request_id" in line]
    lost = sum(int(match.group(1)) for match in (re.match(r"(\d+) lines were not written", line.get("message", "")) for line in lines) if match)
    assert len(found) == len(set(found)) and len(found) + lost == 600, (len(found), lost)
    assert all(line.startswith(("{", "workcell: ")) for line in text.splitlines())
