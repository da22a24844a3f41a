"""As a service of systemd: what the manager is told, sockets that it opened, the units."""
import os
import re
import signal
import socket
import subprocess
import tempfile

import pytest

import serving
import support

UNITS = os.path.join(support.ROOT, "packaging", "systemd")


class Served(serving.Server):
    """A server that was given a socket as systemd does it: descriptor 3, and the pid that it is for."""

    def __init__(self, sock, *flags, count=1, **options):
        plain = support.popen

        def popen(argv, **more):
            return plain(["/bin/sh", "-c", 'export LISTEN_PID=$$ LISTEN_FDS=%d; exec "$@"' % count, "sh", *argv],
                         preexec_fn=lambda: os.dup2(sock.fileno(), 3), pass_fds=(3,), **more)
        support.popen = popen
        try:
            super().__init__("--executor", "subprocess", *flags, listen=options.pop("listen", None), **options)
        finally:
            support.popen = plain


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_is_told(tmp_path, abstract):
    name = "workcell-tests-%d" % os.getpid() if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name if abstract else name)
        manager.settimeout(support.DEADLINE)
        server = serving.Server("--executor", "subprocess", env={"NOTIFY_SOCKET": ("@" if abstract else "") + name})
        assert manager.recv(4096).startswith(b"READY=1\n")
        # What the code starts must not be able to speak for the service.
        assert server.execute("import os; [n for n in os.environ if 'NOTIFY' in n or 'LISTEN' in n]")["value"] == []
        server.process.send_signal(signal.SIGTERM)
        assert manager.recv(4096).startswith(b"STOPPING=1\n")
        server.close()


def test_a_manager_that_is_not_there_is_no_reason_not_to_serve(tmp_path):
    server = serving.Server("--executor", "subprocess", env={"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    assert server.execute("1")["value"] == 1
    server.close()


def test_a_socket_of_the_manager():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        server = Served(sock)
        assert server.port == port and server.execute("1")["value"] == 1
        server.close()
        # Still open: who connects now is served by the next one.
        waiting = socket.create_connection(("127.0.0.1", port))
        second = Served(sock)
        waiting.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"healthy" in serving.read_all(waiting)
        waiting.close()
        second.close()


def test_a_unix_socket_of_the_manager_stays(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen(16)
        server = Served(sock)
        assert server.path == path and server.execute("1")["value"] == 1
        server.close()
    assert os.path.exists(path), "it is the manager's"


def refusal(sock, *flags, count=1, tokens=True):
    argv = ["/bin/sh", "-c", 'export LISTEN_PID=$$ LISTEN_FDS=%d; exec "$@"' % count, "sh", support.BIN, "serve", "--python",
            support.bare_python(), *flags]
    if tokens:
        argv += ["--auth-token-file", serving.token_file(serving.TOKENS)]
    done = subprocess.run(argv, preexec_fn=lambda: os.dup2(sock.fileno(), 3), pass_fds=(3,), stdin=subprocess.DEVNULL,
                          env=support.host_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=support.DEADLINE)
    assert done.returncode == 2, done
    return done.stderr.decode()


def test_sockets_that_are_refused():
    with socket.create_server(("0.0.0.0", 0)) as sock:
        # The socket's own address counts.
        assert "can be reached from other machines: a token is required" in refusal(sock, "--auth-disabled", tokens=False)
        assert "leave --listen out" in refusal(sock, "--listen", "127.0.0.1:0")
        assert "2 sockets were handed over" in refusal(sock, count=2)
        assert "descriptor 9 is not a socket that listens" in refusal(sock, "--listen", "fd:9", count=0)
        assert "expected the number of a descriptor" in refusal(sock, "--listen", "fd:0", count=0)
    with socket.socket() as sock:
        assert "descriptor 3 is not a socket that listens" in refusal(sock)


def test_variables_for_another_process_are_not_ours():
    server = serving.Server("--executor", "subprocess", env={"LISTEN_PID": "1", "LISTEN_FDS": "1"})
    server.close()


def test_the_units_are_valid():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("workcell.service", "workcell.socket"):
            with open(os.path.join(UNITS, name), encoding="utf-8") as file:
                text = file.read()
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text.replace("/usr/local/bin/workcell", support.BIN).replace("man:workcell-serve(1)", "https://example.org")
                           .replace("User=workcell", "User=root").replace("Group=workcell", "Group=root"))
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", os.path.join(folder, name)], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=support.DEADLINE)
            wrong = [line for line in done.stdout.decode().splitlines() if folder in line or name in line]
            assert not wrong, done.stdout.decode()
        assert re.search(r"^Delegate=yes$", open(os.path.join(UNITS, "workcell.service"), encoding="utf-8").read(), re.M)


#: Of systemd's scale from 0 to 10; what is left is what sandboxes need, see the unit.
EXPOSURE = 6.5


def test_the_service_is_confined():
    done = subprocess.run(["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=%d" % (EXPOSURE * 10), os.path.join(UNITS, "workcell.service")],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=support.DEADLINE)
    assert done.returncode == 0, done.stdout.decode()
