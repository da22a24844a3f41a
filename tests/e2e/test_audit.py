"""workcell audit: what it shows of a log, in which order, and of a log that has suffered."""
import json
import os
import queue
import re
import subprocess
import threading

import pytest

import support
from test_pages import environment, run_page
from test_space_cli import fails


def record(number, **fields):
    base = {"time": "2026-01-%02dT00:00:00.000Z" % (number % 28 + 1), "session": "5e55107%d" % (number % 3), "cell": None,
            "request": str(number), "kind": "tool", "tool": "grep", "callable": "find", "adapter": "cli",
            "executor": "subprocess", "args": {"n": number}, "decision": "allow", "by": "policy", "rule": 1,
            "rule_name": "reading", "duration_ms": 1.5, "outcome": "ok", "code": None, "error": None}
    base.update(fields)
    return base


def lines(*records):
    return "".join(json.dumps(each) + "\n" for each in records)


@pytest.fixture
def log(tmp_path):
    """Three files: 0 to 2 in the oldest, 3 to 5, and 6 to 8."""
    path = tmp_path / "audit.jsonl"
    for name, first in (("audit.jsonl.2", 0), ("audit.jsonl.1", 3), ("audit.jsonl", 6)):
        (tmp_path / name).write_text(lines(*[record(n) for n in range(first, first + 3)]))
    return path


def requests(done):
    assert done.status == 0, done
    return [int(each["request"]) for each in done.objects]


def test_help_and_usage(log, tmp_path):
    done = support.workcell("audit", "--help")
    assert done.status == 0 and done.out.startswith("usage: workcell audit "), done
    assert all(len(line) <= 120 for line in done.out.splitlines()), done
    assert re.search(r"^  audit +\S", support.workcell("--help").out, re.M)
    fails(support.workcell("audit"), "invalid")
    fails(support.workcell("audit", "show"), "invalid")
    fails(support.workcell("audit", "list", log), "invalid")
    fails(support.workcell("audit", "show", log, "extra"), "invalid")
    fails(support.workcell("audit", "show", log, "-f"), "invalid")
    fails(support.workcell("audit", "show", log, "--since", "yesterday"), "invalid")
    fails(support.workcell("audit", "show", log, "--tool", "a["), "invalid")
    fails(support.workcell("audit", "show", tmp_path / "none"), "not_found")
    fails(support.workcell("audit", "tail", tmp_path), "io")
    done = fails(support.workcell("audit", "show", tmp_path / "none", "--json"), "not_found")
    assert json.loads(done.out)["error"]["code"] == "not_found"


def test_rotated_files_come_first(log):
    assert requests(support.workcell("audit", "show", log, "--json")) == list(range(9))
    done = support.workcell("audit", "show", log)
    assert done.status == 0 and len(done.out.splitlines()) == 9
    assert re.findall(r'\{"n":(\d)\}', done.out) == [str(n) for n in range(9)]


def test_json_is_the_line_itself(tmp_path):
    odd = '{"time": "x",  "n": 1.0, "big": 123456789012345678, "s": "\\u00e9"}'
    (tmp_path / "a").write_text(odd + "\n")
    assert support.workcell("audit", "show", tmp_path / "a", "--json").out == odd + "\n"


def test_rows(tmp_path):
    path = tmp_path / "a"
    path.write_text(lines(
        record(0),
        record(1, tool="shell", callable=None, kind="shell", decision="rejected", by="person", rule=None, rule_name=None,
               outcome="error", code="rejected", error="no\nreally"),
        record(2, decision="deny", rule=None, rule_name=None, outcome="error", code="rejected", error="denied"),
        record(3, args={"text": "\u00e9" * 200}, rule_name=None),
        {"time": "2026-01-05T00:00:00.000Z", "kind": "audit", "lost": 3, "outcome": "error", "code": "io",
         "error": "3 records could not be kept"},
        {"something": "else"}))
    done = support.workcell("audit", "show", path)
    assert done.status == 0 and done.err == "", done
    rows = [re.split(r"  +", row) for row in done.out.splitlines()]
    assert rows[0] == ["2026-01-01T00:00:00.000Z", "5e551070", "grep.find", "allow (rule 1: reading)", "ok 1.5 ms", '{"n":0}']
    assert rows[1][2:] == ["shell", "rejected (person)", "rejected 1.5 ms", "no"]
    assert rows[2][3] == "deny (policy)"
    assert rows[3][3] == "allow (rule 1)" and rows[3][5].endswith("...") and len(rows[3][5]) < 110
    assert rows[4] == ["2026-01-05T00:00:00.000Z", "audit", "io", "3 records could not be kept"]
    assert len(rows) == 6


def test_filters(log):
    with open(log, "a", encoding="utf-8") as file:
        file.write(lines(record(9, tool="git", callable="push", decision="deny"), record(10, session="other", decision="timeout")))

    def show(*flags):
        return requests(support.workcell("audit", "show", log, "--json", *flags))

    assert show("--session", "5e551071") == [1, 4, 7]
    assert show("--session", "5e55") == list(range(10))
    assert show("--tool", "git") == [9] and show("--tool", "g*.p*") == [9] and show("--tool", "git.log") == []
    assert show("--decision", "deny") == [9] and show("--decision", "timeout") == [10]
    assert show("--since", "2026-01-09") == [8, 9, 10]
    assert show("--since", "2026-01-09T00:00:00.001Z") == [9, 10]
    assert show("--since", "1d") == []
    assert show("--session", "5e", "--tool", "grep", "--since", "2026-01-08") == [7, 8]


