"""The layer over a session's workspace: changes, commits, points with files."""
import os
import random
import subprocess
import time

import pytest
from conftest import run

import workcell
import workcell.sync
from workcell import ConflictError, PointNotFoundError, UnsupportedError


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "text").write_text("one\ntwo\n")
    (folder / "gone").write_text("x")
    return folder


@pytest.fixture(params=["sandbox", "subprocess"])
def made(request, tmp_path, work):
    return lambda kind, **options: getattr(kind, request.param)(tmp_path / "data", cwd=work, workspace_mode="cow", **options)


def test_changes_are_committed_or_dropped(request, made, work, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("preset: untrusted\nfilesystem: {unprotect: [.env]}\n")
    options = {"policy_name": policy} if request.node.callspec.params["made"] == "sandbox" else {}

    async def main():
        async with made(workcell.Session, **options) as session:
            await session.run("import os; open('text', 'a').write('three\\n'); os.remove('gone'); open('.env', 'w').write('A=1')")
            diff = await session.diff()
            assert [(each.path, each.change, each.protected) for each in diff.files] == [
                (".env", "added", True), ("gone", "deleted", False), ("text", "changed", False)]
            assert "+three" in diff.text and diff.files[2].old_size == 8
            assert (await session.run("1")).isolation["protected"] == ("enforced" if options else "at commit")
            assert (work / "text").read_text() == "one\ntwo\n"
            commit = await session.commit(["text"])
            assert commit.committed == ["text"] and (work / "text").read_text() == "one\ntwo\nthree\n"
            assert (await session.commit()).protected == [".env"] and not (work / "gone").exists()
            await session.discard()
            assert (await session.diff()).files == [] and (await session.run("os.listdir('.')")).value == ["text"]

    run(main())


def test_protected_names_stay_protected_in_branches(work, tmp_path):
    """Of forks, of what a rewind goes on from, of the winner of a race, and of what these start."""
    write = ("import os, subprocess\ndef attempt():\n    try: open('Makefile', 'w'); return 'missed'\n    except PermissionError: pass\n"
             "    return subprocess.run(['mkdir', '.git'], stderr=subprocess.DEVNULL).returncode")
    with workcell.sync.Session.sandbox(tmp_path / "data", cwd=work, workspace_mode="cow") as session:
        session.run(write)
        session.checkpoint("here")
        fork, = session.fork(1)
        with fork:
            assert fork.run("attempt()").value == 1
        assert session.run("attempt()").value == 1
        session.rewind("here")
        assert session.run("attempt()").value == 1
        race = session.race(["attempt()", "attempt(), 2"], judge="1")
        assert [result.value for result in race.results] == [1, (1, 2)] and session.run("attempt()").value == 1
        assert session.diff().files == []


def test_a_conflict_is_an_error(made, work):
    with made(workcell.sync.Session) as session:
        session.run("open('text', 'w').write('mine')")
        (work / "text").write_text("theirs")
        with pytest.raises(ConflictError, match="text"):
            session.commit()
        assert (work / "text").read_text() == "theirs"
        assert session.commit("text", force=True).committed == ["text"] and (work / "text").read_text() == "mine"


def test_without_a_layer(storage):
    with workcell.sync.Session(storage) as session:
        for call in (session.diff, session.commit, session.discard):
            with pytest.raises(UnsupportedError, match="no layer"):
                call()


def test_files_go_back_with_variables(made, work):
    with made(workcell.sync.Session, undo=5) as session:
        session.run("x = 1; open('text', 'w').write('1')")
        session.checkpoint("one")
        session.run("x = 2; open('text', 'w').write('2'); open('more', 'w').write('2')\nimport os; os.remove('gone')")
        session.rewind("one")
        assert session.run("x, open('text').read(), sorted(os.listdir('.')) if 'os' in globals() else None").value == (1, "1", None)
        assert session.run("import os; sorted(os.listdir('.'))").value == ["gone", "text"]
        session.run("os.remove('text')")
        session.rewind(cells=1)
        assert session.run("open('text').read()").value == "1"
        # A cell that ends its kernel leaves neither variables nor files.
        ended = session.run("x = 3; open('text', 'w').write('3'); os._exit(1)")
        assert ended.state == "restored"
        assert session.run("x, open('text').read()").value == (1, "1")
        with session.attempt():
            session.run("open('kept', 'w').write('k')")
        assert session.run("os.path.exists('kept')").value is True
        # Forks have files of their own.
        session.run("os.makedirs('dir'); os.chdir('dir'); open('shared', 'w').write('s'); x = 'forked'")
        fork, other = session.fork(2)
        fork.run("open('shared', 'w').write('f'); open('../text', 'w').write('fork')")
        assert fork.run("x, open('shared').read(), open('../text').read(), sorted(os.listdir('..'))").value == (
            "forked", "f", "fork", ["dir", "gone", "kept", "text"])
        assert other.run("open('shared').read(), open('../text').read()").value == ("s", "1")
        assert session.run("open('shared').read(), open('../text').read()").value == ("s", "1")
        assert {each.path: each.change for each in fork.diff().files}["text"] == "changed"
        session.run("os.chdir('..')")
        other.close()
        fork.reset()  # a fresh kernel, the same files
        assert fork.run("open('text').read()").value == "fork"
        assert fork.commit("dir").committed == ["dir", "dir/shared"] and (work / "dir" / "shared").read_text() == "f"
        fork.close()
        # The winner of a race brings its files.
        race = session.race(["x = %d; open('text', 'w').write('%d')" % (i, i) for i in range(3)], judge="-abs(x - 1)")
        assert race.winner == 1
        assert session.run("x, open('text').read(), sorted(os.listdir('.'))").value == (1, "1", ["dir", "gone", "kept", "text"])
        session.run("open('text', 'a').write('!')")
        assert {each.path: each.size for each in session.diff().files}["text"] == 2
    assert (work / "text").read_text() == "one\ntwo\n" and (work / "gone").exists()


def test_a_fork_of_a_point_has_its_files(made, work):
    with made(workcell.sync.Session) as session:
        session.run("x = 1; n = open('text', 'w').write('1')")
        session.checkpoint("one")
        session.run("x = 2; n = open('text', 'w').write('2'); import os; os.remove('gone')")
        with session.fork(point="one") as fork:
            assert fork.run("x, open('text').read(), open('gone').read()").value == (1, "1", "x")
            fork.run("n = open('text', 'w').write('f')")
            assert [each.path for each in fork.diff().files] == ["text"]
            # The session, its files and the point stay.
            assert session.run("x, open('text').read(), os.path.exists('gone')").value == (2, "2", False)
            session.rewind("one")
            assert session.run("x, open('text').read()").value == (1, "1")
            session.drop_point("one")
            with pytest.raises(PointNotFoundError, match="one"):
                session.fork(point="one")
            assert fork.run("open('text').read()").value == "f"
            with pytest.raises(PointNotFoundError):
                session.fork(2, point="two")
        assert session.run("x").value == 1


def test_one_kernel_at_a_time_mounts_the_layer(tmp_path, work):
    """Kernels in the pool are confined ahead for sessions that come twice, but not for a layer."""
    def mounted():
        found = set()
        for pid in os.listdir("/proc"):
            try:
                with open("/proc/%s/mountinfo" % pid) as file:
                    if any(" %s " % work in line and " overlay " in line for line in file):
                        found.add(os.readlink("/proc/%s/ns/mnt" % pid))
            except OSError:
                continue
        return found

    with workcell.Engine(pool_size=2) as engine:
        with workcell.sync.Session.sandbox(tmp_path / "data", cwd=work, workspace_mode="cow", engine=engine) as session:
            for i in range(4):
                session.run("open('%d', 'w').close()" % i)
                session.reset()
            assert session.run("import os; sorted(os.listdir('.'))").value == ["0", "1", "2", "3", "gone", "text"]
            deadline = time.monotonic() + 3
            while len(mounted()) > 1 and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.3)  # the pool would be filled by now
            assert len(mounted()) == 1
        assert mounted() == set()


