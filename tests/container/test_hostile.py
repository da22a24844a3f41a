"""Code in a container that means harm: to the server beside it, to what is mounted, and to the host that uses the storage afterwards."""
import glob
import io
import os
import tarfile

import pytest

import containers
import serving
import spaces
import support
from containers import Container

MARK = "# workcell: untrusted, made by confined code\n"
# The server then ends the kernel too.
KILL = "import os, time; os.kill(-1, 9); time.sleep(30)"
SOURCE = "def run():\n    return 'ran'\n"


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    (folder / "workflows").mkdir(parents=True)
    (folder / "workflows" / "mine.py").write_text(SOURCE)
    for path in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(path, 0o755)
    containers.give(folder)
    return folder


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    for path in (folder, folder.parent, folder.parent.parent):
        os.chmod(path, 0o755)
    for name in ("alpha", "beta", "gamma"):
        spaces.make_wheel(folder, "wc-" + name, "1.0", "def who():\n    return %r\n" % name)
    return folder


@pytest.fixture
def driver(base):
    made = Container("--network-disabled", "--base", base)
    yield made
    assert made.close() == 0
    assert not containers.of(made.process.pid)


# ---- the server inside ---------------------------------------------------------------------------------------------------

@pytest.mark.engine
def test_the_server_heeds_no_signal_of_the_code(driver):
    before = driver.id()
    driver.value("""
import os, time
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
time.sleep(0.5)""")
    assert driver.value("open('/proc/1/comm').read().strip()") == "workcell" and driver.id() == before
    # Nor can it be looked into.
    found = driver.value("""
found = []
for name in ("mem", "environ", "maps", "fd/1", "root/etc", "cwd/x"):
    try:
        open("/proc/1/" + name, "rb")
        found.append(name)
    except PermissionError:
        pass
    except OSError as error:
        found.append((name, str(error)))
found""")
    assert found == []


@pytest.mark.engine
def test_signals_from_outside_are_heeded():
    driver = Container("--network-disabled")
    first = driver.id()
    containers.engine("POST", "/containers/%s/kill" % first, signal="SIGTERM")
    support.wait_until(lambda: first not in containers.ours(), "it has ended and is removed")
    assert driver.value("1") == 1 and driver.id() != first
    assert driver.close() == 0


@pytest.mark.engine
@pytest.mark.parametrize("isolation", ["executor", "session"])
def test_the_rest_of_the_container_is_killed(base, isolation):
    """All but the server, again and again: it is told, the next cell has a container that works, and nothing is left."""
    driver = Container("--network-disabled", "--base", base, "--isolation", isolation)
    seen = [driver.id()]
    for _ in range(3):
        result = driver.run(KILL)
        assert result["error"]["code"] == "kernel_died" and result["state"] == "lost", result
        assert driver.value("'os' in dir()") is False
        seen.append(driver.id())
    assert len(set(seen)) == 4
    assert driver.close() == 0
    assert not set(containers.ours()) & set(seen)
    # Containers of other tests have theirs for as long as their servers start.
    support.wait_until(lambda: not glob.glob("/tmp/workcell-container-*/token") + glob.glob("/tmp/workcell-container-*/serve.yaml"), "no secret is left")


def test_sessions_of_a_server_go_on_in_another_container(tmp_path):
    """Of two clients of `workcell serve`, one ends what both need."""
    for path in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(path, 0o755)
    server = serving.Server(*containers.FLAGS, "--network-disabled", tokens=serving.TOKEN, pool=0)
    one, two = server.session(body={}), server.session(body={})
    before, = containers.of(server.pid)
    assert server.execute("x = 1; x", session=two)["value"] == 1
    result = server.execute(KILL, session=one)
    assert "spawner died" in result["error"], result
    # What the other loses is its variables.
    result = server.execute("'x' in dir()", session=two)
    if result["error"]:
        result = server.execute("'x' in dir()", session=two)
    assert result["value"] is False, result
    assert server.execute("6 * 7", session=one)["value"] == 42
    support.wait_until(lambda: before not in containers.ours(), "the first one is removed")
    server.close()
    assert not containers.of(server.pid)


# ---- what is mounted -----------------------------------------------------------------------------------------------------

