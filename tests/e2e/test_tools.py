"""Tools as the code of a session uses them: command lines, web services, and what goes wrong with both."""
import json
import os
import re
import shutil
import time

import pytest

import spaces
import support

SECRET = "s3cr3t-value-71"


def secret_environment():
    return support.host_environment(TEST_TOKEN=SECRET)


@pytest.fixture
def web():
    with spaces.WebServer() as server:
        yield server


def web_yaml(server, extra=""):
    return """\
        name: web
        type: http
        description: A server of the tests
        tags: [web]
        base_url: %s
        timeout: 10
        headers: {Authorization: "Bearer ${TEST_TOKEN}", X-Fixed: "yes"}
        endpoints:
          item: {path: "/items/{id}"}
          find: {path: /find, parameters: {q: {type: string, required: true}, tag: {type: array}}}
          make: {method: POST, path: "/items/{id}", body: {kind: thing},
                 parameters: {name: {type: string, required: true}, size: {type: integer}}}
          status: {path: "/status/{code}"}
          text: {path: /text}
          json: {path: /json}
          slow: {path: /slow, timeout: 0.3}
          to: {path: /to, parameters: {url: {type: string, required: true}}}
          named: {path: /named, parameters: {x_name: {type: string, in: header}}}
        %s""" % (server.url, extra)


@pytest.fixture
def driver(drive, tmp_path):
    return drive("--base", spaces.probe_base(tmp_path), env=secret_environment())


# ---- looking -----------------------------------------------------------------------------------------------


def test_list_has_the_reference_shape(driver):
    tools = driver.value("tools.list()")
    assert [set(tool) >= {"name", "description", "tags", "callables"} for tool in tools] == [True]
    probe = tools[0]
    assert (probe["name"], probe["description"]) == ("probe", "Tells how it was called")
    assert sorted(probe["tags"]) == ["inspection", "test"]
    go = {c["name"]: c for c in probe["callables"]}["go"]
    assert go["description"] == "Goes"
    first = go["parameters"][0]
    assert {"name", "type", "required", "default", "description"} <= set(first)
    assert (first["name"], first["required"], first["description"]) == ("a", True, "where to")


def test_recipes_without_params_have_those_of_the_schema(driver):
    callables = {c["name"]: c for c in driver.value("tools.probe.list()")}
    names = [p["name"] for p in callables["plain"]["parameters"]]
    assert names[:2] == ["a", "b"] and set(names[2:]) == {"v", "hdr", "n", "s", "level", "ratio", "loose", "tight"}


def test_signature_and_describe(driver):
    assert driver.value("tools.probe.go.signature()") == "go(a: str, n: int = 3, s: str = 'x')"
    assert driver.value("tools.probe.go.describe()") == {"a": "where to", "n": "", "s": ""}
    assert "go(a: str" in driver.value("tools.probe.signature()")
    assert driver.value("tools.probe.describe()")["go"] == "Goes"


def test_help_and_completion_show_what_is_there(driver):
    shown = driver.run("help(tools.probe.go)")["stdout"]
    assert "where to" in shown and "a: str" in shown and "Goes" in shown, shown
    assert "probe" in driver.value("dir(tools)")
    assert {"go", "plain"} <= set(driver.value("dir(tools.probe)"))
    assert driver.value("str(__import__('inspect').signature(tools.probe.go))").startswith("(*, a: str")


def test_search_ranks_names_descriptions_tags_and_callables(drive, tmp_path):
    base = spaces.probe_base(tmp_path, **{
        "tools/zip.yaml": "name: zip\ncommand: zip\ndescription: Packs files into archives\ntags: [pressing]\n"
                          "recipes:\n  pack: {description: makes an archive}\n",
        "tools/other.yaml": "name: other\ncommand: true\ndescription: Says where archives go\n"
                            "recipes:\n  r: {description: none}\n"})
    driver = drive("--base", base)
    assert [t["name"] for t in driver.value("tools.search('zip')")] == ["zip"]
    assert driver.value("tools.search('archive')")[0]["name"] in ("zip", "other")
    assert [t["name"] for t in driver.value("tools.search('pressing')")] == ["zip"]
    assert [t["name"] for t in driver.value("tools.search('archives', limit=1)")] != []
    assert len(driver.value("tools.search('archives', limit=1)")) == 1
    assert driver.value("tools.search('zebra')") == []


