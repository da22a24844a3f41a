"""Three servers, one Redis and HAProxy, with clients of the SDK whose sessions are durable, while parts die: nothing that was answered is lost, and no session
is run by two servers. The stage `cluster` does the same with 200 sessions, nginx, and networks that are cut."""
import asyncio
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
                assert result.error_info.code == "kernel_died" and "its result is lost" in result.error and began.read_text() == "x", result
            assert session.run("n").value == (2 if repeats else 1)
    finally:
        proxy.close()
        crew.close()
