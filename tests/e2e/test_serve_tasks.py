"""Tasks over HTTP: requests that go on without their client (`Prefer: respond-async`)."""
import io
import os
import tarfile

import pytest

import serving
import spaces
import support

ASYNC = {"Prefer": "respond-async"}
ALICE, BOB = "t0ken-of-alice", "t0ken-of-bob"
BACKEND = """import os
open(%r, 'w').close()
open(%r).read()
def build_wheel(*_, **__): raise SystemExit(1)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A wheel, and a package whose making waits until somebody opens a pipe."""
    folder = tmp_path_factory.mktemp("wheels")
    spaces.make_wheel(folder, "wc-alpha", "1.0", "def who():\n    return 'alpha'\n")
    os.mkfifo(folder / "pipe")
    backend = BACKEND % (str(folder / "began"), str(folder / "pipe"))
    with tarfile.open(folder / "wc-slow-1.0.tar.gz", "w:gz") as archive:
        for name, text in (("PKG-INFO", "Metadata-Version: 2.1\nName: wc-slow\nVersion: 1.0\n"), ("odd.py", backend),
                           ("pyproject.toml", '[build-system]\nrequires = []\nbuild-backend = "odd"\nbackend-path = ["."]\n')):
            member = tarfile.TarInfo("wc-slow-1.0/" + name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory, wheels):
    environment = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")), "PATH": os.pathsep.join([os.path.dirname(support.PYTHON), os.environ["PATH"]])}
    with serving.shared("--executor", "subprocess", "--base", tmp_path_factory.mktemp("base"), "--wheel-dir", wheels, "--max-runs", 8,
                        env=environment.items()) as made:
        yield made


def begun(server, path, body, **options):
    answer = server.ask("POST", path, body, headers={**ASYNC, **options.pop("headers", {})}, **options)
    assert answer.status == 202 and answer.json["state"] == "running" and answer.json["answer"] is None, answer
    return "/v1/tasks/" + answer.json["task_id"]


def ended(server, task, **options):
    support.wait_until(lambda: server.ask("GET", task, **options).json["state"] == "ended", server.text)
    return server.ask("GET", task, **options).json


def test_a_race_goes_on_without_its_client(server):
    session = server.session()
    server.execute("x = 1", session)
    task = begun(server, "/v1/sessions/%s/race" % session, {"codes": ["x += 1; x", "x += 2; x"], "judge": "x"})
    found = ended(server, task)
    assert found["status"] == 200 and found["answer"]["winner"] == 1, found
    assert [result["value"] for result in found["answer"]["results"]] == [2, 3]
    assert server.execute("x", session)["value"] == 3
    assert found["request"] == "POST /v1/sessions/%s/race" % session
    assert server.ask("DELETE", "/v1/sessions/" + session).status == 204
    assert server.ask("GET", task).json["answer"]["winner"] == 1  # kept after the session
    assert server.ask("DELETE", task).status == 204 and server.ask("GET", task).code == "not_found"


def test_a_race_is_cancelled_and_changes_nothing(server, tmp_path):
    session, pipe, began = server.session(), tmp_path / "pipe", tmp_path / "began"
    os.mkfifo(pipe)
    server.execute("x = 1", session)
    code = "x = 2\nopen(%r, 'w').close()\nopen(%r).read()" % (str(began), str(pipe))
    task = begun(server, "/v1/sessions/%s/race" % session, {"codes": [code, "x = 3"], "timeout": 600})
    support.wait_until(began.exists, server.text)
    assert server.ask("DELETE", task).status == 204
    found = ended(server, task)
    assert found["status"] == 499 and found["answer"]["code"] == "cancelled", found
    assert server.execute("x", session)["value"] == 1
    support.wait_until(lambda: [one for one in server.ask("GET", "/v1/sessions").json["sessions"] if one["parent"] == session] == [], server.text)
    server.ask("DELETE", "/v1/sessions/" + session)


def test_forks_are_made_without_their_client(server):
    session = server.session()
    server.execute("x = [1]", session)
    found = ended(server, begun(server, "/v1/sessions/%s/fork" % session, {"n": 3}))
    forks = [one["session_id"] for one in found["answer"]["sessions"]]
    assert found["status"] == 201 and len(set(forks)) == 3
    assert [server.execute("x", fork)["value"] for fork in forks] == [[1]] * 3
    for one in (session, *forks):
        server.ask("DELETE", "/v1/sessions/" + one)


