"""`workcell run`: text and JSON, where cells come from, exit status, flags and their errors."""
import concurrent.futures
import json
import os
import re
import signal

import pytest

import support
from support import run_cells, workcell


def run_text(*args, **options):
    return workcell("run", "--python", support.bare_python(), *args, **options)


# ---- text --------------------------------------------------------------------------------------------------


def test_value_is_printed_as_ipython_prints_it():
    done = run_text("-e", "1 + 1", "-e", "'text'", "-e", "None", "-e", "5;", "-e", "x = 3", "-e", "[1, 2]")
    assert (done.status, done.out, done.err) == (0, "2\n'text'\n[1, 2]\n", "")


def test_long_values_are_broken_into_lines_as_ipython_does():
    done = run_text("-e", "{'key %d' % i: list(range(12)) for i in range(3)}")
    lines = done.out.splitlines()
    assert done.status == 0
    assert lines == ["{'key 0': [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],",
                     " 'key 1': [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],",
                     " 'key 2': [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}"]


def test_value_starts_on_its_own_line():
    assert run_text("-e", "print('no newline', end='')\n5").out == "no newline\n5\n"


def test_streams_stay_apart():
    done = run_text("-e", "import sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert (done.status, done.out, done.err) == (0, "out\n", "err\n")


def test_state_is_shared_by_cells():
    done = run_text("-e", "x = 6", "-e", "x * 7")
    assert (done.status, done.out) == (0, "42\n")


def test_display_prints_text():
    assert run_text("-e", "display([1])\nprint('after')").out == "[1]\nafter\n"


def test_output_is_streamed_while_the_cell_runs(tmp_path):
    """The cell waits for an answer to what it printed: that can only come if the print came first."""
    go = tmp_path / "go"
    code = ("import os\nprint('first', flush=False)\nwhile not os.path.exists(%r): pass\nprint('second')" % str(go))
    process = support.popen([support.BIN, "run", "--python", support.bare_python(), "-e", code],
                            stdout=support.subprocess.PIPE, stderr=support.subprocess.PIPE,
                            env=support.host_environment())
    assert process.stdout.readline() == b"first\n"
    go.write_text("")
    out, err = process.communicate(timeout=support.DEADLINE)
    assert (process.returncode, out, err) == (0, b"second\n", b"")


def test_order_of_streams_on_one_descriptor():
    """With 2>&1, as an agent's harness would run it, the two streams come in the order written."""
    code = "import sys, os\nfor i in range(20):\n    print('o', i)\n    print('e', i, file=sys.stderr)\n    os.system('echo c %d' % i)\n"
    process = support.popen([support.BIN, "run", "--python", support.bare_python(), "-e", code + "pass"],
                            stdout=support.subprocess.PIPE, stderr=support.subprocess.STDOUT,
                            env=support.host_environment())
    out, _ = process.communicate(timeout=support.DEADLINE)
    assert out.decode() == "".join("o %d\ne %d\nc %d\n" % (i, i, i) for i in range(20))
    assert process.returncode == 0


def test_bytes_come_through_unchanged():
    done = run_text("-e",
                    "import os, sys\nos.write(1, b'raw \\xff\\xfe\\n')\nsys.stdout.buffer.write(b'\\x80\\n');")
    assert done.raw_out == b"raw \xff\xfe\n\x80\n"


def test_errors_go_to_stderr():
    done = run_text("-e", "print('before')\n1 / 0")
    assert (done.status, done.out) == (1, "before\n")
    assert done.err.rstrip().endswith("ZeroDivisionError: division by zero") and "\x1b" not in done.err


# ---- where cells come from ---------------------------------------------------------------------------------


def test_file(tmp_path):
    path = tmp_path / "cell.py"
    path.write_text("import sys\nx = 'from file'\nprint(x)\nlen(x)\n")
    done = run_text(path)
    assert (done.status, done.out) == (0, "from file\n9\n")


def test_stdin_is_one_cell():
    done = run_text("-", stdin=b"x = 2\n\ndef f():\n\n    return x\n\nf()\n")
    assert (done.status, done.out) == (0, "2\n")


def test_cells_and_a_file_run_in_the_order_given(tmp_path):
    path = tmp_path / "cell.py"
    path.write_text("print('file', x)\nx += 1\n")
    assert run_text("-e", "x = 1", path, "-e", "x").out == "file 1\n2\n"


def test_stdin_is_never_the_kernels():
    done = run_text("-e", "import sys\nsys.stdin.read()", stdin=b"secret of the host")
    assert (done.status, done.out) == (0, "''\n")


def test_empty_file(tmp_path):
    path = tmp_path / "empty.py"
    path.write_text("")
    done = run_text(path)
    assert (done.status, done.out, done.err) == (0, "", "")


def test_first_failure_stops():
    done = run_text("-e", "print(1)", "-e", "1/0", "-e", "print(3)")
    assert (done.status, done.out) == (1, "1\n")


def test_keep_going():
    done = run_text("--keep-going", "-e", "1/0", "-e", "print(3)")
    assert (done.status, done.out) == (1, "3\n")


# ---- JSON --------------------------------------------------------------------------------------------------


def test_json_shape():
    done = run_cells("import sys\nprint('o')\nprint('e', file=sys.stderr)\n{'a': 1}")
    assert done.out.count("\n") == 1 and done.err == ""
    result = done.result
    assert {key: result[key]
            for key in ("value", "repr", "mime", "stdout", "stderr", "text", "error", "images", "state",
                                         "displays", "spill")} == {
        "value": {"a": 1}, "repr": "{'a': 1}", "mime": {"text/plain": "{'a': 1}"}, "stdout": "o\n",
        "stderr": "e\n",
        "text": "o\ne\n", "error": None, "images": [], "state": "kept", "displays": [], "spill": None}
    assert isinstance(result["duration_ms"], float) and result["duration_ms"] > 0
    assert result["isolation"] and isinstance(result["isolation"], dict)
    assert re.fullmatch(r"[\w-]+", result["session_id"])


def test_json_is_one_object_a_cell():
    results = run_cells("x = 1", "x + 1", "print(x)").results
    assert [r["value"] for r in results] == [None, 2, None]
    assert len({r["session_id"] for r in results}) == 1
    assert results[0]["repr"] is None and results[0]["mime"] == {}


def test_json_error():
    done = run_cells("def f():\n    raise ValueError('bad')\nf()")
    assert done.status == 1
    error = done.result["error"]
    assert (error["type"], error["message"], error["code"]) == ("ValueError", "bad", "exception")
    assert "raise ValueError('bad')" in error["traceback"] and "line 2" in error["traceback"]


def test_receipt_names_the_executor():
    isolation = run_cells("1").result["isolation"]
    assert "subprocess" in json.dumps(isolation) and "process" in json.dumps(isolation)


def test_events():
    done = run_cells("print('a')\ndisplay(1)\nprint('b')\n2", flags=["--events"])
    events = done.objects
    assert events[-1]["event"] == "result" and events[-1]["value"] == 2
    display = [e["event"] for e in events].index("display")
    assert events[display]["mime"] == {"text/plain": "1"}
    # How output is cut into chunks is nobody's promise, its order is.
    assert "".join(e["data"] for e in events[:display]) == "a\n"
    assert "".join(e["data"] for e in events[display + 1:-1]) == "b\n"
    assert {e["stream"] for e in events if e["event"] == "chunk"} == {"stdout"}


def test_displays_and_output_keep_their_order():
    done = run_cells("for i in range(2000):\n    print('p%d' % i)\n    display(i)\n    if i % 50 == 0:\n        !echo c{i}", flags=["--events"])
    parts = [e["data"] if e["event"] == "chunk" else "d" + e["mime"]["text/plain"] + "\n"
             for e in done.objects[:-1]]
    want = "".join("p%d\nd%d\n" % (i, i) + ("c%d\n" % i if i % 50 == 0 else "") for i in range(2000))
    assert "".join(parts) == want


def test_events_never_split_a_character():
    done = run_cells("import os\nfor b in '🐍'.encode() * 50:\n    os.write(2, bytes([b]))\n0",
                     flags=["--events"])
    data = "".join(e["data"] for e in done.objects if e["event"] == "chunk")
    assert data == "🐍" * 50
    assert all(e["stream"] == "stderr" for e in done.objects if e["event"] == "chunk")


def test_conversation_rejects_bad_lines_and_goes_on():
    lines = [b"not json", b"[1]", b"{}", b'{"op": "nosuch"}', b'{"code": 5}', b'{"code": "1", "timeout": -1}',
             b"",
             b'{"code": "1 + 1"}', b"\xff\xfe"]
    done = workcell("run", "--json", "--cells", "--python", support.bare_python(),
                    stdin=b"\n".join(lines) + b"\n")
    objects = done.objects
    assert [o["error"]["code"] for o in objects if "value" not in o] == ["invalid"] * 7
    assert [o["value"] for o in objects if "value" in o] == [2]


# ---- exit status -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code, status, word", [
    ("1", 0, None),
    ("1/0", 1, "exception"),
    ("import sys; sys.exit(0)", 0, "exception"),
    ("x = (", 1, "exception"),
    ("while True: pass", 124, "timeout"),
    ("import os; os._exit(0)", 137, "kernel_died"),
    ("import os; os.kill(os.getpid(), 9)", 137, "kernel_died"),
])
@pytest.mark.parametrize("mode", ["text", "json"])
def test_exit_status(code, status, word, mode):
    done = run_cells(code, flags=["--timeout", "0.5"]) if mode == "json" else run_text("--timeout", "0.5",
                                                                                       "-e", code)
    assert done.status == status, done
    if mode == "json":
        error = done.result["error"]
        assert (error and error["code"]) == word
    elif word in ("timeout", "kernel_died"):
        assert done.error_code == word


