"""Branches with the executor container: its server forks, keeps points and has the layers. One engine, one container for the module."""
import os
import sys

import pytest

import containers
import support

sys.path.insert(0, os.path.join(os.path.dirname(support.BIN), "python-site"))
import workcell  # noqa: E402
from workcell import errors  # noqa: E402
from workcell.sync import Session  # noqa: E402

PNG = "b'\\x89PNG\\r\\n\\x1a\\n' + bytes(20)"


def config(**more):
    return workcell.ContainerConfig(image=containers.IMAGE, auth_token="your-secret-token", network_disabled=True, startup_timeout=120.0,
                                    workspace_mode="cow", **more)


@pytest.fixture(scope="module")
def engine():
    with workcell.Engine() as made:
        yield made


@pytest.fixture
def opened(engine):
    """Sessions of one container: the options are the same for all."""
    def make(**more):
        session = Session(None, workcell.ContainerExecutor(config()), engine=engine, allow_fork=2, **more)
        made.append(session)
        return session.__enter__()

    made = []
    yield make
    for session in made:
        session.__exit__(None, None, None)


def files(session):
    return sorted((each.path, each.change) for each in session.diff().files)


def test_forks_points_and_races_have_variables_and_files(opened):
    session = opened()
    here = session.run("import os, random\nx = [1]\nn = open('a.txt', 'w').write('one')\nos.getcwd()").raise_for_error()
    assert here.isolation["executor"] == "container" and here.isolation["protected"] == "enforced"
    assert here.isolation["server"]["layer"] == "copy"
    with session.fork() as fork:
        assert fork.run("x.append(2)\nn = open('a.txt', 'a').write(' two')\n[x, open('a.txt').read()]").value == [[1, 2], "one two"]
        assert fork.run("random.random()").value != session.run("random.random()").value
        assert files(fork) == [("a.txt", "added")]
    assert session.run("[x, open('a.txt').read()]").value == [[1], "one"]
    session.checkpoint("before")
    session.run("x.clear()\nos.unlink('a.txt')\nn = open('b.txt', 'w').write('b')").raise_for_error()
    assert files(session) == [("b.txt", "added")]
    for _ in range(2):
        session.rewind("before")
        assert session.run("[x, sorted(os.listdir())]").value == [[1], ["a.txt"]]
        session.run("x.append('gone')\nn = open('c.txt', 'w').write('c')").raise_for_error()
    assert [point.name for point in session.points()] == ["before"]
    session.rewind("before")
    race = session.race(["x.append('s')", "n = open('winner', 'w').write('w'); x.append('much longer')"], judge="len(x[-1])")
    assert race.winner == 1 and session.run("[x[-1], sorted(os.listdir())]").value == ["much longer", ["a.txt", "winner"]]
    with pytest.raises(errors.ForkError):
        session.run("import threading\nt = threading.Thread(target=threading.Event().wait, daemon=True)\nt.start()").raise_for_error()
        session.fork()


def test_a_layer_is_committed_and_discarded(opened):
    session, other = opened(), opened()
    container = session.run("n = [open(name, 'w').write(name) for name in ('kept', 'Makefile')]").isolation["container"]
    assert other.run("1").isolation["container"] == container and files(other) == []
    found = {each.path: each for each in session.diff().files}
    assert found["Makefile"].protected and "+kept" in found["kept"].diff
    assert not any(each.diff for each in session.diff(text=False).files)
    done = session.commit()
    assert list(done.committed) == ["kept"] and list(done.protected) == ["Makefile"]
    session.run("n = open('kept', 'w').write('changed in a layer')").raise_for_error()
    with session.fork() as fork:  # a layer of its own over the same folder
        fork.run("n = open('kept', 'w').write('newer')").raise_for_error()
        assert list(fork.commit(["kept"]).committed) == ["kept"]
    with pytest.raises(errors.ConflictError):
        session.commit(["kept"])
    session.discard()
    assert session.run("open('kept').read()").value == "newer" and files(session) == []
    with pytest.raises(errors.WorkcellError) as refused:
        session.commit(["../etc/passwd"])
    assert refused.value.code == "not_found", refused.value


def test_undo_children_and_images(opened):
    session = opened(undo=3)
    session.run("x = 41").raise_for_error()
    died = session.run("import os; n = open('half', 'w').write('h'); os._exit(1)")
    assert died.state == "restored" and session.run("x + 1").value == 42
    assert files(session) == []
    session.rewind(cells=1)
    value = session.run("with sessions.fork() as child:\n    got = child.run('x += 1; x').value\n[x, got]")
    assert value.value == [41, 42], value
    with pytest.raises(AssertionError, match="(?i)allow_fork"):
        assert not session.run("kept = [sessions.fork() for _ in range(3)]").error
    session.run("for each in sessions.list(): each.close()").raise_for_error()
    picture = "class P:\n    def _repr_png_(self): return %s\nP()" % PNG
    with session.fork() as fork:
        ours, theirs = session.run(picture), fork.run(picture)
        assert len(ours.images) == len(theirs.images) == 1
