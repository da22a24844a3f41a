"""The conformance table of tools, workflows, artifacts and deps; its words are those of cells.py."""
from cells import Case, cell, exact, has, raises

CASES = []

TOOLS = {
    "tools/echo.yaml": """\
        name: echo
        description: Says what it is given
        tags: [talk]
        command: echo
        schema:
          options:
            n: {type: boolean, short: n, description: no newline}
          positional:
            - {name: text, type: string, required: true, description: what to say}
            - {name: more, type: string}
        recipes:
          say: {description: Says it, params: {text: {}}}
          whisper:
            description: Says it without a newline
            preset: {n: true}
            params: {text: {}, more: {default: please}}
        """,
    "tools/fails.yaml": """\
        name: fails
        command: ls
        schema: {positional: [{name: path, type: string}]}
        recipes: {look: {description: Looks}}
        """,
    "tools/sleepy.yaml": """\
        name: sleepy
        command: sleep
        timeout: 0.2
        schema: {positional: [{name: seconds, type: string, required: true}]}
        recipes: {nap: {}}
        """,
}
FLOWS = {
    "workflows/double.py": '"""Doubles a number."""\n\n\ndef run(n: int, times: int = 1) -> int:\n'
                           "    return n * 2 ** times\n",
    "workflows/later.py": '"""Waits, then greets."""\nimport asyncio\n\n\nasync def run(name: str):\n'
                          "    await asyncio.sleep(0)\n    return 'hi ' + name\n",
}


def case(name, *cells, needs=(), base=None):
    CASES.append(Case(name, *cells, needs={"namespaces"} | set(needs), base={} if base is None else base))


# ---- the namespaces themselves -------------------------------------------------------------------------------

case("namespaces are there",
     exact("[n for n in ('tools', 'workflows', 'skills', 'artifacts', 'deps') if n in globals()]",
           ["tools", "workflows", "skills", "artifacts", "deps"]), exact("skills is workflows", True),
     exact("[tools.list(), workflows.list(), artifacts.list(), deps.list()]", [[], [], [], []]))
case("namespaces can be shadowed and come back", exact("tools = 5\ndeps = ToolError = 6\ntools", 5),
     cell("%reset -f"), exact("[tools.list(), deps.list(), issubclass(ToolError, Exception)]", [[], [], True]),
     cell("del tools, workflows"), cell("%reset -s"), exact("[tools.list(), skills is workflows]", [[], True]))
case("namespace errors have names",
     exact("[issubclass(e, Exception) for e in (ToolError, ToolCallError, ToolTimeoutError, WorkflowError, "
           "ArtifactError, ArtifactNotFoundError, DepsError)]", [True] * 7))
case("private names of namespaces", raises("tools._x", "AttributeError"), raises("workflows._x", "AttributeError"),
     raises("artifacts._x", "AttributeError"), raises("deps._x", "AttributeError"))

# ---- tools ---------------------------------------------------------------------------------------------------

case("tools are listed", exact("[t['name'] for t in tools.list()]", ["echo", "fails", "sleepy"]),
     exact("t = tools.list()[0]\n[t['description'], t['tags'], [c['name'] for c in t['callables']]]",
           ["Says what it is given", ["talk"], ["say", "whisper"]]),
     exact("[t['name'] for t in tools.search('talk')]", ["echo"]),
     exact("[c['name'] for c in tools.echo.list()]", ["say", "whisper"]), base=TOOLS)
case("tools are called", exact("tools.echo.say(text='hello')", "hello\n"),
     exact("tools.echo.whisper(text='a')", "a please"), exact("tools.echo.whisper(text='a', more='b')", "a b"),
     exact("tools.echo(text='x')", "x\n"), exact("tools.echo.say.call_sync(text='y')", "y\n"),
     exact("tools['echo']['say'](text='z')", "z\n"), base=TOOLS)
case("tools show their signatures", exact("tools.echo.say.signature()", "say(text: str)"),
     exact("tools.echo.say.describe()", {"text": "what to say"}),
     exact("import inspect\nstr(inspect.signature(tools.echo.say))", "(*, text: str)"),
     exact("'what to say' in tools.echo.say.__doc__", True), exact("'echo' in dir(tools), ", None, repr="(True,)"),
     exact("'say' in dir(tools.echo)", True), base=TOOLS)
case("tools check their arguments",
     raises("tools.echo.say()", "ToolCallError", message=has("Required parameter 'text' is missing")),
     raises("tools.echo.say(text=5.5, x=1)", "ToolCallError", message=has("text: str")),
     raises("tools.echo.say(txt='a')", "ToolCallError", message=has("Unknown argument 'txt'")),
     raises("tools.echo.say('a')", "TypeError", message=has("text: str")),
     raises("tools.echo.say(text=object())", "TypeError", message=has("text")),
     raises("tools.echo.say(text='-e')", "ToolCallError", message=has("-")), base=TOOLS)
