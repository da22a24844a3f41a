"""Both families by their names: where they are, what their parameters are called, and that the lesser ones work too."""
import asyncio
import inspect
import os
import sys

import pytest
from conftest import ROOT, run

import workcell
from workcell import FileStorage, InProcessExecutor, Session, SubprocessConfig
from workcell import artifacts, deps, errors, tools, workflows

sys.path.append(os.path.join(ROOT, "tests"))

PLACES = {
    "workcell": """Session bootstrap_namespaces NamespaceBundle ExecutionResult JsonSchema ToolDefinition StorageBackend FileStorage
        RedisStorage Executor Capability InProcessExecutor InProcessConfig SubprocessExecutor SubprocessConfig ContainerExecutor
        ContainerConfig DenoSandboxExecutor DenoSandboxConfig SandboxExecutor SandboxConfig SUBPROCESS_AVAILABLE CONTAINER_AVAILABLE
        CodeModeError ToolNotFoundError ToolCallError ToolTimeoutError ArtifactNotFoundError ArtifactWriteError SkillNotFoundError
        SkillValidationError SkillExecutionError WorkflowNotFoundError WorkflowValidationError WorkflowExecutionError DependencyError
        StorageError StorageReadError StorageWriteError ConfigurationError CodeExecutor ApprovalRequest CodeExecutionChunk
        CodeExecutionResult CodeExecutionError generate_mcp_sources""",
    "workcell.execution": """FileStorageAccess RedisStorageAccess StorageAccess get_backend list_backends register_backend
        DenoSandboxConfig DenoSandboxExecutor""",
    "workcell.execution.in_process": "InProcessConfig InProcessExecutor",
    "workcell.execution.subprocess": "SubprocessConfig SubprocessExecutor",
    "workcell.execution.container": "ContainerConfig ContainerExecutor SessionClient",
    "workcell.execution.container.client": "SessionClient",
    "workcell.execution.deno_sandbox": "DenoSandboxConfig DenoSandboxExecutor",
    "workcell.execution.protocol": "Executor Capability",
    "workcell.execution.registry": "get_backend list_backends register_backend",
    "workcell.errors": "RPCError RPCTransportError NamespaceError SkillError WorkflowError ToolError ArtifactError DepsError",
    "workcell.tools": """Tool ToolCallable ToolParameter ToolRegistry ScopedToolRegistry load_tools_from_path ToolCallContext
        ToolMiddleware compose_tool_middlewares""",
    "workcell.tools.adapters": "ToolAdapter CLIAdapter MCPAdapter HTTPAdapter Endpoint MiddlewareAdapter",
    "workcell.tools.loader": "load_tools_from_path",
    "workcell.workflows": """PythonWorkflow WorkflowMetadata WorkflowParameter WorkflowStore MemoryWorkflowStore FileWorkflowStore
        RedisWorkflowStore WorkflowLibrary create_workflow_library""",
    "workcell.skills": """PythonSkill SkillParameter SkillMetadata SkillStore MemorySkillStore FileSkillStore RedisSkillStore SkillLibrary
        create_skill_library""",
    "workcell.artifacts": "Artifact ArtifactStoreProtocol FileArtifactStore RedisArtifactStore ArtifactsNamespace",
    "workcell.deps": """SyncResult DepsStore MemoryDepsStore FileDepsStore RedisDepsStore PackageInstaller DepsNamespace
        ControlledDepsNamespace collect_configured_deps RuntimeDepsDisabledError""",
    "workcell.integrations.autogen": "create_run_code_tool get_tools_description",
}


@pytest.mark.parametrize("place", PLACES)
def test_places(place):
    __import__(place)
    missing = [name for name in PLACES[place].split() if not hasattr(sys.modules[place], name)]
    assert missing == []


