"""The sandbox executor from the command line: workspaces, limits, policies, namespaces of a space, ends."""
import ctypes
import fcntl
import json
import os
import pathlib
import re
import resource
import signal
import struct
import subprocess
import tempfile
import termios
import threading

import pytest

import serving
import spaces
import support


def run(*argv, cwd, stdin=None):
    return subprocess.run([support.BIN, *argv], cwd=cwd, env=support.host_environment(), capture_output=True, text=True,
                          timeout=support.DEADLINE, stdin=stdin)


def cells(cwd, *codes, flags=()):
    argv = ["run", "--executor", "sandbox", "--json", "--keep-going", "--python", "/usr/bin/python3", *flags]
    for code in codes:
        argv += ["-e", code]
    done = run(*argv, cwd=cwd)
    return [json.loads(line) for line in done.stdout.splitlines()], done


def policy(tmp_path, text, name="p"):
    """Flags with a policy that lies beside the workspace: one that the code could write to is refused."""
    file = tmp_path.parent / ("%s-%s.yaml" % (tmp_path.name, name))
    file.write_text(text)
    file.chmod(0o644)
    return ["--sandbox-policy", str(file)]


def limit_of(result):
    assert result["error"]["code"] == "limit_exceeded", result["error"]
    limit = result["error"]["limit"]
    assert limit["max"] > 0 and limit["used"] > 0
    return limit["name"]


# ---- workspaces ----------------------------------------------------------------------------------------------


def test_workspace_rw(tmp_path):
    results, _ = cells(tmp_path, "open('made', 'w').write('x')\nimport os\nos.getcwd()")
    assert results[0]["value"] == str(tmp_path) and (tmp_path / "made").read_text() == "x"
    assert (tmp_path / "made").stat().st_uid == os.getuid()


def test_workspace_ro(tmp_path):
    (tmp_path / "there").write_text("y")
    results, _ = cells(tmp_path, "open('there').read()", "open('made', 'w')", flags=["--workspace-mode", "ro"])
    assert results[0]["value"] == "y" and results[1]["error"]["type"] in ("OSError", "PermissionError")
    assert not (tmp_path / "made").exists() and results[1]["isolation"]["workspace"] == "ro"


def test_workspace_none(tmp_path):
    (tmp_path / "there").write_text("y")
    results, _ = cells(tmp_path, "import os\n[os.getcwd(), os.path.exists(%r)]" % str(tmp_path / "there"),
                       flags=["--workspace-mode", "none"])
    assert results[0]["value"] == ["/tmp", False]


@pytest.mark.parametrize("folder", ["/", "/usr", "/etc", "/proc"])
def test_the_system_is_no_workspace(folder):
    done = run("run", "--executor", "sandbox", "--cwd", folder, "-e", "1", cwd="/")
    assert done.returncode == support.EXIT["invalid"] and "workspace" in done.stderr


