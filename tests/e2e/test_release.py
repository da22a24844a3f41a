"""scripts/release.sh in a clone of this tree: what it refuses, and what it makes."""
import os
import re
import shutil
import subprocess
import tarfile

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Everything that the script reads, as it is here, committed or not.
FILES = ["VERSION", "CHANGELOG.md", "include/workcell.h", "packaging/compose.yaml", "scripts/release.sh", "scripts/check-version.py"]


def git(folder, *arguments):
    return subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments], cwd=folder, check=True, capture_output=True,
                          text=True).stdout


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "test")


def replace(path, pattern, text):
    before = path.read_text()
    after = re.sub(pattern, text, before, flags=re.M)
    assert before != after
    path.write_text(after)


@pytest.fixture
def tree(tmp_path):
    """A tree that can be released."""
    folder = tmp_path / "tree"
    folder.mkdir()
    git(folder, "init", "-q")
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.join(ROOT, name), folder / name)
    (folder / "tests/abi").mkdir(parents=True)
    (folder / "VERSION").write_text("7.8.0\n")
    replace(folder / "include/workcell.h", r'^(#define CELL_VERSION) ".*"', r'\1 "7.8.0"')
    for part, number in (("MAJOR", 7), ("MINOR", 8), ("PATCH", 0)):
        header = (folder / "include/workcell.h").read_text()
        (folder / "include/workcell.h").write_text(re.sub(r"(#define CELL_VERSION_%s) .*" % part, r"\1 %d" % number, header))
    replace(folder / "packaging/compose.yaml", r"workcell:\d[\w.]*", "workcell:7.8.0")
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## 7.8.0 (2026-01-02)\n\n- Something new.\n\n## 7.7.0 (2025-01-02)\n\n- Old.\n")
    shutil.copy(folder / "include/workcell.h", folder / "tests/abi/workcell-7.8.h")
    (folder / ".gitignore").write_text("/build/\n")
    commit(folder)
    return folder


def release(folder, *flags):
    return subprocess.run(["scripts/release.sh", *flags], cwd=folder, capture_output=True, text=True, check=False)


def test_dry_run(tree):
    done = release(tree, "--skip-tests")
    assert done.returncode == 0, done.stderr
    assert "nothing was tagged" in done.stdout
    assert git(tree, "tag") == ""
    archive = tree / "build/release/workcell-7.8.0.tar.gz"
    with tarfile.open(archive) as file:
        assert "workcell-7.8.0/VERSION" in file.getnames()
    subprocess.run(["sha256sum", "-c", archive.name + ".sha256"], cwd=archive.parent, check=True, stdout=subprocess.DEVNULL)
    assert git(tree, "status", "--porcelain") == ""


def break_changes(tree):
    (tree / "new").write_text("")


def break_version(tree):
    (tree / "VERSION").write_text("7.9.0\n")
    commit(tree)


def break_changelog(tree):
    replace(tree / "CHANGELOG.md", r"\(2026-01-02\)", "(not released yet)")
    commit(tree)


def break_text(tree):
    replace(tree / "CHANGELOG.md", "- Something new.", "")
    commit(tree)


def break_header(tree):
    with open(tree / "tests/abi/workcell-7.8.h", "a") as file:
        file.write("/* more */\n")
    commit(tree)


def break_tag(tree):
    git(tree, "tag", "v7.8.0")


@pytest.mark.parametrize("how, said", [(break_changes, "not committed"), (break_version, "VERSION is 7.9.0"), (break_changelog, "no section '## 7.8.0"),
                                       (break_text, "no section '## 7.8.0"), (break_header, "workcell-7.8.h is not the header"),
                                       (break_tag, "v7.8.0 exists")])
def test_refused(tree, how, said):
    how(tree)
    done = release(tree, "--skip-tests")
    assert done.returncode == 1
    assert said in done.stdout + done.stderr
    assert not (tree / "build").exists()


def test_failing_tests_stop_it(tree):
    (tree / "Makefile").write_text("test:\n\tfalse\n")
    commit(tree)
    done = release(tree, "--publish")
    assert done.returncode == 1 and "the tests fail" in done.stderr
    assert git(tree, "tag") == ""


def test_publish(tree):
    (tree / "Makefile").write_text("test:\n\ttrue\n")
    commit(tree)
    assert release(tree, "--publish", "--skip-tests").returncode == 1
    git(tree, "config", "user.name", "t")
    git(tree, "config", "user.email", "t@example.org")
    done = release(tree, "--publish")
    assert done.returncode == 0, done.stderr
    assert "Something new." in git(tree, "tag", "-n9", "v7.8.0") and "Old." not in git(tree, "tag", "-n9", "v7.8.0")


def test_unknown_flag(tree):
    assert release(tree, "--nonsense").returncode == 2