@pytest.mark.engine
def test_what_the_host_trusts_cannot_be_touched(driver, base):
    left = driver.value("""
import os
done = []
for folder in ("/workspace/tools", "/workspace/.host"):
    for what in (lambda: os.rename(folder, folder + "-old"), lambda: os.rmdir(folder), lambda: os.unlink(folder),
                 lambda: os.chmod(folder, 0o777), lambda: os.symlink("/etc", folder + "/link"), lambda: open(folder + "/file", "w"),
                 lambda: os.mkdir(folder + "/folder"), lambda: os.utime(folder), lambda: os.rename("/workspace", "/other")):
        try:
            what()
            done.append(folder)
        except OSError:
            pass
try:
    open("/workspace/.host/workflows.json", "a")
    done.append("book")
except OSError:
    pass
done""")
    assert left == []
    assert sorted(os.listdir(base / ".host")) == ["requirements.txt", "workflows.json"] and os.listdir(base / "tools") == []


PLANT = """
import json, os
os.chdir("/workspace")
os.makedirs("artifacts", exist_ok=True)
os.symlink("/etc/passwd", "artifacts/link")
os.symlink("/etc", "artifacts/etc")
os.mkfifo("artifacts/fifo")
os.mkfifo("workflows/fifo.py")
os.symlink("/etc/passwd", "workflows/link.py")
os.truncate(os.open("artifacts/sparse", os.O_CREAT | os.O_RDWR), 1 << 40)
open("artifacts/\\x1b]0;owned\\x07.txt", "w").close()
open("artifacts/setuid", "w").close()
os.chmod("artifacts/setuid", 0o6777)
os.mkdir("artifacts/closed", 0)
open("workflows/evil.py", "w").write("import pathlib\\ndef run():\\n    pathlib.Path(%(ran)r).write_text('x')\\n")
open("workflows/mine.py", "a").write("open(%(ran)r, 'w')\\n")
open("requirements.txt", "w").write("evil-package\\n")
os.makedirs("deps", exist_ok=True)
open("deps/requirements.txt", "w").write("evil-package-too\\n")
os.makedirs("skills", exist_ok=True)
open("skills/older.py", "w").write("open(%(ran)r, 'w')\\ndef run(): pass\\n")
devices = []
for kind in (0o20000, 0o60000):
    try:
        os.mknod("artifacts/device", kind | 0o666, os.makedev(1, 5))
        devices.append(kind)
    except OSError:
        pass
workflows.create("told", "def run():\\n    return 7", "d", overwrite=True)
[devices, workflows.told(), workflows.evil.__class__.__name__]
"""


@pytest.mark.engine
def test_what_the_code_leaves_in_the_storage(driver, base, tmp_path):
    """Then the host's commands and sessions use it."""
    ran = tmp_path / "ran"
    made = driver.value(PLANT % {"ran": str(ran)})
    assert made[:2] == [[], 7]
    assert (base / "workflows" / "told.py").read_text().startswith(MARK)
    for argv in (("artifacts", "list"), ("artifacts", "get", "link"), ("artifacts", "get", "etc/passwd"), ("artifacts", "get", "fifo"),
                 ("artifacts", "rm", "etc/passwd"), ("workflows", "list"), ("workflows", "search", "evil"), ("workflows", "show", "link"),
                 ("workflows", "show", "fifo"), ("workflows", "run", "evil"), ("workflows", "run", "mine"), ("workflows", "run", "told"),
                 ("workflows", "run", "older"), ("tools", "list"), ("deps", "list")):
        done = support.workcell(*argv, "--base", base, deadline=30)
        assert done.status in set(support.EXIT.values()), (argv, done)
        assert "root:" not in done.out and "\x1b" not in done.out + done.err and "evil-package" not in done.out, (argv, done)
        assert not ran.exists(), argv
        if argv[1] == "run":
            assert "made by confined code" in done.err, done
    for code in ("workflows.evil()", "workflows.told()", "workflows.older()", "workflows.invoke('mine')"):
        result = support.run_cells(code, flags=("--base", base)).results[0]
        assert "made by confined code" in result["error"]["message"], result
    assert not ran.exists()
    (tmp_path / "work").mkdir()
    confined = ("--executor", "sandbox", "--cwd", tmp_path / "work", "--base", base)
    assert support.run_cells("workflows.told()", flags=confined).results[0]["value"] == 7
    # In the container they work as ever, and what a person trusts works outside as well.
    assert driver.value("workflows.told()") == 7
    assert support.workcell("workflows", "trust", "told", "--base", base).status == 0
    assert support.workcell("workflows", "run", "told", "--base", base).out.strip() == "7"
    assert driver.value("workflows.told()") == 7


