"""Names that make a later program of the host run code: a sandbox writes none of them to a workspace of the host, in whatever way it tries,
and everything else works as without a guard."""
import json
import os
import subprocess

import pytest

import attempts
import file_operations
import support
import test_escape

WORDS = ["--executor", "sandbox", "--python", "/usr/bin/python3"]
KEPT = {".git/config": "[core]\n", ".git/hooks/kept": "#!/bin/sh\n", "conftest.py": "kept = 1\n", "sub/Makefile": "all:\n"}
NO = "EACCES"

# Code that sets `out`, and its only answer.
ATTEMPTS = {
    "a new file": ("out = tr(write, 'Makefile')", NO),
    "a file of the host": ("out = tr(write, 'conftest.py')", NO),
    "to append": ("out = tr(open, 'conftest.py', 'a')", NO),
    "to read and write": ("out = tr(os.open, 'conftest.py', os.O_RDWR)", NO),
    "to cut": ("out = tr(os.truncate, 'conftest.py', 0)", NO),
    "to cut while reading": ("out = tr(os.open, 'conftest.py', os.O_RDONLY | os.O_TRUNC)", NO),
    "another case": ("out = tr(write, 'MakeFile')", NO),
    "a pattern": ("out = tr(write, 'x.PTH')", NO),
    "below a folder": ("out = tr(write, '.git/hooks/pre-commit')", NO),
    "a folder": ("out = tr(os.mkdir, '.vscode')", NO),
    "a folder that is there": ("out = tr(os.mkdir, '.git')", "EEXIST"),
    "nothing to remove": ("out = tr(os.unlink, '.envrc')", "ENOENT"),
    "nothing to write": ("out = tr(os.open, '.envrc', os.O_WRONLY)", "ENOENT"),
    "to remove": ("out = tr(os.unlink, '.git/config')", NO),
    "to remove a folder": ("out = tr(os.rmdir, '.git/hooks')", NO),
    "by renaming a file": ("write('f1'); out = tr(os.rename, 'f1', '.env')", NO),
    "by renaming over one": ("write('f1'); out = tr(os.rename, 'f1', 'conftest.py')", NO),
    "by renaming a folder": ("os.makedirs('d1/hooks'); out = tr(os.rename, 'd1', '.hg')", NO),
    "by moving one away": ("out = tr(os.rename, '.git', 'git')", NO),
    "by exchanging two": ("write('f2'); out = sc(316, -100, b'f2', -100, b'conftest.py', 2)", NO),
    "a hard link": ("write('f3'); out = tr(os.link, 'f3', '.npmrc')", NO),
    "another name for one": ("out = tr(os.link, 'conftest.py', 'f4')", NO),
    "another name by a descriptor": ("f = os.open('conftest.py', os.O_RDONLY); "
                                     "out = sc(265, -100, b'/proc/self/fd/%%d' %% f, -100, b'f5', 0x400)", NO),
    "a link": ("out = tr(os.symlink, 'f1', '.venv')", NO),
    "through a link": ("os.symlink('conftest.py', 'l1'); out = tr(write, 'l1')", NO),
    "through a link to nothing": ("os.symlink('.env.local', 'l2'); out = tr(write, 'l2')", NO),
    "through a link to a folder": ("os.symlink('.git', 'l3'); out = tr(write, 'l3/config')", NO),
    "through links of links": ("os.symlink('l3', 'l4'); os.symlink('l4/hooks/x', 'l5'); out = tr(write, 'l5')", NO),
    "by a folder's descriptor": ("d = os.open('.git', os.O_RDONLY); out = tr(os.open, 'config', os.O_WRONLY, dir_fd=d)", NO),
    "by a folder's O_PATH": ("d = os.open('.git/hooks', os.O_PATH); out = tr(os.open, 'post-merge', os.O_CREAT | os.O_WRONLY, dir_fd=d)", NO),
    "from the folder": ("os.chdir('.git'); out = tr(write, 'config'); os.chdir('..')", NO),
    "by ..": ("out = tr(write, 'sub/../.git/../conftest.py')", NO),
    "to open it again": ("f = os.open('conftest.py', os.O_RDONLY); out = tr(write, '/proc/self/fd/%%d' %% f)", NO),
    "by /dev/fd": ("f = os.open('conftest.py', os.O_RDONLY); out = tr(os.truncate, '/dev/fd/%%d' %% f, 0)", NO),
    "by /proc/self/cwd": ("out = tr(write, '/proc/self/cwd/conftest.py')", NO),
    "by /proc/self/root": ("out = tr(write, '/proc/self/root' + os.getcwd() + '/conftest.py')", NO),
    "by /proc/thread-self": ("out = tr(write, '/proc/thread-self/cwd/.envrc')", NO),
    "by the number of the process": ("out = tr(write, '/proc/%%d/cwd/.envrc' %% os.getpid())", NO),
    "by pid 1's folder": ("out = tr(write, '/proc/1/root' + os.getcwd() + '/conftest.py')", NO),
    "a file without a name": ("f = os.open('.', os.O_TMPFILE | os.O_RDWR); "
                              "out = sc(265, -100, b'/proc/self/fd/%%d' %% f, -100, b'tox.ini', 0x400)", NO),
    "a file without a name, by its descriptor": ("f = os.open('.', os.O_TMPFILE | os.O_RDWR); out = sc(265, f, b'', -100, b'tox.ini', 0x1000)", NO),
    "creat": ("out = sc(85, b'.envrc', 0o644)", NO),
    "open with all bits set": ("out = sc(2, b'.envrc', 0o103 | 0x7f000000, 0o644)", NO),
    "openat2": ("out = sc(437, -100, b'.envrc', struct.pack('QQQ', 0o101, 0o644, 0), 24)", "ENOSYS"),
    "mknod": ("out = sc(133, b'.envrc', 0o100644, 0)", "EPERM"),
    "i386": ("out = in_child(lambda: sc(0x40000000 | 85, b'.envrc', 0o644))", "EPERM"),
    "io_uring": ("out = sc(425, 8, ctypes.create_string_buffer(120))", "EPERM"),
    "a shell": ("import subprocess; out = subprocess.run(['sh', '-c', 'echo x > Makefile || echo no'], capture_output=True, text=True).stdout.strip()", "no"),
    "a forked child": ("out = in_child(lambda: tr(write, '.envrc'))", NO),
    "a child that hides its memory": ("out = in_child(lambda: (libc.prctl(4, 0), tr(write, 'fine'))[1])", "EPERM EACCES"),
    "a thread": ("import threading; found = []; t = threading.Thread(target=lambda: found.append(tr(write, '.envrc'))); t.start(); t.join(); out = found[0]", NO),
    "a listener of its own": ("rule = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fc00000), 8); "
                              "out = in_child(lambda: sc(317, 1, 8, struct.pack('HxxxxxxQ', 1, ctypes.addressof(rule))))", "EBUSY"),
    "a name that is no text": ("out = tr(os.open, b'.env.\\xff', os.O_CREAT | os.O_WRONLY)", NO),
    "a path of the longest size": ("out = tr(write, './' * 2040 + '.envrc')", NO),
    "to trace pid 1": ("out = tr(os.readlink, '/proc/1/cwd')", NO),
    "to reach the guard": ("s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); out = tr(s.connect, '/run/guard')", "ECONNREFUSED"),
}


