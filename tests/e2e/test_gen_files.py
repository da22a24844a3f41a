"""Where workcell gen mcp writes, what it replaces, and what it leaves alone."""
import json
import os
import re
import subprocess
import sys

import pytest

import spaces
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))

import gen  # noqa: E402


def tools(*names):
    return [gen.tool(name) for name in names]


def snapshot(folder):
    """{path: what is there}, without the lock file."""
    found = {}
    for at, folders, files in os.walk(str(folder)):
        for name in folders + files:
            path = os.path.join(at, name)
            if os.path.islink(path):
                found[path] = os.readlink(path)
            elif os.path.isdir(path):
                found[path] = None
            elif name != ".cell-lock":
                with open(path, "rb") as file:
                    found[path] = file.read()
    return found


def refused(folder, listing, code="exists", name="demo", **options):
    """It fails with this code and changes nothing."""
    before = snapshot(folder)
    done = gen.gen(folder, listing, name, **options)
    assert (done.status, done.error_code) == (support.EXIT[code], code), done
    assert snapshot(folder) == before
    return done


def package(folder):
    return sorted(os.listdir(str(folder / "mcptools" / "demo")))


def test_layout(tmp_path):
    done = support.workcell("gen", "mcp", "--name", "demo", "--schema", os.path.join(gen.SCHEMAS, "memory.json"),
                            cwd=str(tmp_path))
    assert done.status == 0 and done.out.splitlines()[0] == "create_entities" and done.err == ""
    assert os.listdir(str(tmp_path)) == ["mcptools"]
    assert sorted(os.listdir(str(tmp_path / "mcptools"))) == [".cell-lock", "demo"]  # no __init__.py: a namespace package
    assert {"__init__.py", "_api.py", "create_entities.py"} < set(package(tmp_path))
    for name in package(tmp_path):
        assert (tmp_path / "mcptools" / "demo" / name).read_text(encoding="utf-8").startswith(gen.MARK)


def test_usage(tmp_path):
    for flags in ([], ["mcp"], ["mcp", "--name", "x"], ["mcp", "--schema", "x"], ["other", "--name", "x"],
                  ["mcp", "mcp", "--name", "x", "--schema", "-"], ["mcp", "--name", "x", "--schema", "-", "--out", ""]):
        done = support.workcell("gen", *flags, stdin=b'{"tools": []}', cwd=str(tmp_path))
        assert (done.status, done.error_code) == (2, "invalid"), flags
    done = support.workcell("gen", "mcp", "--name", "x", "--schema", "missing.json", cwd=str(tmp_path))
    assert done.error_code == "not_found"
    assert os.listdir(str(tmp_path)) == []


def test_problems_are_told(tmp_path):
    listing = tools("fine") + [{"name": ""}, 5]
    done = support.workcell("gen", "mcp", "--name", "demo", "--schema", "-", stdin=json.dumps({"tools": listing}).encode(),
                            cwd=str(tmp_path))
    assert (done.status, done.out) == (1, "fine\n")
    assert done.err == ("workcell: invalid: skipped a tool that has an empty name: \n"
                        "workcell: invalid: skipped a tool that is not an object: #3\n")
    assert json.loads(gen.gen(tmp_path, listing).out)["problems"] == [
        {"tool": "", "message": "has an empty name"}, {"tool": "#3", "message": "is not an object"}]


def test_no_tools(tmp_path):
    gen.make(tmp_path, [])
    assert package(tmp_path) == ["__init__.py", "_api.py"]


