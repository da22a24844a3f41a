"""The console in a real browser, with agents that are scripts."""
import http.server
import json
import os
import sys
import threading
import time

import pytest

import serving
import spaces
import support
from chromium import Browser, PROGRAM
from pages import asked, base, enter, fill, go, has, picture, press, started, surprises, value

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import oauth  # noqa: E402

pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs chromium-headless-shell from Debian")


@pytest.fixture(scope="module")
def server():
    folder = support.temporary_folder("workcell-tests-console-")
    with serving.shared(serving.Server(*base(os.path.join(folder, "base")), "--approval-timeout", "600", python=os.environ["WORKCELL_TEST_PYTHON"])) as shared:
        yield shared


CELLS = [
    "import time\nx = [1, 2, 3]\nprint('hello', tools.printer.once(format='%d!', number=7))\nsum(x)",
    "import pandas as pd\ndf = pd.DataFrame({'city': ['Oslo', 'Lima', 'Pune'], 'degrees': [-3.5, 19.0, 31.2]})\ndf",
    "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9, 16])\nplt.title('squares')\nplt.show()",
    "def mean(values):\n    return sum(values) / len(values)\nmean([])",
]


def test_a_session_as_a_notebook(server, browser):
    session = server.session()
    for code in CELLS:
        server.execute(code, session=session)
    enter(browser, server)
    go(browser, "#/session/" + session, "document.querySelectorAll('article.cell').length == 4")
    browser.wait("document.querySelector('img.plot') && document.querySelector('iframe')")
    text = browser.text("document.body")
    assert "hello 7!" in text and "ZeroDivisionError" in text and "mean([])" in text
    call = "document.querySelector('details.call')"
    assert browser.text(call).startswith("tool printer.once done") and not browser.value(call + ".open")
    browser.value(call + ".open = true")
    assert json.loads(browser.text(call + ".querySelector('[aria-label=arguments]')")) == {"format": "%d!", "number": 7}
    assert "7!" in browser.text(call + ".querySelector('[aria-label=result]')")
    assert browser.value("[...document.querySelectorAll('.source .code-k')].map((each) => each.innerText)") == ["import", "import", "as", "import", "as", "def", "return"], "code has its colours"
    assert not browser.value("document.querySelector('details.failure').open"), "a traceback is folded"
    assert browser.value("document.querySelector('iframe').sandbox.value") == "allow-scripts"
    browser.wait("document.querySelector('iframe').offsetHeight > 80")  # the frame told its height: the table is in it
    browser.wait(has("Variables (") + " && " + has("idle"))
    picture(browser, "notebook", height=1000)
    # A cell that somebody else starts appears as it runs, and its output as it is printed.
    started(server, session, "print('first', flush=True)\nwhile 'go' not in globals(): time.sleep(0.02)")
    browser.wait(has("first"))
    browser.wait("[...document.querySelectorAll('article.cell.running button')].length == 1")
    press(browser, "Interrupt", "document.querySelector('article.cell.running')")
    browser.wait("document.querySelectorAll('article.cell.running').length == 0 && %s" % has("KeyboardInterrupt"))
    # One's own, with the keyboard, highlighted and with completions of the session's names.
    browser.wait("document.querySelector('.editor .code').shadowRoot.querySelector('.cm-content')")
    browser.value("document.querySelector('.editor .code').shadowRoot.querySelector('.cm-content').focus()")
    browser.type("df.desc")
    browser.key(" ", code="Space", number=32, modifiers=2)
    browser.wait("[...document.querySelector('.editor .code').shadowRoot.querySelectorAll('.cm-completionLabel')].some((each) => each.innerText == 'describe')")
    browser.key("Escape", number=27)
    browser.type("ribe().loc['max', 'degrees']")
    browser.key("Enter", number=13, modifiers=8)
    browser.wait(has("31.2"))
    assert surprises(browser) == []


