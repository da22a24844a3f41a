"""What code in the sandbox may cost the host: memory, time of the loop, disk, processes.

Each test floods one thing and looks at the host's own memory (VmHWM of the process that holds the engine), or at what others get
done meanwhile. No test looks at a clock but those of the audit log, whose limit is of bytes a second.
"""
import fcntl
import json
import os
import subprocess
import threading
import time

import pytest

import serving
import spaces
import support

# In the kernel: frames past the kernel's own package. `call` sends one, `drain` throws away what the host has sent.
PRELUDE = support.FRAMES + r'''
sock = socket.socket(fileno=os.dup(fd))
next_id = 1 << 30
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


FAR_TOO_MUCH = 2 << 30


def grown(driver, code, deadline=120, timeout=None):
    """The result of a cell, and by how much the host's peak memory grew. A host without bounds is ended: the machine has others."""
    before = support.peak_rss_bytes(driver.pid)
    over = threading.Event()

    def watch():
        while not over.wait(0.05):
            if support.peak_rss_bytes(driver.pid) - before > FAR_TOO_MUCH:
                driver.process.kill()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        driver.start(code, timeout=timeout)
        result = driver.answer(deadline)
    finally:
        over.set()
        watcher.join()
    return result, support.peak_rss_bytes(driver.pid) - before


def check_alive(driver):
    assert driver.value("6 * 7") == 42


# ---- answers that nobody reads


def test_answers_that_nobody_reads_end_the_kernel(drive, tmp_path, base):
    """Calls with answers of a megabyte each, and the kernel never reads one."""
    driver = start(drive, tmp_path, base)
    assert driver.run("artifacts.save('big', b'x', metadata={'m': 'y' * 900000})")["error"] is None
    result, growth = grown(driver, "while True: call('artifacts.get', {'name': 'big'})")
    assert result["error"]["code"] == "kernel_died", result
    assert "does not read the answers" in result["error"]["message"], result
    assert growth < support.memory(KERNEL_MIB + SLACK_MIB), growth >> 20
    check_alive(driver)


def test_small_answers_that_nobody_reads_end_the_kernel(drive, tmp_path, base):
    """The same with refusals: each is small, and there is no end of them."""
    driver = start(drive, tmp_path, base)
    result, growth = grown(driver, """
calls = b''.join(frame(CALL, b'{"method":"nosuch.%s","args":{}}' % (b'x' * 60), b'', (1 << 30) + i) for i in range(1000))
while True:
    send(calls)
""")
    assert result["error"]["code"] == "kernel_died", result
    assert growth < support.memory(KERNEL_MIB + SLACK_MIB), growth >> 20
    check_alive(driver)


# ---- calls that are parked


def test_parked_calls_fail_past_the_budget(drive, tmp_path, base):
    """Calls that wait for a person, with 60 MB each: the first are parked, the others refused, and none is lost."""
    policy = spaces.write_files(tmp_path / "policy", {"ask.yaml": "default: ask\n"})
    driver = start(drive, tmp_path, base, "--policy", os.path.join(policy, "ask.yaml"), "--approval-timeout", "600")
    result, growth = grown(driver, """
raw = bytes(60 << 20)
idents = [call('tools.call', {'name': 'echo.say', 'args': {'text': 'x'}}, raw) for _ in range(20)]
answer(idents[-1])['error']
""", timeout=60)
    assert result["error"] is None, result
    assert result["value"]["code"] == "limit", result
    assert growth < support.memory(KERNEL_MIB + 64 + SLACK_MIB), growth >> 20


@pytest.mark.parametrize("text", ["b'[' + b'[],' * 40000 + b'1]'", "b'[' + b'{},' * 40000 + b'1]'"])
def test_trees_of_parked_calls_count(drive, tmp_path, base, text):
    """A hundred kilobytes of brackets is ten megabytes as a tree: what counts is what it takes, not what was sent."""
    policy = spaces.write_files(tmp_path / "policy", {"ask.yaml": "default: ask\n"})
    driver = start(drive, tmp_path, base, "--policy", os.path.join(policy, "ask.yaml"), "--approval-timeout", "600")
    result, growth = grown(driver, """
idents = [call('tools.call', None, text=b'{"name":"echo.say","args":{"text":"x","more":%%s}}' %% (%s)) for _ in range(300)]
answer(idents[-1])['error']
""" % text)
    assert result["error"] is None, result
    assert result["value"]["code"] in ("limit", "invalid", "tool_args"), result
    assert growth < support.memory(KERNEL_MIB + SLACK_MIB), growth >> 20


# ---- large JSON


BOMBS = {
    "arrays": "b'[],' * 5000000 + b'1'",
    "objects": "b'{},' * 5000000 + b'1'",
    "numbers": "b'1,' * 7000000 + b'1'",
    "strings": "b'\"\",' * 5000000 + b'1'",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_call_that_would_be_a_huge_tree_is_refused(drive, tmp_path, base, kind):
    """15 MB of JSON that take up to a gigabyte as a tree, and seconds to parse."""
    driver = start(drive, tmp_path, base)
    result, growth = grown(driver, """
ident = call('artifacts.get', None, text=b'{"name":[%%s]}' %% (%s))
answer(ident)['error']
""" % BOMBS[kind])
    assert result["error"] is None, result
    assert result["value"]["code"] == "limit", result
    assert "artifact" in result["value"]["message"]
    assert growth < support.memory(128), growth >> 20


@pytest.mark.parametrize("kind", ["RESULT", "DISPLAY"])
def test_a_result_that_would_be_a_huge_tree_ends_the_kernel(drive, tmp_path, kind):
    """The same as the head of a result or of a display, which has a handful of values in an honest kernel."""
    driver = start(drive, tmp_path)
    result, growth = grown(driver, """
import time
send(frame(%s, b'{"mime":[%%s]}' %% (b'[],' * 5000000 + b'1'), b'', 1))
while True: time.sleep(1)
""" % kind)
    assert result["error"]["code"] == "kernel_died", result
    assert growth < support.memory(128), growth >> 20
    check_alive(driver)


def test_large_values_still_come(drive, tmp_path):
    """What an honest kernel sends is read on the pool and comes as before, in order with its output."""
    driver = start(drive, tmp_path)
    result = driver.run("print('before'); ['é' * 300000, list(range(20000))]")
    assert result["error"] is None and result["stdout"] == "before\n", result["error"]
    assert result["value"] == ["é" * 300000, list(range(20000))]
    assert driver.run("raise ValueError('m' * 200000)")["error"]["message"].count("m") >= 60000


# ---- the workspace


@pytest.fixture
def small(tmp_path):
    """A policy with a small workspace."""
    return os.path.join(spaces.write_files(tmp_path / "policy", {
        "small.yaml": "preset: untrusted\nlimits: {workspace: 32M, workspace_files: 200}\n"}), "small.yaml")


def fill(driver, code, limit):
    result = driver.run(code, timeout=60, deadline=120)
    assert result["error"]["code"] == "limit_exceeded", result
    assert result["error"]["limit"]["name"] == limit, result
    return result


FILLS = {
    "one file": ("workspace", "f = open('x', 'wb')\nwhile True: f.write(bytes(1 << 16)); time.sleep(0.001)"),
    "deep": ("workspace", """
def deeper(n):
    os.mkdir('d'); os.chdir('d'); open('f', 'wb').write(bytes(1 << 19))
    return n and deeper(n - 1)
deeper(100); time.sleep(600)"""),
    "deeper than is looked": ("workspace", """
for _ in range(300): os.mkdir('d'); os.chdir('d')
open('f', 'wb').write(bytes(64 << 20)); time.sleep(600)"""),
    "in a child": ("workspace", "subprocess.Popen(['dd', 'if=/dev/zero', 'of=y', 'bs=1M', 'count=80'], stderr=subprocess.DEVNULL).wait()\n"
                                "time.sleep(600)"),
    "many files": ("workspace_files", "for i in range(10**9): open('f%d' % i, 'wb').close(); time.sleep(0.0005)"),
    "many folders": ("workspace_files", "for i in range(400): os.mkdir('d%d' % i)\ntime.sleep(600)"),
    "links": ("workspace_files", "for i in range(400): os.symlink('/etc/passwd', 'l%d' % i)\ntime.sleep(600)"),
}


@pytest.mark.parametrize("way", FILLS)
def test_a_workspace_over_its_limit_ends_the_cell(drive, tmp_path, small, way):
    """Code fills the disk: the cell ends, later cells are refused, and run again once there is room."""
    limit, code = FILLS[way]
    driver = start(drive, tmp_path, None, "--sandbox-policy", small)
    fill(driver, "import os, subprocess, time\n" + code, limit)
    refused = fill(driver, "open('more', 'wb').write(b'x')", limit)
    assert refused["state"] == "kept" and not (tmp_path / "workspace" / "more").exists()
    for entry in os.scandir(tmp_path / "workspace"):
        support.shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
    check_alive(driver)


WRITES = {
    "one folder": ("rw", "open('%(out)s/x', 'wb').write(bytes(40 << 20))"),
    "read-only workspace": ("ro", "open('%(out)s/x', 'wb').write(bytes(40 << 20))"),
    "no workspace": ("none", "open('%(out)s/x', 'wb').write(bytes(40 << 20))"),
    "together": ("rw", "open('%(out)s/x', 'wb').write(bytes(20 << 20)); open('y', 'wb').write(bytes(20 << 20))"),
    "two folders": ("ro", "[open(p, 'wb').write(bytes(20 << 20)) for p in ('%(out)s/x', '%(more)s/y')]"),
    "a file": ("ro", "open('%(file)s', 'wb').write(bytes(40 << 20))"),
    "many files": ("ro", "for i in range(300): open('%(out)s/%%d' %% i, 'wb').close()"),
}


@pytest.mark.parametrize("way", WRITES)
def test_writable_folders_of_a_policy_count_with_the_workspace(drive, tmp_path, way):
    """`write:` of a policy is a disk to fill as much as the workspace is."""
    mode, code = WRITES[way]
    places = {"out": tmp_path / "out", "more": tmp_path / "more", "file": tmp_path / "file"}
    for place in places.values():
        place.touch() if place.name == "file" else place.mkdir()
    policy = spaces.write_files(tmp_path / "policy", {"small.yaml": "preset: untrusted\nworkspace: %s\nfilesystem: {write: [%s]}\n"
                                "limits: {workspace: 32M, workspace_files: 200}\n" % (mode, ", ".join(map(str, places.values())))})
    driver = start(drive, tmp_path, None, "--sandbox-policy", os.path.join(policy, "small.yaml"))
    limit = "workspace_files" if way == "many files" else "workspace"
    fill(driver, "import time\n%s\ntime.sleep(600)" % (code % places), limit)
    refused = fill(driver, "open('%(out)s/more', 'wb').write(b'x')" % places, limit)
    assert refused["state"] == "kept" and not (tmp_path / "out" / "more").exists()
    assert "limits.%s in the sandbox policy" % limit in refused["error"]["message"], refused
    for place in places.values():
        place.unlink() if place.name == "file" else support.shutil.rmtree(place)
    check_alive(driver)


def test_what_is_mounted_in_a_workspace_counts(drive, tmp_path, small):
    """The code sees what the host has mounted there, and can fill it."""
    inner = tmp_path / "workspace" / "inner"
    inner.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "none", str(inner)], capture_output=True).returncode:
        pytest.skip("this machine's tests may not mount")
    try:
        driver = start(drive, tmp_path, None, "--sandbox-policy", small)
        fill(driver, "import time\nopen('inner/x', 'wb').write(bytes(40 << 20))\ntime.sleep(600)", "workspace")
        subprocess.run(["mount", "-o", "remount,ro", str(inner)], check=True)
        check_alive(driver)
    finally:
        subprocess.run(["umount", "-l", str(inner)], check=True)


def test_a_folder_that_cannot_be_read_counts_as_over(drive, tmp_path, small):
    """As an ordinary user: files hidden in a folder of mode 000 are not left out."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    os.chmod(tmp_path, 0o755)
    for folder in [tmp_path, *tmp_path.parents][:4]:
        if os.stat(folder).st_uid == os.getuid():
            os.chmod(folder, os.stat(folder).st_mode | 0o055)
    os.chown(workspace, 65534, 65534)

    def nobody():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    driver = drive("--sandbox-policy", small, executor="sandbox", cwd=str(workspace), python="/usr/bin/python3", events=False,
                   grace=5, preexec_fn=nobody if os.getuid() == 0 else None)
    fill(driver, """
import os, time
os.mkdir('d')
open('d/f', 'wb').write(bytes(64 << 20))
os.chmod('d', 0)
time.sleep(600)""", "workspace")
    os.chmod(workspace / "d", 0o700)


def test_what_a_cell_leaves_running_is_watched(drive, tmp_path, small):
    """The cell ends at once, and a thread of it fills the workspace afterwards: the next cell does not begin."""
    driver = start(drive, tmp_path, None, "--sandbox-policy", small)
    assert driver.run("""
import threading, time
def fill():
    with open('x', 'wb') as f:
        for _ in range(640): f.write(bytes(1 << 16)); f.flush()
threading.Thread(target=fill).start()
""")["error"] is None
    support.wait_until(lambda: "limit" in str(driver.run("1")["error"]), "the workspace to be found full")
    fill(driver, "1", "workspace")


# ---- the storage


def test_metadata_does_not_fill_the_index(drive, tmp_path, base):
    """Every save writes the whole index anew: a few dozen artifacts with a megabyte of metadata made each take seconds, for all."""
    driver = start(drive, tmp_path, base)
    result = driver.run("""
code = None
for i in range(30):
    try:
        artifacts.save('m%d' % i, b'x', metadata={'m': 'y' * 900000})
    except Exception as exc:
        code = exc.code
        break
[i, code]""", deadline=240)
    assert result["error"] is None, result
    saved, code = result["value"]
    assert code == "limit" and saved < 15, result
    again = driver.run("artifacts.delete('m0'); artifacts.delete('m1'); artifacts.save('small', b'x').name", deadline=120)
    assert again["value"] == "small", again


STORAGE = "limits: {storage: 1M, storage_artifacts: 10, storage_descriptions: 20K, storage_workflows: 3}\n"
STORAGE_FLOODS = {
    "bytes": ("storage", "artifacts.save('a%d' % i, b'x' * 200000)", 5),
    "one large": ("storage", "artifacts.save('big', b'x' * 1100000); i = 99", 0),
    "number": ("storage_artifacts", "artifacts.save('a%d' % i, b'x')", 10),
    "descriptions": ("storage_descriptions", "artifacts.save('a%d' % i, b'x', description='d' * 9000)", 2),
    "workflows": ("storage_workflows", "workflows.create('w%d' % i, 'def run():\\n    return 1\\n', 'd')", 3),
    # Nothing of these is in the list of the storage, from which is measured.
    "never committed": ("storage", """
if i == 0: h = answer(call('artifacts.save_begin', {'name': 'open', 'type': 'bytes'}))['result']['handle']
got = answer(call('artifacts.save_chunk', {'handle': h}, b'x' * 100000))
if 'error' in got: raise Refused(got['error']['code'], got['error']['message'])""", 10),
    "never committed, many": ("storage_artifacts", """
got = answer(call('artifacts.save_begin', {'name': 'open%d' % i, 'type': 'bytes'}))
if 'error' in got: raise Refused(got['error']['code'], got['error']['message'])""", 10),
}


@pytest.mark.parametrize("way", STORAGE_FLOODS)
def test_a_storage_is_filled_as_far_as_the_policy_says(drive, tmp_path, base, way):
    limit, code, fits = STORAGE_FLOODS[way]
    policy = os.path.join(spaces.write_files(tmp_path / "policy", {"storage.yaml": STORAGE}), "storage.yaml")
    driver = start(drive, tmp_path, base, "--sandbox-policy", policy)
    result = driver.run("""
class Refused(Exception):
    def __init__(self, code, text): super().__init__(text); self.code = code
refusal = None
for i in range(40):
    try:
%s
    except Exception as exc:
        refusal = [i if i != 99 else 0, exc.code, str(exc)]
        break
refusal""" % "\n".join("        " + line for line in code.strip().splitlines()), deadline=120)
    assert result["error"] is None, result
    done, word, message = result["value"]
    assert (done, word) == (fits, "limit"), result
    assert "limits.%s in the sandbox policy" % limit in message, message
    held = result["isolation"]["limits"]
    assert held["storage_bytes"] == {"max": 1 << 20, "by": "host"} and held["storage_workflows"]["max"] == 3, held


def test_room_in_a_storage_comes_back(drive, tmp_path, base):
    """What was given up, deleted or replaced takes no room any more, and what is trusted is not limited."""
    policy = os.path.join(spaces.write_files(tmp_path / "policy", {"storage.yaml": STORAGE}), "storage.yaml")
    driver = start(drive, tmp_path, base, "--sandbox-policy", policy)
    result = driver.run("""
for i in range(30):
    artifacts.save('same', b'x' * 500000)
    h = answer(call('artifacts.save_begin', {'name': 'given up', 'type': 'bytes'}))['result']['handle']
    answer(call('artifacts.save_chunk', {'handle': h}, b'x' * 400000))
    answer(call('artifacts.save_abort', {'handle': h}))
    artifacts.save('gone%d' % i, b'x' * 400000)
    artifacts.delete('gone%d' % i)
[a.name for a in artifacts.list()]""", deadline=120)
    assert result["value"] == ["same"], result
    free = drive("--base", base, executor="subprocess", cwd=str(tmp_path / "workspace"), python="/usr/bin/python3", events=False)
    assert free.run("artifacts.save('much', b'x' * 3000000).name")["value"] == "much"


def test_open_artifacts_are_counted_for_a_session(drive, tmp_path, base):
    """Handles that are never closed: other sessions of the storage must still get some."""
    driver = start(drive, tmp_path, base)
    result = driver.run("""
idents = [call('artifacts.save_begin', {'name': 'a%d' % i, 'type': 'bytes'}) for i in range(300)]
answer(idents[-1])['error']['code']""", deadline=120)
    assert result["value"] == "limit", result


def test_calls_that_are_cancelled_at_once_are_not_kept(drive, tmp_path, base):
    """A call with 10 MB, and its cancel: what nobody waits for any more is not worked off one by one."""
    driver = start(drive, tmp_path, base)
    assert driver.run("for i in range(100): artifacts.save('a%d' % i, b'x', metadata={'m': 'y' * 10000})")["error"] is None
    result, growth = grown(driver, """
pad = b'p' * (10 << 20)
for _ in range(40):
    ident = call('artifacts.list', None, text=b'{"pad":"%s"}' % pad)
    call('cancel', {'id': ident})
answer(call('artifacts.exists', {'name': 'a1'}))""", deadline=240)
    assert result["error"] is None and result["value"] == {"result": True}, result
    assert growth < support.memory(KERNEL_MIB), growth >> 20


def test_answers_that_wait_for_the_audit_log_count(drive, tmp_path, base):
    """Somebody else has the log locked: answers of some megabytes each wait for their record, and no more of them than the budget allows."""
    spaces.write_files(base, {"tools/count.yaml": """\
        name: count
        description: Counts
        command: seq
        schema:
          options: {}
          positional: [{name: last, type: integer}]
        recipes:
          to: {description: Counts, params: {last: {type: integer}}}
        """})
    log = tmp_path / "audit.jsonl"
    driver = start(drive, tmp_path, base, "--audit", str(log))
    with open(log, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result, growth = grown(driver, """
idents = {call('tools.call', {'name': 'count.to', 'args': {'last': 1900000}}) for _ in range(60)}
codes = []
while idents:
    head = struct.unpack('<BBBBIIIQ', take(24))
    text, raw = json.loads(take(head[5])), len(take(head[6]))
    if head[2] == 3 and head[4] in idents:
        idents.remove(head[4])
        codes.append(text.get('error', {}).get('code', raw))
sorted(set(codes), key=str)""", deadline=240, timeout=200)
    assert result["error"] is None, result
    assert set(result["value"]) <= {"limit", "io"} and result["value"], result
    assert growth < support.memory(KERNEL_MIB + SLACK_MIB), growth >> 20


# ---- the audit log

AUDIT_RATE = 8192
AUDIT_FLOODS = {
    "calls": "call('tools.call', {'name': 'echo.say', 'args': {'text': 'x' * 1500}})",
    "escapes": "call('tools.call', {'name': 'echo.say', 'args': {'text': '\\x01' * 1900}})",
    "many texts": "call('tools.call', {'name': 'echo.say', 'args': {'t%d' % i: '\\x02' * 400 for i in range(5)}})",
    "unknown tools": "call('tools.call', {'name': '\\x03' * 3000, 'args': {}})",
    "denied": "call('tools.call', {'name': 'echo.say', 'args': {'text': 'never' + 'x' * 1500}})",
    "artifacts": "call('artifacts.delete', {'name': 'n' * 200})",
    "withdrawn": "call('cancel', {'id': call('tools.call', {'name': 'echo.say', 'args': {'text': 'x' * 1500}})})",
}


def read_log(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("flood", AUDIT_FLOODS)
def test_calls_fill_the_audit_log_only_so_fast(drive, tmp_path, base, flood):
    """A loop of calls is slowed down to what the policy allows; no call that was decided on lacks its record."""
    files = spaces.write_files(tmp_path / "policy", {
        "sandbox.yaml": "limits: {audit: %d, workspace: none}\n" % AUDIT_RATE,
        "calls.yaml": "default: allow\nrules:\n- {name: watched, decision: deny, tool: echo.say, args: {text: 'never**'}}\n"})
    log = tmp_path / "audit.jsonl"
    began = time.monotonic()
    driver = start(drive, tmp_path, base, "--sandbox-policy", os.path.join(files, "sandbox.yaml"), "--policy",
                   os.path.join(files, "calls.yaml"), "--audit", str(log))
    result = driver.run("""
asked = 0
while True:
    for _ in range(200):
        %s
        asked += 1
    while select.select([sock], [], [], 0)[0]: sock.recv(1 << 20)
""" % AUDIT_FLOODS[flood], timeout=4, deadline=120)
    assert result["error"]["code"] in ("timeout", "kernel_died"), result
    driver.reset()
    # What matters comes through afterwards, and is there.
    watched = driver.run("""
try: tools.echo.say(text='never, says the policy')
except Exception as exc: said = str(exc)
said""", timeout=60, deadline=180)
    assert "denies" in str(watched["value"]), watched
    driver.close()
    elapsed = time.monotonic() - began
    assert os.path.getsize(log) <= 60 * AUDIT_RATE + elapsed * AUDIT_RATE, (os.path.getsize(log), elapsed)
    assert os.path.getsize(log) > 8 * AUDIT_RATE, "that was no flood"
    records = read_log(log)
    mine = [record for record in records if record.get("args") == {"text": "never, says the policy"}]
    assert len(mine) == 1 and (mine[0]["decision"], mine[0]["rule_name"]) == ("deny", "watched"), mine
    if flood == "withdrawn":
        assert sum(record.get("withdrawn", 0) for record in records) > 1000, records[-1]
    assert not [record for record in records if "lost" in record]


def test_a_slowed_call_has_its_answer(drive, tmp_path, base):
    """More calls than the log takes at once: all are made, in order, and none fails."""
    files = spaces.write_files(tmp_path / "policy", {"sandbox.yaml": "limits: {audit: 64K}\n"})
    log = tmp_path / "audit.jsonl"
    driver = start(drive, tmp_path, base, "--sandbox-policy", os.path.join(files, "sandbox.yaml"), "--audit", str(log))
    result = driver.run("""
import json
for i in range(800): artifacts.save('a', b'x', description=str(i) + 'x' * 6000)
artifacts.get('a').description[:3]""", timeout=120, deadline=180)
    assert result["value"] == "799", result
    saved = [record for record in read_log(log) if record["tool"] == "artifacts"]
    assert [record["args"]["description"]["[cut]"][:3] for record in saved[-2:]] == ["798", "799"], saved[-1]
    assert len(saved) == 800


def test_connections_fill_the_audit_log_only_so_fast(drive, tmp_path):
    """Each leaves a record: past the first thousand, so many a second are taken from the code, and the others wait."""
    files = spaces.write_files(tmp_path / "policy", {"sandbox.yaml": "network: {allow: ['example.org:443']}\n"})
    log = tmp_path / "audit.jsonl"
    began = time.monotonic()
    driver = start(drive, tmp_path, None, "--sandbox-policy", os.path.join(files, "sandbox.yaml"), "--audit", str(log))
    result = driver.run("""
while True:
    with socket.create_connection(('127.0.0.1', 3128)) as s:
        s.sendall(b'CONNECT elsewhere.example:443 HTTP/1.1\\r\\n\\r\\n')
        s.recv(100)
""", timeout=6, deadline=120)
    assert result["error"]["code"] in ("timeout", "kernel_died"), result
    driver.close()
    records = [record for record in read_log(log) if record["kind"] == "network"]
    elapsed = time.monotonic() - began
    assert len(records) > 1000, "that was no flood"
    assert len(records) <= 1000 + 100 * elapsed, (len(records), elapsed)
    assert {record["decision"] for record in records[:100]} == {"deny"}


# ---- others


FLOODS = {
    "large JSON": "while True: answer(call('artifacts.get', None, text=b'{\"name\":[%s]}' % (b'[],' * 250000 + b'1')))",
    "long texts": "while True: answer(call('artifacts.get', None, text=b'{\"name\":\"%s\"}' % (b'x' * (15 << 20))))",
    "lists": """
for i in range(150): artifacts.save('a%d' % i, b'x', metadata={'m': 'y' * 30000})
while True:
    for _ in range(200): ident = call('artifacts.list', {})
    answer(ident)""",
    "displays": "while True: send(frame(DISPLAY, b'{\"mime\": [[\"text/plain\", 1000000]]}', b'x' * 1000000))",
    "values": "while True: send(frame(DISPLAY, b'{\"mime\": [[\"text/plain\", 60000000]]}', b'x' * 60000000))",
    "output": "while True: print('y' * 60000)",
    "refused calls": "while True:\n    for _ in range(1000): ident = call('nosuch.method', {})\n    answer(ident)",
}


@pytest.mark.parametrize("flood", FLOODS)
def test_others_get_their_cells_during_a_flood(tmp_path, base, flood):
    """One session of a server floods it; another one runs its cells and saves its artifacts meanwhile."""
    (tmp_path / "workspace").mkdir()
    server = serving.Server("--executor", "sandbox", "--base", base, "--drain", "0", python="/usr/bin/python3", cwd=str(tmp_path / "workspace"))
    try:
        loud, quiet = server.session(), server.session()
        server.execute(PRELUDE, session=loud)
        begun = server.ask("POST", "/v1/sessions/%s/runs" % loud, {"code": FLOODS[flood], "timeout": 600})
        assert begun.status == 202, begun
        for number in range(60):
            done = server.execute("artifacts.save('q%d', b'%d'); %d" % (number, number, number), session=quiet)
            assert done["value"] == number, done
    finally:
        server.close()
