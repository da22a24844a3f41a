"""Programs that the host runs for sandboxed code: command-line tools and MCP servers, attacked from the workspace."""
import json
import os
import socket
import subprocess

import pytest

import shim
import support

NOBODY = 65534
USERS = [(None, "as-it-is")] + ([(NOBODY, "as-nobody")] if os.getuid() == 0 else [])
FULL = [pytest.param((uid, False), id=name) for uid, name in USERS]
LOWER = [pytest.param((uid, True), id=name + "-no-userns") for uid, name in USERS]

# A server on its standard streams, in one word of a command line. `look` runs Python that it is given.
SERVER = r'''
import json, os, socket, sys
def look(code):
    space = {"out": None, "os": os, "socket": socket}
    try:
        exec(code, space)
        return str(space["out"])
    except Exception as e:
        return "error:%s" % type(e).__name__
for line in sys.stdin:
    ask = json.loads(line)
    if "id" not in ask:
        continue
    how = ask["method"]
    if how == "initialize":
        out = {"protocolVersion": ask["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif how == "tools/list":
        out = {"tools": [{"name": "look", "inputSchema": {"type": "object", "properties": {"code": {"type": "string"}}}}]}
    elif how == "tools/call":
        out = {"content": [{"type": "text", "text": look(ask["params"]["arguments"]["code"])}]}
    else:
        out = {}
    print(json.dumps({"jsonrpc": "2.0", "id": ask["id"], "result": out}), flush=True)
'''

SHELL = "schema: {options: {c: {short: c, type: string}}}\nrecipes: {run: {}}\n"


class Rig:
    """A workspace, tools, and things on the host that none of them should reach. lower: the system forbids user namespaces."""

    def __init__(self, uid, lower=False, env=None):
        self.uid, self.lower, self.flags = uid, lower, ()
        self.folder = support.temporary_folder("workcell-programs-")
        self.hidden = support.temporary_folder("workcell-hidden-")
        self.work, self.tools = os.path.join(self.folder, "work"), os.path.join(self.folder, "tools")
        self.mark = os.path.join(self.hidden, "mark")
        self.secret = os.path.join(self.hidden, "secret")
        for path in (self.work, self.tools):
            os.mkdir(path)
        with open(self.secret, "w") as file:
            file.write("host secret")
        for path in (self.folder, self.hidden, self.tools):
            os.chmod(path, 0o755)
        os.chmod(self.hidden, 0o777)
        if uid is not None:
            os.chown(self.work, uid, uid)
        # The python3 of the system: that of a person's home is not shown to tools.
        self.env = dict(support.host_environment(PATH="/usr/bin:/bin"), **(env or {}))
        self.driver = None
        if lower:
            self.policy("level: no-userns\nfilesystem: {unprotect: ['*']}\n")

    def policy(self, text):
        path = os.path.join(self.folder, "policy.yaml")
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o644)
        self.flags = ("--sandbox-policy", path)

    def unprotect(self, name):
        """The code may write this name, so that what comes after the guard is tried."""
        if not self.flags:  # without user namespaces the policy frees every name already
            self.policy("filesystem: {unprotect: [%s]}\n" % name)

    def tool(self, name, text):
        path = os.path.join(self.tools, name + ".yaml")
        with open(path, "w") as file:
            file.write("name: %s\n%s" % (name, text))
        os.chmod(path, 0o644)

    def server(self, name="s", more=""):
        self.tool(name, "type: mcp\ncommand: python3\nargs: %s\n%s" % (json.dumps(["-c", SERVER]), more))

    def start(self):
        def before():
            if self.uid is not None:
                os.setgroups([])
                os.setgid(self.uid)
                os.setuid(self.uid)
            if self.lower:
                shim.take_away("userns", "EPERM")

        self.driver = support.Driver("--tools", self.tools, *self.flags, python="/usr/bin/python3", executor="sandbox", cwd=self.work,
                                     env=self.env, preexec_fn=before)
        return self.driver

    def run(self, code):
        """What `out` is after the code."""
        if not self.driver:
            self.start()
        result = self.driver.run("out = None\n" + code + "\nout")
        assert result["error"] is None, result["error"]
        return result["value"]

    def refusal(self, call):
        """(code, message) of a call that must fail."""
        return self.run("try:\n    out = ['fine', repr(%s)]\nexcept Exception as e:\n    out = [getattr(e, 'code', '?'), str(e)]" % call)

    def close(self):
        if self.driver:
            self.driver.close()


def make_rig(request):
    made = Rig(*request.param)
    yield made
    made.close()


rig = pytest.fixture(params=FULL + LOWER, name="rig")(make_rig)
full = pytest.fixture(params=FULL, name="full")(make_rig)
lower = pytest.fixture(params=LOWER, name="lower")(make_rig)


GIT = """import os
os.makedirs('.git/objects', exist_ok=True); os.makedirs('.git/refs', exist_ok=True); os.makedirs('.git/hooks', exist_ok=True)
open('.git/HEAD', 'w').write('ref: refs/heads/main\\n')
open('evil', 'w').write('#!/bin/sh\\nid > %(mark)s; id > ran; exit 1\\n'); os.chmod('evil', 0o755)
open('.git/config', 'w').write('[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = ' + os.path.abspath('evil') + '\\n')
open('.git/hooks/pre-commit', 'w').write(open('evil').read()); os.chmod('.git/hooks/pre-commit', 0o755)
"""


# ---- led by the folder ----

@pytest.mark.parametrize("words", ["status", "commit"])
def test_git_in_the_workspace_runs_nothing_on_the_host(rig, words):
    """core.fsmonitor or a hook in the workspace's .git, run by a tool that is only `git status` (CVE-2026-48124's class)."""
    rig.unprotect(".git")
    rig.tool("git", "command: git\nschema: {positional: [{name: what, type: string}]}\nrecipes: {run: {}}\n")
    rig.run(GIT % {"mark": rig.mark} + "try:\n    tools.git.run(what=%r)\nexcept Exception as e:\n    out = str(e)" % words)
    assert not os.path.exists(rig.mark)


