"""cell_json_call(): the library with JSON in and JSON out, through ctypes.  As library.py, a scenario a process."""
import ctypes as c
import json
import os
import re
import sys
import threading

import library
import support
from library import LIB, in_thread

LIB.cell_json_create.restype = LIB.cell_json_call.restype = c.c_void_p
LIB.cell_json_call.argtypes = [c.c_void_p, c.c_char_p]
LIB.cell_json_destroy.argtypes = LIB.cell_free.argtypes = [c.c_void_p]
LIB.cell_json_destroy.restype = LIB.cell_free.restype = None
# Members of structs that JSON cannot give.
NOT_JSON = {"cell_session_options": {"size", "on_event", "event_arg"}, "cell_engine_options": {"size", "log", "log_arg"},
            "cell_space_options": {"size", "getenv_fn", "getenv_arg", "on_progress", "progress_arg"},
            "cell_container_options": {"size"}, "cell_audit_options": {"size"},
            "cell_approval_answer": {"size", "from_terminal", "spin_us", "spin_end"}}


class Cells:
    def __init__(self):
        self.handle = LIB.cell_json_create()

    def raw(self, request):
        """The whole answer to these bytes."""
        text = LIB.cell_json_call(self.handle, request)
        assert text
        answer = json.loads(c.string_at(text).decode())
        LIB.cell_free(text)
        assert list(answer) in (["ok"], ["error"]), answer
        if "error" in answer:
            assert set(answer["error"]) == {"code", "message"} and answer["error"]["message"], answer
        return answer

    def answer(self, op, **members):
        return self.raw(json.dumps({"op": op, **members}).encode())

    def ok(self, op, **members):
        answer = self.answer(op, **members)
        assert "ok" in answer, answer
        return answer["ok"]

    def fails(self, expected, words, op, **members):
        error = self.answer(op, **members).get("error")
        assert error and error["code"] == expected and words in error["message"], error

    def open(self, **options):
        return self.ok("open", options={"python": os.environ["WORKCELL_BARE_PYTHON"], **options})["session"]

    def value(self, session, code):
        result = self.ok("run", session=session, code=code)
        assert result["error"] is None, result
        return result["value"]

    def close(self):
        LIB.cell_json_destroy(self.handle)


def plain():
    cells = Cells()
    assert cells.ok("version") == {"version": LIB.cell_version().decode()}
    assert cells.ok("sessions") == []
    session = cells.open(env={"A": "b=c"})
    cells.value(session, "x = 6")
    assert cells.value(session, "x * 7") == 42
    assert cells.value(session, "10 ** 30") == 10 ** 30
    assert cells.value(session, "import os; os.environ['A']") == "b=c"
    assert cells.ok("run", session=session, code="print('é\\0')")["stdout"] == "é\0\n"
    assert cells.ok("run", session=session, code="1 / 0")["error"]["type"] == "ZeroDivisionError"
    assert cells.ok("run", session=session, code="while True: pass", timeout_ms=200)["error"]["code"] == "timeout"
    assert cells.ok("sessions") == [{"session": session, "runs": 0, "executor": "subprocess"}]
    assert cells.ok("reset", session=session) == {}
    assert cells.value(session, "'x' in globals()") is False
    other = cells.open()
    assert len(cells.ok("sessions")) == 2 and other != session
    cells.ok("close", session=session)
    cells.fails("closed", "is not open", "run", session=session, code="1")
    cells.fails("closed", "is not open", "close", session=session)
    assert cells.value(other, "1") == 1
    cells.close()  # with a session that is open
    LIB.cell_json_destroy(None)
    LIB.cell_free(None)