HOSTILE = """
import os
for i in range(300):
    os.mkdir('deep'); os.chdir('deep')
os.chdir('/'); os.chdir(%r)
os.mkdir('locked'); open('locked/x', 'w').close(); os.chmod('locked', 0)
"""


@pytest.fixture(params=["overlay", "copy"])
def spill(request, tmp_path):
    """A folder for layers; with the form "copy" on a file system that has no attributes, as overlayfs needs them."""
    folder = tmp_path / "spill"
    folder.mkdir()
    if request.param == "overlay":
        yield folder, request.param
        return
    if os.getuid() != 0:
        pytest.skip("needs root to mount a file system")
    subprocess.run(["mount", "-t", "ramfs", "none", str(folder)], check=True)
    yield folder, request.param
    subprocess.run(["umount", str(folder)], check=True)


def test_nothing_is_left_in_the_spill_folder(tmp_path, work, spill):
    spill, form = spill
    with workcell.Engine(spill_dir=str(spill)) as engine:
        with workcell.sync.Session.sandbox(tmp_path / "data", cwd=work, workspace_mode="cow", engine=engine) as session:
            result = session.run("open('text', 'a').write('three\\n'); open('/tmp/x', 'w').write('y')")
            assert result.isolation["layer"] == form
            assert len(os.listdir(spill)) == 1 and [each.path for each in session.diff().files] == ["text"]
            session.discard()
            assert session.diff().files == [] and session.run("open('text').read()").value == "one\ntwo\n"
            session.run("open('new', 'w').write('n')")
            assert session.commit().committed == ["new"] and (work / "new").read_text() == "n"
            session.run(HOSTILE % str(work))
            assert any(each.too_deep for each in session.diff().files)
        assert os.listdir(spill) == []