def test_git_on_the_host_is_not_started_in_the_workspace(rig):
    """The same with host: true: the tool does not stand in the code's folder."""
    rig.unprotect(".git")
    rig.tool("git", "command: git\nhost: true\nschema: {positional: [{name: what, type: string}]}\nrecipes: {run: {}}\n")
    rig.run(GIT % {"mark": rig.mark} + "try:\n    tools.git.run(what='status')\nexcept Exception as e:\n    out = str(e)")
    assert not os.path.exists(rig.mark) and not os.path.exists(os.path.join(rig.work, "ran"))


def test_cwd_on_the_host(rig):
    """Where host: true stands: at the root, in the workspace only by that word, never below it."""
    for name, cwd in (("a", ""), ("b", "cwd: workspace\n"), ("c", "cwd: sub\n"), ("d", "cwd: /usr\n")):
        rig.tool(name, "command: pwd\nhost: true\n%sschema: {}\nrecipes: {run: {}}\n" % cwd)
    assert rig.run("import os; os.symlink('/etc', 'sub'); out = [tools.a.run(), tools.b.run(), tools.d.run()]") == \
        ["/\n", rig.work + "\n", "/usr\n"]
    code, words = rig.refusal("tools.c.run()")
    assert code == "invalid" and "absolute" in words


def test_a_link_leads_nowhere(rig):
    """A link in the workspace to a file of the host, for a tool that reads files of the project."""
    rig.tool("cat", "command: cat\nschema: {positional: [{name: file, type: string}]}\nrecipes: {show: {}}\n")
    rig.run("import os\nopen('plain', 'w').write('mine')\nos.symlink(%r, 'link')" % rig.secret)
    assert rig.run("out = tools.cat.show(file='plain')") == "mine"
    for name in ("link", rig.secret, "../../" * 9 + rig.secret[1:], "/proc/1/root" + rig.secret, "/etc/shadow"):
        code, words = rig.refusal("tools.cat.show(file=%r)" % name)
        assert code == "tool_failed" and "host secret" not in words, (name, words)


def test_the_tool_sees_what_the_code_sees(full):
    """The same files, the same user, no network, no processes of the host."""
    rig = full
    rig.tool("sh", "command: sh\n" + SHELL)
    look = "cat %s 2>&1; ls -A /tmp | wc -l; ls /proc | grep -c '^[0-9]*$'; cat /proc/net/dev | grep -c eth" % rig.secret
    lines = rig.run("out = tools.sh.run(c=%r + '; true')" % look).split("\n")
    assert "No such file" in lines[0] and int(lines[2]) <= 6 and lines[3] in ("0", ""), lines


def test_no_network(rig):
    """A tool of a session without a network has none either."""
    rig.tool("sh", "command: sh\n" + SHELL)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        code = "import socket\ntry:\n socket.create_connection((%r, %d), 5)\n print(\"in\")\nexcept OSError:\n print(\"out\")"
        text = "python3 -c '%s'" % (code.replace("%r", '"127.0.0.1"') % listener.getsockname()[1])
        assert rig.run("out = tools.sh.run(c=%r)" % text) == "out\n"
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)
        code = "import socket\ntry:\n socket.socket(2, 2).sendto(b\"x\", (\"127.0.0.1\", %d))\nexcept OSError:\n pass" % datagrams.getsockname()[1]
        rig.run("out = tools.sh.run(c=%r)" % ("python3 -c '%s'" % code))
        with pytest.raises(BlockingIOError):
            datagrams.recv(9)


ASK = r"""import socket, sys
for port in (%d, %d):
    with socket.create_connection(("127.0.0.1", 3128)) as s:
        s.sendall(b"CONNECT 127.0.0.1:%%d HTTP/1.1\r\n\r\n" %% port)
        print(s.recv(99).split()[1].decode())
"""


def test_a_filtered_network_is_the_codes(full):
    """Where the policy lets some hosts through, a tool reaches these by the proxy, no other, and the audit log has each connection."""
    with socket.create_server(("127.0.0.1", 0)) as allowed, socket.create_server(("127.0.0.1", 0)) as other:
        ports = allowed.getsockname()[1], other.getsockname()[1]
        rig, log = full, os.path.join(full.hidden, "audit.jsonl")
        rig.policy("network:\n  allow: ['127.0.0.1:%d']\n" % ports[0])
        rig.flags += ("--audit", log)
        rig.tool("py", "command: python3\nschema: {positional: [{name: file, type: path, required: true}]}\nrecipes: {run: {}}\n")
        assert rig.run("open('ask.py', 'w').write(%r)\nout = tools.py.run(file='ask.py')" % (ASK % ports)) == "200\n403\n"
        rig.close()
        rig.driver = None
        with open(log) as file:
            told = file.read()
        assert all(str(port) in told for port in ports), told


# ---- its environment ----

def test_the_environment_is_the_definitions(rig):
    """The code poisons its environment before the call (CVE-2026-22708): nothing of it arrives, confined or not."""
    rig.tool("env", "command: env\nenv: {MINE: yes-it-is}\nschema: {}\nrecipes: {run: {}}\n")
    rig.tool("henv", "command: env\nhost: true\nenv: {MINE: yes-it-is}\nschema: {}\nrecipes: {run: {}}\n")
    for name in ("env", "henv"):
        lines = rig.run("""import os
os.environ.update(GIT_SSH_COMMAND='evil', LD_PRELOAD='/tmp/evil.so', PATH=os.getcwd(), PYTHONSTARTUP='x', BASH_ENV='evil', MINE='no')
os.putenv('EDITOR', 'evil')
out = tools.%s.run()""" % name).split()
        keys = sorted(line.split("=")[0] for line in lines)
        assert keys == ["HOME", "LANG", "MINE", "PATH"] and "MINE=yes-it-is" in lines, lines
        assert not any(rig.work in line for line in lines)