class Jail:
    def __init__(self, how):
        self.host = test_escape.Host(how.get("uid") if how.get("uid") is not None else os.getuid())
        self.how = how
        self.work = self.host.workspace
        for name, text in KEPT.items():
            path = os.path.join(self.work, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        if how.get("uid") is not None:
            for at, folders, files in os.walk(self.work):
                for name in folders + files:
                    os.chown(os.path.join(at, name), how["uid"], how["uid"])

    def check(self):
        """What is protected is what it was."""
        found = {}
        for at, _, files in os.walk(self.work):
            for name in files:
                path = os.path.relpath(os.path.join(at, name), self.work)
                if os.path.islink(os.path.join(at, name)):
                    continue
                with open(os.path.join(at, name), encoding="utf-8", errors="replace") as file:
                    found[path] = file.read()
        for name, text in KEPT.items():
            assert found.pop(name) == text, name
        new = [path for path in found if any(part in (".git", ".hg", ".venv") or part.lower().startswith((".env", "makefile", "conftest"))
                                             for part in path.split("/"))]
        assert not new, new


@pytest.fixture(scope="module", params=test_escape.modes()[:2], ids=lambda mode: mode[0])
def jail(request):
    jail = Jail(request.param[1])
    try:
        with test_escape.start(jail.host, **jail.how) as driver:
            support.shared_drivers.append(driver)
            driver.locate()
            test_escape.prelude(driver)
            jail.driver = driver
            yield jail
    finally:
        del support.shared_drivers[:]
        jail.host.close()


def test_attempts(jail):
    tried = [attempts.Attempt(name, code, denied) for name, (code, denied) in ATTEMPTS.items()]
    got = test_escape.outcomes(jail.driver, tried, {})
    wrong = ["%s: %s, not %s" % (a.name, got[a.name], a.denied) for a in tried if got[a.name] not in a.denied]
    assert not wrong, "\n".join(wrong)
    jail.check()


def test_all_names(jail):
    """Those that the docs list, in a folder."""
    docs = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "branches.md")
    with open(docs, encoding="utf-8") as file:
        rows = file.read().split("| of | names |\n")[1].split("\n\n")[0].splitlines()[1:]
    names = [name.replace("*", "x") for row in rows for name in row.split("|")[2].replace("`", "").replace(" ", "").split(",") if name]
    assert len(names) > 80, names
    written = jail.driver.value("os.makedirs('deep/er', exist_ok=True); [n for n in %r if tr(write, 'deep/er/' + n) != 'EACCES' "
                                "or tr(os.mkdir, 'deep/er/' + n) != 'EACCES']" % names)
    assert written == []


