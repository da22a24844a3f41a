"""The gate on the command line: who is asked, how they answer, and what the code notices of it.

The ids D1 to D17 are those of defects that a system of this kind is known for: none of them may show here.
"""
import hashlib
import json
import os
import subprocess

import pytest

import spaces
import support

ASK = ("--approve", "ask")


def base(tmp_path):
    return spaces.probe_base(tmp_path)


@pytest.fixture
def guarded(drive, tmp_path):
    """A session that asks before every tool call and shell command."""
    return drive("--base", base(tmp_path), *ASK, "--approve-shell")


def is_request(event):
    return event["event"] == "approval"


def reply(driver, **answer):
    driver.send(dict(answer, op="answer"))


def run_answering(driver, code, **answer):
    """Runs a cell, gives the same answer to each request, and returns the result and the requests."""
    driver.start(code)
    requests, taken, result = [], 0, None
    # That an answer was taken may be said after the result that it led to.
    while result is None or taken < len(requests):
        obj = driver.read()
        if obj.get("event") == "approval":
            requests.append(obj)
            reply(driver, id=obj["id"], **answer)
        elif obj.get("event") == "result":
            result = obj
        elif "event" not in obj:
            assert obj == {"op": "answer", "ok": True}, obj
            taken += 1
    return result, requests


# ---- the conversation ----------------------------------------------------------------------------------------


def test_request_says_what_runs(guarded):
    result, requests = run_answering(guarded, "tools.probe.plain(a='hello')", accept=True)
    assert result["error"] is None, result
    request, = requests
    assert (request["kind"], request["tool"], request["callable"], request["adapter"]) == \
        ("tool", "probe", "plain", "cli")
    assert request["args"]["a"] == "hello"
    assert request["session_id"] == result["session_id"] and request["request_id"]


def test_call_events_surround_it(guarded):
    run_answering(guarded, "1", accept=True)
    guarded.start("print('a')\ntools.probe.plain(a='x')\nprint('b')")
    seen = []
    while True:
        obj = guarded.read()
        if obj.get("event") == "approval":
            reply(guarded, id=obj["id"], accept=True)
        if "event" in obj and seen[-1:] != [obj["event"]]:  # a line may come in two chunks
            seen.append(obj["event"])
        if obj.get("event") == "result":
            break
    assert seen == ["chunk", "call_started", "approval", "approval_ended", "call_ended", "chunk", "result"]


def test_rejected_with_a_reason(guarded):
    result, _ = run_answering(guarded, "tools.probe.plain(a='x')", accept=False, reason="too loud")
    assert result["error"]["code"] == "rejected"
    assert result["error"]["type"] == "ApprovalRejectedError"
    assert result["error"]["message"] == "Approval request for probe.plain rejected: too loud"
    assert result["state"] == "kept"


def test_edited(guarded):
    result, _ = run_answering(guarded, "x = !echo asked\nx", accept=True, args={"cmd": "echo edited"})
    assert result["repr"] == "['edited']"


def test_wrong_answers_are_told_and_the_request_waits_on(guarded):
    guarded.start("tools.probe.plain(a='x')")
    request = guarded.next_event(is_request)
    for answer, words in (({"id": request["id"] + 5, "accept": True}, "is not pending"),
                          ({"id": request["id"]}, "accept"),
                          ({"id": request["id"], "accept": True, "why": 1}, "why"),
                          ({"id": request["id"], "accept": True, "args": {"no": 1}}, "are not valid"),
                          ({"id": request["id"], "accept": False, "args": {}}, "edited")):
        reply(guarded, **answer)
        error = guarded.answer()["error"]
        assert words in error["message"], (answer, error)
    reply(guarded, id=request["id"], accept=True)
    assert guarded.answer() == {"op": "answer", "ok": True}
    assert guarded.answer()["error"] is None


