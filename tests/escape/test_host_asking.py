"""Attacks on questions and on those who answer them: terminal, MCP elicitation, policies, the audit log, zygotes.

Each test is an attempt of code in a session to get a yes that nobody gave, to hide what it asks for, or to reach the host by
what it prints.
"""
import hashlib
import json
import os
import re
import sys
import time

import pytest

import serving
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import client as mcp_client  # noqa: E402
import peers  # noqa: E402

ASK = ("--approve", "ask", "--approve-shell")


def is_request(event):
    return event["event"] == "approval"


def audit_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# ---- the audit log ---------------------------------------------------------------------------------------------


def withdraw_by_interrupt(driver):
    driver.interrupt()
    assert driver.answer()["error"]["code"] == "interrupted"


def withdraw_by_end(driver):
    driver.process.terminate()
    driver.process.wait(support.DEADLINE)


@pytest.mark.parametrize("withdraw", [withdraw_by_interrupt, withdraw_by_end], ids=["interrupt", "end"])
def test_a_withdrawn_question_is_not_logged_as_allowed(drive, tmp_path, withdraw):
    """The code asks and takes the question back: the log must not read as if the call had been allowed."""
    log = tmp_path / "audit.jsonl"
    driver = drive(*ASK, "--audit", log)
    driver.start("!echo never")
    driver.next_event(is_request)
    withdraw(driver)
    if driver.process.poll() is None:
        driver.close()
    record, = audit_lines(log)
    assert (record["decision"], record["by"], record["outcome"]) == ("withdrawn", "session", "cancelled"), record


def test_a_kernel_that_dies_while_it_asks_is_not_logged_as_allowed(drive, tmp_path):
    """A thread asks, and the main thread kills the process while the question is open."""
    log = tmp_path / "audit.jsonl"
    driver = drive(*ASK, "--audit", log)
    go = tmp_path / "go"
    driver.start("import os, threading\n"
                 "threading.Thread(target=lambda: get_ipython().system('echo never')).start()\n"
                 "while not os.path.exists(%r): pass\n"
                 "os._exit(1)" % str(go))
    driver.next_event(is_request)
    go.write_text("")
    assert driver.answer()["error"]["code"] == "kernel_died"
    driver.close()
    record, = audit_lines(log)
    assert (record["decision"], record["by"], record["outcome"]) == ("withdrawn", "session", "cancelled"), record


# ---- the terminal ----------------------------------------------------------------------------------------------


def asked_at_terminal(code, *flags, cells=(), **options):
    argv = ["run", "--python", support.bare_python(), *ASK, *flags]
    for each in (code,) + tuple(cells):
        argv += ["-e", each]
    return support.Terminal(*argv, **options)


def raw_until(terminal, pattern):
    """All bytes as they came until the pattern; what a terminal would have obeyed is in it."""
    terminal.expect(pattern)
    return terminal.raw


class RawTerminal(support.Terminal):
    raw = ""

    def _fill(self, seconds):
        data = super()._fill(seconds)
        self.raw += data.decode("utf-8", "replace") if data else ""
        return data


def raw_terminal(code, *flags):
    return RawTerminal("run", "--python", support.bare_python(), *ASK, *flags, "-e", code)


def test_keys_typed_before_the_question_do_not_count(tmp_path):
    """The person types ahead, or the code waits until they do: the line must not answer what comes later."""
    go = tmp_path / "go"
    code = "import os\nprint('wor'+'king')\nwhile not os.path.exists(%r): pass\n!echo he''llo" % str(go)
    with asked_at_terminal(code) as term:
        term.expect("^working$")
        term.send("y\ny\nalways\n")
        support.wait_until(lambda: "always" in (term._fill(0.05) or b"").decode() or "always" in term.seen, "the keys were taken")
        go.write_text("")
        term.expect(r"approve\?")
        term.send("n\n")
        term.expect("ApprovalRejectedError")
        assert term.wait_end() == 1
        assert "\nhello" not in term.plain


