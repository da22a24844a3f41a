"""Run by test_serve_e2b_debug.py in a network of its own, because E2B's clients use fixed ports in their debug mode: argv is what to check."""
import fcntl
import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import threading

import serving
import support

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGES = os.path.join(ROOT, "build", "e2b")
FLAGS = ("--executor", "sandbox", "--e2b-debug", "--auth-disabled", "--workers", "1")  # the debug mode has one sandbox, and so one worker
JAVASCRIPT = """
import { createRequire } from "node:module";
const require = createRequire(process.env.PACKAGES + "/package.json");
const { Sandbox } = require("@e2b/code-interpreter");
const sandbox = await Sandbox.create();
await sandbox.files.write("js.txt", "ü");
const ran = await sandbox.runCode("open('js.txt').read()");
const command = await sandbox.commands.run("cat js.txt; echo $HOME");
console.log(JSON.stringify([sandbox.sandboxId, ran.text, command.stdout, await sandbox.isRunning()]));
await sandbox.kill();
process.exit(0);
"""


def raise_loopback():
    with socket.socket() as sock:
        request = struct.pack("16sH14x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(sock, 0x8914, request)  # SIOCSIFFLAGS


def ask(port, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=support.DEADLINE)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.read()


def check_python():
    from e2b_code_interpreter import Sandbox
    sandbox = Sandbox.create()
    assert sandbox.sandbox_id == "debug_sandbox_id"
    assert sandbox.run_code("x = 6; x * 7").text == "42"
    sandbox.files.write("a.txt", "1")
    assert sandbox.files.read("/home/user/a.txt") == "1"
    assert sandbox.commands.run("cat a.txt; echo $HOME").stdout == "1/home/user\n"
    assert sandbox.is_running()
    with pty(sandbox) as terminal:
        assert terminal.pid > 0
    sandbox.kill()  # the client does nothing
    again = Sandbox.connect("debug_sandbox_id")
    assert again.run_code("x").text == "6"  # the same one
    listed = Sandbox.list(api_key="e2b_" + "0" * 40).next_items()
    assert len(listed) == 1 and listed[0].state.value == "running", listed
    assert ask(3000, "DELETE", "/sandboxes/debug_sandbox_id")[0] == 204
    assert again.run_code("'x' in globals()").text == "False"  # another one was made
    assert len(Sandbox.list(api_key="e2b_" + "0" * 40).next_items()) == 1


class pty:
    def __init__(self, sandbox):
        from e2b import PtySize
        self.made = sandbox.pty.create(PtySize(24, 80))

    def __enter__(self):
        return self.made

    def __exit__(self, *_):
        self.made.kill()


def check_javascript():
    node = os.path.join(ROOT, "build", "node", "bin", "node")
    done = subprocess.run([node, "--input-type=module", "-e", JAVASCRIPT], cwd=PACKAGES, stdout=subprocess.PIPE, timeout=support.DEADLINE, check=True,
                          env={**os.environ, "PACKAGES": PACKAGES}, text=True)
    assert json.loads(done.stdout) == ["debug_sandbox_id", "ü", "ü/home/user\n", True], done.stdout


def check_first_requests_at_once():
    """They make one sandbox, also where a body is streamed."""
    answers = []

    def put(i):
        answers.append(ask(49983, "POST", "/files?path=%d.txt&username=user" % i, b"%d" % i * 100000, Content_Type="application/octet-stream",
                           E2b_Sandbox_Id="debug_sandbox_id"))

    threads = [threading.Thread(target=put, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _ in answers] == [200] * 8, answers
    assert len(json.loads(ask(3000, "GET", "/v2/sandboxes")[1])) == 1
    for i in range(8):
        assert ask(49983, "GET", "/files?path=%d.txt" % i, E2b_Sandbox_Id="debug_sandbox_id") == (200, b"%d" % i * 100000)


def check_strangers():
    run = json.dumps({"code": "1"})
    # A page in a browser: its own origin, or a name of its own for this address.
    assert ask(49999, "POST", "/execute", run, Origin="http://evil.example", E2b_Sandbox_Id="debug_sandbox_id")[0] == 403
    assert ask(49999, "POST", "/execute", run, Host="evil.example:49999", E2b_Sandbox_Id="debug_sandbox_id")[0] == 403
    assert ask(3000, "GET", "/sandboxes", Host="evil.example:3000")[0] == 403
    # Another sandbox needs its token here too.
    status, made = ask(3000, "POST", "/sandboxes", "{}", X_API_Key="any")
    assert status == 201
    assert ask(49999, "POST", "/execute", run, E2b_Sandbox_Id=json.loads(made)["sandboxID"])[0] == 401
    assert ask(49999, "POST", "/execute", run, E2b_Sandbox_Id="debug_sandbox_id", X_Access_Token="wrong")[0] == 401
    assert ask(49999, "POST", "/execute", run, E2b_Sandbox_Id="no-such-sandbox")[0] == 502


def main(what):
    raise_loopback()
    os.environ.pop("E2B_API_KEY", None)
    os.environ["E2B_DEBUG"] = "true"
    server = serving.Server(*FLAGS, tokens=None, python="/usr/bin/python3")
    try:
        globals()["check_" + what]()
        assert "error" not in server.text().lower(), server.text()
    except BaseException:
        print(server.text(), file=sys.stderr)
        raise
    finally:
        server.close()


if __name__ == "__main__":
    main(sys.argv[1])
