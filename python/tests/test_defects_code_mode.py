"""Defects that the first family's reference records (sections 9.1 and 9.2, by number): ours has none of them.

What 9.2 records is not numbered there: `security_1` is its first point.
"""
import ast
import asyncio
import os
import re
import subprocess
import sys
import threading

import pytest
from conftest import HERE, ROOT, run

import workcell
import workcell.sync
from workcell import FileStorage, Session, SubprocessConfig, SubprocessExecutor

sys.path.insert(0, os.path.join(ROOT, "tests"))
import spaces  # noqa: E402

EXECUTORS = ["subprocess", "sandbox"]


def executor(name, tmp_path, **options):
    if name == "sandbox":
        (tmp_path / "work").mkdir(exist_ok=True)
        return workcell.SandboxExecutor(workcell.SandboxConfig(cwd=tmp_path / "work", **options))
    return SubprocessExecutor(SubprocessConfig(**options))


@pytest.mark.parametrize("name", EXECUTORS)
def test_1_a_tool_call_inside_an_async_workflow(name, storage, tmp_path):
    async def main():
        async with Session(storage, executor(name, tmp_path)) as session:
            @session.tool
            async def one() -> int:
                await asyncio.sleep(0.001)
                return 1

            await session.add_workflow("w", "async def run():\n    return tools.one() + 1\n", "")
            assert (await session.run("workflows.w()", timeout=20)).value == 2

    run(main())


def test_2_a_timeout_leaves_nothing_running_and_stdout_alone(storage, capsys):
    async def main():
        async with Session(storage) as session:
            threads = threading.active_count()
            result = await session.run("import time\nwhile True:\n    print('x')\n    time.sleep(0.01)", timeout=0.2)
            assert result.error_info.code == "timeout"
            print("the host's own")
            assert threading.active_count() <= threads + 1
            assert (await session.run("'still here'")).stdout == ""

    run(main())
    assert capsys.readouterr().out == "the host's own\n"


@pytest.mark.parametrize("code", ["import sys; sys.exit(3)", "raise SystemExit", "exit()", "raise KeyboardInterrupt"])
def test_3_sys_exit_does_not_end_the_host(storage, code):
    with workcell.sync.Session(storage) as session:
        assert not session.run(code).is_ok
        assert session.run("1").value == 1


def test_4_bootstrap_with_tools(tmp_path):
    spaces.write_files(tmp_path, {"tools/echo.yaml": "name: echo\ncommand: echo\nrecipes: {say: {}}\n"})

    async def main():
        bundle = await workcell.bootstrap_namespaces({"type": "file", "base_path": str(tmp_path / "data"),
                                                      "tools_path": str(tmp_path / "tools")})
        assert [tool.name for tool in bundle.tools.list_tools()] == ["echo"]
        await bundle.tools.close()
        with pytest.raises(ValueError, match="Unknown storage type: 'x'"):
            await workcell.bootstrap_namespaces({"type": "x"})

    run(main())


def test_5_and_6_redis_names_and_tools(tmp_path):
    storage = workcell.RedisStorage("redis://user:p%40ss@localhost:6379/2", prefix="a:b", workspace_id="w")
    container = workcell.ContainerExecutor(workcell.ContainerConfig(tools_path=tmp_path / "tools", auth_token="t"))
    spec = container.make_spec(storage)
    assert spec.space["tools_dir"] == str(tmp_path / "tools")
    assert spec.space["storage"] == "redis://user:p%40ss@localhost:6379/2?prefix=a%3Ab"
    assert "p%40ss" not in repr(storage)
    with pytest.raises(ValueError, match="not both"):
        workcell.RedisStorage("redis://x", redis=object())
    with pytest.raises(ValueError, match="must be provided"):
        workcell.RedisStorage()


def test_7_and_8_each_tool_once_with_its_tags(tmp_path):
    spaces.write_files(tmp_path, {
        "tools/a.yaml": "name: a\ncommand: echo\ntags: [net, web]\nrecipes: {say: {}}\n",
        "tools/b.yaml": "name: b\ncommand: echo\ntags: [disk]\nrecipes: {say: {}}\n"})

    async def main():
        async with Session.from_base(tmp_path) as session:
            assert [(tool["name"], sorted(tool["tags"])) for tool in await session.list_tools()] == [
                ("a", ["net", "web"]), ("b", ["disk"])]
        registry = await workcell.tools.ToolRegistry.from_dir(tmp_path / "tools")
        assert [tool.name for tool in registry.list_tools({"disk"})] == ["b"]
        view = registry.scoped_view({"disk"})
        assert [tool.name for tool in view.get_all_tools()] == ["b"] and view.find_adapter_for_tool("a") is None
        with pytest.raises(workcell.ToolNotFoundError):
            await view.call_tool("a", "say", {})
        adapter = registry.find_adapter_for_tool("a")
        assert await adapter.describe("a", "say") == {}
        with pytest.raises(ValueError, match=r"Callable 'sing' not found in tool 'a'. Available: \['say'\]"):
            await adapter.describe("a", "sing")
        await registry.close()

    run(main())


