"""workcell cache: which environments there are, whose they are, and their removal."""
import fcntl
import os

import pytest

import spaces
import support
from support import INSTALL_SECONDS, find_uv


@pytest.fixture
def made(tmp_path):
    """A cache with an environment of a project; run() runs the program with that cache."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    spaces.make_wheel(wheels, "wc-alpha", "1.0", "def who():\n    return 'alpha'\n")
    path = "%s%s%s" % (os.path.dirname(find_uv()), os.pathsep, os.environ["PATH"])
    env = support.host_environment(XDG_CACHE_HOME=str(tmp_path / "cache"), PATH=path)

    def run(*words, deadline=INSTALL_SECONDS):
        return support.workcell(*words, env=env, cwd=str(tmp_path), deadline=deadline)

    done = run("deps", "add", "wc-alpha", "--base", "project", "--wheel-dir", str(wheels), "--python", "/usr/bin/python3")
    assert done.status == 0, done
    run.wheels, run.folder = str(wheels), tmp_path
    return run


def listed(made):
    return {entry["kind"]: entry for entry in made("cache", "list", "--json").objects[0]}


def test_the_project_of_an_environment_is_named(made):
    entry = listed(made)["venvs"]
    assert entry["project"] == str(made.folder / "project") and not entry["orphan"] and entry["packages"] == ["wc-alpha"], entry
    assert entry["bytes"] > 4096
    shown = made("cache", "list")
    assert str(made.folder / "project") in shown.out and "1 environment, " in shown.out.splitlines()[-1]


def test_a_storage_has_one_environment_however_it_is_named(made):
    os.symlink("project", str(made.folder / "link"))
    for spelling in ("./project/.", str(made.folder / "project"), "link", "project/../project//"):
        done = made("run", "--base", spelling, "--python", "/usr/bin/python3", "-e", "import wc_alpha; wc_alpha.who()")
        assert done.status == 0 and done.out == "'alpha'\n", (spelling, done)
    assert len(made("cache", "list", "--json").objects[0]) == 1
    assert "removed 1 environment," in made("cache", "prune", "--project", "./link").out


def test_an_environment_of_a_project_that_is_gone_is_removed(made):
    assert "removed 0 environments" in made("cache", "prune").out
    os.rename(str(made.folder / "project"), str(made.folder / "moved"))
    assert listed(made)["venvs"]["orphan"] and "(gone)" in made("cache", "list").out
    place = made.folder / "cache" / "workcell" / listed(made)["venvs"]["id"]
    assert "would remove 1 environment," in made("cache", "prune", "--dry-run").out and place.exists()
    assert "removed 1 environment," in made("cache", "prune").out and not place.exists()
    assert "venvs" not in listed(made)
    assert not [name for name in os.listdir(place.parent) if name.startswith("." + place.name)]


@pytest.mark.parametrize("flags, gone", [(["--all"], True), (["--project", "project"], True), (["--older-than", "30"], False),
                                         (["--older-than", "0.5"], False)])
def test_what_the_flags_select_is_removed(made, flags, gone):
    made("cache", "prune", *flags)
    assert ("venvs" not in listed(made)) == gone


def test_an_old_environment_is_removed(made):
    place = made.folder / "cache" / "workcell" / listed(made)["venvs"]["id"]
    os.utime(place, (1, 1))
    assert "removed 1" in made("cache", "prune", "--older-than", "30").out


def test_a_removed_environment_is_made_again(made):
    made("cache", "prune", "--all")
    flags = ["--base", "project", "--wheel-dir", made.wheels, "--python", "/usr/bin/python3"]
    assert made("deps", "sync", *flags).status == 0
    done = made("run", *flags, "-e", "import wc_alpha; wc_alpha.who()")
    assert done.out == "'alpha'\n", done


def test_where_an_installer_works_nothing_is_removed(made):
    place = made.folder / "cache" / "workcell" / listed(made)["venvs"]["id"]
    with open(place.parent / (".%s.lock" % place.name), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = made("cache", "prune", "--all")
        assert done.status == 0 and "an installer is working" in done.err and place.exists(), done


def test_links_in_an_environment_are_not_followed(made):
    """Code of a session wrote there: neither sizes nor removal leave the folder, and its note is escaped."""
    precious = made.folder / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(bytes(10 << 20))
    place = made.folder / "cache" / "workcell" / listed(made)["venvs"]["id"]
    os.symlink(str(precious), str(place / "link"))
    os.unlink(str(place / ".workcell-project"))
    os.symlink("/etc/passwd", str(place / ".workcell-project"))
    assert listed(made)["venvs"]["bytes"] < 5 << 20 and "project" not in listed(made)["venvs"]
    os.unlink(str(place / ".workcell-project"))
    (place / ".workcell-project").write_text("/gone\x1b[31m\nsecond line")
    shown = made("cache", "list").out
    assert "\x1b" not in shown and "second line" not in shown
    os.symlink("/etc", str(place.parent / "abcdef"))  # an environment that is a link
    made("cache", "prune", "--all")
    assert (precious / "file").exists() and os.path.exists("/etc/passwd") and not place.exists()


def test_usage(made):
    for words in (["cache"], ["cache", "remove"], ["cache", "list", "x"]):
        assert made(*words).status == 2
    assert made("cache", "list").out == made("cache", "list").out
