"""A limit that was asked for is kept or refused: every flag that only some executors know, with every executor."""
import json
import socket
import subprocess

import pytest

import serving
import support

EXECUTORS = ["subprocess", "sandbox", "inprocess", "jupyter", "deno", "remote", "container"]

# flag -> (its arguments, who keeps it); everybody else refuses it.
FLAGS = {
    "--memory": (["300M"], {"sandbox", "container"}),
    "--cpus": (["0.5"], {"sandbox", "container"}),
    "--pids": (["24"], {"sandbox", "container"}),
    "--disk": (["100M"], {"sandbox"}),
    "--network": (["none"], {"sandbox", "container", "deno"}),
    "--isolation": (["session"], {"container"}),
    "--container-user": (["1234:1234"], {"container"}),
    "--container-host": (["unix:///nowhere"], {"container"}),
    "--container-context": (["/nowhere"], {"container"}),
    "--container-base": (["debian"], {"container"}),
    "--image": (["nothing:0"], {"container"}),
    "--startup-timeout": (["5"], {"container"}),
    "--sandbox-policy": (["untrusted"], {"sandbox"}),
    "--workspace-mode": (["ro"], {"sandbox"}),
    "--kernel": (["python3"], {"jupyter"}),
    "--remote-url": (["http://127.0.0.1:1"], {"remote"}),
    "--remote-ca": (["/nowhere"], {"remote"}),
    "--remote-reopen": ([], {"remote"}),
    "--remote-repeat": ([], {"remote"}),
}
# Names of earlier versions, which mean the same: name -> (its arguments, today's flag)
OLD = {"--memory-limit": (["300M"], "--memory"), "--cpu-quota": (["50000"], "--cpus"), "--pids-limit": (["24"], "--pids"),
       "--network-disabled": ([], "--network")}
REFUSED = [(flag, executor) for flag, (_, keepers) in FLAGS.items() for executor in EXECUTORS if executor not in keepers]


def refusal(command, *flags):
    done = support.workcell(command, *flags)
    return done.status, done.err


@pytest.mark.parametrize("flag, executor", REFUSED)
def test_a_flag_of_another_executor_is_refused(flag, executor):
    """The operator believes that a limit holds, and nothing keeps it."""
    status, words = refusal("run", "--executor", executor, flag, *FLAGS[flag][0], "-e", "1")
    assert status == support.EXIT["invalid"] and "invalid: %s " % flag in words, words


@pytest.mark.parametrize("flag", sorted(OLD))
@pytest.mark.parametrize("executor", ["subprocess", "inprocess", "jupyter", "remote"])
def test_a_limit_by_its_old_name_is_refused_as_well(flag, executor):
    """Scripts that were written for an earlier version."""
    status, words = refusal("run", "--executor", executor, flag, *OLD[flag][0], "-e", "1")
    assert status == support.EXIT["invalid"] and "invalid: %s requires" % OLD[flag][1] in words, words


@pytest.mark.parametrize("executor, flags, words", [
    ("container", ["--network", "deps-only"], "cannot allow only some hosts of the network; use the executor sandbox or deno"),
    ("container", ["--network", "allow=example.org"], "cannot allow only some hosts"),
    ("sandbox", ["--network", "al"], "expected none, deps-only, full or allow="),
    ("sandbox", ["--network", "allow="], "is not HOST or HOST:PORT"),
    ("sandbox", ["--network", "allow=a,,b"], "is not HOST or HOST:PORT"),
    ("sandbox", ["--network", "allow=a:0"], "is not HOST or HOST:PORT"),
    ("sandbox", ["--network", "allow=" + ",".join("h%d" % i for i in range(300))], "there are more than 256"),
    ("deno", ["--network", "allow=a --allow-read"], "allow= takes names and addresses"),
    ("deno", ["--network", "allow="], "allow= takes names and addresses"),
    ("sandbox", ["--cpus", "0.001"], "--cpus must be a number of CPUs"),
    ("sandbox", ["--cpus", "-1"], "--cpus must be a number of CPUs"),
    ("sandbox", ["--disk", "1"], "--disk must be at least 1M, or 0 for no limit"),
    ("sandbox", ["--memory", "1000"], "--memory must be at least 16M, or 0 for no limit"),
    ("container", ["--memory", "20M"], "--memory must be at least 64M, or 0 for no limit"),
])
def test_values_that_no_executor_could_keep(executor, flags, words):
    """A limit with a typing error is not a limit."""
    status, said = refusal("run", "--executor", executor, *flags, "-e", "1")
    assert status == support.EXIT["invalid"] and words in said, said