RACE = r"""
import threading, time
def race():
    # A folder and a link to .git change places, files become links, folders are renamed, and paths change in memory while a call reads them.
    os.makedirs('race', exist_ok=True)
    os.chdir('race')
    os.makedirs('real', exist_ok=True)
    os.symlink('../.git', 'link')
    path = ctypes.create_string_buffer(b'real/fine\0\0\0\0\0\0\0\0\0', 64)
    begin = time.monotonic()
    done = [0] * 5
    def goes_on():
        # For a while, and then until each thread has had its turns.
        return time.monotonic() < begin + %(seconds)f or (min(done) <= 20 and time.monotonic() < begin + 60)
    def swap():
        while goes_on():
            sc(316, -100, b'real', -100, b'link', 2)
            done[0] += 1
    def rename():
        while goes_on():
            tr(os.mkdir, 'a')
            tr(os.rename, 'a', 'b')
            tr(os.rename, 'b', '../.git/hooks/a')
            tr(os.rename, 'b', '.git')
            tr(os.rmdir, 'b')
            done[1] += 1
    def text():
        while goes_on():
            for name in (b'real/fine\0', b'../conftest.py\0', b'link/config\0', b'.git/config\0'):
                ctypes.memmove(path, name, len(name))
            done[2] += 1
    def file():
        while goes_on():
            tr(write, 'f')
            tr(os.symlink, '../conftest.py', 'g')
            tr(os.replace, 'g', 'f')
            tr(os.unlink, 'f')
            done[3] += 1
    threads = [threading.Thread(target=t) for t in (swap, rename, text, file)]
    for t in threads:
        t.start()
    while goes_on():
        for how in (sc, ):
            fd = sc(257, -100, path, 0o1101, 0o644)
            if fd.startswith('ok'):
                os.write(int(fd[3:]), b'EVIL')
                os.close(int(fd[3:]))
        for name in ('real/config', 'link/config', 'real/hooks/x', 'f', 'b/x', '.git/config', 'a/Makefile'):
            tr(write, name, b'EVIL')
        tr(os.link, path.value, 'h'); tr(os.unlink, 'h')
        done[4] += 10
    for t in threads:
        t.join()
    os.chdir('..')
    return done
race()
"""


def test_races(jail):
    result = jail.driver.run(RACE % {"seconds": 1.5})
    assert result["error"] is None and all(n > 20 for n in result["value"]), result
    jail.check()


