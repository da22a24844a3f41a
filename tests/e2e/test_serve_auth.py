"""Who is let in by `workcell serve`: every route with every kind of token, and what becomes of guesses."""
import os
import re
import signal

import pytest

import serving
import support

SCOPED = {"read": "t0ken-of-the-reader", "run": "t0ken-of-the-runner", "admin": serving.TOKEN}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving.shared("--executor", "subprocess", "--base", tmp_path_factory.mktemp("base")) as made:
        yield made


def routes(server):
    """(method, path with parameters filled in, scope)"""
    document = server.ask("GET", "/openapi.json").json
    found = []
    for path, methods in document["paths"].items():
        for name in ("session", "run", "name", "id", "path", "batch", "command", "file", "task"):
            path = path.replace("{%s}" % name, "0")
        assert "{" not in path
        found += [(method.upper(), path, one.get("x-scope", "open")) for method, one in methods.items()]
    with open(os.path.join(support.ROOT, "src", "server", "table.c"), encoding="utf-8") as file:
        table = re.findall(r'\{ (GET|POST|PUT|DELETE), "([^"]+)"', file.read())
    assert len(found) == len(table) == len(set(table)), "the document has every route"
    return found


def assert_open(path, status):
    """The console's routes answer everybody, here that there is none, and those of logins want a form, or a redirect that nobody has begun."""
    wanted = (404, 422) if path.startswith("/console") else (200, 400, 403) if path.startswith("/oauth/") else (200,)
    assert status in wanted, (path, status)


def test_every_route_with_every_token(tmp_path):
    # A server of its own for each kind: failures are counted by address.
    server = serving.Server("--executor", "subprocess", "--base", tmp_path, pool=0)
    every = routes(server)
    assert [path for _, path, scope in every if scope == "open" and not path.startswith("/console")] == [
        "/health", "/ready", "/started", "/oauth/login", "/oauth/login", "/oauth/callback", "/docs"]
    for method, path, scope in every:
        for name, token in SCOPED.items():
            status = server.ask(method, path, token=token).status
            if scope == "open":
                assert_open(path, status)
            elif scope == "any":
                assert status == 200
            elif scope == name or name == "admin":
                assert status not in (401, 403), (method, path, name, status)
            else:
                assert status == 403, (method, path, name, status)
    server.close()


def refused(server, every, **options):
    """Each route without a good token; the failures of an address run out in between."""
    for method, path, scope in every:
        answer = server.ask(method, path, **options)
        if scope == "open":
            assert_open(path, answer.status)
        elif answer.status == 429:
            assert int(answer.headers["Retry-After"]) > 0 and answer.code == "busy"
        else:
            assert answer.status == 401 and answer.headers["WWW-Authenticate"].startswith("Bearer"), (method, path, answer)
            assert answer.code == "unauthorized"


@pytest.mark.parametrize("how", ["none", "wrong", "empty", "basic", "prefix", "longer"])
def test_no_route_without_a_token(server, how):
    token = {"wrong": "t0ken-of-somebody", "prefix": serving.TOKEN[:-1], "longer": serving.TOKEN + "x"}.get(how)
    headers = {"basic": {"Authorization": "Basic dDp0"}, "empty": {"Authorization": "Bearer "}}.get(how, {})
    every = routes(server)
    refused(server, every, token=token, headers=headers)
    assert server.ask("GET", "/nowhere", token=token, headers=headers).status in (401, 429)


def test_guesses_run_out_and_good_tokens_go_on():
    server = serving.Server("--executor", "subprocess", pool=0)
    assert server.ask("GET", "/openapi.json").status == 200
    statuses = [server.ask("GET", "/openapi.json", token="guess-%08d" % i).status for i in range(40)]
    assert statuses[:15] == [401] * 15 and 429 in statuses
    assert server.ask("GET", "/openapi.json").status == 200
    while server.ask("GET", "/openapi.json", token="one-more-guess").status != 429:
        pass
    assert server.ask("GET", "/openapi.json", token="t0ken-of-alice").status == 429  # short enough to be guessed
    assert server.metric("auth_failures_total") >= 40
    server.close()


def test_nothing_is_said_before_the_token(server):
    for body in (b"{", b"{}", b"x" * 100000):
        assert server.ask("POST", "/execute", body, token=None).status in (401, 429)
    assert server.ask("GET", "/v1/sessions/" + server.session(), token=None).status in (401, 429)


