"""`workcell exec`: a command in a new session, or in a session of a server."""
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import time

import pytest

import serving
import support


@pytest.fixture(scope="module")
def server():
    with serving.shared("--executor", "subprocess", tokens=serving.TOKEN) as made:
        yield made


@pytest.fixture(params=["new", "sandbox", "server"])
def flags(request, tmp_path):
    if request.param != "server":
        return ["--executor", "subprocess" if request.param == "new" else "sandbox", "--cwd", str(tmp_path)]
    server = request.getfixturevalue("server")
    session = server.ask("POST", "/v1/sessions", {}).json["session_id"]
    return ["--session", session[:12], "--remote-url", "http://127.0.0.1:%d" % server.port, "--auth-token-file", server.tokens]


def run(flags, *words):
    return subprocess.run([support.BIN, "exec", *flags, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=support.DEADLINE)


def test_streams_and_status(flags):
    done = run(flags, "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert run(flags, "printf", "--", "%s|", "-a b", "$x").stdout == b"-a b|$x|"
    data = os.urandom(3_000_000)
    done = subprocess.run([support.BIN, "exec", *flags, "cat"], input=data, capture_output=True, timeout=support.DEADLINE)
    assert done.returncode == 0 and done.stdout == data, done.stderr
    assert run([*flags, "--env", "WHO=me=you"], "echo $WHO; cat").stdout == b"me=you\n"
    assert run(flags, "kill -9 $$").returncode == 137


def test_failures_and_limits(flags):
    done = run(flags, "no-such-program")
    assert done.returncode == 127 and b"no program no-such-program" in done.stderr
    done = run([*flags, "--timeout", "0.3"], "echo begun; sleep 60")
    assert (done.returncode, done.stdout) == (124, b"begun\n")
    assert run(flags).returncode == 2


def wait_for(stream, text):
    seen = b""
    while text not in seen:
        piece = os.read(stream.fileno(), 1000)
        assert piece, seen
        seen += piece


def test_signals_are_passed_on(flags):
    program = "trap 'echo int; exit 5' INT; echo ready; while :; do sleep 0.02; done"
    process = subprocess.Popen([support.BIN, "exec", *flags, program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    wait_for(process.stdout, b"ready")
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=support.DEADLINE)[0], process.returncode) == (b"int\n", 5)
    process = subprocess.Popen([support.BIN, "exec", *flags, "trap '' INT; echo ready; while :; do sleep 0.02; done"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    wait_for(process.stdout, b"ready")
    deadline = time.monotonic() + support.DEADLINE
    while process.poll() is None and time.monotonic() < deadline:  # twice: it is killed
        process.send_signal(signal.SIGINT)
        try:
            process.wait(0.3)
        except subprocess.TimeoutExpired:
            pass
    process.communicate()
    assert process.returncode == 137


def test_a_terminal(flags):
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 44, 0, 0))
    process = subprocess.Popen([support.BIN, "exec", *flags, "--tty", "stty size; read x; echo got $x"], stdin=side, stdout=side,
                               stderr=side)
    os.close(side)
    seen = b""
    while b"33 44" not in seen:
        seen += os.read(main, 1000)
    os.write(main, b"typed\r")
    while b"got typed" not in seen:
        seen += os.read(main, 1000)
    assert process.wait(support.DEADLINE) == 0
    os.close(main)


def test_output_does_not_act_on_the_terminal(flags):
    main, side = pty.openpty()
    process = subprocess.Popen([support.BIN, "exec", *flags, "printf 'a\\033]0;title\\007b'"], stdin=subprocess.DEVNULL, stdout=side)
    os.close(side)
    seen = b""
    while b"b" not in seen:
        seen += os.read(main, 1000)
    assert process.wait(support.DEADLINE) == 0 and b"\x1b]0;" not in seen
    os.close(main)


def test_an_input_at_its_end_costs_nothing(server):
    session = server.ask("POST", "/v1/sessions", {}).json["session_id"]
    flags = ["--session", session, "--remote-url", "http://127.0.0.1:%d" % server.port, "--auth-token-file", server.tokens]
    before = os.times()
    assert run(flags, "sleep 1.5").returncode == 0
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.7
    done = run([*flags, "--executor", "sandbox"], "true")
    assert done.returncode == 2 and b"leave out --executor" in done.stderr
    done = run(["--session", "0" * 32, *flags[2:]], "true")
    assert done.returncode == 125 and b"no session begins with" in done.stderr
