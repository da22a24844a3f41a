"""The wheel, the command, the types."""
import ast
import json
import os
import re
import subprocess
import sys

import pytest
from conftest import BUILD, HERE, ROOT

PACKAGE = os.path.dirname(HERE)


def test_the_wheel_has_everything_and_nothing_else(tmp_path):
    """What meson would install into a wheel, without building one: tests/packaging does that."""
    folder = str(tmp_path / "plan")
    subprocess.run(["meson", "setup", "-Dwheel=true", folder, ROOT], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(["meson", "introspect", "--install-plan", folder], check=True, stdout=subprocess.PIPE)
    plan = [each for kind in json.loads(done.stdout).values() for each in kind.values()]
    with open(os.path.join(ROOT, "pyproject.toml")) as file:
        tags = re.search(r"--tags=([\w,-]*)", file.read()).group(1).split(",")
    names = {each["destination"] for each in plan if each["tag"] in tags}
    package = "{py_platlib}/workcell"
    assert names == {package + name for name in ("", "/_native.abi3.so", "/_lib/workcell", "/_lib/workcell-spawner", "/_lib/workcell-bench",
                                                 "/_lib/libworkcell.so.0", "/_lib/deno", "/_lib/kernel/workcell_kernel", "/_lib/kernel/_workcell.abi3.so",
                                                 "/_lib/bench/mcp_server.py", "/_lib/bench/peer_ipykernel.py", "/_lib/bench/peer_mcp.py",
                                                 "/_lib/bench/report.py")}, sorted(names)
    # What Python writes into the source while tests run stays out: every folder of the package is named.
    with open(os.path.join(ROOT, "meson.build")) as file:
        text = file.read()
    for each, folders, _ in os.walk(os.path.join(ROOT, "python", "workcell")):
        folders[:] = [name for name in folders if name != "__pycache__"]
        assert all("'%s'" % os.path.relpath(os.path.join(each, name), os.path.join(ROOT, "python", "workcell")) in text for name in folders), folders


def test_names_are_imported_when_they_are_asked_for():
    """`import workcell`, and the command, must not wait for asyncio, typing and the library."""
    code = "import sys; old = set(sys.modules); import workcell%s; print(sorted(set(sys.modules) - old - {'__future__'}))"
    for module, loaded in ("", {"workcell"}), ("._cli", {"workcell", "workcell._cli"}):
        done = subprocess.run([sys.executable, "-c", "import importlib, warnings; " + code % module], stdout=subprocess.PIPE, check=True)
        assert set(ast.literal_eval(done.stdout.decode())) == loaded, done.stdout


def test_every_name_has_a_home():
    import workcell

    assert set(workcell.__all__) == set(workcell._HOME_OF)
    # What type checkers see is what is there.
    with open(workcell.__file__) as file:
        block, = [each for each in ast.parse(file.read()).body if isinstance(each, ast.If)]
    seen = {alias.name: each.module for each in block.body if isinstance(each, ast.ImportFrom) and each.level for alias in each.names}
    assert seen == workcell._HOME_OF
    assert workcell.__version__.count(".") == 2 and workcell.errors.WorkcellError is workcell.WorkcellError
    assert not hasattr(workcell, "nothing") and not hasattr(workcell, "__nothing__") and "Session" in dir(workcell)


USER = """
import workcell, workcell.sync
async def main() -> None:
    async with workcell.Session(workcell.FileStorage('x')) as session:
        @session.tool
        def add(a: int) -> int:
            return a
        reveal_type(add)
        result = await session.run('1')
        reveal_type(result.error)
        async for event in session.stream('1'):
            reveal_type(event)
def twin() -> None:
    with workcell.sync.Session.from_base('x') as session:
        reveal_type(session.run('1'))
"""


def stream_loops():
    """The blocks of the docs that read a stream, as functions."""
    found = []
    for page in ("sessions.md", "approvals.md", "getting-started.md"):
        with open(os.path.join(ROOT, "docs", "python", page), encoding="utf-8") as file:
            for block in re.findall(r"```python\n(.*?)```", file.read(), re.S):
                if ".stream(" in block:
                    found.append(block)
    return found


def typed_text():
    """A program with the docs' loops, and the number of its line that is wrong."""
    loops = stream_loops()
    assert len(loops) >= 2
    text = "# pyright: strict, reportUnknownMemberType=false, reportUnusedFunction=false\nimport workcell\ndef send(to: str) -> str:\n    return to\n"
    text += "".join("async def f%d() -> None:\n%s" % (i, "".join("    %s\n" % line if line else "\n" for line in block.split("\n")))
                    for i, block in enumerate(loops))
    text += ("async def wrong() -> None:\n    async for event in workcell.Session().stream('1'):\n"
             "        if event.type == 'chunk':\n            print(event.result)\n")
    return text, text[:text.index("print(event.result)")].count("\n") + 1


# A checker takes the package and programs of users in one run: reading the types of everything that they import is most of its work.


def test_mypy(tmp_path):
    """--strict takes the package and shows what things are; event.type tells the class of an event."""
    pytest.importorskip("mypy")
    text, bad = typed_text()
    (tmp_path / "loops.py").write_text(text)
    (tmp_path / "user.py").write_text(USER)
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.path.join(BUILD, "mypy-sdk"), "workcell",
                           str(tmp_path / "loops.py"), str(tmp_path / "user.py")], cwd=PACKAGE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    types = done.stdout.decode()
    for seen in ("def (a: int) -> int", "str | None", "workcell.events.Chunk | workcell.events.Display", "workcell.types.ExecutionResult"):
        assert seen in types or seen.replace("str | None", "Union[str, None]") in types, types
    errors = [line for line in types.splitlines() if ": error:" in line]
    assert len(errors) == 1 and "loops.py:%d:" % bad in errors[0] and '"Chunk" has no attribute "result"' in errors[0], types


