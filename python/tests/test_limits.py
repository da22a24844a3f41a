"""Limits by one vocabulary: an executor keeps them, or the session is refused in Python's words."""
import dataclasses
import socket

import pytest
from conftest import run

import workcell
from workcell import (ContainerConfig, DenoSandboxConfig, InProcessConfig, JupyterConfig, SandboxConfig, Session, SubprocessConfig)
from workcell.sync import Session as SyncSession

LIMITS = {"memory": "300m", "cpus": 0.5, "pids": 24, "disk": "2m", "network": "none"}
KEEPERS = {"memory": "sandbox or container", "cpus": "sandbox or container", "pids": "sandbox or container", "disk": "sandbox",
           "network": "sandbox or container or deno"}


# ---- refused


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("config", [SubprocessConfig, InProcessConfig, JupyterConfig, DenoSandboxConfig])
def test_an_executor_that_cannot_keep_a_limit_refuses_it(config, limit):
    if config is DenoSandboxConfig and limit == "network":
        return  # it keeps that one
    with pytest.raises(workcell.errors.InvalidError) as caught:
        SyncSession(executor=config(**{limit: LIMITS[limit]})).start()
    words = str(caught.value)
    assert "cannot" in words and "use the executor %s" % KEEPERS[limit].split()[0] in words, words
    assert limit in words and "_limit" not in words and "quota" not in words and "--" not in words


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_of_a_server_are_set_there(limit):
    for value in (LIMITS[limit], 0 if limit != "network" else "full"):
        config = ContainerConfig(remote_url="http://127.0.0.1:1", auth_token="x", **{limit: value})
        with pytest.raises(ValueError, match="belong to the server.*: %s$" % limit):
            SyncSession(executor=config).start()


@pytest.mark.parametrize("given, words", [
    ({"memory": "lots"}, "memory must be a number of bytes"), ({"memory": -1}, "memory must be"), ({"memory": True}, "memory must be"),
    ({"disk": "1.5g"}, "disk must be"), ({"cpus": 0.001}, "cpus must be a number of CPUs"), ({"cpus": -1}, "cpus must be"),
    ({"cpus": float("nan")}, "cpus must be"), ({"pids": -1}, "pids must be"), ({"pids": "5"}, "pids must be"),
    ({"network": "some"}, "network must be"), ({"network": ["a b"]}, "'a b' is not a host"), ({"network": ["a,b"]}, "is not a host"),
    ({"network": "full", "network_disabled": True}, "give only network"), ({"memory": "1g", "memory_limit": "2g"}, "give only memory"),
    ({"cpus": 1, "cpu_quota": 50000}, "give only cpus"),
])
def test_values_that_are_not_limits(given, words):
    with pytest.raises(ValueError, match=words):
        SandboxConfig(**given)


@pytest.mark.parametrize("given, words", [
    ({"memory": 1000}, r"^memory is 1000, expected at least \d+, or 0 for no limit"),
    ({"disk": 1}, r"^disk is 1, expected at least \d+, or 0 for no limit"),
    ({"network": "allow="}, "is not HOST or HOST:PORT"),
])
def test_values_that_the_sandbox_refuses(given, words, tmp_path):
    with pytest.raises(workcell.errors.InvalidError, match=words):
        SyncSession(executor=SandboxConfig(cwd=tmp_path, **given)).start()


# ---- kept


def in_a_sandbox(tmp_path, code, **config):
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    with SyncSession(executor=SandboxConfig(cwd=work, default_timeout=40, **config)) as session:
        return session.run(code)


def test_the_sandbox_keeps_memory_cpus_and_pids(tmp_path):
    result = in_a_sandbox(tmp_path, "x = bytearray(600 << 20)", memory="300m")
    assert result.error_info.code == "limit_exceeded" and result.error_info.limit == "memory", result.error
    limits = in_a_sandbox(tmp_path, "1", memory="300m", cpus=0.5, pids=24).isolation["limits"]
    assert limits["memory_bytes"]["max"] == 300 << 20 and limits["pids"]["max"] == 24, limits
    if "cpu_percent" in limits:
        assert limits["cpu_percent"]["max"] == 50
    code = "import subprocess\nfor i in range(40): subprocess.Popen(['sleep', '30'])"
    assert in_a_sandbox(tmp_path, code, pids=24).error is not None
    assert in_a_sandbox(tmp_path, code, pids=100).error is None


