"""Container engines for the tests: the one that is up, or where that was asked for a private one of our own, and Podman.

    with docker_engine.engine(say) as env: ...     env: what the tests need, or None and it was said why
    with docker_engine.podman(env, say) as env:    the same with a private Podman, which is given the base image of the other
    docker_engine.py PROGRAM ARGUMENTS...          runs a program with that in its environment, where there is one

A private one has its own socket, data and containers, in build/docker and build/podman; nothing of it is used by others. The base image
is made by debootstrap where there is none, which takes a minute, once.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "build", "docker")
IMAGE = "workcell-test:latest"
# What packaging/Dockerfile wants of its base, what a build of this machine is linked with besides, and the other parts of
# packaging/compose.yaml.
PACKAGES = ("ca-certificates python3 python3-venv libuv1 libjansson4 libyaml-0-2 libsqlite3-0 libcurl4 libssl3 libseccomp2 "
            "libmicrohttpd12 libhiredis0.14 libzmq5 libedit2 redis-server haproxy")
BASE = "workcell-test-base:%08x" % zlib.crc32(PACKAGES.encode())
START_SECONDS = 60
PODMAN = os.path.join(ROOT, "build", "podman")
# No systemd has to be there, no bridge is made on this machine, and crun, which Debian's Podman prefers, does not run where cgroups of
# both kinds are mounted.
PODMAN_CONFIG = """[containers]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
%s"""


def wanted():
    return os.environ.get("CI") == "true" or os.environ.get("WORKCELL_TEST_DOCKER") == "1"


# Another docker on the PATH may be older than the engine.
PROGRAM = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else "docker"


def docker(host, *argv, **more):
    return subprocess.run([PROGRAM, "--host", host, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)


def answers(host):
    try:
        return docker(host, "version", "--format", "{{.Server.Version}}", timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextlib.contextmanager
def running(argv, host, log, **more):
    """A service that ends with the block. Yields its address when it answers, else None."""
    with open(log, "wb") as file:
        service = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, **more)
    try:
        end = time.monotonic() + START_SECONDS
        while service.poll() is None and time.monotonic() < end and not answers(host):
            time.sleep(0.2)
        yield host if answers(host) else None
    finally:
        service.send_signal(signal.SIGTERM)
        try:
            service.wait(30)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()


@contextlib.contextmanager
def private(driver=None):
    """A dockerd that ends with the block. Yields its address."""
    # A socket's path is short; the build folder's may not be.
    run = tempfile.mkdtemp(prefix="workcell-docker-")
    host = "unix://%s/docker.sock" % run
    more = ["--storage-driver", driver] if driver else []
    argv = ["dockerd", "--host", host, "--data-root", os.path.join(FOLDER, "data"), "--exec-root", run + "/exec", "--pidfile", run + "/pid",
            "--bridge", "none", "--iptables=false", *more]
    # When containerd answers late, dockerd asks it for its stacks, which it writes to its folder of temporary files.
    tmp = os.path.join(FOLDER, "tmp")
    os.makedirs(tmp, exist_ok=True)
    try:
        with running(argv, host, os.path.join(FOLDER, "log"), env=dict(os.environ, TMPDIR=tmp)) as address:
            yield address
    finally:
        # What it leaves mounted cannot be removed.
        subprocess.run(["umount", run + "/exec/netns/default"], stderr=subprocess.DEVNULL)
        shutil.rmtree(run, ignore_errors=True)


def make_base(host, say):
    if docker(host, "image", "inspect", BASE).returncode == 0:
        return
    say("making the base image with debootstrap, once")
    root = os.path.join(FOLDER, "root")
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    # In memory: dpkg syncs every file it writes, which is most of the time on a disk.
    in_memory = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g,mode=755", "workcell-base", root], stderr=subprocess.DEVNULL).returncode == 0
    try:
        import_base(host, root)
    finally:
        if in_memory:
            subprocess.run(["umount", "--recursive", root])
        shutil.rmtree(root, ignore_errors=True)


def import_base(host, root):
    subprocess.run(["debootstrap", "--variant=minbase", "--include=" + PACKAGES.replace(" ", ","), "bookworm", root],
                   check=True, stdout=subprocess.DEVNULL)
    archive = subprocess.Popen(["tar", "-C", root, "--exclude=./var/cache/apt", "--exclude=./var/lib/apt/lists", "--exclude=./proc",
                                "--exclude=./sys", "--exclude=./usr/share/doc", "--exclude=./usr/share/man",
                                "--exclude=./usr/share/locale", "-cf", "-", "."], stdout=subprocess.PIPE)
    made = docker(host, "import", "-", BASE, stdin=archive.stdout)
    archive.stdout.close()
    assert archive.wait() == 0 and made.returncode == 0, made.stdout


def make_context():
    """What makes an image of the program that was built here: the runtime stage of packaging/Dockerfile, and installed/."""
    context = os.path.join(FOLDER, "context")
    shutil.rmtree(context, ignore_errors=True)
    os.makedirs(os.path.join(context, "packaging"))
    with open(os.path.join(ROOT, "packaging", "Dockerfile")) as file:
        runtime, found, _ = file.read().partition("FROM ${BASE} AS build\n")
    assert found, "packaging/Dockerfile has no stage that builds"
    with open(os.path.join(context, "packaging", "Dockerfile"), "w") as file:
        file.write(runtime + "COPY installed/ /\n")
    subprocess.run(["meson", "install", "-C", os.path.join(ROOT, "build"), "--no-rebuild"], check=True, stdout=subprocess.DEVNULL,
                   env=dict(os.environ, DESTDIR=os.path.join(context, "installed")))
    return context


def prepare(host, say):
    """The image, by our own means; what the tests are told."""
    make_base(host, say)
    context = make_context()
    flags = ["--container-host", host, "--image", IMAGE, "--container-context", context, "--container-base", BASE]
    built = subprocess.run([os.path.join(ROOT, "build", "workcell"), "container", "build", *flags], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT)
    assert built.returncode == 0, built.stdout.decode()
    return {"DOCKER_HOST": host, "WORKCELL_TEST_IMAGE": IMAGE, "WORKCELL_TEST_CONTEXT": context, "WORKCELL_TEST_BASE": BASE,
            "WORKCELL_TEST_PARTS": BASE}


def host():
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


@contextlib.contextmanager
def engine(say):
    if not wanted():
        # On a person's machine nothing is made in their engine without being asked.
        say("no container engine is used: set WORKCELL_TEST_DOCKER=1 (needs root, and docker.io and debootstrap from Debian)")
        yield None
        return
    os.makedirs(FOLDER, exist_ok=True)
    if answers(host()):
        yield prepare(host(), say)
        return
    with private() as address:
        if address:
            yield prepare(address, say)
            return
    say("dockerd did not start; once more with the storage driver vfs, see build/docker/log")
    with private("vfs") as address:
        assert address, "dockerd does not start, see build/docker/log"
        yield prepare(address, say)


def load_base(source, host):
    """The base image of one engine for another, where that has none."""
    if docker(host, "image", "inspect", BASE).returncode == 0:
        return
    archive = os.path.join(PODMAN, "base.tar")
    for argv in ((source, "save", "--output", archive, BASE), (host, "load", "--input", archive)):
        done = docker(*argv)
        assert done.returncode == 0, done.stdout
    os.unlink(archive)


@contextlib.contextmanager
def podman(env, say):
    os.makedirs(PODMAN, exist_ok=True)
    run = tempfile.mkdtemp(prefix="workcell-podman-")
    host = "unix://%s/podman.sock" % run
    with open(run + "/containers.conf", "w") as file:
        file.write(PODMAN_CONFIG % ('runtime = "runc"\n' if os.path.exists("/sys/fs/cgroup/unified") else ""))
    root = os.path.join(PODMAN, "root")
    # Its images stay from run to run; what it knows of containers names the folders of the last one, and it would not start in others.
    shutil.rmtree(os.path.join(root, "libpod"), ignore_errors=True)
    argv = ["podman", "--root", root, "--runroot", run + "/run", "--tmpdir", run + "/tmp", "system", "service", "--time=0", host]
    try:
        # conmon leaves a file `oom` where it was started.
        with running(argv, host, os.path.join(PODMAN, "log"), cwd=run,
                     env=dict(os.environ, CONTAINERS_CONF=run + "/containers.conf")) as address:
            assert address, "podman does not start, see build/podman/log"
            load_base(env["DOCKER_HOST"], host)
            yield prepare(host, say)
    finally:
        # What it leaves mounted cannot be removed.
        for path in (root + "/overlay", run + "/run/overlay"):
            subprocess.run(["umount", path], stderr=subprocess.DEVNULL)
        shutil.rmtree(run, ignore_errors=True)


def main():
    def say(text):
        print("docker_engine.py: " + text, file=sys.stderr)

    with engine(say) as env:
        return subprocess.run(sys.argv[1:], env=dict(os.environ, **(env or {}))).returncode


if __name__ == "__main__":
    sys.exit(main())
