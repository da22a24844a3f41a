"""tools, workflows, artifacts and deps as code in a session sees them, against a scripted host.  Needs no pytest."""

import asyncio
import contextlib
import importlib.util
import inspect
import io
import json
import os
import pydoc
import sys
import tempfile
import textwrap
import threading
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fake_host import Backend, curl, parameter  # noqa: E402
from fake_workcell import Host, main, raises  # noqa: E402
from workcell_kernel import errors, magics, namespaces, ns_artifacts, ns_deps, ns_workflows, interactive, values  # noqa: E402

HAVE_PANDAS = importlib.util.find_spec("pandas") is not None
HAVE_PYARROW = importlib.util.find_spec("pyarrow") is not None


class Session:
    """A namespace as a session has it."""

    def __init__(self):
        self.backend = Backend()
        self.host = Host(self.backend)
        self.ns = {"__name__": "__main__"}
        self.loop = None
        protected = set(interactive.protected)
        channel = self.host.channel()
        self.backend.bulk = channel.bulk
        namespaces.install(self.ns, channel, self.run_coroutine)
        assert interactive.protected - protected <= set(self.ns)

    def run_coroutine(self, coroutine):
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
        return self.loop.run_until_complete(coroutine)

    def __getattr__(self, name):
        return self.ns[name]

    def run(self, source):
        exec(textwrap.dedent(source), self.ns)
        return self.ns.get("result")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.loop is not None:
            self.loop.close()
        self.host.close()
        assert not self.backend.handles, "handles left open"


# ---- tools

def test_tools_list_and_search():
    with Session() as s:
        assert [tool["name"] for tool in s.tools.list()] == ["curl", "my-tool"]
        assert values.encode(s.tools.list()) is not None  # exact as a cell's value
        assert s.tools.search("Fetches") == [curl()]
        assert s.tools.search("e", limit=1) == [curl()]
        assert [c["name"] for c in s.tools.curl.list()] == ["get", "list"]
        s.tools.curl.list()[0]["name"] = "changed"
        assert s.tools.curl.list()[0]["name"] == "get"


def test_tools_call():
    with Session() as s:
        s.tools.curl.get(url="x")
        s.backend.methods.clear()
        assert s.tools.curl.get(url="x", timeout=3) == {"name": "curl.get", "args": {"url": "x", "timeout": 3}}
        assert s.backend.methods == ["tools.call"], "a call must be one round trip"
        assert s.tools.curl(url="x")["name"] == "curl"
        assert s.tools["my-tool"](x=1)["name"] == "my-tool"
        assert s.tools.curl["list"]()["name"] == "curl.list"
        assert s.tools.curl.get(want="bytes") == b"\0\1" and s.tools.curl.get(want="empty") == ""
        assert s.tools.curl.get(want="text") == "é\n" and s.tools.curl.get(want="json") == [1, 2]
        assert s.tools.curl.get.call_sync(url="x") == s.tools.curl.get(url="x")
        assert s.tools.curl.call_sync(url="x")["name"] == "curl"
        # Names that our own methods use too.
        assert s.tools.curl.get(self=1, name="n", method="m", args=2)["args"] == {
            "self": 1, "name": "n", "method": "m", "args": 2}


def test_tools_async():
    with Session() as s:
        async def many():
            assert (await s.tools.curl.call_async(url="x"))["name"] == "curl"
            return await asyncio.gather(*(s.tools.curl.get.call_async(url=str(n)) for n in range(50)))

        assert [r["args"]["url"] for r in asyncio.run(many())] == [str(n) for n in range(50)]
        raises("ToolCallError", asyncio.run, s.tools.curl.get.call_async(want="fail"))
        exc = raises(TypeError, asyncio.run, s.tools.curl.get.call_async("x"))
        assert "keyword arguments only" in str(exc)
        exc = raises("ToolCallError", asyncio.run, s.tools.curl.get.call_async(bad=1))
        assert "Signature: curl.get(url: str" in str(exc)


def test_tools_from_threads():
    with Session() as s:
        answers = []

        def work(i):
            answers.append(s.tools.curl.get(url=str(i))["args"]["url"])

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(answers) == sorted(map(str, range(8)))


def test_tools_unknown():
    with Session() as s:
        exc = raises(AttributeError, lambda: s.tools.nope)
        assert str(exc) == "Unknown tool: nope. Available: curl, my-tool"
        exc = raises(AttributeError, lambda: s.tools.curl.nope)
        assert str(exc) == "Unknown callable: curl.nope. Available: get, list"
        for look in (lambda: s.tools._x, lambda: s.tools.__x__, lambda: s.tools.curl._x, lambda: s.tools.curl.get._x,
                     lambda: s.workflows._x, lambda: s.artifacts._x, lambda: s.deps._x):
            raises(AttributeError, look)
        assert not hasattr(s.tools, "nope") and hasattr(s.tools, "curl")


