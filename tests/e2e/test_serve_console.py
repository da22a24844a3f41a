"""The console's routes without a browser: files, login, cookie and proof, what they are good for; the events of a session; policy, audit log, executors."""
import concurrent.futures
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading

import pytest

import serving
import support

POLICY = """rules:
  - {name: mail, tool: "echo*", kind: tool, decision: ask, reason: it leaves the machine}
default: allow
"""


@pytest.fixture(scope="module")
def server():
    folder = support.temporary_folder("workcell-tests-console-")
    os.makedirs(os.path.join(folder, "base", "tools"))
    for name, text in (("base/tools/echo.yaml", serving.ECHO_TOOL), ("policy.yaml", POLICY)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    flags = ["--base", os.path.join(folder, "base"), "--policy", os.path.join(folder, "policy.yaml"), "--audit", os.path.join(folder, "audit.jsonl")]
    with serving.shared(serving.Server(*flags, "--executor", "subprocess", "--console")) as shared:
        yield shared


def login(server, token=serving.TOKEN, **body):
    answer = server.ask("POST", "/console/login", body or {"token": token}, token=None)
    assert answer.status == 200, answer
    cookie = answer.headers["Set-Cookie"]
    return cookie, {"Cookie": cookie.split(";")[0], "X-CSRF-Token": answer.json["csrf"]}


def test_the_files(server):
    page = server.ask("GET", "/console/", token=None)
    assert page.status == 200 and page.headers["Content-Encoding"] == "gzip" and page.headers["Content-Type"].startswith("text/html")
    text = gzip.decompress(page.body).decode()
    # No script and no style in the page, nothing from elsewhere.
    assert not re.search(r"<script(?![^>]* src=)|<style|https?://|style=|\son\w+=", text)
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    total = 0
    for name in re.findall(r'(?:href|src)="([^"]+)"', text) + ["frame", "frame.js"]:
        answer = server.ask("GET", "/console/" + name, token=None)
        assert answer.status == 200, name
        total += len(answer.body)
        again = server.ask("GET", "/console/" + name, token=None, headers={"If-None-Match": answer.headers["ETag"]})
        assert again.status == 304 and not again.body
    assert total < 400_000
    assert server.ask("GET", "/console/../openapi.json", token=None).status in (401, 404)
    assert server.ask("GET", "/console/nothing.js", token=None).status == 404
    assert server.ask("GET", "/console", token=None).headers["Location"] == "/console/"


def test_the_frame_has_an_origin_of_its_own(server):
    for query, runs in (("", False), ("?scripts=true", True)):
        frame = server.ask("GET", "/console/frame" + query, token=None)
        assert frame.headers["X-DNS-Prefetch-Control"] == "off"
        policy = frame.headers["Content-Security-Policy"]
        assert policy.startswith("sandbox allow-scripts;") and "allow-same-origin" not in policy and "default-src 'none'" in policy and "connect-src" not in policy
        assert ("script-src 'self' 'unsafe-inline'" in policy) == runs


def test_login_and_what_it_is_good_for(server):
    cookie, headers = login(server)
    assert "; HttpOnly; SameSite=Strict" in cookie and "Path=/" in cookie and "Secure" not in cookie
    assert serving.TOKEN not in cookie
    who = server.ask("GET", "/v1/whoami", token=None, headers=headers).json
    assert who["name"] == "all" and "approve" in who["scopes"] and who["audit"]
    session = server.session(token=None, headers=headers)
    assert server.ask("GET", "/v1/sessions/" + session).json["owner"] == "all"
    # Behind a proxy with a certificate the cookie is for such connections alone.
    host = "127.0.0.1:%d" % server.port
    answer = server.ask("POST", "/console/login", {"token": serving.TOKEN}, token=None, headers={"Origin": "https://" + host})
    assert answer.status == 403 or "; Secure" in answer.headers["Set-Cookie"]
    gone = server.ask("POST", "/console/logout", token=None, headers=headers)
    assert gone.status == 204 and "Max-Age=0" in gone.headers["Set-Cookie"]
    _, reader = login(server, "t0ken-of-the-reader")
    assert server.ask("POST", "/v1/sessions", token=None, headers=reader).code == "forbidden"


def test_a_wrong_login(server):
    for body in ({"token": "wrong"}, {"token": ""}, {}, {"code": "0" * 32}, {"token": "a b\r\nX: y"}):
        answer = server.ask("POST", "/console/login", body, token=None)
        assert answer.status == 401 and answer.code == "unauthorized" and "Set-Cookie" not in answer.headers, body
    assert server.ask("POST", "/console/login", {"token": 7}, token=None).status == 422


def test_the_cookie_alone_is_not_enough(server):
    _, headers = login(server)
    cookie = {"Cookie": headers["Cookie"]}
    _, other = login(server, "t0ken-of-alice")
    for bad in (cookie, {**cookie, "X-CSRF-Token": "0" * 64}, {**cookie, "X-CSRF-Token": other["X-CSRF-Token"]}, {**headers, "Sec-Fetch-Site": "same-site"},
                {**headers, "Sec-Fetch-Site": "cross-site"}, {**headers, "Origin": "http://evil.example"}):
        for method, path in (("GET", "/v1/sessions"), ("POST", "/v1/sessions")):
            answer = server.ask(method, path, token=None, headers=bad)
            assert answer.status == 403 and answer.code == "forbidden", bad
    assert server.ask("GET", "/v1/sessions", token=None, headers={"X-CSRF-Token": headers["X-CSRF-Token"]}).status == 401


def test_a_forged_or_old_cookie(server):
    _, headers = login(server)
    name, _, seal = headers["Cookie"].partition("=")
    person, until, nonce, mac = seal.split(".")
    for forged in (".".join((b"alice".hex(), until, nonce, mac)), ".".join((person, str(int(until) + 1), nonce, mac)), ".".join((person, "1", nonce, mac)), "x", "....", person):
        answer = server.ask("GET", "/v1/whoami", token=None, headers={**headers, "Cookie": "%s=%s" % (name, forged)})
        assert answer.status == 401 and answer.code == "unauthorized", forged


def test_a_replaced_token_ends_its_logins():
    server = serving.Server("--executor", "subprocess", "--console")
    try:
        _, headers = login(server, "t0ken-of-alice")
        with open(server.tokens, "w", encoding="utf-8") as file:
            file.write(serving.TOKENS.replace("t0ken-of-alice", "an0ther-of-alice"))
        support.wait_until(lambda: server.ask("GET", "/v1/whoami", token=None, headers=headers).status == 401, lambda: "the old login is still good")
    finally:
        server.close()


def test_without_the_flag():
    server = serving.Server("--executor", "subprocess")
    try:
        assert server.ask("GET", "/console/", token=None).status == 404
        assert server.ask("POST", "/console/login", {"token": serving.TOKEN}, token=None).status == 404
        session = server.session()
        answer = server.ask("GET", "/v1/sessions/%s/events" % session)
        assert answer.status == 404 and "--console" in answer.json["detail"]
    finally:
        server.close()


def history(server, session, **options):
    text = server.ask("GET", "/v1/sessions/%s/events?follow=false" % session, **options).body.decode()
    return [(re.search("^event: (.*)$", block, re.M).group(1), json.loads(re.search("^data: (.*)$", block, re.M).group(1))) for block in text.split("\n\n") if "data: " in block]


def test_the_events_of_a_session(server):
    session = server.session()
    server.execute("print('out')\nx = 6\nx * 7", session=session)
    server.execute("1 / 0", session=session)
    thread = threading.Thread(target=server.execute, args=("tools.echo.say(text='hi')",), kwargs={"session": session})
    thread.start()
    waiting = support.wait_until(lambda: server.ask("GET", "/v1/sessions/%s/approvals" % session).json["approvals"], lambda: "it does not ask")
    assert waiting[0]["reason"] == "it leaves the machine" and waiting[0]["rule"] == "mail" and waiting[0]["waited_ms"] >= 0
    assert server.ask("POST", "/v1/sessions/%s/approvals/%d" % (session, waiting[0]["id"]), {"accept": True}).status == 204
    thread.join()
    server.ask("POST", "/v1/sessions/%s/checkpoints" % session, {"name": "good"})
    server.ask("POST", "/v1/sessions/%s/reset" % session)
    events = history(server, session)
    assert [type_ for type_, _ in events] == ["cell", "chunk", "ended", "cell", "ended", "cell", "call_started", "approval", "approval_ended", "call_ended", "ended", "branch", "reset"]
    assert events[0][1]["code"] == "print('out')\nx = 6\nx * 7" and events[1][1] == {"run_id": 1, "stream": "stdout", "text": "out\n"}
    assert events[2][1]["repr"] == "42" and events[2][1]["error"] is None
    assert events[4][1]["error"]["type"] == "ZeroDivisionError" and "1 / 0" in events[4][1]["error"]["traceback"]
    assert events[9][1]["decision"] == "ok" and "hi" in events[9][1]["result"] and events[6][1]["args"] == {"text": "hi"}
    # Another client's sessions are not found.
    assert server.ask("GET", "/v1/sessions/%s/events" % session, token="t0ken-of-alice").status == 404
    assert server.ask("GET", "/v1/sessions/" + session).json["receipt"]["executor"] == "subprocess"


def test_what_ran_unseen_is_told_as_what_was_seen(server):
    """Nobody looks on: what is kept then becomes the same events, in the same order, when somebody comes."""
    cells = ["print('out', end='')", "import sys; print('err\\n\\x1b[31m', file=sys.stderr)", "sys.stdout.buffer.write(bytes(range(256))); sys.stdout.flush()", "'a \"value\" \\U0001f600'", "None", "1 / 0", "7",
             "class X:\n    def _repr_html_(self): return '<b>x</b>'\nX()", "display({'text/plain': 'p', 'text/html': '<i>h</i>'}, raw=True)", "'z' * 300000"]

    def told(looks):
        session = server.session()
        connection = server.open("GET", "/v1/sessions/%s/events" % session)[0] if looks else None
        for code in cells:
            server.execute(code, session=session)
        server.ask("POST", "/v1/sessions/%s/reset" % session)
        events = history(server, session)
        if connection:
            connection.close()
        for _, data in events:
            for name in ("at", "duration_ms"):
                data.pop(name, None)
        # Output may come in one chunk or several.
        texts = "".join(str(data.get("text", data.get("base64"))) for kind, data in events if kind == "chunk")
        return [(kind, data) for kind, data in events if kind != "chunk"], texts

    seen, texts = told(True)
    assert told(False) == (seen, texts) and texts
    ended = [data for kind, data in seen if kind == "ended"]
    plain = {"run_id": 7, "repr": "7", "parts": [{"type": "text/plain", "text": "7"}], "notices": [], "state": "kept", "error": None}
    assert ended[6] == plain and ended[4] == {**plain, "run_id": 5, "repr": None, "parts": []} and [each["type"] for each in ended[7]["parts"]].count("text/html") == 1


def test_numbers_go_on_when_unseen_events_are_dropped(server):
    session = server.session()
    server.execute("for _ in range(40): print('o' * (1 << 20))\nprint('the end')", session=session)
    first = server.ask("GET", "/v1/sessions/%s/events?follow=false" % session).body
    missed = json.loads(re.search(rb"event: gap\ndata: (.*)", first).group(1))["missed"]
    ids = [int(each) for each in re.findall(rb"^id: (\d+)$", first, re.M)]
    assert missed > 0 and ids == list(range(missed + 1, missed + 1 + len(ids))) and b"the end" in first
    server.execute("1", session=session)
    text = server.ask("GET", "/v1/sessions/%s/events?follow=false" % session, headers={"Last-Event-ID": str(ids[-1])}).body
    assert [int(each) for each in re.findall(rb"^id: (\d+)$", text, re.M)] == [ids[-1] + 1, ids[-1] + 2]
    server.ask("DELETE", "/v1/sessions/" + session)


def test_a_stream_has_a_name_of_its_own(server):
    """Numbers of events are those of one stream: a reader notices that a restarted server has another."""
    names = []
    for session in (server.session(), server.session()):
        answers = [server.ask("GET", "/v1/sessions/%s/events?follow=false" % session) for _ in range(2)]
        assert answers[0].headers["X-Stream-ID"] == answers[1].headers["X-Stream-ID"]
        names.append(answers[0].headers["X-Stream-ID"])
    assert names[0] != names[1] and all(re.fullmatch("[0-9a-f]{16}", each) for each in names)


def test_completions(server):
    session = server.session()
    server.execute("population = 1", session=session)
    found = server.ask("POST", "/v1/sessions/%s/complete" % session, {"code": "popul"}).json
    assert found["prefix"] == "popul" and "population" in found["matches"]
    assert server.ask("POST", "/v1/sessions/%s/complete" % session, {"code": "popul"}, token="t0ken-of-the-reader").code == "forbidden"
    server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": "while True: pass"})
    answer = server.ask("POST", "/v1/sessions/%s/complete" % session, {"code": "popul"})
    assert answer.status == 409 and answer.code == "busy"
    server.ask("POST", "/v1/sessions/%s/interrupt" % session)
    # It is no cell: nothing of it is in the history.
    assert [data["code"] for type_, data in history(server, session) if type_ == "cell"] == ["population = 1", "while True: pass"]


def test_policy_audit_and_doctor(server):
    policy = server.ask("GET", "/v1/policy").json
    assert policy == {"source": POLICY, "default": "allow", "rules": 1}
    verdict = server.ask("POST", "/v1/policy/try", {"tool": "echo", "callable": "say", "args": {"text": "x"}}).json
    assert verdict["decision"] == "ask" and verdict["rule"] == 1 and verdict["name"] == "mail"
    assert server.ask("POST", "/v1/policy/try", {"tool": "other"}).json["decision"] == "allow"
    assert server.ask("POST", "/v1/policy/try", {"tool": "x", "kind": "nothing"}).status == 422
    session = server.session()
    server.ask("POST", "/api/artifacts", {"name": "a", "data": "b", "description": ""}, session=session)
    support.wait_until(lambda: server.ask("GET", "/v1/audit?session=%s" % session).json["records"], lambda: "nothing is recorded")
    records = server.ask("GET", "/v1/audit?last=1").json["records"]
    assert len(records) == 1
    assert server.ask("GET", "/v1/audit?last=1001").status == 422
    assert server.ask("GET", "/v1/audit?tool=nothing*").json["records"] == []
    assert server.ask("GET", "/v1/audit?since=never").code == "invalid"
    executors = {each["name"]: each for each in server.ask("GET", "/v1/doctor").json["executors"]}
    assert executors["subprocess"]["available"] and "sandbox" in executors
    for path in ("/v1/policy", "/v1/audit", "/v1/doctor"):
        assert server.ask("GET", path, token="t0ken-of-alice").code == "forbidden"


@pytest.fixture
def alone(tmp_path):
    made = serving.Alone(tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_a_console_for_one_person(alone):
    """`workcell console` prints a link that logs in once, and knows no other."""
    assert alone.ask("POST", "/console/login", {"code": "0" * 32}, token=None).status == 401
    _, headers = login(alone, code=alone.code)
    session = alone.session(token=None, headers=headers)
    assert alone.execute("6 * 7", session=session, token=None, headers=headers)["value"] == 42
    again = alone.ask("POST", "/console/login", {"code": alone.code}, token=None)
    assert again.status == 401 and "used already" in again.json["detail"]


def test_many_at_once_use_the_link_once(alone):
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: alone.ask("POST", "/console/login", {"code": alone.code}, token=None), range(12)))
    assert sorted(answer.status for answer in answers) == [200] + [401] * 11
    assert sum("Set-Cookie" in answer.headers for answer in answers) == 1
    # Other spellings of the code are other codes.
    for other in (alone.code.upper(), alone.code + "0", alone.code[:-1], " " + alone.code, ""):
        assert alone.ask("POST", "/console/login", {"code": other}, token=None).status in (401, 429)


