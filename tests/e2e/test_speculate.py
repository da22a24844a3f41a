"""Speculation through the command line, YAML and HTTP; what it does to a session is tested with the Python package (test_speculation.py)."""
import re

import pytest

import serving
import spaces
import support

CODE = "import os\nbefore = os.getpid()\nanswer = tools.say.run(word='ok')\nn = sum(range(1000))\n[answer, n, os.getpid() == before]"
YAML = "name: say\ncommand: echo\nschema:\n  positional:\n    - {name: word, type: string}\nrecipes:\n  run: {description: says, supposed: \"ok\\n\"}\n"


def make(folder, *flags):
    base = spaces.write_files(folder / "base", {"tools/say.yaml": YAML})
    work = folder / "work"
    work.mkdir()
    return serving.Server("--executor", "subprocess", "--base", base, "--approve", "ask", "--workspace-mode", "cow", *flags, cwd=str(work))


@pytest.fixture
def server(tmp_path):
    made = make(tmp_path, "--speculate")
    yield made
    made.close()


def approve(server, session, code, accept=True, until=lambda server: True):
    """The result of a cell whose one call is answered."""
    begun = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": code}).json
    path = "/v1/sessions/%s/approvals" % session
    waiting, = support.wait_until(lambda: server.ask("GET", path).json["approvals"], "a request")
    support.wait_until(lambda: until(server), "the copy")
    assert server.ask("POST", "%s/%d" % (path, waiting["id"]), {"accept": accept}).status == 204
    run = "/v1/sessions/%s/runs/%d" % (session, begun["run_id"])
    support.wait_until(lambda: server.ask("GET", run).json["state"] == "ended", "the end")
    return server.ask("GET", run).json["result"]


def counts(server):
    text = server.ask("GET", "/metrics").body.decode()
    return [int(float(re.search(r"^workcell_speculations%s_total (\S+)$" % word, text, re.M).group(1)))
            for word in ("", "_kept", "_dropped", "_declined")]


def began(server):
    return counts(server)[0] > 0


def test_a_copy_is_kept(server):
    session = server.session()
    result = approve(server, session, CODE, until=began)
    assert result["value"] == ["ok\n", 499500, False]  # it goes on in the copy's process
    assert counts(server) == [1, 1, 0, 0]
    assert server.execute("[n, answer]", session=session)["value"] == [499500, "ok\n"]


def test_a_copy_is_dropped(server):
    session = server.session()
    result = approve(server, session, CODE.replace("answer = tools", "try: answer = tools").replace("\nn =", "\nexcept Exception: answer = 'no'\nn ="),
                     accept=False, until=began)
    assert result["value"] == ["no", 499500, True] and counts(server) == [1, 0, 1, 0]


def test_a_client_may_do_without(server):
    session = server.ask("POST", "/v1/sessions", {"speculate": False}).json["session_id"]
    assert approve(server, session, CODE)["value"] == ["ok\n", 499500, True] and counts(server) == [0, 0, 0, 0]


def test_a_server_that_does_not(tmp_path):
    server = make(tmp_path)
    try:
        refused = server.ask("POST", "/v1/sessions", {"speculate": True})
        assert refused.status == 403 and "--speculate" in refused.json["detail"]
        assert approve(server, server.session(), CODE)["value"][2] is True
    finally:
        server.close()


def test_a_rewind_says_what_went_back(server):
    session = server.session()
    server.execute("x = 1", session=session)
    assert server.ask("POST", "/v1/sessions/%s/checkpoints" % session, {"name": "p"}).status == 201
    answer = server.ask("POST", "/v1/sessions/%s/rewind" % session, {"name": "p"})
    assert answer.status == 200 and answer.json["file_state"] == "without_tmp"