def test_tools_change():
    """Tools come and go while the session runs."""
    for generation in (None, 1):
        with Session() as s:
            s.backend.generation = generation
            fetch, get = s.tools.curl, s.tools.curl.get
            s.backend.change_tools(jq={"name": "jq", "description": "", "tags": [], "callables": [
                {"name": "run", "description": "", "parameters": []}]})
            assert s.tools.jq.run()["name"] == "jq.run"
            s.backend.change_tools(jq=None)
            exc = raises(AttributeError, s.tools.jq.run)
            assert str(exc) == "Unknown tool: jq. Available: curl, my-tool"
            raises(AttributeError, lambda: s.tools.jq)
            # A changed callable shows its new signature, and one that is gone is unknown.
            changed = curl()
            changed["callables"][0]["parameters"] = [parameter("body")]
            s.backend.change_tools(curl=changed)
            assert get.signature() == "get(body: str | None = None)" and get.describe() == {"body": ""}
            changed = curl()
            changed["callables"] = [{"name": "put", "description": "", "parameters": []}]
            s.backend.change_tools(curl=changed)
            assert s.tools.curl.put()["name"] == "curl.put"
            exc = raises(AttributeError, get, url="x")
            assert str(exc) == "Unknown callable: curl.get. Available: put"
            raises(AttributeError, lambda: fetch.get)
            assert fetch.list() == changed["callables"]


def test_tools_wrong_arguments():
    with Session() as s:
        full = "get(url: str, timeout: int = 5, header: list | None = None, max-time: float | None = None)"
        exc = raises(TypeError, s.tools.curl.get, "http://x")
        assert str(exc) == "tools.curl.get() takes keyword arguments only: curl." + full
        exc = raises("ToolCallError", s.tools.curl.get, bad=1)
        assert str(exc) == "Tool 'curl' failed: Unknown argument 'bad'. Known: url, timeout\nSignature: curl." + full
        exc = raises(TypeError, s.tools.curl.get, url=b"x")
        assert str(exc).startswith("tools.curl.get(): argument 'url' is bytes, which JSON cannot represent")
        assert "curl." + full in str(exc)
        raises(TypeError, s.tools.curl, "x")
        exc = raises("ToolCallError", s.tools.curl.get, want="fail")
        assert str(exc) == "Tool 'curl' failed: exit 7" and exc.original_type == "ToolCallError"
        assert (exc.namespace, exc.operation, exc.code) == ("tools", "call", "io")


def test_tools_help():
    with Session() as s:
        get = s.tools.curl.get
        assert get.signature().startswith("get(url: str, timeout: int = 5")
        assert get.describe()["url"] == "where from"
        assert s.tools.curl.describe() == {"get": "Fetch a page", "list": "A callable with a taken name"}
        assert s.tools.curl.signature().splitlines()[1] == "list()"
        found = inspect.signature(get)
        assert str(found) == "(*, url: str, timeout: int = 5, header: list = None, **arguments)"
        assert str(inspect.signature(s.tools["my-tool"])) == "(*, x: int)"
        assert str(inspect.signature(s.tools.curl)) == "(**arguments)"
        text = pydoc.plain(pydoc.render_doc(get))
        assert "get(url: str, timeout: int = 5" in text and "Fetch a page" in text and "where from" in text
        text = pydoc.plain(pydoc.render_doc(s.tools.curl))
        assert "Fetches URLs" in text and "curl.get(url: str" in text
        with contextlib.redirect_stdout(io.StringIO()) as out:
            pydoc.Helper(output=out)(s.tools.curl.get)
        assert "where from" in out.getvalue()
        assert get.__name__ == "get" and get.__qualname__ == "tools.curl.get"
        assert dir(s.tools) == ["curl", "list", "search"]  # my-tool is not a Python name
        assert {"get", "list", "describe", "call_async"} <= set(dir(s.tools.curl))
        assert {"describe", "signature", "call_async", "call_sync"} <= set(dir(get))
        assert repr(get) == "curl.%s: Fetch a page" % get.signature()
        assert repr(s.tools) == "<tools: curl, my-tool>" and "Fetches URLs" in repr(s.tools.curl)
        assert get == s.tools.curl.get and len({get, s.tools.curl.get}) == 1


