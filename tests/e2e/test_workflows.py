"""Workflows: functions that outlive the session, as plain files."""
import os
import shutil

import pytest

import spaces
import support

GREET = '''"""Says hello.

More words.
"""


def run(name: str, times: int = 1) -> str:
    return ("hello %s " % name) * times
'''


@pytest.fixture
def driver(drive, tmp_path):
    return drive("--base", tmp_path / "base")


@pytest.fixture
def either(drive, storage):
    """On a storage of either kind."""
    return drive(*storage)


def create(driver, name, source, **more):
    arguments = "".join(", %s=%r" % item for item in more.items())
    return driver.run("workflows.create(%r, %r%s)" % (name, source, arguments))


# ---- keeping -----------------------------------------------------------------------------------------------


def test_create_get_list_call_delete(either, storage, tmp_path):
    made = create(either, "greet", GREET)
    assert made["error"] is None, made
    assert made["value"]["name"] == "greet" and made["value"]["description"] == "Says hello."
    assert either.value("workflows.greet(name='you')") == "hello you "
    assert either.value("workflows.greet(name='you', times=2)") == "hello you hello you "
    assert either.value("workflows.invoke('greet', name='x')") == "hello x "
    assert either.value("skills.greet(name='y')") == "hello y "
    assert either.value("[w['name'] for w in workflows.list()]") == ["greet"]
    assert either.value("workflows.list()[0]['params']").keys() == {"name", "times"}
    got = either.value("workflows.get('greet')")
    assert got["source"] == GREET and got["description"] == "Says hello."
    assert [(p["name"], p["type"], p["required"], p["default"]) for p in got["parameters"]] == [
        ("name", "string", True, None), ("times", "integer", False, 1)]
    if storage[0] == "--base":
        assert (tmp_path / "base" / "workflows" / "greet.py").read_text() == GREET, "what a person would write"
    assert either.value("workflows.get('nope')") is None
    assert either.value("workflows.delete('greet')") is True
    assert either.value("workflows.delete('greet')") is False
    assert either.value("workflows.list()") == []
    assert spaces.error(either, "workflows.greet(name='x')")["message"] == "Workflow not found: greet"
    assert spaces.error(either, "workflows.invoke('greet')")["type"] == "ValueError"


def test_an_existing_name_needs_overwrite(either):
    create(either, "greet", GREET)
    again = create(either, "greet", "def run():\n    return 2\n")
    assert again["error"] is not None and "greet" in again["error"]["message"], again
    assert either.value("workflows.greet(name='a')") == "hello a "
    assert create(either, "greet", "def run():\n    return 2\n", overwrite=True)["error"] is None
    assert either.value("workflows.greet()") == 2


def test_defect_9_descriptions_survive(drive, tmp_path):
    base = tmp_path / "base"
    first = drive("--base", base)
    create(first, "a", "def run():\n    return 1\n", description="from the argument")
    create(first, "b", '"""From the module."""\ndef run():\n    "Not this."\n', description="")
    create(first, "c", 'def run():\n    "From the function."\n')
    create(first, "d", '"""A docstring."""\ndef run():\n    pass\n', description="the argument wins")
    first.close()
    second = drive("--base", base)
    assert {w["name"]: w["description"] for w in second.value("workflows.list()")} == {
        "a": "from the argument", "b": "From the module.", "c": "From the function.", "d": "the argument wins"}
    assert second.value("workflows.get('a')['description']") == "from the argument"


def test_files_of_a_person_are_picked_up(driver, tmp_path):
    folder = tmp_path / "base" / "workflows"
    assert driver.value("workflows.list()") == []
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text('"""By hand."""\nasync def run(n: int):\n    return n + 1\n')
    assert driver.value("workflows.mine(n=1)") == 2
    assert driver.value("workflows.list()[0]['description']") == "By hand."
    (folder / "mine.py").write_text('"""Edited."""\ndef run(n: int):\n    return n + 2\n')
    assert driver.value("workflows.mine(n=1)") == 3
    assert driver.value("workflows.get('mine')['description']") == "Edited."
    assert [w["name"] for w in driver.value("workflows.search('edited')")] == ["mine"]
    (folder / "_private.py").write_text("def run():\n    pass\n")
    (folder / "broken.py").write_text("def run(:\n")
    (folder / "other.py").write_text("x = 1\n")
    (folder / "notes.txt").write_text("no python\n")
    assert [w["name"] for w in driver.value("workflows.list()")] == ["mine"]
    (folder / "mine.py").unlink()
    assert driver.value("workflows.list()") == []


def test_the_old_folder_skills_is_read_too(drive, tmp_path):
    base = spaces.write_files(tmp_path, {"skills/old.py": '"""Old."""\nasync def run(x: int):\n    return x * 2\n'})
    driver = drive("--base", base)
    assert driver.value("[w['name'] for w in workflows.list()]") == ["old"]
    assert driver.value("skills.old(x=4)") == 8


