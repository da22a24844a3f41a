"""packaging/compose.yaml as it is shipped, in a real engine: two servers, Redis and HAProxy, one server killed."""
import http.client
import os
import shutil
import subprocess

import pytest

import containers
import serving
import support

PACKAGING = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "packaging")
# The images of others, made on this machine from Debian's packages (scripts/docker_engine.py).
OTHERS = """
services:
  redis: {image: %(parts)s, entrypoint: []}
  proxy: {image: %(parts)s, entrypoint: [], command: [haproxy, -db, -f, /usr/local/etc/haproxy/haproxy.cfg]}
"""


# What code in a session tries: the server's token and the password, Redis, the other server, the proxy, the machine.
ATTACKS = [
    "open('/run/secrets/token').read()",
    "import subprocess; subprocess.run(['cat', '/run/secrets/token'], check=True)",
    "open('/proc/1/environ').read()",
    "import os; open('/proc/%d/environ' % os.getppid()).read()",
    "import socket; socket.create_connection(('redis', 6379), 5)",
    "import socket; socket.create_connection(('a', 8080), 5)",
    "import socket; socket.create_connection(('127.0.0.1', 8080), 5)",
    "import os; os.kill(1, 9)",
]


class Composed(serving.Server):
    """The proxy; what is asked of it as of a server."""

    def __init__(self, folder):
        self.port, self.path = serving.free_port(), None
        token = folder / "token"
        token.write_text(serving.TOKEN + "\n")
        (folder / "others.yaml").write_text(OTHERS % {"parts": os.environ["WORKCELL_TEST_PARTS"]})
        client = [shutil.which("docker-compose")] if shutil.which("docker-compose") else ["docker", "compose"]
        self.argv = [*client, "--project-name", "workcelltest%d" % os.getpid(), "--file", os.path.join(PACKAGING, "compose.yaml"), "--file",
                     str(folder / "others.yaml")]
        self.env = dict(os.environ, DOCKER_HOST=containers.HOST, WORKCELL_PORT=str(self.port), WORKCELL_IMAGE=containers.IMAGE,
                        WORKCELL_TOKEN_FILE=str(token), WORKCELL_REDIS_PASSWORD="passw0rd-of-the-tests")
        for path in (folder, folder.parent, folder.parent.parent):
            os.chmod(path, 0o755)

    def compose(self, *argv):
        done = subprocess.run([*self.argv, *argv], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout.decode()
        return done.stdout.decode()

    def container(self, name):
        return self.compose("ps", "--quiet", name).strip()

    def answers(self):
        try:
            return self.ask("GET", "/ready").status == 200
        except OSError:
            return False


    def knows(self, session):
        """Does some server say something about it?"""
        try:
            return self.ask("POST", "/execute", {"code": "1"}, session=session).status not in (502, 503)
        except (OSError, http.client.HTTPException):
            return False


@pytest.fixture
def composed(tmp_path):
    made = Composed(tmp_path)
    try:
        made.compose("up", "--detach", "--no-build")
        support.wait_until(made.answers, lambda: made.compose("logs"))
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "2")


def test_compose(composed):
    host = "__import__('socket').gethostname()"
    sessions = {}  # by server
    support.wait_until(lambda: sessions.setdefault(composed.execute(host, session=(made := composed.session()))["value"], made)
                       and len(sessions) == 2, "both serve")
    for name in "ab":
        found = containers.inspect(composed.container(name))
        assert found["HostConfig"]["ReadonlyRootfs"] and found["HostConfig"]["CapDrop"] == ["ALL"] and found["Config"]["User"] == "10001:10001"
        assert not found["HostConfig"]["PortBindings"]
    assert composed.ask("POST", "/execute", {"code": "1"}, token="other").status == 401
    for attack in ATTACKS:
        found = composed.execute(attack, session=next(iter(sessions.values())))
        assert found["error"] is not None and serving.TOKEN not in found["stdout"], (attack, found)
    (gone, left), (stays, kept) = sessions.items()
    saved = composed.execute("x = artifacts.save('a', 'kept')", session=left)
    assert saved["error"] is None, saved
    composed.execute("x = 2", session=kept)
    victim = next(name for name in "ab" if composed.container(name).startswith(gone))
    containers.kill(composed.container(victim))
    # Its sessions are gone, with a code; the others go on, new ones land there, and what was stored is there.
    support.wait_until(lambda: composed.knows(left), "the proxy has noticed")
    answer = composed.ask("POST", "/execute", {"code": "x"}, session=left)
    assert (answer.status, answer.code) == (400, "not_found"), answer  # the status as the reference has it
    assert composed.execute("x", session=kept)["value"] == 2
    found = composed.execute("[%s, artifacts.load('a')]" % host, session=composed.session())
    assert found["value"] == [stays, "kept"], found