def test_a_program_planted_in_path(rig):
    """A tool's PATH with a folder that the code can write to: a program there named like the tool's is not run, confined or on the host.
    (With such a folder on the host's own PATH no session is opened.)"""
    for name, host in (("a", ""), ("b", "host: true\n")):
        rig.tool(name, "command: id\n%senv: {PATH: '%s/bin:.::/usr/bin:/bin'}\nschema: {}\nrecipes: {run: {}}\n" % (host, rig.work))
    got = rig.run("""import os
os.mkdir('bin')
for name in ('bin/id', 'id'):
    open(name, 'w').write('#!/bin/sh\\necho planted\\n'); os.chmod(name, 0o755)
out = [tools.a.run(), tools.b.run()]""")
    assert all("planted" not in text and "uid=" in text for text in got), got


@pytest.mark.parametrize("host", ["", "host: true\n"])
@pytest.mark.parametrize("how", ["absolute", "relative", "link"])
def test_a_program_in_the_workspace_is_refused(rig, how, host):
    """A definition whose program the code can write: it would get the tool's secrets, or run on the host."""
    command = {"absolute": rig.work + "/tool", "relative": rig.work + "/../work/tool", "link": os.path.join(rig.folder, "out")}[how]
    if how == "link":
        os.symlink(os.path.join(rig.work, "tool"), command)
    rig.tool("t", "command: %s\n%senv: {TOKEN: '${HOME}'}\nschema: {}\nrecipes: {run: {}}\n" % (command, host))
    rig.run("import os\nopen('tool', 'w').write('#!/bin/sh\\ntouch %s; echo $TOKEN\\n'); os.chmod('tool', 0o755)" % rig.mark)
    code, words = rig.refusal("tools.t.run()")
    assert code == "invalid" and "the code can write to" in words, words
    assert not os.path.exists(rig.mark)


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts")
@pytest.mark.parametrize("host", ["", "host: true\n"])
@pytest.mark.parametrize("how", ["all of it", "a part of it", "by PATH"])
def test_a_program_in_another_mount_of_the_workspace_is_refused(full, how, host):
    """The workspace, or a folder of it, is mounted at a second place, and the definition's program lies there."""
    other, source = os.path.join(full.folder, "other"), full.work + ("/part" if how == "a part of it" else "")
    os.mkdir(other)
    os.mkdir(full.work + "/part")
    if full.uid is not None:
        os.chown(full.work + "/part", full.uid, full.uid)
    command, path = {"all of it": (other + "/part/tool", "/usr/bin"), "a part of it": (other + "/tool", "/usr/bin"),
                     "by PATH": ("tool", other + "/part:/usr/bin")}[how]
    full.tool("t", "command: %s\n%senv: {PATH: '%s'}\nschema: {}\nrecipes: {run: {}}\n" % (command, host, path))
    user = ["setpriv", "--reuid", str(full.uid), "--regid", str(full.uid), "--clear-groups", "--"] if full.uid is not None else []
    full.driver = support.Driver("--tools", full.tools, python="/usr/bin/python3", executor="sandbox", cwd=full.work, env=full.env, prefix=(
        "unshare", "-m", "--propagation", "private", "sh", "-c", "mount --bind %s %s && exec \"$@\"" % (source, other), "sh", *user))
    full.run("import os\nopen('part/tool', 'w').write('#!/bin/sh\\ntouch %s\\n'); os.chmod('part/tool', 0o755)" % full.mark)
    code, words = full.refusal("tools.t.run()")
    assert code != "fine" and not os.path.exists(full.mark), words
    assert how == "by PATH" or code == "invalid" and "the code can write to the folder of its program" in words, words


@pytest.mark.parametrize("host", ["", "host: true\n"])
@pytest.mark.parametrize("how", ["absolute", "path", "folder"])
def test_a_program_behind_a_link_of_the_workspace_is_refused(rig, how, host):
    """A link outside leads to a name in the workspace, which the code makes a link to a program of the system while that is looked at."""
    os.mkdir(os.path.join(rig.folder, "bin"))
    os.symlink(os.path.join(rig.work, "tool"), os.path.join(rig.folder, "bin", "mine"))
    os.symlink(os.path.join(rig.work, "folder"), os.path.join(rig.folder, "linked"))
    command, path = {"absolute": (rig.folder + "/bin/mine", "/usr/bin"), "path": ("mine", rig.folder + "/bin:/usr/bin"),
                     "folder": (rig.folder + "/linked/touch", "/usr/bin")}[how]
    rig.tool("t", "command: %s\n%senv: {PATH: '%s'}\nschema: {positional: [{name: f, type: string}]}\nrecipes: {run: {params: {f: {}}}}\n"
             % (command, host, path))
    rig.run("import os\nos.symlink('/usr/bin/touch', 'tool')\nos.symlink('/usr/bin', 'folder')")
    code, words = rig.refusal("tools.t.run(f=%r)" % rig.mark)
    assert code == "invalid" and "the code can write to" in words, words
    assert not os.path.exists(rig.mark)


