"""Markup, escape sequences and confusing characters of the agent's, in every place of the console in which they can appear."""
import http.server
import json
import os
import sys
import threading

import pytest

import serving
import support
from chromium import PROGRAM
from pages import base, enter, go, has, press, started, surprises, value

pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs chromium-headless-shell from Debian")

HTML = "<img src=x onerror=parent.pwned=1><script>parent.pwned=1</script>"
SVG = "<svg xmlns='http://www.w3.org/2000/svg' onload='parent.pwned=1'><script>parent.pwned=1</script></svg>"
MARKDOWN = "[click](javascript:parent.pwned=1) ![x](http://127.0.0.1:1/pixel.png) **bold**"
ANSI = "\x1b]0;title\x07\x1b[31mred\x1b[0m\x1b[2J\x1b[8mhidden\x1b[0m"
BIDI = "\u202egnp.exe\u202c \u200binvisible\u2066x\u2069 \U000e0041tag\u2800\U0001d173 pile" + "\u0301" * 20
ALL = " ".join((HTML, SVG, MARKDOWN, ANSI, BIDI))
# The last: what piles up on one letter until it covers other lines.
ODD = ["\u202e", "\u202c", "\u200b", "\u2066", "\u2069", "\x1b", "\U000e0041", "\u2800", "\U0001d173", "\u0301" * 7]
# A tool may have any description, and its arguments any description: the files of tools may come from others.
HOSTILE_TOOL = """name: hostile
description: %s
command: printf
schema:
  positional:
    - {name: text, type: string, required: true, description: %s}
recipes:
  say:
    description: %s
    params:
      text: {}
""" % ((json.dumps(ALL, ensure_ascii=False),) * 3)
POLICY = "rules:\n  - {name: %s, tool: 'echo*', kind: tool, decision: ask, reason: %s}\ndefault: allow\n" % (json.dumps("\u202e<img src=x onerror=parent.pwned=1>", ensure_ascii=False), json.dumps(MARKDOWN + BIDI, ensure_ascii=False))


@pytest.fixture(scope="module")
def server():
    folder = support.temporary_folder("workcell-tests-attacks-")
    with serving.shared(serving.Server(*base(os.path.join(folder, "base"), HOSTILE_TOOL, policy=POLICY), "--approval-timeout", "600", python=os.environ["WORKCELL_TEST_PYTHON"])) as shared:
        yield shared


def harmless(browser, shown=True, sees=True):
    """Nothing ran, nothing was loaded, nothing is hidden; and the text is there, as text."""
    browser.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    browser.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert browser.value("window.pwned") is None and browser.value("location.pathname") == "/console/"
    assert browser.value("document.querySelectorAll('script').length") == 1, "the page's own"
    assert browser.value("[...document.querySelectorAll('img')].every((each) => each.src.startsWith('data:image/'))")
    assert browser.value("document.querySelectorAll('main svg, main a[href^=\"javascript\" i]').length") == 0
    # Not in texts, not in labels and titles, not in the values of fields.
    raw = browser.value("""(() => { const found = [document.documentElement.textContent, document.title];
        for (const each of document.querySelectorAll('*')) { for (const one of each.attributes) found.push(one.value); if ('value' in each && each.type != 'password') found.push(String(each.value)); }
        return found.join('\\n'); })()""")
    assert [ascii(each) for each in ODD if each in raw] == []
    assert browser.value("document.documentElement.scrollWidth <= innerWidth"), "nothing is out of sight at the right"
    if shown:
        text = browser.text("document.body")
        assert "onerror=parent.pwned=1" in text, text
        if sees:
            assert "U+202E" in text and "U+200B" in text, text
    loaded = browser.value("performance.getEntriesByType('resource').map((each) => each.name)")
    assert not [each for each in loaded if "pixel.png" in each or each.endswith("/x")]


def test_names_and_texts_of_tools(server, browser):
    enter(browser, server)
    go(browser, "#/tools", "document.querySelector('.list code')")
    press(browser, "hostile", "document.querySelector('.list ul')")
    browser.wait("document.querySelector('.list h2').innerText.includes('hostile')")
    harmless(browser)