def test_bad_lines_are_named_and_skipped(log, tmp_path):
    (tmp_path / "audit.jsonl.1").write_text("garbage\n" + lines(record(4)) + '{"torn": ')
    with open(log, "ab") as file:
        file.write(b"\xff\xfe\n[]\n" + b"x" * (3 << 20) + b"\n" + lines(record(9)).encode() + b'{"time": "2026')
    done = support.workcell("audit", "show", log, "--json")
    assert requests(done) == [0, 1, 2, 4, 6, 7, 8, 9]
    assert done.err.splitlines() == [
        "workcell: %s.1:1: not a JSON object; skipped" % log,
        "workcell: %s.1:3: truncated: the line has no end; skipped" % log,
        "workcell: %s:4: not a JSON object; skipped" % log,
        "workcell: %s:5: not a JSON object; skipped" % log,
        "workcell: %s:6: longer than a record can be; skipped" % log,
        "workcell: %s:8: truncated: the line has no end; skipped" % log,
    ]


def test_tail(log):
    def tail(*flags):
        return requests(support.workcell("audit", "tail", log, "--json", *flags))

    assert tail() == list(range(9))
    assert tail("-n", "2") == [7, 8]
    assert tail("-n5") == [4, 5, 6, 7, 8]
    assert tail("-n", "0") == []
    with open(log, "a", encoding="utf-8") as file:
        file.write(lines(*[record(n) for n in range(9, 30)]))
    assert tail() == list(range(20, 30))
    assert len(support.workcell("audit", "tail", "-n", "3", log).out.splitlines()) == 3


class Follower:
    """`workcell audit tail -f --json`, and what it says."""

    def __init__(self, path, *flags):
        self.process = support.popen([support.BIN, "audit", "tail", "-f", "--json", str(path), *flags],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=support.host_environment())
        self.lines = queue.Queue()
        self.thread = threading.Thread(target=lambda: [self.lines.put(line) for line in self.process.stdout])
        self.thread.start()

    def expect(self, *numbers):
        assert [int(json.loads(self.lines.get(timeout=support.DEADLINE))["request"]) for _ in numbers] == list(numbers)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.terminate()
        self.process.wait()
        self.thread.join()
        self.process.stdout.close()
        self.process.stderr.close()


def test_follow_across_rotations(log):
    def add(path, *numbers):
        with open(path, "a", encoding="utf-8") as file:
            file.write(lines(*[record(n) for n in numbers]))

    with Follower(log, "-n", "1") as follower:
        follower.expect(8)
        add(log, 9)
        follower.expect(9)
        add(log, 10, 11)
        for number in (2, 1):
            os.rename("%s.%d" % (log, number), "%s.%d" % (log, number + 1))
        os.rename(log, "%s.1" % log)
        add(log, 12)
        follower.expect(10, 11, 12)
        add(log, 13)
        follower.expect(13)


def test_many_records(tmp_path):
    path = tmp_path / "a"
    path.write_text(lines(*[record(n, tool="t" * (n % 40 + 1)) for n in range(1500)]))
    done = support.workcell("audit", "show", path)
    assert done.status == 0
    assert re.findall(r'\{"n":(\d+)\}', done.out) == [str(n) for n in range(1500)]


def test_a_reader_that_goes_away(log):
    with open(log, "a", encoding="utf-8") as file:
        file.write(lines(*[record(n) for n in range(9, 20000)]))
    done = subprocess.run(["bash", "-c", '"$0" audit show "$1" | head -1; echo "${PIPESTATUS[0]}"', support.BIN, str(log)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=support.host_environment(), check=True,
                          timeout=support.DEADLINE)
    assert done.stdout.splitlines()[1] == b"141" and done.stderr == b"", done


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    path = tmp_path / "a"
    path.write_text(lines(record(0, tool="x\x1b[31my\x9b", error="a\x1b]0;title\x07b", outcome="error", session="\x1b\x1b")))
    done = support.workcell("audit", "show", path)
    assert done.status == 0 and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.out), done


def test_the_examples_of_the_docs_do_what_they_say(tmp_path):
    one = record(0, time="2026-11-15T05:06:40.123Z", session="5e5510703f", args={"file": "a.txt"}, duration_ms=2.417)
    asked = {"rule": None, "rule_name": None, "outcome": "error", "code": "rejected"}
    two = record(1, time="2026-11-15T05:06:41.500Z", session="5e5510703f", kind="shell", tool="shell", callable=None,
                 args={"cmd": "git push --force"}, decision="rejected", by="person", duration_ms=812, error="not now", **asked)
    three = record(2, time="2026-11-15T05:07:02.007Z", session="a77ac4ed11", tool="shop", callable="order", decision="timeout",
                   by="timeout", duration_ms=60000.25, error="nobody answered", **asked)
    (tmp_path / "audit.jsonl").write_text(lines(one, two, three))
    run_page("docs/audit.md", tmp_path, environment(tmp_path), True)