def test_two_sessions_race(jail):
    """Another session exchanges what a path of this one leads to."""
    with test_escape.start(jail.host, **jail.how) as other:
        support.shared_drivers.append(other)
        try:
            test_escape.prelude(other)
            other.run("import threading, time\nos.makedirs('two/real', exist_ok=True)\nos.symlink('../.git', 'two/link')\nos.symlink('../conftest.py', 'two/g')\n"
                      "write('two/f')\n"
                      "def swap():\n    while not stop:\n"
                      "        sc(316, -100, b'two/real', -100, b'two/link', 2)\n        sc(316, -100, b'two/f', -100, b'two/g', 2)\n"
                      "stop = []\nt = threading.Thread(target=swap); t.start()")
            tried = jail.driver.run("import time\nbegin, n = time.monotonic(), 0\nwhile time.monotonic() < begin + 1.2 or (n <= 50 and time.monotonic() < begin + 60):\n"
                                    "    for name in ('two/real/config', 'two/link/config', 'two/f', 'two/g', 'two/real/hooks/x'):\n"
                                    "        tr(write, name, b'EVIL'); tr(os.truncate, name, 0); n += 1\nn")
            assert tried["value"] > 50, tried
            other.run("stop.append(1); t.join()")
        finally:
            support.shared_drivers.remove(other)
    jail.check()


WORKS = r"""
import sqlite3, subprocess, tempfile, threading, shutil, concurrent.futures, fcntl, socket
os.makedirs('works', exist_ok=True); os.chdir('works')
db = sqlite3.connect('data.db'); db.execute('create table if not exists t (x)'); db.execute('insert into t values (1)'); db.commit(); db.close()
db = sqlite3.connect('data.db', isolation_level=None); db.execute('pragma journal_mode=wal'); db.execute('insert into t values (2)'); db.close()
with tempfile.NamedTemporaryFile('w', dir='.', delete=False) as f: f.write('saved')
os.replace(f.name, 'saved.txt')
with tempfile.TemporaryFile(dir='.') as f: f.write(b'x')
old = os.umask(0o077); os.close(os.open('private', os.O_CREAT | os.O_WRONLY, 0o666)); os.umask(old)
deep = '/'.join(['d' * 60] * 12); os.makedirs(deep); open(deep + '/file', 'w').write('x')
at = os.open(deep, os.O_RDONLY); os.close(os.open('again', os.O_CREAT | os.O_WRONLY, dir_fd=at)); os.close(at)
with concurrent.futures.ThreadPoolExecutor(8) as pool: list(pool.map(lambda i: open('many%d' % i, 'w').write('x' * i), range(100)))
shutil.copytree('.', '/tmp/copy'); shutil.move('/tmp/copy', 'moved')
out = subprocess.run(['sh', '-c', 'mkdir -p s/t && echo hi > s/t/u && mv s v && cp -r v w && rm -r v && cat w/t/u && (umask 027; touch w/m) && stat -c %a w/m'],
                     capture_output=True, text=True).stdout
s = socket.socket(socket.AF_UNIX); s.bind('sock'); s.close()
fd = os.open('saved.txt', os.O_RDWR | os.O_APPEND); os.write(fd, b'!'); flags = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_APPEND | os.O_NONBLOCK | 3); os.close(fd)
venv = subprocess.run([sys.executable, '-m', 'venv', '--without-pip', '/tmp/venv']).returncode
os.makedirs('/tmp/conf', exist_ok=True); open('/tmp/conf/Makefile', 'w').write('x')
found = [out, open('saved.txt').read(), oct(os.stat('private').st_mode)[-3:], len(os.listdir(deep)), sum(n.startswith('many') for n in os.listdir('moved')), flags, venv]
os.chdir('..')
found
"""


def test_everything_else_works(jail):
    result = jail.driver.run(WORKS)
    assert result["error"] is None, result["error"]
    assert result["value"] == ["hi\n640\n", "saved!", "600", 2, 100, os.O_APPEND | os.O_RDWR, 0], result["value"]
    assert result["isolation"]["protected"] == "enforced" and not any("protected" in line for line in result["isolation"]["skipped"])


def test_an_interrupt(jail):
    """Calls that wait for the guard end soon, and the cell can be interrupted between them."""
    jail.driver.start("while True:\n    write('again'); os.unlink('again')")
    support.wait_until(lambda: jail.driver.interrupt() or jail.driver.answer(deadline=5), "the interrupt")
    assert jail.driver.value("tr(write, 'after')") == "ok:None"


