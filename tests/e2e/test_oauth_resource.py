"""Servers as protected resources of OAuth: access tokens of an issuer, honest and forged, beside the tokens of a file."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import time

import pytest

import issuer as issuers
import listening
import serving
import support

RESOURCE = "https://cell.example.org/mcp"
TOKENS = "tokens:\n  - {name: alice, token: t0ken-of-the-tests, scopes: [run, read, admin]}\n"


def config(issuer, **more):
    folder = support.temporary_folder("workcell-tests-oauth-")
    path = os.path.join(folder, "oauth.yaml")
    write(path, issuer, **more)
    return path


def write(path, issuer, **more):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump({"resource": RESOURCE, "issuer": issuer.url, **more}, file)
    os.rename(path + ".new", path)


@pytest.fixture(scope="module")
def issuer():
    with issuers.Issuer() as made:
        yield made


@pytest.fixture(scope="module")
def server(issuer):
    with serving.shared("--executor", "subprocess", "--oauth", config(issuer), tokens=TOKENS) as made:
        yield made


def running(*flags, **options):
    return contextlib.closing(serving.Server(*flags, **options))


def whoami(server, token):
    return server.ask("GET", "/v1/whoami", token=token)


def challenge(answer):
    return answer.headers["WWW-Authenticate"]


METADATA = RESOURCE.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")


def test_the_metadata_names_the_issuer(server, issuer):
    for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"):
        found = server.ask("GET", path, token=None)
        assert found.status == 200, found
        assert found.json == {"resource": RESOURCE, "authorization_servers": [issuer.url], "bearer_methods_supported": ["header"],
                              "resource_name": "Workcell", "scopes_supported": [
                                  "workcell:run", "workcell:read", "workcell:approve", "workcell:admin", "workcell:metrics"]}
    for path in ("/.well-known/oauth-protected-resource/other", "/.well-known/oauth-protected-resourcex"):
        assert server.ask("GET", path, token=None).status == 401
    assert server.ask("POST", "/.well-known/oauth-protected-resource", {}, token=None).status == 401


def test_a_client_without_a_token_learns_where_to_get_one(server):
    found = server.ask("POST", "/execute", {"code": "1"}, token=None)
    assert (found.status, found.code) == (401, "unauthorized")
    assert challenge(found) == 'Bearer realm="workcell", resource_metadata="%s", scope="workcell:run"' % METADATA
    found = whoami(server, "nonsense")
    assert (found.status, found.code) == (401, "unauthorized")
    assert 'error="invalid_token"' in challenge(found) and METADATA in challenge(found)


@pytest.mark.parametrize("alg, kid", [("RS256", "r1"), ("PS256", "r1"), ("ES256", "e1")])
def test_a_token_of_the_issuer_is_good(server, issuer, alg, kid):
    token = issuer.token(RESOURCE, alg=alg, kid=kid, sub="carol-" + alg)
    found = whoami(server, token)
    assert found.status == 200, found
    assert (found.json["name"], sorted(found.json["scopes"])) == ("oauth:carol-" + alg, ["read", "run"])
    assert server.execute("6 * 7", token=token)["value"] == 42
    assert whoami(server, issuer.token(["x", RESOURCE], alg=alg, kid=kid)).status == 200


def test_static_tokens_stay(server):
    assert whoami(server, serving.TOKEN).json["name"] == "alice"


def test_subjects_are_principals(server, issuer):
    """A subject's sessions are its own, and not those of the token of a file with the same name."""
    alice, bob = issuer.token(RESOURCE, sub="alice"), issuer.token(RESOURCE, sub="bob")
    session = server.session(token=alice)
    assert server.ask("GET", "/v1/sessions/" + session, token=alice).status == 200
    again = issuer.token(RESOURCE, sub="alice", jti="2")
    assert server.ask("GET", "/v1/sessions/" + session, token=again).status == 200
    assert server.ask("GET", "/v1/sessions/" + session, token=bob).status == 404
    long = [issuer.token(RESOURCE, sub="x" * 100 + end) for end in "ab"]
    names = [whoami(server, token).json["name"] for token in long]
    assert names[0] != names[1] and all(name.startswith("oauth:sha256:") for name in names)
    forged = whoami(server, issuer.token(RESOURCE, sub=names[0][len("oauth:"):])).json["name"]
    assert forged not in names
    server.ask("DELETE", "/v1/sessions/" + session, token=alice)


