"""An authorization server that signs what it is told, also what no honest one does: for servers that check tokens."""
import base64
import hashlib
import hmac
import http.server
import json
import threading
import time
import urllib.parse

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


def plain(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public_jwk(key, kid, **more):
    numbers = key.public_key().public_numbers()
    if isinstance(key, rsa.RSAPrivateKey):
        size = (numbers.n.bit_length() + 7) // 8
        return {"kty": "RSA", "kid": kid, "n": plain(numbers.n.to_bytes(size, "big")), "e": "AQAB", **more}
    return {"kty": "EC", "kid": kid, "crv": "P-256", "x": plain(numbers.x.to_bytes(32, "big")), "y": plain(numbers.y.to_bytes(32, "big")), **more}


class Issuer:
    """Use as a context manager. `keys` is the set that it shows: {kid: private key}."""

    def __init__(self):
        self.keys = {"r1": rsa.generate_private_key(65537, 2048), "e1": ec.generate_private_key(ec.SECP256R1())}
        self.hidden = rsa.generate_private_key(65537, 2048)
        self.requests, self.active, self.broken = [], {}, False
        self.held, self.release = threading.Event(), threading.Event()
        self.release.set()
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
        self.url = "http://127.0.0.1:%d" % self.server.server_port

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()

    def handle(self, request, body):
        self.requests.append((request.command, request.path, dict(request.headers), body))
        self.held.set()
        self.release.wait(60)
        status, answer = 200, None
        if self.broken:
            status, answer = 500, {}
        elif request.path == "/.well-known/openid-configuration":
            answer = {"issuer": self.url, "jwks_uri": self.url + "/keys", "authorization_endpoint": self.url + "/auth"}
        elif request.path == "/keys":
            answer = {"keys": [public_jwk(key, kid) for kid, key in self.keys.items()]}
        elif request.path == "/introspect" and body is not None:
            answer = self.introspect(request, body)
        else:
            status, answer = 404, {}
        data = json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def introspect(self, request, body):
        assert request.headers["Authorization"] == "Basic " + base64.b64encode(b"work%3Acell:s%20ecret").decode()
        token, = urllib.parse.parse_qs(body.decode())["token"]
        return self.active.get(token, {"active": False})

    def asked(self, path):
        return sum(1 for request in self.requests if request[1] == path)

    def claims(self, resource, **changes):
        """Those of a good token; a change to None leaves a claim out."""
        now = int(time.time())
        found = {"iss": self.url, "aud": resource, "sub": "alice", "iat": now, "nbf": now, "exp": now + 600, "scope": "workcell:run", **changes}
        return {name: value for name, value in found.items() if value is not None}

    def token(self, resource, key=None, kid="r1", alg="RS256", headers=(), **changes):
        return jwt.encode(self.claims(resource, **changes), key or self.keys[kid], algorithm=alg,
                          headers={"kid": kid, "typ": "at+jwt", **dict(headers)})

    def unsigned(self, resource, alg="none", signature="", **changes):
        head = plain(json.dumps({"alg": alg, "kid": "r1"}).encode())
        return "%s.%s.%s" % (head, plain(json.dumps(self.claims(resource, **changes)).encode()), signature)

    def confused(self, resource):
        """HMAC with the public key as the secret: the old mistake of libraries that let a token choose."""
        pem = self.keys["r1"].public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        text = self.unsigned(resource, alg="HS256").rstrip(".")
        return text + "." + plain(hmac.new(pem, text.encode(), hashlib.sha256).digest())
