"""oidc-provider, an authorization server of the registry: its access tokens at our server, signed ones, and opaque ones by introspection; and our
client's logins there, with a wider one when a tool needs more."""
import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

import pytest

import listening
import serving
import support

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import oauth  # noqa: E402
import peers  # noqa: E402

PACKAGES = os.path.abspath(os.path.join(HERE, "..", "..", "..", "build", "conformance"))
RESOURCE = "https://cell.example.org/mcp"


LOGS = {}


def provider_says(issuer):
    return LOGS[issuer]()


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
            issuer = "http://127.0.0.1:%d" % port
            LOGS[issuer] = text
            yield issuer
        finally:
            process.kill()
            process.wait()


class Tracker(oauth.OAuth):
    """An MCP server that asks the provider about tokens: `read` needs one scope, `write` another."""

    NEEDS = {"write": "tracker:write"}

    def __init__(self, issuer):
        super().__init__()
        self.issuer, self.seen = issuer, []

    def do_resource(self, *_):
        return 200, {}, {"resource": self.url, "authorization_servers": [self.issuer], "scopes_supported": ["tracker:read", "tracker:write"]}

    def challenge(self, status, scope, **more):
        more = dict(more, resource_metadata=self.root + "/.well-known/oauth-protected-resource/mcp", scope=scope)
        return status, {"WWW-Authenticate": "Bearer " + ", ".join('%s="%s"' % item for item in more.items())}, b""

    def do_mcp(self, request, body, _query):
        sent = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        known = post(self.issuer + "/token/introspection", token=sent) if sent else {}
        self.seen.append(known)
        if not known.get("active") or known["aud"] != self.url:
            return self.challenge(401, "tracker:read")
        asked = json.loads(body)
        needs = self.NEEDS.get(asked["params"].get("name"), "tracker:read") if asked["method"] == "tools/call" else "tracker:read"
        if needs not in known["scope"].split():
            return self.challenge(403, needs, error="insufficient_scope", error_description="more is needed")
        if asked["method"] == "server/discover":
            result = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0}
        elif asked["method"] == "tools/list":
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write")], "ttlMs": 60000, "cacheScope": "private"}
        else:
            result = {"content": [{"type": "text", "text": known["sub"] + ": " + known["scope"]}]}
        return 200, {}, {"jsonrpc": "2.0", "id": asked["id"], "result": result}


# A person's: it keeps cookies and follows each redirect, the last one to the program that waits for it.
BROWSER = "#!/bin/sh\nexec %s -c 'import sys, urllib.request as u\nu.build_opener(u.HTTPCookieProcessor()).open(sys.argv[1]).read()' \"$1\" 2>>'%s'\n"


@pytest.mark.parametrize("form", ["opaque"])
def test_a_login_and_a_wider_one(tmp_path, form):
    with provider(form) as issuer, Tracker(issuer) as server:
        base = peers.write_server(tmp_path / "base", "s", url=server.url, auth="oauth")
        env = support.host_environment(XDG_STATE_HOME=str(tmp_path / "state"))
        browser, said = tmp_path / "browser", tmp_path / "said"
        browser.write_text(BROWSER % (sys.executable, said))
        browser.chmod(0o755)

        def run(*words):
            return subprocess.run([support.BIN, *words, "--base", base], env=env, capture_output=True, text=True, timeout=support.DEADLINE, check=False)

        def login(*flags):
            done = run("tools", "login", "s", "--browser", str(browser), *flags)
            assert done.returncode == 0, done.stderr + provider_says(issuer) + (said.read_text() if said.exists() else "")

        def kept():
            (path,) = (tmp_path / "state" / "workcell" / "oauth").glob("*")
            return path, json.loads(path.read_text())
        login()
        assert run("tools", "call", "s.read").stdout == "alice: tracker:read\n"
        # The tool that needs more says which scope, and nothing asks for it by itself.
        refused = run("tools", "call", "s.write")
        assert refused.returncode == 1 and "log in for the scope: tracker:write" in refused.stderr, refused.stderr
        login("--scope", "tracker:write")
        assert run("tools", "call", "s.write").stdout == "alice: tracker:read tracker:write\n"
        # A later login keeps what was granted, and a refreshed token too.
        login()
        path, tokens = kept()
        assert set(tokens["scope"].split()) >= {"tracker:read", "tracker:write"}, tokens["scope"]
        assert tokens["refresh_token"]
        path.write_text(json.dumps({**tokens, "expires": 1}))
        assert run("tools", "call", "s.write").stdout == "alice: tracker:read tracker:write\n"
        assert kept()[1]["access_token"] != tokens["access_token"]
        # The provider withdraws it.
        post(issuer + "/token/revocation", token=kept()[1]["refresh_token"])
        path.write_text(json.dumps({**kept()[1], "expires": 1}))
        assert "workcell tools login" in run("tools", "call", "s.read").stderr


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