# Names, descriptions and schemas as no honest server has them.
WILD = [{"name": name, "description": ALL, "inputSchema": schema} for name, schema in (
    ("texts", {"type": "object", "properties": {"text": {"type": "string", "description": ALL, "default": ALL, "title": ALL}, HTML: {"enum": [ALL, {"x": ALL}, 7, None]}}, "required": ["text", HTML, ALL]}),
    (HTML + BIDI, {"type": "object"}), ("kinds", {"type": "object", "properties": {"a": None, "b": 7, "c": [], "d": {"type": {"x": 1}, "enum": "abc", "description": {"x": [ALL]}}, "__proto__": {"type": "string"}, "e": True}, "required": {"x": 1}}),
    ("none", {"type": "object", "properties": None, "required": None}), ("list", {"type": "object", "properties": ["a", "b"], "required": "ab"}),
    ("constructor", {"type": ["object", 7], "properties": {"x": {"$ref": "#/properties/x", "enum": []}}, "$defs": {"y": ALL}}), ("deep", {"type": "object", "properties": {"n" * 5000: {"type": "string" * 2000, "enum": ["v" * 50000]}}}))]
SPEAKS = """import json, sys
tools = json.load(open(%r))
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        answers = {"initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "wild", "version": "1"}}, "tools/list": {"tools": tools}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answers.get(asked["method"], {"content": []})}), flush=True)
"""


def test_tools_of_a_hostile_mcp_server(browser, tmp_path):
    (tmp_path / "tools.json").write_text(json.dumps(WILD))
    (tmp_path / "wild.py").write_text(SPEAKS % str(tmp_path / "tools.json"))
    server = serving.Server(*base(str(tmp_path / "base"), json.dumps({"name": "wild", "type": "mcp", "command": sys.executable, "args": [str(tmp_path / "wild.py")]})))
    try:
        enter(browser, server)
        go(browser, "#/tools", "document.querySelector('.list code')")
        press(browser, "wild", "document.querySelector('.list ul')")
        browser.wait("document.querySelector('.list h2').innerText.includes('wild') && document.querySelectorAll('details.side').length >= 5")
        harmless(browser)
        assert not browser.value(has("This page cannot be shown")) and surprises(browser) == []
    finally:
        server.close()


def test_rules_of_the_policy_and_approvals(server, browser):
    session = server.session()
    started(server, session, "answer = tools.echo.say(text=%r)" % ALL)
    enter(browser, server)
    go(browser, "#/approvals", "document.querySelectorAll('article.approval').length == 1")
    harmless(browser)
    field = browser.value("document.querySelector('article.approval textarea').value")
    assert json.loads(field) == {"text": ALL}, "what is edited means the same"
    go(browser, "#/session/" + session, "document.querySelector('details.call.waits')")
    harmless(browser)
    go(browser, "#/approvals", "document.querySelectorAll('article.approval').length == 1")
    # Accepted as it is shown: the tool gets what the code gave.
    press(browser, "Accept")
    browser.wait(has("Nothing waits"))
    assert value(server, session) == ALL + "\n"
    go(browser, "#/session/" + session, "document.querySelectorAll('article.cell').length == 2")
    harmless(browser)
    go(browser, "#/policy", has("Try a call"))
    browser.value("(() => { const at = document.querySelector('input[placeholder=\"tool.callable\"]'); at.focus(); })()")
    browser.type("echo.say")
    press(browser, "Try")
    browser.wait("document.querySelector('[role=status] .tag')")
    harmless(browser)


def test_reasons_of_people(server, browser):
    """What one person writes is shown to another."""
    session = server.session()
    started(server, session, "answer = tools.echo.say(text='a question')")
    waits = support.wait_until(lambda: server.ask("GET", "/v1/approvals?all=true").json["approvals"], lambda: "it does not ask")
    assert server.ask("POST", "/v1/sessions/%s/approvals/%d" % (session, waits[0]["id"]), {"accept": False, "reason": ALL}).status in (200, 204)
    enter(browser, server)
    go(browser, "#/session/" + session, "document.querySelector('details.call')")
    harmless(browser)


