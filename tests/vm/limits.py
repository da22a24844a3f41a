"""Limits by cgroup v2 in a machine that has it: as root, delegated to a user, not delegated, in a namespace; 20 sandboxes.

Run by scripts/vm_test.sh; names of tests may follow.  It makes groups as systemd does, so it must have /sys/fs/cgroup for itself.
"""
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import serving
import support

TOP = "/sys/fs/cgroup"
USER = 65534
PROGRAM = support.BIN
WORK = tempfile.mkdtemp(prefix="workcell-vm-")
LIMITS = "limits: {memory: 64M, pids: 20, cpus: 0.5}\n"
MEMORY = "x = bytearray(200 << 20)\nx[::4096] = b'1' * len(x[::4096])"
FORKS = "import os, time\nfor i in range(100):\n    if os.fork() == 0:\n        time.sleep(30)\n        os._exit(0)"
failed = []
began = time.monotonic()


def check(what, good, detail=""):
    print("%5.0f s  %s  %s%s" % (time.monotonic() - began, "ok    " if good else "FAILED", what, "" if good else ": %s" % (detail,)),
          flush=True)
    if not good:
        failed.append(what)


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def read(*path):
    with open(os.path.join(*path), encoding="ascii") as file:
        return file.read().strip()


def make(path, on_in_last=True):
    """A group, with the controllers switched on in all groups above it (or all but the last of these)."""
    folder, names = TOP, path.split("/")
    for i, name in enumerate(names):
        if on_in_last or i + 1 < len(names):
            write(folder + "/cgroup.subtree_control", "+memory +pids +cpu")
        folder += "/" + name
        os.makedirs(folder, exist_ok=True)
    return folder


def delegate(folder):
    """What systemd gives to a user."""
    for name in ("", "/cgroup.procs", "/cgroup.subtree_control", "/cgroup.threads"):
        os.chown(folder + name, USER, USER)
    return folder


def groups_in(folder):
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())


def sandboxes_in(folder):
    return [name for name in groups_in(folder) if name.startswith("workcell-") and name != "workcell-host"]


def program_in(group, uid, before=""):
    """A program that is workcell in this group, as this user."""
    user = "setpriv --reuid %d --regid %d --clear-groups" % (uid, uid) if uid else ""
    path = tempfile.mktemp(dir=WORK)
    write(path, "#!/bin/sh\necho 0 >%s/cgroup.procs || exit 99\n%s\nexec %s %s \"$@\"\n"
          % (shlex.quote(group), before, user, shlex.quote(PROGRAM)))
    os.chmod(path, 0o755)
    return path


def run(program, *codes):
    argv = [program, "run", "--executor", "sandbox", "--json", "--keep-going", "--python", "/usr/bin/python3", "--sandbox-policy",
            "./p.yaml"]
    for code in codes:
        argv += ["-e", code]
    done = subprocess.run(argv, cwd=WORK, env=support.host_environment(), capture_output=True, text=True, timeout=support.DEADLINE)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    if len(results) != len(codes):
        raise AssertionError("%d results; %s" % (len(results), done))
    return results


def held_by(result):
    limits = result["isolation"]["limits"]
    return [limits.get(name, {}).get("by") for name in ("memory_bytes", "pids", "cpu_percent")]


V2 = ["cgroup v2"] * 3
RLIMITS = ["rlimit", "rlimit", None]


def over(result):
    limit = (result["error"] or {}).get("limit") or {}
    return (result["error"] or {}).get("code") == "limit_exceeded" and limit["name"] if limit.get("used", 0) > 0 else result["error"]


# ---- where the host may be -------------------------------------------------------------------------------------


def test_root_of_all():
    first, memory, pids, last = run(program_in(TOP, 0), "1 + 1", MEMORY, FORKS, "2 + 2")
    check("root, at the top: by cgroup v2", held_by(first) == V2, first)
    check("over the limit on memory", over(memory) == "memory" and memory["error"]["limit"]["max"] == 64 << 20, memory)
    check("over the limit on pids", over(pids) == "pids", pids)
    check("the session goes on", last["value"] == 4, last)
    check("nothing is left", not sandboxes_in(TOP), groups_in(TOP))


