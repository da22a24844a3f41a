"""What users of the two originals rely on, beyond names: behaviour that differed once (docs/python/migrate-*.md)."""
import asyncio
import os
import sys

import pytest
from conftest import ROOT, run

import workcell
from workcell import CodeExecutor, FileStorage, InProcessExecutor, Session, SubprocessConfig, SubprocessExecutor
from workcell.artifacts import Artifact, FileArtifactStore
from workcell.deps import SyncResult
from workcell.sync import Session as SyncSession
from workcell.tools import HTTPAdapter, Endpoint, Tool, ToolCallable, ToolParameter, ToolRegistry
from workcell.workflows import PythonSkill, PythonWorkflow

sys.path.insert(0, os.path.join(ROOT, "tests"))
import spaces  # noqa: E402

del sys.path[0]


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """Packages without a network."""
    folder = spaces.make_wheel(tmp_path / "wheels", "wc-alpha", "1.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    return folder


# ---- from the code-mode system


def test_composed_async_skills(storage):
    with SyncSession(storage) as session:
        session.add_skill("double", "async def run(n: int):\n    return n * 2")
        session.add_skill("more", "async def run(n: int):\n    doubled = skills.invoke('double', n=n)\n    return doubled + 1")
        assert session.run("skills.invoke('more', n=20)").value == 41


def test_values_of_namespaces_are_objects(storage, wheels):
    with SyncSession(storage) as session:
        added = session.run("deps.add('wc-alpha')").value
        assert isinstance(added, SyncResult) and "wc-alpha" in str(added.installed | added.already_present)
        assert isinstance(session.run("deps.sync()").value, SyncResult)
        saved = session.run("artifacts.save('a', [1], description='one')").value
        assert isinstance(saved, Artifact) and (saved.name, saved.description) == ("a", "one")
        listed = session.run("artifacts.list()").value
        assert [each.name for each in listed] == ["a"] and session.run("artifacts.get('a')").value.name == "a"
        forged = session.run("import workcell_kernel.ns_deps as d\nd.SyncResult(installed=[1], already_present={}, failed=None)").value
        assert isinstance(forged, str)


def test_listings_of_tools_have_attributes(storage):
    with SyncSession(storage) as session:
        @session.tool(name="shop.price")
        def price(item: str) -> float:
            """Its price."""
            return 1.0

        code = "t = tools.list()[0]\n[t.name, t['name'], t.callables[0].name, t.callables[0].parameters[0].name, tools.search('price')[0].name]"
        assert session.run(code).value == ["shop", "shop", "price", "item", "shop"]
        assert session.run("tools.list()").value == session.list_tools()
        assert session.run("type(tools.shop.list()[0]).__name__, hasattr(t, 'nothing')").value == ("Record", False)


class Echo:
    """An adapter of somebody's own."""

    def list_tools(self):
        return [Tool("echo", "Echoes", (ToolCallable("say", "", (ToolParameter("message", "str", True),)),))]

    async def call_tool(self, name, callable_name, args):
        return "%s %s" % (callable_name, args["message"])

    async def describe(self, tool_name, callable_name):
        return {}

    async def close(self):
        pass


def test_a_tool_of_an_adapter_without_its_recipe(storage):
    registry = ToolRegistry()
    registry.register_adapter(Echo())
    with SyncSession(storage, tools=[registry]) as session:
        assert session.run("tools.echo(message='hello'), tools.echo.say(message='x')").value == ("say hello", "say x")


def test_endpoints_of_schema_objects():
    adapter = HTTPAdapter("http://127.0.0.1:1")
    adapter.add_endpoint(Endpoint("item", "GET", "/items/{id}", parameters={"id": workcell.JsonSchema(type="integer", description="Its number")}))
    tool, = adapter.list_tools()
    assert not adapter.problems() and [(p.name, p.type, p.description) for p in tool.callables[0].parameters] == [("id", "integer", "Its number")]
    run(adapter.close())


def test_a_tools_failure_is_said_once(tmp_path):
    (tmp_path / "fail.yaml").write_text("name: fail\ncommand: 'false'\nrecipes: {go: {}}\n")
    with SyncSession(executor=SubprocessConfig(tools_path=tmp_path)) as session:
        with pytest.raises(workcell.ToolCallError) as caught:
            session.call_tool("fail.go")
    assert caught.value.tool_name == "fail" and str(caught.value) == "Tool 'fail' failed: Command failed with exit code 1"


def test_middlewares_see_the_backends_names():
    seen = []

    async def look(ctx, call_next):
        seen.append((ctx.executor_type, ctx.origin))
        return await call_next(ctx)

    for executor in ("subprocess", "in-process"):
        with SyncSession(executor=executor, middlewares=[look]) as session:
            session.tool(lambda: 1, name="one")
            session.run("tools.one()").raise_for_error()
    assert seen == [("subprocess", "subprocess"), ("in-process", "in-process")]
    assert {name for name, _ in seen} <= set(workcell.execution.list_backends())


def test_old_names(tmp_path):
    error = workcell.SkillNotFoundError("x")
    assert error.skill_name == error.workflow_name == error.name == "x"
    access = FileStorage(tmp_path).get_serializable_access()
    assert access.skills_path == access.workflows_path
    access = workcell.RedisStorage("redis://localhost:1").get_serializable_access()
    assert access.skills_prefix == access.workflows_prefix
    registry = ToolRegistry()
    assert registry.scoped_view(["a"]).scope == {"a"}
    assert workcell.SubprocessConfig().ipc_timeout == 30.0


def test_skills_from_source_and_file(tmp_path):
    skill = PythonSkill.from_source("double", '"""Doubles."""\nasync def run(n: int, m: str = "x"):\n    return n\n')
    assert skill.description == "Doubles." and [(p.name, p.type, p.required) for p in skill.parameters] == [("n", "integer", True), ("m", "string", False)]
    for source, kind in (("def run(:", SyntaxError), ("x = 1", ValueError), ("raise SystemExit", ValueError)):
        with pytest.raises(kind):
            PythonSkill.from_source("x", source)
    with pytest.raises(ValueError):
        PythonSkill.from_source("not a name", "def run(): pass")
    (tmp_path / "twice.py").write_text("def run(n):\n    return 2 * n\n")
    assert PythonWorkflow.from_file(tmp_path / "twice.py").name == "twice"
    with pytest.raises(ValueError, match="Invalid workflow name"):
        FileStorage(tmp_path / "data").get_workflow_store().load("../x")


def test_errors_in_the_kernel(storage):
    with SyncSession(storage) as session:
        code = "try:\n    artifacts.load('x')\nexcept RPCError as e:\n    found = type(e).__name__\nfound, issubclass(RPCTransportError, RPCError)"
        assert session.run(code).value == ("ArtifactNotFoundError", True)
        code = "e = NamespaceError('skills', 'invoke', 'text')\n(e.namespace, e.operation, str(e))"
        assert session.run(code).value == ("skills", "invoke", "text")


def test_the_switch_binds_the_code_and_not_the_host(storage, wheels, tmp_path):
    async def main():
        # A venv of its own: one in the user's cache may be left from a run whose storage had the same path.
        executor = SubprocessExecutor(SubprocessConfig(allow_runtime_deps=False, venv_dir=tmp_path / "venv"))
        async with Session(storage, executor) as session:
            found = await executor.install_deps(["wc-alpha", "package; rm -rf /"])
            assert found["installed"] and found["failed"] == ["package; rm -rf /"], found
            await session.reset()
            assert (await session.run("import wc_alpha\ndeps.list()")).is_ok
            assert (await session.run("deps.add('wc-alpha')")).error_info.type == "RuntimeDepsDisabledError"

    run(main())


def test_register_checks_the_name_first(tmp_path):
    store = FileArtifactStore(tmp_path)
    for name in ("../../../etc/passwd", "/etc/passwd"):
        with pytest.raises(ValueError, match="Path traversal"):
            store.register(name, "x")


def test_semantic_search_from_python(tmp_path):
    sys.path.insert(0, os.path.join(ROOT, "tests"))
    try:
        import embeddings_server
    finally:
        del sys.path[0]
    server = embeddings_server.Server()
    try:
        with SyncSession(tmp_path, embeddings_url=server.url, embeddings_model="m", embeddings_key="${KEY}", variables={"KEY": "k"}) as session:
            session.add_workflow("a", "def run(): pass", "greeting")
            session.search_workflows("salutation")
        assert server.asked
    finally:
        server.close()


def test_deno_packages_of_the_host(tmp_path, wheels):
    rows = {row.name: row for row in workcell.default_engine().executors()}
    if not rows["deno"].available:
        pytest.skip(rows["deno"].reason)

    async def main():
        async with Session(tmp_path / "data", "deno") as session:
            assert (await session.add_dep("wc-alpha"))["installed"]
            await session.reset()
            result = await session.run("import wc_alpha\nwc_alpha.__name__")
            assert result.value == "wc_alpha", result.error
        config = workcell.DenoSandboxConfig(deps=["wc-alpha"], allow_runtime_deps=False)
        async with Session(tmp_path / "other", config) as session:
            result = await session.run("import wc_alpha\nwc_alpha.__name__")
            assert result.value == "wc_alpha", result.error

    run(main())


# ---- from ipybox


def test_an_answer_after_the_cells_end_is_silent():
    """The stream says how the cell ended."""
    async def main():
        def act() -> int:
            return 1

        async with CodeExecutor(tools=[act]) as executor:
            with pytest.raises(asyncio.TimeoutError):
                async for item in executor.stream("tools.act()", timeout=0.5):
                    if isinstance(item, workcell.ApprovalRequest):
                        await asyncio.sleep(1)
                        await item.accept()

    run(main())


def test_an_expired_request_has_its_own_error():
    async def main():
        def act() -> int:
            return 1

        async with CodeExecutor(tools=[act], approval_timeout=0.3) as executor:
            with pytest.raises(workcell.ApprovalTimeoutError):
                async for _ in executor.stream("tools.act()"):
                    pass

    run(main())


def test_a_start_that_takes_too_long_is_quiet(tmp_path, capfd):
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nsleep 1\nexec %s \"$@\"\n" % sys.executable)
    slow.chmod(0o755)

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            async with CodeExecutor(python=slow, kernel_init_timeout=0.2):
                pass

    asyncio.run(main())
    workcell.default_engine().close()
    assert "Exception in callback" not in capfd.readouterr().err