def test_sessions_are_listed_and_ended(server, browser):
    session = server.session()
    started(server, session, "import time\ntime.sleep(60)")
    enter(browser, server)
    row = "[...document.querySelectorAll('tbody tr')].find((each) => each.innerText.includes(%r))" % session[:12]
    browser.wait("%s && %s.innerText.includes('import time')" % (row, row))
    assert "no cell yet" in browser.text(row), "what confines it is told with the first result"
    press(browser, "Interrupt", row)
    support.wait_until(lambda: server.ask("GET", "/v1/sessions/" + session).json["state"] == "idle", lambda: "it goes on")
    browser.wait("%s.querySelector('details.receipt')" % row)
    browser.value("%s.querySelector('details.receipt summary').click()" % row)
    browser.wait("%s.querySelector('details.receipt pre')" % row)
    assert json.loads(browser.text(row + ".querySelector('details.receipt pre')")) == server.ask("GET", "/v1/sessions/" + session).json["receipt"]
    started(server, session, "time.sleep(60)")
    browser.wait("%s.innerText.includes('time.sleep')" % row)
    picture(browser, "sessions", height=500)
    browser.value("%s.querySelector('details.receipt summary').click()" % row)
    browser.value("window.confirm = () => true")
    press(browser, "Reset", row)
    browser.wait(has("Reset."))
    press(browser, "End", row)
    browser.wait("!(%s)" % row)
    assert server.ask("GET", "/v1/sessions/" + session).status == 410
    assert surprises(browser) == []


def test_approvals_by_keyboard_in_any_order(server, browser):
    enter(browser, server)
    go(browser, "#/approvals", has("Nothing waits"))
    one, two, three = asked(server, "first one"), asked(server, "second one"), asked(server, "third one")
    browser.wait("document.querySelectorAll('article.approval').length == 3")
    assert "it leaves the machine" in browser.text("document.body") and "mail needs a person" in browser.text("document.body")
    picture(browser, "approvals", height=700)

    def choose(text):
        browser.value("[...document.querySelectorAll('article.approval')].find((each) => each.querySelector('textarea').value.includes(%r)).focus()" % text)

    choose("second one")
    browser.key("a")
    browser.wait("document.querySelectorAll('article.approval').length == 2")
    assert value(server, two).strip() == "second one"
    # Other arguments.
    choose("first one")
    browser.key("e")
    browser.wait("document.activeElement.tagName == 'TEXTAREA'")
    browser.value("document.activeElement.select()")
    browser.type('{"text": "another"}')
    browser.key("Escape", number=27)
    browser.key("a")
    browser.wait("document.querySelectorAll('article.approval').length == 1")
    assert value(server, one).strip() == "another"
    # A reason.
    choose("third one")
    browser.key("r")
    browser.wait("document.activeElement.tagName == 'INPUT'")
    browser.type("not today")
    browser.key("Enter", number=13)
    browser.wait(has("Nothing waits"))
    assert value(server, three) is None
    assert "not today" in server.ask("GET", "/v1/sessions/%s/log?follow=false" % three).body.decode()
    # Always: a later call of the same tool in the session does not ask.
    four = asked(server, "fourth")
    browser.wait("document.querySelectorAll('article.approval').length == 1")
    choose("fourth")
    browser.key("A", modifiers=8)
    browser.wait(has("Nothing waits"))
    assert value(server, four).strip() == "fourth"
    assert server.execute("tools.echo.say(text='fifth')", session=four)["value"].strip() == "fifth"
    assert surprises(browser) == []


def test_two_people_at_one_inbox(server, browser, tmp_path):
    other = Browser(tmp_path / "other")
    try:
        for each in (browser, other):
            enter(each, server, page="#/approvals")
        session = asked(server, "for two")
        for each in (browser, other):
            each.wait("document.querySelectorAll('article.approval').length == 1")
        # The second answers before it has heard of the first's answer.
        other.value("window.held = window.fetch; window.fetch = (path, options) => options.method == 'GET' ? new Promise(() => {}) : window.held(path, options)")
        press(browser, "Accept")
        browser.wait(has("Nothing waits"))
        press(other, "Accept")
        other.wait(has("Somebody else has answered"))
        assert value(server, session).strip() == "for two"
    finally:
        other.close()


