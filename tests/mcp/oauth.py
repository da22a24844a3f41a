"""An MCP server behind OAuth, with its authorization server, that does what it is told, also what no honest one does."""
import base64
import hashlib
import http.server
import json
import threading
import urllib.parse


class OAuth:
    """Use as a context manager. `wrong`: behaviours that are looked up below."""

    def __init__(self, *wrong, lifetime=3600):
        self.wrong, self.lifetime = set(wrong), lifetime
        self.requests, self.codes, self.count = [], {}, 0
        self.access, self.refresh = set(), set()
        self.registered = None  # the scope that the last client named
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                outer.handle(self, None)

            def do_POST(self):
                outer.handle(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.root = "http://127.0.0.1:%d" % self.server.server_port
        self.url = self.root + "/mcp"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()

    def handle(self, http_request, body):
        path, _, query = http_request.path.partition("?")
        self.requests.append({"path": path, "headers": {k.lower(): v for k, v in http_request.headers.items()}, "body": body, "query": query})
        name = {"/mcp": "mcp", "/.well-known/oauth-protected-resource/mcp": "resource", "/.well-known/oauth-authorization-server": "metadata",
                "/register": "register", "/authorize": "authorize", "/token": "token"}.get(path)
        if name:
            status, headers, answer = getattr(self, "do_" + name)(http_request, body, query)
        else:
            status, headers, answer = 404, {}, b""
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        http_request.send_response(status)
        for key, value in dict({"Content-Type": "application/json", "Content-Length": str(len(data))}, **headers).items():
            http_request.send_header(key, value)
        http_request.end_headers()
        http_request.wfile.write(data)

    def do_resource(self, *_):
        if "redirect" in self.wrong:
            return 302, {"Location": self.root + "/.well-known/elsewhere"}, b""
        if "huge" in self.wrong:
            return 200, {}, b"{" + b" " * (1 << 20)
        resource = "http://other.example/mcp" if "resource" in self.wrong else self.url
        issuer = "http://169.254.169.254" if "private" in self.wrong else self.root
        return 200, {}, {"resource": resource, "authorization_servers": [issuer], "scopes_supported": ["read"]}

    def do_metadata(self, *_):
        metadata = {"issuer": self.root + ("/other" if "issuer" in self.wrong else ""), "authorization_endpoint": self.root + "/authorize",
                    "token_endpoint": self.root + "/token", "registration_endpoint": self.root + "/register",
                    "code_challenge_methods_supported": ["plain" if "no-s256" in self.wrong else "S256"],
                    "authorization_response_iss_parameter_supported": True}
        if "escapes" in self.wrong:
            metadata["authorization_endpoint"] = self.root + "/authorize\x1b]0;owned\x07"
        if "script" in self.wrong:
            metadata["authorization_endpoint"] = "javascript:alert(1)"
        if "offline" in self.wrong:
            metadata["scopes_supported"] = ["read", "offline_access"]
        if "no-registration" in self.wrong:
            del metadata["registration_endpoint"]
        return 200, {}, metadata

    def do_register(self, _request, body, _query):
        asked = json.loads(body)
        assert asked["application_type"] == "native" and asked["token_endpoint_auth_method"] == "none"
        self.registered = asked.get("scope")
        return 201, {}, dict(asked, client_id="client-1")

    def do_authorize(self, _request, _body, query):
        asked = dict(urllib.parse.parse_qsl(query))
        assert asked["code_challenge_method"] == "S256" and asked["resource"] == self.url
        self.count += 1
        code = "code-%d" % self.count
        self.codes[code] = asked
        answer = {"code": code, "state": asked["state"], "iss": self.root}
        if "mix-up" in self.wrong:
            answer["iss"] = "https://evil.example"
        if "no-iss" in self.wrong:
            del answer["iss"]
        if "denied" in self.wrong:
            answer = {"error": "access_denied", "state": asked["state"], "iss": self.root}
        if self.registered and not set(asked.get("scope", "").split()) <= set(self.registered.split()):
            answer = {"error": "invalid_scope", "state": asked["state"], "iss": self.root}
        self.redirect = asked["redirect_uri"]
        return 302, {"Location": self.redirect + "?" + urllib.parse.urlencode(answer)}, b""

    def do_token(self, _request, body, _query):
        asked = dict(urllib.parse.parse_qsl(body.decode()))
        began = {}
        if asked["grant_type"] == "authorization_code":
            began = self.codes.pop(asked["code"], None)
            digest = base64.urlsafe_b64encode(hashlib.sha256(asked["code_verifier"].encode()).digest()).rstrip(b"=").decode()
            if not began or digest != began["code_challenge"] or asked["redirect_uri"] != began["redirect_uri"]:
                return 400, {}, {"error": "invalid_grant"}
        elif asked["refresh_token"] not in self.refresh or asked["resource"] != self.url:
            return 400, {}, {"error": "invalid_grant"}
        self.count += 1
        access, refresh = "access-%d" % self.count, "refresh-%d" % self.count
        self.access.add(access)
        self.refresh = {refresh}
        answer = {"access_token": "bad\r\ntoken" if "bad-token" in self.wrong else access, "token_type": "Bearer", "expires_in": self.lifetime,
                  "scope": began.get("scope", "read")}
        # As OpenID Connect has it.
        if "offline" not in self.wrong or not began or (began.get("prompt") == "consent" and "offline_access" in began["scope"]):
            answer["refresh_token"] = refresh
        return 200, {}, answer

    def do_mcp(self, request, body, _query):
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in self.access:
            return 401, {"WWW-Authenticate": 'Bearer resource_metadata="%s/.well-known/oauth-protected-resource/mcp", scope="read"' % (
                "http://other.example" if "metadata-elsewhere" in self.wrong else self.root)}, b""
        message = json.loads(body)
        if message["method"] == "server/discover":
            result = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0}
        elif message["method"] == "tools/list":
            result = {"tools": [{"name": "hello", "inputSchema": {"type": "object"}}], "ttlMs": 60000, "cacheScope": "private"}
        else:
            result = {"content": [{"type": "text", "text": "hello with " + token}]}
        return 200, {}, {"jsonrpc": "2.0", "id": message["id"], "result": result}