def test_keys_on_their_way_while_the_question_appears_do_not_count():
    """A question that pops up under a typing person: keys within the first moment are dropped."""
    with asked_at_terminal("!echo he''llo") as term:
        term.expect("wants to run with")
        # More than one: what comes before the question is whole is dropped for another reason.
        for _ in range(40):
            term.send("y\n")
            time.sleep(0.005)
        term.expect(r"approve\?")
        term.send("n\n")
        term.expect("ApprovalRejectedError")
        assert term.wait_end() == 1


TWICE = """
try:
    get_ipython().system("echo harm''less")
except ApprovalRejectedError:
    pass
get_ipython().system("echo ev''il")
"""


def test_half_a_line_does_not_count_for_the_next_question():
    """`y` without Enter for a question that goes away, then Enter for the one in its place."""
    with asked_at_terminal(TWICE, "--approval-timeout", "4") as term:
        term.expect(r"harm''less")
        term.expect(r"approve\?.*: $")
        term.send("y")
        term.expect("is no longer pending")
        term.expect(r"ev''il")
        term.expect(r"approve\? .*: $")
        term.send("\n")
        term.expect(r"approve\? .*: $")
        term.send("no\n")
        term.expect("ApprovalRejectedError")
        assert term.wait_end() == 1
        assert "\nevil" not in term.plain


@pytest.fixture
def swapped(tmp_path):
    """A shell whose first question was withdrawn, and whose second one stands there; and the words of its prompt."""
    argv = ("shell", "--python", support.bare_python(), *ASK, "--approval-timeout", "0")
    with support.Terminal(*argv, cwd=str(tmp_path), env=support.host_environment(HOME=str(tmp_path))) as term:
        term.expect(r"In \[1\]: $")
        term.send("!echo harm''less\r")
        term.expect(r"approve\?.*: $")
        term.send("\x03")
        term.expect(r"In \[2\]: $")
        term.send("!echo ev''il\r")
        yield term, term.expect(r"approve\? (.*): $").group(1)


def number_of(words):
    assert words.startswith("(the earlier request was withdrawn) yes "), words
    return re.search(r"yes (\d+),", words).group(1)


@pytest.mark.parametrize("answer", ["y", "yes", "a", "e", "yes 99", "yes  2x"])
def test_an_answer_does_not_count_for_a_question_in_the_place_of_another(swapped, answer):
    """The first question goes away under the fingers, another stands there: a yes wants the number of that one."""
    term, words = swapped
    number = number_of(words)
    term.send(answer + "\n")
    assert term.expect(r"approve\? \(the earlier request was withdrawn\) yes (\d+),.*: $").group(1) == number
    assert "\nevil" not in term.plain


def test_the_number_of_the_question_answers_it(swapped):
    """The way that is meant for the case above; the next question is an ordinary one again."""
    term, words = swapped
    term.send("yes %s\n" % number_of(words))
    term.expect("^evil$")
    term.expect(r"In \[3\]: $")
    term.send("!echo mo''re\r")
    term.expect(r"approve\? y\(es\).*: $")
    term.send("y\n")
    term.expect("^more$")


SEQUENCES = {
    "clear screen": "\x1b[2J\x1b[H", "title": "\x1b]0;owned\x07", "alternate screen": "\x1b[?1049h", "cursor up": "\x1b[5A",
    "scroll region": "\x1b[1;5r", "mouse": "\x1b[?1000h", "answerback": "\x05", "report": "\x1b[6n", "conceal": "\x1b[8m",
    "C1 CSI": "\x9b2J", "DCS": "\x1bP$q\"p\x1b\\", "carriage return": "harmless\r", "backspace": "a\b\b\b", "bidi": "\u202eevil",
    "isolate": "\u2066x", "zero width": "a\u200bb", "BOM": "\ufeff", "tag": "\U000e0041", "charset": "\x1b(0", "shift out": "\x0e",
    "delete": "\x7f", "hyperlink": "\x1b]8;;http://evil\x07x\x1b]8;;\x07", "reset": "\x1bc", "separator": "\u2028",
}
HARMFUL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f\x80-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]|"
                     "\x1b(?!\\[[0-9;]*m)|\x1b\\[8m|\r(?!\n)")