def test_scopes_are_mapped(server, issuer):
    reader = issuer.token(RESOURCE, scope="workcell:read other")
    assert whoami(server, reader).json["scopes"] == ["read"]
    found = server.ask("POST", "/execute", {"code": "1"}, token=reader)
    assert (found.status, found.code) == (403, "forbidden")
    assert 'error="insufficient_scope"' in challenge(found) and 'scope="workcell:run"' in challenge(found)
    found = whoami(server, issuer.token(RESOURCE, scope=None))
    assert found.status == 403 and 'error="insufficient_scope"' in challenge(found)
    assert whoami(server, issuer.token(RESOURCE, scope=None, scp=["workcell:read"])).json["scopes"] == ["read"]


FORGED = {
    "audience": (lambda i: i.token("https://other.example/mcp"), "audience"),
    "no audience": (lambda i: i.token(None), "audience"),
    "audience with more": (lambda i: i.token(RESOURCE + "/"), "audience"),
    "issuer": (lambda i: i.token(RESOURCE, iss="https://evil.example"), "issuer"),
    "issuer with a slash": (lambda i: i.token(RESOURCE, iss=i.url + "/"), "issuer"),
    "no issuer": (lambda i: i.token(RESOURCE, iss=None), "issuer"),
    "expired": (lambda i: i.token(RESOURCE, exp=int(time.time()) - 61), "expired"),
    "no expiry": (lambda i: i.token(RESOURCE, exp=None), "expire"),
    "not yet": (lambda i: i.token(RESOURCE, nbf=int(time.time()) + 120), "yet"),
    "issued later": (lambda i: i.token(RESOURCE, iat=int(time.time()) + 120), "yet"),
    "unsigned": (lambda i: i.unsigned(RESOURCE), "signature"),
    "None": (lambda i: i.unsigned(RESOURCE, alg="NONE"), "signature"),
    "empty signature": (lambda i: i.unsigned(RESOURCE, alg="RS256"), "not signed"),
    "confusion": (lambda i: i.confused(RESOURCE), "signature"),
    "another key": (lambda i: i.token(RESOURCE, key=i.hidden, kid="r1"), "signature"),
    "own key": (lambda i: i.token(RESOURCE, key=i.hidden, kid="mine", headers={"jwk": issuers.public_jwk(i.hidden, "mine")}), "key"),
    "changed": (lambda i: swap_claims(i), "signature"),
    "no subject": (lambda i: i.token(RESOURCE, sub=None), "sub"),
    "empty subject": (lambda i: i.token(RESOURCE, sub=""), "sub"),
    "huge": (lambda i: i.token(RESOURCE, pad="x" * 16000), "bytes"),
    "opaque": (lambda i: "0123456789abcdef0123456789abcdef", "JWT"),
    "two dots": (lambda i: "..", "JWT"),
}


def swap_claims(issuer):
    head, _, signature = issuer.token(RESOURCE).split(".")
    claims = json.dumps(issuer.claims(RESOURCE, scope="workcell:admin")).encode()
    return ".".join((head, issuers.plain(claims), signature))


@pytest.mark.parametrize("name", sorted(FORGED))
def test_a_forged_token_is_refused(server, issuer, name):
    make, words = FORGED[name]
    # Of an address of its own: failures are counted by it.
    own = http.client.HTTPConnection("127.0.0.1", server.port, timeout=support.DEADLINE, source_address=("127.0.1.%d" % sorted(FORGED).index(name), 0))
    found = server.ask("GET", "/v1/whoami", token=make(issuer), connection=own)
    own.close()
    assert (found.status, found.code) == (401, "unauthorized") and words in found.json["detail"], found
    assert 'error="invalid_token"' in challenge(found)


def test_a_token_in_the_query_is_not_read(server, issuer):
    good = issuer.token(RESOURCE)
    for query in ("access_token=", "token=", "Authorization=Bearer%20"):
        assert server.ask("GET", "/v1/whoami?" + query + good, token=None).status in (401, 429)
    assert whoami(server, good).status == 200


def test_a_failing_address_does_not_lock_out_good_tokens(server, issuer):
    for _ in range(25):
        last = whoami(server, issuer.unsigned(RESOURCE))
    assert last.status == 429
    assert whoami(server, issuer.token(RESOURCE, jti="new")).status == 200