def test_answers_are_those_of_the_system(tmp_path):
    """Random operations in /tmp, with the guard and without: the same answers, the same files."""
    with open(file_operations.__file__, encoding="utf-8") as file:
        code = file.read() + "\nimport json\nprint(json.dumps([operations('/tmp/t%d' % seed, seed, 250) for seed in range(25)]))"
    answers = {}
    for mode in ("none", "rw"):
        done = support.workcell("run", *WORDS, "--cwd", str(tmp_path), "--workspace-mode", mode, "-e", code)
        assert done.status == 0, done
        answers[mode] = json.loads(done.out)
    for seed, (native, guarded) in enumerate(zip(answers["none"], answers["rw"])):
        for one, other in zip(native, guarded):
            assert one == other, (seed, str(one)[:300], str(other)[-100:])
        assert len(native) == len(guarded)


POLICY = """preset: untrusted
filesystem:
  unprotect: [Makefile, .venv, "*.pth"]
"""


def test_a_policy_unprotects_names(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    code = attempts.PRELUDE.replace("%%", "%") + (
        "\nos.makedirs('.venv/lib/site-packages/.git/hooks')\n"
        "[tr(write, 'makefile'), tr(write, 'x.pth'), tr(write, '.venv/pyvenv.cfg'), tr(write, '.venv/lib/site-packages/conftest.py'), tr(write, 'conftest.py'),"
        " tr(os.mkdir, 'venv'), tr(os.rename, '.venv/lib/site-packages', 'packages'), tr(os.rename, '.venv/lib', '.venv/lib64')]")
    done = support.workcell("run", *WORDS, "--json", "--cwd", str(work), "--sandbox-policy", str(policy), "-e", code)
    assert done.result["value"] == ["ok:None"] * 4 + ["EACCES", "EACCES", "EXDEV", "ok:None"], done
    assert sorted(os.listdir(work)) == [".venv", "makefile", "x.pth"]
    policy.write_text(POLICY.replace("Makefile", "'*'"))
    done = support.workcell("run", *WORDS, "--json", "--cwd", str(work), "--sandbox-policy", str(policy), "-e", "open('conftest.py', 'w').write('x')")
    assert done.result["value"] == 1 and done.result["isolation"]["protected"] == "not enforced", done
    policy.write_text(POLICY.replace("Makefile", "main.py"))
    done = support.workcell("run", *WORDS, "--json", "--cwd", str(work), "--sandbox-policy", str(policy), "-e", "1")
    assert done.status == support.EXIT["invalid"] and "main.py in unprotect is not a protected name" in done.err, done


def test_folders_of_a_policy_and_commands(tmp_path):
    """`write:` is protected as the workspace is, also with a layer over that; a command of `sandbox run` has the same guard."""
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    out.mkdir()
    policy = tmp_path / "policy.yaml"
    policy.write_text("preset: untrusted\nfilesystem:\n  write: [%s]\n" % out)
    code = attempts.PRELUDE.replace("%%", "%") + "\n[tr(write, %r + '/' + n) for n in ('fine', 'Makefile')] + [tr(write, 'Makefile')]" % str(out)
    for mode, own in (("cow", "EACCES"), ("rw", "EACCES"), ("ro", "EROFS")):
        done = support.workcell("run", *WORDS, "--json", "--cwd", str(work), "--sandbox-policy", str(policy), "--workspace-mode", mode, "-e", code)
        assert done.result["value"] == ["ok:None", "EACCES", own], (mode, done)
    assert os.listdir(out) == ["fine"] and os.listdir(work) == []
    done = subprocess.run([support.BIN, "sandbox", "run", "--policy", str(policy), "--", "sh", "-c", "echo x > fine; echo x > Makefile || exit 9"], cwd=work,
                          env=support.host_environment(), capture_output=True, text=True, timeout=support.DEADLINE)
    assert done.returncode == 9 and os.listdir(work) == ["fine"], done


def test_without_a_guard_nothing_is_dumpable(tmp_path):
    done = support.workcell("run", *WORDS, "--json", "--cwd", str(tmp_path), "--workspace-mode", "ro", "-e", "import ctypes; ctypes.CDLL(None).prctl(3)")
    assert done.result["value"] == 0 and done.result["isolation"]["protected"] == "enforced", done
