"""Branches over HTTP: forks, points and rewinding of a server's sessions."""
import os

import pytest

import serving
import support


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = serving.Server("--executor", "subprocess", "--base", tmp_path_factory.mktemp("base"))
    made.adopt()
    support.shared_drivers.append(made)
    yield made
    support.shared_drivers.remove(made)
    made.close()


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


def test_bad_requests(server):
    session = opened(server)
    for path, body, status, code in (
            ("/rewind", {}, 400, "invalid"), ("/rewind", {"name": "a", "cells": 1}, 400, "invalid"), ("/rewind", {"cells": -1}, 422, None),
            ("/rewind", {"name": "none"}, 404, "not_found"), ("/rewind", {"cells": 7}, 404, "not_found"), ("/checkpoints", {}, 422, None),
            ("/checkpoints", {"name": ""}, 422, None), ("/checkpoints", {"name": "x" * 201}, 422, None), ("/fork", {"drop": 1}, 422, None),
            ("/fork", {"n": 3}, 422, None)):
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


def test_an_executor_that_cannot(tmp_path):
    server = serving.Server("--executor", "sandbox", "--base", tmp_path, pool=0)
    session = opened(server)
    for path, body in (("/fork", None), ("/checkpoints", {"name": "a"}), ("/rewind", {"cells": 1})):
        answer = server.ask("POST", session + path, body)
        assert (answer.status, answer.code) == (501, "unsupported"), answer
    server.close()
