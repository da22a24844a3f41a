"""durable.py [--quick] [--executor NAME] [--dill] [--criu]: saving and waking a session with numpy and 100 MB of data, and a change of 2 MB.

Each once without and once with waiting for the disk; and what durable: cells adds to a cell. Prints one line a figure, medians of several rounds. Run it with the interpreter of the tests (numpy, pandas; with --dill also dill; with --criu, as root,
criu on PATH: docs/lab/benchmark-diary.md#criu), on a quiet machine; the folder of saved sessions is a temporary one (TMPDIR).
"""
import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.environ.get("WORKCELL_SITE", os.path.join(ROOT, "build", "python-site")))

MAKE = """
import numpy as np, pandas as pd
data = np.random.default_rng(1).normal(size=%d)
frame = pd.DataFrame({"a": range(1000), "b": np.arange(1000.0)})
"""
CHANGE = "data[%d:%d + 262144] += 1"  # 2 MB
DILL = """
import time, sys, dill
exec(%r)
t = time.perf_counter(); dill.dump_session(sys.argv[1]); print((time.perf_counter() - t) * 1000)
t = time.perf_counter(); dill.load_session(sys.argv[1]); print((time.perf_counter() - t) * 1000)
"""


CRIU = """
import signal
exec(%r)
open(%r, "w").close()
signal.pause()
"""


def timed(call):
    begin = time.perf_counter()
    answer = call()
    return (time.perf_counter() - begin) * 1000, answer


def show(name, values, limit=None):
    print("%-54s %8.1f ms%s" % (name, statistics.median(values), "" if limit is None else "   (at most %g)" % limit), flush=True)


def cells(make, folder, mode):
    """Medians of a cell: right after the one before, and after a pause in which that one is saved."""
    from workcell.sync import Session

    options = {"durable": mode} if mode else {}
    with Session(None, make(), saved=folder, **options) as session:
        session.run("import numpy as np, pandas as pd; x = 0").raise_for_error()
        close, paused = [], []
        for _ in range(40):
            close.append(timed(lambda: session.run("x += 1"))[0])
        for _ in range(40):
            time.sleep(0.05)
            paused.append(timed(lambda: session.run("x += 1"))[0])
    return statistics.median(close), statistics.median(paused)


def measure(executor, rounds, folder, sync):
    from workcell import SandboxConfig, SandboxExecutor, SubprocessConfig, SubprocessExecutor
    from workcell.sync import Session

    def make():
        python = sys.executable
        return SandboxExecutor(SandboxConfig(python=python)) if executor == "sandbox" else SubprocessExecutor(SubprocessConfig(python=python))

    saves, wakes, small_saves, small_wakes, size = [], [], [], [], None
    for _ in range(rounds):
        with Session(None, make(), saved=folder, saved_sync=sync) as session:
            session.run(MAKE % (100 * 2**20 // 8)).raise_for_error()
            took, answer = timed(session.hibernate)
            saves.append(took)
            size = answer
        begin = time.perf_counter()
        with Session.wake(answer.session_id, folder, None, make(), saved_sync=sync) as session:
            session.run("float(data[-1])").raise_for_error()
            wakes.append((time.perf_counter() - begin) * 1000)
            for n in range(3):
                at = n * 1000000
                session.run(CHANGE % (at, at)).raise_for_error()
                took, answer = timed(session.hibernate)
                small_saves.append(took)
                took, result = timed(lambda: session.run("float(data[0])"))
                small_wakes.append(took)
        # The pages of a file that is gone are used again; else each round would pay for memory that the machine has never used before.
        shutil.rmtree(folder)
    executor += "" if sync else " (page cache)"
    show("%s: 100 MB saved" % executor, saves, 100)
    show("%s: 100 MB woken, to the first result" % executor, wakes, 100)
    show("%s: 2 MB changed, saved" % executor, small_saves, 10)
    show("%s: 2 MB changed, woken" % executor, small_wakes, 10)
    print("%-54s %8.1f MB, stored %.1f MB" % ("%s: size" % executor, size.bytes / 2**20, size.stored_bytes / 2**20))
    if sync:
        without = cells(make, folder, None)
        for mode in ("cells", "results"):
            close, paused = cells(make, folder, mode)
            print("%-54s %8.2f ms after a pause (without: %.2f, at most 1 more), %.2f back to back (without: %.2f)" % (
                "%s: a cell with durable: %s" % (executor, mode), paused, without[1], close, without[0]), flush=True)


def with_criu(folder):
    """A process with the same data, dumped and restored; to a folder in the page cache, as CRIU waits for no disk."""
    os.mkdir(folder)
    ready = os.path.join(folder, "ready")
    process = subprocess.Popen([sys.executable, "-c", CRIU % (MAKE % (100 * 2**20 // 8), ready)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while not os.path.exists(ready):
            assert process.poll() is None, "the process has ended"
            time.sleep(0.05)
        for command, name in ((["dump", "-t", str(process.pid)], "criu dump"), (["restore", "-d"], "criu restore")):
            took, done = timed(lambda: subprocess.run(["criu", *command, "-D", folder], capture_output=True, text=True))
            if done.returncode:
                raise SystemExit("%s: %s" % (name, (done.stderr.strip().splitlines() or ["status %d" % done.returncode])[-1]))
            show(name, [took])
            process.wait()  # its pid is free for the restored one
        os.kill(process.pid, signal.SIGKILL)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--executor", choices=["sandbox", "subprocess"], action="append")
    parser.add_argument("--dill", action="store_true", help="compare with dill.dump_session()")
    parser.add_argument("--criu", action="store_true", help="compare with criu dump and restore")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "work"))
        os.chdir(os.path.join(folder, "work"))
        for executor in flags.executor or ["sandbox", "subprocess"]:
            for sync in (False, True):
                measure(executor, 1 if flags.quick else 5, os.path.join(folder, "saved"), sync)
        if flags.dill:
            lines = subprocess.run([sys.executable, "-c", DILL % (MAKE % (100 * 2**20 // 8)), os.path.join(folder, "dill")],
                                   check=True, capture_output=True, text=True).stdout.split()
            show("dill.dump_session()", [float(lines[0])])
            show("dill.load_session()", [float(lines[1])])
        if flags.criu:
            with_criu(os.path.join(folder, "criu"))


main()