def test_pyright(tmp_path):
    """It takes the package, and the docs' loops in its mode `strict`.  Its own files are in the wheel; node is that of the MCP servers."""
    pytest.importorskip("pyright")
    text, bad = typed_text()
    (tmp_path / "loops.py").write_text(text)
    with open(os.path.join(PACKAGE, "pyrightconfig.json"), encoding="utf-8") as file:
        settings = json.load(file)
    for key in ("include", "exclude"):
        settings[key] = [os.path.relpath(os.path.join(PACKAGE, path), tmp_path) for path in settings[key]]
    settings["include"].append("loops.py")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(dict(settings, extraPaths=[PACKAGE])))
    done = subprocess.run([sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "--project", str(tmp_path)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=dict(os.environ, PATH=os.path.join(ROOT, "build", "node", "bin") + ":" + os.environ["PATH"]))
    said = json.loads(done.stdout)
    assert said["summary"]["filesAnalyzed"] > 50, said["summary"]
    errors = [(os.path.basename(each["file"]), each["range"]["start"]["line"] + 1, each["message"]) for each in said["generalDiagnostics"]
              if each["severity"] == "error"]
    assert {each[:2] for each in errors} == {("loops.py", bad)}, errors
    assert any('"result" for class "Chunk"' in message for *_, message in errors), errors


def public_members(module):
    """(name, object) of every class, function and member that a user sees."""
    import inspect

    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if not inspect.isclass(value) and not inspect.isfunction(value):
            continue
        yield name, value
        for member, given in vars(value).items() if inspect.isclass(value) else ():
            if member.startswith("_") or not (inspect.isfunction(given) or isinstance(given, (property, classmethod, staticmethod))):
                continue
            yield "%s.%s" % (name, member), given if isinstance(given, property) else getattr(value, member)


def test_every_public_member_has_a_docstring():
    import inspect

    import workcell
    import workcell.sync
    from workcell import approvals, artifacts, deps, errors, events, execution, policy, prompt, storage, tools, types, workflows
    from workcell.execution.container import client
    from workcell.integrations import autogen

    missing = {"%s.%s" % (module.__name__, name)
               for module in (workcell, workcell.sync, approvals, artifacts, autogen, client, deps, errors, events, execution, policy, prompt,
                              storage, tools, types, workflows)
               for name, value in public_members(module) if not inspect.getdoc(value)}
    assert not missing, sorted(missing)
    assert os.path.exists(os.path.join(ROOT, "python", "workcell", "py.typed"))