def test_a_link_for_one_person(browser, tmp_path):
    """`workcell console`: its link logs a browser in, is in no history afterwards, and does so once."""
    other, alone = Browser(tmp_path / "other"), None
    try:
        alone = serving.Alone(tmp_path)
        link = "http://127.0.0.1:%d/console/#code=%s" % (alone.port, alone.code)
        browser.open(link, "/console/")
        browser.wait("document.querySelector('nav') && " + has("There are no sessions"))
        assert browser.value("location.href").endswith("/console/")
        assert alone.code not in json.dumps([each["url"] for each in browser.tell("Page.getNavigationHistory")["entries"]])
        press(browser, "New session")
        browser.wait("document.querySelector('.editor .code')?.shadowRoot?.querySelector('.cm-content')")
        browser.value("document.querySelector('.editor .code').shadowRoot.querySelector('.cm-content').focus()")
        browser.type("6 * 7")
        press(browser, "Run", "document.querySelector('.editor')")
        browser.wait("document.querySelector('article.cell.done') && " + has("42"))
        other.open(link, "/console/")
        other.wait("document.querySelector('input[type=password]') && " + has("this link was used already"))
        picture(other, "login", height=500)
        assert surprises(browser) == []
    finally:
        other.close()
        if alone:
            alone.end()


def test_scopes_decide_what_is_shown(server, browser):
    session = server.session()
    server.execute("1", session=session)
    enter(browser, server, token="t0ken-of-the-reader")
    browser.wait(has("There are no sessions"))
    pages = browser.value("[...document.querySelectorAll('nav a')].map((each) => each.innerText)")
    assert "Policy" not in pages and "Metrics" not in pages and "Sessions" in pages
    assert browser.value("[...document.querySelectorAll('main button')].length") == 0
    go(browser, "#/policy", has("no such page"))
    browser.value("[...document.querySelectorAll('nav button')].find((each) => each.innerText == 'Log out').click()")
    browser.wait("document.querySelector('input[type=password]')")


ATTACK = "<img src=x onerror=parent.pwned=1><script>parent.pwned=1;top.location='about:blank'</script>"
ODD = "\u202egnp.exe \u200b\x1b]0;title\x07\x1b[31mred\x1b[0m\x1b[2J"


def test_output_cannot_reach_the_page(server, browser):
    session = server.session()
    bad = repr(ATTACK)
    server.execute("from IPython.display import HTML, SVG, Markdown, display\ndisplay(HTML(%s))\ndisplay(Markdown(%s))\n"
                   "display(SVG(\"<svg xmlns='http://www.w3.org/2000/svg' onload='parent.pwned=1'><script>parent.pwned=1</script></svg>\"))\nprint(%s)\nprint(%r)\nraise ValueError(%s)"
                   % (bad, bad, bad, ODD, bad), session=session)
    server.execute("# %s\nclass X:\n    def __repr__(self): return %s + %r\nX()" % (ATTACK.replace("\n", ""), bad, ODD), session=session)
    enter(browser, server)
    go(browser, "#/session/" + session, "document.querySelectorAll('article.cell').length == 2 && document.querySelector('iframe')")
    browser.wait("document.querySelectorAll('details').length && document.querySelector('iframe').offsetHeight > 0")
    browser.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    asked(server, ATTACK + ODD, session)
    browser.wait("document.querySelector('details.call.waits')")
    go(browser, "#/approvals", "document.querySelectorAll('article.approval').length == 1")
    shown = browser.value("document.querySelector('.approval textarea').value")
    assert json.dumps(ATTACK)[1:-1] in shown and "\\u202e" in shown and "\u202e" not in shown, shown
    assert "by their numbers" in browser.text("document.querySelector('.approval .problem')")
    press(browser, "Reject")
    go(browser, "#/sessions", has(session[:12]))
    go(browser, "#/session/" + session, "document.querySelectorAll('article.cell').length == 3")
    text = browser.text("document.body")
    assert "U+202E" in text and "red" in text and "\u202e" not in text and "\x1b" not in text
    assert browser.value("window.pwned") is None and browser.value("location.pathname") == "/console/"
    assert browser.value("[...document.querySelectorAll('script')].length") == 1
    assert browser.value("[...document.querySelectorAll('img')].every((each) => each.src.startsWith('data:image/'))")
    # Scripts run when a person asks for it, in the frame, and still reach nothing.
    press(browser, "Run its scripts")
    browser.wait("document.querySelector('iframe').src.endsWith('scripts=true')")
    browser.value("new Promise((done) => setTimeout(done, 500))")
    assert browser.value("window.pwned") is None and browser.value("location.pathname") == "/console/"
    # The browser complains of what the policy refused, and of nothing else.
    refused = ("Content Security Policy", "sandbox", "SecurityError", "Blocked a frame")
    assert [each for each in surprises(browser) if not any(word in str(each) for word in refused)] == []


