"""Wheel, tarball and deb once more, from the same sources in another folder at another time: every byte is the same.

The libraries that are linked in are not built again: packaging/libraries.sh takes Debian's, as they are on the day.
"""
import hashlib
import os
import shutil
import subprocess
import tarfile
import zipfile

import pytest

import clean
import support

DIST = os.path.join(support.ROOT, "dist")
MACHINE = os.uname().machine


@pytest.fixture(scope="module")
def again():
    """The sources of the working tree in a folder of another name and with other times, and a function that runs a command there."""
    folder = os.path.join(clean.FOLDER, "again-in-a-folder-with-another-name")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=support.ROOT, stdout=subprocess.PIPE,
                           check=True).stdout.decode().split("\0")
    for name in names:
        if name and os.path.lexists(os.path.join(support.ROOT, name)):
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            shutil.copy(os.path.join(support.ROOT, name), os.path.join(folder, name), follow_symlinks=False)
    made = os.path.join(support.ROOT, "build", "portable")
    os.makedirs(os.path.join(folder, "build", "portable", MACHINE))
    os.symlink(os.path.join(made, "venv"), os.path.join(folder, "build", "portable", "venv"))
    for name in ("sysroot", "bin", "NOTICES", ".stamp"):
        os.symlink(os.path.join(made, MACHINE, name), os.path.join(folder, "build", "portable", MACHINE, name))
    epoch = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=support.ROOT, stdout=subprocess.PIPE, check=True).stdout.decode().strip()

    def run(*argv):
        env = dict(os.environ, SOURCE_DATE_EPOCH=epoch, CCACHE_DISABLE="1", TZ="Pacific/Chatham", LANG="C")
        done = subprocess.run(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
        assert done.returncode == 0, done.stdout.decode()[-4000:]
        return os.path.join(folder, "dist")

    yield run
    shutil.rmtree(folder)


def digests(path):
    """{member: digest}, to say what differs."""
    if path.endswith(".whl"):
        with zipfile.ZipFile(path) as archive:
            return {info.filename: (info.date_time, info.external_attr, hashlib.sha256(archive.read(info)).hexdigest()) for info in archive.infolist()}
    tar = path
    if path.endswith(".deb"):
        tar = path + ".tar"
        with open(tar, "wb") as file:
            subprocess.run(["dpkg-deb", "--fsys-tarfile", path], stdout=file, check=True)
    with tarfile.open(tar) as archive:
        return {member.name: (member.mtime, member.mode, member.uid, hashlib.sha256(archive.extractfile(member).read()).hexdigest() if member.isfile()
                              else member.linkname) for member in archive}


def check_same(folder, pattern):
    name, = [each for each in os.listdir(folder) if each.endswith(pattern)]
    first, second = os.path.join(DIST, name), os.path.join(folder, name)
    with open(first, "rb") as one, open(second, "rb") as other:
        if one.read() == other.read():
            return
    there, here = digests(first), digests(second)
    raise AssertionError("%s differs: %s" % (name, [(each, there.get(each), here.get(each)) for each in sorted({*there, *here}) if there.get(each) != here.get(each)]
                                             or "the archive itself, or its control files"))


def test_wheel(again):
    check_same(again("packaging/portable.sh", "wheel"), "_%s.whl" % MACHINE)


def test_tarball(again):
    check_same(again("packaging/portable.sh", "tarball"), ".tar.gz")


def test_deb(again):
    again("scripts/build.sh", "build", "-Dwerror=true")
    check_same(again("packaging/deb.sh", "build"), ".deb")
