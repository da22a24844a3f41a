"""Deno, Jupyter, session servers, and storage in Redis: the same session everywhere."""
import asyncio
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT, run

sys.path.append(os.path.join(ROOT, "tests"))

import serving  # noqa: E402
import spaces  # noqa: E402

import workcell  # noqa: E402
from workcell import (AuthError, BusyError, CodeModeError, ConfigurationError, ContainerConfig, ContainerExecutor,  # noqa: E402
                      DenoSandboxConfig, DenoSandboxExecutor, FileStorage, JupyterExecutor, RedisStorage, ServerError, Session,
                      SessionExpiredError, SubprocessConfig, SubprocessExecutor)
from workcell.errors import from_native  # noqa: E402
from workcell.sync import Session as SyncSession  # noqa: E402


@pytest.fixture(scope="module")
def redis():
    server = spaces.Redis()
    yield server
    server.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base = tmp_path_factory.mktemp("served")
    (base / "tools").mkdir()
    (base / "tools" / "say.yaml").write_text(
        "name: say\ntype: cli\ncommand: echo\ndescription: Says it\nschema:\n  positional:\n    - {name: words, type: string}\n"
        "recipes:\n  all:\n    description: Says all\n    params: {words: {}}\n")
    made = serving.Server("--executor", "subprocess", "--base", base)
    yield made
    made.close()


def at(server, token=serving.TOKEN, **options):
    return ContainerExecutor(ContainerConfig(remote_url="http://127.0.0.1:%d" % server.port, auth_token=token, **options))


# ---- deno


def test_deno(storage):
    async def main():
        session = Session(storage, DenoSandboxExecutor(DenoSandboxConfig(network_profile="none")))

        @session.tool
        async def double(n: int) -> int:
            return 2 * n

        async with session:
            assert (await session.run("import sys\nsys.platform, await tools.double(n=4)")).value == ("emscripten", 8)
            assert not (await session.run("import socket\nsocket.create_connection(('127.0.0.1', 9), 2)")).is_ok
            await session.save_artifact("note", "text")
            assert (await session.run("artifacts.load('note')")).value == "text"
            assert session.supports("network_filtering")

    run(main())


def test_the_engines_cache_dir(tmp_path):
    with workcell.Engine(cache_dir=tmp_path) as engine:
        row = {row.name: row for row in engine.executors()}["deno"]
        assert not row.available and row.reason
        with pytest.raises(workcell.ExecutorUnavailableError, match="deno"), \
                SyncSession.scratch(DenoSandboxExecutor(), engine=engine):
            pass


# ---- jupyter


def test_jupyter(storage):
    async def main():
        async with Session(storage, JupyterExecutor()) as session:
            result = await session.run("print('hi')\ntype(get_ipython().kernel).__module__.partition('.')[0]")
            assert (result.value, result.stdout) == ("ipykernel", "hi\n"), result.error
            await session.save_artifact("note", [1, 2])
            assert (await session.run("artifacts.load('note')")).value == [1, 2]
            assert (await session.run("1, b'x'")).value == (1, b"x")

    run(main())


# ---- a session server


def test_remote_session(server, storage):
    async def main():
        async with Session(storage, at(server)) as session:
            assert (await session.run("import os\nx = os.getpid()\nprint('hi')\nx")).value != os.getpid()
            events = [event async for event in session.stream("print('a')\n[1, x > 1]")]
            assert events[-1].result.value == [1, True]
            assert (await session.run("while True: pass", timeout=0.2)).error_info.code == "timeout"
            assert (await session.run("1/0")).error_info.type == "ZeroDivisionError"
            task = asyncio.ensure_future(session.run("print(1)\nwhile True: pass"))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async for _ in session.stream("print(1)\nwhile True: pass"):
                break
            assert (await session.run("x > 1")).value is True
            await session.reset()
            assert (await session.run("x")).error_info.type == "NameError"

    run(main())