def test_errors_show_the_code_that_called():
    with Session() as s:
        try:
            exec(compile("x = 1\ntools.curl.get(want='fail')", "<cell 1>", "exec"), s.ns)
        except Exception as exc:
            exc.__traceback__ = exc.__traceback__.tb_next
            text = errors.describe(exc)
        assert text["type"] == "ToolCallError"
        lines = text["traceback"].splitlines()
        assert lines[1].startswith('  File "<cell 1>", line 2') and lines[-1] == "ToolCallError: Tool 'curl' failed: exit 7"
        assert "workcell_kernel" not in text["traceback"] and "During handling" not in text["traceback"]
        for source in ("tools.curl.get(bad=1)", "tools.nope", "tools.curl.get(1)", "workflows.invoke('x')",
                       "artifacts.load('x')", "artifacts.save('x', {1})", "workflows.create('x', 'def')"):
            try:
                exec(compile(source, "<cell 2>", "exec"), s.ns)
            except Exception as exc:
                exc.__traceback__ = exc.__traceback__.tb_next
                text = errors.describe(exc)["traceback"]
            assert "workcell_kernel" not in text and "During handling" not in text and "direct cause" not in text, text
            assert '"<cell 2>", line 1' in text, text


# ---- workflows

ADD = '''
"""Adds numbers.

More words."""
def run(a: int, b: int = 2, *, scale: "float" = 1.5, names: list[str] = ["x"], when=print, **more):
    return (a + b) * scale
'''


def test_workflows_create_and_get():
    with Session() as s:
        assert s.skills is s.workflows
        made = s.workflows.create("add", ADD)
        assert made == {"name": "add", "description": "Adds numbers.", "params": {
            "a": "integer", "b": "integer", "scale": "number", "names": "array", "when": "string"}}
        got = s.workflows.get("add")
        assert set(got) == {"name", "description", "source", "params", "parameters"} and got["source"] == ADD
        assert values.encode(got) is not None
        assert got["parameters"][0] == {"name": "a", "type": "integer", "description": "", "required": True,
                                        "default": None}
        assert [p["default"] for p in got["parameters"]] == [None, 2, 1.5, ["x"], "print"]
        assert s.workflows.get("nope") is None
        assert s.workflows.list() == [made] and s.workflows.search("ad") == [made] and s.workflows.search("z") == []
        exc = raises("ValueError", s.workflows.create, "add", ADD)
        assert "already exists" in str(exc)
        assert s.workflows.create("add", ADD, "Mine", overwrite=True)["description"] == "Mine"
        assert s.workflows.delete("add") is True and s.workflows.delete("add") is False
        assert s.workflows.create("d", "def run():\n    '''From run.'''")["description"] == "From run."


def test_workflows_validation():
    with Session() as s:
        create = s.workflows.create
        for name in ("", "a b", "1a", "a-b", "é", "../x"):
            exc = raises(ValueError, create, name, ADD)
            assert str(exc) == "Invalid workflow name: %r (must be valid Python identifier)" % name
        assert "underscore" in str(raises(ValueError, create, "_a", ADD))
        for name in ("list", "search", "get", "invoke", "create", "delete"):
            assert str(raises(ValueError, create, name, ADD)) == "Reserved workflow name: %r" % name
        exc = raises(SyntaxError, create, "x", "def run(:")
        assert str(exc).startswith("Syntax error in workflow code: ") and "line 1" in str(exc)
        raises(SyntaxError, create, "x", "def run(): pass\nreturn 1")
        raises(SyntaxError, create, "x", "def run(): pass\n\0")
        need = "Workflow must define a 'def run()' or 'async def run()' function at top level"
        for source in ("", "def other(): pass", "if 1:\n    def run(): pass", "run = 1"):
            assert str(raises(ValueError, create, "x", source)) == need
        exc = raises(ValueError, create, "x", "def run(): pass\nasync def run(): pass")
        assert "not both" in str(exc)
        assert "reserved" in str(raises(ValueError, create, "x", "def run(tools): pass"))
        assert "positional-only" in str(raises(ValueError, create, "x", "def run(a, /): pass"))
        raises(TypeError, create, 1, ADD)
        raises(TypeError, create, "x", b"def run(): pass")
        assert not s.backend.workflows
        create("x", "import nothing_like_this\nraise SystemExit\ndef run(): pass")  # read, never executed


def test_workflows_annotations():
    import ast

    def kind(text):
        return ns_workflows.annotation_type(ast.parse(text, mode="eval").body)

    for text, expected in (("str", "string"), ("int", "integer"), ("float", "number"), ("bool", "boolean"),
                           ("list[int]", "array"), ("List[int]", "array"), ("typing.Sequence[int]", "array"),
                           ("dict[str, int]", "object"), ("t.Mapping", "object"), ("Optional[int]", "integer"),
                           ("int | None", "integer"), ("None | list", "array"), ("int | str", "string"),
                           ("Union[int, None]", "integer"), ("'dict'", "object"), ("Literal[1, 2]", "integer"),
                           ("Literal['a']", "string"), ("Any", "string"), ("'not ('", "string"),
                           ("Annotated[int, 1]", "integer"), ("pd.DataFrame", "string")):
        assert kind(text) == expected, text
    assert ns_workflows.annotation_type(None) == "string"


