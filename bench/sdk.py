"""The benchmark of the Python SDK: Workcell's CodeExecutor beside ipybox and beside jupyter_client with ipykernel, in one run.

    python3 bench/sdk.py [--quick] [--json FILE] BUILD

BUILD is the build folder, whose workcell is measured. ipybox is installed in BUILD/ipybox-venv, when it is not there yet;
jupyter_client and ipykernel are those of this interpreter. A peer that cannot be had is left out, and its column says why.
The last lines are what the SDK adds to the C API: a cell through the SDK, awaited
and waited for, less a cell through the binding's cell_session_run(), with events off, measured in turns.
"""
import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = os.path.dirname(os.path.abspath(__file__))
SERVER = os.path.join(HERE, "mcp_server.py")
# The tool of bench/mcp_server.py, and how Python writes its arguments.
TOOL = ("add", "a=1, b=2")
# Times faster than ipybox, and less memory; 0: nothing is asked for.
WANTED = {"paused-cell": 0, "paused-chunk": 0, "paused-tool": 0, "open": 200, "cell": 200, "first-chunk": 20, "tool": 20, "reset": 200, "memory": 30}
OVERHEAD_US = 30
# Between two cells or calls of the rows with pauses, as an agent sends them.
IDLE = 0.1
# Between two starts: the pool may refill, as it does between sessions that do not all come at one instant.
PAUSE = 0.05


def private_bytes(pid):
    with open("/proc/%d/smaps_rollup" % pid) as rollup:
        return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith(("Private_Clean:", "Private_Dirty:")))


async def measure_memory(make, sessions=10):
    """Of one session more: what its kernel has for itself, and what the host has grown by."""
    opened, before = [], 0
    for i in range(2 + sessions):
        if i == 2:
            before = private_bytes(os.getpid())
        opened.append(make())
        await opened[-1].start()
        await opened[-1].execute("1+1")
    grown = private_bytes(os.getpid()) - before
    kernels = [private_bytes(each.session.executor.core.need_session().kernel_pid()) for each in opened[2:]]
    for each in opened:
        await each.stop()
    return (sum(kernels) + max(grown, 0)) / sessions


