"""Saved sessions of a server: hibernated by a request, after a while, and at its end; continued by the next server. And lists of variables."""
import concurrent.futures
import json
import os
import signal
import subprocess

import pytest

import serving
import spaces
import support


@pytest.fixture
def place(tmp_path):
    (tmp_path / "work").mkdir()
    return ["--executor", "subprocess", "--base", tmp_path / "base", "--cwd", tmp_path / "work", "--saved", tmp_path / "saved"]


def value(server, session, code, **options):
    answer = server.execute(code, session, **options)
    assert answer["error"] is None, answer
    return answer["value"]


def opened(server, body=None, **options):
    answer = server.ask("POST", "/v1/sessions", body, **options)
    assert answer.status == 201, answer
    return answer.json["session_id"]


def test_variables(place):
    with serving.shared(*place) as server:
        session = opened(server)
        value(server, session, "class Hostile:\n    def __repr__(self): raise SystemExit\n    __len__ = __sizeof__ = __repr__\n"
                               "x = 5; text = 'a' * 1000; odd = Hostile(); rows = [1, 'b', odd]; big = 3 ** 10000")
        answer = server.ask("GET", "/v1/sessions/%s/variables" % session)
        assert answer.status == 200 and answer.json["more"] == 0, answer
        found = {each["name"]: each for each in answer.json["variables"]}
        assert found["x"]["type"] == "int" and found["x"]["preview"] == "5"
        assert len(found["text"]["preview"]) <= 120 and found["odd"]["preview"] == "" and found["odd"]["type"] == "Hostile"
        assert found["rows"]["preview"] == "[1, 'b', <Hostile>]" and "bits" in found["big"]["preview"]
        assert not {"tools", "artifacts", "display"} & set(found)
        assert server.ask("GET", "/v1/sessions/%s/variables" % ("0" * 32)).status == 404
        # Those who look at the same time do not see each other: a list is no cell, and waits for none.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            looks = list(pool.map(lambda n: server.ask("GET", "/v1/sessions/%s%s" % (session, ("", "/variables")[n % 4 > 0])), range(64)))
        assert [look.status for look in looks] == [200] * 64 and {look.json["state"] for look in looks if "state" in look.json} == {"idle"}
        assert server.ask("GET", "/v1/sessions/%s/variables" % session, token="other").status in (401, 404)


def test_hibernated_and_woken_by_the_next_use(place):
    with serving.shared(*place) as server:
        session = opened(server)
        value(server, session, "import socket; s = socket.socket(); g = iter(range(5)); next(g)")
        answer = server.ask("POST", "/v1/sessions/%s/hibernate" % session)
        assert answer.status == 200 and answer.json["session_id"] == session, answer
        assert [(each["kind"], each["variables"]) for each in answer.json["not_carried"]] == [("socket", ["s"])]
        assert server.metric("sessions") == 0 and server.metric("sessions_hibernated_total") == 1  # nothing of it stays
        assert value(server, session, "next(g)") == 1
        assert server.metric("sessions_woken_total") == 1
        assert server.ask("POST", "/v1/sessions", {"resume": session}).status == 409  # it is awake here
        assert server.ask("POST", "/v1/sessions/%s/checkpoints" % session, {"name": "p"}).status == 201
        value(server, session, "del s; kept = next(g)")
        answer = server.ask("POST", "/v1/sessions/%s/hibernate" % session, {"points": True})
        assert (answer.json["points"], answer.json["not_carried"]) == (["p"], []), answer
        assert server.ask("POST", "/v1/sessions/%s/rewind" % session, {"name": "p"}).status == 200
        assert value(server, session, "'kept' not in globals() and next(g)") == 2
        answer = server.ask("POST", "/v1/sessions/%s/hibernate" % session)
        assert (answer.json["points"], answer.json["not_carried"][-1]["kind"]) == ([], "point"), answer