def test_remote_facades(server, storage):
    async def main():
        async with Session(storage, at(server)) as session:
            assert [tool["name"] for tool in await session.list_tools()] == ["say"]
            assert (await session.search_tools("says words", limit=3))[0]["name"] == "say"
            made = await session.add_workflow("double", "async def run(n: int) -> int:\n    return 2 * n\n", "Doubles")
            assert made["name"] == "double" and [each["name"] for each in made["parameters"]] == ["n"]
            assert [each["name"] for each in await session.list_workflows()] == ["double"]
            assert (await session.search_workflows("doubles"))[0]["name"] == "double"
            assert "2 * n" in (await session.get_workflow("double"))["source"]
            assert await session.get_workflow("none") is None
            assert (await session.run("await workflows.invoke('double', n=4)")).value == 8
            with pytest.raises(SyntaxError):
                await session.add_workflow("bad", "def run(:\n", "")
            assert await session.remove_workflow("double") and not await session.remove_workflow("double")
            for name, data in (("a/text", "grüße"), ("json", {"a": [1, None]}), ("raw", b"\0\xff")):
                saved = await session.save_artifact(name, data, "about it", {"k": "v & w"})
                assert (saved["name"], saved["metadata"], saved["description"]) == (name, {"k": "v & w"}, "about it")
                assert await session.load_artifact(name) == data
                # Values come as JSON from a server; what that cannot say is its repr.
                assert (await session.run("artifacts.load(%r)" % name)).value == (repr(data) if name == "raw" else data)
            for metadata in ("%7B", "%5B1%5D", "%7B%22a%22:1,%22a%22:2%7D"):
                assert server.ask("PUT", "/api/artifacts/bad?metadata=" + metadata, b"x").code == "invalid"
            pandas = pytest.importorskip("pandas")
            await session.save_artifact("table", pandas.DataFrame({"a": [1, 2]}))
            assert list((await session.load_artifact("table"))["a"]) == [1, 2]
            assert {each["name"] for each in await session.list_artifacts()} == {"a/text", "json", "raw", "table"}
            await session.delete_artifact("raw")
            await session.delete_artifact("raw")
            with pytest.raises(workcell.ArtifactNotFoundError):
                await session.load_artifact("raw")
            assert await session.list_deps() == []
            assert (await session.remove_dep("six"))["not_found"] == ["six"]
            assert await session.sync_deps() == {"installed": [], "already_present": [], "failed": []}
            with pytest.raises(CodeModeError):
                await session.add_dep("not a package!")
            assert (await session.call_tool("say.all", words="from outside")).strip() == "from outside"
            with pytest.raises(workcell.ToolNotFoundError):
                await session.call_tool("no_such_tool")
            with pytest.raises(CodeModeError, match="word"):
                await session.call_tool("say.all", word="x")
            with pytest.raises(ConfigurationError, match="belong to the server"):
                session.tool(lambda n: n, name="n")

    run(main())


@pytest.mark.parametrize("way", ["https", "unix"])
def test_remote_ways(way, tmp_path):
    """The cells go by the library, the facades by Python: both know the ways, and both look at certificates."""
    if way == "https":
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                        tmp_path / "k", "-out", tmp_path / "c", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=IP:127.0.0.1"], check=True, stderr=subprocess.PIPE)
        server = serving.Server("--executor", "subprocess", "--base", tmp_path / "base", "--tls-cert", tmp_path / "c", "--tls-key",
                                tmp_path / "k")
        url = "https://127.0.0.1:%d" % server.port
    else:
        server = serving.Server("--executor", "subprocess", "--base", tmp_path / "base", listen="unix:%s" % (tmp_path / "s"))
        url = "unix:%s" % (tmp_path / "s")
    code = ("import sys, workcell.sync\nfrom workcell import ContainerExecutor\n"
            "with workcell.sync.Session.scratch(ContainerExecutor(remote_url=sys.argv[1], auth_token=sys.argv[2])) as session:\n"
            "    session.save_artifact('a', [1])\n"
            "    print(session.run('artifacts.load(\\'a\\')').raise_for_error().value, session.list_artifacts()[0]['name'])\n")
    argv = [sys.executable, "-c", code, url, serving.TOKEN]
    try:
        env = dict(os.environ, SSL_CERT_FILE=str(tmp_path / "c"))
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, env=env)
        assert done.stdout == "[1] a\n", done.stderr
        if way == "https":
            done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
            assert done.returncode != 0 and "certificate" in done.stderr.splitlines()[-1], done.stderr
    finally:
        server.close()


