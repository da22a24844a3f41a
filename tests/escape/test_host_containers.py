"""Attacks on the host by code in a container, through what it can write to: the storage, all of it but `tools` and `.host`.

What the code would leave there is written here by hand, so no engine is needed: a session that asks for a container is opened and fails,
which is enough for the storage to be shared. tests/container does the same from inside.
"""
import json
import os
import socket
import sqlite3
import stat
import struct

import pytest

import containers
import support

SOURCE = "def run():\n    return 'ran'\n"
EVIL = "import pathlib\ndef run():\n    pathlib.Path(%r).write_text('x')\n"
MARK = "# workcell: untrusted, made by confined code\n"
NOWHERE = ["--executor", "container", "--container-host", "unix:///nonexistent/docker.sock", "--image", "none"]


def share(base, *flags):
    done = support.workcell("run", *NOWHERE, "--base", base, *flags, "-e", "1")
    assert done.status == support.EXIT["executor_unavailable"], done


def cli(*argv, status=0, **more):
    done = support.workcell(*argv, **more)
    assert (done.status == 0) == (status == 0), done
    return done


@pytest.fixture
def base(tmp_path):
    """A storage with a person's workflows and packages, in which a container has been since."""
    folder = tmp_path / "base"
    for name in ("workflows", "skills", "workspaces/team/workflows"):
        (folder / name).mkdir(parents=True)
    (folder / "workflows" / "mine.py").write_text(SOURCE)
    (folder / "skills" / "old.py").write_text(SOURCE)
    (folder / "workspaces" / "team" / "workflows" / "ours.py").write_text(SOURCE)
    (folder / "workflows" / "sandboxed.py").write_text(MARK + SOURCE)
    (folder / "requirements.txt").write_text("six>=1\n")
    for path in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(path, 0o755)
    containers.give(folder)
    share(folder)
    return folder


def test_what_a_person_kept_is_vouched_for(base):
    for name, flags in (("mine", ()), ("old", ()), ("ours", ("--workspace", "team"))):
        assert cli("workflows", "run", name, "--base", base, *flags).out.strip() == "'ran'"
    cli("workflows", "run", "sandboxed", "--base", base, status=1)
    assert cli("deps", "list", "--base", base).out.split() == ["six>=1"]


@pytest.mark.parametrize("name, flags", [("evil", ()), ("mine", ()), ("old", ()), ("ours", ("--workspace", "team")), ("other", ("--workspace", "new"))])
def test_a_workflow_that_a_container_wrote_is_not_vouched_for(base, tmp_path, name, flags):
    """New ones, changed ones, and those of a person under another name; without the mark, which the code can leave out."""
    folder, work = base / "workspaces" / flags[1] if flags else base, tmp_path / "work"
    work.mkdir()
    (folder / "workflows").mkdir(parents=True, exist_ok=True)
    (folder / "workflows" / (name + ".py")).write_text(EVIL % str(tmp_path / "ran"))
    (folder / "workflows" / "renamed.py").write_text(SOURCE)
    for each in (name, "renamed"):
        done = cli("workflows", "run", each, "--base", base, *flags, status=1)
        assert "made by confined code" in done.err and "workflows trust" in done.err, done
        done = support.run_cells("workflows.%s()" % each, flags=("--base", base, *flags))
        assert "made by confined code" in done.results[0]["error"]["message"], done
    assert not (tmp_path / "ran").exists()
    # Confined as well, it is as good as its own.
    assert support.run_cells("workflows.renamed()", flags=("--executor", "sandbox", "--cwd", work, "--base", base, *flags)).results[0]["value"] == "ran"
    # Who has read it may trust it, and that is good for what it was then.
    assert cli("workflows", "show", name, "--base", base, *flags).out.startswith(MARK)
    cli("workflows", "trust", name, "--base", base, *flags)
    cli("workflows", "run", name, "--base", base, *flags)
    (tmp_path / "ran").unlink()
    with open(folder / "workflows" / (name + ".py"), "a") as file:
        file.write("# more\n")
    cli("workflows", "run", name, "--base", base, *flags, status=1)
    assert not (tmp_path / "ran").exists()


