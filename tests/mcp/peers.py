"""What the tests of MCP share: definitions of servers, the scripted one, and the real ones from npm."""
import json
import os
import shutil
import subprocess

import spaces
import support

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTED = os.path.join(HERE, "scripted.py")
# Where scripts/setup.sh puts node and the packages of package.json.
NODE_DIR = os.environ.get("WORKCELL_NODE_DIR", os.path.join(support.ROOT, "build", "node"))


def scripted(*behaviours, log=None, python="/usr/bin/python3", **keys):
    """The parameters of the scripted server."""
    args = (["--log", str(log)] if log else []) + list(behaviours)
    return dict({"command": python, "args": ["-IS", SCRIPTED] + args}, **keys)


def write_server(base, name, **params):
    """tools/NAME.yaml with an MCP server; returns the base folder as text. JSON is YAML."""
    return spaces.write_files(base, {"tools/%s.yaml" % name: json.dumps(dict({"name": name, "type": "mcp"}, **params), indent=1)})


def messages(log, method=None):
    """What the scripted server got."""
    if not os.path.exists(str(log)):
        return []
    with open(str(log), encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    return [message for message in found if method in (None, message.get("method"))]


def node():
    """The node that scripts/setup.sh chose."""
    own = os.path.join(NODE_DIR, "bin", "node")
    found = own if os.path.exists(own) else shutil.which("node")
    assert found, "no node: run scripts/setup.sh test"
    return os.path.realpath(found)


def package(name, script):
    """A file of a package from npm."""
    path = os.path.join(NODE_DIR, "node_modules", *name.split("/"), *script.split("/"))
    assert os.path.exists(path), "%s is not there: run scripts/setup.sh test" % path
    return path


def everything(*arguments):
    """The command of server-everything."""
    return [node(), package("@modelcontextprotocol/server-everything", "dist/index.js"), *arguments]


def filesystem(*folders):
    return [node(), package("@modelcontextprotocol/server-filesystem", "dist/index.js"), *map(str, folders)]


def memory():
    return [node(), package("@modelcontextprotocol/server-memory", "dist/index.js")]


def inspect(folder, *arguments):
    """What the Inspector's command line says, as JSON.

    The package is the command line alone, without the Inspector's web pages; it wants to lie as in the whole: in a folder
    beside a package.json.
    """
    entry = package("@modelcontextprotocol/inspector-cli", "build/cli.js")
    source = os.path.dirname(os.path.dirname(entry))
    shutil.copytree(source, os.path.join(str(folder), "cli"))
    shutil.copy(os.path.join(source, "package.json"), str(folder))
    os.symlink(os.path.join(NODE_DIR, "node_modules"), os.path.join(str(folder), "node_modules"))
    done = subprocess.run([node(), os.path.join(str(folder), "cli", "build", "cli.js"), "--cli", *map(str, arguments)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=support.DEADLINE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def params(argv, **keys):
    return dict({"command": argv[0], "args": argv[1:]}, **keys)


class Listening:
    """server-everything on a port of its own, by HTTP."""

    def __init__(self, kind):
        self.port = free_port()
        path = "mcp" if kind == "streamableHttp" else "sse"
        self.url = "http://127.0.0.1:%d/%s" % (self.port, path)
        self.kind, self.process = kind, None
        self.start()

    def start(self):
        self.process = support.popen(everything(self.kind), env=dict(support.host_environment(), PORT=str(self.port)),
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        support.wait_until(lambda: accepts(self.port), "server-everything listens on %d" % self.port)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()


def free_port():
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def accepts(port):
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
