"""What the end-to-end, conformance and fault tests share: the program under test, drivers for it, /proc.

Nothing here sleeps to let something happen: wait_until() polls a condition and fails after a deadline that
is far beyond what a healthy program needs.
"""
import atexit
import fcntl
import functools
import glob
import itertools
import json
import os
import pty
import queue
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.path.abspath(os.environ.get("WORKCELL_BIN", os.path.join(ROOT, "build", "workcell")))
# An interpreter with IPython, numpy, pandas and matplotlib; the one that runs the tests unless told otherwise.
PYTHON = os.environ.get("WORKCELL_TEST_PYTHON", sys.executable)
EXECUTORS = os.environ.get("WORKCELL_EXECUTORS", "subprocess sandbox inprocess jupyter deno remote").replace(",", " ").split()
# Longer than the program's own longest, the start of a kernel: what it then says is worth reading.
DEADLINE = float(os.environ.get("WORKCELL_TEST_DEADLINE", "90"))
# A process may hold a Python integer literal of any length.
if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)


def wait_until(condition, what, deadline=DEADLINE):
    """Polls until condition() is true and returns its value."""
    end = time.monotonic() + deadline
    pause = 0.001
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("not within %g s: %s" % (deadline, what() if callable(what) else what))
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


# ---- the table of codes ------------------------------------------------------------------------------------


def exit_statuses():
    """Code word -> exit status, from the one table in workcell.h."""
    with open(os.path.join(ROOT, "include", "workcell.h"), encoding="utf-8") as header:
        rows = re.findall(r'X\(\d+, (?:OK|E_|OUT_)\w*, "(\w+)", \d+, -?\d+, (\d+), "\w*"\)', header.read())
    assert len(rows) > 15
    return {word: int(status) for word, status in rows}


EXIT = exit_statuses()


# ---- processes ---------------------------------------------------------------------------------------------


class Process:
    """One line of /proc: a pid that is not mistaken for a later process with the same number."""

    def __init__(self, pid, ppid, state, start):
        self.pid, self.ppid, self.state, self.start = pid, ppid, state, start
        self.key = (pid, start)

    @property
    def cmdline(self):
        try:
            with open("/proc/%d/cmdline" % self.pid, "rb") as file:
                return file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def __repr__(self):
        return "<%d ppid=%d %s %s>" % (self.pid, self.ppid, self.state, self.cmdline[:120])


def comm_of(pid):
    try:
        with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def read_process(pid):
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, also ") ".
    fields = text[text.rindex(")") + 2:].split()
    return Process(pid, int(fields[1]), fields[0], int(fields[19]))


def processes():
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def children(pid):
    """Pids of the children of all threads, zombies too. A list may lack some if one is reaped while it is read: two in a row agree."""
    last = None
    while True:
        found = []
        try:
            for thread in os.listdir("/proc/%d/task" % pid):
                with open("/proc/%d/task/%s/children" % (pid, thread), "rb") as file:
                    found += file.read().split()
        except OSError:
            if not os.path.exists("/proc/self/task/%d/children" % os.getpid()):  # a kernel without CONFIG_PROC_CHILDREN
                return [process.pid for process in processes().values() if process.ppid == pid]
            if not os.path.exists("/proc/%d" % pid):
                return []
            found = None  # a thread that ended
        if found is not None and found == last:
            return [int(child) for child in found]
        last = found


def below(pid):
    """Processes below pid, zombies too, as processes() lists them: most of a machine's processes are not ours, and reading them takes time."""
    found, todo = {}, [pid]
    while todo:
        for child in children(todo.pop()):
            process = read_process(child)
            if process:
                found[child] = process
                todo.append(child)
    return found


def descendants(pid, table=None):
    """Live processes below pid, zombies left out."""
    table = below(pid) if table is None else table
    children = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
    found, todo = [], [pid]
    while todo:
        for child in children.get(todo.pop(), ()):
            todo.append(child.pid)
            if child.state not in "ZX":
                found.append(child)
    return found


def alive(pid):
    process = read_process(pid)
    return bool(process) and process.state not in "ZX"


def with_argument(marker):
    """Live processes that have marker in their command line."""
    return [p for p in processes().values() if p.state not in "ZX" and marker in p.cmdline
            and p.pid != os.getpid()]


