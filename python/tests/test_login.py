"""Logins at remote MCP servers: session.login() and the function that shows the link."""
import glob
import os
import stat
import sys
import threading
import urllib.request

import pytest

from conftest import ROOT, run

import workcell
import workcell.sync

sys.path.insert(0, os.path.join(ROOT, "tests", "mcp"))
import oauth  # noqa: E402


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "workcell" / "oauth"


class Browser:
    """Opens the link that it is shown, as a person would."""

    def __init__(self):
        self.links, self.threads = [], []

    def show(self, link):
        self.links.append(link)
        thread = threading.Thread(target=lambda: urllib.request.urlopen(link, timeout=30).read())
        thread.start()
        self.threads.append(thread)

    async def show_async(self, link):
        self.show(link)

    def done(self):
        for thread in self.threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self.threads)


@pytest.mark.parametrize("how", ["show", "show_async"])
def test_login_and_logout(state, storage, how):
    async def go(server, browser):
        async with workcell.Session(storage) as session:
            session.add_mcp_server("s", {"url": server.url, "auth": "oauth"})
            refused = await session.run("tools.s.hello()")
            assert "login" in str(refused.error)
            await session.login("s", getattr(browser, how))
            first = (await session.run("tools.s.hello()")).value
            assert first.startswith("hello with access-")
            server.access.clear()  # refreshed without a person
            second = (await session.run("tools.s.hello()")).value
            assert second.startswith("hello with access-") and second != first
            [kept] = glob.glob(str(state / "*"))
            assert stat.S_IMODE(os.stat(kept).st_mode) == 0o600 and stat.S_IMODE(os.stat(state).st_mode) == 0o700
            await session.logout("s")
            assert glob.glob(str(state / "*")) == []
            with pytest.raises(workcell.CodeModeError) as missing:
                await session.logout("s")
            assert missing.value.code == "not_found"

    browser = Browser()
    with oauth.OAuth() as server:
        run(go(server, browser))
        browser.done()
    assert len(browser.links) == 1 and browser.links[0].startswith(server.root)


def test_a_synchronous_session(state, storage):
    browser = Browser()
    with oauth.OAuth() as server, workcell.sync.Session(storage) as session:
        session.add_mcp_server("s", {"url": server.url, "auth": "oauth"})
        session.login("s", browser.show)
        browser.done()
        assert session.run("tools.s.hello()").value.startswith("hello with access-")
        session.logout("s")


def test_what_show_raises_ends_the_login(state, storage):
    class Closed(Exception):
        pass

    def show(link):
        raise Closed(link)

    with oauth.OAuth() as server, workcell.sync.Session(storage) as session:
        session.add_mcp_server("s", {"url": server.url, "auth": "oauth"})
        with pytest.raises(Closed):
            session.login("s", show)
        with pytest.raises(workcell.CodeModeError) as late:
            session.login("s", lambda link: None, timeout=0.2)
        assert late.value.code == "start_timeout", late.value
        with pytest.raises(workcell.CodeModeError) as unknown:
            session.login("nobody", show)
        assert unknown.value.code == "not_found"
        assert glob.glob(str(state / "*")) == []