def test_unknown_tools_and_callables_name_those_that_exist(driver):
    unknown = spaces.error(driver, "tools.nope.x()")
    assert unknown["type"] == "AttributeError" and "Unknown tool: nope" in unknown["message"]
    assert "probe" in unknown["message"]
    unknown = spaces.error(driver, "tools.probe.nope()")
    assert unknown["type"] == "AttributeError" and "go" in unknown["message"] and "plain" in unknown["message"]
    assert spaces.error(driver, "tools._x")["type"] == "AttributeError"
    assert driver.value("[hasattr(tools, 'probe'), hasattr(tools, 'nope')]") == [True, False]


# ---- the words of a command --------------------------------------------------------------------------------


def argv(driver, call):
    return json.loads(driver.value(call))["argv"]


def test_words_are_built_in_schema_order(driver):
    assert argv(driver, "tools.probe.plain(a='1', ratio=0.5, hdr=['x', 'y'], n=5, v=True)") == [
        "-v", "-H", "x", "-H", "y", "--n", "5", "-r", "0.5", "1"]
    assert argv(driver, "tools.probe(b='B', a='A')") == ["A", "B"]
    assert argv(driver, "tools.probe(a='A', v=False, s=None)") == ["A"]


def test_preset_default_and_call_merge(driver):
    assert argv(driver, "tools.probe.go(a='A')") == ["-v", "--n", "3", "--s", "x", "A"]
    assert argv(driver, "tools.probe.go(a='A', v=False)") == ["--n", "3", "--s", "x", "A"]
    assert argv(driver, "tools.probe.go(a='A', n=7, s='y')") == ["-v", "--n", "7", "--s", "y", "A"]


def test_no_shell_is_involved(driver):
    text = "a b; $(touch /tmp/x) `id` | & > < * ' \" \\\n~"
    assert argv(driver, "tools.probe(a=%r)" % text) == [text]
    assert argv(driver, "tools.probe(a='')") == [""]
    assert argv(driver, "tools.probe(a='h\u00e9 \U0001f600')") == ["h\u00e9 \U0001f600"]


def test_required_types_enums_and_names_are_checked(driver):
    for call, words in [("tools.probe()", "Required parameter 'a' is missing"),
                        ("tools.probe.go(n=1)", "Required parameter 'a' is missing"),
                        ("tools.probe(a='x', n='five')", "must be an integer"),
                        ("tools.probe(a='x', n=True)", "must be an integer"),
                        ("tools.probe(a='x', n=1.5)", "must be an integer"),
                        ("tools.probe(a=['x'])", "must be a string"),
                        ("tools.probe(a='x', v='false')", "must be a boolean"),
                        ("tools.probe(a='x', hdr='abc')", "must be an array"),
                        ("tools.probe(a='x', level='medium')", "\"low\", \"high\""),
                        ("tools.probe(a='x', colour='red')", "Unknown argument 'colour'"),
                        ("tools.probe(a='nul\\0byte')", "NUL")]:
        problem = spaces.error(driver, call)
        assert words in problem["message"], (call, problem)
    problem = spaces.error(driver, "tools.probe.go(a='x', colour='red')")
    assert "hdr" in problem["message"] and "go(a: str" in problem["message"], problem
    assert driver.value("try:\n    tools.probe()\nexcept ToolError as error:\n    code = error.code\n"
                        "code") == "invalid"


def test_positional_arguments_are_refused_with_the_signature(driver):
    problem = spaces.error(driver, "tools.probe.go('x')")
    assert problem["type"] == "TypeError" and "a: str" in problem["message"]


