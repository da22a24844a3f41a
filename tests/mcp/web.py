"""The scripted MCP server by HTTP, in the test's own process: Streamable HTTP at /mcp, the older transport at /sse.

What it was asked is in `requests`. `how` says what it does with the next POSTs that are requests:

    json      a JSON body                      sse      an event stream that ends with the answer
    poll      the stream ends after an event without data, with an id and `retry`; the answer comes by GET with Last-Event-ID
    cut       the stream ends with nothing     accepted 202 for what wants an answer
    (N, text) a status and a body              wrong    an answer to another request
"""
import contextlib
import http.server
import json
import queue
import threading
import time

import scripted
import support

END = object()


class Session:
    def __init__(self, ident, behaviours):
        self.ident = ident
        self.server = scripted.Server(behaviours)
        self.server.send, self.server.send_text = self.route, lambda text: self.route(json.loads(text))
        self.streams = {}       # request id: queue of messages
        self.unasked = queue.Queue()
        self.stored = {}        # event id: queue that goes on after it

    def route(self, message):
        if "method" not in message and message.get("id") in self.streams:
            self.streams[message["id"]].put(message)
        elif len(self.streams) == 1 and not self.unasked_only:
            next(iter(self.streams.values())).put(message)
        else:
            self.unasked.put(message)

    unasked_only = False