def test_many_programs_at_once():
    """Nothing is shared between programs that could be fought over."""
    with concurrent.futures.ThreadPoolExecutor(8) as executor:
        done = list(executor.map(lambda n: run_cells("x = %d" % n, "x * 2"), range(16)))
    assert [d.results[1]["value"] for d in done] == [2 * n for n in range(16)]
    assert len({d.results[0]["session_id"] for d in done}) == 16


# ---- usage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [
    ["run", "--nosuch", "-e", "1"],
    ["run", "-x"],
    ["run", "-e"],
    ["run"],
    ["run", "--timeout", "abc", "-e", "1"],
    ["run", "--timeout", "-1", "-e", "1"],
    ["run", "--timeout", "nan", "-e", "1"],
    ["run", "--timeout", "-e", "1"],
    ["run", "--max-output", "-5", "-e", "1"],
    ["run", "--max-output", "x", "-e", "1"],
    ["run", "--max-output", "99999999999999999999", "-e", "1"],
    ["run", "--pool", "many", "-e", "1"],
    ["run", "--pool", "1000000", "-e", "1"],
    ["run", "--env", "NOEQUALS", "-e", "1"],
    ["run", "--env", "=v", "-e", "1"],
    ["run", "--json=yes", "-e", "1"],
    ["nosuchcommand"],
    ["--nosuch"],
    ["shell", "--nosuch"],
    ["doctor", "--nosuch"],
    ["doctor", "stray"],
], ids=" ".join)
def test_usage_errors(args):
    done = workcell(*args)
    assert (done.status, done.error_code, done.out) == (2, "invalid", ""), done
    assert len(done.error_message) > 10


