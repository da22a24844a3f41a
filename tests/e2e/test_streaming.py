"""Output while it is written: at once, together, in order, and none of it lost."""
import os
import subprocess
import sys
import threading

import pytest

import support
from support import run_cells

# Each writes "first" without or with the end of a line; what follows blocks until the test has seen it.
WRITES = {
    "print": "print('first')",
    "print without an end": "print('first', end='')",
    "stderr": "print('first', file=sys.stderr)",
    "stderr without an end": "sys.stderr.write('first')",
    "bytes": "sys.stdout.buffer.write(b'first')",
    "descriptor": "os.write(1, b'first')",
    "C": "libc.puts(b'first'); libc.fflush(None)",
    "child": "subprocess.run(['printf', 'first'])",
    "shell": "!printf first",
    "thread": "t = threading.Thread(target=print, args=('first',)); t.start(); t.join()",
    "two in a row": "print('fi', end=''); print('rst')",
    "character by character": "[print(c, end='') for c in 'first']",
}
# The second holds the interpreter's lock all the while: no other thread of the kernel can help.
BLOCKS = {"sleeps": "os.close(os.open(%r, os.O_RDONLY))",
          "holds the GIL": "ctypes.PyDLL(None).close(ctypes.PyDLL(None).open(%r.encode(), 0))"}
SETUP = "import ctypes, os, subprocess, sys, threading\nlibc = ctypes.CDLL(None)"


@pytest.fixture(scope="module")
def stream():
    driver = support.Driver(cwd="/")
    support.shared_drivers.append(driver)
    driver.locate()
    driver.run(SETUP)
    yield driver
    driver.close()
    support.shared_drivers.remove(driver)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("write", WRITES)
def test_output_comes_while_the_cell_is_stuck(stream, tmp_path, write, block):
    """The cell cannot go on before the test has had the output."""
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    stream.events.clear()
    stream.start("%s\n%s\nprint('second')" % (WRITES[write], BLOCKS[block] % fifo))
    seen = ""
    while "first" not in seen:
        event = stream.next_event(lambda e: e["event"] == "chunk")
        seen += event["data"]
    assert "second" not in seen
    with open(fifo, "wb"):
        pass
    result = stream.answer()
    assert result["error"] is None, result
    assert result["text"].replace("\n", "") == "firstsecond"


def test_while_c_code_computes(stream, tmp_path):
    """A busy call that gives nobody a chance: it ends when memory changes that another process shares."""
    flag = tmp_path / "flag"
    flag.write_bytes(b"\0" * 8)
    source = tmp_path / "spin.c"
    source.write_text("void spin(volatile char *p) { while (!*p) ; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(tmp_path / "spin.so"), str(source)], check=True)
    stream.events.clear()
    stream.start("import mmap\nf = open(%r, 'r+b')\nm = mmap.mmap(f.fileno(), 8)\n"
                 "p = (ctypes.c_char * 8).from_buffer(m)\nprint('spinning')\n"
                 "ctypes.PyDLL(%r).spin(p)\ndel p" % (str(flag), str(tmp_path / "spin.so")))
    assert "spinning" in stream.next_event(lambda e: e["event"] == "chunk")["data"]
    with open(flag, "r+b") as file:
        file.write(b"\1")
    assert stream.answer()["error"] is None


# ---- together ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", ["print(i % 10, end='')", "print(i % 10, end='', file=sys.stderr)",
                                   "os.write(1, b'%d' % (i % 10))"])
def test_small_writes_are_coalesced(stream, write):
    stream.events.clear()
    result = stream.run("for i in range(20000): %s" % write)
    chunks = [event["data"] for event in stream.events if event["event"] == "chunk"]
    assert "".join(chunks) == result["text"] == "0123456789" * 2000
    assert len(chunks) < 2000, len(chunks)


