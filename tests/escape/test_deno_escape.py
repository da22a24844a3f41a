"""The escape suite of the `deno` executor: deno_attempts.py, with everything left in reach and in a session as it is."""
import json
import os
import re
import socket
import subprocess

import pytest

import deno_attempts
import support

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture(scope="module")
def server():
    """What there is to be reached on the network. Nobody may ever have come."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture(scope="module")
def session():
    driver = support.Driver("--timeout", "10", executor="deno")
    support.shared_drivers.append(driver)
    driver.deno = driver.locate()
    yield driver
    driver.close()
    support.shared_drivers.remove(driver)


@pytest.fixture(scope="module")
def command(session):
    """The command line and environment of a session's process, as they are."""
    with open("/proc/%d/cmdline" % session.deno, "rb") as file:
        argv = file.read().decode().split("\0")[:-1]
    with open("/proc/%d/environ" % session.deno, "rb") as file:
        env = dict(entry.split("=", 1) for entry in file.read().decode().split("\0")[:-1])
    return argv, env


@pytest.fixture(scope="module")
def outcomes(command, server):
    """What came of each expression in a worker of the same flags and permissions that hides nothing."""
    argv, env = command
    runner = next(i for i, arg in enumerate(argv) if arg.endswith("/runner.mjs"))
    opener = os.path.join(HERE, "deno_open.mjs")
    argv = argv[:runner] + [opener]
    read = next(i for i, arg in enumerate(argv) if arg.startswith("--allow-read="))
    parent_file = argv[read].split("=", 1)[1].split(",")[0]
    argv[read] += "," + opener
    # With eval, or no attempt could be made.
    flags = next(i for i, arg in enumerate(argv) if arg.startswith("--v8-flags="))
    argv[flags] = argv[flags].replace("--disallow-code-generation-from-strings,", "")
    port = str(server.getsockname()[1])
    attempts = {name: text.replace("PORT", port).replace("PARENT_FILE", repr(parent_file))
                for name, text in deno_attempts.JS.items()}
    attempts.update({"control: eval": "1 + 1", "control: Deno": "Deno.version.deno"})
    done = subprocess.run(argv, input=json.dumps(attempts).encode(), stdout=subprocess.PIPE, env=env, cwd="/",
                          timeout=support.DEADLINE * 2, check=True)
    return json.loads(done.stdout)


def test_the_open_worker_is_open(outcomes):
    assert outcomes["control: eval"] == "GOT THROUGH: 2"
    assert re.match(r"GOT THROUGH: \d+\.", outcomes["control: Deno"])


@pytest.mark.parametrize("name", deno_attempts.JS)
def test_refused_with_everything_in_reach(outcomes, name):
    assert re.search(deno_attempts.REFUSED, outcomes[name]), outcomes[name]
    assert not outcomes[name].startswith("GOT THROUGH")


@pytest.mark.parametrize("name", deno_attempts.PYTHON)
def test_refused_in_a_session(session, server, name):
    code = deno_attempts.PYTHON[name].replace("PORT", str(server.getsockname()[1]))
    result = session.run(code)
    assert result["error"] is not None and result["error"]["code"] == "exception", result
    assert result["error"]["type"] != "AssertionError", result


def test_nobody_came_and_nothing_was_written(outcomes, session, server):
    server.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.accept()
    assert not [name for name in os.listdir("/tmp") if name.startswith("workcell-escape") and
                not name.startswith("workcell-escape-")]


def test_the_command_line(command):
    """What makes the difference, each measured: see docs/executors.md."""
    argv, env = command
    assert {"--no-prompt", "--no-config", "--no-lock", "--no-remote", "--no-npm", "--cached-only"} <= set(argv)
    assert [arg for arg in argv if re.match("--allow-|-A|--deny-", arg) and not arg.startswith("--allow-read=/")] == ["--deny-net"]
    assert "--disallow-code-generation-from-strings" in " ".join(argv)
    env.pop("PWD", None)  # the shell's
    assert env == {"DENO_DIR": "/dev/null/x", "DENO_WEBGPU_BACKEND": "none", "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1",
                   "DENO_TLS_CA_STORE": "system,mozilla"}


def test_limits_of_the_process(session):
    with open("/proc/%d/limits" % session.deno, encoding="ascii") as file:
        limits = {line[:26].strip(): line[26:].split()[:2] for line in file}
    assert limits["Max file size"] == ["0", "0"] and limits["Max core file size"] == ["0", "0"]
    assert limits["Max open files"] == ["128", "128"]
    assert "unlimited" not in limits["Max data size"]
