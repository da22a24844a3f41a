"""Spares of Jupyter kernels: the process that is ready to become the next one, whose it is, and who may speak to it."""
import os
import signal
import socket
import struct
import subprocess
import sys

import pytest

import support
from support import DEADLINE, popen, wait_until
from test_jupyter_kernel import Kernel

READY = 1


class Server:
    """Stands for a Jupyter server: a process that lives as long as we want, and a runtime folder."""

    def __init__(self, folder):
        self.folder = folder
        self.runtime = folder / "runtime"
        self.runtime.mkdir()
        self.process = popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.kernels = []

    def start(self, name, *flags, **options):
        env = support.host_environment(**{"JPY_PARENT_PID": str(self.process.pid), "XDG_RUNTIME_DIR": str(self.runtime), **options.pop("more", {})})
        kernel = Kernel(self.folder / name, *flags, env=env, **options)
        self.kernels.append(kernel)
        return kernel.ready()

    def sockets(self):
        return list((self.runtime / "workcell").glob("workcell-spare-*"))

    def spare(self):
        """The path of the one spare's socket, which is there as soon as the spare is: it answers when it is warm."""
        wait_until(lambda: len(self.sockets()) == 1, "a spare's socket")
        return self.sockets()[0]

    def pid(self):
        """The spare's. One that has just been taken is followed by the next one."""
        def found():
            try:
                return peer_of(connect(self.spare()))
            except (ConnectionRefusedError, FileNotFoundError):
                return None

        return wait_until(found, "a spare that listens")

    def end(self, kernel):
        self.kernels.remove(kernel)
        kernel.close()

    def forget(self, kernel):
        """One that did not end as kernels do."""
        self.kernels.remove(kernel)
        kernel.process.wait(DEADLINE)
        for each in kernel.sockets.values():
            each.close()
        kernel.context.term()
        kernel.log.close()

    def close(self):
        for kernel in self.kernels:
            kernel.close()
        self.process.communicate(b"\n", timeout=DEADLINE)
        wait_until(lambda: not self.sockets(), "the end of the spares")


def connect(path):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = os.open(path.parent, os.O_PATH)  # its path may be too long for a socket's
    try:
        one.connect("/proc/self/fd/%d/%s" % (folder, path.name))
    finally:
        os.close(folder)
    return one


def peer_of(one):
    with one:
        return struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def is_served_elsewhere(kernel):
    """The process that Jupyter started only waits: it has no threads, of which a kernel has several."""
    return len(os.listdir("/proc/%d/task" % kernel.process.pid)) == 1


def is_gone(pid):
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, or after
        return True


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
def test_the_next_kernel_is_the_spare(server, executor):
    first = server.start("one", executor=executor)
    assert not is_served_elsewhere(first)
    spare = server.pid()
    second = server.start("two", executor=executor)
    assert is_served_elsewhere(second)
    # In its own folder, with its own variables and its own log.
    assert second.value("import os; os.getcwd()") == repr(str(second.work))
    assert first.value("import os; os.getcwd()") == repr(str(first.work))
    second.run("x = 1")
    assert first.value("'x' in globals()") == "False"
    other = Kernel.__new__(Kernel)  # messages with a wrong key are reported by the process that serves, to the log that Jupyter gave
    other.__dict__.update(second.__dict__)
    other.session = type(second.session)(key=b"guessed", signature_scheme="hmac-sha256")
    other.send("kernel_info_request")
    wait_until(lambda: "dropped" in second.read_log(), "a line in the log")
    # It was that process, it has started the next one, and it ends with its notebook.
    assert server.pid() != spare and not is_gone(spare)
    second.ask("shutdown_request", {"restart": False}, "control")
    second.process.wait(DEADLINE)
    wait_until(lambda: is_gone(spare), "the end of the process that served")
    assert first.value("1 + 1") == "2"


def test_signals_reach_it(server):
    server.start("one")
    server.pid()
    second = server.start("two")
    assert is_served_elsewhere(second)
    ident = second.start("import time\nprint('begun', flush=True)\ntime.sleep(600)")
    while second.receive("iopub")["msg_type"] != "stream":
        pass
    second.process.send_signal(signal.SIGINT)
    second.published(ident)
    assert second.receive("shell")["content"]["ename"] == "KeyboardInterrupt"
    assert second.value("6 * 7") == "42"
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(DEADLINE) == 128 + signal.SIGTERM


def test_killed_processes(server):
    """Of the two that serve a notebook, either one ends with the other; a spare that was killed is replaced."""
    first = server.start("one")
    spare = server.pid()
    second = server.start("two")
    second.process.kill()
    wait_until(lambda: is_gone(spare), "the end of the process that served")
    again = server.start("two")  # at the same addresses
    assert again.value("1 + 1") == "2"
    server.forget(second)
    waits = server.pid()
    os.kill(waits, signal.SIGKILL)
    wait_until(lambda: is_gone(waits), "the end of the spare")
    third = server.start("three")
    assert third.value("1 + 1") == "2"  # by itself, or by a spare of `again` that was only starting
    served = server.pid()
    fourth = server.start("four")
    assert is_served_elsewhere(fourth)
    os.kill(served, signal.SIGKILL)
    assert fourth.process.wait(DEADLINE) == 1
    server.forget(fourth)
    assert first.value("1 + 1") == "2"