def test_an_install_goes_on_without_its_client(server):
    session = server.session()
    task = begun(server, "/api/deps/add", {"package": "wc-alpha"}, headers={"X-Session-ID": session})
    found = ended(server, task)
    assert found["status"] == 200 and found["answer"]["installed"] == ["wc-alpha"], found
    assert server.execute("import wc_alpha; wc_alpha.who()", session)["value"] == "alpha"
    connection, response = server.open("GET", task + "/events")
    events = serving.parse_events(response.read().decode())
    connection.close()
    assert [kind for _, kind, _ in events if kind != "progress"] == ["result"], events
    assert any(kind == "progress" and "environment" in data["line"] for _, kind, data in events), events
    assert events[-1][2] == {"status": 200, "answer": found["answer"]}
    connection, response = server.open("GET", task + "/events", headers={"Last-Event-ID": str(found["last_event"] - 1)})
    assert serving.parse_events(response.read().decode()) == events[-1:]
    connection.close()
    assert server.ask("GET", task + "/events", headers={"Last-Event-ID": str(found["last_event"] + 1)}).code == "invalid"
    found = ended(server, begun(server, "/uninstall_deps", {"packages": ["wc-alpha"]}))
    assert found["answer"]["removed"] == ["wc-alpha"], found
    server.ask("DELETE", "/v1/sessions/" + session)