def test_rotated_keys_are_found_and_withdrawn_ones_are_not(issuer):
    """A token with a new key makes the server fetch the keys again, once; bodies that were sent meanwhile are read."""
    with issuers.Issuer() as own, running("--executor", "subprocess", "--oauth", config(own), tokens=None) as server:
        old = own.token(RESOURCE)
        own.release.clear()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(server.ask, "POST", "/execute", {"code": "len('%s')" % ("x" * 100000)}, token=old) for _ in range(8)]
            assert own.held.wait(support.DEADLINE)
            assert server.ask("GET", "/health", token=None).status == 200  # nobody else waits
            own.release.set()
            assert [future.result().json["value"] for future in waiting] == [100000] * 8
        assert own.asked("/keys") == 1
        assert whoami(server, old).status == 200
        own.keys = {"r2": own.hidden}
        new = own.token(RESOURCE, kid="r2")
        # Not more than one fetch in a few seconds, whoever asks.
        support.wait_until(lambda: whoami(server, new).status == 200, lambda: own.requests)
        assert own.asked("/keys") == 2
        assert whoami(server, old).status in (401, 429)  # also one that was accepted before


def test_an_issuer_that_cannot_be_reached(issuer):
    with issuers.Issuer() as own:
        own.broken = True
        with running("--executor", "subprocess", "--oauth", config(own), tokens=TOKENS) as server:
            found = whoami(server, own.token(RESOURCE))
            assert (found.status, found.code) == (503, "busy") and found.headers["Retry-After"]
            assert whoami(server, serving.TOKEN).status == 200


def test_a_server_that_stops_lets_waiting_requests_go(issuer):
    with issuers.Issuer() as own:
        with running("--executor", "subprocess", "--oauth", config(own), tokens=None) as server:
            own.release.clear()
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(whoami, server, own.token(RESOURCE))
                assert own.held.wait(support.DEADLINE)
                server.process.terminate()
                assert waiting.result().status == 503


INTROSPECTION = {"client_id": "work:cell", "client_secret": "s ecret"}


def test_introspection(issuer):
    with issuers.Issuer() as own:
        path = config(own, introspection=own.url + "/introspect", cache=300, **INTROSPECTION)
        with running("--executor", "subprocess", "--oauth", path, tokens=None) as server:
            own.active["good"] = {"active": True, **own.claims(RESOURCE, sub="dora")}
            own.active["bare"] = {"active": True, "aud": RESOURCE, "sub": "dora", "scope": "workcell:read"}
            assert whoami(server, "good").json["name"] == "oauth:dora"
            assert server.execute("1 + 1", token="good")["value"] == 2
            assert own.asked("/introspect") == 1
            assert whoami(server, "bare").json["scopes"] == ["read"]
            own.active["audience"] = {"active": True, **own.claims("https://other.example")}
            own.active["issuer"] = {"active": True, **own.claims(RESOURCE, iss="https://evil.example")}
            own.active["old"] = {"active": True, **own.claims(RESOURCE, exp=1)}
            own.active["word"] = {"active": "true", **own.claims(RESOURCE)}
            for token, status in (("audience", 401), ("issuer", 401), ("old", 401), ("word", 503), ("unknown", 401),
                                  (own.token(RESOURCE), 401)):
                assert whoami(server, token).status == status, token
            asked = own.asked("/introspect")
            assert whoami(server, "x" * 16385).status == 401 and own.asked("/introspect") == asked
            # Whoever guesses does not make us ask the issuer for ever.
            statuses = [whoami(server, "guess-%d" % i).status for i in range(40)]
            assert 429 in statuses and own.asked("/introspect") < asked + 30
            assert whoami(server, "good").status == 200


def test_a_withdrawn_token_is_noticed_without_a_cache(issuer):
    with issuers.Issuer() as own:
        path = config(own, introspection=own.url + "/introspect", cache=0, **INTROSPECTION)
        with running("--executor", "subprocess", "--oauth", path, tokens=None) as server:
            own.active["good"] = {"active": True, **own.claims(RESOURCE)}
            assert whoami(server, "good").status == 200
            del own.active["good"]
            assert whoami(server, "good").status == 401


def test_tenants(issuer, tmp_path):
    """One issuer for several tenants: a claim names the one that may come, or the workspace of each."""
    path = config(issuer, claims={"tid": "us"}, workspace="team")
    (tmp_path / "base").mkdir()
    with running("--executor", "subprocess", "--oauth", path, "--base", tmp_path / "base", tokens=None) as server:
        found = whoami(server, issuer.token(RESOURCE, tid="us", team="blue"))
        assert (found.status, found.json["workspace"]) == (200, "blue")
        for changes in ({"tid": "them", "team": "blue"}, {"team": "blue"}, {"tid": "us"}, {"tid": "us", "team": "../x"}, {"tid": "us", "team": ["blue"]}):
            assert whoami(server, issuer.token(RESOURCE, **changes)).status == 401, changes
        blue, red = (issuer.token(RESOURCE, sub="s", tid="us", team=team) for team in ("blue", "red"))
        session = server.session(token=blue)
        assert server.ask("GET", "/v1/sessions/" + session, token=blue).status == 200
        assert server.ask("GET", "/v1/sessions/" + session, token=red).status == 404


