"""The container engine that scripts/docker_engine.py has made ready for the tests."""
import json
import os
import subprocess

HOST = os.environ.get("DOCKER_HOST", "")
IMAGE = os.environ.get("WORKCELL_TEST_IMAGE", "")
FLAGS = ["--executor", "container", "--container-host", HOST, "--image", IMAGE]
USER = 10001
PROGRAM = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else "docker"


def docker(*argv):
    done = subprocess.run([PROGRAM, "--host", HOST, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def processes(container):
    """The command lines of what lives in it."""
    return docker("top", container, "-eo", "pid,args").splitlines()[1:]


def inspect(container):
    return json.loads(docker("inspect", container))[0]


def ours():
    """Ids of all containers that programs of ours have made."""
    return docker("ps", "--all", "--quiet", "--no-trunc", "--filter", "label=workcell.owner").split()


def give(base):
    """A folder with all that is in it, to the container's user."""
    if os.getuid():
        return
    for folder, _, names in os.walk(str(base)):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            os.lchown(path, USER, USER)
