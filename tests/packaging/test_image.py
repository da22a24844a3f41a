"""The image, as `make image` makes it, in a Docker engine of our own: what it says of itself, and whether its health check tells the truth."""
import gzip
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

import clean
import support

sys.path.insert(0, os.path.join(support.ROOT, "scripts"))
import docker_engine  # noqa: E402

VERSION = open(os.path.join(support.ROOT, "VERSION")).read().strip()
# The name of the base that the Dockerfile has by default, in an engine that has no registry.
BASE = "debian:bookworm-slim"
SECONDS = 60
pytestmark = pytest.mark.skipif(not shutil.which("dockerd") or os.geteuid() != 0, reason="needs docker.io from Debian, and root")


def docker(host, *argv, status=0):
    done = docker_engine.docker(host, *argv)
    assert done.returncode == status, done.stdout.decode()
    return done.stdout.decode().strip()


@pytest.fixture(scope="module")
def engine():
    clean.make_root()
    os.makedirs(docker_engine.FOLDER, exist_ok=True)
    with docker_engine.private() as host:
        assert host, "dockerd does not start, see build/docker/log"
        if docker_engine.docker(host, "image", "inspect", BASE).returncode != 0:
            archive = subprocess.Popen(["tar", "-C", clean.ROOT, "--exclude=./proc/*", "--exclude=./sys/*", "-cf", "-", "."], stdout=subprocess.PIPE)
            made = docker_engine.docker(host, "import", "-", BASE, stdin=archive.stdout)
            archive.stdout.close()
            assert archive.wait() == 0 and made.returncode == 0, made.stdout
        # Nor has it the machine's settings of npm: the console's files are made before, as docs/console.md says.
        console = os.path.join(support.ROOT, "console")
        for argv in (["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], ["npm", "run", "build", "--silent"]):
            subprocess.run(argv, cwd=console, check=True)
        program = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else "docker"
        # The private engine has no bridge, and builds install packages.
        built = subprocess.run(["make", "-s", "image", "ENGINE=%s --host %s" % (program, host), "IMAGE_FLAGS=--network=host"], cwd=support.ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert built.returncode == 0, built.stdout.decode()[-4000:]
        yield host


@pytest.fixture
def server(engine, tmp_path):
    """(container, address, token) of a server in the image."""
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    policy = os.path.join(support.ROOT, "packaging", "policy.yaml")
    name = docker(engine, "run", "--detach", "--network=host", "--health-interval=1s", "--volume", "%s:/token:ro" % token, "--volume",
                  "%s:/policy.yaml:ro" % policy, "workcell:" + VERSION, "serve", "--listen", "127.0.0.1:%d" % port, "--auth-token-file", "/token",
                  "--executor", "sandbox", "--sandbox-policy", "/policy.yaml", "--console")
    try:
        yield name, "http://127.0.0.1:%d" % port, token.read_text()
    finally:
        docker(engine, "rm", "--force", name)


def wait_for_health(engine, name, wanted):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        state = json.loads(docker(engine, "inspect", "--format", "{{json .State}}", name))
        if state.get("Health", {}).get("Status") == wanted:
            return
        assert state["Running"], docker(engine, "logs", name)
        time.sleep(0.1)
    raise AssertionError("not %s after %d s: %s\n%s" % (wanted, SECONDS, state, docker(engine, "logs", name)))


def test_what_the_image_says(engine):
    config = json.loads(docker(engine, "image", "inspect", "--format", "{{json .Config}}", "workcell:" + VERSION))
    labels = config["Labels"]
    assert labels["org.opencontainers.image.version"] == VERSION and labels["org.opencontainers.image.title"] == "Workcell"
    assert labels["org.opencontainers.image.revision"] != "unknown" and labels["org.opencontainers.image.licenses"]
    assert list(config["ExposedPorts"]) == ["8080/tcp"] and config["User"] == "10001:10001" and "health.py" in str(config["Healthcheck"])
    assert "usage: workcell serve" in docker(engine, "run", "--rm", "--network=none", "workcell:" + VERSION)
    # No compiler, no sources: the stage that builds stays behind.
    docker(engine, "run", "--rm", "--network=none", "--entrypoint", "sh", "workcell:" + VERSION, "-c", "test ! -e /src && ! command -v cc gcc ninja")


def test_health_check(engine, server):
    """Healthy once it serves, unhealthy when it hangs, healthy again when it goes on."""
    name, address, token = server
    wait_for_health(engine, name, "healthy")
    request = urllib.request.Request(address + "/execute", json.dumps({"code": "6 * 7"}).encode(),
                                     {"Authorization": "Bearer " + token, "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        assert json.load(answer)["value"] == 42
    with urllib.request.urlopen(urllib.request.Request(address + "/console/main.js", headers={"Accept-Encoding": "gzip"}), timeout=SECONDS) as answer:
        assert b"Workcell" in gzip.decompress(answer.read()), "the image has no console"
    docker(engine, "kill", "--signal", "STOP", name)
    wait_for_health(engine, name, "unhealthy")
    docker(engine, "kill", "--signal", "CONT", name)
    wait_for_health(engine, name, "healthy")
    begin = time.monotonic()
    docker(engine, "stop", "--time", "20", name)
    assert time.monotonic() - begin < 15, "it did not end by itself"