class WebMCP:
    """with WebMCP() as web: web.url, web.sse_url"""

    def __init__(self, *behaviours, sessions=True):
        self.requests, self.sessions, self.behaviours = [], {}, behaviours
        self.with_sessions, self.how, self.retry, self.count = sessions, "json", 50, 0
        self.no_get, self.deleted, self.endpoint = False, [], None
        self.closing = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = {"method": self.command, "path": self.path, "body": json.loads(body) if body else None,
                         "headers": {k.lower(): v for k, v in self.headers.items()}, "at": time.monotonic()}
                outer.requests.append(asked)
                with contextlib.suppress(OSError):
                    outer.answer(self, asked)

            do_GET = do_POST = do_DELETE = handle_any

        class Threads(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args):
                pass

        self.httpd = Threads(("127.0.0.1", 0), Handler)
        self.root = "http://127.0.0.1:%d" % self.httpd.server_address[1]
        self.url, self.sse_url = self.root + "/mcp", self.root + "/sse"
        self.thread = threading.Thread(target=self.httpd.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    # -- answers

    @staticmethod
    def body(handler, status, data=b"", kind="application/json", **headers):
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data)

    @staticmethod
    def begin_stream(handler, **headers):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.close_connection = True

    @staticmethod
    def event(handler, data, **fields):
        lines = ["%s: %s" % item for item in fields.items()] + ["data: " + line for line in data.split("\n")]
        handler.wfile.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        handler.wfile.flush()

    def answer(self, handler, asked):
        path = asked["path"].partition("?")[0]
        if path == "/old":
            self.body(handler, 307, Location="/mcp")
        elif path == "/away":
            self.body(handler, 307, Location="http://localhost:%d/mcp" % self.httpd.server_address[1])
        elif path in ("/sse", "/mcp/older"):
            if asked["method"] == "GET" and not self.no_get:
                self.serve_sse(handler)
            else:
                self.body(handler, 405 if asked["method"] == "POST" else 404)
        elif path == "/messages":
            self.take_message(handler, asked)
        else:
            getattr(self, "answer_" + asked["method"].lower())(handler, asked)

    def session_of(self, asked):
        return self.sessions.get(asked["headers"].get("mcp-session-id") if self.with_sessions else None)

    def new_session(self):
        self.count += 1
        ident = "session-%d" % self.count if self.with_sessions else None
        self.sessions[ident] = Session(ident, self.behaviours)
        return self.sessions[ident]

    def answer_post(self, handler, asked):
        message = asked["body"]
        headers = {}
        session = self.session_of(asked)
        if message.get("method") == "initialize":
            session = self.new_session()
            headers = {"Mcp_Session_Id": session.ident} if session.ident else {}
        if session is None:
            self.body(handler, 404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}')
        elif "id" not in message or "method" not in message:
            session.server.handle(message)
            self.body(handler, 202)
        else:
            self.answer_request(handler, session, message, headers)

    def answer_request(self, handler, session, message, headers):
        how = self.how if message["method"] != "initialize" or isinstance(self.how, tuple) else "sse" if self.how == "sse" else "json"
        if isinstance(how, tuple):
            self.body(handler, how[0], how[1].encode())
            return
        if how == "accepted":
            self.body(handler, 202)
            return
        stream = session.streams[message["id"]] = queue.Queue()
        threading.Thread(target=session.server.handle, args=(message,), daemon=True).start()
        if how == "json":
            for each in self.until_answer(stream, message["id"]):
                if "method" in each:
                    session.unasked.put(each)
            session.streams.pop(message["id"], None)
            self.body(handler, 200, json.dumps(each).encode(), **headers)
        elif how == "wrong":
            self.body(handler, 200, json.dumps({"jsonrpc": "2.0", "id": 999999, "result": {}}).encode())
        else:
            self.begin_stream(handler, **headers)
            self.run_stream(handler, session, message["id"], stream, how)

    def run_stream(self, handler, session, ident, stream, how):
        if how == "cut":
            return
        if how == "poll":
            session.stored["event-%s" % ident] = (ident, stream)
            self.event(handler, "", id="event-%s" % ident, retry=self.retry)
            return
        for number, each in enumerate(self.until_answer(stream, ident)):
            self.event(handler, json.dumps(each, indent=1), id="event-%s-%d" % (ident, number), event="message")
        session.streams.pop(ident, None)

    def until_answer(self, stream, ident):
        while True:
            message = stream.get(timeout=support.DEADLINE)
            yield message
            if message.get("id") == ident and "method" not in message:
                return

    def answer_get(self, handler, asked):
        session = self.session_of(asked)
        last = asked["headers"].get("last-event-id")
        if self.no_get:
            self.body(handler, 405)
        elif session is None:
            self.body(handler, 404)
        elif last in session.stored:
            ident, stream = session.stored.pop(last)
            self.begin_stream(handler)
            self.run_stream(handler, session, ident, stream, "poll" if stream.empty() else "sse")
        else:
            self.begin_stream(handler)
            self.follow(handler, session.unasked)

    def follow(self, handler, messages):
        number = 0
        while not self.closing.is_set():
            try:
                message = messages.get(timeout=0.1)
            except queue.Empty:
                continue
            if message is END:
                return
            number += 1
            self.event(handler, json.dumps(message), id="unasked-%d" % number)

    def answer_delete(self, handler, asked):
        ident = asked["headers"].get("mcp-session-id")
        self.deleted.append(ident)
        self.sessions.pop(ident, None)
        self.body(handler, 200)

    # -- the older transport

    def serve_sse(self, handler):
        session = self.new_session()
        session.unasked_only = True
        self.begin_stream(handler)
        self.event(handler, self.endpoint or "/messages?session=%s" % session.ident, event="endpoint")
        self.follow(handler, session.unasked)

    def take_message(self, handler, asked):
        session = self.sessions[asked["path"].partition("=")[2]]
        if isinstance(self.how, tuple) and asked["body"].get("method") == "tools/call":
            self.body(handler, self.how[0], self.how[1].encode())
            return
        threading.Thread(target=session.server.handle, args=(asked["body"],), daemon=True).start()
        self.body(handler, 202, b"Accepted", "text/plain")

    # -- for the test

    def forget_sessions(self):
        """As after a restart."""
        self.sessions.clear()

    def end_streams(self):
        for session in self.sessions.values():
            session.unasked.put(END)

    def posts(self, method):
        return [r for r in list(self.requests) if r["method"] == "POST" and r["body"].get("method") == method]

    def gets(self):
        return [r for r in list(self.requests) if r["method"] == "GET"]

    def close(self):
        self.closing.set()
        self.httpd.shutdown()
        self.httpd.server_close()
        self.thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