@pytest.mark.parametrize("host", ["", "host: true\n"])
def test_the_hosts_path_leads_to_no_program_of_the_code(rig, host):
    """A folder on the host's own PATH has a link to a name in the workspace; the host's HOME is not one that such programs get."""
    folder = os.path.join(rig.folder, "bin")
    os.mkdir(folder)
    os.symlink(os.path.join(rig.work, "tool"), os.path.join(folder, "mine"))
    rig.env.update(PATH=folder + ":/usr/bin:/bin", HOME=os.path.join(rig.folder, "home"))
    rig.tool("t", "command: mine\n%sschema: {}\nrecipes: {run: {}}\n" % host)
    rig.tool("env", "command: env\n%sschema: {}\nrecipes: {run: {}}\n" % host)
    rig.run("import os\nopen('tool', 'w').write('#!/bin/sh\\ntouch %s\\n'); os.chmod('tool', 0o755)" % rig.mark)
    code, words = rig.refusal("tools.t.run()")
    assert code == "invalid" and "the code can write to" in words, words
    assert not os.path.exists(rig.mark)
    assert rig.env["HOME"] not in rig.run("out = tools.env.run()")


@pytest.mark.parametrize("value", ["-o/tmp/x", "--output=x", "-", "--", "-\u2013x"])
def test_values_never_become_options(rig, value):
    """A value that begins with a dash, where the definition allows no options."""
    rig.tool("cat", "command: cat\nschema: {positional: [{name: file, type: string}]}\nrecipes: {show: {}}\n")
    assert rig.refusal("tools.cat.show(file=%r)" % value)[0] == "invalid"


# ---- what it leaves behind, and what it is given ----

def test_no_descriptors_of_the_host(rig):
    """Descriptors of the host or the spawner in a tool: sockets, plans, pipes of others."""
    rig.tool("ls", LS)
    assert rig.run("out = tools.ls.show(file='/proc/self/fd')").split() == ["0", "1", "2", "3"]


def memory_holds(pid, marker):
    """Does a process have these bytes anywhere in memory that it could write to?"""
    with open("/proc/%d/maps" % pid) as maps, open("/proc/%d/mem" % pid, "rb", buffering=0) as memory:
        for line in maps:
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            if line.split()[1][1] == "w" and end - start < 1 << 26:
                memory.seek(start)
                if marker in (memory.read(end - start) or b""):
                    return True
    return False


@pytest.mark.skipif(os.getuid() != 0, reason="only root reads the memory of these processes")
def test_sandboxes_made_ahead_hold_no_secrets_of_others():
    """A tool's environment passes through the spawner, from which the sandboxes of all callers are forked."""
    rig, marker = Rig(None), "secret-%d-of-a-tool" % os.getpid()
    try:
        rig.tool("env", "command: env\nenv: {TOKEN: %s}\nschema: {}\nrecipes: {run: {}}\n" % marker)
        for _ in range(4):
            assert marker in rig.run("out = tools.env.run()")
        rig.driver.locate()
        waiting = lambda: [p for p in support.descendants(rig.driver.spawner) if p.cmdline.endswith("spawner serve")]
        support.wait_until(lambda: len(waiting()) >= 4, "spare sandboxes")  # two of them, each with a pid 1 and a process that waits
        assert memory_holds(os.getpid(), marker.encode())
        assert not [p for p in waiting() if memory_holds(p.pid, marker.encode())]
    finally:
        rig.close()


def test_programs_one_after_the_other_share_nothing(full):
    """More programs without a pause than sandboxes were made ahead: each finds empty folders of its own, and the whole of its memory,
    though a sandbox may have the control group of one that has ended. More are made ahead then, but not without bound."""
    full.policy("limits: {memory: 256M}\n")
    full.tool("sh", "command: sh\n" + SHELL)
    look = "find /tmp /dev/shm -mindepth 1 ! -path \\'%s*\\' -type f; head -c 150M /dev/zero > /tmp/x; wc -c < /tmp/x; touch /dev/shm/x" % full.work
    answers = full.run("out = [tools.sh.run(c='%s') for _ in range(24)]" % look)
    assert answers == ["157286400\n"] * 24, answers
    full.driver.locate()
    spawner = full.driver.spawner
    spares = [p for p in support.descendants(spawner) if p.cmdline.endswith("spawner serve")]
    assert len(spares) <= 2 * 16 + 4, spares  # each with a pid 1 and a process that waits; a zone and a session's sandbox
    full.close()
    full.driver = None
    support.wait_until(lambda: not groups_of(spawner), "control groups of sandboxes")


def test_a_run_of_programs_finds_sandboxes_made_ahead(full):
    """Programs that each find a sandbox, but follow one another so closely that each sandbox is made beside the next program."""
    full.tool("true", "command: 'true'\nschema: {}\nrecipes: {run: {}}\n")
    full.run("import time\nfor _ in range(24): tools.true.run(); time.sleep(0.008)\nout = 0")
    full.driver.locate()
    waiting = lambda: [p for p in support.descendants(full.driver.spawner) if p.cmdline.endswith("spawner serve")]
    # Four instead of two, each with a pid 1 and a process that waits; a zone, a session's sandbox and a spare one.
    support.wait_until(lambda: len(waiting()) >= 2 * 4 + 3, lambda: "more than %d processes in sandboxes" % len(waiting()))


def groups_of(spawner):
    """Folders of control groups that a spawner made."""
    return [folder for base, folders, _ in os.walk("/sys/fs/cgroup") for folder in folders if folder.startswith("workcell-%d-" % spawner)]


@pytest.mark.parametrize("host", ["", "host: true\n"])
def test_orphans_end_with_the_tool(rig, host):
    """A tool that leaves daemons: in other sessions and groups, with closed streams."""
    marker = "4%d.0625" % os.getpid()
    rig.tool("sh", "command: sh\n" + host + SHELL)
    rig.run("out = tools.sh.run(c='setsid sleep %s >/dev/null 2>&1 & (setsid sh -c \"sleep %s & exec sleep %s\" >/dev/null 2>&1 &) ; echo')"
            % (marker, marker, marker))
    support.wait_until(lambda: not support.with_argument(marker), "orphans of a tool")


