"""Wheel, tarball and deb, as they are in dist/: what is in them, and on a clean machine what a new user does with them.

`scripts/test.sh packages` makes them first.
"""
import base64
import csv
import glob
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import time
import urllib.request
import zipfile

import pytest

import clean
import support

VERSION = open(os.path.join(support.ROOT, "VERSION")).read().strip()
DIST = os.path.join(support.ROOT, "dist")
MACHINE = os.uname().machine
MAX_WHEEL_BYTES = 12 * 1000 * 1000
FIRST_RESULT_SECONDS = 10
# What a portable program may need: glibc, in its parts.
LIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "ld-linux-x86-64.so.2"}

SDK_CELL = """import workcell.sync
with workcell.sync.Session.scratch() as session:
    session.run('x = 6')
    print(session.run('x * 7').value)
"""


def only(pattern):
    found = glob.glob(os.path.join(DIST, pattern))
    assert len(found) == 1, "%s in dist/: %s; scripts/test.sh packages makes them" % (pattern, found)
    return found[0]


def wheel():
    return only("workcell-%s-cp39-abi3-manylinux_*_%s.whl" % (VERSION, MACHINE))


def tarball():
    return only("workcell-%s-linux-%s.tar.gz" % (VERSION, MACHINE))


def deb():
    return only("workcell_%s_*.deb" % VERSION)


@pytest.fixture
def machine(tmp_path_factory):
    # On the disk of the build folder: an overlay cannot stand on every kind of file system that /tmp may be.
    os.makedirs(clean.FOLDER, exist_ok=True)
    folder = os.path.join(clean.FOLDER, "machine-%d-%s" % (os.getpid(), tmp_path_factory.mktemp("name").name))
    os.mkdir(folder)
    try:
        yield clean.Machine(folder, DIST)
    finally:
        shutil.rmtree(folder)


def elf_files(folder):
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    if file.read(4) == b"\x7fELF":
                        yield path


def check_portable(folder):
    count = 0
    for path in elf_files(folder):
        dynamic = subprocess.run(["readelf", "-dV", path], capture_output=True, text=True, check=True).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)) - {"libworkcell.so.0"}
        assert needed <= LIBC, "%s needs %s" % (path, needed - LIBC)
        versions = {tuple(map(int, each.split("."))) for each in re.findall(r"GLIBC_(\d+\.\d+)", dynamic)}
        assert max(versions, default=(0,)) <= (2, 28), "%s needs glibc %s" % (path, max(versions))
        assert all(part.startswith("$ORIGIN") for part in ":".join(re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", dynamic)).split(":") if part), path
        count += 1
    return count


def check_no_build_paths(folder):
    """The folder that it was built in is nobody's business, and may exist elsewhere with other content."""
    words = [support.ROOT.encode(), b"/sysroot/", os.path.expanduser("~").encode() + b"/.cache"]
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    content = file.read()
                assert not [word for word in words if word in content], path


# ---- what is in them


def unpacked_program(kind, folder):
    """The program of a package, with its library beside it."""
    if kind == "wheel":
        with zipfile.ZipFile(wheel()) as archive:
            archive.extractall(folder)
        program = os.path.join(folder, "workcell", "_lib", "workcell")
    elif kind == "tarball":
        with tarfile.open(tarball()) as archive:
            archive.extractall(folder)
        program, = glob.glob(os.path.join(folder, "*", "bin", "workcell"))
    else:
        subprocess.run(["dpkg-deb", "-x", deb(), folder], check=True)
        program = os.path.join(folder, "usr", "bin", "workcell")
    for each in elf_files(folder):
        os.chmod(each, 0o755)
    return program


@pytest.mark.parametrize("kind", ["wheel", "tarball", "deb"])
def test_the_console_is_in_it(kind, tmp_path):
    """Where node is missing a build goes on without it; a package never does."""
    program = unpacked_program(kind, str(tmp_path / "package"))
    server = subprocess.Popen([program, "console", "--executor", "subprocess", "--pool", "0"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                              env=support.host_environment(DISPLAY="", WAYLAND_DISPLAY="", XDG_RUNTIME_DIR=str(tmp_path)))
    try:
        address = server.stdout.readline().split("#")[0]
        assert address.startswith("http://127.0.0.1:"), "it does not serve"
        for name, words in (("", b'src="main.js"'), ("main.js", b"Workcell"), ("style.css", b"prefers-color-scheme")):
            with urllib.request.urlopen(urllib.request.Request(address + name, headers={"Accept-Encoding": "gzip"}), timeout=support.DEADLINE) as answer:
                assert words in gzip.decompress(answer.read()), name
    finally:
        server.terminate()
        server.communicate(timeout=support.DEADLINE)


def test_wheel_is_small_portable_and_complete(tmp_path):
    assert os.path.getsize(wheel()) < MAX_WHEEL_BYTES
    with zipfile.ZipFile(wheel()) as archive:
        names = archive.namelist()
        assert len(names) == len(set(names)) and not [name for name in names if "__pycache__" in name or name.startswith("/") or ".." in name]
        for info in archive.infolist():
            mode = info.external_attr >> 16
            assert mode & 0o002 == 0 and mode & 0o444 == 0o444, (info.filename, oct(mode))
        archive.extractall(tmp_path)
        for name in ("workcell", "workcell-spawner", "workcell-bench"):
            assert archive.getinfo("workcell/_lib/" + name).external_attr >> 16 & 0o111 == 0o111, name
    for name in ("py.typed", "_native.pyi", "_operations.pyi", "_native.abi3.so", "_lib/libworkcell.so.0", "_lib/kernel/_workcell.abi3.so",
                 "_lib/kernel/workcell_kernel/kernel.py", "_lib/deno/runner.mjs", "_lib/deno/install.sh", "_lib/bench/report.py", "_lib/NOTICES"):
        assert (tmp_path / "workcell" / name).exists(), name
    assert check_portable(tmp_path) == 6
    check_no_build_paths(tmp_path)


def test_record_of_the_wheel():
    with zipfile.ZipFile(wheel()) as archive:
        record, = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(record).decode()))}
        assert set(rows) == set(archive.namelist())
        for name, (digest, size) in rows.items():
            if name != record:
                content = archive.read(name)
                wanted = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == ("sha256=" + wanted, len(content)), name


