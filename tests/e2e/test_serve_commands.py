"""Commands of a session over HTTP: streams, stdin, terminals, signals, limits; and what commands and clients do to get further than code."""
import base64
import glob
import json
import threading
import time

import pytest

import serving
import support

PYTHON = "/usr/bin/python3"
ALICE, BOB, READER = "t0ken-of-alice", "t0ken-of-bob", "t0ken-of-the-reader"
STREAM = (("Accept", "text/event-stream"),)


@pytest.fixture(scope="module", params=["subprocess", "sandbox"])
def server(request, tmp_path_factory):
    with serving.shared("--executor", request.param, "--base", tmp_path_factory.mktemp("base"), python=PYTHON) as made:
        made.executor = request.param
        yield made


@pytest.fixture(scope="module")
def commands(server):
    session = server.session()
    yield "/v1/sessions/%s/commands" % session
    server.ask("DELETE", "/v1/sessions/" + session)


def of(commands):
    return commands.split("/")[3]


def start(server, commands, line=None, **body):
    answer = server.ask("POST", commands, dict(body, line=line) if line else body)
    assert answer.status == 201, answer
    return commands + "/" + answer.json["command_id"]


def follow(server, command, after=None):
    """What a command wrote to each stream, and its description at its end."""
    answer = server.ask("GET", command + "/output", headers=(("Last-Event-ID", str(after)),) if after is not None else ())
    assert answer.status == 200, answer
    return collect(answer.body.decode())


def collect(text):
    out, end = {}, None
    for event in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in event.split("\n") if ": " in line)
        data = json.loads(fields["data"]) if "data" in fields else {}
        if fields.get("event") == "chunk":
            piece = data["text"].encode() if "text" in data else base64.b64decode(data["base64"])
            out[data["stream"]] = out.get(data["stream"], b"") + piece
        elif fields.get("event") == "gap":
            out["gap"] = out.get("gap", 0) + data["dropped"]
        elif fields.get("event") == "ended":
            end = data
    return out, end


def run(server, commands, line=None, **body):
    answer = server.ask("POST", commands, dict(body, line=line) if line else body, headers=STREAM)
    assert answer.status == 200, answer
    return collect(answer.body.decode())


def test_streams_and_status(server, commands):
    out, end = run(server, commands, "echo out; echo err >&2; exit 3")
    assert (out, end["exit_code"], end["signal"], end["state"]) == ({"stdout": b"out\n", "stderr": b"err\n"}, 3, None, "ended")


def test_bytes_that_are_not_text(server, commands):
    out, _ = run(server, commands, argv=["printf", "a\\377b\\342\\202\\254"])
    assert out["stdout"] == b"a\xffb\xe2\x82\xac"


def test_the_place_is_the_codes(server, commands):
    code = "import os, json; json.dumps([os.getcwd(), os.environ.get('HOME'), os.getuid(), os.uname().nodename])"
    expected = json.loads(server.execute(code, session=of(commands))["value"])
    out, _ = run(server, commands, argv=["python3", "-c", "import os, json; print(json.dumps([os.getcwd(), os.environ.get('HOME'), "
                                         "os.getuid(), os.uname().nodename]))"])
    assert json.loads(out["stdout"]) == expected


def test_files_are_shared_with_the_code(server, commands):
    server.execute("open('from-code', 'w').write('1')", session=of(commands))
    out, _ = run(server, commands, "cat from-code; echo 2 > from-command; echo 3 > /tmp/wc-cmd-$$; echo /tmp/wc-cmd-$$")
    assert out["stdout"].startswith(b"1")
    path = out["stdout"].decode()[1:].strip()
    assert server.execute("open('from-command').read() + open(%r).read()" % path, session=of(commands))["value"] == "2\n3\n"
    server.execute("import os; os.remove(%r)" % path, session=of(commands))


def test_cwd_and_variables(server, commands):
    server.execute("import os; os.makedirs('sub', exist_ok=True)", session=of(commands))
    out, _ = run(server, commands, 'echo "$PWD" "$A" "$PATH"', cwd="sub", env={"A": "x=y z", "PATH": "/usr/bin:/bin"})
    assert out["stdout"].decode().split("/sub ")[1] == "x=y z /usr/bin:/bin\n"


@pytest.mark.parametrize("body, status, code", [
    ({}, 400, "invalid"), ({"argv": []}, 422, "invalid"), ({"argv": [""]}, 400, "invalid"), ({"argv": ["a\0b"]}, 400, "invalid"),
    ({"argv": ["ls"], "line": "ls"}, 400, "invalid"), ({"argv": ["nope-nope"]}, 404, "not_found"),
    ({"argv": ["/etc"]}, 400, "invalid"), ({"argv": ["ls"], "cwd": "/nope"}, 400, "invalid"),
    ({"argv": ["ls"], "env": {"A=B": "1"}}, 400, "invalid"), ({"argv": ["ls"], "env": {"": "1"}}, 400, "invalid"),
    ({"argv": ["ls"], "env": {"A": "b\0c"}}, 400, "invalid"), ({"argv": ["true", "x" * 200_000]}, 429, "limit"),
    ({"argv": ["true"] * 4097}, 422, "invalid"), ({"argv": ["ls"], "tty": {"rows": 0, "cols": 1}}, 422, "invalid"),
])
def test_hostile_requests(server, commands, body, status, code):
    answer = server.ask("POST", commands, body)
    assert answer.status // 100 == 4, answer
    if status not in (422, 429):
        assert (answer.status, answer.code) == (status, code)


