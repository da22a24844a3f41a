"""workcell.integrations.langchain and .deepagents with the real agents and a model that replays messages."""
import asyncio
import os

import pytest

pytest.importorskip("deepagents")
from deepagents import create_deep_agent  # noqa: E402
from deepagents.backends.protocol import SandboxBackendProtocol  # noqa: E402
from deepagents.backends.sandbox import BaseSandbox  # noqa: E402
from langchain.agents import create_agent  # noqa: E402
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel  # noqa: E402
from langchain_core.messages import AIMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402

from conftest import run  # noqa: E402
from workcell.integrations.deepagents import WorkcellSandbox  # noqa: E402
from workcell.integrations.langchain import WorkcellCodeMiddleware, WorkcellCodeTool  # noqa: E402


class Replay(FakeMessagesListChatModel):
    def bind_tools(self, tools, **options):
        return self


def replay(*calls):
    messages = [AIMessage("", tool_calls=[{"name": name, "args": args, "id": "call_%d" % number}]) for number, (name, args) in enumerate(calls)]
    return Replay(responses=[*messages, AIMessage("done")])


calls = []


@tool
def price(item: str, amounts: list[int] | None = None) -> dict:
    """The price of an item."""
    calls.append((item, amounts, os.getpid()))
    return {"item": item, "price": 4.5, "amounts": amounts}


@pytest.fixture(scope="module")
def code():
    with WorkcellCodeTool([price]) as made:
        yield made


def answers(state):
    return [each.content for each in state["messages"] if isinstance(each, ToolMessage)]


def test_agent(code):
    model = replay(("run_code", {"code": "found = price('tea', amounts=[1, 2])\nprint(found['price'])"}), ("run_code", {"code": "found['amounts']"}),
                   ("run_code", {"code": "1 / 0"}))
    agent = create_agent(model, tools=[code.tool])
    found = answers(agent.invoke({"messages": [{"role": "user", "content": "go"}]}))
    assert found[0] == "4.5" and found[1] == "[1, 2]" and "ZeroDivisionError" in found[2]
    assert calls[-1] == ("tea", [1, 2], os.getpid())
    assert "price(item: str" in code.tool.description and "The price of an item" in code.tool.description


def test_async_and_hostile_arguments(code):
    before = len(calls)
    for wrong in ("price(5)", "price()", "price('a', amounts=['x'])", "price('a', amounts=[{'__class__': 1}])", "price('a', other=1)"):
        text = run(code.tool.ainvoke({"code": wrong}))
        assert "Error" in text, (wrong, text)
    assert len(calls) == before
    text = run(code.tool.ainvoke({"code": "print('\\x1b[2J\\x1b]8;;x\\x07' + 'y' * 1_000_000)\nclass A:\n    def __repr__(self): return '\\x1b[31m'\nA()"}))
    assert "\x1b" not in text and len(text) < 21000
    assert "lost" in code.tool.invoke({"code": "import os; os._exit(1)"}) and code.tool.invoke({"code": "price('b')['item']"}) == "'b'"


def test_cancelled_async_call_interrupts_the_cell(code):
    """Without a thread that goes on: the session is free for the next call."""
    async def cancelled():
        task = asyncio.ensure_future(code.tool.ainvoke({"code": "begun = True\nprice('begun')\nwhile True: pass"}))
        before = len(calls)
        while len(calls) == before:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await code.tool.ainvoke({"code": "begun"})

    assert run(cancelled()) == "True"


def test_middleware():
    shown = []

    class Seen(Replay):
        def bind_tools(self, tools, **options):
            shown.append([getattr(each, "name", None) or each["name"] for each in tools])
            return self

        def _generate(self, messages, *rest, **options):
            shown.append(messages[0].content)
            return super()._generate(messages, *rest, **options)

    @tool
    def secret() -> str:
        """Not for the model."""
        return "s"

    with WorkcellCodeMiddleware([price], hide=["secret"]) as code:
        for answer in ("invoke", "ainvoke"):
            model = Seen(responses=replay(("run_code", {"code": "price('tea')['price'] * 2"})).responses)
            agent = create_agent(model, tools=[secret], middleware=[code], system_prompt="Be brief.")
            given = {"messages": [{"role": "user", "content": "go"}]}
            state = agent.invoke(given) if answer == "invoke" else run(agent.ainvoke(given))
            assert answers(state) == ["9.0"]
    assert shown[0] == ["run_code"] and "Be brief." in shown[1] and "run_code" in shown[1]
    with pytest.raises(ValueError, match="without isolation"):
        WorkcellCodeMiddleware(executor="inprocess")