BASE = {"base_path": ..., "timeout": 30.0, "extra_deps": None, "allow_runtime_deps": True, "sync_deps_on_start": False}
# Of each the parameters, in order where they may be given by position; `...`: whatever the default is.
SIGNATURES = [
    (workcell.ExecutionResult, {"value": ..., "stdout": ..., "error": ..., "execution_time_ms": None, "backend_info": ...}),
    (workcell.JsonSchema, {"type": "object", "description": None, "properties": ..., "required": ..., "items": None, "enum": ...,
                           "default": None, "additional_properties": True}),
    (workcell.ToolDefinition, {"name": ..., "description": ..., "input_schema": ..., "output_schema": None, "tags": frozenset(),
                               "python_deps": (), "timeout_seconds": 60.0}),
    (errors.ToolNotFoundError, {"tool_name": ..., "available_tools": None}),
    (errors.ToolCallError, {"tool_name": ..., "tool_args": ..., "cause": ...}),
    (errors.ToolTimeoutError, {"tool_name": ..., "timeout_seconds": ...}),
    (errors.ArtifactWriteError, {"artifact_name": ..., "reason": ...}),
    (errors.DependencyError, {"package": ..., "required_by": None}),
    (errors.StorageReadError, {"message": ..., "path": None}),
    (errors.NamespaceError, {"namespace": ..., "operation": ..., "message": ..., "original_type": "RuntimeError"}),
    (Session, {"storage": ..., "executor": None, "sync_deps_on_start": False}),
    (Session.from_base, BASE), (Session.inprocess, BASE), (Session.container, BASE),
    (Session.subprocess, {**BASE, "timeout": 60.0, "python_version": None, "cache_venv": True}),
    (Session.sandbox, {**BASE, "timeout": 60.0}), (Session.deno, {**BASE, "timeout": 60.0}),
    (Session.search_tools, {"query": ..., "limit": 10}), (Session.search_workflows, {"query": ..., "limit": 5}),
    (Session.save_artifact, {"name": ..., "data": ..., "description": "", "metadata": None}),
    (FileStorage, {"base_path": ..., "workspace_id": None}),
    (workcell.RedisStorage, {"url": None, "redis": None, "prefix": "py_code_mode", "workspace_id": None}),
    (workcell.InProcessConfig, {"default_timeout": 30.0, "allow_runtime_deps": True, "tools_path": None, "deps": None,
                                "deps_file": None}),
    (tools.ToolParameter, {"name": ..., "type": ..., "required": ..., "default": None, "description": ""}),
    (tools.ToolRegistry.search, {"query": ..., "limit": 10}),
    (tools.ToolCallContext, {"tool_name": ..., "callable_name": ..., "args": ..., "adapter_name": None, "executor_type": None,
                             "origin": None, "request_id": None, "timeout": None}),
    (workflows.WorkflowParameter, {"name": ..., "type": ..., "description": ..., "required": True, "default": None}),
    (workflows.WorkflowLibrary, {"embedder": ..., "store": None, "vector_store": None, "ranking": ...}),
    (workflows.create_workflow_library, {"store": None, "embedder": None, "embedding_model": None, "vector_store": None}),
    (artifacts.ArtifactStore.save, {"name": ..., "data": ..., "description": "", "metadata": None}),
    (workcell.CodeExecutor, {"tool_server_host": "localhost", "tool_server_port": None, "kernel_gateway_host": "localhost",
                             "kernel_gateway_port": None, "kernel_env": None, "working_dir": None, "images_dir": None,
                             "approval_timeout": 60.0, "connect_timeout": 30, "kernel_init_timeout": 10, "sandbox": False,
                             "sandbox_config": None, "log_level": "WARNING", "approve_tool_calls": True,
                             "approve_shell_cmds": False, "require_shell_escape": False}),
    (workcell.CodeExecutor.stream, {"code": ..., "timeout": 120, "chunks": False}),
    (workcell.CodeExecutor.execute, {"code": ..., "timeout": 120}),
    (workcell.CodeExecutionResult, {"text": ..., "images": ...}),
    (workcell.ApprovalRequest, {"server_name": ..., "tool_name": ..., "tool_args": ..., "respond": ...}),
    (workcell.generate_mcp_sources, {"server_name": ..., "server_params": ..., "root_dir": ..., "async_api": False}),
]


@pytest.mark.parametrize("of, wanted", SIGNATURES, ids=[of.__qualname__ for of, _ in SIGNATURES])
def test_signatures(of, wanted):
    found = [each for each in inspect.signature(of).parameters.values() if each.name != "self"]
    assert [each.name for each in found][:len(wanted)] == list(wanted) or all(
        each.kind is each.KEYWORD_ONLY for each in found[1:] if each.name in wanted) and set(wanted) <= {each.name for each in found}
    for each in found:
        if wanted.get(each.name, ...) is not ...:
            assert each.default == wanted[each.name], each


