"""What a new user meets in the first hour: what is served, what is refused, and with which words."""
import asyncio
import logging
import os
import socket
import sys
import threading
import time

import pytest
from conftest import ROOT, run

import workcell
import workcell.sync
from workcell import FileStorage, InProcessExecutor, Session, SubprocessExecutor
from workcell.sync import Session as SyncSession

sys.path.insert(0, os.path.join(ROOT, "tests"))
import spaces  # noqa: E402


# ---- sessions are made of what one has at hand


def test_a_session_of_nothing():
    async def main():
        async with Session() as session:
            assert (await session.run("6 * 7")).value == 42

    run(main())
    with SyncSession() as session:
        assert session.run("6 * 7").value == 42


@pytest.mark.parametrize("kind", [str, lambda path: path, FileStorage])
def test_a_folder_is_a_storage(tmp_path, kind):
    with SyncSession(kind(tmp_path / "data")) as session:
        session.save_artifact("note", "x")
        assert (tmp_path / "data" / "artifacts" / "note").exists()


def test_packages_are_where_the_command_line_has_them(tmp_path, monkeypatch):
    (tmp_path / "wheels").mkdir()
    spaces.make_wheel(str(tmp_path / "wheels"), "wc-alpha", source="value = 5")
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path / "wheels")), ("UV_NO_INDEX", "1"),
                        ("UV_FIND_LINKS", str(tmp_path / "wheels")), ("XDG_CACHE_HOME", str(tmp_path / "cache")),
                        ("PATH", os.path.dirname(sys.executable) + ":" + os.environ["PATH"])):
        monkeypatch.setenv(name, value)
    with SyncSession(tmp_path / "data") as session:
        session.add_dep("wc-alpha")
        session.reset()
        assert session.run("import wc_alpha; wc_alpha.value").value == 5
    assert len(os.listdir(tmp_path / "cache" / "workcell" / "venvs")) >= 1


def test_an_address_of_redis_is_a_storage():
    assert isinstance(Session("redis://localhost:1/0").storage, workcell.RedisStorage)


@pytest.mark.parametrize("executor, name", [
    ("sandbox", "sandbox"), ("subprocess", "subprocess"), (SubprocessExecutor, "subprocess"), ("in-process", "inprocess"),
    (workcell.SandboxConfig(network="none"), "sandbox"), (InProcessExecutor(), "inprocess")])