RESET = "\x1b[0m\x1b(B\x0f\x1b7\x1b[r\x1b8\x1b[4l\x1b[?7h\x1b[?25h\x1b[?1000;1002;1003;1006l\r\x1b[K"  # the question's own
WAYS = {
    "stdout": "print(%r, end='', flush=True)", "stderr": "import sys; print(%r, end='', file=sys.stderr, flush=True)",
    "chunks": "import os\nfor b in %r.encode(): os.write(1, bytes([b]))",
    "display": "class A:\n  def __repr__(self): return %r\ndisplay(A())",
}


@pytest.mark.parametrize("way", WAYS)
def test_control_sequences_do_not_reach_a_terminal_that_asks(way):
    """Output that clears the screen, moves the cursor or reorders text, to hide the question or fake another."""
    code = "\n".join(WAYS[way] % text for text in SEQUENCES.values()) + "\n!echo he''llo"
    with raw_terminal(code) as term:
        raw_until(term, r"approve\?.*: $")
        term.send("n\n")
        assert term.wait_end() == 1
        while term._fill(0.2):
            pass
        raw = term.raw
    assert raw.count(RESET) == 1
    found = HARMFUL.findall(raw.replace(RESET, ""))
    assert not found, (found, raw)
    # Bytes one by one may come before and after the question: a sequence is in pieces then, and still harmless.
    assert ("\\x1b[2J" in raw or way == "chunks") and "\\u202e" in raw and "\\u009b" in raw


@pytest.mark.parametrize("code", [
    "class E(Exception):\n  def __str__(self): return '\\x1b[2J\\x1b]0;x\\x07\\u202e'\nraise E",
    "class V:\n  def __repr__(self): return '\\x1b[2J\\x1b]0;x\\x07\\u202e'\nV()",
    "import warnings; warnings.warn('\\x1b[2J\\x1b]0;x\\x07\\u202e')",
], ids=["traceback", "value", "warning"])
def test_control_sequences_of_tracebacks_and_values(code):
    """The same by way of what is printed after the cell."""
    with raw_terminal(code) as term:
        term.wait_end()
        while term._fill(0.2):
            pass
        raw = term.raw
    assert "\\x1b[2J" in raw and not HARMFUL.findall(raw), raw


def test_colours_stay_and_plain_terminals_are_not_guarded():
    """What is harmless passes, and a session that asks nobody draws what it likes."""
    with raw_terminal("print('\\x1b[31mred\\x1b[0m')") as term:
        raw_until(term, "red")
        assert term.wait_end() == 0
        assert "\x1b[31mred\x1b[0m" in term.raw
    with RawTerminal("run", "--python", support.bare_python(), "-e", "print('\\x1b[2Jx')") as term:
        raw_until(term, "x")
        assert term.wait_end() == 0
        assert "\x1b[2Jx" in term.raw


def test_confined_code_does_not_steer_a_terminal_that_asks_nobody():
    """Without a policy: the clipboard (OSC 52), the title and the screen are the person's; a line may be drawn again."""
    code = "print('\\x1b]52;c;ZXZpbA==\\x07\\x1b]0;t\\x07\\x1b[2J 10%\\r 20%\\x1b[32m done\\x1b[0m')"
    with RawTerminal("run", "--executor", "sandbox", "--workspace-mode", "none", "--python", support.bare_python(), "-e", code) as term:
        raw_until(term, "done")
        assert term.wait_end() == 0
        assert not HARMFUL.findall(term.raw.replace("10%\r", "")), term.raw
        assert " 10%\r 20%\x1b[32m done\x1b[0m" in term.raw, term.raw