CONFIGS = {
    workcell.SubprocessConfig: """python_version venv_path venv_dir base_deps startup_timeout default_timeout allow_runtime_deps
        cleanup_venv_on_close cache_venv tools_path deps deps_file ipc_timeout""",
    workcell.ContainerConfig: """image auto_build port host timeout startup_timeout health_check_interval ipc_timeout environment
        remove_on_exit name allow_runtime_deps auth_token auth_disabled remote_url tools_path deps deps_file network_disabled
        memory_limit cpu_quota""",
    workcell.DenoSandboxConfig: """default_timeout allow_runtime_deps tools_path deps deps_file ipc_timeout deps_timeout deno_executable
        runner_path deno_dir network_profile deps_net_allowlist tool_middlewares""",
}


@pytest.mark.parametrize("config", CONFIGS)
def test_configurations(config):
    assert [name for name in CONFIGS[config].split() if name not in inspect.signature(config).parameters] == []


def test_what_a_version_and_base_deps_mean():
    here = "%d.%d" % sys.version_info[:2]
    assert SubprocessConfig().python_version == SubprocessConfig(python_version=None).python_version == here
    config = SubprocessConfig(base_deps=("ipykernel", "py-code-mode", "numpy"), deps=["pandas"])
    assert config.packages() == ["numpy", "pandas"] and config.configured_deps() == ["pandas"]


WORKFLOW = "async def run(n: int) -> int:\n    return len(workflows.list()) + n\n"


def test_stores_without_a_session(tmp_path):
    library = workflows.create_workflow_library()
    library.add(workflows.PythonWorkflow.from_source("one", WORKFLOW, "adds"))
    made = library.get("one")
    assert made.parameters[0].type == "integer" and made.metadata.source == "storage" and len(library) == 1
    assert run(made.invoke(n=2)) == 3
    assert run(workflows.PythonWorkflow.from_source("loose", WORKFLOW).invoke(n=4)) == 5
    folder = library.storage.base_path
    del library, made
    import gc

    gc.collect()
    assert not folder.exists(), "it is gone with the library"

    kept = workflows.WorkflowLibrary(store=workflows.FileWorkflowStore(tmp_path / "workflows"))
    kept.add(workflows.PythonWorkflow.from_source("two", WORKFLOW))
    assert (tmp_path / "workflows" / "two.py").exists() and FileStorage(tmp_path).get_skill_library().exists("two")

    store = artifacts.FileArtifactStore(tmp_path / "artifacts")
    (tmp_path / "artifacts").mkdir(exist_ok=True)
    (tmp_path / "artifacts" / "there.txt").write_text("text")
    assert store.register("there.txt", "was there").description == "was there" and store.load("there.txt") == "text"
    with pytest.raises(workcell.ArtifactNotFoundError):
        store.register("missing", "")


def test_packages_without_a_session(tmp_path):
    store = deps.MemoryDepsStore()
    assert store.list() == [] and not store.exists("x") and len(store.hash()) == 64
    controlled = deps.ControlledDepsNamespace(deps.DepsNamespace(store, deps.PackageInstaller()), allow_runtime=False)
    with pytest.raises(deps.RuntimeDepsDisabledError, match="installation is disabled"):
        controlled.add("x")
    assert controlled.list() == [] and "disabled" in repr(controlled)
    with pytest.raises(ValueError, match="Disallowed"):
        deps.PackageInstaller(extra_args=["--pre"])


def test_stores_in_redis():
    import spaces

    server = spaces.Redis()
    try:
        # As much of a client of redis as is looked at.
        pool = type("Pool", (), {"connection_kwargs": {"path": server.socket}, "connection_class": object})
        client = type("Client", (), {"connection_pool": pool})
        workflows.RedisWorkflowStore(client, "app:workflows").save_batch([workflows.PythonWorkflow.from_source("one", WORKFLOW)])
        artifacts.RedisArtifactStore(client, prefix="app:artifacts").save("a", {"b": 1})
        whole = workcell.RedisStorage(redis=client, prefix="app")
        assert whole.get_workflow_store().exists("one") and whole.get_artifact_store().load("a") == {"b": 1}
        assert whole.client is client and deps.RedisDepsStore(client, "app:deps").list() == []
        with pytest.raises(ValueError, match="':workflows' or ':skills'"):
            workflows.RedisWorkflowStore(client, "other")
        whole.close()
    finally:
        server.close()


class Adapter:
    """Tools of the host's own kind."""

    def list_tools(self):
        number = tools.ToolParameter("n", "int", True, None, "a number")
        return [tools.Tool("double", "Doubles.", (tools.ToolCallable("double", "Doubles.", (number,)),)),
                tools.Tool("text", "Texts.", (tools.ToolCallable("upper", "Upper.", (tools.ToolParameter("s", "str", False, "x"),)),
                                              tools.ToolCallable("fail", "Fails.", ())), frozenset(["words"]))]

    async def call_tool(self, name, callable_name, args):
        await asyncio.sleep(0)
        if callable_name == "fail":
            raise RuntimeError("it failed")
        return args["n"] * 2 if name == "double" else args.get("s", "none").upper()

    async def describe(self, tool_name, callable_name):
        return {}

    async def close(self):
        pass