def test_the_token_file_is_read_again(tmp_path):
    server = serving.Server("--executor", "subprocess", pool=0)
    session = server.session(token="t0ken-of-alice")
    with open(server.tokens, "w") as file:
        file.write("tokens:\n  - {name: alice, token: another-t0ken-of-hers}\n  - {name: new, token: t0ken-of-the-tests, scopes: [admin]}\n")
    server.process.send_signal(signal.SIGHUP)
    support.wait_until(lambda: "reloaded: 2 tokens" in server.text(), server.text)
    assert server.ask("GET", "/v1/sessions", token="t0ken-of-alice").status == 401
    assert server.execute("1", session=session, token="another-t0ken-of-hers")["value"] == 1
    with open(server.tokens, "w") as file:
        file.write("tokens:\n  - {name: alice, tokn: x}\n")
    support.wait_until(lambda: "not reloaded" in server.text(), server.text)  # by itself
    assert server.execute("1", session=session, token="another-t0ken-of-hers")["value"] == 1
    server.close()


def refuse_start(*flags, env=(), code="invalid"):
    done = support.workcell("serve", "--listen", "127.0.0.1:0", *flags, env=support.host_environment(**dict(env)))
    assert done.status == support.EXIT[code] and done.error_code == code, done
    return done.error_message


def test_it_does_not_start_open(tmp_path):
    assert "requires --auth-token-file" in refuse_start()
    assert "requires" in refuse_start(env={"CONTAINER_AUTH_TOKEN": "", "CONTAINER_AUTH_DISABLED": "yes"}.items())
    assert "other machines" in refuse_start("--auth-disabled", "--listen", "0.0.0.0:0")
    for text in ("", "\n", "x" * 4097, "with space in it", "tokens: []", "tokens:\n- {name: a}", "tokens:\n- {name: a, token: long-enough, scopes: [god]}",
                 "tokens:\n- {name: a, token: long-enough}\n- {name: a, token: long-enough2}", "tokens:\n- {name: a, sha256: xyz}"):
        (tmp_path / "t").write_text(text)
        refuse_start("--auth-token-file", tmp_path / "t")
    refuse_start("--auth-token-file", tmp_path / "missing", code="not_found")
    assert "token is required" not in refuse_start("--auth-disabled", "--tls-cert", tmp_path / "t")


def test_short_tokens_are_taken_and_warned_of():
    """The seeds' own example is `secret`."""
    server = serving.Server("--executor", "subprocess", tokens="secret\n", pool=0)
    assert server.ask("GET", "/v1/sessions", token="secret").status == 200
    assert server.ask("GET", "/v1/sessions", token="secre").status == 401
    assert "could be guessed" not in server.text()
    server.close()
    server = serving.Server("--executor", "subprocess", tokens="tokens:\n- {name: weak, token: x}\n- {name: strong, token: %s}\n" % ("y" * 4096),
                            listen="0.0.0.0:0", pool=0)
    assert server.ask("GET", "/v1/sessions", token="x").status == 200 and server.ask("GET", "/v1/sessions", token="y" * 4096).status == 200
    warned = [line for line in server.text().splitlines() if "could be guessed" in line]
    assert len(warned) == 1 and " warning " in warned[0] and 'weak' in warned[0], server.text()
    server.close()


def test_without_authentication_a_browser_is_kept_out():
    server = serving.Server("--executor", "subprocess", "--auth-disabled", "--allow-origin", "https://ok.example", tokens=None, pool=0)
    assert server.execute("1", token=None)["value"] == 1
    assert server.ask("GET", "/v1/sessions", token=None, headers={"Host": "evil.example"}).status == 403
    assert server.ask("GET", "/v1/sessions", token=None, headers={"Origin": "https://evil.example"}).status == 403
    assert server.ask("GET", "/v1/sessions", token=None, headers={"Origin": "https://ok.example"}).status == 200
    server.close()


def test_config_file(tmp_path):
    token = tmp_path / "token"
    token.write_text("a-token-of-its-own\n")
    config = tmp_path / "serve.yaml"
    config.write_text("auth-token-file: %s\nmax_sessions: 1\nexecutor: subprocess\nallow-origin: [https://a, https://b]\nno-runtime-deps: true\n"
                      % token)
    done = support.workcell("serve", "--config", config, "--check-config", env=support.host_environment())
    assert done.status == 0 and done.out == "the configuration is valid\n", done
    server = serving.Server("--config", config, tokens=None, pool=0)
    first = server.session(token="a-token-of-its-own")
    answer = server.ask("POST", "/v1/sessions", token="a-token-of-its-own")
    assert answer.status == 429 and answer.headers["Retry-After"], answer
    config.write_text(config.read_text().replace("max_sessions: 1", "max_sessions: 2"))
    server.process.send_signal(signal.SIGHUP)
    support.wait_until(lambda: "reloaded" in server.text(), server.text)
    assert server.session(token="a-token-of-its-own") != first
    server.close()
    for bad in ("nonsense: 1\n", "max-sessions: many\n", "[1]\n", "a: {b: 1}\n", "a: [\n", "log: loud\n", "check-config: true2\n"):
        config.write_text("auth-token-file: %s\n%s" % (token, bad) if bad[0] != "[" else bad)
        done = support.workcell("serve", "--config", config, "--check-config", env=support.host_environment())
        assert done.status == 2, (bad, done)