def test_long_arguments_are_cut_in_the_middle_and_can_be_seen_whole():
    """Padding pushes the harmful end of a command out of sight."""
    code = "!echo " + "a" * 5000 + "; echo ev''il"
    with asked_at_terminal(code) as term:
        shown = term.expect(r"(?s)wants to run with(.*?)approve\?.*: $").group(1)
        assert "5018 bytes, sha256 " in shown and "ev''il" in shown and len(shown) < 4000, shown
        term.send("v\n")
        whole = term.expect(r"(?s)^(.*?)workcell: shell shell").group(1)
        assert "a" * 5000 in whole
        term.expect(r"approve\?.*: $")
        term.send("n\n")
        assert term.wait_end() == 1


def test_line_breaks_in_arguments_cannot_imitate_the_frame():
    """A command whose text holds what looks like the end of the question and another, harmless one."""
    fake = "true\\nworkcell: shell shell (kernel) wants to run with\\n    \"cmd\": \"ls\"\\napprove? y(es)"
    with raw_terminal("get_ipython().system('''%s''')" % fake) as term:
        raw = raw_until(term, r"approve\? y\(es\), n\(o\), always, e\(dit\), v\(iew\) \[\d+ shell shell\]: $")
        term.send("n\n")
        assert term.wait_end() == 1
    assert len(re.findall(r"(?m)^workcell: ", raw.replace(RESET, "").replace("\r", ""))) == 1
    assert len(re.findall(r"(?m)^approve\?", raw)) == 1


def test_the_question_is_on_the_terminal_that_answers(tmp_path):
    """stderr goes to a file: the person would answer what is not on the screen."""
    log = tmp_path / "err.txt"
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\nexec "%s" "$@" 2>%s\n' % (support.BIN, log))
    wrapper.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(support, "BIN", str(wrapper))
        with asked_at_terminal("!echo he''llo") as term:
            term.expect("wants to run with")
            term.expect(r"approve\?.*: $")
            term.send("n\n")
            assert term.wait_end() == 1
    assert "approve?" not in log.read_text()


# ---- MCP clients -----------------------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path):
    """An MCP client whose user rejects what it is asked; .asked has the questions."""
    made = mcp_client.Client(*ASK, cwd=str(tmp_path), capabilities={"elicitation": {}})
    made.on_request = lambda message: {"action": "accept", "content": {"decision": "reject"}}
    yield made
    assert made.close() == 0


def question_of(client, command):
    """The message that the client's user sees of a shell command; None: nobody was asked."""
    result = client.result(client.start("run_code", {"code": "get_ipython().system(%r)" % command}))
    assert result["structuredContent"]["error"]["code"] == "rejected", result
    return (client.asked[-1]["params"]["message"] if client.asked else None), result["structuredContent"]["error"]["message"]


def test_mcp_long_arguments_say_their_size_and_hash(client):
    """Padding hides the end of a command behind what the message shows."""
    command = "echo " + "a" * 20000 + "; ev''il"
    message, _ = question_of(client, command)
    digest = hashlib.sha256(command.encode()).hexdigest()
    assert "%d bytes, sha256 %s" % (len(command), digest[:16]) in message and "; ev''il" in message and len(message) < 16000


def test_mcp_arguments_that_cannot_be_shown_are_refused(client):
    """Megabytes of arguments: nobody is asked about what nobody can see."""
    message, reason = question_of(client, "echo " + "a" * (2 << 20))
    assert message is None and "to show" in reason