def test_the_sandbox_keeps_the_disk(tmp_path):
    """In one file, in /tmp, and in the working directory."""
    result = in_a_sandbox(tmp_path, "open('big', 'wb').write(bytes(3 << 20))", disk="2m")
    assert result.error_info.code == "limit_exceeded", result.error
    result = in_a_sandbox(tmp_path, "for i in range(9): open('/tmp/%d' % i, 'wb').write(bytes(1 << 19))", disk="2m")
    assert "No space left" in result.error
    code = "import time\nfor i in range(9): open('part%d' % i, 'wb').write(bytes(1 << 19))\nfor _ in range(600): time.sleep(0.05)"
    assert in_a_sandbox(tmp_path, code, disk=2 << 20).error_info.code == "limit_exceeded"


ASK = """
import socket
def ask(port):
    proxy = socket.create_connection(("127.0.0.1", 3128), 20)
    proxy.sendall(b"CONNECT 127.0.0.1:%%d HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" %% port)
    return proxy.recv(4096).split()[1].decode()
[ask(%d), ask(%d)]"""


@pytest.mark.parametrize("form", [lambda host: [host], lambda host: "allow=" + host])
def test_the_sandbox_keeps_a_list_of_hosts(tmp_path, form):
    with socket.create_server(("127.0.0.1", 0)) as allowed, socket.create_server(("127.0.0.1", 0)) as other:
        ports = (allowed.getsockname()[1], other.getsockname()[1])
        result = in_a_sandbox(tmp_path, ASK % ports, policy="developer", network=form("127.0.0.1:%d" % ports[0]))
    assert result.value == ["200", "403"] and result.isolation["network"] == "allow", result.error


def test_limits_replace_those_of_a_policy_file(tmp_path):
    (tmp_path / "policy.yaml").write_text("preset: developer\nlimits: {pids: 50}\n")
    result = in_a_sandbox(tmp_path, "1", policy=tmp_path / "policy.yaml", network="none", pids=30)
    assert result.isolation["network"] == "none" and result.isolation["limits"]["pids"]["max"] == 30
    assert in_a_sandbox(tmp_path, "1", network=[]).isolation["network"] == "none"
    assert "pids" not in in_a_sandbox(tmp_path, "1", pids=0).isolation["limits"]


def test_a_session_takes_them_too(tmp_path):
    async def main():
        (tmp_path / "work").mkdir()
        made = Session.sandbox(tmp_path / "base", cwd=tmp_path / "work", memory="256m", pids=33, disk="8m", cpus=1, network="none")
        async with made as session:
            limits = (await session.run("1")).isolation["limits"]
            assert limits["memory_bytes"]["max"] == 256 << 20 and limits["pids"]["max"] == 33
            assert limits["workspace_bytes"]["max"] == 8 << 20 and "no network" in await session.prompt_text()

    run(main())


# ---- older names


def test_older_names_mean_the_same():
    older = SandboxConfig(memory_limit="300m", cpu_quota=50000, pids_limit=24, disk_limit="2m", network_disabled=True)
    assert {name: getattr(older, name) for name in LIMITS} == LIMITS
    assert older.session_options() == SandboxConfig(**LIMITS).session_options()
    assert dataclasses.replace(older, default_timeout=5).memory == "300m"
    container = ContainerConfig(memory_limit=0, cpu_quota=1.5, network_disabled=True).session_options()
    assert container["memory_limit"] == -1 and container["cpu_quota"] == 150000 and container["network"] == "none"
    assert DenoSandboxConfig(network_profile="full").session_options()["network"] == "full"
    with pytest.raises(ValueError, match="give only network"):
        DenoSandboxConfig(network_profile="full", network="none")
