#!/usr/bin/env python3
"""Kernels of Jupyter through jupyter_client: Workcell's beside ipykernel's, and beside one that only answers.

    python3 bench/jupyter.py [--rounds N] [WORKCELL]     with a Python that has jupyter_client and ipykernel

`info`: from start_kernel() until the kernel has answered kernel_info_request; `first cell`: until it has run 1+1 too. wait_for_ready() is
not used: it waits 200 ms by itself after the answer. `kernel's part`: `first cell` without the time that jupyter_client takes with a kernel
that only answers (bench/jupyter_floor.c), which is the floor: start_kernel() alone sleeps for 10 ms. `cell`: the round trip of 1+1, until
reply and idle are there. Prints medians, and how many times faster than ipykernel.

`floor-provisioner`: the same kernel, started before the clock, which a provisioner of jupyter_client hands out: no process is started, no port
looked for and no file written. `jupyter_client alone` is the part of it until the request is sent: it is spent before any kernel can answer.
`workcell-provisioner`: Workcell's kernel (`subprocess`) handed out in the same way, which is what a provisioner of its own could reach.

Kernels of a row are started a second apart, by one process, as a Jupyter server starts them. Rows with "cold" are without a process that was
kept ready (--keep-ready 0).
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TIMEOUT = 60
PAUSE = 1.0
FLOOR = "floor"
HANDED = "floor-provisioner"
OURS = "workcell-provisioner"
ALONE = "jupyter_client alone"
PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


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


def provisioner(argv, folder):
    """A class of provisioners that hand out a kernel which is up already: prepare() starts one, by these words and its connection file."""
    import socket
    import uuid

    from jupyter_client.provisioning import LocalProvisioner

    class Provisioner(LocalProvisioner):
        ready = []

        @classmethod
        def prepare(cls):
            sockets = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
            ports = {name: each.getsockname()[1] for name, each in zip(PORTS, sockets)}
            for each in sockets:
                each.close()
            info = {**ports, "ip": "127.0.0.1", "transport": "tcp", "key": str(uuid.uuid4()), "signature_scheme": "hmac-sha256"}
            path = os.path.join(folder, "ready-%s.json" % info["key"])
            with open(path, "w") as file:
                json.dump(info, file)
            cls.ready.append((subprocess.Popen([*argv, path], start_new_session=True), info))
            time.sleep(PAUSE)

        async def pre_launch(self, **options):
            self.process, info = self.ready.pop()
            self.pid = self.pgid = self.process.pid
            for name in PORTS:
                setattr(self.parent, name, info[name])
            self.parent.session.key = info["key"].encode()
            self.connection_info = self.parent.get_connection_info()
            return {"cmd": [], **options}

        async def launch_kernel(self, cmd, **options):
            return self.connection_info

    return Provisioner


def start(name):
    """(manager, client, seconds until it was asked, until it was ready, and until the first cell had run)"""
    from jupyter_client.manager import KernelManager

    began = time.perf_counter()
    manager = KernelManager(kernel_name=name)
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    ident = client.kernel_info()
    asked = time.perf_counter() - began
    while client.get_shell_msg(timeout=TIMEOUT)["parent_header"].get("msg_id") != ident:
        pass
    ready = time.perf_counter() - began
    ident = client.execute("1+1")  # iopub may not be connected yet, so only the reply counts
    while client.get_shell_msg(timeout=TIMEOUT)["parent_header"].get("msg_id") != ident:
        pass
    return manager, client, asked, ready, time.perf_counter() - began


def measure(name, rounds, prepare):
    ready, first, cells, alone = [], [], [], []
    for i in range(rounds + 1):
        prepare()
        manager, client, until_asked, until_ready, until_first = start(name)
        if i:  # the first one fills the page cache
            alone.append(until_asked)
            ready.append(until_ready)
            first.append(until_first)
        if i == rounds and name not in (FLOOR, HANDED):
            client.wait_for_ready(timeout=TIMEOUT)
            for each in range(320):
                began = time.perf_counter()
                run(client)
                if each >= 20:
                    cells.append(time.perf_counter() - began)
        time.sleep(PAUSE)
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return [statistics.median(each) * 1000 if each else None for each in (ready, first, cells, alone)]


def install(program, data):
    """The kernels in the order of the rows: their names, and what is called before each start."""
    names = []
    for executor in ("subprocess", "sandbox"):
        for kind, flags in (("", []), ("-cold", ["--keep-ready", "0"])):
            names.append("workcell-" + executor + kind)
            subprocess.run([program, "jupyter", "install", "--name", names[-1], "--executor", executor, "--python", sys.executable, *flags],
                           check=True, stdout=subprocess.DEVNULL)
    floor = os.path.join(os.path.dirname(program), "jupyter_floor")
    os.mkdir(os.path.join(data, "kernels", FLOOR))
    with open(os.path.join(data, "kernels", FLOOR, "kernel.json"), "w") as file:
        json.dump({"argv": [floor, "{connection_file}"], "display_name": FLOOR, "language": "none"}, file)
    kernels = dict.fromkeys(["python3", *names, FLOOR], lambda: None)
    ours = [program, "jupyter", "kernel", "--executor", "subprocess", "--python", sys.executable, "--keep-ready", "0", "-f"]
    from jupyter_client.provisioning import KernelProvisionerFactory

    for name, argv in ((HANDED, [floor]), (OURS, ours)):
        handed = provisioner(argv, data)
        KernelProvisionerFactory.instance().provisioners[name] = argparse.Namespace(name=name, load=lambda handed=handed: handed)
        os.mkdir(os.path.join(data, "kernels", name))
        with open(os.path.join(data, "kernels", name, "kernel.json"), "w") as file:
            json.dump({"argv": [*argv, "{connection_file}"], "display_name": name, "language": "none",
                       "metadata": {"kernel_provisioner": {"provisioner_name": name}}}, file)
        kernels[name] = handed.prepare
    return kernels


def show(rows):
    print("%-26s %10s %14s %17s %10s" % ("kernel", "info ms", "first cell ms", "kernel's part ms", "cell ms"))
    for name, (info, first, cell, _) in rows.items():
        row = [info, first, None if name in (FLOOR, HANDED) else first - rows[FLOOR][1], cell]
        if name == "python3":
            peer = row
        times = "" if name == "python3" else "   " + " / ".join("-" if own is None else "%.1fx" % (other / own) for other, own in zip(peer, row))
        print("%-26s %10.1f %14.1f %17s %10s%s" % (name, info, first, *("-" if each is None else "%.2f" % each for each in row[2:]), times))
    alone = rows[HANDED][3]
    print("%-26s %10.1f   %.1fx; a 20th of the peer is %.1f ms" % (ALONE, alone, peer[0] / alone, peer[0] / 20))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("workcell", nargs="?", default=os.environ.get("WORKCELL_BIN") or os.path.join("build", "workcell"))
    args = parser.parse_args()
    data = tempfile.mkdtemp(prefix="workcell-bench-jupyter-")
    work = os.path.join(data, "work")
    os.mkdir(work)
    os.environ.update(JUPYTER_DATA_DIR=data, JUPYTER_RUNTIME_DIR=os.path.join(data, "runtime"), IPYTHONDIR=os.path.join(data, "ipython"))
    try:
        kernels = install(os.path.abspath(args.workcell), data)
        os.chdir(work)
        rows = {name: measure(name, args.rounds, prepare) for name, prepare in kernels.items()}
    finally:
        os.chdir("/")
        shutil.rmtree(data, ignore_errors=True)
    show(rows)


if __name__ == "__main__":
    main()
