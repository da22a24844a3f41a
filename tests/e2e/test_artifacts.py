"""Artifacts: data that outlives the session, of any size, from several processes, and when things break."""
import contextlib
import json
import os
import random
import signal
import subprocess
import textwrap
import threading

import pytest

import spaces
import support

BIG = 256 << 20  # several times what host and kernel may grow by


@pytest.fixture
def base(tmp_path):
    return tmp_path / "base"


@pytest.fixture
def driver(drive, base):
    return drive("--base", base)


@pytest.fixture
def either(drive, storage):
    """On a storage of either kind."""
    return drive(*storage)


def round_trip(driver, expression, check):
    driver.value("import io\nx = %s\nartifacts.save('x', x)\ny = artifacts.load('x')\nNone" % expression)
    return driver.value(check)


# ---- values ------------------------------------------------------------------------------------------------


VALUES = [
    "''", "'h\u00e9 \\n\\t \\U0001f600 \\0'", "'x' * 3_000_000", "b''", "bytes(range(256))", "b'x' * 3_000_001",
    "{}", "[]", "{'a': [1, 2.5, None, True, {'b': 'c'}]}", "list(range(5000))", "{'n': 10 ** 30}", "0.1", "5",
    "-1.5e300", "True", "None", "'5'", "'null'", "[['deep']] * 3"]


@pytest.mark.parametrize("expression", VALUES)
def test_values_come_back_as_they_were(driver, expression):
    assert round_trip(driver, expression, "[type(x) is type(y), x == y]") == [True, True]


def test_values_come_back_from_redis(drive, redis, tmp_path):
    driver = drive("--storage", redis.url(tmp_path.name))
    for expression in VALUES:
        assert round_trip(driver, expression, "[type(x) is type(y), x == y]") == [True, True], expression


def test_defect_11_bytes_are_saved_and_loaded(either):
    """save() failed with TypeError, and load() waited for ever."""
    assert round_trip(either, "bytes(range(256)) * 100", "[type(y).__name__, x == y]") == ["bytes", True]
    assert round_trip(either, "bytearray(b'abc')", "bytes(y) == b'abc'") is True


def test_what_has_no_portable_form_is_refused_with_advice(either):
    for expression, words in [("object()", "object"), ("{1, 2}", "list"), ("lambda: 1", "function"),
                              ("float('nan')", "nan"), ("{'a': object()}", "JSON")]:
        problem = spaces.error(either, "artifacts.save('x', %s)" % expression)
        assert words in problem["message"], problem
    assert either.value("artifacts.exists('x')") is False


def test_dataframes(drive, base, full_python):
    driver = drive("--base", base, python=full_python)
    assert driver.value("""\
import pandas as pd
frame = pd.DataFrame({
    "i": [1, 2, 3], "f": [0.1, None, 1e300], "s": ["a", None, "\\u00e9"], "b": [True, False, True],
    "t": [pd.Timestamp("2020-01-01"), pd.Timestamp("2021-06-01 12:34:56.789"), pd.NaT]}, index=["x", "y", "z"])
artifacts.save("frame", frame)
back = artifacts.load("frame")
same_types = list(map(str, back.dtypes)) == list(map(str, frame.dtypes))
[list(back.columns), list(back.index), same_types, frame.equals(back)]""") == [
        ["i", "f", "s", "b", "t"], ["x", "y", "z"], True, True]
    assert driver.value("s = pd.Series([1.5, 2.5], name='n')\nartifacts.save('s', s)\n"
                        "r = artifacts.load('s')\n[r.equals(s), r.name]") == [True, "n"]


def test_metadata_description_and_time(either):
    either.value("artifacts.save('a/b.txt', 'text', description='what it is', metadata={'k': [1, {'x': None}]})\nNone")
    got = either.value("dict(artifacts.get('a/b.txt'))")
    assert (got["name"], got["description"]) == ("a/b.txt", "what it is")
    assert got["metadata"] == {"k": [1, {"x": None}]}
    assert either.value("from datetime import datetime, timezone\n"
                        "made = artifacts.get('a/b.txt').created_at\n"
                        "abs((datetime.now(timezone.utc) - datetime.fromisoformat(str(made).replace('Z', '+00:00')))"
                        ".total_seconds()) < 60") is True
    either.value("artifacts.save('a/b.txt', 'again')\nNone")
    assert either.value("[artifacts.get('a/b.txt').description, artifacts.get('a/b.txt').metadata]") == ["", {}]
    assert either.value("artifacts.get('nope')") is None