@pytest.mark.parametrize("source, words", [
    ("def run(:\n", "Syntax error in workflow code"),
    ("x = 1\n", "Workflow must define"),
    ("def other():\n    pass\n", "Workflow must define"),
    ("class A:\n    def run(self):\n        pass\n", "Workflow must define"),
    ("def run():\n    pass\nasync def run():\n    pass\n", "not both"),
    ("def run(tools):\n    pass\n", "tools"),
    ("", "Workflow must define"),
    ("def run():\n    return 'unterminated\n", "Syntax error"),
])
def test_sources_that_are_no_workflow_are_refused(driver, source, words):
    problem = create(driver, "w", source)["error"]
    assert problem and words in problem["message"], problem
    assert driver.value("workflows.list()") == []


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "../evil", "a/b", "a.py", "list", "search", "get", "invoke",
                                  "create", "delete", "class", "_x", "x" * 200, "n\u00e9"])
def test_names_that_are_refused(driver, tmp_path, name):
    result = create(driver, name, "def run():\n    pass\n")
    assert result["error"] is not None, result
    assert not [f for _, _, files in os.walk(str(tmp_path)) for f in files if f.endswith(".py")]


def test_parameters_from_annotations(driver):
    create(driver, "w", "from typing import *\n"
           "def run(a, b: str, c: int, d: float, e: bool, f: list, g: dict, h: 'List[int]', i: Optional[int] = None,\n"
           "        j: Dict[str, int] = {}, *, k: str = 'x', l: int = 2 * 3, **rest):\n    return rest\n")
    found = {p["name"]: (p["type"], p["required"], p["default"])
             for p in driver.value("workflows.get('w')['parameters']")}
    assert found["a"] == ("string", True, None) and found["c"] == ("integer", True, None)
    assert [found[n][0] for n in "bdefg"] == ["string", "number", "boolean", "array", "object"]
    assert found["h"][0] == "array" and found["i"][:2] == ("integer", False) and found["j"][:2] == ("object", False)
    assert found["k"] == ("string", False, "x") and found["l"][:2] == ("integer", False)
    assert "rest" not in found


# ---- nothing runs on the host ------------------------------------------------------------------------------


def test_skills_are_not_executed_on_the_host(drive, tmp_path):
    """Reference 9.2: a source was executed on the host when it was created or loaded."""
    base, marker = tmp_path / "base", tmp_path / "marker"
    source = ('"""Marks."""\nimport os\nopen(%r, "a").write("%%d\\n" %% os.getpid())\n'
              "def run(x=open(%r, 'a').write('default')):\n    return os.getpid()\n" % (str(marker), str(marker)))
    driver = drive("--base", base)
    assert create(driver, "w", source)["error"] is None
    driver.value("[workflows.list(), workflows.search('marks'), workflows.get('w'), repr(workflows.w), dir(workflows)]")
    spaces.write_files(tmp_path, {"w.py": source})
    for args in (["list"], ["search", "marks"], ["show", "w"], ["add", "v", tmp_path / "w.py"]):
        assert support.workcell("workflows", *args, "--base", base).status == 0
    assert not marker.exists()
    pid = driver.value("workflows.w()")
    assert pid == driver.kernel_pid() and marker.read_text().startswith("%d\n" % pid)


def test_each_call_starts_from_a_fresh_namespace(driver):
    create(driver, "count", "n = 0\ndef run():\n    global n\n    n += 1\n    return n\n")
    assert driver.value("n = 50\n[workflows.count(), workflows.count(), n]") == [1, 1, 50]
    create(driver, "peek", "def run():\n    return x\n")
    assert spaces.error(driver, "x = 1\nworkflows.peek()")["type"] == "NameError"


# ---- calling -----------------------------------------------------------------------------------------------


def test_workflows_call_tools_artifacts_and_each_other(drive, tmp_path):
    driver = drive("--base", spaces.probe_base(tmp_path))
    create(driver, "inner", "def run(a: str):\n    import json\n    return json.loads(tools.probe(a=a))['argv']\n")
    create(driver, "outer", "def run(a: str):\n    found = workflows.inner(a=a) + skills.invoke('inner', a=a)\n"
                            "    artifacts.save('x/found', found)\n"
                            "    return artifacts.load('x/found') + [len(deps.list())]\n")
    assert driver.value("workflows.outer(a='A')") == ["A", "A", 0]


def test_defect_1_a_tool_call_inside_an_async_skill(drive, tmp_path):
    """It blocked the loop that it waited for: a deadlock that no timeout ended."""
    driver = drive("--base", spaces.probe_base(tmp_path), "--timeout", "20")
    create(driver, "blocking", "import json\nasync def run():\n    return json.loads(tools.probe(a='1'))['argv']\n")
    create(driver, "awaiting", "import asyncio, json\nasync def run():\n"
           "    got = await asyncio.gather(*(tools.probe.call_async(a=str(i)) for i in range(10)))\n"
           "    return [json.loads(each)['argv'][0] for each in got]\n")
    create(driver, "nested", "async def run():\n    return [await workflows.awaiting(), await workflows.blocking()]\n")
    assert driver.value("workflows.blocking()") == ["1"]
    assert driver.value("workflows.awaiting()") == [str(i) for i in range(10)]
    assert driver.value("await workflows.awaiting()") == [str(i) for i in range(10)]
    assert driver.value("workflows.nested()") == [[str(i) for i in range(10)], ["1"]]
    assert driver.value("import threading\nbox = []\n"
                        "t = threading.Thread(target=lambda: box.append(workflows.awaiting()))\n"
                        "t.start(); t.join(); box[0][:2]") == ["0", "1"]


