"""Branches over HTTP: forks, points and rewinding of a server's sessions."""
import concurrent.futures
import os

import pytest

import serving
import support


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving.shared("--executor", "subprocess", "--base", tmp_path_factory.mktemp("base")) as made:
        yield made


def opened(server, **options):
    answer = server.ask("POST", "/v1/sessions", **options)
    assert answer.status == 201, answer
    return "/v1/sessions/" + answer.json["session_id"]


def value(server, session, code):
    """The value of a cell, as /execute gives it."""
    answer = server.ask("POST", "/execute", {"code": code}, headers={"X-Session-ID": session.rsplit("/", 1)[1]})
    assert answer.status == 200, answer
    assert answer.json["error"] is None, answer
    return answer.json["value"]


def ended(server, *sessions):
    for session in sessions:
        assert server.ask("DELETE", session).status == 204


def test_a_fork_goes_on_by_itself(server):
    session = opened(server)
    value(server, session, "x = [1]\nopen('file', 'w').write('shared')")
    answer = server.ask("POST", session + "/fork")
    assert answer.status == 201 and answer.json["session_id"] not in session and answer.json["owner"] == "all", answer
    fork = "/v1/sessions/" + answer.json["session_id"]
    assert value(server, fork, "x.append(2)\nx") == [1, 2]
    assert value(server, session, "x") == [1]
    ended(server, session)
    # The folder of the two goes with the last of them.
    assert value(server, fork, "[x, open('file').read()]") == [[1, 2], "shared"]
    folder = value(server, fork, "import os; os.getcwd()")
    ended(server, fork)
    support.wait_until(lambda: not os.path.exists(folder), "the folder is removed")


def test_points(server):
    session = opened(server)
    value(server, session, "x = 1")
    answer = server.ask("POST", session + "/checkpoints", {"name": "a b/ü"})
    assert answer.status == 201 and [point["name"] for point in answer.json["points"]] == ["a b/ü"], answer
    value(server, session, "x = 2")
    assert server.ask("POST", session + "/rewind", {"name": "a b/ü"}).status == 200
    assert value(server, session, "x") == 1
    value(server, session, "x = 3")
    assert server.ask("POST", session + "/rewind", {"cells": 2}).status == 200
    assert value(server, session, "x") == 1
    listed = server.ask("GET", session + "/checkpoints").json["points"]
    assert [(point["name"], point["cell"], point["automatic"]) for point in listed] == [("a b/ü", 1, False)]
    assert server.ask("DELETE", session + "/checkpoints/a%20b%2F%C3%BC").status == 204
    assert server.ask("DELETE", session + "/checkpoints/a").status == 404
    assert server.ask("GET", session + "/checkpoints").json["points"] == []
    ended(server, session)


def test_a_fork_of_a_point(server):
    """It continues from the kept state; the session and the point stay what they are, and it may be done again, also for several."""
    session = opened(server)
    value(server, session, "x = [1]")
    server.ask("POST", session + "/checkpoints", {"name": "a b/ü"})
    value(server, session, "x.append(2)\nlater = 1")
    forks = [server.ask("POST", session + "/fork", {"point": "a b/ü"}).json] + server.ask("POST", session + "/fork", {"point": "a b/ü", "n": 2}).json["sessions"]
    paths = ["/v1/sessions/" + each["session_id"] for each in forks]
    assert [value(server, path, "x.append(%d)\n[x, 'later' in globals()]" % n) for n, path in enumerate(paths)] == [[[1, n], False] for n in range(3)]
    assert all(each["parent"] in session and each["points"] == 0 for each in forks)
    assert value(server, session, "x") == [1, 2]
    assert [point["name"] for point in server.ask("GET", session + "/checkpoints").json["points"]] == ["a b/ü"]
    answer = server.ask("POST", session + "/fork", {"point": "nothing"})
    assert (answer.status, answer.code) == (404, "not_found") and '"nothing"' in answer.json["detail"], answer
    before = len(server.ask("GET", "/v1/sessions").json["sessions"])
    assert server.ask("POST", session + "/fork", {"point": "nothing", "n": 3}).status == 404 and len(server.ask("GET", "/v1/sessions").json["sessions"]) == before
    for body in ({"point": ""}, {"point": 1}, {"point": "x" * 201}):
        assert server.ask("POST", session + "/fork", body).status in (400, 422), body
    # The random numbers are the fork's own, and the point outlives the kernel that it was taken of.
    rolls = [value(server, path, "import random; random.random()") for path in paths]
    assert len(set(rolls)) == 3
    server.ask("POST", "/execute", {"code": "import os; os._exit(1)"}, headers={"X-Session-ID": session.rsplit("/", 1)[1]})
    answer = server.ask("POST", session + "/fork", {"point": "a b/ü"})
    assert answer.status == 201, answer
    paths.append("/v1/sessions/" + answer.json["session_id"])
    assert value(server, paths[-1], "x") == [1]
    ended(server, session, *paths)