@pytest.mark.parametrize("text", [
    "**Approved by your administrator**", "[click](https://evil.example)", "<img src=x onerror=alert(1)>", "<!-- ", "`code`",
    "&lt;b&gt;", "$\\phantom{rm}$", "~~rm~~", "\u202egnp.exe", "a\u200bb", "\u2066x\u2069", "\x1b[2J", "\r", "\ufeff",
    "\\\", \\\"cmd\\\": \\\"ls", "\n\n# The policy says: fine\n", "\U000e0041", "_x_",
])
def test_mcp_markup_and_invisible_characters_are_escaped(client, text):
    """Markdown, HTML, bidirectional and zero-width characters that change what the user reads."""
    message, _ = question_of(client, "echo " + text)
    head, _, args = message.partition("arguments:\n")
    assert head and args.startswith("\n    \"cmd\": \"") and args.count("\n") == 1, message
    body = args[len("\n    \"cmd\": \""):-1]
    assert body.isascii() and body.isprintable()
    assert not re.search(r"[<>&`*\[\]~$\"]", body) and not re.search(r"\\[^u nrtbf]", body) and " _" not in body, body
    assert json.loads('"%s"' % body) == "echo " + text


def test_mcp_names_of_tools_are_escaped(tmp_path):
    """A server's question, whose words and form come from elsewhere, is plain text after the name of who asks."""
    base = peers.write_server(tmp_path, "s", **peers.scripted())
    made = mcp_client.Client("--base", base, capabilities={"elicitation": {}})
    made.on_request = lambda message: {"action": "decline"}
    code = "tools.s.ask(message='**Workcell**: <b>approve</b> \u202e\\n# x')['action']"
    assert made.value("run_code", code=code)["value"] == "decline"
    words = made.asked[0]["params"]["message"]
    assert words.startswith("s.ask asks: ") and not re.search("[*<>\u202e\n]", words), words
    assert made.value("run_code", code="tools.s.ask(message='x' * 20000)['action']")["value"] == "decline"
    assert len(made.asked) == 1
    assert made.close() == 0


# ---- policies --------------------------------------------------------------------------------------------------

POLICY = """default: deny
rules:
  - {tool: web.get, decision: allow, args: {url: "https://*.example.org/**"}}
  - {tool: files.read, decision: allow, args: {path: "/work/**"}}
"""
ELSEWHERE = [
    "https://evil.net?.example.org/x", "https://evil.net#.example.org/x", "https://evil.net\\.example.org/x",
    "https://a.example.org@evil.net/x", "https://evil.net:80@a.example.org/x", "https://a.example.org:8443/x", "https://[::1].example.org/x",
    "https://evil.net%2f.example.org/x", "https://evil.net\t.example.org/x", "https://evil.net\uff0f.example.org/x",
    "https://a.example.org./x", "https:///a.example.org/x", " https://a.example.org/x", "https://a.example.org/x/../../y",
    "https://evil.net/.example.org/x", "https://evil.net\x00.example.org/x",
]


def decision_of(policy, tool, args):
    done = support.workcell("policy", "test", policy, "--tool", tool, "--args", json.dumps(args), "--json")
    return json.loads(done.out)["decision"]


@pytest.mark.parametrize("url", ELSEWHERE)
def test_a_url_that_only_looks_like_the_allowed_host_is_not_allowed(tmp_path, url):
    """The host of a URL is read otherwise by the policy than by the program that opens it."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    assert decision_of(policy, "web.get", {"url": url}) == "deny"
    assert decision_of(policy, "web.get", {"url": "https://a.example.org/x"}) == "allow"


@pytest.mark.parametrize("path", ["/work/../etc/shadow", "/work/a/../../etc/shadow", "/work//../etc", "/work/./../etc", "/work\x00/../etc",
                                  "work/../../etc", ["/work/a", "/etc/shadow"], {"0": "/work/a"}, None, 5])
def test_a_path_that_leaves_the_allowed_folder_is_not_allowed(tmp_path, path):
    """Detours, lists with one bad member, other types."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    assert decision_of(policy, "files.read", {"path": path}) == "deny"


# ---- zygotes ---------------------------------------------------------------------------------------------------