def test_no_command_is_a_usage_error():
    done = workcell()
    assert done.status == 2 and done.out == "" and "usage" in done.err.lower()


@pytest.mark.parametrize("args, word",
                         [(["--json", "--nosuch"], "--nosuch"), (["--cells", "-e", "1"], "--cells")], ids=str)
def test_usage_error_as_json(args, word):
    done = workcell("run", *args)
    assert (done.status, done.error_code) == (2, "invalid")
    (obj,) = done.objects
    assert obj["error"]["code"] == "invalid" and word in obj["error"]["message"]


@pytest.mark.parametrize("make, code", [
    (lambda p: p / "missing.py", "not_found"),
    (lambda p: p, "invalid"),
], ids=["missing", "directory"])
def test_unreadable_file(tmp_path, make, code):
    done = run_text(make(tmp_path))
    assert (done.status, done.error_code) == (support.EXIT[code], code), done
    assert str(tmp_path) in done.error_message


def test_file_without_permission(tmp_path):
    """Root may read anything, so this one is run as nobody."""
    path = tmp_path / "secret.py"
    path.write_text("1")
    path.chmod(0)
    tmp_path.chmod(0o755)
    argv = [support.BIN, "run", "--json", str(path)]
    drop = None
    if os.geteuid() == 0:
        def drop():
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
    try:
        process = support.popen(argv, stdout=support.subprocess.PIPE, stderr=support.subprocess.PIPE,
                                preexec_fn=drop,
                                env=support.host_environment(), cwd="/")
    except PermissionError:
        pytest.skip("nobody may not run a program below %s" % os.path.dirname(support.BIN))
    out, err = process.communicate(timeout=support.DEADLINE)
    assert process.returncode == 1, err
    assert json.loads(out)["error"]["code"] == "forbidden"