@pytest.fixture(scope="module")
def backend():
    with WorkcellSandbox() as made:
        yield made


def test_deep_agent(backend):
    folder = backend.session.run("import os; os.getcwd()").value
    model = replay(("write_file", {"file_path": folder + "/notes/a.txt", "content": "one\ntwo ä\n"}),
                   ("edit_file", {"file_path": folder + "/notes/a.txt", "old_string": "two", "new_string": "three"}),
                   ("read_file", {"file_path": folder + "/notes/a.txt"}), ("grep", {"pattern": "three", "path": folder, "output_mode": "content"}),
                   ("glob", {"pattern": "**/*.txt", "path": folder}), ("ls", {"path": folder + "/notes"}), ("execute", {"command": "wc -l notes/a.txt; exit 3"}))
    agent = create_deep_agent(model=model, backend=backend)
    found = answers(agent.invoke({"messages": [{"role": "user", "content": "go"}]}))
    assert "three ä" in found[2] and "three" in found[3] and "a.txt" in found[4] and "a.txt" in found[5] and "2 notes/a.txt" in found[6]
    assert "3" in found[6]


def test_backend(backend, tmp_path):
    assert isinstance(backend, SandboxBackendProtocol) and backend.id
    big = os.urandom(3 << 20)
    here = backend.execute("pwd").output.strip()
    assert [each.error for each in backend.upload_files([(here + "/x/big", big), ("/proc/nothing", b""), ("/a\0b", b"")])][0] is None
    got = backend.download_files([here + "/x/big", here + "/missing", here + "/x", "/etc/shadow"])
    assert got[0].content == big and got[1].error == "file_not_found" and got[2].error == "is_directory" and got[3].content is None
    assert backend.execute("echo out; echo err >&2; exit 7") == type(backend.execute("true"))("out\nerr\n", 7, False)
    assert backend.execute("printf '\\033[31mred'").output == "red"
    late = backend.execute("sleep 30", timeout=1)
    assert late.exit_code == 124
    flood = backend.execute("yes | head -c 5000000")
    assert flood.truncated and len(flood.output) <= 1 << 20
    assert backend.edit("x/none", "a", "b").error and backend.edit("/etc/passwd", "root", "evil").error
    assert backend.ls("/nowhere").error and run(backend.als("x")).entries


