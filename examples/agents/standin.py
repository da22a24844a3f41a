"""A server that stands in for a model, for examples and tests without a network: it writes the code that it was told to write.

It speaks as much of the HTTP APIs of OpenAI (/v1/chat/completions) and Anthropic (/v1/messages) as an agent needs. Its last word is
what the last piece of code gave.
"""

import http.server
import json
import threading


class StandIn:
    """``with StandIn([code, ...]) as server``: ``server.url``; ``server.requests`` is what the clients sent."""

    def __init__(self, codes):
        self.codes, self.requests = list(codes), []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = "http://127.0.0.1:%d" % self._server.server_address[1]

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(standin):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                standin.requests.append(request)
                answer = {"/v1/chat/completions": standin.completion, "/v1/messages": standin.message}.get(self.path)
                body = json.dumps(answer(request) if answer else {"error": {"message": "there is no " + self.path}}).encode()
                self.send_response(200 if answer else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        return Handler

    def _turn(self):
        """(number, code or None)"""
        number = len(self.requests) - 1
        return number, self.codes[number] if number < len(self.codes) else None

    def completion(self, request):
        number, code = self._turn()
        message = {"role": "assistant", "content": None if code else request["messages"][-1]["content"]}
        if code:
            function = {"name": "run_code", "arguments": json.dumps({"code": code})}
            message["tool_calls"] = [{"id": "call_%d" % number, "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if code else "stop"}
        return {"id": "chat_%d" % number, "object": "chat.completion", "created": 0, "model": request["model"], "choices": [choice],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}

    def message(self, request):
        number, code = self._turn()
        if code:
            content = [{"type": "text", "text": "I run some code."},
                       {"type": "tool_use", "id": "call_%d" % number, "name": "run_code", "input": {"code": code}}]
        else:
            content = [{"type": "text", "text": request["messages"][-1]["content"][0]["content"]}]
        return {"id": "msg_%d" % number, "type": "message", "role": "assistant", "model": request["model"], "content": content,
                "stop_reason": "tool_use" if code else "end_turn", "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1}}