def test_no_call_has_the_id_of_one_before_the_sleep(place, tmp_path):
    """Somebody who still has that one on the screen, whatever became of it, does not answer another one."""
    (tmp_path / "policy.yaml").write_text("rules:\n  - {tool: 'echo*', kind: tool, decision: ask}\ndefault: allow\n")
    spaces.write_files(tmp_path / "base", {"tools/echo.yaml": serving.ECHO_TOOL})
    with serving.shared(*place, "--policy", tmp_path / "policy.yaml") as server:
        session, seen = opened(server), []
        for _ in range(3):
            server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "tools.echo.say(text='hi')"})
            call, = support.wait_until(lambda: server.ask("GET", "/v1/sessions/%s/approvals" % session).json["approvals"], lambda: "it does not ask")
            seen += [call["id"], call["request_id"]]
            server.ask("POST", "/v1/sessions/%s/interrupt" % session)
            support.wait_until(lambda: server.ask("GET", "/v1/sessions/" + session).json["state"] == "idle", lambda: "it goes on")
            assert server.ask("POST", "/v1/sessions/%s/hibernate" % session).status == 200
        assert len(set(seen)) == 6, seen


def test_the_end_of_a_server_saves_all(place):
    server = serving.Server(*place)
    sessions = [opened(server) for _ in range(3)]
    for n, session in enumerate(sessions):
        value(server, session, "x = [%d]" % n)
    server.close()
    with serving.shared(*place) as server:
        for n, session in enumerate(sessions):
            assert opened(server, {"resume": session}) == session
            assert value(server, session, "x") == [n]
        assert server.ask("POST", "/v1/sessions", {"resume": "0" * 32}).code == "not_found"
        assert server.ask("POST", "/v1/sessions", {"resume": "../x"}).status == 400


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cell_that_runs_does_not_hold_up_the_end(place, workers):
    """When the time to drain is over it is interrupted, and the session is saved; one whose kernel had to be killed is as it was saved last."""
    def begin(code):
        session = opened(server)
        assert value(server, session, "x = [1]; len(x)") == 1
        run = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": code, "timeout": 600})
        assert run.status == 202, run
        return session

    flags = [*place, "--durable", "results", "--max-timeout", "600"]
    server = serving.Server(*flags, "--workers", workers, "--drain", "1")
    polite = begin("x.append(2)\nimport time; time.sleep(600)")
    stubborn = begin("import time\nwhile True:\n    try:\n        time.sleep(600)\n    except BaseException:\n        pass")
    support.wait_until(lambda: server.metric("runs_running") == 2, "both run")
    if workers == 1:
        server.close()
    else:
        killed(server, only_first=True)
    with serving.shared(*flags) as server:
        assert value(server, polite, "x") == [1, 2]
        assert value(server, stubborn, "x") == [1]


def test_an_idle_session_is_saved(place):
    with serving.shared(*place, "--session-idle", "1") as server:
        session = opened(server)
        pid = value(server, session, "import os; x = 7; os.getpid()")
        support.wait_until(lambda: not os.path.exists("/proc/%d" % pid), "it hibernates")
        assert value(server, session, "x") == 7


def processes_of(server):
    """The first process, and the workers if it has any."""
    workers = support.processes().values() if server.workers > 1 else ()
    return [server.pid] + [each.pid for each in workers if each.ppid == server.pid]


def killed(server, only_first=False):
    """The server dies as in a crash; its processes end with it.  Workers whose first process alone is killed end as by SIGTERM."""
    family = [each.pid for each in server.family(support.processes())]
    for pid in [server.pid] if only_first else processes_of(server):
        os.kill(pid, signal.SIGKILL)
    server.process.wait(support.DEADLINE)

    def has_ended():
        support.reap_orphans()  # workers, whose parent is dead, are ours now
        return not any(os.path.exists("/proc/%d" % pid) for pid in family)

    support.wait_until(has_ended, "its processes end")
    server.stderr.close()


def test_an_old_id_works_at_the_next_server(place):
    server = serving.Server(*place)
    session = opened(server, token="t0ken-of-alice")
    value(server, session, "x = [1]", token="t0ken-of-alice")
    server.close()
    with serving.shared(*place) as server:
        for token in ("t0ken-of-bob", serving.TOKEN):
            answer = server.ask("GET", "/v1/sessions/%s" % session, token=token)
            assert answer.status == 404 and answer.code == "not_found", answer
        with concurrent.futures.ThreadPoolExecutor(4) as pool:  # it is woken once for all of them
            values = list(pool.map(lambda _: value(server, session, "x.append(1); len(x)", token="t0ken-of-alice"), range(4)))
        assert sorted(values) == [2, 3, 4, 5]
        assert server.metric("sessions_woken_total") == 1
        assert server.ask("DELETE", "/v1/sessions/%s" % session, token="t0ken-of-alice").status == 204
        support.wait_until(lambda: server.metric("sessions") == 0, "it has ended")
        answer = server.ask("GET", "/v1/sessions/%s" % session, token="t0ken-of-alice")
        assert answer.status == 410, answer  # and is not woken again


