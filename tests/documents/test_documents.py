"""Tools from OpenAPI documents of real services, as packages of their makers carry them, against a server of this test."""
import glob
import http.server
import json
import os
import subprocess
import tarfile
import threading

import pytest

import support
from support import PYTHON, workcell

CACHE = os.path.join(os.path.dirname(support.BIN), "documents")
PACKAGES = {"github": ("@octokit/openapi@23.0.2", "generated/api.github.com.json"),
            "figma": ("@figma/rest-api-spec@0.43.0", "openapi/openapi.yaml"),
            "examples": ("@readme/oas-examples@8.2.2", "3.1/json/petstore.json")}


@pytest.fixture(scope="session", params=sorted(PACKAGES))
def document(request):
    """The path of a document, in a package that npm fetches once."""
    package, inside = PACKAGES[request.param]
    folder = os.path.join(CACHE, package.replace("/", "+"))
    if not os.path.exists(os.path.join(folder, "package", inside)):
        os.makedirs(folder, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        archive, = glob.glob(os.path.join(folder, "*.tgz"))
        with tarfile.open(archive) as tar:
            tar.extractall(folder, members=[each for each in tar if each.name.startswith("package/" + inside.split("/")[0])])
        os.unlink(archive)
    return request.param, os.path.join(folder, "package", inside)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = json.dumps({"path": self.path, "token": self.headers.get("Authorization") or self.headers.get("X-Figma-Token")}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield "http://127.0.0.1:%d" % server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


CALLS = {
    "github": ("issues_list_for_repo(owner='me', repo='it', state='open', per_page=3)", "/repos/me/it/issues?state=open&per_page=3", 100, None),
    "figma": ("getFileNodes(file_key='k', ids='1:2')", "/v1/files/k/nodes?ids=1%3A2", 40, {"PersonalAccessToken": "${TOKEN}"}),
    "examples": ("findPetsByStatus(status=['sold', 'pending'])", "/pet/findByStatus?status=sold&status=pending", 15, None),
}


def test_a_real_document(document, server, tmp_path):
    name, path = document
    call, expected, least, auth = CALLS[name]
    definition = {"name": "api", "type": "openapi", "document": path, "server": server}
    if name == "github":
        definition["include"] = {"tags": ["issues", "repos"]}
    if auth:
        definition["auth"] = auth
    (tmp_path / "api.yaml").write_text(json.dumps(definition))
    code = "answer = tools.api.%s\n[answer['path'], answer['token'], len(tools.api.list())]" % call
    done = workcell("run", "--json", "--python", PYTHON, "--tools", tmp_path, "-e", code, env=support.host_environment(TOKEN="s3cret"))
    result = json.loads(done.out)
    assert result["error"] is None, result
    assert result["value"][0] == expected and result["value"][1] == ("s3cret" if auth else None) and result["value"][2] >= least


def test_github_needs_a_choice(document, tmp_path):
    """All of its operations are more than a tool may have; the message says what to do."""
    name, path = document
    (tmp_path / "api.yaml").write_text(json.dumps({"name": "api", "type": "openapi", "document": path}))
    done = workcell("tools", "list", "--tools", tmp_path)
    assert ("more than 512 operations: choose some by include" in done.out + done.err) == (name == "github")