def test_values_that_begin_with_a_dash_never_become_options(drive, tmp_path):
    """Reference 9.2: argument injection into the wrapped tool."""
    base = spaces.probe_base(tmp_path)
    with open(os.path.join(base, "tools/probe.yaml"), encoding="utf-8") as file:
        text = file.read()
    with open(os.path.join(base, "tools/ended.yaml"), "w", encoding="utf-8") as file:
        text = text.replace("name: probe", "name: ended", 1)
        file.write(text.replace("schema:", "end_of_options: true\nschema:", 1))
    driver = drive("--base", base)
    for call in ("tools.probe(a='-x')", "tools.probe(a='--output=/etc/passwd')", "tools.probe(a='A', b='-')[1:]",
                 "tools.probe(a='A', tight='-x')", "tools.probe(a='A', hdr=['ok', '-x'])"):
        result = driver.run(call)
        if result["error"] is None:
            # A lone dash names stdin, which is closed; everything longer must be refused.
            assert call.endswith("[1:]"), result
        else:
            assert "-" in result["error"]["message"], result
    assert argv(driver, "tools.probe(a='A', s='-x')") == ["--s=-x", "A"]
    assert argv(driver, "tools.probe(a='A', loose='-x')") == ["-L", "-x", "A"]
    assert argv(driver, "tools.ended(a='-x', b='--y')") == ["--", "-x", "--y"]
    assert argv(driver, "tools.probe(a='A', n=-5)") in (["--n=-5", "A"], ["--n", "-5", "A"])


# ---- how a command runs ------------------------------------------------------------------------------------


def test_a_command_gets_only_what_its_definition_says(drive, tmp_path):
    program = spaces.probe(tmp_path / "bin")
    base = spaces.write_files(tmp_path, {"tools/probe.yaml": """\
        name: probe
        command: %s
        cwd: /usr
        env: {PLAIN: "one two", TOKEN: "${TEST_TOKEN}", LITERAL: "$${X}"}
        recipes: {run: {}}
        """ % program})
    seen = json.loads(drive("--base", base, env=secret_environment()).value("tools.probe.run()"))
    assert seen["cwd"] == "/usr"
    assert {k: seen["env"].get(k) for k in ("PLAIN", "TOKEN", "LITERAL")} == {
        "PLAIN": "one two", "TOKEN": SECRET, "LITERAL": "${X}"}
    assert "WORKCELL_TEST_CANARY" not in seen["env"] and set(seen["env"]) <= {
        "PATH", "HOME", "LANG", "LC_CTYPE", "PLAIN", "TOKEN", "LITERAL"}
    assert seen["pgid"] is True and seen["fds"] == []


def test_commands_are_looked_up_in_the_hosts_path(drive, tmp_path):
    """PATH and HOME of the host program; relative folders of PATH mean another folder for every program, and are left out."""
    folder = tmp_path / "bin"
    spaces.probe(folder)
    (tmp_path / "work").mkdir()
    spaces.make_script(tmp_path / "work" / "planted", "print('planted')")
    base = spaces.write_files(tmp_path / "base", {"tools/probe.yaml": "name: probe\ncommand: probe\nrecipes: {run: {}}\n",
                                                  "tools/planted.yaml": "name: planted\ncommand: planted\nrecipes: {run: {}}\n"})
    driver = drive("--base", base, "--cwd", tmp_path / "work", env=support.host_environment(
        PATH=".::rel/ative:%s:/usr/bin:/bin" % folder, HOME=str(tmp_path / "home")))
    seen = json.loads(driver.value("tools.probe.run()"))
    assert seen["env"]["PATH"] == "%s:/usr/bin:/bin" % folder and seen["env"]["HOME"] == str(tmp_path / "home")
    assert "not found in PATH (%s:/usr/bin:/bin)" % folder in driver.run("tools.planted.run()")["error"]["message"]


def test_a_command_runs_in_the_sessions_folder(drive, tmp_path):
    base = spaces.probe_base(tmp_path / "base")
    (tmp_path / "work").mkdir()
    driver = drive("--base", base, "--cwd", tmp_path / "work")
    assert json.loads(driver.value("tools.probe(a='A')"))["cwd"] == str(tmp_path / "work")


def test_defect_24_tools_do_not_inherit_the_hosts_stdin(driver):
    """The host's stdin carries our cells: a tool that reads it would eat the next one, or hang."""
    started = time.monotonic()
    assert json.loads(driver.value("tools.probe(a='A')"))["stdin"] == ""
    assert time.monotonic() - started < 20
    assert driver.value("1 + 1") == 2


def test_a_failing_command_carries_status_stderr_and_stdout(drive, tmp_path):
    spaces.script_tool(tmp_path, "sad", """\
        import sys
        print("half of it")
        print("no such thing", file=sys.stderr)
        sys.exit(3)
        """)
    driver = drive("--base", tmp_path)
    problem = spaces.error(driver, "tools.sad.run()")
    assert problem["type"] == "ToolCallError"
    for words in ("Tool 'sad", "exit code 3", "no such thing", "half of it"):
        assert words in problem["message"], problem


