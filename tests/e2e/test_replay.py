"""`--record` and `workcell replay`: what is recorded, what is given back, differences, hostile files."""
import json

import pytest

import support
from support import workcell

PYTHON = ["--python", support.bare_python()]
CHANCE = """
import random, time, datetime, uuid, os, secrets
print(random.random(), random.Random().random(), uuid.uuid4(), os.urandom(5), secrets.token_hex(3))
print(time.time(), time.time_ns(), time.perf_counter(), time.monotonic(), time.ctime(), time.strftime("%c"))
print(datetime.datetime.now(), datetime.datetime.now(datetime.timezone.utc), datetime.date.today(), datetime.datetime.today())
print({"a", "bb", "ccc", "dddd", "eeeee"}, object())
"""
TOOL = """
name: counter
type: cli
command: sh
recipes:
  next:
    description: Counts
    preset: {}
"""


def record(tmp_path, *args, name="r.jsonl"):
    file = tmp_path / name
    done = workcell("run", *PYTHON, "--record", file, *args)
    return file, done


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
def test_time_chance_and_order_are_repeated(tmp_path, executor):
    work = tmp_path / "work"
    work.mkdir()
    file, done = record(tmp_path, "--executor", executor, "--cwd", work, "-e", CHANCE, "-e", "1 + 1", "-e", "x = 5", "-e", "1 / 0")
    assert done.status == 1
    again = workcell("replay", *PYTHON, "--cwd", work, file)
    assert (again.status, again.out) == (0, "%s: 4 cells, the same\n" % file)
    twice, _ = record(tmp_path, "--executor", executor, "--cwd", work, "-e", CHANCE, name="other.jsonl")
    assert lines_of(twice)[-1]["result"]["stdout"] != lines_of(file)[3]["result"]["stdout"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_difference_is_shown_and_ends_the_replay(tmp_path):
    file, _ = record(tmp_path, "-e", "print('one\\ntwo\\nthree')", "-e", "2 + 2", "-e", "3")
    file.write_text(file.read_text().replace("one\\ntwo\\nthree\\n", "one\\nTWO\\nthree\\n"))
    done = workcell("replay", *PYTHON, file)
    assert done.status == 1
    assert done.out.splitlines()[0] == "%s: cell 1 of 3 differs: stdout, line 2" % file
    assert "  - TWO" in done.out and "  + two" in done.out
    answer = json.loads(workcell("replay", *PYTHON, "--json", file).out)
    assert (answer["same"], answer["cells"], answer["same_cells"], answer["difference"]["line"]) == (False, 3, 0, 2)


def replaced(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_an_error_and_a_value_are_compared(tmp_path):
    file, _ = record(tmp_path, "-e", "40 + 2", "-e", "1 / 0")
    text = file.read_text()
    replaced(file, "division by zero", "division by one")
    done = workcell("replay", *PYTHON, file)
    assert done.status == 1 and "cell 2 of 2 differs: error" in done.out
    file.write_text(text)
    replaced(file, '"value_json":"42"', '"value_json":"43"')
    done = workcell("replay", *PYTHON, file)
    assert done.status == 1 and "cell 1 of 2 differs: value_json" in done.out


def test_answers_of_the_host_come_from_the_recording(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    cells = ["-e", "artifacts.save('a', {'n': 1}, description='first')",
             "-e", "print(artifacts.load('a'), artifacts.exists('b'))",
             "-e", "try:\n    tools.nothing()\nexcept Exception as exc:\n    print(type(exc).__name__, exc)",
             "-e", "big = 'x' * 3_000_000; artifacts.save('big', big, description=''); print(len(artifacts.load('big')))"]
    file, done = record(tmp_path, "--base", base, *cells)
    assert done.status == 0, done.err
    calls = [line for line in lines_of(file) if "call" in line]
    assert {"artifacts.load", "artifacts.exists"} & {line["call"]["method"] for line in calls}
    for each in sorted(base.rglob("*"), reverse=True):  # nothing of it is needed
        each.rmdir() if each.is_dir() else each.unlink()
    done = workcell("replay", *PYTHON, file)
    assert (done.status, done.out) == (0, "%s: 4 cells, the same\n" % file)


def test_a_call_that_is_not_in_the_recording_is_a_difference(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    file, done = record(tmp_path, "--base", base, "-e", "n = len(artifacts.list())", "-e", "print('end')")
    assert done.status == 0, done.err
    replaced(file, "n = len(artifacts.list())", "n = 0; artifacts.exists('other')")
    done = workcell("replay", *PYTHON, file)
    assert done.status == 1 and "cell 1 of 2 differs: call" in done.out and "artifacts.exists" in done.out
    replaced(file, "n = 0; artifacts.exists('other')", "n = 0")
    done = workcell("replay", *PYTHON, file)
    assert done.status == 1 and "cell 1 of 2 differs: call" in done.out and "artifacts.list" in done.out


def test_a_recording_that_ends_in_a_cell_is_replayed_up_to_there(tmp_path):
    file, _ = record(tmp_path, "-e", "1", "-e", "2")
    text = file.read_text()
    file.write_text(text[:text.rindex('{"result"') + 5])
    done = workcell("replay", *PYTHON, file)
    assert (done.status, done.out) == (0, "%s: 1 cell, the same; the recording ends in the middle of a cell\n" % file)


def test_a_file_is_not_overwritten_and_not_left_behind(tmp_path):
    file, done = record(tmp_path, "-e", "1")
    assert done.status == 0
    _, done = record(tmp_path, "-e", "1")
    assert done.status == support.EXIT["conflict"] and "workcell: conflict: " in done.err
    missing = workcell("run", *PYTHON, "--record", tmp_path / "no" / "r.jsonl", "-e", "1")
    assert missing.status == support.EXIT["io"] and "workcell: io: " in missing.err
    inside = workcell("run", *PYTHON, "--executor", "sandbox", "--cwd", tmp_path, "--record", tmp_path / "w.jsonl", "-e", "1")
    assert inside.status == support.EXIT["invalid"] and "inside the writable workspace" in inside.err
    assert not (tmp_path / "w.jsonl").exists()


@pytest.mark.parametrize("flags", [["--undo", "3"], ["--allow-fork", "2"], ["--executor", "inprocess"]])
def test_what_cannot_be_recorded_is_refused(tmp_path, flags):
    file, done = record(tmp_path, *flags, "-e", "1")
    assert done.status != 0 and ("record" in done.err)
    assert not file.exists()


HEAD = '{"workcell_recording":1,"seed":"%s"}\n' % ("0" * 32)
HOSTILE = {
    "empty": ("", "damaged"),
    "not JSON": ("hello\n", "damaged"),
    "another file": ('{"a": 1}\n', "damaged"),
    "another version": ('{"workcell_recording": 2, "seed": ""}\n', "differs"),
    "no seed": ('{"workcell_recording": 1}\n', "damaged"),
    "a seed of something else": ('{"workcell_recording": 1, "seed": "%s"}\n' % ("z" * 32), "damaged"),
    "a result without a cell": (HEAD + '{"result": {}}\n', "damaged"),
    "code that is not text": (HEAD + '{"cell": 1, "code": 5}\n', "damaged"),
    "a clock of texts": (HEAD + '{"cell": 1, "code": ""}\n{"clock": {"time": ["x"]}}\n', "damaged"),
    "an answer that is both": (HEAD + '{"call": {"method": "a", "args": {}}, "answer": {"result": 1, "error": 1}}\n', "damaged"),
    "a raw part that is not base64": (HEAD + '{"call": {"method": "a", "args": {}}, "answer": {"result": 1}, "raw": "%"}\n', "damaged"),
    "two results": (HEAD + '{"cell": 1, "code": ""}\n{"result": {}}\n{"result": {}}\n', "damaged"),
    "an unknown line": (HEAD + '{"evil": 1}\n', "damaged"),
    "deep": (HEAD + "[" * 100000 + "\n", "damaged"),
    "a bomb of values": (HEAD + '{"cell": 1, "code": ""}\n{"clock": {"time": [%s]}}\n' % ",".join(["0"] * 20_000_000), "limit"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_refused(tmp_path, what):
    text, code = HOSTILE[what]
    file = tmp_path / "hostile.jsonl"
    file.write_text(text)
    done = workcell("replay", *PYTHON, file)
    assert done.status == 125 and done.err.startswith("workcell: %s: " % code), done.err


def test_a_hostile_result_is_a_difference_and_no_control_sequence_reaches_the_terminal(tmp_path):
    file = tmp_path / "h.jsonl"
    file.write_text(HEAD + json.dumps({"cell": 1, "code": "1"}) + "\n" + json.dumps({"result": {"stdout": "\x1b]0;x\x07", "displays": 5}}) + "\n")
    done = workcell("replay", *PYTHON, file)
    assert done.status == 1 and "\x1b" not in done.out and "differs" in done.out


def test_shell_and_reset_are_recorded(tmp_path):
    file = tmp_path / "s.jsonl"
    lines = '{"code": "x = 1"}\n{"op": "reset"}\n{"code": "\'x\' in globals()"}\n'
    done = workcell("run", *PYTHON, "--cells", "--record", file, stdin=lines.encode())
    assert done.status == 0, done.err
    assert any(line.get("reset") for line in lines_of(file))
    assert workcell("replay", *PYTHON, file).status == 0


def test_a_workflow_carries_its_recording_as_its_test(tmp_path):
    base = tmp_path / "base"
    (base / "workflows").mkdir(parents=True)
    source, recording = base / "workflows" / "double.py", base / "workflows" / "double.test.jsonl"
    source.write_text('"""Doubles."""\ndef run(n: int) -> int:\n    return n * 2\n')
    flags = [*PYTHON, "--base", base]
    assert workcell("workflows", "test", *flags).status == support.EXIT["not_found"]
    done = workcell("workflows", "run", "double", "n=4", *flags, "--record", recording)
    assert (done.status, done.out) == (0, "8\n")
    assert [each["name"] for each in json.loads(workcell("workflows", "list", *flags, "--json").out)] == ["double"]
    source.write_text('"""Doubles."""\ndef run(n: int) -> int:\n    return n + n\n')  # another source with the same result
    done = workcell("workflows", "test", *flags)
    assert (done.status, done.out) == (0, "double: 1 cell, the same\n")
    source.write_text('"""Doubles."""\ndef run(n: int) -> int:\n    return n * 3\n')
    done = workcell("workflows", "test", "double", *flags)
    assert done.status == 1 and "double: cell 1 of 1 differs: value_json" in done.out and "  + 12" in done.out
    done = workcell("workflows", "test", "other", *flags)
    assert done.status == support.EXIT["not_found"] and "workcell: not_found: " in done.err