def fd_count(pid):
    return len(os.listdir("/proc/%d/fd" % pid))


def peak_rss_bytes(pid):
    with open("/proc/%d/status" % pid, encoding="ascii", errors="replace") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)) * 1024


# Drivers that serve a whole module.  What runs below them belongs to that module, and is checked at its end.
shared_drivers = []
# Pids that a Popen object waits for; every other zombie below us is an orphan that nobody else will reap.
own_pids = set()


def popen(argv, **options):
    process = subprocess.Popen(argv, **options)
    own_pids.add(process.pid)
    return process


def reap_orphans():
    for pid in children(os.getpid()):
        process = read_process(pid) if pid not in own_pids else None
        if process and process.state == "Z":
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass


@functools.lru_cache(None)
def is_asan():
    with open(BIN, "rb") as file:
        return b"__asan_init" in file.read()


def memory(mib):
    """A bound on memory in bytes; the sanitizer needs several times what the program does."""
    return mib * (4 if is_asan() else 1) << 20


# ---- one run of the program --------------------------------------------------------------------------------


def host_environment(**extra):
    """What the program itself gets.  The canary must never be seen by a kernel."""
    env = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        "WORKCELL_TEST_CANARY": "inherited",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "LD_LIBRARY_PATH", "WORKCELL_PLANTED_HOLE"):
        if name in os.environ:
            env[name] = os.environ[name]
    if is_asan():
        # Freed memory that it holds back would look like a leak to the tests that watch memory.
        env["ASAN_OPTIONS"] = ":".join(filter(None, [env.get("ASAN_OPTIONS"), "quarantine_size_mb=8"]))
    env.update(extra)
    return env


class Completed:
    def __init__(self, argv, status, out, err):
        self.argv, self.status, self.raw_out, self.raw_err = argv, status, out, err
        self.out = out.decode("utf-8", "replace")
        self.err = err.decode("utf-8", "replace")

    @property
    def objects(self):
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def results(self):
        return [obj for obj in self.objects if "session_id" in obj]

    @property
    def result(self):
        results = self.results
        assert len(results) == 1, self
        return results[0]

    @property
    def error_code(self):
        """The code word of `workcell: CODE_WORD: message`."""
        found = re.search(r"^workcell: (\w+): (.+)$", self.err, re.M)
        assert found, self
        return found.group(1)

    @property
    def error_message(self):
        return re.search(r"^workcell: \w+: (.+)$", self.err, re.M | re.S).group(1)

    def __repr__(self):
        return "%s\nstatus %s\nstdout: %s\nstderr: %s" % (self.argv, self.status, self.out[:4000],
                                                          self.err[:4000])


def workcell(*args, stdin=None, env=None, cwd=None, deadline=DEADLINE, bin_path=None, preexec_fn=None):
    """Runs the program to its end.  stdin: bytes, or None for an empty one."""
    argv = [bin_path or BIN] + [str(arg) for arg in args]
    process = popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    env=env if env is not None else host_environment(), cwd=cwd, preexec_fn=preexec_fn)
    try:
        out, err = process.communicate(stdin or b"", timeout=deadline)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError("hangs: %r" % Completed(argv, "killed", out, err)) from None
    done = Completed(argv, process.returncode, out, err)
    for sign in ("AddressSanitizer", "LeakSanitizer", "runtime error:"):
        assert sign not in done.err, done
    return done


def forget(result):
    """Removes the file with the output of a result that `workcell run --json` printed, where there is one."""
    if result.get("spill"):
        os.unlink(result["spill"])


def run_cells(*cells, flags=(), python=None, **options):
    """workcell run --json -e CELL ... with the bare interpreter unless told otherwise."""
    argv = ["run", "--json"]
    if python is None:
        python = bare_python()
    if python:
        argv += ["--python", python]
    argv += list(flags)
    for cell in cells:
        argv += ["-e", cell]
    return workcell(*argv, **options)


# ---- temporary files ---------------------------------------------------------------------------------------

_temporary = []


@atexit.register
def remove_temporary():
    while _temporary:
        shutil.rmtree(_temporary.pop())


