"""The Python SDK's ContainerExecutor in a real engine."""
import ast
import asyncio
import json
import os
import sys

import pytest

import containers
import support

sys.path.insert(0, os.path.join(os.path.dirname(support.BIN), "python-site"))
import workcell  # noqa: E402
import workcell.execution  # noqa: E402

sys.path.append(os.path.join(support.ROOT, "python", "tests"))
import seeds  # noqa: E402


def test_container_executor(tmp_path):
    base = tmp_path / "base"
    (base / "tools").mkdir(parents=True)
    (base / "tools" / "say.yaml").write_text(
        "name: say\ntype: cli\ncommand: echo\nschema:\n  positional:\n    - {name: text, type: string, required: true}\n"
        "recipes:\n  all:\n    params: {text: {}}\n")
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(folder, 0o755)
    containers.give(base)
    config = workcell.ContainerConfig(image=containers.IMAGE, auth_token="your-secret-token", network_disabled=True, memory_limit="256m",
                                      cpu_quota=50000, pids_limit=64, tools_path=base / "tools", default_timeout=60.0, startup_timeout=120.0)

    async def main(engine):
        async with workcell.Session(workcell.FileStorage(base), workcell.ContainerExecutor(config), engine=engine) as session:
            result = (await session.run("import os\nx = 6\nos.getuid(), os.getpid()")).raise_for_error()
            assert result.isolation["executor"] == "container" and result.value[0] != 0
            found = containers.inspect(result.isolation["container"])
            assert [found["HostConfig"][name] for name in ("Memory", "PidsLimit", "NetworkMode")] == [256 << 20, 64, "none"]
            events = [event async for event in session.stream("print(tools.say.all(text='hi').strip())\nx * 7")]
            assert events[0].text == "hi\n" and events[-1].result.value == 42
            assert (await session.run("while True: pass", timeout=0.5)).error_info.code == "timeout"
            # The storage is the host's folder, for both sides.
            (await session.run("artifacts.save('note', 'from inside')")).raise_for_error()
            assert await session.load_artifact("note") == "from inside"
            assert session.supports("network_isolation")
            await session.reset()
            assert (await session.run("x")).error_info.type == "NameError"
            return result.isolation["container"]

    with workcell.Engine() as engine:
        made = asyncio.run(asyncio.wait_for(main(engine), support.DEADLINE * 2))
    assert made not in containers.ours()


@pytest.fixture
def default_image():
    """The image that is used when none is named."""
    name = "workcell:" + workcell._native.version()
    there = containers.engine("GET", "/images/json", filters=json.dumps({"reference": [name]}))
    if not there:
        repo, _, tag = name.partition(":")
        containers.engine("POST", "/images/%s/tag" % containers.IMAGE, repo=repo, tag=tag)
    yield
    if not there:
        containers.engine("DELETE", "/images/" + name, noprune="true")


def test_examples(tmp_path, monkeypatch, default_image):
    """What python/tests/test_seeds.py can only show to be refused where there is no engine; one test, for one image."""
    (tmp_path / "data").mkdir()
    (tmp_path / "tools").mkdir()
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(folder, 0o755)
    containers.give(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTH_TOKEN", "secret")
    ran = []
    for name, code in seeds.examples():
        if "ContainerExecutor(" not in code or "async with" not in code or "remote_url" in code or "deps=[" in code:
            continue
        names = {key: getattr(module, key) for module in (workcell, workcell.execution) for key in module.__all__}
        names.update(os=os, agent_code="6 * 7", code="6 * 7", storage=workcell.FileStorage(tmp_path / "data"))
        made = eval(compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        asyncio.run(asyncio.wait_for(made, support.DEADLINE * 2))
        assert names["result"].value == 42, name
        ran.append(name)
    assert len(ran) == 3
    workcell.default_engine().close()