def test_remote_workspaces(server, tmp_path):
    """The workspace of the storage is the server's workspace, for code and for the facades."""
    with SyncSession(FileStorage(tmp_path, workspace_id="w1"), at(server)) as session, \
            SyncSession(FileStorage(tmp_path, workspace_id="w2"), at(server)) as other:
        session.save_artifact("mine", "x")
        assert session.run("artifacts.load('mine')").value == "x"
        assert [each["name"] for each in session.list_artifacts()] == ["mine"]
        assert other.list_artifacts() == []
        # The server has ended the session that stands for the workspace: another one is opened.
        bound = session._core.space._session
        assert server.ask("DELETE", "/v1/sessions/" + bound).status == 204
        assert session.load_artifact("mine") == "x" and session._core.space._session != bound
    assert server.ask("GET", "/v1/sessions").json["sessions"] == []


def test_the_helper_for_agents(server):
    async def main():
        from workcell.integrations import autogen

        run_code = autogen.create_run_code_tool(session_url="http://127.0.0.1:%d" % server.port, auth_token=serving.TOKEN)
        assert await run_code("x = 6\nprint('hi')") == "hi" and await run_code("x * 7") == "42"
        target, = [cell.cell_contents for cell in run_code.__closure__ if hasattr(cell.cell_contents, "config")]
        assert "tools.say.all(words)" in await autogen.get_tools_description(target)
        await target.close()

    run(main())


def test_remote_refusals(server, storage, tmp_path):
    with pytest.raises(AuthError), SyncSession(storage, at(server, "wrong")):
        pass
    with pytest.raises(AuthError) as caught, SyncSession(storage, at(server, "t0ken-of-the-reader")):
        pass
    assert caught.value.code == "forbidden"

    def note_that(text: str) -> None:
        """Nobody calls it."""

    for executor, words in ((at(server, tools_path=tmp_path), "tools_path"), (at(server, python=sys.executable), "python")):
        with pytest.raises(ValueError, match=words), SyncSession(storage, executor):
            pass
    with pytest.raises(ConfigurationError, match="policy"), SyncSession(storage, at(server), policy="ask"):
        pass
    with pytest.raises(ConfigurationError, match="tools"), SyncSession(storage, at(server), tools=[note_that]):
        pass
    # Nobody listens there any more.
    with pytest.raises(CodeModeError), SyncSession(storage, ContainerExecutor(remote_url="http://127.0.0.1:1")) as session:
        session.list_tools()


# ---- Redis


def test_redis_storage(redis, tmp_path):
    async def main():
        url = redis.url()
        store = RedisStorage(url=url, prefix="sdk")
        other = RedisStorage(url=url, prefix="sdk", workspace_id="w")
        async with Session(store) as session, Session(other) as bound:
            await session.add_workflow("inc", "async def run(n: int) -> int:\n    return n + 1\n", "Adds one")
            assert (await session.run("await workflows.invoke('inc', n=1)")).value == 2
            assert await bound.list_workflows() == []
            await session.save_artifact("raw", b"\0" * 10)
            await bound.save_artifact("raw", "of the workspace")
            assert await session.load_artifact("raw") == b"\0" * 10
            assert (await bound.run("artifacts.load('raw')")).value == "of the workspace"
            assert (await session.search_workflows("one"))[0]["name"] == "inc"
        assert redis.ask("GET", "sdk:artifacts:raw") == b"\0" * 10
        assert redis.ask("GET", "sdk:ws:w:artifacts:raw") == b"of the workspace"
        # Without a session, and from a client's settings.
        pool = type("Pool", (), {"connection_kwargs": {"path": redis.socket}, "connection_class": object})
        client = type("Client", (), {"connection_pool": pool})
        again = RedisStorage(redis=client, prefix="sdk")
        assert again.get_artifact_store().load("raw") == b"\0" * 10
        assert [each.name for each in again.get_workflow_library().list()] == ["inc"]
        for each in (store, other, again):
            each.close()

    run(main())


