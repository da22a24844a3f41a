"""What tests/e2e/test_cluster.py does in small, with many sessions, HAProxy, nginx and Traefik, and with networks that are cut. As root.

WORKCELL_TEST_SESSIONS: the number of sessions (200). Deadlines grow with it.
"""
import asyncio
import concurrent.futures
import os
import subprocess

import pytest

import crews
import serving
import spaces
import support

SESSIONS = int(os.environ.get("WORKCELL_TEST_SESSIONS", "200"))
PROXIES = [crews.HAProxy, crews.Nginx, crews.Traefik]  # the stage `cluster` installs them
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="network namespaces need root")


@pytest.fixture
def durable_redis():
    made = spaces.Redis("--appendonly", "yes", "--appendfsync", "always")
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path, durable_redis):
    crew = crews.Crew(tmp_path, durable_redis, lease="15")
    crew.flags = ["--durable", "results", "--storage", durable_redis.url(tmp_path.name + "-store"), "--drain-delay", "1", "--max-sessions", "1000",
                  "--max-connections", "4096", "--max-queue", "1000"]
    yield crew
    crew.close()


def under_load(crew, kind, ports, during):
    """Runs during(load) with SESSIONS clients; returns the load."""
    proxy = kind(crew.path / "proxy.conf", ports)

    async def run():
        async with crews.Load(proxy, SESSIONS, pause=0.5) as load:
            await during(load)
        assert not load.problems, load.problems[:5]
        return load

    try:
        return asyncio.run(run())
    finally:
        proxy.close()


@pytest.mark.parametrize("kind", PROXIES)
def test_a_killed_server(cluster, kind):
    servers = [cluster.start(*cluster.flags) for _ in range(3)]

    async def during(load):
        await load.progress(2)
        await asyncio.to_thread(cluster.kill, servers[0])
        await load.progress(2)

    load = under_load(cluster, kind, [server.port for server in servers], during)
    assert max(load.lost) <= 1, load.lost


def test_redis_is_killed(cluster, durable_redis):
    servers = [cluster.start(*cluster.flags) for _ in range(3)]

    async def during(load):
        await load.progress(2)
        durable_redis.process.kill()
        durable_redis.process.wait()
        await asyncio.to_thread(durable_redis.start)
        await load.progress(2)

    under_load(cluster, crews.HAProxy, [server.port for server in servers], during)


@pytest.mark.parametrize("kind", PROXIES)
def test_a_rolling_update(cluster, kind):
    servers = [cluster.start(*cluster.flags) for _ in range(3)]

    async def during(load):
        await load.progress(2)
        for server in servers:
            await asyncio.to_thread(cluster.stop, server)
            await asyncio.to_thread(cluster.start, *cluster.flags, port=server.port)
            await load.progress(1)

    load = under_load(cluster, kind, [server.port for server in servers], during)
    assert sum(load.lost) == 0, load.lost


def test_from_two_servers_to_five_and_back(cluster):
    ports = [serving.free_port() for _ in range(5)]
    for port in ports[:2]:
        cluster.start(*cluster.flags, port=port)

    async def during(load):
        await load.progress(2)
        for port in ports[2:]:
            await asyncio.to_thread(cluster.start, *cluster.flags, port=port)
        await load.progress(2)
        for _ in range(3):
            await asyncio.to_thread(cluster.stop, cluster.servers[0])
        await load.progress(2)

    load = under_load(cluster, crews.HAProxy, ports, during)
    assert sum(load.lost) == 0 and len(cluster.servers) == 2, load.lost


# ---- networks ----