def test_tarball_is_portable(tmp_path):
    with tarfile.open(tarball()) as archive:
        top = {member.name.split("/")[0] for member in archive}
        assert top == {"workcell-%s-linux-%s" % (VERSION, MACHINE)}
        for member in archive:
            assert (member.uid, member.gid) == (0, 0) and (member.issym() or member.mode & 0o022 == 0), member.name
        archive.extractall(tmp_path)
    assert check_portable(tmp_path) == 6
    check_no_build_paths(tmp_path)


def test_deb(tmp_path):
    listing = subprocess.run(["dpkg-deb", "--contents", deb()], capture_output=True, text=True, check=True).stdout.splitlines()
    for line in listing:
        mode, owner = line.split()[:2]
        assert owner == "root/root" and (mode[0] == "l" or mode[5] == mode[8] == "-"), line
    depends = subprocess.run(["dpkg-deb", "--field", deb(), "Depends"], capture_output=True, text=True, check=True).stdout
    for name in ("libc6 (>=", "libuv1 (>=", "libcurl4 (>=", "libseccomp2 (>=", "libmicrohttpd12 (>=", "python3 (>="):
        assert name in depends, depends
    maintainer = subprocess.run(["dpkg-deb", "--field", deb(), "Maintainer"], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"The Workcell authors <\S+@\S+\.\S+>\n", maintainer), maintainer
    subprocess.run(["dpkg-deb", "--extract", deb(), str(tmp_path)], check=True)
    check_no_build_paths(tmp_path)
    unit = (tmp_path / "lib/systemd/system/workcell.service").read_text()
    assert "\nExecStart=/usr/bin/workcell serve" in unit and "/usr/local" not in unit and (tmp_path / "lib/systemd/system/workcell.socket").exists()


# ---- on a clean machine


def use(machine, workcell, python, user):
    """What a new user does first."""
    assert machine.run("%s run -e 'print(1+1)'" % workcell, user) == "2\n"
    assert machine.run("%s -c \"%s\"" % (python, SDK_CELL), user) == "42\n"
    doctor = machine.run("%s doctor" % workcell, user)
    assert "The default executor works." in doctor, doctor
    assert machine.run("mkdir -p job; cd job; %s run --executor sandbox -e 'open(\"/etc/shadow\")' 2>&1 | tail -1" % workcell,
                       user).startswith("FileNotFoundError")
    assert machine.run("%s --version" % workcell, user).split()[-1] == VERSION
    assert "usage: workcell bench" in machine.run("%s bench --help" % workcell, user)