BORN_WITH = """
import os, re
maps = open('/proc/self/maps').read()
[hash('workcell'), re.search(r'^(\\w+)-\\w+ .*\\[stack\\]', maps, re.M).group(1), re.search(r'^(\\w+)-.*libc', maps, re.M).group(1)]
"""


@pytest.fixture(params=["subprocess", "sandbox"])
def serve(request):
    servers = []

    def make(*flags):
        servers.append(serving.Server("--executor", request.param, "--storage", support.temporary_folder("workcell-tests-zygotes-"), *flags))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def born_with(server, workspace=None, token=serving.TOKEN):
    session = server.session(body={"workspace_id": workspace} if workspace else {}, token=token)
    found = server.execute(BORN_WITH, session=session, token=token)
    assert found["error"] is None, found
    server.ask("DELETE", "/v1/sessions/" + session, token=token)
    return tuple(found["value"])


def test_workspaces_share_neither_hash_seed_nor_addresses(serve):
    """What code learns of its own process (layout, hash seed, canary) must not hold for a stranger's."""
    server = serve("--zygote-per", "workspace")
    a, b, again = born_with(server, "a"), born_with(server, "b"), born_with(server, "a")
    assert all(x != y for x, y in zip(a, b)), (a, b)
    assert a == again


def test_tokens_without_a_workspace_share_neither(serve):
    """The same for two tokens that are bound to nothing."""
    server = serve("--zygote-per", "workspace")
    a, b = born_with(server, token="t0ken-of-alice"), born_with(server, token="t0ken-of-bob")
    assert all(x != y for x, y in zip(a, b)), (a, b)


def test_sessions_of_one_workspace_need_not_share(serve):
    """--zygote-per session: not even two sessions of one workspace."""
    server = serve("--zygote-per", "session")
    a, b = born_with(server, "a"), born_with(server, "a")
    assert all(x != y for x, y in zip(a, b)), (a, b)


def test_without_the_option_they_share(serve):
    """What SECURITY.md says of the default."""
    server = serve()
    assert born_with(server, "a") == born_with(server, "b")


def test_a_zygote_is_replaced_after_so_many_forks(serve):
    """Somebody who tries again and again meets another layout."""
    server = serve("--zygote-per", "workspace", "--zygote-forks", "2")
    seen = [born_with(server, "a") for _ in range(5)]
    assert seen[0] == seen[1] and seen[2] == seen[3] and len(set(seen)) == 3, seen


def zygotes():
    """Ours: the harness is the reaper of all that it starts."""
    return {p.key for p in support.descendants(os.getpid()) if "zygote.py" in p.cmdline and "workcell-kernel" not in p.cmdline}


def test_a_zygote_that_nobody_uses_ends(serve):
    """Workspaces that come and go must not leave processes behind."""
    before = zygotes()
    server = serve("--zygote-per", "workspace")
    for name in ("a", "b", "c"):
        born_with(server, name)
    assert len(zygotes() - before) >= 3
    support.wait_until(lambda: not zygotes() - before, lambda: "zygotes end: %r" % (zygotes() - before))
    born_with(server, "a")


@pytest.mark.parametrize("flags, words", [
    (("--zygote-per", "planet"), "engine, workspace or session"),
    (("--zygote-per", "workspace", "--executor", "inprocess"), "--zygote-per"),
    (("--zygote-forks", "5", "--executor", "inprocess"), "--zygote-forks"),
])
def test_zygote_options_are_kept_or_refused(flags, words):
    """An option that would have no effect is refused, not ignored."""
    done = support.workcell("serve", "--listen", "127.0.0.1:0", "--auth-disabled", *flags)
    assert done.status == 2 and "invalid" in done.err and words in done.err, done


# ---- lists and errors of the command line ----------------------------------------------------------------------

EVIL = "\x1b[2J\x1b]0;x\x07\u202e\x9b\u200b"


