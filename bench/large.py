"""1 GB of live data: fork and rewind of a session beside cloudpickle of the same namespace and CRIU of a process that has it.

    PYTHONPATH=build/python-site python bench/large.py [--mb N] [--rounds N]

The data are Python objects as code makes them: half of it bytes of 1 kB in a list, a quarter texts in lists in a dict, a quarter in one
bytearray.  A fork and a rewind are timed to the result of `1+1`; cloudpickle to the end of dumps() and loads(), in memory; CRIU to the end of
`criu dump` and `criu restore`, to a folder of $TMPDIR.  What cannot run here is named with the reason.
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

DATA = """
data = {{"rows": [bytes([i % 251]) * 1000 for i in range({mb} * 500)],
        "texts": {{i: ["%d-%d" % (i, k) + "x" * 40 for k in range(20)] for i in range({mb} * 130)}},
        "block": bytearray(b"x") * ({mb} * 250_000)}}
"""


def timed(work):
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ours(mb, rounds):
    from workcell.sync import Session

    forks, rewinds = [], []
    with tempfile.TemporaryDirectory() as folder, Session(folder) as session:
        def fork():
            with session.fork() as made:
                assert made.run("1+1").value == 2
                forks.append(time.perf_counter() - began)

        def rewind():
            session.rewind("point")
            assert session.run("1+1").value == 2

        session.run(DATA.format(mb=mb)).raise_for_error()
        size = session.run("int(open('/proc/self/statm').read().split()[1]) * 4096").value
        for _ in range(rounds):
            began = time.perf_counter()
            fork()
        bare = [session.run("import os, time\nbegan = time.perf_counter()\npid = os.fork()\nif pid == 0: os._exit(0)\nstatus = os.waitpid(pid, 0)\n"
                            "time.perf_counter() - began").value for _ in range(rounds)]
        session.checkpoint("point")
        for _ in range(rounds):
            session.run("data['rows'][0] = b''").raise_for_error()
            rewinds.append(timed(rewind))
    print("memory of the session: %.2f GB" % (size / 1e9))
    return {"fork": statistics.median(forks), "rewind": statistics.median(rewinds), "bare os.fork()": statistics.median(bare)}


def with_cloudpickle(mb):
    try:
        import cloudpickle
    except ImportError as missing:
        return str(missing)
    namespace = {}
    exec(DATA.format(mb=mb), namespace)
    namespace.pop("__builtins__")
    kept = []
    seconds = timed(lambda: kept.append(cloudpickle.loads(cloudpickle.dumps(namespace))))
    assert len(kept[0]["data"]["rows"]) == mb * 500
    return seconds


def with_criu(mb):
    program = shutil.which("criu")
    if not program:
        return "criu is not installed"
    check = subprocess.run([program, "check"], capture_output=True, text=True)
    if check.returncode:
        # The first line is the cause; the others follow from it.
        return "criu check: " + ((check.stderr or check.stdout).strip().splitlines() or ["status %d" % check.returncode])[0]
    with tempfile.TemporaryDirectory() as folder:
        ready = os.path.join(folder, "ready")
        process = subprocess.Popen([sys.executable, "-c", DATA.format(mb=mb) + "\nimport signal; open(%r, 'w').close(); signal.pause()" % ready],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        while not os.path.exists(ready) and process.poll() is None:
            time.sleep(0.1)
        seconds = 0.0
        try:
            for command in (["dump", "-t", str(process.pid)], ["restore", "-d"]):
                began = time.perf_counter()
                done = subprocess.run([program, *command, "-D", folder], capture_output=True, text=True)
                seconds += time.perf_counter() - began
                if done.returncode:
                    return "criu %s: %s" % (command[0], (done.stderr.strip().splitlines() or ["status %d" % done.returncode])[-1])
                if command[0] == "dump":
                    process.wait()  # its pid is free for the restored one
            os.kill(process.pid, signal.SIGKILL)
            return seconds
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found = ours(options.mb, options.rounds)
    others = {"cloudpickle": with_cloudpickle(options.mb), "CRIU": with_criu(options.mb)}
    for name, seconds in found.items():
        print("%-16s %8.1f ms" % (name, seconds * 1e3))
    for name, seconds in others.items():
        if isinstance(seconds, str):
            print("%-16s skipped: %s" % (name, seconds))
            continue
        print("%-16s %8.1f ms; %.0f times a fork, %.0f times a rewind (asked for: 100)"
              % (name, seconds * 1e3, seconds / found["fork"], seconds / found["rewind"]))


if __name__ == "__main__":
    main()
