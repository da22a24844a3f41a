"""Chromium without a screen, spoken to over a pipe (its DevTools protocol)."""
import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time

import support

WHOLE = shutil.which("chromium")
PROGRAM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)


class Browser:
    """One page. What went wrong in it is in `complaints`."""

    def __init__(self, folder, program=PROGRAM):
        to, ours = os.pipe()
        self.answers, back = os.pipe()

        def place():
            # Descriptors 3 and 4 are what it reads and writes; the pipes' own numbers may be among them.
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in (to, back)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen([program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
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
            self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
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
        while not self.value("!!(%s)" % expression):
            assert time.monotonic() < end, "%s is not true of:\n%s" % (expression, self.value("document.documentElement.innerText"))
            time.sleep(0.05)

    def open(self, address, path):
        self.tell("Page.navigate", url=address)
        self.wait("location.pathname == %r && document.readyState == 'complete'" % path)

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

    def text(self, element="document.getElementById('main')"):
        return self.value("%s.innerText" % element)

    def key(self, key, code=None, number=0, modifiers=0):
        """A key as a person presses it; letters are typed."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.tell("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, windowsVirtualKeyCode=number, modifiers=modifiers, **(text if kind == "keyDown" else {}))

    def type(self, text):
        self.tell("Input.insertText", text=text)

    def picture(self, path, width=1200, height=800):
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.value("new Promise((done) => setTimeout(done, 150))")
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.tell("Page.captureScreenshot")["data"]))

    def close(self):
        # One that is killed leaves a folder in /tmp.
        self.session = None
        self.write("Browser.close", {})
        os.close(self.commands)
        os.close(self.answers)  # nobody reads what it still says
        try:
            self.process.wait(support.DEADLINE)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all of it has ended
        self.process.wait()