@pytest.mark.parametrize("difference", ["flags", "environment", "server", "folder of the flags"])
def test_whose_spare_it_is(server, tmp_path, difference):
    """Nothing but a kernel that would be started in the same way gets it."""
    flags = ["--env", "A=1"]
    server.start("one", *flags, *(["--images-dir", "here"] if difference == "folder of the flags" else []))
    if difference == "folder of the flags":  # a relative path means something else elsewhere: there is no spare
        assert not is_served_elsewhere(server.start("two", *flags, "--images-dir", "here")) and not server.sockets()
        return
    server.pid()
    more = {"flags": {}, "environment": {"more": {"ADDED": "1"}}, "server": {"more": {"JPY_PARENT_PID": str(os.getpid())}}}[difference]
    if difference == "flags":
        flags = ["--env", "A=2"]
    if difference == "server":
        flags += ["--keep-ready", "1"]  # this server does not end with the test
    second = server.start("two", *flags, **more)
    assert not is_served_elsewhere(second)
    assert second.value("import os; os.environ['A']") == repr(flags[1][2:])
    if difference == "server":
        wait_until(lambda: len(server.sockets()) == 1, "the end of the other server's spare")


def test_it_waits_as_long_as_it_was_told(server):
    kernel = server.start("one", "--keep-ready", "0")
    assert not server.sockets()
    short = server.start("two", "--keep-ready", "1")
    spare = server.pid()
    wait_until(lambda: is_gone(spare) and not server.sockets(), "the end of the spare")
    assert kernel.value("1") == "1" and short.value("2") == "2"


def test_it_ends_with_its_server(tmp_path):
    server = Server(tmp_path)
    server.end(server.start("one"))
    spare = server.pid()
    server.close()
    wait_until(lambda: is_gone(spare), "the end of the spare")


def test_wrong_words_do_not_stop_it(server):
    server.start("one")
    spare = server.spare()
    pid = server.pid()
    for words in (b"", b"x", b"\1\0\0\0" + b"/etc/passwd" + bytes(4085), bytes(9000), b"\2\0\0\0" + bytes(4096)):
        with connect(spare) as one:
            one.send(words)
    with connect(spare) as one:  # descriptors without a message that goes with them
        socket.send_fds(one, [b"\1\0\0\0" + bytes(4096)], [0])
        one.settimeout(DEADLINE)
        assert one.recv(100) == b""
    with connect(spare) as one:  # a kernel that gives up
        socket.send_fds(one, [b"\1\0\0\0" + b"/nowhere".ljust(4096, b"\0")], [0, 1, 2])
        one.settimeout(DEADLINE)
        assert struct.unpack("2i", one.recv(100))[0] == READY
    second = server.start("two")
    assert is_served_elsewhere(second) and second.value("1 + 1") == "2" and not is_gone(pid)


IMPOSTOR = """
import os, socket, sys, time
at = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.chdir(os.path.dirname(sys.argv[1]))
at.bind(os.path.basename(sys.argv[1]))
at.listen(1)
print("listens", flush=True)
while True:
    one = at.accept()[0]
    print("asked", len(socket.recv_fds(one, 10000, 10)[1]), flush=True)
    one.send({reply!r})
"""


@pytest.mark.parametrize("kind, got", [("other namespaces", "asked 0"), ("wrong words", "asked 3")])
def test_an_impostor_gets_nothing(server, kind, got):
    """Something else listens where the spare should: from another namespace it is not even told; else the kernel serves by itself."""
    server.end(server.start("one"))
    path = server.spare()
    server.process.send_signal(signal.SIGSTOP)  # stays, so that the name stays the same
    os.kill(server.pid(), signal.SIGKILL)
    path.unlink()
    jail = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    code = IMPOSTOR.format(reply=struct.pack("2i", 77, 0))
    impostor = popen([*(jail if kind == "other namespaces" else []), sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert impostor.stdout.readline() == "listens\n"
        second = server.start("two")
        assert not is_served_elsewhere(second) and second.value("1 + 1") == "2"
        assert impostor.stdout.readline().strip() == got
    finally:
        server.process.send_signal(signal.SIGCONT)
        impostor.kill()
        impostor.communicate()
        path.unlink()


def test_a_folder_that_others_can_write_to_is_not_used(server):
    folder = server.runtime / "workcell"
    folder.mkdir()
    folder.chmod(0o777)
    server.start("one")
    assert not is_served_elsewhere(server.start("two")) and not server.sockets()