def test_d5_deciding_twice_breaks_nothing(guarded):
    guarded.start("tools.probe.plain(a='x')")
    request = guarded.next_event(is_request)
    reply(guarded, id=request["id"], accept=True)
    reply(guarded, id=request["id"], accept=False)
    answers = [guarded.answer() for _ in range(3)]  # in whatever order the result comes
    assert sum("ok" in answer for answer in answers) == 1
    assert [answer for answer in answers if "duration_ms" in answer][0]["error"] is None
    result, requests = run_answering(guarded, "tools.probe.plain(a='y')", accept=True)
    assert result["error"] is None and len(requests) == 1


def test_all_at_once(guarded):
    guarded.start("import asyncio\n"
                  "len(await asyncio.gather(*(tools.probe.plain.call_async(a=str(i)) for i in range(5))))")
    for _ in range(5):
        guarded.next_event(is_request)
    reply(guarded, accept=True)
    results = [guarded.answer(), guarded.answer()]
    assert [r["value"] for r in results if "value" in r] == [5]


def test_unanswered(drive, tmp_path):
    driver = drive("--base", base(tmp_path), *ASK, "--approval-timeout", "0.05")
    result = driver.run("tools.probe.plain(a='x')")
    assert result["error"]["type"] == "ApprovalTimeoutError" and result["error"]["code"] == "rejected"
    ended = [event for event in driver.events if event["event"] == "approval_ended"]
    assert [event["decision"] for event in ended] == ["expired"]


def test_d7_interrupted_while_parked(guarded):
    guarded.start("kept = 1\ntools.probe.plain(a='x')")
    guarded.next_event(is_request)
    guarded.interrupt()
    assert guarded.answer()["error"]["code"] == "interrupted"
    assert guarded.value("kept") == 1


def test_d7_reset_while_parked(drive, tmp_path):
    driver = drive("--base", base(tmp_path), *ASK)
    driver.start("tools.probe.plain(a='x')")
    driver.next_event(is_request)
    driver.send({"op": "reset"})  # waits for its turn: the conversation runs one thing at a time
    driver.interrupt()
    assert driver.answer()["error"]["code"] == "interrupted"
    assert driver.answer() == {"op": "reset", "ok": True}
    result, _ = run_answering(driver, "tools.probe.plain(a='x')", accept=True)
    assert result["error"] is None


def test_timeout_counts_the_wait(guarded):
    result = guarded.run("tools.probe.plain(a='x')", timeout=0.2)
    assert result["error"]["code"] == "timeout" and result["error"]["message"]
    assert result["state"] == "kept"


# ---- a person ------------------------------------------------------------------------------------------------


def ask_person(tmp_path, code, answers, *flags, cells=()):
    argv = ["run", "--base", base(tmp_path), "--python", support.bare_python(), *ASK, "--approve-shell", *flags]
    for each in (code,) + tuple(cells):
        argv += ["-e", each]
    return support.workcell(*argv, stdin=answers.encode())


def test_person_says_yes_and_sees_all(tmp_path):
    done = ask_person(tmp_path, "tools.probe.plain(a='a\\x1b[31mb')", "y\n")
    assert done.status == 0, done
    assert "tool probe.plain (cli) wants to run with" in done.err
    assert "\\u001B[31m" in done.err and "\x1b" not in done.err  # a terminal obeys nothing of it


def test_person_says_no(tmp_path):
    done = ask_person(tmp_path, "!echo hello", "n not on Fridays\n")
    assert done.status == 1 and "hello" not in done.out
    assert "rejected: not on Fridays" in done.err


def test_person_says_always(tmp_path):
    done = ask_person(tmp_path, "!echo 1", "always\n", cells=("!echo 2", "!echo 3"))
    assert done.status == 0 and done.out.split() == ["1", "2", "3"]
    assert done.err.count("approve?") == 1


def test_person_edits(tmp_path):
    done = ask_person(tmp_path, "!echo asked", "what?\ne\necho edited\n")
    assert done.status == 0 and done.out.split() == ["edited"]
    assert done.err.count("approve?") == 2


def test_nobody_there(tmp_path):
    done = ask_person(tmp_path, "!echo hello", "")
    assert done.status == 1 and "hello" not in done.out
    assert "nobody could be asked" in done.err


