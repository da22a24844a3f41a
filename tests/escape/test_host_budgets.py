"""What code in the sandbox may cost the host: memory, time of the loop, disk, processes.

Each test floods one thing and looks at the host's own memory (VmHWM of the process that holds the engine), or at what others get
done meanwhile. No test looks at a clock.
"""
import json
import os

import pytest

import serving
import spaces
import support

# In the kernel: frames past the kernel's own package. `call` sends one, `drain` throws away what the host has sent.
PRELUDE = r'''
import json, os, select, socket, stat, struct
def find_socket():
    for name in sorted(os.listdir('/proc/self/fd'), key=int):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                return int(name)
        except OSError:
            pass
sock = socket.socket(fileno=os.dup(find_socket()))
RESULT, DISPLAY, CALL = 66, 67, 69
next_id = 1 << 30
def frame(kind, text=b'', raw=b'', ident=0):
    return struct.pack('<BBBBIIIQ', 0x57, 1, kind, 0, ident, len(text), len(raw), 0) + text + raw
def send(data):
    view = memoryview(data)
    while view:
        select.select([], [sock], [])
        view = view[sock.send(view, socket.MSG_NOSIGNAL):]
def call(method, args, raw=b'', text=None):
    global next_id
    next_id += 1
    body = text if text is not None else json.dumps(args).encode()
    send(frame(CALL, b'{"method":"%s","args":%s}' % (method.encode(), body), raw, next_id))
    return next_id
def take(size):
    data = b''
    while len(data) < size:
        part = sock.recv(size - len(data))
        assert part
        data += part
    return data
def answer(ident):
    """The host's answer to this call; others before it are dropped."""
    while True:
        head = struct.unpack('<BBBBIIIQ', take(24))
        text, raw = take(head[5]), take(head[6])
        if head[2] == 3 and head[4] == ident:
            return json.loads(text)
'''

# A kernel of 256 MiB, an engine of 1 GiB; the rest is the program and what malloc keeps.
KERNEL_MIB = 256
SLACK_MIB = 160


@pytest.fixture
def base(tmp_path):
    spaces.write_files(tmp_path / "base", {"tools/echo.yaml": """\
        name: echo
        description: Says it again
        command: echo
        schema:
          options: {}
          positional: [{name: text, type: string}]
        recipes:
          say: {description: Says it, params: {text: {type: string}}}
        """})
    return str(tmp_path / "base")


def start(drive, tmp_path, base=None, *flags, executor="sandbox"):
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    driver = drive(*(["--base", base] if base else []), *flags, executor=executor, cwd=str(workspace), python="/usr/bin/python3",
                   events=False, grace=5)
    result = driver.run(PRELUDE)
    assert result["error"] is None, result
    return driver


def grown(driver, code, deadline=120, timeout=None):
    """The result of a cell, and by how much the host's peak memory grew."""
    before = support.peak_rss_bytes(driver.pid)
    driver.start(code, timeout=timeout)
    result = driver.answer(deadline)
    return result, support.peak_rss_bytes(driver.pid) - before


def check_alive(driver):
    assert driver.value("6 * 7") == 42


# ---- answers that nobody reads


def test_answers_that_nobody_reads_end_the_kernel(drive, tmp_path, base):
    """Calls with answers of a megabyte each, and the kernel never reads one."""
    driver = start(drive, tmp_path, base)
    assert driver.run("artifacts.save('big', b'x', metadata={'m': 'y' * 900000})")["error"] is None
    result, growth = grown(driver, "for _ in range(100000): call('artifacts.get', {'name': 'big'})")
    assert result["error"]["code"] == "kernel_died", result
    assert "does not read the answers" in result["error"]["message"], result
    assert growth < support.memory(KERNEL_MIB + SLACK_MIB), growth >> 20
    check_alive(driver)


def test_small_answers_that_nobody_reads_end_the_kernel(drive, tmp_path, base):
    """The same with refusals: each is small, and there is no end of them."""
    driver = start(drive, tmp_path, base)
    result, growth = grown(driver, """
n = 1 << 30
while True:
    n += 1
    send(frame(CALL, b'{"method":"nosuch.%s","args":{}}' % (b'x' * 20000), b'', n))
""")
    assert result["error"]["code"] == "kernel_died", result
    assert growth < support.memory(KERNEL_MIB + SLACK_MIB), growth >> 20
    check_alive(driver)