def test_list_exists_delete(driver):
    driver.value("for n in ('b', 'a', 'c/d/e'): artifacts.save(n, n)")
    assert driver.value("[a.name for a in artifacts.list()]") == ["a", "b", "c/d/e"]
    assert driver.value("[artifacts.exists('a'), artifacts.exists('c'), artifacts.exists('x')]") == [True, False, False]
    driver.value("artifacts.delete('a'); artifacts.delete('a'); artifacts.delete('c/d/e')")
    assert driver.value("[a.name for a in artifacts.list()]") == ["b"]
    problem = spaces.error(driver, "artifacts.load('a')")
    assert problem["type"] == "ArtifactNotFoundError" and "Artifact 'a' not found" in problem["message"], problem


def test_artifacts_outlive_the_session(drive, base):
    first = drive("--base", base)
    first.value("artifacts.save('kept', {'n': 1}, 'words', {'m': 2})\nNone")
    first.close()
    second = drive("--base", base)
    assert second.value("[artifacts.load('kept'), artifacts.get('kept').metadata]") == [{"n": 1}, {"m": 2}]


def test_the_layout_is_the_references(driver, base):
    driver.value("artifacts.save('d/data.json', {'a': 1}, 'words', {'m': 2}); artifacts.save('t', 'text'); "
                 "artifacts.save('b', b'\\xff')\nNone")
    assert json.loads((base / "artifacts" / "d" / "data.json").read_text()) == {"a": 1}
    assert (base / "artifacts" / "t").read_text() == "text" and (base / "artifacts" / "b").read_bytes() == b"\xff"
    index = json.loads((base / "artifacts" / ".artifacts.json").read_text())
    assert index["d/data.json"]["description"] == "words"
    assert index["d/data.json"]["metadata"] == {"m": 2, "_data_type": "json"}
    assert [index[n]["metadata"]["_data_type"] for n in ("t", "b")] == ["text", "bytes"]


def test_files_of_a_person_are_artifacts_too(driver, base):
    (base / "artifacts" / "sub").mkdir(parents=True, exist_ok=True)
    (base / "artifacts" / "sub" / "hand.txt").write_text("by hand")
    (base / "artifacts" / "raw.bin").write_bytes(b"\xff\xfe\x00")
    (base / "artifacts" / "data.json").write_text('{"a": 1}')
    assert driver.value("[a.name for a in artifacts.list()]") == ["data.json", "raw.bin", "sub/hand.txt"]
    assert driver.value("[artifacts.load('sub/hand.txt'), artifacts.load('data.json')]") == ["by hand", {"a": 1}]
    assert driver.value("list(artifacts.load('raw.bin'))") == [255, 254, 0]


# ---- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "", ".", "..", "a//b", "a/", "/", "a/./b",
                                  ".artifacts.json", "a\0b", "x" * 2000, "/".join("d" * 40)])
def test_names_that_are_refused(driver, tmp_path, name):
    for call in ("artifacts.save(%r, 'x')", "artifacts.load(%r)"):
        result = driver.run(call % name)
        assert result["error"] is not None, (call, result)
    driver.run("artifacts.delete(%r)" % name)
    assert not (tmp_path / "evil").exists() and not os.path.exists("/etc/evil")
    assert driver.value("artifacts.save('ok', 1); [a.name for a in artifacts.list()]") == ["ok"]