def test_a_tool_that_does_not_end_is_ended(rig):
    """A program that ignores signals and forks, past its timeout."""
    marker = "5%d.0625" % os.getpid()
    rig.tool("sh", "command: sh\ntimeout: 0.5\n" + SHELL)
    code, _ = rig.refusal("tools.sh.run(c='trap \"\" TERM INT HUP; setsid sleep %s & sleep %s')" % (marker, marker))
    assert code == "tool_timeout"
    support.wait_until(lambda: not support.with_argument(marker), "a tool that was ended")


def test_an_interrupt_ends_the_tool(rig):
    """The code is interrupted while a confined tool runs: nothing of the tool stays."""
    marker = "6%d.0625" % os.getpid()
    rig.tool("sh", "command: sh\n" + SHELL)
    driver = rig.start()
    driver.send({"code": "tools.sh.run(c='sleep %s')" % marker})
    support.wait_until(lambda: support.with_argument(marker), "the tool")
    driver.process.send_signal(2)
    assert driver.answer()["error"]
    support.wait_until(lambda: not support.with_argument(marker), "an interrupted tool")


def test_the_folder_is_replaced_while_the_tool_runs(rig):
    """A folder in the workspace becomes a link to the host's while a tool works in it."""
    rig.tool("sh", "command: sh\n" + SHELL)
    got = rig.run("""import os, threading
os.mkdir('d'); open('d/secret', 'w').write('mine')
def swap():
    while not os.path.exists('go'): pass
    os.rename('d', 'old'); os.symlink(%r, 'd'); open('went', 'w')
t = threading.Thread(target=swap); t.start()
out = tools.sh.run(c='cd d && touch ../go && until [ -e ../went ]; do :; done; cat secret; cat ../d/secret 2>/dev/null; true')
t.join()""" % rig.hidden)
    assert got == "mine"


def test_what_is_hidden_says_so(rig):
    """A program that the sandbox does not show: not found, and the message names the way out."""
    path = os.path.join(rig.hidden, "tool")
    with open(path, "w") as file:
        file.write("#!/bin/sh\necho on the host\n")
    os.chmod(path, 0o755)
    rig.tool("a", "command: %s\nschema: {}\nrecipes: {run: {}}\n" % path)
    rig.tool("b", "command: %s\nhost: true\nschema: {}\nrecipes: {run: {}}\n" % path)
    rig.tool("c", "command: id\ncwd: %s\nschema: {}\nrecipes: {run: {}}\n" % rig.hidden)
    for call in ("tools.a.run()", "tools.c.run()"):
        code, words = rig.refusal(call)
        assert code == "tool_failed" and "host: true" in words and "sandbox" in words, words
    assert rig.run("out = tools.b.run()") == "on the host\n"


# ---- paths ----

def path_tool(rig, name, more="", host="", command="cat"):
    rig.tool(name, "command: %s\n%sschema: {positional: [{name: file, type: path, required: true%s}]}\nrecipes: {show: {}}\n"
             % (command, host, more))


@pytest.mark.parametrize("host", ["", "host: true\n"])
def test_path_parameters(rig, host):
    """Every way to lead a path parameter out of its folder, or to something that is no file."""
    path_tool(rig, "cat", host=host)
    rig.run("import os\nopen('plain', 'w').write('mine'); os.mkdir('d'); open('d/x', 'w').write('below')\n"
            "os.symlink(%r, 'link'); os.symlink(%r, 'dlink'); os.symlink('plain', 'inner'); os.symlink('d', 'dinner')" % (rig.secret, rig.hidden))
    os.mkfifo(os.path.join(rig.work, "fifo"))
    with socket.socket(socket.AF_UNIX) as unix:
        here = os.getcwd()
        os.chdir(rig.work)
        unix.bind("sock")
        os.chdir(here)
    assert rig.run("out = [tools.cat.show(file=f) for f in ('plain', 'd/x', %r)]" % (rig.work + "/plain")) == ["mine", "below", "mine"]
    for name in ("link", "dlink/secret", "inner", "dinner/x", rig.secret, "/etc/passwd", "../work/plain", "d/../plain", "..", ".", "d",
                 "fifo", "sock", "/proc/self/environ", "/dev/null", rig.work + "/../work/plain", "nothing", ""):
        code, words = rig.refusal("tools.cat.show(file=%r)" % name)
        assert code == "invalid" and "host secret" not in words, (name, code, words)
    assert rig.refusal("tools.cat.show(file='a\\0b')")[0] == "invalid"


def test_path_is_a_string_for_agents(rig):
    """What a path parameter is, only the host needs to know."""
    path_tool(rig, "cat")
    found = [t for t in rig.run("out = tools.list()") if t["name"] == "cat"][0]["callables"][0]["parameters"]
    assert "str" in json.dumps(found) and "path" not in json.dumps(found), found


def test_path_to_write(rig):
    """mode: w makes a new file below the folder, never through a link, and never one that may be executed."""
    for name, host in (("a", ""), ("b", "host: true\n")):
        path_tool(rig, name, more=", mode: w", host=host, command="tee")
    rig.run("import os\nos.symlink(%r, 'link')\ntools.a.show(file='new-a'); tools.b.show(file='new-b')" % rig.mark)
    code, _ = rig.refusal("tools.b.show(file='link')")
    assert code == "invalid" and not os.path.exists(rig.mark)
    for name in ("new-a", "new-b"):
        assert os.stat(os.path.join(rig.work, name)).st_mode & 0o7111 == 0