def test_a_link_as_workspace(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    results, _ = cells(tmp_path / "link", "open('f', 'w').write('1')")
    assert results[0]["error"] is None and (tmp_path / "real" / "f").exists()


def test_a_workspace_below_var_tmp():
    """/var/tmp is a link in the sandbox: the workspace is still found and writable, under both names."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        results, _ = cells(folder, "import os\nopen('made', 'w').write('x')\nos.listdir(%r)" % folder)
        assert results[0]["error"] is None and results[0]["value"] == ["made"] == os.listdir(folder)


def test_other_executors_have_no_policy(tmp_path):
    done = run("run", "--sandbox-policy", "untrusted", "-e", "1", cwd=tmp_path)
    assert done.returncode == support.EXIT["invalid"] and "sandbox" in done.stderr


# ---- limits --------------------------------------------------------------------------------------------------

LIMITS = "limits: {memory: 128M, pids: 20, files: 64, file_size: 1M, tmp: 4M, output: 1M, cpu_time: 1}\n"

OVER = {
    "pids": "import os, time\nfor i in range(100):\n    if os.fork() == 0:\n        time.sleep(30)\n        os._exit(0)",
    "files": "kept = [open('/dev/null') for i in range(100)]",
    "file_size": "open('big', 'wb').write(b'x' * (2 << 20))",
    "tmp": "for i in range(9): open('/tmp/%d' % i, 'wb').write(b'x' * (1 << 20))",
    "output": "while True: print('y' * 1000)",
    "cpu_time": "while True: pass",
    "memory": "x = bytearray(500 << 20)\nx[::4096] = b'1' * len(x[::4096])",
}


@pytest.mark.parametrize("name", sorted(OVER))
def test_going_over_a_limit(tmp_path, name):
    results, done = cells(tmp_path, OVER[name], "1 + 1", flags=policy(tmp_path, LIMITS))
    assert limit_of(results[0]) == name, done
    assert results[1]["value"] == 2, "the session goes on"
    support.forget(results[0])
    held = results[0]["isolation"]["limits"]
    assert {"memory_bytes", "pids", "files", "file_size_bytes", "tmp_bytes", "output_bytes", "cpu_time_ms"} <= held.keys()
    assert all(limit["by"] in ("cgroup v2", "cgroup v1", "rlimit", "tmpfs", "host", "watched") for limit in held.values())


def test_a_flood_that_does_not_stop_is_not_kept(tmp_path):
    """Past the limit nothing goes to the disk, also while the code ignores that it is interrupted."""
    results, _ = cells(tmp_path, "while True:\n    try:\n        while True: print('y' * 10000)\n    except BaseException: pass",
                       flags=policy(tmp_path, "limits: {output: 2M}\n"))
    spill = results[0]["spill"]
    size = os.path.getsize(spill)
    os.unlink(spill)
    assert limit_of(results[0]) == "output" and 2 << 20 <= size < 4 << 20, (results[0]["error"], size)
    assert "the first %d are in %s" % (size, spill) in results[0]["text"], results[0]["text"][-300:]
    assert any("first %d bytes" % size in notice for notice in results[0]["notices"]), results[0]["notices"]


def test_a_lower_limit_of_the_host_is_the_one_that_holds(tmp_path):
    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))

    done = subprocess.run([support.BIN, "run", "--executor", "sandbox", "--json", "--python", "/usr/bin/python3", "-e",
                           "import resource\n[resource.getrlimit(n)[1] for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)]"],
                          cwd=tmp_path, env=support.host_environment(), capture_output=True, text=True, preexec_fn=lower,
                          timeout=support.DEADLINE)
    result = json.loads(done.stdout)
    limits = result["isolation"]["limits"]
    assert result["value"] == [limits["files"]["max"], limits["file_size_bytes"]["max"]] == [300, 64 << 20], result


def test_wall_time(tmp_path):
    results, _ = cells(tmp_path, "import time\ntime.sleep(60)", "1 + 1", flags=policy(tmp_path, "limits: {wall_time: 0.5}\n"))
    assert limit_of(results[0]) == "wall_time" and results[0]["state"] == "lost" and results[1]["value"] == 2


@pytest.fixture
def open_folder():
    """For everybody; pytest's own folders are root's alone again whenever another run of it begins."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        work = pathlib.Path(folder, "work")
        work.mkdir()
        work.chmod(0o777)
        yield work


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody without cgroups")
def test_memory_without_cgroups(open_folder):
    """An ordinary user without delegation: the limit is one of each process, and says so."""
    done = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", support.BIN, "run", "--executor",
                           "sandbox", "--json", *policy(open_folder, LIMITS), "--python", "/usr/bin/python3", "-e",
                           "x = bytearray(500 << 20)"], cwd=open_folder, env=support.host_environment(), capture_output=True,
                          text=True, timeout=support.DEADLINE)
    result = json.loads(done.stdout)
    assert limit_of(result) == "memory"
    by = result["isolation"]["limits"]["memory_bytes"]["by"]
    assert by in ("rlimit", "cgroup v2") and (by == "cgroup v2" or any("memory" in s for s in result["isolation"]["skipped"]))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_a_server_of_an_ordinary_user(open_folder, monkeypatch):
    """It hides its memory from others of that user, and confines their code all the same, without being told to."""
    program = open_folder / "workcell"
    program.write_text("#!/bin/sh\nexec setpriv --reuid 65534 --regid 65534 --clear-groups %s \"$@\"\n" % support.BIN)
    program.chmod(0o755)
    monkeypatch.setattr(support, "BIN", str(program))
    server = serving.Server(tokens=None, env={"WORKCELL_SERVE_TOKEN": serving.TOKEN}, cwd=open_folder, python="/usr/bin/python3")
    try:
        assert server.execute("'Seccomp:\\t2' in open('/proc/self/status').read()")["value"] is True, server.text()
        assert os.stat("/proc/%d/mem" % server.pid).st_uid == 0, "not dumpable"
    finally:
        server.close()