def test_replaced(tmp_path):
    gen.make(tmp_path, tools("old", "both"))
    folder = tmp_path / "mcptools" / "demo"
    spaces.write_files(folder, {"mine.py": "x = 1\n", "notes/a.txt": "text", "__pycache__/old.cpython-311.pyc": "stale",
                                "__pycache__/mine.cpython-311.pyc": "stale", "data.py": "# Made by somebody\n"})
    os.symlink("/etc/hostname", str(folder / "link.py"))
    inode = os.stat(str(folder / "mine.py")).st_ino
    gen.make(tmp_path, tools("new", "both"))
    assert package(tmp_path) == ["__init__.py", "_api.py", "both.py", "data.py", "link.py", "mine.py", "new.py", "notes"]
    assert (folder / "notes" / "a.txt").read_text() == "text"
    assert os.stat(str(folder / "mine.py")).st_ino == inode
    assert os.readlink(str(folder / "link.py")) == "/etc/hostname"
    assert sorted(os.listdir(str(tmp_path / "mcptools"))) == [".cell-lock", "demo"]


def test_changed_by_hand(tmp_path):
    """What we made is ours, also when somebody wrote into it; the mark says so."""
    gen.make(tmp_path, tools("t"))
    path = tmp_path / "mcptools" / "demo" / "t.py"
    path.write_text(path.read_text() + "changed = True\n")
    gen.make(tmp_path, tools("t"))
    assert "changed" not in path.read_text()


def test_in_the_way(tmp_path):
    gen.make(tmp_path, tools("t"))
    folder = tmp_path / "mcptools" / "demo"
    (folder / "new.py").write_text("mine = 1\n")
    assert "new.py" in refused(tmp_path, tools("t", "new")).error_message
    (folder / "new.py").unlink()
    os.symlink(str(folder / "t.py"), str(folder / "new.py"))
    refused(tmp_path, tools("t", "new"))
    (folder / "new.py").unlink()
    (folder / "new.py").mkdir()
    refused(tmp_path, tools("t", "new"))
    os.rmdir(str(folder / "new.py"))
    os.mkfifo(str(folder / "new.py"))
    refused_fifo = gen.gen(tmp_path, tools("t", "new"))
    assert refused_fifo.error_code == "exists"
    os.unlink(str(folder / "new.py"))
    gen.make(tmp_path, tools("t", "new"))


def test_not_ours(tmp_path):
    folder = tmp_path / "mcptools" / "demo"
    spaces.write_files(folder, {"module.py": "x = 1\n"})
    refused(tmp_path, tools("t"))
    (folder / "__init__.py").write_text("")
    refused(tmp_path, tools("t"))
    spaces.write_files(tmp_path / "mcptools" / "other", {})
    (tmp_path / "mcptools" / "other").mkdir()
    gen.make(tmp_path, tools("t"), "other")  # an empty folder is nobody's
    (tmp_path / "mcptools" / "file").write_text("x")
    refused(tmp_path, tools("t"), name="file")


def test_links_are_not_followed(tmp_path):
    victim = tmp_path / "victim"
    gen.make(victim, tools("t"))
    (tmp_path / "mcptools").mkdir()
    os.symlink(str(victim / "mcptools" / "demo"), str(tmp_path / "mcptools" / "demo"))
    refused(tmp_path, tools("u"))
    os.unlink(str(tmp_path / "mcptools" / "demo"))
    os.symlink("nowhere", str(tmp_path / "mcptools" / "demo"))
    refused(tmp_path, tools("u"))
    os.unlink(str(tmp_path / "mcptools" / "demo"))
    os.symlink(str(victim), str(tmp_path / "mcptools" / ".cell-gen-demo"))
    refused(tmp_path, tools("u"), "io")
    # Nor is one in the place of the folder: it often lies in a workspace, where code may have put the link.
    os.symlink(str(victim / "mcptools"), str(tmp_path / "linked"))
    done = support.workcell("gen", "mcp", "--name", "more", "--schema", "-", "--out", str(tmp_path / "linked"),
                            stdin=json.dumps({"tools": tools("t")}).encode())
    assert (done.status, done.error_code) == (support.EXIT["invalid"], "invalid") and "symbolic link" in done.err
    assert not (victim / "mcptools" / "more").exists()