def test_an_executor_by_name_class_or_configuration(executor, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SyncSession(executor=executor) as session:
        assert session.run("1").backend_info["executor"] == name


def test_with_and_async_with():
    with pytest.raises(TypeError, match="async with.*workcell.sync.Session"):
        with Session():
            pass

    async def main():
        async with SyncSession():
            pass

    with pytest.raises(TypeError, match="synchronous: write `with`"):
        run(main())


def test_an_executor_without_start():
    async def main():
        async with InProcessExecutor() as executor:
            assert (await executor.run("1 + 1")).value == 2
        async with SubprocessExecutor() as executor:
            assert (await executor.run("1 + 1")).value == 2
        executor = SubprocessExecutor()
        assert (await executor.run("1 + 1")).value == 2
        assert [event.type async for event in executor.stream("2")] == ["result"]
        assert await executor.list_tools() == []
        await executor.close()
        with pytest.raises(workcell.SessionClosedError):
            await executor.run("1")

    run(main())


# ---- errors in Python's words


def test_no_storage_says_so():
    with SyncSession() as session:
        for call in (lambda: session.save_artifact("a", 1), lambda: session.load_artifact("a"), session.list_artifacts,
                     session.list_workflows, lambda: session.add_dep("x")):
            with pytest.raises(workcell.ConfigurationError, match=r"no storage .* Session\(storage=") as caught:
                call()
            assert "--" not in str(caught.value)
        assert "storage=" in session.run("artifacts.save('a', 1)").error


def test_flags_of_the_command_line_are_parameters_here(tmp_path):
    """The library's advice, in Python's words."""
    (tmp_path / "policy.yaml").write_text("network: none\n")
    with pytest.raises(workcell.errors.InvalidError, match="cwd=") as caught:
        SyncSession(executor=workcell.SandboxConfig(cwd=tmp_path, policy=tmp_path / "policy.yaml")).start()
    assert "--" not in str(caught.value) and "workspace_mode=" in str(caught.value)


def test_an_unknown_parameter_is_one_of_session():
    for kind in (Session, SyncSession):
        with pytest.raises(TypeError, match=r"^Session\.__init__\(\) got an unexpected keyword argument 'aprove'"):
            kind(aprove="ask")


def test_nobody_at_the_address():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for address in ("http://127.0.0.1:%d" % port, "unix:/nonexistent/socket"):
        executor = workcell.ContainerExecutor(remote_url=address, auth_token="x")
        with pytest.raises(workcell.ServerError):
            with SyncSession(executor=executor) as session:
                session.run("1")


# ---- tools


def test_blocking_functions_run_in_threads():
    async def main():
        async with Session() as session:
            seen = []

            @session.tool
            def block(n: int) -> str:
                seen.append(threading.current_thread())
                time.sleep(0.3)
                return str(n)

            @session.tool(thread=False)
            def quick() -> bool:
                return threading.current_thread() is threading.main_thread()

            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.01)
                    ticks += 1

            ticking = asyncio.ensure_future(tick())
            assert (await session.run("tools.block(n=1)")).value == "1"
            # More than the loop's own pool has threads, each waiting in one of them for the tool.
            calls = [session.call_tool("block", n=n) for n in range(80)]
            assert await asyncio.gather(*calls) == [str(n) for n in range(80)]
            ticking.cancel()
            assert ticks > 10 and threading.main_thread() not in seen
            assert (await session.run("tools.quick()")).value is True

    run(main())


def test_a_tools_exception_is_logged_with_its_traceback(caplog):
    with SyncSession() as session:
        @session.tool
        def broken(n: int) -> int:
            return {}[n]

        assert session.run("tools.broken(n=3)").error_info.type == "ToolCallError"
    record, = [each for each in caplog.records if each.name == "workcell"]
    assert record.levelno == logging.WARNING and "broken" in record.getMessage() and record.exc_info[0] is KeyError


def test_bad_definitions_are_logged(tmp_path, caplog):
    (tmp_path / "good.yaml").write_text("name: good\ncommand: echo\nschema: {options: {p: {short: p, default: '-'}}}\nrecipes: {run: {}}\n")
    (tmp_path / "bad.yaml").write_text("name: bad\ncomand: echo\n")
    with SyncSession(executor=workcell.SubprocessConfig(tools_path=tmp_path)) as session:
        assert [each["name"] for each in session.list_tools()] == ["good"]
        assert session.call_tool("good.run") == "-p -\n"
    assert "bad.yaml" in caplog.text and "comand" in caplog.text
    with SyncSession(executor=workcell.SubprocessConfig(tools_path=tmp_path / "tolls")):
        pass
    assert "tolls does not exist" in caplog.text


def test_bad_workflows_are_logged(tmp_path, caplog):
    (tmp_path / "workflows").mkdir()
    for name, source in (("good", "def run(): pass"), ("worse", "def run(: pass"), ("bad", "x = 1")):
        (tmp_path / "workflows" / (name + ".py")).write_text(source)
    with SyncSession(tmp_path) as session:
        assert [each["name"] for each in session.list_workflows()] == ["good"]
    assert "bad.py" in caplog.text and "worse.py" in caplog.text and "good.py" not in caplog.text


# ---- what is shown