def test_an_id_that_another_server_has_awake(place):
    first, second = serving.Server(*place), serving.Server(*place)
    try:
        session = opened(first)
        value(first, session, "x = 5")
        assert second.ask("GET", "/v1/sessions/%s" % session).status == 404  # it was never saved
        assert first.ask("POST", "/v1/sessions/%s/hibernate" % session).status == 200
        assert value(second, session, "x") == 5
        answer = first.ask("GET", "/v1/sessions/%s" % session)
        assert answer.status == 409 and answer.code == "conflict", answer
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
def test_a_server_that_is_killed_loses_nothing(place, executor):
    flags = [*place, "--executor", executor, "--durable", "results"]
    server = serving.Server(*flags)
    session = opened(server)
    for n in range(3):
        answer = server.execute("x = %d" % n, session)
        assert answer["durable"] is True, answer
    job = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "x = 'half'; import time; time.sleep(60)"})
    assert job.status == 202, job
    support.wait_until(lambda: server.metric("runs_running") == 1, "it runs")
    killed(server)
    with serving.shared(*flags) as server:
        assert value(server, session, "x") == 2
        answer = server.ask("GET", "/v1/sessions/%s/runs/%s" % (session, job.json["run_id"]))
        assert answer.status in (404, 410), answer


def test_a_session_is_continued_by_its_worker(place):
    with serving.shared(*place, "--workers", "2") as server:
        connections = server.connect_to_each()
        for n, connection in enumerate(connections * 2):
            session = opened(server, connection=connection)
            value(server, session, "x = %d" % n)
            assert server.ask("POST", "/v1/sessions/%s/hibernate" % session).status == 200
            other = connections[connections.index(connection) - 1]
            body = {"resume": session, "workspace_id": "w" * 100}
            answer = server.ask("POST", "/v1/sessions", body, connection=other, token="t0ken-of-alice")
            assert answer.status in (403, 404), answer  # somebody else's
            assert opened(server, {"resume": session}, connection=other) == session
            for each in connections:
                assert value(server, session, "x", connection=each) == n
        for connection in connections:
            connection.close()


def test_a_worker_that_is_killed_loses_nothing(place):
    server = serving.Server(*place, "--workers", "2", "--durable", "results")
    try:
        sessions = [opened(server) for _ in range(4)]
        for n, session in enumerate(sessions):
            assert value(server, session, "x = %d; x" % n) == n
        table = support.processes()
        workers = [each.pid for each in table.values() if each.ppid == server.pid and "serve" in each.cmdline]
        assert len(workers) == 2, workers
        os.kill(workers[0], signal.SIGKILL)

        def is_awake(session, n):
            try:
                answer = server.ask("POST", "/execute", {"code": "x"}, session=session)
            except ConnectionError:  # which the dying worker had accepted
                return False
            if answer.status != 200:  # the dying worker had it: not begun, or nobody knows
                assert (answer.status, answer.code) in ((503, "busy"), (502, "closed")), answer
            return answer.status == 200 and answer.json["value"] == n

        for n, session in enumerate(sessions):
            support.wait_until(lambda: is_awake(session, n), "it is woken")
            assert [value(server, session, "x") for _ in range(4)] == [n] * 4  # by whichever worker takes the connection
    finally:
        server.close()


def test_a_server_that_saves_nothing(tmp_path):
    with serving.shared("--executor", "subprocess", "--base", tmp_path / "base") as server:
        session = opened(server)
        answer = server.ask("POST", "/v1/sessions/%s/hibernate" % session)
        assert answer.status == 501 and answer.code == "unsupported", answer