@pytest.mark.parametrize("flag", sorted(FLAGS))
@pytest.mark.parametrize("command", ["shell", "mcp"])
def test_without_an_executor_it_is_subprocess_that_refuses(command, flag):
    """The default executor confines nothing, so each of these flags would be ignored."""
    status, words = refusal(command, flag, *FLAGS[flag][0])
    assert status == support.EXIT["invalid"] and "invalid: %s " % flag in words, words


@pytest.mark.parametrize("executor", ["subprocess", "inprocess", "jupyter", "deno"])
@pytest.mark.parametrize("check", [["--check-config"], []])
def test_a_server_does_not_start_with_a_limit_that_its_sessions_lack(executor, check):
    """`workcell serve` opens sessions later: the refusal comes before anybody is served."""
    status, words = refusal("serve", "--executor", executor, "--auth-disabled", "--listen", "127.0.0.1:0", "--memory", "300M", *check)
    assert status == support.EXIT["invalid"] and "--memory requires --executor" in words, words


def test_a_servers_configuration_file_is_refused_as_its_flags_are(tmp_path):
    """The same limit in --config."""
    (tmp_path / "serve.yaml").write_text("executor: subprocess\nauth-disabled: true\npids: 10\n")
    status, words = refusal("serve", "--config", str(tmp_path / "serve.yaml"), "--check-config")
    assert status == support.EXIT["invalid"] and "--pids requires --executor" in words, words


def test_no_runtime_deps_does_not_reach_a_remote_server():
    """A restriction that only the other side could keep."""
    status, words = refusal("run", "--executor", "remote", "--remote-url", "http://127.0.0.1:1", "--no-runtime-deps", "-e", "1")
    assert status == support.EXIT["invalid"] and "--no-runtime-deps" in words, words


# ---- what is kept ----


def sandboxed(tmp_path, *flags, code):
    found = support.workcell("run", "--json", "--python", "/usr/bin/python3", "--executor", "sandbox", "--cwd", str(tmp_path), *flags, "-e",
                             code)
    return json.loads(found.out)


def test_the_sandbox_keeps_a_memory_limit(tmp_path):
    """The policy's own limit is 2 GiB."""
    found = sandboxed(tmp_path, "--memory", "200M", code="len(bytearray(400 << 20))")
    assert found["error"] and found["error"]["code"] == "limit_exceeded", found
    assert found["isolation"]["limits"]["memory_bytes"]["max"] == 200 << 20, found


def test_the_sandbox_keeps_a_limit_of_processes(tmp_path):
    """The policy's own limit is 256."""
    code = """
import os, time
n = 0
try:
    while n < 100:
        if os.fork() == 0:
            time.sleep(1000)
        n += 1
except OSError:
    pass
n"""
    found = sandboxed(tmp_path, "--pids", "24", code=code)
    assert found["value"] is not None and found["value"] < 24, found


def test_the_sandbox_keeps_a_cpu_quota(tmp_path):
    """The receipt is what the kernel says of the group that holds it."""
    found = sandboxed(tmp_path, "--cpus", "0.5", code="1")
    if found["error"]:  # without a cgroup nobody can keep it
        assert found["error"]["code"] == "sandbox_failed", found
    else:
        assert found["isolation"]["limits"]["cpu_percent"]["max"] == 50, found