def test_a_line_and_its_end_come_together():
    """On a CPU that they share with a busy process, a host that is woken takes the turn of the kernel that woke it."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    driver = support.Driver(cwd="/")
    try:
        driver.run("import time")
        driver.events.clear()
        driver.run("for i in range(40):\n    print('line', i)\n    t = time.process_time()\n"
                   "    while time.process_time() - t < 0.01: pass")
        chunks = [event["data"] for event in driver.events if event["event"] == "chunk"]
    finally:
        os.sched_setaffinity(0, allowed)
        driver.close()
        busy.kill()
        busy.wait()
    assert "".join(chunks) == "".join("line %d\n" % i for i in range(40))
    # A kernel whose time slice ends inside a print() is cut there now and then; one that loses its turn by waking the host, nearly always.
    assert len([chunk for chunk in chunks if not chunk.endswith("\n")]) < 5, chunks


# ---- in order, and all of it -------------------------------------------------------------------------------


def test_chunks_are_the_result(stream):
    """Streams and ways out mixed: what came as chunks is what the result says, stream by stream and as a whole."""
    code = ("for i in range(%d):\n    print('p', i)\n    print('e', i, file=sys.stderr)\n    os.write(1, b'd\\n')\n"
            "    r = os.system('echo c; echo f >&2') if i %% 7 == 0 else None\n    sys.stdout.write('no end')")
    for count in list(range(12)) + [200]:
        stream.events.clear()
        result = stream.run(code % count)
        chunks = [event for event in stream.events if event["event"] == "chunk"]
        assert "".join(e["data"] for e in chunks) == result["text"]
        for name in ("stdout", "stderr"):
            assert "".join(e["data"] for e in chunks if e["stream"] == name) == result[name]
        wanted = "".join("p %d\ne %d\nd\n%sno end" % (i, i, "c\nf\n" if i % 7 == 0 else "") for i in range(count))
        # os.write() and a child write to two pipes: if both are written between two reads, nothing tells which one came first.
        assert result["text"].replace("f\nd\nc\n", "d\nc\nf\n").replace("f\nc\n", "c\nf\n") == wanted


def test_the_last_output_is_never_lost(stream):
    """Cells that end right after they wrote, many times."""
    for number in range(300):
        stream.events.clear()
        end = ("", "\\n")[number % 2]
        result = stream.run("print(%d, end='%s')" % (number, end))
        assert result["stdout"] == "%d%s" % (number, end.encode().decode("unicode_escape"))
        assert "".join(e["data"] for e in stream.events) == result["stdout"]
    for number in range(50):
        result = stream.run("r = os.write(1, b'%d')" % number)
        assert result["stdout"] == str(number)


@pytest.mark.parametrize("pause", ["", "\n    time.sleep(0.001)", "\n    time.sleep(0.006)"], ids=["fast", "1 ms", "6 ms"])
def test_displays_stand_where_they_were_shown(stream, pause):
    for _ in range(3):
        stream.events.clear()
        result = stream.run("import time\nfor i in range(40):\n    print('before', i)\n    os.write(1, b'raw ')\n"
                            "    display(i)\n    print('after', i)" + pause)
        assert result["error"] is None
        story = "".join(e["data"] if e["event"] == "chunk" else "<%s>" % e["mime"]["text/plain"]
                        for e in stream.events)
        assert story == "".join("before %d\nraw <%d>after %d\n" % (i, i, i) for i in range(40))


def test_threads_lose_nothing(stream):
    stream.events.clear()
    result = stream.run("def work(n):\n    for i in range(300): sys.stdout.write('%d:%d\\n' % (n, i))\n"
                        "ts = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n"
                        "for t in ts: t.start()\nfor t in ts: t.join()")
    assert "".join(e["data"] for e in stream.events) == result["stdout"]
    parts = result["stdout"].replace("\n", " ").split()
    for n in range(8):
        assert [p for p in parts if p.startswith("%d:" % n)] == ["%d:%d" % (n, i) for i in range(300)]


def test_a_burst_and_a_large_message_arrive_whole(drive):
    """More than three megabytes at once, and a single value of twelve."""
    driver = drive("--max-output", "32M")
    result = driver.run("import sys\nn = sys.stdout.write('b' * (6 << 20))")
    assert result["stdout"] == "b" * (6 << 20)
    assert "".join(e["data"] for e in driver.events if e["event"] == "chunk") == result["stdout"]
    result = driver.run("class Big:\n    def _repr_html_(self): return 'h' * (12 << 20)\n    def __repr__(self): return 'Big'\nBig()")
    assert len(result["mime"]["text/html"]) == 12 << 20
    assert driver.value("1") == 1


def test_an_error_keeps_what_was_written_before_it():
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\ndisplay(1)\ndisplay(2)\n1 / 0"
    result = run_cells(code).result
    assert (result["stdout"], result["stderr"], result["text"]) == ("out\n", "err\n", "out\nerr\n")
    assert result["displays"] == [{"text/plain": "1"}, {"text/plain": "2"}], "two, not glued together"
    assert result["error"]["type"] == "ZeroDivisionError"


# ---- a reader that does not read ---------------------------------------------------------------------------


def test_a_program_that_is_not_read_stops_its_kernel(tmp_path):
    """`workcell run` whose stdout nobody takes: the code waits, and goes on when somebody does."""
    progress = tmp_path / "progress"
    progress.write_text("")
    code = ("import sys\nwith open(%r, 'a') as progress:\n    for _ in range(1000):\n"
            "        sys.stdout.write('x' * 100000)\n        progress.write('.'); progress.flush()" % str(progress))
    process = support.popen([support.BIN, "run", "--python", support.bare_python(), "--pool", "0", "-e", code],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=support.host_environment())
    seen = []

    def stands_still():
        seen.append(progress.stat().st_size)
        return seen[-1] > 0 and len(seen) > 60 and len(set(seen[-60:])) == 1
    support.wait_until(stands_still, "the kernel waits")
    assert seen[-1] < 200, seen[-1]
    stderr = []
    reader = threading.Thread(target=lambda: stderr.append(process.stderr.read()))
    reader.start()
    size = 0
    while True:
        data = process.stdout.read(1 << 20)
        if not data:
            break
        size += len(data)
    process.stdout.close()
    assert process.wait(support.DEADLINE) == 0
    reader.join(support.DEADLINE)
    process.stderr.close()
    assert size == 100000000 and progress.stat().st_size == 1000
    assert stderr == [b""]  # all of it was read here: no file has it too