def test_path_to_write_is_no_protected_name(full):
    """The host opens the file, and the program writes to a descriptor: the guard of the sandbox sees neither."""
    for name, host in (("a", ""), ("b", "host: true\n")):
        path_tool(full, name, more=", mode: w", host=host, command="tee")
    with open(os.path.join(full.work, "conftest.py"), "w") as file:
        file.write("mine")
    for tool in ("a", "b"):
        for name in ("Makefile", "conftest.py", "ConfTest.py", "d/.envrc", full.work + "/.env"):
            code, words = full.refusal("tools.%s.show(file=%r)" % (tool, name))
            assert code == "invalid" and "protected name" in words, (tool, name, code, words)
    assert os.listdir(full.work) == ["conftest.py"] and os.path.getsize(os.path.join(full.work, "conftest.py")) == 4


def test_path_to_write_may_be_a_name_that_the_policy_frees(full):
    full.unprotect("Makefile")
    path_tool(full, "a", more=", mode: w", command="tee")
    full.run("tools.a.show(file='Makefile')")
    assert os.path.exists(os.path.join(full.work, "Makefile"))
    assert "protected name" in full.refusal("tools.a.show(file='.envrc')")[1]


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts")
@pytest.mark.parametrize("below", ["work", "tmp/work"])
def test_path_to_write_in_another_mount(below):
    """The workspace in a mount of its own, where its path from that mount leads to nothing that the sandbox may write, or to a free name."""
    rig = Rig(None)
    top = os.path.join(rig.folder, "mount")
    rig.work = os.path.join(top, below)
    path_tool(rig, "a", more=", mode: w", command="tee")
    path_tool(rig, "r", command="tee")
    os.mkdir(top)
    subprocess.run(["mount", "-t", "tmpfs", "none", top], check=True)
    try:
        os.makedirs(rig.work)
        for name in ("conftest.py", "plain"):
            with open(os.path.join(rig.work, name), "w") as file:
                file.write("mine")
        rig.run("tools.a.show(file='new')")
        rig.run("tools.r.show(file='plain')")
        code, words = rig.refusal("tools.r.show(file='conftest.py')")
        assert code == "tool_failed" and "Permission denied" in words, words
        assert [os.path.getsize(os.path.join(rig.work, name)) for name in ("conftest.py", "plain", "new")] == [4, 0, 0]
    finally:
        rig.close()
        subprocess.run(["umount", "-l", top], check=True)


def test_path_race(rig):
    """The file is swapped for a link again and again while the tool reads it on the host."""
    path_tool(rig, "cat", host="host: true\n")
    got = rig.run("""import os, threading
open('a', 'w').write('mine')
os.symlink(%r, 'b')
stop = False
def swap():
    while not stop:
        for x, y in (('f', 'a'), ('f', 'b')):
            try: os.unlink('t')
            except OSError: pass
            os.link(y, 't', follow_symlinks=False); os.rename('t', 'f')
t = threading.Thread(target=swap); t.start()
out = []
for _ in range(60):
    try: out.append(tools.cat.show(file='f'))
    except Exception as e: out.append(e.code)
stop = True; t.join()
out = sorted(set(out))""" % rig.secret)
    assert set(got) <= {"mine", "invalid"}, got


def test_path_under_another_folder(rig):
    """under: a folder of the host's: on the host only by that word, and never one that the code can write."""
    path_tool(rig, "a", more=", under: %s" % rig.hidden)
    path_tool(rig, "b", more=", under: %s" % rig.hidden, host="host: true\n")
    path_tool(rig, "c", more=", under: %s" % os.path.join(rig.work, "d"), host="host: true\n")
    rig.run("import os; os.symlink('/etc', 'd')")
    code, words = rig.refusal("tools.a.show(file='secret')")
    assert code == "invalid" and "host: true" in words
    assert rig.run("out = tools.b.show(file='secret')") == "host secret"
    code, words = rig.refusal("tools.c.show(file='passwd')")
    assert code == "invalid" and "under: workspace" in words


def test_directories_by_path(rig):
    """directory: true: the tool's way up from there is the sandbox's, not the host's."""
    path_tool(rig, "ls", more=", directory: true", command="ls")
    assert rig.run("import os\nos.mkdir('d'); open('d/x', 'w')\nout = tools.ls.show(file='d')") == "x\n"
    rig.run("os.symlink('/', 'root')")
    for name in ("root", "..", "/"):
        assert rig.refusal("tools.ls.show(file=%r)" % name)[0] == "invalid"


@pytest.mark.parametrize("bad, words", [
    ("type: path, under: sub", "absolute path"), ("type: path, mode: x", "r or w"), ("type: string, under: workspace", "require type: path"),
    ("type: path, directory: maybe", "true or false")])
def test_definitions_of_paths_are_checked(bad, words):
    """A definition that could be read two ways is refused, not guessed."""
    rig = Rig(None)
    rig.tool("t", "command: cat\nschema: {positional: [{name: file, %s}]}\nrecipes: {show: {}}\n" % bad)
    done = support.workcell("tools", "check", rig.tools)
    assert done.status == 1 and words in done.out + done.err, (done.out, done.err)


# ---- MCP servers ----

LOOK = "out = tools.s.look(code=%r)"


def test_a_server_is_confined(rig):
    """An MCP server of a sandboxed session reads files of the host, connects, looks at processes."""
    rig.server()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for code in ("out = open(%r).read()" % rig.secret, "out = open('/etc/shadow').read()", "out = os.listdir(%r)" % rig.hidden,
                     "out = socket.create_connection(('127.0.0.1', %d), 5)" % listener.getsockname()[1], "os.kill(%d, 0)" % os.getpid()):
            assert rig.run(LOOK % code).startswith("error:"), code
    assert rig.run("open('x', 'w').write('1')\n" + LOOK % "out = os.getcwd() + open('x').read()") == rig.work + "1"


