"""What code of a session tries with the page and with the person who approves: answers of its kernel, floods, places of calls, long arguments."""
import json
import os
import socket
import threading

import pytest

import serving
import support
from chromium import PROGRAM
from pages import asked, base, enter, go, has, press, started, surprises, value

pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs chromium-headless-shell from Debian")

CARDS = "document.querySelectorAll('article.approval')"


@pytest.fixture(scope="module")
def server():
    folder = support.temporary_folder("workcell-tests-enemy-")
    with serving.shared(serving.Server(*base(os.path.join(folder, "base")), "--approval-timeout", "600", python=os.environ["WORKCELL_TEST_PYTHON"])) as shared:
        yield shared


FORGED = ["b'{}'", "b'null'", "b'[]'", "b'{\"variables\": {\"a\": 1}}'", "b'{\"variables\": [null, 7, {\"name\": {\"x\": 1}, \"type\": 1, \"preview\": []}]}'", "b'no JSON'",
          "json.dumps({'variables': [{'name': 'n' * 300000, 'type': '\\u202e', 'preview': '<img src=x onerror=parent.pwned=1>'}]}).encode()"]


def test_a_kernel_that_lies_about_its_variables(server, browser):
    """The session's code can change what its kernel answers with: the page leaves out what is no list of variables, and stands."""
    session = server.session()
    server.execute("import json, workcell_kernel.variables as found", session=session)
    enter(browser, server)
    for forged in FORGED:
        server.execute("found.answer = lambda ns: %s" % forged, session=session)
        go(browser, "#/sessions", has(session[:12]))
        go(browser, "#/session/" + session, "document.querySelectorAll('article.cell').length > 1 && document.querySelector('.editor')")
        browser.wait("performance.getEntriesByType('resource').filter((each) => each.name.endsWith('%s/variables')).length" % session)
        go(browser, "#/compare/%s/%s" % (session, session), has("Variables that differ"))
        browser.value("performance.clearResourceTimings()")
        assert not browser.value(has("This page cannot be shown")), forged
    assert browser.value("window.pwned") is None and surprises(browser) == []


def test_a_kernel_that_lies_about_completions(server, browser):
    """Only what continues the typed text, and is what it looks like, is offered."""
    session = server.session()
    server.execute("import json, workcell_kernel.complete as found", session=session)
    enter(browser, server)
    go(browser, "#/session/" + session, "document.querySelector('.editor .code')?.shadowRoot?.querySelector('.cm-content')")
    root = "document.querySelector('.editor .code').shadowRoot"
    for answer, offered in (({"prefix": "some", "matches": ["something", "some\nimport os", "some\u202ething", {"x": 1}, 7, None, "other", "some thing", "s" * 5000]}, ["something"]),
                            ({"prefix": "x" * 10000, "matches": ["x" * 10000]}, []), ({"prefix": 7, "matches": "some"}, []), ([], [])):
        server.execute("found.answer = lambda text, ns: json.dumps(%r).encode()" % (answer,), session=session)
        browser.wait("[...document.querySelectorAll('header .facts')].some((each) => each.innerText.includes('idle'))")
        browser.value(root + ".querySelector('.cm-content').focus()")
        browser.key("a", modifiers=2)
        browser.key("Backspace", number=8)
        browser.type("some")
        before = browser.value("performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/complete')).length")
        browser.key(" ", code="Space", number=32, modifiers=2)
        browser.wait("performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/complete')).length > %d" % before)
        if offered:
            browser.wait(root + ".querySelector('.cm-completionLabel')")
        browser.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert browser.value("[...%s.querySelectorAll('.cm-completionLabel')].map((each) => each.innerText)" % root) == offered
        browser.key("Escape", number=27)
    assert surprises(browser) == []


def test_floods_of_output(server, browser):
    """The page keeps the newest parts, and draws what would take it a minute by its text alone."""
    session = server.session()
    server.execute("import sys\nfor n in range(3000):\n    print(n, flush=True)\n    print(n, file=sys.stderr, flush=True)", session=session)
    server.execute("from IPython.display import Markdown, display\ndisplay(Markdown('[' * 400000))\ndisplay(Markdown('![](' * 100000))\ndisplay(Markdown('**' + '`' * 200000))", session=session)
    server.execute("print('\\u202e\\u200b' * 90000)\nprint('a\\u202e' * 90000)\nprint('\\x1b[31mx\\x1b[32my' * 15000)\nprint('\\x1b]0;' * 90000)", session=session)
    server.execute("'the end'", session=session)
    enter(browser, server)
    go(browser, "#/session/" + session, has("the end"))
    assert browser.value("document.querySelectorAll('article.cell')[0].querySelectorAll('pre.stdout, pre.stderr').length") <= 1000
    assert browser.value("document.querySelectorAll('*').length") < 60000
    assert "\u202e" not in browser.text("document.body")
    go(browser, "#/approvals", has("Nothing waits"))
    assert surprises(browser) == []