def test_variables_values_errors_and_output(server, browser):
    session = server.session()
    bad = repr(ALL)
    server.execute("globals()[%s] = {%s: %s}\nclass X:\n    def __repr__(self): return %s\nx = X()\nkind = type(%s, (), {})()" % (bad, bad, bad, bad, repr(HTML + BIDI)), session=session)
    server.execute("import sys\nprint(%s)\nprint(%s, file=sys.stderr)\nx" % (bad, bad), session=session)
    server.execute("class Odd(Exception): pass\nOdd.__name__ = Odd.__qualname__ = %s\nraise Odd(%s)" % (repr(HTML + BIDI), bad), session=session)
    server.execute("from IPython.display import display\ndisplay({'text/plain': %s, 'text/html': %s}, raw=True)\ndisplay({'image/svg+xml': %s}, raw=True)\n"
                   "display({'text/markdown': %s}, raw=True)\ndisplay({'application/json': {%s: 1}}, raw=True)\n"
                   "display({'image/png': %s, %s: 'x'}, raw=True)" % (bad, bad, repr(SVG), bad, bad, bad, repr(HTML)), session=session)
    server.execute("# %s\nraise ValueError()" % (ALL.replace("\n", " ")), session=session)
    enter(browser, server)
    go(browser, "#/session/" + session, "document.querySelectorAll('article.cell').length == 5")
    browser.wait("[...document.querySelectorAll('aside details')].some((each) => each.innerText.startsWith('Variables'))")
    browser.wait("document.querySelector('iframe')?.offsetHeight > 0")
    harmless(browser)
    assert "hidden" in browser.text("document.querySelector('pre.stdout')"), "text that a terminal would hide is shown"
    assert browser.value("[...document.querySelectorAll('iframe')].every((each) => each.sandbox.value == 'allow-scripts' && each.contentDocument === null)")


def test_charts(server, browser):
    session = server.session()
    chart = {"type": ALL, "title": ALL, "x_label": ALL, "y_label": HTML, "elements": [{"label": ALL, "points": [[ALL, {HTML: BIDI}]]}, ALL, None, {"label": [ALL], "value": ALL}]}
    server.execute("from IPython.display import display\ndisplay({'application/vnd.workcell.chart+json': %r, 'text/plain': 'x'}, raw=True)\n"
                   "display({'application/x-chart+json': %r, 'text/plain': 'x'}, raw=True)" % (chart, json.dumps(chart)), session=session)
    enter(browser, server)
    go(browser, "#/session/" + session, "document.querySelectorAll('details.chart').length == 2")
    harmless(browser)


def test_names_of_files(browser):
    folder = support.temporary_folder("workcell-tests-attacks-")
    place = os.path.join(folder, "project")
    os.makedirs(place)
    server = serving.Server(*base(os.path.join(folder, "base")), "--cwd", place, "--workspace-mode", "cow")
    try:
        session = server.session()
        name = (HTML + BIDI).replace("/", "")
        code = "open(%r, 'w').write(%r + '\\n')\nimport os\nos.makedirs(%r)\nopen(os.path.join(%r, 'f'), 'wb').write(bytes(range(256)))" % (name, ALL, "folder" + BIDI, "folder" + BIDI)
        server.execute(code, session=session)
        other = server.ask("POST", "/v1/sessions/%s/fork" % session, {}).json["session_id"]
        server.execute("open(%r, 'w').write('other')\nx = %r" % (name, ALL), session=other)
        enter(browser, server)
        go(browser, "#/session/" + session, "document.querySelectorAll('details.file').length >= 2")
        harmless(browser)
        go(browser, "#/compare/%s/%s" % (session, other), "document.querySelector('main section')")
        browser.wait("document.querySelector('tbody tr')")
        harmless(browser)
    finally:
        server.close()


def test_names_of_points(server, browser):
    session = server.session()
    server.execute("1", session=session)
    assert server.ask("POST", "/v1/sessions/%s/checkpoints" % session, {"name": ALL[:190]}).status == 201
    enter(browser, server)
    go(browser, "#/session/" + session, "document.querySelector('ul.points li')")
    browser.value("window.asked = []; window.confirm = (text) => { window.asked.push(text); return true; }; 0")
    press(browser, "Rewind", "document.querySelector('ul.points')")
    browser.wait(has("Rewound to the point"))
    assert not any(each in browser.value("window.asked[0]") for each in ODD)
    harmless(browser, sees=False)