def test_nobody_guesses_the_link(alone):
    """After 20 guesses the address is not heard; the guesses do not use the link up."""
    answers = [alone.ask("POST", "/console/login", {"code": "%032x" % n}, token=None).status for n in range(25)]
    assert answers[0] == 401 and answers[-1] == 429 and set(answers) == {401, 429}


def test_another_name_gets_nothing_of_it(alone):
    """DNS rebinding: a page of another site whose name was made to point to this machine."""
    port, (_, headers) = alone.port, login(alone, code=alone.code)
    for host in ("evil.example:%d" % port, "evil.example", "127.0.0.1.evil.example:%d" % port, "localhost.evil.example", "127.0.0.1:%d.evil.example" % port, "[::1].evil.example", "x@127.0.0.1:%d" % port):
        for method, path, body in (("GET", "/console/", None), ("GET", "/v1/whoami", None), ("POST", "/v1/sessions", {}), ("POST", "/console/login", {"token": "x"}), ("GET", "/console/main.js", None)):
            answer = alone.ask(method, path, body, token=None, headers={**headers, "Host": host, "Origin": "http://" + host})
            assert (answer.status, answer.code) == (403, "forbidden"), (host, path)
            assert "Set-Cookie" not in answer.headers
    for host in ("127.0.0.1:%d" % port, "localhost:%d" % port):
        assert alone.ask("GET", "/v1/whoami", token=None, headers={**headers, "Host": host, "Origin": "http://" + host}).status == 200


