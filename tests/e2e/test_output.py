"""Output: caps and spilling, floods, bytes that are no text, what comes between cells."""
import glob
import os
import re
import uuid

import pytest

import support
from support import run_cells

MIB = 1 << 20


def spilled(result):
    """The content of the spill file, which is then removed: the program keeps it for the caller."""
    path = result["spill"]
    assert path and os.path.isabs(path)
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    return data


def check_capped(kept, full, cap):
    """Head and tail of the whole, and a marker between them that names how much was left out."""
    assert len(kept) <= cap + 200
    head = len(os.path.commonprefix([kept, full]))
    tail = len(os.path.commonprefix([kept[::-1], full[::-1]]))
    assert head > cap // 4 and tail > cap // 4, (head, tail)
    marker = kept[head:len(kept) - tail]
    numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", marker)]
    left_out = len(full) - head - tail
    # A newline of the marker may match one of the text by chance.
    assert any(abs(n - left_out) <= 4 for n in numbers), (marker, left_out)


def test_below_the_cap_there_is_no_spill():
    result = run_cells("print('x' * 65535)", flags=["--max-output", "65536"]).result
    assert result["stdout"] == "x" * 65535 + "\n" and result["spill"] is None


def test_one_past_the_cap():
    result = run_cells("print('x' * 65536)", flags=["--max-output", "65536"]).result
    assert spilled(result) == b"x" * 65536 + b"\n"
    assert result["stdout"] != "x" * 65536 + "\n"


def test_cap_and_spill():
    full = "".join("line %07d\n" % i for i in range(20000))
    result = run_cells("for i in range(20000): print('line %07d' % i)",
                       flags=["--max-output", "16384"]).result
    assert result["error"] is None
    check_capped(result["stdout"], full, 16384)
    check_capped(result["text"], full, 16384)
    assert spilled(result) == full.encode()


def test_default_cap_is_one_mebibyte():
    full = "".join("line %07d\n" % i for i in range(200000))
    result = run_cells("for i in range(200000): print('line %07d' % i)").result
    check_capped(result["stdout"], full, MIB)
    assert spilled(result) == full.encode()


def test_spill_holds_both_streams_in_order():
    code = "import sys\nfor i in range(5000):\n    print('o', i)\n    print('e', i, file=sys.stderr)"
    full = "".join("o %d\ne %d\n" % (i, i) for i in range(5000))
    result = run_cells(code, flags=["--max-output", "4096"]).result
    check_capped(result["stdout"], "".join("o %d\n" % i for i in range(5000)), 4096)
    check_capped(result["stderr"], "".join("e %d\n" % i for i in range(5000)), 4096)
    check_capped(result["text"], full, 4096)
    assert spilled(result) == full.encode()


def test_spill_of_child_output():
    result = run_cells("!seq 1 100000", flags=["--max-output", "4096"]).result
    full = "".join("%d\n" % i for i in range(1, 100001))
    check_capped(result["stdout"], full, 4096)
    assert spilled(result) == full.encode()


def test_spill_keeps_the_bytes():
    result = run_cells("import sys\nn = sys.stdout.buffer.write(b'\\xff\\x00' * 8192)",
                       flags=["--max-output", "1024"]).result
    assert spilled(result) == b"\xff\x00" * 8192
    assert "\ufffd" in result["stdout"]


def test_cap_never_cuts_a_character():
    for extra in range(3):
        result = run_cells("print('a' * %d + '🐍' * 20000)" % extra, flags=["--max-output", "4096"]).result
        spilled(result)
        assert "\ufffd" not in result["stdout"]


def test_the_smallest_cap():
    result = run_cells("print('h' * 5000)\n5", flags=["--max-output", "1024"]).result
    assert result["value"] == 5 and spilled(result) == b"h" * 5000 + b"\n"
    assert 0 < len(result["stdout"]) < 1300
    for cap in ("0", "1023"):
        done = run_cells("1", flags=["--max-output", cap])
        assert (done.status, done.error_code) == (2, "invalid")


def test_spill_is_private():
    result = run_cells("print('x' * 10000)", flags=["--max-output", "1024"]).result
    assert os.stat(result["spill"]).st_mode & 0o077 == 0
    spilled(result)


def test_each_cell_has_its_own_cap():
    results = run_cells("print('a' * 3000)", "print('b' * 3000)", "print('c')",
                        flags=["--max-output", "1024"]).results
    assert spilled(results[0]) == b"a" * 3000 + b"\n" and spilled(results[1]) == b"b" * 3000 + b"\n"
    assert results[2]["spill"] is None and results[2]["stdout"] == "c\n"


def test_cap_with_an_error():
    result = run_cells("print('a' * 5000)\n1/0", flags=["--max-output", "1024"]).result
    assert result["error"]["type"] == "ZeroDivisionError" and spilled(result) == b"a" * 5000 + b"\n"