def test_points_and_forks(server, browser):
    session = server.session()
    server.execute("x = 1", session=session)
    enter(browser, server)
    go(browser, "#/session/" + session, "document.querySelector('form.line input')")
    browser.value("document.querySelector('form.line input').focus()")
    browser.type("good")
    browser.key("Enter", number=13)
    browser.wait("[...document.querySelectorAll('ul.points li')].some((each) => each.innerText.includes('good'))")
    server.execute("x = 2", session=session)
    browser.value("window.confirm = () => true")
    press(browser, "Rewind", "document.querySelector('ul.points')")
    browser.wait(has("Rewound to the point"))
    assert server.execute("x", session=session)["value"] == 1
    # On from now, and from the point: in sessions of their own, whose variables are shown.
    server.execute("x = 3", session=session)
    made = []
    for within, number in (("document.querySelector('aside p.buttons')", 3), ("document.querySelector('ul.points')", 1)):
        press(browser, "Fork", within)
        browser.wait("location.hash.startsWith('#/session/') && !%s.includes(location.hash.split('/')[2])" % json.dumps([session, *made]))
        made.append(browser.value("location.hash").rsplit("/", 1)[1])
        assert server.ask("GET", "/v1/sessions/" + made[-1]).json["parent"] == session
        browser.wait("[...document.querySelectorAll('aside tbody tr')].some((each) => each.innerText.trim() == 'x\\tint\\t%d')" % number)
        assert server.execute("x", session=made[-1])["value"] == number
        # The tree has the source with its point, and the forks below it.
        browser.wait("[...document.querySelectorAll('ul.tree > li > ul.points .point')].map((each) => each.innerText).join() == 'good'")
        browser.wait("document.querySelectorAll('ul.tree > li > ul:not(.points) > li').length == %d" % len(made))
    picture(browser, "branches", height=700)
    # Back to the point of another session of the tree, and without it.
    press(browser, "Rewind", "document.querySelector('ul.points')")
    browser.wait(has("Rewound."))
    assert server.execute("x", session=session)["value"] == 1
    press(browser, "Drop", "document.querySelector('ul.points')")
    browser.wait("document.querySelectorAll('ul.points li').length == 0")
    assert server.ask("GET", "/v1/sessions/%s/checkpoints" % session).json["points"] == []
    assert surprises(browser) == []