def temporary_folder(prefix):
    """A folder that goes when this process ends, for what outlives one test or needs a short path."""
    _temporary.append(tempfile.mkdtemp(prefix=prefix))
    return _temporary[-1]


# ---- interpreters ------------------------------------------------------------------------------------------


def interpreters():
    """Every CPython of this machine: [(path, (major, minor))], one per real file."""
    found, seen = [], set()
    for path in sorted(glob.glob("/root/.pyenv/versions/*/bin/python3") + glob.glob("/usr/bin/python3*")
                       + glob.glob("/usr/local/bin/python3*")):
        if not re.search(r"/python3(\.\d+)?$", path) or os.path.realpath(path) in seen:
            continue
        asked = subprocess.run([path, "-c", "import sys; print(*sys.version_info[:2])"],
                               stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, check=False)
        if asked.returncode == 0:
            seen.add(os.path.realpath(path))
            found.append((path, tuple(map(int, asked.stdout.split()))))
    return found


def python_version(path):
    asked = subprocess.run([path, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"],
                           stdout=subprocess.PIPE, check=True)
    return asked.stdout.decode().strip()


def module_version(path, package):
    """Version of a package as that interpreter sees it, None without it. To import it would take up to half a second."""
    asked = subprocess.run([path, "-c", "import importlib.metadata as m; print(m.version(%r))" % package],
                           stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, check=False)
    return asked.stdout.decode().strip() if asked.returncode == 0 else None


def make_venv(where):
    """A venv of the interpreter that PYTHON's venv was made from."""
    asked = subprocess.run([PYTHON, "-c", "import sys; print(getattr(sys, '_base_executable', sys.executable))"], stdout=subprocess.PIPE, check=True)
    subprocess.run([asked.stdout.decode().strip(), "-m", "venv", "--without-pip", where], check=True)


_bare = []


def bare_python():
    """An interpreter of the tests' own version that has nothing installed: the shell must be our own."""
    if not _bare:
        where = temporary_folder("workcell-tests-bare-")
        make_venv(where)
        path = os.path.join(where, "bin", "python3")
        assert module_version(path, "IPython") is None
        _bare.append(path)
    return _bare[0]


_plain = []


def plain_python():
    """A bare interpreter that finds the libraries of PYTHON but IPython and what belongs to it: the shell is our own."""
    if not _plain:
        asked = subprocess.run([PYTHON, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
                               stdout=subprocess.PIPE, check=True)
        source = asked.stdout.decode().strip()
        where = temporary_folder("workcell-tests-plain-")
        make_venv(where)
        own, = glob.glob(os.path.join(where, "lib", "python3*", "site-packages"))
        # Two thirds of the files are of packages that no cell imports: making and removing them takes seconds of each process of tests.
        others = "anthropic|debugpy|e2b|graphql|hypothesis|jedi|mypy|openai|pip|pkg_resources|pyright|schemathesis|setuptools"
        wanted = [os.path.join(source, name) for name in os.listdir(source)
                  if not re.match(r"i?python|ipykernel|matplotlib_inline|distutils-precedence|_virtualenv|" + others, name, re.I)]
        # The files themselves, under another name where the file system can do that: a sandbox shows the venv only.
        if subprocess.run(["cp", "-rl", *wanted, own], stderr=subprocess.DEVNULL).returncode:
            subprocess.run(["cp", "-rf", *wanted, own], check=True)
        _plain.append(os.path.join(where, "bin", "python3"))
        assert module_version(_plain[0], "IPython") is None
    return _plain[0]


# ---- a long-lived program ----------------------------------------------------------------------------------


class Driver:
    """`workcell run --json --cells`: cells go in and results come out while the program lives."""

    def __init__(self, *flags, python=None, executor=None, cwd=None, env=None, pool=0, events=True,
                 preexec_fn=None, prefix=(), grace=30):
        # A busy machine may be slow to let an interrupted kernel come to its end; who waits for the kill says so.
        argv = list(prefix) + [BIN, "run", "--json", "--cells", "--python", python or bare_python(), "--grace", str(grace)]
        if events:
            argv.append("--events")
        if pool is not None:
            argv += ["--pool", str(pool)]
        if executor:
            argv += ["--executor", executor]
        argv += [str(flag) for flag in flags]
        self.argv, self.executor = argv, executor
        self.stderr = tempfile.TemporaryFile()
        self.others = {pid for pid in processes() if comm_of(pid) == "deno"} if executor == "deno" else ()
        self.process = popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr,
                             env=env if env is not None else host_environment(), cwd=cwd,
                             preexec_fn=preexec_fn)
        self.pid = self.process.pid
        self.events = []
        self.spawner = self.zygote = None
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def stderr_text(self):
        self.stderr.seek(0)
        return self.stderr.read().decode("utf-8", "replace")

    def send(self, obj):
        try:
            self.process.stdin.write(json.dumps(obj).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(self.end_text()) from None

    def end_text(self):
        return "the program ended with %r; stderr: %s" % (self.process.wait(DEADLINE), self.stderr_text())

    def read(self, deadline=DEADLINE):
        """The next object; AssertionError when the program ends or hangs instead."""
        try:
            line = self.lines.get(timeout=deadline)
        except queue.Empty:
            raise AssertionError("no answer within %g s; stderr: %s" % (deadline,
                                                                        self.stderr_text())) from None
        if line is None:
            raise AssertionError(self.end_text())
        return json.loads(line)

    def answer(self, deadline=DEADLINE):
        """The next result or answer to an op; events before it are kept."""
        while True:
            obj = self.read(deadline)
            if obj.get("event") == "result":
                del obj["event"]
                return obj
            if "event" not in obj:
                return obj
            self.events.append(obj)

    def next_event(self, match, deadline=DEADLINE):
        """Takes and returns the first event for which match(event) holds."""
        end = time.monotonic() + deadline
        while True:
            for index, event in enumerate(self.events):
                if match(event):
                    return self.events.pop(index)
            assert time.monotonic() < end, "no such event; got %r" % self.events
            obj = self.read(end - time.monotonic())
            assert obj.get("event", "result") != "result", "expected an event, got %r" % obj
            self.events.append(obj)

    def start(self, code, timeout=None):
        cell = {"code": code}
        if timeout is not None:
            cell["timeout"] = timeout
        self.send(cell)

    def run(self, code, timeout=None, deadline=DEADLINE):
        self.start(code, timeout)
        return self.answer(deadline)

    def value(self, code):
        result = self.run(code)
        assert "error" in result and result["error"] is None, result
        return result["value"]

    def interrupt(self):
        self.send({"op": "interrupt"})

    def reset(self, deadline=DEADLINE):
        self.send({"op": "reset"})
        obj = self.answer(deadline)
        assert obj == {"op": "reset", "ok": True}, obj

    # -- its processes: the spawner may have left the program's own tree, so it is found from the kernel up

    def kernel_pid(self):
        if self.executor == "deno":
            # What runs the code has no number of its own; its process is Deno's, and was not there before.
            self.value("1")
            found = [p.pid for p in descendants(os.getpid()) if comm_of(p.pid) == "deno" and p.pid not in self.others]
            assert len(found) == 1, found
            return found[0]
        if self.executor != "sandbox":
            return self.value("__import__('os').getpid()")
        # It has a number of its own in its pid namespace; from outside it is found by a name it gives itself.
        mark = "wc" + os.urandom(6).hex()
        prctl = "__import__('ctypes').CDLL(None).prctl(15, %r)"
        assert self.value(prctl % mark.encode()) == 0
        found = [pid for pid in processes() if comm_of(pid) == mark]
        assert self.value(prctl % b"python3") == 0 and len(found) == 1, found
        return found[0]

    def locate(self):
        """Finds spawner and zygote.  Before either is killed, and with a pool of 0."""
        if self.executor == "inprocess":
            # No kernel below it: it is one that no other driver has.
            self.value("1")
            others = {pid for driver in shared_drivers for pid in getattr(driver, "spawners", None) or {driver.spawner}}
            self.spawner, = [p.pid for p in processes().values() if p.ppid in (os.getpid(), self.pid) and p.state not in "ZX"
                             and p.pid not in others and "workcell-spawner" in p.cmdline]
            return self.pid
        if self.executor == "container":
            # All of it is below the container engine.
            self.container = self.run("1")["isolation"]["container"]
            return 0
        chain = [self.kernel_pid()]
        table = processes()
        while table[chain[-1]].ppid not in (0, 1, os.getpid(), self.pid):
            chain.append(table[chain[-1]].ppid)
        self.spawner = chain[-1]
        assert "spawner" in table[self.spawner].cmdline, table[self.spawner]
        if self.executor in ("deno", "jupyter"):
            return chain[0]  # a program of the spawner's; there is no zygote
        found = [p.pid for p in table.values() if p.ppid == self.spawner and p.state not in "ZX"
                 and p.pid != chain[0] and "zygote.py" in p.cmdline]
        assert len(found) == 1, [table[pid] for pid in found]
        self.zygote = found[0]
        return chain[0]

    def family(self, table=None):
        """What lives below program and spawner, the spawner included."""
        table = below(os.getpid()) if table is None else table
        found = {p.pid: p for p in descendants(self.pid, table)}
        if self.spawner:
            found.update((p.pid, p) for p in descendants(self.spawner, table))
            if self.spawner in table and table[self.spawner].state not in "ZX":
                found[self.spawner] = table[self.spawner]
        return list(found.values())

    def close(self, deadline=DEADLINE):
        """Ends the input and waits; returns the exit status."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            status = self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("does not end when its input does") from None
        self.reader.join(deadline)
        self.process.stdout.close()
        text = self.stderr_text()
        self.stderr.close()
        for sign in ("AddressSanitizer", "LeakSanitizer", "runtime error:"):
            assert sign not in text, text
        return status

    def kill(self):
        """kill -9 of the host."""
        self.process.kill()
        self.process.wait()
        self.reader.join(DEADLINE)
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if self.process.poll() is None:
            if kind is None:
                self.close()
            else:
                self.kill()
        elif not self.process.stdout.closed:
            self.kill()


# ---- a terminal --------------------------------------------------------------------------------------------


class Screen:
    """A program in a tmux of its own."""
    numbers = itertools.count()

    def __init__(self, folder, env, *argv):
        # Never the socket of another one: its server may be about to end.
        self.socket, self.env = str(folder / ("tmux%d" % next(self.numbers))), env
        command = " ".join("'%s'" % each for each in argv)
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "exec " + command)

    def tmux(self, *args):
        return subprocess.run(["tmux", "-S", self.socket, *args], env={**self.env, "TERM": "xterm-256color"}, check=True, timeout=DEADLINE,
                              capture_output=True, text=True).stdout

    def press(self, *keys):
        for key in keys:
            self.tmux("send-keys", key)

    def type(self, text):
        self.tmux("send-keys", "-l", text)

    def paste(self, text):
        self.tmux("set-buffer", text)
        self.tmux("paste-buffer", "-p")

    def lines(self):
        return [line.rstrip() for line in self.tmux("capture-pane", "-p").rstrip("\n").split("\n")]

    def coloured(self):
        return self.tmux("capture-pane", "-p", "-e")

    def wait(self, *wanted):
        """Until the last lines are these, each a regular expression."""
        def seen():
            lines = self.lines()
            while lines and not lines[-1]:
                lines.pop()
            last = lines[-len(wanted):]
            return len(last) == len(wanted) and all(re.fullmatch(pattern, line) for pattern, line in zip(wanted, last))
        wait_until(seen, lambda: "%r not on the screen:\n%s" % (wanted, "\n".join(self.lines())), min(DEADLINE, 15))

    def close(self):
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], env=self.env, capture_output=True)


class Terminal:
    """A program on a pseudo-terminal of its own."""

    def __init__(self, *args, env=None, cwd=None, program=None):
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))

        def take_terminal():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.fd = parent
        self.process = popen([program or BIN] + [str(arg) for arg in args], stdin=child, stdout=child, stderr=child,
                             env=env if env is not None else host_environment(), cwd=cwd,
                             start_new_session=True, preexec_fn=take_terminal)
        os.close(child)
        self.pid = self.process.pid
        self.seen = ""
        self.pending = b""

    def _fill(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return None
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        self.seen += data.decode("utf-8", "replace")
        return data

    @property
    def plain(self):
        """What was written, without the escape sequences of line editing."""
        text = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[=>()][0-9A-Z]?|\x1b\][^\x07]*\x07", "", self.seen)
        return text.replace("\r\n", "\n")

    def expect(self, pattern, deadline=DEADLINE):
        """Reads until pattern is found in what came since the last expect; returns the match."""
        end = time.monotonic() + deadline
        while True:
            found = re.search(pattern, self.plain, re.M)
            if found:
                rest = self.plain[found.end():]
                self.seen = rest
                return found
            left = end - time.monotonic()
            assert left > 0, "%r not seen in %r" % (pattern, self.plain)
            data = self._fill(left)
            assert data != b"", "ended before %r; got %r" % (pattern, self.plain)

    def send(self, text):
        os.write(self.fd, text.encode())

    def wait_end(self, deadline=DEADLINE):
        """Drains the terminal until the program has ended; returns the exit status."""
        end = time.monotonic() + deadline
        while self.process.poll() is None:
            assert time.monotonic() < end, "does not end; got %r" % self.plain
            self._fill(0.02)
        while self._fill(0):  # what it wrote last
            pass
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.fd)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


# ---- memory cgroups ----------------------------------------------------------------------------------------


class MemoryCgroup:
    """A cgroup with a memory limit, v1 or v2.  None of the methods runs in a child but join()."""

    def __init__(self, limit_bytes):
        name = "workcell-test-%d" % os.getpid()
        if os.path.isdir("/sys/fs/cgroup/memory"):
            self.path, limit = "/sys/fs/cgroup/memory/" + name, "memory.limit_in_bytes"
        else:
            with open("/sys/fs/cgroup/cgroup.controllers", encoding="ascii") as file:
                if "memory" not in file.read().split():
                    raise OSError("no memory controller")
            with open("/sys/fs/cgroup/cgroup.subtree_control", "w", encoding="ascii") as file:
                file.write("+memory")
            self.path, limit = "/sys/fs/cgroup/" + name, "memory.max"
        os.mkdir(self.path)
        self._write(limit, limit_bytes)

    def _write(self, name, value):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as file:
            file.write(str(value))

    def join(self):
        self._write("cgroup.procs", os.getpid())

    def remove(self):
        def gone():
            reap_orphans()
            try:
                os.rmdir(self.path)
            except FileNotFoundError:
                pass
            except OSError:
                return False
            return True
        wait_until(gone, "cgroup %s is empty" % self.path)


def end_process(process, sig=signal.SIGKILL):
    """Ends a process listed by processes(), unless its pid was taken over by another one."""
    now = read_process(process.pid)
    if now and now.key == process.key:
        try:
            os.kill(process.pid, sig)
        except ProcessLookupError:
            pass


# In a kernel: frames past the kernel's own package. `frame` makes one, `fd` is the frame socket.
FRAMES = r'''
import json, os, select, socket, stat, struct, sys
def find_socket():
    for name in sorted(os.listdir('/proc/self/fd'), key=int):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                return int(name)
        except OSError:
            pass
fd = find_socket()
RESULT, DISPLAY, DOORBELL, CALL, READY = 66, 67, 68, 69, 65
def frame(kind, text=b'', raw=b'', ident=0, magic=0x57, version=1, flags=0, ring=0, json_size=None, raw_size=None):
    return struct.pack('<BBBBIIIQ', magic, version, kind, flags, ident, len(text) if json_size is None else json_size,
                       len(raw) if raw_size is None else raw_size, ring) + text + raw
def send(data):
    view = memoryview(data)
    while view:
        select.select([], [fd], [])
        try:
            view = view[os.write(fd, view):]
        except BlockingIOError:
            pass
'''

INSTALL_SECONDS = 240


def find_uv():
    """uv stands in scripts/test-requirements.txt, so the tests' own venv has it."""
    folders = [os.environ.get("WORKCELL_TEST_UV", ""), os.path.dirname(PYTHON)]
    found = shutil.which("uv", path=os.pathsep.join(filter(None, folders))) or shutil.which("uv")
    assert found, "there is no uv; scripts/setup.sh test makes a venv that has it"
    return os.path.realpath(found)


def slow(driver, code):
    """The value of a cell that installs something."""
    result = driver.run(code, deadline=INSTALL_SECONDS)
    assert result["error"] is None, result
    return result["value"]


def slow_error(driver, code):
    result = driver.run(code, deadline=INSTALL_SECONDS)
    assert result["error"] is not None, result
    return result["error"]