def test_listing_tools_starts_no_server_on_the_host(rig):
    """Servers are started to be asked what they have: that must not be outside either."""
    rig.tool("s", "type: mcp\ncommand: sh\nargs: ['-c', 'touch %s; exec python3 -c \"$CODE\"']\nenv: {CODE: %s}\n"
             % (rig.mark, json.dumps(SERVER)))
    assert [t for t in rig.run("out = tools.list()") if t["name"] == "s"][0]["callables"]
    assert not os.path.exists(rig.mark)


def test_a_server_on_the_host_by_its_word(rig):
    """host: true in the definition, and then not in the code's folder."""
    rig.server(more="host: true\n")
    assert rig.run(LOOK % ("out = os.getcwd() + open(%r).read()" % rig.secret)) == "/host secret"


def test_a_server_in_the_workspace_is_refused(rig):
    """A server whose program the code can write gets the definition's secrets."""
    rig.tool("s", "type: mcp\ncommand: %s/server\nenv: {TOKEN: secret}\n" % rig.work)
    rig.run("import os\nopen('server', 'w').write('#!/bin/sh\\necho $TOKEN > stolen\\n'); os.chmod('server', 0o755)")
    code, words = rig.refusal("tools.s.look(code='')")
    assert "the code can write to" in words and not os.path.exists(os.path.join(rig.work, "stolen")), (code, words)


def test_a_server_ends_with_its_session(rig):
    """What a confined server leaves behind is gone with it."""
    marker = "7%d.0625" % os.getpid()
    rig.server()
    rig.run(LOOK % ("import subprocess; out = subprocess.Popen(['setsid', 'sleep', '%s']).pid" % marker))
    support.wait_until(lambda: support.with_argument(marker), "what the server started")
    rig.driver.close()
    rig.driver = None
    support.wait_until(lambda: not support.with_argument(marker), "what a server left behind")


def test_a_client_cannot_ask_for_the_host():
    """register_mcp_server with host: true, by an agent whose code is sandboxed."""
    rig = Rig(None)
    lines = [{"jsonrpc": "2.0", "id": 1, "method": "initialize",
              "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}},
             {"jsonrpc": "2.0", "method": "notifications/initialized"},
             {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "register_mcp_server", "arguments": {
                 "server_name": "x", "server_params": {"command": "touch", "args": [rig.mark], "host": True}}}}]
    done = subprocess.run([support.BIN, "mcp", "--executor", "sandbox", "--python", "/usr/bin/python3", "--base", rig.folder, "--cwd", rig.work],
                          input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True, text=True,
                          timeout=support.DEADLINE, env=support.host_environment())
    answer = [json.loads(line) for line in done.stdout.splitlines() if json.loads(line).get("id") == 2]
    assert answer and ("error" in answer[0] or answer[0]["result"]["isError"]), (done.stdout, done.stderr)
    assert not os.path.exists(rig.mark)


# ---- without user namespaces: Landlock, seccomp, limits, and what is left is swept ----

LS = "command: ls\nschema: {positional: [{name: file, type: string}]}\nrecipes: {show: {}}\n"
CAT = LS.replace("ls", "cat")