def test_the_other_pages(server, browser):
    server.ask("POST", "/api/workflows", {"name": "double", "description": "Twice a number", "source": "def run(n: int) -> int:\n    return 2 * n\n"})
    server.ask("POST", "/api/artifacts", {"name": "note.md", "data": "# Title\n\n**bold** <script>parent.pwned=1</script>", "description": "A note"})
    enter(browser, server)
    for page, ready in (("tools", "document.querySelector('.list code')"), ("workflows", has("return 2 * n")), ("artifacts", has("Title")), ("packages", has("There are no packages")),
                        ("policy", has("mail needs a person")), ("audit", "document.querySelectorAll('tbody tr').length > 0"), ("metrics", "document.querySelectorAll('canvas').length > 5"),
                        ("doctor", has("subprocess"))):
        go(browser, "#/" + page, ready)
        if page in ("artifacts", "audit", "doctor"):
            picture(browser, page, height=600)
    go(browser, "#/policy", has("Try a call"))
    browser.value("document.querySelector('input[placeholder=\"tool.callable\"]').focus()")
    browser.type("echo.say")
    press(browser, "Try")
    browser.wait("document.querySelector('[role=status]').innerText.includes('ask')")
    picture(browser, "policy", height=600)
    go(browser, "#/workflows", has("return 2 * n"))
    browser.value("(() => { const at = document.querySelector('.list .line input'); at.focus(); at.select(); })()")
    browser.type('{"n": 21}')
    press(browser, "Run")
    browser.wait("location.hash.startsWith('#/session/')")
    browser.wait(has("42"))
    assert browser.value("window.pwned") is None
    assert surprises(browser) == []


def test_a_restart_is_noticed_and_survived(browser):
    folder = support.temporary_folder("workcell-tests-console-")
    port = serving.free_port()
    flags = base(os.path.join(folder, "base"))
    first = serving.Server(*flags, listen="127.0.0.1:%d" % port)
    enter(browser, first)
    browser.wait(has("There are no sessions"))
    first.close()
    browser.wait(has("does not answer"))
    second = serving.Server(*flags, listen="127.0.0.1:%d" % port)
    try:
        session = second.session()
        browser.wait(has(session[:12]))  # still logged in: the cookie is good for whoever knows the tokens
        assert not browser.value(has("does not answer"))
    finally:
        second.close()


def test_a_notebook_and_the_inbox_after_a_restart(browser):
    """The page says that its session is gone, and calls of new ones are seen without a new login."""
    folder = support.temporary_folder("workcell-tests-console-")
    port = serving.free_port()
    flags = base(os.path.join(folder, "base"))
    first = serving.Server(*flags, listen="127.0.0.1:%d" % port)
    session = first.session()
    first.execute("x = 41", session=session)
    enter(browser, first)
    go(browser, "#/session/" + session, "document.querySelectorAll('article.cell').length == 1")
    first.close()
    browser.wait(has("does not answer"))
    second = serving.Server(*flags, listen="127.0.0.1:%d" % port)
    try:
        browser.wait(has("This session has ended") + " && !" + has("does not answer"))
        assert browser.value("document.querySelectorAll('article.cell').length") == 1, "what it showed stays"
        go(browser, "#/approvals", has("Nothing waits"))
        asked(second, "after the restart")
        browser.wait("document.querySelectorAll('article.approval').length == 1")
        browser.value("document.querySelector('article.approval').focus()")
        browser.key("a")
        browser.wait(has("Nothing waits"))
    finally:
        second.close()


@pytest.fixture(scope="module")
def filled(server):
    """Something on every page, and the pages: [(address, what is true when it is there)]."""
    server.ask("POST", "/api/workflows", {"name": "double", "description": "Twice a number", "source": "def run(n: int) -> int:\n    return 2 * n\n"})
    server.ask("POST", "/api/artifacts", {"name": "note.md", "data": "# Title\n\n**bold** text", "description": "A note"})
    session = server.session()
    for code in CELLS:
        server.execute(code, session=session)
    fork = server.ask("POST", "/v1/sessions/%s/fork" % session, {}).json["session_id"]
    server.execute("x = 'other'", session=fork)
    asked(server, "seen by axe")
    yield [("sessions", has(session[:12])), ("session/" + session, "document.querySelectorAll('article.cell').length == 4 && " + has("Variables (")),
           ("compare/%s/%s" % (session, fork), has("'other'")), ("approvals", "document.querySelector('article.approval')"), ("tools", "document.querySelector('.list form') || document.querySelector('.list code')"),
           ("workflows", has("return 2 * n")), ("artifacts", has("Title")), ("packages", has("There are no packages")), ("policy", has("Try a call")), ("audit", "document.querySelector('tbody tr')"),
           ("metrics", "document.querySelector('canvas')"), ("doctor", has("subprocess"))]
    for each in server.ask("GET", "/v1/approvals?all=true").json["approvals"]:
        server.ask("POST", "/v1/sessions/%s/approvals/%d" % (each["session_id"], each["id"]), {"accept": False})


