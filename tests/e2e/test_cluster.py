"""Three servers, one Redis and HAProxy, with clients of the SDK whose sessions are durable, while parts die: nothing that was answered is lost, and no session
is run by two servers. The stage `cluster` does the same with 200 sessions, nginx, and networks that are cut."""
import asyncio

import crews
import serving
import spaces

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