def test_adapters_and_registries_are_tools_of_a_session(tmp_path):
    seen = []

    async def log(ctx, call_next):
        seen.append((ctx.full_name, ctx.adapter_name))
        return await call_next(ctx)

    def plain(n: int = 1) -> int:
        return n

    async def main():
        async with Session(FileStorage(tmp_path), tools=[Adapter(), plain]) as session:
            assert (await session.run("tools.double(n=21), tools.text.upper(s='a')")).value == (42, "A")
            assert "it failed" in (await session.run("tools.text.fail()")).error
            assert not (await session.run("tools.double(n='x')")).is_ok
            listed = {tool["name"]: tool for tool in await session.list_tools()}
            assert {"double", "text", "plain"} <= set(listed)
            assert listed["double"]["callables"][0]["parameters"][0]["description"] == "a number"
        registry = tools.ToolRegistry()
        registry.register_adapter(tools.MiddlewareAdapter(Adapter(), [log]), tags=["t"])
        async with Session(FileStorage(tmp_path), InProcessExecutor(registry=registry.scoped_view(["words"]))) as session:
            assert (await session.run("tools.text.upper()")).value == "X"
            assert not (await session.run("tools.double(n=1)")).is_ok
        assert seen == [("text.upper", "Adapter")]

    run(main())


def test_an_executor_with_parts_of_a_storage(storage):
    storage.get_artifact_store().save("a", "kept")

    async def main():
        executor = InProcessExecutor(artifact_store=storage.get_artifact_store(), default_timeout=5.0)
        assert executor.config.default_timeout == 5.0
        await executor.start()
        assert (await executor.run("artifacts.load('a')")).value == "kept"
        await executor.close()

    run(main())


def test_the_client_of_a_session_server(tmp_path):
    import serving
    from workcell.execution.container import SessionClient

    server = serving.Server("--executor", "subprocess", "--base", tmp_path, tokens="a" * 32)

    async def main():
        async with SessionClient("http://127.0.0.1:%d" % server.port, auth_token="a" * 32) as client:
            assert (await client.health()).status == "healthy" and client.session_id is None
            first = await client.execute("x = 6\nprint('out')\nx * 7")
            assert (first.value, first.stdout, first.is_ok, first.session_id) == (42, "out\n", True, client.session_id)
            assert (await client.execute("x")).value == 6 and not (await client.execute("1 / 0")).is_ok
            assert (await client.reset()).status == "reset" and client.session_id is None
            assert "NameError" in (await client.execute("x")).error
            assert len(await client.init_session("team")) > 10
            made = await client.create_workflow("w", WORKFLOW, "adds")
            assert made["source"] == WORKFLOW and [each["name"] for each in await client.list_workflows()] == ["w"]
            assert (await client.get_workflow("w"))["description"] == "adds" and await client.get_workflow("none") is None
            assert (await client.search_workflows("adds"))[0]["name"] == "w" and [w["name"] for w in (await client.info()).workflows] == ["w"]
            with pytest.raises(ValueError):
                await client.create_workflow("w", "1 +")
            await client.reset()
            assert (await client.execute("len(workflows.list())")).value == 1, "the workspace is kept"
            assert await client.delete_workflow("w") is True
            await client.save_artifact("a/b", b"\0", "bytes", {"k": 1})
            assert await client.load_artifact("a/b") == b"\0" and (await client.list_artifacts())[0]["metadata"]["k"] == 1
            await client.delete_artifact("a/b")
            with pytest.raises(workcell.ArtifactNotFoundError):
                await client.load_artifact("a/b")
            assert await client.list_tools() == await client.search_tools("x") == await client.api_list_deps() == []
            assert (await client.api_sync_deps())["failed"] == []
            client.session_id = "0" * 32
            with pytest.raises(workcell.SessionExpiredError):
                await client.execute("1")
            client.session_id = None
        async with SessionClient("http://127.0.0.1:%d" % server.port, auth_token="b" * 32) as client:
            with pytest.raises(workcell.AuthError):
                await client.execute("1")

    try:
        run(main())
    finally:
        server.close()