def test_it_works_on_a_phone_and_in_the_dark(server, filled, browser):
    enter(browser, server)
    browser.tell("Emulation.setDeviceMetricsOverride", width=380, height=740, deviceScaleFactor=1, mobile=True)
    browser.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    wide = []
    for page, ready in filled:
        if page.startswith("compare") or page.startswith("session/"):
            browser.value("location.hash = '#/sessions'")
        go(browser, "#/" + page, ready)
        if browser.value("document.documentElement.scrollWidth") > 380:
            wide.append((page.split("/")[0], browser.value("document.documentElement.scrollWidth")))
        assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        if page.startswith("session/"):
            picture(browser, "phone", width=380, height=740)
    assert wide == []
    # Nothing of all pages came from elsewhere.
    assert browser.value("performance.getEntriesByType('resource').every((each) => new URL(each.name).origin == location.origin)")
    # There are no keys to run a cell with.
    session = server.session()
    go(browser, "#/session/" + session, "document.querySelector('.editor .code')?.shadowRoot?.querySelector('.cm-content') && " + has("idle"))  # the line that moves the editor down
    browser.value("document.querySelector('.editor .code').shadowRoot.querySelector('.cm-content').focus()")
    browser.type("6 * 7")
    place = browser.value("document.querySelector('.editor button').getBoundingClientRect().toJSON()")
    assert place["width"] > 20 and place["height"] >= 24 and place["bottom"] <= 740, place
    browser.tell("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": place["x"] + 10, "y": place["y"] + 10}])
    browser.tell("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    browser.wait("document.querySelector('article.cell.done') && " + has("42"))


AXE = os.path.join(os.path.dirname(support.__file__), "..", "console", "node_modules", "axe-core", "axe.min.js")


def test_accessibility(server, filled, browser, tmp_path):
    """axe finds nothing wrong on any page, in light and dark, and before the login."""
    with open(AXE, encoding="utf-8") as file:
        axe = file.read()
    found = []

    def look(scheme, page):
        browser.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        browser.value(axe + "; 0")
        for each in browser.value("axe.run(document, {iframes: false}).then((found) => found.violations.map((each) => [each.id, each.nodes.map((node) => node.html.slice(0, 150)).slice(0, 3)]))"):
            found.append((scheme, page.split("/")[0], each))

    for scheme in ("light", "dark"):
        browser.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        if scheme == "light":
            browser.open("http://127.0.0.1:%d/console/" % server.port, "/console/")
            browser.wait("document.querySelector('input[type=password]')")
            look(scheme, "login")
            enter(browser, server)
        for page, ready in filled:
            go(browser, "#/" + page, ready)
            look(scheme, page)
    assert found == []


def test_no_mouse_is_needed(server, browser):
    """From the login to a cell of one's own and the end of the session, with keys alone."""
    enter(browser, server)
    browser.wait("document.querySelector('main h1')")

    def reach(what, back=False):
        for _ in range(150):
            if browser.value("(() => { const at = document.activeElement; return !!at && (%s); })()" % what):
                # Somebody who sees it knows where they are.
                assert browser.value("(() => { const style = getComputedStyle(document.activeElement); return style.outlineStyle != 'none' || document.activeElement.shadowRoot != null; })()")
                return
            browser.key("Tab", number=9, modifiers=8 if back else 0)
        raise AssertionError("%s is not reached by Tab; at %s" % (what, browser.value("document.activeElement.outerHTML.slice(0, 200)")))

    reach("at.innerText == 'To the content'")
    browser.key("Enter", number=13)
    browser.wait("document.activeElement.id == 'content'")
    reach("at.innerText == 'New session'")
    browser.key("Enter", number=13)
    browser.wait("location.hash.startsWith('#/session/')")
    session = browser.value("location.hash").rsplit("/", 1)[1]
    browser.wait("document.querySelector('.editor .code')?.shadowRoot?.querySelector('.cm-content')")
    reach("at.shadowRoot?.activeElement?.classList.contains('cm-content')")
    browser.type("6 * 7")
    browser.key("Enter", number=13, modifiers=8)
    browser.wait(has("[1]") + " && " + has("42"))
    # Escape, then Tab, leaves the editor.
    browser.key("Escape", number=27)
    reach("at.tagName == 'SUMMARY' && at.innerText.startsWith('Variables')")
    browser.value("window.confirm = () => true")  # a dialog of the browser's, which keys answer
    reach("at.tagName == 'BUTTON' && at.innerText == 'End'", back=True)
    browser.key("Enter", number=13)
    browser.wait("location.hash == '#/sessions'")
    assert server.ask("GET", "/v1/sessions/" + session).status == 410
    reach("at.tagName == 'A' && at.getAttribute('href') == '#/doctor'", back=True)
    browser.key("Enter", number=13)
    browser.wait(has("subprocess"))


# ---- how fast ----

FRAMES = """new Promise((done) => {
  const times = [], end = document.documentElement.scrollHeight;
  let last = performance.now(), at = 0;
  const step = (now) => {
    times.push(now - last);
    last = now;
    at += 1500;
    scrollTo(0, at % end);
    if (times.length < 150) requestAnimationFrame(step); else { times.sort((a, b) => a - b); done([times[75], times[142], times[149]]); }
  };
  requestAnimationFrame(step);
})"""


def test_ten_thousand_cells_scroll(server, browser, record_property):
    session = server.session()
    connection = server.connect()
    for i in range(10000):
        server.execute("print(%d)" % i, session=session, connection=connection)
    connection.close()
    enter(browser, server)
    go(browser, "#/session/" + session, "document.querySelectorAll('article.cell').length > 10")
    browser.wait("(scrollTo(0, 1e9), %s)" % has("[10000]"))
    assert browser.value("document.querySelectorAll('article.cell').length") < 1500, "cells far away are not drawn"
    median, most, worst = browser.value(FRAMES)
    record_property("frame_ms", "median %.1f, 95%% %.1f, worst %.1f" % (median, most, worst))
    print("frames while scrolling: median %.1f ms, 95%% %.1f ms, worst %.1f ms" % (median, most, worst))


def test_five_hundred_sessions_are_listed(browser):
    folder = support.temporary_folder("workcell-tests-console-")
    server = serving.Server(*base(os.path.join(folder, "base")), "--max-sessions", "600")
    try:
        first = server.session()
        left = 499
        while left:
            n = min(left, 100)
            assert server.ask("POST", "/v1/sessions/%s/fork" % first, {"n": n}).status == 201
            left -= n
        enter(browser, server)
        browser.wait(has("500 of 500 sessions"))
        press(browser, "Show 400 more")
        browser.wait("document.querySelectorAll('tbody tr').length == 500")
    finally:
        server.close()


class Floor:
    """A page that only receives messages, and the program that sends them, each with its time."""
    PAGE = b"<!DOCTYPE html><title>floor</title><pre id=to></pre><script>new EventSource('/events').onmessage = (event) => { document.getElementById('to').textContent += event.data + ' '; };</script>"

    def __init__(self):
        floor = self
        self.send = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # noqa: N802
                self.send_response(200)
                self.send_header("Content-Type", "text/html" if self.path == "/" else "text/event-stream")
                self.end_headers()
                self.wfile.write(floor.PAGE if self.path == "/" else b":\n\n")
                if self.path == "/events" and floor.send.wait(support.DEADLINE):
                    for _ in range(20):
                        self.wfile.write(b"data: at=%.6f\n\n" % time.time())
                        self.wfile.flush()
                        time.sleep(0.1)

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.send.set()
        self.http.shutdown()
        self.http.server_close()


# The page notes when it first shows a text, and who printed it when: one clock, of one machine.
NOTE_TIMES = """window.times = {}; new MutationObserver(() => { for (const [, at] of document.body.innerText.matchAll(/at=([0-9.]+)/g)) window.times[at] ??= Date.now() / 1000; })
    .observe(document.body, {subtree: true, childList: true, characterData: true})"""


def test_a_server_that_waits_for_a_login(browser, tmp_path):
    """The link leads to the login page, in a window that knows nothing of the console; who may not approve gets none."""
    tokens = ("tokens:\n  - {name: alice, token: t0ken-of-alice-is-long, scopes: [run, read, approve]}\n"
              "  - {name: runner, token: t0ken-of-a-runner-is-so, scopes: [run, read]}\n")
    with oauth.OAuth() as remote:
        flags = base(str(tmp_path / "base"))
        spaces.write_files(tmp_path / "base", {"tools/s.yaml": json.dumps({"name": "s", "type": "mcp", "url": remote.url, "auth": "oauth"})})
        server = serving.Server(*flags, tokens=tokens, env={"XDG_STATE_HOME": str(tmp_path / "state")})
        try:
            enter(browser, server, token="t0ken-of-a-runner-is-so")
            go(browser, "#/tools", has("These servers wait for a login"))
            browser.wait(has("needs a token with the scope approve"))
            assert browser.value("document.querySelectorAll('section[aria-label=logins] a').length") == 0
            press(browser, "Log out")
            browser.wait("document.querySelector('input[type=password]')")
            enter(browser, server, token="t0ken-of-alice-is-long", page="#/tools")
            link = "document.querySelector('section[aria-label=logins] a')"
            browser.wait(link)
            page = browser.value(link + ".href")
            assert page == "http://127.0.0.1:%d/oauth/login?server=s" % server.port
            assert browser.value("[%s.target, %s.rel]" % (link, link)) == ["_blank", "noopener noreferrer"]
            assert surprises(browser) == []
            # As the new window does.
            browser.open(page, "/oauth/login")
            fill(browser, "document.querySelector('input[name=token]')", "t0ken-of-alice-is-long")
            press(browser, "Continue")
            browser.wait("document.body && " + has("Logged in"))
            enter(browser, server, page="#/tools")
            browser.wait(has("echo") + " && !" + has("These servers wait for a login"))
        finally:
            server.close()


def lateness(browser):
    browser.wait("Object.keys(window.times).length == 20")
    return sorted(1000 * (seen - float(at)) for at, seen in browser.value("window.times").items())


def test_first_paint_and_output(server, browser, tmp_path, record_property):
    """Both are noted, in turns with a page that only receives a message: a machine that is busy is no failure."""
    session = server.session()
    server.execute("import time", session=session)
    enter(browser, server)
    go(browser, "#/session/" + session, "document.querySelector('article.cell')")
    browser.tell("Page.reload")
    browser.wait("document.querySelector('article.cell') && performance.getEntriesByType('paint').length")
    paint = browser.value("performance.getEntriesByType('paint').find((each) => each.name == 'first-contentful-paint').startTime")
    ready = browser.value("new Promise((done) => { const look = () => document.querySelector('article.cell') ? done(performance.now()) : requestAnimationFrame(look); look(); })")
    floor, other = Floor(), Browser(tmp_path / "floor")
    try:
        other.open("http://127.0.0.1:%d/" % floor.http.server_port, "/")
        other.value(NOTE_TIMES)
        browser.value(NOTE_TIMES)
        floor.send.set()
        server.execute("for i in range(20):\n    print('at=%.6f' % time.time(), flush=True)\n    time.sleep(0.1)", session=session)
        late, least = lateness(browser), lateness(other)
    finally:
        other.close()
        floor.close()
    record_property("paint_ms", paint)
    record_property("output_ms", "%.1f, floor %.1f" % (late[10], least[10]))
    print("first paint after %.0f ms, cells after at most %.0f ms, output after %.1f ms (median), %.1f ms (worst); a page that only receives a message: %.1f and %.1f ms"
          % (paint, ready, late[10], late[-1], least[10], least[-1]))
