"""Logins at remote MCP servers by the browser of a server's user: the page, the redirect, whose login it is, and attacks on both."""
import http.client
import os
import re
import stat
import subprocess
import sys
import urllib.parse

import pytest

import listening
import serving
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import oauth  # noqa: E402
import peers  # noqa: E402

TOKENS = """tokens:
  - {name: alice, token: t0ken-of-alice-is-long, scopes: [run, read, approve]}
  - {name: bob, token: t0ken-of-bob-is-long-too, scopes: [run, read, approve]}
  - {name: runner, token: t0ken-of-a-runner-is-so, scopes: [run, read]}
  - {name: team, token: t0ken-of-the-team-is-so, scopes: [run, read, approve], workspace: team-a}
"""
ALICE, BOB, RUNNER, TEAM = re.findall(r"token: (\S+),", TOKENS)


class Browser:
    """One person's: it keeps cookies, and shows each redirect instead of following it."""

    def __init__(self, port):
        self.port, self.cookies = port, {}

    def ask(self, method, path, form=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=support.DEADLINE)
        if self.cookies:
            headers["Cookie"] = "; ".join("%s=%s" % item for item in self.cookies.items())
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if form is not None:
            headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
        connection.request(method, path, urllib.parse.urlencode(form) if form is not None else None, headers)
        response = connection.getresponse()
        for cookie in response.headers.get_all("Set-Cookie") or []:
            assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
            name, value = cookie.split(";")[0].split("=", 1)
            self.cookies[name] = value
        body = response.read().decode()
        connection.close()
        return response.status, response.headers, body

    def begin(self, token=ALICE, server="s", **form):
        status, headers, body = self.ask("POST", "/oauth/login", {"server": server, "token": token, **form})
        assert status == 303, (status, body)
        return headers["Location"]

    def authorize(self, link):
        """At the authorization server; the path that it sends this browser back to."""
        parts = urllib.parse.urlsplit(link)
        connection = http.client.HTTPConnection(parts.netloc, timeout=support.DEADLINE)
        connection.request("GET", parts.path + "?" + parts.query)
        response = connection.getresponse()
        target = urllib.parse.urlsplit(response.headers["Location"])
        response.read()
        connection.close()
        assert target.netloc == "127.0.0.1:%d" % self.port
        return target.path + "?" + target.query

    def login(self, **more):
        status, _, body = self.ask("GET", self.authorize(self.begin(**more)))
        assert status == 200 and "Logged in" in body, (status, body)


@pytest.fixture
def place(request, tmp_path):
    """A session server whose tool `s` wants a login."""
    def make(*flags, wrong=(), tokens=TOKENS):
        remote = oauth.OAuth(*wrong)
        remote.__enter__()
        request.addfinalizer(lambda: remote.__exit__(None, None, None))
        base = peers.write_server(tmp_path / "base", "s", url=remote.url, auth="oauth")
        server = serving.Server("--base", base, "--tools", os.path.join(base, "tools"), "--executor", "subprocess", *flags, tokens=tokens,
                                env={"XDG_STATE_HOME": str(tmp_path / "state")})
        request.addfinalizer(server.close)
        server.remote, server.state = remote, tmp_path / "state" / "workcell" / "oauth"
        return server
    return make


def run(server, token, code="tools.s.hello()"):
    return server.ask("POST", "/execute", {"code": code}, token=token).json


def logins(server, token=ALICE):
    return server.ask("GET", "/v1/logins", token=token).json["logins"]


def files(server):
    return [path for path in server.state.rglob("*") if path.is_file()]


def test_a_login_by_a_browser(place):
    server = place()
    page = "http://127.0.0.1:%d/oauth/login?server=s" % server.port
    # The call says where a person can log in, and so does the list.
    assert "a person has to log in at " + page in str(run(server, ALICE))
    assert logins(server) == [{"server": "s", "needed": True, "link": page}]
    browser = Browser(server.port)
    status, headers, body = browser.ask("GET", page.split(str(server.port))[1])
    assert status == 200 and 'name="token"' in body and "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    browser.login()
    assert "hello with access-" in str(run(server, ALICE)) and not logins(server)[0]["needed"]
    [kept] = files(server)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    # Neither the code nor the state nor a token is in the log.
    text = server.text()
    assert '"GET" "/oauth/callback" 200' in text and "alice has logged in at the MCP server s" in text
    for secret in ("code-", "state=", "access-", ALICE):
        assert secret not in text, text