def test_delegated():
    folder = delegate(make("system.slice/a.service"))
    first, memory = run(program_in(folder, USER), "1 + 1", MEMORY)
    check("a user's service with Delegate=yes: by cgroup v2", held_by(first) == V2, first)
    check("over the limit on memory, as a user", over(memory) == "memory", memory)
    check("the host stepped aside, and nothing else is left", groups_in(folder) == ["workcell-host"], groups_in(folder))


def test_delegated_to_root():
    folder = make("system.slice/b.service")
    os.setxattr(folder, "trusted.delegate", b"1")
    first, = run(program_in(folder, 0), "1 + 1")
    check("root's service with Delegate=yes: by cgroup v2, in its own group",
          held_by(first) == V2 and groups_in(folder) == ["workcell-host"], (first, groups_in(folder)))


def test_group_above():
    scope = make("user.slice/app.slice/x.scope", on_in_last=False)
    delegate(os.path.dirname(scope))
    delegate(scope)
    first, = run(program_in(scope, USER), "1 + 1")
    check("a scope in a slice of the user's: by cgroup v2", held_by(first) == V2, first)
    check("the scope is as it was", groups_in(scope) == [] and read(scope, "cgroup.subtree_control") == "")
    check("nothing is left in the slice", groups_in(os.path.dirname(scope)) == ["x.scope"])


def test_not_alone():
    folder = delegate(make("system.slice/c.service"))
    with subprocess.Popen(["sleep", "1000"]) as other:
        write(folder + "/cgroup.procs", str(other.pid))
        first, = run(program_in(folder, USER), "1 + 1")
        check("delegated, with somebody else in the group: by rlimits", held_by(first) == RLIMITS, first)
        check("that group is as it was", groups_in(folder) == [] and read(folder, "cgroup.subtree_control") == ""
              and read(folder, "cgroup.type") == "domain" and read(folder, "cgroup.procs") == str(other.pid))
        other.kill()


def test_not_delegated():
    folder = make("system.slice/d.service")
    first, memory = run(program_in(folder, USER), "1 + 1", MEMORY)
    check("not delegated: by rlimits", held_by(first) == RLIMITS, first)
    check("the receipt says what is missing", sum("no cgroup" in s for s in first["isolation"]["skipped"]) == 2, first)
    check("over the limit on memory, by rlimits", over(memory) == "memory", memory)


def test_namespace():
    folder = make("system.slice/container")
    inside = "exec unshare --cgroup --mount sh -c 'umount %s && mount -t cgroup2 cgroup2 %s && exec %s \"$@\"' sh \"$@\"" % (TOP, TOP, PROGRAM)
    first, memory = run(program_in(folder, 0, before=inside), "1 + 1", MEMORY)
    check("in a cgroup namespace: by cgroup v2", held_by(first) == V2 and over(memory) == "memory", (first, memory))
    check("in its part of the tree", groups_in(folder) == ["workcell-host"], groups_in(folder))


# ---- many, and ends --------------------------------------------------------------------------------------------

SESSIONS = 20


def serve(program):
    support.BIN = program
    server = serving.Server("--executor", "sandbox", "--sandbox-policy", WORK + "/p.yaml", cwd=WORK, python="/usr/bin/python3",
                            tokens=None, env={"WORKCELL_SERVE_TOKEN": serving.TOKEN})
    support.BIN = PROGRAM
    return server


def group_of(server, session):
    """The kernel's group, which it cannot see itself; found by a name that it gives itself."""
    mark = "wc" + os.urandom(6).hex()
    server.execute("import ctypes; ctypes.CDLL(None).prctl(15, %r)" % mark.encode(), session)
    pid = [pid for pid in support.processes() if support.comm_of(pid) == mark][0]
    return TOP + read("/proc/%d/cgroup" % pid).split("::")[1]