def test_a_program_has_nothing_to_gain(rig):
    """Capabilities, groups, setuid programs, the session and group of somebody else: of a program at every level."""
    rig.tool("cat", CAT)
    status = dict(line.split(":", 1) for line in rig.run("out = tools.cat.show(file='/proc/self/status')").splitlines())
    assert all(int(status[name], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")), status
    assert status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2", status
    assert not set(status["Groups"].split()) - {"65534"} or rig.uid is None and os.getuid() != 0, status
    if rig.uid is None and os.getuid() == 0:
        assert int(status["CapBnd"], 16) == 0, status
    fields = rig.run("out = tools.cat.show(file='/proc/self/stat')").rpartition(")")[2].split()
    assert fields[2] == fields[3] != "0"  # its group, its session


def test_limits_hold_for_programs(lower):
    """A program of a session with limits has them."""
    lower.policy("level: no-userns\nfilesystem: {unprotect: ['*']}\nlimits: {files: 77, file_size: 64K, memory: 256M}\n")
    lower.tool("sh", "command: sh\n" + SHELL)
    assert lower.run("out = tools.sh.run(c='ulimit -n')") == "77\n"
    assert lower.refusal("tools.sh.run(c='head -c 200000 /dev/zero > big')")[0] == "tool_failed"
    assert os.path.getsize(os.path.join(lower.work, "big")) <= 65536
    lower.tool("py", "command: python3\nschema: {options: {c: {short: c, type: string}}}\nrecipes: {run: {}}\n")
    assert lower.refusal("tools.py.run(c='x = bytearray(900 << 20); x[::4096] = b\\'1\\' * len(x[::4096]); print(len(x))')")[0] == "tool_failed"


WRITES = ["echo x > %(mark)s", "mkdir %(mark)s", "ln -s / %(mark)s", "cp /bin/true %(mark)s", "mkfifo %(mark)s",
          "echo x >> %(secret)s", "mv %(secret)s %(mark)s", "ln %(secret)s %(mark)s", "rm %(secret)s", "rm -rf %(hidden)s",
          "echo x > /tmp/workcell-mark-%(pid)d", "echo x > /dev/shm/workcell-mark-%(pid)d", "echo x > /var/tmp/workcell-mark-%(pid)d",
          "echo x > %(tools)s/evil.yaml", "cat %(secret)s", "ls %(hidden)s", "cat /etc/shadow", "cat /proc/%(pid)d/environ",
          "ln -s %(hidden)s there; cat there/secret", "cd %(hidden)s && cat secret"]


def test_a_program_writes_and_reads_nothing_outside(lower):
    """Files of the host, world-writable folders among them, the tools' definitions, another process's environment."""
    lower.tool("sh", "command: sh\n" + SHELL)
    facts = dict(vars(lower), pid=os.getpid())
    for words in WRITES:
        code, said = lower.refusal("tools.sh.run(c=%r)" % (words % facts))
        assert code == "tool_failed" and "host secret" not in said, (words, said)
    assert sorted(os.listdir(lower.hidden)) == ["secret"] and os.listdir(lower.tools) == ["sh.yaml"]
    for folder in ("/tmp", "/dev/shm", "/var/tmp"):
        assert not os.path.exists("%s/workcell-mark-%d" % (folder, os.getpid()))
    assert lower.run("out = tools.sh.run(c='echo x > mine; cat mine; rm mine')") == "x\n"


def test_a_program_plants_no_setuid_bits(lower):
    """A copy of a program in the workspace, and a file of the host's user, with the bits that give its owner's rights away."""
    lower.tool("sh", "command: sh\n" + SHELL)
    lower.run("open('sh', 'w')")
    for words in ("chmod 4755 sh", "chmod 2755 sh", "cp /bin/sh x; chmod u+s x", "install -m 4755 /bin/sh y", "mkdir -m 2777 z",
                  "chmod 4755 %s" % lower.secret):
        assert lower.refusal("tools.sh.run(c=%r)" % words)[0] == "tool_failed", words
    modes = [os.lstat(os.path.join(lower.work, name)).st_mode for name in os.listdir(lower.work)] + [os.stat(lower.secret).st_mode]
    assert not any(mode & 0o6000 for mode in modes)


def test_a_program_signals_nobody(lower):
    """The host, the spawner, the kernel of its own session; before Linux 6.12 the level does not claim to keep it from that."""
    lower.tool("sh", "command: sh\n" + SHELL)
    lower.start()
    for pid in (lower.driver.process.pid, lower.run("import os\nout = os.getpid()"), "$PPID"):
        code, words = lower.refusal("tools.sh.run(c='kill -0 %s')" % pid)
        assert code == "tool_failed" and "not permitted" in words, words


def test_a_program_reaches_no_sockets_of_the_host(lower):
    """A Unix socket that the host's user could connect to: an agent for keys, a container engine."""
    lower.tool("py", "command: python3\nschema: {options: {c: {short: c, type: string}}}\nrecipes: {run: {}}\n")
    path = os.path.join(lower.hidden, "sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as hidden:
        listener.bind(path)
        listener.listen()
        os.chmod(path, 0o777)
        hidden.bind("\0workcell-%d" % os.getpid())
        hidden.listen()
        for address in ("'%s'" % path, "chr(0) + 'workcell-%d'" % os.getpid()):
            code, words = lower.refusal("tools.py.run(c=\"import socket; socket.socket(socket.AF_UNIX).connect(%s); print('in')\")" % address)
            assert code == "tool_failed" and "in\n" not in words, words


CHAIN = r"""import os, sys
if os.fork():
    os._exit(0)
os.setsid()
for fd in range(3):
    os.close(fd)
beat = os.open("beat", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
while True:
    os.write(beat, b".")
    if os.fork():
        os._exit(0)
"""


def test_a_chain_of_forks_ends_with_the_tool(rig):
    """A daemon that is another process at every moment: whoever is found has forked and gone already."""
    rig.tool("py", "command: python3\nschema: {positional: [{name: file, type: string}]}\nrecipes: {run: {}}\n")
    rig.tool("cat", CAT)
    for _ in range(3):
        rig.run("open('chain.py', 'w').write(%r)\nout = tools.py.run(file='chain.py')" % CHAIN)
        size = os.path.getsize(os.path.join(rig.work, "beat")) if os.path.exists(os.path.join(rig.work, "beat")) else 0
        for _ in range(10):
            rig.run("out = tools.cat.show(file='chain.py')")
        assert size == (os.path.getsize(os.path.join(rig.work, "beat")) if size else 0)


def test_cwd_by_a_link(rig):
    """A folder below the workspace, as the definition says, that the code has made a link to the host's."""
    rig.tool("sh", "command: sh\ncwd: sub\n" + SHELL)
    rig.run("import os; os.mkdir('sub'); open('sub/x', 'w').write('mine')")
    assert rig.run("out = tools.sh.run(c='cat x')") == "mine"
    code, words = rig.refusal("[os.rename('sub', 'old'), os.symlink(%r, 'sub'), tools.sh.run(c='pwd; cat secret')][2]" % rig.hidden)
    assert code == "tool_failed" and "host secret" not in words and "cannot run in" in words, words


def test_definitions_say_where_a_program_runs(lower):
    """host: true is the same word at every level."""
    lower.tool("a", "command: touch\nschema: {positional: [{name: path, type: string}]}\nrecipes: {run: {}}\n")
    lower.tool("b", "host: true\ncommand: touch\nschema: {positional: [{name: path, type: string}]}\nrecipes: {run: {}}\n")
    assert lower.refusal("tools.a.run(path=%r)" % lower.mark)[0] == "tool_failed" and not os.path.exists(lower.mark)
    assert lower.run("out = tools.b.run(path=%r)" % lower.mark) == "" and os.path.exists(lower.mark)


def test_packages_are_refused_without_namespaces(lower):
    """An installer must reach the index and nobody else, which takes a network namespace: nothing is installed, and nothing runs."""
    base, cache = os.path.join(lower.folder, "base"), os.path.join(lower.folder, "cache")
    for folder in (base, cache):
        os.mkdir(folder)
        if lower.uid is not None:
            os.chown(folder, lower.uid, lower.uid)
    lower.flags += ("--base", base)
    lower.env["XDG_CACHE_HOME"] = cache
    code, words = lower.refusal("deps.add('nothing-of-that-name')")
    assert code == "executor_unavailable" and "packages" in words and "full" in words, (code, words)
    assert not [name for _, folders, names in os.walk(lower.folder) for name in folders + names if name in ("site-packages", "pyvenv.cfg")]