def test_workflows_and_artifacts(server, browser, tmp_path):
    assert server.ask("POST", "/api/workflows", {"name": "odd", "description": ALL, "source": "def run(text: str = %r):\n    %r\n    return text\n" % (ALL, HTML)}).status in (200, 201)
    names = [HTML.replace("/", "") + BIDI + ".md", "\u202egpj.exe", "plain.html", "drawing.svg", "notes.txt"]
    saved = [name for name in names if server.ask("POST", "/api/artifacts", {"name": name, "data": SVG if name.endswith("svg") else ALL, "description": ALL}).status in (200, 201)]
    assert len(saved) >= 3
    enter(browser, server)
    browser.tell("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "down"))
    go(browser, "#/workflows", has("def run"))
    harmless(browser)
    browser.value("window.asked = []; window.confirm = (text) => { window.asked.push(text); return false; }; 0")
    go(browser, "#/artifacts", "document.querySelectorAll('.list li').length == %d" % len(saved))
    for i in range(len(saved)):
        browser.value("document.querySelectorAll('.list li button')[%d].click()" % i)
        browser.wait("document.querySelectorAll('.list li button')[%d].getAttribute('aria-current') == 'true' && document.querySelector('.list > div').innerText.length > 40" % i)
        harmless(browser)
        press(browser, "Delete", "document.querySelector('.list > div')")
        press(browser, "Download", "document.querySelector('.list > div')")
    assert browser.value("window.asked.length") == len(saved) and not any(each in text for text in browser.value("window.asked") for each in ODD)
    place = tmp_path / "down"
    support.wait_until(lambda: place.exists() and len([each for each in os.listdir(place) if not each.endswith(".crdownload")]) == len(saved), lambda: "saved: %r" % os.listdir(place))
    assert not any(each in name for name in os.listdir(place) for each in ODD)


def test_sessions_and_the_audit_log(server, browser):
    session = server.session()
    started(server, session, "# %s\nimport time\ntools.printer.once(format=%r, number=1)\ntime.sleep(60)" % (HTML + BIDI, ALL.replace("%", "")))
    enter(browser, server)
    row = "[...document.querySelectorAll('tbody tr')].find((each) => each.innerText.includes(%r))" % session[:12]
    browser.wait("%s && %s.innerText.includes('parent.pwned')" % (row, row))
    harmless(browser)
    go(browser, "#/audit", has("printer.once"))
    harmless(browser)
    for name in ("Session", "Tool", "Since"):
        browser.value("document.querySelector('input[aria-label=%s]').focus()" % name)
        browser.type(HTML)
        browser.key("Enter", number=13)
    browser.wait("document.querySelector('.problem') || " + has("No records"))
    assert browser.value("window.pwned") is None
    server.ask("DELETE", "/v1/sessions/" + session)


def test_addresses_of_pages(server, browser):
    enter(browser, server)
    for page in ("#/session/" + HTML.replace("/", ""), "#/compare/%s/%s" % (HTML.replace("/", ""), BIDI), "#/" + HTML, "#/session/..%2f..%2fv1%2fsessions", "#/session/a?b=c#d"):
        go(browser, page, "document.querySelector('.problem, .note')")
        assert browser.value("window.pwned") is None and browser.value("document.querySelectorAll('main img').length") == 0


class OtherPort:
    """Another program of this machine, with a page of its own. `heard` has the cookies that browsers sent to it."""

    def __init__(self, page):
        heard = self.heard = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # noqa: N802
                heard.append(self.headers.get("Cookie", ""))
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(page.encode() if self.path == "/" else b"")

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = "http://127.0.0.1:%d/" % self.http.server_port

    def close(self):
        self.http.shutdown()
        self.http.server_close()


# What the page of another port tries with the login of the person who looks at it.
TRIES = """<!DOCTYPE html><title>other</title><iframe id=page src="%(console)sconsole/"></iframe><iframe id=frame src="%(console)sconsole/frame?scripts=true"></iframe>
<form id=form method=post action="%(console)sv1/sessions" target=sink enctype="text/plain"><input name='{"x":"' value='"}'></form><iframe name=sink></iframe>
<script>
window.got = {};
const note = (name, work) => work().then((value) => { got[name] = value; }, (error) => { got[name] = 'refused: ' + error.name; });
window.tried = Promise.all([
  note('read', async () => (await fetch('%(console)sv1/sessions', {credentials: 'include'})).status),
  note('proof', async () => (await fetch('%(console)sv1/sessions', {credentials: 'include', headers: {'X-CSRF-Token': localStorage.getItem('workcell-csrf') ?? 'none'}})).status),
  note('blind', async () => (await fetch('%(console)sv1/sessions', {method: 'POST', mode: 'no-cors', credentials: 'include', body: '{}'})).type),
  note('script', () => new Promise((done, fail) => { const at = document.createElement('script'); at.src = '%(console)sconsole/main.js'; at.onload = () => done('ran'); at.onerror = () => fail(new Error()); document.head.append(at); })),
  note('login', async () => (await fetch('%(console)sconsole/login', {method: 'POST', credentials: 'include', headers: {'Content-Type': 'application/json'}, body: '{"token": "%(token)s"}'})).status),
  note('blind login', async () => { await fetch('%(console)sconsole/login', {method: 'POST', mode: 'no-cors', credentials: 'include', body: '{"token": "%(token)s"}'}); }),
  note('stream', () => new Promise((done, fail) => { const at = new EventSource('%(console)sv1/sessions/%(session)s/events', {withCredentials: true}); at.onmessage = at.onopen = () => done('open'); at.onerror = () => fail(new Error()); })),
  note('socket', () => new Promise((done, fail) => { const at = new WebSocket('%(console)sv1/sessions'.replace('http', 'ws')); at.onopen = () => done('open'); at.onerror = () => fail(new Error()); })),
  note('storage', async () => localStorage.getItem('workcell-csrf')),
  note('popup', async () => { const at = open('%(console)sconsole/'); await new Promise((done) => setTimeout(done, 1500)); try { return at?.document?.body?.innerText ?? null; } finally { at?.close(); } }),
]);
form.submit();
for (const path of ['/', '/console', '/v1', '/v1/whoami', '/v1/sessions']) document.cookie = 'workcell-console-%(port)d=planted; path=' + path;
</script>"""


def test_a_page_of_another_port(server, browser):
    """The browser sends it the cookie, which is worth nothing; it reads nothing, starts nothing and shows no page of the console inside its own."""
    enter(browser, server)
    session = server.session()
    before = len(server.ask("GET", "/v1/sessions?all=true").json["sessions"])
    other = OtherPort(TRIES % {"console": "http://127.0.0.1:%d/" % server.port, "token": "t0ken-of-alice", "session": session, "port": server.port})
    try:
        browser.tell("Page.navigate", url=other.url)
        browser.wait("window.tried")
        browser.value("window.tried.then(() => 0)")
        got = browser.value("window.got")
        assert got["read"].startswith("refused") and got["proof"].startswith("refused") and got["script"].startswith("refused"), got
        assert got["blind"] in ("opaque",) or got["blind"].startswith("refused"), got
        assert all(got[each].startswith("refused") for each in ("login", "stream", "socket")), got
        assert got["storage"] is None and (got["popup"] is None or str(got["popup"]).startswith("refused") or got["popup"] == ""), got
        # Neither the console nor the frame of the output is shown in a page of another origin.
        assert browser.value("['page', 'frame'].every((each) => document.getElementById(each).contentDocument === null)")
        assert any("frame-ancestors" in str(each) for each in browser.complaints), browser.complaints
        assert len(server.ask("GET", "/v1/sessions?all=true").json["sessions"]) == before, "nothing was started"
        # The cookies that it planted do not keep the person out, and it has logged nobody in as somebody else.
        browser.open("http://127.0.0.1:%d/console/" % server.port, "/console/")
        browser.wait("document.querySelector('nav .end small').innerText == 'all' && " + has(session[:12]))
        # Its program has the cookie, and gets no further with it.
        stolen = next(each for each in other.heard if "workcell-console-%d=" % server.port in each)
        for more in ({}, {"X-CSRF-Token": "0" * 64}, {"X-CSRF-Token": stolen.split("=", 1)[1]}, {"Origin": "http://127.0.0.1:%d" % server.port}, {"Sec-Fetch-Site": "same-origin"}):
            for method, path in (("GET", "/v1/sessions"), ("POST", "/v1/sessions"), ("GET", "/v1/whoami"), ("GET", "/metrics")):
                answer = server.ask(method, path, token=None, headers={"Cookie": stolen, **more})
                assert (answer.status, answer.code) == (403, "forbidden"), (more, path)
    finally:
        other.close()


FRAME = """<script>
const note = (name, work) => { try { work(); parent.postMessage({attack: name}, '*'); } catch (error) { } };
note('document', () => parent.document.title);
note('storage', () => localStorage.getItem('workcell-csrf'));
note('cookie', () => document.cookie.length);
note('top', () => { top.location = 'http://127.0.0.1:1/'; });
open('http://127.0.0.1:1/');
fetch('/v1/sessions', {credentials: 'include'}).then(() => parent.postMessage({attack: 'fetch'}, '*'), () => 0);
fetch('http://127.0.0.1:1/leak').then(() => parent.postMessage({attack: 'leak'}, '*'), () => 0);
new Image().src = '/v1/leak-by-image';
document.write('<form id=f method=post action="/v1/sessions"></form>');
try { document.getElementById('f').submit(); } catch (error) { }
for (const height of [1e12, -5, NaN, Infinity, '1px', {}]) parent.postMessage({height}, '*');
parent.postMessage(null, '*'); parent.postMessage({ready: true}, '*'); parent.postMessage('x', '*');
parent.postMessage({done: true}, '*');
</script>"""


def test_a_frame_whose_scripts_run(server, browser):
    """A person has allowed them: they still reach no page, no storage, no server and no other address, and cannot grow over the page."""
    session = server.session()
    server.execute("from IPython.display import HTML\nHTML(%r)" % FRAME, session=session)
    enter(browser, server)
    go(browser, "#/session/" + session, "document.querySelector('iframe')")
    before = len(server.ask("GET", "/v1/sessions?all=true").json["sessions"])
    browser.value("window.heard = []; addEventListener('message', (event) => { if (event.data?.attack) heard.push([event.data.attack, event.origin]); if (event.data?.done) window.over = true; }); 0")
    press(browser, "Run its scripts")
    browser.wait("window.over")
    browser.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert browser.value("window.heard") in ([], [["top", "null"]]), "a frame may try to move the page without an error; it did not move"
    assert browser.value("location.pathname") == "/console/" and browser.value("document.querySelector('iframe').offsetHeight") <= 2000
    assert len(server.ask("GET", "/v1/sessions?all=true").json["sessions"]) == before
    assert browser.value("document.querySelectorAll('article.cell').length") == 1 and browser.value("localStorage.getItem('workcell-csrf').length") == 64
    assert not any("leak" in each for each in browser.value("performance.getEntriesByType('resource').map((each) => each.name)"))


def test_the_call_that_was_seen_is_accepted(server, browser):
    """A call that is withdrawn makes place for another one: a key that was meant for the first does not accept the second."""
    first, second = server.session(), server.session()
    started(server, first, "answer = tools.echo.say(text='harmless')")
    enter(browser, server)
    go(browser, "#/approvals", "document.querySelectorAll('article.approval').length == 1 && document.activeElement.tagName == 'ARTICLE'")
    started(server, second, "answer = tools.echo.say(text='another')")
    browser.wait("document.querySelectorAll('article.approval').length == 2")
    server.ask("POST", "/v1/sessions/%s/interrupt" % first)
    # From the frame in which the first one goes, a key that is held down.
    browser.value("""new Promise((done) => { let frames = 0; const look = () => {
        if (document.querySelectorAll('article.approval').length == 1) { frames++; document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'a', bubbles: true})); }
        if (frames < 30) requestAnimationFrame(look); else done(); }; look(); })""")
    assert [each["args"] for each in server.ask("GET", "/v1/approvals?all=true").json["approvals"]] == [{"text": "another"}], "it still waits"
    # One who chooses it accepts it.
    browser.key("j")
    browser.wait("document.activeElement.tagName == 'ARTICLE'")
    browser.key("a")
    browser.wait(has("Nothing waits"))
    assert value(server, second).strip() == "another"