def test_it_stays_untrusted_elsewhere(base, tmp_path, redis):
    """Moved to another storage, it carries the mark that it lacked."""
    (base / "workflows" / "evil.py").write_text(EVIL % str(tmp_path / "ran"))
    cli("workflows", "add", "good", "-", "--base", base, stdin=SOURCE.encode())
    (base / "requirements.txt").write_text("evil-package\n")
    target = redis.url(tmp_path.name)
    cli("store", "push", "--source", base, "--target", target, "--type", "workflows")
    cli("store", "push", "--source", base, "--target", target, "--type", "deps")
    cli("workflows", "run", "evil", "--storage", target, status=1)
    assert cli("workflows", "run", "good", "--storage", target).out.strip() == "'ran'"
    assert cli("deps", "list", "--storage", target).out.split() == ["six>=1"]
    assert not (tmp_path / "ran").exists()


def test_packages_that_a_container_lists_are_not_the_hosts(base):
    """Which would be built and installed here, by the next session with --sync-deps."""
    (base / "requirements.txt").write_text("six>=1\nevil-package\n")
    (base / "deps").mkdir()
    (base / "deps" / "requirements.txt").write_text("evil-package-too\n")
    assert cli("deps", "list", "--base", base).out.split() == ["six>=1"]
    done = cli("deps", "sync", "--base", base, "--json", env=support.host_environment(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(base)), status=1)
    assert "evil" not in done.out + done.err, done