def test_a_redirect_counts_once_and_for_its_browser_only(place):
    server = place()
    alice, bob = Browser(server.port), Browser(server.port)
    link = alice.begin()
    back = alice.authorize(link)
    # A stolen redirect in another browser, also one with a login of its own under way; and what was changed.
    other = bob.authorize(bob.begin(token=BOB))
    assert bob.ask("GET", back)[0] == 403
    assert Browser(server.port).ask("GET", back)[0] == 403
    state = re.search(r"state=([^&]*)", back).group(1)
    for target in (back.replace(state, state[:-1] + ("A" if state[-1] != "A" else "B")), back + "&state=" + state, "/oauth/callback",
                   "/oauth/callback?code=x", "/oauth/callback?state=&code=x"):
        assert alice.ask("GET", target)[0] == 403, target
    assert files(server) == []
    # It was none of these that ended the login; it counts once.
    assert alice.ask("GET", back)[0] == 200
    assert alice.ask("GET", back)[0] == 403
    assert [r["path"] for r in server.remote.requests].count("/token") == 1
    # The code of one login with the state of another: PKCE is the other's.
    carol = Browser(server.port)
    mixed = carol.authorize(carol.begin())
    code = re.search(r"code=[^&]*", mixed).group(0)
    status, _, body = bob.ask("GET", re.sub(r"code=[^&]*", code, other))
    assert status in (403, 502) and "invalid_grant" in body


@pytest.mark.parametrize("wrong, words", [("mix-up", "another authorization server"), ("no-iss", "another authorization server"), ("denied", "access_denied")])
def test_an_answer_of_the_wrong_issuer(place, wrong, words):
    server = place(wrong=[wrong])
    browser = Browser(server.port)
    back = browser.authorize(browser.begin())
    status, _, body = browser.ask("GET", back)
    assert status == 403 and words in body
    assert browser.ask("GET", back)[0] == 403 and files(server) == []


def test_who_may_begin(place):
    server = place()
    browser = Browser(server.port)
    good = {"server": "s", "token": ALICE}
    for form, headers, status in (
            ({"server": "s"}, {}, 401), ({"server": "s", "token": "x" * 30}, {}, 401), ({"server": "s", "token": RUNNER}, {}, 403),
            ({"server": "s", "token": ALICE, "workspace": "team-a"}, {}, 403), ({"server": "s", "token": ALICE, "workspace": "../x"}, {}, 400),
            ({"server": "none", "token": ALICE}, {}, 404), ({"token": ALICE}, {}, 400), ({"server": "s" * 100, "token": ALICE}, {}, 400),
            (good, {"Origin": "https://evil.example"}, 403), (good, {"Origin": "null"}, 403), (good, {"Content_Type": "text/plain"}, 400)):
        assert browser.ask("POST", "/oauth/login", form, **headers)[0] == status, (form, headers)
    assert not browser.cookies and not [r for r in server.remote.requests if r["path"] == "/register"]
    # Markup in a name stays text, and a page of another site cannot frame it.
    _, _, body = browser.ask("GET", "/oauth/login?server=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&scope=%3Cb%3E")
    assert "<script" not in body and "<b>" not in body.replace("<b>&quot;", "")


def test_the_redirect_goes_to_the_server_s_own_address(place):
    """Whatever a request says about its host."""
    server = place("--public-url", "https://cell.example.org/w/")
    browser = Browser(server.port)
    server.remote.do_register = lambda _request, body, _query: (201, {}, {"client_id": "client-1"})
    link = browser.begin(scope="more")
    asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(link).query))
    assert asked["redirect_uri"] == "https://cell.example.org/w/oauth/callback" and asked["scope"] == "read more"
    _, headers, _ = browser.ask("POST", "/oauth/login", {"server": "s", "token": ALICE}, Host="evil.example")
    assert "evil" not in headers["Location"] and "Secure" in headers["Set-Cookie"]
    for bad in ("http://cell.example.org", "javascript:x", "https://a/?x"):
        assert "public_url" in support.workcell("serve", "--public-url", bad, "--auth-disabled", "--listen", "127.0.0.1:0").err


