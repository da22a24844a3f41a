"""The uid that is nobody's, from the host's side: what the sandbox's processes are there, whose the files are that they make, and
what happens where it cannot be had. Root's business: an ordinary user has no ids to give."""
import json
import os
import stat
import subprocess

import pytest

import attempts
import support
import test_escape
from test_escape import Host, outcomes, prelude, start

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a sandbox a uid of its own")

FIRST, LAST = 0x70000000, 0x7ffdffff
OWN_MOUNTS = ("unshare", "-m", "--propagation", "private", "sh", "-c")


def run(*argv, cwd, prefix=()):
    return subprocess.run([*prefix, support.BIN, *argv], cwd=cwd, capture_output=True, text=True, env=support.host_environment(),
                          timeout=120, check=False)


def cell(code, cwd, *flags, script=None):
    """The result of a cell; script: shell commands in a mount namespace of its own, before the program."""
    prefix = (*OWN_MOUNTS, script + '\nexec "$@"', "sh") if script else ()
    done = run("run", "--executor", "sandbox", "--json", "--python", "/usr/bin/python3", *flags, "-e", code, cwd=cwd, prefix=prefix)
    assert done.stdout, done
    return json.loads(done.stdout)


def status(pid):
    with open("/proc/%d/status" % pid, encoding="ascii") as file:
        return dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)


@pytest.fixture
def host():
    made = Host(os.getuid())
    yield made
    made.close()


def test_processes_are_nobody(host):
    """Uids and gids of a range that nobody hands out, no groups, and no two sandboxes have the same."""
    with start(host) as first, start(host) as second:
        seen = []
        for driver in (first, second):
            assert driver.value("1") == 1
            mine = status(driver.locate())
            uids, gids = set(mine["Uid"].split()), set(mine["Gid"].split())
            assert len(uids) == len(gids) == 1 and mine["Groups"].strip() == "", mine
            seen += [int(uids.pop())]
            assert FIRST <= seen[-1] <= LAST and FIRST <= int(gids.pop()) <= LAST
            # Also pid 1, and what the code starts.
            for process in support.processes().values():
                if process.ppid == driver.spawner and "spawner" in process.cmdline:
                    assert FIRST <= int(status(process.pid)["Uid"].split()[0]) <= LAST
            assert driver.run("1")["isolation"]["uid"] == "unmapped"
        assert seen[0] != seen[1]


def test_files_belong_to_the_caller(host):
    """What the code makes is the caller's on the host, and so is what it changes; the caller can remove it."""
    path = os.path.join(host.workspace, "mine")
    with open(path, "w", encoding="ascii") as file:
        file.write("private")
    os.chmod(path, 0o600)
    with start(host) as driver:
        assert driver.value("open('mine').read()") == "private"
        assert driver.run("import os\nos.makedirs('a/b')\nopen('a/b/f', 'w').write('x')\nos.symlink('f', 'a/b/l')\nos.chmod('mine', 0o640)\n"
                          "os.chmod('a', 0o700)\nos.link('a/b/f', 'h')\nos.rename('h', 'i')\nos.truncate('mine', 3)")["error"] is None
        assert driver.value("[os.stat(n).st_uid for n in ('mine', 'a', 'a/b/f', 'i', '.')]") == [os.getuid()] * 5
    for name in ("mine", "a", "a/b", "a/b/f", "a/b/l", "i"):
        found = os.lstat(os.path.join(host.workspace, name))
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid()), name
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640 and os.path.getsize(path) == 3
    os.unlink(os.path.join(host.workspace, "a/b/f"))


def test_files_of_others_are_out_of_reach(host):
    """Somebody else's file in the workspace is not the code's: no reading past its mode, no chmod, no new owner."""
    path = os.path.join(host.workspace, "theirs")
    with open(path, "w", encoding="ascii") as file:
        file.write("secret")
    os.chmod(path, 0o600)
    os.chown(path, 1234, 1234)
    with start(host) as driver:
        prelude(driver)
        assert driver.value("[tr(read, 'theirs'), tr(os.chmod, 'theirs', 0o666), tr(os.chown, 'theirs', 0, 0), os.stat('theirs').st_uid]") == [
            "EACCES", "EOVERFLOW", "EPERM", 65534]
        # Nor can a file be given away, to whoever has that number outside.
        assert driver.value("write('mine'); [tr(os.chown, 'mine', 1234, 1234), tr(os.chown, 'mine', %d, -1)]" % FIRST) == ["EINVAL", "EINVAL"]
    assert os.stat(path).st_uid == 1234 and stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_files_of_root_are_out_of_reach():
    """A file below /usr that only root may read stays root's, where it is not the workspace's."""
    folder = "/usr/local/share/workcell-test-%d" % os.getpid()
    os.mkdir(folder, 0o755)
    try:
        with open(folder + "/secret", "w", encoding="ascii") as file:
            file.write("secret")
        os.chmod(folder + "/secret", 0o600)
        work = support.temporary_folder("workcell-uid-")
        result = cell("import os\ntry:\n    open(%r)\nexcept OSError as e:\n    n = e.errno\n[n, os.stat(%r).st_uid]" % ((folder + "/secret",) * 2), work)
        assert result["value"] == [13, 65534], result
    finally:
        os.unlink(folder + "/secret")
        os.rmdir(folder)