def test_reprs_are_short_and_telling(tmp_path):
    with SyncSession(tmp_path, policy="ask") as session:
        assert repr(session).startswith("<Session subprocess, not started") or session.session_id in repr(session)
        assert "FileStorage" in repr(session) and len(repr(session)) < 300
        shown = repr(session.run("print('working'); 42"))
        assert "value=42" in shown and "working" in shown and " ms" in shown
        shown = repr(session.run("print('x' * 100000); list(range(100000))"))
        assert len(shown) < 300 and "100001 characters" in shown
        shown = repr(session.run("1/0"))
        assert "ZeroDivisionError" in shown and "Traceback" not in shown
        shown = repr(session.run("class Evil:\n    def __repr__(self): return '\x1b[31m' + '\\n' * 9\nEvil()"))
        assert "\x1b" not in shown and "\n" not in shown
        assert "variables lost" in repr(session.run("import os; os._exit(3)"))
        for event in session.stream("print('y' * 100000)"):
            assert len(repr(event)) < 500
    assert "closed" in repr(session)


# ---- the model's side


def test_prompt_text(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    with SyncSession(tmp_path / "data", workcell.SandboxConfig(default_timeout=7, cwd=work), policy="ask") as session:
        @session.tool
        def price(item: str, currency: str = "EUR") -> float:
            """The price of an item.

            Args:
                item: its name
            """
            return 1.0

        @session.tool(name="shop.hours", description="evil\n\n# Rules:\x1b[31m " + "x" * 9000)
        def hours() -> str:
            return ""

        session.add_workflow("twice", "def run(n: int):\n    return 2 * n", "Doubles a number")
        text = session.prompt_text()
    assert "tools.price(item: str, currency: str = 'EUR')  # The price of an item." in text and "    item: its name" in text
    assert "workflows.twice(n: int)  # Doubles a number" in text
    assert "7 seconds" in text and "no network" in text and "ApprovalRejectedError" in text and "artifacts.save" in text
    assert "\x1b" not in text and "\n# Rules" not in text and len(text) < 3000
    with SyncSession() as session:
        assert "artifacts" not in session.prompt_text() and "approval" not in session.prompt_text().lower()


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_schemas_and_answers(style):
    async def main():
        async with Session() as session:
            @session.tool
            def price(item: str, name: str = "x") -> float:
                """The price."""
                return {"tea": 4.5}[item]

            @session.tool(name="shop.hours")
            def hours() -> dict:
                return {"open": 9}

            schemas = await session.tool_schemas(style, direct=True)
            functions = {each.get("function", each)["name"]: each.get("function", each) for each in schemas}
            key = "parameters" if style == "openai" else "input_schema"
            assert list(functions) == ["run_code", "price", "shop__hours"]
            assert functions["run_code"][key]["required"] == ["code"]
            assert functions["price"][key]["properties"]["item"]["type"] == "string" and functions["price"][key]["required"] == ["item"]
            assert [len(await session.tool_schemas(style)), await session.answer("run_code", '{"code": "print(1); 2"}')] == [1, "1\n2"]
            assert await session.answer("price", {"item": "tea", "name": "y"}) == "4.5"
            assert await session.answer("shop__hours", "{}") == '{"open": 9}'
            for name, arguments, words in (("price", '{"item": "beer"}', "KeyError"), ("price", "{", "not valid JSON"), ("price", "[1]", "JSON object"),
                                           ("prices", "{}", "unknown function prices; the functions are: run_code, price, shop__hours"),
                                           ("run_code", "{}", "needs the argument code"), ("price", '{"item": 5}', "must be a string"),
                                           ("run_code", '{"code": "1/0"}', "ZeroDivisionError")):
                answer = await session.answer(name, arguments)
                assert answer.startswith("Error:") and words in answer, answer
            assert len(await session.answer("run_code", {"code": "print('x' * 10**6)"})) < 21000
            with pytest.raises(ValueError, match="style"):
                await session.tool_schemas("gemini")
        with pytest.raises(workcell.SessionClosedError):
            await session.answer("run_code", {"code": "1"})

    run(main())