def hot_journal(path, victim):
    """A journal of a transaction over several databases: SQLite removes the file that it names when it has rolled back."""
    database = sqlite3.connect(path)
    database.execute("create table t (x)")
    database.commit()
    pages = database.execute("pragma page_count").fetchone()[0]
    database.close()
    name = str(victim).encode()
    head = bytes.fromhex("d9d505f920a163d7") + struct.pack(">IIIII", 0, 1, pages, 512, 4096)
    tail = struct.pack(">I", 0x40000000 // 4096 + 1) + name + struct.pack(">II", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7")
    with open(str(path) + "-journal", "wb") as file:
        file.write(head.ljust(512, b"\0") + tail)


def test_a_journal_that_names_another_file(base, tmp_path):
    """Beside a search index that the code has put there."""
    victim = tmp_path / "victim"
    victim.write_text("of the host")
    (base / ".cache").mkdir(exist_ok=True)
    for name in ("search.sqlite", "vectors.sqlite", "tool-vectors.sqlite"):
        hot_journal(base / ".cache" / name, victim)
    # The attack is real: SQLite itself does it.
    copy, other = tmp_path / "copy.sqlite", tmp_path / "other"
    other.write_text("x")
    hot_journal(copy, other)
    sqlite3.connect(copy).execute("select * from sqlite_master").fetchall()
    assert not other.exists()
    for argv in (("list",), ("search", "mine"), ("show", "mine")):
        cli("workflows", *argv, "--base", base)
    assert support.run_cells("workflows.search('mine')[0]['name']", flags=("--base", base)).results[0]["value"] == "mine"
    assert victim.read_text() == "of the host"


def plant(base, victim):
    """All kinds of things in the place of files and folders of the storage."""
    folder = base / "artifacts"
    folder.mkdir(exist_ok=True)
    os.symlink(victim, folder / "link")
    os.symlink(victim.parent, folder / "folder")
    os.link(base / "workflows" / "mine.py", folder / "hard")
    os.mkfifo(folder / "fifo")
    os.mkfifo(base / "workflows" / "fifo.py")
    os.symlink(victim, base / "workflows" / "link.py")
    with open(folder / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with open(base / "workflows" / "sparse.py", "wb") as file:
        file.truncate(1 << 40)
    (folder / "esc\x1b]0;owned\x07\x1b[2J.txt").write_text("x")
    (folder / "new\nline").write_text("x")
    (folder / "\udcff\udcfe").write_text("x")
    (folder / "setuid").write_text("#!/bin/sh\n")
    os.chmod(folder / "setuid", 0o4777)
    (folder / "closed").mkdir(mode=0)
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(folder, os.O_RDONLY)
        listener.bind("/proc/self/fd/%d/socket" % here)
        os.close(here)
    deep = folder
    for _ in range(40):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (folder / ".artifacts.json").write_text("[" * 100000)
    (base / "workflows" / ".workflows.json").write_text(json.dumps({"mine": {"description": "\x1b[31mred\x1b]0;t\x07", "created_at": 5}}))
    (base / "workflows" / ".cell-journal").write_text(json.dumps({
        "index": ".workflows.json", "index_temp": ".cell-tmp-0000000000000000", "path": "../../victim", "ino": os.stat(victim).st_ino}))
    (base / "artifacts" / ".cell-journal").write_text(json.dumps({
        "index": ".artifacts.json", "index_temp": ".cell-tmp-0000000000000000", "path": "folder/victim", "ino": os.stat(victim).st_ino}))


COMMANDS = [("artifacts", "list"), ("artifacts", "get", "link"), ("artifacts", "get", "folder/victim"), ("artifacts", "get", "fifo"),
            ("artifacts", "get", "socket"), ("artifacts", "rm", "folder/victim"), ("artifacts", "rm", "link"), ("artifacts", "put", "link", "-"),
            ("artifacts", "put", "folder/victim", "-"), ("workflows", "list"), ("workflows", "search", "mine"), ("workflows", "show", "link"),
            ("workflows", "show", "fifo"), ("workflows", "show", "sparse"), ("workflows", "trust", "link"), ("workflows", "run", "link"),
            ("workflows", "rm", "link"), ("workflows", "run", "mine"), ("deps", "list"), ("tools", "list")]


def test_links_pipes_holes_and_names_for_host_commands(base, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("def run():\n    return 'secret of the host'\n")
    before = os.stat(victim)
    plant(base, victim)
    for argv in COMMANDS:
        done = support.workcell(*argv, "--base", base, stdin=b"overwritten", deadline=30)
        assert done.status in set(support.EXIT.values()), (argv, done)
        assert "secret of the host" not in done.out + done.err, (argv, done)
        assert "\x1b" not in done.err and ("\x1b" not in done.out or argv[1] in ("get", "show")), (argv, done)
        after = os.stat(victim)
        assert (after.st_ino, after.st_size, after.st_mtime_ns, after.st_mode) == (
            before.st_ino, before.st_size, before.st_mtime_ns, before.st_mode), (argv, done)
    assert cli("workflows", "run", "mine", "--base", base).out.strip() == "'ran'"


@pytest.mark.parametrize("kind", ["link", "file", "gone"])
def test_the_folder_that_vouches(base, tmp_path, kind):
    """In the place of .host, which no container can touch, something else: nothing is believed, or nothing was ever shared."""
    os.rename(base / ".host", tmp_path / "was")
    if kind == "link":
        os.symlink(tmp_path / "was", base / ".host")
    elif kind == "file":
        (base / ".host").write_text("{}")
    done = support.workcell("workflows", "run", "mine", "--base", base)
    assert (done.status == 0) == (kind == "gone"), done
    if kind != "gone":
        assert ".host" in done.err and done.status != 0
        assert ".host" in cli("deps", "list", "--base", base, status=1).err
        assert ".host" in support.workcell("run", *NOWHERE, "--base", base, "-e", "1").err


def refused(*flags):
    done = support.workcell("run", *NOWHERE, *flags, "-e", "1")
    assert done.status == support.EXIT["invalid"], done
    return done.err


def test_places_that_code_must_not_write_to(base, tmp_path):
    for path, why in (("/", "part of the system"), ("/etc", "part of the system"), ("/home", "it contains other users' folders"), (os.path.expanduser("~"), "home folder"),
                      ("/usr/none-such", "part of the system")):
        assert why in refused("--storage", path)
        assert not os.path.exists(os.path.join(path, ".host")) and not os.path.exists("/usr/none-such")
    (base / "sub" / "tools").mkdir(parents=True)
    containers.give(base)
    assert "can write to the storage" in refused("--storage", base, "--tools", base / "sub" / "tools")
    os.symlink(tmp_path / "elsewhere", base / "led")
    (tmp_path / "elsewhere").mkdir()
    assert "can write to the storage" in refused("--storage", base, "--tools", base / "led")
    assert "can write to the storage" in refused("--storage", base, "--tools", tmp_path)
    (base / "sub" / "packaging").mkdir()
    assert "can write to the storage" in refused("--storage", base, "--container-context", base / "sub")
    assert "can write to the storage" in refused("--storage", base, "--wheel-dir", base / "sub")
    os.rmdir(base / "tools")
    os.symlink(tmp_path / "elsewhere", base / "tools")
    assert "symbolic link" in refused("--storage", base)


def test_a_new_storage_is_made_closed_to_others(tmp_path):
    """Setuid files that the code leaves in it are nobody's else to run."""
    for path in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(path, 0o755)
    share("%s/new/" % tmp_path)
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o700
    assert os.stat(tmp_path / "new").st_uid == (os.getuid() or containers.USER)
    assert sorted(os.listdir(tmp_path / "new" / ".host")) == ["requirements.txt", "workflows.json"]


def test_the_storage_has_its_tools_before_any_code(base):
    """A folder of tools that the code makes would be read at the next start, and its commands run here."""
    assert (base / "tools").is_dir() and stat.S_ISDIR(os.lstat(base / ".host").st_mode)
