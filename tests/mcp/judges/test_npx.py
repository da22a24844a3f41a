"""The first start of a server by `npx -y`, which downloads it: those who wait are told what it does. Between npm and its registry is a proxy that holds
the packages back until then."""
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request

import pytest

import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402

NPM = shutil.which("npm")
PACKAGE = "@modelcontextprotocol/server-memory"


class Registry:
    """The registry that npm uses here, with the packages themselves behind a gate."""

    def __init__(self):
        self.real = subprocess.run([NPM, "config", "get", "registry"], check=True, capture_output=True, text=True).stdout.strip().rstrip("/")
        self.gate, self.asked = threading.Event(), []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_GET(self):
                outer.asked.append(self.path)
                if self.path.endswith(".tgz"):
                    assert outer.gate.wait(support.DEADLINE)
                request = urllib.request.Request(outer.real + self.path, headers={"Accept": self.headers.get("Accept") or "*/*"})
                with urllib.request.urlopen(request, timeout=support.DEADLINE) as answer:
                    data = answer.read()
                    kind = answer.headers["Content-Type"] or "application/octet-stream"
                if "json" in kind:
                    data = data.replace(outer.real.encode(), outer.url.encode())
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def registry():
    made = Registry()
    yield made
    made.close()


def test_a_first_start_that_downloads(registry, drive, tmp_path):
    with open(os.path.join(support.ROOT, "tests", "mcp", "package.json"), encoding="utf-8") as file:
        version = json.load(file)["dependencies"][PACKAGE]
    env = {"PATH": os.environ["PATH"], "npm_config_cache": str(tmp_path / "cache"), "npm_config_registry": registry.url, "npm_config_loglevel": "http",
           "MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    base = peers.write_server(tmp_path / "base", "m", command="npx", args=["-y", "%s@%s" % (PACKAGE, version)], env=env, start_timeout=600)
    driver = drive("--base", base)

    def run(code):
        """The result, and what was told meanwhile."""
        told = []
        driver.send({"code": code})
        while "value" not in (got := driver.read()):
            if got.get("event") == "tool_progress":
                told.append(got["params"]["message"])
                registry.gate.set()
        return got, told
    first, told = run("tools.m.read_graph()")
    assert first["error"] is None and first["value"]["entities"] == [], first
    assert registry.gate.is_set() and re.fullmatch(r"starting for [0-9.]+ s(: .*)?", told[0]), told
    assert any(": npm http " in words for words in told), told
    assert any(path.endswith(".tgz") for path in registry.asked)
    # It runs, and is not started again.
    count = len(registry.asked)
    assert run("tools.m.create_entities(entities=[{'name': 'x', 'entityType': 't', 'observations': []}])")[0]["error"] is None
    assert [each["name"] for each in run("tools.m.read_graph()")[0]["value"]["entities"]] == ["x"] and len(registry.asked) == count
