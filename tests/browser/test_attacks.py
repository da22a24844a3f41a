"""Markup, escape sequences and confusing characters of the agent's, in every place of the console in which they can appear."""
import json
import os

import pytest

import serving
import support
from chromium import PROGRAM
from pages import base, enter, go, has, press, started, value

pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs chromium-headless-shell from Debian")

HTML = "<img src=x onerror=parent.pwned=1><script>parent.pwned=1</script>"
SVG = "<svg xmlns='http://www.w3.org/2000/svg' onload='parent.pwned=1'><script>parent.pwned=1</script></svg>"
MARKDOWN = "[click](javascript:parent.pwned=1) ![x](http://127.0.0.1:1/pixel.png) **bold**"
ANSI = "\x1b]0;title\x07\x1b[31mred\x1b[0m\x1b[2J\x1b[8mhidden\x1b[0m"
BIDI = "\u202egnp.exe\u202c \u200binvisible\u2066x\u2069 \U000e0041tag"
ALL = " ".join((HTML, SVG, MARKDOWN, ANSI, BIDI))
ODD = "\u202e\u202c\u200b\u2066\u2069\x1b\U000e0041"
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
    assert [hex(ord(each)) for each in ODD if each in raw] == []
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
