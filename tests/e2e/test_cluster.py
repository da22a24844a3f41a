"""Three servers, one Redis and HAProxy, with clients of the SDK whose sessions are durable, while parts die: nothing that was answered is lost, and no session
is run by two servers. The stage `cluster` does the same with 200 sessions, nginx, and networks that are cut."""
import asyncio
import concurrent.futures
import threading

import pytest

import crews
import serving
import spaces
import support

SESSIONS = 6


def test_servers_and_redis_come_and_go(tmp_path):
    redis = spaces.Redis("--appendonly", "yes", "--appendfsync", "always")
    crew = crews.Crew(tmp_path, redis, lease="5")
    ports = [serving.free_port() for _ in range(4)]
    flags = ["--durable", "results", "--storage", redis.url(tmp_path.name + "-store"), "--drain-delay", "0.5"]

    async def run(proxy):
        async with crews.Load(proxy, SESSIONS) as load:
            await load.progress()
            await asyncio.to_thread(crew.start, *flags, port=ports[2])  # one more
            await asyncio.to_thread(crew.kill, crew.servers[0])
            await load.progress()
            redis.process.kill()
            redis.process.wait()
            await asyncio.to_thread(redis.start)
            await load.progress()
            await asyncio.to_thread(crew.start, *flags, port=ports[3])
            await asyncio.to_thread(crew.stop, crew.servers[0])  # in order
            await load.progress()
        assert not load.problems, load.problems
        assert sum(load.counts) >= SESSIONS * 12 and max(load.lost) <= 2, (load.counts, load.lost)
        assert load.unknown_ever == 0

    proxy = None
    try:
        for port in ports[:2]:
            crew.start(*flags, port=port)
        proxy = crews.HAProxy(tmp_path / "haproxy.cfg", ports)
        asyncio.run(run(proxy))
    finally:
        if proxy:
            proxy.close()
        crew.close()
        redis.close()


@pytest.mark.parametrize("repeats", [True, False])
def test_a_server_that_dies_in_the_middle_of_a_cell(tmp_path, redis, repeats):
    """Its session wakes as it was before the cell. A client that allows it has the cell run again, and sees nothing of that."""
    from workcell import ContainerConfig, ContainerExecutor
    from workcell.sync import Session
    crew = crews.Crew(tmp_path, redis)
    servers = {"http://127.0.0.1:%d" % server.port: server for server in (crew.start("--durable", "results") for _ in range(2))}
    proxy = crews.HAProxy(tmp_path / "haproxy.cfg", [server.port for server in servers.values()])
    began, code = tmp_path / "work" / "began", "import os, time\nn += 1\nopen('began', 'a').write('x')\nwhile not os.path.exists('go'): time.sleep(0.01)\nn"
    config = ContainerConfig(remote_url="http://127.0.0.1:%d" % proxy.port, auth_token=serving.TOKEN, remote_repeat=repeats)

    def die():
        support.wait_until(began.exists, "the cell runs")
        owner, = crew.owners().values()
        crew.kill(servers[owner])
        (tmp_path / "work" / "go").touch()

    try:
        with Session(executor=ContainerExecutor(config)) as session:
            assert session.run("n = 1").durable
            killer = threading.Thread(target=die)
            killer.start()
            result = session.run(code)
            killer.join()
            if repeats:
                assert result.value == 2 and result.durable and began.read_text() == "xx", result
            else:
                assert result.error_info.code == "kernel_died" and result.error_info.retry is True and result.state == "restored" and began.read_text() == "x", result
            assert session.run("n").value == (2 if repeats else 1)
    finally:
        proxy.close()
        crew.close()


class Lost:
    """Two servers of durable sessions behind HAProxy, and a client whose answers can be held back on their way from it."""

    def __init__(self, tmp_path, redis):
        self.work, self.crew = tmp_path / "work", crews.Crew(tmp_path, redis)
        self.servers = {"http://127.0.0.1:%d" % server.port: server for server in (self.crew.start("--durable", "results") for _ in range(2))}
        self.proxy = crews.HAProxy(tmp_path / "haproxy.cfg", [server.port for server in self.servers.values()])
        self.line = serving.Proxy(self.proxy.port)
        self.pool = concurrent.futures.ThreadPoolExecutor(1)

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.line.close()
        self.pool.shutdown()
        self.proxy.close()
        self.crew.close()

    def session(self):
        from workcell import ContainerConfig, ContainerExecutor
        from workcell.sync import Session
        return Session(executor=ContainerExecutor(ContainerConfig(remote_url="http://127.0.0.1:%d" % self.line.port, auth_token=serving.TOKEN)))

    def describe(self):
        (owner, id), = ((url, name) for name, url in self.crew.owners().items())
        return self.servers[owner], self.servers[owner].ask("GET", "/v1/sessions/%s" % id).json

    def run(self, session, code, when):
        """The result of a cell whose answer is held back until when() holds of the session at its server, which dies then; and the session's id."""
        self.line.passes.clear()
        result = self.pool.submit(session.run, code)
        support.wait_until(lambda: when(self.describe()[1]), "the moment")
        server, info = self.describe()
        self.crew.kill(server)
        return result, info["session_id"]


def test_a_server_that_dies_with_the_answer_of_a_saved_cell(tmp_path, redis):
    """The client must not run it again, and is told so."""
    with Lost(tmp_path, redis) as lost, lost.session() as session:
        assert session.run("n = 1").durable
        result, _ = lost.run(session, "n += 1", lambda info: info["cells"] == 2 and info["state"] == "idle")
        lost.line.lose()
        result = result.result()
        assert result.error_info.code == "kernel_died" and result.error_info.retry is False and "do not run it again" in result.error, result
        assert result.state == "kept" and session.run("n").value == 2


def test_a_second_client_after_the_death_of_a_server(tmp_path, redis):
    """Its cell woke the session: of the first client's cell it is not known any more whether it is in there."""
    code = "import os, time\nopen('began', 'a').write('x')\nwhile not os.path.exists('go'): time.sleep(0.01)\nn += 1"
    with Lost(tmp_path, redis) as lost, lost.session() as session:
        assert session.run("n = 1").durable
        result, id = lost.run(session, code, lambda info: (lost.work / "began").exists())
        answer = lost.proxy.ask("POST", "/execute", {"code": "n * 10"}, session=id)
        assert answer.json["value"] == 10, answer
        lost.line.lose()
        result = result.result()
        assert result.error_info.code == "kernel_died" and result.error_info.retry is None and "not known" in result.error, result
        assert session.run("n").value == 1 and (lost.work / "began").read_text() == "x"
        # From here on the client knows the state again.
        (lost.work / "began").unlink()
        result, _ = lost.run(session, code, lambda info: (lost.work / "began").exists())
        (lost.work / "go").touch()
        lost.crew.start("--durable", "results", port=next(server.port for server in lost.servers.values() if server.process.poll() is not None))
        lost.line.lose()
        assert result.result().error_info.retry is True