def test_workflows_invoke():
    with Session() as s:
        s.workflows.create("add", ADD)
        assert s.workflows.add(a=1) == 4.5 and s.workflows.invoke("add", a=1, b=1, scale=1) == 2
        assert s.workflows.invoke(workflow_name="add", a=1, scale=1) == 3
        assert s.skills.invoke(skill_name="add", a=1, scale=1) == 3
        assert s.workflows["add"](a=0) == 3
        assert str(raises(ValueError, s.workflows.invoke, "nope")) == "Workflow not found: nope"
        assert str(raises(AttributeError, lambda: s.workflows.nope)) == "Workflow not found: nope"
        exc = raises(TypeError, s.workflows.add)
        assert "workflows.add() missing 1 required positional argument: 'a'" in str(exc)
        assert "Signature: add(a: int, b: int = 2" in str(exc)
        exc = raises(TypeError, s.workflows.add, 1)
        assert "keyword arguments only: add(a: int, " in str(exc)
        s.workflows.create("strict", "def run(a):\n    return len(a)")
        exc = raises(TypeError, s.workflows.strict, b=1)
        assert "unexpected keyword argument 'b'" in str(exc) and "Signature: strict(a)" in str(exc)
        exc = raises(TypeError, s.workflows.strict, a=1)
        assert "Signature" not in str(exc)  # the workflow's own mistake
        assert str(inspect.signature(s.workflows.strict)) == "(*, a: str)"
        assert "Adds numbers." in pydoc.plain(pydoc.render_doc(s.workflows.add))
        assert repr(s.workflows.strict) == "workflows.strict(a: str)"
        assert {"add", "strict", "create"} <= set(dir(s.workflows)) and repr(s.workflows) == "<workflows: 2>"
        # A file written by hand, and one that was edited since.
        s.backend.workflows["hand"] = {"name": "hand", "description": "", "source": "def run(n: int): return n + 1"}
        assert s.workflows.hand(n=1) == 2 and s.workflows.get("hand")["params"] == {"n": "integer"}
        hand = s.workflows.hand
        s.backend.workflows["hand"]["source"] = "def run(n: int): return n + 2"
        assert hand(n=1) == 3
        s.backend.workflows["hand"]["source"] = "x = 1"
        raises(ValueError, hand, n=1)
        s.backend.workflows["hand"]["source"] = "def"
        raises(SyntaxError, hand, n=1)
        s.backend.workflows["hand"]["source"] = ""
        assert str(raises(ValueError, hand)) == "Workflow has no source: hand"


def test_workflows_namespace():
    with Session() as s:
        s.workflows.create("names", """
seen = []
def run():
    seen.append(1)
    return __name__, len(seen), tools.curl.get(url='u')['args'], skills is workflows, artifacts.exists('x'), deps.list()
""")
        for _ in range(2):  # fresh each time
            assert s.workflows.names() == ("workflow:names", 1, {"url": "u"}, True, False, [])
        assert "workflow:names" not in sys.modules
        s.workflows.create("data", """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Point:
    x: int
def run():
    return Point(3).x
""")
        assert s.workflows.data() == 3
        s.workflows.create("fails", "def helper():\n    return 1 / 0\ndef run():\n    return helper()")
        try:
            s.workflows.fails()
        except ZeroDivisionError as exc:
            text = errors.describe(exc)["traceback"]
        assert 'File "<workflow:fails>", line 2, in helper\n    return 1 / 0' in text
        s.run("tools = 5")  # the code's own business; workflows keep theirs
        assert s.workflows.names()[2] == {"url": "u"}


def test_workflows_async():
    with Session() as s:
        s.workflows.create("later", """
import asyncio
async def run(n: int):
    answers = await asyncio.gather(*(tools.curl.get.call_async(url=str(i)) for i in range(n)))
    return [a["args"]["url"] for a in answers]
""")
        expected = ["0", "1", "2"]
        assert s.workflows.later(n=3) == expected  # no loop runs: to its end
        assert s.loop is not None

        async def inside():
            return await s.workflows.later(n=3), await asyncio.gather(s.workflows.later(n=1), s.workflows.later(n=2))

        assert asyncio.run(inside()) == (expected, [["0"], ["0", "1"]])
        answers = []
        thread = threading.Thread(target=lambda: answers.append(s.workflows.later(n=3)))
        thread.start()
        thread.join(20)
        assert answers == [expected]
        exc = raises(TypeError, s.workflows.later)
        assert "Signature: later(n: int)" in str(exc)
        s.workflows.create("outer", "def run():\n    return workflows.later(n=1)")
        assert s.workflows.outer() == ["0"]
        s.workflows.create("outer2", "async def run():\n    return await workflows.later(n=1), tools.curl.get(url='p')")
        assert s.workflows.outer2()[0] == ["0"]
        assert ns_workflows._chain.get() == () and not [m for m in sys.modules if m.startswith("workflow:")]