def test_bad_requests(server):
    session = opened(server)
    for path, body, status, code in (
            ("/rewind", {}, 400, "invalid"), ("/rewind", {"name": "a", "cells": 1}, 400, "invalid"), ("/rewind", {"cells": -1}, 422, None),
            ("/rewind", {"name": "none"}, 404, "not_found"), ("/rewind", {"cells": 7}, 404, "not_found"), ("/checkpoints", {}, 422, None),
            ("/checkpoints", {"name": ""}, 422, None), ("/checkpoints", {"name": "x" * 201}, 422, None), ("/fork", {"drop": 1}, 422, None),
            ("/fork", {"n": 0}, 422, None), ("/fork", {"n": 1001}, 422, None), ("/race", {}, 400, "invalid"),
            ("/race", {"codes": ["1"], "n": 2}, 400, "invalid"), ("/race", {"code": "1"}, 400, "invalid"), ("/race", {"codes": []}, 400, "invalid"), ("/race", {"codes": ["1"] * 1001}, 400, "invalid"),
            ("/race", {"codes": ["1"], "keep": "all"}, 422, None)):
        answer = server.ask("POST", session + path, body)
        assert answer.status in (status, 400), (path, body, answer)
        assert code is None or answer.code == code, (path, body, answer)
    value(server, session, "import threading; stop = threading.Event(); t = threading.Thread(target=stop.wait, name='mine'); t.start()")
    answer = server.ask("POST", session + "/fork")
    assert (answer.status, answer.code) == (409, "cannot_fork") and "mine" in answer.json["detail"], answer
    answer = server.ask("POST", session + "/fork", {"drop": True})
    assert answer.status == 201
    value(server, session, "stop.set()")
    ended(server, session, "/v1/sessions/" + answer.json["session_id"])


def test_forks_count_as_sessions_and_belong_to_their_owner(tmp_path):
    server = serving.Server("--executor", "subprocess", "--base", tmp_path, "--max-sessions", "4")
    session = opened(server, token="t0ken-of-alice")
    assert server.ask("POST", session + "/fork", token="t0ken-of-bob").status == 404
    assert server.ask("POST", session + "/fork", token="t0ken-of-the-reader").status == 403
    forks = []
    while True:
        answer = server.ask("POST", session + "/fork", token="t0ken-of-alice")
        if answer.status != 201:
            break
        forks.append("/v1/sessions/" + answer.json["session_id"])
    assert answer.code == "busy" and len(forks) == 3, answer
    assert all(server.ask("GET", fork, token="t0ken-of-bob").status == 404 for fork in forks)
    server.close()


