"""GET /docs: the OpenAPI document in a browser, with nothing from elsewhere and nothing that markup could do."""
import json
import os
import re
import subprocess
import sys

import pytest

import serving
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402

# As much of a browser as the page uses; what it makes is printed as text, and markup would be an element.
BROWSER = """
const fs = require('fs'), input = JSON.parse(fs.readFileSync(0, 'utf8'));
function element(name) {
  return {name, children: [], text: '', className: '', listeners: {},
          set textContent(value) { this.text = value; this.children = []; },
          get textContent() { return this.text + this.children.map((each) => each.textContent).join('\\n'); },
          set innerHTML(value) { throw new Error('innerHTML'); },
          appendChild(child) { this.children.push(child); return child; },
          addEventListener(type, fn) { this.listeners[type] = fn; }};
}
const known = {main: element('main'), form: element('form'), token: Object.assign(element('input'), {value: input.token})};
globalThis.document = {createElement: element, getElementById: (id) => known[id]};
globalThis.fetch = async (path, options) => {
  if (path !== 'openapi.json') throw new Error(path);
  const good = options.headers.Authorization === 'Bearer ' + input.good;
  return {ok: good, status: good ? 200 : 401, json: async () => good ? input.document : {detail: 'Invalid token'}};
};
new Function(input.script)();
known.form.listeners.submit({preventDefault() {}});
setTimeout(() => console.log(known.main.textContent), 50);
"""


@pytest.fixture(scope="module")
def server():
    with serving.shared(serving.Server("--executor", "subprocess")) as shared:
        yield shared


def parts(answer):
    text = answer.body.decode()
    nonces = set(re.findall(r'nonce="([0-9a-f]+)"', text))
    assert len(nonces) == 1 and len(re.findall("<script", text)) == len(re.findall("<style", text)) == 1
    return text, nonces.pop(), re.search(r"<script[^>]*>(.*)</script>", text, re.S).group(1)


def test_the_page_is_its_own(server):
    answer = server.ask("GET", "/docs", token=None)
    text, nonce, _ = parts(answer)
    assert answer.status == 200 and answer.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = answer.headers.get_all("Content-Security-Policy")
    assert policy == ["default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; base-uri 'none'; "
                      "form-action 'none'; frame-ancestors 'none'" % (nonce, nonce)]
    assert parts(server.ask("GET", "/docs", token=None))[1] != nonce
    assert not re.search(r"https?://|//[a-z]|src=|href=|@import|innerHTML|eval\(| on[a-z]+=", text), "nothing from elsewhere"
    assert "/v1/sessions" not in text, "who has no token learns nothing about this server"
    # All other answers keep the policy that allows nothing.
    assert server.ask("GET", "/health").headers.get_all("Content-Security-Policy") == ["default-src 'none'; frame-ancestors 'none'; sandbox"]


def test_the_page_shows_every_route(server):
    _, _, script = parts(server.ask("GET", "/docs", token=None))
    document = server.ask("GET", "/openapi.json").json
    document["paths"]["/health"]["get"]["summary"] = "<img src=x onerror=alert(1)>"

    def shown(token):
        given = json.dumps({"script": script, "document": document, "good": serving.TOKEN, "token": token})
        done = subprocess.run([peers.node(), "-e", BROWSER], input=given.encode(), stdout=subprocess.PIPE, timeout=support.DEADLINE, check=True)
        return done.stdout.decode()
    text = shown(serving.TOKEN)
    for path, methods in document["paths"].items():
        assert path in text
        for route in methods.values():
            assert route["summary"] in text
    assert "<img src=x onerror=alert(1)>" in text, "as text"
    assert "401 Invalid token" in shown("wrong") and "/v1/sessions" not in shown("wrong")