def test_pycache_link(tmp_path):
    """A link in the place of __pycache__ leads nowhere."""
    gen.make(tmp_path, tools("t"))
    away = tmp_path / "away"
    spaces.write_files(away, {"x.pyc": "kept"})
    os.symlink(str(away), str(tmp_path / "mcptools" / "demo" / "__pycache__"))
    gen.make(tmp_path, tools("t"))
    assert (away / "x.pyc").read_text() == "kept"
    assert os.path.islink(str(tmp_path / "mcptools" / "demo" / "__pycache__"))


def test_another_server(tmp_path):
    gen.make(tmp_path, tools("t"), "a-b")
    refused(tmp_path, tools("t"), name="a_b")
    gen.make(tmp_path, tools("t"), "a-b")


def test_hostile_names_stay_inside(tmp_path):
    around = tmp_path / "around"
    spaces.write_files(around, {"keep.txt": "kept", "out/keep.txt": "kept"})
    before = snapshot(around)
    gen.make(around / "out", gen.listing("hostile"), "hostile", problems=11)
    after = snapshot(around)
    assert {path for path in after if path not in before and not path.startswith(str(around / "out" / "mcptools"))} == set()
    assert {path: after[path] for path in before} == before
    made = os.listdir(str(around / "out" / "mcptools" / "hostile"))
    assert all(name.endswith(".py") and name[:-3].isidentifier() for name in made)


def test_no_space(tmp_path):
    """A disk that fills up on the way: the old package is there, and nothing half made."""
    with spaces.small_disk(tmp_path / "disk", "1m") as disk:
        gen.make(disk, tools("t"))
        big = [gen.tool("u%d" % number, {"x": {"type": "string", "default": "v" * 50000}}) for number in range(40)]
        refused(disk, big, "io")
        gen.make(disk, tools("t", "u"))
    gen.make(tmp_path, big)


def test_read_only(tmp_path):
    with spaces.small_disk(tmp_path / "disk") as disk:
        gen.make(disk, tools("t"))
        spaces.set_read_only(disk, True)
        refused(disk, tools("u"), "io")
        spaces.set_read_only(disk, False)


def test_left_behind(tmp_path):
    """A generation that was killed: before the exchange its files are rubbish, after it others' files wait there."""
    gen.make(tmp_path, tools("t"))
    out = tmp_path / "mcptools"
    spaces.write_files(out / ".cell-gen-demo", {"half.py": "", "more.py": gen.MARK})
    gen.make(tmp_path, tools("u"))
    assert package(tmp_path) == ["__init__.py", "_api.py", "u.py"]
    old = {"__init__.py": gen.MARK, "gone.py": gen.MARK}
    spaces.write_files(out / ".cell-gen-demo", {**old, "mine.py": "mine = 1\n", "notes/a.txt": "text"})
    gen.make(tmp_path, tools("u"))
    assert package(tmp_path) == ["__init__.py", "_api.py", "mine.py", "notes", "u.py"]
    assert sorted(os.listdir(str(out))) == [".cell-lock", "demo"]
    # The same name in both: neither is lost.
    spaces.write_files(out / ".cell-gen-demo", {**old, "mine.py": "older = 1\n"})
    assert gen.gen(tmp_path, tools("u")).error_code == "io"
    assert (out / ".cell-gen-demo" / "mine.py").read_text() == "older = 1\n"
    assert (out / "demo" / "mine.py").read_text() == "mine = 1\n"
    os.unlink(str(out / ".cell-gen-demo" / "mine.py"))
    gen.make(tmp_path, tools("u"))


OLD, NEW = ["__init__.py", "_api.py", "a.py", "b.py"], ["__init__.py", "_api.py", "c.py", "d.py"]


@pytest.fixture
def traced(tmp_path):
    """A package OLD with a file of somebody's; a function that makes it NEW under strace and answers with the status."""
    gen.make(tmp_path, tools("a", "b"))
    spaces.write_files(tmp_path / "mcptools" / "demo", {"mine.py": "mine = 1\n"})
    listing = json.dumps({"tools": tools("c", "d")})

    def run(*flags):
        argv = ["strace", "-f", "-e", "signal=none", *flags, support.BIN, "gen", "mcp", "--name", "demo", "--schema", "-",
                "--out", str(tmp_path / "mcptools")]
        return subprocess.run(argv, input=listing.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                              env=support.host_environment(ASAN_OPTIONS="detect_leaks=0"), timeout=120).returncode

    return run