# Bodies of `async def run(n)`, and what they give for 20 when `double` is a workflow with `async def run`.
ASYNC_BODIES = [
    ("doubled = skills.invoke('double', n=n)\n    return doubled + 1", 41),
    ("return workflows.double(n=n) * 2", 80),
    ("return str(workflows.double(n=n)) + '!'", "40!"),
    ("def helper():\n        return workflows.double(n=n)\n    return helper() + helper()", 80),
    ("return [workflows.double(n=i) + 1 for i in range(3)]", [1, 3, 5]),
    ("return (lambda: workflows.double(n=n) + 1)()", 41),
    ("return 1 if workflows.double(n=0) else 2", 2),
    ("return workflows['double'](n=n) + await workflows.double(n=n)", 80),
    ("return workflows.double(n=workflows.double(n=n))", 80),
    ("return await workflows.double(n=workflows.double(n=n))", 80),
    ("return await tools.curl.get(url='x') and workflows.plain(n=n) + await workflows.plain(n=n)", 40),
    ("return await asyncio.gather(workflows.double(n=1), workflows.double(n=2))", [2, 4]),
    ("return await asyncio.gather(*[workflows.double(n=i) for i in range(3)])", [0, 2, 4]),
    ("jobs = [workflows.double(n=i) for i in range(3)]\n    return await asyncio.gather(*jobs)", [0, 2, 4]),
    ("jobs = []\n    for i in range(2):\n        jobs.append(workflows.double(n=i))\n    return [await job for job in jobs]", [0, 2]),
    ("job = workflows.double(n=n)\n    return await asyncio.wait_for(job, 9)", 40),
    ("job = asyncio.create_task(workflows.double(n=n))\n    return await job", 40),
    ("try:\n        workflows.fails(n=n)\n    except KeyError as error:\n        await asyncio.sleep(0)\n        return repr(error)", "KeyError(20)"),
    ("import asyncio as a\n    t = a.current_task()\n    workflows.double(n=n)\n    await a.sleep(0)\n    return t is a.current_task()", True),
]


def test_a_workflow_that_is_not_awaited_gives_its_value():
    for body, expected in ASYNC_BODIES:
        with Session() as s:
            s.workflows.create("double", "import asyncio\nasync def run(n):\n    await asyncio.sleep(0.001)\n    return n * 2")
            s.workflows.create("plain", "def run(n):\n    return n")
            s.workflows.create("fails", "import asyncio\nasync def run(n):\n    asyncio.ensure_future(asyncio.sleep(60))\n"
                                        "    raise KeyError(n)")
            s.workflows.create("outer", "import asyncio\nasync def run(n):\n    %s\n" % body)
            assert s.workflows.outer(n=20) == expected, body
            s.workflows.create("most", "async def run(n):\n    return workflows.outer(n=n)\n")
            assert s.workflows.most(n=20) == expected, body
            assert ns_workflows._chain.get() == () and not [m for m in sys.modules if m.startswith("workflow:")]


def test_workflows_recursion():
    with Session() as s:
        s.workflows.create("down", "def run(n):\n    return workflows.down(n=n - 1) + 1 if n else 0")
        assert s.workflows.down(n=20) == 20
        exc = raises("WorkflowError", s.workflows.down, n=100)
        assert "more than 50 deep: down -> down -> down" in str(exc) and exc.original_type == "RecursionError"
        s.workflows.create("adown", "async def run(n):\n    return await workflows.adown(n=n - 1) + 1 if n else 0")
        assert s.workflows.adown(n=20) == 20
        exc = raises("WorkflowError", s.workflows.adown, n=100)
        assert "50 deep" in str(exc)
        s.workflows.create("sdown", "async def run(n):\n    return workflows.sdown(n=n - 1) + 1 if n else 0")
        assert s.workflows.sdown(n=20) == 20
        exc = raises("WorkflowError", s.workflows.sdown, n=100)
        assert "50 deep" in str(exc)
        assert s.workflows.down(n=1) == 1


# ---- artifacts