# -- random programs against a model: {path: None (a folder), text, or ("link", target)}

LOOK = """
import os, shutil
def look():
    found = {}
    for at, folders, files in os.walk('.'):
        for name in folders + files:
            path = os.path.join(at, name)
            found[path[2:]] = ['link', os.readlink(path)] if os.path.islink(path) else open(path).read() if os.path.isfile(path) else None
    return found
def away(path):
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
"""


def below(path, folder):
    return path == folder or path.startswith(folder + "/")


def real_state(folder):
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        found[name] = ["link", os.readlink(path)] if path.is_symlink() else path.read_text() if path.is_file() else None
    return found


def random_change(chance, model):
    """A statement, and the model after it; None: none that is possible."""
    folders = [""] + [path + "/" for path, what in model.items() if what is None]
    path = chance.choice(folders) + chance.choice("abc")
    kind = chance.choice(["write", "write", "write", "remove", "mkdir", "link", "move"])
    after = dict(model)
    if kind == "write" and not isinstance(model.get(path, ""), list) and model.get(path, "") is not None:
        after[path] = "%04d" % chance.randrange(10000)
        return "open(%r, 'w').write(%r)" % (path, after[path]), after
    if kind == "remove" and path in model:
        return "away(%r)" % path, {each: what for each, what in model.items() if not below(each, path)}
    if kind in ("mkdir", "link") and path not in model and path.count("/") < 4:
        after[path] = None if kind == "mkdir" else ["link", "nowhere"]
        return "os.mkdir(%r)" % path if kind == "mkdir" else "os.symlink('nowhere', %r)" % path, after
    if kind == "move" and model:
        source = chance.choice(sorted(model))
        if path not in model and not below(path, source):
            moved = {each: what for each, what in model.items() if not below(each, source)}
            moved.update({path + each[len(source):]: what for each, what in model.items() if below(each, source)})
            return "shutil.move(%r, %r)" % (source, path), moved
    return None


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(made, work, seed):
    chance = random.Random(seed)
    for path in list(work.iterdir()):
        path.unlink()
    base = {}
    for folder in ("a", "a/b", "b"):
        (work / folder).mkdir()
        base[folder] = None
        for name in "ac":
            (work / folder / name).write_text("base")
            base["%s/%s" % (folder, name)] = "base"
    time.sleep(0.02)
    with made(workcell.sync.Session) as session:
        session.run(LOOK).raise_for_error()
        model, points, x = dict(base), {}, 0
        for step in range(70):
            kind = chance.choice(["change"] * 9 + ["point", "rewind", "rewind", "discard", "commit", "fork"])
            if kind == "change":
                found = random_change(chance, model)
                if found:
                    model, x = found[1], x + 1
                    session.run(found[0] + "\nx = %d" % x).raise_for_error()
            elif kind == "point":
                name = chance.choice("pq")
                session.checkpoint(name)
                points[name] = dict(model), x
            elif kind == "rewind" and points:
                name = chance.choice(sorted(points))
                session.rewind(name)
                model, x = dict(points[name][0]), points[name][1]
            elif kind == "discard" and step % 2:
                session.discard()
                model = dict(base)
            elif kind == "commit":
                outcome = session.commit()
                assert not outcome.skipped and not outcome.protected, (seed, step, outcome)
                base, points = dict(model), {}  # points stand over what base was then
                assert real_state(work) == base, (seed, step)
            elif kind == "fork" and points and step % 3 == 1:
                name = chance.choice(sorted(points))
                with session.fork(point=name) as fork:
                    assert fork.run("look(), x if 'x' in globals() else 0").value == points[name], (seed, step)
                    fork.run("open('only-the-forks', 'w').close()")
            elif kind == "fork" and step % 3 == 0:
                with session.fork() as fork:
                    assert fork.run("look()").value == model, (seed, step)
                    fork.run("open('only-the-forks', 'w').close()")
            assert session.run("look(), x if 'x' in globals() else 0").value == (model, x), (seed, step, kind)
            changed = {path for path in set(model) | set(base) if model.get(path, 0) != base.get(path, 0)}
            assert {each.path for each in session.diff(text=False).files} == changed, (seed, step, kind)
        assert real_state(work) == base


