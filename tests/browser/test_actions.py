"""What a person does in the console, page by page: branches, files, tools, workflows, artifacts, policy, notifications."""
import json
import os

import pytest

import serving
import spaces
import support
from chromium import Browser, PROGRAM, WHOLE
from pages import asked, base, enter, fill, go, has, picture, PICTURES, press, surprises, value

pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs chromium-headless-shell from Debian")


@pytest.fixture(scope="module")
def server():
    folder = support.temporary_folder("workcell-tests-actions-")
    for name in ("wc-alpha", "wc-beta"):
        spaces.make_wheel(os.path.join(folder, "wheels"), name, "1.0", "def who():\n    return 'alpha'\n")
    flags = [*base(os.path.join(folder, "base")), "--wheel-dir", os.path.join(folder, "wheels"), "--approval-timeout", "600"]
    with serving.shared(serving.Server(*flags, env={"XDG_CACHE_HOME": os.path.join(folder, "cache"), "PIP_NO_INDEX": "1"})) as shared:
        yield shared


@pytest.fixture(scope="module")
def layered():
    """Sessions with a layer over a folder that has a file."""
    folder = support.temporary_folder("workcell-tests-layers-")
    place = os.path.join(folder, "project")
    os.makedirs(place)
    with open(os.path.join(place, "plan.txt"), "w", encoding="utf-8") as file:
        file.write("one\ntwo\nthree\n")
    with serving.shared(serving.Server(*base(os.path.join(folder, "base")), "--cwd", place, "--workspace-mode", "cow")) as shared:
        shared.place = place
        yield shared


def written(server, name):
    path = os.path.join(server.place, name)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


def test_two_branches_are_compared(layered, browser):
    left = layered.session()
    layered.execute("x = 1\nsame = 'same'\nopen('plan.txt', 'w').write('one\\n2\\nthree\\n')", session=left)
    right = layered.ask("POST", "/v1/sessions/%s/fork" % left, {}).json["session_id"]
    layered.execute("x = 'a text'\nonly_here = [3]\nopen('plan.txt', 'w').write('one\\nzwei\\nthree\\n')\nopen('new.txt', 'w').write('new\\n')", session=right)
    enter(browser, layered)
    go(browser, "#/session/" + left, "document.querySelector('ul.tree ul')")
    press(browser, "Compare", "document.querySelector('aside')")
    browser.wait("location.hash == '#/compare/%s/%s'" % (left, right))
    browser.wait("document.querySelectorAll('main section').length == 2 && document.querySelectorAll('tbody tr').length == 2")
    rows = browser.value("[...document.querySelectorAll('tbody tr')].map((each) => [...each.children].map((one) => one.innerText))")
    assert rows == [["only_here", "not defined", "list [3]"], ["x", "int 1", "str 'a text'"]]
    first, second = browser.value("[...document.querySelectorAll('main section')].map((each) => each.innerText)")
    assert first.startswith("new.txt") and "as in the workspace" in first and "+new" in first
    assert second.startswith("plan.txt") and "+2" in second and "+zwei" in second
    picture(browser, "compare", height=700)
    assert surprises(browser) == []


def test_files_are_committed_and_discarded(layered, browser):
    session = layered.session()
    layered.execute("for name in ('a.txt', 'b.txt', 'c.txt'): open(name, 'w').write(name + '\\n')", session=session)
    enter(browser, layered)
    go(browser, "#/session/" + session, "document.querySelectorAll('details.file').length == 3")
    assert written(layered, "b.txt") is None
    browser.value("document.querySelector('input[aria-label=\"Choose b.txt\"]').click()")
    browser.value("document.querySelectorAll('details.file')[0].open = true")
    browser.wait("document.querySelector('details.file .diff').innerText.includes('+a.txt')")
    picture(browser, "files", height=700)
    press(browser, "Commit 1")
    browser.wait(has("Committed."))
    assert written(layered, "b.txt") == "b.txt\n" and written(layered, "a.txt") is None
    browser.wait("document.querySelectorAll('details.file').length == 2")
    browser.value("window.confirm = () => true")
    press(browser, "Discard", "document.querySelector('aside')")
    browser.wait("document.querySelectorAll('details.file').length == 0")
    assert written(layered, "a.txt") is None and layered.execute("import os; os.path.exists('a.txt')", session=session)["value"] is False
    assert surprises(browser) == []