# ---- policies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text,line,words", [
    ("levle: full\n", 1, "unknown key"),
    ("level: full\nworkspace: maybe\n", 2, "workspace"),
    ("limits:\n  memory: lots\n", 2, "bytes"),
    ("limits:\n  memory: 1M\n", 2, "16M"),
    ("limits:\n  pids: 0\n", 2, "pids|number"),
    ("limits:\n  colour: 3\n", 2, "unknown limit"),
    ("filesystem:\n  read: [/a]\n  hide: [/a]\n", 3, "hidden"),
    ("filesystem:\n  read: [/a]\n  write: [/a]\n", 3, "read-only"),
    ("filesystem:\n  read: [relative]\n", 2, "absolute"),
    ("network: sometimes\n", 1, "network"),
    ("network:\n  allow: [example.org]\n", 2, "HOST:PORT"),
    ("preset: none-such\n", 1, "preset"),
    ("level: full\nlevel: full\n", 2, "duplicate"),
    ("- a\n", 1, "names"),
    ("env:\n  A: [1]\n", 2, "env"),
    ("a: &x 1\n", 1, "anchors"),
])
def test_bad_policies_are_refused_with_the_line(tmp_path, text, line, words):
    (tmp_path / "p.yaml").write_text(text)
    for argv in (["sandbox", "explain", "./p.yaml"], ["run", "--executor", "sandbox", "--sandbox-policy", "./p.yaml", "-e", "1"]):
        done = run(*argv, cwd=tmp_path)
        assert done.returncode == support.EXIT["invalid"], done
        assert "line %d" % line in done.stderr and re.search(words, done.stderr), done.stderr


def test_a_policy_shows_and_hides(tmp_path):
    work, shown, kept, hidden = (tmp_path / n for n in ("work", "shown", "kept", "hidden"))
    for folder in (work, shown, kept, hidden):
        folder.mkdir()
        (folder / "f").write_text("x")
    (shown / "inner").mkdir()
    (shown / "inner" / "f").write_text("x")
    flags = policy(work, "preset: untrusted\nfilesystem:\n  read: [%s]\n  write: [%s]\n  hide: [%s]\nenv: {WORD: hello}\n"
                   % (shown, kept, shown / "inner"))
    code = ("import os\nresults = []\n"
            "for p in (%r, %r, %r, %r):\n"
            "    try:\n        os.listdir(p); read = bool(os.listdir(p))\n    except OSError as e:\n        read = type(e).__name__\n"
            "    try:\n        open(p + '/new', 'w'); write = True\n    except OSError as e:\n        write = False\n"
            "    results.append([read, write])\nresults.append(os.environ['WORD'])\nresults"
            % tuple(map(str, (shown, kept, hidden, shown / "inner"))))
    results, _ = cells(work, code, flags=flags)
    assert results[0]["value"] == [[True, False], [True, True], ["FileNotFoundError", False], ["FileNotFoundError", False],
                                   "hello"], results