def test_two_servers_wake_the_same_session(place):
    """One of them has it, the other is told; and when the first has ended, the other can."""
    first = serving.Server(*place)
    session = opened(first)
    value(first, session, "x = 5")
    first.close()
    servers = [serving.Server(*place) for _ in range(2)]
    try:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda server: server.ask("POST", "/v1/sessions", {"resume": session}), servers))
        assert sorted(answer.status for answer in answers) == [201, 409], answers
        winner, loser = sorted(servers, key=lambda server: answers[servers.index(server)].status)
        assert answers[servers.index(loser)].code == "conflict"
        assert value(winner, session, "x += 1; x") == 6
        winner.close()
        servers.remove(winner)
        assert opened(loser, {"resume": session}) == session
        assert value(loser, session, "x") == 6
    finally:
        for server in servers:
            server.close()


def test_another_workspace(place):
    with serving.shared(*place) as server:
        session = opened(server, {"workspace_id": "a"})
        value(server, session, "x = 1")
    with serving.shared(*place) as server:
        answer = server.ask("POST", "/v1/sessions", {"resume": session, "workspace_id": "b"})
        assert answer.status == 404 and answer.code == "not_found", answer
        assert opened(server, {"resume": session, "workspace_id": "a"}) == session


def workcell(place, *args):
    return subprocess.run([support.BIN, "run", *map(str, args)], cwd=place, capture_output=True, text=True, timeout=support.DEADLINE)


@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
def test_the_command_line(tmp_path, executor):
    (tmp_path / "work").mkdir()
    (tmp_path / "key").write_text("ab" * 32 + "\n")
    flags = ["--executor", executor, "--saved", tmp_path / "saved", "--saved-key-file", tmp_path / "key"]
    done = workcell(tmp_path / "work", *flags, "--save", "-e", "x = iter(range(9)); next(x)")
    assert done.returncode == 0 and "--resume " in done.stderr, done
    session = done.stderr.split("--resume ")[1].split()[0]
    for n in (1, 2):
        done = workcell(tmp_path / "work", *flags, "--resume", session, "--save", "-e", "next(x)")
        assert done.returncode == 0 and done.stdout.strip() == str(n), done
    done = workcell(tmp_path / "work", *flags[:4], "--resume", session, "-e", "1")
    assert done.returncode == 1 and "differs" in done.stderr, done
    for points, left in ((["--saved-points"], False), ([], True)):
        done = workcell(tmp_path / "work", *flags, "--undo", "1", *points, "--save", "-e", "x = 1")
        assert done.returncode == 0 and ("not saved: points 1 kept by undo" in done.stderr) == left, done
    for bad in (["--save"], ["--saved-points"], ["--resume", session], ["--saved-key-file", tmp_path / "key"]):
        done = workcell(tmp_path / "work", *bad, "-e", "1")
        assert done.returncode == 2 and "needs --saved" in done.stderr, done
    (tmp_path / "key").write_text("short")
    done = workcell(tmp_path / "work", *flags, "-e", "1")
    assert done.returncode == 2 and "64 hexadecimal" in done.stderr, done


def test_two_servers_and_one_redis(place, redis, tmp_path):
    at_redis = place[:-1] + [redis.url(tmp_path.name), "--saved-lease", "1", "--durable", "results"]
    first = serving.Server(*at_redis, "--saved-host", "first", "--saved-url", "http://first:1")
    second = serving.Server(*at_redis, "--saved-host", "second")
    try:
        session = opened(first)
        pid = value(first, session, "import os; x = 5; os.getpid()")
        answer = second.ask("GET", "/v1/sessions/%s" % session)
        assert answer.status == 409 and answer.code == "conflict" and "first (http://first:1)" in str(answer.json), answer
        assert first.ask("POST", "/v1/sessions/%s/hibernate" % session).status == 200
        with concurrent.futures.ThreadPoolExecutor(2) as pool:  # one wins, the other is told
            answers = list(pool.map(lambda server: server.ask("GET", "/v1/sessions/%s" % session), (first, second)))
        assert sorted(each.status for each in answers) == [200, 409], answers
        owner = first if answers[0].status == 200 else second
        assert value(owner, session, "x += 1; x") == 6
        killed(owner)
        other = second if owner is first else first
        support.wait_until(lambda: other.ask("GET", "/v1/sessions/%s" % session).status == 200, "its lease expires")
        assert value(other, session, "x") == 6  # acknowledged is saved
        assert not os.path.exists("/proc/%d" % pid)
    finally:
        for server in (first, second):
            if server.process.poll() is None:
                server.close()