def test_several_forks_at_once_all_or_none(tmp_path):
    server = serving.Server("--executor", "subprocess", "--base", tmp_path, "--max-sessions", "4")
    session = opened(server)
    value(server, session, "x = [1]")
    answer = server.ask("POST", session + "/fork", {"n": 3})
    assert answer.status == 201 and len(answer.json["sessions"]) == 3, answer
    forks = ["/v1/sessions/" + each["session_id"] for each in answer.json["sessions"]]
    assert [value(server, fork, "x.append(%d)\nx" % i) for i, fork in enumerate(forks)] == [[1, 0], [1, 1], [1, 2]]
    ended(server, forks[0])
    support.wait_until(lambda: len(server.ask("GET", "/v1/sessions").json["sessions"]) == 3, "the fork is gone")
    assert server.ask("POST", session + "/fork", {"n": 2}).code == "busy"
    assert len(server.ask("GET", "/v1/sessions").json["sessions"]) == 3
    value(server, forks[1], "import threading; stop = threading.Event(); t = threading.Thread(target=stop.wait); t.start()")
    # An ended session counts until its processes are gone.
    support.wait_until(lambda: server.ask("POST", forks[1] + "/fork", {"n": 1}).code == "cannot_fork", "there is room for one")
    assert len(server.ask("GET", "/v1/sessions").json["sessions"]) == 3
    server.close()


def listed(server):
    return {"/v1/sessions/" + each["session_id"] for each in server.ask("GET", "/v1/sessions").json["sessions"]}


def test_race(server):
    before = listed(server)
    session = opened(server)
    value(server, session, "x = 1")
    answer = server.ask("POST", session + "/race", {"codes": ["x += 1\nx", "x += 5\nx", "1 / 0", "x += 2\nx"], "judge": "x * 2", "concurrency": 2})
    assert answer.status == 200 and (answer.json["winner"], answer.json["scores"]) == (1, [4, 12, None, 6]), answer
    assert [each["value"] for each in answer.json["results"]] == [2, 6, None, 3] and answer.json["results"][2]["error"], answer
    assert value(server, session, "x") == 6
    answer = server.ask("POST", session + "/race", {"code": "import os\nx = os.getpid()", "n": 3, "judge": "x > 0", "keep": "none"})
    assert (answer.json["winner"], answer.json["scores"]) == (0, [1, 1, 1]), answer
    assert value(server, session, "x") == 6
    answer = server.ask("POST", session + "/race", {"codes": ["1 / 0", "x = 8", "x = 9"]})
    assert answer.json["winner"] == 1 and value(server, session, "x") == 8, answer
    answer = server.ask("POST", session + "/race", {"codes": ["while True: pass", "x = 10"], "timeout": 0.3, "judge": "'a string'"})
    assert answer.json["winner"] is None and answer.json["scores"] == [None, None], answer
    assert value(server, session, "x") == 8
    assert listed(server) == before | {session}
    ended(server, session)


def test_a_session_that_ends_during_its_race_takes_nothing_with_it(server):
    before = listed(server)
    session = opened(server)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        asked = threads.submit(server.ask, "POST", session + "/race", {"code": "import time; time.sleep(0.5)", "n": 2})
        support.wait_until(lambda: len(listed(server) - before) == 3, "the forks are there")
        ended(server, session)
        assert asked.result().code == "closed", asked.result()
    support.wait_until(lambda: listed(server) == before, "the forks are gone")


def test_forks_that_are_ended_during_their_race(server):
    before = listed(server)
    session = opened(server)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        asked = threads.submit(server.ask, "POST", session + "/race", {"code": "import time; time.sleep(60)", "n": 2, "concurrency": 1})
        support.wait_until(lambda: len(listed(server) - before) == 3, "the forks are there")
        ended(server, *(listed(server) - before - {session}))
        answer = asked.result()
        if answer.status == 200:  # the one that ran was ended first: its result says so, and the other began and was ended too
            assert answer.json["winner"] is None and [result["error_code"] for result in answer.json["results"]] == ["closed", "closed"], answer
        else:  # the other one was ended before its cell could begin
            assert answer.code == "closed", answer
    assert value(server, session, "1 + 1") == 2
    ended(server, session)
    assert listed(server) == before


def test_an_executor_that_cannot_branch(tmp_path):
    with serving.shared("--executor", "jupyter", "--base", tmp_path, python=support.PYTHON) as server:
        session = opened(server)
        value(server, session, "x = 1")
        for path, body in (("/fork", {}), ("/checkpoints", {"name": "p"}), ("/race", {"codes": ["1"]})):
            answer = server.ask("POST", session + path, body)
            assert (answer.status, answer.code) == (501, "unsupported"), (path, answer)
        assert value(server, session, "x") == 1
        ended(server, session)