def test_9_descriptions_are_kept(tmp_path):
    async def main():
        async with Session(FileStorage(tmp_path)) as session:
            await session.add_workflow("w", "async def run(): return 1", "what it does")
        async with Session(FileStorage(tmp_path)) as session:
            assert (await session.list_workflows())[0]["description"] == "what it does"

    run(main())


def test_10_late_output_stays_with_its_cell(storage):
    async def main():
        async with Session(storage, SubprocessExecutor(SubprocessConfig(grace=30))) as session:
            code = ("import time\ntry:\n    while True: time.sleep(0.01)\nexcept KeyboardInterrupt:\n"
                    "    print('late')\n    raise")
            first = await session.run(code, timeout=0.2)
            second = await session.run("print('second')")
            assert first.stdout == "late\n" and second.stdout == "second\n"

    run(main())


def test_11_bytes_and_input(storage):
    async def main():
        async with Session(storage) as session:
            assert (await session.run("artifacts.save('b', b'\\x00\\xff'); artifacts.load('b')")).value == b"\x00\xff"
            assert not (await session.run("input('5')", timeout=20)).is_ok

    run(main())


def test_12_values_are_whole(storage):
    async def main():
        async with Session(storage) as session:
            assert (await session.run("list(range(20000))")).value == list(range(20000))
            assert (await session.run("{i: (i,) for i in range(3000)}")).value == {i: (i,) for i in range(3000)}

    run(main())


def test_13_workspaces_do_not_share_their_search(tmp_path):
    async def main():
        for name in ("one", "two"):
            async with Session(FileStorage(tmp_path, workspace_id=name)) as session:
                await session.add_workflow("only_" + name, "async def run(): return 1", "fetch a page")
        for name in ("one", "two"):
            async with Session(FileStorage(tmp_path, workspace_id=name)) as session:
                assert [each["name"] for each in await session.search_workflows("page")] == ["only_" + name]

    run(main())


def test_14_15_23_25_packages(tmp_path, monkeypatch):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    spaces.make_wheel(str(wheels), "wc-alpha", source="value = 5")
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(wheels)), ("UV_NO_INDEX", "1"),
                        ("UV_FIND_LINKS", str(wheels)), ("XDG_CACHE_HOME", str(tmp_path / "cache")),
                        # uv is quicker than pip, and beside the tests' own interpreter.
                        ("PATH", os.path.dirname(sys.executable) + ":" + os.environ["PATH"])):
        monkeypatch.setenv(name, value)

    async def main():
        config = SubprocessConfig(venv_dir=tmp_path / "venv", deps=["wc-alpha"], allow_runtime_deps=False)
        async with Session(FileStorage(tmp_path / "a"), SubprocessExecutor(config)) as session:
            assert (await session.run("import wc_alpha; wc_alpha.value")).value == 5
            with pytest.raises(workcell.RuntimeDepsDisabledError):
                await session.add_dep("wc-alpha")
            assert "RuntimeDepsDisabledError" in (await session.run("deps.add('six')")).error
        config = SubprocessConfig(venv_dir=tmp_path / "venv")
        async with Session(FileStorage(tmp_path / "a"), SubprocessExecutor(config)) as session:
            installed = await session.executor.install_deps(["wc-alpha", "wc-nothing"])
            assert installed["failed"] == ["wc-nothing"] and "wc-nothing" not in installed["installed"]
            assert await session.list_deps() == ["wc-alpha"]
            removed = await session.remove_dep("wc-alpha")
            assert removed == {"removed": ["wc-alpha"], "not_found": [], "failed": [], "removed_from_config": True}
            assert "ModuleNotFoundError" in (await session.run("import wc_alpha")).error
            again = await session.add_dep("wc-alpha")
            assert again["installed"] == ["wc-alpha"]
            await session.reset()
            assert (await session.run("import wc_alpha; wc_alpha.value")).value == 5
            with pytest.raises(workcell.errors.DepsError, match="wc-nothing"):
                await session.add_dep("wc-nothing")
        async with Session(FileStorage(tmp_path / "other")) as session:
            assert not (await session.run("import wc_alpha")).is_ok

    run(main(), 120)


