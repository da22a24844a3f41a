"""workcell.integrations.ray: a pool on a real local cluster of Ray."""
import os
import signal
import threading
import time

import pytest

ray = pytest.importorskip("ray")
from scripted import local_ray  # noqa: E402
from workcell import BusyError, SessionClosedError, SessionExpiredError  # noqa: E402
from workcell.integrations.ray import WorkcellPool  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    with local_ray():
        yield


@pytest.fixture(scope="module")
def pool(cluster):
    with WorkcellPool(2, prepare="base = 40", actor_options={"num_cpus": 0.5}) as made:
        yield made


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def pid_of(pool, number):
    """Of an actor's process."""
    return ray.get(pool._workers[number].__ray_call__.remote(lambda worker: os.getpid()))


def test_a_map_over_all_actors(pool):
    codes = ["base + %d" % n for n in range(20)] + ["1 / 0", "while True: pass", "import os; os._exit(3)", "print('a'); x = 1"]
    limits = [30.0] * len(codes)
    limits[21] = 0.5
    results = dict(pool.map(codes, timeout=limits))
    assert [results[n].value for n in range(20)] == list(range(40, 60)) and len(results) == len(codes)
    assert {results[n].actor for n in results} == {0, 1}
    assert results[20].error_info.type == "ZeroDivisionError" and results[21].error_info.code == "timeout" and results[22].error_info.code == "kernel_died"
    assert results[23].stdout == "a\n" and results[23].is_ok
    # Each has its receipt.
    assert all(results[n].isolation["executor"] == "sandbox" for n in results)


def test_cells_are_kept_apart(pool):
    """Neither variables nor files of a cell are there for the others, nor for the sessions that come later."""
    results = dict(pool.map(["import os; seen = os.listdir('.'); base = 0; open('f%d' % os.getpid(), 'w').close(); seen"] * 8))
    assert [results[n].value for n in range(8)] == [[]] * 8, results
    with pool.session() as session:
        assert session.run("[base, __import__('os').listdir('.')]").value == [40, []]


def test_limits_of_each_cell(pool):
    code = "x = bytearray(300 << 20); len(x)"
    results = dict(pool.map([code, code, "print('y' * 100000)"], memory=[100 << 20, 0, 0], max_output=[0, 0, 2000]))
    assert results[0].error is not None and results[1].value == 300 << 20, results
    assert results[2].is_ok and len(results[2].stdout) < 4000
    for wrong in ({"timeout": [1.0, 2.0]}, {"memory": [1, 2]}):
        with pytest.raises(ValueError):
            pool.map(["1"], **wrong)


def test_sessions_stay_with_their_actor(pool):
    sessions = [pool.session() for _ in range(4)]
    assert {session.actor for session in sessions} == {0, 1}
    for number, session in enumerate(sessions):
        session.run("mine = base + %d" % number)
    assert [session.run("mine").value for session in sessions] == [40, 41, 42, 43]
    assert sessions[0].run("while True: pass", timeout=0.3).error_info.code == "timeout"
    assert sessions[0].run("mine").value == 40
    for session in sessions:
        session.close()
        session.close()
    with pytest.raises(SessionClosedError):
        sessions[0].run("1")


def test_sessions_run_beside_each_other(pool):
    first, second = pool.session(), pool.session()
    third = pool.session()
    assert first.actor == third.actor
    thread = threading.Thread(target=first.run, args=("import time; time.sleep(60)",), daemon=True)
    thread.start()
    assert third.run("2").value == 2 and second.run("3").value == 3
    first.close()  # ends its cell
    thread.join(60)
    assert not thread.is_alive()
    second.close()
    third.close()


def test_a_map_that_is_left(pool):
    """What still runs ends, and the actors are free."""
    results = pool.map(["1"] + ["import time; time.sleep(600)"] * 12)
    assert next(results)[1].value == 1
    results.close()
    assert dict(pool.map(["2"] * 4))[3].value == 2


def test_the_limit_on_sessions(cluster):
    with WorkcellPool(1, max_sessions=2, actor_options={"num_cpus": 0.5}) as pool:
        kept = [pool.session(), pool.session()]
        with pytest.raises(BusyError):
            pool.session()
        kept[0].close()
        assert pool.session().run("1").value == 1


def test_an_actor_that_dies(pool):
    """Its cells run again, on it or elsewhere; its sessions are gone, and say so; it is started again with the prepared state."""
    kept, lost = [pool.session(), pool.session()][::1 if pool._next % 2 == 0 else -1], None
    lost, kept = (kept[0], kept[1]) if kept[0].actor == 0 else (kept[1], kept[0])
    kept.run("x = 5")
    victim = pid_of(pool, 0)
    done, killed = {}, False
    for number, result in pool.map(["import time; time.sleep(0.3); base + %d" % n for n in range(16)]):
        done[number] = result
        if not killed:
            os.kill(victim, signal.SIGKILL)
            killed = True
    assert [done[n].value for n in range(16)] == list(range(40, 56)), done
    wait_until(lambda: not os.path.exists("/proc/%d" % victim))
    with pytest.raises(SessionExpiredError):
        lost.run("1")
    lost.close()
    assert kept.run("x").value == 5
    kept.close()
    ray.get([worker.ready.remote() for worker in pool._workers])
    assert pid_of(pool, 0) != victim
    again = [pool.session(), pool.session()]
    assert [session.run("base").value for session in again] == [40, 40]
    for session in again:
        session.close()


def test_a_pool_whose_actors_are_not_started_again(cluster):
    with WorkcellPool(1, actor_options={"num_cpus": 0.5, "max_restarts": 0}) as pool:
        results = pool.map(["import time; time.sleep(600)"] * 2, retries=0)
        threading.Timer(1, os.kill, (pid_of(pool, 0), signal.SIGKILL)).start()
        assert {result.error_info.code for _, result in results} == {"kernel_died"}
        with pytest.raises(SessionClosedError):
            list(pool.map(["1"]))


def test_what_is_refused(cluster):
    with pytest.raises(ValueError):
        WorkcellPool(0)
    with pytest.raises(ValueError):
        WorkcellPool(1, concurrency=0)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        WorkcellPool(1, prepare="1 / 0", actor_options={"num_cpus": 0.5})
    with pytest.raises(Exception, match="without isolation"):
        WorkcellPool(1, executor="inprocess", actor_options={"num_cpus": 0.5})
    pool = WorkcellPool(1, actor_options={"num_cpus": 0.5})
    victim = pid_of(pool, 0)
    pool.close()
    pool.close()
    with pytest.raises(SessionClosedError):
        pool.session()
    with pytest.raises(SessionClosedError):
        pool.map(["1"])
    wait_until(lambda: not os.path.exists("/proc/%d" % victim))
