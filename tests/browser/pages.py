"""What the tests of the console share: a server with tools and a policy, logging in, looking and pressing as a person does."""
import json
import os

import serving
import support

POLICY = """rules:
  - {name: mail needs a person, tool: "echo*", kind: tool, decision: ask, reason: it leaves the machine}
  - {name: files need a person, tool: "write*", kind: tool, decision: ask}
default: allow
"""
TOOL = """name: echo
description: Says it again
command: echo
schema:
  positional:
    - {name: text, type: string, required: true, description: what to say}
recipes:
  say:
    description: Says a text
    params:
      text: {}
"""
# Asked of nobody: the form calls it at once.
PRINTER = """name: printer
description: Prints numbers and words
command: printf
schema:
  positional:
    - {name: format, type: string, required: true, description: as printf has it}
    - {name: number, type: integer, required: true}
recipes:
  once:
    description: One number
    params:
      format: {}
      number: {}
"""
WRITER = """name: write
description: Writes a file of the workspace
command: %s
schema:
  positional:
    - {name: path, type: string, required: true}
    - {name: content, type: string, required: true}
recipes:
  file:
    description: Writes a text to a file
    params:
      path: {}
      content: {}
"""
# With WORKCELL_SCREENSHOTS=docs/console the pictures of the documentation are made again.
PICTURES = os.environ.get("WORKCELL_SCREENSHOTS")


def base(folder, *more_tools, policy=POLICY):
    """The flags of a server with a console and these tools."""
    os.makedirs(os.path.join(folder, "tools"))
    script = os.path.join(folder, "write.sh")
    with open(script, "w", encoding="utf-8") as file:
        file.write('#!/bin/sh\nprintf %s "$2" >"$1"\n')
    os.chmod(script, 0o755)
    for i, text in enumerate((TOOL, PRINTER, WRITER % script) + more_tools):
        with open(os.path.join(folder, "tools", "tool%d.yaml" % i), "w", encoding="utf-8") as file:
            file.write(text)
    path = os.path.join(folder, "policy.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(policy)
    return ["--base", folder, "--policy", path, "--audit", os.path.join(folder, "audit.jsonl"), "--executor", "subprocess", "--console"]


def enter(browser, server, token=serving.TOKEN, page=""):
    browser.open("http://127.0.0.1:%d/console/%s" % (server.port, page), "/console/")
    browser.wait("document.querySelector('input[type=password]') || document.querySelector('nav')")
    if not browser.value("!!document.querySelector('nav')"):
        browser.value("document.querySelector('input[type=password]').focus()")
        browser.type(token)
        browser.key("Enter", number=13)
    browser.wait("document.querySelector('nav')")


def go(browser, page, ready):
    browser.value("location.hash = %s" % json.dumps(page))
    browser.wait(ready)


def has(text):
    return "document.body.innerText.includes(%s)" % json.dumps(text)


def press(browser, words, within="document"):
    """A button that says these words."""
    button = "[...%s.querySelectorAll('button')].find((each) => each.innerText.trim().startsWith(%s))" % (within, json.dumps(words))
    browser.wait(button)
    browser.value(button + ".click()")


def fill(browser, element, text):
    """Types into an input, as a person does."""
    browser.wait(element)
    browser.value("(() => { const at = %s; at.focus(); at.select?.(); })()" % element)
    browser.type(text)


def surprises(browser):
    """What the browser complains of, but for answers that say no: to a page that nobody has logged in to, or of a session without variables."""
    return [each for each in browser.complaints if not ("Failed to load resource" in str(each) and any(path in str(each) for path in ("/v1/whoami", "/variables", "/console/login")))]


def started(server, session, code):
    """A cell that goes on by itself."""
    assert server.ask("POST", "/v1/sessions/%s/runs" % session, {"code": code}).status == 202


def picture(browser, name, **size):
    if PICTURES:
        browser.picture(os.path.join(PICTURES, name + ".png"), **size)


def asked(server, text, session=None, call="tools.echo.say(text=%r)"):
    """A call that waits."""
    session = session or server.session()
    started(server, session, "answer = " + call % text)
    support.wait_until(lambda: any(text in each["args"].values() for each in server.ask("GET", "/v1/approvals?all=true").json["approvals"]), lambda: "it does not ask")
    return session


def value(server, session):
    support.wait_until(lambda: server.ask("GET", "/v1/sessions/" + session).json["state"] == "idle", lambda: "it still runs")
    return server.execute("globals().pop('answer', None)", session=session)["value"]