def test_person_at_a_terminal(tmp_path):
    with support.Terminal("run", "--python", support.bare_python(), *ASK, "--approve-shell", "-e", "!echo he''llo") as term:
        term.expect(r"approve\?")
        term.send("y\n")
        term.expect("hello")
        assert term.wait_end() == 0


def test_ctrl_c_at_the_question(tmp_path):
    with support.Terminal("run", "--python", support.bare_python(), *ASK, "--approve-shell", "-e", "!echo he''llo") as term:
        term.expect(r"approve\?")
        term.send("\x03")
        assert term.wait_end() == 1
        assert "hello" not in term.plain


def test_answers_as_json_lines(tmp_path):
    argv = ["run", "--events", "--python", support.bare_python(), *ASK, "--approve-shell", "-e", "!echo hello"]
    done = support.workcell(*argv, stdin=json.dumps({"accept": True}).encode() + b"\n")
    assert done.status == 0
    assert [event["event"] for event in done.objects if event["event"] != "chunk"] == \
        ["call_started", "approval", "approval_ended", "call_ended", "result"]


def test_deny(tmp_path):
    done = support.workcell("run", "--base", base(tmp_path), "--python", support.bare_python(), "--approve", "deny",
                            "--json", "-e", "tools.probe.plain(a='x')")
    assert done.status == 1 and done.result["error"]["code"] == "rejected"
    assert done.result["error"]["message"] == "The policy denies probe.plain"


def test_auto_asks_nobody(tmp_path):
    done = support.workcell("run", "--base", base(tmp_path), "--python", support.bare_python(), "--approve", "auto",
                            "-e", "tools.probe.plain(a='x')")
    assert done.status == 0


@pytest.mark.parametrize("flags, words", [
    (("--approve", "maybe"), "auto, ask or deny"),
    (("--approve-shell",), "--approve ask, --approve deny or --policy"),
    (("--require-shell-escape",), "require_shell_escape"),
    (("--policy", "/does/not/exist.yaml"), "exist.yaml"),
    (("--approve", "ask", "--policy", "x"), "one of them"),
    (("--approval-timeout", "-1", "--approve", "ask"), "approval-timeout"),
])
def test_wrong_flags(flags, words):
    done = support.workcell("run", "--python", support.bare_python(), *flags, "-e", "1")
    assert done.status in (1, 2) and words in done.err, done


# ---- policies ------------------------------------------------------------------------------------------------


