"""The executor container, in a real engine: what is applied, who is let in, what is left, and what happens when parts go away.

Run by the stage `containers` of scripts/run_tests.py, which makes engine and image ready.
"""
import glob
import http.client
import json
import os
import re
import socket
import subprocess
import threading

import pytest

import containers
import serving
import support
from containers import Container, refused

ENGINE = containers.FLAGS[2:4]
SMALL = ["--network-disabled", "--memory-limit", "256m", "--cpu-quota", "50000", "--pids-limit", "64"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One with all limits, and folders."""
    base = tmp_path_factory.mktemp("base")
    (base / "tools").mkdir()
    (base / "tools" / "echo.yaml").write_text(
        "name: echo\ntype: cli\ncommand: echo\nschema:\n  positional:\n    - {name: text, type: string, required: true}\n"
        "recipes:\n  say:\n    params: {text: {}}\n")
    for path in (base.parent, base.parent.parent):
        os.chmod(path, 0o755)
    containers.give(base)
    driver = Container(*SMALL, "--base", base)
    driver.base = base
    support.shared_drivers.append(driver)
    yield driver
    support.shared_drivers.remove(driver)
    assert driver.close() == 0


def folder_of(container):
    return containers.inspect(container)["Config"]["Labels"]["workcell.folder"]


@pytest.mark.engine
def test_the_limits_are_applied_and_can_be_seen(small):
    found = containers.inspect(small.id())
    host = found["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 256 << 20
    assert (host["CpuQuota"], host["CpuPeriod"], host["PidsLimit"]) == (50000, 100000, 64)
    assert host["NetworkMode"] == "none" and host["ReadonlyRootfs"] is True and host["Privileged"] is False
    # Podman names them one by one.
    assert (host["CapDrop"] == ["ALL"] or len(host["CapDrop"]) > 10) and not host["CapAdd"] and host["SecurityOpt"] == ["no-new-privileges"]
    assert found["Config"]["User"] == "10001:10001" and found["HostConfig"]["RestartPolicy"]["Name"] == "no"
    status = small.value("dict(l.split(':', 1) for l in open('/proc/self/status').read().splitlines() if ':' in l)")
    assert status["CapEff"].strip() == status["CapBnd"].strip() == "0000000000000000"
    assert status["NoNewPrivs"].strip() == "1" and status["Uid"].split() == ["10001"] * 4
    assert small.value("__import__('os').listdir('/sys/class/net')") == ["lo"]
    with pytest.raises(AssertionError, match="Read-only file system"):
        small.value("open('/usr/x', 'w')")


@pytest.mark.engine
def test_the_memory_limit_holds(small):
    before = small.id()
    result = small.run("b = bytearray(400 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1")
    assert result["error"]["code"] in ("kernel_died", "limit_exceeded") or result["error"]["type"] == "MemoryError", result
    assert small.value("6 * 7") == 42 and small.id() == before


@pytest.mark.engine
def test_the_process_limit_holds(small):
    value = small.value("""
import os, time
n = 0
try:
    pids = []
    while n < 100:
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        pids.append(pid)
        n += 1
except BlockingIOError:
    pass
for pid in pids:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
n""")
    assert value < 64


@pytest.mark.engine
def test_tools_are_read_only_and_storage_is_shared(small):
    assert small.value("tools.echo.say(text='hi')").strip() == "hi"
    mounts = {mount["Destination"]: mount for mount in containers.inspect(small.id())["Mounts"]}
    assert mounts["/workspace"]["RW"] is True and mounts["/workspace/tools"]["RW"] is False
    for code in ("open('/workspace/tools/x.yaml', 'w')", "__import__('os').unlink('/workspace/tools/echo.yaml')",
                 "__import__('os').rename('/workspace/tools', '/workspace/t')"):
        assert small.run(code)["error"]["type"] == "OSError"
    small.value("artifacts.save('a/b.txt', 'data'); workflows.create(name='w', source='async def run() -> int:\\n    return 7', description='d')")
    assert (small.base / "artifacts" / "a" / "b.txt").read_text() == "data" and (small.base / "workflows" / "w.py").exists()
    assert small.value("workflows.w()") == 7


@pytest.mark.engine
def test_nobody_finds_the_token(small):
    container = small.id()
    folder = folder_of(container)
    assert os.stat(folder).st_mode & 0o777 == (0o700 if os.getuid() else 0o711)
    # Neither outside, after the start, nor for the code, nor in what the engine shows.
    assert sorted(os.listdir(folder)) == ["server.sock"]
    for name in ("token", "serve.yaml"):
        assert small.value("__import__('os').path.exists('/run/workcell/%s')" % name) is False
    config = containers.inspect(container)["Config"]
    assert config["Entrypoint"] + config["Cmd"] == ["workcell", "serve", "--config", "/run/workcell/serve.yaml", "--log", "text"]
    names = {variable.split("=")[0] for variable in config["Env"]} - {"TERM", "HOSTNAME", "container"}  # of Podman's own
    assert names == {"HOME", "LANG", "PATH", "XDG_CACHE_HOME"}
    assert may_open(folder) == 401


@pytest.mark.engine
def test_the_code_cannot_take_the_sockets_place(small):
    before = small.id()
    result = small.run("import os\nos.rename('/run/workcell/server.sock', '/run/workcell/old')\n"
                       "os.symlink('/run/other.sock', '/run/workcell/server.sock')")
    # Where we are root the folder is not theirs any more; else what they put there is not looked at.
    assert (result["error"] or {}).get("type") == (None if os.getuid() else "PermissionError")
    small.reset()
    assert small.id() == before


def may_open(folder, **headers):
    connection = serving.UnixConnection(folder + "/server.sock")
    connection.request("GET", "/v1/sessions", headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_token_of_the_callers_and_none(tmp_path):
    (tmp_path / "token").write_text("t0ken-of-ours\n")
    for flags, headers in ((["--auth-token-file", tmp_path / "token"], {"Authorization": "Bearer t0ken-of-ours"}),
                           (["--auth-disabled"], {})):
        driver = Container("--network-disabled", *flags)
        container = driver.id()
        assert "t0ken" not in json.dumps(containers.inspect(container)) + "".join(containers.processes(container))
        assert may_open(folder_of(container), **headers) == 200
        assert may_open(folder_of(container), Authorization="Bearer other") == (401 if headers else 200)
        assert driver.close() == 0


@pytest.mark.parametrize("isolation", ["executor", "session"])
def test_sessions_share_a_container_or_have_one_each(isolation):
    program = os.path.join(os.path.dirname(support.BIN), "tests", "container-many")
    done = subprocess.run([program, containers.HOST, containers.IMAGE, "3", isolation], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=support.DEADLINE)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    ids = [result["isolation"]["container"] for result in results]
    assert len(set(ids)) == (1 if isolation == "executor" else 3)
    assert [result["value"] for result in results] == ([1, 2, 3] if isolation == "executor" else [1, 1, 1])
    assert not set(containers.ours()) & set(ids)


@pytest.mark.engine
def test_a_container_that_dies_is_replaced():
    driver = Container("--network-disabled")
    first = driver.id()
    driver.value("x = 1")
    driver.start("import time; time.sleep(60)")
    support.wait_until(lambda: any("python" in line for line in containers.processes(first)), "it runs")
    containers.kill(first)
    result = driver.answer()
    assert result["error"]["code"] == "kernel_died", result
    # Whichever comes first: the engine's word, or that nobody listens any more.
    assert re.search("the container ended with status 137|connect|sending data", result["error"]["message"]), result
    assert result["state"] == "lost"
    assert driver.value("'x' in dir()") is False
    second = driver.id()
    assert second != first
    containers.kill(second)  # between runs
    support.wait_until(lambda: second not in containers.ours(), "it is removed")
    assert driver.value("1") == 1
    assert driver.close() == 0
    assert not {first, second} & set(containers.ours())


@pytest.mark.engine
def test_a_killed_program_leaves_nothing_for_long():
    driver = Container("--network-disabled")
    left = driver.id()
    folder = folder_of(left)
    driver.kill()
    assert support.workcell("run", *containers.FLAGS, "--network-disabled", "-e", "1").status == 0
    assert left not in containers.ours() and not os.path.exists(folder)


def test_a_session_server_whose_sessions_are_in_a_container(redis, tmp_path):
    """Two workspaces in one container; the server is killed under load, and the next one sweeps and finds all that was stored."""
    flags = [*containers.FLAGS, "--network-disabled", "--storage", redis.url(tmp_path.name)]
    server = serving.Server(*flags, tokens=serving.TOKEN)
    answer = server.ask("POST", "/sessions", {"workspace_id": "team"})
    team = answer.json["session_id"]
    source = "async def run() -> int:\n    return 7"
    server.execute("workflows.create(name='w', source=%r, description='d'); artifacts.save('a', 'team')" % source, session=team)
    server.execute("artifacts.save('a', 'nobody')")
    assert server.execute("[artifacts.load('a'), workflows.w()]", session=team)["value"] == ["team", 7]
    assert server.ask("GET", "/api/workflows", session=team).json[0]["name"] == "w"
    left, = containers.of(server.pid)
    threading.Thread(target=lambda: suppress(lambda: server.execute("import time; time.sleep(60)", session=team)), daemon=True).start()
    support.wait_until(lambda: server.metric("runs_running"), "it runs")
    server.process.kill()
    server.process.wait()
    assert left in containers.ours()
    server = serving.Server(*flags, tokens=serving.TOKEN)
    assert server.execute("artifacts.load('a')")["value"] == "nobody"
    assert left not in containers.ours()
    server.close()
    assert not containers.of(server.pid)
    no_token_is_left()


@pytest.mark.skipif(os.getuid() != 0, reason="root's own folder")
def test_a_session_server_of_roots_with_a_folder(tmp_path):
    """Both write to it, and what the code puts into it brings it nowhere else."""
    for path in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(path, 0o755)
    base, flags = tmp_path / "base", [*containers.FLAGS, "--network-disabled", "--base", tmp_path / "base"]
    server = serving.Server(*flags, tokens=serving.TOKEN, pool=0)
    assert os.stat(base).st_uid == containers.USER
    assert server.ask("PUT", "/api/artifacts/deep/one", b"1").status == 200
    session = server.session(body={"workspace_id": "team"})
    plain = server.execute("artifacts.save('deep/one', 'inside'); artifacts.save('deep/two', 'x'); artifacts.load('deep/one')")
    assert plain["value"] == "inside", plain
    assert server.ask("PUT", "/api/artifacts/deep/two", b"2", session=session).status == 200
    assert server.execute("artifacts.save('deep/two', 'mine'); artifacts.load('deep/two')", session=session)["value"] == "mine"
    assert {os.stat(path).st_uid for path in base.rglob("*") if not path.is_symlink()} == {containers.USER}

    # Links, to read and write what is not in the storage; the first of them in the place of a folder.
    swap = "import os; os.rename('/workspace/%s', '/workspace/old'); os.symlink('/etc', '/workspace/%s'); 1"
    back = "os.unlink('/workspace/%s'); os.rename('/workspace/old', '/workspace/%s'); 1"
    assert server.execute(swap % ("artifacts", "artifacts"), session=session)["value"] == 1
    for method in ("GET", "PUT", "DELETE"):
        assert server.ask(method, "/api/artifacts/passwd", b"x" if method == "PUT" else None).status in (400, 404)
    assert server.execute(back % ("artifacts", "artifacts"), session=session)["value"] == 1
    assert server.execute(swap % ("workspaces", "workspaces"), session=session)["value"] == 1
    assert server.ask("POST", "/sessions", {"workspace_id": "ssl"}).status >= 400
    assert server.execute(back % ("workspaces", "workspaces"), session=session)["value"] == 1

    # Tools of its own are nobody else's, and no tool is called outside.
    evil = "name: evil\ntype: mcp\ncommand: touch\nargs: [%s]\n" % (tmp_path / "evil")
    assert "Read-only" in server.execute("open('/workspace/tools/e.yaml', 'w').write(%r)" % evil, session=session)["error"]
    assert server.execute("os.mkdir('/workspace/mcptools'); open('/workspace/mcptools/e.yaml', 'w').write(%r)" % evil, session=session)["error"] is None
    assert server.ask("GET", "/api/tools").json == [] and not (tmp_path / "evil").exists()
    answer = server.ask("POST", "/api/tools/evil/call", session=session)
    assert answer.status == 501 and answer.code == "executor_unavailable", answer
    server.close()

    # What root has in it already is not given away, nor used.
    os.makedirs(tmp_path / "roots" / "artifacts")
    assert "chown -R 10001:10001" in refused("forbidden", *containers.FLAGS[2:], "--storage", tmp_path / "roots")
    os.chown(tmp_path / "roots", 4242, 4242)
    assert "artifacts is not accessible" in refused("forbidden", *containers.FLAGS[2:], "--storage", tmp_path / "roots")
    os.chown(tmp_path / "roots" / "artifacts", 4242, 4242)
    driver = Container("--network-disabled", "--storage", tmp_path / "roots")  # whose it is
    assert driver.value("import os; os.getuid()") == 4242
    assert driver.close() == 0


def no_token_is_left():
    """Those of containers that others start now go away as well."""
    left = set(glob.glob("/tmp/workcell-container-*/token"))
    support.wait_until(lambda: not left & set(glob.glob("/tmp/workcell-container-*/token")), "no token is left: %s" % left)


def suppress(call):
    try:
        call()
    except (OSError, http.client.HTTPException):
        pass


def test_others_that_live_are_left_alone(small):
    kept = small.id()
    assert support.workcell("run", *containers.FLAGS, "-e", "1").status == 0
    assert kept in containers.ours() and small.value("1") == 1


class Relay:
    """A socket of our own before the engine's, which can go away."""

    def __init__(self, path):
        self.path, self.links = str(path), []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(containers.HOST[len("unix://"):])
            self.links += [client, engine]
            for one, other in ((client, engine), (engine, client)):
                threading.Thread(target=self.pump, args=(one, other), daemon=True).start()

    @staticmethod
    def pump(source, sink):
        try:
            while True:
                data = source.recv(16384)
                if not data:
                    break
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def vanish(self):
        os.unlink(self.path)
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for link in self.links:
            link.close()


def test_the_engines_socket_vanishes(tmp_path):
    relay = Relay(tmp_path / "s")
    driver = support.Driver("--container-host", "unix://" + relay.path, "--image", containers.IMAGE, "--network-disabled",
                            executor="container")
    container = driver.run("x = 1; x")["isolation"]["container"]
    relay.vanish()
    # Sessions do not need it.
    assert driver.value("x + 1") == 2
    driver.reset()
    assert driver.run("'x' in dir()")["isolation"]["container"] == container
    # Without it the container cannot be removed, and the next program does it.
    assert driver.close() == 0
    assert support.workcell("run", *containers.FLAGS, "-e", "1").status == 0
    assert container not in containers.ours()


@pytest.mark.engine
def test_a_caller_who_is_not_root(tmp_path):
    """With access to the engine's socket, as the group docker has; able to read all files, because ours may lie anywhere."""
    for path in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(path, 0o755)
    relay = Relay(tmp_path / "s")
    os.chmod(relay.path, 0o666)
    (tmp_path / "base").mkdir()
    os.chown(tmp_path / "base", 4242, 4242)
    driver = support.Driver("--container-host", "unix://" + relay.path, "--image", containers.IMAGE, "--network-disabled", "--base",
                            tmp_path / "base", executor="container",
                            prefix=["setpriv", "--reuid", "4242", "--regid", "4242", "--clear-groups", "--inh-caps", "+dac_read_search",
                                    "--ambient-caps", "+dac_read_search"])
    assert driver.value("import os; [os.getuid(), os.getgid(), os.path.expanduser('~')]") == [4242, 4242, "/home/workcell"]
    driver.value("artifacts.save('a', 'b'); open(os.path.expanduser('~/f'), 'w').close()")
    assert os.stat(tmp_path / "base" / "artifacts" / "a").st_uid == 4242
    container = driver.run("1")["isolation"]["container"]
    folder = folder_of(container)
    # What they put in the socket's place is not looked at.
    driver.value("os.rename('/run/workcell/server.sock', '/run/workcell/old'); os.symlink('/run/other', '/run/workcell/server.sock')")
    driver.reset()
    assert driver.run("1")["isolation"]["container"] == container
    assert driver.close() == 0
    assert container not in containers.ours() and not os.path.exists(folder)
    relay.vanish()


def test_what_cannot_be(tmp_path):
    assert "Couldn't connect" in refused("executor_unavailable", "--container-host", "unix://%s/none" % tmp_path)
    refused("invalid", "--container-host", "ssh://host")
    refused("invalid", *containers.FLAGS[2:], "--memory-limit", "1m")
    refused("invalid", *containers.FLAGS[2:], "--cpu-quota", "10")
    refused("invalid", *containers.FLAGS[2:], "--pids-limit", "1")
    refused("invalid", *containers.FLAGS[2:], "--container-user", "0:0")
    refused("invalid", *containers.FLAGS[2:], "--isolation", "some")
    refused("invalid", *ENGINE, "--image", "a b&c")
    refused("not_found", *containers.FLAGS[2:], "--tools", tmp_path / "none")
    # Calls are made inside: what would look at them here must not be thought to.
    assert "would not see the calls" in refused("invalid", *containers.FLAGS[2:], "--approve", "deny")
    done = support.workcell("run", "--image", "x", "-e", "1")
    assert done.status == support.EXIT["invalid"] and "--image requires --executor container" in done.err, done
    no_token_is_left()


@pytest.mark.engine
def test_an_image_without_our_program_says_so():
    message = refused("io", *ENGINE, "--image", os.environ["WORKCELL_TEST_BASE"])
    assert "workcell" in message and "executable file not found" in message


def context(tmp_path, text):
    (tmp_path / "packaging").mkdir()
    (tmp_path / "packaging" / "Dockerfile").write_text(text)
    return ["--container-context", tmp_path]


@pytest.mark.engine
def test_a_missing_image_is_built(tmp_path):
    name = "workcell-test-missing:%d" % os.getpid()
    flags = context(tmp_path, "FROM %s\nLABEL made.by=test\n" % containers.IMAGE)
    try:
        done = support.workcell("run", "--executor", "container", *ENGINE, "--image", name, *flags, "-e", "6 * 7")
        assert (done.status, done.out) == (0, "42\n"), done
        assert "not found: building it" in done.err and re.search("(?i)step 2/2 ?: LABEL made.by=test", done.err)
        assert containers.engine("GET", "/images/%s/json" % name)["Config"]["Labels"]["made.by"] == "test"
    finally:
        containers.remove_image(name)


@pytest.mark.engine
def test_builds_that_fail(tmp_path):
    missing = ["--image", "workcell-test-none:1"]
    assert "packaging/Dockerfile" in refused("not_found", *ENGINE, *missing, "--container-context", tmp_path)
    flags = context(tmp_path, "FROM %s\nRUN echo spoken; exit 3\n" % containers.IMAGE)
    done = support.workcell("container", "build", *ENGINE, *missing, *flags)
    ended = "returned a non-zero code: 3|exit status 3"  # Docker's words, and Podman's
    assert done.status != 0 and "spoken" in done.err and re.search(ended, done.err), done
    assert re.search(ended, refused("install_failed", *ENGINE, *missing, *flags))


def test_long_names_and_links_reach_the_build(tmp_path):
    deep = tmp_path / ("d" * 90) / ("e" * 60)
    deep.mkdir(parents=True)
    (deep / "file").write_text("x" * 1500)
    (deep / "program").write_text("#!/bin/sh\n")
    (deep / "program").chmod(0o755)
    (tmp_path / "link").symlink_to("packaging")
    (deep / "build.c").write_text("")
    for name in (".git", "build-x"):
        (tmp_path / name).mkdir()
    where = "/c/%s/%s" % ("d" * 90, "e" * 60)
    flags = context(tmp_path, "FROM %s\nCOPY . /c\nRUN test $(stat -c %%s %s/file) = 1500 && test -x %s/program && test -L /c/link "
                              "&& ! test -e /c/.git && ! test -e /c/build-x && ! test -x %s/file && test -e %s/build.c\n"
                    % (containers.IMAGE, where, where, where, where))
    done = support.workcell("container", "build", *ENGINE, "--image", "workcell-test-names:1", *flags)
    assert done.status == 0, done
    containers.remove_image("workcell-test-names:1")


def test_a_server_that_does_not_come_up(tmp_path):
    """The program inside ends at once, or never answers: its last words, and a time-out."""
    name = "workcell-test-broken:%d" % os.getpid()
    for words, code, flags in (("echo last words >&2; exit 5", "kernel_failed", []), ("sleep 60", "start_timeout", ["--startup-timeout", "3"])):
        where = tmp_path / code
        where.mkdir()
        build = context(where, "FROM %s\nUSER 0\nRUN printf '#!/bin/sh\\n%s\\n' >/usr/local/bin/workcell\n" % (containers.IMAGE, words))
        assert support.workcell("container", "build", *ENGINE, "--image", name, *build).status == 0
        message = refused(code, *ENGINE, "--image", name, *flags)
        assert ("status 5" in message and "last words" in message) if code == "kernel_failed" else "healthy within 3 s" in message
    done = support.workcell("run", "--executor", "container", *ENGINE, "--image", name, *flags, "-e", "1")
    assert done.status == 125 and "waiting for its server, 2 s" in done.err, done  # progress
    containers.remove_image(name)
