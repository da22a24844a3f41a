"""Filtered networks: what the sandbox can reach through the proxy, and what it cannot. All of it on this machine."""
import http.server
import json
import shutil
import subprocess
import threading

import pytest

import support


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = ("%s %s" % (self.path, self.headers.get("X-Mark", ""))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made.server_address[1]
    made.shutdown()
    made.server_close()


PRELUDE = r'''
import socket, struct
def ask(data, more=b""):
    s = socket.create_connection(("127.0.0.1", 3128), 20)
    s.settimeout(20)
    s.sendall(data)
    return s
def status(request):
    s = ask(request)
    text = s.recv(65536).decode()
    return text.split("\r\n")[0].split()[1]
def tunnel(host, port):
    s = ask(b"CONNECT %s:%d HTTP/1.1\r\nHost: x\r\n\r\n" % (host.encode(), port))
    head = s.recv(4096)
    assert b" 200 " in head.split(b"\r\n")[0], head
    s.sendall(b"GET /through HTTP/1.0\r\n\r\n")
    data = b""
    while True:
        part = s.recv(4096)
        if not part:
            return data.split(b"\r\n\r\n")[1].decode()
        data += part
def socks(host, port):
    s = ask(b"\x05\x01\x00")
    assert s.recv(2) == b"\x05\x00"
    s.sendall(b"\x05\x01\x00\x03" + bytes([len(host)]) + host.encode() + struct.pack(">H", port))
    answer = s.recv(10)
    if answer[1]:
        return answer[1]
    s.sendall(b"GET /socks HTTP/1.0\r\n\r\n")
    data = b""
    while True:
        part = s.recv(4096)
        if not part:
            return data.split(b"\r\n\r\n")[1].decode()
        data += part
'''


def policy_file(cwd, text):
    """Beside the workspace: one that the code could write to is refused."""
    file = cwd.parent / (cwd.name + "-p.yaml")
    file.write_text(text)
    return str(file)


def cells(tmp_path, policy, *codes, python="/usr/bin/python3", flags=()):
    argv = [support.BIN, "run", "--executor", "sandbox", "--json", "--keep-going", "--sandbox-policy", policy_file(tmp_path, policy), "--python",
            python, *flags, "-e", PRELUDE]
    for code in codes:
        argv += ["-e", code]
    done = subprocess.run(argv, cwd=tmp_path, env=support.host_environment(), capture_output=True, text=True,
                          timeout=support.DEADLINE)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(codes) + 1, done
    return [r["value"] if r["error"] is None else r["error"] for r in results[1:]], results[0]["isolation"]


def test_what_is_listed_is_reached(tmp_path, server):
    values, receipt = cells(
        tmp_path, "network:\n  allow: ['127.0.0.1:%d']\n" % server,
        "tunnel('127.0.0.1', %d)" % server, "socks('127.0.0.1', %d)" % server,
        "s = ask(b'GET http://127.0.0.1:%d/plain?q=1 HTTP/1.0\\r\\nX-Mark: m\\r\\n\\r\\n')\n"
        "b''.join(iter(lambda: s.recv(4096), b'')).split(b'\\r\\n\\r\\n')[1].decode()" % server)
    assert values == ["/through ", "/socks ", "/plain?q=1 m"] and receipt["network"] == "allow"


def test_what_is_not_listed_is_refused(tmp_path, server):
    connect = "status(b'CONNECT %s HTTP/1.1\\r\\n\\r\\n')"
    values, _ = cells(
        tmp_path, "network:\n  allow: ['127.0.0.1:%d', 'localhost:*', '*.example.org:443']\n" % server,
        connect % "127.0.0.1:1", connect % "192.0.2.1:443", connect % "169.254.169.254:80", connect % "example.org:443",
        connect % "[::1]:80", "socks('10.0.0.1', 80)", connect % "not/a:80", connect % "x", "status(b'GET / HTTP/1.1\\r\\n\\r\\n')",
        "status(b'\\x00' * 100 + b'\\r\\n\\r\\n')",
        # localhost is listed by name, but its address is private and not listed with this port: a name is not enough.
        connect % "localhost:2",
        # around the proxy there is nothing
        "import socket\ntry:\n    socket.create_connection(('192.0.2.1', 80), 3)\n    r = 'out'\nexcept OSError as e:\n    r = 'none'\nr",
        "try:\n    socket.create_connection(('127.0.0.1', %d), 3)\n    r = 'out'\nexcept OSError:\n    r = 'none'\nr" % server)
    assert values == ["403", "403", "403", "403", "403", 2, "400", "400", "400", "400", "403", "none", "none"]


def test_deps_only_takes_the_index_from_the_configuration(tmp_path, server):
    """A venv's pip.conf names an index: that host is reached, and no other."""
    venv = tmp_path / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(venv)], check=True)
    (venv / "pip.conf").write_text("[global]\nindex-url = http://user:pass@127.0.0.1:%d/simple\n" % server)
    work = tmp_path / "work"
    work.mkdir()
    values, receipt = cells(work, "network: deps-only\n", "tunnel('127.0.0.1', %d)" % server,
                            "status(b'CONNECT 192.0.2.1:443 HTTP/1.1\\r\\n\\r\\n')", "import os\nos.environ['HTTPS_PROXY']",
                            python=str(venv / "bin" / "python"))
    assert values == ["/through ", "403", "http://127.0.0.1:3128"] and receipt["network"] == "deps-only"