def test_configured_deps_of_a_redis_storage(redis, tmp_path, monkeypatch):
    """They are there before the first cell, also where code may not add packages."""
    spaces.make_wheel(tmp_path / "wheels", "wc-alpha")
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + ":" + os.environ["PATH"])  # for uv
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(tool + "_NO_INDEX", "1")
        monkeypatch.setenv(tool + "_FIND_LINKS", str(tmp_path / "wheels"))
    config = SubprocessConfig(venv_dir=tmp_path / "venv", deps=["wc-alpha"], allow_runtime_deps=False)
    for _ in range(2):
        with SyncSession(RedisStorage(url=redis.url(), prefix="deps"), SubprocessExecutor(config)) as session:
            assert session.run("import wc_alpha\nwc_alpha.__version__").value == "1.0"
            assert not session.run("deps.add('wc-beta')").is_ok
            assert session.list_deps() == ["wc-alpha"]
    assert redis.ask("SMEMBERS", "deps:deps") == [b"wc-alpha"]


def test_redis_is_not_there(tmp_path):
    with pytest.raises(CodeModeError) as caught, \
            SyncSession(RedisStorage(url="redis://user:secret@127.0.0.1:1")) as session:
        session.list_workflows()
    assert caught.value.code == "storage_unavailable" and "secret" not in str(caught.value)


# ---- errors


def test_every_code_has_an_error():
    with open(os.path.join(ROOT, "include", "workcell.h")) as file:
        words = re.findall(r"X\(\d+, E_\w+, \"(\w+)\"", file.read())
    assert len(words) > 20
    for word in words:
        made = from_native(Exception("words", word))
        assert isinstance(made, MemoryError) if word == "no_memory" else (isinstance(made, CodeModeError) and made.code == word)
    for word, kind in (("unauthorized", AuthError), ("forbidden", AuthError), ("busy", BusyError),
                       ("session_expired", SessionExpiredError), ("protocol", ServerError)):
        assert type(from_native(Exception("words", word))) is kind


def test_kubernetes_options(tmp_path: pathlib.Path) -> None:
    """What the library is told; the executor itself: tests/e2e/test_kubernetes_executor.py."""
    config = workcell.KubernetesConfig(pool_key_file="/etc/key", namespace="agents", kubeconfig="/k", workspace_id="w", runtime_class="gvisor")
    options = config.session_options()
    assert options["remote_workspace"] == "w"
    assert options["kubernetes"] == {"pool_key_file": "/etc/key", "in_namespace": "agents", "kubeconfig": "/k", "runtime_class": "gvisor", "port": 8080,
                                     "startup_timeout_ms": 60000}
    with pytest.raises(ValueError, match="pool_key_file"):
        SyncSession(executor="kubernetes").run("1")
    with pytest.raises(ValueError, match="belong to the server"):
        SyncSession(executor=workcell.KubernetesConfig(pool_key_file="/etc/key", preload=["json"])).run("1")
    with pytest.raises(ValueError, match="storage"):
        SyncSession(storage=str(tmp_path), executor=config).run("1")
    with pytest.raises(workcell.WorkcellError, match="kubeconfig"):
        SyncSession(executor=workcell.KubernetesConfig(pool_key_file="/etc/key", kubeconfig="/nowhere/config")).run("1")