def test_temporary_files_go_back_too(made, work):
    write = "import tempfile, os; path = tempfile.mkstemp(prefix='kept-')[1]; open(path, 'w').write('1')"
    with made(workcell.sync.Session, undo=5) as session:
        folder = session.run("import tempfile; tempfile.gettempdir()").value
        session.run(write)
        session.checkpoint("one")
        session.run("open(path, 'w').write('2'); tempfile.mkdtemp(prefix='more-')")
        session.rewind("one")
        seen = "[open(os.path.join(tempfile.gettempdir(), name)).read() for name in os.listdir(tempfile.gettempdir()) if name.startswith(('kept-', 'more-'))]"
        assert session.run(seen).value == ["1"]
        fork = session.fork()
        fork.run("for name in os.listdir(tempfile.gettempdir()): open(os.path.join(tempfile.gettempdir(), name), 'w').write('fork')")
        assert fork.run(seen).value == ["fork"] and session.run(seen).value == ["1"]
        if folder != "/tmp":  # without namespaces it has another path
            other = fork.run("os.environ['TMPDIR'], tempfile.gettempdir()").value
            assert other[0] == other[1] != folder
            fork.reset()
            assert fork.run("import tempfile; tempfile.gettempdir()").value == other[0]
        fork.close()
        # They are no changes of the workspace, and stay when those are dropped.
        assert session.diff().files == []
        session.discard()
        assert session.run(seen).value == ["1"]
    assert folder == "/tmp" or not os.path.exists(folder)


def test_a_folder_of_your_own_for_temporary_files(tmp_path, work):
    code = "import tempfile; print(tempfile.gettempdir())"
    argv = [os.environ["WORKCELL_BIN"], "run", "--cwd", str(work), "--workspace-mode", "cow", "--env", "TMPDIR=%s" % tmp_path, "-e", code]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "%s\n" % tmp_path