def test_the_link_is_not_shown_to_other_users(tmp_path):
    """Not in the arguments of a process; the file that leads to it is for this user alone, is no link of somebody else's, and goes."""
    tools, runtime = tmp_path / "bin", tmp_path / "run"
    tools.mkdir(), runtime.mkdir()
    (tools / "xdg-open").write_text("#!/bin/sh\nprintf '%%s\\n' \"$0 $*\" >%s.part\nmv %s.part %s\n" % ((tmp_path / "opened",) * 3))
    (tools / "xdg-open").chmod(0o755)
    alone = serving.Alone(runtime, DISPLAY=":0", PATH="%s:%s" % (tools, os.environ["PATH"]))
    try:
        words = support.wait_until(lambda: (tmp_path / "opened").exists() and (tmp_path / "opened").read_text(), lambda: "no browser is started")
        page = words.split()[-1]
        status = os.stat(page)
        with open(page, encoding="utf-8") as file:
            assert alone.code in file.read() and alone.code not in words
        assert status.st_mode & 0o777 == 0o600 and os.path.dirname(page) == str(runtime)
        for pid in [each for each in os.listdir("/proc") if each.isdigit()]:
            try:
                with open("/proc/%s/cmdline" % pid, "rb") as file:
                    assert alone.code.encode() not in file.read()
            except OSError:
                continue
        # Nobody else is let in, whoever they say they are.
        for name in ("", "Bearer ", "Bearer " + alone.code, "Basic " + alone.code):
            assert alone.ask("GET", "/v1/sessions", token=None, headers={"Authorization": name}).status == 401
    finally:
        alone.end()
    assert not os.path.exists(page)


