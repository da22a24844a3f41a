"""Batches over HTTP: many cells, each in a fork of one session."""
import json
import time

import pytest

import serving
import support

STREAM = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving.shared("--executor", "subprocess", "--base", tmp_path_factory.mktemp("base"), "--max-runs", "6") as made:
        yield made


def streamed(server, path, runs, **fields):
    connection, response = server.open("POST", path, {"runs": runs, **fields}, headers=STREAM)
    assert response.status == 200, response.read()
    found = serving.parse_events(response.read().decode())
    connection.close()
    return found


def results(events):
    assert events[-1][1] == "done", events[-1]
    found = {data["index"]: data["result"] for _, kind, data in events if kind == "result"}
    assert events[-1][2]["runs"] == len(found) == len(events) - 1
    return found


def test_runs_begin_from_the_state_of_the_session(server):
    session = server.session()
    server.execute("x = [1]", session)
    found = results(streamed(server, "/v1/sessions/%s/batch" % session, ["x.append(%d); x" % i for i in range(30)], concurrency=4))
    assert [found[i]["value"] for i in range(30)] == [[1, i] for i in range(30)]
    assert found[0]["isolation"]["executor"] == "subprocess" and found[0]["state"] == "kept"
    assert server.execute("x", session)["value"] == [1]
    assert [one["session_id"] for one in server.ask("GET", "/v1/sessions").json["sessions"] if one["parent"] == session] == []
    assert server.ask("DELETE", "/v1/sessions/" + session).status == 204


def test_a_new_session_is_gone_with_its_batch(server):
    before = len(server.ask("GET", "/v1/sessions").json["sessions"])
    found = results(streamed(server, "/v1/batch", [{"code": "y = 2; y", "timeout": 5}, "y", {"code": "print('out')"}]))
    assert found[0]["value"] == 2 and found[1]["error"]["type"] == "NameError" and found[2]["stdout"] == "out\n"
    support.wait_until(lambda: len(server.ask("GET", "/v1/sessions").json["sessions"]) == before, server.text)


def test_bad_runs_do_not_delay_the_rest(server):
    bad = {5: ("while True: pass", "timeout"), 25: ("import os; os._exit(3)", "kernel_died"), 45: ("import os\nos.kill(os.getppid(), 0)", None),
           65: ("import ctypes; ctypes.string_at(0)", "kernel_died")}
    runs = [{"code": bad[i][0], "timeout": 1} if i in bad else "%d" % i for i in range(80)]
    events = streamed(server, "/v1/batch", runs, concurrency=6)
    found = results(events)
    assert all(found[i]["value"] == i for i in range(80) if i not in bad)
    for i, (_, code) in bad.items():
        assert code is None or found[i]["error"]["code"] == code, found[i]
    order = [data["index"] for _, kind, data in events if kind == "result"]
    assert order.index(79) < len(order) and events[-1][2]["failed"] >= 3
    assert order.index(5) > 10  # it hung while others went on


def test_a_batch_without_a_reader_goes_on_and_is_read_later(server):
    answer = server.ask("POST", "/v1/batch", {"runs": ["%d" % i for i in range(12)]})
    assert answer.status == 202 and answer.json["runs"] == 12, answer
    path = "/v1/batches/" + answer.json["batch_id"]
    support.wait_until(lambda: server.ask("GET", path).json["state"] == "ended", server.text)
    connection, response = server.open("GET", path + "/events")
    assert len(results(serving.parse_events(response.read().decode()))) == 12
    connection.close()
    connection, response = server.open("GET", path + "/events", headers={"Last-Event-ID": "11"})
    assert [kind for _, kind, _ in serving.parse_events(response.read().decode())] == ["result", "done"]
    connection.close()
    assert server.ask("DELETE", path).status == 204 and server.ask("GET", path).status == 404


def test_a_slow_reader_holds_the_batch(server):
    answer = server.ask("POST", "/v1/batch", {"runs": ["print('x' * 300_000)"] * 60, "concurrency": 4})
    path = "/v1/batches/" + answer.json["batch_id"]
    support.wait_until(lambda: server.ask("GET", path).json["running"] == 0, server.text)
    state = server.ask("GET", path).json
    assert state["state"] == "running" and 1 < state["ended"] < 20, state
    assert server.metric("batch_runs_waiting") == 60 - state["ended"] and server.metric("batches") >= 1
    connection, response = server.open("GET", path + "/events")
    assert len(results(serving.parse_events(response.read().decode()))) == 60
    connection.close()


