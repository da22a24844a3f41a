"""The escape suite from a command: attempts.py, in a program that a client starts in a session (POST /v1/sessions/S/commands)."""
import json
import os
import platform

import pytest

import attempts
import serving
from test_escape import Host

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the attempts have numbers of x86_64's system calls")

PROGRAM = attempts.PRELUDE.replace("%%", "%") + r'''
import json, sys
found = {}
for name, code in json.load(sys.stdin):
    space = dict(globals())
    try:
        exec(code, space)
        found[name] = space["out"]
    except Exception as e:
        found[name] = "error:%s: %s" % (type(e).__name__, e)
print(json.dumps(found))
'''


@pytest.fixture(scope="module")
def host():
    made = Host(os.getuid())
    yield made
    made.close()


def run(server, session, chosen, facts):
    """{name: outcome} of attempts, in a program of its own."""
    base = "/v1/sessions/%s/commands" % session
    body = {"argv": ["/usr/bin/python3", "-c", PROGRAM], "stdin": True, "timeout": 60}
    connection, response = server.open("POST", base, body, headers={"Accept": "text/event-stream"})
    assert response.status == 200, response.read()
    command = response.headers["X-Command-ID"]
    text = json.dumps([(a.name, a.code % facts) for a in chosen])
    assert server.ask("POST", "%s/%s/stdin" % (base, command), {"text": text, "close": True}).status == 204
    events = serving.parse_events(response.read().decode())
    connection.close()
    out = "".join(data["text"] for _, kind, data in events if kind == "chunk" and data["stream"] == "stdout")
    assert events[-1][2]["exit_code"] == 0, events[-3:]
    return json.loads(out)


def test_attempts_of_a_command(host):
    server = serving.Server("--executor", "sandbox", python="/usr/bin/python3", env={"WORKCELL_ESCAPE": host.facts["env_secret"]})
    session = server.session()
    pid = server.ask("GET", "/v1/sessions/" + session).json["pid"]
    facts = dict(host.facts, host_pid=server.process.pid, zygote_pid=server.process.pid, sibling_pid=pid)
    chosen = list(attempts.ALL)
    got = run(server, session, chosen, facts)
    wrong = ["%s: %s, not %s" % (a.name, got[a.name], " or ".join(a.denied)) for a in chosen if got[a.name] not in a.denied]
    assert not wrong, "\n".join(wrong)
    assert server.execute("40 + 2", session)["value"] == 42, "the session is as it was"
    server.close()
