"""POST /run_code, as SandboxFusion's clients use it: programs in fresh, confined processes."""
import base64
import concurrent.futures
import json
import subprocess
import time

import pytest

import serving
import support


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tokens = serving.TOKENS + "  - {name: cpu, token: t0ken-of-some-cpu, quota: {cpu_seconds: 1}}\n"
    with serving.shared("--executor", "subprocess", "--base", tmp_path_factory.mktemp("base"), "--sandbox-fusion", "--max-timeout",
                        "20", tokens=tokens) as made:
        yield made


def ask(server, code, language="python", token=serving.TOKEN, headers=(), **fields):
    body = {"compile_timeout": 10, "run_timeout": 10, "code": code, "stdin": None, "memory_limit_MB": -1, "language": language,
            "files": {}, "fetch_files": [], **fields}
    return server.ask("POST", "/run_code", body, token=token, headers=headers)


def run(server, code, *args, **fields):
    answer = ask(server, code, *args, **fields)
    assert answer.status == 200, answer
    assert set(answer.json) == {"status", "message", "compile_result", "run_result", "executor_pod_name", "files"}
    return answer.json


def encoded(content):
    return base64.b64encode(content).decode()


def test_a_program_succeeds(server):
    answer = run(server, "import sys; print(__name__, sys.stdin.read(), input.__name__); sys.stderr.write('e')", stdin="héllo\n")
    assert answer["status"] == "Success" and answer["message"] == "" and answer["files"] == {}
    result = answer["run_result"]
    assert result["stdout"] == "__main__ héllo\n input\n" and result["stderr"] == "e"
    assert result["status"] == "Finished" and result["return_code"] == 0 and 0 < result["execution_time"] < 5


def test_only_code_and_language_are_needed(server):
    answer = server.ask("POST", "/run_code", {"code": "print(input())", "language": "python", "stdin": "a\nb"})
    assert answer.json["run_result"]["stdout"] == "a\n", answer


@pytest.mark.parametrize("code, status", [
    ("import sys; sys.exit(3)", 3),
    ("raise SystemExit('words')", 1),
    ("import os; os._exit(4)", 4),
    ("exit(5)", 5),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11),
    ("def f(:", 1),
    ("import threading, sys; threading.Timer(0.05, print, ['late']).start(); sys.exit(6)", 6),
])
def test_a_program_fails_with_its_status(server, code, status):
    answer = run(server, code)
    assert answer["status"] == "Failed" and answer["run_result"]["status"] == "Finished", answer
    assert answer["run_result"]["return_code"] == status, answer
    assert ("late" in answer["run_result"]["stdout"]) == ("late" in code)


def test_a_traceback_is_as_cpython_prints_it(server):
    result = run(server, "def f():\n    return 1 / 0\nf()")["run_result"]
    lines = result["stderr"].splitlines()
    assert result["return_code"] == 1 and lines[0] == "Traceback (most recent call last):" and "    return 1 / 0" in lines
    assert lines[-1] == "ZeroDivisionError: division by zero" and "workcell" not in result["stderr"]


def test_bash(server):
    answer = run(server, "cat; echo $0 >&2; cat given; exit 7", "bash", stdin="in", files={"given": encoded(b"content")})
    assert answer["status"] == "Failed" and answer["run_result"]["return_code"] == 7
    assert answer["run_result"]["stdout"] == "incontent" and answer["run_result"]["stderr"].endswith(".sh\n")


def test_other_languages_are_refused(server):
    answer = ask(server, "int main() {}", "cpp")
    assert answer.status == 422 and "language" in answer.body.decode()


def test_time_is_limited(server):
    begun = time.monotonic()
    answer = run(server, "print('before', flush=True)\nwhile True: pass", run_timeout=0.5)
    assert answer["status"] == "Failed" and answer["run_result"]["status"] == "TimeLimitExceeded"
    assert answer["run_result"]["return_code"] is None and answer["run_result"]["stdout"] == "before\n"
    assert 0.5 <= time.monotonic() - begun < 10


def test_memory_is_limited(server):
    answer = run(server, "x = bytearray(400 << 20); print(len(x))", memory_limit_MB=128)
    assert answer["status"] == "Failed" and answer["run_result"]["stdout"] == "", answer
    assert run(server, "x = bytearray(40 << 20); print(len(x))", memory_limit_MB=128)["status"] == "Success"
    assert ask(server, "1", memory_limit_MB=1).status == 422


