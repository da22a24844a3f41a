"""Every example of the seed documents, with only its import line changed."""
import ast
import asyncio
import inspect
import os
import sys
import tempfile
from pathlib import Path

import pytest
import seeds
from conftest import HERE, ROOT, run

import workcell
import workcell.execution
from workcell import ExecutorUnavailableError

sys.path.append(os.path.join(ROOT, "tests"))
EXAMPLES = seeds.examples()
SERVER = "http://session-server:8000"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """What the documents call session-server."""
    import serving

    made = serving.Server("--executor", "subprocess", "--base", tmp_path_factory.mktemp("served"), "--auth-disabled", tokens=None)
    yield "http://127.0.0.1:%d" % made.port
    made.close()


def test_all_examples_were_found():
    by_file = {}
    for name, _ in EXAMPLES:
        by_file[name.rsplit("-", 1)[0]] = by_file.get(name.rsplit("-", 1)[0], 0) + 1
    assert by_file == {"executors-old.md": 9, "subprocess-executor.md": 1, "executors-new.md": 10, "code-execution.md": 9}
    calls = "\n".join(code for _, code in EXAMPLES)
    for name in ("executors-old.md", "executors-new.md", "code-execution.md", "subprocess-executor.md"):
        text = seeds._read(name)
        # No session of a document was lost on the way.
        assert text.count("async with Session(") == sum(code.count("async with Session(") for label, code in EXAMPLES
                                                        if label.startswith(name))
    assert calls.count("async with CodeExecutor(") == seeds._read("code-execution.md").count("async with CodeExecutor(")


async def execute(code, names):
    compiled = compile(code, "<example>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(compiled, names)
    if inspect.isawaitable(value):
        await value


@pytest.mark.parametrize("name, code", EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_example(name, code, tmp_path, monkeypatch, request):
    if "match item" in code and sys.version_info < (3, 10):
        pytest.skip("the example's own syntax needs Python 3.10")
    if "matplotlib" in code:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONTAINER_AUTH_TOKEN", "secret")
    monkeypatch.setenv("AUTH_TOKEN", "secret")
    names = {key: getattr(module, key) for module in (workcell, workcell.execution) for key in module.__all__}
    names.update(Path=Path, os=os, tempfile=tempfile, agent_code="6 * 7", code="6 * 7",
                 storage=workcell.FileStorage(tmp_path / "data"), config=workcell.SubprocessConfig())
    if "deps=[" in code:
        import spaces

        wheels = tmp_path / "wheels"
        wheels.mkdir()
        for package in ("pandas", "numpy", "requests"):
            spaces.make_wheel(wheels, package, "9.0")
        monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + ":" + os.environ["PATH"])  # uv is quicker
        for tool in ("PIP", "UV"):
            monkeypatch.setenv(tool + "_NO_INDEX", "1")
            monkeypatch.setenv(tool + "_FIND_LINKS", str(wheels))
    if "remote_url" in code:
        assert SERVER in code
        code = code.replace(SERVER, request.getfixturevalue("server"))
    # A container needs Docker or Podman: without, that is said, and nothing runs elsewhere instead.
    available = {row.name for row in workcell.default_engine().executors() if row.available}
    missing = ("ContainerExecutor(" in code and "remote_url" not in code and "async with" in code
               and "container" not in available)

    async def main():
        if "mcptools.brave_search" in code:
            made = await workcell.generate_mcp_sources(
                "brave_search", {"command": sys.executable, "args": [os.path.join(HERE, "brave.py")]},
                Path("mcptools"))
            assert "brave_image_search" in made
        if missing:
            with pytest.raises(ExecutorUnavailableError, match="container"):
                await execute(code, names)
        else:
            await execute(code, names)
            if "result" in names and "Session(" in code:
                assert names["result"].error is None, names["result"].error
                assert names["result"].value == (2 if '"1 + 1"' in code else 42) or "tools.list()" in code

    run(main())


def test_options_that_the_seeds_name_work(tmp_path, storage):
    """What the original only documented: memory_limit, network_disabled, cpu_quota, venv_dir, hard timeouts."""
    from workcell import SandboxConfig, SandboxExecutor, Session, SubprocessConfig, SubprocessExecutor

    async def main():
        (tmp_path / "work").mkdir()
        config = SandboxConfig(memory_limit="300m", network_disabled=True, cpu_quota=50000, cwd=tmp_path / "work",
                               default_timeout=20.0)
        async with Session(storage, SandboxExecutor(config)) as session:
            result = await session.run("x = bytearray(600 << 20)")
            assert result.error_info.code == "limit_exceeded" and result.error_info.limit == "memory", result.error
            result = await session.run("import socket\nsocket.create_connection(('192.0.2.1', 80), 2)")
            assert not result.is_ok
            receipt = (await session.run("1")).isolation
            assert receipt["network"] == "none" and receipt["limits"], receipt
            assert session.supports("memory_limit") and session.supports("network_isolation")
        config = SubprocessConfig(default_timeout=0.2)
        async with Session(storage, SubprocessExecutor(config)) as session:
            assert (await session.run("while True: pass")).error_info.code == "timeout"
            assert (await session.run("1")).value == 1

    run(main())


def test_configurations_are_checked():
    from workcell import ContainerConfig, ContainerExecutor, DenoSandboxConfig, SandboxConfig, SubprocessConfig

    with pytest.raises(ValueError, match="cannot be empty"):
        SubprocessConfig(python_version=" ")
    with pytest.raises(ValueError, match="major.minor"):
        SubprocessConfig(python_version="3.11.2")
    with pytest.raises(ValueError):
        SubprocessConfig(default_timeout=0)
    with pytest.raises(ValueError):
        DenoSandboxConfig(network_profile="some")
    with pytest.raises(ValueError, match="deps_net_allowlist"):
        DenoSandboxConfig(network_profile="deps-only", deps_net_allowlist=("example.org",))
    assert ContainerConfig().timeout == 30.0 and ContainerConfig(timeout=5).session_options()["timeout_ms"] == 5000
    with pytest.raises(ValueError):
        SandboxConfig(memory_limit="lots").session_options()
    assert SubprocessConfig(cache_venv=False).get_resolved_cleanup() is True
    with pytest.raises(ValueError, match="auth_token"):
        asyncio.run(ContainerExecutor(ContainerConfig()).start())
    assert ContainerExecutor(remote_url="http://x").name == "remote"