@pytest.mark.parametrize("user", ["root", "tester"])
def test_wheel_on_a_clean_machine(machine, user):
    assert machine.run("command -v cc gcc clang tcc || echo none").strip() == "none"
    machine.run("python3 -m venv venv", user)
    begin = time.monotonic()
    text = machine.run("venv/bin/pip install -q --no-index /dist/%s; venv/bin/workcell run -e 'print(1+1)'" % os.path.basename(wheel()), user)
    seconds = time.monotonic() - begin
    assert text == "2\n"
    print("first result after %.1f s" % seconds)
    assert seconds < FIRST_RESULT_SECONDS
    use(machine, "$HOME/venv/bin/workcell", "$HOME/venv/bin/python", user)
    machine.run("test -z \"$(find venv -perm /022 -not -type l)\"", user)
    machine.run("venv/bin/pip uninstall -q -y workcell", user)
    assert machine.run("find venv -ipath '*workcell*'", user) == ""


@pytest.mark.parametrize("user", ["root", "tester"])
def test_tarball_on_a_clean_machine(machine, user):
    name = os.path.basename(tarball())[:-len(".tar.gz")]
    machine.run("tar -xzf /dist/%s.tar.gz && mkdir deep && mv %s deep/moved" % (name, name), user)
    home = "$HOME/deep/moved"
    use(machine, home + "/bin/workcell", "PYTHONPATH=%s/lib/workcell/python python3" % home, user)
    assert "prefix=${pcfiledir}" in machine.run("cat %s/lib/pkgconfig/workcell.pc" % home, user)


def old_deb(folder):
    """The package as an older version with a file that the new one has no longer."""
    tree = os.path.join(folder, "tree")
    subprocess.run(["dpkg-deb", "--raw-extract", deb(), tree], check=True)
    with open(tree + "/DEBIAN/control") as file:
        control = file.read()
    with open(tree + "/DEBIAN/control", "w") as file:
        file.write(control.replace("\nVersion: %s\n" % VERSION, "\nVersion: 0.0.1\n"))
    with open(tree + "/usr/lib/workcell/kernel/workcell_kernel/gone.py", "w") as file:
        file.write("")
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, folder + "/old.deb"], check=True, stdout=subprocess.DEVNULL)


def test_deb_on_a_clean_machine(machine, tmp_path):
    machine.dist = str(tmp_path)
    shutil.copy(deb(), str(tmp_path / "new.deb"))
    old_deb(str(tmp_path))
    machine.run("apt-get update -q")
    machine.run("DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends /dist/old.deb")
    kernel = "/usr/lib/workcell/kernel/workcell_kernel"
    machine.run("test -e %s/gone.py && workcell run -e 1" % kernel)
    machine.run("DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends /dist/new.deb")
    machine.run("test ! -e %s/gone.py && test -z \"$(find %s -name 'gone*')\"" % (kernel, kernel))
    for user in ("root", "tester"):
        use(machine, "workcell", "python3", user)
    assert machine.run("find /usr/lib/workcell /usr/bin/workcell -perm /022 -not -type l -o -not -user root") == ""
    assert machine.run("dpkg --verify workcell") == ""
    # No manager of services is there, and none was brought.
    machine.run("test ! -e /etc/workcell && test ! -e /etc/systemd/system/sockets.target.wants && ! command -v systemctl")
    machine.run("DEBIAN_FRONTEND=noninteractive apt-get purge -q -y workcell")
    assert machine.run("find /usr /etc /var/lib/dpkg/info -ipath '*workcell*'") == ""


def old_wheel(folder):
    """The same for a wheel."""
    name = "workcell-0.0.1-py3-none-any.whl"
    info = "workcell-0.0.1.dist-info"
    files = {"workcell/gone.py": b"", "workcell/__init__.py": b"", info + "/METADATA": b"Metadata-Version: 2.1\nName: workcell\nVersion: 0.0.1\n",
             info + "/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for each, content in files.items():
            archive.writestr(each, content)
        archive.writestr(info + "/RECORD", "".join("%s,,\n" % each for each in [*files, info + "/RECORD"]))
    return name


def test_upgrade_of_a_wheel(machine, tmp_path):
    machine.dist = str(tmp_path)
    shutil.copy(wheel(), str(tmp_path))
    machine.run("python3 -m venv venv && venv/bin/pip install -q --no-index /dist/%s" % old_wheel(str(tmp_path)))
    machine.run("venv/bin/pip install -q --no-index --upgrade /dist/%s" % os.path.basename(wheel()))
    assert machine.run("find venv -name 'gone*' -o -name 'workcell-0.0.1*'") == ""
    assert machine.run("venv/bin/workcell run -e 'print(1+1)'") == "2\n"