def test_files_in_and_out(server):
    answer = run(server, "import mod; open('out/x.bin', 'wb').write(mod.data); print(open('deep/er/in').read())",
                 files={"mod.py": encoded(b"data = bytes(range(256))"), "deep/er/in": encoded(b"inner"), "out/.keep": encoded(b""),
                        "empty": None}, fetch_files=["out/x.bin", "missing", "out"])
    assert answer["status"] == "Success" and answer["run_result"]["stdout"] == "inner\n", answer
    assert answer["files"] == {"out/x.bin": encoded(bytes(range(256)))}


def test_fetching_goes_no_further_than_the_sandbox(server):
    code = ("import os\nos.symlink('/etc/passwd', 'link')\nos.symlink('/proc/self/environ', 'environ')\nos.mkdir('folder')\n"
            "os.symlink('loop', 'loop')\nos.symlink('/', 'root')\nopen('/tmp/near', 'w').write('near')")
    names = ["link", "environ", "folder", "a\0b", "loop", "root/etc/passwd", "/etc/passwd", "../../etc/passwd", "/proc/1/environ", "", "../near"]
    answer = run(server, code, fetch_files=names)
    assert answer["status"] == "Success" and answer["files"] == {"../near": encoded(b"near")}, answer


@pytest.mark.parametrize("name", ["/etc/evil", "/usr/evil", "../../usr/lib/evil", "x" * 5000, "/proc/self/mem", "."])
def test_files_with_hostile_names(server, name):
    answer = run(server, "print('ran')", files={name: encoded(b"evil")})
    assert answer["status"] == "SandboxError" and answer["run_result"] is None and "written" in answer["message"], answer


def test_fields_of_wrong_types(server):
    for fields in ({"files": {"a\0b": encoded(b"evil")}}, {"files": {"a": 1}}, {"fetch_files": [1]}):
        assert ask(server, "1", **fields).status in (400, 422), fields


def test_too_much_to_fetch(server):
    answer = run(server, "open('big', 'wb').truncate(200 << 20); open('small', 'w').write('x')", fetch_files=["big", "small"])
    assert answer["files"] == {"small": encoded(b"x")} and "more than" in answer["message"]


def test_output_floods_are_cut(server):
    answer = run(server, "import os\nline = b'x' * 65536\nfor _ in range(400): os.write(1, line)\nos.write(2, b'end')")
    assert answer["status"] == "Success" and answer["run_result"]["stderr"] == "end"
    assert 1000 < len(answer["run_result"]["stdout"]) < 8 << 20


LEAVINGS = {
    "files": "import os; os.makedirs('/tmp/a/b/c'); open('/tmp/a/b/c/d', 'w'); open('/dev/shm/x', 'w'); os.chmod('/tmp/a/b', 0)",
    "names": "import os\nfor i in range(300):\n    os.mkdir('d'); os.chdir('d')",
    "mode": "import os; os.chmod('/tmp', 0)",
    "process": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True: open('/tmp/alive', 'a').write('x'); time.sleep(0.001)",
    "bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "parent": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "stopped": "import os, signal; os.kill(os.getppid(), signal.SIGSTOP); print('stopped')",
    "everybody": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "shared memory": "import ctypes; print(ctypes.CDLL(None).shmget(77, 4096, 0o1666))",
    "folder": "import os; here = os.getcwd(); os.rename(here, '/tmp/moved'); os.symlink('/dev/shm', here)",
    "deep": "import os; os.makedirs('a/' * 40); open('a/file', 'w'); os.symlink('/', 'a/link'); os.chmod('a/a', 0)",
    "queue": "import ctypes; print(ctypes.CDLL(None).msgget(77, 0o1666))",
    "streams": "import sys; sys.stdout.close(); sys.stderr = None; sys.argv.append('x'); __builtins__.print = None",
    "modules": "import json, builtins, sys; json.dumps = None; builtins.len = None; sys.modules['os'] = None; sys.setrecursionlimit(50)",
    "answers": "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'x' * 100)\n    except OSError: pass",
}
LOOK = """
import ctypes, json, os
mounted = {line.split()[4] for line in open('/proc/self/mountinfo')}
found = [f for top in ('/tmp', '/dev/shm') for f in os.listdir(top)
         if f != os.path.basename(os.getcwd()) and not any(m.startswith(os.path.join(top, f)) for m in mounted)]
processes = [p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getppid(), os.getpid())]
print(json.dumps([found, len(processes), ctypes.CDLL(None).shmget(77, 4096, 0), len('abc'), os.listdir('.') != []]))
"""