def test_what_was_shown_is_in_no_file():
    """In text mode everything was printed: there is nothing to keep, and nothing is left."""
    mark = uuid.uuid4().hex
    done = support.workcell("run", "--python", support.bare_python(), "--max-output", "1024", "-e", "print(%r, 'x' * 3000)" % mark)
    assert (done.out, done.err) == (mark + " " + "x" * 3000 + "\n", ""), done
    for path in glob.glob("/tmp/workcell-*.txt"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                assert file.read(32) != mark, path
        except OSError:
            pass  # another's


def test_large_values_and_messages_arrive():
    results = run_cells("'v' * (7 << 20)", "'w' * (20 << 20)", "raise ValueError('m' * (20 << 20))").results
    assert results[0]["value"] == "v" * (7 << 20)
    # Past what a value may be there is the repr, with its middle left out.
    assert results[1]["value"] is None and 1000 < len(results[1]["repr"]) < (2 << 20)
    assert results[2]["error"]["type"] == "ValueError" and len(results[2]["error"]["message"]) < (2 << 20)


def test_a_value_too_large_for_a_frame():
    results = run_cells("b = 'v' * (80 << 20)\nb", "len(b)", flags=["--keep-going"]).results
    assert results[-1]["value"] == 80 << 20, "the kernel lives and the state is kept"
    assert results[0]["state"] == "kept"
    assert results[0]["value"] is None


def test_a_display_too_large_for_a_frame():
    code = ("class B:\n    def _repr_html_(self): return 'h' * (80 << 20)\n    def __repr__(self): return 'B'\n"
            "x = 1\ndisplay(B())")
    results = run_cells(code, "x", flags=["--keep-going"]).results
    assert results[-1]["value"] == 1 and results[0]["state"] == "kept"


def test_invalid_utf8_in_every_way():
    code = ("import os, sys\nos.write(1, b'\\xff|\\xc3|\\xe2\\x82|\\xf0\\x9f\\x90|\\xed\\xa0\\x80|\\xc0\\x80|ok\\n')\n"
            "os.write(2, b'\\x80\\n');")
    result = run_cells(code).result
    assert result["stdout"].startswith("\ufffd|\ufffd|\ufffd|\ufffd|") and result["stdout"].endswith("|ok\n")
    assert result["stderr"] == "\ufffd\n"


# ---- between cells -----------------------------------------------------------------------------------------


def late(code, go, done):
    """A thread that runs code when the file `go` appears, and makes the file `done` after that."""
    return ("import threading, os, sys, subprocess\ndef late():\n    while not os.path.exists(%r): pass\n    %s\n"
            "    open(%r, 'w').close()\nt = threading.Thread(target=late)\nt.start()\nprint('early')"
            % (str(go), code, str(done)))


@pytest.mark.parametrize("code, stream", [
    ("print('late')", "stdout"),
    ("print('late', file=sys.stderr)", "stderr"),
    ("os.write(1, b'late\\n')", "stdout"),
    ("subprocess.run(['echo', 'late'])", "stdout"),
], ids=["print", "stderr", "descriptor", "child"])
def test_output_between_cells_is_an_event(drive, tmp_path, code, stream):
    driver = drive()
    for n in range(10):
        go, done = tmp_path / ("go%d" % n), tmp_path / ("done%d" % n)
        assert driver.run(late(code, go, done))["stdout"] == "early\n"
        driver.events.clear()
        go.write_text("")
        support.wait_until(done.exists, "the thread wrote")
        result = driver.run("t.join()\nprint('next')")
        assert (result["stdout"], result["stderr"], result["text"]) == ("next\n", "", "next\n")
        events = [e for e in driver.events if e["event"] == "chunk" and e.get("between_runs")]
        assert "".join(e["data"] for e in events) == "late\n" and {e["stream"] for e in events} == {stream}


def test_output_between_cells_does_not_wait_for_the_next_one(drive, tmp_path):
    driver = drive()
    go, done = tmp_path / "go", tmp_path / "done"
    driver.run(late("print('late')", go, done))
    go.write_text("")
    assert driver.next_event(lambda e: "late" in e.get("data", ""))["between_runs"] is True


def test_output_of_a_thread_during_a_later_cell_belongs_to_it(drive, tmp_path):
    driver = drive()
    go, done = tmp_path / "go", tmp_path / "done"
    driver.run(late("print('meanwhile')", go, done))
    result = driver.run("open(%r, 'w').close()\nt.join()" % str(go))
    assert result["stdout"] == "meanwhile\n"


def test_a_flood_between_cells_does_not_grow_the_host(drive, tmp_path):
    driver = drive()
    go, done = tmp_path / "go", tmp_path / "done"
    driver.run("1")
    before = support.peak_rss_bytes(driver.pid)
    driver.run(late("for _ in range(2000): sys.stdout.write('f' * 100000)", go, done))
    go.write_text("")
    support.wait_until(done.exists, "the flood is over")
    assert driver.value("t.join()\n7") == 7
    assert support.peak_rss_bytes(driver.pid) < before + support.memory(64)


# ---- floods ------------------------------------------------------------------------------------------------

GIGABYTE = {
    "print": "import sys\nblock = ('x' * 99 + '\\n') * 10000\nfor _ in range(1024): sys.stdout.write(block)\nlen(block) * 1024",
    "child": "!yes 0123456789012345678901234567890123456789 | head -c 1024000000",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", GIGABYTE)
def test_a_gigabyte_neither_grows_the_host_nor_holds_others_up(drive, how, tmp_path):
    driver, other = drive("--timeout", "300", events=False), drive()
    driver.run("1")
    other.run("x = 1")
    before = support.peak_rss_bytes(driver.pid)
    driver.start("open(%r, 'w').close()\n" % str(tmp_path / "up") + GIGABYTE[how])
    support.wait_until((tmp_path / "up").exists, "the flood has begun")
    answered = [other.value("x + %d" % i) for i in range(20)]
    assert answered == [1 + i for i in range(20)]
    result = driver.answer(deadline=300)
    assert result["error"] is None and len(result["stdout"]) <= MIB + 200
    path = result["spill"]
    size = os.path.getsize(path)
    os.unlink(path)
    assert size == 1024000000
    grown = support.peak_rss_bytes(driver.pid) - before
    assert grown < support.memory(64), grown
    assert driver.value("2") == 2

