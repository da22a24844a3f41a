"""workcell tools, workflows, artifacts and deps; the flags they share with run; the examples of the docs."""
import json
import os
import re
import shutil
import signal
import subprocess
import threading

import pytest

import spaces
import support

COMMANDS = ("tools", "workflows", "artifacts", "deps")


@pytest.fixture
def base(tmp_path):
    shutil.copytree(spaces.EXAMPLE_BASE, str(tmp_path / "base"))
    spaces.write_files(tmp_path, {"poem.txt": "one two\nthree\n"})
    return tmp_path / "base"


def fails(done, word):
    assert done.status == support.EXIT[word] and done.error_code == word, done
    return done


# ---- what all have in common -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command):
    done = support.workcell(command, "--help")
    assert done.status == 0 and done.out.startswith("usage: workcell %s " % command), done
    for words in ("examples:\n  workcell %s " % command, "--json", "--base DIR", "--storage DIR"):
        assert words in done.out, done
    assert support.workcell(command, "list", "--help").out == done.out
    assert all(len(line) <= 110 for line in done.out.splitlines()), done
    assert re.search(r"^  %s +\S" % command, support.workcell("--help").out, re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_usage_errors(command, tmp_path):
    fails(support.workcell(command), "invalid")
    assert "list" in fails(support.workcell(command, "frobnicate", "--base", tmp_path), "invalid").error_message
    assert "--base" in fails(support.workcell(command, "list"), "invalid").error_message
    fails(support.workcell(command, "list", "extra", "--base", tmp_path), "invalid")
    fails(support.workcell(command, "list", "--nope", "--base", tmp_path), "invalid")
    done = fails(support.workcell(command, "--json"), "invalid")
    assert json.loads(done.out)["error"]["code"] == "invalid"


@pytest.mark.parametrize("args", [["run", "-e", "1"], ["workflows", "list"], ["artifacts", "list"], ["deps", "list"]])
def test_a_base_folder_is_no_url(args):
    done = fails(support.workcell(*args, "--base", "redis://user:hunter2@localhost/0"), "invalid")
    assert "--storage" in done.error_message and "hunter2" not in done.err


def test_run_takes_the_flags(base, bare_python):
    def run(code, *flags):
        return support.run_cells(code, flags=[str(flag) for flag in flags])

    names, flows = "[t['name'] for t in tools.list()]", "[w['name'] for w in workflows.list()]"
    assert run(names, "--base", base).result["value"] == ["github", "grep", "wc"]
    assert run(names, "--tools", base / "tools").result["value"] == ["github", "grep", "wc"]
    assert run(names, "--storage", base).result["value"] == []
    assert run(flows, "--storage", base).result["value"] == ["compare", "word_count"]
    assert run(flows, "--base", base, "--storage", base / "none").result["value"] == []
    assert run("workflows.list()", "--base", base, "--workspace", "w1").result["value"] == []
    assert run("artifacts.save('a', 1); artifacts.exists('a')", "--storage", base / "new").result["value"] is True
    assert (base / "new" / "artifacts" / "a").exists()
    error = run("artifacts.list()", "--tools", base / "tools").result["error"]
    assert error is not None and "storage" in error["message"], error
    fails(run("1", "--tools", base / "nope"), "not_found")
    fails(run("1", "--workspace", "w"), "invalid")


def test_shell_takes_the_flags(base, bare_python):
    done = support.workcell("shell", "--base", base, "--python", bare_python,
                            stdin=b"[t['name'] for t in tools.list()]\n")
    assert "['github', 'grep', 'wc']" in done.out, done


# ---- tools -------------------------------------------------------------------------------------------------


def test_tools_list_search_show(base):
    done = support.workcell("tools", "list", "--base", base)
    assert done.status == 0 and re.search(r"^grep +Finds lines", done.out, re.M), done
    assert re.search(r"^  \.find +All lines that match$", done.out, re.M), done
    columns = {re.match(r" *\S+ +", line).end() for line in done.out.splitlines()}
    assert len(columns) == 1, "descriptions are aligned: %r" % done
    listed = support.workcell("tools", "list", "--base", base, "--json").objects
    assert len(listed) == 1 and [tool["name"] for tool in listed[0]] == ["github", "grep", "wc"]
    tagged = support.workcell("tools", "list", "--base", base, "--json", "--tag", "web").objects[0]
    assert [tool["name"] for tool in tagged] == ["github"]
    found = support.workcell("tools", "search", "count words", "--base", base, "--json").objects[0]
    assert found[0]["name"] == "wc"
    assert len(support.workcell("tools", "search", "text", "--base", base, "--json", "--limit", "1").objects[0]) == 1
    shown = support.workcell("tools", "show", "grep", "--base", base)
    assert re.search(r"^ +pattern +string +required +a basic regular expression$", shown.out, re.M), shown
    assert support.workcell("tools", "show", "grep", "--base", base, "--json").objects[0]["name"] == "grep"
    fails(support.workcell("tools", "show", "nope", "--base", base), "not_found")


def test_tools_call(base, tmp_path):
    def call(*args, **options):
        return support.workcell("tools", "call", *args, "--base", base, cwd=str(tmp_path), **options)

    done = call("grep.find", "pattern=T", "file=poem.txt", "ignore_case=true")
    assert (done.status, done.out) == (0, "one two\nthree\n"), done
    assert call("wc.words", "--args", '{"file": "poem.txt"}').out == "3 poem.txt\n"
    assert call("wc.words", "--args", '{"file": "nope"}', "file=poem.txt").out == "3 poem.txt\n"
    assert call("wc.words", "file=poem.txt", "--json").objects == [{"value": "3 poem.txt\n"}]
    assert call("wc", "file=poem.txt", "bytes=true").out == "14 poem.txt\n"
    done = fails(call("grep.find", "pattern=x"), "invalid")
    assert "file" in done.error_message
    fails(call("grep.find", "pattern"), "invalid")
    fails(call("grep.find", "pattern=a", "pattern=b"), "invalid")
    fails(call("grep.find", "--args", "[1]"), "invalid")
    fails(call("nope"), "not_found")
    fails(call("grep.nope"), "not_found")
    done = fails(call("grep.find", "pattern=zebra", "file=poem.txt"), "tool_failed")
    assert "exit code 1" in done.error_message
    done = fails(call("grep.find", "pattern=a", "file=no-such-file", "--json"), "tool_failed")
    assert "no-such-file" in json.loads(done.out)["error"]["message"]


def test_arguments_are_read_by_their_types(tmp_path):
    base = spaces.probe_base(tmp_path)

    def argv(*args):
        done = support.workcell("tools", "call", "probe.plain", *args, "--base", base)
        assert done.status == 0, done
        return json.loads(done.out)["argv"]

    assert argv("a=5", "n=7", "v=true", "hdr=x", "hdr=[y", "ratio=0.5") == [
        "-v", "-H", "x", "-H", "[y", "--n", "7", "-r", "0.5", "5"]
    assert argv("a=x=y z", 'hdr=["p", "q"]', "v=false") == ["-H", "p", "-H", "q", "x=y z"]
    assert argv("a=", "n=-3")[-1] == ""


def test_a_failing_tool_says_everything(tmp_path):
    """Its messages are longer than an error of the library's is."""
    spaces.script_tool(tmp_path, "talks", "import sys\n"
                       "for n in range(100):\n    print('out', n)\n    print('problem', n, file=sys.stderr)\n"
                       "print('a \\x1b[31mred\\x07 end', file=sys.stderr)\nsys.exit(4)\n")
    done = fails(support.workcell("tools", "call", "talks.run", "--base", tmp_path), "tool_failed")
    assert done.out == "" and "exit code 4" in done.err.splitlines()[0], done
    for n in range(100):
        assert "problem %d\n" % n in done.err and "out %d\n" % n in done.err, (n, done)
    assert "\x1b" not in done.err and "\x07" not in done.err, "nothing steers the terminal: %r" % done
    done = fails(support.workcell("tools", "call", "talks.run", "--base", tmp_path, "--json"), "tool_failed")
    message = json.loads(done.out)["error"]["message"]
    assert "problem 0\nproblem 1\n" in message and "\nout 99" in message and "a \x1b[31mred\x07 end" in message


def test_tool_timeouts_have_their_code(tmp_path):
    spaces.script_tool(tmp_path, "hangs", "import time\ntime.sleep(60)\n", timeout=0.3)
    fails(support.workcell("tools", "call", "hangs.run", "--base", tmp_path), "tool_timeout")


def test_ending_the_command_ends_the_tool(tmp_path):
    mark = "9871%06d" % (os.getpid() % 1000000)
    spaces.script_tool(tmp_path, "waits", spaces.SLEEP, timeout=50)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = support.popen([support.BIN, "tools", "call", "waits.run", "word=" + mark,
                                 "--base", str(tmp_path)], env=support.host_environment())
        support.wait_until(lambda: support.with_argument("sleep " + mark), "the tool runs")
        process.send_signal(number)
        assert process.wait(support.DEADLINE) != 0
        support.wait_until(lambda: not support.with_argument("sleep " + mark), "the tool is gone", 10)


def test_a_put_that_is_cut_short_leaves_nothing(tmp_path):
    process = support.popen([support.BIN, "artifacts", "put", "x", "-", "--storage", str(tmp_path)],
                            stdin=subprocess.PIPE, env=support.host_environment())
    process.stdin.write(b"y" * 5_000_000)
    process.stdin.flush()
    process.kill()
    process.wait()
    process.stdin.close()
    assert support.workcell("artifacts", "list", "--storage", tmp_path).out == ""
    assert support.workcell("artifacts", "put", "x", "-", "--storage", tmp_path, stdin=b"whole").status == 0
    assert support.workcell("artifacts", "get", "x", "--storage", tmp_path).out == "whole"


def test_artifacts_have_sizes_and_ages_for_people(tmp_path):
    for name, size in (("a", 14), ("b", 1536), ("c", 3 << 20)):
        assert support.workcell("artifacts", "put", name, "-", "--storage", tmp_path, stdin=b"x" * size).status == 0
    rows = [re.split("  +", line) for line in support.workcell("artifacts", "list", "--storage", tmp_path).out.splitlines()]
    assert [row[-2:] for row in rows] == [["14 B", "just now"], ["1.5 KiB", "just now"], ["3 MiB", "just now"]], rows
    sizes = [each["size"] for each in support.workcell("artifacts", "list", "--storage", tmp_path, "--json").objects[0]]
    assert sizes == [14, 1536, 3 << 20], "programs get numbers"


def test_a_transfer_that_takes_long_shows_its_rate_on_a_terminal(tmp_path):
    """A named pipe, from which half of the bytes come, and then nothing until the progress was seen."""
    half = 9 << 20
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    argv = ["artifacts", "put", "x", pipe, "--storage", str(tmp_path / "data")]
    with support.Terminal(*argv) as shown:
        with open(pipe, "wb") as writer:
            writer.write(b"x" * half)
            writer.flush()
            shown.expect(r"saving: 9 MiB, [0-9.]+ [KM]iB/s")
        assert shown.wait_end() == 0 and shown.seen.endswith("\r\x1b[K"), "it is taken off: %r" % shown.seen
    assert support.workcell("artifacts", "list", "--storage", tmp_path / "data", "--json").objects[0][0]["size"] == half


def test_tools_check(base, tmp_path):
    done = support.workcell("tools", "check", base / "tools")
    assert (done.status, done.out, done.err) == (0, "", ""), done
    assert support.workcell("tools", "check", "--base", base).status == 0
    spaces.write_files(base, {"tools/bad.yaml": "name: bad\ncommand: echo\nwrong: 1\nrecipes: {r: {}}\n"})
    done = support.workcell("tools", "check", "--base", base)
    assert done.status == 1 and re.search(r"bad\.yaml:3: unknown key 'wrong'", done.out), done
    problems = support.workcell("tools", "check", base / "tools", "--json")
    assert problems.status == 1 and problems.objects[0][0]["line"] == 3
    fails(support.workcell("tools", "check", tmp_path / "nope"), "not_found")


# ---- workflows ---------------------------------------------------------------------------------------------


def test_workflows(base, tmp_path, bare_python):
    def workflows(*args, **options):
        return support.workcell("workflows", *args, "--base", base, "--python", bare_python, cwd=str(tmp_path),
                                **options)

    done = workflows("list")
    assert re.search(r'^compare\(paths, title="Word counts"\)  Counts the words of several', done.out, re.M), done
    assert re.search(r"^word_count\(path\) +Counts the words of a file", done.out, re.M), done
    assert [w["name"] for w in workflows("list", "--json").objects[0]] == ["compare", "word_count"]
    assert [w["name"] for w in workflows("search", "several", "--json").objects[0]] == ["compare"]
    with open(os.path.join(spaces.EXAMPLE_BASE, "workflows", "word_count.py"), "rb") as file:
        assert workflows("show", "word_count").raw_out == file.read()
    assert "source" in workflows("show", "word_count", "--json").objects[0]
    done = workflows("run", "word_count", "path=poem.txt")
    assert (done.status, done.out) == (0, "3\n"), done
    done = workflows("run", "compare", "paths=poem.txt", "paths=poem.txt", "--json")
    assert done.result["value"] == {"poem.txt": 3}, done
    fails(workflows("run", "nope"), "not_found")
    assert workflows("run", "word_count").status == 1, "the code raised"
    source = (b'"""Adds."""\ndef run(a: int, b: int = 1, t: str = "\xc3\xa9"):\n'
              b'    print("adding")\n    return [a + b, t]\n')
    done = workflows("add", "plus", "-", stdin=source)
    assert (done.status, done.out) == (0, ""), done
    done = workflows("run", "plus", "a=2", "--args", json.dumps({"b": 3, "t": "\U0001f600 \"'\\"}), "--json")
    assert done.result["value"] == [5, "\U0001f600 \"'\\"] and done.result["stdout"] == "adding\n", done
    fails(workflows("add", "plus", "-", stdin=source), "exists")
    assert workflows("add", "plus", "-", "--overwrite", "--description", "Other words", stdin=source).status == 0
    assert workflows("show", "plus", "--json").objects[0]["description"] == "Other words"
    fails(workflows("add", "bad name", "-", stdin=source), "invalid")
    fails(workflows("add", "bad", "-", stdin=b"def walk(): pass"), "invalid")
    fails(workflows("add", "bad", "-", stdin=b"\xff"), "invalid")
    fails(workflows("add", "bad", tmp_path / "nope.py"), "not_found")
    assert workflows("rm", "plus").status == 0
    fails(workflows("rm", "plus"), "not_found")
    fails(workflows("show", "plus"), "not_found")


def test_workflows_run_has_the_exit_status_of_run(tmp_path, bare_python):
    spaces.write_files(tmp_path, {"workflows/hang.py": "def run():\n    while True: pass\n",
                                  "workflows/die.py": "import os\ndef run():\n    os._exit(3)\n"})
    flags = ["--base", tmp_path, "--python", bare_python]
    assert support.workcell("workflows", "run", "hang", "--timeout", "0.3", *flags).status == 124
    assert support.workcell("workflows", "run", "die", *flags).status == 137


# ---- artifacts ---------------------------------------------------------------------------------------------


def test_artifacts(tmp_path):
    def artifacts(*args, **options):
        return support.workcell("artifacts", *args, "--storage", tmp_path / "store", **options)

    data = bytes(range(256)) * 5000
    assert artifacts("list").out == ""
    done = artifacts("put", "d/data.bin", "-", "--description", "Some bytes", "--metadata", '{"k": 1}', stdin=data)
    assert (done.status, done.out) == (0, ""), done
    spaces.write_files(tmp_path, {"note.txt": "h\u00e9"})
    made = artifacts("put", "note.txt", tmp_path / "note.txt", "--json").objects[0]
    assert made["name"] == "note.txt" and made["metadata"]["_data_type"] == "text", made
    done = artifacts("list")
    rows = [re.split("  +", line) for line in done.out.splitlines()]
    assert rows == [["d/data.bin", "bytes", "1.2 MiB", "just now", "Some bytes"], ["note.txt", "text", "3 B", "just now"]], done
    assert len({line.index(row[1]) for line, row in zip(done.out.splitlines(), rows)}) == 1, "columns are aligned"
    assert artifacts("get", "d/data.bin").raw_out == data and artifacts("get", "d/data.bin", "-").raw_out == data
    assert artifacts("get", "d/data.bin", tmp_path / "out").status == 0
    assert (tmp_path / "out").read_bytes() == data
    known = artifacts("get", "d/data.bin", "--json").objects[0]
    assert known["description"] == "Some bytes" and known["metadata"]["k"] == 1 and known["size"] == len(data)
    fails(artifacts("get", "d/data.bin", "-", "--json"), "invalid")
    fails(artifacts("get", "nope"), "not_found")
    fails(artifacts("get", "nope", tmp_path / "never"), "not_found")
    assert not (tmp_path / "never").exists()
    fails(artifacts("get", "d/data.bin", tmp_path / "no" / "folder"), "io")
    fails(artifacts("put", "../evil", "-", stdin=b"x"), "invalid")
    fails(artifacts("put", "x", tmp_path / "nope"), "not_found")
    fails(artifacts("put", "x", "-", "--type", "pickle", stdin=b"x"), "invalid")
    fails(artifacts("put", "x", "-", "--metadata", "[1]", stdin=b"x"), "invalid")
    assert artifacts("put", "j.json", "-", stdin=b'{"a": [1]}').status == 0
    done = support.run_cells("artifacts.load('j.json')", flags=["--storage", str(tmp_path / "store")])
    assert done.result["value"] == {"a": [1]}
    assert artifacts("rm", "j.json", "d/data.bin").status == 0
    fails(artifacts("rm", "j.json"), "not_found")
    assert [a["name"] for a in artifacts("list", "--json").objects[0]] == ["note.txt"]
    assert [f for f in os.listdir(str(tmp_path)) if f.startswith("out.")] == [], "no temporary file stays"


def test_a_reader_that_goes_away(tmp_path):
    support.workcell("artifacts", "put", "x", "-", "--storage", tmp_path, stdin=b"y" * 20_000_000)
    process = support.popen([support.BIN, "artifacts", "get", "x", "--storage", str(tmp_path)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=support.host_environment())
    process.stdout.read(100)
    process.stdout.close()
    assert process.wait(support.DEADLINE) in (141, -13)
    assert process.stderr.read() == b""
    process.stderr.close()


def test_eight_processes_hammer_one_storage(tmp_path):
    store, problems = str(tmp_path), []

    def work(who):
        for i in range(12):
            name = "p%d/%d" % (who, i)
            source = b"def run():\n    return %d\n" % who
            for args, data in ((["artifacts", "put", name, "-"], b"x" * 1000),
                               (["artifacts", "put", "same", "-"], b"%d" % who * 999),
                               (["workflows", "add", "w%d_%d" % (who, i), "-"], source),
                               (["workflows", "add", "same", "-", "--overwrite"], source)):
                done = support.workcell(*args, "--storage", store, stdin=data)
                if done.status:
                    problems.append(done)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[0]
    names = {a["name"] for a in support.workcell("artifacts", "list", "--storage", store, "--json").objects[0]}
    assert names == {"same"} | {"p%d/%d" % (w, i) for w in range(8) for i in range(12)}
    flows = {w["name"] for w in support.workcell("workflows", "list", "--storage", store, "--json").objects[0]}
    assert flows == {"same"} | {"w%d_%d" % (w, i) for w in range(8) for i in range(12)}
    assert len(set(support.workcell("artifacts", "get", "same", "--storage", store).raw_out)) == 1


def test_texts_cannot_steer_the_terminal(tmp_path):
    spaces.write_files(tmp_path, {"tools/t.yaml": 'name: t\ncommand: echo\nrecipes: {r: {}}\n'
                                                  'description: "a\\e[31mred\\u009b5m\\nsecond"\n'})
    done = support.workcell("tools", "list", "--base", tmp_path)
    assert "\x1b" not in done.out and "\x9b" not in done.out and "second" not in done.out, done


def test_a_storage_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for args in (["artifacts", "list"], ["workflows", "list"], ["run", "-e", "1"]):
        done = support.workcell(*args, "--storage", tmp_path / "file")
        assert done.status == 125 and done.error_code == "io", done