def test_none_has_no_proxy(tmp_path):
    values, receipt = cells(tmp_path, "network: none\n", "try:\n    ask(b'x')\n    r = 'there'\nexcept OSError:\n    r = 'none'\nr",
                            "import os\n'HTTPS_PROXY' in os.environ")
    assert values == ["none", False] and receipt["network"] == "none"


def test_full_is_the_host_s(tmp_path, server):
    values, receipt = cells(tmp_path, "network: full\n", "socket.create_connection(('127.0.0.1', %d), 5) and 'reached'" % server)
    assert values == ["reached"] and receipt["network"] == "full" and "net" not in receipt["namespaces"]


def test_many_connections(tmp_path, server):
    values, _ = cells(tmp_path, "network:\n  allow: ['127.0.0.1:%d']\n" % server,
                      "[tunnel('127.0.0.1', %d) for i in range(40)].count('/through ')" % server,
                      "kept = [ask(b'CONN') for i in range(100)]\nlen(kept)",
                      # the host hears of the closed ones a moment later
                      "import time\nfor s in kept: s.close()\nfor i in range(500):\n    try:\n        r = tunnel('127.0.0.1', %d)\n"
                      "        break\n    except (OSError, AssertionError):\n        time.sleep(0.01)\nr" % server)
    assert values == [40, 100, "/through "]


def test_every_connection_is_in_the_audit_log(tmp_path, server):
    log = tmp_path / "audit.jsonl"
    work = tmp_path / "work"
    work.mkdir()
    connect = "status(b'CONNECT %s HTTP/1.1\\r\\n\\r\\n')"
    codes = ["tunnel('127.0.0.1', %d)" % server, "socks('127.0.0.1', %d)" % server, connect % "192.0.2.1:443",
             connect % "localhost:1", connect % "127.0.0.1:1", "ask(b'').close()", "ask(b'junk\\r\\n\\r\\n').recv(4096) and None",
             "b = ask(b'GET http://127.0.0.1:%d/ HTTP/1.0\\r\\n\\r\\n')\nlen(b''.join(iter(lambda: b.recv(4096), b'')))" % server]
    values, _ = cells(work, "network:\n  allow: ['127.0.0.1:%d', 'localhost:1', '127.0.0.1:1']\n" % server, *codes,
                      flags=["--audit", str(log)])
    assert values[:5] == ["/through ", "/socks ", "403", "502", "502"], values
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(r["kind"], r["tool"], r["executor"], r["by"]) for r in lines} == {("network", "network", "sandbox", "policy")}
    assert len({r["session"] for r in lines}) == 1 and all(r["cell"] for r in lines if r["callable"] == "connect")

    def found(callable, **args):
        return [(r["adapter"], r["decision"], r["outcome"], r["code"]) for r in lines
                if r["callable"] == callable and all(r["args"].get(k) == v for k, v in args.items())]

    here = dict(host="127.0.0.1", port=server, address="127.0.0.1")
    ways = ["connect", "socks5", "http"]
    assert found("connect", **here) == [(way, "allow", "ok", None) for way in ways]
    assert sorted(found("close", **here)) == sorted((way, "allow", "ok", None) for way in ways)
    assert found("connect", host="192.0.2.1", port=443, address=None) == [("connect", "deny", "error", "rejected")]
    # Let through by the policy, but nobody is there: begun, and ended with an error.
    for host in ("localhost", "127.0.0.1"):
        assert found("connect", host=host, port=1) == [("connect", "allow", "ok", None)]
        assert found("close", host=host, port=1) == [("connect", "allow", "error", "io")]
    assert sorted(found("connect", host=None), key=str) == [(None, "allow", "error", "io")] * 2
    ended = [r["args"] for r in lines if r["callable"] == "close" and r["args"]["port"] == server]
    assert all(a["sent"] >= 18 and a["received"] > 20 for a in ended)
    assert max(a["received"] for a in ended) >= values[7] > 0
    shown = subprocess.run([support.BIN, "audit", "show", str(log), "--tool", "network.connect", "--decision", "deny"],
                           capture_output=True, text=True, env=support.host_environment())
    assert shown.returncode == 0 and "192.0.2.1" in shown.stdout and len(shown.stdout.splitlines()) == 1, shown


def test_without_an_audit_log_nothing_gets_out(drive, tmp_path, server):
    """A log that cannot be written (fail closed): connections are refused like calls."""
    for name in ("work", "log"):
        (tmp_path / name).mkdir()
    policy = policy_file(tmp_path / "work", "network:\n  allow: ['127.0.0.1:%d']\n" % server)
    driver = drive("--audit", tmp_path / "log" / "audit.jsonl", "--sandbox-policy", policy, executor="sandbox",
                   cwd=tmp_path / "work", python="/usr/bin/python3")
    driver.run(PRELUDE)
    assert driver.value("tunnel('127.0.0.1', %d)" % server) == "/through "
    shutil.rmtree(tmp_path / "log")
    # The first record afterwards meets the loss.
    assert driver.value("import time\nfor i in range(500):\n    r = status(b'CONNECT 127.0.0.1:%d HTTP/1.1\\r\\n\\r\\n')\n"
                        "    if r == '503': break\n    time.sleep(0.01)\nr" % server) == "503"


