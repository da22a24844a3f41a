"""The async session: cells, values, streams, cancelling, tools, facades."""
import asyncio
import dataclasses
import datetime
import decimal
import enum
import functools
import os
import pickle
import sys
import threading
import uuid
from typing import Dict, List, NamedTuple, NewType, Optional, Set, Tuple, Union

import pytest
from conftest import run

import workcell
from workcell import (CallEnded, CallStarted, Chunk, Display, ExecutionResult, FileStorage, ResultEvent, Session,
                      SessionClosedError, SubprocessConfig, SubprocessExecutor)


def test_tools_find_programs_on_the_hosts_path(tmp_path, monkeypatch):
    """The PATH and HOME of this program; a sandbox that could write to a folder of PATH is refused."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "greet").write_text("#!/bin/sh\necho hello from $HOME\n")
    (tmp_path / "bin" / "greet").chmod(0o755)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "greet.yaml").write_text("name: greet\ncommand: greet\nrecipes: {run: {}}\n")
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path / "bin", os.environ["PATH"]))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    async def main():
        config = workcell.SubprocessConfig(tools_path=tmp_path / "tools")
        async with Session.scratch(workcell.SubprocessExecutor(config)) as session:
            assert (await session.run("tools.greet.run()")).value == "hello from %s\n" % (tmp_path / "home")
            assert await session.call_tool("greet.run") == "hello from %s\n" % (tmp_path / "home")
        sandbox = workcell.SandboxExecutor(workcell.SandboxConfig(cwd=tmp_path / "bin"))
        with pytest.raises(workcell.errors.InvalidError, match="trusted path"):
            async with Session.scratch(sandbox):
                pass

    run(main())


def test_values_and_variables(storage):
    async def main():
        async with Session(storage=storage) as session:
            assert (await session.run("x = 20")).value is None
            result = await session.run("print('out'); import sys; print('err', file=sys.stderr); x * 2.1")
            assert (result.value, result.stdout, result.stderr, result.text) == (42.0, "out\n", "err\n", "out\nerr\n")
            assert result.is_ok and result.error is None and result.execution_time_ms > 0
            assert result.backend_info["executor"] == "subprocess" and result.state_kept
            assert result.session_id == session.session_id != ""

    run(main())


@pytest.mark.parametrize("code, value", [
    ("None", None), ("'text'", "text"), ("[1, {'a': None}]", [1, {"a": None}]), ("(1, 2)", (1, 2)), ("{1, 2}", {1, 2}),
    ("set()", set()), ("b'\\x00\\xff'", b"\x00\xff"), ("1+2j", 1 + 2j), ("{1: (b'x',)}", {1: (b"x",)}),
    ("10**400", 10 ** 400), ("[list(range(5000))]", [list(range(5000))]), ("tuple(range(3000))", tuple(range(3000))),
    ("float('inf')", float("inf")), ("object", "<class 'object'>"), ("[-float('inf'), 1-2j]", [-float("inf"), 1 - 2j]),
    ("frozenset({1}), bytearray(b'x'), {(): set()}", (frozenset({1}), bytearray(b"x"), {(): set()})),
    ("import datetime as d\n[d.datetime(2020, 1, 2, tzinfo=d.timezone.utc), d.date(2020, 1, 2), d.time(3), d.timedelta(1)]",
     [datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc), datetime.date(2020, 1, 2), datetime.time(3), datetime.timedelta(1)]),
    ("import decimal, uuid\ndecimal.Decimal('1.50'), uuid.UUID(int=1)", (decimal.Decimal("1.50"), uuid.UUID(int=1))),
    ("import decimal\nclass Decimal(decimal.Decimal): pass\n[Decimal(1)]", "[Decimal('1')]"),
])
def test_exact_values(shared, code, value):
    assert shared.run(code).value == value


def test_texts_that_are_no_data_are_not_read():
    from workcell.types import read_literal

    assert read_literal("[nan, bytearray(b'x')]")[1] == bytearray(b"x")
    for text in ("bytearray(10 ** 9)", "bytearray(1000000000)", "open('x')", "datetime.datetime.now()", "datetime.timedelta(1e99)",
                 "{**{}}", "[*()]", "frozenset(*[1])", "UUID(**{})", "x", "().__class__", "(" * 5000):
        with pytest.raises(ValueError):
            read_literal(text)


def test_objects_that_lie_about_themselves_are_texts(shared):
    result = shared.run("class Five:\n    def __repr__(self): return '(5,)'\nFive()")
    assert result.value == "(5,)"
    result = shared.run("import datetime\nclass date:\n    __module__ = 'datetime'\n"
                        "    def __repr__(self): return 'datetime.date(2020, 1, 1)'\ndate()")
    assert result.value == "datetime.date(2020, 1, 1)"


@pytest.fixture(scope="module")
def shared():
    import workcell.sync

    with workcell.sync.Session.scratch() as session:
        yield session


def test_errors_are_results(shared):
    result = shared.run("def f():\n    return 1 / 0\nf()")
    assert not result.is_ok and "ZeroDivisionError" in result.error and "in f" in result.error
    assert (result.error_info.code, result.error_info.type) == ("exception", "ZeroDivisionError")
    with pytest.raises(workcell.CodeExecutionError, match="division"):
        result.raise_for_error()


def patient():
    """Kernels that are not killed because a busy machine is slow to let them end."""
    return SubprocessExecutor(SubprocessConfig(grace=30))


def test_timeouts_are_hard_and_keep_the_state(storage):
    async def main():
        async with Session(storage, patient()) as session:
            await session.run("x = 1")
            result = await session.run("while True: pass", timeout=0.2)
            assert result.error_info.code == "timeout" and result.state_kept
            assert "while True" in result.error and "longer than its timeout of 0.2 s" in result.error.splitlines()[-1]
            assert (await session.run("x")).value == 1
            with pytest.raises(ValueError):
                await session.run("1", timeout=0)

    run(main())


def test_a_dead_kernel_ends_the_cell_and_the_next_one_works(storage):
    async def main():
        async with Session(storage=storage) as session:
            result = await session.run("import os; os._exit(3)")
            assert result.error_info.code == "kernel_died" and "3" in result.error and not result.state_kept
            assert (await session.run("1 + 1")).value == 2

    run(main())


def test_reset_and_close(storage):
    async def main():
        session = Session(storage=storage)
        assert not session.supports("reset") and session.supported_capabilities() == set()
        async with session:
            await session.start()
            assert session.supports("timeout") and not session.supports("network_isolation")
            await session.run("x = 1")
            await session.reset()
            assert (await session.run("'x' in globals()")).value is False
        await session.close()
        for call in (session.run("1"), session.reset(), session.interrupt(), session.list_tools(), session.start()):
            with pytest.raises(SessionClosedError):
                await call

    run(main())


def test_arguments_are_checked(tmp_path):
    with pytest.raises(TypeError, match="storage must be .* not int; a storage class of your own needs the method space_options"):
        Session(5)
    with pytest.raises(TypeError, match="give FileStorage\\(...\\), not the class"):
        Session(FileStorage)
    with pytest.raises(ValueError, match="unknown executor 'sandbax', did you mean 'sandbox'"):
        Session(FileStorage(tmp_path), "sandbax")
    with pytest.raises(TypeError, match="ContainerExecutor\\(remote_url="):
        Session(FileStorage(tmp_path), "http://localhost:8080")
    with pytest.raises(TypeError, match="executor must be an executor, its name, class or configuration, or None, not int"):
        Session(FileStorage(tmp_path), 5)
    with pytest.raises(ValueError, match="workspace_id"):
        FileStorage(tmp_path, workspace_id="a/b")


def test_a_stream_has_everything_in_order(storage):
    async def main():
        async with Session(storage=storage) as session:
            @session.tool
            def double(n: int) -> int:
                return 2 * n

            code = "print('a')\ndisplay({'k': 1})\nx = tools.double(n=4)\nprint('\\u00e9' * 3)\nx"
            events = [event async for event in session.stream(code)]
            kinds = [type(event) for event in events]
            assert kinds[-1] is ResultEvent and events[-1].result.value == 8
            assert kinds.index(Display) < kinds.index(CallStarted) < kinds.index(CallEnded)
            text = "".join(event.text for event in events if isinstance(event, Chunk))
            assert text == events[-1].result.stdout == "a\n\u00e9\u00e9\u00e9\n"
            ended = [event for event in events if isinstance(event, CallEnded)][0]
            assert (ended.full_name, ended.args, ended.outcome) == ("double", {"n": 4}, "ok")

    run(main())


def test_leaving_a_stream_interrupts_the_cell(storage):
    async def main():
        async with Session(storage, patient()) as session:
            events = session.stream("x = 7\nprint('go')\nwhile True: pass")
            async for event in events:
                if isinstance(event, Chunk):
                    break
            await events.aclose()
            assert (await session.run("x")).value == 7

    run(main())


def test_cancelling_the_task_interrupts_its_own_cell_only(storage, tmp_path):
    async def main():
        async with Session(storage, patient()) as session:
            go = tmp_path / "go"
            first = asyncio.ensure_future(session.run(
                "import os, time\nwhile not os.path.exists(%r): time.sleep(0.005)\n'first'" % str(go)))
            second = asyncio.ensure_future(session.run("y = 'ran'"))
            await asyncio.sleep(0.05)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            go.touch()
            assert (await first).value == "first"
            assert (await session.run("'y' in globals()")).value is False
            begun = tmp_path / "begun"
            endless = asyncio.ensure_future(session.run("z = 5\nopen(%r, 'w').close()\nwhile True: pass" % str(begun)))
            while not begun.exists():
                await asyncio.sleep(0.01)
            endless.cancel()
            with pytest.raises(asyncio.CancelledError):
                await endless
            assert (await session.run("z")).value == 5

    run(main())


def test_a_cell_that_ignores_interrupts_is_killed_when_cancelled(storage):
    async def main():
        executor = SubprocessExecutor(SubprocessConfig(grace=0.2))
        async with Session(storage, executor) as session:
            stubborn = asyncio.ensure_future(session.run(
                "import time\nwhile True:\n    try:\n        time.sleep(1)\n    except KeyboardInterrupt:\n        pass"))
            await asyncio.sleep(0.1)
            stubborn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stubborn
            assert (await session.run("1")).value == 1

    run(main())


# ---- tools


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


def test_functions_of_the_host(storage):
    async def main():
        async with Session(storage=storage) as session:
            here = threading.current_thread()
            seen = []

            @session.tool
            async def add(a: int, b: int = 2) -> int:
                """Adds two numbers.

                Args:
                    a: the first
                    b: the second
                """
                seen.append(threading.current_thread() is here)
                await asyncio.sleep(0)
                return a + b

            @session.tool(name="shapes.move")
            def move(point: Point, colour: Colour, by: Optional[List[int]] = None) -> Point:
                assert isinstance(point, Point) and colour is Colour.RED
                return Point(point.x + sum(by or []), point.y)

            @session.tool(thread=True)
            def where() -> str:
                return "elsewhere" if threading.current_thread() is not here else "here"

            @session.tool
            def fails() -> None:
                raise KeyError("gone")

            assert (await session.run("tools.add(a=1), tools.add(a=1, b=5)")).value == (3, 6)
            assert seen == [True, True]
            code = "tools.shapes.move(point={'x': 1}, colour='red', by=[1, 2])"
            assert (await session.run(code)).value == {"x": 4, "y": 0}
            assert (await session.run("tools.where()")).value == "elsewhere"
            result = await session.run("tools.fails()")
            assert result.error_info.type == "ToolCallError" and "KeyError: 'gone'" in result.error
            result = await session.run("tools.add(a='x')")
            assert "'a' must be an integer" in result.error
            listed = {tool["name"]: tool for tool in await session.list_tools()}
            assert listed["add"]["description"] == "Adds two numbers."
            parameter = listed["add"]["callables"][0]["parameters"][0]
            assert (parameter["name"], parameter["type"], parameter["description"]) == ("a", "integer", "the first")
            assert [tool["name"] for tool in await session.search_tools("numbers")][:1] == ["add"]
            assert await session.call_tool("add", a=40) == 42
            with pytest.raises(workcell.ToolNotFoundError, match="Tool 'nothing' not found. Available: add"):
                await session.call_tool("nothing")

    run(main())


@dataclasses.dataclass
class Place:
    x: int
    name: str = "here"


class Pair(NamedTuple):
    first: int
    second: str


UserId = NewType("UserId", int)


def test_arguments_are_what_the_annotations_say():
    @dataclasses.dataclass
    class Local:  # which get_type_hints() alone does not find
        n: int

    def places(one: Dict[str, Place], two: Tuple[int, Place], three: Set[int], four: Pair, five: UserId) -> str:
        return repr((one, two, three, four, five))

    def moments(at: datetime.time, long: datetime.timedelta, raw: bytes, either: Union[int, Place] = 1) -> str:
        return repr((at, long, raw, either))

    def local(of: "Local", odd: "Missing" = None) -> str:  # noqa: F821
        return repr(of)

    made = Session.scratch(tools=[places, moments, local])

    async def main():
        async with made as session:
            for code, wanted in (
                    ("tools.places(one={'a': {'x': 1}}, two=[2, {'x': 3}], three=[4, 4], four=[5, 'b'], five=6)",
                     ({"a": Place(1)}, (2, Place(3)), {4}, Pair(5, "b"), 6)),
                    ("tools.moments(at='03:04', long=1.5, raw='AAE=')",
                     (datetime.time(3, 4), datetime.timedelta(seconds=1.5), b"\0\1", 1)),
                    ("tools.moments(at='03:04', long=1, raw='', either={'x': 7})",
                     (datetime.time(3, 4), datetime.timedelta(seconds=1), b"", Place(7)))):
                assert (await session.run(code)).value == repr(wanted)
            assert (await session.run("tools.local(of={'n': 1})")).value.endswith("Local(n=1)")
            for code, said in (("tools.places(one={'a': {'x': 'no'}}, two=[2, {'x': 3}], three=[], four=[5, 'b'], five=6)",
                                "one.x: int expected, not str"),
                               ("tools.places(one={}, two=[2], three=[], four=[5, 'b'], five=6)", "two: 2 values expected, not 1")):
                assert said in (await session.run(code)).error

    run(main())
    with pytest.raises(TypeError, match="has no name"):
        Session.scratch(tools=[functools.partial(places, five=1)])


def test_calls_overlap(storage):
    async def main():
        async with Session(storage=storage) as session:
            both = asyncio.Event()
            waiting = []

            @session.tool
            async def meet(n: int) -> int:
                waiting.append(n)
                if len(waiting) == 2:
                    both.set()
                await both.wait()
                return n

            code = "import asyncio\nawait asyncio.gather(tools.meet.call_async(n=1), tools.meet.call_async(n=2))"
            assert (await session.run(code)).value == [1, 2]

    run(main())


def test_positional_parameters_are_refused(storage):
    with pytest.raises(TypeError, match="keyword arguments only"):
        Session(storage).tool(lambda *args: None)


def test_middlewares(storage):
    async def main():
        log = []

        async def outer(ctx, call_next):
            log.append(("outer", ctx.full_name, dict(ctx.args)))
            try:
                return {"wrapped": await call_next(ctx)}
            except workcell.ToolCallError as error:
                log.append(("failed", str(error)))
                raise

        async def inner(ctx, call_next):
            if ctx.args.get("n") == 0:
                return "short cut"
            if ctx.args.get("n") == 13:
                raise PermissionError("not 13")
            ctx.args["n"] = ctx.args["n"] + 1
            return await call_next(ctx)

        async with Session(storage, middlewares=[outer, inner]) as session:
            @session.tool
            def square(n: int) -> int:
                if n == 100:
                    raise ValueError("too large")
                return n * n

            assert (await session.run("tools.square(n=2)")).value == {"wrapped": 9}
            assert (await session.run("tools.square(n=0)")).value == {"wrapped": "short cut"}
            assert "not 13" in (await session.run("tools.square(n=13)")).error
            result = await session.run("tools.square(n=99)")
            assert "too large" in result.error and log[-1][0] == "failed"
            assert log[0] == ("outer", "square", {"n": 2})
            assert await session.call_tool("square", n=3) == {"wrapped": 16}

    run(main())


# ---- storage


def test_facades(storage):
    async def main():
        async with Session(storage=storage) as session:
            made = await session.add_workflow("double", "async def run(n: int = 1):\n    '''Twice.'''\n    return 2 * n\n",
                                              "Doubles a number")
            assert made["parameters"] == [{"name": "n", "type": "integer", "description": "", "required": False,
                                           "default": 1}] and "source" in made
            assert [each["name"] for each in await session.list_workflows()] == ["double"]
            assert [each["name"] for each in await session.search_skills("number")] == ["double"]
            assert (await session.get_workflow("double"))["source"].startswith("async def run")
            assert await session.get_workflow("nothing") is None
            assert (await session.run("workflows.double(n=21)")).value == 42
            with pytest.raises(SyntaxError, match="^Syntax error in workflow code: (?!Syntax)"):
                await session.add_workflow("bad", "async def run(:", "")
            with pytest.raises(SyntaxError, match=r"line 2"):
                await session.add_workflow("bad", "async def run():\n    return 1 +\n", "")
            with pytest.raises(ValueError):
                await session.add_workflow("not a name", "async def run(): pass", "")
            assert await session.remove_workflow("double") is True
            assert await session.remove_workflow("double") is False

            saved = await session.save_artifact("a/b.json", {"k": [1]}, "about", {"by": "me"})
            assert (saved["name"], saved["metadata"]) == ("a/b.json", {"by": "me"})
            await session.save_artifact("raw", bytes(range(256)) * 10000)
            assert (await session.run("len(artifacts.load('raw')), artifacts.load('a/b.json')")).value == (
                2560000, {"k": [1]})
            assert await session.load_artifact("raw") == bytes(range(256)) * 10000
            assert [each["name"] for each in await session.list_artifacts()] == ["a/b.json", "raw"]
            await session.delete_artifact("raw")
            with pytest.raises(workcell.ArtifactNotFoundError, match="Artifact 'raw' not found"):
                await session.load_artifact("raw")
            assert await session.list_deps() == []
            with pytest.raises(ValueError, match="Invalid package"):
                await session.add_dep("-e foo")

    run(main())


def test_storages_without_a_session(storage):
    store, library = storage.get_artifact_store(), storage.get_workflow_library()
    artifact = store.save("n", "text", "about")
    assert (artifact.name, store.load("n"), store.exists("n"), len(store.list())) == ("n", "text", True, 1)
    assert artifact.created_at.tzinfo is not None and storage.workspace_id is None
    from workcell.workflows import PythonWorkflow

    library.add(PythonWorkflow.from_source("w", "async def run(): return 1", "one"))
    assert [each.name for each in library.list()] == ["w"] and library.get("w").description == "one"
    assert storage.to_bootstrap_config() == {"type": "file", "base_path": str(storage.base_path)}

    async def main():
        bundle = await workcell.bootstrap_namespaces(storage.to_bootstrap_config())
        assert bundle.artifacts.load("n") == "text" and len(bundle.workflows) == 1

    run(main())


def test_workspaces_are_apart(tmp_path):
    async def main():
        one, two = (FileStorage(tmp_path, workspace_id=name) for name in ("one", "two"))
        async with Session(one) as session:
            await session.run("artifacts.save('x', 'mine')")
        async with Session(two) as session:
            assert await session.list_artifacts() == []
        assert one.get_artifact_store().load("x") == "mine"

    run(main())


def test_from_base(tmp_path):
    async def main():
        (tmp_path / "tools").mkdir()
        (tmp_path / "tools" / "echo.yaml").write_text(
            "name: echo\ncommand: echo\ntags: [demo]\nschema: {positional: [{name: text, required: true}]}\n"
            "recipes: {say: {description: Says it}}\n")
        async with Session.from_base(tmp_path) as session:
            assert (await session.run("tools.echo.say(text='hi')")).value == "hi\n"
            assert (await session.list_tools())[0]["tags"] == ["demo"]
        (tmp_path / "work").mkdir()
        async with Session.sandbox(tmp_path, cwd=tmp_path / "work", network="none", memory="512m") as session:
            assert (await session.run("1")).isolation["executor"] == "sandbox"

    run(main())


def test_a_result_shows_itself_and_can_be_copied(shared):
    result = shared.run("print('<b>')\n[1, 2]")
    bundle = result._repr_mimebundle_()
    assert bundle["text/plain"] == "<b>\n[1, 2]" and "&lt;b&gt;" in bundle["text/html"]
    copy = pickle.loads(pickle.dumps(result))
    assert isinstance(copy, ExecutionResult) and copy == result and copy.value == [1, 2]
    assert result.to_dict()["stdout"] == "<b>\n"
    bad = shared.run("1/0")._repr_mimebundle_()
    assert "ZeroDivisionError" in bad["text/html"]


def test_an_executor_that_is_not_there_says_so(storage):
    known = {row.name for row in workcell.default_engine().executors()}
    assert {"subprocess", "sandbox"} <= known

    class Nowhere(SubprocessExecutor):
        name = "nowhere"

    async def main():
        with pytest.raises(workcell.ExecutorUnavailableError, match="nowhere"):
            await Session(storage, Nowhere()).start()

    run(main())


class Echo:
    """An executor of somebody else's: it has the methods, and that is all."""

    def __init__(self):
        self.log = []

    async def start(self, storage=None):
        self.log.append("start")

    async def run(self, code, timeout=None):
        return ExecutionResult(value=code)

    async def reset(self):
        self.log.append("reset")

    async def close(self):
        self.log.append("close")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self.close()

    def supports(self, capability):
        return False

    def supported_capabilities(self):
        return set()

    def get_configured_deps(self):
        return ["six"]

    async def install_deps(self, packages):
        self.log.append(packages)
        return {}

    uninstall_deps = add_dep = remove_dep = sync_deps = install_deps

    async def list_deps(self):
        return ["six"]

    async def list_tools(self):
        return [{"name": "own"}]

    async def search_tools(self, query, limit=10):
        return []