@pytest.mark.parametrize("kind", LEAVINGS)
def test_a_program_finds_nothing_of_the_one_before(server, kind):
    """One client, one program after the other: the same sandbox is used again where that is safe."""
    answer = run(server, LEAVINGS[kind], run_timeout=0.7)
    assert answer["status"] in ("Success", "Failed"), answer
    for _ in range(2):
        answer = run(server, LOOK)
        assert answer["status"] == "Success" and json.loads(answer["run_result"]["stdout"]) == [[], 0, -1, 3, True], answer


def test_a_program_cannot_reach_the_process_it_was_forked_from(server):
    code = ("import os\nparent = os.getppid()\n"
            "for path in ('mem', 'fd', 'environ', 'maps'):\n"
            "    try:\n"
            "        name = '/proc/%d/%s' % (parent, path)\n"
            "        print(path, os.listdir(name) if path == 'fd' else open(name, 'rb').read(1))\n"
            "    except OSError as exc: print(path, exc.errno)\n"
            "print(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:4])")
    lines = run(server, code)["run_result"]["stdout"].splitlines()
    assert lines[:4] == ["mem 13", "fd 13", "environ 13", "maps 13"] and lines[4] == "[0, 1, 2, 3]", lines


SHARED = """
import ctypes, json, os, re
regions, copied = [], 0
for line in open("/proc/self/smaps"):
    if re.match(r"\\w+-\\w+ ", line):
        is_one = line.rstrip().endswith("/memfd:workcell-data (deleted)")
        regions += [[int(end, 16) for end in line.split()[0].split("-")]] * is_one
    elif line.startswith("Anonymous:") and is_one:
        copied += int(line.split()[1]) // 4
opened = 0
for begin, end in regions:
    try:
        opened += os.open("/proc/self/map_files/%x-%x" % (begin, end), os.O_RDWR) > 0
    except OSError:
        pass
removed = ctypes.CDLL(None).madvise(ctypes.c_void_p(regions[0][0]), ctypes.c_size_t(4096), 9) if regions else None
print(json.dumps([sum(end - begin for begin, end in regions) // 4096, copied, opened, removed]))
"""
# An object of the process that programs are forked from, changed in place, in every page of it that a program can write to.
SCRIBBLE = """
import ctypes, json
name = json.JSONDecoder.__doc__
if %r: ctypes.memset(id(name) + bytes.__basicsize__ + 20, 88, 10)
print(name.count("X"))
"""


def test_data_that_programs_do_not_use_is_not_copied_for_them(server):
    """The kernel's data is a file from the second program on, which no program can change."""
    answers = [run(server, SHARED) for _ in range(4)]
    pages, copied, opened, removed = json.loads(answers[-1]["run_result"]["stdout"])
    assert 500 < pages and 0 < copied < pages * 2 / 3 and opened == 0 and removed == -1, answers
    changed = [run(server, SCRIBBLE % scribbles)["run_result"]["stdout"] for scribbles in (False, True, False, True, False)]
    assert changed == ["0\n", "10\n", "0\n", "10\n", "0\n"], changed


ALLOCATES = """
import sys
kept = [bytes(n) for n in range(0, 2000, 7)] + [[n] * n for n in range(100)] + [{n: str(n)} for n in range(300)]
grown = bytearray()
for n in range(3000):
    grown.append(n & 255)
pools = sys.getallocatedblocks()
more = [str(n) for n in range(20000)]
pools = sys.getallocatedblocks() - pools
assert [len(each) for each in kept[:286]] == list(range(0, 2000, 7)) and grown[2999] == 2999 & 255 and more[-1] == "19999"
kept.clear(), more.clear(), grown.clear()
print(pools > 15000)
"""
# The module below tracemalloc, because importing that one allocates more than comes from malloc().
TRACES = """
import _tracemalloc
_tracemalloc.start(1)
many = [str(n) for n in range(10000)]
print(_tracemalloc.get_traced_memory()[0] > 400000)
"""
MAPPINGS = """
import json, re
files = {}
for line in open("/proc/self/maps"):
    found = re.search(r" (/.*\\.so[.0-9]*|/.*/python[.0-9]*)$", line)
    if found: files[found[1]] = files.get(found[1], 0) + 1
print(json.dumps([max(count for name, count in files.items() if "_workcell" not in name), "workcell-data" in open("/proc/self/maps").read()]))
"""


