"""Storage in Redis and packages for the executor container: what is mounted, lent and installed, and who gets at it."""
import json
import os
import re
import subprocess

import pytest

import containers
import serving
import spaces
import support

PASSWORD = "s3cret-of-redis"
NO_NETWORK = ["--network-disabled"]


@pytest.fixture(scope="module")
def locked():
    """Redis with a password, at an address that nothing in a container reaches."""
    port = serving.free_port()
    server = spaces.Redis("--port", str(port), "--bind", "127.0.0.1", "--requirepass", PASSWORD)
    server.address = "redis://:%s@127.0.0.1:%d" % (PASSWORD, port)
    yield server
    server.close()


@pytest.fixture
def session(locked, tmp_path):
    driver = containers.Container(*NO_NETWORK, "--redis", "env:TEST_REDIS", "--prefix", tmp_path.name, "--workspace", "w1",
                                  env={"TEST_REDIS": locked.address})
    yield driver
    if driver.process.poll() is None:
        assert driver.close() == 0


@pytest.mark.engine
def test_storage_in_redis(session, locked, tmp_path):
    session.value("artifacts.save('a/b.bin', b'x' * 100000)")
    session.value("workflows.create(name='w', source='async def run() -> int:\\n    return 7', description='seven')")
    assert session.value("workflows.w()") == 7
    assert session.value("[w['name'] for w in workflows.search('seven')]") == ["w"]
    # It is there for others, in the workspace that was asked for.
    place = ("--storage", "%s?prefix=%s" % (locked.address, tmp_path.name), "--workspace", "w1")
    assert support.workcell("workflows", "trust", "w", *place).status == 0
    seen = support.workcell("run", *place, "-e", "len(artifacts.load('a/b.bin')), workflows.w()")
    assert seen.out == "(100000, 7)\n", seen
    # Neither address nor password are in what the engine shows, and nothing is on the disk.
    shown = json.dumps(containers.inspect(session.id()))
    assert PASSWORD not in shown and "redis" not in shown
    assert session.value("__import__('os').listdir('/workspace')") == []


@pytest.mark.engine
def test_connections_are_lent_to_the_server_alone(session):
    code = """
import socket
link = socket.socket(socket.AF_UNIX)
link.connect('/run/workcell/storage.sock')
text, fds, flags, address = socket.recv_fds(link, 200, 4)
[text.decode(), fds]"""
    assert session.value(code) == ["permission denied", []]
    assert session.value("artifacts.save('x', '1'); artifacts.load('x')") == "1"
    # The password is the server's: its memory is not to be read by its user.
    assert session.run("open('/proc/1/mem', 'rb')")["error"]["type"] == "PermissionError"
    assert session.value("b'%s' in open('/proc/self/environ', 'rb').read()" % PASSWORD[:8]) is False


def test_redis_that_goes_away(tmp_path):
    server = spaces.Redis()
    driver = containers.Container(*NO_NETWORK, "--storage", server.url(tmp_path.name))
    driver.value("artifacts.save('kept', 'v'); x = 5")
    server.process.kill()
    server.process.wait()
    error = driver.run("artifacts.load('kept')")["error"]
    assert error["type"] == "StorageReadError" or "cannot be reached" in error["message"], error
    assert "cannot be reached" in error["message"] or "Redis at" in error["message"], error
    assert driver.value("x") == 5
    assert driver.close() == 0
    server.close()


def refused(code, *flags, **more):
    return containers.refused(code, *containers.FLAGS[2:], *NO_NETWORK, *flags, **more)


def test_redis_that_cannot_be_used(tmp_path, locked):
    refused("invalid", "--storage", "redis://localhost?what=1")
    refused("invalid", "--storage", "redis://localhost?via=/tmp/s")
    # Known when it is used, as everywhere.
    for url, words in ((locked.address.replace(PASSWORD, "wrong"), "refuses the user or password"),
                       ("redis+unix://%s/none" % tmp_path, "cannot be reached: No such file or directory")):
        done = support.workcell("run", *containers.FLAGS, *NO_NETWORK, "--storage", url, "-e", "artifacts.list()")
        assert done.status == 1 and words in done.err and ":wrong" not in done.err, done


