"""`auth: oauth`: logins at remote MCP servers, tokens that are kept and renewed, and servers that play tricks."""
import json
import os
import re
import stat
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import oauth  # noqa: E402
import peers  # noqa: E402


class Place:
    def __init__(self, tmp_path, server, **keys):
        self.base = peers.write_server(tmp_path / "base", "s", url=server.url, auth="oauth", **keys)
        self.state = tmp_path / "state"
        self.env = support.host_environment(XDG_STATE_HOME=str(self.state))
        self.browser = tmp_path / "browser"
        self.browser.write_text("#!/bin/sh\nexec %s -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1]).read()' \"$1\" 2>/dev/null\n"
                                % sys.executable)
        self.browser.chmod(0o755)

    def run(self, *args, **options):
        return subprocess.run([support.BIN, *map(str, args), "--base", str(self.base)], env=self.env, capture_output=True, text=True,
                              timeout=60, **options)

    def login(self, *flags):
        return self.run("tools", "login", "s", "--browser", self.browser, *flags)

    def call(self):
        return self.run("tools", "call", "s.hello")

    def files(self):
        return list((self.state / "workcell" / "oauth").glob("*"))


@pytest.fixture
def place(tmp_path):
    def make(server, **keys):
        return Place(tmp_path, server, **keys)
    return make


def test_login_call_refresh_logout(place):
    with oauth.OAuth() as server:
        here = place(server)
        refused = here.call()
        assert refused.returncode == 1 and "workcell tools login" in refused.stderr
        done = here.login()
        assert done.returncode == 0, done.stderr
        [kept] = here.files()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
        first = here.call()
        assert first.stdout.startswith("hello with access-"), first.stderr
        # The server does not know the token any more: it is refreshed, and the call is made.
        server.access.clear()
        second = here.call()
        assert second.stdout.startswith("hello with access-") and second.stdout != first.stdout, second.stderr
        # Nor the refresh token.
        server.access.clear()
        server.refresh.clear()
        assert "workcell tools login" in here.call().stderr
        assert here.run("tools", "logout", "s").returncode == 0
        assert here.files() == []
        assert "not_found" in here.run("tools", "logout", "s").stderr
        # Tokens went nowhere but to the server and its token endpoint.
        for request in server.requests:
            assert "authorization" not in request["headers"] or request["path"] == "/mcp"


def test_tokens_that_expire_are_renewed_before(place):
    with oauth.OAuth(lifetime=10) as server:
        here = place(server)
        assert here.login().returncode == 0
        assert here.call().stdout == "hello with access-3\n"
        assert here.call().stdout == "hello with access-4\n"
        assert [r["path"] for r in server.requests].count("/register") == 1


@pytest.mark.parametrize("behaviour", [(), ("offline",)])
def test_a_wider_login(place, behaviour):
    """A server that lets a client ask for what it registered for alone, and one that gives refresh tokens as OpenID Connect does."""
    with oauth.OAuth(*behaviour) as server:
        here = place(server)
        assert here.login().returncode == 0
        done = here.login("--scope", "write")
        assert done.returncode == 0, done.stderr
        [kept] = here.files()
        offline = ["offline_access"] if behaviour else []
        assert sorted(json.loads(kept.read_text())["scope"].split()) == sorted(["read", "write", *offline])
        server.access.clear()
        assert here.call().stdout.startswith("hello with access-"), "it was refreshed"


def test_tokens_belong_to_a_url(place, tmp_path):
    with oauth.OAuth() as server, oauth.OAuth() as thief:
        here = place(server)
        assert here.login().returncode == 0
        peers.write_server(tmp_path / "base", "s", url=thief.url, auth="oauth")
        assert "workcell tools login" in here.call().stderr
        assert not [r for r in thief.requests if "authorization" in r["headers"]]


@pytest.mark.parametrize("wrong, code, words", [
    ("resource", "forbidden", "another resource"), ("issuer", "forbidden", "another issuer"), ("no-s256", "forbidden", "PKCE"),
    ("mix-up", "forbidden", "another authorization server"), ("no-iss", "forbidden", "another authorization server"),
    ("denied", "forbidden", "access_denied"), ("redirect", "not_found", "HTTP 302"), ("huge", "limit", "more than"),
    ("metadata-elsewhere", "forbidden", "http"), ("private", "forbidden", "https"), ("escapes", "protocol", "invalid URL"),
    ("script", "protocol", "invalid URL"), ("bad-token", "protocol", "no header"), ("no-registration", "forbidden", "client_id")])
def test_servers_that_play_tricks(place, wrong, code, words):
    with oauth.OAuth(wrong) as server:
        here = place(server)
        done = here.login()
        assert done.returncode != 0 and ("workcell: %s:" % code) in done.stderr and words in done.stderr, done.stderr
        assert "\x1b" not in done.stderr
        assert here.files() == []


def test_the_redirect_believes_nobody_without_the_state(place):
    """Other pages and programs on this computer call the loopback redirect: none of them ends the login."""
    with oauth.OAuth() as server:
        here = place(server)
        process = subprocess.Popen([support.BIN, "tools", "login", "s", "--base", str(here.base)], env=here.env, stderr=subprocess.PIPE,
                                   text=True)
        link = next(line for line in process.stderr if line.startswith("http"))
        redirect = re.search(r"redirect_uri=([^&]*)", link).group(1).replace("%3A", ":").replace("%2F", "/")
        port = redirect.split(":")[2].split("/")[0]
        state = re.search(r"[?&]state=([^&]*)", link).group(1)
        for target, host in ((redirect + "?code=x&state=guess", None), (redirect + "?code=x", None), (redirect, None),
                             ("http://127.0.0.1:%s/other" % port, None), (redirect + "?code=x&state=" + state, "evil.example:" + port),
                             (redirect + "?code=x&state=%s&state=%s" % (state, state), None)):
            request = urllib.request.Request(target, headers={"Host": host} if host else {})
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(request)
            assert error.value.code == 404, target
        assert process.poll() is None
        urllib.request.urlopen(link.strip()).read()
        assert process.wait(30) == 0
        process.stderr.close()


def test_a_folder_that_others_can_write(place):
    with oauth.OAuth() as server:
        here = place(server)
        folder = here.state / "workcell" / "oauth"
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        assert "can be written by others" in here.login().stderr


@pytest.mark.parametrize("keys, words", [
    ({"auth": "basic"}, "unknown auth"), ({"headers": {"Authorization": "x"}}, "Authorization of your own"),
    ({"client_secret": "x"}, "requires client_id"), ({"auth": None, "client_id": "x"}, "require auth: oauth")])
def test_definitions(tmp_path, keys, words):
    definition = dict({"name": "s", "type": "mcp", "url": "https://x.example/mcp", "auth": "oauth"}, **keys)
    definition = {key: value for key, value in definition.items() if value is not None}
    (tmp_path / "s.yaml").write_text(json.dumps(definition))
    done = support.workcell("tools", "check", tmp_path)
    assert done.status == 1 and words in done.out + done.err