@pytest.mark.parametrize("python", [path for path, version in support.interpreters() if version >= (3, 9)])
def test_memory_of_programs_on_every_cpython(python):
    """What is done so that a fork is cheap: mappings are joined, and the first objects come from malloc()."""
    server = serving.Server("--sandbox-fusion", python=python)
    for _ in range(3):
        for code in (ALLOCATES, TRACES):
            answer = run(server, code)
            assert answer["run_result"]["stdout"] == "True\n", answer
    most, has_data = json.loads(run(server, MAPPINGS)["run_result"]["stdout"])
    assert has_data and most <= 2, most
    server.close()


def test_a_short_program_copies_few_pages(server):
    """Page faults do not depend on the machine's load. About 75 of print(1 + 1), some more of this one."""
    faults = [int(run(server, "print(open('/proc/self/stat').read().split()[9])")["run_result"]["stdout"]) for _ in range(4)]
    assert faults[-1] < 150, faults


@pytest.mark.parametrize("limits", [("--memory", "64M"), ("--disk", "2M"), ("--preload", "numpy")], ids=["memory", "disk", "preload"])
def test_many_programs_of_a_server_with(limits):
    """Where the data cannot become a file, everything is as before."""
    server = serving.Server("--executor", "sandbox", "--sandbox-fusion", *limits, python=support.PYTHON)
    for i in range(5):
        answer = run(server, "print(len(open(__file__).read()) + %d)" % i)
        assert answer["run_result"]["stdout"] == "%d\n" % (37 + i), answer
    server.close()


def test_a_few_bad_programs_do_not_delay_the_rest(server):
    """One of twenty hangs, bombs or crashes."""
    bad = [("while True: pass", 1.5), (LEAVINGS["bomb"], 1.5), (LEAVINGS["parent"], 1.5), ("import time; time.sleep(60)", 1.5)]
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        slow = [pool.submit(run, server, code, run_timeout=seconds) for code, seconds in bad]
        good = [pool.submit(run, server, "print(%d)" % i, run_timeout=support.DEADLINE) for i in range(76)]
        for i, one in enumerate(good):
            assert one.result()["run_result"]["stdout"] == "%d\n" % i
        took = time.monotonic() - begun
        assert {one.result()["status"] for one in slow} == {"Failed"}
    assert took < support.DEADLINE / 2


def test_random_numbers_differ(server):
    code = "import random, os, uuid; print(random.random(), os.urandom(4).hex(), uuid.uuid4())"
    assert len({run(server, code)["run_result"]["stdout"] for _ in range(4)}) == 4


def test_random_numbers_of_a_preloaded_numpy_differ():
    server = serving.Server("--sandbox-fusion", "--preload", "numpy.random,random", python=support.PYTHON)
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    values = [run(server, code)["run_result"]["stdout"].split() for _ in range(3)]
    assert all(len(set(column)) == 3 for column in zip(*values)), values
    server.close()


def test_each_program_is_a_fresh_process(server):
    """That knows nothing but what an interpreter gives a script."""
    code = "import os, sys; print(os.getpid(), len(sys.argv), sys.path[0] == os.getcwd() == os.path.dirname(__file__))"
    lines = [run(server, code)["run_result"]["stdout"].split() for _ in range(3)]
    assert len({line[0] for line in lines}) == 3 and all(line[1:] == ["1", "True"] for line in lines), lines
    result = run(server, "print(sorted(globals()), __file__ in open(__file__).read(), 'IPython' in __import__('sys').modules)")["run_result"]
    assert result["stdout"] == "['__annotations__', '__builtins__', '__cached__', '__doc__', '__file__', '__loader__', '__name__', '__package__', " \
        "'__spec__'] False False\n", result


def test_exit_handlers_and_what_was_written_last(server):
    code = "import atexit, sys; atexit.register(print, 'bye'); sys.stdout.write('no end'); sys.stderr.write('none'); sys.exit(%s)"
    for status, expected in (("0", 0), ("'why'", 1)):
        result = run(server, code % status)["run_result"]
        assert result["stdout"] == "no endbye\n" and result["return_code"] == expected, result
        assert result["stderr"] == ("none" if expected == 0 else "nonewhy\n"), result


def test_code_with_any_character(server):
    assert run(server, "# -*- coding: latin-1 -*-\nprint('h\u00e9\U0001f600')")["run_result"]["stdout"] == "h\u00e9\U0001f600\n"
    assert ask(server, "a\0b").status == 422


