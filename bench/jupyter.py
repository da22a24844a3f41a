#!/usr/bin/env python3
"""Kernels of Jupyter through jupyter_client: Workcell's beside ipykernel's.

    python3 bench/jupyter.py [--rounds N] [WORKCELL]     with a Python that has jupyter_client and ipykernel

`start`: from start_kernel() until the kernel has answered kernel_info_request and run 1+1. wait_for_ready() is not used: it waits
200 ms by itself after the answer. `cell`: the round trip of 1+1, until reply and idle are there. Prints medians, and how many times faster.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TIMEOUT = 60


def run(client):
    ident = client.execute("1+1")
    value = None
    while True:
        message = client.get_iopub_msg(timeout=TIMEOUT)
        if message["parent_header"].get("msg_id") != ident:
            continue
        if message["msg_type"] == "execute_result":
            value = message["content"]["data"]["text/plain"]
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
    while client.get_shell_msg(timeout=TIMEOUT)["parent_header"].get("msg_id") != ident:
        pass
    assert value == "2", value


def start(name):
    """(manager, client, seconds until ready, seconds until the first cell had run)"""
    from jupyter_client.manager import KernelManager

    began = time.perf_counter()
    manager = KernelManager(kernel_name=name)
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    ident = client.kernel_info()
    while client.get_shell_msg(timeout=TIMEOUT)["parent_header"].get("msg_id") != ident:
        pass
    ready = time.perf_counter() - began
    ident = client.execute("1+1")  # iopub may not be connected yet, so only the reply counts
    while client.get_shell_msg(timeout=TIMEOUT)["parent_header"].get("msg_id") != ident:
        pass
    return manager, client, ready, time.perf_counter() - began


def measure(name, rounds):
    ready, first, cells = [], [], []
    for i in range(rounds + 1):
        manager, client, until_ready, until_first = start(name)
        if i:  # the first one fills the page cache
            ready.append(until_ready)
            first.append(until_first)
        if i == rounds:
            client.wait_for_ready(timeout=TIMEOUT)
            for each in range(320):
                began = time.perf_counter()
                run(client)
                if each >= 20:
                    cells.append(time.perf_counter() - began)
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return [statistics.median(each) * 1000 for each in (ready, first, cells)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("workcell", nargs="?", default=os.environ.get("WORKCELL_BIN") or os.path.join("build", "workcell"))
    args = parser.parse_args()
    data = tempfile.mkdtemp(prefix="workcell-bench-jupyter-")
    work = os.path.join(data, "work")
    os.mkdir(work)
    os.environ.update(JUPYTER_DATA_DIR=data, JUPYTER_RUNTIME_DIR=os.path.join(data, "runtime"), IPYTHONDIR=os.path.join(data, "ipython"))
    program = os.path.abspath(args.workcell)
    try:
        for executor in ("subprocess", "sandbox"):
            subprocess.run([program, "jupyter", "install", "--name", "workcell-" + executor, "--executor", executor, "--python", sys.executable],
                           check=True, stdout=subprocess.DEVNULL)
        os.chdir(work)
        rows = {name: measure(name, args.rounds) for name in ("python3", "workcell-subprocess", "workcell-sandbox")}
    finally:
        os.chdir("/")
        shutil.rmtree(data, ignore_errors=True)
    print("%-22s %12s %16s %12s" % ("kernel", "info ms", "first cell ms", "cell ms"))
    for name, row in rows.items():
        times = "" if name == "python3" else "   " + " / ".join("%.1fx" % (peer / own) for peer, own in zip(rows["python3"], row))
        print("%-22s %12.1f %16.1f %12.2f%s" % (name, *row, times))


if __name__ == "__main__":
    main()