def test_many():
    folder = delegate(make("system.slice/e.service"))
    server = serve(program_in(folder, USER))
    sessions = [server.session() for _ in range(SESSIONS)]
    values = [server.execute("x = %d\nx + 1" % i, session)["value"] for i, session in enumerate(sessions)]
    check("%d sandboxes at once" % SESSIONS, values == list(range(1, SESSIONS + 1)), values)
    check("each in a group of its own", len({group_of(server, s) for s in sessions[:3]}) == 3 and
          len(sandboxes_in(folder)) >= SESSIONS, sandboxes_in(folder))
    check("the host beside them", read(folder, "cgroup.procs") == "" and
          str(server.pid) in read(folder, "workcell-host/cgroup.procs").split())
    busy, quick = sessions[:2]
    group = group_of(server, busy)
    check("limits are set", [read(group, n) for n in ("memory.max", "pids.max", "cpu.max", "memory.oom.group")]
          == [str(64 << 20), "21", "50000 100000", "1"])
    loop = threading.Thread(target=server.ask, args=("POST", "/execute", {"code": "while True: pass"}), kwargs={"session": busy})
    loop.start()
    support.wait_until(lambda: read(group, "cpu.weight") == "50", "a long cell counts half")
    support.wait_until(lambda: server.execute("1 + 1", quick)["value"] == 2 and read(group, "cpu.idle") == "1", "it yields")
    check("a long cell counts half, and yields while others are quick", True)
    support.wait_until(lambda: read(group, "cpu.idle") == "0" and read(group, "cpu.weight") == "50", "nobody to yield to")
    throttled = [int(line.split()[1]) for line in read(group, "cpu.stat").splitlines() if line.startswith("nr_throttled ")]
    check("the share of the CPUs is held", throttled[0] > 0, throttled)
    memory = server.execute(MEMORY, quick)
    check("over the limit on memory, one of many", memory["error_code"] == "limit_exceeded" and "memory" in memory["error"], memory)
    check("the others have their variables", [server.execute("x", s)["value"] for s in sessions[2:5]] == [2, 3, 4])
    server.ask("DELETE", "/v1/sessions/" + busy)
    loop.join()
    support.wait_until(lambda: not os.path.exists(group), "its group is gone")
    check("a group goes with its session", True)
    end_by_kill(server, folder)


def end_by_kill(server, folder):
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait()
    support.wait_until(lambda: not sandboxes_in(folder) and read(folder, "workcell-host/cgroup.procs") == "", "all of it is gone")
    check("kill -9 of the host: no group and no process is left", True)
    server = serve(program_in(folder + "/workcell-host", USER))
    server.execute("1 + 1", server.session())
    table = support.processes()
    spawners = {p.pid: p for p in table.values() if "workcell-spawner" in p.cmdline}
    spawner, = [pid for pid, p in spawners.items() if p.ppid not in spawners]  # the others are shells, below it
    os.kill(spawner, signal.SIGSTOP)  # or it would see the host's end
    for pid in (server.pid, spawner):
        os.kill(pid, signal.SIGKILL)
    server.process.wait()
    support.wait_until(lambda: read(folder, "workcell-host/cgroup.procs") == "" and
                       not any(read(folder, n, "cgroup.procs") for n in sandboxes_in(folder)), "all processes are gone")
    left = len(sandboxes_in(folder))
    first, = run(program_in(folder + "/workcell-host", USER), "1 + 1")
    check("kill -9 of host and spawner: the next one removes the %d groups that were left" % left,
          left > 0 and held_by(first) == V2 and sandboxes_in(folder) == [], (left, sandboxes_in(folder), first))


def main():
    os.chmod(WORK, 0o777)
    write(WORK + "/p.yaml", LIMITS)
    for test in (test_not_delegated, test_root_of_all, test_delegated, test_delegated_to_root, test_group_above, test_not_alone,
                 test_namespace, test_many):
        if sys.argv[1:] and test.__name__ not in sys.argv[1:]:
            continue
        try:
            test()
        except Exception as error:  # the next ones are worth running
            check(test.__name__, False, "%s: %s" % (type(error).__name__, error))
    print("%d failed" % len(failed), flush=True)
    return bool(failed)


sys.exit(main())