def test_artifacts_values():
    with Session() as s:
        for value, kind in (("text é\n", "text"), ("", "text"), (b"\0\xff", "bytes"), (b"", "bytes"),
                            ({"a": [1, None, 2.5, "é"]}, "json"), ([], "json"), (5, "json"), (None, "json"),
                            (True, "json"), (10 ** 5000, "json")):
            s.artifacts.save("v", value)
            assert s.backend.artifacts["v"][0] == kind
            loaded = s.artifacts.load("v")
            assert loaded == value and type(loaded) is type(value)
        for value in (bytearray(b"ab"), memoryview(b"ab"), memoryview(b"a-b-")[::2]):
            s.artifacts.save("v", value)
            assert s.artifacts.load("v") in (b"ab",)
        import array

        s.artifacts.save("v", memoryview(array.array("i", [1, 2])))
        assert s.artifacts.load("v") == array.array("i", [1, 2]).tobytes()
        s.artifacts.save("v", (1, 2))
        assert s.artifacts.load("v") == [1, 2]
        s.backend.artifacts["foreign"] = ("", b"by hand", "", {})
        assert s.artifacts.load("foreign") == "by hand"
        s.backend.artifacts["foreign"] = ("", b"\xff", "", {})
        assert s.artifacts.load("foreign") == b"\xff"


def test_artifacts_large():
    with Session() as s:
        data = os.urandom(5 * ns_artifacts.CHUNK + 17)
        s.artifacts.save("big", data)
        assert s.backend.methods.count("artifacts.save_chunk") == 6
        assert s.artifacts.load("big") == data
        assert s.backend.methods.count("artifacts.load_chunk") == 6
        s.artifacts.save("even", data[:2 * ns_artifacts.CHUNK])
        assert s.artifacts.load("even") == data[:2 * ns_artifacts.CHUNK]
        text = "é" * ns_artifacts.CHUNK  # characters that chunks cut in two
        s.artifacts.save("text", "x" + text)
        assert s.artifacts.load("text") == "x" + text


def test_artifacts_files():
    with Session() as s, tempfile.TemporaryDirectory() as folder:
        data = os.urandom(3 * ns_artifacts.CHUNK + 1)
        source, target = os.path.join(folder, "in"), os.path.join(folder, "out")
        with open(source, "wb") as file:
            file.write(data)
        meta = s.artifacts.save_file("f", source, "words", {"k": 1})
        assert meta.description == "words" and s.backend.artifacts["f"][1] == data
        assert s.artifacts.load_to("f", target) == target
        with open(target, "rb") as file:
            assert file.read() == data
        s.artifacts.save_file("g", io.BytesIO(b"abc"))
        assert s.artifacts.load("g") == b"abc"
        raises(TypeError, s.artifacts.save_file, "h", io.StringIO("abc"))
        raises(FileNotFoundError, s.artifacts.save_file, "h", source + ".nope")
        raises("ArtifactNotFoundError", s.artifacts.load_to, "nope", target)
        assert sorted(os.listdir(folder)) == ["in", "out"]
        with open(target, "rb") as file:
            assert file.read() == data  # the old file is still there


def test_artifacts_meta():
    with Session() as s:
        meta = s.artifacts.save("a/b.txt", "x", description="words", metadata={"k": [1]})
        assert (meta.name, meta.path, meta.description) == ("a/b.txt", "/a/a/b.txt", "words")
        assert meta.metadata == {"k": [1]} and meta["created_at"] == meta.created_at == "2025-01-01T00:00:00+00:00"
        assert meta.to_dict()["name"] == "a/b.txt" and json.loads(json.dumps(meta)) == meta
        assert repr(meta).startswith("ArtifactMeta(name='a/b.txt', path=")
        raises(AttributeError, lambda: meta.nope)
        assert s.artifacts.get("a/b.txt") == meta and s.artifacts.list() == [meta]
        assert s.artifacts.get("nope") is None
        assert s.artifacts.exists("a/b.txt") is True and s.artifacts.exists("nope") is False
        assert s.artifacts.path == "/a" and repr(s.artifacts) == "<artifacts: 1>"
        assert s.artifacts.delete("a/b.txt") is None and s.artifacts.delete("a/b.txt") is None
        assert s.artifacts.list() == []
        assert "save_file" in dir(s.artifacts)