def test_the_sandbox_keeps_a_limit_of_what_is_written(tmp_path):
    """In one file, in /tmp and in the workspace."""
    found = sandboxed(tmp_path, "--disk", "2M", code="open('big', 'wb').write(bytes(3 << 20))")
    assert found["error"]["code"] == "limit_exceeded", found
    found = sandboxed(tmp_path, "--disk", "2M", code="for i in range(9): open('/tmp/%d' % i, 'wb').write(bytes(1 << 19))")
    assert "No space left" in found["error"]["message"], found
    code = "import time\nfor i in range(9): open('part%d' % i, 'wb').write(bytes(1 << 19))\nfor _ in range(600): time.sleep(0.05)"
    found = sandboxed(tmp_path, "--disk", "2M", code=code)
    assert found["error"]["code"] == "limit_exceeded" and found["isolation"]["limits"]["workspace_bytes"]["max"] == 2 << 20, found


def test_the_sandbox_keeps_a_list_of_hosts(tmp_path):
    """The preset `developer` has all of the network."""
    with socket.create_server(("127.0.0.1", 0)) as allowed, socket.create_server(("127.0.0.1", 0)) as other:
        code = """
import socket
def ask(port):
    proxy = socket.create_connection(("127.0.0.1", 3128), 20)
    proxy.sendall(b"CONNECT 127.0.0.1:%%d HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" %% port)
    return proxy.recv(4096).split()[1].decode()
[ask(%d), ask(%d)]""" % (allowed.getsockname()[1], other.getsockname()[1])
        listed = "allow=127.0.0.1:%d,*.example.org" % allowed.getsockname()[1]
        found = sandboxed(tmp_path, "--sandbox-policy", "developer", "--network", listed, code=code)
    assert found["value"] == ["200", "403"] and found["isolation"]["network"] == "allow", found


def test_the_sandbox_keeps_a_disabled_network_whatever_the_policy_says(tmp_path):
    """The preset `developer` has all of the network."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = "import socket; socket.create_connection(('127.0.0.1', %d), 5).close()" % listener.getsockname()[1]
        assert sandboxed(tmp_path, "--sandbox-policy", "developer", code=code)["error"] is None
        found = sandboxed(tmp_path, "--sandbox-policy", "developer", "--network", "none", code=code)
    assert found["error"] and found["isolation"]["network"] == "none", found


def test_a_served_session_has_the_limits_of_the_flags():
    """They reach sessions that clients open."""
    server = serving.Server("--executor", "sandbox", "--pids", "77", "--network-disabled")
    try:
        found = server.events(server.session(), "1")[-1][2]["isolation"]
        assert found["limits"]["pids"]["max"] == 77 and found["network"] == "none", found
    finally:
        server.close()


def test_a_limit_too_small_to_start_with_is_refused(tmp_path):
    """Less memory than Python needs is an answer, not a dead kernel."""
    found = sandboxed(tmp_path, "--memory", "1M", code="1")
    assert found["error"]["code"] == "invalid", found


def test_deno_refuses_a_network_that_is_both_on_and_off():
    """Two flags that contradict each other."""
    status, words = refusal("run", "--executor", "deno", "--network", "full", "--network-disabled", "-e", "1")
    assert status == support.EXIT["invalid"], words


@pytest.mark.parametrize("command, flag", [("mcp", "--auth-token-file"), ("serve", "--auth-token-file"), ("serve", "--tls-key")])
@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_a_servers_secrets_do_not_lie_where_its_sessions_look(tmp_path, command, flag, mode):
    """Code that reads the token of its own server is a client of it."""
    work = tmp_path / "work"
    work.mkdir()
    token = (work if flag == "--auth-token-file" else tmp_path) / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    flags = ["--auth-token-file", str(token)]
    if flag == "--tls-key":
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=x",
                        "-keyout", work / "key", "-out", tmp_path / "cert"], check=True, capture_output=True)
        flags += [flag, str(work / "key"), "--tls-cert", str(tmp_path / "cert")]
    status, words = refusal(command, "--executor", "sandbox", "--workspace-mode", mode, "--listen", "127.0.0.1:0", "--cwd", str(work), *flags)
    assert status == support.EXIT["invalid"] and "where the code of sessions can read it" in words, words
