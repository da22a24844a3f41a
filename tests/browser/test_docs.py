"""GET /docs in a real browser: Chromium without a screen, spoken to over a pipe (its DevTools protocol)."""
import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

import serving
import support

PROGRAM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)
pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs chromium-headless-shell from Debian")


class Browser:
    """One page. What went wrong in it is in `complaints`."""

    def __init__(self, folder):
        to, ours = os.pipe()
        self.answers, back = os.pipe()

        def place():
            # Descriptors 3 and 4 are what it reads and writes; the pipes' own numbers may be among them.
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in (to, back)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen([PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                                         "--user-data-dir=%s" % folder, "--remote-debugging-pipe", "about:blank"], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=place, close_fds=False, start_new_session=True)
        os.close(to)
        os.close(back)
        self.commands, self.rest, self.number, self.session = ours, b"", 0, None
        self.complaints, self.changed = [], None
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Log", "Runtime"):
            self.tell(domain + ".enable")

    def write(self, method, params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        return self.number

    def read(self):
        while b"\0" not in self.rest:
            got = os.read(self.answers, 1 << 20)
            assert got, "the browser has ended"
            self.rest += got
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def handle(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown" or method == "Page.javascriptDialogOpening":
            self.complaints.append(params)
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])
        elif method == "Fetch.requestPaused":
            self.write("Fetch.fulfillRequest", {"requestId": params["requestId"], "responseCode": 200, "body": base64.b64encode(self.changed).decode(),
                                                "responseHeaders": [{"name": "Content-Type", "value": "application/json"}]})

    def tell(self, method, **params):
        number = self.write(method, params)
        while True:
            message = self.read()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self.handle(message)

    def value(self, expression):
        found = self.tell("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression):
        end = time.monotonic() + support.DEADLINE
        while not self.value(expression):
            assert time.monotonic() < end, "%s is not true of:\n%s" % (expression, self.value("document.documentElement.innerText"))
            time.sleep(0.05)

    def open(self, address):
        self.tell("Page.navigate", url=address)
        self.wait("location.pathname == '/docs' && document.readyState == 'complete'")

    def enter(self, token):
        """As a person does it: into the field, and the Enter key."""
        self.value("document.getElementById('token').value = ''; document.getElementById('token').focus()")
        self.tell("Input.insertText", text=token)
        for kind in ("keyDown", "keyUp"):
            self.tell("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r" if kind == "keyDown" else "")

    def click(self, element):
        place = self.value("(() => { const at = %s; at.scrollIntoView(); return at.getBoundingClientRect().toJSON(); })()" % element)
        for kind in ("mousePressed", "mouseReleased"):
            self.tell("Input.dispatchMouseEvent", type=kind, x=place["x"] + 5, y=place["y"] + place["height"] / 2, button="left", clickCount=1)

    def text(self):
        return self.value("document.getElementById('main').innerText")

    def close(self):
        os.close(self.commands)
        os.close(self.answers)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def server():
    with serving.shared(serving.Server("--executor", "subprocess")) as shared:
        yield shared


@pytest.fixture
def browser(tmp_path):
    made = Browser(tmp_path / "profile")
    try:
        yield made
    finally:
        made.close()


def test_every_route_is_shown(server, browser):
    document = server.ask("GET", "/openapi.json").json
    browser.open("http://127.0.0.1:%d/docs" % server.port)
    assert not browser.complaints
    browser.enter(serving.TOKEN)
    browser.wait("document.getElementById('main').innerText.includes('/v1/sessions')")
    text = browser.text()
    assert [path for path in document["paths"] if path not in text] == []
    # A route opens with a click.
    summary = document["paths"]["/health"]["get"]["summary"]
    assert summary not in text
    browser.click("[...document.querySelectorAll('summary')].find((each) => each.innerText.includes('/health'))")
    assert summary in browser.text()
    browser.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    text = browser.text()
    assert [route["summary"] for methods in document["paths"].values() for route in methods.values() if route["summary"] not in text] == []
    # The style is in force: the page's policy allows the script and the style of this answer alone.
    assert browser.value("document.styleSheets.length") == 1 and browser.value("document.scripts.length") == 1
    assert browser.value("performance.getEntriesByType('resource').map((each) => new URL(each.name).host).every((host) => host == location.host)")
    assert browser.complaints == []
    picture = base64.b64decode(browser.tell("Page.captureScreenshot")["data"])
    assert picture[:4] == b"\x89PNG" and len(picture) > 5000


def test_a_wrong_token(server, browser):
    browser.open("http://127.0.0.1:%d/docs" % server.port)
    browser.enter("wrong")
    browser.wait("document.getElementById('main').innerText.includes('401')")
    assert "/v1/sessions" not in browser.text()


def test_markup_is_text(server, browser):
    document = server.ask("GET", "/openapi.json").json
    bad = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    document["paths"]["/health"]["get"]["summary"] = bad
    browser.changed = json.dumps(document).encode()
    browser.tell("Fetch.enable", patterns=[{"urlPattern": "*openapi.json"}])
    browser.open("http://127.0.0.1:%d/docs" % server.port)
    browser.enter(serving.TOKEN)
    browser.wait("document.getElementById('main').innerText.includes('/v1/sessions')")
    browser.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert bad in browser.text() and browser.value("document.images.length") == 0 and browser.value("document.scripts.length") == 1
    assert browser.complaints == []
