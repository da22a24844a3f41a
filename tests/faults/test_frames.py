"""A kernel that lies: its own code writes to the frame socket and into the shared memory.

Every byte from a kernel is hostile.  Whatever it sends, the host lives, the run ends with kernel_died and a
reason, and the next run works on a fresh kernel.
"""
import pytest

import support

# Runs before each forgery: `frame` makes one, `sock` is the descriptor of the frame socket.
PRELUDE = support.FRAMES + r'''
sock = fd
def hang():
    import time
    while True: time.sleep(1)
'''

FORGERIES = {
    "noise": "send(os.urandom(4096)); hang()",
    "zeros": "send(bytes(4096)); hang()",
    "text": "send(b'HTTP/1.1 200 OK\\r\\n\\r\\n' * 10); hang()",
    "wrong magic": "send(frame(RESULT, magic=0x58)); hang()",
    "another version": "send(frame(RESULT, version=2)); hang()",
    "version 0": "send(frame(RESULT, version=0)); hang()",
    "unknown type": "send(frame(200)); hang()",
    "type 0": "send(frame(0)); hang()",
    "a frame of the host": "send(frame(2, raw=b'print(1)')); hang()",
    "INIT": "send(frame(1, b'{}')); hang()",
    "oversized json": "send(frame(RESULT, json_size=0xffffffff)); hang()",
    "oversized raw": "send(frame(RESULT, raw_size=0xffffffff)); hang()",
    "one past the json limit": "send(frame(RESULT, json_size=16 * 1024 * 1024 + 1)); hang()",
    "one past the raw limit": "send(frame(RESULT, raw_size=64 * 1024 * 1024 + 1)); hang()",
    "json that is not json": "send(frame(DISPLAY, b'{not json')); hang()",
    "json of another kind": "send(frame(DISPLAY, b'[1, 2]')); hang()",
    "json with bad UTF-8": "send(frame(DISPLAY, b'{\"mime\": [[\"\\xff\", 0]]}')); hang()",
    "display sizes that lie": "send(frame(DISPLAY, b'{\"mime\": [[\"text/plain\", 100]]}', b'short')); hang()",
    "display sizes below zero": "send(frame(DISPLAY, b'{\"mime\": [[\"text/plain\", -1]]}', b'short')); hang()",
    "display sizes that overflow":
        "send(frame(DISPLAY, b'{\"mime\": [[\"a/b\", 9223372036854775807], [\"c/d\", 9223372036854775807]]}', b'short')); hang()",
    "display sizes of odd types": "send(frame(DISPLAY, b'{\"mime\": [[1, \"x\"], 5, null]}', b'short')); hang()",
    "result for no run": "send(frame(RESULT, b'{}', ident=0xfffffff0)); hang()",
    "result for run 0": "send(frame(RESULT, b'{}', ident=0)); hang()",
    "deep json": "send(frame(DISPLAY, b'[' * 100000 + b']' * 100000)); hang()",
    "truncated header, then death": "send(frame(RESULT)[:10]); os._exit(0)",
    "truncated frame, then death": "send(frame(DISPLAY, b'{', json_size=1000)); os._exit(0)",
    "end of the stream": "import ctypes\nctypes.CDLL(None).shutdown(sock, 2); hang()",
    "socket closed": "os.close(sock); hang()",
    "every descriptor closed": "os.closerange(0, 1000); hang()",
}


@pytest.fixture(scope="module")
def victim():
    driver = support.Driver(cwd="/", grace=2)
    driver.locate()
    support.shared_drivers.append(driver)
    yield driver
    driver.close()
    support.shared_drivers.remove(driver)


def check_alive(driver, died):
    after = driver.run("marker")
    if died:
        assert after["error"] and after["error"]["type"] == "NameError", after
    assert driver.value("6 * 7") == 42


@pytest.mark.parametrize("name", FORGERIES)
def test_forgery_ends_the_kernel(victim, name):
    victim.reset()
    pid = victim.value("import os\nmarker = 1\nos.getpid()")
    result = victim.run(PRELUDE + FORGERIES[name], timeout=20)
    assert result["error"]["code"] == "kernel_died", result
    assert result["state"] == "lost"
    assert len(result["error"]["message"]) > 10, result["error"]
    assert not support.alive(pid)
    check_alive(victim, died=True)


