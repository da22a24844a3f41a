"""Access tokens of oidc-provider, an authorization server of the registry: signed ones, and opaque ones by introspection."""
import base64
import contextlib
import json
import os
import subprocess
import tempfile
import urllib.parse
import urllib.request

import pytest

import listening
import serving
import support

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = os.path.abspath(os.path.join(HERE, "..", "..", "..", "build", "conformance"))
RESOURCE = "https://cell.example.org/mcp"


@contextlib.contextmanager
def provider(form):
    port = serving.free_port()
    with tempfile.TemporaryFile() as log:
        def text():
            log.seek(0)
            return log.read().decode()
        process = subprocess.Popen([os.path.join(PACKAGES, "node_modules", "node", "bin", "node"), os.path.join(HERE, "provider.mjs"), str(port), RESOURCE, form],
                                   stdout=log, stderr=log, env={**os.environ, "PACKAGES": PACKAGES})
        try:
            support.wait_until(lambda: "listening for" in text() or process.poll() is not None, text)
            assert process.poll() is None, text()
            yield "http://127.0.0.1:%d" % port
        finally:
            process.kill()
            process.wait()


def post(url, **form):
    request = urllib.request.Request(url, urllib.parse.urlencode(form).encode())
    request.add_header("Authorization", "Basic " + base64.b64encode(b"agent:agent-secret").decode())
    with urllib.request.urlopen(request, timeout=support.DEADLINE) as answer:
        return json.loads(answer.read() or b"null")


def token(issuer, resource=RESOURCE, scope="workcell:run"):
    return post(issuer + "/token", grant_type="client_credentials", resource=resource, scope=scope)["access_token"]


@pytest.mark.parametrize("form", ["jwt", "opaque"])
def test_tokens_of_a_real_authorization_server(tmp_path, form):
    with provider(form) as issuer:
        settings = {"resource": RESOURCE, "issuer": issuer}
        if form == "opaque":
            settings.update(introspection=issuer + "/token/introspection", client_id="cell", client_secret="cell-secret", cache=0)
        path = tmp_path / "oauth.yaml"
        path.write_text(json.dumps(settings))
        # client_credentials have no subject of their own: oidc-provider names the client.
        if form == "opaque":
            path.write_text(json.dumps({**settings, "subject": "client_id"}))
        server = listening.Listening("--oauth", path, token=None)
        try:
            good = token(issuer)
            assert (good.count(".") == 2) == (form == "jwt")
            session = server.session(token=good)
            assert server.value(session, "6 * 7", token=good) == 42
            assert server.status("POST", listening.INITIALIZE, token=token(issuer, resource="https://other.example/mcp")) == 401
            assert server.status("POST", listening.INITIALIZE, token=token(issuer, scope="workcell:read")) == 403
            assert server.status("POST", listening.INITIALIZE, token=good[:-1] + ("A" if good[-1] != "A" else "B")) == 401
            if form == "opaque":
                post(issuer + "/token/revocation", token=good)
                assert server.status("POST", listening.PING, session=session, token=good) == 401
        finally:
            server.close()