def test_a_server_that_lost_its_lease(place, redis, tmp_path):
    """It was stopped for longer than its lease; another one has the session when it goes on."""
    at_redis = place[:-1] + [redis.url(tmp_path.name), "--saved-lease", "1", "--durable", "results"]
    first, second = serving.Server(*at_redis, "--saved-host", "first"), serving.Server(*at_redis, "--saved-host", "second")
    try:
        session = opened(first)
        pid = value(first, session, "import os; x = 5; os.getpid()")
        stopped = processes_of(first)
        for each in stopped:
            os.kill(each, signal.SIGSTOP)
        support.wait_until(lambda: second.ask("GET", "/v1/sessions/%s" % session).status == 200, "its lease expires")
        assert value(second, session, "x += 1; x") == 6
        for each in stopped:
            os.kill(each, signal.SIGCONT)
        support.wait_until(lambda: not os.path.exists("/proc/%d" % pid), "its kernel ends")
        support.wait_until(lambda: first.ask("GET", "/v1/sessions/%s" % session).status == 409, "it says who has it")
        assert "second" in str(first.ask("GET", "/v1/sessions/%s" % session).json)
        assert value(second, session, "x") == 6
    finally:
        for each in processes_of(first):
            os.kill(each, signal.SIGCONT)
        first.close()
        second.close()


def pages(server, query="", **options):
    """All pages of the list of saved sessions, each a list."""
    found, after = [], ""
    while after is not None:
        answer = server.ask("GET", "/v1/saved?%s%s" % (query, "&after=" + after if after else ""), **options)
        assert answer.status == 200, answer
        found.append(answer.json["sessions"])
        after = answer.json["next"]
    return found


def test_saved_sessions_are_listed(place):
    """In pages, the latest first, those of others left out; also those that are awake."""
    with serving.shared(*place) as server:
        mine = [opened(server, {"workspace_id": "w"} if n == 1 else None, token="t0ken-of-alice") for n in range(3)]
        others = opened(server, token="t0ken-of-bob")
        for n, session in enumerate(mine + [others]):
            token = "t0ken-of-bob" if session == others else "t0ken-of-alice"
            value(server, session, "x = %d" % n, token=token)
            assert server.ask("POST", "/v1/sessions/%s/hibernate" % session, token=token).status == 200
        whole = pages(server, token="t0ken-of-alice")
        assert [each["session_id"] for each in whole[0]] == mine[::-1] and len(whole) == 1
        one = whole[0][1]
        assert one["owner"] == "alice" and one["workspace_id"] == "w" and one["form"] == "image" and one["bytes"] > 0 and one["cells"] == 1
        assert one["awake"] is False and one["saved_at"].endswith("Z") and not {"workspace", "notes", "holder"} & set(one)
        single = pages(server, "limit=1", token="t0ken-of-alice")
        assert [[each["session_id"] for each in page] for page in single if page] == [[each] for each in mine[::-1]]
        assert value(server, mine[0], "x", token="t0ken-of-alice") == 0  # it is woken, and stays in the list
        assert {each["session_id"]: each["awake"] for each in pages(server, token="t0ken-of-alice")[0]} == {
            mine[0]: True, mine[1]: False, mine[2]: False}
        assert [each["session_id"] for each in pages(server, token="t0ken-of-bob")[0]] == [others]
        assert {each["session_id"] for each in pages(server, "all=true")[0]} == {*mine, others}  # the scope admin
        assert pages(server, "all=true", token="t0ken-of-bob") == [[each for each in pages(server, token="t0ken-of-bob")[0]]]
        for bad in ("limit=0", "limit=1001", "after=1", "after=-" + mine[0], "after=1-x", "after=99999999999999999999999-" + mine[0]):
            answer = server.ask("GET", "/v1/saved?" + bad)
            assert answer.status in (400, 422) and answer.code in ("invalid", None), (bad, answer)
        assert server.ask("DELETE", "/v1/sessions/%s" % mine[1], token="t0ken-of-alice").status == 204
        support.wait_until(lambda: len(pages(server, token="t0ken-of-alice")[0]) == 2, "it is removed")


def test_a_server_that_saves_nothing_has_no_list(tmp_path):
    with serving.shared("--executor", "subprocess", "--base", tmp_path / "base") as server:
        answer = server.ask("GET", "/v1/saved")
        assert answer.status == 404 and answer.code == "not_found", answer