def test_an_executor_of_ones_own(storage):
    async def main():
        executor = Echo()
        assert isinstance(executor, workcell.Executor)
        async with Session(storage, executor, sync_deps_on_start=True) as session:
            assert (await session.run("x")).value == "x"
            assert await session.list_tools() == [{"name": "own"}] and await session.list_deps() == ["six"]
            await session.save_artifact("a", "kept")
            assert await session.load_artifact("a") == "kept"
            await session.reset()
        assert executor.log == ["start", ["six"], "close", "start", "close"]

    run(main())


def test_constructors(tmp_path):
    import workcell.sync

    names = ["from_base", "subprocess", "sandbox", "inprocess", "container", "deno"]
    for kind in (Session, workcell.sync.Session):
        made = [getattr(kind, name)(tmp_path / name, timeout=5, policy="ask").executor for name in names]
        assert [each.name for each in made] == ["subprocess", "subprocess", "sandbox", "inprocess", "container", "deno"]
        assert all(each.config.session_options()["timeout_ms"] == 5000 for each in made)
        assert all(each.extras["policy"] == "ask" for each in made)


def test_a_session_survives_its_first_loop(storage):
    session = Session(storage)

    @session.tool
    def one() -> int:
        return 1

    assert run(session.run("x = tools.one(); x")).value == 1
    assert run(session.run("x + tools.one()")).value == 2
    run(session.close())


