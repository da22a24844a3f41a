"""Branches while processes are killed and limits are reached: the answer is a code, nobody else is touched, nothing is left."""
import glob
import os
import signal
import subprocess

import pytest

import serving
import support

CONFINED = """[[line for line in open('/proc/self/status') if line.startswith(('Cap', 'NoNewPrivs', 'Seccomp:'))],
 sorted(line.split()[4] for line in open('/proc/self/mountinfo'))]"""
LAYERS = "/tmp/workcell-layer-*"


@pytest.fixture
def sandboxes(tmp_path):
    server = serving.Server("--executor", "sandbox", "--memory", "128M", "--pids", "12", "--base", tmp_path, pool=0)
    yield server
    server.close()


@pytest.fixture
def server(tmp_path):
    made = serving.Server("--executor", "subprocess", "--base", tmp_path, pool=0)
    made.adopt()
    yield made
    made.close()


def branch(server, session, kind="fork", **body):
    return server.ask("POST", "/v1/sessions/%s/%s" % (session, kind), body)


def value(server, session, code):
    answer = server.execute(code, session)
    assert answer["error"] is None, answer
    return answer["value"]


def end(server, *sessions):
    for session in sessions:
        assert server.ask("DELETE", "/v1/sessions/" + session).status == 204


def test_a_fork_that_does_not_fit_is_refused(sandboxes):
    session = sandboxes.session()
    value(sandboxes, session, "data = bytearray(b'x') * 80_000_000; x = 5")
    for kind, body in (("fork", {}), ("checkpoints", {"name": "a"})):
        answer = branch(sandboxes, session, kind, **body)
        assert answer.code == "cannot_fork" and "limit of 128 MB" in answer.json["detail"], answer
    assert value(sandboxes, session, "[x, len(data)]") == [5, 80_000_000]
    value(sandboxes, session, "del data")
    answer = branch(sandboxes, session)
    assert answer.status == 201 and value(sandboxes, answer.json["session_id"], "x") == 5, answer
    end(sandboxes, session, answer.json["session_id"])


def test_a_fork_of_a_session_without_a_process_left(sandboxes):
    session = sandboxes.session()
    value(sandboxes, session, "import os, signal\nwhile True:\n    try: pid = os.fork()\n    except OSError: break\n    if pid == 0: signal.pause()")
    answer = branch(sandboxes, session)
    assert answer.code == "cannot_fork" and "process" in answer.json["detail"], answer
    answer = branch(sandboxes, session, drop=True)
    assert answer.status == 201 and value(sandboxes, answer.json["session_id"], "os.fork() >= 0") is True, answer
    end(sandboxes, session, answer.json["session_id"])


def test_a_fork_after_the_end_of_its_zygote(sandboxes):
    session = sandboxes.session()
    value(sandboxes, session, "x = 5")
    confined = value(sandboxes, session, CONFINED)
    zygotes = [process.pid for process in support.below(os.getpid()).values() if "zygote.py" in str(process.cmdline)]
    assert zygotes
    for pid in zygotes:
        os.kill(pid, signal.SIGKILL)
    answer = branch(sandboxes, session)
    assert answer.status == 201, answer
    fork = answer.json["session_id"]
    assert value(sandboxes, fork, "x") == 5
    assert value(sandboxes, fork, CONFINED) == confined
    end(sandboxes, session, fork)
    support.wait_until(lambda: not images(sandboxes.pid), "no memory is kept")


def images(pid):
    found = []
    for fd in os.listdir("/proc/%d/fd" % pid):
        try:
            found.append(os.readlink("/proc/%d/fd/%s" % (pid, fd)))
        except OSError:
            pass  # closed meanwhile
    return [target for target in found if "workcell-image" in target]


def test_a_point_is_killed(server):
    session, other = server.session(), server.session()
    value(server, other, "x = 7")
    value(server, session, "x = 1")
    before = {process.pid for process in support.descendants(server.spawner)}
    assert branch(server, session, "checkpoints", name="a").status == 201
    point, = {process.pid for process in support.descendants(server.spawner)} - before
    os.kill(point, signal.SIGKILL)
    support.wait_until(lambda: not server.ask("GET", "/v1/sessions/%s/checkpoints" % session).json["points"], "the point is gone")
    assert branch(server, session, "rewind", name="a").code == "not_found"
    assert value(server, session, "x") == 1 and value(server, other, "x") == 7
    end(server, session, other)


def test_a_fork_outlives_a_source_that_is_killed(server):
    session = server.session()
    value(server, session, "import os; x = [1]")
    fork = branch(server, session).json["session_id"]
    os.kill(value(server, session, "os.getpid()"), signal.SIGKILL)
    assert value(server, fork, "x.append(2); x") == [1, 2]
    support.wait_until(lambda: server.execute("'x' in globals()", session)["value"] is False, "the source has a new kernel")
    end(server, session)
    assert value(server, fork, "x") == [1, 2]
    end(server, fork)


def test_the_spawner_is_killed_beside_forks(server):
    session = server.session()
    value(server, session, "x = 1")
    fork = branch(server, session).json["session_id"]
    assert branch(server, session, "checkpoints", name="a").status == 201
    kernels = [process.pid for process in support.descendants(server.spawner)]
    os.kill(server.spawner, signal.SIGKILL)
    support.wait_until(lambda: not any(support.alive(pid) for pid in kernels), "nothing of it is left")
    assert value(server, server.session(), "1 + 1") == 2
    for each in (session, fork):
        answer = server.ask("POST", "/execute", {"code": "x"}, session=each)
        assert answer.status == 503 and answer.code == "spawner_failed", answer


def test_the_layer_of_a_killed_process_is_removed(tmp_path):
    cow = ("--executor", "sandbox", "--cwd", str(tmp_path), "--workspace-mode", "cow", "--python", support.bare_python())
    before = set(glob.glob(LAYERS))
    process = support.popen([support.BIN, "run", *cow, "-e", "print('here', flush=True); import time; time.sleep(60)"], stdout=subprocess.PIPE,
                            env=support.host_environment())
    assert process.stdout.readline() == b"here\n"
    mine = [path for path in set(glob.glob(LAYERS)) - before if flocked(path, process.pid)]
    assert len(mine) == 1
    assert support.workcell("run", *cow, "-e", "1").status == 0
    assert os.path.exists(mine[0])  # its process lives
    process.kill()
    process.wait()
    process.stdout.close()
    assert os.path.exists(mine[0])
    assert support.workcell("run", *cow, "-e", "1").status == 0
    assert not os.path.exists(mine[0])


def flocked(path, pid):
    for fd in os.listdir("/proc/%d/fd" % pid):
        try:
            if os.readlink("/proc/%d/fd/%s" % (pid, fd)) == path:
                return True
        except OSError:
            pass  # closed meanwhile
    return False