class Listener:
    """Another host, which notes that somebody has connected."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port, self.heard = self.socket.getsockname()[1], []
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.heard.append(connection.recv(200))
            connection.close()


LEAKS = """<link rel=preconnect href="http://127.0.0.1:%(port)d"><link rel=dns-prefetch href="//127.0.0.1:%(port)d"><link rel=prefetch href="http://127.0.0.1:%(port)d/a"><link rel=stylesheet href="http://127.0.0.1:%(port)d/b">
<meta http-equiv=refresh content="0;url=http://127.0.0.1:%(port)d/c"><base href="http://127.0.0.1:%(port)d/"><img src="http://127.0.0.1:%(port)d/d" srcset="http://127.0.0.1:%(port)d/e 2x">
<style>@import url(http://127.0.0.1:%(port)d/f); b { background: url(http://127.0.0.1:%(port)d/g) }</style><b style="background: url(http://127.0.0.1:%(port)d/h)">bold</b>
<video src="http://127.0.0.1:%(port)d/i" poster="http://127.0.0.1:%(port)d/j"></video><object data="http://127.0.0.1:%(port)d/k"></object><iframe src="http://127.0.0.1:%(port)d/l"></iframe>
<svg><image href="http://127.0.0.1:%(port)d/m"/><use href="http://127.0.0.1:%(port)d/n#a"/></svg><a id=away href="http://127.0.0.1:%(port)d/o" ping="http://127.0.0.1:%(port)d/p">link</a>
<form id=form action="http://127.0.0.1:%(port)d/q" method=post><button>send</button></form>"""
MOVES = "<script>try { location.href = 'http://127.0.0.1:%(port)d/r'; } catch (error) { } document.getElementById('away').click(); document.getElementById('form').submit(); parent.postMessage({done: true}, '*');</script>"


@pytest.mark.parametrize("scripts", [False, True])
def test_output_tells_no_other_host(server, browser, scripts):
    """Code without a network must not get one through the browser of the person who looks on: nobody is looked up, connected to or asked."""
    other = Listener()
    try:
        session = server.session()
        markup = (LEAKS + (MOVES if scripts else "")) % {"port": other.port}
        if scripts:  # what a person allows them to do is less: these lines need no script
            markup = markup.replace("<link rel=preconnect", "<link rel=icon").replace("<link rel=dns-prefetch", "<link rel=icon")
        server.execute("from IPython.display import HTML\nHTML(%r)" % markup, session=session)
        enter(browser, server)
        browser.value("addEventListener('message', (event) => { if (event.data?.done) window.over = true; if (typeof event.data?.height == 'number') window.tall = event.data.height; }); 0")
        go(browser, "#/session/" + session, "document.querySelector('iframe')")
        browser.wait("window.tall > 0")
        if scripts:
            press(browser, "Run its scripts")
            browser.wait("window.over")
        # What was to come has had the time of a whole page from the same machine.
        browser.value("fetch('main.js', {cache: 'reload'}).then((answer) => answer.text()).then(() => new Promise((done) => setTimeout(done, 300)))")
        assert other.heard == [] and browser.value("location.pathname") == "/console/"
    finally:
        other.socket.close()


def rejected(server):
    for each in server.ask("GET", "/v1/approvals?all=true").json["approvals"]:
        server.ask("POST", "/v1/sessions/%s/approvals/%d" % (each["session_id"], each["id"]), {"accept": False})


def test_a_call_that_comes_while_a_reason_is_typed(server, browser):
    """The call that is being rejected goes by itself, and another one comes after a while: what is typed on does not accept it."""
    first = server.session()
    enter(browser, server)
    go(browser, "#/approvals", has("Nothing waits"))
    asked(server, "harmless", first)
    browser.wait(CARDS + ".length == 1 && document.activeElement.tagName == 'ARTICLE'")
    browser.key("r")
    browser.wait("document.activeElement.tagName == 'INPUT'")
    browser.type("not th")
    server.ask("POST", "/v1/sessions/%s/interrupt" % first)
    browser.wait(CARDS + ".length == 0")
    second = asked(server, "another")
    browser.wait(CARDS + ".length == 1")
    browser.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    for key in "at again":
        browser.key(key)
    assert [each["args"] for each in server.ask("GET", "/v1/approvals?all=true").json["approvals"]] == [{"text": "another"}], "it still waits"
    browser.key("j")
    browser.wait("document.activeElement.tagName == 'ARTICLE'")
    browser.key("a")
    browser.wait(has("Nothing waits"))
    assert value(server, second).strip() == "another"


def pointer(browser, x, y):
    for kind in ("mousePressed", "mouseReleased"):
        browser.tell("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def test_a_card_that_moves_under_the_pointer(server, browser):
    """The first call goes by itself just before the click on it: the click that falls on the next one answers nothing."""
    first, second = server.session(), server.session()
    asked(server, "harmless", first)
    asked(server, "another", second)
    enter(browser, server, page="#/approvals")
    browser.wait(CARDS + ".length == 2")
    place = browser.value("[...%s[0].querySelectorAll('button')].find((each) => each.innerText.startsWith('Accept')).getBoundingClientRect().toJSON()" % CARDS)
    # The click comes in the frame in which the list has moved: there the button of the second one is now.
    browser.value("""window.clicked = false; new MutationObserver((_, watcher) => { if (%s.length == 1) { watcher.disconnect(); const at = document.elementFromPoint(%f, %f)?.closest('button');
        window.clicked = at?.innerText ?? 'nothing'; at?.dispatchEvent(new MouseEvent('click', {bubbles: true, detail: 1})); } }).observe(document.querySelector('main'), {childList: true, subtree: true}); 0"""
                  % (CARDS, place["x"] + 8, place["y"] + 8))
    server.ask("POST", "/v1/sessions/%s/interrupt" % first)
    browser.wait("window.clicked")
    assert browser.value("window.clicked").startswith("Accept")
    browser.wait(has("The list has just changed"))
    assert [each["args"] for each in server.ask("GET", "/v1/approvals?all=true").json["approvals"]] == [{"text": "another"}], "it still waits"
    # Somebody who has looked again answers it.
    browser.value("new Promise((done) => setTimeout(done, 1000))")
    pointer(browser, place["x"] + 8, place["y"] + 8)
    browser.wait(has("Nothing waits"))
    assert value(server, second).strip() == "another"


def test_the_end_of_long_arguments(server, browser):
    """What lies below the visible lines is shown before it can be accepted."""
    long = "harmless\n" * 400 + "rm -rf /"
    session = asked(server, long)
    # Nor does a narrow screen hide the end of short ones.
    other = asked(server, "harmless" + " " * 1800 + "rm -rf /")
    browser.tell("Emulation.setDeviceMetricsOverride", width=380, height=740, deviceScaleFactor=1, mobile=True)
    enter(browser, server, page="#/approvals")
    browser.wait(CARDS + ".length == 2")
    field = CARDS + "[1].querySelector('textarea')"
    assert browser.value("%s.clientHeight >= %s.scrollHeight - 2" % (field, field)), "all of it is there"
    server.ask("POST", "/v1/sessions/%s/interrupt" % other)
    browser.wait(CARDS + ".length == 1 && document.activeElement.tagName == 'ARTICLE'")
    browser.key("a")
    browser.wait(has("accept once more"))
    field = "document.querySelector('article.approval textarea')"
    assert browser.value("%s.clientHeight >= %s.scrollHeight - 2" % (field, field)), "all of it is there"
    assert len(server.ask("GET", "/v1/approvals?all=true").json["approvals"]) == 1
    browser.value("document.querySelector('article.approval').focus()")
    browser.key("a")
    browser.wait(has("Nothing waits"))
    assert value(server, session) == long + "\n"


def test_the_difference_is_that_of_the_arguments_as_they_are(server, browser):
    """It names the file, and follows what the person changes."""
    session = server.session()
    server.execute("open('one.txt', 'w').write('of one\\n')\nopen('two.txt', 'w').write('of two\\n')", session=session)
    asked(server, "new\n", session, "tools.write.file(path='one.txt', content=%r)")
    enter(browser, server, page="#/approvals")
    diff = "[...document.querySelectorAll('article.approval .diff div')].map((each) => each.innerText)"
    browser.wait("%s.includes('-of one')" % diff)
    assert "one.txt" in browser.text("document.querySelector('article.approval h3')")
    browser.value("document.querySelector('article.approval textarea').select()")
    browser.type(json.dumps({"path": "two.txt", "content": "newer\n"}))
    browser.wait("%s.includes('-of two') && %s.includes('+newer')" % (diff, diff))
    assert "two.txt" in browser.text("document.querySelector('article.approval h3')")
    press(browser, "Accept")
    browser.wait(has("Nothing waits"))
    value(server, session)
    assert server.execute("[open('one.txt').read(), open('two.txt').read()]", session=session)["value"] == ["of one\n", "newer\n"]


def test_a_flood_of_calls(server, browser):
    """One notification says how many; the inbox has them all, also where a page may not notify (browsers of phones)."""
    session = server.session()
    started(server, session, "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(12) as pool: answer = list(pool.map(lambda n: tools.echo.say(text=str(n)), range(12)))")
    support.wait_until(lambda: len(server.ask("GET", "/v1/approvals?all=true").json["approvals"]) == 12, lambda: "they do not ask")
    browser.tell("Page.addScriptToEvaluateOnNewDocument", source="window.said = []; window.Notification = class { static permission = 'granted'; constructor(title) { said.push(title); throw new TypeError('Illegal constructor'); } };")
    enter(browser, server)
    browser.wait("window.said.length && " + has("Approvals (12)"))
    go(browser, "#/approvals", CARDS + ".length == 12")
    assert browser.value("window.said") == ["12 calls wait for approval"]
    rejected(server)
    browser.wait(has("Nothing waits"))
    assert surprises(browser) == []