@pytest.mark.engine
def test_without_a_storage_it_is_in_memory():
    driver = containers.Container(*NO_NETWORK)
    assert driver.value("artifacts.save('a', 'b'); artifacts.load('a')") == "b"
    assert driver.value("open(__import__('os').path.expanduser('~/f'), 'w').write('1')") == 1
    mounts = dict(line.split()[1:3] for line in driver.value("open('/proc/mounts').read()").splitlines())
    assert mounts["/workspace"] == mounts["/home/workcell"] == "tmpfs"
    assert driver.close() == 0


# ---- packages ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    for path in (folder, folder.parent, folder.parent.parent):
        os.chmod(path, 0o755)
    spaces.make_wheel(folder, "wc-alpha", "1.0", "def who():\n    return 'alpha'\n")
    spaces.make_wheel(folder, "wc-needy", "1.0", requires=["wc-does-not-exist"])
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory, wheels):
    """A storage with a package, installed by a container that is gone."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "requirements.txt").write_text("wc-alpha==1.0\n")
    containers.give(folder)
    driver = containers.Container(*NO_NETWORK, "--base", folder, "--wheel-dir", wheels, "--sync-deps", "--no-runtime-deps")
    who, where = driver.value("import wc_alpha; [wc_alpha.who(), wc_alpha.__file__]")
    assert who == "alpha" and where.startswith("/workspace/.cache/")
    mounts = {mount["Destination"]: mount["RW"] for mount in containers.inspect(driver.id())["Mounts"]}
    assert mounts["/app/wheels"] is False
    assert driver.run("deps.add('wc-alpha')")["error"]["type"] == "RuntimeDepsDisabledError"
    assert driver.close() == 0
    return folder


def test_packages_are_there_before_the_first_cell(base):
    # Nothing has to be installed, and there is nothing to install from.
    done = support.workcell("run", *containers.FLAGS, *NO_NETWORK, "--base", base, "--sync-deps", "-e", "import wc_alpha; wc_alpha.who()",
                            "-e", "deps.remove('wc-alpha'), deps.list()")
    assert done.out == "'alpha'\n(True, ['wc-alpha==1.0'])\n", done  # in there; the host's list is the host's


def test_packages_that_cannot_be_installed(base, tmp_path, wheels):
    (base / "requirements.txt").write_text("wc-needy\n")
    message = refused("install_failed", "--base", base, "--wheel-dir", wheels, "--sync-deps")
    assert re.search("wc.does.not.exist", message), message
    refused("not_found", "--base", base, "--wheel-dir", tmp_path / "none", "--sync-deps")
    # Nobody asked for them: as with every executor.
    assert support.workcell("run", *containers.FLAGS, *NO_NETWORK, "--base", base, "-e", "1").status == 0


SDK = """
import sys
sys.path.insert(0, %r)
import conftest  # the package as its wheel has it
import workcell.sync, workcell
storage = workcell.RedisStorage(url=%r, prefix="sdk", workspace_id="w2")
class Config(workcell.ContainerConfig):
    def space_options(self):
        return {**super().space_options(), "wheel_dir": %r}
config = Config(auth_token="t0ken-of-the-sdk", image=%r, network_disabled=True, deps=["wc-alpha==1.0"], allow_runtime_deps=False)
executor = workcell.ContainerExecutor(config)
with workcell.sync.Session(storage=storage, executor=executor) as session:
    first = session.run("import wc_alpha; wc_alpha.who()")
    print(first.value or first)
    session.run("artifacts.save('from', 'inside')")
    print(session.load_artifact("from"), session.run("deps.add('six')").error.splitlines()[-1].split(":")[0])
"""


def test_the_sdk(redis, wheels):
    tests = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "python", "tests")
    done = subprocess.run([support.PYTHON, "-c", SDK % (tests, redis.url(), str(wheels), containers.IMAGE)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=support.DEADLINE, env=dict(os.environ, DOCKER_HOST=containers.HOST))
    assert done.stdout.decode().split() == ["alpha", "inside", "RuntimeDepsDisabledError"], (done.stdout, done.stderr)
    assert redis.ask("SMEMBERS", "sdk:deps:container") == [b"wc-alpha==1.0"]
    assert redis.ask("EXISTS", "sdk:ws:w2:artifacts:from") == 1