def test_a_conflict_of_a_commit_is_told(layered, browser):
    session = layered.session()
    with open(os.path.join(layered.place, "both.txt"), "w", encoding="utf-8") as file:
        file.write("before\n")
    layered.execute("open('both.txt', 'w').write('of the code\\n')", session=session)
    with open(os.path.join(layered.place, "both.txt"), "w", encoding="utf-8") as file:
        file.write("of a person\n")
    enter(browser, layered)
    go(browser, "#/session/" + session, "[...document.querySelectorAll('details.file')].some((each) => each.innerText.includes('both.txt'))")
    browser.value("document.querySelector('input[aria-label=\"Choose both.txt\"]').click()")
    press(browser, "Commit 1")
    browser.wait("document.querySelector('.message.bad')")
    assert written(layered, "both.txt") == "of a person\n"


def test_a_tool_is_called_by_its_form(server, browser):
    enter(browser, server)
    go(browser, "#/tools", "document.querySelector('.list code')")
    press(browser, "printer", "document.querySelector('.list ul')")
    browser.wait("document.querySelector('.list h2').innerText.includes('printer')")
    browser.value("document.querySelector('details.side').open = true")
    fields = browser.value("[...document.querySelectorAll('details.side form label')].map((each) => each.innerText.trim())")
    assert len(fields) == 2 and "format" in fields[0] and "number" in fields[1]
    form = "document.querySelector('details.side form')"
    assert browser.value("[...%s.querySelectorAll('input')].map((each) => each.placeholder)" % form) == ["", ""], "required fields have no default"
    fill(browser, form + ".querySelectorAll('input')[0]", "%05d!")
    fill(browser, form + ".querySelectorAll('input')[1]", "42")
    picture(browser, "tools", height=600)
    press(browser, "Call", form)
    browser.wait(form + ".querySelector('[aria-label=result]')?.innerText == '00042!'")
    # What is no number is refused before the program runs.
    fill(browser, form + ".querySelectorAll('input')[1]", "many")
    press(browser, "Call", form)
    browser.wait(form + ".querySelector('.problem')")
    assert "00042!" not in browser.text(form)


