"""The TypeScript client in a page of another origin than the server's, which --allow-origin names."""
import functools
import http.server
import os
import subprocess
import threading

import pytest

import serving
import support
from chromium import Browser, PROGRAM

pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs chromium-headless-shell from Debian")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

SCRIPT = """
(async () => {
	const { Client, CodeError, WorkcellError } = await import("/index.js");
	const client = new Client({ url: %(url)r, token: %(token)r });
	const session = await client.open();
	const seen = {};
	await session.run("x = 20");
	seen.value = (await session.run("x * 2.1")).value;
	seen.failure = await session.run("1 / 0").catch((error) => [error instanceof CodeError, error.type]);
	seen.events = [];
	for await (const event of session.stream("print('one')\\nprint('two')\\n7"))
		seen.events.push(event.type === "chunk" ? event.text : event.type);
	seen.approved = (await session.run("!echo ran", { onEvent: (event) => event.type === "approval" && session.answer(event.id, { accept: true }) })).stdout;
	seen.refused = await session.run("!echo ran", { onEvent: (event) => event.type === "approval" && session.answer(event.id, { accept: false }) })
		.catch((error) => error.type);
	await session.files.write("a folder/ä.bin", new Uint8Array([0, 255, 10]));
	seen.file = [...await session.files.read("a folder/ä.bin")];
	seen.names = (await session.files.list("a folder")).map((each) => each.name);
	seen.listed = (await client.sessions()).some((each) => each.session_id === session.id);
	await session.close();
	seen.closed = await session.run("1").catch((error) => error instanceof WorkcellError);
	const stranger = new Client({ url: %(url)r, token: "guessed" });
	seen.stranger = await stranger.sessions().catch((error) => error.status);
	return seen;
})()
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The compiled client and an empty page, at an origin of their own."""
    folder = tmp_path_factory.mktemp("page")
    node = os.path.join(ROOT, "build", "node", "bin")
    compiler = os.path.join(ROOT, "build", "typescript", "node_modules", "typescript", "bin", "tsc")
    subprocess.run(["node", compiler, "-p", "tsconfig.json", "--outDir", str(folder)], cwd=os.path.join(ROOT, "typescript"), check=True,
                   timeout=2 * support.DEADLINE, env={**support.host_environment(), "PATH": node + ":" + os.environ["PATH"]})
    (folder / "index.html").write_text("<!DOCTYPE html><title>page</title>")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield "http://127.0.0.1:%d" % server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def browser(tmp_path, page):
    made = Browser(tmp_path / "profile")
    try:
        made.open(page + "/index.html", "/index.html")
        yield made
    finally:
        made.close()


def test_sessions_streams_approvals_and_files(browser, page, tmp_path):
    (tmp_path / "work").mkdir()
    server = serving.Server("--executor", "sandbox", "--workspace-mode", "rw", "--approve", "ask", "--allow-origin", page, cwd=tmp_path / "work")
    try:
        seen = browser.value(SCRIPT % {"url": "http://127.0.0.1:%d" % server.port, "token": serving.TOKEN})
    finally:
        server.close()
    events = seen.pop("events")
    assert "".join(events[:-1]) == "one\ntwo\n" and events[-1] == "result"
    assert seen == {"value": 42, "failure": [True, "ZeroDivisionError"], "approved": "ran\n", "refused": "ApprovalRejectedError", "file": [0, 255, 10],
                    "names": ["ä.bin"], "listed": True, "closed": True, "stranger": 401}


def test_an_origin_that_is_not_named_gets_nothing(browser, page):
    server = serving.Server("--executor", "subprocess", "--allow-origin", "http://127.0.0.1:1")
    try:
        failed = browser.value("import('/index.js').then(({ Client }) => new Client({ url: 'http://127.0.0.1:%d', token: %r }).sessions())"
                               ".then(() => 'answered', (error) => String(error.message))" % (server.port, serving.TOKEN))
    finally:
        server.close()
    assert failed != "answered"