def test_an_install_is_cancelled(server, wheels):
    task = begun(server, "/install_deps", {"packages": ["wc-slow"]})
    support.wait_until((wheels / "began").exists, server.text)
    assert task.rsplit("/", 1)[1] in [one["task_id"] for one in server.ask("GET", "/v1/tasks").json["tasks"] if one["state"] == "running"]
    assert server.metric("tasks_running") == 1
    assert server.ask("DELETE", task).status == 204
    found = ended(server, task)
    assert found["status"] == 499 and found["answer"]["code"] == "cancelled", found
    # Its installer is dead: nobody reads the pipe any more.
    def is_unread():
        try:
            os.close(os.open(wheels / "pipe", os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return True
        return False
    support.wait_until(is_unread, server.text)
    assert server.ask("GET", "/api/deps").json == []


def test_cells_and_what_waits_for_them(server, tmp_path):
    session, pipe = server.session(), tmp_path / "pipe"
    os.mkfifo(pipe)
    first = begun(server, "/execute", {"code": "x = open(%r).read(); x" % str(pipe)}, headers={"X-Session-ID": session})
    second = begun(server, "/execute", {"code": "y = 1"}, headers={"X-Session-ID": session})
    assert server.ask("DELETE", second).status == 204
    found = ended(server, second)
    assert found["answer"]["code"] == "cancelled", found
    pipe.write_text("through")
    assert ended(server, first)["answer"]["value"] == "through"
    third = begun(server, "/execute", {"code": "y"}, headers={"X-Session-ID": session})
    found = ended(server, third)
    assert found["status"] == 200 and "NameError" in found["answer"]["error"], found
    server.ask("DELETE", "/v1/sessions/" + session)


def test_what_is_wrong_is_the_answer_of_the_task(server):
    session = server.session()
    assert server.ask("POST", "/v1/sessions/%s/race" % session, {"codes": 1}, headers=ASYNC).status == 422  # before there is a task
    found = ended(server, begun(server, "/v1/sessions/%s/race" % session, {}))
    assert found["status"] == 400 and found["answer"]["code"] == "invalid", found
    found = ended(server, begun(server, "/v1/sessions/%s/fork" % ("0" * 32), {}))
    assert found["status"] == 404 and found["answer"]["code"] == "not_found", found
    found = ended(server, begun(server, "/api/deps/add", {"package": "-e ."}))
    assert found["status"] == 400 and found["answer"]["code"] == "invalid", found
    # Other preferences, and routes that last not, are answered as always.
    assert server.ask("POST", "/execute", {"code": "1"}, headers={"Prefer": "wait=10, respond-asynchronously"}).json["value"] == 1
    assert server.ask("GET", "/api/deps", headers=ASYNC).json == []
    assert server.ask("POST", "/execute", {"code": "1"}, headers={"Prefer": "wait=10, Respond-Async;x=1"}).status == 202
    server.ask("DELETE", "/v1/sessions/" + session)


def test_a_task_belongs_to_its_token(server):
    session = server.session(token=ALICE)
    task = begun(server, "/v1/sessions/%s/fork" % session, {}, token=ALICE)
    fork = ended(server, task, token=ALICE)["answer"]["session_id"]
    for method, path in (("GET", task), ("GET", task + "/events"), ("DELETE", task)):
        assert server.ask(method, path, token=BOB).code == "not_found", (method, path)
    assert server.ask("GET", "/v1/tasks", token=BOB).json["tasks"] == []
    # A task of one token for a session of another finds none.
    found = ended(server, begun(server, "/v1/sessions/%s/fork" % session, {}, token=BOB), token=BOB)
    assert found["status"] == 404, found
    found = ended(server, begun(server, "/execute", {"code": "1"}, token=BOB, headers={"X-Session-ID": session}), token=BOB)
    assert found["status"] == 400 and found["answer"]["code"] == "not_found", found
    for one in (session, fork):
        server.ask("DELETE", "/v1/sessions/" + one, token=ALICE)


def test_ended_tasks_make_room(server):
    session = server.session(token=ALICE)
    first = begun(server, "/v1/sessions/%s/race" % session, {}, token=ALICE)
    for _ in range(64):
        ended(server, begun(server, "/v1/sessions/%s/race" % session, {}, token=ALICE), token=ALICE)
    assert server.ask("GET", first, token=ALICE).code == "not_found"
    assert len(server.ask("GET", "/v1/tasks", token=ALICE).json["tasks"]) == 64
    server.ask("DELETE", "/v1/sessions/" + session, token=ALICE)


def test_too_many_tasks_are_refused(server, tmp_path):
    session, pipe = server.session(token=BOB), tmp_path / "pipe"
    os.mkfifo(pipe)
    headers = {"X-Session-ID": session}
    first = begun(server, "/execute", {"code": "open(%r).read()" % str(pipe)}, token=BOB, headers=headers)
    tasks = [begun(server, "/execute", {"code": "1"}, token=BOB, headers=headers) for _ in range(63)]
    answer = server.ask("POST", "/execute", {"code": "1"}, token=BOB, headers={**ASYNC, **headers})
    assert answer.status == 429 and answer.code == "busy", answer
    for task in tasks:
        server.ask("DELETE", task, token=BOB)
    pipe.write_text("x")
    assert ended(server, first, token=BOB)["answer"]["value"] == "x"
    server.ask("DELETE", "/v1/sessions/" + session, token=BOB)


def test_a_stopping_server_cancels_them(tmp_path):
    pipe, began = tmp_path / "pipe", tmp_path / "began"
    os.mkfifo(pipe)
    server = serving.Server("--executor", "subprocess", "--drain", 0)
    session = server.session()
    code = "open(%r, 'w').close(); open(%r).read()" % (str(began), str(pipe))
    begun(server, "/execute", {"code": code}, headers={"X-Session-ID": session})
    begun(server, "/v1/sessions/%s/fork" % session, {})
    support.wait_until(began.exists, server.text)
    server.close()  # which waits for its end


def test_tasks_of_all_workers():
    server = serving.Server("--executor", "subprocess", "--workers", 2)
    sessions = []
    # Which worker gets a connection depends on which one was quicker to close its last.
    while len({session[:2] for session in sessions}) < 2 or len(sessions) < 6:
        assert len(sessions) < 60
        sessions.append(server.session())
    tasks = [begun(server, "/v1/sessions/%s/fork" % session, {}) for session in sessions]
    found = {ended(server, task)["answer"]["session_id"] for task in tasks}
    assert len(found) == len(sessions)
    listed = {one["task_id"] for one in server.ask("GET", "/v1/tasks").json["tasks"]}
    assert listed == {task.rsplit("/", 1)[1] for task in tasks}
    assert len({task_id[:2] for task_id in listed}) == 2  # of both workers
    for task in tasks:
        assert server.ask("DELETE", task).status == 204
    assert server.ask("GET", "/v1/tasks").json["tasks"] == []
    server.close()