def ip(*words):
    subprocess.run(["ip", *words], check=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def networks(tmp_path):
    """Three network namespaces on a bridge: [(program that runs workcell there, its address, its link's name)], and the address of the rest."""
    tag = "wc%x" % (os.getpid() & 0xffff)
    found, old = [], support.BIN
    net = "10.%d.%d." % (64 + os.getpid() // 256 % 64, os.getpid() % 256)
    ip("link", "add", tag, "type", "bridge")
    try:
        ip("addr", "add", net + "1/24", "dev", tag)
        ip("link", "set", tag, "up")
        for n in range(3):
            name, link = "%s-%d" % (tag, n), "%sl%d" % (tag, n)
            ip("netns", "add", name)
            program = tmp_path / name
            program.write_text('#!/bin/sh\nexec ip netns exec %s %s "$@"\n' % (name, old))
            program.chmod(0o755)
            found.append((str(program), net + str(n + 2), link))
            ip("link", "add", link, "type", "veth", "peer", "name", "e0", "netns", name)
            ip("link", "set", link, "master", tag, "up")
            for words in (["addr", "add", net + "%d/24" % (n + 2), "dev", "e0"], ["link", "set", "e0", "up"], ["link", "set", "lo", "up"]):
                ip("-n", name, *words)
        yield found, net + "1"
    finally:
        support.BIN = old
        for program, _, _ in found:
            subprocess.run(["ip", "netns", "del", os.path.basename(program)], check=False)
        ip("link", "del", tag)


def test_a_network_that_is_cut_and_healed(tmp_path, networks):
    """A server loses its network while a cell runs there. Others take its sessions over when its leases have ended, and its kernels end before that."""
    places, host = networks
    port = serving.free_port()
    redis = spaces.Redis("--port", str(port), "--bind", host, "--protected-mode", "no", "--appendonly", "yes", "--appendfsync", "always")
    crew = crews.Crew(tmp_path, redis, lease="6")
    crew.place[0] = "redis://%s:%d?prefix=%s" % (host, port, tmp_path.name)
    flags = ["--durable", "results", "--storage", "redis://%s:%d?prefix=store" % (host, port), "--max-sessions", "1000", "--max-queue", "1000"]
    servers = []
    try:
        for program, address, _ in places:
            support.BIN = program
            servers.append(crew.start(*flags, address=address))
        proxy = crews.HAProxy(tmp_path / "proxy.conf", ["%s:%d" % (place[1], server.port) for place, server in zip(places, servers)])
        cut = servers[0]
        session = cut.session()
        assert cut.execute(crews.PRELUDE, session)["error"] is None
        pid = cut.execute("import os; os.getpid()", session)["value"]
        long = "import fcntl, time\nfile = open('lock-long', 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\nopen('began', 'w').close()\ntime.sleep(600)"

        async def during(load):
            await load.progress(2)
            ip("link", "set", places[0][2], "down")
            await asyncio.to_thread(support.wait_until, lambda: not os.path.exists("/proc/%d" % pid), "its kernel ends")
            answer = await asyncio.to_thread(support.wait_until, lambda: taken_over(proxy, session), "another one has it")
            assert answer["value"] == 1 and answer["error"] is None, answer
            await load.progress(2)
            ip("link", "set", places[0][2], "up")
            await asyncio.to_thread(support.wait_until, lambda: cut.metric("sessions") >= 0, "it answers again")
            await load.progress(2)
            answer = await asyncio.to_thread(cut.execute, "step('long', False)", session)  # the healed one passes it on
            assert answer["value"] == 2, answer

        async def run():
            async with crews.Load(proxy, min(SESSIONS, 20), pause=0.2) as load:
                await during(load)
            assert not load.problems, load.problems[:5]

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(lost, cut, long, session)
            support.wait_until(lambda: os.path.exists(tmp_path / "work" / "began"), "the long cell runs")
            asyncio.run(run())
    finally:
        if servers:
            proxy.close()
        crew.close()
        redis.close()


def lost(server, code, session):
    """A cell whose answer cannot come."""
    try:
        server.ask("POST", "/execute", {"code": code}, session=session)
    except OSError:
        pass


def taken_over(proxy, session):
    answer = proxy.ask("POST", "/execute", {"code": "step('long', False)"}, session=session)
    assert answer.status in (200, 502, 503), answer
    return answer.json if answer.status == 200 else None
