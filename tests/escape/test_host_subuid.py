"""An ordinary user with subordinate ids: sandboxes that are shown none of the user's files run with one of those ids, the rest with the
user's own, and zygotes with one in any case. Started by root, who makes the user's lines in /etc/subuid in a mount namespace."""
import ctypes
import fcntl
import json
import os
import signal
import stat
import subprocess

import pytest

import attempts
import support
from test_escape import NOBODY, Host, outcomes, prelude, start
from test_host_uid import OWN_MOUNTS, status

TOOLS = ("/usr/bin/newuidmap", "/usr/bin/newgidmap")
pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can give a user subordinate ids"),
    pytest.mark.skipif(not all(os.path.exists(tool) for tool in TOOLS), reason="no newuidmap here (Debian: uidmap)"),
]

FIRST, COUNT = 3000000, 65536
NONE = ("--workspace-mode", "none")


def as_user(script="", subuid="%d:%d:%d" % (NOBODY, FIRST, COUNT), groups=()):
    """A prefix: mounts of its own, in which the user has subordinate ids; script: more shell commands there, as root."""
    line = support.temporary_folder("workcell-subuid-") + "/line"
    with open(line, "w", encoding="ascii") as file:
        file.write("root:100000:65536\n" + subuid + "\n")
    os.chmod(line, 0o644)
    keep = "--groups " + ",".join(map(str, groups)) if groups else "--clear-groups"
    return (*OWN_MOUNTS, "set -e; mount --bind %s /etc/subuid; mount --bind %s /etc/subgid; %s\nexec setpriv --reuid %d --regid %d %s -- \"$@\""
            % (line, line, script, NOBODY, NOBODY, keep), "sh")


def cell(code, host, *flags, prefix=None):
    done = subprocess.run([*(prefix or as_user()), support.BIN, "run", "--executor", "sandbox", "--json", "--python", "/usr/bin/python3", *flags,
                           "-e", code], cwd=host.workspace, capture_output=True, text=True, env=support.host_environment(), timeout=120, check=False)
    assert done.stdout, done
    return json.loads(done.stdout)


@pytest.fixture
def host():
    made = Host(NOBODY)
    yield made
    made.close()


def assert_subordinate(pid, groups=""):
    mine = status(pid)
    for kind in ("Uid", "Gid"):
        ids = {int(word) for word in mine[kind].split()}
        assert len(ids) == 1 and FIRST <= min(ids) < FIRST + COUNT, mine
    assert mine["Groups"].strip() == groups, mine
    return int(mine["Uid"].split()[0])


def test_processes_are_subordinate(host):
    """Kernel, its pid 1 and its zygote, each with another uid of the range, without groups, and the receipt says so."""
    with start(host, prefix=as_user(), flags=NONE) as driver:
        isolation = driver.run("1")["isolation"]
        assert isolation["uid"] == "subuid" and not any("separate uid" in line for line in isolation["skipped"]), isolation
        kernel = driver.locate()
        uid, warm = assert_subordinate(kernel), assert_subordinate(driver.zygote)
        assert uid != warm
        # Nothing of the spawner's family has the caller's uid but itself.
        own = [p for p in driver.family() if status(p.pid)["Uid"].split()[0] == str(NOBODY) and p.pid != driver.pid]
        assert [p.pid for p in own] == [driver.spawner], own
        # What the code makes is that uid's on the host.
        assert driver.run("open('/tmp/made', 'w').write('x')")["error"] is None
        assert os.stat("/proc/%d/root/tmp/made" % kernel).st_uid == uid


@pytest.mark.parametrize("pool", [0, 2])
def test_sessions_of_one_engine_are_different_users(host, pool):
    with start(host, prefix=as_user(), flags=NONE, pool=pool) as driver:
        seen = set()
        for _ in range(4):
            assert driver.value("1") == 1
            seen.add(assert_subordinate(driver.kernel_pid()))
            driver.reset()
        assert len(seen) > 1, seen