def test_a_link_in_place_of_the_folder(server, commands):
    server.execute("import os; os.path.islink('out') or os.symlink('/root', 'out')", session=of(commands))
    answer = server.ask("POST", commands, {"line": "pwd -P", "cwd": "out"}, headers=STREAM)
    if server.executor == "sandbox":  # its own /root, or nothing: as the code
        inside = server.execute("import os; os.path.exists('/root/.bashrc')", session=of(commands))["value"]
        assert inside is False
    assert answer.status in (200, 400)


def test_stdin(server, commands):
    command = start(server, commands, argv=["cat"], stdin=True)
    assert server.ask("POST", command + "/stdin", {"text": "a\0b"}).status == 204
    assert server.ask("POST", command + "/stdin", {"base64": base64.b64encode(b"\xff").decode(), "close": True}).status == 204
    assert follow(server, command)[0] == {"stdout": b"a\0b\xff"}
    answer = server.ask("POST", command + "/stdin", {"text": "x"})
    assert answer.code == "closed"


def test_no_stdin_is_its_end(server, commands):
    command = start(server, commands, argv=["cat"])
    assert follow(server, command)[1]["exit_code"] == 0


def test_a_command_that_does_not_read(server, commands):
    command = start(server, commands, argv=["sleep", "100"], stdin=True)
    answers = [server.ask("POST", command + "/stdin", {"text": "x" * 500_000}) for _ in range(5)]
    assert answers[0].status == 204 and answers[-1].code == "limit"
    assert server.ask("DELETE", command).status == 204


def test_a_terminal(server, commands):
    command = start(server, commands, argv=["sh"], tty={"rows": 10, "cols": 50}, env={"PS1": "> "})
    assert server.ask("POST", command + "/stdin", {"text": "stty size; test -t 0 && echo a-tty\n"}).status == 204
    support.wait_until(lambda: server.ask("GET", command).json["output"] > 40, "output of the terminal")
    assert server.ask("POST", command + "/resize", {"rows": 20, "cols": 66}).status == 204
    server.ask("POST", command + "/stdin", {"text": "stty size; sleep 100\n"})
    time.sleep(0.3)
    server.ask("POST", command + "/stdin", {"text": "\x03"})
    server.ask("POST", command + "/stdin", {"close": True})
    out, end = follow(server, command)
    assert b"10 50" in out["pty"] and b"a-tty" in out["pty"] and b"20 66" in out["pty"] and end["exit_code"] == 130


@pytest.mark.parametrize("name, number", [("TERM", 15), ("SIGINT", 2), ("9", 9)])
def test_signals(server, commands, name, number):
    command = start(server, commands, argv=["sleep", "100"])
    assert server.ask("POST", command + "/signal", {"signal": name}).status == 204
    end = follow(server, command)[1]
    assert (end["signal"], end["exit_code"]) == (number, 128 + number)
    assert server.ask("POST", command + "/signal", {"signal": "SEGV"}).code == "invalid"


def test_kill_reaches_what_it_started(server, commands):
    mark = "7%d" % (time.time_ns() % 10 ** 8)
    command = start(server, commands, "(setsid setsid sleep %s &) ; (trap '' TERM HUP; sleep %s) & sleep %s" % (mark, mark, mark))
    count = "sum(open('/proc/%%s/cmdline' %% p, 'rb').read().split(b'\\0')[1:2] == [b'%s'] for p in __import__('os').listdir('/proc') " \
            "if p.isdigit() and __import__('os').path.exists('/proc/%%s/cmdline' %% p))" % mark
    support.wait_until(lambda: server.execute(count, session=of(commands))["value"] == 3, "three processes")
    server.ask("POST", command + "/signal", {"signal": "KILL"})
    assert follow(server, command)[1]["reason"] == "killed"
    support.wait_until(lambda: server.execute(count, session=of(commands))["value"] == 0, "the end of the processes")


def test_timeout(server, commands):
    began = time.monotonic()
    end = run(server, commands, "sleep 100", timeout=0.2)[1]
    assert end["reason"] == "timeout" and time.monotonic() - began < 10


def test_a_flood_is_bounded_and_a_reader_misses_nothing(server, commands):
    command = start(server, commands, "head -c 30000000 /dev/zero; echo done >&2")
    support.wait_until(lambda: server.ask("GET", command).json["state"] == "ended", "the end of the command")
    told = server.ask("GET", command).json
    assert told["output"] == 30000005 and told["dropped"] > 28_000_000
    out, _ = follow(server, command)
    assert out["gap"] == told["dropped"] and out["gap"] + len(out["stdout"]) + len(out["stderr"]) == 30000005
    out, _ = run(server, commands, "head -c 8000000 /dev/zero")
    assert len(out["stdout"]) == 8_000_000 and "gap" not in out


