"""`workcell batch`: many cells, each in a fork of one session's state."""
import json
import subprocess

import pytest

import support


def batch(*flags, text):
    done = subprocess.run([support.BIN, "batch", *flags], input=text.encode(), capture_output=True, timeout=support.DEADLINE)
    return done.returncode, [json.loads(line) for line in done.stdout.decode().splitlines()], done.stderr.decode()


@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
def test_runs_and_their_limits(executor, tmp_path):
    runs = ["x + 1", {"code": "while True: pass", "timeout": 0.3}, {"code": "import os; os._exit(3)"},
            {"code": "len(bytearray(60_000_000))", "memory": 32 << 20}, {"code": "print('y' * 100_000)", "max_output": 4096}]
    runs += ["x + %d" % n for n in range(2, 60)]
    text = "\n\n".join(json.dumps(run) for run in runs)
    status, lines, _ = batch("--executor", executor, "--cwd", tmp_path, "-c", "4", "-e", "x = 40", "-", text=text)
    found = {line["index"]: line["result"] for line in lines}
    assert status == 1 and sorted(found) == list(range(len(runs)))
    assert found[0]["value"] == 41 and all(found[n + 3]["value"] == 40 + n for n in range(2, 60))
    assert [found[i]["error"]["code"] for i in (1, 2)] == ["timeout", "kernel_died"] and found[3]["error"]["type"] == "MemoryError"
    assert len(found[4]["stdout"]) < 5000 and found[0]["isolation"]["executor"] == executor


def test_status_and_bad_input(tmp_path):
    assert batch("-", text='"1"\n"2"')[0] == 0
    (tmp_path / "runs").write_text('"40 + 2"')
    assert [line["result"]["value"] for line in batch(tmp_path / "runs", text="")[1]] == [42]
    for text, message in (("nonsense", "line 1 is not JSON"), ('"1"\n[1]', "line 2: expected code"), ('{"code": "1", "x": 1}', "unknown member x"),
                          ('{"code": "1", "timeout": 0}', "timeout must be"), ("\n", "no runs"), ('{"code": "1", "memory": "1"}', "memory must be")):
        status, lines, words = batch("-", text=text)
        assert (status, lines) == (2, []) or message in str(lines), (text, lines)
        assert message in words + str(lines)
    assert batch(text="")[0] == 2
    status, lines, words = batch("-e", "1/0", "-", text='"1"')
    assert status == 2 and "ZeroDivisionError" in words + str(lines)