def test_the_audit_log_is_out_of_the_code_s_reach(tmp_path):
    for flags, refused in ([("--audit", "a.jsonl"), True], [("--audit", "a.jsonl", "--workspace-mode", "ro"), False]):
        done = subprocess.run([support.BIN, "run", "--executor", "sandbox", *flags, "-e", "1"], cwd=tmp_path, capture_output=True,
                              text=True, env=support.host_environment(), timeout=support.DEADLINE)
        assert done.returncode == (support.EXIT["invalid"] if refused else 0), done
        assert ("audit log" in done.stderr) == refused


def command(cwd, policy, *argv, python=None, flags=()):
    flags = [*flags, "--python", python] if python else flags
    return subprocess.run([support.BIN, "sandbox", "run", "--policy", policy_file(cwd, policy), *flags, "--", *argv], cwd=cwd,
                          env=support.host_environment(), capture_output=True, text=True, timeout=support.DEADLINE)


FETCH = """import os, sys, urllib.error, urllib.request
del os.environ["no_proxy"], os.environ["NO_PROXY"]  # the servers of the tests are on 127.0.0.1
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=20).read().decode())
    except urllib.error.HTTPError as e:
        print(e.code)
sys.exit(7)
"""


def test_a_command_goes_through_the_proxy(tmp_path, server):
    """`workcell sandbox run` is the proxy of what it runs, and ends as that does."""
    listed, other = "http://127.0.0.1:%d/a" % server, "http://192.0.2.1/"
    (tmp_path / "fetch.py").write_text(FETCH)
    done = command(tmp_path, "network:\n  allow: ['127.0.0.1:%d']\n" % server, "python3", "fetch.py", listed, other, listed)
    assert done.stdout.split() == ["/a", "403", "/a"] and done.returncode == 7, done
    done = command(tmp_path, "network:\n  allow: ['127.0.0.1:%d']\n" % server, "no-such-program")
    assert done.returncode == support.EXIT["not_found"], done


def test_the_connections_of_a_command_are_in_the_audit_log(tmp_path, server):
    work, log, policy = tmp_path / "work", tmp_path / "audit.jsonl", "network:\n  allow: ['127.0.0.1:%d']\n" % server
    work.mkdir()
    (work / "fetch.py").write_text(FETCH)
    flags = ["--audit", str(log)]
    done = command(work, policy, "python3", "fetch.py", "http://127.0.0.1:%d/a" % server, "http://192.0.2.1/", flags=flags)
    assert done.stdout.split() == ["/a", "403"], done
    # One that is under way when the command ends is written down to its end.
    held = "import socket; s = socket.create_connection(('127.0.0.1', 3128)); s.sendall(b'CONNECT 127.0.0.1:%d HTTP/1.1\\r\\n\\r\\n'); " \
           "assert b' 200 ' in s.recv(99)" % server
    assert command(work, policy, "python3", "-c", held, flags=flags).returncode == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(r["kind"], r["executor"], r["by"], r["cell"]) for r in lines} == {("network", "sandbox", "policy", None)}
    first, second = lines[0]["session"], lines[-1]["session"]
    told = [(r["session"], r["callable"], r["adapter"], r["args"]["host"], r["decision"], r["outcome"]) for r in lines]
    assert first != second and sorted(told) == sorted([
        (first, "connect", "http", "127.0.0.1", "allow", "ok"), (first, "close", "http", "127.0.0.1", "allow", "ok"),
        (first, "connect", "http", "192.0.2.1", "deny", "error"),
        (second, "connect", "connect", "127.0.0.1", "allow", "ok"), (second, "close", "connect", "127.0.0.1", "allow", "ok")]), told
    for path, code in ((work / "a.jsonl", "invalid"), (tmp_path / "none" / "a.jsonl", "io")):
        done = command(work, policy, "touch", "ran", flags=["--audit", str(path)])
        assert done.returncode == support.EXIT[code] and not (work / "ran").exists(), done


def test_a_command_reaches_the_package_index(tmp_path, server):
    venv, work = tmp_path / "venv", tmp_path / "work"
    work.mkdir()
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(venv)], check=True)
    (venv / "pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:%d/simple\n" % server)
    (work / "fetch.py").write_text(FETCH)
    done = command(work, "network: deps-only\n", str(venv / "bin" / "python"), "fetch.py", "http://127.0.0.1:%d/a" % server,
                   "http://192.0.2.1/", python=str(venv / "bin" / "python"))
    assert done.stdout.split() == ["/a", "403"] and done.returncode == 7, done
    done = command(work, "network: deps-only\n", "true", python="/bin/false")
    assert done.returncode == support.EXIT["python_unusable"], done
