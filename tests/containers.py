"""The container engine that scripts/docker_engine.py has made ready for the tests."""
import glob
import json
import os
import subprocess

import support

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
    """The command lines of what lives in it, as this machine sees them: not every engine's `top` can be asked by every client."""
    space, found = os.readlink("/proc/%d/ns/pid" % inspect(container)["State"]["Pid"]), []
    for path in glob.glob("/proc/[0-9]*"):
        try:
            if os.readlink(path + "/ns/pid") == space:
                with open(path + "/cmdline", "rb") as file:
                    found.append(file.read().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            pass  # it has ended
    return found


def inspect(container):
    return json.loads(docker("inspect", container))[0]


def ours():
    """Ids of all containers that programs of ours have made."""
    return docker("ps", "--all", "--quiet", "--no-trunc", "--filter", "label=workcell.owner").split()


def of(pid):
    """Of these, the ones that this process has made."""
    rows = docker("ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Label \"workcell.owner\"}}", "--filter",
                  "label=workcell.owner").splitlines()
    return [row.split()[0] for row in rows if "/%d-" % pid in row]


def give(base):
    """A folder with all that is in it, to the container's user."""
    if os.getuid():
        return
    for folder, _, names in os.walk(str(base)):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            os.lchown(path, USER, USER)


class Container(support.Driver):
    def __init__(self, *flags, **more):
        super().__init__(*FLAGS[2:], *flags, executor="container", **more)

    def id(self):
        return self.run("1")["isolation"]["container"]


def refused(code, *flags):
    """A session that cannot be opened, for this reason; in which words."""
    done = support.workcell("run", "--json", "--executor", "container", *flags, "-e", "1")
    assert done.status != 0
    found = json.loads(done.out.splitlines()[-1])["error"]
    assert found["code"] == code, found
    return found["message"]