def refusals():
    cells = Cells()
    session = cells.open()
    cells.fails("invalid", 'did you mean "open"?', "opne")
    cells.fails("invalid", 'did you mean "executor"?', "open", options={"exekutor": "sandbox"})
    cells.fails("invalid", 'did you mean "timeout_ms"?', "run", session=session, code="1", timeout=1)
    cells.fails("invalid", '"timeout_ms" of "options" must be an integer', "open", options={"timeout_ms": 1.5})
    cells.fails("invalid", "must be true or false", "open", options={"restore_cwd": 1})
    cells.fails("invalid", "NUL", "open", options={"cwd": "/tmp\0/x"})
    cells.fails("invalid", '"env" of "options" must be an object', "open", options={"env": ["A=b"]})
    cells.fails("executor_unavailable", "nosuch", "open", options={"executor": "nosuch"})
    cells.fails("invalid", "\"code\" must be a string", "run", session=session, code=1)
    cells.fails("invalid", "\"session\" is missing", "run", code="1")
    cells.fails("invalid", "\"session\" is missing", "reset", session=7)
    cells.fails("invalid", "engine has been started", "engine", options={"pool_size": 0})
    cells.fails("invalid", "\"principal\" must be", "call", session=session, method="tools.list")
    cells.fails("not_found", "opened without \"space\"", "call", session=session, method="tools.list", principal="host")
    cells.fails("not_found", "", "answer", session=session, id=5, answer={"accept": True})
    cells.fails("invalid", "accept", "answer", session=session, id=0, answer={"acept": True})
    for request in (b"", b"[]", b"1", b"{", b'{"op": 1}', b'{}', b'{"op": "version", "op": "version"}', b'{"op": "version"} x', b'{"op": "ver\xff"}',
                    b'{"op": "run", "timeout_ms": 99999999999999999999999}', b'{"op": "run", "timeout_ms": 1e999}',
                    b'{"op": ' + b"[" * 100000, b"[" * 100000 + b"]" * 100000, b'{"op": "version\\u0000"}', b'{"op": "\\ud800"}'):
        assert cells.raw(request)["error"]["code"] in ("invalid", "limit"), request[:40]
    assert "limit" == cells.raw(b'{"op": [' + b"{}," * 5000000 + b"{}]}")["error"]["code"]
    for handle, request in ((None, b"{}"), (cells.handle, None), (None, None)):
        text = LIB.cell_json_call(handle, request)
        assert "is NULL" in json.loads(c.string_at(text))["error"]["message"]
        LIB.cell_free(text)
    assert cells.value(session, "1") == 1
    cells.close()


def every_option():
    """The tables of json_options.c have every member of the structs."""
    with open(os.path.join(support.ROOT, "include", "workcell.h"), encoding="utf-8") as file:
        header = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    cells = Cells()
    session = cells.open()
    ask = {"cell_session_options": lambda name: cells.answer("open", options={name: {"no": ["such"]}}),
           "cell_engine_options": lambda name: cells.answer("engine", options={name: {"no": ["such"]}}),
           "cell_space_options": lambda name: cells.answer("open", options={"space": {name: {"no": ["such"]}}}),
           "cell_container_options": lambda name: cells.answer("open", options={"container": {name: {"no": ["such"]}}}),
           "cell_audit_options": lambda name: cells.answer("open", options={"audit": {"path": "/nonexistent/x", name: {"no": ["such"]}}}),
           "cell_approval_answer": lambda name: cells.answer("answer", session=session, id=1, answer={"accept": True, name: {"no": ["such"]}})}
    for struct, question in ask.items():
        body = re.search(r"struct %s \{(.*?)\n\};" % struct, header, re.S)[1]
        names = set(re.findall(r"(\w+)\)?(?:\([^;]*\))?;", body))
        assert len(names) > 5 and NOT_JSON[struct] <= names, names
        for name in names:
            answer = question(name)
            assert "error" in answer, (name, answer)
            unknown = "has no member \"%s\"" % name in answer["error"]["message"]
            assert unknown == (name in NOT_JSON[struct]), (struct, name, answer)
    cells.close()


def threads():
    """Runs, interrupts, resets, closes of the same and of other sessions, all at once."""
    cells = Cells()
    shared = cells.open()
    joins = []

    def alone(n):
        session = cells.open()
        for i in range(5):
            assert cells.value(session, "%d + %d" % (n, i)) == n + i
        return cells.ok("close", session=session)

    def together(n):
        for i in range(10):
            answer = cells.answer(("run", "interrupt", "sessions", "approvals")[(n + i) % 4],
                                  **({} if (n + i) % 4 == 2 else {"session": shared, **({"code": "1"} if (n + i) % 4 == 0 else {})}))
            assert "ok" in answer, answer
        return {}
    for n in range(6):
        joins += [in_thread(alone, n), in_thread(together, n)]
    assert all(join() == {} for join in joins)
    assert cells.ok("sessions") == [{"session": shared, "runs": 0, "executor": "subprocess"}]
    cells.close()


