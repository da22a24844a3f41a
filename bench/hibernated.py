#!/usr/bin/env python3
"""hibernated.py [WORKCELL] [N] [FORM] [PLACE]: what hibernated sessions cost a server: N small sessions, each opened, used once and hibernated over HTTP.

Prints every tenth of the way the server's own memory (proportional), its descriptors and the processes below it, and the bytes of a session on the disk; at the end how long
it takes to wake the first one, to read a page of the list and all of it, and to start another server for them. FORM: portable (a few kB each, so that 10,000 fit on a
disk) or image. PLACE: the URL of Redis instead of a folder. As root, because other memory cannot be read.
"""
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse

PROGRAM = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/workcell")
N = int(sys.argv[2]) if len(sys.argv) > 2 else 10000
FORM = sys.argv[3] if len(sys.argv) > 3 else "portable"
PLACE = sys.argv[4] if len(sys.argv) > 4 else None


def memory(pid):
    with open("/proc/%d/smaps_rollup" % pid) as file:
        return int(re.search(r"^Pss: +(\d+)", file.read(), re.M).group(1)) / 1024


def processes_below(pid):
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name) as file:
                    table.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
            except OSError:
                pass
    found = [pid]
    for each in found:
        found += table.get(each, [])
    return len(found)


def disk(folder):
    return sum(os.lstat(os.path.join(path, name)).st_blocks * 512 for path, _, names in os.walk(folder) for name in names)


def start(folder, socket):
    return subprocess.Popen([PROGRAM, "serve", "--listen", "unix:" + socket, "--auth-disabled", "--executor", "subprocess", "--workers", "1", "--base", folder + "/base",
                             "--cwd", folder + "/work", "--saved", PLACE or folder + "/saved", "--saved-form", FORM, "--saved-unsynced"], stderr=subprocess.DEVNULL)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/work")
        socket = folder + "/socket"
        server = start(folder, socket)
        try:
            connection = connect(socket)

            def ask(method, path, body=None, session=None):
                headers = {"Content-Type": "application/json", **({"X-Session-ID": session} if session else {})}
                connection.request(method, path, json.dumps(body) if body is not None else None, headers)
                answer = connection.getresponse()
                text = answer.read()
                assert answer.status < 300, (answer.status, text)
                return json.loads(text)

            first, begin = None, time.monotonic()
            for n in range(1, N + 1):
                session = ask("POST", "/v1/sessions", {})["session_id"]
                ask("POST", "/execute", {"code": "x = %d; rows = list(range(100))" % n}, session)
                ask("POST", "/v1/sessions/%s/hibernate" % session)
                first = first or session
                if n == 1 or n % max(1, N // 10) == 0:
                    print("%6d hibernated: server %.1f MB, %d descriptors, %d processes with the server; %.1f kB of disk each, %.1f ms each" % (
                        n, memory(server.pid), len(os.listdir("/proc/%d/fd" % server.pid)), processes_below(server.pid),
                        (0 if PLACE else disk(folder + "/saved")) / 1024 / n, (time.monotonic() - begin) * 1000 / n), flush=True)
            begin = time.monotonic()
            assert ask("POST", "/execute", {"code": "x"}, first)["value"] in (1, "1")
            print("the first one woken: %.1f ms" % ((time.monotonic() - begin) * 1000))
            begin, seen, after, first_page = time.monotonic(), 0, "", None
            while after is not None:
                page = ask("GET", "/v1/saved?limit=100" + ("&after=" + urllib.parse.quote(after) if after else ""))
                seen, after = seen + len(page["sessions"]), page["next"]
                first_page = first_page or (time.monotonic() - begin) * 1000
            print("listed: the first page in %.1f ms, all %d in %.0f ms; the server afterwards: %.1f MB" % (
                first_page, seen, (time.monotonic() - begin) * 1000, memory(server.pid)))
            begin = time.monotonic()
            other = start(folder, socket + "2")
            connect(socket + "2").close()
            print("another server for them started in %.0f ms" % ((time.monotonic() - begin) * 1000))
            other.terminate()
            other.wait()
        finally:
            server.terminate()
            server.wait()


def connect(path):
    import socket

    class Connection(http.client.HTTPConnection):
        def connect(self):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(path)

    for _ in range(600):
        try:
            made = Connection("localhost")
            made.request("GET", "/started")
            answer = made.getresponse()
            answer.read()
            if answer.status == 200:
                return made
        except OSError:
            pass
        time.sleep(0.01)
    raise SystemExit("the server does not answer")


main()
