#!/usr/bin/env python3
"""An OpenAI-compatible embeddings endpoint for tests, that can be told to misbehave.

    embeddings_server.py            prints its port on a line, serves until stdin ends

POST /v1/embeddings is what it is there for. A text's vector is the sum of hashed pieces of its words, after a small table
of synonyms: texts with no common word can mean the same, and it is always the same vector. POST /control {"mode": M}
sets what it does from then on, and forgets what it was asked; GET /asked tells what it was asked since:
[{"model", "input", "key"}].

    ok              vectors
    status N        HTTP N with an error in OpenAI's shape
    echo N          HTTP N, and repeats the key
    busy S          HTTP 429, Retry-After: S
    slow S          vectors, after S seconds
    hang            no answer at all
    reset           the connection is closed instead
    cut             half an answer, then the connection is closed
    redirect        to /elsewhere, which would answer
    garbage         HTTP 200 and no JSON;    html: the same as a web page;    empty: nothing
    count           a vector too few;        more: one too many
    uneven          the last vector is one number short
    wide            every vector has twice as many numbers
    nan, infinite, huge, text, null          in place of a number
    zero            vectors of zeros
    flood           an answer without end
    most N          HTTP 413 for more than N texts;    long N: HTTP 400 for a text of more than N bytes
    word W          HTTP 400 when a text has this word
"""
import hashlib
import http.server
import json
import math
import re
import sys
import threading

DIMENSIONS = 64
SYNONYMS = {
    "automobile": "car", "vehicle": "car", "sedan": "car",
    "meteorology": "weather", "forecast": "weather", "forecasts": "weather", "climate": "weather", "rain": "weather",
    "photo": "image", "picture": "image", "photograph": "image",
    "erase": "delete", "remove": "delete", "purge": "delete",
    "mail": "email", "message": "email", "correspondence": "email",
    "invoice": "bill", "receipt": "bill", "payment": "bill",
    "count": "number", "tally": "number", "counts": "number",
    "locate": "find", "seek": "find", "lookup": "find", "finds": "find",
}
STOP = {"a", "an", "and", "the", "of", "to", "in", "for", "def", "run", "return", "str", "int", "none"}


def pieces(word):
    padded = "<%s>" % word
    return [padded] * 3 + [padded[i:i + 3] for i in range(len(padded) - 2)]


def embed(text, dimensions=DIMENSIONS):
    vector = [0.0] * dimensions
    for word in re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower()):
        if word in STOP:
            continue
        for piece in pieces(SYNONYMS.get(word, word)):
            digest = hashlib.md5(piece.encode()).digest()
            vector[digest[0] % dimensions] += 1.0 if digest[1] & 1 else -1.0
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector] if length else vector


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, content_type="application/json", headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def error(self, status, message, headers=()):
        self.reply(status, {"error": {"message": message, "type": "test", "code": None}}, headers=headers)

    def do_GET(self):
        self.reply(200, self.server.owner.asked)

    def do_POST(self):
        owner = self.server.owner
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/control":
            owner.set(body["mode"])
            self.reply(200, {})
            return
        if self.path == "/elsewhere":
            owner.led_elsewhere = True
        mode, _, argument = owner.mode.partition(" ")
        with owner.lock:
            owner.asked.append({"model": body["model"], "input": body["input"], "key": self.headers["Authorization"]})
        try:
            getattr(self, "mode_" + mode, self.mode_value)(body, argument or mode)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self, body, vectors):
        data = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors)]
        self.reply(200, {"object": "list", "data": data[::-1], "model": body["model"],
                         "usage": {"prompt_tokens": 1, "total_tokens": 1}})

    def mode_ok(self, body, _):
        self.answer(body, [embed(text) for text in body["input"]])

    def mode_status(self, _, status):
        self.error(int(status), "told to fail")

    def mode_echo(self, _, status):
        self.error(int(status), "not with %s, please" % self.headers["Authorization"])

    def mode_busy(self, _, seconds):
        self.error(429, "slow down", [("Retry-After", seconds)])

    def mode_slow(self, body, seconds):
        self.server.owner.stopping.wait(float(seconds))
        self.mode_ok(body, "")

    def mode_hang(self, _body, _argument):
        self.server.owner.stopping.wait(600)
        self.close_connection = True

    def mode_reset(self, _body, _argument):
        self.close_connection = True

    def mode_cut(self, _body, _argument):
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        self.wfile.write(b'{"data": [{"embedding": [0.1')
        self.close_connection = True

    def mode_redirect(self, _body, _argument):
        self.reply(307, {}, headers=[("Location", "/elsewhere")])

    def mode_garbage(self, _body, _argument):
        self.reply(200, b"\x00\xff not { JSON [")

    def mode_html(self, _body, _argument):
        self.reply(200, b"<html>Sign in</html>", "text/html")

    def mode_empty(self, _body, _argument):
        self.reply(200, b"")

    def mode_count(self, body, _):
        self.answer(body, [embed(text) for text in body["input"][1:]])

    def mode_more(self, body, _):
        self.answer(body, [embed(text) for text in body["input"] + ["more"]])

    def mode_uneven(self, body, _):
        vectors = [embed(text) for text in body["input"]] + [embed("x")]
        vectors[-2].pop()
        self.answer(body, vectors[:-1] if len(vectors) > 2 else vectors)

    def mode_wide(self, body, _):
        self.answer(body, [embed(text, 2 * DIMENSIONS) for text in body["input"]])

    def mode_zero(self, body, _):
        self.answer(body, [[0.0] * DIMENSIONS for _ in body["input"]])

    def mode_value(self, body, what):
        text = {"nan": "NaN", "infinite": "Infinity", "huge": "1e999", "text": '"x"', "null": "null"}[what]
        numbers = ", ".join([text] + ["0.1"] * (DIMENSIONS - 1))
        self.reply(200, ('{"data": [%s]}' % ", ".join(
            '{"index": %d, "embedding": [%s]}' % (i, numbers) for i in range(len(body["input"])))).encode())

    def mode_flood(self, _body, _argument):
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(b'{"data": [')
        while not self.server.owner.stopping.is_set():
            self.wfile.write(b" " * 65536)

    def mode_most(self, body, most):
        if len(body["input"]) > int(most):
            self.error(413, "more than %s inputs" % most)
        else:
            self.mode_ok(body, "")

    def mode_long(self, body, bound):
        if max(len(text.encode()) for text in body["input"]) > int(bound):
            self.error(400, "input is longer than %s bytes" % bound)
        else:
            self.mode_ok(body, "")

    def mode_word(self, body, word):
        if any(word in text for text in body["input"]):
            self.error(400, "we do not speak of that")
        else:
            self.mode_ok(body, "")


class Server:
    """Serves on a thread of its own until close()."""

    def __init__(self):
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.mode, self.asked, self.led_elsewhere = "ok", [], False
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.owner = self
        self.port = self.http.server_address[1]
        self.url = "http://127.0.0.1:%d/v1/embeddings" % self.port
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def set(self, mode):
        with self.lock:
            self.mode, self.asked = mode, []

    @property
    def texts(self):
        """Everything that was embedded since the mode was set."""
        with self.lock:
            return [text for each in self.asked for text in each["input"]]

    def close(self):
        self.stopping.set()
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


if __name__ == "__main__":
    server = Server()
    print(server.port, flush=True)
    sys.stdin.read()
    server.close()