def test_the_list_of_the_command_line(tmp_path):
    (tmp_path / "work").mkdir()
    flags = ["--saved", tmp_path / "saved"]
    ids = []
    for n in range(3):
        done = workcell(tmp_path / "work", *flags, "--save", "-e", "x = %d" % n)
        assert done.returncode == 0, done
        ids.insert(0, done.stderr.split("--resume ")[1].split()[0])

    def saved(*words):
        return subprocess.run([support.BIN, "saved", *map(str, words)], capture_output=True, text=True, timeout=support.DEADLINE)

    done = saved("list", *flags)
    assert done.returncode == 0 and [line.split()[0] for line in done.stdout.splitlines()] == ids, done
    done = saved("list", *flags, "--limit", "2")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ids[:2] and lines[2].startswith("more: --after "), done
    done = saved("list", *flags, "--limit", "2", "--after", lines[2].split()[-1])
    assert [line.split()[0] for line in done.stdout.splitlines()] == ids[2:], done
    assert saved("list", *flags, "--owner", "somebody").stdout == ""
    done = saved("remove", *flags, "--owner", "somebody", ids[0])
    assert done.returncode == 1 and "not_found" in done.stderr, done
    assert saved("remove", *flags, ids[0], ids[1]).returncode == 0
    assert [line.split()[0] for line in saved("list", *flags).stdout.splitlines()] == ids[2:]
    for bad in (["list"], ["list", *flags, "extra"], ["remove", *flags], ["list", *flags, "--limit", "1001"], ["list", *flags, "--after", "x"]):
        done = saved(*bad)
        assert done.returncode == 2 and "invalid" in done.stderr, (bad, done)


