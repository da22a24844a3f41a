"""Files of a workspace: ``session.files``, of local sessions and of those of a server."""
import os
import sys
import threading

import pytest
from conftest import run

import workcell
import workcell.sync
from workcell import ContainerConfig, ContainerExecutor, SubprocessConfig, SubprocessExecutor

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tests"))
import serving  # noqa: E402


@pytest.fixture(scope="module")
def server():
    with serving.shared("--executor", "subprocess") as made:
        yield made


@pytest.fixture(params=["local", "remote"])
def executor(request, tmp_path):
    if request.param == "remote":
        port = request.getfixturevalue("server").port
        return ContainerExecutor(ContainerConfig(remote_url="http://127.0.0.1:%d" % port, auth_token=serving.TOKEN))
    (tmp_path / "work").mkdir()
    return SubprocessExecutor(SubprocessConfig(cwd=tmp_path / "work"))


def test_small_files(executor):
    async def main():
        async with workcell.Session(executor=executor) as session:
            files = session.files
            assert await files.write("a/b ü%.txt", "text ü") == 7 and await files.read("a/b ü%.txt") == "text ü".encode()
            assert (await session.run("open('a/b ü%.txt').read()")).value == "text ü"
            assert await files.read("a/b ü%.txt", offset=2, size=3) == b"xt "
            await files.write("run", b"\0\xff", mode=0o755)
            info = await files.stat("run")
            assert (info.type, info.size, info.mode, info.path) == ("file", 2, 0o755, "run") and info.mtime > 1e9
            await files.mkdir("x/y")
            assert [(each.path, each.type) for each in await files.list()] == [("a", "folder"), ("run", "file"), ("x", "folder")]
            assert [each.path for each in await files.list("x")] == ["x/y"]
            with pytest.raises(FileExistsError):
                await files.remove("x")
            await files.remove("x", recursive=True)
            await files.remove("run")
            for call in (files.read("run"), files.remove("run"), files.stat("none/f"), files.download("run", "/nowhere/f"), files.list("none")):
                with pytest.raises(FileNotFoundError):
                    await call
            await session.run("import os; os.symlink('/etc', 'link')")
            for call in (files.read("link/passwd"), files.write("link/x", b""), files.remove("link/passwd")):
                with pytest.raises(PermissionError):
                    await call
            assert (await files.stat("link")).target == "/etc"
            for path in ("../x", "/etc/passwd"):
                with pytest.raises(workcell.WorkcellError):
                    await files.read(path)
            with pytest.raises(NotADirectoryError):
                await files.list("a/b ü%.txt")

    run(main())


def test_folders_and_large_files(executor, tmp_path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "f").write_bytes(os.urandom(3_000_000))
    (source / "run").write_text("#!")
    (source / "run").chmod(0o755)
    with workcell.sync.Session(executor=executor) as session:
        files = session.files
        assert files.upload(source, "in") > 3_000_000
        session.run("import os; os.symlink('/etc/passwd', 'in/out'); os.symlink('sub/f', 'in/fine'); os.mkfifo('in/pipe')")
        assert files.download("in", tmp_path / "back") > 3_000_000
        assert sorted(os.listdir(tmp_path / "back")) == ["fine", "run", "sub"] and os.access(tmp_path / "back" / "run", os.X_OK)
        assert (tmp_path / "back" / "fine").read_bytes() == (source / "sub" / "f").read_bytes()
        assert files.upload(source / "sub" / "f", "g") == files.download("g", tmp_path / "g") == 3_000_000
        assert (tmp_path / "g").read_bytes() == (source / "sub" / "f").read_bytes()
        files.download("in/run", tmp_path)
        assert os.access(tmp_path / "run", os.X_OK)
        # What fails says why, whichever end it was, and leaves nothing.
        with pytest.raises(FileExistsError, match="folder|file of that name"):
            files.upload(source, "g")
        (tmp_path / "back2").mkdir()
        (tmp_path / "back2" / "sub").symlink_to(tmp_path / "source")
        with pytest.raises(PermissionError, match="link"):
            files.download("in", tmp_path / "back2")
        with pytest.raises(workcell.WorkcellError):
            files.download("in/pipe", tmp_path / "pipe")
        assert not (tmp_path / "pipe").exists() and not [name for name in os.listdir(tmp_path) if name.startswith("pipe")]


def test_files_while_a_cell_runs(executor):
    with workcell.sync.Session(executor=executor) as session:
        session.run("1")
        done = threading.Thread(target=session.run, args=("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)",))
        done.start()
        session.files.write("go", b"")
        done.join(30)
        assert not done.is_alive()


def test_a_link_raced_against_a_write(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("outside")
    with workcell.sync.Session(executor=SubprocessExecutor(SubprocessConfig(cwd=tmp_path / "work"))) as session:
        session.run("import os, threading; os.makedirs('real'); open('real/f', 'w').write('inside'); stop = False\n"
                    "def swap():\n"
                    "    while not stop:\n"
                    "        try:\n"
                    "            os.symlink(%r, 'race'); os.unlink('race'); os.rename('real', 'race'); os.rename('race', 'real')\n"
                    "        except OSError: pass\n"
                    "threading.Thread(target=swap, daemon=True).start()" % str(tmp_path / "outside"))
        seen = set()
        for i in range(300):
            for call in (lambda: seen.add(session.files.read("race/f")), lambda: session.files.write("race/w", b"escaped"),
                         lambda: session.files.download("race", tmp_path / "got"), lambda: session.files.remove("race/f%d" % i)):
                try:
                    call()
                except (OSError, workcell.WorkcellError):
                    pass
        session.run("stop = True")
    assert seen <= {b"inside"} and os.listdir(tmp_path / "outside") == ["f"]
    assert not (tmp_path / "got" / "f").exists() or (tmp_path / "got" / "f").read_text() == "inside"


def test_deno_has_its_files_elsewhere():
    if not workcell.DENO_SANDBOX_AVAILABLE:
        pytest.skip("no deno")
    with workcell.sync.Session(executor="deno") as session, pytest.raises(workcell.UnsupportedError):
        session.files.list()


def test_changes_are_in_the_audit_log(tmp_path):
    import json

    (tmp_path / "work").mkdir()
    audit = workcell.AuditLog(tmp_path / "audit.jsonl")
    with workcell.sync.Session(executor=SubprocessExecutor(SubprocessConfig(cwd=tmp_path / "work")), audit=audit) as session:
        session.files.write("f", b"123")
        session.files.remove("f")
        with pytest.raises(FileNotFoundError):
            session.files.remove("f")
    audit.close()
    records = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(each["callable"], each["principal"], each["outcome"]) for each in records if each["kind"] == "files"] == [
        ("put", "host", "ok"), ("remove", "host", "ok"), ("remove", "host", "error")]