def test_the_events_are_bounded(server):
    session = server.session()
    for size, is_cut in ((256 << 10, False), ((256 << 10) + 1, True)):
        server.execute("#" * size, session=session)
        cell = [data for type_, data in history(server, session) if type_ == "cell"][-1]
        assert len(cell["code"]) == 256 << 10 and cell.get("cut", False) == is_cut
    # A display that is too large leaves a note.
    server.execute("display({'text/plain': 'p', 'text/html': 'h' * (5 << 20)}, raw=True)", session=session)
    assert any(data.get("omitted_bytes", 0) > 5 << 20 for _, data in history(server, session))
    # The oldest go first, and a reader is told.
    server.execute("for _ in range(40): print('o' * (1 << 20))", session=session)
    text = server.ask("GET", "/v1/sessions/%s/events?follow=false" % session).body
    assert text.startswith(b"event: gap\n") and (16 << 20) < len(text) < (34 << 20)
    assert b"event: ended" in text[-4096:]
    server.ask("DELETE", "/v1/sessions/" + session)


def embed(tmp_path, wanted, path, source=None):
    """scripts/embed-console.py in a copy of the sources, with this PATH: its exit status, what it said, and the C file."""
    root = tmp_path / "root"
    if not root.exists():
        shutil.copytree(os.path.join(support.ROOT, "console"), root / "console", ignore=shutil.ignore_patterns("node_modules", "dist"))
    output = tmp_path / "console_files.c"
    done = subprocess.run([sys.executable, os.path.join(support.ROOT, "scripts", "embed-console.py"), str(root / "console"), str(tmp_path / "work"), str(output), str(tmp_path / "dep"), wanted],
                          env=dict(os.environ, PATH=path), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, output.read_text() if output.exists() else ""


def test_a_build_without_node(tmp_path):
    """The rest is built, and --console says how to get it."""
    bare = tmp_path / "bin"
    bare.mkdir()
    status, words, _ = embed(tmp_path, "enabled", str(bare))
    assert status != 0 and "node 18 or newer" in words
    status, words, table = embed(tmp_path, "auto", str(bare))
    assert status == 0 and "built without the console" in words and "file_0" not in table
    # The library, linked with that table in front of the one that it has.
    subprocess.run(["cc", "-c", "-fPIC", "-I", os.path.join(support.ROOT, "src"), "-I", os.path.join(support.ROOT, "include"), "-o", str(tmp_path / "empty.o"), str(tmp_path / "console_files.c")], check=True)
    build = os.path.dirname(support.BIN)
    line = subprocess.run(["ninja", "-C", build, "-t", "commands", "libworkcell.so.0"], capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    command = shlex.split(line)
    at = command.index("-o")
    place = tmp_path / "lib"
    place.mkdir()
    for name in os.listdir(build):  # what the library looks for beside it
        os.symlink(os.path.join(build, name), place / name)
    os.remove(place / "libworkcell.so.0")
    command[at + 1:at + 2] = [str(place / "libworkcell.so.0"), "-Wl,-z,muldefs", str(tmp_path / "empty.o")]
    subprocess.run(command, cwd=build, check=True)
    done = subprocess.run([support.BIN, "serve", "--console", "--listen", "127.0.0.1:0", "--auth-disabled", "--executor", "subprocess"], env=support.host_environment(LD_LIBRARY_PATH=str(place)),
                          capture_output=True, text=True, timeout=support.DEADLINE, check=False)
    assert done.returncode != 0 and "this build has no console" in done.stderr and "node 18 or newer and npm" in done.stderr, done


def test_no_package_without_the_console(tmp_path):
    """Every way to a package either requires the console of the build or refuses a build that has none."""
    (tmp_path / "console_files.c").write_text("const struct cell__console_file cell__console_files[] = {\n\t{ 0 },\n};\n")
    done = subprocess.run([os.path.join(support.ROOT, "packaging", "deb.sh"), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "has no console" in done.stderr and "-Dconsole=enabled" in done.stderr and not (tmp_path / "deb").exists(), done
    for name in ("portable.sh", "Dockerfile"):
        with open(os.path.join(support.ROOT, "packaging", name), encoding="utf-8") as file:
            assert "-Dconsole=enabled" in file.read(), name


def test_files_that_were_built_before(tmp_path):
    bare = tmp_path / "bin"
    bare.mkdir()
    embed(tmp_path, "auto", str(bare))
    console = tmp_path / "root" / "console"
    (console / "dist").mkdir()
    (console / "dist" / "index.html").write_text("<p>built before</p>")
    node = shutil.which("node") or os.path.join(support.ROOT, "build", "node", "bin", "node")
    stamp = subprocess.run([node, "--input-type=module", "-e", (console / "build.mjs").read_text().split("// What these files were made of")[1].partition("\n")[2].join(
        ["import { createHash } from 'node:crypto'; import { readdirSync, readFileSync, writeFileSync } from 'node:fs'; import { join } from 'node:path'; const here = process.argv[1], dist = join(here, 'dist');", ""]),
        str(console)], capture_output=True, text=True, check=False)
    assert stamp.returncode == 0, stamp.stderr
    status, words, table = embed(tmp_path, "enabled", str(bare))
    assert status == 0 and "file_0" in table and "file_1" not in table, words
    # Of other sources they are not taken.
    (console / "src" / "style.css").write_text("p{}")
    status, words, _ = embed(tmp_path, "enabled", str(bare))
    assert status != 0 and "node 18 or newer" in words