def test_16_several_processes_save_at_once(tmp_path):
    code = ("import sys, workcell\nstore = workcell.FileStorage(sys.argv[1]).get_artifact_store()\n"
            "for i in range(15): store.save('%s-%d' % (sys.argv[2], i), 'x', 'about %d' % i)")
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    store = FileStorage(tmp_path).get_artifact_store()
    listed = store.list()
    assert len(listed) == 45 and all(each.description for each in listed)


def test_17_a_call_may_have_a_longer_timeout_than_the_session(storage):
    async def main():
        async with Session(storage, SubprocessExecutor(SubprocessConfig(default_timeout=0.1))) as session:
            assert (await session.run("import time; time.sleep(0.4); 1", timeout=20)).value == 1

    run(main())


@pytest.mark.parametrize("name", EXECUTORS)
def test_18_large_messages(name, storage, tmp_path):
    async def main():
        async with Session(storage, executor(name, tmp_path)) as session:
            @session.tool
            def size(text: str) -> str:
                return text + "!"

            assert (await session.run("len(tools.size(text='x' * 3_000_000))")).value == 3000001
            assert len((await session.run("print('y' * 300_000)")).stdout) == 300001
            dead = asyncio.ensure_future(session.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
            assert (await dead).error_info.code == "kernel_died"

    run(main())


def test_19_new_tools_are_seen_at_once(storage):
    async def main():
        async with Session(storage) as session:
            assert not (await session.run("tools.late()")).is_ok

            @session.tool
            def late() -> int:
                return 1

            assert (await session.run("tools.late()")).value == 1

    run(main())


def test_20_workflows_in_async_code(storage):
    async def main():
        async with Session(storage) as session:
            await session.add_workflow("inner", "async def run(n: int):\n    return n + 1\n", "")
            await session.add_workflow("outer", "async def run():\n    return await workflows.inner(n=1)\n", "")
            assert (await session.run("await workflows.outer()")).value == 2
            assert (await session.run("workflows.outer()")).value == 2

    run(main())


def test_21_and_22_names_with_folders_and_one_storage_for_all(storage):
    async def main():
        async with Session(storage) as session:
            await session.run("artifacts.save('a/b/c.bin', bytes([0, 255]))")
            assert await session.load_artifact("a/b/c.bin") == b"\x00\xff"
            await session.run("workflows.create('w', 'async def run(): return 1', 'one')")
            assert (await session.get_workflow("w"))["description"] == "one"
            for name in ("../x", "/etc/passwd"):
                with pytest.raises(ValueError):
                    await session.save_artifact(name, "x")

    run(main())


def test_24_command_line_tools_have_no_stdin_of_the_host(tmp_path):
    spaces.write_files(tmp_path, {"tools/cat.yaml": "name: cat\ncommand: cat\nrecipes: {all: {}}\n"})

    async def main():
        async with Session.from_base(tmp_path) as session:
            assert (await session.run("tools.cat.all()", timeout=20)).value == ""

    run(main())


# ---- 9.2


def test_security_1_workflows_are_not_run_on_the_host(storage, tmp_path):
    mark = tmp_path / "mark"
    source = "open(%r, 'w').close()\nasync def run():\n    return 1\n" % str(mark)

    async def main():
        async with Session(storage) as session:
            await session.add_workflow("w", source, "")
            await session.list_workflows()
            assert not mark.exists()

    run(main())


def test_security_2_ids_are_the_librarys_and_nothing_listens(storage):
    with workcell.sync.Session(storage) as one, workcell.sync.Session(storage) as two:
        assert len(one.session_id) == 32 and one.session_id != two.session_id
        inodes = {os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd")
                  if os.path.exists("/proc/self/fd/" + fd)}
        for table in ("tcp", "tcp6"):
            with open("/proc/self/net/" + table) as file:
                listening = ["socket:[%s]" % line.split()[9] for line in file.readlines()[1:] if line.split()[3] == "0A"]
            assert not inodes & set(listening)


def test_security_3_limits_are_real(storage, tmp_path):
    async def main():
        (tmp_path / "work").mkdir()
        made = workcell.SandboxExecutor(workcell.SandboxConfig(cwd=tmp_path / "work", memory_limit="256m"))
        async with Session(storage, made) as session:
            result = await session.run("import os\nx = bytearray(1 << 30)\nlen(x)")
            assert not result.is_ok and ("MemoryError" in result.error or result.error_info.code == "limit_exceeded")
            confined = await session.run("[line.split()[1] for line in open('/proc/self/status') if line.startswith('CapEff')]")
            assert [int(bits, 16) for bits in confined.value] == [0]

    run(main())


@pytest.mark.parametrize("name", EXECUTORS)
def test_security_4_middlewares_work_on_every_executor(name, storage, tmp_path):
    async def main():
        seen = []

        async def audit(ctx, call_next):
            seen.append((ctx.full_name, ctx.executor_type))
            return await call_next(ctx)

        async with Session(storage, executor(name, tmp_path, tool_middlewares=(audit,))) as session:
            @session.tool
            def one() -> int:
                return 1

            assert (await session.run("tools.one()")).value == 1
            assert seen == [("one", name)]

    run(main())


def test_security_5_no_network_unless_it_is_asked_for(storage, tmp_path):
    async def main():
        async with Session(storage, executor("sandbox", tmp_path)) as session:
            assert (await session.run("1")).isolation["network"] == "none"

    run(main())
    assert "network_profile" not in workcell.DenoSandboxConfig().session_options()  # the library's default: none


def test_security_6_code_does_not_install_packages_itself(storage, tmp_path):
    """In the sandbox: what the interpreter has installed can be read, and that is all."""
    spaces.make_wheel(str(tmp_path), "wc-alpha", source="value = 5")
    code = ("import glob, site, subprocess, sys\n"
            "done = subprocess.run([sys.executable, '-m', 'pip', 'install', '--no-index', *glob.glob(%r)],"
            " capture_output=True, text=True)\n"
            "made = []\n"
            "for folder in site.getsitepackages():\n"
            "    try:\n        made.append(open(folder + '/wc_alpha.py', 'w'))\n    except OSError:\n        pass\n"
            "done.returncode != 0, made" % str(tmp_path / "work" / "*.whl"))

    async def main():
        made = executor("sandbox", tmp_path, allow_runtime_deps=False)
        for wheel in tmp_path.glob("*.whl"):
            wheel.rename(tmp_path / "work" / wheel.name)
        async with Session(storage, made) as session:
            assert (await session.run(code)).raise_for_error().value == (True, [])
            assert "RuntimeDepsDisabledError" in (await session.run("deps.add('wc-alpha')")).error

    run(main())


def test_security_7_tool_arguments_cannot_break_out(tmp_path):
    spaces.write_files(tmp_path, {"tools/ls.yaml": (
        "name: ls\ncommand: ls\nschema: {positional: [{name: path, required: true}]}\nrecipes: {all: {}}\n")})

    async def main():
        async with Session.from_base(tmp_path) as session:
            assert not (await session.run("tools.ls.all(path='--help')")).is_ok
        with spaces.WebServer() as server:
            adapter = workcell.tools.HTTPAdapter(server.url, {"X-Token": "${HOME}"})
            adapter.add_endpoint(workcell.tools.Endpoint("get_repo", "GET", "/repos/{name}", "Gets it", {"name": "string"}))
            answer = await adapter.call_tool("get_repo", None, {"name": "a/../../secret?x=1"})
            assert "a%2F..%2F..%2Fsecret%3Fx%3D1" in str(answer), answer
            assert [tool.name for tool in adapter.list_tools()] == ["get_repo"]
            await adapter.close()

    run(main())


def test_security_8_the_remote_helper_can_authenticate():
    from workcell.integrations import autogen

    with pytest.raises(ValueError, match="exactly one"):
        autogen.create_run_code_tool()
    made = autogen.create_run_code_tool(session_url="http://127.0.0.1:1", auth_token="secret")
    target, = [cell.cell_contents for cell in made.__closure__ if hasattr(cell.cell_contents, "config")]
    assert target.name == "remote" and target.config.session_options()["remote_token"] == "secret"

    async def main():
        async with workcell.Session.scratch() as session:
            run_code = autogen.create_run_code_tool(executor=session)
            assert await run_code("print('a')\n6 * 7") == "a\n42"
            assert "ZeroDivisionError" in await run_code("1/0")

            @session.tool
            def f(n: int) -> int:
                """Does it."""
                return n

            assert "tools.f.f(n): Does it." in await autogen.get_tools_description(session)

    run(main())


# ---- that none was forgotten


@pytest.mark.parametrize("module, prefix, count", [("test_defects_code_mode.py", "", 25), ("test_defects_code_mode.py", "security_", 8),
                                                   ("test_code_executor.py", "d", 17)])
def test_every_recorded_defect_has_a_test(module, prefix, count):
    """Names say which: test_14_15_23_25_packages, test_5_and_6_redis_names_and_tools, test_d3_a_dead_kernel."""
    with open(os.path.join(HERE, module)) as file:
        names = [each.name for each in ast.parse(file.read()).body if isinstance(each, ast.FunctionDef)]
    found = set()
    for name in names:
        match = re.match("test_%s([0-9]+(?:(?:_and)?_[0-9]+)*)_" % prefix, name)
        found |= {int(number) for number in re.findall("[0-9]+", match.group(1))} if match else set()
    assert found == set(range(1, count + 1))