def test_artifacts_refused():
    with Session() as s:
        import datetime
        import pathlib

        for value, words in (({1, 2}, "sorted(value)"), (object(), "not pickled"), (pathlib.Path("x"), "save_file"),
                             (io.BytesIO(b"x"), "save_file"), (datetime.date.today(), "isoformat"), (1j, "pickled"),
                             ({"a": {1}}, "JSON")):
            assert words in str(raises(TypeError, s.artifacts.save, "v", value)), value
        assert "nan" in str(raises(ValueError, s.artifacts.save, "v", {"a": float("nan")}))
        raises(ValueError, s.artifacts.save, "v", "\ud800")
        raises(ValueError, s.artifacts.save, "v", ["\ud800"])
        loop = []
        loop.append(loop)
        raises(ValueError, s.artifacts.save, "v", loop)
        raises(TypeError, s.artifacts.save, 5, "x")
        raises(TypeError, s.artifacts.save, "v", "x", "", ["not a dict"])
        raises(TypeError, s.artifacts.save, "v", "x", "", {"k": b"x"})
        # Whether anything was opened is not known to who gives it up.
        assert not s.backend.artifacts and set(s.backend.methods) <= {"artifacts.save_abort"}
        exc = raises("ArtifactNotFoundError", s.artifacts.load, "nope")
        assert isinstance(exc, KeyError) and isinstance(exc, s.ArtifactError) and str(exc) == "Artifact 'nope' not found"
        exc = raises("ValueError", s.artifacts.load, "../x")
        assert isinstance(exc, ValueError) and str(exc) == "Path traversal attempt detected: '../x'"
        exc = raises("OSError", s.artifacts.save, "v", b"FULL" + b"x" * 3 * ns_artifacts.CHUNK)
        assert isinstance(exc, OSError) and isinstance(exc, s.ArtifactError) and "No space left" in str(exc)
        s.artifacts.exists("v")  # by now the abort has arrived
        assert "artifacts.save_abort" in s.backend.methods and "artifacts.save_commit" not in s.backend.methods


def test_artifacts_changed_while_read():
    with Session() as s:
        s.artifacts.save("v", b"x" * 10)
        s.backend.artifacts_load_chunk = lambda args, raw: (1, b"x")
        assert "changed while" in str(raises("ArtifactError", s.artifacts.load, "v"))
        s.artifacts.exists("v")


def frames():
    import numpy
    import pandas

    mixed = pandas.DataFrame({
        "i": numpy.array([1, 2, 3], dtype="int32"), "f": [0.1 + 0.2, float("nan"), 1e300], "s": ["a", None, "é"],
        "b": [True, False, True], "t": pandas.to_datetime(["2024-01-02 00:00:00.0", "2024-01-02 03:04:05.123456", None]),
        "c": pandas.Categorical(["x", "y", "x"]), "g": numpy.array([1.5, 2.5, 3.5], dtype="float32"),
    })
    return [mixed, mixed[["f", "s"]].set_index("s", drop=True).rename_axis("key").iloc[[0, 2]],
            pandas.DataFrame({"a": []}), pandas.DataFrame([[1, 2], [3, 4]]), mixed.iloc[::2]]


def test_artifacts_pandas():
    if not HAVE_PANDAS:
        return
    import pandas

    with Session() as s:
        for frame in frames():
            s.artifacts.save("frame", frame)
            assert s.backend.artifacts["frame"][0] == ("dataframe.parquet" if HAVE_PYARROW else "dataframe.json")
            pandas.testing.assert_frame_equal(s.artifacts.load("frame"), frame)
        for series in (pandas.Series([1.5, 2.5], name="n"), pandas.Series([1, 2], index=["a", "b"])):
            s.artifacts.save("series", series)
            pandas.testing.assert_series_equal(s.artifacts.load("series"), series)
        raises(TypeError, s.artifacts.save, "v", pandas.DataFrame({"o": [object()]}))
        if not HAVE_PYARROW:
            assert "pyarrow" in str(raises(ValueError, s.artifacts.save, "v", pandas.DataFrame({"o": [float("inf")]})))
            columns = pandas.DataFrame([[1, 2]], columns=["a", "a"])
            raises(TypeError, s.artifacts.save, "v", columns)
        import numpy

        assert "tolist" in str(raises(TypeError, s.artifacts.save, "v", numpy.arange(3)))


def test_artifacts_table_without_pandas():
    with Session() as s:
        s.backend.artifacts["t"] = ("dataframe.json", b"{}", "", {})
        hidden = sys.modules.get("pandas")
        sys.modules["pandas"] = None
        try:
            exc = raises("ArtifactError", s.artifacts.load, "t")
        finally:
            del sys.modules["pandas"]
            if hidden is not None:
                sys.modules["pandas"] = hidden
        assert "deps.add('pandas')" in str(exc)


# ---- deps