async def measure(quick, folder):
    from workcell import ApprovalRequest, CodeExecutionChunk, CodeExecutor, default_engine, generate_mcp_sources

    rows = {name: [] for name in WANTED}
    default_engine().prewarm(sys.executable)
    await generate_mcp_sources("bench", {"command": sys.executable, "args": [SERVER]}, folder / "mcptools")
    for _ in range(20 if quick else 50):
        began = time.perf_counter_ns()
        async with CodeExecutor(images_dir=folder / "images") as executor:
            result = await executor.execute("1+1")
            rows["open"].append(time.perf_counter_ns() - began)
            assert result.text == "2"
        await asyncio.sleep(PAUSE)
    rows["memory"].append(await measure_memory(lambda: CodeExecutor(images_dir=folder / "images")))
    async with CodeExecutor(images_dir=folder / "images") as executor:
        await executor.execute("1+1")
        for _ in range(10 if quick else 40):
            await asyncio.sleep(IDLE)
            began = time.perf_counter_ns()
            await executor.execute("1+1")
            rows["paused-cell"].append(time.perf_counter_ns() - began)
        for _ in range(500 if quick else 3000):
            began = time.perf_counter_ns()
            await executor.execute("1+1")
            rows["cell"].append(time.perf_counter_ns() - began)
        await executor.execute("import time")
        for row, rounds, pause in (("paused-chunk", 10 if quick else 40, IDLE), ("first-chunk", 10 if quick else 30, 0)):
            for _ in range(rounds):
                await asyncio.sleep(pause)
                began, first = time.perf_counter_ns(), None
                async for item in executor.stream("print('x', flush=True)\ntime.sleep(0.05)", chunks=True):
                    if first is None and isinstance(item, CodeExecutionChunk):
                        first = time.perf_counter_ns() - began
                rows[row].append(first)
        code = ("from mcptools.bench.%s import Params, run\nimport time\ntook = []\nfor _ in range(%d):\n    time.sleep(%s)\n"
                "    t = time.perf_counter_ns()\n    run(Params(%s))\n    took.append(time.perf_counter_ns() - t)\n"
                "print(sorted(took)[%d])")
        await executor.execute("from mcptools.bench.%s import Params, run\nrun(Params(%s))" % TOOL)
        for row, rounds, calls, pause in (("paused-tool", 3, 5 if quick else 15, IDLE), ("tool", 5 if quick else 10, 50, 0)):
            for _ in range(rounds):
                async for item in executor.stream(code % (TOOL[0], calls, pause, TOOL[1], calls // 2)):
                    if isinstance(item, ApprovalRequest):
                        await item.accept()
                    elif getattr(item, "text", None):
                        rows[row].append(int(item.text))
        for _ in range(10 if quick else 30):
            began = time.perf_counter_ns()
            await executor.reset()
            rows["reset"].append(time.perf_counter_ns() - began)
            await asyncio.sleep(PAUSE)
    return rows


async def measure_awaited(cells):
    """Microseconds of a cell: (awaited, by the C API alone), one after the other, so that a busy machine hits both alike."""
    import workcell

    sdk, native = [], []
    async with workcell.Session.scratch() as session:
        await session.run("1+1")
        handle = session.executor.core.need_session()
        for _ in range(cells):
            began = time.perf_counter_ns()
            (await session.run("1+1")).value
            between = time.perf_counter_ns()
            handle.run("1+1", 0)
            sdk.append(between - began)
            native.append(time.perf_counter_ns() - between)
    return statistics.median(sdk) / 1e3, statistics.median(native) / 1e3


def measure_waited(cells):
    """The same of the synchronous session."""
    import workcell.sync

    sdk, native = [], []
    with workcell.sync.Session.scratch() as session:
        session.run("1+1")
        handle = session._core.need_session()
        for _ in range(cells):
            began = time.perf_counter_ns()
            session.run("1+1").value
            between = time.perf_counter_ns()
            handle.run("1+1", 0)
            sdk.append(between - began)
            native.append(time.perf_counter_ns() - between)
    return statistics.median(sdk) / 1e3, statistics.median(native) / 1e3


def ipybox_python(build):
    """(an interpreter that has ipybox, None) or (None, why not)."""
    venv, requirements = os.path.join(build, "ipybox-venv"), os.path.join(HERE, "..", "scripts", "ipybox-requirements.txt")
    python, stamp = os.path.join(venv, "bin", "python"), os.path.join(venv, ".requirements")
    with open(requirements) as file:
        wanted = file.read()
    if os.path.exists(stamp) and open(stamp).read() == wanted:
        return python, None
    print("bench: installing ipybox in %s" % venv, file=sys.stderr)
    shutil.rmtree(venv, ignore_errors=True)
    for argv in ([sys.executable, "-m", "venv", venv],
                 [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--prefer-binary", "-r",
                  requirements]):
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        if done.returncode != 0:
            lines = done.stdout.strip().splitlines() or ["status %d" % done.returncode]
            return None, "ipybox could not be installed: " + lines[-1]
    with open(stamp, "w") as file:
        file.write(wanted)
    return python, None


def peer(python, script, quick):
    """(rows, None) or (None, why not)."""
    done = subprocess.run([python, "-W", "ignore", os.path.join(HERE, script)] + (["--quick"] if quick else []),
                          stdout=subprocess.PIPE, env=dict(os.environ, BENCH_TOOL=json.dumps(TOOL), PYTHONPATH=""))
    if done.returncode != 0:
        return None, "%s failed with status %d" % (script, done.returncode)
    answer = json.loads(done.stdout)
    return (answer["rows"], None) if answer["ok"] else (None, "%s is not installed" % answer["missing"])


def shown(name, value):
    if value is None:
        return "-"
    return "%.1f MB" % (value / 1e6) if name == "memory" else "%.3f ms" % (value / 1e6)


def main():
    parser = argparse.ArgumentParser(description="Measures the Python SDK beside its peers.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", help="write what was measured to this file")
    parser.add_argument("build", help="the build folder")
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    sys.path.insert(0, os.path.join(build, "python-site"))
    if args.json:
        args.json = os.path.abspath(args.json)
    python, why_not = ipybox_python(build)
    start = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="workcell-bench-sdk-") as folder:
        os.chdir(folder)
        ours = asyncio.run(measure(args.quick, Path(folder)))
        os.chdir(start)
    cells = 500 if args.quick else 3000
    overhead = {"awaited": asyncio.run(measure_awaited(cells)), "waited": measure_waited(cells)}
    theirs = {"ipybox": peer(python, "peer_ipybox.py", args.quick) if python else (None, why_not),
              "jupyter_client": peer(sys.executable, "peer_ipykernel.py", args.quick)}
    middle = {name: statistics.median(values) for name, values in ours.items()}
    print("%-12s %12s %14s %9s %8s %16s %9s" % ("row", "workcell", "ipybox", "times", "wanted", "jupyter_client", "times"))
    more = {name: sdk - native for name, (sdk, native) in overhead.items()}
    report = {"rows": {}, "overhead_us": more}
    short = []
    for name, value in middle.items():
        line = {"workcell": value}
        cells = ["%-12s %12s" % (name, shown(name, value))]
        for other, width in (("ipybox", 14), ("jupyter_client", 16)):
            values = (theirs[other][0] or {}).get(name)
            found = statistics.median(values) if values else None
            ratio = found / value if found else None
            line[other], line[other + "_times"] = found, ratio
            cells.append("%*s %9s" % (width, shown(name, found), "-" if ratio is None else "%.0f" % ratio))
            if other == "ipybox":
                cells.append("%8d" % WANTED[name])
                if ratio is not None and ratio < WANTED[name]:
                    short.append(name)
        report["rows"][name] = line
        print(" ".join(cells))
    for other, (_, why_not) in theirs.items():
        if why_not:
            print("%s was not measured: %s" % (other, why_not))
    for name, value in more.items():
        print("a cell that is %-8s %.1f us through the SDK, %.1f us through the C API: %.1f us more (at most %d)" % (
            name + ":", *overhead[name], value, OVERHEAD_US))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(dict(report, measured=ours), file)
    if short or max(more.values()) > OVERHEAD_US:
        print("short of what is wanted: %s" % ", ".join(short + [name for name in more if more[name] > OVERHEAD_US]))


if __name__ == "__main__":
    main()