def test_new_settings_hold_at_once(issuer):
    path = config(issuer)
    with running("--executor", "subprocess", "--oauth", path, tokens=None) as server:
        token = issuer.token(RESOURCE)
        assert whoami(server, token).status == 200
        write(path, issuer, audience="something-else")
        support.wait_until(lambda: whoami(server, token).status in (401, 429), server.text)
        with open(path, "w", encoding="utf-8") as file:
            file.write("resource: 1\n")
        support.wait_until(lambda: "not reloaded" in server.text(), server.text)
        assert whoami(server, issuer.token("something-else")).status == 200


@pytest.mark.parametrize("text, words", [
    ("resource: https://a", "issuer"), ("resource: http://a.example\nissuer: https://b", "https://"), ("resource: https://a\nissuer: ftp://b", "issuer"),
    ("resource: https://a?x\nissuer: https://b", "query"), ("resource: https://a\nissuer: https://b\nalgorithms: [HS256]", "RS256"),
    ("resource: https://a\nissuer: https://b\nalgorithms: [none]", "RS256"), ("resource: https://a\nissuer: https://b\nclock_skew: 301", "300"),
    ("resource: https://a\nissuer: https://b\nscopes: {x: [root]}", "scope"), ("resource: https://a\nissuer: https://b\nother: 1", "other"),
    ("resource: https://a\nissuer: https://b\nintrospection: https://c", "client_id"),
    ("resource: https://a\nissuer: https://b\nclient_id: c", "introspection"), ("resource: https://a\nissuer: https://b\naudience: []", "audience"),
])
def test_bad_settings_are_refused(tmp_path, text, words):
    path = tmp_path / "oauth.yaml"
    path.write_text(text)
    done = support.workcell("serve", "--oauth", path, "--listen", "127.0.0.1:0", "--check-config")
    assert done.status == 2 and words in done.err, done


def test_names_of_subjects_are_not_for_tokens_of_a_file(tmp_path):
    path = tmp_path / "tokens.yaml"
    path.write_text("tokens:\n  - {name: 'oauth:alice', token: t0ken-of-the-tests}\n")
    done = support.workcell("serve", "--auth-token-file", path, "--listen", "127.0.0.1:0", "--check-config")
    assert done.status == 2 and "oauth:" in done.err, done


def test_mcp(issuer):
    """The same for clients of MCP, in both eras; a handle belongs to the subject."""
    path = config(issuer)
    server = listening.Listening("--oauth", path, token=None)
    try:
        refused = server.ask("POST", listening.INITIALIZE)
        assert refused.status == 401 and challenge(refused) == \
            'Bearer realm="workcell", resource_metadata="%s", scope="workcell:run"' % METADATA
        assert server.ask("GET", path="/.well-known/oauth-protected-resource/mcp").json["resource"] == RESOURCE
        alice, bob = issuer.token(RESOURCE, sub="alice"), issuer.token(RESOURCE, sub="bob")
        session = server.session(token=alice)
        assert server.value(session, "6 * 7", token=alice) == 42
        assert server.status("POST", listening.PING, session=session, token=bob) == 404
        handle = server.run(session, "x = 5", token=alice)
        made = server.events("POST", listening.call("run_code", code="x = 5", session="new"), session=session, token=alice)
        handle = made[-1][1]["result"]["structuredContent"]["session"]
        others = server.session(token=bob)
        stolen = server.events("POST", listening.call("run_code", code="x", session=handle), session=others, token=bob)
        assert stolen[-1][1]["result"]["isError"]
        reader = server.ask("POST", listening.INITIALIZE, token=issuer.token(RESOURCE, scope="workcell:read"))
        assert reader.status == 403 and 'error="insufficient_scope"' in challenge(reader)
    finally:
        server.close()


def test_the_audit_log_names_the_subject(issuer, tmp_path):
    audit = tmp_path / "audit.jsonl"
    (tmp_path / "base").mkdir()
    with running("--executor", "subprocess", "--oauth", config(issuer), "--base", tmp_path / "base", "--audit", audit, tokens=None) as server:
        found = server.ask("POST", "/api/artifacts", {"name": "a", "data": "x"}, token=issuer.token(RESOURCE, sub="erin"))
        assert found.status in (200, 201), found
        support.wait_until(lambda: "oauth:erin" in audit.read_text(), audit.read_text)
