"""Runs that outlive a request: listed, polled, resumed, cancelled, and kept for a while."""
import pytest

import serving
import support

ALICE, BOB, READER = "t0ken-of-alice", "t0ken-of-bob", "t0ken-of-the-reader"


@pytest.fixture(scope="module")
def server():
    with serving.shared("--executor", "subprocess") as made:
        yield made


def begin(server, session, code, **options):
    answer = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": code}, **options)
    assert answer.status == 202, answer
    return "/v1/sessions/%s/runs/%d" % (session, answer.json["run_id"])


def ended(server, run, **options):
    support.wait_until(lambda: server.ask("GET", run, **options).json["state"] == "ended", server.text)
    return server.ask("GET", run, **options).json["result"]


def test_a_client_that_comes_back(server):
    session = server.session()
    run = begin(server, session, "import time\nfor i in range(3): print(i); time.sleep(0.05)\n'done'")
    result = ended(server, run)
    assert result["value"] == "done" and result["stdout"] == "0\n1\n2\n"
    events = serving.parse_events(server.ask("GET", run + "/events").body.decode())
    later = serving.parse_events(server.ask("GET", run + "/events", headers={"Last-Event-ID": "1"}).body.decode())
    assert events[1:] == later and events[-1][1] == "result"
    assert server.ask("GET", "/v1/sessions/%s/runs" % session).json["runs"] == [{"run_id": 1, "state": "ended", "last_event": len(events)}]


def test_runs_are_cancelled(server):
    session = server.session()
    first = begin(server, session, "x = 1\nprint(x)\nimport time\ntime.sleep(60)")
    waiting = begin(server, session, "x = 2")
    last = begin(server, session, "x")
    support.wait_until(lambda: server.ask("GET", first).json["last_event"], server.text)
    states = [(each["run_id"], each["state"]) for each in server.ask("GET", "/v1/sessions/%s/runs" % session).json["runs"]]
    assert states == [(3, "waiting"), (2, "waiting"), (1, "running")]
    answer = server.ask("DELETE", waiting)
    assert answer.status == 202 and answer.json["state"] == "ended" and answer.json["result"]["error"]["code"] == "cancelled", answer
    assert server.ask("DELETE", first).status == 202
    assert ended(server, first)["error"]["code"] == "interrupted"
    assert ended(server, last)["value"] == 1  # the one that waited never ran, and the variables are kept
    before = server.ask("GET", first).json
    assert server.ask("DELETE", first).json == before  # one that has ended stays as it is
    assert server.ask("DELETE", first.rsplit("/", 1)[0] + "/99").status == 404
    assert server.metric("runs_waiting") == 0


def test_a_run_that_resists_is_killed(server):
    session = server.session()
    run = begin(server, session, "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print(1)\nwhile True: pass")
    support.wait_until(lambda: server.ask("GET", run).json["last_event"], server.text)
    assert server.ask("DELETE", run).status == 202
    assert ended(server, run)["state"] == "lost"
    assert ended(server, begin(server, session, "1"))["value"] == 1


def test_runs_of_others(server):
    session = server.session(token=ALICE)
    run = begin(server, session, "import time; time.sleep(60)", token=ALICE)
    for token, status in ((BOB, 404), (None, 401), (READER, 403)):
        assert server.ask("DELETE", run, token=token).status == status
    for token, status in ((BOB, 404), (None, 401), (READER, 404)):
        assert server.ask("GET", run.rsplit("/", 1)[0], token=token).status == status
    assert server.ask("GET", run, token=ALICE).json["state"] != "ended"
    assert server.ask("DELETE", run, token=ALICE).status == 202
    ended(server, run, token=ALICE)


def test_how_many_are_kept(server):
    session = server.session()
    runs = [begin(server, session, "1") for _ in range(20)]
    ended(server, runs[-1])
    listed = [each["run_id"] for each in server.ask("GET", "/v1/sessions/%s/runs" % session).json["runs"]]
    assert listed == list(range(20, 4, -1))  # the last 16
    assert server.ask("GET", runs[0]).status == 404
