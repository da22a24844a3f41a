"""The peer of the benchmark: the same measures, taken of ipykernel through jupyter_client.

Run by `workcell bench` with the interpreter that Workcell itself was measured on, so that both run the same
Python.  Prints one JSON object on stdout with every value measured (report.py makes the percentiles, for all
sides alike); what it is doing goes to stderr.

    python3 peer_ipykernel.py [--quick] [--only ROW]

A cell counts as done when the reply came *and* the kernel said it is idle again: only then is all of its
output there, and Workcell's result promises just that.  Every answer is checked.  Choices that could go
either way are made in the peer's favour: restarts kill instead of asking politely, the files a start needs
are in the page cache, and kernels that are measured run alone.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile
import time

ROWS = ("paused-cell", "paused-chunk", "open", "cell", "reset", "memory", "stdout", "first-chunk")
PAUSE = 0.1  # seconds; as in Workcell's rows with pauses
TIMEOUT = 60  # seconds; a kernel that is silent for longer has failed
LINE_BYTES = 100  # with the newline, as in Workcell's row
MEASURED_STDOUT_BYTES = 10_000_000


class Wrong(Exception):
    """The kernel answered something else than it should have."""


def say(text):
    # On a terminal workcell-bench has drawn its progress into this line.
    print(("\r\x1b[K" if sys.stderr.isatty() else "") + "peer: " + text, file=sys.stderr, flush=True)


def private_bytes(pid):
    total = 0
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        for line in rollup:
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                total += int(line.split()[1]) * 1024
    return total


def run(client, code):
    """Runs one cell until reply and idle are there.  Returns (text/plain of the value or None, stdout bytes,
    nanoseconds to the first chunk or None)."""
    began = time.perf_counter_ns()
    msg_id = client.execute(code)
    value, stdout_bytes, first_chunk = None, 0, None
    while True:
        message = client.get_iopub_msg(timeout=TIMEOUT)
        if message["parent_header"].get("msg_id") != msg_id:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            if first_chunk is None:
                first_chunk = time.perf_counter_ns() - began
            if content["name"] == "stdout":
                stdout_bytes += len(content["text"].encode())
        elif kind == "execute_result":
            value = content["data"]["text/plain"]
        elif kind == "error":
            raise Wrong(f"{code!r} raised {content['ename']}: {content['evalue']}")
        elif kind == "status" and content["execution_state"] == "idle":
            break
    while True:
        reply = client.get_shell_msg(timeout=TIMEOUT)
        if reply["parent_header"].get("msg_id") == msg_id:
            break
    if reply["content"]["status"] != "ok":
        raise Wrong(f"{code!r} ended with status {reply['content']['status']}")
    return value, stdout_bytes, first_chunk


def expect(client, code, wanted):
    value = run(client, code)[0]
    if value != wanted:
        raise Wrong(f"{code!r} gave {value!r}, not {wanted!r}")


class Kernel:
    """start_new_kernel() as jupyter_client documents it, default transport (TCP on the loopback)."""

    log = None  # an open file: their warnings are no part of the report, but a failure shows how it ends

    def __enter__(self):
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(
            startup_timeout=TIMEOUT, kernel_name="python3", stdout=self.log, stderr=self.log)
        return self

    def __exit__(self, *exc):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def check_interpreter(self):
        got = run(self.client, "import sys; sys.executable")[0]
        if got != repr(sys.executable):
            raise Wrong(f"the python3 kernelspec starts {got}, not {sys.executable}; remove the kernelspec")

    def pid(self):
        return int(run(self.client, "import os; os.getpid()")[0])


def measure_open(rounds):
    with Kernel() as kernel:  # fills the page cache and proves that the interpreter is the right one
        kernel.check_interpreter()
    nanos = []
    for _ in range(rounds):
        began = time.perf_counter_ns()
        with Kernel() as kernel:
            expect(kernel.client, "1+1", "2")
            nanos.append(time.perf_counter_ns() - began)
    return nanos


def measure_cell(rounds, pause=0):
    with Kernel() as kernel:
        kernel.check_interpreter()
        expect(kernel.client, "kept = 41", None)
        for _ in range(min(rounds, 20)):
            expect(kernel.client, "1+1", "2")
        nanos = []
        for _ in range(rounds):
            time.sleep(pause)
            began = time.perf_counter_ns()
            expect(kernel.client, "1+1", "2")
            nanos.append(time.perf_counter_ns() - began)
        expect(kernel.client, "kept + 1", "42")
    return nanos


def measure_first_chunk(rounds, pause=0):
    """Of a cell that goes on after it has printed. Without flush=True it would be 200 ms."""
    with Kernel() as kernel:
        kernel.check_interpreter()
        expect(kernel.client, "import time", None)
        nanos = []
        for number in range(-5, rounds):
            time.sleep(pause)
            took = run(kernel.client, "print('x', flush=True)\ntime.sleep(0.005)")[2]
            if took is None:
                raise Wrong("a cell that prints sent no output")
            if number >= 0:
                nanos.append(took)
    return nanos


def measure_reset(rounds):
    nanos = []
    with Kernel() as kernel:
        kernel.check_interpreter()
        for _ in range(rounds):
            expect(kernel.client, "kept = 1", None)
            began = time.perf_counter_ns()
            kernel.manager.restart_kernel(now=True)
            kernel.client.wait_for_ready(timeout=TIMEOUT)
            expect(kernel.client, "1+1", "2")
            nanos.append(time.perf_counter_ns() - began)
            expect(kernel.client, "'kept' in globals()", "False")
    return nanos


def measure_memory(count):
    """One kernel is there already, so that what the next ones share with it (file pages) is not counted."""
    kernels, sizes = [], []
    try:
        for _ in range(count + 1):
            kernels.append(Kernel().__enter__())
            expect(kernels[-1].client, "import numpy, pandas", None)
            expect(kernels[-1].client, "x = 1", None)
        for kernel in kernels[1:]:
            sizes.append(private_bytes(kernel.pid()))
    finally:
        for kernel in kernels:
            kernel.__exit__()
    return sizes


def measure_stdout(rounds, total_bytes):
    lines = total_bytes // LINE_BYTES
    code = f"line = 'x' * {LINE_BYTES - 1}\nfor i in range({lines}): print(line)"
    rates = []
    with Kernel() as kernel:
        kernel.check_interpreter()
        for _ in range(rounds):
            began = time.perf_counter_ns()
            got = run(kernel.client, code)[1]
            took = time.perf_counter_ns() - began
            if got != lines * LINE_BYTES:
                raise Wrong(f"{got} bytes of stdout arrived, {lines * LINE_BYTES} were printed")
            rates.append(got / took * 1e9)
    return rates


def have(module):
    try:
        __import__(module)
    except ImportError:
        return False
    return True


def measure(args):
    rows = {}
    wanted = [args.only] if args.only else ROWS
    if "paused-cell" in wanted:
        say("cells with pauses")
        rows["paused-cell"] = measure_cell(10 if args.quick else 40, PAUSE)
    if "paused-chunk" in wanted:
        say("first chunks with pauses")
        rows["paused-chunk"] = measure_first_chunk(10 if args.quick else 40, PAUSE)
    if "open" in wanted:
        say("starting kernels")
        rows["open"] = measure_open(3 if args.quick else 5)
    if "cell" in wanted:
        say("cells")
        rows["cell"] = measure_cell(60 if args.quick else 300)
    if "reset" in wanted:
        say("restarts")
        rows["reset"] = measure_reset(3 if args.quick else 5)
    if "memory" in wanted:
        if have("numpy") and have("pandas"):
            say("memory of one more kernel")
            rows["memory"] = measure_memory(2 if args.quick else 3)
        else:
            say("memory left out: this interpreter lacks numpy or pandas")
    if "stdout" in wanted:
        say("stdout")
        if args.quick:
            rows["stdout"] = measure_stdout(1, MEASURED_STDOUT_BYTES // 5)
        else:
            rows["stdout"] = measure_stdout(3, MEASURED_STDOUT_BYTES)
    if "first-chunk" in wanted:
        say("first chunks")
        rows["first-chunk"] = measure_first_chunk(20 if args.quick else 100)
    return rows


def main():
    parser = argparse.ArgumentParser(description="Measures ipykernel through jupyter_client.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", choices=ROWS, help="one measure")
    args = parser.parse_args()

    try:
        import ipykernel
        import jupyter_client
    except ImportError as error:
        print(json.dumps({"ok": False, "missing": error.name, "rows": {}}))
        return 0

    # Kernels would otherwise leave history and connection files in the home of whoever runs the benchmark,
    # and a kernelspec or a profile found there would change what is measured.
    scratch = tempfile.mkdtemp(prefix="workcell-bench-peer-")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        os.environ[name] = os.path.join(scratch, name.lower())
        os.mkdir(os.environ[name])
    Kernel.log = open(os.path.join(scratch, "kernels.log"), "a+", errors="replace")
    try:
        rows = measure(args)
    except Exception as error:
        say(f"failed: {type(error).__name__}: {error}")
        Kernel.log.seek(0)
        say("the kernels' log ends with:\n" + "".join(Kernel.log.readlines()[-20:]))
        return 1
    finally:
        Kernel.log.close()
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps({
        "ok": True,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "ipykernel": ipykernel.__version__,
        "jupyter_client": jupyter_client.__version__,
        "rows": rows,
    }))
    return 0


if __name__ == "__main__":
    sys.exit(main())