def test_an_interpreter_that_only_the_caller_may_read():
    """A venv with mode 0700 throughout, below a folder of mode 0700: it is the caller's, so it is shown as the sandbox's own."""
    folder = support.temporary_folder("workcell-private-")
    venv, work = os.path.join(folder, "venv"), support.temporary_folder("workcell-uid-")
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", venv], check=True, umask=0o077)
    packages = subprocess.run([venv + "/bin/python", "-c", "import site; print(site.getsitepackages()[0])"], check=True, capture_output=True,
                              text=True).stdout.strip()
    with open(os.path.join(packages, "private_module.py"), "w", encoding="ascii") as file:
        file.write("x = 42\n")
    os.chmod(os.path.join(packages, "private_module.py"), 0o600)
    os.chmod(folder, 0o700)
    result = cell("import private_module; private_module.x", work, "--python", venv + "/bin/python")
    assert result["value"] == 42 and result["isolation"]["uid"] == "unmapped", result


def test_a_mount_in_the_workspace_is_there():
    """Another file system below the workspace is shown with it, also with the caller as its owner."""
    work = support.temporary_folder("workcell-uid-")
    os.mkdir(work + "/in side")
    result = cell("import os\n[open('in side/f').read(), os.stat('in side/f').st_uid, open('in side/g', 'w').write('x')]", work,
                  script="mount -t tmpfs none %s/'in side' && (umask 077; echo -n there > %s/'in side'/f)" % (work, work))
    assert result["value"] == ["there", os.getuid(), 1] and result["isolation"]["uid"] == "unmapped", result


OVERLAY = ("mkdir -p {0}/low {0}/up {0}/work {0}/merged && mount -t overlay none -o lowerdir={0}/low,upperdir={0}/up,workdir={0}/work "
           "{0}/merged && cd {0}/merged")


def overlay():
    folder = support.temporary_folder("workcell-overlay-")
    probe = subprocess.run([*OWN_MOUNTS, OVERLAY.format(folder), "sh"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("no overlayfs here")
    return folder


def test_where_the_file_system_cannot(host):
    """An overlay cannot be mounted with other owners: the caller's uid it is, the receipt says so, and every attempt is denied as before."""
    folder = overlay()
    script = OVERLAY.format(folder) + '\nexec "$@"'
    host.workspace = folder + "/merged"
    os.makedirs(host.workspace, exist_ok=True)
    with start(host, prefix=(*OWN_MOUNTS, script, "sh")) as driver:
        isolation = driver.run("1")["isolation"]
        assert isolation["uid"] == "caller" and any("a separate uid" in line and "merged" in line for line in isolation["skipped"]), isolation
        assert status(driver.locate())["Uid"].split() == [str(os.getuid())] * 4
        prelude(driver)
        got = outcomes(driver, attempts.ALL, host.facts)
    escaped = ["%s: %s" % (a.name, got[a.name]) for a in attempts.ALL if got[a.name] not in a.denied]
    assert not escaped, "\n".join(escaped)


BOMB = """import os
n = 0
try:
    while n < 200:
        if os.fork() == 0:
            import signal
            signal.pause()
        n += 1
except OSError as e:
    error = e.errno
[n < 64, error]"""


def test_the_limit_on_processes_holds_without_a_group(host):
    """An rlimit means nothing to the host's root; to nobody it does."""
    policy = os.path.join(host.folder, "p.yaml")
    with open(policy, "w", encoding="ascii") as file:
        file.write("limits: {pids: 50}\n")
    result = cell(BOMB, host.workspace, "--sandbox-policy", policy, script="umount /sys/fs/cgroup/pids 2>/dev/null; umount -l /sys/fs/cgroup")
    limit = result["isolation"]["limits"]["pids"]
    assert limit == {"max": 50, "by": "rlimit"} and result["isolation"]["uid"] == "unmapped", result
    assert result["value"] == [True, 11], result


def test_a_limit_on_processes_that_cannot_be_kept():
    """Root, no group, and no uid to count by: refused where it was asked for, and not claimed where a preset has it."""
    folder = overlay()
    policy = os.path.join(folder, "p.yaml")
    with open(policy, "w", encoding="ascii") as file:
        file.write("limits: {pids: 50}\n")
    script = "umount -l /sys/fs/cgroup; " + OVERLAY.format(folder)
    prefix = (*OWN_MOUNTS, script + '\nexec "$@"', "sh")
    for flags in (["--sandbox-policy", policy], ["--pids-limit", "50"]):
        done = run("run", "--executor", "sandbox", "--python", "/usr/bin/python3", *flags, "-e", "1", cwd=folder, prefix=prefix)
        assert done.returncode == support.EXIT["executor_unavailable"] and "limit of 50 processes" in done.stderr, done
    result = cell("1", folder, script=script)
    assert "pids" not in result["isolation"]["limits"], result["isolation"]
    assert any("limit on processes" in line for line in result["isolation"]["skipped"]), result["isolation"]


def test_a_command_is_nobody(host):
    """`workcell sandbox run`, the same: nobody outside, and what it makes is the caller's."""
    done = run("sandbox", "run", "--", "sh", "-c", "cat /proc/self/uid_map; id -u; echo x > made; mkdir d", cwd=host.workspace)
    inside, outside, count = (int(word) for word in done.stdout.split()[:3])
    assert done.returncode == 0 and inside == 0 and FIRST <= outside <= LAST and count == 1, done
    assert os.stat(os.path.join(host.workspace, "made")).st_uid == os.getuid()


@pytest.mark.parametrize("attempt", [a for a in attempts.ALL if a.name in ("/proc/1/mem", "/proc/1/environ", "memory of another session",
                                                                           "signal another session", "ptrace another session")],
                         ids=lambda a: a.name.replace(" ", "-"))
def test_neighbours_are_other_users(host, attempt):
    """What two sandboxes could do to each other if they met, they may not: they are not the same user."""
    with start(host) as sibling, start(host) as driver:
        sibling.value("1")
        host.facts["sibling_pid"] = sibling.kernel_pid()
        assert not test_escape.run_all(host, driver, of=[attempt])