def test_every_attempt_is_denied(host):
    with start(host, prefix=as_user(), flags=NONE) as driver:
        prelude(driver)
        tried = [a for a in attempts.ALL if a.layer != "guard"]  # it sees no files of the host
        got = outcomes(driver, tried, host.facts)
    escaped = ["%s: %s" % (a.name, got[a.name]) for a in tried if got[a.name] not in a.denied]
    assert not escaped, "\n".join(escaped)


def as_kernel(pid, what):
    """What a process with the ids of that one may do on the host, outside of any sandbox: its answer."""
    mine = status(pid)
    uid, gid, groups = int(mine["Uid"].split()[0]), int(mine["Gid"].split()[0]), [int(word) for word in mine["Groups"].split()]
    out, to = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            try:
                answer = what() or "done"
            except OSError as error:
                answer = error.strerror
            os.write(to, answer.encode())
        finally:
            os._exit(0)
    os.close(to)
    with os.fdopen(out) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return answer


def trace(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(ctypes.c_long(0x4206), ctypes.c_long(pid), None, None) != 0:  # PTRACE_SEIZE
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.mark.parametrize("rights", ["signal", "trace", "chmod", "setuid-bit", "lease", "read", "limits"])
def test_the_uid_has_no_rights_outside(host, rights):
    """If the code got out of its namespaces, it would still be another user: not the caller's processes, files, modes, leases."""
    theirs = os.path.join(host.workspace, "theirs")
    with open(theirs, "w", encoding="ascii") as file:
        file.write("secret")
    os.chown(theirs, NOBODY, NOBODY)
    os.chmod(theirs, 0o604 if rights == "lease" else 0o600)
    victim = subprocess.Popen(["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--", "sh", "-c", "echo up; read x"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    tries = {
        "signal": lambda: os.kill(victim.pid, signal.SIGTERM),
        "trace": lambda: trace(victim.pid),
        "chmod": lambda: os.chmod(theirs, 0o666),
        "setuid-bit": lambda: os.chmod(theirs, 0o4755),
        "lease": lambda: fcntl.fcntl(os.open(theirs, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK) and None,
        "read": lambda: os.close(os.open(theirs, os.O_RDONLY)),
        "limits": lambda: __import__("resource").prlimit(victim.pid, 7, (10, 10)) and None,
    }
    denied = {"signal": "Operation not permitted", "trace": "Operation not permitted", "chmod": "Operation not permitted",
              "setuid-bit": "Operation not permitted", "lease": "Permission denied", "read": "Permission denied",
              "limits": "Operation not permitted"}
    try:
        assert victim.stdout.readline() == b"up\n"
        with start(host, prefix=as_user(), flags=NONE) as driver:
            assert driver.value("1") == 1
            assert as_kernel(driver.kernel_pid(), tries[rights]) == denied[rights]
        assert victim.poll() is None and not stat.S_IMODE(os.stat(theirs).st_mode) & 0o4022
    finally:
        victim.communicate()


def test_a_cell_that_hangs_is_interrupted_and_killed(host):
    """The host has its rights over kernels that are another user's."""
    with start(host, prefix=as_user(), flags=(*NONE, "--timeout", "2")) as driver:
        assert driver.run("while True: pass")["error"]["code"] == "timeout"
        assert driver.value("1") == 1
        assert driver.run("import os; os.kill(os.getpid(), 9)")["error"]["code"] == "kernel_died"
        assert driver.value("2") == 2


@pytest.mark.parametrize("flags", [(), ("--workspace-mode", "ro"), (*NONE, "read"), (*NONE, "write")], ids=["rw", "ro", "read", "write"])
def test_who_is_shown_the_callers_files_has_the_callers_uid(host, flags):
    """The code reads and writes them as before; the receipt says whose uid it is and why; the zygote is subordinate all the same."""
    with open(host.workspace + "/private", "w", encoding="ascii") as file:
        file.write("private")
    os.chown(host.workspace + "/private", NOBODY, NOBODY)
    os.chmod(host.workspace + "/private", 0o600)
    if flags[-1:] in (("read",), ("write",)):
        policy = os.path.join(host.folder, "p.yaml")
        with open(policy, "w", encoding="ascii") as file:
            file.write("filesystem: {%s: [%s]}\n" % (flags[-1], host.workspace))
        flags = (*NONE, "--sandbox-policy", policy)
    with start(host, prefix=as_user(), flags=flags) as driver:
        isolation = driver.run("1")["isolation"]
        assert isolation["uid"] == "caller" and any("a separate uid: the code sees files" in line for line in isolation["skipped"]), isolation
        assert driver.value("open(%r).read()" % (host.workspace + "/private")) == "private"
        assert status(driver.locate())["Uid"].split() == [str(NOBODY)] * 4
        assert_subordinate(driver.zygote)
        if flags == ():
            assert driver.run("open('made', 'w').write('x')")["error"] is None
            found = os.stat(host.workspace + "/made")
            assert (found.st_uid, found.st_gid) == (NOBODY, NOBODY)


def test_the_callers_groups(host):
    """A workspace that is the caller's by a group works as before; without the caller's files there is no group of the caller's."""
    os.chown(host.workspace, 0, 123456)
    os.chmod(host.workspace, 0o770)
    prefix = as_user(groups=(123456,))
    assert cell("open('made', 'w').write('x')", host, prefix=prefix)["value"] == 1
    host.workspace = host.folder
    with start(host, prefix=prefix, flags=NONE) as driver:
        assert driver.run("1")["isolation"]["uid"] == "subuid"
        assert_subordinate(driver.kernel_pid())


def venv(folder, umask):
    path = os.path.join(folder, "venv")
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", path], check=True, umask=umask)
    subprocess.run(["chown", "-R", "%d:%d" % (NOBODY, NOBODY), folder], check=True)
    os.chmod(folder, 0o700)
    return path + "/bin/python"


def test_an_interpreter_below_a_private_folder(host):
    """Nobody else may enter the folder that the venv lies in; the venv itself everybody may read."""
    python = venv(support.temporary_folder("workcell-private-"), 0o022)
    result = cell("import sys; sys.prefix", host, *NONE, "--python", python)
    assert result["value"] == os.path.dirname(os.path.dirname(python)) and result["isolation"]["uid"] == "subuid", result


def test_an_interpreter_that_only_the_caller_may_read(host):
    """It works with the caller's uid, and the receipt says so of kernel and zygote."""
    python = venv(support.temporary_folder("workcell-private-"), 0o077)
    result = cell("import sys; sys.prefix", host, *NONE, "--python", python)
    assert result["value"] == os.path.dirname(os.path.dirname(python)) and result["isolation"]["uid"] == "caller", result
    told = [line for line in result["isolation"]["skipped"] if "is not world-readable" in line]
    assert len(told) == 2 and any(line.startswith("zygote: ") for line in told), result["isolation"]


def test_a_tool_is_subordinate_too(host):
    """A program that the host runs for such code is what the code is."""
    tools = os.path.join(host.folder, "tools")
    os.mkdir(tools)
    with open(tools + "/look.yaml", "w", encoding="ascii") as file:
        file.write("name: look\ncommand: sh\nschema: {options: {c: {short: c, type: string}}}\nrecipes: {run: {}}\n")
    with start(host, prefix=as_user(), flags=(*NONE, "--tools", tools)) as driver:
        for _ in range(3):
            inside, outside, count = (int(word) for word in driver.value("tools.look.run(c='cat /proc/self/uid_map')").split())
            assert inside == NOBODY and FIRST <= outside < FIRST + COUNT and count == 1


# ---- where it cannot be had

def broken(name, program):
    """A script that puts another program in the place of one of the tools; it is root's and setuid, as that is."""
    folder = support.temporary_folder("workcell-tool-")
    os.chmod(folder, 0o755)
    with open(folder + "/t.c", "w", encoding="ascii") as file:
        file.write("#include <fcntl.h>\n#include <unistd.h>\n#define FOLDER \"%s\"\nint main(int argc, char **argv) { (void)argc; %s }\n"
                   % (folder, program))
    subprocess.run(["cc", "-Wall", "-o", folder + "/t", folder + "/t.c"], check=True)
    os.chmod(folder + "/t", 0o4755)
    subprocess.run(["cp", "-p", name, folder + "/real"], check=True)
    return folder, "mount --bind %s/t %s" % (folder, name)


def test_a_tool_that_refuses(host):
    """The caller's uid, and `doctor` says why."""
    _, script = broken(TOOLS[1], "(void)argv; return 1;")
    prefix = as_user(script)
    result = cell("1", host, *NONE, prefix=prefix)
    assert result["value"] == 1 and result["isolation"]["uid"] == "caller", result
    assert "newuidmap or newgidmap refuses" in sandbox_row(doctor(host, prefix))["reason"]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_fails_later(host, tool):
    """It served when it was tried, and fails when it is needed: the session is refused, not run with the caller's uid."""
    folder, script = broken(tool, "if (open(FOLDER \"/once/x\", O_CREAT | O_EXCL | O_WRONLY, 0600) < 0) return 1; execv(FOLDER \"/real\", argv); return 2;")
    os.mkdir(folder + "/once")
    result = cell("1", host, *NONE, prefix=as_user(script))
    assert os.path.exists(folder + "/once/x") and result["error"]["code"] == "sandbox_failed", result
    assert "newuidmap or newgidmap worked before" in result["error"]["message"], result


def test_the_tools_are_not_taken_from_path(host):
    """A program of that name in $PATH runs neither instead nor beside."""
    fake = os.path.join(host.folder, "bin")
    os.mkdir(fake)
    for tool in TOOLS:
        path = os.path.join(fake, os.path.basename(tool))
        with open(path, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\ntouch %s/ran\n" % host.workspace)
        os.chmod(path, 0o755)
    for script in ("", "mount --bind %s/newuidmap %s" % (fake, TOOLS[0])):
        result = cell("1", host, *NONE, prefix=(*as_user("export PATH=%s:$PATH; %s" % (fake, script)),))
        assert result["value"] == 1 and result["isolation"]["uid"] == ("caller" if script else "subuid"), result
    assert not os.path.exists(host.workspace + "/ran")


def test_the_tools_have_no_environment(host):
    folder, script = broken(TOOLS[0], "extern char **environ; if (*environ || fcntl(3, F_GETFD) >= 0) return 1; execv(FOLDER \"/real\", argv); return 2;")
    assert cell("1", host, *NONE, prefix=as_user(script))["isolation"]["uid"] == "subuid", folder


def doctor(host, prefix):
    done = subprocess.run([*prefix, support.BIN, "doctor", "--json"], cwd=host.workspace, capture_output=True, text=True,
                          env=support.host_environment(), timeout=120, check=False)
    return json.loads(done.stdout)


def sandbox_row(report):
    row, = [row for row in report["executors"] if row["name"] == "sandbox"]
    assert row["available"]
    return row


@pytest.mark.parametrize("how, reason, advice", [
    ({}, "", ""),
    ({"subuid": "somebody:1000000:65536"}, "/etc/subuid has no range of nobody", "usermod --add-subuids"),
    ({"subuid": "%d:%d:4" % (NOBODY, FIRST)}, "/etc/subuid has no range of nobody", "usermod --add-subuids"),
    ({"subuid": "%d:%d:65536" % (NOBODY, NOBODY - 10)}, "/etc/subuid has no range of nobody", "usermod --add-subuids"),
    ({"script": "mount --bind /dev/null " + TOOLS[1]}, "newgidmap is not installed", "apt install uidmap"),
    ({"script": "mount --bind /bin/true " + TOOLS[0]}, "newuidmap is not installed", "apt install uidmap"),
], ids=["usable", "somebody-else", "too-few", "own-uid", "no-tool", "no-setuid"])
def test_doctor(host, how, reason, advice):
    """Whether they can be used, and how to get them; and what doctor says is what a session gets."""
    prefix = as_user(**how)
    row = sandbox_row(doctor(host, prefix))
    assert reason in row["reason"] and advice in row["advice"] and bool(row["reason"]) == bool(reason), row
    assert cell("1", host, *NONE, prefix=prefix)["isolation"]["uid"] == ("caller" if reason else "subuid")