def test_a_token_that_was_withdrawn_ends_its_login(place):
    server = place()
    browser = Browser(server.port)
    back = browser.authorize(browser.begin())
    with open(server.tokens, "w", encoding="utf-8") as file:
        file.write(TOKENS.replace("alice", "alina"))
    support.wait_until(lambda: server.ask("GET", "/v1/whoami", token="t0ken-of-alina-is-long").status == 200, "the tokens are read again")
    assert browser.ask("GET", back)[0] == 403 and files(server) == []


def test_too_many_logins_push_out_their_own(place):
    server = place()
    alice, bob = Browser(server.port), Browser(server.port)
    back = bob.authorize(bob.begin(token=BOB))
    first = alice.authorize(alice.begin())
    for _ in range(8):
        alice.begin()
    assert alice.ask("GET", first)[0] == 403
    assert bob.ask("GET", back)[0] == 200


def test_a_workspace_has_its_own_tokens(place):
    server = place()
    browser = Browser(server.port)
    assert "log in at" in str(run(server, TEAM)) and "workspace=team-a&server=s" in str(run(server, TEAM))
    browser.login(token=TEAM, workspace="team-a")
    assert [path.parent.name for path in files(server)] == ["team-a"]
    assert "hello with access-" in str(run(server, TEAM))
    assert "a person has to log in" in str(run(server, ALICE))


def test_with_workers(place):
    """The redirect finds the worker that has the login."""
    server = place("--workers", "2")
    for _ in range(4):
        browser = Browser(server.port)
        browser.login()
    assert len(files(server)) == 1


def test_the_mcp_server(request, tmp_path):
    with oauth.OAuth() as remote:
        base = peers.write_server(tmp_path / "base", "s", url=remote.url, auth="oauth")
        os.environ["XDG_STATE_HOME"] = str(tmp_path / "state")
        request.addfinalizer(lambda: os.environ.pop("XDG_STATE_HOME"))
        server = listening.Listening("--base", base, tokens=TOKENS, token=ALICE)
        request.addfinalizer(server.close)
        session = server.session()
        page = "http://127.0.0.1:%d/oauth/login?server=s" % server.port
        failed = server.run(session, "tools.s.hello()")[-1][1]["result"]
        assert failed["isError"] and "a person has to log in at " + page in failed["content"][0]["text"]
        assert server.ask("GET", path="/v1/logins", session=None).json == {"logins": [{"server": "s", "needed": True, "link": page}]}
        Browser(server.port).login()
        assert "hello with access-" in server.value(session, "tools.s.hello()")


SDK = """
import asyncio, sys, threading, urllib.request
from workcell import Session, SubprocessConfig, SubprocessExecutor

async def main():
    async with Session(executor=SubprocessExecutor(SubprocessConfig(tools_path=sys.argv[1]))) as session:
        def show(link):
            seen.append(link)
            threading.Thread(target=lambda: urllib.request.urlopen(link).read()).start()
        seen = []
        await session.login("s", show)
        result = await session.run("tools.s.hello()")
        print(len(seen), result.value)

asyncio.run(main())
"""


def test_the_sdk_shows_the_link(tmp_path):
    with oauth.OAuth() as remote:
        base = peers.write_server(tmp_path / "base", "s", url=remote.url, auth="oauth")
        done = subprocess.run([support.PYTHON, "-c", SDK, os.path.join(base, "tools")], capture_output=True, text=True, timeout=support.DEADLINE,
                              env=support.host_environment(XDG_STATE_HOME=str(tmp_path / "state"), PYTHONPATH=os.path.join(os.path.dirname(support.BIN), "python-site")))
    assert done.returncode == 0 and re.fullmatch(r"1 hello with access-\d+\n", done.stdout), done.stderr