def test_policy_file_decides(drive, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("default: deny\n"
                      "rules:\n"
                      "  - {tool: probe.plain, args: {a: 'ok*'}, decision: allow}\n"
                      "  - {tool: probe.plain, decision: ask, reason: look at the text}\n")
    driver = drive("--base", base(tmp_path), "--policy", policy)
    assert driver.run("tools.probe.plain(a='okay')")["error"] is None
    result, requests = run_answering(driver, "tools.probe.plain(a='other')", accept=True)
    assert result["error"] is None
    assert [request["message"] for request in requests] == ["look at the text"]
    # Whoever writes a policy means shell commands too.
    assert driver.run("!echo hello")["error"]["code"] == "rejected"
    assert driver.run("workflows.create(name='w', source='def run(): pass')")["error"]["code"] == "rejected"


def test_workflow_creation_and_installs_ask(drive, tmp_path):
    driver = drive("--base", base(tmp_path), *ASK, "--approve-workflows", "--approve-installs")
    result, requests = run_answering(driver, "workflows.create(name='w', source='def run(): return 5', description='d')\n"
                                             "workflows.w()", accept=True)
    assert result["value"] == 5
    assert [(r["kind"], r["tool"], r["callable"]) for r in requests] == [("workflow", "workflows", "create")]
    assert requests[0]["args"]["source"] == "def run(): return 5"
    result, requests = run_answering(driver, "deps.add('somewhere')", accept=False)
    assert [(r["kind"], r["tool"], r["callable"]) for r in requests] == [("install", "deps", "add")]
    assert result["error"]["code"] == "rejected"


def test_tools_of_a_workflow_ask(guarded):
    code = "workflows.create(name='loud', source='def run(text):\\n    return tools.probe.plain(a=text)')"
    assert run_answering(guarded, code, accept=True)[0]["error"] is None
    result, requests = run_answering(guarded, "workflows.loud(text='x')", accept=True)
    assert result["error"] is None and len(requests) == 1


# ---- the code's side: nothing there can answer -----------------------------------------------------------------


def test_d4_shell_commands_ask_without_tools(drive, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("default: allow\nrules:\n  - {kind: shell, decision: ask}\n")
    driver = drive("--base", base(tmp_path), "--policy", policy)
    result, requests = run_answering(driver, "tools.probe.plain(a='x')\n!true", accept=True)
    assert result["error"] is None and [request["kind"] for request in requests] == ["shell"]


def test_d6_no_way_to_answer_from_the_kernel(guarded):
    """Neither a port nor a token; the one socket is the frames' own, where an answer is a violation."""
    code = ("import os, socket\n"
            "fds = [os.readlink('/proc/self/fd/' + f) for f in os.listdir('/proc/self/fd')\n"
            "       if os.path.lexists('/proc/self/fd/' + f)]\n"
            "listening = [line for name in ('tcp', 'tcp6') for line in open('/proc/self/net/' + name)][2:] and 0\n"
            "(sum(f.startswith('socket:') for f in fds), [k for k in os.environ if 'TOKEN' in k or 'APPROV' in k])")
    result = guarded.run(code)
    assert result["error"] is None, result
    assert result["value"] == [1, []] or result["repr"] == "(1, [])"


def test_a_kernel_that_forges_an_answer_is_ended(guarded):
    code = ("import _workcell, threading, time\n"
            "threading.Thread(target=lambda: tools.probe.plain(a='x'), daemon=True).start()\n"
            "time.sleep(0.2)\n"
            "_workcell.send(_workcell.REPLY, 1, b'{\"result\": true}')\n"
            "time.sleep(60)")
    result = guarded.run(code)
    assert result["error"]["code"] == "kernel_died" and "protocol" in result["error"]["message"]
    result, requests = run_answering(guarded, "tools.probe.plain(a='x')", accept=False)
    assert len(requests) == 1 and result["error"]["code"] == "rejected"


def test_a_kernel_that_uses_an_id_twice_is_ended(guarded):
    code = ("import _workcell, time\n"
            "call = b'{\"method\": \"tools.call\", \"args\": {\"name\": \"probe.plain\", \"args\": {\"a\": \"x\"}}}'\n"
            "_workcell.send(_workcell.CALL, 77, call)\n"
            "_workcell.send(_workcell.CALL, 77, call)\n"
            "time.sleep(60)")
    result = guarded.run(code)
    assert result["error"]["code"] == "kernel_died" and "id" in result["error"]["message"]


def test_d3_a_new_kernel_is_guarded(guarded):
    assert guarded.run("import os; os._exit(3)")["error"]["code"] == "kernel_died"
    result, requests = run_answering(guarded, "!echo hello", accept=False)
    assert result["error"]["code"] == "rejected" and len(requests) == 1


def test_d13_shown_is_what_runs(guarded):
    for code, cmd in (("name = 'n'\n!echo {name} $name", "echo n n"),
                      ("x = [1, 2]\n!echo {len(x)}", "echo 2"),
                      ("!find . -maxdepth 0 -exec echo {} \\;", "find . -maxdepth 0 -exec echo {} \\;"),
                      ("def f():\n    y = 5\n    !echo {y}\nf()", "echo 5"),
                      ("!echo {name} {undefined_name}", "echo {name} {undefined_name}")):
        result, requests = run_answering(guarded, code, accept=True)
        assert result["error"] is None, (code, result)
        assert [request["args"] for request in requests] == [{"cmd": cmd}], code
        shown = subprocess.run(["bash", "-c", cmd], stdout=subprocess.PIPE, text=True).stdout
        assert result["stdout"].strip().split("\n")[-1] == shown.strip() or "find" in cmd


def test_d13_the_whole_magic_is_shown(guarded):
    _, requests = run_answering(guarded, "%%bash -s a 'b c'\necho $2", accept=True)
    assert [(r["tool"], r["args"]) for r in requests] == \
        [("shell_magic", {"cmd": "echo $2", "program": "bash -s a 'b c'"})] or \
        requests[0]["args"] == {"cmd": "echo $2\n", "program": "bash -s a 'b c'"}


# ---- the rest of the list ----------------------------------------------------------------------------------------


def test_d1_no_output_is_lost(drive):
    driver = drive()
    for i in range(300):
        result = driver.run("print(%d)\n%d" % (i, i))
        assert (result["text"], result["value"]) == ("%d\n" % i, i)
        chunks = "".join(e["data"] for e in driver.events if e["event"] == "chunk")
        driver.events.clear()
        assert chunks == "%d\n" % i


def test_d2_an_interrupt_right_after_a_cell(drive):
    driver = drive()
    for _ in range(20):
        assert driver.value("1") == 1
        driver.start("while True: pass")
        driver.interrupt()
        assert driver.answer()["error"]["code"] == "interrupted"


def test_d9_bursts_and_large_messages(drive):
    driver = drive("--max-output", str(32 << 20))
    size = (4 << 20) if support.is_asan() else (12 << 20)  # a sanitizer makes the JSON of it slow
    result = driver.run("print('x' * %d)" % size)
    assert len(result["stdout"]) == size + 1
    result = driver.run("for i in range(20000): print(i)")
    assert result["stdout"].split() == [str(i) for i in range(20000)]
    assert driver.run("'y' * (11 << 20)")["error"] is None
    assert driver.value("1 + 1") == 2


def test_d12_many_at_once_want_no_port(drive):
    drivers = [drive() for _ in range(4)]
    assert [driver.value("40 + 2") for driver in drivers] == [42] * 4


def test_d16_output_before_an_error_and_streams_apart(drive):
    result = drive().run("import sys\nprint('out')\nprint('err', file=sys.stderr)\ndisplay(1)\ndisplay(2)\n1/0")
    assert result["stdout"].startswith("out\n") and result["stderr"] == "err\n"
    assert result["text"].startswith("out\nerr\n")
    assert [d["text/plain"] if "text/plain" in d else d for d in result["displays"]] == ["1", "2"]
    assert result["error"]["type"] == "ZeroDivisionError"


def test_d17_guard_rail(drive):
    driver = drive(*ASK, "--approve-shell", "--require-shell-escape")
    for code in ("import subprocess; subprocess.run(['true'])", "import os; os.fork()", "import os; os.system('true')",
                 "import subprocess, importlib; importlib.reload(subprocess).Popen(['true'])"):
        error = driver.run(code)["error"]
        assert error["type"] == "ShellEscapeError" and "Use ! syntax" in error["message"], (code, error)
    for code in ("%%script bash\ntrue", "%%python3\n1"):
        result, requests = run_answering(driver, code, accept=False)
        assert len(requests) == 1 and result["error"]["code"] == "rejected"


# ---- environment and working directory -----------------------------------------------------------------------------


def test_nothing_is_inherited(drive):
    driver = drive("--env", "TEST_VAR=test_val", env=support.host_environment(HOST_SECRET="x"))
    assert driver.value("import os; [os.environ.get('TEST_VAR'), os.environ.get('HOST_SECRET')]") == ["test_val", None]


def test_cwd_is_the_callers_and_stays_changed(drive, tmp_path):
    driver = drive(cwd=str(tmp_path))
    assert driver.value("import os; os.getcwd()") == str(tmp_path)
    driver.run("os.chdir('/')")
    assert driver.value("os.getcwd()") == "/"


def test_restore_cwd(drive, tmp_path):
    driver = drive("--cwd", str(tmp_path), "--restore-cwd")
    result = driver.run("import os; os.chdir('/'); print(os.getcwd())")
    assert result["stdout"] == "/\n[workcell] cwd reset to %s\n" % tmp_path
    assert driver.value("os.getcwd()") == str(tmp_path)
    assert "cwd reset" in driver.run("os.chdir('/'); 1/0")["stdout"]
    inner = tmp_path / "inner"
    inner.mkdir()
    assert "cwd reset" in driver.run("os.chdir('inner'); os.rmdir(os.getcwd())")["stdout"]
    assert not os.path.exists(inner)


# ---- the audit log -------------------------------------------------------------------------------------------------


def records(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_every_decision_is_recorded(drive, tmp_path):
    log = tmp_path / "audit.jsonl"
    policy = tmp_path / "policy.yaml"
    policy.write_text("default: ask\nrules:\n"
                      "  - {name: fine, tool: probe.plain, args: {a: 'ok*'}, decision: allow}\n"
                      "  - {name: never, tool: probe.plain, args: {a: 'bad*'}, decision: deny}\n")
    driver = drive("--base", base(tmp_path), "--policy", policy, "--audit", log, "--approval-timeout", "0.5")
    code = "tools.probe.plain(a='okay')"
    driver.run(code)
    driver.run("tools.probe.plain(a='bad')")
    run_answering(driver, "tools.probe.plain(a='x')", accept=True)
    run_answering(driver, "tools.probe.plain(a='x')", accept=True, args={"a": "y", "s": "api_key=sk-12345678901234567890"})
    run_answering(driver, "tools.probe.plain(a='x')", accept=False, reason="no")
    driver.run("tools.probe.plain(a='x')")
    driver.run("tools.probe.plain(b='x')")
    driver.events.clear()  # the request that nobody answered
    driver.start("tools.probe.plain(a='x')")
    driver.next_event(is_request)
    driver.interrupt()
    driver.answer()
    driver.close()
    found = records(log)
    assert [(r["decision"], r["by"], r["outcome"], r["code"]) for r in found] == [
        ("allow", "policy", "ok", None), ("deny", "policy", "error", "rejected"), ("accepted", "person", "ok", None),
        ("edited", "person", "ok", None), ("rejected", "person", "error", "rejected"),
        ("timeout", "timeout", "error", "rejected"), ("allow", "policy", "error", "invalid"),
        ("withdrawn", "session", "cancelled", None)], found
    assert [(r["rule"], r["rule_name"]) for r in found[:2]] == [(1, "fine"), (2, "never")]
    assert found[0]["cell"] == hashlib.sha256(code.encode()).hexdigest()
    assert (found[0]["tool"], found[0]["callable"], found[0]["adapter"], found[0]["executor"]) == \
        ("probe", "plain", "cli", "subprocess")
    assert found[3]["args"]["a"] == "y" and found[3]["args_before"]["a"] == "x"
    assert len({r["request"] for r in found}) == len(found)


def test_secrets_are_not_recorded(drive, tmp_path):
    log = tmp_path / "audit.jsonl"
    driver = drive("--base", spaces.probe_base(tmp_path, **{"tools/login.yaml": """\
        name: login
        command: /bin/echo
        schema:
          options: {password: {type: string}, api_key: {type: string}, user: {type: string}}
        recipes: {go: {}}
        """}), "--audit", log)
    assert driver.run("tools.login.go(user='ann', password='hunter2', api_key='k-123')")["error"] is None
    driver.close()
    text = log.read_text()
    assert "hunter2" not in text and "k-123" not in text and '"user":"ann"' in text


def test_a_log_that_cannot_be_written_stops_the_calls(drive, tmp_path):
    """Confinement of the record: without it nothing is done, and the code is told."""
    with spaces.small_disk(tmp_path / "disk", "64k") as disk:
        log = os.path.join(str(disk), "audit.jsonl")
        driver = drive("--base", base(tmp_path), "--audit", log)
        assert driver.run("tools.probe.plain(a='x')")["error"] is None
        with open(os.path.join(str(disk), "filler"), "wb", buffering=0) as file:
            with pytest.raises(OSError):
                while True:
                    file.write(b"x" * 512)
        code = ("told = []\n"
                "for i in range(200):\n"
                "    try:\n"
                "        tools.probe.plain(a='y' * 1000)\n"
                "    except Exception as exc:\n"
                "        told.append(str(exc))\n"
                "        break\n"
                "told")
        result = driver.run(code)
        assert result["value"] and "audit" in result["value"][0], result
        assert driver.value("1 + 1") == 2
        os.unlink(os.path.join(str(disk), "filler"))
        driver.close()