def test_an_artifact_is_shown_and_downloaded(server, browser, tmp_path):
    data = bytes(range(256)) * 3
    assert server.ask("PUT", "/api/artifacts/folder/data.bin", data, headers={"Content-Type": "application/octet-stream"}).status == 200
    server.ask("POST", "/api/artifacts", {"name": "table.json", "data": {"rows": [1, 2]}, "description": "Two rows"})
    enter(browser, server)
    browser.tell("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "down"))
    go(browser, "#/artifacts", "document.querySelectorAll('.list li').length >= 2")
    # What is neither text nor a picture is not shown as if it were.
    assert server.ask("PUT", "/api/artifacts/paper.pdf", b"%PDF-1.4\n<script>parent.pwned=1</script>", headers={"Content-Type": "application/octet-stream"}).status == 200
    browser.wait("document.querySelectorAll('.list li').length >= 3")
    for name in ("paper.pdf", "folder/data.bin"):
        press(browser, name, "document.querySelector('.list ul')")
        browser.wait("document.querySelector('.list h2').innerText == %r && %s" % (name, has("No text and no picture")))
    press(browser, "table.json", "document.querySelector('.list ul')")
    browser.wait(has("Two rows") + " && " + has('"rows"'))
    press(browser, "folder/data.bin", "document.querySelector('.list ul')")
    browser.wait("document.querySelector('.list h2').innerText.includes('data.bin')")
    press(browser, "Download")
    place = tmp_path / "down" / "data.bin"
    support.wait_until(lambda: place.exists() and place.stat().st_size == len(data), lambda: "nothing was saved")
    assert place.read_bytes() == data
    browser.value("window.confirm = () => true")
    press(browser, "Delete", "document.querySelector('.list > div')")
    browser.wait("![...document.querySelectorAll('.list li')].some((each) => each.innerText.includes('data.bin'))")
    assert server.ask("GET", "/api/artifacts/folder/data.bin").status == 404
    assert surprises(browser) == []


@pytest.mark.skipif(not WHOLE, reason="needs chromium from Debian")
def test_a_desktop_notification(server, tmp_path):
    # The shell without a desktop has no notifications: this takes the whole browser.
    browser = Browser(tmp_path / "profile", WHOLE)
    try:
        notified(server, browser)
    finally:
        browser.close()


def notified(server, browser):
    browser.tell("Browser.grantPermissions", permissions=["notifications"], origin="http://127.0.0.1:%d" % server.port)
    enter(browser, server)
    # The browser's own notifications; only what they say is noted.
    browser.value("window.said = []; window.Notification = class extends Notification { constructor(title, options) { super(title, options); window.said.push([title, options.body]); window.newest = this; } }; 0")
    assert browser.value("Notification.permission") == "granted"
    session = asked(server, "in the background")
    browser.wait("window.said.length == 1")
    assert browser.value("window.said") == [["A call waits for approval", "echo.say it leaves the machine"]]
    browser.value("window.newest.onclick()")
    browser.wait("location.hash == '#/approvals' && document.querySelectorAll('article.approval').length == 1")
    # Nothing is said of what is in view.
    second = asked(server, "in view")
    browser.wait("document.querySelectorAll('article.approval').length == 2")
    assert len(browser.value("window.said")) == 1
    for _ in range(2):
        browser.value("document.querySelector('article.approval').focus()")
        n = browser.value("document.querySelectorAll('article.approval').length")
        browser.key("a")
        browser.wait("document.querySelectorAll('article.approval').length < %d" % n)
    assert value(server, session).strip() == "in the background" and value(server, second).strip() == "in view"


def test_a_file_that_would_be_written_is_shown_as_a_diff(server, browser):
    session = server.session()
    server.execute("open('notes.txt', 'w').write('first line\\nsecond line\\n')", session=session)
    enter(browser, server)
    go(browser, "#/approvals", "document.querySelector('main')")
    asked(server, "first line\nanother line\n", session, "tools.write.file(path='notes.txt', content=%r)")
    browser.wait("document.querySelector('article.approval .diff')")
    lines = browser.value("[...document.querySelectorAll('article.approval .diff div')].map((each) => each.innerText)")
    assert "-second line" in lines and "+another line" in lines and " first line" in lines
    picture(browser, "difference", height=700)
    browser.value("document.querySelector('article.approval').focus()")
    browser.key("a")
    browser.wait(has("Nothing waits"))
    value(server, session)
    assert server.execute("open('notes.txt').read()", session=session)["value"] == "first line\nanother line\n"
    assert surprises(browser) == []


def test_no_changed_line_of_a_long_file_is_left_out(server, browser):
    session = server.session()
    before = ["line %d" % n for n in range(6000)]
    after = [*before[:10], "early", *before[11:5990], "late", *before[5991:]]
    server.execute("open('long.txt', 'w').write(%r)\nopen('odd.bin', 'wb').write(b'x' * (2 << 20))" % "\n".join(before), session=session)
    enter(browser, server)
    go(browser, "#/approvals", has("Nothing waits"))
    asked(server, "\n".join(after), session, "tools.write.file(path='long.txt', content=%r)")
    browser.wait("document.querySelector('article.approval .diff')")
    lines = browser.value("[...document.querySelectorAll('article.approval .diff div')].map((each) => each.innerText)")
    assert [line for line in lines if line[0] in "+-"] == ["-line 10", "+early", "-line 5990", "+late"], lines[:60]
    assert " line 9" in lines and "@@ 5973 unchanged lines @@" in lines and len(lines) < 30
    press(browser, "Reject")
    browser.wait(has("Nothing waits"))
    # What cannot be compared is not shown as new.
    other = server.session()
    server.execute("open('large.txt', 'w').write('x' * (2 << 20))", session=other)
    asked(server, "small", other, "tools.write.file(path='large.txt', content=%r)")
    browser.wait(has("What changes cannot be shown"))
    assert not browser.value(has("New text"))
    press(browser, "Reject")
    browser.wait(has("Nothing waits"))


def test_packages_are_added_and_removed(server, browser):
    enter(browser, server)
    go(browser, "#/packages", has("There are no packages"))
    for name in ("wc-alpha", "wc-beta==1.0"):
        fill(browser, "document.querySelector('form.line input')", name)
        browser.key("Enter", number=13)
        browser.wait("[...document.querySelectorAll('tbody td')].some((each) => each.innerText == %r)" % name)
    picture(browser, "packages", height=400)
    assert server.execute("import wc_alpha\nwc_alpha.who()", session=server.session())["value"] == "alpha"
    # One that does not exist is told, and is not in the list.
    fill(browser, "document.querySelector('form.line input')", "wc-nothing")
    browser.key("Enter", number=13)
    browser.wait("document.querySelector('.message.bad')?.innerText.includes('wc-nothing')")
    assert browser.value("document.querySelectorAll('tbody tr').length") == 2
    browser.value("document.querySelector('button[aria-label=\"Remove wc-alpha\"]').click()")
    browser.wait("document.querySelectorAll('tbody tr').length == 1")
    assert server.ask("GET", "/api/deps").json == ["wc-beta==1.0"]
    assert [each for each in surprises(browser) if "502" not in str(each)] == []  # the one that does not exist


def test_workflows_are_searched_and_run(server, browser):
    for name, words, source in (("triple", "Three times a number", "def run(n: int) -> int:\n    return 3 * n\n"), ("greet", "Says hello to a person", "def run(who: str) -> str:\n    return 'hello ' + who\n")):
        assert server.ask("POST", "/api/workflows", {"name": name, "description": words, "source": source}).status in (200, 201)
    enter(browser, server)
    go(browser, "#/workflows", "document.querySelectorAll('.list li').length == 2")
    fill(browser, "document.querySelector('input[type=search]')", "hello person")
    browser.wait("document.querySelectorAll('.list li').length == 1 && %s" % has("'hello ' + who"))
    fill(browser, "document.querySelector('.list .line input')", json.dumps({"who": 'Ann "quoted" \\ \n'}))
    press(browser, "Run")
    browser.wait("location.hash.startsWith('#/session/')")
    browser.wait(has("""hello Ann "quoted" \\\\ \\n"""))
    assert surprises(browser) == []


def test_the_policy_is_tried(server, browser):
    enter(browser, server)
    go(browser, "#/policy", has("Try a call"))
    for tool, decision in (("echo.say", "ask"), ("printer.once", "allow"), ("write.file", "ask")):
        fill(browser, "document.querySelector('input[placeholder=\"tool.callable\"]')", tool)
        press(browser, "Try")
        browser.wait("document.querySelector('[role=status] .tag')?.innerText == %r" % decision)
    browser.value("(() => { const at = document.querySelectorAll('form .line input, form.line input')[1]; at.focus(); at.select(); })()")
    browser.type("{not json")
    press(browser, "Try")
    browser.wait("document.querySelector('form .problem')")


def test_audit_records_are_filtered(server, browser):
    server.ask("POST", "/api/workflows", {"name": "audited", "description": "Audited", "source": "def run():\n    return 1\n"})
    session = server.session()
    server.execute("tools.printer.once(format='%d', number=7)", session=session)
    enter(browser, server)
    go(browser, "#/audit", has("printer.once"))
    fill(browser, "document.querySelector('input[aria-label=Tool]')", "printer*")
    browser.key("Enter", number=13)
    browser.wait("[...document.querySelectorAll('tbody tr')].length && [...document.querySelectorAll('tbody tr')].every((each) => each.innerText.includes('printer'))")
    # A record opens to all that it has.
    browser.value("document.querySelector('details.record summary').click()")
    browser.wait("document.querySelector('details.record pre')")
    record = json.loads(browser.text("document.querySelector('details.record pre')"))
    assert record["args"] == {"format": "%d", "number": 7} and record["session"] == session and record["request"], record
    fill(browser, "document.querySelector('input[aria-label=Since]')", "yesterday or so")
    browser.key("Enter", number=13)
    browser.wait("document.querySelector('.problem')")


def test_metrics_are_plotted_as_they_change(server, browser):
    enter(browser, server)
    go(browser, "#/metrics", "document.querySelectorAll('canvas').length > 5")
    fill(browser, "document.querySelector('input[type=search]')", "runs_total")
    browser.wait("document.querySelectorAll('figure').length == 1")
    before = float(browser.text("document.querySelector('figcaption b')"))
    session = server.session()
    for _ in range(3):
        server.execute("1", session=session)
    browser.wait("Number(document.querySelector('figcaption b').innerText) == %d" % (before + 3))
    if PICTURES:
        fill(browser, "document.querySelector('input[type=search]')", "s")
        browser.key("Backspace", number=8)
        for n in range(8):
            server.execute("for n in range(200000): pass", session=server.session())
            at = browser.value("document.querySelector('figcaption b').innerText")
            browser.wait("document.querySelector('figcaption b').innerText != %r" % at)
        browser.value("document.activeElement.blur()")
        picture(browser, "metrics", height=700)
        fill(browser, "document.querySelector('input[type=search]')", "runs_total")
    # As wide as its box, and something is drawn on it.
    browser.wait("Math.abs(document.querySelector('canvas').getBoundingClientRect().width - document.querySelector('figure > div').clientWidth) < 2")
    assert browser.value("(() => { const at = document.querySelector('canvas'); return at.getContext('2d').getImageData(0, 0, at.width, at.height).data.some((each) => each); })()")
    assert surprises(browser) == []


def test_doctor_says_what_works(server, browser):
    enter(browser, server)
    go(browser, "#/doctor", has("subprocess"))
    rows = browser.value("[...document.querySelectorAll('tbody tr')].map((each) => each.innerText)")
    probed = server.ask("GET", "/v1/doctor").json["executors"]
    assert len(rows) == len(probed) >= 6
    for row, each in zip(rows, probed):
        assert each["name"] in row and ("does not work" in row) == (not each["available"])
    assert surprises(browser) == []


def test_the_editor_highlights_in_light_and_dark(server, browser):
    session = server.session()
    server.execute("alpha_value = 1", session=session)
    enter(browser, server)
    colours = {}
    for scheme in ("light", "dark"):
        browser.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        go(browser, "#/sessions", has(session[:12]))
        go(browser, "#/session/" + session, "document.querySelector('.editor .code')?.shadowRoot?.querySelector('.cm-content')")
        root = "document.querySelector('.editor .code').shadowRoot"
        browser.value(root + ".querySelector('.cm-content').focus()")
        browser.type("def f(): return 'text'")
        browser.wait(root + ".querySelectorAll('.cm-line span').length >= 3")
        colours[scheme] = browser.value("(() => { const at = [...%s.querySelectorAll('.cm-line span')]; return Object.fromEntries(at.map((each) => [each.innerText, getComputedStyle(each).color])); })()" % root)
        assert colours[scheme]["def"] != colours[scheme]["'text'"]
    assert colours["light"]["def"] != colours["dark"]["def"]
    # The page's own button: the editor, which stays, has the colours of the other one.
    browser.value("document.querySelector('button[aria-label=\"Light or dark\"]').click()")
    browser.wait("getComputedStyle([...%s.querySelectorAll('.cm-line span')].find((each) => each.innerText == 'def')).color == %r" % (root, colours["light"]["def"]))
    browser.value("localStorage.removeItem('workcell-theme')")


def test_what_a_cell_changed(server, browser):
    session = server.session()
    server.execute("kept = 1\nold = [1]\nleft = 2", session=session)
    enter(browser, server)
    go(browser, "#/session/" + session, has("Variables (3)"))
    browser.wait("performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/variables')).length >= 2")  # both have been answered
    odd = "\u202e<img src=x onerror=parent.pwned=1>"
    server.execute("old.append(2)\nfresh = 'x'\ndel left\nglobals()[%r] = 1" % odd, session=session)
    browser.wait("document.querySelector('p.changes')")
    words = browser.text("document.querySelector('p.changes')").split()
    assert words[:6] == ["changed", "old", "new", "fresh", "new", "U+202E<img"] and words[-2:] == ["gone", "left"] and "kept" not in words, words
    assert browser.value("window.pwned") is None and browser.value("document.querySelectorAll('article.cell')[0].querySelector('p.changes')") is None
    # A cell that changes nothing says nothing.
    server.execute("kept", session=session)
    browser.wait("document.querySelectorAll('article.cell.done').length == 3 && " + has("[3]"))
    # So does the list beside it.
    browser.wait("[...document.querySelectorAll('aside tbody tr td:first-child')].map((each) => each.innerText).slice(0, 3).join() == 'kept,old,fresh'")
    picture(browser, "changes", height=700)
    assert len(browser.value("[...document.querySelectorAll('p.changes')].map((each) => each.innerText)")) == 1


def test_versions_of_a_workflow(server, browser):
    for factor in (2, 5):
        assert server.ask("POST", "/api/workflows", {"name": "times", "description": "Times", "source": "def run(n: int) -> int:\n    return %d * n\n" % factor}).status in (200, 201)
    enter(browser, server)
    go(browser, "#/workflows", "document.querySelector('.list li')")
    press(browser, "times", "document.querySelector('.list ul')")
    browser.wait(has("Versions (2)"))
    browser.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    newest, first = browser.value("[...document.querySelectorAll('details.file')].map((each) => [...each.querySelectorAll('.diff div')].map((line) => line.innerText))")
    assert "-    return 2 * n" in newest and "+    return 5 * n" in newest and " def run(n: int) -> int:" in newest
    assert "+    return 2 * n" in first
    picture(browser, "workflows", height=600)
    assert "by all (http)" in browser.text("document.querySelector('details.file summary')")
    assert surprises(browser) == []