def test_code_of_the_session_cannot_reach_the_host(backend, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("top secret")
    backend.execute("ln -s %s link; mkfifo pipe; ln -s / root" % secret)
    for path in ("link", str(secret), "root%s" % secret):
        backend.upload_files([(path, b"owned")])  # in a /tmp of its own, if at all
        assert backend.download_files([path])[0].content in (None, b"owned")
    assert backend.download_files(["pipe"])[0].content is None  # and does not hang
    assert secret.read_text() == "top secret"
    # Code that lies about commands and files gets an error, not an object of its own into this program.
    backend.session.run("import subprocess\nclass Liar:\n    def __init__(self, *a, **k): raise FileNotFoundError('\\x1b[2J')\nsaved, subprocess.Popen = subprocess.Popen, Liar")
    lied = backend.execute("true")
    assert lied.exit_code == 127 and "\x1b" not in lied.output
    backend.session.run("subprocess.Popen = saved")
    assert backend.execute("true").exit_code == 0


def test_native_operations_answer_as_the_frameworks_own(backend, monkeypatch):
    """read, grep and glob are cells; BaseSandbox does the same with a python3 for each."""
    from workcell.integrations import deepagents

    folder = backend.session.run("import os; os.makedirs('tree/sub/deep', exist_ok=True); os.path.abspath('tree')").value
    files = {"a.py": "import os\nneedle = 1\n", "b.txt": "one\ntwo\nthree needle\nfour", "sub/c.py": "x\n" * 50 + "needle\n", "sub/deep/d": "needle\n",
             "e.bin": b"\x00\xff needle", "crlf.txt": "a\r\nb\r\n", "empty.txt": "", "[odd] name.txt": "needle\n"}
    for name, data in files.items():
        backend.upload_files([("%s/%s" % (folder, name), data if isinstance(data, bytes) else data.encode())])
    for name in files:
        for offset, limit in ((0, 2000), (1, 1), (0, 2), (3, 10), (100, 5), (-1, 2)):
            ours, theirs = backend.read("%s/%s" % (folder, name), offset, limit), BaseSandbox.read(backend, "%s/%s" % (folder, name), offset, limit)
            assert ours == theirs, (name, offset, limit)
    assert backend.read(folder + "/none").error and backend.read(folder).error and backend.read("/etc/shadow").error
    for pattern, glob in (("needle", None), ("needle", "*.py"), ("needle", "**/*.py"), ("needle", "sub/*.py"), ("nothing", None), ("= 1", "*.{py,txt}")):
        if glob and "{" in glob:
            continue
        ours = backend.grep(pattern, folder, glob)
        with monkeypatch.context() as patch:  # what it parses has control characters
            patch.setattr(deepagents, "printable", lambda text: text)
            theirs = BaseSandbox.grep(backend, pattern, folder, glob)
        key = lambda each: (each["path"], each["line"], each["text"])
        assert sorted(map(key, ours.matches)) == sorted(map(key, theirs.matches)), (pattern, glob)
    assert len(backend.grep("needle", folder, max_count=2).matches) == 2 and backend.grep("needle", folder, max_count=2).truncated
    for pattern in ("*.py", "**/*.py", "sub/*", "*", "**/*.txt", "[!a]*.txt"):
        ours, theirs = backend.glob(pattern, folder), BaseSandbox.glob(backend, pattern, folder)
        assert {each["path"] for each in ours.matches} == {each["path"] for each in theirs.matches if not each.get("is_dir")}, pattern
    assert backend.grep("x", "/nowhere").error and backend.glob("*", "/nowhere").error
    # Code that lies gets an error, not its own objects into this program.
    backend.session.run("import os\nkept, os.walk = os.walk, lambda root: 1 / 0")
    assert backend.grep("needle", folder).error and backend.glob("*", folder).error
    backend.session.run("os.walk = kept")


def test_async_operations_are_cells_too(backend, monkeypatch):
    """BaseSandbox has its own, which start a process for each."""
    monkeypatch.setattr(type(backend), "execute", lambda *args, **options: pytest.fail("a command was run"))

    async def work():
        path = backend.session.run("import os; os.path.abspath('async.txt')").value
        assert (await backend.awrite(path, "one two\n")).error is None and (await backend.aedit(path, "two", "three")).occurrences == 1
        assert (await backend.aread(path)).file_data["content"] == "one three"
        assert path in [each["path"] for each in (await backend.als(os.path.dirname(path))).entries]
        assert len((await backend.agrep("one three", os.path.dirname(path))).matches) == 1
        assert [each["path"] for each in (await backend.aglob("async.*", os.path.dirname(path))).matches] == [path]

    run(work())


def test_names_of_files():
    """What fits a pattern, as SandboxBackendProtocol.glob has it."""
    files = ["/tmp/g/top.py", "/tmp/g/src/app/main.py", "/tmp/g/.env", "/tmp/g/.github/ci.yml", "/tmp/g/a.yml", "/tmp/g/src/.hidden/x.py"]
    with WorkcellSandbox() as backend:
        assert all(each.error is None for each in backend.upload_files([(path, b"x") for path in files]))
        for pattern, found in (("*.py", [0, 1, 5]), ("src/**/*.py", [1]), ("/*.py", [0]), ("**/*.yml", [4]), ("*.yml", [3, 4]), (".env", [2]), ("*", [0, 1, 3, 4, 5]),
                               ("src/*/main.py", [1]), ("[a-t]*.yml", [3, 4]), (".github/*", [3]), ("?env", [])):
            ours, theirs = (sorted(each["path"] for each in glob(backend, pattern, "/tmp/g").matches) for glob in (WorkcellSandbox.glob, BaseSandbox.glob))
            assert ours == theirs == sorted(files[each] for each in found), pattern
        assert [each.error for each in backend.upload_files([("up.txt", b""), ("", b"")])] == ["invalid_path"] * 2
        assert [each.error for each in backend.download_files(["up.txt", "/nowhere"])] == ["invalid_path", "file_not_found"]