def test_killed_anywhere(tmp_path, traced):
    """After a kill -9 at any point there is a whole package, old or new, and the next run works."""
    calls = ["mkdirat", "openat", "write", "renameat2", "unlinkat"]
    assert traced("-o", str(tmp_path / "log"), "-e", "trace=" + ",".join(calls)) == 0
    lines = re.findall(r"^\d+ +(\w+)\(", (tmp_path / "log").read_text(), re.M)
    gen.make(tmp_path, tools("a", "b"))
    seen = set()
    # Each call is counted by itself; those of the start come first.
    for call, step in [(call, step) for call in calls
                       for step in range(max(1, lines.count(call) - 14), lines.count(call) + 1)]:
        assert traced("-o", "/dev/null", "-e", "inject=%s:signal=SIGKILL:when=%d" % (call, step)) != 0
        there = [name for name in package(tmp_path) if name in OLD + NEW]
        assert there in (OLD, NEW), (call, step, there)
        seen.add(tuple(there))
        gen.make(tmp_path, tools("a", "b"))
        assert package(tmp_path) == sorted(OLD + ["mine.py"])
    assert seen == {tuple(OLD), tuple(NEW)}


def test_without_exchange(tmp_path, traced):
    """A file system that cannot exchange two folders. Killed there, the package may be away; the next run has it back."""
    refuse = ["-o", "/dev/null", "-e", "inject=renameat2:error=EINVAL"]
    assert traced(*refuse) == 0
    assert package(tmp_path) == sorted(NEW + ["mine.py"])
    assert sorted(os.listdir(str(tmp_path / "mcptools"))) == [".cell-lock", "demo"]
    for step in range(1, 5):
        assert traced(*refuse, "-e", "inject=renameat:signal=SIGKILL:when=%d" % step) != 0
        gen.make(tmp_path, tools("a", "b"))
        assert package(tmp_path) == sorted(OLD + ["mine.py"]), step
        assert sorted(os.listdir(str(tmp_path / "mcptools"))) == [".cell-lock", "demo"]


def test_at_once(tmp_path):
    """Several at a time: one after the other, and whoever looks finds a package."""
    listings = [json.dumps({"tools": tools(*["t%d_%d" % (number, each) for each in range(30)])}).encode() for number in range(6)]
    gen.make(tmp_path, tools("first"))
    argv = [support.BIN, "gen", "mcp", "--name", "demo", "--schema", "-", "--out", str(tmp_path / "mcptools")]
    running = [support.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in listings]
    for process, listing in zip(running, listings):
        process.stdin.write(listing)
        process.stdin.close()
    init = tmp_path / "mcptools" / "demo" / "__init__.py"
    while any(process.poll() is None for process in running):
        assert init.read_text().startswith(gen.MARK)
    for process in running:
        assert process.wait() == 0, process.stderr.read()
        process.stdout.close()
        process.stderr.close()
    made = [name for name in package(tmp_path) if name[0] == "t"]
    assert len(made) == 30 and len({name.split("_")[0] for name in made}) == 1
    assert sorted(os.listdir(str(tmp_path / "mcptools"))) == [".cell-lock", "demo"]


@pytest.mark.parametrize("name", ["mcptools", "lib/mcptools"])
def test_out(tmp_path, name):
    done = support.workcell("gen", "mcp", "--name", "demo", "--schema", "-", "--out", name, "--json", cwd=str(tmp_path),
                            stdin=json.dumps({"tools": tools("a-b")}).encode())
    assert json.loads(done.out) == {"package": "demo", "path": name + "/demo", "problems": [],
                                    "tools": [{"name": "a-b", "module": "a_b"}]}
    assert (tmp_path / name / "demo" / "a_b.py").exists()