def test_a_command_that_dies_by_a_signal_says_so(drive, tmp_path):
    spaces.script_tool(tmp_path, "dies", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    problem = spaces.error(drive("--base", tmp_path), "tools.dies.run()")
    assert problem["type"] == "ToolCallError" and "signal 11" in problem["message"]


def test_a_missing_program_is_named(drive, tmp_path):
    spaces.write_files(tmp_path, {
        "tools/gone.yaml": "name: gone\ncommand: no-such-program-here\nrecipes: {run: {}}\n"})
    problem = spaces.error(drive("--base", tmp_path), "tools.gone.run()")
    assert problem["type"] == "ToolCallError" and "no-such-program-here" in problem["message"]


def test_a_tool_that_hangs_is_ended_with_all_it_started(drive, tmp_path):
    mark = "9877%06d" % (os.getpid() % 1000000)
    spaces.script_tool(tmp_path, "hangs", """\
        import subprocess, sys
        subprocess.Popen(["sleep", sys.argv[1]])
        subprocess.run(["sleep", sys.argv[1]])
        """, timeout=0.5)
    driver = drive("--base", tmp_path)
    started = time.monotonic()
    problem = spaces.error(driver, "tools.hangs.run(word='%s')" % mark)
    assert problem["type"] == "ToolTimeoutError" and "0.5" in problem["message"], problem
    assert time.monotonic() - started < 20
    support.wait_until(lambda: not support.with_argument(mark), "the tool's processes are gone", 10)
    assert driver.value("issubclass(ToolTimeoutError, TimeoutError)") is True


def test_a_tool_that_leaves_a_process_behind_does_not_hold_the_call(drive, tmp_path):
    mark = "9876%06d" % (os.getpid() % 1000000)
    spaces.script_tool(tmp_path, "forks", """\
        import subprocess, sys
        subprocess.Popen(["sleep", sys.argv[1]])
        print("done")
        """, timeout=5)
    driver = drive("--base", tmp_path)
    result = driver.run("tools.forks.run(word='%s')" % mark)
    # Its output is not at an end while somebody holds the pipe: the timeout ends it, or the end of the program does.
    assert result["error"] is None and result["value"] == "done\n" or result["error"]["type"] == "ToolTimeoutError"
    support.wait_until(lambda: not support.with_argument(mark), "the tool's processes are gone", 10)


def test_a_tool_that_floods_is_capped_and_the_host_stays_small(drive, tmp_path):
    spaces.script_tool(tmp_path, "floods", """\
        import os
        for i in range(512):
            os.write(1, b"x" * 1048576)
        """)
    driver = drive("--base", tmp_path)
    driver.value("1")
    before = support.peak_rss_bytes(driver.pid)
    text = driver.value("got = tools.floods.run()\n[len(got), got[-80:]]")
    assert 1 << 20 <= text[0] <= (1 << 20) + 200 and "left out" in text[1], text
    assert support.peak_rss_bytes(driver.pid) - before < support.memory(64)


def test_output_that_is_no_utf8_is_shown_not_refused(drive, tmp_path):
    spaces.script_tool(tmp_path, "raw", "import os\nos.write(1, b'a\\xff\\xfeb\\n')\n")
    assert drive("--base", tmp_path).value("tools.raw.run()") == "a\ufffd\ufffdb\n"


def test_defect_12_long_answers_come_whole(drive, tmp_path, web):
    """Sequences of more than 1000 elements were cut, and objects became texts."""
    web.payload = {"rows": [{"i": i, "x": [i / 2, None, True]} for i in range(5000)]}
    spaces.script_tool(tmp_path, "long", "print('y' * 100000)\n")
    spaces.write_files(tmp_path, {"tools/web.yaml": web_yaml(web)})
    driver = drive("--base", tmp_path, env=secret_environment())
    assert driver.value("tools.web.json()") == web.payload
    assert driver.value("len(tools.long.run())") == 100001
    assert driver.value("[list(range(5000))]") == [list(range(5000))]


# ---- concurrency -------------------------------------------------------------------------------------------


def test_gather_runs_calls_at_once(drive, tmp_path):
    """None of the first eight ends before all eight run."""
    here = tmp_path / "here"
    here.mkdir()
    spaces.script_tool(tmp_path, "waits", "import os, sys, time\nopen(os.path.join(%r, sys.argv[1]), 'w').close()\n"
                       "while len(os.listdir(%r)) < 8: time.sleep(0.01)\nprint(sys.argv[1])\n" % (str(here), str(here)), timeout=50)
    driver = drive("--base", tmp_path)
    result = driver.run("""\
import asyncio
got = await asyncio.gather(*(tools.waits.run.call_async(word=str(i)) for i in range(32)))
got == [str(i) + "\\n" for i in range(32)]""")
    assert result["error"] is None and result["value"] is True, result


def test_many_calls_at_once_all_answer(driver):
    result = driver.run("""\
import asyncio, json
got = await asyncio.gather(*(tools.probe.call_async(a=str(i)) for i in range(200)))
[json.loads(each)["argv"][0] for each in got] == [str(i) for i in range(200)]""")
    assert result["value"] is True, result


def test_one_failure_in_a_gather_leaves_the_others(driver):
    result = driver.run("""\
import asyncio
got = await asyncio.gather(*(tools.probe.call_async(a="A", n=n) for n in (1, "x", 3)), return_exceptions=True)
[type(each).__name__ for each in got]""")
    assert result["value"][0] == result["value"][2] == "str", result
    assert result["value"][1] != "str"


def test_threads_may_call(driver):
    assert driver.value("""\
import json, threading
seen = {}
def work(i):
    for j in range(5):
        seen[i, j] = json.loads(tools.probe(a="%d-%d" % (i, j)))["argv"][0] == "%d-%d" % (i, j)
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
[len(seen), all(seen.values())]""") == [40, True]


def test_plain_calls_work_inside_async_code(driver):
    assert driver.value("""\
import asyncio, json
async def work(i):
    await asyncio.sleep(0)
    return json.loads(tools.probe(a=str(i)))["argv"]
await asyncio.gather(*(work(i) for i in range(5)))""") == [[str(i)] for i in range(5)]


def test_cancelled_tasks_end_their_tools(drive, tmp_path):
    mark = "9875%06d" % (os.getpid() % 1000000)
    spaces.script_tool(tmp_path, "waits", spaces.SLEEP, timeout=50)
    driver = drive("--base", tmp_path)
    assert driver.value("""\
import asyncio
try:
    await asyncio.wait_for(tools.waits.run.call_async(word="%s"), 0.5)
except asyncio.TimeoutError:
    said = "timeout"
said""" % mark) == "timeout"
    support.wait_until(lambda: not support.with_argument(mark), "the tool is gone", 10)
    assert driver.value("1 + 1") == 2


def test_an_interrupt_ends_a_call(drive, tmp_path):
    mark = "9874%06d" % (os.getpid() % 1000000)
    spaces.script_tool(tmp_path, "waits", spaces.SLEEP, timeout=50)
    driver = drive("--base", tmp_path)
    driver.start("kept = 5\ntools.waits.run(word='%s')" % mark)
    support.wait_until(lambda: support.with_argument("sleep " + mark), "the tool runs")
    driver.interrupt()
    result = driver.answer()
    assert result["error"]["type"] == "KeyboardInterrupt" and result["state"] == "kept"
    support.wait_until(lambda: not support.with_argument(mark), "the tool is gone", 10)
    assert driver.value("kept") == 5


def test_defect_10_a_late_answer_never_reaches_another_call(drive, tmp_path):
    """After a timeout the reply to an old call could answer the next one, and its output leaked into it."""
    spaces.script_tool(tmp_path, "late",
                       "import sys, time\ntime.sleep(float(sys.argv[1]))\nprint('late', sys.argv[1])\n")
    driver = drive("--base", tmp_path)
    result = driver.run("tools.late.run(word='1.5')", timeout=0.4)
    assert result["error"]["code"] == "timeout" and result["state"] == "kept", result
    for i in range(20):
        result = driver.run("print('mine'); tools.late.run(word='0.%02d')" % (i + 10))
        assert (result["value"], result["stdout"]) == ("late 0.%02d\n" % (i + 10), "mine\n"), result


def test_a_reset_ends_the_calls_under_way(drive, tmp_path):
    mark = "9873%06d" % (os.getpid() % 1000000)
    spaces.script_tool(tmp_path, "waits", spaces.SLEEP, timeout=50)
    driver = drive("--base", tmp_path)
    driver.value("import threading\nthreading.Thread(target=lambda: tools.waits.run(word='%s')).start()" % mark)
    support.wait_until(lambda: support.with_argument("sleep " + mark), "the tool runs")
    driver.reset()
    support.wait_until(lambda: not support.with_argument(mark), "the tool is gone", 10)
    assert driver.value("[t['name'] for t in tools.list()]") == ["waits"]


def test_a_kernel_that_dies_in_a_call_leaves_no_tool(drive, tmp_path):
    mark = "9872%06d" % (os.getpid() % 1000000)
    spaces.script_tool(tmp_path, "waits", spaces.SLEEP, timeout=50)
    driver = drive("--base", tmp_path)
    pid = driver.kernel_pid()
    driver.start("tools.waits.run(word='%s')" % mark)
    support.wait_until(lambda: support.with_argument("sleep " + mark), "the tool runs")
    os.kill(pid, 9)
    assert driver.answer()["error"]["code"] == "kernel_died"
    support.wait_until(lambda: not support.with_argument(mark), "the tool is gone", 10)
    assert driver.value("len(tools.list())") == 1


# ---- definitions -------------------------------------------------------------------------------------------


def test_defect_19_changed_files_are_seen_at_once(driver, tmp_path):
    """The kernel's cache of tool names was never refreshed."""
    assert "added" not in driver.value("[t['name'] for t in tools.list()]")
    path = tmp_path / "tools" / "added.yaml"
    path.write_text("name: added\ncommand: echo\nrecipes: {hi: {}}\nschema: {positional: [{name: a}]}\n")
    assert driver.value("tools.added.hi(a='x')") == "x\n"
    path.write_text("name: added\ncommand: echo\nrecipes: {ho: {}}\nschema: {positional: [{name: b}]}\n")
    assert driver.value("tools.added.ho(b='y')") == "y\n"
    assert spaces.error(driver, "tools.added.hi(a='x')")["type"] == "AttributeError"
    path.unlink()
    assert "Unknown tool: added" in spaces.error(driver, "tools.added.ho(b='y')")["message"]
    (tmp_path / "tools" / "later.yml").write_text("name: later\ncommand: echo\nrecipes: {r: {}}\n")
    assert driver.value("tools.later.r()") == "\n"


def test_defect_8_tags_are_read_and_searched(driver):
    assert sorted(driver.value("tools.list()[0]['tags']")) == ["inspection", "test"]
    assert [t["name"] for t in driver.value("tools.search('inspection')")] == ["probe"]


def test_bad_files_do_not_hide_good_ones(drive, tmp_path):
    base = spaces.probe_base(tmp_path, **{
        "tools/bad.yaml": "name: bad\n  command: [\n",
        "tools/list.yaml": "- not\n- a mapping\n",
        "tools/unknown.yaml": "name: unknown\ncommand: echo\ncolour: red\nrecipes: {r: {}}\n",
        "tools/twin.yaml": "name: probe\ncommand: echo\nrecipes: {r: {}}\n",
        "tools/nocommand.yaml": "name: nocommand\nrecipes: {r: {}}\n",
        "tools/norecipes.yaml": "name: norecipes\ncommand: echo\n",
        "tools/.hidden.yaml": "nonsense: [",
        "tools/notes.txt": "not yaml: ["})
    assert drive("--base", base).value("[t['name'] for t in tools.list()]") == ["probe"]
    done = support.workcell("tools", "check", os.path.join(base, "tools"))
    assert done.status == 1, done
    for name, line, words in [("bad.yaml", r"\d+", ""), ("list.yaml", "1", "mapping"),
                              ("unknown.yaml", "3", "unknown key 'colour'"), ("twin.yaml", "1", "probe"),
                              ("nocommand.yaml", r"\d+", "command"), ("norecipes.yaml", r"\d+", "recipes")]:
        pattern = r"^\S*%s:%s: .*%s" % (re.escape(name), line, re.escape(words))
        assert re.search(pattern, done.out, re.M), (name, done)
    assert "hidden" not in done.out and "notes" not in done.out


# ---- web services ------------------------------------------------------------------------------------------


@pytest.fixture
def web_driver(drive, tmp_path, web):
    spaces.write_files(tmp_path, {"tools/web.yaml": web_yaml(web)})
    return drive("--base", tmp_path, env=secret_environment())


def test_path_values_are_url_encoded(web_driver, web):
    """Reference 9.2: path parameters were put into the URL as they were."""
    for text, path in [("a/b", "/items/a%2Fb"), ("../secret", "/items/..%2Fsecret"),
                       ("x?y=1#z", "/items/x%3Fy%3D1%23z"), ("h\u00e9 %", "/items/h%C3%A9%20%25")]:
        assert web_driver.value("tools.web.item(id=%r)" % text)["path"] == path
    for text in ("..", "."):
        # Encoded or not, a server reads these as a step in its tree.
        result = web_driver.run("tools.web.item(id=%r)" % text)
        assert result["error"] is not None or result["value"]["path"].startswith("/items/%2E"), result
    assert "Required parameter 'id' is missing" in spaces.error(web_driver, "tools.web.item()")["message"]


def test_query_body_and_headers(web_driver, web):
    asked = web_driver.value("tools.web.find(q='a&b=c', tag=['x', 'y z'])")
    assert asked["method"] == "GET"
    assert sorted(map(tuple, asked["query"])) == [("q", "a&b=c"), ("tag", "x"), ("tag", "y z")]
    asked = web_driver.value("tools.web.make(id='7', name='n\u00e9', size=3)")
    assert asked["method"] == "POST" and asked["path"] == "/items/7"
    assert json.loads(asked["body"]) == {"kind": "thing", "name": "n\u00e9", "size": 3}
    assert asked["headers"]["content-type"].startswith("application/json")
    assert web.requests[-1]["headers"]["authorization"] == "Bearer " + SECRET
    assert web.requests[-1]["headers"]["x-fixed"] == "yes"
    result = web_driver.run("tools.web.named(x_name='one\\r\\nX-Two: 2')")
    assert result["error"] is not None and "x-two" not in web.requests[-1]["headers"], result


def test_answers_are_json_or_text(web_driver, web):
    web.payload = {"n": 12345678901234567890, "f": 0.1, "t": "\u00e9", "l": [None, True]}
    assert web_driver.value("tools.web.json()") == web.payload
    assert web_driver.value("tools.web.text()") == "plain \u00e9"


def test_errors_of_a_server_are_told_with_its_words(web_driver, web):
    web.said = "we have no such thing"
    problem = spaces.error(web_driver, "tools.web.status(code='404')")
    assert problem["type"] == "ToolCallError" and "404" in problem["message"]
    assert "we have no such thing" in problem["message"]


def test_a_slow_server_times_out(web_driver):
    problem = spaces.error(web_driver, "tools.web.slow()")
    assert problem["type"] == "ToolTimeoutError" and "0.3" in problem["message"]
    assert web_driver.value("1 + 1") == 2


def test_a_server_that_is_not_there(drive, tmp_path, web):
    spaces.write_files(tmp_path, {"tools/web.yaml": web_yaml(web)})
    web.close()
    problem = spaces.error(drive("--base", tmp_path, env=secret_environment()), "tools.web.text()")
    assert problem["type"] == "ToolCallError" and SECRET not in json.dumps(problem)


def test_a_redirect_to_another_server_does_not_take_the_secret_along(web_driver, web):
    with spaces.WebServer() as other:
        web_driver.run("tools.web.to(url=%r)" % (other.url + "/stolen"))
        for asked in other.requests:
            assert SECRET not in json.dumps(asked), asked
    web_driver.run("tools.web.to(url=%r)" % (web.url + "/same"))


def test_a_missing_variable_is_named(drive, tmp_path, web):
    spaces.write_files(tmp_path, {"tools/web.yaml": web_yaml(web)})
    problem = spaces.error(drive("--base", tmp_path), "tools.web.text()")
    assert "TEST_TOKEN" in problem["message"] and not web.requests


def test_variables_never_reach_kernel_event_log_or_error(drive, tmp_path, web):
    """The values of ${VAR} are for the tool or the server alone, also when those repeat them in an error."""
    spaces.script_tool(tmp_path, "tells", """\
        import os, sys
        print("stdout has", os.environ["TOKEN"])
        sys.exit("stderr has " + os.environ["TOKEN"])
        """, env="{TOKEN: \"${TEST_TOKEN}\"}")
    spaces.script_tool(tmp_path, "hangs", "import time\ntime.sleep(60)\n", env="{TOKEN: \"${TEST_TOKEN}\"}",
                       timeout=0.3)
    spaces.write_files(tmp_path, {"tools/web.yaml": web_yaml(web)})
    driver = drive("--base", tmp_path, env=secret_environment())
    web.said = "you said Bearer %s" % SECRET
    results = [driver.run(code) for code in (
        "tools.tells.run()", "tools.hangs.run()", "tools.web.status(code='403')", "tools.web.slow()",
        "tools.web.text()",
        "repr(tools.list()) + repr(tools.search('web')) + repr(tools.web) + str(tools.tells.run.describe())",
        "import os\n[open('/proc/%s/environ' % pid).read() for pid in ('self', os.getppid())]")]
    assert results[0]["error"]["type"] == results[2]["error"]["type"] == "ToolCallError"
    for shown in (json.dumps(results), json.dumps(driver.events)):
        assert SECRET not in shown
    assert not spaces.memory_holds(driver.kernel_pid(), SECRET.encode())
    assert spaces.memory_holds(driver.pid, b"TEST_TOKEN=" + SECRET.encode()), "the search finds what is there"
    driver.close()
    for folder, _, names in os.walk(str(tmp_path)):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                assert SECRET.encode() not in file.read(), name


def test_the_hosts_stderr_says_nothing_of_variables(tmp_path, web):
    spaces.script_tool(tmp_path, "tells", "import os, sys\nsys.exit('has ' + os.environ['TOKEN'])\n",
                       env="{TOKEN: \"${TEST_TOKEN}\"}")
    for args in (["tools", "call", "tells.run", "--base", tmp_path], ["tools", "show", "tells", "--base", tmp_path],
                 ["tools", "call", "tells.run", "--base", tmp_path, "--json"]):
        done = support.workcell(*args, env=secret_environment())
        assert SECRET not in done.out + done.err, done


# ---- the example ---------------------------------------------------------------------------------------------


def test_the_example_base(drive, tmp_path, web):
    base = tmp_path / "base"
    shutil.copytree(spaces.EXAMPLE_BASE, str(base))
    github = base / "tools" / "github.yaml"
    github.write_text(github.read_text().replace("https://api.github.com", web.url))
    assert support.workcell("tools", "check", base / "tools").status == 0
    spaces.write_files(tmp_path, {"poem.txt": "one two\nThree -four\n"})
    driver = drive("--base", base, "--cwd", tmp_path, env=support.host_environment(GITHUB_TOKEN=SECRET))
    assert sorted(t["name"] for t in driver.value("tools.list()")) == ["github", "grep", "wc"]
    assert driver.value("tools.grep.find(pattern='three', file='poem.txt', ignore_case=True)") == "Three -four\n"
    assert driver.value("tools.grep.first(pattern='-four', file='poem.txt')") == "Three -four\n"
    assert driver.value("tools.wc.words(file='poem.txt').split()[0]") == "4"
    asked = driver.value("tools.github.issues(owner='a', name='b', state='all')")
    assert asked["path"] == "/repos/a/b/issues"
    assert sorted(map(tuple, asked["query"])) == [("per_page", "30"), ("state", "all")]
    assert asked["headers"]["authorization"].startswith("Bearer ")
    assert driver.value("workflows.word_count(path='poem.txt')") == 4
    assert driver.value("workflows.compare(paths=['poem.txt'])") == {"poem.txt": 4}
    assert driver.value("artifacts.load('reports/words.json')") == {"poem.txt": 4}


def test_the_schema_of_a_callable(tmp_path):
    base = spaces.write_files(tmp_path / "base", {"tools/grep.yaml": (
        "name: grep\ndescription: Finds\ncommand: grep\nschema:\n  positional:\n    - {name: pattern, type: string, required: true, description: what}\n"
        "recipes: {find: {description: All, params: {pattern: {}}}}\n")})
    done = support.workcell("run", "--json", "--base", base, "-e", "tools.grep.find.schema()")
    assert done.status == 0, done
    assert done.result["value"] == {"input": {"type": "object", "properties": {"pattern": {"type": "string", "description": "what"}},
                                              "required": ["pattern"]}, "output": None}, done
