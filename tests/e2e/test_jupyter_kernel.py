"""`workcell jupyter`: Workcell as a kernel of Jupyter, spoken to by ZeroMQ as front ends do, and by jupyter_client."""
import json
import os
import signal
import subprocess
import sys

import pytest
import zmq
from jupyter_client.session import Session

import support
from support import BIN, DEADLINE, PYTHON, popen, wait_until, workcell

KEY = b"a-key-of-this-test"
PORTS = ("shell", "iopub", "stdin", "control", "hb")


def connection(folder, **changes):
    """An ipc connection file: sockets are folder/kernel-1 ... kernel-5."""
    content = {"transport": "ipc", "ip": str(folder / "kernel"), "key": KEY.decode(), "signature_scheme": "hmac-sha256",
               **{name + "_port": i + 1 for i, name in enumerate(PORTS)}, **changes}
    path = folder / "connection.json"
    path.write_text(json.dumps(content))
    return path


class Kernel:
    """A kernel, and one client of it."""

    def __init__(self, folder, *flags, executor="subprocess", env=None, key=KEY):
        folder.mkdir(exist_ok=True)
        self.work = folder / "work"
        self.work.mkdir(exist_ok=True)
        self.file = connection(folder)
        self.log = open(folder / "log", "w+b")
        self.process = popen([BIN, "jupyter", "kernel", "-f", str(self.file), "--executor", executor, "--python", PYTHON, *map(str, flags)],
                             stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=self.work, env=env or support.host_environment())
        self.session = Session(key=key, signature_scheme="hmac-sha256")
        self.context = zmq.Context()
        self.sockets = {}
        for i, name in enumerate(PORTS):
            kind = {"iopub": zmq.SUB, "hb": zmq.REQ}.get(name, zmq.DEALER)
            self.sockets[name] = socket = self.context.socket(kind)
            socket.linger = 0
            if kind == zmq.DEALER:
                socket.identity = self.session.bsession
            if kind == zmq.SUB:
                socket.subscribe(b"")
            socket.connect("ipc://%s-%d" % (folder / "kernel", i + 1))

    def send(self, kind, content=None, port="shell", **options):
        return self.session.send(self.sockets[port], kind, content or {}, **options)["header"]["msg_id"]

    def receive(self, port, deadline=DEADLINE):
        """The next message; AssertionError when there is none in time."""
        assert self.sockets[port].poll(deadline * 1000), "no message on %s; log: %s" % (port, self.read_log())
        _, parts = self.session.feed_identities(self.sockets[port].recv_multipart())
        return self.session.deserialize(parts)

    def ask(self, kind, content=None, port="shell"):
        ident = self.send(kind, content, port)
        while True:
            reply = self.receive(port)
            if reply["parent_header"]["msg_id"] == ident:
                assert reply["msg_type"] == kind.replace("_request", "_reply")
                return reply["content"]

    def published(self, ident):
        """What a request published, until the kernel was idle."""
        messages = []
        while True:
            message = self.receive("iopub")
            if message["parent_header"].get("msg_id") != ident:
                continue
            messages.append(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return messages[1:-1]

    def start(self, code, **options):
        return self.send("execute_request", {"code": code, "silent": False, "store_history": True, "user_expressions": {},
                                             "allow_stdin": True, "stop_on_error": True, **options})

    def run(self, code, **options):
        """(reply, messages)"""
        ident = self.start(code, **options)
        messages = self.published(ident)
        reply = self.receive("shell")
        assert reply["parent_header"]["msg_id"] == ident and reply["msg_type"] == "execute_reply"
        return reply["content"], messages

    def value(self, code):
        reply, messages = self.run(code)
        assert reply["status"] == "ok", reply
        return next(each["content"]["data"]["text/plain"] for each in messages if each["msg_type"] == "execute_result")

    def ready(self):
        """iopub is connected: a request of ours has been heard of."""
        def heard():
            ident = self.send("kernel_info_request")
            self.receive("shell")
            while self.sockets["iopub"].poll(200):
                _, parts = self.session.feed_identities(self.sockets["iopub"].recv_multipart())
                message = self.session.deserialize(parts)
                if message["parent_header"].get("msg_id") == ident and message["content"].get("execution_state") == "idle":
                    return True
            return False

        wait_until(heard, "a message on iopub")
        return self

    def read_log(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def close(self, told=False):
        if not told and self.process.poll() is None:
            self.ask("shutdown_request", {"restart": False}, "control")
        status = self.process.wait(DEADLINE)
        assert status in (0, 128 + signal.SIGTERM), self.read_log()  # the same; which one is a race of two threads
        for socket in self.sockets.values():
            socket.close()
        self.context.term()
        log = self.read_log()
        self.log.close()
        assert "Sanitizer" not in log and "runtime error:" not in log, log



@pytest.fixture
def start(tmp_path):
    made = []

    def make(*flags, **options):
        made.append(Kernel(tmp_path / str(len(made)), *flags, **options))
        return made[-1].ready()

    yield make
    for kernel in made:
        kernel.close()


@pytest.fixture
def kernel(start):
    return start()


def kinds(messages):
    return [message["msg_type"] for message in messages]


def text_of(messages, name="stdout"):
    return "".join(each["content"]["text"] for each in messages if each["msg_type"] == "stream" and each["content"]["name"] == name)


# -- cells

def test_a_cell(kernel):
    info = kernel.ask("kernel_info_request")
    assert info["implementation"] == "workcell" and info["language_info"]["version"] == support.python_version(PYTHON)
    reply, messages = kernel.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert reply == {"status": "ok", "execution_count": 1, "payload": [], "user_expressions": {}}
    assert messages[0]["content"] == {"code": "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7", "execution_count": 1}
    assert text_of(messages) == "out\n" and text_of(messages, "stderr") == "err\n"
    assert messages[-1]["content"] == {"data": {"text/plain": "42"}, "metadata": {}, "execution_count": 1}
    reply, messages = kernel.run("1 / 0")
    assert (reply["status"], reply["ename"], reply["execution_count"]) == ("error", "ZeroDivisionError", 2)
    assert kinds(messages) == ["execute_input", "error"] and messages[1]["content"]["traceback"][-1] == "ZeroDivisionError: division by zero"
    assert kernel.value("Out[1]") == "42"
    assert kernel.run("chr(0xe4) * 3 + chr(0x1f600)")[1][-1]["content"]["data"]["text/plain"] == "'äää\U0001f600'"
    assert text_of(kernel.run("import os\nos.write(1, b'\\xf0\\x9f'); os.write(1, b'\\x98\\x80')\nNone")[1]) == "\U0001f600"


def test_cells_that_leave_no_trace(kernel):
    reply, messages = kernel.run("hidden = 5; hidden", silent=True)
    assert reply["status"] == "ok" and reply["execution_count"] == 1 and messages == []
    reply, messages = kernel.run("hidden + 1", store_history=False)
    assert messages[-1]["content"]["data"] == {"text/plain": "6"} and reply["execution_count"] == 1
    assert kernel.run("raise ValueError('x')", silent=True)[1] == []
    reply, _ = kernel.run("hidden", user_expressions={"two": "1 + 1", "bad": "nothing"})
    assert reply["execution_count"] == 1 and reply["user_expressions"]["two"]["data"] == {"text/plain": "2"}
    assert reply["user_expressions"]["bad"]["ename"] == "NameError"
    assert kernel.value("len(In)") == "3"
    history = kernel.ask("history_request", {"hist_access_type": "tail", "n": 9, "output": True, "raw": True})["history"]
    assert history == [[0, 1, ["hidden", "5"]], [0, 2, ["len(In)", "3"]]]


def test_displays(kernel):
    _, messages = kernel.run("handle = display('one', display_id='d'); handle.update('two')")
    assert kinds(messages) == ["execute_input", "display_data", "update_display_data"]
    assert messages[1]["content"] == {"data": {"text/plain": "'one'"}, "metadata": {}, "transient": {"display_id": "d"}}
    assert messages[2]["content"]["data"] == {"text/plain": "'two'"}
    code = """
from IPython.display import Image, JSON, SVG, clear_output
import base64
display(Image(base64.b64decode('iVBORw0KGgo='), format='png', width=3), JSON({'a': [1]}))
clear_output(wait=True)
SVG('<svg xmlns="http://www.w3.org/2000/svg"/>')"""
    _, messages = kernel.run(code)
    assert kinds(messages) == ["execute_input", "display_data", "display_data", "clear_output", "execute_result"]
    assert messages[1]["content"]["data"]["image/png"].strip() == "iVBORw0KGgo="
    assert messages[1]["content"]["metadata"] == {"image/png": {"width": 3}}
    assert messages[2]["content"]["data"]["application/json"] == {"a": [1]}
    assert messages[3]["content"] == {"wait": True} and messages[4]["content"]["data"]["image/svg+xml"].startswith("<svg")
    reply, messages = kernel.run("len?")
    assert kinds(messages) == ["execute_input"] and "Return the number of items" in reply["payload"][0]["data"]["text/plain"]
    reply, _ = kernel.run("get_ipython().set_next_input('1 + 1', replace=True)")
    assert reply["payload"] == [{"source": "set_next_input", "text": "1 + 1", "replace": True}]


def test_many_displays_arrive_all(kernel):
    """A client that reads slowly slows the cell; it loses nothing."""
    ident = kernel.start("for i in range(6000): display(i)\nprint('end')")
    shown = [each["content"]["data"]["text/plain"] for each in kernel.published(ident) if each["msg_type"] == "display_data"]
    assert shown == [str(i) for i in range(6000)]


def test_output_between_cells(kernel):
    ident = kernel.start("import threading\nthreading.Timer(0.1, print, ['late']).start()")
    kernel.published(ident)
    text = ""
    while not text.endswith("\n"):  # print() of a thread writes the line and its end apart
        message = kernel.receive("iopub")
        assert message["content"]["name"] == "stdout" and message["parent_header"]["msg_id"] == ident
        text += message["content"]["text"]
    assert text == "late\n"


def test_an_error_aborts_what_was_sent_with_it(kernel):
    idents = [kernel.start(code) for code in ("import time; time.sleep(0.2); 1 / 0", "ran = 1", "ran = 2")]
    replies = [kernel.receive("shell") for _ in idents]
    assert [each["content"]["status"] for each in replies] == ["error", "aborted", "aborted"]
    assert kernel.value("'ran' in globals()") == "False"
    idents = [kernel.start(code, stop_on_error=False) for code in ("1 / 0", "ran = 1")]
    assert [kernel.receive("shell")["content"]["status"] for _ in idents] == ["error", "ok"]


# -- help

def test_help_for_the_person_who_types(kernel):
    kernel.run("class Thing:\n    'a thing'\n    def method(self): 'does it'\n    @property\n    def boom(self): raise SystemError\nthing = Thing()")
    found = kernel.ask("complete_request", {"code": "x = thing.me  # ä", "cursor_pos": 12})
    assert (found["matches"], found["cursor_start"], found["cursor_end"]) == (["method"], 10, 12)
    assert kernel.ask("complete_request", {"code": "'ä'; zi", "cursor_pos": 7})["cursor_start"] == 5
    found = kernel.ask("inspect_request", {"code": "thing.method(", "cursor_pos": 13, "detail_level": 0})
    assert found["found"] and "does it" in found["data"]["text/plain"]
    assert kernel.ask("inspect_request", {"code": "f(len(1, 2), 3)", "cursor_pos": 9, "detail_level": 0})["data"]["text/plain"].count("number of items")
    assert kernel.ask("inspect_request", {"code": "thing.boom", "cursor_pos": 8, "detail_level": 1})["found"] is False
    assert kernel.ask("inspect_request", {"code": "nothing", "cursor_pos": 3, "detail_level": 0}) == {
        "status": "ok", "found": False, "data": {}, "metadata": {}}


@pytest.mark.parametrize("code, status, indent", [
    ("1", "complete", None), ("for i in range(3):", "incomplete", "    "), ("for i in range(3):\n    i", "incomplete", "    "),
    ("def f():\n    return 1", "incomplete", ""), ("def f():\n    return 1\n\n", "complete", None), ("print('''a", "incomplete", ""),
    ("import = 7q", "invalid", None), ("!ls", "complete", None), ("%time 1", "complete", None), ("await f()", "complete", None), ("x = (", "incomplete", ""),
])
def test_is_complete(shared_kernel, code, status, indent):
    answer = shared_kernel.ask("is_complete_request", {"code": code})
    assert (answer["status"], answer.get("indent")) == (status, indent)


@pytest.fixture(scope="module")
def shared_kernel(tmp_path_factory):
    kernel = Kernel(tmp_path_factory.mktemp("shared"))
    kernel.pid = kernel.process.pid
    kernel.family = lambda table: [each for each in support.descendants(os.getpid(), table)]
    support.shared_drivers.append(kernel)
    kernel.ready()
    yield kernel
    support.shared_drivers.remove(kernel)
    kernel.close()


def test_history(kernel):
    for code in ("1 + 2", "1 + 2", "'x'", "1 * 2 * 3"):
        kernel.run(code)

    def ask(**content):
        return [[line, code] for _, line, code in kernel.ask("history_request", {"output": False, "raw": True, **content})["history"]]

    assert ask(hist_access_type="tail", n=2) == [[3, "'x'"], [4, "1 * 2 * 3"]]
    assert ask(hist_access_type="range", session=0, start=2, stop=4) == [[2, "1 + 2"], [3, "'x'"]]
    assert ask(hist_access_type="range", session=5, start=0) == []
    assert ask(hist_access_type="search", pattern="1 ? 2*") == [[1, "1 + 2"], [2, "1 + 2"], [4, "1 * 2 * 3"]]
    assert ask(hist_access_type="search", pattern="1 ? 2*", unique=True, n=1) == [[4, "1 * 2 * 3"]]
    assert ask(hist_access_type="search", pattern="1 ? 2*", unique=True) == [[2, "1 + 2"], [4, "1 * 2 * 3"]]


# -- input, interrupts

def answer_input(kernel, text, prompt, password=False):
    request = kernel.receive("stdin")
    assert request["msg_type"] == "input_request" and request["content"] == {"prompt": prompt, "password": password}
    kernel.send("input_reply", {"value": text}, "stdin")


def test_input(kernel):
    ident = kernel.start("name = input('Who? ')\nimport getpass\nsecret = getpass.getpass()\nprint(name, secret)")
    answer_input(kernel, "Ada ä", "Who? ")
    answer_input(kernel, "hush", "Password: ", True)
    assert text_of(kernel.published(ident)) == "Ada ä hush\n"
    kernel.receive("shell")
    reply, _ = kernel.run("input()", allow_stdin=False)
    assert (reply["ename"], reply["evalue"]) == ("StdinNotImplementedError", "input() was called, but this front end does not support it")
    assert kernel.value("name") == "'Ada ä'"


def test_a_late_answer_is_none_to_the_next_question(kernel):
    kernel.start("input('Delete? ')")
    first = kernel.receive("stdin")
    assert kernel.ask("interrupt_request", port="control") == {"status": "ok"}
    assert kernel.receive("shell")["content"]["ename"] == "KeyboardInterrupt"
    for name, parent in (("the question", lambda request, asked: asked["header"]), ("the request", lambda request, asked: request)):
        ident = kernel.start("print(input('Really? '))")
        asked = kernel.receive("stdin")
        kernel.send("input_reply", {"value": "of before"}, "stdin", parent=first["header"])
        kernel.send("comm_msg", {"value": "not a reply"}, "stdin")
        kernel.send("input_reply", {"value": name}, "stdin", parent=parent(asked["parent_header"], asked))
        assert text_of(kernel.published(ident)) == name + "\n"
        kernel.receive("shell")


@pytest.mark.parametrize("how", ["message", "signal"])
def test_interrupt(kernel, how):
    for code in ("import time\nprint('on', flush=True)\ntime.sleep(60)", "print('on')\ninput('?')", "print('on')\nwhile True: pass"):
        ident = kernel.start(code)
        while text_of([kernel.receive("iopub")]) != "on\n":
            pass
        if "input" in code:
            kernel.receive("stdin")
        if how == "message":
            assert kernel.ask("interrupt_request", port="control") == {"status": "ok"}
        else:
            os.kill(kernel.process.pid, signal.SIGINT)
        reply = kernel.receive("shell")
        assert reply["parent_header"]["msg_id"] == ident and reply["content"]["ename"] == "KeyboardInterrupt"
    assert kernel.value("1 + 1") == "2"  # and none of it is left for the next cell


def test_an_approval_is_asked_for(start):
    kernel = start("--approve", "ask")
    for answer, status in (("yes", "ok"), ("y", "error")):
        kernel.start("!echo \x1b[2Jran")
        request = kernel.receive("stdin")["content"]
        assert request["prompt"].startswith("Allow shell?") and request["prompt"].endswith("Type yes to allow it: ")
        assert "\x1b" not in request["prompt"]
        kernel.send("input_reply", {"value": answer}, "stdin")
        assert kernel.receive("shell")["content"]["status"] == status
    reply, _ = kernel.run("!echo ran", allow_stdin=False)
    assert reply["ename"] == "ApprovalRejectedError"


# -- comms

COMMS = """
import comm
seen = []
def opened(one, message):
    one.on_msg(lambda message: seen.append((message['content']['data'], [bytes(each) for each in message['buffers']])))
    one.send({'hello': message['content']['data']})
comm.get_comm_manager().register_target('here', opened)
mine = comm.create_comm(target_name='there', data={'a': 1}, metadata={'version': '2'}, buffers=[b'\\x00\\xff', b'second'])
mine.on_msg(lambda message: print('got', message['content']['data']))
mine.send([1, 2])
"""


def test_comms(kernel):
    assert kernel.ask("comm_info_request") == {"status": "ok", "comms": {}}
    reply, messages = kernel.run(COMMS)
    assert kinds(messages) == ["execute_input", "comm_open", "comm_msg"] and reply["status"] == "ok"
    opened = messages[1]
    ident = opened["content"]["comm_id"]
    assert opened["content"] == {"comm_id": ident, "data": {"a": 1}, "target_name": "there"} and opened["metadata"] == {"version": "2"}
    assert [bytes(each) for each in opened["buffers"]] == [b"\x00\xff", b"second"]
    assert messages[2]["content"] == {"comm_id": ident, "data": [1, 2]}
    sent = kernel.send("comm_msg", {"comm_id": ident, "data": {"b": 2}})
    assert text_of(kernel.published(sent)) == "got {'b': 2}\n"
    sent = kernel.send("comm_open", {"comm_id": "new", "target_name": "here", "data": {"c": 3}})
    assert [each["content"] for each in kernel.published(sent)] == [{"comm_id": "new", "data": {"hello": {"c": 3}}}]
    kernel.published(kernel.send("comm_msg", {"comm_id": "new", "data": {}}, buffers=[b"raw\x00"]))
    assert kernel.value("seen") == "[({}, [b'raw\\x00'])]"
    assert kernel.ask("comm_info_request")["comms"] == {ident: {"target_name": "there"}, "new": {"target_name": "here"}}
    assert kernel.ask("comm_info_request", {"target_name": "here"})["comms"] == {"new": {"target_name": "here"}}
    kernel.published(kernel.send("comm_close", {"comm_id": "new", "data": {}}))
    assert list(kernel.ask("comm_info_request")["comms"]) == [ident]
    sent = kernel.send("comm_open", {"comm_id": "lost", "target_name": "nowhere", "data": {}})
    assert "comm_close" in kinds(kernel.published(sent))


def test_code_cannot_publish_other_messages(kernel):
    reply, messages = kernel.run("""
from workcell_kernel import notebook
for kind in ('status', 'error', 'execute_result', 'shutdown_reply', 5):
    notebook.tell(kind, {'execution_state': 'dead', 'content': {}})
notebook.send({notebook.HEAD: b'[' * 100000})
notebook.send({notebook.HEAD: b'{"type": "display_data", "metadata": 5}', 'text/plain': b'x'})""")
    assert reply["status"] == "ok", reply
    assert kinds(messages) == ["execute_input", "display_data"] and messages[1]["content"]["metadata"] == {}


HOSTILE = {
    "json without numbers": "display({'application/json': {'a': float('nan'), 'b': float('-inf')}, 'text/plain': 'x'}, raw=True)",
    "surrogates": "print('\\ud800'); display({'text/plain': '\\udfff'}, raw=True); '\\ud800'",
    "bytes that are no text": "import os; os.write(1, bytes(range(256)))\ndisplay({'text/plain': b'\\xff', 'image/png': 'not base64'}, raw=True)",
    "types that are none": "display({5: 'x', '': 'y', 'a' * 100_000: 'z', 'text/plain': ['list'], 'text/html': None}, raw=True)",
    "metadata": "from IPython.display import publish_display_data\npublish_display_data({'text/plain': 'x'}, metadata={'a': float('nan'), 'b': {1, 2}, 5: object()})",
    "display ids": "for each in (5, b'x', 'y' * 1_000_000, '\\ud800', None, {}):\n  try: display('x', display_id=each)\n  except Exception: pass",
    "names of exceptions": "raise type('E\\ud800\\x1b[2J', (Exception,), {})('\\ud800')",
    "an exception without a text": "class E(Exception):\n  def __str__(self): raise SystemExit(5)\nraise E",
    "a traceback of its own": "class E(Exception):\n  def _render_traceback_(self): return [5, None, b'x', float('nan')]\nraise E",
    "representations": "class A:\n  def _repr_mimebundle_(self, **more): return {'text/html': float('nan'), 7: 8}, {'a': {1}}\n  def __repr__(self): raise KeyboardInterrupt\nA()",
    "payloads": "ip = get_ipython()\nip.set_next_input('\\ud800' * 10)\nfor each in (5, {'source': object()}, {'source': 'page', 'data': float('nan')}):\n"
                "  try: ip.payload_manager.write_payload(each)\n  except Exception: pass",
    "comms": "import comm\nfor data in (float('nan'), {'a': float('inf')}, {1: {2}}, object(), '\\ud800', {'a': b'x'}):\n"
             "  try: comm.create_comm(target_name='\\ud800', data=data, metadata={'a': float('nan')}, comm_id='x\\x00')\n  except Exception: pass",
    "depth": "deep = []\nfor _ in range(100_000): deep = [deep]\ntry: display({'application/json': deep}, raw=True)\nexcept RecursionError: pass",
    "streams that are replaced": "import sys\nsys.stdout = sys.stderr = sys.displayhook = None\n5",
    "a hook of its own": "import sys, builtins\nsys.excepthook = sys.unraisablehook = lambda *given: 1 / 0\nbuiltins.print = builtins.repr = builtins.len = None\n1 / 0",
}


def strict(text):
    """JSON as a browser reads it: no NaN."""
    def refuse(word):
        raise AssertionError("%s is no JSON" % word)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_cells(shared_kernel, name):
    """Whatever code publishes, every message can be read, the cell is answered, and so is the next one."""
    kernel = shared_kernel
    kernel.session.unpack = strict
    reply, messages = kernel.run(HOSTILE[name], user_expressions={"a": "float('nan')", "b": "'\\ud800'", "c": "(_ for _ in ()).throw(SystemExit)"}, stop_on_error=False)
    assert reply["status"] in ("ok", "error")
    for each in messages:
        content = each["content"]
        if each["msg_type"] in ("display_data", "execute_result", "update_display_data"):
            assert all(isinstance(kind, str) for kind in content["data"]) and isinstance(content["metadata"], dict)
        if each["msg_type"] == "error":
            assert all(isinstance(line, str) for line in content["traceback"])
    for ask, given in (("complete_request", {"code": "A().", "cursor_pos": 4}), ("inspect_request", {"code": "deep", "cursor_pos": 2, "detail_level": 1}),
                       ("comm_info_request", {}), ("history_request", {"hist_access_type": "tail", "n": 3, "output": True, "raw": True})):
        assert kernel.ask(ask, given)["status"] == "ok"
    kernel.run("import sys\nsys.stdout, sys.stderr, sys.displayhook = sys.__stdout__, sys.__stderr__, sys.__displayhook__")
    assert kernel.run("import os; os._exit(0)")[0]["status"] == "error"  # a fresh kernel for the next test
    assert kernel.value("6 * 7") == "42"


ODD = [{}, {"code": 5, "cursor_pos": "x", "data": 7}, {"code": None, "cursor_pos": 2**62, "detail_level": -2**62, "comm_id": 5, "target_name": []},
       {"code": "\x00'\x00", "cursor_pos": -5, "comm_id": {}, "target_name": "\x00", "data": None}, {"code": "x = 'ä😀'", "cursor_pos": 7, "comm_id": "foreign"},
       {"code": ["1"], "silent": "yes", "store_history": [], "user_expressions": {"a": 5, "b": None, "": "1"}, "comm_id": "\u2028" * 1000},
       {"hist_access_type": 5, "n": -1, "start": 2**62, "stop": -2**62, "session": "x", "pattern": {}, "code": "1", "user_expressions": [1, 2]},
       {"hist_access_type": "search", "pattern": "*" * 2000 + "x", "n": 2**62, "unique": 7, "code": "def f(\n" * 3000, "cursor_pos": 3}]


@pytest.mark.parametrize("kind", ["execute", "complete", "inspect", "is_complete", "history", "comm_info", "kernel_info", "comm_open", "comm_msg", "comm_close"])
def test_odd_requests(shared_kernel, kind):
    """A client that fills in what it likes: each request is answered, and the kernel goes on. Comms of others have no ids here."""
    kernel = shared_kernel
    for content in ODD:
        if kind.startswith("comm_") and kind != "comm_info":
            assert set(kinds(kernel.published(kernel.send(kind, content)))) <= {"error", "comm_close"}
        else:
            assert kernel.ask(kind + "_request", {"stop_on_error": False, **content})["status"] in ("ok", "error", "complete", "incomplete", "invalid", "unknown")
    kernel.send("no\x1b[2Jsuch_request")
    assert kernel.value("6 * 7") == "42"
    assert "\x1b" not in kernel.read_log()


def test_a_flood_of_invalid_messages_does_not_fill_the_log(kernel):
    for _ in range(500):
        kernel.sockets["shell"].send_multipart([b"x"])
    assert kernel.value("6 * 7") == "42"
    dropped = [line for line in kernel.read_log().splitlines() if "without its delimiter" in line]
    assert len(dropped) == 102 and dropped[-1].endswith("256 messages by now"), dropped[-3:]


# -- life

def test_the_end_and_a_restart(tmp_path):
    kernel = Kernel(tmp_path).ready()
    assert kernel.sockets["hb"].send(b"ping") is None and kernel.sockets["hb"].recv() == b"ping"
    kernel.start("import time; time.sleep(60)")
    kernel.receive("iopub")
    assert kernel.ask("shutdown_request", {"restart": True}, "control") == {"status": "ok", "restart": True}
    kernel.close(told=True)
    again = Kernel(tmp_path).ready()
    assert again.value("1 + 1") == "2"
    again.ask("shutdown_request", {"restart": False})  # on the shell channel, as old clients do
    again.close(told=True)


def test_a_kernel_that_dies(kernel):
    kernel.run("x = 1")
    reply, _ = kernel.run("import os; os._exit(3)")
    assert reply["status"] == "error" and reply["ename"] == "KernelDied"
    reply, messages = kernel.run("'x' in globals()")
    assert messages[-1]["content"]["data"] == {"text/plain": "False"} and reply["execution_count"] == 1
    kernel.run(COMMS)  # a fresh kernel has all of it too


def test_it_ends_with_the_program_that_started_it(tmp_path):
    parent = popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    kernel = Kernel(tmp_path, env=support.host_environment(JPY_PARENT_PID=str(parent.pid))).ready()
    parent.communicate(b"\n", timeout=DEADLINE)
    kernel.process.wait(DEADLINE)
    kernel.close()


def test_messages_that_are_not_from_a_client_are_dropped(start):
    kernel = start()
    stranger = Session(key=b"guessed", signature_scheme="hmac-sha256")
    stranger.send(kernel.sockets["shell"], "execute_request", {"code": "open('pwned', 'w')"})
    message = kernel.session.msg("execute_request", {"code": "open('pwned', 'a').write('x')"})
    parts = kernel.session.serialize(message)
    for _ in range(2):
        kernel.sockets["shell"].send_multipart(parts)  # the second is a replay
    for bad in ([b"x"], [b"<IDS|MSG>"], [b"<IDS|MSG>", b"", b"{}", b"{}", b"{}", b"{}"], parts + [b"x"] * 100):
        kernel.sockets["shell"].send_multipart(bad)
    kernel.receive("shell")
    assert kernel.value("open('pwned').read()") == "'x'"
    log = kernel.read_log()
    assert "wrong signature" in log and "sent before" in log and "too many parts" in log and "without its delimiter" in log


@pytest.mark.parametrize("changes, words", [
    ({"key": ""}, "no key"), ({"signature_scheme": "hmac-md5"}, "hmac-sha256"), ({"transport": "udp"}, "tcp or ipc"), ({"shell_port": 0}, "shell_port"),
    ({"ip": ""}, "no ip"), ({"key": "k" * 300}, "256 bytes"), ({"ip": "/" + "x" * 300}, "ip is too long"),
])
def test_connection_files_that_are_refused(tmp_path, changes, words):
    done = workcell("jupyter", "kernel", "-f", connection(tmp_path, **changes), "--executor", "subprocess")
    assert done.status != 0 and words in done.err, done


def test_a_sandboxed_notebook(start):
    kernel = start("--workspace-mode", "rw", executor="sandbox")
    assert kernel.value("open('made', 'w').write('x')") == "1" and (kernel.work / "made").read_text() == "x"
    reply, _ = kernel.run("open(%r).read()" % str(kernel.file))
    assert reply["ename"] == "FileNotFoundError"  # the key of the connection
    assert kernel.run("import socket; socket.create_connection(('127.0.0.1', 1))")[0]["status"] == "error"
    ident = kernel.start("input('?')")
    answer_input(kernel, "typed", "?")
    assert kernel.published(ident)[-1]["content"]["data"]["text/plain"] == "'typed'"
    kernel.receive("shell")
    assert kinds(kernel.run(COMMS)[1]) == ["execute_input", "comm_open", "comm_msg"]
    kernel.start("print('runs')\nwhile True: pass")
    while kernel.receive("iopub")["header"]["msg_type"] != "stream":  # control may overtake shell
        pass
    assert kernel.ask("interrupt_request", port="control") == {"status": "ok"}
    assert kernel.receive("shell")["content"]["ename"] == "KeyboardInterrupt"


# -- kernelspecs

@pytest.fixture
def data(tmp_path):
    return support.host_environment(JUPYTER_DATA_DIR=str(tmp_path / "data"))


def test_install_list_uninstall(tmp_path, data):
    done = workcell("jupyter", "install", "--name", "mine", "--python", PYTHON, "--tools", "tools", "--env=A=b", "--timeout", 5,
                    "--display-name", "Mine", env=data, cwd=tmp_path)
    assert done.status == 0 and "executor sandbox" in done.out, done
    folder = tmp_path / "data" / "kernels" / "mine"
    spec = json.loads((folder / "kernel.json").read_text())
    assert spec["argv"] == [BIN, "jupyter", "kernel", "-f", "{connection_file}", "--executor", "sandbox", "--python", PYTHON, "--tools",
                            str(tmp_path / "tools"), "--env", "A=b", "--timeout", "5"]
    assert spec["display_name"] == "Mine" and spec["interrupt_mode"] == "message" and os.listdir(folder) == ["kernel.json"]
    listed = json.loads(workcell("jupyter", "list", "--json", env=data).out)
    assert [(each["name"], each["executor"]) for each in listed] == [("mine", "sandbox")]
    assert workcell("jupyter", "install", "--name", "mine", "--executor", "subprocess", env=data).status == 0  # ours: replaced
    assert json.loads((folder / "kernel.json").read_text())["argv"][6] == "subprocess"
    assert workcell("jupyter", "uninstall", "--name", "mine", env=data).status == 0 and not folder.exists()
    done = workcell("jupyter", "uninstall", "--name", "mine", env=data)
    assert done.status == 1 and "there is no kernel mine" in done.err


def test_kernelspecs_of_others_stay(tmp_path, data):
    folder = tmp_path / "data" / "kernels" / "other"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text('{"argv": ["x"]}')
    done = workcell("jupyter", "install", "--name", "other", "--executor", "subprocess", env=data)
    assert done.status == 1 and "--replace" in done.err
    done = workcell("jupyter", "uninstall", "--name", "other", env=data)
    assert done.status == 1 and "not a kernel of Workcell" in done.err
    assert json.loads((folder / "kernel.json").read_text()) == {"argv": ["x"]}
    assert workcell("jupyter", "install", "--name", "other", "--executor", "subprocess", "--replace", env=data).status == 0


@pytest.mark.parametrize("arguments, words", [
    (["install", "--name", "../up"], "--name must be"), (["install", "--name", ""], "--name must be"), (["install", "--name", "x" * 101], "--name must be"),
    (["install", "--user", "--prefix", "/x"], "exclude each other"), (["install", "--executor", "nowhere"], "nowhere"),
    (["install", "--executor", "remote", "--remote-url", "http://x"], "subprocess and sandbox"), ([], "usage:"), (["kernel"], "-f FILE"), (["kernel", "-f", "/none"], "--executor"),
])
def test_wrong_use(data, arguments, words):
    done = workcell("jupyter", *arguments, env=data)
    assert done.status == 2 and words in done.err, done


def test_prefix(tmp_path, data):
    assert workcell("jupyter", "install", "--prefix", "here", "--executor", "subprocess", env=data, cwd=tmp_path).status == 0
    assert (tmp_path / "here/share/jupyter/kernels/workcell/kernel.json").exists()


def test_jupyter_client_starts_it(tmp_path, data):
    """By its own manager, over TCP: start, run, interrupt, restart, end."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import KernelManager

    # The spare, which serves after the restart, would wait for this process's next notebook.
    assert workcell("jupyter", "install", "--executor", "subprocess", "--python", PYTHON, "--keep-ready", "1", env=data).status == 0
    specs = KernelSpecManager(kernel_dirs=[str(tmp_path / "data" / "kernels")])
    manager = KernelManager(kernel_name="workcell", kernel_spec_manager=specs, connection_file=str(tmp_path / "kernel.json"))
    manager.start_kernel(env=data, cwd=tmp_path)
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=DEADLINE)
        assert client.execute_interactive("x = 6 * 7", timeout=DEADLINE)["content"]["status"] == "ok"
        manager.restart_kernel()
        client.wait_for_ready(timeout=DEADLINE)
        assert client.execute_interactive("x", timeout=DEADLINE)["content"]["ename"] == "NameError"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