def test_executor_that_is_not_there(tmp_path):
    done = run_cells("1", flags=["--executor", "nosuch", "--cwd", tmp_path])
    assert done.error_code == "invalid" and "nosuch" in done.error_message, done
    assert done.status == support.EXIT["invalid"] and [o for o in done.objects if "value" in o] == []


def test_bad_cwd(tmp_path):
    done = run_cells("1", flags=["--cwd", tmp_path / "missing"])
    assert (done.status, done.error_code) == (support.EXIT["not_found"], "not_found")
    assert str(tmp_path / "missing") in done.error_message
    path = tmp_path / "file"
    path.write_text("")
    done = run_cells("1", flags=["--cwd", path])
    assert (done.status, done.error_code) == (support.EXIT["io"], "io")


def test_error_object_and_sentence_agree():
    done = run_cells("1", python="/nonexistent/python")
    (obj,) = done.objects
    assert obj["error"]["code"] == done.error_code == "python_unusable"
    assert obj["error"]["message"] in done.err


# ---- help and version --------------------------------------------------------------------------------------


def test_version():
    done = workcell("--version")
    assert done.status == 0 and re.fullmatch(r"workcell \d+\.\d+\.\d+\S*\n", done.out)


@pytest.mark.parametrize("command", [[], ["run"], ["shell"], ["doctor"], ["bench"]], ids=lambda c: " ".join(c)
                         or "itself")
def test_help(command):
    done = workcell(*command, "--help")
    assert done.status == 0 and done.err == ""
    assert "usage: workcell" in done.out
    if command:
        assert re.search(r"^examples?:\n +workcell %s" % command[0], done.out, re.M)
    else:
        for name in ("run", "shell", "doctor", "bench"):
            assert re.search(r"^ +%s " % name, done.out, re.M)


def test_help_of_run_names_every_flag():
    text = workcell("run", "--help").out
    for flag in ("-e", "--json", "--events", "--executor", "--python", "--preload", "--cwd", "--env",
                 "--timeout",
                 "--grace", "--max-output", "--pool"):
        assert flag in text


# ---- signals and readers that go away ----------------------------------------------------------------------


def test_reader_that_goes_away():
    process = support.popen([support.BIN, "run", "--python", support.bare_python(), "-e",
                             "while True:\n    print('x' * 1000)"],
                            stdout=support.subprocess.PIPE, stderr=support.subprocess.PIPE,
                            env=support.host_environment())
    process.stdout.readline()
    process.stdout.close()
    process.wait(support.DEADLINE)
    process.stderr.close()
    assert process.returncode in (128 + signal.SIGPIPE, -signal.SIGPIPE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_signals_end_the_program_and_all_below_it(number):
    process = support.popen([support.BIN, "run", "--python", support.bare_python(), "-e",
                             "import subprocess\np = subprocess.Popen(['sleep', '1000'])\nprint('up')\nwhile True: pass"],
                            stdout=support.subprocess.PIPE, stderr=support.subprocess.PIPE,
                            env=support.host_environment())
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    process.communicate(timeout=support.DEADLINE)
    assert process.returncode in (128 + number, -number)  # the harness sees to it that nothing is left


def test_sigint_interrupts_the_cell():
    process = support.popen([support.BIN, "run", "--json", "--events", "--python", support.bare_python(),
                             "-e",
                             "print('up')\nwhile True: pass"],
                            stdout=support.subprocess.PIPE, stderr=support.subprocess.PIPE,
                            env=support.host_environment())
    assert json.loads(process.stdout.readline())["data"].startswith("up")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=support.DEADLINE)
    result = json.loads(out.splitlines()[-1])
    assert result["error"]["code"] == "interrupted" and result["state"] == "kept", err
    assert process.returncode == 1
