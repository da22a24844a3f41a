"""GET /docs in a real browser."""
import base64
import json

import pytest

import serving
from chromium import PROGRAM

pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs chromium-headless-shell from Debian")


@pytest.fixture(scope="module")
def server():
    with serving.shared(serving.Server("--executor", "subprocess")) as shared:
        yield shared


def test_every_route_is_shown(server, browser):
    document = server.ask("GET", "/openapi.json").json
    browser.open("http://127.0.0.1:%d/docs" % server.port, "/docs")
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
    browser.open("http://127.0.0.1:%d/docs" % server.port, "/docs")
    browser.enter("wrong")
    browser.wait("document.getElementById('main').innerText.includes('401')")
    assert "/v1/sessions" not in browser.text()


def test_markup_is_text(server, browser):
    document = server.ask("GET", "/openapi.json").json
    bad = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    document["paths"]["/health"]["get"]["summary"] = bad
    browser.changed = json.dumps(document).encode()
    browser.tell("Fetch.enable", patterns=[{"urlPattern": "*openapi.json"}])
    browser.open("http://127.0.0.1:%d/docs" % server.port, "/docs")
    browser.enter(serving.TOKEN)
    browser.wait("document.getElementById('main').innerText.includes('/v1/sessions')")
    browser.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert bad in browser.text() and browser.value("document.images.length") == 0 and browser.value("document.scripts.length") == 1
    assert browser.complaints == []