class Once(RawTerminal):
    """A command on a terminal, to its end."""

    def all(self):
        self.wait_end()
        while self._fill(0.2):
            pass
        return self.raw


@pytest.mark.parametrize("flags", [("workflows", "list"), ("workflows", "show", "evil"), ("workflows", "list", "--json"),
                                   ("workflows", "show", "evil", "--json"), ("artifacts", "list"), ("artifacts", "list", "--json")],
                         ids=" ".join)
def test_names_and_descriptions_of_the_code_do_not_reach_a_terminal(tmp_path, flags):
    """The code leaves workflows and artifacts with escape sequences for the person who lists them."""
    code = ("workflows.create(name='evil', source='def run():\\n  return ' + repr(%r) + '  # ' + %r, description=%r)\n"
            "artifacts.save('evil.txt', 'x', description=%r)" % (EVIL, "\u202e\x9b", EVIL, EVIL))
    done = support.workcell("run", "--python", support.bare_python(), "--base", tmp_path, "-e", code)
    assert done.status == 0, done
    with Once(*flags, "--base", tmp_path) as term:
        raw = term.all()
    assert ("evil" in raw or "def run" in raw) and not HARMFUL.findall(raw), raw


def test_the_audit_log_does_not_reach_a_terminal_as_it_is(tmp_path):
    """A command with escape sequences, read by the person who looks at the log."""
    log = tmp_path / "audit.jsonl"
    support.workcell("run", "--python", support.bare_python(), "--approve", "deny", "--approve-shell", "--audit", log, "-e",
                     "get_ipython().system(%r)" % ("echo " + EVIL))
    with open(log, "ab") as file:
        file.write(b"\x1b[2J no record\n")
    for flags in ((), ("--json",)):
        with Once("audit", "show", log, *flags) as term:
            raw = term.all()
        assert "shell" in raw and not HARMFUL.findall(raw), raw


@pytest.mark.parametrize("argv", [("run", "--executor", EVIL), ("workflows", "show", EVIL), ("policy", "check", "/nonexistent/" + EVIL),
                                  ("run", "--cwd", "/" + EVIL, "-e", "1")], ids=["executor", "workflow", "policy", "cwd"])
def test_errors_with_foreign_bytes_do_not_reach_a_terminal(tmp_path, argv):
    """A message quotes a name that somebody else chose."""
    with Once(*argv, cwd=str(tmp_path)) as term:
        raw = term.all()
    assert "workcell:" in raw and not HARMFUL.findall(raw), raw


# ---- values that attack who formats them -----------------------------------------------------------------------

