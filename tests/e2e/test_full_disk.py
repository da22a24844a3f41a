"""A file system that is really full, of bytes or of inodes, below a session: each call fails with a code, nothing is lost, the session goes
on, and the call works when there is room again."""
import contextlib
import ctypes
import os
import shutil
import sys

import pytest

import support

sys.path.insert(0, os.path.join(os.path.dirname(support.BIN), "python-site"))
import workcell  # noqa: E402
from workcell import errors  # noqa: E402
from workcell.sync import Session  # noqa: E402

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="mounts file systems, which needs root")
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A tmpfs of 8 MB and 300 inodes, for layers, points, images and the workspace."""
    path = tmp_path_factory.mktemp("small")
    os.chmod(path, 0o755)
    assert libc.mount(b"workcell-test", os.fsencode(path), b"tmpfs", 0, b"size=8m,nr_inodes=300,mode=755") == 0, os.strerror(ctypes.get_errno())
    yield path
    assert libc.umount2(os.fsencode(path), 2) == 0


@pytest.fixture
def places(small):
    """The folder of layers, and the workspace."""
    made = small / "home", small / "work"
    for folder in made:
        folder.mkdir()
        os.chmod(folder, 0o777)
    yield made
    for folder in made:
        shutil.rmtree(folder)


@contextlib.contextmanager
def full(folder, of):
    """Filled to the last byte, or to the last inode."""
    hog = folder / "hog"
    hog.mkdir()
    try:
        if of == "bytes":
            with open(hog / "file", "wb", buffering=0) as file:
                with pytest.raises(OSError):
                    while True:
                        file.write(bytes(1 << 16))
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(512))
        else:
            with pytest.raises(OSError):
                for i in range(1000):
                    (hog / str(i)).touch()
        yield
    finally:
        for each in hog.iterdir():
            each.unlink()
        hog.rmdir()


def fails(call, *args, **more):
    with pytest.raises(errors.WorkcellError) as failed:
        call(*args, **more)
    assert failed.value.code in ("io", "limit"), (failed.value.code, failed.value)
    assert "o space left" in str(failed.value) or "full" in str(failed.value), failed.value


@pytest.mark.parametrize("of", ["bytes", "inodes"])
@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
def test_layers(small, places, tmp_path, executor, of):
    home, work = places
    (work / "old").write_text("old")
    with workcell.Engine(spill_dir=home) as engine, getattr(Session, executor)(tmp_path, cwd=work, workspace_mode="cow", engine=engine) as session:
        session.run("x = 1\nn = open('new', 'w').write('new')\nn = open('old', 'w').write('changed')").raise_for_error()
        session.checkpoint("before")
        session.run("x = 2\nn = open('second', 'w').write('2')").raise_for_error()
        with full(small, of):
            fails(session.checkpoint, "late")
            fails(session.fork)
            refused = session.commit()
            assert not refused.committed and refused.skipped == dict.fromkeys(("new", "old", "second"), "No space left on device")
            assert (work / "old").read_text() == "old" and sorted(os.listdir(work)) == ["old"]
            failed = session.run("for i in range(400):\n    with open('f%d' % i, 'wb') as file: file.write(bytes(1 << 16))").error
            assert "No space left on device" in failed
            assert session.run("x").value == 2
            # A new mount over the layer needs inodes: then the session stays where it is.
            if executor == "sandbox" and of == "inodes":
                fails(session.rewind, "before")
                assert session.run("x").value == 2
            else:
                session.rewind("before")
                assert session.run("x").value == 1
        session.rewind("before")
        assert session.run("[x, open('new').read(), open('old').read()]").value == [1, "new", "changed"]
        assert session.run("import os\nos.path.exists('second')").value is False
        with session.fork() as fork:
            assert fork.run("[x, open('new').read()]").value == [1, "new"]
        session.checkpoint("late")
        assert sorted(session.commit().committed) == ["new", "old"]
        assert (work / "old").read_text() == "changed"
        race = session.race(["x = 5; n = open('a', 'w').write('a')", "x = 3"], judge="x")
        assert race.winner == 0 and session.run("open('a').read()").value == "a"


@pytest.mark.parametrize("of", ["bytes", "inodes"])
@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
def test_undo(small, places, tmp_path, executor, of):
    """A point that cannot be kept does not keep the cell from running."""
    home, work = places
    with workcell.Engine(spill_dir=home) as engine, \
            getattr(Session, executor)(tmp_path, cwd=work, workspace_mode="cow", undo=3, engine=engine) as session:
        session.run("x = 1\nn = open('new', 'w').write('new')").raise_for_error()
        with full(small, of):
            for i in (2, 3):
                assert session.run("x = %d\nx" % i).value == i
        session.run("x = 4").raise_for_error()
        session.run("x = 5").raise_for_error()
        session.rewind(cells=1)
        assert session.run("[x, open('new').read()]").value == [4, "new"]