def test_a_stream_goes_on(server, commands):
    command = start(server, commands, "echo one; echo two")
    assert follow(server, command)[0] == {"stdout": b"one\ntwo\n"}
    assert follow(server, command, after=4)[0] == {"stdout": b"two\n"}
    assert follow(server, command, after=8)[0] == {}


def test_a_busy_cell_does_not_delay_it(server, commands):
    cell = threading.Thread(target=server.execute, args=("import time; time.sleep(3)",), kwargs={"session": of(commands)})
    cell.start()
    began = time.monotonic()
    assert run(server, commands, "echo now")[0] == {"stdout": b"now\n"}
    assert time.monotonic() - began < 2.5
    cell.join()


def test_many_at_once(server, commands):
    many = [start(server, commands, argv=["sleep", "100"], tag="n%d" % i) for i in range(100)]
    listed = [each for each in server.ask("GET", commands).json["commands"] if each["state"] == "running"]
    assert [each["tag"] for each in listed] == ["n%d" % i for i in range(100)]
    assert len({each["pid"] for each in listed}) == 100
    for command in many:
        assert server.ask("DELETE", command).status == 204
    assert server.ask("GET", many[0]).status == 404
    assert run(server, commands, "echo ok")[0] == {"stdout": b"ok\n"}


def test_a_reset_ends_it(server):
    session = server.session()
    commands = "/v1/sessions/%s/commands" % session
    command = start(server, commands, argv=["sleep", "100"])
    assert server.ask("POST", "/v1/sessions/%s/reset" % session).status == 200
    assert follow(server, command)[1]["reason"] == "session"
    assert run(server, commands, "echo again")[0] == {"stdout": b"again\n"}
    server.ask("DELETE", "/v1/sessions/" + session)


def test_it_ends_with_its_session(server):
    session = server.session()
    commands = "/v1/sessions/%s/commands" % session
    mark = "8%d" % (time.time_ns() % 10 ** 8)
    start(server, commands, "setsid sleep %s & sleep %s" % (mark, mark))
    support.wait_until(lambda: len(sleepers(mark)) >= 2, "two processes")
    assert server.ask("DELETE", "/v1/sessions/" + session).status == 204
    support.wait_until(lambda: not sleepers(mark), "the end of the processes")


def sleepers(mark):
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[:1] == [b"sleep"] and mark.encode() in words:
            found.append(path)
    return found


def test_others_have_no_access(server):
    session = server.session(token=ALICE)
    commands = "/v1/sessions/%s/commands" % session
    made = server.ask("POST", commands, {"argv": ["sleep", "100"], "stdin": True}, token=ALICE)
    command = commands + "/" + made.json["command_id"]
    routes = [("GET", commands, None), ("POST", commands, {"argv": ["id"]}), ("GET", command, None), ("GET", command + "/output", None),
              ("POST", command + "/stdin", {"text": "x"}), ("POST", command + "/signal", {"signal": "KILL"}),
              ("POST", command + "/resize", {"rows": 1, "cols": 1}), ("DELETE", command, None)]
    for method, path, body in routes:
        assert server.ask(method, path, body, token=BOB).status == 404, (method, path)
        assert server.ask(method, path, body, token=READER).status == (404 if method == "GET" else 403), (method, path)
        assert server.ask(method, path, body, token="t0ken-of-nobody").status == 401, (method, path)
    other = server.session(token=BOB)
    assert server.ask("GET", "/v1/sessions/%s/commands/%s" % (other, made.json["command_id"]), token=BOB).status == 404
    assert server.ask("GET", command, token=ALICE).json["state"] == "running"
    for token, each in ((ALICE, session), (BOB, other)):
        server.ask("DELETE", "/v1/sessions/" + each, token=token)


# ---- confinement ----

STATUS = ("import re; text = open('/proc/self/status').read(); "
          "found = [re.search('^%s:\\\\s*(.*)$' % name, text, re.M).group(1) for name in ('Uid', 'Gid', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', "
          "'NoNewPrivs', 'Seccomp')]; import os; found += [os.readlink('/proc/self/ns/' + n) for n in "
          "('user', 'mnt', 'pid', 'net', 'ipc', 'uts', 'cgroup')]; found.append(open('/proc/self/cgroup').read()); "
          "import resource; found.append([resource.getrlimit(n) for n in range(16)])")


def test_its_confinement_is_the_codes(server, commands):
    """
    A program that a cell starts, and a command, are told apart by nothing but one seccomp filter: kernels also have that of their zygote,
    which forbids less than their own.
    """
    program = STATUS + "; import json; print(json.dumps(found))"
    cell = server.execute("import subprocess; subprocess.run(['python3', '-c', %r], capture_output=True, text=True).stdout" % program,
                          session=of(commands))
    out, _ = run(server, commands, argv=["python3", "-c", program])
    assert json.loads(out["stdout"]) == json.loads(cell["value"])