def test_cancelling(server):
    session = server.session()
    answer = server.ask("POST", "/v1/sessions/%s/batch" % session, {"runs": ["import time; time.sleep(60)"] * 50, "concurrency": 3})
    path = "/v1/batches/" + answer.json["batch_id"]
    support.wait_until(lambda: server.ask("GET", path).json["running"] == 3, server.text)
    assert server.ask("DELETE", path).status == 204
    support.wait_until(lambda: server.ask("GET", path).json["state"] == "ended", server.text)
    assert server.ask("GET", path).json["failed"] == 50 and server.metric("runs_running") == 0
    assert server.execute("1", session)["value"] == 1
    # The session may be used, and be gone, before its batch; the state that the runs begin from may not.
    answer = server.ask("POST", "/v1/sessions/%s/batch" % session, {"runs": ["import time; time.sleep(60)"] * 5})
    path = "/v1/batches/" + answer.json["batch_id"]
    assert server.execute("2", session)["value"] == 2
    assert server.ask("DELETE", "/v1/sessions/" + session).status == 204
    assert server.ask("GET", path).json["state"] == "running"
    for one in server.ask("GET", "/v1/sessions").json["sessions"]:
        server.ask("DELETE", "/v1/sessions/" + one["session_id"])
    support.wait_until(lambda: server.ask("GET", path).json["state"] == "ended", server.text)


def test_batches_belong_to_their_token(server):
    session = server.session(token="t0ken-of-alice")
    body = {"runs": ["1"]}
    assert server.ask("POST", "/v1/sessions/%s/batch" % session, body, token="t0ken-of-bob").status == 404
    assert server.ask("POST", "/v1/batch", body, token="t0ken-of-the-reader").status == 403
    assert server.ask("POST", "/v1/batch", body, token=None).status == 401
    made = server.ask("POST", "/v1/sessions/%s/batch" % session, body, token="t0ken-of-alice")
    path = "/v1/batches/" + made.json["batch_id"]
    for method, end in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
        assert server.ask(method, path + end, token="t0ken-of-bob").status == 404
        assert server.ask(method, path + end, token=None).status == 401
    assert server.ask("GET", path, token="t0ken-of-alice").status == 200
    assert server.ask("DELETE", "/v1/sessions/" + session, token="t0ken-of-alice").status == 204


@pytest.mark.parametrize("body, status", [
    ({"runs": []}, 400), ({"runs": ["1"] * 100001}, 400), ({"runs": [1]}, 422), ({"runs": [{}]}, 422), ({}, 422),
    ({"runs": ["1"], "concurrency": 0}, 422), ({"runs": ["1"], "unknown": 1}, 422), ({"runs": [{"code": "1", "timeout": "x"}]}, 422),
])
def test_bad_batches(server, body, status):
    assert server.ask("POST", "/v1/batch", body).status == status


def test_the_server_stops_in_the_middle_of_a_batch(tmp_path):
    server = serving.Server("--executor", "subprocess", "--drain", "0")
    answer = server.ask("POST", "/v1/batch", {"runs": ["import time; time.sleep(60)"] * 20})
    assert answer.status == 202
    time.sleep(0.2)
    server.close()


def test_confined_runs(tmp_path):
    server = serving.Server("--executor", "sandbox")
    large = {"code": "bytearray(60_000_000)", "memory": 32 << 20}
    found = results(streamed(server, "/v1/batch", ["%d" % i for i in range(6)] + ["import os; os._exit(1)", large], concurrency=3))
    assert [found[i]["value"] for i in range(6)] == list(range(6)) and found[6]["error"]["code"] == "kernel_died"
    # Its own limit, and not the larger one of the session.
    assert found[7]["error"]["code"] == "limit_exceeded" and found[7]["error"]["message"].startswith("the run's limit on memory: "), found[7]
    assert found[0]["isolation"]["executor"] == "sandbox" and json.dumps(found[0]["isolation"])
    server.close()


def test_limits_of_each_run(server):
    take = "len(bytearray(60_000_000))"
    runs = [{"code": take, "memory": 32 << 20}, {"code": take, "memory": 256 << 20}, take, {"code": "print('x' * 100_000)", "max_output": 4096}]
    found = results(streamed(server, "/v1/batch", runs, memory=40 << 20))
    assert found[0]["error"]["type"] == found[2]["error"]["type"] == "MemoryError" and found[1]["value"] == 60_000_000
    assert len(found[3]["stdout"]) < 5000
    refused = results(streamed(server, "/v1/batch", [{"code": "1", "max_output": 5}, "2"]))
    assert refused[0]["error"]["code"] == "invalid" and refused[1]["value"] == 2, "that one alone"
    assert server.ask("POST", "/v1/batch", {"runs": [{"code": "1", "memory": "much"}]}).status == 422
    assert server.ask("POST", "/v1/batch", {"runs": ["1"], "memory": -1}).status == 422