# What the host may believe or not, as long as it stays sane.
ODD = {
    "a second READY": "send(frame(READY, b'{\"python\": \"9.9\", \"ipython\": \"\", \"pid\": 1}'))",
    "position past the ring": "send(frame(DOORBELL, ring=1 << 62))",
    "display without mime": "send(frame(DISPLAY, b'{}'))",
    "truncated frame, then waiting": "send(frame(DISPLAY, b'{', json_size=1000)); hang()",
    "truncated header, then waiting": "send(frame(RESULT)[:10]); hang()",
    "doorbells": "send(frame(DOORBELL) * 20000)",
    "a call": "send(frame(CALL, b'{\"ns\": \"tools\", \"name\": \"x\"}', ident=1)); hang()",
    "a call that is noise": "send(frame(CALL, b'\\x00\\xff', ident=1)); hang()",
    "displays without end": "while True: send(frame(DISPLAY, b'{\"mime\": [[\"text/plain\", 100000]]}', b'x' * 100000))",
    "an empty display": "send(frame(DISPLAY, b'{\"mime\": []}'))",
    "flags": "send(frame(DISPLAY, b'{\"mime\": [[\"text/plain\", 1]]}', b'x', flags=255))",
    "a closed stdout": "os.close(1); os.close(2); print('x')",
    "stdout that is the socket": "os.dup2(sock, 1); os.write(1, b'noise ' * 100); hang()",
    "results for every id": "\nfor i in range(1, 200): send(frame(RESULT, b'{}', ident=i))",
    "its own result with lies": "\nfor i in range(1, 200): send(frame(RESULT, b'{\"v\": 50, \"r\": 99}', b'x', ident=i))",
    "its own result with a value that is no json":
        "\nfor i in range(1, 200): send(frame(RESULT, b'{\"v\": 3}', b'{[1', ident=i))",
    "its own result with an error of odd types":
        "\nfor i in range(1, 200): send(frame(RESULT, b'{\"error\": {\"type\": 1, \"message\": [], \"code\": {}}}', ident=i))",
    "its own result with an error of no known code":
        "\nfor i in range(1, 200): send(frame(RESULT, b'{\"error\": {\"type\": \"T\", \"message\": \"m\", \"traceback\": \"\", \"code\": \"nosuch\"}}', ident=i))",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_behaviour_leaves_the_host_sane(victim, name):
    victim.reset()
    victim.run("marker = 1")
    result = victim.run(PRELUDE + ODD[name], timeout=2)
    victim.events.clear()
    assert "state" in result, result
    if result.get("spill"):
        support.os.unlink(result["spill"])
    # Forged results may leave more of them behind; a reset is a clean slate whatever came before.
    victim.reset()
    check_alive(victim, died=True)


def test_displays_without_end_do_not_grow_the_host(drive):
    driver = drive()
    driver.run("1")
    before = support.peak_rss_bytes(driver.pid)
    driver.start(PRELUDE + "for _ in range(5000): send(frame(DISPLAY, b'{\"mime\": [[\"text/plain\", 100000]]}', b'x' * 100000))")
    driver.events = Forgetful()
    driver.answer(300)
    assert support.peak_rss_bytes(driver.pid) - before < support.memory(512)
    driver.reset()
    assert driver.value("1") == 1


class Forgetful(list):
    """Events that nobody will ask for."""

    def append(self, item):
        pass


# ---- the ring ----------------------------------------------------------------------------------------------

# `ring` is the address of the shared memory; offsets are those of src/wire/ring_abi.h.
RING = PRELUDE + r'''
import ctypes, re
RING_BYTES = 4096 + 256 * 1024 + 2 * 1024 * 1024
def find_ring():
    for line in open('/proc/self/maps'):
        low, high = (int(x, 16) for x in line.split()[0].split('-'))
        if high - low == RING_BYTES and 's' in line.split()[1]:
            return low
ring = find_ring()
assert ring
def put32(at, value): ctypes.c_uint32.from_address(ring + at).value = value & 0xffffffff
def put64(at, value): ctypes.c_uint64.from_address(ring + at).value = value & 0xffffffffffffffff
def get64(at): return ctypes.c_uint64.from_address(ring + at).value
VERSION, TAIL, HEAD, HOST_BEAT, KERNEL_BEAT, DATA = 0, 64, 128, 256, 320, 4096
def bell(): send(frame(DOORBELL, ring=get64(HEAD)))
def record(size, kind):
    at = DATA + get64(HEAD) % (256 * 1024)
    put32(at, size); put32(at + 4, kind)
'''

CORRUPTIONS = {
    "head far ahead": "put64(HEAD, 1 << 60); bell()",
    "head at the end of numbers": "put64(HEAD, -1); bell()",
    "head back": "print('x' * 1000)\nput64(HEAD, 0); bell()",
    "head not aligned": "put64(HEAD, get64(HEAD) + 3); bell()",
    "record larger than the ring": "record(0xffffffff, 1); put64(HEAD, get64(HEAD) + 64); bell()",
    "record larger than allowed": "record(64 * 1024, 1); put64(HEAD, get64(HEAD) + 65 * 1024 + 8); bell()",
    "record past the head": "record(1000, 1); put64(HEAD, get64(HEAD) + 64); bell()",
    "record of no known type": "record(8, 77); put64(HEAD, get64(HEAD) + 16); bell()",
    "SYNC too short": "record(4, 3); put64(HEAD, get64(HEAD) + 16); bell()",
    "SYNC of bytes that never come": ("at = DATA + get64(HEAD) % (256 * 1024)\nrecord(16, 3); put64(at + 8, 1 << 60); put64(at + 16, 1 << 60)\n"
                                      "put64(HEAD, get64(HEAD) + 24); bell()"),
    "tail moved": "put64(TAIL, get64(TAIL) + 4096); bell()\nprint('y' * 100)",
    "version": "put32(VERSION, 9); bell()",
    "all of it": "ctypes.memset(ring, 0xff, RING_BYTES); bell()",
    "beats that lie": ("put32(KERNEL_BEAT, 1 << 31); put32(KERNEL_BEAT + 4, 77); put32(HOST_BEAT, 5); put32(HOST_BEAT + 4, 78); bell()\n"
                       "print('z' * 100)"),
    "beats that never stop": ("import threading\ndef beat():\n    n = 0\n    while True: n += 1; put32(KERNEL_BEAT, n); put32(KERNEL_BEAT + 4, n)\n"
                              "threading.Thread(target=beat, daemon=True).start()\nimport time\ntime.sleep(0.3)"),
    "changing all the time": ("import threading, random\ndef scribble():\n    while True: put64(HEAD, random.getrandbits(20)); bell()\n"
                              "threading.Thread(target=scribble, daemon=True).start()\nimport time\ntime.sleep(0.3)\nos._exit(0)"),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corrupt_shared_memory(victim, name):
    """The host may see it or not; it must neither crash, hang nor hand out memory that is not the kernel's."""
    victim.reset()
    victim.run("marker = 1")
    result = victim.run(RING + CORRUPTIONS[name] + "\n'end'", timeout=5)
    victim.events.clear()
    assert "state" in result, result
    if result["spill"]:
        support.os.unlink(result["spill"])
    if result["error"]:
        assert result["error"]["code"] in ("kernel_died", "timeout"), result
    victim.reset()
    check_alive(victim, died=True)


def test_shrinking_the_shared_memory_does_not_crash_the_host(victim):
    """ftruncate of the ring would mean SIGBUS for whoever reads it, unless it is sealed."""
    victim.reset()
    victim.run("marker = 1")
    result = victim.run(PRELUDE + r'''
outcome = []
for line in open('/proc/self/maps'):
    parts = line.split()
    if 's' in parts[1] and len(parts) > 5:
        for name in os.listdir('/proc/self/map_files') if os.path.isdir('/proc/self/map_files') else []:
            path = '/proc/self/map_files/' + name
            try:
                if stat.S_ISREG(os.stat(path).st_mode) and name.startswith(parts[0].split('-')[0]):
                    os.truncate(path, 0)
                    outcome.append('truncated')
            except OSError as e:
                outcome.append(type(e).__name__)
print('after')
outcome''', timeout=5)
    assert "state" in result
    victim.reset()
    check_alive(victim, died=True)