def test_recursion_is_bounded(driver):
    create(driver, "loop", "def run(n: int = 0):\n    return workflows.loop(n=n + 1)\n")
    problem = spaces.error(driver, "workflows.loop()")
    assert problem["type"] == "WorkflowError" and "loop" in problem["message"] and "deep" in problem["message"], problem
    create(driver, "down", "def run(n: int):\n    return n and workflows.down(n=n - 1)\n")
    assert driver.value("workflows.down(n=20)") == 0


def test_wrong_arguments_show_the_signature(driver):
    create(driver, "greet", GREET)
    for call in ("workflows.greet()", "workflows.greet(nam='x')", "workflows.greet('x')"):
        problem = spaces.error(driver, call)
        assert problem["type"] == "TypeError" and "name: str" in problem["message"], (call, problem)


def test_errors_in_a_workflow_have_its_lines(driver):
    create(driver, "boom", "def helper():\n    return 1 / 0\n\n\ndef run():\n    return helper()\n")
    problem = spaces.error(driver, "workflows.boom()")
    assert problem["type"] == "ZeroDivisionError" and "return 1 / 0" in problem["traceback"], problem
    assert "workflow:boom" in problem["traceback"] and "workcell_kernel" not in problem["traceback"]


# ---- searching ---------------------------------------------------------------------------------------------


def test_search_ranks_by_more_than_substrings(driver):
    for name, source in [
            ("fetch_page", '"""Downloads a web page and returns its text."""\ndef run(url: str):\n    return url\n'),
            ("parseInvoice", '"""Reads totals from a PDF."""\ndef run(path: str):\n    return path\n'),
            ("tidy", '"""Removes blanks."""\ndef run(text: str):\n    # collapse whitespace\n'
                     "    return text.strip()\n")]:
        create(driver, name, source)

    def names(query, **more):
        return [w["name"] for w in driver.value("workflows.search(%r%s)" % (
            query, "".join(", %s=%r" % item for item in more.items())))]

    assert names("downloading pages")[0] == "fetch_page", "stemming"
    assert names("invoice") == ["parseInvoice"], "camelCase is split"
    assert names("fetch")[0] == "fetch_page", "names are split at _"
    assert names("whitespace") == ["tidy"], "the source counts"
    assert names("url")[0] == "fetch_page", "parameters count"
    assert names("tidy")[0] == "tidy"
    assert names("a page or an invoice", limit=1) != [] and len(names("a page or an invoice", limit=1)) == 1
    assert names("zebra") == [] and names("\" OR * -( NEAR") == []


@pytest.mark.slow
def test_ten_thousand_workflows(drive, tmp_path):
    """Opening does not read them; how quick a search is, the benchmark says."""
    folder = tmp_path / "base" / "workflows"
    folder.mkdir(parents=True)
    for i in range(10000):
        source = '"""Handles case %d of %s."""\ndef run(x: int = %d):\n    return x\n'
        (folder / ("flow_%d.py" % i)).write_text(source % (i, ("billing", "shipping", "returns")[i % 3], i))
    driver = drive("--base", tmp_path / "base")
    assert driver.value("1") == 1
    assert not (tmp_path / "base" / ".cache").exists(), "opening reads nothing"
    assert driver.value("len(workflows.search('shipping', limit=10))") == 10
    assert driver.value("workflows.search('shipping case 4321')[0]['name']") == "flow_4321"
    found = driver.value("[workflows.search('returns case %d' % (i * 3 + 2), limit=5)[0]['name'] for i in range(20)]")
    assert found == ["flow_%d" % (i * 3 + 2) for i in range(20)]
    shutil.rmtree(str(folder))


# ---- workspaces --------------------------------------------------------------------------------------------


def test_workspaces_are_apart(drive, tmp_path):
    one, two, none = (drive("--base", tmp_path, *flags) for flags in (
        ["--workspace", "one"], ["--workspace", "two"], []))
    create(one, "w", "def run():\n    return 1\n")
    create(two, "w", "def run():\n    return 2\n")
    assert [d.value("[w['name'] for w in workflows.list()]") for d in (one, two, none)] == [["w"], ["w"], []]
    assert (one.value("workflows.w()"), two.value("workflows.w()")) == (1, 2)
    assert (tmp_path / "workspaces" / "one" / "workflows" / "w.py").exists()
    for bad in ("../x", "a/b", "", "x" * 129):
        done = support.workcell("workflows", "list", "--base", tmp_path, "--workspace", bad)
        assert done.status == 2 and done.error_code == "invalid", done