def test_deps():
    with Session() as s, tempfile.TemporaryDirectory() as folder:
        assert repr(s.deps) == "<DepsNamespace: 0 packages configured>"
        site = os.path.join(folder, "venv", "lib", "site-packages")
        extra = os.path.join(folder, "extra")
        os.makedirs(site)
        os.makedirs(extra)
        raises(ModuleNotFoundError, __import__, "wc_fresh")  # so that the finders remember its absence
        s.backend.site = [site]
        before = list(sys.path)
        try:
            with open(os.path.join(site, "wc_fresh.py"), "w") as file:
                file.write("value = 7")
            with open(os.path.join(site, "more.pth"), "w") as file:
                file.write(extra + "\n")
            result = s.deps.add("wc_fresh>=1")
            assert result == (("wc_fresh>=1",), (), ()) and result.installed == ("wc_fresh>=1",)
            assert __import__("wc_fresh").value == 7 and extra in sys.path
            others = [i for i, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))]
            assert sys.path.index(site) == others[0]
            assert errors.is_library(os.path.join(site, "wc_fresh.py"))
            s.deps.add("wc_fresh>=1")
            assert sys.path.count(site) == 1
        finally:
            sys.path[:] = before
            sys.modules.pop("wc_fresh", None)
        assert s.deps.list() == ["wc_fresh>=1"] * 2 and repr(s.deps) == "<DepsNamespace: 2 packages configured>"
        assert s.deps.sync().already_present == ("wc_fresh>=1",) * 2
        assert s.deps.remove("wc_fresh>=1") is True and s.deps.remove("other") is False
        assert repr(s.deps) == "<DepsNamespace: 1 package configured>"
        exc = raises("RuntimeDepsDisabledError", s.deps.add, "no")
        assert isinstance(exc, s.DepsError) and str(exc).startswith("Runtime dependency installation is disabled.")
        exc = raises("DepsError", s.deps.add, "broken")
        assert str(exc) == "No matching distribution found for broken"
        raises(TypeError, s.deps.add, 7)
        raises(TypeError, s.deps.add, ["pandas", 7])


def test_deps_of_another_python():
    with Session() as s, tempfile.TemporaryDirectory() as folder:
        sites = {version: os.path.join(folder, "lib", "python" + version, "site-packages")
                 for version in ("2.7", "%d.%d" % sys.version_info[:2], "%d.%dt" % sys.version_info[:2])}
        before, environ = list(sys.path), dict(os.environ)
        try:
            for version, site in sites.items():
                os.makedirs(site)
                s.backend.site, s.backend.bin = [site], os.path.join(folder, version)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    s.deps.add("x")
                assert [w.category for w in caught] == ([RuntimeWarning] if version == "2.7" else []), version
                assert (site in sys.path) == (version != "2.7") == ns_deps.fits(site)
            assert os.environ["PATH"].split(os.pathsep)[:3] == [os.path.join(folder, v) for v in reversed(list(sites))]
            s.deps.add("x")
            assert os.environ["PATH"].count(s.backend.bin + os.pathsep) == 1
        finally:
            sys.path[:] = before
            os.environ.clear()
            os.environ.update(environ)


# ---- together

def test_overwriting_and_restoring():
    with Session() as s:
        assert {"tools", "workflows", "skills", "artifacts", "deps", "ToolError", "SkillError"} <= interactive.protected
        old = s.tools
        s.run("tools = 'mine'")
        assert s.ns["tools"] == "mine"
        namespaces.restore(s.ns)
        assert s.tools is not old and s.tools.curl.get(url="x")
        assert s.run("""
            try:
                tools.curl.get(want='fail')
            except ToolError as e:
                result = type(e) is ToolCallError and e.code
        """) == "io"
        assert s.SkillError is s.WorkflowError


def test_a_reset_brings_overwritten_namespaces_back():
    with Session() as s:
        own = interactive.Interactive(s.ns)
        for line in ("-f", "-s", ""):
            s.run("tools = 'mine'\ndel deps\nToolError = Exception\nx = 1")
            magics.find("reset", "line")(own, line)
            assert type(s.ns["tools"]).__name__ == "ToolsNamespace" and s.deps.list() == [], line
            assert s.ToolError is not Exception and "x" not in s.ns, line
        s.run("tools = 'mine'")
        magics.find("reset", "line")(own, "out")
        assert s.ns["tools"] == "mine", "only what was asked for"


def test_in_a_forked_child():
    with Session() as s:
        curl_tool = s.tools.curl
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for call in (lambda: curl_tool.get(url="x"), s.tools.list, lambda: s.artifacts.save("x", "y"),
                             s.deps.list, lambda: s.workflows.invoke("x")):
                    assert "forked" in str(raises(RuntimeError, call))
                assert [repr(s.ns[name]) for name in ("tools", "workflows", "artifacts", "deps")]
                assert repr(curl_tool) and dir(s.tools)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0


if __name__ == "__main__":
    main(dict(globals()))