def test_a_session_that_has_run_a_program_runs_no_cells():
    """Its interpreter is what programs find. The form of the first cell is the server's own (src/server/fusion.c)."""
    program = "%%workcell_script\n5000 0 0\nprint(6 * 7)"
    done = subprocess.run([support.BIN, "run", "--python", support.PYTHON, "--executor", "sandbox", "--workspace-mode", "none", "-e", "x = 1", "-e", program,
                           "-e", "1+1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.stdout == "42\n", done
    assert "and no cells" in done.stderr and done.returncode == 1, done


def test_programs_count_for_the_quota_of_their_token(server):
    token = "t0ken-of-some-cpu"
    run(server, "import time\nwhile time.process_time() < 1.1: pass", token=token)
    answer = ask(server, "1", token=token)
    assert answer.status == 429 and "CPU seconds" in answer.body.decode(), answer


def test_tokens(server):
    assert ask(server, "1", token=None).status == 401
    assert ask(server, "1", token="t0ken-of-the-reader").status == 403
    assert ask(server, "1", token="t0ken-of-the-runner").status == 200
    basic = "Basic " + base64.b64encode(b"anybody:t0ken-of-alice").decode()
    assert ask(server, "1", token=None, headers={"Authorization": basic}).status == 200
    for wrong in ("Basic " + base64.b64encode(b"anybody:wrong").decode(), "Basic " + base64.b64encode(b"t0ken-of-alice").decode(), "Basic !"):
        assert ask(server, "1", token=None, headers={"Authorization": wrong}).status == 401
    assert server.ask("GET", "/v1/sessions", token=None, headers={"Authorization": basic}).status == 401


def test_sandboxes_of_programs_are_nobodys_sessions(server):
    before = [one["session_id"] for one in server.ask("GET", "/v1/sessions?all=true").json["sessions"]]
    run(server, "1")
    after = [one["session_id"] for one in server.ask("GET", "/v1/sessions?all=true").json["sessions"]]
    assert before == after and server.metric("runs_running") == 0 and server.metric("runs_waiting") == 0


def test_programs_have_no_rights_of_the_servers_sessions(server):
    answer = run(server, "import os\nprint('tools' in globals(), 'artifacts' in globals(), os.getcwd().startswith('/tmp/'), os.environ.get('WORKCELL_TOKEN'))")
    assert answer["run_result"]["stdout"] == "False False True None\n"


def test_without_the_flag_there_is_no_such_route(tmp_path):
    server = serving.Server("--executor", "subprocess")
    assert ask(server, "1").status == 404
    server.close()


GRADER = """import json, multiprocessing, sys
from testing_util import check
def judge(queue):
    queue.put(check(json.load(open('test_cases.txt'))))
queue = multiprocessing.Queue()
process = multiprocessing.Process(target=judge, args=(queue,))
process.start()
results = queue.get(timeout=10)
process.join()
print(json.dumps(results))
sys.exit(0 if all(results) else 1)
"""
CHECKER = """import importlib, signal
def check(cases):
    signal.alarm(8)
    import code
    return [code.double(case["input"]) == case["output"] for case in cases]
"""


def test_graders_with_files_as_tinkers_client_sends_them(server):
    """Many at once: the program's own files come before modules of the same name that the warm interpreter has."""
    def grade(answer):
        files = {"test_cases.txt": json.dumps([{"input": n, "output": 2 * n} for n in range(5)]), "code.py": answer, "testing_util.py": CHECKER}
        body = {"code": GRADER, "language": "python", "run_timeout": 12, "files": {name: encoded(text.encode()) for name, text in files.items()}}
        return server.ask("POST", "/run_code", body).json

    answers = ["def double(n):\n    return n + n\n", "def double(n):\n    return n * n\n", "raise ValueError('broken')\n"] * 6
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        found = list(threads.map(grade, answers))
    assert [each["status"] for each in found] == ["Success", "Failed", "Failed"] * 6, found[:3]
    assert found[0]["run_result"]["stdout"] == "[true, true, true, true, true]\n"


def test_one_program_with_many_inputs_as_verls_client_sends_them(server):
    """verl compares stdout for each input of a test, all at once, and tells a timeout from an error by the status words."""
    code = "n = int(input())\nif n == 7:\n    while True: pass\nif n == 8:\n    raise SystemExit(2)\nprint(n * 3)"
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: run(server, code, stdin="%d\n" % n, run_timeout=1, compile_timeout=1, memory_limit_MB=1024), range(16)))
    for n, answer in enumerate(found):
        result = answer["run_result"]
        if n == 7:
            assert (answer["status"], result["status"], result["return_code"]) == ("Failed", "TimeLimitExceeded", None)
        elif n == 8:
            assert (answer["status"], result["status"], result["return_code"]) == ("Failed", "Finished", 2)
        else:
            assert (answer["status"], result["stdout"]) == ("Success", "%d\n" % (n * 3))