def test_links_do_not_lead_outside(driver, base, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (base / "artifacts").mkdir(parents=True, exist_ok=True)
    os.symlink(str(tmp_path / "outside"), str(base / "artifacts" / "out"))
    os.symlink(str(tmp_path / "outside" / "secret"), str(base / "artifacts" / "link"))
    for code in ("artifacts.load('out/secret')", "artifacts.load('link')", "artifacts.save('out/new', 'x')"):
        assert driver.run(code)["error"] is not None, code
    driver.run("artifacts.save('link', 'x')")
    driver.run("artifacts.delete('out/secret')")
    assert sorted(os.listdir(str(tmp_path / "outside"))) == ["secret"]
    assert (tmp_path / "outside" / "secret").read_text() == "secret"


def test_defect_21_names_with_folders_and_binary_data(driver, base, tmp_path):
    driver.value("artifacts.save('a b/\u00e9/c.bin', bytes(range(256)))\nNone")
    done = support.workcell("artifacts", "get", "a b/\u00e9/c.bin", "--base", base)
    assert done.status == 0 and done.raw_out == bytes(range(256)), done


def test_a_folder_cannot_be_an_artifact_nor_an_artifact_a_folder(driver):
    driver.value("artifacts.save('a/b', 1)\nNone")
    assert driver.run("artifacts.save('a', 2)")["error"] is not None
    assert driver.run("artifacts.save('a/b/c', 2)")["error"] is not None
    assert driver.value("artifacts.load('a/b')") == 1


# ---- size --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_big_file_needs_little_memory(driver, base, tmp_path):
    big = tmp_path / "big"
    with open(str(big), "wb") as file:
        file.truncate(BIG)
        for at in range(0, BIG, BIG // 16):
            file.seek(at)
            file.write(os.urandom(1000))
    kernel = driver.kernel_pid()
    driver.value("artifacts.save('warm', b'x' * 3_000_000); artifacts.load('warm')\nNone")
    before, kernel_before = support.peak_rss_bytes(driver.pid), support.peak_rss_bytes(kernel)
    for call in ("artifacts.save_file('big', %r)\nNone" % str(big),
                 "artifacts.load_to('big', %r)\nNone" % str(tmp_path / "back")):
        assert driver.run(call, timeout=100, deadline=120)["error"] is None
    assert support.peak_rss_bytes(driver.pid) - before < support.memory(48), "the host grew"
    assert support.peak_rss_bytes(kernel) - kernel_before < support.memory(64), "the kernel grew"
    assert subprocess.run(["cmp", str(big), str(tmp_path / "back")], check=False).returncode == 0
    assert subprocess.run(["cmp", str(big), str(base / "artifacts" / "big")], check=False).returncode == 0
    assert driver.value("artifacts.get('big')['size']") == BIG


@pytest.mark.slow
def test_a_big_file_through_the_command_line(base, tmp_path):
    big = tmp_path / "big"
    with open(str(big), "wb") as file:
        file.truncate(BIG)
        file.seek(BIG // 2)
        file.write(os.urandom(1000))
    for args in (["put", "big", str(big)], ["get", "big", str(tmp_path / "back")]):
        process = support.popen([support.BIN, "artifacts"] + args + ["--base", str(base)],
                                env=support.host_environment())
        peaks = []

        def ended():
            # Not ru_maxrss: that begins with the size of the process that forked.
            with contextlib.suppress(OSError, AttributeError):
                peaks.append(support.peak_rss_bytes(process.pid))
            return process.poll() is not None

        support.wait_until(ended, "the command ends", 120)
        assert process.returncode == 0 and max(peaks) < support.memory(48), max(peaks)
    assert subprocess.run(["cmp", str(big), str(tmp_path / "back")], check=False).returncode == 0


def test_an_interrupt_that_swallows_the_hosts_answer_leaves_nothing_open(driver, base):
    """It may come when the answer to "open" was received and nobody has seen it yet."""
    driver.value(textwrap.dedent("""
        artifacts.save('x', b'old')
        channel = artifacts._channel
        def interrupted(method, *args, **more):
            answer = plain(method, *args, **more)
            if method in ('artifacts.save_begin', 'artifacts.load_open'):
                raise KeyboardInterrupt
            return answer
        plain, channel.call = channel.call, interrupted
        for ask in (lambda: artifacts.save('x', b'new'), lambda: artifacts.load('x')):
            for _ in range(20):
                try:
                    ask()
                except KeyboardInterrupt:
                    pass
        channel.call = plain
        None"""))
    assert driver.value("artifacts.load('x').decode()") == "old"
    support.wait_until(lambda: not [name for name in os.listdir(base / "artifacts") if "tmp" in name], "no file is left over")

    def opened():
        return [os.path.realpath("/proc/%d/fd/%s" % (driver.pid, fd)) for fd in os.listdir("/proc/%d/fd" % driver.pid)]

    # The kernel gives them up without waiting for the host, which closes files on its pool.
    support.wait_until(lambda: str(base / "artifacts" / "x") not in opened(), lambda: "closed: %r" % opened())


def test_a_reader_keeps_the_version_it_opened(driver):
    assert driver.value("""\
import threading
artifacts.save("x", b"a" * 20_000_000)
seen, stop = set(), threading.Event()
def writer():
    n = 0
    while not stop.is_set():
        n += 1
        artifacts.save("x", (b"b" if n % 2 else b"a") * 20_000_000)
thread = threading.Thread(target=writer)
thread.start()
for i in range(6):
    data = artifacts.load("x")
    seen.add((len(data), len(set(data))))
stop.set(); thread.join()
sorted(seen)""") is None
    assert driver.value("list(map(list, sorted(seen)))") == [[20000000, 1]]


# ---- several at once, and death ----------------------------------------------------------------------------


WRITER = textwrap.dedent("""\
    import os
    for i in range(40):
        artifacts.save("own/%d/%d" % (who, i), {"who": who, "i": i}, description="d%d" % i, metadata={"m": i})
        artifacts.save("shared", "%d" % who * 5000)
        got = artifacts.load("shared")
        assert len(set(got)) == 1 and len(got) == 5000, got[:50]
        if i % 4 == 3:
            artifacts.delete("own/%d/%d" % (who, i))
    len(artifacts.list())
    """)


def test_defect_16_eight_processes_lose_nothing(base, drive):
    """The index was cached per object and rewritten whole, without a lock."""
    drivers = [drive("--base", base) for _ in range(8)]
    for who, driver in enumerate(drivers):
        driver.value("who = %d" % who)
    for driver in drivers:
        driver.start(WRITER, timeout=100)
    for driver in drivers:
        result = driver.answer(120)
        assert result["error"] is None, result
    found = drivers[0].value("{a.name: [a.description, a.metadata] for a in artifacts.list()}")
    assert found.keys() == {"shared"} | {"own/%d/%d" % (w, i) for w in range(8) for i in range(40) if i % 4 != 3}
    assert all(found["own/%d/%d" % (w, i)] == ["d%d" % i, {"m": i}] for w in range(8) for i in (0, 1, 38))
    index = json.loads((base / "artifacts" / ".artifacts.json").read_text())
    assert set(index) == set(found)
    left = [name for _, _, names in os.walk(str(base / "artifacts")) for name in names if name.startswith(".")]
    assert set(left) <= {".artifacts.json", ".cell-lock"}, left


def test_kill_9_leaves_old_or_new_never_torn(base, drive):
    seed = random.randrange(1 << 30)
    pick = random.Random(seed)
    check = drive("--base", base)
    check.value("artifacts.save('x', 'a' * 300_000, 'a')\nNone")
    for _ in range(12):
        victim = drive("--base", base)
        victim.value("1")
        victim.start("while True:\n    for c in 'abcdef':\n        artifacts.save('x', c * 300_000, c)")
        done = threading.Event()
        done.wait(pick.uniform(0.01, 0.15))
        os.kill(victim.pid, signal.SIGKILL)
        victim.kill()
        got = check.value("data = artifacts.load('x')\n"
                          "[len(data), len(set(data)), data[0] == artifacts.get('x').description]")
        assert got[:2] == [300000, 1], (seed, got)
        assert got[2] is True, "seed %d: the entry and the file are of different saves" % seed
        json.loads((base / "artifacts" / ".artifacts.json").read_text())
    assert check.value("artifacts.save('x', 'new'); artifacts.load('x')") == "new"


# ---- a disk that is full, or read-only ---------------------------------------------------------------------


def test_a_full_disk_keeps_what_was_there(drive, tmp_path):
    with spaces.small_disk(tmp_path / "disk", "2m") as disk:
        driver = drive("--base", disk)
        driver.value("artifacts.save('x', 'old', 'first'); workflows.create('w', 'def run():\\n    return 1')\nNone")
        problem = spaces.error(driver, "artifacts.save('x', b'y' * 8_000_000)")
        assert "space" in problem["message"].lower(), problem
        driver.value("for i in range(100):\n    try:\n        artifacts.save('fill%d' % i, b'z' * 50_000)\n"
                     "    except Exception:\n        break\n")
        driver.run("for i in range(100):\n    artifacts.save('small%d' % i, 'z' * 3000)")
        assert driver.run("workflows.create('big', 'def run():\\n    pass\\n' + '#' * 200_000)")["error"] is not None
        assert driver.value("[artifacts.load('x'), artifacts.get('x').description, workflows.w()]") == [
            "old", "first", 1]
        driver.value("for a in artifacts.list():\n    if a.name != 'x': artifacts.delete(a.name)")
        assert driver.value("artifacts.save('x', 'new'); artifacts.load('x')") == "new"
        assert driver.close() == 0


def test_a_read_only_disk_can_be_read(drive, tmp_path):
    with spaces.small_disk(tmp_path / "disk", "4m") as disk:
        first = drive("--base", disk)
        first.value("artifacts.save('x', 'old')\n"
                    "workflows.create('w', 'def run():\\n    return 1', description='Finds it')\nNone")
        first.close()
        spaces.set_read_only(disk, True)
        driver = drive("--base", disk)
        assert driver.value("[artifacts.load('x'), workflows.w(), len(artifacts.list()), len(workflows.list())]") == [
            "old", 1, 1, 1]
        assert driver.value("[w['name'] for w in workflows.search('finds')]") == ["w"]
        for code in ("artifacts.save('y', 1)", "artifacts.delete('x')", "workflows.delete('w')",
                     "workflows.create('v', 'def run():\\n    pass')"):
            problem = spaces.error(driver, code)
            assert "read-only" in problem["message"].lower(), (code, problem)
        assert driver.value("artifacts.load('x')") == "old"
        assert driver.close() == 0


def test_a_broken_index_is_set_aside(driver, base):
    driver.value("artifacts.save('x', 'data', 'words')\nNone")
    (base / "artifacts" / ".artifacts.json").write_text('{"x": {"descr')
    assert driver.value("artifacts.load('x')") == "data", "the payload does not need the index"
    assert driver.value("artifacts.save('y', 1); [a.name for a in artifacts.list()]") == ["x", "y"]