def test_uvloop(storage):
    uvloop = pytest.importorskip("uvloop")

    async def main():
        async with Session(storage=storage) as session:
            @session.tool
            async def add(a: int) -> int:
                await asyncio.sleep(0.001)
                return a + 1

            assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
            assert (await session.run("tools.add(a=1)")).value == 2
            assert [event async for event in session.stream("1")][-1].result.value == 1

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(main(), 60))
    finally:
        loop.close()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="numpy and pandas are in the newest environment only")
def test_tables_arrays_and_pictures(storage, tmp_path):
    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")

    async def main():
        executor = SubprocessExecutor(SubprocessConfig(images_dir=tmp_path / "images"))
        async with Session(storage, executor) as session:
            result = await session.run("import pandas as pd, numpy as np\npd.DataFrame({'a': [1, 2], 'b': ['x', None]})")
            pandas.testing.assert_frame_equal(result.value, pandas.DataFrame({"a": [1, 2], "b": ["x", None]}))
            assert "<table" in result._repr_mimebundle_()["text/html"]
            series = (await session.run("pd.Series([1.5, 2.5], name='s')")).value
            pandas.testing.assert_series_equal(series, pandas.Series([1.5, 2.5], name="s"))
            array = (await session.run("np.arange(6).reshape(2, 3)")).value
            assert isinstance(array, numpy.ndarray) and array.tolist() == [[0, 1, 2], [3, 4, 5]]
            assert (await session.run("np.float64(1.5), np.int8(3)")).repr.startswith("(")
            assert (await session.run("np.float64(1.5)")).value == 1.5
            await session.save_artifact("t", pandas.DataFrame({"a": [1]}))
            assert (await session.run("int(artifacts.load('t')['a'].sum())")).value == 1
            plot = await session.run("import matplotlib.pyplot as plt\nplt.plot([1, 4])\nplt.show()")
            image, = plot.images
            assert image.path.parent == tmp_path / "images" and image.pil().format == "PNG"
            assert "data:image/png" in plot._repr_mimebundle_()["text/html"]
            shown, value = (await session.run("import PIL.Image\np = PIL.Image.new('RGB', (2, 3))\ndisplay(p)\np")).images
            assert shown.path != value.path and value.pil().size == (2, 3)

    run(main())


def test_short_cells_do_not_keep_the_loop():
    async def main():
        turns = 0

        async def other():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with workcell.Session.scratch() as session:
            task = asyncio.ensure_future(other())
            while turns < 10:
                assert (await session.run("1 + 1")).value == 2
            # Two at once, and a long one beside short ones.
            slow = asyncio.ensure_future(session.run("import time; time.sleep(0.1); 'slow'"))
            async with workcell.Session.scratch() as second:
                assert [(await second.run("%d" % i)).value for i in range(20)] == list(range(20))
            assert (await slow).value == "slow"
            task.cancel()

    run(main())