case("tools that do not exist", raises("tools.nope", "AttributeError", message=has("echo, fails, sleepy")),
     raises("tools.echo.nope", "AttributeError", message=has("say, whisper")),
     exact("[hasattr(tools, 'nope'), hasattr(tools, 'echo')]", [False, True]), base=TOOLS)
case("tools that fail", raises("tools.fails.look(path='/no/such/path')", "ToolCallError", message=has("/no/such/path")),
     raises("tools.sleepy.nap(seconds='60')", "ToolTimeoutError", message=has("0.2")),
     exact("try:\n    tools.fails.look(path='/no')\nexcept ToolError as error:\n"
           "    seen = [type(error).__name__, error.code]\nseen", ["ToolCallError", "tool_failed"]),
     exact("tools.echo.say(text='still here')", "still here\n"), base=TOOLS)
case("tools in async code",
     exact("await tools.echo.say.call_async(text='a')", "a\n"),
     exact("import asyncio\nawait asyncio.gather(*(tools.echo.say.call_async(text=str(i)) for i in range(20)))",
           ["%d\n" % i for i in range(20)]),
     exact("async def f():\n    return tools.echo.say(text='plain')\nawait f()", "plain\n"),
     exact("await tools.echo.say(text='both ways')", "both ways\n"),
     exact("async def g():\n    x = await tools.echo.say(text='c')\n    return x + await tools['echo'].say(text='d')\n"
           "[len(await tools.list()), await g(), await artifacts.list()]", [3, "c\nd\n", []]),
     raises("await tools.fails.look(path='/no')", "ToolCallError", traceback=["await tools.fails.look(path='/no')"]),
     raises("await 'text'", "TypeError"),
     raises("await tools.fails.look.call_async(path='/no')", "ToolCallError"), base=TOOLS)
case("tools in threads",
     exact("from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as pool:\n"
           "    got = list(pool.map(lambda i: tools.echo.say(text=str(i)), range(12)))\ngot",
           ["%d\n" % i for i in range(12)]), needs={"threads"}, base=TOOLS)
case("tools in a generator, a comprehension and a class",
     exact("[x.strip() for x in (tools.echo.say(text=c) for c in 'ab')]", ["a", "b"]),
     exact("class A:\n    x = tools.echo.say(text='c')\nA.x", "c\n"), base=TOOLS)
case("a tool call between prints keeps the order",
     cell("print('one')\nprint(tools.echo.say(text='two'), end='')\nprint('three')",
          stdout="one\ntwo\nthree\n"), base=TOOLS)

# ---- workflows -----------------------------------------------------------------------------------------------

case("workflows are listed and called", exact("[w['name'] for w in workflows.list()]", ["double", "later"]),
     exact("workflows.list()[0]", {"name": "double", "description": "Doubles a number.",
                                   "params": {"n": "integer", "times": "integer"}}),
     exact("workflows.double(n=4)", 8), exact("workflows.double(n=4, times=2)", 16), exact("skills.double(n=1)", 2),
     exact("workflows.invoke('double', n=5)", 10), exact("workflows.later(name='x')", "hi x"),
     exact("await workflows.later(name='y')", "hi y"),
     exact("[w['name'] for w in workflows.search('greeting')]", ["later"]), base=FLOWS)
case("an async workflow that is not awaited gives its value",
     cell("workflows.create('both', 'async def run(n):\\n"
          "    said = skills.invoke(\"later\", name=n)\\n    return said + workflows.later(name=n) + await workflows.later(name=n)');"),
     exact("workflows.both(n='x')", "hi xhi xhi x"), exact("await workflows.both(n='y')", "hi yhi yhi y"),
     exact("def f():\n    return workflows.later(name='z').upper()\nasync def g():\n    return f() + workflows.later(name='z')\nawait g()",
           "HI Zhi z"),
     exact("import asyncio\nawait asyncio.gather(workflows.later(name='a'), workflows.later(name='b'))", ["hi a", "hi b"]), base=FLOWS)
case("workflows are created and deleted",
     exact("workflows.create('inc', '''def run(x: int):\\n    return x + 1''', description='Adds one')",
           {"name": "inc", "description": "Adds one", "params": {"x": "integer"}}),
     exact("workflows.inc(x=1)", 2), raises("workflows.create('inc', 'def run():\\n    pass')", "FileExistsError"),
     exact("workflows.create('inc', 'def run():\\n    return 5', overwrite=True)['name']", "inc"),
     exact("workflows.inc()", 5),
     exact("workflows.get('inc')['source']", "def run():\n    return 5"), exact("workflows.delete('inc')", True),
     exact("workflows.delete('inc')", False), cell("workflows.get('inc')", value=None))
case("workflows that do not exist", raises("workflows.nope", "AttributeError", message="Workflow not found: nope"),
     raises("workflows.invoke('nope')", "ValueError", message=has("nope")), cell("workflows.get('nope')", value=None))