@pytest.mark.parametrize("lists,words", [
    ("write: [/usr/local/x]", "system"),
    ("write: [/etc]", "system"),
    ("hide: [/usr]", "no program runs"),
    ("write: [{0}/work/inner]", "already writable"),
    ("write: [{0}]", "host trusts"),
    ("read: [{0}/work/inner]", "is inside the writable workspace; use workspace: ro"),
    ("read: [{0}/work/link]", "is inside the writable workspace; use workspace: ro"),
    ("hide: [{0}/work/inner]", "is inside the writable workspace; use workspace: ro"),
    ("hide: [{0}]", "workspace is inside it"),
    ("write: [{0}/base]", "host trusts"),
])
def test_policies_that_contradict_the_session_are_refused_with_the_line(tmp_path, lists, words):
    for folder in ("work/inner", "base/tools", "other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "work" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "p.yaml").write_text("filesystem:\n  %s\n" % lists.format(tmp_path))
    done = run("run", "--executor", "sandbox", "--sandbox-policy", str(tmp_path / "p.yaml"), "--base", str(tmp_path / "base"), "-e", "1",
               cwd=tmp_path / "work")
    assert done.returncode == support.EXIT["invalid"] and "line 2" in done.stderr and words in done.stderr, done.stderr


def test_a_writable_folder_in_a_read_only_workspace(tmp_path):
    inner = tmp_path / "a" / "inner"
    inner.mkdir(parents=True)
    code = """def tried(fn, *args):
    try:
        fn(*args)
        return 'ok'
    except OSError as e:
        return type(e).__name__ + str(e.errno)
import os
[tried(open, %r, 'w'), tried(os.rename, 'a', 'b'), tried(open, 'beside', 'w')]""" % str(inner / "new")
    results, _ = cells(tmp_path, code, flags=[*policy(tmp_path, "filesystem:\n  write: [%s]\n" % inner), "--workspace-mode", "ro"])
    assert results[0]["value"][0] == "ok" and results[0]["value"][2] == "OSError30", results
    assert (inner / "new").exists()


def test_the_receipt_names_what_the_policy_asks_for_and_is_not_there(tmp_path):
    results, _ = cells(tmp_path, "1", flags=policy(tmp_path, "filesystem:\n  read: [/no/such/folder]\n"))
    assert any("/no/such/folder" in line for line in results[0]["isolation"]["skipped"]), results


@pytest.mark.parametrize("preset, network", [("untrusted", "none"), ("developer", "the host's, all of it")])
def test_explain_is_ten_lines(tmp_path, preset, network):
    lines = run("sandbox", "explain", preset, cwd=tmp_path).stdout.splitlines()
    assert 8 <= len(lines) <= 12, lines
    words = dict(line.split(None, 1) for line in lines)
    assert words["policy"].startswith(preset) and words["network"] == network
    assert words["workspace"] == "%s: read and write" % tmp_path
    assert int(words["steps"].split(",")[0]) > 50


def test_explain_names_the_paths_and_hosts_of_a_policy_file(tmp_path):
    policy = tmp_path.parent / (tmp_path.name + ".yaml")
    policy.write_text("preset: untrusted\nworkspace: ro\nnetwork: {allow: ['example.org:443']}\nfilesystem: {read: [/srv]}\n")
    lines = run("sandbox", "explain", str(policy), cwd=tmp_path).stdout
    assert "read only\n" in lines and "; /srv\n" in lines and "to example.org:443\n" in lines, lines


def test_explain_does_nothing(tmp_path):
    before = set(os.listdir("/sys/fs/cgroup/pids")) if os.path.isdir("/sys/fs/cgroup/pids") else None
    done = run("sandbox", "explain", "untrusted", "-v", cwd=tmp_path)
    assert done.returncode == 0
    for words in ("new namespaces: user mount pid net ipc uts cgroup", "detach the host's files", "drop all capabilities",
                  "seccomp filter", "show %s writable" % tmp_path, '"level":"full"'):
        assert words in done.stdout, words
    for words in ("17179869184 bytes of artifacts in a session's storage", "50000 artifacts", "8388608 bytes of descriptions", "2000 workflows",
                  "262144 bytes per second of audit records"):
        assert "host: at most " + words in done.stdout, words
    assert os.listdir(tmp_path) == []
    if before is not None:
        assert not [n for n in set(os.listdir("/sys/fs/cgroup/pids")) - before if n.startswith("workcell-try")]


@pytest.mark.parametrize("preset", ["untrusted", "data-science", "developer"])
def test_what_is_explained_is_what_is_done(tmp_path, preset):
    """The receipt, and all that is mounted: what a session has is what was said, and nothing else."""
    explained = run("sandbox", "explain", preset, "-v", "--python", "/usr/bin/python3", cwd=tmp_path).stdout
    mounts = "[[line.split()[4], line.split()[5][:2]] for line in open('/proc/self/mountinfo')]"
    results, _ = cells(tmp_path, mounts, flags=["--sandbox-policy", preset])
    assert json.loads(explained.splitlines()[-1]) == results[0]["isolation"]
    explained = explained[:explained.index("\nthe zygote, from which")]
    planned = {("/", "ro"), ("/proc", "rw"), ("/dev/pts", "rw")}
    planned |= {(path, {"read-only": "ro", "writable": "rw"}[how]) for path, how in
                re.findall(r"^ *\d+ +\w+ +show (\S+) (read-only|writable)", explained, re.M)}
    planned |= {(path, "rw") for path in re.findall(r"^ *\d+ +\w+ +private (\S+) of", explained, re.M)}
    hidden = set(re.findall(r"^ *\d+ +\w+ +hide (\S+)", explained, re.M))
    done = {tuple(mount) for mount in results[0]["value"] if mount[0] not in hidden}
    mounted = {path for path, _ in results[0]["value"]}
    assert done == planned, done ^ planned
    if preset == "untrusted":  # there is nothing in /proc to be hidden
        assert "/proc of the new pid namespace, processes alone" in explained and not any(path.startswith("/proc/") for path in mounted)
    else:
        assert {path for path in hidden if os.path.lexists(path)} <= mounted
    limits = results[0]["isolation"]["limits"]
    assert ("at most %d bytes of output per cell" % limits["output_bytes"]["max"] in explained) if "output_bytes" in limits \
        else "bytes of output" not in explained


def test_what_is_seen_of_the_machine(tmp_path):
    """Nothing, unless a policy says so; then what programs read, and no more of it."""
    code = ("import ctypes, os\n"
            "def size(path):\n"
            "    try:\n"
            "        return len(os.listdir(path)) if os.path.isdir(path) else len(open(path, 'rb').read(100))\n"
            "    except OSError as e:\n"
            "        return -e.errno\n"
            "[[n for n in os.listdir('/proc') if not n.isdigit() and n not in ('self', 'thread-self', 'net') and size('/proc/' + n)], "
            "ctypes.CDLL(None).inotify_init1(0)]")
    shown = {"cpuinfo", "filesystems", "loadavg", "meminfo", "mounts", "stat", "uptime", "version", "vmstat"}
    for policy, seen in [("untrusted", set()), ("data-science", shown), ("developer", shown), ("machine: shown", shown),
                         ("preset: developer\nmachine: hidden", set())]:
        if ":" in policy:
            (tmp_path / "p.yaml").write_text(policy + "\n")
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        results, _ = cells(work, code, flags=["--sandbox-policy", str(tmp_path / "p.yaml") if ":" in policy else policy])
        names, watches = results[0]["value"]
        assert set(names) == seen and (watches >= 0) == bool(seen), (policy, names, watches)
    (tmp_path / "p.yaml").write_text("machine: yes\n")
    results, done = cells(tmp_path / "work", "1", flags=["--sandbox-policy", str(tmp_path / "p.yaml")])
    assert done.returncode == support.EXIT["invalid"] and "machine" in done.stderr and "shown" in done.stderr, done


def test_sandbox_run(tmp_path):
    done = run("sandbox", "run", "--", "sh", "-c", "echo $HOME; cat /etc/shadow; touch made; exit 7", cwd=tmp_path)
    assert done.returncode == 7 and done.stdout == "/tmp\n" and "No such file" in done.stderr and (tmp_path / "made").exists()
    assert run("sandbox", "run", "--", "sh", "-c", "kill -9 $$", cwd=tmp_path).returncode == 137
    assert run("sandbox", "run", "--", "no-such-program", cwd=tmp_path).returncode == support.EXIT["not_found"]
    assert run("sandbox", "run", cwd=tmp_path).returncode == support.EXIT["invalid"]


def test_the_wall_time_of_a_command(tmp_path):
    file = policy(tmp_path, "limits: {wall_time: 0.3}\n")[1]
    done = run("sandbox", "run", "--policy", file, "--", "sh", "-c", "sleep 1000 & sleep 1000", cwd=tmp_path)
    assert done.returncode == support.EXIT["limit_exceeded"] and "wall_time: 300 of 300 ms" in done.stderr, done
    assert run("sandbox", "run", "--policy", file, "--", "sh", "-c", "exit 3", cwd=tmp_path).returncode == 3


# ---- with a space --------------------------------------------------------------------------------------------


def test_namespaces_work_inside(tmp_path):
    base, work = tmp_path / "base", tmp_path / "work"
    work.mkdir()
    spaces.write_files(base, {"tools/e.yaml": "name: e\ncommand: echo\nrecipes: {say: {preset: {}}}\n"})
    results, done = cells(work, "tools.list()[0].name if hasattr(tools.list()[0], 'name') else tools.list()[0]['name']",
                          "artifacts.save('a', [1, 2]); artifacts.load('a')",
                          "workflows.create('w', 'def run(x): return x + 1', 'adds'); workflows.invoke('w', x=1) "
                          "if hasattr(workflows, 'invoke') else workflows.w(x=1)", flags=["--base", str(base)])
    assert [r["error"] for r in results] == [None] * 3, (results, done.stderr)
    assert results[1]["value"] == [1, 2] and results[2]["value"] == 2


# ---- life and death ------------------------------------------------------------------------------------------


@pytest.fixture
def driver(drive, tmp_path):
    return drive(executor="sandbox", cwd=tmp_path, python="/usr/bin/python3")


def test_interrupt(driver):
    driver.start("import time\nprint('on', flush=True)\nwhile True: time.sleep(1)")
    driver.next_event(lambda e: "on" in str(e))
    driver.interrupt()
    assert driver.answer()["error"]["code"] == "interrupted" and driver.value("1 + 1") == 2


def test_timeout_and_state(driver):
    driver.run("x = 5")
    assert driver.run("while True: pass", timeout=0.3)["error"]["code"] == "timeout" and driver.value("x") == 5


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_death_by_signal(driver, number):
    error = driver.run("import os\nos.kill(os.getpid(), %d)\nimport time\ntime.sleep(9)" % number)["error"]
    assert error["code"] == "kernel_died" and "signal %d" % number in error["message"] and driver.value("1 + 1") == 2


def test_exit(driver):
    error = driver.run("import os\nos._exit(3)")["error"]
    assert error["code"] == "kernel_died" and "status 3" in error["message"] and driver.value("1 + 1") == 2


def test_the_death_of_pid_1_ends_the_session_only(driver):
    kernel = driver.locate()
    shells = [p.pid for p in support.processes().values() if p.ppid == driver.spawner and "spawner" in p.cmdline]
    for pid in sorted(shells, reverse=True):  # the spare one first, or the session may be in it by then
        os.kill(pid, signal.SIGKILL)
    support.wait_until(lambda: getattr(support.read_process(kernel), "state", "X") in "ZX", "it is gone")
    support.wait_until(lambda: driver.run("1 + 1").get("value") == 2, "the next run works", 20)


def test_descriptors_of_sessions_are_out_of_the_way(driver):
    """A new sandbox leaves those of all other sessions behind with one call: its cost must not grow with their number."""
    driver.locate()
    held = {int(fd): os.readlink("/proc/%d/fd/%s" % (driver.spawner, fd)) for fd in os.listdir("/proc/%d/fd" % driver.spawner)}
    kept = [fd for fd, name in held.items() if "pidfd" in name]
    assert len(kept) >= 2 and min(kept) >= 256, held


def unread_bytes(pid, fd):
    """What waits to be read by a process from one of its sockets."""
    pidfd = os.pidfd_open(pid)
    libc = ctypes.CDLL(None, use_errno=True)
    copy = libc.syscall(438, pidfd, fd, 0)  # pidfd_getfd
    assert copy >= 0, os.strerror(ctypes.get_errno())
    try:
        return struct.unpack("i", fcntl.ioctl(copy, termios.FIONREAD, b"\0" * 4))[0]
    finally:
        os.close(copy)
        os.close(pidfd)


@pytest.mark.skipif(os.geteuid() != 0, reason="looks into the zygote's socket")
def test_a_jail_that_dies_while_the_kernel_is_forked_into_it_is_replaced(driver):
    """The zygote is asked to fork into a jail whose pid 1 is gone by then: Linux says ENOMEM, and another jail serves."""
    driver.locate()
    zygote = driver.zygote
    socket, = [int(argument) for argument in support.read_process(zygote).cmdline.split()[-2:-1]]
    space = os.readlink("/proc/%d/ns/pid" % zygote)
    os.kill(zygote, signal.SIGSTOP)
    try:
        driver.send({"op": "reset"})
        support.wait_until(lambda: unread_bytes(zygote, socket) > 0, "the zygote is asked for a kernel")
        # The spawner must not notice before the zygote did.
        os.kill(driver.spawner, signal.SIGSTOP)
        jails = [p.pid for p in support.below(driver.spawner).values() if p.ppid == driver.spawner and "spawner" in p.cmdline
                 and os.readlink("/proc/%d/ns/pid" % p.pid) != space]
        assert jails
        for pid in jails:
            os.kill(pid, signal.SIGKILL)
        for pid in jails:
            support.wait_until(lambda: getattr(support.read_process(pid), "state", "X") in "ZX", "it is gone")
        os.kill(zygote, signal.SIGCONT)
        support.wait_until(lambda: unread_bytes(zygote, socket) == 0, "the zygote has read it")
    finally:
        os.kill(zygote, signal.SIGCONT)
        os.kill(driver.spawner, signal.SIGCONT)
    assert driver.answer() == {"op": "reset", "ok": True}
    assert driver.value("1 + 1") == 2


def test_a_fork_bomb_is_gone_after_close(drive, tmp_path):
    driver = drive(executor="sandbox", cwd=tmp_path, python="/usr/bin/python3", grace=2)
    driver.start("import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", timeout=2)
    assert driver.answer()["error"]["code"] in ("timeout", "kernel_died", "limit_exceeded")
    driver.reset()
    assert driver.value("1 + 1") == 2


def cpu_group(kernel):
    """The folder of a kernel's group for the CPUs."""
    with open("/proc/%d/cgroup" % kernel) as file:
        paths = [line.split(":")[1:] for line in file.read().splitlines()]
    folders = [("/sys/fs/cgroup/cpu%s" if "cpu" in names.split(",") else "/sys/fs/cgroup%s") % path
               for names, path in paths if "cpu" in names.split(",") or names == ""]
    found = [name for name in folders if "workcell" in name and os.path.exists(name + "/cpu.idle")]
    if not found:
        pytest.skip("no cgroup for the cpu")
    return found[0]


def number_in(*path):
    with open(os.path.join(*path)) as file:
        return int(file.read())


def test_a_long_cell_counts_half(driver):
    """Its group's share of the CPUs goes down while it runs, and comes back with an interrupt."""
    folder = cpu_group(driver.kernel_pid())
    name = "cpu.shares" if os.path.exists(folder + "/cpu.shares") else "cpu.weight"
    usual = number_in(folder, name)
    driver.start("while True: pass")
    support.wait_until(lambda: number_in(folder, name) == usual // 2, "it counts half", 30)
    assert number_in(folder, "cpu.idle") == 0
    driver.interrupt()
    assert driver.answer()["error"]["code"] == "interrupted"
    support.wait_until(lambda: number_in(folder, name) == usual, "it counts as before", 30)


def test_a_long_cell_yields_while_others_are_quick(tmp_path):
    """Its group gets what others leave for as long as cells begin elsewhere, and no longer."""
    server = serving.Server("--executor", "sandbox", cwd=tmp_path, python="/usr/bin/python3")
    try:
        busy, quick = server.session(), server.session()
        mark = "wc" + os.urandom(6).hex()
        server.execute("import ctypes; ctypes.CDLL(None).prctl(15, %r)" % mark.encode(), busy)
        folder = cpu_group([pid for pid in support.processes() if support.comm_of(pid) == mark][0])
        long = threading.Thread(target=server.ask, args=("POST", "/execute", {"code": "while True: pass"}),
                                kwargs={"session": busy})
        long.start()
        support.wait_until(lambda: server.execute("1 + 1", quick)["value"] == 2 and number_in(folder, "cpu.idle") == 1,
                           "it yields", 30)
        support.wait_until(lambda: number_in(folder, "cpu.idle") == 0, "nobody is there to yield to", 30)
        server.execute("1 + 1", quick)
        support.wait_until(lambda: number_in(folder, "cpu.idle") == 1, "it yields again, at once", 30)
        assert server.ask("DELETE", "/v1/sessions/" + busy).status == 204
        long.join(support.DEADLINE)
        support.wait_until(lambda: not os.path.exists(folder), "it is gone", 30)
    finally:
        server.close()


def test_offenders_do_not_starve_others(drive, tmp_path):
    """Five sandboxes do their worst; another session still answers, and each of them can be ended."""
    flags = policy(tmp_path, "limits: {memory: 128M, pids: 64, files: 64, output: none}\n")
    worst = {
        "forks": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        "memory": "kept = []\nwhile True: kept.append(bytearray(1 << 20))",
        "loops": "import os\nfor i in range(8): os.fork()\nwhile True: pass",
        "files": "import os\nwhile True:\n    try:\n        os.dup(1)\n    except OSError:\n        pass",
        "output": "while True: print('x' * 10000)",
    }
    quiet = drive(executor="sandbox", cwd=tmp_path, python="/usr/bin/python3")
    bad = {name: drive(*flags, executor="sandbox", cwd=tmp_path, python="/usr/bin/python3", events=False)
           for name in worst}
    for name, code in worst.items():
        bad[name].start(code, timeout=600)
    for number in range(20):
        assert quiet.value("%d + 1" % number) == number + 1
    for name, driver in bad.items():
        driver.interrupt()
        result = driver.answer()
        assert result["error"] is not None, name
        support.forget(result)
        driver.reset()
        assert driver.value("1 + 1") == 2, name