def test_packages_of_the_code_are_not_the_hosts(base, wheels):
    """Of the two lists the container has both, and adds to its own."""
    assert support.workcell("deps", "add", "wc-alpha", "--base", base, "--wheel-dir", wheels).status == 0
    containers.give(base)
    driver = Container("--network-disabled", "--base", base, "--wheel-dir", wheels, "--sync-deps")
    assert driver.value("import wc_alpha; deps.list()") == ["wc-alpha"]
    assert driver.value("deps.add('wc-beta'); deps.list()") == ["wc-alpha", "wc-beta"]
    assert driver.close() == 0
    assert support.workcell("deps", "list", "--base", base).out.split() == ["wc-alpha"]
    assert support.workcell("deps", "add", "wc-gamma", "--base", base, "--wheel-dir", wheels).status == 0
    driver = Container("--network-disabled", "--base", base, "--wheel-dir", wheels, "--sync-deps")
    assert driver.value("deps.list()") == ["wc-alpha", "wc-beta", "wc-gamma"]
    assert driver.close() == 0


def test_redis(redis, tmp_path, wheels):
    """There is no file to change: the server inside marks, and keeps what is added apart."""
    storage = redis.url(tmp_path.name)
    assert support.workcell("deps", "add", "wc-alpha", "--storage", storage, "--wheel-dir", wheels).status == 0
    assert support.workcell("workflows", "add", "mine", "-", "--storage", storage, stdin=SOURCE.encode()).status == 0
    driver = Container("--network-disabled", "--storage", storage, "--wheel-dir", wheels, "--sync-deps")
    assert driver.value("deps.add('wc-beta'); deps.list()") == ["wc-alpha", "wc-beta"]
    driver.value("deps.remove('wc-alpha')")  # in there
    assert driver.value("workflows.create('made', %r, 'd'); workflows.create('mine', %r, 'd', overwrite=True); workflows.made()"
                        % (SOURCE, SOURCE)) == "ran"
    assert driver.value("workflows.get('made')['source']") == SOURCE
    assert driver.close() == 0
    for name in ("made", "mine"):
        done = support.workcell("workflows", "run", name, "--storage", storage)
        assert done.status == 1 and "made by confined code" in done.err, done
    assert support.workcell("deps", "list", "--storage", storage).out.split() == ["wc-alpha"]


# ---- before the server serves --------------------------------------------------------------------------------------------

BACKEND = """
import os, socket, time, zipfile
found = [name for name in ("token", "serve.yaml") if os.path.exists("/run/workcell/" + name)]
open("/workspace/found", "w").write(repr(found))
if %r and not os.path.exists("/tmp/once"):
    open("/tmp/once", "w").close()
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, 64)
        while not os.path.exists("/run/workcell/server.sock"):
            pass
        os.unlink("/run/workcell/server.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("/run/workcell/server.sock")
        listener.listen()
        while True:
            sock, _ = listener.accept()
            sock.recv(65536)
            sock.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\n{}")
            sock.close()

def build_wheel(folder, settings=None, metadata=None):
    name = "wc_source-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        info = "wc_source-1.0.dist-info/"
        wheel.writestr("wc_source.py", "x = 1")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: wc-source\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


@pytest.mark.parametrize("listens", [False, True], ids=["looks", "listens"])
def test_a_package_that_runs_code_while_it_is_installed(base, tmp_path, listens):
    """Before there is a session: it finds no token, and is not taken for the server."""
    sources = tmp_path / "sources"
    sources.mkdir()
    with tarfile.open(sources / "wc_source-1.0.tar.gz", "w:gz") as archive:
        for name, text in (("PKG-INFO", "Metadata-Version: 2.1\nName: wc-source\nVersion: 1.0\n"), ("own.py", BACKEND % listens),
                           ("pyproject.toml", "[build-system]\nrequires = []\nbuild-backend = 'own'\nbackend-path = ['.']\n")):
            info = tarfile.TarInfo("wc_source-1.0/" + name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    (base / "requirements.txt").write_text("wc-source\n")
    os.chmod(sources, 0o755)
    done = support.workcell("run", "--json", *containers.FLAGS, "--network-disabled", "--base", base, "--wheel-dir", sources, "--sync-deps",
                            "-e", "import wc_source; wc_source.x")
    assert (base / "found").read_text() == "[]"
    if listens and done.status != 0:
        assert "on the address of the container's server" in done.err, done
    else:  # who was slower than we are listens to nobody
        assert done.result["value"] == 1, done
    support.wait_until(lambda: not glob.glob("/tmp/workcell-container-*/token"), "no secret is left")