case("sources that are no workflow",
     raises("workflows.create('x', 'y = 1')", "ValueError", message=has("run")),
     raises("workflows.create('x', 'def run(:')", "SyntaxError", message=has("Syntax error in workflow code")),
     raises("workflows.create('1x', 'def run():\\n    pass')", "ValueError", message=has("identifier")),
     raises("workflows.create('list', 'def run():\\n    pass')", "ValueError", message=has("Reserved")),
     exact("workflows.list()", []))
case("workflows see the namespaces and nothing of the cell",
     cell("secret = 1\nworkflows.create('w', \"def run():\\n    all = tools, workflows, skills, artifacts, deps\\n"
          "    return [callable(each.list) for each in all] + ['secret' in globals()]\");"),
     exact("workflows.w()", [True, True, True, True, True, False]))
case("workflows use tools and each other",
     cell("workflows.create('say', 'def run(t):\\n    return tools.echo.say(text=t)');"),
     cell("workflows.create('twice', 'async def run(t):\\n"
          "    return workflows.say(t=t) + await tools.echo.say.call_async(text=t)');"),
     exact("workflows.twice(t='a')", "a\na\n"), exact("await workflows.twice(t='b')", "b\nb\n"), base=TOOLS)
case("workflows that raise", cell("workflows.create('boom', 'def run():\\n    return [][0]');"),
     raises("workflows.boom()", "IndexError", traceback=["<cell 2>", "workflow:boom", "return [][0]"]),
     raises("workflows.boom(x=1)", "TypeError", message=has("boom()")))
case("workflows that never end in themselves",
     cell("workflows.create('loop', 'def run():\\n    return workflows.loop()');"),
     raises("workflows.loop()", "WorkflowError", message=has("deep")))

# ---- artifacts -----------------------------------------------------------------------------------------------

case("artifacts keep values", *[
    exact("x = %s\nartifacts.save('x', x)\ny = artifacts.load('x')\nx == y and type(y).__name__" % text, kind)
    for text, kind in [("'h\u00e9'", "str"), ("''", "str"), ("b'\\x00\\xff'", "bytes"),
                       ("{'a': [1, 2.5, None]}", "dict"), ("[1]", "list"), ("5", "int"), ("0.1", "float"), ("True", "bool")]],
     cell("artifacts.save('x', None); artifacts.load('x')", value=None))
case("artifacts have descriptions and metadata",
     exact("a = artifacts.save('d/e.txt', 'x', description='words', metadata={'k': 1})\n"
           "[a.name, a.description, a.metadata]", ["d/e.txt", "words", {"k": 1}]),
     exact("a = artifacts.get('d/e.txt')\n"
           "[a['name'], a['description'], a['metadata'], a['size'], bool(a['created_at'])]",
           ["d/e.txt", "words", {"k": 1}, 1, True]),
     exact("[a.name for a in artifacts.list()]", ["d/e.txt"]), exact("artifacts.exists('d/e.txt')", True),
     cell("artifacts.delete('d/e.txt')", value=None), exact("artifacts.exists('d/e.txt')", False))
case("artifacts that are not there", raises("artifacts.load('nope')", "ArtifactNotFoundError", message=has("nope")),
     cell("artifacts.get('nope')", value=None), exact("artifacts.exists('nope')", False),
     cell("artifacts.delete('nope')"))
case("artifacts cannot leave their folder", raises("artifacts.save('../x', 1)", "ValueError"),
     raises("artifacts.load('/etc/passwd')", "ValueError"),
     raises("artifacts.save('.artifacts.json', 1)", "ValueError"), raises("artifacts.save('', 1)", "ValueError"),
     raises("artifacts.save('a\\0b', 1)", "ValueError"), exact("artifacts.list()", []))
case("artifacts of several megabytes", exact("import os\nx = os.urandom(5_000_001)\nartifacts.save('x', x)\n"
                                             "artifacts.load('x') == x", True))
case("artifacts that have no form", raises("artifacts.save('x', object())", "TypeError"),
     raises("artifacts.save('x', {1, 2})", "TypeError", message=has("list")), exact("artifacts.exists('x')", False))
case("artifacts from threads", exact(
    "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as pool:\n"
    "    list(pool.map(lambda i: artifacts.save('t/%02d' % i, i), range(16)))\n"
    "[a.name for a in artifacts.list()] == ['t/%02d' % i for i in range(16)]", True), needs={"threads"})
case("artifacts of a person", exact("artifacts.load('note.txt')", "by hand"),
     exact("artifacts.list()[0].name", "note.txt"), base={"artifacts/note.txt": "by hand"})

# ---- deps ----------------------------------------------------------------------------------------------------

case("deps are read from requirements.txt", exact("deps.list()", ["other-thing", "some-thing>=1,<2"]),
     exact("repr(deps)", "<DepsNamespace: 2 packages configured>"),
     base={"requirements.txt": "# ours\nSome_Thing >= 1, < 2\nother.thing\n"})
case("deps refuse what is no package", *[
    raises("deps.add(%r)" % text, "ValueError", message=has("Invalid package"))
    for text in ("", "a;b", "-e .", "git+https://example.org/x", "a @ file:///x", "./x")], exact("deps.list()", []))