NOTEBOOK = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": {"language": "python", "name": "python3"}}, "cells": [
    {"cell_type": "markdown", "metadata": {}, "source": "# title"},
    {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": ["x = 20\n", "x + 1"]},
    {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": "print('two'); x * 2"}]}


def test_notebooks_over_http(tmp_path):
    """Run as cells of a session, and made of its recording."""
    def run(session, notebook, query="", **options):
        return server.ask("POST", "/v1/sessions/%s/notebook%s" % (session, query), body=notebook, **options)

    (tmp_path / "records").mkdir()
    with serving.shared("--executor", "subprocess", "--base", tmp_path / "base", "--record", tmp_path / "records") as server:
        session = opened(server)
        answer = run(session, NOTEBOOK)
        assert answer.status == 200 and answer.json["cells"] == 2 and answer.json["session_id"] == session, answer
        assert [(each["value"], each["stdout"], each["error"]) for each in answer.json["results"]] == [(21, "", None), (40, "two\n", None)]
        for _ in range(20):  # the last cell is in it, whether it has been written or not
            n = value(server, session, "x += 1; x")
            made = server.ask("GET", "/v1/sessions/%s/notebook" % session)
            assert made.status == 200 and made.json["nbformat"] == 4, made
            assert made.json["cells"][-1]["outputs"][-1]["data"]["text/plain"] == [str(n)] or made.json["cells"][-1]["outputs"][-1]["data"]["text/plain"] == str(n)
        assert "".join(made.json["cells"][0]["source"]) == "x = 20\nx + 1" and len(made.json["cells"]) == 22
        again = opened(server)
        assert [each["value"] for each in run(again, made.json).json["results"]][:2] == [21, 40]  # what was made can be run
        cells = [NOTEBOOK["cells"][1], {**NOTEBOOK["cells"][1], "source": "1 / 0"}, NOTEBOOK["cells"][2]]
        answer = run(session, {**NOTEBOOK, "cells": cells})
        assert answer.json["cells"] == 3 and [each["error_code"] for each in answer.json["results"]] == [None, "exception"], answer
        answer = run(session, {**NOTEBOOK, "cells": [{**NOTEBOOK["cells"][1], "source": "while True: pass"}, cells[0]]}, "?timeout=0.2")
        assert [each["error_code"] for each in answer.json["results"]] == ["timeout"], answer
        assert run(session, {**NOTEBOOK, "cells": []}).json["results"] == []
        for notebook, code in (({"cells": 1}, "invalid"), ([], "invalid"), ({**NOTEBOOK, "nbformat": 3}, "unsupported")):
            answer = run(session, notebook)
            assert answer.status in (400, 422, 501) and answer.code == code, answer
        for method in ("GET", "POST"):
            for token in ("t0ken-of-bob", "t0ken-of-alice"):
                answer = server.ask(method, "/v1/sessions/%s/notebook" % session, token=token)
                assert answer.status == 404 and answer.code == "not_found", answer


def test_a_notebook_of_a_session_that_is_not_recorded(place):
    with serving.shared(*place) as server:
        answer = server.ask("GET", "/v1/sessions/%s/notebook" % opened(server))
        assert answer.status == 501 and answer.code == "unsupported", answer


# ---- names of states ----

def described(server, session):
    answer = server.ask("GET", "/v1/sessions/%s" % session)
    assert answer.status == 200, answer
    return answer.json["state_id"], answer.json["awake_id"]


def posted(server, session, code, state_id=None):
    answer = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": code, **({"state_id": state_id} if state_id else {})})
    if answer.status != 202:
        return answer
    path = "/v1/sessions/%s/runs/%d" % (session, answer.json["run_id"])
    support.wait_until(lambda: server.ask("GET", path).json["state"] == "ended", "the run ends")
    return server.ask("GET", path).json


def test_a_state_has_a_name(place):
    """Another one after each cell, reset and rewind; the same after a question, and after sleep. What a client chose is taken."""
    chosen = "c" * 32
    with serving.shared(*place) as server:
        session = opened(server)
        first, awake = described(server, session)
        assert described(server, session) == (first, awake)
        result = posted(server, session, "x = 1")["result"]
        second = described(server, session)[0]
        assert (result["state_id"], result["awake_id"], result["cells"]) == (second, awake, 1) and second != first, result
        assert server.ask("GET", "/v1/sessions/%s/variables" % session).status == 200
        assert described(server, session) == (second, awake)
        assert posted(server, session, "1/0", chosen)["result"]["state_id"] == chosen
        assert server.ask("POST", "/v1/sessions/%s/checkpoints" % session, {"name": "p"}).status == 201
        assert server.ask("POST", "/v1/sessions/%s/hibernate" % session, {"points": True}).status == 200
        asleep, again = described(server, session)
        assert asleep == chosen and again != awake
        seen = {first, second, chosen}
        for path, body in (("rewind", {"name": "p"}), ("reset", {}), ("rewind", {"name": "p"})):
            assert server.ask("POST", "/v1/sessions/%s/%s" % (session, path), body).status in (200, 204)
            name = described(server, session)[0]
            assert name not in seen, (path, name)
            seen.add(name)
        fork = server.ask("POST", "/v1/sessions/%s/fork" % session)
        assert fork.status == 201 and fork.json["state_id"] not in seen and fork.json["awake_id"] != again, fork


def test_the_same_request_twice_is_one_cell(place):
    """A client or a proxy that lost the answer may send it again: as long as the session has the cell, it does not take place twice."""
    chosen, code = "d" * 32, "n = globals().get('n', 0) + 1\nn"
    with serving.shared(*place) as server:
        session = opened(server)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:  # while it waits, while it runs, and when it has ended
            answers = list(pool.map(lambda _: posted(server, session, code, chosen), range(64)))
        assert {answer["run_id"] for answer in answers} == {1} and {answer["result"]["value"] for answer in answers} == {1}, answers
        assert server.ask("POST", "/v1/sessions/%s/hibernate" % session).status == 200
        refused = posted(server, session, code, chosen)  # the run is not kept any more
        assert refused.status == 409 and refused.json["code"] == "conflict" and "took place" in refused.json["detail"], refused
        assert posted(server, session, code)["result"]["value"] == 2
        other = opened(server)
        assert posted(server, other, code, chosen)["result"]["value"] == 1  # of this session it says nothing


@pytest.mark.parametrize("name", ["", "0" * 32, "D" * 32, "d" * 31, "d" * 33, "../" * 10 + "dd", "d" * 31 + "\0", "d" * 31 + "\n", "d" * 100000, 5, None, ["d" * 32]], ids=lambda name: repr(name)[:20])
def test_a_name_of_a_state_that_is_none_is_refused(place, name):
    with serving.shared(*place) as server:
        session = opened(server)
        answer = server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "1", "state_id": name})
        assert answer.status in (400, 422) and server.ask("GET", "/v1/sessions/%s" % session).json["cells"] == 0, answer
