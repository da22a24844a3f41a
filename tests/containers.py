"""The container engine that scripts/docker_engine.py has made ready for the tests."""
import glob
import json
import os
import urllib.parse

import serving
import support

HOST = os.environ.get("DOCKER_HOST", "")
IMAGE = os.environ.get("WORKCELL_TEST_IMAGE", "")
FLAGS = ["--executor", "container", "--container-host", HOST, "--image", IMAGE]
USER = 10001


def engine(method, path, **query):
    """What the engine's own API answers, which is the same for Docker and Podman; their clients differ."""
    assert HOST.startswith("unix://"), HOST
    connection = serving.UnixConnection(HOST[len("unix://"):])
    connection.request(method, path + ("?" + urllib.parse.urlencode(query) if query else ""))
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status < 400, (method, path, answer.status, body)
    return json.loads(body) if body.strip() and answer.status != 204 else None


def kill(container):
    engine("POST", "/containers/%s/kill" % container)


def processes(container):
    """The command lines of what lives in it, as this machine sees them."""
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
    return engine("GET", "/containers/%s/json" % container)


def listed():
    return engine("GET", "/containers/json", all="true", filters=json.dumps({"label": ["workcell.owner"]}))


def ours():
    """Ids of all containers that programs of ours have made."""
    return [each["Id"] for each in listed()]


def of(pid):
    """Of these, the ones that this process has made."""
    return [each["Id"] for each in listed() if "/%d-" % pid in each["Labels"]["workcell.owner"]]


def remove_image(name):
    engine("DELETE", "/images/" + name, force="true")


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