def interrupt_and_close():
    cells = Cells()
    session = cells.open()

    def running():
        return [each["runs"] for each in cells.ok("sessions")]

    run = in_thread(lambda: cells.ok("run", session=session, code="import time\nwhile True: time.sleep(0.01)"))
    support.wait_until(lambda: running() == [1], "the cell runs")
    # The cell may not have begun: an interrupt without a running cell has no effect.
    stop = threading.Event()
    repeat = threading.Thread(target=lambda: [cells.ok("interrupt", session=session) for _ in iter(lambda: stop.wait(0.2), True)])
    repeat.start()
    assert run()["error"]["code"] == "interrupted"
    stop.set()
    repeat.join()
    # Closed by one thread while others run, wait for their turn, and close it too.
    runs = [in_thread(lambda: cells.answer("run", session=session, code="while True: pass")) for _ in range(3)]
    support.wait_until(lambda: running() == [3], "the cells are submitted")
    closes = [in_thread(lambda: cells.answer("close", session=session)) for _ in range(2)]
    assert any("ok" in close() for close in closes)
    for run in runs:
        answer = run()
        assert answer.get("ok", {}).get("error", {}).get("code") == "interrupted" or answer["error"]["code"] in ("closed", "cancelled"), answer
    assert cells.ok("sessions") == []
    cells.close()


def gate():
    """Calls of the code, of an agent and of the host pass through the session's policy and audit log."""
    folder = support.temporary_folder("workcell-tests-library-")
    cells = Cells()
    log = os.path.join(folder, "audit.jsonl")
    session = cells.open(space={"storage": folder}, policy="ask", gate=["workflow", "artifact"], audit={"path": log, "sync": "always"},
                         approval_timeout_ms=60000)

    def pending():
        found = []
        support.wait_until(lambda: found.clear() or found.extend(cells.ok("approvals", session=session)) or found, "a request is pending")
        return found[0]

    create = {"name": "one", "source": "def run():\n    return 1\n", "description": "one"}
    cells.ok("call", session=session, principal="host", method="workflows.create", args=create)
    code = in_thread(lambda: cells.ok("run", session=session, code="workflows.delete('one')"))
    request = pending()
    assert request["kind"] == "workflow", request
    cells.ok("answer", session=session, id=request["id"], answer={"accept": False, "reason": "not on Fridays"})
    assert "not on Fridays" in code()["error"]["message"]
    agent = in_thread(lambda: cells.answer("call", session=session, principal="mcp", client="pal", method="workflows.delete", args={"name": "one"}))
    request = pending()
    cells.ok("answer", session=session, id=request["id"], answer={"accept": True})
    assert agent() == {"ok": {"result": True, "raw": None}}
    # A call that waits for an approval ends with its session.
    agent = in_thread(lambda: cells.answer("call", session=session, principal="mcp", method="workflows.create", args=create))
    pending()
    cells.ok("close", session=session)
    assert agent()["error"]["code"] in ("cancelled", "closed", "rejected")
    with open(log, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    assert {record.get("principal") for record in records} >= {"host", "code", "mcp"}, records
    cells.close()


def storage():
    folder = support.temporary_folder("workcell-tests-library-")
    cells = Cells()
    session = cells.open(space={"storage": folder})
    saved = cells.ok("call", session=session, principal="host", method="artifacts.save", args={"name": "a.txt"}, raw="aGVsbG8=")
    assert saved["result"]["name"] == "a.txt" and saved["raw"] is None
    assert cells.ok("call", session=session, principal="host", method="artifacts.load", args={"name": "a.txt"})["raw"] == "aGVsbG8="
    cells.fails("invalid", "base64", "call", session=session, principal="host", method="artifacts.save", args={"name": "b"}, raw="#")
    cells.fails("not_found", "", "call", session=session, principal="host", method="artifacts.load", args={"name": "no"})
    assert "error" in cells.answer("call", session=session, principal="host", method="no.such", args={})
    cells.fails("invalid", "\"client\"", "call", session=session, principal="host", client="pal", method="artifacts.list")
    cells.close()


SCENARIOS = [plain, refusals, every_option, threads, interrupt_and_close, gate, storage]

if __name__ == "__main__":
    assert library.LIB is LIB
    {scenario.__name__: scenario for scenario in SCENARIOS}[sys.argv[1]]()
    print("ok")
