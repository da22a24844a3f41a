"""The other peer of the SDK's benchmark (bench/sdk.py): the same measures, taken of ipybox by its own API.

    python3 peer_ipybox.py [--quick]

Run by an interpreter that has ipybox. Prints one JSON object: nanoseconds by row, and bytes for `memory`. Every answer is
checked, but for output that ipybox loses now and then (it does not wait for all of it): such a cell counts like the others.
"""
import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

IDLE = 0.1  # seconds between two cells or calls of the rows with pauses
SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mcp_server.py")


def private_bytes(pid):
    with open("/proc/%d/smaps_rollup" % pid) as rollup:
        return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith(("Private_Clean:", "Private_Dirty:")))


def children(pid):
    found = []
    for task in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/children" % (pid, task)) as file:
            for child in file.read().split():
                found += [int(child)] + children(int(child))
    return found


async def measure(quick, folder):
    from ipybox import ApprovalRequest, CodeExecutor, generate_mcp_sources

    rows = {name: [] for name in ("paused-cell", "paused-chunk", "paused-tool", "open", "cell", "first-chunk", "tool", "reset",
                                    "memory")}
    await generate_mcp_sources("bench", {"command": sys.executable, "args": [SERVER]}, folder / "mcptools")
    for _ in range(2 if quick else 4):
        began = time.perf_counter_ns()
        async with CodeExecutor(images_dir=folder / "images") as executor:
            await executor.execute("1+1")
            rows["open"].append(time.perf_counter_ns() - began)
    async with CodeExecutor(images_dir=folder / "images") as executor:
        before = set(children(os.getpid()))
        rows["memory"].append(sum(private_bytes(pid) for pid in before))
        for _ in range(10 if quick else 40):
            await asyncio.sleep(IDLE)
            began = time.perf_counter_ns()
            await executor.execute("1+1")
            rows["paused-cell"].append(time.perf_counter_ns() - began)
        for _ in range(20 if quick else 60):
            began = time.perf_counter_ns()
            await executor.execute("1+1")
            rows["cell"].append(time.perf_counter_ns() - began)
        await executor.execute("import time")
        for row, rounds, pause in (("paused-chunk", 5 if quick else 40, IDLE), ("first-chunk", 5 if quick else 20, 0)):
            for _ in range(rounds):
                await asyncio.sleep(pause)
                began, first = time.perf_counter_ns(), None
                async for item in executor.stream("print('x', flush=True)\ntime.sleep(0.05)", chunks=True):
                    if first is None and type(item).__name__ == "CodeExecutionChunk":
                        first = time.perf_counter_ns() - began
                if first is not None:
                    rows[row].append(first)
        # One cell with many calls: what a call costs, approval included, without the cell around it.
        code = ("from mcptools.bench.%s import Params, run\nimport time\ntook = []\nfor _ in range(%d):\n    time.sleep(%s)\n"
                "    t = time.perf_counter_ns()\n    run(Params(%s))\n    took.append(time.perf_counter_ns() - t)\n"
                "print(sorted(took)[%d])")
        tool, arguments = json.loads(os.environ["BENCH_TOOL"])
        await executor.execute("from mcptools.bench.%s import Params, run\nrun(Params(%s))" % (tool, arguments))
        for row, rounds, calls, pause in (("paused-tool", 3, 5 if quick else 15, IDLE), ("tool", 2 if quick else 5, 20, 0)):
            for _ in range(rounds):
                async for item in executor.stream(code % (tool, calls, pause, arguments, calls // 2)):
                    if isinstance(item, ApprovalRequest):
                        await item.accept()
                    elif getattr(item, "text", None):
                        rows[row].append(int(item.text))
        for _ in range(2 if quick else 4):
            began = time.perf_counter_ns()
            await executor.reset()
            rows["reset"].append(time.perf_counter_ns() - began)
    return rows


def main():
    parser = argparse.ArgumentParser(description="Measures ipybox.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    args = parser.parse_args()
    try:
        import ipybox  # noqa: F401
    except ImportError as error:
        print(json.dumps({"ok": False, "missing": error.name, "rows": {}}))
        return
    with tempfile.TemporaryDirectory(prefix="workcell-bench-ipybox-") as folder:
        os.chdir(folder)
        print(json.dumps({"ok": True, "rows": asyncio.run(measure(args.quick, Path(folder)))}))


if __name__ == "__main__":
    main()