# Each is the last expression of a cell. The host sees bytes: it never calls a method of such an object, nor trusts its JSON.
HOSTILE = {
    "repr raises": "class A:\n  def __repr__(self): raise SystemExit(3)\nA()",
    "repr is no text": "class A:\n  def __repr__(self): return 5\nA()",
    "repr is huge": "class A:\n  def __repr__(self): return 'x' * (64 << 20)\nA()",
    "repr recurses": "class A:\n  def __repr__(self): return repr(self)\nA()",
    "repr is a format string": "class A:\n  def __repr__(self): return '%s%n%x{0.__class__.__mro__}' * 100\nA()",
    "class lies": "class A:\n  __class__ = property(lambda self: str)\n  def __repr__(self): return 'a'\nA()",
    "class raises": "class A:\n  @property\n  def __class__(self): raise KeyboardInterrupt\nA()",
    "mimebundle": "class A:\n  def _repr_mimebundle_(self, **k): return {'text/plain': 5, 7: 'x', 'a\\0b': 'c', 'application/json': float('nan')}\nA()",
    "mimebundle raises": "class A:\n  def _repr_mimebundle_(self, **k): raise SystemExit\nA()",
    "mimebundle is many": "class A:\n  def _repr_mimebundle_(self, **k): return {'x/%d' % i: 'y' for i in range(100000)}\nA()",
    "nesting": "x = []\nfor _ in range(100000): x = [x]\nx",
    "cycle": "x = []; x.append(x); x",
    "key with NUL": "{'a\\0b': 'c\\0d'}",
    "surrogates": "{'\\ud800': '\\udfff'}",
    "not finite": "[float('inf'), float('-inf'), float('nan'), 1e999]",
    "large int": "10 ** 4000",
    "same keys": "{1: 'a', '1': 'b', True: 'c'}",
    "text subclass": "class S(str):\n  def __len__(self): return -1\n  def encode(self, *a): raise SystemExit\n  def __iter__(self): raise SystemExit\nS('x')",
    "number subclass": "class I(int):\n  def __repr__(self): return '}], \"x\": ['\n  __str__ = __index__ = __format__ = __repr__\nI(5)",
    "dict subclass": "class D(dict):\n  def items(self): return iter([(object(), object())] * 3)\n  def __len__(self): return 1 << 62\nD(a=1)",
    "str of an exception raises": "class E(Exception):\n  def __str__(self): raise E\n  __repr__ = __str__\nraise E",
    "message of an exception is huge": "raise ValueError('x' * (32 << 20))",
    "cause cycle": "a, b = ValueError('a'), ValueError('b')\na.__cause__, b.__cause__ = b, a\nraise a",
    "cause chain": "e = None\nfor i in range(20000):\n  n = ValueError(i); n.__cause__ = e; e = n\nraise e",
    "name of an exception": "raise type('E\\x1b[2J\\n\\0', (Exception,), {})('x')",
    "traceback is another object": "class E(Exception):\n  __traceback__ = property(lambda s: 5)\n  with_traceback = None\nraise E",
}
MOST = 40 << 20  # bytes of one answer


def strictly(text):
    def refuse(word):
        raise AssertionError("%s is not JSON" % word)
    assert len(text) < MOST
    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def http_server():
    server = serving.Server("--executor", "subprocess", pool=0)
    server.adopt()
    support.shared_drivers.append(server)
    yield server
    support.shared_drivers.remove(server)
    server.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_reach_the_command_line_as_bounded_bytes(name):
    """The result is one line of strict JSON, and the session goes on, unless the code ends the run with SystemExit."""
    done = support.workcell("run", "--json", "--keep-going", "--python", support.bare_python(), "-e", HOSTILE[name], "-e", "6 * 7")
    lines = done.out.strip().split("\n")
    if name == "mimebundle raises":
        only, = map(strictly, lines)
        assert (only["error"]["type"], only["state"], done.status) == ("SystemExit", "kept", 0), done
        return
    first, second = map(strictly, lines)
    # A kernel that breaks the protocol (more MIME types than there may be) is ended; the session goes on with another.
    died = first["error"] and first["error"]["code"] == "kernel_died"
    assert done.status in ((137,) if died else (0, 1)), done
    assert second["value"] == 42 and (first["state"] == "kept" or died), (first, second)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_reach_http_clients_as_bounded_bytes(http_server, name):
    """The same over HTTP."""
    session = http_server.session(body={})
    answer = http_server.ask("POST", "/execute", {"code": HOSTILE[name]}, session=session)
    assert answer.status == 200, answer
    strictly(answer.body)
    assert http_server.execute("6 * 7", session=session)["value"] == 42
    http_server.ask("DELETE", "/v1/sessions/" + session)


def test_hostile_values_reach_mcp_clients_as_bounded_bytes():
    """The same over MCP, one client for all."""
    made = mcp_client.Client()
    for name, code in HOSTILE.items():
        made.send("tools/call", name="run_code", arguments={"code": code})
        answer = strictly(json.dumps(made.answer(made.count), allow_nan=False))
        assert "result" in answer, (name, answer)
        assert made.value("run_code", code="6 * 7")["value"] == 42, name
    assert made.close() == 0
